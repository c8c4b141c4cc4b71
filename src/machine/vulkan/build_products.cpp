// machine/vulkan/build_products: products of rows and matrices, and what their rows go through.
#include "list_builder.h"
#ifndef AUSPEX_NO_VULKAN
#include "../../../shaders/matvec_args.h"
#include "../../../shaders/rows_args.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

void ListBuilder::embed(const Node& d, const Pass& pass) {
    const Matrix& m = model_.matrices[d.op->w[0]];
    args::EmbedArgs a{};
    a.n_col = m.tiling.n_col;
    a.d_in = static_cast<uint32_t>(m.tiling.d_in);
    a.d_out = static_cast<uint32_t>(m.tiling.d_out);
    a.y_stride = stride(d.y);
    a.out_stride = squares_stride(traits_, width(d.y));
    a.in_step = 1;
    uses({{id(kStep)}, {d.y, squares(d.y)}});
    for (const Matrix::Slice& s : m.slices) {
        if (s.first != 0) list_.barrier();  // slices write to one region
        a.first_row = s.first * kTileRows;
        a.n_row = s.n * kTileRows;
        dispatch(choose_embed(m.tiling.layout), {s.region, buffers_.step, buffers_.row[d.y], buffers_.squares[d.y]}, a,
                 {a.n_col, pass.n_row}, "embed");
    }
}

void ListBuilder::norm(const Node& d, const Pass& pass) {
    args::RowsArgs a{};
    a.width = width(d.x);
    a.x_stride = stride(d.x);
    a.y_offset = d.op->out_offset;
    a.y_stride = stride(d.y);
    a.eps = d.eps;
    a.from_kept = pass.tape == &plan_.trunk && plan_.slot(d.y).role == SlotRole::kept;
    // A head that the norm is fused into may run again after this pass: its input is kept beside the normed rows.
    const bool keep = !pass.wide && pass.tape == &plan_.trunk && d.x == buffers_.head_input;
    a.squares_stride = keep ? squares_stride(traits_, a.x_stride) : 0;
    const Region &unused = buffers_.row[d.y], &squares_of = keep ? buffers_.squares[d.x] : unused;
    Touch touch{{id(kStep), d.x}, {d.y}};
    if (keep) touch.reads.add(squares(d.x));
    if (keep) touch.writes.add(id(kHeadRows));
    uses(touch);
    dispatch(key_of("rms_rows", kRowGroup),
             {buffers_.step, buffers_.row[d.x], vector(d.norm), buffers_.row[d.y], squares_of,
              keep ? buffers_.head_rows : unused, keep ? buffers_.head_squares : unused},
             a, {pass.n_row}, "norm");
}

const Matrix& ListBuilder::matrix_of(const Node& d) const {
    return d.head && d.op != &plan_.trunk.ops.back() && buffers_.draft.n_id != 0 ? buffers_.draft.matrix
                                                                                 : model_.matrices[d.weight];
}

uint32_t ListBuilder::n_vocab_of(const Tape& tape) const {
    return has_chosen_ids(tape) ? buffers_.draft.n_id : plan_.n_vocab;
}

void ListBuilder::dispatch_product(const MatvecChoice& c, std::initializer_list<Region> regions,
                                   const args::MatvecArgs& a, const Grid& grid, const char* label, uint64_t bytes) {
    if (c.matrix) return dispatch_chained(c.key, regions, a, grid, label, bytes);
    dispatch(c.key, regions, a, grid, label, bytes);
}

void ListBuilder::product(const Node& d, const ProductArgs& p) {
    const uint32_t n_max = matvec_max_rows(traits_, matrix_, matrix_of(d).tiling);
    // Pieces as equal as they can be: nine rows are five and four, not eight and one.
    const uint32_t n_piece = ceil_div(p.n_row, p.n_row > kMaxTentative ? std::min(n_max, 8u) : n_max);
    for (uint32_t i = 0; i < n_piece; ++i) {
        const uint32_t first = static_cast<uint32_t>(uint64_t{p.n_row} * i / n_piece);
        product_piece(d, p, {first, static_cast<uint32_t>(uint64_t{p.n_row} * (i + 1) / n_piece) - first});
    }
}

void ListBuilder::product_piece(const Node& d, const ProductArgs& p, RowRange rows) {
    const Matrix& m = matrix_of(d);
    const Tiling& t = m.tiling;
    const MatvecChoice c =
        choose_matvec(traits_, matrix_, t, rows.n, p.norm, p.epilogue, p.stage_tiles, {plan_.d_model, n_score_});
    args::MatvecArgs a{};
    a.n_col = t.n_col;
    a.d_in = static_cast<uint32_t>(t.d_in);
    a.d_out = static_cast<uint32_t>(t.d_out);
    a.x_stride = p.x_stride;
    a.y_stride = p.y_stride;
    a.residual_stride = d.onto_self ? p.y_stride : 0;
    a.n_part = ceil_div(p.x_stride, 16u);
    a.part_stride = squares_stride(traits_, p.x_stride);
    a.out_stride = squares_stride(traits_, p.y_stride);
    a.inv_d = 1.0f / static_cast<float>(t.d_in);
    a.eps = d.eps;
    a.limit = p.epilogue == Epilogue::swiglu ? p.limit : 0;
    a.tiles = c.tiles;
    a.mode = matvec_mode(p.norm, p.epilogue);
    // The rows of this piece, as a binding of their own where one may begin there, so that pieces share no memory;
    // else the whole region and an offset.
    auto part = [&](const Region& r, uint32_t stride, uint32_t* offset) {
        const uint64_t skip = uint64_t{rows.first} * stride * sizeof(float),
                       bytes = uint64_t{rows.n} * stride * sizeof(float);
        *offset = 0;
        if (stride != 0 && skip % traits_.storage_align == 0) return r.part(skip, std::min(bytes, r.bytes - skip));
        *offset = rows.first * stride;
        return r;
    };
    // A binding that a variant does not use gets a buffer that it uses anyway: no dependency arises from it.
    uint32_t squares_offset = 0;
    const Region x = part(*p.x, a.x_stride, &a.x_offset), y = part(*p.y, a.y_stride, &a.y_offset);
    const bool onto_self = p.epilogue == Epilogue::add && d.onto_self;
    const Region residual = part(onto_self ? *p.y : model_.zeros, a.residual_stride, &a.residual_offset);
    const Region& sums = p.squares ? *p.squares : buffers_.squares[d.x];
    const Region squares_in = p.norm ? part(sums, a.part_stride, &squares_offset) : x;
    const bool logits = p.epilogue == Epilogue::logits;
    if (logits) {
        n_largest_ = 0;
        for (const Matrix::Slice& s : m.slices) n_largest_ += c.groups(s.n);
        a.out_stride = n_largest_;
        a.first_group = 0;
    }
    const Region out = p.epilogue == Epilogue::add ? part(buffers_.squares[d.y], a.out_stride, &a.out_offset)
                       : logits                    ? part(buffers_.sample_part, 2 * n_largest_, &a.out_offset)
                                                   : y;
    AUSPEX_ASSERT(squares_offset == 0);  // squares_stride()
    // Pieces that bind the whole region touch different rows of it, which validation cannot see.
    if (rows.first != 0 && (a.y_offset != 0 || a.residual_offset != 0 || a.out_offset != 0)) list_.barrier();
    const char* label = p.epilogue == Epilogue::swiglu ? "gate+up"
                        : d.head                       ? "head"
                        : p.epilogue == Epilogue::add  ? "product+"
                                                       : "product";
    for (size_t k = 0; k < m.slices.size(); ++k) {
        const Matrix::Slice& s = m.slices[k];
        a.n_tile = s.n;
        a.first_row = s.first * kTileRows;
        if (k > 0) list_.barrier();  // slices write to one region
        if (k > 0) a.first_group += c.groups(m.slices[k - 1].n);
        // The one before the last stands for the router's bias, which plain products do not read.
        dispatch_product(
            c, {s.region, x, p.norm ? vector(d.norm) : x, squares_in, y, residual, out, model_.zeros, buffers_.step}, a,
            {c.groups(s.n)}, label, s.region.bytes);
    }
}

void ListBuilder::rows_product(const Node& d, const Pass& pass, uint32_t stage_tiles) {
    ProductArgs p{};
    p.x = &buffers_.row[d.x];
    p.y = &buffers_.row[d.y];
    p.x_stride = stride(d.x);
    p.y_stride = stride(d.y);
    p.n_row = pass.n_row;
    p.stage_tiles = stage_tiles;
    p.norm = d.norm != kNoSlot;
    p.limit = d.op->limit;
    p.epilogue = d.epilogue == Node::Epilogue::swiglu ? Epilogue::swiglu
                 : d.epilogue == Node::Epilogue::add  ? Epilogue::add
                 : d.head && pass.largest             ? Epilogue::logits
                                                      : Epilogue::store;
    Touch touch{{d.x}, {d.y}};
    if (p.norm) touch.reads.add(squares(d.x));
    if (p.epilogue == Epilogue::add) touch.writes.add(squares(d.y));
    if (p.epilogue == Epilogue::logits) touch.writes.add(id(kSamplePart));
    uses(touch);
    product(d, p);
}

void ListBuilder::pack(const Node& d, const Pass& pass) {
    if (packed_ == d.x && packed_norm_ == d.norm) return;
    args::GemmPackArgs a{};
    a.d_in = a.x_stride = width(d.x);
    a.n_col = ceil_div(a.d_in, kTileColumns);
    a.y_stride = a.n_col * 32 * buffers_.n_half;
    a.inv_d = 1.0f / static_cast<float>(a.d_in);
    a.eps = d.eps;
    a.from_step = 1;
    const Region& x = buffers_.row[d.x];
    uses({{id(kStep), d.x}, {id(kHalves)}});
    packed_ = d.x;
    packed_norm_ = d.norm;
    dispatch(
        choose_gemm_pack(traits_, d.norm != kNoSlot, false, buffers_.exact()),
        {x, d.norm != kNoSlot ? vector(d.norm) : x, buffers_.halves, buffers_.scale, buffers_.halves, buffers_.step}, a,
        {pass.n_row}, "pack");
}

void ListBuilder::wide_product(const Node& d, const Pass& pass, uint32_t stage_tiles, bool feeds_next) {
    const Matrix& m = model_.matrices[d.weight];
    const Tiling& t = m.tiling;
    const bool ready = swiglu_packed_ == d.x && d.norm == kNoSlot;
    if (!ready) pack(d, pass);
    // Sums of squares are for few rows only; here an add onto nothing is a store.
    GemmEpilogue epilogue = d.epilogue == Node::Epilogue::add && d.onto_self ? GemmEpilogue::add : GemmEpilogue::store;
    if (d.epilogue == Node::Epilogue::swiglu)
        epilogue = feeds_next && width(d.y) % kTileColumns == 0 ? GemmEpilogue::swiglu_halves : GemmEpilogue::swiglu;
    const bool halves_out = epilogue == GemmEpilogue::swiglu_halves;
    const GemmChoice c =
        choose_gemm(traits_, gemm_matrix_, t, pass.n_row, !ready, epilogue, buffers_.exact(), stage_tiles);
    args::GemmArgs a{};
    a.n_row = pass.n_row;
    a.n_col = t.n_col;
    a.n_half_tile = t.n_half_tile();
    a.d_out = static_cast<uint32_t>(t.d_out);
    a.x_stride = t.n_col * 32 * buffers_.n_half;
    a.y_stride = halves_out ? width(d.y) / 2 * buffers_.n_half : stride(d.y);
    a.residual_stride = a.y_stride;
    a.factor = ready ? kHalvesFactor : 1.0f;
    a.limit = d.epilogue == Node::Epilogue::swiglu ? d.op->limit : 0;
    a.from_step = 1;
    a.mode = c.mode;
    const uint32_t from = id(ready ? kSwigluHalves : kHalves), to = halves_out ? id(kSwigluHalves) : d.y;
    Touch touch{{id(kStep), from}, {to}};
    uses(touch);
    if (halves_out) swiglu_packed_ = d.y;
    const Region &x = ready ? buffers_.swiglu_halves : buffers_.halves,
                 &y = halves_out ? buffers_.swiglu_halves : buffers_.row[d.y];
    const char* label = d.epilogue == Node::Epilogue::swiglu ? "gate+up"
                        : epilogue == GemmEpilogue::add      ? "product+"
                                                             : "product";
    for (size_t k = 0; k < m.slices.size(); ++k) {
        const Matrix::Slice& s = m.slices[k];
        a.n_tile = s.n;
        a.first_row = s.first * kTileRows;
        if (k > 0) list_.barrier();  // slices write to one region
        dispatch(c.key, {s.region, x, buffers_.scale, y, epilogue == GemmEpilogue::add ? y : x, buffers_.step}, a,
                 {c.groups_x(pass.n_row), c.groups_y(s.n)}, label, s.region.bytes);
    }
}

void ListBuilder::swiglu(const Node& d, const Pass& pass) {
    args::RowsArgs a{};
    a.width = width(d.y);
    a.x_stride = stride(d.x);
    a.y_stride = stride(d.y);
    a.limit = d.op->limit;
    uses({{id(kStep), d.x, d.x2}, {d.y}});
    dispatch(key_of("swiglu_rows", kRowGroup),
             {buffers_.step, buffers_.row[d.x], buffers_.row[d.x2], buffers_.row[d.y]}, a,
             {pass.n_row, ceil_div(a.width, kRowGroup)}, "swiglu");
}

void ListBuilder::gather(const Region& from, const Region& to, uint32_t width, uint32_t n, bool from_kept) {
    args::RowsArgs a{};
    a.width = a.x_stride = a.y_stride = width;
    a.from_kept = from_kept;
    a.n_row = n;
    dispatch(key_of("gather_rows", kRowGroup), {buffers_.step, from, to}, a, {n, ceil_div(width, kRowGroup)}, "rows");
}

void ListBuilder::head(const Tape& tape, uint32_t n, HeadRows rows, bool largest) {
    for (Node d : model_.nodes(tape)) {
        if (!d.head) continue;
        const bool fused = rows == HeadRows::of_pass && d.norm != kNoSlot;
        if (!fused) {  // kept rows, normed already
            d.x = d.op->in[0];
            d.norm = kNoSlot;
        }
        const uint32_t x_stride = stride(d.x);
        uses({{id(kStep), fused ? id(kHeadRows) : d.x}, {id(kGathered)}});
        gather(fused ? buffers_.head_rows : buffers_.row[d.x], buffers_.gathered, x_stride, n, rows == HeadRows::kept);
        if (fused)
            gather(buffers_.head_squares, buffers_.gathered_squares, squares_stride(traits_, x_stride), n, false);
        ProductArgs p{};
        p.x = &buffers_.gathered;
        p.y = &buffers_.row[d.y];
        p.squares = &buffers_.gathered_squares;
        p.x_stride = x_stride;
        p.y_stride = stride(d.y);
        p.n_row = n;
        p.norm = fused;
        p.epilogue = largest ? Epilogue::logits : Epilogue::store;
        uses({{id(kGathered)}, {d.y, id(kSamplePart)}});
        product(d, p);
    }
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

// machine/vulkan/build_experts: a layer of experts. machine/cpu/moe.cpp has the formulas.
//
// Few rows, in three or four stages between barriers:
//   1. scores of all experts; gate and up of the shared expert
//   2. each row's choice of experts (only where the kernels of stage 3 do not choose themselves)
//   3. gate and up of the chosen experts; down of the shared expert, added to the residual
//   4. down of the chosen experts, added to that
// Rows that chose the same expert find its weights in the cache; without matrix units, gate and up read them once for
// two rows. A row sums over its own experts in ascending order of their ids, so its bits do not depend on the others.
//
// Many rows: pairs of row and expert are sorted by expert, and matrix products run over blocks of one expert each,
// whose sizes suit the rows that it has. moe_sum.comp adds the results of each row, in ascending order of the ids.
#include "list_builder.h"
#ifndef AUSPEX_NO_VULKAN
#include "../../../shaders/matvec_args.h"
#include "../../../shaders/moe_args.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace build_experts_impl {

/// RouterArgs::flags of a layer.
uint32_t flags_of(const Op& op) {
    return (op.moe.sigmoid ? args::kRouteSigmoid : 0u) | (op.moe.normalise ? args::kRouteNormalise : 0u) |
           (op.w[8] != kNoSlot ? args::kRouteBias : 0u) | (op.w[7] != kNoSlot ? args::kRouteShared : 0u);
}

void set_matrix(const Tiling& t, uint32_t n_half, args::GemmArgs* a) {
    a->n_col = t.n_col;
    a->n_half_tile = t.n_half_tile();
    a->d_out = static_cast<uint32_t>(t.d_out);
    a->x_stride = t.n_col * 32 * n_half;
    a->from_step = 1;
}

}  // namespace build_experts_impl

void ListBuilder::experts(const Node& d, const Pass& pass) {
    if (!pass.wide) return experts_few(d, pass.n_row);
    experts_many(d, pass);
    packed_ = packed_norm_ = kNoSlot;
}

/// Scores of all experts; for few rows the shared expert's gate and up beside them.
void ListBuilder::scores(const Node& d, const Pass& pass, args::RouterArgs* to) {
    const MoeDims& m = d.op->moe;
    const bool norm = d.norm != kNoSlot, own_gate = d.op->w[7] != kNoSlot;
    const Region &router = model_.vectors[d.op->w[0]], &x = buffers_.row[d.x];
    args::RouterArgs a{};
    a.d_in = width(d.x);
    a.n_expert = m.n_expert;
    a.n_out = m.n_expert + (own_gate ? 1 : 0);
    a.n_used = m.n_used;
    a.x_stride = stride(d.x);
    a.inv_d = 1.0f / static_cast<float>(a.d_in);
    a.eps = d.eps;
    a.flags = build_experts_impl::flags_of(*d.op);
    a.scale = m.scale;
    a.n_row = pass.n_row;
    a.from_step = pass.wide;
    *to = a;
    uses({{id(kStep), d.x}, {id(kMoeLogits)}});
    const std::initializer_list<Region> regions{router, x, norm ? vector(d.norm) : x, buffers_.moe.logits,
                                                buffers_.step};
    if (pass.wide)
        return dispatch(key_of("moe_router_rows", 256, {{spec::moe_router_rows::kNorm, norm}}), regions, a,
                        {ceil_div(a.n_out, args::kRouterTile), ceil_div(pass.n_row, args::kRouterTile)}, "router",
                        router.bytes);
    // More workgroups, rather than fewer reads: on an H100 a step of four rows of the 35B-A3B takes 3.96 ms with two
    // rows at once, 4.10 with four.
    const uint32_t rows = pass.n_row == 1 ? 1 : 2;
    dispatch_chained(key_of("moe_router", 128,
                            {{spec::moe_router::kXRows, rows},
                             {spec::moe_router::kNorm, norm},
                             {spec::moe_router::kChained, chained_}}),
                     regions, a, {ceil_div(a.n_out, 2u), ceil_div(pass.n_row, rows)}, "router", router.bytes);
    if (m.d_ff_shared == 0) return;
    Node g = d;
    g.weight = d.op->w[4];
    ProductArgs p{};
    p.x = &x;
    p.y = &buffers_.moe.shared;
    p.x_stride = a.x_stride;
    p.y_stride = static_cast<uint32_t>(round_up(m.d_ff_shared, kTileColumns));
    p.n_row = pass.n_row;
    p.norm = norm;
    p.epilogue = Epilogue::swiglu;
    p.limit = m.limit_shared;
    Touch touch{{d.x}, {id(kMoeShared)}};
    if (norm) touch.reads.add(squares(d.x));
    uses(touch);
    product(g, p);
}

/// Scores, and from them the choice.
void ListBuilder::route(const Node& d, const Pass& pass) {
    args::RouterArgs a{};
    scores(d, pass, &a);
    uses({{id(kStep), id(kMoeLogits)}, {id(kMoeChoice)}});
    dispatch(key_of("moe_route", 256), {buffers_.moe.logits, vector(d.op->w[8]), buffers_.moe.choice, buffers_.step}, a,
             {pass.n_row}, "route");
}

// ------------------------------------------------------------------------------------ few rows

void ListBuilder::experts_few(const Node& d, uint32_t n_row) {
    const MoeDims& m = d.op->moe;
    const Buffers::Moe& b = buffers_.moe;
    Pass pass;
    pass.n_row = n_row;
    args::RouterArgs a{};
    if (routes_itself(*d.op))
        scores(d, pass, &a);
    else
        route(d, pass);
    expert_hidden(d, n_row);
    const Region& y = buffers_.row[d.y];
    const bool shared = m.d_ff_shared != 0;
    if (shared) {
        uses({{id(kMoeShared), id(kMoeLogits), d.y}, {id(kMoeSum)}});
        expert_sum(d, n_row, {d.op->w[6], &b.shared, &y, &b.sum, &b.squares, stride(d.y), width(d.y), "shared down"});
    }
    Touch touch{{id(kMoeHidden), id(kMoeChoice)}, {d.y, squares(d.y)}};
    if (shared) touch.reads.add(id(kMoeSum));
    uses(touch);
    expert_sum(d, n_row,
               {d.op->w[3], &b.hidden, shared ? &b.sum : &y, &y, &buffers_.squares[d.y],
                shared ? width(d.y) : stride(d.y), stride(d.y), "experts down"});
}

/// hidden[place] = act(gate x, up x), for every row and every expert it chose.
void ListBuilder::expert_hidden(const Node& d, uint32_t n_row) {
    const MoeDims& m = d.op->moe;
    const Matrix& stack = model_.matrices[d.op->w[1]];
    const Tiling t = stack.tiling.one();
    const bool norm = d.norm != kNoSlot;
    args::MatvecArgs a{};
    a.n_tile = t.n_row;
    a.n_col = t.n_col;
    a.d_in = static_cast<uint32_t>(t.d_in);
    a.d_out = m.d_ff;
    a.x_stride = stride(d.x);
    a.y_stride = static_cast<uint32_t>(round_up(m.d_ff, kTileColumns));
    a.n_part = ceil_div(a.x_stride, 16u);
    a.part_stride = squares_stride(traits_, a.x_stride);
    a.inv_d = 1.0f / static_cast<float>(a.d_in);
    a.eps = d.eps;
    a.limit = m.limit;
    a.n_row = n_row;
    a.n_used = m.n_used;
    a.n_score = m.n_expert;
    a.flags = build_experts_impl::flags_of(*d.op);
    a.scale = m.scale;
    // On matrix units each row reads its experts for itself, in the pipeline of single rows: rows that share an expert
    // find its weights in the cache. Elsewhere two rows of an expert at once.
    const bool itself = routes_itself(*d.op);
    const uint32_t n_place = n_row * m.n_used;
    const MatvecChoice c =
        choose_matvec(traits_, matrix_, t, std::min(n_row, matrix_ ? 1u : 2u), norm, Epilogue::swiglu,
                      t.n_row * n_place, {plan_.d_model, itself ? n_score_ : 0}, Role::expert);
    a.tiles = c.tiles;
    a.mode = matvec_mode(norm, Epilogue::swiglu, Role::expert);
    const Region &x = buffers_.row[d.x], &y = buffers_.moe.hidden, &choice = buffers_.moe.choice;
    Touch touch{{d.x, itself ? id(kMoeLogits) : id(kMoeChoice)}, {id(kMoeHidden)}};
    if (itself) touch.writes.add(id(kMoeChoice));
    if (norm) touch.reads.add(squares(d.x));
    uses(touch);
    for (size_t k = 0; k < stack.slices.size(); ++k) {
        const Matrix::Slice& s = stack.slices[k];
        a.first_expert = s.first / t.n_row;
        a.n_expert = s.n / t.n_row;
        if (k > 0) list_.barrier();  // slices write to one region
        dispatch_product(
            c,
            {s.region, x, norm ? vector(d.norm) : x, norm ? buffers_.squares[d.x] : x, y,
             itself ? buffers_.moe.logits : choice, itself ? choice : y, vector(d.op->w[8]), buffers_.step},
            a, {c.groups(t.n_row), m.n_used, n_row}, "experts up", std::min(n_place, a.n_expert) * t.bytes());
    }
}

/// y = residual + sum over a row's pairs of weight times W x[pair]; and the sums of squares of y.
void ListBuilder::expert_sum(const Node& d, uint32_t n_row, const SumOf& s) {
    const MoeDims& m = d.op->moe;
    const Matrix& stack = model_.matrices[s.weight];
    const Tiling t = stack.tiling.one();
    const bool own = s.weight == d.op->w[6];  // the shared expert
    const uint32_t n_pair = own ? 1 : m.n_used;
    Tiling all = t;  // a row's matrices side by side
    all.n_col *= n_pair;
    args::MatvecArgs a{};
    a.n_tile = t.n_row;
    a.n_col = all.n_col;
    a.d_in = static_cast<uint32_t>(t.d_in);
    a.d_out = static_cast<uint32_t>(t.d_out);
    a.d_slot = t.n_col * kTileColumns;
    a.x_stride = a.d_slot * n_pair;
    a.y_stride = s.y_stride;
    a.residual_stride = s.residual_stride;
    a.out_stride = squares_stride(traits_, a.y_stride);
    a.n_row = n_row;
    a.n_used = n_pair;
    a.n_score = m.n_expert;
    a.flags = build_experts_impl::flags_of(*d.op);
    const Role role = own ? Role::shared : Role::row;
    const MatvecChoice c =
        choose_matvec(traits_, matrix_, all, 1, false, Epilogue::add, t.n_row * n_row, {plan_.d_model, n_score_}, role);
    a.tiles = c.tiles;
    a.mode = matvec_mode(false, Epilogue::add, role);
    for (size_t k = 0; k < stack.slices.size(); ++k) {
        const Matrix::Slice& slice = stack.slices[k];
        a.first_expert = slice.first / t.n_row;
        a.n_expert = slice.n / t.n_row;
        if (k > 0) a.residual_stride = s.y_stride;
        if (k > 0) list_.barrier();  // a slice adds to what the one before left
        dispatch_product(c,
                         {slice.region, *s.x, *s.x, own ? buffers_.moe.logits : buffers_.moe.choice, *s.y,
                          k > 0 ? *s.y : *s.residual, *s.squares, model_.zeros, buffers_.step},
                         a, {c.groups(t.n_row), n_row}, s.label, std::min(n_row * n_pair, a.n_expert) * t.bytes());
    }
}

// ----------------------------------------------------------------------------------- many rows

void ListBuilder::shared_gemm(const Matrix& m, const GemmChoice& c, args::GemmArgs a, const Region& x, const Region& y,
                              const char* label) {
    build_experts_impl::set_matrix(m.tiling, buffers_.n_half, &a);
    a.mode = c.mode;
    for (size_t k = 0; k < m.slices.size(); ++k) {
        const Matrix::Slice& s = m.slices[k];
        a.n_tile = s.n;
        a.first_row = s.first * kTileRows;
        if (k > 0) list_.barrier();  // slices write to one region
        dispatch(c.key, {s.region, x, buffers_.scale, y, x, buffers_.step}, a, {c.groups_x(a.n_row), c.groups_y(s.n)},
                 label, s.region.bytes);
    }
}

void ListBuilder::expert_gemm(const Matrix& m, const Blocks& b, GemmEpilogue epilogue, args::GemmArgs a,
                              const Region& x, const Region& y, const char* label) {
    const Tiling t = m.tiling.one();
    const bool scaled = epilogue == GemmEpilogue::swiglu_halves;  // rows that the pack wrote have factors
    const uint32_t n_place = a.n_row;
    build_experts_impl::set_matrix(t, buffers_.n_half, &a);
    a.n_row = b.n_entry;
    a.n_tile = t.n_row;
    for (size_t k = 0; k < m.slices.size(); ++k) {
        const Matrix::Slice& s = m.slices[k];
        a.first_expert = s.first / t.n_row;
        a.n_expert = s.n / t.n_row;
        if (k > 0) list_.barrier();  // slices write to one region
        // Sizes of blocks need no barrier between them: each place is in one block.
        for (uint32_t i = 0; i < b.n; ++i) {
            const GemmChoice c = choose_gemm_experts(traits_, gemm_matrix_, t, n_place, a.n_expert, b.bm[i], scaled,
                                                     epilogue, buffers_.exact());
            a.mode = c.mode;
            a.list_size = i;
            a.first_entry = b.first_entry[i];
            dispatch(c.key, {s.region, x, buffers_.scale, y, buffers_.moe.list, buffers_.step}, a,
                     {b.entries(i), c.groups_y(t.n_row)}, label, i == 0 ? s.region.bytes : 0);
        }
    }
}

void ListBuilder::experts_many(const Node& d, const Pass& pass) {
    const MoeDims& m = d.op->moe;
    const Buffers::Moe& b = buffers_.moe;
    const Matrix &up = model_.matrices[d.op->w[1]], &down = model_.matrices[d.op->w[3]];
    const uint32_t n_row = pass.n_row, n_place = n_row * m.n_used, d_model = width(d.y);
    const bool shared = m.d_ff_shared != 0, exact = buffers_.exact();
    const Blocks blocks = choose_blocks(traits_, gemm_matrix_, up.tiling.one(), n_row, m.n_used, m.n_expert, exact);
    const Region shared_rows =
        b.parts.part(uint64_t{n_place} * d_model * sizeof(float), uint64_t{n_row} * d_model * sizeof(float));

    pack(d, pass);
    args::GemmArgs a{};
    if (shared) {
        const Matrix& gate = model_.matrices[d.op->w[4]];
        const GemmChoice c =
            choose_gemm(traits_, gemm_matrix_, gate.tiling, n_row, true, GemmEpilogue::swiglu_halves, exact);
        a.n_row = n_row;
        a.y_stride = static_cast<uint32_t>(round_up(m.d_ff_shared, kTileColumns)) / 2 * buffers_.n_half;
        a.factor = 1;
        a.limit = m.limit_shared;
        uses({{id(kStep), id(kHalves)}, {id(kMoeShared)}});
        shared_gemm(gate, c, a, buffers_.halves, b.shared_halves, "gate+up");
    }
    route(d, pass);
    args::ListArgs list = blocks.list();
    list.n_expert = m.n_expert;
    list.n_used = m.n_used;
    list.n_row = n_row;
    list.from_step = 1;
    uses({{id(kStep), id(kMoeChoice)}, {id(kMoeList)}});
    dispatch(key_of("moe_list", traits_.max_group_invocations >= 1024 && !traits_.is_cpu() ? 1024 : 256),
             {b.choice, b.list, buffers_.step}, list, {}, "list");
    if (shared) {
        const Matrix& own = model_.matrices[d.op->w[6]];
        const GemmChoice c = choose_gemm(traits_, gemm_matrix_, own.tiling, n_row, false, GemmEpilogue::store, exact);
        a = args::GemmArgs();
        a.n_row = n_row;
        a.y_stride = d_model;
        a.factor = kHalvesFactor;
        uses({{id(kStep), id(kMoeShared)}, {id(kMoeRows)}});
        shared_gemm(own, c, a, b.shared_halves, shared_rows, "product");
    }
    a = args::GemmArgs();
    a.n_row = n_place;
    a.y_stride = static_cast<uint32_t>(round_up(m.d_ff, kTileColumns)) / 2 * buffers_.n_half;
    a.factor = 1;
    a.limit = m.limit;
    a.divide = m.n_used;
    uses({{id(kStep), id(kHalves), id(kMoeList)}, {id(kMoeHidden)}});
    expert_gemm(up, blocks, GemmEpilogue::swiglu_halves, a, buffers_.halves, b.halves, "experts up");
    a.y_stride = d_model;
    a.factor = kHalvesFactor;
    a.limit = 0;
    a.divide = 1;
    uses({{id(kStep), id(kMoeHidden), id(kMoeList)}, {id(kMoeParts)}});
    expert_gemm(down, blocks, GemmEpilogue::store, a, b.halves, b.parts, "experts down");

    args::SumArgs sum{};
    sum.width = sum.part_stride = d_model;
    sum.n_used = m.n_used;
    sum.y_stride = stride(d.y);
    sum.shared_stride = shared ? d_model : 0;
    sum.from_step = 1;
    uses({{id(kStep), id(kMoeChoice), id(kMoeParts), id(kMoeRows)}, {d.y}});
    dispatch(key_of("moe_sum", 256), {b.choice, b.parts, shared_rows, buffers_.row[d.y], buffers_.step}, sum,
             {n_row, ceil_div(d_model, 1024u)}, "experts sum");
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

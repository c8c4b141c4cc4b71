#include "record.h"
#ifndef AUSPEX_NO_VULKAN
#include "../../../shaders/any_args.h"
#include "../../../shaders/matvec_args.h"
#include "../../../shaders/rows_args.h"

#include <algorithm>
#include <cstddef>

namespace auspex {
namespace detail {
namespace vk {
namespace record_impl {

constexpr uint32_t kRowGroup = 256;  ///< of the plain row kernels

/// True where attend_mma runs tentative passes: decides bits, so device and cache alone say it.
bool attends_on_matrix(bool matrix, uint32_t d_head, const Buffers::Kv& kv) {
    return matrix && d_head == 256 && kv.k.format == args::kKvF16 && kv.v.format == args::kKvF16;
}

bool holds(const std::vector<uint32_t>& list, uint32_t id) {
    return std::find(list.begin(), list.end(), id) != list.end();
}

}  // namespace record_impl

Recorder::Recorder(const VulkanModel& program, const Buffers& buffers)
    : program_(program),
      buffers_(buffers),
      plan_(*program.plan),
      matrix_(program.device->matrix && !program.small()),
      gemm_matrix_(program.device->gemm_matrix) {
    auto look = [&](const Tape& tape) {
        for (const Op& op : tape.ops)
            if (op.kind == OpKind::moe && routes_itself(op)) n_score_ = std::max(n_score_, op.moe.n_expert);
    };
    look(plan_.trunk);
    for (const Tape& t : plan_.mtp) look(t);
}

Status Recorder::record(Commands* commands, const Piece& piece, bool profile) {
    profile_ = profile;
    commands_ = commands;
    AUSPEX_TRY(ask(piece).status());
    for (Pipelines::Id id : asked_) AUSPEX_TRY(program_.device->pipelines->wait(id));
    packed_ = packed_norm_ = swiglu_packed_ = kNoSlot;
    marks_.clear();
    stage_ = Mark();
    reads_.clear();
    writes_.clear();
    n_barrier_ = 0;
    n_kernel_ = 0;
    AUSPEX_TRY(commands->begin());
    if (profile) commands->timestamp("begin");
    AUSPEX_TRY(piece(*this));
    mark_stage();
    return commands->end();
}

Result<Span<const Pipelines::Id>> Recorder::ask(const Piece& piece) {
    asking_ = true;
    packed_ = packed_norm_ = swiglu_packed_ = kNoSlot;
    asked_.clear();
    const Status s = piece(*this);
    asking_ = false;
    if (!s.ok()) return s;
    return Span<const Pipelines::Id>(asked_);
}

void Recorder::mark_stage() {
    if (!profile_ || asking_ || stage_.label.empty()) return;
    commands_->timestamp(stage_.label.c_str());
    marks_.push_back(stage_);
    stage_ = Mark();
}

void Recorder::barrier(const Touch& touch, bool copies) {
    if (asking_) return;
    using record_impl::holds;
    bool clash = copies;  // a barrier between kernels settles nothing for copies
    for (uint32_t id : touch.reads) clash = clash || holds(writes_, id);
    for (uint32_t id : touch.writes) clash = clash || holds(writes_, id) || holds(reads_, id);
    if (clash) {
        mark_stage();
        commands_->barrier(kSyncCompute, kSyncCompute | (copies ? kSyncTransfer : 0u));
        ++n_barrier_;
        reads_.clear();
        writes_.clear();
    }
    for (uint32_t id : touch.reads)
        if (!holds(reads_, id)) reads_.push_back(id);
    for (uint32_t id : touch.writes)
        if (!holds(writes_, id)) writes_.push_back(id);
}

Status Recorder::kernel(const PipelineKey& key, std::initializer_list<Region> buffers, const void* push,
                        uint32_t push_bytes, const Grid& grid, const char* label, uint64_t bytes) {
    Pipelines& pipelines = *program_.device->pipelines;
    if (asking_) {
        asked_.push_back(pipelines.request(key));
        return {};
    }
    const Pipelines::Id id = asked_[n_kernel_++];
    commands_->bind(pipelines.get(id), buffers, pipelines.access(id));
    commands_->push(push, push_bytes);
    commands_->dispatch(grid.x, grid.y, grid.z);
    if (!profile_) return {};
    if (stage_.label.find(label) == std::string::npos)
        stage_.label += stage_.label.empty() ? std::string(label) : say(" ", label);
    stage_.bytes += bytes;
    return {};
}

// ------------------------------------------------------------------------------------ the step

args::StepArgs Recorder::step_args() const {
    args::StepArgs a{};
    a.token_shift = 1;
    a.ring_length = kRingLength;
    return a;
}

Status Recorder::open_request(uint32_t request) {
    barrier({{}, {special(kStep)}});
    return kernel(record_impl::key_of("step_open", 256), {buffers_.step, buffers_.request[request]}, step_args(), {},
                  "step");
}

Status Recorder::open_next(uint32_t n_draft) {
    args::StepArgs a = step_args();
    a.mode = 1;
    a.n_draft = n_draft;
    barrier({{}, {special(kStep)}});
    return kernel(record_impl::key_of("step_open", 256), {buffers_.step, buffers_.request[0]}, a, {}, "step");
}

Status Recorder::accept() {
    barrier({{}, {special(kStep), special(kRing)}});
    return kernel(record_impl::key_of("step_accept", 32), {buffers_.step, buffers_.ring}, step_args(), {}, "step");
}

Status Recorder::mtp_open() {
    barrier({{}, {special(kStep)}});
    return kernel(record_impl::key_of("step_mtp", 32), {buffers_.step}, step_args(), {}, "step");
}

Status Recorder::mtp_next() {
    const bool chosen = buffers_.draft.n_id != 0;  // sampled_ids are places in the draft vocabulary
    args::StepArgs a = step_args();
    a.mode = chosen;
    barrier({{}, {special(kStep)}});
    return kernel(record_impl::key_of("step_next", 32), {buffers_.step, chosen ? buffers_.draft.ids : buffers_.step}, a,
                  {}, "step");
}

Status Recorder::mtp_block(uint32_t mode, uint32_t n_guess) {
    args::StepArgs a = step_args();
    a.mode = mode;
    a.n_draft = n_guess;
    barrier({{}, {special(kStep)}});
    return kernel(record_impl::key_of("step_block", 32), {buffers_.step}, a, {}, "step");
}

Status Recorder::keep_guess(const Tape& tape, uint32_t i) {
    args::RowsArgs a{};
    a.width = width(tape.hidden);
    a.x_stride = a.y_stride = stride(tape.hidden);
    a.y_offset = i * a.y_stride;
    barrier({{special(kStep), tape.hidden}, {special(kChain)}});
    return kernel(record_impl::key_of("copy_rows", record_impl::kRowGroup),
                  {buffers_.step, buffers_.row[tape.hidden], buffers_.given, buffers_.chain, buffers_.behind}, a,
                  {1, ceil_div(a.width, record_impl::kRowGroup)}, "rows");
}

Status Recorder::keep(uint32_t n_row) {
    const SlotId hidden = plan_.trunk.hidden;
    args::RowsArgs a{};
    a.width = width(hidden);
    a.x_stride = stride(hidden);
    barrier({{special(kStep), hidden}, {special(kBehind)}});
    return kernel(record_impl::key_of("keep_rows", record_impl::kRowGroup),
                  {buffers_.step, buffers_.row[hidden], buffers_.behind}, a,
                  {n_row, ceil_div(a.width, record_impl::kRowGroup)}, "rows");
}

// ------------------------------------------------------------------------------------- the tape

std::vector<Node> Recorder::nodes_of(const Shape& shape) const {
    std::vector<Node> nodes = program_.nodes(*shape.tape, shape.fill_only);
    // A head of its own runs on gathered rows.
    if (!shape.head)
        nodes.erase(std::remove_if(nodes.begin(), nodes.end(), [](const Node& d) { return d.head; }), nodes.end());
    return nodes;
}

Status Recorder::tape(const Shape& shape, uint32_t first_node, uint32_t last_node) {
    const std::vector<Node> nodes = nodes_of(shape);
    const size_t n = std::min<size_t>(nodes.size(), last_node);
    for (size_t i = first_node; i < n; ++i) {
        // Neighbouring products of the same rows fill the device together.
        uint32_t stage_tiles = 0;
        if (nodes[i].kind == Node::Kind::product) {
            auto same = [&](const Node& d) {
                return d.kind == Node::Kind::product && d.x == nodes[i].x && d.epilogue == Node::Epilogue::store &&
                       !d.head;
            };
            size_t from = i, to = i;
            while (from > 0 && same(nodes[from]) && same(nodes[from - 1])) --from;
            while (to + 1 < n && same(nodes[to]) && same(nodes[to + 1])) ++to;
            for (size_t k = from; k <= to; ++k) stage_tiles += program_.matrices[nodes[k].weight].tiling.n_row;
        }
        // Gate and up leave halves for the product that follows, if it alone reads them.
        const bool feeds_next = i + 1 < n && nodes[i + 1].kind == Node::Kind::product && nodes[i + 1].x == nodes[i].y &&
                                nodes[i + 1].norm == kNoSlot;
        AUSPEX_TRY(run(nodes[i], shape, stage_tiles, feeds_next));
    }
    return {};
}

Status Recorder::run(const Node& d, const Shape& shape, uint32_t stage_tiles, bool feeds_next) {
    if (d.y == packed_) packed_ = kNoSlot;
    if (d.y == swiglu_packed_) swiglu_packed_ = kNoSlot;
    switch (d.kind) {
        case Node::Kind::embed: return embed(d, shape);
        case Node::Kind::given: {
            args::RowsArgs a{};
            a.width = width(d.y);
            const SlotId kept = shape.fed_from != kNoSlot ? shape.fed_from : plan_.trunk.hidden;
            a.x_stride = stride(kept);
            a.y_stride = stride(d.y);
            barrier({{special(kStep), shape.fed_by_chain ? special(kChain) : kept, special(kBehind)}, {d.y}});
            return kernel(record_impl::key_of("copy_rows", record_impl::kRowGroup),
                          {buffers_.step, shape.fed_by_chain ? buffers_.chain : buffers_.row[kept], buffers_.given,
                           buffers_.row[d.y], buffers_.behind},
                          a, {shape.n_row, ceil_div(a.width, record_impl::kRowGroup)}, "rows");
        }
        case Node::Kind::norm: return norm(d, shape);
        case Node::Kind::product:
            return shape.wide ? wide_product(d, shape, stage_tiles, feeds_next) : rows_product(d, shape, stage_tiles);
        case Node::Kind::swiglu: return swiglu(d, shape);
        case Node::Kind::delta: return delta(d, shape);
        case Node::Kind::append: return append(d, shape);
        case Node::Kind::attend: return attend(d, shape);
        case Node::Kind::experts: return experts(d, shape);
    }
    return {};
}

Status Recorder::embed(const Node& d, const Shape& shape) {
    const Matrix& m = program_.matrices[d.op->w[0]];
    args::EmbedArgs a{};
    a.n_col = m.tiling.n_col;
    a.d_in = static_cast<uint32_t>(m.tiling.d_in);
    a.d_out = static_cast<uint32_t>(m.tiling.d_out);
    a.y_stride = stride(d.y);
    a.out_stride = ceil_div(width(d.y), 16u);
    a.in_step = 1;
    barrier({{special(kStep)}, {d.y, squares_id(d.y)}});
    for (const Matrix::Slice& s : m.slices) {
        a.first_row = s.first * kTileRows;
        a.n_row = s.n * kTileRows;
        AUSPEX_TRY(kernel(choose_embed(m.tiling.layout),
                          {s.region, buffers_.step, buffers_.row[d.y], buffers_.squares[d.y]}, a,
                          {a.n_col, shape.n_row}, "embed"));
    }
    return {};
}

Status Recorder::norm(const Node& d, const Shape& shape) {
    args::RowsArgs a{};
    a.width = width(d.x);
    a.x_stride = stride(d.x);
    a.y_offset = d.op->out_offset;
    a.y_stride = stride(d.y);
    a.eps = d.eps;
    a.from_kept = shape.tape == &plan_.trunk && plan_.slot(d.y).role == SlotRole::kept;
    barrier({{special(kStep), d.x}, {d.y}});
    return kernel(record_impl::key_of("rms_rows", record_impl::kRowGroup),
                  {buffers_.step, buffers_.row[d.x], vector(d.norm), buffers_.row[d.y]}, a, {shape.n_row}, "norm");
}

const Matrix& Recorder::matrix_of(const Node& d) const {
    return d.head && d.op != &plan_.trunk.ops.back() && buffers_.draft.n_id != 0 ? buffers_.draft.matrix
                                                                                 : program_.matrices[d.weight];
}

uint32_t Recorder::n_vocab_of(const Tape& tape) const {
    return &tape != &plan_.trunk && buffers_.draft.n_id != 0 ? buffers_.draft.n_id : plan_.n_vocab;
}

Status Recorder::product(const Node& d, const ProductArgs& p) {
    const DeviceTraits& traits = program_.device->gpu->traits;
    const Matrix& m = matrix_of(d);
    const Tiling& t = m.tiling;
    args::MatvecArgs a{};
    a.n_col = t.n_col;
    a.d_in = static_cast<uint32_t>(t.d_in);
    a.d_out = static_cast<uint32_t>(t.d_out);
    a.x_stride = p.x_stride;
    a.y_stride = p.y_stride;
    a.residual_stride = d.onto_self ? p.y_stride : 0;
    a.n_part = a.part_stride = ceil_div(p.x_stride, 16u);
    a.out_stride = ceil_div(p.y_stride, 16u);
    a.inv_d = 1.0f / static_cast<float>(t.d_in);
    a.eps = d.eps;
    a.limit = p.epilogue == Epilogue::swiglu ? p.limit : 0;
    // What a variant does not use is bound to what it uses anyway: no dependency arises from it.
    const Region& squares_x = p.norm ? buffers_.squares[d.x] : *p.x;
    const Region& squares_y = p.epilogue == Epilogue::add ? buffers_.squares[d.y] : *p.y;
    const Region& residual = p.epilogue == Epilogue::add && d.onto_self ? *p.y : program_.zeros;
    const uint32_t most = matvec_max_rows(traits, matrix_, t);
    const char* label = p.epilogue == Epilogue::swiglu ? "gate+up"
                        : d.head                       ? "head"
                        : p.epilogue == Epilogue::add  ? "product+"
                                                       : "product";
    // Pieces as equal as they can be: nine rows are five and four, not eight and one.
    const uint32_t n_piece = ceil_div(p.n_row, p.n_row > kMaxTentative ? std::min(most, 8u) : most);
    for (uint32_t i = 0; i < n_piece; ++i) {
        const uint32_t r0 = static_cast<uint32_t>(uint64_t{p.n_row} * i / n_piece),
                       n = static_cast<uint32_t>(uint64_t{p.n_row} * (i + 1) / n_piece) - r0;
        const MatvecChoice c = choose_matvec(traits, matrix_, t, n, p.norm, p.epilogue, p.stage_tiles, n_score_);
        // Rows of a piece, bound as such where a binding may begin there, so that pieces do not share memory.
        auto rows = [&](const Region& r, uint32_t stride, uint32_t* offset) {
            const uint64_t skip = uint64_t{r0} * stride * sizeof(float), bytes = uint64_t{n} * stride * sizeof(float);
            *offset = 0;
            if (stride != 0 && skip % traits.storage_align == 0) return r.part(skip, std::min(bytes, r.bytes - skip));
            *offset = r0 * stride;
            return r;
        };
        a.tiles = c.tiles;
        a.mode = matvec_mode(p.norm, p.epilogue);
        uint32_t squares_at = 0;
        const Region x = rows(*p.x, a.x_stride, &a.x_offset), y = rows(*p.y, a.y_stride, &a.y_offset);
        const Region from = rows(residual, a.residual_stride, &a.residual_offset);
        const Region squares_from = p.norm ? rows(squares_x, a.part_stride, &squares_at) : x;
        const Region squares_to = p.epilogue == Epilogue::add      ? rows(squares_y, a.out_stride, &a.out_offset)
                                  : p.epilogue == Epilogue::logits ? buffers_.sample_part
                                                                   : y;
        if (squares_at != 0)
            return fail(Code::unsupported, "rows of ", p.x_stride, " values cannot be cut at row ", r0, " on ",
                        traits.name);
        if (p.epilogue == Epilogue::logits) {
            n_largest_ = 0;
            for (const Matrix::Slice& s : m.slices) n_largest_ += c.groups(s.n);
            a.out_stride = n_largest_;
            a.out_offset = 2 * r0 * n_largest_;
            a.first_group = 0;
        }
        for (size_t k = 0; k < m.slices.size(); ++k) {
            const Matrix::Slice& s = m.slices[k];
            a.n_tile = s.n;
            a.first_row = s.first * kTileRows;
            if (k > 0 && !asking_) commands_->barrier();  // slices write to one region
            if (k > 0) a.first_group += c.groups(m.slices[k - 1].n);
            AUSPEX_TRY(kernel(c.key, {s.region, x, p.norm ? vector(d.norm) : x, squares_from, y, from, squares_to}, a,
                              {c.groups(s.n)}, label, s.region.bytes));
        }
    }
    return {};
}

Status Recorder::rows_product(const Node& d, const Shape& shape, uint32_t stage_tiles) {
    ProductArgs p{};
    p.x = &buffers_.row[d.x];
    p.y = &buffers_.row[d.y];
    p.x_stride = stride(d.x);
    p.y_stride = stride(d.y);
    p.n_row = shape.n_row;
    p.stage_tiles = stage_tiles;
    p.norm = d.norm != kNoSlot;
    p.limit = d.op->limit;
    p.epilogue = d.epilogue == Node::Epilogue::swiglu ? Epilogue::swiglu
                 : d.epilogue == Node::Epilogue::add  ? Epilogue::add
                 : d.head && shape.largest            ? Epilogue::logits
                                                      : Epilogue::store;
    Touch touch{{d.x}, {d.y}};
    if (p.norm) touch.reads.push_back(squares_id(d.x));
    if (p.epilogue == Epilogue::add) touch.writes.push_back(squares_id(d.y));
    if (p.epilogue == Epilogue::logits) touch.writes.push_back(special(kSamplePart));
    barrier(touch);
    return product(d, p);
}

Status Recorder::pack(const Node& d, const Shape& shape) {
    if (packed_ == d.x && packed_norm_ == d.norm) return {};
    args::GemmPackArgs a{};
    a.d_in = a.x_stride = width(d.x);
    a.n_col = ceil_div(a.d_in, kTileColumns);
    a.y_stride = a.n_col * 32;
    a.inv_d = 1.0f / static_cast<float>(a.d_in);
    a.eps = d.eps;
    a.from_step = 1;
    const Region& x = buffers_.row[d.x];
    barrier({{special(kStep), d.x}, {special(kHalves)}});
    packed_ = d.x;
    packed_norm_ = d.norm;
    return kernel(
        choose_gemm_pack(program_.device->gpu->traits, d.norm != kNoSlot, false),
        {x, d.norm != kNoSlot ? vector(d.norm) : x, buffers_.halves, buffers_.scale, buffers_.halves, buffers_.step}, a,
        {shape.n_row}, "pack");
}

Status Recorder::wide_product(const Node& d, const Shape& shape, uint32_t stage_tiles, bool feeds_next) {
    const DeviceTraits& traits = program_.device->gpu->traits;
    const Matrix& m = program_.matrices[d.weight];
    const Tiling& t = m.tiling;
    const bool ready = swiglu_packed_ == d.x && d.norm == kNoSlot;
    if (!ready) AUSPEX_TRY(pack(d, shape));
    // Sums of squares are for few rows only; here an add onto nothing is a store.
    GemmEpilogue epilogue = d.epilogue == Node::Epilogue::add && d.onto_self ? GemmEpilogue::add : GemmEpilogue::store;
    if (d.epilogue == Node::Epilogue::swiglu)
        epilogue = feeds_next && width(d.y) % kTileColumns == 0 ? GemmEpilogue::swiglu_halves : GemmEpilogue::swiglu;
    const bool halves_out = epilogue == GemmEpilogue::swiglu_halves;
    const GemmChoice c = choose_gemm(traits, gemm_matrix_, t, shape.n_row, !ready, epilogue, stage_tiles);
    args::GemmArgs a{};
    a.n_row = shape.n_row;
    a.n_col = t.n_col;
    a.d_out = static_cast<uint32_t>(t.d_out);
    a.x_stride = t.n_col * 32;
    a.y_stride = halves_out ? width(d.y) / 2 : stride(d.y);
    a.residual_stride = a.y_stride;
    a.factor = ready ? kHalvesFactor : 1.0f;
    a.limit = d.epilogue == Node::Epilogue::swiglu ? d.op->limit : 0;
    a.from_step = 1;
    const uint32_t from = special(ready ? kSwigluHalves : kHalves), to = halves_out ? special(kSwigluHalves) : d.y;
    Touch touch{{special(kStep), from}, {to}};
    barrier(touch);
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
        if (k > 0 && !asking_) commands_->barrier();  // slices write to one region
        AUSPEX_TRY(kernel(c.key, {s.region, x, buffers_.scale, y, epilogue == GemmEpilogue::add ? y : x, buffers_.step},
                          a, {c.groups_x(shape.n_row), c.groups_y(s.n)}, label, s.region.bytes));
    }
    return {};
}

Status Recorder::swiglu(const Node& d, const Shape& shape) {
    args::RowsArgs a{};
    a.width = width(d.y);
    a.x_stride = stride(d.x);
    a.y_stride = stride(d.y);
    a.limit = d.op->limit;
    barrier({{special(kStep), d.x, d.x2}, {d.y}});
    return kernel(record_impl::key_of("swiglu_rows", record_impl::kRowGroup),
                  {buffers_.step, buffers_.row[d.x], buffers_.row[d.x2], buffers_.row[d.y]}, a,
                  {shape.n_row, ceil_div(a.width, record_impl::kRowGroup)}, "swiglu");
}

Status Recorder::head(const Tape& tape, uint32_t n, bool from_kept, bool largest) {
    for (Node d : program_.nodes(tape)) {
        if (!d.head) continue;
        d.x = d.op->in[0];  // kept rows, normed already
        d.norm = kNoSlot;
        args::RowsArgs a{};
        a.width = a.x_stride = a.y_stride = width(d.x);
        a.from_kept = from_kept;
        a.n_row = n;
        barrier({{special(kStep), d.x}, {special(kGathered)}});
        AUSPEX_TRY(kernel(record_impl::key_of("gather_rows", record_impl::kRowGroup),
                          {buffers_.step, buffers_.row[d.x], buffers_.gathered}, a,
                          {n, ceil_div(a.width, record_impl::kRowGroup)}, "rows"));
        ProductArgs p{};
        p.x = &buffers_.gathered;
        p.y = &buffers_.row[d.y];
        p.x_stride = width(d.x);
        p.y_stride = width(d.y);
        p.n_row = n;
        p.epilogue = largest ? Epilogue::logits : Epilogue::store;
        barrier({{special(kGathered)}, {d.y, special(kSamplePart)}});
        AUSPEX_TRY(product(d, p));
    }
    return {};
}

Status Recorder::sampled_to_host(uint32_t n) {
    barrier({{special(kStep)}, {special(kLogitsHost)}}, true);
    if (asking_) return {};
    const uint64_t bytes = uint64_t{n} * sizeof(uint32_t);
    commands_->copy(buffers_.logits_host.part(0, bytes), buffers_.step.part(offsetof(args::StepState, sampled), bytes));
    return {};
}

Status Recorder::logits_to_host(const Tape& tape, uint32_t n) {
    barrier({{tape.logits}, {special(kLogitsHost)}}, true);
    if (asking_) return {};
    const uint64_t bytes = uint64_t{n} * width(tape.logits) * sizeof(float);
    commands_->copy(buffers_.logits_host.part(0, bytes), buffers_.row[tape.logits].part(0, bytes));
    return {};
}

Status Recorder::sample(const Tape& tape, uint32_t n, bool noise, bool penalties, bool largest) {
    args::SamplePassArgs a{};
    a.n_vocab = n_vocab_of(tape);
    a.logits_stride = width(tape.logits);
    a.n_part = ceil_div(a.n_vocab, kSampleSlice);
    a.d_part = kSampleSlice;
    if (largest) {
        a.n_part = n_largest_;
        barrier({{special(kSamplePart)}, {special(kStep)}});
        return kernel(record_impl::key_of("sample_final", 256), {buffers_.step, buffers_.sample_part}, a, {n},
                      "sample");
    }
    const Region& logits = buffers_.row[tape.logits];
    const Grid parts{a.n_part, n};
    const uint64_t bytes = uint64_t{n} * a.n_vocab * sizeof(float);
    if (penalties) {
        barrier({{special(kStep)}, {tape.logits}});
        AUSPEX_TRY(kernel(record_impl::key_of("sample_penalty", 256), {buffers_.step, logits}, a, {n}, "sample"));
    }
    barrier({{special(kStep), tape.logits}, {special(kSamplePart)}});
    AUSPEX_TRY(kernel(record_impl::key_of("sample_part", 256), {buffers_.step, logits, buffers_.sample_part}, a, parts,
                      "sample", bytes));
    if (!noise) {
        barrier({{special(kSamplePart)}, {special(kStep)}});
        return kernel(record_impl::key_of("sample_final", 256), {buffers_.step, buffers_.sample_part}, a, {n},
                      "sample");
    }
    barrier({{special(kStep), tape.logits, special(kSamplePart)}, {special(kSampleHist)}});
    AUSPEX_TRY(kernel(record_impl::key_of("sample_hist", 256),
                      {buffers_.step, logits, buffers_.sample_part, buffers_.sample_hist}, a, parts, "sample", bytes));
    barrier({{special(kStep), tape.logits, special(kSamplePart)},
             {special(kSampleHist), special(kSampleList), special(kSampleBest)}});
    AUSPEX_TRY(kernel(
        record_impl::key_of("sample_gather", 256),
        {buffers_.step, logits, buffers_.sample_part, buffers_.sample_hist, buffers_.sample_list, buffers_.sample_best},
        a, parts, "sample", bytes));
    barrier(
        {{special(kSamplePart), special(kSampleList), special(kSampleBest)}, {special(kSampleHist), special(kStep)}});
    return kernel(
        record_impl::key_of("sample_draw", 256),
        {buffers_.step, buffers_.sample_part, buffers_.sample_hist, buffers_.sample_list, buffers_.sample_best}, a, {n},
        "sample");
}

// -------------------------------------------------------------------------------- what has state

Status Recorder::delta(const Node& d, const Shape& shape) {
    const Op& op = *d.op;
    const DeltaDims& g = op.delta;
    if (!fast_delta(g)) return delta_any(op, shape);
    const DeviceTraits& traits = program_.device->gpu->traits;
    args::DeltaArgs a{};
    a.n_head_k = g.n_head_k;
    a.n_head_v = g.n_head_v;
    a.grouped = g.grouped;
    a.eps = g.eps;
    uint32_t* const to[4][2] = {
        {&a.u_offset, &a.u_stride}, {&a.z_offset, &a.z_stride}, {&a.b_offset, &a.b_stride}, {&a.a_offset, &a.a_stride}};
    for (uint32_t i = 0; i < 4; ++i) {
        *to[i][0] = buffers_.at[op.in[i]];
        *to[i][1] = stride(op.in[i]);
    }
    a.out_stride = stride(op.out);
    const Region &acts = buffers_.group[op.in[0]], &out = buffers_.row[op.out];
    const Region &ring = buffers_.conv[op.state2], &state = buffers_.delta[op.state], &term = buffers_.term[op.state];
    const Touch whole{{special(kStep), op.in[0], op.in[1], op.in[2], op.in[3]}, {op.out, op.state, op.state2}};
    if (!shape.wide) {
        const uint32_t rows = shape.n_row == 1 ? 1 : shape.n_row <= 4 ? 4 : args::kMaxRows;
        const uint32_t contexts = traits.is_cpu() ? 128 : traits.max_group_invocations >= 1024 ? 1024 : 256;
        barrier(whole);
        return kernel(record_impl::key_of("delta_step", contexts, {rows}),
                      {buffers_.step, acts, vector(op.w[0]), vector(op.w[1]), vector(op.w[2]), vector(op.w[3]), ring,
                       state, term, out},
                      a, {g.n_head_v}, "delta", state.bytes * 2);
    }
    const uint32_t stride = static_cast<uint32_t>(round_up(g.conv_dim() + 2 * g.n_head_v, 4));
    args::DeltaArgs mix = a;
    mix.out_offset = 0;
    mix.out_stride = stride;
    barrier({{special(kStep), op.in[0], op.in[2], op.in[3], op.state2}, {special(kMixed)}});
    AUSPEX_TRY(kernel(record_impl::key_of("delta_mix", 32),
                      {buffers_.step, acts, vector(op.w[0]), vector(op.w[1]), vector(op.w[2]), ring, buffers_.mixed},
                      mix, {shape.n_row, 2 * g.n_head_k + g.n_head_v}, "delta mix"));
    args::DeltaArgs scan = a;
    scan.z_offset = 0;
    scan.z_stride = stride;
    barrier({{special(kStep), op.in[0], special(kMixed)}, {op.out, op.state, op.state2}});
    AUSPEX_TRY(kernel(record_impl::key_of("delta_scan", 128, {16}),
                      {buffers_.step, acts, buffers_.mixed, ring, state, term, out}, scan, {g.n_head_v * 8},
                      "delta scan", state.bytes * 2));
    barrier({{special(kStep), op.in[1]}, {op.out}});
    return kernel(record_impl::key_of("delta_gate", 64), {buffers_.step, acts, vector(op.w[3]), out}, a,
                  {shape.n_row, ceil_div(g.n_head_v, 8u)}, "delta gate");
}

Status Recorder::delta_any(const Op& op, const Shape& shape) {
    (void)shape;  // any number of rows
    const DeltaDims& g = op.delta;
    args::DeltaAnyArgs a{};
    a.n_head_k = g.n_head_k;
    a.n_head_v = g.n_head_v;
    a.d_key = g.d_key;
    a.d_val = g.d_val;
    a.n_conv = g.n_conv;
    a.grouped = g.grouped;
    a.eps = g.eps;
    uint32_t* const to[4][2] = {
        {&a.u_offset, &a.u_stride}, {&a.z_offset, &a.z_stride}, {&a.b_offset, &a.b_stride}, {&a.a_offset, &a.a_stride}};
    for (uint32_t i = 0; i < 4; ++i) {
        *to[i][0] = buffers_.at[op.in[i]];
        *to[i][1] = stride(op.in[i]);
    }
    a.out_stride = stride(op.out);
    const Region &acts = buffers_.group[op.in[0]], &ring = buffers_.conv[op.state2], &state = buffers_.delta[op.state];
    barrier({{special(kStep), op.in[0], op.in[1], op.in[2], op.in[3], op.state2}, {op.out, op.state, special(kSpare)}});
    AUSPEX_TRY(kernel(record_impl::key_of("delta_any", 128),
                      {buffers_.step, acts, vector(op.w[0]), vector(op.w[1]), vector(op.w[2]), vector(op.w[3]), ring,
                       state, buffers_.term[op.state], buffers_.row[op.out], buffers_.spare},
                      a, {g.n_head_v}, "delta", state.bytes * 2));
    barrier({{special(kStep), op.in[0]}, {op.state2}});
    return kernel(record_impl::key_of("ring_any", 64), {buffers_.step, acts, ring}, a,
                  {ceil_div(g.conv_dim(), 64u), args::kConvRing}, "delta");
}

Status Recorder::fold(const Tape& tape, uint32_t n_commit) {
    for (const Op& op : tape.ops) {
        if (op.kind != OpKind::delta) continue;
        const DeltaDims& g = op.delta;
        const args::ApplyArgs a{g.n_head_v, g.d_key, g.d_val, n_commit};
        barrier({{special(kStep)}, {op.state}});
        AUSPEX_TRY(kernel(record_impl::key_of("delta_apply", 256),
                          {buffers_.step, buffers_.delta[op.state], buffers_.term[op.state]}, a,
                          {g.n_head_v, ceil_div(g.d_key * g.d_val, 256u)}, "delta fold"));
    }
    return {};
}

args::AttendArgs Recorder::attend_args(const Op& op, const Op& write, uint32_t part_stride) const {
    const AttnDims& a = op.attn;
    const Buffers::Kv& kv = buffers_.kv[write.state];
    args::AttendArgs p{};
    p.n_head = a.n_head;
    p.n_head_kv = a.n_head_kv;
    p.n_rot = a.n_rot;
    p.scale = a.scale;
    p.eps = a.eps;
    p.flags = (write.w[0] != kNoSlot ? args::kAttendKNorm : 0u) |
              (op.kind == OpKind::attend && op.w[0] != kNoSlot ? args::kAttendQNorm : 0u) |
              (a.gate == AttnGate::interleaved ? args::kAttendInterleaved
               : a.gate == AttnGate::per_head  ? args::kAttendPerHead
                                               : 0u);
    p.window = kv.window;
    p.sinks = kv.sinks;
    p.ring = kv.ring;
    p.capacity = kv.capacity;
    p.k_offset = buffers_.at[write.in[0]];
    p.k_stride = stride(write.in[0]);
    p.v_offset = buffers_.at[write.in[1]];
    p.v_stride = stride(write.in[1]);
    if (op.kind == OpKind::attend) {
        p.q_offset = buffers_.at[op.in[0]];
        p.q_stride = stride(op.in[0]);
        if (op.in[1] != kNoSlot) {
            p.gate_offset = buffers_.at[op.in[1]];
            p.gate_stride = stride(op.in[1]);
        }
        p.out_stride = stride(op.out);
    }
    p.rope_scale = 1;
    p.part_stride = part_stride;
    p.count_stride = attend_counts(kv.n_chunk);
    return p;
}

Status Recorder::append(const Node& d, const Shape& shape) {
    const Op& op = *d.op;
    const AttnDims& a = op.attn;
    const Buffers::Kv& kv = buffers_.kv[op.state];
    const args::AttendArgs p = attend_args(op, op, 0);
    barrier({{special(kStep), op.in[0], op.in[1]}, {op.state}});
    if (!fast_attend(a))
        return kernel(record_impl::key_of("kv_any", 64, {a.d_head, kv.k.format, kv.v.format}),
                      {buffers_.step, buffers_.group[op.in[0]], program_.zeros, vector(op.w[0]), *program_.rope(op),
                       kv.k, kv.v, buffers_.query},
                      p, {shape.n_row, a.n_head_kv}, "append");
    return kernel(record_impl::key_of("kv_append", 256, {a.d_head, 0, kv.k.format, kv.v.format}),
                  {buffers_.step, buffers_.group[op.in[0]], program_.zeros, vector(op.w[0]), *program_.rope(op), kv.k,
                   kv.v, buffers_.query},
                  p, {ceil_div(shape.n_row * a.n_head_kv * a.d_head, 1024u)}, "append");
}

Status Recorder::attend(const Node& d, const Shape& shape) {
    const Op &op = *d.op, &write = *d.write;
    const AttnDims& a = op.attn;
    const DeviceTraits& traits = program_.device->gpu->traits;
    const Buffers::Kv& kv = buffers_.kv[op.state];
    const Region &acts = buffers_.group[op.in[0]], &rope = *program_.rope(op), &q_norm = vector(op.w[0]),
                 &k_norm = vector(write.w[0]), &out = buffers_.row[op.out];
    Touch from{{special(kStep), op.in[0], write.in[0], write.in[1]}, {op.state}};
    if (op.in[1] != kNoSlot) from.reads.push_back(op.in[1]);
    const uint32_t per_kv = a.n_head / a.n_head_kv;
    if (!fast_attend(a)) {
        const args::AttendArgs p = attend_args(op, write, 0);
        from.writes.push_back(special(kQuery));
        barrier(from);
        AUSPEX_TRY(kernel(record_impl::key_of("kv_any", 64, {a.d_head, kv.k.format, kv.v.format}),
                          {buffers_.step, acts, q_norm, k_norm, rope, kv.k, kv.v, buffers_.query}, p,
                          {shape.n_row, a.n_head_kv + a.n_head}, "append"));
        barrier({{special(kStep), op.in[0], op.state, special(kQuery)}, {op.out}});
        return kernel(record_impl::key_of("attend_any", 64, {a.d_head, kv.k.format, kv.v.format}),
                      {buffers_.step, acts, buffers_.query, kv.k, kv.v, out}, p, {shape.n_row, a.n_head}, "attend");
    }
    if (shape.wide) {
        const args::AttendArgs p = attend_args(op, write, buffers_.n_query_tile);
        from.writes.push_back(special(kQuery));
        barrier(from);
        AUSPEX_TRY(kernel(record_impl::key_of("kv_append", 256, {a.d_head, 1, kv.k.format, kv.v.format}),
                          {buffers_.step, acts, q_norm, k_norm, rope, kv.k, kv.v, buffers_.query}, p,
                          {ceil_div(shape.n_row * (2 * a.n_head_kv + a.n_head) * a.d_head, 1024u)}, "append"));
        barrier({{special(kStep), op.in[0], op.state, special(kQuery)}, {op.out}});
        const uint32_t keys = traits.max_shared_bytes >= 20480 && !traits.is_cpu() ? 64 : 32;
        return kernel(record_impl::key_of(a.d_head == 256 ? "attend_rows_256" : "attend_rows_128", 256,
                                          {keys, kv.k.format, kv.v.format}),
                      {buffers_.step, acts, buffers_.query, kv.k, kv.v, out}, p,
                      {ceil_div(shape.n_row * per_kv, 64u), a.n_head_kv}, "attend rows");
    }
    const args::AttendArgs p = attend_args(op, write, shape.n_row * a.n_head);
    from.writes.insert(from.writes.end(), {special(kPart), op.out});
    barrier(from);
    // Groups for every chunk that the context can hold: what is too much leaves at once, in less time than the
    // device takes to read group counts from memory.
    const uint32_t n_queries = shape.n_row * per_kv;
    if (record_impl::attends_on_matrix(matrix_, a.d_head, kv)) {
        PipelineKey key =
            record_impl::key_of("attend_mma", 256, {a.d_head, 0, 1, kv.k.format, kv.v.format, per_kv, 16u, 8u, 16u});
        key.subgroup_size = traits.subgroup_size_control ? 32 : 0;
        key.full_subgroups = traits.full_subgroups;
        return kernel(
            key,
            {buffers_.step, acts, q_norm, k_norm, rope, kv.k, kv.v, buffers_.part, buffers_.stat, out, buffers_.count},
            p, {ceil_div(n_queries, 8u), a.n_head_kv, kv.n_chunk}, "attend");
    }
    // Query rows are spread over groups while the cache is short; where it is long, it is read less often instead.
    const uint32_t tile = n_queries > kAttendTile && kv.capacity > kAttendLong ? kAttendLongTile : kAttendTile;
    return kernel(
        record_impl::key_of("attend_step", 256, {a.d_head, tile, 1, kv.k.format, kv.v.format, per_kv}),
        {buffers_.step, acts, q_norm, k_norm, rope, kv.k, kv.v, buffers_.part, buffers_.stat, out, buffers_.count}, p,
        {kv.n_chunk, a.n_head_kv, ceil_div(n_queries, tile)}, "attend");
}

}  // namespace vk
}  // namespace detail
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

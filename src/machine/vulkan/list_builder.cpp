#include "list_builder.h"
#ifndef AUSPEX_NO_VULKAN
#include "../../../shaders/rows_args.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace list_builder_impl {

bool holds(const std::vector<uint32_t>& list, uint32_t id) {
    return std::find(list.begin(), list.end(), id) != list.end();
}

}  // namespace list_builder_impl

ListBuilder::ListBuilder(const VulkanModel& model, const Buffers& buffers)
    : model_(model),
      buffers_(buffers),
      plan_(*model.plan),
      traits_(model.device->gpu->traits),
      matrix_(model.device->matrix && !model.small()),
      gemm_matrix_(model.device->gemm_matrix),
      chained_(matrix_ && traits_.starts_in_order) {
    for (const Tape* tape : plan_.tapes()) {
        for (const Op& op : tape->ops)
            if (op.kind == OpKind::moe && routes_itself(op)) n_score_ = std::max(n_score_, op.moe.n_expert);
    }
}

Result<DispatchList> ListBuilder::build(const Piece& piece, bool chain) {
    packed_ = packed_norm_ = swiglu_packed_ = kNoSlot;
    reads_.clear();
    writes_.clear();
    list_.clear();
    status_ = Status();
    piece(*this);
    if (!status_.ok()) return status_;
    if (chain && chained_) list_.chain(buffers_.step);
    return std::move(list_);
}

PipelineKey ListBuilder::key_of(const char* shader, uint32_t group, std::vector<SpecValue> constants) {
    PipelineKey k;
    k.shader = shader;
    k.group = group;
    k.constants = std::move(constants);
    return k;
}

void ListBuilder::refuse(Status status) {
    if (status_.ok()) status_ = std::move(status);
}

void ListBuilder::uses(const Touch& touch, bool copies) {
    using list_builder_impl::holds;
    bool conflict = copies;
    for (uint32_t id : touch.reads) conflict = conflict || holds(writes_, id);
    for (uint32_t id : touch.writes) conflict = conflict || holds(writes_, id) || holds(reads_, id);
    if (conflict) {
        list_.barrier(kSyncCompute, kSyncCompute | (copies ? kSyncTransfer : 0u));
        reads_.clear();
        writes_.clear();
    }
    for (uint32_t id : touch.reads)
        if (!holds(reads_, id)) reads_.push_back(id);
    for (uint32_t id : touch.writes)
        if (!holds(writes_, id)) writes_.push_back(id);
}

// ------------------------------------------------------------------------------------- the tape

std::vector<const Node*> ListBuilder::nodes_of(const Pass& pass) const {
    std::vector<const Node*> nodes;
    for (const Node& d : model_.nodes(*pass.tape, pass.fill_only))
        if (pass.head || !d.head) nodes.push_back(&d);  // a head of its own runs on gathered rows
    return nodes;
}

void ListBuilder::tape(const Pass& pass, uint32_t first_node, uint32_t last_node) {
    const std::vector<const Node*> nodes = nodes_of(pass);
    const size_t n = std::min<size_t>(nodes.size(), last_node);
    for (size_t i = first_node; i < n; ++i) {
        const Node& node = *nodes[i];
        // Neighbouring products of the same rows fill the device together.
        uint32_t stage_tiles = 0;
        if (node.kind == Node::Kind::product) {
            auto same = [&](const Node& d) {
                return d.kind == Node::Kind::product && d.x == node.x && d.epilogue == Node::Epilogue::store && !d.head;
            };
            size_t from = i, to = i;
            while (from > 0 && same(*nodes[from]) && same(*nodes[from - 1])) --from;
            while (to + 1 < n && same(*nodes[to]) && same(*nodes[to + 1])) ++to;
            for (size_t k = from; k <= to; ++k) stage_tiles += model_.matrices[nodes[k]->weight].tiling.n_row;
        }
        // Gate and up leave halves for the product that follows, if it alone reads them.
        const bool feeds_next = i + 1 < n && nodes[i + 1]->kind == Node::Kind::product && nodes[i + 1]->x == node.y &&
                                nodes[i + 1]->norm == kNoSlot;
        run(node, pass, stage_tiles, feeds_next);
    }
}

void ListBuilder::run(const Node& d, const Pass& pass, uint32_t stage_tiles, bool feeds_next) {
    if (d.y == packed_) packed_ = kNoSlot;
    if (d.y == swiglu_packed_) swiglu_packed_ = kNoSlot;
    switch (d.kind) {
        case Node::Kind::embed: return embed(d, pass);
        case Node::Kind::given: return given(d, pass);
        case Node::Kind::norm: return norm(d, pass);
        case Node::Kind::product:
            return pass.wide ? wide_product(d, pass, stage_tiles, feeds_next) : rows_product(d, pass, stage_tiles);
        case Node::Kind::swiglu: return swiglu(d, pass);
        case Node::Kind::delta: return delta(d, pass);
        case Node::Kind::append: return append(d, pass);
        case Node::Kind::attend: return attend(d, pass);
        case Node::Kind::experts: return experts(d, pass);
    }
}

void ListBuilder::given(const Node& d, const Pass& pass) {
    args::RowsArgs a{};
    a.width = plan_.d_model;
    a.y_offset = d.op->out_offset;
    a.eps = d.eps;
    const SlotId kept = pass.hidden_slot != kNoSlot ? pass.hidden_slot : plan_.trunk.hidden;
    a.x_stride = stride(kept);
    a.y_stride = stride(d.y);
    uses({{id(kStep), pass.from_guesses ? id(kGuessHidden) : kept, id(kPendingHidden)}, {d.y}});
    const Region& from = pass.from_guesses ? buffers_.guess_hidden : buffers_.row[kept];
    const Region& to = buffers_.row[d.y];
    if (d.norm == kNoSlot)
        return dispatch(key_of("copy_rows", kRowGroup),
                        {buffers_.step, from, buffers_.given, to, buffers_.pending_hidden}, a,
                        {pass.n_row, ceil_div(a.width, kRowGroup)}, "rows");
    dispatch(key_of("rms_hidden", kRowGroup),
             {buffers_.step, from, buffers_.given, to, buffers_.pending_hidden, vector(d.norm)}, a, {pass.n_row},
             "norm");
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

// machine/vulkan/build_attention: attention, and what it appends to the cache.
#include "list_builder.h"
#ifndef AUSPEX_NO_VULKAN

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace build_attention_impl {

/// True where attend_mma runs tentative passes. It decides bits, so it depends on device and cache alone.
bool attends_on_matrix(bool matrix, uint32_t d_head, const Buffers::Kv& kv) {
    return matrix && d_head == 256 && kv.k.format == args::kKvF16 && kv.v.format == args::kKvF16;
}

PipelineKey kv_append_key(uint32_t d_head, const Buffers::Kv& kv, uint32_t queries) {
    PipelineKey key;
    key.shader = "kv_append";
    key.group = 256;
    key.constants = {{spec::kv_append::kDHead, d_head},
                     {spec::kv_append::kQueries, queries},
                     {spec::kv_append::kKType, kv.k.format},
                     {spec::kv_append::kVType, kv.v.format}};
    return key;
}

/// Workgroups for so many values. The kernel loops where the device takes fewer.
uint32_t kv_append_groups(const DeviceTraits& traits, uint32_t n_value) {
    return std::min(ceil_div(n_value, 1024u), traits.max_group_count[0]);
}

PipelineKey kv_any_key(uint32_t d_head, const Buffers::Kv& kv) {
    PipelineKey key;
    key.shader = "kv_any";
    key.group = 64;
    key.constants = {
        {spec::kv_any::kDHead, d_head}, {spec::kv_any::kKType, kv.k.format}, {spec::kv_any::kVType, kv.v.format}};
    return key;
}

}  // namespace build_attention_impl

args::AttendArgs ListBuilder::attend_args(const Op& op, const Op& write, uint32_t part_stride) const {
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
    p.window = kv.shape.window;
    p.sinks = kv.shape.sinks;
    p.ring = kv.shape.n_ring;
    p.capacity = static_cast<uint32_t>(kv.shape.n_row());
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

void ListBuilder::append(const Node& d, const Pass& pass) {
    const Op& op = *d.op;
    const AttnDims& a = op.attn;
    const Buffers::Kv& kv = buffers_.kv[op.state];
    const args::AttendArgs p = attend_args(op, op, 0);
    uses({{id(kStep), op.in[0], op.in[1]}, {op.state}});
    if (!fast_attend(model_.device->shuffles, a))
        return dispatch(build_attention_impl::kv_any_key(a.d_head, kv),
                        {buffers_.step, buffers_.group[op.in[0]], model_.zeros, vector(op.w[0]), *model_.rope(op), kv.k,
                         kv.v, buffers_.query},
                        p, {pass.n_row, a.n_head_kv}, "append");
    dispatch(build_attention_impl::kv_append_key(a.d_head, kv, args::kQueriesNone),
             {buffers_.step, buffers_.group[op.in[0]], model_.zeros, vector(op.w[0]), *model_.rope(op), kv.k, kv.v,
              buffers_.query},
             p, {build_attention_impl::kv_append_groups(traits_, pass.n_row * a.n_head_kv * a.d_head)}, "append");
}

void ListBuilder::attend(const Node& d, const Pass& pass) {
    const Op &op = *d.op, &write = *d.write;
    const AttnDims& a = op.attn;
    Touch touch{{id(kStep), op.in[0], write.in[0], write.in[1]}, {op.state}};
    if (op.in[1] != kNoSlot) touch.reads.add(op.in[1]);
    if (!fast_attend(model_.device->shuffles, a)) return attend_any(d, pass, touch);
    if (pass.wide) return attend_wide(d, pass, touch);
    const Buffers::Kv& kv = buffers_.kv[op.state];
    const args::AttendArgs p = attend_args(op, write, pass.n_row * a.n_head);
    touch.writes.add(id(kPart));
    touch.writes.add(op.out);
    uses(touch);
    const std::initializer_list<Region> regions{buffers_.step,
                                                buffers_.group[op.in[0]],
                                                vector(op.w[0]),
                                                vector(write.w[0]),
                                                *model_.rope(op),
                                                kv.k,
                                                kv.v,
                                                buffers_.part,
                                                buffers_.stat,
                                                buffers_.row[op.out],
                                                buffers_.count};
    // Workgroups for every chunk that the context can hold: one without work returns at once, in less time than the
    // device takes to read group counts from memory.
    const uint32_t per_kv = a.n_head / a.n_head_kv, n_queries = pass.n_row * per_kv;
    if (build_attention_impl::attends_on_matrix(matrix_, a.d_head, kv)) {
        const uint32_t tiles = n_queries > 8 && kv.shape.n_row() > kAttendPairs ? 2 : 1;
        PipelineKey key = key_of("attend_mma", 256,
                                 {{spec::attend_mma::kDHead, a.d_head},
                                  {spec::attend_mma::kTiles, tiles},
                                  {spec::attend_mma::kAppend, 1},
                                  {spec::attend_mma::kWindowed, p.window > 0},
                                  {spec::attend_mma::kFlags, p.flags},
                                  {spec::attend_mma::kPerKv, per_kv},
                                  {spec::attend_mma::kUnitM, 16},
                                  {spec::attend_mma::kUnitN, 8},
                                  {spec::attend_mma::kUnitK, 16},
                                  {spec::attend_mma::kChained, chained_}});
        key.subgroup_size = traits_.subgroup_size_control ? 32 : 0;
        key.full_subgroups = traits_.full_subgroups;
        return dispatch_chained(key, regions, p, {ceil_div(n_queries, 8 * tiles), a.n_head_kv, kv.n_chunk}, "attend");
    }
    // Query rows are spread over groups while the cache is short; where it is long, it is read less often instead.
    const uint32_t tile = n_queries > kAttendTile && kv.shape.n_row() > kAttendLong ? kAttendLongTile : kAttendTile;
    dispatch(key_of("attend_step", 256,
                    {{spec::attend_step::kDHead, a.d_head},
                     {spec::attend_step::kTile, tile},
                     {spec::attend_step::kAppend, 1},
                     {spec::attend_step::kKType, kv.k.format},
                     {spec::attend_step::kVType, kv.v.format},
                     {spec::attend_step::kPerKv, per_kv}}),
             regions, p, {kv.n_chunk, a.n_head_kv, ceil_div(n_queries, tile)}, "attend");
}

/// Any shape: one kernel appends and rotates, the next attends.
void ListBuilder::attend_any(const Node& d, const Pass& pass, Touch touch) {
    const Op &op = *d.op, &write = *d.write;
    const AttnDims& a = op.attn;
    const Buffers::Kv& kv = buffers_.kv[op.state];
    const Region& acts = buffers_.group[op.in[0]];
    const args::AttendArgs p = attend_args(op, write, 0);
    touch.writes.add(id(kQuery));
    uses(touch);
    dispatch(build_attention_impl::kv_any_key(a.d_head, kv),
             {buffers_.step, acts, vector(op.w[0]), vector(write.w[0]), *model_.rope(op), kv.k, kv.v, buffers_.query},
             p, {pass.n_row, a.n_head_kv + a.n_head}, "append");
    uses({{id(kStep), op.in[0], op.state, id(kQuery)}, {op.out}});
    dispatch(key_of("attend_any", 64,
                    {{spec::attend_any::kDHead, a.d_head},
                     {spec::attend_any::kKType, kv.k.format},
                     {spec::attend_any::kVType, kv.v.format}}),
             {buffers_.step, acts, buffers_.query, kv.k, kv.v, buffers_.row[op.out]}, p, {pass.n_row, a.n_head},
             "attend");
}

/// Many rows: one kernel appends and leaves the queries in tiles, the next attends segment by segment, the last joins.
void ListBuilder::attend_wide(const Node& d, const Pass& pass, Touch touch) {
    const Op &op = *d.op, &write = *d.write;
    const AttnDims& a = op.attn;
    const Buffers::Kv& kv = buffers_.kv[op.state];
    const AttendKernel kernel = buffers_.attend;
    const uint32_t n_query = pass.n_row * (a.n_head / a.n_head_kv);
    args::AttendArgs p = attend_args(op, write, ceil_div(n_query, args::kAttendRound) * args::kAttendRound);
    touch.writes.add(id(kQuery));
    uses(touch);
    dispatch(build_attention_impl::kv_append_key(a.d_head, kv, attend_queries(kernel)),
             {buffers_.step, buffers_.group[op.in[0]], vector(op.w[0]), vector(write.w[0]), *model_.rope(op), kv.k,
              kv.v, buffers_.query},
             p, {build_attention_impl::kv_append_groups(traits_, pass.n_row * (a.n_head_kv + a.n_head) * a.d_head)},
             "append");
    // In rounds of as many queries as partial results fit.
    const uint64_t room = std::min(buffers_.part.bytes / (uint64_t{a.n_head_kv} * a.d_head * sizeof(float)),
                                   buffers_.stat.bytes / (uint64_t{a.n_head_kv} * 2 * sizeof(float)));
    p.n_part = static_cast<uint32_t>(room / args::kAttendRound * args::kAttendRound);
    const AttendTileChoice c = choose_attend_tile(
        traits_, kernel, n_query, a.n_head_kv,
        kSegments.seen_max(buffers_.n_context, kv.shape.window, kv.shape.sinks, pass.n_row), p.n_part);
    const PipelineKey tile = c.key(a.d_head, kv.k.format, kv.v.format, p, traits_),
                      join = key_of("attend_join", 256,
                                    {{spec::attend_join::kDHead, a.d_head}, {spec::attend_join::kSplit, c.split}});
    const uint32_t n_join = ceil_div(pass.n_row * a.n_head, 1024 / a.d_head),
                   join_y = ceil_div(n_join, traits_.max_group_count[0]);
    for (p.round = 0; p.round < c.n_round; ++p.round) {
        uses({{id(kStep), op.state, id(kQuery)}, {id(kPart)}});
        dispatch(tile, {buffers_.step, buffers_.query, kv.k, kv.v, buffers_.part, buffers_.stat}, p,
                 {c.n_tile, a.n_head_kv, c.n_split}, kernel == AttendKernel::rows ? "attend rows" : "attend tiles");
        uses({{id(kStep), op.in[0], id(kPart)}, {op.out}});
        dispatch(join, {buffers_.step, buffers_.group[op.in[0]], buffers_.part, buffers_.stat, buffers_.row[op.out]}, p,
                 {ceil_div(n_join, join_y), join_y}, "attend join");
    }
}
}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

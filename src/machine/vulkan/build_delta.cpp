// machine/vulkan/build_delta: DeltaNet layers.
#include "list_builder.h"
#ifndef AUSPEX_NO_VULKAN
#include "../../../shaders/any_args.h"
#include "../../../shaders/rows_args.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace build_delta_impl {

/// Invocations of delta_step; its bits do not depend on them.
uint32_t choose_step(const DeviceTraits& t) {
    if (t.is_cpu()) return 128;
    if (!t.few_registers()) return t.max_group_invocations >= 1024 ? 1024 : 256;
    // 512 invocations are 64 subgroups of 8 on Intel's Xe, and spill nothing. Older GPUs of Intel hold 56 subgroups in
    // a workgroup, so that the compiler would have to widen them.
    return t.subgroup_min == 8 && t.max_group_subgroups >= 64 && t.max_group_invocations >= 512 ? 512 : 256;
}

/// Specialization constants of delta_scan.
struct ScanShape {
    uint32_t loaders, rows, columns;
};

/// A workgroup takes 32 columns of a head; 16 where every core then gets at most one workgroup, or where registers are
/// few. A software device has no use for loaders.
ScanShape choose_scan(const DeviceTraits& t, uint32_t n_head_v) {
    const uint32_t cores = t.n_core > 0 ? t.n_core : 64;
    const uint32_t columns = n_head_v * 8 > cores && !t.few_registers() ? 2 : 1;
    const uint32_t row_bytes = 2 * (1032 + 64 * columns);  // in both halves of shared memory
    if (t.is_cpu() || t.max_shared_bytes < 8 * row_bytes) return {0, 8, 1};
    return {64, t.max_shared_bytes < 16 * row_bytes ? 8u : 16u, columns};
}

}  // namespace build_delta_impl

template <class Args>
void ListBuilder::fill_delta(const Op& op, Args* a) const {
    a->n_head_k = op.delta.n_head_k;
    a->n_head_v = op.delta.n_head_v;
    a->grouped = op.delta.grouped;
    a->eps = op.delta.eps;
    uint32_t* const to[4][2] = {{&a->u_offset, &a->u_stride},
                                {&a->z_offset, &a->z_stride},
                                {&a->b_offset, &a->b_stride},
                                {&a->a_offset, &a->a_stride}};
    for (uint32_t i = 0; i < 4; ++i) {
        *to[i][0] = buffers_.at[op.in[i]];
        *to[i][1] = stride(op.in[i]);
    }
    a->out_stride = stride(op.out);
}

void ListBuilder::delta(const Node& d, const Pass& pass) {
    const Op& op = *d.op;
    const DeltaDims& g = op.delta;
    if (!fast_delta(model_.device->shuffles, g)) return delta_any(op);
    args::DeltaArgs a{};
    fill_delta(op, &a);
    const Region &acts = buffers_.group[op.in[0]], &out = buffers_.row[op.out];
    const Region &ring = buffers_.conv[op.state2], &state = buffers_.delta[op.state], &term = buffers_.term[op.state];
    if (!pass.wide) {
        const uint32_t rows = pass.n_row == 1 ? 1 : pass.n_row <= 4 ? 4 : args::kMaxRows;
        const uint32_t group = build_delta_impl::choose_step(traits_);
        uses({{id(kStep), op.in[0], op.in[1], op.in[2], op.in[3]}, {op.out, op.state, op.state2}});
        return dispatch_chained(
            key_of("delta_step", group, {{spec::delta_step::kMaxRow, rows}, {spec::delta_step::kChained, chained_}}),
            {buffers_.step, acts, vector(op.w[0]), vector(op.w[1]), vector(op.w[2]), vector(op.w[3]), ring, state, term,
             out},
            a, {g.n_head_k, g.n_head_v / g.n_head_k}, "delta", state.bytes * 2);
    }
    delta_wide(op, a, pass.n_row);
}

/// Many rows: the convolution of all rows, then one workgroup a head walks the rows, then the gate.
void ListBuilder::delta_wide(const Op& op, const args::DeltaArgs& a, uint32_t n_row) {
    const DeltaDims& g = op.delta;
    const Region &acts = buffers_.group[op.in[0]], &out = buffers_.row[op.out];
    const Region &ring = buffers_.conv[op.state2], &state = buffers_.delta[op.state];
    const uint32_t mixed_stride = static_cast<uint32_t>(round_up(g.conv_dim() + 2 * g.n_head_v, 4));
    args::DeltaArgs mix = a;
    mix.out_offset = 0;
    mix.out_stride = mixed_stride;
    uses({{id(kStep), op.in[0], op.in[2], op.in[3], op.state2}, {id(kMixed)}});
    const uint32_t rows = n_row < 256 ? 1 : 8;  // few rows: more workgroups, rather than fewer reads
    dispatch(key_of("delta_mix", 32, {{spec::delta_mix::kRows, rows}}),
             {buffers_.step, acts, vector(op.w[0]), vector(op.w[1]), vector(op.w[2]), ring, buffers_.mixed}, mix,
             {ceil_div(n_row, rows), 2 * g.n_head_k + g.n_head_v}, "delta mix");
    args::DeltaArgs scan = a;
    scan.z_offset = 0;
    scan.z_stride = mixed_stride;
    uses({{id(kStep), op.in[0], id(kMixed)}, {op.out, op.state, op.state2}});
    const build_delta_impl::ScanShape c = build_delta_impl::choose_scan(traits_, g.n_head_v);
    dispatch(key_of("delta_scan", 128 + c.loaders,
                    {{spec::delta_scan::kLoaders, c.loaders},
                     {spec::delta_scan::kRows, c.rows},
                     {spec::delta_scan::kColumns, c.columns}}),
             {buffers_.step, acts, buffers_.mixed, ring, state, buffers_.term[op.state], out}, scan,
             {g.n_head_v * 8 / c.columns}, "delta scan", state.bytes * 2);
    uses({{id(kStep), op.in[1]}, {op.out}});
    dispatch(key_of("delta_gate", 64), {buffers_.step, acts, vector(op.w[3]), out}, a,
             {n_row, ceil_div(g.n_head_v, 8u)}, "delta gate");
}

/// Any shape, any number of rows.
void ListBuilder::delta_any(const Op& op) {
    const DeltaDims& g = op.delta;
    args::DeltaAnyArgs a{};
    fill_delta(op, &a);
    a.d_key = g.d_key;
    a.d_val = g.d_val;
    a.n_conv = g.n_conv;
    const Region &acts = buffers_.group[op.in[0]], &ring = buffers_.conv[op.state2], &state = buffers_.delta[op.state];
    uses({{id(kStep), op.in[0], op.in[1], op.in[2], op.in[3], op.state2}, {op.out, op.state, id(kSpare)}});
    dispatch(key_of("delta_any", std::max(g.d_key, g.d_val) <= 64 ? 64 : 128),
             {buffers_.step, acts, vector(op.w[0]), vector(op.w[1]), vector(op.w[2]), vector(op.w[3]), ring, state,
              buffers_.term[op.state], buffers_.row[op.out], buffers_.spare},
             a, {g.n_head_v}, "delta", state.bytes * 2);
    uses({{id(kStep), op.in[0]}, {op.state2}});
    dispatch(key_of("ring_any", 64), {buffers_.step, acts, ring}, a, {ceil_div(g.conv_dim(), 64u), args::kConvRing},
             "delta");
}

void ListBuilder::apply_records(const Tape& tape, uint32_t n_commit) {
    for (const Op& op : tape.ops) {
        if (op.kind != OpKind::delta) continue;
        const DeltaDims& g = op.delta;
        const args::ApplyArgs a{g.n_head_v, g.d_key, g.d_val, n_commit};
        uses({{id(kStep)}, {op.state}});
        dispatch(key_of("delta_apply", 256), {buffers_.step, buffers_.delta[op.state], buffers_.term[op.state]}, a,
                 {g.n_head_v, ceil_div(g.d_key * g.d_val, 256u)}, "delta apply");
    }
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

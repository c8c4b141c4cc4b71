#version 450
// attend_join.comp: joins what a round of attend_tile, attend_shared or attend_rows left for each segment of keys, in
// order of position, and applies the gate.
//
// Formula out = gate * sum(values) / sum(weights), each over all segments under one maximum
// Buffers 0 step  StepState                                      read
//         1 acts  f32: q (interleaved gates) and gate            read
//         2 part, 3 stat  see attend_segments.glsl               read
//         4 out   f32 [row, n_head, D_HEAD] at its offset        written
// Push    AttendArgs
// Spec    D_HEAD: a multiple of 4, at most 1024. SPLIT 1: partials of every segment that the pass sees; 0: one, which
//         stands for all, joined already
// Grid    x * y: at least ceil(n_row * n_head / (256 / (D_HEAD / 4))), numbered x first. Group 256
// Cost    4 * D_HEAD bytes a query and segment: memory bandwidth
// Order   segments in order of position
// Source  FlashAttention (Dao 2022)
// CPU     src/machine/cpu, attend
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint D_HEAD = 256;
layout(constant_id = 2) const uint SPLIT = 1;
layout(push_constant) uniform Push { AttendArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Acts { float acts[]; };
layout(set = 0, binding = 2, std430) readonly buffer Part { vec4 part[]; };
layout(set = 0, binding = 3, std430) readonly buffer Stat { vec2 stat[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Out { vec4 result[]; };
#include "attend_visible.glsl"
#include "attend_segments.glsl"
const uint QUADS = D_HEAD / 4u;

void main() {
    const uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    const uint item = group * (256u / QUADS) + gl_LocalInvocationIndex / QUADS,
        quad = gl_LocalInvocationIndex % QUADS;
    if (gl_LocalInvocationIndex / QUADS >= 256u / QUADS || item >= step.n_row * args.n_head) return;
    const uint per_kv = args.n_head / args.n_head_kv, row = item / args.n_head, h = item % args.n_head;
    const uint n = SPLIT != 0u ? chunks_count(segments_seen()) : 1u, query = row * per_kv + h % per_kv;
    const uint at_once = round_queries(n), first = args.round * at_once;
    if (query < first || query - first >= at_once) return;
    uint at = (h / per_kv) * at_once + query - first;
    vec2 all = vec2(kMasked, 0.0);
    vec4 y = vec4(0.0);
    for (uint s = 0u; s < n; s++, at += args.n_head_kv * at_once) {
        const vec2 next = stat[at];
        if (next.x == kMasked) continue;
        const vec2 by = join_stat(all, next);
        const vec4 x = part[at * QUADS + quad];
        y = vec4(join_value(y.x, x.x, by), join_value(y.y, x.y, by), join_value(y.z, x.z, by),
            join_value(y.w, x.w, by));
    }
    y /= all.y;
    if ((args.flags & kAttendInterleaved) != 0u) {
        const uint from = args.q_offset + row * args.q_stride + h * 2u * D_HEAD + D_HEAD + 4u * quad;
        for (uint i = 0u; i < 4u; i++) y[i] *= sigmoid(acts[from + i]);
    } else if ((args.flags & kAttendPerHead) != 0u) {
        y *= sigmoid(acts[args.gate_offset + row * args.gate_stride + h]);
    }
    result[(args.out_offset + row * args.out_stride + h * D_HEAD) / 4u + quad] = y;
}

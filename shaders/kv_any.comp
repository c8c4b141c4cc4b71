#version 450
// kv_any.comp: norms, rotation and the caches for any head size, and the queries for attend_any. Twin of
// src/machine/cpu's kv_write.
//
// Grid    x: row, y: n_head_kv + n_head (0 queries: n_head_kv).   Group  64 (spec 0, always 64).
// Spec    1 D: d_head, even, at most 256
// Memory  0 step   1 acts   2 q_norm   3 k_norm   4 rope             read, as in attend_step
//         5 k   6 v   f16 pairs [n_head_kv][capacity][D / 2]         written
//         7 query  f32 [row][n_head][D]: normed, rotated, scaled     written
// Push    AttendArgs.
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
layout(constant_id = 1) const uint D = 64;
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { AttendArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Acts { float acts[]; };
layout(set = 0, binding = 2, std430) readonly buffer QNorm { float q_norm[]; };
layout(set = 0, binding = 3, std430) readonly buffer KNorm { float k_norm[]; };
layout(set = 0, binding = 4, std430) readonly buffer Rope { uvec2 rope[]; };
layout(set = 0, binding = 5, std430) writeonly buffer K { uint k_cache[]; };
layout(set = 0, binding = 6, std430) writeonly buffer V { uint v_cache[]; };
layout(set = 0, binding = 7, std430) writeonly buffer Query { float query[]; };
shared float x_s[D];
#include "rotation.glsl"

void main() {
    const uint row = gl_WorkGroupID.x, t = gl_LocalInvocationIndex;
    if (row >= step.n_row) return;
    const bool is_key = gl_WorkGroupID.y < args.n_head_kv;
    const uint h = is_key ? gl_WorkGroupID.y : gl_WorkGroupID.y - args.n_head_kv, p = step.position + row;
    const uint q_width = (args.flags & kAttendInterleaved) != 0u ? 2u * D : D;
    const uint at = is_key ? args.k_offset + row * args.k_stride + h * D : args.q_offset + row * args.q_stride + h * q_width;
    for (uint i = t; i < D; i += 64u) x_s[i] = acts[at + i];
    barrier();
    precise float unit = 1.0;
    const bool normed = (args.flags & (is_key ? kAttendKNorm : kAttendQNorm)) != 0u;
    if (normed) {
        float sum = 0.0;
        for (uint i = 0u; i < D; i++) sum = fma(x_s[i], x_s[i], sum);
        unit = inversesqrt(sum / float(D) + args.eps);
    }
    barrier();
    for (uint i = t; i < D; i += 64u) {
        precise float y = x_s[i] * unit;
        if (normed) y = y * (is_key ? k_norm[i] : q_norm[i]);
        if (!is_key) y = y * args.scale;
        x_s[i] = y;
    }
    barrier();
    for (uint i = t; i < args.n_rot / 2u; i += 64u) {
        const vec2 cs = rotation(p, rope[i]);
        const float first = x_s[i], second = x_s[i + args.n_rot / 2u];
        precise float y = first * cs.x - second * cs.y, z = second * cs.x + first * cs.y;
        x_s[i] = y;
        x_s[i + args.n_rot / 2u] = z;
    }
    barrier();
    if (is_key) {
        const uint slot = p < args.sinks ? p : args.sinks + (p - args.sinks) % args.ring, to = (h * args.capacity + slot) * (D / 2u);
        const uint v_at = args.v_offset + row * args.v_stride + h * D;
        for (uint i = t; i < D / 2u; i += 64u) {
            k_cache[to + i] = half_bits(x_s[2u * i]) | half_bits(x_s[2u * i + 1u]) << 16;
            v_cache[to + i] = half_bits(acts[v_at + 2u * i]) | half_bits(acts[v_at + 2u * i + 1u]) << 16;
        }
    } else {
        for (uint i = t; i < D; i += 64u) query[(row * args.n_head + h) * D + i] = x_s[i];
    }
}

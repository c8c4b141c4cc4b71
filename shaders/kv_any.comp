#version 450
// kv_any.comp: normalises and rotates q and k for any head size, stores keys and values, leaves queries for
// attend_any.
//
// Formula y = rotate(norm(x)); queries times scale
// Buffers 0 step    StepState                                          read
//         1 acts    f32: q, k, v at their offsets                      read
//         2 q_norm  f32 [d_head]                                       read
//         3 k_norm  f32 [d_head]                                       read
//         4 rope    uvec2 [n_rot / 2]                                  read
//         5 k, 6 v  see kv_formats.glsl                                written
//         7 query   f32 [row, n_head, D_HEAD]                          written
// Push    AttendArgs
// Spec    D_HEAD a multiple of 4, at most 256. K_TYPE, V_TYPE kKv...
// Grid    x: row, y: n_head_kv + n_head (without queries: n_head_kv). Group 64
// Shared  D_HEAD + 65 words. No subgroup operations
// Cost    12 * D_HEAD bytes per head and row; about 8 * D_HEAD flops
// Order   a head's sum of squares runs over its columns in one invocation
// CPU     src/machine/cpu, kv_write
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#define SHARED_LANES 64
#include "step_common.glsl"
layout(constant_id = 1) const uint D_HEAD = 64;
layout(constant_id = 2) const uint K_TYPE = 0;
layout(constant_id = 3) const uint V_TYPE = 0;
layout(local_size_x_id = 0) in;
#define ACTS float
#define K_UNIT uvec2
#define CACHE writeonly
#define APPENDS
#include "attend_prologue.glsl"
layout(set = 0, binding = 7, std430) writeonly buffer Query { float query[]; };
shared float x_s[D_HEAD];
shared float squares;
const uint LANE_GROUPS = 8u;
#include "rotation.glsl"
#include "kv_store.glsl"

void main() {
    const uint row = gl_WorkGroupID.x, t = gl_LocalInvocationIndex;
    if (row >= step.n_row) return;
    const bool is_key = gl_WorkGroupID.y < args.n_head_kv;
    const uint h = is_key ? gl_WorkGroupID.y : gl_WorkGroupID.y - args.n_head_kv, p = step.position + row;
    const uint q_width = (args.flags & kAttendInterleaved) != 0u ? 2u * D_HEAD : D_HEAD;
    const uint at = is_key ? args.k_offset + row * args.k_stride + h * D_HEAD
        : args.q_offset + row * args.q_stride + h * q_width;
    for (uint i = t; i < D_HEAD; i += 64u) x_s[i] = acts[at + i];
    barrier();
    const bool normed = (args.flags & (is_key ? kAttendKNorm : kAttendQNorm)) != 0u;
    if (normed && t == 0u) {
        float sum = 0.0;
        for (uint i = 0u; i < D_HEAD; i++) sum = fma(x_s[i], x_s[i], sum);
        squares = sum;
    }
    barrier();
    precise float unit = 1.0;
    if (normed) unit = inversesqrt(squares / float(D_HEAD) + args.eps);
    for (uint i = t; i < D_HEAD; i += 64u) {
        precise float y = x_s[i] * unit;
        if (normed) y = y * (is_key ? k_norm[i] : q_norm[i]);
        if (!is_key) y = y * args.scale;
        x_s[i] = y;
    }
    barrier();
    for (uint i = t; i < args.n_rot / 2u; i += 64u) {
        const vec2 cs = rotation(p + step.rotary_shift, rope[i]);
        const float first = x_s[i], second = x_s[i + args.n_rot / 2u];
        precise float y = first * cs.x - second * cs.y, z = second * cs.x + first * cs.y;
        x_s[i] = y;
        x_s[i + args.n_rot / 2u] = z;
    }
    barrier();
    if (is_key) {
        const uint slot = slot_of(p);
        const uint v_at = args.v_offset + row * args.v_stride + h * D_HEAD;
        const bool real = t < D_HEAD / 4u;  // a quad each
        vec4 k = vec4(0.0), v = vec4(0.0);
        for (uint e = 0u; e < 4u && real; e++) {
            k[e] = x_s[4u * t + e];
            v[e] = acts[v_at + 4u * t + e];
        }
        kv_store(real, h * args.capacity + slot, t, k, v);
    } else {
        for (uint i = t; i < D_HEAD; i += 64u) query[(row * args.n_head + h) * D_HEAD + i] = x_s[i];
    }
}

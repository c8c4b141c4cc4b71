#version 450
// attend_any.comp: attention for any head size and number of rows, after kv_any. The fallback for heads that
// attend_step and attend_rows are not compiled for.
//
// Formula as attend_step.comp
// Buffers 0 step   StepState                              read
//         1 acts   f32: gates at their offsets            read
//         2 query  f32 [row, n_head, D_HEAD]              read
//         3 k, 4 v see kv_formats.glsl                    read
//         5 out    f32 at its offset                      written
// Push    AttendArgs
// Spec    D_HEAD a multiple of 4, at most 256. K_TYPE, V_TYPE kKv...
// Grid    x: row, y: head. Group 64
// Shared  D_HEAD + 64 floats
// Cost    4 * D_HEAD flops per row, head and key; K and V are read once per row and head
// Order   keys in blocks of 64 at absolute positions, one invocation a key, then one invocation four columns: a row's
//         bits do not depend on the other rows of its pass.
// Loops   unrolled, because llvmpipe ends the loops of an invocation after 65,535 rounds: here after 51,000 keys
// Source  online softmax (Milakov 2018)
// CPU     src/machine/cpu, attend
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
layout(constant_id = 1) const uint D_HEAD = 64;
layout(constant_id = 2) const uint K_TYPE = 0;
layout(constant_id = 3) const uint V_TYPE = 0;
layout(local_size_x_id = 0) in;
#define ACTS float
#define K_UNIT uvec2
#define CACHE readonly
#include "attend_prologue.glsl"
shared float q_s[D_HEAD];
shared float p_s[64];
#include "kv_formats.glsl"

void main() {
    const uint row = gl_WorkGroupID.x, h = gl_WorkGroupID.y, t = gl_LocalInvocationIndex;
    if (row >= step.n_row) return;
    const uint p = step.position + row, g = h / (args.n_head / args.n_head_kv), head_row = g * args.capacity;
    const uint oldest = oldest_key(p);
    for (uint i = t; i < D_HEAD; i += 64u) q_s[i] = query[(row * args.n_head + h) * D_HEAD + i];
    vec4 o = vec4(0.0);  // columns 4 t .. 4 t + 3
    float top = kMasked, sum = 0.0;
    for (uint block = 0u; block <= p; block += 64u) {
        if (block + 64u <= oldest && block >= args.sinks) {
            block = oldest / 64u * 64u - 64u;  // the loop adds 64
            continue;
        }
        barrier();
        const uint key = block + t;
        float s = kMasked;
        if (key <= p && key >= step.first_key && (key >= oldest || key < args.sinks)) {
            const uint at = head_row + slot_of(key);
            s = 0.0;
            for (uint i = 0u; i < D_HEAD / 4u; i++) {
                const vec4 k = kv_values(K_TYPE, k_fetch(at, i), i);
                [[unroll]] for (uint e = 0u; e < 4u; e++) s = fma(q_s[4u * i + e], k[e], s);
            }
        }
        p_s[t] = s;
        barrier();
        if (4u * t < D_HEAD) {
            const uint n_key = min(p - block + 1u, 64u);
            float highest = top;
            for (uint i0 = 0u; i0 < n_key; i0 += 8u)
                [[unroll]] for (uint u = 0u; u < 8u; u++) highest = max(highest, p_s[i0 + u]);
            precise float alpha = highest == top ? 1.0 : exp(top - highest);
            precise float add = 0.0;
            vec4 part = vec4(0.0);
            for (uint i0 = 0u; i0 < n_key; i0 += 8u)
                [[unroll]] for (uint u = 0u; u < 8u; u++) {
                    const uint i = i0 + u;
                    if (p_s[i] == kMasked) continue;
                    precise float e = exp(p_s[i] - highest);
                    add = add + e;
                    part = fma(vec4(e), kv_values(V_TYPE, v_fetch(head_row + slot_of(block + i), t), t), part);
                }
            sum = fma(sum, alpha, add);
            o = fma(o, vec4(alpha), part);
            top = highest;
        }
    }
    for (uint k = 0u; k < 4u; k++) {
        const uint c = 4u * t + k;
        if (c >= D_HEAD) break;
        precise float y = o[k] / sum;
        if ((args.flags & kAttendInterleaved) != 0u)
            y = y * sigmoid(acts[args.q_offset + row * args.q_stride + h * 2u * D_HEAD + D_HEAD + c]);
        else if ((args.flags & kAttendPerHead) != 0u)
            y = y * sigmoid(acts[args.gate_offset + row * args.gate_stride + h]);
        result[args.out_offset + row * args.out_stride + h * D_HEAD + c] = y;
    }
}

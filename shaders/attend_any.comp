#version 450
// attend_any.comp: attention for any head size and any number of rows, plainly, after kv_any: what attend_step,
// attend_merge and attend_rows do for heads of 128 and 256. Twin of src/machine/cpu's attend.
//
// Grid    x: row, y: head.   Group  64 (spec 0, always 64).
// Spec    1 D: d_head, even, at most 256
// Memory  0 step   1 acts: gates   2 query f32 [row][n_head][D]      read
//         3 k   4 v   f16 pairs [n_head_kv][capacity][D / 2]         read
//         5 out   f32 by offset                                      written
// Push    AttendArgs.
// Order   keys in absolute blocks of 64, one invocation a key, then one a column; a row's bits do not
//         depend on what shares its pass.
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
layout(constant_id = 1) const uint D = 64;
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { AttendArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Acts { float acts[]; };
layout(set = 0, binding = 2, std430) readonly buffer Query { float query[]; };
layout(set = 0, binding = 3, std430) readonly buffer K { uint k_cache[]; };
layout(set = 0, binding = 4, std430) readonly buffer V { uint v_cache[]; };
layout(set = 0, binding = 5, std430) writeonly buffer Out { float result[]; };
shared float q_s[D];
shared float p_s[64];

uint slot_of(uint p) { return p < args.sinks ? p : args.sinks + (p - args.sinks) % args.ring; }

void main() {
    const uint row = gl_WorkGroupID.x, h = gl_WorkGroupID.y, t = gl_LocalInvocationIndex;
    if (row >= step.n_row) return;
    const uint p = step.position + row, g = h / (args.n_head / args.n_head_kv), head_row = g * args.capacity;
    const uint oldest = max(args.window > 0u && p + 1u > args.window ? p + 1u - args.window : 0u, step.first_key);
    for (uint i = t; i < D; i += 64u) q_s[i] = query[(row * args.n_head + h) * D + i];
    float o[4] = float[4](0.0, 0.0, 0.0, 0.0);  // columns t, t + 64, ...
    float top = kMasked, sum = 0.0;
    for (uint block = 0u; block <= p; block += 64u) {
        if (block + 64u <= oldest && block >= args.sinks) continue;
        barrier();
        const uint key = block + t;
        float s = kMasked;
        if (key <= p && key >= step.first_key && (key >= oldest || key < args.sinks)) {
            const uint at = (head_row + slot_of(key)) * (D / 2u);
            s = 0.0;
            for (uint i = 0u; i < D / 2u; i++) {
                const vec2 k = unpackHalf2x16(k_cache[at + i]);
                s = fma(q_s[2u * i], k.x, s);
                s = fma(q_s[2u * i + 1u], k.y, s);
            }
        }
        p_s[t] = s;
        barrier();
        float most = top;
        for (uint i = 0u; i < 64u; i++) most = max(most, p_s[i]);
        precise float alpha = most == top ? 1.0 : exp(top - most);
        precise float add = 0.0;
        float part[4] = float[4](0.0, 0.0, 0.0, 0.0);
        for (uint i = 0u; i < 64u; i++) {
            if (p_s[i] == kMasked) continue;
            precise float e = exp(p_s[i] - most);
            add = add + e;
            const uint at = (head_row + slot_of(block + i)) * (D / 2u);
            for (uint k = 0u; k < 4u; k++) {
                const uint c = t + 64u * k;
                if (c >= D) continue;
                const vec2 v = unpackHalf2x16(v_cache[at + c / 2u]);
                part[k] = fma(e, (c & 1u) == 0u ? v.x : v.y, part[k]);
            }
        }
        sum = fma(sum, alpha, add);
        for (uint k = 0u; k < 4u; k++) o[k] = fma(o[k], alpha, part[k]);
        top = most;
    }
    for (uint k = 0u; k < 4u; k++) {
        const uint c = t + 64u * k;
        if (c >= D) continue;
        precise float y = o[k] / sum;
        if ((args.flags & kAttendInterleaved) != 0u) y = y * sigmoid(acts[args.q_offset + row * args.q_stride + h * 2u * D + D + c]);
        else if ((args.flags & kAttendPerHead) != 0u) y = y * sigmoid(acts[args.gate_offset + row * args.gate_stride + h]);
        result[args.out_offset + row * args.out_stride + h * D + c] = y;
    }
}

#version 450
// delta_mix.comp: first of three kernels of a DeltaNet layer in a committed pass (prefill): convolution, silu, unit
// length of q and k, and gates for all rows at once. delta_scan.comp and delta_gate.comp follow.
//
// Formula c = silu(conv(u)); q, k = c / |c|; decay = exp(-exp(a) softplus(alpha + dt)); beta = sigmoid(b)
// Buffers 0 step   StepState                                  read
//         1 acts   f32: u, beta, alpha at their offsets       read
//         2 conv   f32 [conv_dim, 4]                          read
//         3 dt     f32 [n_head_v]                             read
//         4 a      f32 [n_head_v]                             read
//         5 ring   f32 [kConvRing, conv_dim]                  read; delta_scan writes it
//         6 mixed  f32 [row, out_stride]: q, k, v as in acts, then decay [n_head_v], beta [n_head_v]   written
// Push    DeltaArgs; out_offset, out_stride place `mixed`: stride at least conv_dim + 2 n_head_v, a multiple of 4
// Grid    x: row, y: blocks of 128 channels (2 n_head_k + n_head_v). Group 32: four channels an invocation
// Cost    8 * conv_dim bytes a row
// Order   see step_common.glsl
// CPU     src/machine/cpu, delta
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"

layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { DeltaArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Acts { float acts[]; };
layout(set = 0, binding = 2, std430) readonly buffer Conv { vec4 conv[]; };
layout(set = 0, binding = 3, std430) readonly buffer Dt { float dt[]; };
layout(set = 0, binding = 4, std430) readonly buffer A { float a[]; };
layout(set = 0, binding = 5, std430) readonly buffer Ring { float ring[]; };
layout(set = 0, binding = 6, std430) writeonly buffer Mixed { float mixed[]; };
shared float group_s[4];

void main() {
    const uint row = gl_WorkGroupID.x, t = gl_LocalInvocationIndex, block = gl_WorkGroupID.y;
    if (row >= step.n_row) return;
    const uint conv_dim = 2u * args.n_head_k * 128u + args.n_head_v * 128u;
    const uint to = args.out_offset + row * args.out_stride;
    float y4[4];
    precise float squares = 0.0;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        const uint channel = block * 128u + i * 32u + t;
        float x[4];
        [[unroll]] for (uint tap = 0u; tap < 4u; tap++) {
            const int r = int(row + tap) - 3;
            x[tap] = 0.0;
            if (r >= 0) x[tap] = acts[args.u_offset + uint(r) * args.u_stride + channel];
            else if (int(step.position) + r >= 0) x[tap] =
                ring[(uint(int(step.position) + r) % kConvRing) * conv_dim + channel];
        }
        const vec4 w = conv[channel];
        precise float y = w.x * x[0];
        y = fma(w.y, x[1], y);
        y = fma(w.z, x[2], y);
        y = fma(w.w, x[3], y);
        y4[i] = silu(y);
        squares = fma(y4[i], y4[i], squares);
    }
    const float eight = group_sum(squares);
    if ((t & 7u) == 0u) group_s[t >> 3] = eight;
    barrier();
    precise float unit = 1.0;
    if (block < 2u * args.n_head_k) {
        precise float all = group_s[0] + group_s[1] + group_s[2] + group_s[3];
        unit = inversesqrt(all + 1e-6) * (block < args.n_head_k ? 0.08838834764831845 : 1.0);
    }
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        precise float y = y4[i] * unit;
        mixed[to + block * 128u + i * 32u + t] = y;
    }
    if (block >= 2u * args.n_head_k && t == 0u) {
        const uint h = block - 2u * args.n_head_k;
        precise float x = acts[args.a_offset + row * args.a_stride + h] + dt[h];
        precise float g = a[h] * softplus(x);
        mixed[to + conv_dim + h] = exp(g);
        mixed[to + conv_dim + args.n_head_v + h] = sigmoid(acts[args.b_offset + row * args.b_stride + h]);
    }
}

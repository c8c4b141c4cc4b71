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
// Spec    ROWS 1 or 8: rows of a workgroup, at most 32
// Grid    x: ceil(rows / ROWS), y: blocks of 128 channels (2 n_head_k + n_head_v). Group 32: four channels each
// Cost    8 * conv_dim bytes a row, and through the caches (3 + 4) / ROWS rows more: the past and the weights
// Order   see step_common.glsl
// CPU     src/machine/cpu, delta
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint ROWS = 1u;
layout(push_constant) uniform Push { DeltaArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Acts { float acts[]; };
layout(set = 0, binding = 2, std430) readonly buffer Conv { vec4 conv[]; };
layout(set = 0, binding = 3, std430) readonly buffer Dt { float dt[]; };
layout(set = 0, binding = 4, std430) readonly buffer A { float a[]; };
layout(set = 0, binding = 5, std430) readonly buffer Ring { float ring[]; };
layout(set = 0, binding = 6, std430) writeonly buffer Mixed { float mixed[]; };
shared float group_s[2][4];  // of even and of odd rows

// Channel c of row r of this step, or of one of the three before it; 0 before the text.
float raw(int r, uint c) {
    if (r >= 0) return acts[args.u_offset + uint(r) * args.u_stride + c];
    const int position = int(step.position) + r;
    const uint conv_dim = 2u * args.n_head_k * 128u + args.n_head_v * 128u;
    return position >= 0 ? ring[(uint(position) % kConvRing) * conv_dim + c] : 0.0;
}

void gates(uint row, uint h) {
    const uint to = args.out_offset + row * args.out_stride + (2u * args.n_head_k + args.n_head_v) * 128u + h;
    precise float x = acts[args.a_offset + row * args.a_stride + h] + dt[h];
    precise float g = a[h] * softplus(x);
    mixed[to] = exp(g);
    mixed[to + args.n_head_v] = sigmoid(acts[args.b_offset + row * args.b_stride + h]);
}

void main() {
    const uint row0 = gl_WorkGroupID.x * ROWS, n_row = step.n_row;
    if (row0 >= n_row) return;
    const uint t = gl_LocalInvocationIndex, block = gl_WorkGroupID.y;
    const uint channel = block * 128u + t;  // and three more, each 32 further
    vec4 w[4];
    float x[ROWS + 3u][4];
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        w[i] = conv[channel + i * 32u];
        [[unroll]] for (uint e = 0u; e < ROWS + 3u; e++)
            x[e][i] = raw(int(min(row0 + e, n_row + 2u)) - 3, channel + i * 32u);
    }
    if (block >= 2u * args.n_head_k && t < ROWS && row0 + t < n_row) gates(row0 + t, block - 2u * args.n_head_k);
    [[unroll]] for (uint e = 0u; e < ROWS; e++) {
        if (row0 + e >= n_row) break;
        float y4[4];
        precise float squares = 0.0;
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            precise float y = w[i].x * x[e][i];
            y = fma(w[i].y, x[e + 1u][i], y);
            y = fma(w[i].z, x[e + 2u][i], y);
            y = fma(w[i].w, x[e + 3u][i], y);
            y4[i] = silu(y);
            squares = fma(y4[i], y4[i], squares);
        }
        const float eight = group_sum(squares);
        if ((t & 7u) == 0u) group_s[e & 1u][t >> 3] = eight;
        barrier();
        precise float unit = 1.0;
        if (block < 2u * args.n_head_k) {
            precise float all = group_s[e & 1u][0] + group_s[e & 1u][1] + group_s[e & 1u][2] + group_s[e & 1u][3];
            unit = inversesqrt(all + 1e-6) * (block < args.n_head_k ? 0.08838834764831845 : 1.0);
        }
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            precise float y = y4[i] * unit;
            mixed[args.out_offset + (row0 + e) * args.out_stride + channel + i * 32u] = y;
        }
    }
}

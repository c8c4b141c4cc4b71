#version 450
// delta_any.comp: one Gated DeltaNet layer for any head sizes and number of rows; ring_any.comp follows. The fallback
// for heads other than 128, which delta_step and delta_scan run.
//
// Formula as delta_step.comp
// Buffers 0 step   StepState                                                        read
//         1 acts   f32: u, z, beta, alpha at their offsets                          read
//         2 conv   f32 [conv_dim, n_conv]                                           read
//         3 dt     f32 [n_head_v]                                                   read
//         4 a      f32 [n_head_v]                                                   read
//         5 norm   f32 [d_val]                                                      read
//         6 ring   f32 [kConvRing, conv_dim]                                        read
//         7 state  f32 [n_head_v, d_val, d_key]                                     read; written: committed rows
//         8 term   f32 [2, kMaxRows, n_head_v * (1 + d_key + d_val)]: decay, k, u   read, written
//         9 out    f32 [row, n_head_v * d_val]                                      written
//         10 spare f32 [n_head_v, d_val, d_key]: S from row to row                  read, written
// Push    DeltaAnyArgs
// Grid    x: value head. Group 64 or 128: invocation t owns columns t, t + group, .. of S
// Shared  4 KiB. No subgroup operations
// Cost    8 * d_key * d_val flops and 16 * d_key * d_val bytes per row and head
// Order   every sum runs over its index in one invocation: a row's bits do not depend on n_row.
// Source  Gated Delta Networks (Yang 2024)
// CPU     src/machine/cpu, delta
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
#include "any_args.h"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { DeltaAnyArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Acts { float acts[]; };
layout(set = 0, binding = 2, std430) readonly buffer Conv { float conv[]; };
layout(set = 0, binding = 3, std430) readonly buffer Dt { float dt[]; };
layout(set = 0, binding = 4, std430) readonly buffer A { float a[]; };
layout(set = 0, binding = 5, std430) readonly buffer Norm { float norm[]; };
layout(set = 0, binding = 6, std430) readonly buffer Ring { float ring[]; };
layout(set = 0, binding = 7, std430) buffer State { float state[]; };
layout(set = 0, binding = 8, std430) buffer Term { float term[]; };
layout(set = 0, binding = 9, std430) writeonly buffer Out { float result[]; };
layout(set = 0, binding = 10, std430) buffer Spare { float spare[]; };
shared float q_s[256];
shared float k_s[256];
shared float v_s[256];
shared float o_s[256];
shared float squares[2];  // of q and k, later of the output

float convolved(uint row, uint channel, uint conv_dim) {
    precise float y = 0.0;
    for (uint tap = 0u; tap < args.n_conv; tap++) {
        const int r = int(row + tap) - int(args.n_conv - 1u);
        float x = 0.0;
        if (r >= 0) x = acts[args.u_offset + uint(r) * args.u_stride + channel];
        else if (int(step.position) + r >= 0) x = ring[(uint(int(step.position) + r) % kConvRing) * conv_dim + channel];
        y = fma(conv[channel * args.n_conv + tap], x, y);
    }
    return silu(y);
}

void main() {
    const uint n_row = step.n_row;
    if (n_row == 0u) return;
    const uint t = gl_LocalInvocationIndex, n = gl_WorkGroupSize.x, h = gl_WorkGroupID.x;
    const uint d_key = args.d_key, d_val = args.d_val;
    const uint r = args.n_head_v / args.n_head_k, hk = args.grouped != 0u ? h / r : h % args.n_head_k;
    const uint key_all = args.n_head_k * d_key, conv_dim = 2u * key_all + args.n_head_v * d_val;
    const uint d_term = args.n_head_v * (1u + d_key + d_val), half_term = kMaxRows * d_term;
    const uint k_term = args.n_head_v + h * d_key, u_term = args.n_head_v * (1u + d_key) + h * d_val;
    const bool tentative = step.tentative != 0u;
    for (uint c = t; c < d_val; c += n) {
        const uint at = (h * d_val + c) * d_key;
        for (uint i = 0u; i < min(step.n_commit, kMaxRows); i++) {
            const uint base = (1u - step.parity) * half_term + i * d_term;
            const float e = term[base + h], u = term[base + u_term + c];
            for (uint j = 0u; j < d_key; j++) {
                precise float d = state[at + j] * e;
                state[at + j] = fma(term[base + k_term + j], u, d);
            }
        }
        for (uint j = 0u; j < d_key; j++) spare[at + j] = state[at + j];
    }
    for (uint row = 0u; row < n_row; row++) {
        barrier();
        for (uint j = t; j < d_key; j += n) {
            q_s[j] = convolved(row, hk * d_key + j, conv_dim);
            k_s[j] = convolved(row, key_all + hk * d_key + j, conv_dim);
        }
        for (uint j = t; j < d_val; j += n) v_s[j] = convolved(row, 2u * key_all + h * d_val + j, conv_dim);
        barrier();
        if (t < 2u) {
            float sum = 0.0;
            for (uint j = 0u; j < d_key; j++) {
                const float c = t == 0u ? q_s[j] : k_s[j];
                sum = fma(c, c, sum);
            }
            squares[t] = sum;
        }
        barrier();
        precise float q_unit = inversesqrt(squares[0] + 1e-6) * inversesqrt(float(d_key));
        precise float k_unit = inversesqrt(squares[1] + 1e-6);
        for (uint j = t; j < d_key; j += n) {
            precise float q = q_s[j] * q_unit, k = k_s[j] * k_unit;
            q_s[j] = q;
            k_s[j] = k;
            if (tentative) term[step.parity * half_term + row * d_term + k_term + j] = k;
        }
        barrier();
        precise float x = acts[args.a_offset + row * args.a_stride + h] + dt[h];
        precise float g = a[h] * softplus(x);
        const float e = exp(g), beta = sigmoid(acts[args.b_offset + row * args.b_stride + h]);
        if (tentative && t == 0u) term[step.parity * half_term + row * d_term + h] = e;
        for (uint c = t; c < d_val; c += n) {
            const uint at = (h * d_val + c) * d_key;
            float dot_k = 0.0, dot_q = 0.0;
            for (uint j = 0u; j < d_key; j++) {
                precise float d = spare[at + j] * e;
                dot_k = fma(d, k_s[j], dot_k);
            }
            precise float u = beta * (v_s[c] - dot_k);
            for (uint j = 0u; j < d_key; j++) {
                precise float d = spare[at + j] * e;
                const float s = fma(k_s[j], u, d);
                spare[at + j] = s;
                dot_q = fma(s, q_s[j], dot_q);
            }
            o_s[c] = dot_q;
            if (tentative) term[step.parity * half_term + row * d_term + u_term + c] = u;
        }
        barrier();
        if (t == 0u) {
            float sum = 0.0;
            for (uint j = 0u; j < d_val; j++) sum = fma(o_s[j], o_s[j], sum);
            squares[0] = sum;
        }
        barrier();
        precise float unit = inversesqrt(squares[0] / float(d_val) + args.eps);
        for (uint c = t; c < d_val; c += n) {
            precise float y = o_s[c] * unit;
            y = y * norm[c];
            y = y * silu(acts[args.z_offset + row * args.z_stride + h * d_val + c]);
            result[row * args.out_stride + h * d_val + c] = y;
        }
    }
    if (tentative) return;
    for (uint c = t; c < d_val; c += n) {
        const uint at = (h * d_val + c) * d_key;
        for (uint j = 0u; j < d_key; j++) state[at + j] = spare[at + j];
    }
}

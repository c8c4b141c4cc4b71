#version 450
// delta_step.comp: one complete Gated DeltaNet layer for the rows of a tentative pass: convolution, gates, committed
// rows of the pass before, recurrence, gated norm.
//
// Formula c = silu(conv(u)); q, k = c / |c|; S = decay * S + beta * (v - decay * S k) k'; out = norm * S q / rms(S q)
//         * silu(z)
// Buffers 0 step   StepState, and counters of chain.glsl           read; counters written
//         1 acts   f32: u, z, beta, alpha at their offsets         read
//         2 conv   f32 [conv_dim, 4]                               read
//         3 dt     f32 [n_head_v]                                  read
//         4 a      f32 [n_head_v]                                  read
//         5 norm   f32 [d_val]                                     read
//         6 ring   f32 [kConvRing, conv_dim]                       read and written, never the same rows
//         7 state  f32 [n_head_v, d_val, d_key]                    read; written when n_commit > 0
//         8 term   f32 [2, kMaxRows, n_head_v * 257]: decay, k, u of a row. One half is read, the other written: no
//                  workgroup reads what another writes
//         9 out    f32 at its offset                               written
// Push    DeltaArgs
// Spec    LANES 128, 256, 512 or 1024: the same bits, faster where the device allows it. MAX_ROW: rows that this
//         pipeline can run. CHAINED: chain.glsl
// Sizes   d_key = d_val = 128, 4 convolution taps; fast_delta() in lower.h decides
// Grid    x: key head, y: its value heads
// Group   LANES = LANES / 8 lane groups; lane group g owns columns g, g + LANES / 8, .. of S, a lane 16 of a column's
//         128 keys in registers
// Shared  1.5 KiB per row
// Cost    S is read once, and written once when rows were committed: 128 KiB per head; 8 * 128 * 128 flops per row and
//         head
// Order   committed terms first, then n_row rows in order; S is written once, before the rows. See step_common.glsl: a
//         row's bits depend neither on n_row nor on LANES.
// Source  Gated Delta Networks (Yang 2024)
// CPU     src/machine/cpu, delta
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"

layout(constant_id = 0) const uint LANES = 256;
layout(constant_id = 1) const uint MAX_ROW = 9;
layout(constant_id = 2) const uint CHAINED = 0u;
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { DeltaArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 0, std430) coherent buffer Words { uint words[]; };
layout(set = 0, binding = 1, std430) readonly buffer Acts { float acts[]; };
layout(set = 0, binding = 1, std430) readonly coherent buffer ChainedActs { float chained_acts[]; };
layout(set = 0, binding = 2, std430) readonly buffer Conv { vec4 conv[]; };
layout(set = 0, binding = 3, std430) readonly buffer Dt { float dt[]; };
layout(set = 0, binding = 4, std430) readonly buffer A { float a[]; };
layout(set = 0, binding = 5, std430) readonly buffer Norm { float norm[]; };
layout(set = 0, binding = 6, std430) buffer Ring { float ring[]; };
layout(set = 0, binding = 7, std430) buffer State { vec4 state[]; };
layout(set = 0, binding = 8, std430) buffer Term { float term[]; };
layout(set = 0, binding = 9, std430) writeonly buffer Out { float result[]; };

#define CHAIN_WORDS words
#include "chain.glsl"

const uint GROUPS = LANES / 8u;
const uint COLS = 128u / GROUPS;
const uint CHANNELS = 384u;  // q, k and v of this head
const uint AT_ONCE = MAX_ROW < 4u ? MAX_ROW : 4u;  // rows that the convolution has in flight
const uint Z_EACH = (MAX_ROW * 128u + LANES - 1u) / LANES;

shared vec4 key_s[MAX_ROW * 64u];    // q (32 vec4) and k (32 vec4) of each row: after silu, then unit length
shared float value_s[MAX_ROW * 128u];  // v of each row, later the output
shared float decay_of[MAX_ROW];
shared float beta_of[MAX_ROW];
shared float unit_of[MAX_ROW];

float act(uint i) {
    if (CHAINED != 0u) return chained_acts[i];
    return acts[i];
}

uint channel_of(uint h, uint hk, uint c) {
    uint d_key_all = args.n_head_k * 128u;
    return c < 128u ? hk * 128u + c : c < 256u ? d_key_all + hk * 128u + (c - 128u)
        : 2u * d_key_all + h * 128u + (c - 256u);
}

void main() {
    const uint n_row = min(step.n_row, MAX_ROW);
    if (n_row == 0u) {
        chain_skip();
        return;
    }
    const uint t = gl_LocalInvocationIndex, lane = t & 7u, group = t >> 3;
    const uint hk = gl_WorkGroupID.x, nth = gl_WorkGroupID.y;
    const uint h = args.grouped != 0u ? hk * gl_NumWorkGroups.y + nth : nth * args.n_head_k + hk;
    const bool owns_key = nth == 0u;
    const uint conv_dim = 2u * args.n_head_k * 128u + args.n_head_v * 128u;
    const uint position = step.position;

    // The state, all loads in flight before anything else: lane l holds keys 32 m + 4 l .. + 3.
    vec4 s[COLS][4];
    [[unroll]] for (uint c = 0u; c < COLS; c++)
        [[unroll]] for (uint m = 0u; m < 4u; m++)
            s[c][m] = state[(h * 128u + group + c * GROUPS) * 32u + m * 8u + lane];

    chain_wait();
    // What ends the kernel is fetched now: z of column t & 127 in rows t / 128, t / 128 + LANES / 128, ...
    float z[Z_EACH];
    [[unroll]] for (uint i = 0u; i < Z_EACH; i++)
        z[i] = act(args.z_offset + min((t >> 7) + i * (LANES >> 7), n_row - 1u) * args.z_stride + h * 128u
            + (t & 127u));

    // Causal convolution of 4 taps and silu, one channel at a time, AT_ONCE rows in flight; older inputs come
    // from the ring, which this pass's rows join.
    for (uint c = t; c < CHANNELS; c += LANES) {
        const uint channel = channel_of(h, hk, c);
        const vec4 w = conv[channel];
        float x[3u + AT_ONCE];
        [[unroll]] for (uint i = 0u; i < 3u; i++) {
            x[i] = 0.0;
            if (position + i >= 3u) x[i] = ring[((position + i - 3u) % kConvRing) * conv_dim + channel];
        }
        for (uint row0 = 0u; row0 < n_row; row0 += AT_ONCE) {
            [[unroll]] for (uint i = 0u; i < AT_ONCE; i++)
                x[3u + i] = act(args.u_offset + min(row0 + i, n_row - 1u) * args.u_stride + channel);
            [[unroll]] for (uint i = 0u; i < AT_ONCE; i++) {
                const uint row = row0 + i;
                precise float y = w.x * x[i];
                y = fma(w.y, x[i + 1u], y);
                y = fma(w.z, x[i + 2u], y);
                y = fma(w.w, x[i + 3u], y);
                y = silu(y);
                if (row >= n_row) continue;
                if (c >= 256u || owns_key) ring[((position + row) % kConvRing) * conv_dim + channel] = x[i + 3u];
                if (c < 256u) key_s[row * 64u + c / 4u][c & 3u] = y;
                else value_s[row * 128u + c - 256u] = y;
            }
            [[unroll]] for (uint i = 0u; i < 3u; i++) x[i] = x[i + AT_ONCE];
        }
    }
    if (t >= LANES - n_row) {
        const uint row = t - (LANES - n_row);
        precise float x = act(args.a_offset + row * args.a_stride + h) + dt[h];
        precise float g = a[h] * softplus(x);
        decay_of[row] = exp(g);
        beta_of[row] = sigmoid(act(args.b_offset + row * args.b_stride + h));
    }

    const uint d_term = args.n_head_v * 257u, half_term = kMaxRows * d_term;
    const uint k_term = args.n_head_v, u_term = k_term + args.n_head_v * 128u;

    // What became history since the state was written: multiply-adds only, in order.
    if (step.n_commit > 0u) {
        for (uint i = 0u; i < min(step.n_commit, kMaxRows); i++) {
            const uint base = (1u - step.parity) * half_term + i * d_term;
            const float e = term[base + h];
            vec4 k[4];
            [[unroll]] for (uint m = 0u; m < 4u; m++) {
                const uint at = base + k_term + h * 128u + m * 32u + lane * 4u;
                k[m] = vec4(term[at], term[at + 1u], term[at + 2u], term[at + 3u]);
            }
            [[unroll]] for (uint c = 0u; c < COLS; c++) {
                const float u = term[base + u_term + h * 128u + group + c * GROUPS];
                [[unroll]] for (uint m = 0u; m < 4u; m++) {
                    precise vec4 d = s[c][m] * e;
                    s[c][m] = fma(k[m], vec4(u), d);
                }
            }
        }
        [[unroll]] for (uint c = 0u; c < COLS; c++)
            [[unroll]] for (uint m = 0u; m < 4u; m++)
                state[(h * 128u + group + c * GROUPS) * 32u + m * 8u + lane] = s[c][m];
    }
    barrier();

    // Unit length: lane group 2 r makes row r's q, group 2 r + 1 its k, which also becomes the row's term.
    for (uint i = group; i < 2u * n_row; i += GROUPS) {
        const uint row = i >> 1, at = row * 64u + (i & 1u) * 32u + lane;
        vec4 x[4], sum = vec4(0.0);
        [[unroll]] for (uint m = 0u; m < 4u; m++) {
            x[m] = key_s[at + m * 8u];
            sum = fma(x[m], x[m], sum);
        }
        precise float unit = inversesqrt(group_sum(add4(sum)) + 1e-6);
        if ((i & 1u) == 0u) unit = unit * 0.08838834764831845;  // 1 / sqrt(d_key)
        const uint to = step.parity * half_term + row * d_term + k_term + h * 128u + lane * 4u;
        [[unroll]] for (uint m = 0u; m < 4u; m++) {
            precise vec4 y = x[m] * unit;
            key_s[at + m * 8u] = y;
            if ((i & 1u) != 0u)
                [[unroll]] for (uint e = 0u; e < 4u; e++) term[to + m * 32u + e] = y[e];
        }
    }
    barrier();

    [[dont_unroll]] for (uint row = 0u; row < n_row; row++) {
        vec4 q[4], k[4];
        [[unroll]] for (uint m = 0u; m < 4u; m++) {
            q[m] = key_s[row * 64u + m * 8u + lane];
            k[m] = key_s[row * 64u + 32u + m * 8u + lane];
        }
        const float e = decay_of[row], beta = beta_of[row];
        const uint base = step.parity * half_term + row * d_term;
        if (t == 0u) term[base + h] = e;
        float part[COLS];
        [[unroll]] for (uint c = 0u; c < COLS; c++) {
            vec4 dot_k = vec4(0.0);
            [[unroll]] for (uint m = 0u; m < 4u; m++) {
                precise vec4 d = s[c][m] * e;
                s[c][m] = d;
                dot_k = fma(d, k[m], dot_k);
            }
            part[c] = add4(dot_k);
        }
        [[unroll]] for (uint c = 0u; c < COLS; c++) part[c] = group_sum(part[c]);
        [[unroll]] for (uint c = 0u; c < COLS; c++) {
            const uint column = group + c * GROUPS;
            precise float u = beta * (value_s[row * 128u + column] - part[c]);
            vec4 dot_q = vec4(0.0);
            [[unroll]] for (uint m = 0u; m < 4u; m++) {
                s[c][m] = fma(k[m], vec4(u), s[c][m]);
                dot_q = fma(s[c][m], q[m], dot_q);
            }
            if (lane == 0u) term[base + u_term + h * 128u + column] = u;
            part[c] = add4(dot_q);
        }
        // Every lane's v went into u, hence into the sums below: nobody still needs v when they are stored.
        [[unroll]] for (uint c = 0u; c < COLS; c++) part[c] = group_sum(part[c]);
        if (lane == 0u)
            [[unroll]] for (uint c = 0u; c < COLS; c++) value_s[row * 128u + group + c * GROUPS] = part[c];
    }
    barrier();

    for (uint row = group; row < n_row; row += GROUPS) {
        precise float sum = 0.0;
        [[unroll]] for (uint i = 0u; i < 16u; i++) {
            const float o = value_s[row * 128u + i * 8u + lane];
            sum = fma(o, o, sum);
        }
        precise float unit = inversesqrt(group_sum(sum) * (1.0 / 128.0) + args.eps);
        if (lane == 0u) unit_of[row] = unit;
    }
    barrier();
    [[unroll]] for (uint i = 0u; i < Z_EACH; i++) {
        const uint row = (t >> 7) + i * (LANES >> 7), c = t & 127u;
        if (row >= n_row) continue;
        precise float o = value_s[row * 128u + c] * unit_of[row];
        o = o * norm[c];
        o = o * silu(z[i]);
        result[args.out_offset + row * args.out_stride + h * 128u + c] = o;
    }
    chain_done();
}

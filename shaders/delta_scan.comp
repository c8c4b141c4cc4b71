#version 450
// delta_scan.comp: second of three kernels of a DeltaNet layer in a committed pass (prefill), after delta_mix: the
// recurrence. The state moves row by row in registers; nothing stays tentative.
//
// Formula as delta_step.comp, for S'q alone
// Buffers 0 step   StepState                                       read
//         1 acts   f32: u at its offset, only for the ring         read
//         2 mixed  f32, as delta_mix left it                       read
//         3 ring   f32 [kConvRing, conv_dim]                       written: the last 3 rows
//         4 state  f32 [n_head_v, d_val, d_key]                    read, written
//         5 term   as in delta_step; committed rows come first     read
//         6 out    f32 [row, n_head_v * 128]: S'q                  written
// Push    DeltaArgs; z_offset, z_stride place `mixed`, multiples of 4; out_offset, out_stride place `out`
// Spec    LANES 64 or 128: invocations of a workgroup. ROWS 8 or 16: rows of a block; a block costs about two rows more
// Grid    x: value head * 8 + slice of 16 columns. Group LANES: a lane group of 8 owns 128 / LANES columns, a lane 16
//         of a column's 128 keys
// Shared  ROWS rows of q, k, v and gates: ROWS * (256 + 16 + 2) floats
// Cost    rows are sequential: the latency of one dot product a row; blocks of ROWS rows are fetched ahead
// Order   see step_common.glsl
// Source  Gated Delta Networks (Yang 2024)
// CPU     src/machine/cpu, delta
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"

layout(constant_id = 0) const uint LANES = 128;
layout(constant_id = 1) const uint ROWS = 8;
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { DeltaArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Acts { float acts[]; };
layout(set = 0, binding = 2, std430) readonly buffer Mixed { vec4 mixed[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Ring { float ring[]; };
layout(set = 0, binding = 4, std430) buffer State { vec4 state[]; };
layout(set = 0, binding = 5, std430) readonly buffer Term { float term[]; };
layout(set = 0, binding = 6, std430) writeonly buffer Out { float result[]; };

const uint WIDTH = 16u;               // columns of a workgroup
const uint GROUPS = LANES / 8u;
const uint COLS = WIDTH / GROUPS;     // columns of a lane group
const uint QK_EACH = ROWS * 64u / LANES;             // vec4 of q and k an invocation fetches per block
const uint V_EACH = ROWS * WIDTH / LANES;            // v likewise
shared vec4 qk_s[ROWS * 64u];         // q (32 vec4) and k (32 vec4) of each row
shared float v_s[ROWS * WIDTH];
shared vec2 gate_s[ROWS];             // decay, beta

void main() {
    const uint n_row = step.n_row;
    if (n_row == 0u) return;
    const uint t = gl_LocalInvocationIndex, lane = t & 7u, group = t >> 3;
    const uint h = gl_WorkGroupID.x / (128u / WIDTH), column0 = (gl_WorkGroupID.x % (128u / WIDTH)) * WIDTH;
    const uint r = args.n_head_v / args.n_head_k;
    const uint hk = args.grouped != 0u ? h / r : h % args.n_head_k;
    const bool owns_key = (args.grouped != 0u ? h % r == 0u : h < args.n_head_k) && column0 == 0u;
    const uint d_key_all = args.n_head_k * 128u, conv_dim = 2u * d_key_all + args.n_head_v * 128u;

    vec4 s[COLS][4];
    [[unroll]] for (uint c = 0u; c < COLS; c++)
        [[unroll]] for (uint m = 0u; m < 4u; m++)
            s[c][m] = state[(h * 128u + column0 + group + c * GROUPS) * 32u + m * 8u + lane];

    const uint d_term = args.n_head_v * 257u, half_term = kMaxRows * d_term;
    for (uint i = 0u; i < min(step.n_commit, kMaxRows); i++) {
        const uint base = (1u - step.parity) * half_term + i * d_term;
        const float e = term[base + h];
        [[unroll]] for (uint c = 0u; c < COLS; c++) {
            const float u = term[base + args.n_head_v * 129u + h * 128u + column0 + group + c * GROUPS];
            [[unroll]] for (uint m = 0u; m < 4u; m++) {
                const uint at = base + args.n_head_v + h * 128u + m * 32u + lane * 4u;
                precise vec4 d = s[c][m] * e;
                s[c][m] = fma(vec4(term[at], term[at + 1u], term[at + 2u], term[at + 3u]), vec4(u), d);
            }
        }
    }

    // The last three raw rows become the convolution's past.
    for (uint row = n_row > 3u ? n_row - 3u : 0u; row < n_row; row++) {
        const uint to = ((step.position + row) % kConvRing) * conv_dim, from = args.u_offset + row * args.u_stride;
        if (owns_key)
            for (uint j = t; j < 256u; j += LANES) {
                const uint c = (j < 128u ? hk * 128u : d_key_all + hk * 128u) + (j & 127u);
                ring[to + c] = acts[from + c];
            }
        if (t < WIDTH) {
            const uint c = 2u * d_key_all + h * 128u + column0 + t;
            ring[to + c] = acts[from + c];
        }
    }

    // A block is fetched while the one before it runs.
    vec4 ahead[QK_EACH];
    float ahead_v[V_EACH];
    vec2 ahead_gate = vec2(0.0);
    for (uint block = 0u; block < n_row + ROWS; block += ROWS) {
        if (block > 0u) {
            barrier();
            [[unroll]] for (uint i = 0u; i < QK_EACH; i++) qk_s[t + i * LANES] = ahead[i];
            [[unroll]] for (uint i = 0u; i < V_EACH; i++) v_s[t + i * LANES] = ahead_v[i];
            if (t < ROWS) gate_s[t] = ahead_gate;
            barrier();
        }
        if (block < n_row) {
            [[unroll]] for (uint i = 0u; i < QK_EACH; i++) {
                const uint j = t + i * LANES, row = min(block + j / 64u, n_row - 1u), c = j & 63u;
                ahead[i] = mixed[(args.z_offset + row * args.z_stride) / 4u + (c < 32u ? hk * 32u + c
                    : d_key_all / 4u + hk * 32u + c - 32u)];
            }
            [[unroll]] for (uint i = 0u; i < V_EACH; i++) {
                const uint j = t + i * LANES, row = min(block + j / WIDTH, n_row - 1u);
                const uint at = args.z_offset + row * args.z_stride + 2u * d_key_all + h * 128u + column0 + j % WIDTH;
                ahead_v[i] = mixed[at / 4u][at & 3u];
            }
            // Rows beyond the end keep the state as it is: decay 1, beta 0.
            const uint at = args.z_offset + min(block + t, n_row - 1u) * args.z_stride + conv_dim + h,
                at_beta = at + args.n_head_v;
            if (t < ROWS) ahead_gate = block + t < n_row
                ? vec2(mixed[at / 4u][at & 3u], mixed[at_beta / 4u][at_beta & 3u]) : vec2(1.0, 0.0);
        }
        if (block == 0u) continue;
        const uint first = block - ROWS;
        float o[COLS][ROWS];
        [[unroll]] for (uint i = 0u; i < ROWS; i++) {
            const vec2 gate = gate_s[i];
            vec4 q[4], k[4];
            [[unroll]] for (uint m = 0u; m < 4u; m++) {
                q[m] = qk_s[i * 64u + m * 8u + lane];
                k[m] = qk_s[i * 64u + 32u + m * 8u + lane];
            }
            float u[COLS];
            [[unroll]] for (uint c = 0u; c < COLS; c++) {
                vec4 dk = vec4(0.0);
                [[unroll]] for (uint m = 0u; m < 4u; m++) {
                    s[c][m] *= gate.x;
                    dk = fma(s[c][m], k[m], dk);
                }
                u[c] = add4(dk);
            }
            [[unroll]] for (uint c = 0u; c < COLS; c++)
                u[c] = gate.y * (v_s[i * WIDTH + group + c * GROUPS] - group_sum(u[c]));
            [[unroll]] for (uint c = 0u; c < COLS; c++) {
                vec4 dq = vec4(0.0);
                [[unroll]] for (uint m = 0u; m < 4u; m++) {
                    s[c][m] = fma(k[m], vec4(u[c]), s[c][m]);
                    dq = fma(s[c][m], q[m], dq);
                }
                o[c][i] = add4(dq);
            }
        }
        // Eight sums over eight lanes at once: lane i is left with row i's.
        [[unroll]] for (uint c = 0u; c < COLS; c++)
            [[unroll]] for (uint e = 0u; e < ROWS; e += 8u) {
                float x[8];
                [[unroll]] for (uint i = 0u; i < 8u; i++) x[i] = o[c][e + i];
                [[unroll]] for (uint i = 0u; i < 4u; i++) x[i] = reduce_pair(x[2u * i], x[2u * i + 1u], lane, 1u);
                [[unroll]] for (uint i = 0u; i < 2u; i++) x[i] = reduce_pair(x[2u * i], x[2u * i + 1u], lane, 2u);
                const float mine = reduce_pair(x[0], x[1], lane, 4u);
                const uint row = first + e + lane;
                if (row < n_row)
                    result[args.out_offset + row * args.out_stride + h * 128u + column0 + group + c * GROUPS] = mine;
            }
    }
    [[unroll]] for (uint c = 0u; c < COLS; c++)
        [[unroll]] for (uint m = 0u; m < 4u; m++)
            state[(h * 128u + column0 + group + c * GROUPS) * 32u + m * 8u + lane] = s[c][m];
}

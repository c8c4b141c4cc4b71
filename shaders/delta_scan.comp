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
// Spec    GROUP: invocations of a workgroup. GROUP - LOADERS compute, a multiple of 32 and of the subgroup's size
//         LOADERS 64: fetch the next block meanwhile; 0: all fetch a block, then compute it
//         ROWS 8 or 16: rows of a block. COLUMNS 1 or 2: columns of a lane group
// Grid    x: value head * (128 / WIDTH) + slice of WIDTH columns. A lane group of 8 owns every GROUPS-th column of the
//         slice, a lane 16 of a column's 128 keys
// Shared  q, k, v and gates of a block, twice with LOADERS: ROWS * (1032 + 4 * WIDTH) bytes each
// Cost    rows are sequential: the latency of one dot product a row. An invocation that computes and fetches waits for
//         its loads wherever they are written. Two columns of a lane group share what it reads of q and k
// Order   see step_common.glsl
// Source  Gated Delta Networks (Yang 2024)
// CPU     src/machine/cpu, delta
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"

layout(constant_id = 0) const uint GROUP = 128;
layout(constant_id = 1) const uint LOADERS = 0;
layout(constant_id = 2) const uint ROWS = 8;
layout(constant_id = 3) const uint COLUMNS = 1;
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { DeltaArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Acts { float acts[]; };
layout(set = 0, binding = 2, std430) readonly buffer Mixed { vec4 mixed[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Ring { float ring[]; };
layout(set = 0, binding = 4, std430) buffer State { vec4 state[]; };
layout(set = 0, binding = 5, std430) readonly buffer Term { float term[]; };
layout(set = 0, binding = 6, std430) writeonly buffer Out { float result[]; };

const uint LANES = GROUP - LOADERS, GROUPS = LANES / 8u;
const uint WIDTH = GROUPS * COLUMNS;  // columns of a workgroup
const uint FETCHERS = LOADERS == 0u ? LANES : LOADERS, BUFFERS = LOADERS == 0u ? 1u : 2u;
const uint QK = ROWS * 64u, QK_EACH = QK / FETCHERS;  // vec4 of q and k: of a block, of one that fetches
const uint V = ROWS * WIDTH / 4u, V_EACH = V < FETCHERS ? 1u : V / FETCHERS;
shared vec4 qk_s[BUFFERS * QK];  // q (32 vec4) and k (32 vec4) of each row
shared vec4 v_s[BUFFERS * V];
shared vec2 gate_s[BUFFERS * ROWS];  // decay, beta

// A workgroup's place: head of values and of keys, first column.
struct Slice {
    uint h, hk, column0;
};

// Fetches what is invocation i's of FETCHERS: rows block .. block + ROWS - 1, into half `to` of shared memory. Rows
// beyond the end keep the state as it is: decay 1, beta 0.
void fetch(Slice at, uint block, uint i, uint to) {
    const uint n_row = step.n_row, keys = args.n_head_k * 128u, values = 2u * keys + at.h * 128u + at.column0;
    vec4 qk[QK_EACH], v[V_EACH];
    [[unroll]] for (uint e = 0u; e < QK_EACH; e++) {
        const uint j = i + e * FETCHERS, row = min(block + j / 64u, n_row - 1u), c = j & 63u;
        const uint from = c < 32u ? at.hk * 32u + c : keys / 4u + at.hk * 32u + c - 32u;
        qk[e] = mixed[(args.z_offset + row * args.z_stride) / 4u + from];
    }
    [[unroll]] for (uint e = 0u; e < V_EACH; e++) {
        const uint j = i + e * FETCHERS, row = min(block + j / (WIDTH / 4u), n_row - 1u);
        v[e] = mixed[(args.z_offset + row * args.z_stride + values) / 4u + j % (WIDTH / 4u)];
    }
    vec2 gate = vec2(1.0, 0.0);
    if (i < ROWS && block + i < n_row) {
        const uint decay = args.z_offset + (block + i) * args.z_stride + 2u * keys + args.n_head_v * 128u + at.h;
        const uint beta = decay + args.n_head_v;
        gate = vec2(mixed[decay / 4u][decay & 3u], mixed[beta / 4u][beta & 3u]);
    }
    [[unroll]] for (uint e = 0u; e < QK_EACH; e++) qk_s[to * QK + i + e * FETCHERS] = qk[e];
    [[unroll]] for (uint e = 0u; e < V_EACH; e++)
        if (V >= FETCHERS || i < V) v_s[to * V + i + e * FETCHERS] = v[e];
    if (i < ROWS) gate_s[to * ROWS + i] = gate;
}

// The last three raw rows become the convolution's past.
void keep_rows(Slice at, uint t) {
    const uint n_row = step.n_row, keys = args.n_head_k * 128u, conv_dim = 2u * keys + args.n_head_v * 128u;
    const uint r = args.n_head_v / args.n_head_k;
    const bool owns_key = (args.grouped != 0u ? at.h % r == 0u : at.h < args.n_head_k) && at.column0 == 0u;
    for (uint row = n_row > 3u ? n_row - 3u : 0u; row < n_row; row++) {
        const uint to = ((step.position + row) % kConvRing) * conv_dim, from = args.u_offset + row * args.u_stride;
        if (owns_key)
            for (uint j = t; j < 256u; j += LANES) {
                const uint c = (j < 128u ? at.hk * 128u : keys + at.hk * 128u) + (j & 127u);
                ring[to + c] = acts[from + c];
            }
        if (t < WIDTH) {
            const uint c = 2u * keys + at.h * 128u + at.column0 + t;
            ring[to + c] = acts[from + c];
        }
    }
}

// Computes rows `row` .. `row` + 7, which shared memory holds from its row `at`.
void eight_rows(inout vec4 s[COLUMNS][4], uint at, uint row, uint column, uint t) {
    const uint lane = t & 7u, group = t >> 3;
    float o[COLUMNS][8];
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        const vec2 gate = gate_s[at + i];
        vec4 q[4], k[4];
        [[unroll]] for (uint m = 0u; m < 4u; m++) {
            q[m] = qk_s[(at + i) * 64u + m * 8u + lane];
            k[m] = qk_s[(at + i) * 64u + 32u + m * 8u + lane];
        }
        float u[COLUMNS];
        [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
            vec4 dk = vec4(0.0);
            [[unroll]] for (uint m = 0u; m < 4u; m++) {
                s[c][m] *= gate.x;
                dk = fma(s[c][m], k[m], dk);
            }
            u[c] = add4(dk);
        }
        [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
            const float v = v_s[((at + i) * WIDTH + group + c * GROUPS) / 4u][group & 3u];
            u[c] = gate.y * (v - group_sum(u[c]));
        }
        [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
            vec4 dq = vec4(0.0);
            [[unroll]] for (uint m = 0u; m < 4u; m++) {
                s[c][m] = fma(k[m], vec4(u[c]), s[c][m]);
                dq = fma(s[c][m], q[m], dq);
            }
            o[c][i] = add4(dq);
        }
    }
    // Eight sums over eight lanes at once: lane i is left with row i's.
    [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
        float x[8] = o[c];
        [[unroll]] for (uint i = 0u; i < 4u; i++) x[i] = reduce_pair(x[2u * i], x[2u * i + 1u], lane, 1u);
        [[unroll]] for (uint i = 0u; i < 2u; i++) x[i] = reduce_pair(x[2u * i], x[2u * i + 1u], lane, 2u);
        const float mine = reduce_pair(x[0], x[1], lane, 4u);
        if (row + lane < step.n_row)
            result[args.out_offset + (row + lane) * args.out_stride + column + c * GROUPS] = mine;
    }
}

void main() {
    const uint n_row = step.n_row;
    if (n_row == 0u) return;
    const uint t = gl_LocalInvocationIndex, lane = t & 7u, group = t >> 3, n_slice = 128u / WIDTH;
    const bool computes = LOADERS == 0u || t < LANES;
    Slice at;
    at.h = gl_WorkGroupID.x / n_slice;
    at.hk = args.grouped != 0u ? at.h / (args.n_head_v / args.n_head_k) : at.h % args.n_head_k;
    at.column0 = gl_WorkGroupID.x % n_slice * WIDTH;
    const uint column = at.h * 128u + at.column0 + group;  // of all heads' columns

    vec4 s[COLUMNS][4];
    if (computes) {
        [[unroll]] for (uint c = 0u; c < COLUMNS; c++)
            [[unroll]] for (uint m = 0u; m < 4u; m++) s[c][m] = state[(column + c * GROUPS) * 32u + m * 8u + lane];
        const uint d_term = args.n_head_v * 257u, half_term = kMaxRows * d_term;
        for (uint i = 0u; i < min(step.n_commit, kMaxRows); i++) {
            const uint base = (1u - step.parity) * half_term + i * d_term;
            const float e = term[base + at.h];
            [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
                const float u = term[base + args.n_head_v * 129u + column + c * GROUPS];
                [[unroll]] for (uint m = 0u; m < 4u; m++) {
                    const uint k = base + args.n_head_v + at.h * 128u + m * 32u + lane * 4u;
                    precise vec4 d = s[c][m] * e;
                    s[c][m] = fma(vec4(term[k], term[k + 1u], term[k + 2u], term[k + 3u]), vec4(u), d);
                }
            }
        }
        keep_rows(at, t);
    }

    // Eight rows at a time: with 16 and two columns an H200 takes half as long again, perhaps for want of instructions.
    const uint lag = LOADERS == 0u ? 0u : ROWS;  // loaders are a block ahead
    for (uint row = 0u; row < n_row + lag; row += 8u) {
        const uint of_block = row % ROWS, side = LOADERS == 0u ? 0u : row / ROWS & 1u;
        if (LOADERS == 0u && of_block == 0u) {
            barrier();
            fetch(at, row, t, side);
            barrier();
        }
        if (!computes && of_block == 0u && row < n_row) fetch(at, row, t - LANES, side);
        if (computes && row >= lag) eight_rows(s, (BUFFERS - 1u - side) * ROWS + of_block, row - lag, column, t);
        if (LOADERS != 0u && of_block + 8u == ROWS) barrier();
    }
    if (computes)
        [[unroll]] for (uint c = 0u; c < COLUMNS; c++)
            [[unroll]] for (uint m = 0u; m < 4u; m++)
                state[(column + c * GROUPS) * 32u + m * 8u + lane] = s[c][m];
}

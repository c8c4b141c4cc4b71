#version 450
// gemm.comp: matrix product for many rows on devices without matrix units.
//
// Formula y = x W' in float, with the epilogues of shared.h
// Buffers, arguments: see gemm_common.glsl
// Spec    GROUP_M 16, 32, 64: rows of a workgroup. ALONG_N: its invocations along the columns
//         STAGED 1: x goes through shared memory, and an invocation keeps the weights that it unpacks for 128 columns.
//         0, for software devices, where each load is a loop over the lanes: an invocation reads its rows of x itself,
//         and all weights of 128 columns are in shared memory
//         MODE: EPILOGUE, SCALED, EXPERTS and EXACT as in GemmArgs::mode. MASK: 0, or kGemmModeMask where MODE is 0 and
//         the argument says what a dispatch does. That costs an H200 1 to 2 % of a prompt, and saves a software device
//         most of its pipelines, which take it half a second each
// Exact   what rounding left of x is summed first, then, in the same floats, the rounded x
// Grid    x: ceil(n_row / GROUP_M), y: ceil(n_tile / 2). Group N, 128 if STAGED, else a divisor of it: a workgroup
//         computes GROUP_M rows x 32 columns of y, an invocation TM x TN of them: rows m + NM i, columns n + NN j
// Shared  STAGED: 4.5 KiB and 144 bytes a row, 32 columns of weights and x as floats. Else 16.5 KiB, 128 columns of
//         weights. No subgroup operations
// Cost    2 * d_in * d_out flops a row; weights are read once per GROUP_M rows
// Order   columns by their places in one invocation: a result does not depend on the number of rows
// CPU     src/machine/cpu, matmul
// variant: gemm_<layout>
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "gemm_args.h"
#include "moe_args.h"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint GROUP_M = 64u;  // rows of a workgroup
layout(constant_id = 2) const uint ALONG_N = 8u;   // invocations along the columns
layout(constant_id = 3) const uint STAGED = 1u;    // 1: x goes through shared memory
layout(constant_id = 4) const uint MODE_ = 0u;
layout(constant_id = 5) const uint MASK = 0u;
#define MODE (MODE_ | (args.mode & MASK))   // a condition on constants instead costs 0.5 to 0.9 % on an H200
#define EPILOGUE (MODE & 3u)
#define SCALED ((MODE >> 2) & 1u)    // 1: rows have factors of their own
#define EXPERTS ((MODE >> 3) & 1u)   // 1: rows by expert, as a list says
#define EXACT (MODE >> 4)            // 1: x is two halves
#define GEMM
#include "gemm_common.glsl"
layout(set = 0, binding = 1, std430) readonly buffer X_ { uvec2 x[]; };
#include "quant/tile.glsl"

const uint N = gl_WorkGroupSize.x, NN = ALONG_N, NM = N / NN;  // invocations; those along the columns and rows
const uint TM = GROUP_M / NM, TN = 32u / NN;                   // rows and columns of an invocation
const uint GROUPS = STAGED == 1u ? 8u : 32u;                   // of four columns that are worked on at a time
const uint STEPS = 32u / GROUPS;         // to half a tile
const uint S = GROUPS + 1u;              // from row to row: neighbouring rows do not meet in a bank
const uint NX = STAGED == 1u ? GROUP_M * GROUPS / N : TM;      // places in x where an invocation reads
const uint AT_ONCE = STAGED == 1u ? 8u : 1u;                   // groups in straight code
shared vec4 xs[STAGED == 1u ? GROUP_M * S : 1u];
shared vec4 ws[32u * S];

vec4 four_halves(uvec2 v) { return vec4(unpackHalf2x16(v.x), unpackHalf2x16(v.y)); }

// Of the weights of half a tile, share (own, r, t): row r of tile `own`, lane t.
void unpack_share(uint share, uint tile0, uint half_tile, out vec4 v[8]) {
    const uint own = share >> 6, r = (share >> 2) & 15u, t = share & 3u, tile = min(tile0 + own, args.n_tile - 1u);
    unpack((tile_of(tile) * args.n_col + (half_tile >> 1)) * TILE, r, half_tile & 1u, t, v);
}

void main() {
    const uint me = gl_LocalInvocationIndex, row0 = open_rows(GROUP_M), tile0 = gl_WorkGroupID.y * 2u;
    if (row0 >= n_row) return;
    open_layout(me);
    const uint m = me / NN, n = me % NN;
    float acc[TM * TN];
    [[unroll]] for (uint i = 0u; i < TM * TN; i++) acc[i] = 0.0;
    uint x_at[NX];   // STAGED: of group me % GROUPS of rows (me + N i) / GROUPS, else of the rows of this invocation
    [[unroll]] for (uint i = 0u; i < NX; i++) {
        const uint row = STAGED == 1u ? (me + N * i) / GROUPS : NM * i + m;
        x_at[i] = (args.x_offset + row_in(min(row0 + row, n_row - 1u)) * args.x_stride) * 2u
            + (STAGED == 1u ? me % GROUPS : 0u);
    }
    const uint n_half = args.n_half_tile, n_step = n_half * STEPS;
    // What rounding left of a row lies behind its halves and is summed first.
    const uint rest = EXACT == 1u ? args.n_col * 64u : 0u;
    uvec2 next_x[NX];
    if (STAGED == 1u)
        [[unroll]] for (uint i = 0u; i < NX; i++) next_x[i] = x[x_at[i] + rest];
    for (uint turn = 0u; turn < n_half * (1u + EXACT); turn++) {
        const uint half_tile = turn < n_half ? turn : turn - n_half;
        vec4 v[8];
        if (STAGED == 1u) unpack_share(me, tile0, half_tile, v);
        [[dont_unroll]] for (uint step = 0u; step < STEPS; step++) {
            // STAGED: the next groups of x are on their way while these are multiplied.
            const uint at = min(turn * STEPS + step + STAGED, n_step * (1u + EXACT) - 1u);
            const uint from = at < n_step ? at * GROUPS + rest : (at - n_step) * GROUPS;
            barrier();
            if (STAGED == 1u) {
                const uint t = me & 3u;
                if ((t >> 1) == (step & 1u))
                    [[unroll]] for (uint b = 0u; b < 4u; b++)
                        ws[(me >> 2) * S + 4u * (t & 1u) + b] = step < 2u ? v[b] : v[4u + b];
                [[unroll]] for (uint i = 0u; i < NX; i++)
                    xs[(me + N * i) / GROUPS * S + me % GROUPS] = four_halves(next_x[i]);
            } else {
                for (uint share = me; share < 128u; share += N) {
                    unpack_share(share, tile0, half_tile, v);
                    [[unroll]] for (uint b = 0u; b < 8u; b++)
                        ws[(share >> 2) * S + 16u * (b >> 2) + 4u * (share & 3u) + (b & 3u)] = v[b];
                }
            }
            barrier();
            if (STAGED == 1u)
                [[unroll]] for (uint i = 0u; i < NX; i++) next_x[i] = x[x_at[i] + from];
            [[dont_unroll]] for (uint k0 = 0u; k0 < GROUPS; k0 += AT_ONCE) {
                [[unroll]] for (uint u = 0u; u < AT_ONCE; u++) {
                    const uint k = k0 + u;
                    vec4 a[TM], b[TN];
                    [[unroll]] for (uint i = 0u; i < TM; i++)
                        a[i] = STAGED == 1u ? xs[(NM * i + m) * S + k] : four_halves(x[x_at[i] + from + k]);
                    [[unroll]] for (uint j = 0u; j < TN; j++) b[j] = ws[(NN * j + n) * S + k];
                    [[unroll]] for (uint i = 0u; i < TM; i++) {
                        [[unroll]] for (uint j = 0u; j < TN; j++) {
                            float q = acc[i * TN + j];
                            q = fma(a[i].x, b[j].x, q);
                            q = fma(a[i].y, b[j].y, q);
                            q = fma(a[i].z, b[j].z, q);
                            acc[i * TN + j] = fma(a[i].w, b[j].w, q);
                        }
                    }
                }
            }
        }
    }
    // Results change hands through ws, NM rows at a time, so that four neighbours leave together.
    [[unroll]] for (uint i = 0u; i < TM; i++) {
        barrier();
        [[unroll]] for (uint j = 0u; j < TN; j++) {
            const uint c = NN * j + n;
            ws[m * 8u + (c >> 2)][c & 3u] = acc[i * TN + j];
        }
        barrier();
        for (uint o = me; o < NM * 8u; o += N) {
            const uint out_m = o >> 3, out_n = o & 7u, row = row0 + NM * i + out_m;
            if (row >= n_row) break;
            const float f = row_factor(row);
            if (EPILOGUE == kEpilogueSwiglu || EPILOGUE == kEpilogueHalves) {
                const uint tile = tile0 + (out_n >> 1), c = out_m * 8u + 4u * (out_n >> 1) + (out_n & 1u);
                if (out_n < 4u && tile < args.n_tile)
                    write_swiglu(row, ((args.first_row + tile * 16u) >> 1) + 4u * (out_n & 1u), ws[c] * f,
                        ws[c + 2u] * f);
            } else {
                const uint tile = tile0 + (out_n >> 2);
                if (tile < args.n_tile) write_four(row, args.first_row + tile * 16u + 4u * (out_n & 3u),
                    ws[out_m * 8u + out_n] * f);
            }
        }
    }
}

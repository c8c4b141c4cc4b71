#version 450
// gemm.comp: matrix product for many rows on devices without matrix units.
//
// Formula y = x W' in float, with the epilogues of shared.h
// Buffers, arguments: see gemm_common.glsl
// Spec    EPILOGUE kEpilogue... SCALED 1: rows have factors of their own. EXPERTS 1: rows by expert, as a list says.
//         EXACT 1: x is two halves: what rounding left of x is summed first, then, in the same floats, the rounded x
//         GROUP_M 16, 32, 64: rows of a workgroup
// Grid    x: ceil(n_row / GROUP_M), y: ceil(n_tile / 2). Group 128: a workgroup computes GROUP_M rows x 32 columns of
//         y, an invocation 2 x 2, 4 x 2 or 4 x 4 of them: rows m + NM i, columns n + NN j
// Shared  4.5 KiB and 144 bytes a row: 32 columns at a time, as floats. No subgroup operations
// Cost    2 * d_in * d_out flops a row; weights are read once per GROUP_M rows
// Order   columns by their places in one invocation: a result does not depend on the number of rows
// CPU     src/machine/cpu, matmul
// variant: gemm_<layout>
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "gemm_args.h"
#include "moe_args.h"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint EPILOGUE = 0u;
layout(constant_id = 2) const uint SCALED = 1u;   // 1: rows have factors of their own
layout(constant_id = 3) const uint EXPERTS = 0u;  // 1: rows by expert, as a list says
layout(constant_id = 4) const uint EXACT = 0u;    // 1: x is two halves
layout(constant_id = 5) const uint GROUP_M = 64u;      // rows of a workgroup
#define GEMM
#include "gemm_common.glsl"
layout(set = 0, binding = 1, std430) readonly buffer X_ { uvec2 x[]; };
#include "quant/tile.glsl"

const uint TN = GROUP_M == 64u ? 4u : 2u, TM = GROUP_M == 16u ? 2u : 4u;   // columns and rows of an invocation
const uint NN = 32u / TN, NM = 128u / NN;                        // invocations along the columns and rows
const uint GROUPS = 8u;                  // of four columns that are worked on at a time
const uint S = GROUPS + 1u;              // from row to row: neighbouring rows do not meet in a bank
const uint NX = GROUP_M * GROUPS / 128u; // groups of x that an invocation fetches
shared vec4 xs[GROUP_M * S];
shared vec4 ws[32u * S];

void main() {
    const uint me = gl_LocalInvocationIndex, row0 = open_rows(GROUP_M), tile0 = gl_WorkGroupID.y * 2u;
    if (row0 >= n_row) return;
    open_layout(me);
    // The share of weights: row r of tile `own`, lane t.
    const uint own = me >> 6, r = (me >> 2) & 15u, t = me & 3u;
    const uint w_at = tile_of(min(tile0 + own, args.n_tile - 1u)) * args.n_col * TILE;
    const uint m = me / NN, n = me % NN;
    float acc[TM * TN];
    [[unroll]] for (uint i = 0u; i < TM * TN; i++) acc[i] = 0.0;
    // The share of x: group me & 7 of rows (me >> 3) + 16 i.
    uint x_at[NX];
    [[unroll]] for (uint i = 0u; i < NX; i++)
        x_at[i] = (args.x_offset + row_in(min(row0 + (me >> 3) + 16u * i, n_row - 1u)) * args.x_stride) * 2u
            + (me & 7u);
    const uint n_half = args.n_col * 2u, n_step = n_half * 4u;
    // What rounding left of a row lies behind its halves and is summed first.
    const uint rest = EXACT == 1u ? args.n_col * 64u : 0u;
    uvec2 next_x[NX];
    [[unroll]] for (uint i = 0u; i < NX; i++) next_x[i] = x[x_at[i] + rest];
    for (uint turn = 0u; turn < n_half * (1u + EXACT); turn++) {
        const uint half_tile = turn < n_half ? turn : turn - n_half;
        vec4 v[8];
        unpack(w_at + (half_tile >> 1) * TILE, r, half_tile & 1u, t, v);
        [[dont_unroll]] for (uint step = 0u; step < 4u; step++) {
            barrier();
            if ((t >> 1) == (step & 1u))
                [[unroll]] for (uint b = 0u; b < 4u; b++)
                    ws[(own * 16u + r) * S + 4u * (t & 1u) + b] = step < 2u ? v[b] : v[4u + b];
            [[unroll]] for (uint i = 0u; i < NX; i++)
                xs[((me >> 3) + 16u * i) * S + (me & 7u)] = vec4(unpackHalf2x16(next_x[i].x),
                    unpackHalf2x16(next_x[i].y));
            barrier();
            // The next groups of x are on their way meanwhile.
            const uint after = min(turn * 4u + step + 1u, n_step * (1u + EXACT) - 1u),
                from = after < n_step ? after * GROUPS + rest : (after - n_step) * GROUPS;
            [[unroll]] for (uint i = 0u; i < NX; i++) next_x[i] = x[x_at[i] + from];
            [[unroll]] for (uint k = 0u; k < GROUPS; k++) {
                vec4 a[TM], b[TN];
                [[unroll]] for (uint i = 0u; i < TM; i++) a[i] = xs[(NM * i + m) * S + k];
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
    // Results change hands through ws, NM rows at a time, so that four neighbours leave together.
    [[unroll]] for (uint i = 0u; i < TM; i++) {
        barrier();
        [[unroll]] for (uint j = 0u; j < TN; j++) {
            const uint c = NN * j + n;
            ws[m * 8u + (c >> 2)][c & 3u] = acc[i * TN + j];
        }
        barrier();
        const uint out_m = me >> 3, out_n = me & 7u, row = row0 + NM * i + out_m;
        if (row < n_row && out_m < NM) {
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

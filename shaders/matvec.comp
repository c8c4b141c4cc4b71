#version 450
// matvec.comp: matrix product for few rows of x, on any device.
//
// Formula y = x W' in float, with the epilogues of shared.h
// Buffers, arguments: see matvec_common.glsl
// Spec    X_ROWS rows of x, at most kMaxRows. SPLIT, TILES, NORM, EPILOGUE: see matvec_common.glsl. ROLE:
//         moe_columns.glsl
// Grid    x: ceil(n_tile / TILES). Group n, a multiple of 8; 8 lanes share a row: lane t + 4 j takes columns
//         128 j + 16 i + 4 t + 0 .. 3 of every column tile. Of the n / 8 lane groups SPLIT share a row (column tiles s,
//         s + SPLIT, ..), so a lane group holds ROWS = 16 * SPLIT * 8 / n rows, for all of which it reads x once
// Shared  n * ROWS * X_ROWS floats and what matvec_common.glsl has. No subgroup operations
// Cost    weights are read once: memory bandwidth bounds it; 2 * d_in * d_out flops a row
// Order   columns in a lane, column tiles in turn, lanes by 1, 2, 4, parts in order: nothing depends on X_ROWS, the
//         slice or TILES
// CPU     src/machine/cpu, matmul
// variant: matvec_<layout>
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "matvec_args.h"
#define SLOTS 1u
#include "matvec_common.glsl"
#include "quant/tile.glsl"

const uint N = gl_WorkGroupSize.x;
const uint ROWS = 16u * SPLIT * 8u / N;
shared float red[N * ROWS * X_ROWS];   // [row of the lane group][column][invocation]

// Row r of a tile belongs to lane groups (r / ROWS) * SPLIT + 0 .. SPLIT - 1, as their row r % ROWS.
float total(uint o) {
    const uint row = o & 15u, col = o >> 4, at = ((row % ROWS) * X_ROWS + col) * N + (row / ROWS) * SPLIT * 8u;
    float v = 0.0;
    for (uint k = 0u; k < SPLIT; k++) {
        const uint b = at + k * 8u;
        v += ((red[b] + red[b + 1u]) + (red[b + 2u] + red[b + 3u]))
            + ((red[b + 4u] + red[b + 5u]) + (red[b + 6u] + red[b + 7u]));
    }
    return v;
}

// 1/rms of every row from its partial sums of squares: 8 lanes a row, then they in order.
void read_norm(uint me) {
    for (uint row = me / 8u; row < X_ROWS; row += N / 8u) {
        float q = 0.0;
        for (uint k = me & 7u; k < args.n_part; k += 8u) q += SQUARES[row_in(row) * args.part_stride + k];
        best_s[row * 8u + (me & 7u)] = q;
    }
    barrier();
    if (me < X_ROWS) {
        float q = 0.0;
        for (uint k = 0u; k < 8u; k++) q += best_s[me * 8u + k];
        inv_rms[me] = inversesqrt(fma(q, args.inv_d, args.eps));
    }
}

void main() {
    const uint me = gl_LocalInvocationIndex, t = me & 3u, j = (me >> 2) & 1u, group = me >> 3;
    const uint part = group % SPLIT, row0 = (group / SPLIT) * ROWS;
    open_layout(me);
    if (ROLE != kRoleNone && !open_columns(me, N)) return;
    if (NORM == 1u) read_norm(me);
    hold_residual(me, N, gl_WorkGroupID.x * TILES);
    for (uint slot = 0u; slot < TILES; slot++) {
        const uint tile = gl_WorkGroupID.x * TILES + slot, safe = min(tile, args.n_tile - 1u);
        float acc[ROWS * X_ROWS];
        [[unroll]] for (uint i = 0u; i < ROWS * X_ROWS; i++) acc[i] = 0.0;
        for (uint c = part; c < args.n_col; c += SPLIT) {
            const uint k0 = c * 256u + j * 128u + t * 4u, k_end = columns_end(c);
            if (k0 >= k_end) continue;  // padding
            vec4 v[ROWS][8];
            [[unroll]] for (uint r = 0u; r < ROWS; r++) unpack(tile_of(safe, c) * TILE, row0 + r, j, t, v[r]);
            [[unroll]] for (uint i = 0u; i < 8u; i++) {
                const uint k = k0 + i * 16u;
                if (k < k_end) {
                    const vec4 m = BY_ROW ? vec4(weight_of(c)) : NORM == 1u ? NORMS[k >> 2] : vec4(1.0);
                    [[unroll]] for (uint col = 0u; col < X_ROWS; col++) {
                        if (!has_column(col)) break;
                        precise vec4 a = X[(args.x_offset + row_in(col) * args.x_stride + k) >> 2] * m;
                        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                            float q = acc[r * X_ROWS + col];
                            q = fma(v[r][i].x, a.x, q);
                            q = fma(v[r][i].y, a.y, q);
                            q = fma(v[r][i].z, a.z, q);
                            q = fma(v[r][i].w, a.w, q);
                            acc[r * X_ROWS + col] = q;
                        }
                    }
                }
            }
        }
        if (slot > 0u) barrier();
        [[unroll]] for (uint i = 0u; i < ROWS * X_ROWS; i++) red[i * N + me] = acc[i];
        barrier();
        write_tiles(me, N, tile, slot == 0u, slot + 1u == TILES);
    }
}

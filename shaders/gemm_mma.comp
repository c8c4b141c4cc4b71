#version 450
// gemm_mma.comp: product of 10 or more rows of x with a weight matrix, on matrix units.
//
// Formula y = x W', with the epilogues of shared.h
// Buffers, arguments: gemm_common.glsl
// Spec    GROUP_M, GROUP_N: rows and columns of y per workgroup; SUBGROUP_M, SUBGROUP_N: per subgroup. STAGES: buffers
//         in shared memory, 1 or 2; with 2, one is filled while the other is read. EPILOGUE: kEpilogue... of shared.h.
//         SCALED: 1 if each row has a factor. UNIT_M, UNIT_N, UNIT_K: 16, 16, 16. EXPERTS: 1 if a list sorts the rows
//         by expert. EXACT: 1 if x and weights are two halves each
// Grid    x: ceil(n_row / GROUP_M), y: ceil(n_tile * 16 / GROUP_N). A workgroup has (GROUP_M / SUBGROUP_M) * (GROUP_N /
//         SUBGROUP_N) full subgroups of a required size; its size must divide GROUP_N * 4 and GROUP_M * 8
// Shared  STAGES * 144 * (GROUP_M + GROUP_N) * (1 + EXACT) + 80 * UNIT_M * subgroups bytes; 16 bytes of padding per row
//         avoid bank conflicts
// Cost    2 * d_in * d_out flops per row; weights are read once per GROUP_M rows. Works on 64 columns at a time: copies
//         x and unpacks weights to halves while it loads the next 64
// Numbers halves times halves, summed in float. Relative rounding error: 2^-12 for x, 2^-11 for weights. EXACT: three
//         products instead of one, of the halves that come from rounding and of what that left: 2^-22 for both
// Order   columns in the order of their places (gemm_common.glsl), whatever the tile sizes and the number of rows
// CPU     src/machine/cpu, matmul
// variant: gemm_mma_<layout> @khr
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_NV_cooperative_matrix : require
#include "gemm_args.h"
#include "moe_args.h"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint GROUP_M = 128u;
layout(constant_id = 2) const uint GROUP_N = 128u;
layout(constant_id = 3) const uint SUBGROUP_M = 64u;
layout(constant_id = 4) const uint SUBGROUP_N = 32u;
layout(constant_id = 5) const uint STAGES = 1u;   // buffers: with 2, one is filled while the other is read
layout(constant_id = 6) const uint EPILOGUE = 0u;
layout(constant_id = 7) const uint SCALED = 1u;   // 1: each row has a factor
layout(constant_id = 8) const uint UNIT_M = 16u;      // the matrix units' shape; UNIT_N must be 16
layout(constant_id = 9) const uint UNIT_N = 16u;
layout(constant_id = 10) const uint UNIT_K = 16u;
layout(constant_id = 11) const uint EXPERTS = 0u; // 1: a list sorts the rows by expert
layout(constant_id = 12) const uint EXACT = 0u;   // 1: x and weights are two halves each
#define GEMM
#include "gemm_common.glsl"
layout(set = 0, binding = 1, std430) readonly buffer X_ { uvec4 x[]; };
#define SHARES
#include "quant/tile.glsl"

const uint N = gl_WorkGroupSize.x;
const uint SX = 9u;                      // units of 16 bytes from row to row
const uint NX = GROUP_M * 8u / N;             // units of x that an invocation copies in a step
const uint NW = GROUP_N * 4u / N;             // shares of weights
const uint CM = SUBGROUP_M / UNIT_M, CN = SUBGROUP_N / UNIT_N;
const uint X_LOW = STAGES * GROUP_M * SX, W_LOW = STAGES * GROUP_N * SX;   // EXACT: what rounding left begins here
shared uvec4 xs[X_LOW * (1u + EXACT)];
shared uvec4 ws[W_LOW * (1u + EXACT)];
shared uvec4 patch_s[(GROUP_M / SUBGROUP_M) * (GROUP_N / SUBGROUP_N) * UNIT_M * 5u];
#define FragA fcoopmatNV<16, gl_ScopeSubgroup, UNIT_M, UNIT_K>
#define FragB fcoopmatNV<16, gl_ScopeSubgroup, UNIT_K, UNIT_N>
#define FragC fcoopmatNV<32, gl_ScopeSubgroup, UNIT_M, UNIT_N>

vec4 patched(uint at) { return uintBitsToFloat(patch_s[at]); }

// 16 weights as halves. EXACT: low_lo, low_hi are what the rounding left.
void weights(Share r, uint kb, out uvec4 lo, out uvec4 hi, out uvec4 low_lo, out uvec4 low_hi) {
    if (EXACT == 0u) {
        decode_share(r, kb, lo, hi);
        return;
    }
    vec4 v[4];
    share_values(r, kb, v);
    for (uint i = 0u; i < 4u; i++) v[i] = clamp(v[i], vec4(-65504.0), vec4(65504.0));
    lo = uvec4(round_halves(v[0]), round_halves(v[1]));
    hi = uvec4(round_halves(v[2]), round_halves(v[3]));
    const uint zero = args.first_row & 15u;
    low_lo = uvec4(rest_halves(v[0], lo.xy, zero), rest_halves(v[1], lo.zw, zero));
    low_hi = uvec4(rest_halves(v[2], hi.xy, zero), rest_halves(v[3], hi.zw, zero));
}

void main() {
    const uint me = gl_LocalInvocationIndex, sub = gl_SubgroupID, lane = gl_SubgroupInvocationID;
    const uint sub_m = sub % (GROUP_M / SUBGROUP_M), sub_n = sub / (GROUP_M / SUBGROUP_M);
    const uint row0 = open_rows(GROUP_M), tile0 = gl_WorkGroupID.y * (GROUP_N / 16u);
    if (row0 >= n_row) return;
    open_layout(me);
    FragC acc[CM * CN];
    [[unroll]] for (uint i = 0u; i < CM * CN; i++) acc[i] = FragC(0.0);

    uint x_at[NX], w_at[NW];
    [[unroll]] for (uint i = 0u; i < NX; i++) {
        const uint u = me + i * N;
        x_at[i] = args.x_offset + row_in(min(row0 + (u >> 3), n_row - 1u)) * args.x_stride + (u & 7u);
    }
    [[unroll]] for (uint i = 0u; i < NW; i++) w_at[i] = tile_of(min(tile0 + ((me + i * N) >> 6), args.n_tile - 1u))
        * args.n_col * TILE;
    uvec4 x_next[NX], x_rest[NX];   // x_rest: EXACT
    Share w_next[NW];
    [[unroll]] for (uint i = 0u; i < NX; i++) {
        x_next[i] = x[x_at[i]];
        if (EXACT == 1u) x_rest[i] = x[x_at[i] + args.n_col * 32u];
    }
    [[unroll]] for (uint i = 0u; i < NW; i++) w_next[i] = fetch_share(w_at[i], me & 31u, ((me + i * N) >> 5) & 1u, 0u);

    const uint n_step = args.n_col * 4u;
    for (uint step = 0u; step < n_step; step++) {
        const uint xb = (step & (STAGES - 1u)) * GROUP_M * SX, wb = (step & (STAGES - 1u)) * GROUP_N * SX;
        if (STAGES == 1u) barrier();
        [[unroll]] for (uint i = 0u; i < NX; i++) {
            const uint u = me + i * N;
            xs[xb + (u >> 3) * SX + (u & 7u)] = x_next[i];
            if (EXACT == 1u) xs[X_LOW + xb + (u >> 3) * SX + (u & 7u)] = x_rest[i];
        }
        [[unroll]] for (uint i = 0u; i < NW; i++) {
            const uint u = me + i * N, l = u & 31u, to = wb + ((u >> 6) * 16u + 8u * ((u >> 5) & 1u) + (l >> 2))
                * SX + 2u * (l & 3u);
            uvec4 lo, hi, low_lo, low_hi;
            weights(w_next[i], step & 3u, lo, hi, low_lo, low_hi);
            ws[to] = lo;
            ws[to + 1u] = hi;
            if (EXACT == 1u) {
                ws[W_LOW + to] = low_lo;
                ws[W_LOW + to + 1u] = low_hi;
            }
        }
        barrier();
        // Unless EXACT, the last step fetches its own columns again: a condition would cost 6 % of the time. With EXACT
        // it saves 8 %.
        const uint next = EXACT == 0u ? min(step + 1u, n_step - 1u) : step + 1u, at = (next >> 2) * TILE;
        if (EXACT == 0u || step + 1u < n_step) {
            [[unroll]] for (uint i = 0u; i < NX; i++) {
                x_next[i] = x[x_at[i] + next * 8u];
                if (EXACT == 1u) x_rest[i] = x[x_at[i] + next * 8u + args.n_col * 32u];
            }
            [[unroll]] for (uint i = 0u; i < NW; i++)
                w_next[i] = fetch_share(w_at[i] + at, me & 31u, ((me + i * N) >> 5) & 1u, next & 3u);
        }
        [[unroll]] for (uint k = 0u; k < 64u / UNIT_K; k++) {
            FragA a[CM], a_low[CM];
            [[unroll]] for (uint i = 0u; i < CM; i++) {
                const uint at = xb + (sub_m * SUBGROUP_M + i * UNIT_M) * SX + k * (UNIT_K / 8u);
                coopMatLoadNV(a[i], xs, at, SX, false);
                if (EXACT == 1u) coopMatLoadNV(a_low[i], xs, X_LOW + at, SX, false);
            }
            [[unroll]] for (uint j = 0u; j < CN; j++) {
                const uint at = wb + (sub_n * SUBGROUP_N + j * UNIT_N) * SX + k * (UNIT_K / 8u);
                FragB b, b_low;
                coopMatLoadNV(b, ws, at, SX, true);
                if (EXACT == 1u) {
                    coopMatLoadNV(b_low, ws, W_LOW + at, SX, true);
                    [[unroll]] for (uint i = 0u; i < CM; i++) {
                        acc[i * CN + j] = coopMatMulAddNV(a_low[i], b, acc[i * CN + j]);
                        acc[i * CN + j] = coopMatMulAddNV(a[i], b_low, acc[i * CN + j]);
                    }
                }
                [[unroll]] for (uint i = 0u; i < CM; i++) acc[i * CN + j] = coopMatMulAddNV(a[i], b, acc[i * CN + j]);
            }
        }
    }
    // Results leave through a patch of shared memory per subgroup, UNIT_M x 16 at a time.
    const uint patch0 = sub * UNIT_M * 5u;
    [[unroll]] for (uint i = 0u; i < CM; i++) {
        [[unroll]] for (uint j = 0u; j < CN; j++) {
            subgroupBarrier();
            coopMatStoreNV(acc[i * CN + j], patch_s, patch0, 5u, false);
            subgroupMemoryBarrierShared();
            subgroupBarrier();
            const uint row = row0 + sub_m * SUBGROUP_M + i * UNIT_M, tile = tile0 + sub_n * (SUBGROUP_N / 16u) + j,
                first = args.first_row + tile * 16u;
            if (tile < args.n_tile) {
                if (EPILOGUE == kEpilogueSwiglu || EPILOGUE == kEpilogueHalves) {
                    for (uint o = lane; o < UNIT_M * 2u; o += gl_SubgroupSize) {
                        const uint r = o >> 1, c = o & 1u;
                        if (row + r < n_row) {
                            const float f = row_factor(row + r) * (1.0 / WEIGHT_FACTOR);
                            write_swiglu(row + r, (first >> 1) + 4u * c, patched(patch0 + r * 5u + c) * f,
                                patched(patch0 + r * 5u + 2u + c) * f);
                        }
                    }
                } else {
                    for (uint o = lane; o < UNIT_M * 4u; o += gl_SubgroupSize) {
                        const uint r = o >> 2, c = o & 3u;
                        if (row + r < n_row) {
                            const float f = row_factor(row + r) * (1.0 / WEIGHT_FACTOR);
                            write_four(row + r, first + 4u * c, patched(patch0 + r * 5u + c) * f);
                        }
                    }
                }
            }
        }
    }
}

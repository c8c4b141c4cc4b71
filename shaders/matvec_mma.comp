#version 450
// matvec_mma.comp: product of up to 8 rows of x with a weight matrix, on 16x8x16 matrix units.
//
// Formula y = x W', with the epilogues of shared.h
// Buffers, arguments: matvec_common.glsl; buffers are read by address
// Spec    X_ROWS: rows of x, at most 8; one to eight take about the same time, so nine run as five and four. SPLIT,
//         TILES, NORM, EPILOGUE: matvec_common.glsl. CHUNK: column tiles whose x a team's subgroup multiplies by at
//         once. UNIT_M, UNIT_N, UNIT_K: 16, 8, 16. TEAMS: teams of SPLIT subgroups; 1 unless ROLE is kRoleNone. ROLE,
//         SUBGROUP_SCORES: moe_columns.glsl. CHAINED: chain.glsl. PRIVATE_ROWS: above 0, an invocation keeps its
//         sums in an array of its own until x is no longer needed, so that shared memory has room for more tile
//         rows. tune.h chooses TILES, CHUNK, TEAMS and PRIVATE_ROWS
// Grid    x: ceil(n_tile / args.tiles) workgroups of 32 * SPLIT * TEAMS, in full subgroups of 32. A workgroup computes
//         args.tiles row tiles, team i those from i in steps of TEAMS; a team's subgroup s takes column tiles s,
//         s + SPLIT, .. of them. The subgroups s of all teams load the x of CHUNK column tiles into shared memory,
//         multiply the row tiles by it, then load the next
// Shared  matrix_shared() in tune.h
// Cost    bound by memory bandwidth: weights are read once
// Numbers x * norm is scaled by a power of two per 256 columns and rounded to halves (relative error 2^-12). Weights
//         are exact integers. Products are summed in float over a block of 32 or 16 columns and then multiplied by the
//         block's scale; mins and zero points are multiplied by the sum of the block's rounded x
// Order   a block's columns in the matrix unit, then blocks, then column tiles, then subgroups. SPLIT follows from the
//         weight's shape, and nothing else changes the order: not X_ROWS, TILES, TEAMS or the slice
// CPU     src/machine/cpu, matmul
// Needs   shared arrays of multiples of 16 bytes, because matrix loads need 16-byte addresses; matrix elements
//         distributed over a subgroup as matrix_layout_fits() in tune.h says
// variant: matvec_mma_<layout> @product @khr
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_NV_cooperative_matrix : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_spirv_intrinsics : require
// round halves to nearest even
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4467], 4462, 16);
#include "matvec_args.h"
#define SLOTS TILES
#define MATRIX
#include "matvec_common.glsl"
layout(constant_id = 6) const uint CHUNK = 1u;   // column tiles whose x a subgroup holds at once
layout(constant_id = 7) const uint UNIT_M = 16u;     // the matrix units' shape
layout(constant_id = 8) const uint UNIT_N = 8u;
layout(constant_id = 9) const uint UNIT_K = 16u;
layout(constant_id = 10) const uint TEAMS = 1u;      // of SPLIT subgroups each
layout(constant_id = 14) const uint PRIVATE_ROWS = 0u;   // max. tile rows of a team with private sums; 0: shared

const uint GROUP = 32u * SPLIT * TEAMS;   // invocations
const uint SX = kMatvecRowHalves;
// In units of 8 halves, because matrix loads need 16-byte addresses. B has 8 columns, one per row of x; those from
// X_ROWS on hold arbitrary values, which affect no result.
const uint X_UNITS = ((SPLIT * CHUNK - 1u) * X_ROWS + 8u) * (SX / 8u), N_RED = TILES * SPLIT * 16u * X_ROWS;
// Private sums replace x here at the end. (glslc 2022.4 cannot compile PRIVATE_ROWS > 0u && ...)
const uint S_UNITS = PRIVATE_ROWS * N_RED > PRIVATE_ROWS * 4u * X_UNITS ? N_RED / 4u : X_UNITS;
shared uvec4 s[S_UNITS];
shared float scale[(SPLIT * CHUNK * X_ROWS + 8u + 3u) / 4u * 4u];
shared float red[PRIVATE_ROWS > 0u ? 4u : N_RED];

#define FragA fcoopmatNV<16, gl_ScopeSubgroup, UNIT_M, UNIT_K>
#define FragB fcoopmatNV<16, gl_ScopeSubgroup, UNIT_K, UNIT_N>
#define FragC fcoopmatNV<32, gl_ScopeSubgroup, UNIT_M, UNIT_N>
// C += A B. A: this lane's columns 0 1 and 2 3 of row g, then of row g + 8; B: 16 columns of x at `at`.
#define MMA(C, a0, a1, a2, a3, at) { FragA A_; FragB B_; \
    const f16vec2 p0_ = unpackFloat2x16(a0), p1_ = unpackFloat2x16(a1), p2_ = unpackFloat2x16(a2), p3_ = \
    unpackFloat2x16(a3); \
    A_[0] = p0_.x; A_[1] = p0_.y; A_[2] = p1_.x; A_[3] = p1_.y; A_[4] = p2_.x; A_[5] = p2_.y; A_[6] = p3_.x; \
    A_[7] = p3_.y; \
    coopMatLoadNV(B_, s, (at) >> 3, SX / 8u, true); \
    C = coopMatMulAddNV(A_, B_, C); }
// sum += C, row g times e0, row g + 8 times e1.
#define ADD(sum, e0, e1, C) { const float f0_ = e0, f1_ = e1; \
    sum.x = fma(f0_, C[0], sum.x); sum.y = fma(f0_, C[1], sum.y); sum.z = fma(f1_, C[2], sum.z); \
    sum.w = fma(f1_, C[3], sum.w); }
const float TINY = 16777216.0;   // 2^24 makes a tiny half the integer it stands for

// Half t of two words, in both halves of a word.
uint half_twice(uvec2 v, uint t) { return (((t < 2u ? v.x : v.y) >> (16u * (t & 1u))) & 0xffffu) * 0x10001u; }
uint word_of(uvec4 v, uint i) { return i < 2u ? (i == 0u ? v.x : v.y) : (i == 2u ? v.z : v.w); }
#include "quant/tile.glsl"

float partial(uint at) { return PRIVATE_ROWS > 0u ? uintBitsToFloat(s[at >> 2][at & 3u]) : red[at]; }
void put_partial(uint at, float v) {
    if (PRIVATE_ROWS > 0u) s[at >> 2][at & 3u] = floatBitsToUint(v);
    else red[at] = v;
}

float total(uint o) {
    const uint at = o / (16u * X_ROWS) * SPLIT * 16u * X_ROWS + o % (16u * X_ROWS);
    float v = 0.0;
    for (uint k = 0u; k < SPLIT; k++) v += partial(at + k * 16u * X_ROWS);
    return v;
}

// A lane's sums of a tile row: rows g and g + 8 of it times rows 2 t and 2 t + 1 of x, from place `slot` on.
void put_sums(uint slot, uint t, vec4 acc) {
    if (2u * t < X_ROWS) {
        put_partial(slot, acc.x);
        put_partial(slot + 8u, acc.z);
    }
    if (2u * t + 1u < X_ROWS) {
        put_partial(slot + 16u, acc.y);
        put_partial(slot + 24u, acc.w);
    }
}

// 1/rms of a row from its partial sums of squares. Each lane adds every 32nd; a butterfly of 1, 2, 4, 8, 16 adds lanes.
void read_norm(uint sub, uint l) {
    [[dont_unroll]] for (uint row = sub; row < X_ROWS; row += SPLIT * TEAMS) {
        float q = 0.0;
        [[dont_unroll]] for (uint k = 0u; k < args.n_part; k += 256u) {
            float v[8];
            [[unroll]] for (uint i = 0u; i < 8u; i++) {
                const uint at = k + 32u * i + l;
                v[i] = at < args.n_part ? SQUARES[row_in(row) * args.part_stride + at] : 0.0;
            }
            [[unroll]] for (uint i = 0u; i < 8u; i++) q += v[i];
        }
        q += subgroupShuffleXor(q, 1u);
        q += subgroupShuffleXor(q, 2u);
        q += subgroupShuffleXor(q, 4u);
        q += subgroupShuffleXor(q, 8u);
        q += subgroupShuffleXor(q, 16u);
        if (l == 0u) inv_rms[row] = inversesqrt(fma(q, args.inv_d, args.eps));
    }
}

vec4 xa, xb;    // a piece of x on its way
uint n_piece;   // of a chunk: its column tiles times X_ROWS

// Piece n of a chunk: row n % X_ROWS of x, column tile c0 + n / X_ROWS * SPLIT; this lane's 4 columns of two blocks.
// One piece at a time: with several, steps wait longer for their instructions than they gain.
void load_x(uint n, uint c0, uint l) {
    const uint c = c0 + n / X_ROWS * SPLIT, k = c * 256u + 32u * (l >> 2) + 4u * (l & 3u);
    const uint at = (args.x_offset + row_in(n % X_ROWS) * args.x_stride + k) >> 2;
    const bool in_ = n < n_piece && has_column(n % X_ROWS);
    const uint k_end = in_ ? columns_end(c) : 0u;
    xa = k < k_end ? X[at] : vec4(0.0);
    xb = k + 16u < k_end ? X[at + 4u] : vec4(0.0);
    if (BY_ROW) {
        const float m = weight_of(c);
        xa *= m;
        xb *= m;
    }
    if (NORM == 1u) {
        if (in_ && k < args.d_in) xa *= NORMS[k >> 2];
        if (in_ && k + 16u < args.d_in) xb *= NORMS[(k >> 2) + 4u];
    }
}

// Stores it: halves in the order of the units, behind them the sums of each 32 or 16, in two halves each.
void store_x(uint n, uint first, uint l) {
    const uint g = l >> 2, t = l & 3u;
    const vec4 m4 = max(abs(xa), abs(xb));
    float m = max(max(m4.x, m4.y), max(m4.z, m4.w));
    m = max(m, subgroupShuffleXor(m, 1u));
    m = max(m, subgroupShuffleXor(m, 2u));
    m = max(m, subgroupShuffleXor(m, 4u));
    m = max(m, subgroupShuffleXor(m, 8u));
    m = max(m, subgroupShuffleXor(m, 16u));
    // The largest becomes 1024..2048, so that 16 of them fit into a half; 32 may reach 65536, just above.
    const uint e = clamp(floatBitsToUint(m) >> 23, 11u, 254u);
    const float up = uintBitsToFloat((264u - e) << 23);
    const f16vec4 p = f16vec4(xa * up), q = f16vec4(xb * up);
    const uvec4 bits = uvec4(packFloat2x16(p.xy), packFloat2x16(p.zw), packFloat2x16(q.xy), packFloat2x16(q.zw));
    const uint row = (first + n) * (SX / 8u), at = row + 4u * g;
    s[at][t] = bits.x;
    s[at + 1u][t] = bits.y;
    s[at + 2u][t] = bits.z;
    s[at + 3u][t] = bits.w;
    // The sums must be those of the rounded values. A driver was seen to add the unrounded ones, so it gets bits that
    // it cannot see through: first_row is a multiple of 16.
    const uvec4 same = bits ^ (args.first_row & 15u);
    const vec2 n0 = unpackHalf2x16(same.x), n1 = unpackHalf2x16(same.y), n2 = unpackHalf2x16(same.z),
        n3 = unpackHalf2x16(same.w);
    vec2 sum = vec2((n0.x + n0.y) + (n1.x + n1.y), (n2.x + n2.y) + (n3.x + n3.y));
#ifdef SUMS_OF_32
    sum.x += sum.y;
    sum.x += subgroupShuffleXor(sum.x, 1u);
    sum.x += subgroupShuffleXor(sum.x, 2u);
    if (t == 0u) {
        const uint hi = packFloat2x16(f16vec2(clamp(sum.x, -65504.0, 65504.0), 0.0)) ^ (args.first_row & 15u);
        s[row + 32u + (g >> 2)][g & 3u] = hi | packFloat2x16(f16vec2(0.0, sum.x - unpackHalf2x16(hi).x));
    }
#else
    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    if (t == 0u) {
        const uint hi = packFloat2x16(f16vec2(sum)) ^ (args.first_row & 15u), to = row + 32u + (g >> 2);
        s[to][g & 3u] = hi;
        s[to + 2u][g & 3u] = packFloat2x16(f16vec2(sum - unpackHalf2x16(hi)));
    }
#endif
    if (l == 0u) scale[first + n] = uintBitsToFloat((e - 10u) << 23);
}

// What comes from memory before the first product: the first piece of x, and what norm and epilogue need.
void begin_x(uint me, uint team, uint sub, uint tile0) {
    load_x(team, sub, me & 31u);
    hold_residual(me, GROUP, tile0);
    if (NORM == 1u) read_norm(me >> 5, me & 31u);
}

// All that share a chunk of x wait here.
void meet() {
    if (TEAMS > 1u) barrier();
    else {
        subgroupMemoryBarrierShared();
        subgroupBarrier();
    }
}

void main() {
    const uint me = gl_LocalInvocationIndex, l = me & 31u, team = TEAMS > 1u ? (me >> 5) / SPLIT : 0u,
        sub = TEAMS > 1u ? (me >> 5) % SPLIT : me >> 5, g = l >> 2, t = l & 3u;
    const uint first = sub * CHUNK * X_ROWS, tile0 = gl_WorkGroupID.x * args.tiles,
        n_tile = min(args.tiles, args.n_tile - tile0);
    n_slot = args.tiles;
    const uint n_own = sub < args.n_col ? (args.n_col - sub + SPLIT - 1u) / SPLIT : 0u;   // column tiles of mine
    // The largest n_own: all subgroups that meet() take as many rounds.
    const uint n_own_max = TEAMS > 1u ? (args.n_col + SPLIT - 1u) / SPLIT : n_own;
    n_piece = min(CHUNK, n_own) * X_ROWS;
    vec4 sums[PRIVATE_ROWS > 0u ? PRIVATE_ROWS : 1u];   // of my tile rows
    Raw next;
    if (ROLE_ == kRoleAny && SUBGROUP_SCORES > 0u) {
        // Where an expert is chosen for the only row, x is known before: the first subgroup chooses, and the others see
        // to x meanwhile. One copy of each part, because code is what this waits for.
        const bool late = ROLE == kRoleExpert && sub != 0u;
        if (ROLE != kRoleNone) chain_wait();
        [[dont_unroll]] for (uint turn = 0u; turn < (late ? 1u : 2u); turn++) {
            if (turn == (late ? 0u : 1u)) {
                if (ROLE == kRoleNone) chain_wait();
                begin_x(me, team, sub, tile0);
            }
            if (turn > 0u) break;
            if (ROLE != kRoleNone && !open_columns(me, GROUP)) {
                chain_done();
                return;
            }
            if (n_own > 0u) next = fetch(tile_of(tile0, sub) * TILE, l);
        }
    } else {
        if (ROLE != kRoleNone) {
            chain_wait();
            if (!open_columns(me, GROUP)) {
                chain_done();
                return;
            }
        }
        if (n_own > 0u && team < n_tile) next = fetch(tile_of(tile0 + team, sub) * TILE, l);
        if (ROLE == kRoleNone) chain_wait();
        begin_x(me, team, sub, tile0);
    }

    [[dont_unroll]] for (uint o0 = 0u; o0 < n_own_max; o0 += CHUNK) {
        const uint n_here = o0 < n_own ? min(CHUNK, n_own - o0) : 0u;
        n_piece = n_here * X_ROWS;
        if (o0 > 0u) meet();
        [[dont_unroll]] for (uint n = team; n < CHUNK * X_ROWS; n += TEAMS) {
            if (o0 + n > team) load_x(n, sub + o0 * SPLIT, l);   // begin_x() loaded the first one
            if (n < n_piece) store_x(n, first, l);
        }
        meet();
        [[dont_unroll]] for (uint r = team, turn = 0u; r < n_tile; r += TEAMS, turn++) {
            const uint slot = ((r * SPLIT + sub) * X_ROWS + 2u * t) * 16u + g;
            vec4 acc = vec4(0.0);
            if (o0 > 0u) {
                if (PRIVATE_ROWS > 0u) acc = sums[turn];
                else {
                    if (2u * t < X_ROWS) acc.xz = vec2(red[slot], red[slot + 8u]);
                    if (2u * t + 1u < X_ROWS) acc.yw = vec2(red[slot + 16u], red[slot + 24u]);
                }
            }
            [[dont_unroll]] for (uint i = 0u; i < n_here; i++) {
                const Raw raw = next;
                // The tile after this one, wherever it is.
                uint row = r, own = o0 + i + 1u;
                if (i + 1u == n_here) {
                    if (r + TEAMS < n_tile) {
                        row = r + TEAMS;
                        own = o0;
                    } else row = team;
                }
                if (own < n_own) next = fetch(tile_of(tile0 + row, sub + own * SPLIT) * TILE, l);
                const uint at = first + i * X_ROWS;
                const vec4 sum = product(raw, at * SX, t);
                const float x0 = scale[at + 2u * t], x1 = scale[at + 2u * t + 1u];
                acc = fma(sum, vec4(x0, x1, x0, x1), acc);
            }
            if (PRIVATE_ROWS > 0u) sums[turn] = acc;
            else put_sums(slot, t, acc);
        }
    }
    if (PRIVATE_ROWS > 0u) {   // n_own is not 0 then
        barrier();   // no subgroup needs x any more
        [[dont_unroll]] for (uint r = team, turn = 0u; r < n_tile; r += TEAMS, turn++)
            put_sums(((r * SPLIT + sub) * X_ROWS + 2u * t) * 16u + g, t, sums[turn]);
    } else if (n_own == 0u) {
        [[dont_unroll]] for (uint i = l; i < args.tiles * 16u * X_ROWS; i += 32u)
            red[((i / (16u * X_ROWS)) * SPLIT + sub) * 16u * X_ROWS + i % (16u * X_ROWS)] = 0.0;
    }
    barrier();
    write_tiles(me, GROUP, tile0, true, true);
    chain_done();
}

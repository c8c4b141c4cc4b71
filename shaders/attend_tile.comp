#version 450
// attend_tile.comp: attention of a committed pass (prefill) on 16x8x16 matrix units. Runs after kv_append with QUERIES
// kQueriesHalf, before attend_join.
//
// Formula as attend_step.comp
// Buffers 0 step   StepState                                              read
//         1 query  f16, see kQueriesHalf in args.h                        read
//         2 k, 3 v see kv_formats.glsl                                    read
//         4 part, 5 stat  see attend_segments.glsl                        written; with SPLIT 0 also read
// Push    AttendArgs; part_stride: a multiple of GROUP / 2
// Spec    SPLIT 1: a workgroup takes one segment of keys; 0: all, joining one after the other. K_TYPE, V_TYPE kKv...
//         UNIT_M, UNIT_N, UNIT_K 16, 8, 16. WRAPS 0: args.sinks and args.ring are multiples of KEYS, so that no
//         block of keys wraps around the ring. D_HEAD is fixed by the variant
// Grid    x: tiles of GROUP / 2 queries of a round, y: kv head, z: with SPLIT 1 at least the segments that the pass
//         sees. Group 64, 128 or 256: each full subgroup of 32 has 16 queries
// Shared  KEYS * (4 * D_HEAD + 80) bytes: 35 328 or 18 944
// Cost    n_row * n_key * n_head * D_HEAD * 4 flops. A matrix product reads 256 bytes of shared memory for 4096 flops:
//         at 128 bytes a cycle that bounds a core at 2048 flops a cycle. Each tile reads all keys and values: 4 *
//         GROUP / 2 flops per byte
// Numbers queries, weights (times 32768) and unpacked keys and values are halves, sums are float
// Order   keys in blocks of KEYS, 32, at multiples of it, in order; every segment of keys begins with nothing. What a
//         row does not see changes nothing, so a row's bits depend neither on n_row nor on SPLIT and GROUP.
// Loop    a turn multiplies the queries with the keys of one block and the weights with the values of the block before,
//         so that neither product waits for the other, while the next keys and values are on their way to registers.
//         Then these go to shared memory, before the weights of the scores need registers. Every pipeline takes all
//         255, and what is alive at once decides its speed: measure each format after a change. A condition within a
//         turn makes the driver keep more alive, so the last turn also fetches keys that nothing uses.
// Layout  subgroup s has queries 16 s .. 16 s + 15 of the tile; lane (g, t) the scores of queries g and g + 8 with keys
//         8 j + 2 t, + 1, which are what it needs of the weights as left side of the second product; then columns 32 c
//         + 8 t .. + 7 of their results.
// Source  FlashAttention-2 (Dao 2023)
// Needs   matrices whose elements lie as matrix_layout_fits() in tune.h requires; K and V zeroed when the context opens
// CPU     src/machine/cpu, attend
// variant: attend_tile_256 -DHEAD=256u @khr
// variant: attend_tile_128 -DHEAD=128u @khr
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_NV_cooperative_matrix : require
#extension GL_EXT_spirv_intrinsics : require
// halves: to nearest even
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4467], 4462, 16);
#include "step_common.glsl"

layout(local_size_x_id = 0) in;
const uint D_HEAD = HEAD;
layout(constant_id = 1) const uint SPLIT = 0;
layout(constant_id = 2) const uint K_TYPE = 0;
layout(constant_id = 3) const uint V_TYPE = 0;
layout(constant_id = 4) const uint UNIT_M = 16u;
layout(constant_id = 5) const uint UNIT_N = 8u;
layout(constant_id = 6) const uint UNIT_K = 16u;
layout(constant_id = 7) const uint WRAPS = 0u;
layout(push_constant) uniform Push { AttendArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
struct QueryTile { uvec4 at[D_HEAD / 16u][32]; };
layout(set = 0, binding = 1, std430) readonly buffer Query { QueryTile query[]; };
layout(set = 0, binding = 2, std430) readonly buffer K { uvec2 k_cache[]; };
layout(set = 0, binding = 2, std430) readonly buffer K4 { uvec4 k_wide[]; };
layout(set = 0, binding = 3, std430) readonly buffer V { uvec2 v_cache[]; };
layout(set = 0, binding = 4, std430) buffer Part { vec4 part[]; };
layout(set = 0, binding = 5, std430) buffer Stat { vec2 stat[]; };
#include "attend_visible.glsl"
#include "attend_segments.glsl"
#include "kv_formats.glsl"

const uint N = gl_WorkGroupSize.x, TILE = N / 2u, KEYS = kTileKeys;
const uint UNITS = D_HEAD / 8u, QUADS = D_HEAD / 4u;
const uint KS = UNITS + 4u, VS = QUADS + 2u;        // 16-byte units from key to key, from pair of keys to pair
const uint NK = KEYS * UNITS / N, NV = KEYS / 2u * QUADS / N;  // units of a block that an invocation fetches
const uint V_STEP = V_TYPE == kKvF16 ? 1u : 2u, V_UNITS = QUADS / V_STEP;  // fetches of a unit, units of a value
const uint BLOCKS = D_HEAD / 32u, PIECES = KEYS / 8u;
shared uvec4 k_s[KEYS * KS];        // keys, 8 columns a unit
shared uvec4 v_s[KEYS / 2u * VS];   // values of two neighbouring keys, 4 columns a unit
#define FragA fcoopmatNV<16, gl_ScopeSubgroup, UNIT_M, UNIT_K>
#define FragB fcoopmatNV<16, gl_ScopeSubgroup, UNIT_K, UNIT_N>
#define FragC fcoopmatNV<32, gl_ScopeSubgroup, UNIT_M, UNIT_N>
#define ZERO(C) C = FragC(0.0);
#define MUL(C, A, B) C = coopMatMulAddNV(A, B, C);
const float kLog2e = 1.44269504;
const float kUnseen = -1e30;  // the score of what is not visible: its products stay finite

#include "attend_blocks.glsl"

// Four columns of two neighbouring keys, by columns.
uvec4 pairs_of(uvec2 a, uvec2 b) {
    return uvec4((a.x & 0xffffu) | (b.x << 16), (a.x >> 16) | (b.x & 0xffff0000u), (a.y & 0xffffu) | (b.y << 16),
        (a.y >> 16) | (b.y & 0xffff0000u));
}

// An invocation fetches the same columns of keys that lie a fixed distance apart, so that one address serves them all.
#define FETCH_K(place) [[unroll]] for (uint i = 0u; i < NK; i++) \
        k_next[i] = fetch_key(row_of(place, k_key + i * (N / UNITS)), k_unit);
#define STORE_K [[unroll]] for (uint i = 0u; i < NK; i++) \
        k_s[(k_key + i * (N / UNITS)) * KS + k_unit] = halves_of(K_TYPE, k_next[i], k_unit);
// Values of two neighbouring keys: four columns where they are halves, else eight, so that there are fewer loads.
#define FETCH_V(place) [[unroll]] for (uint i = 0u; i < NV; i += V_STEP) { \
        const uint key = v_key + i / V_STEP * (2u * N / V_UNITS), first = row_of(place, key), \
            second = row_of(place, key + 1u); \
        if (V_TYPE == kKvF16) { \
            v_next[i] = uvec4(V_HALVES(first, v_unit), V_HALVES(second, v_unit)); \
        } else { \
            v_next[i] = fetch_value(first, v_unit); \
            v_next[i + V_STEP - 1u] = fetch_value(second, v_unit); \
        } }
#define STORE_V [[unroll]] for (uint i = 0u; i < NV; i += V_STEP) { \
        const uint to = (v_key / 2u + i / V_STEP * (N / V_UNITS)) * VS + v_unit * V_STEP; \
        if (V_TYPE == kKvF16) { \
            v_s[to] = pairs_of(v_next[i].xy, v_next[i].zw); \
        } else { \
            const uvec4 a = halves_of(V_TYPE, v_next[i], v_unit), \
                b = halves_of(V_TYPE, v_next[i + V_STEP - 1u], v_unit); \
            v_s[to] = pairs_of(a.xy, b.xy); \
            v_s[to + V_STEP - 1u] = pairs_of(a.zw, b.zw); \
        } }
#define LEFT(A, four) { const uvec4 u_ = four; \
    const f16vec2 p0_ = unpackFloat2x16(u_.x), p1_ = unpackFloat2x16(u_.y), p2_ = unpackFloat2x16(u_.z), \
        p3_ = unpackFloat2x16(u_.w); \
    A[0] = p0_.x; A[1] = p0_.y; A[2] = p1_.x; A[3] = p1_.y; A[4] = p2_.x; A[5] = p2_.y; A[6] = p3_.x; A[7] = p3_.y; }
#define RIGHT(B, w0, w1) { const f16vec2 p0_ = unpackFloat2x16(w0), p1_ = unpackFloat2x16(w1); \
    B[0] = p0_.x; B[1] = p0_.y; B[2] = p1_.x; B[3] = p1_.y; }

// Of a lane: its place, scores, weights and results.
uint lane, query_at, first_query;
FragC S[PIECES];
FragA P[PIECES / 2u];
FragC O[D_HEAD / 8u];
float top0, top1, sum0, sum1;

// Adds the products of 32 columns of the queries and the keys.
void score(uint b) {
    const uint g = lane >> 2, t = lane & 3u;
    FragA A0, A1;
    LEFT(A0, query[query_at].at[2u * b][lane])
    LEFT(A1, query[query_at].at[2u * b + 1u][lane])
    [[unroll]] for (uint j = 0u; j < PIECES; j++) {
        const uvec4 w = k_s[(8u * j + g) * KS + 4u * b + t];
        FragB B0, B1;
        RIGHT(B0, w.x, w.y)
        RIGHT(B1, w.z, w.w)
        MUL(S[j], A0, B0)
        MUL(S[j], A1, B1)
    }
}

// Adds 16 weighted values of 32 columns.
void weigh(uint k, uint c) {
    const uint g = lane >> 2, t = lane & 3u;
    const uvec4 lo = v_s[(8u * k + t) * VS + 8u * c + g], hi = v_s[(8u * k + 4u + t) * VS + 8u * c + g];
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        FragB B;
        RIGHT(B, lo[i], hi[i])
        MUL(O[4u * c + i], P[k], B)
    }
}

// The weights of the scores of a block, and everything before under the new maximum. masked: not every row sees all.
void soften(uint block, bool masked) {
    const uint t = lane & 3u;
    if (masked) {
        const uint per_kv = args.n_head / args.n_head_kv, last = step.n_row * per_kv - 1u;
        const uint row0 = step.position + min(first_query, last) / per_kv,
            row1 = step.position + min(first_query + 8u, last) / per_kv;
        [[unroll]] for (uint j = 0u; j < PIECES; j++) {
            const uint key = block + 8u * j + 2u * t;
            S[j][0] = visible(key, row0) ? S[j][0] : kUnseen;
            S[j][1] = visible(key + 1u, row0) ? S[j][1] : kUnseen;
            S[j][2] = visible(key, row1) ? S[j][2] : kUnseen;
            S[j][3] = visible(key + 1u, row1) ? S[j][3] : kUnseen;
        }
    }
    float highest0 = top0, highest1 = top1;
    [[unroll]] for (uint j = 0u; j < PIECES; j++) {
        highest0 = max(highest0, max(S[j][0], S[j][1]));
        highest1 = max(highest1, max(S[j][2], S[j][3]));
    }
    highest0 = max(highest0, subgroupShuffleXor(highest0, 1u));
    highest1 = max(highest1, subgroupShuffleXor(highest1, 1u));
    highest0 = max(highest0, subgroupShuffleXor(highest0, 2u));
    highest1 = max(highest1, subgroupShuffleXor(highest1, 2u));
    precise float below0 = (top0 - highest0) * kLog2e, below1 = (top1 - highest1) * kLog2e;
    const float alpha0 = top0 == highest0 ? 1.0 : exp2(below0), alpha1 = top1 == highest1 ? 1.0 : exp2(below1);
    // Weights times 2^15; a row that sees nothing here has base 0, so that the masked scores come out as 0.
    const float base0 = highest0 > kUnseen ? fma(-highest0, kLog2e, 15.0) : 0.0,
        base1 = highest1 > kUnseen ? fma(-highest1, kLog2e, 15.0) : 0.0;
    top0 = highest0;
    top1 = highest1;
    precise float add0 = 0.0, add1 = 0.0;
    [[unroll]] for (uint j = 0u; j < PIECES; j++) {
        const float e0 = exp2(fma(S[j][0], kLog2e, base0)), e1 = exp2(fma(S[j][1], kLog2e, base0)),
                    e2 = exp2(fma(S[j][2], kLog2e, base1)), e3 = exp2(fma(S[j][3], kLog2e, base1));
        precise float two0 = e0 + e1, two1 = e2 + e3;
        add0 = add0 + two0;
        add1 = add1 + two1;
        const f16vec2 h0 = f16vec2(vec2(e0, e1)), h1 = f16vec2(vec2(e2, e3));
        const uint i = 2u * (j & 1u);
        P[j / 2u][i] = h0.x;
        P[j / 2u][i + 1u] = h0.y;
        P[j / 2u][i + 4u] = h1.x;
        P[j / 2u][i + 5u] = h1.y;
    }
    sum0 = fma(sum0, alpha0, add0);
    sum1 = fma(sum1, alpha1, add1);
    if (subgroupAny(alpha0 != 1.0 || alpha1 != 1.0)) {
        [[unroll]] for (uint i = 0u; i < D_HEAD / 8u; i++) {
            O[i][0] *= alpha0;
            O[i][1] *= alpha0;
            O[i][2] *= alpha1;
            O[i][3] *= alpha1;
        }
    }
}

void main() {
    const uint per_kv = args.n_head / args.n_head_kv, n_query = step.n_row * per_kv;
    const Chunks seen = segments_seen();
    const uint n_segment = chunks_count(seen), head = gl_WorkGroupID.y;
    const uint at_once = round_queries(SPLIT != 0u ? n_segment : 1u), round_first = args.round * at_once;
    if (round_first >= n_query) return;
    const uint n_tile = (min(n_query - round_first, at_once) + TILE - 1u) / TILE;
    if (gl_WorkGroupID.x >= n_tile || (SPLIT != 0u && gl_WorkGroupID.z >= n_segment)) return;
    const uint tile = round_first / TILE + n_tile - 1u - gl_WorkGroupID.x;  // the longest first
    const uint me = gl_LocalInvocationIndex, l = me & 31u, sub = me >> 5, g = l >> 2, t = l & 3u;
    first_query = tile * TILE + sub * 16u + g;
    const uint first_row = step.position + tile * TILE / per_kv,
        last_row = step.position + (min(tile * TILE + TILE, n_query) - 1u) / per_kv;
    const uint oldest = oldest_key(first_row), full_from = oldest_key(last_row);
    const uint head_row = head * args.capacity;
    lane = l;
    query_at = head * args.part_stride / 16u + tile * (TILE / 16u) + sub;
    const uint k_key = me / UNITS, k_unit = me % UNITS, v_key = me / V_UNITS * 2u, v_unit = me % V_UNITS;
    uvec4 k_next[NK], v_next[NV];
    vec2 all0 = vec2(0.0), all1 = vec2(0.0);  // of the segments so far

// The scores of a block and the values of the one before, in turns.
#define STEP(b) { score(b); [[unroll]] for (uint i = 0u; i < PIECES / 2u; i++) \
                        weigh((b * PIECES / 2u + i) / BLOCKS, (b * PIECES / 2u + i) % BLOCKS); }

    const uint segment_first = SPLIT != 0u ? n_segment - 1u - gl_WorkGroupID.z : 0u,
        segment_end = SPLIT != 0u ? segment_first + 1u : n_segment;
    [[dont_unroll]] for (uint n = segment_first; n < segment_end; n++) {
        const uint segment = chunks_at(seen, n), end = min(segment_begin(segment + 1u), last_row + 1u);
        [[unroll]] for (uint i = 0u; i < D_HEAD / 8u; i++) ZERO(O[i])
        top0 = top1 = kUnseen;
        sum0 = sum1 = 0.0;
        uint block = FROM(segment_begin(segment));
        if (block < end) {
            uint next = FROM(block + KEYS);
            Place at_v = place_of(block, head_row);
            Place at_k = place_after(at_v, block, next, head_row);
            FETCH_K(at_v)
            barrier();
            STORE_K
            FETCH_V(at_v)
            if (next < end) FETCH_K(at_k)
            barrier();
            [[unroll]] for (uint j = 0u; j < PIECES; j++) ZERO(S[j])
            [[unroll]] for (uint b = 0u; b < BLOCKS; b++) score(b);
            soften(block, MASKED(block));
            barrier();
            STORE_V
            if (next < end) STORE_K
            barrier();
            // Shared are the values of `block`, whose weights are known, and the keys of `next`.
            [[dont_unroll]] while (next < end) {
                const uint after = FROM(next + KEYS);
                at_v = at_k;
                at_k = place_after(at_k, next, after, head_row);
                FETCH_V(at_v)
                FETCH_K(at_k)
                [[unroll]] for (uint j = 0u; j < PIECES; j++) ZERO(S[j])
                [[unroll]] for (uint b = 0u; b < BLOCKS; b++) STEP(b)
                barrier();
                STORE_V
                STORE_K
                soften(next, MASKED(next));
                barrier();
                next = after;
            }
            [[unroll]] for (uint i = 0u; i < PIECES / 2u * BLOCKS; i++) weigh(i / BLOCKS, i % BLOCKS);
        }

        precise float all_sum0 = sum0 + subgroupShuffleXor(sum0, 1u), all_sum1 = sum1 + subgroupShuffleXor(sum1, 1u);
        all_sum0 = all_sum0 + subgroupShuffleXor(all_sum0, 2u);
        all_sum1 = all_sum1 + subgroupShuffleXor(all_sum1, 2u);
        const uint at0 = ((SPLIT != 0u ? n * args.n_head_kv : 0u) + head) * at_once + first_query - round_first,
            at1 = at0 + 8u;
        const bool joins = SPLIT == 0u && n != 0u;
        const vec2 own0 = vec2(all_sum0 > 0.0 ? top0 : kMasked, all_sum0), own1 = vec2(all_sum1 > 0.0 ? top1 : kMasked,
            all_sum1);
        vec2 by0 = vec2(0.0), by1 = vec2(0.0);
        if (joins) {
            by0 = join_stat(all0, own0);
            by1 = join_stat(all1, own1);
        } else {
            all0 = own0;
            all1 = own1;
        }
        if (t == 0u) {
            stat[at0] = all0;
            stat[at1] = all1;
        }
        [[unroll]] for (uint c = 0u; c < BLOCKS; c++) {
            [[unroll]] for (uint e = 0u; e < 2u; e++) {
                const uint i0 = 4u * c, i1 = i0 + 1u, i2 = i0 + 2u, i3 = i0 + 3u;
                vec4 x0 = vec4(O[i0][e], O[i1][e], O[i2][e], O[i3][e]),
                    x1 = vec4(O[i0][2u + e], O[i1][2u + e], O[i2][2u + e], O[i3][2u + e]);
                const uint from0 = at0 * QUADS + 8u * c + 2u * t + e, from1 = at1 * QUADS + 8u * c + 2u * t + e;
                if (joins) {
                    const vec4 y0 = part[from0], y1 = part[from1];
                    [[unroll]] for (uint i = 0u; i < 4u; i++) {
                        x0[i] = join_value(y0[i], x0[i], by0);
                        x1[i] = join_value(y1[i], x1[i], by1);
                    }
                }
                part[from0] = x0;
                part[from1] = x1;
            }
        }
    }
}

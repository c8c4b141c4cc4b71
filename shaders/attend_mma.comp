#version 450
// attend_mma.comp: attend_step.comp on 16x8x16 matrix units, for f16 caches and heads of 256.
//
// Formula, buffers, push constants and CPU counterpart as in attend_step.comp, but
//         10 count  u32 [n_head_kv, x, count_stride]: finished sets, then chunks of each set; 0 before and after
// Spec    D_HEAD 256. TILES: of 8 queries, 1 or 2. APPEND, PER_KV as in attend_step.comp. WINDOWED: 0 if args.window
//         is 0. FLAGS: args.flags. CHAINED: chain.glsl, with the counters in buffer 0. UNIT_M, UNIT_N, UNIT_K 16, 8, 16
// Grid    x: at least ceil(n_row * PER_KV / (8 TILES)), y: kv head, z: at least the chunks that the pass sees (surplus
//         workgroups return at once). Group 256: 8 full subgroups of 32
// Shared  13 KiB a tile. A core changes the split of its memory into cache and shared memory only while it is idle.
//         Chained to a product it keeps the 32 KiB of the product's, and two workgroups must fit into these
// Cost    as attend_step.comp. Memory bandwidth bounds it up to 8 TILES queries; further ones read what those before
//         left in the device's cache. With 128 registers or less two workgroups share a core. A step of few rows waits
//         for instructions, so what a layer's shape decides is a constant
// Numbers queries (times 16) and weights (times 4096) enter as two halves each, the second holding the rounding error
//         of the first: 2^-22 relative. Sums are float.
// Order   a block of 128 keys: subgroup s computes the scores of keys 16 s .. 16 s + 15 (rows of its matrix), then
//         columns 32 s .. 32 s + 31 of the values of all keys. A query is a column of a matrix: the other columns do
//         not affect it. Chunks are joined in sets of 16 by position, then the sets. What a row does not see changes
//         nothing, so a row's bits depend neither on n_row nor on TILES.
// Source  as attend_step.comp; two-term halves as in Markidis 2018
// Needs   matrices whose elements lie as matrix_layout_fits() in tune.h requires; K and V zeroed when the context
//         opens.
// variant: attend_mma @khr
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_NV_cooperative_matrix : require
#extension GL_EXT_spirv_intrinsics : require
// halves: to nearest even
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4467], 4462, 16);
#include "step_common.glsl"

layout(constant_id = 1) const uint D_HEAD = 256;
layout(constant_id = 2) const uint TILES = 1;
layout(constant_id = 3) const uint APPEND = 1;
layout(constant_id = 4) const uint WINDOWED_ = 1;
layout(constant_id = 5) const uint FLAGS_ = 0;
layout(constant_id = 6) const uint PER_KV = 1;
layout(constant_id = 7) const uint UNIT_M = 16u;
layout(constant_id = 8) const uint UNIT_N = 8u;
layout(constant_id = 9) const uint UNIT_K = 16u;
layout(constant_id = 10) const uint CHAINED = 0u;
#define WINDOWED WINDOWED_
#define FLAGS FLAGS_
const uint TILE = 8u, ROOM = TILE * TILES, GROUP = 256u, K_TYPE = 0u, V_TYPE = 0u;
layout(local_size_x_id = 0) in;
#define ACTS vec4
#define K_UNIT uvec4
#define CACHE coherent
#define READ readonly coherent   // what the stage before may have written: chain.glsl
#define APPENDS
#include "attend_prologue.glsl"
layout(set = 0, binding = 7, std430) coherent buffer Part { vec4 part[]; };
layout(set = 0, binding = 8, std430) coherent buffer Stat { vec2 stat[]; };
layout(set = 0, binding = 9, std430) writeonly buffer Out { vec4 result[]; };
layout(set = 0, binding = 10, std430) coherent buffer Count { uint count[]; };
layout(set = 0, binding = 0, std430) coherent buffer Words { uint words[]; };
#define CHAIN_WORDS words
#include "chain.glsl"
const uint LANE_GROUPS = GROUP / 8u, QUADS = 64u, STREAMS = GROUP / QUADS, AT_ONCE = STREAMS;
const uint QX = 33u, PX = 17u;      // units of 8 halves from query to query: queries, weights

// First the queries as halves, in the order of the matrices, and behind them their rounding errors; at the end the
// results. From WEIGHTS on first AT_ONCE rotated keys or queries, then the weights of a block, laid out as the queries.
const uint WEIGHTS = 2u * ROOM * QX;
shared uvec4 bits_s[WEIGHTS + 2u * ROOM * PX];
#define Q_S(i) bits_s[WEIGHTS + (i)]
#define Q_BITS(x) floatBitsToUint(x)
#define Q_FLOAT(x) uintBitsToFloat(x)
shared vec2 highest_s[ROOM * 4u];       // by tile and subgroup: maxima, then sums of two queries
shared float sums_s[LANE_GROUPS];
shared vec2 stat_s[ROOM];
shared uint ends_s[4];
#include "attend_common.glsl"
#define K_WORD(i) k_cache[(i) >> 2][(i) & 3u]
#define K_PUT(row, quad, w) k_cache[(row) * (D_HEAD / 8u) + (quad) / 2u][((quad) & 1u) * 2u] = (w).x, k_cache[(row) * \
    (D_HEAD / 8u) + (quad) / 2u][((quad) & 1u) * 2u + 1u] = (w).y
#include "kv_store.glsl"

#define FragA fcoopmatNV<16, gl_ScopeSubgroup, UNIT_M, UNIT_K>
#define FragB fcoopmatNV<16, gl_ScopeSubgroup, UNIT_K, UNIT_N>
#define FragC fcoopmatNV<32, gl_ScopeSubgroup, UNIT_M, UNIT_N>
// A: this lane's columns of row g (a0, a1) and of row g + 8 (a2, a3).
#define ROWS(A, a0, a1, a2, a3) FragA A; { \
    const f16vec2 p0_ = unpackFloat2x16(a0), p1_ = unpackFloat2x16(a1), p2_ = unpackFloat2x16(a2), p3_ = \
    unpackFloat2x16(a3); \
    A[0] = p0_.x; A[1] = p0_.y; A[2] = p1_.x; A[3] = p1_.y; A[4] = p2_.x; A[5] = p2_.y; A[6] = p3_.x; A[7] = p3_.y; }
// C += A B, B being two halves each, of 16 rows at `at` of `from`, the second ROOM columns further on.
#define MMA_TILE(C, A, from, at, stride) { FragB B_; \
    coopMatLoadNV(B_, from, at, stride, true); \
    C = coopMatMulAddNV(A, B_, C); \
    coopMatLoadNV(B_, from, (at) + ROOM * (stride), stride, true); \
    C = coopMatMulAddNV(A, B_, C); }
// Likewise for each tile: C is the first one's, D the second one's.
#define MMA(C, D, A, from, at, stride) { MMA_TILE(C, A, from, at, stride) \
    if (TILES > 1u) MMA_TILE(D, A, from, (at) + TILE * (stride), stride) }

// The slot of key k of a block.
#define SLOT(k) (slot0 + (k) - (WINDOWED != 0u && (k) >= wrap ? args.ring : 0u))
// Columns 64 i .. 64 i + 63 of keys g and g + 8: a lane has 8 t .. 8 t + 7 of each 32, which stand for columns 2t,
// 2t + 1, 2t + 8, 2t + 9 of two matrices.
#define KEYS(k, i) k[0] = k_cache[row_a + 8u * (i)], k[1] = k_cache[row_b + 8u * (i)], k[2] = k_cache[row_a + 8u * \
    (i) + 4u], k[3] = k_cache[row_b + 8u * (i) + 4u];
#define SCORES(k, i) { ROWS(A0, k[0].x, k[0].y, k[1].x, k[1].y) MMA(S, T, A0, bits_s, 8u * (i), QX) \
                       ROWS(A1, k[0].z, k[0].w, k[1].z, k[1].w) MMA(S, T, A1, bits_s, 8u * (i) + 2u, QX) \
                       ROWS(A2, k[2].x, k[2].y, k[3].x, k[3].y) MMA(S, T, A2, bits_s, 8u * (i) + 4u, QX) \
                       ROWS(A3, k[2].z, k[2].w, k[3].z, k[3].w) MMA(S, T, A3, bits_s, 8u * (i) + 6u, QX) }
// Four columns of the values of keys 2t, 2t + 1, 2t + 8, 2t + 9 of sixteen, twice.
#define VALUE(v, j, k) v[j] = v_cache[SLOT(k) * (D_HEAD / 4u) + 8u * sub + g];
#define VALUES(v, i) { const uint at = 32u * (i) + 2u * t; VALUE(v, 0, at) VALUE(v, 1, at + 1u) VALUE(v, 2, at + 8u) \
    VALUE(v, 3, at + 9u) \
                       VALUE(v, 4, at + 16u) VALUE(v, 5, at + 17u) VALUE(v, 6, at + 24u) VALUE(v, 7, at + 25u) }
#define LOW(a, b) (((a) & 0xffffu) | ((b) << 16))
#define HIGH(a, b) (((a) >> 16) | ((b) & 0xffff0000u))
#define SUM(O, P, v, j, c, at) { ROWS(A_, LOW(v[j].c, v[j + 1].c), LOW(v[j + 2].c, v[j + 3].c), HIGH(v[j].c, v[j + \
    1].c), HIGH(v[j + 2].c, v[j + 3].c)) MMA(O, P, A_, bits_s, WEIGHTS + (at), PX) }

// Leaves the results of the tile that begins at query `from` in shared memory.
#define KEEP(from, all, O0, O1) { if (g == 0u) highest_s[4u * ((from) + sub) + t] = all; \
    const uint at_ = ((from) + 2u * t) * QUADS + 8u * sub + g; \
    bits_s[at_] = Q_BITS(vec4(O0[0], O0[2], O1[0], O1[2]) * (1.0 / 4096.0)); \
    bits_s[at_ + QUADS] = Q_BITS(vec4(O0[1], O0[3], O1[1], O1[3]) * (1.0 / 4096.0)); }

// A number as two halves, the second what the first left: of the rounded first one, which a driver was seen to take for
// the unrounded number unless it gets bits that it cannot see through. n_rot is even.
uint two_halves(float x) {
    const uint hi = packFloat2x16(f16vec2(x, 0.0)) ^ (args.n_rot & 1u);
    precise float rest = x - unpackHalf2x16(hi).x;
    return hi | packFloat2x16(f16vec2(0.0, rest));
}

float weight(float top, float highest) {  // of what was summed under the maximum `top`
    precise float e = exp(top - highest);
    return top > kMasked ? (top == highest ? 1.0 : e) : 0.0;
}

// Sets of 16 chunks: the chunks before chunk c that this pass sees, the sets it sees, and the number of one among them.
uint seen_before(Chunks s, uint c) { return min(c, s.n_sink) + clamp(c, s.first, s.end) - s.first; }
uint sets_sink(Chunks s) { return (s.n_sink + 15u) / 16u; }
uint sets_count(Chunks s) { return sets_sink(s) + (s.end + 15u) / 16u - min(max(s.first / 16u, sets_sink(s)),
    (s.end + 15u) / 16u); }
uint set_number(Chunks s, uint set) { return set < sets_sink(s) ? set : set - max(s.first / 16u, sets_sink(s))
    + sets_sink(s); }

// The scores of a block for queries 2t and 2t + 1 of a tile (0 or 1), masked, with the maxima of this subgroup's keys
// left in highest_s.
vec4 block_scores(vec4 s, uint key_a, uint key_b, uint end, uint first_query, uint tile) {
    const uint me = gl_LocalInvocationIndex, sub = me >> 5, t = me & 3u, query = first_query + TILE * tile + 2u * t;
    const uint row0 = step.position + query / PER_KV, row1 = step.position + (query + 1u) / PER_KV;
    s *= 0.0625;
    s.x = key_a < end && visible(key_a, row0) ? s.x : kMasked;
    s.y = key_a < end && visible(key_a, row1) ? s.y : kMasked;
    s.z = key_b < end && visible(key_b, row0) ? s.z : kMasked;
    s.w = key_b < end && visible(key_b, row1) ? s.w : kMasked;
    vec2 highest = max(s.xy, s.zw);
    highest = max(highest, subgroupShuffleXor(highest, 4u));
    highest = max(highest, subgroupShuffleXor(highest, 8u));
    highest = max(highest, subgroupShuffleXor(highest, 16u));
    if ((me & 31u) < 4u) highest_s[(tile * 8u + sub) * 4u + t] = highest;
    return s;
}

// The weights of these scores, as halves in bits_s. Returns the factor of what was summed before.
vec2 block_weights(vec4 s, uint tile, inout vec2 top, inout vec2 sum) {
    const uint me = gl_LocalInvocationIndex, sub = me >> 5, g = (me & 31u) >> 2, t = me & 3u;
    vec2 highest = top;
    [[unroll]] for (uint i = 0u; i < 8u; i++) highest = max(highest, highest_s[(tile * 8u + i) * 4u + t]);
    precise vec4 e = exp(s - highest.xyxy);
    e = mix(vec4(0.0), e, greaterThan(s, vec4(kMasked)));
    precise vec2 alpha = exp(top - highest);
    alpha = mix(alpha, vec2(1.0), equal(top, highest));
    sum = fma(sum, alpha, e.xy + e.zw);
    top = highest;
    // Neighbouring keys are in neighbouring lanes (4 apart): they exchange, so that each writes whole words.
    const bool odd = (g & 1u) != 0u;
    const uint w0 = two_halves(e.x * 4096.0), w1 = two_halves(e.y * 4096.0), w2 = two_halves(e.z * 4096.0),
        w3 = two_halves(e.w * 4096.0);
    const uint other_a = subgroupShuffleXor(odd ? w0 : w1, 4u), other_b = subgroupShuffleXor(odd ? w2 : w3, 4u);
    const uint a0 = odd ? other_a : w0, a1 = odd ? w1 : other_a, b0 = odd ? other_b : w2, b1 = odd ? w3 : other_b;
    const uint to = WEIGHTS + (TILE * tile + 2u * t + (odd ? 1u : 0u)) * PX + 2u * sub, c = g >> 1;
    bits_s[to][c] = LOW(a0, a1);
    bits_s[to + 1u][c] = LOW(b0, b1);
    bits_s[to + ROOM * PX][c] = HIGH(a0, a1);
    bits_s[to + ROOM * PX + 1u][c] = HIGH(b0, b1);
    return alpha;
}

vec2 lanes_sum(vec2 x) {  // over the lanes with the same queries
    precise vec2 all = x;
    all = all + subgroupShuffleXor(all, 4u);
    all = all + subgroupShuffleXor(all, 8u);
    all = all + subgroupShuffleXor(all, 16u);
    return all;
}

void main() {
    const uint n_row = step.n_row;
    if (n_row == 0u) {
        chain_skip();
        return;
    }
    const uint position = step.position;
    const Chunks seen = chunks_seen(position, n_row, WINDOW, SINKS, step.first_key);
    const uint n_chunk = chunks_count(seen), n_query = n_row * PER_KV, first_query = gl_WorkGroupID.x * ROOM;
    if (gl_WorkGroupID.z >= n_chunk || first_query >= n_query) {
        chain_skip();
        return;
    }
    const uint x = n_chunk - 1u - gl_WorkGroupID.z;  // the longest chunks first
    const uint chunk = chunks_at(seen, x), head = gl_WorkGroupID.y;
    const uint me = gl_LocalInvocationIndex, l = me & 31u, sub = me >> 5, g = l >> 2, t = l & 3u;
    const uint quad = me % QUADS, stream = me / QUADS;
    const uint begin = chunk_begin(chunk, WINDOW);
    const uint end = min(chunk_begin(chunk + 1u, WINDOW), position + n_row);
    const uint q_width = (FLAGS & kAttendInterleaved) != 0u ? 2u * D_HEAD : D_HEAD;
    const uint oldest = oldest_key(position);
    const uint head_row = head * args.capacity;

    chain_wait();
    // This pass's rows that lie in this chunk, whose keys and values join the caches, then the queries.
    const uint first = max(begin, position) - position, last = end > position ? end - position : 0u;
    const uint n_new = APPEND != 0u && last > first ? last - first : 0u, key_turns = (n_new + AT_ONCE - 1u) / AT_ONCE;
    [[dont_unroll]] for (uint turn = 0u; turn < key_turns + ROOM / AT_ONCE; turn++) {
        const bool is_key = turn < key_turns;
        const uint nth = (is_key ? turn : turn - key_turns) * AT_ONCE + stream, query = first_query + nth;
        const uint i = is_key ? first + nth : query / PER_KV;
        const bool real = is_key ? nth < n_new : query < n_query;
        const uint at = is_key ? args.k_offset + i * args.k_stride + head * D_HEAD
            : args.q_offset + i * args.q_stride + (head * PER_KV + query % PER_KV) * q_width;
        const vec4 a = real ? acts[at / 4u + quad] : vec4(0.0);
        vec4 value = vec4(0.0);
        if (is_key && real) value = acts[(args.v_offset + i * args.v_stride + head * D_HEAD) / 4u + quad];
        norm_rotate(a, position + i, quad, stream, stream, is_key, is_key ? 1.0 : args.scale);
        const vec4 y = Q_FLOAT(Q_S(stream * QUADS + place(quad)));
        if (is_key) {
            kv_store(real, head_row + slot_of(position + i), quad, y, value);
            memoryBarrierBuffer();
            barrier();
        } else {
            // Columns 4 quad .. + 3 stand where KEY() wants them.
            const uint ab = two_halves(y.x * 16.0), cd = two_halves(y.y * 16.0), ef = two_halves(y.z * 16.0),
                gh = two_halves(y.w * 16.0);
            const uint word = 16u * (quad / 8u) + 8u * (quad & 1u) + (quad & 7u) / 2u, to = nth * QX + word / 4u,
                c = word & 3u;
            bits_s[to][c] = LOW(ab, cd);
            bits_s[to + 1u][c] = LOW(ef, gh);
            bits_s[to + ROOM * QX][c] = HIGH(ab, cd);
            bits_s[to + ROOM * QX + 1u][c] = HIGH(ef, gh);
        }
    }
    barrier();

    // Invocation (g, t) of a subgroup has queries 2t and 2t + 1 of each tile and of keys g and g + 8, later of columns
    // 4 g .. 4 g + 3.
    vec2 top = vec2(kMasked), sum = vec2(0.0), top2 = top, sum2 = sum;
    FragC O0 = FragC(0.0), O1 = FragC(0.0), P0 = FragC(0.0), P1 = FragC(0.0);
    [[dont_unroll]] for (uint block = begin; block < end; block += kChunk) {
        if (block + kChunk <= oldest && block >= SINKS) continue;
        // Key i of the block stands in slot0 + i, less the ring's length from `wrap` on. Without a window all are in
        // place, and so is a block that begins among the sinks: its ring part is in its first lap or not visible.
        uint slot0 = head_row + block, wrap = kChunk;
        if (WINDOWED != 0u && block >= args.sinks) {
            const uint ring_at = (block - args.sinks) % args.ring;
            slot0 = head_row + args.sinks + ring_at;
            wrap = args.ring - ring_at;
        }
        uint key_a = 16u * sub + g, key_b = key_a + 8u;
        const uint row_a = SLOT(key_a) * (D_HEAD / 8u) + t, row_b = SLOT(key_b) * (D_HEAD / 8u) + t;
        uvec4 k[4], k1[4], k2[4];   // two further ones are on their way
        KEYS(k1, 0u)
        KEYS(k2, 1u)
        FragC S = FragC(0.0), T = FragC(0.0);
        [[dont_unroll]] for (uint i = 0u; i < 4u; i++) {
            k[0] = k1[0], k[1] = k1[1], k[2] = k1[2], k[3] = k1[3];
            k1[0] = k2[0], k1[1] = k2[1], k1[2] = k2[2], k1[3] = k2[3];
            if (i < 2u) KEYS(k2, i + 2u)
            SCORES(k, i)
        }
        uvec2 v[8], v1[8], v2[8];
        VALUES(v1, 0u)  // on their way during the softmax
        VALUES(v2, 1u)
        key_a += block, key_b += block;
        const vec4 s = block_scores(vec4(S[0], S[1], S[2], S[3]), key_a, key_b, end, first_query, 0u);
        vec4 s2 = vec4(kMasked);
        if (TILES > 1u) s2 = block_scores(vec4(T[0], T[1], T[2], T[3]), key_a, key_b, end, first_query, 1u);
        barrier();
        const vec2 alpha = block_weights(s, 0u, top, sum);
        vec2 alpha2 = vec2(1.0);
        if (TILES > 1u) alpha2 = block_weights(s2, 1u, top2, sum2);
        barrier();
        O0[0] *= alpha.x; O0[1] *= alpha.y; O0[2] *= alpha.x; O0[3] *= alpha.y;
        O1[0] *= alpha.x; O1[1] *= alpha.y; O1[2] *= alpha.x; O1[3] *= alpha.y;
        P0[0] *= alpha2.x; P0[1] *= alpha2.y; P0[2] *= alpha2.x; P0[3] *= alpha2.y;
        P1[0] *= alpha2.x; P1[1] *= alpha2.y; P1[2] *= alpha2.x; P1[3] *= alpha2.y;
        [[dont_unroll]] for (uint i = 0u; i < 4u; i++) {
            v[0] = v1[0], v[1] = v1[1], v[2] = v1[2], v[3] = v1[3], v[4] = v1[4], v[5] = v1[5], v[6] = v1[6],
                v[7] = v1[7];
            v1[0] = v2[0], v1[1] = v2[1], v1[2] = v2[2], v1[3] = v2[3], v1[4] = v2[4], v1[5] = v2[5], v1[6] = v2[6],
                v1[7] = v2[7];
            if (i < 2u) VALUES(v2, i + 2u)
            SUM(O0, P0, v, 0, x, 4u * i)
            SUM(O1, P1, v, 0, y, 4u * i)
            SUM(O0, P0, v, 4, x, 4u * i + 2u)
            SUM(O1, P1, v, 4, y, 4u * i + 2u)
        }
    }

    // All of this chunk: sums over lanes, then over subgroups in order.
    const vec2 all = lanes_sum(sum), all2 = lanes_sum(sum2);
    barrier();
    KEEP(0u, all, O0, O1)
    if (TILES > 1u) KEEP(TILE, all2, P0, P1)
    barrier();
    if (g < TILES && sub == 0u) {
        precise vec2 both = vec2(0.0);
        [[dont_unroll]] for (uint k = 0u; k < 8u; k++) both = both + highest_s[(g * 8u + k) * 4u + t];
        const vec2 highest = g == 0u ? top : top2;
        stat_s[2u * me] = vec2(highest.x, both.x);
        stat_s[2u * me + 1u] = vec2(highest.y, both.y);
    }
    barrier();

    // Each stream has query rows of its own from here on. Chunks are joined set by set, then the sets, each by the
    // workgroup that comes last. Results of sets stand behind those of the chunks.
    const uint n_real = min(n_query - first_query, ROOM);
    const uint set = chunk / 16u, number = set_number(seen, set), first_of_set = seen_before(seen, 16u * set),
        n_set = sets_count(seen);
    uint mine = x, from = first_of_set, n_here = seen_before(seen, 16u * set + 16u) - first_of_set;
    [[dont_unroll]] for (uint level = 0u; level < 2u; level++, mine = n_chunk + number, from = n_chunk,
        n_here = n_set) {
        if (n_here == 1u) continue;
        [[dont_unroll]] for (uint r = stream; r < n_real; r += STREAMS) {
            const uint query = first_query + r, to = mine * args.part_stride + (query / PER_KV)
                * args.n_head + head * PER_KV + query % PER_KV;
            part[to * QUADS + quad] = Q_FLOAT(bits_s[r * QUADS + quad]);
            if (quad == 0u) stat[to] = stat_s[r];
        }
        memoryBarrierBuffer();
        barrier();
        if (me == 0u) {
            const uint at = (head * gl_NumWorkGroups.x + gl_WorkGroupID.x)
                * args.count_stride + (level == 0u ? 1u + number : 0u);
            const bool ends = atomicAdd(count[at], 1u) + 1u == n_here;
            if (ends) count[at] = 0u;
            ends_s[0] = ends ? 1u : 0u;
        }
        barrier();
        if (ends_s[0] == 0u) {
            chain_done();
            return;
        }
        memoryBarrierBuffer();
        [[dont_unroll]] for (uint r = stream; r < n_real; r += STREAMS) {
            const uint query = first_query + r, at = (query / PER_KV)
                * args.n_head + head * PER_KV + query % PER_KV;
            // A lane has the sums of one chunk in eight, and columns of all.
            const uint own = quad & 7u;
            float highest = kMasked;
            [[dont_unroll]] for (uint c = own; c < n_here; c += 8u)
                highest = max(highest, stat[(from + c) * args.part_stride + at].x);
            highest = group_max(highest);
            precise float total = 0.0;
            precise vec4 y = vec4(0.0);
            [[dont_unroll]] for (uint c = 0u; c < n_here; c += 8u) {
                vec4 value[8];
                [[unroll]] for (uint u = 0u; u < 8u; u++)
                    value[u] = part[((from + min(c + u, n_here - 1u)) * args.part_stride + at) * QUADS + quad];
                const vec2 s = stat[(from + min(c + own, n_here - 1u)) * args.part_stride + at];
                const float e = c + own < n_here ? weight(s.x, highest) : 0.0;
                [[unroll]] for (uint u = 0u; u < 8u; u++) {
                    const float w = subgroupShuffle(e, (l & 24u) + u);
                    total = fma(w, subgroupShuffle(s.y, (l & 24u) + u), total);
                    y = fma(vec4(w), value[u], y);
                }
            }
            bits_s[r * QUADS + quad] = Q_BITS(y);
            if (quad == 0u) stat_s[r] = vec2(highest, total);
        }
        barrier();
    }
    [[dont_unroll]] for (uint r = stream; r < n_real; r += STREAMS) {
        const uint query = first_query + r;
        const uint row = query / PER_KV, h = head * PER_KV + query % PER_KV;
        vec4 gate = vec4(0.0);
        const bool inter = (FLAGS & kAttendInterleaved) != 0u, per_head = (FLAGS & kAttendPerHead) != 0u;
        if (inter) gate = acts[(args.q_offset + row * args.q_stride + h * 2u * D_HEAD + D_HEAD) / 4u + quad];
        const uint gate_at = args.gate_offset + row * args.gate_stride + h;
        if (per_head) gate = vec4(acts[gate_at >> 2][gate_at & 3u]);
        vec4 y = Q_FLOAT(bits_s[r * QUADS + quad]) / stat_s[r].y;
        if (inter || per_head) {
            [[dont_unroll]] for (uint i = 0u; i < 4u; i++) {
                precise float z = y.x * sigmoid(gate.x);
                y = vec4(y.yzw, z);
                gate = gate.yzwx;
            }
        }
        result[(args.out_offset + row * args.out_stride + h * D_HEAD) / 4u + quad] = y;
    }
    chain_done();
}

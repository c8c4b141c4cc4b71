#version 450
// attend_rows.comp: attention of a committed pass (prefill) without matrix units: 64 queries of one kv head against the
// keys of each segment that they see, in tiles with an online softmax. Runs after kv_append with QUERIES kQueriesFloat
// and before attend_join, which divides and applies the gate. Its bits need not match attend_step's.
//
// Formula as attend_step.comp
// Buffers 0 step   StepState                                            read
//         1 query  f32 [n_head_kv, part_stride / 64, D_HEAD, 64]        read
//         2 k, 3 v see kv_formats.glsl                                  read
//         4 part, 5 stat  see attend_segments.glsl                      written; SPLIT 0: and read
// Push    AttendArgs; part_stride: a multiple of 64
// Spec    KEYS 32 or 64: keys per tile; 64 is faster. K_TYPE, V_TYPE kKv... SPLIT 1: each segment has a workgroup of
//         its own and leaves a partial; 0: one workgroup joins all as attend_join would. Each variant has its D_HEAD:
//         an invocation keeps D_HEAD / 4 sums in registers and no driver may index them.
// Grid    x: tiles of 64 queries, those of the first round at most; y: kv head; z: SPLIT 1: segments. Group 256
// Shared  12.6 KiB with KEYS 32, 18.7 with 64
// Cost    n_row * n_key * n_head * D_HEAD * 4 flops: float arithmetic bounds it
// Order   keys in tiles of KEYS, in order; every segment begins with nothing. Independent of n_row and SPLIT
// Source  FlashAttention (Dao 2022)
// CPU     src/machine/cpu, attend
// variant: attend_rows_256 -DHEAD=256
// variant: attend_rows_128 -DHEAD=128
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"

layout(local_size_x_id = 0) in;
const uint D_HEAD = HEAD;
layout(constant_id = 1) const uint KEYS = 32;
layout(constant_id = 2) const uint K_TYPE = 0;
layout(constant_id = 3) const uint V_TYPE = 0;
layout(constant_id = 4) const uint SPLIT = 0;
layout(push_constant) uniform Push { AttendArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Query { vec4 query[]; };
layout(set = 0, binding = 2, std430) readonly buffer K { uvec2 k_cache[]; };
layout(set = 0, binding = 3, std430) readonly buffer V { uvec2 v_cache[]; };
layout(set = 0, binding = 4, std430) buffer Part { vec4 part[]; };
layout(set = 0, binding = 5, std430) buffer Stat { vec2 stat[]; };
#include "attend_visible.glsl"
#include "attend_segments.glsl"

const uint SLICE = 32u;            // values of d_head per round of the first product
const uint KEYS_EACH = KEYS / 16u; // neighbouring keys per invocation there: 2 or 4
const uint PIECES = KEYS / 32u;    // 8-byte pieces of keys an invocation stages per slice
const uint QUADS = D_HEAD / 128u;       // 4-value columns per invocation in the second product
const uint STRIDE = 18u;           // vec4 per key of the score tile: 64 queries and a skew
const uint STAGED = SLICE * 16u + SLICE * KEYS / 4u, SCORES = KEYS * STRIDE;
const uint SHARED = STAGED > SCORES ? STAGED : SCORES;

shared vec4 tile_s[SHARED];        // query slice [SLICE][16], key slice [SLICE][KEYS / 2] pairs; then scores
shared vec4 alpha_s[16];           // factors of each query's values so far
shared vec4 beta_s[16];            // at the end of a segment: of that segment's values

#include "kv_formats.glsl"

void main() {
    const uint per_kv = args.n_head / args.n_head_kv, n_query = step.n_row * per_kv;
    const Chunks seen = segments_seen();
    const uint n_segment = chunks_count(seen), g = gl_WorkGroupID.y, t = gl_LocalInvocationIndex;
    const uint at_once = round_queries(SPLIT != 0u ? n_segment : 1u), round_first = args.round * at_once;
    if (round_first >= n_query) return;
    const uint n_tile = (min(n_query - round_first, at_once) + 63u) / 64u;
    if (gl_WorkGroupID.x >= n_tile || (SPLIT != 0u && gl_WorkGroupID.z >= n_segment)) return;
    const uint tile = round_first / 64u + n_tile - 1u - gl_WorkGroupID.x;  // the longest first
    const uint first_row = step.position + tile * 64u / per_kv;
    const uint last_row = step.position + (min(tile * 64u + 64u, n_query) - 1u) / per_kv;
    const uint oldest = oldest_key(first_row);
    const uint head_row = g * args.capacity;
    const uint query_at = (g * args.part_stride / 64u + tile) * D_HEAD * 16u;

    const uint tq = ((t >> 5) & 1u) * 8u + ((t >> 3) & 3u) + ((t >> 6) & 1u) * 4u;  // quad of queries, 0 .. 15
    const uint tk = (t & 7u) + (t >> 7) * 8u;                                       // 0 .. 15: which keys
    const uint warp = t >> 5, column = t & 31u;  // second product: 8 queries, columns 4 (column + 32 i)
    const uint sq = t >> 2, fourth = t & 3u;     // softmax: query, every fourth key
    const uint my_row = step.position + min(tile * 64u + sq, n_query - 1u) / per_kv;

    vec2 all = vec2(0.0);   // maximum and sum of the segments so far
    const uint segment_first = SPLIT != 0u ? n_segment - 1u - gl_WorkGroupID.z : 0u,
        segment_end = SPLIT != 0u ? segment_first + 1u : n_segment;
    [[dont_unroll]] for (uint n = segment_first; n < segment_end; n++) {
        const uint segment = chunks_at(seen, n), end = min(segment_begin(segment + 1u), last_row + 1u);
        vec4 o[8][QUADS];
        [[unroll]] for (uint i = 0u; i < 8u; i++)
            [[unroll]] for (uint j = 0u; j < QUADS; j++) o[i][j] = vec4(0.0);
        float top = kMasked, sum = 0.0;

        for (uint key0 = segment_begin(segment); key0 < end; key0 += KEYS) {
            if (key0 + KEYS <= oldest && key0 >= args.sinks) {
                key0 = (oldest / KEYS) * KEYS - KEYS;  // the loop adds KEYS
                continue;
            }
            vec4 s[4];  // scores of four queries with one key
            [[unroll]] for (uint i = 0u; i < 4u; i++) s[i] = vec4(0.0);
            const uint load_key = t % KEYS, load_piece = t / KEYS;
            const uint key_row = head_row + slot_of(min(key0 + load_key, last_row));
            // A slice is fetched while the one before it is worked on.
            vec4 next_q0 = query[query_at + t], next_q1 = query[query_at + 256u + t];
            uvec2 next_k[PIECES];
            [[unroll]] for (uint i = 0u; i < PIECES; i++) next_k[i] = k_fetch(key_row, load_piece + i * (256u / KEYS));
            for (uint d0 = 0u; d0 < D_HEAD; d0 += SLICE) {
                barrier();
                tile_s[t] = next_q0;
                tile_s[t + 256u] = next_q1;
                [[unroll]] for (uint i = 0u; i < PIECES; i++) {
                    const vec4 x = kv_values(K_TYPE, next_k[i], d0 / 4u + load_piece + i * (256u / KEYS));
                    [[unroll]] for (uint e = 0u; e < 4u; e++) {
                        const uint at = ((load_piece + i * (256u / KEYS)) * 4u + e) * KEYS + load_key;
                        tile_s[SLICE * 16u + at / 4u][at & 3u] = x[e];
                    }
                }
                barrier();
                const uint d1 = min(d0 + SLICE, D_HEAD - SLICE);
                next_q0 = query[query_at + d1 * 16u + t];
                next_q1 = query[query_at + d1 * 16u + 256u + t];
                [[unroll]] for (uint i = 0u; i < PIECES; i++)
                    next_k[i] = k_fetch(key_row, d1 / 4u + load_piece + i * (256u / KEYS));
                [[dont_unroll]] for (uint d8 = 0u; d8 < SLICE; d8 += 8u)
                [[unroll]] for (uint i = 0u; i < 8u; i++) {
                    const uint d = d8 + i;
                    const vec4 q = tile_s[d * 16u + tq];
                    const uint at = SLICE * 16u + (d * KEYS + tk * KEYS_EACH) / 4u;
                    if (KEYS_EACH == 4u) {
                        const vec4 k = tile_s[at];
                        s[0] = fma(q, vec4(k.x), s[0]);
                        s[1] = fma(q, vec4(k.y), s[1]);
                        s[2] = fma(q, vec4(k.z), s[2]);
                        s[3] = fma(q, vec4(k.w), s[3]);
                    } else {
                        const vec2 k = (tk & 1u) != 0u ? tile_s[at].zw : tile_s[at].xy;
                        s[0] = fma(q, vec4(k.x), s[0]);
                        s[1] = fma(q, vec4(k.y), s[1]);
                    }
                }
            }
            barrier();
            [[unroll]] for (uint i = 0u; i < KEYS_EACH; i++) tile_s[(tk * KEYS_EACH + i) * STRIDE + tq] = s[i];
            barrier();

            float highest = top;
            [[unroll]] for (uint i = 0u; i < KEYS / 4u; i++) {
                const uint key = fourth + 4u * i, p = key0 + key;
                const float x = visible(p, my_row) ? tile_s[key * STRIDE + sq / 4u][sq & 3u] : kMasked;
                tile_s[key * STRIDE + sq / 4u][sq & 3u] = x;
                highest = max(highest, x);
            }
            highest = max(highest, subgroupShuffleXor(highest, 1u));
            highest = max(highest, subgroupShuffleXor(highest, 2u));
            float add = 0.0;
            [[unroll]] for (uint i = 0u; i < KEYS / 4u; i++) {
                const uint key = fourth + 4u * i;
                const float x = tile_s[key * STRIDE + sq / 4u][sq & 3u];
                const float e = x > kMasked ? exp(x - highest) : 0.0;
                tile_s[key * STRIDE + sq / 4u][sq & 3u] = e;
                add += e;
            }
            add += subgroupShuffleXor(add, 1u);
            add += subgroupShuffleXor(add, 2u);
            const float alpha = highest == top ? 1.0 : exp(top - highest);
            sum = fma(sum, alpha, add);
            top = highest;
            if (fourth == 0u) alpha_s[sq / 4u][sq & 3u] = alpha;
            barrier();

            [[unroll]] for (uint i = 0u; i < 8u; i++)
                [[unroll]] for (uint j = 0u; j < QUADS; j++) o[i][j] *= alpha_s[warp * 2u + i / 4u][i & 3u];
            // Keys past the end and slots that were never written count with weight 0.
            const uint ring_at = (key0 - min(key0, args.sinks)) % args.ring;
            const uint slot0 = head_row + (key0 < args.sinks ? key0 : args.sinks + ring_at);
            const uint wrap = key0 < args.sinks ? KEYS : args.ring - ring_at;
            for (uint key4 = 0u; key4 < KEYS; key4 += 4u) {
                uvec2 w[4][QUADS];
                [[unroll]] for (uint u = 0u; u < 4u; u++)
                    [[unroll]] for (uint j = 0u; j < QUADS; j++) {
                        const uint key = key4 + u;
                        w[u][j] = v_fetch(slot0 + key - (key >= wrap ? args.ring : 0u), column + 32u * j);
                    }
                [[unroll]] for (uint u = 0u; u < 4u; u++) {
                    const vec4 a = tile_s[(key4 + u) * STRIDE + warp * 2u],
                        b = tile_s[(key4 + u) * STRIDE + warp * 2u + 1u];
                    [[unroll]] for (uint j = 0u; j < QUADS; j++) {
                        const vec4 v = kv_values(V_TYPE, w[u][j], column + 32u * j);
                        [[unroll]] for (uint i = 0u; i < 4u; i++) {
                            o[i][j] = fma(vec4(a[i]), v, o[i][j]);
                            o[i + 4u][j] = fma(vec4(b[i]), v, o[i + 4u][j]);
                        }
                    }
                }
            }
        }
        const uint at = ((SPLIT != 0u ? n * args.n_head_kv : 0u) + g) * at_once + tile * 64u - round_first;
        const bool joins = SPLIT == 0u && n != 0u;
        const vec2 own = vec2(sum > 0.0 ? top : kMasked, sum);
        vec2 by = vec2(0.0);
        if (joins)
            by = join_stat(all, own);
        else
            all = own;
        barrier();
        if (fourth == 0u) {
            stat[at + sq] = all;
            alpha_s[sq / 4u][sq & 3u] = by.x;
            beta_s[sq / 4u][sq & 3u] = by.y;
        }
        barrier();
        [[unroll]] for (uint i = 0u; i < 8u; i++) {
            const vec2 q_by = vec2(alpha_s[warp * 2u + i / 4u][i & 3u], beta_s[warp * 2u + i / 4u][i & 3u]);
            [[unroll]] for (uint j = 0u; j < QUADS; j++) {
                const uint to = (at + warp * 8u + i) * (D_HEAD / 4u) + column + 32u * j;
                vec4 x = o[i][j];
                if (joins) {
                    const vec4 y = part[to];
                    [[unroll]] for (uint e = 0u; e < 4u; e++) x[e] = join_value(y[e], x[e], q_by);
                }
                part[to] = x;
            }
        }
    }
}

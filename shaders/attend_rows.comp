#version 450
// attend_rows.comp: attention of a committed pass (prefill): 64 queries of one kv head against all keys they see, in
// tiles with an online softmax. Runs after kv_append with QUERIES 1. Its bits need not match attend_step's.
//
// Formula as attend_step.comp
// Buffers 0 step   StepState                                            read
//         1 acts   f32: q (interleaved gates) and gate at their offsets read
//         2 query  f32 [n_head_kv, part_stride / 64, D_HEAD, 64]        read
//         3 k, 4 v see kv_formats.glsl                                  read
//         5 out    f32 at its offset                                    written
// Push    AttendArgs; part_stride: a multiple of 64
// Spec    KEYS 32 or 64: keys per tile; 64 is faster. K_TYPE, V_TYPE kKv... D_HEAD is fixed by the variant: an
//         invocation keeps D_HEAD / 4 sums in registers and no driver may index them.
// Grid    x: tiles of 64 queries, ceil(n_row * n_head / n_head_kv / 64), y: kv head. Group 256
// Shared  12.6 KiB with KEYS 32, 18.7 with 64
// Cost    n_row * n_key * n_head * D_HEAD * 4 flops: float arithmetic bounds it
// Order   tiles of keys in order of position, keys of a tile in order; independent of n_row
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
#define ACTS float
#define QUERY vec4
#define K_UNIT uvec2
#define CACHE readonly
#include "attend_prologue.glsl"

const uint SLICE = 32u;            // values of d_head per round of the first product
const uint KEYS_EACH = KEYS / 16u; // neighbouring keys per invocation there: 2 or 4
const uint PIECES = KEYS / 32u;    // 8-byte pieces of keys an invocation stages per slice
const uint QUADS = D_HEAD / 128u;       // 4-value columns per invocation in the second product
const uint STRIDE = 18u;           // vec4 per key of the score tile: 64 queries and a skew
const uint STAGED = SLICE * 16u + SLICE * KEYS / 4u, SCORES = KEYS * STRIDE;
const uint SHARED = STAGED > SCORES ? STAGED : SCORES;

shared vec4 tile_s[SHARED];        // query slice [SLICE][16], key slice [SLICE][KEYS / 2] pairs; then scores
shared vec4 alpha_s[16];

#include "kv_formats.glsl"

void main() {
    const uint per_kv = args.n_head / args.n_head_kv, n_query = step.n_row * per_kv;
    const uint n_tile = (n_query + 63u) / 64u;
    if (gl_WorkGroupID.x >= n_tile) return;
    const uint tile = n_tile - 1u - gl_WorkGroupID.x, g = gl_WorkGroupID.y;  // the longest first
    const uint t = gl_LocalInvocationIndex;
    const uint first_row = step.position + tile * 64u / per_kv;
    const uint last_row = step.position + (min(tile * 64u + 64u, n_query) - 1u) / per_kv;
    const uint oldest = oldest_key(first_row);
    const uint head_row = g * args.capacity;
    const uint query_at = (g * args.part_stride / 64u + tile) * D_HEAD * 16u;

    const uint tq = ((t >> 5) & 1u) * 8u + ((t >> 3) & 3u) + ((t >> 6) & 1u) * 4u;  // quad of queries, 0 .. 15
    const uint tk = (t & 7u) + (t >> 7) * 8u;                                       // 0 .. 15: which keys
    const uint warp = t >> 5, column = t & 31u;  // second product: 8 queries, columns 4 (column + 32 i)
    const uint sq = t >> 2, part = t & 3u;       // softmax: query, every fourth key
    const uint my_row = step.position + min(tile * 64u + sq, n_query - 1u) / per_kv;

    vec4 o[8][QUADS];
    [[unroll]] for (uint i = 0u; i < 8u; i++)
        [[unroll]] for (uint j = 0u; j < QUADS; j++) o[i][j] = vec4(0.0);
    float top = kMasked, sum = 0.0;

    for (uint key0 = 0u; key0 <= last_row; key0 += KEYS) {
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
            const uint key = part + 4u * i, p = key0 + key;
            const bool seen = p <= my_row && p >= step.first_key
                && (args.window == 0u || my_row - p < args.window || p < args.sinks);
            const float x = seen ? tile_s[key * STRIDE + sq / 4u][sq & 3u] : kMasked;
            tile_s[key * STRIDE + sq / 4u][sq & 3u] = x;
            highest = max(highest, x);
        }
        highest = max(highest, subgroupShuffleXor(highest, 1u));
        highest = max(highest, subgroupShuffleXor(highest, 2u));
        float add = 0.0;
        [[unroll]] for (uint i = 0u; i < KEYS / 4u; i++) {
            const uint key = part + 4u * i;
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
        if (part == 0u) alpha_s[sq / 4u][sq & 3u] = alpha;
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
    barrier();
    if (part == 0u) alpha_s[sq / 4u][sq & 3u] = 1.0 / sum;
    barrier();
    const bool inter = (args.flags & kAttendInterleaved) != 0u, per_head = (args.flags & kAttendPerHead) != 0u;
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        const uint q = tile * 64u + warp * 8u + i;
        if (q >= n_query) continue;
        const uint row = q / per_kv, h = g * per_kv + q % per_kv;
        const float unit = alpha_s[warp * 2u + i / 4u][i & 3u];
        [[unroll]] for (uint j = 0u; j < QUADS; j++)
            [[unroll]] for (uint e = 0u; e < 4u; e++) {
                const uint v = (column + 32u * j) * 4u + e;
                float y = o[i][j][e] * unit;
                if (inter) y *= sigmoid(acts[args.q_offset + row * args.q_stride + h * 2u * D_HEAD + D_HEAD + v]);
                else if (per_head) y *= sigmoid(acts[args.gate_offset + row * args.gate_stride + h]);
                result[args.out_offset + row * args.out_stride + h * D_HEAD + v] = y;
            }
    }
}

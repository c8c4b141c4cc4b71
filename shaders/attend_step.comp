#version 450
// attend_step.comp: attention of a tentative pass: normalises and rotates q and k, appends the pass's keys and values,
// then computes scores and partial softmax by chunks of positions. The workgroup that finishes last joins the chunks
// and applies the output gate.
//
// Formula out[row, h] = gate * sum over visible keys of softmax(scale * q . k) v, q and k after norm and rotation
// Buffers 0 step    StepState                                                                       read
//         1 acts    f32: q, k, v at their offsets; offsets and strides are multiples of 4           read
//         2 q_norm  f32 [d_head]                                                                    read
//         3 k_norm  f32 [d_head]                                                                    read
//         4 rope    uvec2 [n_rot / 2], see attend_common.glsl                                       read
//         5 k       see kv_formats.glsl                                                         read; own chunk written
//         6 v       likewise                                                                    read; own chunk written
//         7 part    f32 [chunk, part_stride, d_head]                                written, read by the last workgroup
//         8 stat    f32 [chunk, part_stride, 2]: maximum, sum                       written, read by the last workgroup
//         9 out     f32 at its offset, rows 16-byte aligned                                         written
//         10 count  u32 [n_head_kv, z]: finished chunks; 0 before and after                         read, written
// Push    AttendArgs
// Spec    D_HEAD 128 or 256. TILE 4, 8 or 16: query rows at a time; a query row is one head of one row of the pass,
//         there are n_row * PER_KV for each kv head. TILE does not change bits. APPEND 1: stores k and v; 0: kv_append
//         did. K_TYPE, V_TYPE kKv... PER_KV n_head / n_head_kv
// Grid    x: at least the chunks that the pass sees (surplus workgroups return at once), y: kv head, z: query tiles,
//         at least ceil(n_row * PER_KV / TILE); each appends the pass's keys, with the same bits. Group GROUP 256 (512
//         is not faster on Hopper). GROUP decides the order of sums: use one value for all passes of a context.
// Shared  TILE * (D_HEAD + 137) * 4 bytes: 6.2 KiB with TILE 4, 12.4 with 8, 25 with 16
// Cost    K and V are read once per query tile; 4 * D_HEAD flops per query row and key. Memory bandwidth bounds it
//         while n_row * PER_KV <= TILE. With a short cache, fetching instructions for the first time does: loops stay
//         rolled where they can.
// Order   chunks, and blocks of 128 keys in them, lie at absolute positions and are joined in order. A block or chunk
//         that a row does not see changes nothing, so a row's bits do not depend on n_row.
// Source  online softmax (Milakov 2018), split over keys as in Flash-Decoding (Dao 2023)
// CPU     src/machine/cpu, kv_write and attend
// Needs   K and V zeroed when the context opens: slots never written are read, with weight 0.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"

layout(constant_id = 1) const uint D_HEAD = 256;
layout(constant_id = 2) const uint TILE = 4;
layout(constant_id = 3) const uint APPEND = 1;
layout(constant_id = 4) const uint K_TYPE = 0;
layout(constant_id = 5) const uint V_TYPE = 0;
layout(constant_id = 6) const uint PER_KV = 1;
layout(constant_id = 0) const uint GROUP = 256;
layout(local_size_x_id = 0) in;
#define ACTS vec4
#define K_UNIT uvec4
#define CACHE coherent
#define APPENDS
#include "attend_prologue.glsl"
layout(set = 0, binding = 7, std430) coherent buffer Part { vec4 part[]; };
layout(set = 0, binding = 8, std430) coherent buffer Stat { vec2 stat[]; };
layout(set = 0, binding = 9, std430) writeonly buffer Out { vec4 result[]; };
layout(set = 0, binding = 10, std430) coherent buffer Count { uint count[]; };
const uint PIECES = D_HEAD / 64u;       // 16-byte pieces of a key per lane
const uint QUADS = D_HEAD / 4u;         // 4-value pieces of a value row: one invocation each
const uint LANE_GROUPS = GROUP / 8u;
const uint STREAMS = GROUP / QUADS; // keys in flight in the second product
const uint KEYS = kChunk / LANE_GROUPS;  // keys per lane group and block
const uint BATCH = 8u;             // values fetched at a time

shared vec4 q_s[TILE * QUADS];     // scaled queries in the order the lanes read them; later the exchange
shared vec4 p_s[kChunk * TILE / 4u];
shared float alpha_s[TILE];
shared vec2 stat_s[TILE];          // maximum and sum of each query row
shared bool last_s;
const uint AT_ONCE = STREAMS < TILE ? STREAMS : TILE;
const uint ROUNDS = TILE / AT_ONCE;
shared float sums_s[LANE_GROUPS];
#include "attend_common.glsl"
#define K_WORD(i) k_cache[(i) >> 2][(i) & 3u]
#define K_PUT(row, quad, w) k_cache[(row) * (D_HEAD / 8u) + (quad) / 2u][((quad) & 1u) * 2u] = (w).x, k_cache[(row) * \
    (D_HEAD / 8u) + (quad) / 2u][((quad) & 1u) * 2u + 1u] = (w).y
#include "kv_store.glsl"

// A lane's part of a key in a quantised cache: D_HEAD / 8 neighbouring columns, all of one block.
const uint UNITS = K_TYPE == kKvQ8 ? D_HEAD / 128u : 1u;
void fetch_key(out uvec4 codes[UNITS], out vec2 unit, uint row, uint lane) {
    if (K_TYPE == kKvQ8) {
        [[unroll]] for (uint m = 0u; m < UNITS; m++) codes[m] = k_cache[row * (D_HEAD / 16u) + m * 8u + lane];
    } else if (D_HEAD == 256u) {
        codes[0] = k_cache[row * 8u + lane];
    } else {
        const uvec4 two = k_cache[row * 4u + lane / 2u];
        codes[0] = (lane & 1u) != 0u ? two.zwzw : two;
    }
    const uint block = lane * D_HEAD / 256u;
    unit = kv_unit(K_TYPE, K_WORD(kv_scales(K_TYPE, row) + kv_scale_word(K_TYPE, block)), block);
}

// Its columns 8 i .. 8 i + 7: values of q4_1, codes of the others.
void key_piece(uvec4 codes[UNITS], vec2 unit, uint i, out vec4 lo, out vec4 hi) {
    if (K_TYPE == kKvQ8) {
        const uvec4 w = codes[i / 2u];
        lo = kv_bytes((i & 1u) != 0u ? w.z : w.x);
        hi = kv_bytes((i & 1u) != 0u ? w.w : w.y);
        return;
    }
    lo = kv_nibbles(K_TYPE, codes[0][i], 0u);
    hi = kv_nibbles(K_TYPE, codes[0][i], 1u);
    if (K_TYPE == kKvQ41) {
        lo = fma(lo, vec4(unit.x), vec4(unit.y));
        hi = fma(hi, vec4(unit.x), vec4(unit.y));
    }
}

#define FETCH_VALUES(w, slot0, wrap, key0, quad) \
    [[unroll]] for (uint u = 0u; u < BATCH; u++) { \
        const uint key = (key0) + u * STREAMS; \
        w[u] = v_fetch(slot0 + key - (key >= wrap ? args.ring : 0u), quad); \
    }

// Scores of one piece of columns: 8 of each key with the same of each query.
#define ADD_SCORES \
    [[unroll]] for (uint r = 0u; r < TILE; r++) { \
        const vec4 a = q_s[((r * PIECES + i) * 2u) * 8u + lane], b = q_s[((r * PIECES + i) * 2u + 1u) * 8u + lane]; \
        [[unroll]] for (uint j = 0u; j < KEYS; j++) { \
            float s = acc[r * KEYS + j]; \
            s = fma(a.x, lo[j].x, s); \
            s = fma(a.y, lo[j].y, s); \
            s = fma(a.z, lo[j].z, s); \
            s = fma(a.w, lo[j].w, s); \
            s = fma(b.x, hi[j].x, s); \
            s = fma(b.y, hi[j].y, s); \
            s = fma(b.z, hi[j].z, s); \
            s = fma(b.w, hi[j].w, s); \
            acc[r * KEYS + j] = s; \
        } \
    }

float weight(float top, float highest) {  // of what was summed under the maximum `top`
    precise float e = exp(top - highest);
    return top > kMasked ? (top == highest ? 1.0 : e) : 0.0;
}

void main() {
    const uint n_row = step.n_row;
    if (n_row == 0u) return;
    const uint position = step.position;
    const Chunks seen = chunks_seen(position, n_row, args.window, args.sinks, step.first_key);
    const uint n_chunk = chunks_count(seen);
    if (gl_WorkGroupID.x >= n_chunk) return;
    const uint x = n_chunk - 1u - gl_WorkGroupID.x;  // the longest chunks first
    const uint chunk = chunks_at(seen, x);
    const uint g = gl_WorkGroupID.y;
    const uint t = gl_LocalInvocationIndex, lane = t & 7u, group = t >> 3;
    const uint begin = chunk_begin(chunk, args.window);
    const uint end = min(chunk_begin(chunk + 1u, args.window), position + n_row);
    const uint n_query = n_row * PER_KV;
    const uint q_width = (args.flags & kAttendInterleaved) != 0u ? 2u * D_HEAD : D_HEAD;
    const uint oldest = max(args.window > 0u && position + 1u > args.window ? position + 1u - args.window : 0u,
        step.first_key);
    const uint head_row = g * args.capacity;

    const uint quad = t % QUADS, stream = t / QUADS;

    const uint tile = gl_WorkGroupID.z * TILE;
    if (tile >= n_query) return;

    // This pass's rows that lie in this chunk, whose keys and values join the caches, then the queries.
    const uint first = max(begin, position) - position, last = end > position ? end - position : 0u;
    const uint n_new = APPEND != 0u && last > first ? last - first : 0u, key_turns = (n_new + AT_ONCE - 1u) / AT_ONCE;
    [[dont_unroll]] for (uint turn = 0u; turn < key_turns + ROUNDS; turn++) {
        const bool is_key = turn < key_turns;
        const uint nth = (is_key ? turn : turn - key_turns) * AT_ONCE + stream, query = tile + nth;
        const uint i = is_key ? first + nth : query / PER_KV;
        const bool real = stream < AT_ONCE && (is_key ? nth < n_new : query < n_query);
        const uint at = is_key ? args.k_offset + i * args.k_stride + g * D_HEAD
            : args.q_offset + i * args.q_stride + (g * PER_KV + query % PER_KV) * q_width;
        const vec4 a = real ? acts[at / 4u + quad] : vec4(0.0);
        vec4 v = vec4(0.0);
        if (is_key && real) v = acts[(args.v_offset + i * args.v_stride + g * D_HEAD) / 4u + quad];
        norm_rotate(a, position + i, quad, stream, is_key ? stream : nth, is_key, is_key ? 1.0 : args.scale);
        if (is_key) {
            kv_store(real, head_row + slot_of(position + i), quad, stream < AT_ONCE ? q_s[stream * QUADS + place(quad)]
                : vec4(0.0), v);
            memoryBarrierBuffer();
            barrier();
        }
    }

    vec4 o[TILE];
    [[unroll]] for (uint r = 0u; r < TILE; r++) o[r] = vec4(0.0);
    float top = kMasked, sum = 0.0;  // of the query row tile + group, in the first TILE groups

    for (uint block = begin; block < end; block += kChunk) {
        if (block + kChunk <= oldest && block >= args.sinks) continue;
        // Key i of the block stands in slot0 + i, less the ring's length from `wrap` on. (A block that
        // begins among the sinks is in place: its ring part is either in its first lap or not visible.)
        const uint n_key = min(end - block, kChunk);
        const uint ring_at = (block - min(block, args.sinks)) % args.ring;
        const uint slot0 = head_row + (block < args.sinks ? block : args.sinks + ring_at);
        const uint wrap = block < args.sinks ? kChunk : args.ring - ring_at;

        // Scores: lane group G takes keys G, G + LANE_GROUPS, ... of the block.
        float acc[KEYS * TILE];
        uint from[KEYS];
        uvec4 codes[KEYS][UNITS];
        vec2 unit[KEYS];
        [[unroll]] for (uint j = 0u; j < KEYS; j++) {
            const uint key = group + LANE_GROUPS * j, row = slot0 + key - (key >= wrap ? args.ring : 0u);
            from[j] = row * (D_HEAD / 8u) + lane;
            if (K_TYPE != kKvF16) fetch_key(codes[j], unit[j], row, lane);
        }
        [[unroll]] for (uint i = 0u; i < KEYS * TILE; i++) acc[i] = 0.0;
        if (K_TYPE == kKvF16) {
            uvec4 next[KEYS];
            [[unroll]] for (uint j = 0u; j < KEYS; j++) next[j] = k_cache[from[j]];
            [[dont_unroll]] for (uint i = 0u; i < PIECES; i++) {
                vec4 lo[KEYS], hi[KEYS];
                [[unroll]] for (uint j = 0u; j < KEYS; j++) {
                    lo[j] = vec4(unpackHalf2x16(next[j].x), unpackHalf2x16(next[j].y));
                    hi[j] = vec4(unpackHalf2x16(next[j].z), unpackHalf2x16(next[j].w));
                    next[j] = k_cache[from[j] + min(i + 1u, PIECES - 1u) * 8u];
                }
                ADD_SCORES
            }
        } else {
            [[unroll]] for (uint i = 0u; i < PIECES; i++) {
                vec4 lo[KEYS], hi[KEYS];
                [[unroll]] for (uint j = 0u; j < KEYS; j++) key_piece(codes[j], unit[j], i, lo[j], hi[j]);
                ADD_SCORES
            }
        }
        // Codes of one block: their scale comes last.
        if (K_TYPE == kKvQ8 || K_TYPE == kKvQ40)
            [[unroll]] for (uint i = 0u; i < KEYS * TILE; i++) {
                precise float s = acc[i] * unit[i % KEYS].x;
                acc[i] = s;
            }
        // Sums over the lane group: lane l ends with values l, l + 8, ... (value: row, key).
        [[unroll]] for (uint i = 0u; i < KEYS * TILE / 2u; i++)
            acc[i] = reduce_pair(acc[2u * i], acc[2u * i + 1u], lane, 1u);
        [[unroll]] for (uint i = 0u; i < KEYS * TILE / 4u; i++)
            acc[i] = reduce_pair(acc[2u * i], acc[2u * i + 1u], lane, 2u);
        [[unroll]] for (uint i = 0u; i < KEYS * TILE / 8u; i++) {
            const float s = reduce_pair(acc[2u * i], acc[2u * i + 1u], lane, 4u);
            const uint r = (8u * i + lane) / KEYS, key = group + LANE_GROUPS * ((8u * i + lane) % KEYS);
            p_s[key * (TILE / 4u) + r / 4u][r & 3u] =
                key < n_key && visible(block + key, position + (tile + r) / PER_KV) ? s : kMasked;
        }
        uvec2 w[BATCH];  // the first values are on their way during the softmax
        FETCH_VALUES(w, slot0, wrap, stream, quad);
        barrier();

        if (group < TILE) {
            const uint at = group / 4u, part_of = group & 3u;
            float highest = kMasked;
            [[dont_unroll]] for (uint k = lane; k < kChunk; k += 32u)
                [[unroll]] for (uint i = 0u; i < 4u; i++)
                    highest = max(highest, p_s[(k + 8u * i) * (TILE / 4u) + at][part_of]);
            highest = max(group_max(highest), top);
            precise float add = 0.0;
            [[dont_unroll]] for (uint k = lane; k < kChunk; k += 32u)
                [[unroll]] for (uint i = 0u; i < 4u; i++) {
                    const uint to = (k + 8u * i) * (TILE / 4u) + at;
                    const float s = p_s[to][part_of];
                    precise float e = exp(s - highest);
                    e = s > kMasked ? e : 0.0;
                    p_s[to][part_of] = e;
                    add = add + e;
                }
            precise float alpha = highest == top ? 1.0 : exp(top - highest);
            sum = fma(sum, alpha, group_sum(add));
            top = highest;
            if (lane == 0u) alpha_s[group] = alpha;
        }
        barrier();

        // Values: invocation (stream, quad) adds four columns over keys stream, stream + STREAMS, ...
        [[unroll]] for (uint r = 0u; r < TILE; r++) {
            precise vec4 y = o[r] * alpha_s[r];
            o[r] = y;
        }
        [[dont_unroll]] for (uint key0 = 0u; key0 < n_key; key0 += BATCH * STREAMS) {
            if (key0 > 0u) FETCH_VALUES(w, slot0, wrap, key0 + stream, quad);
            [[unroll]] for (uint u = 0u; u < BATCH; u++) {
                const vec4 v = kv_values(V_TYPE, w[u], quad);
                [[unroll]] for (uint r4 = 0u; r4 < TILE / 4u; r4++) {
                    const vec4 p = p_s[(key0 + u * STREAMS + stream) * (TILE / 4u) + r4];
                    o[r4 * 4u] = fma(vec4(p.x), v, o[r4 * 4u]);
                    o[r4 * 4u + 1u] = fma(vec4(p.y), v, o[r4 * 4u + 1u]);
                    o[r4 * 4u + 2u] = fma(vec4(p.z), v, o[r4 * 4u + 2u]);
                    o[r4 * 4u + 3u] = fma(vec4(p.w), v, o[r4 * 4u + 3u]);
                }
            }
        }
        barrier();
    }

    // Streams 0, 1, 2, ... in order; the sums of all query rows end up in q_s.
    if (lane == 0u && group < TILE) stat_s[group] = vec2(top, sum);
    [[dont_unroll]] for (uint k = 0u; k < STREAMS; k++) {
        if (stream == k)
            [[unroll]] for (uint r = 0u; r < TILE; r++) {
                precise vec4 y = o[r];
                if (k > 0u) y = q_s[r * QUADS + quad] + y;
                q_s[r * QUADS + quad] = y;
            }
        barrier();
    }
    // Each stream has a query row of its own from here on.
    bool ends = n_chunk == 1u;
    if (!ends) {
        [[dont_unroll]] for (uint r = stream; r < TILE; r += STREAMS) {
            const uint query = tile + r, to = x * args.part_stride + (query / PER_KV)
                * args.n_head + g * PER_KV + query % PER_KV;
            if (query < n_query) part[to * QUADS + quad] = q_s[r * QUADS + quad];
            if (query < n_query && quad == 0u) stat[to] = stat_s[r];
        }
        memoryBarrierBuffer();
        barrier();
        if (t == 0u) {
            const uint at = g * gl_NumWorkGroups.z + gl_WorkGroupID.z;
            last_s = atomicAdd(count[at], 1u) + 1u == n_chunk;
            if (last_s) count[at] = 0u;
        }
        barrier();
        ends = last_s;
        memoryBarrierBuffer();
    }
    if (!ends) return;
    [[dont_unroll]] for (uint r0 = 0u; r0 < TILE; r0 += STREAMS) {
        const uint r = min(r0 + stream, TILE - 1u), query = min(tile + r, n_query - 1u), row = query / PER_KV,
            h = g * PER_KV + query % PER_KV, at = row * args.n_head + h;
        vec4 gate = vec4(0.0);
        const bool inter = (args.flags & kAttendInterleaved) != 0u, per_head = (args.flags & kAttendPerHead) != 0u;
        if (inter) gate = acts[(args.q_offset + row * args.q_stride + h * 2u * D_HEAD + D_HEAD) / 4u + quad];
        const uint gate_at = args.gate_offset + row * args.gate_stride + h;
        if (per_head) gate = vec4(acts[gate_at >> 2][gate_at & 3u]);
        precise vec4 y = vec4(0.0);
        precise float total = 0.0;
        if (n_chunk == 1u) {
            y = fma(vec4(1.0), q_s[r * QUADS + quad], y);
            total = fma(1.0, stat_s[r].y, total);
        } else {
            float highest = kMasked;
            [[dont_unroll]] for (uint c = quad; c < n_chunk; c += QUADS)
                highest = max(highest, stat[c * args.part_stride + at].x);
            highest = group_max(highest);
            if (lane == 0u) sums_s[group] = highest;
            barrier();
            [[dont_unroll]] for (uint k = 0u; k < QUADS / 8u; k++)
                highest = max(highest, sums_s[stream * (QUADS / 8u) + k]);
            [[dont_unroll]] for (uint c0 = 0u; c0 < n_chunk; c0 += kChunk) {
                // Weights and sums of 128 chunks at a time.
                [[dont_unroll]] for (uint c = quad; c < kChunk; c += QUADS) {
                    const vec2 s = c0 + c < n_chunk ? stat[(c0 + c) * args.part_stride + at] : vec2(kMasked, 0.0);
                    p_s[c * (TILE / 4u) + r / 4u][r & 3u] = weight(s.x, highest);
                    q_s[r * QUADS + c / 4u][c & 3u] = s.y;
                }
                barrier();
                const uint n = min(n_chunk - c0, kChunk);
                [[dont_unroll]] for (uint c = 0u; c < n; c += 16u) {
                    vec4 v[16];
                    [[unroll]] for (uint u = 0u; u < 16u; u++)
                        v[u] = part[((c0 + min(c + u, n - 1u)) * args.part_stride + at) * QUADS + quad];
                    [[unroll]] for (uint u = 0u; u < 16u; u++) {
                        const float e = p_s[(c + u) * (TILE / 4u) + r / 4u][r & 3u];
                        total = fma(e, q_s[r * QUADS + (c + u) / 4u][u & 3u], total);
                        y = fma(vec4(e), v[u], y);
                    }
                }
                barrier();
            }
        }
        y = y / total;
        if (inter || per_head) {
            [[dont_unroll]] for (uint i = 0u; i < 4u; i++) {
                precise float z = y.x * sigmoid(gate.x);
                y = vec4(y.yzw, z);
                gate = gate.yzwx;
            }
        }
        if (r0 + stream < TILE && tile + r < n_query)
            result[(args.out_offset + row * args.out_stride + h * D_HEAD) / 4u + quad] = y;
    }
}

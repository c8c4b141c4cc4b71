#version 450
// kv_append.comp: normalises and rotates q and k and stores keys and values, for a committed pass of any number of
// rows, or a tentative one when attend_step runs with APPEND 0.
//
// Formula y = rotate(norm(x)); queries times scale
// Buffers 0 step    StepState                                          read
//         1 acts    f32: q, k, v at their offsets, multiples of 4      read
//         2 q_norm  f32 [d_head]                                       read
//         3 k_norm  f32 [d_head]                                       read
//         4 rope    uvec2 [n_rot / 2]                                  read
//         5 k, 6 v  see kv_formats.glsl                                written
//         7 query   see kQueries... in args.h                          written unless QUERIES is kQueriesNone
// Push    AttendArgs
// Spec    D_HEAD 128 or 256. QUERIES: kQueries...; query i of a kv head is head i % PER_KV of row i / PER_KV.
//         kQueriesHalf: as attend_tile's matrices want them: lane (g, t) of 16 queries and block b of 32 columns has
//         columns 8 t + 4 m .. + 3 of queries g and g + 8 for its matrix 2 b + m. K_TYPE, V_TYPE kKv...
// Grid    x: any; n_row * (n_head_kv + n_head) * D_HEAD / 1024 workgroups are busy once each. Group 256: 1024 /
//         D_HEAD heads at a time
// Shared  4.2 KiB
// Cost    12 * D_HEAD bytes per head and row; about 8 * D_HEAD flops
// Order   see attend_common.glsl
// CPU     src/machine/cpu, kv_write
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint D_HEAD = 256;
layout(constant_id = 2) const uint QUERIES = 0;
layout(constant_id = 3) const uint K_TYPE = 0;
layout(constant_id = 4) const uint V_TYPE = 0;
#define ACTS vec4
#define K_UNIT uvec2
#define CACHE writeonly
#define APPENDS
#include "attend_prologue.glsl"
layout(set = 0, binding = 7, std430) writeonly buffer Query { float query[]; };
layout(set = 0, binding = 7, std430) writeonly buffer Query2 { uvec2 query_halves[]; };
const uint QUADS = D_HEAD / 4u;
const uint LANE_GROUPS = 32u;
const uint STREAMS = 256u / QUADS;
const uint AT_ONCE = STREAMS;
shared vec4 q_s[256];
shared float sums_s[32];
#include "attend_common.glsl"
#include "kv_store.glsl"

void main() {
    const uint quad = gl_LocalInvocationIndex % QUADS, stream = gl_LocalInvocationIndex / QUADS;
    const uint n_head_kv = args.n_head_kv, per_kv = args.n_head / n_head_kv, n_row = step.n_row;
    const uint q_width = (args.flags & kAttendInterleaved) != 0u ? 2u * D_HEAD : D_HEAD;
    // Items: all keys with their values, then all queries; a turn of the loop is one or the other.
    const uint n_key = n_row * n_head_kv, n_key_turn = (n_key + AT_ONCE - 1u) / AT_ONCE;
    const uint n_query = QUERIES != 0u ? n_row * args.n_head : 0u, n_query_turn = (n_query + AT_ONCE - 1u) / AT_ONCE;
    for (uint turn = gl_WorkGroupID.x; turn < n_key_turn + n_query_turn; turn += gl_NumWorkGroups.x) {
        const bool is_key = turn < n_key_turn;
        const uint item = (is_key ? turn : turn - n_key_turn) * AT_ONCE + stream, n_head = is_key ? n_head_kv
            : args.n_head;
        const bool real = item < (is_key ? n_key : n_query);
        const uint row = item / n_head, h = item % n_head, p = step.position + row;
        const uint at = is_key ? args.k_offset + row * args.k_stride + h * D_HEAD
            : args.q_offset + row * args.q_stride + h * q_width;
        const vec4 x0 = real ? acts[at / 4u + quad] : vec4(0.0);
        vec4 v = vec4(0.0);
        if (real && is_key) v = acts[(args.v_offset + row * args.v_stride + h * D_HEAD) / 4u + quad];
        norm_rotate(x0, p, quad, stream, stream, is_key, is_key ? 1.0 : args.scale);
        const vec4 x = q_s[stream * QUADS + place(quad)];
        if (is_key) {
            kv_store(real, h * args.capacity + slot_of(p), quad, x, v);
        } else if (real) {
            const uint i = row * per_kv + h % per_kv, at_query = (h / per_kv) * args.part_stride + i;
            if (QUERIES == kQueriesHalf) {
                const uint to = (at_query / 16u * (D_HEAD / 16u) + (quad / 8u) * 2u + (quad & 1u)) * 32u
                    + (i & 7u) * 4u + (quad & 7u) / 2u;
                query_halves[2u * to + ((i >> 3) & 1u)] = kv_halves(x);
            } else if (QUERIES == kQueriesRows) {
                query_halves[at_query * QUADS + quad] = kv_halves(x);
            } else {
                const uint to = at_query / 64u * D_HEAD * 64u + i % 64u;
                [[unroll]] for (uint e = 0u; e < 4u; e++) query[to + (quad * 4u + e) * 64u] = x[e];
            }
        }
        barrier();
    }
}

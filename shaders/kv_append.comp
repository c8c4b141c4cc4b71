#version 450
// kv_append.comp: norms, rotation and the caches for the rows of a committed pass (any number), and for
// tentative ones when attend_step runs with APPEND 0. Twin of src/machine/cpu's kv_write.
//
// Grid    x: any number of groups (rows * (2 n_head_kv + n_head) * D_HEAD / 1024 keeps each busy once).
//         Group  256 (spec 0, always 256): 1024 / D_HEAD heads at a time.
// Spec    1 D_HEAD 256 (128): d_head     3 K_TYPE   4 V_TYPE: kKv...     2 QUERIES 0; 1: also writes the queries for attend_rows, normed,
//         rotated, scaled, in tiles: [n_head_kv][tile][D_HEAD][64] where query i of a kv head (row i / r,
//         head i % r, r = n_head / n_head_kv) stands in tile i / 64 at i % 64
// Memory  0 step   1 acts   2 q_norm   3 k_norm   4 rope     read, as in attend_step
//         5 k      6 v      see kv_formats.glsl              written
//         7 query  f32 [n_head_kv][part_stride][D_HEAD][64]       written; part_stride = tiles allocated
// Push    AttendArgs (part_stride: tiles per kv head).
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint D_HEAD = 256;
layout(constant_id = 2) const uint QUERIES = 0;
layout(constant_id = 3) const uint K_TYPE = 0;
layout(constant_id = 4) const uint V_TYPE = 0;
layout(push_constant) uniform Push { AttendArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Acts { vec4 acts[]; };
layout(set = 0, binding = 2, std430) readonly buffer QNorm { vec4 q_norm[]; };
layout(set = 0, binding = 3, std430) readonly buffer KNorm { vec4 k_norm[]; };
layout(set = 0, binding = 4, std430) readonly buffer Rope { uvec2 rope[]; };
layout(set = 0, binding = 5, std430) writeonly buffer K { uvec2 k_cache[]; };
layout(set = 0, binding = 6, std430) writeonly buffer V { uvec2 v_cache[]; };
layout(set = 0, binding = 7, std430) writeonly buffer Query { float query[]; };
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
        const uint item = (is_key ? turn : turn - n_key_turn) * AT_ONCE + stream, n_head = is_key ? n_head_kv : args.n_head;
        const bool real = item < (is_key ? n_key : n_query);
        const uint row = item / n_head, h = item % n_head, p = step.position + row;
        const uint at = is_key ? args.k_offset + row * args.k_stride + h * D_HEAD : args.q_offset + row * args.q_stride + h * q_width;
        const vec4 x0 = real ? acts[at / 4u + quad] : vec4(0.0);
        vec4 v = vec4(0.0);
        if (real && is_key) v = acts[(args.v_offset + row * args.v_stride + h * D_HEAD) / 4u + quad];
        norm_rotate(x0, p, quad, stream, stream, is_key, is_key ? 1.0 : args.scale);
        const vec4 x = q_s[stream * QUADS + place(quad)];
        if (is_key) {
            kv_store(real, h * args.capacity + slot_of(p), quad, x, v);
        } else if (real) {
            const uint i = row * per_kv + h % per_kv;
            const uint to = ((h / per_kv) * args.part_stride + i / 64u) * D_HEAD * 64u + i % 64u;
            [[unroll]] for (uint e = 0u; e < 4u; e++) query[to + (quad * 4u + e) * 64u] = x[e];
        }
        barrier();
    }
}

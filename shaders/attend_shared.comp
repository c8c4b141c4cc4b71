#version 450
// attend_shared.comp: attention of a committed pass (prefill) on 16x16x16 matrix units, however these lay out their
// elements: matrices come from shared memory and return there. Runs after kv_append with QUERIES kQueriesRows, before
// attend_join.
//
// Formula as attend_step.comp
// Buffers 0 step   StepState                                              read
//         1 query  f16 [n_head_kv, part_stride, D_HEAD]                   read
//         2 k, 3 v see kv_formats.glsl                                    read
//         4 part, 5 stat  see attend_segments.glsl                        written; with SPLIT 0 also read
// Push    AttendArgs; part_stride: a multiple of GROUP / 2
// Spec    SPLIT 1: a workgroup takes one segment of keys; 0: all, joining one after the other. K_TYPE, V_TYPE kKv...
//         UNIT_M, UNIT_N, UNIT_K 16, 16, 16. WRAPS 0: args.sinks and args.ring are multiples of KEYS, so that no
//         block of keys wraps around the ring. D_HEAD is fixed by the variant
// Grid    x: tiles of GROUP / 2 queries of a round, y: kv head, z: with SPLIT 1 at least the segments that the pass
//         sees. Group 128 or 256, in full subgroups of 32
// Shared  max(KEYS * (2 * D_HEAD + 16), 40 * GROUP) + 104 * GROUP + 4 bytes a subgroup: 43 KiB for 256 columns and 256
//         invocations
// Cost    n_row * n_key * n_head * D_HEAD * 4 flops
// Numbers queries, weights (times 32768) and unpacked keys and values are halves, sums are float
// Order   keys in blocks of KEYS, 32, at multiples of it, in order; every segment of keys begins with nothing. What a
//         row does not see changes nothing, so a row's bits depend neither on n_row nor on SPLIT and GROUP.
// Loop    a subgroup has 16 queries for the scores of a block and their weights, and 64 queries and a quarter of the
//         columns for the weighted values, where it loads one matrix for two products. Keys and values take turns in
//         shared memory.
// Source  FlashAttention-2 (Dao 2023)
// Needs   division by 1 to be exact, as a row is divided where a neighbour's maximum grows; K and V zeroed when the
//         context opens
// CPU     src/machine/cpu, attend
// variant: attend_shared_256 -DHEAD=256u @khr
// variant: attend_shared_128 -DHEAD=128u @khr
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
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
layout(constant_id = 5) const uint UNIT_N = 16u;
layout(constant_id = 6) const uint UNIT_K = 16u;
layout(constant_id = 7) const uint WRAPS = 0u;
layout(push_constant) uniform Push { AttendArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Query { uvec4 query[]; };
layout(set = 0, binding = 2, std430) readonly buffer K { uvec2 k_cache[]; };
layout(set = 0, binding = 2, std430) readonly buffer K4 { uvec4 k_wide[]; };
layout(set = 0, binding = 3, std430) readonly buffer V { uvec2 v_cache[]; };
layout(set = 0, binding = 3, std430) readonly buffer V4 { uvec4 v_wide[]; };
layout(set = 0, binding = 4, std430) buffer Part { vec4 part[]; };
layout(set = 0, binding = 5, std430) buffer Stat { vec2 stat[]; };
#include "attend_visible.glsl"
#include "attend_segments.glsl"
#include "kv_formats.glsl"

const uint N = gl_WorkGroupSize.x, TILE = N / 2u, KEYS = kTileKeys;
const uint UNITS = D_HEAD / 8u, QUADS = D_HEAD / 4u;
const uint FETCHED = KEYS * UNITS / N;              // units of a block that an invocation fetches
const uint BS = UNITS + 1u, SS = KEYS / 4u + 1u;    // 16-byte units from key to key, from query to query
const uint COLUMNS = D_HEAD / 64u;                  // units of a subgroup's quarter of the columns
const uint PATCH = 16u * 5u;                        // of a subgroup's results
const uint BLOCK = KEYS * BS > N / 32u * PATCH ? KEYS * BS : N / 32u * PATCH;
shared uvec4 block_s[BLOCK];        // keys or values as halves, 8 columns a unit; at last results
shared uvec4 score_s[TILE * SS];    // of each query its scores, floats, then from the same place on its weights, halves
shared uvec4 divisor_s[TILE * 4u];  // of each query the divisor of its values so far, 16 times; at last two factors
shared uint turned_s[N / 32u];      // of 16 queries: not 0 if one of these divisors is not 1
#define FragA fcoopmatNV<16, gl_ScopeSubgroup, UNIT_M, UNIT_K>
#define FragB fcoopmatNV<16, gl_ScopeSubgroup, UNIT_K, UNIT_N>
#define FragC fcoopmatNV<32, gl_ScopeSubgroup, UNIT_M, UNIT_N>
const float kLog2e = 1.44269504;
const float kUnseen = -1e30;  // the score of what is not visible: its products stay finite

#include "attend_blocks.glsl"

// An invocation fetches the same columns of keys that lie a fixed distance apart.
#define FETCH(place, fetch) [[unroll]] for (uint i = 0u; i < FETCHED; i++) \
        next[i] = fetch(row_of(place, my_key + i * (N / UNITS)), my_unit);
#define STORE(type) [[unroll]] for (uint i = 0u; i < FETCHED; i++) \
        block_s[(my_key + i * (N / UNITS)) * BS + my_unit] = halves_of(type, next[i], my_unit);
uvec4 fetch_values(uint row, uint unit) {
    if (V_TYPE == kKvF16) return v_wide[row * UNITS + unit];
    return fetch_value(row, unit);
}

// Of an invocation: the maximum and its part of the sum of the weights of its query.
float top, sum;

// Computes the weights of a block's scores, and the divisor of all values before it. A divisor, because
// GL_NV_cooperative_matrix cannot multiply two matrices element by element, and AMD's driver in Mesa 25.0 crashes on
// length(). q: the query, t: which half of the keys.
void soften(uint block, bool masked, uint q, uint t, uint row) {
    float e[16];
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        const vec4 four = uintBitsToFloat(score_s[q * SS + 4u * t + i]);
        [[unroll]] for (uint j = 0u; j < 4u; j++) e[4u * i + j] = four[j];
    }
    if (masked) {
        [[unroll]] for (uint i = 0u; i < 16u; i++) e[i] = visible(block + 16u * t + i, row) ? e[i] : kUnseen;
    }
    float highest = top;
    [[unroll]] for (uint i = 0u; i < 16u; i++) highest = max(highest, e[i]);
    highest = max(highest, subgroupShuffleXor(highest, 1u));
    precise float below = (top - highest) * kLog2e;
    const float alpha = top == highest ? 1.0 : exp2(below);
    // Values under the first maximum are 0: nothing to divide. The exponent keeps to what division is defined for.
    const float divisor = top == highest || top == kUnseen ? 1.0 : exp2(min(-below, 126.0));
    // Weights times 2^15; a row that sees nothing here has base 0, so that the masked scores come out as 0.
    const float base = highest > kUnseen ? fma(-highest, kLog2e, 15.0) : 0.0;
    top = highest;
    precise float add = 0.0;
    uvec4 weights[2];
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        const float e0 = exp2(fma(e[2u * i], kLog2e, base)), e1 = exp2(fma(e[2u * i + 1u], kLog2e, base));
        precise float two = e0 + e1;
        add = add + two;
        weights[i / 4u][i % 4u] = packFloat2x16(f16vec2(vec2(e0, e1)));
    }
    sum = fma(sum, alpha, add);
    const bool turned = subgroupAny(divisor != 1.0);
    if (turned) {
        [[unroll]] for (uint i = 0u; i < 2u; i++) divisor_s[q * 4u + 2u * t + i] = floatBitsToUint(vec4(divisor));
    }
    if (gl_SubgroupInvocationID == 0u) turned_s[gl_SubgroupID] = turned ? 1u : 0u;
    subgroupMemoryBarrierShared();  // a query's scores make room for its weights
    subgroupBarrier();
    [[unroll]] for (uint i = 0u; i < 2u; i++) score_s[q * SS + 2u * t + i] = weights[i];
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
    const uint me = gl_LocalInvocationIndex, sub = gl_SubgroupID, lane = gl_SubgroupInvocationID;
    const uint first_row = step.position + tile * TILE / per_kv,
        last_row = step.position + (min(tile * TILE + TILE, n_query) - 1u) / per_kv;
    const uint oldest = oldest_key(first_row), full_from = oldest_key(last_row);
    const uint head_row = head * args.capacity;
    const uint my_key = me / UNITS, my_unit = me % UNITS;
    const uint query16 = 16u * sub, my_query = query16 + (lane >> 1), half_keys = lane & 1u;
    const uint query64 = sub % (N / 128u) * 64u, column0 = sub / (N / 128u) * COLUMNS;
    const uint query_at = (head * args.part_stride + tile * TILE + query16) * UNITS;
    const uint my_row = step.position + min(tile * TILE + my_query, n_query - 1u) / per_kv;
    uvec4 next[FETCHED];
    vec2 all = vec2(0.0);  // of the segments so far

    const uint segment_first = SPLIT != 0u ? n_segment - 1u - gl_WorkGroupID.z : 0u,
        segment_end = SPLIT != 0u ? segment_first + 1u : n_segment;
    [[dont_unroll]] for (uint n = segment_first; n < segment_end; n++) {
        const uint segment = chunks_at(seen, n), end = min(segment_begin(segment + 1u), last_row + 1u);
        FragC O[4u * COLUMNS];
        [[unroll]] for (uint i = 0u; i < 4u * COLUMNS; i++) O[i] = FragC(0.0);
        top = kUnseen;
        sum = 0.0;
        uint block = FROM(segment_begin(segment));
        Place place = place_of(block, head_row);
        if (block < end) FETCH(place, fetch_key)
        [[dont_unroll]] while (block < end) {
            barrier();  // the values of the block before were read
            STORE(K_TYPE)
            FETCH(place, fetch_values)
            barrier();
            FragC S[KEYS / 16u];
            [[unroll]] for (uint j = 0u; j < KEYS / 16u; j++) S[j] = FragC(0.0);
            [[unroll]] for (uint k = 0u; k < UNITS / 2u; k++) {
                FragA a;
                coopMatLoadNV(a, query, query_at + 2u * k, UNITS, false);
                [[unroll]] for (uint j = 0u; j < KEYS / 16u; j++) {
                    FragB b;
                    coopMatLoadNV(b, block_s, 16u * j * BS + 2u * k, BS, true);
                    S[j] = coopMatMulAddNV(a, b, S[j]);
                }
            }
            [[unroll]] for (uint j = 0u; j < KEYS / 16u; j++)
                coopMatStoreNV(S[j], score_s, query16 * SS + 4u * j, SS, false);
            subgroupMemoryBarrierShared();
            subgroupBarrier();
            soften(block, MASKED(block), my_query, half_keys, my_row);
            barrier();  // the keys were read
            STORE(V_TYPE)
            const uint after = FROM(block + KEYS);
            place = place_after(place, block, after, head_row);
            if (after < end) FETCH(place, fetch_key)
            barrier();
            [[unroll]] for (uint r = 0u; r < 4u; r++) {
                if (turned_s[query64 / 16u + r] != 0u) {
                    FragC divisor;
                    coopMatLoadNV(divisor, divisor_s, (query64 + 16u * r) * 4u, 4u, false);
                    [[unroll]] for (uint c = 0u; c < COLUMNS; c++)
                        O[r * COLUMNS + c] = O[r * COLUMNS + c] / divisor;
                }
            }
            [[unroll]] for (uint k = 0u; k < KEYS / 16u; k++) {
                FragA a[4];
                [[unroll]] for (uint r = 0u; r < 4u; r++)
                    coopMatLoadNV(a[r], score_s, (query64 + 16u * r) * SS + 2u * k, SS, false);
                [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
                    FragB b;
                    coopMatLoadNV(b, block_s, k * 16u * BS + 2u * (column0 + c), BS, false);
                    [[unroll]] for (uint r = 0u; r < 4u; r++)
                        O[r * COLUMNS + c] = coopMatMulAddNV(a[r], b, O[r * COLUMNS + c]);
                }
            }
            block = after;
        }

        precise float all_sum = sum + subgroupShuffleXor(sum, 1u);
        const uint at = ((SPLIT != 0u ? n * args.n_head_kv : 0u) + head) * at_once + tile * TILE - round_first;
        const bool joins = SPLIT == 0u && n != 0u;
        const vec2 own = vec2(all_sum > 0.0 ? top : kMasked, all_sum);
        vec2 by = vec2(0.0);
        if (joins)
            by = join_stat(all, own);
        else
            all = own;
        barrier();
        if (half_keys == 0u) {
            stat[at + my_query] = all;
            divisor_s[my_query].xy = floatBitsToUint(by);
        }
        barrier();
        [[unroll]] for (uint i = 0u; i < 4u * COLUMNS; i++) {
            const uint q0 = query64 + i / COLUMNS * 16u, quad0 = 4u * (column0 + i % COLUMNS);
            coopMatStoreNV(O[i], block_s, sub * PATCH, 5u, false);
            subgroupMemoryBarrierShared();
            subgroupBarrier();
            [[unroll]] for (uint o = 0u; o < 64u; o += 32u) {
                const uint r = (o + lane) >> 2, c = (o + lane) & 3u, to = (at + q0 + r) * QUADS + quad0 + c;
                vec4 x = uintBitsToFloat(block_s[sub * PATCH + r * 5u + c]);
                if (joins) {
                    const vec4 y = part[to];
                    const vec2 q_by = uintBitsToFloat(divisor_s[q0 + r].xy);
                    [[unroll]] for (uint e = 0u; e < 4u; e++) x[e] = join_value(y[e], x[e], q_by);
                }
                part[to] = x;
            }
            subgroupBarrier();
        }
    }
}

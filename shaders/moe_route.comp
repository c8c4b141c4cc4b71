#version 450
// moe_route.comp: which experts a row uses, and with which weights.
//
// Formula p = softmax(logits) or sigmoid(logits); the n_used largest of p + bias; weights p of those, normalised if
//         asked, times scale
// Buffers 0 logits  f32 [n_row, n_out]                                      read
//         1 bias    f32 [n_expert]                        (kRouteBias)      read
//         2 choice  pairs (id, weight) [n_row, n_used + 1]                  written
//         3 step    StepState, its first word             (from_step)       read
// Push    RouterArgs
// Grid    x: row. Group 256 (a power of two)
// Shared  kMaxExpert floats and bits, a float per invocation, kMaxUsed pairs: 6 KiB
// Cost    4 * n_expert bytes and n_expert^2 / 4 comparisons a row
// Order   by rank: an expert counts those before it, larger ones and equal ones with a lower id. Sums in an invocation
//         by id, then a tree; the chosen ones by id
// CPU     src/machine/cpu/moe.cpp, choose()
// lint: exact
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "moe_args.h"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { RouterArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer L_ { float logits[]; };
layout(set = 0, binding = 1, std430) readonly buffer B_ { float bias[]; };
layout(set = 0, binding = 2, std430) writeonly buffer C_ { uvec2 choice[]; };
layout(set = 0, binding = 3, std430) readonly buffer Step_ { uint step_n_row; };
const uint N = gl_WorkGroupSize.x;
const uint OWN = (kMaxExpert + N - 1u) / N;   // experts of an invocation at most
const float LOWEST = -3.4028234e38;
shared vec4 value_s[kMaxExpert / 4u];   // what decides the choice; LOWEST behind the last
shared uint taken_s[kMaxExpert / 32u];
shared float red[N];
shared uvec2 chosen_s[kMaxUsed];

float sigmoid(float v) {
    precise float d = 1.0 + exp(-v);
    precise float s = 1.0 / d;
    return s;
}

float tree(uint me, float v, bool largest) {
    red[me] = v;
    for (uint n = N / 2u; n > 0u; n >>= 1) {
        barrier();
        if (me < n) {
            precise float both = red[me] + red[me + n];
            red[me] = largest ? max(red[me], red[me + n]) : both;
        }
    }
    barrier();
    const float all = red[0];
    barrier();
    return all;
}

void main() {
    const uint me = gl_LocalInvocationIndex, row = gl_WorkGroupID.x, n = args.n_expert;
    if (args.from_step == 1u && row >= step_n_row) return;
    const uint from = row * args.n_out;
    float p[OWN];
    [[unroll]] for (uint i = 0u; i < OWN; i++) p[i] = me + i * N < n ? logits[from + me + i * N] : LOWEST;
    if ((args.flags & kRouteSigmoid) != 0u) {
        [[unroll]] for (uint i = 0u; i < OWN; i++) p[i] = sigmoid(p[i]);
    } else {
        float highest = LOWEST;
        [[unroll]] for (uint i = 0u; i < OWN; i++) highest = max(highest, p[i]);
        highest = tree(me, highest, true);
        precise float sum = 0.0;
        [[unroll]] for (uint i = 0u; i < OWN; i++) {
            precise float e = me + i * N < n ? exp(p[i] - highest) : 0.0;
            p[i] = e;
            sum = sum + e;
        }
        sum = tree(me, sum, false);
        [[unroll]] for (uint i = 0u; i < OWN; i++) {
            precise float q = p[i] / sum;
            p[i] = q;
        }
    }
    float v[OWN];
    if (me < kMaxExpert / 32u) taken_s[me] = 0u;
    if (me < kMaxUsed) chosen_s[me] = uvec2(min(me, n - 1u), 0u);
    [[unroll]] for (uint i = 0u; i < OWN; i++) {
        const uint e = me + i * N;
        precise float biased = p[i] + ((args.flags & kRouteBias) != 0u && e < n ? bias[e] : 0.0);
        v[i] = e < n ? biased : LOWEST;
        if (e < kMaxExpert) value_s[e >> 2][e & 3u] = v[i];
    }
    barrier();
    [[unroll]] for (uint i = 0u; i < OWN; i++) {
        const uint e = me + i * N;
        if (e >= n) break;
        uint rank = 0u;
        for (uint q = 0u; q < (n + 3u) >> 2; q++) {
            const vec4 o = value_s[q];
            const uint j = 4u * q;
            rank += (o.x > v[i] || (o.x == v[i] && j < e) ? 1u : 0u)
                + (o.y > v[i] || (o.y == v[i] && j + 1u < e) ? 1u : 0u) +
                    (o.z > v[i] || (o.z == v[i] && j + 2u < e) ? 1u : 0u)
                        + (o.w > v[i] || (o.w == v[i] && j + 3u < e) ? 1u : 0u);
        }
        if (rank < args.n_used) atomicOr(taken_s[e >> 5], 1u << (e & 31u));
    }
    barrier();
    [[unroll]] for (uint i = 0u; i < OWN; i++) {
        const uint e = me + i * N;
        if (e >= n || (taken_s[e >> 5] & (1u << (e & 31u))) == 0u) continue;
        uint at = bitCount(taken_s[e >> 5] & ((1u << (e & 31u)) - 1u));
        for (uint k = 0u; k < e >> 5; k++) at += bitCount(taken_s[k]);
        if (at < args.n_used) chosen_s[at] = uvec2(e, floatBitsToUint(p[i]));
    }
    barrier();
    const uint to = row * (args.n_used + 1u);
    if (me < args.n_used) {
        precise float sum = 0.0;
        for (uint j = 0u; j < args.n_used; j++) sum = sum + uintBitsToFloat(chosen_s[j].y);
        precise float by = (args.flags & kRouteNormalise) != 0u ? args.scale / (sum + 1e-20) : args.scale;
        precise float weight = uintBitsToFloat(chosen_s[me].y) * by;
        choice[to + me] = uvec2(chosen_s[me].x, floatBitsToUint(weight));
    }
    if (me == 0u) choice[to + args.n_used] = uvec2(0u,
        floatBitsToUint((args.flags & kRouteShared) != 0u ? sigmoid(logits[from + n]) : 1.0));
}

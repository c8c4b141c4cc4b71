#version 450
// moe_list.comp: sorts the pairs of rows and their experts by expert, for products of many rows.
//
// Buffers 0 choice  pairs (id, weight) [n_row, n_used + 1]                 read
//         1 list    as moe_args.h says                                     written
//         2 step    StepState, its first word             (from_step)      read
// Push    ListArgs
// Grid    1. Group a power of two
// Cost    8 bytes read and 4 written per pair
// Order   an expert's pairs keep their order: a row's results do not depend on its neighbours
// CPU     src/machine/cpu/moe.cpp
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "moe_args.h"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { ListArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer C_ { uvec2 choice[]; };
layout(set = 0, binding = 1, std430) writeonly buffer L_ { uint list[]; };
layout(set = 0, binding = 2, std430) readonly buffer Step_ { uint step_n_row; };
const uint N = gl_WorkGroupSize.x;
shared uint count_s[kMaxExpert];
shared uint next_s[kMaxExpert];
shared uvec2 sum_s[N];   // pairs and blocks of the experts of an invocation

void main() {
    const uint me = gl_LocalInvocationIndex, n_row = args.from_step == 1u ? min(args.n_row, step_n_row) : args.n_row;
    const uint n_pair = n_row * args.n_used, own = (args.n_expert + N - 1u) / N, e0 = me * own,
        e1 = min(e0 + own, args.n_expert);
    for (uint e = me; e < kMaxExpert; e += N) count_s[e] = 0u;
    barrier();
    for (uint p = me; p < n_pair; p += N) atomicAdd(count_s[choice[p + p / args.n_used].x], 1u);
    barrier();
    uvec2 sum = uvec2(0u);
    for (uint e = e0; e < e1; e++) sum += uvec2(count_s[e], (count_s[e] + args.bm - 1u) / args.bm);
    sum_s[me] = sum;
    for (uint d = 1u; d < N; d <<= 1) {
        barrier();
        const uvec2 before = me >= d ? sum_s[me - d] : uvec2(0u);
        barrier();
        sum_s[me] += before;
    }
    barrier();
    uvec2 at = sum_s[me] - sum;
    for (uint e = e0; e < e1; e++) {
        list[kListFirst + e] = at.x;
        next_s[e] = at.x;
        const uint n_block = (count_s[e] + args.bm - 1u) / args.bm;
        for (uint b = 0u; b < n_block; b++) list[kListEntry + at.y + b] = e | b << 12;
        at += uvec2(count_s[e], n_block);
    }
    if (me == N - 1u) {
        list[kListFirst + args.n_expert] = sum_s[me].x;
        list[kListCount] = sum_s[me].y;
    }
    barrier();
    for (uint p = me; p < n_pair; p += N) list[kListEntry + args.n_entry_max
        + atomicAdd(next_s[choice[p + p / args.n_used].x], 1u)] = p;
}

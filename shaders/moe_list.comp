#version 450
// moe_list.comp: sorts the pairs of rows and their experts by expert, for products of many rows.
//
// Buffers 0 choice  pairs (id, weight) [n_row, n_used + 1]                 read
//         1 list    as moe_args.h says                                     written
//         2 step    StepState, its first word             (from_step)      read
// Push    ListArgs
// Grid    1. Group a power of two
// Cost    8 bytes read and 4 written per pair
// Order   of an expert's pairs, and of the entries of a size: any, since a row's results depend on neither
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
shared uint sum_s[N];   // pairs of the experts of an invocation
shared uint n_entry_s[kListSizes + 1];  // an array of the arguments' length would get their stride (make_shaders.py)

// Writes the entries of expert e, which has n places.
void write_entries(uint e, uint n) {
    const uint n_whole = n / args.bm[0], rest = n - n_whole * args.bm[0];
    if (n_whole > 0u) {
        const uint at = kListEntry + args.first_entry[0] + atomicAdd(n_entry_s[0], n_whole);
        for (uint b = 0u; b < n_whole; b++) list[at + b] = e | (b * args.bm[0]) << 12;
    }
    if (rest == 0u) return;
    uint size = args.n_size - 1u;
    while (args.bm[size] < rest) size--;
    list[kListEntry + args.first_entry[size] + atomicAdd(n_entry_s[size], 1u)] = e | (n_whole * args.bm[0]) << 12;
}

void main() {
    const uint me = gl_LocalInvocationIndex, n_row = args.from_step == 1u ? min(args.n_row, step_n_row) : args.n_row;
    const uint n_pair = n_row * args.n_used, own = (args.n_expert + N - 1u) / N, e0 = me * own,
        e1 = min(e0 + own, args.n_expert);
    for (uint e = me; e < kMaxExpert; e += N) count_s[e] = 0u;
    if (me < kListSizes) n_entry_s[me] = 0u;
    barrier();
    for (uint p = me; p < n_pair; p += N) atomicAdd(count_s[choice[p + p / args.n_used].x], 1u);
    barrier();
    uint sum = 0u;
    for (uint e = e0; e < e1; e++) sum += count_s[e];
    sum_s[me] = sum;
    for (uint d = 1u; d < N; d <<= 1) {
        barrier();
        const uint before = me >= d ? sum_s[me - d] : 0u;
        barrier();
        sum_s[me] += before;
    }
    barrier();
    uint at = sum_s[me] - sum;
    for (uint e = e0; e < e1; e++) {
        list[kListFirst + e] = at;
        next_s[e] = at;
        write_entries(e, count_s[e]);
        at += count_s[e];
    }
    if (me == N - 1u) list[kListFirst + args.n_expert] = sum_s[me];
    barrier();
    if (me < kListSizes) list[kListCount + me] = n_entry_s[me];
    for (uint p = me; p < n_pair; p += N) list[kListEntry + args.n_entry_max
        + atomicAdd(next_s[choice[p + p / args.n_used].x], 1u)] = p;
}

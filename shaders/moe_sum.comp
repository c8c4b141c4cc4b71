#version 450
// moe_sum.comp: adds the experts' rows to the residual stream, in a pass of many rows.
//
// Formula y += sum over experts, ids ascending, of weight * part; then the shared expert's
// Buffers 0 choice  pairs (id, weight) [n_row, n_used + 1]                  read
//         1 parts   f32 [n_row * n_used, part_stride]                       read
//         2 rows    f32 [n_row, shared_stride]            (shared_stride)   read
//         3 y       f32 [n_row, y_stride]                                   read, written
//         4 step    StepState, its first word             (from_step)       read
// Push    SumArgs
// Grid    x: row, y: ceil(width / 4 / group). Group any
// Cost    4 * width * (n_used + 3) bytes a row
// Order   experts in order, one invocation four columns
// CPU     src/machine/cpu/moe.cpp
// lint: exact
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "moe_args.h"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { SumArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer C_ { uvec2 choice[]; };
layout(set = 0, binding = 1, std430) readonly buffer P_ { vec4 parts[]; };
layout(set = 0, binding = 2, std430) readonly buffer R_ { vec4 rows[]; };
layout(set = 0, binding = 3, std430) buffer Y_ { vec4 y[]; };
layout(set = 0, binding = 4, std430) readonly buffer Step_ { uint step_n_row; };

void main() {
    const uint row = gl_WorkGroupID.x, k = gl_WorkGroupID.y * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
    if ((args.from_step == 1u && row >= step_n_row) || k >= args.width >> 2) return;
    const uint at = ((row * args.y_stride) >> 2) + k, from = row * (args.n_used + 1u);
    vec4 sum = y[at];
    for (uint j = 0u; j < args.n_used; j++) sum = fma(vec4(uintBitsToFloat(choice[from + j].y)),
        parts[(((row * args.n_used + j) * args.part_stride) >> 2) + k], sum);
    if (args.shared_stride != 0u) sum = fma(vec4(uintBitsToFloat(choice[from + args.n_used].y)),
        rows[((row * args.shared_stride) >> 2) + k], sum);
    y[at] = sum;
}

#version 450
// copy_rows.comp: collects the hidden rows that feed an MTP pass (hidden_rows.glsl).
//
// Buffers 0 step     StepState                     read
//         1 kept     f32 [row, x_stride]           read
//         2 given    f32 [row, width]              read
//         3 y        f32 at its offset             written
//         4 pending  f32 [kPendingRows, width]     read
// Push    RowsArgs
// Grid    x: row, y: ceil(width / 256). Group 256
// Cost    8 * width bytes a row
// CPU     src/machine/cpu: a view of the kept rows
#extension GL_GOOGLE_include_directive : require
#include "args.h"
#include "rows_args.h"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { RowsArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Kept { float kept[]; };
layout(set = 0, binding = 2, std430) readonly buffer Given { float given[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y_ { float y[]; };
layout(set = 0, binding = 4, std430) readonly buffer Pending { float pending[]; };
#include "hidden_rows.glsl"

void main() {
    const uint row = gl_WorkGroupID.x, i = gl_WorkGroupID.y * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
    if (row < step.n_row && i < args.width) y[args.y_offset + row * args.y_stride + i] = hidden_value(row, i);
}

#version 450
// keep_rows.comp: stores the hidden rows of a tentative trunk pass by position, for later MTP passes.
//
// Buffers 0 step     StepState                          read
//         1 x        f32 [row, x_stride]                read
//         2 pending  f32 [kPendingRows, width]          written
// Push    RowsArgs
// Grid    x: row, y: ceil(width / 256). Group 256
// Cost    8 * width bytes a row
#extension GL_GOOGLE_include_directive : require
#include "args.h"
#include "rows_args.h"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { RowsArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer X { float x[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Pending { float pending[]; };

void main() {
    const uint row = gl_WorkGroupID.x, i = gl_WorkGroupID.y * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
    if (row >= step.n_row || i >= args.width) return;
    pending[(step.position + row) % kPendingRows * args.width + i] = x[row * args.x_stride + i];
}

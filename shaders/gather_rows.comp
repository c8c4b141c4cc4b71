#version 450
// gather_rows.comp: copies the kept rows whose logits are wanted side by side, for the head.
//
// Buffers 0 step   StepState                                                               read
//         1 x      f32 [row, x_stride]: row first_logit + j, from hidden_from on if from_kept   read
//         2 y      f32 at its offset                                                       written
// Push    RowsArgs
// Grid    x: row j of n_row, y: ceil(width / 256). Group 256
// Cost    8 * width bytes a row
#extension GL_GOOGLE_include_directive : require
#include "args.h"
#include "rows_args.h"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { RowsArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y_ { float y[]; };

void main() {
    const uint j = gl_WorkGroupID.x, i = gl_WorkGroupID.y * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
    if (step.n_row == 0u || j >= args.n_row || i >= args.width) return;
    const uint row = step.first_logit + j + (args.from_kept != 0u ? step.hidden_from : 0u);
    y[args.y_offset + j * args.y_stride + i] = x[row * args.x_stride + i];
}

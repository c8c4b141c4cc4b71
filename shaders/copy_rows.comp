#version 450
// copy_rows.comp: the hidden rows an MTP pass is fed with: kept rows from hidden_from on, what the host gave,
// or what keep_rows left for these positions.
//
// Grid    x: row, y: width / 256 (rounded up).   Group  256 (spec 0).
// Memory  0 step   StepState             read
//         1 kept   f32 [row, x_stride]   read
//         2 given  f32 [row, width]      read
//         3 y      f32 by offset         written
//         4 behind f32 [kPendingRows, width]  read
// Push    RowsArgs.
#extension GL_GOOGLE_include_directive : require
#include "args.h"
#include "rows_args.h"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { RowsArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Kept { float kept[]; };
layout(set = 0, binding = 2, std430) readonly buffer Given { float given[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y_ { float y[]; };
layout(set = 0, binding = 4, std430) readonly buffer Behind { float behind[]; };

void main() {
    const uint row = gl_WorkGroupID.x, i = gl_WorkGroupID.y * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
    if (row >= step.n_row || i >= args.width) return;
    const uint from = step.hidden_from;
    y[args.y_offset + row * args.y_stride + i] = (from & kHiddenGiven) != 0u  ? given[row * args.width + i]
                                                   : (from & kHiddenPending) != 0u ? behind[(step.position + row) % kPendingRows * args.width + i]
                                                                                  : kept[(from + row) * args.x_stride + i];
}

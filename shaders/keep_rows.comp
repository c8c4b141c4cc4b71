#version 450
// keep_rows.comp: the hidden rows of a tentative trunk pass, put where later MTP passes find them by position.
//
// Grid    x: row, y: width / 256 (rounded up).   Group  256 (spec 0).
// Memory  0 step    StepState                     read
//         1 x       f32 [row, x_stride]           read
//         2 behind  f32 [kMaxPendingHidden, width]       written
// Push    RowsArgs.
#extension GL_GOOGLE_include_directive : require
#include "args.h"
#include "rows_args.h"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { RowsArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer X { float x[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Behind { float behind[]; };

void main() {
    const uint row = gl_WorkGroupID.x, i = gl_WorkGroupID.y * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
    if (row >= step.n_row || i >= args.width) return;
    behind[(step.position + row) % kPendingRows * args.width + i] = x[row * args.x_stride + i];
}

#version 450
// rms_rows.comp: RMS norm as a kernel of its own, where the rows themselves are wanted: the kept hidden rows above
// all.
//
// Formula y = x / rms(x) * w
// Buffers 0 step  StepState                      read
//         1 x     f32 [row, x_stride]            read
//         2 w     f32 [width]                    read
//         3 y     f32 at its offset              written
//         4 squares  f32 [row, squares_stride]   read unless squares_stride is 0
//         5 kept_x   f32 [row, x_stride]         written unless it is 0: a copy of x
//         6 kept_squares                         written unless it is 0: a copy of squares
// Push    RowsArgs; from_kept: row i is written as row hidden_from + i
// Grid    x: row. Group 256 (a power of two)
// Cost    8 * width bytes a row, twice that with copies
// Order   rms_common.glsl
// CPU     src/machine/cpu, rms_norm
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "args.h"
#include "rows_args.h"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { RowsArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 2, std430) readonly buffer W_ { float w_norm[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y_ { float y[]; };
layout(set = 0, binding = 4, std430) readonly buffer Squares_ { float squares[]; };
layout(set = 0, binding = 5, std430) writeonly buffer KeptX_ { float kept_x[]; };
layout(set = 0, binding = 6, std430) writeonly buffer KeptSquares_ { float kept_squares[]; };
#define X(i) x[gl_WorkGroupID.x * args.x_stride + (i)]
#define W(i) w_norm[i]
#include "rms_common.glsl"

void main() {
    const uint row = gl_WorkGroupID.x, t = gl_LocalInvocationIndex, from = row * args.x_stride;
    if (row >= step.n_row) return;
    const float unit = rms_unit();
    WRITE_NORMED(y, args.y_offset + (row + (args.from_kept != 0u ? step.hidden_from : 0u)) * args.y_stride, unit)
    const uint n = args.squares_stride;
    if (n == 0u) return;
    for (uint i = t; i < args.x_stride; i += gl_WorkGroupSize.x) kept_x[from + i] = x[from + i];
    for (uint i = t; i < n; i += gl_WorkGroupSize.x) kept_squares[row * n + i] = squares[row * n + i];
}

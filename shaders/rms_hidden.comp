#version 450
// rms_hidden.comp: RMS norm of the hidden rows that feed an MTP pass, read where they are.
//
// Formula y = x / rms(x) * w, x as in hidden_rows.glsl
// Buffers 0 step     StepState                     read
//         1 kept     f32 [row, x_stride]           read
//         2 given    f32 [row, width]              read
//         3 y        f32 at its offset             written
//         4 pending  f32 [kPendingRows, width]     read
//         5 w        f32 [width]                   read
// Push    RowsArgs
// Grid    x: row. Group 256 (a power of two)
// Cost    8 * width bytes a row
// Order   rms_common.glsl
// CPU     src/machine/cpu, rms_norm of a view of the kept rows
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "args.h"
#include "rows_args.h"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { RowsArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Kept { float kept[]; };
layout(set = 0, binding = 2, std430) readonly buffer Given { float given[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y_ { float y[]; };
layout(set = 0, binding = 4, std430) readonly buffer Pending { float pending[]; };
layout(set = 0, binding = 5, std430) readonly buffer W_ { float w_norm[]; };
#include "hidden_rows.glsl"
#define X(i) hidden_value(gl_WorkGroupID.x, i)
#define W(i) w_norm[i]
#include "rms_common.glsl"

void main() {
    const uint row = gl_WorkGroupID.x;
    if (row >= step.n_row) return;
    const float unit = rms_unit();
    WRITE_NORMED(y, args.y_offset + row * args.y_stride, unit)
}

#version 450
// swiglu_rows.comp: SwiGLU as a kernel of its own, where the product before it could not apply it.
//
// Formula y = min(silu(g), limit) * clamp(u, -limit, limit); limit 0: no clamps
// Buffers 0 step   StepState                                read
//         1 g      f32 [row, x_stride]; may be y itself     read
//         2 u      f32 [row, x_stride]                      read
//         3 y      f32 at its offset                        written
// Push    RowsArgs
// Grid    x: row, y: ceil(width / 256). Group 256
// Cost    12 * width bytes a row
// CPU     src/machine/cpu, swiglu
#extension GL_GOOGLE_include_directive : require
#include "args.h"
#include "rows_args.h"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { RowsArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer G_ { float g[]; };
layout(set = 0, binding = 2, std430) readonly buffer U_ { float u[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y_ { float y[]; };

void main() {
    const uint row = gl_WorkGroupID.x, i = gl_WorkGroupID.y * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
    if (row >= step.n_row || i >= args.width) return;
    const float v = g[row * args.x_stride + i];
    precise float e = exp(-abs(v));
    precise float d = 1.0 + e;
    precise float s = v * ((v >= 0.0 ? 1.0 : e) / d);
    float up = u[row * args.x_stride + i];
    if (args.limit > 0.0) {
        s = min(s, args.limit);
        up = clamp(up, -args.limit, args.limit);
    }
    precise float p = s * up;
    y[args.y_offset + row * args.y_stride + i] = p;
}

#version 450
// ring_any.comp: after delta_any, stores the last raw inputs of the convolution in its ring.
//
// Buffers 0 step  StepState                            read
//         1 acts  f32: u at its offset                 read
//         2 ring  f32 [kConvRing, conv_dim]            written
// Push    DeltaAnyArgs
// Grid    x: ceil(conv_dim / 64), y: kConvRing. Group 64
// Cost    8 * kConvRing * conv_dim bytes
// CPU     src/machine/cpu, delta
#extension GL_GOOGLE_include_directive : require
#include "args.h"
#include "any_args.h"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { DeltaAnyArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Acts { float acts[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Ring { float ring[]; };

void main() {
    const uint conv_dim = 2u * args.n_head_k * args.d_key + args.n_head_v * args.d_val;
    const uint channel = gl_WorkGroupID.x * gl_WorkGroupSize.x + gl_LocalInvocationIndex, back = gl_WorkGroupID.y;
    if (channel >= conv_dim || back >= step.n_row) return;
    const uint row = step.n_row - 1u - back;
    ring[((step.position + row) % kConvRing) * conv_dim + channel] =
        acts[args.u_offset + row * args.u_stride + channel];
}

#version 450
// delta_gate.comp: third of three kernels of a DeltaNet layer in a committed pass: the gated norm.
//
// Formula out = norm * S'q / rms(S'q) * silu(z), rms over 128 columns of a value head
// Buffers 0 step   StepState                              read
//         1 acts   f32: z at its offset                   read
//         2 norm   f32 [128]                              read
//         3 out    f32 at its offset: S'q of delta_scan   read, overwritten in place by its only reader
// Push    DeltaArgs
// Grid    x: row, y: ceil(n_head_v / 8). Group 64: a lane group per head
// Cost    12 * 128 bytes per row and head
// Order   see step_common.glsl
// CPU     src/machine/cpu, delta
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"

layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { DeltaArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Acts { float acts[]; };
layout(set = 0, binding = 2, std430) readonly buffer Norm { float norm[]; };
layout(set = 0, binding = 3, std430) buffer Out { float result[]; };

void main() {
    const uint row = gl_WorkGroupID.x, t = gl_LocalInvocationIndex, lane = t & 7u;
    if (row >= step.n_row) return;
    const uint h = gl_WorkGroupID.y * 8u + (t >> 3);
    const bool real = h < args.n_head_v;
    const uint at = args.out_offset + row * args.out_stride + (real ? h : 0u) * 128u;
    float o[16];
    precise float sum = 0.0;
    [[unroll]] for (uint i = 0u; i < 16u; i++) {
        o[i] = result[at + i * 8u + lane];
        sum = fma(o[i], o[i], sum);
    }
    precise float unit = inversesqrt(group_sum(sum) * (1.0 / 128.0) + args.eps);
    if (!real) return;
    [[unroll]] for (uint i = 0u; i < 16u; i++) {
        const uint c = i * 8u + lane;
        precise float y = o[i] * unit;
        y = y * norm[c];
        y = y * silu(acts[args.z_offset + row * args.z_stride + h * 128u + c]);
        result[at + c] = y;
    }
}

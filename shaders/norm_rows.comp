#version 450
// norm_rows.comp: rms norm of whole rows, or a copy of them, for where no product can take it along: the
// MTP block's inputs, the rows whose logits are wanted, traces. Twin of src/machine/cpu's rms_norm.
//
// Grid    x: output row (any number; rows beyond the pass leave at once).   Group  256 (spec 0, always 256).
// Memory  0 step    StepState          read
//         1 in      f32 by offset      read
//         2 weight  f32 [width]        read (copy 0)
//         3 out     f32 by offset      written; not the rows of `in`, unless copy is 0 and from is kRowSame
// Push    NormArgs.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { NormArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer In { float source[]; };
layout(set = 0, binding = 2, std430) readonly buffer Weight { float weight[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Out { float result[]; };
shared float sums_s[32];

void main() {
    const uint t = gl_LocalInvocationIndex, row = gl_WorkGroupID.x;
    const uint first = args.from == kRowHidden ? step.hidden_from : args.from == kRowLogit ? step.first_logit : 0u;
    const uint n_row = args.from == kRowLogit ? step.n_row - min(step.first_logit, step.n_row) : step.n_row;
    if (row >= n_row) return;
    const uint at = args.in_offset + (first + row) * args.in_stride, to = args.out_offset + row * args.out_stride;
    if (args.copy != 0u) {
        for (uint i = t; i < args.width; i += 256u) result[to + i] = source[at + i];
        return;
    }
    precise float sum = 0.0;
    for (uint i = t; i < args.width; i += 256u) sum = fma(source[at + i], source[at + i], sum);
    const float eight = group_sum(sum);
    if ((t & 7u) == 0u) sums_s[t >> 3] = eight;
    barrier();
    precise float all = 0.0;
    for (uint i = 0u; i < 32u; i++) all = all + sums_s[i];
    precise float unit = inversesqrt(all / float(args.width) + args.eps);
    for (uint i = t; i < args.width; i += 256u) {
        precise float y = (source[at + i] * unit) * weight[i];
        result[to + i] = y;
    }
}

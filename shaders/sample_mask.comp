#version 450
// sample_mask.comp: logits of ids that are not allowed become minus infinity, which no sampling kernel keeps beside a
// finite one.
//
// Buffers 0 step    StepState, history, allowed ids   read
//         1 logits  f32 at its offset                 written
// Push    SamplePassArgs
// Grid    x: slice (n_part), y: logits row. Group 256
// Cost    4 * n_vocab bytes a row
// CPU     src/engine/sampler.cpp
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { SamplePassArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; uint unused[kHistoryWord - kStateWords];
    uint history[kHistory]; uint bias[2 * kMaxBias]; uint allowed[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Logits { float logits[]; };

void main() {
    const uint row = gl_WorkGroupID.y;
    if (step.n_row == 0u || row >= step.n_row - step.first_logit) return;
    const uint begin = gl_WorkGroupID.x * args.d_part, end = min(begin + args.d_part, args.n_vocab);
    const uint at = args.logits_offset + row * args.logits_stride;
    for (uint i = begin + gl_LocalInvocationIndex; i < end; i += gl_WorkGroupSize.x)
        if ((allowed[i >> 5] >> (i & 31u) & 1u) == 0u) logits[at + i] = uintBitsToFloat(0xff800000u);
}

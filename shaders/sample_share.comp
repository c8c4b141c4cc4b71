#version 450
// sample_share.comp: how likely the draft block finds its guess: sums for the guess's share of the softmax.
//
// Formula share[guess, s] = sum of exp(logit[i] - logit[sampled]) over the ids i of slice s; 1 / (sum of all slices) is
//         the probability of the guess. Its logit far below the largest: infinity, so 0
// Buffers 0 step    StepState: the id in sampled[0]                 read
//         1 logits  f32 [n_vocab] of the row it was sampled from    read
//         2 share   f32 [guess, n_part]                             written
// Push    ShareArgs; slice s holds ids s * kShareSlice .. s * kShareSlice + kShareSlice - 1
// Grid    x: slice (n_part). Group 256 (a power of two)
// Cost    4 * n_vocab bytes
// Order   of a slice, by invocation: the same bits in every run
// CPU     src/engine/draft.cpp
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { ShareArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Logits { float logits[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Share { float share[]; };
shared float sum_s[gl_WorkGroupSize.x];

void main() {
    const uint t = gl_LocalInvocationIndex;
    if (step.n_row == 0u) return;
    const uint begin = gl_WorkGroupID.x * kShareSlice, end = min(begin + kShareSlice, args.n_vocab);
    const float chosen = logits[step.sampled[0]];
    precise float sum = 0.0;
    for (uint i = begin + t; i < end; i += gl_WorkGroupSize.x) {
        const float x = logits[i];
        if (x == x) sum += exp(x - chosen);
    }
    sum_s[t] = sum;
    barrier();
    for (uint n = gl_WorkGroupSize.x / 2u; n > 0u; n >>= 1) {
        if (t < n) sum_s[t] += sum_s[t + n];
        barrier();
    }
    if (t == 0u) share[args.guess * args.n_part + gl_WorkGroupID.x] = sum_s[0];
}

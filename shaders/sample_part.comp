#version 450
// sample_part.comp: the largest logit of each slice of the vocabulary, ties to the lower id, never a NaN.
//
// Buffers 0 step    StepState                            read
//         1 logits  f32 at its offset, 16-byte aligned   read
//         2 part    (f32 bits, id) [row, n_part]         written
// Push    SamplePassArgs; slice s holds ids s * d_part .. s * d_part + d_part - 1; n_part * d_part >= n_vocab
// Grid    x: slice (n_part), y: logits row (at most kMaxRows). Group 256 (a power of two)
// Cost    4 * n_vocab bytes a row
// Order   a maximum: any order gives the same bits
// CPU     src/engine/sampler.cpp
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
#include "sample_common.glsl"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { SamplePassArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Logits { float logits[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Part { uvec2 part[]; };
shared float best_s[gl_WorkGroupSize.x];
shared uint id_s[gl_WorkGroupSize.x];

void main() {
    const uint t = gl_LocalInvocationIndex, row = gl_WorkGroupID.y;
    if (step.n_row == 0u || row >= step.n_row - step.first_logit) return;
    const uint begin = gl_WorkGroupID.x * args.d_part, end = min(begin + args.d_part, args.n_vocab);
    const uint at = args.logits_offset + row * args.logits_stride;
    float best = kMasked;
    uint id = 0xffffffffu;
    for (uint i = begin + t; i < end; i += gl_WorkGroupSize.x) {
        const float x = logit_of(logits[at + i]);
        if (x > best || id == 0xffffffffu) {
            best = x;
            id = i;
        }
    }
    best_s[t] = best;
    id_s[t] = id;
    barrier();
    for (uint n = gl_WorkGroupSize.x / 2u; n > 0u; n >>= 1) {
        if (t < n) {
            const float x = best_s[t + n];
            const uint j = id_s[t + n];
            if (j != 0xffffffffu && (id_s[t] == 0xffffffffu || x > best_s[t] || (x == best_s[t] && j < id_s[t]))) {
                best_s[t] = x;
                id_s[t] = j;
            }
        }
        barrier();
    }
    if (t == 0u) part[row * args.n_part + gl_WorkGroupID.x] = uvec2(floatBitsToUint(best_s[0]), id_s[0]);
}

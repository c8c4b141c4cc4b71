#version 450
// sample_final.comp: greedy sampling: the token of each logits row from the largest of its slices.
//
// Buffers 0 step  StepState                       read; sampled[row] written
//         1 part  (f32 bits, id) [row, n_part]    read
// Push    SamplePassArgs
// Grid    x: logits row. Group 256 (a power of two)
// Cost    8 * n_part bytes a row
// Order   a maximum, ties to the lower id
// CPU     src/engine/sampler.cpp
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { SamplePassArgs args; };
layout(set = 0, binding = 0, std430) buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Part { uvec2 part[]; };
shared float best_s[gl_WorkGroupSize.x];
shared uint id_s[gl_WorkGroupSize.x];

void main() {
    const uint t = gl_LocalInvocationIndex, row = gl_WorkGroupID.x;
    if (step.n_row == 0u || row >= step.n_row - step.first_logit) return;
    float best = kMasked;
    uint id = 0xffffffffu;
    for (uint i = t; i < args.n_part; i += gl_WorkGroupSize.x) {
        const uvec2 p = part[row * args.n_part + i];
        const float x = uintBitsToFloat(p.x);
        if (p.y != 0xffffffffu && (id == 0xffffffffu || x > best || (x == best && p.y < id))) {
            best = x;
            id = p.y;
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
    if (t == 0u) step.sampled[row] = id_s[0];
}

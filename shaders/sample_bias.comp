#version 450
// sample_bias.comp: biases on the logits of each row, in place. Runs before sample_penalty and sample_part where the
// sampling has any.
//
// Formula l += bias for every bias of an id, in their order
// Buffers 0 step    StepState and biases       read
//         1 logits  f32 at its offset          read, written: one invocation per distinct id
//         2 ids     u32 [n_vocab]: the id of each logit, ascending    read (chosen; else any buffer)
// Push    SamplePassArgs
// Grid    x: logits row. Group 256
// Cost    16 bytes per bias and row, chosen: and log2(n_vocab) reads of ids
// CPU     src/engine/sampler.cpp
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { SamplePassArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; uint unused[kBiasWord - kStateWords];
    uvec2 bias[kMaxBias]; };
layout(set = 0, binding = 1, std430) buffer Logits { float logits[]; };
layout(set = 0, binding = 2, std430) readonly buffer Ids { uint ids[]; };

// Where the logit of an id is in a row; n_vocab or more: it has none.
uint place_of(uint id) {
    if (args.chosen == 0u) return id;
    uint low = 0u, high = args.n_vocab;
    while (low < high) {
        const uint middle = (low + high) / 2u;
        if (ids[middle] < id)
            low = middle + 1u;
        else
            high = middle;
    }
    return low < args.n_vocab && ids[low] == id ? low : args.n_vocab;
}

void main() {
    const uint row = gl_WorkGroupID.x;
    if (step.n_row == 0u || row >= step.n_row - step.first_logit) return;
    const uint n = min(step.sampling.n_bias, kMaxBias);
    for (uint i = gl_LocalInvocationIndex; i < n; i += gl_WorkGroupSize.x) {
        const uint id = bias[i].x;
        if (i > 0u && bias[i - 1u].x == id) continue;  // the invocation of the first one adds it
        const uint place = place_of(id);
        if (place >= args.n_vocab) continue;
        const uint at = args.logits_offset + row * args.logits_stride + place;
        precise float x = logits[at];
        for (uint j = i; j < n && bias[j].x == id; j++) x = x + uintBitsToFloat(bias[j].y);
        logits[at] = x;
    }
}

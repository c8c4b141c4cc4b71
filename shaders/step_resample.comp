#version 450
// step_resample.comp: begins and ends the sampling of one row of the last trunk pass from allowed ids alone, after its
// first token was refused.
//
// Formula mode 0: the sampling kernels see row `row` as their only one. mode 1: sampled[0] is the token for position
//         base + row + 1; rows 0 .. row are committed, as if the pass had ended there
// Buffers 0 step     StepState, history, allowed ids   read, written
//         1 allowed  u32 [n_word]: bit id % 32 of word id / 32   read (mode 0); host-visible
//         2 ring     RingEntry [ring_length]           written (mode 1); host-visible
// Push    ResampleArgs
// Grid    1. Group 256
// Host    src/machine/vulkan/device_loop.cpp writes the ids and reads the ring
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { ResampleArgs args; };
layout(set = 0, binding = 0, std430) buffer Step { StepState step; uint unused[kHistoryWord - kStateWords];
    uint history[kHistory]; uint bias[2 * kMaxBias]; uint allowed[]; };
layout(set = 0, binding = 1, std430) readonly buffer Allowed { uint given[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Ring { uvec4 ring[]; };

void main() {
    const uint t = gl_LocalInvocationIndex;
    if (args.mode == 0u) {
        for (uint i = t; i < args.n_word; i += gl_WorkGroupSize.x) allowed[i] = given[i];
        if (t == 0u) step.first_logit = args.row;
        return;
    }
    if (t != 0u) return;
    const uint token = step.sampled[0], p = step.base + args.row + 1u;
    uint done = p + 1u >= step.limit ? 1u : 0u;
    for (uint k = 0u; k < min(step.n_stop, kMaxStop); k++)
        if (step.stop[k] == token) done = 1u;
    step.first_logit = 0u;
    history[p % kHistory] = token;
    step.n_accept = args.row;
    step.done = done;
    const uint s = step.ring_write;
    ring[s % args.ring_length] = uvec4(s + 1u, token, p, kRingLast | done * kRingDone | step.n_draft << 8
        | args.row << 16);
    step.ring_write = s + 1u;
}

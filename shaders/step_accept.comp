#version 450
// step_accept.comp: ends a trunk pass: accepts drafts while they equal the sampled tokens, emits the tokens, checks
// whether the text ends.
//
// Formula sampled[i] follows row base_row + i and is the token for position base + i + 1. Tokens 0 .. n_accept are
//         emitted and written to the history; rows 0 .. n_accept are committed
// Buffers 0 step   StepState and history    read, written
//         1 ring   RingEntry [ring_length]  written; host-visible
// Push    StepArgs; ring_length
// Grid    1. Group 32, of which one invocation works
// Host    src/machine/vulkan/device_loop.cpp reads the ring
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { StepArgs args; };
layout(set = 0, binding = 0, std430) buffer Step { StepState step; uint unused[kHistoryWord - kStateWords];
    uint history[kHistory]; };
layout(set = 0, binding = 1, std430) writeonly buffer Ring { uvec4 ring[]; };

// Synthetic acceptance of the draft for a position, for measuring. The host computes the same.
bool synth_agrees(uint position) {
    uint x = position * 0x9E3779B9u ^ step.synth_seed;
    x = (x ^ x >> 16u) * 0x7FEB352Du;
    x = (x ^ x >> 15u) * 0x846CA68Bu;
    x ^= x >> 16u;
    return float(x >> 8u) < step.synth_accept * 16777216.0;
}

void main() {
    if (gl_LocalInvocationIndex != 0u || step.n_row == 0u) return;
    const uint n_draft = min(step.n_draft, step.n_row - 1u);
    uint n = 0u, done = 0u;
    for (uint i = 0u; i <= n_draft; i++) {
        const uint p = step.base + i + 1u, draft = history[p % kHistory];
        bool agrees = i < n_draft && draft == step.sampled[i];
        if (step.synth_accept > 0.0 && i < n_draft) {
            agrees = synth_agrees(p);
            if (agrees) step.sampled[i] = draft;
        }
        const uint token = step.sampled[i];
        history[p % kHistory] = token;
        n = i + 1u;
        for (uint k = 0u; k < min(step.n_stop, kMaxStop); k++)
            if (step.stop[k] == token) done = 1u;
        if (p + 1u >= step.limit) done = 1u;
        if (done != 0u || !agrees) break;
    }
    step.n_accept = n - 1u;
    step.done = done;
    const uint s0 = step.ring_write;
    for (uint i = 0u; i < n; i++) {
        const uint last = i + 1u == n ? 1u : 0u;
        ring[(s0 + i) % args.ring_length] = uvec4(s0 + i + 1u, step.sampled[i], step.base + i + 1u,
                                                  last * kRingLast | last * done * kRingDone | n_draft << 8
                                                      | (n - 1u) << 16);
    }
    step.ring_write = s0 + n;
}

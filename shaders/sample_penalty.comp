#version 450
// sample_penalty.comp: repeat, frequency and presence penalties on the logits of each row, in place. Runs before
// sample_part when any of them is in force.
//
// Formula once per distinct id among the last penalty_window tokens before the row's own position, k = how often it
//         occurs: l = l > 0 ? l / repeat : l * repeat, then l -= k * frequency + presence
// Buffers 0 step    StepState and history      read
//         1 logits  f32 at its offset          read, written: one invocation per distinct id
// Push    SamplePassArgs
// Grid    x: logits row. Group 256
// Cost    penalty_window^2 / 2 comparisons a row
// CPU     src/engine/sampler.cpp
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { SamplePassArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; uint unused[kHistoryWord - kStateWords];
    uint history[kHistory]; };
layout(set = 0, binding = 1, std430) buffer Logits { float logits[]; };
shared uint ids_s[2048];

void main() {
    const uint row = gl_WorkGroupID.x, t = gl_LocalInvocationIndex;
    if (step.n_row == 0u || row >= step.n_row - step.first_logit) return;
    const uint end = step.position + step.token_shift + step.first_logit + row + 1u;  // one past the row's token
    const uint n = min(min(step.sampling.penalty_window, kMaxPenaltyWindow), end);
    const SampleArgs s = step.sampling;
    // Pieces of the window are compared with the whole window, 2048 ids of it at a time.
    for (uint i0 = 0u; i0 < n; i0 += gl_WorkGroupSize.x) {
        const uint i = i0 + t;
        const uint id = i < n ? history[(end - n + i) % kHistory] : 0xffffffffu;
        uint count = 0u;
        bool first = true;
        for (uint j0 = 0u; j0 < n; j0 += 2048u) {
            barrier();
            for (uint j = j0 + t; j < min(j0 + 2048u, n); j += gl_WorkGroupSize.x)
                ids_s[j - j0] = history[(end - n + j) % kHistory];
            barrier();
            for (uint j = j0; j < min(j0 + 2048u, n); j++)
                if (ids_s[j - j0] == id) {
                    count++;
                    if (j < i) first = false;
                }
        }
        if (i < n && first && id < args.n_vocab) {
            const uint at = args.logits_offset + row * args.logits_stride + id;
            precise float x = logits[at];
            x = x > 0.0 ? x / s.repeat_penalty : x * s.repeat_penalty;
            precise float y = x - (float(count) * s.frequency_penalty + s.presence_penalty);
            logits[at] = y;
        }
    }
}

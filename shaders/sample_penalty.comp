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
// Shared  16 KiB
// Cost    a sort of the window: n/2 * log2(n) * (log2(n) + 1) / 2 comparisons a row, n the next power of two
// Loops   at most 900 iterations an invocation: llvmpipe leaves a loop after 65,535
// CPU     src/engine/sampler.cpp
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { SamplePassArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; uint unused[kHistoryWord - kStateWords];
    uint history[kHistory]; };
layout(set = 0, binding = 1, std430) buffer Logits { float logits[]; };
shared uint ids_s[kMaxPenaltyWindow];

void main() {
    const uint row = gl_WorkGroupID.x, t = gl_LocalInvocationIndex;
    if (step.n_row == 0u || row >= step.n_row - step.first_logit) return;
    const uint end = step.position + step.token_shift + step.first_logit + row + 1u;  // one past the row's token
    const uint n = min(min(step.sampling.penalty_window, kMaxPenaltyWindow), end);
    const SampleArgs s = step.sampling;
    if (n == 0u) return;
    // Bitonic sort; what is beyond the window goes last.
    const uint size = 2u << findMSB(max(n - 1u, 1u));
    for (uint i = t; i < size; i += gl_WorkGroupSize.x)
        ids_s[i] = i < n ? history[(end - n + i) % kHistory] : 0xffffffffu;
    barrier();
    for (uint run = 2u; run <= size; run *= 2u)
        for (uint apart = run / 2u; apart > 0u; apart /= 2u) {
            for (uint pair = t; pair < size / 2u; pair += gl_WorkGroupSize.x) {
                const uint i = 2u * pair - (pair & (apart - 1u)), j = i + apart;
                const uint a = ids_s[i], b = ids_s[j];
                if ((a > b) == ((i & run) == 0u)) {
                    ids_s[i] = b;
                    ids_s[j] = a;
                }
            }
            barrier();
        }
    // The first of equal ids finds the last.
    for (uint i = t; i < n; i += gl_WorkGroupSize.x) {
        const uint id = ids_s[i];
        if (id >= args.n_vocab || (i > 0u && ids_s[i - 1u] == id)) continue;
        uint last = i;
        for (uint by = size / 2u; by > 0u; by /= 2u)
            if (last + by < n && ids_s[last + by] == id) last += by;
        const uint count = last - i + 1u, at = args.logits_offset + row * args.logits_stride + id;
        precise float x = logits[at];
        x = x > 0.0 ? x / s.repeat_penalty : x * s.repeat_penalty;
        precise float y = x - (float(count) * s.frequency_penalty + s.presence_penalty);
        logits[at] = y;
    }
}

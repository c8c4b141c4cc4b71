#version 450
// step_next.comp: after a token is sampled in an MTP pass: appends it to the history as a draft, and opens a pass of
// one row over it, fed with the hidden row that it was sampled from. Where drafts end before an unlikely one, an
// unlikely draft before this one ends the passes.
//
// Buffers 0 step  StepState and history   read, written
//         1 token u32: the id of each place in the draft vocabulary   read (mode 1; else any buffer)
//         2 share f32 [guess, n_part] of sample_share                 read (n_part > 0; else any buffer)
// Push    StepArgs; mode 1: sampled ids are places in a draft vocabulary
// Grid    1. Group 32
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { StepArgs args; };
layout(set = 0, binding = 0, std430) buffer Step { StepState step; uint unused[kHistoryWord - kStateWords];
    uint history[kHistory]; };
layout(set = 0, binding = 1, std430) readonly buffer Token { uint token[]; };
layout(set = 0, binding = 2, std430) readonly buffer Share { float share[]; };
#include "step_share.glsl"

void main() {
    const bool follows = args.n_part > 0u && args.guess > 0u;
    if (follows) read_shares(args.guess - 1u);
    if (gl_LocalInvocationIndex != 0u) return;
    if (follows && !is_likely(0u)) {
        step.n_row = 0u;
        return;
    }
    if (step.n_row > 0u) {
        const uint sampled = step.sampled[step.n_row - 1u - step.first_logit];
        history[(step.position + step.n_row + step.token_shift) % kHistory] = args.mode != 0u ? token[sampled]
            : sampled;
        step.hidden_from = step.n_row - 1u;
        step.position += step.n_row;
        step.n_row = 1u;
        step.first_logit = 0u;
    }
}

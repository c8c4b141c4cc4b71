#version 450
// step_next.comp: after a token is sampled in an MTP pass: the sampled token joins the history as a draft, and a
// one-row pass over it begins, fed from the hidden row of the row it was picked from.
//
// Grid    1 group of 32 (spec 0).
// Memory  0 step  StepState and history   read, written
//         1 token u32: the id of each place   read (mode 1: a draft vocabulary; else any buffer)
// Push    StepArgs: mode.
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { StepArgs args; };
layout(set = 0, binding = 0, std430) buffer Step { StepState step; uint unused[kHistoryWord - kStateWords]; uint history[kHistory]; };
layout(set = 0, binding = 1, std430) readonly buffer Token { uint token[]; };

void main() {
    if (gl_LocalInvocationIndex != 0u) return;
    if (step.n_row > 0u) {
        const uint sampled = step.sampled[step.n_row - 1u - step.first_logit];
        history[(step.position + step.n_row + step.token_shift) % kHistory] = args.mode != 0u ? token[sampled] : sampled;
        step.hidden_from = step.n_row - 1u;
        step.position += step.n_row;
        step.n_row = 1u;
        step.first_logit = 0u;
    }
}

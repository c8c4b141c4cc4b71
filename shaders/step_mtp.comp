#version 450
// step_mtp.comp: after step_accept, opens the MTP pass over the rows just committed: row i holds the token that
// followed row i of the trunk pass, and is fed with that row's hidden state. Logits of the last row only.
//
// Buffers 0 step  StepState   read, written
// Push    StepArgs; token_shift 1: the row of token p is at position p - 1 (no gap at position 0), 0: at position p
// Grid    1. Group 32
// Host    src/engine runs the same pass by Step on the CPU
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { StepArgs args; };
layout(set = 0, binding = 0, std430) buffer Step { StepState step; };

void main() {
    if (gl_LocalInvocationIndex != 0u) return;
    if (step.done != 0u || step.n_row == 0u) {
        step.n_row = 0u;
    } else {
        step.n_row = step.n_accept + 1u;
        step.position = step.base + 1u - args.token_shift;
        step.token_shift = args.token_shift;
        step.first_logit = step.n_row - 1u;
        step.first_key = step.mtp_first_key;
        step.hidden_from = step.base_row;
    }
}

#version 450
// step_block.comp: between the passes of one cycle's drafts, for plans with several MTP blocks: each block's cache
// needs the committed rows, then the drafts so far.
//
// Buffers 0 step  StepState   read, written
// Push    StepArgs; mode 0: remembers the pass just opened, over committed rows; 1: opens it again, without logits; 2:
//         opens one over the n_draft drafts after it, fed from row 0 on, logits of the last
// Grid    1. Group 32
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { StepArgs args; };
layout(set = 0, binding = 0, std430) buffer Step { StepState step; };

void main() {
    if (gl_LocalInvocationIndex != 0u) return;
    if (args.mode == 0u) {
        step.true_row = step.n_row;
        step.true_position = step.position;
        step.true_from = step.hidden_from;
        return;
    }
    step.n_row = args.mode == 1u || step.true_row == 0u ? step.true_row : args.n_draft;
    step.position = step.true_position + (args.mode == 1u ? 0u : step.true_row);
    step.hidden_from = args.mode == 1u ? step.true_from : 0u;
    step.first_logit = args.mode == 1u ? step.n_row : max(step.n_row, 1u) - 1u;
}

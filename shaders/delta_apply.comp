#version 450
// delta_apply.comp: applies the committed rows of the last tentative pass to the state, outside a pass: before a state
// is saved. Same multiply-adds in the same order as delta_step and delta_any.
//
// Formula S = decay * S + u k', once for each committed row
// Buffers 0 step    StepState (parity)                                             read
//         1 state   f32 [n_head_v, d_val, d_key]                                   read, written
//         2 term    f32 [2, kMaxRows, n_head_v * (1 + d_key + d_val)]              read
// Push    ApplyArgs
// Grid    x: value head, y: ceil(d_val * d_key / 256). Group 256: a number each
// Cost    8 * d_key * d_val bytes per head
// Order   rows in order, one number per invocation
// CPU     src/machine/cpu, delta
#extension GL_GOOGLE_include_directive : require
#include "args.h"
#include "rows_args.h"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { ApplyArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) buffer State { float state[]; };
layout(set = 0, binding = 2, std430) readonly buffer Term { float term[]; };

void main() {
    const uint h = gl_WorkGroupID.x, i = gl_WorkGroupID.y * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
    if (i >= args.d_val * args.d_key) return;
    const uint column = i / args.d_key, key = i % args.d_key, at = h * args.d_val * args.d_key + i;
    const uint d_term = args.n_head_v * (1u + args.d_key + args.d_val), half_term = kMaxRows * d_term;
    float s = state[at];
    for (uint k = 0u; k < min(args.n_commit, kMaxRows); k++) {
        const uint base = step.parity * half_term + k * d_term;
        precise float d = s * term[base + h];
        s = fma(term[base + args.n_head_v + h * args.d_key + key],
            term[base + args.n_head_v * (1u + args.d_key) + h * args.d_val + column], d);
    }
    state[at] = s;
}

#version 450
// step_open.comp: opens a trunk pass, or an MTP pass that the host requests: rows, position, rows to commit, tokens.
//
// Buffers 0 step     StepState, history, biases    read, written
//         1 request  StepRequest and tokens    read (mode 0; else any buffer)
//         2 share    f32 [guess, n_part] of sample_share    read (n_part > 0; else any buffer)
// Push    StepArgs; mode 0: takes the host's request; 1: continues after step_accept with n_draft tokens that
//         step_next left in the history. A request with kRequestNext continues likewise, with its own tokens; one with
//         kRequestBias opens nothing and brings biases
// Grid    1. Group 256
// Host    src/machine/vulkan/context.cpp and device_loop.cpp write the request
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { StepArgs args; };
layout(set = 0, binding = 0, std430) buffer Step { StepState step; uint unused[kHistoryWord - kStateWords];
    uint history[kHistory]; uint bias[2 * kMaxBias]; };
layout(set = 0, binding = 1, std430) readonly buffer Request { StepRequest request; uint ids[]; };
layout(set = 0, binding = 2, std430) readonly buffer Share { float share[]; };
#include "step_share.glsl"

// Of n drafts that the block made, those before the first unlikely one.
uint likely_drafts(uint n) {
    if (args.n_part == 0u) return n;
    uint i = 0u;
    while (i < n && is_likely(i)) i++;
    return i;
}

// The pass over the tokens after the last committed row: the sampled one and n_draft drafts.
void open_next(uint n_draft) {
    if (step.done != 0u || step.base + step.n_accept + 1u >= step.limit) {
        step.done = 1u;
        step.n_row = 0u;
        return;
    }
    step.n_commit = step.tentative != 0u ? step.n_accept + 1u : 0u;
    step.parity ^= 1u;
    step.base += step.n_accept + 1u;
    step.base_row = 0u;
    step.position = step.base;
    step.n_row = min(1u + n_draft, step.limit - step.base);
    step.n_draft = step.n_row - 1u;
    step.n_accept = 0u;
    step.first_logit = 0u;
    step.tentative = 1u;
    step.token_shift = 0u;
    step.hidden_from = 0u;
    step.first_key = 0u;
    step.cycle++;
}

void open_requested() {
    if ((request.flags & kRequestSampling) != 0u) {
        step.sampling = request.sampling;
        step.limit = request.limit;
        step.n_stop = request.n_stop;
        for (uint i = 0u; i < kMaxStop; i++) step.stop[i] = request.stop[i];
        step.done = 0u;
        step.synth_accept = request.synth_accept;
        step.synth_seed = request.synth_seed;
    }
    if ((request.flags & kRequestSeedRing) != 0u) step.ring_write = 0u;
    step.n_row = request.n_row;
    step.position = request.position;
    step.rotary_shift = request.rotary_shift;
    step.first_logit = request.first_logit;
    step.tentative = request.tentative;
    step.token_shift = request.token_shift;
    step.hidden_from = request.hidden_from;
    if ((request.flags & kRequestTrunk) != 0u) {
        step.n_commit = request.n_commit;
        step.parity ^= 1u;
        step.base = request.position + request.first_logit;
        step.base_row = request.first_logit;
        step.n_draft = request.n_draft;
        if ((request.flags & kRequestDrafted) != 0u) {
            step.n_draft = likely_drafts(request.n_draft);
            step.n_row = 1u + step.n_draft;
        }
        step.n_accept = 0u;
        step.cycle++;
    } else {
        step.mtp_first_key = request.first_key;
    }
    step.first_key = request.first_key;
}

void main() {
    const uint t = gl_LocalInvocationIndex;
    const bool requested = args.mode == 0u;
    if (args.n_part > 0u) read_shares(0u);
    if (requested && (request.flags & kRequestBias) != 0u) {
        for (uint i = t; i < min(request.n_id, 2u * kMaxBias); i += gl_WorkGroupSize.x) bias[i] = ids[i];
    } else if (requested) {
        const bool next = (request.flags & kRequestNext) != 0u;
        const uint first = next ? step.base + step.n_accept + 2u : request.position + request.token_shift;
        for (uint i = t; i < request.n_id; i += gl_WorkGroupSize.x) history[(first + i) % kHistory] = ids[i];
        barrier();  // `first` was read from the step
        if (t == 0u && next) open_next(request.n_id);
        if (t == 0u && !next) open_requested();
    } else if (t == 0u) {
        open_next(likely_drafts(args.n_draft));
    }
}

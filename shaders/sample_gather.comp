#version 450
// sample_gather.comp: sampling, after sample_hist: collects every id that the filters may keep into the row's list.
// Without top-k and top-p nothing is ranked: then it draws the slice's best itself.
//
// Spec    FROM: kSample... of args.h
// Buffers 0 step    StepState, history, allowed ids        read
//         1 logits  f32 at its offset                      read
//         2 part    (f32 bits, id) [row, n_part]           read
//         3 hist    as sample_hist left it                 read; word 2 counts the list
//         4 list    (f32 bits, id) [row, n_vocab]          written, in any order
//         5 best    (f32 bits, id) [row, n_part]           written when unfiltered: score with noise, and id
// Push    SamplePassArgs
// Grid    x: slice (n_part), y: logits row. Group 256 (a power of two, at most 256)
// Cost    4 * n_vocab bytes a row
// Order   integer sums and maxima: any order gives the same bits
// CPU     src/engine/sampler.cpp
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
#include "sample_common.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint FROM = kSampleAll;
layout(push_constant) uniform Push { SamplePassArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; uint unused[kHistoryWord - kStateWords];
    uint history[kHistory]; uint bias[2 * kMaxBias]; uint allowed[]; };
layout(set = 0, binding = 1, std430) readonly buffer Logits { float logits[]; };
layout(set = 0, binding = 2, std430) readonly buffer Part { uvec2 part[]; };
layout(set = 0, binding = 3, std430) buffer Hist { uint hist[]; };
layout(set = 0, binding = 4, std430) writeonly buffer List { uvec2 list[]; };
layout(set = 0, binding = 5, std430) writeonly buffer Best { uvec2 best[]; };
#include "sample_largest.glsl"
shared uint id_s[256];
shared float count_s[256];
shared float mass_s[256];
shared uint cut_s;

void main() {
    const uint t = gl_LocalInvocationIndex, row = gl_WorkGroupID.y;
    if (step.n_row == 0u || row >= step.n_row - step.first_logit) return;
    const SampleArgs s = step.sampling;
    const float largest = row_largest(row), lowest = floor_of(s, largest), temperature = temperature_of(s, largest);
    const uint begin = gl_WorkGroupID.x * args.d_part, end = min(begin + args.d_part, args.n_vocab);
    const uint at = args.logits_offset + row * args.logits_stride;
    barrier();
    if (!filtered(s)) {
        const uint position = step.position + step.token_shift + step.first_logit + row + 1u;
        float top = kMasked;
        uint id = 0xffffffffu;
        for (uint i = begin + t; i < end; i += gl_WorkGroupSize.x) {
            const float x = logit_of(logits[at + i]);
            if (x < lowest) continue;
            if (FROM == kSampleAllowed && (allowed[i >> 5] >> (i & 31u) & 1u) == 0u) continue;
            const float y = noisy(x, i, position, temperature, uvec2(s.seed_lo, s.seed_hi));
            if (id == 0xffffffffu || y > top) {
                top = y;
                id = i;
            }
        }
        largest_s[t] = top;
        id_s[t] = id;
        barrier();
        for (uint n = gl_WorkGroupSize.x / 2u; n > 0u; n >>= 1) {
            if (t < n) {
                const float y = largest_s[t + n];
                const uint j = id_s[t + n];
                if (j != 0xffffffffu && (id_s[t] == 0xffffffffu || y > largest_s[t]
                    || (y == largest_s[t] && j < id_s[t]))) {
                    largest_s[t] = y;
                    id_s[t] = j;
                }
            }
            barrier();
        }
        if (t == 0u) best[row * args.n_part + gl_WorkGroupID.x] = uvec2(floatBitsToUint(largest_s[0]), id_s[0]);
        return;
    }

    // The last bin that may be kept: up to it stand top_k ids or, without top-k, top_p of the mass, and some
    // to spare. (Top-p after top-k keeps a share of what top-k kept, so then the count decides.)
    const uint base = row * kSampleRowWords + kSampleHeadWords, per = kSampleBins / gl_WorkGroupSize.x;
    float count = 0.0, mass = 0.0;
    for (uint b = t * per; b < (t + 1u) * per; b++) {
        count += float(hist[base + 3u * b]);
        mass += float(hist[base + 3u * b + 1u]) + 4096.0 * float(hist[base + 3u * b + 2u]);
    }
    count_s[t] = count;
    mass_s[t] = mass;
    if (t == 0u) cut_s = kSampleBins - 1u;
    barrier();
    for (uint n = 1u; n < gl_WorkGroupSize.x; n <<= 1) {  // sums up to each piece of the bins
        if (t >= n) {
            count += count_s[t - n];
            mass += mass_s[t - n];
        }
        barrier();
        count_s[t] = count;
        mass_s[t] = mass;
        barrier();
    }
    const float total = mass_s[gl_WorkGroupSize.x - 1u];
    const float need_count = s.top_k > 0u ? float(s.top_k) : 3.0e38;
    const float need_mass = s.top_k == 0u ? s.top_p * total * 1.0001 + 1.0 : 3.0e38;
    const bool enough = count >= need_count || mass >= need_mass;
    const bool before = t > 0u && (count_s[t - 1u] >= need_count || mass_s[t - 1u] >= need_mass);
    if (enough && !before) cut_s = (t + 1u) * per - 1u;
    barrier();
    const uint cut = cut_s;
    for (uint i = begin + t; i < end; i += gl_WorkGroupSize.x) {
        const float x = logit_of(logits[at + i]);
        if (bin_of(x, largest) > cut) continue;
        const uint to = atomicAdd(hist[row * kSampleRowWords + 2u], 1u);
        list[row * args.n_vocab + to] = uvec2(floatBitsToUint(x), i);
    }
}

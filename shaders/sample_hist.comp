#version 450
// sample_hist.comp: sampling, after sample_part: counts ids and their mass by distance below the largest logit.
// Returns at once when neither top-k nor top-p is in force.
//
// Buffers 0 step    StepState                          read
//         1 logits  f32 at its offset                  read
//         2 part    (f32 bits, id) [row, n_part]       read
//         3 hist    u32 [row, kSampleRowWords]: words 0, 1 total mass (low 12 bits, rest), 2 ids in the list; from
//                   kSampleHeadWords on, for each bin: count, mass (low 12 bits, rest)
//                                                      added to; zero before, zero again after sample_draw
// Push    SamplePassArgs, as sample_part
// Grid    x: slice (n_part), y: logits row. Group 256 (a power of two)
// Cost    4 * n_vocab bytes and an exp per id and row
// Order   integer sums: any order gives the same bits
// CPU     src/engine/sampler.cpp
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
#include "sample_common.glsl"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { SamplePassArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Logits { float logits[]; };
layout(set = 0, binding = 2, std430) readonly buffer Part { uvec2 part[]; };
layout(set = 0, binding = 3, std430) buffer Hist { uint hist[]; };
#include "sample_largest.glsl"
shared uint bins_s[3u * kSampleBins];

void main() {
    const uint t = gl_LocalInvocationIndex, row = gl_WorkGroupID.y;
    if (step.n_row == 0u || row >= step.n_row - step.first_logit || !filtered(step.sampling)) return;
    const float largest = row_largest(row);
    for (uint i = t; i < 3u * kSampleBins; i += gl_WorkGroupSize.x) bins_s[i] = 0u;
    barrier();
    const uint begin = gl_WorkGroupID.x * args.d_part, end = min(begin + args.d_part, args.n_vocab);
    const uint at = args.logits_offset + row * args.logits_stride;
    uint tail_count = 0u, tail_mass = 0u;
    for (uint i = begin + t; i < end; i += gl_WorkGroupSize.x) {
        const float x = logit_of(logits[at + i]);
        const uint b = bin_of(x, largest), m = mass_of(x, largest);
        if (b == kSampleBins - 1u) {
            tail_count++;
            tail_mass += m;
        } else {
            atomicAdd(bins_s[3u * b], 1u);
            atomicAdd(bins_s[3u * b + 1u], m & 0xfffu);
            atomicAdd(bins_s[3u * b + 2u], m >> 12);
        }
    }
    if (tail_count > 0u) {
        atomicAdd(bins_s[3u * (kSampleBins - 1u)], tail_count);
        atomicAdd(bins_s[3u * (kSampleBins - 1u) + 1u], tail_mass & 0xfffu);
        atomicAdd(bins_s[3u * (kSampleBins - 1u) + 2u], tail_mass >> 12);
    }
    barrier();
    for (uint i = t; i < 3u * kSampleBins; i += gl_WorkGroupSize.x)
        if (bins_s[i] > 0u) {
            atomicAdd(hist[row * kSampleRowWords + kSampleHeadWords + i], bins_s[i]);
            if (i % 3u == 1u) atomicAdd(hist[row * kSampleRowWords], bins_s[i]);
            if (i % 3u == 2u) atomicAdd(hist[row * kSampleRowWords + 1u], bins_s[i]);
        }
}

#version 450
// sample_draw.comp: sampling, after sample_gather: applies top-k, top-p and min-p exactly to the row's list and draws
// by Gumbel-max. Leaves the row's histogram zero.
//
// Formula argmax over kept ids of logit / temperature + Gumbel noise(seed, position, id)
// Spec    FROM: kSample... of args.h
// Buffers 0 step   StepState, history, allowed ids   read; sampled[row] written
//         1 part   (f32 bits, id) [row, n_part]      read: the largest logit
//         2 hist   as sample_hist                    read, zeroed
//         3 list   (f32 bits, id) [row, n_vocab]     read
//         4 best   (f32 bits, id) [row, n_part]      read when unfiltered
// Push    SamplePassArgs
// Grid    x: logits row. Group 256
// Cost    8 bytes per id in the list, up to nine times
// Order   ids are ranked by (logit, larger first; id, lower first). A filter keeps a prefix, found by descending eight
//         bits at a time through the 64-bit rank (logit bits, then inverted id), summing counts or masses per digit.
//         Sums are integers, so the order of the list does not matter
// Source  Gumbel-max trick; radix select
// CPU     src/engine/sampler.cpp
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"
#include "sample_common.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint FROM = kSampleAll;
layout(push_constant) uniform Push { SamplePassArgs args; };
layout(set = 0, binding = 0, std430) buffer Step { StepState step; uint unused[kHistoryWord - kStateWords];
    uint history[kHistory]; uint bias[2 * kMaxBias]; uint allowed[]; };
layout(set = 0, binding = 1, std430) readonly buffer Part { uvec2 part[]; };
layout(set = 0, binding = 2, std430) buffer Hist { uint hist[]; };
layout(set = 0, binding = 3, std430) readonly buffer List { uvec2 list[]; };
layout(set = 0, binding = 4, std430) readonly buffer Best { uvec2 best[]; };
#include "sample_largest.glsl"
shared uint low_s[256];   // per digit: low 12 bits of the weights
shared uint high_s[256];  // and the rest
shared uvec2 prefix_s;    // digits chosen so far
shared uvec2 need_s;      // weight still wanted: low 12 bits, rest
shared uint id_s[256];
shared uvec2 total_s;

uvec2 carry(uvec2 w) {
    return uvec2(w.x & 0xfffu, w.y + (w.x >> 12));
}

bool not_less(uvec2 a, uvec2 b) {  // both carried
    return a.y > b.y || (a.y == b.y && a.x >= b.x);
}

bool rank_kept(uvec2 rank, uvec2 last) {
    return rank.x > last.x || (rank.x == last.x && rank.y >= last.y);
}

uvec2 rank_of(uvec2 item) {
    return uvec2(key_of(uintBitsToFloat(item.x)), ~item.y);
}

uint weight_of(uvec2 item, bool by_mass, float largest) {
    return by_mass ? mass_of(uintBitsToFloat(item.x), largest) : 1u;
}

// The rank of the last item of the shortest prefix, among ranks from `last` up, that weighs at least `need`
// (of the whole set, when that weighs less).
uvec2 select(uint from, uint n, uvec2 last, bool by_mass, uvec2 need, float largest) {
    const uint t = gl_LocalInvocationIndex;
    if (t == 0u) {
        prefix_s = uvec2(0u);
        need_s = need;
    }
    for (uint digit = 0u; digit < 8u; digit++) {
        barrier();
        low_s[t] = 0u;
        high_s[t] = 0u;
        barrier();
        const uvec2 prefix = prefix_s;
        const uint shift = 24u - 8u * (digit & 3u);
        for (uint i = t; i < n; i += 256u) {
            const uvec2 item = list[from + i], rank = rank_of(item);
            if (!rank_kept(rank, last)) continue;
            const uint word = digit < 4u ? rank.x : rank.y, done = digit < 4u ? prefix.x : prefix.y;
            if (digit >= 4u && rank.x != prefix.x) continue;
            if (shift < 24u && (word >> (shift + 8u)) != (done >> (shift + 8u))) continue;
            const uint w = weight_of(item, by_mass, largest), d = (word >> shift) & 255u;
            atomicAdd(low_s[d], w & 0xfffu);
            atomicAdd(high_s[d], w >> 12);
        }
        barrier();
        // Sums from the highest digit down to each one, all digits at once.
        uvec2 sum = carry(uvec2(low_s[t], high_s[t]));
        for (uint n = 1u; n < 256u; n <<= 1) {
            barrier();
            low_s[t] = sum.x;
            high_s[t] = sum.y;
            barrier();
            if (t + n < 256u) sum = carry(sum + uvec2(low_s[t + n], high_s[t + n]));
        }
        barrier();
        low_s[t] = sum.x;
        high_s[t] = sum.y;
        const uvec2 want = need_s;
        barrier();
        const uvec2 above = t < 255u ? uvec2(low_s[t + 1u], high_s[t + 1u]) : uvec2(0u);
        const bool enough = not_less(uvec2(low_s[0], high_s[0]), want);
        if (enough ? not_less(sum, want) && !not_less(above, want) : t == 0u) {
            // The digit that the last item has; where all items together are too few, the lowest of all.
            const uint borrow = want.x < above.x ? 1u : 0u;
            need_s = enough ? uvec2(want.x + (borrow << 12) - above.x, want.y - borrow - above.y)
                : uvec2(0xfffu, 0xffffffu);
            if (digit < 4u) prefix_s.x |= t << shift;
            else prefix_s.y |= t << shift;
        }
    }
    barrier();
    return prefix_s;
}

void main() {
    const uint t = gl_LocalInvocationIndex, row = gl_WorkGroupID.x;
    if (step.n_row == 0u || row >= step.n_row - step.first_logit) return;
    const SampleArgs s = step.sampling;
    const uint position = step.position + step.token_shift + step.first_logit + row + 1u;
    float top = kMasked;
    uint id = 0xffffffffu;
    if (!filtered(s)) {
        for (uint i = t; i < args.n_part; i += 256u) {
            const uvec2 b = best[row * args.n_part + i];
            const float y = uintBitsToFloat(b.x);
            if (b.y != 0xffffffffu && (id == 0xffffffffu || y > top || (y == top && b.y < id))) {
                top = y;
                id = b.y;
            }
        }
        barrier();
    } else {
        const float largest = row_largest(row);
        barrier();
        const uint head = row * kSampleRowWords, from = row * args.n_vocab, n = hist[head + 2u];
        const uvec2 all = carry(uvec2(hist[head], hist[head + 1u]));
        uvec2 last = uvec2(0u);  // every rank is kept
        if (s.top_k > 0u && s.top_k < n) last = select(from, n, last, false,
            carry(uvec2(s.top_k & 0xfffu, s.top_k >> 12)), largest);
        if (s.top_p < 1.0) {
            uvec2 total = all;
            if (s.top_k > 0u) {  // the mass that top-k left
                if (t == 0u) total_s = uvec2(0u);
                barrier();
                for (uint i = t; i < n; i += 256u)
                    if (rank_kept(rank_of(list[from + i]), last)) {
                        const uint m = mass_of(uintBitsToFloat(list[from + i].x), largest);
                        atomicAdd(total_s.x, m & 0xfffu);
                        atomicAdd(total_s.y, m >> 12);
                    }
                barrier();
                total = carry(total_s);
            }
            precise float want = (float(total.y) * 4096.0 + float(total.x)) * max(s.top_p, 0.0);
            uint high = uint(want * (1.0 / 4096.0)), low = uint(max(want - float(high) * 4096.0, 0.0));
            uvec2 need = carry(uvec2(low, high));
            if (need.x == 0u && need.y == 0u) need.x = 1u;
            last = select(from, n, last, true, need, largest);
        }
        const float lowest = floor_of(s, largest), temperature = temperature_of(s, largest);
        for (uint i = t; i < n; i += 256u) {
            const uvec2 item = list[from + i];
            const float x = uintBitsToFloat(item.x);
            if (!rank_kept(rank_of(item), last) || x < lowest) continue;
            if (FROM == kSampleAllowed && (allowed[item.y >> 5] >> (item.y & 31u) & 1u) == 0u) continue;
            const float y = noisy(x, item.y, position, temperature, uvec2(s.seed_lo, s.seed_hi));
            if (id == 0xffffffffu || y > top || (y == top && item.y < id)) {
                top = y;
                id = item.y;
            }
        }
        barrier();
        for (uint i = t; i < kSampleRowWords; i += 256u) hist[head + i] = 0u;
    }
    largest_s[t] = top;
    id_s[t] = id;
    barrier();
    for (uint n = 128u; n > 0u; n >>= 1) {
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
    if (t == 0u && (FROM != kSampleUnless || step.sampled[row] == 0xffffffffu)) step.sampled[row] = id_s[0];
}

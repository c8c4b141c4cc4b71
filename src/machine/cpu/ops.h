// machine/cpu/ops: the inner loops of every operation but the matrix products.
//
// Owns    Loops, the table of inner loops that each instruction set fills, and a few functions that all of them share.
// Thread  pure functions. CpuWalk (walk.h) divides the work; which thread computes a value does not change its bits.
// Tests   tests/test_ops.cpp: every instruction set against double precision, row invariance, commit equivalence, chunk
//         invariance, back-end equivalence.
#pragma once
#include "../../plan/plan.h"
#include "../pool.h"

#include <cmath>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// KV rows of one partial of attention. Partials begin at multiples of it, whatever the step, for row invariance.
constexpr uint32_t kAttnChunk = 256;
/// Columns of a DeltaNet state handled together: d_key * 32 floats stay in the first-level cache.
constexpr uint32_t kDeltaColumns = 32;
/// Rows of one chunk of the chunked DeltaNet form, and the longest step that stays sequential.
constexpr uint32_t kDeltaChunk = 64;
constexpr uint32_t kDeltaSequential = 16;

/// One term that a row adds to a state: S = decay S + k u'.
struct DeltaTerm {
    float decay;
    const float* k;  ///< [d_key]
    const float* u;  ///< [d_val]
};
/// One row's input to the recurrence of one head.
struct DeltaRow {
    float decay, beta;
    const float* q;  ///< [d_key], scaled
    const float* k;  ///< [d_key]
    const float* v;  ///< [d_val]
    float* u;        ///< [d_val] out: the row's term
    float* o;        ///< [d_val] out
};

/// Keys or values of one head for consecutive KV rows.
struct KvRows {
    const std::byte* data = nullptr;
    size_t stride = 0;      ///< bytes from one KV row to the next
    Type type = Type::f16;  ///< or f32; or q8_0, q4_0, q4_1: whole blocks, so d must be a multiple of 32
};

/// The inner loops. Each is a pure function of its arguments with a fixed order of operations. Formulas, costs and
/// sources stand at the kernels: kernels_rows.inl, kernels_attention.inl, kernels_delta.inl, kernels_delta_chunk.inl.
struct Loops {
    /// y = x / sqrt(mean(x^2) + eps) * w (* w when not null), n values.
    void (*rms_norm)(const float* x, const float* w, float* y, uint32_t n, float eps);
    /// y[i] = min(silu(g[i]), limit) * clamp(u[i], -limit, limit); limit 0: no clamps.
    void (*swiglu)(const float* g, const float* u, float* y, uint32_t n, float limit);
    /// y[i] = x[i] * silu(z[i])
    void (*silu_gate)(const float* x, const float* z, float* y, uint32_t n);
    /// y[i] = x[i] * sigmoid(z[i])
    void (*sigmoid_gate)(const float* x, const float* z, float* y, uint32_t n);
    /// One causal convolution over n channels, then SiLU: taps[j] is the row of tap j, w is [n, n_tap].
    void (*conv_silu)(const float* const* taps, const float* w, float* y, uint32_t n, uint32_t n_tap);
    /// y[i] = x[i] as f16, rounded to nearest even.
    void (*to_f16)(const float* x, uint16_t* y, uint32_t n);
    /// One partial of attention: one query q [d] (already scaled), keys and values k, v [n_key, ld] f16, n_key >= 1.
    /// Out: max m, sum l, o [d] = sum exp(s - m) v.
    void (*attend)(const float* q, const uint16_t* k, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d,
                   float* scores, float* m, float* l, float* o);
    /// o = o * a + p * b, n values (merging partials).
    void (*merge)(float* o, float a, const float* p, float b, uint32_t n);
    /// The recurrence of one head, S [d_key, d_val]: applies n_term terms in order and stores them in S, then runs the
    /// rows on a scratch copy, or on S itself if `in_place`.
    void (*delta_rows)(float* s, uint32_t d_key, uint32_t d_val, const DeltaTerm* terms, uint32_t n_term,
                       const DeltaRow* rows, uint32_t n_row, bool in_place, float* scratch);
    /// The same within rounding for up to kDeltaChunk rows, in the chunked form; always in place.
    /// scratch: delta_chunk_scratch() floats.
    void (*delta_chunk)(float* s, uint32_t d_key, uint32_t d_val, const DeltaRow* rows, uint32_t n_row, float* scratch);
    /// attend() for n_query queries that see the same keys (heads of one group, rows of one step): the bits of one call
    /// each, but four queries share the reading and conversion of a key. Quantised keys and values are converted as
    /// they are read, to decode_row's floats. q, m, l, o: one pointer per query; scores: n_query * n_key floats.
    void (*attend_many)(uint32_t n_query, const float* const* q, const KvRows& k, const KvRows& v, uint32_t n_key,
                        uint32_t d, float* scores, float* const* m, float* const* l, float* const* o);
};
inline size_t delta_chunk_scratch(uint32_t d_key, uint32_t d_val) {
    return size_t{2} * kDeltaChunk * kDeltaChunk + size_t{kDeltaChunk} * (2 * d_val + 2 * d_key) + 4 * kDeltaChunk;
}

/// e^x, computed in double and rounded: expf() differs between C libraries in the last bit, and so would texts.
inline float exp_f32(float x) { return static_cast<float>(std::exp(double{x})); }
inline float sigmoid(float x) { return 1.0f / (1.0f + exp_f32(-x)); }
/// log(1 + e^x)
inline float softplus(float x) { return x > 20.0f ? x : static_cast<float>(std::log1p(std::exp(double{x}))); }

/// x / sqrt(sum(x^2) + 1e-6) * scale, in place.
void l2_normalise(float* x, uint32_t n, float scale);

/// cos and sin of position * base^(-2i/n_rot) (/ factors[i]) for i < n_rot/2: table[2i], table[2i+1].
void rotation_table(uint64_t position, uint32_t n_rot, float base, float* table, const float* factors = nullptr);
/// Rotates the pairs (i, i + n_rot/2) of x.
void rotate(float* x, uint32_t n_rot, const float* table);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

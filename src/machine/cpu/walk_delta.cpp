// machine/cpu/walk_delta: a Gated DeltaNet layer: convolution, gates, recurrence, norm and output gate.
//
//   in[0] x   [n_row, conv_dim]          f32  in   raw q, k, v: n_head_k heads of q, n_head_k of k, n_head_v of v
//   in[1] z   [n_row, n_head_v * d_val]  f32  in   output gate
//   in[2] b   [n_row, n_head_v]          f32  in   beta before its sigmoid
//   in[3] a   [n_row, n_head_v]          f32  in   alpha before bias and softplus
//   out       [n_row, n_head_v * d_val]  f32  out
//   state S   [n_head_v, d_key, d_val]   f32  in, out;  state2: the last raw x by position, [kConvRing, conv_dim]
//
//   q, k, v = silu(conv(x)), q and k normalised per head, q scaled by 1 / sqrt(d_key)
//   decay = exp(A softplus(a + dt));  beta = sigmoid(b)
//   u = beta (v - decay S'k);  S = decay S + k u';  o = S'q;  out = rms_norm(o) * silu(z)
//
// A tentative step leaves S as it is and records decay, k and u of each row; the next step applies those of the
// committed rows before its own.
//
// Cost    a row: 6 n_head_v d_key d_val flops; S is read once per step, and written if it changes.
// Source  docs/MODEL.md, "qwen35". Counterpart: shaders/delta_mix.comp, delta_gate.comp, delta_step.comp,
//         delta_scan.comp, delta_apply.comp.
#include "walk.h"

#include <cmath>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

void CpuWalk::delta(const Op& op) {
    delta_inputs(op);
    barrier();
    delta_keep_inputs(op);
    for (uint32_t h = i_thread_; h < op.delta.n_head_v; h += n_thread_) delta_head(op, h);
}

/// Convolution and normalisation, by (row, head): query heads, key heads, value heads.
void CpuWalk::delta_inputs(const Op& op) {
    const DeltaDims& d = op.delta;
    const DeltaState::Terms& record = context_.delta_[op.state].terms[context_.parity_];
    const float *ring = context_.conv_[op.state2], *conv_w = vector(op.w[0]);
    const uint32_t conv_dim = d.conv_dim(), key_dim = d.n_head_k * d.d_key;
    const uint32_t n_unit = 2 * d.n_head_k + d.n_head_v;
    for (uint64_t i = i_thread_; i < uint64_t{step_.n_row} * n_unit; i += n_thread_) {
        const uint32_t r = static_cast<uint32_t>(i / n_unit), h = static_cast<uint32_t>(i % n_unit);
        const uint32_t n = h < 2 * d.n_head_k ? d.d_key : d.d_val;
        const uint32_t c = h < 2 * d.n_head_k ? h * d.d_key : 2 * key_dim + (h - 2 * d.n_head_k) * d.d_val;
        const float* taps[8];
        for (uint32_t j = 0; j < d.n_conv; ++j) {
            const int64_t back = int64_t{r} - (d.n_conv - 1) + j;  // row of this step, or before it
            const uint64_t place = uint64_t{step_.first_row} + kConvRing + static_cast<uint64_t>(back);
            taps[j] = (back >= 0 ? row(op.in[0], static_cast<uint32_t>(back))
                                 : ring + static_cast<size_t>(place % kConvRing) * conv_dim) +
                      c;
        }
        float* y = context_.conv_out_ + size_t{r} * conv_dim + c;
        loops_.conv_silu(taps, conv_w + size_t{c} * d.n_conv, y, n, d.n_conv);
        if (h < d.n_head_k) {
            l2_normalise(y, n, 1.0f / std::sqrt(static_cast<float>(d.d_key)));
        } else if (h < 2 * d.n_head_k) {
            l2_normalise(y, n, 1.0f);
            if (step_.tentative)
                std::memcpy(record.k + (size_t{r} * d.n_head_k + h - d.n_head_k) * d.d_key, y, n * sizeof(float));
        }
    }
}

/// Keeps the raw inputs that a later step's taps can reach.
void CpuWalk::delta_keep_inputs(const Op& op) {
    const uint32_t conv_dim = op.delta.conv_dim();
    float* ring = context_.conv_[op.state2];
    const uint32_t keep = step_.n_row < kConvRing ? step_.n_row : kConvRing;
    for (uint32_t i = i_thread_; i < keep; i += n_thread_) {
        const uint32_t r = step_.n_row - keep + i;
        std::memcpy(ring + size_t{(step_.first_row + r) % kConvRing} * conv_dim, row(op.in[0], r),
                    conv_dim * sizeof(float));
    }
}

/// The recurrence of value head h over the rows of the step.
void CpuWalk::delta_head(const Op& op, uint32_t h) {
    const DeltaDims& d = op.delta;
    const DeltaState& state = context_.delta_[op.state];
    const DeltaState::Terms &record = state.terms[context_.parity_], &last = state.terms[context_.parity_ ^ 1];
    const float *dt = vector(op.w[1]), *a = vector(op.w[2]), *norm = vector(op.w[3]);
    const uint32_t conv_dim = d.conv_dim(), key_dim = d.n_head_k * d.d_key;
    const uint32_t hk = d.grouped ? h / (d.n_head_v / d.n_head_k) : h % d.n_head_k;
    float* s = state.s + size_t{h} * d.d_key * d.d_val;
    DeltaRow* rows = context_.delta_rows_ + size_t{i_thread_} * kDeltaChunk;
    DeltaTerm terms[kMaxTentative];
    uint32_t n_term = job_.n_term;
    for (uint32_t i = 0; i < n_term; ++i)
        terms[i] = {last.decay[i * d.n_head_v + h], last.k + (size_t{i} * d.n_head_k + hk) * d.d_key,
                    last.u + (size_t{i} * d.n_head_v + h) * d.d_val};
    const bool few = step_.tentative || step_.n_row <= kDeltaSequential;
    for (uint32_t r0 = 0, n = 0; r0 < step_.n_row; r0 += n) {
        // Chunks end at multiples of their size, wherever the step begins: the bits do not depend on its length.
        const uint32_t piece = few ? kDeltaSequential : kDeltaChunk - (step_.first_row + r0) % kDeltaChunk;
        n = step_.n_row - r0 < piece ? step_.n_row - r0 : piece;
        float* spare_u = scratch() + size_t{d.d_key} * d.d_val;
        for (uint32_t i = 0; i < n; ++i) {
            const uint32_t r = r0 + i;
            const float* y = context_.conv_out_ + size_t{r} * conv_dim;
            rows[i].decay = exp_f32(a[h] * softplus(row(op.in[3], r)[h] + dt[h]));
            rows[i].beta = sigmoid(row(op.in[2], r)[h]);
            rows[i].q = y + size_t{hk} * d.d_key;
            rows[i].k = y + key_dim + size_t{hk} * d.d_key;
            rows[i].v = y + 2 * key_dim + size_t{h} * d.d_val;
            rows[i].u = step_.tentative ? record.u + (size_t{r} * d.n_head_v + h) * d.d_val
                                        : spare_u + size_t{i % kDeltaSequential} * d.d_val;
            rows[i].o = row(op.out, r) + size_t{h} * d.d_val;
            if (step_.tentative) record.decay[r * d.n_head_v + h] = rows[i].decay;
        }
        if (few) {
            loops_.delta_rows(s, d.d_key, d.d_val, terms, n_term, rows, n, !step_.tentative, scratch());
        } else {
            if (n_term) loops_.delta_rows(s, d.d_key, d.d_val, terms, n_term, nullptr, 0, true, scratch());
            loops_.delta_chunk(s, d.d_key, d.d_val, rows, n, scratch());
        }
        n_term = 0;
        for (uint32_t i = 0; i < n; ++i) {
            loops_.rms_norm(rows[i].o, norm, rows[i].o, d.d_val, d.eps);
            loops_.silu_gate(rows[i].o, row(op.in[1], r0 + i) + size_t{h} * d.d_val, rows[i].o, d.d_val);
        }
    }
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

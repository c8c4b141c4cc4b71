// machine/cpu/moe: a layer of experts: routes each row, then runs the experts that any row chose.
//
//   f      [n_row, d]               f32  in
//   out    [n_row, d]               f32  in, out
//   gate, up [n_expert, d_ff, d], down [n_expert, d, d_ff]; the shared expert the same without n_expert
//
//   p = softmax(f router') over all experts, or sigmoid(f router')
//   I = the n_used largest of p (+ bias), equal ones by lower id
//   w_e = p_e / (sum over I of p + 1e-20) * scale
//   out += sum over I, ids ascending, of w_e down_e(act(gate_e f, up_e f)) + s down_s(act(gate_s f, up_s f))
//   act(g, u) = min(silu(g), limit) * clamp(u, -limit, limit);   s = sigmoid(f . shared router), or 1
//
// Rows are grouped by expert, so the weights of each touched expert are read once for all rows of a step. A row adds
// its experts by ascending id, and columns are cut at fixed places: its bits depend neither on the other rows nor on
// the threads.
//
// Cost    (touched experts + shared) * 3 d_ff d weights read; 6 d_ff d (n_used + shared) flops a row.
// Source  docs/MODEL.md, "qwen35moe" and "step35". Counterpart: shaders/moe_router.comp, moe_route.comp, moe_list.comp,
//         moe_sum.comp.
#include "walk.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace moe_impl {

constexpr uint32_t kRows = 64;     ///< rows that share the reading of a piece of an expert
constexpr uint32_t kHidden = 64;   ///< hidden values that one thread computes at a time
constexpr uint32_t kColumns = 32;  ///< columns of the output, the same

/// Rows first .. first + n of a matrix; first a multiple of its strips.
Matrix part(Matrix m, uint32_t first, uint32_t n) {
    m.data += m.stride * (m.n_lane ? first / m.n_lane : first);
    m.d_out = n;
    return m;
}

float dot(const float* a, const float* b, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    return static_cast<float>(sum);
}

/// The experts of a row, ids ascending, and their weights. `score`: the router's logits, overwritten.
void choose(const MoeDims& d, const float* bias, float* score, uint32_t* id, float* weight) {
    if (d.sigmoid) {
        for (uint32_t e = 0; e < d.n_expert; ++e) score[e] = sigmoid(score[e]);
    } else {
        float max = score[0];
        for (uint32_t e = 1; e < d.n_expert; ++e) max = score[e] > max ? score[e] : max;
        float sum = 0;
        for (uint32_t e = 0; e < d.n_expert; ++e) sum += score[e] = exp_f32(score[e] - max);
        for (uint32_t e = 0; e < d.n_expert; ++e) score[e] /= sum;
    }
    float best[kMaxUsedExpert];
    uint32_t n = 0;
    for (uint32_t e = 0; e < d.n_expert; ++e) {
        const float v = bias ? score[e] + bias[e] : score[e];
        if (n == d.n_used && !(v > best[n - 1])) continue;
        uint32_t at = n < d.n_used ? n++ : n - 1;
        for (; at > 0 && v > best[at - 1]; --at) {
            best[at] = best[at - 1];
            id[at] = id[at - 1];
        }
        best[at] = v;
        id[at] = e;
    }
    std::sort(id, id + n);
    float sum = 0;
    for (uint32_t j = 0; j < n; ++j) sum += score[id[j]];
    const float by = d.normalise ? d.scale / (sum + 1e-20f) : d.scale;
    for (uint32_t j = 0; j < n; ++j) weight[j] = score[id[j]] * by;
}

/// Sorts the pairs (one row at one of its experts) by expert.
void group(const MoeDims& d, uint32_t n_row, const CpuMoe& m) {
    std::fill_n(m.first, d.n_expert + 1, 0u);
    for (uint32_t i = 0; i < n_row * d.n_used; ++i) ++m.first[m.id[i] + 1];
    for (uint32_t e = 0; e < d.n_expert; ++e) m.first[e + 1] += m.first[e];
    uint32_t n = 0;
    for (uint32_t e = 0; e < d.n_expert; ++e) {
        m.next[e] = m.first[e];
        if (m.first[e + 1] != m.first[e]) m.touched[n++] = e;
    }
    *m.n_touched = n;
    for (uint32_t r = 0; r < n_row; ++r) {
        m.all[r] = r;
        for (uint32_t j = 0; j < d.n_used; ++j) {
            const uint32_t at = m.next[m.id[r * d.n_used + j]]++;
            m.row[at] = r;
            m.pair_weight[at] = m.weight[r * d.n_used + j];
        }
    }
}

/// Calls f(unit) for each of n units, each on one thread.
template <class F>
void each_unit(const Share& share, uint32_t n, F f) {
    constexpr uint32_t kMaxUnits = 8;
    each_piece(n, kMaxUnits, share, [&](uint32_t from, uint32_t to) {
        for (uint32_t u = from; u < to; ++u) f(u);
    });
}

/// Rows of a product from row `from` on.
Rows rows_from(Rows rows, uint32_t from, uint32_t d_in) {
    if (rows.gather) {
        rows.gather += from;
        return rows;
    }
    rows.x += rows.ld * from;
    if (rows.quantised)
        rows.quantised = static_cast<const std::byte*>(rows.quantised) + quantised_bytes(1, d_in) * from;
    return rows;
}

}  // namespace moe_impl

AUSPEX_SMALL_CODE_BEGIN

Status check_moe(const Plan& plan, const std::vector<PackedMatrix>& matrices) {
    for (const Tape* tape : plan.tapes()) {
        for (const Op& op : tape->ops) {
            if (op.kind != OpKind::moe || !op.moe.gate_up) continue;
            const uint32_t n_lane = matrices[op.w[1]].view().n_lane;
            if (n_lane != 0 && op.moe.d_ff % n_lane != 0)
                return fail(Code::unsupported, "tensor '", plan.slot(op.w[1]).name, "' fuses ", op.moe.d_ff,
                            " gate and up rows, expected a multiple of ", n_lane,
                            "; convert the model with separate tensors");
        }
    }
    return {};
}

void CpuContext::lay_out_moe() {
    const Plan& plan = *model_->plan;
    uint64_t n_expert = 0, n_pair = 0, d_ff = 0, h = 0, h_shared = 0;
    for (const Tape* tape : plan.tapes()) {
        for (const Op& op : tape->ops) {
            if (op.kind != OpKind::moe) continue;
            n_expert = std::max<uint64_t>(n_expert, op.moe.n_expert);
            n_pair = std::max<uint64_t>(n_pair, uint64_t{n_row_max_} * op.moe.n_used);
            h = std::max<uint64_t>(h, uint64_t{n_row_max_} * op.moe.n_used * op.moe.d_ff);
            h_shared = std::max<uint64_t>(h_shared, uint64_t{n_row_max_} * op.moe.d_ff_shared);
            d_ff = std::max<uint64_t>(d_ff, std::max(op.moe.d_ff, op.moe.d_ff_shared));
        }
    }
    if (n_expert == 0) return;
    moe_.score = place<float>(n_row_max_ * n_expert);
    moe_.weight = place<float>(n_pair);
    moe_.pair_weight = place<float>(n_pair);
    moe_.shared = place<float>(n_row_max_);
    moe_.id = place<uint32_t>(n_pair);
    moe_.row = place<uint32_t>(n_pair);
    moe_.all = place<uint32_t>(n_row_max_);
    moe_.first = place<uint32_t>(n_expert + 1);
    moe_.next = place<uint32_t>(n_expert);
    moe_.touched = place<uint32_t>(n_expert);
    moe_.n_touched = place<uint32_t>(1);
    moe_.h = place<float>(h);
    moe_.h_shared = place<float>(h_shared);
    const uint32_t d_in = static_cast<uint32_t>(round_up(d_ff, 32));
    moe_.q = place<std::byte>(quantised_bytes(static_cast<uint32_t>(n_pair), d_in));
    moe_.q_shared = place<std::byte>(quantised_bytes(n_row_max_, d_in));
    moe_.part = place<float>(uint64_t{model_->pool->n_thread()} * moe_impl::kRows * moe_impl::kHidden);
}

AUSPEX_SMALL_CODE_END

/// The moe operation of one layer.
struct CpuWalk::Experts {
    CpuWalk& walk;
    const Op& op;
    const MoeDims& d;
    const CpuMoe& m;
    const uint32_t n_row, d_model;
    const PackedMatrix &gates, &ups, &downs;
    Matrix router, gate_s, up_s, down_s;  ///< _s: the shared expert's, empty without one
    Rows in;
    float* const part_rows;  ///< of this thread, [kRows, kHidden]

    Experts(CpuWalk& w, const Op& o)
        : walk(w),
          op(o),
          d(o.moe),
          m(w.context_.moe_),
          n_row(w.step_.n_row),
          d_model(w.width(o.in[0])),
          gates(w.model_.matrices[o.w[1]]),
          ups(w.model_.matrices[o.moe.gate_up ? o.w[1] : o.w[2]]),
          downs(w.model_.matrices[o.w[3]]),
          router(w.model_.matrices[o.w[0]].view()),
          part_rows(m.part + size_t{w.i_thread_} * moe_impl::kRows * moe_impl::kHidden) {
        if (has_shared()) {
            gate_s = w.model_.matrices[o.w[4]].view();
            up_s = w.model_.matrices[o.w[5]].view();
            down_s = w.model_.matrices[o.w[6]].view();
        }
    }
    bool has_shared() const { return d.d_ff_shared != 0; }

    void route();
    void hidden();
    void hidden_part(const Matrix& gate, const Matrix& up, uint32_t n, const uint32_t* rows, float* h, uint32_t ff,
                     float limit) const;
    void down() const;
    void down_part(const Matrix& down, const Rows& from, uint32_t n, const uint32_t* rows, const float* weights,
                   uint32_t o0) const;
};

/// Scores, the experts of each row, and the rows of each expert.
void CpuWalk::Experts::route() {
    using namespace moe_impl;
    const bool integers = router.wants_integers() || gates.view().wants_integers() || ups.view().wants_integers() ||
                          gate_s.wants_integers() || up_s.wants_integers();
    in = walk.input_rows(op.in[0], 0, n_row, integers, true);
    matmul(router, in, n_row, m.score, d.n_expert, false, walk.shared());
    walk.barrier();

    // A short step is routed by one thread: a barrier costs more than the work.
    const bool few = n_row <= kMaxTentative;
    const float *bias = walk.vector(op.w[8]), *shared_router = walk.vector(op.w[7]);
    const uint32_t first = few ? (walk.i_thread_ == 0 ? 0 : n_row) : walk.i_thread_;
    for (uint32_t r = first; r < n_row; r += few ? 1 : walk.n_thread_) {
        choose(d, bias, m.score + size_t{r} * d.n_expert, m.id + size_t{r} * d.n_used, m.weight + size_t{r} * d.n_used);
        m.shared[r] = shared_router ? sigmoid(dot(walk.row(op.in[0], r), shared_router, d_model)) : 1.0f;
    }
    if (!few) walk.barrier();
    if (walk.i_thread_ == 0) group(d, n_row, m);
    walk.barrier();
}

/// A few hidden values of one expert for n rows: h[c][..] = act(gate f, up f), f the row rows[c].
void CpuWalk::Experts::hidden_part(const Matrix& gate, const Matrix& up, uint32_t n, const uint32_t* rows, float* h,
                                   uint32_t ff, float limit) const {
    using namespace moe_impl;
    for (uint32_t c0 = 0; c0 < n; c0 += kRows) {
        const uint32_t n_c = std::min(kRows, n - c0);
        Rows piece = in;
        piece.gather = rows + c0;
        float* to = h + size_t{c0} * ff;
        matmul(gate, piece, n_c, to, ff, false, Share());
        matmul(up, piece, n_c, part_rows, kHidden, false, Share());
        for (uint32_t c = 0; c < n_c; ++c)
            walk.loops_.swiglu(to + size_t{c} * ff, part_rows + c * kHidden, to + size_t{c} * ff, gate.d_out, limit);
    }
}

/// h = act(gate f, up f), cut by expert and by kHidden of its hidden values.
void CpuWalk::Experts::hidden() {
    using namespace moe_impl;
    const uint32_t n_touched = *m.n_touched;
    const uint32_t n_piece = ceil_div(d.d_ff, kHidden), n_piece_s = ceil_div(d.d_ff_shared, kHidden);
    each_unit(walk.shared(), n_touched * n_piece + n_piece_s, [&](uint32_t u) {
        if (u < n_touched * n_piece) {
            const uint32_t e = m.touched[u / n_piece], h0 = u % n_piece * kHidden, n = std::min(kHidden, d.d_ff - h0),
                           at = m.first[e];
            hidden_part(part(gates.slice(e), h0, n), part(ups.slice(e), (d.gate_up ? d.d_ff : 0) + h0, n),
                        m.first[e + 1] - at, m.row + at, m.h + size_t{at} * d.d_ff + h0, d.d_ff, d.limit);
        } else {
            const uint32_t h0 = (u - n_touched * n_piece) * kHidden, n = std::min(kHidden, d.d_ff_shared - h0);
            hidden_part(part(gate_s, h0, n), part(up_s, h0, n), n_row, m.all, m.h_shared + h0, d.d_ff_shared,
                        d.limit_shared);
        }
    });
    walk.barrier();
}

/// out[rows[c]] += weights[c] * (down h)[c] on the columns of `down`, which begin at o0.
void CpuWalk::Experts::down_part(const Matrix& down, const Rows& from, uint32_t n, const uint32_t* rows,
                                 const float* weights, uint32_t o0) const {
    using namespace moe_impl;
    for (uint32_t c0 = 0; c0 < n; c0 += kRows) {
        const uint32_t n_c = std::min(kRows, n - c0);
        matmul(down, rows_from(from, c0, down.d_in), n_c, part_rows, kColumns, false, Share());
        for (uint32_t c = 0; c < n_c; ++c)
            walk.loops_.merge(walk.row(op.out, rows[c0 + c]) + o0, 1.0f, part_rows + c * kColumns, weights[c0 + c],
                              down.d_out);
    }
}

/// out += weight * down h, cut by columns; every row adds its experts by ascending id.
void CpuWalk::Experts::down() const {
    using namespace moe_impl;
    Rows h, hs;
    h.x = m.h;
    h.ld = d.d_ff;
    hs.x = m.h_shared;
    hs.ld = d.d_ff_shared;
    if (downs.view().wants_integers()) {
        quantise_rows(*walk.model_.kernels, h.x, h.ld, n_row * d.n_used, d.d_ff, m.q, walk.even());
        h.quantised = m.q;
    }
    if (down_s.wants_integers()) {
        quantise_rows(*walk.model_.kernels, hs.x, hs.ld, n_row, d.d_ff_shared, m.q_shared, walk.even());
        hs.quantised = m.q_shared;
    }
    if (h.quantised || hs.quantised) walk.barrier();
    const uint32_t n_touched = *m.n_touched;
    each_unit(walk.shared(), ceil_div(d_model, kColumns), [&](uint32_t u) {
        const uint32_t o0 = u * kColumns, n = std::min(kColumns, d_model - o0);
        for (uint32_t t = 0; t < n_touched; ++t) {
            const uint32_t e = m.touched[t], at = m.first[e];
            down_part(part(downs.slice(e), o0, n), rows_from(h, at, d.d_ff), m.first[e + 1] - at, m.row + at,
                      m.pair_weight + at, o0);
        }
        if (has_shared()) down_part(part(down_s, o0, n), hs, n_row, m.all, m.shared, o0);
    });
}

void CpuWalk::moe(const Op& op) {
    Experts experts(*this, op);
    experts.route();
    experts.hidden();
    experts.down();
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// machine/cpu/walk: the tape, op by op, on every thread. Formulas stand at the inner loops (ops.h);
// here is who does which part, and where the threads meet.
#include "context.h"

#include <cmath>

namespace auspex {
namespace detail {
namespace walk_impl {

inline bool holds(const SlotId* list, uint32_t n, SlotId id) {
    for (uint32_t i = 0; i < n; ++i)
        if (list[i] == id) return true;
    return false;
}

}  // namespace walk_impl

void CpuContext::walk_entry(void* context, uint32_t i_thread, uint32_t n_thread) {
    Walk walk{*static_cast<CpuContext*>(context), i_thread, n_thread, 0, kNoSlot, {}, {}, 0, 0};
    walk.tape();
}

void CpuContext::Walk::barrier() {
    context.program_->pool->barrier(i_thread);
    n_written = n_read = n_ticket = 0;
}

Share CpuContext::Walk::even() const { return {i_thread, n_thread, nullptr}; }

Share CpuContext::Walk::shared() {
    if (n_ticket == Pool::kTicket) barrier();
    return context.program_->pool->shared(i_thread, n_ticket++);
}

/// Meets the other threads if this op would read what one of them may still be writing, or write
/// what one may still be reading.
void CpuContext::Walk::settle(const Op& op) {
    bool clash = n_written + 2 > kMaxTouched || n_read + 4 > kMaxTouched;
    for (SlotId id : op.in) clash = clash || (id != kNoSlot && walk_impl::holds(written, n_written, id));
    clash = clash || walk_impl::holds(written, n_written, op.out) || walk_impl::holds(read, n_read, op.out);
    clash = clash || (op.state != kNoSlot && walk_impl::holds(written, n_written, op.state));
    if (clash) barrier();
}

void CpuContext::Walk::touch(const Op& op) {
    for (SlotId id : op.in)
        if (id != kNoSlot) read[n_read++] = id;
    const SlotId out = op.kind == OpKind::kv_write ? op.state : op.out;
    written[n_written++] = out;
    if (out == quantised) quantised = kNoSlot;
}

void CpuContext::Walk::tape() {
    const Step& step = context.step_;
    if (!context.head_only_) {
        for (const Rotation& r : context.rotations_)
            for (uint32_t i = i_thread; i < step.n_row; i += n_thread)
                rotation_table(uint64_t{step.position} + i, r.n_rot, r.base, r.table + size_t{i} * r.n_rot,
                               r.factors == kNoSlot ? nullptr : context.program_->vectors[r.factors]);
        barrier();
    }
    const size_t n = step.fill_only ? step.tape->n_fill : step.tape->ops.size();
    for (size_t i = 0; i < n; ++i) {
        const Op& op = step.tape->ops[i];
        if (op.head ? step.n_logit == 0 : context.head_only_) continue;
        run(op);
    }
}

void CpuContext::Walk::run(const Op& op) {
    settle(op);
    switch (op.kind) {
        case OpKind::embed: embed(op); break;
        case OpKind::hidden: hidden(op); break;
        case OpKind::rms_norm: norm(op); break;
        case OpKind::matmul: matmul_op(op); break;
        case OpKind::swiglu: swiglu(op); break;
        case OpKind::delta: delta(op); break;
        case OpKind::kv_write: kv_write(op); break;
        case OpKind::attend: attend(op); break;
        case OpKind::moe: moe(op); break;
    }
    touch(op);
}

void CpuContext::Walk::embed(const Op& op) {
    const Matrix& table = context.program_->matrices[op.w[0]].view();
    for (uint32_t i = i_thread; i < context.step_.n_row; i += n_thread)
        unpack_row(table, static_cast<uint32_t>(context.step_.ids[i]), context.row(op.out, i));
}

void CpuContext::Walk::hidden(const Op& op) {
    const uint32_t d = context.program_->plan->d_model;
    for (uint32_t i = i_thread; i < context.step_.n_row; i += n_thread) {
        const float* from = context.step_.hidden ? context.step_.hidden + size_t{i} * d
                            : context.step_.hidden_pending
                                ? context.pending_hidden(context.step_.first_row + i)
                                : context.row(context.program_->plan->trunk.hidden, context.step_.hidden_from + i);
        std::memcpy(context.row(op.out, i), from, d * sizeof(float));
    }
}

void CpuContext::Walk::norm(const Op& op) {
    const float* w = context.program_->vectors[op.w[0]];
    const uint32_t d = static_cast<uint32_t>(context.program_->plan->slot(op.in[0]).width());
    for (uint32_t i = i_thread; i < context.step_.n_row; i += n_thread)
        context.program_->loops->rms_norm(context.row(op.in[0], i), w, context.row(op.out, i) + op.out_offset, d,
                                          op.eps);
}

void CpuContext::Walk::matmul_op(const Op& op) {
    const Plan& plan = *context.program_->plan;
    const bool drafting = op.head && !context.draft_head_.empty() && context.step_.tape != &plan.trunk;
    const Matrix& w = drafting ? context.draft_head_.view() : context.program_->matrices[op.w[0]].view();
    const uint32_t n_row = op.head ? context.step_.n_logit : context.step_.n_row;
    const uint32_t first = op.head ? context.row0_ + context.step_.n_row - n_row : 0;
    Rows in;
    in.x = context.row(op.in[0], first);
    in.ld = static_cast<size_t>(plan.slot(op.in[0]).width());
    if (w.wants_integers()) {
        if (quantised != op.in[0] || op.head) {
            // Others may still be multiplying with what the buffer holds.
            if (n_read != 0) barrier();
            quantise_rows(w.path, in.x, in.ld, n_row, w.d_in, context.quantised_, even());
            barrier();
            quantised = op.in[0];
        }
        in.quantised = context.quantised_;
    }
    matmul(w, in, n_row, context.row(op.out, 0), static_cast<size_t>(plan.slot(op.out).width()), op.accumulate,
           shared());
}

void CpuContext::Walk::swiglu(const Op& op) {
    const uint32_t d = static_cast<uint32_t>(context.program_->plan->slot(op.out).width());
    constexpr uint32_t kPart = 256;
    const uint64_t n_part = ceil_div(d, kPart);
    uint64_t from, to;
    even_part(n_part * context.step_.n_row, even(), &from, &to);
    for (uint64_t i = from; i < to; ++i) {
        const uint32_t r = static_cast<uint32_t>(i / n_part), c = static_cast<uint32_t>(i % n_part) * kPart;
        context.program_->loops->swiglu(context.row(op.in[0], r) + c, context.row(op.in[1], r) + c,
                                        context.row(op.out, r) + c, d - c < kPart ? d - c : kPart, op.limit);
    }
}

void CpuContext::Walk::delta(const Op& op) {
    const DeltaDims& d = op.delta;
    const Step& step = context.step_;
    const Loops& loops = *context.program_->loops;
    const DeltaState& state = context.delta_[op.state];
    const DeltaState::Terms &mine = state.terms[context.parity_], &last = state.terms[context.parity_ ^ 1];
    float* ring = context.conv_[op.state2];
    const uint32_t conv_dim = d.conv_dim(), key_dim = d.n_head_k * d.d_key;
    const float *conv_w = context.program_->vectors[op.w[0]], *dt = context.program_->vectors[op.w[1]],
                *a = context.program_->vectors[op.w[2]], *norm = context.program_->vectors[op.w[3]];

    // Convolution and normalisation, by (row, head): query heads, key heads, value heads.
    const uint32_t n_unit = 2 * d.n_head_k + d.n_head_v;
    for (uint64_t i = i_thread; i < uint64_t{step.n_row} * n_unit; i += n_thread) {
        const uint32_t r = static_cast<uint32_t>(i / n_unit), h = static_cast<uint32_t>(i % n_unit);
        const uint32_t n = h < 2 * d.n_head_k ? d.d_key : d.d_val;
        const uint32_t c = h < 2 * d.n_head_k ? h * d.d_key : 2 * key_dim + (h - 2 * d.n_head_k) * d.d_val;
        const float* taps[8];
        for (uint32_t j = 0; j < d.n_conv; ++j) {
            const int64_t back = int64_t{r} - (d.n_conv - 1) + j;  // row of this step, or before it
            const uint64_t position = uint64_t{step.first_row} + kConvRing + static_cast<uint64_t>(back);
            taps[j] = (back >= 0 ? context.row(op.in[0], static_cast<uint32_t>(back))
                                 : ring + size_t{position % kConvRing} * conv_dim) +
                      c;
        }
        float* y = context.conv_out_ + size_t{r} * conv_dim + c;
        loops.conv_silu(taps, conv_w + size_t{c} * d.n_conv, y, n, d.n_conv);
        if (h < d.n_head_k)
            l2_normalise(y, n, 1.0f / std::sqrt(static_cast<float>(d.d_key)));
        else if (h < 2 * d.n_head_k) {
            l2_normalise(y, n, 1.0f);
            if (step.tentative)
                std::memcpy(mine.k + (size_t{r} * d.n_head_k + h - d.n_head_k) * d.d_key, y, n * sizeof(float));
        }
    }
    barrier();

    // The raw inputs by position; every row that a later step can look back to.
    const uint32_t keep = step.n_row < kConvRing ? step.n_row : kConvRing;
    for (uint32_t i = i_thread; i < keep; i += n_thread) {
        const uint32_t r = step.n_row - keep + i;
        std::memcpy(ring + size_t{(step.first_row + r) % kConvRing} * conv_dim, context.row(op.in[0], r),
                    conv_dim * sizeof(float));
    }

    // The recurrence, by value head.
    float* scratch = context.thread_scratch_ + i_thread * context.thread_stride_;
    DeltaRow* rows = context.delta_rows_ + size_t{i_thread} * kDeltaChunk;
    const uint32_t piece = step.tentative || step.n_row <= kDeltaSequential ? kDeltaSequential : kDeltaChunk;
    for (uint32_t h = i_thread; h < d.n_head_v; h += n_thread) {
        const uint32_t hk = d.grouped ? h / (d.n_head_v / d.n_head_k) : h % d.n_head_k;
        float* s = state.s + size_t{h} * d.d_key * d.d_val;
        DeltaTerm terms[kMaxTentative];
        uint32_t n_term = context.n_pending_;
        for (uint32_t i = 0; i < n_term; ++i)
            terms[i] = {last.decay[i * d.n_head_v + h], last.k + (size_t{i} * d.n_head_k + hk) * d.d_key,
                        last.u + (size_t{i} * d.n_head_v + h) * d.d_val};
        for (uint32_t r0 = 0; r0 < step.n_row; r0 += piece) {
            const uint32_t n = step.n_row - r0 < piece ? step.n_row - r0 : piece;
            float* spare_u = scratch + size_t{d.d_key} * d.d_val;
            for (uint32_t i = 0; i < n; ++i) {
                const uint32_t r = r0 + i;
                const float* y = context.conv_out_ + size_t{r} * conv_dim;
                const float alpha = context.row(op.in[3], r)[h] + dt[h];
                const float softplus = alpha > 20.0f ? alpha : std::log1p(std::exp(alpha));
                rows[i].decay = std::exp(a[h] * softplus);
                rows[i].beta = 1.0f / (1.0f + std::exp(-context.row(op.in[2], r)[h]));
                rows[i].q = y + size_t{hk} * d.d_key;
                rows[i].k = y + key_dim + size_t{hk} * d.d_key;
                rows[i].v = y + 2 * key_dim + size_t{h} * d.d_val;
                rows[i].u = step.tentative ? mine.u + (size_t{r} * d.n_head_v + h) * d.d_val
                                           : spare_u + size_t{i % kDeltaSequential} * d.d_val;
                rows[i].o = context.row(op.out, r) + size_t{h} * d.d_val;
                if (step.tentative) mine.decay[r * d.n_head_v + h] = rows[i].decay;
            }
            if (piece == kDeltaSequential) {
                loops.delta_rows(s, d.d_key, d.d_val, terms, n_term, rows, n, !step.tentative, scratch);
            } else {
                if (n_term) loops.delta_rows(s, d.d_key, d.d_val, terms, n_term, nullptr, 0, true, scratch);
                loops.delta_chunk(s, d.d_key, d.d_val, rows, n, scratch);
            }
            n_term = 0;
            for (uint32_t i = 0; i < n; ++i) {
                loops.rms_norm(rows[i].o, norm, rows[i].o, d.d_val, d.eps);
                loops.silu_gate(rows[i].o, context.row(op.in[1], r0 + i) + size_t{h} * d.d_val, rows[i].o, d.d_val);
            }
        }
    }
}

const float* CpuContext::rotation(const Op& op, uint32_t i_row) const {
    for (const Rotation& r : rotations_)
        if (r.n_rot == op.attn.n_rot && r.base == op.attn.rope_base && r.factors == op.w[1])
            return r.table + size_t{i_row} * r.n_rot;
    return nullptr;
}

void CpuContext::Walk::kv_write(const Op& op) {
    const AttnDims& a = op.attn;
    const Loops& loops = *context.program_->loops;
    const KvCache& kv = context.kv_[op.state];
    const float* norm = op.w[0] == kNoSlot ? nullptr : context.program_->vectors[op.w[0]];
    for (uint64_t i = i_thread; i < uint64_t{context.step_.n_row} * a.n_head_kv; i += n_thread) {
        const uint32_t r = static_cast<uint32_t>(i / a.n_head_kv), h = static_cast<uint32_t>(i % a.n_head_kv);
        float* k = context.row(op.in[0], r) + size_t{h} * a.d_head;
        const float* v = context.row(op.in[1], r) + size_t{h} * a.d_head;
        if (norm) loops.rms_norm(k, norm, k, a.d_head, a.eps);
        rotate(k, a.n_rot, context.rotation(op, r));
        auto put = [&](std::byte* to_k, std::byte* to_v, uint32_t place) {
            auto one = [&](Type type, const float* x, std::byte* to, uint64_t bytes) {
                to += place * bytes + row_bytes(type, uint64_t{h} * a.d_head);
                if (type == Type::f16)
                    loops.to_f16(x, reinterpret_cast<uint16_t*>(to), a.d_head);
                else
                    encode_row(type, x, to, a.d_head);
            };
            one(kv.shape.k, k, to_k, kv.shape.k_bytes);
            one(kv.shape.v, v, to_v, kv.shape.v_bytes);
        };
        const uint32_t p = context.step_.first_row + r;
        put(kv.k, kv.v, kv.shape.place(p));
        if (p < kv.shape.sinks) put(kv.sink_k, kv.sink_v, p);
    }
}

void CpuContext::Walk::attend(const Op& op) {
    const AttnDims& a = op.attn;
    const Step& step = context.step_;
    const Loops& loops = *context.program_->loops;
    const KvCache& kv = context.kv_[op.state];
    const float* norm = op.w[0] == kNoSlot ? nullptr : context.program_->vectors[op.w[0]];
    const size_t q_stride = a.gate == AttnGate::interleaved ? size_t{2} * a.d_head : a.d_head;
    const uint32_t group = a.n_head / a.n_head_kv;
    float* scratch = context.thread_scratch_ + i_thread * context.thread_stride_;

    for (uint64_t i = i_thread; i < uint64_t{step.n_row} * a.n_head; i += n_thread) {
        const uint32_t r = static_cast<uint32_t>(i / a.n_head), h = static_cast<uint32_t>(i % a.n_head);
        float* q = context.row(op.in[0], r) + h * q_stride;
        if (norm) loops.rms_norm(q, norm, q, a.d_head, a.eps);
        rotate(q, a.n_rot, context.rotation(op, r));
        for (uint32_t j = 0; j < a.d_head; ++j) q[j] *= a.scale;
    }
    barrier();

    auto lowest = [&](uint32_t p) {  // the oldest position that a row at p sees, sinks aside
        const uint32_t low = kv.shape.low(p);
        return low > step.first_key ? low : step.first_key;
    };
    // Parts of the sum, in this order: the sinks that lie before the window, then the chunks it touches.
    constexpr uint32_t kSinks = ~uint32_t{0};
    const uint32_t n_chunk = ceil_div(step.first_row + step.n_row, kAttnChunk);

    // What rows r0 .. r1-1 see of one chunk through the query heads of one key head: a partial for each
    // at part(r, i), i < group; its weight (part[1]) is 0 where a row sees nothing there. Rows that see the
    // whole chunk share the reading of it; the bits are those of one query at a time.
    auto partials = [&](uint32_t r0, uint32_t r1, uint32_t hk, uint32_t chunk, auto part) {
        const float* q[kAttnQueries];
        float *m[kAttnQueries], *l[kAttnQueries], *o[kAttnQueries];
        uint32_t n = 0, from = 0, to = 0;
        auto flush = [&] {
            if (n == 0) return;
            const std::byte *k = chunk == kSinks ? kv.sink_k : kv.k, *v = chunk == kSinks ? kv.sink_v : kv.v;
            const uint32_t place = chunk == kSinks ? from : kv.shape.place(from);
            const uint64_t head = uint64_t{hk} * a.d_head;
            loops.attend_many(
                n, q, {k + place * kv.shape.k_bytes + row_bytes(kv.shape.k, head), kv.shape.k_bytes, kv.shape.k},
                {v + place * kv.shape.v_bytes + row_bytes(kv.shape.v, head), kv.shape.v_bytes, kv.shape.v}, to - from,
                a.d_head, scratch, m, l, o);
            n = 0;
        };
        for (uint32_t r = r0; r < r1; ++r) {
            const uint32_t p = step.first_row + r, low = lowest(p);
            uint32_t from_r = step.first_key, to_r = kv.shape.sinks < low ? kv.shape.sinks : low;
            if (chunk != kSinks) {
                from_r = chunk * kAttnChunk > low ? chunk * kAttnChunk : low;
                to_r = (chunk + 1) * kAttnChunk < p + 1 ? (chunk + 1) * kAttnChunk : p + 1;
            }
            if (from_r != from || to_r != to) flush();
            from = from_r;
            to = to_r;
            for (uint32_t i = 0; i < group; ++i) {
                float* at = part(r, i);
                at[1] = 0;
                if (from >= to) continue;
                if (n == kAttnQueries) flush();
                q[n] = context.row(op.in[0], r) + (size_t{hk} * group + i) * q_stride;
                m[n] = at;
                l[n] = at + 1;
                o[n] = at + 2;
                ++n;
            }
        }
        flush();
    };
    // Merges a partial into a row's sums, in chunk order. A sum of weight 0 is still empty.
    auto merge = [&](float* sum, const float* part) {
        if (part[1] == 0) return;
        if (sum[1] == 0) {
            std::memcpy(sum, part, (a.d_head + 2) * sizeof(float));
            return;
        }
        const float m = sum[0] > part[0] ? sum[0] : part[0];
        const float keep = std::exp(sum[0] - m), take = std::exp(part[0] - m);
        sum[0] = m;
        sum[1] = std::fma(part[1], take, sum[1] * keep);
        loops.merge(sum + 2, keep, part + 2, take, a.d_head);
    };
    auto finish = [&](uint32_t r, uint32_t h, const float* sum) {
        float* o = context.row(op.out, r) + size_t{h} * a.d_head;
        const float scale = 1.0f / sum[1];
        for (uint32_t j = 0; j < a.d_head; ++j) o[j] = sum[2 + j] * scale;
        if (a.gate == AttnGate::interleaved) {
            loops.sigmoid_gate(o, context.row(op.in[0], r) + h * q_stride + a.d_head, o, a.d_head);
        } else if (a.gate == AttnGate::per_head) {
            const float g = 1.0f / (1.0f + std::exp(-context.row(op.in[1], r)[h]));
            for (uint32_t j = 0; j < a.d_head; ++j) o[j] *= g;
        }
    };

    if (step.n_row > kMaxTentative) {
        // Enough rows to keep every thread busy: tiles of rows, chunk after chunk.
        float *parts = scratch + kAttnQueries * kAttnChunk, *sums = parts + kAttnRows * group * context.part_stride_;
        const uint64_t n_tile = ceil_div(step.n_row, kAttnRows);
        for (uint64_t i = i_thread; i < n_tile * a.n_head_kv; i += n_thread) {
            const uint32_t hk = static_cast<uint32_t>(i % a.n_head_kv),
                           r0 = static_cast<uint32_t>(i / a.n_head_kv) * kAttnRows;
            const uint32_t r1 = r0 + kAttnRows < step.n_row ? r0 + kAttnRows : step.n_row, n = (r1 - r0) * group;
            auto part = [&](uint32_t r, uint32_t g) { return parts + ((r - r0) * group + g) * context.part_stride_; };
            for (uint32_t k = 0; k < n; ++k) sums[k * context.part_stride_ + 1] = 0;
            auto add = [&](uint32_t c) {
                partials(r0, r1, hk, c, part);
                for (uint32_t k = 0; k < n; ++k)
                    merge(sums + k * context.part_stride_, parts + k * context.part_stride_);
            };
            if (kv.shape.sinks != 0) add(kSinks);
            for (uint32_t c = lowest(step.first_row + r0) / kAttnChunk;
                 c < n_chunk && c * kAttnChunk < step.first_row + r1; ++c)
                add(c);
            for (uint32_t k = 0; k < n; ++k)
                finish(r0 + k / group, hk * group + k % group, sums + k * context.part_stride_);
        }
        return;
    }
    // Few rows: parts side by side, merged afterwards in the same order.
    const uint32_t n_sink_part = kv.shape.sinks != 0 ? 1 : 0, chunk0 = lowest(step.first_row) / kAttnChunk;
    const uint32_t n_part = n_sink_part + n_chunk - chunk0;
    auto part = [&](uint32_t r, uint32_t h, uint32_t c) {
        return context.attn_part_ + ((size_t{r} * a.n_head + h) * context.n_part_max_ + c) * context.part_stride_;
    };
    for (uint64_t i = i_thread; i < uint64_t{a.n_head_kv} * n_part; i += n_thread) {
        const uint32_t c = static_cast<uint32_t>(i / a.n_head_kv), hk = static_cast<uint32_t>(i % a.n_head_kv);
        partials(0, step.n_row, hk, c < n_sink_part ? kSinks : chunk0 + c - n_sink_part,
                 [&](uint32_t r, uint32_t g) { return part(r, hk * group + g, c); });
    }
    barrier();
    for (uint64_t i = i_thread; i < uint64_t{step.n_row} * a.n_head; i += n_thread) {
        const uint32_t r = static_cast<uint32_t>(i / a.n_head), h = static_cast<uint32_t>(i % a.n_head);
        float* sum = scratch;
        sum[1] = 0;
        for (uint32_t c = 0; c < n_part; ++c) merge(sum, part(r, h, c));
        finish(r, h, sum);
    }
}

}  // namespace detail
}  // namespace auspex

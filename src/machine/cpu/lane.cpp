#include "lane.h"

#include <algorithm>

namespace auspex {
namespace detail {
namespace lane_impl {

constexpr uint32_t kAlign = 64;

}  // namespace lane_impl

Result<std::unique_ptr<Lane>> CpuProgram::open(const LaneOptions& options) { return CpuLane::open(shared_from_this(), options); }

template <class T>
T* CpuLane::place(uint64_t n) {
    T* at = cursor_ ? reinterpret_cast<T*>(cursor_ + n_placed_) : nullptr;
    n_placed_ += round_up(n * sizeof(T), lane_impl::kAlign);
    return at;
}

// Runs twice: once to count, once to hand out.
void CpuLane::lay_out(const LaneOptions& options) {
    const Plan& plan = *program_->plan;
    const uint32_t n_thread = program_->pool->n_thread();
    n_placed_ = 0;
    rows_.assign(plan.slots.size(), nullptr);
    kv_.assign(plan.slots.size(), KvCache());
    delta_.assign(plan.slots.size(), DeltaState());
    conv_.assign(plan.slots.size(), nullptr);
    rotations_.clear();

    const uint64_t n_position = round_up(options.n_context, kAttnChunk);
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const Slot& s = plan.slot(id);
        switch (s.role) {
            case SlotRole::weight: break;
            case SlotRole::activation:
            case SlotRole::kept: {
                const bool logits = id == plan.trunk.logits || std::any_of(plan.mtp.begin(), plan.mtp.end(), [&](const Tape& t) { return t.logits == id; });
                rows_[id] = place<float>((logits ? kMaxTentative : n_row_max_) * s.width());
                break;
            }
            case SlotRole::kv:
                kv_[id].width = static_cast<uint32_t>(s.width());
                kv_[id].k = place<uint16_t>(n_position * s.width());
                kv_[id].v = place<uint16_t>(n_position * s.width());
                break;
            case SlotRole::conv: conv_[id] = place<float>(kConvRing * s.width()); break;
            case SlotRole::delta: delta_[id].s = place<float>(s.shape[0] * s.shape[1] * s.shape[2]); break;
        }
    }
    uint64_t conv_dim = 0, d_in = 0, n_head = 0, group = 0, d_head = 0, delta_floats = 0;
    auto look = [&](const Tape& tape) {
        for (const Op& op : tape.ops) {
            if (op.kind == OpKind::matmul) d_in = std::max(d_in, plan.slot(op.in[0]).width());
            if (op.kind == OpKind::attend) {
                n_head = std::max<uint64_t>(n_head, op.attn.n_head);
                group = std::max<uint64_t>(group, op.attn.n_head / op.attn.n_head_kv);
                d_head = std::max<uint64_t>(d_head, op.attn.d_head);
                const bool known = std::any_of(rotations_.begin(), rotations_.end(), [&](const Rotation& r) { return r.n_rot == op.attn.n_rot && r.base == op.attn.rope_base; });
                if (!known) rotations_.push_back({op.attn.n_rot, op.attn.rope_base, place<float>(uint64_t{n_row_max_} * op.attn.n_rot)});
            }
            if (op.kind == OpKind::delta) {
                const DeltaDims& d = op.delta;
                conv_dim = std::max<uint64_t>(conv_dim, d.conv_dim());
                delta_floats = std::max<uint64_t>(delta_floats, std::max<uint64_t>(delta_chunk_scratch(d.d_key, d.d_val),
                                                                                   uint64_t{d.d_key} * d.d_val + uint64_t{kDeltaSequential} * d.d_val));
                for (DeltaState::Terms& t : delta_[op.state].terms) {
                    t.decay = place<float>(uint64_t{kMaxTentative} * d.n_head_v);
                    t.k = place<float>(uint64_t{kMaxTentative} * d.n_head_k * d.d_key);
                    t.u = place<float>(uint64_t{kMaxTentative} * d.n_head_v * d.d_val);
                }
            }
        }
    };
    look(plan.trunk);
    for (const Tape& t : plan.mtp) look(t);
    conv_out_ = place<float>(uint64_t{n_row_max_} * conv_dim);
    n_chunk_max_ = static_cast<uint32_t>(n_position / kAttnChunk);
    part_stride_ = round_up(d_head + 2, 16);
    attn_part_ = place<float>(uint64_t{kMaxTentative} * n_head * n_chunk_max_ * part_stride_);
    thread_stride_ = std::max<uint64_t>(round_up(delta_floats, 16), uint64_t{kAttnQueries} * kAttnChunk + 2 * kAttnRows * group * part_stride_);
    thread_scratch_ = place<float>(n_thread * thread_stride_);
    quantised_ = d_in % 32 == 0 ? place<std::byte>(quantised_bytes(n_row_max_, static_cast<uint32_t>(d_in))) : nullptr;
    delta_rows_ = place<DeltaRow>(uint64_t{n_thread} * kDeltaChunk);
}

Result<std::unique_ptr<Lane>> CpuLane::open(std::shared_ptr<CpuProgram> program, const LaneOptions& options) {
    std::unique_ptr<CpuLane> lane(new CpuLane(std::move(program)));
    lane->options_ = options;
    lane->n_row_max_ = std::max(options.n_ubatch, kMaxTentative);
    lane->lay_out(options);
    AUSPEX_TRY(lane->memory_.take(lane->program_->allocator, lane->n_placed_, "a session's caches and scratch"));
    lane->cursor_ = lane->memory_.data();
    lane->lay_out(options);
    return std::unique_ptr<Lane>(std::move(lane));
}

void CpuLane::reset() {
    const Plan& plan = *program_->plan;
    n_pending_ = 0;
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const Slot& s = plan.slot(id);
        if (s.role == SlotRole::delta) std::fill_n(delta_[id].s, s.shape[0] * s.shape[1] * s.shape[2], 0.0f);
        if (s.role == SlotRole::conv) std::fill_n(conv_[id], kConvRing * s.width(), 0.0f);
    }
}

Status CpuLane::run(const Step& step) {
    const uint32_t limit = step.tentative ? kMaxTentative : n_row_max_;
    if (step.n_row == 0 || step.n_row > limit || step.n_logit > step.n_row || step.n_logit > kMaxTentative)
        return fail(Code::bad_argument, "a step of ", step.n_row, " rows with ", step.n_logit, " logits, expected 1..", limit, " and at most ", kMaxTentative);
    if (step.position > options_.n_context || options_.n_context - step.position < step.n_row)
        return fail(Code::context_full, "rows ", step.position, "..", uint64_t{step.position} + step.n_row - 1, " do not fit a context of ", options_.n_context);
    step_ = step;
    row0_ = 0;
    head_only_ = false;
    const bool trunk = step.tape == &program_->plan->trunk;
    if (trunk) parity_ ^= 1;
    program_->pool->run(walk_entry, this);
    if (trunk) n_pending_ = 0;  // folded in by this step; its own rows wait for commit()
    return {};
}

Status CpuLane::head(const Tape& tape, uint32_t first, uint32_t n) {
    if (n == 0 || n > kMaxTentative || first + n > n_row_max_) return fail(Code::bad_argument, "logits of rows ", first, "..", first + n, " were asked for");
    step_.tape = &tape;
    step_.n_row = n;
    step_.n_logit = n;
    row0_ = first;
    head_only_ = true;
    program_->pool->run(walk_entry, this);
    return {};
}

Result<Span<const float>> CpuLane::read_row(SlotId slot, uint32_t i) {
    return Span<const float>(row(slot, i), static_cast<size_t>(program_->plan->slot(slot).width()));
}

void CpuLane::fold_pending() {
    if (n_pending_ == 0) return;
    for (const Op& op : program_->plan->trunk.ops) {
        if (op.kind != OpKind::delta) continue;
        const DeltaDims& d = op.delta;
        const DeltaState& state = delta_[op.state];
        const DeltaState::Terms& t = state.terms[parity_];
        for (uint32_t h = 0; h < d.n_head_v; ++h) {
            const uint32_t hk = d.grouped ? h / (d.n_head_v / d.n_head_k) : h % d.n_head_k;
            DeltaTerm terms[kMaxTentative];
            for (uint32_t i = 0; i < n_pending_; ++i)
                terms[i] = {t.decay[i * d.n_head_v + h], t.k + (size_t{i} * d.n_head_k + hk) * d.d_key, t.u + (size_t{i} * d.n_head_v + h) * d.d_val};
            program_->loops->delta_rows(state.s + size_t{h} * d.d_key * d.d_val, d.d_key, d.d_val, terms, n_pending_, nullptr, 0, false, thread_scratch_);
        }
    }
    n_pending_ = 0;
}

namespace lane_impl {

/// Visits everything that makes up a timeline of n_token tokens, as (pointer, bytes), in plan order.
template <class F>
void each_part(const Plan& plan, const std::vector<KvCache>& kv, const std::vector<DeltaState>& delta, const std::vector<float*>& conv, uint32_t n_token, F visit) {
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const Slot& s = plan.slot(id);
        if (s.role == SlotRole::kv) {
            visit(kv[id].k, uint64_t{n_token} * kv[id].width * sizeof(uint16_t));
            visit(kv[id].v, uint64_t{n_token} * kv[id].width * sizeof(uint16_t));
        }
        if (s.role == SlotRole::delta) visit(delta[id].s, s.shape[0] * s.shape[1] * s.shape[2] * sizeof(float));
        if (s.role == SlotRole::conv) visit(conv[id], kConvRing * s.width() * sizeof(float));
    }
}

}  // namespace lane_impl

Status CpuLane::save(uint32_t n_token, std::vector<std::byte>* to) {
    fold_pending();
    lane_impl::each_part(*program_->plan, kv_, delta_, conv_, n_token, [&](const void* p, uint64_t n) {
        const std::byte* b = static_cast<const std::byte*>(p);
        to->insert(to->end(), b, b + n);
    });
    return {};
}

Status CpuLane::restore(uint32_t n_token, Span<const std::byte> from) {
    uint64_t need = 0;
    auto count = [&](const void*, uint64_t n) { need += n; };
    lane_impl::each_part(*program_->plan, kv_, delta_, conv_, n_token, count);
    if (need != from.size()) return fail(Code::bad_argument, "a snapshot of ", n_token, " tokens has ", from.size(), " bytes, expected ", need, "; it belongs to another model or version");
    n_pending_ = 0;
    const std::byte* at = from.data();
    lane_impl::each_part(*program_->plan, kv_, delta_, conv_, n_token, [&](void* p, uint64_t n) {
        if (n) std::memcpy(p, at, n);
        at += n;
    });
    return {};
}

}  // namespace detail
}  // namespace auspex

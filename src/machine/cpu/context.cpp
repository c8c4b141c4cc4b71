#include "context.h"

#include <algorithm>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace context_impl {

/// Marks the slots that the tape touches.
void mark(const Tape& tape, std::vector<bool>* touched) {
    auto touch = [&](SlotId id) {
        if (id != kNoSlot) (*touched)[id] = true;
    };
    touch(tape.hidden);
    touch(tape.logits);
    for (const Op& op : tape.ops) {
        for (SlotId id : op.in) touch(id);
        for (SlotId id : {op.out, op.state, op.state2}) touch(id);
    }
}

}  // namespace context_impl

Result<std::unique_ptr<Context>> CpuModel::open(const ContextOptions& options) {
    return CpuContext::open(shared_from_this(), options);
}

// Runs twice: without memory, to count the bytes, then with it, to set the pointers.
void CpuContext::lay_out(const ContextOptions& options) {
    const Plan& plan = *model_->plan;
    const uint32_t n_thread = model_->pool->n_thread();
    n_placed_ = 0;
    rows_.assign(plan.slots.size(), nullptr);
    kv_ = std::vector<KvCache>(plan.slots.size());
    delta_ = std::vector<DeltaState>(plan.slots.size());
    conv_.assign(plan.slots.size(), nullptr);
    rotations_.clear();

    n_part_max_ = 0;
    place_activations(options);
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const Slot& s = plan.slot(id);
        if (mtp_only_[id] && !options.mtp) continue;
        switch (s.role) {
            case SlotRole::weight:
            case SlotRole::activation:
            case SlotRole::kept: break;
            case SlotRole::kv: {
                KvCache& kv = kv_[id];
                kv.shape = kv_shapes_[id];
                const int layer = static_cast<int>(kv.shape.layer);
                name("keys", layer);
                kv.k = place<std::byte>(kv.shape.n_ring * kv.shape.k_bytes);
                name("values", layer);
                kv.v = place<std::byte>(kv.shape.n_ring * kv.shape.v_bytes);
                name("sinks", layer);
                kv.sink_k = place<std::byte>(kv.shape.sinks * kv.shape.k_bytes);
                kv.sink_v = place<std::byte>(kv.shape.sinks * kv.shape.v_bytes);
                n_part_max_ = std::max(n_part_max_, kv.shape.n_part());
                break;
            }
            case SlotRole::conv: name("convolution inputs"), conv_[id] = place<float>(kConvRing * s.width()); break;
            case SlotRole::delta:
                name("recurrent state"), delta_[id].s = place<float>(s.shape[0] * s.shape[1] * s.shape[2]);
                break;
        }
    }
    name("hidden rows of drafts");
    if (options.mtp && !plan.mtp.empty()) pending_hidden_ = place<float>(uint64_t{kMaxPendingHidden} * plan.d_model);
    uint64_t conv_dim = 0, d_in = 0, n_head = 0, group = 0, d_head = 0, delta_floats = 0;
    for (const Tape* tape : plan.tapes(options.mtp)) {
        for (const Op& op : tape->ops) {
            if (op.kind == OpKind::matmul || op.kind == OpKind::moe) d_in = std::max(d_in, plan.slot(op.in[0]).width());
            if (op.kind == OpKind::attend) {
                n_head = std::max<uint64_t>(n_head, op.attn.n_head);
                group = std::max<uint64_t>(group, op.attn.n_head / op.attn.n_head_kv);
                d_head = std::max<uint64_t>(d_head, op.attn.d_head);
                const bool known = std::any_of(rotations_.begin(), rotations_.end(), [&](const Rotation& r) {
                    return r.n_rot == op.attn.n_rot && r.base == op.attn.rope_base && r.factors == op.w[1];
                });
                name("rotation tables");
                if (!known)
                    rotations_.push_back({op.attn.n_rot, op.attn.rope_base, op.w[1],
                                          place<float>(uint64_t{n_row_max_} * op.attn.n_rot)});
            }
            if (op.kind == OpKind::delta) {
                const DeltaDims& d = op.delta;
                conv_dim = std::max<uint64_t>(conv_dim, d.conv_dim());
                delta_floats = std::max<uint64_t>(
                    delta_floats,
                    std::max<uint64_t>(delta_chunk_scratch(d.d_key, d.d_val),
                                       uint64_t{d.d_key} * d.d_val + uint64_t{kDeltaSequential} * d.d_val));
                name("rolling terms");
                for (DeltaState::Terms& t : delta_[op.state].terms) {
                    t.decay = place<float>(uint64_t{kMaxTentative} * d.n_head_v);
                    t.k = place<float>(uint64_t{kMaxTentative} * d.n_head_k * d.d_key);
                    t.u = place<float>(kMaxTentative * d.value_dim());
                }
            }
        }
    }
    name("convolution scratch");
    conv_out_ = place<float>(uint64_t{n_row_max_} * conv_dim);
    part_stride_ = static_cast<size_t>(round_up(d_head + 2, 16));
    name("attention scratch");
    attn_part_ = place<float>(uint64_t{kMaxTentative} * n_head * n_part_max_ * part_stride_);
    thread_stride_ = static_cast<size_t>(std::max<uint64_t>(
        round_up(delta_floats, 16), uint64_t{kAttnQueries} * kAttnChunk + 2 * kAttnRows * group * part_stride_));
    name("scratch of the threads");
    thread_scratch_ = place<float>(n_thread * thread_stride_);
    name("quantised activations");
    quantised_ = place<std::byte>(quantised_bytes(n_row_max_, static_cast<uint32_t>(round_up(d_in, 32))));
    name("expert scratch");
    lay_out_moe();
    name("scratch of the threads");
    delta_rows_ = place<DeltaRow>(uint64_t{n_thread} * kDeltaChunk);
}

/// Trunk and draft block never run at the same time, so what only one of them touches shares memory with what only the
/// other does, unless its rows are kept.
void CpuContext::place_activations(const ContextOptions& options) {
    const Plan& plan = *model_->plan;
    const auto floats = [&](SlotId id) {
        const uint32_t n_row = id == plan.trunk.logits ? kMaxTentative
                               : mtp_only_[id]         ? std::min(n_row_max_, kMaxMtpRows)
                                                       : n_row_max_;
        return round_up(n_row * plan.slot(id).width(), 16);
    };
    std::vector<bool> in_mtp(plan.slots.size(), false);
    for (const Tape& t : plan.mtp)
        if (options.mtp) context_impl::mark(t, &in_mtp);
    std::vector<uint64_t> at(plan.slots.size(), UINT64_MAX);
    uint64_t n_float[2] = {0, 0};
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const SlotRole role = plan.slot(id).role;
        if ((mtp_only_[id] && !options.mtp) || (role != SlotRole::activation && role != SlotRole::kept)) continue;
        if (role == SlotRole::activation && in_mtp[id] == mtp_only_[id]) {
            at[id] = n_float[mtp_only_[id]];
            n_float[mtp_only_[id]] += floats(id);
        } else {
            name(mtp_only_[id] ? "activations of the draft block" : "activations");
            rows_[id] = place<float>(floats(id));
        }
    }
    name("activations");
    float* shared = place<float>(n_float[0]);
    name("activations of the draft block");
    place<float>(n_float[1] > n_float[0] ? n_float[1] - n_float[0]
                                         : 0);  // the shared memory is as long as the longer of the two
    for (SlotId id = 0; shared && id < at.size(); ++id)
        if (at[id] != UINT64_MAX) rows_[id] = shared + at[id];
}

Status CpuContext::prepare(const ContextOptions& options) {
    options_ = options;
    n_row_max_ = std::max(options.n_ubatch, kMaxTentative);
    mtp_only_ = std::vector<bool>(model_->plan->slots.size());
    context_impl::mark(model_->plan->trunk, &mtp_only_);
    mtp_only_.flip();
    AUSPEX_TRY(kv_shapes(*model_->plan, options).get(kv_shapes_));
    lay_out(options);
    return {};
}

Status CpuContext::plan_memory(std::shared_ptr<CpuModel> model, const ContextOptions& options,
                               std::vector<MemoryItem>* items) {
    CpuContext context(std::move(model));
    context.items_ = items;
    return context.prepare(options);
}

Result<std::unique_ptr<Context>> CpuContext::open(std::shared_ptr<CpuModel> model, const ContextOptions& options) {
    std::unique_ptr<CpuContext> context(new CpuContext(std::move(model)));
    AUSPEX_TRY(context->prepare(options));
    AUSPEX_TRY(context->memory_.take(context->model_->allocator, context->n_placed_, "a session's caches and scratch"));
    context->cursor_ = context->memory_.data();
    context->lay_out(options);
    return std::unique_ptr<Context>(std::move(context));
}

AUSPEX_SMALL_CODE_END

void CpuContext::reset() {
    const Plan& plan = *model_->plan;
    n_pending_ = 0;
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const Slot& s = plan.slot(id);
        if (s.role == SlotRole::delta) std::fill_n(delta_[id].s, s.shape[0] * s.shape[1] * s.shape[2], 0.0f);
        if (s.role == SlotRole::conv) std::fill_n(conv_[id], kConvRing * s.width(), 0.0f);
    }
}

Status CpuContext::run(const Step& step) {
    const bool trunk = step.tape == &model_->plan->trunk;
    AUSPEX_TRY(check_step(step, *model_->plan, options_));
    if (trunk) parity_ ^= 1;
    walk(step, false, 0);
    if (trunk) n_pending_ = 0;  // applied by this step; its own rows wait for commit()
    if (trunk && step.tentative && pending_hidden_)
        for (uint32_t i = 0; i < step.n_row; ++i)
            std::memcpy(pending_hidden(step.first_row + i), row(model_->plan->trunk.hidden, i),
                        model_->plan->d_model * sizeof(float));
    return {};
}

Status CpuContext::head(const Tape& tape, uint32_t first, uint32_t n) {
    const bool trunk = &tape == &model_->plan->trunk;
    if (!trunk && !options_.mtp)
        return Status(Code::bad_argument, "logits of an MTP block were asked for on a context opened without it");
    if (n == 0 || n > kMaxTentative || first + n > n_row_max_)
        return fail(Code::bad_argument, "logits of rows ", first, "..", first + n, " were asked for");
    Step step;
    step.tape = &tape;
    step.n_row = step.n_logit = n;
    walk(step, true, first);
    return {};
}

uint64_t CpuContext::memory_bytes() const { return memory_.size() + draft_head_.owned_bytes(); }

Status CpuContext::draft_head(Span<const Token> ids) {
    const Plan& plan = *model_->plan;
    if (ids.empty()) {
        draft_head_ = PackedMatrix();
        return {};
    }
    SlotId table = kNoSlot;
    AUSPEX_TRY(draft_table(plan).get(table));
    const std::byte* rows = table < model_->file_rows.size() ? model_->file_rows[table] : nullptr;
    AUSPEX_TRY(check_draft_head(plan, options_, rows, ids));
    MatrixShape shape = cpu_impl::shape_of(plan.slot(table));
    shape.d_out = static_cast<uint32_t>(ids.size());
    return pack_matrix(*model_->kernels, shape, rows, false, model_->allocator, model_->pool.get(), &draft_head_,
                       ids.data());
}

Result<Span<const float>> CpuContext::read_row(SlotId slot, uint32_t i) {
    return Span<const float>(row(slot, i), static_cast<size_t>(model_->plan->slot(slot).width()));
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

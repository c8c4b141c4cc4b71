#include "walk.h"

#include <cmath>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace walk_impl {

inline bool holds(const SlotId* list, uint32_t n, SlotId id) {
    for (uint32_t i = 0; i < n; ++i)
        if (list[i] == id) return true;
    return false;
}

void walk_entry(void* job, uint32_t i_thread, uint32_t n_thread) {
    CpuWalk(*static_cast<const CpuJob*>(job), i_thread, n_thread).run();
}

}  // namespace walk_impl

void CpuContext::walk(const Step& step, bool head_only, uint32_t row0) {
    CpuJob job{*this, step, head_only, row0, n_pending_};
    // Steps of a few rows are alike; prompts are not.
    const uint32_t n_kind = ThreadCount::kKind / 2;
    const bool alike = step.n_row < n_kind && !step.fill_only && !head_only;
    const uint32_t kind = alike ? step.n_row + (step.tape == &model_->plan->trunk ? 0 : n_kind) : ThreadCount::kKind;
    // Steps of other models, or after a history of another power of two of rows, take other times: each row reads all
    // keys before it.
    uint32_t owner = model_->number * 33;
    for (uint32_t n = step.first_row; n >= 1024; n /= 2) ++owner;
    model_->pool->run_some(walk_impl::walk_entry, &job, kind, owner);
}

CpuWalk::CpuWalk(const CpuJob& job, uint32_t i_thread, uint32_t n_thread)
    : context_(job.context),
      model_(*job.context.model_),
      loops_(*job.context.model_->loops),
      step_(job.step),
      job_(job),
      i_thread_(i_thread),
      n_thread_(n_thread) {}

void CpuWalk::barrier() {
    model_.pool->barrier();
    n_written_ = n_read_ = n_ticket_ = 0;
}

Share CpuWalk::shared() {
    if (n_ticket_ == Pool::kTicket) barrier();
    return model_.pool->shared(i_thread_, n_ticket_++);
}

void CpuWalk::wait_for_inputs(const Op& op) {
    using walk_impl::holds;
    bool clash = n_written_ + 2 > kMaxTouched || n_read_ + 4 > kMaxTouched;
    for (SlotId id : op.in) clash = clash || (id != kNoSlot && holds(written_, n_written_, id));
    clash = clash || holds(written_, n_written_, op.out) || holds(read_, n_read_, op.out);
    clash = clash || (op.state != kNoSlot && holds(written_, n_written_, op.state));
    if (clash) barrier();
}

void CpuWalk::note_slots(const Op& op) {
    for (SlotId id : op.in)
        if (id != kNoSlot) read_[n_read_++] = id;
    const SlotId out = op.kind == OpKind::kv_write ? op.state : op.out;
    written_[n_written_++] = out;
    if (out == quantised_) quantised_ = kNoSlot;
}

void CpuWalk::run() {
    if (!job_.head_only) {
        for (const CpuContext::Rotation& r : context_.rotations_)
            for (uint32_t i = i_thread_; i < step_.n_row; i += n_thread_)
                rotation_table(uint64_t{step_.position} + i, r.n_rot, r.base, r.table + size_t{i} * r.n_rot,
                               vector(r.factors));
        barrier();
    }
    const size_t n = step_.fill_only ? step_.tape->n_fill : step_.tape->ops.size();
    for (size_t i = 0; i < n; ++i) {
        const Op& op = step_.tape->ops[i];
        if (op.head ? step_.n_logit == 0 : job_.head_only) continue;
        run(op);
    }
}

void CpuWalk::run(const Op& op) {
    wait_for_inputs(op);
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
    note_slots(op);
}

void CpuWalk::embed(const Op& op) {
    const Matrix& table = model_.matrices[op.w[0]].view();
    for (uint32_t i = i_thread_; i < step_.n_row; i += n_thread_)
        unpack_row(table, static_cast<uint32_t>(step_.ids[i]), row(op.out, i));
}

void CpuWalk::hidden(const Op& op) {
    const uint32_t d = plan().d_model;
    for (uint32_t i = i_thread_; i < step_.n_row; i += n_thread_) {
        const float* from = step_.hidden           ? step_.hidden + size_t{i} * d
                            : step_.hidden_pending ? context_.pending_hidden(step_.first_row + i)
                                                   : row(plan().trunk.hidden, step_.hidden_from + i);
        std::memcpy(row(op.out, i), from, d * sizeof(float));
    }
}

void CpuWalk::norm(const Op& op) {
    const uint32_t d = width(op.in[0]);
    for (uint32_t i = i_thread_; i < step_.n_row; i += n_thread_)
        loops_.rms_norm(row(op.in[0], i), vector(op.w[0]), row(op.out, i) + op.out_offset, d, op.eps);
}

Rows CpuWalk::input_rows(SlotId slot, uint32_t first, uint32_t n_row, bool integers, bool reuse) {
    Rows in;
    in.x = row(slot, first);
    in.ld = width(slot);
    if (!integers) return in;
    if (quantised_ != slot || !reuse) {
        if (n_read_ != 0) barrier();  // another thread may still be multiplying with what the buffer holds
        quantise_rows(*model_.kernels, in.x, in.ld, n_row, width(slot), context_.quantised_, even());
        barrier();
        quantised_ = slot;
    }
    in.quantised = context_.quantised_;
    return in;
}

void CpuWalk::matmul_op(const Op& op) {
    const bool draft_head = op.head && !context_.draft_head_.empty() && step_.tape != &plan().trunk;
    const Matrix& w = draft_head ? context_.draft_head_.view() : model_.matrices[op.w[0]].view();
    const uint32_t n_row = op.head ? step_.n_logit : step_.n_row;
    const uint32_t first = op.head ? job_.row0 + step_.n_row - n_row : 0;
    const Rows in = input_rows(op.in[0], first, n_row, w.wants_integers(), !op.head);
    matmul(w, in, n_row, row(op.out, 0), width(op.out), op.accumulate, shared());
}

void CpuWalk::swiglu(const Op& op) {
    const uint32_t d = width(op.out);
    constexpr uint32_t kPart = 256;
    const uint64_t n_part = ceil_div(d, kPart);
    uint64_t from, to;
    even_part(n_part * step_.n_row, even(), &from, &to);
    for (uint64_t i = from; i < to; ++i) {
        const uint32_t r = static_cast<uint32_t>(i / n_part), c = static_cast<uint32_t>(i % n_part) * kPart;
        loops_.swiglu(row(op.in[0], r) + c, row(op.in[1], r) + c, row(op.out, r) + c, d - c < kPart ? d - c : kPart,
                      op.limit);
    }
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

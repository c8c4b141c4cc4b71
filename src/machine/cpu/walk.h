// machine/cpu/walk: one thread's pass over the operations of one step.
//
// Owns    which thread computes what, and where the threads meet. The formulas are at the kernels (ops.h).
// Thread  one CpuWalk per thread of the pool; all of them take the same decisions, so they meet at the same barriers.
//         Which thread computes a value never changes its bits.
// Tests   tests/test_invariants.cpp: row invariance, commit equivalence and chunk invariance on every path.
#pragma once
#include "context.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// What all threads of a walk read. Of earlier steps, only the caches and states of the context remain.
struct CpuJob {
    CpuContext& context;
    const Step& step;
    bool head_only = false;  ///< run only the head operations, on the kept rows from row0 on
    uint32_t row0 = 0;
    uint32_t n_term = 0;  ///< committed rows of the last tentative step, which the recurrent layers apply first
};

class CpuWalk {
  public:
    CpuWalk(const CpuJob& job, uint32_t i_thread, uint32_t n_thread);
    /// Runs the step's tape.
    void run();

  private:
    struct Attention;
    struct Experts;

    const Plan& plan() const { return *model_.plan; }
    const float* vector(SlotId id) const { return id == kNoSlot ? nullptr : model_.vectors[id]; }
    float* row(SlotId slot, uint32_t i) const { return context_.row(slot, i); }
    uint32_t width(SlotId slot) const { return static_cast<uint32_t>(plan().slot(slot).width()); }
    const float* rotation(const Op& op, uint32_t i_row) const;
    float* scratch() const { return context_.thread_scratch_ + i_thread_ * context_.thread_stride_; }

    /// Waits for all threads.
    void barrier();
    Share even() const { return {i_thread_, n_thread_, nullptr}; }
    Share shared();
    /// Waits at a barrier if this operation reads a slot that another thread may still write, or writes one that
    /// another may still read.
    void wait_for_inputs(const Op& op);
    void note_slots(const Op& op);
    /// The input rows of a product, converted to integers if any of the matrices wants them.
    Rows input_rows(SlotId slot, uint32_t first, uint32_t n_row, bool integers, bool reuse);

    void run(const Op& op);
    void embed(const Op& op);
    void hidden(const Op& op);
    void norm(const Op& op);
    void matmul_op(const Op& op);
    void swiglu(const Op& op);
    void delta(const Op& op);
    void delta_inputs(const Op& op);
    void delta_keep_inputs(const Op& op);
    void delta_head(const Op& op, uint32_t h);
    void kv_write(const Op& op);
    void attend(const Op& op);
    void moe(const Op& op);

    CpuContext& context_;
    const CpuModel& model_;
    const Loops& loops_;
    const Step& step_;
    const CpuJob& job_;
    const uint32_t i_thread_, n_thread_;
    uint32_t n_ticket_ = 0;
    SlotId quantised_ = kNoSlot;  ///< whose rows context_.quantised_ holds
    // Slots touched since the last barrier; a full list forces one.
    static constexpr uint32_t kMaxTouched = 16;
    SlotId written_[kMaxTouched], read_[kMaxTouched];
    uint32_t n_written_ = 0, n_read_ = 0;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

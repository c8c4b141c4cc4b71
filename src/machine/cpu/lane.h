// machine/cpu/lane: one timeline on the CPU: its memory and the walk along a tape.
//
// Owns    CpuProgram (packed weights) and CpuLane (activations, caches, states).
// Reads   backend, ops, matmul, pool.
// Serves  cpu.cpp.
// Thread  run() walks on all threads of the machine's pool.
// Laws    Row, Commit, Chunk, Silence: tests/test_laws.cpp.
#pragma once
#include "../backend.h"
#include "matmul.h"
#include "ops.h"

namespace auspex {
namespace detail {

class CpuProgram : public Program, public std::enable_shared_from_this<CpuProgram> {
  public:
    const Plan* plan = nullptr;
    CpuPath path = CpuPath::reference;
    const Loops* loops = nullptr;
    std::shared_ptr<Pool> pool;
    Allocator allocator;
    std::vector<PackedMatrix> matrices;       ///< by SlotId; empty for others
    std::vector<const float*> vectors;        ///< by SlotId: F32 tensors read directly
    Block vector_bytes;                       ///< those of `vectors` that could not stay in place
    uint64_t n_weight_bytes = 0;

    Result<std::unique_ptr<Lane>> open(const LaneOptions& options) override;
    uint64_t weight_bytes() const override { return n_weight_bytes; }
};

/// Raw convolution inputs kept by position: the taps before a row and the longest tentative step.
constexpr uint32_t kConvRing = 16;
static_assert(kConvRing >= 7 + kMaxTentative, "8 taps and a full tentative step must fit");

/// Queries that read a chunk of keys together, and the rows of a prefill that one thread takes at a time.
constexpr uint32_t kAttnQueries = 16, kAttnRows = 4;

/// Where a Gated DeltaNet layer keeps its past.
struct DeltaState {
    float* s = nullptr;          ///< [n_head_v, d_key, d_val] committed
    struct Terms {               ///< of one tentative step, row by row
        float* decay = nullptr;  ///< [kMaxTentative, n_head_v]
        float* k = nullptr;      ///< [kMaxTentative, n_head_k * d_key]
        float* u = nullptr;      ///< [kMaxTentative, n_head_v * d_val]
    } terms[2];                  ///< the last step's and this one's, in turn
};

struct KvCache {
    uint16_t* k = nullptr;  ///< [n_slot, width] f16, normed and rotated
    uint16_t* v = nullptr;
    uint32_t width = 0;
};

class CpuLane : public Lane {
  public:
    /// Takes all memory. errors: out_of_memory.
    static Result<std::unique_ptr<Lane>> open(std::shared_ptr<CpuProgram> program, const LaneOptions& options);

    Status run(const Step& step) override;
    void commit(uint32_t k) override { n_pending_ = k; }
    void reset() override;
    Status head(const Tape& tape, uint32_t first, uint32_t n) override;
    Result<Span<const float>> read_row(SlotId slot, uint32_t row) override;
    Status save(uint32_t n_token, std::vector<std::byte>* to) override;
    Status restore(uint32_t n_token, Span<const std::byte> from) override;
    uint64_t memory_bytes() const override { return memory_.size(); }

  private:
    /// A walk on one thread. All threads take the same decisions.
    struct Walk {
        CpuLane& lane;
        uint32_t i_thread, n_thread;
        uint32_t n_ticket = 0;
        SlotId quantised = kNoSlot;  ///< whose rows the int8 buffer holds
        // Slots touched since the last barrier; a full list simply forces one.
        static constexpr uint32_t kMaxTouched = 16;
        SlotId written[kMaxTouched], read[kMaxTouched];
        uint32_t n_written = 0, n_read = 0;

        void tape();
        void barrier();
        Share even() const;
        Share shared();
        void settle(const Op& op);
        void touch(const Op& op);
        void run(const Op& op);
        void embed(const Op& op);
        void hidden(const Op& op);
        void norm(const Op& op);
        void matmul_op(const Op& op);
        void swiglu(const Op& op);
        void delta(const Op& op);
        void kv_write(const Op& op);
        void attend(const Op& op);
    };
    struct Rotation {
        uint32_t n_rot;
        float base;
        float* table;  ///< [rows, n_rot]
    };

    explicit CpuLane(std::shared_ptr<CpuProgram> program) : program_(std::move(program)) {}
    void lay_out(const LaneOptions& options);
    template <class T>
    T* place(uint64_t n);
    float* row(SlotId slot, uint32_t i) const { return rows_[slot] + size_t{i} * program_->plan->slot(slot).width(); }
    const float* rotation(const AttnDims& a, uint32_t i_row) const;
    static void walk_entry(void* lane, uint32_t i_thread, uint32_t n_thread);
    void fold_pending();

    std::shared_ptr<CpuProgram> program_;
    Block memory_;
    std::byte* cursor_ = nullptr;  ///< null while only counting
    uint64_t n_placed_ = 0;
    LaneOptions options_;
    uint32_t n_row_max_ = 0;

    std::vector<float*> rows_;            ///< by SlotId: activations
    std::vector<KvCache> kv_;             ///< by SlotId
    std::vector<DeltaState> delta_;       ///< by SlotId
    std::vector<float*> conv_;            ///< by SlotId: [kConvRing, conv_dim]
    std::vector<Rotation> rotations_;
    float* conv_out_ = nullptr;           ///< [rows, conv_dim] q, k, v of the layer at hand
    float* attn_part_ = nullptr;          ///< partials of a short step
    uint32_t n_chunk_max_ = 0;
    size_t part_stride_ = 0;              ///< floats of one partial: m, l, o
    float* thread_scratch_ = nullptr;
    size_t thread_stride_ = 0;
    std::byte* quantised_ = nullptr;
    DeltaRow* delta_rows_ = nullptr;      ///< [n_thread, kDeltaChunk]

    Step step_;
    uint32_t row0_ = 0;          ///< head(): first row to read
    bool head_only_ = false;
    uint32_t n_pending_ = 0;     ///< committed rows of the last tentative step, still to be folded in
    uint32_t parity_ = 0;        ///< which of DeltaState::terms belongs to the step at hand
};

}  // namespace detail
}  // namespace auspex

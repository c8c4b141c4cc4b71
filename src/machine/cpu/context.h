// machine/cpu/context: one sequence on the CPU: its caches, states and scratch.
//
// Owns    CpuModel (packed weights) and CpuContext. walk.h runs a step's operations over them.
// Thread  one thread at a time; run() and head() work on all threads of the back end's pool.
// Tests   tests/test_invariants.cpp: row invariance, commit equivalence, chunk invariance, hot path.
#pragma once
#include "../huge_pages.h"
#include "../kv.h"
#include "kernels.h"
#include "packed_file.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

namespace cpu_impl {
/// Of a weight: a matrix, or a stack of them.
MatrixShape shape_of(const Slot& s);
}  // namespace cpu_impl

class CpuModel : public LoadedModel, public std::enable_shared_from_this<CpuModel> {
  public:
    const Plan* plan = nullptr;
    const CpuKernels* kernels = nullptr;
    const Loops* loops = nullptr;  ///< &kernels->loops
    std::shared_ptr<Pool> pool;
    Allocator allocator;
    HugePages pages;                          ///< what `matrices` own, unless the application has an allocator
    std::vector<PackedMatrix> matrices;       ///< by SlotId; empty for others
    std::vector<const float*> vectors;        ///< by SlotId: F32 tensors read directly
    std::vector<const std::byte*> file_rows;  ///< by SlotId: the tensors' bytes; null where they were not kept
    Block vector_bytes;                       ///< those of `vectors` that had to be converted or copied
    PackedFile packed;                        ///< what matrices may point into; empty: nothing does
    uint64_t n_weight_bytes = 0;
    uint32_t number = 0;  ///< among the users of the pool

    Result<std::unique_ptr<Context>> open(const ContextOptions& options) override;
    uint64_t weight_bytes() const override { return n_weight_bytes; }
};

/// Raw convolution inputs kept, by KV row: the taps before a row and the longest tentative step.
constexpr uint32_t kConvRing = 16;
static_assert(kConvRing >= 7 + kMaxTentative, "8 taps and a full tentative step must fit");

/// Queries that read a chunk of keys together, and the rows of a prefill that one thread takes at a time.
constexpr uint32_t kAttnQueries = 16, kAttnRows = 4;

/// The recurrent state of a Gated DeltaNet layer.
struct DeltaState {
    float* s = nullptr;          ///< [n_head_v, d_key, d_val] committed
    struct Terms {               ///< of one tentative step, row by row
        float* decay = nullptr;  ///< [kMaxTentative, n_head_v]
        float* k = nullptr;      ///< [kMaxTentative, n_head_k * d_key]
        float* u = nullptr;      ///< [kMaxTentative, n_head_v * d_val]
    } terms[2];                  ///< the last step's and this one's, alternating
};

/// Keys and values of one attention layer, normed and rotated, in the types of its shape.
struct KvCache {
    KvShape shape;
    std::byte* k = nullptr;  ///< [n_ring] rows; KV row p at p mod n_ring
    std::byte* v = nullptr;
    std::byte* sink_k = nullptr;  ///< [sinks] rows
    std::byte* sink_v = nullptr;
};
static_assert(kKvChunk == kAttnChunk, "a chunk of attention must lie in one piece of a ring");

/// Scratch of the expert layers, which take turns with it. A pair is one row at one of its experts; pairs are sorted by
/// expert.
struct CpuMoe {
    float* score = nullptr;        ///< [rows, n_expert]
    float* weight = nullptr;       ///< [rows, n_used]
    float* pair_weight = nullptr;  ///< [pairs]
    float* shared = nullptr;       ///< [rows] weight of the shared expert
    uint32_t* id = nullptr;        ///< [rows, n_used] ascending
    uint32_t* row = nullptr;       ///< [pairs] the pair's row
    uint32_t* all = nullptr;       ///< [rows] 0, 1, 2, ..
    uint32_t* first = nullptr;     ///< [n_expert + 1] first pair of each expert
    uint32_t* next = nullptr;      ///< [n_expert]
    uint32_t* touched = nullptr;   ///< experts with pairs, ascending
    uint32_t* n_touched = nullptr;
    float* h = nullptr;         ///< [pairs, d_ff]
    float* h_shared = nullptr;  ///< [rows, d_ff_shared]
    std::byte* q = nullptr;     ///< h as 16-bit integers
    std::byte* q_shared = nullptr;
    float* part = nullptr;  ///< by thread
};

/// errors    unsupported: fused gate and up rows where the up rows do not begin with a strip.
Status check_moe(const Plan& plan, const std::vector<PackedMatrix>& matrices);

class CpuWalk;  // walk.h

class CpuContext : public Context {
  public:
    /// Takes all memory. errors: out_of_memory.
    static Result<std::unique_ptr<Context>> open(std::shared_ptr<CpuModel> model, const ContextOptions& options);

    /// The memory that open() would take; the model needs no weights.
    static Status plan_memory(std::shared_ptr<CpuModel> model, const ContextOptions& options,
                              std::vector<MemoryItem>* items);

    Status run(const Step& step) override;
    void commit(uint32_t k) override { n_pending_ = k; }
    void reset() override;
    Status head(const Tape& tape, uint32_t first, uint32_t n) override;
    Result<Span<const float>> read_row(SlotId slot, uint32_t row) override;
    std::vector<uint64_t> row_pieces(StatePart part) const override;
    uint64_t state_bytes(StatePart part, uint32_t n_row) const override;
    Status save_rows(Span<const PartRows> rows, StateWriter& to) override;
    Status save_state(StatePart part, uint32_t n_row, StateWriter& to) override;
    Status restore_rows(Span<const PartRows> rows, StateReader& from) override;
    Status restore_state(StatePart part, uint32_t n_row, StateReader& from) override;
    uint64_t memory_bytes() const override;
    Status draft_head(Span<const Token> ids) override;
    DeviceLoop* device_loop() override { return nullptr; }
    KernelProfiler* profiler() override { return nullptr; }
    StateCopier* state_copier() override { return nullptr; }
    StateSaver* state_saver() override { return nullptr; }

  private:
    friend class CpuWalk;
    /// Cosines and sines of a step's rotary positions. One table for each distinct (n_rot, base, factors), so at most
    /// one per attention layer: n_ubatch * n_rot floats each, listed in the memory plan as "rotation tables".
    struct Rotation {
        uint32_t n_rot;
        float base;
        SlotId factors;  ///< kNoSlot: none
        float* table;    ///< [rows, n_rot]
    };

    explicit CpuContext(std::shared_ptr<CpuModel> model) : model_(std::move(model)) {}
    Status prepare(const ContextOptions& options);
    void lay_out(const ContextOptions& options);
    /// Names what is placed from here on, for the memory plan.
    void name(const char* what, int layer = -1) { what_ = what, layer_ = layer; }
    void place_activations(const ContextOptions& options);
    void lay_out_moe();
    template <class T>
    T* place(uint64_t n) {
        T* at = cursor_ ? reinterpret_cast<T*>(cursor_ + n_placed_) : nullptr;
        const uint64_t bytes = round_up(n * sizeof(T), 64);
        n_placed_ += bytes;
        if (items_) add_item(items_, what_, layer_, bytes, MemoryPlace::allocator);
        return at;
    }
    float* row(SlotId slot, uint32_t i) const { return rows_[slot] + size_t{i} * model_->plan->slot(slot).width(); }
    float* pending_hidden(uint32_t kv_row) const {
        return pending_hidden_ + size_t{kv_row % kMaxPendingHidden} * model_->plan->d_model;
    }
    /// Runs the step's tape on all threads, or, with `head_only`, its head on the kept rows from row0 on.
    void walk(const Step& step, bool head_only, uint32_t row0);
    void apply_pending();
    // context_state.cpp; visit: Status(void* at, uint64_t bytes).
    template <class F>
    Status each_row_part(Span<const PartRows> rows, F visit) const;
    template <class F>
    Status each_state_part(StatePart part, uint32_t n_row, F visit) const;

    std::shared_ptr<CpuModel> model_;
    Block memory_;
    std::byte* cursor_ = nullptr;  ///< null while only counting
    uint64_t n_placed_ = 0;
    std::vector<MemoryItem>* items_ = nullptr;  ///< the memory plan being made, or null
    const char* what_ = "";
    int layer_ = -1;
    ContextOptions options_;
    uint32_t n_row_max_ = 0;

    std::vector<float*> rows_;         ///< by SlotId: activations
    float* pending_hidden_ = nullptr;  ///< [kMaxPendingHidden, d_model] hidden rows by KV row; with MTP only
    std::vector<KvCache> kv_;          ///< by SlotId
    std::vector<KvShape> kv_shapes_;   ///< by SlotId
    std::vector<DeltaState> delta_;    ///< by SlotId
    std::vector<float*> conv_;         ///< by SlotId: [kConvRing, conv_dim]
    std::vector<Rotation> rotations_;
    float* conv_out_ = nullptr;   ///< [rows, conv_dim] q, k, v of the current layer
    float* attn_part_ = nullptr;  ///< partials of a short step
    uint32_t n_part_max_ = 0;
    size_t part_stride_ = 0;  ///< floats of one partial: m, l, o
    float* thread_scratch_ = nullptr;
    size_t thread_stride_ = 0;
    std::byte* quantised_ = nullptr;
    CpuMoe moe_;
    DeltaRow* delta_rows_ = nullptr;  ///< [n_thread, kDeltaChunk]

    uint32_t n_pending_ = 0;      ///< committed rows of the last tentative step, not applied yet
    std::vector<bool> mtp_only_;  ///< by SlotId: not part of the trunk
    PackedMatrix draft_head_;     ///< rows of the MTP head's table for chosen ids, or empty
    uint32_t parity_ = 0;         ///< which of DeltaState::terms belongs to the last trunk step
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

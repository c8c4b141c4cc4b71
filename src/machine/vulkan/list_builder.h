// machine/vulkan/list_builder: lowered operations become dispatches.
//
// What    Walks lowered operations once and appends to a DispatchList: which kernel runs a node, in which size, with
//         which buffers, and where a barrier must stand. Split by what is built: build_step.cpp (step kernels,
//         sampling), build_products.cpp, build_attention.cpp, build_delta.cpp, build_experts.cpp.
// Thread  one thread at a time.
// Tests   row invariance, and barriers under synchronisation validation: tests/test_vulkan_model.cpp;
//         counts per kernel: tests/test_dispatch_list.cpp.
//
// A barrier stands exactly where a kernel reads what an earlier one wrote, or writes what an earlier one touched, since
// the last barrier; DispatchList::chain() then removes those whose stages can wait by counters. What a row's bits
// depend on (kernel, split of columns) never depends on the number of rows.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "../../../shaders/gemm_args.h"
#include "../../../shaders/matvec_args.h"
#include "../../base/float_mode.h"
#include "buffers.h"
#include "dispatch_list.h"
#include "tune.h"

#include <cstddef>
#include <functional>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// How a pass samples.
struct SampleMode {
    bool noise = false, penalties = false, bias = false;
    uint32_t bits() const { return (noise ? 1u : 0u) | (penalties ? 2u : 0u) | (bias ? 4u : 0u); }
    static SampleMode of(uint32_t bits) { return {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0}; }
    /// The token is that of the largest logit as the head computes it.
    bool plain() const { return bits() == 0; }
};

/// The rows of a pass over a tape, and the kind of kernels that run them.
struct Pass {
    const Tape* tape = nullptr;
    uint32_t n_row = 1;            ///< maximum; the step buffer says how many a replay runs
    bool wide = false;             ///< a committed step of many rows; else a tentative one of at most kMaxTentative
    bool fill_only = false;        ///< MTP: only what fills its cache
    bool head = false;             ///< few rows: logits of every row, in the same pass
    bool largest = false;          ///< the head leaves the largest logits for sample()
    SlotId hidden_slot = kNoSlot;  ///< MTP: the kept rows that are its input; none: the trunk's
    bool from_guesses = false;     ///< MTP: its input are the rows that keep_guess() kept
};

class ListBuilder {
  public:
    /// Appends to a builder.
    using Piece = std::function<void(ListBuilder&)>;

    ListBuilder(const VulkanModel& model, const Buffers& buffers);

    /// The list of what `piece` appends.
    /// `chain`: stages wait by counters instead of barriers where the device allows it; without, each stage ends at a
    /// barrier, so that its time can be taken.
    /// errors    unsupported: a shape that no kernel takes.
    Result<DispatchList> build(const Piece& piece, bool chain = true);

    // ---- pieces
    /// step_open: the host's request, or the next cycle with n_draft tokens waiting in the history.
    void open_request(uint32_t request);
    void open_next(uint32_t n_draft);
    /// Copies the hidden rows of the trunk pass to the pending hidden rows, by position.
    void keep(uint32_t n_row);
    /// Nodes [first, last) of a pass; all: first = 0, last = UINT32_MAX.
    void tape(const Pass& pass, uint32_t first_node = 0, uint32_t last_node = UINT32_MAX);
    /// Which rows a head runs on after its pass.
    enum class HeadRows {
        normed,  ///< the kept rows
        kept,    ///< the kept rows from StepState::hidden_from on
        of_pass  ///< what the last norm of a pass of few rows is computed from: gives the bits of that pass's own head
    };
    /// The head on n rows from StepState::first_logit on.
    void head(const Tape& tape, uint32_t n, HeadRows rows, bool largest = false);
    /// n rows of logits to the host.
    void logits_to_host(const Tape& tape, uint32_t n);
    /// The ids that sample() chose for n rows, to the memory of the host's logits.
    void sampled_to_host(uint32_t n);
    /// The token after each of n logits rows: the largest, or a sample. `largest`: the head left the largest.
    void sample(const Tape& tape, uint32_t n, SampleMode mode, bool largest = false);
    void accept();
    /// Samples row `row` of the trunk pass before from what buffers.allowed holds, and ends the pass there.
    void resample(const Tape& tape, uint32_t row, bool noise);
    void mtp_open();
    /// The guess just sampled becomes a draft, the i-th of its cycle, and the block's next token.
    void mtp_next(const Tape& tape, uint32_t i);
    /// step_block: several blocks draft in one cycle.
    void mtp_block(uint32_t mode, uint32_t n_guess);
    /// Keeps the hidden row of guess i, just sampled, for the blocks after this tape's.
    void keep_guess(const Tape& tape, uint32_t i);
    /// Applies the records of n committed rows to every DeltaNet state of a tape.
    void apply_records(const Tape& tape, uint32_t n_commit);

    /// Nodes of a pass, in order.
    std::vector<const Node*> nodes_of(const Pass& pass) const;

  private:
    /// What kernels read and write, for barriers: slots by id, then the sums of squares of each slot, then these.
    enum Resource : uint32_t {
        kStep,
        kPart,
        kMixed,
        kQuery,
        kGathered,
        kHeadRows,
        kSamplePart,
        kSampleHist,
        kSampleList,
        kSampleBest,
        kRing,
        kLogitsHost,
        kHalves,
        kSwigluHalves,
        kSpare,
        kMoeLogits,
        kMoeChoice,
        kMoeHidden,
        kMoeShared,
        kMoeSum,
        kMoeList,
        kMoeParts,
        kMoeRows,
        kGuessHidden,
        kPendingHidden,
        kShare
    };
    /// Resources, without allocating.
    struct Ids {
        uint32_t id[8] = {}, n = 0;
        Ids(std::initializer_list<uint32_t> ids) {
            for (uint32_t i : ids) add(i);
        }
        void add(uint32_t i) {
            AUSPEX_ASSERT(n < 8);
            id[n++] = i;
        }
        const uint32_t* begin() const { return id; }
        const uint32_t* end() const { return id + n; }
    };
    struct Touch {
        Ids reads, writes;
    };
    static constexpr uint32_t kRowGroup = 256;  ///< invocations of the plain row kernels
    static PipelineKey key_of(const char* shader, uint32_t group, std::vector<SpecValue> constants = {});
    uint32_t id(Resource r) const { return static_cast<uint32_t>(2 * plan_.slots.size()) + r; }
    uint32_t squares(SlotId slot) const { return static_cast<uint32_t>(plan_.slots.size()) + slot; }
    /// Says what the dispatches up to the next uses() read and write: a barrier where that conflicts with what runs
    /// already. `copies`: they are copies, which a barrier between kernels does not cover.
    void uses(const Touch& touch, bool copies = false);
    template <class T>
    void dispatch(const PipelineKey& key, std::initializer_list<Region> regions, const T& push, const Grid& grid,
                  const char* label, uint64_t bytes = 0) {
        list_.dispatch(key, Span<const Region>(regions.begin(), regions.size()), &push,
                       static_cast<uint32_t>(sizeof push), grid, label, bytes);
    }
    /// Of a kernel that has `chain` among its arguments.
    template <class T>
    void dispatch_chained(const PipelineKey& key, std::initializer_list<Region> regions, const T& push,
                          const Grid& grid, const char* label, uint64_t bytes = 0) {
        dispatch(key, regions, push, grid, label, bytes);
        if (chained_) list_.may_chain(offsetof(T, chain));
    }
    /// Remembers the first error; build() returns it.
    void refuse(Status status);

    /// The weight of a head: all of it, or the draft vocabulary's rows.
    const Matrix& matrix_of(const Node& d) const;
    /// Its logits belong to the ids of the draft vocabulary.
    bool has_chosen_ids(const Tape& tape) const { return &tape != &plan_.trunk && buffers_.draft.n_id != 0; }
    uint32_t n_vocab_of(const Tape& tape) const;
    uint32_t width(SlotId slot) const { return static_cast<uint32_t>(plan_.slot(slot).width()); }
    uint32_t stride(SlotId slot) const { return row_stride(plan_, slot); }
    const Region& vector(SlotId slot) const { return slot == kNoSlot ? model_.zeros : model_.vectors[slot]; }
    args::StepArgs step_args() const;
    /// The same for kernels that read how likely the drafts are, and that; any buffer where drafts do not end early.
    args::StepArgs step_args_with_shares() const;
    const Region& shares() const { return buffers_.min_probability > 0 ? buffers_.share : buffers_.step; }
    args::SamplePassArgs sample_args(const Tape& tape) const;
    /// The largest logit of each slice of n rows; the token from these; the token with noise, from: args::kSample...
    void sample_largest(const Tape& tape, const args::SamplePassArgs& a, uint32_t n);
    void sample_final(const args::SamplePassArgs& a, uint32_t n);
    void sample_noisy(const Tape& tape, const args::SamplePassArgs& a, uint32_t n, uint32_t from);

    /// A product of few rows.
    struct ProductArgs {
        const Region *x, *y;
        const Region* squares = nullptr;  ///< of x, where a norm is fused; null: those of its slot
        uint32_t x_stride, y_stride, n_row, stage_tiles;
        bool norm;
        Epilogue epilogue;
        float limit;
    };
    /// Rows [first, first + n) of a product, which one dispatch takes.
    struct RowRange {
        uint32_t first, n;
    };
    void product(const Node& d, const ProductArgs& p);
    /// One dispatch of a product of few rows; on matrix units it may be chained.
    void dispatch_product(const MatvecChoice& c, std::initializer_list<Region> regions, const args::MatvecArgs& a,
                          const Grid& grid, const char* label, uint64_t bytes);
    void product_piece(const Node& d, const ProductArgs& p, RowRange rows);
    void run(const Node& d, const Pass& pass, uint32_t stage_tiles, bool feeds_next);
    /// n rows of `from` from StepState::first_logit on, side by side.
    void gather(const Region& from, const Region& to, uint32_t width, uint32_t n, bool from_kept);
    void given(const Node& d, const Pass& pass);
    void embed(const Node& d, const Pass& pass);
    void norm(const Node& d, const Pass& pass);
    void rows_product(const Node& d, const Pass& pass, uint32_t stage_tiles);
    void wide_product(const Node& d, const Pass& pass, uint32_t stage_tiles, bool feeds_next);
    void pack(const Node& d, const Pass& pass);
    void swiglu(const Node& d, const Pass& pass);

    void delta(const Node& d, const Pass& pass);
    void delta_wide(const Op& op, const args::DeltaArgs& a, uint32_t n_row);
    void delta_any(const Op& op);
    /// What DeltaArgs and DeltaAnyArgs share: heads, norm, and where the four inputs and the output are.
    template <class Args>
    void fill_delta(const Op& op, Args* a) const;

    void experts(const Node& d, const Pass& pass);
    void scores(const Node& d, const Pass& pass, args::RouterArgs* a);
    void route(const Node& d, const Pass& pass);
    /// True where the products of the experts make the choice themselves.
    bool routes_itself(const Op& op) const {
        return vk::routes_itself(matrix_, model_.matrices[op.w[1]].tiling, op.moe.n_expert, op.moe.n_used);
    }
    void experts_few(const Node& d, uint32_t n_row);
    void expert_hidden(const Node& d, uint32_t n_row);
    struct SumOf {
        SlotId weight;
        const Region *x, *residual, *y, *squares;
        uint32_t residual_stride, y_stride;
        const char* label;
    };
    void expert_sum(const Node& d, uint32_t n_row, const SumOf& s);
    void experts_many(const Node& d, const Pass& pass);
    void shared_gemm(const Matrix& m, const GemmChoice& c, args::GemmArgs a, const Region& x, const Region& y,
                     const char* label);
    void expert_gemm(const Matrix& m, const Blocks& b, GemmEpilogue epilogue, args::GemmArgs a, const Region& x,
                     const Region& y, const char* label);

    void append(const Node& d, const Pass& pass);
    void attend(const Node& d, const Pass& pass);
    void attend_any(const Node& d, const Pass& pass, Touch touch);
    void attend_wide(const Node& d, const Pass& pass, Touch touch);
    args::AttendArgs attend_args(const Op& op, const Op& write, uint32_t part_stride) const;

    const DefaultFloatMode mode_;  ///< for the constants of kernels
    const VulkanModel& model_;
    const Buffers& buffers_;
    const Plan& plan_;
    const DeviceTraits& traits_;
    bool matrix_;                                      ///< few rows on matrix units
    bool gemm_matrix_;                                 ///< many rows on matrix units
    bool chained_;                                     ///< stages of few rows may wait for each other by counters
    uint32_t n_score_ = 0;                             ///< maximum of experts that a layer chooses from by itself
    SlotId packed_ = kNoSlot, packed_norm_ = kNoSlot;  ///< whose rows `halves` holds, after which norm
    SlotId swiglu_packed_ = kNoSlot;                   ///< whose rows `swiglu_halves` holds
    uint32_t n_largest_ = 0;                           ///< groups of the head that left the largest logits of a row
    DispatchList list_;
    Status status_;                         ///< the first error
    std::vector<uint32_t> reads_, writes_;  ///< resources, since the last barrier
};

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

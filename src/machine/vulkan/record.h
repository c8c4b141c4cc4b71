// machine/vulkan/record: nodes become dispatches in a command buffer, once per shape of step.
//
// Owns    which kernel runs a node, in which size, with which buffers; where a barrier must stand.
// Reads   program (weights), buffers, lower (Node), tune, shaders/*.h (push constants).
// Serves  context, profile.
// Thread  one thread at a time.
// Laws    Row: what decides a row's bits never depends on the row count. A barrier stands exactly where
//         a kernel touches what one before it wrote, or writes what one before it reads: synchronisation
//         validation in tests/test_vulkan_model.cpp.
//
// A recording is a sequence of pieces, each appended by one call below. It is made twice: first only to
// ask for the pipelines, which are then made side by side, then for good, kernel by kernel in the same order.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "../../../shaders/gemm_args.h"
#include "buffers.h"
#include "commands.h"
#include "tune.h"

#include <functional>

namespace auspex {
namespace detail {
namespace vk {

namespace record_impl {
inline PipelineKey key_of(const char* shader, uint32_t group, std::vector<uint32_t> constants = {}) {
    PipelineKey k;
    k.shader = shader;
    k.group = group;
    k.constants = std::move(constants);
    return k;
}
}  // namespace record_impl

/// The rows of a pass and the kernels that run them.
struct Shape {
    const Tape* tape = nullptr;
    uint32_t n_row = 1;         ///< rows that the recording can run; the step buffer says how many it does run
    bool wide = false;          ///< a committed step of many rows; else a tentative one of at most 9
    bool fill_only = false;     ///< MTP: only what fills its cache
    bool head = false;          ///< few rows: logits of every row, in the same pass
    bool largest = false;       ///< the head leaves the largest logits for sample()
    SlotId fed_from = kNoSlot;  ///< MTP: whose kept rows are its input; none: the trunk's
    bool fed_by_chain = false;  ///< MTP: its input are the rows that keep_guess() kept
};

class Recorder {
  public:
    using Piece = std::function<Status(Recorder&)>;

    Recorder(const VulkanModel& program, const Buffers& buffers);

    /// Records what `piece` appends. With a profile there is a mark at every barrier.
    /// errors    unsupported: no variant of a kernel works here; out_of_memory; device_lost.
    Status record(Commands* commands, const Piece& piece, bool profile = false);
    /// Starts making the pipelines of `piece`; good until the next call.
    Result<Span<const Pipelines::Id>> ask(const Piece& piece);

    // ---- pieces
    /// step_open: the host's request, or the next cycle with n_draft tokens waiting in the history.
    Status open_request(uint32_t request);
    Status open_next(uint32_t n_draft);
    /// Puts the hidden rows of the trunk pass aside by position.
    Status keep(uint32_t n_row);
    /// Nodes [first, last) of a tape; all: first = 0, last = UINT32_MAX.
    Status tape(const Shape& shape, uint32_t first_node = 0, uint32_t last_node = UINT32_MAX);
    /// The head on n rows from StepState::first_logit on. `from_kept`: rows count from hidden_from.
    Status head(const Tape& tape, uint32_t n, bool from_kept, bool largest = false);
    /// n rows of logits to the host.
    Status logits_to_host(const Tape& tape, uint32_t n);
    /// What sample() chose for n rows, to the place of the logits for the host.
    Status sampled_to_host(uint32_t n);
    /// The token after each of n logits rows: the largest, or a sample. `largest`: the head left them.
    Status sample(const Tape& tape, uint32_t n, bool noise, bool penalties, bool largest = false);
    Status accept();
    Status mtp_open();
    Status mtp_next();
    /// step_block: several blocks draft in one cycle.
    Status mtp_block(uint32_t mode, uint32_t n_guess);
    /// The hidden row of guess i, just sampled, for the blocks after this tape's.
    Status keep_guess(const Tape& tape, uint32_t i);
    /// Applies n committed rows to every DeltaNet state of a tape.
    Status fold(const Tape& tape, uint32_t n_commit);

    /// Nodes of a shape, in order; the same for every recording of the shape.
    std::vector<Node> nodes_of(const Shape& shape) const;
    uint32_t n_barrier() const { return n_barrier_; }

    /// What ran between two barriers: the classes of its kernels and the bytes of weights and states they
    /// moved at least.
    struct Mark {
        std::string label;
        uint64_t bytes;
    };
    const std::vector<Mark>& marks() const { return marks_; }

  private:
    /// Things that kernels touch: slots by id, their sums of squares behind them, then these.
    enum Special : uint32_t {
        kStep,
        kPart,
        kMixed,
        kQuery,
        kGathered,
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
        kChain,
        kBehind
    };
    struct Touch {
        std::vector<uint32_t> reads, writes;
    };
    struct Grid {
        uint32_t x = 1, y = 1, z = 1;
    };
    uint32_t special(Special s) const { return static_cast<uint32_t>(2 * plan_.slots.size()) + s; }
    uint32_t squares_id(SlotId id) const { return static_cast<uint32_t>(plan_.slots.size()) + id; }
    /// A barrier if this kernel touches what is not settled yet.
    void barrier(const Touch& touch, bool copies = false);
    void mark_stage();
    /// The weight of a head: all of it, or the draft vocabulary's rows.
    const Matrix& matrix_of(const Node& d) const;
    uint32_t n_vocab_of(const Tape& tape) const;
    Status kernel(const PipelineKey& key, std::initializer_list<Region> buffers, const void* push, uint32_t push_bytes,
                  const Grid& grid, const char* label, uint64_t bytes);
    template <class T>
    Status kernel(const PipelineKey& key, std::initializer_list<Region> buffers, const T& push, const Grid& grid,
                  const char* label, uint64_t bytes = 0) {
        return kernel(key, buffers, &push, static_cast<uint32_t>(sizeof push), grid, label, bytes);
    }
    uint32_t width(SlotId id) const { return static_cast<uint32_t>(plan_.slot(id).width()); }
    uint32_t stride(SlotId id) const { return row_stride(plan_, id); }
    const Region& vector(SlotId id) const { return id == kNoSlot ? program_.zeros : program_.vectors[id]; }
    args::StepArgs step_args() const;

    struct ProductArgs {
        const Region *x, *y;
        uint32_t x_stride, y_stride, n_row, stage_tiles;
        bool norm;
        Epilogue epilogue;
        float limit;
    };
    Status product(const Node& d, const ProductArgs& p);
    Status run(const Node& d, const Shape& shape, uint32_t stage_tiles, bool feeds_next);
    Status embed(const Node& d, const Shape& shape);
    Status norm(const Node& d, const Shape& shape);
    Status rows_product(const Node& d, const Shape& shape, uint32_t stage_tiles);
    Status wide_product(const Node& d, const Shape& shape, uint32_t stage_tiles, bool feeds_next);
    Status pack(const Node& d, const Shape& shape);
    Status swiglu(const Node& d, const Shape& shape);
    Status delta(const Node& d, const Shape& shape);
    Status delta_any(const Op& op, const Shape& shape);
    Status experts(const Node& d, const Shape& shape);
    Status scores(const Node& d, const Shape& shape, args::RouterArgs* a);
    Status route(const Node& d, const Shape& shape);
    bool routes_itself(const Op& op) const {
        return vk::routes_itself(matrix_, program_.matrices[op.w[1]].tiling, op.moe.n_expert, op.moe.n_used);
    }
    Status experts_few(const Node& d, uint32_t n_row);
    Status expert_hidden(const Node& d, uint32_t n_row);
    struct SumOf {
        SlotId weight;
        const Region *x, *residual, *y, *squares;
        uint32_t residual_stride, y_stride;
        const char* label;
    };
    Status expert_sum(const Node& d, uint32_t n_row, const SumOf& s);
    Status experts_many(const Node& d, const Shape& shape);
    Status expert_gemm(const Matrix& m, const GemmChoice& c, args::GemmArgs a, const Region& x, const Region& y,
                       const Grid& grid, bool by_expert, const char* label);
    Status append(const Node& d, const Shape& shape);
    Status attend(const Node& d, const Shape& shape);
    args::AttendArgs attend_args(const Op& op, const Op& write, uint32_t part_stride) const;

    const VulkanModel& program_;
    const Buffers& buffers_;
    const Plan& plan_;
    bool matrix_;                                      ///< few rows on matrix units
    bool gemm_matrix_;                                 ///< many rows on matrix units
    uint32_t n_score_ = 0;                             ///< most experts that a layer chooses from by itself
    SlotId packed_ = kNoSlot, packed_norm_ = kNoSlot;  ///< whose rows `halves` holds, after which norm
    SlotId swiglu_packed_ = kNoSlot;                   ///< whose rows `swiglu_halves` holds
    bool asking_ = false, profile_ = false;
    Commands* commands_ = nullptr;
    std::vector<uint32_t> reads_, writes_;  ///< since the last barrier
    std::vector<Pipelines::Id> asked_;      ///< by kernel() calls, in order
    size_t n_kernel_ = 0;                   ///< of them, those recorded
    std::vector<Mark> marks_;
    uint32_t n_largest_ = 0;  ///< groups of the head that left the largest logits of a row
    Mark stage_;              ///< what ran since the last barrier
    uint32_t n_barrier_ = 0;
};

}  // namespace vk
}  // namespace detail
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

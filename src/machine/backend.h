// machine/backend: the narrow waist between a plan and what runs it.
//
// Owns    Step, Machine, Program, Lane. A new operation widens OpKind, never this interface.
// Reads   plan, weights.
// Serves  engine (above); cpu and vulkan implement it.
// Thread  a Machine and a Program may be shared; a Lane belongs to one thread at a time.
// Laws    Row, Commit, Chunk, Twin: the same tests run over every machine.
#pragma once
#include "../plan/weights.h"

namespace auspex {
namespace detail {

/// The most rows a tentative step may have: one plus the deepest draft.
constexpr uint32_t kMaxTentative = 9;

/// Rows to run. A step is tentative until committed: commit(k) makes its first k rows history.
struct Step {
    const Tape* tape = nullptr;   ///< of the lane's plan
    const Token* ids = nullptr;   ///< [n_row]
    uint32_t n_row = 0;           ///< at most LaneOptions::n_ubatch, or kMaxTentative when tentative
    uint32_t position = 0;        ///< absolute position of the first row
    uint32_t n_logit = 0;         ///< head ops run on the last n_logit rows, at most kMaxTentative
    bool tentative = false;       ///< rows may be discarded by a smaller commit; else all are committed
    bool fill_only = false;       ///< MTP: run only the ops that fill its cache
    /// MTP: the hidden row given to each row, [n_row, d_model], on the host; null: the rows kept by
    /// the previous trunk step, from row `hidden_from` on.
    const float* hidden = nullptr;
    uint32_t hidden_from = 0;
};

struct LaneOptions {
    uint32_t n_context = 0;   ///< rows of history at most
    uint32_t n_ubatch = 0;    ///< rows of a committed step at most
};

/// One timeline on a machine: caches, state, scratch. All memory is taken when it is opened.
class Lane {
  public:
    virtual ~Lane() = default;
    /// Runs the rows. The trunk's pending rows of an earlier tentative step must be committed first.
    virtual Status run(const Step& step) = 0;
    /// Makes the first k rows of the last tentative trunk step history.
    virtual void commit(uint32_t k) = 0;
    /// Forgets everything: position 0, zero state.
    virtual void reset() = 0;
    /// Runs the tape's head on n kept hidden rows from row `first` of its last step.
    virtual Status head(const Tape& tape, uint32_t first, uint32_t n) = 0;
    /// Kept rows of the last step that wrote them: hidden row i is row i of the step, logits row i
    /// the i-th of those asked for. On the CPU a view, elsewhere a copy; good until the next call.
    virtual Result<Span<const float>> read_row(SlotId slot, uint32_t row) = 0;
    /// State as bytes: caches up to `n_token` positions, recurrent state with committed terms applied.
    virtual Status save(uint32_t n_token, std::vector<std::byte>* to) = 0;
    virtual Status restore(uint32_t n_token, Span<const std::byte> from) = 0;
    virtual uint64_t memory_bytes() const = 0;
};

/// A model's weights on a machine.
class Program {
  public:
    virtual ~Program() = default;
    virtual Result<std::unique_ptr<Lane>> open(const LaneOptions& options) = 0;
    virtual uint64_t weight_bytes() const = 0;
};

class Machine {
  public:
    virtual ~Machine() = default;
    virtual Kind kind() const = 0;
    virtual std::string name() const = 0;
    virtual std::string report() const = 0;
    /// Plan and weights must outlive the Program; the weights' bytes only during the call unless
    /// `weights.keep` says that they stay.
    virtual Result<std::shared_ptr<Program>> load(const Plan& plan, const Weights& weights, const Progress& progress) = 0;
};

}  // namespace detail
}  // namespace auspex

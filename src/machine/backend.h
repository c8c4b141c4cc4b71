// machine/backend: the narrow waist between a plan and what runs it.
//
// Owns    Step, Backend, LoadedModel, Context. A new operation widens OpKind, never this interface.
// Reads   plan, weights.
// Serves  engine (above); cpu and vulkan implement it.
// Thread  a Backend and a LoadedModel may be shared; a Context belongs to one thread at a time.
// Laws    Row, Commit, Chunk, Twin: the same tests run over every machine.
#pragma once
#include "../plan/weights.h"

namespace auspex {
namespace detail {

/// The most rows a tentative step may have: one plus the deepest draft.
constexpr uint32_t kMaxTentative = 9;
/// The most rows of a step on an MTP tape: with 64, a GPU spent 5 % of a small model's prompt on filling its cache.
constexpr uint32_t kMaxMtpRows = 256;
/// A context with MTP keeps the hidden rows of tentative trunk steps for this many positions; a power of two.
constexpr uint32_t kMaxPendingHidden = 64;

/// Rows of a step that judges guesses after the fact: all of them with logits.
constexpr uint32_t kAcceptanceProbeRows = 8;

/// Rows to run. A step is tentative until committed: commit(k) makes its first k rows history.
struct Step {
    const Tape* tape = nullptr;  ///< of the context's plan
    const Token* ids = nullptr;  ///< [n_row]
    uint32_t n_row = 0;  ///< at most ContextOptions::n_ubatch, kMaxTentative when tentative, kMaxMtpRows on an MTP tape
    uint32_t position = 0;   ///< absolute position of the first row
    uint32_t n_logit = 0;    ///< head ops run on the last n_logit rows, at most kMaxTentative
    bool tentative = false;  ///< rows may be discarded by a smaller commit; else all are committed
    bool fill_only = false;  ///< MTP: run only the ops that fill its cache
    /// MTP: the hidden row given to each of at most kMaxTentative rows, [n_row, d_model], on the host; null: the rows
    /// kept by the previous trunk step, from row `hidden_from` on.
    const float* hidden = nullptr;
    uint32_t hidden_from = 0;
    bool hidden_pending = false;  ///< MTP: instead, the rows that tentative trunk steps left for these positions
    uint32_t first_key = 0;       ///< MTP: keys before this position were never written and are not seen
};

/// How the keys and values of one attention layer are kept; kv.h has the arithmetic.
struct KvOptions {
    uint32_t window = 0;  ///< a row sees keys at distance < window; 0: as far as the model lets it
    uint32_t sinks = 0;   ///< and always the first positions
    Type k = Type::f16;   ///< or q8_0, q4_0, q4_1, f32
    Type v = Type::f16;
};

struct ContextOptions {
    uint32_t n_context = 0;          ///< rows of history at most
    uint32_t n_ubatch = 0;           ///< rows of a committed step at most
    bool mtp = true;                 ///< steps on Plan::mtp tapes will be run; false: no memory for them is taken
    uint32_t mtp_window = 0;         ///< MTP rows see keys at distance < mtp_window, in a cache of that length; 0: all
    std::vector<KvOptions> kv = {};  ///< by SlotId; empty: the defaults for every layer
};

/// The most cycles that may be queued and not yet waited for.
constexpr uint32_t kMaxQueued = 8;

/// How a context that drives itself shall go on.
struct DeviceLoop {
    Span<const Token> history;  ///< every token; rows of all but the last have been run. Read by start() only
    Sampling sampling;          ///< as Sampler::sample takes it
    Span<const Token> stop;     ///< ids that end the text, at most 16; each is emitted, then `done`
    uint32_t limit = 0;         ///< no token is sampled for a position from here on, at most n_context
    /// Rows at the end of the history (before its last token) that the MTP cache does not hold yet,
    /// 1 .. kMaxTentative; their hidden rows are kept by the last trunk step from row hidden_from on.
    /// After a drive that is 1 + Cycle::n_accept of the last cycle, from row 0. 0: no drafts, and the
    /// MTP cache is not kept up.
    uint32_t n_mtp_row = 0;
    uint32_t hidden_from = 0;
    uint32_t first_key = 0;  ///< of the MTP passes, as in Step
    /// For measuring: unless 0, a draft counts as right with this chance, keyed by its position, whatever it
    /// says; everything is computed all the same.
    float synth_accept = 0;
    uint32_t synth_seed = 0;
};

struct Cycle {
    Span<const Token> tokens;  ///< 1 + n_accept of them, or none after `done`; good until the next wait()
    uint32_t n_draft = 0;      ///< drafted and verified
    uint32_t n_accept = 0;
    bool done = false;  ///< a stop id was emitted, or the limit is reached
    double us = 0;  ///< that the device spent on it, from the end of the cycle before or its own start; 0: not known
    double catch_up_us = 0;  ///< of it, in a cycle without drafts: for the draft block's cache alone
    bool ready = false;      ///< it was over before wait() was called: how long that took says nothing
    bool fresh = false;  ///< something was prepared for the first time meanwhile: `us` is not what such a cycle takes
};

/// One timeline on a machine: caches, state, scratch. All memory is taken when it is opened.
class Context {
  public:
    virtual ~Context() = default;
    /// Runs the rows. The trunk's pending rows of an earlier tentative step must be committed first.
    virtual Status run(const Step& step) = 0;
    /// Makes the first k rows of the last tentative trunk step history.
    virtual void commit(uint32_t k) = 0;
    /// Forgets everything: position 0, zero state.
    virtual void reset() = 0;
    /// Runs the tape's head on n kept hidden rows from row `first` of its last step.
    virtual Status head(const Tape& tape, uint32_t first, uint32_t n) = 0;
    /// Kept rows of the last step that wrote them: hidden row i is row i of the step, logits row i
    /// the i-th of those asked for. All tapes may share one slot for logits. On the CPU a view, elsewhere a copy; good
    /// until the next call.
    virtual Result<Span<const float>> read_row(SlotId slot, uint32_t row) = 0;
    /// State as bytes: caches up to `n_token` positions, recurrent state with committed terms applied.
    virtual Status save(uint32_t n_token, std::vector<std::byte>* to) = 0;
    virtual Status restore(uint32_t n_token, Span<const std::byte> from) = 0;
    virtual uint64_t memory_bytes() const = 0;
    /// From now on MTP heads give the logits of these ids alone, in this order: row n of the table stands
    /// at logit n. Ascending, without repeats; empty: all ids again. Takes memory; not for use within a text.
    /// errors    unsupported, out_of_memory: the head is as before.
    virtual Status draft_head(Span<const Token> ids);

    // ---- driving: for contexts that sample and accept tokens themselves, without the host in between.
    //
    //   start(drive)          the timeline stands before the last token of drive.history
    //   queue(n), queue(n)    two cycles are on their way; the host is free
    //   wait() -> tokens      of the oldest; then queue the next, and so on
    //
    // A cycle drafts n tokens with the plan's MTP block, runs 1 + n rows of the trunk, sampled_ids, and keeps
    // what agrees. While cycles are queued, nothing but queue() and wait() may be called. When all have
    // been waited for, the context stands as after run() and commit(): every token but the last emitted one
    // is history; run(), save(), start() go on from there. queue() may be called kMaxQueued times ahead.
    virtual bool has_device_loop() const { return false; }
    /// errors    bad_argument: a contradiction in `drive`, named; unsupported: this context is driven.
    virtual Status start(const DeviceLoop& drive);
    /// Starts making, in the background, what cycles of up to `most` drafts run: nobody waits for it.
    virtual Status prepare_drafts(uint32_t most);
    /// run() of an MTP step with logits for all of its rows, of which it tells only the sample of each as a driven
    /// cycle would draft it: an id, or a place in the draft vocabulary. Good until the next call. errors unsupported:
    /// this context is driven.
    virtual Result<Span<const Token>> guess(const Step& step);
    /// Is everything there for a cycle of n_draft drafts? If not, queueing one waits for it.
    virtual bool ready(uint32_t) { return true; }
    /// Enqueues one cycle with n_draft drafts, at most kMaxTentative - 1. Without an MTP cache (DeviceLoop::n_mtp_row
    /// is 0) nothing is drafted: whatever ids stand behind the history are verified, which is of use for timing alone.
    virtual Status queue(uint32_t n_draft);
    /// The oldest queued cycle. After one with `done`, what was queued behind it emits nothing.
    virtual Result<Cycle> wait();

    /// Times each kernel class of a tentative pass of n_row rows at `position`, as run() and commit(0)
    /// would make it. errors: unsupported where there is nothing to measure.
    virtual Result<std::vector<KernelTime>> profile(uint32_t n_row, uint32_t position);
};

inline Status Context::draft_head(Span<const Token> ids) {
    return ids.empty() ? Status()
                       : Status(Code::unsupported, "this machine drafts with the model's whole vocabulary only");
}
inline Status Context::start(const DeviceLoop&) {
    return Status(Code::unsupported, "this context does not drive itself; use run() and read_row()");
}
inline Result<Span<const Token>> Context::guess(const Step&) {
    return Status(Code::unsupported, "this context does not drive itself; use run() and read_row()");
}
inline Status Context::prepare_drafts(uint32_t) { return {}; }
inline Status Context::queue(uint32_t) {
    return Status(Code::unsupported, "this context does not drive itself; use run() and read_row()");
}
inline Result<Cycle> Context::wait() {
    return Status(Code::unsupported, "this context does not drive itself; use run() and read_row()");
}
inline Result<std::vector<KernelTime>> Context::profile(uint32_t, uint32_t) {
    return Status(Code::unsupported,
                  "the CPU does not time its kernels one by one, only a GPU with timestamps does; open a Vulkan device "
                  "to profile a step");
}

/// A model's weights on a machine.
class LoadedModel {
  public:
    virtual ~LoadedModel() = default;
    virtual Result<std::unique_ptr<Context>> open(const ContextOptions& options) = 0;
    virtual uint64_t weight_bytes() const = 0;
};

class Backend {
  public:
    virtual ~Backend() = default;
    virtual Kind kind() const = 0;
    virtual std::string name() const = 0;
    virtual std::string report() const = 0;
    /// Name and version of the driver; empty where there is none.
    virtual std::string driver() const { return {}; }
    /// What load() would take, added to `items`; reads no tensor.
    virtual Status plan_weights(const Plan& plan, const Weights& weights, std::vector<MemoryItem>* items) const;
    /// Bytes that the device can still give; UINT64_MAX where there is no telling, or no device of its own.
    virtual uint64_t budget_bytes() const { return UINT64_MAX; }
    /// What Context::draft_head() would keep for n_id ids.
    virtual Status plan_draft_head(const Plan& plan, uint32_t n_id, std::vector<MemoryItem>* items) const;
    /// What LoadedModel::open() would take.
    virtual Status plan_context(const Plan& plan, const ContextOptions& options, std::vector<MemoryItem>* items) const;
    /// What spares the next start its longest part; see Device::pipeline_cache().
    virtual std::vector<std::byte> pipeline_cache() const { return {}; }
    /// Plan and weights must outlive the LoadedModel; the weights' bytes only during the call unless
    /// `weights.keep` says that they stay.
    virtual Result<std::shared_ptr<LoadedModel>> load(const Plan& plan, const Weights& weights,
                                                      const Progress& progress) = 0;
};

inline Status Backend::plan_weights(const Plan&, const Weights&, std::vector<MemoryItem>*) const {
    return Status(Code::unsupported, "this machine cannot tell beforehand what it takes");
}
inline Status Backend::plan_draft_head(const Plan&, uint32_t, std::vector<MemoryItem>*) const {
    return Status(Code::unsupported, "this machine cannot tell beforehand what it takes");
}
inline Status Backend::plan_context(const Plan&, const ContextOptions&, std::vector<MemoryItem>*) const {
    return Status(Code::unsupported, "this machine cannot tell beforehand what it takes");
}

}  // namespace detail
}  // namespace auspex

// machine/backend: the interface between the engine and what runs a model.
//
// What    Backend (a device), LoadedModel (weights on it), Context (one sequence on it), and Step (rows to run).
//         Every back end implements all of these. What only some can do is an interface of its own that a caller
//         asks the Context for and may not get: DeviceLoop, KernelProfiler, StateCopier.
// Thread  a Backend and a LoadedModel may be shared; a Context belongs to one thread at a time.
// Tests   the same suites run over every back end: tests/test_invariants.cpp, tests/test_vulkan_model.cpp.
//
// A new operation adds an OpKind, never a function here.
#pragma once
#include "../plan/weights.h"
#include "state_stream.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// The most rows a tentative step may have: one plus the deepest draft.
constexpr uint32_t kMaxTentative = 9;
/// The most rows of a step on an MTP tape: with 64, a GPU spent 5 % of a small model's prompt on filling its cache.
constexpr uint32_t kMaxMtpRows = 256;
/// A context with MTP keeps the hidden rows of tentative trunk steps for this many KV rows; a power of two.
constexpr uint32_t kMaxPendingHidden = 64;
/// Rows of one step of an acceptance probe: all of them with logits.
constexpr uint32_t kAcceptanceProbeRows = 8;

/// Rows to run. A step is tentative until committed: commit(k) makes its first k rows history. Make a new Step for
/// every run: nothing of an earlier one may reach a later one.
struct Step {
    const Tape* tape = nullptr;  ///< of the context's plan
    const Token* ids = nullptr;  ///< [n_row]
    uint32_t n_row = 0;  ///< at most ContextOptions::n_ubatch, kMaxTentative when tentative, kMaxMtpRows on an MTP tape
    uint32_t sequence = 0;   ///< whose rows these are; a context holds one sequence, 0
    uint32_t first_row = 0;  ///< KV row of the first row: where it is kept, which decides what it sees
    uint32_t position = 0;   ///< rotary position of the first row
    uint32_t n_logit = 0;    ///< head operations run on the last n_logit rows, at most kMaxTentative
    bool tentative = false;  ///< rows may be discarded by a smaller commit; else all are committed
    bool fill_only = false;  ///< MTP: run only the operations that fill its cache
    /// MTP: the hidden row given to each of at most kMaxTentative rows, [n_row, d_model], on the host; null: the rows
    /// kept by the previous trunk step, from row `hidden_from` on.
    const float* hidden = nullptr;
    uint32_t hidden_from = 0;
    bool hidden_pending = false;  ///< MTP: instead, the rows that tentative trunk steps left for these KV rows
    uint32_t first_key = 0;       ///< MTP: KV rows before this one were never written and are not seen

    /// Plain text: KV row and rotary position are the same number.
    void place(uint32_t row) { first_row = position = row; }
};

/// How the keys and values of one attention layer are kept; kv.h has the arithmetic.
struct KvOptions {
    uint32_t window = 0;  ///< a row sees keys at distance < window; 0: as far as the model lets it
    uint32_t sinks = 0;   ///< and always the first KV rows
    Type k = Type::f16;   ///< or q8_0, q4_0, q4_1, f32
    Type v = Type::f16;
};

struct ContextOptions {
    uint32_t n_context = 0;          ///< KV rows at most
    uint32_t n_ubatch = 0;           ///< rows of a committed step at most
    bool exact_prompts = false;      ///< committed steps do not round activations and weights to halves
    bool mtp = true;                 ///< steps on Plan::mtp tapes will be run; false: no memory for them is taken
    uint32_t mtp_window = 0;         ///< MTP rows see keys at distance < mtp_window, in a cache of that length; 0: all
    float min_probability = 0;       ///< the device loop's drafts end before one that the MTP block gives less; 0..1
    std::vector<KvOptions> kv = {};  ///< by SlotId; empty: the defaults for every layer
    uint64_t saved_state_bytes = 0;  ///< of the states that StateSaver saves, at most; 0: it is not used
};

/// Adds bytes to the item of that name, layer and place, which is made if there is none; nothing where bytes is 0.
void add_item(std::vector<MemoryItem>* items, const std::string& what, int layer, uint64_t bytes, MemoryPlace place);

/// What every back end refuses before it runs anything.
/// errors    bad_argument: too many rows or logits for this kind of step, another sequence, or a step of an MTP block
///           on a context opened without it; context_full: rows beyond n_context.
Status check_step(const Step& step, const Plan& plan, const ContextOptions& options);

// ------------------------------------------------------------------------------- the device decode loop

/// The most cycles that may be queued and not yet waited for.
constexpr uint32_t kMaxQueued = 8;

/// Below this a temperature counts as 0: logits divided by it would overflow.
constexpr float kMinTemperature = 1e-30f;
inline bool is_greedy(const Sampling& s) { return !(s.temperature >= kMinTemperature); }

/// The most biases with which the device decode loop samples.
constexpr size_t kMaxLoopBias = 1024;

/// How the device decode loop begins.
struct LoopStart {
    Span<const Token> history;  ///< every token; rows of all but the last have been run. Read by start() only
    Sampling sampling;          ///< as Sampler::sample takes it; at most kMaxLoopBias biases
    Span<const Token> stop;     ///< ids that end the text, at most 16; each is emitted, then `done`
    uint32_t limit = 0;         ///< no token is sampled for a position from here on, at most n_context
    /// Rows at the end of the history (before its last token) that the MTP cache does not hold yet,
    /// 1 .. kMaxTentative; their hidden rows are kept by the last trunk step from row hidden_from on.
    /// After a loop that is 1 + Cycle::n_accept of the last cycle, from row 0. 0: no drafts, and the
    /// MTP cache is not kept up.
    uint32_t n_mtp_row = 0;
    uint32_t hidden_from = 0;
    uint32_t first_key = 0;  ///< of the MTP passes, as in Step
    // For measuring only: synthetic acceptance. Unless 0, a draft counts as right with this chance, keyed by its
    // position, whatever it is; everything is computed all the same.
    float synth_accept = 0;
    uint32_t synth_seed = 0;
};

struct Cycle {
    Span<const Token> tokens;  ///< 1 + n_accept of them, or none after `done`; valid until the next wait()
    uint32_t n_draft = 0;      ///< drafted and verified
    uint32_t n_accept = 0;
    bool done = false;       ///< a stop id was emitted, or the limit is reached
    double us = 0;           ///< device time, from the end of the cycle before or from its own start; 0: not known
    double catch_up_us = 0;  ///< of it, in a cycle without drafts: for the draft block's cache alone
    bool ready = false;      ///< it had finished before wait() was called: the time of the call says nothing
    bool cold = false;       ///< something was recorded for the first time meanwhile: `us` is not typical
};

/// A decode loop that runs on the device: it drafts, verifies, samples and accepts; the host only queues cycles and
/// reads tokens.
///
///   start(loop)           the context holds all rows before the last token of loop.history
///   queue(n), queue(n)    two cycles are queued; the host is free
///   wait() -> tokens      of the oldest; then queue the next, and so on
///
/// A cycle drafts n tokens with the plan's MTP block, or takes the caller's, runs 1 + n rows of the trunk, samples, and
/// keeps what agrees.
/// While cycles are queued, only queue() and wait() may be called. When all have been waited for, the context is as
/// after run() and commit(): every token but the last emitted one is history; run(), save(), start() go on from there.
class DeviceLoop {
  public:
    virtual ~DeviceLoop() = default;
    /// errors    bad_argument: a contradiction in `loop`, named; unsupported: no MTP block to draft with.
    virtual Status start(const LoopStart& loop) = 0;
    /// Starts building, in the background, what cycles of up to max_drafts drafts run.
    virtual Status prepare(uint32_t max_drafts) = 0;
    /// True if queueing a cycle of n_draft drafts need not wait for prepare().
    virtual bool ready(uint32_t n_draft) = 0;
    /// Enqueues one cycle with n_draft drafts, at most kMaxTentative - 1, up to kMaxQueued ahead. Without an MTP cache
    /// (LoopStart::n_mtp_row is 0) the loop drafts nothing: whatever ids follow the history are verified, which is of
    /// use for timing alone.
    ///
    /// given     null, or [n_draft] drafts in place of the block's. They follow whatever token the cycle begins with.
    virtual Status queue(uint32_t n_draft, const Token* given = nullptr) = 0;
    /// The oldest queued cycle. After one with `done`, the cycles queued after it emit nothing.
    virtual Result<Cycle> wait() = 0;
    /// Takes back the tokens of the last cycle from row `row` on, and samples that row again where only some ids are
    /// allowed, as Sampler::sample_allowed() does. Nothing may be queued. The logits stay on the device.
    ///
    /// allowed   bit id % 32 of word id / 32, for every id of the logits; at least one is set.
    /// returns   the cycle as if it had ended at this row, but with its last token alone.
    virtual Result<Cycle> resample(uint32_t row, Span<const uint32_t> allowed) = 0;
    /// Context::run() of an MTP step with logits for all of its rows, which returns only what a cycle would draft after
    /// each: an id, or an index into the draft vocabulary. Valid until the next call.
    virtual Result<Span<const Token>> guess(const Step& step) = 0;
};

/// Times kernels one class at a time, and counts them.
class KernelProfiler {
  public:
    virtual ~KernelProfiler() = default;
    /// Times each kernel class of a step of n_row rows at KV row `first_row`, as run() would make it: up to
    /// kMaxTentative rows tentative, more as a piece of a prompt, which changes the state. errors: those of
    /// may_profile(), before anything changes.
    virtual Result<std::vector<KernelTime>> profile(uint32_t n_row, uint32_t first_row) = 0;
    /// errors: unsupported: the device has no timestamps. bad_argument: more rows than one piece has. context_full.
    virtual Status may_profile(uint32_t n_row, uint32_t first_row) const = 0;
    /// Counts what run(step) submits for a step of the trunk. Runs nothing; `step.ids` may be null.
    /// errors: bad_argument, context_full: as run(); bad_argument: a step of an MTP block.
    virtual Result<StepCounts> count(const Step& step) const = 0;
};

class Context;

/// Copies a sequence from another context without a way over the host.
class StateCopier {
  public:
    virtual ~StateCopier() = default;
    /// Does what saving and restoring KV rows 0 .. n_kept - 1 and the state of n_row rows would do, for trunk and draft
    /// blocks. from: a context of the same LoadedModel with the same options. errors: device_lost, out_of_memory; the
    /// context is undefined then, `from` as after save_state().
    virtual Status copy(Context& from, uint32_t n_row, uint32_t n_kept) = 0;
};

/// Saves a state while the device goes on.
class StateSaver {
  public:
    virtual ~StateSaver() = default;
    /// What save_state() of the trunk and then of the draft blocks would write, but the device copies it before its
    /// next work, and another thread gives it to `to`, which must not be touched before finish_save(). A save that has
    /// not been finished is finished first. errors    device_lost.
    virtual Status begin_save(uint32_t n_row, StateWriter& to) = 0;
    /// Waits for the save that was begun; does nothing if there is none. errors: device_lost, those of the writer.
    virtual Status finish_save() = 0;
};

// ----------------------------------------------------------------------------- what every back end implements

/// The text depends on the trunk's part alone. The draft blocks' caches decide what is drafted.
enum class StatePart : uint8_t { trunk, draft };

/// KV rows first .. first + n - 1 of a part.
struct PartRows {
    StatePart part = StatePart::trunk;
    uint32_t first = 0, n = 0;
};

/// One sequence on a device: caches, state, scratch. All memory is taken when it is opened, except by draft_head().
class Context {
  public:
    virtual ~Context() = default;
    /// Runs the rows. The trunk's pending rows of an earlier tentative step must be committed first.
    /// errors    bad_argument: a contradiction in `step`, or an unknown sequence; context_full; device_lost.
    virtual Status run(const Step& step) = 0;
    /// Makes the first k rows of the last tentative trunk step history. May be called again, with another k, until the
    /// next trunk step, save() or restore().
    virtual void commit(uint32_t k) = 0;
    /// Forgets everything: no rows, zero state.
    virtual void reset() = 0;
    /// Runs the tape's head on n kept hidden rows from row `first` of its last step.
    virtual Status head(const Tape& tape, uint32_t first, uint32_t n) = 0;
    /// Kept rows of the last step that wrote them: hidden row i is row i of the step, logits row i the i-th of those
    /// asked for. All tapes may share one slot for logits. On the CPU a view, elsewhere a copy; valid until the next
    /// call.
    virtual Result<Span<const float>> read_row(SlotId slot, uint32_t row) = 0;
    // A sequence as bytes. Its rows can be cut at any row; its state belongs to one row alone.
    /// How save_rows() orders the bytes of a range: for each piece, n times that many bytes. Of the caches that keep
    /// every row; kv.h says which.
    virtual std::vector<uint64_t> row_pieces(StatePart part) const = 0;
    /// Bytes of everything else after n_row rows: recurrent state, convolution inputs, caches with a window. The most
    /// at n_context rows.
    virtual uint64_t state_bytes(StatePart part, uint32_t n_row) const = 0;
    /// Rows that have been written, one range after the other. errors: device_lost, those of `to`.
    virtual Status save_rows(Span<const PartRows> rows, StateWriter& to) = 0;
    /// Applies the committed records first: commit() cannot be called again. n_row: the history's. errors: the same.
    virtual Status save_state(StatePart part, uint32_t n_row, StateWriter& to) = 0;
    /// Nothing but these rows changes. errors: device_lost, those of `from`; the rows are undefined then.
    virtual Status restore_rows(Span<const PartRows> rows, StateReader& from) = 0;
    /// The history becomes n_row rows long. errors: the same; the state is undefined then: reset(), or restore again.
    virtual Status restore_state(StatePart part, uint32_t n_row, StateReader& from) = 0;
    Status save_rows(const PartRows& rows, StateWriter& to) { return save_rows(Span<const PartRows>(&rows, 1), to); }
    Status restore_rows(const PartRows& rows, StateReader& from) {
        return restore_rows(Span<const PartRows>(&rows, 1), from);
    }
    /// Bytes of one row: the sum of row_pieces().
    uint64_t kv_row_bytes(StatePart part) const;
    /// Rows and state of the trunk, one after the other.
    Status save(uint32_t n_row, std::vector<std::byte>* to);
    /// errors    bad_argument: not as many bytes as save() writes for n_row rows; the sequence is as before.
    Status restore(uint32_t n_row, Span<const std::byte> from);
    virtual uint64_t memory_bytes() const = 0;
    /// From now on MTP heads give the logits of these ids alone, in this order: logit n belongs to ids[n]. Ascending,
    /// without repeats; empty: all ids again. As many ids as before are written in their place, others are allocated.
    /// Call between generations.
    /// errors    unsupported, out_of_memory: the head keeps its ids; as many new ones may have left rows of theirs.
    virtual Status draft_head(Span<const Token> ids) = 0;
    /// The device decode loop, or null: decode with run() and read_row().
    virtual DeviceLoop* device_loop() = 0;
    /// The kernel profiler, or null: this back end does not time its kernels.
    virtual KernelProfiler* profiler() = 0;
    /// What copies from another context, or null: save and restore do the same.
    virtual StateCopier* state_copier() = 0;
    /// What saves states while the device goes on, or null: save_state() waits for nothing but its own copies.
    virtual StateSaver* state_saver() = 0;
};

/// A model's weights on a device.
class LoadedModel {
  public:
    virtual ~LoadedModel() = default;
    virtual Result<std::unique_ptr<Context>> open(const ContextOptions& options) = 0;
    virtual uint64_t weight_bytes() const = 0;
};

/// The head that all MTP blocks share: a draft-only head has some of its rows.
/// errors    unsupported: they do not share one.
Result<SlotId> draft_table(const Plan& plan);
/// Whether Context::draft_head() can take these ids. rows: of draft_table() in the model's file; null: not readable.
/// errors    unsupported: no MTP block, those of draft_table(), no rows; bad_argument: ids that do not ascend.
Status check_draft_head(const Plan& plan, const ContextOptions& options, const std::byte* rows, Span<const Token> ids);

constexpr uint32_t kDefaultUbatch = 512;  ///< n_ubatch where memory is scarce

class Backend {
  public:
    virtual ~Backend() = default;
    virtual Kind kind() const = 0;
    virtual std::string name() const = 0;
    virtual std::string report() const = 0;
    /// Name and version of the driver; empty where there is none.
    virtual std::string driver() const = 0;
    /// Bytes that the device can still give, on the CPU what the system has free; UINT64_MAX: not known.
    virtual uint64_t budget_bytes() const = 0;
    /// Rows of a prompt at once beyond which more gain little, where there is memory for them.
    virtual uint32_t best_ubatch() const { return kDefaultUbatch; }
    /// What shortens the next start; see Device::pipeline_cache(). Empty where there is none.
    virtual std::vector<std::byte> pipeline_cache() const = 0;
    /// What load() would take, added to `items`; reads no tensor.
    ///
    /// loaded    the model if it is loaded already: then what it takes. Its plan may have more MTP blocks. Else null.
    virtual Status plan_weights(const Plan& plan, const Weights& weights, const LoadedModel* loaded,
                                std::vector<MemoryItem>* items) const = 0;
    /// What LoadedModel::open() would take.
    virtual Status plan_context(const Plan& plan, const ContextOptions& options,
                                std::vector<MemoryItem>* items) const = 0;
    /// What Context::draft_head() would take for n_id ids. errors: unsupported, as there.
    virtual Status plan_draft_head(const Plan& plan, uint32_t n_id, std::vector<MemoryItem>* items) const = 0;
    /// Plan and weights must outlive the LoadedModel; the weights' bytes only during the call unless
    /// `weights.keep` says that they stay.
    virtual Result<std::shared_ptr<LoadedModel>> load(const Plan& plan, const Weights& weights,
                                                      const Progress& progress) = 0;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// engine/prefix_tree: which rows of which histories a context and its host memory hold, and what a new prompt can
// reuse of them.
//
// Owns    the live history, the tree of histories known so far, the list of which run each row of the context belongs
//         to, the kept states and parked rows, and the byte budget of both. Integers only: bytes are copied by a
//         RowStore, so that a session and a dry replay use the same class.
// Thread  belongs to one session.
// Tests   tests/test_prefix_tree.cpp; tests/test_cli_replay.py for the dry replay.
//
// A recurrent state cannot be cut at a row: to continue at row p needs the rows 0 .. p-1 and a state at p. Every kept
// state can be used: if one of its rows is overwritten in the context, that row is parked first or the state is given
// up. Every parked row has a state above it.
//
//   context   | live path: 0 .. n_row | rows to be computed | rows that an earlier branch left beyond the live tip |
//   host      | kept states | blocks of parked rows | spare blocks |  <= budget_bytes at every moment
//
// A block that was restored stays as a spare: if its rows leave the context as they came, they need not be copied
// again. Nothing rests on spares. They take only memory that nothing else takes, and what is kept is the same without
// them.
//
// Use: sync(), then until n_row() == tokens().size(): n = min(next_stop() - n_row(), ubatch), make_room(n), run the
// rows, computed(n). For decoding append(token), make_room(n), run, computed(n, true); where that ends at
// a reply row, keep_reply().
#pragma once
#include "prefix_policy.h"
#include "run_tree.h"

#include <functional>
#include <map>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

struct PrefixOptions {
    uint64_t state_bytes = 0;  ///< of one kept state
    uint64_t row_bytes = 0;    ///< keys and values of one row
    size_t n_context = 0;
    uint64_t budget_bytes = 0;  ///< for kept states and parked rows together
    uint64_t page_bytes = 1;    ///< states and blocks of rows take whole pages; a power of two
    size_t grid = kPrefixGrid;  ///< of stops that the caller did not name, and of parked blocks
    size_t reply_stride = kReplyStride;
    size_t recent_stride = SIZE_MAX;  ///< SIZE_MAX: no recent states
    PrefixPolicy policy = PrefixPolicy::by_score;
};

/// Rows first .. first + n of a context, kept in host memory under a number.
struct ParkedBlock {
    uint32_t item = 0;
    size_t first = 0, n = 0;
};

/// Copies what a PrefixTree decides. Items are small numbers, those of states and of row blocks apart; a number is used
/// again after its drop. A failed keep or park means that the tree goes on without that item. A failed load or restore
/// ends sync() with its Status.
class RowStore {
  public:
    virtual ~RowStore() = default;
    /// Keeps a copy of the live state, which is at `row`. Not dropped if it fails.
    virtual Status keep_state(uint32_t item, size_t row) = 0;
    /// Makes a kept state, at `row`, the live one. It stays kept.
    virtual Status load_state(uint32_t item, size_t row) = 0;
    /// Whether all of a kept state was copied; the device may have been lost before.
    virtual bool is_whole(uint32_t item) {
        (void)item;
        return true;
    }
    virtual void drop_state(uint32_t item) = 0;
    /// Copies rows of the context away; they will be overwritten. If it fails no block is parked, and none is dropped.
    virtual Status park_rows(Span<const ParkedBlock> blocks) = 0;
    /// Copies rows of parked blocks, maybe not all of each, back to the same rows of the context.
    virtual Status restore_rows(Span<const ParkedBlock> blocks) = 0;
    /// The number of the last write, whoever's it was, to the rows of the context in the same block as `row`.
    virtual uint64_t last_write(size_t row) const = 0;
    virtual void drop_rows(uint32_t item) = 0;
    /// Drops every state and all rows, also those of a keep or park that did not return.
    virtual void drop_all() = 0;
    /// Makes the live state that of an empty history.
    virtual void reset() = 0;
};

struct PrefixReport {
    size_t n_row = 0;          ///< of the prompt
    size_t rows_computed = 0;  ///< from the base to the end: to be computed by the caller
    size_t rows_reused = 0;
    size_t n_live = 0;                        ///< tokens of the history before
    size_t diverged_at = 0;                   ///< common prefix with the history before
    size_t known = 0;                         ///< common prefix with any history known
    size_t checkpoint_row = 0;                ///< the base: rows below it are reused
    Token token_before = -1, token_now = -1;  ///< where they diverge, -1: one ends there
    size_t rows_parked = 0, rows_restored = 0;
    bool state_at_end = false;  ///< a checkpoint has all rows of the prompt, of which the last must be computed
    size_t n_failed = 0;        ///< copies that failed
    Status failure;             ///< the last of them
    SyncReason reason = SyncReason::new_text;
};
/// "diverged at row 12046 of 30112: token 248068 instead of 151667; nearest checkpoint 12032"
std::string describe(const PrefixReport& report);

class PrefixTree {
  public:
    /// store: outlives the tree.
    PrefixTree(const PrefixOptions& options, RowStore& store);
    ~PrefixTree();
    /// Knows what `other` knows, without its spares. store: another one, which keeps the same items under the same
    /// numbers, whether or not it has the bytes of spare_items().
    PrefixTree(const PrefixTree& other, RowStore& store);
    PrefixTree& operator=(const PrefixTree&) = delete;

    /// Makes `wanted` (at most n_context tokens, may view tokens()) the live history and brings back what is kept of
    /// it: afterwards rows 0 .. n_row() are in the context and the state is at n_row(). has_logits: those of the last
    /// row are at hand if the history is unchanged; they always cost one row elsewhere.
    /// errors    those of RowStore::load_state and restore_rows: the live history is empty, kept items remain.
    /// cost      linear in the tokens; allocates.
    Result<PrefixReport> sync(Span<const Token> wanted, Span<const Mark> marks, bool has_logits);
    /// The row at which the prefill has to stop next: tokens().size() if nothing is to be kept before.
    size_t next_stop() const { return i_stop_ < stops_.size() ? stops_[i_stop_].row : live_.size(); }
    /// Whether make_room(n) has nothing to do.
    bool has_room(size_t n) const { return n_row_ + n <= clear_end_; }
    /// Call before rows n_row() .. n_row() + n are written: parks what they overwrite. Allocates only then.
    void make_room(size_t n);
    /// The next n rows were computed and the state is at their end; keeps it if this is a stop. decoded: these rows
    /// were generated. Never allocates between stops.
    void computed(size_t n, bool decoded = false);
    /// The next row above `row` at which keep_reply() is due; SIZE_MAX if none is.
    size_t next_reply_row(size_t row) const;
    /// Whether it is due at this row, at least 1.
    bool is_reply_row(size_t row) const { return next_reply_row(row - 1) == row; }
    /// Whether keep_reply() is due at this row for a recent state: recent_stride rows after the last state, or later.
    bool is_recent_due(size_t row) const;
    /// Keeps the live state, which lies within a generated text. Decoding stops at each reply row, drafts or not, and
    /// where a prompt that cuts the text goes back to, and so its bits, must not depend on how far decoding went beyond
    /// the cut: later states replace only recent ones, which no prompt goes back to.
    void keep_reply();
    /// For tests: other than PrefixOptions says.
    void set_reply_stride(size_t n, size_t recent = SIZE_MAX) {
        options_.reply_stride = n;
        options_.recent_stride = recent;
    }
    /// One more token, not computed yet. Never allocates.
    void append(Token id) { live_.push_back(id); }
    /// Drops the tokens from n on; none of them may be computed.
    void truncate(size_t n);
    /// The executor shortened the last step: rows and state are those of n rows. Only rows computed since sync().
    bool step_back(size_t n);
    /// The context's bytes are gone: states whose rows lay there go with them.
    void lose_context();
    /// The same for the bytes beyond the live rows.
    void lose_rest();
    /// Item and row of the highest kept state of the live history up to row n; row 0 if there is none. lost: the rows
    /// of the context are gone, so only states that need none count; where every cache has a window, all of them.
    std::pair<uint32_t, size_t> nearest_state(size_t n, bool lost) const;
    /// Loads that state, over rows that are still in the context, and returns its row. The history stays: the caller
    /// computes the rows above again as they were. errors: those of RowStore::load_state.
    Result<size_t> load_nearest(size_t n);
    /// Keeps a state of the live path that a file brought: `copy` fills the item, as RowStore::keep_state does. False:
    /// it is not kept, for want of room or because the copy failed.
    bool adopt(size_t row, StateKind kind, bool pinned, const std::function<Status(uint32_t item)>& copy);
    /// Tokens of the last prompt; those after them were generated.
    size_t n_prompt() const { return n_prompt_; }
    /// The same for a live history that came from a snapshot or file.
    void prompt_was(size_t n);
    /// Forgets everything before the next operation. Never allocates.
    void forget_later() { changing_ = true; }
    /// Forgets everything if an operation did not return, because memory ran out in it. Before the next operation.
    void recover() {
        if (changing_) start_over();
    }

    /// What the live history takes in a tree for so many tokens, all at once.
    static uint64_t history_bytes(size_t n_context) { return (n_context + kSpareTokens) * sizeof(Token); }

    Span<const Token> tokens() const { return live_; }
    size_t n_row() const { return n_row_; }
    const PrefixOptions& options() const { return options_; }
    /// Rows of the context that anything rests on: the live ones, and those of other branches beyond.
    size_t context_rows() const;

    /// Bytes of kept states and parked rows, now and at most so far.
    uint64_t held_bytes() const { return held_; }
    uint64_t peak_bytes() const { return peak_; }
    /// Bytes of spares, beside those held.
    uint64_t spare_bytes() const { return spare_bytes_; }
    /// The blocks of the spares.
    std::vector<uint32_t> spare_items() const;
    /// Copies that failed, of keep_state and park_rows; the rows parked, and those of them that no spare had, since the
    /// tree was made.
    size_t n_failed() const { return n_failed_; }
    uint64_t rows_parked() const { return rows_parked_; }
    uint64_t rows_copied() const { return rows_copied_; }
    const Status& last_failure() const { return failure_; }
    /// What is kept, in no particular order. For reports and tests.
    struct StateInfo {
        uint32_t item = 0;
        size_t row = 0, n_parked = 0;
        StateKind kind = StateKind::tip;
        bool pinned = false;
        uint64_t bytes = 0, age = 0;
        double score = 0;
        std::vector<Token> tokens;  ///< of its path
    };
    std::vector<StateInfo> states() const;
    /// A kept state of the live path.
    struct LiveState {
        uint32_t item = 0;
        size_t row = 0;
        StateKind kind = StateKind::tip;
        bool pinned = false;
    };
    /// By ascending row.
    std::vector<LiveState> live_states() const;
    /// Called with each state that is about to be given up for the budget: for tests.
    std::function<void(uint32_t item)> on_evict;

  private:
    PrefixTree(const PrefixTree&) = default;
    static constexpr uint32_t kNoState = UINT32_MAX;
    static constexpr size_t kSpareTokens = 64;
    struct State {
        RunId run = kNoRun;  ///< kNoRun: not in use
        size_t row = 0;
        StateKind kind = StateKind::tip;
        bool pinned = false;
        bool asked_again = false;  ///< a later prompt has its text, too
        bool held = false;         ///< the store has it
        uint64_t last_use = 0, last_live = 0;
        uint64_t serial = 0;  ///< in the order in which they were claimed; 0: a recent one
    };
    struct Block {
        uint32_t n_ref = 0;
        size_t n_row = 0;
    };
    struct Spare {
        size_t end = 0;
        uint32_t block = kNoBlock;
        uint64_t last_write = 0;  ///< to these rows, when they were restored
    };
    struct Resident {
        size_t begin = 0, end = 0;
        RunId run = kNoRun;
    };
    struct Found {
        RunId run = kRootRun;       ///< that holds the base's last row
        size_t row = 0;             ///< of the base
        uint32_t state = kNoState;  ///< or the live state
        bool live = false;
        RunId known_run = kRootRun;
        size_t known = 0;
        bool left_inside = false;   ///< a known text goes on in another way
        bool state_at_end = false;  ///< a state is kept of the whole prompt, whose last row must be computed
        bool in_reply = false;      ///< one more token of the live text: the caller samples by itself
    };
    /// A copy between context and host memory.
    struct Copy {
        int phase = 0;
        size_t row = 0;
        bool park = false;
        RunId run = kNoRun;
    };

    // prefix_sync.cpp: finding the base and switching to it
    Found find(Span<const Token> wanted) const;
    void visit(RunId id, size_t matched, size_t limit, Found* best) const;
    PrefixReport begin_report(Span<const Token> wanted) const;
    SyncReason reason_of(const Found& found, const PrefixReport& report) const;
    void close_live();
    Status switch_to(const Found& found, const PrefixReport& report);
    void asked_for(State& s);
    bool is_edit(const Found& found, const PrefixReport& report) const;
    uint32_t claim_tip(const Found& found, const PrefixReport& report);
    void plan_restores(std::vector<Copy>* copies);
    Status copy_rows(std::vector<Copy>& copies);
    Status restore(Span<const Copy> copies);
    void open_live(Token first);
    size_t find_junction(Span<const Token> wanted, const Found& found);
    void set_tokens(Span<const Token> wanted, size_t same);
    void forget_superseded(Token first);
    void forget_unused();
    void forget_runs(RunId top);
    void keep_spare(const ParkedRows& rows);
    uint32_t take_spare(const ParkedRows& rows);
    std::map<size_t, Spare>::iterator drop_spare(std::map<size_t, Spare>::iterator at);
    void drop_spares(uint64_t room);
    void drop_stale_spares();

    void reserve();
    void start_over();
    // prefix_tree.cpp: what is kept
    RunId live_end() const;
    void split(RunId id, size_t row);
    uint32_t claim_state(RunId run, size_t row, StateKind kind, bool pinned);
    bool has_state_at(RunId run, size_t row) const;
    void take_state(uint32_t i, const std::function<Status(uint32_t item)>& copy);
    void take_state(uint32_t i);
    void keep_here(StateKind kind, bool pinned);
    void keep_marks(Span<const Mark> marks);
    void raise(State& s, const Mark& mark);
    void drop_replies(size_t above);
    void drop_recent(size_t n_kept);
    void remove_state(uint32_t i);
    void give_up(uint32_t i);
    void drop_states_above(RunId id, size_t row);
    void free_useless(RunId id);
    void free_rows(RunId id, size_t from);
    void release(const ParkedRows& rows);
    void free_block(uint32_t item);
    bool can_keep() const {
        return options_.policy != PrefixPolicy::none && options_.state_bytes <= options_.budget_bytes;
    }
    bool can_park() const { return options_.policy == PrefixPolicy::by_score; }
    void lose_rows(size_t n);
    void leave_rows(size_t begin, size_t end, std::vector<Copy>* copies);
    void leave_run_rows(RunId id, size_t begin, size_t end, std::vector<Copy>* copies);
    ParkedRows* find_pending(const Copy& copy);
    void park(Span<const Copy> copies);
    size_t swap_blocks() const;
    void fit(uint64_t slack);
    uint32_t worst() const;
    bool is_pinned(uint32_t i) const;
    double score(uint32_t i) const;
    size_t gap(uint32_t i) const;
    size_t rows_only_for(uint32_t i) const;
    void failed(Status s);
    uint64_t block_bytes(size_t n) const;
    void add_held(uint64_t bytes);
    void place(size_t begin, size_t end, RunId run);
    void update_clear_end();

    PrefixOptions options_;
    RowStore* store_;
    RunTree tree_;
    std::vector<State> states_;
    std::vector<uint32_t> free_states_;
    std::vector<Block> blocks_;
    std::vector<uint32_t> free_blocks_;
    std::map<size_t, Spare> spares_;   ///< by first row, none over another
    std::vector<Resident> residents_;  ///< which run each row of the context belongs to, by ascending row
    size_t i_live_span_ = 0;           ///< that of open_
    size_t clear_end_ = 0;             ///< rows from n_row_ to here hold nothing of another run

    std::vector<Token> live_;
    size_t n_row_ = 0;
    RunId open_ = kRootRun;  ///< the run that grows with the live history
    bool is_open_ = false;   ///< closed only within sync()
    bool changing_ = false;  ///< an operation that may run out of memory is under way, or did not return
    bool decoded_ = false;
    size_t n_prompt_ = 0;     ///< from here on the live text is generated
    size_t recent_from_ = 0;  ///< row of the last state that was kept within it, or where it begins
    std::vector<Stop> stops_;
    size_t i_stop_ = 0;
    std::vector<std::pair<uint64_t, size_t>> left_;  ///< hash and row of the last divergences, a ring
    size_t i_left_ = 0;
    UseRates rates_;

    uint64_t request_ = 0;
    uint64_t n_claimed_ = 0;      ///< the last State::serial
    size_t n_lone_pin_ = 0;       ///< pinned states taken since the text of one was asked for again
    uint32_t locked_ = kNoState;  ///< the state that is about to be loaded
    uint64_t held_ = 0, peak_ = 0;
    uint64_t spare_bytes_ = 0;
    uint64_t claimed_ = 0;         ///< held, or about to be
    uint64_t pending_states_ = 0;  ///< bytes of claimed states that are not held
    uint64_t credit_ = 0;          ///< held bytes of rows that are about to be restored
    size_t n_state_ = 0, n_failed_ = 0;
    uint64_t rows_parked_ = 0, rows_copied_ = 0, rows_restored_ = 0;
    Status failure_;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

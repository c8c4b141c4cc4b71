// engine/trunk: runs rows of the model's trunk and knows where the logits of the last row are.
//
// Owns    where the last row's logits are, whether the device is lost, and which windows are full.
// Thread  belongs to one session.
// Tests   tests/test_session.cpp, tests/sync_scripts.cpp.
//
// Every run gets a Step of its own. State is consistent before a callback is called, so that one that throws leaves
// nothing half done.
#pragma once
#include "../base/clock.h"
#include "../machine/kv.h"
#include "model.h"
#include "mtp_cache.h"
#include "prefix_tree.h"
#include "timeline.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

class Trunk {
  public:
    Trunk(const Model::Impl& model, const SessionOptions& options, Context& context, Timeline& timeline,
          MtpCache& cache, Stats& stats);
    /// The tree that is told of every row. Before anything is run.
    void set_tree(PrefixTree& tree) { tree_ = &tree; }
    /// Told of every row that is written.
    void set_marks(RowMarks& marks) { marks_ = &marks; }
    /// Prefills stop before their next step while it is set.
    void set_cancel(const std::atomic<bool>& cancel) { cancel_ = &cancel; }

    /// Runs the first n rows that are missing. errors: those of Context::run; cancelled: by cancel() or the progress
    /// callback, the tokens whose rows are missing are dropped, but none of the first n_keep.
    Status prefill(size_t n, size_t n_keep = 0);
    /// Runs the next piece of a prefill of the rows below `end`. The tree must know the tokens. Calls nothing back.
    Status run_piece(size_t end);
    /// One committed step of the next n rows, at most n_ubatch; with the logits of the last row if it is the last
    /// token's. Does not tell the tree.
    Status run_prefill(size_t n);
    /// Runs the last token and the n_guess guesses in the timeline's tail as one tentative step, with all logits.
    Status verify(uint32_t n_guess);
    /// Logits of row i of that step.
    Result<Span<const float>> verified_row(uint32_t i);
    /// Makes the first n rows of that step history.
    void commit(uint32_t n);
    /// Undoes that step: none of its rows become history.
    void discard();
    /// A cycle of the device loop ran rows of its own: n of them are history, and no logits came to the host.
    void ran_on_device(size_t n);
    /// The device loop begins: it applies the records of the last step.
    void begin_device_loop();

    /// Makes n rows remain with the bits they had: commits the last step again, or computes them again as they were
    /// computed. For tokens that were computed ahead and are not wanted: the first n_token, n or n + 1, stay. errors:
    /// also cancelled, as repair(true). The others are gone then, too: repair() computes no rows of them.
    Status rewind(size_t n, size_t n_token);
    /// True if rewind() only commits the last step again. Not where no row of that step remains and no token follows:
    /// the logits of row n - 1 are needed then.
    bool can_step_back(size_t n, size_t n_token) const;
    /// Forgets every row, and every token from n_keep on.
    void restart(size_t n_keep);
    /// Rows first .. first + n were copied to the context.
    void rows_copied(size_t first, size_t n) { marks_->wrote(first, first + n); }
    /// RowMarks::last_write.
    uint64_t last_write(size_t row) const { return marks_->last_write(row); }
    /// The context lost everything: these are the tokens again, and repair() computes their rows as `spans` says.
    /// Never allocates.
    void take_back(Span<const Token> tokens, std::vector<RowSpan> spans);
    /// The context holds rows and state of these tokens, copied from a file. logits: of the last row, or empty.
    void loaded(Span<const Token> tokens, std::vector<float> logits);
    /// The live state, with committed records applied.
    Status save_state(StatePart part, StateWriter& to);
    /// Both parts by the context's StateSaver, which it must have.
    Status begin_save(StateWriter& to);
    /// Makes a kept state at `row` the live one. errors: the state is damaged.
    Status load_state(size_t row, const std::vector<RowSpan>& spans, StateReader& from);
    std::vector<RowSpan> spans() const;

    /// Brings the draft block's cache up to the first n tokens: before the next step overwrites their hidden rows.
    Status fill_draft_cache(size_t n);
    Status fill_draft_cache() { return fill_draft_cache(timeline_.size()); }

    /// Tells the tree what was appended, computed and dropped since it was told last.
    void follow();
    /// Whether the next n rows can be written without overwriting what another branch keeps there.
    bool has_room(size_t n) {
        tree_->recover();
        const size_t end = std::min<size_t>(timeline_.n_row() + n, options_.n_context);
        return end <= tree_->n_row() || tree_->has_room(end - tree_->n_row());
    }
    /// Parks what another branch keeps in the next n rows. Not while cycles of the device loop are queued.
    void make_room(size_t n) {
        if (!has_room(n)) tree_->make_room(timeline_.n_row() + n - tree_->n_row());
    }
    /// Rows until decoding has to stop, for keep_reply() or at end_at(), at least 1.
    size_t rows_to_stop() const {
        const size_t n = timeline_.n_row(), reply = tree_->next_reply_row(n);
        return (end_row_ > n ? std::min(reply, end_row_) : reply) - n;
    }
    /// Decoding stops before this row: nobody wants the tokens after it. 0: it is not known where.
    void end_at(size_t row) { end_row_ = row; }
    /// Whether decoding has stopped there, and the state is not kept yet.
    bool must_keep_reply() const;
    /// Keeps it. Not while a cycle is queued.
    Status keep_reply();
    /// For tests: other than kRecentSeconds.
    void set_recent_seconds(double s) { recent_s_ = s; }
    /// The state became that of a snapshot of these tokens, of which the first n_row are computed. logits: of its last
    /// row, or empty.
    void restored(Span<const Token> tokens, size_t n_row, const std::vector<RowSpan>& spans, std::vector<float> logits);

    /// The context got the rows and the state of another session. logits: of the last row, or empty.
    void continue_from(const Timeline& other, std::vector<float> logits);
    /// How the rows were computed, also while a recomputation has failed.
    std::vector<RowSpan> known_spans() const { return redo_.empty() ? spans() : redo_; }
    /// Computes what is missing of the first n rows as another session computed them: on the same kind of device they
    /// get the same bits. errors: also cancelled; the rows are then of no use.
    Status compute_as(const std::vector<RowSpan>& spans, size_t n);

    bool has_logits() const { return at_ != LogitsAt::nowhere; }
    /// Computes the logits of the last row again if its hidden row is still kept.
    Status find_logits();
    /// The logits of the last row. Only if has_logits().
    Result<Span<const float>> last_logits();
    void forget_logits() { at_ = LogitsAt::nowhere; }

    /// Calls `change`, which changes the context's state. Until repair() the state is taken for damaged unless it
    /// succeeds: a step may fail between two of its submissions.
    template <class F>
    Status change_state(F change) {
        const bool damaged = damaged_;
        damaged_ = true;
        Status s = track(change());
        damaged_ = damaged || !s.ok();
        return s;
    }
    bool damaged() const { return damaged_ || !redo_.empty(); }
    /// Computes all rows again if the state is damaged. Not while cycles of the device loop are queued. may_stop:
    /// cancel() and the progress callback stop it before its next step; the next repair() goes on from there.
    Status repair(bool may_stop);
    /// The lowest row that the last repair() and each rewind() since have computed again; SIZE_MAX: none.
    size_t again_from() const { return again_from_; }

    /// Calls on_window_full for windows that the rows so far have filled.
    void report_windows();
    /// Windows of this timeline that were full; they are reported in one order.
    size_t n_window_full() const { return n_window_full_; }
    /// The first n are not reported, also after a restart: another session has reported them.
    void skip_windows(size_t n) { n_window_skipped_ = n; }
    /// Remembers a lost device.
    Status track(Status s);
    /// The error of every call after the device was lost.
    Status alive() const;
    Context& context() { return context_; }
    /// Asks whether to go on, and tells the application how much of n rows is done.
    bool ask_to_go_on(const char* what, size_t n_done, size_t n) const;

  private:
    enum class LogitsAt : uint8_t { nowhere, context, restored };
    Status run(const Step& step);
    size_t next_piece(size_t end) const;
    /// Commits the last tentative step again so that n rows remain; only if Timeline::can_step_back(n).
    void step_back(size_t n);
    void shorten_tree(size_t n);
    /// Computes rows 0 .. n-1 again, in the pieces in which they were computed: those after the nearest checkpoint,
    /// unless the context has lost them, or those that are missing where it was cancelled before. Drops the tokens from
    /// n_token on.
    Status recompute(size_t n, size_t n_token, bool may_stop);
    Status begin_recompute(size_t n, size_t n_token);
    template <class F>
    Status run_spans(const std::vector<RowSpan>& spans, size_t n, F go_on);
    bool ask_to_go_on(size_t begin, size_t end) const;
    void count_full_windows();
    void set_logits(std::vector<float> logits);

    const Model::Impl& model_;
    const SessionOptions& options_;
    Context& context_;
    Timeline& timeline_;
    MtpCache& cache_;
    Stats& stats_;
    PrefixTree* tree_ = nullptr;
    RowMarks* marks_ = nullptr;
    const std::atomic<bool>* cancel_ = nullptr;
    LogitsAt at_ = LogitsAt::nowhere;
    uint32_t i_logit_ = 0;         ///< row of the context's logits
    std::vector<float> restored_;  ///< logits of a restored snapshot
    bool lost_ = false;
    size_t end_row_ = 0;
    std::chrono::steady_clock::time_point kept_at_;  ///< when keep_reply() was called last, or a prompt came
    double recent_s_ = kRecentSeconds;
    bool damaged_ = false;             ///< the context's state is not that of the timeline's rows
    std::vector<RowSpan> redo_;        ///< what recompute() computes again; not empty: it failed or was cancelled
    size_t again_from_ = SIZE_MAX;     ///< as again_from() says
    std::vector<WindowFull> windows_;  ///< n_token: the rows at which it is full, ascending
    size_t n_window_full_ = 0;         ///< of those, how many were reported in this timeline
    size_t n_window_skipped_ = 0;      ///< of those, how many report_windows() passes over
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

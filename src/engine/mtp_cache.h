// engine/mtp_cache: which rows the MTP block's own KV cache holds, and bringing it up to date.
//
// Owns    those counts. Row p of the cache pairs the hidden row of KV row p with the token at p + 1. Only rows made of
//         true hidden rows stay; those of guesses are written again.
// Thread  belongs to one session.
// Tests   tests/test_draft.cpp, tests/draft_state.cpp.
#pragma once
#include "../machine/backend.h"
#include "row_marks.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

class MtpCache {
  public:
    /// n_row_max: rows of one step, at most kMaxMtpRows. window: rows that a row of the block sees; 0: all.
    void open(const Plan& plan, Context& context, uint32_t window, uint32_t n_row_max);
    bool on() const { return plan_ != nullptr; }
    /// Told of every row that is filled.
    void set_marks(RowMarks& marks) { marks_ = &marks; }

    /// The timeline was reset, or replaced by another.
    void forget();
    /// What must be kept beside the cache's rows so that drafting can go on from `row`.
    struct Kept {
        size_t first_key = 0, n_row = 0;
        bool has_hidden = false;  ///< the hidden row of KV row row - 1
        uint32_t hidden_row = 0;  ///< row of the last trunk step, or kGiven
    };
    Kept kept(size_t row) const;
    /// The hidden row that kept() has just told of, or empty.
    Status read_hidden(const Kept& kept, std::vector<float>* to) const;
    /// The context went back to what kept(row) was made of. hidden: that row, or empty.
    void resume(size_t row, const Kept& kept, std::vector<float> hidden);
    /// The last trunk step began at row `first`, and n of its rows are history.
    void ran(size_t first, size_t n, bool tentative);
    /// A cycle of the device loop began at row `first`, emitted n tokens and had brought the cache up to there.
    void ran_on_device(size_t first, size_t n);
    /// No more than the first n tokens are what they were.
    void cut(size_t n);

    /// The rows of the last trunk step: their hidden rows are the context's kept ones.
    size_t first() const { return first_; }
    size_t n_kept() const { return n_kept_; }
    /// Rows whose hidden rows are kept and that the cache does not hold.
    size_t n_pending() const { return first_ + n_kept_ > n_row_ ? first_ + n_kept_ - n_row_ : 0; }

    /// Fills the cache with the kept rows whose next token is known, as far as a row at the end of `history` can see
    /// them. Call it before the next trunk step overwrites their hidden rows.
    Status fill(Span<const Token> history);
    /// The same before a tentative step, which overwrites only the oldest: fills nothing until there is need, so that
    /// many rows are filled in one step.
    Status fill_lazily(Span<const Token> history);
    /// Where the step that drafts after `history` begins: the rows it takes in, all from one place.
    struct Lead {
        uint32_t n_row = 0;  ///< 0: the hidden row that drafting begins with is not kept
        uint32_t first_row = 0, hidden_from = 0, first_key = 0;
    };
    Result<Lead> lead(Span<const Token> history);
    /// The rows before `end` are in the cache now.
    void filled_to(size_t end) {
        if (marks_) marks_->wrote(n_row_, end);
        n_row_ = end;
    }

    /// The rows that an acceptance probe over the last n tokens runs, from `first` up to `end`; none if equal. Their
    /// cache rows are written again, with the same bits.
    struct ProbeRows {
        size_t first = 0, end = 0;
        size_t n_row_after = 0;  ///< for filled_to()
    };
    Result<ProbeRows> begin_probe(Span<const Token> history, uint32_t n);
    /// A step of at most n_max rows from row `first` on: where its hidden rows come from, which is one place.
    Step step_at(Span<const Token> history, size_t first, size_t n_max) const;

  private:
    static constexpr uint32_t kGiven = UINT32_MAX;  ///< the row that resume() was given: no step has run since
    Status fill_from(Span<const Token> history, bool lazy);
    Status fill_to(Span<const Token> history, size_t end);
    Status fill_given(Span<const Token> history);
    Status fill_rows(Step step);
    size_t lowest() const;

    const Plan* plan_ = nullptr;
    Context* context_ = nullptr;
    RowMarks* marks_ = nullptr;
    uint32_t window_ = 0, n_row_max_ = 0;
    size_t first_ = 0, n_kept_ = 0;  ///< rows of the last trunk step
    size_t pending_first_ = 0;       ///< from here on all rows came from tentative steps: the context keeps them by row
    size_t first_key_ = 0;           ///< the cache holds rows first_key_ ..
    size_t n_row_ = 0;               ///< .. n_row_ - 1
    std::vector<float> given_;       ///< the hidden row of KV row given_at_, from resume()
    size_t given_at_ = 0;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

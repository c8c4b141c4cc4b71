// engine/timeline: the tokens of a session, and which of their rows the context holds.
//
// Owns    the history, the number of computed rows, and the record of how they were computed. Integers only: knows
//         neither a model nor a device.
// Thread  belongs to one session.
// Tests   tests/test_timeline.cpp.
//
//   tokens    0 .......... n_row .......... n_given .......... size | tail: guesses
//             computed     to be computed   (n_row may be beyond n_given: tokens computed ahead of the caller)
//
// The last row is computed when its token is needed: after a decode step n_row is size - 1.
#pragma once
#include "../base/base.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// How rows were computed, which decides how their sums round.
enum class RowOrigin : uint8_t {
    prefilled,  ///< in one committed step of exactly these rows
    decoded,    ///< in steps of at most kMaxTentative rows, tentative or not: these are row invariant
    restored,   ///< in one step longer than this session's: they came with a snapshot or a file
};
struct RowSpan {
    size_t first = 0, n = 0;
    RowOrigin origin = RowOrigin::prefilled;
};

class Timeline {
  public:
    /// Takes the memory for n_context tokens and n_tail guesses after them.
    void reserve(size_t n_context, size_t n_tail);
    uint64_t memory_bytes() const { return tokens_.capacity() * sizeof(Token); }

    Span<const Token> tokens() const { return Span<const Token>(tokens_.data(), size_); }
    size_t size() const { return size_; }
    size_t n_row() const { return n_row_; }
    /// Tokens that the caller has been told of.
    size_t n_given() const { return n_given_; }
    void give_one() { ++n_given_; }
    /// The caller knows the first n tokens.
    void give_only(size_t n) { n_given_ = n; }
    /// What the caller has asked for, never beyond the tokens.
    struct Asked {
        size_t n_row = 0;         ///< with a prompt: a reply begins after them
        size_t n_for_logits = 0;  ///< rows of the reply, with logits(). 0: none
    };
    const Asked& asked() const { return asked_; }
    void ask(const Asked& asked) { asked_ = asked; }
    /// A prompt of n rows.
    void ask(size_t n) { asked_ = {n, 0}; }
    /// Rows that the caller has asked for with a prompt: a reply begins after them.
    size_t n_asked() const { return asked_.n_row; }
    /// Rows of a reply that logits() has asked for: plain decoding, too, has run the last of them. 0: none.
    size_t n_for_logits() const { return asked_.n_for_logits; }
    void ask_for_logits() { asked_.n_for_logits = n_row_; }
    /// How many tokens at the start are the same.
    size_t common_prefix(Span<const Token> other) const;
    /// Where guesses are written: right after the tokens, so that both are one array.
    Token* tail() { return tokens_.data() + size_; }

    void append(Token id) { tokens_[size_++] = id; }
    /// Drops the tokens from n on; no row of them may be computed.
    void truncate(size_t n);
    /// Forgets every row, and every token from n on.
    void restart(size_t n);
    /// Replaces all tokens, which the caller knows; those of computed rows must be the same.
    void assign(Span<const Token> tokens);
    /// The context holds the first n rows of another history now, computed as `spans` says; assign() follows.
    void resume(size_t n, const std::vector<RowSpan>& spans);
    /// The context holds the rows of another session; these are its tokens.
    void copy(const Timeline& other);

    /// The next n rows were computed in one committed step.
    void prefilled(size_t n);
    /// A tentative step at n_row() was committed with n rows.
    void decoded(size_t n);
    /// Whether the last tentative step can be committed again so that n rows remain, and its first row.
    bool can_step_back(size_t n) const { return step_open_ && n >= step_first_ && n < n_row_; }
    size_t step_first() const { return step_first_; }
    void step_back(size_t n);
    /// The last step can no longer be shortened: its records were applied, or the next text goes on after it.
    void close_step() { step_open_ = false; }

    /// How the rows were computed, in order.
    Span<const RowSpan> spans() const { return spans_; }

  private:
    void add_span(size_t n, RowOrigin origin);

    std::vector<Token> tokens_;  ///< [n_context + n_tail]
    size_t n_few_ = 0;           ///< rows that a tentative step may have: n_tail
    size_t size_ = 0, n_row_ = 0, n_given_ = 0;
    Asked asked_;
    size_t step_first_ = 0;   ///< first row of the last tentative step
    bool step_open_ = false;  ///< that step is the last one, and may be committed again, shorter
    std::vector<RowSpan> spans_;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

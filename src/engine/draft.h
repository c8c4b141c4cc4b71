// engine/draft: where guesses come from.
//
// Owns    the draft sources (lookup, noise, the MTP block), what the MTP cache holds, and which ids a
//         draft-only head keeps.
// Reads   backend (Context), sample, controller (what it is told), the tokenizer's kinds.
// Serves  cycle, session.
// Thread  a source belongs to one session.
// Laws    Draft: no source can change the text; HotPath: a guess allocates nothing.
//         tests/test_draft.cpp.
#pragma once
#include "../base/token.h"
#include "../machine/backend.h"
#include "controller.h"
#include "sampler.h"

#include <chrono>

namespace auspex {
namespace detail {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

static_assert(kMaxDraft + 1 == kMaxTentative, "the deepest draft fills the longest tentative step");

/// For measuring: whether the guess for a position is taken for right, whatever it says.
struct SyntheticAcceptance {
    float share = 0;  ///< chance; 0: guesses are judged by what they say
    uint32_t seed = 1;
    bool on() const { return share > 0; }
    /// The same in shaders/step_accept.comp.
    bool agrees(size_t position) const;
};

/// A source that reads the text alone. Whatever it says is harmless.
class DraftSource {
  public:
    virtual ~DraftSource() = default;
    /// Writes up to n guesses for the ids after `history`; how many. Ids outside the vocabulary end the guess.
    virtual uint32_t propose(Span<const Token> history, uint32_t n, Token* to) = 0;
    /// The last guess is worth more than the draft block's.
    virtual bool sure() const { return true; }
};

/// Prompt lookup: finds the longest earlier occurrence of the last tokens (of equally long ones the
/// latest) and guesses what followed it.
/// cost      one scan over the last kReach tokens.
class Lookup : public DraftSource {
  public:
    static constexpr size_t kReach = size_t{1} << 16;
    static constexpr uint32_t kShortest = 2;  ///< tokens that must agree
    static constexpr uint32_t kSure = 6;      ///< from here on better than a draft block
    static constexpr uint32_t kLongest = 32;  ///< no longer match is looked for
    uint32_t propose(Span<const Token> history, uint32_t n, Token* to) override;
    bool sure() const override { return length_ >= kSure; }
    uint32_t match_length() const { return length_; }  ///< of the last guess

  private:
    uint32_t length_ = 0;
};

/// Guesses to test the law of drafting with: random ids, the first and the last, repetitions, any number.
class Noise : public DraftSource {
  public:
    Noise(uint64_t seed, uint32_t n_vocab) : seed_(seed), n_vocab_(n_vocab) {}
    uint32_t propose(Span<const Token> history, uint32_t n, Token* to) override;

  private:
    uint64_t seed_;
    uint32_t n_vocab_;
};

/// The model's own draft block. Row p of its cache pairs the hidden row of position p with the token at
/// p + 1. Only rows made of true hidden rows stay; those of guesses are written again.
class Mtp {
  public:
    /// errors    out_of_memory.
    /// n_row_most: rows of one step, at most kMaxMtpRows.
    Status open(const Plan& plan, Context& context, const Allocator& from, uint32_t window, uint32_t n_row_most);
    bool on() const { return plan_ != nullptr; }
    uint64_t memory_bytes() const { return chain_.size(); }
    /// Ids of the context's draft head; empty: all.
    void set_ids(std::vector<Token> ids) { ids_ = std::move(ids); }
    Span<const Token> ids() const { return ids_; }

    /// The timeline was reset, or replaced by another.
    void forget();
    /// The last trunk step began at position `first`, and n of its rows are history.
    void ran(size_t first, size_t n, bool tentative);
    /// A driven cycle began at `first`, emitted n tokens and had brought the block's cache up to there.
    void drove(size_t first, size_t n);
    /// Those rows: their hidden rows are the context's kept ones.
    size_t first() const { return first_; }
    size_t n_kept() const { return n_kept_; }
    /// Rows at hand that the cache does not hold.
    size_t n_pending_hidden() const { return first_ + n_kept_ > n_row_ ? first_ + n_kept_ - n_row_ : 0; }
    /// No more than n tokens are what they were.
    void cut(size_t n);
    /// Fills the cache with the rows at hand whose next token is known, those that a row at the end of
    /// `history` can see. To be called before the next trunk step loses their hidden rows; `lazy`: before a
    /// tentative one, which loses only what is long past, so that the rest is left to be filled together.
    Status fill(Span<const Token> history, bool lazy = false);
    /// How a driven cycle takes over: false when its hidden row is not at hand.
    Result<bool> lead(Span<const Token> history, LoopStart* drive);
    /// Runs the block once over up to n of the last rows whose next tokens both are known: would its guess
    /// have been right, and what does such a pass take? Fills its cache up to there. `driven`: the context sampled_ids,
    /// as it did in the drive before.
    Status acceptance_probe(Span<const Token> history, uint32_t n, const Sampling& sampling,
                            const SyntheticAcceptance& synthetic, bool driven, Sampler& sampler, AcceptanceProbe* seen);
    /// Appends up to n guesses to `history`, whose last token has not been run. Fewer when the block
    /// is unsure, none when the hidden row is not at hand.
    Status propose(std::vector<Token>& history, uint32_t n, const Sampling& sampling, float min_probability,
                   Sampler& sampler, uint32_t* n_guess);

  private:
    Status fill_to(Span<const Token> history, size_t end);
    size_t lowest() const;
    /// Where the hidden rows of the step's rows are.
    void feed(Step* step) const;

    const Plan* plan_ = nullptr;
    Context* context_ = nullptr;
    uint32_t window_ = 0, n_row_most_ = 0;
    std::vector<Token> ids_;
    Block chain_;                    ///< [kMaxTentative, d_model] hidden rows that feed the guesses
    size_t first_ = 0, n_kept_ = 0;  ///< positions of the hidden rows that the last trunk step left
    size_t pending_hidden_ =
        0;  ///< from here on every row was left by a tentative step, for the context to keep by position
    size_t first_key_ = 0;  ///< the cache holds rows first_key_ ..
    size_t n_row_ = 0;      ///< .. n_row_ - 1
};

/// Rows of the draft-only head that the options ask for; 0: none. By use and without a number, about an eighth.
inline uint32_t draft_vocab_rows(const DraftOptions& d, uint32_t n_vocab) {
    if (d.n_vocab != 0 || !d.vocab_by_use) return d.n_vocab;
    const uint32_t eighth = n_vocab / 8;
    return eighth < 1024 ? 1024 : eighth > 32768 ? 32768 : eighth;
}
/// The ids of a draft-only head of n rows, ascending: control ids, then those of the highest count, then
/// the lowest. `count` [n_vocab] or empty.
std::vector<Token> choose_draft_vocab(const Tokenizer& tokenizer, uint32_t n_vocab, uint32_t n,
                                      Span<const uint32_t> count);
/// The same from a given list. errors: bad_argument: an id outside the vocabulary.
Result<std::vector<Token>> check_draft_vocab(const Tokenizer& tokenizer, uint32_t n_vocab, Span<const Token> ids);

}  // namespace detail
}  // namespace auspex

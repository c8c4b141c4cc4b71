// engine/constraint: which tokens may come next in a session.
//
// Owns    TextState, what a constraint remembers of one text: the matcher of a grammar, or the text for a rule of the
//         application. ConstrainedText: the session's state, kept in step with its history.
// Thread  a ConstrainedText belongs to one session; a Constraint is shared.
// Tests   tests/test_constraint.cpp: tokens do not depend on drafting, nor on when masks are made.
//
// The model's own choice comes first. Only where the constraint refuses it, the token is sampled again from what is
// allowed. Both give the token that a mask before sampling would: see Sampler::sample().
#pragma once
#include "model.h"
#include "sampler.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// Follows one text token by token.
class TextState {
  public:
    virtual ~TextState() = default;
    /// Goes on by one token. False, and nothing changes, if it is not allowed.
    virtual bool accept(Token id) = 0;
    /// Takes back the last n tokens.
    virtual void rollback(size_t n) = 0;
    /// Sets the bits of all tokens that accept() would take. bits: zero, one for each token of the vocabulary.
    virtual void mask(Span<uint32_t> bits) = 0;
    /// The bytes that must come next, at most max_bytes; empty where there is a choice.
    virtual std::string forced(size_t /*max_bytes*/) { return {}; }
    /// errors    why the text cannot be followed further.
    virtual Status status() const { return {}; }
    /// A token that ends a generation was accepted.
    virtual bool ended() const = 0;
};

class ConstrainedText {
  public:
    void open(Model::Impl& model) { model_ = &model; }
    bool on() const { return state_ != nullptr; }

    /// Before tokens are sampled: makes the state that of `history`, as `sampling` says.
    ///
    /// errors    bad_argument: a constraint for another vocabulary, a beginning behind the history, a token of the
    ///           history that the constraint refuses, or a text that has ended; unsupported: a grammar that is too
    ///           ambiguous; out_of_memory.
    /// cost      nothing where the text only went on by what admit() and accept() returned. After a sync() that added
    ///           tokens: one accept() for each of them; without constrained_from a new state instead.
    Status follow(const Sampling& sampling, Span<const Token> history);
    /// sync() makes the history `size` tokens long, of which the first n_same are what they were.
    void replaced(size_t n_same, size_t size);
    /// The text begins anew, where next() is called.
    void forget();
    /// Goes on with the text of another session, which has the same history. follow() reads its tokens again.
    Status copy(const ConstrainedText& other);

    /// Goes on by a token. False, and nothing changes, if it is not allowed.
    bool accept(Token id);
    void rollback(size_t n);
    /// The text is too ambiguous to be followed further: follow() says so.
    bool overflowed() const { return on() && !state_->status().ok(); }
    /// Tokens of the text so far; 0 without a constraint.
    size_t n_token() const { return n_; }
    /// The tokens that may come next; valid until the next call. errors: bad_argument: there are none;
    /// unsupported: overflowed().
    Result<Span<const uint32_t>> mask();
    /// Goes on by a token of the mask. errors: bad_argument: a rule of the application contradicts itself.
    Status accept_masked(Token id);
    /// `id` if it is allowed, else the token sampled from what is; goes on by it. Without a constraint: `id`. position,
    /// before: as Sampler::sample() takes them.
    Result<Token> admit(Token id, Sampler& sampler, Span<const float> logits, const Sampling& sampling, size_t position,
                        Span<const Token> before);
    /// As TextState::forced().
    std::string forced(size_t max_bytes) { return on() ? state_->forced(max_bytes) : std::string(); }

  private:
    Status begin(const Constraint& constraint, size_t first);

    Model::Impl* model_ = nullptr;
    Constraint constraint_;  ///< of the text that goes on; empty: none does
    std::unique_ptr<TextState> state_;
    size_t first_ = 0, n_ = 0;    ///< the text is tokens first_ .. first_ + n_ - 1 of the history
    bool extended_ = false;       ///< sync() has added tokens since: with kFromHere a new text begins after them
    std::vector<uint32_t> bits_;  ///< of the last mask
};

}  // namespace detail

struct Constraint::Impl {
    std::shared_ptr<const detail::VocabTrie> vocab;
    // One of these.
    Grammar grammar;
    std::shared_ptr<const TokenRule> token_rule;
    TextRule text_rule;

    /// The state of a new text.
    Result<std::unique_ptr<detail::TextState>> begin() const;
};

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

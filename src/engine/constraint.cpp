#include "constraint.h"

#include "../base/guard.h"
#include "../grammar/interface.h"
#include "../grammar/matcher.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace constraint_impl {
namespace {

class GrammarText : public TextState {
  public:
    explicit GrammarText(std::unique_ptr<Matcher> matcher) : matcher_(std::move(matcher)) {}
    bool accept(Token id) override { return matcher_->accept(id); }
    void rollback(size_t n) override { matcher_->rollback(n); }
    void mask(Span<uint32_t> bits) override { matcher_->mask(bits); }
    std::string forced(size_t max_bytes) override { return matcher_->forced(max_bytes); }
    Status status() const override { return matcher_->status(); }
    bool ended() const override { return matcher_->is_finished(); }

  private:
    std::unique_ptr<Matcher> matcher_;
};

class TokenRuleText : public TextState {
  public:
    TokenRuleText(std::shared_ptr<const VocabTrie> vocab, std::shared_ptr<const TokenRule> rule)
        : vocab_(std::move(vocab)), rule_(std::move(rule)) {}
    bool accept(Token id) override {
        if (ended() || !vocab_->has(id) || !rule_->allows(text_, id)) return false;
        text_.push_back(id);
        return true;
    }
    void rollback(size_t n) override { text_.resize(text_.size() - n); }
    void mask(Span<uint32_t> bits) override {
        if (ended()) return;
        for (size_t id = 0; id < vocab_->n_vocab(); ++id) bits[id / 32] |= 1u << (id % 32);
        rule_->filter(text_, bits);
        if (const size_t rest = vocab_->n_vocab() % 32; rest != 0) bits[bits.size() - 1] &= (1u << rest) - 1;
    }
    bool ended() const override { return !text_.empty() && vocab_->piece(text_.back()).end; }

  private:
    std::shared_ptr<const VocabTrie> vocab_;
    std::shared_ptr<const TokenRule> rule_;
    std::vector<Token> text_;
};

class TextRuleText : public TextState {
  public:
    TextRuleText(std::shared_ptr<const VocabTrie> vocab, TextRule rule)
        : vocab_(std::move(vocab)), rule_(std::move(rule)) {}
    bool accept(Token id) override {
        if (ended_ || !vocab_->has(id)) return false;
        const VocabTrie::Piece& piece = vocab_->piece(id);
        if (!piece.end && (!piece.text || piece.bytes.empty())) return false;
        const size_t size = text_.size();
        Undo undo([&] { text_.resize(size); });  // also where the rule throws
        if (!piece.end) text_ += piece.bytes;
        if (!rule_(text_, piece.end)) return false;
        sizes_.push_back(size);
        undo.keep();
        ended_ = piece.end;
        return true;
    }
    void rollback(size_t n) override {
        if (n == 0) return;
        text_.resize(sizes_[sizes_.size() - n]);
        sizes_.resize(sizes_.size() - n);
        ended_ = false;
    }
    /// Where a beginning is refused, so is everything that goes on from it.
    void mask(Span<uint32_t> bits) override {
        if (ended_) return;
        if (rule_(text_, true))
            for (const Token end : vocab_->ends()) set_bit(bits, static_cast<uint32_t>(end));
        const TokenTree& tree = vocab_->tree();
        std::string text = text_;
        tree.each([&](const TokenTree::Node& node, size_t depth) {
            text.resize(text_.size() + depth - 1);
            text += static_cast<char>(node.byte);
            if (!rule_(text, false)) return TokenTree::Visit::skip;
            for (const uint32_t token : tree.at(node)) set_bit(bits, token);
            return TokenTree::Visit::enter;
        });
    }
    bool ended() const override { return ended_; }

  private:
    std::shared_ptr<const VocabTrie> vocab_;
    TextRule rule_;
    std::string text_;
    std::vector<size_t> sizes_;  ///< of the text before each token
    bool ended_ = false;
};

bool same_vocabulary(const VocabTrie& a, const VocabTrie& b) {
    if (&a == &b) return true;
    if (a.n_vocab() != b.n_vocab()) return false;
    for (size_t i = 0; i < a.n_vocab(); ++i) {
        const VocabTrie::Piece &x = a.piece(static_cast<Token>(i)), &y = b.piece(static_cast<Token>(i));
        if (x.bytes != y.bytes || x.text != y.text || x.end != y.end) return false;
    }
    return true;
}

/// A Constraint on a model's vocabulary, without what it constrains to.
Result<std::shared_ptr<Constraint::Impl>> on_vocabulary(const Model& model) {
    if (!model) return empty_handle("Model", "Model::load");
    auto impl = std::make_shared<Constraint::Impl>();
    impl->vocab = model.impl()->vocab_trie();
    if (impl->vocab->ends().empty())
        return Status(Code::bad_argument,
                      "the vocabulary has no token that ends a generation, so a constrained text could not end; set "
                      "tokenizer.ggml.eos_token_id in the file");
    return impl;
}

}  // namespace
}  // namespace constraint_impl

// ------------------------------------------------------------------------------- the text of a session

Status ConstrainedText::begin(const Constraint& constraint, size_t first) {
    forget();
    const Constraint::Impl& impl = *constraint.impl();
    if (!constraint_impl::same_vocabulary(*impl.vocab, *model_->vocab_trie()))
        return Status(Code::bad_argument,
                      "sampling.constraint is for another vocabulary; create it with this session's Model");
    AUSPEX_TRY(impl.begin().get(state_));
    bits_.assign((size_t{model_->plan.n_vocab} + 31) / 32, 0);
    constraint_ = constraint;
    first_ = first;
    n_ = 0;
    return {};
}

Status ConstrainedText::follow(const Sampling& sampling, Span<const Token> history) {
    if (!sampling.constraint) {
        forget();
        return {};
    }
    const bool goes_on = on() && constraint_ == sampling.constraint && first_ <= history.size();
    size_t first = sampling.constrained_from;
    if (first == kFromHere) first = goes_on && !extended_ ? first_ : history.size();
    if (first > history.size())
        return fail(Code::bad_argument, "sampling.constrained_from is ", first, " (in C ", first + 1,
                    "), the history has ", history.size(),
                    " tokens; the constrained text begins within or right behind it");
    if (!goes_on || first != first_) AUSPEX_TRY(begin(sampling.constraint, first));
    extended_ = false;
    const size_t n = history.size() - first_;
    if (n_ > n) rollback(n_ - n);
    while (n_ < n) {
        const Token id = history[first_ + n_];
        if (accept(id)) continue;
        const size_t at = first_ + n_;
        const Status limit = state_->status();  // of the constraint itself: it cannot say whether the token is allowed
        forget();
        if (!limit.ok()) return limit;
        return fail(Code::bad_argument, "the constraint refuses token ", at, " of the history (id ", id,
                    "), its text begins at token ", first, "; sync() to a history that it allows");
    }
    AUSPEX_TRY(state_->status());
    if (state_->ended())
        return Status(Code::bad_argument,
                      "the constrained text has ended; sync() begins another, without a constraint the text goes on");
    return {};
}

void ConstrainedText::replaced(size_t n_same, size_t size) {
    if (!on()) return;
    if (n_same < first_) return forget();
    extended_ = extended_ || n_same < size;
    rollback(first_ + n_ - std::min(first_ + n_, n_same));
}

void ConstrainedText::forget() {
    constraint_ = Constraint();
    state_.reset();
    first_ = n_ = 0;
    extended_ = false;
}

Status ConstrainedText::copy(const ConstrainedText& other) {
    forget();
    if (!other.on()) return {};
    AUSPEX_TRY(begin(other.constraint_, other.first_));
    extended_ = other.extended_;
    return {};
}

bool ConstrainedText::accept(Token id) {
    if (!state_->accept(id)) return false;
    ++n_;
    return true;
}

void ConstrainedText::rollback(size_t n) {
    if (n == 0) return;
    state_->rollback(n);
    n_ -= n;
}

Result<Span<const uint32_t>> ConstrainedText::mask() {
    AUSPEX_TRY(state_->status());
    std::fill(bits_.begin(), bits_.end(), 0u);
    const size_t n_word = constraint_.impl()->vocab->n_word();
    state_->mask(Span<uint32_t>(bits_.data(), n_word));
    if (std::any_of(bits_.begin(), bits_.end(), [](uint32_t w) { return w != 0; })) return Span<const uint32_t>(bits_);
    return fail(Code::bad_argument, "the constraint allows no token after ", n_,
                " tokens of its text; it must allow one that ends the text, or one with which it goes on");
}

Result<Token> ConstrainedText::admit(Token id, Sampler& sampler, Span<const float> logits, const Sampling& sampling,
                                     size_t position, Span<const Token> before) {
    if (!on() || accept(id)) return id;
    Span<const uint32_t> allowed;
    AUSPEX_TRY(mask().get(allowed));
    id = sampler.sample_allowed(logits, sampling, position, before, allowed);
    AUSPEX_TRY(accept_masked(id));
    return id;
}

Status ConstrainedText::accept_masked(Token id) {
    if (accept(id)) return {};
    return fail(Code::bad_argument, "the constraint refuses token ", id,
                ", which its mask allows; TokenRule::filter() must clear what allows() refuses");
}

}  // namespace detail

// ---------------------------------------------------------------------------------- the public handles

void TokenRule::filter(Span<const Token> text, Span<uint32_t> bits) const {
    for (size_t w = 0; w < bits.size(); ++w)
        for (uint32_t b = 0; b < 32; ++b)
            if ((bits[w] >> b & 1u) != 0 && !allows(text, static_cast<Token>(32 * w + b))) bits[w] &= ~(1u << b);
}

Result<std::unique_ptr<detail::TextState>> Constraint::Impl::begin() const {
    using namespace detail;
    using State = std::unique_ptr<TextState>;
    if (token_rule) return State(new constraint_impl::TokenRuleText(vocab, token_rule));
    if (text_rule) return State(new constraint_impl::TextRuleText(vocab, text_rule));
    std::unique_ptr<Matcher> matcher;
    AUSPEX_TRY(Matcher::create(grammar.impl()->rules, vocab).get(matcher));
    return State(new constraint_impl::GrammarText(std::move(matcher)));
}

Result<Constraint> Constraint::create(const Model& model, const Grammar& grammar) AUSPEX_BOUNDARY {
    if (!grammar) return detail::empty_handle("Grammar", "Grammar::from_gbnf or another of its functions");
    std::shared_ptr<Impl> impl;
    AUSPEX_TRY(detail::constraint_impl::on_vocabulary(model).get(impl));
    impl->grammar = grammar;
    AUSPEX_TRY(impl->begin().status());  // that the vocabulary can spell it
    Constraint out;
    out.impl_ = std::move(impl);
    return out;
}
AUSPEX_CATCH

Result<Constraint> Constraint::create(const Model& model, std::shared_ptr<const TokenRule> rule) AUSPEX_BOUNDARY {
    if (!rule) return Status(Code::bad_argument, "the TokenRule is null; give one that decides, or no constraint");
    std::shared_ptr<Impl> impl;
    AUSPEX_TRY(detail::constraint_impl::on_vocabulary(model).get(impl));
    impl->token_rule = std::move(rule);
    Constraint out;
    out.impl_ = std::move(impl);
    return out;
}
AUSPEX_CATCH

Result<Constraint> Constraint::create(const Model& model, TextRule rule) AUSPEX_BOUNDARY {
    if (!rule) return Status(Code::bad_argument, "the TextRule is empty; give one that decides, or no constraint");
    std::shared_ptr<Impl> impl;
    AUSPEX_TRY(detail::constraint_impl::on_vocabulary(model).get(impl));
    impl->text_rule = std::move(rule);
    Constraint out;
    out.impl_ = std::move(impl);
    return out;
}
AUSPEX_CATCH

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

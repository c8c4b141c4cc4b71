// grammar/matcher: follows a text token by token, and says which tokens may come next.
//
// Owns    the states of every token so far, for rollback; masks that were made lately.
//         What a mask costs: a state with few ways on is walked through the tree of the vocabulary. A state within a
//         string, where nearly everything is allowed, takes a list made once for its expression: tokens that stay
//         within it, and the ends of tokens that leave it, which are walked with what follows.
// Thread  one thread at a time; the grammar and the vocabulary are shared.
// Tests   tests/test_matcher.cpp
#pragma once
#include "automaton.h"
#include "vocab_trie.h"

#include <bitset>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// A set of characters in UTF-8. Of each place within a character, place 0 between them: classes of the bytes that may
/// follow, and the place after them.
using Alphabet = std::vector<std::vector<std::pair<uint8_t, uint8_t>>>;
using Classes = std::bitset<256>;  ///< of bytes

class Matcher {
  public:
    /// errors    bad_argument: a control token that the vocabulary does not have; or a grammar that it cannot spell.
    static Result<std::unique_ptr<Matcher>> create(std::shared_ptr<const Rules> rules,
                                                   std::shared_ptr<const VocabTrie> vocab);

    /// Goes on by one token. False, and nothing changes, if the grammar does not allow it. A token that ends a
    /// generation is allowed where the grammar accepts, and nothing after it.
    bool accept(Token token);
    /// Goes on by bytes, as one step for rollback.
    bool accept(std::string_view bytes);
    /// Takes back the last n steps; n is at most n_step().
    void rollback(size_t n);
    size_t n_step() const { return history_.size() - 1; }
    /// The text so far is one of the grammar.
    bool is_accepting() const { return automaton_.accepting(history_.back()); }
    /// errors    unsupported: the text so far has more readings than are followed, so that tokens may be refused which
    ///           the grammar allows; or its states take more than the memory limit. rollback() goes back to before.
    Status status() const;
    /// An end token was accepted.
    bool is_finished() const { return history_.size() >= finished_at_; }
    /// Sets a bit for each token that accept() would take. bits has n_word() words.
    void mask(Span<uint32_t> bits);
    /// The bytes that must come next, if there is only one way on; at most max_bytes.
    std::string forced(size_t max_bytes = 256);
    size_t n_word() const { return vocab_->n_word(); }

    /// Counts the work of masks, for tests and measurements.
    struct Work {
        uint64_t n_mask = 0, n_cached = 0, n_node = 0, n_list = 0, n_compact = 0;
    };
    const Work& work() const { return work_; }
    size_t memory() const { return automaton_.memory() + lists_bytes_ + cache_.size() * n_word() * 4; }
    /// bytes: beyond which what only saves time is forgotten. max_bytes: what the text itself may take.
    void set_memory_limit(size_t bytes, size_t max_bytes = kMaxMemory) {
        memory_limit_ = usual_limit_ = bytes;
        max_memory_ = max_bytes;
    }

  private:
    /// What is known about an expression within which most tokens fit.
    struct WideList {
        Classes follow;
        VocabTrie::Bits within;  ///< tokens that stay in the expression, or end exactly with it
        TokenTree leaving;       ///< what is left of tokens where the expression may have ended and a follower stands
        bool usable = false;
        uint64_t used = 0;
    };
    struct Cached {
        StateId state = kDead;
        uint64_t used = 0;
        VocabTrie::Bits bits;
    };

    Matcher(std::shared_ptr<const Rules> rules, std::shared_ptr<const VocabTrie> vocab);
    Status resolve_terminals();
    StateId next_state(StateId s, Token token);
    bool make_mask(StateId s, Span<uint32_t> bits);
    bool terminal_takes(uint32_t terminal, Token token) const;
    void add_terminals(StateId s, Span<uint32_t> bits);
    bool walk(const TokenTree& tree, StateId s, Span<uint32_t> bits, bool forget = false);
    bool is_wide(ExprId e);
    /// Classes of the bytes that may come next.
    Classes first_of(StateId s);
    /// follow: of the bytes that may come after the expression.
    WideList& list_of(ExprId e, const Classes& follow);
    void make_list(ExprId e, WideList& list);
    void add_leaving(const TokenTree& tree, const TokenTree::Node& node, size_t depth, const Classes& follow,
                     std::vector<TokenTree::Entry>& leaving) const;
    /// How many characters of an alphabet may follow, whichever they are; exact: not one more.
    struct Fit {
        uint32_t n_char = 0;
        bool exact = false;
    };
    Fit fit(ExprId e, const Alphabet& alphabet, const Classes& follow);
    bool fit_char(const std::vector<ExprId>& from, const Alphabet& alphabet, const Classes& follow,
                  std::vector<ExprId>& to, bool& any, bool& leaves);
    const TokenTree* begin_list(ExprId e, const Classes& follow, VocabTrie::Bits& within);
    void trim(size_t n_path = 0);
    void compact(size_t n_path);

    std::shared_ptr<const VocabTrie> vocab_;
    Automaton automaton_;
    std::vector<Token> terminal_ids_;
    Alphabet plain_, bare_;  ///< without quotes, backslashes and control characters; without spaces too
    std::vector<StateId> history_;
    size_t finished_at_ = SIZE_MAX;  ///< steps after which the end token was accepted
    std::unordered_multimap<ExprId, WideList> lists_;
    size_t lists_bytes_ = 0;
    std::vector<Cached> cache_;
    std::vector<StateId> path_;
    std::vector<ExprId> expr_path_;
    uint64_t clock_ = 0;
    static constexpr size_t kMaxMemory = size_t{256} << 20;
    size_t usual_limit_ = size_t{48} << 20, memory_limit_ = usual_limit_, max_memory_ = kMaxMemory;
    Work work_;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

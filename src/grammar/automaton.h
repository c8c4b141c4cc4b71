// grammar/automaton: runs a grammar byte by byte.
//
// Owns    the states that were met: a state is a set of readings, each an expression to match and a stack of what
//         follows it. States, stacks and steps between states are made when they are first needed and each kept once,
//         so that copying a state is copying an integer, and a step taken before is one look-up.
// Thread  one thread at a time.
// Tests   tests/test_grammar.cpp
#pragma once
#include "grammar.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

using StateId = uint32_t;
constexpr StateId kDead = 0;

class Automaton {
  public:
    struct Reading {
        ExprId expr = kNoMatch;
        uint32_t stack = 0;  ///< 0: nothing follows
        bool operator==(const Reading& o) const { return expr == o.expr && stack == o.stack; }
        bool operator<(const Reading& o) const { return expr != o.expr ? expr < o.expr : stack < o.stack; }
    };
    static constexpr uint32_t kMaxReadings = 512, kMaxDepth = 2000;
    static constexpr uint32_t kReadingsEach = 4;  ///< of an alternative: it goes on, may end, may be followed
    explicit Automaton(std::shared_ptr<const Rules> rules);

    StateId start();
    /// The state after a byte; kDead if no text of the grammar goes on so.
    StateId step(StateId s, unsigned char byte) { return step_class(s, classes_.of[byte]); }
    StateId step_class(StateId s, unsigned byte_class) {
        const StateId known = steps_.get(s, byte_class);
        return known != StepTable::kUnknown ? known : step_slowly(s, byte_class);
    }
    /// The state after the control token of one of the state's terminals.
    StateId step_terminal(StateId s, uint32_t terminal);
    /// The union of two states.
    StateId merge(StateId a, StateId b);
    /// The state of one reading, and what follows a stack.
    StateId state_of(const std::vector<Reading>& readings, bool narrowed = false);
    StateId after(uint32_t stack);

    bool accepting(StateId s) const { return states_[s].accepting; }
    /// Readings of a state that are kept: more than kMaxReadings where more alternatives begin at one place.
    size_t max_readings() const { return std::max(kMaxReadings, kReadingsEach * rules_.widest); }
    /// Readings of the text were left out, because there are too many: the state may refuse what the grammar allows.
    bool narrowed(StateId s) const { return states_[s].narrowed; }
    Span<const Reading> readings(StateId s) const { return {pool_.data() + states_[s].at, states_[s].n}; }
    /// Token terminals: `expr` is the terminal's index.
    Span<const Reading> terminals(StateId s) const {
        return {pool_.data() + states_[s].at + states_[s].n, states_[s].n_terminal};
    }
    const ByteClasses& classes() const { return classes_; }
    ExprPool& exprs() { return rules_.pool; }
    const Rules& rules() const { return rules_; }

    size_t memory() const;
    /// Forgets every state but these, whose ids it replaces. Where memory runs out the automaton is as it was, and
    /// `keep` is of no use.
    void compact(std::vector<StateId>& keep);

  private:
    struct State {
        uint32_t at = 0, n = 0, n_terminal = 0;
        bool accepting = false, narrowed = false;
    };
    struct Link {
        ExprId expr = kNoMatch;
        uint32_t next = 0, depth = 0;
    };
    /// Collects the readings of a state.
    struct Closure {
        std::vector<Reading> open, readings, terminals;
        std::vector<Reading> done;                ///< searched while it is short
        std::unordered_map<uint64_t, bool> many;  ///< beyond
        bool accepting = false, narrowed = false;
        void add(ExprId e, uint32_t stack);
    };
    StateId step_slowly(StateId s, unsigned byte_class);
    void close(Closure& c);
    void expand(Closure& c, const Reading& r);
    void emit(Closure& c, const Reading& r);
    void divide(Closure& c, const Reading& r);
    std::pair<ExprId, ExprId> split(ExprId e);
    std::pair<ExprId, ExprId> split_slowly(ExprId e);
    uint32_t push(ExprId e, uint32_t stack);
    StateId intern(Closure& c);

    std::shared_ptr<const Rules> base_;
    Rules rules_;
    ByteClasses classes_;
    std::vector<State> states_;
    std::vector<Reading> pool_;
    std::unordered_multimap<uint64_t, StateId> state_index_;
    std::vector<Link> links_;
    std::unordered_map<uint64_t, uint32_t> link_index_;
    StepTable steps_;
    std::unordered_map<ExprId, ExprId> expanded_;
    std::unordered_map<ExprId, ExprId> plain_;  ///< of a choice: its plain parts, which are one reading
    std::unordered_map<ExprId, std::pair<ExprId, ExprId>> split_;
    std::unordered_map<uint32_t, StateId> after_;
    Closure scratch_;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// engine/run_tree: a tree of token runs with what is kept of their rows.
//
// Owns    runs of tokens, each stored once; where a run's kept states and parked rows are. Integers only: who copies
//         the bytes is not known here.
// Thread  belongs to one PrefixTree.
// Tests   tests/test_prefix_tree.cpp, tests/test_run_tree.cpp.
//
// A run covers the rows begin .. end of every history that passes through it, and a state at row r (after r tokens)
// belongs to the run with begin < r <= end. Siblings may begin with the same tokens: rows that were computed twice are
// two runs, because their bits may differ and a state rests on the rows that it was computed with.
#pragma once
#include "../base/base.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

using RunId = uint32_t;
constexpr RunId kNoRun = UINT32_MAX;
constexpr RunId kRootRun = 0;
/// The block of rows that are to be parked and still lie in the context.
constexpr uint32_t kNoBlock = UINT32_MAX;

/// Rows of a run that lie in a parked block. Two runs share a block if it was parked before they were split.
struct ParkedRows {
    size_t begin = 0, end = 0;
    uint32_t block = kNoBlock;
};

struct Run {
    struct Child {
        Token first = 0;
        RunId run = kNoRun;
    };
    RunId parent = kNoRun;
    size_t begin = 0, end = 0;
    std::vector<Token> tokens;  ///< [end - begin], empty while the run is open
    std::vector<Child> children;
    std::vector<uint32_t> states;    ///< indices of states, by ascending row
    std::vector<ParkedRows> parked;  ///< by ascending row
    size_t n_state = 0;              ///< in this run and everything below it
    uint64_t last_use = 0;           ///< request
    std::vector<size_t> given_up;    ///< rows at which a state was given up, ascending
    bool used = false;

    bool has_states_below() const { return n_state > states.size(); }
};

class RunTree {
  public:
    RunTree();
    Run& operator[](RunId id) { return runs_[id]; }
    const Run& operator[](RunId id) const { return runs_[id]; }
    size_t size() const { return runs_.size(); }
    /// Tokens stored in closed runs.
    size_t n_token() const { return n_token_; }

    /// Runs in use.
    size_t n_run() const { return runs_.size() - free_.size(); }

    /// A new open run, which begins where its parent ends. first: its first token, or -1 if it is not known yet.
    RunId add(RunId parent, Token first, uint64_t now);
    /// Opens a closed run without children again, so that it grows.
    void reopen(RunId id);
    /// Stores the tokens of an open run.
    void close(RunId id, Span<const Token> tokens);
    /// Cuts a run in two; the lower part keeps the id. states_end: how many of its states go to the upper part.
    RunId split(RunId id, size_t row, size_t states_end);
    /// Removes a run without children, states and parked rows.
    void remove(RunId id);
    /// Adds n to the states of a run and of everything above it.
    void count_states(RunId id, int n);

  private:
    RunId take();
    std::vector<Run> runs_;
    std::vector<RunId> free_;
    size_t n_token_ = 0;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

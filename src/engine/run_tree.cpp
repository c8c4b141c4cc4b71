#include "run_tree.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

RunTree::RunTree() { runs_[take()].used = true; }

RunId RunTree::take() {
    if (free_.empty()) {
        runs_.emplace_back();
        return static_cast<RunId>(runs_.size() - 1);
    }
    const RunId id = free_.back();
    free_.pop_back();
    return id;
}

RunId RunTree::add(RunId parent, Token first, uint64_t now) {
    const RunId id = take();
    Run& run = runs_[id];
    run.used = true;
    run.parent = parent;
    run.begin = run.end = runs_[parent].end;
    run.last_use = now;
    runs_[parent].children.push_back({first, id});
    return id;
}

void RunTree::reopen(RunId id) {
    n_token_ -= runs_[id].tokens.size();
    runs_[id].tokens.clear();
}

void RunTree::close(RunId id, Span<const Token> tokens) {
    Run& run = runs_[id];
    run.tokens.assign(tokens.begin(), tokens.end());
    n_token_ += tokens.size();
    for (Run::Child& child : runs_[run.parent].children)
        if (child.run == id) child.first = tokens[0];
}

RunId RunTree::split(RunId id, size_t row, size_t states_end) {
    const RunId upper_id = take();
    Run& lower = runs_[id];
    Run& upper = runs_[upper_id];
    upper.used = true;
    upper.parent = lower.parent;
    upper.begin = lower.begin;
    upper.end = lower.begin = row;
    upper.n_state = lower.n_state;
    upper.last_use = lower.last_use;
    const auto given_up_cut = std::upper_bound(lower.given_up.begin(), lower.given_up.end(), row);
    upper.given_up.assign(lower.given_up.begin(), given_up_cut);
    lower.given_up.erase(lower.given_up.begin(), given_up_cut);
    const auto cut = lower.tokens.begin() + static_cast<std::ptrdiff_t>(row - upper.begin);
    upper.tokens.assign(lower.tokens.begin(), cut);
    lower.tokens = std::vector<Token>(cut, lower.tokens.end());
    const auto state_cut = lower.states.begin() + static_cast<std::ptrdiff_t>(states_end);
    upper.states.assign(lower.states.begin(), state_cut);
    lower.states.erase(lower.states.begin(), state_cut);
    lower.n_state -= states_end;
    const auto parked_cut = std::find_if(lower.parked.begin(), lower.parked.end(),
                                         [row](const ParkedRows& rows) { return rows.begin >= row; });
    upper.parked.assign(lower.parked.begin(), parked_cut);
    lower.parked.erase(lower.parked.begin(), parked_cut);
    for (Run::Child& child : runs_[upper.parent].children)
        if (child.run == id) child.run = upper_id;
    upper.children.push_back({lower.tokens[0], id});
    lower.parent = upper_id;
    return upper_id;
}

void RunTree::remove(RunId id) {
    Run& run = runs_[id];
    std::vector<Run::Child>& siblings = runs_[run.parent].children;
    siblings.erase(std::find_if(siblings.begin(), siblings.end(), [id](const Run::Child& c) { return c.run == id; }));
    n_token_ -= run.tokens.size();
    run = Run();
    free_.push_back(id);
}

void RunTree::count_states(RunId id, int n) {
    for (; id != kNoRun; id = runs_[id].parent)
        runs_[id].n_state = static_cast<size_t>(static_cast<int64_t>(runs_[id].n_state) + n);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

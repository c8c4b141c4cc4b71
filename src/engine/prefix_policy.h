// engine/prefix_policy: at which rows a prefill keeps its state, and what a kept state is worth.
//
// Owns    nothing: pure functions of numbers.
// Thread  no shared state.
// Tests   tests/test_prefix_tree.cpp; `auspex bench --replay` compares the policies on recorded requests.
#pragma once
#include "../base/base.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// A prefill stops by itself only at multiples of this many rows, and rows are parked in blocks of as many.
constexpr uint32_t kPrefixGrid = 64;
/// Rows between two states within a generated text.
constexpr uint32_t kReplyStride = 512;
/// A state is also kept where a cycle ends so many rows and seconds after the last one. Only the last two of these
/// stay: they bound what is computed again where the end of a reply is taken back.
constexpr uint32_t kRecentStride = 64;
constexpr double kRecentSeconds = 0.5;

enum class PrefixPolicy : uint8_t {
    none,      ///< only the live state: a prompt that does not continue it starts over
    stride,    ///< every 8192 rows and at the prompt's end, 32 states, the least recently used goes first
    by_score,  ///< the places that are asked for again, the lowest score goes first; rows are parked
};

/// Why a state was kept.
enum class StateKind : uint8_t {
    system_end,      ///< a pinned mark
    user_end,        ///< any other mark; without marks the last rows of a prompt
    generation_end,  ///< where a generated text ended and the next prompt went on
    tip,             ///< where another text replaced the live one
    edited,          ///< above the row at which the live text was changed
    junction,
    stride,
    reply,   ///< within a generated text, until the next prompt: for a reply that is cut
    recent,  ///< the same, until two later ones are kept
};
constexpr size_t kStateKinds = 9;
inline StateKind kind_of(const Mark& mark) { return mark.pinned ? StateKind::system_end : StateKind::user_end; }
/// Whether states of a kind go with the next prompt.
constexpr bool is_in_reply(StateKind kind) { return kind == StateKind::reply || kind == StateKind::recent; }

/// How often states of a kind were used, of those that were taken lately. What is worth keeping differs: a template
/// that drops earlier thinking never comes back to where a generation ended, an edit does.
class UseRates {
  public:
    void taken(StateKind kind);
    void used(StateKind kind) { n_used_[static_cast<size_t>(kind)] += 1; }
    double of(StateKind kind) const;

  private:
    double n_taken_[kStateKinds] = {}, n_used_[kStateKinds] = {};
};

/// A pin holds for so many requests after its text was live.
constexpr uint64_t kPinRequests = 16;
/// After more than so many pins in a row that no prompt came back to, a pin lasts only while its text is live.
constexpr size_t kLonePins = 2;

/// A row at which a prefill has to stop, so that its state can be kept.
struct Stop {
    size_t row = 0;
    StateKind kind = StateKind::stride;
    bool pinned = false;
};

struct StopsInput {
    size_t base = 0;      ///< rows that are reused
    size_t n_row = 0;     ///< of the prompt
    size_t junction = 0;  ///< where this prompt leaves a path that was left there before, or 0
    size_t grid = kPrefixGrid;
};
/// Rows above the base, ascending, each once.
std::vector<Stop> plan_stops(PrefixPolicy policy, const StopsInput& in, Span<const Mark> marks);

/// What deciding about a state needs to know.
struct StateWorth {
    size_t gap = 0;         ///< rows to the next lower state of the same path: what would be computed again without it
    uint64_t age = 0;       ///< requests since it was used
    uint64_t bytes = 0;     ///< its own and those of the parked rows that only it needs
    uint64_t path_age = 0;  ///< requests since it was on the live path
    double use_rate = 1;    ///< of its kind
    bool is_tip = false;    ///< no other state lies above it
    StateKind kind = StateKind::tip;
};
/// The state with the lowest score is given up first.
double state_score(PrefixPolicy policy, const StateWorth& worth);
/// The largest number of states, whatever the budget.
size_t max_states(PrefixPolicy policy);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

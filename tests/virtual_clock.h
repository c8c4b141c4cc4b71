// tests/virtual_clock: simulates costs and acceptance of drafting, to score drafting policies.
//
// A workload is a list of phases; each phase says how well its text can be drafted and how long the
// context is. For every token a uniform number and a level of acceptance are drawn beforehand, so every
// policy meets the same recorded stream: the draft of token p, made as the i-th of a cycle, is right iff
//     u_p < level_p * 0.985^(i-1).
// Time is T(g) = T(0, context) * R(g, context) * clock * noise. A policy sees depth, accepted, seconds,
// context, and nothing else. Used by tests/test_controller.cpp and by `auspex bench --controller --virtual`.
#pragma once
#include "../src/engine/controller.h"

#include <memory>
#include <string>
#include <vector>

namespace virtual_clock {

/// R(g) = first + slope (g - 1) for g >= 1; acceptance_probe is the cost of a head pass over 16 rows, in plain steps.
struct Curve {
    const char* name;
    double first, slope, acceptance_probe;
};
constexpr uint32_t kCurves = 4;
extern const Curve kCurve[kCurves];  // MoE, dense, MoE with a trimmed head, unprofitable

struct Phase {
    std::string kind;  ///< phases of one kind are reported together
    uint32_t n_token = 0;
    double acceptance = 0;    ///< mean level of a_1
    double wander = 0;        ///< standard deviation of its slow noise
    uint32_t context = 0;     ///< at the beginning
    double clock = 1;         ///< factor on all times
    double load = 1;          ///< factor on R(g) - 1
    double min_row_cost = 0;  ///< R(g) is at least this times g + 1
};
struct Workload {
    std::string name;
    std::vector<Phase> phases;
};
/// W1 .. W8.
std::vector<Workload> workloads();

/// One policy under test.
class Policy {
  public:
    virtual ~Policy() = default;
    virtual auspex::detail::Decision next(uint32_t context) = 0;
    virtual void observe(const auspex::detail::DraftSeen&) {}
    virtual void observe_acceptance_probe(const auspex::detail::AcceptanceProbe&) {}
};
std::unique_ptr<Policy> fixed_depth(uint32_t depth);                 // 0: off
std::unique_ptr<Policy> fixed_toggle(double threshold);              // 3 or off by accepted/drafted against a constant
std::unique_ptr<Policy> measured_toggle();                           // 3 or off against the measured (R(3)-1)/3
std::unique_ptr<Policy> controlled(auspex::detail::Controller& by);  // `by` outlives it

struct Settings {
    uint64_t seed = 1;
    uint32_t max_depth = 6;
    uint32_t lag = 0;         ///< cycles already queued when a decision is made
    double noise = 0.02;      ///< standard deviation of a cycle's log time
    double accidents = 0.01;  ///< share of cycles that take 1.5 to 3 times as long
    /// Chance per token that what others do on the machine changes: half of the time nothing, else a plain step
    /// takes 1.3 to 3 times as long, and what drafts add to it a random part of so much.
    double shared = 0;
};

/// Seconds by phase, in order.
struct Played {
    std::vector<double> seconds;
    double total = 0, probe_seconds = 0;
};
Played play(const Workload& w, const Curve& c, const Settings& s, Policy& policy);

/// Of one policy on one workload and curve, over all runs.
struct Score {
    std::string workload, curve;
    double hindsight = 0;  ///< sum over phases of the best fixed depth's time / own time
    double over_off = 0;   ///< time without drafting / own time
    /// The same ratio as hindsight over all phases of one kind, the lowest. Flips of 128 tokens or less
    /// are one kind: nobody who does not know the future is on time for each of them.
    double worst_phase = 0;
    std::string worst_kind;
    double worst_flip = 0;      ///< the same with each length and side of the flips a kind of its own
    double worst_single = 0;    ///< of one single phase in one run, luck included
    double worst_over_off = 0;  ///< the lowest over_off of one run
    double n_switch = 0;        ///< per run; controller only
    double acceptance_probe_share = 0;
};
struct Table {
    std::string policy;
    std::vector<Score> scores;
    double mean = 0, worst_run = 1e9, worst_phase = 1e9, worst_flip = 1e9, worst_single = 1e9, min_over_off = 1e9;
};
/// n_run recorded streams from s.seed on. The controller first, then off, fixed 3, the fixed toggle, the
/// measured toggle.
std::vector<Table> score_runs(uint32_t n_run, const Settings& s);

}  // namespace virtual_clock

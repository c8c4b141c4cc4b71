// engine/acceptance: how likely drafts are to be accepted, learned from those that were verified.
//
// Owns    the filter over levels of acceptance. Arithmetic alone: no clock, no device, no random numbers.
// Thread  belongs to one Controller.
// Test    tests/test_controller.cpp.
//
// The text has a level q, the chance that the first draft is accepted; deeper drafts have a_i = q d_i with slowly
// learned ratios d_i <= 1. The level is constant for a while and then jumps (code, then prose, then code): a hidden
// Markov model on a grid of levels, times a few hypotheses on how often it jumps. Each evaluated draft is one step of
// its forward filter. Drafts after the first rejected one were not evaluated and say nothing.
#pragma once
#include "../base/base.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// The deepest draft that the tables have room for.
constexpr uint32_t kMaxDepth = kMaxDraft;

/// One finished acceptance probe: a pass of the MTP block over tokens that are already known.
struct AcceptanceProbe {
    uint32_t n = 0;     ///< rows, at most Controller::kMaxAcceptanceProbe
    uint32_t hits = 0;  ///< rows where the block's token is the one that came
    double seconds = 0;
    uint32_t order = 0;  ///< bit i: row i (0 is the oldest) was a hit; 0 with hits > 0: order not known
};

class Acceptance {
  public:
    Acceptance();
    /// Drafts 1..accepted were hits; draft accepted+1, if there was one, a miss; deeper ones were not evaluated.
    void observe(uint32_t depth, uint32_t accepted);
    /// Outcomes of first drafts, oldest first.
    void observe(const AcceptanceProbe& probe);
    /// Another text begins. Its level is unknown, but likely one of those seen before: the more outcomes were seen, the
    /// likelier.
    void new_text();
    /// E(0) .. E(max_depth), the tokens that a cycle is expected to commit.
    void expected(uint32_t max_depth, double* tokens) const;
    /// a_i of position i >= 1.
    double at(uint32_t position) const { return level() * ratio_[position]; }
    double ratio(uint32_t position) const { return ratio_[position]; }
    double level() const;
    /// Expected tokens from one jump of the level to the next, under the filter's hypotheses.
    double run_length() const;
    /// Plain steps per token that the best depth would save: at the present distribution of the level, and in `usual`
    /// at the distribution that jumps lead to. relative: R(0) .. R(max_depth)
    double saving(uint32_t max_depth, const double* relative, double* usual) const;

  private:
    static constexpr uint32_t kLevel = 12, kPace = 3;
    void advance();
    void evaluate(uint32_t position, bool hit);
    double weight(uint32_t level) const;

    double p_[kPace][kLevel];                              // P(pace, level | all outcomes), sums to 1
    double usual_[kLevel];                                 // slow average of the level's distribution: where jumps lead
    double n_usual_ = 0;                                   // outcomes that usual_ averages, at most kUsualTokens
    double ratio_[kMaxDepth + 1];                          // d_i
    double hit_[kMaxDepth + 1], expected_[kMaxDepth + 1];  // discounted hits, and what the level alone predicted
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

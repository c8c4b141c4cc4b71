// engine/text_drafts: what drafts made from the text alone (lookup, and what a constraint forces) are worth.
//
// Owns    their acceptance, by how much of the text they are based on, and the costs of cycles that verify them: no
//         pass of an MTP block comes before. Arithmetic alone: no clock, no device.
// Thread  belongs to one Controller.
// Test    tests/test_text_drafts.cpp.
#pragma once
#include "cycle_cost.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// A match of so many tokens is likelier right than the MTP block.
constexpr uint32_t kConfidentMatch = 6;
/// Longer matches are equally good.
constexpr uint32_t kLongMatch = 16;
/// A constraint leaves no choice.
constexpr uint32_t kForcedMatch = UINT32_MAX;

/// Drafts of the next tokens that were made from the text.
struct TextOffer {
    uint32_t n = 0;      ///< drafts; 0: none
    uint32_t match = 0;  ///< tokens that agree with the earlier place they come from, or kForcedMatch
};

class TextDrafts {
  public:
    TextDrafts();
    void new_text();
    void enter(uint32_t context) { cost_.enter(context); }
    /// A cycle that verified so many of these drafts, or a plain step (0), took so long.
    void observe_cost(uint32_t depth, double seconds) { cost_.observe(depth, seconds); }
    /// Of an offer, verified or not, the first n_known drafts could be compared with what came; n_right were right
    /// before the first wrong one.
    void observe(const TextOffer& offer, uint32_t n_known, uint32_t n_right);

    struct Choice {
        uint32_t depth = 0;  ///< 0: no drafts
        double gain = 1;     ///< expected tokens per time of a plain step
    };
    /// The best depth 0 .. min(offer.n, max_depth) of those that are usable (bit g: depth g).
    /// block     costs of drafting with the MTP block, which does more: a bound while none of these was measured
    /// stale     none was measured for long: what seems to cost more than with the block, or than was expected before
    ///           the first measurement, is taken to cost the lower of the two
    /// bold      a depth that was not measured twice gets the benefit of the doubt, 10 %; otherwise a row is expected
    ///           to cost a plain step
    /// A depth that was measured once is taken to cost no more than was expected before, bold or not: its first cycle
    /// may have been an outlier of any size, because drivers prepare a kernel when it first runs.
    Choice best(const TextOffer& offer, uint32_t max_depth, uint32_t usable, const CycleCost& block, bool stale,
                bool bold) const;
    /// Of drafts with such a match.
    const Acceptance& acceptance(uint32_t match) const { return acceptance_[class_of(match)]; }
    const CycleCost& cost() const { return cost_; }
    CycleCost& cost() { return cost_; }

  private:
    static constexpr uint32_t kClass = 4, kForcedClass = 3;
    static uint32_t class_of(uint32_t match);
    double relative_cost(uint32_t depth, const CycleCost& block, bool stale, bool bold) const;
    bool measured() const;

    Acceptance acceptance_[kClass];
    CycleCost cost_;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

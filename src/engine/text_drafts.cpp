#include "text_drafts.h"

#include <algorithm>
#include <cmath>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace text_drafts_impl {
namespace {

/// What a row adds to a plain step, as a share of it, while nothing was measured.
constexpr double kRowGuess = 0.3;
/// The benefit of the doubt.
constexpr double kDoubt = 1.1;
/// By class: a text begins as if so many first drafts had been wrong. What a draft is worth shows without verifying it,
/// so waiting costs little.
constexpr uint32_t kWrongBefore[] = {2, 1, 1};

}  // namespace
}  // namespace text_drafts_impl

TextDrafts::TextDrafts() {
    // Forced bytes are right but for how they are cut into tokens.
    for (int i = 0; i < 4; ++i) acceptance_[kForcedClass].observe(kMaxDepth, kMaxDepth);
    new_text();
}

uint32_t TextDrafts::class_of(uint32_t match) {
    if (match == kForcedMatch) return kForcedClass;
    return match >= kLongMatch ? 2 : match >= kConfidentMatch ? 1 : 0;
}

void TextDrafts::new_text() {
    for (uint32_t i = 0; i < kForcedClass; ++i) {
        acceptance_[i].new_text();
        for (uint32_t k = 0; k < text_drafts_impl::kWrongBefore[i]; ++k) acceptance_[i].observe(1, 0);
    }
}

void TextDrafts::observe(const TextOffer& offer, uint32_t n_known, uint32_t n_right) {
    if (n_known > 0) acceptance_[class_of(offer.match)].observe(std::min(n_known, kMaxDepth), n_right);
}

bool TextDrafts::measured() const {
    for (uint32_t g = 1; g <= kMaxDepth; ++g)
        if (cost_.knows(g)) return true;
    return false;
}

double TextDrafts::relative_cost(uint32_t depth, const CycleCost& block, bool stale, bool bold) const {
    if (depth == 0) return 1;
    const bool known = measured(), once = cost_.n_sample(depth) == 1;
    const double guess = bold || once ? 1 + text_drafts_impl::kRowGuess * depth : depth + 1;
    const double own = known ? cost_.seconds(depth) / cost_.seconds(0) : guess;
    if (known && !stale && !once) return own;
    // The block's cost alone is no bound where its drafts are dear.
    const double bound = block.knows(1) ? std::min(guess, block.seconds(depth) / block.seconds(0)) : guess;
    return std::min(own, bound);
}

TextDrafts::Choice TextDrafts::best(const TextOffer& offer, uint32_t max_depth, uint32_t usable, const CycleCost& block,
                                    bool stale, bool bold) const {
    Choice best;
    max_depth = std::min(std::min(offer.n, max_depth), kMaxDepth);
    if (max_depth == 0 || !cost_.knows(0)) return best;
    double tokens[kMaxDepth + 1];
    acceptance(offer.match).expected(max_depth, tokens);
    for (uint32_t g = 1; g <= max_depth; ++g) {
        if (!(usable >> g & 1)) continue;
        double gain = tokens[g] / relative_cost(g, block, stale, bold);
        if (bold && cost_.n_sample(g) < 2) gain *= text_drafts_impl::kDoubt;
        if (gain > best.gain) best = {g, gain};
    }
    return best;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

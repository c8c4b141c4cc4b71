#include "acceptance.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace acceptance_impl {
namespace {

/// The grid of levels. Finer near 1, where one step of q moves E(6) most.
constexpr double kLevels[] = {0.04, 0.14, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.84, 0.91, 0.96, 0.985};
/// Hypotheses for the chance per token that the level jumps: about once per sentence, paragraph or page. The filter
/// learns which of them fits the text.
constexpr double kPaces[] = {1.0 / 32, 1.0 / 128, 1.0 / 768};
/// Chance per token that the pace itself changes: a few times in a long conversation.
constexpr double kPaceChange = 1.0 / 1024;
/// Jumps go to levels that this text has had before, except for this share, which goes to all levels evenly.
constexpr double kAnyLevelShare = 0.15;
/// Tokens over which the levels of this text are averaged: several phases.
constexpr double kUsualTokens = 512;
/// Chance that a new text has any level, instead of a usual one: while no outcome is known, and after kUsualTokens.
constexpr double kAnyLevelAtFirst = 0.5, kAnyLevelLater = 0.15;
/// Prior: each position is accepted a little less often than the one before, because its input is drafts instead of
/// rows of the trunk. Published heads lose 1 to 2 % per position.
constexpr double kDepthDecay = 0.985;
/// Weight of the prior in evaluated drafts, and the decay of older outcomes. The ratios depend on the head rather than
/// the text, so they are averaged over a long time.
constexpr double kRatioPrior = 24, kRatioKeep = 0.995, kMinRatio = 0.2;
/// Upper bound of a draft's acceptance, so that no likelihood in the filter becomes 0.
constexpr double kMaxAcceptance = 0.995;

}  // namespace
}  // namespace acceptance_impl

Acceptance::Acceptance() {
    static_assert(sizeof acceptance_impl::kLevels / sizeof(double) == kLevel, "one column of p_ per level");
    static_assert(sizeof acceptance_impl::kPaces / sizeof(double) == kPace, "one row of p_ per pace");
    for (double& u : usual_) u = 1.0 / kLevel;
    for (uint32_t i = 0; i <= kMaxDepth; ++i) {
        ratio_[i] = i < 2 ? 1 : ratio_[i - 1] * acceptance_impl::kDepthDecay;
        hit_[i] = expected_[i] = 0;
    }
    for (auto& pace : p_)
        for (double& p : pace) p = 1.0 / (kLevel * kPace);
}

double Acceptance::weight(uint32_t level) const {
    double sum = 0;
    for (const auto& pace : p_) sum += pace[level];
    return sum;
}

double Acceptance::level() const {
    double mean = 0;
    for (uint32_t k = 0; k < kLevel; ++k) mean += weight(k) * acceptance_impl::kLevels[k];
    return mean;
}

double Acceptance::run_length() const {
    double jumps = 0;
    for (uint32_t h = 0; h < kPace; ++h)
        for (const double p : p_[h]) jumps += p * acceptance_impl::kPaces[h];
    return 1 / jumps;
}

/// The time step of the filter, once per token: with the chance of its pace the level jumps to a usual level of this
/// text; rarely the pace changes.
///   p(h, k)  <-  (1 - pace_h) p(h, k) + pace_h p(h) to(k),   then   (1 - c) p(h, k) + c p(k) / n_pace
void Acceptance::advance() {
    using namespace acceptance_impl;
    for (uint32_t h = 0; h < kPace; ++h) {
        double sum = 0;
        for (const double p : p_[h]) sum += p;
        for (uint32_t k = 0; k < kLevel; ++k) {
            const double to = (1 - kAnyLevelShare) * usual_[k] + kAnyLevelShare / kLevel;
            p_[h][k] += kPaces[h] * (sum * to - p_[h][k]);
        }
    }
    n_usual_ = std::min(n_usual_ + 1, kUsualTokens);
    for (uint32_t k = 0; k < kLevel; ++k) {
        const double w = weight(k);
        usual_[k] += (w - usual_[k]) / kUsualTokens;
        for (auto& pace : p_) pace[k] += kPaceChange * (w / kPace - pace[k]);
    }
}

/// The measurement step: Bayes' rule with the likelihood q d_i of a hit, 1 - q d_i of a miss.
void Acceptance::evaluate(uint32_t position, bool hit) {
    using namespace acceptance_impl;
    advance();
    // The ratio first, against what the level alone predicted before this outcome:
    //   d_i = (n0 d_(i-1) 0.985 + hits at i) / (n0 + predicted at i)
    if (position > 1) {
        hit_[position] = hit_[position] * kRatioKeep + (hit ? 1 : 0);
        expected_[position] = expected_[position] * kRatioKeep + level();
    }
    double sum = 0;
    for (uint32_t k = 0; k < kLevel; ++k) {
        const double a = std::min(kLevels[k] * ratio_[position], kMaxAcceptance);
        for (auto& pace : p_) sum += pace[k] *= hit ? a : 1 - a;
    }
    for (auto& pace : p_)
        for (double& p : pace) p /= sum;
    if (position > 1) {
        // A position without evaluated drafts is censored, not rejected: its ratio follows the position before it.
        for (uint32_t i = position; i <= kMaxDepth; ++i) {
            const double d = (kRatioPrior * ratio_[i - 1] * kDepthDecay + hit_[i]) / (kRatioPrior + expected_[i]);
            ratio_[i] = std::clamp(d, kMinRatio, 1.0);
        }
    }
}

void Acceptance::observe(uint32_t depth, uint32_t accepted) {
    for (uint32_t i = 1; i <= accepted; ++i) evaluate(i, true);
    if (accepted < depth)
        evaluate(accepted + 1, false);
    else
        advance();  // all drafts accepted: the next token had no draft
}

void Acceptance::observe(const AcceptanceProbe& probe) {
    uint32_t hits = 0;
    for (uint32_t i = 0; i < probe.n; ++i) {
        // If the order is not known, spread the hits evenly over the rows.
        const uint32_t even = (i + 1) * probe.hits / probe.n;
        evaluate(1, probe.order != 0 ? (probe.order >> i & 1) != 0 : even > hits);
        hits = even;
    }
}

void Acceptance::new_text() {
    using namespace acceptance_impl;
    const double any = kAnyLevelAtFirst + (kAnyLevelLater - kAnyLevelAtFirst) * n_usual_ / kUsualTokens;
    for (uint32_t k = 0; k < kLevel; ++k)
        for (auto& pace : p_) pace[k] = ((1 - any) * usual_[k] + any / kLevel) / kPace;
}

void Acceptance::expected(uint32_t max_depth, double* tokens) const {
    using namespace acceptance_impl;
    for (uint32_t g = 0; g <= max_depth; ++g) tokens[g] = 1;
    for (uint32_t k = 0; k < kLevel; ++k) {  // E is not linear in q: average it, not q
        double survival = weight(k), sum = 0;
        for (uint32_t g = 1; g <= max_depth; ++g) {
            survival *= std::min(kLevels[k] * ratio_[g], kMaxAcceptance);
            sum += survival;
            tokens[g] += sum;
        }
    }
}

double Acceptance::saving(uint32_t max_depth, const double* relative, double* usual) const {
    using namespace acceptance_impl;
    double now = 0;
    *usual = 0;
    for (uint32_t k = 0; k < kLevel; ++k) {
        double survival = 1, tokens = 1, min_cost = 1;  // plain steps per token: R(g) / E(g)
        for (uint32_t g = 1; g <= max_depth; ++g) {
            survival *= std::min(kLevels[k] * ratio_[g], kMaxAcceptance);
            tokens += survival;
            min_cost = std::min(min_cost, relative[g] / tokens);
        }
        now += weight(k) * (1 - min_cost);
        *usual += usual_[k] * (1 - min_cost);
    }
    return now;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

#include "controller.h"

#include <algorithm>
#include <cmath>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace controller_impl {
namespace {

/// Change the depth only for an estimated gain above this, because estimates are noisy by as much and a change costs
/// time. It also bounds the loss against not drafting: a choice up to this much worse may be kept.
constexpr double kHysteresis = 0.02;
/// Depths of the first cycles: a plain step, then one, two and four drafts, twice, which is enough to fit a line; these
/// cycles commit tokens too. The third round repeats depths whose time was not known.
constexpr uint8_t kColdStart[] = {0, 1, 2, 4, 0, 1, 2, 4, 0, 1, 2, 4};
/// The cold start skips depths that gain less than this factor even if every draft is accepted.
constexpr double kColdGain = 1.1;
/// A probe is one cycle at a depth that would be the best if its cost were one standard deviation lower. At most one in
/// this many cycles: a probe loses less than half a step, so all of them cost less than 2 %.
constexpr uint32_t kProbeGap = 48;
/// Probes of depths that are nearly as good cost less and may come more often: below this loss the gap shrinks in
/// proportion, so that the total cost stays the same, down to kMinProbeGap cycles.
constexpr double kProbeLoss = 0.25;
constexpr uint32_t kMinProbeGap = 16;
constexpr double kProbeSigma = 0.015;  // no probe if the cost is known better than this
/// While drafting, run a plain step kPlainEvery cycles after the last one, to keep the comparison with not drafting
/// current; after a jump in speed at another depth, run two within kPlainAfterJump. If a plain step loses less than
/// kPlainLoss of itself, it comes sooner in proportion: it costs less, and a wrong estimate matters more.
constexpr uint32_t kPlainEvery = 256, kPlainAfterJump = 4;
constexpr double kPlainLoss = 0.5;
/// No exploration, and no drafts of the block, while drafting has lost more than this against not drafting: a few steps
/// at the start, then 1 %.
constexpr double kLossSteps = 12, kLossShare = 0.01;
/// A cycle with drafts counts there with at most this multiple of the usual time of its depth. The block's first one at
/// a depth, in which a driver may have prepared a kernel, counts with at most kLossFirstRow plain steps per row.
constexpr double kLossOutlier = 1.25, kLossFirstRow = 1.5;
/// While drafting has lost against not drafting, acceptance probes take at most this share of the time of plain steps.
/// The time of an outlier is capped at this multiple of the usual one.
constexpr double kAcceptanceProbeShare = 0.008, kAcceptanceProbeOutlier = 2;
/// The MTP cache is kept current only if that costs at most this share of a plain step, which only models of a few
/// layers exceed. The smaller of two measured times counts; a single one may be an outlier and is divided by the second
/// number.
constexpr double kCatchUpShare = 0.01, kCatchUpOutlier = 4;
/// A suspension ends when the context has doubled or the time of a plain step has changed by 20 %, because R(g) then
/// differs, and if the loss allows a cold start.
constexpr double kResumeDrift = 0.18232155679395463;  // log 1.2
/// A result that is missing after this many decisions never comes, because its time was not known.
constexpr uint32_t kResultWithin = 8;
/// Acceptance probes over fewer tokens are not worth their cost.
constexpr uint32_t kMinAcceptanceProbe = 4;
/// Drafts from the text must promise this much more than what they take the place of.
constexpr double kTextGain = 1.03;
/// After so many cycles with them in a row, one without; after so many without, their costs are doubted. Neither side
/// of the comparison grows old.
constexpr uint32_t kTextRun = 128;
/// After a gap in the MTP cache, the outcomes of this many cycles are not counted.
constexpr uint32_t kStaleCycles = 2;

/// A plain step is due because of a jump at another depth.
bool after_jump(const CycleCost& cost) {
    const uint64_t jump = cost.cycles_since_jump();
    return jump >= kPlainAfterJump && jump < kPlainAfterJump + 2;
}

}  // namespace
}  // namespace controller_impl

}  // namespace detail

const char* draft_reason_name(DraftReason reason) {
    switch (reason) {
        case DraftReason::none: return "none";
        case DraftReason::cold_start: return "cold start";
        case DraftReason::drafting_pays: return "drafting pays";
        case DraftReason::off_pays: return "off pays";
        case DraftReason::better_depth: return "better depth";
        case DraftReason::probe: return "probe";
        case DraftReason::unprofitable: return "unprofitable";
        case DraftReason::costs_changed: return "costs changed";
    }
    return "none";
}

namespace detail {

Controller::Controller(uint32_t max_depth, uint32_t max_text_depth)
    : max_depth_(std::min(max_depth, kMaxDepth)), max_text_depth_(std::min(max_text_depth, kMaxDepth)) {}

void Controller::new_text() {
    block_.new_text();
    text_.new_text();
    pending_ = 0;
}

void Controller::rates(double* rate) const {
    block_.expected(max_depth_, rate);
    for (uint32_t g = 0; g <= max_depth_; ++g) rate[g] /= cost_.seconds(g);
}

/// True if depth g would beat off with every draft accepted and its cost one standard deviation lower.
bool Controller::can_pay(uint32_t g) const {
    return (g + 1) * cost_.seconds(0) * std::exp(cost_.uncertainty(g)) > cost_.seconds(g);
}

bool Controller::unprofitable() const {
    if (cost_.n_sample(0) == 0) return false;
    uint32_t n_measured = 0;  // two depths make a line that is more than a guess
    for (uint32_t g = 1; g <= max_depth_; ++g) n_measured += cost_.n_sample(g) > 1;
    if (n_measured < std::min(max_depth_, 2u)) return false;
    for (uint32_t g = 1; g <= max_depth_; ++g)
        if (can_pay(g)) return false;
    return true;
}

bool Controller::may_explore() const {
    return deficit_ < controller_impl::kLossSteps + controller_impl::kLossShare * steps_;
}

/// The next depth of the cold start, or max_depth_ + 1 when it is over.
uint32_t Controller::cold_depth(uint32_t usable) {
    using namespace controller_impl;
    while (i_cold_ < sizeof kColdStart) {
        const uint32_t i = i_cold_, g = kColdStart[i], round = i / 4 == 1 ? 1 : 0;
        if (g <= max_depth_ && !(usable >> g & 1)) return 0;  // its turn comes when it can be run
        ++i_cold_;
        if (g > max_depth_ || cost_.n_sample(g) > round) continue;
        // A depth that could hardly pay with every draft accepted waits for a probe: trying it would cost a short text
        // more than drafting may. unprofitable() needs the first two measured twice.
        if (g > 2 && cost_.n_sample(0) > 0 && cost_.knows(1) &&
            (g + 1) * cost_.seconds(0) <= kColdGain * cost_.seconds(g))
            continue;
        return g;
    }
    return max_depth_ + 1;
}

/// argmax of E(g) / T(g), with hysteresis in favour of the present choice.
uint32_t Controller::choose(const double* rate, DraftReason* reason) {
    using namespace controller_impl;
    const auto best = static_cast<uint32_t>(std::max_element(rate, rate + max_depth_ + 1) - rate);
    if (best == depth_ || rate[best] < rate[depth_] * (1 + kHysteresis)) return depth_;
    *reason = best == 0 ? DraftReason::off_pays : depth_ == 0 ? DraftReason::drafting_pays : DraftReason::better_depth;
    return best;
}

/// While drafting, cycles after the last plain step until the next: few at first, because costs of an earlier session
/// may not hold, and the device may just have woken.
uint32_t Controller::plain_gap() const {
    using namespace controller_impl;
    return std::clamp(n_decision_ / 2, kMinProbeGap, kPlainEvery);
}

/// A depth that is worth measuring again now, or `chosen`.
uint32_t Controller::probe(const double* rate, uint32_t chosen) {
    using namespace controller_impl;
    ++since_probe_;
    // An outlier is measured again before anything else: was it a jump?
    const uint32_t again = cost_.surprised();
    if (again == 0 || again == chosen || (again <= max_depth_ && may_explore())) return again;
    if (chosen != 0) {
        const double share = (1 - rate[0] / rate[chosen]) / kPlainLoss,
                     gap = std::max(plain_gap() * share, double{kMinProbeGap});
        if (n_decision_ - plain_at_ >= gap || after_jump(cost_)) return 0;
    }
    if (since_probe_ < kMinProbeGap || !may_explore()) return chosen;
    uint32_t best = chosen;
    double max = rate[chosen] * (1 + kHysteresis);
    for (uint32_t g = 0; g <= max_depth_; ++g) {
        const double doubt = cost_.uncertainty(g), hope = rate[g] * std::exp(doubt);
        if (g == chosen || doubt < kProbeSigma || hope <= max) continue;
        max = hope;
        best = g;
    }
    if (best == chosen || since_probe_ < kProbeGap * std::min(1.0, (1 - rate[best] / rate[chosen]) / kProbeLoss))
        return chosen;
    since_probe_ = 0;
    return best;
}

/// `depth`, unless its time was never measured and a cycle of it is queued: then the best of the measured ones. An
/// interpolated promise is paid for once, however many cycles are queued before its result is there.
uint32_t Controller::known_or_once(uint32_t depth, const double* rate) const {
    if (cost_.knows(depth) || asked_[depth] == 0 || n_decision_ - asked_[depth] > controller_impl::kResultWithin)
        return depth;
    uint32_t best = 0;
    for (uint32_t g = 1; g <= max_depth_; ++g)
        if (cost_.knows(g) && rate[g] > rate[best]) best = g;
    return best;
}

/// Plain steps per token that drafting saves now; `usual`: at the usual levels of this text.
double Controller::saving(double* usual) const {
    double relative[kMaxDepth + 1];
    for (uint32_t g = 0; g <= max_depth_; ++g) relative[g] = cost_.seconds(g) / cost_.seconds(0);
    return block_.saving(max_depth_, relative, usual);
}

/// What off costs per token besides its plain step. While drafting, every cycle shows how well the text suits it; while
/// off only acceptance probes do, and between them a better text goes unnoticed. At the best interval
/// (acceptance_probe_due()) the probes and the delay sum to
///   sqrt(2 cost usual / run_length),
/// which is 0 for a text where drafting does not pay. Before a probe was timed, its cost is taken to be what one draft
/// adds to a step.
double Controller::exploration_cost() const {
    double usual = 0;
    saving(&usual);
    const double pass = probe_seconds_ > 0 ? probe_seconds_ : std::max(0.0, cost_.seconds(1) - cost_.seconds(0));
    return std::sqrt(2 * pass / cost_.seconds(0) * usual / block_.run_length());
}

/// Whether an acceptance probe pays now. Each of the n tokens since the last outcome has lost what drafting would have
/// saved if the text is better than estimated: `now` at the present distribution of the level, plus what jumps since
/// then may have brought, `usual` once in run_length tokens. When that sum,
///   n now + n^2 / 2 usual / run_length,
/// reaches the cost of a probe, the probe pays. (For now = 0 this is the interval sqrt(2 cost run_length / usual) that
/// minimises the sum of probes and delay.) Tokens of earlier texts count, too, although the probe cannot be over them:
/// texts shorter than this interval would never be probed.
bool Controller::acceptance_probe_due() const {
    using namespace controller_impl;
    const double plain = cost_.seconds(0), n = since_outcome_;
    if (!(probe_seconds_ > 0) || !(plain > 0)) return since_outcome_ >= kMaxAcceptanceProbe;
    const double c = probe_seconds_ / plain;
    // The cost of the last probe is spread over enough tokens, up to the limit for outliers.
    if (deficit_ > 0 &&
        std::clamp(last_probe_seconds_ / plain, c, kAcceptanceProbeOutlier * c) > n * kAcceptanceProbeShare)
        return false;
    double usual = 0;
    const double now = saving(&usual);
    return n * now + n * n / 2 * usual / block_.run_length() >= c;
}

/// Suspends drafting where no acceptance would make it pay, and resumes it when costs or context have changed. Costs
/// that were loaded do not suspend it before they were measured again. True: it was suspended right now.
bool Controller::update_suspension(uint32_t context) {
    using namespace controller_impl;
    if (suspended_) {
        // Where contexts of several lengths take turns, T(0) changes each time, and each cold start costs steps.
        if (!may_explore()) return false;
        const bool doubled = context / 2 >= std::max(suspended_context_, 1u);
        if (!doubled && std::fabs(std::log(cost_.seconds(0) / suspended_seconds_)) < kResumeDrift) return false;
        suspended_ = false;
        cost_.forget_drafts();  // the old costs no longer hold
        i_cold_ = 0;
        stale_ = kStaleCycles;
        reopened_ = true;
        return false;
    }
    if (!cost_.knows(0) || !unprofitable()) return false;
    // The machine may have been busy when these costs were saved. While suspended nothing would correct them, and they
    // would be saved again.
    if (cost_.drafts_loaded() && may_explore()) {
        cost_.forget_drafts();
        i_cold_ = 0;
        return false;
    }
    suspended_ = true;
    suspended_context_ = context;
    suspended_seconds_ = cost_.seconds(0);
    depth_ = 0;
    return true;
}

/// The depth of the next cycle while drafting is not suspended.
uint32_t Controller::next_depth(uint32_t usable, DraftReason* reason) {
    uint32_t g = cold_depth(usable);
    *reason = reopened_ ? DraftReason::costs_changed : DraftReason::cold_start;
    if (g <= max_depth_) return g;
    *reason = DraftReason::none;
    if (!cost_.knows(0)) return 0;  // no result has come yet
    double rate[kMaxDepth + 1] = {};
    rates(rate);
    // Estimates can be wrong again in each new text. Once drafting has lost too much, what they promise no longer
    // counts. Each plain step then allows another 1 % of a step.
    const bool may_draft = may_explore();
    for (g = 1; g <= max_depth_; ++g)
        if (!may_draft || !(usable >> g & 1)) rate[g] = 0;
    if (depth_ > 0) rate[0] /= 1 + exploration_cost();
    depth_ = choose(rate, reason);
    if (depth_ > 0) catch_up_[0] = catch_up_[1] = 0;
    g = known_or_once(probe(rate, depth_), rate);
    if (g != depth_) *reason = DraftReason::probe;
    return g;
}

void Controller::record_change(uint32_t depth, DraftReason reason) {
    reason_ = DraftReason::none;
    if (depth == last_) return;
    reason_ = reason != DraftReason::none ? reason : DraftReason::probe;  // back from one
    DepthChange& c = changes_[seen_.n_depth_change++ % kMaxChange];
    c.n_token = seen_.n_token;
    c.from = last_;
    c.to = depth;
    c.reason = reason_;
    last_ = depth;
}

/// The decision as if the text offered nothing.
Decision Controller::next_of_block(uint32_t context, uint32_t usable, DraftReason* reason) {
    using namespace controller_impl;
    Decision d;
    if (max_depth_ == 0) return d;
    if (update_suspension(context) && last_ != 0) *reason = DraftReason::unprofitable;
    if (suspended_) return d;
    d.depth = next_depth(usable, reason);
    // Tokens that came while off show how good the next drafts will be; none can come before their kernels exist, and
    // none while drafting has lost too much: then a probe would only delay them.
    if (usable > 1 && pending_ >= kMinAcceptanceProbe && may_explore() && acceptance_probe_due())
        d.probe_rows = std::min(pending_, kMaxAcceptanceProbe);
    return d;
}

/// How many drafts of the offer promise more than the block's present depth, or than none.
uint32_t Controller::text_depth(const TextOffer& offer, uint32_t usable) const {
    const bool stale = n_no_text_ > controller_impl::kTextRun;
    const TextDrafts::Choice text = text_.best(offer, max_text_depth_, usable, cost_, stale, may_explore());
    double gain = 1;
    if (depth_ > 0) {
        double tokens[kMaxDepth + 1];
        block_.expected(depth_, tokens);
        gain = tokens[depth_] * cost_.seconds(0) / cost_.seconds(depth_);
    }
    return text.gain > gain * controller_impl::kTextGain ? text.depth : 0;
}

/// Not in place of a cycle that explores.
bool Controller::choose_text(const TextOffer& offer, uint32_t usable, Decision* d) {
    using namespace controller_impl;
    if (offer.n == 0 || d->depth != depth_ || d->probe_rows > 0 || n_text_ >= kTextRun) return false;
    if (max_depth_ > 0 && !suspended_ && i_cold_ < sizeof kColdStart && usable > 1) return false;
    const uint32_t depth = text_depth(offer, usable);
    if (depth == 0) return false;
    // A plain step is due. Or was there a jump, of the machine or of these drafts alone? Or an outlier?
    if (after_jump(text_.cost()) || text_.cost().surprised() == 0 || n_decision_ - plain_at_ >= plain_gap()) {
        d->depth = 0;
        return false;
    }
    d->depth = depth;
    return d->from_text = true;
}

Decision Controller::next(uint32_t context, uint32_t usable, const TextOffer& offer) {
    ++n_decision_;
    cost_.enter(context);
    text_.enter(context);
    DraftReason reason = DraftReason::none;
    Decision d = next_of_block(context, usable, &reason);
    last_text_ = 0;
    if (choose_text(offer, usable, &d)) {
        ++n_text_;
        n_no_text_ = 0;
        last_text_ = d.depth;
        last_match_ = offer.match;
        reason_ = DraftReason::none;
        return d;
    }
    n_text_ = 0;
    ++n_no_text_;
    asked_[d.depth] = n_decision_;
    if (d.depth == 0) plain_at_ = n_decision_;
    if (d.depth > 0 || d.probe_rows > 0) pending_ = since_outcome_ = 0;
    record_change(d.depth, reason);
    return d;
}

void Controller::fixed(uint32_t depth, uint32_t context) {
    cost_.enter(context);
    last_ = depth;
    last_text_ = 0;
    reason_ = DraftReason::none;
}

void Controller::observe(const DraftSeen& seen) {
    using namespace controller_impl;
    const uint32_t depth = std::min(seen.depth, kMaxDepth), accepted = std::min(seen.accepted, depth);
    cost_.enter(seen.context);
    text_.enter(seen.context);
    const double of_cycle = seen.seconds - (depth == 0 ? seen.catch_up : 0);
    if (!seen.from_text) cost_.observe(depth, of_cycle);
    if (seen.from_text || depth == 0) text_.observe_cost(depth, of_cycle);
    const bool of_block = depth > 0 && !seen.from_text;
    if (depth == 0) ++pending_, ++since_outcome_;
    if (of_block && stale_ > 0)
        --stale_;
    else if (of_block)
        block_.observe(depth, accepted);
    const CycleCost& cost = seen.from_text ? text_.cost() : cost_;
    const double plain = cost_.seconds(0), n_new = accepted + 1.0, usual = cost.seconds(depth),
                 seconds = seen.seconds > 0 ? seen.seconds : usual;
    if (plain > 0 && cost_.knows(0)) {
        // Plain steps that went by, less the tokens they brought. Noise is no loss of drafting: a plain step lost only
        // what it did for the MTP cache, however long it took, and an outlier counts in part. Gains are kept only up to
        // a loss of the same size: old gains do not allow new losses.
        const bool first = !seen.from_text && cost.n_sample(depth) == 1;
        const double max_seconds = first ? kLossFirstRow * (depth + 1) * plain : kLossOutlier * usual;
        const double lost = depth == 0 ? seen.catch_up / plain : std::min(seconds, max_seconds) / plain - n_new;
        deficit_ = std::max(deficit_ + lost, -kLossSteps);
        steps_ += n_new;
        seen_.baseline_seconds += (n_new + unpriced_) * plain;
        unpriced_ = 0;
    } else {
        unpriced_ += n_new;
    }
    ++seen_.n_cycle;
    ++seen_.cycles[depth];
    if (seen.from_text) ++seen_.text_cycles, seen_.text_tokens += accepted + 1;
    seen_.n_token += accepted + 1;
    seen_.tokens[depth] += accepted + 1;
    seen_.seconds += seconds;
    for (uint32_t i = 1; i <= accepted; ++i) ++seen_.evaluated[i], ++seen_.accepted[i];
    if (accepted < depth) ++seen_.evaluated[accepted + 1];
}

void Controller::observe_offer(const TextOffer& offer, uint32_t n_known, uint32_t n_right) {
    if (n_known == 0) return;
    text_.observe(offer, n_known, n_right);
    ++seen_.text_offers;
    seen_.text_right += n_right > 0;
}

void Controller::observe_acceptance_probe(const AcceptanceProbe& probe) {
    AcceptanceProbe s = probe;
    s.n = std::min(s.n, kMaxAcceptanceProbe);
    s.hits = std::min(s.hits, s.n);
    if (s.n == 0) return;
    block_.observe(s);
    ++seen_.n_probe;
    seen_.probe_rows += s.n;
    seen_.probe_hits += s.hits;
    if (!(s.seconds > 0) || !std::isfinite(s.seconds)) return;
    seen_.probe_seconds += s.seconds;
    last_probe_seconds_ = s.seconds;
    // Outliers only ever add time; the first probe may have prepared something.
    if (probe_seconds_ <= 0 || s.seconds < probe_seconds_)
        probe_seconds_ = s.seconds;
    else
        probe_seconds_ += (s.seconds - probe_seconds_) / 8;
    if (cost_.knows(0)) deficit_ += s.seconds / cost_.seconds(0);
}

void Controller::observe_catch_up(double seconds, size_t n_row) {
    if (n_row == 0 || !(seconds > 0) || !std::isfinite(seconds)) return;
    catch_up_[1] = catch_up_[0];
    catch_up_[0] = seconds / static_cast<double>(n_row);
}

void Controller::clear_report() {
    seen_ = DraftReport();
    unpriced_ = 0;
}

void Controller::explain(DraftCycle* to) const {
    const bool text = last_text_ > 0;
    const Acceptance& acceptance = text ? text_.acceptance(last_match_) : block_;
    const CycleCost& cost = text ? text_.cost() : cost_;
    const uint32_t depth = text ? last_text_ : last_, g = std::max(depth, 1u);
    double tokens[kMaxDepth + 1];
    acceptance.expected(kMaxDepth, tokens);
    const double plain = cost.seconds(0);
    to->acceptance = acceptance.at(1);
    to->expected_tokens = tokens[depth];
    to->relative_cost = plain > 0 ? cost.seconds(depth) / plain : 0;
    to->break_even_ratio = plain > 0 ? (cost.seconds(g) / plain - 1) / g : 0;
    to->reason = reason_;
}

bool Controller::wants_drafts() const {
    using namespace controller_impl;
    const double each = catch_up_[1] > 0 ? std::min(catch_up_[0], catch_up_[1]) : catch_up_[0] / kCatchUpOutlier;
    const bool expensive = deficit_ > 0 && cost_.knows(0) && each > kCatchUpShare * cost_.seconds(0);
    return max_depth_ > 0 && !suspended_ && !expensive;
}

DraftReport Controller::report() const {
    DraftReport r = seen_;
    r.depth = last_text_ > 0 ? last_text_ : last_;
    r.unprofitable = suspended_;
    if (unpriced_ > 0) r.baseline_seconds = 0;
    for (uint64_t i = seen_.n_depth_change - std::min<uint64_t>(seen_.n_depth_change, kMaxChange);
         i < seen_.n_depth_change; ++i)
        r.depth_changes.push_back(changes_[i % kMaxChange]);
    const bool text = max_depth_ == 0 && max_text_depth_ > 0;
    const Acceptance& acceptance = text ? text_.acceptance(kLongMatch) : block_;
    const CycleCost& cost = text ? text_.cost() : cost_;
    acceptance.expected(kMaxDepth, r.expected_tokens);
    const double plain = cost.seconds(0);
    for (uint32_t g = 0; g <= kMaxDepth; ++g) {
        r.n_sample[g] = cost.n_sample(g);
        r.cycle_seconds[g] = plain > 0 ? cost.seconds(g) : 0;
        r.relative_cost[g] = plain > 0 ? r.cycle_seconds[g] / plain : 1;
        if (g == 0) continue;
        r.acceptance[g] = acceptance.at(g);
        r.break_even_ratio[g] = (r.relative_cost[g] - 1) / g;
        double low = 0, high = 2;  // 1 + a + .. + a^g grows with a: halve the interval
        for (int i = 0; i < 40; ++i) {
            const double a = (low + high) / 2;
            double tokens = 1;
            for (uint32_t k = 0; k < g; ++k) tokens = 1 + a * tokens;
            (tokens > r.relative_cost[g] ? high : low) = a;
        }
        r.break_even_acceptance[g] = high;
    }
    return r;
}

std::vector<std::byte> Controller::save_costs() const {
    std::vector<std::byte> to;
    cost_.save(&to);
    text_.cost().save(&to);
    return to;
}

Status Controller::load_costs(Span<const std::byte> from) {
    const size_t n = CycleCost::saved_bytes();
    if (from.size() != 2 * n)
        return fail(Code::bad_file, "saved draft costs have ", from.size(), " bytes, expected ", 2 * n,
                    ". Delete them: they are measured again.");
    CycleCost block = cost_, text = text_.cost();
    AUSPEX_TRY(block.load(from.subspan(0, n)));
    AUSPEX_TRY(text.load(from.subspan(n, n)));
    cost_ = block;
    text_.cost() = text;
    return {};
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

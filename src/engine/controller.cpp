#include "controller.h"

#include <algorithm>
#include <cmath>

namespace auspex {
namespace detail {
namespace controller_impl {

// ---- the machine

constexpr uint32_t kFirstOctave = 10;  // contexts below 2K share bucket 0: there attention is a small part
/// Noise of one cycle's time before it is known, and its bounds. Logs: 0.03 is 3 %.
constexpr double kNoise = 0.03, kNoiseLeast = 0.01, kNoiseMost = 0.15, kNoiseWeight = 0.03;
/// Random walk per cycle of what all depths share: heat, clocks, a context that grows.
constexpr double kSpeedWalk = 0.006;
/// Random walk per cycle of one depth against the others; after a thousand cycles without a
/// measurement 9 %, and never more than 12 %: beyond that a probe is due in any case.
constexpr double kRatioWalk = 0.003, kRatioDoubtMost = 0.12, kRatioDoubtLeast = 0.004;
/// An unmeasured depth on the line.
constexpr double kLineDoubt = 0.10;
/// A single measurement may have been an accident of two or three times the time.
constexpr double kOnceDoubt = 1.0;
/// With one measured depth there is no slope yet: further rows cost about half of the first.
constexpr double kSlopeGuess = 0.5;
/// A neighbouring octave's ratios are right to a few per cent, and its speed to more.
constexpr double kOctaveDoubt = 0.04, kOctaveSpeedDoubt = 0.15;
/// A surprise above 25 % and three standard deviations is an accident (a page fault, another process)
/// once, and taken in part; three times in a row at one depth in the same direction it is a fact.
constexpr double kAccident = 0.223, kSigmas = 3, kAccidentShare = 0.1;
constexpr uint32_t kFact = 3;
/// After a fact, how much of it the other depths may not have shared, and how much may pass again.
constexpr double kUnshared = 0.5;
/// A speed known worse than this has just jumped.
constexpr double kSpeedOpen = 0.1;

// ---- the choice

/// Another depth, off among them, must promise this much more: estimates are noisy by as much, and a change has its
/// price. Nor may it be more: staying with what is this much worse is all that may ever be lost to off.
constexpr double kHysteresis = 0.02;
/// Plain, then one, two and four drafts, twice: enough for a line, and every cycle commits tokens.
/// The third round is for those whose time was not known.
constexpr uint8_t kColdStart[] = {0, 1, 2, 4, 0, 1, 2, 4, 0, 1, 2, 4};
/// Of these, what could not gain so much with every guess right is left out.
constexpr double kColdGain = 1.1;
/// A probe measures a depth again whose cost, one standard deviation lower, would make it the best.
/// Not more often than this many cycles: a probe costs less than half a step, so below 2 %.
constexpr uint32_t kProbeGap = 48;
/// What is nearly as good costs less to try: the gap shrinks with the loss, from this share on, so that probes cost as
/// much in all, but not below so many cycles.
constexpr double kProbeLoss = 0.25;
constexpr uint32_t kProbeGapLeast = 16;
constexpr double kProbeDoubt = 0.015;  // what is known better than this is not worth a probe
/// The comparison with off must not grow stale: while drafting, a plain step is taken this many cycles
/// after its last, and two of them soon after a jump of speed that was seen at another depth. Where a plain step loses
/// less than this share of itself it comes sooner in proportion: it costs less, and a wrong price hides more.
constexpr uint32_t kPlainEvery = 256, kPlainAfterJump = 4;
constexpr double kPlainLoss = 0.5;
/// Exploring stops while drafting has lost this against off: a few steps at the start, then 1 %.
constexpr double kLossSteps = 12, kLossShare = 0.01;
/// While drafting has not earned it, acceptance_probe passes cost at most this share of plain steps.
constexpr double kAcceptanceProbeShare = 0.008, kAcceptanceProbeAccident = 2;
/// And keeping up the head's cache at most this one: it is hardly felt but where the whole model is few such blocks.
/// Of two times the smaller counts, one alone in so many parts: it may have been an accident.
constexpr double kCatchUpShare = 0.01, kCatchUpAccident = 4;
/// A lock opens when the context has doubled or a plain step takes 20 % more or less: R is another.
constexpr double kUnlockDrift = 0.18232155679395463;  // log 1.2
/// A result that has not come after this many decisions will not: its time was not known.
constexpr uint32_t kResultWithin = 8;
/// Fewer outcomes than these say too little.
constexpr uint32_t kAcceptanceProbeMin = 4;
/// Cycles whose outcomes are not counted after the head missed tokens: its cache has a hole.
constexpr uint32_t kStaleCycles = 2;
/// The draft's own probabilities, put right by what became of them; starts at "as it says".
constexpr double kCalibrationPrior = 16, kCalibrationKeep = 0.99;

double square(double x) { return x * x; }

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
        case DraftReason::costs_changed: return "unlocked";
    }
    return "none";
}

namespace detail {

// ------------------------------------------------------------------------------------- the machine

uint32_t CycleCost::bucket_of(uint32_t context) {
    uint32_t octave = 0;
    for (uint32_t c = context >> controller_impl::kFirstOctave; c > 1 && octave + 1 < kBucket; c >>= 1) ++octave;
    return octave;
}

void CycleCost::enter(uint32_t context) {
    using namespace controller_impl;
    const uint32_t b = bucket_of(context);
    if (noise_variance_ <= 0) noise_variance_ = square(kNoise);
    if (b == current_) return;
    const auto known = [&](uint32_t i) {
        for (const Ratio& r : bucket_[i].ratio)
            if (r.n > 0) return true;
        return false;
    };
    if (!known(b)) {
        uint32_t from = kBucket;  // the nearest known one, the shorter of two
        for (uint32_t d = 1; d < kBucket && from == kBucket; ++d) {
            if (d <= b && known(b - d))
                from = b - d;
            else if (b + d < kBucket && known(b + d))
                from = b + d;
        }
        if (from < kBucket) {
            bucket_[b] = bucket_[from];
            for (Ratio& r : bucket_[b].ratio) r.variance += square(kOctaveDoubt);
        }
    } else {
        bucket_[b].speed_variance += square(kOctaveSpeedDoubt);
    }
    current_ = b;
    jump_ = 0;
}

double CycleCost::variance(const Ratio& r) const {
    using namespace controller_impl;
    const double age = static_cast<double>(n_cycle_ - std::min(n_cycle_, r.when));
    return std::min(r.variance + age * square(kRatioWalk), square(kRatioDoubtMost));
}

double CycleCost::doubt(uint32_t depth) const {
    const Ratio& r = now().ratio[depth];
    if (r.n == 0) return controller_impl::kLineDoubt;
    return std::sqrt(variance(r)) + (r.n == 1 ? controller_impl::kOnceDoubt : 0);
}

double CycleCost::seconds(uint32_t depth) const {
    using namespace controller_impl;
    const Bucket& b = now();
    const auto measured = [&](uint32_t g) { return std::exp(b.speed + b.ratio[g].log); };
    if (b.ratio[depth].n > 0) return measured(depth);
    // Least squares through the measured g >= 1:  T(g) = mean_T + slope (g - mean_g).
    double n = 0, sum_g = 0, sum_t = 0, sum_gg = 0, sum_gt = 0;
    for (uint32_t g = 1; g <= kMaxDepth; ++g) {
        if (b.ratio[g].n == 0) continue;
        const double t = measured(g), x = g;
        n += 1, sum_g += x, sum_t += t, sum_gg += x * x, sum_gt += x * t;
    }
    const double plain = b.ratio[0].n > 0 ? measured(0) : 0;
    if (n == 0) return plain;
    const double spread = sum_gg - sum_g * sum_g / n;
    const double slope =
        spread > 0 ? (sum_gt - sum_g * sum_t / n) / spread : kSlopeGuess * (sum_t / n - plain) / (sum_g / n);
    return std::max(sum_t / n + std::max(slope, 0.0) * (depth - sum_g / n), plain);
}

void CycleCost::forget_drafts() {
    for (uint32_t g = 1; g <= kMaxDepth; ++g) bucket_[current_].ratio[g] = Ratio();
}

/// A fact: the speed opens for it, and the ratios of the other depths for what they may not have shared.
void CycleCost::jump(uint32_t depth, double e) {
    using namespace controller_impl;
    Bucket& b = bucket_[current_];
    b.speed_variance += e * e;
    for (uint32_t g = 0; g <= kMaxDepth; ++g)
        if (g != depth && b.ratio[g].n > 0)
            b.ratio[g].variance = std::min(variance(b.ratio[g]) + square(kUnshared * e), square(kRatioDoubtMost));
    b.ratio[depth].n_surprise = 0;
    jump_ = e;
    jump_depth_ = depth;
    jump_when_ = n_cycle_;
}

/// The last jump was seen at one depth and laid upon the machine. Does this cycle at another find the machine where
/// the jump has put it, or where it was? Then the jump was that depth's own.
void CycleCost::settle_jump(uint32_t depth, double log_t) {
    if (jump_ == 0 || depth == jump_depth_) return;
    Bucket& b = bucket_[current_];
    const double e = log_t - b.speed - b.ratio[depth].log;
    if (std::fabs(e + jump_) < std::fabs(e)) {
        b.speed -= jump_;
        b.ratio[jump_depth_].log += jump_;
    }
    jump_ = 0;
}

/// Kalman step for log t = speed + ratio(g) + noise, with the two variances kept apart:
///   e = log t - speed - ratio(g),   V = V_speed + V_ratio + V_noise,
///   speed += e V_speed / V,   ratio(g) += e V_ratio / V,   each V shrinks by its own share.
void CycleCost::observe(uint32_t depth, double seconds) {
    using namespace controller_impl;
    if (!(seconds > 0) || !std::isfinite(seconds)) return;
    const double log_t = std::log(seconds);
    Bucket& b = bucket_[current_];
    Ratio& r = b.ratio[depth];
    ++n_cycle_;
    if (noise_variance_ <= 0) noise_variance_ = square(kNoise);
    if (!b.known) {  // the first cycle of all: everything is speed
        b.known = true;
        b.speed = log_t;
        b.speed_variance = noise_variance_;
    }
    b.speed_variance += square(kSpeedWalk);
    if (r.n == 0) {
        r.log = log_t - b.speed;
        r.variance = noise_variance_ + b.speed_variance;
        r.when = n_cycle_;
        r.n = 1;
        return;
    }
    if (r.n == 1) {
        // Accidents only ever add time: of two measurements the smaller is nearer to the truth, unless
        // the speed is open, just after a fact: then the difference is the speed's.
        const double fall = std::min(log_t - b.speed - r.log, 0.0);
        (b.speed_variance > square(kSpeedOpen) ? b.speed : r.log) += fall;
        r.variance = noise_variance_;
        r.when = n_cycle_;
        r.n = 2;
        return;
    }
    r.variance = std::max(variance(r), square(kRatioDoubtLeast));
    r.when = n_cycle_;
    settle_jump(depth, log_t);
    double e = log_t - b.speed - r.log, still_open = 0;
    double total = b.speed_variance + r.variance + noise_variance_;
    const double bound = std::max(kAccident, kSigmas * std::sqrt(total));
    if (std::fabs(e) > bound) {
        r.n_surprise = r.surprise * e > 0 ? r.n_surprise + 1 : 1;
        r.surprise = e;
        surprised_ = depth;
        if (r.n_surprise >= kFact) {
            jump(depth, e);
            total += e * e;
            still_open = square(kUnshared * e);
        } else {
            e = kAccidentShare * std::copysign(bound, e);
        }
    } else {
        r.n_surprise = 0;
        noise_variance_ += kNoiseWeight * (e * e - noise_variance_);
        noise_variance_ = std::clamp(noise_variance_, square(kNoiseLeast), square(kNoiseMost));
    }
    const double to_speed = b.speed_variance / total, to_ratio = r.variance / total;
    b.speed += to_speed * e;
    r.log += to_ratio * e;
    b.speed_variance = std::max(b.speed_variance - to_speed * b.speed_variance, still_open);
    r.variance -= to_ratio * r.variance;
    ++r.n;
}

// -------------------------------------------------------------------------------------- the choice

Controller::Controller(uint32_t max_depth) : max_depth_(std::min(max_depth, kMaxDepth)) {}

void Controller::new_text() {
    text_.new_text();
    pending_ = 0;
}

void Controller::rates(double* rate) const {
    text_.expected(max_depth_, rate);
    for (uint32_t g = 0; g <= max_depth_; ++g) rate[g] /= cost_.seconds(g);
}

/// Would depth g beat off if every draft were accepted and its cost were at the low end of what is known?
bool Controller::can_pay(uint32_t g) const {
    return (g + 1) * cost_.seconds(0) * std::exp(cost_.doubt(g)) > cost_.seconds(g);
}

bool Controller::unprofitable() const {
    if (cost_.samples(0) == 0) return false;
    uint32_t n_measured = 0;  // two depths make a line that is more than a guess
    for (uint32_t g = 1; g <= max_depth_; ++g) n_measured += cost_.samples(g) > 1;
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
        if (g > max_depth_ || cost_.samples(g) > round) continue;
        // What could hardly pay with every guess right, as far as is known, waits for a probe: trying it would cost a
        // short text more than drafting may. The lock wants to have seen the first two twice.
        if (g > 2 && cost_.samples(0) > 0 && cost_.knows(1) &&
            (g + 1) * cost_.seconds(0) <= kColdGain * cost_.seconds(g))
            continue;
        return g;
    }
    return max_depth_ + 1;
}

/// argmax of E(g) / T(g), with hysteresis against the standing choice.
uint32_t Controller::choose(const double* rate, DraftReason* reason) {
    using namespace controller_impl;
    const auto best = static_cast<uint32_t>(std::max_element(rate, rate + max_depth_ + 1) - rate);
    if (best == depth_ || rate[best] < rate[depth_] * (1 + kHysteresis)) return depth_;
    *reason = best == 0 ? DraftReason::off_pays : depth_ == 0 ? DraftReason::drafting_pays : DraftReason::better_depth;
    return best;
}

/// A depth that is worth measuring again now, or `chosen`.
uint32_t Controller::probe(const double* rate, uint32_t chosen) {
    using namespace controller_impl;
    ++since_probe_;
    // What surprised is looked at again before anything else: an accident, or a fact?
    const uint32_t again = cost_.surprised();
    if (again == 0 || again == chosen || (again <= max_depth_ && may_explore())) return again;
    if (chosen != 0) {
        const uint64_t jump = cost_.cycles_since_jump();
        const double share = (1 - rate[0] / rate[chosen]) / kPlainLoss,
                     gap = std::clamp(kPlainEvery * share, double{kProbeGapLeast}, double{kPlainEvery});
        if (static_cast<double>(cost_.age(0)) >= gap || (jump >= kPlainAfterJump && jump < kPlainAfterJump + 2))
            return 0;
    }
    if (since_probe_ < kProbeGapLeast || !may_explore()) return chosen;
    uint32_t best = chosen;
    double most = rate[chosen] * (1 + kHysteresis);
    for (uint32_t g = 0; g <= max_depth_; ++g) {
        const double doubt = cost_.doubt(g), hope = rate[g] * std::exp(doubt);
        if (g == chosen || doubt < kProbeDoubt || hope <= most) continue;
        most = hope;
        best = g;
    }
    if (best == chosen || since_probe_ < kProbeGap * std::min(1.0, (1 - rate[best] / rate[chosen]) / kProbeLoss))
        return chosen;
    since_probe_ = 0;
    return best;
}

/// `depth`, unless its time was never seen and a cycle of it is on its way: then the best of those known. What
/// a line promises is paid for once, however many cycles are queued before the result is there.
uint32_t Controller::known_or_once(uint32_t depth, const double* rate) {
    ++n_decision_;
    if (cost_.knows(depth)) return depth;
    if (asked_[depth] == 0 || n_decision_ - asked_[depth] > controller_impl::kResultWithin) {
        asked_[depth] = n_decision_;
        return depth;
    }
    uint32_t best = 0;
    for (uint32_t g = 1; g <= max_depth_; ++g)
        if (cost_.knows(g) && rate[g] > rate[best]) best = g;
    return best;
}

/// What drafting saves per token, in plain steps, as the filter stands; `usual`: as this text usually is.
double Controller::saving(double* usual) const {
    double relative[kMaxDepth + 1];
    for (uint32_t g = 0; g <= max_depth_; ++g) relative[g] = cost_.seconds(g) / cost_.seconds(0);
    return text_.saving(max_depth_, relative, usual);
}

/// What off costs per token beside its plain step: while drafting, every cycle tells how good the text is for it; while
/// off only passes do, and between them what was better is missed. At the best interval (acceptance_probe_due()) the
/// two sum to
///   sqrt(2 cost usual / run_length),
/// nothing for a text that never pays. Before a pass was timed, its cost is taken for what one draft adds to a step.
double Controller::exploration_cost() const {
    double usual = 0;
    saving(&usual);
    const double pass =
        acceptance_probe_seconds_ > 0 ? acceptance_probe_seconds_ : std::max(0.0, cost_.seconds(1) - cost_.seconds(0));
    return std::sqrt(2 * pass / cost_.seconds(0) * usual / text_.run_length());
}

/// Is it time for a acceptance_probe pass over the `pending_` tokens since the last? Each of them cost what
/// drafting would have saved if the text is better than thought: `now` as the filter stands, plus what
/// jumps since then may have brought, `usual` once in run_length tokens. When that sum,
///   n now + n^2 / 2 usual / run_length,
/// reaches the cost of a pass, the pass pays. (For now = 0 this is the interval sqrt(2 cost run_length /
/// usual) that minimises the sum of passes and delay.)
bool Controller::acceptance_probe_due() const {
    using namespace controller_impl;
    const double plain = cost_.seconds(0), n = pending_;
    if (!(acceptance_probe_seconds_ > 0) || !(plain > 0)) return pending_ >= kMaxAcceptanceProbe;
    const double c = acceptance_probe_seconds_ / plain;
    // What the last one took is paid off, accident or not, but for one so large that it will hardly come again.
    if (deficit_ > 0 &&
        std::clamp(last_acceptance_probe_seconds_ / plain, c, kAcceptanceProbeAccident * c) > n * kAcceptanceProbeShare)
        return false;
    double usual = 0;
    const double now = saving(&usual);
    return n * now + n * n / 2 * usual / text_.run_length() >= c;
}

Decision Controller::next(uint32_t context, uint32_t usable) {
    using namespace controller_impl;
    cost_.enter(context);
    Decision d;
    DraftReason reason = DraftReason::none;
    double rate[kMaxDepth + 1] = {};
    const bool measured = cost_.knows(0);
    if (locked_) {
        const bool far = context / 2 >= std::max(locked_context_, 1u);
        if (far || std::fabs(std::log(cost_.seconds(0) / locked_seconds_)) >= kUnlockDrift) {
            locked_ = false;
            cost_.forget_drafts();  // measured afresh: the old costs are of another machine, as it were
            i_cold_ = 0;
            stale_ = kStaleCycles;
            reopened_ = true;
        }
    } else if (measured && unprofitable()) {
        locked_ = true;
        locked_context_ = context;
        locked_seconds_ = cost_.seconds(0);
        if (last_ != 0) reason = DraftReason::unprofitable;
        depth_ = 0;
    }
    if (!locked_ && max_depth_ > 0) {
        uint32_t g = cold_depth(usable);
        reason = reopened_ ? DraftReason::costs_changed : DraftReason::cold_start;
        if (g > max_depth_) {
            reason = DraftReason::none;
            if (measured) {
                rates(rate);
                for (g = 1; g <= max_depth_; ++g)
                    if (!(usable >> g & 1)) rate[g] = 0;
                if (depth_ > 0) rate[0] /= 1 + exploration_cost();
                depth_ = choose(rate, &reason);
                if (depth_ > 0) catch_up_[0] = catch_up_[1] = 0;
                g = probe(rate, depth_);
                g = known_or_once(g, rate);
                if (g != depth_) reason = DraftReason::probe;
            } else {
                g = 0;  // the first results are still on their way
            }
        }
        d.depth = g;
        // What came while off says how good the drafts to come will be; none can come before their kernels are there.
        if (usable > 1 && pending_ >= kAcceptanceProbeMin && acceptance_probe_due())
            d.probe_rows = std::min(pending_, kMaxAcceptanceProbe);
        if (g > 0 || d.probe_rows > 0) pending_ = 0;
    }
    reason_ = DraftReason::none;
    if (d.depth != last_) {
        reason_ = reason != DraftReason::none ? reason : DraftReason::probe;  // back from one
        DepthChange& s = switches_[seen_.n_depth_change++ % kMaxSwitch];
        s.n_token = seen_.n_token;
        s.from = last_;
        s.to = d.depth;
        s.reason = reason_;
        last_ = d.depth;
    }
    return d;
}

void Controller::fixed(uint32_t depth, uint32_t context) {
    cost_.enter(context);
    last_ = depth;
    reason_ = DraftReason::none;
}

void Controller::observe(const DraftSeen& seen) {
    using namespace controller_impl;
    const uint32_t depth = std::min(seen.depth, kMaxDepth), accepted = std::min(seen.accepted, depth);
    cost_.enter(seen.context);
    cost_.observe(depth, seen.seconds - (depth == 0 ? seen.catch_up : 0));
    if (depth == 0) {
        ++pending_;
    } else if (stale_ > 0) {
        --stale_;
    } else {
        text_.cycle(depth, accepted);
        if (seen.confidence > 0) {
            calibration_hit_ = calibration_hit_ * kCalibrationKeep + accepted;
            calibration_hoped_ = calibration_hoped_ * kCalibrationKeep + seen.confidence;
        }
    }
    const double plain = cost_.seconds(0), n_new = accepted + 1.0,
                 seconds = seen.seconds > 0 ? seen.seconds : cost_.seconds(depth);
    if (plain > 0 && cost_.knows(0)) {
        // Plain steps that went by, less the tokens they brought. Gains are kept only up to what pays
        // for a loss of the same size: old gains buy no new losses.
        deficit_ = std::max(deficit_ + seconds / plain - n_new, -kLossSteps);
        steps_ += n_new;
        seen_.baseline_seconds += n_new * plain;
    } else {
        seen_.baseline_seconds += seconds;
    }
    ++seen_.n_cycle;
    ++seen_.cycles[depth];
    seen_.n_token += accepted + 1;
    seen_.tokens[depth] += accepted + 1;
    seen_.seconds += seconds;
    for (uint32_t i = 1; i <= accepted; ++i) ++seen_.evaluated[i], ++seen_.accepted[i];
    if (accepted < depth) ++seen_.evaluated[accepted + 1];
}

void Controller::observe_acceptance_probe(const AcceptanceProbe& seen) {
    AcceptanceProbe s = seen;
    s.n = std::min(s.n, kMaxAcceptanceProbe);
    s.hits = std::min(s.hits, s.n);
    if (s.n == 0) return;
    text_.acceptance_probe(s);
    ++seen_.n_probe;
    seen_.probe_rows += s.n;
    seen_.probe_hits += s.hits;
    if (!(s.seconds > 0) || !std::isfinite(s.seconds)) return;
    seen_.probe_seconds += s.seconds;
    last_acceptance_probe_seconds_ = s.seconds;
    // Accidents only ever add time; the first pass may have prepared something.
    if (acceptance_probe_seconds_ <= 0 || s.seconds < acceptance_probe_seconds_)
        acceptance_probe_seconds_ = s.seconds;
    else
        acceptance_probe_seconds_ += (s.seconds - acceptance_probe_seconds_) / 8;
    if (cost_.knows(0)) deficit_ += s.seconds / cost_.seconds(0);
}

void Controller::observe_catch_up(double seconds, size_t n_row) {
    if (n_row == 0 || !(seconds > 0) || !std::isfinite(seconds)) return;
    catch_up_[1] = catch_up_[0];
    catch_up_[0] = seconds / static_cast<double>(n_row);
}

/// One more draft brings S_(d+1) tokens for T(d+1) - T(d) seconds: it pays when that is a better rate
/// than the best whole cycle has.
bool Controller::keep_drafting(uint32_t drafted, double confidence) const {
    using namespace controller_impl;
    if (drafted >= max_depth_ || drafted >= kMaxDepth) return false;
    if (drafted == 0 || !cost_.knows(0)) return true;
    const double calibration = (calibration_hit_ + kCalibrationPrior) / (calibration_hoped_ + kCalibrationPrior);
    const double survival = std::clamp(confidence * calibration, 0.0, 1.0) * text_.at(drafted + 1);
    double rate[kMaxDepth + 1];
    rates(rate);
    const double most = *std::max_element(rate, rate + max_depth_ + 1);
    return survival > most * (cost_.seconds(drafted + 1) - cost_.seconds(drafted));
}

void Controller::clear_report() { seen_ = DraftReport(); }

void Controller::explain(DraftCycle* to) const {
    double tokens[kMaxDepth + 1];
    text_.expected(kMaxDepth, tokens);
    const double plain = cost_.seconds(0);
    const uint32_t g = std::max(last_, 1u);
    to->acceptance = text_.at(1);
    to->expected_tokens = tokens[last_];
    to->relative_cost = plain > 0 ? cost_.seconds(last_) / plain : 0;
    to->break_even_ratio = plain > 0 ? (cost_.seconds(g) / plain - 1) / g : 0;
    to->reason = reason_;
}

bool Controller::wants_drafts() const {
    using namespace controller_impl;
    const double each = catch_up_[1] > 0 ? std::min(catch_up_[0], catch_up_[1]) : catch_up_[0] / kCatchUpAccident;
    const bool dear = deficit_ > 0 && cost_.knows(0) && each > kCatchUpShare * cost_.seconds(0);
    return max_depth_ > 0 && !locked_ && !dear;
}

DraftReport Controller::report() const {
    DraftReport r = seen_;
    r.depth = last_;
    r.unprofitable = locked_;
    for (uint64_t i = seen_.n_depth_change - std::min<uint64_t>(seen_.n_depth_change, kMaxSwitch);
         i < seen_.n_depth_change; ++i)
        r.depth_changes.push_back(switches_[i % kMaxSwitch]);
    text_.expected(kMaxDepth, r.expected_tokens);
    const double plain = cost_.seconds(0);
    for (uint32_t g = 0; g <= kMaxDepth; ++g) {
        r.n_sample[g] = cost_.samples(g);
        r.cycle_seconds[g] = plain > 0 ? cost_.seconds(g) : 0;
        r.relative_cost[g] = plain > 0 ? r.cycle_seconds[g] / plain : 1;
        if (g == 0) continue;
        r.acceptance[g] = text_.at(g);
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
    return to;
}

Status Controller::load_costs(Span<const std::byte> from) { return cost_.load(from); }

// ----------------------------------------------------------------------------- costs as bytes

namespace controller_impl {
/// "AXC" and a version; the layout is little-endian words, as everywhere in the formats we write.
constexpr uint32_t kMagic = 0x01435841;
constexpr uint32_t kSavedRatio = 2 * 8 + 4;  // log, variance, n
constexpr uint32_t kSavedBucket = 1 + 8 + (kMaxDepth + 1) * kSavedRatio;
constexpr size_t kSavedBytes = 4 + 8 + CycleCost::kBucket * kSavedBucket + 4;
/// Bounds of what can have been learned: a cycle of a nanosecond .. a day.
constexpr double kLogLeast = -21, kLogMost = 12;

uint32_t check_sum(const std::byte* p, size_t n) {  // FNV-1a
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; ++i) h = (h ^ static_cast<uint32_t>(p[i])) * 16777619u;
    return h;
}
template <class T>
void put(std::vector<std::byte>* to, T v) {
    std::byte b[sizeof v];
    std::memcpy(b, &v, sizeof v);
    to->insert(to->end(), b, b + sizeof v);
}
template <class T>
T get(const std::byte** p) {
    const T v = detail::load<T>(*p);
    *p += sizeof v;
    return v;
}
}  // namespace controller_impl

void CycleCost::save(std::vector<std::byte>* to) const {
    using namespace controller_impl;
    to->clear();
    to->reserve(kSavedBytes);
    put(to, kMagic);
    put(to, noise_variance_);
    for (const Bucket& b : bucket_) {
        put(to, static_cast<uint8_t>(b.known));
        put(to, b.speed);
        for (const Ratio& r : b.ratio) put(to, r.log), put(to, variance(r)), put(to, r.n);
    }
    put(to, check_sum(to->data(), to->size()));
}

Status CycleCost::load(Span<const std::byte> from) {
    using namespace controller_impl;
    if (from.size() != kSavedBytes)
        return fail(Code::bad_file, "saved draft costs have ", from.size(), " bytes, expected ", kSavedBytes,
                    ". Delete them: they are measured again.");
    const std::byte* p = from.data();
    if (get<uint32_t>(&p) != kMagic)
        return fail(Code::bad_file,
                    "saved draft costs do not begin with this version's mark. Delete them: they are measured again.");
    if (detail::load<uint32_t>(from.data() + kSavedBytes - 4) != check_sum(from.data(), kSavedBytes - 4))
        return fail(Code::bad_file,
                    "saved draft costs do not match their check sum. Delete them: they are measured again.");
    CycleCost loaded;
    bool fine = true;
    const auto within = [&](double v, double low, double high) {
        fine = fine && v >= low && v <= high;  // false for NaN
        return v;
    };
    loaded.noise_variance_ = within(get<double>(&p), 0, 1);
    for (Bucket& b : loaded.bucket_) {
        b.known = get<uint8_t>(&p) != 0;
        b.speed = within(get<double>(&p), kLogLeast, kLogMost);
        b.speed_variance = square(kOctaveSpeedDoubt);  // the clock may be another today
        for (Ratio& r : b.ratio) {
            r.log = within(get<double>(&p), kLogLeast, kLogMost);
            r.variance = within(get<double>(&p), 0, 1);
            r.n = get<uint32_t>(&p);
        }
    }
    if (!fine)
        return fail(Code::bad_file,
                    "saved draft costs hold a value out of range. Delete them: they are measured again.");
    loaded.current_ = current_;
    *this = loaded;
    return {};
}

}  // namespace detail
}  // namespace auspex

#include "cycle_cost.h"

#include <algorithm>
#include <cmath>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace cycle_cost_impl {
namespace {

constexpr uint32_t kFirstOctave = 10;  // contexts below 2K share bucket 0: there attention is a small part
/// Noise of one cycle's time before it is known, and its bounds. Logs: 0.03 is 3 %.
constexpr double kNoise = 0.03, kMinNoise = 0.01, kMaxNoise = 0.15, kNoiseWeight = 0.03;
/// Random walk per cycle of what all depths share: heat, clocks, a context that grows.
constexpr double kSpeedWalk = 0.006;
/// Random walk per cycle of one depth against the others: 9 % after a thousand cycles without a measurement, and never
/// more than 12 %, at which a probe is due in any case.
constexpr double kRatioWalk = 0.003, kMaxRatioSigma = 0.12, kMinRatioSigma = 0.004;
/// Uncertainty of a depth that is interpolated.
constexpr double kLineSigma = 0.10;
/// And of one that was measured once: that may have been an outlier of two or three times the true time.
constexpr double kOnceSigma = 1.0;
/// With one measured depth there is no slope yet: further rows cost about half of the first.
constexpr double kSlopeGuess = 0.5;
/// A neighbouring octave's ratios are right to a few per cent, and its speed to more.
constexpr double kOctaveSigma = 0.04, kOctaveSpeedSigma = 0.15;
/// A surprise above 25 % and three standard deviations is an outlier (a page fault, another process) and counts in
/// part. Three in a row at one depth in the same direction are a jump.
constexpr double kOutlier = 0.223, kSigmas = 3, kOutlierShare = 0.1;
constexpr uint32_t kJumpAfter = 3;
/// Only within so many cycles can a cycle at another depth show that a jump was one depth's own.
constexpr uint64_t kJumpOpen = 32;
/// After a jump: the share of it that the other depths may not have, and that may pass again.
constexpr double kUnshared = 0.5;
/// Cycles after loading in which all that differs is attributed to the speed: a process starts slowly, often at one
/// depth alone, and that depth's ratio would take a share each time.
constexpr uint64_t kYoung = 64;
/// A reference that was not measured for so many cycles is replaced by the depth that was just run.
constexpr uint64_t kReferenceAge = 64;
/// A ratio that was not measured for so many cycles is bounded by the line through those that were.
constexpr uint64_t kRecent = 512;
/// By so much, in logs, a depth may seem to take longer than a deeper one.
constexpr double kMonotone = 0.05;
/// A speed that is less certain than this has just jumped.
constexpr double kSpeedOpen = 0.1;

double square(double x) { return x * x; }

}  // namespace
}  // namespace cycle_cost_impl

uint32_t CycleCost::bucket_of(uint32_t context) {
    uint32_t octave = 0;
    for (uint32_t c = context >> cycle_cost_impl::kFirstOctave; c > 1 && octave + 1 < kBucket; c >>= 1) ++octave;
    return octave;
}

void CycleCost::enter(uint32_t context) {
    using namespace cycle_cost_impl;
    const uint32_t b = bucket_of(context);
    if (b == current_) return;
    const auto known = [&](uint32_t i) {
        for (const Ratio& r : bucket_[i].ratio)
            if (r.n > 0) return true;
        return false;
    };
    if (!known(b)) {
        uint32_t from = kBucket;  // the nearest known one; of two, that of the shorter context
        for (uint32_t d = 1; d < kBucket && from == kBucket; ++d) {
            if (d <= b && known(b - d))
                from = b - d;
            else if (b + d < kBucket && known(b + d))
                from = b + d;
        }
        if (from < kBucket) {
            bucket_[b] = bucket_[from];
            for (Ratio& r : bucket_[b].ratio) r.variance += square(kOctaveSigma);
        }
    } else {
        bucket_[b].speed_variance += square(kOctaveSpeedSigma);
    }
    current_ = b;
    jump_ = 0;
}

double CycleCost::variance(const Ratio& r) const {
    using namespace cycle_cost_impl;
    const double age = static_cast<double>(n_cycle_ - std::min(n_cycle_, r.when));
    return std::min(r.variance + age * square(kRatioWalk), square(kMaxRatioSigma));
}

double CycleCost::uncertainty(uint32_t depth) const {
    const Ratio& r = now().ratio[depth];
    if (r.n == 0) return cycle_cost_impl::kLineSigma;
    return std::sqrt(variance(r)) + (r.n == 1 ? cycle_cost_impl::kOnceSigma : 0);
}

double CycleCost::measured(uint32_t depth) const {
    const Bucket& b = now();
    return b.ratio[depth].n > 0 ? std::exp(b.speed + b.ratio[depth].log) : 0;
}

double CycleCost::seconds(uint32_t depth) const {
    using namespace cycle_cost_impl;
    const double own = measured(depth);
    if (own == 0) {
        const double line = on_line(depth, 1, false);
        return line > 0 ? line : measured(0);
    }
    const bool once = n_sample(depth) == 1;
    if (depth == 0 || (!once && holds(depth))) return own;
    // What other depths took tells more than an old ratio, and than a first cycle, in which a driver may have prepared
    // a kernel. A time that is too high would keep its depth from ever being measured again.
    const double line = on_line(depth, 2, true);
    const bool too_high = line > 0 && own > line * std::exp(once ? kOutlier : kMaxRatioSigma);
    return too_high ? line * std::exp(kMaxRatioSigma) : own;
}

/// Nothing suggests that this depth takes another time by now.
bool CycleCost::holds(uint32_t depth) const {
    return age(depth) <= cycle_cost_impl::kRecent && !now().ratio[depth].doubted;
}

/// Least squares through the g >= 1 that were measured at least min_n times; `holding`: only those whose time holds:
///   T(g) = mean_T + slope (g - mean_g).
/// 0 if there are none.
double CycleCost::on_line(uint32_t depth, uint32_t min_n, bool holding) const {
    using namespace cycle_cost_impl;
    double n = 0, sum_g = 0, sum_t = 0, sum_gg = 0, sum_gt = 0;
    for (uint32_t g = 1; g <= kMaxDepth; ++g) {
        if (n_sample(g) < min_n || (holding && !holds(g))) continue;
        const double t = measured(g), x = g;
        n += 1, sum_g += x, sum_t += t, sum_gg += x * x, sum_gt += x * t;
    }
    if (n == 0) return 0;
    const double plain = measured(0);
    const double spread = sum_gg - sum_g * sum_g / n;
    const double slope =
        spread > 0 ? (sum_gt - sum_g * sum_t / n) / spread : kSlopeGuess * (sum_t / n - plain) / (sum_g / n);
    return std::max(sum_t / n + std::max(slope, 0.0) * (depth - sum_g / n), plain);
}

void CycleCost::forget_drafts() {
    for (uint32_t g = 1; g <= kMaxDepth; ++g) bucket_[current_].ratio[g] = Ratio();
}

/// The speed becomes uncertain by the jump, and the ratios of the other depths by what they may not have shared.
void CycleCost::jump(uint32_t depth, double e) {
    using namespace cycle_cost_impl;
    Bucket& b = bucket_[current_];
    b.speed_variance += e * e;
    for (uint32_t g = 0; g <= kMaxDepth; ++g)
        if (g != depth && b.ratio[g].n > 0)
            b.ratio[g].variance = std::min(variance(b.ratio[g]) + square(kUnshared * e), square(kMaxRatioSigma));
    b.ratio[depth].n_surprise = 0;
    jump_ = e;
    jump_depth_ = depth;
    jump_when_ = n_cycle_;
}

/// The last jump was seen at one depth and attributed to the speed. If this cycle at another depth finds the speed of
/// before the jump, the jump belongs to that one depth's ratio. Long after it, such a cycle is rather an outlier.
/// What made one draft depth cheaper may have made the others cheaper, too. Their ratios stay, but the line bounds them
/// until they are measured again.
void CycleCost::attribute_jump(uint32_t depth, double log_t) {
    if (jump_ == 0 || depth == jump_depth_) return;
    Bucket& b = bucket_[current_];
    const double e = log_t - b.speed - b.ratio[depth].log;
    if (std::fabs(e + jump_) < std::fabs(e) && n_cycle_ - jump_when_ <= cycle_cost_impl::kJumpOpen) {
        b.speed -= jump_;
        b.ratio[jump_depth_].log += jump_;
        if (jump_depth_ > 0 && jump_ < 0)
            for (uint32_t g = 1; g <= kMaxDepth; ++g) b.ratio[g].doubted = g != jump_depth_;
    }
    jump_ = 0;
}

void CycleCost::first_sample(Bucket& b, Ratio& r, double log_t) {
    r.log = log_t - b.speed;
    r.variance = noise_variance_ + b.speed_variance;
    r.when = n_cycle_;
    r.n = 1;
}

/// Outliers only ever add time: of two measurements the smaller is nearer to the truth, unless the speed is uncertain
/// just after a jump: then the difference belongs to the speed.
void CycleCost::second_sample(Bucket& b, Ratio& r, double log_t) {
    using namespace cycle_cost_impl;
    const double fall = std::min(log_t - b.speed - r.log, 0.0);
    (b.speed_variance > square(kSpeedOpen) ? b.speed : r.log) += fall;
    r.variance = noise_variance_;
    r.when = n_cycle_;
    r.n = 2;
}

void CycleCost::observe(uint32_t depth, double seconds) {
    if (!(seconds > 0) || !std::isfinite(seconds)) return;
    filter(depth, seconds);
    bucket_[current_].ratio[depth].doubted = false;
    forget_outliers(depth);
    bound_plain(depth);
}

/// A deeper cycle does all that a cycle with fewer drafts does, and more: what took longer there was an outlier.
void CycleCost::forget_outliers(uint32_t depth) {
    Bucket& b = bucket_[current_];
    for (uint32_t g = 1; g < depth; ++g)
        if (b.ratio[g].n > 0 && b.ratio[g].log > b.ratio[depth].log + cycle_cost_impl::kMonotone) b.ratio[g] = Ratio();
}

bool CycleCost::drafts_loaded() const {
    const Bucket& b = now();
    return std::all_of(b.ratio + 1, b.ratio + kMaxDepth + 1, [](const Ratio& r) { return r.when == 0; });
}

bool CycleCost::young() const { return loaded_ && n_cycle_ < cycle_cost_impl::kYoung; }

/// A plain step takes no longer than a cycle with drafts. A loaded ratio stays as it is for kYoung cycles, so one that
/// is too high would survive any number of shorter processes. It is lowered and not forgotten: all depths are compared
/// with it.
void CycleCost::bound_plain(uint32_t depth) {
    Ratio& plain = bucket_[current_].ratio[0];
    if (young() && plain.n > 0) plain.log = std::min(plain.log, bucket_[current_].ratio[depth].log);
}

/// Kalman step for log t = speed + ratio(g) + noise, with the two variances kept apart:
///   e = log t - speed - ratio(g),   V = V_speed + V_ratio + V_noise,
///   speed += e V_speed / V,   ratio(g) += e V_ratio / V,   each V shrinks by its own share.
void CycleCost::filter(uint32_t depth, double seconds) {
    using namespace cycle_cost_impl;
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
    if (r.n == 0) return first_sample(b, r, log_t);
    if (r.n == 1) return second_sample(b, r, log_t);
    if (age(b.reference) > kReferenceAge) b.reference = depth;
    r.variance = depth == b.reference ? square(kMinRatioSigma) : std::max(variance(r), square(kMinRatioSigma));
    r.when = n_cycle_;
    attribute_jump(depth, log_t);
    double e = log_t - b.speed - r.log, still_open = 0;
    double total = b.speed_variance + r.variance + noise_variance_;
    const double bound = std::max(kOutlier, kSigmas * std::sqrt(total));
    if (std::fabs(e) > bound) {
        r.n_surprise = r.surprise * e > 0 ? r.n_surprise + 1 : 1;
        r.surprise = e;
        surprised_ = depth;
        if (r.n_surprise >= kJumpAfter) {
            jump(depth, e);
            total += e * e;
            still_open = square(kUnshared * e);
        } else {
            e = kOutlierShare * std::copysign(bound, e);
        }
    } else {
        r.n_surprise = 0;
        noise_variance_ += kNoiseWeight * (e * e - noise_variance_);
        noise_variance_ = std::clamp(noise_variance_, square(kMinNoise), square(kMaxNoise));
    }
    const bool fixed = young() || depth == b.reference;
    const double to_speed = b.speed_variance / total, to_ratio = fixed ? 0 : r.variance / total;
    b.speed += to_speed * e;
    r.log += to_ratio * e;
    b.speed_variance = std::max(b.speed_variance - to_speed * b.speed_variance, still_open);
    r.variance -= to_ratio * r.variance;
    ++r.n;
}

// ----------------------------------------------------------------------------- costs as bytes

namespace cycle_cost_impl {
namespace {

/// "AXC" and a version; the layout is little-endian words, as everywhere in the formats we write.
constexpr uint32_t kMagic = 0x01435841;
constexpr uint32_t kSavedRatio = 2 * 8 + 4;  // log, variance, n
constexpr uint32_t kSavedBucket = 1 + 8 + (kMaxDepth + 1) * kSavedRatio;
constexpr size_t kSavedBytes = 4 + 8 + CycleCost::kBucket * kSavedBucket + 4;
/// Bounds of what can have been learned: a cycle of a nanosecond .. a day.
constexpr double kMinLog = -21, kMaxLog = 12;

uint32_t checksum(const std::byte* p, size_t n) {  // FNV-1a
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

}  // namespace
}  // namespace cycle_cost_impl

void CycleCost::save(std::vector<std::byte>* to) const {
    using namespace cycle_cost_impl;
    const size_t begin = to->size();
    put(to, kMagic);
    put(to, noise_variance_);
    for (const Bucket& b : bucket_) {
        put(to, static_cast<uint8_t>(b.known));
        put(to, b.speed);
        for (const Ratio& r : b.ratio) put(to, r.log), put(to, variance(r)), put(to, r.n);
    }
    put(to, checksum(to->data() + begin, to->size() - begin));
}

size_t CycleCost::saved_bytes() { return cycle_cost_impl::kSavedBytes; }

Status CycleCost::load(Span<const std::byte> from) {
    using namespace cycle_cost_impl;
    const std::byte* p = from.data();
    if (get<uint32_t>(&p) != kMagic)
        return fail(Code::bad_file, "saved draft costs are of another version. Delete them: they are measured again.");
    if (detail::load<uint32_t>(from.data() + kSavedBytes - 4) != checksum(from.data(), kSavedBytes - 4))
        return fail(Code::bad_file,
                    "saved draft costs do not match their checksum. Delete them: they are measured again.");
    CycleCost loaded;
    bool fine = true;
    const auto within = [&](double v, double low, double high) {
        fine = fine && v >= low && v <= high;  // false for NaN
        return v;
    };
    loaded.noise_variance_ = within(get<double>(&p), 0, 1);
    for (Bucket& b : loaded.bucket_) {
        b.known = get<uint8_t>(&p) != 0;
        b.speed = within(get<double>(&p), kMinLog, kMaxLog);
        b.speed_variance = square(kOctaveSpeedSigma);  // the clock may differ today
        for (Ratio& r : b.ratio) {
            r.log = within(get<double>(&p), kMinLog, kMaxLog);
            r.variance = within(get<double>(&p), 0, 1);
            r.n = get<uint32_t>(&p);
        }
    }
    if (!fine)
        return fail(Code::bad_file,
                    "saved draft costs hold a value out of range. Delete them: they are measured again.");
    loaded.current_ = current_;
    loaded.loaded_ = true;
    *this = loaded;
    return {};
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

#include "thread_count.h"

#include <algorithm>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace thread_count_impl {

constexpr uint32_t kWindow = 16;    ///< runs after which it is decided whether to try another number
constexpr uint32_t kTrial = 8;      ///< runs of a trial
constexpr double kGain = 0.95;      ///< of the usual time: what a trial must stay below
constexpr uint32_t kLateShare = 4;  ///< one late run in so many lets fewer threads be tried
constexpr uint32_t kFirstGap = 128, kLongestGap = 8192;
constexpr uint32_t kStale = 256;     ///< runs without one of an owner, after which another takes its place
constexpr double kWeight = 1.0 / 8;  ///< of a new time

}  // namespace thread_count_impl

void ThreadCount::observe(uint32_t kind, double seconds, bool late, uint32_t owner) {
    using namespace thread_count_impl;
    if (max_ < 2 || kind >= kKind || !(seconds > 0)) return;
    ++run_;
    Usual& usual = usual_[place_of(kind, owner)];
    if (is_tried(kind, owner)) {
        if (n_tried_ == 0 && !warm_) {  // threads wake up, and others' find other cores
            warm_ = true;
            return;
        }
        tried_ += seconds;
        expected_ += usual.seconds;
        ++n_tried_;
        const bool too_slow = tried_ * n_tried_ > kGain * expected_ * kTrial;  // the rest cannot make up for it
        if (n_tried_ == kTrial || too_slow) judge_trial(too_slow);
        return;
    }
    // A place is taken from an owner that has not run for a while: where more take turns than there are places, some
    // are compared and the others are not.
    if (usual.owner != owner && (usual.n == 0 || run_ - usual.seen > kStale)) usual = {0, 0, owner, run_};
    if (usual.owner == owner) {
        // The first times count in full, an outlier later on by a part.
        ++usual.n;
        usual.seconds += (seconds - usual.seconds) * std::max(kWeight, 1.0 / usual.n);
        usual.seen = run_;
    }
    n_late_ += late;
    ++since_;
    if (++n_run_ >= kWindow && trial_ == 0) begin_trial();
}

uint32_t ThreadCount::fewer() const { return now_ >> (n_fewer_ + 1); }

void ThreadCount::begin_trial() {
    using namespace thread_count_impl;
    const bool late = n_late_ * kLateShare >= kWindow;
    n_run_ = n_late_ = 0;
    if (late && fewer() > 0 && (n_fewer_ > 0 || since_ >= down_gap_))
        trial_ = fewer();
    else if (now_ < max_ && since_ >= up_gap_)
        trial_ = std::min(max_, now_ + std::max(1u, now_ / 4));
    else
        return;
    n_tried_ = 0;
    warm_ = false;
    tried_ = expected_ = 0;
}

void ThreadCount::judge_trial(bool too_slow) {
    using namespace thread_count_impl;
    const bool was_fewer = trial_ < now_, good = !too_slow && tried_ < kGain * expected_;
    uint32_t& gap = was_fewer ? down_gap_ : up_gap_;
    if (good) {
        gap = 0;
        keep(trial_);
    }
    if (was_fewer) ++n_fewer_;
    const bool round_ends = good || !was_fewer || fewer() == 0;
    if (round_ends) n_fewer_ = 0;
    if (round_ends && !good) gap = std::min(std::max(2 * gap, kFirstGap), kLongestGap);
    trial_ = 0;
    since_ = 0;
}

void ThreadCount::keep(uint32_t n) {
    now_ = n;
    usual_.fill({});
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

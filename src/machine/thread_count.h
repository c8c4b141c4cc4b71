// machine/thread_count: how many threads of a pool pay, learned from measured runs.
//
// Owns    the number of threads of the next run, and the times of runs by kind. Arithmetic alone: no clock, no threads.
// Thread  belongs to one Pool.
// Tests   tests/test_thread_count.cpp, with times of simulated machines.
//
// Threads that run a step together meet many times in it. Where other programs use some of the cores, each meeting
// waits for the thread that has none, for a wake-up or a time slice, and a step takes a hundred of them: then fewer
// threads are faster. So where threads are late, fewer are tried for a few runs, and kept if they are faster. Now and
// then more are tried again. A trial is rarer the more of them failed in a row, so that all of them cost less than 2 %.
#pragma once
#include "../base/base.h"

#include <array>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

class ThreadCount {
  public:
    /// Runs of one kind of the same owner take the same time. Runs of kKind or more are not compared.
    static constexpr uint32_t kKind = 64;
    explicit ThreadCount(uint32_t max) : max_(max), now_(max) {}

    /// For the next run, which is of this kind: a number is tried with runs whose usual time is known.
    /// owner     whose run it is, any number: models of other sizes and texts of other lengths take other times.
    uint32_t next(uint32_t kind, uint32_t owner = 0) const { return is_tried(kind, owner) ? trial_ : now_; }
    /// A run with next(kind, owner) threads took so long; late: a thread waited for another so long that it slept.
    void observe(uint32_t kind, double seconds, bool late, uint32_t owner = 0);

  private:
    struct Usual {
        double seconds = 0;
        uint32_t n = 0, owner = 0;
        uint32_t seen = 0;  ///< run_ at the last run of the owner
    };
    static constexpr uint32_t kKnown = 4;  // runs of a kind that tell its usual time
    static constexpr uint32_t kOwner =
        4;  // kept beside one another; a further one waits until one of them has not run for long
    static size_t place_of(uint32_t kind, uint32_t owner) { return owner % kOwner * size_t{kKind} + kind; }
    bool is_tried(uint32_t kind, uint32_t owner) const {
        if (trial_ == 0 || kind >= kKind) return false;
        const Usual& usual = usual_[place_of(kind, owner)];
        return usual.owner == owner && usual.n >= kKnown;
    }
    void begin_trial();
    uint32_t fewer() const;
    void judge_trial(bool too_slow);
    void keep(uint32_t n);

    const uint32_t max_;
    uint32_t now_, trial_ = 0;                           // trial_: threads that are tried, or 0
    std::array<Usual, size_t{kKind} * kOwner> usual_{};  // with now_ threads
    uint32_t run_ = 0;
    uint32_t n_run_ = 0, n_late_ = 0;     // of the present window
    bool warm_ = false;                   // the trial's first run, which does not count, is over
    uint32_t n_tried_ = 0;                // runs of the trial
    double tried_ = 0, expected_ = 0;     // their seconds, and what they would take with now_ threads
    uint32_t n_fewer_ = 0;                // trials of fewer threads in this round
    uint32_t since_ = 0;                  // runs since the last trial
    uint32_t down_gap_ = 0, up_gap_ = 0;  // runs before the next trial; 0: none failed yet
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

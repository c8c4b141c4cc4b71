// engine/device_decoder: cycles in which the device drafts, verifies, samples and accepts.
//
// A constraint sees the tokens of a cycle before anything is queued behind it, so that it can take them back: the row
// whose token it refuses is sampled again on the device, and the loop goes on from there. Drafts made from the text
// alone (a constraint that leaves no choice, prompt lookup) go up with the cycle that verifies them; only the first
// cycle of those queued ahead can have them.
//
// Owns    the queued cycles and what was decided for each. The host says how deep each cycle drafts and reads what came
//         out; SessionOptions::run_ahead cycles more are queued meanwhile. The loop either keeps the draft block's
//         cache up to date, or it does not draft: then the block's missing rows are made up for in one pass when
//         drafting goes on.
// Thread  belongs to one session.
// Tests   tests/test_device_loop.cpp.
#pragma once
#include "host_decoder.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

class DeviceDecoder {
  public:
    /// host: runs the cycles that the device loop cannot begin with, because a hidden row is not kept.
    DeviceDecoder(const DecoderParts& parts, DeviceLoop& loop, HostDecoder& host)
        : p_(parts), loop_(loop), host_(host) {}
    /// Appends at least one token to the timeline, whose rows but the last are computed.
    Status next(const Sampling& sampling);
    /// Waits for what is queued: its tokens become part of the timeline.
    Status drain();
    /// Bit g: depth g can be chosen without waiting for kernels that are still being built.
    uint32_t usable_depths() const;
    /// The loop was started with it.
    bool same_sampling(const Sampling& sampling) const { return sampling == sampling_; }

  private:
    Result<bool> start(const Sampling& sampling, bool drafts);
    Result<bool> must_wait(const Sampling& sampling);
    Status queue(const Sampling& sampling);
    Status take();
    Status constrain(Cycle* c, Token* tokens, size_t* n);
    Status sample_again(uint32_t row, Token* token);
    void cut(size_t n_kept);
    void ran(size_t n);
    Result<AcceptanceProbe> probe(uint32_t n, const Sampling& sampling);
    size_t rows_queued() const;
    uint32_t likely_depth(uint32_t depth) const;
    DraftCycle measure(const Cycle& c, double* us);

    DecoderParts p_;
    DeviceLoop& loop_;
    HostDecoder& host_;

    bool running_ = false;
    bool drafts_ = false;  ///< the loop keeps the draft block's cache up to date
    bool ended_ = false;   ///< it has stopped at an end token or the limit
    /// Drafts of the last two cycles that were to have some, where an unlikely one ends them.
    uint32_t n_likely_[2] = {kMaxDraft, kMaxDraft};
    uint32_t n_given_ = 0;  ///< drafts made from the text that the cycle queued last has
    Token given_[kMaxDraft] = {};
    uint32_t n_plain_ = 0;  ///< cycles without drafts queued in a row
    Sampling sampling_;     ///< it was started with this
    uint32_t n_queued_ = 0, first_queued_ = 0;
    /// What was decided for a queued cycle.
    struct Queued {
        DraftCycle cycle;
        bool after_text = false;  ///< it would have been queued ahead, but for drafts from the text in the cycle before
    };
    Queued queued_[kMaxQueued];                          ///< the oldest at first_queued_
    std::chrono::steady_clock::time_point waits_since_;  ///< the caller, for the next cycle
    size_t n_caught_up_ = 0;  ///< rows that the draft block made up for right before the next cycle to be taken
    double catch_up_us_ = 0;  ///< of the host's time for that
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

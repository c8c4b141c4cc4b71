// tools/synthetic_acceptance: for measuring and tests: guesses count as accepted with a given chance, whatever they
// are.
#pragma once
#include "../src/engine/session.h"

namespace tools {

/// The chance is keyed by position and seed: the same guesses are accepted on the host and on the device.
class SyntheticAcceptance : public auspex::detail::AcceptanceJudge {
  public:
    explicit SyntheticAcceptance(float chance, uint32_t seed = 1) : chance_(chance), seed_(seed) {}
    /// The same as in shaders/step_accept.comp.
    bool accepts(size_t position) const override {
        // A 32-bit finaliser (Chris Wellons, hash-prospector) over position and seed.
        uint32_t x = static_cast<uint32_t>(position) * 0x9E3779B9u ^ seed_;
        x = (x ^ (x >> 16)) * 0x7FEB352Du;
        x = (x ^ (x >> 15)) * 0x846CA68Bu;
        x ^= x >> 16;
        return static_cast<float>(x >> 8) < chance_ * 16777216.0f;
    }
    float chance() const override { return chance_; }
    uint32_t seed() const override { return seed_; }

  private:
    float chance_;
    uint32_t seed_;
};

/// From the next cycle on. chance 0: guesses are judged by what they are again.
inline void set_acceptance(auspex::Session& session, float chance, uint32_t seed = 1) {
    session.impl()->judge.reset(chance > 0 ? new SyntheticAcceptance(chance, seed) : nullptr);
}

/// Waits for the cycles that the session has queued; their tokens count as given.
inline auspex::Status wait_for_queued(auspex::Session& session) {
    const auspex::Status s = session.impl()->drain();
    session.impl()->timeline.give_only(session.impl()->timeline.size());
    return s;
}

}  // namespace tools

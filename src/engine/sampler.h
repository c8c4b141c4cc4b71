// engine/sample: from one row of logits to a token.
//
// Owns    penalties, filters and the keyed sample.
// Reads   the door's Sampling.
// Serves  session.
// Thread  a Sampler belongs to one session.
// Laws    Draft: a token is a pure function of (logits, sampling, position, the tokens before it);
//         tests/test_sampler.cpp.
#pragma once
#include "../base/base.h"

namespace auspex {
namespace detail {

/// Philox4x32-10 (Salmon et al., SC 2011): 128 random bits for a counter and a key.
struct Philox {
    uint32_t word[4];
};
Philox philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t key);

/// Gumbel noise of an id at a position: -ln(-log1p(-v)), v uniform in (0, 1) from Philox with the
/// counter (id / 4, position, 0, 0), word id mod 4, and the seed as key.
float gumbel(uint64_t seed, uint64_t position, uint32_t id);

/// errors    bad_argument: a value out of range, named.
Status check_sampling(const Sampling& sampling);

class Sampler {
  public:
    /// Scratch for n_vocab candidates.
    Status open(const Allocator& from, uint32_t n_vocab);
    uint64_t memory_bytes() const { return candidates_.size(); }
    /// What open() takes.
    static uint64_t bytes_for(uint32_t n_vocab) { return uint64_t{n_vocab} * sizeof(Candidate); }
    /// The token for `position`, given everything before it. Allocates nothing.
    /// logits    [n_vocab]; a NaN counts as minus infinity.
    /// ids       ascending: the ids that the logits belong to, when they are not 0, 1, 2 and so on.
    Token sample(Span<const float> logits, const Sampling& sampling, uint64_t position, Span<const Token> before,
                 Span<const Token> ids = {});

  private:
    struct Candidate {
        float logit;
        uint32_t id;
    };
    static bool penalises(const Sampling& s) {
        return s.repeat_penalty != 1 || s.frequency_penalty != 0 || s.presence_penalty != 0;
    }
    void penalise(Candidate* c, const Sampling& s, Span<const Token> before, Span<const Token> ids);
    Block candidates_;
};

}  // namespace detail
}  // namespace auspex

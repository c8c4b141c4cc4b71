// engine/sampler: from one row of logits to a token.
//
// Owns    penalties, filters, the keyed noise and the draw. The device kernels (shaders/sample_*.comp) compute the same
//         token.
// Thread  a Sampler belongs to one session.
// Test    tests/test_sampler.cpp: a token is a pure function of (logits, sampling, position, the tokens before it).
#pragma once
#include "../machine/backend.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// Philox4x32-10 (Salmon et al., SC 2011): 128 random bits for a counter and a key.
struct Philox {
    uint32_t word[4];
};
Philox philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t key);

/// Gumbel noise of an id at a position: -ln(-log1p(-v)), v uniform in (0, 1) from Philox with the counter
/// (id / 4, position, 0, 0), word id mod 4, and the seed as key.
float gumbel(uint64_t seed, uint64_t position, uint32_t id);

/// The fields of Sampling that are plain values come first, in so many bytes: a session file holds them. (offsetof is
/// not for Sampling: with the standard library's checks on, a vector makes it a type without standard layout.)
constexpr size_t kSamplingBytes = 6 * sizeof(float) + sizeof(int) + sizeof(uint32_t) + sizeof(uint64_t);

/// errors    bad_argument: a value out of range, named.
Status check_sampling(const Sampling& sampling);

class Sampler {
  public:
    /// Takes memory for n_vocab candidates and counts.
    ///
    /// errors    out_of_memory.
    Status open(const Allocator& from, uint32_t n_vocab);
    uint64_t memory_bytes() const { return candidates_.size() + counts_.size(); }
    /// What open() takes.
    static uint64_t bytes_for(uint32_t n_vocab) { return uint64_t{n_vocab} * (sizeof(Candidate) + sizeof(uint16_t)); }
    /// The token for `position`, given everything before it.
    ///
    /// logits    [n_vocab]; a NaN counts as minus infinity.
    /// ids       ascending: the ids that the logits belong to; empty: 0, 1, 2 and so on.
    /// cost      linear in the logits, plus the sort for top-p and the penalty window. Allocates nothing.
    Token sample(Span<const float> logits, const Sampling& sampling, uint64_t position, Span<const Token> before,
                 Span<const Token> ids = {});
    /// The same where only some ids are allowed: bit id % 32 of word id / 32, at least one of them. The filters see all
    /// logits; of what they keep, allowed ids count. Where none is left, the filters see the allowed ids alone. So
    /// where sample() gives an allowed id, this gives it too.
    Token sample_allowed(Span<const float> logits, const Sampling& sampling, uint64_t position,
                         Span<const Token> before, Span<const uint32_t> allowed);

  private:
    struct Candidate {
        float logit;
        uint32_t id;
    };
    /// A higher logit first, on ties the lower id: the order of every filter.
    static bool precedes(const Candidate& a, const Candidate& b) {
        return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    }
    /// What the filters kept: the first n candidates, but for those below `lowest`.
    struct Kept {
        size_t n = 0;
        float lowest = 0;
    };
    void fill(Span<const float> logits, const Sampling& s, Span<const Token> before, Span<const Token> ids);
    void penalise(const Sampling& s, Span<const Token> before, Span<const Token> ids);
    static size_t keep_top_p(Candidate* c, size_t n, float top_p);
    static Kept filter(Candidate* c, size_t n, const Sampling& s);
    static Token draw(const Candidate* c, Kept kept, const Sampling& s, uint64_t position);

    Block candidates_;
    Block counts_;  ///< uint16_t [n_vocab], occurrences in the penalty window; zero between calls
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

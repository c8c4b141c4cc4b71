// engine/draft: where guesses of the next tokens come from, one class for each source.
//
// Owns    their interface, and the sources ForcedText and MtpDraft; Lookup: lookup.h.
// Thread  a source belongs to one session.
// Tests   tests/test_draft.cpp, tests/lossless_drafting.cpp: no source can change the text.
#pragma once
#include "../base/clock.h"
#include "constraint.h"
#include "controller.h"
#include "mtp_cache.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

static_assert(kMaxDraft + 1 == kMaxTentative, "the deepest draft fills the longest tentative step");

/// What a session drafts with, once Draft::best is resolved.
inline bool drafts_with_block(Draft source) { return source == Draft::mtp || source == Draft::mtp_lookup; }
inline bool drafts_by_lookup(Draft source) { return source == Draft::lookup || source == Draft::mtp_lookup; }

/// What a source is asked for.
struct DraftRequest {
    Span<const Token> history;  ///< the guesses are for the tokens after it
    uint32_t n = 0;             ///< at most so many, at least 1
    const Sampling& sampling;   ///< how the next tokens will be sampled
    Token* to = nullptr;        ///< [n] the guesses; for a draft block they follow the history in memory
};

/// Makes guesses. Any guess is safe: it is verified.
class DraftSource {
  public:
    virtual ~DraftSource() = default;
    /// How many guesses were written. The first id outside the vocabulary ends them.
    virtual Result<uint32_t> propose(const DraftRequest& request) = 0;
    /// Tokens of the text that the last guess is based on: the more, the likelier it is right.
    virtual uint32_t match_length() const { return kLongMatch; }
    /// The next history begins with n_same tokens of the last one; a shorter one need not be announced.
    virtual void replaced(size_t /*n_same*/) {}
};

/// Bytes that a constraint leaves no choice about, as the tokenizer would write them. The last token is left out: what
/// follows could be part of it.
/// cost      one pass over at most kMaxBytes.
class ForcedText : public DraftSource {
  public:
    static constexpr size_t kMaxBytes = 64;
    ForcedText(ConstrainedText& constrained, const Tokenizer& tokenizer)
        : constrained_(constrained), tokenizer_(tokenizer) {}
    Result<uint32_t> propose(const DraftRequest& request) override;

  private:
    ConstrainedText& constrained_;
    const Tokenizer& tokenizer_;
};

/// For measuring and tests: decides which guesses count as accepted, whatever they are. The library makes none.
class AcceptanceJudge {
  public:
    virtual ~AcceptanceJudge() = default;
    virtual bool accepts(size_t position) const = 0;
    /// The same for the device loop (LoopStart::synth_accept, synth_seed).
    virtual float chance() const = 0;
    virtual uint32_t seed() const = 0;
};

/// The model's own draft block.
class MtpDraft : public DraftSource {
  public:
    /// errors    out_of_memory.
    Status open(const Plan& plan, Context& context, MtpCache& cache, Sampler& sampler, const Allocator& from,
                float min_probability);
    uint64_t memory_bytes() const { return chain_.size(); }
    /// Ids of the context's draft head; empty: all.
    void set_ids(std::vector<Token> ids) { ids_ = std::move(ids); }
    Span<const Token> ids() const { return ids_; }

    /// Fewer than n where the block gives its choice less than min_probability, none when the hidden row that drafting
    /// begins with is not kept.
    Result<uint32_t> propose(const DraftRequest& request) override;
    /// Runs the block once over up to n of the last rows whose next tokens are both known: would its guess have been
    /// right, and how long does such a pass take? Fills its cache up to there. by_device: sampled as the device loop
    /// samples.
    Result<AcceptanceProbe> acceptance_probe(Span<const Token> history, uint32_t n, const Sampling& sampling,
                                             const AcceptanceJudge* judge, bool by_device);

  private:
    struct Draft;
    Step next_step(const Draft& d, uint32_t depth) const;
    Status fill_block(const Draft& d, const Tape& tape);
    Status finish(const Draft& d);
    Status probe_step(Span<const Token> history, Step step, const Sampling& sampling, const AcceptanceJudge* judge,
                      bool by_device, AcceptanceProbe* seen);

    const Plan* plan_ = nullptr;
    Context* context_ = nullptr;
    MtpCache* cache_ = nullptr;
    Sampler* sampler_ = nullptr;
    float min_probability_ = 0;
    std::vector<Token> ids_;
    Block chain_;  ///< [kMaxTentative, d_model] hidden rows that feed the guesses
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

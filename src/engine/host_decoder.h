// engine/host_decoder: cycles in which the host drafts, verifies, samples and accepts.
//
// A row's logits do not depend on what shares its step, and a token is a pure function of its logits, its position and
// the tokens before it. So the rows of guesses that turn out right are the rows that plain decoding would have run,
// and the first token that differs from its guess is the one it would have sampled.
// Thread  belongs to one session.
// Tests   tests/test_draft.cpp, tests/lossless_drafting.cpp.
#pragma once
#include "decoder.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

class HostDecoder {
  public:
    explicit HostDecoder(const DecoderParts& parts) : p_(parts), forced_(parts.constrained, parts.model.tokenizer) {}
    /// Appends at least one token to the timeline, whose rows but the last are computed.
    Status next(const Sampling& sampling) { return cycle(sampling, UINT32_MAX, false); }
    /// One cycle. usable: as DepthControl::decide() takes it; probe_on_device: as MtpDraft::acceptance_probe() takes
    /// it.
    Status cycle(const Sampling& sampling, uint32_t usable, bool probe_on_device);
    /// Drafts made from the text alone, written to the timeline's tail: what the constraint forces, or what the text
    /// source found. At most kMaxDraft; none where they are not wanted.
    Result<TextOffer> offer_from_text(const Sampling& sampling);
    /// After a cycle whose tokens are the last of the timeline: would what the text offered before it have been right?
    void learn_from_text(const Sampling& sampling, const DraftCycle& cycle);

  private:
    Status catch_up(uint32_t n_guess, DraftCycle* cycle);
    Result<Token> sample(uint32_t i, Token guess, const Sampling& sampling, bool* right);
    Status accept(uint32_t n_guess, const Sampling& sampling, uint32_t* n_right);

    DecoderParts p_;
    ForcedText forced_;  ///< before every other source: what it drafts is right but for how it is cut into tokens
    // The last offer, for the tokens from offered_at_ on.
    TextOffer offer_;
    size_t offered_at_ = 0;
    Token offered_[kMaxDraft] = {};
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

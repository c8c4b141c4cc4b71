// engine/decoder: what the two decoders of a session share.
//
// HostDecoder   logits come to the host, which drafts, samples and accepts: the CPU, and what the device loop cannot.
// DeviceDecoder the device does all that; the host queues cycles, with drafts that need only the text, and reads
// tokens.
//
// The rule: the device decodes if its context has a device loop, unless the sampling has more than kMaxLoopBias biases.
// Otherwise the host decodes.
// Thread  belongs to one session.
// Tests   tests/test_draft.cpp, tests/test_device_loop.cpp: the text is the same with either.
#pragma once
#include "../base/guard.h"
#include "constraint.h"
#include "depth_control.h"
#include "trunk.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// The draft sources of a session, the preferred one first.
struct DraftSources {
    std::unique_ptr<DraftSource> text;  ///< reads only the text: Lookup, or what a test installs; may be null
    MtpDraft mtp;                       ///< used if MtpCache::on()
};

/// What the decoders of a session share; owned by the session.
struct DecoderParts {
    const Model::Impl& model;
    const SessionOptions& options;
    Context& context;
    Timeline& timeline;
    Trunk& trunk;
    MtpCache& cache;
    DraftSources& sources;
    DepthControl& depth;
    Sampler& sampler;
    ConstrainedText& constrained;  ///< in step with the timeline when next() is called
    Stats& stats;
    const std::unique_ptr<AcceptanceJudge>& judge;  ///< for measuring; null: guesses are judged by what they are

    bool can_draft() const { return sources.text || cache.on(); }
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

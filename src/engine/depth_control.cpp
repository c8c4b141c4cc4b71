#include "depth_control.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

DepthControl::DepthControl(const SessionOptions& options, Stats& stats)
    : control(drafts_with_block(options.draft.source) ? options.draft.max_depth : 0,
              options.draft.source == Draft::off ? 0 : options.draft.max_depth),
      options_(options),
      stats_(stats),
      depth_(options.draft.depth) {}

bool DepthControl::prefers(const TextOffer& offer, uint32_t usable) const {
    if (offer.n == 0 || !wants_text()) return false;
    if (chooses()) return control.prefers(offer, usable);
    return offer.match >= kConfidentMatch || !drafts_with_block(options_.draft.source);
}

Decision DepthControl::decide(const Next& next, DraftCycle* cycle) {
    *cycle = DraftCycle();
    const uint32_t context = static_cast<uint32_t>(next.n_token);
    const uint32_t room = context + 1 < options_.n_context ? options_.n_context - context - 1 : 0;
    Decision d;
    if (!next.can_draft || next.n_row < 2) {
        control.fixed(0, context);  // no draft would be verified: nothing is chosen, and nothing learned of a depth
    } else if (chooses()) {
        d = control.next(context, next.usable, next.text);
    } else {
        control.fixed(d.depth = static_cast<uint32_t>(depth_), context);
        d.from_text = prefers(next.text, next.usable);
    }
    d.depth = std::min(d.depth, room);
    if (d.depth >= next.n_row) {
        d.depth = static_cast<uint32_t>(next.n_row) - 1;
        while (!(next.usable >> d.depth & 1)) --d.depth;
    }
    if (d.from_text) d.depth = std::min(d.depth, next.text.n);
    d.from_text = d.from_text && d.depth > 0;
    control.explain(cycle);
    cycle->chosen = d.depth;
    cycle->text_match = d.from_text ? next.text.match : 0;
    return d;
}

void DepthControl::observe_probe(const AcceptanceProbe& seen, DraftCycle* cycle) {
    control.observe_acceptance_probe(seen);
    cycle->probe_rows = seen.n;
    cycle->probe_hits = seen.hits;
    cycle->probe_us = seen.seconds * 1e6;
}

void DepthControl::finish(const DraftCycle& cycle, double us) {
    stats_.cycles[cycle.depth] += 1;
    for (uint32_t i = 0; i < cycle.depth; ++i) stats_.drafted[i] += 1;
    for (uint32_t i = 0; i < cycle.accepted; ++i) stats_.accepted[i] += 1;
    DraftSeen seen;
    seen.from_text = cycle.text_match > 0;
    // Drafts that an unlikely one ended are what the chosen depth gave, and took as long as that depth takes here.
    seen.depth = options_.draft.min_probability > 0 && !seen.from_text ? cycle.chosen : cycle.depth;
    seen.accepted = cycle.accepted;
    seen.seconds = us * 1e-6;
    seen.catch_up = cycle.catch_up_us * 1e-6;
    seen.context = static_cast<uint32_t>(cycle.n_token);
    control.observe(seen);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

#include "depth_control.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

DepthControl::DepthControl(const SessionOptions& options, Stats& stats)
    : control(options.draft.max_depth), options_(options), stats_(stats), depth_(options.draft.depth) {}

Decision DepthControl::decide(const Next& next, DraftCycle* cycle) {
    *cycle = DraftCycle();
    const uint32_t context = static_cast<uint32_t>(next.n_token);
    const uint32_t room = context + 1 < options_.n_context ? options_.n_context - context - 1 : 0;
    Decision d;
    if (!next.can_draft)
        control.fixed(0, context);
    else if (depth_ < 0)
        d = control.next(context, next.usable);
    else
        control.fixed(d.depth = static_cast<uint32_t>(depth_), context);
    d.depth = std::min(d.depth, room);
    if (d.depth >= next.n_row) {
        d.depth = static_cast<uint32_t>(next.n_row) - 1;
        while (!(next.usable >> d.depth & 1)) --d.depth;
    }
    if (options_.draft.source == Draft::lookup) d.probe_rows = 0;  // there is no block to run: see observe_text()
    control.explain(cycle);
    cycle->chosen = d.depth;
    return d;
}

void DepthControl::observe_probe(const AcceptanceProbe& seen, DraftCycle* cycle) {
    control.observe_acceptance_probe(seen);
    cycle->probe_rows = seen.n;
    cycle->probe_hits = seen.hits;
    cycle->probe_us = seen.seconds * 1e6;
}

void DepthControl::observe_text(DraftSource& text, Span<const Token> history, const Sampling& sampling,
                                const AcceptanceJudge* judge, DraftCycle* cycle) {
    if (!chooses() || cycle->chosen > 0 || options_.draft.source != Draft::lookup || !control.wants_drafts()) return;
    const auto start = std::chrono::steady_clock::now();
    const size_t at = history.size() - 1;
    Token guess = -1;
    const Result<uint32_t> found = text.propose({history.subspan(0, at), 1, sampling, &guess});
    if (!found.ok() || found.value() == 0) return;
    AcceptanceProbe seen;
    seen.n = 1;
    seen.hits = seen.order = judge ? judge->accepts(at) : guess == history[at];
    seen.seconds = seconds_since(start);
    observe_probe(seen, cycle);
}

void DepthControl::finish(const DraftCycle& cycle, double us) {
    stats_.cycles[cycle.depth] += 1;
    for (uint32_t i = 0; i < cycle.depth; ++i) stats_.drafted[i] += 1;
    for (uint32_t i = 0; i < cycle.accepted; ++i) stats_.accepted[i] += 1;
    DraftSeen seen;
    // Drafts that an unlikely one ended are what the chosen depth gave, and took as long as that depth takes here.
    seen.depth = options_.draft.min_probability > 0 ? cycle.chosen : cycle.depth;
    seen.accepted = cycle.accepted;
    seen.seconds = us * 1e-6;
    seen.catch_up = cycle.catch_up_us * 1e-6;
    seen.context = static_cast<uint32_t>(cycle.n_token);
    control.observe(seen);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

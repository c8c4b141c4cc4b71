// engine/drive: next() where the context drafts, verifies, sampled_ids and accepts by itself.
//
// The host says how deep each cycle drafts and reads what came out; run_ahead cycles more are on their way
// meanwhile. A drive either keeps the draft block's cache up, or it does not draft: then what the block has
// not seen waits behind it, and is made up for in one pass when drafting goes on.
#include "session.h"

#include <algorithm>

namespace auspex {
namespace drive_impl {

/// Plain cycles in a row after which a drive stops keeping up the draft block's cache: a probe of one or two
/// does not interrupt it.
constexpr uint32_t kPlainBeforeOff = 4;
/// Tokens that the block may not have seen before they are made up for, well below what the context keeps.
constexpr uint32_t kMostBehind = 32;

bool same(const Sampling& a, const Sampling& b) {
    return a.temperature == b.temperature && a.top_k == b.top_k && a.top_p == b.top_p && a.min_p == b.min_p &&
           a.repeat_penalty == b.repeat_penalty && a.frequency_penalty == b.frequency_penalty &&
           a.presence_penalty == b.presence_penalty && a.penalty_window == b.penalty_window && a.seed == b.seed;
}

}  // namespace drive_impl

bool Session::Impl::can_drive() const {
    return context->device_loop() != nullptr && !text_source &&
           !(mtp.on() && (drive_refused || options.draft.min_probability > 0));
}

Result<bool> Session::Impl::start_drive(const Sampling& sampling, bool drafts) {
    using namespace detail;
    const std::vector<Token>& ends = model->tokenizer.ends();
    LoopStart d;
    if (drafts) {
        bool at_hand = false;
        AUSPEX_TRY(track(mtp.lead(history, &d).get(at_hand)));
        if (!at_hand) return false;
    } else {
        if (keeps_up()) AUSPEX_TRY(track(mtp.fill(history, true)));
    }
    d.history = history;
    d.sampling = drive_sampling = sampling;
    if (synthetic.on()) {  // the text means nothing: it does not end
        d.synth_accept = synthetic.share;
        d.synth_seed = synthetic.seed;
    } else {
        d.stop = Span<const Token>(ends.data(), std::min<size_t>(ends.size(), 16));
    }
    d.limit = options.n_context;
    const Status s = context->device_loop()->start(d);
    if (s.code == Code::unsupported && drafts) {
        drive_refused = true;
        return false;
    }
    AUSPEX_TRY(track(s));
    driving = true;
    drive_drafts = drafts;
    drive_ended = false;
    can_step_back = has_logits = false;
    restored_logits.clear();
    return true;
}

Status Session::Impl::queue_cycle(const Sampling& sampling) {
    using namespace detail;
    DraftCycle cycle;
    const Decision d = decide(n_queued, &cycle);
    n_plain = d.depth > 0 ? 0 : n_plain + 1;
    // Where drafts may follow soon a text begins as one that drafts: no change of course before the first of them.
    const bool may_draft = driving ? drive_drafts : depth < 0 && keeps_up() && context->device_loop()->ready(0);
    const bool drafts = mtp.on() && (d.depth > 0 || (may_draft && n_plain <= drive_impl::kPlainBeforeOff));
    const bool behind =
        mtp.on() && !drafts && keeps_up() && mtp.n_pending_hidden() + n_queued >= drive_impl::kMostBehind;
    if (driving && (drafts != drive_drafts || d.probe_rows > 0 || behind)) AUSPEX_TRY(settle());
    AcceptanceProbe looked;
    AUSPEX_TRY(acceptance_probe(d.probe_rows, sampling).get(looked));
    const auto start = std::chrono::steady_clock::now();
    const size_t n_pending_hidden = mtp.n_pending_hidden();
    if (behind) AUSPEX_TRY(track(mtp.fill(history)));
    bool goes_on = history.size() < options.n_context && !drive_ended;
    if (goes_on && !driving) {
        AUSPEX_TRY(start_drive(sampling, drafts).get(goes_on));
        waits_since =
            std::chrono::steady_clock::now();  // acceptance_probe passes and changes of course are no part of a cycle
    }
    if (!goes_on) {
        saw(looked, &cycle);
        return {};
    }
    AUSPEX_TRY(track(context->device_loop()->queue(d.depth)));
    const double interrupted = seconds_since(start);  // the device idles
    if (behind) {
        caught_up = n_pending_hidden;
        catch_up_us = interrupted * 1e6;
    } else if (looked.n > 0) {
        looked.seconds += interrupted;
    }
    saw(looked, &cycle);
    on_way[(first_queued + n_queued++) % kMaxQueued] = cycle;
    return {};
}

Status Session::Impl::drive(const Sampling& sampling) {
    using namespace detail;
    // Another sampling, or it had stopped at an end token and the caller wants to go on.
    if (driving && (drive_ended || !drive_impl::same(sampling, drive_sampling))) AUSPEX_TRY(settle());
    drive_ended = false;
    const size_t size = history.size();
    waits_since = std::chrono::steady_clock::now();
    while (history.size() == size) {
        if (size >= options.n_context)
            return fail(Code::context_full, "the history has ", size, " tokens, all that n_context allows");
        while (n_queued < 1 + options.run_ahead && history.size() == size) {
            AUSPEX_TRY(queue_cycle(sampling));
            if (!driving && history.size() == size) return cycle(sampling);
        }
        if (history.size() > size) return {};  // a change of course had them waited for
        AUSPEX_TRY(take_cycle());
    }
    return {};
}

Status Session::Impl::take_cycle() {
    detail::Cycle c;
    AUSPEX_TRY(track(context->device_loop()->wait().get(c)));
    DraftCycle seen = on_way[first_queued];
    first_queued = (first_queued + 1) % detail::kMaxQueued;
    --n_queued;
    drive_ended = c.done;
    const size_t n = c.tokens.size(), size = history.size();
    if (n == 0) return {};
    history.insert(history.end(), c.tokens.begin(), c.tokens.end());
    if (drive_drafts)
        mtp.drove(n_row, n);
    else
        mtp.ran(n_row, n, true);
    step_first = n_row;
    can_step_back = true;
    n_row += n;
    stats.rows_decoded += 1 + c.n_draft;
    report_windows(n_row);
    seen.n_token = size;
    seen.depth = c.n_draft;
    seen.accepted = c.n_accept;
    // What bounds the caller's wait: the device, or the host between its cycles; not the caller's own work.
    const auto now = std::chrono::steady_clock::now();
    seen.us = std::max(c.us, std::chrono::duration<double, std::micro>(now - waits_since).count());
    seen.catch_up_us = c.catch_up_us;
    if (caught_up > 0 && c.us > 0) {  // the first cycle behind it had to wait for the device
        seen.catch_up_us += seen.us - c.us;
        if (!c.cold) control.observe_catch_up((catch_up_us + seen.us - c.us) * 1e-6, caught_up);
    }
    caught_up = 0;
    waits_since = now;
    // The host's share of a first time comes once, and a cycle that nobody waited for took an unknown time.
    finish(seen, c.us > 0 ? (c.cold ? c.us : seen.us) : (c.cold || c.ready) ? 0 : seen.us);
    return {};
}

Status Session::Impl::settle() {
    while (n_queued > 0) AUSPEX_TRY(take_cycle());
    driving = false;
    return {};
}

}  // namespace auspex

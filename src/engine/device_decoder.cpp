#include "device_decoder.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace device_decoder_impl {
namespace {

/// Plain cycles in a row after which the loop stops keeping up the draft block's cache: a probe of one or two
/// does not interrupt it.
constexpr uint32_t kPlainBeforeOff = 4;
/// Rows that the block may lack before they are made up for, well below what the context keeps.
constexpr uint32_t kMaxPendingRows = 32;

}  // namespace
}  // namespace device_decoder_impl

uint32_t DeviceDecoder::usable_depths() const {
    uint32_t usable = 1;
    for (uint32_t g = 1; g <= p_.options.draft.max_depth; ++g)
        if (loop_.ready(g)) usable |= 1u << g;
    return usable;
}

Result<AcceptanceProbe> DeviceDecoder::probe(uint32_t n, const Sampling& sampling) {
    if (n == 0 || !p_.cache.on()) return AcceptanceProbe();
    p_.trunk.forget_logits();  // the probe writes where they are
    AcceptanceProbe seen;
    AUSPEX_TRY(p_.trunk.track(
        p_.sources.mtp.acceptance_probe(p_.timeline.tokens(), n, sampling, p_.judge.get(), true).get(seen)));
    return seen;
}

/// Starts the loop. False: it cannot begin here, because the hidden row that drafting begins with is not kept.
Result<bool> DeviceDecoder::start(const Sampling& sampling, bool drafts) {
    const std::vector<Token>& ends = p_.model.tokenizer.ends();
    LoopStart loop;
    if (drafts) {
        MtpCache::Lead lead;
        AUSPEX_TRY(p_.trunk.track(p_.cache.lead(p_.timeline.tokens()).get(lead)));
        if (lead.n_row == 0) return false;
        loop.n_mtp_row = lead.n_row;
        loop.hidden_from = lead.hidden_from;
        loop.first_key = lead.first_key;
    } else if (p_.depth.wants_drafts()) {
        AUSPEX_TRY(p_.trunk.track(p_.cache.fill_lazily(p_.timeline.tokens())));
    }
    loop.history = p_.timeline.tokens();
    loop.sampling = sampling;
    if (p_.judge) {  // the text means nothing: it does not end
        loop.synth_accept = p_.judge->chance();
        loop.synth_seed = p_.judge->seed();
    } else {
        loop.stop = Span<const Token>(ends.data(), std::min<size_t>(ends.size(), 16));
    }
    loop.limit = p_.options.n_context;
    AUSPEX_TRY(p_.trunk.change_state([&] { return loop_.start(loop); }));
    sampling_ = sampling;
    running_ = true;
    drafts_ = drafts;
    ended_ = false;
    p_.trunk.begin_device_loop();
    return true;
}

/// The largest number of rows that the queued cycles can make history.
size_t DeviceDecoder::rows_queued() const {
    size_t n = 0;
    for (uint32_t i = 0; i < n_queued_; ++i) n += size_t{1} + queued_[(first_queued_ + i) % kMaxQueued].cycle.chosen;
    return n;
}

/// The passes of a cycle are recorded: all of its drafts cost time, also those after an unlikely one. So it is queued
/// for one draft more than the cycles before it had.
uint32_t DeviceDecoder::likely_depth(uint32_t depth) const {
    if (p_.options.draft.min_probability == 0) return depth;
    uint32_t g = std::min(depth, std::max(n_likely_[0], n_likely_[1]) + 1);
    while (g < depth && !(usable_depths() >> g & 1)) ++g;
    return g;
}

/// Decides on the next cycle and queues it. Nothing is queued where the loop cannot begin (running_ is false then), or
/// where draining for a change of course brought tokens that end the text.
Status DeviceDecoder::queue(const Sampling& sampling) {
    using namespace device_decoder_impl;
    if (n_queued_ == 0 && p_.trunk.must_keep_reply()) {
        AUSPEX_TRY(drain());
        AUSPEX_TRY(p_.trunk.keep_reply());
    }
    TextOffer offer;  // of cycles that are queued ahead it is not known
    if (n_queued_ == 0) AUSPEX_TRY(host_.offer_from_text(sampling).get(offer));
    DraftCycle cycle;
    const Decision d = p_.depth.decide({p_.timeline.size() + n_queued_, p_.trunk.rows_to_stop() - rows_queued(),
                                        usable_depths(), p_.can_draft(), offer},
                                       &cycle);
    const uint32_t n_own = d.from_text ? 0 : d.depth;
    if (!d.from_text) n_plain_ = n_own > 0 ? 0 : n_plain_ + 1;
    // Where drafts may follow soon a text begins as one that drafts: no change of course before the first of them.
    const bool may_draft = running_ ? drafts_ : p_.depth.chooses() && p_.depth.wants_drafts() && loop_.ready(0);
    const bool drafts = p_.cache.on() && (n_own > 0 || (may_draft && n_plain_ <= kPlainBeforeOff));
    const bool must_fill = p_.cache.on() && !drafts && p_.depth.wants_drafts() &&
                           p_.cache.n_pending() + rows_queued() + d.depth >= kMaxPendingRows;
    // Rows that this cycle and those queued before it may write.
    const size_t n_ahead = (n_queued_ + size_t{1}) * kMaxTentative;
    const bool must_park = !p_.trunk.has_room(n_ahead);
    if (running_ && (drafts != drafts_ || d.probe_rows > 0 || must_fill || must_park)) AUSPEX_TRY(drain());
    if (must_park) p_.trunk.make_room(n_ahead);
    AcceptanceProbe probed;
    AUSPEX_TRY(probe(d.probe_rows, sampling).get(probed));
    const auto start_time = std::chrono::steady_clock::now();
    const size_t n_pending = p_.cache.n_pending();
    if (must_fill) AUSPEX_TRY(p_.trunk.fill_draft_cache());
    bool goes_on = p_.timeline.size() < p_.options.n_context && !ended_;
    if (goes_on && !running_) {
        AUSPEX_TRY(start(sampling, drafts).get(goes_on));
        // Probes and changes of course are no part of a cycle.
        waits_since_ = std::chrono::steady_clock::now();
    }
    if (!goes_on) {
        p_.depth.observe_probe(probed, &cycle);
        return {};
    }
    const bool after_text = n_given_ > 0 && n_queued_ == 0 && p_.options.run_ahead > 0 && !p_.constrained.on();
    n_given_ = d.from_text ? d.depth : 0;
    std::copy_n(p_.timeline.tail(), n_given_, given_);
    AUSPEX_TRY(p_.trunk.change_state([&] {
        return n_given_ > 0 ? loop_.queue(n_given_, given_) : loop_.queue(p_.cache.on() ? likely_depth(n_own) : 0);
    }));
    const double interrupted = seconds_since(start_time);  // the device is idle
    if (must_fill) {
        n_caught_up_ = n_pending;
        catch_up_us_ = interrupted * 1e6;
    } else if (probed.n > 0) {
        probed.seconds += interrupted;
    }
    p_.depth.observe_probe(probed, &cycle);
    queued_[(first_queued_ + n_queued_++) % kMaxQueued] = {cycle, after_text};
    return {};
}

/// Whether the next cycle can only be queued once the tokens in flight are known: the state is to be kept, or the cycle
/// may pass the row at which decoding stops, or get drafts made from the text.
Result<bool> DeviceDecoder::must_wait(const Sampling& sampling) {
    if (n_queued_ == 0) return false;
    if (p_.trunk.must_keep_reply()) return true;
    const DraftCycle& last = queued_[(first_queued_ + n_queued_ - 1) % kMaxQueued].cycle;
    if (rows_queued() + 1 + last.chosen > p_.trunk.rows_to_stop()) return true;
    if (n_given_ > 0) return true;
    if (!p_.sources.text) return false;
    TextOffer offer;
    AUSPEX_TRY(host_.offer_from_text(sampling).get(offer));
    return p_.depth.prefers(offer, usable_depths());
}

Status DeviceDecoder::next(const Sampling& sampling) {
    // The caller goes on after an end token; another sampling was dealt with by the session.
    if (running_ && (ended_ || !same_sampling(sampling))) AUSPEX_TRY(drain());
    ended_ = false;
    const size_t size = p_.timeline.size();
    waits_since_ = std::chrono::steady_clock::now();
    while (p_.timeline.size() == size) {
        if (size >= p_.options.n_context)
            return fail(Code::context_full, "the history has ", size, " tokens, all that n_context allows");
        const uint32_t n_ahead = p_.constrained.on() ? 0 : p_.options.run_ahead;
        while (n_queued_ < 1 + n_ahead && p_.timeline.size() == size) {
            bool waits = false;
            AUSPEX_TRY(must_wait(sampling).get(waits));
            if (waits) break;
            AUSPEX_TRY(queue(sampling));
            if (!running_ && p_.timeline.size() == size) return host_.cycle(sampling, usable_depths(), true);
        }
        if (p_.timeline.size() > size) return {};  // a change of course had them waited for
        AUSPEX_TRY(take());
    }
    return {};
}

/// What the caller waited for: the device, or the host between its cycles; not the caller's own work. us: what such a
/// cycle takes, 0: not known.
DraftCycle DeviceDecoder::measure(const Cycle& c, double* us) {
    DraftCycle seen = queued_[first_queued_].cycle;
    seen.depth = c.n_draft;
    seen.accepted = c.n_accept;
    const auto now = std::chrono::steady_clock::now();
    seen.us = std::max(c.us, std::chrono::duration<double, std::micro>(now - waits_since_).count());
    seen.catch_up_us = c.catch_up_us;
    if (n_caught_up_ > 0 && c.us > 0) {  // the first cycle after it had to wait for the device
        seen.catch_up_us += seen.us - c.us;
        if (!c.cold) p_.depth.control.observe_catch_up((catch_up_us_ + seen.us - c.us) * 1e-6, n_caught_up_);
    }
    n_caught_up_ = 0;
    waits_since_ = now;
    // The host's share of a first time comes once, and a cycle that nobody waited for took an unknown time. Without
    // drafts from the text before it the device would not have waited for this one.
    const bool own = c.cold || (queued_[first_queued_].after_text && seen.text_match == 0);
    *us = c.us > 0 ? (own ? c.us : seen.us) : (c.cold || c.ready) ? 0 : seen.us;
    return seen;
}

/// A cycle overwrote the hidden rows of the one before it, and n of its rows are history.
void DeviceDecoder::ran(size_t n) {
    const size_t first = p_.timeline.n_row();
    if (drafts_)
        p_.cache.ran_on_device(first, n);
    else
        p_.cache.ran(first, n, true);
    p_.trunk.ran_on_device(n);
}

/// Only n_kept tokens of the cycle that was waited for last stand; the loop has to begin again.
void DeviceDecoder::cut(size_t n_kept) {
    p_.context.commit(static_cast<uint32_t>(n_kept));
    running_ = ended_ = false;
}

/// The token after a row, of those that the constraint allows; the loop goes on from there.
Status DeviceDecoder::sample_again(uint32_t row, Token* token) {
    Span<const uint32_t> allowed;
    AUSPEX_TRY(p_.constrained.mask().get(allowed));
    Cycle again;
    AUSPEX_TRY(p_.trunk.change_state([&] { return loop_.resample(row, allowed).get(again); }));
    *token = again.tokens[0];
    ended_ = again.done;
    return p_.constrained.accept_masked(*token);
}

/// Lets the constraint go on by the tokens of a cycle; where it refuses one, that row is sampled again. The rows after
/// it stand where that gives the draft that they were computed with. errors: no token stands.
Status DeviceDecoder::constrain(Cycle* c, Token* tokens, size_t* n) {
    uint32_t i = 0;
    while (i < *n && !p_.constrained.overflowed() && p_.constrained.accept(tokens[i])) ++i;
    for (bool stands = i < *n; stands; ++i) {
        const Status s = sample_again(i, &tokens[i]);
        if (!s.ok() && (i == 0 || p_.trunk.damaged())) return s;
        *n = s.ok() ? i + 1 : i;  // the next call says why there are no more
        c->n_accept = static_cast<uint32_t>(*n) - 1;
        if (!s.ok()) cut(i);
        stands = s.ok() && !ended_ && i < n_given_ && tokens[i] == given_[i];
    }
    return {};
}

/// Takes the oldest queued cycle: its tokens become part of the timeline.
Status DeviceDecoder::take() {
    Cycle c;
    AUSPEX_TRY(p_.trunk.track(loop_.wait().get(c)));
    ended_ = c.done;
    Token tokens[kMaxTentative];
    std::copy(c.tokens.begin(), c.tokens.end(), tokens);
    size_t n = c.tokens.size();
    const size_t size = p_.timeline.size();
    double us = 0;
    DraftCycle seen;
    if (n != 0) seen = measure(c, &us);
    if (n != 0 && seen.chosen > 0 && seen.text_match == 0) {
        n_likely_[1] = n_likely_[0];
        n_likely_[0] = c.n_draft;
    }
    first_queued_ = (first_queued_ + 1) % kMaxQueued;
    --n_queued_;
    if (n == 0) return {};
    if (p_.constrained.on()) {
        const size_t n_text = p_.constrained.n_token();
        Undo undo([&] {
            p_.constrained.rollback(p_.constrained.n_token() - n_text);
            cut(0);
            ran(0);
        });
        AUSPEX_TRY(constrain(&c, tokens, &n));
        undo.keep();
    }
    seen.accepted = c.n_accept;
    for (size_t i = 0; i < n; ++i) p_.timeline.append(tokens[i]);
    ran(n);
    p_.stats.rows_decoded += 1 + c.n_draft;
    seen.n_token = size;
    host_.learn_from_text(sampling_, seen);
    p_.depth.finish(seen, us);
    p_.trunk.report_windows();
    if (p_.options.on_cycle) p_.options.on_cycle(seen);
    return {};
}

Status DeviceDecoder::drain() {
    while (n_queued_ > 0) AUSPEX_TRY(take());
    running_ = false;
    return {};
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

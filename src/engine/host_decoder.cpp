#include "host_decoder.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

Result<TextOffer> HostDecoder::offer_from_text(const Sampling& sampling) {
    offer_ = TextOffer();
    offered_at_ = p_.timeline.size();
    if (!p_.depth.wants_text()) return offer_;
    const DraftRequest request{p_.timeline.tokens(), kMaxDraft, sampling, p_.timeline.tail()};
    uint32_t n_found = 0;
    AUSPEX_TRY(forced_.propose(request).get(n_found));
    offer_.match = kForcedMatch;
    if (n_found == 0 && p_.sources.text) {
        AUSPEX_TRY(p_.sources.text->propose(request).get(n_found));
        offer_.match = p_.sources.text->match_length();
    }
    const Token end = static_cast<Token>(p_.model.plan.n_vocab);
    n_found = std::min(n_found, kMaxDraft);
    while (offer_.n < n_found && request.to[offer_.n] >= 0 && request.to[offer_.n] < end) ++offer_.n;
    std::copy_n(request.to, offer_.n, offered_);
    return offer_;
}

void HostDecoder::learn_from_text(const Sampling& sampling, const DraftCycle& cycle) {
    if (!p_.depth.chooses()) return;
    Controller& control = p_.depth.control;
    if (cycle.text_match > 0)
        return control.observe_offer({cycle.depth, cycle.text_match}, cycle.depth, cycle.accepted);
    const Span<const Token> history = p_.timeline.tokens();
    if (offered_at_ != cycle.n_token) {  // it was queued before its first token was known
        if (!p_.sources.text) return;
        uint32_t n_found = 0;
        const DraftRequest request{history.subspan(0, cycle.n_token), kMaxDraft, sampling, offered_};
        if (!p_.sources.text->propose(request).get(n_found).ok()) return;
        offer_ = {n_found, p_.sources.text->match_length()};
        offered_at_ = cycle.n_token;
    }
    const uint32_t n_known = std::min(offer_.n, static_cast<uint32_t>(history.size() - cycle.n_token));
    uint32_t n_right = 0;
    for (size_t at = cycle.n_token; n_right < n_known; ++n_right, ++at)
        if (!(p_.judge ? p_.judge->accepts(at) : offered_[n_right] == history[at])) break;
    control.observe_offer(offer_, n_known, n_right);
}

/// Runs the draft block over pending hidden rows before the next step overwrites them, if its cache needs them.
Status HostDecoder::catch_up(uint32_t n_guess, DraftCycle* cycle) {
    if (!p_.depth.wants_drafts()) return {};
    const auto start = std::chrono::steady_clock::now();
    const size_t n_pending = p_.cache.n_pending();
    AUSPEX_TRY(p_.cache.fill_lazily(p_.timeline.tokens()));
    if (n_guess != 0) return {};
    cycle->catch_up_us = seconds_since(start) * 1e6;
    p_.depth.control.observe_catch_up(cycle->catch_up_us * 1e-6, n_pending - p_.cache.n_pending());
    return {};
}

/// The token after row i of the step. guess: the draft in its place, or -1; right: it is accepted.
Result<Token> HostDecoder::sample(uint32_t i, Token guess, const Sampling& sampling, bool* right) {
    Span<const float> logits;
    AUSPEX_TRY(p_.trunk.verified_row(i).get(logits));
    const size_t position = p_.timeline.size();
    const Span<const Token> before = p_.timeline.tokens();
    const bool judged = p_.judge && guess >= 0, agreed = judged && p_.judge->accepts(position);
    Token id = agreed ? guess : p_.sampler.sample(logits, sampling, position, before);
    AUSPEX_TRY(p_.constrained.admit(id, p_.sampler, logits, sampling, position, before).get(id));
    *right = id == guess && agreed == judged;
    return id;
}

/// Samples a token after each row of the step until one differs from its draft. n_right: drafts accepted, all tokens
/// but the last; a right one that ends the text, or with which the constraint overflows, is the last.
Status HostDecoder::accept(uint32_t n_guess, const Sampling& sampling, uint32_t* n_right) {
    Token guesses[kMaxDraft] = {};
    std::copy_n(p_.timeline.tail(), n_guess, guesses);
    *n_right = 0;
    for (uint32_t i = 0;; ++i) {
        Token id = 0;
        bool right = false;
        Status s = sample(i, i < n_guess ? guesses[i] : -1, sampling, &right).get(id);
        if (i > 0 && (s.code == Code::bad_argument || s.code == Code::unsupported)) {
            --*n_right;  // the constraint cannot go on: the tokens before that stand, and the next call says so
            return {};
        }
        if (!s.ok()) return s;
        p_.timeline.append(id);
        if (!right || (!p_.judge && p_.model.tokenizer.is_end(id)) || p_.constrained.overflowed()) return {};
        ++*n_right;
    }
}

Status HostDecoder::cycle(const Sampling& sampling, uint32_t usable, bool probe_on_device) {
    const size_t size = p_.timeline.size();  // all rows but the last are computed
    if (p_.trunk.must_keep_reply()) AUSPEX_TRY(p_.trunk.keep_reply());
    DraftCycle seen;
    TextOffer offer;
    const auto offer_start = std::chrono::steady_clock::now();
    AUSPEX_TRY(offer_from_text(sampling).get(offer));
    const double offer_s = seconds_since(offer_start);
    const Decision wanted = p_.depth.decide({size, p_.trunk.rows_to_stop(), usable, p_.can_draft(), offer}, &seen);
    p_.trunk.make_room(kMaxTentative);  // the draft block writes its rows before the step does
    p_.trunk.forget_logits();           // drafting overwrites the logits of the last row
    if (wanted.probe_rows > 0 && p_.cache.on()) {
        AcceptanceProbe probe;
        AUSPEX_TRY(p_.trunk.track(
            p_.sources.mtp
                .acceptance_probe(p_.timeline.tokens(), wanted.probe_rows, sampling, p_.judge.get(), probe_on_device)
                .get(probe)));
        p_.depth.observe_probe(probe, &seen);
    }
    const auto start = std::chrono::steady_clock::now();
    uint32_t n_guess = wanted.from_text ? wanted.depth : 0, n_right = 0;
    Status done;
    if (wanted.depth > 0 && !wanted.from_text && p_.cache.on())
        done = p_.sources.mtp.propose({p_.timeline.tokens(), wanted.depth, sampling, p_.timeline.tail()}).get(n_guess);
    if (done.ok()) done = catch_up(n_guess, &seen);
    if (done.ok()) done = p_.trunk.verify(n_guess);
    if (!done.ok()) {
        p_.cache.cut(size);
        return p_.trunk.track(std::move(done));
    }
    const size_t n_text = p_.constrained.n_token();
    Undo undo([&] {
        p_.constrained.rollback(p_.constrained.n_token() - n_text);
        p_.timeline.truncate(size);
        p_.trunk.discard();
    });
    AUSPEX_TRY(accept(n_guess, sampling, &n_right));
    undo.keep();
    p_.trunk.commit(static_cast<uint32_t>(p_.timeline.size() - size));
    p_.stats.rows_decoded += 1 + n_guess;
    seen.n_token = size;
    seen.depth = n_guess;
    seen.accepted = n_right;
    seen.us = (offer_s + seconds_since(start)) * 1e6;
    learn_from_text(sampling, seen);
    p_.depth.finish(seen, seen.us);
    p_.trunk.report_windows();
    if (p_.options.on_cycle) p_.options.on_cycle(seen);
    return {};
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

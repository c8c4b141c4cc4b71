#include "draft_state.h"

#include <algorithm>
#include <cstring>

#include "../src/engine/lookup.h"
#include "../src/engine/prefix_policy.h"
#include "../src/engine/session.h"
#include "draft_sources.h"

namespace test {
namespace {

using namespace auspex;
using detail::say;

Sampling sampling_of(uint64_t i) {
    Sampling s;
    s.seed = i;
    if (i % 3 == 1) s.temperature = 1.0f;
    if (i % 3 == 2) {
        s.temperature = 0.7f;
        s.top_k = 40;
        s.repeat_penalty = 1.1f;
        s.presence_penalty = 0.5f;
        s.penalty_window = 32;
    }
    return s;
}

SessionOptions memory_of(uint64_t i, bool formats) {
    SessionOptions o;
    switch (i % 5) {
        case 1: o.windows = {{kAllLayers, 100, 4}}; break;
        case 2:
            if (formats) o.kv_k = o.kv_v = KvType::q8_0;
            o.windows = {{kDraftLayers, 16, 0}};
            break;
        case 3:
            if (formats) o.kv_k = o.kv_v = KvType::q4_0;
            break;
        case 4:
            if (formats) o.kv_k = KvType::q8_0;
            o.windows = {{kAllLayers, 300, 0}};
            break;
        default: break;
    }
    return o;
}

/// Tokens that a caller appends when the text has n tokens; sampled tokens beyond are dropped.
struct Turn {
    size_t n;
    std::vector<Token> ids;
};

/// A session and its first error.
struct Walk {
    Session session;
    Status status;
    const std::vector<Turn>* turns = nullptr;
    size_t i_turn = 0;

    Walk(const Model& model, SessionOptions options, uint32_t n_context) {
        options.n_context = n_context;
        options.n_ubatch = 64;
        status = Session::create(model, options).get(session);
    }
    bool ok() const { return status.ok(); }
    void sync(Span<const Token> ids) {
        if (ok()) status = session.sync(ids).status();
    }
    void cycle(const Sampling& sampling) {
        if (ok()) status = session.next(sampling).status();
    }
    /// Plain decoding until the text has n tokens, turns included.
    void until(size_t n, const Sampling& sampling) {
        while (ok() && size() < n)
            if (!speak()) cycle(sampling);
    }
    bool turn_within(size_t n) const { return turns && i_turn < turns->size() && (*turns)[i_turn].n <= size() + n; }
    /// The turn that is due, if one is.
    bool speak() {
        if (!turn_within(0)) return false;
        const Turn& t = (*turns)[i_turn++];
        std::vector<Token> ids(session.history().begin(), session.history().begin() + static_cast<std::ptrdiff_t>(t.n));
        // A sampled token beyond the turn that equals the appended one would count as kept.
        if (size() > t.n && session.history()[t.n] == t.ids[0]) sync(ids);
        ids.insert(ids.end(), t.ids.begin(), t.ids.end());
        sync(ids);
        return true;
    }
    size_t size() const { return session.history().size(); }
    /// All that makes up the timeline, pending terms applied.
    std::vector<std::byte> state() {
        Session::Impl& s = *session.impl();
        std::vector<std::byte> bytes;
        if (ok()) status = s.drain();
        s.timeline.close_step();
        if (ok()) status = s.context->save(static_cast<uint32_t>(s.timeline.n_row()), &bytes);
        return bytes;
    }
};

std::vector<Token> random_ids(size_t n, uint32_t n_vocab, uint64_t seed) {
    Random random(seed);
    std::vector<Token> ids(n);
    for (Token& id : ids) id = static_cast<Token>(random.below(n_vocab));
    return ids;
}

/// Compares the whole state of both at the same token.
std::string compare(Walk& drafted, Walk& plain, const Sampling& sampling, FuzzCounts* counts) {
    if (drafted.ok() &&
        drafted.session.impl()->timeline.n_row() == drafted.size()) {  // after a cut or a turn nothing is pending
        drafted.status = drafted.session.set_draft_depth(0);
        drafted.cycle(sampling);
    }
    plain.until(drafted.size(), sampling);
    const std::vector<std::byte> a = drafted.state(), b = plain.state();
    if (!drafted.ok()) return "drafting: " + drafted.status.message();
    if (!plain.ok()) return "plain decoding: " + plain.status.message();
    ++counts->n_compared;
    const Span<const Token> x = drafted.session.history(), y = plain.session.history();
    if (x.size() != y.size() || !std::equal(x.begin(), x.end(), y.begin()))
        return say("the texts differ before token ", x.size());
    if (drafted.session.impl()->timeline.n_row() != plain.session.impl()->timeline.n_row())
        return say("one has ", drafted.session.impl()->timeline.n_row(), " rows, the other ",
                   plain.session.impl()->timeline.n_row());
    if (a.size() != b.size()) return say("the states have ", a.size(), " and ", b.size(), " bytes");
    for (size_t i = 0; i < a.size(); ++i)
        if (a[i] != b[i]) return say("the states differ at byte ", i, " of ", a.size(), " after ", x.size(), " tokens");
    return {};
}

void count(const Stats& stats, FuzzCounts* counts) {
    for (uint32_t i = 0; i <= kMaxDraft; ++i) counts->n_cycle += stats.cycles[i];
    for (uint32_t i = 0; i < kMaxDraft; ++i) {
        counts->n_drafted += stats.drafted[i];
        counts->n_accepted += stats.accepted[i];
    }
}

}  // namespace

std::string fuzz_state(const Model& model, const FuzzOptions& o, FuzzCounts* counts) {
    const uint32_t n_vocab = model.info().n_vocab, n_room = 64;
    const uint64_t goal = counts->n_cycle + o.n_cycle;
    for (uint64_t seed = o.seed; counts->n_cycle < goal; ++seed) {
        Random random(seed);
        const std::vector<Token> prompt = random_ids(1 + random.below(90), n_vocab, seed);
        const Sampling sampling = sampling_of(seed);
        SessionOptions options = memory_of(seed, o.formats);
        const uint32_t n_context = static_cast<uint32_t>(prompt.size()) + o.n_text + n_room;
        auto where = [&](const std::string& what) { return what.empty() ? what : say("text ", seed, ": ", what); };

        std::vector<Turn> turns;
        for (size_t at = prompt.size() + 30 + random.below(60); at + 90 < n_context; at += 60 + random.below(100))
            turns.push_back({at, random_ids(1 + random.below(50), n_vocab, at)});

        Walk first(model, options, n_context), plain(model, options, n_context);
        first.turns = plain.turns = &turns;
        first.sync(prompt);
        first.until(n_context, sampling);
        if (!first.ok()) return where("plain decoding: " + first.status.message());
        const std::vector<Token> truth(first.session.history().begin(), first.session.history().end());

        const bool mtp = model.info().n_mtp != 0;
        options.draft.source = mtp ? Draft::mtp_lookup : Draft::lookup;
        options.draft.window = random.below(2) != 0 ? 16 : 4096;
        Walk drafted(model, options, n_context);
        drafted.turns = &turns;
        drafted.sync(prompt);
        plain.sync(prompt);
        if (!drafted.ok()) return where("drafting: " + drafted.status.message());
        Session::Impl& impl = *drafted.session.impl();
        size_t next_look = prompt.size() + 1 + random.below(40);
        while (drafted.ok() && drafted.size() + kMaxDraft + 1 < n_context) {
            if (drafted.speak()) {
                ++counts->n_turn;
                continue;
            }
            const bool near = drafted.turn_within(kMaxDraft + 1);
            if (drafted.size() >= next_look && !near) {
                const std::string bad = compare(drafted, plain, sampling, counts);
                if (!bad.empty()) return where(bad);
                next_look = drafted.size() + 1 + random.below(80);
                continue;
            }
            switch (random.below(6)) {  // another source, or the one before
                case 0: impl.sources.text.reset(new Noise(random.next(), n_vocab)); break;
                case 1: impl.sources.text.reset(new Teacher(truth, n_vocab, random.next())); break;
                case 2: impl.sources.text.reset(new Wrong(truth, n_vocab)); break;
                case 3: impl.sources.text.reset(new detail::Lookup); break;
                case 4:
                    if (mtp) impl.sources.text.reset();
                    break;
                default: break;
            }
            drafted.status = drafted.session.set_draft_depth(static_cast<int>(random.below(kMaxDraft + 1)));
            const size_t size = drafted.size();
            drafted.cycle(sampling);
            if (!drafted.ok()) break;
            const size_t n_new = drafted.size() - size;
            const size_t n_true =
                std::min(drafted.size(),
                         near ? turns[drafted.i_turn].n : drafted.size());  // tokens beyond a turn are dropped
            if (!std::equal(truth.begin(), truth.begin() + static_cast<std::ptrdiff_t>(n_true),
                            drafted.session.history().begin()))
                return where(say("another text after token ", size));
            if (n_new > 1 && !near && random.below(4) == 0) {  // keep fewer than were accepted: a shorter commit
                const std::vector<Token> less(
                    drafted.session.history().begin(),
                    drafted.session.history().begin() +
                        static_cast<std::ptrdiff_t>(size + 1 + random.below(static_cast<uint32_t>(n_new) - 1)));
                drafted.sync(less);
                ++counts->n_stepped_back;
            }
        }
        const std::string bad = compare(drafted, plain, sampling, counts);
        if (!bad.empty()) return where(bad);
        count(drafted.session.stats(), counts);
    }
    return {};
}

std::string reject_all(const Model& model, const FuzzOptions& o, FuzzCounts* counts) {
    const uint32_t n_vocab = model.info().n_vocab;
    const std::vector<Token> prompt = random_ids(10, n_vocab, o.seed);
    const Sampling sampling = sampling_of(1);
    const uint32_t n_context = static_cast<uint32_t>(prompt.size() + o.n_rejection) + 64;
    Walk first(model, {}, n_context), plain(model, {}, n_context);
    first.sync(prompt);
    first.until(n_context, sampling);
    plain.sync(prompt);
    if (!first.ok()) return "plain decoding: " + first.status.message();
    SessionOptions options;
    options.draft.source = Draft::lookup;
    Walk drafted(model, options, n_context);
    drafted.sync(prompt);
    if (!drafted.ok()) return "drafting: " + drafted.status.message();
    drafted.session.impl()->sources.text.reset(
        new Wrong({first.session.history().begin(), first.session.history().end()}, n_vocab));
    // Cycles without drafts: the first one samples from the prompt's logits, and one every kReplyStride tokens ends at
    // a row whose state is kept.
    const uint64_t n_plain = 2 + o.n_rejection / detail::kReplyStride;
    for (uint64_t i = 0; i < o.n_rejection + n_plain; ++i) {
        if (drafted.ok()) drafted.status = drafted.session.set_draft_depth(static_cast<int>(1 + i % kMaxDraft));
        drafted.cycle(sampling);
    }
    const std::string bad = compare(drafted, plain, sampling, counts);
    if (!bad.empty()) return bad;
    const Stats stats = drafted.session.stats();
    if (stats.accepted[0] != 0) return say(stats.accepted[0], " wrong guesses were accepted");
    if (stats.drafted[0] < o.n_rejection) return say("only ", stats.drafted[0], " cycles drafted");
    count(stats, counts);
    return {};
}

}  // namespace test

// Sessions in the device decode loop: drafting there changes the speed, never the text.
#include <doctest/doctest.h>

#ifndef AUSPEX_NO_VULKAN
#include "../src/machine/vulkan/loaded_model.h"
#include "../tools/synthetic_acceptance.h"
#include "draft_sources.h"
#include "session_file_rig.h"
#include "tiny.h"

#include <thread>

using namespace auspex;
using namespace auspex::detail;
using namespace test;

namespace test_device_loop {

/// One device for all tests here. Null where there is none.
const Device& device() {
    // Never destroyed: a driver's own exit handlers run before those of this program.
    static Device& one = *new Device;
    if (!one) one = gpu_device();
    return one;
}

struct Tiny {
    std::vector<std::byte> bytes;
    Model model;
    Tiny() : bytes(tiny_model(narrow())), model(load_model(device(), bytes)) {}
};

SessionOptions drafting(int depth, uint32_t run_ahead = 0) {
    SessionOptions o;
    o.n_context = 512;
    o.n_ubatch = 64;
    o.draft.source = depth == -2 ? Draft::off : Draft::mtp;
    o.draft.depth = depth == -2 ? 0 : depth;
    o.run_ahead = run_ahead;
    return o;
}
constexpr int kOff = -2;

/// A new text in the session.
std::vector<Token> text(Session& session, const std::vector<Token>& prompt, size_t n, const Sampling& sampling = {}) {
    sync(session, {});
    session.clear_stats();
    sync(session, prompt);
    std::vector<Token> out = more(session, n, sampling);
    out.resize(n);
    return out;
}

}  // namespace test_device_loop

using namespace test_device_loop;

TEST_CASE("lossless drafting in the device loop: the same text at every depth and run-ahead") {
    if (!device()) return;
    const Tiny tiny;
    const std::vector<Token> prompt = tiny_ids(70, 13);
    Session off = open(tiny.model, drafting(kOff)), host = open(tiny.model, drafting(0));
    host.impl()->host_only = true;
    std::vector<Session> looped;
    for (uint32_t run_ahead : {0u, 3u}) looped.push_back(open(tiny.model, drafting(0, run_ahead)));
    uint64_t n_accepted = 0, n_rejected = 0;
    size_t i_sampling = 0;
    for (const Sampling& sampling : samplings()) {
        CAPTURE(i_sampling);
        ++i_sampling;
        const size_t n_token = deep() ? 40 : 12;
        const std::vector<Token> plain = text(off, prompt, n_token, sampling);
        for (int depth : {0, 1, 3, 8, -1}) {
            if (!deep() && depth == 1) continue;  // the next test case runs every depth
            CAPTURE(depth);
            // Every depth greedily, the controller and the deepest drafts with penalties, three drafts with the others.
            const bool covering = i_sampling == 1 || (i_sampling == 4 ? depth == 8 || depth == -1 : depth == 3);
            if (!deep() && !covering) continue;
            REQUIRE(host.set_draft_depth(depth).ok());
            CHECK(text(host, prompt, n_token, sampling) == plain);
            const Stats want = host.stats();
            for (Session& session : looped) {
                // Run ahead finds more.
                if (!deep() && (i_sampling != 1 || depth != 8) && &session == &looped[0]) continue;
                REQUIRE(session.set_draft_depth(depth).ok());
                CHECK(text(session, prompt, n_token, sampling) == plain);
                const Stats stats = session.stats();
                n_accepted += sum(stats.accepted, kMaxDraft);
                n_rejected += sum(stats.drafted, kMaxDraft) - sum(stats.accepted, kMaxDraft);
                if (depth < 0) continue;
                CHECK(stats.cycles[depth] > 3);
                // The same guesses as the host makes, so the block's cache is the same.
                for (uint32_t i = 0; i < kMaxDraft; ++i) CHECK(stats.accepted[i] == want.accepted[i]);
            }
        }
    }
    CHECK(n_accepted > (deep() ? 50 : 3));
    CHECK(n_rejected > 50);
}

TEST_CASE("lossless drafting in the device loop: drafts made from the text go up with their cycle") {
    if (!device()) return;
    const Tiny tiny;
    const uint32_t n_vocab = tiny.model.info().n_vocab;
    const size_t n_token = deep() ? 80 : 40;
    Session off = open(tiny.model, drafting(kOff));
    size_t i_sampling = 0;
    for (const Sampling& sampling : samplings()) {
        if (++i_sampling > 2 && !deep()) continue;  // greedy, and with a seed
        std::vector<Token> prompt, plain;
        const auto ends = [&] {  // host and device do not count the draft of an end token alike
            return std::any_of(plain.begin(), plain.end(), [&](Token id) { return tiny.model.is_end(id); });
        };
        for (uint32_t seed = 12; plain.empty() || ends(); ++seed) {
            prompt = tiny_ids(30, seed);
            plain = text(off, prompt, n_token, sampling);
        }
        const std::vector<Token> truth = join(prompt, plain);
        for (const Draft source : {Draft::lookup, Draft::mtp_lookup}) {
            uint64_t accepted_on_host[kMaxDraft] = {};
            for (int run_ahead : {-1, 0, 3}) {  // -1: by the host
                CAPTURE(i_sampling);
                CAPTURE(static_cast<int>(source));
                CAPTURE(run_ahead);
                SessionOptions o = drafting(5, static_cast<uint32_t>(std::max(run_ahead, 0)));
                o.draft.source = source;
                Session session = open(tiny.model, o);
                session.impl()->host_only = run_ahead < 0;
                session.impl()->sources.text.reset(new Teacher(truth, n_vocab, 3));
                CHECK(text(session, prompt, n_token, sampling) == plain);
                const Stats stats = session.stats();
                CHECK(sum(stats.accepted, kMaxDraft) >= n_token / 3);
                CHECK(sum(stats.drafted, kMaxDraft) > sum(stats.accepted, kMaxDraft));
                for (uint32_t i = 0; i < kMaxDraft; ++i) {
                    if (run_ahead < 0) accepted_on_host[i] = stats.accepted[i];
                    // The same guesses as the host makes, also those of the block between them.
                    if (run_ahead == 0) CHECK(stats.accepted[i] == accepted_on_host[i]);
                }
            }
        }
    }
}

namespace test_device_loop {

/// n biases that decide most tokens, several of one id among them.
Sampling biased(Sampling sampling, size_t n = 200) {
    Random random(n);
    for (size_t i = 0; i < n; ++i)
        sampling.logit_bias.push_back({static_cast<Token>(random.below(kTinyVocab)), random.normal() * 2});
    return sampling;
}

}  // namespace test_device_loop

TEST_CASE("biased texts in the device loop are the host's, with the same drafts") {
    if (!device()) return;
    const Tiny tiny;
    const std::vector<Token> prompt = tiny_ids(40, 12);
    const size_t n_token = deep() ? 40 : 10;
    const std::vector<Sampling> ways = samplings();
    for (const uint32_t n_vocab : {0u, 100u}) {  // of the draft head; 0: all
        SessionOptions o = drafting(0);
        o.draft.n_vocab = n_vocab;
        Session host = open(tiny.model, o), looped = open(tiny.model, o);
        o.run_ahead = 3;
        Session ahead = open(tiny.model, o);
        host.impl()->host_only = true;
        for (const size_t i : {size_t{0}, size_t{1}, size_t{3}}) {  // greedy, filtered, with penalties
            if (n_vocab != 0 && i != 0 && !deep()) continue;
            const Sampling sampling = biased(ways[i]);
            REQUIRE(host.set_draft_depth(0).ok());
            const std::vector<Token> plain = text(host, prompt, n_token, sampling);
            CHECK(plain != text(host, prompt, n_token, ways[i]));
            for (const int depth : {0, 1, 2, 3, 8}) {
                if (!deep() && depth != 3 && (i != 0 || n_vocab != 0 || depth == 1)) continue;
                CAPTURE(n_vocab);
                CAPTURE(i);
                CAPTURE(depth);
                for (Session* s : {&host, &looped, &ahead}) {
                    REQUIRE(s->set_draft_depth(depth).ok());
                    CHECK(text(*s, prompt, n_token, sampling) == plain);
                }
                CHECK(looped.impl()->device->same_sampling(sampling));
                // A draft head of chosen ids has no noise and no penalties on the device.
                if (n_vocab != 0 && i != 0) continue;
                for (int k = 0; k < depth; ++k) CHECK(looped.stats().accepted[k] == host.stats().accepted[k]);
            }
        }
    }
}

TEST_CASE("biased texts in the device loop: drafts know the biases, and drafts from the text are verified with them") {
    if (!device()) return;
    const Tiny tiny;
    const std::vector<Token> prompt = tiny_ids(30, 12);
    Sampling one;
    one.logit_bias = {{65, 400}, {65, 500}, {66, 800}};
    Session session = open(tiny.model, drafting(4, 1));
    CHECK(text(session, prompt, 20, one) == std::vector<Token>(20, 65));
    CHECK(session.stats().accepted[3] > 0);
    CHECK(session.stats().accepted[3] == session.stats().drafted[3]);
    for (const Sampling& way : {samplings()[0], samplings()[2]}) {
        const Sampling sampling = biased(way);
        Session off = open(tiny.model, drafting(kOff));
        off.impl()->host_only = true;
        const std::vector<Token> plain = text(off, prompt, 30, sampling);
        SessionOptions o = drafting(5);
        o.draft.source = Draft::lookup;
        Session lookup = open(tiny.model, o);
        CHECK(text(lookup, prompt, 30, sampling) == plain);
        lookup.impl()->sources.text.reset(new Teacher(join(prompt, plain), tiny.model.info().n_vocab, 3));
        CHECK(text(lookup, prompt, 30, sampling) == plain);
        CHECK(sum(lookup.stats().accepted, kMaxDraft) >= 5);
    }
}

TEST_CASE("the device loop takes 1024 biases; with more the host samples the same text") {
    if (!device()) return;
    const Tiny tiny;
    const std::vector<Token> prompt = tiny_ids(20, 8);
    Session host = open(tiny.model, drafting(kOff)), looped = open(tiny.model, drafting(2, 1));
    host.impl()->host_only = true;
    for (const size_t n : {kMaxLoopBias, kMaxLoopBias + 1}) {
        CAPTURE(n);
        const Sampling sampling = biased({}, n);
        CHECK(text(looped, prompt, 10, sampling) == text(host, prompt, 10, sampling));
        CHECK(looped.impl()->device->same_sampling(sampling) == (n == kMaxLoopBias));
    }
}

TEST_CASE("tokens that were sampled ahead with a bias are not given to a caller without it, nor from a file") {
    if (!device()) return;
    const Tiny tiny;
    const std::vector<Token> prompt = tiny_ids(20, 8);
    const Sampling sampling = biased({});
    Session off = open(tiny.model, drafting(kOff)), first = open(tiny.model, drafting(kOff, 3));
    const std::vector<Token> plain = text(off, prompt, 8, sampling);
    for (const bool file : {false, true}) {
        CAPTURE(file);
        CHECK(text(first, prompt, 4, sampling) == std::vector<Token>(plain.begin(), plain.begin() + 4));
        sync(off, join(prompt, {plain.begin(), plain.begin() + 4}));
        const std::vector<Token> free = more(off, 4);
        Session second;
        const test_session_file::Folder folder;
        if (file) {
            REQUIRE(first.save(folder.file().c_str()).ok());
            second = open(tiny.model, drafting(kOff, 3));
            REQUIRE(second.load(folder.file().c_str()).ok());
        }
        CHECK(more(file ? second : first, 4) == free);
    }
}

TEST_CASE("the controller weighs drafts made from the text in the device loop") {
    if (!device()) return;
    const Tiny tiny;
    const std::vector<Token> prompt = tiny_ids(30, 12);
    Session off = open(tiny.model, drafting(kOff));
    const size_t n_token = deep() ? 200 : 90;
    const std::vector<Token> plain = text(off, prompt, n_token);
    const auto copying = [&](int depth) {
        SessionOptions o = drafting(depth);
        o.draft.source = Draft::lookup;
        o.draft.max_depth = 4;
        Session session = open(tiny.model, o);
        while (!session.impl()->context->device_loop()->ready(4))
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        session.impl()->sources.text.reset(new Truth(join(prompt, plain)));
        return session;
    };
    for (int depth = 1; depth <= 4; ++depth) {
        Session first = copying(depth);
        CHECK(text(first, prompt, 20) == std::vector<Token>(plain.begin(), plain.begin() + 20));
    }
    Session session = copying(-1);
    // It begins with the costs of another session: on a busy machine its own first cycles say nothing of the kernels.
    detail::Controller before(0, 4);
    for (uint32_t i = 0; i < 40; ++i) {
        detail::DraftSeen seen;
        seen.depth = seen.accepted = i % 5;
        seen.from_text = seen.depth > 0;
        seen.seconds = 1e-3 * (1 + 0.3 * seen.depth);
        before.observe(seen);
    }
    REQUIRE(session.impl()->depth->control.load_costs(before.save_costs()).ok());
    // All drafts are right; how many are tried depends on the time they take, so a busy machine gets more texts.
    uint64_t n_accepted = 0;
    for (int n_text = 0; n_text < 20 && n_accepted <= 4; ++n_text) {
        CHECK(text(session, prompt, n_token) == plain);
        n_accepted += sum(session.stats().accepted, kMaxDraft);
    }
    CHECK(n_accepted > 4);
}

TEST_CASE("drafts in the device loop end before an unlikely one, as the host's do") {
    if (!device()) return;
    struct Case {
        Family family;
        uint32_t n_vocab;  // of the draft head; 0: all
        float temperature;
    };
    for (const Case& c : {Case{Family::qwen35, 100, 0}, Case{Family::qwen35, 0, 1}, Case{Family::step35, 0, 0}}) {
        CAPTURE(family_name(c.family));
        CAPTURE(c.n_vocab);
        TinyOptions tiny = narrow();
        tiny.family = c.family;
        tiny.scale = 4;  // some guesses are likely
        const std::vector<std::byte> bytes = tiny_model(tiny);
        const Model model = load_model(device(), bytes);
        const std::vector<Token> prompt = tiny_ids(30, 12);
        Sampling sampling;
        sampling.temperature = c.temperature;
        const size_t n_token = deep() ? 100 : 24;
        Session off = open(model, drafting(kOff));
        const std::vector<Token> plain = text(off, prompt, n_token, sampling);
        uint64_t n_cut = 0, n_kept = 0;
        const auto stats = [&](float min_probability, int depth, int run_ahead) {  // -1: by the host
            CAPTURE(min_probability);
            CAPTURE(depth);
            CAPTURE(run_ahead);
            SessionOptions o = drafting(depth, static_cast<uint32_t>(std::max(run_ahead, 0)));
            o.draft.min_probability = min_probability;
            o.draft.n_vocab = c.n_vocab;
            Session session = open(model, o);
            session.impl()->host_only = run_ahead < 0;
            CHECK(text(session, prompt, n_token, sampling) == plain);
            const Stats seen = session.stats();
            n_kept += seen.drafted[0];
            for (int i = 0; i < depth; ++i) n_cut += seen.cycles[i];
            return seen;
        };
        // Deeper cycles begin elsewhere on the device: they are queued for what is likely.
        const Stats host = stats(0.3f, 1, -1), looped = stats(0.3f, 1, 0);
        CHECK(looped.drafted[0] == host.drafted[0]);
        CHECK(looped.accepted[0] == host.accepted[0]);
        stats(0.3f, 4, 2);
        if (deep()) stats(0.05f, 4, 0);
        if (deep() || c.temperature > 0) CHECK(sum(stats(1, 4, 0).drafted, kMaxDraft) == 0);
        CHECK(n_kept > 4);
        CHECK(n_cut > 4);
    }
}

TEST_CASE("changing depths and other calls between cycles change neither the text nor the drafts") {
    if (!device()) return;
    const Tiny tiny;
    const std::vector<Token> prompt = tiny_ids(40, 3);
    Sampling sampling;
    sampling.temperature = 1;
    sampling.seed = 9;
    Session plain = open(tiny.model, drafting(kOff));
    sync(plain, prompt);
    std::vector<Token> truth = prompt;
    const size_t n_token = deep() ? 250 : 85;
    const std::vector<Token> made = more(plain, n_token, sampling);  // more than the session can know beside its prompt
    truth.insert(truth.end(), made.begin(), made.end());
    uint64_t of_host = 0;
    for (int run_ahead : {-1, 0, 3}) {  // -1: by the host
        CAPTURE(run_ahead);
        Session session = open(tiny.model, drafting(0, static_cast<uint32_t>(std::max(run_ahead, 0))));
        session.impl()->host_only = run_ahead < 0;
        sync(session, prompt);
        Random random(5);
        Snapshot snap;
        size_t n_saved = 0;
        while (session.history().size() < n_token) {
            REQUIRE(session.set_draft_depth(static_cast<int>(random.below(9))).ok());
            more(session, 1 + random.below(6), sampling);
            const std::vector<Token> now = history(session);
            switch (random.below(8)) {
                case 0: sync(session, now); break;
                case 1: {  // what came after a stop is dropped
                    const std::vector<Token> shorter(now.begin(),
                                                     now.end() - static_cast<std::ptrdiff_t>(random.below(4)));
                    sync(session, shorter);
                    break;
                }
                case 2:
                    REQUIRE(session.save().get(snap).ok());
                    n_saved = now.size();  // not what was computed ahead
                    break;
                case 3:
                    if (n_saved == 0) break;
                    REQUIRE(session.restore(snap).ok());
                    CHECK(session.history().size() == n_saved);
                    CHECK(snap.n_token == n_saved);
                    break;
                default: break;
            }
            REQUIRE(std::equal(session.history().begin(), session.history().end(), truth.begin()));
        }
        const uint64_t n = sum(session.stats().accepted, kMaxDraft);
        if (run_ahead < 0) of_host = n;
        if (run_ahead == 0) CHECK(n == of_host);
        CHECK(n > (deep() ? 10 : 0));
    }
}

TEST_CASE("a session in the device loop drops tokens after a stop without a prefill") {
    if (!device()) return;
    const Tiny tiny;
    const std::vector<Token> prompt = tiny_ids(40, 3);
    Session session = open(tiny.model, drafting(6));
    tools::set_acceptance(session, 1);  // every guess stands: long cycles
    sync(session, prompt);
    more(session, 2);
    while (more(session, 1).size() < 5) {
    }
    std::vector<Token> now = history(session);
    now.resize(now.size() - 3);
    CHECK(sync(session, now).rows_computed == 0);
    CHECK(session.history().size() == now.size());
    Session other = open(tiny.model, drafting(kOff));
    sync(other, now);
    tools::set_acceptance(session, 0);
    CHECK(more(session, 12).front() == more(other, 12).front());
    const size_t n = std::min(session.history().size(), other.history().size());
    CHECK(std::equal(session.history().begin(), session.history().begin() + static_cast<std::ptrdiff_t>(n),
                     other.history().begin()));
}

TEST_CASE("synthetic acceptance runs real cycles with the given acceptance on host and device") {
    const std::vector<Token> prompt = tiny_ids(20, 5);
    std::vector<uint64_t> first;
    for (const bool looped : {false, true}) {
        if (looped && !device()) continue;
        const std::vector<std::byte> bytes = tiny_model(narrow());
        const Model model = load_model(looped ? device() : cpu_device(), bytes);
        Session session = open(model, drafting(4, looped ? 2 : 0));
        tools::set_acceptance(session, 0.8f);
        sync(session, prompt);
        more(session, 300);
        const Stats s = session.stats();
        REQUIRE(s.cycles[4] > 50);
        // Acceptance at places 1 and 2, given those before: both have the given chance.
        CHECK(double(s.accepted[0]) / double(s.drafted[0]) == doctest::Approx(0.8).epsilon(0.12));
        CHECK(double(s.accepted[1]) / double(s.accepted[0]) == doctest::Approx(0.8).epsilon(0.15));
        const std::vector<uint64_t> now(s.accepted, s.accepted + 4);
        if (first.empty()) first = now;
        CHECK(now == first);  // the same guesses on both
    }
}

TEST_CASE("with a controller no text waits for a pipeline: starting, stopping and resuming drafts need no new one") {
    if (!device()) return;
    const Tiny tiny;
    const auto& pipelines = static_cast<const vk::VulkanModel&>(*tiny.model.impl()->program).device->pipelines;
    Session session = open(tiny.model, drafting(-1, 2));
    Session::Impl& s = *session.impl();
    for (const Sampling& sampling : {samplings()[0], samplings()[3]}) {
        CAPTURE(sampling.temperature);
        text(session, tiny_ids(30, 2), 6, sampling);
        REQUIRE(pipelines->wait_all().ok());
        CHECK(s.device->usable_depths() == (2u << s.options.draft.max_depth) - 1);
        tools::set_acceptance(session, 0.7f);
        more(session, 2, sampling);
        const size_t n = pipelines->size();
        for (const int depth : {3, 0, 6, 1, 2, 0, 5, 4, 0, 6, 6, 0, 1}) {
            REQUIRE(session.set_draft_depth(depth).ok());
            more(session, depth == 0 ? 7 + s.timeline.size() % 13 : 5, sampling);
        }
        std::vector<uint32_t> rests{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 17, 33, 39};
        if (!deep() && sampling.temperature != 0) rests = {1, 7, 8, 9, 39};  // the lengths of catch-up are the same
        for (const uint32_t rest : rests) {                                  // so far behind
            REQUIRE(session.set_draft_depth(0).ok());
            more(session, rest, sampling);
            REQUIRE(session.set_draft_depth(2).ok());
            more(session, 1, sampling);
            if (s.timeline.size() > 440)
                text(session, tiny_ids(30, 3), 6, sampling), tools::set_acceptance(session, 0.7f);
        }
        REQUIRE(session.set_draft_depth(0).ok());
        for (const uint32_t rows : {4u, 5u, 6u, 7u, Controller::kMaxAcceptanceProbe}) {
            more(session, rows, sampling);
            REQUIRE(s.drain().ok());
            AcceptanceProbe looked;
            REQUIRE(s.sources.mtp.acceptance_probe(s.timeline.tokens(), rows, sampling, s.judge.get(), true)
                        .get(looked)
                        .ok());
            CHECK(looked.n == rows);
            CHECK(looked.seconds > 0);
            if (s.timeline.size() > 440) text(session, tiny_ids(30, 4), 20, sampling);
        }
        CHECK(pipelines->size() == n);
        tools::set_acceptance(session, 0);
        REQUIRE(session.set_draft_depth(-1).ok());
    }
    // With its kernels there a text begins as one that drafts, though its first cycle is plain: no change of course
    // before the second.
    std::vector<DraftCycle> seen;
    SessionOptions o = drafting(-1, 2);
    o.on_cycle = [&](const DraftCycle& c) { seen.push_back(c); };
    Session other = open(tiny.model, o);
    sync(other, tiny_ids(30, 5));
    more(other, 2);  // the first comes from the prompt's logits
    REQUIRE(!seen.empty());
    CHECK(seen[0].depth == 0);
    CHECK(seen[0].catch_up_us > 0);
}

TEST_CASE("run_ahead has no effect on the text where the sampling changes, or another call comes between") {
    if (!device()) return;
    const Tiny tiny;
    const std::vector<Token> prompt = tiny_ids(20, 8);
    Sampling hot;
    hot.temperature = 5;
    hot.seed = 42;
    std::vector<Token> want;
    for (const uint32_t run_ahead : {0u, 1u, 3u}) {
        CAPTURE(run_ahead);
        Session session = open(tiny.model, drafting(kOff, run_ahead));
        sync(session, prompt);
        std::vector<Token> out;
        for (int i = 0; i < 14; ++i) {
            const std::vector<Token> one = more(session, 1, i < 4 || i > 9 ? Sampling() : hot);
            out.insert(out.end(), one.begin(), one.end());
            if (i == 6 || i == 9) REQUIRE(session.save().ok());  // waits for what is queued
        }
        REQUIRE(session.history().size() == prompt.size() + out.size());
        CHECK(std::equal(out.begin(), out.end(), session.history().begin() + 20));
        if (run_ahead == 0) want = out;
        CHECK(out == want);
    }
}

TEST_CASE("one call of next() gives the tokens of one cycle at most, also where many were queued ahead") {
    if (!device()) return;
    const Tiny tiny;
    Session session = open(tiny.model, drafting(8, 7));
    tools::set_acceptance(session, 0.9f);
    sync(session, tiny_ids(20, 8));
    size_t n_token = session.history().size(), max_given = 0, n_after = 0;
    for (int i = 0; i < 40; ++i) {
        if (i == 12) REQUIRE(session.set_draft_depth(0).ok());  // after some plain cycles the queue is drained
        Span<const Token> tokens;
        const Status s = session.next().get(tokens);
        CHECK_MESSAGE(s.ok(), s.message());
        n_token += tokens.size();
        max_given = std::max(max_given, tokens.size());
        if (i > 12) n_after += tokens.size();
        CHECK(session.history().size() == n_token);
    }
    CHECK(max_given > 4);
    CHECK(max_given <= kMaxDraft + 1);
    CHECK(n_after > 27);
}

TEST_CASE("a reply that pauses keeps what was sampled ahead, and goes on without computing it again") {
    if (!device()) return;
    const Tiny tiny;
    const std::vector<Token> prompts[] = {tiny_ids(20, 8), tiny_ids(25, 3)};
    for (const int depth : {0, 2}) {
        Session alone = open(tiny.model, drafting(depth, 7)), shared = open(tiny.model, drafting(depth, 7));
        ReplyOptions options;
        options.max_tokens = 40;
        options.parse = false;
        ReplyGenerator replies[2];
        std::vector<Token> expected[2];
        for (size_t i = 0; i < 2; ++i) {
            sync(alone, prompts[i]);
            ReplyGenerator reply(tiny.model, alone, options);
            while (reply.ended() == Finish::none) REQUIRE(reply.next().ok());
            expected[i].assign(reply.tokens().begin(), reply.tokens().end());
            sync(shared, prompts[i]);
            replies[i] = ReplyGenerator(tiny.model, shared, options);
            REQUIRE(replies[i].next().ok());  // else the prompt's last row is computed again
            REQUIRE(replies[i].pause().ok());
        }
        shared.clear_stats();
        size_t n_turn = 0;
        while (replies[0].ended() == Finish::none || replies[1].ended() == Finish::none) {
            ReplyGenerator& reply = replies[n_turn++ % 2];
            if (reply.ended() != Finish::none) continue;
            REQUIRE(reply.resume().ok());
            for (size_t step = 0; step < 3 && reply.ended() == Finish::none; ++step) REQUIRE(reply.next().ok());
            if (reply.ended() == Finish::none) REQUIRE(reply.pause().ok());
        }
        CHECK(n_turn > 4);
        CHECK(shared.stats().rows_prefilled <= n_turn);
        for (size_t i = 0; i < 2; ++i)
            CHECK(std::vector<Token>(replies[i].tokens().begin(), replies[i].tokens().end()) == expected[i]);
    }
}

TEST_CASE("the controller keeps learning while drafting is off, and its statistics add up") {
    if (!device()) return;
    const Tiny tiny;
    std::vector<DraftCycle> seen;
    SessionOptions o = drafting(-1, 1);
    o.on_cycle = [&](const DraftCycle& c) { seen.push_back(c); };
    Session session = open(tiny.model, o);
    sync(session, tiny_ids(30, 2));
    more(session, 300);
    const DraftReport r = session.draft_report();
    CHECK(r.n_cycle == seen.size());
    CHECK(r.n_token == sum(r.tokens, kMaxDraft + 1));
    uint64_t n_token = 0;
    for (const DraftCycle& c : seen) {
        CHECK(c.accepted <= c.depth);
        CHECK(c.us > 0);
        CHECK(c.us < 60e6);  // a mark missed counts from the beginning of time
        CHECK(c.depth <= c.chosen);
        CHECK(c.us > 0);
        n_token += 1 + c.accepted;
    }
    CHECK(n_token == r.n_token);
    CHECK(session.history().size() == 30 + 1 + r.n_token);
    CHECK(r.n_probe + r.cycles[1] + r.cycles[2] > 0);
    MESSAGE("depth " << r.depth << std::string(r.unprofitable ? ", unprofitable" : "") << ", R(1) "
                     << r.relative_cost[1] << ", R(2) " << r.relative_cost[2] << ", R(4) " << r.relative_cost[4]
                     << ", gain " << r.speedup());
    session.clear_stats();
    CHECK(session.draft_report().n_token == 0);
    CHECK(session.draft_report().relative_cost[1] == doctest::Approx(r.relative_cost[1]));
}

#endif  // AUSPEX_NO_VULKAN

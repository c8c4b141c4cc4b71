// A fork gives the text that its session would have given, and neither disturbs the other.
#include "allocations.h"
#include "fork_rig.h"

#include <thread>

using namespace fork_rig;

namespace test_fork {

constexpr size_t kPrompt = 45, kEnd = 62;

/// Forks after n_before generated tokens; both go on by turns.
void check_text(const Model& model, const SessionOptions& options, const Sampling& sampling, size_t n_before) {
    const std::vector<Token> prompt = tiny_ids(kPrompt, 12);
    SessionOptions plain_options = options;
    plain_options.draft.source = Draft::off;
    plain_options.draft.depth = 0;
    Session plain = open(model, plain_options), session = open(model, options);
    sync(plain, prompt);
    grow(plain, kEnd, sampling);
    sync(session, prompt);
    grow(session, kPrompt + n_before, sampling);
    const std::vector<Token> before = history(session);
    const uint64_t prefilled = session.stats().rows_prefilled;
    Session other = fork(session);
    CHECK(history(session) == before);
    CHECK(history(other) == before);
    CHECK(other.stats().rows_prefilled == 0);
    CHECK(other.stats().memory_bytes == session.stats().memory_bytes);
    while (session.history().size() < kEnd || other.history().size() < kEnd) {
        Session& next = session.history().size() <= other.history().size() ? session : other;
        grow(next, next.history().size() + 1, sampling);
    }
    CHECK(history(session, kEnd) == history(plain, kEnd));
    CHECK(history(other, kEnd) == history(plain, kEnd));
    CHECK(session.stats().rows_prefilled == prefilled);
    CHECK(other.stats().rows_prefilled == 0);
}

void check_apart(const Model& model, const SessionOptions& options, size_t n_end) {
    const std::vector<Token> prompt = tiny_ids(kPrompt, 3);
    Sampling hot;
    hot.temperature = 1.5f;
    hot.seed = 7;
    Session session = open(model, options), plain = open(model, options);
    sync(plain, prompt);
    grow(plain, n_end);
    sync(session, prompt);
    Session other = fork(session), third = fork(other);
    grow(other, n_end, hot);  // another sampling
    sync(third, tiny_ids(20, 8));
    grow(session, n_end);
    CHECK(history(session, n_end) == history(plain, n_end));
    CHECK(history(other, n_end) != history(plain, n_end));
    sync(third, prompt);
    session = Session();
    grow(third, n_end);
    CHECK(history(third, n_end) == history(plain, n_end));
}

/// A fork goes back to the same checkpoints and the same parked branch. No windows on a GPU: it saves a ring as it is,
/// with rows that were rejected.
void check_kept(const Model& model, const SessionOptions& options) {
    const std::vector<Token> system = tiny_ids(70, 1), title = tiny_ids(20, 2);
    Session session = open(model, options), scratch = open(model, options);
    sync(session, join(system, tiny_ids(30, 3)), {{70, true}});
    grow(session, 103);
    const std::vector<Token> agent = history(session);
    sync(session, title);  // the agent's first rows are parked, the rest lies beyond the live ones
    Session other = fork(session);
    const std::vector<Token> edited = join(system, tiny_ids(20, 4));
    for (const std::vector<Token>& wanted : {join(agent, {1, 2}), edited}) {
        const SyncReport a = sync(session, wanted), b = sync(other, wanted);
        CHECK(a.rows_reused >= 70);
        CHECK(b.rows_reused == a.rows_reused);
        CHECK(b.reason == a.reason);
        CHECK(bytes_of(session) == bytes_of(other));
    }
    sync(scratch, edited, {{70, true}});
    for (Session* s : {&session, &other, &scratch}) grow(*s, 95);
    CHECK(history(session, 95) == history(scratch, 95));
    CHECK(history(other, 95) == history(scratch, 95));
}

void check_all(const Model& model, uint32_t run_ahead) {
    size_t i = 0;
    for (const Sampling& sampling : samplings())
        for (const int depth : {kOff, 0, 3}) {
            CAPTURE(depth);
            CAPTURE(i);
            check_text(model, options_of(depth, run_ahead), sampling, i++ % 4 * 3);
        }
    check_apart(model, options_of(2, run_ahead), kEnd);
    check_kept(model, options_of(kOff, run_ahead));
}

}  // namespace test_fork

using namespace test_fork;

TEST_CASE("a fork gives the text of its session, and neither disturbs the other") {
    const std::vector<std::byte> bytes = tiny_model();
    const Model model = load_model(cpu_device(), bytes);
    check_all(model, 0);
    SessionOptions windows = options_of(2);
    windows.windows = {{kAllLayers, 40, 4}};
    check_text(model, windows, {}, 5);
    check_kept(model, windows);
    SessionOptions formats = options_of(2);
    formats.kv_k = KvType::q8_0;
    formats.kv_v = KvType::q4_0;
    check_text(model, formats, {}, 5);
    formats.draft.n_vocab = 100;
    formats.draft.vocab_by_use = true;
    check_text(model, formats, {}, 5);
    SessionOptions lookup = options_of(3);
    lookup.draft.source = Draft::mtp_lookup;
    lookup.checkpoint_bytes = 0;
    check_text(model, lookup, {}, 5);
}

TEST_CASE("a fork and a moved session take back the last token without computing a row, as their session does") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(), bytes);
    for (const int depth : {kOff, 3}) {
        CAPTURE(depth);
        Session session = open(model, options_of(depth)), moved = open(model, options_of(depth));
        for (Session* s : {&session, &moved}) {
            sync(*s, tiny_ids(40, 31));
            while (s->history().size() < 60) REQUIRE(s->next({}, 60 - s->history().size()).ok());
        }
        Session other = fork(session);
        move(moved, model);
        const std::vector<Token> kept = history(session, 59);
        std::vector<float> want;
        for (Session* s : {&session, &other, &moved}) {
            CHECK(sync(*s, kept).rows_computed == 0);
            const auto logits = s->logits();
            REQUIRE(logits.ok());
            const std::vector<float> row(logits.value().begin(), logits.value().end());
            if (want.empty()) want = row;
            CHECK(row == want);
        }
    }
}

TEST_CASE("a fork and its session run on two threads at the same time") {
    const std::vector<std::byte> bytes = tiny_model();
    Session session = open(load_model(cpu_device(2), bytes), options_of(2));
    sync(session, tiny_ids(kPrompt, 12), {{20, false}});
    Session other = fork(session);
    Status in_thread;
    std::thread thread([&] {
        while (in_thread.ok() && other.history().size() < 200) in_thread = other.next().status();
    });
    grow(session, 200);
    thread.join();
    REQUIRE_MESSAGE(in_thread.ok(), in_thread.message());
    CHECK(history(session, 200) == history(other, 200));
}

TEST_CASE("a fork drafts with what its session knew of the text") {
    const Model model = load_model(cpu_device(), repo_dir() + "/examples/models/auspex-demo.gguf");
    Session session = open(model, options_of(3));
    std::vector<Token> prompt;
    REQUIRE(model.encode("2026-03-14 08:00 Pump-3 status=nominal").get(prompt).ok());
    sync(session, prompt);
    grow(session, 60);
    Session other = fork(session);
    session.clear_stats();
    for (Session* s : {&session, &other}) grow(*s, 100);
    const uint64_t own = sum(session.stats().accepted, kMaxDraft), its = sum(other.stats().accepted, kMaxDraft);
    CHECK(own > 10);
    CHECK(its + 5 >= own);  // it begins with one plain step
}

TEST_CASE("a fork keeps the model when its session and every handle are gone, and of an empty history it is empty") {
    const std::vector<std::byte> bytes = tiny_model();
    Session other, plain;
    {
        const Model model = load_model(cpu_device(), bytes);
        Session session = open(model, options_of(2));
        other = fork(session);
        CHECK(other.history().empty());
        CHECK(other.next().status().code == Code::bad_argument);
        plain = open(model, options_of(kOff));
        sync(session, tiny_ids(30, 1));
        other = fork(fork(session));
    }
    sync(plain, tiny_ids(30, 1));
    for (Session* s : {&plain, &other}) grow(*s, 60);
    CHECK(history(other, 60) == history(plain, 60));
}

TEST_CASE("a fork counts from 0, and has the costs and the depth of its session") {
    const std::vector<std::byte> bytes = tiny_model();
    Session session = open(load_model(cpu_device(), bytes), options_of(-1));
    sync(session, tiny_ids(30, 1));
    grow(session, 80);
    REQUIRE(session.set_draft_depth(1).ok());
    grow(session, 90);
    const DraftReport report = session.draft_report();
    CHECK(report.n_cycle > 0);
    CHECK(report.cycle_seconds[0] > 0);
    Session other = fork(session);
    CHECK(other.draft_report().n_cycle == 0);
    CHECK(session.draft_report().n_cycle == report.n_cycle);
    for (const size_t depth : {size_t{0}, size_t{1}})
        CHECK(other.draft_report().cycle_seconds[depth] == report.cycle_seconds[depth]);
    CHECK((other.stats().tokens_sampled == 0 && other.stats().rows_decoded == 0 && other.stats().prefill_s == 0));
    grow(other, 110);
    CHECK(other.stats().drafted[0] > 0);
    CHECK(other.stats().drafted[1] == 0);
}

TEST_CASE("a fork in a callback, of an empty handle or after a loss is an error that says so") {
    CHECK(Session().fork().status().text.find("never created") != std::string::npos);
    const std::vector<std::byte> bytes = tiny_model();
    SessionOptions o = options_of(kOff);
    Session session;
    Status in_callback;
    o.progress = [&](const char*, float) { return in_callback = session.fork().status(), true; };
    session = open(load_model(cpu_device(), bytes), o);
    sync(session, tiny_ids(40, 1));
    CHECK(in_callback.code == Code::bad_argument);
    CHECK(in_callback.text.find("callback") != std::string::npos);
    lose(session);
    const Status lost = session.fork().status();
    CHECK(lost.code == Code::device_lost);
    CHECK(lost.text.find("move_to()") != std::string::npos);
}

TEST_CASE("where an allocation fails, a fork returns out_of_memory, leaks nothing, and its session goes on") {
    const std::vector<std::byte> bytes = tiny_model();
    const Model model = load_model(cpu_device(), bytes);
    Session session = open(model, options_of(2)), plain = open(model, options_of(2));
    for (Session* s : {&session, &plain}) sync(*s, tiny_ids(100, 1), {{50, true}});
    grow(plain, 140);
    grow(session, 110);
    fork(session);
    int n_failure = 0;
    for (int64_t i = 0;; i += 1 + i / 24, ++n_failure) {
        const int64_t held = n_held.load();
        allocations_until_fault = i;
        const Code code = session.fork().status().code;
        const bool met = allocations_until_fault.exchange(kNever) < 0;
        CHECK(code == (met ? Code::out_of_memory : Code::ok));
        CHECK(n_held.load() == held);
        if (!met) break;
    }
    CHECK(n_failure > 20);
    grow(session, 140);
    CHECK(history(session, 140) == history(plain, 140));
}

#ifndef AUSPEX_NO_VULKAN
TEST_CASE("a fork on the GPU gives the text of its session, with cycles queued ahead too") {
    const Device device = gpu_device();
    if (!device) return;
    const std::vector<std::byte> bytes = tiny_model(gpu_tiny());
    const Model model = load_model(device, bytes);
    check_text(model, options_of(kOff, 2), samplings()[1], 0);
    check_apart(model, options_of(3, 3), kPrompt + 6);
    check_kept(model, options_of(kOff, 0));
    SessionOptions windows = options_of(2, 2);
    windows.windows = {{kAllLayers, 40, 4}};
    check_text(model, windows, samplings()[3], 5);
}
#endif

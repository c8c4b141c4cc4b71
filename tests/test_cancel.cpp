// Session::cancel() from another thread, and what it leaves behind.
#include <doctest/doctest.h>

#include "session_rig.h"
#include "tiny.h"

#include <thread>

using namespace auspex;
using namespace test;

namespace {

struct Rig {
    std::vector<std::byte> bytes = tiny_qwen35();
    Model model = load_model(cpu_device(), bytes);

    Session session(Progress progress = {}, uint64_t checkpoint_bytes = kDefaultCheckpoints) const {
        SessionOptions options;
        options.checkpoint_bytes = checkpoint_bytes;
        options.n_context = 640;
        options.n_ubatch = 64;
        options.progress = std::move(progress);
        Session s;
        const Status made = Session::create(model, options).get(s);
        REQUIRE_MESSAGE(made.ok(), made.message());
        return s;
    }
};

std::vector<Token> generate(Session& session, size_t n) {
    std::vector<Token> out;
    while (out.size() < n)
        for (const Token id : session.next().value()) out.push_back(id);
    return out;
}

}  // namespace

TEST_CASE("a cancelled session refuses to compute until it is allowed again, and its history stays") {
    const Rig rig;
    Session session = rig.session(), plain = rig.session();
    const std::vector<Token> ids = tiny_ids(100, 1), more = tiny_ids(150, 2);
    REQUIRE(session.sync(ids).ok());
    REQUIRE(plain.sync(ids).ok());
    session.cancel();
    CHECK(session.sync(more).status().code == Code::cancelled);
    CHECK(session.next().status().code == Code::cancelled);
    CHECK(session.move_to(rig.model).status().code == Code::cancelled);
    CHECK(session.history().size() == ids.size());
    Session fork = session.fork().value();
    CHECK(fork.next().ok());  // its own
    session.cancel(false);
    CHECK(generate(session, 8) == generate(plain, 8));
    REQUIRE(session.move_to(rig.model).ok());
    session.cancel();  // still the same one after move_to() has replaced everything
    CHECK(session.next().status().code == Code::cancelled);
    Session().cancel();  // an empty one has nothing to cancel
}

TEST_CASE("a prefill is cancelled before its next step and goes on from there") {
    const Rig rig;
    Session* running = nullptr;
    int n_step = 0;
    Session session = rig.session([&](const char*, float) {
        if (++n_step == 4) running->cancel();  // while the fourth step begins: it is the last
        return true;
    });
    running = &session;
    const std::vector<Token> ids = tiny_ids(600, 3);
    CHECK(session.sync(ids).status().code == Code::cancelled);
    CHECK(n_step == 4);
    CHECK(session.history().size() == 4 * 64);
    session.cancel(false);
    CHECK(session.sync(ids).value().rows_computed == 600 - 4 * 64);
    Session plain = rig.session();
    REQUIRE(plain.sync(ids).ok());
    CHECK(generate(session, 8) == generate(plain, 8));
}

TEST_CASE("a prompt that is cancelled before its first row leaves the tokens before it, and computes none twice") {
    const Rig rig;
    int n_asked = 0, cancel_at = -1;
    Session session = rig.session([&](const char*, float) { return ++n_asked != cancel_at; }), plain = rig.session();
    std::vector<Token> ids = tiny_ids(100, 9);
    for (Session* s : {&session, &plain}) {
        REQUIRE(s->sync(ids).ok());
        generate(*s, 6);
    }
    ids = join(history(plain), tiny_ids(50, 10));
    REQUIRE(plain.sync(ids).value().rows_computed == 51);  // with the last token that was sampled
    for (int i = 0; i < 2; ++i) {
        cancel_at = n_asked + 1;
        CHECK(session.sync(ids).status().code == Code::cancelled);
        CHECK(session.history().size() == 106);
    }
    cancel_at = -1;
    CHECK(session.sync(ids).value().rows_computed == 51);
    CHECK(generate(session, 8) == generate(plain, 8));
}

TEST_CASE("next() keeps the history where it is cancelled while it computes rows again") {
    const Rig rig;
    int n_step = 0, cancel_at = -1;
    Session session = rig.session([&](const char*, float) { return ++n_step != cancel_at; });
    std::vector<Token> ids = tiny_ids(600, 5);
    const Mark mark{320, true};
    REQUIRE(session.sync(ids, Span<const Mark>(&mark, 1)).ok());
    ids[400] ^= 1;
    cancel_at = n_step + 1;
    CHECK(session.sync(ids).status().code == Code::cancelled);
    const size_t n = session.history().size();
    CHECK(n == 320);  // back at the checkpoint, which has no logits
    for (int i = 0; i < 3; ++i) {
        cancel_at = n_step + 1;
        CHECK(session.next().status().code == Code::cancelled);
        CHECK(session.history().size() == n);
    }
    Session plain = rig.session();
    REQUIRE(plain.sync(Span<const Token>(ids.data(), n)).ok());
    CHECK(generate(session, 8) == generate(plain, 8));
}

TEST_CASE("computing rows again after a failure is cancelled where cancel() says so, and goes on from there") {
    const Rig rig;
    const std::vector<Token> ids = tiny_ids(600, 7);
    int n_asked = 0, cancel_at = -1;
    Session session;
    const auto failed_step = [] { return Status(Code::out_of_memory, "a step failed"); };
    const auto rows = [&] { return session.stats().rows_prefilled + session.stats().rows_decoded; };
    Model model = rig.model;
    const std::function<Status()> calls[] = {
        [&] { return session.sync(ids).status(); },
        [&] { return session.next().status(); },
        [&] { return session.logits().status(); },
        [&] { return session.score(tiny_ids(20, 8), [](size_t, Span<const float>) {}); },
        [&] { return session.move_to(model).status(); },
        [&] { return session.save().status(); },  // these two are not cancelled
        [&] { return session.fork().status(); },
    };
    for (size_t i = 0; i < std::size(calls); ++i) {
        CAPTURE(i);
        const bool stops = i < 5;
        cancel_at = -1;
        session = rig.session([&](const char*, float) { return ++n_asked != cancel_at; }, 0);
        REQUIRE(session.sync(ids).ok());
        REQUIRE(!session.impl()->trunk->change_state(failed_step).ok());
        const uint64_t before = rows();
        cancel_at = n_asked + 4;
        CHECK(calls[i]().code == (stops ? Code::cancelled : Code::ok));
        CHECK((rows() - before < 300) == stops);
        CHECK(session.history().size() == ids.size());
        cancel_at = -1;
        if (!stops) continue;
        session.cancel();
        CHECK(session.save().ok());
        session.cancel(false);
        CHECK(rows() - before <= 600);  // none twice
        Session plain = rig.session();
        REQUIRE(plain.sync(ids).ok());
        CHECK(generate(session, 8) == generate(plain, 8));
    }
}

TEST_CASE("scoring is cancelled between its rows, and scoring again gives every row") {
    const Rig rig;
    int n_asked = 0, cancel_at = -1;
    Session session = rig.session([&](const char*, float done) {
        CHECK(done <= 1);
        return ++n_asked != cancel_at;
    });
    const std::vector<Token> ids = tiny_ids(300, 6);
    const auto rows = [&](uint32_t depth, std::vector<float>* to) {
        to->clear();
        const auto keep = [&](size_t, Span<const float> row) { to->insert(to->end(), row.begin(), row.end()); };
        return depth == 0 ? session.score(ids, keep) : session.score_mtp(ids, depth, keep);
    };
    std::vector<float> all, some;
    for (const uint32_t depth : {0u, 2u}) {
        CAPTURE(depth);
        REQUIRE(rows(depth, &all).ok());
        n_asked = 0, cancel_at = depth == 0 ? 20 : 70;
        CHECK(rows(depth, &some).code == Code::cancelled);
        CHECK(n_asked == cancel_at);
        CHECK(some.size() < all.size());
        session.cancel();
        CHECK(rows(depth, &some).code == Code::cancelled);
        CHECK(some.empty());
        session.cancel(false);
        REQUIRE(rows(depth, &some).ok());
        CHECK(some == all);
    }
    cancel_at = n_asked + 20;
    CHECK(rows(0, &some).code == Code::cancelled);
    CHECK(session.history().size() == ids.size());
    Session plain = rig.session();
    REQUIRE(plain.sync(ids).ok());
    CHECK(generate(session, 8) == generate(plain, 8));
}

TEST_CASE("cancel() at any time from another thread stops the call, and the text afterwards is the same") {
    const Rig rig;
    const std::vector<Token> ids = tiny_ids(600, 4);
    Session plain = rig.session();
    REQUIRE(plain.sync(ids).ok());
    const std::vector<Token> want = generate(plain, 4);
    Session session = rig.session();
    Random random(1);
    int n_cancelled = 0;
    for (int i = 0; i < 60; ++i) {
        REQUIRE(session.sync({}).ok());
        const auto delay = std::chrono::microseconds(random.next() % 8000);
        std::thread other([&] {
            std::this_thread::sleep_for(delay);
            session.cancel();
        });
        Status s;
        while (s.ok()) {
            s = session.sync(ids).status();
            if (s.ok()) s = session.next().status();
        }
        other.join();
        CHECK(s.code == Code::cancelled);
        n_cancelled += s.code == Code::cancelled;
        session.cancel(false);
        REQUIRE(session.sync(ids).ok());
        CHECK(generate(session, 4) == want);
    }
    CHECK(n_cancelled == 60);
}

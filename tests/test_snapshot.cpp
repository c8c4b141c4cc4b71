// Snapshots: what is damaged or belongs elsewhere is refused, and a refusal changes nothing.
#include "allocations.h"
#include "session_rig.h"
#include "tiny.h"

using namespace auspex;
using namespace test;

namespace {

struct Opened {
    std::vector<std::byte> bytes;
    Model model;
    Session session;
    explicit Opened(uint64_t seed, int n_thread = 1, float rope_base = 1e7f) {
        TinyOptions tiny;
        tiny.seed = seed;
        tiny.rope_base = rope_base;
        bytes = tiny_model(tiny);
        model = load_model(cpu_device(n_thread), bytes);
        SessionOptions o;
        o.n_context = 128;
        REQUIRE(Session::create(model, o).get(session).ok());
        REQUIRE(session.sync(tiny_ids(30, 2)).ok());
    }
    Snapshot save() {
        Snapshot snap;
        REQUIRE(session.save().get(snap).ok());
        return snap;
    }
};

}  // namespace

TEST_CASE("a snapshot of other weights or hyperparameters is refused, one of another number of threads is not") {
    Opened one(1), other(2), rotated(1, 1, 5e5f), threads(1, 3);
    const Snapshot snap = one.save();
    for (Opened* stranger : {&other, &rotated}) {
        const Status s = stranger->session.restore(snap);
        CHECK(s.code == Code::bad_argument);
        CHECK(s.text.find("other weights") != std::string::npos);
    }
    REQUIRE(threads.session.restore(snap).ok());
    Span<const Token> a, b;
    REQUIRE(one.session.next().get(a).ok());
    REQUIRE(threads.session.next().get(b).ok());
    CHECK(a[0] == b[0]);
}

TEST_CASE("a damaged snapshot is refused, wherever the damage is, and the timeline stays") {
    Opened one(1);
    const Snapshot whole = one.save();
    const size_t n = whole.bytes.size();
    for (const size_t at : {size_t{3}, size_t{9}, size_t{20}, size_t{30}, size_t{60}, n / 3, n - 100, n - 1}) {
        CAPTURE(at);
        Snapshot snap = whole;
        snap.bytes[at] ^= std::byte{0x40};
        CHECK(one.session.restore(snap).code == Code::bad_argument);
        CHECK(one.session.history().size() == 30);
    }
    for (const size_t size : {size_t{0}, size_t{7}, size_t{40}, n / 2, n - 1}) {
        Snapshot snap = whole;
        snap.bytes.resize(size);
        CHECK(one.session.restore(snap).code == Code::bad_argument);
    }
    Snapshot none_given = whole;  // tokens of which the caller knows none
    std::memset(none_given.bytes.data() + 16, 0, 8);
    detail::finish_snapshot(&none_given.bytes);
    CHECK(one.session.restore(none_given).code == Code::bad_argument);
    Snapshot longer = whole;
    longer.bytes.push_back(std::byte{});
    CHECK(one.session.restore(longer).code == Code::bad_argument);
    CHECK(one.session.history().size() == 30);
    CHECK(one.session.sync(one.session.history()).value().rows_computed == 0);
    REQUIRE(one.session.restore(whole).ok());
}

TEST_CASE("where memory runs out in restore(), the history stays and goes on to the same text") {
    Opened one(1);
    const Snapshot snap = one.save();
    SessionOptions o;
    o.n_context = 128;
    Session plain = open(one.model, o), session = open(one.model, o);
    const std::vector<Token> own = tiny_ids(40, 7);
    sync(plain, own);
    grow(plain, 50);
    const std::vector<Token> want = history(plain, 50);
    REQUIRE(session.restore(snap).ok());  // what is computed once is known from here on
    int n_failure = 0;
    for (int64_t i = 0;; ++i, ++n_failure) {
        sync(session, own);
        allocations_until_fault = i;
        const Status s = session.restore(snap);
        if (allocations_until_fault.exchange(kNever) >= 0) break;
        CHECK(s.code == Code::out_of_memory);
        CHECK(history(session) == own);
        grow(session, 50);
        CHECK(history(session, 50) == want);
    }
    CHECK(n_failure > 10);
    CHECK(session.history().size() == 30);
}

TEST_CASE("restoring a snapshot without logits computes them from its own tokens, whatever ran before") {
    Opened one(1);
    SessionOptions o;
    o.n_context = 128;
    o.n_ubatch = 16;
    uint32_t n_call = 0, stop_at = 0;
    o.progress = [&](const char*, float) { return n_call++ != stop_at; };
    Session session, plain;
    REQUIRE(Session::create(one.model, o).get(plain).ok());
    o.draft.source = Draft::mtp;
    o.draft.depth = 2;
    REQUIRE(Session::create(one.model, o).get(session).ok());
    const std::vector<Token> ids = tiny_ids(60, 5), others = tiny_ids(60, 6);
    stop_at = 2;
    REQUIRE(session.sync(ids).status().code == Code::cancelled);
    Snapshot bare;
    REQUIRE(session.save().get(bare).ok());
    n_call = 0;
    REQUIRE(session.sync(others).status().code == Code::cancelled);  // as many rows, of another text
    stop_at = ~0u;
    REQUIRE(session.restore(bare).ok());
    REQUIRE(plain.sync(session.history()).ok());
    for (int i = 0; i < 5; ++i) {
        REQUIRE(session.next().ok());
        while (plain.history().size() < session.history().size()) REQUIRE(plain.next().ok());
    }
    CHECK(std::equal(session.history().begin(), session.history().end(), plain.history().begin()));
}

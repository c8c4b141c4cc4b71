#include <cmath>
#include <system_error>

#include "session_rig.h"
#include "tiny.h"

using namespace auspex;
using namespace test;

namespace {

Model tiny_model(const std::vector<std::byte>& bytes, Logger log = {}) {
    DeviceOptions options;
    options.kind = Kind::cpu;
    options.n_thread = 2;
    options.log = std::move(log);
    return load_model(open_device(options), bytes);
}

Session tiny_session(const Model& model, uint32_t n_context = 256, uint32_t n_ubatch = 64) {
    SessionOptions options;
    options.n_context = n_context;
    options.n_ubatch = n_ubatch;
    return open(model, options);
}

}  // namespace

TEST_CASE("sync() computes only the missing rows") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    Session session = tiny_session(tiny_model(bytes));
    std::vector<Token> ids = tiny_ids(40, 1);
    CHECK(sync(session, ids).rows_computed == 40);
    CHECK(sync(session, ids).rows_computed == 0);
    ids = join(ids, more(session, 5));
    CHECK(sync(session, ids).rows_computed == 1);  // the last token was sampled, not yet run
    ids.push_back(3);
    ids.push_back(4);
    CHECK(sync(session, ids).rows_computed == 2);
    ids.push_back(more(session, 1)[0]);  // sampled, and replaced by another before it was run
    ids.back() ^= 1;
    SyncReport r = sync(session, ids);
    CHECK(r.rows_computed == 1);
    CHECK(r.reason == SyncReason::resumed);
    CHECK(r.text.find("diverged at row 47 of 48") != std::string::npos);
    more(session, 1);
    r = sync(session, ids);
    CHECK(r.reason == SyncReason::unchanged);
    CHECK(r.text == "unchanged: 48 rows, the last 1 tokens were taken back");
    ids[10] ^= 1;
    CHECK(sync(session, ids).rows_computed == ids.size());
    ids.resize(20);
    CHECK(sync(session, ids).rows_computed == 20);
    CHECK(sync(session, {}).rows_computed == 0);
    CHECK(session.history().empty());
}

TEST_CASE("the text does not depend on how the history was built") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    const Model model = tiny_model(bytes);
    Session one = tiny_session(model), two = tiny_session(model), three = tiny_session(model, 256, 7);
    const std::vector<Token> ids = tiny_ids(50, 2);
    sync(one, ids);
    const std::vector<Token> want = more(one, 20);
    sync(two, tiny_ids(30, 77));  // another conversation first
    more(two, 3);
    sync(two, ids);
    CHECK(more(two, 20) == want);
    sync(three, ids);
    CHECK(more(three, 20) == want);
}

TEST_CASE("n_ubatch from 64 on changes no bit of the logits, and less than that only the last ones") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    const Model model = tiny_model(bytes);
    for (const size_t n : {50u, 70u, 145u, 300u}) {
        const auto logits = [&](uint32_t n_ubatch) {
            Session session = tiny_session(model, 512, n_ubatch);
            sync(session, tiny_ids(n, 3));
            const Span<const float> row = session.logits().value();
            return std::vector<float>(row.begin(), row.end());
        };
        const std::vector<float> want = logits(512);
        for (const uint32_t n_ubatch : {64u, 65u, 100u, 130u, 4096u}) CHECK(logits(n_ubatch) == want);
        for (const uint32_t n_ubatch : {1u, 16u, 17u, 63u}) {
            const std::vector<float> other = logits(n_ubatch);
            for (size_t i = 0; i < want.size(); ++i) CHECK(std::fabs(other[i] - want[i]) < 0.01f);
        }
    }
}

namespace {

/// n_ubatch from 80 on changes no bit either where a prompt begins or stops off the grid of 64 rows.
void check_pieces(const Model& model, const std::vector<size_t>& starts, const std::vector<uint32_t>& n_ubatches) {
    for (const size_t start : starts)
        for (const size_t n : {135u, 260u}) {
            CAPTURE(start);
            CAPTURE(n);
            const auto logits = [&](uint32_t n_ubatch) {
                Session session = tiny_session(model, 512, n_ubatch);
                const std::vector<Token> ids = tiny_ids(n, 3);
                sync(session, first(ids, start));
                sync(session, ids, {{n - 60, false}});
                const Span<const float> row = session.logits().value();
                return std::vector<float>(row.begin(), row.end());
            };
            const std::vector<float> want = logits(80);
            for (const uint32_t n_ubatch : n_ubatches) {
                CAPTURE(n_ubatch);
                CHECK(logits(n_ubatch) == want);
            }
        }
}

}  // namespace

TEST_CASE("n_ubatch from 80 on changes no bit where a prompt begins off the grid") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    check_pieces(tiny_model(bytes), {1, 17, 33, 47, 48, 50, 59, 63, 64, 70, 100}, {81, 100, 130, 512});
}

#ifndef AUSPEX_NO_VULKAN
TEST_CASE("n_ubatch from 80 on changes no bit where a prompt begins off the grid, on the GPU too") {
    const Device device = gpu_device();
    if (!device) return;
    const std::vector<std::byte> bytes = test::tiny_model(narrow());
    check_pieces(load_model(device, bytes), {20, 59}, {512});
}
#endif

TEST_CASE("restore equivalence: a restored snapshot continues with the same bits, logits included") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    const Model model = tiny_model(bytes);
    Session session = tiny_session(model), other = tiny_session(model);
    const auto logits_of = [](Session& s) {
        const auto logits = s.logits();
        REQUIRE(logits.ok());
        return std::vector<float>(logits.value().begin(), logits.value().end());
    };
    Sampling seeded;
    seeded.temperature = 1;
    seeded.seed = 3;
    Snapshot snap;
    for (const Sampling& sampling : {Sampling(), seeded})
        for (const size_t n : {size_t{0}, size_t{1}, size_t{4}}) {  // the last token of next() has no row yet
            sync(session, tiny_ids(33, 4));
            more(session, n, sampling);
            REQUIRE(session.save().get(snap).ok());
            const std::vector<Token> before = history(session);
            CHECK(snap.n_token == before.size());
            const std::vector<Token> want = more(session, 9, sampling);
            const std::vector<float> logits = logits_of(session);
            for (Session* to : {&other, &session}) {
                const Status s = to->restore(snap);
                REQUIRE_MESSAGE(s.ok(), s.message());
                CHECK(history(*to) == before);
                CHECK(more(*to, 9, sampling) == want);
                CHECK(logits_of(*to) == logits);
            }
            REQUIRE(other.restore(snap).ok());
            CHECK(sync(other, before).rows_computed == (n == 0 ? 0 : 1));
        }

    Snapshot broken = snap;
    broken.bytes.resize(broken.bytes.size() - 5);
    CHECK_FALSE(other.restore(broken).ok());
    broken.bytes.resize(3);
    CHECK_FALSE(other.restore(broken).ok());
    TinyOptions options = slim();
    options.n_head_v = 4;
    const std::vector<std::byte> bytes2 = tiny_qwen35(options);
    Session stranger = tiny_session(tiny_model(bytes2));
    CHECK(stranger.restore(snap).code == Code::bad_argument);
    // After all that, the session still works.
    sync(other, tiny_ids(10, 5));
    more(other, 2);
}

TEST_CASE("an impossible call is an error with both numbers, and the session stays usable") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    const Model model = tiny_model(bytes);
    Session session = tiny_session(model, 32, 16);
    CHECK(session.next().status().code == Code::bad_argument);
    auto too_long = session.sync(tiny_ids(33, 1));
    CHECK(too_long.status().code == Code::bad_argument);
    CHECK(too_long.status().text.find("33") != std::string::npos);
    CHECK(too_long.status().text.find("32") != std::string::npos);
    const std::vector<Token> bad = {1, 2, static_cast<Token>(kTinyVocab)};
    CHECK(session.sync(bad).status().text.find("288") != std::string::npos);
    const std::vector<Token> negative = {-1};
    CHECK_FALSE(session.sync(negative).ok());
    Sampling sampling;
    sampling.top_p = 2;
    sync(session, tiny_ids(30, 1));
    CHECK(session.next(sampling).status().code == Code::bad_argument);
    more(session, 2);
    CHECK(session.next().status().code == Code::context_full);
    sync(session, tiny_ids(5, 1));
    more(session, 2);

    SessionOptions options;
    options.n_ubatch = 4097;
    CHECK(Session::create(model, options).status().code == Code::bad_argument);
    CHECK(Session::create(Model()).status().code == Code::bad_argument);
}

TEST_CASE("a long prompt reports progress and can be cancelled; the rows so far are kept") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    const Model model = tiny_model(bytes);
    SessionOptions options;
    options.n_context = 256;
    options.n_ubatch = 32;
    int calls = 0;
    bool stop = true;
    options.progress = [&](const char*, float fraction) {
        CHECK(fraction >= 0);
        CHECK(fraction <= 1);
        return ++calls < 3 || !stop;
    };
    Session session = open(model, options);
    const std::vector<Token> ids = tiny_ids(200, 6);
    CHECK(session.sync(ids).status().code == Code::cancelled);
    CHECK(session.history().size() == 64);
    stop = false;
    CHECK(sync(session, ids).rows_computed == 136);
    Session whole = tiny_session(model, 256, 32);
    sync(whole, ids);
    CHECK(more(session, 5) == more(whole, 5));
}

TEST_CASE("a failed allocation becomes a Status, and nothing leaks") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    struct Budget {
        size_t left = 0, held = 0;
    } budget;
    Allocator allocator;
    allocator.user = &budget;
    allocator.alloc = [](void* user, size_t n, size_t) -> void* {
        Budget& b = *static_cast<Budget*>(user);
        if (n > b.left) return nullptr;
        b.left -= n;
        b.held += n;
        // Over-aligned by hand; the offset is kept in front.
        char* raw = new char[n + 128];
        char* at = raw + 64 + (64 - reinterpret_cast<uintptr_t>(raw + 64) % 64) % 64;
        std::memcpy(at - sizeof raw, &raw, sizeof raw);
        return at;
    };
    allocator.free = [](void* user, void* p, size_t n, size_t) {
        Budget& b = *static_cast<Budget*>(user);
        b.held -= n;
        b.left += n;
        char* raw = nullptr;
        std::memcpy(&raw, static_cast<char*>(p) - sizeof raw, sizeof raw);
        delete[] raw;
    };
    size_t refused = 0, served = 0;
    for (size_t left = 0; left < (size_t{64} << 20); left = left * 2 + 4096) {
        budget.left = left;
        {
            DeviceOptions options;
            options.kind = Kind::cpu;
            options.allocator = allocator;
            Device device;
            REQUIRE(Device::open(options).get(device).ok());
            Model model;
            Session session;
            Status s = Model::load(device, bytes).get(model);
            if (s.ok()) s = Session::create(model).get(session);
            if (s.ok()) {
                ++served;
            } else {
                ++refused;
                CHECK(s.code == Code::out_of_memory);
            }
        }
        CHECK(budget.held == 0);
    }
    CHECK(refused > 0);
    CHECK(served > 0);
}

TEST_CASE("every method of an empty session answers") {
    Session s;
    const std::vector<Token> ids{1, 2};
    CHECK(s.sync(ids).status().code == Code::bad_argument);
    CHECK(s.next().status().code == Code::bad_argument);
    CHECK(s.set_draft_depth(1).code == Code::bad_argument);
    CHECK(s.score(ids, {}).code == Code::bad_argument);
    CHECK(s.score_mtp(ids, 1, {}).code == Code::bad_argument);
    CHECK(s.profile().status().code == Code::bad_argument);
    CHECK(s.count_step(1).status().code == Code::bad_argument);
    CHECK(s.save().status().code == Code::bad_argument);
    CHECK(s.restore({}).code == Code::bad_argument);
    CHECK(s.fork().status().code == Code::bad_argument);
    CHECK(s.move_to({}).status().code == Code::bad_argument);
    CHECK(s.load_costs({}).code == Code::bad_argument);
    CHECK(s.history().empty());
    CHECK(s.stats().tokens_sampled == 0);
    CHECK(s.save_costs().empty());
    s.clear_stats();
}

TEST_CASE("score() without a function to hand rows to is refused") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    Session session = tiny_session(tiny_model(bytes));
    CHECK(session.score(tiny_ids(5, 1), {}).code == Code::bad_argument);
    CHECK(session.score_mtp(tiny_ids(5, 1), 1, {}).code == Code::bad_argument);
}

TEST_CASE("progress is reported for every prefill, from 0 to 1") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    std::vector<float> seen;
    SessionOptions o;
    o.n_context = 256;
    o.n_ubatch = 64;
    o.progress = [&](const char*, float f) {
        seen.push_back(f);
        return true;
    };
    Session session = open(tiny_model(bytes), o);
    sync(session, tiny_ids(20, 1));
    CHECK(seen == std::vector<float>{0, 1});
    seen.clear();
    sync(session, tiny_ids(128, 2));
    CHECK(seen == std::vector<float>{0, 0.5f, 1});
}

#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
TEST_CASE("a callback that throws leaves through the call, and the session goes on as if it had not") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    const Model model = tiny_model(bytes);
    const std::vector<Token> ids = tiny_ids(40, 3);
    Session plain = tiny_session(model);
    sync(plain, ids);
    const std::vector<Token> want = more(plain, 20);
    Session session = tiny_session(model);
    CHECK_THROWS((void)session.score(ids, [](size_t i, Span<const float>) { return i == 20 ? throw 1 : void(); }).ok());
    sync(session, ids);
    CHECK(more(session, 20) == want);

    SessionOptions o;
    o.n_context = 256;
    o.n_ubatch = 64;
    o.windows = {{kAllLayers, 44, 0}};
    plain = open(model, o);
    sync(plain, ids);
    const std::vector<Token> windowed = more(plain, 20);
    o.draft.source = Draft::mtp;
    o.draft.depth = 4;
    int n_cycle = 0, n_window = 0;
    o.on_window_full = [&](const WindowFull&) { n_window++ == 0 ? throw 1 : void(); };
    o.on_cycle = [&](const DraftCycle&) { n_cycle++ == 3 ? throw 1 : void(); };
    session = open(model, o);
    sync(session, ids);
    int n_thrown = 0;
    while (session.history().size() < 60) try {
            (void)session.next().ok();
        } catch (int) {
            ++n_thrown;
        }
    CHECK(n_thrown == 2);
    CHECK(std::equal(windowed.begin(), windowed.begin() + 20, session.history().begin() + 40));
    // As <filesystem> throws, whose errors are of the type of a thread that could not be started.
    const std::system_error missing(std::make_error_code(std::errc::no_such_file_or_directory));
    const auto fails = [&](size_t, Span<const float>) { throw missing; };
    CHECK_THROWS_AS((void)session.score(ids, fails).ok(), std::system_error);
}

TEST_CASE("a prompt ends where it does also if the progress callback throws, and a cut within it is a prompt's") {
    const std::vector<std::byte> bytes = test::tiny_model(narrow());
    const Model model = tiny_model(bytes);
    const std::vector<Token> prompt = tiny_ids(200, 3), cut = join(first(prompt, 190), tiny_ids(3, 4));
    std::vector<float> want;
    for (const float throws_at : {2.0f, 0.5f, 1.0f}) {  // 2: never
        CAPTURE(throws_at);
        float limit = 2;
        SessionOptions o;
        o.n_context = 256;
        o.n_ubatch = 64;
        o.progress = [&](const char*, float done) { return done >= limit ? throw 1 : true; };
        Session session = open(model, o);
        sync(session, tiny_ids(10, 5));
        limit = throws_at;
        if (throws_at > 1)
            sync(session, prompt);
        else
            CHECK_THROWS((void)session.sync(prompt).ok());
        limit = 2;
        CHECK(history(session) == prompt);
        CHECK(session.impl()->timeline.n_asked() == prompt.size());
        sync(session, cut);
        const auto logits = session.logits();
        REQUIRE(logits.ok());
        if (want.empty()) want.assign(logits.value().begin(), logits.value().end());
        CHECK(std::equal(want.begin(), want.end(), logits.value().begin(), logits.value().end()));
    }
}

TEST_CASE("tokens of a cycle that a callback threw out of are dropped where logits() or another sampling follows") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    const Model model = tiny_model(bytes);
    const std::vector<Token> ids = tiny_ids(20, 3);
    bool throws = false;
    SessionOptions o;
    o.n_context = 256;
    o.n_ubatch = 64;
    o.on_cycle = [&](const DraftCycle&) { throws ? throw 1 : void(); };
    Session plain = open(model, o), session = open(model, o), restored = open(model, o);
    const auto cut_short = [&](const Sampling& how) {  // one more token than the caller knows
        sync(plain, ids);
        more(plain, 3);
        sync(session, {});
        sync(session, ids);
        more(session, 3);
        throws = true;
        CHECK_THROWS((void)session.next(how).ok());
        throws = false;
        CHECK(history(session) == history(plain));
    };
    cut_short({});
    const auto want = plain.logits(), got = session.logits();
    REQUIRE(want.ok());
    REQUIRE(got.ok());
    CHECK(std::equal(want.value().begin(), want.value().end(), got.value().begin(), got.value().end()));
    Sampling biased, ruled;
    biased.logit_bias = {{5, 1000}};
    const TextRule only_x = [](std::string_view text, bool) { return text.find_first_not_of('x') == text.npos; };
    REQUIRE(Constraint::create(model, only_x).get(ruled.constraint).ok());
    cut_short({});
    CHECK(more(session, 1, biased)[0] == 5);
    for (const Sampling& how : {biased, ruled}) {  // also where they come from a snapshot
        cut_short(how);
        const auto snapshot = session.save();
        REQUIRE(snapshot.ok());
        REQUIRE(restored.restore(snapshot.value()).ok());
        const std::vector<Token> free = more(plain, 4);
        CHECK(more(restored, 4) == free);
        CHECK(more(session, 4) == free);
    }
}

TEST_CASE("sync() reports the common part of the history that the caller knew, and no token computed beyond it") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    const Model model = tiny_model(bytes);
    bool throws = false;
    SessionOptions o;
    o.n_context = 256;
    o.on_cycle = [&](const DraftCycle&) { throws ? throw 1 : void(); };
    Session plain = open(model, o), session = open(model, o);
    for (Session* s : {&plain, &session}) {
        sync(*s, tiny_ids(20, 3));
        more(*s, 3);
    }
    throws = true;
    CHECK_THROWS((void)session.next().ok());  // it has one more token than the caller knows
    throws = false;
    REQUIRE(session.history().size() == 23);
    more(plain, 1);
    const SyncReport r = sync(session, join(history(plain), {5}));
    CHECK(r.diverged_at == 23);
    CHECK(r.rows_computed + r.rows_reused == 25);
}
#endif

/// Calls every method of a session, from one of its callbacks: all but history() and stats() must refuse.
static void call_everything(Session& s, const Snapshot& snapshot, const std::vector<std::byte>& costs) {
    const std::vector<Token> ids = history(s);
    CHECK(s.sync(ids).status().code == Code::bad_argument);
    CHECK(s.next().status().code == Code::bad_argument);
    CHECK(s.set_draft_depth(1).code == Code::bad_argument);
    CHECK(s.save().status().code == Code::bad_argument);
    CHECK(s.restore(snapshot).code == Code::bad_argument);
    CHECK(s.fork().status().code == Code::bad_argument);
    CHECK(s.move_to({}).status().code == Code::bad_argument);
    CHECK(s.first_visible(3).status().code == Code::bad_argument);
    CHECK(s.save_costs().empty());
    CHECK(s.load_costs(costs).code == Code::bad_argument);
    CHECK(s.draft_report().n_cycle == 0);
    CHECK(s.score(ids, [](size_t, Span<const float>) { FAIL_CHECK("a row"); }).code == Code::bad_argument);
    CHECK(s.score_mtp(ids, 1, [](size_t, Span<const float>) { FAIL_CHECK("a row"); }).code == Code::bad_argument);
    CHECK(s.profile().status().text.find("a callback of this session") != std::string::npos);
    CHECK(s.profile().status().text.find("only history(), stats() and cancel() may be called") != std::string::npos);
    CHECK(s.count_step(1).status().text.find("a callback of this session") != std::string::npos);
    s.clear_stats();
    CHECK(s.stats().rows_prefilled > 0);  // as before
    CHECK(std::equal(ids.begin(), ids.end(), s.history().begin(), s.history().end()));
    CHECK(s);
}

TEST_CASE("a callback may call nothing but history() and stats() of the session that called it") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    const Model model = tiny_model(bytes);
    const std::vector<Token> ids = tiny_ids(40, 1);
    Session session;
    Snapshot snapshot;
    std::vector<std::byte> costs;
    int n_progress = 0, n_window = 0, n_cycle = 0, n_row = 0;
    const auto call = [&](int* n) {
        if (!costs.empty() && ++*n < 4) call_everything(session, snapshot, costs);
    };
    SessionOptions o;
    o.n_context = 256;
    o.windows = {{kAllLayers, 50, 0}};
    o.draft.source = Draft::mtp;
    o.draft.depth = 2;
    o.progress = [&](const char*, float) { return call(&n_progress), true; };
    o.on_window_full = [&](const WindowFull&) { call(&n_window); };
    o.on_cycle = [&](const DraftCycle&) { call(&n_cycle); };
    REQUIRE(Session::create(model, o).get(session).ok());
    sync(session, ids);
    more(session, 5);
    REQUIRE(session.save().get(snapshot).ok());
    costs = session.save_costs();  // from here on the callbacks call
    REQUIRE_FALSE(costs.empty());
    sync(session, tiny_ids(44, 2));
    const std::vector<Token> text = more(session, 20);
    const DraftReport report = session.draft_report();
    CHECK(report.n_cycle > 0);  // clear_stats() from a callback did nothing
    REQUIRE(session.score(ids, [&](size_t, Span<const float>) { call(&n_row); }).ok());
    CHECK(n_row == 40);
    n_row = 0;
    REQUIRE(session.score_mtp(ids, 1, [&](size_t, Span<const float>) { call(&n_row); }).ok());
    CHECK(n_row == 39);
    CHECK(n_progress > 0);
    CHECK(n_window > 0);
    CHECK(n_cycle > 0);
    o.progress = {};
    o.on_window_full = {};
    o.on_cycle = {};
    Session plain = open(model, o);
    sync(plain, tiny_ids(44, 2));
    CHECK(more(plain, 20) == text);
}

TEST_CASE("the report of sync() says what differs, in tokens that the caller knew") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    Session session = tiny_session(tiny_model(bytes));
    std::vector<Token> ids = tiny_ids(40, 1);
    SyncReport r = sync(session, ids);
    CHECK(r.reason == SyncReason::new_text);
    CHECK(r.text == "new text of 40 rows");
    ids = join(ids, {7, 8});
    r = sync(session, ids);
    CHECK(r.reason == SyncReason::appended);
    CHECK(r.checkpoint_row == 40);
    CHECK(r.text == "appended 2 to 40 rows");
    const Token sampled = more(session, 1)[0], other = sampled ^ 1;
    ids.push_back(other);
    r = sync(session, ids);
    CHECK(r.reason == SyncReason::resumed);
    CHECK(r.diverged_at == 42);
    CHECK(r.text == "diverged at row 42 of 43: token " + std::to_string(other) + " instead of " +
                        std::to_string(sampled) + "; resumed at row 42");
    more(session, 20);
    const std::vector<Token> said = history(session);
    r = sync(session, join(first(said, 58), {said[58] ^ 1}));  // the end of the reply is taken back
    CHECK(r.reason == SyncReason::checkpoint);
    CHECK((r.diverged_at == 58 && r.rows_computed == 59 && r.rows_reused == 0 && r.checkpoint_row == 0));
    CHECK(r.text == "diverged at row 58 of 59: token " + std::to_string(said[58] ^ 1) + " instead of " +
                        std::to_string(said[58]) + "; nearest checkpoint 0");
}

TEST_CASE("ids and marks out of range are named with the range, whose ends are accepted") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    Session session = tiny_session(tiny_model(bytes));
    const std::vector<Token> bad = {1, 2, 288}, negative = {-1}, ends = {0, 287};
    CHECK(session.sync(bad).status().text == "token 2 has id 288, expected 0..287");
    CHECK(session.sync(negative).status().text == "token 0 has id -1, expected 0..287");
    sync(session, ends, {{2, false}});
    CHECK(session.sync(ends, std::vector<Mark>{{0, false}, {3, false}}).status().text ==
          "mark 1 is at row 3, the history has 2 tokens; marks belong to the prompt that encode() gave them with");
    Sampling sampling;
    for (const Token id : {-1, 288}) {
        sampling.logit_bias = {{5, 1}, {id, 1}};
        const Status s = session.next(sampling).status();
        CHECK(s.code == Code::bad_argument);
        CHECK(s.text == "sampling.logit_bias names token " + std::to_string(id) + ", expected 0..287");
    }
    for (const Token id : {0, 287}) {
        sampling.logit_bias = {{id, 1000}};
        CHECK(more(session, 1, sampling)[0] == id);
    }
}

TEST_CASE("what create() refuses, plan() refuses with the same words") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    LoadOptions load;
    load.mtp = false;
    const Model model = load_model(cpu_device(), bytes, load);
    const auto refused = [&](SessionOptions o) {
        Session session;
        const Status a = Session::create(model, o).get(session), b = Session::plan(model, o).status();
        CHECK_FALSE(a.ok());
        CHECK(a.message() == b.message());
    };
    SessionOptions o;
    o.draft.source = Draft::mtp;
    refused(o);
    for (const int source : {77, -1}) {
        o.draft.source = static_cast<Draft>(source);
        refused(o);
    }
    o.draft.source = Draft::lookup;
    o.draft.depth = 9;
    refused(o);
    o.draft.depth = 1;
    o.run_ahead = 8;
    refused(o);
    o.run_ahead = 0;
    for (const int type : {99, -1}) {
        o.kv_v = static_cast<KvType>(type);
        refused(o);
    }
}

TEST_CASE("plan() refuses a draft-only head where the blocks have heads of their own, as create() does") {
    TinyOptions tiny;
    tiny.family = Family::step35;
    const std::vector<std::byte> bytes = tiny_model(tiny);
    std::vector<Device> devices = {cpu_device()};
    if (const Device gpu = gpu_device()) devices.push_back(gpu);
    for (const Device& device : devices) {
        const Model model = load_model(device, bytes);
        SessionOptions o;
        o.n_context = 256;
        o.draft.source = Draft::mtp;
        o.draft.n_vocab = 100;
        const Status a = Session::create(model, o).status(), b = Session::plan(model, o).status();
        CHECK(a.code == Code::unsupported);
        CHECK(a.message() == b.message());
        CHECK(a.message().find("heads of their own") != std::string::npos);
    }
}

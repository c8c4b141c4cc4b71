// A session that is moved to another device goes on with the same text; what fails leaves it as it was.
#include "allocations.h"
#include "fork_rig.h"

using namespace fork_rig;

namespace test_move {

struct Loaded {
    std::vector<std::byte> bytes = tiny_model();
    Model first = load_model(cpu_device(), bytes), second = load_model(cpu_device(2), bytes);
};

/// The device is lost, or left, after n_before generated tokens.
void check_text(const Loaded& m, const SessionOptions& options, const Sampling& sampling, size_t n_before, bool lost) {
    const std::vector<Token> prompt = tiny_ids(70, 12);
    Session plain = open(m.first, options), session = open(m.first, options);
    for (Session* s : {&plain, &session}) sync(*s, prompt);
    grow(plain, 110, sampling);
    grow(session, 70 + n_before, sampling);
    const std::vector<Token> before = history(session);
    const uint64_t n_sampled = session.stats().tokens_sampled;
    const size_t n_row = session.impl()->timeline.n_row();
    if (lost) {
        lose(session);
        CHECK(session.next(sampling).status().code == Code::device_lost);
        CHECK(session.sync(prompt).status().code == Code::device_lost);
        CHECK(session.save().status().code == Code::device_lost);
    }
    const SyncReport report = move(session, m.second);
    CHECK(report.rows_computed == (lost ? n_row : 0));
    CHECK(report.rows_reused == (lost ? 0 : n_row));
    CHECK(history(session) == before);
    CHECK(session.stats().tokens_sampled == n_sampled);
    grow(session, 110, sampling);
    CHECK(history(session, 110) == history(plain, 110));
    if (options.draft.source == Draft::off) CHECK(bytes_of(session) == bytes_of(plain));
}

}  // namespace test_move

using namespace test_move;

TEST_CASE("a moved session goes on with the same text, from a device that is lost and from one that is not") {
    const Loaded m;
    SessionOptions windows = options_of(2), formats = options_of(2), lookup = options_of(2);
    windows.windows = {{kAllLayers, 40, 4}};
    windows.checkpoint_bytes = 0;
    SessionOptions plain_windows = windows;
    formats.kv_k = KvType::q8_0;
    formats.draft.n_vocab = 100;
    formats.draft.vocab_by_use = true;
    lookup.draft.source = Draft::mtp_lookup;
    plain_windows.draft.source = Draft::off;
    plain_windows.draft.depth = 0;
    size_t i = 0;
    for (const SessionOptions& options : {options_of(kOff), options_of(3), windows, formats, lookup, plain_windows})
        for (const size_t n_before : {size_t{0}, size_t{1}, size_t{30}})
            for (const bool lost : {false, true}) {
                CAPTURE(i);
                check_text(m, options, samplings()[i % 4], n_before, lost);
                ++i;
            }
}

TEST_CASE("a moved session needs neither the old model nor its device") {
    const std::vector<std::byte> other_bytes = tiny_model();
    Session session, plain;
    for (const bool lost : {false, true}) {
        std::vector<std::byte> bytes = tiny_model();
        const Model second = load_model(cpu_device(), other_bytes);
        {
            const Model first = load_model(cpu_device(), bytes);
            session = open(first, options_of(2));
            sync(session, tiny_ids(100, 3), {{60, true}});
            sync(session, tiny_ids(150, 4));
            grow(session, 155);
            if (lost) lose(session);
            const std::weak_ptr<Model::Impl> old = first.impl();
            move(session, second);
            CHECK(old.use_count() == 1);  // the handle above
        }
        std::fill(bytes.begin(), bytes.end(), std::byte{});
        grow(session, 170);
        plain = open(second, options_of(kOff));
        sync(plain, tiny_ids(150, 4));
        grow(plain, 170);
        CHECK(history(session, 170) == history(plain, 170));
        CHECK(sync(session, tiny_ids(100, 3)).rows_computed < 100);
    }
}

TEST_CASE("after a loss checkpoints in host memory are valid: those of the live text, and branches that are parked") {
    const Loaded m;
    const std::vector<Token> system = tiny_ids(130, 1), agent = join(system, tiny_ids(60, 3));
    for (const size_t n_title : {size_t{40}, size_t{250}}) {
        CAPTURE(n_title);
        Session session = open(m.first, options_of(kOff)), scratch = open(m.first, options_of(kOff));
        sync(session, agent, {{130, true}});
        grow(session, 195);
        const std::vector<Token> said = history(session), title = tiny_ids(n_title, 2);
        sync(session, title, {{20, false}});
        grow(session, n_title + 5);
        lose(session);
        CHECK(move(session, m.second).rows_computed == n_title + 4);
        SyncReport r = sync(session, join({title.begin(), title.begin() + 30}, tiny_ids(20, 9)));
        CHECK(r.checkpoint_row == 20);
        // The agent's rows beyond the title's were in the context: gone. All of them parked: all come back.
        r = sync(session, join(said, {1, 2}));
        CHECK(r.rows_computed == (n_title == 40 ? 197 : 3));
        grow(session, 210);
        sync(scratch, agent);
        grow(scratch, 195);
        sync(scratch, join(said, {1, 2}));
        grow(scratch, 210);
        CHECK(history(session, 210) == history(scratch, 210));
    }
}

TEST_CASE("where every layer has a window, a loss costs the rows since the nearest checkpoint alone") {
    const Loaded m;
    SessionOptions o = options_of(kOff);
    o.windows = {{kAllLayers, 40, 4}};
    Session session = open(m.first, o), plain = open(m.first, o);
    for (Session* s : {&session, &plain}) {
        sync(*s, tiny_ids(330, 5), {{300, false}});
        grow(*s, 340);
    }
    lose(session);
    const SyncReport r = move(session, m.second);
    CHECK(r.checkpoint_row == 300);
    CHECK(r.rows_reused == 300);
    CHECK(r.rows_computed == 39);
    CHECK(r.reason == SyncReason::checkpoint);
    for (Session* s : {&session, &plain}) grow(*s, 400);
    CHECK(history(session, 400) == history(plain, 400));
}

TEST_CASE("on another kind of device the text is that of a new session which is given the history" *
          doctest::test_suite("long")) {
    const std::vector<std::byte> bytes = tiny_model();
    const Model fast = load_model(cpu_device(), bytes),
                reference = load_model(cpu_device(1, CpuPath::reference), bytes);
    if (fast.impl()->device->machine->name() == reference.impl()->device->machine->name()) {
        skip("this processor has one code path");
        return;
    }
    for (const bool lost : {false, true}) {
        Session session = open(fast, options_of(2)), plain = open(reference, options_of(kOff));
        sync(session, tiny_ids(100, 5), {{70, true}});
        grow(session, 120);
        REQUIRE(session.set_draft_depth(1).ok());
        const std::vector<Token> before = history(session);
        if (lost) lose(session);
        const SyncReport r = move(session, reference);
        CHECK(r.rows_computed == before.size());
        CHECK(r.reason == SyncReason::no_state);
        sync(plain, before, {{70, true}});
        grow(session, 160);
        grow(plain, 160);
        CHECK(history(session, 160) == history(plain, 160));
        CHECK(session.stats().drafted[0] > 0);
        CHECK(sync(session, join(tiny_ids(100, 5), {1, 2, 3})).checkpoint_row >= 70);  // the mark is kept
    }
}

TEST_CASE("a move to another kind of device reports no window again, and those that fill later once") {
    const std::vector<std::byte> bytes = tiny_model(smallest());
    const Model fast = load_model(cpu_device(), bytes),
                reference = load_model(cpu_device(1, CpuPath::reference), bytes);
    if (fast.impl()->device->machine->name() == reference.impl()->device->machine->name()) {
        skip("this processor has one code path");
        return;
    }
    SessionOptions o = options_of(kOff);
    o.windows = {{kAllLayers, 64, 0}};
    int n_full = 0;
    o.on_window_full = [&](const WindowFull&) { ++n_full; };
    for (const uint32_t n : {60u, 100u}) {
        CAPTURE(n);
        n_full = 0;
        Session session = open(fast, o);
        sync(session, tiny_ids(n, 5));
        CHECK(n_full == (n > 64));
        move(session, reference);
        CHECK(n_full == (n > 64));
        grow(session, 110);
        CHECK(n_full == 1);
    }
}

TEST_CASE("a move says what it copied, and after a loss what it computed again") {
    const Loaded m;
    Session session = open(m.first, options_of(kOff));
    SyncReport r = move(session, m.second);
    CHECK(r.reason == SyncReason::unchanged);
    CHECK(r.text == "0 rows are copied");
    sync(session, tiny_ids(70, 12));
    grow(session, 81);
    r = move(session, m.first);
    CHECK(r.reason == SyncReason::unchanged);
    CHECK(r.diverged_at == 81);
    CHECK((r.rows_reused == 80 && r.checkpoint_row == 80 && r.rows_computed == 0));
    CHECK(r.text == "80 rows are copied");
    lose(session);
    r = move(session, m.second);
    CHECK(r.reason == SyncReason::no_state);
    CHECK(r.diverged_at == 81);
    CHECK((r.rows_reused == 0 && r.checkpoint_row == 0 && r.rows_computed == 80));
    CHECK(r.text == "the device was lost, and with it the rows that it held; 80 of 80 are computed again");
    sync(session, {});
    lose(session);
    r = move(session, m.first);
    CHECK(r.reason == SyncReason::unchanged);
    CHECK(r.text == "the device was lost, and with it the rows that it held; 0 of 0 are computed again");
}

TEST_CASE("after a loss no row is computed that the report does not count, and a reply is taken back as without it") {
    const Loaded m;
    for (const bool windowed : {false, true}) {
        CAPTURE(windowed);
        SessionOptions o = options_of(kOff);
        if (windowed) o.windows = {{kAllLayers, 40, 4}};
        Session session = open(m.first, o), plain = open(m.first, o);
        for (Session* s : {&session, &plain}) {
            sync(*s, tiny_ids(330, 5), {{300, false}});
            grow(*s, 350);
        }
        lose(session);
        const auto n_row = [&] { return session.stats().rows_prefilled + session.stats().rows_decoded; };
        const uint64_t n_before = n_row();
        CHECK(move(session, m.second).rows_computed == (windowed ? 49 : 349));
        CHECK(n_row() - n_before == (windowed ? 49 : 349));
        const std::vector<Token> cut = join(history(plain, 347), tiny_ids(20, 6));
        for (Session* s : {&session, &plain}) sync(*s, cut);
        CHECK(bytes_of(session) == bytes_of(plain));
    }
}

TEST_CASE("a move that cannot be is an error that says why, and the session goes on") {
    TinyOptions tiny = slim();
    tiny.seed = 2;
    const std::vector<std::byte> bytes = tiny_model(), other_bytes = tiny_model(tiny);
    tiny.n_layer = 8;
    const std::vector<std::byte> larger_bytes = tiny_model(tiny);
    tiny = slim();
    tiny.rope_base = 5e5f;
    const std::vector<std::byte> rotated_bytes = tiny_model(tiny);
    const Device device = cpu_device();
    const Model model = load_model(device, bytes), other = load_model(device, other_bytes),
                larger = load_model(device, larger_bytes), rotated = load_model(device, rotated_bytes);
    CHECK(Session().move_to(model).status().text.find("never created") != std::string::npos);
    SessionOptions o = options_of(kOff);
    Session session;
    Status in_callback;
    bool go_on = true;
    size_t n_seen = 0;
    o.progress = [&](const char*, float) {
        in_callback = session.move_to(model).status();
        n_seen = session.history().size();
        return go_on;
    };
    session = open(model, o);
    sync(session, tiny_ids(40, 1));
    CHECK(in_callback.code == Code::bad_argument);
    CHECK(in_callback.text.find("callback") != std::string::npos);
    CHECK(session.move_to(Model()).status().code == Code::bad_argument);
    for (const Model& m : {other, larger, rotated}) {
        const Status s = session.move_to(m).status();
        CHECK(s.code == Code::bad_argument);
        CHECK(s.text.find("other weights") != std::string::npos);
    }
    grow(session, 50);
    lose(session);
    go_on = false;
    CHECK(session.move_to(model).status().code == Code::cancelled);
    CHECK(session.next().status().code == Code::device_lost);
    go_on = true;
    in_callback = Status();
    move(session, model);
    CHECK(in_callback.code == Code::bad_argument);
    CHECK(n_seen == 50);
    Session plain = open(model, options_of(kOff));
    sync(plain, tiny_ids(40, 1));
    for (Session* s : {&session, &plain}) grow(*s, 70);
    CHECK(history(session, 70) == history(plain, 70));
}

TEST_CASE("where an allocation fails, a move returns out_of_memory, leaks nothing, and the session is as before") {
    const Loaded m;
    for (const bool lost : {false, true}) {
        Session session = open(m.first, options_of(2)), plain = open(m.first, options_of(2));
        for (Session* s : {&session, &plain}) {
            sync(*s, tiny_ids(100, 1), {{50, true}});
            grow(*s, 110);
        }
        const std::vector<Token> before = history(session);
        if (lost) lose(session);
        int n_failure = 0;
        for (int64_t i = 0;; i += 1 + i / 24, ++n_failure) {
            const int64_t held = n_held.load();
            allocations_until_fault = i;
            const Code code = session.move_to(m.second).status().code;
            const bool met = allocations_until_fault.exchange(kNever) < 0;
            CHECK(code == (met ? Code::out_of_memory : Code::ok));
            if (!met) break;
            CHECK(n_held.load() == held);
            CHECK(history(session) == before);
        }
        CHECK(n_failure > 20);
        for (Session* s : {&session, &plain}) grow(*s, 140);
        CHECK(history(session, 140) == history(plain, 140));
        CHECK(sync(session, join(tiny_ids(50, 1), {1, 2})).checkpoint_row == 50);
    }
}

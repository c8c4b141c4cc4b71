// Conversations on disk: a loaded session goes on with the same bits, and a second save appends what changed.
#include "session_file_rig.h"

namespace test_session_file {

/// Both go on with the same text, and go back to the same checkpoint with the same bits.
void check_same(Session& a, Session& b, bool same_cycles) {
    REQUIRE(history(a) == history(b));
    CHECK(bytes_of(a) == bytes_of(b));
    const size_t n = a.history().size();
    for (int i = 0; i < 6; ++i) {
        more(a, 1);
        more(b, 1);
        if (same_cycles) REQUIRE(history(a) == history(b));
    }
    const size_t both = std::min(a.history().size(), b.history().size());
    CHECK(first(history(a), both) == first(history(b), both));
    const std::vector<Token> edited = join(first(history(a), n - 30), tiny_ids(20, 99));
    const SyncReport x = a.sync(edited).value(), y = b.sync(edited).value();
    CHECK(x.checkpoint_row == y.checkpoint_row);
    CHECK(x.checkpoint_row != 0);
    CHECK(x.rows_computed == y.rows_computed);
    // A GPU's bytes also hold convolution inputs that no later row reads.
    if (same_cycles) CHECK(bytes_of(a) == bytes_of(b));
    more(a, 5);
    more(b, 5);
    CHECK(first(history(a), n - 5) == first(history(b), n - 5));
}

/// Saves after a prompt and again after an answer; a session that loads each goes on as the one that saved.
void check_round_trip(const Model& model, const Model& other, const SessionOptions& options, size_t n = 400) {
    const Folder folder;
    const std::string path = folder.file();
    const bool same_cycles = model.impl()->device->machine->kind() == Kind::cpu;
    Session a = open(model, options);
    REQUIRE(a.sync(tiny_ids(n, 3), std::vector<Mark>{{n * 3 / 4, true}}).ok());
    const SaveReport whole = save(a, path);
    CHECK(!whole.appended);
    CHECK(whole.written_bytes == whole.file_bytes);
    CHECK(whole.file_bytes == fs::file_size(path));
    if (same_cycles) {
        Session b = open(other, options);
        REQUIRE(b.sync(tiny_ids(50, 4)).ok());
        CHECK(load(b, path).n_token == n);
        CHECK(b.sync(b.history()).value().rows_computed == 0);  // with the logits of the last row
        more(b, 1);
    }
    more(a, 30);
    const SaveReport part = save(a, path);
    CHECK(part.appended);
    CHECK(part.written_bytes < whole.written_bytes * 3 / 4);
    CHECK(part.file_bytes == whole.file_bytes + part.written_bytes);
    CHECK(part.file_bytes == fs::file_size(path));
    Session b = open(other, options);
    CHECK(load(b, path).recovered == false);
    CHECK(b.history().size() == a.history().size());
    check_same(a, b, same_cycles);
    CHECK(folder.n_file() == 1);
}

/// A session, and three that go on as it does.
struct Copies {
    explicit Copies(const Model& model, Session from, const SessionOptions& options) {
        const Folder folder;
        for (Session& s : all) s = open(model, options);
        save(from, folder.file());
        load(all[1], folder.file());
        REQUIRE(all[2].restore(from.save().value()).ok());
        REQUIRE(from.fork().get(all[3]).ok());
        all[0] = std::move(from);
    }
    Session all[4];  ///< itself, loaded, restored, forked
};

}  // namespace test_session_file

using namespace test_session_file;

TEST_CASE(
    "restore equivalence: a loaded session goes on with the same bits, in every KV format, with windows and drafts") {
    const Model model = tiny(cpu_device(2)), other = load_model(
                                                 cpu_device(4), *[] {
                                                     static const Bytes bytes = tiny_model({});
                                                     return &bytes;
                                                 }());
    for (const KvType type : {KvType::f16, KvType::q8_0, KvType::q4_0, KvType::q4_1, KvType::f32})
        for (const Draft source : {Draft::off, Draft::mtp}) {
            CAPTURE(static_cast<int>(type));
            SessionOptions o = options_of(source);
            o.kv_k = o.kv_v = type;
            check_round_trip(model, other, o);
        }
    for (const Draft source : {Draft::mtp, Draft::mtp_lookup}) {
        SessionOptions o = options_of(source);
        o.windows = {{kAllLayers, 40, 4}};
        o.draft.window = 64;  // the draft block's cache is a ring
        check_round_trip(model, other, o);
    }
}

TEST_CASE("a session that moved appends to its file, also after a loss of the device") {
    const Folder folder;
    const Bytes bytes = tiny_model();
    const Model model = load_model(cpu_device(), bytes), other = load_model(cpu_device(2), bytes);
    Session a = open(model, options_of());
    REQUIRE(a.sync(tiny_ids(600, 3), std::vector<Mark>{{300, true}}).ok());
    more(a, 10);
    const SaveReport whole = save(a, folder.file());
    for (const bool lost : {false, true}) {
        if (lost) (void)a.impl()->trunk->track(Status(Code::device_lost, "for a test")).ok();
        REQUIRE(a.move_to(lost ? model : other).ok());
        more(a, 10);
        const SaveReport part = save(a, folder.file());
        CHECK(part.appended);
        CHECK(part.written_bytes < whole.written_bytes * 3 / 4);
    }
    Session b = open(model, options_of());
    load(b, folder.file());
    check_same(a, b, true);
}

TEST_CASE("a reply that is cut after a restart goes back to the same row, wherever it was saved") {
    const Bytes bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(1), bytes);
    for (const bool by_hand : {false, true}) {  // the application samples by itself: each token is a prompt
        CAPTURE(by_hand);
        Session saved = open(model, options_of());
        std::vector<Token> text = tiny_ids(100, 31);
        sync(saved, text, {{90, false}});
        for (int i = 0; by_hand && i < 40; ++i) {
            text.push_back(static_cast<Token>(i));
            sync(saved, text);
        }
        Copies copies(model, std::move(saved), options_of());
        std::vector<std::byte> want;
        for (Session& s : copies.all) {
            s.impl()->tree->set_reply_stride(48);  // from row 128 on
            grow(s, 300);
            CHECK(sync(s, join(history(s, 220), tiny_ids(30, 3))).checkpoint_row == 176);
            if (want.empty()) want = bytes_of(s);
            CHECK(bytes_of(s) == want);
        }
    }
}

TEST_CASE("a file keeps the checkpoints of the last reply, and of one that a prompt has cut") {
    const Folder folder;
    const Bytes bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(1), bytes);
    const auto opened = [&] {
        Session s = open(model, options_of());
        s.impl()->tree->set_reply_stride(48);  // from row 128 on
        return s;
    };
    const auto loaded = [&](const Session& from) {
        save(from, folder.file());
        Session s = opened();
        load(s, folder.file());
        return s;
    };
    Session a = opened();
    sync(a, tiny_ids(100, 31), {{90, false}});
    grow(a, 300);
    Session b = loaded(a);
    const std::vector<Token> cut = join(history(a, 220), tiny_ids(30, 3));
    for (Session* s : {&a, &b}) CHECK(sync(*s, cut).checkpoint_row == 176);
    CHECK(bytes_of(b) == bytes_of(a));
    Session c = loaded(a);
    for (Session* s : {&a, &b, &c}) {
        grow(*s, 260);
        sync(*s, join(history(*s), tiny_ids(20, 4)));
        CHECK(sync(*s, join(first(cut, 185), tiny_ids(20, 5))).checkpoint_row == 176);
        CHECK(bytes_of(*s) == bytes_of(a));
    }
}

TEST_CASE("after logits() and a restart the last tokens of a reply are taken back as without") {
    const Bytes bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(1), bytes);
    for (const bool with_logits : {false, true})
        for (const size_t n_back : {0u, 3u}) {
            CAPTURE(with_logits);
            CAPTURE(n_back);
            Session saved = open(model, options_of());
            sync(saved, tiny_ids(94, 1));
            grow(saved, 148);
            if (with_logits) REQUIRE(saved.logits().ok());
            Copies copies(model, std::move(saved), options_of());
            std::vector<std::byte> want;
            for (Session& s : copies.all) {
                sync(s, join(history(s, 148 - n_back), tiny_ids(30, 3)));
                if (want.empty()) want = bytes_of(s);
                CHECK(bytes_of(s) == want);
            }
        }
}

#ifndef AUSPEX_NO_VULKAN
TEST_CASE("restore equivalence on the GPU: a loaded session goes on with the same text and bits") {
    const Device device = gpu_device();
    if (!device) return;
    const Model model = tiny(device, 1, true);
    SessionOptions o = options_of(Draft::mtp);
    o.run_ahead = 2;
    o.kv_k = KvType::q8_0;
    o.draft.window = 64;
    check_round_trip(model, model, o, 120);
}

TEST_CASE("files and snapshots keep tokens that a GPU computed ahead of the caller, apart from those that it knows") {
    const Device device = gpu_device();
    if (!device) return;
    const Folder folder;
    const Model model = tiny(device, 1, true);
    SessionOptions o = options_of(Draft::mtp);
    o.run_ahead = 3;
    Session a = open(model, o), plain = open(model, options_of());
    REQUIRE(a.sync(tiny_ids(60, 3)).ok());
    REQUIRE(plain.sync(tiny_ids(60, 3)).ok());
    more(a, 4);
    save(a, folder.file());
    REQUIRE(a.impl()->timeline.size() > a.history().size());
    Snapshot snap;
    REQUIRE(a.save().get(snap).ok());
    const size_t n = a.history().size();
    CHECK(snap.n_token == n);
    more(plain, n + 12 - 60);
    Session b = open(model, o), c = open(model, o), d = open(model, o), e = open(model, o);
    for (Session* s : {&b, &c}) load(*s, folder.file());
    for (Session* s : {&d, &e}) REQUIRE(s->restore(snap).ok());
    for (Session* s : {&b, &c, &d, &e}) CHECK(history(*s) == history(a));
    for (Session* s : {&b, &d}) {
        more(*s, 12);
        CHECK(first(history(*s), n + 12) == first(history(plain), n + 12));
    }
    Sampling hot;
    hot.temperature = 1.5f;
    REQUIRE(a.next(hot).ok());
    for (Session* s : {&c, &e}) {
        REQUIRE(s->next(hot).ok());
        const size_t both = std::min(a.history().size(), s->history().size());
        CHECK(both > n);
        CHECK(first(history(*s), both) == first(history(a), both));
    }
}
#endif

TEST_CASE("what is made of a loaded session before its next token has all of the draft block's rows, too") {
    const Folder folder;
    const Model model = tiny(cpu_device());
    const SessionOptions o = options_of(Draft::mtp);
    for (const size_t n_said : {0u, 7u}) {  // after a reply, the row of its last token is not computed
        CAPTURE(n_said);
        Session saved = open(model, o);
        sync(saved, tiny_ids(100, 3), {{80, false}});
        grow(saved, 100 + n_said);
        const std::vector<Token> text = history(saved);
        save(saved, folder.file());
        const auto loaded = [&] {
            Session session = open(model, o);
            load(session, folder.file());
            return session;
        };
        const auto check = [&](Session session, const std::string& how) {
            CAPTURE(how);
            const size_t n = session.history().size() + 20;
            grow(session, n);
            const Session::Impl& s = *session.impl();
            CHECK(s.cache.kept(s.timeline.n_row()).first_key == 0);
            return history(session, n);
        };
        const std::vector<Token> want = check(std::move(saved), "saved");
        CHECK(check(loaded(), "loaded") == want);
        CHECK(check(loaded().fork().value().fork().value(), "forked twice") == want);
        Session session = loaded();
        save(session, folder.file("second"));
        load(session, folder.file("second"));
        CHECK(check(std::move(session), "saved again") == want);
        session = loaded();
        REQUIRE(session.move_to(model).ok());
        CHECK(check(std::move(session), "moved") == want);
        session = loaded();
        sync(session, tiny_ids(30, 4));
        CHECK(sync(session, join(text, {1})).reason == SyncReason::resumed);
        check(std::move(session), "back from another text");
        session = loaded();
        sync(session, join(text, tiny_ids(20, 5)));
        sync(session, join(text, tiny_ids(20, 6)));
        check(std::move(session), "another prompt after the text");
    }
}

TEST_CASE("a file of a session with drafts loads into one without, and the other way round") {
    const Folder folder;
    const Model model = tiny(cpu_device(1));
    for (const bool from : {false, true}) {
        Session a = open(model, options_of(from ? Draft::mtp : Draft::off)),
                b = open(model, options_of(from ? Draft::off : Draft::mtp));
        REQUIRE(a.sync(tiny_ids(400, 3), std::vector<Mark>{{300, false}}).ok());
        more(a, 5);
        save(a, folder.file());
        load(b, folder.file());
        CHECK(!save(b, folder.file()).appended);  // the file becomes one of this session's kind
        more(b, 4);
        CHECK(save(b, folder.file()).appended);
        Session c = open(model, options_of(from ? Draft::off : Draft::mtp));
        load(c, folder.file());
        more(a, 20);
        more(b, 20);
        more(c, 20);
        const size_t n = a.history().size() - 5;
        CHECK(first(history(a), n) == first(history(b), n));
        CHECK(first(history(c), n) == first(history(b), n));
    }
}

TEST_CASE("files and snapshots go from a model with MTP blocks into one without, or with others, and back") {
    const Folder folder;
    const Device device = cpu_device(1);
    for (const Family family : kFamilies) {
        CAPTURE(family_name(family));
        const auto part = [&](Packaging packaging, uint64_t seed, bool mtp = true) {
            TinyOptions t = narrow();
            t.family = family;
            t.packaging = packaging;
            t.seed = seed;
            t.mtp = mtp;
            return tiny_model(t);
        };
        const Bytes whole = part(Packaging::whole, 1), trunk = part(Packaging::trunk, 1),
                    blocks = part(Packaging::mtp_bare, 2), never = part(Packaging::whole, 1, false);
        LoadOptions off, paired;
        off.mtp = false;
        paired.mtp_bytes = blocks;
        std::vector<Model> models(4);
        REQUIRE(Model::load(device, whole).get(models[0]).ok());
        REQUIRE(Model::load(device, whole, off).get(models[1]).ok());
        REQUIRE(Model::load(device, trunk, paired).get(models[2]).ok());
        REQUIRE(Model::load(device, never).get(models[3]).ok());
        for (const Model& from : models)
            for (const Model& to : models) {
                CHECK(weights_id(*from.impl()).value == weights_id(*to.impl()).value);
                CHECK((draft_weights_id(*from.impl()).value == draft_weights_id(*to.impl()).value) ==
                      (from.info().n_mtp == to.info().n_mtp && (&from == &models[2]) == (&to == &models[2])));
            }
        if (family != Family::qwen35) continue;
        for (const Model& from : models)
            for (const Model& to : models) {
                Session a = open(from, options_of(from.info().n_mtp != 0 ? Draft::mtp : Draft::off)),
                        b = open(to, options_of(to.info().n_mtp != 0 ? Draft::mtp : Draft::off));
                REQUIRE(a.sync(tiny_ids(100, 3), std::vector<Mark>{{70, false}}).ok());
                more(a, 5);
                save(a, folder.file());
                const Snapshot snap = a.save().value();
                more(a, 20);
                for (const bool from_file : {true, false}) {
                    if (from_file) load(b, folder.file());
                    if (!from_file) REQUIRE(b.restore(snap).ok());
                    more(b, 20);
                    const size_t n = std::min(a.history().size(), b.history().size());
                    CHECK(n >= 120);
                    CHECK(first(history(a), n) == first(history(b), n));
                }
            }
        Session moving = open(models[0], options_of());
        sync(moving, tiny_ids(20, 3));
        CHECK(moving.move_to(models[1]).status().text.find("LoadOptions::mtp") != std::string::npos);
    }
}

TEST_CASE("a long chat saved after every turn stays within twice its size, with branches between the turns") {
    const Folder folder;
    const std::string path = folder.file();
    const Model model = tiny(cpu_device(1));
    Session a = open(model, options_of(Draft::mtp));
    std::vector<Token> said = tiny_ids(100, 1);
    size_t n_new = 0;
    for (uint64_t turn = 0; turn < 24; ++turn) {
        CAPTURE(turn);
        if (turn % 5 == 4) said.resize(said.size() - 20);  // an edit
        said = join(said, tiny_ids(12, 10 + turn));
        REQUIRE(a.sync(said, std::vector<Mark>{{said.size() - 2, false}}).ok());
        more(a, 6);
        said = history(a);
        if (turn % 3 == 2) {  // a title request overwrites rows, which come back
            REQUIRE(a.sync(tiny_ids(30, 1000 + turn)).ok());
            REQUIRE(a.sync(said).ok());
        }
        const SaveReport r = save(a, path, Bytes(turn, std::byte{1}));
        n_new += !r.appended;
        CHECK(r.file_bytes == fs::file_size(path));
        uint64_t live = 0;
        for (const SavedFile::Part& p : a.impl()->saved->parts) live += log_bytes_of(p.part.bytes);
        CHECK(r.file_bytes < 2 * live + 16384);
        if (turn % 4 != 3) continue;
        Session b = open(model, options_of(Draft::mtp)), c = open(model, options_of(Draft::mtp));
        CHECK(load(b, path).note.size() == turn);
        CHECK(history(b) == said);
        CHECK(bytes_of(b) == bytes_of(a));
        const size_t n_state = a.impl()->tree->live_states().size();
        CHECK(b.impl()->tree->live_states().size() == n_state);
        load(c, path);
        more(b, 3);
        more(c, 3);
        CHECK(history(b) == history(c));
    }
    CHECK(n_new >= 2);
    CHECK(n_new <= 12);
    CHECK(folder.n_file() == 1);
}

TEST_CASE(
    "a second save has its own text and states where the first had as many tokens and checkpoints at the same rows") {
    const Bytes bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(1), bytes), other = load_model(cpu_device(2), bytes);
    const std::vector<Token> begin = tiny_ids(800, 1), changed = join(begin, tiny_ids(40, 3));
    for (const bool moved : {false, true}) {
        CAPTURE(moved);
        const Folder folder;
        Session a = open(model, options_of()), b = open(model, options_of());
        sync(a, join(begin, tiny_ids(40, 2)), {{800, false}, {820, true}});
        save(a, folder.file());
        if (moved) REQUIRE(a.move_to(other).ok());
        sync(a, changed, {{800, false}, {820, true}});
        CHECK(save(a, folder.file()).appended);
        CHECK(load(b, folder.file()).n_token == 840);
        CHECK(history(b) == changed);
        CHECK(bytes_of(b) == bytes_of(a));
        const std::vector<Token> edited = join(first(changed, 820), tiny_ids(10, 4));
        for (Session* s : {&a, &b}) CHECK(sync(*s, edited).checkpoint_row == 820);
        CHECK(bytes_of(b) == bytes_of(a));
    }
}

TEST_CASE("a file keeps the kind of each checkpoint, and which are pinned") {
    const Folder folder;
    const Bytes bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(1), bytes);
    Session a = open(model, options_of()), b = open(model, options_of());
    sync(a, tiny_ids(400, 1), {{100, true}, {200, false}, {300, true}});
    grow(a, 420);
    save(a, folder.file());
    load(b, folder.file());
    size_t n_mark = 0;
    for (const PrefixTree::LiveState& state : b.impl()->tree->live_states()) {
        if (state.row % 100 != 0 || state.row > 300) continue;
        ++n_mark;
        CHECK(state.kind == (state.row == 200 ? StateKind::user_end : StateKind::system_end));
        CHECK(state.pinned == (state.row != 200));
    }
    CHECK(n_mark == 3);
}

TEST_CASE("a session whose device is lost neither saves nor loads, and its file stays") {
    const Folder folder;
    const Bytes bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(1), bytes);
    Session a = open(model, options_of());
    sync(a, tiny_ids(50, 1));
    save(a, folder.file());
    const Bytes saved = read_file(folder.file());
    more(a, 3);
    (void)a.impl()->trunk->track(Status(Code::device_lost, "for a test")).ok();
    CHECK(a.save(folder.file().c_str()).status().code == Code::device_lost);
    CHECK(a.load(folder.file().c_str()).status().code == Code::device_lost);
    CHECK(a.history().size() == 53);
    CHECK(read_file(folder.file()) == saved);
}

TEST_CASE("a save with nothing new writes no rows and no checkpoints, also after a load") {
    const Folder folder;
    const Bytes bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(1), bytes);
    Session a = open(model, options_of()), b = open(model, options_of());
    sync(a, tiny_ids(400, 1), {{100, false}, {200, false}, {300, false}});
    const SaveReport whole = save(a, folder.file()), again = save(a, folder.file());
    load(b, folder.file());
    const SaveReport loaded = save(b, folder.file());
    CHECK(again.appended);
    CHECK(again.written_bytes < whole.written_bytes / 4);
    CHECK(loaded.appended);
    CHECK(loaded.written_bytes == again.written_bytes);
}

TEST_CASE("a session appends only to the file as it left it") {
    const Folder folder;
    const std::string path = folder.file();
    const Model model = tiny(cpu_device(1));
    Session a = open(model, options_of()), b = open(model, options_of());
    REQUIRE(a.sync(tiny_ids(300, 1)).ok());
    save(a, path);
    load(b, path);
    more(b, 3);
    CHECK(save(b, path).appended);  // one that loaded it goes on with it
    more(a, 5);
    CHECK(!save(a, path).appended);  // and it is not the file that the first one wrote any more
    CHECK(!save(a, folder.file("other")).appended);
    CHECK(!save(a, path).appended);
    fs::remove(path);
    CHECK(!save(a, path).appended);
    load(b, path);
    CHECK(history(a) == history(b));
    REQUIRE(b.sync({}).ok());
    save(b, path);  // an empty conversation
    REQUIRE(a.sync(tiny_ids(20, 2)).ok());
    load(a, path);
    CHECK(a.history().empty());
    REQUIRE(a.sync(tiny_ids(20, 2)).ok());
    more(a, 2);
}

TEST_CASE("a file tells its note and its tokens without a model") {
    const Folder folder;
    const Model model = tiny(cpu_device(1));
    Session a = open(model, options_of());
    REQUIRE(a.sync(tiny_ids(77, 1)).ok());
    const Bytes note(3 << 20, std::byte{42});
    save(a, folder.file(), note);
    const auto r = read_session_file(folder.file().c_str());
    REQUIRE(r.ok());
    CHECK(r.value().n_token == 77);
    CHECK(r.value().note == note);
    CHECK(!r.value().recovered);
    save(a, folder.file());
    CHECK(read_session_file(folder.file().c_str()).value().note.empty());
}

TEST_CASE("a fork saves a file of its own, and each goes on appending to its own") {
    const Folder folder;
    const Model model = tiny(cpu_device(1));
    Session a = open(model, options_of(Draft::mtp));
    REQUIRE(a.sync(tiny_ids(300, 1), std::vector<Mark>{{200, false}}).ok());
    more(a, 5);
    save(a, folder.file("a"));
    Session b;
    REQUIRE(a.fork().get(b).ok());
    CHECK(!save(b, folder.file("b")).appended);
    for (const uint64_t seed : {7u, 8u}) {
        for (Session* s : {&a, &b}) {
            const std::string path = folder.file(s == &a ? "a" : "b");
            const std::vector<Token> said = join(history(*s), tiny_ids(20, seed + (s == &a ? 0 : 10)));
            REQUIRE(s->sync(said, std::vector<Mark>{{said.size() - 3, false}}).ok());
            more(*s, 3);
            CHECK(save(*s, path).appended);
            Session c = open(model, options_of(Draft::mtp));
            load(c, path);
            CHECK(history(c) == history(*s));
            CHECK(bytes_of(c) == bytes_of(*s));
            CHECK(c.impl()->tree->live_states().size() == s->impl()->tree->live_states().size());
            const std::vector<Token> edited = join(first(said, said.size() - 2), tiny_ids(9, 3));
            Session d;
            REQUIRE(s->fork().get(d).ok());
            REQUIRE(d.sync(edited).ok());
            REQUIRE(c.sync(edited).ok());
            CHECK(bytes_of(c) == bytes_of(d));
        }
    }
}

#if defined(__unix__) || defined(__APPLE__)
TEST_CASE("a save writes over what an ended process left, and beside what another writes") {
    const Folder folder;
    const std::string path = folder.file(), left = path + ".auspex.tmp";
    const Model model = tiny(cpu_device(1));
    Session a = open(model, options_of()), b = open(model, options_of());
    sync(a, tiny_ids(100, 1));
    write_file(left, Bytes(500000, std::byte{1}));
    save(a, path);
    CHECK(folder.n_file() == 1);
    load(b, path);
    CHECK(history(b) == history(a));

    DiskFile other;
    REQUIRE(DiskFile::open(left.c_str(), DiskFile::Mode::renew).get(other).ok());
    REQUIRE(other.write(0, "x", 1).ok());
    sync(b, tiny_ids(50, 2));
    fs::remove(path);
    save(b, path);
    CHECK(folder.n_file() == 2);
    CHECK(read_file(left).size() == 1);
    other.close();

    fs::remove(left);
    fs::create_symlink(folder.file("elsewhere"), left);  // is not written through
    write_file(folder.file("elsewhere"), Bytes(3));
    fs::remove(path);
    save(a, path);
    CHECK(read_file(folder.file("elsewhere")).size() == 3);
    load(b, path);
    CHECK(history(b) == history(a));
}
#endif

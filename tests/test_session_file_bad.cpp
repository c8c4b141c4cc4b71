// Conversations on disk: whatever is wrong with a file, a disk or the memory, the session and the file stay as they
// were.
#include "allocations.h"
#include "session_file_rig.h"

#include <algorithm>
#if defined(__unix__)
#include <csignal>
#include <sys/resource.h>
#endif

namespace test_session_file {

/// A file of two saves, what each of them holds, and a session to load it into.
struct Damage {
    Folder folder;
    std::string path = folder.file(), copy = folder.file("copy.session");
    Model model = tiny(cpu_device(1));
    Session session = open(model, options_of(Draft::mtp)), victim = open(model, options_of(Draft::mtp));
    std::vector<Token> early, late, own;
    Bytes bytes;
    uint64_t first_end = 0;
    std::vector<LogPart> parts;

    Damage() {
        REQUIRE(session.sync(tiny_ids(300, 3), std::vector<Mark>{{200, false}}).ok());
        first_end = save(session, path, Bytes(100, std::byte{7})).file_bytes;
        early = history(session);
        more(session, 10);
        REQUIRE(save(session, path, Bytes(101, std::byte{8})).appended);
        late = history(session);
        bytes = read_file(path);
        LogReader log;
        REQUIRE(log.open(path.c_str()).ok());
        parts = log.parts();
        REQUIRE(victim.sync(tiny_ids(60, 5)).ok());
        more(victim, 3);
        own = history(victim);
    }
    /// What loading the copy gives; a failure leaves everything as it was.
    Result<SessionFile> attempt() {
        auto r = victim.load(copy.c_str());
        if (r.ok()) return r;
        CHECK(r.status().code != Code::out_of_memory);
        CHECK(history(victim) == own);
        CHECK(victim.impl()->timeline.n_row() + 1 >= own.size());
        return r;
    }
    void recover() {
        if (history(victim) == own) return;
        REQUIRE(victim.sync(own).ok());
    }
    struct Part {
        LogPart entry;
        Bytes payload;
    };
    std::vector<Part> read_parts() const {
        LogReader from;
        REQUIRE(from.open(path.c_str()).ok());
        std::vector<Part> all;
        for (const LogPart& p : from.parts()) {
            all.push_back({p, Bytes(p.bytes)});
            PartReader reader(from, p);
            REQUIRE(reader.read(all.back().payload.data(), p.bytes).ok());
        }
        return all;
    }
    /// A copy of these parts, with checksums that fit.
    template <class F>
    void write_copy(const std::vector<Part>& all, F change_index) const {
        LogReader from;
        REQUIRE(from.open(path.c_str()).ok());
        LogWriter to;
        REQUIRE(to.create(copy.c_str(), from.identity()).ok());
        std::vector<LogPart> index;
        for (const Part& p : all) {
            index.push_back(p.entry);
            index.back().bytes = p.payload.size();
            REQUIRE(to.begin_part(index.back()).ok());
            REQUIRE(to.write(p.payload.data(), p.payload.size()).ok());
            REQUIRE(to.end_part(&index.back()).ok());
        }
        change_index(&index);
        LogMark mark;
        REQUIRE(to.commit(index, &mark).ok());
    }
    static Part& part_of(std::vector<Part>& all, PartKind kind) {
        const auto p = std::find_if(all.begin(), all.end(), [kind](const Part& part) {
            return part.entry.kind == static_cast<uint32_t>(kind);
        });
        REQUIRE(p != all.end());
        return *p;
    }
    /// A copy in which some words of one part, or of the index, are others, with checksums that fit.
    void forge(PartKind kind, size_t word, uint64_t value, bool index) const {
        std::vector<Part> all = read_parts();
        Part& mine = part_of(all, kind);
        if (!index) std::memcpy(mine.payload.data() + word * 8, &value, 8);
        const auto i = static_cast<size_t>(&mine - all.data());
        write_copy(all, [&](std::vector<LogPart>* to) {
            if (index) std::memcpy(reinterpret_cast<char*>(to->data() + i) + word * 8, &value, 8);
        });
    }
};

}  // namespace test_session_file

using namespace test_session_file;

TEST_CASE("a file without its end gives the save before, one without a save is refused") {
    Damage d;
    std::vector<uint64_t> sizes;
    for (const LogPart& p : d.parts)
        for (const uint64_t at : {p.at - 32, p.at, p.at + p.bytes / 2, p.at + p.bytes}) sizes.push_back(at);
    Random random(5);
    for (int i = 0; i < 30; ++i) sizes.push_back(random.below(static_cast<uint32_t>(d.bytes.size())));
    for (const uint64_t more : {0u, 1u, 31u, 32u, 33u}) {
        sizes.push_back(d.first_end + more);
        sizes.push_back(d.first_end - more - 1);
        sizes.push_back(more);
        sizes.push_back(d.bytes.size() - more - 1);
    }
    size_t n_recovered = 0, n_refused = 0;
    for (const uint64_t size : sizes) {
        CAPTURE(size);
        write_file(d.copy, Span<const std::byte>(d.bytes.data(), static_cast<size_t>(size)));
        d.recover();
        const auto r = d.attempt();
        CHECK(r.ok() == (size >= d.first_end));
        n_refused += r.status().code == Code::bad_file;
        if (!r.ok()) continue;
        n_recovered += r.value().recovered;
        CHECK(r.value().recovered == (size != d.first_end));
        CHECK(r.value().note.size() == 100);
        CHECK(history(d.victim) == d.early);
    }
    CHECK(n_recovered > 20);
    CHECK(n_refused > 20);
    // A save to such a file writes it anew.
    write_file(d.copy, Span<const std::byte>(d.bytes.data(), d.bytes.size() - 9));
    load(d.victim, d.copy);
    CHECK(!save(d.victim, d.copy).appended);
    CHECK(load(d.victim, d.copy).recovered == false);
}

TEST_CASE("a changed bit anywhere in what a file needs is found, and the session stays") {
    Damage d;
    std::vector<uint64_t> places = {0, 9, 20, 30, 40, 100, 300};
    for (const LogPart& p : d.parts)
        for (const uint64_t at : {uint64_t{0}, p.bytes / 3, p.bytes - 1}) places.push_back(p.at + at);
    for (const uint64_t at : places) {
        CAPTURE(at);
        Bytes bytes = d.bytes;
        bytes[at] ^= std::byte{0x10};
        write_file(d.copy, bytes);
        CHECK(d.attempt().status().code == Code::bad_file);
    }
    // In the last index, the save before it is taken, and the caller is told.
    for (const uint64_t back : {1u, 9u, 30u, 40u, 90u}) {
        Bytes bytes = d.bytes;
        bytes[bytes.size() - back] ^= std::byte{0x10};
        write_file(d.copy, bytes);
        d.recover();
        const auto r = d.attempt();
        REQUIRE(r.ok());
        CHECK(r.value().recovered);
        CHECK(history(d.victim) == d.early);
    }
    for (const char* text : {"", "x", "no session at all, but a text of more than 32 bytes"}) {
        write_file(d.copy, Span<const std::byte>(reinterpret_cast<const std::byte*>(text), std::strlen(text)));
        d.recover();
        CHECK(d.attempt().status().code == Code::bad_file);
        CHECK(read_session_file(d.copy.c_str()).status().code == Code::bad_file);
    }
}

TEST_CASE("absurd counts are refused and take no memory") {
    Damage d;
    size_t n = 0;
    const auto refused = [&](PartKind kind, size_t word, bool index) {
        for (const uint64_t value : {uint64_t{1} << 60, UINT64_MAX, uint64_t{1} << 31}) {
            CAPTURE(static_cast<int>(kind));
            CAPTURE(word);
            CAPTURE(index);
            d.forge(kind, word, value, index);
            const Status s = d.attempt().status();
            CHECK_MESSAGE((s.code == Code::bad_file || s.code == Code::bad_argument), s.message());
            ++n;
        }
    };
    for (size_t word = 0; word < 5; ++word) refused(PartKind::text, word, false);
    for (const PartKind kind : {PartKind::kept_state, PartKind::live_state})
        for (size_t word = 0; word < 10; ++word) refused(kind, word, false);  // the last three are the first span
    for (const PartKind kind :
         {PartKind::text, PartKind::rows, PartKind::draft_rows, PartKind::kept_state, PartKind::live_state})
        for (size_t word = 0; word < 6; ++word)
            if (!(word == 2 && kind != PartKind::rows && kind != PartKind::draft_rows) &&  // of no meaning there
                !(word == 1 && kind == PartKind::text))
                refused(kind, word, true);
    refused(PartKind::note, 4, true);
    CHECK(n > 100);
    d.forge(PartKind::text, sizeof(TextHead) / 8, 0x7fffffff7fffffffull, false);  // ids outside the vocabulary
    CHECK(d.attempt().status().code == Code::bad_argument);
    d.forge(PartKind::text, 1, 0, false);  // tokens of which the caller knows none
    CHECK(d.attempt().status().code == Code::bad_file);
    d.forge(PartKind::text, 0, 0x7f7f7f7f7f7f7f7full, false);
    CHECK(read_session_file(d.copy.c_str()).status().code == Code::bad_file);
    d.forge(PartKind::text, 0, d.late.size(), false);  // as it was
    CHECK(d.attempt().ok());
    CHECK(history(d.victim) == d.late);
    // A session without a draft block does not know how long its rows are.
    d.forge(PartKind::draft_rows, 2, 3, true);
    Session plain = open(d.model, options_of());
    const std::string text = plain.load(d.copy.c_str()).status().message();
    CHECK_MESSAGE(text.find("block 0 of draft rows has 3 rows in ") != std::string::npos, text);
    CHECK_MESSAGE(text.find(say(" bytes, expected ", kFileRows, ". Use a copy")) != std::string::npos, text);
}

TEST_CASE("parts that contradict each other are refused with what does not agree, though every checksum fits") {
    Damage d;
    d.bytes.resize(static_cast<size_t>(d.first_end));
    write_file(d.path, d.bytes);  // 300 rows, a state at row 200
    using Parts = std::vector<Damage::Part>;
    const auto told = [&](const auto& change) {
        Parts all = d.read_parts();
        change(all);
        d.write_copy(all, [](std::vector<LogPart>*) {});
        const Status s = d.attempt().status();
        CHECK(s.code == Code::bad_file);
        const std::string before = "'" + d.copy + "' contradicts itself: ",
                          after = ". Use a copy of it if there is one, or delete it and start again.";
        REQUIRE_MESSAGE(s.text.find(before) == 0, s.text);
        REQUIRE_MESSAGE(s.text.rfind(after) == s.text.size() - after.size(), s.text);
        return s.text.substr(before.size(), s.text.size() - before.size() - after.size());
    };
    const auto at = [](PartKind kind, const auto& change) {
        return [kind, change](Parts& all) { change(Damage::part_of(all, kind)); };
    };
    const auto twice = [](PartKind kind) {
        return [kind](Parts& all) { all.push_back(Damage::Part(Damage::part_of(all, kind))); };
    };
    const auto without = [](PartKind kind) {
        return [kind](Parts& all) { all.erase(all.begin() + (&Damage::part_of(all, kind) - all.data())); };
    };
    const auto longer = [&](PartKind kind, int n) {
        return at(kind, [n](Damage::Part& p) { p.payload.resize(p.payload.size() + static_cast<size_t>(n)); });
    };
    const auto head = [&](PartKind kind, const auto& change) {
        return at(kind, [change](Damage::Part& p) {
            StateHead h;
            std::memcpy(&h, p.payload.data(), sizeof h);
            change(h);
            std::memcpy(p.payload.data(), &h, sizeof h);
        });
    };
    const auto word = [&](PartKind kind, size_t i, uint64_t value) {
        return at(kind, [i, value](Damage::Part& p) { std::memcpy(p.payload.data() + i * 8, &value, 8); });
    };

    CHECK(told(at(PartKind::note, [](Damage::Part& p) { p.entry.kind = 77; })) == "it has a part of kind 77");
    CHECK(told(without(PartKind::text)) == "it has 0 texts, 1 live states and 1 notes");
    CHECK(told(without(PartKind::live_state)) == "it has 1 texts, 0 live states and 1 notes");
    CHECK(told(twice(PartKind::text)) == "it has 2 texts, 1 live states and 1 notes");
    CHECK(told(twice(PartKind::live_state)) == "it has 1 texts, 2 live states and 1 notes");
    CHECK(told(twice(PartKind::note)) == "it has 1 texts, 1 live states and 2 notes");
    CHECK(told(at(PartKind::note, [](Damage::Part& p) { p.payload.resize(kMaxNoteBytes + 1); })) ==
          "a note of 67108865 bytes");

    CHECK(told(longer(PartKind::text, 2)) == "a text of 300 tokens, 300 rows and 288 logits in 2458 bytes");
    CHECK(told(longer(PartKind::text, 4)) == "a text of 300 tokens, 300 rows and 288 logits in 2460 bytes");
    CHECK(told(longer(PartKind::text, -4)) == "a text of 300 tokens, 300 rows and 288 logits in 2452 bytes");
    CHECK(told(word(PartKind::text, 1, 301)) == "a text of 300 tokens, 300 rows and 288 logits in 2456 bytes");

    CHECK(told(without(PartKind::rows)) == "1 blocks of rows for 300 rows");
    CHECK(told(twice(PartKind::rows)) == "3 blocks of rows for 300 rows");
    CHECK(told(without(PartKind::draft_rows)) == "1 blocks of draft rows for 300 rows");
    CHECK(told(longer(PartKind::rows, -8)) == "block 0 of rows has 256 rows in 131064 bytes, expected 256 in 131072");
    CHECK(told(longer(PartKind::draft_rows, 8)) ==
          "block 0 of draft rows has 256 rows in 131080 bytes, expected 256 in 131072");
    CHECK(told(at(PartKind::rows, [](Damage::Part& p) { p.entry.first = 1; })) ==
          "block 0 of rows begins at row 1, expected 0");
    CHECK(told(at(PartKind::rows, [](Damage::Part& p) { p.entry.n -= 1; })) ==
          "block 0 of rows has 255 rows in 131072 bytes, expected 256 in 131072");

    const std::string beyond = "the state at row 300 has values out of range";
    Parts whole = d.read_parts();
    const uint64_t n_byte = Damage::part_of(whole, PartKind::live_state).payload.size();
    const auto has_bytes = [&](int more) {
        return say("the state at row 300 has ", n_byte + static_cast<uint64_t>(more),
                   " bytes, which is not what it says");
    };
    CHECK(told(head(PartKind::live_state, [](StateHead& h) { h.row = 299; })) ==
          "a state at row 299 of 300 with 4 spans");
    CHECK(told(head(PartKind::live_state, [](StateHead& h) { h.n_span = 301; })) ==
          "a state at row 300 of 300 with 301 spans");
    CHECK(told([&](Parts& all) {
              Damage::part_of(all, PartKind::kept_state).entry.first = 301;
              head(PartKind::kept_state, [](StateHead& h) { h.row = 301; })(all);
          }) == "a state at row 301 of 300 with 3 spans");
    CHECK(told(head(PartKind::live_state, [](StateHead& h) { h.first_key = 301; })) == beyond);
    CHECK(told(head(PartKind::live_state, [](StateHead& h) { h.n_mtp_row = 302; })) == beyond);
    CHECK(told(head(PartKind::live_state, [](StateHead& h) { h.n_hidden = 1; })) == beyond);
    for (const uint32_t flags : {static_cast<uint32_t>(kStateKinds), 255u})
        CHECK(told(at(PartKind::kept_state, [flags](Damage::Part& p) { p.entry.flags = flags; })) ==
              "the state at row 200 has values out of range");
    CHECK(told(longer(PartKind::live_state, 8)) == has_bytes(8));
    CHECK(told(longer(PartKind::live_state, -8)) == has_bytes(-8));
    CHECK(told(head(PartKind::live_state, [](StateHead& h) { h.trunk_bytes -= 8, h.draft_bytes += 8; })) ==
          has_bytes(0));
    CHECK(told(word(PartKind::live_state, sizeof(StateHead) / 8, 7)) ==
          "the spans of the state at row 300 do not cover its rows one after the other");
    CHECK(told([](Parts& all) {
              Damage::Part live = Damage::part_of(all, PartKind::kept_state);
              live.entry.kind = static_cast<uint32_t>(PartKind::live_state);
              Damage::part_of(all, PartKind::live_state) = live;
          }) == "the live state is not that of the last row");
    d.write_copy(whole, [](std::vector<LogPart>*) {});  // the same parts, unchanged
    REQUIRE(d.attempt().ok());
    CHECK(history(d.victim) == d.early);
}

TEST_CASE("a file of other weights or other options is refused with both named") {
    const Folder folder;
    const std::string path = folder.file();
    const Model model = tiny(cpu_device(1)), other = tiny(cpu_device(1), 2);
    Session a = open(model, options_of());
    REQUIRE(a.sync(tiny_ids(100, 1)).ok());
    save(a, path);
    const auto refused = [&](const Model& m, const SessionOptions& o, const char* word) {
        Session b = open(m, o);
        REQUIRE(b.sync(tiny_ids(10, 1)).ok());
        const Status s = b.load(path.c_str()).status();
        CHECK(s.code == Code::bad_argument);
        CHECK_MESSAGE(s.text.find(word) != std::string::npos, s.text);
        CHECK(b.history().size() == 10);
        CHECK(b.sync(b.history()).value().rows_computed == 0);
    };
    refused(other, options_of(), "other weights");
    refused(tiny(cpu_device(1), 1, false, 5e5f), options_of(), "other weights or hyperparameters");
    if (cpu_device(1).name().find("reference") == std::string::npos)  // this build has another path
        refused(load_model(
                    cpu_device(1, CpuPath::reference),
                    *[] {
                        static const Bytes bytes = tiny_model({});
                        return &bytes;
                    }()),
                options_of(), "was saved on");
    SessionOptions o = options_of();
    o.kv_v = KvType::q8_0;
    refused(model, o, "values f16, no windows', this session has 'keys f16, values q8_0");
    o = options_of();
    o.windows = {{kAllLayers, 40, 0}};
    refused(model, o, "windows 3:40");
    o = options_of();
    o.n_context = 99;
    refused(model, o, "holds 100 tokens, the session 99");
    // What decides no bit of it may differ.
    o = options_of(Draft::lookup);
    o.n_context = 100;
    o.n_ubatch = 16;
    o.checkpoint_bytes = 0;
    Session b = open(model, o);
    load(b, path);
    CHECK(history(a) == history(b));
    // But steps larger than its own cannot be computed again with the same bits.
    CHECK(b.impl()->trunk->spans()[0].origin == RowOrigin::restored);
    CHECK(a.impl()->trunk->spans()[0].origin == RowOrigin::prefilled);
    // Nor those with another exact_prompts.
    const Result<Snapshot> snap = a.save();
    REQUIRE(snap.ok());
    o = options_of();
    o.exact_prompts = true;
    Session exact = open(model, o), again = open(model, o), plain = open(model, options_of());
    const auto origin = [](Session& s) { return s.impl()->trunk->spans()[0].origin; };
    load(exact, path);
    CHECK(origin(exact) == RowOrigin::restored);
    REQUIRE(exact.restore(snap.value()).ok());
    CHECK(origin(exact) == RowOrigin::restored);
    REQUIRE(exact.sync({}).ok());
    REQUIRE(exact.sync(tiny_ids(100, 2)).ok());
    REQUIRE(exact.save(path.c_str()).ok());
    load(again, path);
    load(plain, path);
    CHECK(origin(again) == RowOrigin::prefilled);
    CHECK(origin(plain) == RowOrigin::restored);
}

TEST_CASE("a file of another device names both whole") {
    FileIdentity cpu{}, gpu{};
    std::strcpy(cpu.device_name, "cpu (avx512");  // without its threads, as the key is
    std::strcpy(gpu.device_name, "Some GPU (TM) 9");
    gpu.device = 1;
    const std::string text = check_identity(cpu, gpu, "f").text, back = check_identity(gpu, cpu, "f").text;
    CHECK_MESSAGE(text.find("was saved on 'cpu (avx512)', this session is on 'Some GPU (TM) 9';") != text.npos, text);
    CHECK_MESSAGE(back.find("was saved on 'Some GPU (TM) 9', this session is on 'cpu (avx512)';") != back.npos, back);
}

TEST_CASE("a path that cannot be written is refused, and nothing is left beside it") {
    const Folder folder;
    const Model model = tiny(cpu_device(1));
    Session a = open(model, options_of());
    REQUIRE(a.sync(tiny_ids(100, 1)).ok());
    fs::create_directories(folder.path / "sub");
    CHECK(a.save((folder.path / "none" / "x").string().c_str()).status().code == Code::not_found);
    CHECK(a.save((folder.path / "sub").string().c_str()).status().code == Code::bad_argument);
    CHECK(a.save("").status().code == Code::bad_argument);
    CHECK(a.save(static_cast<const char*>(nullptr)).status().code == Code::bad_argument);
    CHECK(a.load("").status().code == Code::bad_argument);
    CHECK(a.load(folder.file("none").c_str()).status().code == Code::not_found);
    CHECK(a.load((folder.path / "sub").string().c_str()).status().code == Code::bad_argument);
    CHECK(read_session_file(folder.file("none").c_str()).status().code == Code::not_found);
#if defined(__linux__)
    CHECK(a.save("/dev/full").status().code == Code::bad_argument);
    const Status s = a.save("/proc/auspex.session").status();
    CHECK((s.code == Code::not_found || s.code == Code::io_error));
    CHECK(a.load("/dev/zero").status().code == Code::bad_argument);
#endif
    Session empty;
    CHECK(empty.save(folder.file().c_str()).status().code == Code::bad_argument);
    CHECK(empty.load(folder.file().c_str()).status().code == Code::bad_argument);
    const Bytes note(kMaxNoteBytes + 1);
    CHECK(a.save(folder.file().c_str(), note).status().code == Code::bad_argument);
    CHECK(folder.n_file() == 1);
    more(a, 1);
}

#if defined(__unix__)
TEST_CASE("a full disk leaves the file and the session as they were") {
    const Folder folder;
    const std::string path = folder.file();
    const Model model = tiny(cpu_device(1));
    Session a = open(model, options_of(Draft::mtp)), b = open(model, options_of(Draft::mtp)),
            plain = open(model, options_of());
    REQUIRE(a.sync(tiny_ids(300, 1)).ok());
    REQUIRE(plain.sync(tiny_ids(300, 1)).ok());
    const auto before = std::signal(SIGXFSZ, SIG_IGN);
    rlimit old{};
    REQUIRE(getrlimit(RLIMIT_FSIZE, &old) == 0);
    const auto limited = [&](uint64_t bytes) {
        rlimit now = old;
        now.rlim_cur = bytes;
        REQUIRE(setrlimit(RLIMIT_FSIZE, &now) == 0);
        const Status s = a.save(path.c_str()).status();
        REQUIRE(setrlimit(RLIMIT_FSIZE, &old) == 0);
        CHECK(s.code == Code::io_error);
        CHECK(s.text.find("Free some space") != std::string::npos);
    };
    for (const uint64_t bytes : {1u, 100u, 5000u, 100000u, 300000u}) limited(bytes);
    CHECK(folder.n_file() == 0);
    save(a, path);
    const std::vector<Token> saved = history(a);
    const Bytes whole = read_file(path);
    more(a, 10);
    for (const uint64_t bytes : {1u, 100u, 5000u, 100000u}) {
        limited(whole.size() + bytes);
        CHECK(read_file(path) == whole);
    }
    CHECK(folder.n_file() == 1);
    std::signal(SIGXFSZ, before);
    load(b, path);
    CHECK(history(b) == saved);
    CHECK(save(a, path).appended);
    load(b, path);
    CHECK(history(b) == history(a));
    CHECK(a.stats().rows_prefilled == 300);  // nothing was computed again
    more(a, 10);
    more(plain, 25);
    CHECK(first(history(a), 320) == first(history(plain), 320));
}
#endif

TEST_CASE("where an allocation fails, saving and loading return a Status and leave session and folder as they were") {
    const Folder folder;
    const std::string path = folder.file(), other_path = folder.file("new");
    const Model model = tiny(cpu_device(1));
    Session a = open(model, options_of(Draft::mtp)), b = open(model, options_of(Draft::mtp)),
            plain = open(model, options_of());
    REQUIRE(a.sync(tiny_ids(300, 1), std::vector<Mark>{{200, true}}).ok());
    more(a, 4);
    save(a, path);
    REQUIRE(b.sync(tiny_ids(40, 2)).ok());
    more(b, 5);
    const std::vector<Token> own = history(b);
    const auto fail_in_turn = [&](const char* what, size_t n_file, auto call, auto check) {
        int n = 0;
        for (int64_t i = 0;; ++i, ++n) {
            allocations_until_fault = i;
            const Status s = call();
            const bool met = allocations_until_fault.exchange(kNever) < 0;
            if (s.ok()) break;
            CHECK_MESSAGE(s.code == Code::out_of_memory, what << ", failure " << i << ": " << s.message());
            REQUIRE(met);
            CHECK(folder.n_file() == n_file);
            check();
        }
        CHECK(n > 8);
    };
    // What fits neither out_of_memory nor a failure is a checkpoint: a session goes on without it.
    fail_in_turn(
        "load", 1, [&] { return b.load(path.c_str()).status(); }, [&] { CHECK(history(b) == own); });
    CHECK(history(b) == history(a));
    REQUIRE(b.sync(own).ok());
    allocations_until_fault = 40;  // one failure in the middle, and on with the old text
    const Status s = b.load(path.c_str()).status();
    allocations_until_fault = kNever;
    CHECK(s.code == Code::out_of_memory);
    CHECK(history(b) == own);
    REQUIRE(plain.sync(first(own, 40)).ok());
    more(plain, 20);
    more(b, 10);
    CHECK(first(history(b), 50) == first(history(plain), 50));
    more(a, 3);
    const std::vector<Token> said = history(a);
    fail_in_turn(
        "append", 1, [&] { return a.save(path.c_str()).status(); }, [&] { CHECK(history(a) == said); });
    fail_in_turn(
        "save", 1, [&] { return a.save(other_path.c_str()).status(); }, [&] { CHECK(history(a) == said); });
    load(b, path);
    CHECK(history(b) == said);
    load(b, other_path);
    CHECK(history(b) == said);
}

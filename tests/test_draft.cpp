// Drafting changes the speed, never the text.
#include <doctest/doctest.h>

#include <algorithm>

#include "allocations.h"
#include "draft_rig.h"

using namespace auspex;
using namespace auspex::detail;
using namespace test;
using namespace draft_rig;

TEST_CASE("lossless drafting: the text is the same at every depth, from every source, with every sampling") {
    for (Type type : {Type::f16, Type::q4_k}) {
        if (AUSPEX_TEST_SANITIZED && type == Type::f16) continue;
        const Tiny tiny(type, type == Type::f16 ? slim() : TinyOptions());
        const std::vector<Token> prompt = tiny_ids(70, 12);
        uint64_t n_rejected = 0, n_accepted = 0;
        size_t i_sampling = 0;
        for (const Sampling& sampling : samplings()) {
            CAPTURE(i_sampling++);
            const std::vector<Token> plain = text(tiny.model, {}, prompt, 100, sampling);
            auto same = [&](Setup setup) {
                Stats stats;
                CHECK(text(tiny.model, std::move(setup), prompt, 100, sampling, &stats) == plain);
                const uint64_t drafted = sum(stats.drafted, kMaxDraft), accepted = sum(stats.accepted, kMaxDraft);
                n_accepted += accepted;
                n_rejected += drafted - accepted;
            };
            for (int depth = 0; depth <= 8; ++depth) same(with(Draft::mtp, depth));
            same(with(Draft::mtp, -1));
            same(with(Draft::lookup, 5));
            same(with(Draft::mtp_lookup, 4));
            for (uint64_t seed = 1; seed <= 3; ++seed) {
                Setup noise = with(Draft::lookup, 8);
                noise.text_source.reset(new Noise(seed, kTinyVocab));
                same(std::move(noise));
            }
            Setup trimmed = with(Draft::mtp, 3);
            trimmed.draft.n_vocab = 100;
            same(std::move(trimmed));
            Setup careful = with(Draft::mtp, 6);
            careful.draft.min_probability = 0.1f;
            same(std::move(careful));
            Setup narrow = with(Draft::mtp, 3);
            narrow.draft.window = 16;
            same(std::move(narrow));
        }
        CHECK(n_rejected > 400);  // enough rejections to mean something
        CHECK(n_accepted > 400);
    }
}

TEST_CASE("lossless drafting holds for several draft heads, experts and other families" * doctest::test_suite("long")) {
    for (Family family : {Family::qwen35moe, Family::qwen3next, Family::step35}) {
        CAPTURE(family_name(family));
        TinyOptions options = slim();
        options.family = family;
        options.type = Type::q8_0;
        const std::vector<std::byte> bytes = tiny_model(options);
        const Model model = load_model(cpu_device(), bytes);
        REQUIRE(model.info().n_mtp == (family == Family::step35 ? 3 : 1));
        const std::vector<Token> prompt = tiny_ids(70, 12);
        for (float temperature : {0.0f, 1.0f}) {
            Sampling sampling;
            sampling.temperature = temperature;
            sampling.seed = 8;
            const std::vector<Token> plain = text(model, {}, prompt, 80, sampling);
            uint64_t n_drafted = 0, n_accepted = 0;
            for (int depth : {1, 2, 3, 5, 8}) {
                Stats stats;
                CHECK(text(model, with(Draft::mtp, depth), prompt, 80, sampling, &stats) == plain);
                n_drafted += sum(stats.drafted, kMaxDraft);
                n_accepted += sum(stats.accepted, kMaxDraft);
            }
            CHECK(n_drafted > 300);
            CHECK(n_accepted < n_drafted);
        }
    }
}

TEST_CASE("random acceptance leaves the state of plain decoding byte for byte" * doctest::test_suite("long")) {
    const Tiny tiny(Type::q4_k);
    constexpr size_t kText = 1500;
    const std::vector<Token> prompt = tiny_ids(20, 2);
    Sampling sampling;
    sampling.temperature = 1;
    sampling.seed = 9;
    Setup plain_setup;
    plain_setup.n_context = 2048;
    Session plain = open(tiny.model, std::move(plain_setup));
    sync(plain, prompt);
    std::vector<Token> truth = prompt;
    const std::vector<Token> made = more(plain, kText, sampling);
    truth.insert(truth.end(), made.begin(), made.end());
    uint64_t n_cycle = 0, n_compared = 0;
    for (uint64_t seed = 1; seed <= 4; ++seed) {
        Setup setup = with(seed % 2 ? Draft::lookup : Draft::mtp_lookup, 8);
        setup.n_context = 2048;
        setup.text_source.reset(new Teacher(truth, kTinyVocab, seed));
        Session drafting = open(tiny.model, std::move(setup));
        plain_setup = Setup();
        plain_setup.n_context = 2048;
        Session other = open(tiny.model, std::move(plain_setup));
        sync(drafting, prompt);
        sync(other, prompt);
        Random random(seed);
        while (drafting.history().size() < truth.size() - 60) {
            const size_t goal = drafting.history().size() + 1 + random.below(60);
            while (drafting.history().size() < goal) more(drafting, 1, sampling);
            while (other.history().size() < drafting.history().size()) more(other, 1, sampling);
            // Ring places that only rejected rows wrote may differ; kConvRing more plain rows overwrite those.
            REQUIRE(std::equal(drafting.history().begin(), drafting.history().end(), truth.begin()));
            REQUIRE(drafting.set_draft_depth(0).ok());
            for (int i = 0; i < 17; ++i) {
                more(drafting, 1, sampling);
                more(other, 1, sampling);
            }
            REQUIRE(drafting.set_draft_depth(8).ok());
            auto a = drafting.save(), b = other.save();
            REQUIRE(a.ok());
            REQUIRE(b.ok());
            REQUIRE(a.value().bytes.size() == b.value().bytes.size());
            CHECK(std::memcmp(a.value().bytes.data(), b.value().bytes.data(), a.value().bytes.size()) == 0);
            ++n_compared;
        }
        n_cycle += sum(drafting.stats().cycles + 1, kMaxDraft);
        CHECK(drafting.stats().accepted[3] > 0);
        CHECK(drafting.stats().accepted[0] < drafting.stats().drafted[0]);
    }
    CHECK(n_compared > 50);
    CHECK(n_cycle > 400);
}

TEST_CASE("a thousand rejections in a row leave the state of plain decoding" * doctest::test_suite("long")) {
    const Tiny tiny(Type::q4_k);
    const std::vector<Token> prompt = tiny_ids(10, 8);
    Sampling sampling;
    sampling.temperature = 1;
    Setup setup;
    setup.n_context = 1200;
    Session plain = open(tiny.model, std::move(setup));
    sync(plain, prompt);
    std::vector<Token> truth = prompt;
    const std::vector<Token> made = more(plain, 1010, sampling);
    truth.insert(truth.end(), made.begin(), made.end());
    setup = with(Draft::lookup, 2);
    setup.n_context = 1200;
    setup.text_source.reset(new Wrong(truth, kTinyVocab));
    Session wrong = open(tiny.model, std::move(setup));
    sync(wrong, prompt);
    CHECK(more(wrong, 1010, sampling) == made);
    CHECK(wrong.stats().cycles[2] >= 1000);
    CHECK(wrong.stats().accepted[0] == 0);
}

TEST_CASE("what the text offers is compared with the tokens that come, verified or not") {
    const Tiny tiny;
    Session session = open(tiny.model, with(Draft::lookup, -1));
    Sampling loop;
    loop.logit_bias = {{7, 1000.0f}};
    sync(session, std::vector<Token>(20, 7));
    more(session, 1, loop);  // from the prompt's logits
    more(session, 1, loop);  // no time of a plain step is known yet
    DraftReport r = session.draft_report();
    CHECK(r.cycles[0] == 1);
    CHECK(r.text_offers == 1);
    CHECK(r.text_right == 1);
    CHECK(r.text_cycles == 0);
    while (session.history().size() < 80) more(session, 1, loop);
    r = session.draft_report();
    CHECK(r.text_cycles > 0);
    CHECK(r.text_right == r.text_offers);
    CHECK(r.text_offers == r.n_cycle);
    CHECK(r.text_tokens > r.text_cycles);
    Sampling other;
    other.logit_bias = {{9, 1000.0f}};
    more(session, 1, other);
    r = session.draft_report();
    CHECK(r.text_right + 1 == r.text_offers);
}

TEST_CASE("chunks, the end of the context and depth changes do not change the text") {
    const Tiny tiny;
    Sampling sampling;
    sampling.temperature = 0.7f;
    sampling.seed = 5;
    for (size_t n_prompt : {size_t{1}, size_t{2}, size_t{15}, size_t{16}, size_t{17}, size_t{64}, size_t{65}}) {
        CAPTURE(n_prompt);
        const std::vector<Token> prompt = tiny_ids(n_prompt, n_prompt);
        Setup setup;
        setup.n_context = 120;
        setup.n_ubatch = 16;
        Session plain = open(tiny.model, std::move(setup));
        sync(plain, prompt);
        const std::vector<Token> want = more(plain, 120 - n_prompt, sampling);
        CHECK(plain.next(sampling).status().code == Code::context_full);
        for (int depth : {1, 3, 8}) {
            setup = with(Draft::mtp_lookup, depth);
            setup.n_context = 120;
            setup.n_ubatch = 16;
            setup.draft.window = n_prompt % 2 ? 8 : 4096;
            Session session = open(tiny.model, std::move(setup));
            sync(session, prompt);
            std::vector<Token> got;
            Random random(n_prompt);
            while (got.size() < want.size()) {
                if (depth == 8) REQUIRE(session.set_draft_depth(static_cast<int>(random.below(9))).ok());
                const std::vector<Token> part = more(session, 1, sampling);
                got.insert(got.end(), part.begin(), part.end());
            }
            CHECK(got == want);
            CHECK(session.history().size() == 120);
            CHECK(session.next(sampling).status().code == Code::context_full);
        }
    }
}

TEST_CASE("a returned span ends with the end-of-generation token, and the session can continue") {
    const Tiny tiny;
    const Token end = 266;
    REQUIRE(tiny.model.is_end(end));
    Sampling sampling;
    sampling.temperature = 4;  // ends soon, and often
    size_t n_inside = 0;
    for (uint64_t seed = 1; seed <= 12; ++seed) {
        sampling.seed = seed;
        const std::vector<Token> prompt = tiny_ids(30, seed);
        Session plain = open(tiny.model, Setup());
        sync(plain, prompt);
        const std::vector<Token> want = more(plain, 300, sampling);
        std::vector<Token> truth = prompt;
        truth.insert(truth.end(), want.begin(), want.end());
        Setup setup = with(Draft::lookup, 7);
        setup.text_source.reset(new Teacher(truth, kTinyVocab, seed));
        Session session = open(tiny.model, std::move(setup));
        sync(session, prompt);
        std::vector<Token> got;
        while (got.size() < 290) {
            const std::vector<Token> part = more(session, 1, sampling);
            for (size_t i = 0; i < part.size(); ++i) CHECK((!tiny.model.is_end(part[i]) || i + 1 == part.size()));
            n_inside += part.size() > 1 && tiny.model.is_end(part.back());
            got.insert(got.end(), part.begin(), part.end());
        }
        CHECK(std::equal(got.begin(), got.end(), want.begin()));
    }
    CHECK(n_inside > 0);
}

TEST_CASE("save, restore and sync work with pending drafts") {
    const Tiny tiny;
    const std::vector<Token> prompt = tiny_ids(40, 3);
    Session plain = open(tiny.model, Setup());
    sync(plain, prompt);
    const std::vector<Token> want = more(plain, 120);
    std::vector<Token> truth = prompt;
    truth.insert(truth.end(), want.begin(), want.end());
    for (Draft source : {Draft::lookup, Draft::mtp}) {
        Setup setup = with(source, 6);
        if (source == Draft::lookup) setup.text_source.reset(new Teacher(truth, kTinyVocab, 21));
        Session session = open(tiny.model, std::move(setup));
        sync(session, prompt);
        while (session.history().size() < 80) more(session, 1);
        auto snap = session.save();
        REQUIRE(snap.ok());
        while (session.history().size() < 120) more(session, 1);
        CHECK(std::equal(session.history().begin(), session.history().end(), truth.begin()));
        // Into itself, into a session that drafts otherwise, into one that does not.
        for (int target = 0; target < 3; ++target) {
            Session stranger;
            if (target > 0) stranger = open(tiny.model, target == 1 ? with(Draft::mtp_lookup, 3) : Setup());
            Session& other = target == 0 ? session : stranger;
            Status s = other.restore(snap.value());
            REQUIRE_MESSAGE(s.ok(), s.message());
            while (other.history().size() < 140) more(other, 1);
            CHECK(std::equal(other.history().begin(), other.history().end(), truth.begin()));
        }
        // Dropping what came after a stop inside the last span costs nothing; further back it costs a restart.
        std::vector<Token> part;
        while ((part = more(session, 1)).size() < 3 && session.history().size() < 150) {
        }
        if (part.size() >= 3) {
            const size_t keep = session.history().size() - 2;
            auto n = session.sync(Span<const Token>(truth.data(), keep));
            REQUIRE(n.ok());
            CHECK(n.value().rows_computed == 0);
            CHECK(session.history().size() == keep);
        }
        while (session.history().size() < 155) more(session, 1);
        CHECK(std::equal(session.history().begin(), session.history().begin() + 155, truth.begin()));
        std::vector<Token> edited(truth.begin(), truth.begin() + 90);
        edited.back() ^= 1;
        sync(session, edited);
        sync(plain, edited);
        const std::vector<Token> a = more(session, 40), b = more(plain, 60);
        CHECK(std::equal(a.begin(), a.end(), b.begin()));
        sync(plain, truth);
    }
}

TEST_CASE("lossless drafting: the demo model's text does not depend on drafting" * doctest::test_suite("long")) {
    const Model model = demo_model(2);
    const std::vector<std::string> prompts = {
        "2026-03-14 08:00 Pump-3 status=nominal temp=61C vibration=0.2 note: bearing inspected, no further "
        "action\n2026-03-14 08:15 Pump-3",
        "{\"name\": \"Ada\", \"city\": \"Oslo\", \"items\": [",
        "<|im_start|>user\nWrite a Python function that returns the double of a "
        "number.<|im_end|>\n<|im_start|>assistant\n",
        "def read_lines(path):\n    \"\"\"Return the lines of a file.\"\"\"\n",
        "The old lighthouse keeper",
    };
    EncodeOptions special;
    special.special = true;
    uint64_t n_row = 0, n_token = 0;
    size_t i = 0;
    const size_t length = deep() ? 120 : 60;
    for (const std::string& prompt : prompts) {
        if (!deep() && i == 3) break;  // lossless_drafting.cpu runs this model at length
        CAPTURE(prompt);
        const std::vector<Token> ids = model.encode(prompt, special).value();
        Sampling sampling = samplings()[i++ % 4];
        const std::vector<Token> plain = text(model, {}, ids, length, sampling);
        for (Draft source : {Draft::mtp, Draft::mtp_lookup}) {
            Stats stats;
            Setup setup = with(source, source == Draft::mtp ? 3 : 6);
            if (source == Draft::mtp) setup.draft.n_vocab = 4096;
            CHECK(text(model, std::move(setup), ids, length, sampling, &stats) == plain);
            n_row += sum(stats.cycles, kMaxDraft + 1);
            n_token += stats.tokens_sampled;
        }
    }
    CHECK(n_token > n_row + n_row / 2);  // a trained block: well over a token and a half for each pass
}

TEST_CASE("drafts on the reference texts are accepted as often as the framework's" * doctest::test_suite("long")) {
    const Reference ref = load_reference("demo-q4_k_m");
    if (!ref.ok) return;
    const Model model = demo_model(1);
    const Json& texts = *ref.json.find("texts");
    for (size_t t = 0; t < texts.keys().size(); ++t) {
        const std::string key = texts.keys()[t];
        CAPTURE(key);
        const std::vector<Token> ids = ids_of(*texts.items()[t].find("ids")),
                                 top = ids_of(*texts.items()[t].find("argmax"));
        const std::vector<Token> draft = ids_of(texts.items()[t].find("mtp_argmax")->items()[0]);
        // Theirs: the draft for position p + 2 against the model's own choice there, on the text.
        size_t theirs = 0, n = 0;
        constexpr size_t kStart = 64;
        for (size_t p = kStart; p + 1 < ids.size(); ++p, ++n) theirs += draft[p - 1] == top[p];
        // Ours: the same question put to the cycle, with the cache as decoding leaves it: the text is
        // forced by syncing token after token.
        Setup setup = with(Draft::mtp, 1);
        setup.n_context = 2048;
        Session session = open(model, std::move(setup));
        sync(session, Span<const Token>(ids.data(), kStart));
        size_t ours = 0;
        for (size_t p = kStart; p + 1 < ids.size(); ++p) {
            // History: ids[0 .. p-1], all run. Make ids[p] the pending token and run one cycle.
            Session::Impl& s = *session.impl();
            s.timeline.append(ids[p]);
            s.timeline.give_only(s.timeline.size());
            const uint64_t before = s.stats.accepted[0];
            REQUIRE(s.host->next({}).ok());
            ours += s.stats.accepted[0] - before;
            sync(session, Span<const Token>(ids.data(), p + 1));
        }
        const double a = 100.0 * double(ours) / double(n), b = 100.0 * double(theirs) / double(n);
        MESSAGE(key << ": " << a << " % of first drafts right, the framework's own " << b << " %");
        CHECK(a > b - 1.0);
        CHECK(a < b + 1.0);
    }
}

TEST_CASE("a cancelled sync leaves a session that drafts with the text of one that was never cancelled") {
    const Tiny tiny;
    std::vector<Token> ids = tiny_ids(160, 7);
    for (const uint32_t stop : {2u, 3u, 5u})
        for (const int depth : {0, 1, 3, -1}) {
            CAPTURE(stop);
            CAPTURE(depth);
            SessionOptions o;
            o.n_context = 512;
            o.n_ubatch = 32;
            Session plain = test::open(tiny.model, o);
            uint32_t n_call = 0;
            o.progress = [&](const char*, float) { return ++n_call != stop; };
            o.draft.source = Draft::mtp;
            o.draft.depth = depth;
            Session session = test::open(tiny.model, o);
            CHECK(session.sync(ids).status().code == Code::cancelled);
            CHECK(session.history().size() == 32 * (stop - 1));
            sync(plain, session.history());
            const std::vector<Token> want = more(plain, 20);
            std::vector<Token> got = more(session, 20);
            got.resize(20);
            CHECK(got == want);
        }
}

TEST_CASE("a draft head is made, and by use chosen again, within the memory that plan() announced") {
    struct Limited {
        size_t live = 0, limit = SIZE_MAX;
    } memory;
    DeviceOptions d;
    d.kind = Kind::cpu;
    d.n_thread = 1;
    d.allocator.user = &memory;
    d.allocator.alloc = [](void* user, size_t n, size_t) -> void* {
        Limited& m = *static_cast<Limited*>(user);
        if (m.live + n > m.limit) return nullptr;
        m.live += n;
        return test::allocate_aligned(n, 64);
    };
    d.allocator.free = [](void* user, void* p, size_t n, size_t) {
        static_cast<Limited*>(user)->live -= n;
        test::free_aligned(p);
    };
    const std::vector<std::byte> bytes = tiny_qwen35();
    const Model model = load_model(open_device(d), bytes);
    for (const bool by_use : {false, true}) {
        SessionOptions o;
        o.n_context = 256;
        o.draft.source = Draft::mtp;
        o.draft.n_vocab = 100;
        o.draft.vocab_by_use = by_use;
        uint64_t planned = 0;
        const MemoryPlan plan = Session::plan(model, o).value();
        for (const MemoryItem& item : plan.items) planned += item.place == MemoryPlace::allocator ? item.bytes : 0;
        memory.limit = planned;
        Session session = test::open(model, o);
        CHECK(memory.live == planned);
        memory.limit = 0;
        for (const Token first : {255, 60, 120}) {
            std::vector<Token> ids;
            for (Token i = 0; i < 40; ++i) ids.push_back(first - i);
            sync(session, ids);
            more(session, 3);
            CHECK(memory.live == planned);
        }
        memory.limit = SIZE_MAX;
    }
}

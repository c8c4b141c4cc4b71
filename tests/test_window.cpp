// Tests of attention windows: which keys a row attends to, where the ring keeps them, and that nothing else changes.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "../src/base/number.h"
#include "context_rig.h"
#include "largest.h"
#include "reference.h"
#include "session_file_rig.h"

using namespace auspex;
using namespace auspex::detail;
using namespace test;

namespace {

std::vector<LayerWindow> windows(const char* spec) {
    std::vector<LayerWindow> w;
    Status s = parse_windows(spec).get(w);
    REQUIRE_MESSAGE(s.ok(), s.message());
    return w;
}

Session session_with(const Model& model, const char* spec, uint32_t n_context, uint32_t n_ubatch) {
    SessionOptions o;
    o.n_context = n_context;
    o.n_ubatch = n_ubatch;
    if (*spec) o.windows = windows(spec);
    return open(model, o);
}

}  // namespace

TEST_CASE("a window of at least the context changes no bit and no byte") {
    for (CpuPath path : cpu_paths()) {
        const std::string path_text = path_name(path);
        CAPTURE(path_text);
        CpuRig rig(path);
        const std::vector<Token> ids = tiny_ids(path == CpuPath::reference ? 300 : 700, 3);
        for (uint32_t sinks : {0u, 4u}) {
            auto full = rig.context({}), wide = rig.context(window(1024, sinks));
            CHECK(full->memory_bytes() == wide->memory_bytes());
            CHECK(same_bits(rig.text(*full, ids, 512, 12), rig.text(*wide, ids, 512, 12)));
            const uint32_t n = static_cast<uint32_t>(ids.size());
            const std::vector<Token> more = tiny_ids(9, 5);
            CHECK(same_bits(rig.run(*full, more, n, true, 9), rig.run(*wide, more, n, true, 9)));
        }
    }
}

TEST_CASE("a window that is wider than the model's own changes no bit and no byte, and adds no sinks") {
    TinyOptions tiny;
    tiny.family = Family::step35;  // layers 1 to 3 declare a window of 24
    const std::vector<std::byte> bytes = tiny_model(tiny);
    const Model model = load_model(cpu_device(2), bytes);
    const std::vector<Token> ids = tiny_ids(300, 3);
    const auto logits_of = [&](Session& session) {
        sync(session, ids);
        const Span<const float> row = session.logits().value();
        return std::vector<float>(row.begin(), row.end());
    };
    Session plain = session_with(model, "", 1000, 64);
    const std::vector<float> want = logits_of(plain);
    CHECK(print_windows(plain.stats().windows) == "0:full,1:24,2:24,3:24");
    for (const char* spec : {"all:1000", "all:1000+4", "all:16384+4", "1:100+4,2:25+1,3:999+256", "1:24,2:full"}) {
        CAPTURE(spec);
        Session session = session_with(model, spec, 1000, 64);
        CHECK(session.stats().memory_bytes == plain.stats().memory_bytes);
        CHECK(print_windows(session.stats().windows) == print_windows(plain.stats().windows));
        CHECK(same_bits(logits_of(session), want));
    }
    // One as narrow as the model's own, or narrower, comes with its sinks.
    Session sunk = session_with(model, "all:100+4,1:24+4,2:16+2", 1000, 64);
    CHECK(print_windows(sunk.stats().windows) == "0:100+4,1:24+4,2:16+2,3:24");
    CHECK_FALSE(same_bits(logits_of(sunk), want));
}

TEST_CASE("a window changes the result only from the row on at which it slides") {
    CpuRig rig;
    const std::vector<Token> ids = tiny_ids(300, 3);
    auto full = rig.context({});
    const std::vector<float> want = rig.text(*full, ids, 128, 4);
    auto wide = rig.context(window(300), 1024, 128);
    CHECK(same_bits(rig.text(*wide, ids, 128, 4), want));
    auto narrow = rig.context(window(295), 1024, 128);
    CHECK_FALSE(same_bits(rig.text(*narrow, ids, 128, 4), want));
    auto sunk = rig.context(window(295, 5), 1024, 128);  // the five that left the window are sinks
    CHECK(relative_error(rig.text(*sunk, ids, 128, 4).data(), want.data(), want.size()) < 1e-4);
}

TEST_CASE("a ring gives the bits of a cache that never wraps, for all windows, sinks, steps and chunks") {
    // The same window in a session whose ubatch is as long as its context: its ring holds every row.
    for (CpuPath path : cpu_paths()) {
        if (path == CpuPath::reference) continue;  // slow, and the walk is the same
        const std::string path_text = path_name(path);
        CAPTURE(path_text);
        CpuRig rig(path);
        const std::vector<Token> ids = tiny_ids(1000, 9);
        for (uint32_t w : {1u, 2u, 9u, 64u, 255u, 256u, 257u, 300u}) {
            for (uint32_t sinks : {0u, 1u, 4u}) {
                if (sinks == 1 && w != 64) continue;
                if (AUSPEX_TEST_SANITIZED && w != 9 && w != 257) continue;
                if (!deep() && (w == 2 || w == 255)) continue;
                CAPTURE(w);
                CAPTURE(sinks);
                auto ring = rig.context(window(w, sinks), 1024, 100), whole = rig.context(window(w, sinks), 1024, 1024);
                CHECK(ring->memory_bytes() < whole->memory_bytes());
                const std::vector<float> a = rig.text(*ring, ids, 100, 20), b = rig.text(*whole, ids, 100, 20);
                CHECK(same_bits(a, b));
            }
        }
    }
}

TEST_CASE("row invariance and commit equivalence hold in a sliding window") {
    CpuRig rig;
    const std::vector<Token> ids = tiny_ids(700, 4);
    for (uint32_t w : {1u, 9u, 250u}) {
        for (uint32_t sinks : {0u, 4u}) {
            if (AUSPEX_TEST_SANITIZED && (w != 9 || sinks != 4)) continue;
            CAPTURE(w);
            CAPTURE(sinks);
            auto busy = rig.context(window(w, sinks), 1024, 64), plain = rig.context(window(w, sinks), 1024, 64);
            rig.text(*busy, Span<const Token>(ids.data(), 500), 64, 0);
            rig.text(*plain, Span<const Token>(ids.data(), 500), 64, 0);
            Random random(w);
            uint32_t at = 500;
            while (at + kMaxTentative < 600) {
                const uint32_t n = 1 + random.below(kMaxTentative), k = 1 + random.below(n);
                std::vector<Token> rows(ids.begin() + at, ids.begin() + at + k);
                while (rows.size() < n) rows.push_back(static_cast<Token>(random.below(200)));
                std::vector<float> a = rig.run(*busy, rows, at, true, n), b;
                busy->commit(k);
                a.resize(a.size() / n * k);
                for (uint32_t i = 0; i < k; ++i) {
                    const std::vector<float> row =
                        rig.run(*plain, Span<const Token>(ids.data() + at + i, 1), at + i, true, 1);
                    plain->commit(1);
                    b.insert(b.end(), row.begin(), row.end());
                }
                CHECK(same_bits(a, b));
                at += k;
            }
        }
    }
}

TEST_CASE(
    "keys and values of every type are close to the default ones and keep row invariance and commit equivalence") {
    struct Case {
        Type k, v;
        double bound;
    };
    for (CpuPath path : cpu_paths()) {
        const std::string path_text = path_name(path);
        CAPTURE(path_text);
        CpuRig rig(path);
        const std::vector<Token> ids = tiny_ids(path == CpuPath::reference || AUSPEX_TEST_SANITIZED ? 80 : 400, 8);
        const uint32_t n = static_cast<uint32_t>(ids.size());
        auto exact = rig.context({});
        const std::vector<float> want = rig.text(*exact, ids, 64, 2);
        for (const Case& c :
             {Case{Type::q8_0, Type::q8_0, 0.03}, Case{Type::q8_0, Type::q4_0, 0.3}, Case{Type::q4_1, Type::q8_0, 0.3},
              Case{Type::f16, Type::q4_1, 0.3}, Case{Type::q4_0, Type::f16, 0.3}, Case{Type::f32, Type::f32, 3e-3},
              Case{Type::f32, Type::q8_0, 0.03}}) {
            const std::string types = std::string(type_info(c.k).name) + " " + type_info(c.v).name;
            CAPTURE(types);
            KvOptions kv;
            kv.k = c.k;
            kv.v = c.v;
            auto context = rig.context(kv), again = rig.context(kv);
            const std::vector<float> got = rig.text(*context, ids, 64, 2);
            const double error = relative_error(got.data(), want.data(), want.size());
            CHECK(error < c.bound);
            CHECK(error > 0);
            CHECK(same_bits(rig.text(*again, ids, 64, 2), got));
            const std::vector<Token> rows = tiny_ids(9, 77);
            const std::vector<float> together = rig.run(*context, rows, n, true, 9);
            std::vector<float> alone;
            for (uint32_t i = 0; i < 9; ++i) {
                const std::vector<float> row = rig.run(*again, Span<const Token>(&rows[i], 1), n + i, true, 1);
                again->commit(1);
                alone.insert(alone.end(), row.begin(), row.end());
            }
            CHECK(same_bits(together, alone));
        }
    }
}

TEST_CASE("attention over rows of every type equals attention over their decoded floats") {
    Random random(3);
    constexpr uint32_t d = 64, n_key = 37, n_query = 7;
    const std::vector<float> q = random.normals(n_query * d, 0.3f), x = random.normals(n_key * d),
                             y = random.normals(n_key * d);
    for (CpuPath path : cpu_paths())
        for (Type tk : {Type::q8_0, Type::q4_0, Type::q4_1, Type::f16, Type::f32})
            for (Type tv : {Type::q8_0, Type::q4_0, Type::q4_1, Type::f16, Type::f32}) {
                std::vector<std::byte> k(row_bytes(tk, n_key * d)), v(row_bytes(tv, n_key * d));
                encode_row(tk, x.data(), k.data(), n_key * d);
                encode_row(tv, y.data(), v.data(), n_key * d);
                std::vector<float> fk(n_key * d), fv(n_key * d);
                decode_row(tk, k.data(), fk.data(), n_key * d);
                decode_row(tv, v.data(), fv.data(), n_key * d);
                std::vector<float> scores(n_query * n_key), out(n_query * (d + 2));
                std::vector<const float*> qs;
                std::vector<float*> ms, ls, os;
                for (uint32_t i = 0; i < n_query; ++i) {
                    qs.push_back(&q[i * d]);
                    ms.push_back(&out[i * (d + 2)]);
                    ls.push_back(ms.back() + 1);
                    os.push_back(ms.back() + 2);
                }
                kernels_for(path)->loops.attend_many(n_query, qs.data(), {k.data(), row_bytes(tk, d), tk},
                                                     {v.data(), row_bytes(tv, d), tv}, n_key, d, scores.data(),
                                                     ms.data(), ls.data(), os.data());
                double worst = 0;
                for (uint32_t i = 0; i < n_query; ++i) {
                    std::vector<double> s(n_key), o(d);
                    double top = -INFINITY, sum = 0;
                    for (uint32_t c = 0; c < n_key; ++c) {
                        for (uint32_t j = 0; j < d; ++j) s[c] += double{q[i * d + j]} * double{fk[c * d + j]};
                        top = std::fmax(top, s[c]);
                    }
                    for (uint32_t c = 0; c < n_key; ++c) {
                        const double p = std::exp(s[c] - top);
                        sum += p;
                        for (uint32_t j = 0; j < d; ++j) o[j] += p * double{fv[c * d + j]};
                    }
                    worst = larger_error(worst, std::fabs(double{*ls[i]} - sum) / sum);
                    for (uint32_t j = 0; j < d; ++j)
                        worst = larger_error(worst, std::fabs(double{os[i][j]} - o[j]) / sum);
                }
                CHECK(worst < 1e-5);
            }
}

TEST_CASE("windowed logits equal the framework's within the bound" * doctest::test_suite("long")) {
    struct Bound {
        Kind kind;
        CpuPath path;
        double error;
        size_t n_token;
    };
    for (const char* name : {"demo-q4_k_m", "demo-q8_0"}) {
        if (!deep() && std::string(name) == "demo-q8_0") continue;  // the windows are the same
        const Reference ref = load_reference(name);
        if (!ref.ok) return;
        for (const Bound& bound :
             {Bound{Kind::cpu, CpuPath::best, 1e-2, deep() ? size_t{100000} : 330},
              Bound{Kind::cpu, CpuPath::reference, 1e-3, 100}, Bound{Kind::vulkan, CpuPath::reference, 2e-3, 80}}) {
            if (bound.path == CpuPath::reference && std::string(name) == "demo-q8_0")
                continue;  // the walk and the windows are the same
            const std::string where = bound.kind == Kind::vulkan ? "Vulkan" : "CPU";
            DeviceOptions options;
            options.kind = bound.kind;
            options.cpu_path = bound.path;
            options.n_thread = 1;  // threads of two test programs would wait for each other at every barrier
            Device device;
            const Status opened = Device::open(options).get(device);
            if (opened.code == Code::no_device && bound.kind == Kind::vulkan) {
                skip_without_device(opened.text);
                continue;
            }
            REQUIRE_MESSAGE(opened.ok(), opened.message());
            Model model;
            REQUIRE(Model::load(device, ref.model_path.c_str()).get(model).ok());
            const Json& texts = *ref.json.find("texts");
            for (size_t t = 0; t < texts.keys().size(); ++t) {
                const std::string key = texts.keys()[t];
                const Json& text = texts.items()[t];
                std::vector<Token> ids = ids_of(*text.find("ids"));
                if (ids.size() > bound.n_token) ids.resize(bound.n_token);
                if (bound.path == CpuPath::reference && t != 0) continue;
                const std::vector<Token> rows = ids_of(*text.find("rows"));
                const Json& all = *text.find("window");
                for (size_t w = 0; w < all.keys().size(); ++w) {
                    const std::string spec = all.keys()[w];
                    const Json& entry = all.items()[w];
                    const std::vector<Token> top = ids_of(*entry.find("argmax"));
                    const std::vector<double> margins = numbers_of(*entry.find("margin"));
                    const Reference::Array want = ref.array(key + ".window." + spec + ".rows");
                    REQUIRE(want.data);
                    // An odd ubatch, so that the ring wraps at odd places.
                    Session session = session_with(model, spec.c_str(), 1152, 61);
                    double worst = 0;
                    size_t decided = 0;
                    Status s = session.score(ids, [&](size_t row, Span<const float> logits) {
                        if (margins[row] > 0.2) {
                            ++decided;
                            CHECK(arg_max(logits.data(), logits.size()) == static_cast<size_t>(top[row]));
                        }
                        for (size_t i = 0; i < rows.size(); ++i)
                            if (static_cast<size_t>(rows[i]) == row)
                                worst = std::fmax(worst, relative_error(logits.data(), want.row(i), want.n_col));
                    });
                    REQUIRE_MESSAGE(s.ok(), s.message());
                    CHECK(decided > ids.size() / 3);
                    MESSAGE(std::string(name)
                            << " " << key << " " << spec << " on " << where << ": worst relative error " << worst);
                    CHECK(worst <= bound.error);
                }
            }
        }
    }
}

TEST_CASE("restore equivalence: a session with windows continues after restarts and snapshots with the same text") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    const Model model = load_model(cpu_device(2), bytes);
    const std::vector<Token> ids = tiny_ids(600, 2);
    for (const char* spec : {"all:1", "3:64+4", "3:300,mtp:16", "all:256+1"}) {
        CAPTURE(spec);
        auto generate = [](Session& s, size_t n) {
            std::vector<Token> out = more(s, n);
            out.resize(n);
            return out;
        };
        Session one = session_with(model, spec, 1024, 96), two = session_with(model, spec, 1024, 96);
        REQUIRE(one.sync(ids).ok());
        REQUIRE(two.sync(tiny_ids(700, 9)).ok());
        generate(two, 3);
        REQUIRE(two.sync(ids).ok());
        auto snap = one.save();
        REQUIRE(snap.ok());
        const std::vector<Token> want = generate(one, 30);
        CHECK(generate(two, 30) == want);
        Status s = two.restore(snap.value());
        REQUIRE_MESSAGE(s.ok(), s.message());
        CHECK(generate(two, 30) == want);
    }
    Session small = session_with(model, "3:64", 1024, 96), large = session_with(model, "", 1024, 96);
    REQUIRE(small.sync(ids).ok());
    REQUIRE(large.sync(ids).ok());
    auto snap = small.save();
    REQUIRE(snap.ok());
    CHECK(snap.value().bytes.size() < large.save().value().bytes.size());
    CHECK(large.restore(snap.value()).code == Code::bad_argument);
}

/// What a session with windows saved goes into sessions of other n_context and n_ubatch, whose rings have other
/// lengths.
void check_other_rings(const Model& model) {
    const std::vector<Token> ids = tiny_ids(600, 2);
    const test_session_file::Folder folder;
    const std::string file = folder.file();
    for (const char* spec : {"all:100+5", "3:300"}) {
        CAPTURE(spec);
        Session from = session_with(model, spec, 1024, 64);
        REQUIRE(from.sync(ids).ok());
        const Snapshot snap = from.save().value();
        REQUIRE(from.save(file.c_str()).ok());
        grow(from, 640);
        const std::vector<Token> want = history(from, 640);
        for (const auto& [n_context, n_ubatch] : {std::pair<uint32_t, uint32_t>(1024, 300), {700, 600}, {2048, 64}}) {
            const uint32_t n_row = n_context;
            CAPTURE(n_row);
            Session to = session_with(model, spec, n_context, n_ubatch);
            Status s = to.restore(snap);
            REQUIRE_MESSAGE(s.ok(), s.message());
            grow(to, 640);
            CHECK(history(to, 640) == want);
            s = to.load(file.c_str()).status();
            REQUIRE_MESSAGE(s.ok(), s.message());
            grow(to, 640);
            CHECK(history(to, 640) == want);
        }
    }
}

TEST_CASE("a snapshot and a file of a session with windows go into one with other n_context and n_ubatch") {
    check_other_rings(load_model(cpu_device(2), tiny_qwen35()));
}

TEST_CASE("what a session with a window saved needs more rows than the window, and a refusal says so") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    const Model model = load_model(cpu_device(1), bytes);
    const test_session_file::Folder folder;
    const std::string file = folder.file();
    Session from = session_with(model, "all:200", 1024, 64);
    sync(from, tiny_ids(100, 2));
    const Snapshot snap = from.save().value();
    REQUIRE(from.save(file.c_str()).ok());
    for (const uint32_t n_context : {201u, 200u, 150u}) {
        CAPTURE(n_context);
        Session to = session_with(model, "all:200", n_context, 64);
        for (const Status& s : {to.restore(snap), to.load(file.c_str()).status()}) {
            CHECK(s.ok() == (n_context > 200));
            if (s.ok()) continue;
            CHECK(s.code == Code::bad_argument);
            CHECK_MESSAGE(s.text.find("n_context") != std::string::npos, s.text);
            CHECK_MESSAGE(s.text.find("larger than the windows") != std::string::npos, s.text);
        }
    }
}

#ifndef AUSPEX_NO_VULKAN
TEST_CASE("a snapshot and a file with windows go into sessions with other n_context and n_ubatch on the GPU") {
    const Device device = gpu_device();
    if (!device) return;
    TinyOptions tiny = narrow();
    tiny.n_layer = tiny.interval = 4;  // the specs name layer 3
    check_other_rings(load_model(device, tiny_model(tiny)));
}
#endif

TEST_CASE("a smaller window in the draft block changes its drafts and not the text" * doctest::test_suite("long")) {
    const std::vector<std::byte> bytes = tiny_qwen35();
    const Model model = load_model(cpu_device(2), bytes);
    auto text = [&](Draft source, const char* spec) {
        SessionOptions o;
        o.n_context = 700;
        o.n_ubatch = 64;
        o.draft.source = source;
        o.windows = windows(spec);
        Session session = open(model, o);
        sync(session, tiny_ids(300, 5));
        grow(session, 690);
        return history(session, 690);
    };
    for (const char* trunk : {"3:full", "3:100+4", "3:9"}) {
        const std::vector<Token> want = text(Draft::off, trunk);
        for (const char* draft : {",mtp:1", ",mtp:16+4", ",mtp:300", ",mtp:full"})
            CHECK(text(Draft::mtp, (std::string(trunk) + draft).c_str()) == want);
    }
}

TEST_CASE("a snapshot of other windows or cache types is rejected") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    const Model model = load_model(cpu_device(2), bytes);
    auto open = [&](KvType k, KvType v) {
        SessionOptions o;
        o.kv_k = k;
        o.kv_v = v;
        return test::open(model, o);
    };
    Session one = open(KvType::q8_0, KvType::q4_0), other = open(KvType::q4_0, KvType::q8_0),
            same = open(KvType::q8_0, KvType::q4_0);
    REQUIRE(one.sync(tiny_ids(50, 5)).ok());
    const auto snap = one.save();
    REQUIRE(snap.ok());
    CHECK(other.restore(snap.value()).code == Code::bad_argument);
    CHECK(same.restore(snap.value()).ok());
}

TEST_CASE("stats list the windows, first_visible() follows the text, and on_window_full is called once") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    const Model model = load_model(cpu_device(2), bytes);
    SessionOptions o;
    o.n_context = 512;
    o.n_ubatch = 32;
    o.windows = windows("all:100,3:64+4");
    std::vector<WindowFull> left;
    o.on_window_full = [&](const WindowFull& w) { left.push_back(w); };
    Session session = open(model, o);
    CHECK(print_windows(session.stats().windows) == "3:64+4");
    SessionOptions with_draft = o;  // the draft block's cache is there only when it drafts
    with_draft.draft.source = Draft::mtp;
    Session drafting = open(model, with_draft);
    CHECK(print_windows(drafting.stats().windows) == "3:64+4,4:100");
    REQUIRE(session.sync(tiny_ids(68, 1)).ok());
    CHECK(left.empty());
    CHECK(session.first_visible(3).value() == 5);  // of the row to come
    REQUIRE(session.sync(tiny_ids(69, 1)).ok());
    REQUIRE(left.size() == 1);
    CHECK(left[0].layer == 3);
    CHECK(left[0].window == 64);
    CHECK(left[0].sinks == 4);
    CHECK(left[0].n_token == 69);
    REQUIRE(session.sync(tiny_ids(200, 1)).ok());
    CHECK(left.size() == 1);
    CHECK(session.first_visible(3).value() == 200 - 63);
    REQUIRE(session.sync(tiny_ids(100, 2)).ok());  // another timeline
    CHECK(left.size() == 2);
    const Result<Snapshot> snap = session.save();
    REQUIRE(snap.ok());
    REQUIRE(session.restore(snap.value()).ok());
    REQUIRE(session.sync(tiny_ids(101, 2)).ok());
    CHECK(left.size() == 2);
    CHECK(session.first_visible(0).status().code == Code::bad_argument);
    CHECK(session.first_visible(0).status().text.find("3") != std::string::npos);
    Session full = session_with(model, "", 512, 32);
    CHECK(full.first_visible(3).value() == 0);
    CHECK(print_windows(full.stats().windows).find("3:full") == 0);
}

TEST_CASE("an invalid window specification is an error with what was expected") {
    CHECK(print_windows(windows("3:64,7:full,all:4096+4,mtp:16")) == "3:64,7:full,all:4096+4,mtp:16");
    for (const char* bad : {"", "3", "3:", ":64", "x:64", "3:64,", "3:0", "3:64+", "3:64+257", "3:64x", "3:-1",
                            "3:99999999999", "3:64,,7:1", "3:full+4", "all"}) {
        CAPTURE(bad);
        const Status s = parse_windows(bad).status();
        CHECK(s.code == Code::bad_argument);
        CHECK(s.text.find("expected LAYER:ROWS") != std::string::npos);
    }
    const std::vector<std::byte> bytes = tiny_qwen35();
    const Model model = load_model(cpu_device(2), bytes);
    SessionOptions o;
    o.windows = windows("2:64");
    Status s = Session::create(model, o).status();
    CHECK(s.code == Code::bad_argument);
    CHECK(s.text.find("layer 2") != std::string::npos);
    CHECK(s.text.find("3, 4 (mtp)") != std::string::npos);
    o.windows = windows("3:64");
    o.kv_budget_bytes = 1 << 20;
    CHECK(Session::create(model, o).status().code == Code::bad_argument);
}

TEST_CASE("a session with windows in every layer generates past the context in constant memory" *
          doctest::test_suite("long")) {
    // A scaled-down million: the ring wraps hundreds of times, and the machine's memory does not know the context.
    CpuRig rig;
    auto small = rig.context(window(32, 4), 1u << 11, 64), large = rig.context(window(32, 4), 1u << 20, 64);
    CHECK(small->memory_bytes() == large->memory_bytes());
    const std::vector<Token> ids = tiny_ids(96, 6);
    std::vector<std::byte> start, end;
    uint32_t at = 0;
    for (int i = 0; i < 200; ++i, at += 64) rig.run(*large, Span<const Token>(ids.data(), 64), at, false, 0);
    REQUIRE(large->save(at, &start).ok());
    for (int i = 0; i < 200; ++i, at += 64) rig.run(*large, Span<const Token>(ids.data(), 64), at, false, 0);
    REQUIRE(large->save(at, &end).ok());
    CHECK(at > 25000);
    CHECK(start.size() == end.size());
    const std::vector<float> logits = rig.run(*large, Span<const Token>(ids.data() + 64, 9), at, true, 9);
    for (float x : logits) REQUIRE(std::isfinite(x));
    // The last position of a million: restored there, it still runs.
    auto last = rig.context(window(32, 4), 1u << 20, 64);
    REQUIRE(last->restore(at, end).ok());
    CHECK(same_bits(rig.run(*last, Span<const Token>(ids.data() + 64, 9), at, true, 9), logits));
}

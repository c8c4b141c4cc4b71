// Tests of the invariants on tiny models, over every CPU path of this build.
#include <doctest/doctest.h>

#include <atomic>
#include <cfenv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

#include "../src/engine/session.h"
#include "allocations.h"
#include "context_rig.h"
#include "reference.h"

using namespace auspex;
using namespace auspex::detail;
using namespace test;

namespace {

/// The path and the weight formats that an invariant is tested on.
template <class F>
void each_rig(F check) {
    for (Family family : kFamilies)
        for (CpuPath path : cpu_paths())
            for (Type type : {Type::f16, Type::q8_0, Type::q4_k, Type::q6_k}) {
                if (path == CpuPath::reference && type != Type::f16) continue;  // one way for all types, and a slow one
                if (path != CpuPath::reference && family != Family::qwen35 && type != Type::q4_k)
                    continue;  // the formats were tried
                const std::string path_text = path_name(path), type_text = type_info(type).name,
                                  family_text = family_name(family);
                CAPTURE(path_text);
                CAPTURE(type_text);
                CAPTURE(family_text);
                TinyOptions tiny;
                tiny.family = family;
                tiny.type = type;
                CpuRig rig(path, 1, tiny);
                check(rig, path);
            }
}

}  // namespace

TEST_CASE("row invariance: a row's logits are the same bits alone and among nine" * doctest::test_suite("long")) {
    each_rig([](CpuRig& rig, CpuPath) {
        const std::vector<Token> ids = tiny_ids(40, 3);
        auto alone = rig.context();
        std::vector<float> one;
        rig.run(*alone, Span<const Token>(ids.data(), 23), 0, false, 1);
        for (uint32_t i = 23; i < 32; ++i) {
            const std::vector<float> row = rig.run(*alone, Span<const Token>(ids.data() + i, 1), i, true, 1);
            alone->commit(1);
            one.insert(one.end(), row.begin(), row.end());
        }
        auto among = rig.context();
        rig.run(*among, Span<const Token>(ids.data(), 23), 0, false, 1);
        for (uint32_t n = 1; n <= kMaxTentative; ++n) {
            CAPTURE(n);
            const std::vector<float> many = rig.run(*among, Span<const Token>(ids.data() + 23, n), 23, true, n);
            among->commit(0);
            CHECK(std::memcmp(many.data(), one.data(), many.size() * sizeof(float)) == 0);
        }
    });
}

TEST_CASE("commit equivalence: run n, commit k leaves the state of run k, commit k") {
    each_rig([](CpuRig& rig, CpuPath) {
        const std::vector<Token> ids = tiny_ids(64, 5);
        Random random(11);
        auto busy = rig.context(), plain = rig.context();
        rig.run(*busy, Span<const Token>(ids.data(), 5), 0, false, 0);
        rig.run(*plain, Span<const Token>(ids.data(), 5), 0, false, 0);
        uint32_t at = 5;
        size_t n_rejected = 0;
        for (int cycle = 0; cycle < 12 && at + kMaxTentative < 60; ++cycle) {
            const uint32_t n = 1 + random.below(kMaxTentative), k = 1 + random.below(n);
            // Rows that will be rejected carry other tokens: what is not committed must leave no trace.
            std::vector<Token> rows(ids.begin() + at, ids.begin() + at + k);
            while (rows.size() < n) rows.push_back(static_cast<Token>(random.below(200)));
            const std::vector<float> a = rig.run(*busy, rows, at, true, n);
            busy->commit(k);
            std::vector<float> b;
            for (uint32_t i = 0; i < k; ++i) {
                const std::vector<float> row =
                    rig.run(*plain, Span<const Token>(ids.data() + at + i, 1), at + i, true, 1);
                plain->commit(1);
                b.insert(b.end(), row.begin(), row.end());
            }
            CHECK(std::memcmp(a.data(), b.data(), b.size() * sizeof(float)) == 0);
            at += k;
            n_rejected += n - k;
        }
        CHECK(n_rejected > 0);
        // The state itself, but for ring places that only rejected rows wrote.
        const std::vector<float> a = rig.run(*busy, Span<const Token>(ids.data(), 20), at, false, 1),
                                 b = rig.run(*plain, Span<const Token>(ids.data(), 20), at, false, 1);
        CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
        CHECK(rig.state(*busy, at + 20) == rig.state(*plain, at + 20));
    });
}

TEST_CASE("chunk invariance: a prompt in any pieces gives the same state within rounding" *
          doctest::test_suite("long")) {
    each_rig([](CpuRig& rig, CpuPath path) {
        const std::vector<Token> ids = tiny_ids(200, 7);
        auto whole = rig.context();
        const std::vector<float> want = rig.run(*whole, ids, 0, false, 1);
        for (const std::vector<uint32_t>& pieces :
             {std::vector<uint32_t>{1, 2, 3, 194}, {17, 64, 65, 54}, {155, 1, 44}, {199, 1}, {16, 16, 16, 152}}) {
            auto context = rig.context();
            uint32_t at = 0;
            std::vector<float> got;
            for (uint32_t n : pieces) {
                got = rig.run(*context, Span<const Token>(ids.data() + at, n), at, false, 1);
                at += n;
            }
            REQUIRE(at == 200);
            // With int8 activations a difference in the last bit of a float can become a whole step,
            // and a random network passes it on enlarged.
            CHECK(relative_error(got.data(), want.data(), want.size()) < (path == CpuPath::reference ? 1e-4 : 5e-2));
        }
    });
}

TEST_CASE("results do not depend on the number of threads") {
    const std::vector<Token> ids = tiny_ids(120, 9);
    for (Family family : kFamilies)
        for (CpuPath path : cpu_paths()) {
            if (path == CpuPath::reference && family != Family::qwen35 && family != Family::qwen35moe) continue;
            const std::string path_text = path_name(path), family_text = family_name(family);
            CAPTURE(path_text);
            CAPTURE(family_text);
            TinyOptions tiny;
            tiny.family = family;
            tiny.type = Type::q4_k;
            std::vector<float> first;
            for (int n_thread : {1, 2, 3, 5}) {
                CpuRig rig(path, n_thread, tiny);
                auto context = rig.context();
                rig.run(*context, Span<const Token>(ids.data(), 100), 0, false, 1);
                const std::vector<float> logits =
                    rig.run(*context, Span<const Token>(ids.data() + 100, 5), 100, true, 5);
                if (first.empty()) first = logits;
                CHECK(std::memcmp(first.data(), logits.data(), logits.size() * sizeof(float)) == 0);
            }
        }
}

TEST_CASE("hot path: a decode step allocates nothing") {
    for (Family family : kFamilies)
        for (CpuPath path : cpu_paths()) {
            if (path == CpuPath::reference && family != Family::qwen35) continue;
            const std::string path_text = path_name(path), family_text = family_name(family);
            CAPTURE(path_text);
            CAPTURE(family_text);
            TinyOptions tiny;
            tiny.family = family;
            tiny.type = Type::q4_k;
            const std::vector<std::byte> bytes = tiny_model(tiny);
            const Model model = load_model(cpu_device(2, path), bytes);
            Session session;
            REQUIRE(Session::create(model).get(session).ok());
            REQUIRE(session.sync(tiny_ids(30, 1)).ok());
            for (float temperature : {0.0f, 0.8f}) {
                Sampling sampling;
                sampling.temperature = temperature;
                sampling.top_k = temperature > 0 ? 20 : 0;
                sampling.top_p = temperature > 0 ? 0.9f : 1.0f;
                sampling.presence_penalty = 0.5f;
                const int64_t before = n_allocation.load();
                for (int i = 0; i < 20; ++i) REQUIRE(session.next(sampling).ok());
                CHECK(n_allocation.load() == before);
            }
        }
}

TEST_CASE("hot path: a drafting cycle allocates nothing at any depth") {
    TinyOptions tiny;
    tiny.type = Type::q4_k;
    const std::vector<std::byte> bytes = tiny_qwen35(tiny);
    const Model model = load_model(cpu_device(), bytes);
    SessionOptions setup;
    setup.n_context = 600;
    setup.draft.source = Draft::mtp_lookup;
    setup.draft.n_vocab = 100;
    setup.draft.min_probability = 0.02f;
    Session session;
    REQUIRE(Session::create(model, setup).get(session).ok());
    REQUIRE(session.sync(tiny_ids(30, 1)).ok());
    for (float temperature : {0.0f, 0.8f}) {
        Sampling sampling;
        sampling.temperature = temperature;
        sampling.presence_penalty = temperature;
        const int64_t before = n_allocation.load();
        for (int i = 0; i < 27; ++i) {
            REQUIRE(session.set_draft_depth(i % 9).ok());
            REQUIRE(session.next(sampling).ok());
        }
        CHECK(n_allocation.load() == before);
    }
    CHECK(session.stats().cycles[8] > 0);
}

TEST_CASE("the allocation counter counts") {
    const int64_t before = n_allocation.load();
    std::string* p = new std::string(100, 'x');
    CHECK(n_allocation.load() > before);
    delete p;
}

TEST_CASE("sessions of one model in several threads do not disturb each other") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    const Model model = load_model(cpu_device(2), bytes);
    auto text = [&](uint64_t seed) {
        Session session;
        std::vector<Token> out;
        if (!Session::create(model).get(session).ok() || !session.sync(tiny_ids(20 + seed, seed)).ok()) return out;
        for (int i = 0; i < 24; ++i) {
            auto next = session.next();
            if (next.ok()) out.push_back(next.value()[0]);
        }
        return out;
    };
    std::vector<std::vector<Token>> alone, together(4);
    for (uint64_t i = 0; i < 4; ++i) alone.push_back(text(i));
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < 4; ++i) threads.emplace_back([&, i] { together[i] = text(i); });
    for (std::thread& t : threads) t.join();
    for (size_t i = 0; i < 4; ++i) {
        CHECK(alone[i].size() == 24);
        CHECK(together[i] == alone[i]);
    }
}

TEST_CASE("rotary positions are relative: shifted by a constant, with the KV rows kept, they give the same logits") {
    for (Family family : kFamilies)
        for (CpuPath path : cpu_paths()) {
            const std::string path_text = path_name(path), family_text = family_name(family);
            CAPTURE(path_text);
            CAPTURE(family_text);
            TinyOptions tiny;
            tiny.family = family;
            CpuRig rig(path, 1, tiny);
            check_rotary_shift(rig, *rig.context(), *rig.context());
        }
}

TEST_CASE("a context holds one sequence and refuses rows of another") {
    CpuRig rig(CpuPath::best, 1, {});
    auto context = rig.context();
    const std::vector<Token> ids = tiny_ids(4, 1);
    Step step = rig.step(ids, 0, false, 1);
    step.sequence = 1;
    const Status s = context->run(step);
    CHECK(s.code == Code::bad_argument);
    CHECK(s.text.find("sequence 1") != std::string::npos);
}

TEST_CASE("a head over kept rows runs after any step") {
    CpuRig rig(CpuPath::best, 1, {});
    auto context = rig.context();
    const std::vector<Token> ids = tiny_ids(21, 1);
    const std::vector<float> want = rig.run(*context, Span<const Token>(ids.data(), 20), 0, false, 1);
    Step fill;
    fill.tape = &rig.plan.mtp[0];
    fill.ids = ids.data() + 1;
    fill.n_row = 20;
    fill.fill_only = true;
    REQUIRE(context->run(fill).ok());
    Span<const float> row;
    REQUIRE(context->head(rig.plan.trunk, 3, 1).ok());  // another row in between: stale logits would show
    REQUIRE(context->run(fill).ok());
    REQUIRE(context->head(rig.plan.trunk, 19, 1).ok());
    REQUIRE(context->read_row(rig.plan.trunk.logits, 0).get(row).ok());
    CHECK(std::memcmp(row.data(), want.data(), want.size() * sizeof(float)) == 0);
}

namespace {

#if defined(__x86_64__) || defined(_M_X64)
unsigned sse_mode() { return _mm_getcsr(); }
void set_sse_mode(unsigned mode) { _mm_setcsr(mode); }
#else
unsigned sse_mode() { return 0; }
void set_sse_mode(unsigned) {}
#endif

/// A floating-point mode of this thread: 0 the default, 1 rounds upward, 2 flushes subnormals to zero.
class HostFloatMode {
  public:
    explicit HostFloatMode(int mode) : sse_(sse_mode()) {
        std::fegetenv(&saved_);
        if (mode == 1) is_set = std::fesetround(FE_UPWARD) == 0;
        if (mode == 2) {
            set_sse_mode(sse_ | 0x8040);
            is_set = sse_mode() != sse_;
        }
    }
    ~HostFloatMode() {
        std::fesetenv(&saved_);  // mingw's leaves the SSE mode as it is
        set_sse_mode(sse_);
    }
    HostFloatMode(const HostFloatMode&) = delete;
    HostFloatMode& operator=(const HostFloatMode&) = delete;

    bool is_set = true;

  private:
    std::fenv_t saved_{};
    unsigned sse_;
};

}  // namespace

TEST_CASE("the caller's floating-point mode changes no bit, on any number of threads") {
    const std::vector<Token> ids = tiny_ids(60, 8);
    for (const CpuPath path : cpu_paths()) {
        std::vector<float> want;
        for (const int mode : {0, 1, 2})
            for (const int n_thread : {1, 3}) {
                const CpuRig rig(path, n_thread);  // the tiny model itself is computed in the default mode
                const std::unique_ptr<Context> context = rig.context();
                std::vector<float> got;
                {
                    const HostFloatMode host(mode);
                    if (!host.is_set) continue;
                    got = rig.text(*context, ids, 40, 8);
                    rig.state(*context, 60);
                }
                if (want.empty()) want = got;
                CHECK_MESSAGE(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) == 0,
                              path_name(path) << ", mode " << mode << ", " << n_thread << " threads");
            }
    }
}

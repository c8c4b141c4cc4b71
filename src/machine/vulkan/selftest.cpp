#include "selftest.h"
#ifndef AUSPEX_NO_VULKAN
#include "../../base/clock.h"
#include "../../base/number.h"
#include "tune_gemm.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace selftest_impl {

constexpr uint32_t kGroup = 64;
constexpr uint32_t kRowLength = 1024;
constexpr uint32_t kRows[] = {1, 3, 8};  // how many rows share a pass; row 0 must not notice
constexpr uint32_t kInvocations = 1024;
constexpr uint32_t kDots = 1024;
constexpr uint32_t kHalfWords = 65536 / 2;  // every half there is

// One question: a kernel, its input, and who judges the output.
struct Question {
    const char* name;
    PipelineKey key;
    std::vector<uint32_t> input, output;
    uint32_t n = 0, n_group = 0;
    Pipelines::Id pipeline = 0;
    MemoryPlan::Id in = 0, out = 0;
    Status made;
};

// A fixed sequence of bits (splitmix64): the same questions at every start.
struct Sequence {
    uint64_t state;
    uint64_t next() {
        uint64_t z = state += 0x9E3779B97F4A7C15ull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    // About evenly spread in -1..1, with full mantissas.
    float real() {
        return static_cast<float>(static_cast<int64_t>(next() >> 24) - (1ll << 39)) / static_cast<float>(1ll << 39);
    }
};

uint32_t bits(float f) { return load<uint32_t>(&f); }
float real(uint32_t u) { return load<float>(&u); }
bool is_nan(uint32_t u) { return (u & 0x7fffffffu) > 0x7f800000u; }

std::vector<Question> questions(const DeviceTraits& traits) {
    std::vector<Question> all;
    Sequence s{0x5eed};
    Question half{"half_subnormals", {"selftest_half", kGroup, {}, 0, false}, {}, {}, 0, 0, 0, 0, 0, {}};
    for (uint32_t i = 0; i < kHalfWords; ++i) half.input.push_back(i << 1 | (i << 1 | 1u) << 16);
    half.output.resize(2 * kHalfWords);
    half.n = kHalfWords;
    half.n_group = kHalfWords / kGroup;
    all.push_back(std::move(half));

    std::vector<uint32_t> row0(kRowLength), weights(kRowLength);
    for (uint32_t& v : row0) v = bits(s.real());
    for (uint32_t& v : weights) v = bits(s.real());
    for (uint32_t n_row : kRows) {
        Question rows{
            "fma_rows", {"selftest_rows", kGroup, {{spec::selftest::kNRow, n_row}}, 0, false}, {}, {}, 0, 0, 0, 0, 0,
            {}};
        rows.input = row0;
        for (uint32_t i = 0; i < (n_row - 1) * kRowLength; ++i) rows.input.push_back(bits(s.real()));
        rows.input.insert(rows.input.end(), weights.begin(), weights.end());
        rows.output.resize(n_row);
        rows.n = kRowLength;
        rows.n_group = 1;
        all.push_back(std::move(rows));
    }
    // Compiled as the kernels that shuffle are: they do not require full subgroups.
    Question shuffle{"shuffle_xor", {"selftest_shuffle", kGroup, {}, 0, false}, {}, {}, 0, 0, 0, 0, 0, {}};
    for (uint32_t i = 0; i < kInvocations; ++i) shuffle.input.push_back(bits(s.real()));
    shuffle.output.resize(kInvocations);
    shuffle.n = kInvocations;
    shuffle.n_group = kInvocations / kGroup;
    all.push_back(std::move(shuffle));

    Question dot{"integer_dot", {"selftest_dot", kGroup, {}, 0, false}, {}, {}, 0, 0, 0, 0, 0, {}};
    for (uint32_t i = 0; i < 2 * kDots; ++i)
        dot.input.push_back(i % kDots < 4 ? 0x80808080u : static_cast<uint32_t>(s.next()));
    dot.output.resize(kDots);
    dot.n = kDots;
    dot.n_group = kDots / kGroup;
    all.push_back(std::move(dot));

    for (const bool nv : {true, false}) {
        if (!(nv ? traits.matrix_nv : traits.matrix_khr)) continue;
        Question q{nv ? "matrix_nv" : "matrix_khr", matrix_question(traits, nv), {}, {}, 0, 0, 0, 0, 0, {}};
        if (q.key.shader.empty()) continue;
        const uint32_t m = q.key.constant(spec::selftest::kUnitM), n = q.key.constant(spec::selftest::kUnitN),
                       k = q.key.constant(spec::selftest::kUnitK);
        // Whole numbers up to 8, so that every order of summing is exact.
        auto half = [&] { return uint32_t(f32_to_f16(float(int32_t(s.next() % 17) - 8))); };
        for (uint32_t i = 0; i < (m * k + k * n) / 2; ++i) {
            const uint32_t low = half();
            q.input.push_back(low | half() << 16);
        }
        q.output.resize(m * n);
        q.n_group = 1;
        all.push_back(std::move(q));
    }
    return all;
}

Check verdict(const char* name, bool good, std::string reason) {
    Check c;
    c.name = name;
    c.verdict = good ? Check::Verdict::passed : Check::Verdict::failed;
    c.reason = std::move(reason);
    return c;
}

Check judge_half(const Question& q) {
    uint32_t wrong = 0, subnormal = 0, first = 0, got = 0;
    for (uint32_t h = 0; h < 65536; ++h) {
        const uint32_t v = q.output[(h & 1u) * kHalfWords + h / 2], want = bits(f16_to_f32(static_cast<uint16_t>(h)));
        if (v == want || (is_nan(v) && is_nan(want))) continue;
        if (wrong++ == 0) {
            first = h;
            got = v;
        }
        if ((h & 0x7c00u) == 0) ++subnormal;
    }
    if (wrong == 0) return verdict(q.name, true, "all 65536 halves unpack exactly");
    return verdict(q.name, false,
                   say(wrong, " of 65536 halves unpack wrong, ", subnormal, " of them subnormal; the first is ", first,
                       ", which gave the bits ", got));
}

Check judge_rows(const std::vector<const Question*>& rows) {
    const Question& one = *rows[0];
    double want = 0, scale = 0;
    for (uint32_t k = 0; k < kRowLength; ++k) {
        const double term = double(real(one.input[k])) * double(real(one.input[kRowLength + k])) / 128;
        want += term;
        scale += term < 0 ? -term : term;
    }
    const double off = double(real(one.output[0])) - want;
    // 128 steps an invocation and 3 of the tree, each rounding by half an ulp of at most the sum of magnitudes.
    const double bound = scale * 131 * 6e-8;
    if (is_nan(one.output[0]) || !(off < bound && -off < bound))
        return verdict(one.name, false,
                       say("a row gave ", double(real(one.output[0])), ", expected ", want, " within ", bound));
    for (const Question* q : rows)
        if (q->output[0] != one.output[0])
            return verdict(one.name, false,
                           say("a row's bits change when ", q->output.size(), " rows share a pass: ", q->output[0],
                               " against ", one.output[0]));
    return verdict(one.name, true, "a row has the same bits alone, among 3 and among 8");
}

Check judge_shuffle(const Question& q) {
    std::vector<float> v(kInvocations), next(kInvocations);
    for (uint32_t i = 0; i < kInvocations; ++i) v[i] = real(q.input[i]);
    for (uint32_t step : {1u, 2u, 4u}) {
        for (uint32_t i = 0; i < kInvocations; ++i) next[i] = v[i] + v[i ^ step];
        v.swap(next);
    }
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < kInvocations; ++i) wrong += bits(v[i]) != q.output[i];
    if (wrong == 0)
        return verdict(q.name, true,
                       "sums of 8 neighbouring invocations are exact, invocations follow the local index");
    return verdict(q.name, false, say(wrong, " of ", kInvocations, " sums of 8 neighbouring invocations are wrong"));
}

Check judge_dot(const Question& q) {
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < kDots; ++i) {
        int32_t want = 0;
        for (uint32_t b = 0; b < 32; b += 8)
            want += static_cast<int8_t>(q.input[i] >> b & 255u) * static_cast<int8_t>(q.input[kDots + i] >> b & 255u);
        wrong += q.output[i] != static_cast<uint32_t>(want);
    }
    if (wrong == 0) return verdict(q.name, true, say(kDots, " packed dots are exact"));
    return verdict(q.name, false, say(wrong, " of ", kDots, " packed dots are wrong"));
}

Check judge_matrix(const Question& q) {
    namespace s = spec::selftest;
    const uint32_t m = q.key.constant(s::kUnitM), n = q.key.constant(s::kUnitN), k = q.key.constant(s::kUnitK);
    auto in = [&](uint32_t i) { return f16_to_f32(static_cast<uint16_t>(q.input[i / 2] >> (i & 1u) * 16 & 0xffffu)); };
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < m; ++i)
        for (uint32_t j = 0; j < n; ++j) {
            float want = 0;
            for (uint32_t x = 0; x < k; ++x) want += in(i * k + x) * in(m * k + x * n + j);
            wrong += !(real(q.output[i * n + j]) == want);
        }
    const std::string shape = say(m, "x", n, "x", k, " f16");
    if (wrong == 0) return verdict(q.name, true, say("a ", shape, " product is exact"));
    return verdict(q.name, false, say(wrong, " of ", m * n, " elements of a ", shape, " product are wrong"));
}

}  // namespace selftest_impl

PipelineKey matrix_question(const DeviceTraits& traits, bool nv) {
    MatrixShape shape;
    for (const MatrixShape& m : traits.matrix_shapes)
        if (shape.m == 0 && m.a == Component::f16 && m.b == Component::f16 && m.c == Component::f32 &&
            m.result == Component::f32)
            shape = m;
    PipelineKey key;
    if (shape.m == 0) return key;
    key.shader = nv ? "selftest_matrix_nv" : "selftest_matrix_khr";
    key.group = traits.subgroup_size;
    key.full_subgroups = true;
    if (!nv && gemm_matrix_fits(traits)) {  // gemm_mma's
        shape.m = shape.n = shape.k = 16;
        key.group = 32;
        key.subgroup_size = traits.subgroup_size_control ? 32 : 0;
    }
    namespace s = spec::selftest;
    key.constants = {{s::kUnitM, shape.m}, {s::kUnitN, shape.n}, {s::kUnitK, shape.k}};
    return key;
}

bool SelfTest::passed(std::string_view name) const {
    for (const Check& c : checks)
        if (c.name == name) return c.passed();
    return false;
}

std::string SelfTest::report() const {
    std::string s;
    for (const Check& c : checks)
        s += say("self-test   ", c.name, " ",
                 c.verdict == Check::Verdict::passed   ? "passed"
                 : c.verdict == Check::Verdict::failed ? "FAILED"
                                                       : "skipped",
                 ": ", c.reason, "\n");
    return s;
}

Result<SelfTest> run_selftest(GpuRef gpu, Pipelines& pipelines) {
    namespace impl = selftest_impl;
    const auto begin = std::chrono::steady_clock::now();
    std::vector<impl::Question> all = impl::questions(gpu->traits);
    MemoryPlan plan(gpu->traits);
    for (impl::Question& q : all) {
        q.pipeline = pipelines.request(q.key);
        q.in = plan.add(Arena::scratch, q.input.size() * 4, "self-test input");
        q.out = plan.add(Arena::scratch, q.output.size() * 4, "self-test output");
    }
    Memory memory;
    Transfer transfer;
    Commands commands;
    AUSPEX_TRY(Memory::take(gpu, plan).get(memory));
    AUSPEX_TRY(Transfer::create(gpu, 1u << 20).get(transfer));
    AUSPEX_TRY(Commands::create(gpu).get(commands));
    for (const impl::Question& q : all) {
        AUSPEX_TRY(transfer.write(memory[q.in], q.input.data(), q.input.size() * 4));
        AUSPEX_TRY(transfer.fill(memory[q.out], 0x7fc0beefu));  // what was not written is a NaN
    }
    AUSPEX_TRY(transfer.finish());
    AUSPEX_TRY(commands.begin(true));
    for (impl::Question& q : all) {
        q.made = pipelines.wait_twice(q.pipeline);
        const bool needed = q.key.shader == "selftest_half" || q.key.shader == "selftest_rows";
        if (q.made.code == Code::device_lost || (needed && q.made.code == Code::out_of_memory)) return q.made;
        if (!q.made.ok()) continue;
        commands.bind(pipelines.get(q.pipeline), {memory[q.in], memory[q.out]});
        commands.push(q.n);
        commands.dispatch(q.n_group);
    }
    AUSPEX_TRY(commands.end());
    AUSPEX_TRY(commands.run());

    SelfTest test;
    std::vector<const impl::Question*> rows;
    for (impl::Question& q : all) {
        const bool is_rows = q.key.shader == "selftest_rows", is_dot = q.key.shader == "selftest_dot";
        const bool is_shuffle = q.key.shader == "selftest_shuffle",
                   is_matrix = q.key.shader.compare(0, 15, "selftest_matrix") == 0;
        if (!q.made.ok()) {
            Check c = impl::verdict(q.name, false, q.made.text);
            if ((is_dot && !gpu->traits.dot) || (is_shuffle && !gpu->traits.shuffle()))
                c.verdict = Check::Verdict::skipped;
            if (is_rows) rows.clear();
            test.checks.push_back(std::move(c));
            continue;
        }
        AUSPEX_TRY(transfer.read(memory[q.out], q.output.data(), q.output.size() * 4));
        if (is_rows)
            rows.push_back(&q);
        else
            test.checks.push_back(is_dot       ? impl::judge_dot(q)
                                  : is_matrix  ? impl::judge_matrix(q)
                                  : is_shuffle ? impl::judge_shuffle(q)
                                               : impl::judge_half(q));
    }
    if (rows.size() == sizeof impl::kRows / sizeof impl::kRows[0]) test.checks.push_back(impl::judge_rows(rows));
    test.seconds = seconds_since(begin);
    return test;
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
#endif  // AUSPEX_NO_VULKAN

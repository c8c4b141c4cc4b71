// A sequence as bytes: rows and state apart, on both back ends.
#include <doctest/doctest.h>

#include "context_rig.h"
#ifndef AUSPEX_NO_VULKAN
#include "vulkan_model.h"
#endif

using namespace auspex;
using namespace auspex::detail;
using namespace test;

namespace test_state {

constexpr uint32_t kContext = 512, kUbatch = 64;

std::vector<std::byte> bytes_of(Context& context, StatePart part, uint32_t n_row) {
    std::vector<std::byte> bytes;
    VectorWriter to(&bytes);
    REQUIRE(context.save_state(part, n_row, to).ok());
    CHECK(bytes.size() == context.state_bytes(part, n_row));
    return bytes;
}

std::vector<std::byte> rows_of(Context& context, StatePart part, uint32_t first, uint32_t n) {
    std::vector<std::byte> bytes;
    VectorWriter to(&bytes);
    REQUIRE(context.save_rows({part, first, n}, to).ok());
    CHECK(bytes.size() == n * context.kv_row_bytes(part));
    return bytes;
}

void put_state(Context& context, uint32_t n_row, Span<const std::byte> bytes) {
    SpanReader from(bytes);
    REQUIRE(context.restore_state(StatePart::trunk, n_row, from).ok());
}

void put_rows(Context& context, uint32_t first, uint32_t n, Span<const std::byte> bytes) {
    SpanReader from(bytes);
    REQUIRE(context.restore_rows({StatePart::trunk, first, n}, from).ok());
}

/// A prefix, then one branch, then another, then the first again from what was kept of it.
template <class Rig>
void check_branches(const Rig& rig, Context& context, Context& blank) {
    const std::vector<Token> ids = tiny_ids(300, 17), other = tiny_ids(120, 18);
    const auto piece = [&](uint32_t at, uint32_t n) { return Span<const Token>(ids.data() + at, n); };
    const auto prefill = [&](Context& to, Span<const Token> from, uint32_t first) {
        for (uint32_t at = 0; at < from.size(); at += kUbatch)
            rig.run(to, from.subspan(at, std::min<size_t>(kUbatch, from.size() - at)), first + at, false, 0);
    };
    prefill(context, piece(0, 128), 0);
    const std::vector<std::byte> junction = bytes_of(context, StatePart::trunk, 128);
    prefill(context, piece(128, 100), 128);
    rig.run(context, piece(228, 5), 228, true, 5);
    context.commit(3);  // records that the state does not hold yet
    const std::vector<std::byte> tip = bytes_of(context, StatePart::trunk, 231);
    const std::vector<std::byte> parked = rows_of(context, StatePart::trunk, 128, 60);
    // The other branch overwrites 60 rows; those behind it stay in place.
    put_state(context, 128, junction);
    prefill(context, Span<const Token>(other.data(), 60), 128);
    const std::vector<float> b = rig.run(context, Span<const Token>(other.data() + 60, 4), 188, true, 4);
    context.commit(0);
    prefill(blank, piece(0, 128), 0);
    prefill(blank, Span<const Token>(other.data(), 60), 128);
    CHECK(b == rig.run(blank, Span<const Token>(other.data() + 60, 4), 188, true, 4));
    blank.commit(0);
    // And back. The rejected rows 188 .. 191 were overwritten too.
    put_rows(context, 128, 60, parked);
    blank.reset();
    prefill(blank, piece(0, 128), 0);
    prefill(blank, piece(128, 100), 128);
    rig.run(blank, piece(228, 5), 228, true, 5);
    blank.commit(3);
    put_rows(context, 188, 4, rows_of(blank, StatePart::trunk, 188, 4));
    put_state(context, 231, tip);
    CHECK(bytes_of(context, StatePart::trunk, 231) == bytes_of(blank, StatePart::trunk, 231));
    CHECK(rows_of(context, StatePart::trunk, 0, 231) == rows_of(blank, StatePart::trunk, 0, 231));
    CHECK(rig.run(context, piece(231, 9), 231, true, 9) == rig.run(blank, piece(231, 9), 231, true, 9));
}

/// A stream that fails after some bytes.
class Cut : public StateWriter {
  public:
    explicit Cut(uint64_t n) : rest_(n) {}
    Status write(const void*, uint64_t n) override {
        if (n > rest_) return Status(Code::io_error, "the medium is full");
        rest_ -= n;
        return {};
    }

  private:
    uint64_t rest_;
};

template <class Rig>
void check_streams(const Rig& rig, Context& context) {
    const std::vector<Token> ids = tiny_ids(40, 3);
    rig.run(context, ids, 0, false, 0);
    const uint64_t state = context.state_bytes(StatePart::trunk, 40);
    Cut short_by_one(state - 1), exact(state);
    CHECK(context.save_state(StatePart::trunk, 40, short_by_one).code == Code::io_error);
    CHECK(context.save_state(StatePart::trunk, 40, exact).ok());
    std::vector<std::byte> bytes = bytes_of(context, StatePart::trunk, 40);
    bytes.pop_back();
    SpanReader from(bytes);
    CHECK(context.restore_state(StatePart::trunk, 40, from).code == Code::bad_file);
}

/// The formats and windows of a cache; the first kCovering are those that a short run takes.
constexpr size_t kCovering = 3;
const std::vector<KvOptions>& kinds() {
    static const std::vector<KvOptions> all = [] {
        KvOptions q8, q4, full, ring, sinks;
        q8.k = q8.v = Type::q8_0;
        q4.k = Type::q4_1, q4.v = Type::q4_0;
        full.k = full.v = Type::f32;
        ring.window = 48;
        sinks.window = 32, sinks.sinks = 4;
        return std::vector<KvOptions>{{}, q4, sinks, q8, ring, full};
    }();
    return all;
}

/// What is kept is the same on every path: the fastest one covers the formats, the others the default.
std::vector<KvOptions> kinds(CpuPath path) {
    if (deep() || path == cpu_paths().back()) return kinds();
    return {KvOptions()};
}

/// The last one, float32, is for the CPU alone.
std::vector<KvOptions> gpu_kinds() {
    const auto first = kinds().begin();
    return {first, first + static_cast<std::ptrdiff_t>(deep() ? kinds().size() - 1 : kCovering)};
}

}  // namespace test_state

using namespace test_state;
#ifndef AUSPEX_NO_VULKAN
using namespace test_vulkan_model;
#endif

TEST_CASE("restore equivalence: a branch whose rows and state were kept apart goes on with the same bits") {
    for (CpuPath path : cpu_paths())
        for (const KvOptions& kv : kinds(path)) {
            const CpuRig rig(path);
            check_branches(rig, *rig.context(kv, kContext, kUbatch), *rig.context(kv, kContext, kUbatch));
        }
}

TEST_CASE("a stream that fails or ends early is reported") {
    const CpuRig rig;
    check_streams(rig, *rig.context());
}

#ifndef AUSPEX_NO_VULKAN
TEST_CASE("restore equivalence on the GPU: a branch whose rows and state were kept apart goes on with the same bits") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    const Rig rig(narrow_of(true));
    for (const KvOptions& kv : gpu_kinds())
        check_branches(rig, *rig.context(*rig.gpu, kContext, kUbatch, kv),
                       *rig.context(*rig.gpu, kContext, kUbatch, kv));
    check_streams(rig, *rig.context());
}
#endif

namespace {

/// A prompt in pieces that end on the grid, or with more rows than a step of few.
template <class Rig>
void check_grid(const Rig& rig, Context& one, Context& two) {
    constexpr uint32_t kAll = 490;
    const std::vector<Token> ids = tiny_ids(500, 21);
    const auto go_on = [&](Context& c) { return rig.run(c, Span<const Token>(ids.data() + kAll, 5), kAll, true, 5); };
    rig.run(one, Span<const Token>(ids.data(), kAll), 0, false, 1);
    const std::vector<std::byte> want_rows = rows_of(one, StatePart::trunk, 0, kAll);
    const std::vector<float> want = go_on(one);
    one.commit(0);
    for (const std::vector<uint32_t>& ends : {std::vector<uint32_t>{64, 128, 192, 256, 320, 384, 448, kAll},
                                              {128, 256, 384, kAll},
                                              {64, 448, kAll},
                                              {320, kAll}}) {
        if (!deep() && ends[0] != 64) continue;
        CAPTURE(ends[0]);
        CAPTURE(ends.size());
        two.reset();
        uint32_t at = 0;
        for (uint32_t end : ends) {
            rig.run(two, Span<const Token>(ids.data() + at, end - at), at, false, 1);
            at = end;
        }
        CHECK(rows_of(two, StatePart::trunk, 0, kAll) == want_rows);
        CHECK(go_on(two) == want);
        two.commit(0);
    }
}

}  // namespace

TEST_CASE("chunk invariance: pieces that end on the grid give the same bits") {
    for (CpuPath path : cpu_paths())
        for (const KvOptions& kv : kinds(path)) {
            const CpuRig rig(path);
            check_grid(rig, *rig.context(kv, kContext, 512), *rig.context(kv, kContext, 512));
        }
}

#ifndef AUSPEX_NO_VULKAN
TEST_CASE("chunk invariance on the GPU: pieces that end on the grid give the same bits") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    const Rig rig(narrow_of(true));
    const uint64_t before = shared_gpu()->small_bytes;
    shared_gpu()->small_bytes = 0;  // the kernels of a model of any size
    for (const KvOptions& kv : gpu_kinds())
        check_grid(rig, *rig.context(*rig.gpu, kContext, 512, kv), *rig.context(*rig.gpu, kContext, 512, kv));
    shared_gpu()->small_bytes = before;
}
#endif

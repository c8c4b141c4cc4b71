// The kernels of attention against plain loops in double and against themselves: a row's bits must not depend on what
// shares its step.
#include "../src/auspex.hpp"
#ifndef AUSPEX_NO_VULKAN
#include "../src/machine/vulkan/tune_gemm.h"
#include "attend_rig.h"

using namespace test_attend;
using vk::AttendKernel;

namespace {

/// The largest difference, counted in the root mean square of its row and head.
double off_rms(const std::vector<float>& got, const std::vector<double>& expected, u32 d_head) {
    REQUIRE(got.size() == expected.size());
    double max = 0;
    for (size_t i = 0; i < got.size(); i += d_head) {
        double squares = 0, off = 0;
        for (size_t j = i; j < i + d_head; j++) {
            squares += expected[j] * expected[j];
            off = test::larger_error(off, std::fabs(got[j] - expected[j]));
        }
        max = test::larger_error(max, off / std::sqrt(squares / d_head));
    }
    return max;
}

/// The results of rows `from` and later.
std::vector<float> tail(const std::vector<float>& all, const Attend& of, u32 from) {
    const u32 first = std::max(of.c.first_key, of.attends_from);
    return {all.begin() + static_cast<std::ptrdiff_t>(size_t(from - first) * of.out_width), all.end()};
}

/// The kernels of prompts on matrix units that the device can run. Skips the test where there are none.
std::vector<Attend::How> matrix_kernels(test::Vulkan& vulkan) {
    std::vector<Attend::How> all;
    const vk::DeviceTraits& traits = vulkan.gpu->traits;
    if (test::matrices(vulkan).prompts) all.push_back(Attend::How::tiles);
    if (vk::gemm_matrix_fits(traits) && vk::attend_shared_fits(traits)) all.push_back(Attend::How::shared);
    if (all.empty()) {
        test::skip("needs a device with matrix units of 16x8x16 or 16x16x16 halves");
        vulkan.finish();
    }
    return all;
}

constexpr u32 kQwen = kAttendQNorm | kAttendKNorm | kAttendInterleaved,
              kStep = kAttendQNorm | kAttendKNorm | kAttendPerHead;

}  // namespace

TEST_CASE("attention of prompts on matrix units agrees with double precision in every format and window") {
    auto vulkan = test::Vulkan::open();
    if (!vulkan) return;
    const std::vector<Attend::How> kernels = matrix_kernels(*vulkan);
    if (kernels.empty()) return;
    const AttendCase cases[] = {
        {4, 2, 256, 64, 0, 0, kQwen, 131, 0},
        {4, 2, 256, 64, 9, 4, kQwen, 140, 0, Type::q4_0, Type::q8_0},
        {4, 1, 256, 64, 40, 0, kStep, 140, 0, Type::q8_0, Type::q4_1},
        {2, 2, 256, 64, 0, 0, kQwen, 100, 0, Type::q4_1, Type::q4_0, 37},  // keys of row 37 and later alone
        {6, 1, 128, 64, 1, 1, kStep, 140, 0},
        {4, 2, 128, 64, 40, 5, kStep, 140, 0, Type::q8_0, Type::q4_1},
        {12, 1, 128, 0, 0, 0, 0, 80, 0, Type::q4_1, Type::q8_0},  // no norm, no rotation, no gate
        {2, 1, 128, 128, 70, 40, kQwen, 140, 0, Type::q4_0, Type::q4_0, 5},
        {4, 1, 256, 64, 0, 0, kQwen, 2200, 0},  // two segments; the last rows
    };
    for (const AttendCase& c : cases) {
        Attend attend(*vulkan, c);
        CAPTURE(c.d_head);
        CAPTURE(c.n);
        CAPTURE(c.window);
        const u32 from = c.n > 1000 ? c.n - 20 : c.first_key;
        // Queries and weights are halves, and so are unpacked keys and values.
        const std::vector<float> rows = attend.run(Attend::How::rows, kRows);
        const std::vector<double> want = attend.expected_of_caches(from);
        CHECK(off_rms(tail(rows, attend, from), want, c.d_head) < 1e-4);
        for (const Attend::How how : kernels) {
            CAPTURE(int(how));
            CHECK(off_rms(tail(attend.run(how, kRows), attend, from), want, c.d_head) < 5e-3);
        }
    }
    vulkan->finish();
}

TEST_CASE("attention of prompts on matrix units has the same bits for every tile, split, round and number of rows") {
    auto vulkan = test::Vulkan::open();
    if (!vulkan) return;
    const std::vector<Attend::How> kernels = matrix_kernels(*vulkan);
    if (kernels.empty()) return;
    const AttendCase cases[] = {
        {8, 1, 256, 64, 0, 0, kQwen, 4500, 0},           // three segments, three blocks of queries
        {6, 1, 256, 64, 300, 5, kStep, 2200, 400},       // a ring that wraps and keeps its first rows
        {6, 1, 256, 64, 300, 32, kStep, 2200, 384},      // the same, and no block of keys wraps
        {6, 1, 128, 64, 2500, 2050, kStep, 6300, 2600},  // two segments of sinks, and those of the window
        {4, 2, 128, 64, 40, 5, kStep, 280, 128, Type::q8_0, Type::q4_1},
        {4, 2, 256, 64, 0, 0, kQwen, 2200, 0, Type::q4_0, Type::q8_0, 2040},
        {12, 1, 128, 0, 0, 0, 0, 2100, 0},  // no norm, no rotation, no gate
    };
    for (const AttendCase& c : cases) {
        Attend attend(*vulkan, c);
        CAPTURE(c.n);
        attend.tiles = {256, 0, true};
        const std::vector<float> rows = attend.run(Attend::How::rows, kRows);
        for (const Attend::How how : kernels) {
            CAPTURE(int(how));
            attend.tiles = {256, 0, true};
            const std::vector<float> all = attend.run(how, kRows);
            CHECK(off_rms(all, std::vector<double>(rows.begin(), rows.end()), c.d_head) < 5e-3);
            for (const Attend::Tiles& t :
                 {Attend::Tiles{64, 0, true}, {128, 1, true}, {256, 1, true}, {256, 1, false}, {128, 0, false}}) {
                CAPTURE(t.group);
                CAPTURE(t.split);
                if (how == Attend::How::shared && t.group == 64) continue;
                attend.tiles = t;
                CHECK(same_bits(all, attend.run(how, t.group == 128 ? 23 : kRows)));
            }
        }
    }
    vulkan->finish();
}

TEST_CASE("attention of prompts without matrix units has the same bits for every split, round and number of rows") {
    auto vulkan = test::Vulkan::open();
    if (!vulkan || !test::can_shuffle(*vulkan)) return;
    std::vector<AttendCase> cases{
        {4, 2, 256, 64, 0, 0, kQwen, 2200, 0, Type::q4_0, Type::q8_0, 2040},  // two segments
        {6, 1, 128, 64, 300, 5, kStep, 2200, 400},                            // a ring that keeps its first rows
        {12, 1, 128, 0, 0, 0, 0, 2100, 0, Type::f16, Type::f16, 2000},        // no norm, no rotation, no gate
    };
    if (!vulkan->gpu->traits.is_cpu()) {
        cases.push_back({8, 1, 256, 64, 0, 0, kQwen, 4500, 0});           // three segments
        cases.push_back({6, 1, 128, 64, 2500, 2050, kStep, 6300, 2600});  // two segments of sinks
    }
    for (const AttendCase& c : cases) {
        Attend attend(*vulkan, c);
        CAPTURE(c.n);
        const u32 from = std::max(c.n - 20, c.first_key);
        // The rows of the first segment take a software device half a minute.
        if (vulkan->gpu->traits.is_cpu() && !test::deep()) attend.attends_from = kSegment - 48;
        attend.tiles = {256, 0, true};
        const std::vector<float> all = attend.run(Attend::How::rows, kRows);
        if (c.ring == 0) CHECK(off_rms(tail(all, attend, from), attend.expected_of_caches(from), c.d_head) < 1e-4);
        for (const Attend::Tiles& t : {Attend::Tiles{256, 1, true}, {256, 1, false}, {256, 0, false}}) {
            CAPTURE(t.split);
            CAPTURE(t.whole);
            attend.tiles = t;
            CHECK(same_bits(all, attend.run(Attend::How::rows, t.whole ? kRows : 23)));
        }
    }
    vulkan->finish();
}

TEST_CASE("attention on matrix units lets a block of keys wrap only where sinks or ring are no multiple of a block") {
    for (const AttendKernel kernel : {AttendKernel::tile, AttendKernel::shared}) {
        const auto wraps = [&](u32 sinks, u32 ring) {
            AttendArgs push{};
            push.sinks = sinks;
            push.ring = ring;
            vk::AttendTileChoice choice;
            choice.kernel = kernel;
            const vk::PipelineKey key = choice.key(256, kKvF16, kKvF16, push, {});
            return key.constant(kernel == AttendKernel::tile ? vk::spec::attend_tile::kWraps
                                                             : vk::spec::attend_shared::kWraps);
        };
        CHECK(wraps(0, 4096) == 0);
        CHECK(wraps(2 * kTileKeys, 384) == 0);
        CHECK(wraps(4, 4096) == 1);
        CHECK(wraps(0, 400) == 1);
    }
}

TEST_CASE(
    "attention on matrix units of any layout needs 44 KiB of shared memory, shuffles, votes and halves to nearest") {
    vk::DeviceTraits device;
    device.rounding_rte16 = true;
    device.subgroup_ops = VK_SUBGROUP_FEATURE_SHUFFLE_BIT | VK_SUBGROUP_FEATURE_VOTE_BIT;
    device.max_shared_bytes = 45056;
    CHECK(vk::attend_shared_fits(device));
    vk::DeviceTraits small = device, no_vote = device, no_shuffle = device, cuts_off = device;
    small.max_shared_bytes = 45055;
    no_vote.subgroup_ops = VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
    no_shuffle.subgroup_ops = VK_SUBGROUP_FEATURE_VOTE_BIT;
    cuts_off.rounding_rte16 = false;
    for (const vk::DeviceTraits& other : {small, no_vote, no_shuffle, cuts_off}) CHECK(!vk::attend_shared_fits(other));
    // The layout of attend_tile comes first; without matrix units for products there is neither.
    CHECK(vk::choose_attend_kernel(device, true, true) == AttendKernel::tile);
    CHECK(vk::choose_attend_kernel(device, true, false) == AttendKernel::shared);
    CHECK(vk::choose_attend_kernel(device, false, false) == AttendKernel::rows);
    CHECK(vk::choose_attend_kernel(small, true, false) == AttendKernel::rows);
    CHECK(vk::best_ubatch(VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, AttendKernel::tile) == 2048);
    CHECK(vk::best_ubatch(VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, AttendKernel::shared) == 2048);
    CHECK(vk::best_ubatch(VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, AttendKernel::rows) == 512);
    CHECK(vk::best_ubatch(VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, AttendKernel::shared) == 512);
    // Tiles as on matrix units of the other kernel: one of 64 queries where there are no more.
    CHECK(vk::choose_attend_tile(device, AttendKernel::shared, 64, 4, 1, 1 << 20).tile() == 64);
    CHECK(vk::choose_attend_tile(device, AttendKernel::shared, 65, 4, 1, 1 << 20).tile() == 128);
    CHECK(vk::choose_attend_tile(device, AttendKernel::rows, 65, 4, 1, 1 << 20).tile() == 64);
}

TEST_CASE("rounds of prompt attention have room for every segment, and their partials stay within the bound") {
    for (u32 n_context : {1u, 2048u, 2049u, 16384u, 16385u, 131072u, 1u << 20}) {
        // The spans of the kernels, counted one by one.
        u32 n = 0;
        for (uint64_t at = 0; at < n_context; n++) at += uint64_t{kSegment} << n / kSegmentOctave;
        CHECK(vk::kSegments.seen_max(n_context, 0, 0, 1) == n);
        for (const AttendKernel kernel : {AttendKernel::tile, AttendKernel::shared, AttendKernel::rows})
            for (u32 n_query : {16u, 64u, 128u, 500u, 2048u, 6144u, 16384u})
                for (u32 n_head_kv : {1u, 4u, 16u}) {
                    const u32 parts = vk::attend_parts(kernel, n_query, n_head_kv, 256, n);
                    CHECK(parts % kAttendRound == 0);
                    CHECK(parts >= std::max(kAttendRound * n, n_query));
                    const uint64_t bytes = uint64_t{parts} * n_head_kv * 256 * 4,
                                   max_bytes =
                                       kernel != AttendKernel::rows ? vk::kAttendPartBytes : vk::kAttendPartBytesPlain;
                    if (parts > std::max(kAttendRound * n, n_query + kAttendRound)) CHECK(bytes <= max_bytes);
                    vk::DeviceTraits traits;
                    for (u32 cores : {0u, 8u, 132u}) {
                        traits.n_core = cores;
                        const vk::AttendTileChoice c =
                            vk::choose_attend_tile(traits, kernel, n_query, n_head_kv, n, parts);
                        CHECK(c.n_tile * c.tile() >= n_query);
                        CHECK(uint64_t{c.n_round} * (parts / c.n_split) >= n_query);
                        CHECK(c.n_split == (c.split != 0 ? n : 1));
                        if (c.split == 0) CHECK(c.n_round == 1);
                    }
                }
    }
    // Where few tiles meet many keys, the keys are split; many tiles keep all of theirs.
    vk::DeviceTraits h200;
    h200.n_core = 132;
    CHECK(vk::choose_attend_tile(h200, AttendKernel::tile, 2048, 4, 16, 1 << 20).split == 1);
    CHECK(vk::choose_attend_tile(h200, AttendKernel::tile, 8192, 4, 16, 1 << 20).split == 0);
    // Of the second wave a half.
    CHECK(vk::choose_attend_tile(h200, AttendKernel::tile, 6144, 4, 16, 1 << 20).split == 1);
    CHECK(vk::choose_attend_tile(h200, AttendKernel::tile, 2048, 4, 1, 1 << 20).split == 0);
    CHECK(vk::choose_attend_tile(h200, AttendKernel::tile, 64, 4, 16, 1 << 20).group == 128);
    // Where loops are short, no workgroup sees more than a segment.
    vk::DeviceTraits llvmpipe;
    llvmpipe.n_core = 1;
    CHECK(vk::choose_attend_tile(llvmpipe, AttendKernel::rows, 256, 2, 16, 1 << 20).split == 0);
    llvmpipe.short_loops = true;
    CHECK(vk::choose_attend_tile(llvmpipe, AttendKernel::rows, 256, 2, 16, 1 << 20).n_split == 16);
    CHECK(vk::choose_attend_tile(llvmpipe, AttendKernel::rows, 256, 2, 1, 1 << 20).split == 0);
}

TEST_CASE("an attention row is within its bound and has the same bits alone or among nine at every chunk boundary") {
    auto vulkan = test::Vulkan::open();
    if (!vulkan || !test::can_shuffle(*vulkan)) return;
    const AttendCase cases[] = {
        {4, 2, 256, 64, 0, 0, kQwen, 131, 0},       // gate behind each query; 127, 128, 129 keys
        {6, 1, 128, 64, 40, 0, kStep, 300, 128},    // a ring that wraps
        {4, 2, 128, 128, 100, 5, kStep, 280, 144},  // and keeps its first positions
        {12, 1, 128, 0, 0, 0, 0, 40, 0},            // no norm, no rotation, no gate
    };
    for (const AttendCase& c : cases) {
        Attend attend(*vulkan, c);
        const std::vector<float> one = attend.run(Attend::How::fused, 1);
        CAPTURE(c.n);
        CHECK(worst(one, attend.expected()) < 5e-3);  // a key may round to the other half
        CHECK(same_bits(one, attend.run(Attend::How::fused, 9)));
        CHECK(same_bits(one, attend.run(Attend::How::split, 4)));
        CHECK(worst(attend.run(Attend::How::rows, kRows), one) < 1e-3);
    }
    Attend wide(*vulkan, {4, 1, 128, 64, 0, 0, kQwen, 140, 0});
    CHECK(same_bits(wide.run(Attend::How::fused, 3, 4), wide.run(Attend::How::fused, 4, 8)));
    wide.rig.commands = {};
    wide.rig.memory.reset();
    vulkan->finish();
}

TEST_CASE("attention on matrix units agrees with the plain kernel and has the same bits alone or among nine") {
    auto vulkan = test::Vulkan::open();
    if (!vulkan) return;
    if (!test::matrix_fits(*vulkan)) {
        test::skip("needs a device with matrix units of 16x8x16 halves");
        vulkan->finish();
        return;
    }
    const AttendCase cases[] = {
        {4, 2, 256, 64, 0, 0, kQwen, 131, 0},       // 127, 128, 129 keys
        {16, 2, 256, 64, 0, 0, kQwen, 2200, 0},     // eight queries a key head; two sets of chunks
        {6, 1, 256, 64, 300, 5, kStep, 4700, 400},  // a ring that wraps and keeps its first positions: sets apart
        {12, 1, 256, 0, 0, 0, 0, 40, 0},            // no norm, no rotation, no gate; two tiles for one row
    };
    for (const AttendCase& c : cases) {
        Attend attend(*vulkan, c);
        CAPTURE(c.n);
        const std::vector<float> nine = attend.run(Attend::How::units, 9);
        CHECK(worst(nine, attend.run(Attend::How::fused, 9)) < 1e-3);
        CHECK(same_bits(nine, attend.run(Attend::How::units, 1)));
        CHECK(same_bits(nine, attend.run(Attend::How::units, 4)));
        for (u32 n : {1u, 4u, 9u}) CHECK(same_bits(nine, attend.run(Attend::How::units, n, 16)));
        if (c.n < 200) CHECK(worst(nine, attend.expected()) < 5e-3);
    }
    vulkan->finish();
}

TEST_CASE("quantised keys and values have the CPU's codes in every writing kernel, and attention reads them") {
    auto vulkan = test::Vulkan::open();
    if (!vulkan) return;
    const Type types[] = {Type::f16, Type::q8_0, Type::q4_0, Type::q4_1};
    auto check = [&](AttendCase c, const std::vector<Attend::How>& ways) {
        const std::string name = std::string(type_info(c.k).name) + " " + type_info(c.v).name;
        CAPTURE(name);
        CAPTURE(c.d_head);
        Attend whole(*vulkan, c);
        const std::vector<float> one = whole.run(ways[0], 1);
        const std::vector<std::byte> bytes = whole.caches();
        // The rows in the cache: one rounding of a float may make the neighbouring code, rarely.
        std::vector<double> keys, values;
        std::vector<float> want(c.d_head);
        size_t n_other = 0;
        for (u32 p = 0; p < c.n; p++)
            for (u32 h = 0; h < c.n_head_kv; h++)
                for (bool key : {true, false}) {
                    const Type t = key ? c.k : c.v;
                    const std::vector<double> exact = whole.key_of(p, h);
                    std::vector<float> x(exact.begin(), exact.end());
                    if (!key)
                        x.assign(&whole.v[size_t(p) * whole.kv_width + h * c.d_head],
                                 &whole.v[size_t(p) * whole.kv_width + (h + 1) * c.d_head]);
                    std::vector<std::byte> row(row_bytes(t, c.d_head));
                    encode_row(t, x.data(), row.data(), c.d_head);
                    decode_row(t, row.data(), want.data(), c.d_head);
                    const std::vector<float> got = whole.row_of(key ? whole.k_cache : whole.v_cache, t, h, p);
                    double top = 0;
                    for (float f : x) top = std::max(top, std::fabs(double(f)));
                    for (u32 i = 0; i < c.d_head; i++) {
                        const double off = std::fabs(double(got[i]) - want[i]);
                        if (!(off <= 2e-3 * top)) n_other++;
                        if (!(off <= top * (t == Type::f16 ? 2e-3 : t == Type::q8_0 ? 0.01 : 0.15)))
                            FAIL_CHECK("row " << p << " column " << i << ": " << got[i] << ", expected " << want[i]);
                        (key ? keys : values).push_back(got[i]);
                    }
                }
        CHECK(n_other <= keys.size() / 500);
        CHECK(worst(one, whole.expected(keys, values)) < 1e-3);
        for (const Attend::How how : ways)
            for (u32 n : {9u, kRows}) {
                if (n == kRows && (how == Attend::How::fused || how == Attend::How::split)) continue;
                const std::vector<float> many = whole.run(how, n);
                CHECK(whole.caches() == bytes);
                if (how == Attend::How::append) continue;
                if (how == Attend::How::rows)
                    CHECK(worst(many, one) < 1e-3);
                else
                    CHECK(same_bits(one, many));
            }
        if (c.window == 0) return;
        c.ring = 128;  // overwrites itself
        Attend ring(*vulkan, c);
        CHECK(same_bits(one, ring.run(ways[0], 9)));
        if (ways.back() == Attend::How::rows) CHECK(worst(ring.run(Attend::How::rows, kRows), one) < 1e-3);
    };
    constexpr u32 kFlags = kAttendQNorm | kAttendKNorm;
    // Each pair is a pipeline; half of them hold every type twice as keys and as values.
    for (u32 k = 0; k < 4; ++k)
        for (u32 v = 0; v < 4; ++v)
            if (test::deep() || v == k || v == (k + 1) % 4)
                check({2, 1, k == v ? 96u : 64u, 32, 30, 3, kFlags, 140, 0, types[k], types[v]}, {Attend::How::plain});
    if (!test::can_shuffle(*vulkan)) return;
    // Keys of 128 and of 256 are read differently; prompts over heads of 256 run in tests/test_vulkan_kv.cpp.
    check({4, 2, 128, 64, 40, 5, kFlags, 140, 0, Type::q8_0, Type::q4_1}, {Attend::How::fused, Attend::How::rows});
    check({4, 2, 128, 64, 1, 1, kFlags, 140, 0, Type::q4_0, Type::q8_0}, {Attend::How::fused, Attend::How::append});
    check({4, 2, 256, 64, 0, 0, kFlags, 131, 0, Type::q8_0, Type::q4_0}, {Attend::How::fused, Attend::How::append});
    check({4, 2, 256, 64, 9, 4, kFlags, 140, 0, Type::q4_1, Type::q8_0}, {Attend::How::fused, Attend::How::append});
    vulkan->finish();
}
#endif  // AUSPEX_NO_VULKAN

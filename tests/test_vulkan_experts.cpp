// Tests of how prompts multiply by experts: blocks of an expert's rows (tune_gemm.h), the list of them
// (shaders/moe_list.comp), and that a row's bits do not depend on the block that it is in.
#include "../src/machine/vulkan/tune_gemm.h"
#include "encode.h"
#include "support.h"

#include <doctest/doctest.h>

#ifndef AUSPEX_NO_VULKAN
#include "../shaders/gemm_args.h"
#include "../shaders/moe_args.h"
#include "../src/machine/vulkan/buffers.h"
#include "vulkan_rig.h"

#include <algorithm>
#include <cmath>
#include <numeric>

using namespace auspex;
using namespace auspex::detail;
using test::Vulkan;

namespace {

using u32 = uint32_t;

/// Rows of blocks of each size into which `blocks` cuts the n rows of an expert.
std::vector<u32> blocks_of(const vk::Blocks& blocks, u32 n) {
    std::vector<u32> count(blocks.n);
    count[0] = n / blocks.bm[0];
    const u32 rest = n % blocks.bm[0];
    u32 size = blocks.n;
    while (rest && blocks.bm[--size] < rest) {
    }
    if (rest) count[size]++;
    return count;
}

vk::Blocks blocks_of_sizes(const std::vector<u32>& sizes, u32 n_entry_of_size) {
    vk::Blocks b;
    for (const u32 bm : sizes) {
        b.first_entry[b.n] = b.n_entry;
        b.bm[b.n++] = bm;
        b.n_entry += n_entry_of_size;
    }
    return b;
}

/// n_used different experts for each row, low ids more often; and after them the shared expert's place.
std::vector<u32> choose(u32 n_row, u32 n_used, u32 n_expert, uint64_t seed) {
    test::Random random(seed);
    std::vector<u32> out;
    for (u32 row = 0; row < n_row; row++) {
        std::vector<u32> ids;
        while (ids.size() < n_used) {
            const u32 id = random.below(random.below(n_expert) + 1);
            if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
        }
        std::sort(ids.begin(), ids.end());
        ids.push_back(0);
        for (const u32 id : ids) out.insert(out.end(), {id, 0});
    }
    return out;
}

/// Lets moe_list sort the places of n_step of n_row rows.
struct List {
    u32 n_row, n_used, n_expert;
    std::vector<u32> choice;
    vk::Blocks blocks;

    args::ListArgs arguments() const {
        args::ListArgs a = blocks.list();
        a.n_expert = n_expert;
        a.n_used = n_used;
        a.n_row = n_row;
        a.from_step = 1;
        return a;
    }
    u32 n_word() const { return args::kListEntry + blocks.n_entry + n_row * n_used; }
    std::vector<u32> places(u32 expert, u32 n_step) const {
        std::vector<u32> out;
        for (u32 row = 0; row < n_step; row++)
            for (u32 j = 0; j < n_used; j++)
                if (choice[2 * (row * (n_used + 1) + j)] == expert) out.push_back(row * n_used + j);
        return out;
    }
    std::vector<u32> run(Vulkan& v, u32 n_step) const {
        test::Rig rig(v);
        const u32 c = rig.add(choice.size() * 4), l = rig.add(n_word() * size_t{4}), s = rig.add(test::kStepBytes);
        rig.take();
        std::copy(choice.begin(), choice.end(), rig.at<u32>(c));
        std::fill_n(rig.at<u32>(l), n_word(), ~0u);
        *rig.at<u32>(s) = n_step;
        rig.begin();
        rig.run("moe_list", 256, {}, {c, l, s}, arguments(), 1);
        rig.end();
        rig.go();
        return {rig.at<u32>(l), rig.at<u32>(l) + n_word()};
    }
};

/// Every place of the steps' rows is in one block of its expert, whose size is the one that blocks_of() says.
void check(const List& l, const std::vector<u32>& list, u32 n_step) {
    std::vector<u32> count(l.blocks.n);
    u32 first = 0;
    for (u32 e = 0; e < l.n_expert; e++) {
        std::vector<u32> want = l.places(e, n_step);
        CHECK(list[args::kListFirst + e] == first);
        std::vector<u32> got(want.size());
        std::copy_n(list.data() + args::kListEntry + l.blocks.n_entry + first, want.size(), got.begin());
        std::sort(got.begin(), got.end());
        CHECK(got == want);
        first += static_cast<u32>(want.size());
        const std::vector<u32> n = blocks_of(l.blocks, static_cast<u32>(want.size()));
        for (u32 i = 0; i < l.blocks.n; i++) count[i] += n[i];
    }
    CHECK(list[args::kListFirst + l.n_expert] == first);
    std::vector<u32> covered(l.n_expert);  // the first places of an expert's blocks, added up
    for (u32 i = 0; i < l.blocks.n; i++) {
        REQUIRE(list[args::kListCount + i] == count[i]);
        for (u32 k = 0; k < count[i]; k++) {
            const u32 entry = list[args::kListEntry + l.blocks.first_entry[i] + k], e = entry & 4095, at = entry >> 12;
            REQUIRE(e < l.n_expert);
            const u32 n = static_cast<u32>(l.places(e, n_step).size()), whole = n - n % l.blocks.bm[0];
            CHECK(at < n);
            CHECK((i == 0 || at == whole));
            CHECK(at % l.blocks.bm[0] == 0);
            CHECK(n - at <= (at < whole ? n : l.blocks.bm[i]));
            covered[e] += at + 1;
        }
    }
    for (u32 e = 0; e < l.n_expert; e++) {
        const u32 n = static_cast<u32>(l.places(e, n_step).size()), n_block = ceil_div(n, l.blocks.bm[0]);
        CHECK(covered[e] == n_block + l.blocks.bm[0] * (n_block * (n_block - 1) / 2) * (n_block > 0));
    }
}

/// Rows of halves times the experts that they chose.
struct Product {
    static constexpr u32 d_in = 256, d_out = 48, n_expert = 5, n_used = 2, n_row = 50;
    vk::Tiling t = vk::tiling(Type::q8_0, d_out, d_in);
    std::vector<uint8_t> file;
    std::vector<float> w, x;
    std::vector<u32> choice = choose(n_row, n_used, n_expert, 7);

    Product() {
        x = test::Random(5).normals(size_t{n_row} * d_in);
        const std::vector<float> v = test::Random(6).normals(size_t{n_expert} * d_out * d_in, 0.1f);
        file.resize(n_expert * d_out * row_bytes(Type::q8_0, d_in));
        w.resize(v.size());
        test::encode(Type::q8_0, v.data(), file.data(), v.size());
        decode_row(Type::q8_0, file.data(), w.data(), w.size());
    }
    std::vector<float> of(Vulkan& v, const vk::DeviceTraits& traits, bool matrix, const vk::Blocks& blocks) const;
    double error(const std::vector<float>& y) const;
};

std::vector<float> Product::of(Vulkan& v, const vk::DeviceTraits& traits, bool matrix, const vk::Blocks& blocks) const {
    const List l{n_row, n_used, n_expert, choice, blocks};
    test::Rig rig(v);
    const size_t one = t.n_row * t.row_bytes();
    const u32 w_id = rig.add(n_expert * one), x_id = rig.add(x.size() * 4), halves = rig.add(n_row * t.n_col * 512u),
              scale = rig.add(n_row * 4), y = rig.add(size_t{n_row} * n_used * d_out * 4),
              c = rig.add(choice.size() * 4), list = rig.add(l.n_word() * size_t{4}), step = rig.add(test::kStepBytes);
    rig.take();
    for (u32 e = 0; e < n_expert; e++)
        vk::repack(t, Type::q8_0, &file[e * d_out * row_bytes(Type::q8_0, d_in)], nullptr, 0, t.n_row,
                   rig.at<std::byte>(w_id) + e * one);
    rig.put(x_id, x);
    std::copy(choice.begin(), choice.end(), rig.at<u32>(c));
    *rig.at<u32>(step) = n_row;
    rig.begin();
    args::GemmPackArgs pack{};
    pack.d_in = pack.x_stride = d_in;
    pack.n_col = t.n_col;
    pack.y_stride = t.n_col * 32;
    pack.inv_d = 1.0f / d_in;
    rig.bind(vk::choose_gemm_pack(v.gpu->traits, false, false), {x_id, x_id, halves, scale, x_id, step}, pack);
    rig.commands.dispatch(n_row);
    rig.run("moe_list", 256, {}, {c, list, step}, l.arguments(), 1);
    for (u32 i = 0; i < blocks.n; i++) {
        const vk::GemmChoice k = vk::choose_gemm_experts(traits, matrix, t, n_row * n_used, n_expert, blocks.bm[i],
                                                         true, vk::GemmEpilogue::store);
        CHECK(k.bm == blocks.bm[i]);
        args::GemmArgs a{};
        a.n_row = blocks.n_entry;
        a.n_tile = t.n_row;
        a.n_col = t.n_col;
        a.n_half_tile = t.n_half_tile();
        a.d_out = a.y_stride = d_out;
        a.x_stride = t.n_col * 32;
        a.factor = 1;
        a.from_step = 1;
        a.mode = k.mode;
        a.list_size = i;
        a.first_entry = blocks.first_entry[i];
        a.n_expert = n_expert;
        a.divide = n_used;
        rig.bind(k.key, {w_id, halves, scale, y, list, step}, a);
        rig.commands.dispatch(blocks.entries(i), k.groups_y(t.n_row));
        rig.commands.barrier();
    }
    rig.end();
    rig.go();
    return {rig.at<float>(y), rig.at<float>(y) + size_t{n_row} * n_used * d_out};
}

/// The largest error, in units of 2^-11 of the sum of the absolute products: what rounding to halves may cost.
double Product::error(const std::vector<float>& y) const {
    double worst = 0;
    for (u32 row = 0; row < n_row; row++)
        for (u32 j = 0; j < n_used; j++) {
            const float* m = &w[size_t{choice[2 * (row * (n_used + 1) + j)]} * d_out * d_in];
            for (u32 o = 0; o < d_out; o++) {
                double sum = 0, size = 0;
                for (u32 i = 0; i < d_in; i++) {
                    const double p = double{x[row * d_in + i]} * m[o * d_in + i];
                    sum += p, size += std::fabs(p);
                }
                worst = test::larger_error(worst, std::fabs(y[(row * n_used + j) * d_out + o] - sum) / size * 2048);
            }
        }
    return worst;
}

}  // namespace

TEST_CASE("the blocks of a prompt's experts fit into their list, whatever the rows choose") {
    vk::DeviceTraits traits;
    traits.subgroup_size_control = true;
    test::Random random(1);
    for (const u32 shared : {32768u, 49152u})
        for (const bool matrix : {false, true})
            for (const bool exact : {false, true})
                for (const u32 n_expert : {4u, 128u, 512u})
                    for (const u32 n_used : {1u, 4u, 10u})
                        for (const u32 n_row : {10u, 16u, 17u, 64u, 200u, 1024u, 4096u}) {
                            if (n_used > n_expert) continue;
                            traits.max_shared_bytes = shared;
                            const vk::Tiling t = vk::tiling(Type::q4_k, 512, 1024);
                            const vk::Blocks b = vk::choose_blocks(traits, matrix, t, n_row, n_used, n_expert, exact);
                            REQUIRE(b.n > 0);
                            CHECK(b.n_entry <= vk::list_entries(n_row * n_used, n_expert));
                            for (u32 i = 0; i + 1 < b.n; i++) {
                                CHECK(b.bm[i] > b.bm[i + 1]);
                                CHECK(b.bm[i + 1] < n_row);  // else it would hold all rows
                            }
                            for (int trial = 0; trial < 10; trial++) {
                                std::vector<u32> n(n_expert), count(b.n);
                                for (u32 left = n_row * n_used; left > 0;) {  // pieces that suit one size best
                                    const u32 e = random.below(n_expert);
                                    u32 want =
                                        trial ? random.below(n_row / static_cast<u32>(trial)) + 1 : b.bm[b.n - 1] + 1;
                                    want = std::min({want, left, n_row - n[e]});
                                    n[e] += want, left -= want;
                                }
                                for (const u32 k : n) {
                                    const std::vector<u32> of = blocks_of(b, k);
                                    for (u32 i = 0; i < b.n; i++) count[i] += of[i];
                                }
                                for (u32 i = 0; i < b.n; i++) CHECK(count[i] <= b.entries(i));
                            }
                        }
}

TEST_CASE("the list of a prompt's experts has each place in one block, of the smallest size that holds the rest") {
    auto v = Vulkan::open();
    if (!v) return;
    for (const std::vector<u32>& sizes : {std::vector<u32>{128, 64, 32, 16}, std::vector<u32>{64, 32, 16},
                                          std::vector<u32>{32, 16}, std::vector<u32>{16}})
        for (const u32 n_expert : {3u, 64u, 600u}) {
            CAPTURE(sizes[0]);
            CAPTURE(n_expert);
            List l{150, 3, n_expert, choose(150, 3, n_expert, n_expert), blocks_of_sizes(sizes, 450)};
            for (const u32 n_step : {150u, 40u, 1u}) check(l, l.run(*v, n_step), n_step);
        }
}

TEST_CASE("a row's product with an expert has the same bits in blocks of any size") {
    auto v = Vulkan::open();
    if (!v) return;
    const Product p;
    vk::DeviceTraits traits = v->gpu->traits;
    traits.type = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
    const std::vector<float> plain = p.of(*v, traits, false, blocks_of_sizes({32, 16}, 60));
    CHECK(p.error(plain) < 1);
    CHECK(test::same_bits(plain, p.of(*v, traits, false, blocks_of_sizes({16}, 60))));
    if (!vk::gemm_matrix_fits(traits)) return;
    const std::vector<float> all = p.of(*v, traits, true, blocks_of_sizes({32, 16}, 60));
    CHECK(p.error(all) < 2);  // weights are rounded to halves, too
    for (const u32 bm : {128u, 64u, 32u, 16u}) {
        CAPTURE(bm);
        CHECK(test::same_bits(all, p.of(*v, traits, true, blocks_of_sizes({bm}, 60))));
    }
}
#endif  // AUSPEX_NO_VULKAN

// Stages that wait for each other by counters instead of barriers: shaders/chain.glsl, DispatchList::chain().
#include "../src/auspex.hpp"
#ifndef AUSPEX_NO_VULKAN
#include "../shaders/matvec_args.h"
#include "../shaders/moe_args.h"
#include "../src/machine/vulkan/dispatch_list.h"
#include "vulkan_rig.h"

#include <functional>

using namespace auspex;
using namespace auspex::detail;
using test::kStepBytes;
using test::Rig;
using test::same_bits;
using List = vk::DispatchList;

namespace {

constexpr uint32_t kStages = 40, kSize = 512;

/// kStages products in a row, from one buffer to the other and back, so that a cache that a stage has filled holds what
/// is two stages old.
struct Chain {
    test::Vulkan& vulkan;
    Rig rig;
    const uint32_t n_row;  ///< room; of these the step runs as many as its first word says
    uint32_t step, w, ends[2];
    List list;
    std::function<void(List*, uint32_t)> stage;

    Chain(test::Vulkan& v, uint32_t rows, size_t weight_bytes) : vulkan(v), rig(v), n_row(rows) {
        step = rig.add(kStepBytes);
        w = rig.add(weight_bytes);
        for (uint32_t& end : ends) end = rig.add(size_t{n_row} * kSize * 4);
        rig.take();
    }
    const vk::Region& from(uint32_t i) const { return rig.memory[ends[i % 2]]; }
    const vk::Region& to(uint32_t i) const { return rig.memory[ends[(i + 1) % 2]]; }
    uint32_t* words() { return rig.at<uint32_t>(step); }

    void build(bool chained) {
        list.clear();
        for (uint32_t i = 0; i < kStages; ++i) {
            if (i > 0) list.barrier();
            stage(&list, i);
        }
        if (chained) list.chain(rig.memory[step]);
    }
    /// Records the list. `barriers`: one behind each dispatch, for devices where nothing may go without.
    void record(bool barriers) {
        rig.begin();
        for (const List::Entry& e : list.entries()) {
            if (e.kind == List::Entry::Kind::barrier) {
                rig.commands.barrier(e.sync_before, e.sync_after);
            } else if (e.kind == List::Entry::Kind::fill) {
                rig.commands.fill(list.regions(e)[0], 0);
            } else {
                const vk::PipelineKey& key = list.keys()[e.key];
                rig.commands.bind(vulkan.make(key), list.regions(e));
                rig.commands.push(list.push(e).data(), e.n_word * 4);
                rig.commands.dispatch(e.grid.x, e.grid.y, e.grid.z);
                if (barriers) rig.commands.barrier();
            }
        }
        rig.end();
    }
    std::vector<float> run(const std::vector<float>& x) {
        rig.put(ends[0], x);
        std::memset(rig.memory[ends[1]].mapped, 0, rig.memory[ends[1]].bytes);
        rig.go();
        const float* y = rig.at<float>(ends[kStages % 2]);
        return {y, y + x.size()};
    }
    /// The bits are those of barriers, again and again, and every stage counts its workgroups.
    void check(const std::vector<float>& x, uint32_t n_group) {
        build(false);
        record(false);
        const std::vector<float> want = run(x);
        build(true);
        const bool in_order = vulkan.gpu->traits.starts_in_order;
        record(!in_order);
        const int n_replay = in_order || test::deep() ? 20 : 3;  // behind barriers nothing can come too early
        for (int replay = 0; replay < n_replay; ++replay) {
            CHECK(same_bits(run(x), want));
            for (uint32_t i = 0; i + 1 < kStages; ++i) REQUIRE(words()[args::kChainWord + i] == n_group);
        }
    }
};

/// Weights that keep the size of what they multiply.
std::vector<float> weights(uint64_t seed) {
    return test::Random(seed).normals(size_t{kSize} * kSize, 1.0f / std::sqrt(static_cast<float>(kSize)));
}

}  // namespace

TEST_CASE("chained stages read what the ones before them wrote: scores of experts") {
    const auto vulkan = test::Vulkan::open();
    if (!vulkan) return;
    for (const uint32_t n_row : {1u, 4u}) {
        CAPTURE(n_row);
        Chain chain(*vulkan, n_row, size_t{kSize} * kSize * 4);
        chain.rig.put(chain.w, weights(1));
        chain.words()[0] = n_row == 4 ? 2 : 1;  // workgroups of the other rows have nothing to do, and count as well
        namespace s = vk::spec::moe_router;
        chain.stage = [&](List* list, uint32_t i) {
            args::RouterArgs a{};
            a.d_in = a.n_out = a.n_expert = a.x_stride = kSize;
            a.n_row = n_row;
            a.from_step = 1;
            vk::PipelineKey key;
            key.shader = "moe_router";
            key.group = 128;
            key.constants = {{s::kXRows, std::min(n_row, 2u)}, {s::kNorm, 0}, {s::kChained, 1}};
            const vk::Region& w = chain.rig.memory[chain.w];
            const vk::Region regions[] = {w, chain.from(i), w, chain.to(i), chain.rig.memory[chain.step]};
            list->dispatch(key, {regions, std::size(regions)}, &a, sizeof a, {kSize / 2, ceil_div(n_row, 2u)}, "router",
                           0);
            list->may_chain(offsetof(args::RouterArgs, chain));
        };
        chain.check(test::Random(2).normals(size_t{n_row} * kSize), kSize / 2 * ceil_div(n_row, 2u));
    }
    vulkan->finish();
}

TEST_CASE("chained stages read what the ones before them wrote: products on matrix units") {
    const auto vulkan = test::Vulkan::open();
    if (!vulkan) return;
    if (!test::matrix_fits(*vulkan)) {
        test::skip("needs a device with matrix units of 16x8x16 halves");
        return vulkan->finish();
    }
    vk::DeviceTraits traits = vulkan->gpu->traits;
    traits.starts_in_order = true;  // as far as the choice of the kernel goes
    const vk::Tiling t = vk::tiling(Type::f16, kSize, kSize);
    std::vector<uint16_t> halves;
    for (float v : weights(3)) halves.push_back(f32_to_f16(v));
    std::vector<std::byte> tiles(t.bytes());
    vk::repack(t, Type::f16, halves.data(), nullptr, 0, t.n_row, tiles.data());
    for (const uint32_t n_row : {1u, 4u}) {
        CAPTURE(n_row);
        Chain chain(*vulkan, n_row, tiles.size());
        std::memcpy(chain.rig.memory[chain.w].mapped, tiles.data(), tiles.size());
        const vk::MatvecChoice c = vk::choose_matvec(traits, true, t, n_row, false, vk::Epilogue::store);
        REQUIRE(c.matrix);
        chain.stage = [&](List* list, uint32_t i) {
            args::MatvecArgs a{};
            a.n_tile = t.n_row;
            a.n_col = t.n_col;
            a.d_in = a.d_out = a.x_stride = a.y_stride = kSize;
            a.tiles = c.tiles;
            a.mode = vk::matvec_mode(false, vk::Epilogue::store);
            const vk::Region &x = chain.from(i), &y = chain.to(i);
            const vk::Region regions[] = {chain.rig.memory[chain.w], x, x, x, y, x, y, x, chain.rig.memory[chain.step]};
            list->dispatch(c.key, {regions, std::size(regions)}, &a, sizeof a, {c.groups(t.n_row)}, "product", 0);
            list->may_chain(offsetof(args::MatvecArgs, chain));
        };
        chain.check(test::Random(4).normals(size_t{n_row} * kSize), c.groups(t.n_row));
    }
    vulkan->finish();
}

TEST_CASE("a list keeps the barriers beside dispatches that cannot be chained, and zeroes its counters first") {
    vk::PipelineKey key;
    key.shader = "none";
    key.group = 1;
    struct Push {
        uint32_t first;
        args::ChainArgs chain;
    };
    List list;
    const vk::Region step{};
    auto add = [&](bool chained, uint32_t groups) {
        const Push push{};
        list.dispatch(key, {&step, 1}, &push, sizeof push, {groups, 2}, "a", 0);
        if (chained) list.may_chain(offsetof(Push, chain));
    };
    auto chain_of = [&](size_t i) {
        args::ChainArgs a{};
        const List::Entry& e = list.entries()[i];
        std::memcpy(&a, list.push(e).data() + e.chain_word, sizeof a);
        return a;
    };
    add(false, 1);
    list.barrier();
    add(true, 3);
    add(true, 4);
    list.barrier();
    add(true, 5);
    list.barrier();
    add(true, 6);
    add(false, 1);
    list.barrier(vk::kSyncCompute, vk::kSyncCompute | vk::kSyncTransfer);
    add(true, 1);
    list.chain(step);
    using Kind = List::Entry::Kind;
    const Kind want[] = {Kind::fill,    Kind::dispatch, Kind::barrier,  Kind::dispatch, Kind::dispatch, Kind::dispatch,
                         Kind::barrier, Kind::dispatch, Kind::dispatch, Kind::barrier,  Kind::dispatch};
    REQUIRE(list.entries().size() == std::size(want));
    for (size_t i = 0; i < std::size(want); ++i) CHECK(list.entries()[i].kind == want[i]);
    CHECK(list.entries()[2].sync_before == (vk::kSyncCompute | vk::kSyncTransfer));
    CHECK(list.regions(list.entries()[0])[0].bytes == 4);
    for (size_t i : {3u, 4u}) {
        CHECK(chain_of(i).n_await == 0);
        CHECK(chain_of(i).done_word == args::kChainWord);
    }
    CHECK(chain_of(5).await_word == args::kChainWord);
    CHECK(chain_of(5).n_await == 14);
    CHECK(chain_of(5).done_word == 0);
    for (size_t i : {7u, 10u}) CHECK((chain_of(i).n_await == 0 && chain_of(i).done_word == 0));

    list.clear();  // nothing runs before the first stage that counts
    add(true, 1);
    list.barrier();
    add(true, 1);
    list.chain(step);
    CHECK(list.entries().size() == 4);
    CHECK(list.entries()[1].kind == Kind::barrier);
    CHECK(list.entries()[1].sync_before == vk::kSyncTransfer);
    CHECK(list.text().find("fill") == 0);

    list.clear();  // no more counters than there are
    for (uint32_t i = 0; i < args::kChainCount + 10; ++i) {
        add(true, 1);
        list.barrier();
    }
    list.chain(step);
    CHECK(list.n_barrier() == 11);
    CHECK(list.regions(list.entries()[0])[0].bytes == 4 * args::kChainCount);
}
#endif  // AUSPEX_NO_VULKAN

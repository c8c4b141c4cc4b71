// tests/vulkan_rig: runs single kernels over buffers that the host sees.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "../shaders/args.h"
#include "../src/base/number.h"
#include "../src/machine/vulkan/tune.h"
#include "largest.h"
#include "support.h"
#include "vulkan_support.h"

#include <cmath>
#include <cstring>

namespace test {

/// Bytes of a context's step buffer.
constexpr size_t kStepBytes = 4 * auspex::detail::args::kAllowedWord;

/// Buffers the host sees, kernels by name, one recording at a time.
struct Rig {
    explicit Rig(Vulkan& v) : vulkan(v), plan(v.gpu->traits) {}
    Vulkan& vulkan;
    vk::MemoryPlan plan;
    vk::Memory memory;
    vk::Commands commands;

    uint32_t add(size_t bytes) { return plan.add(vk::Arena::staging, (bytes + 15) / 16 * 16); }
    void take() {
        auto m = vk::Memory::take(vulkan.gpu, plan);
        REQUIRE_MESSAGE(m.ok(), m.status().message());
        memory = std::move(m.value());
        for (uint32_t i = 0; i < plan.size(); i++) std::memset(memory[i].mapped, 0, memory[i].bytes);
    }
    template <class T>
    T* at(uint32_t id) {
        return reinterpret_cast<T*>(memory[id].mapped);
    }
    void put(uint32_t id, const std::vector<float>& v) { std::memcpy(memory[id].mapped, v.data(), v.size() * 4); }
    void begin() {
        auto c = vk::Commands::create(vulkan.gpu);
        REQUIRE_MESSAGE(c.ok(), c.status().message());
        commands = std::move(c.value());
        REQUIRE(commands.begin().ok());
    }
    template <class A>
    void bind(const char* name, uint32_t group, std::vector<vk::SpecValue> constants, const std::vector<uint32_t>& ids,
              const A& push) {
        vk::PipelineKey key;
        key.shader = name;
        key.group = group;
        key.constants = std::move(constants);
        bind(key, ids, push);
    }
    template <class A>
    void bind(const vk::PipelineKey& key, const std::vector<uint32_t>& ids, const A& push) {
        std::vector<vk::Region> regions;
        for (uint32_t id : ids) regions.push_back(memory[id]);
        const VkPipeline pipeline = vulkan.make(key);
        const auspex::Status s =
            vk::check_dispatch(*shaders()->find(key.shader)->contract, regions.size(), sizeof push);
        REQUIRE_MESSAGE(s.ok(), s.message());
        commands.bind(pipeline, regions);
        commands.push(push);
    }
    template <class A>
    void run(const char* name, uint32_t group, std::vector<vk::SpecValue> constants, const std::vector<uint32_t>& ids,
             const A& push, uint32_t x, uint32_t y = 1) {
        bind(name, group, std::move(constants), ids, push);
        commands.dispatch(x, y);
        commands.barrier();
    }
    void end() {
        commands.barrier(vk::kSyncCompute, vk::kSyncHost);
        const auspex::Status s = commands.end();
        REQUIRE_MESSAGE(s.ok(), s.message());
    }
    void go() {
        const auspex::Status s = commands.run();
        REQUIRE_MESSAGE(s.ok(), s.message());
    }
};

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

/// The largest difference, counted in |expected| + 0.01.
template <class V>
double worst(const std::vector<float>& got, const V& expected) {
    REQUIRE(got.size() == expected.size());
    double w = 0;
    for (size_t i = 0; i < got.size(); i++) {
        const double e = static_cast<double>(expected[i]);
        w = larger_error(w, std::fabs(got[i] - e) / (std::fabs(e) + 0.01));
    }
    return w;
}

/// Whether eight neighbours can shuffle, which specialised kernels need; finishes and skips the test case if not.
inline bool can_shuffle(Vulkan& v) {
    if (v.gpu->traits.shuffle() && v.gpu->traits.subgroup_size >= 8) return true;
    v.finish();
    skip("needs shuffles among eight neighbours");
    return false;
}

/// What this device's matrices suit: matvec_mma and attend_mma, and attend_tile.
struct MatrixFits {
    bool steps = false, prompts = false;
};
inline MatrixFits matrices(Vulkan& v) {
    if (!vk::matrix_worth_asking(v.gpu->traits)) return {};
    Rig rig(v);
    const uint32_t halves = rig.add(512), floats = rig.add(512), seen = rig.add(2048);
    rig.take();
    for (uint32_t i = 0; i < 256; i++) rig.at<uint16_t>(halves)[i] = auspex::detail::f32_to_f16(static_cast<float>(i));
    for (uint32_t i = 0; i < 128; i++) rig.at<float>(floats)[i] = static_cast<float>(i);
    rig.begin();
    namespace s = vk::spec::matrix_layout;
    rig.run("matrix_layout", 32, {{s::kUnitM, 16}, {s::kUnitN, 8}, {s::kUnitK, 16}}, {halves, floats, seen},
            uint32_t{0}, 1);
    rig.end();
    rig.go();
    MatrixFits fits;
    fits.steps = vk::matrix_layout_fits(rig.at<float>(seen));
    fits.prompts = fits.steps && vk::matrix_right_fits(rig.at<float>(seen));
    return fits;
}
inline bool matrix_fits(Vulkan& v) { return matrices(v).steps; }

}  // namespace test
#endif  // AUSPEX_NO_VULKAN

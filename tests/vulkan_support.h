// tests/vulkan_support: a device for tests, under validation where the layer is installed.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "../src/machine/vulkan/commands.h"
#include "support.h"

#include <doctest/doctest.h>

namespace test {

namespace vk = auspex::detail::vk;

/// The embedded shaders, unpacked once for all tests.
inline std::shared_ptr<const vk::Shaders> shaders() {
    static const std::shared_ptr<const vk::Shaders> one = [] {
        auto s = vk::Shaders::open();
        REQUIRE_MESSAGE(s.ok(), s.status().message());
        return s.value();
    }();
    return one;
}

/// A Vulkan device with pipelines. Null where the machine has none; then the running test case is skipped. Choose
/// lavapipe with VK_ICD_FILENAMES=/usr/share/vulkan/icd.d/lvp_icd.x86_64.json. Call finish() at the end: it closes the
/// device and fails the test on every message of the validation layer, leaks included.
struct Vulkan {
    vk::GpuRef gpu;
    std::unique_ptr<vk::Pipelines> pipelines;
    std::shared_ptr<vk::Messages> messages;

    static std::unique_ptr<Vulkan> open(vk::OpenDetail detail = {}, const auspex::DeviceOptions& base = {}) {
        auspex::DeviceOptions options = base;
        options.kind = auspex::Kind::vulkan;
        detail.validation = true;
        auto gpu = vk::open_gpu(options, detail);
        if (gpu.status().code == auspex::Code::not_found) {  // no validation layer here
            detail.validation = false;
            gpu = vk::open_gpu(options, detail);
        }
        static bool seen = false;  // a device that was there may not vanish
        seen = seen || gpu.ok();
        if (gpu.status().code == auspex::Code::no_device && !seen) {
            skip_without_device(gpu.status().text);
            return nullptr;
        }
        REQUIRE_MESSAGE(gpu.ok(), gpu.status().message());
        if (!device_counts(gpu.value()->traits.name)) {
            skip_without_device("only a software device");
            return nullptr;
        }
        auto v = std::make_unique<Vulkan>();
        v->gpu = gpu.value();
        v->messages = v->gpu->messages;
        auto p = vk::Pipelines::create(v->gpu, shaders());
        REQUIRE_MESSAGE(p.ok(), p.status().message());
        v->pipelines = std::move(p.value());
        return v;
    }
    /// The pipeline of a key; fails the test when it cannot be made.
    VkPipeline make(const vk::PipelineKey& key) {
        const auto id = pipelines->request(key);
        const auspex::Status s = pipelines->wait(id);
        REQUIRE_MESSAGE(s.ok(), s.message());
        return pipelines->get(id);
    }
    /// Everything made on the device must be gone before.
    void finish() {
        pipelines.reset();
        CHECK(gpu.use_count() == 1);
        CHECK(gpu->device_bytes.load() == 0);
        CHECK(gpu->host_bytes.load() == 0);
        gpu.reset();
        if (!messages) return;
        CHECK(messages->count() == 0);
        for (const std::string& text : messages->texts) FAIL_CHECK(text);
    }
};

}  // namespace test
#endif  // AUSPEX_NO_VULKAN

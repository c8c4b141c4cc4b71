// The Vulkan pipelines: variants, specialization constants, the cache, and the self-test.
#include "../src/auspex.hpp"
#ifndef AUSPEX_NO_VULKAN
#include "../src/machine/vulkan/vulkan.h"
#include "support.h"
#include "vulkan_model.h"
#include "vulkan_support.h"

#include <map>
#include <mutex>
#include <set>
#include <utility>

using namespace auspex;
using namespace auspex::detail;
using test::Vulkan;

namespace {

VkResult VKAPI_CALL refuse_pipelines(VkDevice, VkPipelineCache, uint32_t, const VkComputePipelineCreateInfo*,
                                     const VkAllocationCallbacks*, VkPipeline*) {
    return VK_ERROR_UNKNOWN;
}

PFN_vkGetPipelineCacheData real_cache_data = nullptr;
int n_incomplete = 0;
/// As if another thread had added a pipeline since the size was asked for, n_incomplete times.
VkResult VKAPI_CALL growing_cache_data(VkDevice device, VkPipelineCache cache, size_t* n, void* to) {
    if (!to || n_incomplete == 0) return real_cache_data(device, cache, n, to);
    --n_incomplete;
    *n = 0;
    return VK_INCOMPLETE;
}

/// What the driver compiles, by the shader's name; it may refuse one.
struct Compiler {
    PFN_vkCreateShaderModule real_module = nullptr;
    PFN_vkCreateComputePipelines real_pipelines = nullptr;
    std::mutex lock;  ///< of all below
    std::map<VkShaderModule, const vk::Shaders::Module*> modules;
    std::map<std::string, std::set<VkPipelineShaderStageCreateFlags>> flags;  ///< of the stages
    std::string refused;                                                      ///< a shader, for want of memory
    int n_left = 0;                                                           ///< so often
} compiler;

VkResult VKAPI_CALL named_module(VkDevice device, const VkShaderModuleCreateInfo* info, const VkAllocationCallbacks* a,
                                 VkShaderModule* out) {
    const VkResult r = compiler.real_module(device, info, a, out);
    std::lock_guard<std::mutex> hold(compiler.lock);
    for (const vk::Shaders::Module& m : test::shaders()->modules())
        if (r == VK_SUCCESS && m.words.size() * 4 == info->codeSize &&
            std::equal(m.words.begin(), m.words.end(), info->pCode))
            compiler.modules[*out] = &m;
    return r;
}
VkResult VKAPI_CALL named_pipelines(VkDevice device, VkPipelineCache cache, uint32_t n,
                                    const VkComputePipelineCreateInfo* info, const VkAllocationCallbacks* a,
                                    VkPipeline* out) {
    {
        std::lock_guard<std::mutex> hold(compiler.lock);
        const std::string name(compiler.modules.at(info->stage.module)->name);
        compiler.flags[name].insert(info->stage.flags);
        if (name == compiler.refused && compiler.n_left-- > 0) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    }
    return compiler.real_pipelines(device, cache, n, info, a, out);
}

/// Opens a device whose driver refuses a shader n times.
Result<vk::OpenDeviceRef> open_refusing(const std::string& shader, int n) {
    compiler.modules.clear();
    compiler.flags.clear();
    compiler.refused = shader;
    compiler.n_left = n;
    vk::OpenDetail detail;
    detail.edit_device = [](VolkDeviceTable* t) {
        compiler.real_module = std::exchange(t->vkCreateShaderModule, named_module);
        compiler.real_pipelines = std::exchange(t->vkCreateComputePipelines, named_pipelines);
    };
    DeviceOptions options;
    options.kind = Kind::vulkan;
    return vk::open_device(options, detail);
}

/// Whether a module declares one of some capabilities.
bool declares(Span<const uint32_t> words, std::initializer_list<uint32_t> capabilities) {
    constexpr uint32_t kCapability = 17;
    for (size_t i = 5; i < words.size(); i += words[i] >> 16)
        for (const uint32_t c : capabilities)
            if ((words[i] & 0xffffu) == kCapability && words[i + 1] == c) return true;
    return false;
}

}  // namespace

// --------------------------------------------------------------------------------------- pipelines

static constexpr vk::SpecId kRowCount = vk::spec::selftest::kNRow;

TEST_CASE("a pipeline is made once, and the next variant is tried when the driver rejects one") {
    auto v = Vulkan::open();
    if (!v) return;
    vk::Pipelines& p = *v->pipelines;
    const auto a = p.request(vk::PipelineKey{"selftest_rows", 64, {{kRowCount, 2}}, 0, false}),
               b = p.request(vk::PipelineKey{"selftest_rows", 64, {{kRowCount, 2}}, 0, false});
    CHECK(a == b);
    CHECK(p.wait(a).ok());
    const auto c = p.request({vk::PipelineKey{"no_such_shader", 64, {}, 0, false},
                              vk::PipelineKey{"selftest_rows", 1u << 20, {{kRowCount, 1}}, 0, false},
                              vk::PipelineKey{"selftest_rows", 64, {{kRowCount, 1}}, 3, false},
                              vk::PipelineKey{"selftest_rows", 128, {{kRowCount, 4}}, 0, false}});
    CHECK(p.wait(c).ok());
    CHECK(p.chosen(c) == 3);
    CHECK(p.get(c) != VK_NULL_HANDLE);
    CHECK(p.report().find("no_such_shader") != std::string::npos);
    const auto d = p.request(vk::PipelineKey{"no_such_shader", 64, {}, 0, false});
    CHECK(p.wait(d).code == Code::bad_argument);
    CHECK(p.wait_all().code == Code::bad_argument);
    CHECK(p.wait(99).code == Code::bad_argument);
    if (v->gpu->traits.subgroup_size_control) {
        const auto e = p.request(vk::PipelineKey{"selftest_shuffle", 64, {}, v->gpu->traits.subgroup_min, true});
        const Status s = p.wait(e);
        CHECK_MESSAGE(s.ok(), s.message());
    }
    v->finish();
}

TEST_CASE("a pipeline key with a foreign, missing or doubled specialization constant is rejected by name") {
    auto v = Vulkan::open();
    if (!v) return;
    vk::Pipelines& p = *v->pipelines;
    auto refused = [&](const vk::PipelineKey& key, std::initializer_list<const char*> words) {
        const Status s = p.wait(p.request(key));
        CHECK(s.code == Code::bad_argument);
        for (const char* w : words) CHECK_MESSAGE(s.text.find(w) != std::string::npos, s.text);
    };
    namespace s = vk::spec;
    refused({"selftest_rows", 64, {}, 0, false}, {"'selftest_rows'", "gives 0", "kNRow"});
    refused({"selftest_rows", 64, {{kRowCount, 1}, {kRowCount, 2}}, 0, false}, {"'selftest_rows'", "twice"});
    refused({"selftest_rows", 64, {{s::matvec::kXRows, 1}}, 0, false}, {"'selftest_rows'", "takes: kNRow"});
    refused({"selftest_rows", 64, {{kRowCount, 1}, {s::selftest::kUnitN, 1}}, 0, false}, {"constant 2", "kNRow"});
    refused({"attend_any", 64, {{s::attend_any::kDHead, 64}, {s::attend_any::kKType, 0}}, 0, false},
            {"'attend_any'", "gives 2", "kDHead kKType kVType"});
    v->finish();
}

TEST_CASE("a dispatch is checked against the contract of its shader") {
    for (const vk::ShaderContract& c : vk::kShaderContracts) {
        CHECK(vk::check_dispatch(c, c.n_binding, c.push_bytes).ok());
        CHECK(vk::check_dispatch(c, c.n_binding + 1, c.push_bytes).ok());  // an alternative may read it
        CHECK(vk::check_dispatch(c, c.n_binding - 1, c.push_bytes).text.find(c.bindings) != std::string::npos);
        if (c.push_bytes > 0) CHECK(vk::check_dispatch(c, c.n_binding, c.push_bytes - 4).code == Code::bad_argument);
        CHECK(c.n_binding <= vk::kMaxBindings);
        CHECK(c.push_bytes <= vk::kPushBytes);
    }
}

TEST_CASE("a driver that fails to make a pipeline is an error") {
    vk::OpenDetail detail;
    detail.edit_device = [](VolkDeviceTable* d) { d->vkCreateComputePipelines = refuse_pipelines; };
    auto v = Vulkan::open(detail);
    if (!v) return;
    const auto id = v->pipelines->request(vk::PipelineKey{"selftest_rows", 64, {{kRowCount, 1}}, 0, false});
    const Status s = v->pipelines->wait(id);
    CHECK(s.code == Code::unsupported);
    CHECK(s.text.find("VK_ERROR_UNKNOWN") != std::string::npos);
    auto tested = vk::run_selftest(v->gpu, *v->pipelines);
    REQUIRE(tested.ok());
    CHECK(!tested.value().passed("half_subnormals"));
    CHECK(tested.value().report().find("VK_ERROR_UNKNOWN") != std::string::npos);
    v->finish();
}

TEST_CASE("a pipeline that could not be made ahead is made when it is needed") {
    static PFN_vkCreateComputePipelines real;
    vk::OpenDetail detail;
    detail.edit_device = [](VolkDeviceTable* d) { real = d->vkCreateComputePipelines; };
    auto v = Vulkan::open(detail);
    if (!v) return;
    vk::Pipelines& p = *v->pipelines;
    const vk::PipelineKey key{"selftest_rows", 64, {{kRowCount, 2}}, 0, false};
    v->gpu->vk.vkCreateComputePipelines = refuse_pipelines;
    p.request_ahead(key);
    CHECK_FALSE(p.wait(0).ok());
    v->gpu->vk.vkCreateComputePipelines = real;
    const auto id = p.request(key);
    CHECK(p.size() == 1);
    CHECK(p.wait(id).ok());
    v->gpu->vk.vkCreateComputePipelines = refuse_pipelines;
    const vk::PipelineKey other{"selftest_rows", 64, {{kRowCount, 3}}, 0, false};
    CHECK_FALSE(p.wait(p.request(other)).ok());
    v->gpu->vk.vkCreateComputePipelines = real;
    CHECK_FALSE(p.wait(p.request(other)).ok());  // an error of the driver's stays
    v->finish();
}

TEST_CASE("a kernel that needs missing capabilities is rejected before the driver sees it") {
    vk::OpenDetail detail;
    detail.edit_traits = [](vk::DeviceTraits* t) {
        t->dot = false;
        t->subgroup_ops = VK_SUBGROUP_FEATURE_BASIC_BIT;
    };
    auto v = Vulkan::open(detail);
    if (!v) return;
    for (const char* name : {"selftest_dot", "selftest_shuffle"}) {
        const Status s = v->pipelines->wait(v->pipelines->request(vk::PipelineKey{name, 64, {}, 0, false}));
        CHECK(s.code == Code::unsupported);
        CHECK(s.text.find("lacks") != std::string::npos);
    }
    auto tested = vk::run_selftest(v->gpu, *v->pipelines);
    REQUIRE(tested.ok());
    CHECK(tested.value().passed("fma_rows"));
    CHECK(tested.value().report().find("integer_dot skipped") != std::string::npos);
    v->finish();
}

TEST_CASE("the pipeline cache is accepted by the device that wrote it only") {
    auto v = Vulkan::open();
    if (!v) return;
    v->make({"selftest_rows", 64, {{kRowCount, 2}}, 0, false});
    const std::vector<std::byte> blob = v->pipelines->cache_blob();
    if (blob.size() < 80 + 32) {
        v->finish();
        return test::skip("this driver's pipeline cache has " + std::to_string(blob.size()) +
                          " bytes with ours of 80, too few for the header that Vulkan requires");
    }
    const vk::DeviceTraits& t = v->gpu->traits;
    const uint64_t hash = test::shaders()->hash();
    std::string why;
    CHECK(vk::unwrap_cache(t, hash, blob, &why).size() == blob.size() - 80);
    CHECK(why.empty());
    CHECK(vk::unwrap_cache(t, hash + 1, blob, &why).empty());
    CHECK(why.find("other shaders") != std::string::npos);
    vk::DeviceTraits other = t;
    other.device_id += 1;
    CHECK(vk::unwrap_cache(other, hash, blob, &why).empty());
    CHECK(why.find("another device") != std::string::npos);
    other = t;
    other.driver_version += 1;
    CHECK(vk::unwrap_cache(other, hash, blob, &why).empty());
    // A payload that is not this driver's, behind a header that is right.
    std::vector<std::byte> payload(blob.begin() + 80, blob.end());
    payload[8] ^= std::byte(1);
    CHECK(vk::unwrap_cache(t, hash, vk::wrap_cache(t, hash, payload), &why).empty());
    CHECK(why.find("driver's header") != std::string::npos);
    CHECK(vk::unwrap_cache(t, hash, vk::wrap_cache(t, hash, {}), &why).empty());
    for (size_t n = 0; n < blob.size(); ++n)
        CHECK(vk::unwrap_cache(t, hash, Span<const std::byte>(blob.data(), n), &why).empty());
    for (size_t i = 0; i < blob.size(); ++i) {
        std::vector<std::byte> bad = blob;
        bad[i] ^= std::byte(0x10);
        CHECK(vk::unwrap_cache(t, hash, bad, &why).empty());
    }
    {
        auto good = vk::Pipelines::create(v->gpu, test::shaders(), blob);
        REQUIRE(good.ok());
        CHECK(good.value()->report().find("read, ") != std::string::npos);
        auto ignored = vk::Pipelines::create(v->gpu, test::shaders(), Span<const std::byte>(blob.data() + 1, 90));
        REQUIRE(ignored.ok());
        CHECK(ignored.value()->report().find("ignored: ") != std::string::npos);
    }
    v->finish();
}

TEST_CASE("the pipeline cache is read again where pipelines were added while it was read") {
    vk::OpenDetail detail;
    detail.edit_device = [](VolkDeviceTable* d) {
        real_cache_data = std::exchange(d->vkGetPipelineCacheData, growing_cache_data);
    };
    n_incomplete = 0;
    auto v = Vulkan::open(detail);
    if (!v) return;
    v->make({"selftest_rows", 64, {{kRowCount, 2}}, 0, false});
    const std::vector<std::byte> blob = v->pipelines->cache_blob();
    REQUIRE(!blob.empty());
    n_incomplete = 3;
    CHECK(v->pipelines->cache_blob() == blob);
    CHECK(n_incomplete == 0);
    n_incomplete = 1 << 30;  // one that never ends
    CHECK(v->pipelines->cache_blob().empty());
    n_incomplete = 0;
    v->finish();
}

TEST_CASE("the self-test passes on this device and reports its results") {
    auto v = Vulkan::open();
    if (!v) return;
    auto tested = vk::run_selftest(v->gpu, *v->pipelines);
    REQUIRE_MESSAGE(tested.ok(), tested.status().message());
    const vk::SelfTest& t = tested.value();
    MESSAGE(v->gpu->report() << t.report() << v->pipelines->report());
    REQUIRE(t.checks.size() >= 4);
    CHECK(t.passed("half_subnormals"));
    CHECK(t.passed("fma_rows"));
    const vk::DeviceTraits& traits = v->gpu->traits;
    CHECK(t.passed("shuffle_xor") == (traits.shuffle() && traits.subgroup_size >= 8));  // eight neighbours shuffle
    CHECK(t.passed("integer_dot") == v->gpu->traits.dot);
    bool f16_product = false;
    for (const vk::MatrixShape& m : v->gpu->traits.matrix_shapes)
        f16_product = f16_product || (m.a == vk::Component::f16 && m.b == vk::Component::f16 &&
                                      m.c == vk::Component::f32 && m.result == vk::Component::f32);
    CHECK(t.passed("matrix_nv") == (f16_product && v->gpu->traits.matrix_nv));
    CHECK(t.passed("matrix_khr") == (f16_product && v->gpu->traits.matrix_khr));
    v->finish();
}

TEST_CASE("the self-test multiplies in the shape and the subgroups of prompts, where the device has them") {
    vk::DeviceTraits t;
    t.matrix_khr = t.float16 = t.memory_model = t.subgroup_size_control = true;
    t.max_group_invocations = 1024;
    t.max_shared_bytes = 65536;
    t.subgroup_size = t.subgroup_max = 64;
    t.subgroup_min = 32;
    CHECK(vk::matrix_question(t, false).shader.empty());
    const auto add = [&](uint32_t n) {
        t.matrix_shapes.push_back(
            {16, n, 16, vk::Component::f16, vk::Component::f16, vk::Component::f32, vk::Component::f32, false});
    };
    const auto columns = [](const vk::PipelineKey& key) { return key.constant(vk::spec::selftest::kUnitN); };
    add(8);
    vk::PipelineKey key = vk::matrix_question(t, false);
    CHECK(columns(key) == 8);
    CHECK(key.group == 64);
    CHECK(key.subgroup_size == 0);
    add(16);
    key = vk::matrix_question(t, false);
    CHECK(key.shader == "selftest_matrix_khr");
    CHECK(columns(key) == 16);
    CHECK(key.group == 32);
    CHECK(key.subgroup_size == 32);
    CHECK(columns(vk::matrix_question(t, true)) == 8);
}

TEST_CASE("a device opens without a kernel of the self-test that it can do without and says it has no memory for") {
    if (!test::gpu_device()) return;
    const auto verdict = [](const vk::OpenDeviceRef& opened, const std::string& check) {
        for (const vk::Check& c : opened->selftest.checks)
            if (c.name == check) return c;
        return vk::Check();
    };
    constexpr int kAlways = 1000;
    for (const char* shader : {"selftest_dot", "selftest_shuffle"}) {
        const bool dot = shader == std::string("selftest_dot");
        const char* check = dot ? "integer_dot" : "shuffle_xor";
        CAPTURE(std::string(shader));
        const auto without = open_refusing(shader, kAlways), again = open_refusing(shader, 1);
        REQUIRE_MESSAGE(without.ok(), without.status().message());
        CHECK(!without.value()->selftest.passed(check));
        CHECK(!(without.value()->shuffles && !dot));
        REQUIRE_MESSAGE(again.ok(), again.status().message());  // memory was freed meanwhile
        const vk::DeviceTraits& t = again.value()->gpu->traits;
        const bool there = dot ? t.dot : t.shuffle();
        const bool fits = dot || t.subgroup_size >= 8;  // eight neighbours shuffle
        CHECK(again.value()->selftest.passed(check) == (there && fits));
        if (there)
            CHECK(verdict(without.value(), check).reason.find("VK_ERROR_OUT_OF_DEVICE_MEMORY") != std::string::npos);
    }
    for (const char* shader : {"selftest_half", "selftest_rows"}) {
        CAPTURE(std::string(shader));
        CHECK(open_refusing(shader, kAlways).status().code == Code::out_of_memory);
    }
}

TEST_CASE("the self-test of shuffles is compiled as the kernels are that shuffle") {
    if (!test::gpu_device()) return;
    const auto opened = open_refusing("", 0);
    REQUIRE_MESSAGE(opened.ok(), opened.status().message());
    if (!opened.value()->shuffles) return test::skip("needs a device with shuffles");
    {
        const test::ContextRig rig(test_vulkan_model::narrow_of(true));
        const auto model = rig.load(*vk::make_backend(opened.value()));
        const auto context = rig.context(*model, {}, 128, 32);
        const std::vector<Token> ids = test::tiny_ids(20, 4);
        rig.run(*context, ids, 0, false, 0);
        rig.run(*context, Span<const Token>(ids.data(), 1), 20, true, 1);
        REQUIRE(opened.value()->pipelines->wait_all().ok());
    }
    std::lock_guard<std::mutex> hold(compiler.lock);
    constexpr uint32_t kShuffle = 65, kMatrixNv = 5357, kMatrixKhr = 6022;  // matrices ask for their own subgroups
    int n_seen = 0;
    for (const vk::Shaders::Module& m : test::shaders()->modules()) {
        const auto made = compiler.flags.find(std::string(m.name));
        if (made == compiler.flags.end() || m.name == "selftest_shuffle") continue;
        if (!declares(m.words, {kShuffle}) || declares(m.words, {kMatrixNv, kMatrixKhr})) continue;
        CAPTURE(std::string(m.name));
        ++n_seen;
        CHECK(made->second == compiler.flags.at("selftest_shuffle"));
    }
    CHECK(n_seen > 0);
}

TEST_CASE("a device that does not sum rows as they are summed alone is refused") {
    if (!test::gpu_device()) return;
    static PFN_vkCreateShaderModule real = nullptr;
    static size_t n_byte = 0;
    n_byte = test::shaders()->find("selftest_rows")->words.size() * 4;
    vk::OpenDetail detail;
    detail.edit_device = [](VolkDeviceTable* t) {
        real = std::exchange(t->vkCreateShaderModule, [](VkDevice d, const VkShaderModuleCreateInfo* info,
                                                         const VkAllocationCallbacks* a, VkShaderModule* out) {
            std::vector<uint32_t> words(info->pCode, info->pCode + info->codeSize / 4);
            constexpr uint32_t kExtInst = 12, kFma = 50, kMix = 46;
            for (size_t at = 5; info->codeSize == n_byte && at < words.size(); at += words[at] >> 16)
                if ((words[at] & 0xffffu) == kExtInst && words[at + 4] == kFma) words[at + 4] = kMix;
            VkShaderModuleCreateInfo with = *info;
            with.pCode = words.data();
            return real(d, &with, a, out);
        });
    };
    DeviceOptions options;
    options.kind = Kind::vulkan;
    const Status s = vk::open_device(options, detail).status();
    CHECK(s.code == Code::unsupported);
    CHECK_MESSAGE(s.text.find("the self-test 'fma_rows' failed: a row gave") != std::string::npos, s.message());
}
#endif  // AUSPEX_NO_VULKAN

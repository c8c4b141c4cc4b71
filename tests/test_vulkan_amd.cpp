// tests/test_vulkan_amd: the kernels on the compiler of AMD's open driver, for cards that are not at hand.
//
// Mesa's RADV makes a device of any family without hardware (RADV_FORCE_FAMILY): it compiles, and runs nothing. So this
// sees kernels that its compiler refuses, and such whose values do not fit into registers; not what they compute.
#if defined(__linux__) && !defined(AUSPEX_NO_VULKAN)
#include "../src/machine/vulkan/first_prompt.h"
#include "../src/machine/vulkan/list_builder.h"
#include "../src/machine/vulkan/tune_gemm.h"
#include "../src/plan/arch.h"
#include "geometry.h"
#include "vulkan_support.h"

#include <filesystem>

using namespace auspex;
using namespace auspex::detail;
using namespace test;

namespace {

/// An environment variable, which has its value from before again when this ends.
class Variable {
  public:
    Variable(const char* name, const std::string& value) : name_(name) {
        if (const char* before = std::getenv(name)) before_ = before, was_set_ = true;
        ::setenv(name, value.c_str(), 1);
    }
    ~Variable() { was_set_ ? ::setenv(name_, before_.c_str(), 1) : ::unsetenv(name_); }
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;

  private:
    const char* name_;
    std::string before_;
    bool was_set_ = false;
};

/// The file that names the driver, or empty.
std::string manifest() {
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator("/usr/share/vulkan/icd.d", none))
        if (entry.path().filename().string().rfind("radeon_icd", 0) == 0) return entry.path().string();
    return {};
}

/// The driver's functions behind those that replace them, and what the compiler said. Pipelines are made on one thread.
struct Compiler {
    PFN_vkCreateDevice create_device = nullptr;
    PFN_vkCreateComputePipelines create = nullptr;
    PFN_vkGetPipelineExecutableStatisticsKHR statistics = nullptr;
    uint32_t n_pipeline = 0;
    std::vector<std::string> bad;  ///< statistics of pipelines that keep values in memory
};
Compiler compiler;

VkResult VKAPI_CALL create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo* info,
                                  const VkAllocationCallbacks* memory, VkDevice* device) {
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR feature{};
    feature.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR;
    feature.pipelineExecutableInfo = VK_TRUE;
    feature.pNext = const_cast<void*>(info->pNext);
    std::vector<const char*> extensions(info->ppEnabledExtensionNames,
                                        info->ppEnabledExtensionNames + info->enabledExtensionCount);
    extensions.push_back(VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME);
    VkDeviceCreateInfo more = *info;
    more.pNext = &feature;
    more.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
    more.ppEnabledExtensionNames = extensions.data();
    return compiler.create_device(physical, &more, memory, device);
}

VkResult VKAPI_CALL create_pipelines(VkDevice device, VkPipelineCache cache, uint32_t n,
                                     const VkComputePipelineCreateInfo* info, const VkAllocationCallbacks* memory,
                                     VkPipeline* out) {
    REQUIRE(n == 1);
    VkComputePipelineCreateInfo more = *info;
    more.flags |= VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR;
    const VkResult r = compiler.create(device, cache, 1, &more, memory, out);
    if (r != VK_SUCCESS) return r;
    ++compiler.n_pipeline;
    VkPipelineExecutableInfoKHR which{};
    which.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR;
    which.pipeline = *out;
    uint32_t n_value = 0;
    REQUIRE(compiler.statistics(device, &which, &n_value, nullptr) == VK_SUCCESS);
    VkPipelineExecutableStatisticKHR value{};
    value.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
    std::vector<VkPipelineExecutableStatisticKHR> values(n_value, value);
    REQUIRE(compiler.statistics(device, &which, &n_value, values.data()) == VK_SUCCESS);
    uint32_t n_seen = 0;
    for (const VkPipelineExecutableStatisticKHR& v : values) {
        const std::string name = v.name;
        if (name != "Spilled VGPRs" && name != "Scratch size") continue;  // spilled scalars go to vector registers
        ++n_seen;
        if (v.value.u64 != 0)
            compiler.bad.push_back(say("pipeline ", compiler.n_pipeline, ": ", name, " ", v.value.u64));
    }
    CHECK(n_seen == 2);
    return r;
}

/// A device without hardware has no memory either.
void VKAPI_CALL memory_of(VkPhysicalDevice, VkPhysicalDeviceMemoryProperties2* out) {
    VkPhysicalDeviceMemoryProperties& m = out->memoryProperties;
    m = {};
    m.memoryHeapCount = m.memoryTypeCount = 2;
    m.memoryHeaps[0] = {uint64_t{16} << 30, VK_MEMORY_HEAP_DEVICE_LOCAL_BIT};
    m.memoryHeaps[1] = {uint64_t{16} << 30, 0};
    m.memoryTypes[0] = {VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0};
    m.memoryTypes[1] = {VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT, 1};
}

/// The device of a family, as open_device() makes it where the self-tests pass. They cannot run here. Null where the
/// driver has no device without hardware, as from Mesa 26 on.
vk::OpenDeviceRef open_family(const std::string& family) {
    const Variable chosen("RADV_FORCE_FAMILY", family), no_cache("MESA_SHADER_CACHE_DISABLE", "true");
    compiler = {};
    DeviceOptions options;
    options.kind = Kind::vulkan;
    vk::OpenDetail detail;
    detail.edit_instance = [](vk::InstanceTable* t) {
        if (t->vkGetPhysicalDeviceMemoryProperties2) t->vkGetPhysicalDeviceMemoryProperties2 = memory_of;
        if (!t->vkCreateDevice || t->vkCreateDevice == create_device) return;
        compiler.create_device = t->vkCreateDevice;
        t->vkCreateDevice = create_device;
    };
    // As Mesa 25 reports it.
    detail.edit_traits = [](vk::DeviceTraits* t) { t->max_group_count[0] = UINT32_MAX; };
    detail.edit_device = [](VolkDeviceTable* t) {
        compiler.create = t->vkCreateComputePipelines;
        t->vkCreateComputePipelines = create_pipelines;
        t->vkGetBufferMemoryRequirements = [](VkDevice, VkBuffer, VkMemoryRequirements* out) {
            *out = {65536, 256, 3};  // the driver allows no type
        };
        t->vkDeviceWaitIdle = [](VkDevice) { return VK_SUCCESS; };  // nothing was submitted; RADV crashes here
    };
    auto device = std::make_shared<vk::OpenDevice>();
    Status s = vk::open_gpu(options, detail).get(device->gpu);
    if (s.code == Code::no_device) return nullptr;
    REQUIRE_MESSAGE(s.ok(), s.message());
    compiler.statistics = reinterpret_cast<PFN_vkGetPipelineExecutableStatisticsKHR>(
        device->gpu->vki.vkGetDeviceProcAddr(device->gpu->device, "vkGetPipelineExecutableStatisticsKHR"));
    REQUIRE(bool(compiler.statistics));
    REQUIRE(vk::Pipelines::create(device->gpu, shaders(), {}, vk::Pipelines::kNoThread).get(device->pipelines).ok());
    device->shuffles = device->gpu->traits.subgroup_size >= 8;
    device->gemm_matrix = vk::gemm_matrix_fits(device->gpu->traits);
    device->attend = vk::choose_attend_kernel(device->gpu->traits, device->gemm_matrix, false);
    return device;
}

const Geometry& published(const std::string& name) {
    for (const Geometry& g : kPublished)
        if (g.name == name) return g;
    FAIL("no published size " << name);
    return kPublished[0];
}

/// Requests what prompts and steps of up to kMaxTentative rows need, with drafts.
void request_all(vk::OpenDevice& device, const vk::VulkanModel& model, const ContextOptions& options) {
    REQUIRE(vk::request_pipelines(model, options).ok());
    vk::Buffers buffers;
    REQUIRE(vk::Buffers::outline(model, options).get(buffers).ok());
    for (const Tape* tape : model.plan->tapes())
        for (uint32_t n_row = 1; n_row <= kMaxTentative; ++n_row) {
            vk::Pass pass;
            pass.tape = tape;
            pass.n_row = n_row;
            pass.head = pass.largest = true;
            vk::DispatchList list;
            Status s = vk::ListBuilder(model, buffers)
                           .build([&](vk::ListBuilder& b) {
                               b.tape(pass);
                               b.sample(*tape, n_row, vk::SampleMode::of(n_row & 7), n_row % 8 == 0);
                           })
                           .get(list);
            REQUIRE_MESSAGE(s.ok(), s.message());
            for (const vk::PipelineKey& key : list.keys()) (void)device.pipelines->request(key);
        }
}

/// The version of the driver; empty where open_family() gives no device.
std::string compile(const std::string& family, const std::string& size, Type kv) {
    CAPTURE(family);
    CAPTURE(size);
    const vk::OpenDeviceRef device = open_family(family);
    if (!device) return {};
    CHECK(device->gpu->traits.name.find("Null hardware") != std::string::npos);
    const Gguf table = table_of(published(size));
    Plan plan;
    REQUIRE(make_plan(table, {}).get(plan).ok());
    std::shared_ptr<vk::VulkanModel> model;
    Status s = vk::VulkanModel::outline(device, plan).get(model);
    REQUIRE_MESSAGE(s.ok(), s.message());
    ContextOptions options;
    options.n_context = 4096;
    options.n_ubatch = vk::make_backend(device)->best_ubatch();
    options.mtp = true;
    KvOptions of_layer;
    of_layer.k = of_layer.v = kv;
    options.kv.assign(plan.slots.size(), of_layer);
    request_all(*device, *model, options);
    s = device->pipelines->wait_all();
    CHECK_MESSAGE(s.ok(), s.message());
    CHECK(compiler.n_pipeline >= 70);
    for (const std::string& text : compiler.bad) FAIL_CHECK(text);
    MESSAGE(device->gpu->traits.name << ", " << size << ": " << compiler.n_pipeline << " pipelines");
    return device->gpu->traits.driver_info;
}

}  // namespace

TEST_CASE("AMD's open driver compiles every kernel of a model and keeps all values in registers") {
    const std::string file = manifest();
    if (file.empty()) return skip("Mesa's RADV is not installed (Debian: mesa-vulkan-drivers)");
    const Variable icd("VK_ICD_FILENAMES", file), driver("VK_DRIVER_FILES", file);
    const std::string version = compile("POLARIS10", "9B", Type::f16);
    if (version.empty()) return skip("this RADV has no device without hardware");
    // A driver ends the process where it does not know a name, and that of RDNA 3 has changed.
    const std::string newest = version.find("Mesa 22.") != std::string::npos ? "GFX1100" : "NAVI31";
    compile(newest, "35B-A3B", Type::q4_0);
    if (!deep()) return;
    for (const char* family :
         {"TAHITI", "HAWAII", "TONGA", "VEGA10", "RAVEN", "NAVI10", "VANGOGH", "NAVI21", newest.c_str()}) {
        compile(family, "0.8B", Type::q8_0);
        compile(family, "9B", Type::f16);
        compile(family, "35B-A3B", Type::q4_0);
    }
}
#endif

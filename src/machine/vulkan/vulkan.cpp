#include "vulkan.h"
#ifndef AUSPEX_NO_VULKAN
#include "buffers.h"
#include "first_prompt.h"
#include "loaded_model.h"
#include "tune.h"
#include "tune_gemm.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace vulkan_impl {

constexpr uint64_t kSmallBytes = 64u << 20;
constexpr uint32_t kMaxSubmitMs = 50;  ///< unless DeviceOptions::max_submit_ms says otherwise

/// Asks how the matrix units lay out their elements. A kernel that cannot be made is an answer, too.
/// right_fits  set where attend_tile can use them as well.
Status ask_matrix(OpenDevice& c, bool* right_fits) {
    const DeviceTraits& traits = c.gpu->traits;
    std::string* verdict = &c.matrix_verdict;
    c.matrix = false;
    if (!matrix_worth_asking(traits)) {
        *verdict = "no: the device has no 16x8x16 half matrices with 32 invocations";
        return {};
    }
    PipelineKey key;
    key.shader = "matrix_layout";
    key.group = 32;
    key.constants = {
        {spec::matrix_layout::kUnitM, 16}, {spec::matrix_layout::kUnitN, 8}, {spec::matrix_layout::kUnitK, 16}};
    key.subgroup_size = traits.subgroup_size_control ? 32 : 0;
    key.full_subgroups = traits.full_subgroups;
    const Pipelines::Id id = c.pipelines->request(key);
    if (Status s = c.pipelines->wait_twice(id); !s.ok()) {
        if (s.code == Code::device_lost) return s;
        *verdict = "no: " + s.text;
        return {};
    }
    MemoryPlan plan(traits);
    const auto halves = plan.add(Arena::scratch, 512), floats = plan.add(Arena::scratch, 512),
               seen = plan.add(Arena::scratch, 32 * 16 * 4);
    Memory memory;
    AUSPEX_TRY(Memory::take(c.gpu, plan).get(memory));
    Transfer transfer;
    AUSPEX_TRY(Transfer::create(c.gpu, 4096).get(transfer));
    uint16_t h[256];
    float f[128], s[32 * 16];
    for (uint32_t i = 0; i < 256; ++i) h[i] = f32_to_f16(static_cast<float>(i));
    for (uint32_t i = 0; i < 128; ++i) f[i] = static_cast<float>(i);
    AUSPEX_TRY(transfer.write(memory[halves], h, sizeof h));
    AUSPEX_TRY(transfer.write(memory[floats], f, sizeof f));
    AUSPEX_TRY(transfer.finish());
    Commands commands;
    AUSPEX_TRY(Commands::create(c.gpu).get(commands));
    AUSPEX_TRY(commands.begin(true));
    commands.bind(c.pipelines->get(id), {memory[halves], memory[floats], memory[seen]});
    commands.dispatch(1);
    AUSPEX_TRY(commands.end());
    AUSPEX_TRY(commands.run());
    AUSPEX_TRY(transfer.read(memory[seen], s, sizeof s));
    c.matrix = matrix_layout_fits(s);
    *right_fits = c.matrix && matrix_right_fits(s);
    *verdict = c.matrix ? "yes" : "no: the elements are not laid out as the kernels expect";
    return {};
}

/// What no kernel here can do without; the rest has variants.
Status refuse(const OpenDevice& c) {
    const DeviceTraits& t = c.gpu->traits;
    auto no = [&](const std::string& what) {
        return fail(Code::unsupported, t.name, " cannot run these kernels: ", what, "; use the CPU");
    };
    if (const uint32_t n = std::min(t.max_group_invocations, t.max_group_size[0]); n < 256)
        return no(say("workgroups of at most ", n, ", expected 256"));
    if (t.max_shared_bytes < 16384) return no(say(t.max_shared_bytes, " bytes of shared memory, expected 16384"));
    for (const Check& check : c.selftest.checks)
        if ((check.name == "half_subnormals" || check.name == "fma_rows") && check.verdict == Check::Verdict::failed)
            return no(say("the self-test '", check.name, "' failed: ", check.reason));
    return {};
}

class VulkanBackend : public Backend {
  public:
    OpenDeviceRef device;

    Kind kind() const override { return Kind::vulkan; }
    std::string name() const override { return device->gpu->traits.name; }
    std::string report() const override {
        return say("kind     vulkan\n", device->gpu->report(), "self-test (",
                   static_cast<uint64_t>(device->selftest.seconds * 1000 + 0.5), " ms)\n", device->selftest.report(),
                   "kernels with shuffles: ", device->shuffles ? "yes" : "no",
                   "\nmatrix units for few rows: ", device->matrix_verdict,
                   "\nmatrix units for many rows: ", device->gemm_matrix ? "yes" : "no",
                   "\nmatrix units for the attention of many rows: ", attend(), "\n", device->pipelines->report());
    }
    std::string driver() const override {
        return say(device->gpu->traits.driver_name, " ", device->gpu->traits.driver_version);
    }
    std::vector<std::byte> pipeline_cache() const override { return device->pipelines->cache_blob(); }
    const char* attend() const {
        return device->attend == AttendKernel::tile     ? "yes"
               : device->attend == AttendKernel::shared ? "yes, through shared memory"
                                                        : "no";
    }
    uint64_t budget_bytes() const override { return device->gpu->budget_bytes(); }
    uint32_t best_ubatch() const override { return vk::best_ubatch(device->gpu->traits.type, device->attend); }
    Status plan_weights(const Plan& plan, const Weights&, const LoadedModel*,
                        std::vector<MemoryItem>* items) const override {
        return VulkanModel::plan_weights(device, plan, items);
    }
    Status plan_context(const Plan& plan, const ContextOptions& options,
                        std::vector<MemoryItem>* items) const override {
        std::shared_ptr<VulkanModel> model;
        AUSPEX_TRY(VulkanModel::bare(device, plan).get(model));
        return Buffers::plan(*model, options, items);
    }
    Status plan_draft_head(const Plan& plan, uint32_t n_id, std::vector<MemoryItem>* items) const override {
        SlotId table = kNoSlot;
        AUSPEX_TRY(draft_table(plan).get(table));
        Tiling tiles;
        detail::vk::MemoryPlan memory(device->gpu->traits);
        AUSPEX_TRY(DraftHead::plan(device->gpu->traits, plan.slot(table), n_id, &tiles, &memory));
        items->push_back({"draft-only head", -1, memory.device_bytes(), MemoryPlace::device});
        return {};
    }
    Result<std::shared_ptr<LoadedModel>> load(const Plan& plan, const Weights& weights,
                                              const Progress& progress) override {
        compile_ahead(plan);
        return VulkanModel::load(device, plan, weights, progress);
    }
    /// Starts to compile what a context with the usual options needs. Not on a software device, whose compiler would
    /// take the upload's cores, nor with a job system, where the calling thread compiles.
    void compile_ahead(const Plan& plan) const {
        if (device->jobs || device->gpu->traits.type == VK_PHYSICAL_DEVICE_TYPE_CPU) return;
        ContextOptions options;
        options.n_ubatch = best_ubatch();
        options.n_context = 2 * options.n_ubatch;
        options.mtp = false;
        std::shared_ptr<VulkanModel> model;
        if (VulkanModel::outline(device, plan).get(model).ok()) (void)request_pipelines(*model, options);
    }
};

/// Opens the best device that `choice` does not refuse.
Result<OpenDeviceRef> open_best(const DeviceOptions& options, const OpenDetail& detail, Choice* choice) {
    auto device = std::make_shared<OpenDevice>();
    OpenDevice& c = *device;
    c.allocator = options.allocator;
    c.log = options.log;
    if (options.jobs.run) AUSPEX_TRY(Pool::open(static_cast<uint32_t>(options.n_thread), options.jobs).get(c.jobs));
    c.max_submit_us = 1000.0 * (options.max_submit_ms != 0 ? options.max_submit_ms : kMaxSubmitMs);
    AUSPEX_TRY(open_gpu(options, detail, choice).get(c.gpu));
    std::shared_ptr<const Shaders> shaders;
    AUSPEX_TRY(Shaders::open().get(shaders));
    AUSPEX_TRY(Pipelines::create(c.gpu, shaders, options.pipeline_cache, options.jobs.run ? Pipelines::kNoThread : 0)
                   .get(c.pipelines));
    AUSPEX_TRY(run_selftest(c.gpu, *c.pipelines).get(c.selftest));
    c.shuffles = c.gpu->traits.subgroup_size >= 8 && c.selftest.passed("shuffle_xor");
    bool right_fits = false;
    AUSPEX_TRY(ask_matrix(c, &right_fits));
    c.gemm_matrix = gemm_matrix_fits(c.gpu->traits) && c.selftest.passed("matrix_khr");
    c.attend = choose_attend_kernel(c.gpu->traits, c.gemm_matrix && c.shuffles, right_fits);
    c.small_bytes = c.matrix || c.gemm_matrix ? kSmallBytes : 0;
    AUSPEX_TRY(refuse(c));
    return device;
}

}  // namespace vulkan_impl

Result<OpenDeviceRef> open_device(const DeviceOptions& options, const OpenDetail& detail) {
    Choice choice;
    Status first;
    std::string all;
    for (;;) {
        choice.more = false;
        OpenDeviceRef device;
        Status s = vulkan_impl::open_best(options, detail, &choice).get(device);
        if (s.ok()) return device;
        all += say(" ", choice.name, ": ", s.text);
        if (!choice.more) return first.ok() ? s : fail(first.code, "none of the Vulkan devices can be opened.", all);
        if (first.ok()) first = s;
        choice.refused.resize(std::max(choice.refused.size(), static_cast<size_t>(choice.index) + 1));
        choice.refused[static_cast<size_t>(choice.index)] = std::move(s.text);
    }
}

std::shared_ptr<Backend> make_backend(OpenDeviceRef device) {
    auto backend = std::make_shared<vulkan_impl::VulkanBackend>();
    backend->device = std::move(device);
    return backend;
}

}  // namespace vk

Result<std::shared_ptr<Backend>> open_vulkan(const DeviceOptions& options, const vk::OpenDetail& detail) {
    vk::OpenDeviceRef device;
    AUSPEX_TRY(vk::open_device(options, detail).get(device));
    return vk::make_backend(std::move(device));
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
#endif  // AUSPEX_NO_VULKAN

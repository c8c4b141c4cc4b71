// machine/vulkan/shader: makes pipelines from the embedded SPIR-V.
//
// What    Shaders unpacks the modules of spirv.inc. Pipelines builds pipelines on worker threads and keeps the driver's
//         pipeline cache, to which auspex adds a header: a cache that is damaged, or comes from another device, driver
//         or set of shaders, is ignored.
// Owns    unpacked modules, pipelines, the VkPipelineCache.
// Thread  Shaders is immutable; Pipelines may be used from any thread.
// Tests   tests/test_vulkan_device.cpp, tests/test_inflate.cpp, tests/test_make_shaders.py.
//
// Conventions of every kernel:
//   layout(local_size_x_id = 0) in;              the group size is specialization constant 0
//   layout(constant_id = 1) const uint NAME;     named spec::SHADER::kName in PipelineKey::constants
//   layout(set = 0, binding = 0..11)             storage buffers, readonly / writeonly where true
//   layout(push_constant)                        one struct of shaders/*_args.h, at most kPushBytes
// shader_contract.h is generated from the modules and lists what each declares. check_key() and check_dispatch()
// compare keys and dispatches with it, static_asserts the structs.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "../thread.h"
#include "device.h"
#include "shader_contract.h"

#include <condition_variable>
#include <deque>
#include <unordered_map>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// How a kernel gets its buffers. `both` works for any kernel; the others write only descriptors or only addresses.
enum class BufferAccess : uint8_t { both, bindings, addresses };

/// The embedded SPIR-V modules, unpacked once.
class Shaders {
  public:
    struct Module {
        std::string_view name;
        Span<const uint32_t> words;
        const ShaderContract* contract = nullptr;  ///< null only for modules of a test
    };
    /// cost      about 5 ms per MiB. errors: bad_file: the embedded bytes are damaged.
    static Result<std::shared_ptr<const Shaders>> open();
    /// From other bytes, in the zlib format of tools/make_shaders.py; for tests.
    static Result<std::shared_ptr<const Shaders>> open(Span<const std::byte> packed, uint64_t raw_bytes);
    /// Null if no module has this name.
    const Module* find(std::string_view name) const;
    const std::vector<Module>& modules() const { return modules_; }
    /// A hash of all modules; part of the pipeline cache's header.
    uint64_t hash() const { return hash_; }

  private:
    std::vector<uint32_t> raw_;
    std::vector<Module> modules_;
    uint64_t hash_ = 0;
};

/// The value of a specialization constant, named by spec::SHADER::kNAME of shader_contract.h.
struct SpecValue {
    SpecId id;
    uint32_t value;
    bool operator==(const SpecValue& o) const { return id == o.id && value == o.value; }
};

/// Everything that a pipeline is built from.
struct PipelineKey {
    std::string shader;                ///< module name: file stem or variant name
    uint32_t group = 64;               ///< invocations along x: specialization constant 0
    std::vector<SpecValue> constants;  ///< one for each that the module declares, in any order
    uint32_t subgroup_size = 0;        ///< required size; 0: the driver chooses
    bool full_subgroups = false;       ///< require full subgroups where the device supports it
    /// The value of a constant, 0 if `constants` lacks it.
    uint32_t constant(SpecId id) const {
        for (const SpecValue& c : constants)
            if (c.id == id) return c.value;
        return 0;
    }
    bool operator==(const PipelineKey& o) const {
        return shader == o.shader && group == o.group && constants == o.constants && subgroup_size == o.subgroup_size &&
               full_subgroups == o.full_subgroups;
    }
};

/// Pipelines by key, each built once on a worker thread.
class Pipelines {
  public:
    using Id = uint32_t;
    static constexpr uint32_t kNoThread = UINT32_MAX;
    /// cache: what cache_blob() returned, or empty; an invalid one is ignored and report() says why. n_thread: workers
    /// at most, 0: up to eight, by the number of cores; kNoThread: none, the calling thread builds.
    static Result<std::unique_ptr<Pipelines>> create(GpuRef gpu, std::shared_ptr<const Shaders> shaders,
                                                     Span<const std::byte> cache = {}, uint32_t n_thread = 0);
    ~Pipelines();
    Pipelines(const Pipelines&) = delete;
    Pipelines& operator=(const Pipelines&) = delete;

    /// Queues a pipeline for the workers and returns at once; if no thread can be created, builds it before returning.
    /// Equal keys give the same Id. A pipeline that failed with out_of_memory is built again.
    Id request(const PipelineKey& key) { return request(std::vector<PipelineKey>{key}); }
    /// Likewise: the first of the alternatives that this device accepts. report() says why the ones before it failed.
    Id request(std::vector<PipelineKey> alternatives);
    /// Queues a pipeline that request() may ask for later: whatever fails here is tried again there.
    void request_ahead(const PipelineKey& key) { (void)queue({key}, true); }
    /// Waits until the pipeline is built.
    ///
    /// errors    unsupported: no alternative works; the text says why each failed. bad_argument: no such shader, or the
    ///           key contradicts its contract. out_of_memory, device_lost.
    Status wait(Id id);
    /// Likewise, and builds it again where there was no memory for it. If there is none then either, the compiler may
    /// be at fault: vkCreateComputePipelines has no other error for a kernel that it cannot compile.
    Status wait_twice(Id id);
    /// True if wait() would return at once.
    bool done(Id id) const;
    /// Waits for all pipelines; returns the first error.
    Status wait_all();
    /// Valid after a successful wait().
    VkPipeline get(Id id) const;
    const ShaderContract* contract(Id id) const;
    /// Index of the alternative that was built. Valid after a successful wait().
    uint32_t chosen(Id id) const;
    size_t size() const;
    /// The driver's pipeline cache, preceded by our header.
    std::vector<std::byte> cache_blob() const;
    /// Lists pipelines with their build times, and alternatives that failed with the reason.
    std::string report() const;

  private:
    struct Entry {
        std::vector<PipelineKey> alternatives;
        VkPipeline pipeline = VK_NULL_HANDLE;
        uint32_t chosen = 0;
        bool queued = false;  ///< waiting, being built, or done
        bool done = false;
        bool ahead = false;  ///< nobody but request_ahead() has asked for it
        double seconds = 0;
        Status status;
        const ShaderContract* contract = nullptr;
        std::string refused;  ///< why the alternatives before the chosen one failed
    };
    /// Result of make_first().
    struct Made {
        VkPipeline pipeline = VK_NULL_HANDLE;
        uint32_t chosen = 0;
        const ShaderContract* contract = nullptr;
        std::string refused;
    };
    Pipelines() = default;
    Id queue(std::vector<PipelineKey> alternatives, bool ahead);
    void start_worker();
    static void* work_entry(void* me);
    void work();
    /// Builds the pipeline at the head of the queue, with the lock released meanwhile.
    void make_next(std::unique_lock<std::mutex>& hold);
    /// Throws nothing, because workers call it.
    Status make_first(const std::vector<PipelineKey>& alternatives, Made* made);
    Status make(const PipelineKey& key, VkPipeline* out, const ShaderContract** contract);
    GpuRef gpu_;
    std::shared_ptr<const Shaders> shaders_;
    VkPipelineCache cache_ = VK_NULL_HANDLE;
    std::string cache_note_;
    mutable std::mutex lock_;
    mutable std::condition_variable changed_;
    std::deque<Entry> entries_;                      ///< a deque, so that entries do not move; guarded by lock_
    std::unordered_multimap<uint64_t, Id> by_hash_;  ///< of the alternatives
    std::deque<Id> queue_;
    std::deque<Thread> workers_;
    uint32_t max_workers_ = 1, idle_ = 0;
    bool stop_ = false;
};

/// Compares a key, or a dispatch, with the contract of its module.
///
/// errors    bad_argument: names the module, what it expects and what was found.
Status check_key(const ShaderContract& contract, const PipelineKey& key);
Status check_dispatch(const ShaderContract& contract, size_t n_buffer, size_t push_bytes);

/// ok if the device has every capability that the module declares.
///
/// errors    unsupported: names the missing capability.
Status module_fits(Span<const uint32_t> words, const DeviceTraits& traits);

/// Adds our header to the driver's cache bytes, or checks and removes it: empty if refused, with the reason in `why`.
std::vector<std::byte> wrap_cache(const DeviceTraits& traits, uint64_t shaders_hash, Span<const std::byte> payload);
Span<const std::byte> unwrap_cache(const DeviceTraits& traits, uint64_t shaders_hash, Span<const std::byte> blob,
                                   std::string* why);

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

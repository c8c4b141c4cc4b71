// machine/vulkan/shader: from embedded SPIR-V to pipelines.
//
// What    The registry of modules (unpacked from spirv.inc), pipelines built on worker threads, the pipeline cache
//         with a header of its own: a damaged cache, or one of another device, driver or set of shaders, is ignored.
// Owns    the unpacked modules; pipelines and the driver's cache object.
// Thread  Shaders is immutable; Pipelines may be used from any thread.
// Tests   tests/test_vulkan_device.cpp, tests/test_inflate.cpp, tests/test_make_shaders.py.
//
// What every kernel keeps to:
//   layout(local_size_x_id = 0) in;              the group size is specialization constant 0
//   layout(constant_id = 1) const uint NAME;     named spec::SHADER::kName in PipelineKey::constants
//   layout(set = 0, binding = 0..11)             storage buffers, readonly / writeonly where true
//   layout(push_constant)                        one struct of shaders/*_args.h, at most kPushBytes
// shader_contract.h has what each module declares. Key and dispatches are compared with it by check_key() and
// check_dispatch(), structs by static_assert.
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

/// How a kernel finds its buffers. `both` works for any kernel; the others save writing descriptors or addresses.
enum class BufferAccess : uint8_t { both, bindings, addresses };

/// The embedded SPIR-V modules, unpacked once.
class Shaders {
  public:
    struct Module {
        std::string_view name;
        Span<const uint32_t> words;
        const ShaderContract* contract = nullptr;  ///< null only for modules that a test brings
    };
    /// cost      about 5 ms for 1 MiB. errors: bad_file, only when the build itself is damaged.
    static Result<std::shared_ptr<const Shaders>> open();
    /// Likewise from bytes in the format of tools/make_shaders.py (zlib); for tests.
    static Result<std::shared_ptr<const Shaders>> open(Span<const std::byte> packed, uint64_t raw_bytes);
    /// Null if no module has this name.
    const Module* find(std::string_view name) const;
    const std::vector<Module>& modules() const { return modules_; }
    /// Changes when any module changes; part of the pipeline cache's header.
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

/// What makes a pipeline.
struct PipelineKey {
    std::string shader;                ///< module name: file stem or variant name
    uint32_t group = 64;               ///< invocations along x: specialization constant 0
    std::vector<SpecValue> constants;  ///< each that the module declares, once, in any order
    uint32_t subgroup_size = 0;        ///< 0: the driver's choice; else required (subgroup_size_control)
    bool full_subgroups = false;       ///< ask for REQUIRE_FULL_SUBGROUPS where the device can
    /// The value given for a constant; 0 if none is.
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
    /// `cache`: a blob from cache_blob(), or empty. An invalid one is ignored and report() says why.
    static Result<std::unique_ptr<Pipelines>> create(GpuRef gpu, std::shared_ptr<const Shaders> shaders,
                                                     Span<const std::byte> cache = {}, uint32_t n_thread = 0);
    ~Pipelines();
    Pipelines(const Pipelines&) = delete;
    Pipelines& operator=(const Pipelines&) = delete;

    /// Starts building a pipeline and returns at once, or builds it on the calling thread where the system gives no
    /// thread. Equal keys give the same Id. One that failed for want of memory is tried again.
    Id request(const PipelineKey& key) { return request(std::vector<PipelineKey>{key}); }
    /// The first of the alternatives that this device accepts; report() says why the others failed.
    Id request(std::vector<PipelineKey> alternatives);
    /// Waits for one. errors: unsupported (no alternative works; the text says why each failed), out_of_memory,
    /// device_lost, bad_argument (no such shader, or the key does not match its contract).
    Status wait(Id id);
    /// Whether wait() would return at once.
    bool done(Id id) const;
    /// Waits for all; the first error.
    Status wait_all();
    /// After a successful wait().
    VkPipeline get(Id id) const;
    const ShaderContract* contract(Id id) const;
    /// Which alternative was taken, after a successful wait().
    uint32_t chosen(Id id) const;
    size_t size() const;
    /// The driver's pipeline cache with our header before it.
    std::vector<std::byte> cache_blob() const;
    /// Pipelines with build times, and refused variants with the reason.
    std::string report() const;

  private:
    struct Entry {
        std::vector<PipelineKey> alternatives;
        VkPipeline pipeline = VK_NULL_HANDLE;
        uint32_t chosen = 0;
        bool queued = false;  ///< being made, or done
        bool done = false;
        double seconds = 0;
        Status status;
        const ShaderContract* contract = nullptr;
        std::string refused;  ///< why the alternatives before the chosen one failed
    };
    /// What make_first() took.
    struct Made {
        VkPipeline pipeline = VK_NULL_HANDLE;
        uint32_t chosen = 0;
        const ShaderContract* contract = nullptr;
        std::string refused;
    };
    Pipelines() = default;
    void start_worker();
    static void* work_entry(void* me);
    void work();
    /// Makes the pipeline at the head of the queue; lets go of the lock meanwhile.
    void make_next(std::unique_lock<std::mutex>& hold);
    /// Nothing is thrown: it runs on threads of its own.
    Status make_first(const std::vector<PipelineKey>& alternatives, Made* made);
    Status make(const PipelineKey& key, VkPipeline* out, const ShaderContract** contract);
    GpuRef gpu_;
    std::shared_ptr<const Shaders> shaders_;
    VkPipelineCache cache_ = VK_NULL_HANDLE;
    std::string cache_note_;
    mutable std::mutex lock_;
    mutable std::condition_variable changed_;
    std::deque<Entry> entries_;                      ///< stable addresses; guarded by lock_
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

/// Why a module cannot run on a device (a capability it lacks), or ok. Reads OpCapability only.
Status module_fits(Span<const uint32_t> words, const DeviceTraits& traits);

/// Adds our header to the driver's cache bytes, or checks and removes it; for tests. `why`: the reason of a refusal.
std::vector<std::byte> wrap_cache(const DeviceTraits& traits, uint64_t shaders_hash, Span<const std::byte> payload);
Span<const std::byte> unwrap_cache(const DeviceTraits& traits, uint64_t shaders_hash, Span<const std::byte> blob,
                                   std::string* why);

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

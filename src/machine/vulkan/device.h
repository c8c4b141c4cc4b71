// machine/vulkan/device: one Vulkan device, opened or borrowed, and what is known about it.
//
// What    The loader, the function tables, the traits that probe() found, VkResult to Status, submission.
//         volk.h is included for types only: volk's global pointers are neither defined nor used.
// Owns    instance, device and queue, unless borrowed.
// Thread  a Gpu may be used from any thread; submit() takes its lock (and the application's, when borrowed).
// Tests   nothing leaks on any failing path: tests/test_vulkan_device.cpp; hanging devices: tests/test_vulkan_lost.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "../../../shaders/shared.h"
#include "../../base/base.h"
#include "quirks.h"
#include "vulkan_headers.h"

#include <atomic>
#include <mutex>

#undef Status  // of Xlib, which volk.h includes where the application asks Vulkan for its windows

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// The lowest version that the library needs, and the one its shaders are compiled for, those that use cooperative
/// matrices apart: they need 1.2.
constexpr uint32_t kApiVersion = VK_API_VERSION_1_1;
/// Every kernel has this one layout: set 0, bindings 0..11 storage buffers, 128 bytes of push constants.
constexpr uint32_t kMaxBindings = args::kMaxBindings;
constexpr uint32_t kPushBytes = args::kPushBytes;                  // of a kernel's arguments
constexpr uint32_t kPushAllBytes = kPushBytes + 8 * kMaxBindings;  // and the addresses of its buffers

/// Functions that belong to no device. Filled from vkGetInstanceProcAddr.
struct InstanceTable {
    PFN_vkGetInstanceProcAddr vkGetInstanceProcAddr = nullptr;
    PFN_vkEnumerateInstanceVersion vkEnumerateInstanceVersion = nullptr;
    PFN_vkEnumerateInstanceExtensionProperties vkEnumerateInstanceExtensionProperties = nullptr;
    PFN_vkEnumerateInstanceLayerProperties vkEnumerateInstanceLayerProperties = nullptr;
    PFN_vkCreateInstance vkCreateInstance = nullptr;
    PFN_vkDestroyInstance vkDestroyInstance = nullptr;
    PFN_vkEnumeratePhysicalDevices vkEnumeratePhysicalDevices = nullptr;
    PFN_vkEnumerateDeviceExtensionProperties vkEnumerateDeviceExtensionProperties = nullptr;
    PFN_vkGetPhysicalDeviceProperties2 vkGetPhysicalDeviceProperties2 = nullptr;
    PFN_vkGetPhysicalDeviceFeatures2 vkGetPhysicalDeviceFeatures2 = nullptr;
    PFN_vkGetPhysicalDeviceMemoryProperties2 vkGetPhysicalDeviceMemoryProperties2 = nullptr;
    PFN_vkGetPhysicalDeviceQueueFamilyProperties vkGetPhysicalDeviceQueueFamilyProperties = nullptr;
    PFN_vkGetDeviceProcAddr vkGetDeviceProcAddr = nullptr;
    PFN_vkCreateDevice vkCreateDevice = nullptr;
    PFN_vkCreateDebugUtilsMessengerEXT vkCreateDebugUtilsMessengerEXT = nullptr;    // validation only
    PFN_vkDestroyDebugUtilsMessengerEXT vkDestroyDebugUtilsMessengerEXT = nullptr;  // validation only
};

/// A number type of a cooperative matrix; the values of VkComponentTypeKHR.
enum class Component : uint32_t {
    f16 = 0,
    f32 = 1,
    f64 = 2,
    s8 = 3,
    s16 = 4,
    s32 = 5,
    s64 = 6,
    u8 = 7,
    u16 = 8,
    u32 = 9,
    u64 = 10
};

/// Values of DeviceTraits::vendor_id.
enum Vendor : uint32_t { kAmd = 0x1002, kNvidia = 0x10DE, kQualcomm = 0x5143, kIntel = 0x8086 };

/// One shape the matrix units take: C[m,n] = A[m,k] B[k,n] + C, at subgroup scope.
struct MatrixShape {
    uint32_t m = 0, n = 0, k = 0;
    Component a{}, b{}, c{}, result{};
    bool saturating = false;
};

/// Everything the rest of the back end asks about a device. Plain data.
struct DeviceTraits {
    std::string name, driver_name, driver_info;
    uint32_t vendor_id = 0, device_id = 0, driver_id = 0, driver_version = 0, api_version = 0;
    VkPhysicalDeviceType type = VK_PHYSICAL_DEVICE_TYPE_OTHER;
    uint8_t pipeline_cache_uuid[VK_UUID_SIZE] = {}, driver_uuid[VK_UUID_SIZE] = {}, device_uuid[VK_UUID_SIZE] = {};

    uint32_t queue_family = 0;
    uint32_t timestamp_bits = 0;     ///< 0: no timestamps
    double timestamp_period_ns = 0;  ///< nanoseconds a tick, finite
    /// Microseconds between two marks; the counter may have wrapped around once. 0: the second seems to be the earlier
    /// one, because the counter began anew.
    double us_between(uint64_t from, uint64_t to) const {
        const uint64_t mask = timestamp_bits >= 64 ? UINT64_MAX : (uint64_t{1} << timestamp_bits) - 1;
        const uint64_t ticks = (to - from) & mask;
        return ticks > mask / 2 ? 0 : static_cast<double>(ticks) * timestamp_period_ns / 1000;
    }
    /// Intel gives a thread 128 registers of 8 floats, and Adreno keeps a whole workgroup resident: large workgroups
    /// and unrolled code spill there.
    bool few_registers() const { return vendor_id == kIntel || vendor_id == kQualcomm; }
    uint32_t n_core = 0;  ///< compute units or SMs; 0: not told

    uint64_t max_storage_range = 0;  ///< bytes one binding can see; 128 MiB is guaranteed
    uint64_t max_allocation_bytes = 0, max_buffer_bytes = 0;
    uint32_t max_allocation_count = 0;
    uint64_t storage_align = 256;  ///< of a binding's offset, bytes; a power of two
    uint64_t atom_bytes = 64;      ///< nonCoherentAtomSize
    uint32_t max_shared_bytes = 0;
    uint32_t max_group_invocations = 0, max_group_size[3] = {}, max_group_count[3] = {};
    uint32_t max_storage_bindings = 0;

    uint32_t subgroup_size = 0, subgroup_min = 0, subgroup_max = 0;  ///< default, and what may be required
    uint32_t max_group_subgroups = 0;                                ///< when a size is required
    VkSubgroupFeatureFlags subgroup_ops = 0;                         ///< in compute
    bool subgroup_size_control = false;                              ///< a pipeline may require a size in min..max
    bool full_subgroups = false;                                     ///< REQUIRE_FULL_SUBGROUPS works
    /// Of every buffer.
    VkBufferUsageFlags buffer_usage() const {
        const VkBufferUsageFlags usage =
            VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
        return usage | (addresses ? VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT : 0);
    }
    bool shuffle() const { return (subgroup_ops & VK_SUBGROUP_FEATURE_SHUFFLE_BIT) != 0; }

    bool dot = false;                                                  ///< shaderIntegerDotProduct is enabled
    bool dot_accelerated = false;                                      ///< and 4x8-bit packed signed dots are native
    bool float16 = false, int8 = false, int16 = false, int64 = false;  ///< arithmetic types in shaders
    bool storage16 = false, storage8 = false;                          ///< buffers of such elements
    bool timeline = false;                            ///< timelineSemaphore; without it Timeline takes fences
    bool rounding_rte16 = false, keep_nan32 = false;  ///< float controls a module may ask for, halves and floats
    bool memory_model = false;                        ///< vulkanMemoryModel (coopmat modules need it)
    bool addresses = false;      ///< bufferDeviceAddress, and push constants have room for kMaxBindings of them
    bool memory_budget = false;  ///< VK_EXT_memory_budget answers
    bool matrix_khr = false, matrix_nv = false;  ///< enabled cooperative matrix extensions
    std::vector<MatrixShape> matrix_shapes;      ///< of KHR if there, else of NV

    VkPhysicalDeviceMemoryProperties memory{};
    uint32_t type_device = UINT32_MAX;    ///< weights, caches, scratch
    uint32_t type_upload = UINT32_MAX;    ///< host-visible, coherent: staging
    uint32_t type_readback = UINT32_MAX;  ///< host-visible, cached where there is one: ring
    bool uma = false;                     ///< one memory for both sides
    bool device_mapped = false;           ///< type_device can be written by the host directly
    bool device_readable = false;         ///< and read as fast as type_readback
    bool borrowed = false;
    bool short_loops = false;  ///< kShortLoops of quirks.h
    /// The workgroups of a dispatch start only when all of the dispatches before it have: stages may wait for each
    /// other by counters instead of barriers (chain.glsl). Vulkan has no property for it; NVIDIA's driver is known to.
    /// False with DeviceOptions::barriers_only.
    bool starts_in_order = false;
    /// The host reads device memory directly, and not through a copy.
    bool reads_device() const { return device_mapped && device_readable; }
    bool is_cpu() const { return type == VK_PHYSICAL_DEVICE_TYPE_CPU; }
    /// The one memory is cut into two heaps by the driver: what the first has no room for goes to the heap of uploads,
    /// which the device reads as fast.
    bool spills() const { return uma && heap_of(type_device) != heap_of(type_upload); }
    uint32_t heap_of(uint32_t memory_type) const { return memory.memoryTypes[memory_type].heapIndex; }
    /// "discrete", "integrated", "virtual", "software" or "other".
    const char* type_name() const;
};

/// The traits as several readable lines.
std::string describe(const DeviceTraits& traits);

/// What the validation layer said. Filled only when OpenDetail::validation is set.
struct Messages {
    std::mutex lock;
    std::vector<std::string> texts;  ///< warnings and errors
    size_t count() {
        std::lock_guard<std::mutex> hold(lock);
        return texts.size();
    }
};

/// What a test, a tool or a careful host may ask beyond DeviceOptions. The defaults are the product.
struct OpenDetail {
    bool validation = false;                     ///< run under VK_LAYER_KHRONOS_validation with synchronisation checks
    bool allow_software = false;                 ///< let Kind::best take a CPU-type device
    int queue_family = -1;                       ///< -1: with graphics if there is one; on NVIDIA without
    const char* loader_path = nullptr;           ///< the loader's file name; null: the platform's
    PFN_vkGetInstanceProcAddr loader = nullptr;  ///< use this instead of loading one
    /// Put device memory where the host can write it: 0 no, 1 yes if it can be, -1 only where memory is
    /// shared. (Measured on an H100 with a full BAR: staged 8.0 GB/s, direct 7.7; kernels read both alike.)
    int direct_upload = -1;
    /// A wait gives up when nothing that was submitted to the device finishes for so long. The longest submission is a
    /// decode step, or one layer of a prompt's chunk. 0: a minute; ten on a software device, which compiles kernels
    /// when they first run.
    uint64_t timeout_ns = 0;
    std::function<void(InstanceTable*)> edit_instance;  ///< replace instance functions (after loading)
    std::function<void(VolkDeviceTable*)> edit_device;  ///< replace device functions (after loading)
    std::function<void(DeviceTraits*)> edit_traits;     ///< shrink limits, hide features (before device creation)
    Span<const Quirk> quirks = known_quirks();
};

struct Region;  // memory.h

/// A device, its queue and its tables. Open one with open_gpu(); destroys what it created.
struct Gpu {
    Gpu() = default;
    ~Gpu();
    Gpu(const Gpu&) = delete;
    Gpu& operator=(const Gpu&) = delete;

    InstanceTable vki;
    VolkDeviceTable vk{};  ///< only the functions this back end uses are filled
    VkInstance instance = VK_NULL_HANDLE;
    VkPhysicalDevice physical = VK_NULL_HANDLE;
    VkDevice device = VK_NULL_HANDLE;
    VkQueue queue = VK_NULL_HANDLE;
    DeviceTraits traits;
    std::vector<std::string> notes;                     ///< what was passed over and why; for the report
    VkDescriptorSetLayout set_layout = VK_NULL_HANDLE;  ///< the one layout of all kernels
    VkPipelineLayout pipeline_layout = VK_NULL_HANDLE;
    std::shared_ptr<Messages> messages;                    ///< null without validation
    uint64_t memory_limit_bytes = 0;                       ///< the caller's; 0: none
    std::atomic<uint64_t> device_bytes{0}, host_bytes{0};  ///< allocated through memory.h, at the moment
    std::atomic<bool> lost{false};
    /// A wait gave up: what was submitted may still run, so nothing of this device is destroyed or freed any more.
    std::atomic<bool> stalled{false};
    std::atomic<uint64_t> n_progress{0};  ///< grows whenever a wait sees that a submission has finished
    uint64_t timeout_ns = 0;              ///< OpenDetail::timeout_ns, never 0

    /// The Status of a failed call: names the function, the result and what to do. Ok for VK_SUCCESS.
    /// Remembers a lost device.
    Status check(VkResult result, const char* function, const char* doing = "");
    /// The same of a function that makes *handle, which a failure leaves null.
    template <class Handle>
    Status made(VkResult result, Handle* handle, const char* function, const char* doing = "") {
        if (result != VK_SUCCESS) *handle = VK_NULL_HANDLE;
        return check(result, function, doing);
    }
    /// Submits command buffers in order. When they are done, signals `value` on the timeline semaphore, if there is
    /// one, and the fence, if there is one.
    Status submit(Span<const VkCommandBuffer> buffers, VkSemaphore timeline, uint64_t value, VkFence fence);
    /// Makes what the host wrote to the first bytes of a mapped region visible to the device, or what the device wrote
    /// to the host, where the memory is not coherent.
    Status flush(const Region& r, uint64_t bytes, bool to_device);
    /// Bytes of device memory that may still be allocated; UINT64_MAX where nothing can be said. Where memory is shared
    /// with the host, those of both heaps.
    uint64_t budget_bytes();
    /// Bytes of the heap of a memory type that may still be allocated; UINT64_MAX where nothing can be said.
    uint64_t heap_room(uint32_t type);
    /// The traits, the notes: several lines.
    std::string report() const;

    std::mutex queue_lock;
    std::function<void()> host_lock, host_unlock;
    bool owns_device = false, owns_instance = false;
    VkDebugUtilsMessengerEXT messenger = VK_NULL_HANDLE;
    void* library = nullptr;  ///< the loader; never unloaded
};
using GpuRef = std::shared_ptr<Gpu>;

/// The error of whatever is asked of a lost device.
Status lost_before();

/// Which device open_gpu() takes, for a caller who tries the next where that one is of no use.
struct Choice {
    std::vector<std::string> refused;  ///< by index: why a device is not to be taken; empty: it may be
    int index = -1;                    ///< of the device taken
    std::string name;                  ///< its index, name and driver
    bool more = false;                 ///< another could be taken
};

/// Opens a Vulkan device.
///
/// options   kind best passes over software devices; kind vulkan takes them when nothing else is
///           there, or by index. `borrow` runs on the application's device: features are used only
///           as far as `borrow` tells.
/// errors    no_device: no loader, no driver, Vulkan below 1.1, no compute queue (the text lists
///           what was found); bad_argument: index out of range; not_found: no validation layer.
/// cost      20-500 ms, the driver's.
/// trap      the loader unloads the driver with the last instance, and NVIDIA's (580) fails when loaded
///           for the 31st time in a process: a host that opens devices often should keep one open.
Result<GpuRef> open_gpu(const DeviceOptions& options = {}, const OpenDetail& detail = {}, Choice* choice = nullptr);
/// The names of all Vulkan devices, in the order of their indices, whether they can be used or not.
/// errors    no_device: no loader, no driver, no device.
Result<std::vector<std::string>> gpu_names(const OpenDetail& detail = {});

/// The name of a VkResult: "VK_ERROR_DEVICE_LOST".
const char* result_name(VkResult result);

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

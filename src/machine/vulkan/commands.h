// machine/vulkan/commands: records a command buffer and submits it any number of times.
//
// Owns    the command buffer, its descriptor sets and its timestamp queries. Descriptor sets are written during
//         recording only, not on a replay.
// Thread  one thread at a time; several Commands may be recorded on several threads.
// Tests   tests/test_vulkan_device.cpp.
//
//   auto commands = std::move(Commands::create(gpu)).value();
//   commands.begin();
//   commands.bind(pipelines->get(id), {x, w, y});     // bindings 0, 1, 2
//   commands.push(args);
//   commands.dispatch(n_group);
//   commands.barrier();                               // later kernels see earlier writes
//   ...
//   AUSPEX_TRY(commands.end()); // the first error of all calls above
//   AUSPEX_TRY(commands.run()); // submit and wait; again for a replay
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "memory.h"
#include "shader.h"

#include <initializer_list>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// The operations on one side of a barrier; combine with |.
enum Sync : uint32_t {
    kSyncCompute = 1,   ///< kernels read and write
    kSyncTransfer = 2,  ///< copies and fills
    kSyncHost = 4,      ///< reads of mapped memory by the host; only as `after`
};

/// A VkCommandPool. Share one among many Commands: creating it takes 0.25 ms.
class CommandPool {
  public:
    static Result<std::shared_ptr<CommandPool>> create(GpuRef gpu);
    ~CommandPool();
    VkCommandPool handle() const { return pool_; }

  private:
    explicit CommandPool(GpuRef gpu) : gpu_(std::move(gpu)) {}
    GpuRef gpu_;
    VkCommandPool pool_ = VK_NULL_HANDLE;
};

class Commands {
  public:
    Commands() = default;
    ~Commands() { reset(); }
    Commands(Commands&&) = default;
    Commands& operator=(Commands&& o) noexcept { return take_over(*this, o); }

    /// n_timestamp: calls of timestamp() that a recording may make. pool: null for one of its own; Commands that share
    /// a pool belong to one thread at a time.
    static Result<Commands> create(GpuRef gpu, uint32_t n_timestamp = 0, std::shared_ptr<CommandPool> pool = nullptr);

    /// Starts a new recording, after waiting for the last run(). once: it will be submitted a single time.
    Status begin(bool once = false);
    /// Sets the kernel and the buffers of bindings 0, 1, ... until the next bind(). On devices with buffer addresses,
    /// those of the buffers are pushed at offset kPushBytes, for kernels that use addresses instead of bindings.
    void bind(VkPipeline pipeline, Span<const Region> buffers, BufferAccess access = BufferAccess::both);
    void bind(VkPipeline pipeline, std::initializer_list<Region> buffers, BufferAccess access = BufferAccess::both) {
        bind(pipeline, Span<const Region>(buffers.begin(), buffers.size()), access);
    }
    /// Sets push constants, at most 128 bytes and a multiple of 4. They are part of the recording.
    void push(const void* args, uint32_t bytes);
    template <class T>
    void push(const T& args) {
        static_assert(sizeof(T) <= kPushBytes && sizeof(T) % 4 == 0, "push constants are at most 128 bytes");
        push(&args, sizeof(T));
    }
    void dispatch(uint32_t x, uint32_t y = 1, uint32_t z = 1);
    /// A global memory barrier, by default between kernels.
    void barrier(uint32_t before = kSyncCompute, uint32_t after = kSyncCompute);
    void copy(const Region& to, const Region& from);
    void fill(const Region& to, uint32_t value);
    /// Writes a timestamp, which stalls the GPU: for profiling only. `label` is copied.
    void timestamp(const char* label);
    /// Ends the recording. errors: the first error since begin().
    Status end();

    /// The recorded command buffer, to be submitted to the caller's Timeline.
    VkCommandBuffer handle() const { return commands_; }
    /// Submits it to a timeline of its own and waits until it has run.
    Status run();
    /// Times between consecutive timestamps of the last run, which must have finished: label of the later one,
    /// microseconds.
    Result<std::vector<std::pair<std::string, double>>> timings();

    uint32_t n_dispatch() const { return n_dispatch_; }
    uint32_t n_barrier() const { return n_barrier_; }
    uint32_t n_set() const { return n_set_; }

  private:
    struct Set {
        uint64_t hash;
        VkDescriptorSet set;
        std::vector<VkDescriptorBufferInfo> infos;
    };
    Result<uint64_t> tick(uint32_t i) const;  ///< timestamp i of the last run, in device ticks
    void reset();
    void destroy();
    void refuse(Status status);
    VkDescriptorSet set_for(const std::vector<VkDescriptorBufferInfo>& infos);
    GpuRef gpu_;
    Timeline timeline_;
    std::shared_ptr<CommandPool> pool_;
    VkCommandBuffer commands_ = VK_NULL_HANDLE;
    VkQueryPool queries_ = VK_NULL_HANDLE;
    std::vector<VkDescriptorPool> set_pools_;
    std::vector<Set> sets_;
    std::vector<std::string> labels_;
    VkPipeline bound_ = VK_NULL_HANDLE;
    VkDescriptorSet bound_set_ = VK_NULL_HANDLE;
    Status status_;
    bool recording_ = false, ready_ = false, by_address_ = false;
    uint32_t n_timestamp_ = 0, n_dispatch_ = 0, n_barrier_ = 0, n_set_ = 0, in_pool_ = 0, pool_index_ = 0;
};

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

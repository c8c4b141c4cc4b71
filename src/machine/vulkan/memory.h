// machine/vulkan/memory: device memory planned first and allocated at once; transfers between host and device.
//
// What    MemoryPlan (sizes become regions), Memory (the allocations), Transfer (staging, direct writes).
// Owns    the allocations, counted to the byte; a step allocates nothing.
// Thread  a Memory is immutable once allocated; a Transfer belongs to one thread.
// Tests   tests/test_vulkan_device.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "../state_stream.h"
#include "timeline.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// Where bytes live. The first three are device memory; `ring` is cached host memory that kernels
/// write and the host reads; `staging` is host memory that the host writes and kernels may read, and so is
/// `pinned`, for weights.
enum class Arena : uint32_t { weights, caches, scratch, ring, staging, pinned };
const char* arena_name(Arena arena);

/// A piece of one buffer: what a kernel binds. Plain data, valid as long as its Memory.
struct Region {
    VkBuffer buffer = VK_NULL_HANDLE;
    uint64_t offset = 0;  ///< multiple of DeviceTraits::storage_align
    uint64_t bytes = 0;
    uint64_t address = 0;         ///< in the device's eyes; 0 without DeviceTraits::addresses
    std::byte* mapped = nullptr;  ///< host view of the region, or null
    VkDeviceMemory memory = VK_NULL_HANDLE;
    bool coherent = true;  ///< false: needs Gpu::flush()
    /// The part [at, at + n). `at` must be a multiple of storage_align to be bound.
    Region part(uint64_t at, uint64_t n) const {
        Region r = *this;
        r.offset += at;
        if (r.address) r.address += at;
        r.bytes = n;
        if (r.mapped) r.mapped += at;
        return r;
    }
};

/// Sizes of regions, before anything is allocated: add() each, check the sums, then Memory::take() allocates all of
/// them or fails.
class MemoryPlan {
  public:
    using Id = uint32_t;
    /// `traits` gives alignment and allocation limits.
    explicit MemoryPlan(const DeviceTraits& traits);
    /// Adds a region of `bytes` to an arena. A region lies within one allocation: if it is longer than
    /// max_region_bytes(), take() fails, so split such a tensor by rows.
    Id add(Arena arena, uint64_t bytes, std::string name = {});
    uint64_t max_region_bytes() const { return max_region_; }
    /// Bytes that take() will allocate, padding included.
    uint64_t arena_bytes(Arena arena) const;
    uint64_t device_bytes() const;
    size_t size() const { return items_.size(); }

  private:
    friend class Memory;
    struct Item {
        Arena arena;
        uint64_t bytes, offset;
        uint32_t block;
        std::string name;
    };
    struct Block {
        Arena arena;
        uint64_t bytes;
    };
    std::vector<Item> items_;
    std::vector<Block> blocks_;
    uint64_t align_, max_block_, max_region_, tail_;
};

/// The allocations of a MemoryPlan; memory[id] is the region that add() numbered. Contents are undefined until written
/// (Transfer::zero clears).
class Memory {
  public:
    Memory() = default;
    ~Memory() { reset(); }
    Memory(Memory&&) = default;
    Memory& operator=(Memory&& o) noexcept { return take_over(*this, o); }
    /// Allocates everything in the plan.
    ///
    /// errors    out_of_memory: over the budget, or the driver refused; the text says how much was needed and left.
    ///           bad_argument: a region exceeds max_region_bytes().
    static Result<Memory> take(GpuRef gpu, const MemoryPlan& plan);
    /// Regions of the plan's sizes with no memory behind them: lists can be built from them, but not recorded.
    static Memory outline(const MemoryPlan& plan);
    const Region& operator[](MemoryPlan::Id id) const { return regions_[id]; }
    uint64_t device_bytes() const { return device_bytes_; }
    uint64_t host_bytes() const { return host_bytes_; }
    void reset();

  private:
    struct Block {
        VkBuffer buffer = VK_NULL_HANDLE;
        VkDeviceMemory memory = VK_NULL_HANDLE;
        std::byte* mapped = nullptr;
        uint64_t bytes = 0, address = 0;
        bool on_device = false, coherent = true;
    };
    Status take_block(const MemoryPlan::Block& want, Block* out);
    GpuRef gpu_;
    std::vector<Block> blocks_;
    std::vector<Region> regions_;
    uint64_t device_bytes_ = 0, host_bytes_ = 0;
};

/// Moves bytes between host and device memory with bounded staging: two halves of `half_bytes`, taken when they are
/// needed first, or given. Mapped regions are written directly, without staging, and read directly where
/// DeviceTraits::reads_device().
///
/// thread    one. Not to be used on regions that a running submission uses.
class Transfer {
  public:
    /// Writes `n` bytes of the stream, `at` bytes from its beginning, to `to` (write only: it may be
    /// write-combined memory). Called with rising `at`, each a multiple of `grain`.
    using Fill = std::function<Status(std::byte* to, uint64_t at, uint64_t n)>;

    Transfer() = default;
    ~Transfer();
    Transfer(Transfer&&) = default;
    Transfer& operator=(Transfer&& o) noexcept { return take_over(*this, o); }
    /// `staging`: two regions of Arena::ring of at least `half_bytes`, a multiple of 4096; they must outlive it.
    static Result<Transfer> create(GpuRef gpu, uint64_t half_bytes = 32u << 20, const Region* staging = nullptr);

    Status write(const Region& to, const void* from, uint64_t bytes);
    /// Lets `fill` make the bytes in place. `grain` divides every chunk but the last, at most half_bytes.
    Status write(const Region& to, uint64_t bytes, uint64_t grain, const Fill& fill);
    /// Fills with a repeated 32-bit value; offset and bytes must be multiples of 4.
    Status fill(const Region& to, uint32_t value);
    Status zero(const Region& to) { return fill(to, 0); }
    Status copy(const Region& to, const Region& from) {
        return copy(Span<const Region>(&to, 1), Span<const Region>(&from, 1));
    }
    /// Each region to its counterpart, in one submission.
    Status copy(Span<const Region> to, Span<const Region> from);
    Status read(const Region& from, void* to, uint64_t bytes);
    /// The regions one after the other, to or from a stream: many small ones go over the bus together. read() returns
    /// when the stream has all bytes, write() when its copies are queued: later submissions see them.
    Status read(Span<const Region> from, StateWriter& to);
    Status write(Span<const Region> to, StateReader& from);
    /// Copies the regions one after the other to `to`, in host memory; wait() for the value returned. Other submissions
    /// may use the regions at once.
    Result<uint64_t> begin_read(Span<const Region> from, const Region& to);
    Status wait(uint64_t value) { return timeline_.wait(value); }
    /// Waits for everything before. Needed before the regions are used by another submission.
    Status finish();

  private:
    struct Half {
        VkCommandBuffer commands = VK_NULL_HANDLE;
        uint64_t value = 0;  ///< timeline value of its last submission
        Region staging;
        VkBuffer to = VK_NULL_HANDLE, from = VK_NULL_HANDLE;  ///< of `copies`
        std::vector<VkBufferCopy> copies;                     ///< to be recorded
    };
    class Gather;
    /// The half whose turn it is.
    uint32_t take_half() { return std::exchange(next_, next_ ^ 1u); }
    Status need_staging();
    Status begin(uint32_t half);
    Status send(uint32_t half);
    void add_copy(Half& half, const Region& to, const Region& from, uint64_t bytes);
    void record_copies(Half& half);
    GpuRef gpu_;
    Timeline timeline_;
    Memory memory_;
    VkCommandPool pool_ = VK_NULL_HANDLE;
    Half half_[2];
    uint32_t next_ = 0;
    uint64_t half_bytes_ = 0;
};

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

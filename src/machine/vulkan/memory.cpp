#include "memory.h"
#ifndef AUSPEX_NO_VULKAN

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

const char* arena_name(Arena arena) {
    switch (arena) {
        case Arena::weights: return "weights";
        case Arena::caches: return "caches";
        case Arena::scratch: return "scratch";
        case Arena::ring: return "ring";
        case Arena::staging: return "staging";
        case Arena::pinned: return "pinned weights";
    }
    return "unknown";
}

namespace memory_impl {
// One gigabyte fits under every driver's limit in practice and keeps the number of blocks small.
constexpr uint64_t kBlockBytes = 1ull << 30;
// Drivers round allocations up to pages of 4 to 64 KiB, and their limits need not be whole pages.
constexpr uint64_t kPageBytes = 64 << 10;
// Regions begin at multiples of this at least: one or two cache lines on every GPU.
constexpr uint64_t kRegionAlign = 256;

constexpr bool on_device(Arena a) { return a == Arena::weights || a == Arena::caches || a == Arena::scratch; }
constexpr uint64_t mib(uint64_t bytes) { return (bytes + (1u << 20) - 1) >> 20; }
}  // namespace memory_impl

// ------------------------------------------------------------------------------------- the plan

MemoryPlan::MemoryPlan(const DeviceTraits& traits) {
    align_ = std::max({memory_impl::kRegionAlign, traits.storage_align, traits.atom_bytes});
    tail_ = align_;  // kernels may read a whole vector at the very end of a block
    const uint64_t page = std::max(memory_impl::kPageBytes, align_);
    max_region_ = std::min(traits.max_allocation_bytes, traits.max_buffer_bytes) / page * page - tail_;
    max_block_ = std::min(memory_impl::kBlockBytes - tail_, max_region_);
}

MemoryPlan::Id MemoryPlan::add(Arena arena, uint64_t bytes, std::string name) {
    const uint64_t need = bytes > (1ull << 62) ? bytes : std::max(round_up(bytes, align_), align_);
    uint32_t block = UINT32_MAX;
    for (uint32_t b = 0; b < blocks_.size() && block == UINT32_MAX; ++b)
        if (blocks_[b].arena == arena && need <= max_block_ && blocks_[b].bytes <= max_block_ - need) block = b;
    if (block == UINT32_MAX) {
        block = static_cast<uint32_t>(blocks_.size());
        blocks_.push_back({arena, 0});
    }
    items_.push_back({arena, bytes, blocks_[block].bytes, block, std::move(name)});
    blocks_[block].bytes += need;
    return static_cast<Id>(items_.size() - 1);
}

uint64_t MemoryPlan::arena_bytes(Arena arena) const {
    uint64_t sum = 0;
    for (const Block& b : blocks_)
        if (b.arena == arena) sum += b.bytes + tail_;
    return sum;
}

uint64_t MemoryPlan::device_bytes() const {
    return arena_bytes(Arena::weights) + arena_bytes(Arena::caches) + arena_bytes(Arena::scratch);
}

// ----------------------------------------------------------------------------------- the memory

void Memory::reset() {
    if (!gpu_) return;
    if (!gpu_->stalled) {
        for (Block& b : blocks_) {
            if (b.buffer) gpu_->vk.vkDestroyBuffer(gpu_->device, b.buffer, nullptr);
            if (b.memory) gpu_->vk.vkFreeMemory(gpu_->device, b.memory, nullptr);  // unmaps, too
        }
        gpu_->device_bytes -= device_bytes_;
        gpu_->host_bytes -= host_bytes_;
    }
    device_bytes_ = host_bytes_ = 0;
    blocks_.clear();
    regions_.clear();
    gpu_.reset();
}

Status Memory::take_block(const MemoryPlan::Block& want, Block* out) {
    const DeviceTraits& t = gpu_->traits;
    out->bytes = want.bytes;
    out->on_device = memory_impl::on_device(want.arena);
    VkBufferCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
    info.size = want.bytes;
    info.usage = t.buffer_usage();
    AUSPEX_TRY(gpu_->made(gpu_->vk.vkCreateBuffer(gpu_->device, &info, nullptr, &out->buffer), &out->buffer,
                          "vkCreateBuffer", arena_name(want.arena)));
    VkMemoryRequirements need{};
    gpu_->vk.vkGetBufferMemoryRequirements(gpu_->device, out->buffer, &need);
    uint32_t type = want.arena == Arena::ring                                     ? t.type_readback
                    : want.arena == Arena::staging || want.arena == Arena::pinned ? t.type_upload
                                                                                  : t.type_device;
    // Where two heaps share one memory, each takes what the other has no room for.
    uint32_t other = type;
    if (t.spills() && type == t.type_device) other = t.type_upload;
    if (t.spills() && t.device_mapped && t.heap_of(type) == t.heap_of(t.type_upload)) other = t.type_device;
    if (other != type && gpu_->heap_room(type) < need.size) std::swap(type, other);
    VkMemoryAllocateInfo allocate{};
    allocate.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
    allocate.allocationSize = need.size;
    allocate.memoryTypeIndex = type;
    VkMemoryAllocateFlagsInfo flags_info{};
    flags_info.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO;
    flags_info.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
    if (t.addresses) allocate.pNext = &flags_info;
    VkResult r = gpu_->vk.vkAllocateMemory(gpu_->device, &allocate, nullptr, &out->memory);
    if (r == VK_ERROR_OUT_OF_DEVICE_MEMORY && other != type) {
        allocate.memoryTypeIndex = type = other;
        r = gpu_->vk.vkAllocateMemory(gpu_->device, &allocate, nullptr, &out->memory);
    }
    if (r != VK_SUCCESS) {
        out->memory = VK_NULL_HANDLE;
        const std::string what = say(memory_impl::mib(need.size), " MiB for ", arena_name(want.arena), ", beside ",
                                     memory_impl::mib(gpu_->device_bytes.load()), " MiB already taken.");
        return gpu_->check(r, "vkAllocateMemory", what.c_str());
    }
    (out->on_device ? device_bytes_ : host_bytes_) += need.size;
    (out->on_device ? gpu_->device_bytes : gpu_->host_bytes) += need.size;
    AUSPEX_TRY(
        gpu_->check(gpu_->vk.vkBindBufferMemory(gpu_->device, out->buffer, out->memory, 0), "vkBindBufferMemory"));
    if (t.addresses) {
        VkBufferDeviceAddressInfo ask{};
        ask.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO;
        ask.buffer = out->buffer;
        out->address = gpu_->vk.vkGetBufferDeviceAddress(gpu_->device, &ask);
    }
    const VkMemoryPropertyFlags flags = t.memory.memoryTypes[type].propertyFlags;
    out->coherent = (flags & VK_MEMORY_PROPERTY_HOST_COHERENT_BIT) != 0;
    const bool visible = (flags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT) != 0;
    if (visible && (!out->on_device || t.device_mapped)) {
        void* p = nullptr;
        AUSPEX_TRY(gpu_->check(gpu_->vk.vkMapMemory(gpu_->device, out->memory, 0, VK_WHOLE_SIZE, 0, &p), "vkMapMemory",
                               arena_name(want.arena)));
        out->mapped = static_cast<std::byte*>(p);
    }
    return {};
}

Memory Memory::outline(const MemoryPlan& plan) {
    Memory m;
    for (const MemoryPlan::Item& i : plan.items_) {
        m.regions_.emplace_back();
        m.regions_.back().offset = i.offset;
        m.regions_.back().bytes = i.bytes;
    }
    return m;
}

Result<Memory> Memory::take(GpuRef gpu, const MemoryPlan& plan) {
    using memory_impl::mib;
    for (const MemoryPlan::Item& i : plan.items_)
        if (i.bytes > plan.max_region_)
            return fail(Code::bad_argument, "a region of ", i.bytes, " bytes (",
                        i.name.empty() ? arena_name(i.arena) : i.name.c_str(), ") was asked for, but ",
                        gpu->traits.name, " takes at most ", plan.max_region_, " at once: cut it by rows.");
    const uint64_t budget = gpu->budget_bytes();
    if (plan.device_bytes() > budget)
        return fail(Code::out_of_memory, mib(plan.device_bytes()), " MiB of device memory are needed (weights ",
                    mib(plan.arena_bytes(Arena::weights)), ", caches ", mib(plan.arena_bytes(Arena::caches)),
                    ", scratch ", mib(plan.arena_bytes(Arena::scratch)), "), but ", gpu->traits.name, " has ",
                    budget >> 20,
                    " MiB left: take a smaller model or context, or raise memory_limit_bytes if it is set.");
    Memory m;
    m.gpu_ = std::move(gpu);
    m.blocks_.reserve(plan.blocks_.size());
    for (const MemoryPlan::Block& b : plan.blocks_) {
        m.blocks_.emplace_back();
        AUSPEX_TRY(m.take_block({b.arena, b.bytes + plan.tail_}, &m.blocks_.back()));
    }
    m.regions_.reserve(plan.items_.size());
    for (const MemoryPlan::Item& i : plan.items_) {
        const Block& b = m.blocks_[i.block];
        Region r;
        r.buffer = b.buffer;
        r.offset = i.offset;
        r.bytes = i.bytes;
        r.address = b.address ? b.address + i.offset : 0;
        r.mapped = b.mapped ? b.mapped + i.offset : nullptr;
        r.memory = b.memory;
        r.coherent = b.coherent;
        m.regions_.push_back(r);
    }
    return m;
}

Status Gpu::flush(const Region& r, uint64_t bytes, bool to_device) {
    if (r.coherent || bytes == 0) return {};
    const uint64_t atom = traits.atom_bytes;
    VkMappedMemoryRange range{};
    range.sType = VK_STRUCTURE_TYPE_MAPPED_MEMORY_RANGE;
    range.memory = r.memory;
    range.offset = r.offset / atom * atom;
    range.size = round_up(r.offset + bytes, atom) - range.offset;  // the block's tail leaves room
    return to_device ? check(vk.vkFlushMappedMemoryRanges(device, 1, &range), "vkFlushMappedMemoryRanges")
                     : check(vk.vkInvalidateMappedMemoryRanges(device, 1, &range), "vkInvalidateMappedMemoryRanges");
}

// --------------------------------------------------------------------------------- the transfer

Transfer::~Transfer() {
    if (!gpu_) return;
    (void)finish();
    timeline_ = Timeline();  // before the command buffers it may still run
    if (pool_ && !gpu_->stalled) gpu_->vk.vkDestroyCommandPool(gpu_->device, pool_, nullptr);
}

Result<Transfer> Transfer::create(GpuRef gpu, uint64_t half_bytes, const Region* staging) {
    Transfer t;
    for (uint32_t i = 0; i < 2 && staging; ++i) t.half_[i].staging = staging[i];
    t.gpu_ = gpu;
    t.half_bytes_ = round_up(std::max<uint64_t>(half_bytes, 4096), 4096);
    AUSPEX_TRY(Timeline::create(gpu).get(t.timeline_));
    VkCommandPoolCreateInfo pool{};
    pool.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
    pool.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT | VK_COMMAND_POOL_CREATE_TRANSIENT_BIT;
    pool.queueFamilyIndex = gpu->traits.queue_family;
    AUSPEX_TRY(
        gpu->made(gpu->vk.vkCreateCommandPool(gpu->device, &pool, nullptr, &t.pool_), &t.pool_, "vkCreateCommandPool"));
    VkCommandBufferAllocateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
    info.commandPool = t.pool_;
    info.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
    info.commandBufferCount = 2;
    VkCommandBuffer both[2] = {};
    AUSPEX_TRY(gpu->check(gpu->vk.vkAllocateCommandBuffers(gpu->device, &info, both), "vkAllocateCommandBuffers"));
    t.half_[0].commands = both[0];
    t.half_[1].commands = both[1];
    return t;
}

// Waits for the half's last use and opens its command buffer.
Status Transfer::begin(uint32_t half) {
    Half& h = half_[half];
    AUSPEX_TRY(timeline_.wait(h.value));
    h.copies.clear();
    VkCommandBufferBeginInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
    info.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
    AUSPEX_TRY(gpu_->check(gpu_->vk.vkBeginCommandBuffer(h.commands, &info), "vkBeginCommandBuffer"));
    VkMemoryBarrier b{};
    b.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
    b.srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT | VK_ACCESS_SHADER_WRITE_BIT;
    b.dstAccessMask = VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
    gpu_->vk.vkCmdPipelineBarrier(h.commands, VK_PIPELINE_STAGE_TRANSFER_BIT | VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                                  VK_PIPELINE_STAGE_TRANSFER_BIT, 0, 1, &b, 0, nullptr, 0, nullptr);
    return {};
}

Status Transfer::send(uint32_t half) {
    Half& h = half_[half];
    record_copies(h);
    VkMemoryBarrier b{};
    b.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
    b.srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT;
    b.dstAccessMask = VK_ACCESS_HOST_READ_BIT;
    gpu_->vk.vkCmdPipelineBarrier(h.commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &b, 0,
                                  nullptr, 0, nullptr);
    AUSPEX_TRY(gpu_->check(gpu_->vk.vkEndCommandBuffer(h.commands), "vkEndCommandBuffer"));
    return timeline_.submit(h.commands).get(h.value);
}

/// Copies between the same buffers become one command: the host takes 20 us to record 64 commands, and 8 us for one.
void Transfer::add_copy(Half& half, const Region& to, const Region& from, uint64_t bytes) {
    if (to.buffer != half.to || from.buffer != half.from) record_copies(half);
    half.to = to.buffer;
    half.from = from.buffer;
    half.copies.push_back({from.offset, to.offset, bytes});
}

void Transfer::record_copies(Half& half) {
    if (half.copies.empty()) return;
    gpu_->vk.vkCmdCopyBuffer(half.commands, half.from, half.to, static_cast<uint32_t>(half.copies.size()),
                             half.copies.data());
    half.copies.clear();
}

Status Transfer::need_staging() {
    if (half_[0].staging.bytes != 0) return {};
    // Cached host memory: as fast to write as any, and read() needs it.
    MemoryPlan plan(gpu_->traits);
    plan.add(Arena::ring, half_bytes_, "staging");
    plan.add(Arena::ring, half_bytes_, "staging");
    AUSPEX_TRY(Memory::take(gpu_, plan).get(memory_));
    for (uint32_t i = 0; i < 2; ++i) half_[i].staging = memory_[i];
    return {};
}

Status Transfer::write(const Region& to, uint64_t bytes, uint64_t grain, const Fill& fill) {
    if (bytes > to.bytes)
        return fail(Code::bad_argument, "a write of ", bytes, " bytes does not fit a region of ", to.bytes, ".");
    if (grain == 0 || grain > half_bytes_)
        return fail(Code::bad_argument, "a transfer grain of ", grain, " bytes: expected 1 to ", half_bytes_, ".");
    const uint64_t max_chunk = half_bytes_ / grain * grain;
    if (to.mapped) {
        AUSPEX_TRY(finish());  // keeps the order with fills and copies before
        for (uint64_t at = 0; at < bytes; at += max_chunk)
            AUSPEX_TRY(fill(to.mapped + at, at, std::min(max_chunk, bytes - at)));
        return gpu_->flush(to, bytes, true);
    }
    AUSPEX_TRY(need_staging());
    for (uint64_t at = 0; at < bytes; at += max_chunk) {
        const uint64_t n = std::min(max_chunk, bytes - at);
        const uint32_t half = take_half();
        AUSPEX_TRY(timeline_.wait(half_[half].value));
        const Region& staging = half_[half].staging;
        AUSPEX_TRY(fill(staging.mapped, at, n));
        AUSPEX_TRY(gpu_->flush(staging, n, true));
        AUSPEX_TRY(begin(half));
        add_copy(half_[half], to.part(at, n), staging, n);
        AUSPEX_TRY(send(half));
    }
    return {};
}

Status Transfer::write(const Region& to, const void* from, uint64_t bytes) {
    const std::byte* source = static_cast<const std::byte*>(from);
    return write(to, bytes, 1, [source](std::byte* at, uint64_t offset, uint64_t n) {
        std::memcpy(at, source + offset, n);
        return Status();
    });
}

Status Transfer::fill(const Region& to, uint32_t value) {
    if (to.offset % 4 || to.bytes % 4)
        return fail(Code::bad_argument, "a fill needs offset and size in multiples of 4, found ", to.offset, " and ",
                    to.bytes, ".");
    if (to.bytes == 0) return {};
    if (to.mapped) {
        AUSPEX_TRY(finish());
        const bool same = value == (value & 0xffu) * 0x01010101u;
        if (same)
            std::memset(to.mapped, static_cast<int>(value & 0xffu), to.bytes);
        else
            for (uint64_t i = 0; i < to.bytes; i += 4) std::memcpy(to.mapped + i, &value, 4);
        return gpu_->flush(to, to.bytes, true);
    }
    const uint32_t half = take_half();
    AUSPEX_TRY(begin(half));
    gpu_->vk.vkCmdFillBuffer(half_[half].commands, to.buffer, to.offset, to.bytes, value);
    return send(half);
}

Status Transfer::copy(Span<const Region> to, Span<const Region> from) {
    uint64_t n = 0;
    for (size_t i = 0; i < from.size(); n += from[i++].bytes)
        if (i >= to.size() || from[i].bytes > to[i].bytes)
            return fail(Code::bad_argument, "a copy of ", from[i].bytes, " bytes does not fit a region of ",
                        i < to.size() ? to[i].bytes : 0, ".");
    if (n == 0) return {};
    const uint32_t half = take_half();
    AUSPEX_TRY(begin(half));
    for (size_t i = 0; i < from.size(); ++i)
        if (from[i].bytes != 0) add_copy(half_[half], to[i], from[i], from[i].bytes);
    return send(half);
}

Status Transfer::read(const Region& from, void* to, uint64_t bytes) {
    if (bytes > from.bytes)
        return fail(Code::bad_argument, "a read of ", bytes, " bytes goes beyond a region of ", from.bytes, ".");
    if (bytes == 0) return {};
    if (from.mapped && gpu_->traits.reads_device()) {
        AUSPEX_TRY(finish());
        AUSPEX_TRY(gpu_->flush(from, bytes, false));
        std::memcpy(to, from.mapped, bytes);
        return {};
    }
    AUSPEX_TRY(need_staging());
    std::byte* out = static_cast<std::byte*>(to);
    for (uint64_t at = 0; at < bytes; at += half_bytes_) {
        const uint64_t n = std::min(half_bytes_, bytes - at);
        const uint32_t half = take_half();
        AUSPEX_TRY(begin(half));
        add_copy(half_[half], half_[half].staging, from.part(at, n), n);
        AUSPEX_TRY(send(half));
        AUSPEX_TRY(timeline_.wait(half_[half].value));
        AUSPEX_TRY(gpu_->flush(half_[half].staging, n, false));
        std::memcpy(out + at, half_[half].staging.mapped, n);
    }
    return {};
}

/// Cuts a list of regions into groups that fill a half of the staging memory.
class Transfer::Gather {
  public:
    Gather(Span<const Region> regions, uint64_t half_bytes) : regions_(regions), half_bytes_(half_bytes) {}
    bool done() const { return i_ == regions_.size(); }
    /// The next group, as (piece of a region, its place in the half); returns its bytes, 0 at the end.
    template <class F>
    uint64_t next(F piece) {
        uint64_t n = 0;
        while (n < half_bytes_ && i_ < regions_.size()) {
            const uint64_t bytes = std::min(half_bytes_ - n, regions_[i_].bytes - at_);
            piece(regions_[i_].part(at_, bytes), n);
            n += bytes;
            at_ += bytes;
            if (at_ == regions_[i_].bytes) ++i_, at_ = 0;
        }
        return n;
    }

  private:
    Span<const Region> regions_;
    uint64_t half_bytes_;
    size_t i_ = 0;
    uint64_t at_ = 0;  ///< of region i_
};

Status Transfer::read(Span<const Region> from, StateWriter& to) {
    if (from.empty()) return {};
    if (from[0].mapped && gpu_->traits.reads_device()) {
        AUSPEX_TRY(finish());
        for (const Region& r : from) {
            AUSPEX_TRY(gpu_->flush(r, r.bytes, false));
            AUSPEX_TRY(to.write(r.mapped, r.bytes));
        }
        return {};
    }
    AUSPEX_TRY(need_staging());
    Gather groups(from, half_bytes_);
    uint64_t n_ready[2] = {0, 0};  // bytes on their way in each half
    for (bool more = true; more;) {
        const uint32_t half = take_half();
        more = !groups.done();
        if (more) {
            AUSPEX_TRY(begin(half));
            n_ready[half] = groups.next([&](const Region& r, uint64_t at) {
                add_copy(half_[half], half_[half].staging.part(at, r.bytes), r, r.bytes);
            });
            AUSPEX_TRY(send(half));
        }
        // While the device copies this group, the one before goes to the stream.
        const uint32_t before = half ^ 1u;
        if (n_ready[before] == 0) continue;
        AUSPEX_TRY(timeline_.wait(half_[before].value));
        AUSPEX_TRY(gpu_->flush(half_[before].staging, n_ready[before], false));
        AUSPEX_TRY(to.write(half_[before].staging.mapped, n_ready[before]));
        n_ready[before] = 0;
    }
    return {};
}

Result<uint64_t> Transfer::begin_read(Span<const Region> from, const Region& to) {
    const uint32_t half = take_half();
    AUSPEX_TRY(begin(half));
    uint64_t at = 0;
    for (const Region& r : from) {
        add_copy(half_[half], to.part(at, r.bytes), r, r.bytes);
        at += r.bytes;
    }
    record_copies(half_[half]);
    // Kernels that are submitted later write only when this was read.
    gpu_->vk.vkCmdPipelineBarrier(half_[half].commands, VK_PIPELINE_STAGE_TRANSFER_BIT,
                                  VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT, 0, 0, nullptr,
                                  0, nullptr, 0, nullptr);
    AUSPEX_TRY(send(half));
    return uint64_t{half_[half].value};
}

Status Transfer::write(Span<const Region> to, StateReader& from) {
    if (to.empty()) return {};
    if (to[0].mapped) {
        AUSPEX_TRY(finish());
        for (const Region& r : to) {
            AUSPEX_TRY(from.read(r.mapped, r.bytes));
            AUSPEX_TRY(gpu_->flush(r, r.bytes, true));
        }
        return {};
    }
    AUSPEX_TRY(need_staging());
    Gather groups(to, half_bytes_);
    std::vector<std::pair<Region, uint64_t>> group;
    for (;;) {
        const uint32_t half = take_half();
        group.clear();
        const uint64_t n = groups.next([&](const Region& r, uint64_t at) { group.emplace_back(r, at); });
        if (n == 0) return {};
        const Region& staging = half_[half].staging;
        AUSPEX_TRY(timeline_.wait(half_[half].value));
        AUSPEX_TRY(from.read(staging.mapped, n));
        AUSPEX_TRY(gpu_->flush(staging, n, true));
        AUSPEX_TRY(begin(half));
        for (const auto& [r, at] : group) add_copy(half_[half], r, staging.part(at, r.bytes), r.bytes);
        AUSPEX_TRY(send(half));
    }
}

Status Transfer::finish() { return timeline_.wait(timeline_.last()); }

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

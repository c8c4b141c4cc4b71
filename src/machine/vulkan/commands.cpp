#include "commands.h"
#ifndef AUSPEX_NO_VULKAN

#include <algorithm>
#include <chrono>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace commands_impl {

constexpr uint32_t kSetsPerPool = 64;

struct Scope {
    VkPipelineStageFlags stage = 0;
    VkAccessFlags access = 0;
};

/// Stages and accesses of one side of a barrier; before: the side that must finish first.
Scope scope_of(uint32_t sync, bool before) {
    Scope s;
    auto add = [&](uint32_t bit, VkPipelineStageFlags stage, VkAccessFlags writes, VkAccessFlags reads) {
        if ((sync & bit) == 0) return;
        s.stage |= stage;
        s.access |= before ? writes : reads;
    };
    add(kSyncCompute, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
        VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
    add(kSyncTransfer, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
        VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT);
    add(kSyncHost, VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_WRITE_BIT, VK_ACCESS_HOST_READ_BIT);
    return s;
}

uint64_t hash_infos(const std::vector<VkDescriptorBufferInfo>& infos) {
    Fnv h;
    for (const VkDescriptorBufferInfo& i : infos) {
        uint64_t handle = 0;
        std::memcpy(&handle, &i.buffer, sizeof i.buffer);
        h.mix(handle);
        h.mix(i.offset);
        h.mix(i.range);
    }
    return h.value;
}

bool same_infos(const std::vector<VkDescriptorBufferInfo>& a, const std::vector<VkDescriptorBufferInfo>& b) {
    return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) {
               return x.buffer == y.buffer && x.offset == y.offset && x.range == y.range;
           });
}

}  // namespace commands_impl

void Commands::reset() {
    if (!gpu_) return;
    timeline_ = Timeline();  // waits for the last run
    if (!gpu_->stalled) destroy();
    queries_ = VK_NULL_HANDLE;
    commands_ = VK_NULL_HANDLE;
    set_pools_.clear();
    pool_.reset();
    gpu_.reset();
}

void Commands::destroy() {
    for (VkDescriptorPool p : set_pools_) gpu_->vk.vkDestroyDescriptorPool(gpu_->device, p, nullptr);
    if (queries_) gpu_->vk.vkDestroyQueryPool(gpu_->device, queries_, nullptr);
    if (commands_) gpu_->vk.vkFreeCommandBuffers(gpu_->device, pool_->handle(), 1, &commands_);
}

Result<std::shared_ptr<CommandPool>> CommandPool::create(GpuRef gpu) {
    std::shared_ptr<CommandPool> made(new CommandPool(gpu));
    VkCommandPoolCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
    info.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
    info.queueFamilyIndex = gpu->traits.queue_family;
    AUSPEX_TRY(gpu->made(gpu->vk.vkCreateCommandPool(gpu->device, &info, nullptr, &made->pool_), &made->pool_,
                         "vkCreateCommandPool"));
    return made;
}

CommandPool::~CommandPool() {
    if (pool_ && !gpu_->stalled) gpu_->vk.vkDestroyCommandPool(gpu_->device, pool_, nullptr);
}

Result<Commands> Commands::create(GpuRef gpu, uint32_t n_timestamp, std::shared_ptr<CommandPool> pool) {
    Commands c;
    c.gpu_ = gpu;
    c.pool_ = std::move(pool);
    if (!c.pool_) AUSPEX_TRY(CommandPool::create(gpu).get(c.pool_));
    VkCommandBufferAllocateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
    info.commandPool = c.pool_->handle();
    info.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
    info.commandBufferCount = 1;
    AUSPEX_TRY(gpu->made(gpu->vk.vkAllocateCommandBuffers(gpu->device, &info, &c.commands_), &c.commands_,
                         "vkAllocateCommandBuffers"));
    if (n_timestamp > 0 && gpu->traits.timestamp_bits > 0) {
        VkQueryPoolCreateInfo q{};
        q.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO;
        q.queryType = VK_QUERY_TYPE_TIMESTAMP;
        q.queryCount = n_timestamp;
        AUSPEX_TRY(gpu->made(gpu->vk.vkCreateQueryPool(gpu->device, &q, nullptr, &c.queries_), &c.queries_,
                             "vkCreateQueryPool"));
        c.n_timestamp_ = n_timestamp;
    }
    return c;
}

// Keeps the first error, which end() returns.
void Commands::refuse(Status status) {
    if (status_.ok()) status_ = std::move(status);
}

Status Commands::begin(bool once) {
    ready_ = recording_ = false;
    status_ = Status();
    AUSPEX_TRY(timeline_.wait(timeline_.last()));
    AUSPEX_TRY(gpu_->check(gpu_->vk.vkResetCommandBuffer(commands_, 0), "vkResetCommandBuffer"));
    for (VkDescriptorPool p : set_pools_)
        AUSPEX_TRY(gpu_->check(gpu_->vk.vkResetDescriptorPool(gpu_->device, p, 0), "vkResetDescriptorPool"));
    sets_.clear();
    labels_.clear();
    n_dispatch_ = n_barrier_ = n_set_ = in_pool_ = pool_index_ = 0;
    bound_ = VK_NULL_HANDLE;
    bound_set_ = VK_NULL_HANDLE;
    by_address_ = false;
    VkCommandBufferBeginInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
    info.flags = once ? VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT : VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT;
    AUSPEX_TRY(gpu_->check(gpu_->vk.vkBeginCommandBuffer(commands_, &info), "vkBeginCommandBuffer"));
    recording_ = true;
    if (queries_) gpu_->vk.vkCmdResetQueryPool(commands_, queries_, 0, n_timestamp_);
    // Submissions to one queue start in order but may overlap. This barrier makes earlier writes visible.
    barrier(kSyncCompute | kSyncTransfer, kSyncCompute | kSyncTransfer);
    n_barrier_ = 0;
    return {};
}

VkDescriptorSet Commands::set_for(const std::vector<VkDescriptorBufferInfo>& infos) {
    const uint64_t hash = commands_impl::hash_infos(infos);
    for (const Set& s : sets_)
        if (s.hash == hash && commands_impl::same_infos(s.infos, infos)) return s.set;
    if (pool_index_ < set_pools_.size() && in_pool_ == commands_impl::kSetsPerPool) {
        ++pool_index_;
        in_pool_ = 0;
    }
    if (pool_index_ == set_pools_.size()) {
        const VkDescriptorPoolSize size{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, commands_impl::kSetsPerPool * kMaxBindings};
        VkDescriptorPoolCreateInfo info{};
        info.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO;
        info.maxSets = commands_impl::kSetsPerPool;
        info.poolSizeCount = 1;
        info.pPoolSizes = &size;
        set_pools_.reserve(set_pools_.size() + 1);  // may throw, and then nobody would destroy the pool
        VkDescriptorPool pool = VK_NULL_HANDLE;
        if (VkResult r = gpu_->vk.vkCreateDescriptorPool(gpu_->device, &info, nullptr, &pool); r != VK_SUCCESS) {
            refuse(gpu_->check(r, "vkCreateDescriptorPool"));
            return VK_NULL_HANDLE;
        }
        set_pools_.push_back(pool);
    }
    VkDescriptorSetAllocateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO;
    info.descriptorPool = set_pools_[pool_index_];
    info.descriptorSetCount = 1;
    info.pSetLayouts = &gpu_->set_layout;
    VkDescriptorSet set = VK_NULL_HANDLE;
    if (VkResult r = gpu_->vk.vkAllocateDescriptorSets(gpu_->device, &info, &set); r != VK_SUCCESS) {
        refuse(gpu_->check(r, "vkAllocateDescriptorSets"));
        return VK_NULL_HANDLE;
    }
    ++in_pool_;
    ++n_set_;
    VkWriteDescriptorSet write{};  // one write may cover consecutive bindings of one type
    write.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET;
    write.dstSet = set;
    write.descriptorCount = static_cast<uint32_t>(infos.size());
    write.descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    write.pBufferInfo = infos.data();
    gpu_->vk.vkUpdateDescriptorSets(gpu_->device, 1, &write, 0, nullptr);
    sets_.push_back({hash, set, infos});
    return set;
}

void Commands::bind(VkPipeline pipeline, Span<const Region> buffers, BufferAccess access) {
    if (!recording_ || !status_.ok()) return;
    const DeviceTraits& t = gpu_->traits;
    if (!pipeline) return refuse(fail(Code::bad_argument, "bind: the pipeline is null; was its wait() successful?"));
    if (buffers.empty() || buffers.size() > kMaxBindings)
        return refuse(
            fail(Code::bad_argument, "bind: ", buffers.size(), " buffers, expected 1 to ", kMaxBindings, "."));
    std::vector<VkDescriptorBufferInfo> infos;
    infos.reserve(buffers.size());
    for (size_t i = 0; i < buffers.size(); ++i) {
        const Region& r = buffers[i];
        if (!r.buffer || r.bytes == 0)
            return refuse(fail(Code::bad_argument, "bind: binding ", i, " is an empty region."));
        if (r.offset % t.storage_align)
            return refuse(fail(Code::bad_argument, "bind: binding ", i, " begins at ", r.offset,
                               ", which is no multiple of ", t.storage_align, " (minStorageBufferOffsetAlignment)."));
        if (r.bytes > t.max_storage_range)
            return refuse(fail(Code::bad_argument, "bind: binding ", i, " has ", r.bytes, " bytes, but ", t.name,
                               " sees at most ", t.max_storage_range, " through one binding: bind a part() of it."));
        infos.push_back({r.buffer, r.offset, r.bytes});
    }
    if (pipeline != bound_) gpu_->vk.vkCmdBindPipeline(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    bound_ = pipeline;
    by_address_ = t.addresses && access == BufferAccess::addresses;
    if (!by_address_) {
        const VkDescriptorSet set = set_for(infos);
        if (set && set != bound_set_)
            gpu_->vk.vkCmdBindDescriptorSets(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, gpu_->pipeline_layout, 0, 1,
                                             &set, 0, nullptr);
        bound_set_ = set;
    }
    if (!t.addresses || access == BufferAccess::bindings) return;
    uint64_t at[kMaxBindings];
    for (size_t i = 0; i < buffers.size(); ++i) at[i] = buffers[i].address;
    gpu_->vk.vkCmdPushConstants(commands_, gpu_->pipeline_layout, VK_SHADER_STAGE_COMPUTE_BIT, kPushBytes,
                                static_cast<uint32_t>(8 * buffers.size()), at);
}

void Commands::push(const void* args, uint32_t bytes) {
    if (!recording_ || !status_.ok()) return;
    if (bytes == 0 || bytes > kPushBytes || bytes % 4)
        return refuse(
            fail(Code::bad_argument, "push: ", bytes, " bytes, expected a multiple of 4 up to ", kPushBytes, "."));
    gpu_->vk.vkCmdPushConstants(commands_, gpu_->pipeline_layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, bytes, args);
}

void Commands::dispatch(uint32_t x, uint32_t y, uint32_t z) {
    if (!recording_ || !status_.ok()) return;
    if (!bound_ || (!bound_set_ && !by_address_))
        return refuse(fail(Code::bad_argument, "dispatch: nothing is bound."));
    const uint32_t* limit = gpu_->traits.max_group_count;
    if (x > limit[0] || y > limit[1] || z > limit[2])
        return refuse(fail(Code::bad_argument, "dispatch: ", x, " x ", y, " x ", z, " groups, but ", gpu_->traits.name,
                           " takes at most ", limit[0], " x ", limit[1], " x ", limit[2], ": spread the rows over y."));
    if (x == 0 || y == 0 || z == 0) return;
    gpu_->vk.vkCmdDispatch(commands_, x, y, z);
    ++n_dispatch_;
}

void Commands::barrier(uint32_t before, uint32_t after) {
    if (!recording_ || !status_.ok()) return;
    const commands_impl::Scope from = commands_impl::scope_of(before, true), to = commands_impl::scope_of(after, false);
    if (!from.stage || !to.stage) return refuse(fail(Code::bad_argument, "barrier: neither side may be empty."));
    VkMemoryBarrier b{};
    b.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
    b.srcAccessMask = from.access;
    b.dstAccessMask = to.access;
    gpu_->vk.vkCmdPipelineBarrier(commands_, from.stage, to.stage, 0, 1, &b, 0, nullptr, 0, nullptr);
    ++n_barrier_;
}

void Commands::copy(const Region& to, const Region& from) {
    if (!recording_ || !status_.ok()) return;
    if (from.bytes > to.bytes || from.bytes == 0)
        return refuse(fail(Code::bad_argument, "copy: ", from.bytes, " bytes into a region of ", to.bytes, "."));
    const VkBufferCopy piece{from.offset, to.offset, from.bytes};
    gpu_->vk.vkCmdCopyBuffer(commands_, from.buffer, to.buffer, 1, &piece);
}

void Commands::fill(const Region& to, uint32_t value) {
    if (!recording_ || !status_.ok()) return;
    if (to.offset % 4 || to.bytes % 4 || to.bytes == 0)
        return refuse(
            fail(Code::bad_argument, "fill: offset ", to.offset, " and size ", to.bytes, " must be multiples of 4."));
    gpu_->vk.vkCmdFillBuffer(commands_, to.buffer, to.offset, to.bytes, value);
}

void Commands::timestamp(const char* label) {
    if (!recording_ || !status_.ok() || !queries_) return;
    if (labels_.size() >= n_timestamp_)
        return refuse(
            fail(Code::bad_argument, "timestamp: more than the ", n_timestamp_, " marks asked for in create()."));
    gpu_->vk.vkCmdWriteTimestamp(commands_, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries_,
                                 static_cast<uint32_t>(labels_.size()));
    labels_.emplace_back(label);
}

Status Commands::end() {
    if (!recording_) return fail(Code::bad_argument, "end: begin() was not called or failed.");
    const uint32_t counted = n_barrier_;
    barrier(kSyncCompute | kSyncTransfer, kSyncHost);  // the host can read after its wait
    n_barrier_ = counted;
    recording_ = false;
    const VkResult r = gpu_->vk.vkEndCommandBuffer(commands_);
    if (!status_.ok()) return status_;
    if (r != VK_SUCCESS) return gpu_->check(r, "vkEndCommandBuffer");
    ready_ = true;
    return {};
}

Status Commands::run() {
    if (!ready_) return fail(Code::bad_argument, "run: nothing was recorded, or end() failed.");
    if (!timeline_) AUSPEX_TRY(Timeline::create(gpu_).get(timeline_));
    uint64_t value = 0;
    AUSPEX_TRY(timeline_.submit(commands_).get(value));
    return timeline_.wait(value);
}

Result<uint64_t> Commands::tick(uint32_t i) const {
    if (!queries_ || i >= labels_.size())
        return fail(Code::bad_argument, "tick: mark ", i, " of ", labels_.size(), ".");
    uint64_t tick = 0;
    VkResult r = VK_NOT_READY;
    // Some drivers write it after they signal the semaphore. On a lost device it may never come, and a wait for it not
    // end.
    const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(gpu_->timeout_ns);
    while (r == VK_NOT_READY) {
        r = gpu_->vk.vkGetQueryPoolResults(gpu_->device, queries_, i, 1, sizeof tick, &tick, sizeof tick,
                                           VK_QUERY_RESULT_64_BIT);
        if (r == VK_NOT_READY && std::chrono::steady_clock::now() >= end)
            return fail(Code::device_lost, "the time of mark ", i, " did not come: the Vulkan device was lost. ",
                        "Open the device again.");
    }
    AUSPEX_TRY(gpu_->check(r, "vkGetQueryPoolResults"));
    return tick;
}

Result<std::vector<std::pair<std::string, double>>> Commands::timings() {
    std::vector<std::pair<std::string, double>> out;
    if (!queries_ || labels_.size() < 2) return out;
    if (timeline_.last() == 0) return fail(Code::bad_argument, "timings: the recording has not run yet.");
    uint64_t before = 0, now = 0;
    AUSPEX_TRY(tick(0).get(before));
    for (uint32_t i = 1; i < labels_.size(); ++i, before = now) {
        AUSPEX_TRY(tick(i).get(now));
        out.emplace_back(labels_[i], gpu_->traits.us_between(before, now));
    }
    return out;
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

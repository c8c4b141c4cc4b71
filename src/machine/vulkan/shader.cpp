#include "shader.h"
#ifndef AUSPEX_NO_VULKAN
#include "../../base/clock.h"
#include "../../base/guard.h"
#include "inflate.h"
#include "../backend.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

// Shaders are compiled with the engine's limits.
static_assert(kMaxTentative == args::kMaxRows && kMaxTentative <= args::kMaxSample);
static_assert(kMaxUsedExpert == args::kMaxUsed);
static_assert(kLayoutBindings == args::kMaxBindings && kLayoutPushBytes == args::kPushBytes);

namespace shader_impl {

#include "spirv.inc"

constexpr uint32_t kRawMagic = 0x50535841;    // "AXSP": the unpacked registry
constexpr uint32_t kCacheMagic = 0x43505841;  // "AXPC": our header before the driver's cache
constexpr uint32_t kCacheVersion = 1;
constexpr uint64_t kMaxCacheBytes = 256u << 20;
constexpr uint32_t kSpirvMagic = 0x07230203;
constexpr uint64_t kMaxRawBytes = 256u << 20;

uint64_t fnv64(const void* data, size_t size) {
    Fnv h;
    h.bytes(data, size);
    return h.value;
}

/// Decodes the base 85 of tools/make_shaders.py: five characters are four bytes; digits start at '#' and skip '?' and
/// '\\'.
void decode_base85(const char* text, std::vector<std::byte>* to) {
    auto digit = [](char c) { return static_cast<uint32_t>(c - '#') - (c > '?') - (c > '\\'); };
    for (; *text; text += 5) {
        uint32_t word = 0;
        for (int i = 0; i < 5; ++i) word = word * 85 + digit(text[i]);
        for (int shift = 24; shift >= 0; shift -= 8) to->push_back(static_cast<std::byte>(word >> shift & 0xff));
    }
}

std::string key_text(const PipelineKey& k) {
    std::string s = say(k.shader, " group ", k.group);
    for (size_t i = 0; i < k.constants.size(); ++i) s += say(i ? "," : " constants ", k.constants[i].value);
    if (k.subgroup_size) s += say(" subgroup ", k.subgroup_size);
    return s;
}

uint64_t hash_of(const std::vector<PipelineKey>& keys) {
    Fnv h;
    for (const PipelineKey& k : keys) {
        h.bytes(k.shader.data(), k.shader.size());
        for (const SpecValue& c : k.constants) h.mix(uint64_t(c.id) << 32 | c.value);
        h.mix(k.group);
        h.mix(k.subgroup_size);
    }
    return h.value;
}

/// The contract of a module or null; shader_contract.h is sorted by name.
const ShaderContract* contract_of(std::string_view name) {
    const auto* end = std::end(kShaderContracts);
    const auto* at = std::lower_bound(std::begin(kShaderContracts), end, name,
                                      [](const ShaderContract& c, std::string_view n) { return c.name < n; });
    return at != end && at->name == name ? at : nullptr;
}

}  // namespace shader_impl

// --------------------------------------------------------------------------------- the registry

Result<std::shared_ptr<const Shaders>> Shaders::open() {
    std::vector<std::byte> packed;
    packed.reserve(shader_impl::kSpirvPackedBytes + 3);
    for (const char* text : shader_impl::kSpirvChunks) shader_impl::decode_base85(text, &packed);
    packed.resize(shader_impl::kSpirvPackedBytes);
    return open(packed, shader_impl::kSpirvRawBytes);
}

Result<std::shared_ptr<const Shaders>> Shaders::open(Span<const std::byte> packed, uint64_t raw_bytes) {
    auto bad = [](const char* why) {
        return fail(Code::bad_file, "the embedded shaders are damaged (", why,
                    "): run tools/make_shaders.py and build again.");
    };
    if (raw_bytes % 4 || raw_bytes < 8 || raw_bytes > shader_impl::kMaxRawBytes) return bad("their size is invalid");
    auto s = std::make_shared<Shaders>();
    s->raw_.resize(raw_bytes / 4);
    std::byte* raw = reinterpret_cast<std::byte*>(s->raw_.data());
    AUSPEX_TRY(inflate_zlib(packed, Span<std::byte>(raw, raw_bytes)));
    // Format: magic, n_module; for each module name offset, name bytes, word offset, n_word; then names and words.
    const std::vector<uint32_t>& w = s->raw_;
    const uint64_t n = w[1];
    if (w[0] != shader_impl::kRawMagic) return bad("the magic number is missing");
    if (n > (w.size() - 2) / 4) return bad("the index is too long");
    s->modules_.reserve(n);
    for (uint64_t i = 0; i < n; ++i) {
        const uint32_t* e = &w[2 + 4 * i];
        if (e[0] > raw_bytes || e[1] > raw_bytes - e[0]) return bad("a name lies outside");
        if (e[2] > w.size() || e[3] > w.size() - e[2] || e[3] < 5) return bad("a module lies outside");
        if (w[e[2]] != shader_impl::kSpirvMagic) return bad("a module is not SPIR-V");
        const Span<const uint32_t> words(&w[e[2]], e[3]);
        const std::string_view name(reinterpret_cast<const char*>(raw) + e[0], e[1]);
        s->modules_.push_back({name, words, shader_impl::contract_of(name)});
    }
    s->hash_ = shader_impl::fnv64(raw, raw_bytes);
    return std::shared_ptr<const Shaders>(std::move(s));
}

const Shaders::Module* Shaders::find(std::string_view name) const {
    for (const Module& m : modules_)
        if (m.name == name) return &m;
    return nullptr;
}

Status check_key(const ShaderContract& contract, const PipelineKey& key) {
    uint32_t given = 0;
    for (const SpecValue& c : key.constants) {
        const uint32_t family = static_cast<uint32_t>(c.id) >> 8, i = static_cast<uint32_t>(c.id) & 0xffu;
        if (family != contract.family || i > 31 || !(contract.constant_ids >> i & 1u))
            return fail(Code::bad_argument, "the key of shader '", contract.name, "' gives specialization constant ", i,
                        " of shader family ", family, "; it is family ", contract.family,
                        " and takes: ", contract.constants, ". Name its own: spec::SHADER::k... in shader_contract.h.");
        if (given >> i & 1u)
            return fail(Code::bad_argument, "the key of shader '", contract.name, "' gives specialization constant ", i,
                        " twice.");
        given |= 1u << i;
    }
    if (given != contract.constant_ids)
        return fail(Code::bad_argument, "the key of shader '", contract.name, "' gives ", key.constants.size(),
                    " specialization constants; it takes each of: ", contract.constants, ".");
    if (contract.group[0] != 0 && contract.group[0] != key.group)
        return fail(Code::bad_argument, "shader '", contract.name, "' has workgroups of ", contract.group[0],
                    " invocations along x; the key asks for ", key.group, ".");
    return {};
}

Status check_dispatch(const ShaderContract& contract, size_t n_buffer, size_t push_bytes) {
    // Extra buffers are allowed: one dispatch may serve several alternatives, of which some read fewer.
    if (n_buffer < contract.n_binding)
        return fail(Code::bad_argument, "shader '", contract.name, "' has ", contract.n_binding, " buffers (",
                    contract.bindings, "); the dispatch gives ", n_buffer, ".");
    if (push_bytes < contract.push_bytes)
        return fail(Code::bad_argument, "shader '", contract.name, "' reads ", contract.push_bytes,
                    " bytes of push constants; the dispatch gives ", push_bytes, ".");
    return {};
}

Status module_fits(Span<const uint32_t> words, const DeviceTraits& t) {
    auto sub = [&](uint32_t bit) { return (t.subgroup_ops & bit) != 0; };
    struct Capability {
        uint32_t id;
        bool has;
        const char* name;
    };
    // Keep in step with the list in tools/make_shaders.py.
    const Capability known[] = {
        {0, true, "Matrix"},
        {1, true, "Shader"},
        {9, t.float16, "Float16"},
        {11, t.int64, "Int64"},
        {22, t.int16, "Int16"},
        {39, t.int8, "Int8"},
        {61, sub(VK_SUBGROUP_FEATURE_BASIC_BIT), "GroupNonUniform"},
        {62, sub(VK_SUBGROUP_FEATURE_VOTE_BIT), "GroupNonUniformVote"},
        {63, sub(VK_SUBGROUP_FEATURE_ARITHMETIC_BIT), "GroupNonUniformArithmetic"},
        {64, sub(VK_SUBGROUP_FEATURE_BALLOT_BIT), "GroupNonUniformBallot"},
        {65, sub(VK_SUBGROUP_FEATURE_SHUFFLE_BIT), "GroupNonUniformShuffle"},
        {66, sub(VK_SUBGROUP_FEATURE_SHUFFLE_RELATIVE_BIT), "GroupNonUniformShuffleRelative"},
        {67, sub(VK_SUBGROUP_FEATURE_CLUSTERED_BIT), "GroupNonUniformClustered"},
        {68, sub(VK_SUBGROUP_FEATURE_QUAD_BIT), "GroupNonUniformQuad"},
        {4433, t.storage16, "StorageBuffer16BitAccess"},
        {4448, t.storage8, "StorageBuffer8BitAccess"},
        {4466, t.keep_nan32, "SignedZeroInfNanPreserve"},
        {4467, t.rounding_rte16, "RoundingModeRTE"},
        {5345, t.memory_model, "VulkanMemoryModel"},
        {5346, t.memory_model, "VulkanMemoryModelDeviceScope"},
        {5347, t.addresses, "PhysicalStorageBufferAddresses"},
        {5357, t.matrix_nv, "CooperativeMatrixNV"},
        {6016, t.dot, "DotProductInputAll"},
        {6017, t.dot, "DotProductInput4x8Bit"},
        {6018, t.dot, "DotProductInput4x8BitPacked"},
        {6019, t.dot, "DotProduct"},
        {6022, t.matrix_khr, "CooperativeMatrixKHR"},
    };
    for (size_t at = 5; at < words.size();) {
        const uint32_t op = words[at] & 0xffffu, n = words[at] >> 16;
        if (n == 0 || n > words.size() - at)
            return fail(Code::bad_file, "a SPIR-V module is cut short at word ", at, ".");
        if (op != 17) break;  // all OpCapability come first
        const uint32_t id = n > 1 ? words[at + 1] : 0;
        const Capability* c = std::find_if(std::begin(known), std::end(known), [&](auto& k) { return k.id == id; });
        if (c == std::end(known) || !c->has)
            return fail(Code::unsupported, t.name, " lacks ", c == std::end(known) ? "an unknown capability" : c->name,
                        " (SPIR-V capability ", id, ").");
        at += n;
    }
    return {};
}

// -------------------------------------------------------------------------- the cache's own header

namespace shader_impl {
struct CacheHeader {
    uint32_t magic, version;
    uint64_t shaders_hash;
    uint32_t vendor_id, device_id, driver_version, driver_id;
    uint8_t pipeline_uuid[VK_UUID_SIZE], driver_uuid[VK_UUID_SIZE];
    uint64_t payload_bytes, checksum;
};
static_assert(sizeof(CacheHeader) == 80, "the header is stored as it lies in memory");

CacheHeader header_for(const DeviceTraits& t, uint64_t hash) {
    CacheHeader h{};
    h.magic = kCacheMagic;
    h.version = kCacheVersion;
    h.shaders_hash = hash;
    h.vendor_id = t.vendor_id;
    h.device_id = t.device_id;
    h.driver_version = t.driver_version;
    h.driver_id = t.driver_id;
    std::memcpy(h.pipeline_uuid, t.pipeline_cache_uuid, VK_UUID_SIZE);
    std::memcpy(h.driver_uuid, t.driver_uuid, VK_UUID_SIZE);
    return h;
}
}  // namespace shader_impl

std::vector<std::byte> wrap_cache(const DeviceTraits& t, uint64_t hash, Span<const std::byte> payload) {
    shader_impl::CacheHeader h = shader_impl::header_for(t, hash);
    h.payload_bytes = payload.size();
    h.checksum = shader_impl::fnv64(payload.data(), payload.size());
    std::vector<std::byte> blob(sizeof h + payload.size());
    std::memcpy(blob.data(), &h, sizeof h);
    if (!payload.empty()) std::memcpy(blob.data() + sizeof h, payload.data(), payload.size());
    return blob;
}

Span<const std::byte> unwrap_cache(const DeviceTraits& t, uint64_t hash, Span<const std::byte> blob, std::string* why) {
    using shader_impl::CacheHeader;
    auto refuse = [&](const char* reason) {
        *why = reason;
        return Span<const std::byte>();
    };
    if (blob.size() < sizeof(CacheHeader)) return refuse("it is shorter than its header");
    if (blob.size() > shader_impl::kMaxCacheBytes) return refuse("it is larger than 256 MiB");
    const CacheHeader h = load<CacheHeader>(blob.data()), want = shader_impl::header_for(t, hash);
    if (h.magic != want.magic) return refuse("it is not a pipeline cache of this library");
    if (h.version != want.version) return refuse("its format has another version");
    if (h.shaders_hash != want.shaders_hash) return refuse("it was made with other shaders");
    if (h.vendor_id != want.vendor_id || h.device_id != want.device_id) return refuse("it was made on another device");
    if (h.driver_version != want.driver_version || h.driver_id != want.driver_id ||
        std::memcmp(h.driver_uuid, want.driver_uuid, VK_UUID_SIZE) != 0 ||
        std::memcmp(h.pipeline_uuid, want.pipeline_uuid, VK_UUID_SIZE) != 0)
        return refuse("it was made by another driver version");
    const Span<const std::byte> payload = blob.subspan(sizeof h, blob.size() - sizeof h);
    if (h.payload_bytes != payload.size()) return refuse("it is cut short");
    if (h.checksum != shader_impl::fnv64(payload.data(), payload.size())) return refuse("its checksum does not match");
    // Check Vulkan's own header too, because some drivers do not.
    if (payload.size() < 16 + VK_UUID_SIZE) return refuse("the driver's header is cut short");
    const uint32_t header_bytes = load<uint32_t>(payload.data()), version = load<uint32_t>(payload.data() + 4);
    if (header_bytes < 16 + VK_UUID_SIZE || header_bytes > payload.size() ||
        version != VK_PIPELINE_CACHE_HEADER_VERSION_ONE || load<uint32_t>(payload.data() + 8) != t.vendor_id ||
        load<uint32_t>(payload.data() + 12) != t.device_id ||
        std::memcmp(payload.data() + 16, t.pipeline_cache_uuid, VK_UUID_SIZE) != 0)
        return refuse("the driver's header does not fit this driver");
    return payload;
}

// -------------------------------------------------------------------------------- the pipelines

Result<std::unique_ptr<Pipelines>> Pipelines::create(GpuRef gpu, std::shared_ptr<const Shaders> shaders,
                                                     Span<const std::byte> cache, uint32_t n_thread) {
    std::unique_ptr<Pipelines> p(new Pipelines());
    p->gpu_ = gpu;
    p->shaders_ = std::move(shaders);
    // Leave two cores to the application. More than eight workers gain nothing, because drivers serialise.
    const uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
    p->max_workers_ = n_thread == kNoThread ? 0
                      : n_thread != 0       ? n_thread
                                            : std::min(8u, std::max(1u, cores > 3 ? cores - 2 : cores));
    Span<const std::byte> payload;
    if (!cache.empty()) {
        std::string why;
        payload = unwrap_cache(gpu->traits, p->shaders_->hash(), cache, &why);
        p->cache_note_ = why.empty() ? say("read, ", payload.size(), " bytes") : say("ignored: ", why);
    } else {
        p->cache_note_ = "none given";
    }
    VkPipelineCacheCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO;
    info.initialDataSize = payload.size();
    info.pInitialData = payload.empty() ? nullptr : payload.data();
    VkResult r = gpu->vk.vkCreatePipelineCache(gpu->device, &info, nullptr, &p->cache_);
    if (r != VK_SUCCESS && !payload.empty()) {
        p->cache_note_ = say("refused by the driver: ", result_name(r));
        info.initialDataSize = 0;
        info.pInitialData = nullptr;
        r = gpu->vk.vkCreatePipelineCache(gpu->device, &info, nullptr, &p->cache_);
    }
    if (r != VK_SUCCESS) {
        p->cache_ = VK_NULL_HANDLE;
        return gpu->check(r, "vkCreatePipelineCache");
    }
    return p;
}

Pipelines::~Pipelines() {
    {
        std::lock_guard<std::mutex> hold(lock_);
        stop_ = true;
        queue_.clear();
    }
    changed_.notify_all();
    for (Thread& t : workers_) t.join();
    if (!gpu_ || gpu_->stalled) return;
    for (Entry& e : entries_)
        if (e.pipeline) gpu_->vk.vkDestroyPipeline(gpu_->device, e.pipeline, nullptr);
    if (cache_) gpu_->vk.vkDestroyPipelineCache(gpu_->device, cache_, nullptr);
}

Pipelines::Id Pipelines::request(std::vector<PipelineKey> alternatives) {
    return queue(std::move(alternatives), false);
}

Pipelines::Id Pipelines::queue(std::vector<PipelineKey> alternatives, bool ahead) {
    const uint64_t hash = shader_impl::hash_of(alternatives);
    std::unique_lock<std::mutex> hold(lock_);
    Id id = static_cast<Id>(entries_.size());
    const auto same = by_hash_.equal_range(hash);
    for (auto i = same.first; i != same.second; ++i)
        if (entries_[i->second].alternatives == alternatives) id = i->second;
    if (id == entries_.size()) {
        entries_.emplace_back();
        entries_.back().alternatives = std::move(alternatives);
        entries_.back().ahead = true;
        by_hash_.emplace(hash, id);
    }
    Entry& e = entries_[id];
    const bool failed = e.done && !e.status.ok(), first = e.ahead && !ahead;
    const bool again = failed && (first || e.status.code == Code::out_of_memory);  // memory may have been freed since
    e.ahead = e.ahead && ahead;
    if (e.queued && !again) return id;
    // If an allocation below fails, the entry is not queued, and the next request() queues it.
    if (queue_.size() >= idle_ && workers_.size() < max_workers_) start_worker();
    queue_.push_back(id);
    e.queued = true;
    e.done = false;
    changed_.notify_all();
    while (workers_.empty() && !queue_.empty()) make_next(hold);
    return id;
}

void Pipelines::start_worker() {
    int error = 0;
    workers_.emplace_back();
    if (workers_.back().start(work_entry, this, &error)) return;
    workers_.pop_back();
    max_workers_ = static_cast<uint32_t>(workers_.size());  // do not try again
}

void* Pipelines::work_entry(void* me) {
    static_cast<Pipelines*>(me)->work();
    return nullptr;
}

void Pipelines::work() {
    std::unique_lock<std::mutex> hold(lock_);
    for (;;) {
        ++idle_;
        changed_.wait(hold, [this] { return stop_ || !queue_.empty(); });
        --idle_;
        if (stop_) return;
        make_next(hold);
    }
}

void Pipelines::make_next(std::unique_lock<std::mutex>& hold) {
    const Id id = queue_.front();
    queue_.pop_front();
    Entry& e = entries_[id];  // stays valid: push_back on a deque moves nothing
    hold.unlock();
    const auto begin = std::chrono::steady_clock::now();
    Made made;
    Status status = make_first(e.alternatives, &made);
    const double seconds = seconds_since(begin);
    hold.lock();
    e.pipeline = made.pipeline;
    e.chosen = made.chosen;
    e.contract = made.contract;
    e.status = std::move(status);
    e.refused = std::move(made.refused);
    e.seconds = seconds;
    e.done = true;
    changed_.notify_all();
}

Status Pipelines::make_first(const std::vector<PipelineKey>& alternatives, Made* made) AUSPEX_BOUNDARY {
    Status status(Code::bad_argument, alternatives.empty() ? "no pipeline key was given." : "");
    std::string& refused = made->refused;
    for (uint32_t i = 0; i < alternatives.size(); ++i) {
        status = make(alternatives[i], &made->pipeline, &made->contract);
        made->chosen = i;
        if (status.ok() || status.code == Code::out_of_memory || status.code == Code::device_lost) return status;
        refused += say(refused.empty() ? "" : " ", shader_impl::key_text(alternatives[i]), ": ", status.text);
    }
    if (!refused.empty()) status.text = refused;
    return status;
}
AUSPEX_CATCH

Status Pipelines::make(const PipelineKey& key, VkPipeline* out, const ShaderContract** contract) {
    const DeviceTraits& t = gpu_->traits;
    const Shaders::Module* module = shaders_->find(key.shader);
    if (!module)
        return fail(Code::bad_argument, "there is no shader '", key.shader, "' among the ", shaders_->modules().size(),
                    " embedded ones: was tools/make_shaders.py run?");
    AUSPEX_TRY(module_fits(module->words, t));
    if (module->contract) AUSPEX_TRY(check_key(*module->contract, key));
    *contract = module->contract;
    if (key.group == 0 || key.group > t.max_group_invocations || key.group > t.max_group_size[0])
        return fail(Code::unsupported, "a group of ", key.group, " invocations; ", t.name, " takes 1 to ",
                    std::min(t.max_group_invocations, t.max_group_size[0]), ".");
    if (key.subgroup_size) {
        if (!t.subgroup_size_control || key.subgroup_size < t.subgroup_min || key.subgroup_size > t.subgroup_max)
            return fail(Code::unsupported, "a subgroup size of ", key.subgroup_size, "; ", t.name, " can require ",
                        t.subgroup_size_control ? say(t.subgroup_min, " to ", t.subgroup_max) : std::string("none"),
                        ".");
        if (key.group > uint64_t(key.subgroup_size) * t.max_group_subgroups)
            return fail(Code::unsupported, "a group of ", key.group, " with subgroups of ", key.subgroup_size, "; ",
                        t.name, " takes ", t.max_group_subgroups, " required subgroups a group.");
    }
    std::vector<uint32_t> values{key.group};
    std::vector<VkSpecializationMapEntry> entries{{0, 0, 4}};
    for (const SpecValue& c : key.constants) {
        entries.push_back({static_cast<uint32_t>(c.id) & 0xffu, static_cast<uint32_t>(values.size()) * 4u, 4});
        values.push_back(c.value);
    }
    VkShaderModuleCreateInfo words{};
    words.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
    words.codeSize = module->words.size() * sizeof(uint32_t);
    words.pCode = module->words.data();
    VkShaderModule shader = VK_NULL_HANDLE;
    AUSPEX_TRY(gpu_->check(gpu_->vk.vkCreateShaderModule(gpu_->device, &words, nullptr, &shader),
                           "vkCreateShaderModule", key.shader.c_str()));
    VkSpecializationInfo special{};
    special.mapEntryCount = static_cast<uint32_t>(entries.size());
    special.pMapEntries = entries.data();
    special.dataSize = values.size() * 4;
    special.pData = values.data();
    VkPipelineShaderStageRequiredSubgroupSizeCreateInfo size{};
    size.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO;
    size.requiredSubgroupSize = key.subgroup_size;
    VkComputePipelineCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
    info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    info.stage.module = shader;
    info.stage.pName = "main";
    info.stage.pSpecializationInfo = &special;
    if (key.subgroup_size) info.stage.pNext = &size;
    // Vulkan allows full subgroups only if the group size is a multiple of the subgroup size.
    const uint32_t whole = key.subgroup_size ? key.subgroup_size : t.subgroup_max;
    if (key.full_subgroups && t.full_subgroups && whole && key.group % whole == 0)
        info.stage.flags |= VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
    info.layout = gpu_->pipeline_layout;
    const VkResult r = gpu_->vk.vkCreateComputePipelines(gpu_->device, cache_, 1, &info, nullptr, out);
    gpu_->vk.vkDestroyShaderModule(gpu_->device, shader, nullptr);
    return gpu_->made(r, out, "vkCreateComputePipelines", key.shader.c_str());
}

Status Pipelines::wait(Id id) {
    std::unique_lock<std::mutex> hold(lock_);
    if (id >= entries_.size()) return fail(Code::bad_argument, "there is no pipeline ", id, ".");
    changed_.wait(hold, [&] { return entries_[id].done; });
    return entries_[id].status;
}

Status Pipelines::wait_twice(Id id) {
    Status status = wait(id);
    if (status.code != Code::out_of_memory) return status;
    std::vector<PipelineKey> alternatives;
    {
        std::lock_guard<std::mutex> hold(lock_);
        alternatives = entries_[id].alternatives;
    }
    return wait(request(std::move(alternatives)));
}

bool Pipelines::done(Id id) const {
    std::lock_guard<std::mutex> hold(lock_);
    return id >= entries_.size() || entries_[id].done;
}

Status Pipelines::wait_all() {
    Status first;
    const size_t n = size();
    for (size_t i = 0; i < n; ++i) {
        Status s = wait(static_cast<Id>(i));
        if (first.ok() && !s.ok()) first = std::move(s);
    }
    return first;
}

VkPipeline Pipelines::get(Id id) const {
    std::lock_guard<std::mutex> hold(lock_);
    return id < entries_.size() ? entries_[id].pipeline : VK_NULL_HANDLE;
}

const ShaderContract* Pipelines::contract(Id id) const {
    std::lock_guard<std::mutex> hold(lock_);
    return id < entries_.size() ? entries_[id].contract : nullptr;
}

uint32_t Pipelines::chosen(Id id) const {
    std::lock_guard<std::mutex> hold(lock_);
    return id < entries_.size() ? entries_[id].chosen : 0;
}

size_t Pipelines::size() const {
    std::lock_guard<std::mutex> hold(lock_);
    return entries_.size();
}

std::vector<std::byte> Pipelines::cache_blob() const {
    for (int i = 0; i < 8; ++i) {
        size_t n = 0;
        if (gpu_->vk.vkGetPipelineCacheData(gpu_->device, cache_, &n, nullptr) != VK_SUCCESS || n == 0) return {};
        std::vector<std::byte> payload(n);
        const VkResult r = gpu_->vk.vkGetPipelineCacheData(gpu_->device, cache_, &n, payload.data());
        if (r == VK_INCOMPLETE) continue;  // a thread has added a pipeline since the first call
        if (r != VK_SUCCESS) return {};
        payload.resize(n);
        return wrap_cache(gpu_->traits, shaders_->hash(), payload);
    }
    return {};
}

std::string Pipelines::report() const {
    std::lock_guard<std::mutex> hold(lock_);
    std::string s = say("cache       ", cache_note_, "\n");
    for (const Entry& e : entries_) {
        if (!e.done || e.alternatives.empty()) continue;
        const std::string key = shader_impl::key_text(e.alternatives[e.chosen]);
        if (e.status.ok()) s += say("pipeline    ", key, ", ", static_cast<uint64_t>(e.seconds * 1000 + 0.5), " ms\n");
        if (!e.refused.empty())
            s += say(e.status.ok() ? "refused     " : "missing     ", e.refused, "\n");
        else if (!e.status.ok())
            s += say("missing     ", key, ": ", e.status.text, "\n");
    }
    return s;
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

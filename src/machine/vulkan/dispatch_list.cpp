#include "dispatch_list.h"
#ifndef AUSPEX_NO_VULKAN
#include "../../../shaders/args.h"

#include <algorithm>
#include <cstddef>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace dispatch_list_impl {

uint64_t hash_of(const PipelineKey& k) {
    Fnv h;
    h.bytes(k.shader.data(), k.shader.size());
    for (const SpecValue& c : k.constants) h.mix(uint64_t(c.id) << 32 | c.value);
    h.mix(k.group);
    return h.value;
}

}  // namespace dispatch_list_impl

void DispatchList::clear() {
    keys_.clear();
    key_hashes_.clear();
    entries_.clear();
    regions_.clear();
    words_.clear();
}

uint32_t DispatchList::key_index(const PipelineKey& key) {
    const uint64_t hash = dispatch_list_impl::hash_of(key);
    for (size_t i = 0; i < keys_.size(); ++i)
        if (key_hashes_[i] == hash && keys_[i] == key) return static_cast<uint32_t>(i);
    keys_.push_back(key);
    key_hashes_.push_back(hash);
    return static_cast<uint32_t>(keys_.size() - 1);
}

DispatchList::Entry& DispatchList::append(Entry::Kind kind, Span<const Region> regions) {
    Entry e;
    e.kind = kind;
    e.first_region = static_cast<uint32_t>(regions_.size());
    e.n_region = static_cast<uint32_t>(regions.size());
    regions_.insert(regions_.end(), regions.begin(), regions.end());
    entries_.push_back(e);
    return entries_.back();
}

void DispatchList::dispatch(const PipelineKey& key, Span<const Region> regions, const void* push, uint32_t push_bytes,
                            const Grid& grid, const char* label, uint64_t bytes) {
    AUSPEX_ASSERT(push_bytes % 4 == 0);
    Entry& e = append(Entry::Kind::dispatch, regions);
    e.key = key_index(key);
    e.first_word = static_cast<uint32_t>(words_.size());
    e.n_word = push_bytes / 4;
    e.grid = grid;
    e.label = label;
    e.bytes = bytes;
    words_.resize(words_.size() + e.n_word);
    std::memcpy(words_.data() + e.first_word, push, push_bytes);
}

void DispatchList::copy(const Region& to, const Region& from) {
    const Region both[] = {to, from};
    append(Entry::Kind::copy, {both, 2});
}

void DispatchList::fill(const Region& to) { append(Entry::Kind::fill, {&to, 1}); }

void DispatchList::barrier(uint32_t before, uint32_t after) {
    Entry& e = append(Entry::Kind::barrier, {});
    e.sync_before = before;
    e.sync_after = after;
}

// ---------------------------------------------------------------------------------------- chains

void DispatchList::may_chain(size_t args_at) {
    AUSPEX_ASSERT(!entries_.empty() && args_at > 0 && args_at % 4 == 0);
    entries_.back().chain_word = static_cast<uint32_t>(args_at / 4);
}

/// The barrier that ends the stage of entry `first`, or the number of entries.
size_t DispatchList::stage_end(size_t first) const {
    while (first < entries_.size() && entries_[first].kind != Entry::Kind::barrier) ++first;
    return first;
}

/// A stage may count its workgroups, and wait for those of the stage before.
bool DispatchList::chains(size_t first, size_t end) const {
    return first < end && std::all_of(entries_.begin() + static_cast<std::ptrdiff_t>(first),
                                      entries_.begin() + static_cast<std::ptrdiff_t>(end),
                                      [](const Entry& e) { return e.chain_word != 0; });
}

void DispatchList::chain(const Region& step) {
    auto args_of = [&](size_t i) { return &words_[entries_[i].first_word + entries_[i].chain_word]; };
    std::vector<Entry> kept;
    uint32_t n = 0;
    for (size_t from = 0, at = stage_end(0); from < entries_.size(); from = at + 1, at = stage_end(from)) {
        kept.insert(kept.end(), entries_.begin() + static_cast<std::ptrdiff_t>(from),
                    entries_.begin() + static_cast<std::ptrdiff_t>(at));
        if (at == entries_.size()) break;
        const Entry& barrier = entries_[at];
        const size_t end = stage_end(at + 1);
        const bool between_kernels = barrier.sync_before == kSyncCompute && barrier.sync_after == kSyncCompute;
        if (!between_kernels || !chains(from, at) || !chains(at + 1, end) || n == args::kChainCount) {
            kept.push_back(barrier);
            continue;
        }
        const uint32_t word = args::kChainWord + n++;
        uint32_t n_group = 0;
        for (size_t i = from; i < at; ++i) {
            const Grid& g = entries_[i].grid;
            n_group += g.x * g.y * g.z;
            args_of(i)[offsetof(args::ChainArgs, done_word) / 4] = word;
        }
        for (size_t i = at + 1; i < end; ++i) {
            args_of(i)[offsetof(args::ChainArgs, await_word) / 4] = word;
            args_of(i)[offsetof(args::ChainArgs, n_await) / 4] = n_group;
        }
    }
    entries_ = std::move(kept);
    if (n > 0) zero_counters(step.part(4 * args::kChainWord, 4 * n));
}

/// Before the first stage that counts: beside what runs before it, or else with a barrier of its own.
void DispatchList::zero_counters(const Region& counters) {
    const size_t first = stage_end(0), n = entries_.size();
    const bool beside = first < n && !chains(0, first);
    if (beside) entries_[first].sync_before |= kSyncTransfer;
    fill(counters);
    if (!beside) barrier(kSyncTransfer, kSyncCompute);
    std::rotate(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(n), entries_.end());
}

// --------------------------------------------------------------------------------------- read it

uint32_t DispatchList::n_dispatch() const {
    return static_cast<uint32_t>(std::count_if(entries_.begin(), entries_.end(),
                                               [](const Entry& e) { return e.kind == Entry::Kind::dispatch; }));
}

uint32_t DispatchList::n_barrier() const {
    return static_cast<uint32_t>(
        std::count_if(entries_.begin(), entries_.end(), [](const Entry& e) { return e.kind == Entry::Kind::barrier; }));
}

std::vector<DispatchList::Count> DispatchList::counts() const {
    std::vector<Count> out;
    for (const Entry& e : entries_) {
        if (e.kind != Entry::Kind::dispatch) continue;
        const std::string& shader = keys_[e.key].shader;
        auto at = std::find_if(out.begin(), out.end(), [&](const Count& c) { return c.shader == shader; });
        if (at == out.end()) at = out.insert(out.end(), Count{shader, 0, 0});
        at->n_dispatch += 1;
        at->bytes += e.bytes;
    }
    return out;
}

std::vector<DispatchList::Stage> DispatchList::stages() const {
    std::vector<Stage> out;
    for (size_t from = 0; from < entries_.size(); from = stage_end(from) + 1) {
        Stage stage;
        stage.end = stage_end(from);
        for (size_t i = from; i < stage.end; ++i) {
            const Entry& e = entries_[i];
            if (e.kind != Entry::Kind::dispatch) continue;
            if (stage.label.find(e.label) == std::string::npos)
                stage.label += stage.label.empty() ? std::string(e.label) : say(" ", e.label);
            stage.bytes += e.bytes;
        }
        if (!stage.label.empty()) out.push_back(std::move(stage));
    }
    return out;
}

std::string DispatchList::text() const {
    std::vector<VkBuffer> buffers;
    auto region = [&](const Region& r) {
        auto at = std::find(buffers.begin(), buffers.end(), r.buffer);
        if (at == buffers.end()) at = buffers.insert(buffers.end(), r.buffer);
        return say(" ", at - buffers.begin(), "+", r.offset, ":", r.bytes);
    };
    std::string s;
    for (const Entry& e : entries_) {
        switch (e.kind) {
            case Entry::Kind::dispatch: {
                const PipelineKey& k = keys_[e.key];
                s += say("dispatch  ", k.shader, " group ", k.group, " grid ", e.grid.x, "x", e.grid.y, "x", e.grid.z,
                         " push ", e.n_word * 4, " buffers");
                break;
            }
            case Entry::Kind::copy: s += "copy     "; break;
            case Entry::Kind::fill: s += "fill     "; break;
            case Entry::Kind::barrier:
                s += e.sync_after & kSyncTransfer ? "barrier   to kernels and copies" : "barrier";
                break;
        }
        for (const Region& r : regions(e)) s += region(r);
        s += "\n";
    }
    return s;
}

// ---------------------------------------------------------------------------- compile and record

std::vector<Pipelines::Id> DispatchList::request(Pipelines* pipelines) const {
    std::vector<Pipelines::Id> ids;
    ids.reserve(keys_.size());
    for (const PipelineKey& k : keys_) ids.push_back(pipelines->request(k));
    return ids;
}

Status DispatchList::record(Pipelines& pipelines, Span<const Pipelines::Id> ids, Commands* commands, bool timed) const {
    struct Made {
        VkPipeline pipeline;
        const ShaderContract* contract;
    };
    AUSPEX_ASSERT(ids.size() == keys_.size());
    std::vector<Made> made;
    made.reserve(ids.size());
    for (Pipelines::Id id : ids) {
        AUSPEX_TRY(pipelines.wait(id));
        made.push_back({pipelines.get(id), pipelines.contract(id)});
    }
    AUSPEX_TRY(commands->begin());
    const std::vector<Stage> stages = timed ? this->stages() : std::vector<Stage>();
    size_t i_stage = 0;
    if (timed) commands->timestamp("begin");
    for (size_t i = 0; i <= entries_.size(); ++i) {
        if (i_stage < stages.size() && stages[i_stage].end == i) commands->timestamp(stages[i_stage++].label.c_str());
        if (i == entries_.size()) break;
        const Entry& e = entries_[i];
        switch (e.kind) {
            case Entry::Kind::dispatch: {
                BufferAccess access = BufferAccess::both;
                if (const ShaderContract* c = made[e.key].contract) {
                    AUSPEX_TRY(check_dispatch(*c, e.n_region, e.n_word * 4));
                    access = c->addresses ? BufferAccess::addresses : BufferAccess::bindings;
                }
                commands->bind(made[e.key].pipeline, regions(e), access);
                commands->push(words_.data() + e.first_word, e.n_word * 4);
                commands->dispatch(e.grid.x, e.grid.y, e.grid.z);
                break;
            }
            case Entry::Kind::copy: commands->copy(regions(e)[0], regions(e)[1]); break;
            case Entry::Kind::fill: commands->fill(regions(e)[0], 0); break;
            case Entry::Kind::barrier: commands->barrier(e.sync_before, e.sync_after); break;
        }
    }
    return commands->end();
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

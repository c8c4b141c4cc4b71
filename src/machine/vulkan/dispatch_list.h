// machine/vulkan/dispatch_list: what one command buffer does, as plain data.
//
// What    DispatchList: dispatches, copies, fills and barriers in order, with pipeline keys, buffers, push constants
//         and group counts. Built once by ListBuilder, then printed, counted, compiled (pipelines made in parallel),
//         recorded into a command buffer, and replayed from there. Building a list needs no pipeline and records
//         nothing.
// Owns    no device object; regions stay valid as long as the memory they were taken from.
// Thread  plain data; one thread at a time.
// Tests   tests/test_dispatch_list.cpp, tests/test_vulkan_chain.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "commands.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// Workgroups of a dispatch.
struct Grid {
    uint32_t x = 1, y = 1, z = 1;
};

class DispatchList {
  public:
    struct Entry {
        enum class Kind : uint8_t { dispatch, copy, fill, barrier };
        Kind kind = Kind::dispatch;
        uint32_t key = 0;  ///< dispatch: index into keys()
        /// dispatch: bindings 0, 1, ...; copy: destination, source; fill: one
        uint32_t first_region = 0, n_region = 0;
        uint32_t first_word = 0, n_word = 0;       ///< dispatch: push constants
        uint32_t chain_word = 0;                   ///< dispatch: where its ChainArgs are among them; 0: it has none
        Grid grid;                                 ///< dispatch
        uint32_t sync_before = 0, sync_after = 0;  ///< barrier: Sync bits
        const char* label = "";                    ///< dispatch: kernel class, for profiles; a string literal
        uint64_t bytes = 0;                        ///< dispatch: weights and states it moves at least
    };

    /// What ran between two barriers.
    struct Stage {
        std::string label;  ///< the classes of its kernels
        uint64_t bytes = 0;
        size_t end = 0;  ///< index of the barrier that ends it, or the number of entries
    };

    /// Dispatches of one shader.
    struct Count {
        std::string shader;
        uint32_t n_dispatch = 0;
        uint64_t bytes = 0;
    };

    void clear();
    /// Appends. `push`: a multiple of 4 bytes; regions, push constants and limits are checked by record().
    void dispatch(const PipelineKey& key, Span<const Region> regions, const void* push, uint32_t push_bytes,
                  const Grid& grid, const char* label, uint64_t bytes);
    void copy(const Region& to, const Region& from);
    /// Writes zeros.
    void fill(const Region& to);
    void barrier(uint32_t before = kSyncCompute, uint32_t after = kSyncCompute);
    /// The last dispatch may be chained (chain.glsl): its kernel waits and counts as the ChainArgs say that are at this
    /// byte of its push constants.
    void may_chain(size_t args_at);
    /// Removes the barriers between stages that may be chained, which then wait by counters in the step buffer. For
    /// devices whose DeviceTraits::starts_in_order is set.
    void chain(const Region& step);

    Span<const Entry> entries() const { return entries_; }
    /// The pipelines it needs, each once.
    const std::vector<PipelineKey>& keys() const { return keys_; }
    Span<const Region> regions(const Entry& e) const { return {regions_.data() + e.first_region, e.n_region}; }
    Span<const uint32_t> push(const Entry& e) const { return {words_.data() + e.first_word, e.n_word}; }

    uint32_t n_dispatch() const;
    uint32_t n_barrier() const;
    /// Dispatches and bytes by shader, in order of first use.
    std::vector<Count> counts() const;
    /// The stages that hold at least one dispatch, in order.
    std::vector<Stage> stages() const;
    /// One line for each entry. Buffers are numbered in order of first use.
    std::string text() const;

    /// Starts making every pipeline in the background; pipeline i of the result belongs to keys()[i].
    std::vector<Pipelines::Id> request(Pipelines* pipelines) const;
    /// Records all entries, after waiting for their pipelines. `timed`: a timestamp at the beginning and after each of
    /// stages().
    /// errors    unsupported: a kernel has no variant that works on this device; bad_argument: an entry breaks a limit
    ///           of the device; out_of_memory; device_lost.
    Status record(Pipelines& pipelines, Span<const Pipelines::Id> ids, Commands* commands, bool timed = false) const;

  private:
    Entry& append(Entry::Kind kind, Span<const Region> regions);
    uint32_t key_index(const PipelineKey& key);
    size_t stage_end(size_t first) const;
    bool chains(size_t first, size_t end) const;
    void zero_counters(const Region& counters);
    std::vector<PipelineKey> keys_;
    std::vector<uint64_t> key_hashes_;  ///< of keys_
    std::vector<Entry> entries_;
    std::vector<Region> regions_;
    std::vector<uint32_t> words_;
};

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

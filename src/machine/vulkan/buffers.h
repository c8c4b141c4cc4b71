// machine/vulkan/buffers: every buffer that a context holds on the device.
//
// What    The sizes: rows of activations, caches, states, partial results, and what the host reads and writes.
// Owns    all memory of a context, allocated once when it is opened; the byte count is exact.
// Thread  immutable once allocated.
// Tests   tests/test_vulkan_model.cpp, tests/test_memory_plan.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "../../../shaders/args.h"
#include "../../../shaders/moe_args.h"
#include "../kv.h"
#include "loaded_model.h"
#include "tune_attend.h"
#include "tune_gemm.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

constexpr uint32_t kRequests = 4;             ///< host requests that may be on their way at once
constexpr uint32_t kRingLength = 1024;        ///< tokens in the ring, more than any queue can emit unread
constexpr uint64_t kStagingBytes = 4u << 20;  ///< of a half, where the host does not read device memory
constexpr uint32_t kSampleSlice = args::kSampleSlice;
constexpr uint32_t kAttendTile = 4;      ///< query rows of a group of attend_step
constexpr uint32_t kAttendLong = 16384;  ///< rows of a cache from which on there are more of them
constexpr uint32_t kAttendLongTile = 8;
constexpr uint32_t kAttendPairs = 32768;  ///< in caches of more rows attend_mma takes 16 queries a workgroup

/// Counters of a query tile of attend_mma: sets of 16 chunks that it can see, and one for the sets.
inline uint32_t attend_counts(uint32_t n_chunk) { return n_chunk / 16 + 4; }

/// Rows that a recording for n rows of a committed step can run: the next size that is recorded.
inline uint32_t row_class(uint32_t n) {
    uint32_t c = 16;
    while (c < n) c *= 2;
    return c;
}

/// Entries at most that choose_blocks() has for n_place places of n_expert experts.
inline uint64_t list_entries(uint64_t n_place, uint64_t n_expert) { return n_place / 8 + std::min(n_place, n_expert); }

/// Floats from one row of an activation to the next: what kernels store in fours must begin at fours.
inline uint32_t row_stride(const Plan& plan, SlotId id) {
    const Slot& s = plan.slot(id);
    return static_cast<uint32_t>(s.role == SlotRole::kept ? s.width() : round_up(s.width(), 4));
}

/// Floats from row to row of the sums of squares of rows of `width` values: a binding may begin at any row.
inline uint32_t squares_stride(const DeviceTraits& traits, uint64_t width) {
    return static_cast<uint32_t>(round_up(ceil_div<uint64_t>(width, 16), traits.storage_align / sizeof(float)));
}

/// The largest region that a kernel can bind.
inline uint64_t max_at_once(const DeviceTraits& traits, const MemoryPlan& memory) {
    return std::min(traits.max_storage_range, memory.max_region_bytes());
}

/// Rows of the MTP head's table for chosen ids: what drafts are sampled from, if not from everything.
struct DraftHead {
    Memory memory;
    Matrix matrix;
    Region ids;                                           ///< u32: the token of each row
    uint32_t n_id = 0;                                    ///< 0: none
    static constexpr MemoryPlan::Id kRows = 0, kIds = 1;  ///< regions of `memory`
    /// Adds them for n ids to `memory`, which is empty. errors: unsupported: more than a kernel sees at once.
    static Status plan(const DeviceTraits& traits, const Slot& table, uint64_t n, Tiling* tiles, MemoryPlan* memory);
};

namespace buffers_impl {
struct Needs;
}

struct Buffers {
    Memory memory;
    DraftHead draft;
    Region step;                ///< StepState, history, allowed ids
    Region request[kRequests];  ///< StepRequest and its tokens; the host writes
    Region allowed;             ///< u32 [n_vocab / 32]: ids that a row may be sampled from; the host writes
    Region ring;                ///< RingEntry; kernels write, the host reads
    Region logits_host;         ///< [kMaxTentative, n_vocab], likewise
    Region staging[2];          ///< of a Transfer; none where the host reads device memory
    Region saved_state;         ///< of a StateSaver, likewise

    std::vector<Region> row;      ///< by SlotId: activations [n_row, width]
    std::vector<Region> squares;  ///< by SlotId: sums of squares of 16 values [n_row, squares_stride()]
    std::vector<Region> group;    ///< by SlotId: what holds the slot and those bound together with it
    std::vector<uint32_t> at;     ///< by SlotId: floats from the group's beginning

    /// Keys or values of a layer: rows of codes of every head, then their scales (shaders/kv_formats.glsl).
    struct Cache : Region {
        uint32_t format = 0;                       ///< kKv..., for the kernels
        uint32_t code_bytes = 0, scale_bytes = 0;  ///< of one row of one head
        static Cache of(Type type, uint32_t d_head);
    };
    struct Kv {
        Cache k, v;
        uint32_t n_head = 0;
        KvShape shape;         ///< slots of a head: the sinks, then the ring
        uint32_t n_chunk = 0;  ///< chunks that a tentative step can see at most
    };
    std::vector<Kv> kv;                     ///< by SlotId
    std::vector<Region> delta, conv, term;  ///< by SlotId (term: of the delta slot)

    Region part, stat;        ///< attention partials of a tentative step, or of a round of a committed one
    Region count;             ///< chunks of it that are done; zero between kernels
    Region spare;             ///< a state from row to row (delta_any)
    Region mixed, query;      ///< of a committed step: after the convolution; queries in tiles, floats or halves
    Region halves, scale;     ///< rows packed for products of many rows
    Region swiglu_halves;     ///< likewise, as swiglu leaves them for the product after it
    Region given;             ///< hidden rows from the host
    Region raw_hidden;        ///< hidden rows of a long step, where the tape goes on writing theirs
    Region guess_hidden;      ///< several MTP blocks: the hidden rows of a cycle's guesses
    Region pending_hidden;    ///< [kMaxPendingHidden, d_model] hidden rows of tentative trunk passes, by position
    Region gathered;          ///< rows whose logits are wanted
    Region gathered_squares;  ///< their sums of squares
    /// What the last norm of the trunk is computed from, fused into the head: of the last pass of few rows. Other
    /// passes overwrite the slot itself.
    Region head_rows, head_squares;
    SlotId head_input = kNoSlot;  ///< that slot; none: the norm is not fused
    /// Of layers of experts.
    struct Moe {
        Region logits, choice;       ///< of the router; moe_args.h
        Region hidden;               ///< few rows: f32 [places, d_slot]
        Region shared;               ///< of the shared expert, few rows: f32 [n_row, d_slot]
        Region sum, squares;         ///< few rows: the residual with the shared expert's part on it
        Region list, halves, parts;  ///< many rows: sorted places, hidden halves, results by place
        Region shared_halves;        ///< of the shared expert, many rows; what pads a row stays 0
    };
    Moe moe;
    Region sample_part, sample_hist, sample_list, sample_best;
    Region share;               ///< of each guess, where drafts end before an unlikely one: sums of sample_share
    float min_probability = 0;  ///< of such a guess; 0: drafts do not end

    uint32_t n_half = 1;  ///< halves of a value in rows packed for products: 2 if those products are exact
    bool exact() const { return n_half == 2; }
    AttendKernel attend = AttendKernel::rows;  ///< of many rows
    uint32_t n_row_max = 0;                    ///< rows the row buffers hold
    uint32_t n_context = 0;
    uint32_t n_sample_part = 0;

    /// errors    out_of_memory, bad_argument (a cache longer than the device can see at once).
    static Result<Buffers> take(const VulkanModel& model, const ContextOptions& options);
    /// Regions with no memory behind them: lists can be built from them, but not recorded.
    static Result<Buffers> outline(const VulkanModel& model, const ContextOptions& options);
    /// What take() would take, item by item; the same errors but for out_of_memory.
    static Status plan(const VulkanModel& model, const ContextOptions& options, std::vector<MemoryItem>* items);
    uint64_t memory_bytes() const { return memory.device_bytes() + memory.host_bytes() + draft.memory.device_bytes(); }

  private:
    struct Planned;
    /// Plans everything, in this order.
    Status lay_out(Planned* to);
    void plan_activations(buffers_impl::Needs* needs, Planned* to);
    void plan_states(buffers_impl::Needs* needs, Planned* to);
    void plan_scratch(const buffers_impl::Needs& needs, Planned* to);
    void plan_host(Planned* to);
};

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

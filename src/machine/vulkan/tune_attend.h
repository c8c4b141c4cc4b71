// machine/vulkan/tune_attend: how the attention of a prompt runs, on matrix units or without.
//
// What    attend_parts(), choose_attend_tile(), and how many segments of keys a pass sees: pure functions of the device
//         and the shape. Which AttendKernel runs depends on the device alone; what they choose for it changes no bit
//         (shaders/attend_tile.comp, attend_shared.comp, attend_rows.comp).
//         attend_any_keys(): what the general kernel can see.
// Thread  any.
// Tests   tests/test_vulkan_attend.cpp.
//
// How it is dispatched:
//   1. kv_append appends keys and values, and leaves the queries as attend_queries() says.
//   2. For each of n_round rounds: the kernel, a barrier, attend_join, a barrier. AttendArgs::round counts them.
//
// How many queries a round takes is computed on the device from the segments that exist by then, so that one recording
// serves every position; rounds without queries return at once.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "../../../shaders/args.h"
#include "../backend.h"
#include "shader.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// The kernel of a prompt's attention.
enum class AttendKernel : uint8_t {
    rows,    ///< attend_rows: floats, on no matrix units
    shared,  ///< attend_shared: matrix units that gemm_mma can use
    tile     ///< attend_tile: matrix units of 16x8x16, laid out as matrix_right_fits() wants them
};

/// True where attend_shared runs on a device whose prompts run on gemm_mma.
inline bool attend_shared_fits(const DeviceTraits& t) {
    return t.rounding_rte16 && t.shuffle() && (t.subgroup_ops & VK_SUBGROUP_FEATURE_VOTE_BIT) != 0 &&
           t.max_shared_bytes >= 45056;
}

/// gemm_matrix  prompts run on gemm_mma
/// layout_fits  matrix_layout_fits() and matrix_right_fits()
inline AttendKernel choose_attend_kernel(const DeviceTraits& t, bool gemm_matrix, bool layout_fits) {
    return layout_fits                            ? AttendKernel::tile
           : gemm_matrix && attend_shared_fits(t) ? AttendKernel::shared
                                                  : AttendKernel::rows;
}

/// Rows of a prompt at once where the plan has room. Cards with memory of their own and fast attention have work for
/// many: on an H200 the 9B reads 18 000 tokens/s 2048 at once and 15 300 512 at once, the 35B-A3B 25 200 and 15 100.
inline uint32_t best_ubatch(VkPhysicalDeviceType type, AttendKernel kernel) {
    return type == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU && kernel != AttendKernel::rows ? 2048 : kDefaultUbatch;
}

/// How kv_append leaves the queries for it: kQueries...
inline uint32_t attend_queries(AttendKernel kernel) {
    return kernel == AttendKernel::tile     ? args::kQueriesHalf
           : kernel == AttendKernel::shared ? args::kQueriesRows
                                            : args::kQueriesFloat;
}

/// Bytes of partial results from which on the queries of a pass whose keys are split are divided among rounds.
constexpr uint64_t kAttendPartBytes = 64u << 20, kAttendPartBytesPlain = 16u << 20;  ///< on matrix units; without

/// A division of positions into spans: `octave` of `unit` positions, as many of twice that, and so on (chunk_of() in
/// step_common.glsl, segment_of() in attend_segments.glsl).
struct Spans {
    uint32_t unit, octave;
    uint32_t at(uint32_t p) const {
        uint32_t o = 0;
        while ((p / (unit * octave) + 1) >> (o + 1)) ++o;
        return o * octave + (((p - unit * octave * ((1u << o) - 1)) / unit) >> o);
    }
    /// The most of them that a pass of n_row rows sees within n_context positions.
    uint32_t seen_max(uint32_t n_context, uint32_t window, uint32_t n_sink, uint32_t n_row) const {
        const uint32_t all = at(n_context - 1) + 1, sinks = ceil_div(n_sink, unit);
        if (window == 0) return all;
        // Spans never shrink with their position: a window covers the most of them at the beginning, or one more.
        if (window > unit * octave) return std::min(all, at(window + n_row) + 2 + sinks);
        return std::min(n_context / unit + 1, (window + n_row) / unit + 2 + sinks);
    }
};
constexpr Spans kChunks{args::kChunk, args::kChunkOctave};
constexpr Spans kSegments{args::kSegment, args::kSegmentOctave};

/// Partial results of a kv head to make room for: one for each query, which is what a pass needs that does not split
/// its keys; for each segment as well up to kAttendPartBytes, but of one block of queries at least.
inline uint32_t attend_parts(AttendKernel kernel, uint32_t n_query, uint32_t n_head_kv, uint32_t d_head,
                             uint32_t n_segment) {
    const uint64_t block = uint64_t{args::kAttendRound} * n_segment;  // partials of a block of queries
    const uint64_t bytes = block * n_head_kv * d_head * sizeof(float);
    const uint64_t max_bytes = kernel == AttendKernel::rows ? kAttendPartBytesPlain : kAttendPartBytes;
    const uint64_t fit = std::max<uint64_t>(max_bytes / bytes, 1);
    const uint64_t n_block = std::min<uint64_t>(ceil_div(n_query, args::kAttendRound), fit);
    return static_cast<uint32_t>(std::max<uint64_t>(block * n_block, round_up(n_query, args::kAttendRound)));
}

/// Keys that a row may see in attend_any where loops are short (DeviceTraits::short_loops): a block of 64 takes a round
/// for each four values of a key, 16 for the weights, and one to leave each loop.
inline uint32_t attend_any_keys(uint32_t d_head) { return 65'000 / (d_head / 4 + 20) * 64; }

/// The kernel and its grid.
struct AttendTileChoice {
    AttendKernel kernel = AttendKernel::tile;
    uint32_t group = 256, split = 0;
    uint32_t n_tile = 1, n_split = 1, n_round = 1;  ///< grid x, grid z, and how often
    /// Queries of a workgroup.
    uint32_t tile() const { return kernel == AttendKernel::rows ? 64 : group / 2; }
    /// push: what the kernel will get; its ring and sinks decide whether a block of keys may wrap.
    PipelineKey key(uint32_t d_head, uint32_t k_format, uint32_t v_format, const args::AttendArgs& push,
                    const DeviceTraits& traits) const {
        PipelineKey k;
        k.group = group;
        if (kernel == AttendKernel::rows) {
            namespace s = spec::attend_rows;
            k.shader = d_head == 256 ? "attend_rows_256" : "attend_rows_128";
            const uint32_t keys = traits.max_shared_bytes >= 20480 && !traits.is_cpu() ? 64 : 32;
            k.constants = {{s::kKeys, keys}, {s::kKType, k_format}, {s::kVType, v_format}, {s::kSplit, split}};
            return k;
        }
        const uint32_t wraps = push.sinks % args::kTileKeys != 0 || push.ring % args::kTileKeys != 0;
        if (kernel == AttendKernel::tile) {
            namespace s = spec::attend_tile;
            k.shader = d_head == 256 ? "attend_tile_256" : "attend_tile_128";
            k.constants = {{s::kSplit, split}, {s::kKType, k_format}, {s::kVType, v_format}, {s::kWraps, wraps},
                           {s::kUnitM, 16},    {s::kUnitN, 8},        {s::kUnitK, 16}};
        } else {
            namespace s = spec::attend_shared;
            k.shader = d_head == 256 ? "attend_shared_256" : "attend_shared_128";
            k.constants = {{s::kSplit, split}, {s::kKType, k_format}, {s::kVType, v_format}, {s::kWraps, wraps},
                           {s::kUnitM, 16},    {s::kUnitN, 16},       {s::kUnitK, 16}};
        }
        k.subgroup_size = traits.subgroup_size_control ? 32 : 0;
        k.full_subgroups = traits.full_subgroups;
        return k;
    }
};

/// kernel     of the device
/// n_query    queries of a kv head
/// n_segment  the most segments that the pass sees
/// n_part     partial results of a kv head that there is room for
///
/// Tiles of 128 queries, or of 64 without matrix units and where that is all there is. Keys are split among
/// workgroups, one for each segment, unless the tiles alone keep 7 of 8 cores at work: on an H200, 64 tiles of 46 000
/// keys run at 71 TFLOP/s, split at 144; of 256 tiles of 65 536 keys it is 174 and 178, and no partial results are
/// joined in rounds. Where loops are short, a workgroup of all segments reaches their end after 40,000 keys.
inline AttendTileChoice choose_attend_tile(const DeviceTraits& traits, AttendKernel kernel, uint32_t n_query,
                                           uint32_t n_head_kv, uint32_t n_segment, uint32_t n_part) {
    AttendTileChoice c;
    c.kernel = kernel;
    c.group = kernel != AttendKernel::rows && n_query <= 64 ? 128 : 256;
    // Where the driver does not tell, those of a large device: splitting too often costs less than idle cores.
    const uint32_t cores = traits.n_core > 0 ? traits.n_core : 128;
    const uint32_t n_tile = ceil_div(n_query, c.tile()) * n_head_kv;  // of all heads
    c.split = n_segment > 1 && (traits.short_loops || 8 * n_tile < 7 * ceil_div(n_tile, cores) * cores);
    c.n_split = c.split ? n_segment : 1;
    const uint32_t at_once = n_part / c.n_split / args::kAttendRound * args::kAttendRound;
    AUSPEX_ASSERT(at_once != 0);
    // Where fewer segments exist yet, a round takes more queries: the first may take all of them.
    c.n_tile = ceil_div(n_query, c.tile());
    c.n_round = ceil_div(n_query, at_once);
    return c;
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

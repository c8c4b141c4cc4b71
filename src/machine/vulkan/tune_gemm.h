// machine/vulkan/tune_gemm: chooses the matrix-matrix kernel of a product and its tile sizes.
//
// What    choose_gemm(), choose_blocks(), choose_gemm_experts(), choose_gemm_pack(): pure functions of the device, the
//         shape and the number of rows. The bits of a row depend neither on the number of rows nor on the tile sizes.
//         They differ from those of the matrix-vector kernels.
// Thread  any.
// Tests   tests/test_vulkan_gemm.cpp, test_vulkan_experts.cpp.
//
// How a product of many rows is dispatched (shaders/gemm_common.glsl has the buffers, gemm_args.h the arguments):
//   1. Pack: gemm_pack converts rows from float to halves and applies the norm, if one precedes the products. One
//      workgroup per row; bindings 0..5 are x, norm weight, halves, scale, part, step. A row takes gemm_pack_bytes() in
//      `halves` and one float in `scale`. Pack once for all products that read the same rows.
//   2. Products: bindings 0..5 are w, halves, scale, y, residual, step; dispatch(c.groups_x(n_row),
//      c.groups_y(n_tile)); factor = 1. Products of one pack need no barrier between them.
//   3. Weights in several slices: one dispatch per slice, with its n_tile and first_row.
//   4. gate and up, interleaved as for matvec: with kEpilogueHalves the product writes the halves that the down product
//      reads, so that no pack is needed. Set its y_stride to 128 * n_col of the down matrix; choose the down product
//      with scaled = false and set its factor to kHalvesFactor. d_in of the down matrix must be a multiple of 256, or
//      the rest of each row be zeroed before; else use kEpilogueSwiglu and a pack.
//   5. Bind any buffer where a variant uses none. Set from_step = 1 if a recording may run with fewer rows.
//   6. Exact products (`exact`): packed rows hold two halves for each value and take twice gemm_pack_bytes(). x_stride
//      doubles, and so does the y_stride of packs and of kEpilogueHalves.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "../../../shaders/moe_args.h"
#include "repack.h"
#include "shader.h"

#include <algorithm>
#include <iterator>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

enum class GemmEpilogue : uint32_t {
    store = args::kEpilogueStore,
    add = args::kEpilogueAdd,
    swiglu = args::kEpilogueSwiglu,
    swiglu_halves = args::kEpilogueHalves
};

/// swiglu_halves divides its values by this, to stay within the range of halves.
constexpr float kHalvesFactor = args::kHalvesFactor;
/// Bytes of a packed row.
inline uint64_t gemm_pack_bytes(uint64_t d_in) { return ceil_div(d_in, uint64_t{kTileColumns}) * kTileColumns * 2; }

/// True if the device reports what gemm_mma.comp needs: KHR matrices of 16x16x16 halves summed in float, subgroups of
/// 32, and 32 KiB of shared memory. The self-test ("matrix_khr") checks that they compute correctly.
inline bool gemm_matrix_fits(const DeviceTraits& t) {
    if (!t.matrix_khr || !t.float16 || !t.memory_model || t.max_group_invocations < 256 || t.max_shared_bytes < 32768)
        return false;
    const bool size_32 =
        t.subgroup_size == 32 || (t.subgroup_size_control && t.subgroup_min <= 32 && t.subgroup_max >= 32);
    if (!size_32) return false;
    for (const MatrixShape& s : t.matrix_shapes)
        if (s.m == 16 && s.n == 16 && s.k == 16 && s.a == Component::f16 && s.b == Component::f16 &&
            s.c == Component::f32 && s.result == Component::f32 && !s.saturating)
            return true;
    return false;
}

/// The pipeline to request.
struct GemmChoice {
    PipelineKey key;
    uint32_t mode = 0;          ///< GemmArgs::mode
    uint32_t bm = 64, bn = 32;  ///< rows and columns of y per workgroup
    uint32_t groups_x(uint32_t n_row) const { return ceil_div(n_row, bm); }
    uint32_t groups_y(uint32_t n_tile) const { return ceil_div(n_tile * kTileRows, bn); }
};

namespace tune_gemm_impl {

/// A tile size of gemm_mma: rows and columns of a workgroup and of a subgroup, and buffers.
struct Tile {
    uint32_t bm, bn, wm, wn, stages;
};
/// cost[i]: time per 64 columns of the weights, in units of 10 ns, on a core that runs i + 1 of its workgroups at once,
/// up to `n`. Measured on an H200 (same cores as an H100) with Q4_K, 2026: the size that estimate() prefers is on
/// average within 1 %, at worst within 15 %, of the fastest of 22 sizes.
struct Size : Tile {
    uint32_t n;
    uint32_t cost[4];
};
constexpr Size kSizes[] = {
    {{128, 128, 64, 64, 1}, 2, {132, 194, 0, 0}}, {{128, 64, 32, 32, 1}, 2, {80, 127, 0, 0}},
    {{64, 64, 32, 32, 1}, 4, {59, 81, 106, 128}}, {{32, 64, 32, 16, 1}, 4, {44, 65, 92, 115}},
    {{16, 64, 16, 16, 2}, 4, {40, 51, 80, 95}},
};
/// Tiles for blocks of an expert's rows, descending. A block takes its time however few of its rows there are: on an
/// H200, with Q4_K weights of 2048 x 1024 and 512 x 2048, 3.4, 2.2, 1.6 and 1.3 us of the whole device. The second list
/// is for exact products and for devices of less shared memory.
constexpr Tile kBlocks[] = {{128, 128, 64, 64, 1}, {64, 128, 32, 32, 1}, {32, 128, 32, 32, 1}, {16, 64, 16, 16, 1}};
constexpr Tile kSmallBlocks[] = {{64, 64, 32, 32, 1}, {32, 64, 32, 16, 1}, {16, 64, 16, 16, 1}};

inline uint32_t shared_bytes(const Tile& s, bool exact) {
    return s.stages * 144 * (s.bm + s.bn) * (exact ? 2 : 1) + 80 * 16 * (s.bm / s.wm) * (s.bn / s.wn);
}

/// True if the device has the memory and the registers for a tile.
inline bool fits(const DeviceTraits& traits, const Tile& s, bool exact) {
    // On RDNA 3 both halves of a subgroup hold the factors. With 64 x 64 Mesa 25 spills 29 registers of an invocation.
    return shared_bytes(s, exact) <= traits.max_shared_bytes && (traits.vendor_id != kAmd || s.wm * s.wn < 64 * 64);
}

/// Estimated time: full rounds on all cores, then the remaining workgroups.
inline uint64_t estimate(const Size& s, uint32_t n_core, uint64_t n_row, uint64_t n_tile) {
    const uint64_t groups = ceil_div(n_row, uint64_t{s.bm}) * ceil_div(n_tile * kTileRows, uint64_t{s.bn});
    const uint64_t round = uint64_t{n_core} * s.n, rest = groups % round;
    return groups / round * s.cost[s.n - 1] + (rest ? s.cost[(rest - 1) / n_core] : 0);
}

}  // namespace tune_gemm_impl

namespace tune_gemm_impl {

inline void set_size(GemmChoice* c, const DeviceTraits& traits, const Tile& size, const Tiling& t, bool scaled,
                     GemmEpilogue epilogue, bool experts, bool exact) {
    c->bm = size.bm;
    c->bn = size.bn;
    c->key.shader = std::string("gemm_mma_") + layout_name(t.layout);
    c->key.group = 32 * (size.bm / size.wm) * (size.bn / size.wn);
    namespace s = spec::gemm_mma;
    c->key.constants = {
        {s::kGroupM, size.bm},    {s::kGroupN, size.bn},     {s::kSubgroupM, size.wm},
        {s::kSubgroupN, size.wn}, {s::kStages, size.stages}, {s::kEpilogue, static_cast<uint32_t>(epilogue)},
        {s::kScaled, scaled},     {s::kUnitM, 16},           {s::kUnitN, 16},
        {s::kUnitK, 16},          {s::kExperts, experts},    {s::kExact, exact}};
    c->key.subgroup_size = traits.subgroup_size_control ? 32 : 0;
    c->key.full_subgroups = traits.full_subgroups;
}

/// Rows per workgroup of gemm.comp, and how long one takes on a busy device, relative to the others (H100).
struct PlainSize {
    uint32_t bm, cost;
};
constexpr PlainSize kPlainSizes[] = {{64, 100}, {32, 60}, {16, 36}};

/// The first size with the lowest cost; null if none may be used, whose cost is UINT64_MAX. bm: required rows per
/// workgroup; 0: any.
template <class S, size_t kCount, class Cost>
const S* cheapest(const S (&sizes)[kCount], uint32_t bm, const Cost& cost_of) {
    const S* best = nullptr;
    uint64_t best_cost = UINT64_MAX;
    for (const S& s : sizes) {
        const uint64_t cost = bm == 0 || s.bm == bm ? cost_of(s) : UINT64_MAX;
        if (cost >= best_cost) continue;
        best = &s;
        best_cost = cost;
    }
    return best;
}

/// gemm.comp, the kernel for devices without matrix units. bm, n_row_of: as for best_size().
template <class Rows>
GemmChoice plain(const DeviceTraits& traits, const Tiling& t, bool scaled, GemmEpilogue epilogue, bool experts,
                 bool exact, uint32_t bm, const Rows& n_row_of) {
    GemmChoice c;
    const PlainSize* best =
        cheapest(kPlainSizes, bm, [&](const PlainSize& s) { return ceil_div(n_row_of(s), uint64_t{s.bm}) * s.cost; });
    AUSPEX_ASSERT(best);  // every bm that another choice may require is one of kPlainSizes
    c.bm = best->bm;
    c.key.shader = std::string("gemm_") + layout_name(t.layout);
    // On a software device each load is a loop over the lanes, so an invocation computes more results for a load: 8 x 4
    // or 16 x 4. That takes 16.5 KiB for the weights of 128 columns.
    const bool staged = !traits.is_cpu() || traits.max_shared_bytes < 16896;
    c.key.group = staged ? 128 : c.bm == 64 ? 32 : 16;
    namespace s = spec::gemm;
    const uint32_t by_argument = traits.is_cpu() ? args::kGemmModeMask : 0;  // bits that a dispatch gives
    c.mode = static_cast<uint32_t>(epilogue) + (scaled ? 4u : 0u) + (experts ? 8u : 0u) + (exact ? 16u : 0u);
    c.key.constants = {{s::kGroupM, c.bm},
                       {s::kAlongN, staged && c.bm < 64 ? 16u : 8u},
                       {s::kStaged, staged},
                       {s::kMode, c.mode & ~by_argument},
                       {s::kMask, by_argument}};
    return c;
}

/// The size with the lowest estimate.
inline const Size& best_size(const DeviceTraits& traits, bool exact, uint64_t n_tile, uint32_t n_row) {
    const uint32_t n_core = traits.n_core > 0 ? traits.n_core : 64;
    const Size* best = cheapest(kSizes, 0, [&](const Size& s) {
        return fits(traits, s, exact) ? estimate(s, n_core, n_row, n_tile) : UINT64_MAX;
    });
    AUSPEX_ASSERT(best);  // gemm_matrix_fits() requires memory for three of them, for one of them if exact
    return *best;
}

/// Tiles for the blocks of an expert's rows that the device can run, the largest first.
inline std::vector<Tile> block_tiles(const DeviceTraits& traits, bool exact) {
    const bool large = shared_bytes(kBlocks[0], exact) <= traits.max_shared_bytes;
    const Span<const Tile> list =
        large ? Span<const Tile>(kBlocks, std::size(kBlocks)) : Span<const Tile>(kSmallBlocks, std::size(kSmallBlocks));
    std::vector<Tile> out;
    for (const Tile& t : list)
        if (fits(traits, t, exact)) out.push_back(t);
    return out;
}

}  // namespace tune_gemm_impl

/// The kernel for any number n_row of rows.
///
/// matrix       use matrix units: gemm_matrix_fits() and the self-test passed
/// scaled       each row has a factor: true for rows from gemm_pack, false for those of swiglu_halves
/// exact        activations, and on matrix units weights, as two halves
/// stage_tiles  tile rows of all products between the same two barriers; 0: this product is alone
inline GemmChoice choose_gemm(const DeviceTraits& traits, bool matrix, const Tiling& t, uint32_t n_row, bool scaled,
                              GemmEpilogue epilogue, bool exact = false, uint32_t stage_tiles = 0) {
    if (!matrix)
        return tune_gemm_impl::plain(traits, t, scaled, epilogue, false, exact, 0,
                                     [&](const auto&) { return uint64_t{n_row}; });
    const uint32_t n_tile = stage_tiles > t.n_row ? stage_tiles : t.n_row;
    GemmChoice c;
    tune_gemm_impl::set_size(&c, traits, tune_gemm_impl::best_size(traits, exact, n_tile, n_row), t, scaled, epilogue,
                             false, exact);
    return c;
}

/// Rows of the blocks into which the rows of each expert are cut, descending: as many of the first size as they fill,
/// and one of the smallest that holds the rest. first_entry, n_entry: of the list in which moe_list writes them.
struct Blocks {
    uint32_t n = 0, n_entry = 0;
    uint32_t bm[args::kListSizes] = {}, first_entry[args::kListSizes] = {};
    /// Entries of size i at most.
    uint32_t entries(uint32_t i) const { return (i + 1 < n ? first_entry[i + 1] : n_entry) - first_entry[i]; }
    /// For moe_list, apart from the rows and their experts.
    args::ListArgs list() const {
        args::ListArgs a{};
        a.n_size = n;
        std::copy(std::begin(bm), std::end(bm), a.bm);
        std::copy(std::begin(first_entry), std::end(first_entry), a.first_entry);
        a.n_entry_max = n_entry;
        return a;
    }
};

/// The kernel for n_place rows, sorted by expert, each multiplied by the matrix `t` of its expert. All rows of a
/// workgroup belong to one expert. bm: rows per workgroup, one of choose_blocks(); 0, without matrix units: the
/// fastest.
inline GemmChoice choose_gemm_experts(const DeviceTraits& traits, bool matrix, const Tiling& t, uint32_t n_place,
                                      uint32_t n_expert, uint32_t bm, bool scaled, GemmEpilogue epilogue,
                                      bool exact = false) {
    // On average half of the last block of each expert is empty.
    const auto rows = [&](const auto& s) {
        const uint64_t blocks =
            n_place / s.bm + (n_place < n_expert * s.bm ? n_expert * uint64_t{2} / 3 : n_expert / 2) + 1;
        return blocks * s.bm;
    };
    if (!matrix) return tune_gemm_impl::plain(traits, t, scaled, epilogue, true, exact, bm, rows);
    GemmChoice c;
    for (const tune_gemm_impl::Tile& tile : tune_gemm_impl::block_tiles(traits, exact))
        if (tile.bm == bm) tune_gemm_impl::set_size(&c, traits, tile, t, scaled, epilogue, true, exact);
    AUSPEX_ASSERT(!c.key.shader.empty());  // bm is one of choose_blocks()
    return c;
}

/// The blocks for rows that use n_used of n_expert experts each; t: the first of the matrices that they meet. A
/// software device takes half a second to compile a kernel, so it has one size.
inline Blocks choose_blocks(const DeviceTraits& traits, bool matrix, const Tiling& t, uint32_t n_row, uint32_t n_used,
                            uint32_t n_expert, bool exact) {
    Blocks b;
    const uint32_t n_place = n_row * n_used, n_chosen = std::min(n_place, n_expert);
    const auto take = [&](uint32_t bm) {
        if (bm >= n_row) b.n = 0;  // this one holds all rows
        b.bm[b.n++] = bm;
    };
    if (matrix)
        for (const tune_gemm_impl::Tile& tile : tune_gemm_impl::block_tiles(traits, exact)) take(tile.bm);
    else if (traits.is_cpu())
        take(choose_gemm_experts(traits, false, t, n_place, n_expert, 0, true, GemmEpilogue::store, exact).bm);
    else
        for (const tune_gemm_impl::PlainSize& s : tune_gemm_impl::kPlainSizes) take(s.bm);
    for (uint32_t i = 0; i < b.n; ++i) {
        b.first_entry[i] = b.n_entry;
        const uint32_t fewest = i + 1 < b.n ? b.bm[i + 1] + 1 : 1;  // rows of a block
        b.n_entry += std::min(n_place / fewest, n_chosen + (i == 0 ? n_place / b.bm[0] : 0));
    }
    return b;
}

/// The kernel that packs rows, one workgroup per row.
inline PipelineKey choose_gemm_pack(const DeviceTraits& traits, bool norm, bool squares, bool exact = false) {
    PipelineKey key;
    key.shader = "gemm_pack";
    key.group = traits.is_cpu() ? 64 : 128;  // of 64..512, within 10 % of the best for rows up to 4096
    key.constants = {
        {spec::gemm_pack::kNorm, norm}, {spec::gemm_pack::kSquares, squares}, {spec::gemm_pack::kExact, exact}};
    return key;
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

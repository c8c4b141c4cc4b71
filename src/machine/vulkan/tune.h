// machine/vulkan/tune: which matrix-vector kernel, and its sizes.
//
// What    choose_matvec(): a pure function of the device, the weight's shape and the rows of a step. What decides a
//         row's bits (kernel, split, and for plain kernels the group) follows from device and shape, never from the
//         row count.
// Owns    nothing.
// Thread  any.
// Tests   tests/test_vulkan_matvec.cpp.
//
// How a product is dispatched (shaders/matvec_common.glsl has the buffers, matvec_args.h the arguments):
//   1. Weights: repack() into device memory, in slices of at most maxStorageBufferRange, cut between tile rows. One
//      dispatch a slice with first_row = 16 * its first tile row and first_group = the workgroups of the slices before
//      it.
//   2. Rows: at most matvec_max_rows() in one dispatch, the rest in further ones with larger x_offset, y_offset,
//      residual_offset, out_offset. Bits do not change.
//   3. Bindings 0..6 = w, x, norm, squares, y, residual, out; unused ones are bound to any buffer.
//   4. dispatch(n_group): MatvecChoice::groups(n_tile).
//   5. Independent products (q, k, v; qkv, z, alpha, beta) follow each other without a barrier. Give choose_matvec()
//      the sum of their tile rows, so that together they fill the device.
//   6. A norm needs no kernel: what writes the residual stream (embed, kEpilogueAdd) leaves sums of squares of 16
//      values each, and the products that read it run with `norm`.
//   7. gate and up: one interleaved Tiling, kEpilogueSwiglu; d_out counts values of y. kEpilogueLogits also leaves the
//      (value, id) of each workgroup's largest logit: n_part = workgroups over all slices, for sample_final.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "repack.h"
#include "shader.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// What a product does with its sums; shaders/shared.h.
enum class Epilogue : uint32_t {
    store = args::kEpilogueStore,
    add = args::kEpilogueAdd,
    swiglu = args::kEpilogueSwiglu,
    logits = args::kEpilogueLogits
};

/// True if the device reports what matvec_mma.comp needs. Whether its matrices have the layout that the kernel assumes
/// is measured: run matrix_layout.comp, then matrix_layout_fits().
inline bool matrix_worth_asking(const DeviceTraits& t) {
    if (!t.matrix_khr || !t.addresses || !t.float16 || !t.shuffle() || !t.rounding_rte32 ||
        t.max_shared_bytes < 49152 || t.max_group_invocations < 384)
        return false;
    const bool size_32 =
        t.subgroup_size == 32 || (t.subgroup_size_control && t.subgroup_min <= 32 && t.subgroup_max >= 32);
    if (!size_32) return false;
    for (const MatrixShape& s : t.matrix_shapes)
        if (s.m == 16 && s.n == 8 && s.k == 16 && s.a == Component::f16 && s.b == Component::f16 &&
            s.c == Component::f32 && s.result == Component::f32)
            return true;
    return false;
}

/// `seen`: what matrix_layout.comp wrote, [32][16]. Invocation l must hold of A rows l / 4 and
/// l / 4 + 8, each with columns 2t, 2t + 1, 2t + 8, 2t + 9 (t = l mod 4), of C the same rows with
/// columns 2t, 2t + 1.
inline bool matrix_layout_fits(const float* seen) {
    for (uint32_t l = 0; l < 32; l++, seen += 16) {
        const uint32_t g = l / 4, t = l % 4;
        for (uint32_t i = 0; i < 8; i++)
            if (seen[i] != static_cast<float>((g + 8 * (i / 4)) * 16 + 2 * t + i % 2 + 8 * (i / 2 % 2))) return false;
        for (uint32_t i = 0; i < 4; i++)
            if (seen[8 + i] != static_cast<float>((g + 8 * (i / 2)) * 8 + 2 * t + i % 2)) return false;
    }
    return true;
}

/// A kernel to request.
struct MatvecChoice {
    PipelineKey key;
    uint32_t tiles = 1;  ///< tile rows of a workgroup
    uint32_t groups(uint32_t n_tile) const { return ceil_div(n_tile, tiles); }
};

namespace tune_impl {

/// Parts that the columns are cut into. Decides bits: shape only.
inline uint32_t matrix_split(uint32_t n_col) {
    if (n_col <= 8) return n_col;
    if (n_col >= 24 && n_col % 12 == 0) return 12;
    for (uint32_t d = 8; d >= 5; d--)
        if (n_col % d == 0) return d;
    return 8;
}

/// Bytes of shared memory that matvec_mma.comp takes.
inline uint32_t matrix_shared(uint32_t rows, uint32_t split, uint32_t tiles, uint32_t chunk) {
    const uint32_t x = ((split * chunk - 1) * rows + 8) * 2 * args::kMatvecRowHalves,
                   scale = (split * chunk * rows + 8) * 4;
    const uint32_t sums = tiles * split * 64 * rows, out = rows * 4 + tiles * rows * 68 + 8 * rows;
    return x + scale + sums + out + 256;
}

inline bool on_matrix(bool matrix, Layout layout) { return matrix && has_product(layout); }

}  // namespace tune_impl

/// Rows that one dispatch can take; more need several.
inline uint32_t matvec_max_rows(const DeviceTraits& traits, bool matrix, const Tiling& t) {
    if (!tune_impl::on_matrix(matrix, t.layout)) return args::kMaxRows;
    uint32_t rows = 8;
    while (rows > 1 && tune_impl::matrix_shared(rows, tune_impl::matrix_split(t.n_col), 1, 1) > traits.max_shared_bytes)
        rows--;
    return rows;
}

/// What a product's rows and matrix are; moe_columns.glsl.
enum class Role : uint32_t {
    none = args::kRoleNone,
    expert = args::kRoleExpert,
    row = args::kRoleRow,
    shared = args::kRoleShared
};

/// The kernel for n_row <= matvec_max_rows() rows.
///
/// matrix       matrix_layout_fits(); the same for every choice of a context
/// stage_tiles  tile rows of all products between the same two barriers; 0: only this one's
/// n_score      the largest number of experts of a layer whose products choose them (routes_itself()); else 0
inline MatvecChoice choose_matvec(const DeviceTraits& traits, bool matrix, const Tiling& t, uint32_t n_row, bool norm,
                                  Epilogue epilogue, uint32_t stage_tiles = 0, uint32_t n_score = 0,
                                  Role role = Role::none) {
    MatvecChoice c;
    const uint32_t all = std::max(stage_tiles, t.n_row);
    if (!tune_impl::on_matrix(matrix, t.layout)) {
        // 16 lane groups of 8: on a software device a row each, else two share the columns of two rows.
        const uint32_t split = traits.is_cpu() || t.n_col < 2 ? 1 : 2;
        c.tiles = epilogue == Epilogue::logits ? 8 : 1;
        c.key.shader = std::string("matvec_") + layout_name(t.layout);
        c.key.group = 128;
        namespace s = spec::matvec;
        c.key.constants = {{s::kXRows, n_row},
                           {s::kSplit, split},
                           {s::kTiles, c.tiles},
                           {s::kNorm, norm},
                           {s::kEpilogue, static_cast<uint32_t>(epilogue)},
                           {s::kRole, static_cast<uint32_t>(role)}};
        return c;
    }
    // Whole waves: a core's registers hold about 16 subgroups, 12 where more rows need more of them; then as many tile
    // rows in a workgroup as fill the waves evenly, at most six, because a workgroup loads x once. Measured on an H100
    // (driver 580): sizes off by one wave cost 10 to 20 %.
    const bool logits = epilogue == Epilogue::logits;
    const uint32_t split = role == Role::none ? tune_impl::matrix_split(t.n_col) : 8, own = ceil_div(t.n_col, split);
    const uint32_t cores = traits.n_core > 0 ? traits.n_core : 64;
    const uint32_t wave = cores * std::max(1u, (n_row <= 2 ? 16 : 12) / split);
    const uint32_t max_tiles = logits && (split != 5 || n_row == 1) ? 8 : 6;
    uint32_t tiles = ceil_div(all, wave * ceil_div(all, wave * max_tiles));
    if (tiles < 2 && t.n_col <= 4 && all > 2 * cores && role == Role::none) tiles = 2;
    // The expert of one row: 12.6 us with four tiles, 14.3 with two. The shared expert runs beside it: few workgroups,
    // and most of their subgroups have no column.
    if ((role == Role::expert && n_row == 1) || role == Role::shared) tiles = std::max(tiles, 4u);
    // One pipeline for all products but the head, with shared memory for the largest number of tiles:
    // matvec_common.glsl says why. In models with experts, products of one row share it with the experts.
    const bool any = n_row == 1 && n_score > 0 && !logits;
    // Short stages of small models fit the instruction cache anyway: one pipeline each gives the 0.8B model 960
    // tokens/s, one for all 934; the 9B model 320 and 330.
    const bool alone = n_row == 1 && n_score == 0 && t.n_col < 16;
    const uint32_t choice =
        any || role == Role::expert
            ? 4 * 32 * ceil_div(n_score, 32u) * (n_row == 1 ? 1 : args::kMaxRows) + 8 * args::kMaxPlaces + 256
            : 0;
    auto bytes = [&](uint32_t n_tile, uint32_t chunk) {
        return tune_impl::matrix_shared(n_row, split, n_tile, chunk) + choice;
    };
    uint32_t chunk = n_row > 1 || logits || (own == 1 && n_score == 0) ? 1
                     : split >= 12 && own % 3 == 0                     ? 3
                                                                       : 2,
             room = logits ? tiles : max_tiles;
    while (chunk > 1 && bytes(room, chunk) > traits.max_shared_bytes) chunk--;
    while (room > 1 && bytes(room, chunk) > traits.max_shared_bytes) room--;
    c.tiles = std::min(tiles, room);
    c.key.shader = std::string("matvec_mma_") + layout_name(t.layout);
    c.key.group = 32 * split;
    const bool fixed = logits || alone;  // else the dispatch's arguments say norm and epilogue
    namespace s = spec::matvec_mma;
    c.key.constants = {{s::kXRows, n_row},
                       {s::kSplit, split},
                       {s::kTiles, alone ? c.tiles : room},
                       {s::kNorm, fixed ? norm : args::kNormAny},
                       {s::kEpilogue, fixed ? static_cast<uint32_t>(epilogue) : args::kEpilogueAny},
                       {s::kChunk, chunk},
                       {s::kUnitM, 16},
                       {s::kUnitN, 8},
                       {s::kUnitK, 16},
                       {s::kBatch, 4},
                       {s::kRole, any ? args::kRoleAny : static_cast<uint32_t>(role)},
                       {s::kSubgroupScores, any || role != Role::none ? ceil_div(n_score, 32u) : 0u}};
    c.key.subgroup_size = traits.subgroup_size_control ? 32 : 0;
    c.key.full_subgroups = traits.full_subgroups;
    return c;
}

/// MatvecArgs::mode.
inline uint32_t matvec_mode(bool norm, Epilogue epilogue, Role role = Role::none) {
    return static_cast<uint32_t>(epilogue) + (norm ? 4u : 0u) + 8u * static_cast<uint32_t>(role);
}

/// True if the products of experts also choose the experts.
inline bool routes_itself(bool matrix, const Tiling& t, uint32_t n_expert, uint32_t n_used) {
    return tune_impl::on_matrix(matrix, t.layout) && n_expert <= args::kMaxRoutedExpert &&
           n_used <= args::kMaxRoutedUsed;
}

/// The kernel that decodes token rows of a tiled matrix: groups n_col x rows; bindings w, ids, y, out.
inline PipelineKey choose_embed(Layout layout) {
    PipelineKey key;
    key.shader = std::string("embed_") + layout_name(layout);
    key.group = 8;
    return key;
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

// machine/vulkan/tune: chooses the matrix-vector kernel of a product and its specialization constants.
//
// What    choose_matvec(), a pure function of the device, the weight's shape and the rows of a step. Whatever affects
//         the bits of a row (kernel, split, and the group size without matrix units) depends on device and shape alone,
//         not on the number of rows.
// Thread  any.
// Tests   tests/test_vulkan_matvec.cpp.
//
// How a product is dispatched (shaders/matvec_common.glsl has the buffers, matvec_args.h the arguments):
//   1. repack() writes the weights to device memory, in slices of at most maxStorageBufferRange, split between tile
//      rows. Dispatch once per slice: first_row = 16 * its first tile row, first_group = workgroups of earlier slices.
//   2. A dispatch takes at most matvec_max_rows() rows. Run the others in further dispatches with larger x_offset,
//      y_offset, residual_offset and out_offset; the bits are the same.
//   3. Bindings 0..6 are w, x, norm, squares, y, residual, out; 7 and 8 are a router's bias and the step buffer. Bind
//   any
//      buffer where a variant uses none.
//   4. Dispatch MatvecChoice::groups(n_tile) workgroups.
//   5. Put no barrier between independent products (q, k, v; qkv, z, alpha, beta), and pass the sum of their tile rows
//      to choose_matvec(), which sizes them to fill the device together.
//   6. A norm needs no kernel: the kernels that write the residual stream (embed, kEpilogueAdd) also write sums of
//      squares, one for 16 values, from which products with `norm` compute 1 / rms.
//   7. gate and up: one interleaved Tiling with kEpilogueSwiglu; d_out counts values of y. kEpilogueLogits also writes
//      (value, id) of the largest logit of each workgroup for sample_final: n_part = workgroups of all slices.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "repack.h"
#include "shader.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// What a product does with its sums; shaders/shared.h defines each.
enum class Epilogue : uint32_t {
    store = args::kEpilogueStore,
    add = args::kEpilogueAdd,
    swiglu = args::kEpilogueSwiglu,
    logits = args::kEpilogueLogits
};

/// True if the device reports the features that matvec_mma.comp needs. It must also pass matrix_layout_fits(): Vulkan
/// does not specify which invocation holds which matrix element, and the kernel depends on it.
inline bool matrix_worth_asking(const DeviceTraits& t) {
    if (!t.matrix_khr || !t.addresses || !t.float16 || !t.shuffle() || !t.rounding_rte16 ||
        t.max_shared_bytes < 49152 || t.max_group_invocations < 256)
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

/// True if cooperative matrices are distributed as matvec_mma.comp assumes. `seen`: output of matrix_layout.comp,
/// [32][16]. With t = l mod 4, invocation l must hold, of rows l / 4 and l / 4 + 8, columns 2t, 2t + 1, 2t + 8, 2t + 9
/// of A and columns 2t, 2t + 1 of C.
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

/// True if B is distributed as attend_tile.comp assumes, which also needs matrix_layout_fits(): of column l / 4 of B,
/// invocation l holds the rows that stand for its columns of A.
inline bool matrix_right_fits(const float* seen) {
    for (uint32_t l = 0; l < 32; l++, seen += 16)
        for (uint32_t i = 0; i < 4; i++)
            if (seen[12 + i] != static_cast<float>((2 * (l % 4) + i % 2 + 8 * (i / 2)) * 8 + l / 4)) return false;
    return true;
}

/// The pipeline to request.
struct MatvecChoice {
    PipelineKey key;
    uint32_t tiles = 1;   ///< tile rows per workgroup
    bool matrix = false;  ///< matvec_mma
    uint32_t groups(uint32_t n_tile) const { return ceil_div(n_tile, tiles); }
};

namespace tune_impl {

/// Subgroups that a core of an H100 holds with 128 registers an invocation.
constexpr uint32_t kCoreSubgroups = 16;

/// Parts that the columns are split into. It changes the order of a sum, so it may depend on the shape only. At most 8:
/// half of what a core holds. More than 8 columns are never split into 6, because two workgroups of 6 leave a quarter
/// of a core empty: on an H200, d_model 3072, 24 layers, one row, 570 tokens/s with 6 parts and 635 with 8.
inline uint32_t matrix_split(uint32_t n_col) {
    if (n_col <= 8) return n_col;
    for (const uint32_t d : {8u, 7u, 5u})
        if (n_col % d == 0) return d;
    return 8;
}

/// Teams of subgroups that share x in a workgroup. From three rows on, a workgroup of all that a core can hold is the
/// fastest: x is staged once a core, and the compiler uses at most 128 registers, where with 8 subgroups it uses up to
/// 191, so that a core holds one workgroup only: on an H100, 9B, three rows 3.70 ms and 3.46 with teams, four 3.98 and
/// 3.52. With fewer rows two teams, where two or four of them fill a core: 0.8B, one row 1067 tokens/s and 1165, two
/// rows 1.05 ms and 0.97; 9B, one row 381 and 387. Two teams of five leave a core half empty (4B 490 and 478); three
/// fill it: on an H200 4B, one row 525 and 557, 27B 129 and 142. Two rows of eight parts or of five gain nothing: 9B
/// 2.89 and 2.92 ms. The head keeps one team of five: its rows alone fill the device.
inline uint32_t matrix_teams(const DeviceTraits& traits, uint32_t rows, uint32_t split, bool logits) {
    const uint32_t n_fit = std::max(1u, std::min(kCoreSubgroups, traits.max_group_invocations / 32) / split);
    if (rows >= 3 || (rows == 1 && split == 5 && !logits)) return n_fit;
    const bool two = split <= 4 || split == 7 || (split == 8 && rows == 1);
    return two ? std::min(n_fit, 2u) : 1;
}

/// Bytes of shared memory of matvec_mma.comp. `own_sums`: its PRIVATE_ROWS is above 0.
inline uint32_t matrix_shared(uint32_t rows, uint32_t split, uint32_t tiles, uint32_t chunk, bool logits,
                              bool own_sums = false) {
    const uint32_t x = ((split * chunk - 1) * rows + 8) * 2 * args::kMatvecRowHalves,
                   scale = (split * chunk * rows + 8) * 4;
    const uint32_t sums = tiles * split * 64 * rows, out = rows * 12 + tiles * rows * (logits ? 68 : 4);
    return (own_sums ? std::max(x, sums) : x + sums) + scale + out + 256;
}

inline bool on_matrix(bool matrix, Layout layout) { return matrix && has_product(layout); }

/// Parts of the columns without matrix units: four, or five where fewer of them then have nothing to do in the last
/// turn: 10 column tiles take turns of 5 and 5, not of 4, 4 and 2. The sums of kMaxRows rows need 4.5 KiB a part.
inline uint32_t plain_split(const DeviceTraits& traits, uint32_t n_col) {
    const auto fits = [&](uint32_t n) {
        return traits.max_group_invocations >= 64 * n && traits.max_shared_bytes >= 5120 * n;
    };
    const auto idle = [&](uint32_t n) { return ceil_div(n_col, n) * n - n_col; };
    if (!fits(4)) return std::min(n_col, 2u);
    // Adreno has twice the registers for 256 invocations. Never with fewer than 5 tiles.
    if (fits(5) && idle(5) < idle(4) && traits.vendor_id != kQualcomm) return 5;
    return std::min(n_col, 4u);
}

}  // namespace tune_impl

/// The most rows that one dispatch can take.
inline uint32_t matvec_max_rows(const DeviceTraits& traits, bool matrix, const Tiling& t) {
    // A software device takes 2 to 3 s to compile a kernel of more rows.
    if (!tune_impl::on_matrix(matrix, t.layout)) return traits.is_cpu() ? 5 : args::kMaxRows;
    uint32_t rows = 8;
    while (rows > 1 &&
           tune_impl::matrix_shared(rows, tune_impl::matrix_split(t.n_col), 1, 1, true) > traits.max_shared_bytes)
        rows--;
    return rows;
}

/// What the rows and the matrix of a product stand for; moe_columns.glsl has the addressing of each.
enum class Role : uint32_t {
    none = args::kRoleNone,
    expert = args::kRoleExpert,
    row = args::kRoleRow,
    shared = args::kRoleShared
};

/// What the choice of pipelines depends on besides the product itself.
struct ModelTraits {
    uint32_t d_model = 0;
    uint32_t n_score = 0;  ///< where products choose the experts (routes_itself()): the most experts of a layer; else 0
};
/// Models of at least this d_model share one pipeline among the products of a step of one row.
constexpr uint32_t kSharedCodeWidth = 4096;

/// The kernel for n_row <= matvec_max_rows() rows.
///
/// matrix       use matrix units (OpenDevice::matrix); the same for all choices of a context
/// stage_tiles  tile rows of all products between the same two barriers; 0: this product is alone
/// model        of the whole model: what all products of a step share
inline MatvecChoice choose_matvec(const DeviceTraits& traits, bool matrix, const Tiling& t, uint32_t n_row, bool norm,
                                  Epilogue epilogue, uint32_t stage_tiles = 0, const ModelTraits& model = {},
                                  Role role = Role::none) {
    MatvecChoice c;
    const uint32_t all = std::max(stage_tiles, t.n_row);
    if (!tune_impl::on_matrix(matrix, t.layout)) {
        // A group of 8 lanes has its part of the columns of two rows; of one where there is one part; of four on a
        // software device, where each load is a loop over the lanes.
        const uint32_t split = tune_impl::plain_split(traits, t.n_col);
        c.tiles = epilogue == Epilogue::logits ? 8 : 1;
        c.key.shader = std::string("matvec_") + layout_name(t.layout);
        c.key.group = traits.is_cpu() ? 32 * split : split == 1 ? 128 : 64 * split;
        namespace s = spec::matvec;
        c.key.constants = {{s::kXRows, n_row},
                           {s::kSplit, split},
                           {s::kTiles, c.tiles},
                           {s::kNorm, norm},
                           {s::kEpilogue, static_cast<uint32_t>(epilogue)},
                           {s::kRole, static_cast<uint32_t>(role)}};
        return c;
    }
    const bool logits = epilogue == Epilogue::logits;
    const uint32_t split = role == Role::none ? tune_impl::matrix_split(t.n_col) : 8, own = ceil_div(t.n_col, split);
    const uint32_t cores = traits.n_core > 0 ? traits.n_core : 64;
    // All products but the head share one pipeline, with shared memory for the largest number of tiles, to save
    // instruction cache misses (matvec_common.glsl). In models with experts, one-row steps use it for experts too.
    const bool any = n_row == 1 && model.n_score > 0 && !logits;
    const uint32_t teams = role == Role::none && !any ? tune_impl::matrix_teams(traits, n_row, split, logits) : 1;
    // The code of a small model's short stages fits the instruction cache, so each product gets its own pipeline. On an
    // H100, tokens/s with pipelines of their own and with a shared one: 0.8B 976 and 953, 4B 443 and 430, 9B 323 and
    // 332; 4B with both kinds 415.
    const bool alone = n_row == 1 && model.n_score == 0 && model.d_model < kSharedCodeWidth;
    const uint32_t choice = any || role == Role::expert
                                ? 4 * 32 * ceil_div(model.n_score, 32u) + 8 * args::kMaxRoutedUsed + 8 * args::kMaxUsed
                                : 0;
    const uint32_t tiles_max = (role == Role::expert || (logits && (split != 5 || n_row == 1)) ? 8 : 6) * teams;
    uint32_t chunk = n_row > 1 || logits || (own == 1 && model.n_score == 0) ? 1 : 2;
    const auto fits = [&](uint32_t n_tile, bool own_sums) {
        return tune_impl::matrix_shared(n_row, split, n_tile, chunk, logits, own_sums) + choice <=
               traits.max_shared_bytes;
    };
    const auto tiles_that_fit = [&](bool own_sums) {
        uint32_t n = any ? 8 : tiles_max;
        while (n > 1 && !fits(n, own_sums)) n--;
        return n;
    };
    while (chunk > 1 && !fits(any ? 8 : tiles_max, false)) chunk--;
    // Fill whole waves. A workgroup gets as many tile rows as fill them evenly, because it loads x only once. Measured
    // on an H100 (driver 580): one wave too many costs 10 to 20 %.
    const uint32_t wave = cores * std::max(1u, tune_impl::kCoreSubgroups / (split * teams));
    const auto waves = [&](uint32_t room) { return ceil_div(all, wave * std::min(tiles_max, room)); };
    // With many rows x leaves little room in shared memory. Sums are private where that saves a wave: on an H200, steps
    // of eight rows: 9B 5.98 ms and 4.17, 27B 15.3 and 11.2; five rows of 9B 3.57 and 3.35. Without need they cost 5 %
    // of a step (0.8B).
    const bool own_sums = role == Role::none && !any && waves(tiles_that_fit(true)) < waves(tiles_that_fit(false));
    uint32_t room = tiles_that_fit(own_sums), tiles = ceil_div(all, wave * waves(room));
    if (tiles < 2 && t.n_col <= 4 && all > 2 * cores && role == Role::none) tiles = 2;
    // Expert products of one row take 12.6 us with four tiles, 14.3 us with two. The shared expert runs at the same
    // time and should take few workgroups, because most of their subgroups have no column to work on.
    if (role == Role::expert || role == Role::shared) tiles = std::max(tiles, 4u);
    c.tiles = std::min(tiles, room);
    if (logits) room = c.tiles;
    c.matrix = true;
    c.key.shader = std::string("matvec_mma_") + layout_name(t.layout);
    c.key.group = 32 * split * teams;
    const bool fixed = logits || alone;  // else MatvecArgs::mode gives norm and epilogue
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
                       {s::kTeams, teams},
                       {s::kRole, any ? args::kRoleAny : static_cast<uint32_t>(role)},
                       {s::kSubgroupScores, any || role != Role::none ? ceil_div(model.n_score, 32u) : 0u},
                       {s::kChained, traits.starts_in_order},
                       {s::kPrivateRows, own_sums ? ceil_div(room, teams) : 0}};
    c.key.subgroup_size = traits.subgroup_size_control ? 32 : 0;
    c.key.full_subgroups = traits.full_subgroups;
    return c;
}

/// The value of MatvecArgs::mode.
inline uint32_t matvec_mode(bool norm, Epilogue epilogue, Role role = Role::none) {
    return static_cast<uint32_t>(epilogue) + (norm ? 4u : 0u) + 8u * static_cast<uint32_t>(role);
}

/// True if the expert products choose the experts themselves, without a routing kernel before them.
inline bool routes_itself(bool matrix, const Tiling& t, uint32_t n_expert, uint32_t n_used) {
    return tune_impl::on_matrix(matrix, t.layout) && n_expert <= args::kMaxRoutedExpert &&
           n_used <= args::kMaxRoutedUsed;
}

/// The kernel that decodes embedding rows of a tiled matrix. Grid: n_col x rows; bindings: w, ids, y, out.
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

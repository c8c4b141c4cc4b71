// machine/vulkan/repack: converts GGUF matrices to the tiles that kernels read in 16-byte units.
//
// What    The device layout of each number format, its size, and the conversion.
// Thread  pure functions; tile rows are independent, so several threads may convert parts of one matrix.
// Tests   tests/test_vulkan_matvec.cpp: shaders unpack a tile to the bits that decode_row() gives.
//
// A matrix [d_out, d_in] becomes tiles of 16 rows x 256 columns, padded with zeros. The tiles of a tile row are
// contiguous, Tiling::row_bytes() in all, so a matrix can be split between tile rows into slices that fit
// maxStorageBufferRange. shaders/quant/*.glsl define what a tile holds. Nothing is rounded.
//
//   type                     layout   bytes a tile     bits a weight
//   Q2_K                     own      1344             2.625
//   Q3_K                     own      1824             3.5625
//   MXFP4 / IQ4_XS           own      2176 / 2208      4.25 / 4.3125
//   Q4_K / Q4_0 / IQ4_NL     own      2304             4.5
//   NVFP4                    own      2320             4.53125
//   Q4_1                     own      2560             5
//   Q5_K / Q5_0              own      2816             5.5
//   Q5_1                     own      3072             6
//   Q6_K                     own      3360             6.5625
//   Q8_0                     own      4352             8.5
//   F16 / BF16               own      8192             16
//   F32                      own      16384            32
//
// Two matrices of one type and shape can be interleaved: tile row i holds rows 8i..8i+7 of the first, then of the
// second. The swiglu epilogue needs gate and up in this order.
//
// A stack of matrices (experts) is stored one matrix after the other, with the same number of tile rows each.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "../../base/number.h"
#include "shader_contract.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// The layouts that shaders/quant defines; AUSPEX_LAYOUTS is generated from them (shader_contract.h).
enum class Layout : uint32_t {
#define AUSPEX_ENUMERATOR(layout, units, product) layout,
    AUSPEX_LAYOUTS(AUSPEX_ENUMERATOR)
#undef AUSPEX_ENUMERATOR
};
constexpr uint32_t kTileRows = args::kTileRows, kTileColumns = args::kTileColumns;

Layout layout_of(Type type);
const char* layout_name(Layout layout);
uint32_t tile_bytes(Layout layout);
bool has_product(Layout layout);  ///< matvec_mma.comp supports it

/// Layout and size of a matrix on the device.
struct Tiling {
    Layout layout = Layout::f32;
    uint64_t d_out = 0, d_in = 0;   ///< of one matrix, even if two are interleaved
    uint32_t n_row = 0, n_col = 0;  ///< tile rows and column tiles
    bool interleaved = false;
    uint32_t n_stack = 1;  ///< matrices, one after the other
    uint64_t row_bytes() const { return uint64_t{n_col} * tile_bytes(layout); }
    /// Halves of column tiles that are not all padding.
    uint32_t n_half_tile() const { return static_cast<uint32_t>(ceil_div(d_in, uint64_t{kTileColumns / 2})); }
    uint64_t bytes() const { return n_row * row_bytes(); }
    /// One matrix of a stack.
    Tiling one() const {
        Tiling t = *this;
        t.n_row /= n_stack;
        t.n_stack = 1;
        return t;
    }
    /// Tile rows of a slice of at most `max_bytes`; 0 if one is too long. A stack is split between matrices only.
    uint32_t rows_within(uint64_t max_bytes) const {
        const uint64_t n_one = n_stack > 1 ? n_row / n_stack : 1, n = max_bytes / (n_one * row_bytes()) * n_one;
        return n < n_row ? static_cast<uint32_t>(n) : n_row;
    }
};
Tiling tiling(Type type, uint64_t d_out, uint64_t d_in, bool interleaved = false, uint32_t n_stack = 1);

/// A matrix, or a stack of them, in the file's format.
struct MatrixRows {
    MatrixRows(const void* in_file, Span<const float> scales = {}) : rows(in_file), scale(scales) {}
    float scale_of(uint64_t i_stack) const {
        return scale.empty() ? 1 : scale[scale.size() == 1 ? 0 : static_cast<size_t>(i_stack)];
    }
    const void* rows;         ///< [d_out, d_in], of any alignment
    Span<const float> scale;  ///< Slot::scale
};

/// Writes tile rows [first, first + n) of a matrix to `to`, n * row_bytes() bytes. Writes ascend, so `to` may be
/// write-combined memory.
///
/// type      the number format of `a` and `b`
/// b         second matrix of an interleaved pair. Null: no pair, or the second matrix follows the first in `a`
/// cost      about 1 to 2 GB/s per thread for Q4_K, Q6_K and Q8_0
void repack(const Tiling& t, Type type, const MatrixRows& a, const MatrixRows& b, uint32_t first, uint32_t n,
            std::byte* to);

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

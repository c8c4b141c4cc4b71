// machine/cpu/pack: the layout of a strip of interleaved rows.
//
// Owns    StripForm, the layout that the packer writes and the kernels read; Int16Block, the activations they read.
// Thread  pure functions.
// Tests   tests/test_matmul.cpp: lossless, unpack_row gives decode_row's bits.
//
// A strip holds n_lane (16 or 8) consecutive output rows over all of d_in, cut into blocks of 32 inputs and pages of
// 256 (the last one may be shorter). A page is its scales and then its codes, both aligned to a vector, so that a
// product reads memory in one stream. Rows past d_out are zero.
//
//   scales   super: d f16[n_lane], dmin f16[n_lane] if has_min; then for each block int8 scale[n_lane] per
//            group (one of 32 inputs or two of 16), followed by int8 min[n_lane] per group if has_min.
//            power: for each block uint8 e[n_lane], as fp4_scale() reads it.
//            e4m3: for each block uint8 code[n_lane] per group, as half_of_e4m3() reads it.
//            else: for each block d f16[n_lane], min f16[n_lane] if has_min.
//   codes    for each block, vectors of n_lane times 4 bytes; byte 4 * lane + j of vector (h, v) belongs to input
//            16 h + 4 v + j, with h < 2, v < 4:
//            nibble, codebook  4 vectors v: low nibble h = 0, high nibble h = 1
//            five          the same 4, then 1 vector with bit 4 of code (h, v) at bit 4 h + v
//            six           the same 4, then 2 vectors h with bits 4-5 of code (h, v) at bit 2 v
//            byte          8 vectors (h, v)
#pragma once
#include "matmul.h"

#include <cmath>
#include <limits>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

enum class CodeForm : uint8_t { nibble, codebook, five, six, byte };

struct StripForm {
    CodeForm code = CodeForm::nibble;
    uint8_t n_group = 1;               ///< scales in a block of 32
    bool has_min = false;              ///< value = scale * code - min
    bool super = false;                ///< scales are int8 times an f16 for each 256 inputs
    bool power = false;                ///< scales are powers of two; with codebook only
    bool e4m3 = false;                 ///< scales are unsigned E4M3, times Matrix::scale; with codebook, two groups
    uint8_t offset = 0;                ///< value = scale * (code - offset); not with has_min
    const int8_t* codebook = nullptr;  ///< [16], with codebook: value = scale * codebook[code]

    static constexpr uint32_t kCodeBytes[5] = {16, 16, 20, 24, 32};  ///< of a block and lane, by code
    uint32_t code_bytes(uint32_t n_lane) const { return kCodeBytes[static_cast<int>(code)] * n_lane; }  ///< of a block
    uint32_t head_bytes(uint32_t n_lane) const { return super ? (has_min ? 4 : 2) * n_lane : 0; }
    uint32_t scale_bytes(uint32_t n_lane) const {  ///< of one block
        const uint32_t n = has_min ? 2 : 1;
        return super || power || e4m3 ? n * n_group * n_lane : 2 * n * n_lane;
    }
    /// The scales of a page of n_block blocks, padding included.
    uint32_t page_scale_bytes(uint32_t n_lane, uint32_t n_block) const {
        return (head_bytes(n_lane) + n_block * scale_bytes(n_lane) + 4 * n_lane - 1) & ~(4 * n_lane - 1);
    }
    uint32_t page_bytes(uint32_t n_lane, uint32_t n_block) const {
        return page_scale_bytes(n_lane, n_block) + n_block * code_bytes(n_lane);
    }
    uint64_t strip_bytes(uint32_t n_lane, uint32_t d_in) const {
        const uint32_t n_block = d_in / 32, rest = n_block % 8;
        return round_up(uint64_t{n_block / 8} * page_bytes(n_lane, 8) + (rest ? page_bytes(n_lane, rest) : 0), 64);
    }
};

/// The form in which a file type is held; false for the float types, which stay plain rows.
bool strip_form(Type type, StripForm* out);

/// Writes one strip from n_row <= n_lane rows of the file, into zeroed memory (padding is not written). ids [n_row]:
/// which rows; null: the first ones.
void pack_strip(const Matrix& m, const std::byte* rows, const Token* ids, uint32_t n_row, std::byte* strip);

/// 32 values of an activation row as integers of about 15 bits: products are nearly as exact as with float activations,
/// at the speed of bytes.
struct Int16Block {
    int8_t q[64];          ///< high bytes, within -127 .. 127, then low ones: x = scale (256 high + low). For kernels
                           ///< that take words (CpuKernels::words): 256 high + low as int16 [32], inputs of each
                           ///< four in the order 0, 2, 1, 3
    float scale;           ///< max |x| / 127 / 256
    float sum;             ///< of the rounded x
    int32_t minus_sum[2];  ///< -sum (256 high + low), for each half
};
static_assert(sizeof(Int16Block) == 80, "packed");

/// The scale of a block whose largest magnitude is `max`, and its inverse. A block below 1e-30 becomes zero, so that
/// the inverse is finite.
inline void int8_scale(float max, bool nan, float* scale, float* inverse) {
    *scale = nan ? std::numeric_limits<float>::quiet_NaN() : max < 1e-30f ? 0 : max / 127;
    *inverse = max < 1e-30f ? 0 : 127 / max;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

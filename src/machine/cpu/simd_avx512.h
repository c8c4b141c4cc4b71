// machine/cpu/simd_avx512: the vocabulary of matmul_kernel.inl in AVX-512 with VNNI.
//
// Owns    the vector operations; 16 rows to a strip.
// Reads   pack (layout).
// Serves  matmul_avx512.
// Thread  none of its own.
// Laws    multiply-adds are explicit, so that no compiler may choose to fuse or not to.
#pragma once
#include "pack.h"

#if AUSPEX_HAS_X86
#include <immintrin.h>

#if defined(__GNUC__)
#define AUSPEX_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")))
#define AUSPEX_AVX512_INLINE inline __attribute__((always_inline)) AUSPEX_AVX512
#else
#define AUSPEX_AVX512
#define AUSPEX_AVX512_INLINE inline
#endif

namespace auspex {
namespace detail {
namespace cpu_avx512 {

constexpr uint32_t kLane = 16;
constexpr int kMaxRow = 8;          ///< activation rows of one pass over a strip
constexpr int kMaxFloatColumn = 4;  ///< the same for float weights
constexpr int kFloatRow = 4;        ///< output rows of one pass, for float weights
using Floats = __m512;
using Ints = __m512i;

AUSPEX_AVX512_INLINE void prefetch_soon(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
AUSPEX_AVX512_INLINE void prefetch_later(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
AUSPEX_AVX512_INLINE Floats f_zero() { return _mm512_setzero_ps(); }
AUSPEX_AVX512_INLINE Floats f_all(float a) { return _mm512_set1_ps(a); }
AUSPEX_AVX512_INLINE Floats f_mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
AUSPEX_AVX512_INLINE Floats f_fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
AUSPEX_AVX512_INLINE Floats f_fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
AUSPEX_AVX512_INLINE Floats f_from(Ints a) { return _mm512_cvtepi32_ps(a); }
/// kLane halves.
AUSPEX_AVX512_INLINE Floats f_halves(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
/// kLane signed bytes.
AUSPEX_AVX512_INLINE Floats f_bytes(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
AUSPEX_AVX512_INLINE Ints i_add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
AUSPEX_AVX512_INLINE Ints i_zero() { return _mm512_setzero_si512(); }
AUSPEX_AVX512_INLINE Ints i_all(int32_t a) { return _mm512_set1_epi32(a); }
template <int n>
AUSPEX_AVX512_INLINE Ints i_shift(Ints a) {
    return _mm512_slli_epi32(a, n);
}
/// The first n of the lanes to y, or added to it.
AUSPEX_AVX512_INLINE void f_put(float* y, uint32_t n, Floats a, bool accumulate) {
    const __mmask16 m = static_cast<__mmask16>((1u << n) - 1);
    if (accumulate) a = _mm512_add_ps(_mm512_maskz_loadu_ps(m, y), a);
    _mm512_mask_storeu_ps(y, m, a);
}

/// What a byte form's codes stand above the file's; taken back by the kernel.
constexpr int bias_of(CodeForm k) { return k == CodeForm::codebook || k == CodeForm::byte ? 128 : 0; }

/// Codes (h, v) of a block as unsigned bytes.
template <CodeForm kCode, int h, int v>
AUSPEX_AVX512_INLINE __m512i codes_of(const uint8_t* p) {
    const __m512i* q = reinterpret_cast<const __m512i*>(p);
    if constexpr (kCode == CodeForm::byte) return _mm512_loadu_si512(q + 4 * h + v);
    __m512i c = _mm512_loadu_si512(q + v);
    if constexpr (h == 1) c = _mm512_srli_epi16(c, 4);
    c = _mm512_and_si512(c, _mm512_set1_epi8(15));
    if constexpr (kCode == CodeForm::codebook) {
        const __m512i codebook = _mm512_broadcast_i32x4(
            _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, static_cast<char>(129), static_cast<char>(141),
                          static_cast<char>(153), static_cast<char>(166), static_cast<char>(181),
                          static_cast<char>(197), static_cast<char>(217), static_cast<char>(241)));
        return _mm512_shuffle_epi8(codebook, c);
    }
    if constexpr (kCode == CodeForm::five) {
        __m512i b = _mm512_loadu_si512(q + 4);
        constexpr int from = 4 * h + v;
        if constexpr (from < 4) b = _mm512_slli_epi16(b, 4 - from);
        if constexpr (from > 4) b = _mm512_srli_epi16(b, from - 4);
        c = _mm512_or_si512(c, _mm512_and_si512(b, _mm512_set1_epi8(16)));
    }
    if constexpr (kCode == CodeForm::six) {
        __m512i b = _mm512_loadu_si512(q + 4 + h);
        if constexpr (v < 2) b = _mm512_slli_epi16(b, 4 - 2 * v);
        if constexpr (v > 2) b = _mm512_srli_epi16(b, 2 * v - 4);
        c = _mm512_or_si512(c, _mm512_and_si512(b, _mm512_set1_epi8(48)));
    }
    return c;
}

template <CodeForm kCode, int n, int h, int v>
AUSPEX_AVX512_INLINE void dot_four(const uint8_t* codes, const Int16Block* const* x, size_t b, Ints* dot) {
    const __m512i w = codes_of<kCode, h, v>(codes);
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c)
        dot[c] = _mm512_dpbusd_epi32(dot[c], w,
                                     _mm512_set1_epi32(load<int32_t>(x[c / 2][b].q + 32 * (c % 2) + 16 * h + 4 * v)));
}

/// dot[2r], dot[2r + 1] += sum over half h of block b of code * high, low byte of x[r]; n counts both.
template <CodeForm kCode, int n, int h>
AUSPEX_AVX512_INLINE void dot_half(const uint8_t* codes, const Int16Block* const* x, size_t b, Ints* dot) {
    dot_four<kCode, n, h, 0>(codes, x, b, dot);
    dot_four<kCode, n, h, 1>(codes, x, b, dot);
    dot_four<kCode, n, h, 2>(codes, x, b, dot);
    dot_four<kCode, n, h, 3>(codes, x, b, dot);
}

// ------------------------------------------------------------------------------- float weights

/// kLane weights as floats.
template <Type kType>
AUSPEX_AVX512_INLINE Floats f_weights(const std::byte* p) {
    if constexpr (kType == Type::f32) return _mm512_loadu_ps(reinterpret_cast<const float*>(p));
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (kType == Type::f16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
AUSPEX_AVX512_INLINE Floats f_load(const float* p) { return _mm512_loadu_ps(p); }
/// The sum of the lanes, always in the same order.
AUSPEX_AVX512_INLINE float f_sum(Floats a) {
    const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    c = _mm_add_ss(c, _mm_movehdup_ps(c));
    return _mm_cvtss_f32(c);
}

// --------------------------------------------------------------------------------- activations

/// The largest magnitude of 32 values, and whether one is no number.
AUSPEX_AVX512_INLINE void block_range(const float* x, float* most, bool* nan) {
    const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    *most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    *nan = _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0;
}
/// q = round(x * inverse) within -127..127, for 32 values; sums of each half.
AUSPEX_AVX512_INLINE void round_block(const float* x, float inverse, int8_t* q, int32_t* sums) {
    const __m512i low = _mm512_set1_epi32(-127), high = _mm512_set1_epi32(127);
    for (int h = 0; h < 2; ++h) {
        __m512i p = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * h), _mm512_set1_ps(inverse)));
        p = _mm512_max_epi32(low, _mm512_min_epi32(high, p));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16 * h), _mm512_cvtepi32_epi8(p));
        sums[h] = _mm512_reduce_add_epi32(p);
    }
}

}  // namespace cpu_avx512
}  // namespace detail
}  // namespace auspex
#endif

// machine/cpu/simd_avx2: the vocabulary of matmul_kernel.inl in AVX2 with FMA and F16C.
//
// Owns    the vector operations; 8 rows to a strip.
// Reads   pack (layout).
// Serves  matmul_avx2.
// Thread  none of its own.
// Laws    no 16-bit sum can overflow (the bounds stand at dot_half); multiply-adds are explicit.
#pragma once
#include "pack.h"

#if AUSPEX_HAS_X86
#include <immintrin.h>

#if defined(__GNUC__)
#define AUSPEX_AVX2 __attribute__((target("avx2,fma,f16c")))
#define AUSPEX_AVX2_INLINE inline __attribute__((always_inline)) AUSPEX_AVX2
#else
#define AUSPEX_AVX2
#define AUSPEX_AVX2_INLINE inline
#endif

namespace auspex {
namespace detail {
namespace cpu_avx2 {

constexpr uint32_t kLane = 8;
constexpr int kMaxRow = 2;          ///< activation rows of one pass over a strip
constexpr int kMaxFloatColumn = 2;  ///< the same for float weights
constexpr int kFloatRow = 4;        ///< output rows of one pass, for float weights
using Floats = __m256;
using Ints = __m256i;

AUSPEX_AVX2_INLINE void prefetch_soon(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
AUSPEX_AVX2_INLINE void prefetch_later(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
AUSPEX_AVX2_INLINE Floats f_zero() { return _mm256_setzero_ps(); }
AUSPEX_AVX2_INLINE Floats f_all(float a) { return _mm256_set1_ps(a); }
AUSPEX_AVX2_INLINE Floats f_mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
AUSPEX_AVX2_INLINE Floats f_fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
AUSPEX_AVX2_INLINE Floats f_fnma(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }
AUSPEX_AVX2_INLINE Floats f_from(Ints a) { return _mm256_cvtepi32_ps(a); }
/// kLane halves.
AUSPEX_AVX2_INLINE Floats f_halves(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
/// kLane signed bytes.
AUSPEX_AVX2_INLINE Floats f_bytes(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
AUSPEX_AVX2_INLINE Ints i_add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
AUSPEX_AVX2_INLINE Ints i_zero() { return _mm256_setzero_si256(); }
AUSPEX_AVX2_INLINE Ints i_all(int32_t a) { return _mm256_set1_epi32(a); }
template <int n>
AUSPEX_AVX2_INLINE Ints i_shift(Ints a) {
    return _mm256_slli_epi32(a, n);
}
/// The first n of the lanes to y, or added to it.
AUSPEX_AVX2_INLINE void f_put(float* y, uint32_t n, Floats a, bool accumulate) {
    const __m256i m =
        _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    if (accumulate) a = _mm256_add_ps(_mm256_maskload_ps(y, m), a);
    _mm256_maskstore_ps(y, m, a);
}

/// Byte and codebook codes are signed here.
constexpr int bias_of(CodeForm) { return 0; }
constexpr bool signed_codes(CodeForm k) { return k == CodeForm::codebook || k == CodeForm::byte; }

/// Codes (h, v) of a block: bytes, signed for codebook and byte.
template <CodeForm kCode, int h, int v>
AUSPEX_AVX2_INLINE __m256i codes_of(const uint8_t* p) {
    const __m256i* q = reinterpret_cast<const __m256i*>(p);
    if constexpr (kCode == CodeForm::byte) return _mm256_loadu_si256(q + 4 * h + v);
    __m256i c = _mm256_loadu_si256(q + v);
    if constexpr (h == 1) c = _mm256_srli_epi16(c, 4);
    c = _mm256_and_si256(c, _mm256_set1_epi8(15));
    if constexpr (kCode == CodeForm::codebook) {
        const __m128i codebook = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Values));
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(codebook), c);
    }
    if constexpr (kCode == CodeForm::five) {
        __m256i b = _mm256_loadu_si256(q + 4);
        constexpr int from = 4 * h + v;
        if constexpr (from < 4) b = _mm256_slli_epi16(b, 4 - from);
        if constexpr (from > 4) b = _mm256_srli_epi16(b, from - 4);
        c = _mm256_or_si256(c, _mm256_and_si256(b, _mm256_set1_epi8(16)));
    }
    if constexpr (kCode == CodeForm::six) {
        __m256i b = _mm256_loadu_si256(q + 4 + h);
        if constexpr (v < 2) b = _mm256_slli_epi16(b, 4 - 2 * v);
        if constexpr (v > 2) b = _mm256_srli_epi16(b, 2 * v - 4);
        c = _mm256_or_si256(c, _mm256_and_si256(b, _mm256_set1_epi8(48)));
    }
    return c;
}

/// Pairs of products of codes and activations, as 16-bit sums: at most 2 * 127 * the largest code.
template <CodeForm kCode>
AUSPEX_AVX2_INLINE __m256i pairs(__m256i w, __m256i magnitude, const int8_t* q) {
    const __m256i x = _mm256_set1_epi32(load<int32_t>(q));
    if constexpr (signed_codes(kCode)) return _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(x, w));
    return _mm256_maddubs_epi16(w, x);
}
AUSPEX_AVX2_INLINE __m256i widen(__m256i pair) { return _mm256_madd_epi16(pair, _mm256_set1_epi16(1)); }

template <CodeForm kCode, int n, int h, int v>
AUSPEX_AVX2_INLINE void dot_eight(const uint8_t* codes, const Int16Block* const* x, size_t b, __m256i* sum, Ints* dot) {
    const __m256i w0 = codes_of<kCode, h, v>(codes), w1 = codes_of<kCode, h, v + 1>(codes);
    const __m256i m0 = signed_codes(kCode) ? _mm256_abs_epi8(w0) : w0;
    const __m256i m1 = signed_codes(kCode) ? _mm256_abs_epi8(w1) : w1;
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) {
        const __m256i p0 = pairs<kCode>(w0, m0, x[c / 2][b].q + 32 * (c % 2) + 16 * h + 4 * v);
        const __m256i p1 = pairs<kCode>(w1, m1, x[c / 2][b].q + 32 * (c % 2) + 16 * h + 4 * v + 4);
        if constexpr (signed_codes(kCode)) {  // 2 * 127 * 128 = 32 512 each: 16 bits hold one
            dot[c] = _mm256_add_epi32(dot[c], _mm256_add_epi32(widen(p0), widen(p1)));
        } else if constexpr (kCode == CodeForm::six) {  // 2 * 127 * 63 = 16 002 each: they hold two
            dot[c] = _mm256_add_epi32(dot[c], widen(_mm256_add_epi16(p0, p1)));
        } else {  // 2 * 127 * 31 = 7 874 each, 31 496 in four: they hold a half
            sum[c] = v == 0 ? _mm256_add_epi16(p0, p1) : _mm256_add_epi16(sum[c], _mm256_add_epi16(p0, p1));
        }
    }
}

/// dot[2r], dot[2r + 1] += sum over half h of block b of code * high, low byte of x[r]; n counts both.
template <CodeForm kCode, int n, int h>
AUSPEX_AVX2_INLINE void dot_half(const uint8_t* codes, const Int16Block* const* x, size_t b, Ints* dot) {
    __m256i sum[n];
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) sum[c] = i_zero();
    dot_eight<kCode, n, h, 0>(codes, x, b, sum, dot);
    dot_eight<kCode, n, h, 2>(codes, x, b, sum, dot);
    if constexpr (!signed_codes(kCode) && kCode != CodeForm::six) {
#pragma GCC unroll 16
        for (int c = 0; c < n; ++c) dot[c] = _mm256_add_epi32(dot[c], widen(sum[c]));
    }
}

// ------------------------------------------------------------------------------- float weights

/// kLane weights as floats.
template <Type kType>
AUSPEX_AVX2_INLINE Floats f_weights(const std::byte* p) {
    if constexpr (kType == Type::f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    if constexpr (kType == Type::f16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
AUSPEX_AVX2_INLINE Floats f_load(const float* p) { return _mm256_loadu_ps(p); }
/// The sum of the lanes, always in the same order.
AUSPEX_AVX2_INLINE float f_sum(Floats a) {
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    c = _mm_add_ss(c, _mm_movehdup_ps(c));
    return _mm_cvtss_f32(c);
}

// --------------------------------------------------------------------------------- activations

AUSPEX_AVX2_INLINE int32_t i_sum(__m256i a) {
    __m128i c = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4e));
    c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0xb1));
    return _mm_cvtsi128_si32(c);
}

/// The largest magnitude of 32 values, and whether one is no number.
AUSPEX_AVX2_INLINE void block_range(const float* x, float* most, bool* nan) {
    __m256 top = _mm256_setzero_ps(), odd = _mm256_setzero_ps();
    for (int i = 0; i < 4; ++i) {
        const __m256 v = _mm256_loadu_ps(x + 8 * i);
        top = _mm256_max_ps(top, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v));
        odd = _mm256_or_ps(odd, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    }
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    *most = _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
    *nan = _mm256_movemask_ps(odd) != 0;
}
/// q = round(x * inverse) within -127..127, for 32 values; sums of each half.
AUSPEX_AVX2_INLINE void round_block(const float* x, float inverse, int8_t* q, int32_t* sums) {
    const __m256i low = _mm256_set1_epi32(-127), high = _mm256_set1_epi32(127);
    __m256i p[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        p[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(inverse)));
        p[i] = _mm256_max_epi32(low, _mm256_min_epi32(high, p[i]));
    }
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(p[0], p[1]), _mm256_packs_epi32(p[2], p[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing works within halves
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permutevar8x32_epi32(bytes, order));
    sums[0] = i_sum(_mm256_add_epi32(p[0], p[1]));
    sums[1] = i_sum(_mm256_add_epi32(p[2], p[3]));
}

}  // namespace cpu_avx2
}  // namespace detail
}  // namespace auspex
#endif

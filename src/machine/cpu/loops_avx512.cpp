// machine/cpu/loops_avx512: the inner loops on AVX-512 F, BW, VL and DQ: the vocabulary of loops_simd.inl.
#include "features.h"
#include "ops.h"

#if AUSPEX_HAS_X86
#include <immintrin.h>

#include <cmath>
#include <cstring>

// The includer's flags need not allow these instructions; this region does.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))), \
                             apply_to = function)
#elif defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12: false alarm inside its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#endif

namespace auspex {
namespace detail {
namespace loops_avx512 {

using V = __m512;
constexpr uint32_t W = 16;
constexpr uint32_t kStreamRows = 8;  // rows of a state between two loads of its sums
constexpr uint32_t kWide = 4;        // vectors of state columns in one walk of delta_rows
constexpr uint32_t kTile = 4;        // vectors of one row of a product tile
constexpr uint32_t kScore = 1;       // the same for twice the rows
constexpr uint32_t kPairs = 16;      // sums in one tile of attention

inline V zero() { return _mm512_setzero_ps(); }
inline V splat(float a) { return _mm512_set1_ps(a); }
inline V add(V a, V b) { return _mm512_add_ps(a, b); }
inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
inline V div(V a, V b) { return _mm512_div_ps(a, b); }
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V fnma(V a, V b, V c) { return _mm512_fnmadd_ps(a, b, c); }
inline V vmin(V a, V b) { return _mm512_min_ps(a, b); }  // b where either is not a number
inline V vmax(V a, V b) { return _mm512_max_ps(a, b); }
inline V floor_of(V a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
inline V nearest(V a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline V power_of_two(V n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, V a) { _mm512_storeu_ps(p, a); }
inline __mmask16 first(uint32_t n) { return static_cast<__mmask16>((1u << n) - 1); }
inline V load_n(const float* p, uint32_t n, float fill) { return _mm512_mask_loadu_ps(splat(fill), first(n), p); }
inline void store_n(float* p, V a, uint32_t n) { _mm512_mask_storeu_ps(p, first(n), a); }
inline V load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline V load_f16_n(const uint16_t* p, uint32_t n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p)); }
inline V splat_f16(const uint8_t* p) {
    int16_t h;
    std::memcpy(&h, p, sizeof h);
    return _mm512_cvtph_ps(_mm256_set1_epi16(h));
}
inline __m128i sixteen_bytes(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline V load_i8(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sixteen_bytes(p))); }
inline V load_nibbles(const uint8_t* p, uint32_t shift) {
    const __m128i x =
        _mm_and_si128(_mm_srl_epi16(sixteen_bytes(p), _mm_cvtsi32_si128(static_cast<int>(shift))), _mm_set1_epi8(15));
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(x));
}
inline void store_f16(uint16_t* p, V a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
inline __m256 halved(V a) { return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)); }
inline void sum4(const V* v, float* out) {
    const __m256 s =
        _mm256_hadd_ps(_mm256_hadd_ps(halved(v[0]), halved(v[1])), _mm256_hadd_ps(halved(v[2]), halved(v[3])));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}
inline float max_of(V a) {
    const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}
inline void load_taps4(const float* w, V* t) {
    const V a = load(w), b = load(w + 16), c = load(w + 32), d = load(w + 48);
    // Two taps of eight channels each in one register, then the halves side by side.
    const __m512i even = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i odd = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
    const V x = _mm512_permutex2var_ps(a, even, b), y = _mm512_permutex2var_ps(c, even, d);
    const V z = _mm512_permutex2var_ps(a, odd, b), u = _mm512_permutex2var_ps(c, odd, d);
    t[0] = _mm512_shuffle_f32x4(x, y, 0x44);
    t[1] = _mm512_shuffle_f32x4(x, y, 0xEE);
    t[2] = _mm512_shuffle_f32x4(z, u, 0x44);
    t[3] = _mm512_shuffle_f32x4(z, u, 0xEE);
}

#include "loops_simd.inl"

}  // namespace loops_avx512
}  // namespace detail
}  // namespace auspex

#if defined(__clang__)
#pragma clang attribute pop
#elif defined(__GNUC__)
#pragma GCC pop_options
#pragma GCC diagnostic pop
#endif
#endif

namespace auspex {
namespace detail {

const Loops* avx512_loops() {
#if AUSPEX_HAS_X86
    namespace r = loops_avx512;
    static constexpr Loops loops = {"avx512",  r::rms_norm, r::swiglu, r::silu_gate,  r::sigmoid_gate, r::conv_silu,
                                    r::to_f16, r::attend,   r::merge,  r::delta_rows, r::delta_chunk,  r::attend_many};
    return &loops;
#else
    return nullptr;
#endif
}

}  // namespace detail
}  // namespace auspex

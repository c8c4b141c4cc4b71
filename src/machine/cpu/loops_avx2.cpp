// machine/cpu/loops_avx2: the inner loops on AVX2, FMA and F16C: the vocabulary of loops_simd.inl.
#include "features.h"
#include "ops.h"

#if AUSPEX_HAS_X86
#include <immintrin.h>

#include <cmath>
#include <cstring>

// The includer's flags need not allow these instructions; this region does.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

namespace auspex {
namespace detail {
namespace loops_avx2 {

using V = __m256;
constexpr uint32_t W = 8;
constexpr uint32_t kStreamRows = 2;  // rows of a state between two loads of its sums
constexpr uint32_t kWide = 4;        // vectors of state columns in one walk of delta_rows
constexpr uint32_t kTile = 2;        // vectors of one row of a product tile
constexpr uint32_t kScore = 1;       // the same for twice the rows
constexpr uint32_t kPairs = 8;       // sums in one tile of attention

inline V zero() { return _mm256_setzero_ps(); }
inline V splat(float a) { return _mm256_set1_ps(a); }
inline V add(V a, V b) { return _mm256_add_ps(a, b); }
inline V sub(V a, V b) { return _mm256_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm256_mul_ps(a, b); }
inline V div(V a, V b) { return _mm256_div_ps(a, b); }
inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline V fnma(V a, V b, V c) { return _mm256_fnmadd_ps(a, b, c); }
inline V vmin(V a, V b) { return _mm256_min_ps(a, b); }  // b where either is not a number
inline V vmax(V a, V b) { return _mm256_max_ps(a, b); }
inline V floor_of(V a) { return _mm256_floor_ps(a); }
inline V nearest(V a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline V power_of_two(V n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline V load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, V a) { _mm256_storeu_ps(p, a); }
inline __m256i first(uint32_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline V load_n(const float* p, uint32_t n, float fill) {
    const __m256i m = first(n);
    return _mm256_blendv_ps(splat(fill), _mm256_maskload_ps(p, m), _mm256_castsi256_ps(m));
}
inline void store_n(float* p, V a, uint32_t n) { _mm256_maskstore_ps(p, first(n), a); }
inline V load_f16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline V load_f16_n(const uint16_t* p, uint32_t n) {
    uint16_t t[W] = {};
    std::memcpy(t, p, sizeof(uint16_t) * n);
    return load_f16(t);
}
inline V splat_f16(const uint8_t* p) {
    int16_t h;
    std::memcpy(&h, p, sizeof h);
    return _mm256_cvtph_ps(_mm_set1_epi16(h));
}
inline __m128i eight_bytes(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
inline V load_i8(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight_bytes(p))); }
inline V load_nibbles(const uint8_t* p, uint32_t shift) {
    const __m128i x =
        _mm_and_si128(_mm_srl_epi16(eight_bytes(p), _mm_cvtsi32_si128(static_cast<int>(shift))), _mm_set1_epi8(15));
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x));
}
inline void store_f16(uint16_t* p, V a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
inline void sum4(const V* v, float* out) {
    const V s = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}
inline float max_of(V a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}
inline void load_taps4(const float* w, V* t) {
    const V a = load(w), b = load(w + 8), c = load(w + 16), d = load(w + 24);
    // Channel i beside channel i + 4, then a 4 x 4 transpose in each half.
    const V c0 = _mm256_permute2f128_ps(a, c, 0x20), c1 = _mm256_permute2f128_ps(a, c, 0x31);
    const V c2 = _mm256_permute2f128_ps(b, d, 0x20), c3 = _mm256_permute2f128_ps(b, d, 0x31);
    const V x = _mm256_unpacklo_ps(c0, c1), y = _mm256_unpackhi_ps(c0, c1);
    const V z = _mm256_unpacklo_ps(c2, c3), u = _mm256_unpackhi_ps(c2, c3);
    t[0] = _mm256_shuffle_ps(x, z, 0x44);
    t[1] = _mm256_shuffle_ps(x, z, 0xEE);
    t[2] = _mm256_shuffle_ps(y, u, 0x44);
    t[3] = _mm256_shuffle_ps(y, u, 0xEE);
}

#include "loops_simd.inl"

}  // namespace loops_avx2
}  // namespace detail
}  // namespace auspex

#if defined(__clang__)
#pragma clang attribute pop
#elif defined(__GNUC__)
#pragma GCC pop_options
#endif
#endif

namespace auspex {
namespace detail {

const Loops* avx2_loops() {
#if AUSPEX_HAS_X86
    namespace r = loops_avx2;
    static constexpr Loops loops = {"avx2",    r::rms_norm, r::swiglu, r::silu_gate,  r::sigmoid_gate, r::conv_silu,
                                    r::to_f16, r::attend,   r::merge,  r::delta_rows, r::delta_chunk,  r::attend_many};
    return &loops;
#else
    return nullptr;
#endif
}

}  // namespace detail
}  // namespace auspex

// machine/cpu/simd_avx2: the vocabulary of kernels.inl in AVX2 with FMA and F16C; 8 rows to a strip.
//
// Owns    avx2_kernels(), and the vector operations it is compiled from. kernels.inl says what each one means.
// Thread  pure functions.
// Tests   tests/test_ops.cpp, tests/test_matmul.cpp.
#include "simd.h"

#if AUSPEX_HAS_X86

AUSPEX_SIMD_BEGIN("avx2,fma,f16c")
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace simd_avx2 {

using V = __m256;
constexpr uint32_t W = 8;
constexpr uint32_t kStreamRows = 2;
constexpr uint32_t kWide = 4;
constexpr uint32_t kTile = 2;
constexpr uint32_t kScore = 1;
constexpr uint32_t kPairs = 8;

// ---------------------------------------------------------------------------------------- floats

AUSPEX_INLINE V zero() { return _mm256_setzero_ps(); }
AUSPEX_INLINE V splat(float a) { return _mm256_set1_ps(a); }
AUSPEX_INLINE V add(V a, V b) { return _mm256_add_ps(a, b); }
AUSPEX_INLINE V sub(V a, V b) { return _mm256_sub_ps(a, b); }
AUSPEX_INLINE V mul(V a, V b) { return _mm256_mul_ps(a, b); }
AUSPEX_INLINE V div(V a, V b) { return _mm256_div_ps(a, b); }
AUSPEX_INLINE V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
AUSPEX_INLINE V fnma(V a, V b, V c) { return _mm256_fnmadd_ps(a, b, c); }
AUSPEX_INLINE V vmin(V a, V b) { return _mm256_min_ps(a, b); }
AUSPEX_INLINE V vmax(V a, V b) { return _mm256_max_ps(a, b); }
AUSPEX_INLINE V floor_of(V a) { return _mm256_floor_ps(a); }
AUSPEX_INLINE V nearest(V a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
AUSPEX_INLINE V power_of_two(V n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
AUSPEX_INLINE float sum_halves(V a) {
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    c = _mm_add_ss(c, _mm_movehdup_ps(c));
    return _mm_cvtss_f32(c);
}
AUSPEX_INLINE void sum4(const V* v, float* out) {
    const V s = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}
AUSPEX_INLINE float max_of(V a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

// --------------------------------------------------------------------------- loads and stores

AUSPEX_INLINE void prefetch_soon(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
AUSPEX_INLINE void prefetch_later(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
AUSPEX_INLINE V load(const float* p) { return _mm256_loadu_ps(p); }
AUSPEX_INLINE void store(float* p, V a) { _mm256_storeu_ps(p, a); }
AUSPEX_INLINE __m256i first(uint32_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
AUSPEX_INLINE V load_n(const float* p, uint32_t n, float fill) {
    const __m256i m = first(n);
    return _mm256_blendv_ps(splat(fill), _mm256_maskload_ps(p, m), _mm256_castsi256_ps(m));
}
AUSPEX_INLINE void store_n(float* p, V a, uint32_t n) { _mm256_maskstore_ps(p, first(n), a); }
AUSPEX_INLINE __m128i eight_halves(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
AUSPEX_INLINE __m128i eight_bytes(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
AUSPEX_INLINE V load_f16(const void* p) { return _mm256_cvtph_ps(eight_halves(p)); }
AUSPEX_INLINE V load_f16_n(const uint16_t* p, uint32_t n) {
    uint16_t t[W] = {};
    std::memcpy(t, p, sizeof(uint16_t) * n);
    return load_f16(t);
}
AUSPEX_INLINE V load_bf16(const void* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight_halves(p)), 16));
}
AUSPEX_INLINE V splat_f16(const uint8_t* p) {
    int16_t h;
    std::memcpy(&h, p, sizeof h);
    return _mm256_cvtph_ps(_mm_set1_epi16(h));
}
AUSPEX_INLINE void store_f16(uint16_t* p, V a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
AUSPEX_INLINE V load_i8(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight_bytes(p))); }
AUSPEX_INLINE V load_nibbles(const uint8_t* p, uint32_t shift) {
    const __m128i x =
        _mm_and_si128(_mm_srl_epi16(eight_bytes(p), _mm_cvtsi32_si128(static_cast<int>(shift))), _mm_set1_epi8(15));
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x));
}
AUSPEX_INLINE void load_taps4(const float* w, V* t) {
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

// ---------------------------------------------------------------------------------------- strips

constexpr uint32_t kLane = 8;
constexpr int kMaxRow = 5;
constexpr int kMaxFloatColumn = 2;
using StripFloats = V;
using StripInts = __m256i;

AUSPEX_INLINE StripFloats strip_splat(float a) { return splat(a); }
AUSPEX_INLINE StripFloats strip_f16(const uint8_t* p) { return load_f16(p); }
AUSPEX_INLINE StripFloats strip_i8(const uint8_t* p) { return load_i8(p); }
AUSPEX_INLINE StripFloats strip_fp4_scale(const uint8_t* p) {
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(1)), 21);  // right below 2
    return _mm256_castsi256_ps(_mm256_max_epi32(normal, small));
}
AUSPEX_INLINE StripFloats strip_e4m3(const uint8_t* p) {
    const __m128i code = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_cvtph_ps(_mm_slli_epi16(code, 7));
}
AUSPEX_INLINE StripFloats to_floats(StripInts a) { return _mm256_cvtepi32_ps(a); }
AUSPEX_INLINE void strip_store(float* y, uint32_t n, StripFloats a, bool accumulate) {
    store_n(y, accumulate ? add(load_n(y, n, 0.0f), a) : a, n);
}
AUSPEX_INLINE StripInts int_add(StripInts a, StripInts b) { return _mm256_add_epi32(a, b); }
AUSPEX_INLINE StripInts int_splat(int32_t a) { return _mm256_set1_epi32(a); }
template <int n>
AUSPEX_INLINE StripInts int_shift(StripInts a) {
    return _mm256_slli_epi32(a, n);
}

using Bytes = __m256i;
AUSPEX_INLINE Bytes load_bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
AUSPEX_INLINE Bytes byte_and(Bytes a, uint8_t b) { return _mm256_and_si256(a, _mm256_set1_epi8(static_cast<char>(b))); }
AUSPEX_INLINE Bytes byte_or(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
AUSPEX_INLINE Bytes low_nibbles(Bytes a) { return byte_and(a, 15); }
AUSPEX_INLINE Bytes high_nibbles(Bytes a) { return byte_and(_mm256_srli_epi16(a, 4), 15); }
template <int n>
AUSPEX_INLINE Bytes byte_shift(Bytes a) {
    if constexpr (n > 0) return _mm256_slli_epi16(a, n);
    if constexpr (n < 0) return _mm256_srli_epi16(a, -n);
    return a;
}
/// Byte and codebook codes are signed here.
constexpr int bias_of(CodeForm) { return 0; }
using Codebook = __m256i;
AUSPEX_INLINE Codebook load_codebook(const int8_t* p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
AUSPEX_INLINE Bytes codebook_values(Codebook table, Bytes a) { return _mm256_shuffle_epi8(table, a); }

// --------------------------------------------------------------------------------- dot products

// Activations are words: one product takes both bytes of an activation. Products of bytes take one for each, and more
// to widen their 16-bit sums before these overflow. Codes become words within their lane of four inputs: 0 and 2 in one
// vector, 1 and 3 in another.
constexpr int kColumn = 1;
AUSPEX_INLINE void join_columns(int8_t* q) {
    __m256i* to = reinterpret_cast<__m256i*>(q);
    const __m256i high = _mm256_loadu_si256(to), low = _mm256_loadu_si256(to + 1);
    const __m256i even = _mm256_add_epi16(_mm256_slli_epi16(high, 8), _mm256_srai_epi16(_mm256_slli_epi16(low, 8), 8));
    const __m256i odd = _mm256_add_epi16(_mm256_andnot_si256(_mm256_set1_epi16(255), high), _mm256_srai_epi16(low, 8));
    const __m256i a = _mm256_unpacklo_epi32(even, odd), b = _mm256_unpackhi_epi32(even, odd);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(a, b, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(a, b, 0x31));
}

constexpr int kDotVectors = 1;
struct Words {
    __m256i even, odd;  ///< inputs 0 and 2 of each four, inputs 1 and 3
};
/// The codes of vector (h, v) as words. in_place: nibbles are not shifted to the lowest bits, so odd ones of h = 0 are
/// 256 times too large, even ones of h = 1 16 times.
template <CodeForm kCode, int h, bool in_place>
AUSPEX_INLINE Words words_of(Bytes w) {
    if constexpr (kCode == CodeForm::nibble) {  // h = 0: bits 0 and 8; h = 1: bits 4 and 12
        const __m256i low = _mm256_set1_epi16(15);
        if constexpr (h == 0 && in_place)
            return {_mm256_and_si256(w, low), _mm256_and_si256(w, _mm256_set1_epi16(15 << 8))};
        if constexpr (h == 0) return {_mm256_and_si256(w, low), _mm256_and_si256(_mm256_srli_epi16(w, 8), low)};
        if constexpr (in_place) return {_mm256_and_si256(w, _mm256_set1_epi16(15 << 4)), _mm256_srli_epi16(w, 12)};
        return {_mm256_and_si256(_mm256_srli_epi16(w, 4), low), _mm256_srli_epi16(w, 12)};
    }
    if constexpr (kCode == CodeForm::codebook || kCode == CodeForm::byte)
        return {_mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8), _mm256_srai_epi16(w, 8)};
    return {_mm256_and_si256(w, _mm256_set1_epi16(255)), _mm256_srli_epi16(w, 8)};
}
/// Whether n rows have registers for a second sum each, of the nibbles that are in place and too large. In a half it is
/// at most 15 * 256 * 32 639 * 8, which 32 bits hold.
constexpr bool two_sums(CodeForm k, int n) { return k == CodeForm::nibble && n <= 2; }

template <int n>
struct HalfDot {
    StripInts large[n];  ///< the second sums
};
template <CodeForm kCode, int n, int h>
AUSPEX_INLINE void begin_half(HalfDot<n>& half, const Int16Block* const*, size_t) {
    if constexpr (two_sums(kCode, n))
        for (int c = 0; c < n; ++c) half.large[c] = int_splat(0);
}
AUSPEX_INLINE void add_product(StripInts* sum, __m256i w, const int8_t* q) {
    *sum = int_add(*sum, _mm256_madd_epi16(w, _mm256_set1_epi32(detail::load<int32_t>(q))));
    AUSPEX_IN_ORDER(*sum);
}
template <CodeForm kCode, int n, int h, int v>
AUSPEX_INLINE void dot_codes(HalfDot<n>& half, const Bytes* w, const Int16Block* const* x, size_t b, StripInts* dot) {
    constexpr bool two = two_sums(kCode, n);
    const Words words = words_of<kCode, h, two>(*w);
    AUSPEX_UNROLL
    for (int c = 0; c < n; ++c) {
        const int8_t* q = x[c][b].q + 2 * (16 * h + 4 * v);
        add_product(two && h == 1 ? half.large + c : dot + c, words.even, q);
        add_product(two && h == 0 ? half.large + c : dot + c, words.odd, q + 4);
    }
}
template <CodeForm kCode, int n, int h>
AUSPEX_INLINE void finish_half(const HalfDot<n>& half, StripInts* dot) {
    if constexpr (two_sums(kCode, n))
        for (int c = 0; c < n; ++c) dot[c] = int_add(dot[c], _mm256_srai_epi32(half.large[c], h == 0 ? 8 : 4));
}

// --------------------------------------------------------------------------------- activations

AUSPEX_INLINE int32_t int_sum(__m256i a) {
    __m128i c = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4e));
    c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0xb1));
    return _mm_cvtsi128_si32(c);
}
AUSPEX_INLINE void block_range(const float* x, float* max, bool* nan) {
    __m256 top = _mm256_setzero_ps(), odd = _mm256_setzero_ps();
    for (int i = 0; i < 4; ++i) {
        const __m256 v = _mm256_loadu_ps(x + 8 * i);
        top = _mm256_max_ps(top, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v));
        odd = _mm256_or_ps(odd, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    }
    *max = max_of(top);
    *nan = _mm256_movemask_ps(odd) != 0;
}
AUSPEX_INLINE void round_block(const float* x, float inverse, int8_t* q, int32_t* sums) {
    const __m256i low = _mm256_set1_epi32(-127), high = _mm256_set1_epi32(127);
    __m256i p[4];
    AUSPEX_UNROLL
    for (int i = 0; i < 4; ++i) {
        p[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(inverse)));
        p[i] = _mm256_max_epi32(low, _mm256_min_epi32(high, p[i]));
    }
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(p[0], p[1]), _mm256_packs_epi32(p[2], p[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing works within halves
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permutevar8x32_epi32(bytes, order));
    sums[0] = int_sum(_mm256_add_epi32(p[0], p[1]));
    sums[1] = int_sum(_mm256_add_epi32(p[2], p[3]));
}

#include "kernels.inl"

}  // namespace simd_avx2
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SIMD_END
#endif

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

const CpuKernels* avx2_kernels() {
#if AUSPEX_HAS_X86
    static constexpr CpuKernels kKernels =
        simd_avx2::table("avx2", CpuPath::avx2, [](const CpuFeatures& f) { return f.avx2; });
    return &kKernels;
#else
    return nullptr;
#endif
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

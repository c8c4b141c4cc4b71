// machine/cpu/simd_avx512: the vocabulary of kernels.inl in AVX-512 F, BW, VL, DQ and VNNI; 16 rows to a strip.
//
// Owns    avx512_kernels(), and the vector operations it is compiled from. kernels.inl says what each one means.
// Thread  pure functions.
// Tests   tests/test_ops.cpp, tests/test_matmul.cpp.
#include "simd.h"

#if AUSPEX_HAS_AVX512

// In Clang 18 to 21 vectors of 512 bits need the feature evex512. avx512f implies it, unless the command line disables
// it, as that of `zig c++` does.
#if defined(__clang__) && !defined(__apple_build_version__) && __clang_major__ >= 18 && __clang_major__ <= 21
AUSPEX_SIMD_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,evex512")
#else
AUSPEX_SIMD_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")
#endif
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace simd_avx512 {

using V = __m512;
constexpr uint32_t W = 16;
constexpr uint32_t kStreamRows = 8;
constexpr uint32_t kWide = 4;
constexpr uint32_t kTile = 4;
constexpr uint32_t kScore = 1;
constexpr uint32_t kPairs = 16;

// ---------------------------------------------------------------------------------------- floats

AUSPEX_INLINE V zero() { return _mm512_setzero_ps(); }
AUSPEX_INLINE V splat(float a) { return _mm512_set1_ps(a); }
AUSPEX_INLINE V add(V a, V b) { return _mm512_add_ps(a, b); }
AUSPEX_INLINE V sub(V a, V b) { return _mm512_sub_ps(a, b); }
AUSPEX_INLINE V mul(V a, V b) { return _mm512_mul_ps(a, b); }
AUSPEX_INLINE V div(V a, V b) { return _mm512_div_ps(a, b); }
AUSPEX_INLINE V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
AUSPEX_INLINE V fnma(V a, V b, V c) { return _mm512_fnmadd_ps(a, b, c); }
AUSPEX_INLINE V vmin(V a, V b) { return _mm512_min_ps(a, b); }
AUSPEX_INLINE V vmax(V a, V b) { return _mm512_max_ps(a, b); }
AUSPEX_INLINE V floor_of(V a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
AUSPEX_INLINE V nearest(V a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
AUSPEX_INLINE V power_of_two(V n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
AUSPEX_INLINE __m256 add_halves(V a) { return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)); }
AUSPEX_INLINE float sum_halves(V a) {
    const __m256 b = add_halves(a);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    c = _mm_add_ss(c, _mm_movehdup_ps(c));
    return _mm_cvtss_f32(c);
}
AUSPEX_INLINE void sum4(const V* v, float* out) {
    const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(add_halves(v[0]), add_halves(v[1])),
                                    _mm256_hadd_ps(add_halves(v[2]), add_halves(v[3])));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}
AUSPEX_INLINE float max_of(V a) {
    const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

// --------------------------------------------------------------------------- loads and stores

AUSPEX_INLINE void prefetch_soon(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
AUSPEX_INLINE void prefetch_later(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
AUSPEX_INLINE V load(const float* p) { return _mm512_loadu_ps(p); }
AUSPEX_INLINE void store(float* p, V a) { _mm512_storeu_ps(p, a); }
AUSPEX_INLINE __mmask16 first(uint32_t n) { return static_cast<__mmask16>((1u << n) - 1); }
AUSPEX_INLINE V load_n(const float* p, uint32_t n, float fill) {
    return _mm512_mask_loadu_ps(splat(fill), first(n), p);
}
AUSPEX_INLINE void store_n(float* p, V a, uint32_t n) { _mm512_mask_storeu_ps(p, first(n), a); }
AUSPEX_INLINE __m256i sixteen_halves(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
AUSPEX_INLINE __m128i sixteen_bytes(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
AUSPEX_INLINE V load_f16(const void* p) { return _mm512_cvtph_ps(sixteen_halves(p)); }
AUSPEX_INLINE V load_f16_n(const uint16_t* p, uint32_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p));
}
AUSPEX_INLINE V load_bf16(const void* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(sixteen_halves(p)), 16));
}
AUSPEX_INLINE V splat_f16(const uint8_t* p) {
    int16_t h;
    std::memcpy(&h, p, sizeof h);
    return _mm512_cvtph_ps(_mm256_set1_epi16(h));
}
AUSPEX_INLINE void store_f16(uint16_t* p, V a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
AUSPEX_INLINE V load_i8(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sixteen_bytes(p))); }
AUSPEX_INLINE V load_nibbles(const uint8_t* p, uint32_t shift) {
    const __m128i x =
        _mm_and_si128(_mm_srl_epi16(sixteen_bytes(p), _mm_cvtsi32_si128(static_cast<int>(shift))), _mm_set1_epi8(15));
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(x));
}
AUSPEX_INLINE void load_taps4(const float* w, V* t) {
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

// ---------------------------------------------------------------------------------------- strips

constexpr uint32_t kLane = 16;
constexpr int kMaxRow = 8;
constexpr int kMaxFloatColumn = 4;
using StripFloats = V;
using StripInts = __m512i;

AUSPEX_INLINE StripFloats strip_splat(float a) { return splat(a); }
AUSPEX_INLINE StripFloats strip_f16(const uint8_t* p) { return load_f16(p); }
AUSPEX_INLINE StripFloats strip_i8(const uint8_t* p) { return load_i8(p); }
AUSPEX_INLINE StripFloats strip_fp4_scale(const uint8_t* p) {
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i small = _mm512_slli_epi32(_mm512_add_epi32(e, _mm512_set1_epi32(1)), 21);  // right below 2
    return _mm512_castsi512_ps(_mm512_max_epi32(normal, small));
}
AUSPEX_INLINE StripFloats strip_e4m3(const uint8_t* p) {
    const __m256i code = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_cvtph_ps(_mm256_slli_epi16(code, 7));
}
AUSPEX_INLINE StripFloats to_floats(StripInts a) { return _mm512_cvtepi32_ps(a); }
AUSPEX_INLINE void strip_store(float* y, uint32_t n, StripFloats a, bool accumulate) {
    store_n(y, accumulate ? add(load_n(y, n, 0.0f), a) : a, n);
}
AUSPEX_INLINE StripInts int_add(StripInts a, StripInts b) { return _mm512_add_epi32(a, b); }
AUSPEX_INLINE StripInts int_splat(int32_t a) { return _mm512_set1_epi32(a); }
template <int n>
AUSPEX_INLINE StripInts int_shift(StripInts a) {
    return _mm512_slli_epi32(a, n);
}

using Bytes = __m512i;
AUSPEX_INLINE Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
AUSPEX_INLINE Bytes byte_and(Bytes a, uint8_t b) { return _mm512_and_si512(a, _mm512_set1_epi8(static_cast<char>(b))); }
AUSPEX_INLINE Bytes byte_or(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
AUSPEX_INLINE Bytes low_nibbles(Bytes a) { return byte_and(a, 15); }
AUSPEX_INLINE Bytes high_nibbles(Bytes a) { return byte_and(_mm512_srli_epi16(a, 4), 15); }
template <int n>
AUSPEX_INLINE Bytes byte_shift(Bytes a) {
    if constexpr (n > 0) return _mm512_slli_epi16(a, n);
    if constexpr (n < 0) return _mm512_srli_epi16(a, -n);
    return a;
}
/// Codes are unsigned for vpdpbusd, so the signed ones stand 128 above the file's.
constexpr int bias_of(CodeForm k) { return k == CodeForm::codebook || k == CodeForm::byte ? 128 : 0; }
using Codebook = __m512i;
AUSPEX_INLINE Codebook load_codebook(const int8_t* p) {  // plus 128
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_broadcast_i32x4(_mm_xor_si128(values, _mm_set1_epi8(static_cast<char>(128))));
}
AUSPEX_INLINE Bytes codebook_values(Codebook table, Bytes a) { return _mm512_shuffle_epi8(table, a); }

// --------------------------------------------------------------------------------- dot products

constexpr int kColumn = 2;
AUSPEX_INLINE void join_columns(int8_t*) {}
constexpr int kDotVectors = 1;
template <int n>
struct HalfDot {};
template <CodeForm kCode, int n, int h>
AUSPEX_INLINE void begin_half(HalfDot<n>&, const Int16Block* const*, size_t) {}
template <CodeForm kCode, int n, int h, int v>
AUSPEX_INLINE void dot_codes(HalfDot<n>&, const Bytes* w, const Int16Block* const* x, size_t b, StripInts* dot) {
    AUSPEX_UNROLL
    for (int c = 0; c < n; ++c) {
        const int8_t* q = x[c / 2][b].q + 32 * (c % 2) + 16 * h + 4 * v;
        dot[c] = _mm512_dpbusd_epi32(dot[c], *w, _mm512_set1_epi32(detail::load<int32_t>(q)));
    }
}
template <CodeForm kCode, int n, int h>
AUSPEX_INLINE void finish_half(const HalfDot<n>&, StripInts*) {}

// --------------------------------------------------------------------------------- activations

AUSPEX_INLINE void block_range(const float* x, float* max, bool* nan) {
    const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    *max = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    *nan = _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0;
}
AUSPEX_INLINE void round_block(const float* x, float inverse, int8_t* q, int32_t* sums) {
    const __m512i low = _mm512_set1_epi32(-127), high = _mm512_set1_epi32(127);
    for (int h = 0; h < 2; ++h) {
        __m512i p = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * h), _mm512_set1_ps(inverse)));
        p = _mm512_max_epi32(low, _mm512_min_epi32(high, p));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16 * h), _mm512_cvtepi32_epi8(p));
        sums[h] = _mm512_reduce_add_epi32(p);
    }
}

#include "kernels.inl"

}  // namespace simd_avx512
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SIMD_END
#endif

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

const CpuKernels* avx512_kernels() {
#if AUSPEX_HAS_AVX512
    static constexpr CpuKernels kKernels =
        simd_avx512::table("avx512", CpuPath::avx512, [](const CpuFeatures& f) { return f.avx512; });
    return &kKernels;
#else
    return nullptr;
#endif
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

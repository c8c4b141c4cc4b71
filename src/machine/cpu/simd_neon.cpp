// machine/cpu/simd_neon: the vocabulary of kernels.inl in AArch64's Advanced SIMD; 8 rows to a strip.
//
// Owns    neon_kernels() for every such processor, neon_dotprod_kernels() for those with dot products of bytes
//         (Armv8.2 and later). Both read the same strips and give the same bits: integer sums are exact.
// Thread  pure functions.
// Tests   tests/test_ops.cpp, tests/test_matmul.cpp.
#include "simd.h"

#if AUSPEX_HAS_NEON

// Apple's compilers have dot products on by default; elsewhere they are asked for.
#if defined(__clang__)
#define AUSPEX_DOTPROD "dotprod"
#else
#define AUSPEX_DOTPROD "arch=armv8.2-a+dotprod"
#endif

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace neon_vocabulary {  // but for the dot products

using V = float32x4_t;
constexpr uint32_t W = 4;
constexpr uint32_t kStreamRows = 4;
constexpr uint32_t kWide = 8;
constexpr uint32_t kTile = 4;
constexpr uint32_t kScore = 2;
constexpr uint32_t kPairs = 16;

// ---------------------------------------------------------------------------------------- floats

AUSPEX_INLINE V zero() { return vdupq_n_f32(0.0f); }
AUSPEX_INLINE V splat(float a) { return vdupq_n_f32(a); }
AUSPEX_INLINE V add(V a, V b) { return vaddq_f32(a, b); }
AUSPEX_INLINE V sub(V a, V b) { return vsubq_f32(a, b); }
AUSPEX_INLINE V mul(V a, V b) { return vmulq_f32(a, b); }
AUSPEX_INLINE V div(V a, V b) { return vdivq_f32(a, b); }
AUSPEX_INLINE V fma(V a, V b, V c) { return vfmaq_f32(c, a, b); }
AUSPEX_INLINE V fnma(V a, V b, V c) { return vfmsq_f32(c, a, b); }
AUSPEX_INLINE V vmin(V a, V b) { return vminq_f32(a, b); }
AUSPEX_INLINE V vmax(V a, V b) { return vmaxq_f32(a, b); }
AUSPEX_INLINE V floor_of(V a) { return vrndmq_f32(a); }
AUSPEX_INLINE V nearest(V a) { return vrndnq_f32(a); }
AUSPEX_INLINE V power_of_two(V n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
}
AUSPEX_INLINE float sum_halves(V a) {
    return (vgetq_lane_f32(a, 0) + vgetq_lane_f32(a, 2)) + (vgetq_lane_f32(a, 1) + vgetq_lane_f32(a, 3));
}
AUSPEX_INLINE void sum4(const V* v, float* out) {
    vst1q_f32(out, vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])));
}
AUSPEX_INLINE float max_of(V a) { return vmaxvq_f32(a); }

// --------------------------------------------------------------------------- loads and stores

AUSPEX_INLINE void prefetch_soon(const void* p) { __builtin_prefetch(p, 0, 3); }
AUSPEX_INLINE void prefetch_later(const void* p) { __builtin_prefetch(p, 0, 2); }
AUSPEX_INLINE V load(const float* p) { return vld1q_f32(p); }
AUSPEX_INLINE void store(float* p, V a) { vst1q_f32(p, a); }
AUSPEX_INLINE V load_n(const float* p, uint32_t n, float fill) {
    float t[W] = {fill, fill, fill, fill};
    std::memcpy(t, p, sizeof(float) * n);
    return load(t);
}
AUSPEX_INLINE void store_n(float* p, V a, uint32_t n) {
    float t[W];
    store(t, a);
    std::memcpy(p, t, sizeof(float) * n);
}
AUSPEX_INLINE uint16x4_t four_halves(const void* p) {
    return vreinterpret_u16_u8(vld1_u8(static_cast<const uint8_t*>(p)));
}
AUSPEX_INLINE V load_f16(const void* p) { return vcvt_f32_f16(vreinterpret_f16_u16(four_halves(p))); }
AUSPEX_INLINE V load_f16_n(const uint16_t* p, uint32_t n) {
    uint16_t t[W] = {};
    std::memcpy(t, p, sizeof(uint16_t) * n);
    return load_f16(t);
}
AUSPEX_INLINE V load_bf16(const void* p) { return vreinterpretq_f32_u32(vshll_n_u16(four_halves(p), 16)); }
AUSPEX_INLINE V splat_f16(const uint8_t* p) {
    uint16_t h;
    std::memcpy(&h, p, sizeof h);
    return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h)));
}
AUSPEX_INLINE void store_f16(uint16_t* p, V a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }
AUSPEX_INLINE V load_i8(const uint8_t* p) {
    uint32_t x;
    std::memcpy(&x, p, sizeof x);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(x))))));
}
AUSPEX_INLINE V load_nibbles(const uint8_t* p, uint32_t shift) {
    uint32_t x;
    std::memcpy(&x, p, sizeof x);
    x = x >> shift & 0x0f0f0f0fu;
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(x))))));
}
AUSPEX_INLINE void load_taps4(const float* w, V* t) {
    const float32x4x4_t x = vld4q_f32(w);
    t[0] = x.val[0];
    t[1] = x.val[1];
    t[2] = x.val[2];
    t[3] = x.val[3];
}

// ---------------------------------------------------------------------------------------- strips

constexpr uint32_t kLane = 8;
constexpr int kMaxRow = 4;
constexpr int kMaxFloatColumn = 4;
struct StripFloats {
    float32x4_t a, b;
};
struct StripInts {
    int32x4_t a, b;
};

AUSPEX_INLINE StripFloats strip_splat(float v) { return {vdupq_n_f32(v), vdupq_n_f32(v)}; }
AUSPEX_INLINE StripFloats strip_f16(const uint8_t* p) { return {load_f16(p), load_f16(p + 8)}; }
AUSPEX_INLINE StripFloats strip_i8(const uint8_t* p) {
    const int16x8_t w = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(w))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(w)))};
}
AUSPEX_INLINE float32x4_t fp4_scales(int16x4_t exponents) {
    const int32x4_t e = vmovl_s16(exponents);
    const int32x4_t normal = vshlq_n_s32(vsubq_s32(e, vdupq_n_s32(1)), 23);
    const int32x4_t small = vshlq_n_s32(vaddq_s32(e, vdupq_n_s32(1)), 21);  // right below 2
    return vreinterpretq_f32_s32(vmaxq_s32(normal, small));
}
AUSPEX_INLINE StripFloats strip_fp4_scale(const uint8_t* p) {
    const int16x8_t e = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(p)));
    return {fp4_scales(vget_low_s16(e)), fp4_scales(vget_high_s16(e))};
}
AUSPEX_INLINE StripFloats strip_e4m3(const uint8_t* p) {
    const float16x8_t half = vreinterpretq_f16_u16(vshlq_n_u16(vmovl_u8(vld1_u8(p)), 7));
    return {vcvt_f32_f16(vget_low_f16(half)), vcvt_f32_f16(vget_high_f16(half))};
}
AUSPEX_INLINE StripFloats mul(StripFloats x, StripFloats y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
AUSPEX_INLINE StripFloats fma(StripFloats x, StripFloats y, StripFloats z) {
    return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)};
}
AUSPEX_INLINE StripFloats fnma(StripFloats x, StripFloats y, StripFloats z) {
    return {vfmsq_f32(z.a, x.a, y.a), vfmsq_f32(z.b, x.b, y.b)};
}
AUSPEX_INLINE StripFloats to_floats(StripInts x) { return {vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b)}; }
AUSPEX_INLINE void strip_store(float* y, uint32_t n, StripFloats x, bool accumulate) {
    float v[kLane];
    vst1q_f32(v, x.a);
    vst1q_f32(v + 4, x.b);
    for (uint32_t i = 0; i < n; ++i) y[i] = accumulate ? y[i] + v[i] : v[i];
}
AUSPEX_INLINE StripInts int_add(StripInts x, StripInts y) { return {vaddq_s32(x.a, y.a), vaddq_s32(x.b, y.b)}; }
AUSPEX_INLINE StripInts int_splat(int32_t v) { return {vdupq_n_s32(v), vdupq_n_s32(v)}; }
template <int n>
AUSPEX_INLINE StripInts int_shift(StripInts x) {
    return {vshlq_n_s32(x.a, n), vshlq_n_s32(x.b, n)};
}

struct Bytes {
    uint8x16_t a, b;  ///< of the first four rows, of the other four
};
AUSPEX_INLINE Bytes load_bytes(const uint8_t* p) { return {vld1q_u8(p), vld1q_u8(p + 16)}; }
AUSPEX_INLINE Bytes byte_and(Bytes x, uint8_t y) {
    return {vandq_u8(x.a, vdupq_n_u8(y)), vandq_u8(x.b, vdupq_n_u8(y))};
}
AUSPEX_INLINE Bytes byte_or(Bytes x, Bytes y) { return {vorrq_u8(x.a, y.a), vorrq_u8(x.b, y.b)}; }
AUSPEX_INLINE Bytes low_nibbles(Bytes x) { return byte_and(x, 15); }
AUSPEX_INLINE Bytes high_nibbles(Bytes x) { return {vshrq_n_u8(x.a, 4), vshrq_n_u8(x.b, 4)}; }
template <int n>
AUSPEX_INLINE Bytes byte_shift(Bytes x) {
    if constexpr (n > 0) return {vshlq_n_u8(x.a, n), vshlq_n_u8(x.b, n)};
    if constexpr (n < 0) return {vshrq_n_u8(x.a, -n), vshrq_n_u8(x.b, -n)};
    return x;
}
/// Byte and codebook codes are signed here, and all others fit a signed byte.
constexpr int bias_of(CodeForm) { return 0; }
using Codebook = int8x16_t;
AUSPEX_INLINE Codebook load_codebook(const int8_t* p) { return vld1q_s8(p); }
AUSPEX_INLINE Bytes codebook_values(Codebook table, Bytes x) {
    return {vreinterpretq_u8_s8(vqtbl1q_s8(table, x.a)), vreinterpretq_u8_s8(vqtbl1q_s8(table, x.b))};
}

// --------------------------------------------------------------------------------- dot products

constexpr int kColumn = 2;
AUSPEX_INLINE void join_columns(int8_t*) {}
template <int n>
struct HalfDot {
    int8x16_t q[n];  ///< 16 activations of each row and byte
};
template <CodeForm kCode, int n, int h>
AUSPEX_INLINE void begin_half(HalfDot<n>& half, const Int16Block* const* x, size_t b) {
    AUSPEX_UNROLL
    for (int c = 0; c < n; ++c) half.q[c] = vld1q_s8(x[c / 2][b].q + 32 * (c % 2) + 16 * h);
}
template <CodeForm kCode, int n, int h>
AUSPEX_INLINE void finish_half(const HalfDot<n>&, StripInts*) {}

// --------------------------------------------------------------------------------- activations

AUSPEX_INLINE void block_range(const float* x, float* max, bool* nan) {
    float32x4_t top = vdupq_n_f32(0);
    uint32x4_t number = vdupq_n_u32(~0u);
    for (int i = 0; i < 8; ++i) {
        const float32x4_t v = vld1q_f32(x + 4 * i);
        top = vmaxq_f32(top, vabsq_f32(v));
        number = vandq_u32(number, vceqq_f32(v, v));
    }
    *max = vmaxvq_f32(top);
    *nan = vminvq_u32(number) == 0;
}
AUSPEX_INLINE void round_block(const float* x, float inverse, int8_t* q, int32_t* sums) {
    const int32x4_t low = vdupq_n_s32(-127), high = vdupq_n_s32(127);
    for (int h = 0; h < 2; ++h) {
        int32x4_t p[4];
        AUSPEX_UNROLL
        for (int i = 0; i < 4; ++i)
            p[i] = vmaxq_s32(low, vminq_s32(high, vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 16 * h + 4 * i), inverse))));
        const int16x8_t a = vcombine_s16(vqmovn_s32(p[0]), vqmovn_s32(p[1]));
        const int16x8_t b = vcombine_s16(vqmovn_s32(p[2]), vqmovn_s32(p[3]));
        vst1q_s8(q + 16 * h, vcombine_s8(vqmovn_s16(a), vqmovn_s16(b)));
        sums[h] = vaddvq_s32(vaddq_s32(vaddq_s32(p[0], p[1]), vaddq_s32(p[2], p[3])));
    }
}

}  // namespace neon_vocabulary

// ------------------------------------------------------------------- every processor of this kind

namespace simd_neon {

using namespace neon_vocabulary;
constexpr int kDotVectors = 2;

/// acc[i] += w0[4 i .. 4 i + 3] . q0 + w1[4 i .. 4 i + 3] . q1, i < 4; q0 and q1 repeat four bytes each.
/// Two products fit 16 bits: 2 * 128 * 127 = 32 512.
AUSPEX_INLINE int32x4_t dot4(int32x4_t acc, int8x16_t w0, int8x16_t w1, int8x8_t q0, int8x8_t q1) {
    const int16x8_t low = vmlal_s8(vmull_s8(vget_low_s8(w0), q0), vget_low_s8(w1), q1);
    const int16x8_t high = vmlal_s8(vmull_s8(vget_high_s8(w0), q0), vget_high_s8(w1), q1);
    return vaddq_s32(acc, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
}
template <int v>
AUSPEX_INLINE int8x8_t repeat4(int8x16_t q) {
    return vreinterpret_s8_s32(vdup_laneq_s32(vreinterpretq_s32_s8(q), v));
}
template <CodeForm kCode, int n, int h, int v>
AUSPEX_INLINE void dot_codes(const HalfDot<n>& half, const Bytes* w, const Int16Block* const*, size_t, StripInts* dot) {
    const int8x16_t a0 = vreinterpretq_s8_u8(w[0].a), a1 = vreinterpretq_s8_u8(w[1].a);
    const int8x16_t b0 = vreinterpretq_s8_u8(w[0].b), b1 = vreinterpretq_s8_u8(w[1].b);
    AUSPEX_UNROLL
    for (int c = 0; c < n; ++c) {
        const int8x8_t q0 = repeat4<v>(half.q[c]), q1 = repeat4<v + 1>(half.q[c]);
        dot[c].a = dot4(dot[c].a, a0, a1, q0, q1);
        dot[c].b = dot4(dot[c].b, b0, b1, q0, q1);
    }
}
#include "kernels.inl"

}  // namespace simd_neon
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// -------------------------------------------------------------- processors with dot products of bytes

AUSPEX_SIMD_BEGIN(AUSPEX_DOTPROD)
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace simd_neon_dotprod {

using namespace neon_vocabulary;
constexpr int kDotVectors = 1;

/// acc[i] += w[4 i .. 4 i + 3] . q[4 v .. 4 v + 3], i < 4.
template <int v>
AUSPEX_INLINE int32x4_t dot4(int32x4_t acc, int8x16_t w, int8x16_t q) {
#if defined(__clang__) && __clang_major__ < 16 && !defined(__ARM_FEATURE_DOTPROD)
    // These versions show the intrinsic only when the whole file is compiled for such processors.
    __asm__("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(acc) : "w"(w), "w"(q), "i"(v));
    return acc;
#else
    return vdotq_laneq_s32(acc, w, q, v);
#endif
}
template <CodeForm kCode, int n, int h, int v>
AUSPEX_INLINE void dot_codes(const HalfDot<n>& half, const Bytes* w, const Int16Block* const*, size_t, StripInts* dot) {
    const int8x16_t wa = vreinterpretq_s8_u8(w->a), wb = vreinterpretq_s8_u8(w->b);
    AUSPEX_UNROLL
    for (int c = 0; c < n; ++c) {
        dot[c].a = dot4<v>(dot[c].a, wa, half.q[c]);
        dot[c].b = dot4<v>(dot[c].b, wb, half.q[c]);
    }
}

#include "kernels_matmul.inl"

}  // namespace simd_neon_dotprod
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SIMD_END
#undef AUSPEX_DOTPROD
#endif

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

const CpuKernels* neon_kernels() {
#if AUSPEX_HAS_NEON
    static constexpr CpuKernels kKernels =
        simd_neon::table("neon", CpuPath::neon, [](const CpuFeatures& f) { return f.neon; });
    return &kKernels;
#else
    return nullptr;
#endif
}

const CpuKernels* neon_dotprod_kernels() {
#if AUSPEX_HAS_NEON
    static constexpr CpuKernels kKernels = [] {
        CpuKernels k =
            simd_neon::table("neon-dotprod", CpuPath::neon, [](const CpuFeatures& f) { return f.neon && f.dotprod; });
        k.quantise = simd_neon_dotprod::quantise;
        k.strips = simd_neon_dotprod::strips;
        k.plain = simd_neon_dotprod::plain;
        return k;
    }();
    return &kKernels;
#else
    return nullptr;
#endif
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

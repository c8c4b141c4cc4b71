// machine/cpu/simd_neon: the vocabulary of matmul_kernel.inl in AArch64 NEON with dot products.
//
// Owns    the vector operations; 8 rows to a strip, two registers of four.
// Reads   pack (layout).
// Serves  matmul_neon.
// Thread  none of its own.
// Laws    multiply-adds are explicit, so that no compiler may choose to fuse or not to.
#pragma once
#include "pack.h"

#if AUSPEX_HAS_NEON
#include <arm_neon.h>

// Apple's compilers have dotprod on by default; elsewhere it is asked for function by function.
#if defined(__clang__)
#define AUSPEX_NEON __attribute__((target("dotprod")))
#else
#define AUSPEX_NEON __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
#define AUSPEX_NEON_INLINE inline __attribute__((always_inline)) AUSPEX_NEON

namespace auspex {
namespace detail {
namespace cpu_neon {

constexpr uint32_t kLane = 8;
constexpr int kMaxRow = 4;          ///< activation rows of one pass over a strip
constexpr int kMaxFloatColumn = 2;  ///< the same for float weights
constexpr int kFloatRow = 4;        ///< output rows of one pass, for float weights
struct Floats {
    float32x4_t a, b;
};
struct Ints {
    int32x4_t a, b;
};

AUSPEX_NEON_INLINE void prefetch_soon(const void* p) { __builtin_prefetch(p, 0, 3); }
AUSPEX_NEON_INLINE void prefetch_later(const void* p) { __builtin_prefetch(p, 0, 2); }
AUSPEX_NEON_INLINE Floats f_zero() { return {vdupq_n_f32(0), vdupq_n_f32(0)}; }
AUSPEX_NEON_INLINE Floats f_all(float v) { return {vdupq_n_f32(v), vdupq_n_f32(v)}; }
AUSPEX_NEON_INLINE Floats f_mul(Floats x, Floats y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
AUSPEX_NEON_INLINE Floats f_fma(Floats x, Floats y, Floats z) {
    return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)};
}
AUSPEX_NEON_INLINE Floats f_fnma(Floats x, Floats y, Floats z) {
    return {vfmsq_f32(z.a, x.a, y.a), vfmsq_f32(z.b, x.b, y.b)};
}
AUSPEX_NEON_INLINE Floats f_from(Ints x) { return {vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b)}; }
/// kLane halves.
AUSPEX_NEON_INLINE Floats f_halves(const uint8_t* p) {
    const uint8x16_t h = vld1q_u8(p);
    return {vcvt_f32_f16(vreinterpret_f16_u8(vget_low_u8(h))), vcvt_f32_f16(vreinterpret_f16_u8(vget_high_u8(h)))};
}
/// kLane signed bytes.
AUSPEX_NEON_INLINE Floats f_bytes(const uint8_t* p) {
    const int16x8_t w = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(w))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(w)))};
}
AUSPEX_NEON_INLINE Ints i_add(Ints x, Ints y) { return {vaddq_s32(x.a, y.a), vaddq_s32(x.b, y.b)}; }
AUSPEX_NEON_INLINE Ints i_zero() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
AUSPEX_NEON_INLINE Ints i_all(int32_t v) { return {vdupq_n_s32(v), vdupq_n_s32(v)}; }
template <int n>
AUSPEX_NEON_INLINE Ints i_shift(Ints x) {
    return {vshlq_n_s32(x.a, n), vshlq_n_s32(x.b, n)};
}
/// The first n of the lanes to y, or added to it.
AUSPEX_NEON_INLINE void f_put(float* y, uint32_t n, Floats x, bool accumulate) {
    float v[kLane];
    vst1q_f32(v, x.a);
    vst1q_f32(v + 4, x.b);
    for (uint32_t i = 0; i < n; ++i) y[i] = accumulate ? y[i] + v[i] : v[i];
}

/// acc[i] += w[4i..4i+3] . q[4v..4v+3], signed bytes.
template <int v>
AUSPEX_NEON_INLINE int32x4_t dot_lane(int32x4_t acc, int8x16_t w, int8x16_t q) {
#if defined(__clang__) && __clang_major__ < 16 && !defined(__ARM_FEATURE_DOTPROD)
    // These versions show the intrinsic only when the whole file is compiled for such processors.
    __asm__("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(acc) : "w"(w), "w"(q), "i"(v));
    return acc;
#else
    return vdotq_laneq_s32(acc, w, q, v);
#endif
}

/// Byte and codebook codes are signed here, and all others fit a signed byte.
constexpr int bias_of(CodeForm) { return 0; }

/// 16 of the bytes of vector (h, v): `half` 0 the first four rows, 1 the other four.
template <CodeForm kCode, int h, int v, int half>
AUSPEX_NEON_INLINE int8x16_t codes_half(const uint8_t* p) {
    if constexpr (kCode == CodeForm::byte) return vreinterpretq_s8_u8(vld1q_u8(p + 32 * (4 * h + v) + 16 * half));
    uint8x16_t c = vld1q_u8(p + 32 * v + 16 * half);
    c = h == 1 ? vshrq_n_u8(c, 4) : vandq_u8(c, vdupq_n_u8(15));
    if constexpr (kCode == CodeForm::codebook) return vqtbl1q_s8(vld1q_s8(kIq4Values), c);
    if constexpr (kCode == CodeForm::five) {
        uint8x16_t b = vld1q_u8(p + 128 + 16 * half);
        constexpr int from = 4 * h + v;
        if constexpr (from < 4) b = vshlq_n_u8(b, 4 - from);
        if constexpr (from > 4) b = vshrq_n_u8(b, from - 4);
        c = vorrq_u8(c, vandq_u8(b, vdupq_n_u8(16)));
    }
    if constexpr (kCode == CodeForm::six) {
        uint8x16_t b = vld1q_u8(p + 128 + 32 * h + 16 * half);
        if constexpr (v < 2) b = vshlq_n_u8(b, 4 - 2 * v);
        if constexpr (v > 2) b = vshrq_n_u8(b, 2 * v - 4);
        c = vorrq_u8(c, vandq_u8(b, vdupq_n_u8(48)));
    }
    return vreinterpretq_s8_u8(c);
}

template <CodeForm kCode, int n, int h, int v>
AUSPEX_NEON_INLINE void dot_four(const uint8_t* codes, const int8x16_t* q, Ints* dot) {
    const int8x16_t wa = codes_half<kCode, h, v, 0>(codes), wb = codes_half<kCode, h, v, 1>(codes);
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) {
        dot[c].a = dot_lane<v>(dot[c].a, wa, q[c]);
        dot[c].b = dot_lane<v>(dot[c].b, wb, q[c]);
    }
}

/// dot[2r], dot[2r + 1] += sum over half h of block b of code * high, low byte of x[r]; n counts both.
template <CodeForm kCode, int n, int h>
AUSPEX_NEON_INLINE void dot_half(const uint8_t* codes, const Int16Block* const* x, size_t b, Ints* dot) {
    int8x16_t q[n];
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) q[c] = vld1q_s8(x[c / 2][b].q + 32 * (c % 2) + 16 * h);
    dot_four<kCode, n, h, 0>(codes, q, dot);
    dot_four<kCode, n, h, 1>(codes, q, dot);
    dot_four<kCode, n, h, 2>(codes, q, dot);
    dot_four<kCode, n, h, 3>(codes, q, dot);
}

// ------------------------------------------------------------------------------- float weights

/// kLane weights as floats.
template <Type kType>
AUSPEX_NEON_INLINE Floats f_weights(const std::byte* p) {
    const uint8_t* u = reinterpret_cast<const uint8_t*>(p);
    if constexpr (kType == Type::f32)
        return {vreinterpretq_f32_u8(vld1q_u8(u)), vreinterpretq_f32_u8(vld1q_u8(u + 16))};
    if constexpr (kType == Type::f16) return f_halves(u);
    const uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(u));
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
            vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(h), 16))};
}
AUSPEX_NEON_INLINE Floats f_load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
/// The sum of the lanes, always in the same order.
AUSPEX_NEON_INLINE float f_sum(Floats x) {
    const float32x4_t s = vaddq_f32(x.a, x.b);
    return (vgetq_lane_f32(s, 0) + vgetq_lane_f32(s, 2)) + (vgetq_lane_f32(s, 1) + vgetq_lane_f32(s, 3));
}

// --------------------------------------------------------------------------------- activations

/// The largest magnitude of 32 values, and whether one is no number.
AUSPEX_NEON_INLINE void block_range(const float* x, float* most, bool* nan) {
    float32x4_t top = vdupq_n_f32(0);
    uint32x4_t number = vdupq_n_u32(~0u);
    for (int i = 0; i < 8; ++i) {
        const float32x4_t v = vld1q_f32(x + 4 * i);
        top = vmaxq_f32(top, vabsq_f32(v));
        number = vandq_u32(number, vceqq_f32(v, v));
    }
    *most = vmaxvq_f32(top);
    *nan = vminvq_u32(number) == 0;
}
/// q = round(x * inverse) within -127..127, for 32 values; sums of each half.
AUSPEX_NEON_INLINE void round_block(const float* x, float inverse, int8_t* q, int32_t* sums) {
    const int32x4_t low = vdupq_n_s32(-127), high = vdupq_n_s32(127);
    for (int h = 0; h < 2; ++h) {
        int32x4_t p[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i)
            p[i] = vmaxq_s32(low, vminq_s32(high, vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 16 * h + 4 * i), inverse))));
        const int16x8_t a = vcombine_s16(vqmovn_s32(p[0]), vqmovn_s32(p[1]));
        const int16x8_t b = vcombine_s16(vqmovn_s32(p[2]), vqmovn_s32(p[3]));
        vst1q_s8(q + 16 * h, vcombine_s8(vqmovn_s16(a), vqmovn_s16(b)));
        sums[h] = vaddvq_s32(vaddq_s32(vaddq_s32(p[0], p[1]), vaddq_s32(p[2], p[3])));
    }
}

}  // namespace cpu_neon
}  // namespace detail
}  // namespace auspex
#endif

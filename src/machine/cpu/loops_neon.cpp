// machine/cpu/loops_neon: the inner loops on AArch64's Advanced SIMD: the vocabulary of loops_simd.inl.
// Everything here is in the base instruction set, so no region of its own is needed.
#include "features.h"
#include "ops.h"

#if AUSPEX_HAS_NEON
#include <arm_neon.h>

#include <cmath>
#include <cstring>

namespace auspex {
namespace detail {
namespace loops_neon {

using V = float32x4_t;
constexpr uint32_t W = 4;
constexpr uint32_t kStreamRows = 4;  // rows of a state between two loads of its sums
constexpr uint32_t kWide = 8;        // vectors of state columns in one walk of delta_rows
constexpr uint32_t kTile = 4;        // vectors of one row of a product tile
constexpr uint32_t kScore = 2;       // the same for twice the rows
constexpr uint32_t kPairs = 16;      // sums in one tile of attention

inline V zero() { return vdupq_n_f32(0.0f); }
inline V splat(float a) { return vdupq_n_f32(a); }
inline V add(V a, V b) { return vaddq_f32(a, b); }
inline V sub(V a, V b) { return vsubq_f32(a, b); }
inline V mul(V a, V b) { return vmulq_f32(a, b); }
inline V div(V a, V b) { return vdivq_f32(a, b); }
inline V fma(V a, V b, V c) { return vfmaq_f32(c, a, b); }
inline V fnma(V a, V b, V c) { return vfmsq_f32(c, a, b); }
inline V vmin(V a, V b) { return vminq_f32(a, b); }
inline V vmax(V a, V b) { return vmaxq_f32(a, b); }
inline V floor_of(V a) { return vrndmq_f32(a); }
inline V nearest(V a) { return vrndnq_f32(a); }
inline V power_of_two(V n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
}
inline V load(const float* p) { return vld1q_f32(p); }
inline void store(float* p, V a) { vst1q_f32(p, a); }
inline V load_n(const float* p, uint32_t n, float fill) {
    float t[W] = {fill, fill, fill, fill};
    std::memcpy(t, p, sizeof(float) * n);
    return load(t);
}
inline void store_n(float* p, V a, uint32_t n) {
    float t[W];
    store(t, a);
    std::memcpy(p, t, sizeof(float) * n);
}
inline V load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline V load_f16_n(const uint16_t* p, uint32_t n) {
    uint16_t t[W] = {};
    std::memcpy(t, p, sizeof(uint16_t) * n);
    return load_f16(t);
}
inline V splat_f16(const uint8_t* p) {
    uint16_t h;
    std::memcpy(&h, p, sizeof h);
    return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h)));
}
inline V load_i8(const uint8_t* p) {
    uint32_t x;
    std::memcpy(&x, p, sizeof x);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(x))))));
}
inline V load_nibbles(const uint8_t* p, uint32_t shift) {
    uint32_t x;
    std::memcpy(&x, p, sizeof x);
    x = x >> shift & 0x0f0f0f0fu;
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(x))))));
}
inline void store_f16(uint16_t* p, V a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }
inline void sum4(const V* v, float* out) { store(out, vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3]))); }
inline float max_of(V a) { return vmaxvq_f32(a); }
inline void load_taps4(const float* w, V* t) {
    const float32x4x4_t x = vld4q_f32(w);
    t[0] = x.val[0];
    t[1] = x.val[1];
    t[2] = x.val[2];
    t[3] = x.val[3];
}

#include "loops_simd.inl"

}  // namespace loops_neon
}  // namespace detail
}  // namespace auspex
#endif

namespace auspex {
namespace detail {

const Loops* neon_loops() {
#if AUSPEX_HAS_NEON
    namespace r = loops_neon;
    static constexpr Loops loops = {"neon",    r::rms_norm, r::swiglu, r::silu_gate,  r::sigmoid_gate, r::conv_silu,
                                    r::to_f16, r::attend,   r::merge,  r::delta_rows, r::delta_chunk,  r::attend_many};
    return &loops;
#else
    return nullptr;
#endif
}

}  // namespace detail
}  // namespace auspex

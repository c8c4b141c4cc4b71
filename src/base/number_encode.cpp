// Encoding: exact reference rounding for the types caches use, least squares for the others.
#include "number.h"

#include <algorithm>
#include <cmath>

namespace auspex {
namespace detail {
namespace number_encode_impl {

/// a * b rounded to float32 before anything is added to it. The reference codes are
/// trunc(product + offset): a fused multiply-add would skip one rounding and now and then give the
/// neighbouring code. Compilers may fuse across statements and inlined calls; the pragmas and
/// built-ins against it get lost in some of their vectorisers, so the product passes through a
/// register (or memory) that the compiler cannot look into.
inline float rounded_product(float a, float b) {
#if defined(__GNUC__) && (defined(__SSE2__) || defined(__aarch64__))
    float p = a * b;
#if defined(__SSE2__)
    __asm__("" : "+x"(p));
#else
    __asm__("" : "+w"(p));
#endif
    return p;
#else
    volatile float p = a * b;
    return p;
#endif
}

/// v truncated and held in lo..hi; a NaN gives lo, so no input reaches an undefined conversion.
inline int code(float v, int lo, int hi) {
    if (!(v > static_cast<float>(lo))) return lo;
    if (v >= static_cast<float>(hi)) return hi;
    return static_cast<int>(v);
}
/// The nearest integer, held in lo..hi; a NaN gives lo.
inline int nearest(float v, int lo, int hi) {
    if (!(v > static_cast<float>(lo))) return lo;
    if (v >= static_cast<float>(hi)) return hi;
    return static_cast<int>(std::floor(v + 0.5f));
}
/// Half away from zero, held in -128..127; v + 0.5 would round 0.49999997 up, so compare the rest.
inline int round_away(float v) {
    if (!(v > -128.0f)) return -128;
    if (v >= 127.0f) return 127;
    const int whole = static_cast<int>(v);
    const float rest = v - static_cast<float>(whole);
    return whole + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0);
}

inline uint8_t byte(int v) { return static_cast<uint8_t>(v & 255); }
inline void put_half(uint8_t* p, float v) {
    const uint16_t h = f32_to_f16(v);
    std::memcpy(p, &h, 2);
}
/// What a reader will see: v after rounding to binary16.
inline float as_half(float v) { return f16_to_f32(f32_to_f16(v)); }

/// The first element of the largest magnitude, with its sign.
inline float extreme(const float* x, int n) {
    float a = 0, v = 0;
    for (int i = 0; i < n; ++i)
        if (std::fabs(x[i]) > a) {
            a = std::fabs(x[i]);
            v = x[i];
        }
    return v;
}

// ------------------------------------------------------------ 32 elements, reference rounding

inline void encode_q8_0(const float* x, uint8_t* b) {
    const float d = std::fabs(extreme(x, 32)) / 127.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
    put_half(b, d);
    for (int i = 0; i < 32; ++i) b[2 + i] = byte(round_away(rounded_product(x[i], inverse)));
}

/// Q4_0 and Q5_0: the extreme value gets the lowest code, which is exactly representable.
template <int kBits>
void encode_symmetric(const float* x, uint8_t* b) {
    constexpr int kHalf = 1 << (kBits - 1);
    const float d = extreme(x, 32) / static_cast<float>(-kHalf), inverse = d != 0 ? 1.0f / d : 0.0f;
    const float offset = static_cast<float>(kHalf) + 0.5f;
    uint8_t* qs = b + (kBits == 5 ? 6 : 2);
    uint32_t high = 0;
    put_half(b, d);
    for (int j = 0; j < 16; ++j) {
        const int q0 = code(rounded_product(x[j], inverse) + offset, 0, 2 * kHalf - 1);
        const int q1 = code(rounded_product(x[j + 16], inverse) + offset, 0, 2 * kHalf - 1);
        qs[j] = byte((q0 & 15) | (q1 & 15) << 4);
        high |= static_cast<uint32_t>(q0 >> 4) << j | static_cast<uint32_t>(q1 >> 4) << (j + 16);
    }
    if (kBits == 5) std::memcpy(b + 2, &high, 4);
}

/// Q4_1 and Q5_1: a range from the smallest to the largest element.
template <int kBits>
void encode_range(const float* x, uint8_t* b) {
    constexpr int kTop = (1 << kBits) - 1;
    float min = x[0], max = x[0];
    for (int i = 1; i < 32; ++i) {
        min = std::min(min, x[i]);
        max = std::max(max, x[i]);
    }
    const float d = (max - min) / static_cast<float>(kTop), inverse = d != 0 ? 1.0f / d : 0.0f;
    uint8_t* qs = b + (kBits == 5 ? 8 : 4);
    uint32_t high = 0;
    put_half(b, d);
    put_half(b + 2, min);
    for (int j = 0; j < 16; ++j) {
        const int q0 = code(rounded_product(x[j] - min, inverse) + 0.5f, 0, kTop);
        const int q1 = code(rounded_product(x[j + 16] - min, inverse) + 0.5f, 0, kTop);
        qs[j] = byte((q0 & 15) | (q1 & 15) << 4);
        high |= static_cast<uint32_t>(q0 >> 4) << j | static_cast<uint32_t>(q1 >> 4) << (j + 16);
    }
    if (kBits == 5) std::memcpy(b + 4, &high, 4);
}

// ------------------------------------------------------------------ least squares, scale and minimum

struct Range {
    float scale = 0, min = 0;  ///< x is about scale*code + min, min <= 0
};

/// Fits n values by codes 0..top: tries inverse scales around the plain range and solves the weighted
/// normal equations for scale and minimum at each; keeps the smallest weighted squared error.
inline Range fit_range(const float* x, int n, int top) {
    float low = 0, high = x[0], square = 0;
    for (int i = 0; i < n; ++i) {
        low = std::min(low, x[i]);
        high = std::max(high, x[i]);
        square += x[i] * x[i];
    }
    Range best;
    best.min = low;
    if (!(high > low)) return best;
    const float rms = std::sqrt(square / static_cast<float>(n));
    float best_error = -1;
    for (int t = -1; t <= 20; ++t) {  // -1 is the plain range fit
        const float span = static_cast<float>(top) + (t < 0 ? 0.0f : 0.1f * static_cast<float>(t) - 1.0f);
        const float inverse = span / (high - low);
        float w_sum = 0, wl = 0, wll = 0, wx = 0, wxl = 0;
        for (int i = 0; i < n; ++i) {
            const float l = static_cast<float>(nearest(inverse * (x[i] - low), 0, top));
            const float w = rms + std::fabs(x[i]);
            w_sum += w, wl += w * l, wll += w * l * l, wx += w * x[i], wxl += w * x[i] * l;
        }
        Range now{1.0f / inverse, low};
        if (t >= 0) {
            const float det = w_sum * wll - wl * wl;
            if (!(det > 0)) continue;
            now.scale = (w_sum * wxl - wx * wl) / det;
            now.min = (wll * wx - wl * wxl) / det;
            if (now.min > 0) now = {wxl / wll, 0};
        }
        if (!(now.scale > 0)) continue;
        float error = 0;
        for (int i = 0; i < n; ++i) {
            const float l = static_cast<float>(nearest((x[i] - now.min) / now.scale, 0, top));
            const float e = now.scale * l + now.min - x[i];
            error += (rms + std::fabs(x[i])) * e * e;
        }
        if (best_error < 0 || error < best_error) {
            best_error = error;
            best = now;
        }
    }
    return best;
}

/// A super-block of scale-and-minimum groups: the fits, then both held as small integers.
template <int kGroups>
struct RangeGroups {
    float d = 0, dmin = 0;  ///< as a reader sees them
    int scale[kGroups] = {}, min[kGroups] = {};

    RangeGroups(const float* x, int top, int scale_top) {
        constexpr int kSize = 256 / kGroups;
        Range fits[kGroups];
        float max_scale = 0, max_min = 0;
        for (int g = 0; g < kGroups; ++g) {
            fits[g] = fit_range(x + g * kSize, kSize, top);
            max_scale = std::max(max_scale, fits[g].scale);
            max_min = std::max(max_min, -fits[g].min);
        }
        d = as_half(max_scale / static_cast<float>(scale_top));
        dmin = as_half(max_min / static_cast<float>(scale_top));
        for (int g = 0; g < kGroups; ++g) {
            if (d > 0) scale[g] = nearest(fits[g].scale / d, 0, scale_top);
            if (dmin > 0) min[g] = nearest(-fits[g].min / dmin, 0, scale_top);
        }
    }
    int quantise(float x, int g, int top) const {
        const float s = d * static_cast<float>(scale[g]);
        return s > 0 ? nearest((x + dmin * static_cast<float>(min[g])) / s, 0, top) : 0;
    }
};

inline void encode_q2_k(const float* x, uint8_t* b) {
    const RangeGroups<16> fit(x, 3, 15);
    put_half(b + 80, fit.d);
    put_half(b + 82, fit.dmin);
    for (int g = 0; g < 16; ++g) {
        b[g] = byte(fit.scale[g] | fit.min[g] << 4);
        const int n = g / 8, shift = 2 * (g % 8 / 2), l0 = g % 2 * 16;
        for (int l = 0; l < 16; ++l) {
            uint8_t& q = b[16 + 32 * n + l0 + l];
            q = byte(q | fit.quantise(x[16 * g + l], g, 3) << shift);
        }
    }
}

/// Q4_K and Q5_K: eight groups of 32, six-bit scales and minima packed in 12 bytes.
template <int kBits>
void encode_k45(const float* x, uint8_t* b) {
    constexpr int kTop = (1 << kBits) - 1;
    const RangeGroups<8> fit(x, kTop, 63);
    put_half(b, fit.d);
    put_half(b + 2, fit.dmin);
    uint8_t *packed = b + 4, *qh = b + 16, *qs = b + (kBits == 5 ? 48 : 16);
    for (int g = 0; g < 8; ++g) {
        const int sc = fit.scale[g], mn = fit.min[g];
        if (g < 4) {
            packed[g] = byte(sc);
            packed[g + 4] = byte(mn);
        } else {
            packed[g + 4] = byte((sc & 15) | (mn & 15) << 4);
            packed[g - 4] = byte(packed[g - 4] | sc >> 4 << 6);
            packed[g] = byte(packed[g] | mn >> 4 << 6);
        }
        for (int l = 0; l < 32; ++l) {
            const int q = fit.quantise(x[32 * g + l], g, kTop);
            uint8_t& low = qs[32 * (g / 2) + l];
            low = byte(low | (q & 15) << (4 * (g % 2)));
            if (kBits == 5) qh[l] = byte(qh[l] | q >> 4 << g);
        }
    }
}

// ------------------------------------------------------------------------- least squares, scale only

/// The entry of the IQ4 codebook nearest to v.
inline int nearest_iq4(float v) {
    int q = 0;
    while (q < 15 && 2 * v > static_cast<float>(kIq4Values[q] + kIq4Values[q + 1])) ++q;
    return q;
}

/// The scale s that fits x by s * value(code), weights x^2. `lowest` is the most negative value; the
/// candidates put the extreme element near it. `value_near` maps x/s to the value it would get.
template <class ValueNear>
float fit_scale(const float* x, int n, float lowest, float step, int n_try, ValueNear value_near) {
    const float top = extreme(x, n);
    if (std::fabs(top) < 1e-15f) return 0;
    float best = 0, best_gain = -1;
    for (int t = -n_try; t <= n_try; ++t) {
        const float inverse = (lowest + step * static_cast<float>(t)) / top;
        float wxv = 0, wvv = 0;
        for (int i = 0; i < n; ++i) {
            const float v = value_near(x[i] * inverse), w = x[i] * x[i];
            wxv += w * x[i] * v, wvv += w * v * v;
        }
        if (wvv > 0 && wxv * wxv > best_gain * wvv) {
            best_gain = wxv * wxv / wvv;
            best = wxv / wvv;
        }
    }
    return best;
}

/// A super-block of scale-only groups: the fits, then held as signed integers lowest..-lowest - 1.
template <int kGroups>
struct ScaleGroups {
    float d = 0;  ///< as a reader sees it
    int scale[kGroups] = {};

    template <class ValueNear>
    ScaleGroups(const float* x, int scale_lowest, float lowest, float step, int n_try, ValueNear value_near) {
        constexpr int kSize = 256 / kGroups;
        float fits[kGroups];
        for (int g = 0; g < kGroups; ++g) fits[g] = fit_scale(x + g * kSize, kSize, lowest, step, n_try, value_near);
        d = as_half(extreme(fits, kGroups) / static_cast<float>(scale_lowest));
        for (int g = 0; g < kGroups; ++g)
            if (d != 0) scale[g] = nearest(fits[g] / d, scale_lowest, -scale_lowest - 1);
    }
    /// x in units of group g's scale; 0 when that scale is 0.
    float in_units(float x, int g) const {
        const float s = d * static_cast<float>(scale[g]);
        return s != 0 ? x / s : 0.0f;
    }
};

inline void encode_q3_k(const float* x, uint8_t* b) {
    const ScaleGroups<16> fit(x, -32, -4, 0.1f, 9, [](float v) { return static_cast<float>(nearest(v, -4, 3)); });
    put_half(b + 108, fit.d);
    uint8_t *hmask = b, *qs = b + 32, *scales = b + 96;
    for (int g = 0; g < 16; ++g) {
        const int sc = fit.scale[g] + 32;
        uint8_t &low = scales[g % 8], &high = scales[8 + g % 4];
        low = byte(low | (sc & 15) << (g < 8 ? 0 : 4));
        high = byte(high | sc >> 4 << (2 * (g / 4)));
        const int n = g / 8, j = g % 8 / 2, l0 = g % 2 * 16;
        for (int l = l0; l < l0 + 16; ++l) {
            const int q = nearest(fit.in_units(x[16 * g + l - l0], g), -4, 3) + 4;
            uint8_t& two = qs[32 * n + l];
            two = byte(two | (q & 3) << (2 * j));
            hmask[l] = byte(hmask[l] | q >> 2 << (4 * n + j));
        }
    }
}

inline void encode_q6_k(const float* x, uint8_t* b) {
    const ScaleGroups<16> fit(x, -128, -32, 0.1f, 9, [](float v) { return static_cast<float>(nearest(v, -32, 31)); });
    put_half(b + 208, fit.d);
    for (int g = 0; g < 16; ++g) {
        b[192 + g] = byte(fit.scale[g]);
        const int n = g / 8, j = g % 8 / 2, l0 = g % 2 * 16;
        for (int l = l0; l < l0 + 16; ++l) {
            const int q = nearest(fit.in_units(x[16 * g + l - l0], g), -32, 31) + 32;
            uint8_t &low = b[64 * n + 32 * (j % 2) + l], &high = b[128 + 32 * n + l];
            low = byte(low | (q & 15) << (4 * (j / 2)));
            high = byte(high | q >> 4 << (2 * j));
        }
    }
}

inline float iq4_value_near(float v) { return static_cast<float>(kIq4Values[nearest_iq4(v)]); }

inline void encode_iq4_nl(const float* x, uint8_t* b) {
    const float d = as_half(fit_scale(x, 32, -127, 2, 7, iq4_value_near));
    put_half(b, d);
    const auto quantise = [d](float v) { return nearest_iq4(d != 0 ? v / d : 0.0f); };
    for (int j = 0; j < 16; ++j) b[2 + j] = byte(quantise(x[j]) | quantise(x[j + 16]) << 4);
}

inline void encode_iq4_xs(const float* x, uint8_t* b) {
    const ScaleGroups<8> fit(x, -32, -127, 2, 7, iq4_value_near);
    put_half(b, fit.d);
    uint16_t scales_h = 0;
    for (int g = 0; g < 8; ++g) {
        const int sc = fit.scale[g] + 32;
        b[4 + g / 2] = byte(b[4 + g / 2] | (sc & 15) << (4 * (g % 2)));
        scales_h = static_cast<uint16_t>(scales_h | sc >> 4 << (2 * g));
        for (int j = 0; j < 16; ++j) {
            const float* run = x + 32 * g + j;
            b[8 + 16 * g + j] = byte(nearest_iq4(fit.in_units(run[0], g)) | nearest_iq4(fit.in_units(run[16], g)) << 4);
        }
    }
    std::memcpy(b + 2, &scales_h, 2);
}

template <class BlockEncoder>
void each_block(Type t, const float* from, uint8_t* to, size_t n, BlockEncoder encode) {
    const TypeInfo info = type_info(t);
    AUSPEX_ASSERT(n % info.n_block == 0);
    for (size_t i = 0; i < n; i += info.n_block, to += info.block_bytes) {
        std::memset(to, 0, info.block_bytes);  // codes are or-ed in
        encode(from + i, to);
    }
}

}  // namespace number_encode_impl

bool can_encode(Type t) { return type_info(t).supported; }

void encode_row(Type t, const float* from, void* to, size_t n) {
    namespace impl = number_encode_impl;
    uint8_t* p = static_cast<uint8_t*>(to);
    switch (t) {
        case Type::f32:
            if (n) std::memcpy(p, from, n * 4);
            return;
        case Type::f16:
            for (size_t i = 0; i < n; ++i) impl::put_half(p + 2 * i, from[i]);
            return;
        case Type::bf16:
            for (size_t i = 0; i < n; ++i) {
                const uint16_t h = f32_to_bf16(from[i]);
                std::memcpy(p + 2 * i, &h, 2);
            }
            return;
        case Type::q8_0: return impl::each_block(t, from, p, n, impl::encode_q8_0);
        case Type::q4_0: return impl::each_block(t, from, p, n, impl::encode_symmetric<4>);
        case Type::q4_1: return impl::each_block(t, from, p, n, impl::encode_range<4>);
        case Type::q5_0: return impl::each_block(t, from, p, n, impl::encode_symmetric<5>);
        case Type::q5_1: return impl::each_block(t, from, p, n, impl::encode_range<5>);
        case Type::q2_k: return impl::each_block(t, from, p, n, impl::encode_q2_k);
        case Type::q3_k: return impl::each_block(t, from, p, n, impl::encode_q3_k);
        case Type::q4_k: return impl::each_block(t, from, p, n, impl::encode_k45<4>);
        case Type::q5_k: return impl::each_block(t, from, p, n, impl::encode_k45<5>);
        case Type::q6_k: return impl::each_block(t, from, p, n, impl::encode_q6_k);
        case Type::iq4_nl: return impl::each_block(t, from, p, n, impl::encode_iq4_nl);
        case Type::iq4_xs: return impl::each_block(t, from, p, n, impl::encode_iq4_xs);
    }
    AUSPEX_ASSERT(false);  // a type that is not supported
}

}  // namespace detail
}  // namespace auspex

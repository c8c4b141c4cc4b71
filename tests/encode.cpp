#include "encode.h"

#include "../src/base/number_codec.h"

#include <limits>

namespace test {

using namespace auspex::detail;
using namespace auspex::detail::number_impl;

namespace {

/// The nearest integer, held in lo..hi; a NaN gives lo.
int nearest(float v, int lo, int hi) {
    if (!(v > static_cast<float>(lo))) return lo;
    if (v >= static_cast<float>(hi)) return hi;
    return static_cast<int>(std::floor(v + 0.5f));
}
/// What a reader will see: v after rounding to binary16.
float as_half(float v) { return f16_to_f32(f32_to_f16(v)); }

/// The entry of the IQ4 codebook nearest to v.
int nearest_iq4(float v) {
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

float iq4_value_near(float v) { return static_cast<float>(kIq4Values[nearest_iq4(v)]); }

// ------------------------------------------------------------------------- five bits, reference rounding

/// As encode_q4_0(), with a fifth bit of each code.
void encode_q5_0(const float* x, uint8_t* b) {
    const float d = extreme(x, 32) / -16.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
    uint32_t high = 0;
    put_half(b, d);
    for (int j = 0; j < 16; ++j) {
        const int q0 = code(rounded_product(x[j], inverse) + 16.5f, 0, 31);
        const int q1 = code(rounded_product(x[j + 16], inverse) + 16.5f, 0, 31);
        b[6 + j] = byte((q0 & 15) | (q1 & 15) << 4);
        high |= static_cast<uint32_t>(q0 >> 4) << j | static_cast<uint32_t>(q1 >> 4) << (j + 16);
    }
    std::memcpy(b + 2, &high, 4);
}

/// As encode_q4_1(), with a fifth bit of each code.
void encode_q5_1(const float* x, uint8_t* b) {
    const float min = *std::min_element(x, x + 32), max = *std::max_element(x, x + 32);
    const float d = (max - min) / 31.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
    uint32_t high = 0;
    put_half(b, d);
    put_half(b + 2, min);
    for (int j = 0; j < 16; ++j) {
        const int q0 = code(rounded_product(x[j] - min, inverse) + 0.5f, 0, 31);
        const int q1 = code(rounded_product(x[j + 16] - min, inverse) + 0.5f, 0, 31);
        b[8 + j] = byte((q0 & 15) | (q1 & 15) << 4);
        high |= static_cast<uint32_t>(q0 >> 4) << j | static_cast<uint32_t>(q1 >> 4) << (j + 16);
    }
    std::memcpy(b + 4, &high, 4);
}

// ------------------------------------------------------------------ least squares, scale and minimum

struct Range {
    float scale = 0, min = 0;  ///< x is about scale*code + min, min <= 0
};

constexpr int kRangeTries = 22;

/// nearest(v, 0, top) as a float, without a branch; 0 where v is not a number.
float code_near(float v, float top) {
    v = v > 0.0f ? v : 0.0f;
    v = v < top ? v : top;
    return static_cast<float>(static_cast<int>(v + 0.5f));
}

/// Fits n values by codes 0..top: tries inverse scales around the plain range and solves the weighted
/// normal equations for scale and minimum at each; keeps the smallest weighted squared error. The tries run beside each
/// other, so that a compiler uses vectors for them.
Range fit_range(const float* x, int n, int top) {
    float low = 0, high = x[0], square = 0;
    for (int i = 0; i < n; ++i) {
        low = std::min(low, x[i]);
        high = std::max(high, x[i]);
        square += x[i] * x[i];
    }
    Range best;
    best.min = low;
    if (!(high > low)) return best;
    const float rms = std::sqrt(square / static_cast<float>(n)), top_code = static_cast<float>(top);
    float inverse[kRangeTries], wl[kRangeTries] = {}, wll[kRangeTries] = {}, wxl[kRangeTries] = {};
    float w_sum = 0, wx = 0;
    for (int t = 0; t < kRangeTries; ++t) {  // 0 is the plain range fit
        const float more = t == 0 ? 0.0f : 0.1f * static_cast<float>(t - 1) - 1.0f;
        inverse[t] = (top_code + more) / (high - low);
    }
    for (int i = 0; i < n; ++i) {
        const float w = rms + std::fabs(x[i]), above = x[i] - low;
        w_sum += w, wx += w * x[i];
        for (int t = 0; t < kRangeTries; ++t) {
            const float l = code_near(inverse[t] * above, top_code);
            wl[t] += w * l, wll[t] += w * l * l, wxl[t] += w * x[i] * l;
        }
    }
    float scale[kRangeTries], min[kRangeTries], error[kRangeTries] = {};
    for (int t = 0; t < kRangeTries; ++t) {
        scale[t] = 1.0f / inverse[t], min[t] = low;
        if (t == 0) continue;
        const float det = w_sum * wll[t] - wl[t] * wl[t];
        scale[t] = det > 0 ? (w_sum * wxl[t] - wx * wl[t]) / det : 0.0f;
        min[t] = det > 0 ? (wll[t] * wx - wl[t] * wxl[t]) / det : 0.0f;
        if (min[t] > 0) scale[t] = wxl[t] / wll[t], min[t] = 0;
    }
    for (int i = 0; i < n; ++i) {
        const float w = rms + std::fabs(x[i]), value = x[i];
        for (int t = 0; t < kRangeTries; ++t) {
            const float e = scale[t] * code_near((value - min[t]) / scale[t], top_code) + min[t] - value;
            error[t] += w * e * e;
        }
    }
    float best_error = -1;
    for (int t = 0; t < kRangeTries; ++t) {
        if (!(scale[t] > 0) || !(best_error < 0 || error[t] < best_error)) continue;
        best_error = error[t];
        best = {scale[t], min[t]};
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

void encode_q2_k(const float* x, uint8_t* b) {
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

void encode_q3_k(const float* x, uint8_t* b) {
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

void encode_q6_k(const float* x, uint8_t* b) {
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

void encode_iq4_xs(const float* x, uint8_t* b) {
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

void encode_iq4_nl(const float* x, uint8_t* b) {
    const float d = as_half(fit_scale(x, 32, -127, 2, 7, iq4_value_near));
    put_half(b, d);
    const auto quantise = [d](float v) { return nearest_iq4(d != 0 ? v / d : 0.0f); };
    for (int j = 0; j < 16; ++j) b[2 + j] = byte(quantise(x[j]) | quantise(x[j + 16]) << 4);
}

/// The code of E2M1 nearest to v / d, d above 0.
int nearest_fp4(float v, float d) {
    const float magnitude = std::fabs(v) / d;
    int q = 0;
    while (q < 7 && 2 * magnitude > static_cast<float>(kFp4Values[q] + kFp4Values[q + 1])) ++q;
    return q | (v < 0 ? 8 : 0);
}

/// The exponent of the largest element, which then gets a code of 4 to 6 (E2M1); larger ones are cut off.
void encode_mxfp4(const float* x, uint8_t* b) {
    const float top = std::min(std::fabs(extreme(x, 32)), std::numeric_limits<float>::max());
    b[0] = byte(top > 0 ? std::max(0, std::ilogb(top) - 2 + 127) : 0);
    const float d = fp4_scale(b[0]);
    for (int j = 0; j < 16; ++j) b[1 + j] = byte(nearest_fp4(x[j], d) | nearest_fp4(x[j + 16], d) << 4);
}

/// Of the scales that give the largest element of a group a code from 4 to 6, the one with the smallest error.
uint8_t nvfp4_scale(const float* x) {
    const float top = std::min(std::fabs(extreme(x, 16)), 1e30f);
    uint8_t first = 0, best = 0;
    while (first < 0x7e && 12 * e4m3_scale(first) < top * 0.99f) ++first;
    double min_error = std::numeric_limits<double>::infinity();
    for (int code = std::max<int>(first, 1); code <= std::min(first + 5, 0x7e); ++code) {
        const float d = e4m3_scale(byte(code));
        double error = 0;
        for (int i = 0; i < 16; ++i)
            error += std::pow(double{x[i]} - double{d} * kFp4Values[nearest_fp4(x[i], d)], 2.0);
        if (error < min_error) min_error = error, best = byte(code);
    }
    return top > 0 ? best : byte(0);
}

void encode_nvfp4(const float* x, uint8_t* b) {
    for (int g = 0; g < 4; ++g, x += 16) {
        b[g] = nvfp4_scale(x);
        const float d = e4m3_scale(b[g]);
        const auto code = [d](float v) { return d > 0 ? nearest_fp4(v, d) : 0; };
        for (int j = 0; j < 8; ++j) b[4 + 8 * g + j] = byte(code(x[j]) | code(x[j + 8]) << 4);
    }
}

}  // namespace

uint16_t f32_to_bf16(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(u >> 16 | 0x40u);
    return static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

void encode(Type t, const float* from, void* to, size_t n) {
    void (*encode_block)(const float*, uint8_t*) = nullptr;
    uint8_t* p = static_cast<uint8_t*>(to);
    switch (t) {
        case Type::f32:
        case Type::f16:
        case Type::q8_0:
        case Type::q4_0:
        case Type::q4_1: return encode_row(t, from, to, n);
        case Type::bf16:
            for (size_t i = 0; i < n; ++i) {
                const uint16_t h = f32_to_bf16(from[i]);
                std::memcpy(p + 2 * i, &h, 2);
            }
            return;
        case Type::q5_0: encode_block = encode_q5_0; break;
        case Type::q5_1: encode_block = encode_q5_1; break;
        case Type::q2_k: encode_block = encode_q2_k; break;
        case Type::q3_k: encode_block = encode_q3_k; break;
        case Type::q4_k: encode_block = encode_k45<4>; break;
        case Type::q5_k: encode_block = encode_k45<5>; break;
        case Type::q6_k: encode_block = encode_q6_k; break;
        case Type::iq4_nl: encode_block = encode_iq4_nl; break;
        case Type::iq4_xs: encode_block = encode_iq4_xs; break;
        case Type::mxfp4: encode_block = encode_mxfp4; break;
        case Type::nvfp4: encode_block = encode_nvfp4; break;
    }
    const TypeInfo info = type_info(t);
    for (size_t i = 0; i < n; i += info.n_block, p += info.block_bytes) {
        std::memset(p, 0, info.block_bytes);
        encode_block(from + i, p);
    }
}

}  // namespace test

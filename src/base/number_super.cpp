// The formats with super-blocks of 256 elements: groups of 16 or 32 whose scales are small integers times one or two
// binary16 numbers. Offsets in a block are those of the format's definition.
#include "number_codec.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace number_impl {

void decode_q2_k(const uint8_t* b, float* y) {
    const uint8_t* qs = b + 16;
    const float d = half_at(b + 80), dmin = half_at(b + 82);
    for (int g = 0; g < 16; ++g) {  // 16 elements share a scale and a minimum
        const float scale = d * of_int(b[g] & 15), min = dmin * of_int(b[g] >> 4);
        const int n = g / 8, shift = 2 * (g % 8 / 2), l0 = g % 2 * 16;
        for (int l = 0; l < 16; ++l) y[16 * g + l] = scale * of_int(qs[32 * n + l0 + l] >> shift & 3) - min;
    }
}

void decode_q3_k(const uint8_t* b, float* y) {
    const uint8_t *hmask = b, *qs = b + 32, *scales = b + 96;
    const float d = half_at(b + 108);
    for (int g = 0; g < 16; ++g) {
        const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
        const int high = scales[8 + g % 4] >> (2 * (g / 4)) & 3;
        const float scale = d * of_int((low | high << 4) - 32);
        const int n = g / 8, j = g % 8 / 2, l0 = g % 2 * 16;
        for (int l = l0; l < l0 + 16; ++l) {
            const int q = qs[32 * n + l] >> (2 * j) & 3;
            const int kept = hmask[l] >> (4 * n + j) & 1;  // clear means: subtract four
            y[16 * g + l - l0] = scale * of_int(kept ? q : q - 4);
        }
    }
}

/// The six-bit scale and minimum of sub-block g of Q4_K and Q5_K, from their 12 packed bytes.
inline void six_bit_pair(const uint8_t* p, int g, int* scale, int* min) {
    if (g < 4) {
        *scale = p[g] & 63;
        *min = p[g + 4] & 63;
    } else {
        *scale = (p[g + 4] & 15) | (p[g - 4] >> 6) << 4;
        *min = (p[g + 4] >> 4) | (p[g] >> 6) << 4;
    }
}

void decode_q4_k(const uint8_t* b, float* y) {
    const float d = half_at(b), dmin = half_at(b + 2);
    for (int g = 0; g < 8; ++g) {
        int sc, mn;
        six_bit_pair(b + 4, g, &sc, &mn);
        const float scale = d * of_int(sc), min = dmin * of_int(mn);
        const uint8_t* qs = b + 16 + 32 * (g / 2);
        const int shift = 4 * (g % 2);
        for (int l = 0; l < 32; ++l) y[32 * g + l] = scale * of_int(qs[l] >> shift & 15) - min;
    }
}

void decode_q5_k(const uint8_t* b, float* y) {
    const float d = half_at(b), dmin = half_at(b + 2);
    const uint8_t* qh = b + 16;
    for (int g = 0; g < 8; ++g) {
        int sc, mn;
        six_bit_pair(b + 4, g, &sc, &mn);
        const float scale = d * of_int(sc), min = dmin * of_int(mn);
        const uint8_t* qs = b + 48 + 32 * (g / 2);
        const int shift = 4 * (g % 2);
        for (int l = 0; l < 32; ++l) {
            const int q = (qs[l] >> shift & 15) | (qh[l] >> g & 1) << 4;
            y[32 * g + l] = scale * of_int(q) - min;
        }
    }
}

void decode_q6_k(const uint8_t* b, float* y) {
    const uint8_t *ql = b, *qh = b + 128, *scales = b + 192;
    const float d = half_at(b + 208);
    for (int g = 0; g < 16; ++g) {
        const float scale = d * of_int(static_cast<int8_t>(scales[g]));
        const int n = g / 8, j = g % 8 / 2, l0 = g % 2 * 16;
        for (int l = l0; l < l0 + 16; ++l) {
            const int low = ql[64 * n + 32 * (j % 2) + l] >> (4 * (j / 2)) & 15;
            const int high = qh[32 * n + l] >> (2 * j) & 3;
            y[16 * g + l - l0] = scale * of_int((low | high << 4) - 32);
        }
    }
}

void decode_iq4_xs(const uint8_t* b, float* y) {
    const float d = half_at(b);
    const uint16_t scales_h = load<uint16_t>(b + 2);
    for (int g = 0; g < 8; ++g) {
        const int low = b[4 + g / 2] >> (4 * (g % 2)) & 15;
        const int high = scales_h >> (2 * g) & 3;
        const float scale = d * of_int((low | high << 4) - 32);
        const uint8_t* qs = b + 8 + 16 * g;
        for (int j = 0; j < 16; ++j) {
            y[32 * g + j] = scale * of_int(kIq4Values[qs[j] & 15]);
            y[32 * g + j + 16] = scale * of_int(kIq4Values[qs[j] >> 4]);
        }
    }
}

// ------------------------------------------------------------------ least squares, scale and minimum

struct Range {
    float scale = 0, min = 0;  ///< x is about scale*code + min, min <= 0
};

constexpr int kRangeTries = 22;

/// nearest(v, 0, top) as a float, without a branch; 0 where v is not a number.
inline float code_near(float v, float top) {
    v = v > 0.0f ? v : 0.0f;
    v = v < top ? v : top;
    return static_cast<float>(static_cast<int>(v + 0.5f));
}

/// Fits n values by codes 0..top: tries inverse scales around the plain range and solves the weighted
/// normal equations for scale and minimum at each; keeps the smallest weighted squared error. The tries run beside each
/// other, so that a compiler uses vectors for them.
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

void encode_q4_k(const float* x, uint8_t* b) { encode_k45<4>(x, b); }
void encode_q5_k(const float* x, uint8_t* b) { encode_k45<5>(x, b); }

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

}  // namespace number_impl
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

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

}  // namespace number_impl
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

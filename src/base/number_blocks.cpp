// The formats with blocks of 32 or 64 elements. Offsets in a block are those of the format's definition; the low
// nibbles of a run of bytes are its first half, the high nibbles the second.
#include "number_codec.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace number_impl {

void decode_q8_0(const uint8_t* b, float* y) {
    const float d = half_at(b);
    for (int i = 0; i < 32; ++i) y[i] = d * of_int(static_cast<int8_t>(b[2 + i]));
}

void decode_q4_0(const uint8_t* b, float* y) {
    const float d = half_at(b);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * of_int((b[2 + j] & 15) - 8);
        y[j + 16] = d * of_int((b[2 + j] >> 4) - 8);
    }
}

void decode_q4_1(const uint8_t* b, float* y) {
    const float d = half_at(b), m = half_at(b + 2);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * of_int(b[4 + j] & 15) + m;
        y[j + 16] = d * of_int(b[4 + j] >> 4) + m;
    }
}

/// The two five-bit codes of byte j: nibble and bit j (or j + 16) of the high-bit word.
inline int five_low(uint32_t high, const uint8_t* qs, int j) {
    return (qs[j] & 15) | static_cast<int>((high >> j & 1u) << 4);
}
inline int five_high(uint32_t high, const uint8_t* qs, int j) {
    return (qs[j] >> 4) | static_cast<int>((high >> (j + 16) & 1u) << 4);
}

void decode_q5_0(const uint8_t* b, float* y) {
    const float d = half_at(b);
    const uint32_t high = load<uint32_t>(b + 2);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * of_int(five_low(high, b + 6, j) - 16);
        y[j + 16] = d * of_int(five_high(high, b + 6, j) - 16);
    }
}

void decode_q5_1(const uint8_t* b, float* y) {
    const float d = half_at(b), m = half_at(b + 2);
    const uint32_t high = load<uint32_t>(b + 4);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * of_int(five_low(high, b + 8, j)) + m;
        y[j + 16] = d * of_int(five_high(high, b + 8, j)) + m;
    }
}

void decode_iq4_nl(const uint8_t* b, float* y) {
    const float d = half_at(b);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * of_int(kIq4Values[b[2 + j] & 15]);
        y[j + 16] = d * of_int(kIq4Values[b[2 + j] >> 4]);
    }
}

void decode_mxfp4(const uint8_t* b, float* y) {
    const float d = fp4_scale(b[0]);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * of_int(kFp4Values[b[1 + j] & 15]);
        y[j + 16] = d * of_int(kFp4Values[b[1 + j] >> 4]);
    }
}

/// Four groups of 16 elements, with a scale each.
void decode_nvfp4(const uint8_t* b, float* y) {
    for (int g = 0; g < 4; ++g) {
        const float d = e4m3_scale(b[g]);
        const uint8_t* codes = b + 4 + 8 * g;
        for (int j = 0; j < 8; ++j) {
            y[16 * g + j] = d * of_int(kFp4Values[codes[j] & 15]);
            y[16 * g + j + 8] = d * of_int(kFp4Values[codes[j] >> 4]);
        }
    }
}

// ------------------------------------------------------------------- encoding, rounded as the reference does

void encode_q8_0(const float* x, uint8_t* b) {
    const float d = std::fabs(extreme(x, 32)) / 127.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
    put_half(b, d);
    for (int i = 0; i < 32; ++i) b[2 + i] = byte(round_away(rounded_product(x[i], inverse)));
}

/// The extreme value gets the lowest code, which is exactly representable.
void encode_q4_0(const float* x, uint8_t* b) {
    const float d = extreme(x, 32) / -8.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
    put_half(b, d);
    for (int j = 0; j < 16; ++j) {
        const int low = code(rounded_product(x[j], inverse) + 8.5f, 0, 15);
        const int high = code(rounded_product(x[j + 16], inverse) + 8.5f, 0, 15);
        b[2 + j] = byte(low | high << 4);
    }
}

/// A range from the smallest to the largest element.
void encode_q4_1(const float* x, uint8_t* b) {
    float min = x[0], max = x[0];
    for (int i = 1; i < 32; ++i) {
        min = std::min(min, x[i]);
        max = std::max(max, x[i]);
    }
    const float d = (max - min) / 15.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
    put_half(b, d);
    put_half(b + 2, min);
    for (int j = 0; j < 16; ++j) {
        const int low = code(rounded_product(x[j] - min, inverse) + 0.5f, 0, 15);
        const int high = code(rounded_product(x[j + 16] - min, inverse) + 0.5f, 0, 15);
        b[4 + j] = byte(low | high << 4);
    }
}

}  // namespace number_impl
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

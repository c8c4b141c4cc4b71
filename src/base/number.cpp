// The table of types and their decoding; encoding lives in number_encode.cpp.
//
// Why no fused multiply-add and no reordering can change a bit here: a scale is a binary16 with at
// most 11 significant bits, and what multiplies it are small integers. The widest products have
// 11 + 7 + 5 = 23 bits (Q6_K: a scale up to 127, a code up to 31; the powers of two -128 and -32 cost
// one bit), so every product is exact in float32, also for subnormal scales, which are normal numbers in float32.
// What remains is at most one addition, rounded once: contracted or not, the result is the same.
#include "number.h"

namespace auspex {
namespace detail {

const int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

namespace number_impl {

constexpr TypeInfo kNoType = {nullptr, 1, 0, false};
/// By file id. Ids without a name were removed from the format; ids past the end are unknown.
constexpr TypeInfo kTypes[] = {
    {"F32", 1, 4, true},
    {"F16", 1, 2, true},
    {"Q4_0", 32, 18, true},
    {"Q4_1", 32, 20, true},
    kNoType,
    kNoType,
    {"Q5_0", 32, 22, true},
    {"Q5_1", 32, 24, true},
    {"Q8_0", 32, 34, true},
    {"Q8_1", 32, 36, false},
    {"Q2_K", 256, 84, true},
    {"Q3_K", 256, 110, true},
    {"Q4_K", 256, 144, true},
    {"Q5_K", 256, 176, true},
    {"Q6_K", 256, 210, true},
    {"Q8_K", 256, 292, false},
    {"IQ2_XXS", 256, 66, false},
    {"IQ2_XS", 256, 74, false},
    {"IQ3_XXS", 256, 98, false},
    {"IQ1_S", 256, 50, false},
    {"IQ4_NL", 32, 18, true},
    {"IQ3_S", 256, 110, false},
    {"IQ2_S", 256, 82, false},
    {"IQ4_XS", 256, 136, true},
    {"I8", 1, 1, false},
    {"I16", 1, 2, false},
    {"I32", 1, 4, false},
    {"I64", 1, 8, false},
    {"F64", 1, 8, false},
    {"IQ1_M", 256, 56, false},
    {"BF16", 1, 2, true},
    kNoType,
    kNoType,
    kNoType,
    {"TQ1_0", 256, 54, false},
    {"TQ2_0", 256, 66, false},
    kNoType,
    kNoType,
    kNoType,
    {"MXFP4", 32, 17, false},
    {"NVFP4", 64, 36, false},
    {"Q1_0", 128, 18, false},
    {"Q2_0", 64, 18, false},
};
constexpr uint32_t kTypeCount = static_cast<uint32_t>(sizeof kTypes / sizeof kTypes[0]);
static_assert(kTypeCount == 43, "one row per id from 0 to 42");

inline float half_at(const uint8_t* p) { return f16_to_f32(load<uint16_t>(p)); }
inline float of_int(int v) { return static_cast<float>(v); }

// One function per format, one block per call. `b` is the block, `y` its elements. Byte offsets are
// those of the format's definition; low nibbles are the first half of a run, high nibbles the second.

inline void decode_q8_0(const uint8_t* b, float* y) {
    const float d = half_at(b);
    for (int i = 0; i < 32; ++i) y[i] = d * of_int(static_cast<int8_t>(b[2 + i]));
}

inline void decode_q4_0(const uint8_t* b, float* y) {
    const float d = half_at(b);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * of_int((b[2 + j] & 15) - 8);
        y[j + 16] = d * of_int((b[2 + j] >> 4) - 8);
    }
}

inline void decode_q4_1(const uint8_t* b, float* y) {
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

inline void decode_q5_0(const uint8_t* b, float* y) {
    const float d = half_at(b);
    const uint32_t high = load<uint32_t>(b + 2);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * of_int(five_low(high, b + 6, j) - 16);
        y[j + 16] = d * of_int(five_high(high, b + 6, j) - 16);
    }
}

inline void decode_q5_1(const uint8_t* b, float* y) {
    const float d = half_at(b), m = half_at(b + 2);
    const uint32_t high = load<uint32_t>(b + 4);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * of_int(five_low(high, b + 8, j)) + m;
        y[j + 16] = d * of_int(five_high(high, b + 8, j)) + m;
    }
}

inline void decode_iq4_nl(const uint8_t* b, float* y) {
    const float d = half_at(b);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * of_int(kIq4Values[b[2 + j] & 15]);
        y[j + 16] = d * of_int(kIq4Values[b[2 + j] >> 4]);
    }
}

inline void decode_q2_k(const uint8_t* b, float* y) {
    const uint8_t* qs = b + 16;
    const float d = half_at(b + 80), dmin = half_at(b + 82);
    for (int g = 0; g < 16; ++g) {  // 16 elements share a scale and a minimum
        const float scale = d * of_int(b[g] & 15), min = dmin * of_int(b[g] >> 4);
        const int n = g / 8, shift = 2 * (g % 8 / 2), l0 = g % 2 * 16;
        for (int l = 0; l < 16; ++l) y[16 * g + l] = scale * of_int(qs[32 * n + l0 + l] >> shift & 3) - min;
    }
}

inline void decode_q3_k(const uint8_t* b, float* y) {
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

inline void decode_q4_k(const uint8_t* b, float* y) {
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

inline void decode_q5_k(const uint8_t* b, float* y) {
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

inline void decode_q6_k(const uint8_t* b, float* y) {
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

inline void decode_iq4_xs(const uint8_t* b, float* y) {
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

template <class BlockDecoder>
void each_block(Type t, const uint8_t* from, float* to, size_t n, BlockDecoder decode) {
    const TypeInfo info = type_info(t);
    AUSPEX_ASSERT(n % info.n_block == 0);
    for (size_t i = 0; i < n; i += info.n_block, from += info.block_bytes) decode(from, to + i);
}

}  // namespace number_impl

TypeInfo type_info(uint32_t id) {
    return id < number_impl::kTypeCount ? number_impl::kTypes[id] : number_impl::kNoType;
}

std::string supported_types() {
    std::string s;
    for (const TypeInfo& info : number_impl::kTypes)
        if (info.supported) s += (s.empty() ? "" : " ") + std::string(info.name);
    return s;
}

float f16_to_f32(uint16_t h) {
    const uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31u, mantissa = h & 0x3ffu;
    uint32_t u;
    if (exponent == 31) {
        u = 0x7f800000u | mantissa << 13;
    } else if (exponent != 0) {
        u = (exponent + 112) << 23 | mantissa << 13;
    } else {  // subnormal: mantissa * 2^-24, a normal float32 (or zero)
        const float f = static_cast<float>(static_cast<int>(mantissa)) * 5.9604644775390625e-8f;
        std::memcpy(&u, &f, 4);
    }
    u |= sign;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}

uint16_t f32_to_f16(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    const uint32_t sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    uint32_t h;
    if (a > 0x7f800000u) {
        h = 0x7e00u | (a >> 13 & 0x1ffu);  // stays a NaN, and a quiet one
    } else if (a >= 0x477ff000u) {
        h = 0x7c00u;  // 65520 and above round away from the largest finite value
    } else if (a >= 0x38800000u) {
        h = (a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13;
    } else if (a < 0x33000000u) {
        h = 0;  // below half of the smallest subnormal
    } else {    // subnormal: the mantissa shifted to units of 2^-24
        const uint32_t mantissa = (a & 0x7fffffu) | 0x800000u, shift = 126 - (a >> 23);
        const uint32_t rest = mantissa & ((1u << shift) - 1), middle = 1u << (shift - 1);
        h = mantissa >> shift;
        if (rest > middle || (rest == middle && (h & 1u))) ++h;
    }
    return static_cast<uint16_t>(sign | h);
}

uint16_t f32_to_bf16(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(u >> 16 | 0x40u);
    return static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

void decode_row(Type t, const void* from, float* to, size_t n) {
    namespace impl = number_impl;
    const uint8_t* p = static_cast<const uint8_t*>(from);
    switch (t) {
        case Type::f32:
            if (n) std::memcpy(to, p, n * 4);
            return;
        case Type::f16:
            for (size_t i = 0; i < n; ++i) to[i] = impl::half_at(p + 2 * i);
            return;
        case Type::bf16:
            for (size_t i = 0; i < n; ++i) to[i] = bf16_to_f32(load<uint16_t>(p + 2 * i));
            return;
        case Type::q8_0: return impl::each_block(t, p, to, n, impl::decode_q8_0);
        case Type::q4_0: return impl::each_block(t, p, to, n, impl::decode_q4_0);
        case Type::q4_1: return impl::each_block(t, p, to, n, impl::decode_q4_1);
        case Type::q5_0: return impl::each_block(t, p, to, n, impl::decode_q5_0);
        case Type::q5_1: return impl::each_block(t, p, to, n, impl::decode_q5_1);
        case Type::q2_k: return impl::each_block(t, p, to, n, impl::decode_q2_k);
        case Type::q3_k: return impl::each_block(t, p, to, n, impl::decode_q3_k);
        case Type::q4_k: return impl::each_block(t, p, to, n, impl::decode_q4_k);
        case Type::q5_k: return impl::each_block(t, p, to, n, impl::decode_q5_k);
        case Type::q6_k: return impl::each_block(t, p, to, n, impl::decode_q6_k);
        case Type::iq4_nl: return impl::each_block(t, p, to, n, impl::decode_iq4_nl);
        case Type::iq4_xs: return impl::each_block(t, p, to, n, impl::decode_iq4_xs);
    }
    AUSPEX_ASSERT(false);  // a type that is not supported
}

}  // namespace detail
}  // namespace auspex

// base/number_codec: what the decoders and encoders of the formats share. Included by number*.cpp, and by the encoders
// of tests.
//
// Owns    declarations of decode_<type>() for each row of AUSPEX_BLOCK_TYPES, of encode_<type>() for those that a KV
//         cache may use, and their helpers.
// Thread  pure functions.
// Tests   tests/test_number.cpp
#pragma once
#include "number.h"

#include <algorithm>
#include <cmath>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace number_impl {

// One block per call: `b` is the block, `y` or `x` its elements.
#define AUSPEX_DECLARE(type, id, name, n_block, block_bytes, kv) void decode_##type(const uint8_t* b, float* y);
AUSPEX_BLOCK_TYPES(AUSPEX_DECLARE)
#undef AUSPEX_DECLARE
void encode_q8_0(const float* x, uint8_t* b);
void encode_q4_0(const float* x, uint8_t* b);
void encode_q4_1(const float* x, uint8_t* b);

inline float half_at(const uint8_t* p) { return f16_to_f32(load<uint16_t>(p)); }
inline float of_int(int v) { return static_cast<float>(v); }

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

}  // namespace number_impl
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// tests/glsl: the part of GLSL that shaders/quant uses, so that make_layout_units.py can turn those files into C++.
#pragma once
#include "../src/base/number.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#pragma GCC system_header  // GLSL converts numbers where C++ compilers warn

namespace glsl {

using uint = uint32_t;

struct vec2 {
    float x, y;
    vec2() : x(0), y(0) {}
    vec2(double a) : x(float(a)), y(float(a)) {}
    vec2(double a, double b) : x(float(a)), y(float(b)) {}
};
struct vec4 {
    float x, y, z, w;
    vec4() : x(0), y(0), z(0), w(0) {}
    vec4(double a) : x(float(a)), y(float(a)), z(float(a)), w(float(a)) {}
    vec4(double a, double b, double c, double d) : x(float(a)), y(float(b)), z(float(c)), w(float(d)) {}
    vec4(vec2 a, vec2 b) : x(a.x), y(a.y), z(b.x), w(b.y) {}
    float operator[](uint i) const { return i < 2 ? (i == 0 ? x : y) : (i == 2 ? z : w); }
};
struct uvec2 {
    uint x = 0, y = 0;
    uvec2() = default;
    uvec2(uint a, uint b) : x(a), y(b) {}
    uint operator[](uint i) const { return i == 0 ? x : y; }
};
struct uvec4 {
    uint x = 0, y = 0, z = 0, w = 0;
    uvec4() = default;
    uvec4(uint a, uint b, uint c, uint d) : x(a), y(b), z(c), w(d) {}
    uvec4(uvec2 a, uvec2 b) : x(a.x), y(a.y), z(b.x), w(b.y) {}
    uvec2 xy() const { return {x, y}; }
    uvec2 zw() const { return {z, w}; }
    uint& operator[](uint i) { return i < 2 ? (i == 0 ? x : y) : (i == 2 ? z : w); }
    uint operator[](uint i) const { return i < 2 ? (i == 0 ? x : y) : (i == 2 ? z : w); }
};
#define GLSL_OPERATOR(op)                                                        \
    inline vec2 operator op(vec2 a, vec2 b) { return {a.x op b.x, a.y op b.y}; } \
    inline vec4 operator op(vec4 a, vec4 b) { return {a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w}; }
GLSL_OPERATOR(+)
GLSL_OPERATOR(-)
GLSL_OPERATOR(*)
#undef GLSL_OPERATOR
inline vec2& operator+=(vec2& a, vec2 b) { return a = a + b; }
inline vec2& operator*=(vec2& a, vec2 b) { return a = a * b; }
inline vec2& operator-=(vec2& a, vec2 b) { return a = a - b; }
#define GLSL_OPERATOR(op)                                                      \
    inline uvec2 operator op(uvec2 a, uint b) { return {a.x op b, a.y op b}; } \
    inline uvec4 operator op(uvec4 a, uint b) { return {a.x op b, a.y op b, a.z op b, a.w op b}; }
GLSL_OPERATOR(&)
GLSL_OPERATOR(|)
GLSL_OPERATOR(>>)
GLSL_OPERATOR(<<)
GLSL_OPERATOR(^)
#undef GLSL_OPERATOR
inline uvec4& operator>>=(uvec4& a, uint b) { return a = a >> b; }

inline vec2 min(vec2 a, vec2 b) { return {std::min(a.x, b.x), std::min(a.y, b.y)}; }
inline uint max(uint a, uint b) { return std::max(a, b); }
inline float max(float a, float b) { return std::max(a, b); }
inline vec4 max(vec4 a, vec4 b) { return {max(a.x, b.x), max(a.y, b.y), max(a.z, b.z), max(a.w, b.w)}; }
inline vec4 abs(vec4 a) { return {std::fabs(a.x), std::fabs(a.y), std::fabs(a.z), std::fabs(a.w)}; }
inline uint clamp(uint a, uint b, uint c) { return std::clamp(a, b, c); }
inline float clamp(float a, double b, double c) { return std::clamp(a, float(b), float(c)); }
inline vec2 clamp(vec2 a, vec2 b, vec2 c) { return {std::clamp(a.x, b.x, c.x), std::clamp(a.y, b.y, c.y)}; }
inline vec4 clamp(vec4 a, vec4 b, vec4 c) {
    return {std::clamp(a.x, b.x, c.x), std::clamp(a.y, b.y, c.y), std::clamp(a.z, b.z, c.z), std::clamp(a.w, b.w, c.w)};
}
inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
inline vec2 fma(vec2 a, vec2 b, vec2 c) { return {fma(a.x, b.x, c.x), fma(a.y, b.y, c.y)}; }
inline uint floatBitsToUint(float f) {
    uint u;
    std::memcpy(&u, &f, 4);
    return u;
}
inline float uintBitsToFloat(uint u) {
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}

/// A half as its value; each operation rounds once, because float32 holds sums and products of halves.
struct float16_t {
    float v;
    explicit float16_t(double a) : v(auspex::detail::f16_to_f32(auspex::detail::f32_to_f16(float(a)))) {}
};
struct f16vec2 {
    float16_t x, y;
    explicit f16vec2(double a) : x(a), y(a) {}
    explicit f16vec2(float16_t a) : x(a), y(a) {}
    f16vec2(float16_t a, float16_t b) : x(a), y(b) {}
    f16vec2(double a, double b) : x(a), y(b) {}
    explicit f16vec2(vec2 a) : x(a.x), y(a.y) {}
};
struct f16vec4 {
    float16_t x, y, z, w;
    explicit f16vec4(vec4 a) : x(a.x), y(a.y), z(a.z), w(a.w) {}
    f16vec2 xy() const { return {x, y}; }
    f16vec2 zw() const { return {z, w}; }
};
inline float16_t operator-(float16_t a) { return float16_t(-a.v); }
inline f16vec2 operator-(f16vec2 a, f16vec2 b) { return {float16_t(a.x.v - b.x.v), float16_t(a.y.v - b.y.v)}; }
inline f16vec2 operator*(f16vec2 a, float16_t b) { return {float16_t(a.x.v * b.v), float16_t(a.y.v * b.v)}; }
inline f16vec2 fma(f16vec2 a, f16vec2 b, f16vec2 c) {
    return {float16_t(double(a.x.v) * b.x.v + c.x.v), float16_t(double(a.y.v) * b.y.v + c.y.v)};
}
inline f16vec2 unpackFloat2x16(uint v) {
    using auspex::detail::f16_to_f32;
    return {float16_t(f16_to_f32(uint16_t(v))), float16_t(f16_to_f32(uint16_t(v >> 16)))};
}
inline uint packFloat2x16(f16vec2 v) {
    using auspex::detail::f32_to_f16;
    return f32_to_f16(v.x.v) | uint(f32_to_f16(v.y.v)) << 16;
}
inline vec2 unpackHalf2x16(uint v) {
    const f16vec2 h = unpackFloat2x16(v);
    return {h.x.v, h.y.v};
}
inline uint packHalf2x16(vec2 v) { return packFloat2x16({float16_t(v.x), float16_t(v.y)}); }

}  // namespace glsl

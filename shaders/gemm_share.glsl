// gemm_share.glsl: weights from tiles (quant/) to halves, one share at a time.
//
// Share   of a tile: row (l >> 2) + 8 e, 64 columns kb (0 .. 3), of every block of 16 the four columns from 4 (l & 3)
//         on: 16 weights. fetch_share() reads its words, decode_share() makes 16 halves, blocks in order, times
//         WEIGHT_FACTOR.
// Numbers integers become halves exactly, by setting an exponent below them and subtracting it again; scale and
//         minimum are rounded to halves, one multiply-add rounds the weight: about 2^-11.

layout(set = 0, binding = 0, std430) readonly buffer W2_ { uvec2 w2[]; };
layout(set = 0, binding = 0, std430) readonly buffer W1_ { uint w1[]; };

#if defined(TYPE_F16)
const float WEIGHT_FACTOR = 1.0;
#else
const float WEIGHT_FACTOR = 64.0;   // keeps small scales out of the halves' subnormals
#endif

// Two integers under an exponent: less `base`, times s, less m.
uint grow(uint bits, float16_t base, float16_t s, float16_t m) {
    return packFloat2x16(fma(unpackFloat2x16(bits) - f16vec2(base), f16vec2(s), f16vec2(-m)));
}
uint grow(uint bits, float16_t base, float16_t s) {
    return packFloat2x16((unpackFloat2x16(bits) - f16vec2(base)) * s);
}
const uint LOW = 0x64006400u;    // 1024: bits 0.. count ones
const uint HIGH = 0x54005400u;   // 64: bits 4.. count ones

#if defined(FIVE)
#define MIDDLE 16.0
#else
#define MIDDLE 8.0
#endif

#if defined(TYPE_Q4_K) || defined(TYPE_Q5_K) || defined(TYPE_Q4_0) || defined(TYPE_Q5_0)
struct Share {
    uvec2 q;
#ifdef FIVE
    uint bits;
#endif
#ifdef MINS
    uvec4 head;
#else
    uint head;
#endif
};

Share fetch_share(uint at, uint l, uint e, uint kb) {
    Share r;
    const uint j = kb >> 1, c = kb & 1u, row = (l >> 2) + 8u * e;
    r.q = w2[(at + QUANT + 64u * j + 32u * e + l) * 2u + c];
#ifdef FIVE
    r.bits = w1[(at + 16u + 16u * e + (l >> 1)) * 4u + 2u * (l & 1u) + j];
#endif
#ifdef MINS
    r.head = w[at + row];
#else
    r.head = w1[(at + row) * 4u + kb];
#endif
    return r;
}

void decode_share(Share r, uint kb, out uvec4 lo, out uvec4 hi) {
    const uint v0 = r.q.x, v1 = r.q.y, u0 = v0 >> 8, u1 = v1 >> 8;
#ifdef FIVE
    const uint z = r.bits >> (4u * (kb & 1u));
#else
    const uint z = 0u;
#endif
    const uint a0 = (v0 & 0x000f000fu) | high_low(z, 0u) | LOW, a1 = (u0 & 0x000f000fu) | high_low(z, 1u) | LOW;
    const uint a2 = (v1 & 0x000f000fu) | high_low(z, 2u) | LOW, a3 = (u1 & 0x000f000fu) | high_low(z, 3u) | LOW;
    const uint b0 = (v0 & 0x00f000f0u) | high_high(z, 0u) | HIGH, b1 = (u0 & 0x00f000f0u) | high_high(z, 1u) | HIGH;
    const uint b2 = (v1 & 0x00f000f0u) | high_high(z, 2u) | HIGH, b3 = (u1 & 0x00f000f0u) | high_high(z, 3u) | HIGH;
#ifdef MINS
    const uint shift = 16u * (kb & 1u);
    uint sc, mn;
    if (kb < 2u) {
        sc = (r.head.y >> shift) & 0x3f3fu;
        mn = (r.head.z >> shift) & 0x3f3fu;
    } else {
        sc = ((r.head.w >> shift) & 0x0f0fu) | ((r.head.y >> (shift + 2u)) & 0x3030u);
        mn = ((r.head.w >> (shift + 4u)) & 0x0f0fu) | ((r.head.z >> (shift + 2u)) & 0x3030u);
    }
    const vec2 d = unpackHalf2x16(r.head.x) * WEIGHT_FACTOR;
    // s n - m = s (n - MIDDLE) - (m - s MIDDLE): smaller numbers meet, so less is lost to rounding.
    const vec2 s = d.x * vec2(float(sc & 255u), float(sc >> 8)), m = d.y * vec2(float(mn & 255u), float(mn >> 8))
        - s * MIDDLE;
    const float16_t s0 = float16_t(s.x), s1 = float16_t(s.y), m0 = float16_t(m.x), m1 = float16_t(m.y);
    const float16_t x0 = float16_t(1024.0 + MIDDLE), x1 = float16_t(64.0 + MIDDLE);
    lo = uvec4(grow(a0, x0, s0, m0), grow(a1, x0, s0, m0), grow(a2, x0, s0, m0), grow(a3, x0, s0, m0));
    hi = uvec4(grow(b0, x1, s1, m1), grow(b1, x1, s1, m1), grow(b2, x1, s1, m1), grow(b3, x1, s1, m1));
#else
    const vec2 d = unpackHalf2x16(r.head) * WEIGHT_FACTOR;
    const float16_t s0 = float16_t(d.x), s1 = float16_t(d.y);
    const float16_t x0 = float16_t(1024.0 + ZERO), x1 = float16_t(64.0 + ZERO);
    lo = uvec4(grow(a0, x0, s0), grow(a1, x0, s0), grow(a2, x0, s0), grow(a3, x0, s0));
    hi = uvec4(grow(b0, x1, s1), grow(b1, x1, s1), grow(b2, x1, s1), grow(b3, x1, s1));
#endif
}

#elif defined(TYPE_Q6_K)
struct Share { uvec2 q; uint z, scales, d; };

Share fetch_share(uint at, uint l, uint e, uint kb) {
    Share r;
    const uint j = kb >> 1, c = kb & 1u, g = l >> 2;
    r.q = w2[(at + 18u + 64u * j + 32u * e + l) * 2u + c];
    r.z = w1[(at + 146u + 32u * e + l) * 4u + kb];
    r.scales = w1[(at + g + 8u * e) * 4u + kb];
    r.d = w1[(at + 16u + e) * 4u + (g >> 1)] >> (16u * (g & 1u));
    return r;
}

void decode_share(Share r, uint kb, out uvec4 lo, out uvec4 hi) {
    const uint v0 = r.q.x, v1 = r.q.y, u0 = v0 >> 8, u1 = v1 >> 8, z = r.z;
    const float d = unpackHalf2x16(r.d).x * WEIGHT_FACTOR;
    const float16_t s0 = float16_t(d * signed_byte(r.scales, 0u)), s1 = float16_t(d * signed_byte(r.scales, 1u));
    const float16_t s2 = float16_t(d * signed_byte(r.scales, 2u)), s3 = float16_t(d * signed_byte(r.scales, 3u));
    const float16_t x0 = float16_t(1056.0), x1 = float16_t(96.0);
    lo = uvec4(grow((v0 & 0x000f000fu) | (z & 0x00300030u) | LOW, x0, s0),
               grow((u0 & 0x000f000fu) | ((z >> 2) & 0x00300030u) | LOW, x0, s0),
               grow((v1 & 0x000f000fu) | ((z << 4) & 0x00300030u) | LOW, x0, s1),
               grow((u1 & 0x000f000fu) | ((z << 2) & 0x00300030u) | LOW, x0, s1));
    hi = uvec4(grow((v0 & 0x00f000f0u) | (z & 0x03000300u) | HIGH, x1, s2),
               grow((u0 & 0x00f000f0u) | ((z >> 2) & 0x03000300u) | HIGH, x1, s2),
               grow((v1 & 0x00f000f0u) | ((z >> 4) & 0x03000300u) | HIGH, x1, s3),
               grow((u1 & 0x00f000f0u) | ((z >> 6) & 0x03000300u) | HIGH, x1, s3));
}

#elif defined(TYPE_Q8_0)
struct Share { uvec4 q; uint d; };

Share fetch_share(uint at, uint l, uint e, uint kb) {
    Share r;
    r.q = w[at + 16u + 64u * kb + 32u * e + l];
    r.d = w1[(at + (l >> 2) + 8u * e) * 4u + kb];
    return r;
}

void decode_share(Share r, uint kb, out uvec4 lo, out uvec4 hi) {
    const vec2 d = unpackHalf2x16(r.d) * WEIGHT_FACTOR;
    const float16_t s0 = float16_t(d.x), s1 = float16_t(d.y), x0 = float16_t(1152.0);
    const uvec4 v = (r.q & 0x00ff00ffu) | LOW, u = ((r.q >> 8) & 0x00ff00ffu) | LOW;
    lo = uvec4(grow(v.x, x0, s0), grow(u.x, x0, s0), grow(v.y, x0, s0), grow(u.y, x0, s0));
    hi = uvec4(grow(v.z, x0, s1), grow(u.z, x0, s1), grow(v.w, x0, s1), grow(u.w, x0, s1));
}

#elif defined(TYPE_WIDE)
struct Share { uvec4 q, d, m; };

Share fetch_share(uint at, uint l, uint e, uint kb) {
    Share r;
    const uint u = at + 8u * ((l >> 2) + 8u * e) + kb;
    r.q = w[at + 128u + 64u * kb + 32u * e + l];
    r.d = w[u];
    r.m = w[u + 4u];
    return r;
}

void decode_share(Share r, uint kb, out uvec4 lo, out uvec4 hi) {
    const vec4 d = uintBitsToFloat(r.d) * WEIGHT_FACTOR, m = uintBitsToFloat(r.m) * WEIGHT_FACTOR;
    const float16_t x0 = float16_t(1152.0);
    const uvec4 v = (r.q & 0x00ff00ffu) | LOW, u = ((r.q >> 8) & 0x00ff00ffu) | LOW;
    lo = uvec4(grow(v.x, x0, float16_t(d.x), float16_t(m.x)), grow(u.x, x0, float16_t(d.x), float16_t(m.x)),
               grow(v.y, x0, float16_t(d.y), float16_t(m.y)), grow(u.y, x0, float16_t(d.y), float16_t(m.y)));
    hi = uvec4(grow(v.z, x0, float16_t(d.z), float16_t(m.z)), grow(u.z, x0, float16_t(d.z), float16_t(m.z)),
               grow(v.w, x0, float16_t(d.w), float16_t(m.w)), grow(u.w, x0, float16_t(d.w), float16_t(m.w)));
}

#elif defined(TYPE_F16)
struct Share { uvec4 a, b; };

Share fetch_share(uint at, uint l, uint e, uint kb) {
    Share r;
    r.a = w[at + 128u * kb + 32u * e + l];
    r.b = w[at + 128u * kb + 64u + 32u * e + l];
    return r;
}

void decode_share(Share r, uint kb, out uvec4 lo, out uvec4 hi) {
    lo = r.a;
    hi = r.b;
}

#else  // TYPE_BF16, TYPE_F32: what halves cannot hold becomes the largest half
uint two_halves(float a, float b) {
    return packHalf2x16(clamp(vec2(a, b) * WEIGHT_FACTOR, vec2(-65504.0), vec2(65504.0)));
}

#if defined(TYPE_BF16)
struct Share { uvec4 a, b; };

Share fetch_share(uint at, uint l, uint e, uint kb) {
    Share r;
    r.a = w[at + 128u * kb + 32u * e + l];
    r.b = w[at + 128u * kb + 64u + 32u * e + l];
    return r;
}

uint two_halves(uint v) { return two_halves(uintBitsToFloat(v << 16), uintBitsToFloat(v & 0xffff0000u)); }

void decode_share(Share r, uint kb, out uvec4 lo, out uvec4 hi) {
    lo = uvec4(two_halves(r.a.x), two_halves(r.a.y), two_halves(r.a.z), two_halves(r.a.w));
    hi = uvec4(two_halves(r.b.x), two_halves(r.b.y), two_halves(r.b.z), two_halves(r.b.w));
}
#else
struct Share { vec4 a, b, c, d; };

Share fetch_share(uint at, uint l, uint e, uint kb) {
    Share r;
    const uint u = at + 256u * kb + 32u * e + l;
    r.a = uintBitsToFloat(w[u]);
    r.b = uintBitsToFloat(w[u + 64u]);
    r.c = uintBitsToFloat(w[u + 128u]);
    r.d = uintBitsToFloat(w[u + 192u]);
    return r;
}

void decode_share(Share r, uint kb, out uvec4 lo, out uvec4 hi) {
    lo = uvec4(two_halves(r.a.x, r.a.y), two_halves(r.a.z, r.a.w), two_halves(r.b.x, r.b.y), two_halves(r.b.z, r.b.w));
    hi = uvec4(two_halves(r.c.x, r.c.y), two_halves(r.c.z, r.c.w), two_halves(r.d.x, r.d.y), two_halves(r.d.z, r.d.w));
}
#endif
#endif

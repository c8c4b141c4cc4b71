// quant/nibble.glsl: Q4_K, Q5_K, Q4_0, Q5_0, Q4_1 and Q5_1: four bits a weight, and a fifth one with FIVE.
//
// units 0 .. HEAD - 1      row r: with SIX half d, half dmin and eight scales and minimums of six bits: words 1 and 2
//                          have four scales each, a byte each, in the order 0 2 1 3; word 3 has the low four bits of
//                          minimums 0 .. 3 in its low half, of 4 .. 7 in its high half, and bits 4 and 5 of
//                          minimums t and t + 4 are above the scales of bytes t & 1 and (t & 1) + 2 of word
//                          1 + (t >> 1). Else eight halves, the scales; with PAIRS (unit 2 r) eight halves of
//                          minimums follow.
//                          weight = scale code - minimum with SIX or PAIRS, else scale (code - ZERO)
// HEAD .. HEAD + 31        FIVE: lane l, row (l >> 2) + 8 e: two words at byte 8 (32 e + l). Word j has the columns
//                          from 128 j on: bits 8 n + 4 c + 2 h + p of its halves belong to columns 2 p and 2 p + 1 of
//                          block 8 j + 4 c + 2 n + h
// QUANT + 64 j + 32 e + l  lane l, row (l >> 2) + 8 e, columns from 128 j on: word 2 c + h (c, h = 0, 1) has block
//                          8 j + 4 c + h in its low nibbles and block 8 j + 4 c + 2 + h in its high nibbles
// layout: q4_k 144 @product -DSIX
// layout: q5_k 176 @product -DSIX -DFIVE
// layout: q4_0 144 @product
// layout: q5_0 176 @product -DFIVE
// layout: q4_1 160 @product -DPAIRS
// layout: q5_1 192 @product -DPAIRS -DFIVE
#ifdef PAIRS
#define HEAD 32u
#else
#define HEAD 16u
#endif
#ifdef FIVE
#define QUANT (HEAD + 32u)
#define ZERO 16.0
#else
#define QUANT HEAD
#define ZERO 8.0
#endif
#define SUMS_OF_32
#if defined(SIX) || defined(PAIRS)
#define MINS
#endif

// Of a row with SIX, as integers in two halves: scales 2 p and 2 p + 1, and minimums t and t + 4. Minimums 2 p and
// 2 p + 1.
uint two_scales(uvec4 head, uint p) { return ((p < 2u ? head.y : head.z) >> (8u * (p & 1u))) & 0x003f003fu; }
uint two_minimums(uvec4 head, uint t) {
    return ((head.w >> (4u * t)) & 0x000f000fu) | (((t < 2u ? head.y : head.z) >> (8u * (t & 1u) + 2u)) & 0x00300030u);
}
vec2 next_minimums(uvec4 head, uint p) {
    const uint low = head.w >> (8u * p), high = ((p & 1u) == 0u ? head.y : head.z) >> (16u * (p >> 1));
    return vec2(float((low & 15u) | ((high >> 2) & 0x30u)), float(((low >> 4) & 15u) | ((high >> 10) & 0x30u)));
}

#ifdef FIVE
// The fifth bits of columns 2 p and 2 p + 1 of block h, k = 2 h + p, above their low (bit 4) or high (bit 8) nibbles.
// z: the word of the fifth bits, shifted right by 4 c.
uint high_low(uint z, uint k) { return (z << (4u - k)) & 0x00100010u; }
uint high_high(uint z, uint k) { return (z >> k) & 0x01000100u; }
#else
uint high_low(uint z, uint k) { return 0u; }
uint high_high(uint z, uint k) { return 0u; }
#endif

void unpack(uint at, uint r, uint j, uint t, out vec4 to[8]) {
    const uint e = r >> 3, l = (r & 7u) * 4u + t;
#ifdef PAIRS
    const uvec4 head = UNITS[at + 2u * r], mins = UNITS[at + 2u * r + 1u];
#else
    const uvec4 head = UNITS[at + r];
#endif
    const uvec4 q = UNITS[at + QUANT + 64u * j + 32u * e + l];
#ifdef FIVE
    const uvec4 hq = UNITS[at + HEAD + 16u * e + (l >> 1)];
    const uint bits = hq[2u * (l & 1u) + j];
#else
    const uint bits = 0u;
#endif
#ifdef SIX
    const vec2 d = unpackHalf2x16(head.x);
#endif
    for (uint i = 0u; i < 8u; i++) {  // i = 4 c + 2 hi + h
        const uint c = i >> 2, hi = (i >> 1) & 1u, h = i & 1u, b = 4u * j + (i >> 1), z = bits >> (4u * c);
        const uint v = q[2u * c + h] >> (4u * hi);
        uint p0 = v & 0x000f000fu, p1 = (v >> 8) & 0x000f000fu;
        p0 |= hi == 0u ? high_low(z, 2u * h) : high_high(z, 2u * h) >> 4;
        p1 |= hi == 0u ? high_low(z, 2u * h + 1u) : high_high(z, 2u * h + 1u) >> 4;
        const vec4 n = vec4(float(p0 & 0xffffu), float(p0 >> 16), float(p1 & 0xffffu), float(p1 >> 16));
#ifdef SIX
        const float s = d.x * float((two_scales(head, b >> 1) >> (16u * (b & 1u))) & 63u);
        const vec2 both = next_minimums(head, b >> 1);
        const float m = d.y * ((b & 1u) == 0u ? both.x : both.y);
#else
        const float s = unpackHalf2x16(head[b >> 1] >> (16u * (b & 1u))).x;
#endif
#ifdef PAIRS
        const float m = unpackHalf2x16(mins[b >> 1] >> (16u * (b & 1u))).x;
#endif
#ifdef MINS
        precise vec4 product = s * n;
        precise vec4 value = product - m;
#else
        precise vec4 value = s * (n - ZERO);
#endif
        to[i] = value;
    }
}

#ifdef MATRIX
struct Raw {
    uvec4 h0, h1, q00, q01, q10, q11;
#ifdef PAIRS
    uvec4 m0, m1;
#endif
#ifdef FIVE
    uvec2 z0, z1;
#endif
};

Raw fetch(uint at, uint l) {
    Raw r;
#ifdef PAIRS
    r.h0 = UNITS[at + 2u * (l >> 2)];
    r.h1 = UNITS[at + 2u * (l >> 2) + 16u];
    r.m0 = UNITS[at + 2u * (l >> 2) + 1u];
    r.m1 = UNITS[at + 2u * (l >> 2) + 17u];
#else
    r.h0 = UNITS[at + (l >> 2)];
    r.h1 = UNITS[at + (l >> 2) + 8u];
#endif
    r.q00 = UNITS[at + QUANT + l];
    r.q01 = UNITS[at + QUANT + 32u + l];
    r.q10 = UNITS[at + QUANT + 64u + l];
    r.q11 = UNITS[at + QUANT + 96u + l];
#ifdef FIVE
    const uvec4 a = UNITS[at + HEAD + (l >> 1)], b = UNITS[at + HEAD + 16u + (l >> 1)];
    r.z0 = (l & 1u) == 0u ? a.xy : a.zw;
    r.z1 = (l & 1u) == 0u ? b.xy : b.zw;
#endif
    return r;
}

vec4 product(Raw raw, uint at, uint t) {
    vec4 sum = vec4(0.0);
#ifdef SIX
    const vec2 d0 = unpackHalf2x16(raw.h0.x) * TINY, d1 = unpackHalf2x16(raw.h1.x) * TINY;
#endif
    [[dont_unroll]] for (uint p = 0u; p < 4u; p++) {
        const uvec4 q0 = p < 2u ? raw.q00 : raw.q10, q1 = p < 2u ? raw.q01 : raw.q11;
        const uvec2 v0 = (p & 1u) == 0u ? q0.xy : q0.zw, v1 = (p & 1u) == 0u ? q1.xy : q1.zw;
        const uvec2 u0 = v0 >> 8, u1 = v1 >> 8;
#ifdef FIVE
        const uint z0 = (p < 2u ? raw.z0.x : raw.z0.y) >> (4u * (p & 1u));
        const uint z1 = (p < 2u ? raw.z1.x : raw.z1.y) >> (4u * (p & 1u));
#else
        const uint z0 = 0u, z1 = 0u;
#endif
#ifdef SIX
        // As subnormal halves the integers become floats in one instruction.
        const vec2 b0 = unpackHalf2x16(two_scales(raw.h0, p)), b1 = unpackHalf2x16(two_scales(raw.h1, p));
        const vec2 e0 = b0 * vec2(d0.x * TINY, d0.x * (TINY * 0.0625));
        const vec2 e1 = b1 * vec2(d1.x * TINY, d1.x * (TINY * 0.0625));
#else
        const vec2 e0 = unpackHalf2x16(word_of(raw.h0, p)) * vec2(TINY, TINY * 0.0625);
        const vec2 e1 = unpackHalf2x16(word_of(raw.h1, p)) * vec2(TINY, TINY * 0.0625);
#endif
        const uint k = at + p * 64u;
        FragC C = FragC(0.0);
        MMA(C, (v0.x & 0x000f000fu) | high_low(z0, 0u), (u0.x & 0x000f000fu) | high_low(z0, 1u),
               (v1.x & 0x000f000fu) | high_low(z1, 0u), (u1.x & 0x000f000fu) | high_low(z1, 1u), k)
        MMA(C, (v0.y & 0x000f000fu) | high_low(z0, 2u), (u0.y & 0x000f000fu) | high_low(z0, 3u),
               (v1.y & 0x000f000fu) | high_low(z1, 2u), (u1.y & 0x000f000fu) | high_low(z1, 3u), k + 16u)
        ADD(sum, e0.x, e1.x, C)
        FragC D = FragC(0.0);
        MMA(D, (v0.x & 0x00f000f0u) | high_high(z0, 0u), (u0.x & 0x00f000f0u) | high_high(z0, 1u),
               (v1.x & 0x00f000f0u) | high_high(z1, 0u), (u1.x & 0x00f000f0u) | high_high(z1, 1u), k + 32u)
        MMA(D, (v0.y & 0x00f000f0u) | high_high(z0, 2u), (u0.y & 0x00f000f0u) | high_high(z0, 3u),
               (v1.y & 0x00f000f0u) | high_high(z1, 2u), (u1.y & 0x00f000f0u) | high_high(z1, 3u), k + 48u)
        ADD(sum, e0.y, e1.y, D)
    }
    // Minimums and zero points are the same for a whole block, so they are multiplied by the sums of x.
    FragC M = FragC(0.0);
#ifdef SIX
    const uint p0 = two_minimums(raw.h0, t), p1 = two_minimums(raw.h1, t);
    const uint m0 = (p0 & 0xffffu) * 0x10001u, m1 = (p0 >> 16) * 0x10001u;
    const uint m2 = (p1 & 0xffffu) * 0x10001u, m3 = (p1 >> 16) * 0x10001u;
    MMA(M, m0, m1, m2, m3, at + 256u)
    ADD(sum, -d0.y, -d1.y, M)
#else
#ifdef PAIRS
    const uvec4 f0 = raw.m0, f1 = raw.m1;
    const float zero = 1.0;
#else
    const uvec4 f0 = raw.h0, f1 = raw.h1;
    const float zero = ZERO;
#endif
    const uint m0 = half_twice(f0.xy, t), m1 = half_twice(f0.zw, t), m2 = half_twice(f1.xy, t),
        m3 = half_twice(f1.zw, t);
    MMA(M, m0, m1, m2, m3, at + 256u)
    ADD(sum, -zero, -zero, M)
#endif
    return sum;
}
#endif

#ifdef SHARES
#include "gemm_share.glsl"

struct Share {
    uvec2 q;
#ifdef FIVE
    uint bits;
#endif
#ifdef SIX
    uvec4 head;
#else
    uint head;
#endif
#ifdef PAIRS
    uint mins;
#endif
};

Share fetch_share(uint at, uint l, uint e, uint kb) {
    Share r;
    const uint j = kb >> 1, c = kb & 1u, row = (l >> 2) + 8u * e;
    r.q = w2[(at + QUANT + 64u * j + 32u * e + l) * 2u + c];
#ifdef FIVE
    r.bits = w1[(at + HEAD + 16u * e + (l >> 1)) * 4u + 2u * (l & 1u) + j];
#endif
#ifdef SIX
    r.head = w[at + row];
#elif defined PAIRS
    r.head = w1[(at + 2u * row) * 4u + kb];
    r.mins = w1[(at + 2u * row + 1u) * 4u + kb];
#else
    r.head = w1[(at + row) * 4u + kb];
#endif
    return r;
}

// The integers of a share, two to a word: those of blocks 0 and 1 from bit 0, those of 2 and 3 from bit 4.
void share_words(Share r, uint kb, out uvec4 low, out uvec4 high) {
    const uint v0 = r.q.x, v1 = r.q.y, u0 = v0 >> 8, u1 = v1 >> 8;
#ifdef FIVE
    const uint z = r.bits >> (4u * (kb & 1u));
#else
    const uint z = 0u;
#endif
    low = uvec4((v0 & 0x000f000fu) | high_low(z, 0u), (u0 & 0x000f000fu) | high_low(z, 1u),
                (v1 & 0x000f000fu) | high_low(z, 2u), (u1 & 0x000f000fu) | high_low(z, 3u));
    high = uvec4((v0 & 0x00f000f0u) | high_high(z, 0u), (u0 & 0x00f000f0u) | high_high(z, 1u),
                 (v1 & 0x00f000f0u) | high_high(z, 2u), (u1 & 0x00f000f0u) | high_high(z, 3u));
}

// Scales and minimums of its first two and its last two blocks, multiplied by WEIGHT_FACTOR.
void share_scales(Share r, uint kb, out vec2 s, out vec2 m) {
#ifdef SIX
    const uint sc = two_scales(r.head, kb);
    const vec2 d = unpackHalf2x16(r.head.x) * WEIGHT_FACTOR;
    s = d.x * vec2(float(sc & 255u), float(sc >> 16));
    m = d.y * next_minimums(r.head, kb);
#else
    s = unpackHalf2x16(r.head) * WEIGHT_FACTOR;
#ifdef PAIRS
    m = unpackHalf2x16(r.mins) * WEIGHT_FACTOR;
#else
    m = vec2(0.0);
#endif
#endif
}

void decode_share(Share r, uint kb, out uvec4 lo, out uvec4 hi) {
    uvec4 low, high;
    vec2 s, m;
    share_words(r, kb, low, high);
    share_scales(r, kb, s, m);
    const uvec4 a = low | LOW, b = high | HIGH;
#ifdef MINS
    // s n - m = s (n - ZERO) - (m - s ZERO): smaller operands, hence less rounding.
    m -= s * ZERO;
    const float16_t s0 = float16_t(s.x), s1 = float16_t(s.y), m0 = float16_t(m.x), m1 = float16_t(m.y);
    const float16_t x0 = float16_t(1024.0 + ZERO), x1 = float16_t(64.0 + ZERO);
    lo = uvec4(grow(a.x, x0, s0, m0), grow(a.y, x0, s0, m0), grow(a.z, x0, s0, m0), grow(a.w, x0, s0, m0));
    hi = uvec4(grow(b.x, x1, s1, m1), grow(b.y, x1, s1, m1), grow(b.z, x1, s1, m1), grow(b.w, x1, s1, m1));
#else
    const float16_t s0 = float16_t(s.x), s1 = float16_t(s.y);
    const float16_t x0 = float16_t(1024.0 + ZERO), x1 = float16_t(64.0 + ZERO);
    lo = uvec4(grow(a.x, x0, s0), grow(a.y, x0, s0), grow(a.z, x0, s0), grow(a.w, x0, s0));
    hi = uvec4(grow(b.x, x1, s1), grow(b.y, x1, s1), grow(b.z, x1, s1), grow(b.w, x1, s1));
#endif
}

void share_values(Share r, uint kb, out vec4 v[4]) {
    uvec4 low, high;
    vec2 s, m;
    share_words(r, kb, low, high);
    share_scales(r, kb, s, m);
    high >>= 4;
#ifdef MINS
    precise vec4 p0 = s.x * four(low.x, low.y), p1 = s.x * four(low.z, low.w);
    precise vec4 p2 = s.y * four(high.x, high.y), p3 = s.y * four(high.z, high.w);
    v[0] = p0 - m.x;
    v[1] = p1 - m.x;
    v[2] = p2 - m.y;
    v[3] = p3 - m.y;
#else
    v[0] = s.x * (four(low.x, low.y) - ZERO);
    v[1] = s.x * (four(low.z, low.w) - ZERO);
    v[2] = s.y * (four(high.x, high.y) - ZERO);
    v[3] = s.y * (four(high.z, high.w) - ZERO);
#endif
}
#endif

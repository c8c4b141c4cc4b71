// quant/q6_k.glsl: Q6_K.
//
// units 0 .. 15           row r: sixteen signed scales (block_scales.glsl)
// units 16, 17            sixteen halves d, one for each row
// 18 + 64 j + 32 e + l    low nibbles, as in quant/nibble.glsl
// 146 + 32 e + l          lane l, row (l >> 2) + 8 e: word c has bits 4 and 5 of blocks 4 c .. 4 c + 3. In its halves,
//                         two bits each for columns 0 and 1, then for columns 2 and 3:
//                           block 4 c       bits 4, 6      block 4 c + 1   bits 0, 2
//                           block 4 c + 2   bits 8, 10     block 4 c + 3   bits 12, 14
// layout: q6_k 210 @product

#include "block_scales.glsl"

void unpack(uint at, uint r, uint j, uint t, out vec4 to[8]) {
    const uint e = r >> 3, l = (r & 7u) * 4u + t;
    const uvec4 head = UNITS[at + r], q = UNITS[at + 18u + 64u * j + 32u * e + l], hq = UNITS[at + 146u + 32u * e + l];
    const vec2 dd = unpackHalf2x16(UNITS[at + 16u + e][(r & 7u) >> 1]);
    const float d = (r & 1u) == 0u ? dd.x : dd.y;
    for (uint i = 0u; i < 8u; i++) {
        const uint c = i >> 2, hi = (i >> 1) & 1u, h = i & 1u;
        const uint v = q[2u * c + h] >> (4u * hi);
        const uint first = hi == 0u ? (h == 0u ? 4u : 0u) : (h == 0u ? 8u : 12u);
        const uint z0 = (hq[2u * j + c] >> first) & 0x00030003u, z1 = (hq[2u * j + c] >> (first + 2u)) & 0x00030003u;
        const uint p0 = (v & 0x000f000fu) | (z0 << 4), p1 = ((v >> 8) & 0x000f000fu) | (z1 << 4);
        const vec4 n = vec4(float(p0 & 0xffffu), float(p0 >> 16), float(p1 & 0xffffu), float(p1 >> 16)) - 32.0;
        const uint b = 8u * j + i;
        precise float s = d * signed_of(head[b >> 2], b & 3u);
        precise vec4 value = s * n;
        to[i] = value;
    }
}

#ifdef MATRIX
struct Raw { uvec4 h0, h1, q00, q01, q10, q11, z0, z1; uint d0, d1; };   // d0, d1: of two rows each

Raw fetch(uint at, uint l) {
    Raw r;
    const uint g = l >> 2;
    r.h0 = UNITS[at + g];
    r.h1 = UNITS[at + g + 8u];
    r.d0 = UNITS[at + 16u][g >> 1];
    r.d1 = UNITS[at + 17u][g >> 1];
    r.q00 = UNITS[at + 18u + l];
    r.q01 = UNITS[at + 50u + l];
    r.q10 = UNITS[at + 82u + l];
    r.q11 = UNITS[at + 114u + l];
    r.z0 = UNITS[at + 146u + l];
    r.z1 = UNITS[at + 178u + l];
    return r;
}

vec4 product(Raw raw, uint at, uint t) {
    vec4 sum = vec4(0.0);
    const uint mine = 16u * ((gl_LocalInvocationIndex >> 2) & 1u);
    const float a0 = unpackHalf2x16(raw.d0 >> mine).x, a1 = unpackHalf2x16(raw.d1 >> mine).x;
    const vec2 d0 = vec2(a0 * TINY), d1 = vec2(a1 * TINY);
    [[dont_unroll]] for (uint p = 0u; p < 4u; p++) {
        const uvec4 q0 = p < 2u ? raw.q00 : raw.q10, q1 = p < 2u ? raw.q01 : raw.q11;
        const uvec2 v0 = (p & 1u) == 0u ? q0.xy : q0.zw, v1 = (p & 1u) == 0u ? q1.xy : q1.zw;
        const uvec2 u0 = v0 >> 8, u1 = v1 >> 8;
        const uint z0 = word_of(raw.z0, p), z1 = word_of(raw.z1, p), s0 = word_of(raw.h0, p), s1 = word_of(raw.h1, p);
        const vec2 e0 = signed_scaled(s0, 0u, d0), f0 = signed_scaled(s0, 1u, d0 * 0.0625);
        const vec2 e1 = signed_scaled(s1, 0u, d1), f1 = signed_scaled(s1, 1u, d1 * 0.0625);
        const uint k = at + p * 64u;
        FragC C = FragC(0.0);
        MMA(C, (v0.x & 0x000f000fu) | (z0 & 0x00300030u), (u0.x & 0x000f000fu) | ((z0 >> 2) & 0x00300030u),
               (v1.x & 0x000f000fu) | (z1 & 0x00300030u), (u1.x & 0x000f000fu) | ((z1 >> 2) & 0x00300030u), k)
        ADD(sum, e0.x, e1.x, C)
        FragC D = FragC(0.0);
        MMA(D, (v0.y & 0x000f000fu) | ((z0 << 4) & 0x00300030u), (u0.y & 0x000f000fu) | ((z0 << 2) & 0x00300030u),
               (v1.y & 0x000f000fu) | ((z1 << 4) & 0x00300030u), (u1.y & 0x000f000fu) | ((z1 << 2) & 0x00300030u),
                   k + 16u)
        ADD(sum, e0.y, e1.y, D)
        FragC E = FragC(0.0);
        MMA(E, (v0.x & 0x00f000f0u) | (z0 & 0x03000300u), (u0.x & 0x00f000f0u) | ((z0 >> 2) & 0x03000300u),
               (v1.x & 0x00f000f0u) | (z1 & 0x03000300u), (u1.x & 0x00f000f0u) | ((z1 >> 2) & 0x03000300u), k + 32u)
        ADD(sum, f0.x, f1.x, E)
        FragC F = FragC(0.0);
        MMA(F, (v0.y & 0x00f000f0u) | ((z0 >> 4) & 0x03000300u), (u0.y & 0x00f000f0u) | ((z0 >> 6) & 0x03000300u),
               (v1.y & 0x00f000f0u) | ((z1 >> 4) & 0x03000300u), (u1.y & 0x00f000f0u) | ((z1 >> 6) & 0x03000300u),
                   k + 48u)
        ADD(sum, f0.y, f1.y, F)
    }
    // The 32 of q - 32, times the sums of x: blocks 2 t, 2 t + 1, 8 + 2 t and 9 + 2 t.
    const uint h = t & 1u;
    const uint m0 = signed_pair(t < 2u ? raw.h0.x : raw.h0.y, h), m1 = signed_pair(t < 2u ? raw.h0.z : raw.h0.w, h);
    const uint m2 = signed_pair(t < 2u ? raw.h1.x : raw.h1.y, h), m3 = signed_pair(t < 2u ? raw.h1.z : raw.h1.w, h);
    FragC M = FragC(0.0);
    MMA(M, m0, m1, m2, m3, at + 256u)
    MMA(M, m0, m1, m2, m3, at + 272u)
    ADD(sum, -32.0 * a0, -32.0 * a1, M)
    return sum;
}
#endif

#ifdef SHARES
#include "gemm_share.glsl"

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

// The integers of a share, two to a word: those of blocks 0 and 1 from bit 0, those of 2 and 3 from bit 4.
void share_words(Share r, out uvec4 low, out uvec4 high) {
    const uint v0 = r.q.x, v1 = r.q.y, u0 = v0 >> 8, u1 = v1 >> 8, z = r.z;
    low = uvec4((v0 & 0x000f000fu) | (z & 0x00300030u), (u0 & 0x000f000fu) | ((z >> 2) & 0x00300030u),
                (v1 & 0x000f000fu) | ((z << 4) & 0x00300030u), (u1 & 0x000f000fu) | ((z << 2) & 0x00300030u));
    high = uvec4((v0 & 0x00f000f0u) | (z & 0x03000300u), (u0 & 0x00f000f0u) | ((z >> 2) & 0x03000300u),
                 (v1 & 0x00f000f0u) | ((z >> 4) & 0x03000300u), (u1 & 0x00f000f0u) | ((z >> 6) & 0x03000300u));
}

void decode_share(Share r, uint kb, out uvec4 lo, out uvec4 hi) {
    uvec4 low, high;
    share_words(r, low, high);
    const uvec4 a = low | LOW, b = high | HIGH;
    const float d = unpackHalf2x16(r.d).x * WEIGHT_FACTOR;
    const float16_t s0 = float16_t(d * signed_of(r.scales, 0u)), s1 = float16_t(d * signed_of(r.scales, 1u));
    const float16_t s2 = float16_t(d * signed_of(r.scales, 2u)), s3 = float16_t(d * signed_of(r.scales, 3u));
    const float16_t x0 = float16_t(1056.0), x1 = float16_t(96.0);
    lo = uvec4(grow(a.x, x0, s0), grow(a.y, x0, s0), grow(a.z, x0, s1), grow(a.w, x0, s1));
    hi = uvec4(grow(b.x, x1, s2), grow(b.y, x1, s2), grow(b.z, x1, s3), grow(b.w, x1, s3));
}

void share_values(Share r, uint kb, out vec4 v[4]) {
    uvec4 low, high;
    share_words(r, low, high);
    high >>= 4;
    const float d = unpackHalf2x16(r.d).x * WEIGHT_FACTOR;
    v[0] = (d * signed_of(r.scales, 0u)) * (four(low.x, low.y) - 32.0);
    v[1] = (d * signed_of(r.scales, 1u)) * (four(low.z, low.w) - 32.0);
    v[2] = (d * signed_of(r.scales, 2u)) * (four(high.x, high.y) - 32.0);
    v[3] = (d * signed_of(r.scales, 3u)) * (four(high.z, high.w) - 32.0);
}
#endif

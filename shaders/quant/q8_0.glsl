// quant/q8_0.glsl: Q8_0.
//
// units 0 .. 15           row r: eight halves d, one for 32 columns each
// 16 + 64 m + 32 e + l    lane l, row (l >> 2) + 8 e: word i has block 4 m + i, a byte a weight, plus 128
// layout: q8_0 272 @product

void unpack(uint at, uint r, uint j, uint t, out vec4 to[8]) {
    const uint e = r >> 3, l = (r & 7u) * 4u + t;
    const uvec4 head = UNITS[at + r];
    for (uint i = 0u; i < 8u; i++) {
        const uint v = UNITS[at + 16u + 64u * (2u * j + (i >> 2)) + 32u * e + l][i & 3u], b = 4u * j + (i >> 1);
        const vec2 dd = unpackHalf2x16(head[b >> 1]);
        const vec4 n = vec4(float(v & 255u), float((v >> 16) & 255u), float((v >> 8) & 255u), float(v >> 24)) - 128.0;
        precise vec4 value = ((b & 1u) == 0u ? dd.x : dd.y) * n;
        to[i] = value;
    }
}

#ifdef MATRIX
struct Raw { uvec4 h0, h1, q0[4], q1[4]; };

Raw fetch(uint at, uint l) {
    Raw r;
    r.h0 = UNITS[at + (l >> 2)];
    r.h1 = UNITS[at + (l >> 2) + 8u];
    [[unroll]] for (uint m = 0u; m < 4u; m++) {
        r.q0[m] = UNITS[at + 16u + 64u * m + l];
        r.q1[m] = UNITS[at + 48u + 64u * m + l];
    }
    return r;
}

vec4 product(Raw raw, uint at, uint t) {
    vec4 sum = vec4(0.0);
    [[unroll]] for (uint m = 0u; m < 4u; m++) {
        const uvec4 v0 = raw.q0[m], v1 = raw.q1[m];
        const vec2 e0 = unpackHalf2x16(raw.h0[m]) * TINY, e1 = unpackHalf2x16(raw.h1[m]) * TINY;
        const uint k = at + 64u * m;
        FragC C = FragC(0.0);
        MMA(C, v0.x & 0x00ff00ffu, (v0.x >> 8) & 0x00ff00ffu, v1.x & 0x00ff00ffu, (v1.x >> 8) & 0x00ff00ffu, k)
        MMA(C, v0.y & 0x00ff00ffu, (v0.y >> 8) & 0x00ff00ffu, v1.y & 0x00ff00ffu, (v1.y >> 8) & 0x00ff00ffu, k + 16u)
        ADD(sum, e0.x, e1.x, C)
        FragC D = FragC(0.0);
        MMA(D, v0.z & 0x00ff00ffu, (v0.z >> 8) & 0x00ff00ffu, v1.z & 0x00ff00ffu, (v1.z >> 8) & 0x00ff00ffu, k + 32u)
        MMA(D, v0.w & 0x00ff00ffu, (v0.w >> 8) & 0x00ff00ffu, v1.w & 0x00ff00ffu, (v1.w >> 8) & 0x00ff00ffu, k + 48u)
        ADD(sum, e0.y, e1.y, D)
    }
    FragC M = FragC(0.0);
    const uint m0 = half_twice(raw.h0.xy, t), m1 = half_twice(raw.h0.zw, t), m2 = half_twice(raw.h1.xy, t),
        m3 = half_twice(raw.h1.zw, t);
    MMA(M, m0, m1, m2, m3, at + 256u)
    MMA(M, m0, m1, m2, m3, at + 272u)
    ADD(sum, -128.0, -128.0, M)
    return sum;
}
#endif

#ifdef SHARES
#include "gemm_share.glsl"

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

void share_values(Share r, uint kb, out vec4 v[4]) {
    const vec2 d = unpackHalf2x16(r.d) * WEIGHT_FACTOR;
    const uvec4 a = r.q & 0x00ff00ffu, b = (r.q >> 8) & 0x00ff00ffu;
    [[unroll]] for (uint i = 0u; i < 4u; i++) v[i] = (i < 2u ? d.x : d.y) * (four(a[i], b[i]) - 128.0);
}
#endif

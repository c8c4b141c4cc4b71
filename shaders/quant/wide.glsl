// quant/wide.glsl: types without a layout of their own (Q4_1, Q5_1), widened to bytes with a float scale
// and a float minimum for 16 columns each: weight = scale * byte - minimum.
//
// 8 r + i                  row r: scales of blocks 4 i .. 4 i + 3; from i = 4 on minimums, of blocks 4 (i - 4) and on
// 128 + 64 m + 32 e + l    lane l, row (l >> 2) + 8 e: word i has block 4 m + i, a byte a weight, plus 128
// layout: wide 384

void unpack(uint at, uint r, uint j, uint t, out vec4 to[8]) {
    const uint e = r >> 3, l = (r & 7u) * 4u + t;
    for (uint i = 0u; i < 8u; i++) {
        const uint v = UNITS[at + 128u + 64u * (2u * j + (i >> 2)) + 32u * e + l][i & 3u],
            u = at + 8u * r + 2u * j + (i >> 2);
        const float d = uintBitsToFloat(UNITS[u][i & 3u]), m = uintBitsToFloat(UNITS[u + 4u][i & 3u]);
        const vec4 n = vec4(float(v & 255u), float((v >> 16) & 255u), float((v >> 8) & 255u), float(v >> 24)) - 128.0;
        precise vec4 product = d * n;
        precise vec4 value = product - m;
        to[i] = value;
    }
}

#ifdef SHARES
#include "gemm_share.glsl"

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

void share_values(Share r, uint kb, out vec4 v[4]) {
    const vec4 d = uintBitsToFloat(r.d) * WEIGHT_FACTOR, m = uintBitsToFloat(r.m) * WEIGHT_FACTOR;
    const uvec4 a = r.q & 0x00ff00ffu, b = (r.q >> 8) & 0x00ff00ffu;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        precise vec4 product = d[i] * (four(a[i], b[i]) - 128.0);
        v[i] = product - m[i];
    }
}
#endif

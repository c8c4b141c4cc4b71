// quant/f32.glsl: F32.
//
// 64 m + 32 e + l    lane l, row (l >> 2) + 8 e: block m
// layout: f32 1024

void unpack(uint at, uint r, uint j, uint t, out vec4 to[8]) {
    const uint e = r >> 3, l = (r & 7u) * 4u + t;
    for (uint i = 0u; i < 8u; i++) to[i] = uintBitsToFloat(UNITS[at + 64u * (8u * j + i) + 32u * e + l]);
}

#ifdef SHARES
#include "gemm_share.glsl"

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

void share_values(Share r, uint kb, out vec4 v[4]) {
    v[0] = r.a * WEIGHT_FACTOR;
    v[1] = r.b * WEIGHT_FACTOR;
    v[2] = r.c * WEIGHT_FACTOR;
    v[3] = r.d * WEIGHT_FACTOR;
}
#endif

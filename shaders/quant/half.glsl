// quant/half.glsl: F16 and BF16.
//
// 64 m + 32 e + l    lane l, row (l >> 2) + 8 e: words x and y have block 2 m, z and w block 2 m + 1; columns in order
// layout: f16 512 @product -DWEIGHT_FACTOR=1.0
// layout: bf16 512 -DBF16

void unpack(uint at, uint r, uint j, uint t, out vec4 to[8]) {
    const uint e = r >> 3, l = (r & 7u) * 4u + t;
    for (uint i = 0u; i < 8u; i++) {
        const uvec4 q = UNITS[at + 64u * (4u * j + (i >> 1)) + 32u * e + l];
        const uvec2 v = (i & 1u) == 0u ? q.xy : q.zw;
#ifdef BF16
        to[i] = uintBitsToFloat(uvec4(v.x << 16, v.x & 0xffff0000u, v.y << 16, v.y & 0xffff0000u));
#else
        to[i] = vec4(unpackHalf2x16(v.x), unpackHalf2x16(v.y));
#endif
    }
}

#ifdef MATRIX
struct Raw { uvec4 q0[8], q1[8]; };

Raw fetch(uint at, uint l) {
    Raw r;
    [[unroll]] for (uint m = 0u; m < 8u; m++) {
        r.q0[m] = UNITS[at + 64u * m + l];
        r.q1[m] = UNITS[at + 64u * m + 32u + l];
    }
    return r;
}

vec4 product(Raw raw, uint at, uint t) {
    vec4 sum = vec4(0.0);
    [[unroll]] for (uint m = 0u; m < 8u; m += 2u) {
        FragC C = FragC(0.0);
        MMA(C, raw.q0[m].x, raw.q0[m].y, raw.q1[m].x, raw.q1[m].y, at + 32u * m)
        MMA(C, raw.q0[m].z, raw.q0[m].w, raw.q1[m].z, raw.q1[m].w, at + 32u * m + 16u)
        MMA(C, raw.q0[m + 1u].x, raw.q0[m + 1u].y, raw.q1[m + 1u].x, raw.q1[m + 1u].y, at + 32u * m + 32u)
        MMA(C, raw.q0[m + 1u].z, raw.q0[m + 1u].w, raw.q1[m + 1u].z, raw.q1[m + 1u].w, at + 32u * m + 48u)
        ADD(sum, 1.0, 1.0, C)
    }
    return sum;
}
#endif

#ifdef SHARES
#include "gemm_share.glsl"

struct Share { uvec4 a, b; };

Share fetch_share(uint at, uint l, uint e, uint kb) {
    Share r;
    r.a = w[at + 128u * kb + 32u * e + l];
    r.b = w[at + 128u * kb + 64u + 32u * e + l];
    return r;
}

#ifdef BF16
uint two_halves(uint v) { return two_halves(uintBitsToFloat(v << 16), uintBitsToFloat(v & 0xffff0000u)); }

void decode_share(Share r, uint kb, out uvec4 lo, out uvec4 hi) {
    lo = uvec4(two_halves(r.a.x), two_halves(r.a.y), two_halves(r.a.z), two_halves(r.a.w));
    hi = uvec4(two_halves(r.b.x), two_halves(r.b.y), two_halves(r.b.z), two_halves(r.b.w));
}

vec4 four_values(uvec2 v) {
    return uintBitsToFloat(uvec4(v.x << 16, v.x & 0xffff0000u, v.y << 16, v.y & 0xffff0000u)) * WEIGHT_FACTOR;
}
#else
void decode_share(Share r, uint kb, out uvec4 lo, out uvec4 hi) {
    lo = r.a;
    hi = r.b;
}

vec4 four_values(uvec2 v) { return vec4(unpackHalf2x16(v.x), unpackHalf2x16(v.y)); }
#endif

void share_values(Share r, uint kb, out vec4 v[4]) {
    v[0] = four_values(r.a.xy);
    v[1] = four_values(r.a.zw);
    v[2] = four_values(r.b.xy);
    v[3] = four_values(r.b.zw);
}
#endif

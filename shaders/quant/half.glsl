// quant/half.glsl: F16 and BF16.
//
// 64m + 32e + l  lane l, row (l >> 2) + 8e: words xy: block 2m, words zw: block 2m + 1; columns in order
#define TILE 512u

void unpack(uint at, uint r, uint j, uint t, out vec4 to[8]) {
    const uint e = r >> 3, l = (r & 7u) * 4u + t;
    for (uint i = 0u; i < 8u; i++) {
        const uvec4 q = UNITS[at + 64u * (4u * j + (i >> 1)) + 32u * e + l];
        const uvec2 v = (i & 1u) == 0u ? q.xy : q.zw;
#ifdef TYPE_BF16
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

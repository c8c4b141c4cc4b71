// quant/low_k.glsl: Q2_K and Q3_K: two bits a weight, and a third one with THIRD; a scale for 16 columns.
//
// units 0 .. 15           row r: sixteen bytes (block_scales.glsl). THIRD: signed scales; else scales in the low
//                         nibbles, minimums in the high ones
// THIRD                   units 16, 17: sixteen halves d, one for each row
//                         18 + 16 e + (l >> 1): lane l, row (l >> 2) + 8 e: two words at byte 8 (l & 1). Word m has the
//                         third bits of blocks 8 m + 4 c + b (c = 0, 1; b = 0 .. 3): in its halves bit 8 c + 2 b for
//                         columns 0 and 1, the next one for columns 2 and 3
// else                    units 16 .. 19: a word for each row, half d and half dmin
// CODES + 32 e + l        lane l, row (l >> 2) + 8 e: word i has blocks 4 i + b: in its halves bits 2 b and 2 b + 1 for
//                         columns 0 and 1, the same 8 bits higher for columns 2 and 3
// layout: q2_k 84 @product
// layout: q3_k 114 @product -DTHIRD
#ifdef THIRD
#define CODES 50u
#else
#define CODES 20u
#endif

#include "block_scales.glsl"

// Columns 0 and 1, or 2 and 3, of block b, shifted left by 2 b. v: the word of codes, shifted right by 8 for columns 2
// and 3; z: that of the third bits, shifted right by 8 c.
uint low_bits(uint v, uint b) { return v & (0x00030003u << (2u * b)); }
#ifdef THIRD
uint first_two(uint v, uint z, uint b) { return low_bits(v, b) | ((z << 2) & (0x00040004u << (2u * b))); }
uint last_two(uint v, uint z, uint b) { return low_bits(v, b) | ((z << 1) & (0x00040004u << (2u * b))); }
#else
uint first_two(uint v, uint z, uint b) { return low_bits(v, b); }
uint last_two(uint v, uint z, uint b) { return low_bits(v, b); }
#endif

// The four columns of block b as floats.
vec4 block_codes(uint v, uint z, uint b) {
    const uint p = first_two(v, z, b) >> (2u * b), q = last_two(v >> 8, z, b) >> (2u * b);
    return vec4(float(p & 0xffffu), float(p >> 16), float(q & 0xffffu), float(q >> 16));
}

void unpack(uint at, uint r, uint j, uint t, out vec4 to[8]) {
    const uint e = r >> 3, l = (r & 7u) * 4u + t;
    const uvec4 head = UNITS[at + r], q = UNITS[at + CODES + 32u * e + l];
#ifdef THIRD
    const uint bits = UNITS[at + 18u + 16u * e + (l >> 1)][2u * (l & 1u) + j];
    const vec2 dd = unpackHalf2x16(UNITS[at + 16u + e][(r & 7u) >> 1]);
    const float d = (r & 1u) == 0u ? dd.x : dd.y;
#else
    const uint bits = 0u;
    const vec2 d = unpackHalf2x16(UNITS[at + 16u + (r >> 2)][r & 3u]);
#endif
    for (uint i = 0u; i < 8u; i++) {
        const uint c = i >> 2, b = i & 3u, v = q[2u * j + c], s = head[2u * j + c];
        const vec4 n = block_codes(v, bits >> (8u * c), b);
#ifdef THIRD
        precise float scale = d * signed_of(s, b);
        precise vec4 value = scale * (n - 4.0);
#else
        const uint both = byte_of(s, b);
        const float scale = d.x * float(both & 15u), m = d.y * float(both >> 4);
        precise vec4 product = scale * n;
        precise vec4 value = product - m;
#endif
        to[i] = value;
    }
}

#ifdef MATRIX
struct Raw {
    uvec4 h0, h1, q0, q1;
#ifdef THIRD
    uvec2 z0, z1;
    vec2 d;
#else
    uint d0, d1;
#endif
};

Raw fetch(uint at, uint l) {
    Raw r;
    const uint g = l >> 2;
    r.h0 = UNITS[at + g];
    r.h1 = UNITS[at + g + 8u];
#ifdef THIRD
    const uint d0 = UNITS[at + 16u][g >> 1], d1 = UNITS[at + 17u][g >> 1];
    r.d = vec2(unpackHalf2x16(d0 >> (16u * (g & 1u))).x, unpackHalf2x16(d1 >> (16u * (g & 1u))).x);
    const uvec4 a = UNITS[at + 18u + (l >> 1)], b = UNITS[at + 34u + (l >> 1)];
    r.z0 = (l & 1u) == 0u ? a.xy : a.zw;
    r.z1 = (l & 1u) == 0u ? b.xy : b.zw;
#else
    r.d0 = UNITS[at + 16u + (g >> 2)][g & 3u];
    r.d1 = UNITS[at + 18u + (g >> 2)][g & 3u];
#endif
    r.q0 = UNITS[at + CODES + l];
    r.q1 = UNITS[at + CODES + 32u + l];
    return r;
}

// The scales of two blocks times d, and as halves what their sums of x are multiplied by: the scales, because the codes
// have a zero point, or the minimums.
#ifdef THIRD
vec2 scaled(uint v, uint h, vec2 d) { return signed_scaled(v, h, d); }
uint sum_pair(uint v, uint h) { return signed_pair(v, h); }
#else
vec2 scaled(uint v, uint h, vec2 d) { return unpackHalf2x16(two_bytes(v, h) & 0x000f000fu) * (d * TINY); }
uint sum_pair(uint v, uint h) { return (two_bytes(v, h) >> 4) & 0x000f000fu; }
#endif

vec4 product(Raw raw, uint at, uint t) {
    vec4 sum = vec4(0.0);
#ifdef THIRD
    const float d0 = raw.d.x * TINY, d1 = raw.d.y * TINY;
#else
    const vec2 both0 = unpackHalf2x16(raw.d0) * TINY, both1 = unpackHalf2x16(raw.d1) * TINY;
    const float d0 = both0.x, d1 = both1.x;
#endif
    [[dont_unroll]] for (uint p = 0u; p < 4u; p++) {
        const uint v0 = word_of(raw.q0, p), v1 = word_of(raw.q1, p), u0 = v0 >> 8, u1 = v1 >> 8;
        const uint s0 = word_of(raw.h0, p), s1 = word_of(raw.h1, p), k = at + p * 64u;
#ifdef THIRD
        const uint z0 = (p < 2u ? raw.z0.x : raw.z0.y) >> (8u * (p & 1u));
        const uint z1 = (p < 2u ? raw.z1.x : raw.z1.y) >> (8u * (p & 1u));
#else
        const uint z0 = 0u, z1 = 0u;
#endif
        [[unroll]] for (uint h = 0u; h < 2u; h++) {
            // The codes of block b stand 2 b bits too high.
            const vec2 unit = h == 0u ? vec2(1.0, 0.25) : vec2(0.0625, 0.015625);
            const vec2 e0 = scaled(s0, h, d0 * unit), e1 = scaled(s1, h, d1 * unit);
            const uint b = 2u * h, c = b + 1u;
            FragC C = FragC(0.0);
            MMA(C, first_two(v0, z0, b), last_two(u0, z0, b), first_two(v1, z1, b), last_two(u1, z1, b), k + 16u * b)
            ADD(sum, e0.x, e1.x, C)
            FragC D = FragC(0.0);
            MMA(D, first_two(v0, z0, c), last_two(u0, z0, c), first_two(v1, z1, c), last_two(u1, z1, c), k + 16u * c)
            ADD(sum, e0.y, e1.y, D)
        }
    }
    // The zero point or the minimums, times the sums of x: blocks 2 t, 2 t + 1, 8 + 2 t and 9 + 2 t.
    const uint h = t & 1u;
    const uint m0 = sum_pair(t < 2u ? raw.h0.x : raw.h0.y, h), m1 = sum_pair(t < 2u ? raw.h0.z : raw.h0.w, h);
    const uint m2 = sum_pair(t < 2u ? raw.h1.x : raw.h1.y, h), m3 = sum_pair(t < 2u ? raw.h1.z : raw.h1.w, h);
    FragC M = FragC(0.0);
    MMA(M, m0, m1, m2, m3, at + 256u)
    MMA(M, m0, m1, m2, m3, at + 272u)
#ifdef THIRD
    ADD(sum, -4.0 * raw.d.x, -4.0 * raw.d.y, M)
#else
    ADD(sum, -both0.y, -both1.y, M)
#endif
    return sum;
}
#endif

#ifdef SHARES
#include "gemm_share.glsl"

struct Share {
    uint q, scales, d;
#ifdef THIRD
    uint z;
#endif
};

Share fetch_share(uint at, uint l, uint e, uint kb) {
    Share r;
    const uint row = (l >> 2) + 8u * e;
    r.q = w1[(at + CODES + 32u * e + l) * 4u + kb];
    r.scales = w1[(at + row) * 4u + kb];
#ifdef THIRD
    r.z = w1[(at + 18u + 16u * e + (l >> 1)) * 4u + 2u * (l & 1u) + (kb >> 1)] >> (8u * (kb & 1u));
    r.d = w1[(at + 16u) * 4u + (row >> 1)] >> (16u * (row & 1u));
#else
    r.d = w1[(at + 16u) * 4u + row];
#endif
    return r;
}

// Scale and minimum of block b, multiplied by WEIGHT_FACTOR; THIRD has no minimum.
vec2 share_scale(Share r, uint b) {
    const vec2 d = unpackHalf2x16(r.d) * WEIGHT_FACTOR;
#ifdef THIRD
    return vec2(d.x * signed_of(r.scales, b), 0.0);
#else
    const uint both = byte_of(r.scales, b);
    return d * vec2(float(both & 15u), float(both >> 4));
#endif
}

uint third_bits(Share r) {
#ifdef THIRD
    return r.z;
#else
    return 0u;
#endif
}

// Block b as halves: its codes below the exponent of `base`, of which bit 2 b is worth 1.
uvec2 decode_block(Share r, uint b, uint bits, float base) {
    const uint z = third_bits(r), p = first_two(r.q, z, b) | bits, q = last_two(r.q >> 8, z, b) | bits;
    const vec2 s = share_scale(r, b);
#ifdef THIRD
    const float16_t zero = float16_t(base + 4.0), scale = float16_t(s.x);
    return uvec2(grow(p, zero, scale), grow(q, zero, scale));
#else
    // s n - m = s (n - 2) - (m - 2 s): smaller operands, hence less rounding.
    const float16_t zero = float16_t(base + 2.0), scale = float16_t(s.x), m = float16_t(s.y - 2.0 * s.x);
    return uvec2(grow(p, zero, scale, m), grow(q, zero, scale, m));
#endif
}

void decode_share(Share r, uint kb, out uvec4 lo, out uvec4 hi) {
    lo = uvec4(decode_block(r, 0u, 0x64006400u, 1024.0), decode_block(r, 1u, 0x5c005c00u, 256.0));
    hi = uvec4(decode_block(r, 2u, 0x54005400u, 64.0), decode_block(r, 3u, 0x4c004c00u, 16.0));
}

void share_values(Share r, uint kb, out vec4 v[4]) {
    [[unroll]] for (uint b = 0u; b < 4u; b++) {
        const vec4 n = block_codes(r.q, third_bits(r), b);
        const vec2 s = share_scale(r, b);
#ifdef THIRD
        v[b] = s.x * (n - 4.0);
#else
        precise vec4 product = s.x * n;
        v[b] = product - s.y;
#endif
    }
}
#endif

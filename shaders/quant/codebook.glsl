// quant/codebook.glsl: IQ4_NL, IQ4_XS and MXFP4: four-bit codes that stand for the 16 values of a codebook.
//
// weight = scale * codebook[code], with a scale for 32 columns (g = 0 .. 7 of a tile)
// IQ4_NL  units 0 .. 15    row r: eight halves, the scales
// IQ4_XS  units 0 .. 7     row r: eight signed bytes at byte 8 r; units 8, 9: sixteen halves d, one for each row.
//                          scale g = d * byte g
// MXFP4   units 0 .. 7     row r: eight bytes e at byte 8 r; scale g = 2^(e - 128)
// CODES + 64 j + 32 e + l  lane l, row (l >> 2) + 8 e, columns from 128 j on: word i has the two blocks of scale
//                          4 j + i: in its low half columns 0 and 2 of the first block and 0 and 2 of the second, in
//                          its high half columns 1 and 3 of each
// layout: iq4_nl 144 @product -DHALVES
// layout: iq4_xs 138 @product -DBYTES
// layout: mxfp4 136 @product -DPOWER
#ifdef HALVES
#define CODES 16u
#elif defined BYTES
#define CODES 10u
#else
#define CODES 8u
#endif

// Entry n of the codebook (base/number.cpp), four to a word.
float code_value(uint n) {
#ifdef POWER
    const uint w = (n & 4u) == 0u ? 0x03020100u : 0x0c080604u;
    const float v = float((w >> (8u * (n & 3u))) & 255u);
    return n < 8u ? v : -v;
#else
    const uint w = n < 8u ? (n < 4u ? 0xbfad9881u : 0xf6eaddcfu) : (n < 12u ? 0x26190d01u : 0x71594535u);
    return float(int(w << (24u - 8u * (n & 3u))) >> 24);
#endif
}

float signed_byte(uint v, uint i) { return float(int(v << (24u - 8u * i)) >> 24); }

#ifdef POWER
// 2^(e - 128) of byte i. A float32 below 2^-126 is zero on many devices, and so it is here.
float power(uint v, uint i) { return uintBitsToFloat((max((v >> (8u * i)) & 255u, 1u) - 1u) << 23); }
#endif

#ifndef MATRIX
// The codebook as halves, in the low and in the high half of a word: each entry lies in a bank of its own, so that 32
// invocations read it at once.
#define HAS_TABLE
shared uint entry_low[16];
shared uint entry_high[16];

void open_layout(uint me) {
    for (uint i = me; i < 16u; i += gl_WorkGroupSize.x) {
        entry_low[i] = packHalf2x16(vec2(code_value(i), 0.0));
        entry_high[i] = packHalf2x16(vec2(0.0, code_value(i)));
    }
    barrier();
}

// Values of the codes at bits `at` and at + 16.
uint two_codes(uint v, uint at) { return entry_low[(v >> at) & 15u] | entry_high[(v >> (at + 16u)) & 15u]; }

// Values of the first block of a word, or of the second if it is shifted right by 8.
vec4 four_codes(uint v) { return vec4(unpackHalf2x16(two_codes(v, 0u)), unpackHalf2x16(two_codes(v, 4u))); }

void unpack(uint at, uint r, uint j, uint t, out vec4 to[8]) {
    const uint e = r >> 3, l = (r & 7u) * 4u + t;
    const uvec4 q = UNITS[at + CODES + 64u * j + 32u * e + l];
#ifdef HALVES
    const uvec4 head = UNITS[at + r];
    const uvec2 h = j == 0u ? head.xy : head.zw;
    const vec4 s = vec4(unpackHalf2x16(h.x), unpackHalf2x16(h.y));
#else
    const uint head = UNITS[at + (r >> 1)][2u * (r & 1u) + j];
#ifdef BYTES
    const vec2 dd = unpackHalf2x16(UNITS[at + 8u + e][(r & 7u) >> 1]);
    precise vec4 s = ((r & 1u) == 0u ? dd.x : dd.y)
        * vec4(signed_byte(head, 0u), signed_byte(head, 1u), signed_byte(head, 2u), signed_byte(head, 3u));
#else
    const vec4 s = vec4(power(head, 0u), power(head, 1u), power(head, 2u), power(head, 3u));
#endif
#endif
    for (uint i = 0u; i < 8u; i++) {
        precise vec4 value = s[i >> 1] * four_codes(q[i >> 1] >> (8u * (i & 1u)));
        to[i] = value;
    }
}
#endif

#ifdef MATRIX
struct Raw {
    uvec4 q00, q01, q10, q11;
#ifdef HALVES
    uvec4 h0, h1;
#else
    uvec2 h0, h1;
#endif
#ifdef BYTES
    vec2 d;
#endif
};

Raw fetch(uint at, uint l) {
    Raw r;
    const uint g = l >> 2;
#ifdef HALVES
    r.h0 = UNITS[at + g];
    r.h1 = UNITS[at + g + 8u];
#else
    const uvec4 a = UNITS[at + (g >> 1)], b = UNITS[at + 4u + (g >> 1)];
    r.h0 = (g & 1u) == 0u ? a.xy : a.zw;
    r.h1 = (g & 1u) == 0u ? b.xy : b.zw;
#endif
#ifdef BYTES
    const uint d0 = UNITS[at + 8u][g >> 1], d1 = UNITS[at + 9u][g >> 1];
    r.d = vec2(unpackHalf2x16(d0 >> (16u * (g & 1u))).x, unpackHalf2x16(d1 >> (16u * (g & 1u))).x);
#endif
    r.q00 = UNITS[at + CODES + l];
    r.q01 = UNITS[at + CODES + 32u + l];
    r.q10 = UNITS[at + CODES + 64u + l];
    r.q11 = UNITS[at + CODES + 96u + l];
    return r;
}

#ifdef POWER
// Values of the codes at bits `at` and at + 16, times 2^-15: the exponent bits of E2M1 become the lowest exponent bits
// of a half, and its mantissa bit the highest mantissa bit.
uint two_codes(uint v, uint at) {
    const uint magnitude = at < 9u ? v << (9u - at) : v >> (at - 9u);
    return (magnitude & 0x0e000e00u) | ((v << (12u - at)) & 0x80008000u);
}
const float UNIT = 32768.0;
#else
// Lane n of 16 holds entry n of the codebook as a half, in the low and in the high half of a word.
uint entry_low, entry_high;
uint two_codes(uint v, uint at) {
    return subgroupShuffle(entry_low, (v >> at) & 15u) | subgroupShuffle(entry_high, (v >> (at + 16u)) & 15u);
}
const float UNIT = 1.0;
#endif

// Scales 2 p and 2 p + 1 of a row.
#ifdef HALVES
vec2 scale_two(uvec4 h, uint p) { return unpackHalf2x16(word_of(h, p)); }
#else
vec2 scale_two(uvec2 h, uint p) {
    const uint v = (p < 2u ? h.x : h.y) >> (16u * (p & 1u));
#ifdef BYTES
    return vec2(signed_byte(v, 0u), signed_byte(v, 1u));
#else
    return vec2(power(v, 0u), power(v, 1u));
#endif
}
#endif

vec4 product(Raw raw, uint at, uint t) {
    vec4 sum = vec4(0.0);
#ifndef POWER
    entry_low = packHalf2x16(vec2(code_value(gl_SubgroupInvocationID & 15u), 0.0));
    entry_high = entry_low << 16;
#endif
    [[dont_unroll]] for (uint p = 0u; p < 4u; p++) {
        const uvec4 q0 = p < 2u ? raw.q00 : raw.q10, q1 = p < 2u ? raw.q01 : raw.q11;
        const uvec2 v0 = (p & 1u) == 0u ? q0.xy : q0.zw, v1 = (p & 1u) == 0u ? q1.xy : q1.zw;
        vec2 e0 = scale_two(raw.h0, p) * UNIT, e1 = scale_two(raw.h1, p) * UNIT;
#ifdef BYTES
        e0 *= raw.d.x;
        e1 *= raw.d.y;
#endif
        const uint k = at + p * 64u;
        FragC C = FragC(0.0);
        MMA(C, two_codes(v0.x, 0u), two_codes(v0.x, 4u), two_codes(v1.x, 0u), two_codes(v1.x, 4u), k)
        MMA(C, two_codes(v0.x, 8u), two_codes(v0.x, 12u), two_codes(v1.x, 8u), two_codes(v1.x, 12u), k + 16u)
        ADD(sum, e0.x, e1.x, C)
        FragC D = FragC(0.0);
        MMA(D, two_codes(v0.y, 0u), two_codes(v0.y, 4u), two_codes(v1.y, 0u), two_codes(v1.y, 4u), k + 32u)
        MMA(D, two_codes(v0.y, 8u), two_codes(v0.y, 12u), two_codes(v1.y, 8u), two_codes(v1.y, 12u), k + 48u)
        ADD(sum, e0.y, e1.y, D)
    }
    return sum;
}
#endif

#ifdef SHARES
#include "gemm_share.glsl"

struct Share {
    uvec2 q;
    uint head;
#ifdef BYTES
    uint d;
#endif
};

Share fetch_share(uint at, uint l, uint e, uint kb) {
    Share r;
    const uint row = (l >> 2) + 8u * e;
    r.q = w2[(at + CODES + 64u * (kb >> 1) + 32u * e + l) * 2u + (kb & 1u)];
#ifdef HALVES
    r.head = w1[(at + row) * 4u + kb];
#else
    r.head = w1[at * 4u + 2u * row + (kb >> 1)] >> (16u * (kb & 1u));
#endif
#ifdef BYTES
    r.d = w1[(at + 8u) * 4u + (row >> 1)] >> (16u * (row & 1u));
#endif
    return r;
}

// The scales of its first two and its last two blocks, multiplied by WEIGHT_FACTOR.
vec2 share_scales(Share r) {
#ifdef HALVES
    return unpackHalf2x16(r.head) * WEIGHT_FACTOR;
#elif defined BYTES
    return unpackHalf2x16(r.d).x * WEIGHT_FACTOR * vec2(signed_byte(r.head, 0u), signed_byte(r.head, 1u));
#else
    return vec2(power(r.head, 0u), power(r.head, 1u)) * WEIGHT_FACTOR;
#endif
}

// The largest scale: a half, as are its products with all entries of the codebook.
#ifdef POWER
const float SCALE_MAX = 65472.0 / 12.0;
#else
const float SCALE_MAX = 65504.0 / 128.0;
#endif

uint two_values(uint v, uint at, float16_t s) { return packFloat2x16(unpackFloat2x16(two_codes(v, at)) * s); }

void decode_share(Share r, uint kb, out uvec4 lo, out uvec4 hi) {
    const vec2 s = clamp(share_scales(r), vec2(-SCALE_MAX), vec2(SCALE_MAX));
    const float16_t s0 = float16_t(s.x), s1 = float16_t(s.y);
    lo = uvec4(two_values(r.q.x, 0u, s0), two_values(r.q.x, 4u, s0), two_values(r.q.x, 8u, s0),
               two_values(r.q.x, 12u, s0));
    hi = uvec4(two_values(r.q.y, 0u, s1), two_values(r.q.y, 4u, s1), two_values(r.q.y, 8u, s1),
               two_values(r.q.y, 12u, s1));
}

void share_values(Share r, uint kb, out vec4 v[4]) {
    const vec2 s = share_scales(r);
    v[0] = s.x * four_codes(r.q.x);
    v[1] = s.x * four_codes(r.q.x >> 8);
    v[2] = s.y * four_codes(r.q.y);
    v[3] = s.y * four_codes(r.q.y >> 8);
}
#endif

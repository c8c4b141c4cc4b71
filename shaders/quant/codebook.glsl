// quant/codebook.glsl: IQ4_NL, IQ4_XS, MXFP4 and NVFP4: four-bit codes that stand for the 16 values of a codebook.
//
// weight = scale * codebook[code], with a scale for 32 columns (g = 0 .. 7 of a tile); NVFP4: for 16 (g = 0 .. 15), and
//          times the matrix scale
// IQ4_NL  units 0 .. 15    row r: eight halves, the scales
// IQ4_XS  units 0 .. 7     row r: eight signed bytes at byte 8 r; units 8, 9: sixteen halves d, one for each row.
//                          scale g = d * byte g
// MXFP4   units 0 .. 7     row r: eight bytes e at byte 8 r; scale g = 2^(e - 128)
// NVFP4   units 0 .. 15    row r: sixteen bytes, unsigned E4M3 without NaN: scale g is half of what byte g says.
//                          unit 16: the matrix scale, float32, of rows 0 .. 7 and of rows 8 .. 15
// CODES + 64 j + 32 e + l  lane l, row (l >> 2) + 8 e, columns from 128 j on: word i has two blocks of 16 columns,
//                          8 j + 2 i and the next, which have one scale but in NVFP4: in its low half columns 0 and 2
//                          of the first block and 0 and 2 of the second, in its high half columns 1 and 3 of each
// layout: iq4_nl 144 @product -DHALVES
// layout: iq4_xs 138 @product -DBYTES
// layout: mxfp4 136 @product -DPOWER -DE2M1
// layout: nvfp4 145 @product -DE4M3 -DE2M1
#ifdef HALVES
#define CODES 16u
#elif defined BYTES
#define CODES 10u
#elif defined E4M3
#define CODES 17u
#else
#define CODES 8u
#endif

// Entry n of the codebook (base/number.cpp), four to a word.
float code_value(uint n) {
#ifdef E2M1
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

#ifdef E4M3
// The scales of four bytes, divided by SCALE_UNIT. Exponent and mantissa become the lowest exponent bits and the
// highest mantissa bits of a half, which then is 2^-8 times the number; subnormals, too.
const float SCALE_UNIT = 128.0;
vec4 four_scales(uint v) {
    return vec4(unpackHalf2x16(((v << 7) & 0x3f80u) | ((v << 15) & 0x3f800000u)),
                unpackHalf2x16(((v >> 9) & 0x3f80u) | ((v >> 1) & 0x3f800000u)));
}
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
#ifdef E4M3
    const uvec4 head = UNITS[at + r];
    const float whole = uintBitsToFloat(UNITS[at + 16u][e]);
    const vec4 low = four_scales(j == 0u ? head.x : head.z) * SCALE_UNIT,
               high = four_scales(j == 0u ? head.y : head.w) * SCALE_UNIT;
    for (uint i = 0u; i < 8u; i++) {
        precise vec4 value = (i < 4u ? low : high)[i & 3u] * four_codes(q[i >> 1] >> (8u * (i & 1u)));
        precise vec4 scaled = value * whole;
        to[i] = scaled;
    }
#else
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
#endif
}
#endif

#ifdef MATRIX
struct Raw {
    uvec4 q00, q01, q10, q11;
#if defined HALVES || defined E4M3
    uvec4 h0, h1;
#else
    uvec2 h0, h1;
#endif
#if defined BYTES || defined E4M3
    vec2 d;
#endif
};

Raw fetch(uint at, uint l) {
    Raw r;
    const uint g = l >> 2;
#if defined HALVES || defined E4M3
    r.h0 = UNITS[at + g];
    r.h1 = UNITS[at + g + 8u];
#else
    const uvec4 a = UNITS[at + (g >> 1)], b = UNITS[at + 4u + (g >> 1)];
    r.h0 = (g & 1u) == 0u ? a.xy : a.zw;
    r.h1 = (g & 1u) == 0u ? b.xy : b.zw;
#endif
#ifdef E4M3
    const uvec4 whole = UNITS[at + 16u];
    r.d = vec2(uintBitsToFloat(whole.x), uintBitsToFloat(whole.y));
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

#ifdef E2M1
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

#ifdef E4M3
vec4 product(Raw raw, uint at, uint t) {
    vec4 sum = vec4(0.0);
    [[dont_unroll]] for (uint p = 0u; p < 4u; p++) {
        const uvec4 q0 = p < 2u ? raw.q00 : raw.q10, q1 = p < 2u ? raw.q01 : raw.q11;
        const uvec2 v0 = (p & 1u) == 0u ? q0.xy : q0.zw, v1 = (p & 1u) == 0u ? q1.xy : q1.zw;
        const vec4 e0 = four_scales(word_of(raw.h0, p)), e1 = four_scales(word_of(raw.h1, p));
        const uint k = at + p * 64u;
        FragC A = FragC(0.0);
        MMA(A, two_codes(v0.x, 0u), two_codes(v0.x, 4u), two_codes(v1.x, 0u), two_codes(v1.x, 4u), k)
        ADD(sum, e0.x, e1.x, A)
        FragC B = FragC(0.0);
        MMA(B, two_codes(v0.x, 8u), two_codes(v0.x, 12u), two_codes(v1.x, 8u), two_codes(v1.x, 12u), k + 16u)
        ADD(sum, e0.y, e1.y, B)
        FragC C = FragC(0.0);
        MMA(C, two_codes(v0.y, 0u), two_codes(v0.y, 4u), two_codes(v1.y, 0u), two_codes(v1.y, 4u), k + 32u)
        ADD(sum, e0.z, e1.z, C)
        FragC D = FragC(0.0);
        MMA(D, two_codes(v0.y, 8u), two_codes(v0.y, 12u), two_codes(v1.y, 8u), two_codes(v1.y, 12u), k + 48u)
        ADD(sum, e0.w, e1.w, D)
    }
    const vec2 whole = raw.d * (UNIT * SCALE_UNIT);
    return sum * vec4(whole.x, whole.x, whole.y, whole.y);
}
#else
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
#ifndef E2M1
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
#endif

#ifdef SHARES
#include "gemm_share.glsl"

struct Share {
    uvec2 q;
    uint head;
#if defined BYTES || defined E4M3
    uint d;
#endif
};

Share fetch_share(uint at, uint l, uint e, uint kb) {
    Share r;
    const uint row = (l >> 2) + 8u * e;
    r.q = w2[(at + CODES + 64u * (kb >> 1) + 32u * e + l) * 2u + (kb & 1u)];
#if defined HALVES || defined E4M3
    r.head = w1[(at + row) * 4u + kb];
#else
    r.head = w1[at * 4u + 2u * row + (kb >> 1)] >> (16u * (kb & 1u));
#endif
#ifdef BYTES
    r.d = w1[(at + 8u) * 4u + (row >> 1)] >> (16u * (row & 1u));
#elif defined E4M3
    r.d = w1[(at + 16u) * 4u + e];
#endif
    return r;
}

#ifdef E4M3
// The scales of its four blocks, multiplied by WEIGHT_FACTOR.
vec4 share_scales(Share r) { return four_scales(r.head) * (uintBitsToFloat(r.d) * SCALE_UNIT * WEIGHT_FACTOR); }
// The same in two factors, which share_values() multiplies by in the order of unpack().
vec4 block_scales(Share r) { return four_scales(r.head) * SCALE_UNIT; }
float matrix_scale(Share r) { return uintBitsToFloat(r.d) * WEIGHT_FACTOR; }
#else
// The scales of its first two and its last two blocks, each twice, multiplied by WEIGHT_FACTOR.
vec4 share_scales(Share r) {
#ifdef HALVES
    const vec2 s = unpackHalf2x16(r.head) * WEIGHT_FACTOR;
#elif defined BYTES
    const vec2 s = unpackHalf2x16(r.d).x * WEIGHT_FACTOR * vec2(signed_byte(r.head, 0u), signed_byte(r.head, 1u));
#else
    const vec2 s = vec2(power(r.head, 0u), power(r.head, 1u)) * WEIGHT_FACTOR;
#endif
    return vec4(s.x, s.x, s.y, s.y);
}
vec4 block_scales(Share r) { return share_scales(r); }
float matrix_scale(Share r) { return 1.0; }
#endif

// The largest scale: a half, as are its products with all entries of the codebook.
#ifdef E2M1
const float SCALE_MAX = 65472.0 / 12.0;
#else
const float SCALE_MAX = 65504.0 / 128.0;
#endif

uint two_values(uint v, uint at, float16_t s) { return packFloat2x16(unpackFloat2x16(two_codes(v, at)) * s); }

void decode_share(Share r, uint kb, out uvec4 lo, out uvec4 hi) {
    const vec4 s = clamp(share_scales(r), vec4(-SCALE_MAX), vec4(SCALE_MAX));
    const float16_t s0 = float16_t(s.x), s1 = float16_t(s.y), s2 = float16_t(s.z), s3 = float16_t(s.w);
    lo = uvec4(two_values(r.q.x, 0u, s0), two_values(r.q.x, 4u, s0), two_values(r.q.x, 8u, s1),
               two_values(r.q.x, 12u, s1));
    hi = uvec4(two_values(r.q.y, 0u, s2), two_values(r.q.y, 4u, s2), two_values(r.q.y, 8u, s3),
               two_values(r.q.y, 12u, s3));
}

void share_values(Share r, uint kb, out vec4 v[4]) {
    const vec4 s = block_scales(r);
    const float m = matrix_scale(r);
    v[0] = s.x * four_codes(r.q.x) * m;
    v[1] = s.y * four_codes(r.q.x >> 8) * m;
    v[2] = s.z * four_codes(r.q.y) * m;
    v[3] = s.w * four_codes(r.q.y >> 8) * m;
}
#endif

// gemm_share.glsl: helpers of the layouts (quant/) for gemm_mma.comp, which multiplies weights as halves.
//
// Share   16 weights: row (l >> 2) + 8 e of a tile, columns from 64 kb on (kb = 0 .. 3), and of each of their four
//         blocks the columns 4 (l & 3) + 0 .. 3. fetch_share(at, l, e, kb) loads its words. decode_share(share, kb, lo,
//         hi) converts them to 16 halves in the order of the blocks, multiplied by WEIGHT_FACTOR; share_values(share,
//         kb, v) to floats, a vec4 for each block, likewise multiplied and otherwise as unpack() gives them.
// Numbers An integer becomes a half without rounding: its bits are set below a fixed exponent, whose value is then
//         subtracted. Scale and minimum are rounded to halves, and one multiply-add rounds the weight: about 2^-11.
//         Weights up to 1023 are in the range of a half; in NVFP4 up to 682, if the largest code of a block is 4.

layout(set = 0, binding = 0, std430) readonly buffer W2_ { uvec2 w2[]; };
layout(set = 0, binding = 0, std430) readonly buffer W1_ { uint w1[]; };

#ifndef WEIGHT_FACTOR
#define WEIGHT_FACTOR 64.0   // keeps small scales above the subnormal halves
#endif

// Two integers below an exponent: (value - base) * s - m.
uint grow(uint bits, float16_t base, float16_t s, float16_t m) {
    return packFloat2x16(fma(unpackFloat2x16(bits) - f16vec2(base), f16vec2(s), f16vec2(-m)));
}
uint grow(uint bits, float16_t base, float16_t s) {
    return packFloat2x16((unpackFloat2x16(bits) - f16vec2(base)) * s);
}
const uint LOW = 0x64006400u;    // 1024 in both halves: bit 0 is worth 1
const uint HIGH = 0x54005400u;   // 64 in both halves: bit 4 is worth 1

// The integers in two words of a block (quant/tile.glsl).
vec4 four(uint a, uint b) { return vec4(float(a & 0xffffu), float(a >> 16), float(b & 0xffffu), float(b >> 16)); }

// Values beyond the range of a half become the largest half.
uint two_halves(float a, float b) {
    return packHalf2x16(clamp(vec2(a, b) * WEIGHT_FACTOR, vec2(-65504.0), vec2(65504.0)));
}

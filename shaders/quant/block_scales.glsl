// quant/block_scales.glsl: the scales of Q6_K, Q2_K and Q3_K, a byte for 16 columns. Word i of a row's sixteen bytes
// has those of blocks 4 i, 4 i + 2, 4 i + 1 and 4 i + 3, so that a shift and a mask leave two neighbours in two halves.

// The bytes of blocks 4 i + 2 h and 4 i + 2 h + 1 in two halves, and that of block 4 i + b; v: word i.
uint two_bytes(uint v, uint h) { return (v >> (8u * h)) & 0x00ff00ffu; }
uint byte_of(uint v, uint b) { return (two_bytes(v, b >> 1) >> (16u * (b & 1u))) & 255u; }

// Signed scales are stored plus 128.
float signed_of(uint v, uint b) { return float(byte_of(v, b)) - 128.0; }

#ifdef MATRIX
// Two signed scales as halves, and two times d. Read as subnormal halves, integers become floats in one instruction.
uint signed_pair(uint v, uint h) {
    return packFloat2x16(unpackFloat2x16(two_bytes(v, h) | 0x64006400u) - f16vec2(1152.0));
}
vec2 signed_scaled(uint v, uint h, vec2 d) { return fma(unpackHalf2x16(two_bytes(v, h)), d * TINY, -128.0 * d); }
#endif

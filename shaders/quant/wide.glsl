// quant/wide.glsl: rare types without a layout of their own (Q4_1, Q5_1, Q2_K, IQ4_XS): bytes with a
// float scale and a float min for 16 columns each; weight = scale * byte - min.
//
// unit 8r + i        row r: scales of blocks 4i..4i+3 (i = 0..3), mins of blocks 4(i - 4).. (i = 4..7)
// 128 + 64m + 32e + l    lane l, row (l >> 2) + 8e: word i: block 4m + i; a byte holds weight + 128
#define TILE 384u

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

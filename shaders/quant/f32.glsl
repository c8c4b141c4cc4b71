// quant/f32.glsl: F32.
//
// 64m + 32e + l  lane l, row (l >> 2) + 8e: block m
#define TILE 1024u

void unpack(uint at, uint r, uint j, uint t, out vec4 to[8]) {
    const uint e = r >> 3, l = (r & 7u) * 4u + t;
    for (uint i = 0u; i < 8u; i++) to[i] = uintBitsToFloat(UNITS[at + 64u * (8u * j + i) + 32u * e + l]);
}

// quant/tile.glsl: where the numbers of a weight matrix lie on the device, and the unpackers.
//
// Matrix  [d_out, d_in] in tiles of 16 rows x 256 columns; missing rows and columns are zero. Tiles of
//         the same 16 rows are neighbours: tile (i, c) starts at unit (i * n_col + c) * TILE of 16
//         bytes, n_col = ceil(d_in / 256). A tile begins with the scales of its rows.
// Lane    l = 0..31 of a tile owns rows g = l >> 2 and g + 8, and of every block jb = 0..15 of 16
//         columns the four columns 16 jb + 4 (l & 3) + 0..3: the share of one invocation in a 16x16
//         matrix of the matrix units, so that weights reach them without a detour.
// Word    four weights of a block share a word; columns 0, 1 sit in the low and high half, 2 and 3 in
//         the same halves 8 bits up. A mask leaves two columns as the low bits of two halves: half
//         precision numbers too small to be normal (value * 2^-24), exact up to 1023.
// Host    src/machine/vulkan/repack.cpp writes what is read here.
//
// UNITS is the matrix in units of 16 bytes. Each unpacker gives: TILE; unpack() for plain kernels: row r, columns 128 j
// + 16 i + 4 t + 0..3 in
// to[i], rounded as base/number.cpp does; and with MATRIX defined: Raw, fetch() and product().

#ifndef UNITS
#define UNITS w
#endif
#if defined(TYPE_Q4_K) || defined(TYPE_Q5_K) || defined(TYPE_Q4_0) || defined(TYPE_Q5_0)
#include "quant/nibble.glsl"
#elif defined(TYPE_Q6_K)
#include "quant/q6_k.glsl"
#elif defined(TYPE_Q8_0)
#include "quant/q8_0.glsl"
#elif defined(TYPE_WIDE)
#include "quant/wide.glsl"
#elif defined(TYPE_F16) || defined(TYPE_BF16)
#include "quant/half.glsl"
#elif defined(TYPE_F32)
#include "quant/f32.glsl"
#else
#error "which TYPE_?"
#endif

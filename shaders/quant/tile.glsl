// quant/tile.glsl: how a weight matrix lies on the device, and what the file of a layout defines.
//
// Matrix  [d_out, d_in] in tiles of 16 rows x 256 columns, padded with zeros. The tiles of the same 16 rows are
//         contiguous: tile (i, c) begins at unit (i * n_col + c) * TILE. A unit is 16 bytes, n_col = ceil(d_in / 256).
//         A tile begins with the scales of its rows.
// Lane    Lane l = 0 .. 31 of a tile owns rows g = l >> 2 and g + 8, and in each block jb = 0 .. 15 of 16 columns the
//         four columns 16 jb + 4 (l & 3) + 0 .. 3. An invocation holds the same elements of a 16 x 16 operand of the
//         matrix units, so weights go there without a shuffle.
// Word    Four integer weights of a block share a word: columns 0 and 1 in its low and high half, columns 2 and 3 in
//         the same halves 8 bits higher. A mask leaves two columns in the low bits of two halves. Read as a subnormal
//         half, an integer n is n * 2^-24, exact up to 1023.
// Host    src/machine/vulkan/repack.cpp writes tiles.
//
// A file in shaders/quant has a `// layout:` line for each of its layouts; tools/make_shaders.py makes their kernels.
// The file defines, for the matrix UNITS in units of 16 bytes and its tile at unit `at`:
//   unpack(at, r, j, t, to)              row r, columns 128 j + 16 i + 4 t + 0 .. 3 in to[i], rounded as
//                                        base/number.cpp does
//   #define HAS_TABLE, open_layout(me)   if it has a table in shared memory: all invocations call open_layout() first
//   #ifdef MATRIX, for @product          matvec_mma.comp, which does not call it
//     Raw, fetch(at, l)                  the units of lane l; whatever is computed from them here waits for memory
//     product(raw, at, t)                sums over the columns of the tile: rows g (xy) and g + 8 (zw) times rows 2 t
//                                        and 2 t + 1 of x. x begins at half `at` of s; at + 256: its sums over 16
//                                        columns, rounded to halves; at + 272: what the rounding took from the sums
//     #define SUMS_OF_32                 at + 256 are sums over 32 columns instead, each with what its rounding took
//   #ifdef SHARES                        gemm_mma.comp
//     Share, fetch_share(), decode_share(), share_values()   gemm_share.glsl

#ifndef UNITS
#define UNITS w
#endif
#include "layout.glsl"
#ifndef HAS_TABLE
void open_layout(uint me) {}
#endif

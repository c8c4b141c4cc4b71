// The CPU kernels, written once for every instruction set. A simd_*.cpp pastes this file inside a namespace of its
// own, in which it has defined the vocabulary:
//
//   V, W                     a vector of floats and its lanes
//   load, store, load_n, store_n (first n lanes), prefetch_soon, prefetch_later, zero, splat
//   load_f16, load_f16_n, load_bf16, store_f16         W halves as floats, from any address
//   splat_f16(p), load_i8(p), load_nibbles(p, shift)   one half; W signed bytes; W nibbles at bit 0 or 4
//   add, sub, mul, div, floor_of, nearest, power_of_two (of a whole number)
//   vmin(a, b), vmax(a, b)   x86: b where either is a NaN; NEON: NaN
//   fma(a, b, c) = a b + c, fnma(a, b, c) = c - a b, each rounded once
//   sum4(v, out)             the lane sums of four vectors: neighbours first, always in the same order
//   sum_halves(v)            the lane sum: upper half onto lower half, until one lane is left
//   max_of(v), load_taps4    largest lane; W channels of [n, 4] as four vectors
//   kWide, kTile, kScore, kPairs   vectors that the registers hold in delta_rows, in a row of a product tile, in the
//                            same for twice the rows, in a tile of attention
//   kStreamRows              rows of a state between two loads of its sums (delta_stream)
//
// and for products with strips (pack.h), where a strip has kLane rows:
//
//   kMaxRow, kMaxFloatColumn activation rows of one pass over a strip, over plain float rows
//   StripFloats, StripInts   kLane floats or int32, one for each row; mul, fma, fnma as above
//   strip_splat, strip_f16(p), strip_i8(p), strip_fp4_scale(p), strip_store(y, n, a, accumulate), to_floats
//   strip_e4m3(p)            2^-8 times the numbers of kLane codes of e4m3_code(): a code shifted by 7 is that half
//   int_splat, int_add, int_shift<n>
//   Bytes                    4 kLane codes, four for each row; load_bytes, byte_and, byte_or, byte_shift<n> (left;
//                            bits that cross a byte are garbage), low_nibbles, high_nibbles
//   Codebook                 16 signed bytes; load_codebook(p), codebook_values(table, codes)
//   bias_of(form)            what the codes in memory stand above the file's
//   kColumn                  2: activations are columns of high and low bytes; 1: they are words (Int16Block), and
//                            dot_codes takes the nibbles of both halves, unseparated
//   join_columns(q)          makes words of the two columns, in place; nothing where kColumn is 2
//   HalfDot<n>, begin_half, dot_codes, finish_half, kDotVectors   see dot_half in kernels_matmul.inl
//   block_range(x, max, nan) largest magnitude of 32 values, and whether one is a NaN
//   round_block(x, inverse, q, sums)   q = round(x inverse) within -127 .. 127, 32 values; sum of each 16
//
// Order   Every sum of products is a chain of explicit fma. No product feeds an addition, so a compiler
//         that contracts a*b + c finds nothing to contract and the bits are the source's.
// Tails   go through the same vector code with fewer lanes: a value's bits do not depend on its place.
// Lambdas are not used: not every compiler passes the instruction set on to them.

#include "kernels_rows.inl"
#include "kernels_attention.inl"
#include "kernels_delta.inl"
#include "kernels_delta_chunk.inl"
#include "kernels_matmul.inl"

/// This instruction set's row of all_kernels().
constexpr CpuKernels table(const char* name, CpuPath path, bool (*runs)(const CpuFeatures&)) {
    return {name,
            path,
            runs,
            kLane,
            bias_of(CodeForm::byte) != 0,
            kColumn == 1,
            {rms_norm, swiglu, silu_gate, sigmoid_gate, conv_silu, to_f16, attend, merge, delta_rows, delta_chunk,
             attend_many},
            quantise,
            strips,
            plain};
}

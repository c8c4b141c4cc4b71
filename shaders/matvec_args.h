// matvec_args.h: the push constants of matvec.comp, matvec_mma.comp and embed.comp, read by GLSL and C++.
// Offsets and strides count floats; those of x must be multiples of 4.
#ifndef AUSPEX_SHADERS_MATVEC_ARGS_H
#define AUSPEX_SHADERS_MATVEC_ARGS_H
#ifdef __cplusplus
#include <cstdint>
namespace auspex {
namespace detail {
namespace args {
using uint = uint32_t;
#endif

struct MatvecArgs {
    uint n_tile;       // row tiles of this dispatch (a slice of the matrix, or all)
    uint n_col;        // column tiles: ceil(d_in / 256)
    uint d_in;         // a multiple of 4
    uint d_out;        // rows of the whole matrix; EPI_SWIGLU: values of a row of y
    uint first_row;    // of the slice; a multiple of 16
    uint first_group;  // EPI_LOGITS: workgroups of the slices before this one
    uint x_offset, x_stride;
    uint y_offset, y_stride;
    uint residual_offset, residual_stride;
    uint n_part, part_stride;     // NORM: partial sums of squares per row
    uint out_offset, out_stride;  // EPI_ADD: floats; EPI_LOGITS: offset in floats, stride in pairs
    float inv_d, eps;             // NORM: 1 / d_in and what is added to the mean
    float limit;                  // EPI_SWIGLU: clamps as in OpKind::swiglu; 0: none
    uint tiles;                   // matvec_mma: row tiles of a workgroup, at most TILES
    uint mode;                    // matvec_mma: what EPI_ANY, NORM_ANY and MOE_ANY stand for: EPI + 4 NORM + 8 ROLE
    // Products of experts (moe_columns.glsl); else nothing. n_tile, d_in, d_out are those of one expert.
    uint n_row;                   // of the step
    uint n_used;                  // experts of a row; MOE_SHARED: 1
    uint first_expert, n_expert;  // that this slice holds
    uint d_slot;                  // MOE_ROW, MOE_SHARED: values of x for each pair, 256 times its column tiles
    uint n_score, flags;          // experts of the layer, kRoute... (moe_args.h)
    float scale;
};

// Row i of the step takes row ids[id_offset + i] of the matrix, or its token's when in_step is set.
struct EmbedArgs {
    uint n_col;
    uint d_in;
    uint d_out;             // rows of the matrix; an id beyond gives zeros
    uint first_row, n_row;  // rows of the matrix that this slice holds; others are left to their slices
    uint id_offset;
    uint y_offset, y_stride;
    uint out_offset, out_stride;  // sums of squares of 16 values each
    uint in_step;                 // 1: ids is a lane's step buffer (args.h) and row i runs the token at its position
};

#ifdef __cplusplus
}  // namespace args
}  // namespace detail
}  // namespace auspex
#endif
#endif

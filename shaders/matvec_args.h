// matvec_args.h: push constants of matvec.comp, matvec_mma.comp and embed.comp, for C++ and GLSL.
// Offsets and strides count floats; those of x must be multiples of 4.
#ifndef AUSPEX_SHADERS_MATVEC_ARGS_H
#define AUSPEX_SHADERS_MATVEC_ARGS_H
#include "chain_args.h"

AUSPEX_SHARED_BEGIN

// Halves of a row of x in the shared memory of matvec_mma: 256 values, 16 sums, what rounding left of them, 8 unused.
AUSPEX_CONST uint kMatvecRowHalves = 296;

// What the columns of a product are: specialization constant ROLE; moe_columns.glsl.
AUSPEX_CONST uint kRoleNone = 0;    // rows of the step
AUSPEX_CONST uint kRoleExpert = 1;  // the rows that chose one expert
AUSPEX_CONST uint kRoleRow = 2;     // the hidden values of all experts of one row
AUSPEX_CONST uint kRoleShared = 3;  // likewise of the shared expert
AUSPEX_CONST uint kRoleAny = 4;     // one row; MatvecArgs::mode says which

struct MatvecArgs {
    uint n_tile;       // row tiles of this dispatch (a slice of the matrix, or all)
    uint n_col;        // column tiles: ceil(d_in / 256)
    uint d_in;         // a multiple of 4
    uint d_out;        // rows of the whole matrix; kEpilogueSwiglu: values of a row of y
    uint first_row;    // of the slice; a multiple of 16
    uint first_group;  // kEpilogueLogits: workgroups of the slices before this one
    uint x_offset, x_stride;
    uint y_offset, y_stride;
    uint residual_offset, residual_stride;
    uint n_part, part_stride;     // NORM: partial sums of squares per row
    uint out_offset, out_stride;  // kEpilogueAdd: floats; kEpilogueLogits: offset in floats, stride in pairs
    float inv_d, eps;             // NORM: 1 / d_in and what is added to the mean
    float limit;                  // kEpilogueSwiglu: clamps as in OpKind::swiglu; 0: none
    uint tiles;                   // matvec_mma: row tiles of a workgroup, at most TILES
    uint mode;  // matvec_mma: what kEpilogueAny, kNormAny and kRoleAny stand for: EPI + 4 NORM + 8 ROLE
    // Products of experts (moe_columns.glsl); else nothing. n_tile, d_in, d_out are those of one expert.
    uint n_row;                   // of the step
    uint n_used;                  // experts of a row; kRoleShared: 1
    uint first_expert, n_expert;  // that this slice holds
    uint d_slot;                  // kRoleRow, kRoleShared: values of x for each pair, 256 times its column tiles
    uint n_score, flags;          // experts of the layer, kRoute... (moe_args.h)
    float scale;
    ChainArgs chain;  // matvec_mma
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
    uint in_step;                 // 1: ids is a context's step buffer (args.h) and row i runs the token at its position
};

AUSPEX_SHARED_END

#endif

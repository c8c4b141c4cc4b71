// gemm_args.h: push constants of gemm.comp, gemm_mma.comp and gemm_pack.comp, for C++ and GLSL.
#ifndef AUSPEX_SHADERS_GEMM_ARGS_H
#define AUSPEX_SHADERS_GEMM_ARGS_H
#include "shared.h"

AUSPEX_SHARED_BEGIN

AUSPEX_CONST float kHalvesFactor = 16.0;  // what kEpilogueHalves divides its values by

AUSPEX_CONST uint kGemmModeMask = 31;  // all bits of GemmArgs::mode

// y = x W' over many rows; x are the halves that gemm_pack (or the epilogue 3 of another gemm) wrote.
struct GemmArgs {
    uint n_row;                             // rows of x
    uint n_tile;                            // row tiles of the weights in this dispatch (a slice, or all)
    uint n_col;                             // column tiles: ceil(d_in / 256)
    uint n_half_tile;                       // gemm.comp: halves of column tiles that are not all padding
    uint d_out;                             // rows of the whole matrix; swiglu: values of a row of y
    uint first_row;                         // of the slice; a multiple of 16
    uint x_offset, x_stride;                // units of 8 halves; a row is n_col * 32 units, EXACT twice as many
    uint y_offset, y_stride;                // floats, multiples of 4; epilogue 3: words of two halves
    uint residual_offset, residual_stride;  // floats, multiples of 4
    uint scale_offset;                      // row i of x was divided by scale[scale_offset + i] (SCALED)
    float factor;                           // and by this
    float limit;                            // swiglu: clamps as in OpKind::swiglu; 0: none
    uint from_step;                         // 1: run only as many of the rows as StepState::n_row says
    uint mode;                              // gemm.comp: EPI + 4 SCALED + 8 EXPERTS + 16 EXACT
    // EXPERTS: n_row is the length of the list's entries, n_tile and d_out are those of one expert.
    uint list_size, first_entry;  // which size of blocks, and where its entries begin: ListArgs
    uint first_expert, n_expert;  // that this slice holds
    uint divide;                  // row of x = place / divide
};

// Rows of floats become rows of halves, normalised or not.
struct GemmPackArgs {
    uint d_in;                // a multiple of 4
    uint n_col;               // column tiles: ceil(d_in / 256)
    uint x_offset, x_stride;  // floats, multiples of 4
    uint y_offset, y_stride;  // units of 8 halves; a row is n_col * 32 units, EXACT twice as many
    uint scale_offset;
    uint part_offset, part_stride;  // sums of squares of 16 values each, as matvec wants them (SQUARES)
    float inv_d, eps;               // 1 / d_in and what is added to the mean (NORM)
    uint from_step;                 // 1: run only as many rows as StepState::n_row says
};

AUSPEX_SHARED_END

#endif

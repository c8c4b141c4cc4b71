// rows_args.h: push constants of the row kernels (rms_rows, copy_rows, gather_rows, swiglu_rows, keep_rows,
// delta_apply), for C++ and GLSL. Offsets and strides count floats.
#ifndef AUSPEX_SHADERS_ROWS_ARGS_H
#define AUSPEX_SHADERS_ROWS_ARGS_H
#include "shared.h"

AUSPEX_SHARED_BEGIN

struct RowsArgs {
    uint width;  // values of a row
    uint x_stride;
    uint y_offset, y_stride;
    uint from_kept;       // 1: row i stands at row hidden_from + i of the kept rows (rms_rows: of y; gather_rows: of x)
    float eps;            // rms_rows
    float limit;          // swiglu_rows: clamps as in OpKind::swiglu; 0: none
    uint n_row;           // gather_rows: rows to take
    uint squares_stride;  // rms_rows: from row to row of the sums of squares; not 0: copies x and these as well
};

// Bits of StepState::hidden_from. The host gave the rows; the kept ones are not used.
AUSPEX_CONST uint kHiddenGiven = 0x80000000u;
// The rows are what keep_rows stored for the positions of the pass.
AUSPEX_CONST uint kHiddenPending = 0x40000000u;
AUSPEX_CONST uint kPendingRows = 64;

struct ApplyArgs {
    uint n_head_v, d_key, d_val;
    uint n_commit;  // rows of the last tentative pass to apply
};

AUSPEX_SHARED_END

#endif

// rows_args.h: the push constants of the plain row kernels (rms_rows, copy_rows, gather_rows, swiglu_rows,
// keep_rows, delta_apply), read by GLSL and C++. Offsets and strides count floats.
#ifndef AUSPEX_SHADERS_ROWS_ARGS_H
#define AUSPEX_SHADERS_ROWS_ARGS_H
#ifdef __cplusplus
#include <cstdint>
namespace auspex {
namespace detail {
namespace args {
using uint = uint32_t;
#define AUSPEX_CONST constexpr
#else
#define AUSPEX_CONST const
#endif

struct RowsArgs {
    uint width;  // values of a row
    uint x_stride;
    uint y_offset, y_stride;
    uint from_kept;  // 1: row i stands at row hidden_from + i of the kept rows (rms_rows: of y; gather_rows: of x)
    float eps;       // rms_rows
    float limit;     // swiglu_rows: clamps as in OpKind::swiglu; 0: none
    uint n_row;      // gather_rows: rows to take
};

// StepState::hidden_from with this bit set: the rows are not the kept ones but those the host gave.
AUSPEX_CONST uint kHiddenGiven = 0x80000000u;
// With this one: what keep_rows left for the positions of the pass.
AUSPEX_CONST uint kHiddenPending = 0x40000000u;
AUSPEX_CONST uint kPendingRows = 64;

struct ApplyArgs {
    uint n_head_v, d_key, d_val;
    uint n_commit;  // rows of the last tentative pass to apply
};

#undef AUSPEX_CONST
#ifdef __cplusplus
}  // namespace args
}  // namespace detail
}  // namespace auspex
#endif
#endif

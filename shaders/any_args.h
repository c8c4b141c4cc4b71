// any_args.h: push constants of delta_any and ring_any, which run the head sizes that delta_step and delta_scan do not.
// For C++ and GLSL. Offsets and strides count floats.
#ifndef AUSPEX_SHADERS_ANY_ARGS_H
#define AUSPEX_SHADERS_ANY_ARGS_H
#include "shared.h"

AUSPEX_SHARED_BEGIN

struct DeltaAnyArgs {
    uint n_head_k, n_head_v;
    uint d_key, d_val;  // at most 256
    uint n_conv;        // taps, at most 8
    uint grouped;       // as in DeltaArgs
    float eps;
    uint u_offset, u_stride;
    uint z_offset, z_stride;
    uint b_offset, b_stride;
    uint a_offset, a_stride;
    uint out_stride;
};

AUSPEX_SHARED_END

#endif

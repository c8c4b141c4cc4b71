// any_args.h: the push constants of the kernels for head sizes that the fast ones are not made for
// (attend_any, kv_any, delta_any, ring_any), read by GLSL and C++. Offsets and strides count floats.
#ifndef AUSPEX_SHADERS_ANY_ARGS_H
#define AUSPEX_SHADERS_ANY_ARGS_H
#ifdef __cplusplus
#include <cstdint>
namespace auspex {
namespace detail {
namespace args {
using uint = uint32_t;
#endif

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

#ifdef __cplusplus
}  // namespace args
}  // namespace detail
}  // namespace auspex
#endif
#endif

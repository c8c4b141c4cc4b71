// moe_args.h: the push constants of the kernels for layers of experts, read by GLSL and C++.
//
// A row's choice (buffer `choice`): n_used + 1 pairs (id, weight as f32 bits), ids ascending; the last
// is the shared expert's: id 0 and its weight. A pair of a row and one of its experts is called by its
// place, row * n_used + j. The products of experts have their arguments in matvec_args.h and gemm_args.h.
#ifndef AUSPEX_SHADERS_MOE_ARGS_H
#define AUSPEX_SHADERS_MOE_ARGS_H
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

AUSPEX_CONST uint kMaxExpert = 1024;  // of a layer; what shared memory is sized for

// moe_router.comp, moe_route.comp. Strides count floats.
struct RouterArgs {
    uint d_in;  // a multiple of 4
    uint n_expert;
    uint n_out;  // n_expert, and one more where the shared expert has a gate of its own
    uint n_used;
    uint x_stride;
    float inv_d, eps;  // NORM
    uint flags;        // kRoute...
    float scale;
    uint n_row;
    uint from_step;  // 1: run only as many of the rows as StepState::n_row says
};
AUSPEX_CONST uint kRouteSigmoid = 1;  // scores by sigmoid instead of softmax
AUSPEX_CONST uint kRouteNormalise = 2;
AUSPEX_CONST uint kRouteBias = 4;    // added to the scores for the choice alone
AUSPEX_CONST uint kRouteShared = 8;  // logit n_expert is that of the shared expert's weight

// moe_list.comp. The list: kListFirst: where an expert's places begin [n_expert + 1]; kListCount: entries;
// kListEntry: expert | block << 12, a block is bm places of one expert; places behind n_entry_max of them.
struct ListArgs {
    uint n_expert, n_used;
    uint n_row;
    uint bm;
    uint n_entry_max;
    uint from_step;
};
AUSPEX_CONST uint kListFirst = 0;
AUSPEX_CONST uint kListCount = 1028;
AUSPEX_CONST uint kListEntry = 1032;

// moe_sum.comp: y += weights times parts.
struct SumArgs {
    uint width;  // a multiple of 4
    uint n_used;
    uint part_stride;  // floats from place to place
    uint y_stride;
    uint shared_stride;  // of the shared expert's rows; 0: there is none
    uint from_step;
};

#undef AUSPEX_CONST
#ifdef __cplusplus
}  // namespace args
}  // namespace detail
}  // namespace auspex
#endif
#endif

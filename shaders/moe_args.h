// moe_args.h: push constants of the kernels for layers of experts, for C++ and GLSL.
//
// A row's choice (buffer `choice`): n_used + 1 pairs (id, weight as f32 bits), ids ascending; the last
// is the shared expert's: id 0 and its weight. The place of a row's j-th expert is row * n_used + j. The products of
// experts have their arguments in matvec_args.h and gemm_args.h.
#ifndef AUSPEX_SHADERS_MOE_ARGS_H
#define AUSPEX_SHADERS_MOE_ARGS_H
#include "chain_args.h"

AUSPEX_SHARED_BEGIN

AUSPEX_CONST uint kMaxExpert = 1024;  // of a layer; what shared memory is sized for
AUSPEX_CONST uint kMaxUsed = 64;      // of them by one row
// Limits for products that choose the experts themselves: lane i holds scores i, i + 32, .. and the i-th choice.
AUSPEX_CONST uint kMaxRoutedExpert = 512;
AUSPEX_CONST uint kMaxRoutedUsed = 32;

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
    ChainArgs chain;  // moe_router
};
AUSPEX_CONST uint kRouterTile = 8;  // rows, and outputs, of a workgroup of moe_router_rows
AUSPEX_CONST uint kRouteSigmoid = 1;  // scores by sigmoid instead of softmax
AUSPEX_CONST uint kRouteNormalise = 2;
AUSPEX_CONST uint kRouteBias = 4;    // added to the scores for the choice alone
AUSPEX_CONST uint kRouteShared = 8;  // logit n_expert is that of the shared expert's weight

// moe_list.comp. An expert's places are cut into blocks: as many of bm[0] places as it fills, and one of the smallest
// size that holds the rest. The list: kListFirst: where an expert's places begin [n_expert + 1]; kListCount: entries of
// each size; kListEntry: those of size i from first_entry[i] on, each expert | first place << 12, counted from the
// expert's first; the places follow n_entry_max entries.
AUSPEX_CONST uint kListSizes = 4;
struct ListArgs {
    uint n_expert, n_used;
    uint n_row;
    uint n_size;
    uint bm[kListSizes];  // places of a block, descending
    uint first_entry[kListSizes];
    uint n_entry_max;
    uint from_step;
};
AUSPEX_CONST uint kListFirst = 0;
AUSPEX_CONST uint kListCount = kMaxExpert + 4;
AUSPEX_CONST uint kListEntry = kListCount + kListSizes;

// moe_sum.comp: y += weights times parts.
struct SumArgs {
    uint width;  // a multiple of 4
    uint n_used;
    uint part_stride;  // floats from place to place
    uint y_stride;
    uint shared_stride;  // of the shared expert's rows; 0: there is none
    uint from_step;
};

AUSPEX_SHARED_END

#endif

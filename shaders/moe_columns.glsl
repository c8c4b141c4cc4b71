// moe_columns.glsl: which rows and which matrix a workgroup of a matrix-vector product works on, by ROLE. Included by
// matvec_common.glsl.
//
// kRoleNone    one matrix for all rows; column c is row c.
// kRoleExpert  Workgroup (x, j, r) multiplies row r of x by its j-th expert and writes row `place` of y, where place is
//              row * n_used + j. On matrix units X_ROWS is 1. Elsewhere, with X_ROWS > 1, the first row that chose an
//              expert computes all rows that did, X_ROWS of them at once (every X_ROWS-th starts the next group), and
//              the workgroups of the other rows return: so an expert's weights are read once.
//              With SUBGROUP_SCORES every workgroup chooses its row's experts itself from the scores, as moe_route.comp
//              does: that takes less time than one more dispatch. The first one of a row stores the choice for later
//              products.
// kRoleRow     Workgroup (x, y), where y is a row. Its matrix is those of its experts side by side, by ascending id,
//              and its x their hidden values times their weights. X_ROWS is 1.
// kRoleShared  As kRoleRow, with the one shared expert, whose weight is the sigmoid of its score, or 1.
// Order        A row's sums depend on its own choice alone.
// Memory       These replace the buffers of matvec_common.glsl that the role does not use:
//              5 choice    pairs (id, weight) [n_row, n_used + 1]    (kRoleExpert)                     read
//              3 choice    the same                                  (kRoleRow)                        read
//              3 squares   scores f32 [n_row, n_out]                 (kRoleShared)                     read
//              5 residual  the same                                  (kRoleExpert, SUBGROUP_SCORES)    read
//              6 out       choice                                    (kRoleExpert, SUBGROUP_SCORES)    written
//              7 bias      f32 [n_expert]                            (kRouteBias, SUBGROUP_SCORES)     read
#include "moe_args.h"
#ifdef MATRIX
layout(constant_id = 11) const uint ROLE_ = 0u;
// scores of a lane: ceil(experts / 32); 0: the choice was made before
layout(constant_id = 12) const uint SUBGROUP_SCORES = 0u;
#define ROLE (ROLE_ == kRoleAny ? args.mode >> 3 : ROLE_)
#define MAY_BE_ROW (ROLE_ >= kRoleRow)
#else
layout(constant_id = 6) const uint ROLE = 0u;
#define MAY_BE_ROW (ROLE >= kRoleRow)
#endif
#define BY_ROW (MAY_BE_ROW && ROLE >= kRoleRow)
// Sizes are multiples of 16 bytes; an array that the role does not use has 16 bytes.
#ifndef MATRIX
shared uint place_s[X_ROWS > 1u ? (kMaxRows + 3u) / 4u * 4u : 4u];   // by row: its place with this expert, or NONE
shared uint column_s[(X_ROWS + 3u) / 4u * 4u];                       // by column: its place
uint n_column = 1u;
#endif
shared uint pair_id_s[MAY_BE_ROW ? kMaxUsed : 4u];
shared float pair_weight_s[MAY_BE_ROW ? kMaxUsed : 4u];
const uint NONE = 0xffffffffu;
uint expert = 0u;

float sigmoid_of(float v) {
    precise float d = 1.0 + exp(-v);
    precise float s = 1.0 / d;
    return s;
}

#ifdef MATRIX
shared uint chosen_s[SUBGROUP_SCORES > 0u ? kMaxRoutedUsed : 4u];
shared float chosen_weight_s[SUBGROUP_SCORES > 0u ? kMaxRoutedUsed : 4u];
shared float scores_s[4u + 32u * SUBGROUP_SCORES];

// Chooses the n_used experts of row gl_WorkGroupID.z with the largest scores, ties to the lower id. The first subgroup
// does, a lane every 32nd expert; then all n invocations meet.
const float LOWEST = -3.4028234e38;
const int NOTHING = -0x7fffffff - 1;
void choose_experts(uint l, uint n) {
    const uint n_out = args.n_score + ((args.flags & kRouteShared) != 0u ? 1u : 0u), row = gl_WorkGroupID.z;
    if (l < 32u) {
        const uint from = row * n_out;
        float p[SUBGROUP_SCORES + 1u], highest = LOWEST, sum = 0.0;
        [[unroll]] for (uint k = 0u; k < SUBGROUP_SCORES; k++) p[k] = l + 32u * k < args.n_score
            ? RESIDUAL[from + l + 32u * k] : LOWEST;
        if ((args.flags & kRouteSigmoid) == 0u) {
            [[unroll]] for (uint k = 0u; k < SUBGROUP_SCORES; k++) highest = max(highest, p[k]);
            highest = subgroupMax(highest);   // a maximum does not depend on the order
            [[unroll]] for (uint k = 0u; k < SUBGROUP_SCORES; k++) {
                p[k] = exp(p[k] - highest);
                sum += p[k];
            }
            sum += subgroupShuffleXor(sum, 1u);
            sum += subgroupShuffleXor(sum, 2u);
            sum += subgroupShuffleXor(sum, 4u);
            sum += subgroupShuffleXor(sum, 8u);
            sum += subgroupShuffleXor(sum, 16u);
            const float by = 1.0 / sum;
            [[unroll]] for (uint k = 0u; k < SUBGROUP_SCORES; k++) p[k] *= by;
        }
        [[unroll]] for (uint k = 0u; k < SUBGROUP_SCORES; k++) scores_s[l + 32u * k] = p[k];
        if ((args.flags & kRouteSigmoid) != 0u) {   // rare: small code instead of fast code
            [[dont_unroll]] for (uint e = l; e < args.n_score; e += 32u) {
                scores_s[e] = sigmoid_of(scores_s[e]);
            }
            [[unroll]] for (uint k = 0u; k < SUBGROUP_SCORES; k++) p[k] = scores_s[l + 32u * k];
        }
        // Integers with the same order as the floats, for subgroupMax.
        int v[SUBGROUP_SCORES + 1u];
        [[unroll]] for (uint k = 0u; k < SUBGROUP_SCORES; k++) {
            float x = p[k];
            if ((args.flags & kRouteBias) != 0u && l + 32u * k < args.n_score) x += at_bias.bias[l + 32u * k];
            const int b = floatBitsToInt(x);
            v[k] = l + 32u * k < args.n_score ? b ^ ((b >> 31) & 0x7fffffff) : NOTHING;
        }
        uint mine = NONE;   // lane j: the expert with the j-th largest score
        [[dont_unroll]] for (uint j = 0u; j < args.n_used; j++) {
            int best = NOTHING;
            [[unroll]] for (uint k = 0u; k < SUBGROUP_SCORES; k++) best = max(best, v[k]);
            const int top = subgroupMax(best);
            uint id = NONE;
            [[unroll]] for (uint k = 0u; k < SUBGROUP_SCORES; k++) id = v[k] == top ? min(id, l + 32u * k) : id;
            id = subgroupMin(id);
            [[unroll]] for (uint k = 0u; k < SUBGROUP_SCORES; k++) v[k] = id == l + 32u * k ? NOTHING : v[k];
            mine = l == j ? id : mine;
        }
        uint at = 0u;
        [[dont_unroll]] for (uint j = 0u; j < args.n_used; j++) at += subgroupShuffle(mine, j) < mine ? 1u : 0u;
        subgroupMemoryBarrierShared();
        subgroupBarrier();
        if (l < args.n_used) {
            chosen_s[at] = mine;
            chosen_weight_s[at] = scores_s[mine];
        }
    }
    barrier();
    if (gl_WorkGroupID.x != 0u || gl_WorkGroupID.y != 0u) return;
    for (uint j = l; j < args.n_used; j += n) {
        float sum = 0.0;
        for (uint k = 0u; k < args.n_used; k++) sum += chosen_weight_s[k];
        const float by = (args.flags & kRouteNormalise) != 0u ? args.scale / (sum + 1e-20) : args.scale;
        C_(at_out).choice[row * (args.n_used + 1u) + j] = uvec2(chosen_s[j], floatBitsToUint(chosen_weight_s[j] * by));
    }
}
#endif

// False if the workgroup has nothing to do. All n invocations call it, i = 0 .. n - 1.
bool open_columns(uint i, uint n) {
    const uint y = gl_WorkGroupID.y;   // a row, where the role is not kRoleExpert
    if (MAY_BE_ROW && ROLE == kRoleShared) {
        if (i == 0u) {
            pair_id_s[0] = 0u;
            pair_weight_s[0] = (args.flags & kRouteShared) != 0u
                ? sigmoid_of(SQUARES[y * (args.n_score + 1u) + args.n_score]) : 1.0;
        }
        barrier();
        return true;
    }
    if (MAY_BE_ROW && ROLE == kRoleRow) {
        for (uint j = i; j < args.n_used; j += n) {
            const uvec2 c = CHOICE(y * (args.n_used + 1u) + j);
            const bool here = c.x - args.first_expert < args.n_expert;   // else another slice of the matrices adds it
            pair_id_s[j] = here ? c.x - args.first_expert : 0u;
            pair_weight_s[j] = here ? uintBitsToFloat(c.y) : 0.0;
        }
        barrier();
        return true;
    }
#ifdef MATRIX
    if (SUBGROUP_SCORES > 0u) {
        choose_experts(i, n);
        expert = chosen_s[y];
    } else
#endif
        expert = CHOICE(gl_WorkGroupID.z * (args.n_used + 1u) + y).x;
#ifndef MATRIX
    if (X_ROWS > 1u) {
        for (uint r = i; r < args.n_row; r += n) place_s[r] = NONE;
        barrier();
        for (uint p = i; p < args.n_row * args.n_used; p += n)
            if (CHOICE(p + p / args.n_used).x == expert) place_s[p / args.n_used] = p;
        barrier();
        const uint row = gl_WorkGroupID.z;
        uint before = 0u;
        for (uint r = 0u; r < row; r++) before += place_s[r] != NONE ? 1u : 0u;
        if (before % X_ROWS != 0u) return false;
        n_column = 0u;
        for (uint r = row; r < args.n_row && n_column < X_ROWS; r++) {
            if (place_s[r] == NONE) continue;
            if (i == 0u) column_s[n_column] = place_s[r];
            n_column++;
        }
    }
#endif
    expert -= args.first_expert;
    barrier();
    return expert < args.n_expert;
}

// The rows that column c reads of x and writes of y. A column beyond the last repeats the last one. z is 0 unless the
// role is kRoleExpert.
#ifdef MATRIX
uint row_in(uint c) { return X_ROWS > 1u ? c : ROLE == kRoleExpert ? gl_WorkGroupID.z : gl_WorkGroupID.y; }
uint row_out(uint c) { return X_ROWS > 1u ? c : gl_WorkGroupID.z * args.n_used + gl_WorkGroupID.y; }
bool has_column(uint c) { return true; }
#else
uint row_in(uint c) { return X_ROWS == 1u ? (ROLE == kRoleExpert ? gl_WorkGroupID.z : gl_WorkGroupID.y)
    : ROLE == kRoleNone ? c : column_s[min(c, n_column - 1u)] / args.n_used; }
uint row_out(uint c) { return X_ROWS == 1u ? gl_WorkGroupID.z * args.n_used + gl_WorkGroupID.y : ROLE == kRoleNone ? c
    : column_s[min(c, n_column - 1u)]; }
bool has_column(uint c) { return X_ROWS == 1u || ROLE == kRoleNone || c < n_column; }
#endif
// The expert (index into pair_*_s) that column tile c belongs to.
uint pair_of(uint c) { return min(c / (args.d_slot >> 8), args.n_used - 1u); }
// The end of the columns that column tile c belongs to.
uint columns_end(uint c) { return BY_ROW ? pair_of(c) * args.d_slot + args.d_in : args.d_in; }
float weight_of(uint c) { return pair_weight_s[pair_of(c)]; }
// The index of the tile in tile row `tile` and column tile c.
uint tile_of(uint tile, uint c) {
    if (!BY_ROW) return (expert * args.n_tile + tile) * args.n_col + c;   // expert is 0 where there is none
    const uint own = args.d_slot >> 8, j = pair_of(c);
    return (pair_id_s[j] * args.n_tile + tile) * own + c - j * own;
}

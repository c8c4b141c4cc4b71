// moe_columns.glsl: which column of a matrix-vector product is which row of the step, and where its matrix
// lies: one for all (ROLE 0), or an expert's. Included by matvec_common.glsl.
//
// MOE_EXPERT  group (x, y): y is a place. The first row of the step that chose this expert takes all rows
//             that did as its columns (T at once; the T-th after it the next ones), the others leave: an
//             expert's weights come from memory once. Column c reads row place / n_used, writes row `place`.
//             With OWN every workgroup makes the choice itself from the scores, as moe_route.comp does, in
//             less time than a dispatch of its own would take; the first one leaves it for others.
// MOE_ROW     group (x, y): y is a row. Its matrix is that of its experts side by side, ids ascending, its
//             columns their hidden values times their weights; T is 1.
// MOE_SHARED  likewise with the one shared expert, whose weight is the sigmoid of its score, or 1.
// Order       a row's sums follow from its own choice alone.
// Memory      in the place of what the role does not use:
//             5 choice    pairs (id, weight) [n_row, n_used + 1]    (MOE_EXPERT)          read
//             3 choice    likewise                                  (MOE_ROW)             read
//             3 squares   scores f32 [n_row, n_out]                 (MOE_SHARED)          read
//             5 residual  likewise                                  (MOE_EXPERT, OWN)     read
//             6 out       choice                                    (MOE_EXPERT, OWN)     written
//             7 bias      f32 [n_expert]                            (kRouteBias, OWN)     read
#include "moe_args.h"
#ifdef MATRIX
layout(constant_id = 11) const uint ROLE = 0u;
layout(constant_id = 12) const uint OWN = 0u;   // scores of a lane: ceil(experts / 32); 0: the choice is made
#else
layout(constant_id = 6) const uint ROLE = 0u;
#endif
const uint MOE_NONE = 0u;
const uint MOE_EXPERT = 1u;
const uint MOE_ROW = 2u;
const uint MOE_SHARED = 3u;
const bool BY_ROW = ROLE == MOE_ROW || ROLE == MOE_SHARED;
// Sizes are multiples of 16 bytes, and least where nothing is kept.
shared uint place_s[ROLE == MOE_EXPERT ? 12u : 4u];    // by row: its place at this expert, or NONE
shared uint column_s[(T + 3u) / 4u * 4u];              // places of the columns
shared uint pair_id_s[BY_ROW ? 64u : 4u];
shared float pair_weight_s[BY_ROW ? 64u : 4u];
const uint NONE = 0xffffffffu;
uint expert = 0u, n_column = 1u;

float sigmoid_of(float v) {
    precise float d = 1.0 + exp(-v);
    precise float s = 1.0 / d;
    return s;
}

#ifdef MATRIX
shared uint chosen_s[ROLE == MOE_EXPERT && OWN > 0u ? 576u : 4u];         // by place: ids
shared float chosen_weight_s[ROLE == MOE_EXPERT && OWN > 0u ? 576u : 4u];
#define CHOSEN(place) (OWN > 0u ? chosen_s[place] : CHOICE((place) + (place) / args.n_used).x)

// A subgroup takes a row, a lane every 32nd expert; the largest leave one by one, equal ones by lower id.
void choose_rows(uint i, uint n) {
    const float LEAST = -3.4028234e38;
    const uint l = i & 31u, n_out = args.n_score + ((args.flags & kRouteShared) != 0u ? 1u : 0u);
    for (uint row = i >> 5; row < args.n_row; row += n >> 5) {
        const uint from = row * n_out, to = row * args.n_used;
        float p[OWN + 1u], v[OWN + 1u];
        [[unroll]] for (uint k = 0u; k < OWN; k++) p[k] = l + 32u * k < args.n_score ? RESIDUAL[from + l + 32u * k] : LEAST;
        if ((args.flags & kRouteSigmoid) != 0u) {
            [[unroll]] for (uint k = 0u; k < OWN; k++) p[k] = sigmoid_of(p[k]);
        } else {
            float most = LEAST, sum = 0.0;
            [[unroll]] for (uint k = 0u; k < OWN; k++) most = max(most, p[k]);
            most = subgroupMax(most);   // exact in any order
            [[unroll]] for (uint k = 0u; k < OWN; k++) {
                p[k] = l + 32u * k < args.n_score ? exp(p[k] - most) : 0.0;
                sum += p[k];
            }
            sum += subgroupShuffleXor(sum, 1u);
            sum += subgroupShuffleXor(sum, 2u);
            sum += subgroupShuffleXor(sum, 4u);
            sum += subgroupShuffleXor(sum, 8u);
            sum += subgroupShuffleXor(sum, 16u);
            [[unroll]] for (uint k = 0u; k < OWN; k++) p[k] /= sum;
        }
        [[unroll]] for (uint k = 0u; k < OWN; k++) {
            v[k] = l + 32u * k < args.n_score ? p[k] : LEAST;
            if ((args.flags & kRouteBias) != 0u && l + 32u * k < args.n_score) v[k] += at_bias.bias[l + 32u * k];
        }
        uint taken = 0u;
        for (uint j = 0u; j < args.n_used; j++) {
            float best = LEAST;
            uint id = NONE;
            [[unroll]] for (uint k = 0u; k < OWN; k++) {
                if ((taken & (1u << k)) == 0u && v[k] > best) {
                    best = v[k];
                    id = l + 32u * k;
                }
            }
            const float top = subgroupMax(best);
            const uint who = subgroupMin(best == top ? id : NONE);
            if (who != NONE && (who & 31u) == l) taken |= 1u << (who >> 5);
            if (l == 0u) chosen_s[to + j] = 0u;
        }
        subgroupMemoryBarrierShared();
        subgroupBarrier();
        uint before = 0u;
        [[unroll]] for (uint k = 0u; k < OWN; k++) {
            const bool mine = (taken & (1u << k)) != 0u;
            const uint all = subgroupBallot(mine).x, at = before + bitCount(all & ((1u << l) - 1u));
            if (mine) {
                chosen_s[to + at] = l + 32u * k;
                chosen_weight_s[to + at] = p[k];
            }
            before += bitCount(all);
        }
    }
    barrier();
    if (gl_WorkGroupID.x != 0u || gl_WorkGroupID.y != 0u) return;
    for (uint at = i; at < args.n_row * args.n_used; at += n) {
        const uint row = at / args.n_used;
        float sum = 0.0;
        for (uint j = 0u; j < args.n_used; j++) sum += chosen_weight_s[row * args.n_used + j];
        const float by = (args.flags & kRouteNormalise) != 0u ? args.scale / (sum + 1e-20) : args.scale;
        C_(at_out).choice[at + row] = uvec2(chosen_s[at], floatBitsToUint(chosen_weight_s[at] * by));
    }
}
#else
#define CHOSEN(place) CHOICE((place) + (place) / args.n_used).x
#endif

// False: this workgroup has nothing to do. All invocations, i = 0..n-1.
bool open_columns(uint i, uint n) {
    const uint y = gl_WorkGroupID.y;
    if (ROLE == MOE_SHARED) {
        if (i == 0u) {
            pair_id_s[0] = 0u;
            pair_weight_s[0] = (args.flags & kRouteShared) != 0u ? sigmoid_of(SQUARES[y * (args.n_score + 1u) + args.n_score]) : 1.0;
        }
        barrier();
        return true;
    }
    if (ROLE == MOE_ROW) {
        for (uint j = i; j < args.n_used; j += n) {
            const uvec2 c = CHOICE(y * (args.n_used + 1u) + j);
            const bool here = c.x - args.first_expert < args.n_expert;   // else another slice adds it
            pair_id_s[j] = here ? c.x - args.first_expert : 0u;
            pair_weight_s[j] = here ? uintBitsToFloat(c.y) : 0.0;
        }
        barrier();
        return true;
    }
#ifdef MATRIX
    if (OWN > 0u) choose_rows(i, n);
#endif
    expert = CHOSEN(y);
    if (args.n_row > 1u) {
        for (uint r = i; r < args.n_row; r += n) place_s[r] = NONE;
        barrier();
        for (uint p = i; p < args.n_row * args.n_used; p += n)
            if (CHOSEN(p) == expert) place_s[p / args.n_used] = p;
        barrier();
        const uint row = y / args.n_used;
        uint before = 0u;
        for (uint r = 0u; r < row; r++) before += place_s[r] != NONE ? 1u : 0u;
        if (before % T != 0u) return false;
        n_column = 0u;
        for (uint r = row; r < args.n_row && n_column < T; r++) {
            if (place_s[r] == NONE) continue;
            if (i == 0u) column_s[n_column] = place_s[r];
            n_column++;
        }
    } else if (i == 0u) {
        column_s[0] = y;
    }
    expert -= args.first_expert;
    barrier();
    return expert < args.n_expert;
}

// Row of x that column c reads, and row of y that it writes; columns that are none read the first one's.
uint row_in(uint c) { return ROLE == MOE_NONE ? c : BY_ROW ? gl_WorkGroupID.y : column_s[min(c, n_column - 1u)] / args.n_used; }
uint row_out(uint c) { return ROLE == MOE_NONE ? c : BY_ROW ? gl_WorkGroupID.y : column_s[min(c, n_column - 1u)]; }
bool has_column(uint c) { return ROLE != MOE_EXPERT || c < n_column; }
// Column k of x is one of the matrix's.
bool column_inside(uint k) { return BY_ROW ? k % args.d_slot < args.d_in : k < args.d_in; }
// Number of the tile where tile row `tile` meets column tile c.
uint tile_of(uint tile, uint c) {
    if (ROLE == MOE_NONE) return tile * args.n_col + c;
    if (ROLE == MOE_EXPERT) return (expert * args.n_tile + tile) * args.n_col + c;
    const uint own = args.d_slot >> 8, j = min(c / own, args.n_used - 1u);
    return (pair_id_s[j] * args.n_tile + tile) * own + c % own;
}
float weight_of(uint k) { return pair_weight_s[min(k / args.d_slot, args.n_used - 1u)]; }

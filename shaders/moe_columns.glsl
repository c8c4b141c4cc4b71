// moe_columns.glsl: which column of a matrix-vector product is which row of the step, and where its matrix
// lies: one for all (ROLE 0), or an expert's. Included by matvec_common.glsl.
//
// MOE_EXPERT  group (x, y): y is a place. The first row of the step that chose this expert takes all rows
//             that did as its columns (T at once; the T-th after it the next ones), the others leave: an
//             expert's weights are read once. Column c reads row place / n_used and writes row `place`.
// MOE_ROW     group (x, y): y is a row. Its matrix is that of its experts side by side, ids ascending, its
//             columns their hidden values times their weights; T is 1.
// Order       a row's sums follow from its own choice alone.
// Memory      choice    pairs (id, weight) [n_row, choice_stride], in the place of what the role does not use:
//             MOE_EXPERT: residual, MOE_ROW: squares                          read
#ifdef MATRIX
layout(constant_id = 11) const uint ROLE = 0u;
#else
layout(constant_id = 6) const uint ROLE = 0u;
#endif
const uint MOE_NONE = 0u;
const uint MOE_EXPERT = 1u;
const uint MOE_ROW = 2u;
// Sizes are multiples of 16 bytes, and least where nothing is kept.
shared uint place_s[ROLE == MOE_EXPERT ? 12u : 4u];    // by row: its place at this expert, or NONE
shared uint column_s[(T + 3u) / 4u * 4u];              // places of the columns
shared uint pair_id_s[ROLE == MOE_ROW ? 64u : 4u];
shared float pair_weight_s[ROLE == MOE_ROW ? 64u : 4u];
const uint NONE = 0xffffffffu;
uint expert = 0u, n_column = 1u;

// False: this workgroup has nothing to do. All invocations, i = 0..n-1.
bool open_columns(uint i, uint n) {
    const uint y = gl_WorkGroupID.y;
    if (ROLE == MOE_ROW) {
        for (uint j = i; j < args.n_used; j += n) {
            const uvec2 c = CHOICE(y * args.choice_stride + args.choice_at + j);
            const bool here = c.x - args.first_expert < args.n_expert;   // else another slice adds it
            pair_id_s[j] = here ? c.x - args.first_expert : 0u;
            pair_weight_s[j] = here ? uintBitsToFloat(c.y) : 0.0;
        }
        barrier();
        return true;
    }
    const uint row = y / args.n_used;
    expert = CHOICE(row * args.choice_stride + args.choice_at + y % args.n_used).x;
    if (expert - args.first_expert >= args.n_expert) return false;
    for (uint r = i; r < args.n_row; r += n) {
        uint found = NONE;
        for (uint j = 0u; j < args.n_used; j++)
            if (CHOICE(r * args.choice_stride + args.choice_at + j).x == expert) found = r * args.n_used + j;
        place_s[r] = found;
    }
    expert -= args.first_expert;
    barrier();
    uint before = 0u;
    for (uint r = 0u; r < row; r++) before += place_s[r] != NONE ? 1u : 0u;
    if (before % T != 0u) return false;
    n_column = 0u;
    for (uint r = row; r < args.n_row && n_column < T; r++) {
        if (place_s[r] == NONE) continue;
        if (i == 0u) column_s[n_column] = place_s[r];
        n_column++;
    }
    barrier();
    return true;
}

// Row of x that column c reads, and row of y that it writes; columns that are none read the first one's.
uint row_in(uint c) { return ROLE == MOE_NONE ? c : ROLE == MOE_ROW ? gl_WorkGroupID.y : column_s[min(c, n_column - 1u)] / args.n_used; }
uint row_out(uint c) { return ROLE == MOE_NONE ? c : ROLE == MOE_ROW ? gl_WorkGroupID.y : column_s[min(c, n_column - 1u)]; }
bool has_column(uint c) { return ROLE != MOE_EXPERT || c < n_column; }
// Column k of x is one of the matrix's.
bool column_inside(uint k) { return ROLE == MOE_ROW ? k % args.d_slot < args.d_in : k < args.d_in; }
// Number of the tile where tile row `tile` meets column tile c.
uint tile_of(uint tile, uint c) {
    if (ROLE == MOE_NONE) return tile * args.n_col + c;
    if (ROLE == MOE_EXPERT) return (expert * args.n_tile + tile) * args.n_col + c;
    const uint own = args.d_slot >> 8, j = min(c / own, args.n_used - 1u);
    return (pair_id_s[j] * args.n_tile + tile) * own + c % own;
}
float weight_of(uint k) { return pair_weight_s[min(k / args.d_slot, args.n_used - 1u)]; }

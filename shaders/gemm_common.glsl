// gemm_common.glsl: definitions shared by the kernels of the prefill matrix product.
//
// Places  x is stored as halves with its columns permuted: of each 64 columns, column 16 b + 4 t + i lies at place
//         16 t + 4 b + i. An invocation that unpacks weights has columns 4 t .. 4 t + 3 of every block of 16, and with
//         the same permutation of x it stores them contiguously. place() is its own inverse.
uint place(uint k) { return (k & 0xffffffc3u) | ((k & 0xcu) << 2) | ((k & 0x30u) >> 2); }

// Exact  Activations, and on matrix units weights, are two halves each: the rounded value and what rounding left. The
//        second halves of a row of x follow its first.
uvec2 round_halves(vec4 v) { return uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw)); }

// What round_halves() left of v. A driver was seen to take the rounding for exact, so it gets bits that it cannot see
// through: `zero` is 0, which only the host knows.
uvec2 rest_halves(vec4 v, uvec2 rounded, uint zero) {
    const uvec2 same = rounded ^ zero;
    return round_halves(v - vec4(unpackHalf2x16(same.x), unpackHalf2x16(same.y)));
}

#ifdef GEMM
// Memory  0 w         units of 16 bytes, tiles as in quant/tile.glsl                 read
//         1 x         f16 [n_row, 256 n_col] in places, 16-byte aligned; EXACT: [n_row, 2, 256 n_col]    read
//         2 scale     f32 [n_row]                                       (SCALED)     read
//         3 y         f32 [n_row, d_out]; kEpilogueHalves: f16 in places, as x       written
//         4 residual  f32 [n_row, d_out]; may be y itself               (kEpilogueAdd)  read
//         4 list      in the place of residual: see moe_args.h          (EXPERTS)    read
//         5 step      StepState, its first word                         (from_step)  read
// EXPERTS workgroup x computes rows of one expert: entry x of the list says which expert, and where its rows are.
// A buffer that a variant does not use may be bound to anything.
layout(push_constant) uniform Push { GemmArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer W_ { uvec4 w[]; };
layout(set = 0, binding = 2, std430) readonly buffer S_ { float scale[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y_ { vec4 y4[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y1_ { float y1[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Yu_ { uint yu[]; };
layout(set = 0, binding = 4, std430) readonly buffer R_ { vec4 residual4[]; };
layout(set = 0, binding = 4, std430) readonly buffer R1_ { float residual1[]; };
layout(set = 0, binding = 4, std430) readonly buffer List_ { uint list[]; };
layout(set = 0, binding = 5, std430) readonly buffer Step_ { uint step_n_row; };

uint n_row = 0u;                               // open_rows() sets it
uint first_place = 0u, first_tile = 0u;        // EXPERTS: of this expert, in the list and in the weights

// The first of the workgroup's `bm` rows; with EXPERTS, counted among the rows of its expert. The workgroup has nothing
// to do if that is n_row or more.
uint open_rows(uint bm) {
    if (EXPERTS == 0u) {
        n_row = args.from_step == 1u ? min(args.n_row, step_n_row) : args.n_row;
        return gl_WorkGroupID.x * bm;
    }
    if (gl_WorkGroupID.x >= list[kListCount + args.list_size]) return 0u;
    const uint entry = list[kListEntry + args.first_entry + gl_WorkGroupID.x], e = entry & 4095u,
        first = list[kListFirst + e];
    if (e - args.first_expert >= args.n_expert) return 0u;
    n_row = list[kListFirst + e + 1u] - first;
    first_place = kListEntry + args.n_row + first;
    first_tile = (e - args.first_expert) * args.n_tile;
    return entry >> 12;
}

uint row_out(uint row) {
    uint at = row;
    if (EXPERTS == 1u) at = list[first_place + row];
    return at;
}
uint row_in(uint row) {
    uint at = row;
    if (EXPERTS == 1u) at = row_out(row) / args.divide;
    return at;
}
uint tile_of(uint tile) { return first_tile + tile; }

float row_factor(uint row) {
    float f = args.factor;
    if (SCALED == 1u) f *= scale[args.scale_offset + row_in(row)];
    return f;
}

// Writes four neighbouring values of a row of y, beginning with value n.
void write_four(uint row, uint n, vec4 v) {
    if (row >= n_row || n >= args.d_out) return;
    const uint at = args.y_offset + row_out(row) * args.y_stride + n, from = args.residual_offset + row_out(row)
        * args.residual_stride + n;
    if (n + 4u <= args.d_out) {
        if (EPILOGUE == kEpilogueAdd) v += residual4[from >> 2];
        y4[at >> 2] = v;
        return;
    }
    for (uint i = 0u; n + i < args.d_out; i++) {
        if (EPILOGUE == kEpilogueAdd) v[i] += residual1[from + i];
        y1[at + i] = v[i];
    }
}

vec4 swiglu(vec4 gate, vec4 up) {
    vec4 v = gate / (1.0 + exp(-gate));
    if (args.limit > 0.0) {
        v = min(v, vec4(args.limit));
        up = clamp(up, vec4(-args.limit), vec4(args.limit));
    }
    return v * up;
}

// Applies swiglu and writes four neighbouring values of a row of y, beginning with value n.
void write_swiglu(uint row, uint n, vec4 gate, vec4 up) {
    if (row >= n_row || n >= args.d_out) return;
    const vec4 v = swiglu(gate, up);
    if (EPILOGUE == kEpilogueHalves) {
        const vec4 h = clamp(v * (1.0 / kHalvesFactor), vec4(-65504.0), vec4(65504.0));
        const uint at = args.y_offset + row_out(row) * args.y_stride + (place(n) >> 1);
        const uvec2 bits = round_halves(h);
        yu[at] = bits.x;
        yu[at + 1u] = bits.y;
        if (EXACT == 1u) {
            const uvec2 rest = rest_halves(h, bits, args.first_row & 15u);
            yu[at + (args.y_stride >> 1)] = rest.x;
            yu[at + (args.y_stride >> 1) + 1u] = rest.y;
        }
        return;
    }
    const uint at = args.y_offset + row_out(row) * args.y_stride + n;
    if (n + 4u <= args.d_out) {
        y4[at >> 2] = v;
        return;
    }
    for (uint i = 0u; n + i < args.d_out; i++) y1[at + i] = v[i];
}
#endif

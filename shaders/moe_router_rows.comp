#version 450
// moe_router_rows.comp: moe_router.comp for prompts, with its bits.
//
// Buffers as moe_router.comp
// Push    RouterArgs, without the chain
// Spec    NORM 0 or 1
// Grid    x: ceil(n_out / kRouterTile), y: ceil(n_row / kRouterTile). Group 256: two by two tiles of four rows and four
//         outputs, each of 64 invocations
// Shared  1460 floats
// Cost    w is read once per 8 rows, x once per 8 outputs
// Order   that of moe_router.comp: an invocation's columns in turn, then halves are added
// CPU     src/machine/cpu/moe.cpp
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "moe_args.h"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint NORM = 1u;
layout(push_constant) uniform Push { RouterArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer W_ { vec4 w[]; };
layout(set = 0, binding = 1, std430) readonly buffer X_ { vec4 x[]; };
layout(set = 0, binding = 2, std430) readonly buffer N_ { vec4 norm[]; };
layout(set = 0, binding = 3, std430) writeonly buffer L_ { float logits[]; };
layout(set = 0, binding = 4, std430) readonly buffer Step_ { uint step_n_row; };
const uint ROWS = kRouterTile / 2u, OUTS = ROWS;  // of a tile; docs/JOURNAL.md has the times of others
const uint LANES = 64u, SUMS = OUTS + 1u;  // sums of a row: its outputs, its squares
shared float parts_s[4u * SUMS * (LANES + 1u)];
shared float eighths_s[4u * SUMS * 8u];

// Adds halves: 0 to 4, 1 to 5 ..; then 0 to 2, 1 to 3; then both.
float halves(float v[8]) {
    precise float a = v[0] + v[4], b = v[1] + v[5], c = v[2] + v[6], d = v[3] + v[7];
    precise float s = (a + c) + (b + d);
    return s;
}

// Of sum i, the parts of invocations first, first + 8 .. first + 56.
float eighth_sum(uint tile, uint i, uint first) {
    float v[8];
    [[unroll]] for (uint j = 0u; j < 8u; j++) v[j] = parts_s[(tile * SUMS + i) * (LANES + 1u) + first + 8u * j];
    return halves(v);
}

// Sum i of its eighths.
float whole_sum(uint tile, uint i) {
    float v[8];
    [[unroll]] for (uint j = 0u; j < 8u; j++) v[j] = eighths_s[(tile * SUMS + i) * 8u + j];
    return halves(v);
}

void main() {
    if (args.from_step == 1u && gl_WorkGroupID.y * 2u * ROWS >= step_n_row) return;
    const uint me = gl_LocalInvocationIndex, lane = me % LANES, tile = me / LANES, n4 = args.d_in >> 2;
    const uint row0 = (gl_WorkGroupID.y * 2u + (tile & 1u)) * ROWS, out0 = (gl_WorkGroupID.x * 2u + (tile >> 1)) * OUTS;
    float acc[ROWS][OUTS], squares[ROWS];
    [[unroll]] for (uint t = 0u; t < ROWS; t++) {
        squares[t] = 0.0;
        [[unroll]] for (uint o = 0u; o < OUTS; o++) acc[t][o] = 0.0;
    }
    for (uint k = lane; k < n4; k += LANES) {
        vec4 wv[OUTS];
        [[unroll]] for (uint o = 0u; o < OUTS; o++) wv[o] = w[min(out0 + o, args.n_out - 1u) * n4 + k];
        const vec4 m = NORM == 1u ? norm[k] : vec4(1.0);
        [[unroll]] for (uint t = 0u; t < ROWS; t++) {
            const vec4 v = x[((min(row0 + t, args.n_row - 1u) * args.x_stride) >> 2) + k];
            precise vec4 a = v * m;
            squares[t] = fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, fma(v.x, v.x, squares[t]))));
            [[unroll]] for (uint o = 0u; o < OUTS; o++)
                acc[t][o] = fma(wv[o].w, a.w, fma(wv[o].z, a.z, fma(wv[o].y, a.y, fma(wv[o].x, a.x, acc[t][o]))));
        }
    }
    [[unroll]] for (uint t = 0u; t < ROWS; t++) {
        const uint base = tile * SUMS * (LANES + 1u) + lane;
        [[unroll]] for (uint o = 0u; o < OUTS; o++) parts_s[base + o * (LANES + 1u)] = acc[t][o];
        parts_s[base + OUTS * (LANES + 1u)] = squares[t];
        barrier();
        if (lane / 8u < SUMS) eighths_s[tile * SUMS * 8u + lane] = eighth_sum(tile, lane / 8u, lane % 8u);
        barrier();
        if (lane < OUTS && out0 + lane < args.n_out && row0 + t < args.n_row) {
            precise float v = whole_sum(tile, lane)
                * (NORM == 1u ? inversesqrt(fma(whole_sum(tile, OUTS), args.inv_d, args.eps)) : 1.0);
            logits[(row0 + t) * args.n_out + out0 + lane] = v;
        }
    }
}

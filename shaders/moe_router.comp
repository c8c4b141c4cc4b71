#version 450
// moe_router.comp: scores of every expert, in float, for the rows of a step. moe_router_rows.comp is for prompts.
//
// Formula logits = (x * norm / rms(x)) router'; without NORM x router'
// Buffers 0 w       f32 [n_out, d_in]                                  read
//         1 x       f32 [n_row, x_stride]                              read
//         2 norm    f32 [d_in]                            (NORM)       read
//         3 logits  f32 [n_row, n_out]                                 written
//         4 step    StepState, its first word             (from_step)  read; counters of chain.glsl written
// Push    RouterArgs
// Spec    X_ROWS 1 or 2: rows of a workgroup. NORM 0 or 1. CHAINED: chain.glsl
// Grid    x: ceil(n_out / 2), y: ceil(n_row / X_ROWS). Group 128: 64 invocations share an output
// Shared  256 * X_ROWS floats
// Cost    w is read once per X_ROWS rows
// Order   an invocation's columns in turn, then halves are added: a row's bits depend on the row alone, be it one of
//         nine or of thousands; the sum of squares is computed here, alike for both
// CPU     src/machine/cpu/moe.cpp
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "moe_args.h"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint X_ROWS = 1u;      // rows of a workgroup
layout(constant_id = 2) const uint NORM = 1u;   // 1: x * norm / rms(x) instead of x
layout(constant_id = 3) const uint CHAINED = 0u;
layout(push_constant) uniform Push { RouterArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer W_ { vec4 w[]; };
layout(set = 0, binding = 1, std430) readonly buffer X_ { vec4 x[]; };
layout(set = 0, binding = 2, std430) readonly buffer N_ { vec4 norm[]; };
layout(set = 0, binding = 3, std430) writeonly buffer L_ { float logits[]; };
layout(set = 0, binding = 1, std430) readonly coherent buffer Xc_ { vec4 chained_x[]; };
layout(set = 0, binding = 4, std430) readonly buffer Step_ { uint step_n_row; };
layout(set = 0, binding = 4, std430) coherent buffer Words_ { uint words[]; };
#define CHAIN_WORDS words
#include "chain.glsl"
const uint LANES = 64u, AHEAD = 4u;
shared float red[128u * 2u * X_ROWS];

vec4 x_at(uint i) {
    if (CHAINED != 0u) return chained_x[i];
    return x[i];
}

void main() {
    const uint me = gl_LocalInvocationIndex, lane = me % LANES, row0 = gl_WorkGroupID.y * X_ROWS;
    const uint o = gl_WorkGroupID.x * 2u + me / LANES, n4 = args.d_in >> 2;
    if (args.from_step == 1u && row0 >= step_n_row) {
        chain_skip();
        return;
    }
    chain_wait();
    float acc[X_ROWS], squares[X_ROWS];
    [[unroll]] for (uint t = 0u; t < X_ROWS; t++) acc[t] = squares[t] = 0.0;
    const uint from = min(o, args.n_out - 1u) * n4;
    for (uint k0 = lane; k0 < n4; k0 += LANES * AHEAD) {
        vec4 wv[AHEAD], m[AHEAD];
        [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
            const uint k = k0 + i * LANES;
            wv[i] = k < n4 ? w[from + k] : vec4(0.0);
            m[i] = NORM == 1u && k < n4 ? norm[k] : vec4(1.0);
        }
        [[unroll]] for (uint t = 0u; t < X_ROWS; t++) {
            const uint at = (min(row0 + t, args.n_row - 1u) * args.x_stride) >> 2;
            [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
                const uint k = k0 + i * LANES;
                const vec4 v = k < n4 ? x_at(at + k) : vec4(0.0);
                precise vec4 a = v * m[i];
                squares[t] = fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, fma(v.x, v.x, squares[t]))));
                acc[t] = fma(wv[i].w, a.w, fma(wv[i].z, a.z, fma(wv[i].y, a.y, fma(wv[i].x, a.x, acc[t]))));
            }
        }
    }
    [[unroll]] for (uint t = 0u; t < X_ROWS; t++) {
        red[(2u * t) * 128u + me] = acc[t];
        red[(2u * t + 1u) * 128u + me] = squares[t];
    }
    for (uint n = LANES / 2u; n > 0u; n >>= 1) {
        barrier();
        if (lane < n) {
            [[unroll]] for (uint i = 0u; i < 2u * X_ROWS; i++) {
                precise float both = red[i * 128u + me] + red[i * 128u + me + n];
                red[i * 128u + me] = both;
            }
        }
    }
    [[unroll]] for (uint t = 0u; t < X_ROWS; t++) {
        if (lane != 0u || o >= args.n_out || row0 + t >= args.n_row) break;
        precise float v = red[2u * t * 128u + me] * (NORM == 1u
            ? inversesqrt(fma(red[(2u * t + 1u) * 128u + me], args.inv_d, args.eps)) : 1.0);
        logits[(row0 + t) * args.n_out + o] = v;
    }
    chain_done();
}

#version 450
// embed.comp: rows of the token embedding, decoded from the tiles that the head reads, and their sums of squares for
// the norm that follows.
//
// Formula y[row] = W[id]; out[row, i] = sum of squares of y[row, 16 i .. 16 i + 15]
// Buffers 0 w    tiles as in quant/tile.glsl                     read
//         1 ids  u32 [row], or a context's step buffer           read
//         2 y    f32 [row, d_in]                                 written
//         3 out  f32 [row, d_in / 16]                            written
// Push    EmbedArgs
// Grid    x: column tile (n_col), y: row of the step. Group 8
// Cost    one row of the matrix and 4 * d_in bytes a row
// Order   as matvec leaves sums of squares
// Slices  a matrix cut into slices takes one dispatch each; one of them writes a row
// CPU     src/machine/cpu, embed
// variant: embed_<layout>
#extension GL_GOOGLE_include_directive : require
#include "args.h"
#include "matvec_args.h"
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { EmbedArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer W_ { uvec4 w[]; };
layout(set = 0, binding = 1, std430) readonly buffer I_ { uint ids[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y_ { float y[]; };
layout(set = 0, binding = 3, std430) writeonly buffer O_ { float out_[]; };
#include "quant/tile.glsl"
shared float part[64];

void main() {
    const uint me = gl_LocalInvocationIndex, t = me & 3u, j = me >> 2, row = gl_WorkGroupID.y, c = gl_WorkGroupID.x;
    open_layout(me);
    uint from = args.id_offset + row;
    if (args.in_step != 0u) {  // words of StepState: 0 n_row, 1 position, 6 token_shift; the history follows
        if (row >= ids[0]) return;
        from = kHistoryWord + ((ids[1] + ids[6] + row) % kHistory);
    }
    const uint id = ids[from];
    const bool outside = id >= args.d_out;
    if (me >= 8u || (outside ? args.first_row != 0u : id < args.first_row || id >= args.first_row + args.n_row)) return;
    const uint mine = outside ? 0u : id - args.first_row;
    vec4 v[8];
    unpack(((mine >> 4) * args.n_col + c) * TILE, mine & 15u, j, t, v);
    for (uint i = 0u; i < 8u; i++) {
        const uint k = c * 256u + j * 128u + i * 16u + t * 4u;
        vec4 a = outside ? vec4(0.0) : v[i];
        if (k < args.d_in) {
            const uint at = args.y_offset + row * args.y_stride + k;
            y[at] = a.x; y[at + 1u] = a.y; y[at + 2u] = a.z; y[at + 3u] = a.w;
        }
        part[(j * 8u + i) * 4u + t] = fma(a.w, a.w, fma(a.z, a.z, fma(a.y, a.y, a.x * a.x)));
    }
    barrier();
    for (uint b = me; b < 16u; b += 8u) {
        if (c * 256u + b * 16u < args.d_in)
            out_[args.out_offset + row * args.out_stride + c * 16u + b] = (part[b * 4u] + part[b * 4u + 1u])
                + (part[b * 4u + 2u] + part[b * 4u + 3u]);
    }
}

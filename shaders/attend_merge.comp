#version 450
// attend_merge.comp: joins the chunks of attend_step.comp in order and applies the output gate.
//
// Grid    x: head, y: row (kMaxRows, or as many as the pass may have).   Group  256 invocations.
// Spec    0 group size, always 256     1 D 256 (128): d_head
// Memory  0 step   StepState                              read
//         1 acts   f32: q (for interleaved gates), gate   read
//         2 part   3 stat   as attend_step wrote them     read
//         4 out    f32 by offset                          written
// Push    AttendArgs, the same as attend_step's.
// Order   stream c mod STREAMS takes chunk c (absolute); streams are then added in order. Chunks a row
//         does not see have weight 0: an exact no-op.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "step_common.glsl"

layout(constant_id = 1) const uint D = 256;
layout(local_size_x_id = 0) in;  // always 256
layout(push_constant) uniform Push { AttendArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) readonly buffer Acts { float acts[]; };
layout(set = 0, binding = 2, std430) readonly buffer Part { vec4 part[]; };
layout(set = 0, binding = 3, std430) readonly buffer Stat { vec2 stat[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Out { float result[]; };

const uint QUADS = D / 4u;
const uint STREAMS = 256u / QUADS;
shared float top_s[256];
shared vec4 o_s[256];
shared float sum_s[STREAMS];

void main() {
    const uint n_row = step.n_row, row = gl_WorkGroupID.y, h = gl_WorkGroupID.x;
    if (row >= n_row) return;
    const uint t = gl_LocalInvocationIndex;
    const Chunks seen = chunks_seen(step.position, n_row, args.window, args.sinks, step.first_key);
    const uint n_chunk = chunks_count(seen);
    const uint at = row * args.n_head + h;

    float top = kMasked;
    for (uint x = t; x < n_chunk; x += 256u) top = max(top, stat[x * args.part_stride + at].x);
    top_s[t] = top;
    barrier();
    [[unroll]] for (uint n = 128u; n > 0u; n >>= 1) {
        if (t < n) top_s[t] = max(top_s[t], top_s[t + n]);
        barrier();
    }
    top = top_s[0];

    const uint quad = t % QUADS, stream = t / QUADS;
    vec4 o = vec4(0.0);
    precise float sum = 0.0;
    // The first x whose chunk belongs to this stream, in each of the two runs of chunks.
    for (uint run = 0u; run < 2u; run++) {
        const uint c_begin = run == 0u ? 0u : seen.first, c_end = run == 0u ? seen.n_sink : seen.end;
        const uint x_begin = run == 0u ? 0u : seen.n_sink;
        uint c = c_begin + (stream + STREAMS - c_begin % STREAMS) % STREAMS;
        for (; c < c_end; c += 4u * STREAMS) {
            vec2 w[4];
            vec4 v[4];
            [[unroll]] for (uint u = 0u; u < 4u; u++) {
                const uint cu = c + u * STREAMS;
                const uint from = (x_begin + min(cu, c_end - 1u) - c_begin) * args.part_stride + at;
                w[u] = stat[from];
                v[u] = part[from * QUADS + quad];
                if (cu >= c_end) w[u] = vec2(kMasked, 0.0);
            }
            [[unroll]] for (uint u = 0u; u < 4u; u++) {
                precise float e = exp(w[u].x - top);
                e = w[u].x > kMasked ? e : 0.0;
                sum = fma(e, w[u].y, sum);
                o = fma(vec4(e), v[u], o);
            }
        }
    }
    o_s[t] = o;
    if (quad == 0u) sum_s[stream] = sum;
    barrier();
    if (stream != 0u) return;
    precise vec4 all = o;
    precise float total = sum;
    for (uint k = 1u; k < STREAMS; k++) {
        all = all + o_s[k * QUADS + quad];
        total = total + sum_s[k];
    }
    precise vec4 y = all / total;
    const bool inter = (args.flags & kAttendInterleaved) != 0u;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        const uint v = quad * 4u + i;
        precise float z = y[i];
        if (inter) z = z * sigmoid(acts[args.q_offset + row * args.q_stride + h * 2u * D + D + v]);
        else if ((args.flags & kAttendPerHead) != 0u) z = z * sigmoid(acts[args.gate_offset + row * args.gate_stride + h]);
        result[args.out_offset + row * args.out_stride + h * D + v] = z;
    }
}

// attend_common.glsl: norm, rotation and cache addresses, shared by every attention kernel, so that a
// key has the same bits whoever wrote it.
//
// Declared by the including kernel before this file: args (AttendArgs), vec4 q_norm[], k_norm[], rope[]
// (one uvec2 per pair: the frequency in turns per position, times 2^64, low word first), D, K_TYPE, QUADS (D / 4),
// LANE_GROUPS (group size / 8), STREAMS (group size / QUADS), HEADS, ROUNDS, shared vec4 q_s[HEADS * QUADS],
// shared float sums_s[LANE_GROUPS * ROUNDS].

#include "rotation.glsl"

uint place(uint quad) {  // where the lanes of the first product read columns 4 quad .. + 3
    if (K_TYPE != kKvF16) return (quad % (QUADS / 8u)) * 8u + quad / (QUADS / 8u);  // each has D / 8 neighbours
    return (quad & ~15u) + (quad & 1u) * 8u + ((quad >> 1) & 7u);
}

// Norms, scales and rotates ROUNDS times STREAMS heads, one invocation per quad of a head: x[r] are this
// invocation's raw values of head `row + r STREAMS`, which go to that row of q_s (rows from HEADS on are
// dropped). Every invocation of the workgroup comes here.
void norm_rotate(vec4 x[ROUNDS], uint position[ROUNDS], uint quad, uint row, bool is_key, float scale) {
    const uint t = gl_LocalInvocationIndex;
    const bool normed = (args.flags & (is_key ? kAttendKNorm : kAttendQNorm)) != 0u;
    const bool rotates = quad < args.n_rot / 8u;
    vec4 w = vec4(1.0);
    if (normed) w = is_key ? k_norm[quad] : q_norm[quad];
    uvec2 turn[4];
    [[unroll]] for (uint e = 0u; e < 4u; e++) turn[e] = rotates ? rope[quad * 4u + e] : uvec2(0u);
    if (normed) {
        [[unroll]] for (uint r = 0u; r < ROUNDS; r++) {
            precise vec4 squares = x[r] * x[r];
            const float sum = group_sum(add4(squares));
            if ((t & 7u) == 0u) sums_s[r * LANE_GROUPS + (t >> 3)] = sum;
        }
        barrier();
    }
    [[unroll]] for (uint r = 0u; r < ROUNDS; r++) {
        precise vec4 y = x[r] * scale;
        if (normed) {
            precise float all = 0.0;
            const uint from = r * LANE_GROUPS + (t / QUADS) * (QUADS / 8u);
            [[unroll]] for (uint i = 0u; i < QUADS / 8u; i++) all = all + sums_s[from + i];
            precise float unit = inversesqrt(all / float(D) + args.eps) * scale;
            y = (x[r] * unit) * w;
        }
        x[r] = y;
        if (row + r * STREAMS < HEADS) q_s[(row + r * STREAMS) * QUADS + place(quad)] = y;
    }
    barrier();
    if (rotates)
        [[unroll]] for (uint r = 0u; r < ROUNDS; r++) {
            const uint at = (row + r * STREAMS) * QUADS;
            if (row + r * STREAMS >= HEADS) continue;
            const uint far = at + place(quad + args.n_rot / 8u);
            const vec4 y = x[r], z = q_s[far];
            vec4 c, d;
            [[unroll]] for (uint e = 0u; e < 4u; e++) {
                const vec2 cs = rotation(position[r], turn[e]);
                c[e] = cs.x;
                d[e] = cs.y;
            }
            precise vec4 first = y * c - z * d, second = y * d + z * c;
            q_s[at + place(quad)] = first;
            q_s[far] = second;
        }
    barrier();
}

uint slot_of(uint p) {
    return p < args.sinks ? p : args.sinks + (p - args.sinks) % args.ring;
}

bool visible(uint key, uint row) {
    return key <= row && key >= step.first_key && (args.window == 0u || row - key < args.window || key < args.sinks);
}

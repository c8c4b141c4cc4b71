// attend_common.glsl: norm and rotation of q and k, shared by attend_step, attend_mma and kv_append, so that a key has
// the same bits whichever kernel wrote it.
//
// The including kernel declares before this file: what attend_prologue.glsl declares with APPENDS (rope[]: one uvec2
// per pair, the frequency in turns per position times 2^64, low word first), D_HEAD, K_TYPE, QUADS (D_HEAD / 4),
// AT_ONCE (heads at a time, at most group size / QUADS), shared float sums_s[group size / 8], and shared vec4
// q_s[rows * QUADS]. A kernel where other data shares these words defines Q_S(i) in place of q_s[i], Q_BITS(x) to
// convert from float, and Q_FLOAT(x) to convert to float.

#include "rotation.glsl"

#ifndef FLAGS
#define FLAGS args.flags
#endif
#ifndef Q_S
#define Q_S(i) q_s[i]
#define Q_BITS(x) x
#define Q_FLOAT(x) x
#endif

uint place(uint quad) {  // where the lanes of the first product read columns 4 quad .. + 3
    if (K_TYPE != kKvF16) return (quad % (QUADS / 8u)) * 8u + quad / (QUADS / 8u);  // each has D_HEAD / 8 neighbours
    return (quad & ~15u) + (quad & 1u) * 8u + ((quad >> 1) & 7u);
}

// Normalises, scales and rotates AT_ONCE heads, one invocation per quad of a head: x are this invocation's raw values
// of head `stream`, of KV row `position`; the result goes to row `row` of q_s. Every invocation of the workgroup calls
// it; streams from AT_ONCE on have no head. Kept short: code that runs once costs its instruction fetches.
void norm_rotate(vec4 x, uint position, uint quad, uint stream, uint row, bool is_key, float scale) {
    const uint t = gl_LocalInvocationIndex;
    const bool normed = (FLAGS & (is_key ? kAttendKNorm : kAttendQNorm)) != 0u;
    const uint n_pair = args.n_rot / 2u;
    const uvec2 turn = quad < n_pair ? rope[quad] : uvec2(0u);  // on its way meanwhile
    precise float unit = scale;
    vec4 w = vec4(1.0);
    if (normed) {
        w = is_key ? k_norm[quad] : q_norm[quad];
        precise vec4 squares = x * x;
        const float sum = group_sum(add4(squares));
        if ((t & 7u) == 0u) sums_s[t >> 3] = sum;
        barrier();
        precise float all = 0.0;
        [[dont_unroll]] for (uint i = 0u; i < QUADS / 8u; i++) all = all + sums_s[stream * (QUADS / 8u) + i];
        unit = inversesqrt(all / float(D_HEAD) + args.eps) * scale;
    }
    if (stream < AT_ONCE) {
        precise vec4 y = (x * unit) * w;
        Q_S(row * QUADS + place(quad)) = Q_BITS(y);
    }
    barrier();
    if (stream < AT_ONCE)
        [[dont_unroll]] for (uint pair = quad; pair < n_pair; pair += QUADS) {
            const uint a = row * QUADS + place(pair / 4u), b = row * QUADS + place((pair + n_pair) / 4u);
            const vec2 cs = rotation(position + step.rotary_shift, pair == quad ? turn : rope[pair]);
            const float y = Q_FLOAT(Q_S(a)[pair & 3u]), z = Q_FLOAT(Q_S(b)[pair & 3u]);
            precise float first = y * cs.x - z * cs.y, second = y * cs.y + z * cs.x;
            Q_S(a)[pair & 3u] = Q_BITS(first);
            Q_S(b)[pair & 3u] = Q_BITS(second);
        }
    barrier();
}

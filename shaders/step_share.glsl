// step_share.glsl: reads what sample_share wrote. Needs args, share[] and groups of a multiple of 32.

shared float share_s[gl_WorkGroupSize.x];

// Adds up the guesses from `first` on, one for each 32 invocations. The whole workgroup calls it.
void read_shares(uint first) {
    const uint t = gl_LocalInvocationIndex, from = (first + t / 32u) * args.n_part;
    precise float sum = 0.0;
    for (uint i = t % 32u; i < args.n_part; i += 32u) sum += share[from + i];
    share_s[t] = sum;
    barrier();
}

// Guess first + i is at least as likely as asked for.
bool is_likely(uint i) {
    precise float sum = 0.0;
    for (uint k = 0u; k < 32u; k++) sum += share_s[32u * i + k];
    return sum * args.min_probability <= 1.0;
}

// sample_largest.glsl: the largest logit of a row from sample_part's slices, for every invocation. Needs part[], args.

shared float largest_s[256];

float row_largest(uint row) {
    const uint t = gl_LocalInvocationIndex;
    float highest = kMasked;
    for (uint i = t; i < args.n_part; i += gl_WorkGroupSize.x)
        highest = max(highest, uintBitsToFloat(part[row * args.n_part + i].x));
    largest_s[t] = highest;
    barrier();
    for (uint n = gl_WorkGroupSize.x / 2u; n > 0u; n >>= 1) {
        if (t < n) largest_s[t] = max(largest_s[t], largest_s[t + n]);
        barrier();
    }
    return largest_s[0];
}

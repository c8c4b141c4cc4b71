// rms_common.glsl: the RMS norm of one row by a workgroup of a power of two invocations.
//
// The including kernel defines X(i), value i of its row, and W(i), the weight of column i; and has `args.width` and
// `args.eps`.
// Order   an invocation sums its columns in turn, then halves are added: the same for any number of rows

shared float sum_s[gl_WorkGroupSize.x];

// 1 / rms of the row. Every invocation calls it.
float rms_unit() {
    const uint t = gl_LocalInvocationIndex;
    float sum = 0.0;
    for (uint i = t; i < args.width; i += 8u * gl_WorkGroupSize.x) {
        float v[8];  // eight loads on their way
        [[unroll]] for (uint u = 0u; u < 8u; u++) {
            const uint k = i + u * gl_WorkGroupSize.x;
            v[u] = k < args.width ? X(k) : 0.0;
        }
        [[unroll]] for (uint u = 0u; u < 8u; u++) sum = fma(v[u], v[u], sum);
    }
    sum_s[t] = sum;
    barrier();
    for (uint n = gl_WorkGroupSize.x / 2u; n > 0u; n >>= 1) {
        if (t < n) {
            precise float both = sum_s[t] + sum_s[t + n];
            sum_s[t] = both;
        }
        barrier();
    }
    precise float unit = inversesqrt(sum_s[0] / float(args.width) + args.eps);
    return unit;
}

// y[to ..] = the row, normed.
#define WRITE_NORMED(y, to, unit) \
    for (uint i = gl_LocalInvocationIndex; i < args.width; i += 4u * gl_WorkGroupSize.x) { \
        float v[4], w[4]; \
        [[unroll]] for (uint u = 0u; u < 4u; u++) { \
            const uint k = i + u * gl_WorkGroupSize.x; \
            v[u] = k < args.width ? X(k) : 0.0; \
            w[u] = k < args.width ? W(k) : 0.0; \
        } \
        [[unroll]] for (uint u = 0u; u < 4u; u++) { \
            precise float z = (v[u] * (unit)) * w[u]; \
            if (i + u * gl_WorkGroupSize.x < args.width) y[(to) + i + u * gl_WorkGroupSize.x] = z; \
        } \
    }

#version 450
// gemm_pack.comp: rows of floats to rows of halves for gemm*.comp, with or without RMS norm.
//
// Formula y = round(x * norm / rms(x) / 2^e), scale = 2^e; without NORM y = round(x / 2^e)
// Buffers 0 x      f32 [n_row, d_in]                                              read
//         1 norm   f32 [d_in]                                      (NORM)         read
//         2 y      f16 [n_row, 256 n_col], in places (gemm_common.glsl); EXACT: [n_row, 2, 256 n_col]    written
//         3 scale  f32 [n_row]                                                    written
//         4 part   f32 [n_row, d_in / 16]: sums of squares of x    (SQUARES)      written
//         5 step   StepState, its first word                       (from_step)    read
// Push    GemmPackArgs
// Spec    NORM, SQUARES 0 or 1. EXACT 1: what rounding left follows each row
// Grid    x: row. Group a power of two, 32 .. 256
// Cost    6 * d_in bytes a row
// Numbers e brings the largest value of a row into 2^10 .. 2^11: halves cannot overflow, and values down to 2^-24 of
//         the largest keep their eleven bits
// Order   sums in an invocation, then a tree over the group: nothing depends on the number of rows
// CPU     src/machine/cpu, rms_norm
#extension GL_GOOGLE_include_directive : require
#include "gemm_args.h"
#include "gemm_common.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint NORM = 1u;      // 1: x * norm / rms(x) instead of x
layout(constant_id = 2) const uint SQUARES = 0u;   // 1: write part
layout(constant_id = 3) const uint EXACT = 0u;     // 1: write what rounding left behind each row
layout(push_constant) uniform Push { GemmPackArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer X_ { vec4 x[]; };
layout(set = 0, binding = 1, std430) readonly buffer N_ { vec4 norm[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y_ { uvec2 y[]; };
layout(set = 0, binding = 3, std430) writeonly buffer S_ { float scale[]; };
layout(set = 0, binding = 4, std430) writeonly buffer P_ { float part[]; };
layout(set = 0, binding = 5, std430) readonly buffer Step_ { uint step_n_row; };
shared float sum_s[gl_WorkGroupSize.x];
shared float max_s[gl_WorkGroupSize.x];

void main() {
    const uint me = gl_LocalInvocationIndex, n = gl_WorkGroupSize.x, row = gl_WorkGroupID.x;
    if (args.from_step == 1u && row >= step_n_row) return;
    const uint from = (args.x_offset + row * args.x_stride) >> 2, n4 = args.d_in >> 2;
    float sum = 0.0, largest = 0.0;
    for (uint k = me; k < n4; k += n) {
        const vec4 v = x[from + k];
        sum = fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, fma(v.x, v.x, sum))));
        const vec4 a = abs(NORM == 1u ? v * norm[k] : v);
        largest = max(largest, max(max(a.x, a.y), max(a.z, a.w)));
    }
    sum_s[me] = sum;
    max_s[me] = largest;
    for (uint half_n = n >> 1; half_n > 0u; half_n >>= 1) {
        barrier();
        if (me < half_n) {
            sum_s[me] += sum_s[me + half_n];
            max_s[me] = max(max_s[me], max_s[me + half_n]);
        }
    }
    barrier();
    const float factor = NORM == 1u ? inversesqrt(fma(sum_s[0], args.inv_d, args.eps)) : 1.0;
    // The exponent of the largest value, with 127 added; kept where both 2^e and 2^-e are normal.
    const uint e = clamp(floatBitsToUint(max_s[0] * factor) >> 23, 20u, 254u);
    const float down = uintBitsToFloat((264u - e) << 23);   // 2^(10 + 127 - e)
    if (me == 0u) scale[args.scale_offset + row] = uintBitsToFloat((e - 10u) << 23);
    const uint to = (args.y_offset + row * args.y_stride) * 2u;
    for (uint k = me; k < args.n_col * 64u; k += n) {
        vec4 v = vec4(0.0);
        if (k < n4) {
            v = x[from + k] * factor;
            if (NORM == 1u) v *= norm[k];
            v *= down;
        }
        const uvec2 bits = round_halves(v);
        y[to + (place(4u * k) >> 2)] = bits;
        if (EXACT == 1u) y[to + args.n_col * 64u + (place(4u * k) >> 2)] = rest_halves(v, bits, args.d_in & 3u);
    }
    if (SQUARES == 1u) {
        for (uint b = me; b < args.d_in >> 4; b += n) {
            float q = 0.0;
            for (uint i = 0u; i < 4u; i++) {
                const vec4 v = x[from + 4u * b + i];
                q += fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, v.x * v.x)));
            }
            part[args.part_offset + row * args.part_stride + b] = q;
        }
    }
}

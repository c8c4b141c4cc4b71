#version 450
// selftest.comp: what a driver must compute correctly before its results are trusted.
//
// Buffers 0 in   u32; matrix: f16       read
//         1 out  u32; matrix: f32       written
// Push    n: elements (half, dot: words; shuffle: lanes), or the length of a row, a multiple of 8 (rows)
// Grid    x: groups of 64. Group 64 invocations; matrix: one subgroup
// half    out[i] = bits of unpackHalf2x16(in[i]).x, out[n + i] = of .y
// rows    N_ROW rows of length n, then W [n]; out[t] = bits of sum over k of in[t, k] * W[k], summed by 8 lanes: each
//         its own multiply-adds with a scale as in a quantised product, then a fixed tree. Row 0 must not depend on
//         N_ROW, although N_ROW changes how the compiler unrolls
// shuffle out[i] = sum of the 8 lanes around i by xor 1, 2, 4
// dot     out[i] = packed signed dot product of in[i] and in[n + i]
// matrix  A [UNIT_M, UNIT_K], then B [UNIT_K, UNIT_N], as halves; out [UNIT_M, UNIT_N] = A B as floats
// Host    src/machine/vulkan/selftest.cpp: inputs and expected answers
// variant: selftest_half -DHALF
// variant: selftest_rows -DROWS
// variant: selftest_shuffle -DSHUFFLE
// variant: selftest_dot -DDOT
// variant: selftest_matrix_nv -DMATRIX @nv
// variant: selftest_matrix_khr -DMATRIX @khr
#if defined(SHUFFLE)
#extension GL_KHR_shader_subgroup_shuffle : require
#endif
#if defined(DOT)
#extension GL_EXT_spirv_intrinsics : require
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int dot4(int a, int b, spirv_literal int packed_format);
#endif
#if defined(MATRIX)
#extension GL_KHR_memory_scope_semantics : require
#extension GL_NV_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
layout(constant_id = 1) const uint UNIT_M = 16;  // three constants, although often equal: see @khr
layout(constant_id = 2) const uint UNIT_N = 16;
layout(constant_id = 3) const uint UNIT_K = 16;
layout(set = 0, binding = 0, std430) readonly buffer In { float16_t from[]; };
layout(set = 0, binding = 1, std430) buffer Out { float to[]; };
#else
#if defined(ROWS)
layout(constant_id = 1) const uint N_ROW = 1;
#endif
layout(set = 0, binding = 0, std430) readonly buffer In { uint from[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Out { uint to[]; };
#endif
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { uint n; };

#if defined(ROWS)
shared float lane_sum[N_ROW * 8];
#endif

void main() {
    const uint i = gl_GlobalInvocationID.x;
#if defined(HALF)
    if (i >= n) return;
    const vec2 v = unpackHalf2x16(from[i]);
    to[i] = floatBitsToUint(v.x);
    to[n + i] = floatBitsToUint(v.y);
#elif defined(SHUFFLE)
    // All lanes take part: the host gives whole groups.
    precise float v = uintBitsToFloat(from[i]);
    v += subgroupShuffleXor(v, 1u);
    v += subgroupShuffleXor(v, 2u);
    v += subgroupShuffleXor(v, 4u);
    to[i] = floatBitsToUint(v);
#elif defined(DOT)
    if (i >= n) return;
    to[i] = uint(dot4(int(from[i]), int(from[n + i]), 0));
#elif defined(MATRIX)
    fcoopmatNV<16, gl_ScopeSubgroup, UNIT_M, UNIT_K> a;
    fcoopmatNV<16, gl_ScopeSubgroup, UNIT_K, UNIT_N> b;
    fcoopmatNV<32, gl_ScopeSubgroup, UNIT_M, UNIT_N> c = fcoopmatNV<32, gl_ScopeSubgroup, UNIT_M, UNIT_N>(0.0);
    coopMatLoadNV(a, from, 0u, UNIT_K, false);
    coopMatLoadNV(b, from, UNIT_M * UNIT_K, UNIT_N, false);
    c = coopMatMulAddNV(a, b, c);
    coopMatStoreNV(c, to, n, UNIT_N, false);
#elif defined(ROWS)
    const uint lane = gl_LocalInvocationID.x;
    if (lane < 8u) {
        float sum[N_ROW];
        for (uint t = 0u; t < N_ROW; t++) sum[t] = 0.0;
        for (uint k = lane; k < n; k += 8u) {
            const float w = uintBitsToFloat(from[N_ROW * n + k]);
            precise float scale = w * 0.0078125;
            for (uint t = 0u; t < N_ROW; t++) sum[t] = fma(scale, uintBitsToFloat(from[t * n + k]), sum[t]);
        }
        for (uint t = 0u; t < N_ROW; t++) lane_sum[t * 8u + lane] = sum[t];
    }
    barrier();
    if (lane < N_ROW) {
        precise float a = lane_sum[lane * 8u] + lane_sum[lane * 8u + 1u];
        precise float b = lane_sum[lane * 8u + 2u] + lane_sum[lane * 8u + 3u];
        precise float c = lane_sum[lane * 8u + 4u] + lane_sum[lane * 8u + 5u];
        precise float d = lane_sum[lane * 8u + 6u] + lane_sum[lane * 8u + 7u];
        precise float ab = a + b;
        precise float cd = c + d;
        precise float all = ab + cd;
        to[lane] = floatBitsToUint(all);
    }
#endif
}

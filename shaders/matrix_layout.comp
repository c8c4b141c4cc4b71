#version 450
// matrix_layout.comp: which elements of a 16x8x16 matrix an invocation holds. Runs once when a device opens:
// matvec_mma, attend_mma and attend_tile fill their matrices element by element.
//
// Buffers 0 halves  f16 [256]: 0, 1, .. 255                                       read
//         1 floats  f32 [128]: 0, 1, .. 127                                       read
//         2 seen    f32 [32, 16]: of each invocation 8 elements of A, 4 of C and 4 of B   written
// Spec    UNIT_M, UNIT_N, UNIT_K 16, 8, 16
// Grid    1. Group 32, one full subgroup
// Host    matrix_layout_fits() in tune.h
// variant: matrix_layout @khr
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_NV_cooperative_matrix : require
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint UNIT_M = 16u;
layout(constant_id = 2) const uint UNIT_N = 8u;
layout(constant_id = 3) const uint UNIT_K = 16u;
layout(set = 0, binding = 0, std430) readonly buffer H_ { float16_t halves[]; };
layout(set = 0, binding = 1, std430) readonly buffer F_ { float floats[]; };
layout(set = 0, binding = 2, std430) writeonly buffer S_ { float seen[]; };

void main() {
    const uint at = gl_LocalInvocationIndex * 16u;
    fcoopmatNV<16, gl_ScopeSubgroup, UNIT_M, UNIT_K> a;
    fcoopmatNV<16, gl_ScopeSubgroup, UNIT_K, UNIT_N> b = fcoopmatNV<16, gl_ScopeSubgroup, UNIT_K, UNIT_N>(0.0);
    fcoopmatNV<32, gl_ScopeSubgroup, UNIT_M, UNIT_N> c;
    coopMatLoadNV(a, halves, 0u, UNIT_K, false);
    coopMatLoadNV(c, floats, 0u, UNIT_N, false);
    c = coopMatMulAddNV(a, b, c);   // c + 0: names the three roles
    [[unroll]] for (uint i = 0u; i < 8u; i++) seen[at + i] = float(a[i]);
    [[unroll]] for (uint i = 0u; i < 4u; i++) seen[at + 8u + i] = c[i];
    coopMatLoadNV(b, halves, 0u, UNIT_N, false);
    [[unroll]] for (uint i = 0u; i < 4u; i++) seen[at + 12u + i] = float(b[i]);
}

#version 450
// touch.comp: reads weights that the next kernels will want, so that they find them in the second-level cache.
// Runs beside a kernel that leaves most of the device idle; nothing depends on it.
//
// Grid    x: n / 2048 (rounded up).   Group  256 (spec 0).
// Memory  0 w    units of 16 bytes      read
//         1 out  u32                    never written
// Push    uint n: units to read; zero: 0.
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { uint n, zero; };
layout(set = 0, binding = 0, std430) readonly buffer W_ { uvec4 w[]; };
layout(set = 0, binding = 1, std430) writeonly buffer O_ { uint never[]; };

void main() {
    // One unit of each 128-byte line is enough.
    const uint line = gl_WorkGroupID.x * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
    if (line * 8u >= n) return;
    const uvec4 v = w[line * 8u];
    if (zero != 0u) never[0] = v.x ^ v.y ^ v.z ^ v.w;  // what is not used would not be read
}

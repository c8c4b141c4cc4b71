// attend_prologue.glsl: the arguments and buffers of the attention kernels of steps and of those that append, and which
// keys a row sees.
//
// The including kernel defines before this file
//   ACTS      element type of activations and norm weights: float, or vec4 where offsets are multiples of 4
//   K_UNIT    element type of the key cache: uvec2, or uvec4 where a key is read 16 bytes at a time
//   CACHE     access to the caches: readonly, writeonly, or coherent (read and written)
//   READ      access to activations; readonly without it
//   APPENDS   the kernel normalises, rotates and stores keys (buffers 2 .. 6); else it reads queries that kv_append or
//             kv_any left (buffers 2 .. 5)
// and includes step_common.glsl. It declares its specialization constants and the buffers that it alone has.

#ifndef READ
#define READ readonly
#endif
layout(push_constant) uniform Push { AttendArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer Step { StepState step; };
layout(set = 0, binding = 1, std430) READ buffer Acts { ACTS acts[]; };
#ifdef APPENDS
layout(set = 0, binding = 2, std430) readonly buffer QNorm { ACTS q_norm[]; };
layout(set = 0, binding = 3, std430) readonly buffer KNorm { ACTS k_norm[]; };
layout(set = 0, binding = 4, std430) readonly buffer Rope { uvec2 rope[]; };
layout(set = 0, binding = 5, std430) CACHE buffer K { K_UNIT k_cache[]; };
layout(set = 0, binding = 6, std430) CACHE buffer V { uvec2 v_cache[]; };
#else
layout(set = 0, binding = 2, std430) readonly buffer Query { float query[]; };
layout(set = 0, binding = 3, std430) CACHE buffer K { K_UNIT k_cache[]; };
layout(set = 0, binding = 4, std430) CACHE buffer V { uvec2 v_cache[]; };
layout(set = 0, binding = 5, std430) writeonly buffer Out { float result[]; };
#endif

#include "attend_visible.glsl"

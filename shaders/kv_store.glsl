// kv_store.glsl: stores rows of keys and values in their caches, shared by every kernel that writes them, so that a
// row has the same bits whichever kernel wrote it. Rounding is that of src/base/number_encode.cpp.
//
// The including kernel declares before this file: what kv_formats.glsl requires, LANE_GROUPS (group size / 8), and
// K_PUT(row, quad, w) where k_cache is not uvec2[].
#include "kv_formats.glsl"

#ifndef K_PUT
#define K_PUT(row, quad, w) K_HALVES(row, quad) = w
#endif
shared uint scale_s[K_TYPE + V_TYPE != 0u ? 2u * LANE_GROUPS : 4u];

struct KvCodes {
    uint codes;  // bytes of q8_0; nibbles in the low halves of bytes
    uint scale;  // of the block; q4_1: low above
};

// Four values of a block, whose eight quads are in the eight invocations of a lane group.
KvCodes kv_encode(uint type, vec4 x) {
    float low = 0.0, span, steps;  // the block's range, and into how many steps it is cut
    if (type == kKvQ41) {
        low = -group_max(max(max(-x.x, -x.y), max(-x.z, -x.w)));
        precise float range = group_max(max(max(x.x, x.y), max(x.z, x.w))) - low;
        span = range;
        steps = 15.0;
    } else {
        float highest = x.x;
        highest = abs(x.y) > abs(highest) ? x.y : highest;
        highest = abs(x.z) > abs(highest) ? x.z : highest;
        highest = abs(x.w) > abs(highest) ? x.w : highest;
        span = group_max(abs(highest));
        steps = 127.0;
        if (type == kKvQ40) {  // the first of the largest magnitude decides the sign
            uint first = abs(highest) == span ? (gl_LocalInvocationIndex & 7u) * 2u + (highest < 0.0 ? 1u : 0u) : 16u;
            first = min(first, neighbour(first, 1u));
            first = min(first, neighbour(first, 2u));
            first = min(first, neighbour(first, 4u));
            span = (first & 1u) != 0u ? -span : span;
            steps = -8.0;
        }
    }
    precise float d = span / steps;
    precise float inverse = d != 0.0 ? 1.0 / d : 0.0;
    precise vec4 above = x - low;
    precise vec4 p = above * inverse;
    vec4 codes;
    if (type == kKvQ8) {  // to nearest, half away from zero
        const vec4 whole = trunc(p), rest = p - whole;
        codes = clamp(whole + vec4(greaterThanEqual(rest, vec4(0.5))) - vec4(lessThanEqual(rest, vec4(-0.5))), -128.0,
            127.0);
    } else {
        precise vec4 q = p + (type == kKvQ40 ? 8.5 : 0.5);
        codes = clamp(trunc(q), 0.0, 15.0);
    }
    uvec4 c = uvec4(ivec4(codes)) & (type == kKvQ8 ? 255u : 15u);
    if (type == kKvQ40) c ^= 8u;
    return KvCodes(c.x | c.y << 8 | c.z << 16 | c.w << 24, half_bits(d) | (type == kKvQ41 ? half_bits(low) << 16 : 0u));
}

uvec2 kv_halves(vec4 x) {
    uvec2 w = uvec2(0u);
    [[dont_unroll]] for (uint i = 0u; i < 4u; i++) {  // one copy of the code: it runs once
        w = uvec2(w.x >> 16 | w.y << 16, w.y >> 16 | half_bits(x.x) << 16);
        x = x.yzwx;
    }
    return w;
}

// Stores a quad of a key and of its value; rows are slots of all heads, h * capacity + slot. Every invocation
// of the workgroup comes here, eight neighbours with a block each; `real` is the same for a whole row. A barrier
// must stand before the next call.
void kv_store(bool real, uint row, uint quad, vec4 k, vec4 v) {
    const uint group = gl_LocalInvocationIndex >> 3;
    if (K_TYPE == kKvF16) {
        if (real) K_PUT(row, quad, kv_halves(k));
    } else {
        const KvCodes x = kv_encode(K_TYPE, k);
        const uint both = K_TYPE == kKvQ8 ? x.codes : x.codes | neighbour(x.codes, 1u) << 4;
        if (real && (K_TYPE == kKvQ8 || (quad & 1u) == 0u)) K_WORD(row * kv_code_words(K_TYPE) + k_code(quad)) = both;
        if (K_TYPE != kKvQ41) scale_s[group] = x.scale;
        else if (real && (quad & 7u) == 0u) K_WORD(kv_scales(K_TYPE, row) + quad / 8u) = x.scale;
    }
    if (V_TYPE == kKvF16) {
        if (real) V_HALVES(row, quad) = kv_halves(v);
    } else {
        const KvCodes x = kv_encode(V_TYPE, v);
        const uint both = V_TYPE == kKvQ8 ? x.codes : x.codes | neighbour(x.codes, 1u) << 4;
        if (real && (V_TYPE == kKvQ8 || (quad & 1u) == 0u)) V_WORD(row * kv_code_words(V_TYPE) + v_code(quad)) = both;
        if (V_TYPE != kKvQ41) scale_s[LANE_GROUPS + group] = x.scale;
        else if (real && (quad & 7u) == 0u) V_WORD(kv_scales(V_TYPE, row) + quad / 8u) = x.scale;
    }
    const bool k_pairs = K_TYPE == kKvQ8 || K_TYPE == kKvQ40, v_pairs = V_TYPE == kKvQ8 || V_TYPE == kKvQ40;
    if (!k_pairs && !v_pairs) return;
    barrier();
    if (!real || (quad & 15u) != 0u) return;
    const bool odd = quad + 8u >= D_HEAD / 4u;  // the last block of an odd number
    if (k_pairs) K_WORD(kv_scales(K_TYPE, row) + quad / 16u) = scale_s[group] | (odd ? 0u : scale_s[group + 1u] << 16);
    if (v_pairs) V_WORD(kv_scales(V_TYPE, row) + quad / 16u) =
        scale_s[LANE_GROUPS + group] | (odd ? 0u : scale_s[LANE_GROUPS + group + 1u] << 16);
}

// step_common.glsl: what the kernels that hold state share.
//
// Lanes   a lane group is 8 neighbouring invocations; a sum runs inside a lane first, then over the group by xor 1, 2,
//         4. That order never depends on the device or on the rows of a step.
// Bits    multiply-adds are written fma(); everything else that rounds is `precise`, so that no driver contracts it in
//         one pipeline and not in another.
//
// A kernel that also runs where subgroups have no shuffles, or fewer than 8 invocations, defines SHARED_LANES before it
// includes this file: its group size. The whole workgroup must then call what exchanges values.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_GOOGLE_include_directive : require
#include "args.h"

// The value of the invocation whose index differs in `bit`.
#ifdef SHARED_LANES
shared uint lanes_s[SHARED_LANES];
uint neighbour(uint x, uint bit) {
    barrier();  // the values of the last exchange have been read
    lanes_s[gl_LocalInvocationIndex] = x;
    barrier();
    return lanes_s[gl_LocalInvocationIndex ^ bit];
}
float neighbour(float x, uint bit) { return uintBitsToFloat(neighbour(floatBitsToUint(x), bit)); }
#else
#define neighbour(x, bit) subgroupShuffleXor(x, bit)
#endif

// The largest finite float, negated: the score of what is not visible.
const float kMasked = -3.4028234e38;

float group_sum(float x) {
    precise float s = x;
    s = s + neighbour(s, 1u);
    s = s + neighbour(s, 2u);
    s = s + neighbour(s, 4u);
    return s;
}

// The four sums a lane keeps, in a fixed order.
float add4(vec4 x) {
    precise float s = (x.x + x.y) + (x.z + x.w);
    return s;
}

// One level of summing two values over a lane group: lanes with the bit keep the second, the others the first. Three
// levels (1, 2, 4) sum eight values with 7 shuffles and leave value i in lane i; the order of each sum is that of
// group_sum.
float reduce_pair(float first, float second, uint lane, uint bit) {
    const bool upper = (lane & bit) != 0u;
    precise float s = (upper ? second : first) + neighbour(upper ? first : second, bit);
    return s;
}

float group_max(float x) {
    x = max(x, neighbour(x, 1u));
    x = max(x, neighbour(x, 2u));
    x = max(x, neighbour(x, 4u));
    return x;
}

float sigmoid(float x) {
    precise float e = exp(-abs(x));
    precise float d = 1.0 + e;
    precise float r = (x >= 0.0 ? 1.0 : e) / d;
    return r;
}

float silu(float x) {
    precise float r = x * sigmoid(x);
    return r;
}

// log(1 + e) for e in [0, 1], without losing small e.
float log1p_small(float e) {
    precise float u = 1.0 + e;
    precise float d = u - 1.0;
    precise float r = log(u) * (e / (d > 0.0 ? d : 1.0));
    return d > 0.0 ? r : e;
}

float softplus(float x) {
    precise float r = max(x, 0.0) + log1p_small(exp(-abs(x)));
    return r;
}

// The bits of x as binary16, to nearest even, in integers: packHalf2x16 may round otherwise.
uint half_bits(float x) {
    uint b = floatBitsToUint(x);
    uint sign = (b >> 16) & 0x8000u;
    b &= 0x7fffffffu;
    if (b >= 0x47800000u) return sign | (b > 0x7f800000u ? 0x7e00u : 0x7c00u);
    if (b < 0x38800000u) {  // below the smallest normal: round on a fixed exponent
        if (b < 0x33000000u) return sign;
        uint shift = 126u - (b >> 23);  // 14 .. 24
        uint m = (b & 0x7fffffu) | 0x800000u;
        uint h = m >> shift;
        uint rest = m & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
        if (rest > tie || (rest == tie && (h & 1u) != 0u)) h++;
        return sign | h;
    }
    b += 0xfffu + ((b >> 13) & 1u);
    return sign | ((b - 0x38000000u) >> 13);
}

// Chunks of positions (args.h). `window` decides the layout: small windows use even chunks.
bool chunk_even(uint window) {
    return window > 0u && window <= kChunk * kChunkOctave;
}

uint chunk_begin(uint c, uint window) {
    if (chunk_even(window)) return c * kChunk;
    uint o = c / kChunkOctave;
    return (kChunk * kChunkOctave) * ((1u << o) - 1u) + ((c % kChunkOctave) * kChunk << o);
}

uint chunk_of(uint p, uint window) {
    if (chunk_even(window)) return p / kChunk;
    uint o = uint(findMSB(p / (kChunk * kChunkOctave) + 1u));
    return o * kChunkOctave + (((p - (kChunk * kChunkOctave) * ((1u << o) - 1u)) / kChunk) >> o);
}

// The chunks a pass can see: [0, n_sink) and [first, end).
struct Chunks {
    uint n_sink, first, end;
};

Chunks chunks_seen(uint position, uint n_row, uint window, uint sinks, uint first_key) {
    Chunks c;
    c.end = chunk_of(position + n_row - 1u, window) + 1u;
    c.n_sink = window > 0u && sinks > 0u ? min(chunk_of(sinks - 1u, window) + 1u, c.end) : 0u;
    uint oldest = window > 0u && position + 1u > window ? position + 1u - window : 0u;
    oldest = max(oldest, first_key);
    c.first = max(chunk_of(oldest, window), c.n_sink);
    return c;
}

uint chunks_count(Chunks c) {
    return c.n_sink + (c.end - c.first);
}

uint chunks_at(Chunks c, uint x) {
    return x < c.n_sink ? x : c.first + (x - c.n_sink);
}

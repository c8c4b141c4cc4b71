// sample_common.glsl: definitions shared by the sampling kernels.
//
// Mass    exp(l - largest) in units of 2^-24, truncated to an integer: sums of masses are exact, so they do not depend
//         on the order in which invocations add.
// Noise   Philox4x32-10, key = seed, counter = (id / 4, position, 0, 0), word id mod 4; E = -log1p(-v) with v = (r +
//         0.5) / 2^32; the sampled id has the largest l / T - log(E), ties to the lower id.
// Source  Salmon 2011 (Philox)

// A logit as it is compared: a NaN is below all others. By its bits, because a driver may assume that there are none.
float logit_of(float x) {
    return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u ? kMasked : x;
}

// Order-preserving bits of a float (larger value, larger key).
uint key_of(float x) {
    const uint b = floatBitsToUint(x);
    return (b & 0x80000000u) != 0u ? ~b : b | 0x80000000u;
}

float value_of(uint key) {
    return uintBitsToFloat((key & 0x80000000u) != 0u ? key & 0x7fffffffu : ~key);
}

uint mass_of(float x, float largest) {
    precise float e = exp(x - largest) * 16777216.0;
    return uint(min(e, 16777216.0));
}

// Histogram bin: 1/64 of a nat below the largest each; the last one holds the rest.
uint bin_of(float x, float largest) {
    precise float d = (largest - x) * 64.0;
    return d < float(kSampleBins - 1u) ? uint(d) : kSampleBins - 1u;
}

uint philox_word(uint id, uint position, uvec2 key) {
    uvec4 c = uvec4(id >> 2, position, 0u, 0u);
    for (uint i = 0u; i < 10u; i++) {
        uint h0, l0, h1, l1;
        umulExtended(0xD2511F53u, c.x, h0, l0);
        umulExtended(0xCD9E8D57u, c.z, h1, l1);
        c = uvec4(h1 ^ c.y ^ key.x, l1, h0 ^ c.w ^ key.y, l0);
        key += uvec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return c[id & 3u];
}

// l / T plus Gumbel noise; the logit itself at temperature 0.
float noisy(float x, uint id, uint position, float temperature, uvec2 key) {
    if (temperature <= 0.0) return x;
    const uint r = philox_word(id, position, key);
    precise float e;
    if (r < 0x40000000u) {  // E = 2 atanh(v / (2 - v)), without losing small v
        precise float v = (float(r) + 0.5) * 2.3283064365386963e-10;
        precise float z = v / (2.0 - v);
        precise float z2 = z * z;
        e = fma(z2, 0.11111111, 0.14285714);
        e = fma(z2, e, 0.2);
        e = fma(z2, e, 0.33333333);
        e = fma(z2, e, 1.0);
        e = 2.0 * z * e;
    } else {
        precise float u = (float(~r) + 0.5) * 2.3283064365386963e-10;
        e = -log(u);
    }
    precise float s = x / temperature - log(e);
    return s;
}

// 0 where the largest logit / T is beyond float: no noise could change the order.
float temperature_of(SampleArgs s, float largest) {
    precise float scaled = largest / s.temperature;
    return (floatBitsToUint(scaled) & 0x7fffffffu) < 0x7f800000u ? s.temperature : 0.0;
}

bool filtered(SampleArgs s) {
    return s.top_k > 0u || s.top_p < 1.0;
}

float floor_of(SampleArgs s, float largest) {  // min-p: what lies below is dropped
    return s.min_p > 0.0 ? largest + log(s.min_p) : kMasked;
}

// Kernels that work on one row, value by value: norm, gates, convolution, conversion. Part of kernels.inl.
//
// Cost    every kernel here reads and writes its arguments once. Counterparts on the GPU: shaders/rms_rows.comp,
//         swiglu_rows.comp, delta_gate.comp, delta_mix.comp, kv_store.glsl. Plain form: loops_reference.cpp.

/// The lane sum in sum4's order.
inline float sum_of(V a) {
    const V four[4] = {a, a, a, a};
    float out[4];
    sum4(four, out);
    return out[0];
}

/// e^x + c, the sum rounded once. e^x is within 1 unit in the last place; 0 below -104, e^88 above 88.
/// x = n ln 2 + r; e^r is a minimax polynomial on |r| <= ln 2 / 2 (relative error 3e-9).
AUSPEX_INLINE V exp_plus(V x, V c) {
    x = vmax(splat(-104.0f), vmin(splat(88.0f), x));
    const V n = nearest(mul(x, splat(1.44269504f)));
    V r = fnma(n, splat(0.693145751953125f), x);  // the leading bits of ln 2: n times them is exact
    r = fnma(n, splat(1.42860682e-6f), r);
    V p = splat(0.00138145406f);
    p = fma(p, r, splat(0.00836874545f));
    p = fma(p, r, splat(0.041668389f));
    p = fma(p, r, splat(0.166665211f));
    p = fma(p, r, splat(0.49999994f));
    p = fma(mul(p, r), r, r);
    p = add(p, splat(1.0f));
    // 2^n in two factors, because n may reach down to the smallest subnormal.
    const V half = floor_of(mul(n, splat(0.5f)));
    return fma(mul(p, power_of_two(half)), power_of_two(sub(n, half)), c);
}
// The divisors below stay finite: under -freciprocal-math a compiler multiplies by the reciprocal, and infinity times
// its reciprocal is a NaN. Holding e^x at e^88 changes a result by less than 1e-36.
AUSPEX_INLINE V sigmoid(V x) { return div(splat(1.0f), exp_plus(sub(zero(), x), splat(1.0f))); }
AUSPEX_INLINE V silu(V x) { return div(vmax(splat(-104.0f), x), exp_plus(sub(zero(), x), splat(1.0f))); }

/// y[i] = x[i] / sqrt(mean(x^2) + eps) * w[i]; x, y [n] f32, w [n] f32 or null. Sums in float, 4 W chains, added in
/// double.
inline void rms_norm(const float* x, const float* w, float* y, uint32_t n, float eps) {
    V acc[4] = {zero(), zero(), zero(), zero()};
    uint32_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W) {
        AUSPEX_UNROLL
        for (uint32_t v = 0; v < 4; ++v) {
            const V a = load(x + i + v * W);
            acc[v] = fma(a, a, acc[v]);
        }
    }
    for (; i < n; i += W) {
        const V a = n - i < W ? load_n(x + i, n - i, 0.0f) : load(x + i);
        acc[0] = fma(a, a, acc[0]);
    }
    float sums[4];
    sum4(acc, sums);
    const double sum = (double{sums[0]} + double{sums[1]}) + (double{sums[2]} + double{sums[3]});
    const V scale = splat(static_cast<float>(1.0 / std::sqrt(sum / n + double{eps})));
    for (i = 0; i + W <= n; i += W) {
        const V a = mul(load(x + i), scale);
        store(y + i, w ? mul(a, load(w + i)) : a);
    }
    if (i < n) {
        const V a = mul(load_n(x + i, n - i, 0.0f), scale);
        store_n(y + i, w ? mul(a, load_n(w + i, n - i, 0.0f)) : a, n - i);
    }
}

enum class Gate { swiglu, swiglu_limit, silu, sigmoid };
/// b times the gate's function of a; a swiglu with a limit clamps both factors.
template <Gate kGate>
AUSPEX_INLINE V gate(V a, V b, float limit) {
    if (kGate == Gate::sigmoid) return mul(b, sigmoid(a));
    V s = silu(a);
    if (kGate == Gate::swiglu_limit) {
        s = vmin(splat(limit), s);
        b = vmax(splat(-limit), vmin(splat(limit), b));
    }
    return mul(s, b);
}
template <Gate kGate>
AUSPEX_INLINE void gate_all(const float* a, const float* b, float* y, uint32_t n, float limit) {
    uint32_t i = 0;
    for (; i + W <= n; i += W) store(y + i, gate<kGate>(load(a + i), load(b + i), limit));
    if (i < n) store_n(y + i, gate<kGate>(load_n(a + i, n - i, 0.0f), load_n(b + i, n - i, 0.0f), limit), n - i);
}
/// y[i] = min(silu(g[i]), limit) * clamp(u[i], -limit, limit), [n] f32; limit 0: no clamps.
inline void swiglu(const float* g, const float* u, float* y, uint32_t n, float limit) {
    if (limit > 0)
        gate_all<Gate::swiglu_limit>(g, u, y, n, limit);
    else
        gate_all<Gate::swiglu>(g, u, y, n, limit);
}
/// y[i] = x[i] * silu(z[i]), [n] f32.
inline void silu_gate(const float* x, const float* z, float* y, uint32_t n) { gate_all<Gate::silu>(z, x, y, n, 0.0f); }
/// y[i] = x[i] * sigmoid(z[i]), [n] f32.
inline void sigmoid_gate(const float* x, const float* z, float* y, uint32_t n) {
    gate_all<Gate::sigmoid>(z, x, y, n, 0.0f);
}

/// m <= W channels from c on, for any number of taps.
AUSPEX_INLINE V conv_part(const float* const* taps, const float* w, uint32_t c, uint32_t n_tap, uint32_t m) {
    V sum = zero();
    for (uint32_t j = 0; j < n_tap; ++j) {
        float t[W] = {};
        for (uint32_t i = 0; i < m; ++i) t[i] = w[size_t{c + i} * n_tap + j];
        sum = fma(load(t), load_n(taps[j] + c, m, 0.0f), sum);
    }
    return silu(sum);
}
/// y[c] = silu(sum over j < n_tap of w[c][j] taps[j][c]); taps [n_tap] rows of [n] f32, w [n, n_tap] f32, y [n] f32.
inline void conv_silu(const float* const* taps, const float* w, float* y, uint32_t n, uint32_t n_tap) {
    uint32_t c = 0;
    if (n_tap == 4) {
        const float *t0 = taps[0], *t1 = taps[1], *t2 = taps[2], *t3 = taps[3];
        for (; c + W <= n; c += W) {
            V t[4];
            load_taps4(w + size_t{c} * 4, t);
            V sum = fma(t[0], load(t0 + c), zero());
            sum = fma(t[1], load(t1 + c), sum);
            sum = fma(t[2], load(t2 + c), sum);
            store(y + c, silu(fma(t[3], load(t3 + c), sum)));
        }
    }
    for (; c + W <= n; c += W) store(y + c, conv_part(taps, w, c, n_tap, W));
    if (c < n) store_n(y + c, conv_part(taps, w, c, n_tap, n - c), n - c);
}

/// y[i] = x[i] rounded to nearest even; x [n] f32, y [n] f16.
inline void to_f16(const float* x, uint16_t* y, uint32_t n) {
    uint32_t i = 0;
    for (; i + W <= n; i += W) store_f16(y + i, load(x + i));
    if (i < n) {
        uint16_t t[W];
        store_f16(t, load_n(x + i, n - i, 0.0f));
        std::memcpy(y + i, t, sizeof(uint16_t) * (n - i));
    }
}

/// o[i] = a o[i] + b p[i], [n] f32: adds a partial result of attention, or of an expert.
inline void merge(float* o, float a, const float* p, float b, uint32_t n) {
    uint32_t i = 0;
    for (; i + W <= n; i += W) store(o + i, fma(load(p + i), splat(b), mul(load(o + i), splat(a))));
    if (i < n)
        store_n(o + i, fma(load_n(p + i, n - i, 0.0f), splat(b), mul(load_n(o + i, n - i, 0.0f), splat(a))), n - i);
}

/// The first n lanes, or all of them if n >= W; the rest are 0.
AUSPEX_INLINE V part_load(const float* p, uint32_t n) { return n < W ? load_n(p, n, 0.0f) : load(p); }
AUSPEX_INLINE void part_store(float* p, V v, uint32_t n) {
    if (n < W)
        store_n(p, v, n);
    else
        store(p, v);
}

/// Sum of a[i] b[i], i < n, in W chains.
inline float dot(const float* a, const float* b, uint32_t n) {
    V acc = zero();
    uint32_t i = 0;
    for (; i + W <= n; i += W) acc = fma(load(a + i), load(b + i), acc);
    if (i < n) acc = fma(load_n(a + i, n - i, 0.0f), load_n(b + i, n - i, 0.0f), acc);
    return sum_of(acc);
}

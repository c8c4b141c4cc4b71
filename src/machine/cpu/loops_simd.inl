// The inner loops of ops.h, written once for every instruction set. A file that pastes this has opened
// a namespace, allowed its instructions for every function that follows, and defined the vocabulary:
//
//   V, W                     a vector of floats and its lanes
//   load, store, load_n, store_n (first n lanes), load_f16, load_f16_n, store_f16, splat, zero
//   add, sub, mul, div, vmin, vmax, floor_of, nearest, power_of_two (of a whole number)
//   fma(a, b, c) = a b + c, fnma(a, b, c) = c - a b, each rounded once
//   sum4(v, out)             the lane sums of four vectors, each in the same fixed order
//   splat_f16(p), load_i8(p), load_nibbles(p, shift)   of a half; of W signed bytes; of W nibbles at bit 0 or 4
//   max_of, load_taps4       largest lane; W channels of [n, 4] as four vectors
//   kWide, kTile, kScore, kPairs   how many vectors the registers hold, per loop; kStreamRows: see delta_stream
//
// Order   Every sum of products is a chain of explicit fma. No product feeds an addition, so a compiler
//         that contracts a*b + c finds nothing to contract and the bits are the source's.
// Tails   go through the same vector code with fewer lanes: a value's bits do not depend on its place.
#if defined(__GNUC__)
#define AUSPEX_LOOPS_INLINE inline __attribute__((always_inline))
#else
#define AUSPEX_LOOPS_INLINE inline
#endif
#if defined(__clang__)
#define AUSPEX_LOOPS_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define AUSPEX_LOOPS_UNROLL _Pragma("GCC unroll 16")
#else
#define AUSPEX_LOOPS_UNROLL
#endif

inline float sum_of(V a) {
    const V four[4] = {a, a, a, a};
    float out[4];
    sum4(four, out);
    return out[0];
}

// ------------------------------------------------------------------------------ values one by one

/// e^x + c, the sum rounded once; e^x within 1 unit in the last place, 0 below -104, held at e^88 above 88.
/// x = n ln 2 + r; e^r from a polynomial fitted for least relative error (3e-9) on |r| <= ln 2 / 2.
AUSPEX_LOOPS_INLINE V exp_plus(V x, V c) {
    x = vmax(splat(-104.0f), vmin(splat(88.0f), x));
    const V n = nearest(mul(x, splat(1.44269504f)));
    V r = fnma(n, splat(0.693145751953125f), x);  // ln 2, leading bits: n times this is exact
    r = fnma(n, splat(1.42860682e-6f), r);
    V p = splat(0.00138145406f);
    p = fma(p, r, splat(0.00836874545f));
    p = fma(p, r, splat(0.041668389f));
    p = fma(p, r, splat(0.166665211f));
    p = fma(p, r, splat(0.49999994f));
    p = fma(mul(p, r), r, r);
    p = add(p, splat(1.0f));
    // 2^n in two steps, for n reaches down to the smallest subnormal.
    const V half = floor_of(mul(n, splat(0.5f)));
    return fma(mul(p, power_of_two(half)), power_of_two(sub(n, half)), c);
}
// The divisors below are finite, because a compiler that was told to be fast divides by way of the
// reciprocal, and infinity times its reciprocal is not a number. What e^-88 leaves is below 1e-36.
AUSPEX_LOOPS_INLINE V sigmoid(V x) { return div(splat(1.0f), exp_plus(sub(zero(), x), splat(1.0f))); }
AUSPEX_LOOPS_INLINE V silu(V x) { return div(vmax(splat(-104.0f), x), exp_plus(sub(zero(), x), splat(1.0f))); }

inline void rms_norm(const float* x, const float* w, float* y, uint32_t n, float eps) {
    V acc[4] = {zero(), zero(), zero(), zero()};
    uint32_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W) {
        AUSPEX_LOOPS_UNROLL
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
/// a: the value that goes through the gate's curve, b: the value it multiplies.
template <Gate kGate>
AUSPEX_LOOPS_INLINE V gate(V a, V b, float limit) {
    if (kGate == Gate::sigmoid) return mul(b, sigmoid(a));
    V s = silu(a);
    if (kGate == Gate::swiglu_limit) {
        s = vmin(splat(limit), s);
        b = vmax(splat(-limit), vmin(splat(limit), b));
    }
    return mul(s, b);
}
template <Gate kGate>
AUSPEX_LOOPS_INLINE void gate_all(const float* a, const float* b, float* y, uint32_t n, float limit) {
    uint32_t i = 0;
    for (; i + W <= n; i += W) store(y + i, gate<kGate>(load(a + i), load(b + i), limit));
    if (i < n) store_n(y + i, gate<kGate>(load_n(a + i, n - i, 0.0f), load_n(b + i, n - i, 0.0f), limit), n - i);
}
inline void swiglu(const float* g, const float* u, float* y, uint32_t n, float limit) {
    if (limit > 0)
        gate_all<Gate::swiglu_limit>(g, u, y, n, limit);
    else
        gate_all<Gate::swiglu>(g, u, y, n, limit);
}
inline void silu_gate(const float* x, const float* z, float* y, uint32_t n) { gate_all<Gate::silu>(z, x, y, n, 0.0f); }
inline void sigmoid_gate(const float* x, const float* z, float* y, uint32_t n) {
    gate_all<Gate::sigmoid>(z, x, y, n, 0.0f);
}

/// m channels from c on (m < W: a tail).
AUSPEX_LOOPS_INLINE V conv_part(const float* const* taps, const float* w, uint32_t c, uint32_t n_tap, uint32_t m) {
    V sum = zero();
    for (uint32_t j = 0; j < n_tap; ++j) {
        float t[W] = {};
        for (uint32_t i = 0; i < m; ++i) t[i] = w[size_t{c + i} * n_tap + j];
        sum = fma(load(t), load_n(taps[j] + c, m, 0.0f), sum);
    }
    return silu(sum);
}
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

inline void to_f16(const float* x, uint16_t* y, uint32_t n) {
    uint32_t i = 0;
    for (; i + W <= n; i += W) store_f16(y + i, load(x + i));
    if (i < n) {
        uint16_t t[W];
        store_f16(t, load_n(x + i, n - i, 0.0f));
        std::memcpy(y + i, t, sizeof(uint16_t) * (n - i));
    }
}

inline void merge(float* o, float a, const float* p, float b, uint32_t n) {
    uint32_t i = 0;
    for (; i + W <= n; i += W) store(o + i, fma(load(p + i), splat(b), mul(load(o + i), splat(a))));
    if (i < n)
        store_n(o + i, fma(load_n(p + i, n - i, 0.0f), splat(b), mul(load_n(o + i, n - i, 0.0f), splat(a))), n - i);
}

// -------------------------------------------------------------------------------------- attention

// How a row of keys or values is read, W values from j on. Blocks of 32 hold whole vectors, so a quantised
// row has no rest; its floats are decode_row's bits (a product of 11 and 8 bits is exact).
struct HalfRow {
    static AUSPEX_LOOPS_INLINE V at(const uint8_t* row, uint32_t j) {
        return load_f16(reinterpret_cast<const uint16_t*>(row) + j);
    }
    static AUSPEX_LOOPS_INLINE V some(const uint8_t* row, uint32_t j, uint32_t n) {
        return load_f16_n(reinterpret_cast<const uint16_t*>(row) + j, n);
    }
};
struct FloatRow {
    static AUSPEX_LOOPS_INLINE V at(const uint8_t* row, uint32_t j) {
        return load(reinterpret_cast<const float*>(row) + j);
    }
    static AUSPEX_LOOPS_INLINE V some(const uint8_t* row, uint32_t j, uint32_t n) {
        return load_n(reinterpret_cast<const float*>(row) + j, n, 0.0f);
    }
};
template <Type kRow>
struct BlockRow {
    static AUSPEX_LOOPS_INLINE V at(const uint8_t* row, uint32_t j) {
        if constexpr (kRow == Type::q8_0) {
            const uint8_t* b = row + j / 32 * 34;
            return mul(splat_f16(b), load_i8(b + 2 + j % 32));
        } else if constexpr (kRow == Type::q4_0) {
            const uint8_t* b = row + j / 32 * 18;
            return mul(splat_f16(b), sub(load_nibbles(b + 2 + j % 16, j % 32 / 16 * 4), splat(8.0f)));
        } else {
            const uint8_t* b = row + j / 32 * 20;
            return fma(splat_f16(b), load_nibbles(b + 4 + j % 16, j % 32 / 16 * 4), splat_f16(b + 2));
        }
    }
    static V some(const uint8_t*, uint32_t, uint32_t) { return zero(); }  // never: the rows are whole blocks
};

/// scores[a][c] = q[a] . k[c] for kQ queries and kK keys. One chain of multiply-adds per pair, whatever
/// the tile: converting a key to float is shared, the bits are not.
template <class Row, uint32_t kQ, uint32_t kK>
AUSPEX_LOOPS_INLINE void score_tile(const float* const* q, const uint8_t* k, size_t ld, uint32_t d, float* scores,
                                    size_t ld_scores) {
    constexpr uint32_t n = kQ * kK, n4 = (n + 3) / 4 * 4;
    V acc[n4];
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < n4; ++i) acc[i] = zero();
    uint32_t j = 0;
    for (; j + W <= d; j += W) {
        V key[kK];
        AUSPEX_LOOPS_UNROLL
        for (uint32_t c = 0; c < kK; ++c) key[c] = Row::at(k + c * ld, j);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t i = 0; i < n; ++i) acc[i] = fma(load(q[i / kK] + j), key[i % kK], acc[i]);
    }
    if (j < d) {
        AUSPEX_LOOPS_UNROLL
        for (uint32_t i = 0; i < n; ++i)
            acc[i] = fma(load_n(q[i / kK] + j, d - j, 0.0f), Row::some(k + (i % kK) * ld, j, d - j), acc[i]);
    }
    float sums[n4];
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < n4; i += 4) sum4(acc + i, sums + i);
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < n; ++i) scores[(i / kK) * ld_scores + i % kK] = sums[i];
}

/// o[a][j ..] = sum over keys, in order, of p[a][i] v[i][j ..], for kQ queries and kV vectors.
template <class Row, uint32_t kQ, uint32_t kV>
AUSPEX_LOOPS_INLINE void value_tile(const float* p, size_t ld_p, const uint8_t* v, uint32_t n_key, size_t ld,
                                    float* const* o, uint32_t j) {
    V acc[kQ * kV];
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < kQ * kV; ++i) acc[i] = zero();
    for (uint32_t key = 0; key < n_key; ++key, v += ld) {
        V value[kV];
        AUSPEX_LOOPS_UNROLL
        for (uint32_t i = 0; i < kV; ++i) value[i] = Row::at(v, j + i * W);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t i = 0; i < kQ * kV; ++i) acc[i] = fma(splat(p[(i / kV) * ld_p + key]), value[i % kV], acc[i]);
    }
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < kQ * kV; ++i) store(o[i / kV] + j + (i % kV) * W, acc[i]);
}
/// All columns: tiles of kV vectors, then of half as many, and so on; at last the lanes that are left.
template <class Row, uint32_t kQ, uint32_t kV>
AUSPEX_LOOPS_INLINE void values(const float* p, size_t ld_p, const uint8_t* v, uint32_t n_key, size_t ld, uint32_t d,
                                float* const* o, uint32_t j) {
    for (; j + kV * W <= d; j += kV * W) value_tile<Row, kQ, kV>(p, ld_p, v, n_key, ld, o, j);
    if constexpr (kV > 1) {
        values<Row, kQ, kV / 2>(p, ld_p, v, n_key, ld, d, o, j);
    } else if (j < d) {
        for (uint32_t a = 0; a < kQ; ++a) {
            V acc = zero();
            for (uint32_t key = 0; key < n_key; ++key)
                acc = fma(splat(p[a * ld_p + key]), Row::some(v + key * ld, j, d - j), acc);
            store_n(o[a] + j, acc, d - j);
        }
    }
}

/// scores become exp(scores - max); their max and sum.
inline void softmax(float* scores, uint32_t n, float* m, float* l) {
    V top = splat(-INFINITY);
    uint32_t i = 0;
    for (; i + W <= n; i += W) top = vmax(top, load(scores + i));
    if (i < n) top = vmax(top, load_n(scores + i, n - i, -INFINITY));
    *m = max_of(top);
    top = splat(*m);
    V sum = zero();
    for (i = 0; i + W <= n; i += W) {
        const V p = exp_plus(sub(load(scores + i), top), zero());
        store(scores + i, p);
        sum = add(sum, p);
    }
    if (i < n) {
        const V p = exp_plus(sub(load_n(scores + i, n - i, -INFINITY), top), zero());
        store_n(scores + i, p, n - i);
        sum = add(sum, p);
    }
    *l = sum_of(sum);
}

template <class Row, uint32_t kQ>
inline void score_rows(const float* const* q, const KvRows& k, uint32_t n_key, uint32_t d, float* scores) {
    constexpr uint32_t kK = kPairs / kQ;
    const uint8_t* at = reinterpret_cast<const uint8_t*>(k.data);
    uint32_t c = 0;
    for (; c + kK <= n_key; c += kK) score_tile<Row, kQ, kK>(q, at + c * k.stride, k.stride, d, scores + c, n_key);
    for (; c < n_key; ++c) score_tile<Row, kQ, 1>(q, at + c * k.stride, k.stride, d, scores + c, n_key);
}
template <class Row, uint32_t kQ>
inline void value_rows(const float* p, const KvRows& v, uint32_t n_key, uint32_t d, float* const* o) {
    values<Row, kQ, kPairs / kQ>(p, n_key, reinterpret_cast<const uint8_t*>(v.data), n_key, v.stride, d, o, 0);
}
template <uint32_t kQ>
inline void attend_queries(const float* const* q, const KvRows& k, const KvRows& v, uint32_t n_key, uint32_t d,
                           float* scores, float* const* m, float* const* l, float* const* o) {
    switch (k.type) {
        case Type::q8_0: score_rows<BlockRow<Type::q8_0>, kQ>(q, k, n_key, d, scores); break;
        case Type::q4_0: score_rows<BlockRow<Type::q4_0>, kQ>(q, k, n_key, d, scores); break;
        case Type::q4_1: score_rows<BlockRow<Type::q4_1>, kQ>(q, k, n_key, d, scores); break;
        case Type::f32: score_rows<FloatRow, kQ>(q, k, n_key, d, scores); break;
        default: score_rows<HalfRow, kQ>(q, k, n_key, d, scores); break;
    }
    for (uint32_t a = 0; a < kQ; ++a) softmax(scores + size_t{a} * n_key, n_key, m[a], l[a]);
    switch (v.type) {
        case Type::q8_0: value_rows<BlockRow<Type::q8_0>, kQ>(scores, v, n_key, d, o); break;
        case Type::q4_0: value_rows<BlockRow<Type::q4_0>, kQ>(scores, v, n_key, d, o); break;
        case Type::q4_1: value_rows<BlockRow<Type::q4_1>, kQ>(scores, v, n_key, d, o); break;
        case Type::f32: value_rows<FloatRow, kQ>(scores, v, n_key, d, o); break;
        default: value_rows<HalfRow, kQ>(scores, v, n_key, d, o); break;
    }
}
inline void attend_many(uint32_t n_query, const float* const* q, const KvRows& k, const KvRows& v, uint32_t n_key,
                        uint32_t d, float* scores, float* const* m, float* const* l, float* const* o) {
    uint32_t a = 0;
    for (; a + 4 <= n_query; a += 4) attend_queries<4>(q + a, k, v, n_key, d, scores, m + a, l + a, o + a);
    for (; a + 2 <= n_query; a += 2) attend_queries<2>(q + a, k, v, n_key, d, scores, m + a, l + a, o + a);
    if (a < n_query) attend_queries<1>(q + a, k, v, n_key, d, scores, m + a, l + a, o + a);
}
inline void attend(const float* q, const uint16_t* k, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d,
                   float* scores, float* m, float* l, float* o) {
    const KvRows keys = {reinterpret_cast<const std::byte*>(k), ld * sizeof(uint16_t), Type::f16};
    const KvRows vals = {reinterpret_cast<const std::byte*>(v), ld * sizeof(uint16_t), Type::f16};
    attend_queries<1>(&q, keys, vals, n_key, d, scores, &m, &l, &o);
}

// --------------------------------------------------------------------------------- DeltaNet, by rows

/// s after a term: the one place where a state changes, so that a term gives the same bits whether it is
/// applied with its own row or at the start of a later step.
AUSPEX_LOOPS_INLINE V grown(V s, V decay, V k, V u) { return fma(k, u, mul(decay, s)); }

AUSPEX_LOOPS_INLINE V part_load(const float* p, uint32_t n) { return n < W ? load_n(p, n, 0.0f) : load(p); }
AUSPEX_LOOPS_INLINE void part_store(float* p, V v, uint32_t n) {
    if (n < W)
        store_n(p, v, n);
    else
        store(p, v);
}

inline float dot(const float* a, const float* b, uint32_t n) {
    V acc = zero();
    uint32_t i = 0;
    for (; i + W <= n; i += W) acc = fma(load(a + i), load(b + i), acc);
    if (i < n) acc = fma(load_n(a + i, n - i, 0.0f), load_n(b + i, n - i, 0.0f), acc);
    return sum_of(acc);
}

/// A piece of a state: rows i from .. from + n - 1 of some columns, the first at `at`, `ld` floats apart.
struct Piece {
    const float* at;
    size_t ld;
    uint32_t from, n;
};
enum class Adds { nothing, one_term, terms };
constexpr uint32_t kStream = 256;  // columns of the walk through memory

/// One walk over kV vectors of columns (the last of m lanes): reads the state once, adds the terms
/// (pointers to u at these columns), writes it to `to` when kStore, and takes a row's k and q (both, or
/// null) into rho = S'k and sigma = S'q, which go on from what they hold.
template <uint32_t kV, Adds kAdds, bool kStore, bool kRow>
AUSPEX_LOOPS_INLINE void delta_walk(const Piece& piece, float* to, size_t ld_to, const DeltaTerm* terms,
                                    uint32_t n_term, uint32_t j0, const DeltaRow* row, float* rho_sum, float* sigma_sum,
                                    uint32_t m) {
    V rho[kV], sigma[kV], u[kV];
    AUSPEX_LOOPS_UNROLL
    for (uint32_t v = 0; v < kV; ++v) {
        rho[v] = kRow ? load(rho_sum + v * W) : zero();
        sigma[v] = kRow ? load(sigma_sum + v * W) : zero();
        u[v] = kAdds == Adds::one_term ? part_load(terms->u + j0 + v * W, v + 1 < kV ? W : m) : zero();
    }
    const V decay = kAdds == Adds::one_term ? splat(terms->decay) : zero();
    const float* term_k = kAdds == Adds::one_term ? terms->k : nullptr;
    const float *row_k = kRow ? row->k : nullptr, *row_q = kRow ? row->q : nullptr;
    const float* in = piece.at;
    for (uint32_t i = piece.from; i < piece.from + piece.n; ++i, in += piece.ld) {
        V s[kV];
        AUSPEX_LOOPS_UNROLL
        for (uint32_t v = 0; v < kV; ++v) s[v] = kV > 1 ? load(in + v * W) : part_load(in, m);
        if (kAdds == Adds::one_term) {
            const V k = splat(term_k[i]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kV; ++v) s[v] = grown(s[v], decay, k, u[v]);
        }
        if (kAdds == Adds::terms)
            for (uint32_t t = 0; t < n_term; ++t) {
                const V k = splat(terms[t].k[i]), d = splat(terms[t].decay);
                const float* tu = terms[t].u + j0;
                AUSPEX_LOOPS_UNROLL
                for (uint32_t v = 0; v < kV; ++v)
                    s[v] = grown(s[v], d, k, kV > 1 ? load(tu + v * W) : part_load(tu, m));
            }
        if (kStore) {
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kV; ++v) {
                if (kV > 1)
                    store(to + v * W, s[v]);
                else
                    part_store(to, s[v], m);
            }
            to += ld_to;
        }
        if (kRow) {
            const V k = splat(row_k[i]), q = splat(row_q[i]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kV; ++v) {
                rho[v] = fma(s[v], k, rho[v]);
                sigma[v] = fma(s[v], q, sigma[v]);
            }
        }
    }
    if (kRow) {
        AUSPEX_LOOPS_UNROLL
        for (uint32_t v = 0; v < kV; ++v) {
            store(rho_sum + v * W, rho[v]);
            store(sigma_sum + v * W, sigma[v]);
        }
    }
}

/// The row's u and o at columns j0 .. j0 + n - 1, from its sums over the state before it.
AUSPEX_LOOPS_INLINE void delta_finish(const DeltaRow& row, const float* rho, const float* sigma, uint32_t d_key,
                                      uint32_t j0, uint32_t n) {
    const V kq = splat(dot(row.k, row.q, d_key)), decay = splat(row.decay), beta = splat(row.beta);
    for (uint32_t j = 0; j < n; j += W) {
        const V u = mul(beta, fnma(decay, load(rho + j), part_load(row.v + j0 + j, n - j)));
        part_store(row.u + j0 + j, u, n - j);
        part_store(row.o + j0 + j, fma(kq, u, mul(decay, load(sigma + j))), n - j);
    }
}

/// Adds the terms to the state and runs the first row on it, through memory in the order it lies there:
/// for a single row the traffic is the cost.
template <Adds kAdds, bool kRow>
inline void delta_stream(float* s, uint32_t d_key, uint32_t d_val, const DeltaTerm* terms, uint32_t n_term,
                         const DeltaRow* row) {
    constexpr bool kStore = kAdds != Adds::nothing;
    float rho[kStream], sigma[kStream];
    for (uint32_t j0 = 0; j0 < d_val; j0 += kStream) {
        const uint32_t n_col = d_val - j0 < kStream ? d_val - j0 : kStream;
        for (uint32_t j = 0; kRow && j < n_col; j += W) {
            store(rho + j, zero());
            store(sigma + j, zero());
        }
        for (uint32_t i = 0; i < d_key; i += kStreamRows) {
            float* at = s + size_t{i} * d_val + j0;
            Piece piece = {at, d_val, i, d_key - i < kStreamRows ? d_key - i : kStreamRows};
            uint32_t j = 0;
            for (; j + kWide * W <= n_col; j += kWide * W, piece.at += kWide * W)
                delta_walk<kWide, kAdds, kStore, kRow>(piece, at + j, d_val, terms, n_term, j0 + j, row, rho + j,
                                                       sigma + j, W);
            for (; j < n_col; j += W, piece.at += W)
                delta_walk<1, kAdds, kStore, kRow>(piece, at + j, d_val, terms, n_term, j0 + j, row, rho + j, sigma + j,
                                                   n_col - j < W ? n_col - j : W);
        }
        if (kRow) delta_finish(*row, rho, sigma, d_key, j0, n_col);
    }
}

/// The rows after the first on one block of columns. Row t's walk first adds row t-1's term, so each row
/// costs one read and one write; between rows the block stays in the scratch, where it is not strided and
/// so fits the first-level cache.
template <uint32_t kV>
inline void delta_block(float* s, uint32_t d_key, uint32_t d_val, const DeltaRow* rows, uint32_t n_row, bool in_place,
                        float* scratch, uint32_t j0, uint32_t m) {
    Piece piece = {s + j0, d_val, 0, d_key};
    const uint32_t n_col = (kV - 1) * W + m;
    for (uint32_t t = 1; t < n_row; ++t) {
        const DeltaTerm last = {rows[t - 1].decay, rows[t - 1].k, rows[t - 1].u};
        float rho[kV * W] = {}, sigma[kV * W] = {};
        if (t + 1 < n_row || in_place) {
            delta_walk<kV, Adds::one_term, true, true>(piece, scratch, n_col, &last, 1, j0, rows + t, rho, sigma, m);
            piece.at = scratch;
            piece.ld = n_col;
        } else {
            delta_walk<kV, Adds::one_term, false, true>(piece, nullptr, 0, &last, 1, j0, rows + t, rho, sigma, m);
        }
        delta_finish(rows[t], rho, sigma, d_key, j0, n_col);
    }
    if (in_place) {
        const DeltaTerm last = {rows[n_row - 1].decay, rows[n_row - 1].k, rows[n_row - 1].u};
        delta_walk<kV, Adds::one_term, true, false>(piece, s + j0, d_val, &last, 1, j0, nullptr, nullptr, nullptr, m);
    }
}

inline void delta_rows(float* s, uint32_t d_key, uint32_t d_val, const DeltaTerm* terms, uint32_t n_term,
                       const DeltaRow* rows, uint32_t n_row, bool in_place, float* scratch) {
    // Every sum over i of one column is one chain in order, however the columns and rows are blocked.
    if (n_row == 0) {
        if (n_term == 1)
            delta_stream<Adds::one_term, false>(s, d_key, d_val, terms, 1, nullptr);
        else if (n_term)
            delta_stream<Adds::terms, false>(s, d_key, d_val, terms, n_term, nullptr);
        return;
    }
    if (n_term == 0)
        delta_stream<Adds::nothing, true>(s, d_key, d_val, nullptr, 0, rows);
    else if (n_term == 1)
        delta_stream<Adds::one_term, true>(s, d_key, d_val, terms, 1, rows);
    else
        delta_stream<Adds::terms, true>(s, d_key, d_val, terms, n_term, rows);
    if (n_row == 1 && !in_place) return;
    if (n_row == 1) {
        const DeltaTerm last = {rows->decay, rows->k, rows->u};
        delta_stream<Adds::one_term, false>(s, d_key, d_val, &last, 1, nullptr);
        return;
    }
    constexpr uint32_t kNarrow = kDeltaColumns / W;
    uint32_t j = 0;
    for (; j + kNarrow * W <= d_val; j += kNarrow * W)
        delta_block<kNarrow>(s, d_key, d_val, rows, n_row, in_place, scratch, j, W);
    for (; j < d_val; j += W)
        delta_block<1>(s, d_key, d_val, rows, n_row, in_place, scratch, j, d_val - j < W ? d_val - j : W);
}

// ------------------------------------------------------------------------------ DeltaNet, by chunks

/// acc[r] += sum over x < n of a[r][x] b[x], for kM rows a and kV vectors of b's columns.
template <uint32_t kM, uint32_t kV>
AUSPEX_LOOPS_INLINE void product(V* acc, const float* const* a, const float* b, size_t ld, uint32_t n) {
    V sum[kM * kV];  // a copy: some compilers keep an array in memory once any loop indexes it
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < kM * kV; ++i) sum[i] = acc[i];
    for (uint32_t x = 0; x < n; ++x, b += ld) {
        V row[kV];
        AUSPEX_LOOPS_UNROLL
        for (uint32_t v = 0; v < kV; ++v) row[v] = load(b + v * W);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kM; ++r) {
            const V f = splat(a[r][x]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kV; ++v) sum[r * kV + v] = fma(f, row[v], sum[r * kV + v]);
        }
    }
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < kM * kV; ++i) acc[i] = sum[i];
}

constexpr uint32_t kTileRows = 4;       // rows of one register tile
constexpr uint32_t kPanel = kTile * W;  // columns of one register tile
constexpr uint32_t kSubChunk = 16;      // rows solved together: see delta_chunk
static_assert(kSubChunk % (kScore * W) == 0 && kDeltaChunk % kSubChunk == 0 && kPanel <= kDeltaChunk, "tiles must fit");

/// Where delta_chunk keeps what, in its scratch.
struct ChunkPlan {
    float* kt;    ///< [d_key, kDeltaChunk] keys by column; later times their decay to the end of the sub-chunk
    float* a;     ///< [kDeltaChunk, kSubChunk] -beta_i (k_i . k_j) D_ij within the row's sub-chunk
    float* p;     ///< [kDeltaChunk, kSubChunk] (q_i . k_j) D_ij, 0 for j > i
    float* w;     ///< [kSubChunk, kPanel] V', the rows' terms
    float* s;     ///< [d_key, kPanel] columns of the state
    float* g;     ///< [kDeltaChunk] decay from the start of the sub-chunk to the end of row i
    float* rest;  ///< [kDeltaChunk] decay from the end of row i to the end of the sub-chunk
};

/// Fills a, p, g, rest and scales kt for the rows from .. from + n - 1 of a chunk.
inline void chunk_scores(const ChunkPlan& plan, const DeltaRow* rows, uint32_t from, uint32_t n, uint32_t d_key) {
    float between[kTileRows][kSubChunk] = {};  // D_ij: decay from the end of row j to the end of row i; 0 for j > i
    float run[kSubChunk] = {};
    for (uint32_t i0 = 0; i0 < n; i0 += kTileRows) {
        const float* x[2 * kTileRows];
        for (uint32_t r = 0; r < kTileRows; ++r) {
            const uint32_t i = i0 + r < n ? i0 + r : n - 1;
            x[r] = rows[from + i].k;
            x[kTileRows + r] = rows[from + i].q;
            if (i0 + r >= n) continue;
            const float decay = rows[from + i].decay;
            for (uint32_t j = 0; j < i; ++j) run[j] *= decay;
            run[i] = 1.0f;
            std::memcpy(between[r], run, sizeof run);
            plan.g[from + i] = i ? plan.g[from + i - 1] * decay : decay;
        }
        for (uint32_t c = 0; c < i0 + kTileRows; c += kScore * W) {
            V acc[2 * kTileRows * kScore];
            AUSPEX_LOOPS_UNROLL
            for (uint32_t r = 0; r < 2 * kTileRows * kScore; ++r) acc[r] = zero();
            product<2 * kTileRows, kScore>(acc, x, plan.kt + from + c, kDeltaChunk, d_key);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t r = 0; r < kTileRows; ++r) {
                if (i0 + r >= n) continue;
                const size_t at = size_t{from + i0 + r} * kSubChunk + c;
                const V minus_beta = splat(-rows[from + i0 + r].beta);
                AUSPEX_LOOPS_UNROLL
                for (uint32_t v = 0; v < kScore; ++v) {
                    const V d = load(between[r] + c + v * W);
                    store(plan.a + at + v * W, mul(mul(minus_beta, acc[r * kScore + v]), d));
                    store(plan.p + at + v * W, mul(acc[(kTileRows + r) * kScore + v], d));
                }
            }
        }
    }
    for (uint32_t j = 0; j < kSubChunk; ++j) plan.rest[from + j] = j < n ? run[j] : 0.0f;
    for (uint32_t x = 0; x < d_key; ++x)
        for (uint32_t j = 0; j < kSubChunk; j += W) {
            float* k = plan.kt + size_t{x} * kDeltaChunk + from + j;
            store(k, mul(load(k), load(plan.rest + from + j)));
        }
}

/// One sub-chunk on one panel of columns: the rows' terms w and outputs o, then the state.
inline void chunk_panel(const ChunkPlan& plan, const DeltaRow* rows, uint32_t from, uint32_t n, uint32_t d_key,
                        uint32_t j0, uint32_t n_col) {
    constexpr uint32_t n_acc = kTileRows * kTile;
    V acc[n_acc];
    const float* a[kTileRows];
    for (uint32_t i0 = 0; i0 < n; i0 += kTileRows) {
        const uint32_t m = n - i0 < kTileRows ? n - i0 : kTileRows;
        // W = beta (v - g k'S) - A W, from the top; the tile's own rows at the end, one after the other.
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < n_acc; ++r) acc[r] = zero();
        for (uint32_t r = 0; r < kTileRows; ++r) a[r] = rows[from + (i0 + r < n ? i0 + r : n - 1)].k;
        product<kTileRows, kTile>(acc, a, plan.s, kPanel, d_key);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            const uint32_t i = from + (i0 + r < n ? i0 + r : n - 1);
            const V beta = splat(rows[i].beta), g = splat(plan.g[i]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v) {
                const V value = v * W < n_col ? part_load(rows[i].v + j0 + v * W, n_col - v * W) : zero();
                acc[r * kTile + v] = mul(beta, fnma(g, acc[r * kTile + v], value));
            }
            a[r] = plan.a + size_t{i} * kSubChunk;
        }
        product<kTileRows, kTile>(acc, a, plan.w, kPanel, i0);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 1; r < kTileRows; ++r) {
            AUSPEX_LOOPS_UNROLL
            for (uint32_t y = 0; y < r; ++y) {
                const V f = splat(a[r][i0 + y]);
                AUSPEX_LOOPS_UNROLL
                for (uint32_t v = 0; v < kTile; ++v)
                    acc[r * kTile + v] = fma(f, acc[y * kTile + v], acc[r * kTile + v]);
            }
        }
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v)
                if (r < m) store(plan.w + size_t{i0 + r} * kPanel + v * W, acc[r * kTile + v]);
        }
        // o = g q'S + P W
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < n_acc; ++r) acc[r] = zero();
        for (uint32_t r = 0; r < kTileRows; ++r) a[r] = rows[from + (i0 + r < n ? i0 + r : n - 1)].q;
        product<kTileRows, kTile>(acc, a, plan.s, kPanel, d_key);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            const uint32_t i = from + (i0 + r < n ? i0 + r : n - 1);
            const V g = splat(plan.g[i]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v) acc[r * kTile + v] = mul(g, acc[r * kTile + v]);
            a[r] = plan.p + size_t{i} * kSubChunk;
        }
        product<kTileRows, kTile>(acc, a, plan.w, kPanel, i0 + m);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            if (r >= m) continue;
            float* o = rows[from + i0 + r].o + j0;
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v)
                if (v * W < n_col) part_store(o + v * W, acc[r * kTile + v], n_col - v * W);
        }
    }
    // S = g S + K'W, the keys already decayed to the end of the sub-chunk
    const V g = splat(plan.g[from + n - 1]);
    for (uint32_t x0 = 0; x0 < d_key; x0 += kTileRows) {
        const uint32_t m = d_key - x0 < kTileRows ? d_key - x0 : kTileRows;
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            const size_t x = r < m ? x0 + r : d_key - 1;
            a[r] = plan.kt + x * kDeltaChunk + from;
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v) acc[r * kTile + v] = mul(g, load(plan.s + x * kPanel + v * W));
        }
        product<kTileRows, kTile>(acc, a, plan.w, kPanel, n);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v)
                if (r < m) store(plan.s + size_t{x0 + r} * kPanel + v * W, acc[r * kTile + v]);
        }
    }
}

// The chunked form of Yang, Kautz, Hatamizadeh (arXiv 2412.06464), section 3, with decays kept as products
// (at most 1, so nothing overflows). Its work per row is 3 d_key d_val multiply-adds plus what grows with
// the rows solved together, so the chunk is cut into sub-chunks; the state stays in the first-level cache,
// one panel of columns at a time, for all of them.
inline void delta_chunk(float* s, uint32_t d_key, uint32_t d_val, const DeltaRow* rows, uint32_t n, float* scratch) {
    if (n == 0) return;
    ChunkPlan plan;
    plan.kt = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t{63});
    plan.s = plan.kt + size_t{d_key} * kDeltaChunk;
    plan.a = plan.s + size_t{d_key} * kPanel;
    plan.p = plan.a + size_t{kDeltaChunk} * kSubChunk;
    plan.w = plan.p + size_t{kDeltaChunk} * kSubChunk;
    plan.g = plan.w + size_t{kSubChunk} * kPanel;
    plan.rest = plan.g + kDeltaChunk;
    const uint32_t n_pad = ceil_div(n, kSubChunk) * kSubChunk;
    for (uint32_t x = 0; x < d_key; ++x) {
        float* k = plan.kt + size_t{x} * kDeltaChunk;
        for (uint32_t i = 0; i < n; ++i) k[i] = rows[i].k[x];
        for (uint32_t i = n; i < n_pad; ++i) k[i] = 0.0f;
    }
    for (uint32_t from = 0; from < n; from += kSubChunk)
        chunk_scores(plan, rows, from, n - from < kSubChunk ? n - from : kSubChunk, d_key);
    for (uint32_t j = 0; j < d_val; j += kPanel) {
        const uint32_t n_col = d_val - j < kPanel ? d_val - j : kPanel;
        for (uint32_t x = 0; x < d_key; ++x)
            for (uint32_t v = 0; v < kTile; ++v)
                store(plan.s + size_t{x} * kPanel + v * W,
                      v * W < n_col ? part_load(s + size_t{x} * d_val + j + v * W, n_col - v * W) : zero());
        for (uint32_t from = 0; from < n; from += kSubChunk)
            chunk_panel(plan, rows, from, n - from < kSubChunk ? n - from : kSubChunk, d_key, j, n_col);
        for (uint32_t x = 0; x < d_key; ++x)
            for (uint32_t v = 0; v * W < n_col; ++v)
                part_store(s + size_t{x} * d_val + j + v * W, load(plan.s + size_t{x} * kPanel + v * W), n_col - v * W);
    }
}

#undef AUSPEX_LOOPS_INLINE
#undef AUSPEX_LOOPS_UNROLL

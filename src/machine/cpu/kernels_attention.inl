// Attention of a few queries over a run of cached keys and values. Part of kernels.inl.
//
//   q       n_query rows [d] f32, in, already normed, rotated and scaled
//   k, v    n_key rows of [d] in an f16, f32 or block format, in
//   scores  [n_query, n_key] f32, scratch
//   m, l, o of each query: max score [1], sum [1], weighted values [d], f32, out
//
// Formula s_i = q . k_i;  m = max s_i;  l = sum exp(s_i - m);  o = sum exp(s_i - m) v_i
// Cost    a query and key: 4 d flops and one exp; bytes: keys and values once for each 4 queries.
// Source  Dao et al., FlashAttention (arXiv 2205.14135): partials with their own maximum, merged later by merge().
// Counterpart  shaders/attend_step.comp, attend_rows.comp. Plain form: loops_reference.cpp.

// Readers of one row of keys or values, whose length is a multiple of kGrain: at() gives W values from j on, some() the
// first n of them. A quantised row is whole blocks of 32, so it has no some(); its floats are decode_row's bits (a
// product of 11 and 8 bits is exact).
struct HalfRow {
    static constexpr uint32_t kGrain = 1;
    static AUSPEX_INLINE V at(const uint8_t* row, uint32_t j) {
        return load_f16(reinterpret_cast<const uint16_t*>(row) + j);
    }
    static AUSPEX_INLINE V some(const uint8_t* row, uint32_t j, uint32_t n) {
        return load_f16_n(reinterpret_cast<const uint16_t*>(row) + j, n);
    }
};
struct FloatRow {
    static constexpr uint32_t kGrain = 1;
    static AUSPEX_INLINE V at(const uint8_t* row, uint32_t j) { return load(reinterpret_cast<const float*>(row) + j); }
    static AUSPEX_INLINE V some(const uint8_t* row, uint32_t j, uint32_t n) {
        return load_n(reinterpret_cast<const float*>(row) + j, n, 0.0f);
    }
};
template <Type kRow>
struct BlockRow {
    static constexpr uint32_t kGrain = 32;
    static AUSPEX_INLINE V at(const uint8_t* row, uint32_t j) {
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
};

/// scores[a][c] = q[a] . k[c] for kQ queries and kK keys. Each pair has its own chains of multiply-adds, so its bits do
/// not depend on the tile; the queries share the conversion of a key to float.
template <class Row, uint32_t kQ, uint32_t kK>
AUSPEX_INLINE void score_tile(const float* const* q, const uint8_t* k, size_t ld, uint32_t d, float* scores,
                              size_t ld_scores) {
    constexpr uint32_t n = kQ * kK, n4 = (n + 3) / 4 * 4;
    V acc[n4];
    AUSPEX_UNROLL
    for (uint32_t i = 0; i < n4; ++i) acc[i] = zero();
    uint32_t j = 0;
    for (; j + W <= d; j += W) {
        V key[kK];
        AUSPEX_UNROLL
        for (uint32_t c = 0; c < kK; ++c) key[c] = Row::at(k + c * ld, j);
        AUSPEX_UNROLL
        for (uint32_t i = 0; i < n; ++i) acc[i] = fma(load(q[i / kK] + j), key[i % kK], acc[i]);
    }
    if constexpr (Row::kGrain < W) {
        if (j < d) {
            AUSPEX_UNROLL
            for (uint32_t i = 0; i < n; ++i)
                acc[i] = fma(load_n(q[i / kK] + j, d - j, 0.0f), Row::some(k + (i % kK) * ld, j, d - j), acc[i]);
        }
    }
    float sums[n4];
    AUSPEX_UNROLL
    for (uint32_t i = 0; i < n4; i += 4) sum4(acc + i, sums + i);
    AUSPEX_UNROLL
    for (uint32_t i = 0; i < n; ++i) scores[(i / kK) * ld_scores + i % kK] = sums[i];
}

/// o[a][j ..] = sum over keys i, ascending, of p[a][i] v[i][j ..], for kQ queries and kV vectors of columns.
template <class Row, uint32_t kQ, uint32_t kV>
AUSPEX_INLINE void value_tile(const float* p, size_t ld_p, const uint8_t* v, uint32_t n_key, size_t ld, float* const* o,
                              uint32_t j) {
    V acc[kQ * kV];
    AUSPEX_UNROLL
    for (uint32_t i = 0; i < kQ * kV; ++i) acc[i] = zero();
    for (uint32_t key = 0; key < n_key; ++key, v += ld) {
        V value[kV];
        AUSPEX_UNROLL
        for (uint32_t i = 0; i < kV; ++i) value[i] = Row::at(v, j + i * W);
        AUSPEX_UNROLL
        for (uint32_t i = 0; i < kQ * kV; ++i) acc[i] = fma(splat(p[(i / kV) * ld_p + key]), value[i % kV], acc[i]);
    }
    AUSPEX_UNROLL
    for (uint32_t i = 0; i < kQ * kV; ++i) store(o[i / kV] + j + (i % kV) * W, acc[i]);
}
/// Columns j .. d-1: in tiles of kV vectors, then of kV / 2, ... 1, then the remaining lanes; whole grains leave none.
template <class Row, uint32_t kQ, uint32_t kV>
AUSPEX_INLINE void values(const float* p, size_t ld_p, const uint8_t* v, uint32_t n_key, size_t ld, uint32_t d,
                          float* const* o, uint32_t j) {
    for (; j + kV * W <= d; j += kV * W) value_tile<Row, kQ, kV>(p, ld_p, v, n_key, ld, o, j);
    if constexpr (kV > 1 && kV * W > Row::kGrain) {
        values<Row, kQ, kV / 2>(p, ld_p, v, n_key, ld, d, o, j);
    } else if constexpr (Row::kGrain < W) {
        for (uint32_t a = 0; a < kQ && j < d; ++a) {
            V acc = zero();
            for (uint32_t key = 0; key < n_key; ++key)
                acc = fma(splat(p[a * ld_p + key]), Row::some(v + key * ld, j, d - j), acc);
            store_n(o[a] + j, acc, d - j);
        }
    }
}

/// Replaces scores by exp(scores - max). Out: the max m, the sum l.
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
/// One call for each format of keys and of values; kQ queries.
template <uint32_t kQ>
inline void attend_queries(const float* const* q, const KvRows& k, const KvRows& v, uint32_t n_key, uint32_t d,
                           float* scores, float* const* m, float* const* l, float* const* o) {
    static_assert(kKvTypeCount == 5, "a new KV cache format needs a case in both switches");
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
/// Any number of queries: by fours, then two, then one. The bits are those of one query at a time.
inline void attend_many(uint32_t n_query, const float* const* q, const KvRows& k, const KvRows& v, uint32_t n_key,
                        uint32_t d, float* scores, float* const* m, float* const* l, float* const* o) {
    uint32_t a = 0;
    for (; a + 4 <= n_query; a += 4) attend_queries<4>(q + a, k, v, n_key, d, scores, m + a, l + a, o + a);
    for (; a + 2 <= n_query; a += 2) attend_queries<2>(q + a, k, v, n_key, d, scores, m + a, l + a, o + a);
    if (a < n_query) attend_queries<1>(q + a, k, v, n_key, d, scores, m + a, l + a, o + a);
}
/// One query over f16 rows, `ld` values apart.
inline void attend(const float* q, const uint16_t* k, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d,
                   float* scores, float* m, float* l, float* o) {
    const KvRows keys = {reinterpret_cast<const std::byte*>(k), ld * sizeof(uint16_t), Type::f16};
    const KvRows vals = {reinterpret_cast<const std::byte*>(v), ld * sizeof(uint16_t), Type::f16};
    attend_queries<1>(&q, keys, vals, n_key, d, scores, &m, &l, &o);
}

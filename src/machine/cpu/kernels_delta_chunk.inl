// The Gated DeltaNet recurrence for many rows at once, in the chunked form. Part of kernels.inl.
//
//   s       [d_key, d_val] f32, in and out: the state of one head
//   rows    n <= kDeltaChunk rows: decay, beta, q, k [d_key], v [d_val] f32 in; o [d_val] f32 out
//   scratch delta_chunk_scratch() floats
//
// Formula with D_ij = product of the decays of rows j+1 .. i, g_i = product of the decays of rows 0 .. i:
//         A_ij = beta_i (k_i . k_j) D_ij for j < i;  P_ij = (q_i . k_j) D_ij for j <= i
//         W = (I + A)^-1 beta (V - g K S);  O = g Q S + P W;  S = g_last S + sum over i of D_last,i k_i w_i'
//         Decays stay products of numbers of at most 1, so nothing overflows.
// Cost    a row: 6 d_key d_val flops and about 4 kSubChunk (d_key + d_val) more; that second part grows with the rows
//         solved together, so a chunk is cut into sub-chunks of kSubChunk rows. The state is read and written once for
//         the whole chunk, kPanel columns at a time, which stay in the first-level cache.
// Source  Yang, Kautz, Hatamizadeh: Gated Delta Networks (arXiv 2412.06464), section 3.
// Counterpart  shaders/delta_scan.comp. Plain form: loops_reference.cpp. Agrees with delta_rows within rounding.

/// acc[r] += sum over x < n of a[r][x] b[x], for kM rows a and kV vectors of b's columns.
template <uint32_t kM, uint32_t kV>
AUSPEX_INLINE void product(V* acc, const float* const* a, const float* b, size_t ld, uint32_t n) {
    V sum[kM * kV];  // a copy stays in registers; some compilers keep the caller's array in memory
    AUSPEX_UNROLL
    for (uint32_t i = 0; i < kM * kV; ++i) sum[i] = acc[i];
    for (uint32_t x = 0; x < n; ++x, b += ld) {
        V row[kV];
        AUSPEX_UNROLL
        for (uint32_t v = 0; v < kV; ++v) row[v] = load(b + v * W);
        AUSPEX_UNROLL
        for (uint32_t r = 0; r < kM; ++r) {
            const V f = splat(a[r][x]);
            AUSPEX_UNROLL
            for (uint32_t v = 0; v < kV; ++v) sum[r * kV + v] = fma(f, row[v], sum[r * kV + v]);
        }
    }
    AUSPEX_UNROLL
    for (uint32_t i = 0; i < kM * kV; ++i) acc[i] = sum[i];
}

constexpr uint32_t kTileRows = 4;       // rows of one register tile
constexpr uint32_t kPanel = kTile * W;  // columns of one register tile
constexpr uint32_t kSubChunk = 16;      // rows solved together: see delta_chunk
static_assert(kSubChunk % (kScore * W) == 0 && kDeltaChunk % kSubChunk == 0 && kPanel <= kDeltaChunk, "tiles must fit");

/// The parts of delta_chunk's scratch.
struct ChunkPlan {
    float* kt;    ///< [d_key, kDeltaChunk] transposed keys; later times rest
    float* a;     ///< [kDeltaChunk, kSubChunk] -A_ij within the row's sub-chunk
    float* p;     ///< [kDeltaChunk, kSubChunk] P_ij, 0 for j > i
    float* w;     ///< [kSubChunk, kPanel] W, the rows' terms
    float* s;     ///< [d_key, kPanel] columns of the state
    float* g;     ///< [kDeltaChunk] decay from the start of the sub-chunk to the end of row i
    float* rest;  ///< [kDeltaChunk] decay from the end of row i to the end of the sub-chunk
};

/// Fills a, p, g and rest, and scales kt by rest, for rows from .. from + n - 1 of a chunk.
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
            AUSPEX_UNROLL
            for (uint32_t r = 0; r < 2 * kTileRows * kScore; ++r) acc[r] = zero();
            product<2 * kTileRows, kScore>(acc, x, plan.kt + from + c, kDeltaChunk, d_key);
            AUSPEX_UNROLL
            for (uint32_t r = 0; r < kTileRows; ++r) {
                if (i0 + r >= n) continue;
                const size_t at = size_t{from + i0 + r} * kSubChunk + c;
                const V minus_beta = splat(-rows[from + i0 + r].beta);
                AUSPEX_UNROLL
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

/// One sub-chunk (rows from .. from + n - 1) on one panel of columns (j0 .. j0 + n_col - 1).
struct ChunkPanel {
    const ChunkPlan& plan;
    const DeltaRow* rows;
    uint32_t from, n, d_key, j0, n_col;
    /// Row i0 + r of a tile, as an index into `rows`; tiles that are not full repeat the last row.
    uint32_t row(uint32_t i0, uint32_t r) const { return from + (i0 + r < n ? i0 + r : n - 1); }
};

/// Terms W = beta (V - g K S) - A W of the m rows from i0 on. W on the right side is of earlier rows: those of earlier
/// tiles first, then the tile's own, one after the other.
AUSPEX_INLINE void chunk_terms(const ChunkPanel& c, uint32_t i0, uint32_t m) {
    const ChunkPlan& plan = c.plan;
    V acc[kTileRows * kTile];
    const float* a[kTileRows];
    AUSPEX_UNROLL
    for (uint32_t r = 0; r < kTileRows * kTile; ++r) acc[r] = zero();
    for (uint32_t r = 0; r < kTileRows; ++r) a[r] = c.rows[c.row(i0, r)].k;
    product<kTileRows, kTile>(acc, a, plan.s, kPanel, c.d_key);
    AUSPEX_UNROLL
    for (uint32_t r = 0; r < kTileRows; ++r) {
        const uint32_t i = c.row(i0, r);
        const V beta = splat(c.rows[i].beta), g = splat(plan.g[i]);
        AUSPEX_UNROLL
        for (uint32_t v = 0; v < kTile; ++v) {
            const V value = v * W < c.n_col ? part_load(c.rows[i].v + c.j0 + v * W, c.n_col - v * W) : zero();
            acc[r * kTile + v] = mul(beta, fnma(g, acc[r * kTile + v], value));
        }
        a[r] = plan.a + size_t{i} * kSubChunk;
    }
    product<kTileRows, kTile>(acc, a, plan.w, kPanel, i0);
    AUSPEX_UNROLL
    for (uint32_t r = 1; r < kTileRows; ++r) {
        AUSPEX_UNROLL
        for (uint32_t y = 0; y < r; ++y) {
            const V f = splat(a[r][i0 + y]);
            AUSPEX_UNROLL
            for (uint32_t v = 0; v < kTile; ++v) acc[r * kTile + v] = fma(f, acc[y * kTile + v], acc[r * kTile + v]);
        }
    }
    AUSPEX_UNROLL
    for (uint32_t r = 0; r < kTileRows; ++r) {
        AUSPEX_UNROLL
        for (uint32_t v = 0; v < kTile; ++v)
            if (r < m) store(plan.w + size_t{i0 + r} * kPanel + v * W, acc[r * kTile + v]);
    }
}

/// Outputs O = g Q S + P W of the m rows from i0 on.
AUSPEX_INLINE void chunk_outputs(const ChunkPanel& c, uint32_t i0, uint32_t m) {
    const ChunkPlan& plan = c.plan;
    V acc[kTileRows * kTile];
    const float* a[kTileRows];
    AUSPEX_UNROLL
    for (uint32_t r = 0; r < kTileRows * kTile; ++r) acc[r] = zero();
    for (uint32_t r = 0; r < kTileRows; ++r) a[r] = c.rows[c.row(i0, r)].q;
    product<kTileRows, kTile>(acc, a, plan.s, kPanel, c.d_key);
    AUSPEX_UNROLL
    for (uint32_t r = 0; r < kTileRows; ++r) {
        const uint32_t i = c.row(i0, r);
        const V g = splat(plan.g[i]);
        AUSPEX_UNROLL
        for (uint32_t v = 0; v < kTile; ++v) acc[r * kTile + v] = mul(g, acc[r * kTile + v]);
        a[r] = plan.p + size_t{i} * kSubChunk;
    }
    product<kTileRows, kTile>(acc, a, plan.w, kPanel, i0 + m);
    AUSPEX_UNROLL
    for (uint32_t r = 0; r < kTileRows; ++r) {
        if (r >= m) continue;
        float* o = c.rows[c.from + i0 + r].o + c.j0;
        AUSPEX_UNROLL
        for (uint32_t v = 0; v < kTile; ++v)
            if (v * W < c.n_col) part_store(o + v * W, acc[r * kTile + v], c.n_col - v * W);
    }
}

/// S = g S + K'W; plan.kt holds the keys decayed to the end of the sub-chunk.
AUSPEX_INLINE void chunk_state(const ChunkPanel& c) {
    const ChunkPlan& plan = c.plan;
    V acc[kTileRows * kTile];
    const float* a[kTileRows];
    const V g = splat(plan.g[c.from + c.n - 1]);
    for (uint32_t x0 = 0; x0 < c.d_key; x0 += kTileRows) {
        const uint32_t m = c.d_key - x0 < kTileRows ? c.d_key - x0 : kTileRows;
        AUSPEX_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            const size_t x = r < m ? x0 + r : c.d_key - 1;
            a[r] = plan.kt + x * kDeltaChunk + c.from;
            AUSPEX_UNROLL
            for (uint32_t v = 0; v < kTile; ++v) acc[r * kTile + v] = mul(g, load(plan.s + x * kPanel + v * W));
        }
        product<kTileRows, kTile>(acc, a, plan.w, kPanel, c.n);
        AUSPEX_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            AUSPEX_UNROLL
            for (uint32_t v = 0; v < kTile; ++v)
                if (r < m) store(plan.s + size_t{x0 + r} * kPanel + v * W, acc[r * kTile + v]);
        }
    }
}

inline void chunk_panel(const ChunkPanel& c) {
    for (uint32_t i0 = 0; i0 < c.n; i0 += kTileRows) {
        const uint32_t m = c.n - i0 < kTileRows ? c.n - i0 : kTileRows;
        chunk_terms(c, i0, m);
        chunk_outputs(c, i0, m);
    }
    chunk_state(c);
}

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
            chunk_panel({plan, rows, from, n - from < kSubChunk ? n - from : kSubChunk, d_key, j, n_col});
        for (uint32_t x = 0; x < d_key; ++x)
            for (uint32_t v = 0; v * W < n_col; ++v)
                part_store(s + size_t{x} * d_val + j + v * W, load(plan.s + size_t{x} * kPanel + v * W), n_col - v * W);
    }
}

// The Gated DeltaNet recurrence, row after row. Part of kernels.inl.
//
//   s      [d_key, d_val] f32, in and out: the committed state of one head
//   terms  n_term committed rows that are not in s yet: decay, k [d_key], u [d_val]; applied first, stored in s
//   rows   n_row rows: decay, beta, q, k [d_key], v [d_val] f32 in; u, o [d_val] f32 out
//   scratch  [d_key, kDeltaColumns] f32, for rows that leave s as it is (tentative ones)
//
// Formula, for each row:  u = beta (v - decay s'k);  s = decay s + k u';  o = s'q
//         One pass over s gives both products: o = decay s'q + (k.q) u.
// Cost    a row: 6 d_key d_val flops; d_key d_val floats read, and written if s changes.
// Order   a sum over d_key is one chain per column, however columns and rows are cut into blocks.
// Source  Yang, Kautz, Hatamizadeh: Gated Delta Networks (arXiv 2412.06464).
// Counterpart  shaders/delta_step.comp, delta_apply.comp. Plain form: loops_reference.cpp.

/// s after one term. The only place where a state changes, so that a term gives the same bits whether it is applied
/// with its own row or at the start of a later step.
AUSPEX_INLINE V apply_term(V s, V decay, V k, V u) { return fma(k, u, mul(decay, s)); }

/// Part of a state: rows from .. from + n - 1 of some columns, the first at `at`, `ld` floats apart.
struct Piece {
    const float* at;
    size_t ld;
    uint32_t from, n;
};
enum class Adds { nothing, one_term, terms };
constexpr uint32_t kStream = 256;  // columns that delta_stream handles together

/// One pass over kV vectors of columns from j0 on (the last vector has m lanes): reads the state once, applies the
/// terms, writes the result to `to` if kStore, and if kRow adds this part's share to rho = S'k and sigma = S'q.
template <uint32_t kV, Adds kAdds, bool kStore, bool kRow>
AUSPEX_INLINE void delta_pass(const Piece& piece, float* to, size_t ld_to, const DeltaTerm* terms, uint32_t n_term,
                              uint32_t j0, const DeltaRow* row, float* rho_sum, float* sigma_sum, uint32_t m) {
    V rho[kV], sigma[kV], u[kV];
    AUSPEX_UNROLL
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
        AUSPEX_UNROLL
        for (uint32_t v = 0; v < kV; ++v) s[v] = kV > 1 ? load(in + v * W) : part_load(in, m);
        if (kAdds == Adds::one_term) {
            const V k = splat(term_k[i]);
            AUSPEX_UNROLL
            for (uint32_t v = 0; v < kV; ++v) s[v] = apply_term(s[v], decay, k, u[v]);
        }
        if (kAdds == Adds::terms)
            for (uint32_t t = 0; t < n_term; ++t) {
                const V k = splat(terms[t].k[i]), d = splat(terms[t].decay);
                const float* tu = terms[t].u + j0;
                AUSPEX_UNROLL
                for (uint32_t v = 0; v < kV; ++v)
                    s[v] = apply_term(s[v], d, k, kV > 1 ? load(tu + v * W) : part_load(tu, m));
            }
        if (kStore) {
            AUSPEX_UNROLL
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
            AUSPEX_UNROLL
            for (uint32_t v = 0; v < kV; ++v) {
                rho[v] = fma(s[v], k, rho[v]);
                sigma[v] = fma(s[v], q, sigma[v]);
            }
        }
    }
    if (kRow) {
        AUSPEX_UNROLL
        for (uint32_t v = 0; v < kV; ++v) {
            store(rho_sum + v * W, rho[v]);
            store(sigma_sum + v * W, sigma[v]);
        }
    }
}

/// The row's u and o at columns j0 .. j0 + n - 1, from rho and sigma over the state before the row.
AUSPEX_INLINE void delta_finish(const DeltaRow& row, const float* rho, const float* sigma, uint32_t d_key, uint32_t j0,
                                uint32_t n) {
    const V kq = splat(dot(row.k, row.q, d_key)), decay = splat(row.decay), beta = splat(row.beta);
    for (uint32_t j = 0; j < n; j += W) {
        const V u = mul(beta, fnma(decay, load(rho + j), part_load(row.v + j0 + j, n - j)));
        part_store(row.u + j0 + j, u, n - j);
        part_store(row.o + j0 + j, fma(kq, u, mul(decay, load(sigma + j))), n - j);
    }
}

/// Applies the terms and runs the first row, reading the state in the order of memory: with one row the time goes into
/// memory traffic.
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
                delta_pass<kWide, kAdds, kStore, kRow>(piece, at + j, d_val, terms, n_term, j0 + j, row, rho + j,
                                                       sigma + j, W);
            for (; j < n_col; j += W, piece.at += W)
                delta_pass<1, kAdds, kStore, kRow>(piece, at + j, d_val, terms, n_term, j0 + j, row, rho + j, sigma + j,
                                                   n_col - j < W ? n_col - j : W);
        }
        if (kRow) delta_finish(*row, rho, sigma, d_key, j0, n_col);
    }
}

/// Rows 1 .. n_row-1 on one block of columns. The pass of row t first applies the term of row t-1, so each row costs
/// one read and one write. Between rows the block lies in the scratch, contiguous, and fits the first-level cache.
template <uint32_t kV>
inline void delta_block(float* s, uint32_t d_key, uint32_t d_val, const DeltaRow* rows, uint32_t n_row, bool in_place,
                        float* scratch, uint32_t j0, uint32_t m) {
    Piece piece = {s + j0, d_val, 0, d_key};
    const uint32_t n_col = (kV - 1) * W + m;
    for (uint32_t t = 1; t < n_row; ++t) {
        const DeltaTerm last = {rows[t - 1].decay, rows[t - 1].k, rows[t - 1].u};
        float rho[kV * W] = {}, sigma[kV * W] = {};
        if (t + 1 < n_row || in_place) {
            delta_pass<kV, Adds::one_term, true, true>(piece, scratch, n_col, &last, 1, j0, rows + t, rho, sigma, m);
            piece.at = scratch;
            piece.ld = n_col;
        } else {
            delta_pass<kV, Adds::one_term, false, true>(piece, nullptr, 0, &last, 1, j0, rows + t, rho, sigma, m);
        }
        delta_finish(rows[t], rho, sigma, d_key, j0, n_col);
    }
    if (in_place) {
        const DeltaTerm last = {rows[n_row - 1].decay, rows[n_row - 1].k, rows[n_row - 1].u};
        delta_pass<kV, Adds::one_term, true, false>(piece, s + j0, d_val, &last, 1, j0, nullptr, nullptr, nullptr, m);
    }
}

inline void delta_rows(float* s, uint32_t d_key, uint32_t d_val, const DeltaTerm* terms, uint32_t n_term,
                       const DeltaRow* rows, uint32_t n_row, bool in_place, float* scratch) {
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

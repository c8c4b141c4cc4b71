// machine/cpu/loops_reference: the inner loops without vector instructions, as plainly as possible.
//
// Owns    reference_kernels(). Shapes and formulas are in ops.h.
// Thread  pure functions.
// Tests   tests/test_ops.cpp: back-end equivalence of every other instruction set with these.
#include "kernels.h"

#include <cmath>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace loops_reference {

/// a * b + c: rounded once if the build's target has such an instruction, else twice (std::fma would be a library call,
/// a hundred times slower). Every sum here uses it, so bits agree within a build.
inline float mul_add(float a, float b, float c) {
#ifdef FP_FAST_FMAF
    return std::fma(a, b, c);
#else
    return a * b + c;
#endif
}

inline float silu(float x) { return x * sigmoid(x); }

void rms_norm(const float* x, const float* w, float* y, uint32_t n, float eps) {
    double sum = 0;
    for (uint32_t i = 0; i < n; ++i) sum += double{x[i]} * double{x[i]};
    const float scale = static_cast<float>(1.0 / std::sqrt(sum / n + double{eps}));
    for (uint32_t i = 0; i < n; ++i) y[i] = w ? x[i] * scale * w[i] : x[i] * scale;
}

void swiglu(const float* g, const float* u, float* y, uint32_t n, float limit) {
    for (uint32_t i = 0; i < n; ++i) {
        float a = silu(g[i]), b = u[i];
        if (limit > 0) {
            a = a > limit ? limit : a;  // a NaN stays one, as it does not with fmin()
            b = b > limit ? limit : b < -limit ? -limit : b;
        }
        y[i] = a * b;
    }
}

void silu_gate(const float* x, const float* z, float* y, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) y[i] = x[i] * silu(z[i]);
}

void sigmoid_gate(const float* x, const float* z, float* y, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) y[i] = x[i] * sigmoid(z[i]);
}

void conv_silu(const float* const* taps, const float* w, float* y, uint32_t n, uint32_t n_tap) {
    for (uint32_t c = 0; c < n; ++c) {
        float sum = 0;
        for (uint32_t j = 0; j < n_tap; ++j) sum = mul_add(w[size_t{c} * n_tap + j], taps[j][c], sum);
        y[c] = silu(sum);
    }
}

void to_f16(const float* x, uint16_t* y, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) y[i] = f32_to_f16(x[i]);
}

void attend(const float* q, const uint16_t* k, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d, float* scores,
            float* m, float* l, float* o) {
    float top = -INFINITY;
    for (uint32_t i = 0; i < n_key; ++i) {
        float s = 0;
        for (uint32_t j = 0; j < d; ++j) s = mul_add(q[j], f16_to_f32(k[i * ld + j]), s);
        scores[i] = s;
        top = std::fmax(top, s);
    }
    float sum = 0;
    for (uint32_t j = 0; j < d; ++j) o[j] = 0;
    for (uint32_t i = 0; i < n_key; ++i) {
        const float p = exp_f32(scores[i] - top);
        sum += p;
        for (uint32_t j = 0; j < d; ++j) o[j] = mul_add(p, f16_to_f32(v[i * ld + j]), o[j]);
    }
    *m = top;
    *l = sum;
}

/// Calls use(j, n, x) for the pieces of a row: values j .. j+n-1 as floats.
template <class F>
void decoded(const KvRows& rows, uint32_t i, uint32_t d, F use) {
    constexpr uint32_t kPiece = 32;
    const std::byte* row = rows.data + i * rows.stride;
    float x[kPiece];
    for (uint32_t j = 0; j < d; j += kPiece) {
        const uint32_t n = d - j < kPiece ? d - j : kPiece;
        decode_row(rows.type, row + row_bytes(rows.type, j), x, n);
        use(j, n, x);
    }
}

void attend_many(uint32_t n_query, const float* const* q, const KvRows& k, const KvRows& v, uint32_t n_key, uint32_t d,
                 float* scores, float* const* m, float* const* l, float* const* o) {
    for (uint32_t a = 0; a < n_query; ++a) {
        float top = -INFINITY;
        for (uint32_t i = 0; i < n_key; ++i) {
            float s = 0;
            decoded(k, i, d, [&](uint32_t j, uint32_t n, const float* x) {
                for (uint32_t c = 0; c < n; ++c) s = mul_add(q[a][j + c], x[c], s);
            });
            scores[i] = s;
            top = std::fmax(top, s);
        }
        float sum = 0;
        for (uint32_t j = 0; j < d; ++j) o[a][j] = 0;
        for (uint32_t i = 0; i < n_key; ++i) {
            const float p = exp_f32(scores[i] - top);
            sum += p;
            decoded(v, i, d, [&](uint32_t j, uint32_t n, const float* x) {
                for (uint32_t c = 0; c < n; ++c) o[a][j + c] = mul_add(p, x[c], o[a][j + c]);
            });
        }
        *m[a] = top;
        *l[a] = sum;
    }
}

void merge(float* o, float a, const float* p, float b, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) o[i] = mul_add(p[i], b, o[i] * a);
}

/// The rows of one block of columns j0 .. j0+n_col-1, on block [d_key, n_col] (ld values apart).
void delta_columns(float* s, size_t ld, uint32_t d_key, uint32_t j0, uint32_t n_col, const DeltaRow* rows,
                   uint32_t n_row) {
    float rho[kDeltaColumns], sigma[kDeltaColumns];
    for (uint32_t t = 0; t < n_row; ++t) {
        const DeltaRow& r = rows[t];
        float kq = 0;
        for (uint32_t j = 0; j < n_col; ++j) rho[j] = sigma[j] = 0;
        for (uint32_t i = 0; i < d_key; ++i) {
            kq = mul_add(r.k[i], r.q[i], kq);
            for (uint32_t j = 0; j < n_col; ++j) {
                rho[j] = mul_add(s[i * ld + j], r.k[i], rho[j]);
                sigma[j] = mul_add(s[i * ld + j], r.q[i], sigma[j]);
            }
        }
        for (uint32_t j = 0; j < n_col; ++j) {
            const float u = r.beta * mul_add(-r.decay, rho[j], r.v[j0 + j]);
            r.u[j0 + j] = u;
            r.o[j0 + j] = mul_add(kq, u, r.decay * sigma[j]);
        }
        for (uint32_t i = 0; i < d_key; ++i)
            for (uint32_t j = 0; j < n_col; ++j) s[i * ld + j] = mul_add(r.k[i], r.u[j0 + j], r.decay * s[i * ld + j]);
    }
}

void delta_rows(float* s, uint32_t d_key, uint32_t d_val, const DeltaTerm* terms, uint32_t n_term, const DeltaRow* rows,
                uint32_t n_row, bool in_place, float* scratch) {
    for (uint32_t j0 = 0; j0 < d_val; j0 += kDeltaColumns) {
        const uint32_t n_col = d_val - j0 < kDeltaColumns ? d_val - j0 : kDeltaColumns;
        for (uint32_t t = 0; t < n_term; ++t)
            for (uint32_t i = 0; i < d_key; ++i)
                for (uint32_t j = j0; j < j0 + n_col; ++j)
                    s[size_t{i} * d_val + j] =
                        mul_add(terms[t].k[i], terms[t].u[j], terms[t].decay * s[size_t{i} * d_val + j]);
        if (in_place) {
            delta_columns(s + j0, d_val, d_key, j0, n_col, rows, n_row);
            continue;
        }
        for (uint32_t i = 0; i < d_key; ++i)
            for (uint32_t j = 0; j < n_col; ++j) scratch[i * n_col + j] = s[size_t{i} * d_val + j0 + j];
        delta_columns(scratch, n_col, d_key, j0, n_col, rows, n_row);
    }
}

void delta_chunk(float* s, uint32_t d_key, uint32_t d_val, const DeltaRow* rows, uint32_t n, float* scratch) {
    if (n == 0) return;
    // The formulas of kernels_delta_chunk.inl.
    float* a = scratch;                                // [n, n] A, below the diagonal
    float* p = a + size_t{kDeltaChunk} * kDeltaChunk;  // [n, n] P, on and below the diagonal
    float* w = p + size_t{kDeltaChunk} * kDeltaChunk;  // [n, d_val] W
    float* g = w + size_t{kDeltaChunk} * d_val;        // [n] decay from the start of the chunk to row i
    for (uint32_t i = 0; i < n; ++i) g[i] = (i ? g[i - 1] : 1.0f) * rows[i].decay;
    for (uint32_t i = 0; i < n; ++i) {
        float d = 1.0f;  // D_ij for j = i, i-1, ..
        for (uint32_t j = i + 1; j-- > 0;) {
            float kk = 0, qk = 0;
            for (uint32_t x = 0; x < d_key; ++x) {
                kk = mul_add(rows[i].k[x], rows[j].k[x], kk);
                qk = mul_add(rows[i].q[x], rows[j].k[x], qk);
            }
            a[i * n + j] = rows[i].beta * kk * d;
            p[i * n + j] = qk * d;
            d *= rows[j].decay;
        }
    }
    for (uint32_t i = 0; i < n; ++i) {
        float* wi = w + size_t{i} * d_val;
        for (uint32_t j = 0; j < d_val; ++j) wi[j] = rows[i].o[j] = 0;
        for (uint32_t x = 0; x < d_key; ++x)
            for (uint32_t j = 0; j < d_val; ++j) {
                wi[j] = mul_add(rows[i].k[x], s[size_t{x} * d_val + j], wi[j]);
                rows[i].o[j] = mul_add(rows[i].q[x], s[size_t{x} * d_val + j], rows[i].o[j]);
            }
        for (uint32_t j = 0; j < d_val; ++j) {
            wi[j] = rows[i].beta * (rows[i].v[j] - g[i] * wi[j]);
            rows[i].o[j] *= g[i];
        }
        for (uint32_t y = 0; y < i; ++y)
            for (uint32_t j = 0; j < d_val; ++j) wi[j] = mul_add(-a[i * n + y], w[size_t{y} * d_val + j], wi[j]);
        for (uint32_t y = 0; y <= i; ++y)
            for (uint32_t j = 0; j < d_val; ++j)
                rows[i].o[j] = mul_add(p[i * n + y], w[size_t{y} * d_val + j], rows[i].o[j]);
    }
    for (uint32_t x = 0; x < size_t{d_key} * d_val; ++x) s[x] *= g[n - 1];
    float d = 1.0f;
    for (uint32_t i = n; i-- > 0;) {
        for (uint32_t x = 0; x < d_key; ++x)
            for (uint32_t j = 0; j < d_val; ++j)
                s[size_t{x} * d_val + j] =
                    mul_add(rows[i].k[x] * d, w[size_t{i} * d_val + j], s[size_t{x} * d_val + j]);
        d *= rows[i].decay;
    }
}

}  // namespace loops_reference

const CpuKernels* reference_kernels() {
    namespace r = loops_reference;
    static constexpr CpuKernels kKernels = {
        "reference",
        CpuPath::reference,
        [](const CpuFeatures&) { return true; },
        0,
        false,
        false,
        {r::rms_norm, r::swiglu, r::silu_gate, r::sigmoid_gate, r::conv_silu, r::to_f16, r::attend, r::merge,
         r::delta_rows, r::delta_chunk, r::attend_many},
        nullptr,
        nullptr,
        reference_rows};
    return &kKernels;
}

void l2_normalise(float* x, uint32_t n, float scale) {
    double sum = 0;
    for (uint32_t i = 0; i < n; ++i) sum += double{x[i]} * double{x[i]};
    const float f = static_cast<float>(1.0 / std::sqrt(sum + 1e-6)) * scale;
    for (uint32_t i = 0; i < n; ++i) x[i] *= f;
}

void rotation_table(uint64_t position, uint32_t n_rot, float base, float* table, const float* factors) {
    for (uint32_t i = 0; i < n_rot / 2; ++i) {
        // In double: at a million positions a float angle would be wrong by a tenth of a turn.
        const double angle = static_cast<double>(position) * std::pow(double{base}, -2.0 * i / n_rot) /
                             (factors ? double{factors[i]} : 1.0);
        table[2 * i] = static_cast<float>(std::cos(angle));
        table[2 * i + 1] = static_cast<float>(std::sin(angle));
    }
}

void rotate(float* x, uint32_t n_rot, const float* table) {
    const uint32_t half = n_rot / 2;
    for (uint32_t i = 0; i < half; ++i) {
        const float c = table[2 * i], s = table[2 * i + 1], a = x[i], b = x[i + half];
        x[i] = a * c - b * s;
        x[i + half] = a * s + b * c;
    }
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

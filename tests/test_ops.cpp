// tests/test_ops: every inner loop on every path of this processor, against formulas in double
// precision written here, and row invariance, commit equivalence and chunk invariance.
#include "../src/machine/cpu/kernels.h"
#include "../src/base/checksum.h"
#include "../src/base/number.h"
#include "largest.h"
#include "support.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

using namespace auspex;
using namespace auspex::detail;

namespace test_ops {

using Floats = std::vector<float>;
constexpr double kEps = 1.0 / 16777216;  // half a unit in the last place, relative

/// The inner loops of one instruction set, with its name.
struct NamedLoops : Loops {
    const char* name;
    bool reference;
};
const std::vector<const NamedLoops*>& all_loops() {
    static const std::vector<NamedLoops> named = [] {
        std::vector<NamedLoops> v;
        for (const CpuKernels* k : runnable_kernels()) v.push_back({k->loops, k->name, k->path == CpuPath::reference});
        return v;
    }();
    static const std::vector<const NamedLoops*> all = [] {
        std::vector<const NamedLoops*> v;
        for (const NamedLoops& l : named) v.push_back(&l);
        return v;
    }();
    return all;
}

bool same_bits(const Floats& a, const Floats& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
double silu(double x) { return x * sigmoid(x); }

/// The largest |found - expected| / allowed. Up to 1 is within the bound; a NaN counts as out of it.
struct Worst {
    double ratio = 0;
    void check(double found, double expected, double allowed) {
        ratio = test::larger_error(ratio, std::fabs(found - expected) / allowed);
    }
};

/// What a sum of n products may be off by: each term is rounded at most n times on its way.
double sum_bound(double n, double sum_of_magnitudes) { return (n + 4) * kEps * sum_of_magnitudes + 1e-40; }

// ------------------------------------------------------------------------------------- DeltaNet

struct Head {
    uint32_t d_key, d_val, n;
    Floats s, q, k, v, u, o, decay, beta;
    std::vector<DeltaRow> rows;
    Floats scratch;
    Head(uint32_t dk, uint32_t dv, uint32_t n_row, uint64_t seed) : d_key(dk), d_val(dv), n(n_row) {
        test::Random r(seed);
        s = r.normals(size_t{dk} * dv, 0.3f);
        q = r.normals(size_t{n} * dk);
        k = r.normals(size_t{n} * dk);
        v = r.normals(size_t{n} * dv);
        u.assign(size_t{n} * dv, NAN);
        o.assign(size_t{n} * dv, NAN);
        for (uint32_t i = 0; i < n; ++i) {
            l2_normalise(&q[size_t{i} * dk], dk, 1.0f / std::sqrt(static_cast<float>(dk)));
            l2_normalise(&k[size_t{i} * dk], dk, 1.0f);
            decay.push_back(std::exp(-0.1f * std::fabs(r.normal())));
            beta.push_back(static_cast<float>(sigmoid(double{r.normal()})));
        }
        scratch.assign(std::max<size_t>(delta_chunk_scratch(dk, dv), size_t{dk} * kDeltaColumns), NAN);
        bind();
    }
    Head(const Head& h)
        : d_key(h.d_key),
          d_val(h.d_val),
          n(h.n),
          s(h.s),
          q(h.q),
          k(h.k),
          v(h.v),
          u(h.u),
          o(h.o),
          decay(h.decay),
          beta(h.beta),
          scratch(h.scratch) {
        bind();
    }
    Head& operator=(const Head&) = delete;
    void bind() {
        rows.resize(n);
        for (uint32_t i = 0; i < n; ++i)
            rows[i] = {decay[i],
                       beta[i],
                       &q[size_t{i} * d_key],
                       &k[size_t{i} * d_key],
                       &v[size_t{i} * d_val],
                       &u[size_t{i} * d_val],
                       &o[size_t{i} * d_val]};
    }
    DeltaTerm term(uint32_t i) const { return {decay[i], &k[size_t{i} * d_key], &u[size_t{i} * d_val]}; }
    void run(const Loops& l, uint32_t from, uint32_t count, bool in_place, const std::vector<DeltaTerm>& terms = {}) {
        l.delta_rows(s.data(), d_key, d_val, terms.data(), static_cast<uint32_t>(terms.size()), rows.data() + from,
                     count, in_place, scratch.data());
    }
};

/// S = decay S; S += k (beta (v - S'k))'; o = S'q: in double, in the order the model's definition gives.
struct Truth {
    std::vector<double> s, o;
    double big = 0;  // the largest norm of a column, and value, that took part
    explicit Truth(const Head& h) : s(h.s.begin(), h.s.end()) {
        const size_t dk = h.d_key, dv = h.d_val;
        note(dk, dv);
        for (size_t t = 0; t < h.n; ++t) {
            for (size_t j = 0; j < dv; ++j) {
                double r = 0, out = 0;
                for (size_t i = 0; i < dk; ++i) r += (s[i * dv + j] *= double{h.decay[t]}) * double{h.k[t * dk + i]};
                const double u = double{h.beta[t]} * (double{h.v[t * dv + j]} - r);
                for (size_t i = 0; i < dk; ++i)
                    out += (s[i * dv + j] += double{h.k[t * dk + i]} * u) * double{h.q[t * dk + i]};
                o.push_back(out);
                big = std::max(big, std::fabs(double{h.v[t * dv + j]}));
            }
            note(dk, dv);
        }
    }
    void note(size_t dk, size_t dv) {
        for (size_t j = 0; j < dv; ++j) {
            double n = 0;
            for (size_t i = 0; i < dk; ++i) n += s[i * dv + j] * s[i * dv + j];
            big = std::max(big, std::sqrt(n));
        }
    }
    /// k is of unit length, so a column's product with it is off by at most d_key roundings of its norm;
    /// u passes that on once, and later rows do not amplify it (decay, beta <= 1) beyond twice.
    double bound(const Head& h) const { return 2.0 * h.n * (h.d_key + 8) * kEps * big + 1e-30; }
    double ratio(const Head& h) const {
        Worst w;
        for (size_t i = 0; i < s.size(); ++i) w.check(double{h.s[i]}, s[i], bound(h));
        for (size_t i = 0; i < o.size(); ++i) w.check(double{h.o[i]}, o[i], bound(h));
        return w.ratio;
    }
};

double relative_difference(const Floats& a, const Floats& b) {
    double max = 1e-30, d = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        max = std::max(max, std::fabs(double{a[i]}));
        d = test::larger_error(d, std::fabs(double{a[i]} - double{b[i]}));
    }
    return d / max;
}

// ------------------------------------------------------------------------------------ attention

struct Attention {
    uint32_t n_query, n_key, d;
    size_t ld;
    Floats q, scores, out;
    std::vector<uint16_t> k, v;
    Attention(uint32_t nq, uint32_t nk, uint32_t width, float spread, uint64_t seed)
        : n_query(nq), n_key(nk), d(width), ld(size_t{width} + 24) {
        test::Random r(seed);
        q = r.normals(size_t{nq} * d, spread / std::sqrt(static_cast<float>(d)));
        for (size_t i = 0; i < (nk - 1) * ld + d; ++i) {  // not one element more: a read beyond is an error
            k.push_back(f32_to_f16(r.normal()));
            v.push_back(f32_to_f16(r.normal()));
        }
        scores.assign(size_t{nq} * nk, NAN);
        out.assign(size_t{nq} * (d + 2), NAN);
    }
    float* row(uint32_t i) { return &out[size_t{i} * (d + 2)]; }
    void one(const Loops& l, uint32_t i) {
        l.attend(&q[size_t{i} * d], k.data(), v.data(), n_key, ld, d, scores.data(), row(i), row(i) + 1, row(i) + 2);
    }
    void many(const Loops& l) {
        std::vector<const float*> qs;
        std::vector<float*> ms, ls, os;
        for (uint32_t i = 0; i < n_query; ++i) {
            qs.push_back(&q[size_t{i} * d]);
            ms.push_back(row(i));
            ls.push_back(row(i) + 1);
            os.push_back(row(i) + 2);
        }
        const KvRows keys = {reinterpret_cast<const std::byte*>(k.data()), ld * sizeof(uint16_t), Type::f16};
        const KvRows values = {reinterpret_cast<const std::byte*>(v.data()), ld * sizeof(uint16_t), Type::f16};
        l.attend_many(n_query, qs.data(), keys, values, n_key, d, scores.data(), ms.data(), ls.data(), os.data());
    }
    double ratio(uint32_t i) {
        std::vector<double> s(n_key);
        double top = -INFINITY, score_bound = 0, l = 0;
        for (uint32_t c = 0; c < n_key; ++c) {
            double magnitude = 0;
            for (uint32_t j = 0; j < d; ++j) {
                const double p = double{q[size_t{i} * d + j]} * double{f16_to_f32(k[c * ld + j])};
                s[c] += p;
                magnitude += std::fabs(p);
            }
            top = std::max(top, s[c]);
            score_bound = std::max(score_bound, sum_bound(d, magnitude));
        }
        const float* found = row(i);
        Worst w;
        w.check(double{found[0]}, top, score_bound);
        // A weight is off by what its score, the top and their difference are off by, and its own rounding.
        const double weight = 2 * score_bound + kEps * (std::fabs(top) + 110) + 4 * kEps;
        for (double& x : s) l += x = std::exp(x - top);
        w.check(double{found[1]}, l, l * weight + sum_bound(n_key, l));
        for (uint32_t j = 0; j < d; ++j) {
            double o = 0, magnitude = 0;
            for (uint32_t c = 0; c < n_key; ++c) {
                const double p = s[c] * double{f16_to_f32(v[c * ld + j])};
                o += p;
                magnitude += std::fabs(p);
            }
            w.check(double{found[2 + j]}, o, magnitude * weight + sum_bound(n_key, magnitude));
        }
        return w.ratio;
    }
};

}  // namespace test_ops
using namespace test_ops;

TEST_CASE("every path of this processor has loops, and a missing path has none") {
    for (CpuPath p : {CpuPath::reference, CpuPath::avx2, CpuPath::avx512, CpuPath::neon}) {
        const CpuKernels* k = kernels_for(p);
        CHECK(has_path(p) == (k != nullptr));
        if (k) CHECK(k->path == p);
    }
    CHECK(kernels_for(CpuPath::reference) == reference_kernels());
}

TEST_CASE("rms_norm divides by the root mean square") {
    for (const NamedLoops* l : all_loops())
        for (uint32_t n : {1u, 7u, 8u, 33u, 64u, 256u, 1000u, 4096u}) {
            CAPTURE(l->name);
            CAPTURE(n);
            test::Random r(n);
            const Floats x = r.normals(n, 3), w = r.normals(n);
            Floats y(n), z(x);
            l->rms_norm(x.data(), w.data(), y.data(), n, 1e-6f);
            l->rms_norm(z.data(), nullptr, z.data(), n, 1e-6f);  // in place, no weights
            double sum = 0;
            for (float a : x) sum += double{a} * double{a};
            const double scale = 1 / std::sqrt(sum / n + double{1e-6f});
            Worst worst;
            for (uint32_t i = 0; i < n; ++i) {
                const double e = double{x[i]} * scale;
                worst.check(double{z[i]}, e, (n / 16 + 8) * kEps * std::fabs(e));
                worst.check(double{y[i]}, e * double{w[i]}, (n / 16 + 8) * kEps * std::fabs(e * double{w[i]}));
            }
            CHECK(worst.ratio <= 1);
        }
    for (const NamedLoops* l : all_loops()) {
        Floats zero(40, 0.0f), y(40, 1.0f);
        l->rms_norm(zero.data(), nullptr, y.data(), 40, 1e-6f);
        CHECK(same_bits(y, zero));
    }
}

TEST_CASE("gates follow sigmoid and silu from large negative to large positive values") {
    Floats g, u;
    test::Random r(5);
    for (float x : {0.0f,  -0.0f,  1e-30f, -1e-30f, 1.0f,   -1.0f,   20.0f, -20.0f, 80.0f, -80.0f,
                    87.5f, -87.5f, 88.9f,  -88.9f,  104.0f, -104.0f, 1e4f,  -1e4f,  1e30f, -1e30f})
        g.push_back(x);
    for (float x = -110; x < 110; x += 0.37f) g.push_back(x);
    const uint32_t n = static_cast<uint32_t>(g.size());
    u = r.normals(n, 4);
    for (const NamedLoops* l : all_loops()) {
        CAPTURE(l->name);
        Floats s(n), z(n), a(n), b(n);
        l->sigmoid_gate(u.data(), g.data(), s.data(), n);
        l->silu_gate(u.data(), g.data(), z.data(), n);
        l->swiglu(g.data(), u.data(), a.data(), n, 0.0f);
        l->swiglu(g.data(), u.data(), b.data(), n, 2.5f);
        Worst w;
        for (uint32_t i = 0; i < n; ++i) {
            const double x = double{g[i]}, y = double{u[i]};
            // e^-x is off by one unit; around e^-88 float runs out of digits.
            const double rel = 8 * kEps, tiny = 1e-35 * std::fabs(y);
            w.check(double{s[i]}, y * sigmoid(x), rel * std::fabs(y * sigmoid(x)) + tiny);
            w.check(double{z[i]}, y * silu(x), rel * std::fabs(y * silu(x)) + tiny);
            w.check(double{a[i]}, y * silu(x), rel * std::fabs(y * silu(x)) + tiny);
            const double limited = std::min(silu(x), 2.5) * std::max(-2.5, std::min(y, 2.5));
            w.check(double{b[i]}, limited, rel * std::fabs(limited) + tiny);
        }
        CHECK(w.ratio <= 1);
    }
}

TEST_CASE("a NaN goes through every gate, limited or not") {
    const uint32_t n = 37;
    for (const NamedLoops* l : all_loops())
        for (const uint32_t at : {0u, 20u, n - 1}) {  // also in what is left after whole vectors
            CAPTURE(l->name);
            CAPTURE(at);
            Floats good(n, 9.0f), bad = good, y(n);
            bad[at] = NAN;
            for (const bool first : {true, false}) {
                const float *a = first ? bad.data() : good.data(), *b = first ? good.data() : bad.data();
                const auto check = [&] {
                    for (uint32_t i = 0; i < n; ++i) CHECK(std::isnan(y[i]) == (i == at));
                };
                for (const float limit : {0.0f, 7.0f}) {
                    l->swiglu(a, b, y.data(), n, limit);
                    check();
                }
                l->silu_gate(a, b, y.data(), n);
                check();
                l->sigmoid_gate(a, b, y.data(), n);
                check();
            }
        }
}

TEST_CASE("a value's bits do not depend on its index in a row or on the row's length") {
    test::Random r(9);
    const uint32_t n = 37;
    const Floats x = r.normals(n), z = r.normals(n, 5), p = r.normals(n), w = r.normals(4 * n), w3 = r.normals(3 * n);
    for (const NamedLoops* l : all_loops()) {
        CAPTURE(l->name);
        Floats all[6], one[6];
        for (auto* set : {all, one})
            for (int i = 0; i < 6; ++i) set[i].assign(n, NAN);
        const float* taps[4] = {x.data(), z.data(), p.data(), x.data()};
        auto run = [&](Floats* y, uint32_t at, uint32_t m) {
            const float* t[4] = {taps[0] + at, taps[1] + at, taps[2] + at, taps[3] + at};
            l->swiglu(&z[at], &x[at], &y[0][at], m, 1.0f);
            l->silu_gate(&x[at], &z[at], &y[1][at], m);
            l->sigmoid_gate(&x[at], &z[at], &y[2][at], m);
            l->conv_silu(t, &w[4 * at], &y[3][at], m, 4);
            l->conv_silu(t, &w3[3 * at], &y[4][at], m, 3);
            y[5].assign(x.begin(), x.end());
        };
        run(all, 0, n);
        for (uint32_t i = 0; i < n; ++i) run(one, i, 1);
        l->merge(all[5].data(), 0.3f, p.data(), 0.7f, n);
        for (uint32_t i = 0; i < n; ++i) l->merge(&one[5][i], 0.3f, &p[i], 0.7f, 1);
        for (int i = 0; i < 6; ++i) CHECK(same_bits(all[i], one[i]));
    }
}

TEST_CASE("conv_silu weights each channel's taps, oldest first") {
    for (const NamedLoops* l : all_loops())
        for (uint32_t n_tap : {2u, 3u, 4u, 5u, 8u})
            for (uint32_t n : {1u, 15u, 16u, 128u, 131u}) {
                CAPTURE(l->name);
                CAPTURE(n_tap);
                test::Random r(n * 10 + n_tap);
                const Floats x = r.normals(size_t{n} * n_tap), w = r.normals(size_t{n} * n_tap);
                Floats y(n);
                const float* taps[8] = {};
                for (uint32_t j = 0; j < n_tap; ++j) taps[j] = &x[size_t{j} * n];
                l->conv_silu(taps, w.data(), y.data(), n, n_tap);
                Worst worst;
                for (uint32_t c = 0; c < n; ++c) {
                    double sum = 0, magnitude = 0;
                    for (uint32_t j = 0; j < n_tap; ++j) {
                        const double p = double{x[size_t{j} * n + c]} * double{w[size_t{c} * n_tap + j]};
                        sum += p;
                        magnitude += std::fabs(p);
                    }
                    // the slope of silu is at most 1.1
                    worst.check(double{y[c]}, silu(sum),
                                1.1 * sum_bound(n_tap, magnitude) + 8 * kEps * std::fabs(silu(sum)));
                }
                CHECK(worst.ratio <= 1);
            }
}

TEST_CASE("to_f16 rounds to nearest even, whatever the value") {
    Floats x;
    for (uint32_t h = 0; h < 0x7c00; ++h) {  // every finite half, and the midpoint above it, and its neighbours
        const float a = f16_to_f32(static_cast<uint16_t>(h)),
                    b = h == 0x7bff ? 65536.0f : f16_to_f32(static_cast<uint16_t>(h + 1)), mid = (a + b) / 2;
        for (float v : {a, mid, std::nextafter(mid, 0.0f), std::nextafter(mid, 1e9f)}) {
            x.push_back(v);
            x.push_back(-v);
        }
    }
    for (float v : {1e30f, -1e30f, INFINITY, -INFINITY, 1e-30f, 1e-40f}) x.push_back(v);
    for (const NamedLoops* l : all_loops()) {
        std::vector<uint16_t> y(x.size());
        l->to_f16(x.data(), y.data(), static_cast<uint32_t>(x.size()));
        size_t wrong = 0;
        for (size_t i = 0; i < x.size(); ++i) wrong += y[i] != f32_to_f16(x[i]);
        CHECK(wrong == 0);
        const float nan = NAN;
        uint16_t h = 0;
        l->to_f16(&nan, &h, 1);
        CHECK(std::isnan(f16_to_f32(h)));
    }
}

TEST_CASE("attention weighs the values by exp(score - max)") {
    for (const NamedLoops* l : all_loops())
        for (uint32_t n_key : {1u, 2u, 5u, 17u, 255u, 256u})
            for (uint32_t d : {8u, 24u, 64u, 72u, 128u, 256u, 512u}) {
                if (l->reference && n_key > 17 && d > 128) continue;  // plain code is slow
                CAPTURE(l->name);
                CAPTURE(n_key);
                CAPTURE(d);
                Attention a(1, n_key, d, 1.0f, n_key * 1000 + d);
                a.one(*l, 0);
                CHECK(a.ratio(0) <= 1);
            }
}

TEST_CASE("attention with scores far apart gives weights of 0 and no NaN") {
    for (const NamedLoops* l : all_loops()) {
        CAPTURE(l->name);
        Attention a(1, 40, 64, 60.0f, 3);  // scores of some hundreds, positive and negative
        a.one(*l, 0);
        CHECK(a.ratio(0) <= 1);
        Attention zero(1, 19, 16, 0.0f, 4);  // a query of zeros: the mean of the values
        zero.one(*l, 0);
        CHECK(zero.row(0)[1] == 19.0f);
        CHECK(zero.ratio(0) <= 1);
    }
}

TEST_CASE("row invariance: a query's attention has the same bits alone and among others") {
    for (const NamedLoops* l : all_loops())
        for (uint32_t n_query : {1u, 2u, 3u, 4u, 7u, 8u})
            for (uint32_t n_key : {1u, 6u, 67u})
                for (uint32_t d : {24u, 64u, 128u}) {
                    CAPTURE(l->name);
                    Attention a(n_query, n_key, d, 2.0f, n_query), b(a);
                    a.many(*l);
                    for (uint32_t i = 0; i < n_query; ++i) b.one(*l, i);
                    CHECK(same_bits(a.out, b.out));
                    CHECK(a.ratio(n_query - 1) <= 1);
                }
}

TEST_CASE("delta_rows follows the gated delta rule") {
    for (const NamedLoops* l : all_loops())
        for (uint32_t d_key : {1u, 16u, 30u, 128u})
            for (uint32_t d_val : {1u, 16u, 40u, 128u, 300u})
                for (uint32_t n : {1u, 2u, 9u}) {
                    CAPTURE(l->name);
                    CAPTURE(d_key);
                    CAPTURE(d_val);
                    CAPTURE(n);
                    Head h(d_key, d_val, n, d_key * 1000 + d_val + n);
                    const Truth truth(h);
                    h.run(*l, 0, n, true);
                    CHECK(truth.ratio(h) <= 1);
                }
}

TEST_CASE("row invariance: nine rows at once have the bits of nine steps of one row") {
    for (const NamedLoops* l : all_loops())
        for (uint32_t d_val : {16u, 44u, 128u}) {
            CAPTURE(l->name);
            const Head start(128, d_val, 9, d_val);
            Head once(start), looped(start), tentative(start), stepped(start);
            once.run(*l, 0, 9, true);
            for (uint32_t t = 0; t < 9; ++t) looped.run(*l, t, 1, true);
            CHECK(same_bits(once.s, looped.s));
            CHECK(same_bits(once.o, looped.o));
            CHECK(same_bits(once.u, looped.u));
            // tentative rows leave the state alone
            tentative.run(*l, 0, 9, false);
            CHECK(same_bits(tentative.s, start.s));
            CHECK(same_bits(tentative.o, once.o));
            CHECK(same_bits(tentative.u, once.u));
            // one row a step, each adding the term of the row before it
            for (uint32_t t = 0; t < 9; ++t)
                stepped.run(*l, t, 1, false,
                            t ? std::vector<DeltaTerm>{stepped.term(t - 1)} : std::vector<DeltaTerm>{});
            stepped.run(*l, 0, 0, false, {stepped.term(8)});
            CHECK(same_bits(stepped.s, once.s));
            CHECK(same_bits(stepped.o, once.o));
        }
}

TEST_CASE("commit equivalence: run n, commit k, twice in a row, equals running the committed rows") {
    constexpr uint32_t n = 5;
    for (const NamedLoops* l : all_loops())
        for (uint32_t first = 0; first <= n; ++first)
            for (uint32_t second = 0; second <= n; ++second) {
                CAPTURE(l->name);
                CAPTURE(first);
                CAPTURE(second);
                // rows 0..4 are the first step's, rows 5..9 the second's
                const Head start(64, 48, 2 * n, 77);
                Head drafted(start), plain(start);
                drafted.run(*l, 0, n, false);
                std::vector<DeltaTerm> kept;
                for (uint32_t i = 0; i < first; ++i) kept.push_back(drafted.term(i));
                drafted.run(*l, n, n, false, kept);
                kept.clear();
                for (uint32_t i = 0; i < second; ++i) kept.push_back(drafted.term(n + i));
                drafted.run(*l, 0, 0, false, kept);
                if (first) plain.run(*l, 0, first, true);
                if (second) plain.run(*l, n, second, true);
                CHECK(same_bits(drafted.s, plain.s));
                for (uint32_t i = 0; i < second; ++i)
                    CHECK(std::memcmp(drafted.rows[n + i].o, plain.rows[n + i].o, 48 * sizeof(float)) == 0);
            }
}

TEST_CASE("chunk invariance: the chunked form agrees with the rows one by one") {
    for (const NamedLoops* l : all_loops())
        for (uint32_t n : {1u, 2u, 3u, 15u, 17u, 33u, 63u, 64u})
            for (uint32_t d : {20u, 128u}) {
                CAPTURE(l->name);
                CAPTURE(n);
                CAPTURE(d);
                const Head start(d, d == 20 ? 36 : 128, n, n + d);
                Head rows(start), chunk(start);
                rows.run(*l, 0, n, true);
                l->delta_chunk(chunk.s.data(), chunk.d_key, chunk.d_val, chunk.rows.data(), n, chunk.scratch.data());
                CHECK(relative_difference(rows.s, chunk.s) <= 1e-5);
                CHECK(relative_difference(rows.o, chunk.o) <= 1e-5);
                CHECK(Truth(start).ratio(chunk) <= 1);
            }
}

TEST_CASE("decays of 0 and 1, closed and open gates and rows of zeros stay within bounds in every form") {
    for (const NamedLoops* l : all_loops()) {
        CAPTURE(l->name);
        Head start(32, 64, 40, 12);
        for (uint32_t i = 0; i < start.n; ++i) {
            start.decay[i] = i % 7 == 3 ? 0.0f : i % 3 == 0 ? 1.0f : i % 5 == 1 ? 1e-30f : start.decay[i];
            start.beta[i] = i % 4 == 1 ? 0.0f : i % 4 == 2 ? 1.0f : start.beta[i];
            for (uint32_t j = 0; j < 32; ++j) {
                if (i % 11 == 4) start.k[i * 32 + j] = 0;
                if (i % 13 == 5) start.q[i * 32 + j] = 0;
            }
            if (i % 6 == 2) std::fill_n(&start.v[i * 64], 64, 0.0f);
        }
        start.bind();
        const Truth truth(start);
        Head rows(start), chunk(start);
        rows.run(*l, 0, start.n, true);
        CHECK(truth.ratio(rows) <= 1);
        l->delta_chunk(chunk.s.data(), 32, 64, chunk.rows.data(), chunk.n, chunk.scratch.data());
        CHECK(truth.ratio(chunk) <= 1);
        Head blank(32, 64, 2, 13);
        std::fill(blank.s.begin(), blank.s.end(), 0.0f);
        std::fill(blank.v.begin(), blank.v.end(), 0.0f);
        blank.run(*l, 0, 2, true);
        for (float x : blank.o) CHECK(x == 0.0f);
        l->delta_chunk(blank.s.data(), 32, 64, blank.rows.data(), 0, blank.scratch.data());  // no rows: nothing happens
        for (float x : blank.s) CHECK(x == 0.0f);
    }
}

TEST_CASE("merge adds two partials with their weights") {
    for (const NamedLoops* l : all_loops()) {
        test::Random r(2);
        const Floats p = r.normals(70), before = r.normals(70);
        Floats o(before);
        l->merge(o.data(), 0.25f, p.data(), 0.75f, 70);
        Worst w;
        for (size_t i = 0; i < o.size(); ++i)
            w.check(double{o[i]}, double{before[i]} * 0.25 + double{p[i]} * 0.75,
                    2 * kEps * (std::fabs(double{before[i]}) + std::fabs(double{p[i]})));
        CHECK(w.ratio <= 1);
    }
}

TEST_CASE("exponentials have the same bits with every C library") {
    std::vector<float> values;
    for (int i = 0; i < 30000; ++i) {
        const float x = -20 + static_cast<float>(i) / 1024;
        values.insert(values.end(), {exp_f32(x), sigmoid(x), softplus(x)});
    }
    CHECK(checksum_of(values.data(), values.size() * sizeof(float)) == 5318308261883064132u);
    CHECK(exp_f32(-200) == 0);
    CHECK(std::isinf(exp_f32(100)));
    CHECK(std::isnan(exp_f32(NAN)));
    CHECK(softplus(1000) == 1000);
    CHECK(softplus(-200) == 0);
}

TEST_CASE("l2_normalise gives unit length and keeps zeros") {
    test::Random r(4);
    Floats x = r.normals(128, 5), zero(128, 0.0f);
    l2_normalise(x.data(), 128, 0.5f);
    double sum = 0;
    for (float a : x) sum += double{a} * double{a};
    CHECK(std::sqrt(sum) == doctest::Approx(0.5).epsilon(1e-6));
    l2_normalise(zero.data(), 128, 1.0f);
    for (float a : zero) CHECK(a == 0.0f);
}

TEST_CASE("rotation keeps its precision at position one million") {
    for (uint64_t position : {0ull, 1ull, 4095ull, 1000000ull}) {
        constexpr uint32_t n_rot = 64;
        const float base = 1e7f;
        Floats table(n_rot);
        rotation_table(position, n_rot, base, table.data());
        test::Random r(6);
        const Floats before = r.normals(n_rot);
        Floats x(before);
        rotate(x.data(), n_rot, table.data());
        Worst w;
        for (uint32_t i = 0; i < n_rot / 2; ++i) {
            const long double angle =
                static_cast<long double>(position) * std::pow(static_cast<long double>(base), -2.0L * i / n_rot);
            const double c = static_cast<double>(std::cos(angle)), s = static_cast<double>(std::sin(angle));
            w.check(double{table[2 * i]}, c, 1e-7);
            w.check(double{table[2 * i + 1]}, s, 1e-7);
            const double a = double{before[i]}, b = double{before[i + n_rot / 2]},
                         allowed = 4e-7 * (std::fabs(a) + std::fabs(b));
            w.check(double{x[i]}, a * c - b * s, allowed);
            w.check(double{x[i + n_rot / 2]}, a * s + b * c, allowed);
        }
        CHECK(w.ratio <= 1);
        if (position == 0) CHECK(same_bits(x, before));
    }
}

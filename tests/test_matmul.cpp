// Tests of machine/cpu/matmul: every type within its error bound, and row invariance.
#include "../src/machine/cpu/kernels.h"
#include "encode.h"
#include "largest.h"
#include "number_fields.h"
#include "support.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace auspex;
using namespace auspex::detail;

namespace {

using Bytes = std::vector<std::byte>;

constexpr const auto& kAll = kAllTypes;

bool is_float(Type t) { return t == Type::f32 || t == Type::f16 || t == Type::bf16; }
std::string label(const CpuKernels* cpu, Type t) { return std::string(cpu->name) + " " + type_info(t).name; }

enum class Fill { normal, subnormal, highest, lowest, striped };

/// n_row rows of a type: random codes, scales of moderate size.
Bytes make_rows(Type t, uint32_t n_row, uint32_t d_in, Fill fill, uint64_t seed) {
    test::Random random(seed);
    const size_t size = static_cast<size_t>(row_bytes(t, d_in)) * n_row;
    Bytes bytes(size);
    if (is_float(t)) {
        std::vector<float> v = random.normals(size_t{n_row} * d_in, fill == Fill::subnormal ? 1e-6f : 0.05f);
        test::encode(t, v.data(), bytes.data(), v.size());
        return bytes;
    }
    for (size_t i = 0; i < size; ++i) {
        const bool odd = i % 2 != 0;
        bytes[i] = fill == Fill::highest   ? std::byte{0xff}
                   : fill == Fill::lowest  ? std::byte{0x80}
                   : fill == Fill::striped ? (odd ? std::byte{0x80} : std::byte{0x7f})
                                           : static_cast<std::byte>(random.next() & 255);
    }
    test::set_exponents(t, bytes.data(), size, fill == Fill::subnormal ? -20 : -10, 3, random);
    const std::vector<int> at = test::half_fields(t);
    if (at.empty()) return bytes;
    const size_t block = type_info(t).block_bytes;
    for (size_t b = 0; b < size; b += block) {
        // An f16 of 1e-6 is subnormal: it must not be flushed to zero.
        const float scale = fill == Fill::subnormal ? 1e-6f : 1e-3f + 1e-3f * std::fabs(random.normal());
        const uint16_t hd = f32_to_f16(random.below(2) ? scale : -scale), hm = f32_to_f16(scale * 3);
        std::memcpy(&bytes[b + static_cast<size_t>(at[0])], &hd, 2);
        if (at.size() > 1) std::memcpy(&bytes[b + static_cast<size_t>(at[1])], &hm, 2);
    }
    return bytes;
}

/// A matrix, its decoded rows, and what it takes to multiply by it.
struct Case {
    const CpuKernels* kernels;
    Type type;
    uint32_t d_out, d_in;
    Bytes rows;
    PackedMatrix packed;
    std::vector<float> w;

    Case(const CpuKernels* cpu, Type t, uint32_t out, uint32_t in, Fill fill = Fill::normal, uint64_t seed = 1)
        : kernels(cpu), type(t), d_out(out), d_in(in), rows(make_rows(t, out, in, fill, seed)), w(size_t{out} * in) {
        const Status st = pack_matrix(*cpu, {t, out, in}, rows.data(), true, {}, nullptr, &packed);
        REQUIRE_MESSAGE(st.ok(), st.message());
        for (uint32_t r = 0; r < out; ++r)
            decode_row(t, rows.data() + row_bytes(t, in) * r, w.data() + size_t{in} * r, in);
    }

    Bytes quantised(const std::vector<float>& x, uint32_t n, const Share& share = {}) const {
        Bytes q(packed.view().wants_integers() ? quantised_bytes(n, d_in) : 0);
        if (!q.empty()) quantise_rows(*kernels, x.data(), d_in, n, d_in, q.data(), share);
        return q;
    }
    std::vector<float> product(const std::vector<float>& x, uint32_t n) const {
        const Bytes q = quantised(x, n);
        std::vector<float> y(size_t{n} * d_out, -77.0f);
        matmul(packed.view(), {x.data(), d_in, q.data(), nullptr}, n, y.data(), d_out, false, {});
        return y;
    }
};

/// Activation k of a block, as the integer that the kernels read.
int integer_of(const CpuKernels& kernels, const Int16Block& b, uint32_t k) {
    if (!kernels.words) return 256 * b.q[k] + b.q[32 + k];
    const uint32_t place = k % 4 == 1 ? k + 1 : k % 4 == 2 ? k - 1 : k;
    int16_t word;
    std::memcpy(&word, b.q + 2 * place, sizeof word);
    return word;
}

/// The activations as the kernel uses them: x itself, or 16-bit integers times a scale.
std::vector<float> as_seen(const Case& c, const std::vector<float>& x, uint32_t n) {
    const Bytes q = c.quantised(x, n);
    if (q.empty()) return x;
    std::vector<float> seen(x.size());
    for (uint32_t i = 0; i < n; ++i)
        for (uint32_t k = 0; k < c.d_in; ++k) {
            const Int16Block& b =
                reinterpret_cast<const Int16Block*>(q.data() + quantised_bytes(1, c.d_in) * i)[k / 32];
            seen[size_t{i} * c.d_in + k] = b.scale * static_cast<float>(integer_of(*c.kernels, b, k % 32));
        }
    return seen;
}

/// Checks every output against double precision, twice: with the activations as the kernel saw them,
/// within float rounding of the largest intermediate sums; and with the true ones, within half a step
/// of the 16-bit grid in addition. Returns the relative rms error against the true product.
double check_product(const Case& c, const std::vector<float>& x, uint32_t n) {
    const std::vector<float> y = c.product(x, n), seen = as_seen(c, x, n);
    double square_error = 0, square = 0, worst = 0, worst_seen = 0;
    for (uint32_t i = 0; i < n; ++i)
        for (uint32_t r = 0; r < c.d_out; ++r) {
            double exact = 0, exact_seen = 0, step = 0, sum_x = 0, max_w = 0;
            for (uint32_t k = 0; k < c.d_in; ++k) {
                const double w = c.w[size_t{r} * c.d_in + k], a = x[size_t{i} * c.d_in + k],
                             s = seen[size_t{i} * c.d_in + k];
                exact += w * a;
                exact_seen += w * s;
                step += std::fabs(w) * std::fabs(a - s);
                sum_x += std::fabs(s);
                max_w = std::max(max_w, std::fabs(w));
            }
            // Each block rounds a few times; intermediate products reach a few times the largest weight.
            const double rounding = std::ldexp(1.0, -24) * (c.d_in / 32.0 + 16) * 4 * max_w * sum_x + 1e-37;
            const double got = y[size_t{i} * c.d_out + r];
            worst_seen = test::larger_error(worst_seen, std::fabs(got - exact_seen) / rounding);
            worst = test::larger_error(worst, std::fabs(got - exact) / (step + rounding));
            square_error += (got - exact) * (got - exact);
            square += exact * exact;
        }
    CHECK_MESSAGE(worst_seen <= 1, label(c.kernels, c.type) << " [" << c.d_out << ", " << c.d_in << "] n=" << n);
    CHECK_MESSAGE(worst <= 1, label(c.kernels, c.type) << " [" << c.d_out << ", " << c.d_in << "] n=" << n);
    return square > 0 ? std::sqrt(square_error / square) : 0;
}

void check_half_steps(const Case& c, const std::vector<float>& x, uint32_t n) {
    const std::vector<float> seen = as_seen(c, x, n);
    for (size_t b = 0; b < x.size(); b += 32) {
        float max_x = 0;
        double off = 0;
        for (size_t k = b; k < b + 32; ++k) {
            max_x = std::max(max_x, std::fabs(x[k]));
            off = test::larger_error(off, std::fabs(x[k] - seen[k]));
        }
        CHECK(off <= max_x / 127 / 256 * 1.51f);  // half a step; one more where the low byte stops at 127
    }
}

bool same_bits(const float* a, const float* b, size_t n) { return std::memcmp(a, b, n * sizeof(float)) == 0; }

std::vector<uint32_t> widths(Type t) {
    if (is_float(t)) return {1, 7, 33, 259, 512};
    const uint32_t n = type_info(t).n_block;
    return n == 32   ? std::vector<uint32_t>{32, 96, 352}
           : n == 64 ? std::vector<uint32_t>{64, 192, 320}
                     : std::vector<uint32_t>{256, 768};
}

}  // namespace

TEST_CASE("every type on every path agrees with double precision within the bound of its arithmetic") {
    for (const CpuKernels* cpu : runnable_kernels())
        for (const Type t : kAll)
            for (const uint32_t d_in : widths(t))
                for (const uint32_t d_out : {1u, 21u}) {
                    Case c(cpu, t, d_out, d_in, Fill::normal, d_in + d_out);
                    const std::vector<float> x = test::Random(d_in).normals(size_t{5} * d_in);
                    check_product(c, x, 5);
                }
}

TEST_CASE("integer activations and float products lose almost no precision") {
    for (const CpuKernels* cpu : runnable_kernels())
        for (const Type t : kAll) {
            Case c(cpu, t, 40, 1024);
            const std::vector<float> x = test::Random(3).normals(size_t{4} * 1024);
            const double error = check_product(c, x, 4);
            CHECK_MESSAGE(error < (c.packed.view().wants_integers() ? 4e-5 : 2e-6), label(cpu, t));
            if (c.packed.view().wants_integers()) check_half_steps(c, x, 4);
        }
}

TEST_CASE("extreme codes and subnormal scales are neither clamped nor flushed to zero") {
    for (const CpuKernels* cpu : runnable_kernels())
        for (const Type t : kAll)
            for (const Fill f : {Fill::subnormal, Fill::highest, Fill::lowest, Fill::striped}) {
                Case c(cpu, t, 17, 512, f, 5);
                std::vector<float> x(size_t{3} * 512, 1.0f);  // the high byte becomes 127 throughout
                for (size_t k = 0; k < 512; ++k) {
                    x[512 + k] = -1.0f;
                    x[1024 + k] = k % 2 ? 2.0f : -2.0f;
                }
                check_product(c, x, 3);
                // Bytes 0x80 are two zeros in MXFP4 and NVFP4, and 0x7f beside them cancel out.
                if ((t == Type::mxfp4 || t == Type::nvfp4) && (f == Fill::lowest || f == Fill::striped)) continue;
                const std::vector<float> y = c.product(x, 3);
                CHECK_MESSAGE(std::fabs(y[0]) > 0.0f, label(cpu, t));
            }
}

TEST_CASE("row invariance: a row's result has the same bits alone and among others") {
    for (const CpuKernels* cpu : runnable_kernels())
        for (const Type t : kAll) {
            const uint32_t d_in = is_float(t) ? 259 : widths(t).back() % 256 != 0 ? widths(t).back() : 512;
            const uint32_t n_max = t == Type::q4_k || t == Type::f16 ? 100 : 33;
            Case c(cpu, t, 37, d_in);
            const std::vector<float> x = test::Random(11).normals(size_t{n_max} * d_in);
            std::vector<float> alone;
            for (uint32_t i = 0; i < n_max; ++i) {
                const std::vector<float> one(x.begin() + i * d_in, x.begin() + (i + 1) * d_in);
                const std::vector<float> y = c.product(one, 1);
                alone.insert(alone.end(), y.begin(), y.end());
            }
            std::vector<uint32_t> counts = {33, n_max};  // and every width of a pass, alone and after others
            for (uint32_t n = 2; n <= 17; ++n) counts.push_back(n);
            for (const uint32_t n : counts) {
                const std::vector<float> y = c.product(x, n);
                CHECK_MESSAGE(same_bits(y.data(), alone.data(), y.size()), label(cpu, t) << " n=" << n);
            }
        }
}

TEST_CASE("the bits do not depend on threads, shares or the order of work items") {
    std::unique_ptr<Pool> pool;
    REQUIRE(Pool::open(3).get(pool).ok());
    for (const CpuKernels* cpu : runnable_kernels())
        for (const Type t : {Type::q4_k, Type::q6_k, Type::q8_0, Type::bf16}) {
            constexpr uint32_t n = 5, d_in = 512, d_out = 331;
            Case c(cpu, t, d_out, d_in);
            const std::vector<float> x = test::Random(12).normals(size_t{n} * d_in);
            const std::vector<float> expected = c.product(x, n);
            const Bytes whole = c.quantised(x, n);
            for (const uint32_t parts : {2u, 3u, 7u, 50u}) {
                Bytes q(whole.size());
                std::vector<float> y(size_t{n} * d_out, -1.0f), z(size_t{n} * d_out, -1.0f);
                std::atomic<uint32_t> ticket{0};
                if (!q.empty())
                    for (uint32_t i = 0; i < parts; ++i)
                        quantise_rows(*cpu, x.data(), d_in, n, d_in, q.data(), {i, parts, nullptr});
                CHECK(q == whole);
                const Rows in{x.data(), d_in, q.data(), nullptr};
                for (uint32_t i = 0; i < parts; ++i) {
                    matmul(c.packed.view(), in, n, y.data(), d_out, false, {i, parts, nullptr});
                    matmul(c.packed.view(), in, n, z.data(), d_out, false, {i, parts, &ticket});
                }
                CHECK_MESSAGE(same_bits(y.data(), expected.data(), y.size()), label(cpu, t) << " parts " << parts);
                CHECK_MESSAGE(same_bits(z.data(), expected.data(), z.size()), label(cpu, t) << " parts " << parts);
            }
            struct Job {
                const Case* c;
                Pool* pool;
                const std::vector<float>* x;
                Bytes q;
                std::vector<float> y;
            } job{&c, pool.get(), &x, Bytes(whole.size()), std::vector<float>(size_t{n} * d_out)};
            pool->run(
                [](void* context, uint32_t i, uint32_t) {
                    Job& j = *static_cast<Job*>(context);
                    if (!j.q.empty())
                        quantise_rows(*j.c->kernels, j.x->data(), d_in, n, d_in, j.q.data(), j.pool->even(i));
                    j.pool->barrier();
                    matmul(j.c->packed.view(), {j.x->data(), d_in, j.q.data(), nullptr}, n, j.y.data(), d_out, false,
                           j.pool->shared(i, 0));
                },
                &job);
            CHECK_MESSAGE(same_bits(job.y.data(), expected.data(), expected.size()), label(cpu, t) << " pool");
        }
}

TEST_CASE("an unpacked row equals the file's row bit for bit") {
    for (const CpuKernels* cpu : runnable_kernels())
        for (const Type t : kAll)
            for (const Fill f : {Fill::normal, Fill::subnormal, Fill::highest, Fill::lowest}) {
                for (const uint32_t d_in : widths(t)) {
                    Case c(cpu, t, 19, d_in, f, 21);
                    std::vector<float> row(d_in);
                    bool same = true;
                    for (uint32_t r = 0; r < 19; ++r) {
                        unpack_row(c.packed.view(), r, row.data());
                        same = same && same_bits(row.data(), c.w.data() + size_t{r} * d_in, d_in);
                    }
                    CHECK_MESSAGE(same, label(cpu, t) << " d_in " << d_in);
                }
            }
}

TEST_CASE("a product writes its own rows only, and adds on request") {
    for (const CpuKernels* cpu : runnable_kernels())
        for (const Type t : {Type::q4_k, Type::q8_0, Type::f32})
            for (const uint32_t d_out : {1u, 7u, 16u, 29u}) {
                Case c(cpu, t, d_out, 256);
                constexpr uint32_t n = 3;
                const uint32_t ld = d_out + 5;
                const std::vector<float> x = test::Random(13).normals(size_t{n} * 256);
                const std::vector<float> expected = c.product(x, n);
                const Bytes q = c.quantised(x, n);
                std::vector<float> y(size_t{n} * ld, 4.0f);
                matmul(c.packed.view(), {x.data(), 256, q.data(), nullptr}, n, y.data(), ld, true, {});
                bool right = true;
                for (uint32_t i = 0; i < n; ++i)
                    for (uint32_t r = 0; r < ld; ++r)
                        right = right && y[i * ld + r] == (r < d_out ? 4.0f + expected[i * d_out + r] : 4.0f);
                CHECK_MESSAGE(right, label(cpu, t) << " d_out " << d_out);
            }
}

TEST_CASE("rows can be selected in any order, and the slices of a stack equal its matrices") {
    for (const CpuKernels* cpu : runnable_kernels())
        for (const Type t : {Type::q4_k, Type::q5_k, Type::f16}) {
            constexpr uint32_t d_in = 256, d_out = 21, n_slice = 3;
            const Bytes rows = make_rows(t, d_out * n_slice, d_in, Fill::normal, 30);
            const MatrixShape shape{t, d_out, d_in, n_slice};
            PackedMatrix stack;
            REQUIRE(pack_matrix(*cpu, shape, rows.data(), false, {}, nullptr, &stack).ok());
            CHECK(stack.owned_bytes() == packed_bytes(*cpu, shape, false));
            const std::vector<float> x = test::Random(31).normals(size_t{6} * d_in);
            const uint32_t sample[4] = {5, 0, 3, 3};
            for (uint32_t s = 0; s < n_slice; ++s) {
                PackedMatrix one;
                REQUIRE(pack_matrix(*cpu, {t, d_out, d_in}, rows.data() + row_bytes(t, d_in) * d_out * s, true, {},
                                    nullptr, &one)
                            .ok());
                Bytes q(quantised_bytes(6, d_in));
                if (one.view().wants_integers()) quantise_rows(*cpu, x.data(), d_in, 6, d_in, q.data(), {});
                std::vector<float> all(6 * d_out), some(4 * d_out);
                matmul(one.view(), {x.data(), d_in, q.data(), nullptr}, 6, all.data(), d_out, false, {});
                matmul(stack.slice(s), {x.data(), d_in, q.data(), sample}, 4, some.data(), d_out, false, {});
                for (uint32_t i = 0; i < 4; ++i)
                    CHECK_MESSAGE(same_bits(&some[i * d_out], &all[sample[i] * d_out], d_out), label(cpu, t)
                                                                                                   << " slice " << s);
            }
        }
}

TEST_CASE("each matrix of a stack has its scale, in products and in rows, however the stack is held") {
    constexpr uint32_t d_in = 320, d_out = 21, n_slice = 3;
    const Bytes rows = make_rows(Type::nvfp4, d_out * n_slice, d_in, Fill::normal, 32);
    const std::vector<float> x = test::Random(33).normals(size_t{2} * d_in), scales = {0.3f, -2.5e-5f, 700.0f};
    for (const CpuKernels* cpu : runnable_kernels()) {
        CAPTURE(std::string(cpu->name));
        MatrixShape shape{Type::nvfp4, d_out, d_in, n_slice};
        shape.scale = scales;
        PackedMatrix stack, mapped;
        REQUIRE(pack_matrix(*cpu, shape, rows.data(), false, {}, nullptr, &stack).ok());
        REQUIRE(map_matrix(*cpu, shape, stack.bytes(), &mapped).ok());
        for (uint32_t s = 0; s < n_slice; ++s) {
            const std::byte* first = rows.data() + row_bytes(Type::nvfp4, d_in) * d_out * s;
            MatrixShape one{Type::nvfp4, d_out, d_in};
            PackedMatrix plain, scaled;
            REQUIRE(pack_matrix(*cpu, one, first, true, {}, nullptr, &plain).ok());
            one.scale = Span<const float>(&scales[s], 1);
            REQUIRE(pack_matrix(*cpu, one, first, true, {}, nullptr, &scaled).ok());
            Bytes q(quantised_bytes(2, d_in));
            if (plain.view().wants_integers()) quantise_rows(*cpu, x.data(), d_in, 2, d_in, q.data(), {});
            const auto product = [&](const Matrix& m) {
                std::vector<float> y(size_t{2} * d_out);
                matmul(m, {x.data(), d_in, q.data(), nullptr}, 2, y.data(), d_out, false, {});
                return y;
            };
            const std::vector<float> without = product(plain.view()), with = product(scaled.view());
            CHECK(product(stack.slice(s)) == with);
            CHECK(product(mapped.slice(s)) == with);
            double largest = 0;
            for (const float y : without) largest = std::max(largest, std::fabs(double{y} * double{scales[s]}));
            for (size_t i = 0; i < with.size(); ++i)
                CHECK(std::fabs(double{with[i]} - double{without[i]} * double{scales[s]}) <= 1e-6 * largest);
            std::vector<float> row(d_in), file(d_in);
            unpack_row(mapped.slice(s), 7, row.data());
            decode_row(Type::nvfp4, first + 7 * row_bytes(Type::nvfp4, d_in), file.data(), d_in);
            for (float& v : file) v *= scales[s];
            CHECK(row == file);
        }
    }
}

TEST_CASE("matrix scales for another type, or of another number, are refused") {
    const Bytes rows(4096);
    const std::vector<float> scales(2, 1.0f);
    PackedMatrix m;
    MatrixShape shape{Type::q4_k, 4, 256};
    shape.scale = Span<const float>(scales.data(), 1);
    Status st = pack_matrix(*reference_kernels(), shape, rows.data(), true, {}, nullptr, &m);
    CHECK(st.code == Code::bad_argument);
    CHECK(st.text == "a matrix scale for Q4_K, expected NVFP4");
    shape = {Type::nvfp4, 4, 64, 3};
    shape.scale = scales;
    st = pack_matrix(*reference_kernels(), shape, rows.data(), true, {}, nullptr, &m);
    CHECK(st.code == Code::bad_argument);
    CHECK(st.text == "2 matrix scales for 3 matrices, expected one each");
    CHECK(m.empty());
}

TEST_CASE("a NaN in one row makes that row NaN and no other") {
    for (const CpuKernels* cpu : runnable_kernels())
        for (const Type t : {Type::q4_k, Type::q8_0, Type::f32})
            for (const size_t at : {0u, 5u, 31u, 200u}) {
                Case c(cpu, t, 9, 256);
                std::vector<float> x(2 * 256, 0.5f);
                x[256 + at] = std::numeric_limits<float>::quiet_NaN();
                const std::vector<float> y = c.product(x, 2);
                CHECK_MESSAGE(std::isfinite(y[0]), label(cpu, t));
                CHECK_MESSAGE(std::isnan(y[9]), label(cpu, t));
            }
}

TEST_CASE("rows of zeros and of the smallest numbers give zeros, not infinities") {
    for (const CpuKernels* cpu : runnable_kernels())
        for (const Type t : {Type::q4_k, Type::q6_k}) {
            Case c(cpu, t, 9, 256);
            std::vector<float> x(2 * 256, 0.0f);
            for (size_t k = 256; k < 512; ++k) x[k] = 1e-40f;
            for (const float y : c.product(x, 2)) CHECK_MESSAGE(std::fabs(y) < 1e-36f, label(cpu, t));
        }
}

TEST_CASE("the memory of a matrix is known beforehand and close to its size in the file") {
    const MatrixShape q4{Type::q4_k, 64, 1024}, q6{Type::q6_k, 64, 1024}, f16{Type::f16, 64, 1024};
    for (const CpuKernels* cpu : runnable_kernels()) {
        for (const Type t : kAll)
            for (const bool keep : {false, true}) {
                const MatrixShape shape{t, 23, 512, 2};
                const Bytes rows = make_rows(t, 46, 512, Fill::normal, 40);
                PackedMatrix m;
                REQUIRE(pack_matrix(*cpu, shape, rows.data(), keep, {}, nullptr, &m).ok());
                CHECK_MESSAGE(m.owned_bytes() == packed_bytes(*cpu, shape, keep), label(cpu, t));
                if (keep && !m.view().wants_integers()) CHECK(m.view().data == rows.data());
            }
        CHECK(packed_bytes(*cpu, q4, false) <= 64 * row_bytes(Type::q4_k, 1024) * 103 / 100);
        CHECK(packed_bytes(*cpu, q6, false) <= 64 * row_bytes(Type::q6_k, 1024) * 103 / 100);
        CHECK(packed_bytes(*cpu, f16, true) == 0);
    }
}

TEST_CASE("an invalid matrix and a failed allocation are errors that name the matrix") {
    const Bytes rows(4096);
    PackedMatrix m;
    Status st = pack_matrix(*reference_kernels(), {Type::q4_k, 4, 100}, rows.data(), true, {}, nullptr, &m);
    CHECK(st.code == Code::bad_argument);
    CHECK(st.text.find("multiple of 256") != std::string::npos);
    st = pack_matrix(*reference_kernels(), {Type::f32, 0, 100}, rows.data(), true, {}, nullptr, &m);
    CHECK(st.code == Code::bad_argument);
    Allocator none;
    none.alloc = [](void*, size_t, size_t) -> void* { return nullptr; };
    none.free = [](void*, void*, size_t, size_t) {};
    st = pack_matrix(*reference_kernels(), {Type::f32, 1, 100}, rows.data(), false, none, nullptr, &m);
    CHECK(st.code == Code::out_of_memory);
    CHECK(m.empty());
}

TEST_CASE("packing with a pool gives the same matrix as without") {
    std::unique_ptr<Pool> pool;
    REQUIRE(Pool::open(3).get(pool).ok());
    for (const CpuKernels* cpu : runnable_kernels())
        for (const Type t : {Type::q4_k, Type::bf16}) {
            const Bytes rows = make_rows(t, 99, 512, Fill::normal, 50);
            const MatrixShape shape{t, 33, 512, 3};
            PackedMatrix a, b;
            REQUIRE(pack_matrix(*cpu, shape, rows.data(), false, {}, nullptr, &a).ok());
            REQUIRE(pack_matrix(*cpu, shape, rows.data(), false, {}, pool.get(), &b).ok());
            CHECK(std::memcmp(a.view().data, b.view().data, static_cast<size_t>(a.owned_bytes())) == 0);
        }
}

TEST_CASE("the fastest path is supported by this processor, and an unsupported one is rejected with a list") {
    const CpuKernels* found = nullptr;
    CHECK(choose_kernels(CpuPath::best, &found).ok());
    REQUIRE(found);
    CHECK(has_path(found->path));
#ifdef AUSPEX_NO_AVX512
    CHECK(!has_path(CpuPath::avx512));
#endif
    CHECK(n_physical_core() >= 1);
    for (const CpuPath p : {CpuPath::avx2, CpuPath::avx512, CpuPath::neon}) {
        const Status st = choose_kernels(p, &found);
        CHECK(st.ok() == has_path(p));
        if (st.ok()) CHECK(found->path == p);
        if (!st.ok()) {
            CHECK(st.code == Code::unsupported);
            CHECK(st.text.find("reference") != std::string::npos);
        }
    }
}

TEST_CASE("instruction sets that share a path give the same bits") {
    for (const CpuKernels* one : runnable_kernels())
        for (const CpuKernels* other : runnable_kernels()) {
            if (one == other || one->path != other->path) continue;
            for (const Type t : kAll)
                for (const uint32_t n : {1u, 3u, 9u}) {
                    Case a(one, t, 37, 768), b(other, t, 37, 768);
                    const std::vector<float> x = test::Random(n).normals(size_t{n} * 768);
                    const std::vector<float> ya = a.product(x, n), yb = b.product(x, n);
                    CHECK_MESSAGE(same_bits(ya.data(), yb.data(), ya.size()), label(one, t) << ", " << other->name);
                }
        }
}

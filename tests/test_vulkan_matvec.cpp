// Tests of the matrix-vector kernels and of the weight layouts they read: tune.h, repack.h.
#include "../src/machine/vulkan/tune.h"
#include "encode.h"
#include "number_fields.h"
#include "support.h"

#include <doctest/doctest.h>

#ifndef AUSPEX_NO_VULKAN
#include "../shaders/matvec_args.h"
#include "vulkan_rig.h"

#include <cmath>
#include <cstring>

using namespace auspex;
using namespace auspex::detail;
using test::Vulkan;

namespace test_matvec {

/// A file matrix of plausible numbers: quantised blocks are random but for their scales.
std::vector<uint8_t> random_matrix(Type type, uint64_t d_out, uint64_t d_in, uint64_t seed) {
    test::Random random(seed);
    if (type == Type::f32 || type == Type::f16 || type == Type::bf16) {
        const std::vector<float> v = random.normals(d_out * d_in, 0.05f);
        std::vector<uint8_t> out(d_out * row_bytes(type, d_in));
        test::encode(type, v.data(), out.data(), v.size());
        return out;
    }
    std::vector<uint8_t> out(d_out * row_bytes(type, d_in));
    for (uint8_t& b : out) b = static_cast<uint8_t>(random.next());
    test::set_exponents(type, out.data(), out.size(), -24, 19, random);
    const uint32_t block = type_info(type).block_bytes;
    for (size_t at = 0; at < out.size(); at += block) {
        // Of NVFP4 0.5 to 7.5, with or without bit 7. In a sum of few large terms the rounding of x does not average
        // out: alone it is 1.98e-4 of Exact::bound here, and 2.88e-4 with 2^-3 to 30.
        for (size_t g = 0; type == Type::nvfp4 && g < 4; ++g)
            out[at + g] = static_cast<uint8_t>(0x30 + random.below(0x20) + 0x80 * random.below(2));
        for (const int h : test::half_fields(type)) {
            // Of either sign, from subnormal (below 0x0400) to 1/64.
            const uint16_t bits =
                static_cast<uint16_t>(0x20 + random.below(0x2400) + (random.below(4) == 0 ? 0x8000u : 0u));
            std::memcpy(&out[at + static_cast<size_t>(h)], &bits, 2);
        }
    }
    return out;
}

uint64_t odd_width(Type type) {
    const uint32_t n = type_info(type).n_block;
    return n == 256 ? 768 : n == 64 ? 576 : n == 32 ? 608 : 332;
}

/// Buffers of one test, filled at once.
struct Bench {
    Vulkan& v;
    vk::MemoryPlan plan;
    std::vector<std::pair<std::vector<uint8_t>, vk::MemoryPlan::Id>> data;
    vk::Memory memory;
    explicit Bench(Vulkan& vulkan) : v(vulkan), plan(vulkan.gpu->traits) {}
    size_t add(const void* bytes, size_t n) {
        const uint8_t* p = static_cast<const uint8_t*>(bytes);
        data.push_back({std::vector<uint8_t>(p, p + n), plan.add(vk::Arena::scratch, n)});
        return data.size() - 1;
    }
    template <class T>
    size_t add(const std::vector<T>& values) {
        return add(values.data(), values.size() * sizeof(T));
    }
    /// n floats of a value that no kernel computes.
    size_t room(size_t n) { return add(std::vector<float>(n, -777.0f)); }
    void fill() {
        auto m = vk::Memory::take(v.gpu, plan);
        REQUIRE_MESSAGE(m.ok(), m.status().message());
        memory = std::move(m.value());
        auto t = vk::Transfer::create(v.gpu);
        REQUIRE_MESSAGE(t.ok(), t.status().message());
        for (auto& d : data) REQUIRE(t.value().write(memory[d.second], d.first.data(), d.first.size()).ok());
        REQUIRE(t.value().finish().ok());
    }
    vk::Region at(size_t i) const { return memory[data[i].second]; }
    std::vector<float> read(size_t i) {
        std::vector<float> out(data[i].first.size() / 4);
        auto t = vk::Transfer::create(v.gpu);
        REQUIRE(t.ok());
        REQUIRE(t.value().read(at(i), out.data(), out.size() * 4).ok());
        return out;
    }
    template <class Record>
    void run(Record record) {
        auto made = vk::Commands::create(v.gpu);
        REQUIRE_MESSAGE(made.ok(), made.status().message());
        vk::Commands& c = made.value();
        REQUIRE(c.begin().ok());
        record(c);
        const Status ended = c.end();
        REQUIRE_MESSAGE(ended.ok(), ended.message());
        const Status ran = c.run();
        REQUIRE_MESSAGE(ran.ok(), ran.message());
    }
};

/// Of all weights, in NVFP4.
constexpr float kScale = -0.0137f;

std::vector<std::byte> tiles_of(const vk::Tiling& t, Type type, const void* a, const void* b = nullptr) {
    std::vector<std::byte> out(t.bytes());
    const Span<const float> scale = type == Type::nvfp4 ? Span<const float>(&kScale, 1) : Span<const float>();
    vk::repack(t, type, {a, scale}, {b, scale}, 0, t.n_row, out.data());
    return out;
}

void decode(Type type, const uint8_t* from, std::vector<float>* row) {
    decode_row(type, from, row->data(), row->size());
    if (type == Type::nvfp4)
        for (float& v : *row) v *= kScale;
}

struct Product {
    std::vector<float> y, out;
    bool own_sums = false;  ///< the kernel's sums are private
};

/// What one kernel is asked to do.
struct Job {
    Type type = Type::f32;
    uint64_t d_out = 0, d_in = 0;
    bool interleaved = false, norm = false, matrix = false;
    vk::Epilogue epilogue = vk::Epilogue::store;
    const std::vector<uint8_t>*a = nullptr, *b = nullptr;
    const std::vector<float>*x = nullptr, *weight = nullptr, *squares = nullptr, *residual = nullptr;
    uint32_t slice_rows = 0;  ///< tile rows of a slice; 0: all
};

Product product_on(Vulkan& v, vk::DeviceTraits traits, const Job& j, uint32_t n_row) {
    if (traits.n_core > 0) traits.n_core = 2;  // so that workgroups get several tile rows, and teams
    const vk::Tiling t = vk::tiling(j.type, j.d_out, j.d_in, j.interleaved);
    Bench b(v);
    const std::vector<std::byte> tiles = tiles_of(t, j.type, j.a->data(), j.b ? j.b->data() : nullptr);
    const uint32_t slice = j.slice_rows ? j.slice_rows : t.n_row;
    std::vector<size_t> w;
    for (uint32_t i = 0; i < t.n_row; i += slice)
        w.push_back(b.add(tiles.data() + i * t.row_bytes(), std::min(slice, t.n_row - i) * t.row_bytes()));
    const std::vector<float> none(4, 0.0f);
    const size_t x = b.add(*j.x), weight = b.add(j.weight ? *j.weight : none),
                 squares = b.add(j.squares ? *j.squares : none);
    const size_t residual = b.add(j.residual ? *j.residual : none), y = b.room(n_row * j.d_out);
    const vk::MatvecChoice first = vk::choose_matvec(
        traits, j.matrix, t, std::min(n_row, vk::matvec_max_rows(traits, j.matrix, t)), j.norm, j.epilogue);
    uint32_t n_group = 0;
    for (uint32_t i = 0; i < t.n_row; i += slice) n_group += first.groups(std::min(slice, t.n_row - i));
    const uint32_t out_stride = j.epilogue == vk::Epilogue::logits ? n_group : t.n_row;
    const size_t out = b.room(n_row * out_stride * 2);
    b.fill();
    const uint32_t max_rows = vk::matvec_max_rows(traits, j.matrix, t);
    bool own_sums = false;
    b.run([&](vk::Commands& c) {
        for (uint32_t row = 0; row < n_row; row += max_rows) {
            const uint32_t rows = std::min(max_rows, n_row - row);
            // Wide matrices as in a model that shares a pipeline among its products, others as in one that does not.
            const vk::MatvecChoice choice =
                vk::choose_matvec(traits, j.matrix, t, rows, j.norm, j.epilogue, 0, {static_cast<uint32_t>(j.d_in), 0});
            own_sums |= choice.matrix && choice.key.constant(vk::spec::matvec_mma::kPrivateRows) > 0;
            const VkPipeline p = v.make(choice.key);
            uint32_t groups = 0;
            for (size_t s = 0; s < w.size(); s++) {
                args::MatvecArgs a{};
                const uint32_t begin = static_cast<uint32_t>(s) * slice;
                a.n_tile = std::min(slice, t.n_row - begin);
                a.tiles = choice.tiles;
                a.mode = static_cast<uint32_t>(j.epilogue) + (j.norm ? 4u : 0u);
                a.n_col = t.n_col;
                a.d_in = static_cast<uint32_t>(j.d_in);
                a.d_out = static_cast<uint32_t>(j.d_out);
                a.first_row = begin * vk::kTileRows;
                a.first_group = groups;
                a.x_stride = a.d_in;
                a.x_offset = row * a.x_stride;
                a.y_stride = a.residual_stride = a.d_out;
                a.y_offset = a.residual_offset = row * a.y_stride;
                a.n_part = a.part_stride = j.squares ? static_cast<uint32_t>(j.squares->size()) / n_row : 0;
                a.out_stride = out_stride;
                a.out_offset = row * out_stride * (j.epilogue == vk::Epilogue::logits ? 2 : 1);
                a.inv_d = 1.0f / static_cast<float>(j.d_in);
                a.eps = 1e-6f;
                c.bind(p, {b.at(w[s]), b.at(x), b.at(weight), b.at(squares), b.at(y), b.at(residual), b.at(out)});
                c.push(a);
                if (row + s > 0) c.barrier();  // what writes to other rows binds the same regions
                c.dispatch(choice.groups(a.n_tile));
                groups += choice.groups(a.n_tile);
            }
        }
    });
    return {b.read(y), b.read(out), own_sums};
}

/// On a software device, runs the form for GPUs as well: both give the same bits.
Product product(Vulkan& v, const Job& j, uint32_t n_row) {
    vk::DeviceTraits traits = v.gpu->traits;
    const Product p = product_on(v, traits, j, n_row);
    if (traits.is_cpu()) {
        traits.type = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
        const Product gpu = product_on(v, traits, j, n_row);
        CHECK(test::same_bits(p.y, gpu.y));
        CHECK(test::same_bits(p.out, gpu.out));
    }
    return p;
}

/// `bound`: sum of (|w| + mean |w|) |x|. The mean is there for what cancels: a zero point or a min meets
/// the same x as a weight that happens to be near zero.
struct Exact {
    std::vector<double> y, bound;
};
Exact exact(Type type, const std::vector<uint8_t>& a, uint64_t d_out, uint64_t d_in, const std::vector<float>& x,
            uint32_t n_row, const std::vector<float>* weight = nullptr) {
    Exact e;
    std::vector<float> row(d_in);
    e.y.resize(n_row * d_out);
    e.bound.resize(n_row * d_out);
    for (uint64_t r = 0; r < d_out; r++) {
        decode(type, a.data() + r * row_bytes(type, d_in), &row);
        double mean = 0;
        for (uint64_t k = 0; k < d_in; k++) mean += std::fabs(row[k]) / static_cast<double>(d_in);
        for (uint32_t t = 0; t < n_row; t++)
            for (uint64_t k = 0; k < d_in; k++) {
                const double v = double{x[t * d_in + k]} * (weight ? (*weight)[k] : 1.0);
                e.y[t * d_out + r] += row[k] * v;
                e.bound[t * d_out + r] += (std::fabs(row[k]) + mean) * std::fabs(v);
            }
    }
    return e;
}

/// Relative to Exact::bound: x rounded to the nearest halves (2^-12 = 2.44e-4), and the matrix units'
/// truncated sums; or float sums.
double tolerance(bool matrix) { return matrix ? 2.44e-4 + 4e-5 : 1e-6; }

std::vector<uint32_t> row_counts(const Vulkan& v) {
    if (v.gpu->traits.is_cpu()) return {1, 2, 4};  // compiling wider ones takes a software device long
    return {1, 2, 3, 4, 5, 8, 9};
}

}  // namespace test_matvec

using namespace test_matvec;

TEST_CASE("a tiled matrix has the size that the table states") {
    CHECK(vk::tiling(Type::q4_k, 1024, 2048).bytes() == 1024 * row_bytes(Type::q4_k, 2048));
    CHECK(vk::tiling(Type::q5_k, 1024, 2048).bytes() == 1024 * row_bytes(Type::q5_k, 2048));
    CHECK(vk::tiling(Type::q6_k, 1024, 2048).bytes() == 1024 * row_bytes(Type::q6_k, 2048));
    CHECK(vk::tiling(Type::q8_0, 1024, 2048).bytes() == 1024 * row_bytes(Type::q8_0, 2048));
    CHECK(vk::tiling(Type::f16, 1024, 2048).bytes() == 1024 * row_bytes(Type::f16, 2048));
    const vk::Tiling odd = vk::tiling(Type::q8_0, 17, 288);
    CHECK(odd.n_row == 2);
    CHECK(odd.n_col == 2);
    CHECK(odd.bytes() == 4u * 4352);
    CHECK(odd.rows_within(2 * 4352) == 1);
    CHECK(odd.rows_within(100) == 0);
    CHECK(vk::tiling(Type::q4_k, 24, 256, true).n_row == 3);
}

TEST_CASE("every type keeps its values through repacking and unpacking on the device") {
    auto v = Vulkan::open();
    if (!v) return;
    for (const Type type : kAllTypes) {
        const std::string name = type_info(type).name;
        CAPTURE(name);
        const uint64_t d_out = 21, d_in = odd_width(type);
        std::vector<uint8_t> file = random_matrix(type, d_out, d_in, 7 + static_cast<uint64_t>(type));
        const vk::Tiling t = vk::tiling(type, d_out, d_in);
        const std::vector<uint32_t> ids = {0, 20, 7, 8, 16, 5, 3, 12, 40};  // the last one is no row
        const uint64_t n_scale = d_in / 16;
        for (size_t i = 0; type == Type::nvfp4 && i < 256; ++i)  // every byte of a scale, in the rows of `ids`
            file[ids[i / n_scale] * row_bytes(type, d_in) + i % n_scale / 4 * 36 + i % 4] = static_cast<uint8_t>(i);
        const uint32_t n = static_cast<uint32_t>(ids.size()), n_part = static_cast<uint32_t>((d_in + 15) / 16);
        {
            Bench b(*v);
            const std::vector<std::byte> tiles = tiles_of(t, type, file.data());
            const size_t w0 = b.add(tiles.data(), t.row_bytes()),
                         w1 = b.add(tiles.data() + t.row_bytes(), t.row_bytes());
            const size_t id = b.add(ids), y = b.room(n * d_in), out = b.room(n * n_part);
            b.fill();
            const VkPipeline p = v->make(vk::choose_embed(t.layout));
            b.run([&](vk::Commands& c) {
                for (uint32_t s = 0; s < 2; s++) {  // as two slices
                    args::EmbedArgs a{};
                    a.n_col = t.n_col;
                    a.d_in = static_cast<uint32_t>(d_in);
                    a.d_out = static_cast<uint32_t>(d_out);
                    a.first_row = 16 * s;
                    a.n_row = 16;
                    a.y_stride = a.d_in;
                    a.out_stride = n_part;
                    c.bind(p, {b.at(s ? w1 : w0), b.at(id), b.at(y), b.at(out)});
                    c.push(a);
                    c.dispatch(t.n_col, n);
                    c.barrier();
                }
            });
            const std::vector<float> got = b.read(y), squares = b.read(out);
            std::vector<float> want(d_in, 0.0f);
            for (uint32_t i = 0; i < n; i++) {
                std::fill(want.begin(), want.end(), 0.0f);
                if (ids[i] < d_out) decode(type, file.data() + ids[i] * row_bytes(type, d_in), &want);
                uint32_t wrong = 0;
                for (uint64_t k = 0; k < d_in; k++) wrong += got[i * d_in + k] != want[k];
                CHECK(wrong == 0);
                for (uint32_t q = 0; q < n_part; q++) {
                    double sum = 0;
                    for (uint64_t k = q * 16; k < std::min<uint64_t>(d_in, q * 16 + 16); k++)
                        sum += double{want[k]} * want[k];
                    CHECK(squares[i * n_part + q] == doctest::Approx(sum).epsilon(1e-6));
                }
            }
        }
    }
    v->finish();
}

TEST_CASE("a product is within its error bound, and a row's bits do not depend on the row count") {
    auto v = Vulkan::open();
    if (!v) return;
    const bool fits = matrix_fits(*v);
    const std::string answer = fits ? "yes" : "no";
    MESSAGE("matrix units: " << answer);
    for (const bool matrix : {false, true}) {
        if (matrix && !fits) continue;
        std::vector<std::pair<Type, uint64_t>> cases;
        for (const Type type : {Type::q4_k, Type::q5_k, Type::q6_k, Type::q8_0, Type::q4_0, Type::q5_0, Type::iq4_xs,
                                Type::nvfp4, Type::f16, Type::bf16, Type::f32})
            cases.push_back({type, odd_width(type)});
        cases.push_back({Type::q4_k, 1280});              // five column tiles
        if (matrix) cases.push_back({Type::q4_k, 2560});  // five parts of two, three teams at one row
        if (matrix) cases.push_back({Type::q4_k, 3072});  // eight parts of 12 tiles
        for (const auto& [type, d_in] : cases) {
            const std::string name = type_info(type).name;
            CAPTURE(name);
            CAPTURE(matrix);
            const uint64_t d_out = 37;
            const std::vector<uint8_t> file = random_matrix(type, d_out, d_in, 100 + static_cast<uint64_t>(type));
            test::Random random(5);
            std::vector<float> x = random.normals(9 * d_in);
            for (size_t i = 0; i < x.size(); i += 97) x[i] *= 3000.0f;  // outliers, as activations have them
            for (size_t i = d_in; i < 2 * d_in; i++) x[i] *= 1e6f;      // and rows beyond a half's range
            const Exact want = exact(type, file, d_out, d_in, x, 9);
            std::vector<float> alone;
            std::vector<uint32_t> counts = row_counts(*v);
            // On a software device no other test runs a kernel of nine rows, which GPUs without matrix units do.
            if (type == Type::q4_k && d_in == odd_width(type) && counts.back() != 9) counts.push_back(9);
            for (const uint32_t n : counts) {
                CAPTURE(n);
                Job j;
                j.type = type, j.d_out = d_out, j.d_in = d_in, j.matrix = matrix, j.a = &file, j.x = &x;
                const std::vector<float> y = product(*v, j, n).y;
                double worst = 0;
                for (size_t i = 0; i < n * d_out; i++)
                    worst = test::larger_error(worst, std::fabs(y[i] - want.y[i]) / (want.bound[i] + 1e-30));
                CHECK(worst < tolerance(matrix));
                if (n == 1) alone = y;
                CHECK(std::memcmp(alone.data(), y.data(), d_out * 4) == 0);
            }
        }
    }
    v->finish();
}

TEST_CASE("residual, sum of squares and norm: two chained products equal the formula") {
    auto v = Vulkan::open();
    if (!v) return;
    const bool fits = matrix_fits(*v);
    for (const bool matrix : {false, true}) {
        if (matrix && !fits) continue;
        CAPTURE(matrix);
        const uint32_t d = 272, ff = 512, n = 2;
        const std::vector<uint8_t> down = random_matrix(Type::q4_k, d, ff, 1),
                                   next = random_matrix(Type::f16, 40, d, 2);
        test::Random random(9);
        const std::vector<float> h = random.normals(n * ff), x0 = random.normals(n * d), weight = random.normals(d);
        Job j;
        j.type = Type::q4_k, j.d_out = d, j.d_in = ff, j.matrix = matrix, j.epilogue = vk::Epilogue::add;
        j.a = &down, j.x = &h, j.residual = &x0;
        const Product sum = product(*v, j, n);
        const Exact want = exact(Type::q4_k, down, d, ff, h, n);
        std::vector<float> squares;
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t i = 0; i < d / 16; i++) {
                double q = 0;
                for (uint32_t k = 0; k < 16; k++) q += std::pow(double{sum.y[t * d + 16 * i + k]}, 2);
                squares.push_back(sum.out[t * (d / 16) + i]);
                CHECK(squares.back() == doctest::Approx(q).epsilon(1e-6));
            }
        for (size_t i = 0; i < n * d; i++)
            CHECK(std::fabs(sum.y[i] - (want.y[i] + x0[i])) <= tolerance(matrix) * want.bound[i] + 1e-6);
        Job k;
        k.type = Type::f16, k.d_out = 40, k.d_in = d, k.matrix = matrix, k.norm = true;
        k.a = &next, k.x = &sum.y, k.weight = &weight, k.squares = &squares;
        const Product out = product(*v, k, n);
        const Exact plain = exact(Type::f16, next, 40, d, sum.y, n, &weight);
        for (uint32_t t = 0; t < n; t++) {
            double q = 0;
            for (uint32_t i = 0; i < d; i++) q += std::pow(double{sum.y[t * d + i]}, 2);
            const double scale = 1 / std::sqrt(q / d + 1e-6);
            for (uint32_t i = 0; i < 40; i++)
                CHECK(std::fabs(out.y[t * 40 + i] - plain.y[t * 40 + i] * scale) <=
                      (tolerance(matrix) + 1e-5) * plain.bound[t * 40 + i] * scale);
        }
    }
    v->finish();
}

TEST_CASE("gate and up interleaved into one matrix give silu(gate) times up") {
    auto v = Vulkan::open();
    if (!v) return;
    const bool fits = matrix_fits(*v);
    for (const bool matrix : {false, true}) {
        if (matrix && !fits) continue;
        const uint32_t d = 512, ff = 45, n = 2;
        const std::vector<uint8_t> gate = random_matrix(Type::q6_k, ff, d, 3), up = random_matrix(Type::q6_k, ff, d, 4);
        test::Random random(11);
        const std::vector<float> x = random.normals(n * d, 0.01f);
        Job j;
        j.type = Type::q6_k, j.d_out = ff, j.d_in = d, j.interleaved = true, j.matrix = matrix,
        j.epilogue = vk::Epilogue::swiglu;
        j.a = &gate, j.b = &up, j.x = &x;
        const Product got = product(*v, j, n);
        const Exact g = exact(Type::q6_k, gate, ff, d, x, n), u = exact(Type::q6_k, up, ff, d, x, n);
        const double tol = tolerance(matrix);
        for (size_t i = 0; i < n * ff; i++) {
            const double want = g.y[i] / (1 + std::exp(-g.y[i])) * u.y[i];
            CHECK(std::fabs(got.y[i] - want) <=
                  1.2 * tol * (g.bound[i] * std::fabs(u.y[i]) + std::fabs(g.y[i]) * u.bound[i]) +
                      1e-5 * std::fabs(want) + tol * tol);
        }
    }
    v->finish();
}

TEST_CASE("logits return the largest value of each workgroup, ties to the lower id, never a NaN, in slices too") {
    auto v = Vulkan::open();
    if (!v) return;
    const bool fits = matrix_fits(*v);
    for (const bool matrix : {false, true}) {
        if (matrix && !fits) continue;
        const uint32_t d = 256, vocab = 16 * 21 + 5, n = 2;
        std::vector<uint8_t> head = random_matrix(Type::q8_0, vocab, d, 6);
        const uint64_t pitch = row_bytes(Type::q8_0, d);
        test::Random random(13);
        const std::vector<float> x = random.normals(n * d);
        Job j;
        j.type = Type::q8_0, j.d_out = vocab, j.d_in = d, j.matrix = matrix, j.epilogue = vk::Epilogue::logits;
        j.a = &head, j.x = &x;
        // Make a tie: copy the winner of row 0 to a later id.
        const Exact e = exact(Type::q8_0, head, vocab, d, x, n);
        uint32_t winner = 0;
        for (uint32_t i = 1; i < vocab; i++)
            if (e.y[i] > e.y[winner]) winner = i;
        std::memcpy(&head[(vocab - 1) * pitch], &head[winner * pitch], pitch);
        REQUIRE(winner % vk::kTileRows != 0);
        for (const uint32_t i : {0u, winner / vk::kTileRows * vk::kTileRows}) {  // the first ids of two tiles
            const uint16_t nan = 0x7e00;
            std::memcpy(&head[i * pitch], &nan, sizeof nan);
        }
        std::vector<float> whole;
        for (const uint32_t slice : {0u, 8u}) {
            j.slice_rows = slice;
            const Product got = product(*v, j, n);
            CHECK(std::isnan(got.y[0]));
            if (slice == 0) whole = got.y;
            CHECK(std::memcmp(whole.data(), got.y.data(), whole.size() * 4) == 0);
            const uint32_t n_group = static_cast<uint32_t>(got.out.size()) / (2 * n);
            for (uint32_t t = 0; t < n; t++) {
                uint32_t want = 1, best = 0;
                for (uint32_t i = 2; i < vocab; i++)
                    if (got.y[t * vocab + i] > got.y[t * vocab + want]) want = i;
                float top = -INFINITY;
                for (uint32_t g = 0; g < n_group; g++) {
                    const float value = got.out[(t * n_group + g) * 2];
                    uint32_t id;
                    std::memcpy(&id, &got.out[(t * n_group + g) * 2 + 1], 4);
                    CHECK(value == got.y[t * vocab + id]);
                    if (value > top) {
                        top = value;
                        best = id;
                    }
                }
                CHECK(best == want);
                if (t == 0) CHECK(best == winner);
            }
        }
    }
    v->finish();
}

TEST_CASE("without matrix units columns are cut into four or five parts, fewer on a device with little room") {
    vk::DeviceTraits traits;
    const auto parts = [&](uint32_t n_col) {
        const vk::Tiling t = vk::tiling(Type::q4_k, 512, 256 * n_col);
        return vk::choose_matvec(traits, false, t, 1, false, vk::Epilogue::store)
            .key.constant(vk::spec::matvec::kSplit);
    };
    traits.max_group_invocations = 1024;
    traits.max_shared_bytes = 32768;
    CHECK(parts(1) == 1);
    CHECK(parts(4) == 4);
    CHECK(parts(5) == 5);
    CHECK(parts(8) == 4);
    CHECK(parts(10) == 5);
    CHECK(parts(14) == 5);
    CHECK(parts(16) == 4);
    CHECK(parts(36) == 4);
    traits.max_shared_bytes = 24576;
    CHECK(parts(10) == 4);
    traits.max_shared_bytes = 16384;
    CHECK(parts(10) == 2);
    traits.max_shared_bytes = 32768;
    traits.max_group_invocations = 256;
    CHECK(parts(10) == 4);
    traits.max_group_invocations = 128;
    CHECK(parts(10) == 2);
    CHECK(parts(1) == 1);
}

TEST_CASE("products of many rows, whose sums do not fit beside x, give the bits of fewer rows") {
    auto v = Vulkan::open();
    if (!v) return;
    if (!matrix_fits(*v)) {
        test::skip("needs a device with matrix units of 16x8x16 halves");
        v->finish();
        return;
    }
    // Parts of the columns: eight of 12 tiles, five of two, three of one; 46 tile rows.
    const std::pair<Type, uint64_t> shapes[] = {{Type::q4_k, 3072}, {Type::q6_k, 2560}, {Type::q8_0, 700}};
    for (const auto& shape : shapes)
        for (const vk::Epilogue epilogue : {vk::Epilogue::store, vk::Epilogue::add, vk::Epilogue::logits}) {
            const Type type = shape.first;
            const uint64_t d_in = shape.second;
            CAPTURE(d_in);
            CAPTURE(static_cast<int>(epilogue));
            const uint64_t d_out = 725;
            const std::vector<uint8_t> file = random_matrix(type, d_out, d_in, 31);
            test::Random random(6);
            const std::vector<float> x = random.normals(8 * d_in), residual = random.normals(8 * d_out);
            Job j;
            j.type = type, j.d_out = d_out, j.d_in = d_in, j.matrix = true, j.a = &file, j.x = &x;
            j.epilogue = epilogue, j.residual = &residual;
            const Product four = product(*v, j, 4);
            for (const uint32_t n : {5u, 6u, 7u, 8u}) {
                CAPTURE(n);
                const Product p = product(*v, j, n);
                if (n == 8 && v->gpu->traits.max_shared_bytes <= 49152) CHECK(p.own_sums);
                CHECK(std::memcmp(four.y.data(), p.y.data(), 4 * d_out * 4) == 0);
                if (epilogue == vk::Epilogue::add)
                    CHECK(std::memcmp(four.out.data(), p.out.data(), 4 * ((d_out + 15) / 16) * 4) == 0);
            }
        }
    v->finish();
}

TEST_CASE("sums lie outside shared memory only where that saves a wave of workgroups") {
    vk::DeviceTraits traits;
    traits.max_shared_bytes = 49152;
    traits.max_group_invocations = 1024;
    traits.n_core = 132;
    const auto choose = [&](uint32_t d_out, uint32_t d_in, uint32_t n_row, vk::Epilogue epilogue) {
        return vk::choose_matvec(traits, true, vk::tiling(Type::q4_k, d_out, d_in), n_row, false, epilogue);
    };
    const auto private_rows = [](const vk::MatvecChoice& c) {
        return c.key.constant(vk::spec::matvec_mma::kPrivateRows);
    };
    // Gate and up of 9B: 1536 tile rows on 132 cores.
    for (const uint32_t n : {1u, 2u, 3u, 4u}) CHECK(private_rows(choose(24576, 4096, n, vk::Epilogue::swiglu)) == 0);
    const vk::MatvecChoice five = choose(24576, 4096, 5, vk::Epilogue::swiglu),
                           eight = choose(24576, 4096, 8, vk::Epilogue::swiglu);
    CHECK(private_rows(five) == 6);
    CHECK(five.tiles == 12);
    CHECK(private_rows(eight) == 6);
    CHECK(eight.tiles == 6);
    // An output projection: two tile rows a core.
    CHECK(private_rows(choose(4096, 4096, 8, vk::Epilogue::add)) == 0);
    // Gate and up of 0.8B.
    CHECK(private_rows(choose(7168, 1024, 8, vk::Epilogue::swiglu)) == 0);
}

TEST_CASE("the parameters that determine a row's bits do not depend on the row count") {
    vk::DeviceTraits traits;
    traits.max_shared_bytes = 49152;
    traits.max_group_invocations = 1024;
    traits.n_core = 132;
    for (const bool matrix : {false, true})
        for (const uint32_t d_in :
             {256u, 512u, 1024u, 2048u, 2560u, 3584u, 4096u, 5120u, 6144u, 9216u, 11008u, 12288u, 17408u})
            for (const uint32_t d_out : {16u, 64u, 1024u, 6144u, 24576u, 248320u}) {
                const vk::Tiling t = vk::tiling(Type::q4_k, d_out, d_in);
                const uint32_t max_rows = vk::matvec_max_rows(traits, matrix, t);
                CHECK(max_rows >= 4);
                const vk::MatvecChoice one = vk::choose_matvec(traits, matrix, t, 1, false, vk::Epilogue::store);
                for (uint32_t n = 1; n <= max_rows; n++) {
                    const vk::MatvecChoice c = vk::choose_matvec(traits, matrix, t, n, false, vk::Epilogue::store);
                    CHECK(c.key.shader == one.key.shader);
                    namespace s = vk::spec;
                    if (!matrix) CHECK(c.key.group == one.key.group);
                    CHECK(c.key.constant(s::matvec::kSplit) == one.key.constant(s::matvec::kSplit));
                    const uint32_t split = c.key.constant(s::matvec_mma::kSplit);
                    CHECK(split == one.key.constant(s::matvec_mma::kSplit));
                    if (!matrix) continue;
                    const uint32_t chunk = c.key.constant(s::matvec_mma::kChunk),
                                   teams = c.key.constant(s::matvec_mma::kTeams);
                    CHECK(c.key.group == 32 * split * teams);
                    CHECK(c.key.group <= 512);
                    if (n > 2)
                        CHECK(teams > 1);
                    else if (n == 1 && split == 5)
                        CHECK(teams == 3);
                    else
                        CHECK(teams == (split <= 4 || split == 7 || (split == 8 && n == 1) ? 2 : 1));
                    CHECK(c.tiles <= c.key.constant(s::matvec_mma::kTiles));
                    const auto private_rows = [](const vk::MatvecChoice& m) {
                        return m.key.constant(s::matvec_mma::kPrivateRows) > 0;
                    };
                    CHECK(vk::tune_impl::matrix_shared(n, split, c.key.constant(s::matvec_mma::kTiles), chunk, false,
                                                       private_rows(c)) <= 49152);
                    const vk::MatvecChoice head = vk::choose_matvec(traits, matrix, t, n, true, vk::Epilogue::logits);
                    CHECK(vk::tune_impl::matrix_shared(n, split, head.key.constant(s::matvec_mma::kTiles), 1, true,
                                                       private_rows(head)) <= 49152);
                }
            }
}
#endif  // AUSPEX_NO_VULKAN

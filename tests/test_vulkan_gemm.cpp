// Tests of the matrix-matrix kernels of prefill: tune_gemm.h, shaders/gemm*.
#include "../src/machine/vulkan/tune_gemm.h"
#include "encode.h"
#include "support.h"

#include <doctest/doctest.h>

#ifndef AUSPEX_NO_VULKAN
#include "../shaders/gemm_args.h"
#include "vulkan_rig.h"

#include <cmath>
#include <cstring>

using namespace auspex;
using namespace auspex::detail;
using test::Vulkan;

namespace test_gemm {

/// Where column k of a row lies among its halves; gemm_common.glsl.
uint32_t place(uint32_t k) { return (k & ~60u) | (k & 12u) << 2 | (k & 48u) >> 2; }

/// A matrix in a type of the file, and what its bytes stand for.
struct PackedWeights {
    Type type = Type::f32;
    uint32_t d_out = 0, d_in = 0;
    std::vector<uint8_t> file;
    std::vector<float> values;
    PackedWeights(Type t, uint32_t n_out, uint32_t n_in, uint64_t seed, float sigma = 0.02f)
        : type(t), d_out(n_out), d_in(n_in) {
        const std::vector<float> v = test::Random(seed).normals(size_t{n_out} * n_in, sigma);
        file.resize(n_out * row_bytes(t, n_in));
        values.resize(v.size());
        test::encode(t, v.data(), file.data(), v.size());
        decode_row(t, file.data(), values.data(), v.size());
    }
};

/// What is asked of the kernels: rows are packed, then multiplied.
struct Job {
    const PackedWeights *a = nullptr, *b = nullptr;  // b: the second of a interleaved pair
    const std::vector<float>*x = nullptr, *norm = nullptr;
    uint32_t n_row = 0;
    vk::GemmEpilogue epilogue = vk::GemmEpilogue::store;
    bool matrix = false, exact = false;
    uint32_t slice = 0;      // tile rows of a slice; 0: all
    uint32_t step_rows = 0;  // what the step buffer says; 0: not asked
};
struct Product {
    std::vector<float> y, part, scale;
    std::vector<uint16_t> halves, y_halves;
};
constexpr float kBefore = -777.0f;  // y and the residual before

Product product_on(Vulkan& v, const vk::DeviceTraits& traits, const Job& j) {
    const PackedWeights& w = *j.a;
    const vk::Tiling t = vk::tiling(w.type, w.d_out, w.d_in, j.b != nullptr);
    const uint32_t n_half = j.exact ? 2 : 1;
    const uint32_t slice = j.slice ? j.slice : t.n_row, n_part = w.d_in / 16, row_halves = t.n_col * 256 * n_half;
    const uint32_t next_halves = ceil_div(w.d_out, 256u) * 256 * n_half;
    const bool to_halves = j.epilogue == vk::GemmEpilogue::swiglu_halves;
    test::Rig rig(v);
    std::vector<uint32_t> tiles;
    for (uint32_t i = 0; i < t.n_row; i += slice)
        tiles.push_back(rig.add(std::min(slice, t.n_row - i) * t.row_bytes()));
    const uint32_t x = rig.add(j.x->size() * 4), norm = rig.add(w.d_in * 4),
                   halves = rig.add((j.n_row + 1) * size_t{row_halves} * 2);
    const uint32_t scale = rig.add(j.n_row * 4), part = rig.add(j.n_row * n_part * 4), step = rig.add(64);
    const size_t y_bytes = to_halves ? j.n_row * size_t{next_halves} * 2 : j.n_row * size_t{w.d_out} * 4;
    const uint32_t y = rig.add(y_bytes + 64);
    rig.take();
    for (uint32_t i = 0, s = 0; i < t.n_row; i += slice, s++)
        vk::repack(t, w.type, w.file.data(), j.b ? j.b->file.data() : nullptr, i, std::min(slice, t.n_row - i),
                   rig.at<std::byte>(tiles[s]));
    rig.put(x, *j.x);
    if (j.norm) rig.put(norm, *j.norm);
    for (size_t i = 0; i < y_bytes / 4 + 16; i++) rig.at<float>(y)[i] = kBefore;
    for (size_t i = 0; i < (j.n_row + 1) * size_t{row_halves}; i++) rig.at<uint16_t>(halves)[i] = 0x7e00;  // NaN
    *rig.at<uint32_t>(step) = j.step_rows;
    rig.begin();
    {
        args::GemmPackArgs a{};
        a.d_in = a.x_stride = w.d_in;
        a.n_col = t.n_col;
        a.y_stride = t.n_col * 32 * n_half;
        a.part_stride = n_part;
        a.inv_d = 1.0f / static_cast<float>(w.d_in);
        a.eps = 1e-6f;
        a.from_step = j.step_rows ? 1 : 0;
        rig.commands.bind(v.make(vk::choose_gemm_pack(v.gpu->traits, j.norm != nullptr, true, j.exact)),
                          {rig.memory[x], rig.memory[norm], rig.memory[halves], rig.memory[scale], rig.memory[part],
                           rig.memory[step]});
        rig.commands.push(a);
        rig.commands.dispatch(j.n_row);
        rig.commands.barrier();
    }
    const vk::GemmChoice c = vk::choose_gemm(traits, j.matrix, t, j.n_row, true, j.epilogue, j.exact);
    for (uint32_t i = 0, s = 0; i < t.n_row; i += slice, s++) {
        args::GemmArgs a{};
        a.n_row = j.n_row;
        a.n_tile = std::min(slice, t.n_row - i);
        a.n_col = t.n_col;
        a.n_half_tile = t.n_half_tile();
        a.d_out = w.d_out;
        a.first_row = i * vk::kTileRows;
        a.x_stride = t.n_col * 32 * n_half;
        a.y_stride = to_halves ? next_halves / 2 : w.d_out;
        a.residual_stride = w.d_out;
        a.factor = 1.0f;
        a.from_step = j.step_rows ? 1 : 0;
        a.mode = c.mode;
        rig.commands.bind(v.make(c.key), {rig.memory[tiles[s]], rig.memory[halves], rig.memory[scale], rig.memory[y],
                                          rig.memory[y], rig.memory[step]});
        rig.commands.push(a);
        rig.commands.dispatch(c.groups_x(j.n_row), c.groups_y(a.n_tile));
        rig.commands.barrier();  // y is bound as the residual, too: a slice would seem to read what another writes
    }
    rig.end();
    rig.go();
    Product p;
    p.y.assign(rig.at<float>(y), rig.at<float>(y) + y_bytes / 4 + 16);
    p.part.assign(rig.at<float>(part), rig.at<float>(part) + j.n_row * n_part);
    p.scale.assign(rig.at<float>(scale), rig.at<float>(scale) + j.n_row);
    p.halves.assign(rig.at<uint16_t>(halves), rig.at<uint16_t>(halves) + (j.n_row + 1) * size_t{row_halves});
    if (to_halves) p.y_halves.assign(rig.at<uint16_t>(y), rig.at<uint16_t>(y) + j.n_row * size_t{next_halves});
    return p;
}

/// On a software device, runs the form for GPUs as well: both give the same bits.
Product product(Vulkan& v, const Job& j) {
    vk::DeviceTraits traits = v.gpu->traits;
    Product p = product_on(v, traits, j);
    if (traits.is_cpu()) {
        traits.type = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
        const Product gpu = product_on(v, traits, j);
        CHECK(test::same_bits(p.y, gpu.y));
        CHECK(p.y_halves == gpu.y_halves);
    }
    return p;
}

/// Activations as they are: outliers, rows of very different size.
std::vector<float> activations(uint32_t n_row, uint32_t d_in, uint64_t seed) {
    std::vector<float> x = test::Random(seed).normals(size_t{n_row} * d_in);
    for (size_t i = 0; i < x.size(); i += 97) x[i] *= 30.0f;
    const float sizes[] = {1.0f, 1e-3f, 1e6f, 100.0f, 1e-12f};
    for (size_t i = 0; i < x.size(); i++) x[i] *= sizes[i / d_in % 5];
    return x;
}

std::vector<bool> kernels(Vulkan& v) {
    std::vector<bool> out = {false};
    if (vk::gemm_matrix_fits(v.gpu->traits)) out.push_back(true);
    const std::string answer = out.size() > 1 ? "yes" : "no";
    MESSAGE("matrix units: " << answer);
    return out;
}

/// Whether exact products run with every layout of weights and every tile size. A software device takes half a second
/// to compile a kernel, so a short run takes two layouts and one size.
bool all_exact(const Vulkan& v) { return test::deep() || !v.gpu->traits.is_cpu(); }

/// Rows to multiply: beyond one tile and not a multiple of it, few enough for a software device.
uint32_t rows_of(const Vulkan& v) { return v.gpu->traits.is_cpu() ? 19 : 150; }

/// The limits of gemm_mma.comp.
void check_tile(const vk::GemmChoice& c, bool exact, uint32_t shared) {
    namespace s = vk::spec::gemm_mma;
    const uint32_t bm = c.key.constant(s::kGroupM), bn = c.key.constant(s::kGroupN), wm = c.key.constant(s::kSubgroupM),
                   wn = c.key.constant(s::kSubgroupN), stages = c.key.constant(s::kStages);
    CHECK(c.bm == bm);
    CHECK(c.bn == bn);
    CHECK(c.key.group == 32 * (bm / wm) * (bn / wn));
    CHECK(c.key.group <= 256);
    CHECK(bm * 8 % c.key.group == 0);  // units of x and shares of weights are dealt evenly
    CHECK(bn * 4 % c.key.group == 0);
    CHECK(wm % 16 == 0);
    CHECK(wn % 16 == 0);
    CHECK(c.key.constant(s::kExact) == (exact ? 1 : 0));
    CHECK((exact ? 2 : 1) * stages * 144 * (bm + bn) + 80 * 16 * (c.key.group / 32) <= shared);
}

}  // namespace test_gemm

using namespace test_gemm;

TEST_CASE("every tile size of the prefill product is within the limits of its kernel") {
    vk::DeviceTraits traits;
    traits.subgroup_size_control = true;
    traits.max_shared_bytes = 49152;
    for (const uint32_t n_core : {0u, 16u, 40u, 132u})
        for (const uint32_t shared : {32768u, 49152u, 65536u})
            for (uint32_t n_row = 1; n_row < 3000; n_row += 1 + n_row / 3)
                for (const uint32_t d_out : {16u, 32u, 512u, 1024u, 2560u, 4096u, 24576u, 248320u}) {
                    const bool exact = n_row % 2 == 0;
                    traits.n_core = n_core;
                    traits.max_shared_bytes = shared;
                    const vk::Tiling t = vk::tiling(Type::q4_k, d_out, 1024);
                    const vk::GemmChoice c =
                        vk::choose_gemm(traits, true, t, n_row, true, vk::GemmEpilogue::store, exact);
                    check_tile(c, exact, shared);
                    CHECK(c.groups_x(n_row) * c.bm >= n_row);
                    CHECK(c.groups_y(t.n_row) * c.bn >= d_out);
                }
    for (const uint32_t shared : {32768u, 49152u})
        for (const bool exact : {false, true}) {
            traits.max_shared_bytes = shared;
            const vk::Tiling t = vk::tiling(Type::q4_k, 512, 1024);
            const vk::Blocks b = vk::choose_blocks(traits, true, t, 4096, 8, 256, exact);
            for (uint32_t i = 0; i < b.n; i++) {
                const vk::GemmChoice c =
                    vk::choose_gemm_experts(traits, true, t, 32768, 256, b.bm[i], true, vk::GemmEpilogue::store, exact);
                CHECK(c.bm == b.bm[i]);
                check_tile(c, exact, shared);
            }
        }
}

TEST_CASE("on AMD cards no subgroup has more results of a product than registers for them") {
    const vk::Tiling t = vk::tiling(Type::q4_k, 4096, 4096);
    for (const bool amd : {false, true}) {
        vk::DeviceTraits traits;
        traits.vendor_id = amd ? 0x1002 : 0x10DE;
        traits.max_shared_bytes = 65536;
        const auto results = [](const vk::GemmChoice& c) {
            return c.key.constant(vk::spec::gemm_mma::kSubgroupM) * c.key.constant(vk::spec::gemm_mma::kSubgroupN);
        };
        CHECK(results(vk::choose_gemm(traits, true, t, 2048, true, vk::GemmEpilogue::store)) == (amd ? 1024 : 4096));
        const vk::Blocks b = vk::choose_blocks(traits, true, t, 4096, 8, 256, false);
        CHECK(b.bm[0] == (amd ? 64 : 128));
        CHECK(results(vk::choose_gemm_experts(traits, true, t, 32768, 256, b.bm[0], true, vk::GemmEpilogue::store)) ==
              (amd ? 1024 : 4096));
    }
}

TEST_CASE("without matrix units few rows, and experts of few rows, take small workgroups") {
    const vk::DeviceTraits traits;
    const vk::Tiling t = vk::tiling(Type::q4_k, 512, 1024);
    const auto rows = [&](uint32_t n_row) {
        return vk::choose_gemm(traits, false, t, n_row, true, vk::GemmEpilogue::store).bm;
    };
    CHECK(rows(10) == 16);
    CHECK(rows(16) == 16);
    CHECK(rows(17) == 32);
    CHECK(rows(33) == 64);
    CHECK(rows(65) == 32);
    CHECK(rows(2048) == 64);
    const auto expert_rows = [&](uint32_t n_place, uint32_t bm) {
        const vk::GemmChoice c =
            vk::choose_gemm_experts(traits, false, t, n_place, 256, bm, true, vk::GemmEpilogue::store);
        CHECK(c.key.constant(vk::spec::gemm::kGroupM) == c.bm);
        return c.bm;
    };
    CHECK(expert_rows(4096, 0) == 16);
    CHECK(expert_rows(65536, 0) == 64);
    CHECK(expert_rows(4096, 64) == 64);  // as the product before it
}

TEST_CASE("packing rounds a row to half precision under a power of two that no value overflows") {
    auto v = Vulkan::open();
    if (!v) return;
    {
        const uint32_t d_in = 320, n_row = 8;
        std::vector<float> x = activations(n_row, d_in, 3), norm = test::Random(4).normals(d_in);
        for (uint32_t k = 0; k < d_in; k++) x[5 * d_in + k] = 0.0f;                   // a row of nothing
        for (uint32_t k = 0; k < d_in; k++) x[6 * d_in + k] = 3e38f;                  // the largest floats
        for (uint32_t k = 0; k < d_in; k++) x[7 * d_in + k] = k == 9 ? 8e4f : 1e-2f;  // small beside a large one
        const PackedWeights w(Type::f32, 16, d_in, 1);
        Job j;
        j.a = &w, j.x = &x, j.n_row = n_row;
        for (const bool with_norm : {false, true}) {
            CAPTURE(with_norm);
            j.norm = with_norm ? &norm : nullptr;
            const Product p = product(*v, j);
            for (uint32_t r = 0; r < n_row; r++) {
                if (with_norm && r == 6) continue;  // its squares are beyond float
                CAPTURE(r);
                double squares = 0;
                for (uint32_t k = 0; k < d_in; k++) squares += double{x[r * d_in + k]} * x[r * d_in + k];
                const double factor = with_norm ? 1.0 / std::sqrt(squares / d_in + 1e-6) : 1.0;
                int exponent = 0;
                CHECK(std::frexp(p.scale[r], &exponent) == 0.5f);  // a power of two
                double largest = 0, worst = 0;
                for (uint32_t k = 0; k < 512; k++) {
                    const float got = f16_to_f32(p.halves[r * 512 + place(k)]);
                    const double want = k < d_in ? x[r * d_in + k] * factor * (with_norm ? norm[k] : 1.0f) : 0.0;
                    const double error = std::fabs(double{got} * p.scale[r] - want);
                    largest = test::larger_error(largest, double{std::fabs(got)});
                    // Half a unit in the last place, or half of the smallest subnormal; and floats' rounding.
                    worst = test::larger_error(
                        worst, error - std::fabs(want) * (1.0 / 2048 + 1e-6) - std::ldexp(double{p.scale[r]}, -25));
                }
                CHECK(worst <= 0);
                CHECK(largest < 2049);
                if (r != 5 && r != 4) CHECK(largest >= 1023);
            }
            if (with_norm) continue;
            for (uint32_t r = 0; r < 4; r++)
                for (uint32_t b = 0; b < d_in / 16; b++) {
                    double sum = 0;
                    for (uint32_t k = 0; k < 16; k++) sum += std::pow(double{x[r * d_in + b * 16 + k]}, 2);
                    CHECK(p.part[r * d_in / 16 + b] == doctest::Approx(sum).epsilon(1e-6));
                }
            CHECK(p.halves[n_row * 512] == 0x7e00);  // and writes nothing beyond
        }
    }
    v->finish();
}

TEST_CASE("a product of many rows is within its error bound for every type and its slices") {
    auto v = Vulkan::open();
    if (!v) return;
    for (const bool matrix : kernels(*v)) {
        CAPTURE(matrix);
        for (const bool exact : {false, true})
            for (const Type type : kAllTypes) {
                if (exact && type != Type::q4_k && type != Type::f16 && !all_exact(*v)) continue;
                CAPTURE(exact);
                const std::string name = type_info(type).name;
                CAPTURE(name);
                const uint32_t block = type_info(type).n_block, d_in = block == 256 ? 512 : 320, d_out = 52,
                               n_row = rows_of(*v);
                const PackedWeights w(type, d_out, d_in, 10 + static_cast<uint64_t>(type));
                const std::vector<float> x = activations(n_row, d_in, 5);
                Job j;
                j.a = &w, j.x = &x, j.n_row = n_row, j.matrix = matrix, j.exact = exact;
                const Product all = product(*v, j);
                j.slice = 3;
                const Product sliced = product(*v, j);
                CHECK(std::memcmp(all.y.data(), sliced.y.data(), all.y.size() * 4) == 0);
                CHECK(all.y.back() == kBefore);  // nothing beyond the last row
                // x and, in matrix units, w are rounded to halves (2^-11 relative, at most); K types there also round
                // scale and min, which both may exceed the weight: an absolute part from the largest weight. Exact
                // products leave the rounding of float sums, which matrix units cut off instead of rounding.
                double worst = 0, error = 0, size = 0, largest_w = 0;
                for (const float f : w.values) largest_w = std::max(largest_w, double{std::fabs(f)});
                for (uint32_t r = 0; r < n_row; r++)
                    for (uint32_t o = 0; o < d_out; o++) {
                        double sum = 0, bound = 0, rough = 0;
                        for (uint32_t k = 0; k < d_in; k++) {
                            const double a = w.values[size_t{o} * d_in + k], b = x[size_t{r} * d_in + k];
                            sum += a * b;
                            bound += std::fabs(a * b);
                            rough += largest_w * std::fabs(b);
                        }
                        const double off = std::fabs(all.y[size_t{r} * d_out + o] - sum);
                        const double allowed = exact
                                                   ? 4e-6 * bound + 1e-7 * rough
                                                   : (matrix ? 9.8e-4 : 4.9e-4) * bound + (matrix ? 2e-4 : 0.0) * rough;
                        worst = test::larger_error(worst, off / (allowed + 1e-30));
                        if (r % 5 == 0) {
                            error += off * off;
                            size += sum * sum;
                        }
                    }
                CHECK(worst < 1.0);
                CHECK(std::sqrt(error / size) < (exact ? 2e-6 : matrix ? 8e-4 : 4e-4));
            }
    }
    v->finish();
}

TEST_CASE("weights of hundreds are in the range of the halves that matrix units multiply, for every type") {
    auto v = Vulkan::open();
    if (!v) return;
    for (const bool matrix : kernels(*v))
        for (const bool exact : {false, true})
            for (const Type type : kAllTypes) {
                if (!all_exact(*v) && (exact || type != Type::mxfp4)) continue;
                CAPTURE(matrix);
                CAPTURE(exact);
                const std::string name = type_info(type).name;
                CAPTURE(name);
                const uint32_t d_in = 512, d_out = 32, n_row = 10;
                const PackedWeights w(type, d_out, d_in, 40 + static_cast<uint64_t>(type), 200.0f);
                const std::vector<float> x = test::Random(6).normals(size_t{n_row} * d_in);
                Job j;
                j.a = &w, j.x = &x, j.n_row = n_row, j.matrix = matrix, j.exact = exact;
                const Product p = product(*v, j);
                double error = 0, size = 0;
                for (uint32_t r = 0; r < n_row; r++)
                    for (uint32_t o = 0; o < d_out; o++) {
                        double sum = 0;
                        for (uint32_t k = 0; k < d_in; k++)
                            sum += double{w.values[size_t{o} * d_in + k]} * x[size_t{r} * d_in + k];
                        error += std::pow(p.y[size_t{r} * d_out + o] - sum, 2);
                        size += sum * sum;
                    }
                CHECK(std::sqrt(error / size) < (exact ? 2e-6 : matrix ? 8e-4 : 4e-4));
            }
    v->finish();
}

TEST_CASE("row invariance: a row of a product of many rows has the same bits beside any others") {
    auto v = Vulkan::open();
    if (!v) return;
    for (const bool matrix : kernels(*v)) {
        CAPTURE(matrix);
        const uint32_t d_out = 80, d_in = 512, n_max = v->gpu->traits.is_cpu() ? 70 : 600;
        const PackedWeights w(Type::q4_k, d_out, d_in, 2);
        const std::vector<float> x = activations(n_max, d_in, 6);
        const std::vector<float> norm = test::Random(7).normals(d_in);
        Job j;
        j.a = &w, j.x = &x, j.norm = &norm, j.matrix = matrix, j.n_row = n_max;
        const Product all = product(*v, j);
        for (const uint32_t n : {1u, 10u, 33u, 65u, 130u, 257u}) {
            if (n > n_max) break;
            CAPTURE(n);
            const std::vector<float> some(x.data(), x.data() + size_t{n} * d_in);
            j.x = &some, j.n_row = n;
            const Product p = product(*v, j);
            CHECK(std::memcmp(p.y.data(), all.y.data(), size_t{n} * d_out * 4) == 0);
        }
        // A recording for all rows that runs with fewer leaves the others alone.
        j.x = &x, j.n_row = n_max, j.step_rows = 13;
        const Product p = product(*v, j);
        CHECK(std::memcmp(p.y.data(), all.y.data(), size_t{13} * d_out * 4) == 0);
        uint32_t touched = 0;
        for (size_t i = size_t{13} * d_out; i < p.y.size(); i++) touched += p.y[i] != kBefore;
        CHECK(touched == 0);
    }
    v->finish();
}

TEST_CASE("a product of many rows adds to the residual, or combines gate and up") {
    auto v = Vulkan::open();
    if (!v) return;
    for (const bool matrix : kernels(*v)) {
        CAPTURE(matrix);
        // Without matrix units a software device takes 16, 32 and 64 rows a workgroup.
        for (const bool exact : {false, true})
            for (const uint32_t n_row : {13u, rows_of(*v), 51u}) {
                if (exact && n_row != rows_of(*v) && !all_exact(*v)) continue;
                CAPTURE(exact);
                CAPTURE(n_row);
                const uint32_t d_ff = 52, d_in = 256, row_halves = exact ? 512 : 256;
                const PackedWeights gate(Type::q8_0, d_ff, d_in, 8), up(Type::q8_0, d_ff, d_in, 9);
                const std::vector<float> x = activations(n_row, d_in, 10);
                const std::vector<float> norm(d_in, 4.0f);
                Job j;
                j.a = &gate, j.x = &x, j.norm = &norm, j.n_row = n_row, j.matrix = matrix, j.exact = exact;
                const Product g = product(*v, j);
                j.epilogue = vk::GemmEpilogue::add;  // the residual is y itself
                const Product sum = product(*v, j);
                for (size_t i = 0; i < size_t{n_row} * d_ff; i++)
                    CHECK(sum.y[i] == doctest::Approx(kBefore + g.y[i]).epsilon(1e-6));
                j.epilogue = vk::GemmEpilogue::store;
                j.a = &up;
                const Product u = product(*v, j);
                j.a = &gate, j.b = &up, j.epilogue = vk::GemmEpilogue::swiglu;
                const Product both = product(*v, j);
                j.epilogue = vk::GemmEpilogue::swiglu_halves;
                const Product halves = product(*v, j);
                for (uint32_t r = 0; r < n_row; r++)
                    for (uint32_t o = 0; o < d_ff; o++) {
                        const size_t i = size_t{r} * d_ff + o;
                        const double want = g.y[i] / (1 + std::exp(-double{g.y[i]})) * u.y[i];
                        CHECK(std::fabs(both.y[i] - want) <= 2e-6 * std::fabs(want) + 1e-12 * std::fabs(u.y[i]));
                        const uint16_t* row = halves.y_halves.data() + r * row_halves + place(o);
                        const double half =
                            (double{f16_to_f32(row[0])} + (exact ? f16_to_f32(row[256]) : 0)) * vk::kHalvesFactor;
                        CHECK(std::fabs(half - both.y[i]) <= std::fabs(both.y[i]) / (exact ? 2097152 : 2048) + 5e-7);
                    }
            }
    }
    v->finish();
}
#endif  // AUSPEX_NO_VULKAN

// The kernels of DeltaNet against plain loops in double and against themselves: a row's bits must not depend on what
// shares its step.
#include "../src/auspex.hpp"
#ifndef AUSPEX_NO_VULKAN
#include "../src/base/number.h"
#include "vulkan_rig.h"

#include <algorithm>
#include <cmath>

using namespace auspex;
using namespace auspex::detail;
using namespace auspex::detail::args;

namespace {

using u32 = uint32_t;
using test::kStepBytes;
using test::Rig;
using test::same_bits;
using test::sigmoid;
using test::worst;

// ---------------------------------------------------------------------------------------- DeltaNet

constexpr u32 kRows = 40;  // of scratch

/// A DeltaNet layer with random weights and inputs for n tokens, run through kernels or in double.
struct Delta {
    u32 nk, nv, n;
    bool grouped;
    u32 conv_dim, d_out;
    std::vector<float> u, z, b, a, w, dt, decay, norm;
    Rig rig;
    u32 step, acts, conv, dt_id, a_id, norm_id, ring, state, term, out, mixed;
    DeltaArgs args{};
    u32 chained = 0;  ///< specialization constant CHAINED of delta_step
    /// Specialization constants of delta_scan, and ROWS of delta_mix.
    struct Scan {
        u32 loaders, rows, columns, mix_rows;
    } scan{0, 8, 1, 1};

    Delta(test::Vulkan& v, u32 n_head_k, u32 n_head_v, bool in_groups, u32 n_token)
        : nk(n_head_k),
          nv(n_head_v),
          n(n_token),
          grouped(in_groups),
          conv_dim(2 * nk * 128 + nv * 128),
          d_out(nv * 128),
          rig(v) {
        test::Random random(n_head_v);
        u = random.normals(size_t(n) * conv_dim);
        z = random.normals(size_t(n) * d_out);
        b = random.normals(size_t(n) * nv, 1.5f);
        a = random.normals(size_t(n) * nv);
        w = random.normals(size_t(conv_dim) * 4, 0.5f);
        dt = random.normals(nv);
        norm = random.normals(128);
        for (u32 h = 0; h < nv; h++) decay.push_back(-0.05f - std::fabs(random.normal()));
        args = {nk, nv, grouped ? 1u : 0u, 1e-6f, 0, conv_dim, 0, d_out, 0, nv, 0, nv, 0, d_out, {}};
        args.z_offset = kRows * conv_dim;
        args.b_offset = args.z_offset + kRows * d_out;
        args.a_offset = args.b_offset + kRows * nv;
        step = rig.add(kStepBytes);
        acts = rig.add(4 * size_t(args.a_offset + kRows * nv));
        conv = rig.add(w.size() * 4);
        dt_id = rig.add(nv * 4);
        a_id = rig.add(nv * 4);
        norm_id = rig.add(512);
        ring = rig.add(size_t(args::kConvRing) * conv_dim * 4);
        state = rig.add(size_t(nv) * 65536);
        term = rig.add(size_t(2 * kMaxRows) * nv * 257 * 4);
        out = rig.add(size_t(kRows) * d_out * 4);
        mixed = rig.add(size_t(kRows) * (conv_dim + 2 * nv) * 4);
        rig.take();
        rig.put(conv, w);
        rig.put(dt_id, dt);
        rig.put(a_id, decay);
        rig.put(norm_id, norm);
    }

    struct Pass {
        u32 n_row, n_commit;
        bool tentative;
    };

    /// Runs the passes from an empty state; rows that will not be committed get other inputs. Returns
    /// the committed rows' outputs.
    std::vector<float> run(const std::vector<Pass>& passes, u32 contexts = 256) {
        std::vector<float> got;
        for (u32 id : {ring, state}) std::memset(rig.memory[id].mapped, 0, rig.memory[id].bytes);
        std::memset(rig.memory[term].mapped, 0xff, rig.memory[term].bytes);
        StepState* s = rig.at<StepState>(step);
        *s = StepState{};
        u32 position = 0, commit = 0;
        int kind = -1;
        for (const Pass& p : passes) {
            if (kind != int(p.tentative)) record(p.tentative, contexts);
            kind = p.tentative;
            float* to = rig.at<float>(acts);
            for (u32 i = 0; i < p.n_row; i++) {
                const size_t t = std::min(position + i, n - 1);
                std::copy_n(&u[t * conv_dim], conv_dim, to + args.u_offset + i * conv_dim);
                std::copy_n(&z[t * d_out], d_out, to + args.z_offset + i * d_out);
                std::copy_n(&b[t * nv], nv, to + args.b_offset + i * nv);
                std::copy_n(&a[t * nv], nv, to + args.a_offset + i * nv);
                if (i >= p.n_commit) to[args.u_offset + i * conv_dim + 7] += 1.5f;
            }
            s->n_row = p.n_row;
            s->position = position;
            s->tentative = p.tentative;
            s->n_commit = commit;
            s->parity ^= 1;
            rig.go();
            got.insert(got.end(), rig.at<float>(out), rig.at<float>(out) + size_t(p.n_commit) * d_out);
            position += p.n_commit;
            commit = p.tentative ? p.n_commit : 0;
        }
        return got;
    }

    void record(bool tentative, u32 contexts) {
        rig.begin();
        if (tentative) {
            rig.run("delta_step", contexts,
                    {{vk::spec::delta_step::kMaxRow, 9}, {vk::spec::delta_step::kChained, chained}},
                    {step, acts, conv, dt_id, a_id, norm_id, ring, state, term, out}, args, nk, nv / nk);
        } else {
            DeltaArgs mix = args, scanned = args;
            mix.out_stride = scanned.z_stride = conv_dim + 2 * nv;
            scanned.z_offset = 0;
            rig.run("delta_mix", 32, {{vk::spec::delta_mix::kRows, scan.mix_rows}},
                    {step, acts, conv, dt_id, a_id, ring, mixed}, mix, ceil_div(kRows, scan.mix_rows), 2 * nk + nv);
            rig.run("delta_scan", 128 + scan.loaders,
                    {{vk::spec::delta_scan::kLoaders, scan.loaders},
                     {vk::spec::delta_scan::kRows, scan.rows},
                     {vk::spec::delta_scan::kColumns, scan.columns}},
                    {step, acts, mixed, ring, state, term, out}, scanned, nv * 8 / scan.columns);
            rig.run("delta_gate", 64, {}, {step, acts, norm_id, out}, args, kRows, (nv + 7) / 8);
        }
        rig.end();
    }

    /// The definition (docs/MODEL.md), row by row in double.
    std::vector<double> expected() const {
        std::vector<double> S(size_t(nv) * 16384), result, y(conv_dim);
        for (u32 t = 0; t < n; t++) {
            for (u32 c = 0; c < conv_dim; c++) {
                double sum = 0;
                for (u32 j = 0; j < 4; j++)
                    if (t + j >= 3) sum += double(w[c * 4 + j]) * u[size_t(t + j - 3) * conv_dim + c];
                y[c] = sum * sigmoid(sum);
            }
            for (u32 h = 0; h < nv; h++) {
                const double* q = &y[size_t(grouped ? h / (nv / nk) : h % nk) * 128];
                const double* k = q + size_t(nk) * 128;
                const double* v = &y[size_t(2 * nk + h) * 128];
                double q2 = 1e-6, k2 = 1e-6;
                for (u32 i = 0; i < 128; i++) {
                    q2 += q[i] * q[i];
                    k2 += k[i] * k[i];
                }
                const double q1 = 1 / std::sqrt(q2 * 128), k1 = 1 / std::sqrt(k2);
                const double x = double(a[t * nv + h]) + dt[h];
                const double e = std::exp(decay[h] * (std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)))));
                double o[128], o2 = 0;
                for (u32 j = 0; j < 128; j++) {
                    double* column = &S[(size_t(h) * 128 + j) * 128];
                    double dot = 0;
                    for (u32 i = 0; i < 128; i++) dot += (column[i] *= e) * k[i] * k1;
                    const double update = sigmoid(b[t * nv + h]) * (v[j] - dot);
                    o[j] = 0;
                    for (u32 i = 0; i < 128; i++) o[j] += (column[i] += k[i] * k1 * update) * q[i] * q1;
                    o2 += o[j] * o[j];
                }
                for (u32 j = 0; j < 128; j++) {
                    const double g = z[size_t(t) * d_out + h * 128 + j];
                    result.push_back(o[j] / std::sqrt(o2 / 128 + 1e-6) * norm[j] * g * sigmoid(g));
                }
            }
        }
        return result;
    }
};

}  // namespace

TEST_CASE("the largest error of a row is infinite once the row holds a NaN") {
    const std::vector<float> ones(4, 1.0f);
    CHECK(worst({1, 1.101f, 1, 1}, ones) == doctest::Approx(0.1));
    CHECK(worst({9, NAN, 1, 1}, ones) == INFINITY);
    CHECK(worst({1, 1, 1, NAN}, ones) == INFINITY);
    CHECK(worst({NAN, NAN, NAN, NAN}, ones) == INFINITY);
}

TEST_CASE("a DeltaNet row is within its bound and has the same bits alone or among nine after any commit") {
    auto vulkan = test::Vulkan::open();
    if (!vulkan || !test::can_shuffle(*vulkan)) return;
    struct Shape {
        u32 nk, nv;
        bool grouped;
    };
    for (const Shape& s : {Shape{2, 4, false}, Shape{1, 2, true}}) {
        Delta delta(*vulkan, s.nk, s.nv, s.grouped, 36);
        const std::vector<float> one = delta.run(std::vector<Delta::Pass>(36, {1, 1, true}));
        CHECK(worst(one, delta.expected()) < 5e-4);
        const std::vector<float> mixed = delta.run({{4, 4, true},
                                                    {9, 0, true},
                                                    {9, 9, true},
                                                    {1, 1, true},
                                                    {8, 3, true},
                                                    {8, 0, true},
                                                    {7, 7, true},
                                                    {5, 2, true},
                                                    {2, 1, true},
                                                    {9, 9, true}});
        CHECK(same_bits(one, mixed));
        for (const u32 contexts : {128u, 512u, 1024u}) {
            if (contexts > vulkan->gpu->traits.max_group_invocations) continue;
            CAPTURE(contexts);
            CHECK(same_bits(one, delta.run({{9, 9, true}, {9, 9, true}, {9, 9, true}, {9, 9, true}}, contexts)));
        }
    }
    vulkan->finish();
}

TEST_CASE("a chained DeltaNet kernel has the same bits, and its workgroups count themselves") {
    const auto vulkan = test::Vulkan::open();
    if (!vulkan || !test::can_shuffle(*vulkan)) return;
    {
        Delta delta(*vulkan, 2, 4, false, 9);
        const std::vector<float> plain = delta.run({{4, 4, true}, {1, 1, true}, {4, 4, true}});
        delta.chained = 1;
        delta.args.chain.done_word = kChainWord + 5;
        CHECK(same_bits(delta.run({{4, 4, true}, {1, 1, true}, {4, 4, true}}), plain));
        u32* words = delta.rig.at<u32>(delta.step);
        CHECK(words[kChainWord + 5] == 3 * 4);
        words[0] = 0;  // no rows
        delta.rig.go();
        CHECK(words[kChainWord + 5] == 4 * 4);
    }
    vulkan->finish();
}

TEST_CASE("chunk invariance: DeltaNet in pieces of any size, committed at once or row by row") {
    auto vulkan = test::Vulkan::open();
    if (!vulkan || !test::can_shuffle(*vulkan)) return;
    {
        Delta delta(*vulkan, 2, 4, false, 45);
        const std::vector<double> expected = delta.expected();
        const std::vector<Delta::Pass> large = {{37, 37, false}, {4, 2, true}, {1, 1, true}, {5, 5, false}};
        const std::vector<Delta::Pass> small = {{1, 1, false},   {2, 2, false}, {15, 15, false},
                                                {16, 16, false}, {9, 3, true},  {8, 8, false}};
        std::vector<Delta::Scan> scans = {{0, 16, 1, 8}, {64, 8, 2, 8}};
        if (vulkan->gpu->traits.max_shared_bytes >= 37120)  // what the last one takes
            scans.insert(scans.end(), {{64, 8, 1, 1}, {64, 16, 1, 8}, {64, 16, 2, 8}});
        for (const auto& passes : {large, small}) {
            delta.scan = {0, 8, 1, 1};
            const std::vector<float> eight = delta.run(passes);
            CHECK(worst(eight, expected) < 5e-4);
            for (const Delta::Scan scan : scans) {
                delta.scan = scan;
                CHECK(same_bits(delta.run(passes), eight));
            }
        }
    }
    vulkan->finish();
}
#endif  // AUSPEX_NO_VULKAN

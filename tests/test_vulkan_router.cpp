// The kernels that score experts, against plain loops in double and against each other: a row's bits must not depend on
// whether it is one of a step's or of a prompt's.
#include "../src/auspex.hpp"
#ifndef AUSPEX_NO_VULKAN
#include "../shaders/moe_args.h"
#include "vulkan_rig.h"

#include <algorithm>
#include <cmath>

using namespace auspex;
using namespace auspex::detail;

namespace {

using u32 = uint32_t;
constexpr float kEps = 1e-6f;

/// Random weights and rows of a router, and its scores by kernels and in double.
struct Router {
    u32 d_in, n_out, n_row, stride;
    bool norm;
    std::vector<float> w, x, scale;
    test::Rig rig;
    u32 w_id, x_id, norm_id, logits, step;
    args::RouterArgs a{};

    Router(test::Vulkan& v, u32 width, u32 n_expert, u32 rows, bool with_norm)
        : d_in(width), n_out(n_expert), n_row(rows), stride(width + 4), norm(with_norm), rig(v) {
        test::Random random(width);
        w = random.normals(size_t{n_out} * d_in);
        x = random.normals(size_t{n_row} * stride, 3);
        scale = random.normals(d_in);
        w_id = rig.add(w.size() * 4);
        x_id = rig.add(x.size() * 4);
        norm_id = rig.add(scale.size() * 4);
        logits = rig.add(size_t{n_row} * n_out * 4);
        step = rig.add(test::kStepBytes);
        rig.take();
        rig.put(w_id, w);
        rig.put(x_id, x);
        rig.put(norm_id, scale);
        a.d_in = d_in;
        a.n_expert = a.n_out = n_out;
        a.x_stride = stride;
        a.inv_d = 1 / static_cast<float>(d_in);
        a.eps = kEps;
        a.n_row = n_row;
    }

    /// The scores by the kernel of steps.
    std::vector<float> of_step(u32 rows_of_group) {
        begin(0);
        rig.run("moe_router", 128,
                {{vk::spec::moe_router::kXRows, rows_of_group},
                 {vk::spec::moe_router::kNorm, norm},
                 {vk::spec::moe_router::kChained, 0}},
                ids(), a, ceil_div(n_out, 2u), ceil_div(n_row, rows_of_group));
        return end();
    }
    /// The scores by the kernel of prompts; of n_step rows alone if that is not 0. Those that it leaves out are 7.
    std::vector<float> of_prompt(u32 n_step = 0) {
        begin(n_step);
        rig.run("moe_router_rows", 256, {{vk::spec::moe_router_rows::kNorm, norm}}, ids(), a,
                ceil_div(n_out, args::kRouterTile), ceil_div(n_row, args::kRouterTile));
        return end();
    }
    std::vector<u32> ids() const { return {w_id, x_id, norm_id, logits, step}; }
    void begin(u32 n_step) {
        rig.put(logits, std::vector<float>(size_t{n_row} * n_out, 7));
        *rig.at<u32>(step) = n_step;
        a.from_step = n_step > 0;
        rig.begin();
    }
    std::vector<float> end() {
        rig.end();
        rig.go();
        const float* got = rig.at<float>(logits);
        return {got, got + size_t{n_row} * n_out};
    }

    /// The largest error of `got`, in units of 2^-24 of the sum of the absolute products.
    double error(const std::vector<float>& got) const {
        double worst = 0;
        for (u32 row = 0; row < n_row; row++) {
            const float* v = &x[size_t{row} * stride];
            double squares = 0;
            for (u32 i = 0; i < d_in; i++) squares += double{v[i]} * v[i];
            const double rms = norm ? 1 / std::sqrt(squares / d_in + double{kEps}) : 1;
            for (u32 o = 0; o < n_out; o++) {
                double sum = 0, size = 0;
                for (u32 i = 0; i < d_in; i++) {
                    const double term = double{v[i]} * (norm ? scale[i] : 1) * rms * w[size_t{o} * d_in + i];
                    sum += term;
                    size += std::fabs(term);
                }
                worst = test::larger_error(worst, std::fabs(got[size_t{row} * n_out + o] - sum) / (size * 6e-8));
            }
        }
        return worst;
    }
};

}  // namespace

TEST_CASE("scores of experts are within their bound, and have the same bits in a step and in a prompt") {
    auto vulkan = test::Vulkan::open();
    if (!vulkan) return;
    struct Shape {
        u32 d_in, n_out, n_row;
    };
    for (const bool norm : {true, false})
        for (const Shape& s : {Shape{192, 5, 3}, Shape{256, 33, 8}, Shape{1100, 17, 19}}) {
            CAPTURE(s.d_in);
            Router router(*vulkan, s.d_in, s.n_out, s.n_row, norm);
            const std::vector<float> one = router.of_step(1);
            CHECK(router.error(one) < 16);
            CHECK(test::same_bits(router.of_step(2), one));
            CHECK(test::same_bits(router.of_prompt(), one));
        }
    vulkan->finish();
}

TEST_CASE("scores of a prompt: only as many rows as the step has, in whole groups of eight") {
    auto vulkan = test::Vulkan::open();
    if (!vulkan) return;
    {
        Router router(*vulkan, 256, 9, 21, true);
        const std::vector<float> all = router.of_prompt(), some = router.of_prompt(5);
        CHECK(std::equal(all.begin(), all.begin() + 5 * 9, some.begin()));
        CHECK(std::all_of(some.begin() + 8 * 9, some.end(), [](float v) { return v == 7; }));
    }
    vulkan->finish();
}
#endif  // AUSPEX_NO_VULKAN

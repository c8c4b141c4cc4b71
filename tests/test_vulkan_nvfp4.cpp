// Models in NVFP4 on a Vulkan device, whose matrices have scales of their own, against the CPU.
#include <doctest/doctest.h>

#include <cmath>

#include "largest.h"
#include "vulkan_model.h"

#ifndef AUSPEX_NO_VULKAN

using namespace auspex;
using namespace auspex::detail;
using namespace test;
using namespace test_vulkan_model;

namespace test_vulkan_nvfp4 {

/// The worst relative error of a row of n numbers.
double worst_row(const std::vector<float>& got, const std::vector<float>& want, size_t n) {
    REQUIRE(got.size() == want.size());
    double worst = 0;
    for (size_t row = 0; row < got.size(); row += n) {
        double apart = 0, square = 0;
        for (size_t i = row; i < row + n; ++i) {
            apart += std::pow(double{got[i]} - double{want[i]}, 2.0);
            square += std::pow(double{want[i]}, 2.0);
        }
        worst = larger_error(worst, std::sqrt(apart / square));
    }
    return worst;
}

/// The first `n` draft logits after rows 0 .. 23 of a text.
std::vector<float> draft_logits(const Rig& rig, Context& context, const std::vector<Token>& ids, size_t n) {
    Step s;
    s.tape = &rig.plan.mtp[0];
    s.ids = ids.data() + 1;
    s.n_row = 24;
    s.n_logit = 1;
    REQUIRE(context.run(s).ok());
    Span<const float> row;
    REQUIRE(context.read_row(rig.plan.mtp[0].logits, 0).get(row).ok());
    return {row.begin(), row.begin() + static_cast<std::ptrdiff_t>(n)};
}

}  // namespace test_vulkan_nvfp4

using namespace test_vulkan_nvfp4;

TEST_CASE("back-end equivalence: matrices of NVFP4 with scales of their own give the CPU's rows") {
    if (!shared_gpu()) return;
    const std::vector<Token> ids = tiny_ids(40, 4);
    constexpr double kBound = 8e-3;  // prompts round to halves
    for (const Family family : {Family::qwen35, Family::qwen35moe})
        for (const bool fused : {false, true}) {
            const std::string name = family_name(family);
            CAPTURE(name);
            CAPTURE(fused);
            TinyOptions o = smallest();
            o.family = family;
            o.type = Type::nvfp4;
            o.scales = TinyOptions::Scales::separate;
            o.fused = fused;
            Rig rig(o);
            auto gpu = rig.context(), cpu = rig.context(*rig.cpu);
            uint32_t at = 0;
            for (const uint32_t n : {24u, 1u, 4u}) {  // kernels of prompts, of one row, of several
                const auto logits = [&](Context& context) { return rig.run(context, part(ids, at, n), at, false, 1); };
                CHECK(worst_row(logits(*gpu), logits(*cpu), rig.plan.n_vocab) <= kBound);
                at += n;
            }
            // A draft head is packed from the file's rows again.
            std::vector<Token> chosen;
            for (Token i = 1; i < static_cast<Token>(kTinyVocab); i += 3) chosen.push_back(i);
            for (Context* context : {gpu.get(), cpu.get()}) REQUIRE(context->draft_head(chosen).ok());
            CHECK(worst_row(draft_logits(rig, *gpu, ids, chosen.size()), draft_logits(rig, *cpu, ids, chosen.size()),
                            chosen.size()) <= kBound);
        }
}
#endif  // AUSPEX_NO_VULKAN

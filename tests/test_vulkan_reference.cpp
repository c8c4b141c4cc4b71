// Whole models on Vulkan against the framework's outputs, and how much prompts lose by rounding.
#include "vulkan_model.h"

#ifndef AUSPEX_NO_VULKAN
#include <cmath>

#include "../src/base/file.h"

using namespace test_vulkan_model;

namespace {

/// The text of a reference, and which of its rows there are logits of.
struct ReferenceRows {
    std::vector<Token> ids, rows;
    Reference::Array want;

    ReferenceRows(const Reference& ref, bool demo) {
        if (demo) {
            const Json& texts = *ref.json.find("texts");
            ids = ids_of(*texts.items()[0].find("ids"));
            rows = ids_of(*texts.items()[0].find("rows"));
            want = ref.array(texts.keys()[0] + ".rows");
        } else {
            ids = ids_of(*ref.json.find("ids"));
            want = ref.array("logits");
            for (Token i = 0; i < static_cast<Token>(want.n_row); ++i) rows.push_back(i);
        }
    }
};

}  // namespace

TEST_CASE("the GPU gives the framework's first rows, in steps and as a prompt") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    for (const char* name : {"random-dense", "demo-q4_k_m"}) {
        const std::string text = name;
        CAPTURE(text);
        const Reference ref = load_reference(name);
        if (!ref.ok) return;
        const bool demo = text != "random-dense";
        File file;
        REQUIRE(File::open(ref.model_path.c_str()).get(file).ok());
        Rig rig(file.bytes());
        auto context = rig.context(*rig.gpu, 256, 64), stepping = rig.context(*rig.gpu, 256, 64);
        const auto [ids, rows, want] = ReferenceRows(ref, demo);
        double stepped = 0, prompted = 0;
        size_t n_checked = 0;
        uint32_t at = 0;
        for (size_t k = 0; k < rows.size() && rows[k] < 64; ++k) {
            if (!demo && k % 8 != 3) continue;
            const uint32_t n = static_cast<uint32_t>(rows[k]) + 1;
            context->reset();
            const std::vector<float> whole = rig.run(*context, part(ids, 0, n), 0, false, 1);
            prompted = std::fmax(prompted, relative_error(whole.data(), want.row(k), want.n_col));
            std::vector<float> row;
            for (uint32_t m; at < n; at += m) {
                m = std::min(n - at, 4u);
                row = rig.run(*stepping, part(ids, at, m), at, true, m);
                stepping->commit(m);
            }
            stepped = std::fmax(stepped, relative_error(row.data() + row.size() - want.n_col, want.row(k), want.n_col));
            if (margin(want.row(k), want.n_col) > 0.2)
                CHECK(arg_max(row.data() + row.size() - want.n_col, want.n_col) == arg_max(want.row(k), want.n_col));
            ++n_checked;
        }
        CHECK(n_checked > 0);
        MESSAGE(text << ": " << n_checked << " rows, worst relative error stepped " << stepped << ", prompted "
                     << prompted);
        CHECK(stepped <= 2e-3);
        CHECK(prompted <= 2e-3);
    }
}

TEST_CASE("exact prompts are closer to the framework's rows than rounded ones, with the kernels of large models") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    const uint64_t before = shared_gpu()->small_bytes;
    shared_gpu()->small_bytes = 0;
    for (const char* name : {"random-dense", "random-moe", "demo-q4_k_m"}) {
        const std::string text = name;
        CAPTURE(text);
        const Reference ref = load_reference(name);
        if (!ref.ok) break;
        const bool demo = text == "demo-q4_k_m";
        File file;
        REQUIRE(File::open(ref.model_path.c_str()).get(file).ok());
        Rig rig(file.bytes());
        const auto [ids, rows, want] = ReferenceRows(ref, demo);
        double mean[2] = {}, worst[2] = {};
        for (const bool exact : {false, true}) {
            const std::unique_ptr<Context> context = rig.ContextRig::context(*rig.gpu, {}, 256, 64, exact);
            uint32_t n = 0;
            for (size_t k = 0; k < rows.size() && rows[k] < 64; ++k) {
                if (rows[k] < 15 || (!demo && k % (deep() ? 1 : 24) != 0)) continue;
                context->reset();
                const std::vector<float> got =
                    rig.run(*context, part(ids, 0, static_cast<size_t>(rows[k]) + 1), 0, false, 1);
                const double error = relative_error(got.data(), want.row(k), want.n_col);
                mean[exact] += error;
                worst[exact] = std::fmax(worst[exact], error);
                ++n;
            }
            REQUIRE(n > 0);
            mean[exact] /= n;
        }
        MESSAGE(text << ": mean and worst relative error rounded " << mean[0] << ", " << worst[0] << ", exact "
                     << mean[1] << ", " << worst[1]);
        CHECK(mean[1] < mean[0]);
        CHECK(worst[1] <= 1e-3);
    }
    shared_gpu()->small_bytes = before;
}
#endif  // AUSPEX_NO_VULKAN

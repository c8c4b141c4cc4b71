// Models whose residual stream has sums of squares that fill no binding: 96 values give 6 sums of 4 bytes. A product of
// more rows than one dispatch takes binds those of its later rows. Attention of more heads than a dispatch has
// workgroups.
#include "vulkan_model.h"

#ifndef AUSPEX_NO_VULKAN
using namespace test_vulkan_model;

namespace {

/// A device whose bindings begin at multiples of `align` bytes.
vk::OpenDeviceRef aligned_gpu(uint64_t align) {
    DeviceOptions options;
    options.kind = Kind::vulkan;
    vk::OpenDetail detail;
    detail.edit_traits = [=](vk::DeviceTraits* t) { t->storage_align = align; };
    vk::OpenDeviceRef opened;
    const Status s = vk::open_device(options, detail).get(opened);
    REQUIRE_MESSAGE(s.ok(), s.message());
    return opened;
}

TinyOptions narrow_family(Family family) {
    TinyOptions o = narrow_of(false);
    o.family = family;
    o.d_model = 96;
    o.scale = 4;  // decided enough for rounding not to matter
    return o;
}

}  // namespace

TEST_CASE("rows of 96 values: one to nine at once have the bits of single rows, wherever bindings may begin") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    const std::vector<Token> ids = tiny_ids(30, 3);
    for (Family family : {Family::qwen35, Family::qwen35moe}) {
        const std::string name = family_name(family);
        CAPTURE(name);
        const Rig rig(narrow_family(family));
        const auto wide = rig.load(*vk::make_backend(aligned_gpu(256)));
        std::vector<float> one;
        auto alone = rig.context(), among = rig.context(), apart = rig.context(*wide);
        for (uint32_t i = 0; i < 9; ++i) {
            const std::vector<float> row = rig.run(*alone, part(ids, i, 1), i, true, 1);
            alone->commit(1);
            one.insert(one.end(), row.begin(), row.end());
        }
        auto cpu = rig.context(*rig.cpu);
        CHECK(error_of(one, rig.run(*cpu, part(ids, 0, 9), 0, true, 9)) < 3e-3);
        for (uint32_t n = 1; n <= 9; ++n) {
            if (!deep() && n != 6 && n != 7 && n != 9) continue;  // those of two dispatches, and of most rows
            CAPTURE(n);
            const std::vector<float> want(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(n * kTinyVocab));
            for (Context* context : {among.get(), apart.get()}) {
                CHECK(same_bits(rig.run(*context, part(ids, 0, n), 0, true, n), want));
                REQUIRE(context->head(rig.plan.trunk, 0, n).ok());  // of the rows that are kept for it
                CHECK(same_bits(rig.rows(*context, rig.plan.trunk.logits, n), want));
                context->commit(0);
            }
        }
    }
}

TEST_CASE("rows of 96 values: prompts and drafts of any length give the text of single steps") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    const Rig rig(narrow_family(Family::qwen35));
    const auto wide = rig.load(*vk::make_backend(aligned_gpu(256)));
    auto context = rig.context(), apart = rig.context(*wide);
    const struct {
        uint32_t n_prompt, n_draft;  // the rows of the prompt are one less, those of a cycle one more
    } lengths[] = {{7, 8}, {8, 5}};
    for (const auto& [n_prompt, n_draft] : lengths) {
        context->reset();
        const std::vector<Token> prompt = tiny_ids(n_prompt, 13), want = stepped(rig, *context, prompt, 16);
        for (Context* c : {context.get(), apart.get()}) {
            c->reset();
            CHECK(device_loop(rig, *c, prompt, 16, n_draft, 1) == want);
        }
    }
}

TEST_CASE("prompts with more rows of heads than a dispatch may have workgroups in x have the same bits") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    TinyOptions tiny = narrow_of(true);
    tiny.family = Family::step35;  // 8 heads: two workgroups a row join them, three append
    const Rig rig(tiny);
    DeviceOptions options;
    options.kind = Kind::vulkan;
    vk::OpenDeviceRef opened;
    const Status s = vk::open_device(options, {}).get(opened);
    REQUIRE_MESSAGE(s.ok(), s.message());
    const auto narrow = rig.load(*vk::make_backend(opened));
    // With matrix units another dispatch of these rows has 128 workgroups itself.
    vk::DeviceTraits& traits = opened->gpu->traits;
    traits.max_group_count[0] = traits.is_cpu() ? 100 : 128;
    auto few = rig.context(*narrow), many = rig.context();
    const std::vector<Token> ids = tiny_ids(64, 3);
    const auto run = [&](Context& c) { return rig.run(c, part(ids, 0, 64), 0, false, 9); };
    CHECK(same_bits(run(*few), run(*many)));
}
#endif  // AUSPEX_NO_VULKAN

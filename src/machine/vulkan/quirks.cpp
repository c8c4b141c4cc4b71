#include "quirks.h"
#ifndef AUSPEX_NO_VULKAN

#include "device.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace quirks_impl {

constexpr Quirk kKnown[] = {
    {"llvmpipe ends the loops of an invocation after 65,535 rounds in all; with DeltaNet's general kernel "
     "prompts run 32 rows at once, and attention with its general kernel sees about 50,000 keys",
     kShortLoops, VK_DRIVER_ID_MESA_LLVMPIPE},
};

bool matches(const Quirk& q, const DeviceTraits& t) {
    const auto fits = [](uint32_t asked, uint32_t found) { return asked == 0 || asked == found; };
    return fits(q.driver_id, t.driver_id) && fits(q.vendor_id, t.vendor_id) && fits(q.device_id, t.device_id) &&
           (q.mended_in == 0 || t.driver_version < q.mended_in);
}

}  // namespace quirks_impl

Span<const Quirk> known_quirks() { return {quirks_impl::kKnown, std::size(quirks_impl::kKnown)}; }

std::vector<std::string> apply_quirks(Span<const Quirk> quirks, DeviceTraits* t) {
    std::vector<std::string> reasons;
    uint32_t bits = 0;
    for (const Quirk& q : quirks) {
        if (!quirks_impl::matches(q, *t)) continue;
        bits |= q.bits;
        reasons.emplace_back(q.reason);
    }
    if (bits & kNoTimeline) t->timeline = false;
    if (bits & kNoMatrix) {
        t->matrix_khr = t->matrix_nv = false;
        t->matrix_shapes.clear();
    }
    if (bits & kNoDot) t->dot = t->dot_accelerated = false;
    if (bits & kNoHalf) t->float16 = false;
    if (bits & kNoSmallBuffers) t->storage8 = t->storage16 = false;
    if (bits & kNoAddresses) t->addresses = false;
    if (bits & kNoShuffle) t->subgroup_ops &= ~VkSubgroupFeatureFlags(VK_SUBGROUP_FEATURE_SHUFFLE_BIT);
    if (bits & kNoChain) t->starts_in_order = false;
    t->short_loops = (bits & kShortLoops) != 0;
    return reasons;
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
#endif  // AUSPEX_NO_VULKAN

// machine/vulkan/selftest: checks of the driver when a device is opened.
//
// What    The checks of shaders/selftest.comp with their verdicts and reasons. A device that fails "half_subnormals" or
//         "fma_rows" is refused: its text would be wrong, or drafts would change it. The other checks choose kernels or
//         are only reported.
// Thread  called while a device is being opened.
// Tests   tests/test_vulkan_pipeline.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "commands.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

struct Check {
    enum class Verdict { passed, failed, skipped };
    std::string name;  ///< "half_subnormals", "fma_rows", "shuffle_xor", "integer_dot", "matrix_nv", "matrix_khr"
    Verdict verdict = Verdict::skipped;
    std::string reason;  ///< what was seen, or why it was not asked
    bool passed() const { return verdict == Verdict::passed; }
};

struct SelfTest {
    std::vector<Check> checks;
    double seconds = 0;
    /// True when the named check ran and passed.
    bool passed(std::string_view name) const;
    /// One line per check.
    std::string report() const;
};

/// The kernel of "matrix_nv" or "matrix_khr": a product of halves summed in float, in the shape and the subgroups that
/// prompts are multiplied in, else in the first shape of the device. Empty: it has none.
PipelineKey matrix_question(const DeviceTraits& traits, bool nv);

/// Runs the checks. A kernel that cannot be made is a failed check, not an error; one that the device can do without
/// also where the driver says that it has no memory for it.
///
/// errors    device_lost, out_of_memory.
/// cost      six to eight small pipelines and one submission: 20-50 ms without a pipeline cache.
Result<SelfTest> run_selftest(GpuRef gpu, Pipelines& pipelines);

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

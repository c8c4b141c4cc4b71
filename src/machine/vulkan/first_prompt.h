// machine/vulkan/first_prompt: compiles kernels while a model's weights are on their way.
//
// What    request_pipelines(): what a context will read its first prompts with. Compiled in the order of the layers, on
//         the workers of Pipelines. A context that is opened with other options requests the rest itself.
// Thread  any.
// Tests   tests/test_dispatch_list.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "loaded_model.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// Requests the pipelines with which a context of these options reads a prompt of n_ubatch rows, decodes a token, and
/// reads prompts of fewer rows, and does not wait for them. `model` needs no weights: see VulkanModel::outline().
///
/// errors    those of opening the context.
Status request_pipelines(const VulkanModel& model, const ContextOptions& options);

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

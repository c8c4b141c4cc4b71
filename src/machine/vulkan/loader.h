// machine/vulkan/loader: the system's Vulkan loader and drivers as libraries of the process.
//
// Owns    nothing: what was loaded stays loaded until the process ends.
// Tests   tests/test_vulkan_device.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "device.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// Loads the Vulkan loader and takes vkGetInstanceProcAddr from it, or from `detail`.
/// errors    no_device: there is none; the text says what was tried.
Status load_library(Gpu* gpu, const OpenDetail& detail);

/// Keeps the drivers of the instances that exist now loaded. The loader unloads a driver with its last instance; with
/// glibc the static thread storage of NVIDIA's (580) is lost then, and after some twenty devices none is left.
/// cost      a look at each library of the process
void keep_drivers_loaded();

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

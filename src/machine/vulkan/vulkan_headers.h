// machine/vulkan/vulkan_headers: volk.h, for types only.
//
// Why     The application may have it include headers of window systems (VK_USE_PLATFORM_XLIB_KHR).
// Tests   tests/two_units
#pragma once
#ifndef AUSPEX_NO_VULKAN

#if defined(__has_include)
#if __has_include(<volk.h>)
#include <volk.h>
#else
#include <volk/volk.h>
#endif
#else
#include <volk.h>
#endif
#ifndef VOLK_HEADER_VERSION
#error "this volk.h is another library's, such as GNU Radio's: put Vulkan's first (Debian: libvulkan-volk-dev)"
#endif

#endif

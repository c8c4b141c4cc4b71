// base/system: what the operating system says about itself.
//
// Owns    the question how much memory is free.
// Thread  any.
// Test    tests/test_base.cpp.
#pragma once
#include "base.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// Bytes of memory that this process can still take without pushing others out, a control group's limit included;
/// UINT64_MAX where the system does not say.
/// cost      about 0.1 ms.
uint64_t free_memory_bytes();

#if defined(__linux__)
/// What the control groups of this process leave, its own and those around it; UINT64_MAX without a limit.
/// root      in front of /proc and /sys: empty but for tests.
uint64_t left_in_control_groups(const std::string& root);
#endif

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

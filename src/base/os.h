// base/os: the headers of the operating system, and its last error.
//
// Owns    the one place that includes them for files and memory: windows.h must not define min and max, and the
//         application's own choice of these macros is left as it was.
// Thread  any.
#pragma once
#include "base.h"

#include <cerrno>
#include <system_error>

#if defined(_WIN32)
#if !defined(NOMINMAX)
#define NOMINMAX
#define AUSPEX_UNDEF_NOMINMAX
#endif
#if !defined(WIN32_LEAN_AND_MEAN)
#define WIN32_LEAN_AND_MEAN
#define AUSPEX_UNDEF_LEAN
#endif
#include <windows.h>
#ifdef AUSPEX_UNDEF_NOMINMAX
#undef NOMINMAX
#undef AUSPEX_UNDEF_NOMINMAX
#endif
#ifdef AUSPEX_UNDEF_LEAN
#undef WIN32_LEAN_AND_MEAN
#undef AUSPEX_UNDEF_LEAN
#endif
#elif defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <mach/mach.h>
#endif
#endif

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// Of the last call that failed on this thread.
inline std::error_code last_error() {
#if defined(_WIN32)
    return std::error_code(static_cast<int>(GetLastError()), std::system_category());
#else
    // Functions of the C library need not set errno.
    return std::error_code(errno ? errno : EIO, std::generic_category());
#endif
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// base/os_headers: the headers of the operating system for files and memory.
//
// Why     windows.h must not define min and max, and the application's own choice of these macros is left as it was.
// Tests   tests/test_base.cpp, tests/test_platforms.py
#pragma once

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
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <mach/mach.h>
#endif
#endif

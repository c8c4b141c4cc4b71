// machine/cpu/simd: how a file allows the compiler the instructions of one set.
//
// Owns    the macros of simd_*.cpp and kernels*.inl.
// Thread  none of its own.
//
// The flags of the including application need not allow these instructions: AUSPEX_SIMD_BEGIN(target) allows
// them for every function down to AUSPEX_SIMD_END. Only functions reached through a CpuKernels table may lie
// between the two, because the processor is asked at run time whether it runs them (kernels.h).
#pragma once
#include "kernels.h"

#include <cmath>
#include <cstring>

#if AUSPEX_HAS_X86
#include <immintrin.h>
#endif
#if AUSPEX_HAS_NEON
#include <arm_neon.h>
#endif

#if defined(__GNUC__)
#define AUSPEX_PRAGMA(text) _Pragma(#text)
#endif
#if defined(__clang__)
#define AUSPEX_SIMD_BEGIN(name) AUSPEX_PRAGMA(clang attribute push(__attribute__((target(name))), apply_to = function))
#define AUSPEX_SIMD_END AUSPEX_PRAGMA(clang attribute pop)
#define AUSPEX_UNROLL AUSPEX_PRAGMA(clang loop unroll(full))
#elif defined(__GNUC__)
// GCC 12 warns, wrongly, of uninitialised values inside its own AVX-512 intrinsics.
#define AUSPEX_SIMD_BEGIN(name)                                   \
    AUSPEX_PRAGMA(GCC diagnostic push)                            \
    AUSPEX_PRAGMA(GCC diagnostic ignored "-Wmaybe-uninitialized") \
    AUSPEX_PRAGMA(GCC diagnostic ignored "-Wuninitialized")       \
    AUSPEX_PRAGMA(GCC push_options)                               \
    AUSPEX_PRAGMA(GCC target(name))
#define AUSPEX_SIMD_END            \
    AUSPEX_PRAGMA(GCC pop_options) \
    AUSPEX_PRAGMA(GCC diagnostic pop)
#define AUSPEX_UNROLL AUSPEX_PRAGMA(GCC unroll 16)
#else
#define AUSPEX_SIMD_BEGIN(name)
#define AUSPEX_SIMD_END
#define AUSPEX_UNROLL
#endif

// A compiler may add the terms of a chain as a tree. With a dozen products in it that takes more registers than there
// are. An empty statement that may change the vector keeps the additions in order.
#if defined(__GNUC__)
#define AUSPEX_IN_ORDER(vector) __asm__("" : "+x"(vector))
#else
#define AUSPEX_IN_ORDER(vector) (void)0
#endif

// base/float_mode: the floating-point mode in which the library computes.
//
// Owns    DefaultFloatMode. Hosts change a thread's mode: audio and game threads flush subnormals, interval libraries
//         change the rounding. Results must not depend on that, and threads that the library starts inherit it: what
//         computes or prints floating-point numbers for a result opens with one.
// Thread  acts on the calling thread only.
// Tests   tests/test_pool.cpp, tests/test_invariants.cpp, tests/test_json.cpp, tests/test_jinja.cpp,
//         tests/test_plan.cpp.
#pragma once
#include "../auspex.hpp"

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || defined(_M_FP_FAST)
#error "auspex checks for NaN and infinity: compile its implementation in a file of its own, without -ffast-math"
#endif

#include <cfenv>
#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// While it lives, the calling thread rounds to nearest, keeps subnormals and traps nothing; then its mode is restored.
/// cost      a few nanoseconds.
class DefaultFloatMode {
  public:
#if defined(__x86_64__) && defined(__GNUC__)
    // Both units: glibc's powl() and mingw's exp() compute on the x87.
    DefaultFloatMode() : saved_(_mm_getcsr()) {
        __asm__ volatile("fnstcw %0" : "=m"(saved_x87_));
        set(0x1f80, 0x037f);  // every exception masked; x87: 64-bit significands
    }
    ~DefaultFloatMode() { set(saved_, saved_x87_); }
#elif defined(_M_X64)
    DefaultFloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
    ~DefaultFloatMode() { _mm_setcsr(saved_); }
#elif defined(__aarch64__) && defined(__GNUC__)
    DefaultFloatMode() {
        __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
        __asm__ volatile("msr fpcr, %0" : : "r"(uint64_t{0}) : "memory");
    }
    ~DefaultFloatMode() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }
#else
    DefaultFloatMode() {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~DefaultFloatMode() { std::fesetenv(&saved_); }
#endif
    DefaultFloatMode(const DefaultFloatMode&) = delete;
    DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

  private:
#if defined(__x86_64__) && defined(__GNUC__)
    static void set(unsigned sse, uint16_t x87) {
        _mm_setcsr(sse);
        __asm__ volatile("fldcw %0" : : "m"(x87));
    }

    unsigned saved_;
    uint16_t saved_x87_ = 0;
#elif defined(_M_X64)
    unsigned saved_;
#elif defined(__aarch64__) && defined(__GNUC__)
    uint64_t saved_ = 0;
#else
    std::fenv_t saved_;
#endif
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

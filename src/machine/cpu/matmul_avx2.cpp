#include "simd_avx2.h"

#if AUSPEX_HAS_X86
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12: false alarm inside its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
namespace auspex {
namespace detail {
namespace cpu_avx2 {
#define AUSPEX_SIMD AUSPEX_AVX2
#define AUSPEX_SIMD_INLINE AUSPEX_AVX2_INLINE
#include "matmul_kernel.inl"
#undef AUSPEX_SIMD
#undef AUSPEX_SIMD_INLINE
#undef AUSPEX_AVX2
#undef AUSPEX_AVX2_INLINE
}  // namespace cpu_avx2

const CpuKernels& avx2_kernels() {
    static constexpr CpuKernels kKernels = {cpu_avx2::quantise, cpu_avx2::strips, cpu_avx2::floats};
    return kKernels;
}

}  // namespace detail
}  // namespace auspex
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

#include "simd_avx512.h"

#if AUSPEX_HAS_X86
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12: false alarm inside its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
namespace auspex {
namespace detail {
namespace cpu_avx512 {
#define AUSPEX_SIMD AUSPEX_AVX512
#define AUSPEX_SIMD_INLINE AUSPEX_AVX512_INLINE
#include "matmul_kernel.inl"
#undef AUSPEX_SIMD
#undef AUSPEX_SIMD_INLINE
#undef AUSPEX_AVX512
#undef AUSPEX_AVX512_INLINE
}  // namespace cpu_avx512

const CpuKernels& avx512_kernels() {
    static constexpr CpuKernels kKernels = {cpu_avx512::quantise, cpu_avx512::strips, cpu_avx512::floats};
    return kKernels;
}

}  // namespace detail
}  // namespace auspex
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

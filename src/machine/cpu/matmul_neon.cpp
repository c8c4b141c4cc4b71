#include "simd_neon.h"

#if AUSPEX_HAS_NEON
namespace auspex {
namespace detail {
namespace cpu_neon {
#define AUSPEX_SIMD AUSPEX_NEON
#define AUSPEX_SIMD_INLINE AUSPEX_NEON_INLINE
#include "matmul_kernel.inl"
#undef AUSPEX_SIMD
#undef AUSPEX_SIMD_INLINE
#undef AUSPEX_NEON
#undef AUSPEX_NEON_INLINE
}  // namespace cpu_neon

const CpuKernels& neon_kernels() {
    static constexpr CpuKernels kKernels = {cpu_neon::quantise, cpu_neon::strips, cpu_neon::floats};
    return kKernels;
}

}  // namespace detail
}  // namespace auspex
#endif

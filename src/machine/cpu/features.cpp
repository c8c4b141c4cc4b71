#include "features.h"

#include <thread>

#if AUSPEX_HAS_X86
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif
#if defined(_WIN32)
#include "../../base/os_headers.h"

#include <vector>
#elif defined(__linux__)
#include <sched.h>
#endif
#if AUSPEX_HAS_NEON && defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace features_impl {

#if AUSPEX_HAS_X86
struct Leaf {
    uint32_t a = 0, b = 0, c = 0, d = 0;
};
Leaf cpuid(uint32_t leaf, uint32_t sub) {
    Leaf r;
#if defined(_MSC_VER)
    int v[4];
    __cpuid(v, 0);
    if (static_cast<uint32_t>(v[0]) < leaf) return r;
    __cpuidex(v, static_cast<int>(leaf), static_cast<int>(sub));
    r = {static_cast<uint32_t>(v[0]), static_cast<uint32_t>(v[1]), static_cast<uint32_t>(v[2]),
         static_cast<uint32_t>(v[3])};
#else
    if (!__get_cpuid_count(leaf, sub, &r.a, &r.b, &r.c, &r.d)) return Leaf{};
#endif
    return r;
}
/// XCR0: the register sets that the operating system saves. Only if cpuid says OSXSAVE.
uint64_t saved_registers() {
#if defined(_MSC_VER)
    return _xgetbv(0);
#else
    uint32_t low, high;
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(low), "=d"(high) : "c"(0));  // xgetbv, for any assembler
    return uint64_t{high} << 32 | low;
#endif
}
bool bits(uint64_t word, uint64_t mask) { return (word & mask) == mask; }

/// AVX2, FMA and F16C; `wide`: also the AVX-512 that CpuFeatures lists.
bool has_x86(bool wide) {
    // Bit numbers: Intel SDM volume 2, CPUID.
    const Leaf one = cpuid(1, 0), seven = cpuid(7, 0);
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    if (!bits(one.c, fma | osxsave | avx | f16c)) return false;
    const uint64_t saved = saved_registers();
    if (!bits(saved, 0x6) || !bits(seven.b, 1u << 5)) return false;  // xmm and ymm; AVX2
    if (!wide) return true;
    const uint32_t f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31, vnni = 1u << 11;
    return bits(saved, 0xe6) && bits(seven.b, f | dq | bw | vl) && bits(seven.c, vnni);
}
#endif

#if AUSPEX_HAS_NEON && defined(__APPLE__)
bool has_arm(const char* key) {
    int v = 0;
    size_t size = sizeof v;
    return sysctlbyname(key, &v, &size, nullptr, 0) == 0 && v != 0;
}
#endif

#if defined(_WIN32)
/// Cores of this thread's processor group that the process may run on: a lower bound where there are several groups, of
/// up to 64 processors each. 0: Windows does not say.
uint32_t n_core_allowed() {
    std::vector<SYSTEM_LOGICAL_PROCESSOR_INFORMATION> all;
    DWORD n_byte = 0;
    (void)GetLogicalProcessorInformation(nullptr, &n_byte);
    all.resize(n_byte / sizeof all[0]);
    if (all.empty() || !GetLogicalProcessorInformation(all.data(), &n_byte)) return 0;
    DWORD_PTR allowed = 0, present = 0;
    (void)GetProcessAffinityMask(GetCurrentProcess(), &allowed, &present);
    if (allowed == 0) allowed = ~DWORD_PTR{0};  // a process of several groups
    uint32_t n = 0;
    for (const auto& part : all) n += part.Relationship == RelationProcessorCore && (part.ProcessorMask & allowed) != 0;
    return n;
}
#elif defined(__linux__)
/// The first number in a small file under /sys, or -1.
long first_number(const char* pattern, int cpu) {
    char path[128];
    std::snprintf(path, sizeof path, pattern, cpu);
    std::FILE* f = std::fopen(path, "r");
    if (!f) return -1;
    long n = -1;
    if (std::fscanf(f, "%ld", &n) != 1) n = -1;
    std::fclose(f);
    return n;
}
#endif

}  // namespace features_impl

CpuFeatures cpu_features() {
    CpuFeatures f;
#if AUSPEX_HAS_X86
    f.avx2 = features_impl::has_x86(false);
    f.avx512 = features_impl::has_x86(true);
#elif AUSPEX_HAS_NEON
    f.neon = true;
#if defined(__linux__)
    f.dotprod = (getauxval(AT_HWCAP) & (1ul << 20)) != 0;  // HWCAP_ASIMDDP
#elif defined(__APPLE__)
    f.dotprod = features_impl::has_arm("hw.optional.arm.FEAT_DotProd");
#endif
#endif
    return f;
}

uint32_t n_physical_core() {
    uint32_t n = std::thread::hardware_concurrency();
#if defined(__linux__)
    using features_impl::first_number;
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
        // A core counts at its first allowed hardware thread. Where cores differ in size (phones), the small ones are
        // left out: the others would wait for them.
        long largest = -1;
        for (int i = 0; i < CPU_SETSIZE; ++i)
            if (CPU_ISSET(i, &allowed)) {
                const long c = first_number("/sys/devices/system/cpu/cpu%d/cpu_capacity", i);
                if (c > largest) largest = c;
            }
        cpu_set_t seen;
        CPU_ZERO(&seen);
        uint32_t cores = 0;
        for (int i = 0; i < CPU_SETSIZE; ++i) {
            if (!CPU_ISSET(i, &allowed)) continue;
            if (largest > 0 && 2 * first_number("/sys/devices/system/cpu/cpu%d/cpu_capacity", i) < largest) continue;
            const long first = first_number("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
            const int core = first >= 0 && first < CPU_SETSIZE ? static_cast<int>(first) : i;
            if (CPU_ISSET(core, &seen)) continue;
            CPU_SET(core, &seen);
            ++cores;
        }
        if (cores > 0) n = cores;
    }
#elif defined(_WIN32)
    if (const uint32_t cores = features_impl::n_core_allowed(); cores > 0) n = cores;
#elif defined(__APPLE__)
    for (const char* key : {"hw.perflevel0.physicalcpu", "hw.physicalcpu"}) {
        int v = 0;
        size_t size = sizeof v;
        if (sysctlbyname(key, &v, &size, nullptr, 0) == 0 && v > 0) {
            n = static_cast<uint32_t>(v);
            break;
        }
    }
#endif
    return n > 0 ? n : 1;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

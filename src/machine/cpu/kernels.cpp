#include "kernels.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

KernelList runnable_kernels() {
    const CpuFeatures features = cpu_features();
    KernelList list;
    auto add = [&](const CpuKernels* k) {
        if (k && k->runs(features)) list.table[list.n++] = k;
    };
#define AUSPEX_ADD(name) add(name##_kernels());
    AUSPEX_KERNELS(AUSPEX_ADD)
#undef AUSPEX_ADD
    return list;
}

const CpuKernels* kernels_for(CpuPath path) {
    for (const CpuKernels* k : runnable_kernels())
        if (path == CpuPath::best || k->path == path) return k;
    return nullptr;
}

Status choose_kernels(CpuPath wanted, const CpuKernels** out) {
    *out = kernels_for(wanted);
    if (*out) return {};
    std::string available;
    for (const CpuKernels* k : runnable_kernels()) available = say(available, available.empty() ? "" : ", ", k->name);
    return fail(Code::unsupported, "CPU path '", path_name(wanted),
                "' is not available: this processor and build have ", available, ". Choose one of these, or best.");
}

const char* path_name(CpuPath path) {
    switch (path) {
        case CpuPath::best: return "best";
        case CpuPath::reference: return "reference";
        case CpuPath::avx2: return "avx2";
        case CpuPath::avx512: return "avx512";
        case CpuPath::neon: return "neon";
    }
    return "unknown";
}

bool has_path(CpuPath path) { return kernels_for(path) != nullptr; }

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#undef AUSPEX_KERNELS

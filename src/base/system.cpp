#include "system.h"

#include "os.h"

#include <algorithm>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

#if defined(_WIN32)

uint64_t free_memory_bytes() {
    MEMORYSTATUSEX status;
    status.dwLength = sizeof status;
    return GlobalMemoryStatusEx(&status) ? status.ullAvailPhys : UINT64_MAX;
}

#elif defined(__APPLE__)

uint64_t free_memory_bytes() {
    vm_statistics64_data_t pages;
    mach_msg_type_number_t n = HOST_VM_INFO64_COUNT;
    const mach_port_t host = mach_host_self();
    vm_size_t page_bytes = 0;
    if (host_page_size(host, &page_bytes) != KERN_SUCCESS ||
        host_statistics64(host, HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&pages), &n) != KERN_SUCCESS)
        return UINT64_MAX;
    return (uint64_t{pages.free_count} + pages.inactive_count + pages.purgeable_count) * page_bytes;
}

#elif defined(__linux__)

namespace system_impl {

/// The first number in `path` after `key`; UINT64_MAX if there is none ("max" in a control group).
uint64_t read_number(const char* path, const char* key) {
    std::FILE* file = std::fopen(path, "re");
    if (!file) return UINT64_MAX;
    char line[256];
    uint64_t value = UINT64_MAX;
    const size_t n_key = std::strlen(key);
    while (value == UINT64_MAX && std::fgets(line, sizeof line, file)) {
        if (std::strncmp(line, key, n_key) != 0) continue;
        const char* p = line + n_key;
        while (*p == ' ' || *p == '\t') ++p;
        if (*p >= '0' && *p <= '9') value = std::strtoull(p, nullptr, 10);
    }
    std::fclose(file);
    return value;
}

/// What a control group of version 2 or 1 leaves; file pages that it can drop count as free.
uint64_t left_in_group(const char* limit_path, const char* used_path, const char* stat_path, const char* cache_key) {
    const uint64_t limit = read_number(limit_path, ""), used = read_number(used_path, "");
    if (limit == UINT64_MAX || used == UINT64_MAX) return UINT64_MAX;
    const uint64_t cache = read_number(stat_path, cache_key), kept = cache <= used ? used - cache : used;
    return limit > kept ? limit - kept : 0;
}

}  // namespace system_impl

uint64_t free_memory_bytes() {
    using namespace system_impl;
    uint64_t left = UINT64_MAX;
    const uint64_t kib = read_number("/proc/meminfo", "MemAvailable:");
    if (kib <= UINT64_MAX >> 10) left = kib << 10;
    left = std::min(left, left_in_group("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current",
                                        "/sys/fs/cgroup/memory.stat", "inactive_file"));
    return std::min(left, left_in_group("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                                        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
                                        "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file"));
}

#else

uint64_t free_memory_bytes() { return UINT64_MAX; }

#endif

}  // namespace detail

uint64_t free_host_memory() { return detail::free_memory_bytes(); }

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

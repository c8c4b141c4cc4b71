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
uint64_t read_number(const std::string& path, const char* key) {
    std::FILE* file = std::fopen(path.c_str(), "re");
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

/// A version of control groups: its controller as /proc/self/cgroup names it, where the groups are mounted, and the
/// files of a group.
struct Groups {
    const char *controller, *mount, *limits[2], *used, *cache_key;
};
constexpr Groups kGroups[] = {
    {"", "/sys/fs/cgroup", {"/memory.max", "/memory.high"}, "/memory.current", "inactive_file"},
    {"memory",
     "/sys/fs/cgroup/memory",
     {"/memory.limit_in_bytes", nullptr},
     "/memory.usage_in_bytes",
     "total_inactive_file"}};

/// The control group of a process, from lines "0::/a/b" or "4:cpu,memory:/a/b"; empty for the topmost one.
std::string group_of(const std::string& list, const char* controller) {
    std::string path, line;
    std::FILE* file = std::fopen(list.c_str(), "re");
    if (!file) return path;
    const std::string wanted = say(",", controller, ",");
    for (int c = 0; c != EOF;) {
        c = std::fgetc(file);
        if (c != '\n' && c != EOF) {
            line += static_cast<char>(c);
            continue;
        }
        const size_t first = line.find(':'), second = first == std::string::npos ? first : line.find(':', first + 1);
        if (second != std::string::npos &&
            say(",", line.substr(first + 1, second - first - 1), ",").find(wanted) != std::string::npos)
            path = line.substr(second + 1);
        line.clear();
    }
    std::fclose(file);
    return path.compare(0, 1, "/") == 0 && path.size() > 1 ? path : std::string();
}

/// What a control group leaves; file pages that it can drop count as free.
uint64_t left_in_group(const Groups& groups, const std::string& folder) {
    uint64_t limit = UINT64_MAX;
    for (const char* name : groups.limits)
        if (name) limit = std::min(limit, read_number(folder + name, ""));
    if (limit > UINT64_MAX / 4) return UINT64_MAX;  // none; version 1 says nearly 2^63
    const uint64_t used = read_number(folder + groups.used, "");
    if (used == UINT64_MAX) return used;
    const uint64_t cache = read_number(folder + "/memory.stat", groups.cache_key);
    const uint64_t kept = cache <= used ? used - cache : used;
    return limit > kept ? limit - kept : 0;
}

}  // namespace system_impl

uint64_t left_in_control_groups(const std::string& root) {
    using namespace system_impl;
    uint64_t left = UINT64_MAX;
    for (const Groups& groups : kGroups) {
        // The limits of the groups around the process's own hold, too. Within a container /proc may give the host's
        // path, while /sys shows the container's own group as the topmost.
        const std::string group = group_of(root + "/proc/self/cgroup", groups.controller);
        for (size_t n = group.size();; n = group.rfind('/', n - 1)) {
            left = std::min(left, left_in_group(groups, root + groups.mount + group.substr(0, n)));
            if (n == 0) break;
        }
    }
    return left;
}

uint64_t free_memory_bytes() {
    const uint64_t kib = system_impl::read_number("/proc/meminfo", "MemAvailable:");
    return std::min(kib <= UINT64_MAX >> 10 ? kib << 10 : UINT64_MAX, left_in_control_groups(""));
}

#else

uint64_t free_memory_bytes() { return UINT64_MAX; }

#endif

}  // namespace detail

uint64_t free_host_memory() { return detail::free_memory_bytes(); }

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

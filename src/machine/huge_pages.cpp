#include "huge_pages.h"

#include "../base/os.h"

#include <new>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace huge_pages_impl {

constexpr size_t kPage = size_t{2} << 20;  // of x86 and, with the usual small pages, of ARM

}  // namespace huge_pages_impl

bool HugePages::reserve(uint64_t bytes) {
    release();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    using huge_pages_impl::kPage;
    if (bytes < 2 * kPage || bytes > SIZE_MAX / 2) return false;
    const size_t n = static_cast<size_t>(bytes);
    void* map = ::mmap(nullptr, n + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return false;
    map_ = static_cast<std::byte*>(map);
    map_bytes_ = n + kPage;
    const size_t skip = (kPage - reinterpret_cast<uintptr_t>(map_) % kPage) % kPage;
    data_ = map_ + skip;
    size_ = n;
    (void)::madvise(data_, size_, MADV_HUGEPAGE);  // only a hint
    return true;
#else
    (void)bytes;
    return false;
#endif
}

Allocator HugePages::allocator() { return {take, give, this}; }

Allocator HugePages::unless(const Allocator& application, uint64_t bytes) {
    return !application.alloc && reserve(bytes) ? allocator() : application;
}

void* HugePages::take(void* me, size_t bytes, size_t alignment) {
    HugePages& pages = *static_cast<HugePages*>(me);
    const size_t from = (pages.used_ + alignment - 1) / alignment * alignment;
    if (!pages.data_ || from > pages.size_ || bytes > pages.size_ - from)
        return ::operator new (bytes, std::align_val_t{alignment}, std::nothrow);
    pages.used_ = from + bytes;
    return pages.data_ + from;
}

void HugePages::give(void* me, void* p, size_t bytes, size_t alignment) {
    const HugePages& pages = *static_cast<HugePages*>(me);
    std::byte* from = static_cast<std::byte*>(p);
    if (!pages.data_ || from < pages.data_ || from >= pages.data_ + pages.size_) {
        ::operator delete (p, std::align_val_t{alignment});
        return;
    }
#if defined(__linux__)
    const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)), at = reinterpret_cast<uintptr_t>(from);
    const uintptr_t first = (at + page - 1) / page * page, end = (at + bytes) / page * page;
    if (first < end) (void)::madvise(from + (first - at), end - first, MADV_DONTNEED);
#else
    (void)bytes;
#endif
}

void HugePages::release() {
#if defined(__linux__)
    if (map_) (void)::munmap(map_, map_bytes_);
#endif
    map_ = data_ = nullptr;
    map_bytes_ = size_ = used_ = 0;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

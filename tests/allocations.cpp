#include "allocations.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>
#ifdef _WIN32
#include <malloc.h>
#endif

#if defined(__linux__) && defined(__GNUC__)
extern "C" const char __executable_start, etext;  // of the linker: where the code of this program is
#define AUSPEX_TEST_CALLER __builtin_return_address(0)
#else
#define AUSPEX_TEST_CALLER nullptr
#endif

namespace test {

std::atomic<int64_t> n_allocation{0}, n_allocated_bytes{0}, n_held{0}, allocations_until_fault{kNever},
    own_allocations_until_fault{kNever};

#ifdef _WIN32
void* allocate_aligned(size_t n, size_t alignment) {
    return _aligned_malloc(n == 0 ? 1 : n, std::max(alignment, alignof(std::max_align_t)));
}
void free_aligned(void* p) { _aligned_free(p); }
#else
void* allocate_aligned(size_t n, size_t alignment) {
    const size_t bytes = n == 0 ? 1 : n;
    if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes);
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
void free_aligned(void* p) { std::free(p); }
#endif

bool fails(std::atomic<int64_t>& until) {
    return until.load(std::memory_order_relaxed) != kNever && until.fetch_sub(1) == 0;
}

#if defined(__linux__) && defined(__GNUC__)
bool can_tell_own_allocations() { return true; }
static bool is_own(const void* caller) {
    const auto at = reinterpret_cast<uintptr_t>(caller);
    return at >= reinterpret_cast<uintptr_t>(&__executable_start) && at < reinterpret_cast<uintptr_t>(&etext);
}
#else
bool can_tell_own_allocations() { return false; }
static bool is_own(const void*) { return false; }
#endif

}  // namespace test

namespace {

void* allocate(size_t n, size_t alignment, const void* caller) {
    test::n_allocation.fetch_add(1, std::memory_order_relaxed);
    test::n_allocated_bytes.fetch_add(static_cast<int64_t>(n), std::memory_order_relaxed);
    if (test::fails(test::allocations_until_fault)) return nullptr;
    if (test::own_allocations_until_fault.load(std::memory_order_relaxed) != test::kNever && test::is_own(caller) &&
        test::fails(test::own_allocations_until_fault))
        return nullptr;
    void* p = test::allocate_aligned(n, alignment);
    if (p) test::n_held.fetch_add(1, std::memory_order_relaxed);
    return p;
}
void* allocate_or_throw(size_t n, size_t alignment, const void* caller) {
    if (void* p = allocate(n, alignment, caller)) return p;
    throw std::bad_alloc();
}
void release(void* p) {
    if (!p) return;
    test::n_held.fetch_sub(1, std::memory_order_relaxed);
    test::free_aligned(p);
}

}  // namespace

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define AUSPEX_TEST_NAMED_OPERATORS
#endif
#endif

#ifdef AUSPEX_TEST_NAMED_OPERATORS
// Clang links this sanitizer's own operators before ours: CMakeLists.txt has the linker put these in their place.
extern "C" {
void* auspex_test_new(size_t n) { return allocate_or_throw(n, 1, AUSPEX_TEST_CALLER); }
void* auspex_test_new_aligned(size_t n, size_t a) { return allocate_or_throw(n, a, AUSPEX_TEST_CALLER); }
void* auspex_test_new_nothrow(size_t n) { return allocate(n, 1, AUSPEX_TEST_CALLER); }
void* auspex_test_new_aligned_nothrow(size_t n, size_t a) { return allocate(n, a, AUSPEX_TEST_CALLER); }
void auspex_test_delete(void* p) { release(p); }
}
#else
void* operator new(size_t n) { return allocate_or_throw(n, 1, AUSPEX_TEST_CALLER); }
void* operator new[](size_t n) { return allocate_or_throw(n, 1, AUSPEX_TEST_CALLER); }
void* operator new(size_t n, std::align_val_t a) {
    return allocate_or_throw(n, static_cast<size_t>(a), AUSPEX_TEST_CALLER);
}
void* operator new[](size_t n, std::align_val_t a) {
    return allocate_or_throw(n, static_cast<size_t>(a), AUSPEX_TEST_CALLER);
}
void* operator new(size_t n, const std::nothrow_t&) noexcept { return allocate(n, 1, AUSPEX_TEST_CALLER); }
void* operator new[](size_t n, const std::nothrow_t&) noexcept { return allocate(n, 1, AUSPEX_TEST_CALLER); }
void* operator new(size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
    return allocate(n, static_cast<size_t>(a), AUSPEX_TEST_CALLER);
}
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, size_t) noexcept { release(p); }
void operator delete[](void* p, size_t) noexcept { release(p); }
void operator delete(void* p, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { release(p); }
#endif

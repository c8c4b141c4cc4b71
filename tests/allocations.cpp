#include "allocations.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace test {

std::atomic<int64_t> n_allocation{0}, n_held{0}, allocations_until_fault{kNever};

bool fails(std::atomic<int64_t>& until) {
    return until.load(std::memory_order_relaxed) != kNever && until.fetch_sub(1) == 0;
}

}  // namespace test

namespace {

void* allocate(size_t n, size_t alignment) {
    test::n_allocation.fetch_add(1, std::memory_order_relaxed);
    if (test::fails(test::allocations_until_fault)) return nullptr;
    const size_t bytes = n == 0 ? 1 : n;
    void* p = nullptr;
    if (alignment <= alignof(std::max_align_t)) {
        p = std::malloc(bytes);
    } else {
        p = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    }
    if (p) test::n_held.fetch_add(1, std::memory_order_relaxed);
    return p;
}
void* allocate_or_throw(size_t n, size_t alignment) {
    if (void* p = allocate(n, alignment)) return p;
    throw std::bad_alloc();
}
void release(void* p) {
    if (!p) return;
    test::n_held.fetch_sub(1, std::memory_order_relaxed);
    std::free(p);
}

}  // namespace

void* operator new(size_t n) { return allocate_or_throw(n, 1); }
void* operator new[](size_t n) { return allocate_or_throw(n, 1); }
void* operator new(size_t n, std::align_val_t a) { return allocate_or_throw(n, static_cast<size_t>(a)); }
void* operator new[](size_t n, std::align_val_t a) { return allocate_or_throw(n, static_cast<size_t>(a)); }
void* operator new(size_t n, const std::nothrow_t&) noexcept { return allocate(n, 1); }
void* operator new[](size_t n, const std::nothrow_t&) noexcept { return allocate(n, 1); }
void* operator new(size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
    return allocate(n, static_cast<size_t>(a));
}
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, size_t) noexcept { release(p); }
void operator delete[](void* p, size_t) noexcept { release(p); }
void operator delete(void* p, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { release(p); }

// machine/huge_pages: memory that the system backs with huge pages.
//
// Owns    HugePages, one stretch of memory, given out from front to back.
// Thread  one at a time.
// Tests   tests/test_huge_pages.cpp
//
// Why     Prefetchers stop at the end of a page and each new page needs a translation. On a Zen 4 core, reading goes
//         from 24 to 33 GB/s with pages of 2 MiB, and a product of one row from 21 to 31 GB/s. Memory that is written
//         for the first time costs a fault for each page: 50 MB of a checkpoint 37 ms with small pages, 16 with huge.
#pragma once
#include "../base/base.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

class HugePages {
  public:
    HugePages() = default;
    ~HugePages() { release(); }
    HugePages(const HugePages&) = delete;
    HugePages& operator=(const HugePages&) = delete;

    /// Reserves addresses for blocks of `bytes` in all, each rounded up to 64. Pages are taken when they are written.
    /// False, and nothing is reserved, where the system is not Linux or has no such stretch, or where `bytes` are too
    /// few for a huge page.
    bool reserve(uint64_t bytes);
    /// Gives out what is reserved, then memory of `operator new`. Neither it nor its blocks may outlive the object.
    /// Freeing a block gives its whole pages back to the system.
    Allocator allocator();
    /// The application's allocator if it has one, else allocator() with `bytes` reserved where that works.
    Allocator unless(const Allocator& application, uint64_t bytes);
    /// Bytes that were given out.
    uint64_t used_bytes() const { return used_; }

  private:
    static void* take(void* me, size_t bytes, size_t alignment);
    static void give(void* me, void* p, size_t bytes, size_t alignment);
    void release();

    std::byte* map_ = nullptr;  ///< of the system
    size_t map_bytes_ = 0;
    std::byte* data_ = nullptr;  ///< in it, at the first huge page
    size_t size_ = 0, used_ = 0;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// Tests of machine/huge_pages: blocks of one stretch, and what does not fit in it.
#include "../src/machine/huge_pages.h"

#include <doctest/doctest.h>

#include <cstring>

using namespace auspex;
using namespace auspex::detail;

namespace {

bool filled(const Block& b, std::byte with) {
    for (size_t i = 0; i < b.size(); ++i)
        if (b.data()[i] != with) return false;
    return true;
}

}  // namespace

TEST_CASE("blocks of a stretch follow one another, hold what is written, and are aligned") {
    constexpr uint64_t kBytes = (uint64_t{9} << 20) + 128;
    HugePages pages;
    const bool reserved = pages.reserve(kBytes);
#if defined(__linux__)
    CHECK(reserved);
#endif
    Block a, b, c;
    REQUIRE(a.take(pages.allocator(), (uint64_t{5} << 20) + 1, "a").ok());
    REQUIRE(b.take(pages.allocator(), uint64_t{4} << 20, "b").ok());
    REQUIRE(c.take(pages.allocator(), uint64_t{1} << 20, "c").ok());  // no longer fits: the system gives it
    for (const Block* block : {&a, &b, &c}) {
        CHECK(reinterpret_cast<uintptr_t>(block->data()) % 64 == 0);
        CHECK(filled(*block, std::byte{0}));
    }
    std::memset(a.data(), 1, a.size());
    std::memset(b.data(), 2, b.size());
    std::memset(c.data(), 3, c.size());
    CHECK(filled(a, std::byte{1}));
    CHECK(filled(b, std::byte{2}));
    if (reserved) {
        CHECK(b.data() == a.data() + (5 << 20) + 64);
        CHECK(pages.used_bytes() == kBytes - 64);
    }
    a.reset();  // gives pages back; its neighbour stays
    c.reset();
    CHECK(filled(b, std::byte{2}));
}

TEST_CASE("too few bytes, or more than there are addresses, are left to the system") {
    HugePages pages;
    CHECK(!pages.reserve(1000));
    CHECK(!pages.reserve(UINT64_MAX - 64));
    Block a;
    REQUIRE(a.take(pages.allocator(), 1000, "a").ok());
    CHECK(filled(a, std::byte{0}));
    CHECK(pages.used_bytes() == 0);
}

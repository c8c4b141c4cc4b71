// tests/test_bulk_copy: machine/bulk_copy.
#include <doctest/doctest.h>

#include "../src/machine/bulk_copy.h"
#include "support.h"

using auspex::detail::bulk_copy;
using auspex::detail::BulkCopies;
using auspex::detail::Pool;

TEST_CASE("bulk_copy copies these bytes and no others, wherever they lie") {
    constexpr size_t kMax = 20000, kGuard = 128;
    test::Random random(3);
    std::vector<unsigned char> from(kMax + kGuard), to(kMax + 2 * kGuard);
    for (unsigned char& byte : from) byte = static_cast<unsigned char>(random.below(255));
    for (int i = 0; i < 400; ++i) {
        const size_t n = i < 8 ? 4092 + size_t(i) : random.below(kMax), in = random.below(64), out = random.below(64);
        std::fill(to.begin(), to.end(), static_cast<unsigned char>(255));
        bulk_copy(to.data() + out, from.data() + in, n);
        std::vector<unsigned char> expected(to.size(), 255);
        std::copy_n(from.begin() + long(in), n, expected.begin() + long(out));
        if (to != expected) FAIL(n, " bytes from ", in, " to ", out);
    }
    bulk_copy(nullptr, nullptr, 0);
}

TEST_CASE("copies that threads share are those of one thread") {
    test::Random random(4);
    std::vector<unsigned char> from(size_t{3} << 20), to(from.size());
    for (unsigned char& byte : from) byte = static_cast<unsigned char>(random.below(256));
    std::unique_ptr<Pool> pool;
    REQUIRE(Pool::open(3).get(pool).ok());
    for (Pool* threads : {pool.get(), static_cast<Pool*>(nullptr)}) {
        BulkCopies copies(threads);
        copies.finish();                                      // none
        for (const size_t n : {from.size(), size_t{5000}}) {  // shared, and too few
            std::fill(to.begin(), to.end(), static_cast<unsigned char>(0));
            for (size_t at = 0, piece = 0; at < n; at += piece) {
                piece = std::min<size_t>(1 + random.below(70000), n - at);
                copies.add(to.data() + at, from.data() + at, piece);
            }
            copies.finish();
            CHECK(std::equal(to.begin(), to.begin() + long(n), from.begin()));
        }
    }
}

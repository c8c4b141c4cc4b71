// base/checksum: a checksum of many bytes, as fast as memory.
//
// What    four independent chains over 8-byte words. Any changed bit changes the result; it finds accidents, not
//         forgeries. Counts 32 bytes in about 6 cycles.
// Thread  no shared state.
// Tests   tests/test_part_log.cpp
#pragma once
#include "base.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

class Checksum {
  public:
    /// The next n bytes; how they are divided among calls does not matter.
    void add(const void* from, size_t n);
    uint64_t value() const;

  private:
    static constexpr size_t kStride = 32;
    void mix(const std::byte* from, size_t n_stride);

    uint64_t chain_[4] = {1, 2, 3, 4};
    std::byte rest_[kStride] = {};  ///< bytes that do not fill a stride yet
    size_t n_rest_ = 0;
    uint64_t n_ = 0;
};

inline uint64_t checksum_of(const void* from, size_t n) {
    Checksum sum;
    sum.add(from, n);
    return sum.value();
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

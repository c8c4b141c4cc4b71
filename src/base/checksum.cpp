#include "checksum.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

void Checksum::mix(const std::byte* from, size_t n_stride) {
    uint64_t chain[4] = {chain_[0], chain_[1], chain_[2], chain_[3]};  // in registers
    for (size_t i = 0; i < n_stride; ++i, from += kStride) {
        uint64_t w[4];
        std::memcpy(w, from, sizeof w);
        for (int k = 0; k < 4; ++k) {
            chain[k] = (chain[k] ^ w[k]) * 0x9E3779B97F4A7C15ull;
            chain[k] ^= chain[k] >> 29;
        }
    }
    std::copy_n(chain, 4, chain_);
}

void Checksum::add(const void* from, size_t n) {
    const std::byte* bytes = static_cast<const std::byte*>(from);
    n_ += n;
    if (n_rest_ != 0) {
        const size_t k = std::min(n, kStride - n_rest_);
        std::copy_n(bytes, k, rest_ + n_rest_);
        n_rest_ += k;
        bytes += k;
        n -= k;
        if (n_rest_ < kStride) return;
        mix(rest_, 1);
        n_rest_ = 0;
    }
    mix(bytes, n / kStride);
    n_rest_ = n % kStride;
    std::copy_n(bytes + (n - n_rest_), n_rest_, rest_);
}

uint64_t Checksum::value() const {
    Fnv h;
    for (const uint64_t chain : chain_) h.mix(chain);
    h.bytes(rest_, n_rest_);
    h.mix(n_);
    return h.value;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

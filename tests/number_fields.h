// tests/number_fields: where the blocks of a number format keep their scales.
#pragma once
#include "../src/base/number.h"
#include "support.h"

#include <vector>

namespace test {

/// Offsets of binary16 fields in a block: the scale, then the minimum if there is one; empty for formats without.
inline std::vector<int> half_fields(auspex::detail::Type t) {
    using auspex::detail::Type;
    switch (t) {
        case Type::q4_1:
        case Type::q5_1:
        case Type::q4_k:
        case Type::q5_k: return {0, 2};
        case Type::q2_k: return {80, 82};
        case Type::q3_k: return {108};
        case Type::q6_k: return {208};
        case Type::f32:
        case Type::bf16:
        case Type::f16:
        case Type::mxfp4:
        case Type::nvfp4: return {};
        case Type::q4_0:
        case Type::q5_0:
        case Type::q8_0:
        case Type::iq4_nl:
        case Type::iq4_xs: return {0};
    }
    return {};
}

/// Makes the scale of each block a power of two from 2^lowest on, `n` of them, if the format's scales are exponents.
template <class Byte>
void set_exponents(auspex::detail::Type t, Byte* blocks, size_t n_byte, int lowest, uint32_t n, Random& random) {
    if (t != auspex::detail::Type::mxfp4) return;
    for (size_t at = 0; at < n_byte; at += auspex::detail::type_info(t).block_bytes)
        blocks[at] = static_cast<Byte>(128 + lowest + static_cast<int>(random.below(n)));
}

}  // namespace test

// tests/number_fields: where the blocks of a number format keep their binary16 fields.
#pragma once
#include "../src/base/number.h"

#include <vector>

namespace test {

/// Offsets in a block: the scale, then the minimum if there is one; empty for the float formats.
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
        case Type::f16: return {};
        case Type::q4_0:
        case Type::q5_0:
        case Type::q8_0:
        case Type::iq4_nl:
        case Type::iq4_xs: return {0};
    }
    return {};
}

}  // namespace test

// tests/encode: rows of every number format, for models and matrices that tests make.
#pragma once
#include "../src/base/number.h"

namespace test {

uint16_t f32_to_bf16(float f);  ///< round to nearest even

/// Encodes n elements, a multiple of the block; `to` needs no alignment. F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 round
/// exactly as the reference implementation does. The K and IQ4 types are least-squares fits, not bit-identical to any
/// other program's. A value that is not finite damages its own block only.
/// cost      one or two passes; K and IQ4: 20 to 40.
void encode(auspex::detail::Type t, const float* from, void* to, size_t n);

}  // namespace test

// base/number: f16, bf16 and the table of quantised formats.
//
// Owns    what a block of each GGUF type means: sizes, names, decoding, encoding.
// Reads   base.
// Serves  gguf (sizes), weights and machines (decoding, repacking), caches (encoding), tests and tools.
// Thread  none of its own; pure functions.
// Laws    Twin: tests/test_number.cpp, bit-exact block vectors.
#pragma once
#include "base.h"

#if defined(__BYTE_ORDER__) && defined(__ORDER_BIG_ENDIAN__)
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "auspex reads GGUF bytes in place and so needs a little-endian processor"
#endif
#endif

namespace auspex {
namespace detail {

/// GGUF tensor types by their file id.
enum class Type : uint32_t {
    f32 = 0,
    f16 = 1,
    q4_0 = 2,
    q4_1 = 3,
    q5_0 = 6,
    q5_1 = 7,
    q8_0 = 8,
    q2_k = 10,
    q3_k = 11,
    q4_k = 12,
    q5_k = 13,
    q6_k = 14,
    iq4_nl = 20,
    iq4_xs = 23,
    bf16 = 30,
};

struct TypeInfo {
    const char* name;      ///< "Q4_K", or null for an id that no file may use
    uint32_t n_block;      ///< elements in one block, at least 1
    uint32_t block_bytes;  ///< bytes of one block; 0 when the name is null
    bool supported;        ///< this library can compute with it
};
/// What is known of a file's type id; `name` is null when the id is unknown or removed.
TypeInfo type_info(uint32_t id);
inline TypeInfo type_info(Type t) { return type_info(static_cast<uint32_t>(t)); }
/// "F32 F16 BF16 Q8_0 ...", for error messages.
std::string supported_types();
/// Bytes of a row of n elements; n must be a multiple of the block.
inline uint64_t row_bytes(Type t, uint64_t n) {
    const TypeInfo i = type_info(t);
    return n / i.n_block * i.block_bytes;
}

float f16_to_f32(uint16_t h);  ///< exact; integer arithmetic, so subnormals survive any processor mode
uint16_t f32_to_f16(float f);  ///< round to nearest even, overflow to infinity
inline float bf16_to_f32(uint16_t h) {
    const uint32_t u = static_cast<uint32_t>(h) << 16;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}
uint16_t f32_to_bf16(float f);  ///< round to nearest even

/// The value of entry q of the IQ4_NL and IQ4_XS codebook.
extern const int8_t kIq4Values[16];

/// Decodes n elements, bit for bit as the format's definition says, whatever the compiler contracts
/// or reorders: every product below is exact in float32 (number.cpp tells why).
/// n is a multiple of the block; `from` needs no alignment. A type id that is not supported is a bug
/// of the caller: Gguf::parse lets none through.
void decode_row(Type t, const void* from, float* to, size_t n);

/// True for every supported type. F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 round exactly as the
/// reference (caches rely on it); the K and IQ4 types are least-squares fits for tests and tools,
/// of ordinary quality and not bit-identical to any other program's.
bool can_encode(Type t);
/// Encodes n elements, a multiple of the block; `to` needs no alignment. An input that is not finite
/// spoils its own block (or super-block) and nothing else.
/// cost      copies and the exact types: a pass or two; K and IQ4: some 20 to 40 passes per element.
void encode_row(Type t, const float* from, void* to, size_t n);

}  // namespace detail
}  // namespace auspex

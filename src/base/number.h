// base/number: the number formats of GGUF files.
//
// Owns    the one list of formats, their block sizes, decoding and encoding of rows; binary16 and bfloat16.
//         number_blocks.cpp has the formats with blocks of 32 or 64 elements, number_super.cpp those of 256.
// Thread  pure functions.
// Tests   tests/test_number.cpp
#pragma once
#include "base.h"

#if defined(__BYTE_ORDER__) && defined(__ORDER_BIG_ENDIAN__)
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "auspex reads GGUF bytes in place and so needs a little-endian processor"
#endif
#endif

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// The formats that this library computes with, one row each: enumerator, file id, name, elements of a block, bytes
/// of a block, whether a KV cache may use it. A row here makes the enumerator, the table and decode_row(), which calls
/// decode_<enumerator>(); every switch over Type elsewhere is complete and has no default, so that the compiler names
/// each place that a new row needs. docs/CONTRIBUTING.md has the steps.
#define AUSPEX_PLAIN_TYPES(X)    \
    X(f32, 0, "F32", 1, 4, true) \
    X(f16, 1, "F16", 1, 2, true) \
    X(bf16, 30, "BF16", 1, 2, false)
#define AUSPEX_BLOCK_TYPES(X)                \
    X(q4_0, 2, "Q4_0", 32, 18, true)         \
    X(q4_1, 3, "Q4_1", 32, 20, true)         \
    X(q5_0, 6, "Q5_0", 32, 22, false)        \
    X(q5_1, 7, "Q5_1", 32, 24, false)        \
    X(q8_0, 8, "Q8_0", 32, 34, true)         \
    X(q2_k, 10, "Q2_K", 256, 84, false)      \
    X(q3_k, 11, "Q3_K", 256, 110, false)     \
    X(q4_k, 12, "Q4_K", 256, 144, false)     \
    X(q5_k, 13, "Q5_K", 256, 176, false)     \
    X(q6_k, 14, "Q6_K", 256, 210, false)     \
    X(iq4_nl, 20, "IQ4_NL", 32, 18, false)   \
    X(iq4_xs, 23, "IQ4_XS", 256, 136, false) \
    X(mxfp4, 39, "MXFP4", 32, 17, false)     \
    X(nvfp4, 40, "NVFP4", 64, 36, false)

/// Formats that this library only knows by name, for error texts: file id, name, elements and bytes of a block.
#define AUSPEX_OTHER_TYPES(X) \
    X(9, "Q8_1", 32, 36)      \
    X(15, "Q8_K", 256, 292)   \
    X(16, "IQ2_XXS", 256, 66) \
    X(17, "IQ2_XS", 256, 74)  \
    X(18, "IQ3_XXS", 256, 98) \
    X(19, "IQ1_S", 256, 50)   \
    X(21, "IQ3_S", 256, 110)  \
    X(22, "IQ2_S", 256, 82)   \
    X(24, "I8", 1, 1)         \
    X(25, "I16", 1, 2)        \
    X(26, "I32", 1, 4)        \
    X(27, "I64", 1, 8)        \
    X(28, "F64", 1, 8)        \
    X(29, "IQ1_M", 256, 56)   \
    X(34, "TQ1_0", 256, 54)   \
    X(35, "TQ2_0", 256, 66)   \
    X(41, "Q1_0", 128, 18)    \
    X(42, "Q2_0", 64, 18)

/// The type of a tensor; the value is its id in the file.
enum class Type : uint32_t {
#define AUSPEX_ENUMERATOR(type, id, name, n_block, block_bytes, kv) type = id,
    AUSPEX_PLAIN_TYPES(AUSPEX_ENUMERATOR) AUSPEX_BLOCK_TYPES(AUSPEX_ENUMERATOR)
#undef AUSPEX_ENUMERATOR
};
/// All of them, for sweeps.
constexpr Type kAllTypes[] = {
#define AUSPEX_ELEMENT(type, id, name, n_block, block_bytes, kv) Type::type,
    AUSPEX_PLAIN_TYPES(AUSPEX_ELEMENT) AUSPEX_BLOCK_TYPES(AUSPEX_ELEMENT)
#undef AUSPEX_ELEMENT
};

/// How many of them a KV cache may use. Code that handles each of those by hand asserts this number.
constexpr int kKvTypeCount =
#define AUSPEX_COUNT(type, id, name, n_block, block_bytes, kv) +(kv ? 1 : 0)
    AUSPEX_PLAIN_TYPES(AUSPEX_COUNT) AUSPEX_BLOCK_TYPES(AUSPEX_COUNT);
#undef AUSPEX_COUNT

struct TypeInfo {
    const char* name;      ///< "Q4_K", or null for an id that no file may use
    uint32_t n_block;      ///< elements in one block, at least 1
    uint32_t block_bytes;  ///< bytes of one block; 0 when the name is null
    bool supported;        ///< this library can compute with it
    bool kv;               ///< a KV cache may hold it
};
/// What is known of a file's type id; `name` is null if the id is unknown or was removed from the format.
TypeInfo type_info(uint32_t id);
inline TypeInfo type_info(Type t) { return type_info(static_cast<uint32_t>(t)); }
/// "F32 F16 Q4_0 ...", for error messages.
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

/// The codebooks of four-bit codes: of IQ4_NL and IQ4_XS; of MXFP4 and NVFP4, twice the values of E2M1.
extern const int8_t kIq4Values[16], kFp4Values[16];
/// The codebook of a type that has one; else null.
const int8_t* codebook_of(Type t);
/// The scale of a block of MXFP4, 2^(e - 128): half of what E8M0 says, because kFp4Values are doubled.
inline float fp4_scale(uint8_t e) {
    const uint32_t u = e < 2 ? 0x200000u << e : (e - 1u) << 23;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}

/// A byte of NVFP4's scales as a code of unsigned E4M3, 0 .. 127. A file's 0x7f, the NaN of E4M3, is 0, as in the
/// reference implementation. Bit 7 is ignored: a file's 0xff is code 127, which stands for 480.
inline uint8_t e4m3_code(uint8_t byte) { return byte == 0x7f ? 0 : byte & 0x7f; }
/// Half of the number that a code of unsigned E4M3 stands for; exact.
inline float half_of_e4m3(uint32_t code) {
    if (code < 8) return static_cast<float>(static_cast<int>(code)) * 0.0009765625f;  // subnormal: half of code * 2^-9
    const uint32_t u = (code << 20) + (119u << 23);
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}
/// The scale of 16 elements of NVFP4: half of what the file's byte says, because kFp4Values are doubled.
inline float e4m3_scale(uint8_t byte) { return half_of_e4m3(e4m3_code(byte)); }
/// The codes of two neighbouring groups of NVFP4, 16 bytes, in the order of other blocks of 32: those of the first 16
/// elements in the low nibbles.
inline void join_nvfp4(const uint8_t* from, uint8_t* to) {
    for (int j = 0; j < 8; ++j) {
        to[j] = static_cast<uint8_t>((from[j] & 15) | from[8 + j] << 4);
        to[8 + j] = static_cast<uint8_t>(from[j] >> 4 | (from[8 + j] & 0xf0));
    }
}

/// Decodes n elements, bit for bit as the format defines them, whatever the compiler contracts or reorders: every
/// product is exact in float32 (number.cpp says why). n is a multiple of the block; `from` needs no alignment.
void decode_row(Type t, const void* from, float* to, size_t n);

/// Encodes n elements, a multiple of the block, in a format that a KV cache may use, rounded exactly as the reference
/// implementation does; `to` needs no alignment. A value that is not finite damages its own block only.
/// cost      one or two passes.
void encode_row(Type t, const float* from, void* to, size_t n);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// The table of formats, binary16 and bfloat16, and the rows of decode_row() and encode_row().
//
// Why decoding gives the same bits with or without fused multiply-add, in any order: a scale is a binary16 with at
// most 11 significant bits (MXFP4: a power of two, NVFP4: 4 bits), and its factors are small integers. The widest
// product has 11 + 7 + 5 = 23 bits (Q6_K: a scale up to 127, a code up to 31; the powers of two -128 and -32 cost one
// bit), so every product is exact in float32. That holds for subnormal scales too, which are normal in float32. At most
// one addition is left, rounded once.
#include "number_codec.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

const int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

const int8_t* codebook_of(Type t) {
    return t == Type::iq4_nl || t == Type::iq4_xs ? kIq4Values
           : t == Type::mxfp4 || t == Type::nvfp4 ? kFp4Values
                                                  : nullptr;
}

namespace number_impl {

constexpr TypeInfo kNoType = {nullptr, 1, 0, false, false};
constexpr uint32_t kMaxTypeId = 63;  ///< of the table; grow it with the format

constexpr TypeInfo info_of(uint32_t id) {
    switch (id) {
#define AUSPEX_ROW(type, id, name, n_block, block_bytes, kv) \
    case id: return {name, n_block, block_bytes, true, kv};
        AUSPEX_PLAIN_TYPES(AUSPEX_ROW)
        AUSPEX_BLOCK_TYPES(AUSPEX_ROW)
#undef AUSPEX_ROW
#define AUSPEX_ROW(id, name, n_block, block_bytes) \
    case id: return {name, n_block, block_bytes, false, false};
        AUSPEX_OTHER_TYPES(AUSPEX_ROW)
#undef AUSPEX_ROW
        default: return kNoType;  // not a Type: any number that a file holds
    }
}

/// info_of() as an array, so that a look-up is a load.
struct TypeTable {
    TypeInfo row[kMaxTypeId + 1] = {};
    constexpr TypeTable() {
        for (uint32_t id = 0; id <= kMaxTypeId; ++id) row[id] = info_of(id);
    }
};
constexpr TypeTable kTypes;
#define AUSPEX_CHECK(type, id, name, n_block, block_bytes, kv) static_assert(id <= kMaxTypeId, "raise kMaxTypeId");
AUSPEX_PLAIN_TYPES(AUSPEX_CHECK)
AUSPEX_BLOCK_TYPES(AUSPEX_CHECK)
#undef AUSPEX_CHECK

template <uint32_t kBlock, uint32_t kBytes, class BlockDecoder>
void decode_blocks(const uint8_t* from, float* to, size_t n, BlockDecoder decode) {
    AUSPEX_ASSERT(n % kBlock == 0);
    for (size_t i = 0; i < n; i += kBlock, from += kBytes) decode(from, to + i);
}
template <Type kType>
void encode_blocks(const float* from, uint8_t* to, size_t n, void (*encode)(const float*, uint8_t*)) {
    constexpr TypeInfo info = info_of(static_cast<uint32_t>(kType));
    AUSPEX_ASSERT(n % info.n_block == 0);
    for (size_t i = 0; i < n; i += info.n_block, to += info.block_bytes) encode(from + i, to);
}

}  // namespace number_impl

TypeInfo type_info(uint32_t id) {
    return id <= number_impl::kMaxTypeId ? number_impl::kTypes.row[id] : number_impl::kNoType;
}

std::string supported_types() {
    std::string s;
    for (const TypeInfo& info : number_impl::kTypes.row)
        if (info.supported) s += (s.empty() ? "" : " ") + std::string(info.name);
    return s;
}

namespace number_impl {

/// f16_to_f32() without a branch, so that rows are decoded by vectors.
inline float wider(uint16_t h) {
    const uint32_t exponent = h & 0x7c00u, mantissa = h & 0x3ffu;
    // A subnormal: mantissa * 2^-24, a normal float32 (or zero).
    const float small = static_cast<float>(static_cast<int>(mantissa)) * 5.9604644775390625e-8f;
    uint32_t u, bits;
    std::memcpy(&u, &small, 4);
    bits = ((h & 0x7fffu) << 13) + (exponent == 0x7c00u ? 224u << 23 : 112u << 23);
    bits = (exponent == 0 ? u : bits) | (h & 0x8000u) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

}  // namespace number_impl

float f16_to_f32(uint16_t h) { return number_impl::wider(h); }

uint16_t f32_to_f16(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    const uint32_t sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    uint32_t h;
    if (a > 0x7f800000u) {
        h = 0x7e00u | (a >> 13 & 0x1ffu);  // stays a NaN, and a quiet one
    } else if (a >= 0x477ff000u) {
        h = 0x7c00u;  // 65520 and above round away from the largest finite value
    } else if (a >= 0x38800000u) {
        h = (a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13;
    } else if (a < 0x33000000u) {
        h = 0;  // below half of the smallest subnormal
    } else {    // subnormal: the mantissa shifted to units of 2^-24
        const uint32_t mantissa = (a & 0x7fffffu) | 0x800000u, shift = 126 - (a >> 23);
        const uint32_t rest = mantissa & ((1u << shift) - 1), middle = 1u << (shift - 1);
        h = mantissa >> shift;
        if (rest > middle || (rest == middle && (h & 1u))) ++h;
    }
    return static_cast<uint16_t>(sign | h);
}

void decode_row(Type t, const void* from, float* to, size_t n) {
    namespace impl = number_impl;
    const uint8_t* p = static_cast<const uint8_t*>(from);
    switch (t) {
        case Type::f32:
            if (n) std::memcpy(to, p, n * 4);
            return;
        case Type::f16:
            for (size_t i = 0; i < n; ++i) to[i] = impl::wider(load<uint16_t>(p + 2 * i));
            return;
        case Type::bf16:
            for (size_t i = 0; i < n; ++i) to[i] = bf16_to_f32(load<uint16_t>(p + 2 * i));
            return;
#define AUSPEX_DECODE(type, id, name, n_block, block_bytes, kv) \
    case Type::type: return impl::decode_blocks<n_block, block_bytes>(p, to, n, impl::decode_##type);
            AUSPEX_BLOCK_TYPES(AUSPEX_DECODE)
#undef AUSPEX_DECODE
    }
    AUSPEX_ASSERT(false);  // not a Type
}

void encode_row(Type t, const float* from, void* to, size_t n) {
    static_assert(kKvTypeCount == 5, "a new KV cache format needs a case here");
    namespace impl = number_impl;
    uint8_t* p = static_cast<uint8_t*>(to);
    switch (t) {
        case Type::f32:
            if (n) std::memcpy(p, from, n * 4);
            return;
        case Type::f16:
            for (size_t i = 0; i < n; ++i) impl::put_half(p + 2 * i, from[i]);
            return;
        case Type::q8_0: return impl::encode_blocks<Type::q8_0>(from, p, n, impl::encode_q8_0);
        case Type::q4_0: return impl::encode_blocks<Type::q4_0>(from, p, n, impl::encode_q4_0);
        case Type::q4_1: return impl::encode_blocks<Type::q4_1>(from, p, n, impl::encode_q4_1);
        default: AUSPEX_ASSERT(false);  // no KV cache holds it
    }
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

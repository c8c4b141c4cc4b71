#include "kernels.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

bool strip_form(Type type, StripForm* out) {
    StripForm f;
    f.codebook = codebook_of(type);
    if (f.codebook) f.code = CodeForm::codebook;
    switch (type) {
        case Type::q4_0: f.offset = 8; break;
        case Type::q4_1: f.has_min = true; break;
        case Type::q5_0: f.code = CodeForm::five, f.offset = 16; break;
        case Type::q5_1: f.code = CodeForm::five, f.has_min = true; break;
        case Type::q8_0: f.code = CodeForm::byte; break;
        case Type::q2_k: f.n_group = 2, f.has_min = f.super = true; break;
        case Type::q3_k: f.code = CodeForm::six, f.n_group = 2, f.super = true, f.offset = 32; break;  // code + 28
        case Type::q4_k: f.has_min = f.super = true; break;
        case Type::q5_k: f.code = CodeForm::five, f.has_min = f.super = true; break;
        case Type::q6_k: f.code = CodeForm::six, f.n_group = 2, f.super = true, f.offset = 32; break;
        case Type::iq4_nl: break;
        case Type::iq4_xs: f.super = true; break;
        case Type::mxfp4: f.power = true; break;
        case Type::nvfp4: f.n_group = 2, f.e4m3 = true; break;
        case Type::f32:
        case Type::f16:
        case Type::bf16: return false;
    }
    *out = f;
    return true;
}

namespace pack_impl {

/// One block of 32 inputs of one row, with one byte per code; nothing is rounded. Codes are handled four at a time, as
/// the bytes of a word; masks keep shifts within the bytes.
struct Plain {
    uint16_t d = 0, d_min = 0;          ///< f16 bits; super forms: of the 256; power: the exponent byte
    int8_t scale[2] = {}, min[2] = {};  ///< super and e4m3 forms, for each half (both the same where one covers 32)
    uint32_t code[8] = {};              ///< unsigned bytes; byte form: the int8's bits
};

/// Both 6-bit numbers of sub-block g from the 12 scale bytes of Q4_K and Q5_K.
inline void six_bit_pair(const uint8_t* b, uint32_t g, Plain* p) {
    uint32_t sc, mn;
    if (g < 4) {
        sc = b[g] & 63u;
        mn = b[g + 4] & 63u;
    } else {
        const uint32_t both = b[g + 4], sc_top = b[g - 4], mn_top = b[g];
        sc = (both & 15) | (sc_top >> 6) << 4;
        mn = both >> 4 | (mn_top >> 6) << 4;
    }
    p->scale[0] = p->scale[1] = static_cast<int8_t>(sc);
    p->min[0] = p->min[1] = static_cast<int8_t>(mn);
}

inline uint32_t word(const uint8_t* p, uint32_t i) { return load<uint32_t>(p + 4 * i); }
/// 16 bytes, low nibbles first.
inline void nibbles(const uint8_t* qs, uint32_t* code) {
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 4; ++i) {
        code[i] = word(qs, i) & 0x0f0f0f0fu;
        code[i + 4] = word(qs, i) >> 4 & 0x0f0f0f0fu;
    }
}
/// Sets bit 4 of code i to bit i of qh. The product copies four bits to bit 0 of four bytes.
inline void fifth_bits(uint32_t qh, uint32_t* code) {
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 8; ++i) code[i] |= ((qh >> (4 * i) & 15u) * 0x00204081u & 0x01010101u) << 4;
}
/// The masked fields at `shift` of 32 bytes.
inline void fields(const uint8_t* from, uint32_t shift, uint32_t mask, uint32_t* code) {
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 8; ++i) code[i] = word(from, i) >> shift & mask * 0x01010101u;
}

/// Block `block` (of 32 inputs) of a row in the file's format.
template <Type kType>
inline void read_plain(const TypeInfo& info, const uint8_t* row, uint32_t block, Plain* p) {
    const uint32_t shift = info.n_block == 256 ? 3 : info.n_block == 64 ? 1 : 0;  // 2^shift blocks are one of the file
    const uint32_t g = block & ((1u << shift) - 1);
    const uint8_t* f = row + size_t{block >> shift} * info.block_bytes;
    uint32_t top[8];
    switch (kType) {
        case Type::q4_0:
        case Type::iq4_nl:
            p->d = load<uint16_t>(f);
            nibbles(f + 2, p->code);
            break;
        case Type::mxfp4:
            p->d = f[0];
            nibbles(f + 1, p->code);
            break;
        case Type::nvfp4: {
            uint8_t codes[16];
            const uint32_t first = 2 * g;  // of four groups
            for (uint32_t h = 0; h < 2; ++h) p->scale[h] = static_cast<int8_t>(e4m3_code(f[first + h]));
            join_nvfp4(f + 4 + 8 * first, codes);
            nibbles(codes, p->code);
            break;
        }
        case Type::q4_1:
            p->d = load<uint16_t>(f);
            p->d_min = load<uint16_t>(f + 2) ^ 0x8000u;  // the file adds the minimum, the form subtracts it
            nibbles(f + 4, p->code);
            break;
        case Type::q5_0:
            p->d = load<uint16_t>(f);
            nibbles(f + 6, p->code);
            fifth_bits(load<uint32_t>(f + 2), p->code);
            break;
        case Type::q5_1:
            p->d = load<uint16_t>(f);
            p->d_min = load<uint16_t>(f + 2) ^ 0x8000u;
            nibbles(f + 8, p->code);
            fifth_bits(load<uint32_t>(f + 4), p->code);
            break;
        case Type::q8_0:
            p->d = load<uint16_t>(f);
            std::memcpy(p->code, f + 2, 32);
            break;
        case Type::q2_k:
            p->d = load<uint16_t>(f + 80);
            p->d_min = load<uint16_t>(f + 82);
            for (uint32_t h = 0; h < 2; ++h) {
                p->scale[h] = f[2 * g + h] & 15;
                p->min[h] = static_cast<int8_t>(f[2 * g + h] >> 4);
            }
            fields(f + 16 + 32 * (g / 4), 2 * (g % 4), 3, p->code);
            break;
        case Type::q3_k:
            p->d = load<uint16_t>(f + 108);
            for (uint32_t h = 0; h < 2; ++h) {
                const uint32_t k = 2 * g + h;
                const uint32_t low = k < 8 ? f[96 + k] & 15u : f[96 + k - 8] >> 4;
                const uint32_t high = (f[96 + 8 + k % 4] >> (2 * (k / 4))) & 3u;
                p->scale[h] = static_cast<int8_t>(static_cast<int32_t>(low | high << 4) - 32);
            }
            // q - (bit ? 0 : 4) + 32 = q + 28 + 4 bit; no byte overflows
            fields(f + 32 + 32 * (g / 4), 2 * (g % 4), 3, p->code);
            fields(f, g, 1, top);
            for (uint32_t i = 0; i < 8; ++i) p->code[i] += 0x1c1c1c1cu + 4 * top[i];
            break;
        case Type::q4_k:
        case Type::q5_k:
            p->d = load<uint16_t>(f);
            p->d_min = load<uint16_t>(f + 2);
            six_bit_pair(f + 4, g, p);
            fields(f + (kType == Type::q4_k ? 16 : 48) + 32 * (g / 2), 4 * (g % 2), 15, p->code);
            if (kType == Type::q4_k) break;
            fields(f + 16, g, 1, top);
            for (uint32_t i = 0; i < 8; ++i) p->code[i] |= top[i] << 4;
            break;
        case Type::q6_k:
            p->d = load<uint16_t>(f + 208);
            std::memcpy(p->scale, f + 192 + 2 * g, 2);
            fields(f + 64 * (g / 4) + 32 * (g % 2), g % 4 / 2 * 4, 15, p->code);
            fields(f + 128 + 32 * (g / 4), 2 * (g % 4), 3, top);
            for (uint32_t i = 0; i < 8; ++i) p->code[i] |= top[i] << 4;
            break;
        case Type::iq4_xs: {
            p->d = load<uint16_t>(f);
            const uint32_t low = (f[4 + g / 2] >> (4 * (g % 2))) & 15u;
            const uint32_t high = (uint32_t{load<uint16_t>(f + 2)} >> (2 * g)) & 3u;
            p->scale[0] = p->scale[1] = static_cast<int8_t>(static_cast<int32_t>(low | high << 4) - 32);
            nibbles(f + 8 + 16 * g, p->code);
            break;
        }
        case Type::f32:
        case Type::f16:
        case Type::bf16: break;
    }
}

/// Offsets of a block's bytes in a strip.
struct Place {
    size_t head = 0, scales = 0, codes = 0;
};
Place place(const StripForm& f, uint32_t n_lane, uint32_t d_in, uint32_t block) {
    const uint32_t page = block / 8, left = d_in / 32 - 8 * page;
    Place p;
    p.head = size_t{page} * f.page_bytes(n_lane, 8);
    p.scales = p.head + f.head_bytes(n_lane) + size_t{block % 8} * f.scale_bytes(n_lane);
    p.codes = p.head + f.page_scale_bytes(n_lane, left < 8 ? left : 8) + size_t{block % 8} * f.code_bytes(n_lane);
    return p;
}

void put_f16(uint8_t* to, uint16_t v) { std::memcpy(to, &v, 2); }

inline void put_word(uint8_t* to, uint32_t v) { std::memcpy(to, &v, 4); }

/// Writes the codes of one row's block into its lane of the strip.
inline void write_codes(CodeForm form, uint32_t n_lane, uint32_t lane, const uint32_t* code, uint32_t bias,
                        uint8_t* to) {
    to += 4 * lane;
    const uint32_t step = 4 * n_lane;
    if (form == CodeForm::byte) {
        for (uint32_t i = 0; i < 8; ++i) put_word(to + step * i, code[i] ^ bias * 0x01010101u);
        return;
    }
    uint32_t more[2] = {};
#pragma GCC unroll 4
    for (uint32_t v = 0; v < 4; ++v) {
        const uint32_t a = code[v], b = code[4 + v];
        put_word(to + step * v, (a & 0x0f0f0f0fu) | (b & 0x0f0f0f0fu) << 4);
        const uint32_t a_top = a >> 4 & 0x0f0f0f0fu, b_top = b >> 4 & 0x0f0f0f0fu;
        if (form == CodeForm::five) {
            more[0] |= a_top << v | b_top << (4 + v);
        } else if (form == CodeForm::six) {
            more[0] |= a_top << (2 * v);
            more[1] |= b_top << (2 * v);
        }
    }
    if (form == CodeForm::five || form == CodeForm::six) put_word(to + step * 4, more[0]);
    if (form == CodeForm::six) put_word(to + step * 5, more[1]);
}

uint8_t read_code(CodeForm form, uint32_t n_lane, uint32_t lane, uint32_t i, uint8_t bias, const uint8_t* from) {
    const uint32_t h = i / 16, v = i / 4 % 4, at = 4 * lane + i % 4;
    if (form == CodeForm::byte) return from[4 * n_lane * (4 * h + v) + at] ^ bias;
    uint32_t c = (from[4 * n_lane * v + at] >> (4 * h)) & 15u;
    const uint8_t* more = from + 16 * n_lane;
    if (form == CodeForm::five) c |= ((more[at] >> (4 * h + v)) & 1u) << 4;
    if (form == CodeForm::six) c |= ((more[4 * n_lane * h + at] >> (2 * v)) & 3u) << 4;
    return static_cast<uint8_t>(c);
}

template <Type kType>
void pack_rows(const Matrix& m, const StripForm& f, const uint8_t* rows, const Token* ids, uint32_t n_row,
               uint8_t* to) {
    const TypeInfo info = type_info(kType);
    const uint32_t R = m.n_lane;
    const size_t row_step = static_cast<size_t>(row_bytes(kType, m.d_in));
    const uint32_t bias = m.kernels->biased_bytes ? 128 : 0;
    for (uint32_t b = 0; b < m.d_in / 32; ++b) {
        const Place at = place(f, R, m.d_in, b);
        uint8_t* s = to + at.scales;
        for (uint32_t lane = 0; lane < n_row; ++lane) {
            Plain p;
            read_plain<kType>(info, rows + (ids ? static_cast<size_t>(ids[lane]) : lane) * row_step, b, &p);
            if (f.super || f.e4m3) {
                if (f.super && b % 8 == 0) {
                    put_f16(to + at.head + 2 * lane, p.d);
                    if (f.has_min) put_f16(to + at.head + 2 * R + 2 * lane, p.d_min);
                }
                for (uint32_t g = 0; g < f.n_group; ++g) {
                    s[R * g + lane] = static_cast<uint8_t>(p.scale[g]);
                    if (f.has_min) s[R * (f.n_group + g) + lane] = static_cast<uint8_t>(p.min[g]);
                }
            } else if (f.power) {
                s[lane] = static_cast<uint8_t>(p.d);
            } else {
                put_f16(s + 2 * lane, p.d);
                if (f.has_min) put_f16(s + 2 * R + 2 * lane, p.d_min);
            }
            write_codes(f.code, R, lane, p.code, bias, to + at.codes);
        }
    }
}

}  // namespace pack_impl

void pack_strip(const Matrix& m, const std::byte* rows, const Token* ids, uint32_t n_row, std::byte* strip) {
    using namespace pack_impl;
    StripForm f;
    if (!strip_form(m.type, &f)) return;
    const uint8_t* from = reinterpret_cast<const uint8_t*>(rows);
    uint8_t* to = reinterpret_cast<uint8_t*>(strip);
    switch (m.type) {
#define AUSPEX_PACK(type, id, name, n_block, block_bytes, kv) \
    case Type::type: return pack_rows<Type::type>(m, f, from, ids, n_row, to);
        AUSPEX_BLOCK_TYPES(AUSPEX_PACK)
#undef AUSPEX_PACK
        case Type::f32:
        case Type::f16:
        case Type::bf16: return;
    }
}

void unpack_row(const Matrix& w, uint32_t row, float* to) {
    using namespace pack_impl;
    StripForm f;
    if (w.n_lane == 0 || !strip_form(w.type, &f)) {
        decode_row(w.type, w.data + w.stride * row, to, w.d_in);
        if (w.scale != 1)
            for (uint32_t i = 0; i < w.d_in; ++i) to[i] *= w.scale;
        return;
    }
    const uint32_t R = w.n_lane, lane = row % R;
    const uint8_t* base = reinterpret_cast<const uint8_t*>(w.data + w.stride * (row / R));
    const uint8_t bias = w.kernels->biased_bytes ? 128 : 0;
    for (uint32_t b = 0; b < w.d_in / 32; ++b) {
        const Place at = place(f, R, w.d_in, b);
        const uint8_t* s = base + at.scales;
        const uint8_t* head = f.super ? base + at.head : s;
        const float d = f.power ? fp4_scale(s[lane]) : f16_to_f32(load<uint16_t>(head + 2 * lane));
        const float d_min = f.has_min ? f16_to_f32(load<uint16_t>(head + 2 * R + 2 * lane)) : 0;
        int16_t q[32];
        for (uint32_t i = 0; i < 32; ++i) {
            const uint8_t c = read_code(f.code, R, lane, i, bias, base + at.codes);
            q[i] = f.codebook                 ? f.codebook[c]
                   : f.code == CodeForm::byte ? static_cast<int8_t>(c)
                                              : static_cast<int16_t>(c - f.offset);
        }
        // As in decode_row, every product before the matrix scale is exact in float32 (11 bits of an f16, 8 of a
        // scale, 5 of a code), so that no order and no fused multiply-add can change a bit. The matrix scale rounds
        // once.
        for (uint32_t i = 0; i < 32; ++i) {
            const uint32_t g = i / (32u / f.n_group);
            float scale = d, min = d_min;
            if (f.e4m3) scale = half_of_e4m3(s[R * g + lane]);
            if (f.super) {
                scale = d * static_cast<float>(static_cast<int8_t>(s[R * g + lane]));
                if (f.has_min) min = d_min * static_cast<float>(static_cast<int8_t>(s[R * (f.n_group + g) + lane]));
            }
            const float v = scale * static_cast<float>(q[i]);
            to[32 * size_t{b} + i] = (f.has_min ? v - min : v) * w.scale;
        }
    }
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

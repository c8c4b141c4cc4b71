#include "repack.h"
#ifndef AUSPEX_NO_VULKAN

#include <cstring>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace repack_impl {

inline uint32_t load32(const uint8_t* p) {
    uint32_t v;
    std::memcpy(&v, p, 4);
    return v;
}
inline uint16_t load16(const uint8_t* p) {
    uint16_t v;
    std::memcpy(&v, p, 2);
    return v;
}
inline void store32(uint8_t* p, uint32_t v) { std::memcpy(p, &v, 4); }

/// Reorders the bytes of four neighbouring columns to the device's order: 0 1 2 3 becomes 0 2 1 3.
inline uint32_t swap_middle(uint32_t v) { return (v & 0xff0000ffu) | ((v & 0xff00u) << 8) | ((v >> 8) & 0xff00u); }

/// The 16-byte unit with the values of row r that invocation t unpacks (columns 4t..4t+3 of each 16-column block).
/// `group` counts units of one invocation and row.
inline uint8_t* share(uint8_t* region, uint32_t group, uint32_t r, uint32_t t) {
    return region + 16u * (64u * group + 32u * (r >> 3) + (r & 7u) * 4u + t);
}

/// Splits the bit field of four neighbouring columns (low bits of each byte) between the halves of a word: columns 0
/// and 2 in the low half, 1 and 3 in the high half. The first of each begins at bit `at`, the second `width` bits
/// above.
inline uint32_t spread(uint32_t v, uint32_t mask, uint32_t at, uint32_t width) {
    const uint32_t low = (v & mask) | (((v >> 16) & mask) << width);
    const uint32_t high = ((v >> 8) & mask) | (((v >> 24) & mask) << width);
    return (low << at) | (high << (16u + at));
}

/// A device word: low nibbles of `a` as low nibbles, those of `b` as high nibbles.
inline uint32_t nibbles(uint32_t a, uint32_t b) { return swap_middle((a & 0x0f0f0f0fu) | ((b & 0x0f0f0f0fu) << 4)); }

// pack_* write 256 columns of one row into row r of a zeroed tile. `in`: the row's first block of these columns.

/// The 4-bit codes of Q4_K and Q5_K.
void k_nibbles(const uint8_t* qs, uint8_t* quants, uint32_t r) {
    for (uint32_t c = 0; c < 4; c++)
        for (uint32_t h = 0; h < 2; h++)
            for (uint32_t t = 0; t < 4; t++)
                store32(share(quants, c >> 1, r, t) + 4 * (2 * (c & 1) + h),
                        swap_middle(load32(qs + 32 * c + 16 * h + 4 * t)));
}

void fifth_bits(uint8_t* high, uint32_t r, uint32_t c, uint32_t hi, uint32_t h, uint32_t t, uint32_t bits) {
    uint8_t* p = high + 8u * (32u * (r >> 3) + (r & 7u) * 4u + t) + 4u * (c >> 1);
    store32(p, load32(p) | spread(bits, 1u, 8u * hi + 4u * (c & 1u) + 2u * h, 1));
}

/// d, dmin and the 12 bytes of scales and minimums that begin a block of Q4_K and Q5_K.
void k_head(const uint8_t* in, uint8_t* tile, uint32_t r) {
    const uint32_t a = load32(in + 4), b = load32(in + 8), c = load32(in + 12);
    const uint32_t scales[2] = {a & 0x3f3f3f3fu, (c & 0x0f0f0f0fu) | ((a >> 2) & 0x30303030u)};
    const uint32_t minimums[2] = {b & 0x3f3f3f3fu, ((c >> 4) & 0x0f0f0f0fu) | ((b >> 2) & 0x30303030u)};
    uint8_t* const to = tile + 16 * r;
    std::memcpy(to, in, 4);
    uint32_t low = 0, high[2] = {};
    for (uint32_t b = 0; b < 8; b++) {
        const uint32_t t = b & 3, half = 16 * (b >> 2), m = (minimums[b >> 2] >> (8 * t)) & 63u;
        low |= (m & 15u) << (half + 4 * t);
        high[t >> 1] |= (m >> 4) << (half + 8 * (t & 1) + 6);
    }
    for (uint32_t i = 0; i < 2; i++) store32(to + 4 + 4 * i, swap_middle(scales[i]) | high[i]);
    store32(to + 12, low);
}

void pack_q4_k(const uint8_t* in, uint8_t* tile, uint32_t r) {
    k_head(in, tile, r);
    k_nibbles(in + 16, tile + 256, r);
}

void pack_q5_k(const uint8_t* in, uint8_t* tile, uint32_t r) {
    k_head(in, tile, r);
    k_nibbles(in + 48, tile + 768, r);
    for (uint32_t c = 0; c < 4; c++)
        for (uint32_t h = 0; h < 2; h++)
            for (uint32_t t = 0; t < 4; t++)
                for (uint32_t hi = 0; hi < 2; hi++)
                    fifth_bits(tile + 256, r, c, hi, h, t, load32(in + 16 + 16 * h + 4 * t) >> (2 * c + hi));
}

/// `n` blocks of 32 with a half scale: Q4_0, Q5_0 with `five`, and with `pairs` (a half minimum, too) Q4_1 and Q5_1.
void pack_q45(const uint8_t* in, uint8_t* tile, uint32_t r, uint32_t n, bool five, bool pairs) {
    const uint32_t head = pairs ? 4 : 2, block = head + (five ? 20 : 16);
    uint8_t* const high = tile + (pairs ? 512 : 256);
    uint8_t* const quants = high + (five ? 512 : 0);
    for (uint32_t b = 0; b < n; b++) {
        const uint8_t* p = in + b * block;
        std::memcpy(tile + 8 * head * r + 2 * b, p, 2);
        if (pairs) {  // the file adds the minimum, the layout subtracts it
            const uint16_t minus = load16(p + 2) ^ 0x8000u;
            std::memcpy(tile + 32 * r + 16 + 2 * b, &minus, 2);
        }
        const uint8_t* qs = p + head + (five ? 4 : 0);
        const uint32_t c = b >> 1, hi = b & 1;
        for (uint32_t t = 0; t < 4; t++) {
            const uint32_t v = load32(qs + 4 * t);
            for (uint32_t h = 0; h < 2; h++) {
                uint8_t* to = share(quants, c >> 1, r, t) + 4 * (2 * (c & 1) + h);
                store32(to, load32(to) | swap_middle((v >> (4 * h)) & 0x0f0f0f0fu) << (4 * hi));
                if (five) {
                    const uint32_t bits = load32(p + head) >> (16 * h + 4 * t);
                    fifth_bits(high, r, c, hi, h, t,
                               (bits & 1) | ((bits & 2) << 7) | ((bits & 4) << 14) | ((bits & 8) << 21));
                }
            }
        }
    }
}

/// `low` and `high`: 256 values of 0..63 as Q6_K's file layout has them.
void q6_quants(const uint8_t* ql, const uint8_t* qh, uint8_t* tile, uint32_t r) {
    uint8_t* quants = tile + 288;
    uint8_t* tops = tile + 16 * 146;
    for (uint32_t half = 0; half < 2; half++)
        for (uint32_t h = 0; h < 2; h++)
            for (uint32_t t = 0; t < 4; t++) {
                const uint32_t a = load32(ql + 64 * half + 16 * h + 4 * t),
                               b = load32(ql + 64 * half + 32 + 16 * h + 4 * t);
                const uint32_t z = load32(qh + 32 * half + 16 * h + 4 * t);
                uint8_t* q = share(quants, half, r, t);
                store32(q + 4 * h, nibbles(a, b));
                store32(q + 4 * (2 + h), nibbles(a >> 4, b >> 4));
                for (uint32_t c = 0; c < 2; c++) {
                    uint8_t* p = share(tops, 0, r, t) + 4 * (2 * half + c);
                    const uint32_t low = spread(z >> (4 * c), 3u, h == 0 ? 4 : 0, 2);
                    const uint32_t high = spread(z >> (4 * c + 2), 3u, h == 0 ? 8 : 12, 2);
                    store32(p, load32(p) | low | high);
                }
            }
}

/// Sixteen signed scales as the device has them: plus 128, in the order of its words.
void signed_scales(const uint8_t* in, uint8_t* to) {
    for (uint32_t i = 0; i < 16; i += 4) store32(to + i, swap_middle(load32(in + i) ^ 0x80808080u));
}

void pack_q6_k(const uint8_t* in, uint8_t* tile, uint32_t r) {
    signed_scales(in + 192, tile + 16 * r);
    std::memcpy(tile + 256 + 2 * r, in + 208, 2);
    q6_quants(in, in + 128, tile, r);
}

/// Two bits of four neighbouring columns in each byte of `codes`, of block b = 0 .. 15 (shaders/quant/low_k.glsl).
void put_two_bits(uint8_t* quants, uint32_t r, uint32_t t, uint32_t b, uint32_t codes) {
    uint8_t* p = share(quants, 0, r, t) + 4 * (b >> 2);
    store32(p, load32(p) | spread(codes, 3u, 2u * (b & 3u), 8));
}

void pack_q2_k(const uint8_t* in, uint8_t* tile, uint32_t r) {
    for (uint32_t i = 0; i < 16; i += 4) store32(tile + 16 * r + i, swap_middle(load32(in + i)));
    std::memcpy(tile + 256 + 4 * r, in + 80, 4);
    for (uint32_t b = 0; b < 16; b++)
        for (uint32_t t = 0; t < 4; t++)
            put_two_bits(tile + 320, r, t, b,
                         load32(in + 16 + 32 * (b >> 3) + 16 * (b & 1) + 4 * t) >> (2 * ((b >> 1) & 3)));
}

/// Three bits and a 6-bit scale for 16 columns: (scale - 32) * (code - 4).
void pack_q3_k(const uint8_t* in, uint8_t* tile, uint32_t r) {
    const uint8_t *mask = in, *qs = in + 32, *scales = in + 96;
    uint8_t signed_bytes[16];
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t low = i < 8 ? scales[i] & 15u : scales[i - 8] >> 4;
        const uint32_t high = (scales[8 + (i & 3)] >> (2 * (i >> 2))) & 3u;
        signed_bytes[i] = static_cast<uint8_t>((low | (high << 4)) - 32u);
    }
    signed_scales(signed_bytes, tile + 16 * r);
    std::memcpy(tile + 256 + 2 * r, in + 108, 2);
    for (uint32_t b = 0; b < 16; b++)
        for (uint32_t t = 0; t < 4; t++) {
            const uint32_t from = 16 * (b & 1) + 4 * t;
            put_two_bits(tile + 800, r, t, b, load32(qs + 32 * (b >> 3) + from) >> (2 * ((b >> 1) & 3)));
            uint8_t* p = tile + 288 + 8 * (32 * (r >> 3) + (r & 7u) * 4 + t) + 4 * (b >> 3);
            store32(p,
                    load32(p) | spread(load32(mask + from) >> (b >> 1), 1u, 8u * ((b >> 2) & 1u) + 2u * (b & 3u), 1));
        }
}

/// Writes the codes of a 16-column block, biased by 128, into the bytes at `quants`.
void put_bytes(const int8_t* q, uint8_t* quants, uint32_t r, uint32_t block) {
    for (uint32_t t = 0; t < 4; t++) {
        uint32_t v;
        std::memcpy(&v, q + 4 * t, 4);
        store32(share(quants, block >> 2, r, t) + 4 * (block & 3), swap_middle(v ^ 0x80808080u));
    }
}

void pack_q8_0(const uint8_t* in, uint8_t* tile, uint32_t r, uint32_t n) {
    for (uint32_t b = 0; b < n; b++) {
        std::memcpy(tile + 16 * r + 2 * b, in + 34 * b, 2);
        int8_t q[32];
        std::memcpy(q, in + 34 * b + 2, 32);
        put_bytes(q, tile + 256, r, 2 * b);
        put_bytes(q + 16, tile + 256, r, 2 * b + 1);
    }
}

/// The 16 bytes of codes of columns 32 b .. 32 b + 31 (shaders/quant/codebook.glsl).
void put_nibbles(const uint8_t* qs, uint8_t* quants, uint32_t r, uint32_t b) {
    for (uint32_t t = 0; t < 4; t++) {
        const uint32_t v = load32(qs + 4 * t);
        store32(share(quants, b >> 2, r, t) + 4 * (b & 3), spread(v, 15u, 0, 4) | spread(v >> 4, 15u, 8, 4));
    }
}

void pack_iq4_nl(const uint8_t* in, uint8_t* tile, uint32_t r, uint32_t n) {
    for (uint32_t b = 0; b < n; b++) {
        std::memcpy(tile + 16 * r + 2 * b, in + 18 * b, 2);
        put_nibbles(in + 18 * b + 2, tile + 256, r, b);
    }
}

void pack_iq4_xs(const uint8_t* in, uint8_t* tile, uint32_t r) {
    std::memcpy(tile + 128 + 2 * r, in, 2);
    for (uint32_t b = 0; b < 8; b++) {
        const uint32_t low = (in[4 + b / 2] >> (4 * (b & 1))) & 15u,
                       high = (static_cast<uint32_t>(load16(in + 2)) >> (2 * b)) & 3u;
        tile[8 * r + b] = static_cast<uint8_t>((low | (high << 4)) - 32u);
        put_nibbles(in + 8 + 16 * b, tile + 160, r, b);
    }
}

void pack_mxfp4(const uint8_t* in, uint8_t* tile, uint32_t r, uint32_t n) {
    for (uint32_t b = 0; b < n; b++) {
        tile[8 * r + b] = in[17 * b];
        put_nibbles(in + 17 * b + 1, tile + 128, r, b);
    }
}

/// scale: the matrix scale of the row's half of the tile.
void pack_nvfp4(const uint8_t* in, uint8_t* tile, uint32_t r, uint32_t n, float scale) {
    std::memcpy(tile + 256 + 4 * (r >> 3), &scale, 4);
    for (uint32_t b = 0; b < n; b++, in += 36) {
        for (uint32_t g = 0; g < 4; g++) tile[16 * r + 4 * b + g] = e4m3_code(in[g]);
        for (uint32_t h = 0; h < 2; h++) {
            uint8_t codes[16];
            join_nvfp4(in + 4 + 16 * h, codes);
            put_nibbles(codes, tile + 272, r, 2 * b + h);
        }
    }
}

/// Values of `size` bytes: a unit holds four values of one block (4 bytes each) or of two neighbouring blocks (2).
void pack_plain(const uint8_t* in, uint8_t* tile, uint32_t r, uint32_t n, uint32_t size) {
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t block = k >> 4, t = (k >> 2) & 3, i = k & 3;
        uint8_t* to = size == 2 ? share(tile, block >> 1, r, t) + 8 * (block & 1) : share(tile, block, r, t);
        std::memcpy(to + size * i, in + size * k, size);
    }
}

/// Writes columns [256 c, 256 c + n) of a row into row r of a zeroed tile.
void pack(Type type, const uint8_t* row, float scale, uint32_t c, uint32_t n, uint8_t* tile, uint32_t r) {
    const uint8_t* in = row + row_bytes(type, uint64_t{c} * kTileColumns);
    switch (type) {
        case Type::q4_k: return pack_q4_k(in, tile, r);
        case Type::q5_k: return pack_q5_k(in, tile, r);
        case Type::q6_k: return pack_q6_k(in, tile, r);
        case Type::q3_k: return pack_q3_k(in, tile, r);
        case Type::q8_0: return pack_q8_0(in, tile, r, n / 32);
        case Type::iq4_nl: return pack_iq4_nl(in, tile, r, n / 32);
        case Type::q4_0: return pack_q45(in, tile, r, n / 32, false, false);
        case Type::q5_0: return pack_q45(in, tile, r, n / 32, true, false);
        case Type::f16:
        case Type::bf16: return pack_plain(in, tile, r, n, 2);
        case Type::f32: return pack_plain(in, tile, r, n, 4);
        case Type::q4_1: return pack_q45(in, tile, r, n / 32, false, true);
        case Type::q5_1: return pack_q45(in, tile, r, n / 32, true, true);
        case Type::q2_k: return pack_q2_k(in, tile, r);
        case Type::iq4_xs: return pack_iq4_xs(in, tile, r);
        case Type::mxfp4: return pack_mxfp4(in, tile, r, n / 32);
        case Type::nvfp4: return pack_nvfp4(in, tile, r, n / 64, scale);
    }
}

}  // namespace repack_impl

Layout layout_of(Type type) {
    switch (type) {
        case Type::q4_k: return Layout::q4_k;
        case Type::q5_k: return Layout::q5_k;
        case Type::q6_k: return Layout::q6_k;
        case Type::q3_k: return Layout::q3_k;
        case Type::q2_k: return Layout::q2_k;
        case Type::q8_0: return Layout::q8_0;
        case Type::iq4_nl: return Layout::iq4_nl;
        case Type::iq4_xs: return Layout::iq4_xs;
        case Type::mxfp4: return Layout::mxfp4;
        case Type::nvfp4: return Layout::nvfp4;
        case Type::q4_0: return Layout::q4_0;
        case Type::q5_0: return Layout::q5_0;
        case Type::f16: return Layout::f16;
        case Type::bf16: return Layout::bf16;
        case Type::f32: return Layout::f32;
        case Type::q4_1: return Layout::q4_1;
        case Type::q5_1: return Layout::q5_1;
    }
    AUSPEX_ASSERT(false);  // not a Type
    return Layout::f32;
}

const char* layout_name(Layout layout) {
    switch (layout) {
#define AUSPEX_NAME(layout, units, product) \
    case Layout::layout: return #layout;
        AUSPEX_LAYOUTS(AUSPEX_NAME)
#undef AUSPEX_NAME
    }
    return "";
}

uint32_t tile_bytes(Layout layout) {
    switch (layout) {
#define AUSPEX_BYTES(layout, units, product) \
    case Layout::layout: return 16 * units;
        AUSPEX_LAYOUTS(AUSPEX_BYTES)
#undef AUSPEX_BYTES
    }
    return 0;
}

bool has_product(Layout layout) {
    switch (layout) {
#define AUSPEX_PRODUCT(layout, units, product) \
    case Layout::layout: return product;
        AUSPEX_LAYOUTS(AUSPEX_PRODUCT)
#undef AUSPEX_PRODUCT
    }
    return false;
}

Tiling tiling(Type type, uint64_t d_out, uint64_t d_in, bool interleaved, uint32_t n_stack) {
    Tiling t;
    t.layout = layout_of(type);
    t.d_out = d_out;
    t.d_in = d_in;
    t.interleaved = interleaved;
    const uint64_t rows = interleaved ? kTileRows / 2 : kTileRows;
    t.n_stack = n_stack;
    t.n_row = static_cast<uint32_t>((d_out + rows - 1) / rows) * n_stack;
    t.n_col = static_cast<uint32_t>((d_in + kTileColumns - 1) / kTileColumns);
    return t;
}

void repack(const Tiling& t, Type type, const MatrixRows& a, const MatrixRows& b, uint32_t first, uint32_t n,
            std::byte* to) {
    const uint64_t pitch = row_bytes(type, t.d_in);
    const uint32_t bytes = tile_bytes(t.layout), n_one = t.n_row / t.n_stack;
    const bool fused = t.interleaved && !b.rows;  // each matrix of `a` is followed by its second
    uint8_t tile[16384];
#define AUSPEX_FITS(layout, units, product) static_assert(16 * units <= sizeof tile);
    AUSPEX_LAYOUTS(AUSPEX_FITS)
#undef AUSPEX_FITS
    for (uint32_t k = first; k < first + n; k++) {
        const uint64_t i = k % n_one, i_stack = k / n_one, skip = i_stack * (fused ? 2 : 1) * t.d_out * pitch;
        const uint8_t* const from_a = static_cast<const uint8_t*>(a.rows) + skip;
        const uint8_t* const from_b =
            fused ? from_a + t.d_out * pitch : static_cast<const uint8_t*>(b.rows) + (b.rows ? skip : 0);
        const float scale_a = a.scale_of(i_stack), scale_b = fused ? scale_a : b.scale_of(i_stack);
        for (uint32_t c = 0; c < t.n_col; c++) {
            const uint64_t left = t.d_in - uint64_t{c} * kTileColumns;
            const uint32_t n_here = left < kTileColumns ? static_cast<uint32_t>(left) : kTileColumns;
            std::memset(tile, 0, bytes);
            for (uint32_t r = 0; r < kTileRows; r++) {
                const bool second = t.interleaved && r >= kTileRows / 2;
                const uint64_t row = t.interleaved ? i * (kTileRows / 2) + (r & 7u) : i * kTileRows + r;
                if (row < t.d_out)
                    repack_impl::pack(type, (second ? from_b : from_a) + row * pitch, second ? scale_b : scale_a, c,
                                      n_here, tile, r);
            }
            std::memcpy(to, tile, bytes);
            to += bytes;
        }
    }
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

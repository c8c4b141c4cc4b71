#include "inflate.h"
#ifndef AUSPEX_NO_VULKAN

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace inflate_impl {

constexpr uint32_t kMaxBits = 15;       // of a code
constexpr uint32_t kMaxLiterals = 288;  // literal and length codes, two of them unused
constexpr uint32_t kMaxDistances = 32;  // two of them unused

// RFC 1951, 3.2.5: length codes 257..285 and distance codes 0..29.
constexpr uint16_t kLengthBase[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                      31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
constexpr uint8_t kLengthBits[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                     2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
constexpr uint16_t kDistanceBase[30] = {1,    2,    3,    4,    5,    7,    9,    13,    17,    25,
                                        33,   49,   65,   97,   129,  193,  257,  385,   513,   769,
                                        1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
constexpr uint8_t kDistanceBits[30] = {0, 0, 0, 0, 1, 1, 2, 2,  3,  3,  4,  4,  5,  5,  6,
                                       6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13};
// RFC 1951, 3.2.7: the order in which the code length codes are sent.
constexpr uint8_t kOrder[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};

struct Input {
    const uint8_t* data;
    size_t size, at = 0;
    uint32_t held = 0, n_held = 0;  // bits read ahead, lowest first
    bool short_read = false;

    uint32_t bits(uint32_t n) {
        while (n_held < n) {
            if (at == size) {
                short_read = true;
                return 0;
            }
            held |= static_cast<uint32_t>(data[at++]) << n_held;
            n_held += 8;
        }
        const uint32_t v = held & ((1u << n) - 1u);
        held >>= n;
        n_held -= n;
        return v;
    }
};

// A canonical Huffman code: how many codes of each length, and the symbols in order of their codes.
struct Tree {
    uint16_t count[kMaxBits + 1] = {};
    uint16_t symbol[kMaxLiterals] = {};

    // False if the lengths give more codes than exist, or fewer and not exactly one.
    bool build(const uint8_t* length, uint32_t n) {
        for (uint16_t& c : count) c = 0;
        for (uint32_t i = 0; i < n; ++i) ++count[length[i]];
        const uint32_t used = n - count[0];
        count[0] = 0;
        int32_t left = 1;
        for (uint32_t b = 1; b <= kMaxBits; ++b) {
            left = left * 2 - count[b];
            if (left < 0) return false;
        }
        if (left > 0 && used > 1) return false;
        uint16_t next[kMaxBits + 2] = {};
        for (uint32_t b = 1; b <= kMaxBits; ++b) next[b + 1] = static_cast<uint16_t>(next[b] + count[b]);
        for (uint32_t i = 0; i < n; ++i)
            if (length[i]) symbol[next[length[i]]++] = static_cast<uint16_t>(i);
        return true;
    }
    // The next symbol, or UINT32_MAX if the bits are no code or the input ends.
    uint32_t decode(Input& in) const {
        uint32_t code = 0, first = 0, index = 0;
        for (uint32_t b = 1; b <= kMaxBits; ++b) {
            code |= in.bits(1);
            if (in.short_read) return UINT32_MAX;
            if (code < first + count[b]) return symbol[index + code - first];
            index += count[b];
            first = (first + count[b]) << 1;
            code <<= 1;
        }
        return UINT32_MAX;
    }
};

struct Output {
    uint8_t* data;
    size_t size, at = 0;
};

// Reads the two trees of a dynamic block. Null, or what is wrong.
const char* read_trees(Input& in, Tree* literals, Tree* distances) {
    const uint32_t n_literal = in.bits(5) + 257, n_distance = in.bits(5) + 1, n_order = in.bits(4) + 4;
    if (in.short_read) return "the stream ends early";
    if (n_literal > 286 || n_distance > 30) return "a block declares too many codes";
    uint8_t length[kMaxLiterals + kMaxDistances] = {};
    for (uint32_t i = 0; i < n_order; ++i) length[kOrder[i]] = static_cast<uint8_t>(in.bits(3));
    Tree lengths;
    if (!lengths.build(length, 19)) return "the code of the code lengths is damaged";
    uint8_t all[kMaxLiterals + kMaxDistances] = {};
    for (uint32_t i = 0; i < n_literal + n_distance;) {
        const uint32_t s = lengths.decode(in);
        if (s == UINT32_MAX) return "a code length is damaged or missing";
        if (s < 16) {
            all[i++] = static_cast<uint8_t>(s);
            continue;
        }
        if (s == 16 && i == 0) return "a repeated code length has nothing before it";
        const uint8_t value = s == 16 ? all[i - 1] : uint8_t(0);
        const uint32_t times = s == 16 ? 3 + in.bits(2) : s == 17 ? 3 + in.bits(3) : 11 + in.bits(7);
        if (times > n_literal + n_distance - i) return "repeated code lengths run over their end";
        for (uint32_t r = 0; r < times; ++r) all[i++] = value;
    }
    if (in.short_read) return "the stream ends early";
    if (all[256] == 0) return "a block has no end code";
    if (!literals->build(all, n_literal) || !distances->build(all + n_literal, n_distance))
        return "a block's code is damaged";
    return nullptr;
}

const char* read_codes(Input& in, Output& out, const Tree& literals, const Tree& distances) {
    for (;;) {
        const uint32_t s = literals.decode(in);
        if (s == UINT32_MAX) return "a code is damaged or missing";
        if (s == 256) return nullptr;
        if (s < 256) {
            if (out.at == out.size) return "the stream holds more bytes than expected";
            out.data[out.at++] = static_cast<uint8_t>(s);
            continue;
        }
        if (s > 285) return "a length code is out of range";
        const uint32_t n = kLengthBase[s - 257] + in.bits(kLengthBits[s - 257]);
        const uint32_t d = distances.decode(in);
        if (d >= 30) return "a distance code is damaged or missing";
        const uint32_t back = kDistanceBase[d] + in.bits(kDistanceBits[d]);
        if (in.short_read) return "the stream ends early";
        if (back > out.at) return "a distance points before the beginning";
        if (n > out.size - out.at) return "the stream holds more bytes than expected";
        for (uint32_t i = 0; i < n; ++i, ++out.at) out.data[out.at] = out.data[out.at - back];  // may overlap
    }
}

const char* read_blocks(Input& in, Output& out) {
    for (bool last = false; !last;) {
        last = in.bits(1) != 0;
        const uint32_t kind = in.bits(2);
        if (in.short_read) return "the stream ends early";
        if (kind == 0) {
            in.held = in.n_held = 0;  // skips to the next byte; at most 7 bits are held here
            const uint32_t n = in.bits(16), inverse = in.bits(16);
            if (in.short_read) return "the stream ends early";
            if (n != (~inverse & 0xffffu)) return "a stored block's size is damaged";
            if (n > in.size - in.at) return "the stream ends early";
            if (n > out.size - out.at) return "the stream holds more bytes than expected";
            std::memcpy(out.data + out.at, in.data + in.at, n);
            in.at += n;
            out.at += n;
            continue;
        }
        if (kind == 3) return "a block has an unknown kind";
        Tree literals, distances;
        if (kind == 1) {
            uint8_t length[kMaxLiterals];
            for (uint32_t i = 0; i < kMaxLiterals; ++i) length[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
            literals.build(length, kMaxLiterals);
            for (uint32_t i = 0; i < kMaxDistances; ++i) length[i] = 5;
            distances.build(length, kMaxDistances);
        } else if (const char* wrong = read_trees(in, &literals, &distances)) {
            return wrong;
        }
        if (const char* wrong = read_codes(in, out, literals, distances)) return wrong;
    }
    return nullptr;
}

uint32_t adler32(const uint8_t* data, size_t size) {
    uint32_t a = 1, b = 0;
    for (size_t at = 0; at < size;) {
        const size_t end = size - at > 5552 ? at + 5552 : size;  // the longest run without overflow
        for (; at < end; ++at) b += a += data[at];
        a %= 65521;
        b %= 65521;
    }
    return b << 16 | a;
}

}  // namespace inflate_impl

Status inflate_zlib(Span<const std::byte> from, Span<std::byte> to) {
    namespace impl = inflate_impl;
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(from.data());
    auto bad = [&](const char* why, size_t at) {
        return fail(Code::bad_file, "a zlib stream of ", from.size(), " bytes is damaged at byte ", at, ": ", why, ".");
    };
    if (from.size() < 6) return bad("it is shorter than its header and checksum", from.size());
    if ((bytes[0] & 15) != 8 || bytes[0] >> 4 > 7 || (bytes[0] * 256u + bytes[1]) % 31 != 0 || (bytes[1] & 32))
        return bad("its header is not that of zlib", 0);
    impl::Input in{bytes + 2, from.size() - 6};
    impl::Output out{reinterpret_cast<uint8_t*>(to.data()), to.size()};
    if (const char* wrong = impl::read_blocks(in, out)) return bad(wrong, in.at + 2);
    if (out.at != out.size) return bad("it holds fewer bytes than expected", in.at + 2);
    if (in.at != in.size) return bad("bytes follow its end", in.at + 2);
    const uint8_t* c = bytes + from.size() - 4;
    const uint32_t promised = uint32_t(c[0]) << 24 | uint32_t(c[1]) << 16 | uint32_t(c[2]) << 8 | c[3];
    if (impl::adler32(out.data, out.size) != promised) return bad("its checksum does not match", from.size() - 4);
    return {};
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

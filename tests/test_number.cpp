// Tests of base/number: block sizes, exact decoding, reference rounding, quantisation error.
#include "../src/base/number.h"
#include "encode.h"
#include "number_fields.h"
#include "support.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace {

using namespace auspex::detail;
using Bytes = std::vector<uint8_t>;

uint32_t bits(float f) { return load<uint32_t>(&f); }
float from_bits(uint32_t u) { return load<float>(&u); }

double half(const uint8_t* b, int at) { return f16_to_f32(load<uint16_t>(b + at)); }
int nibble(int byte, int high) { return high ? byte >> 4 : byte & 15; }
int bit(int value, int i) { return value >> i & 1; }

/// Element i of a block straight from the format's table, one element at a time and in double: slow,
/// and sharing nothing with the code under test but the binary16 of the scales.
double element(Type t, const uint8_t* b, int i) {
    const int j = i % 16, hi = i / 16;                                                // simple blocks
    const int n = i / 128, r = i % 128 / 32, l = i % 32, g16 = i / 16, g32 = i / 32;  // super-blocks
    int sc = 0, mn = 0;
    if (t == Type::q4_k || t == Type::q5_k) {
        const uint8_t* p = b + 4;
        sc = g32 < 4 ? p[g32] & 63 : (p[g32 + 4] & 15) | (p[g32 - 4] >> 6) << 4;
        mn = g32 < 4 ? p[g32 + 4] & 63 : (p[g32 + 4] >> 4) | (p[g32] >> 6) << 4;
    }
    switch (t) {
        case Type::f32: return load<float>(b);
        case Type::f16: return half(b, 0);
        case Type::bf16: return from_bits(static_cast<uint32_t>(load<uint16_t>(b)) << 16);
        case Type::q8_0: return half(b, 0) * static_cast<int8_t>(b[2 + i]);
        case Type::q4_0: return half(b, 0) * (nibble(b[2 + j], hi) - 8);
        case Type::q4_1: return half(b, 0) * nibble(b[4 + j], hi) + half(b, 2);
        case Type::q5_0: return half(b, 0) * (nibble(b[6 + j], hi) + 16 * bit(b[2 + i / 8], i % 8) - 16);
        case Type::q5_1: return half(b, 0) * (nibble(b[8 + j], hi) + 16 * bit(b[4 + i / 8], i % 8)) + half(b, 2);
        case Type::iq4_nl: return half(b, 0) * kIq4Values[nibble(b[2 + j], hi)];
        case Type::mxfp4: {  // E2M1: a sign, two bits of exponent, one of mantissa
            const int n = nibble(b[1 + j], hi), exponent = n >> 1 & 3, mantissa = n & 1;
            const double v = exponent == 0 ? mantissa * 0.5 : std::ldexp(1 + mantissa * 0.5, exponent - 1);
            return std::ldexp(n & 8 ? -v : v, b[0] - 127);
        }
        case Type::nvfp4: {  // E2M1 times unsigned E4M3, for each 16
            const int n = nibble(b[4 + 8 * g16 + i % 8], i / 8 % 2), exponent = n >> 1 & 3, mantissa = n & 1;
            const double v = exponent == 0 ? mantissa * 0.5 : std::ldexp(1 + mantissa * 0.5, exponent - 1);
            const int e = b[g16] >> 3 & 15, m = b[g16] & 7;
            const double scale = b[g16] == 0x7f ? 0 : e == 0 ? std::ldexp(m, -9) : std::ldexp(1 + m / 8.0, e - 7);
            return scale * (n & 8 ? -v : v);
        }
        case Type::q2_k:
            return half(b, 80) * (b[g16] & 15) * (b[16 + 32 * n + l] >> (2 * r) & 3) - half(b, 82) * (b[g16] >> 4);
        case Type::q3_k: {
            const int low = g16 < 8 ? b[96 + g16] & 15 : b[96 + g16 - 8] >> 4;
            const int high = b[96 + 8 + g16 % 4] >> (2 * (g16 / 4)) & 3;
            const int q = (b[32 + 32 * n + l] >> (2 * r) & 3) - (bit(b[l], 4 * n + r) ? 0 : 4);
            return half(b, 108) * (low + 16 * high - 32) * q;
        }
        case Type::q4_k: return half(b, 0) * sc * nibble(b[16 + 32 * (g32 / 2) + l], g32 % 2) - half(b, 2) * mn;
        case Type::q5_k:
            return half(b, 0) * sc * (nibble(b[48 + 32 * (g32 / 2) + l], g32 % 2) + 16 * bit(b[16 + l], g32)) -
                   half(b, 2) * mn;
        case Type::q6_k: {
            const int low = nibble(b[64 * n + 32 * (r % 2) + l], r / 2), high = b[128 + 32 * n + l] >> (2 * r) & 3;
            return half(b, 208) * static_cast<int8_t>(b[192 + g16]) * (low + 16 * high - 32);
        }
        case Type::iq4_xs: {
            const int ls = nibble(b[4 + g32 / 2], g32 % 2) + 16 * (load<uint16_t>(b + 2) >> (2 * g32) & 3);
            return half(b, 0) * (ls - 32) * kIq4Values[nibble(b[8 + 16 * g32 + j], i / 16 % 2)];
        }
    }
    return 0;
}

/// Root of the mean squared error of a round trip, over that of the values.
double round_trip_error(Type t, const std::vector<float>& x) {
    Bytes packed(static_cast<size_t>(row_bytes(t, x.size())));
    std::vector<float> back(x.size());
    test::encode(t, x.data(), packed.data(), x.size());
    decode_row(t, packed.data(), back.data(), x.size());
    double error = 0, power = 0;
    for (size_t i = 0; i < x.size(); ++i) {
        error += std::pow(double(x[i]) - double(back[i]), 2);
        power += double(x[i]) * double(x[i]);
    }
    return std::sqrt(error / power);
}

Bytes unhex(const std::string& s) {
    const auto digit = [](char c) { return static_cast<uint8_t>(c <= '9' ? c - '0' : c - 'a' + 10); };
    Bytes b;
    for (size_t i = 0; i + 1 < s.size(); i += 2) b.push_back(static_cast<uint8_t>(digit(s[i]) << 4 | digit(s[i + 1])));
    return b;
}
/// The text of the next "key": "text" after `at`, which moves past it; empty when there is none before `end`.
std::string next_field(const std::string& json, const std::string& key, size_t& at, size_t end) {
    const size_t k = json.find('"' + key + '"', at);
    if (k == std::string::npos || k >= end) return {};
    const size_t open = json.find('"', json.find(':', k)) + 1, close = json.find('"', open);
    at = close;
    return json.substr(open, close - open);
}

}  // namespace

TEST_CASE("every type id has its name and size, and removed ids have none") {
    CHECK(std::string(type_info(Type::q4_k).name) == "Q4_K");
    CHECK(type_info(Type::q4_k).block_bytes == 144);
    CHECK(type_info(Type::q6_k).block_bytes == 210);
    CHECK(std::string(type_info(39u).name) == "MXFP4");
    CHECK(type_info(39u).supported);
    CHECK(std::string(type_info(40u).name) == "NVFP4");
    CHECK(type_info(40u).supported);
    CHECK_FALSE(type_info(21u).supported);
    CHECK(std::string(type_info(21u).name) == "IQ3_S");
    CHECK(std::string(type_info(42u).name) == "Q2_0");
    for (const uint32_t removed : {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u, 43u, 137u, 0xffffffffu}) {
        CHECK(type_info(removed).name == nullptr);
        CHECK_FALSE(type_info(removed).supported);
    }
    int n_supported = 0;
    for (uint32_t id = 0; id < 64; ++id) n_supported += type_info(id).supported;
    CHECK(n_supported == int(sizeof kAllTypes / sizeof kAllTypes[0]));
    for (const Type t : kAllTypes) {
        CHECK(type_info(t).supported);
        CHECK(supported_types().find(type_info(t).name) != std::string::npos);
    }
    CHECK(supported_types().find("IQ3_S") == std::string::npos);
    CHECK(row_bytes(Type::q4_k, 512) == 288);
    CHECK(row_bytes(Type::f16, 3) == 6);
}

TEST_CASE("all 65536 binary16 values survive a round trip") {
    int wrong = 0;
    for (uint32_t h = 0; h < 65536; ++h) {
        const float f = f16_to_f32(static_cast<uint16_t>(h));
        const uint16_t back = f32_to_f16(f);
        const bool nan = (h & 0x7c00u) == 0x7c00u && (h & 0x3ffu) != 0;
        if (nan ? !((back & 0x7c00u) == 0x7c00u && (back & 0x3ffu) != 0) : back != h) ++wrong;
    }
    CHECK(wrong == 0);
    CHECK(f16_to_f32(0x3c00) == 1.0f);
    CHECK(f16_to_f32(0xc000) == -2.0f);
    CHECK(f16_to_f32(0x7bff) == 65504.0f);
    CHECK(f16_to_f32(0x0001) == std::ldexp(1.0f, -24));
    CHECK(f16_to_f32(0x83ff) == -1023 * std::ldexp(1.0f, -24));
    CHECK(bits(f16_to_f32(0x8000)) == 0x80000000u);
    CHECK(std::isinf(f16_to_f32(0x7c00)));
    CHECK(std::isnan(f16_to_f32(0x7e01)));
}

TEST_CASE("float32 to binary16 rounds to nearest even at every boundary") {
    int wrong = 0;
    for (uint32_t h = 0; h < 0x7bff; ++h) {  // between each pair of neighbours: below, at and above the middle
        const float a = f16_to_f32(static_cast<uint16_t>(h)), b = f16_to_f32(static_cast<uint16_t>(h + 1));
        const float middle = a + (b - a) / 2;  // exact in float32
        const uint32_t even = h & 1u ? h + 1 : h;
        wrong += f32_to_f16(middle) != even;
        wrong += f32_to_f16(std::nextafter(middle, 0.0f)) != h;
        wrong += f32_to_f16(std::nextafter(middle, 1e9f)) != h + 1;
        wrong += f32_to_f16(-middle) != (even | 0x8000u);
    }
    CHECK(wrong == 0);
    CHECK(f32_to_f16(65519.99f) == 0x7bff);
    CHECK(f32_to_f16(65520.0f) == 0x7c00);
    CHECK(f32_to_f16(1e30f) == 0x7c00);
    CHECK(f32_to_f16(-std::numeric_limits<float>::infinity()) == 0xfc00);
    CHECK((f32_to_f16(std::numeric_limits<float>::quiet_NaN()) & 0x7e00) == 0x7e00);
    CHECK(f32_to_f16(from_bits(0x7f800001u)) == 0x7e00);  // a NaN whose payload would shift out stays a NaN
    CHECK(f32_to_f16(1e-30f) == 0);
}

TEST_CASE("float32 to bfloat16 rounds to nearest even and keeps NaN a NaN") {
    CHECK(test::f32_to_bf16(1.0f) == 0x3f80);
    CHECK(test::f32_to_bf16(from_bits(0x3f808000u)) == 0x3f80);  // a tie goes to the even side
    CHECK(test::f32_to_bf16(from_bits(0x3f818000u)) == 0x3f82);
    CHECK(test::f32_to_bf16(from_bits(0x3f808001u)) == 0x3f81);
    CHECK(test::f32_to_bf16(from_bits(0x7f7fffffu)) == 0x7f80);
    CHECK(std::isnan(bf16_to_f32(test::f32_to_bf16(from_bits(0x7f800001u)))));
    CHECK(bf16_to_f32(0xc040) == -3.0f);
}

TEST_CASE("decoding equals the format's definition bit for bit, at any address") {
    test::Random random(1);
    for (const Type t : kAllTypes) {
        const TypeInfo info = type_info(t);
        CAPTURE(std::string(info.name));
        constexpr size_t kBlocks = 20;
        Bytes raw(kBlocks * info.block_bytes + 1);
        for (uint8_t& b : raw) b = static_cast<uint8_t>(random.below(256));
        const auto block = [&](size_t k) { return raw.data() + 1 + k * info.block_bytes; };  // odd: unaligned
        for (size_t k = 0; k < kBlocks; ++k) {
            for (const int at : test::half_fields(t)) {
                const uint16_t h = f32_to_f16(random.normal() * (k < 2 ? 1e-6f : 0.01f));  // also subnormal scales
                std::memcpy(block(k) + at, &h, 2);
            }
            if (info.n_block == 1) {
                const float x = random.normal();
                test::encode(t, &x, block(k), 1);
            }
        }
        std::vector<float> got(kBlocks * info.n_block);
        decode_row(t, raw.data() + 1, got.data(), got.size());
        int wrong = 0;
        for (size_t i = 0; i < got.size(); ++i)
            wrong += got[i] != static_cast<float>(element(t, block(i / info.n_block), int(i % info.n_block)));
        CHECK(wrong == 0);
        CHECK(std::any_of(got.begin(), got.end(), [](float v) { return v != 0; }));
    }
}

TEST_CASE("every byte of a scale of NVFP4 is the number that the format defines") {
    uint8_t block[36] = {};
    block[4] = 0x02;  // the first element is 1
    int wrong = 0;
    for (int byte = 0; byte < 256; ++byte) {
        block[0] = static_cast<uint8_t>(byte);
        float got[64];
        decode_row(Type::nvfp4, block, got, 64);
        wrong += double{got[0]} != element(Type::nvfp4, block, 0);
    }
    CHECK(wrong == 0);
    block[0] = 0x7e;
    CHECK(element(Type::nvfp4, block, 0) == 448);  // the largest finite number of E4M3
}

TEST_CASE("the cache types round as the reference does") {
    float x[32];
    for (int i = 0; i < 32; ++i) x[i] = static_cast<float>(i) - 15.5f;  // -15.5 .. 15.5
    uint8_t b[40];

    test::encode(Type::q8_0, x, b, 32);  // d = 15.5/127; the codes use 1/d before d is rounded to binary16
    CHECK(load<uint16_t>(b) == f32_to_f16(15.5f / 127));
    CHECK(static_cast<int8_t>(b[2]) == -127);
    CHECK(static_cast<int8_t>(b[33]) == 127);
    CHECK(static_cast<int8_t>(b[2 + 16]) == 4);  // 0.5 * 127/15.5 = 4.097

    float halves[32] = {127, 0.5f, -0.5f, 1.5f, -1.5f, 2.5f, 0.49999997f};  // d = 1: half goes away from zero
    test::encode(Type::q8_0, halves, b, 32);
    const int expected[7] = {127, 1, -1, 2, -2, 3, 0};
    for (int i = 0; i < 7; ++i) CHECK(static_cast<int8_t>(b[2 + i]) == expected[i]);

    test::encode(Type::q4_0, x, b, 32);  // the first extreme value, -15.5, gets code 0: d = 15.5/8
    CHECK(f16_to_f32(load<uint16_t>(b)) == 1.9375f);
    CHECK((b[2] & 15) == 0);
    CHECK((b[17] >> 4) == 15);  // 15.5 would be 16
    test::encode(Type::q5_0, x, b, 32);
    CHECK(f16_to_f32(load<uint16_t>(b)) == 0.96875f);
    CHECK(load<uint32_t>(b + 2) == 0xffff0000u);  // codes 0..15 for the negative half, 16 and more above

    test::encode(Type::q4_1, x, b, 32);
    CHECK(f16_to_f32(load<uint16_t>(b)) == f16_to_f32(f32_to_f16(31.0f / 15)));
    CHECK(f16_to_f32(load<uint16_t>(b + 2)) == -15.5f);
    test::encode(Type::q5_1, x, b, 32);
    float back[32];
    decode_row(Type::q5_1, b, back, 32);
    for (int i = 0; i < 32; ++i) CHECK(back[i] == x[i]);  // 32 codes, step 1: exact

    const float zero[32] = {};
    for (const Type t : {Type::q8_0, Type::q4_0, Type::q4_1, Type::q5_0, Type::q5_1}) {
        test::encode(t, zero, b, 32);
        decode_row(t, b, back, 32);
        for (const float v : back) CHECK(v == 0);
    }
}

TEST_CASE("codes on a rounding boundary equal the reference's, with and without fused multiply-add") {
    test::Random random(11);
    const struct {
        Type t;
        int top;
        float offset;
        bool range;
    } formats[] = {{Type::q4_0, 15, 8.5f, false},
                   {Type::q5_0, 31, 16.5f, false},
                   {Type::q4_1, 15, 0.5f, true},
                   {Type::q5_1, 31, 0.5f, true}};
    for (const auto& f : formats) {
        CAPTURE(std::string(type_info(f.t).name));
        const int n_bits = f.top == 31 ? 5 : 4, qs = (f.range ? 4 : 2) + (n_bits == 5 ? 4 : 0);
        int wrong = 0, on_edge = 0;
        for (int k = 0; k < 3000; ++k) {
            // one step d, a lowest and a highest element, and all others half way between two codes
            float x[32];
            const float low = f.range ? -std::fabs(random.normal()) : 0, span = std::fabs(random.normal()) + 0.1f;
            const float d =
                f.range ? ((low + span) - low) / static_cast<float>(f.top) : span / -static_cast<float>(f.top / 2 + 1);
            const float inverse = 1 / d;
            for (int i = 0; i < 32; ++i) {
                const float code = static_cast<float>(1 + random.below(static_cast<uint32_t>(f.top - 1))) - f.offset;
                x[i] = low + code * d;
            }
            x[0] = f.range ? low : span;
            if (f.range) x[1] = low + span;
            uint8_t b[40];
            test::encode(f.t, x, b, 32);
            for (int i = 0; i < 32; ++i) {
                volatile float product = (x[i] - low) * inverse;  // volatile: rounded here, whatever the flags
                volatile float sum = product + f.offset;
                const int expected = std::min(f.top, static_cast<int>(sum));
                const int high = n_bits == 5 ? bit(b[qs - 4 + i / 8], i % 8) : 0;
                wrong += expected != nibble(b[qs + i % 16], i / 16) + 16 * high;
                on_edge += std::fabs(sum - std::round(sum)) < 1e-5f;
            }
        }
        CHECK(wrong == 0);
        CHECK(on_edge > 80000);
    }
}

TEST_CASE("a round trip through every type stays within its error bound bound") {
    test::Random random(7);
    const std::vector<float> x = random.normals(256 * 64, 0.02f);
    const struct {
        Type t;
        double bound;
    } bounds[] = {
        {Type::f32, 0},       {Type::f16, 0.0003}, {Type::bf16, 0.0025}, {Type::q8_0, 0.006}, {Type::q6_k, 0.02},
        {Type::q5_k, 0.04},   {Type::q5_1, 0.045}, {Type::q5_0, 0.05},   {Type::q4_k, 0.08},  {Type::iq4_xs, 0.08},
        {Type::iq4_nl, 0.08}, {Type::q4_1, 0.09},  {Type::q4_0, 0.1},    {Type::q3_k, 0.17},  {Type::q2_k, 0.33},
        {Type::mxfp4, 0.13},  {Type::nvfp4, 0.12},
    };
    for (const auto& b : bounds) {
        CAPTURE(std::string(type_info(b.t).name));
        const double error = round_trip_error(b.t, x);
        CHECK(error <= b.bound);
        CHECK(error >= b.bound / 2);  // a bound that is never near would guard nothing
    }
}

TEST_CASE("constant, zero and single-value blocks encode exactly") {
    for (const Type t : kAllTypes) {
        CAPTURE(std::string(type_info(t).name));
        std::vector<float> x(256, 0.0f);
        Bytes packed(static_cast<size_t>(row_bytes(t, 256)));
        std::vector<float> back(256, 1.0f);
        test::encode(t, x.data(), packed.data(), 256);
        decode_row(t, packed.data(), back.data(), 256);
        CHECK(std::all_of(back.begin(), back.end(), [](float v) { return v == 0; }));
        x.assign(256, -0.25f);
        CHECK(round_trip_error(t, x) < 0.02);
        x.assign(256, 0.25f);
        CHECK(round_trip_error(t, x) < 0.02);
        x.assign(256, 0.0f);
        x[77] = -3.0f;
        CHECK(round_trip_error(t, x) < 0.05);  // IQ4: the codebook has no zero, its neighbours get 1/127
        x[77] = 3.0f;
        CHECK(round_trip_error(t, x) < 0.15);  // Q4_0 and Q3_K: one code less on the positive side
    }
}

TEST_CASE("a value that is not finite affects its own block only") {
    test::Random random(3);
    for (const Type t : kAllTypes) {
        const size_t n_block = type_info(t).n_block;
        CAPTURE(std::string(type_info(t).name));
        for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity(), 3e38f, 1e-42f}) {
            std::vector<float> x = random.normals(2 * n_block);
            Bytes clean(static_cast<size_t>(row_bytes(t, x.size()))), spoiled(clean.size());
            test::encode(t, x.data(), clean.data(), x.size());
            x[0] = bad;
            test::encode(t, x.data(), spoiled.data(), x.size());
            CHECK(std::equal(clean.begin() + static_cast<std::ptrdiff_t>(clean.size() / 2), clean.end(),
                             spoiled.begin() + static_cast<std::ptrdiff_t>(clean.size() / 2)));
        }
    }
}

TEST_CASE("the published block vectors decode and encode bit for bit") {
    const char* shared = test::shared_dir("vectors/quant_vectors.json");
    if (!shared) return;
    const std::string json = test::read_text(std::string(shared) + "/vectors/quant_vectors.json");
    const size_t middle = json.rfind("\"quantise\": {");
    REQUIRE(middle != std::string::npos);
    int n_decoded = 0, n_encoded = 0;
    for (const Type t : kAllTypes) {
        CAPTURE(std::string(type_info(t).name));
        if (t == Type::f32 || t == Type::f16 || t == Type::bf16) continue;
        const std::string id = "\"type_id\": " + std::to_string(static_cast<uint32_t>(t)) + ",";
        size_t at = json.find(id);
        REQUIRE(at < middle);
        const size_t end = std::min(json.find("\"type_id\"", at + 1), middle);
        for (std::string text; !(text = next_field(json, "block", at, end)).empty(); ++n_decoded) {
            const Bytes block = unhex(text), expected = unhex(next_field(json, "f32le", at, end));
            REQUIRE(block.size() == type_info(t).block_bytes);
            std::vector<float> got(type_info(t).n_block);
            REQUIRE(expected.size() == got.size() * 4);
            decode_row(t, block.data(), got.data(), got.size());
            CHECK(std::memcmp(got.data(), expected.data(), expected.size()) == 0);
        }
    }
    const struct {
        const char* name;
        Type t;
    } encoders[] = {
        {"q8_0", Type::q8_0}, {"q4_0", Type::q4_0}, {"q4_1", Type::q4_1}, {"q5_0", Type::q5_0}, {"q5_1", Type::q5_1}};
    for (const auto& e : encoders) {
        CAPTURE(std::string(e.name));
        size_t at = json.find('"' + std::string(e.name) + "\":", middle);
        REQUIRE(at != std::string::npos);
        const size_t end = json.find("]", at);
        for (std::string text; !(text = next_field(json, "f32le", at, end)).empty(); ++n_encoded) {
            const Bytes input = unhex(text), expected = unhex(next_field(json, "block", at, end));
            std::vector<float> x(input.size() / 4);
            std::memcpy(x.data(), input.data(), input.size());
            Bytes got(expected.size());
            REQUIRE(row_bytes(e.t, x.size()) == got.size());
            test::encode(e.t, x.data(), got.data(), x.size());
            CHECK(got == expected);
        }
    }
    CHECK(n_decoded == 28);
    CHECK(n_encoded == 20);
}

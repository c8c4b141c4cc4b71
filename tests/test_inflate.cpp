// The decoder of the embedded shaders, and the registry they unpack into.
#include "../src/auspex.hpp"
#ifndef AUSPEX_NO_VULKAN
#include "../src/machine/vulkan/inflate.h"
#include "support.h"
#include "vulkan_support.h"

using namespace auspex;
using namespace auspex::detail;

namespace {

std::vector<std::byte> from_hex(const char* hex) {
    std::vector<std::byte> out;
    auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
    for (; hex[0] && hex[1]; hex += 2) out.push_back(static_cast<std::byte>(digit(hex[0]) << 4 | digit(hex[1])));
    return out;
}

// zlib streams of known contents, made with Python 3.11's zlib module (the calls stand beside them).
struct Stream {
    const char* hex;
    std::string text;
};
std::string repeated(const std::string& s, size_t n) {
    std::string out;
    for (size_t i = 0; i < n; ++i) out += s;
    return out;
}
std::string counted() {
    std::string out;
    for (int i = 0; i < 300; ++i) out += std::to_string(i * i) + ",";
    return out;
}
const std::vector<Stream>& streams() {
    static const std::vector<Stream> all = {
        // compress(b'')
        {"789c030000000001", ""},
        // compress(b'stored bytes', 0)
        {"7801010c00f3ff73746f7265642062797465731fcf04d9", "stored bytes"},
        // fixed codes: strategy Z_FIXED over b'fixed fixed fixed codes'
        {"78014bcbac484d5148432293f353528b016793089f", "fixed fixed fixed codes"},
        // dynamic codes: the squares of 0..299
        {"78da2594cb01c330084317cac1fc0cde7fb1ead14be326808524389f7df9bdcfeee7f5c5fdf27d37bfb1cfcef9ccf5ccd457453c8528c"
         "64b"
         "cf795f782a5ed98acbd473f22b7f5ff5fdaee2ae9eadffadf7a3ef4f71ef5257897654c14ca58c9ae62a6ec12dc975c5bd170017242d4"
         "436"
         "090621f4030a03b19ff7799cfc3c8f099932fc726ade0d5f9fe2828c507d400b79a85ea42a077744ebb618dd1b4f08f2084b822a43f83"
         "285"
         "34af3067d32d6dd4513f65341c74ac2f5fd17335a7a777f7e8abb24c6c2ae396726fabca1dd5eb5390a38cd69d5f97eeed16827ec2325"
         "03f"
         "2e7c936871857946e81f7d284227a1149beaf2cd59ad20ebf89ef340f055846856b01979661e9c131eed42a90decfa5fe980732fe8f74"
         "609"
         "7f2bcaea13592b10aac543c0b4bbde20572839cf209df2f41b22c29613abe17cf7fd0d62eec65fa8b4de3a9dd4ecaddf8fbb66ef95e89"
         "c17"
         "cf3b607b8bf3ad391ef8d5b37af1435f7e1a83d8df2181450c1e9c64d9057efc6f1387370fe37de4faa889cfcdcda04ec2bc1c43fd420"
         "f79"
         "9fdc422597ba7a7fd1ce055cf1aba87731218dceae2e3022ea6b66c87d78c25f8907112c4e64cec6a27015e771365c25f48a09c76bb22"
         "d46"
         "751c18614c5ee0cb08959695b957123dce78382ab073adb32ffacaf2ebf7c1fabd53d09781989d0d0d28672646f29e1d85b3b3cd749fd"
         "cf3"
         "e87d1a3387f80c09b9528eb5e1cc6786abbefeeb2eed84dd0cccb2b4119e2c263cab19b0bb13762f23d66c83ecda2163476897903bec8"
         "d7c"
         "2aad5f76491d63c096abb2c3d976e7c80a6c1ff690fe33a2c16eaa18d5ac645f694a755715f74aa1c7c8b2d74a6e544cb3ebb4bbc81d8"
         "d8d"
         "7e4bbd948ca39827e89a69fabda7d43ba46aca4dab40637ec4cf5d5fddd873ecfbdc98dcf8dadcda3a979ab4ae98e6aebbf78a3561402"
         "2bd"
         "7f60134ad6c3d94d71c02f98ec0fa3af767aecedb783deb54dc443279c74c14fef0cca379cefeee386cf6eb8ede5b907ce3576aa39072"
         "de6"
         "a0cbec6e1e43af71b41b47c709349dd5571b8a3d55e83e8507045f3d4ed3af0657bdcfe09919fc330f2ffd0081554763",
         counted()},
        // long overlapping copies: b'ab' * 40000
        {"78daedc2810c0000000230d6f287082085ef4f03000000000000000000000000000000000000000000000000000000000000000000000"
         "000"
         "00000000000000000000000000000000000000000000000000000000000000000000000000000000006785dc0bba",
         repeated("ab", 40000)},
        // Huffman only: Z_HUFFMAN_ONLY over the squares
        {"780105c1b10100300802b087180491eaff8f352910c68181061df8106309568122688339f00269a009b48796d1215c059bf01aa3c3bc2"
         "01a"
         "e4054f87b7c69ab82a5c08960cd61ec809280da80bd839d0363822982a304bf0c5e0fac0eb40a581c840aa83ba0cb9084d159422f4cad"
         "0d6"
         "41c7a04b8366072d1fba63b497e854a19f885e1b7d39b82eb034704f60efc191e117c257852913c335a67518bf60a2c1bc17cce9905a2"
         "332"
         "11572113224f46760faf2678d2e0f5056f7278cfc63b11cb2aac9658c7d8f8b0dbc195062706e73a5ccab82d82555560a90896cb60a50"
         "eac"
         "65409606a43a20ed039918e42e41b10a548ba0c606f572a0ee02b634607b0276f6c03e193443d0ae021d13f4aec1a10e9c7e01271a70f"
         "605"
         "0c75607a0d262698ab021f43f059065ff6c0771370a501d717705f0ebcb2c16b11bc5481b74ba81843651f54af03b134109b81983a885"
         "786"
         "a422a4a982b445a85986da75503f067269207707727c902f86464b685205cd89506443991c94bd404f1ae8cd047abb07ad64682784f6a"
         "aa0"
         "9309ddaca13b1dbaf482ae68d0752f68b60ecdacd12a132d57a1f542745346b7f7d0bd13b4a5417b2e685f0e3d6da3e789e8b00a1d2fd"
         "1d9"
         "18fde443bf74d05b1af49a41efd6a14f65f4a5085755c1e5225c5b86a93a9861609506963bb0d607b762b8b384cd2ad823c23e1b9ecec"
         "1f3"
         "2e70a4819309fc6a0f7e23c3ef42785d05ef9af0690ddfd3618a2f988a06c37ac1707418de1a239b185d15a63bc4f4ca186b0fe337c18"
         "c34"
         "98c90513e630898d7914312f5598ad256627c65cf930371da44a83d43008ab0ee194115511d154215d45a4a78cb8ea100f834c6990990"
         "e92"
         "f221991879b5445eaa90a5886c6ce498432e17bc9206afde048fdac3e3ca78ea104f5785d736f1fad6781e1dded40bde448317bee0e5e"
         "9f0"
         "9ed6786f4dbc7515de5e88772363abf6b0950996d260f92e58750eabb3b13d22d6acc23a4bec28c6cefab07107fb4a837d61b0ab3aec6"
         "e19"
         "7b2ee20381554763",
         counted()},
    };
    return all;
}

Status unpack(const std::vector<std::byte>& from, std::string* to, size_t n) {
    to->assign(n, '\0');
    return inflate_zlib(from, Span<std::byte>(reinterpret_cast<std::byte*>(&(*to)[0]), n));
}

}  // namespace

TEST_CASE("inflate restores what Python's zlib compressed") {
    for (const Stream& s : streams()) {
        std::string text;
        const Status r = unpack(from_hex(s.hex), &text, s.text.size());
        CHECK_MESSAGE(r.ok(), r.message());
        CHECK(text == s.text);
    }
}

TEST_CASE("inflate rejects every truncation, flipped bit and wrong size, and survives random input") {
    test::Random random(5);
    for (const Stream& s : streams()) {
        const std::vector<std::byte> good = from_hex(s.hex);
        std::string text;
        CHECK(unpack(good, &text, s.text.size() + 1).code == Code::bad_file);
        if (!s.text.empty()) CHECK(unpack(good, &text, s.text.size() - 1).code == Code::bad_file);
        for (size_t n = 0; n < good.size(); ++n) {
            const std::vector<std::byte> cut(good.begin(), good.begin() + static_cast<long>(n));
            CHECK(unpack(cut, &text, s.text.size()).code == Code::bad_file);
        }
        std::vector<std::byte> longer = good;
        longer.insert(longer.end() - 4, std::byte(0));
        CHECK(unpack(longer, &text, s.text.size()).code == Code::bad_file);
        for (int i = 0; i < 400; ++i) {
            std::vector<std::byte> bad = good;
            // Byte 0's window size may differ without harm; everything else counts.
            const size_t at = 1 + random.below(static_cast<uint32_t>(bad.size() - 1));
            bad[at] ^= static_cast<std::byte>(1u << random.below(8));
            const Status r = unpack(bad, &text, s.text.size());
            // Padding bits before the checksum may be anything: then the contents must still be right.
            CHECK((r.code == Code::bad_file || text == s.text));
        }
    }
    for (int i = 0; i < 3000; ++i) {
        std::vector<std::byte> noise = from_hex("789c");
        for (uint32_t n = random.below(200); n > 0; --n) noise.push_back(static_cast<std::byte>(random.below(256)));
        std::string text;
        CHECK(unpack(noise, &text, 4096).code == Code::bad_file);
    }
}

TEST_CASE("the embedded shaders unpack, and damaged ones are rejected") {
    auto shaders = test::shaders();
    CHECK(shaders->modules().size() >= 4);
    CHECK(shaders->find("selftest_half") != nullptr);
    CHECK(shaders->find("no_such_shader") == nullptr);
    REQUIRE(shaders->modules().size() == std::size(vk::kShaderContracts));
    for (size_t i = 0; i < shaders->modules().size(); ++i) {
        REQUIRE(shaders->modules()[i].contract == &vk::kShaderContracts[i]);
        CHECK(shaders->modules()[i].name == vk::kShaderContracts[i].name);
    }
    CHECK(!shaders->find("selftest_half")->contract->addresses);
    CHECK(shaders->find("matvec_mma_q4_k")->contract->addresses);
    for (const auto& m : shaders->modules()) CHECK(m.words[0] == 0x07230203u);
    const std::vector<std::byte> stream = from_hex("789c030000000001");
    CHECK(vk::Shaders::open(stream, 0).status().code == Code::bad_file);
    CHECK(vk::Shaders::open(stream, 16).status().code == Code::bad_file);
    CHECK(vk::Shaders::open(stream, 1ull << 40).status().code == Code::bad_file);
    // A registry whose index points outside: [magic, 1 module, offsets beyond the end].
    const std::vector<std::byte> outside =
        from_hex("7801011800e7ff4158535001000000ffff0000ffff0000ffff0000ffff000067920936");
    CHECK(vk::Shaders::open(outside, 24).status().code == Code::bad_file);
}
#endif  // AUSPEX_NO_VULKAN

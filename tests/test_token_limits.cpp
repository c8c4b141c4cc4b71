// base/token with hostile or damaged vocabularies: bounded work, and errors that name the damage.
#include "../src/base/token.h"
#include "allocations.h"
#include "support.h"
#include "vocabulary.h"

#include <doctest/doctest.h>

using namespace test_vocabulary;

TEST_CASE("encoding takes linear time and memory") {
    const size_t n = 200000;
    const auto times = [](const std::string& part) {
        std::string text;
        while (text.size() < n) text += part;
        return text;
    };
    std::string mixed;
    for (size_t i = 0; mixed.size() < n; ++i) mixed += "ha!'?<\x01"[i * i % 7];
    const std::vector<std::string> texts = {times("a"),
                                            times(" "),
                                            times("!"),
                                            times("'"),
                                            times("<"),
                                            times("\n"),
                                            times("7"),
                                            times("\x01"),
                                            times(" ") + "\n" + times(" "),
                                            times("\x01") + "a",
                                            times(" ") + "7",
                                            times("\xCC\x81"),  // combining acute
                                            times("\xE4\xB8\xAD"),
                                            times("\xE3\x81\x80"),
                                            times("\xE3\x83\xBB"),  // CJK, unassigned there, middle dot
                                            times("\xE2\x80\x8D\x01"),
                                            times(" \x01"),
                                            times("\xCC\x81\n"),
                                            times("!a"),
                                            mixed};
    for (const char* pre : {"qwen2", "qwen35", "deepseek-v3"}) {
        Small v;
        v.pre = pre;
        v.merge(" ", " ");
        v.merge("  ", "  ");
        v.merge("!", "!");
        const Tokenizer t = load(v);
        for (const std::string& text : texts) {
            CAPTURE(pre);
            CAPTURE(text.substr(0, 4));
            detail::EncodeWork work;
            const test::AllocationCount allocated;
            const std::vector<Token> ids = t.encode(text, true, &work);
            const int64_t n_byte = allocated.bytes();
            CHECK(t.decode(Span<const Token>(ids), true) == text);
            CHECK(work.n_look <= 6 * text.size());
            CHECK(work.n_pair <= 4 * text.size());
            CHECK(work.n_queue <= 40 * text.size());
            CHECK(n_byte <= static_cast<int64_t>(36 * text.size()));  // 16 of scratch memory, and the growing ids
        }
    }
}

TEST_CASE("the search for special tokens takes linear time, whatever the special tokens are") {
    for (const size_t length : {size_t{10}, size_t{1000}, size_t{300000}}) {
        Vocabulary v;
        v.add(std::string(length, 'a') + "b", 4);
        v.add("b" + std::string(length, 'a'), 3);
        v.add("aaa", 4);
        const Tokenizer t = load(v);
        const size_t n = 300000;
        for (const bool special : {false, true}) {
            detail::EncodeWork work;
            t.encode(std::string(n, 'a'), special, &work);
            CHECK(work.n_special <= 4 * n);
        }
        CHECK(t.encode(std::string(length, 'a') + "b", false) == std::vector<Token>{256});
    }
}

/// The inverse of hash_mix, to choose tokens by their hash.
uint64_t unmix(uint64_t y) {
    const auto inverse = [](uint64_t odd) {
        uint64_t x = odd;
        for (int i = 0; i < 6; ++i) x *= 2 - odd * x;
        return x;
    };
    y ^= y >> 32;
    y *= inverse(0xD6E8FEB86659FD93ull);
    uint64_t z = y;
    for (int i = 0; i < 3; ++i) z = y ^ (z >> 29);
    z *= inverse(0x9E3779B97F4A7C15ull);
    return z ^ (z >> 32);
}
std::string bytes_of(uint64_t v) {
    std::string s(8, '\0');
    std::memcpy(&s[0], &v, 8);
    return s;
}

TEST_CASE("no choice of tokens or merges makes loading quadratic") {
    REQUIRE(unmix(detail::hash_mix(0x123456789abcdefull)) == 0x123456789abcdefull);
    const uint64_t n = 4000;
    for (int kind = 0; kind < 3; ++kind) {
        Vocabulary v;
        for (uint64_t k = 1; k <= n; ++k) {
            if (kind == 2) {  // 16 bytes: the same hash in all 64 bits
                const uint64_t first = k << 20;
                v.add(alphabet(bytes_of(first) + bytes_of(detail::hash_mix(16 ^ first) ^ 12345)), 1);
            } else {  // 8 bytes: hashes that differ in the top or in the bottom bits alone
                v.add(alphabet(bytes_of(8 ^ unmix(unmix(kind == 0 ? k << 30 : k)))), 1);
            }
            v.merges.push_back(v.tokens.back() + " " + v.tokens[k % 256]);
        }
        detail::Gguf gguf;
        const std::vector<std::byte> file = v.file();
        REQUIRE(detail::Gguf::parse(Span<const std::byte>(file.data(), file.size())).get(gguf).ok());
        detail::TokenizerLoadWork work;
        Tokenizer t;
        REQUIRE(Tokenizer::load(gguf, {}, &work).get(t).ok());
        CAPTURE(kind);
        CHECK(work.n_compare <= 60 * n);  // about 2 n log2 n for the worst kind; n * n / 2 is 8 million
        CHECK(t.find(t.decode(Span<const Token>(std::vector<Token>{3000}), true)) == 3000);
    }
}

TEST_CASE("loading a tokenizer can be cancelled at any of its progress calls") {
    Small v;
    for (int i = 0; i < 30000; ++i) v.add(alphabet("t" + std::to_string(i)), 1);
    detail::Gguf gguf;
    const std::vector<std::byte> file = v.file();
    REQUIRE(detail::Gguf::parse(Span<const std::byte>(file.data(), file.size())).get(gguf).ok());
    int n_call = 0;
    CHECK(Tokenizer::load(gguf, [&](const char*, float fraction) {
              CHECK(fraction == 0.0f);
              return ++n_call > 0;
          }).ok());
    CHECK(n_call >= 3);
    for (int stop = 1; stop <= n_call; ++stop) {
        int n = 0;
        const Status s = Tokenizer::load(gguf, [&](const char*, float) { return ++n < stop; }).status();
        CHECK(s.code == Code::cancelled);
        CHECK(n == stop);
    }
}

TEST_CASE("a damaged tokenizer is rejected, and the error names the damage") {
    Small v;
    v.model = "llama";
    CHECK(refusal(v, Code::unsupported).find("'llama', supported: gpt2") != std::string::npos);
    v = Small();
    v.pre = "default";
    CHECK(refusal(v, Code::unsupported).find("'default', supported: qwen2, qwen35, deepseek-v3") != std::string::npos);
    v = Small();
    v.types.pop_back();
    CHECK(refusal(v, Code::bad_file).find("token_type' has 270 elements") != std::string::npos);
    v = Small();
    v.types[3] = 9;
    CHECK(refusal(v, Code::bad_file).find("type 9, expected 1..6") != std::string::npos);
    v = Small();
    v.tokens[5] = "\xE4\xB8\xAD";
    CHECK(refusal(v, Code::bad_file).find("token 5 ") != std::string::npos);
    v = Small();
    v.tokens['A'] = "aaa";
    CHECK(refusal(v, Code::bad_file).find("single byte 65") != std::string::npos);
    v = Small();
    v.ids.emplace_back("bos", 271u);
    CHECK(
        refusal(v, Code::bad_file).find("'tokenizer.ggml.bos_token_id' is 271, outside the vocabulary of 271 tokens") !=
        std::string::npos);
    v = Small();
    v.add("<0x-1>", 6);
    CHECK(refusal(v, Code::bad_file).find("expected the form <0xAB>") != std::string::npos);
    for (const char* bad : {"<0xE>", "<0xE9>>", "[0xE9>", "<0xE9]", "<0xG9>", "<0x9G>", "<0xe9>"}) {
        v = Small();
        v.add(bad, 6);
        CHECK(refusal(v, Code::bad_file).find("expected the form <0xAB>") != std::string::npos);
    }
    v = Small();
    for (size_t i = 0; i < 5; ++i) v.add(std::string(size_t{1} << 20, static_cast<char>('a' + i)), 4);
    CHECK(refusal(v, Code::bad_file).find("the special tokens hold 5242930 bytes, at most 4194304") !=
          std::string::npos);
    v = Small();
    v.tokens.clear();
    CHECK(refusal(v, Code::bad_file).find("the vocabulary has 0 tokens, expected 1..4194304") != std::string::npos);
    for (const char* bad : {"ab", "a ", ""}) {
        v = Small();
        v.merges.push_back(bad);
        CHECK(refusal(v, Code::bad_file).find("merge 9 is") != std::string::npos);
    }
    v = Small();
    v.merges.push_back("x y");
    CHECK(load(v).n_merge_skipped() == 1);
    v.add("<0xE9>", 6);
    CHECK(load(v).piece_bytes(271) == "\xE9");
    v.add("<0x0A>", 6);
    v.add("<0xA0>", 6);
    CHECK(load(v).piece_bytes(272) == "\n");
    CHECK(load(v).piece_bytes(273) == "\xA0");
}

TEST_CASE("missing tokenizer keys and keys of another type are rejected") {
    const Small v;
    for (int damage = 0; damage < 8; ++damage) {
        test::GgufWriter w;
        w.add("general.architecture", "none");
        if (damage != 0) w.add("tokenizer.ggml.model", "gpt2");
        if (damage != 1) w.add("tokenizer.ggml.pre", "qwen2");
        if (damage == 2)
            w.add("tokenizer.ggml.tokens", v.types);
        else
            w.add("tokenizer.ggml.tokens", v.tokens);
        if (damage == 3)
            w.add("tokenizer.ggml.token_type", v.tokens);
        else if (damage == 6)
            w.add("tokenizer.ggml.token_type", uint32_t{1});
        else if (damage != 7)
            w.add("tokenizer.ggml.token_type", v.types);
        if (damage == 4)
            w.add("tokenizer.ggml.merges", "a b");
        else
            w.add("tokenizer.ggml.merges", v.merges);
        if (damage == 5) w.add("tokenizer.ggml.eos_token_id", "x");
        const std::vector<std::byte> file = w.finish();
        const Status s = load(file).status();
        CHECK_FALSE(s.ok());
        CHECK(s.text.find("tokenizer.ggml.") != std::string::npos);
    }
}

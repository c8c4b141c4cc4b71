// Vocabularies made for tests of base/token.
#pragma once
#include "../src/base/token.h"
#include "gguf_writer.h"

#include <doctest/doctest.h>

namespace test_vocabulary {

using auspex::Code;
using auspex::Result;
using auspex::Span;
using auspex::Status;
using auspex::Token;
using auspex::detail::Tokenizer;
namespace detail = auspex::detail;

/// Bytes in GPT-2's alphabet, written from the definition and not with the library's table.
inline std::string alphabet(const std::string& bytes) {
    std::string out;
    for (const char c : bytes) {
        const unsigned b = static_cast<unsigned char>(c);
        unsigned code = b;
        if (b <= 0x20)
            code = 0x100 + b;
        else if (b >= 0x7F && b <= 0xA0)
            code = 0x121 + (b - 0x7F);
        else if (b == 0xAD)
            code = 0x143;
        detail::append_utf8(out, code);
    }
    return out;
}

/// A vocabulary made for a test: 256 bytes, then the results of the merges, then special tokens.
struct Vocabulary {
    std::string model = "gpt2", pre = "qwen35";
    std::vector<std::string> tokens, merges;
    std::vector<int32_t> types;
    std::vector<std::pair<std::string, uint32_t>> ids;  // special id keys
    bool add_bos = false;

    Vocabulary() {
        for (int b = 0; b < 256; ++b)
            add(alphabet(std::string(1, static_cast<char>(static_cast<unsigned char>(b)))), 1);
    }
    Token add(const std::string& text, int32_t type) {
        tokens.push_back(text);
        types.push_back(type);
        return static_cast<Token>(tokens.size() - 1);
    }
    Token merge(const std::string& left, const std::string& right) {
        merges.push_back(alphabet(left) + " " + alphabet(right));
        return add(alphabet(left + right), 1);
    }
    std::vector<std::byte> file() const {
        test::GgufWriter w;
        w.add("general.architecture", "none");
        w.add("tokenizer.ggml.model", model);
        w.add("tokenizer.ggml.pre", pre);
        w.add("tokenizer.ggml.tokens", tokens);
        w.add("tokenizer.ggml.token_type", types);
        w.add("tokenizer.ggml.merges", merges);
        for (const auto& id : ids) w.add("tokenizer.ggml." + id.first + "_token_id", id.second);
        if (add_bos) w.add("tokenizer.ggml.add_bos_token", true);
        return w.finish();
    }
};

inline Result<Tokenizer> load(const std::vector<std::byte>& file) {
    detail::Gguf gguf;
    Status s = detail::Gguf::parse(Span<const std::byte>(file.data(), file.size())).get(gguf);
    if (!s.ok()) return s;
    return Tokenizer::load(gguf);
}
inline Tokenizer load(const Vocabulary& v) {
    Tokenizer t;
    const Status s = load(v.file()).get(t);
    CHECK_MESSAGE(s.ok(), s.message());
    return t;
}
inline std::string refusal(const Vocabulary& v, Code code) {
    const Status s = load(v.file()).status();
    CHECK_FALSE(s.ok());
    CHECK(auspex::code_name(s.code) == std::string(auspex::code_name(code)));
    return s.text;
}

struct Small : Vocabulary {
    Token he, ll, hell, hello, sp_h, im_start, im_end, think, unthink, end;
    Small() {
        he = merge("h", "e");
        ll = merge("l", "l");
        hell = merge("he", "ll");
        hello = merge("hell", "o");
        sp_h = merge(" ", "he");
        merge("\n", "\n");
        merge("?", "\n");
        merge("a", "a");
        merge("aa", "aa");
        end = add("<|endoftext|>", 3);
        im_start = add("<|im_start|>", 3);
        im_end = add("<|im_end|>", 3);
        think = add("<think>", 4);
        unthink = add("</think>", 4);
        add("[PAD0]", 5);
        ids.emplace_back("eos", static_cast<uint32_t>(im_end));
    }
};

}  // namespace test_vocabulary

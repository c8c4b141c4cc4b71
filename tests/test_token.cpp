#include "../src/base/json.h"
#include "../src/base/text_stream.h"
#include "../src/base/token.h"
#include "support.h"
#include "vocabulary.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace test_vocabulary;
using auspex::ChatPrompt;
using detail::Split;

namespace {

std::vector<std::string> pieces(const std::string& text, Split split) {
    std::vector<std::string> out;
    for (size_t at = 0, end = 0; at < text.size(); at = end) {
        end = detail::split_piece(text, at, split);
        REQUIRE(end > at);
        out.push_back(text.substr(at, end - at));
    }
    return out;
}
using Texts = std::vector<std::string>;

/// Byte pair encoding straight from its definition; slow.
std::vector<Token> plain_merge(const Vocabulary& v, const Tokenizer& t, const std::string& piece) {
    std::vector<std::string> parts;
    for (const char c : piece) parts.emplace_back(1, c);
    for (bool again = true; again;) {
        again = false;
        for (const std::string& m : v.merges) {
            size_t at = 0;
            while (at + 1 < parts.size() && alphabet(parts[at]) + " " + alphabet(parts[at + 1]) != m) ++at;
            if (at + 1 >= parts.size()) continue;
            parts[at] += parts[at + 1];
            parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
            again = true;
            break;
        }
    }
    std::vector<Token> ids;
    for (const std::string& p : parts) ids.push_back(t.find(p));
    return ids;
}

std::vector<std::byte> file_bytes(const std::string& path) {
    const std::string s = test::read_text(path);
    std::vector<std::byte> b(s.size());
    if (!s.empty()) std::memcpy(b.data(), s.data(), s.size());
    return b;
}

}  // namespace

TEST_CASE("UTF-8 is decoded strictly, and each invalid byte is replaced") {
    const char* bad[] = {"\x80",
                         "\xC0\x80",
                         "\xC1\xBF",
                         "\xE0\x80\x80",
                         "\xED\xA0\x80",
                         "\xF0\x80\x80\x80",
                         "\xF4\x90\x80\x80",
                         "\xF5\x80\x80\x80",
                         "\xE2\x82",
                         "\xFF"};
    for (const char* b : bad) {
        const std::string text(b);
        CHECK(detail::find_bad_utf8(text) == 0);
        std::string fixed, want;
        detail::append_repaired(fixed, "a" + text + "z");
        for (size_t i = 0; i < text.size(); ++i) want += "\xEF\xBF\xBD";
        CHECK(fixed == "a" + want + "z");
    }
    for (uint32_t c = 0; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 77) {
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        std::string text;
        detail::append_utf8(text, c);
        size_t n = 0;
        if (detail::decode_utf8(text.data(), text.size(), &n) != c || n != text.size()) FAIL("code point " << c);
        for (size_t k = 1; k < text.size(); ++k)
            if (!detail::is_utf8_prefix(text.data(), k)) FAIL("prefix of " << c);
        if (detail::is_utf8_prefix(text.data(), text.size())) FAIL("whole " << c);
    }
}

TEST_CASE("characters have the classes of Unicode 15.1") {
    using detail::char_class;
    using detail::CharClass;
    size_t count[6] = {};
    for (uint32_t c = 0; c <= 0x10FFFF; ++c) ++count[static_cast<int>(char_class(c))];
    CHECK(count[1] == 136726);
    CHECK(count[2] == 1831);
    CHECK(count[3] == 2450);
    CHECK(count[4] == 842);
    CHECK(count[5] == 7775);
    CHECK(char_class('a') == CharClass::letter);
    CHECK(char_class('7') == CharClass::number);
    CHECK(char_class('_') == CharClass::punctuation);
    CHECK(char_class('$') == CharClass::symbol);
    CHECK(char_class('\x1F') == CharClass::other);
    CHECK(char_class(0x7F) == CharClass::other);
    CHECK(char_class(0xAD) == CharClass::other);   // soft hyphen: a format character
    CHECK(char_class(0x378) == CharClass::other);  // unassigned
    CHECK(char_class(0x3001) == CharClass::punctuation);
    CHECK(char_class(0x31EF) == CharClass::symbol);  // new in 15.1
    CHECK(char_class(0xBD) == CharClass::number);    // one half
    CHECK(char_class(0x301) == CharClass::mark);     // combining acute
    CHECK(char_class(0x4E2D) == CharClass::letter);
    CHECK(char_class(0x2EBF0) == CharClass::letter);  // new in 15.1
    CHECK(char_class(0x1F600) == CharClass::symbol);
    CHECK(char_class(0xE0100) == CharClass::mark);
    CHECK(char_class(0x10FFFF) == CharClass::other);
    CHECK(char_class(detail::kBadCodePoint) == CharClass::other);
    size_t n_in_runs = 0;
    for (const CharClass c :
         {CharClass::letter, CharClass::number, CharClass::mark, CharClass::punctuation, CharClass::symbol})
        detail::for_each_run(c, [&](uint32_t first, uint32_t last) {
            n_in_runs += last - first + 1;
            if (char_class(first) != c || char_class(last) != c || char_class(last + 1) == c) FAIL("run at " << first);
        });
    CHECK(n_in_runs == count[1] + count[2] + count[3] + count[4] + count[5]);
    size_t n_space = 0, n_python = 0;
    for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
        n_space += detail::is_white_space(c);
        n_python += detail::is_python_space(c);
    }
    CHECK(n_space == 25);
    CHECK(n_python == 29);
    CHECK(detail::trim_space("\xE3\x80\x80 \x1C x y\xC2\xA0\n") == "x y");
    CHECK(detail::trim_space(" \n").empty());
    CHECK(detail::trim_space("\x80") == "\x80");
}

TEST_CASE("text is split where the first matching alternative of the pattern ends") {
    const struct {
        const char* text;
        Texts want;
    } both[] = {
        {"", {}},
        {"Hello world", {"Hello", " world"}},
        {"I'm we'LL it's 'tis don'x 'Re",
         {"I", "'m", " we", "'LL", " it", "'s", " '", "tis", " don", "'x", " '", "Re"}},
        {"'rest", {"'re", "st"}},
        {"a  b", {"a", " ", " b"}},
        {"a   ", {"a", "   "}},
        {"  \n  x", {"  \n", " ", " x"}},
        {" \r\n\t\n z", {" \r\n\t\n", " z"}},
        {"\t\tx", {"\t", "\tx"}},
        {"x\ty", {"x", "\ty"}},
        {"a1b22", {"a", "1", "b", "2", "2"}},
        {" 7", {" ", "7"}},
        {"(foo) != [bar];\n\n", {"(foo", ")", " !=", " [", "bar", "];\n\n"}},
        {"...\r\nx", {"...\r\n", "x"}},
        {"\n\n\n", {"\n\n\n"}},
        {"\xC2\xA0", {"\xC2\xA0"}},
        {"a\xC2\xA0\xC2\xA0"
         "b",
         {"a", "\xC2\xA0",
          "\xC2\xA0"
          "b"}},
        {"\x1C"
         "x",
         {"\x1C"
          "x"}},
        {"\xE4\xB8\xAD\xE6\x96\x87\xEF\xBC\x8C", {"\xE4\xB8\xAD\xE6\x96\x87", "\xEF\xBC\x8C"}},
        {"\xC2\xBD\xC2\xBD", {"\xC2\xBD", "\xC2\xBD"}},
        {"'", {"'"}},
        {"''s", {"''", "s"}},
        {" 's", {" '", "s"}},
    };
    for (const auto& c : both) {
        CHECK_MESSAGE(pieces(c.text, Split::qwen2) == c.want, c.text);
        CHECK_MESSAGE(pieces(c.text, Split::qwen35) == c.want, c.text);
    }
}

TEST_CASE("qwen35 keeps combining marks inside words, qwen2 does not") {
    const std::string e = "e\xCC\x81t\xCC\x81";  // e and t, each with a combining acute
    CHECK(pieces(e, Split::qwen2) == Texts{"e", "\xCC\x81t", "\xCC\x81"});
    CHECK(pieces(e, Split::qwen35) == Texts{e});
    const std::string heart = "!\xE2\x9D\xA4\xEF\xB8\x8F!";  // heart, variation selector
    CHECK(pieces(heart, Split::qwen2) == Texts{heart});
    CHECK(pieces(heart, Split::qwen35) == Texts{"!\xE2\x9D\xA4", "\xEF\xB8\x8F", "!"});
    CHECK(pieces(heart.substr(1), Split::qwen35) == Texts{"\xE2\x9D\xA4\xEF\xB8\x8F", "!"});
    CHECK(pieces(" \xCC\x81", Split::qwen2) == Texts{" \xCC\x81"});
    CHECK(pieces(" \xCC\x81", Split::qwen35) == Texts{" \xCC\x81"});
}

TEST_CASE("deepseek-v3 splits off numbers, then CJK and kana, then the rest") {
    const struct {
        const char* text;
        Texts want;
    } cases[] = {
        {"", {}},
        {"Hello world", {"Hello", " world"}},
        {"I'm we'LL 'tis", {"I", "'m", " we", "'LL", " '", "tis"}},
        // Numbers of any script, three at a time; no space joins them.
        {"1234567 89", {"123", "456", "7", " ", "89"}},
        {"a1b", {"a", "1", "b"}},
        {"3.14", {"3", ".", "14"}},
        {"\u0661\u0662\u0663\u0664", {"\u0661\u0662\u0663", "\u0664"}},
        {"\u00BD\u2167\u0031\u00B2", {"\u00BD\u2167\u0031", "\u00B2"}},
        // The number ends the text for what is before it.
        {"x   7", {"x", "   ", "7"}},
        {"x  \n  7", {"x", "  \n", "  ", "7"}},
        {"x   y", {"x", "  ", " y"}},
        // CJK and kana, then the third split within: the middle dot U+30FB is punctuation, U+3099 a mark, U+3040
        // unassigned. U+3005 and U+9FA6 are letters outside the class, U+3002 is punctuation outside.
        {"\u6211\u7231\u5317\u4EAC\u3002", {"\u6211\u7231\u5317\u4EAC", "\u3002"}},
        {"a\u4E2D b \u6587", {"a", "\u4E2D", " b", " ", "\u6587"}},
        {"\u30B3\u30FC\u30FB\u30D2\u30FC", {"\u30B3\u30FC", "\u30FB", "\u30D2\u30FC"}},
        {"\u30FBa\u30FB\u30A2", {"\u30FB", "a", "\u30FB", "\u30A2"}},
        {"\u304B\u3099\u3040\u3040\u3041", {"\u304B\u3099", "\u3040", "\u3040\u3041"}},
        {"\u4EBA\u3005\u4EBA\u9FA5\u9FA6", {"\u4EBA", "\u3005", "\u4EBA\u9FA5", "\u9FA6"}},
        {"\uD55C\uAD6D\uC5B4 \uD55C", {"\uD55C\uAD6D\uC5B4", " \uD55C"}},
        {"x\u3000\u3000\u4E2D", {"x", "\u3000\u3000", "\u4E2D"}},
        {"x\u3000\u3000y", {"x", "\u3000", "\u3000y"}},
        // One ASCII punctuation mark goes with the ASCII letters after it, and with nothing else.
        {"foo(bar)->baz_qux", {"foo", "(bar", ")->", "baz", "_qux"}},
        {".gr\u00FCn .\u00FCber", {".gr", "\u00FCn", " .", "\u00FCber"}},
        {"\u00ABfoo\u00BB \u2014bar", {"\u00AB", "foo", "\u00BB", " \u2014", "bar"}},
        {"a=b + c;\r\n\n x", {"a", "=b", " +", " c", ";\r\n\n", " x"}},
        {"\u20AC5 \U0001F600\U0001F600!\n", {"\u20AC", "5", " \U0001F600\U0001F600!\n"}},
        // Marks belong to words, also alone; what is in front may be anything but a letter, punctuation or line break.
        {"e\u0301t\u0301", {"e\u0301t\u0301"}},
        {"!\u2764\uFE0F!", {"!\u2764", "\uFE0F", "!"}},
        {" \u0301x\n\u0301", {" \u0301x", "\n", "\u0301"}},
        {"\tx\n\ty", {"\tx", "\n", "\ty"}},
        // Controls, format characters and unassigned ones: a piece, but for one in front of a word.
        {"\x1C\x1Cx\x01\x02 y\x7F", {"\x1C", "\x1Cx", "\x01\x02", " y", "\x7F"}},
        {"\u200D\u200D\u0301", {"\u200D", "\u200D\u0301"}},
        {"\u200B\u200B!\u0378 \u0378", {"\u200B\u200B", "!", "\u0378", " ", "\u0378"}},
        {"\u200B\u200B7\u200B\u4E2D", {"\u200B\u200B", "7", "\u200B", "\u4E2D"}},
        {"  \x01", {" ", " ", "\x01"}},
        // White space.
        {"a   ", {"a", "   "}},
        {" \r\n\t\n z", {" \r\n\t\n", " z"}},
        {"\n\n\n", {"\n\n\n"}},
        {"a\u0085\u2028\v\fb", {"a", "\u0085\u2028\v", "\fb"}},
        {"a\u00A0\u00A0!", {"a", "\u00A0", "\u00A0", "!"}},
    };
    for (const auto& c : cases) CHECK_MESSAGE(pieces(c.text, Split::deepseek_v3) == c.want, c.text);
}

TEST_CASE("pairs merge by rank, leftmost first, in short and in long pieces") {
    const Small v;
    const Tokenizer t = load(v);
    CHECK(t.encode("hello", false) == std::vector<Token>{v.hello});
    CHECK(t.encode("hell", false) == std::vector<Token>{v.hell});
    CHECK(t.encode(" he", false) == std::vector<Token>{v.sp_h});
    CHECK(t.encode("", false).empty());
    CHECK(t.find("hello") == v.hello);
    CHECK(t.find("nothing") == -1);
    CHECK(t.n_vocab() == v.tokens.size());

    // Random merges over three letters, against the definition.
    test::Random random(5);
    Vocabulary r;
    std::vector<std::string> words = {"a", "b", "c"};
    while (words.size() < 60) {
        const std::string x = words[random.below(static_cast<uint32_t>(words.size()))],
                          y = words[random.below(static_cast<uint32_t>(words.size()))];
        if (x.size() + y.size() > 9 || std::find(words.begin(), words.end(), x + y) != words.end()) continue;
        r.merge(x, y);
        words.push_back(x + y);
    }
    const Tokenizer rt = load(r);
    for (int i = 0; i < 200; ++i) {
        std::string text;
        const uint32_t n = 1 + random.below(i % 2 ? 32 : 150);
        for (uint32_t k = 0; k < n; ++k) text += static_cast<char>('a' + random.below(3));
        const std::vector<Token> got = rt.encode(text, false);
        CHECK(got == plain_merge(r, rt, text));
        CHECK(rt.decode(Span<const Token>(got), false) == text);
    }
}

TEST_CASE("control tokens are parsed only when asked for, user-defined ones always") {
    const Small v;
    const Tokenizer t = load(v);
    const std::string text = "he<|im_end|>he<think>he";
    CHECK(t.encode(text, true) == std::vector<Token>{v.he, v.im_end, v.he, v.think, v.he});
    const std::vector<Token> plain = t.encode(text, false);
    CHECK(std::count(plain.begin(), plain.end(), v.im_end) == 0);
    CHECK(std::count(plain.begin(), plain.end(), v.think) == 1);
    CHECK(t.decode(Span<const Token>(plain), false) == text);
    CHECK(t.find("<|im_end|>") == v.im_end);

    const std::vector<Token> ids = {v.im_start, v.he, v.think, v.im_end, 999999, -1, t.find("[PAD0]")};
    CHECK(t.decode(Span<const Token>(ids), false) == "he<think>");
    CHECK(t.decode(Span<const Token>(ids), true) == "<|im_start|>he<think><|im_end|>");
}

TEST_CASE("the tags of a reply are shown whatever kind of token they are") {
    const std::vector<std::string> tags = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
    for (const int kind : {1, 2, 3, 4}) {
        Vocabulary v;
        std::vector<Token> ids;
        std::string all;
        for (const std::string& tag : tags) {
            ids.push_back(v.add(tag, kind));
            all += tag;
        }
        ids.push_back(v.add("<|im_end|>", 3));
        const Tokenizer t = load(v);
        CHECK(t.decode(Span<const Token>(ids), false) == all);
        CHECK(t.decode(Span<const Token>(ids), true) == all + "<|im_end|>");
    }
}

TEST_CASE("the longest of several special tokens at one position is taken") {
    Vocabulary v;
    const Token ab = v.add("<a><b>", 4), a = v.add("<a>", 4), abc = v.add("<a><b><c>", 3), lone = v.add("<", 4);
    const Tokenizer t = load(v);
    CHECK(t.encode("<a><b><c><a>", true) == std::vector<Token>{abc, a});
    CHECK(t.encode("<a><b><c>", false) == std::vector<Token>{ab, lone, t.find("c"), t.find(">")});
    CHECK(t.encode("<a><", false) == std::vector<Token>{a, lone});
}

TEST_CASE("special tokens are found whatever bytes they are made of") {
    // Bars of full width end in the byte 9C, which as a signed number comes before those of ASCII.
    Vocabulary v;
    std::vector<Token> ids;
    std::string all;
    for (const char* text :
         {"<\uFF5Ca\uFF5C>", "<|a|>", "<\uFF5Cb\uFF5C>", "<b>", "\u65E5\u672C", "\u65E5", "x", "\u00E9"}) {
        ids.push_back(v.add(text, ids.size() % 2 == 0 ? 4 : 3));
        all += text;
    }
    CHECK(load(v).encode(all, true) == ids);
}

TEST_CASE("special tokens are found as their definition says, in any mixture of control ranges") {
    test::Random random(5);
    for (int round = 0; round < 200; ++round) {
        Vocabulary v;
        struct Special {
            std::string text;
            bool anywhere;
        };
        std::vector<Special> specials;
        for (uint32_t n = 1 + random.below(8); n > 0; --n) {
            std::string text;
            for (uint32_t k = 1 + random.below(6); k > 0; --k) text += static_cast<char>('a' + random.below(2));
            specials.push_back({text, random.below(2) == 0});
            v.add(text, specials.back().anywhere ? 4 : 3);
        }
        const Tokenizer t = load(v);
        ChatPrompt prompt;
        std::vector<char> from_template;  // by byte
        std::vector<size_t> run_end;      // by byte: where its run of pieces of one origin ends
        for (uint32_t n = 1 + random.below(5); n > 0; --n) {
            std::string text;
            for (uint32_t k = 1 + random.below(9); k > 0; --k) text += static_cast<char>('a' + random.below(2));
            prompt.pieces.push_back({text, random.below(2) == 0});
            from_template.insert(from_template.end(), text.size(), prompt.pieces.back().from_template);
        }
        run_end.resize(from_template.size());
        for (size_t i = run_end.size(); i-- > 0;)
            run_end[i] = i + 1 < run_end.size() && from_template[i + 1] == from_template[i] ? run_end[i + 1] : i + 1;
        const std::string text = prompt.text();
        std::vector<Token> want;
        for (size_t at = 0; at < text.size();) {
            size_t best = 0;
            Token id = static_cast<Token>(text[at]);
            for (size_t i = 0; i < specials.size(); ++i) {
                const Special& s = specials[i];
                if (text.compare(at, s.text.size(), s.text) != 0 || s.text.size() <= best) continue;
                if (!s.anywhere && !(from_template[at] && at + s.text.size() <= run_end[at])) continue;
                best = s.text.size();
                id = static_cast<Token>(256 + i);
            }
            want.push_back(id);
            at += std::max(best, size_t{1});
        }
        CHECK(t.encode(prompt) == want);
    }
}

TEST_CASE("merges never build a control token") {
    Vocabulary v;
    v.merges.push_back("< x");
    v.add("<x", 3);
    const Tokenizer t = load(v);
    CHECK(t.n_merge_skipped() == 1);
    CHECK(t.encode("<x", false).size() == 2);
}

TEST_CASE("in a prompt, only the template makes control tokens, and piece boundaries do not change the encoding") {
    const Small v;
    const Tokenizer t = load(v);
    ChatPrompt p;
    p.pieces = {{"<|im_start|>user\n", true}, {"hello?", false}, {"\n<|im_end|>", true}};
    CHECK(t.encode(p) == t.encode(p.text(), true));
    CHECK(t.encode(p)[6] == v.hello);

    p.pieces[1].text = "<|im_end|><|im_start|>";
    const std::vector<Token> safe = t.encode(p);
    CHECK(std::count(safe.begin(), safe.end(), v.im_end) == 1);
    CHECK(std::count(safe.begin(), safe.end(), v.im_start) == 1);
    CHECK(t.decode(Span<const Token>(safe), true) == p.text());

    // Half from the user, half from the template: still no control token. Two template pieces: one.
    p.pieces = {{"<|im_", false}, {"end|>", true}};
    CHECK(t.encode(p).size() > 1);
    p.pieces = {{"<|im_", true}, {"end|>", true}};
    CHECK(t.encode(p) == std::vector<Token>{v.im_end});
    p.pieces = {{"<thi", false}, {"nk>", true}};
    CHECK(t.encode(p) == std::vector<Token>{v.think});
}

TEST_CASE("the end-of-generation tokens are found by key and by text") {
    Small v;
    v.ids.emplace_back("eot", 7u);
    const Tokenizer t = load(v);
    CHECK(t.ends() == std::vector<Token>{7, v.end, v.im_end});
    CHECK(t.eos() == v.im_end);
    CHECK(t.is_end(v.im_end));
    CHECK(t.is_end(7));
    CHECK_FALSE(t.is_end(v.im_start));
    CHECK_FALSE(t.is_end(-1));
    CHECK(Tokenizer().encode("x", true).empty());
}

TEST_CASE("the token that a file asks for in front of each text goes where a history begins, once") {
    Small v;
    const std::string text = "<\uFF5Cbegin\u2581of\u2581sentence\uFF5C>";
    const Token bos = v.add(text, 3), end = v.add("<\uFF5Cend\u2581of\u2581sentence\uFF5C>", 3);
    v.pre = "deepseek-v3";
    v.ids.emplace_back("bos", static_cast<uint32_t>(bos));
    CHECK(load(v).bos() == -1);
    CHECK(load(v).encode("he", false, nullptr, true) == std::vector<Token>{v.he});
    v.add_bos = true;
    const Tokenizer t = load(v);
    CHECK(t.bos() == bos);
    CHECK(t.is_end(end));
    CHECK_FALSE(t.is_end(bos));
    CHECK(t.encode("he", false) == std::vector<Token>{v.he});
    CHECK(t.encode("he", false, nullptr, true) == std::vector<Token>{bos, v.he});
    CHECK(t.encode("", false, nullptr, true) == std::vector<Token>{bos});
    CHECK(t.encode(text + "he", true, nullptr, true) == std::vector<Token>{bos, v.he});
    CHECK(t.encode("he" + text, true, nullptr, true) == std::vector<Token>{bos, v.he, bos});
    const std::vector<Token> spelled = t.encode(text, false, nullptr, true);
    CHECK(std::count(spelled.begin(), spelled.end(), bos) == 1);
    CHECK(t.decode(Span<const Token>(spelled), true) == text + text);

    ChatPrompt prompt;
    prompt.pieces = {{"<|im_start|>", true}, {"he", false}, {"<|im_end|>", true}};
    prompt.stops.push_back({2, 0, true});
    std::vector<auspex::Mark> marks;
    CHECK(t.encode(prompt, &marks) == std::vector<Token>{bos, v.im_start, v.he, v.im_end});
    REQUIRE(marks.size() == 1);
    CHECK(marks[0].row == 3);
    prompt.pieces[0].text = text + "<|im_start|>";
    CHECK(t.encode(prompt, &marks) == std::vector<Token>{bos, v.im_start, v.he, v.im_end});
    CHECK(marks[0].row == 3);
    prompt.pieces = {{text, false}};
    CHECK(t.encode(prompt) == spelled);

    v.ids.pop_back();
    CHECK(load(v).bos() == -1);
}

TEST_CASE("any bytes can be encoded, and valid text survives the round trip") {
    const Tokenizer t = load(Small());
    test::Random random(11);
    for (int i = 0; i < 300; ++i) {
        std::string bytes, fixed;
        for (uint32_t n = random.below(60); n > 0; --n)
            bytes += static_cast<char>(
                static_cast<unsigned char>(random.below(3) ? random.below(256) : 'a' + random.below(4)));
        detail::append_repaired(fixed, bytes);
        const std::vector<Token> ids = t.encode(bytes, true);
        CHECK(t.decode(Span<const Token>(ids), true) == fixed);
    }
}

TEST_CASE("a stream returns whole characters only, however the bytes are split") {
    const std::string bytes =
        "a\xC3\xA9\xF0\x9F\x98\x80\xE2\x82"
        "b\xED\xA0\x80\xFF\xC3";
    std::string want;
    detail::append_repaired(want, bytes);
    test::Random random(3);
    for (int i = 0; i < 50; ++i) {
        std::string pending, shown;
        for (size_t at = 0; at < bytes.size();) {
            const size_t n = std::min<size_t>(1 + random.below(4), bytes.size() - at);
            pending += bytes.substr(at, n);
            at += n;
            const std::string out = detail::take_characters(pending, false);
            CHECK(detail::find_bad_utf8(out) == out.size());
            CHECK(pending.size() <= 3);
            shown += out;
        }
        shown += detail::take_characters(pending, true);
        CHECK(shown == want);
        CHECK(pending.empty());
    }
}

TEST_CASE("a stop string and its possible beginnings are never returned") {
    const auto run = [](const std::string& text, const Texts& stops, size_t cut, bool* stopped) {
        std::string shown;
        detail::StopFilter filter(stops);
        for (size_t at = 0; at < text.size() && !filter.stopped(); at += cut)
            shown += filter.push(std::string_view(text).substr(at, cut));
        if (!filter.stopped()) shown += filter.finish();
        *stopped = filter.stopped();
        return shown;
    };
    const struct {
        const char* text;
        Texts stops;
        const char* want;
        bool stopped;
    } cases[] = {
        {"one STOP two", {"STOP"}, "one ", true},
        {"one STO", {"STOP"}, "one STO", false},
        {"aaab", {"aab"}, "a", true},
        {"abcd", {"bc", "abcd"}, "a", true},
        {"abcx", {"abcd"}, "abcx", false},
        {"xbcd", {"abcd"}, "xbcd", false},
        {"xabc", {"abc", "bc"}, "x", true},
        {"text", {"", "\n\n"}, "text", false},
        {"\n\n", {"\n\n"}, "", true},
        {"ababac!", {"abac"}, "ab", true},
        {"plain", {}, "plain", false},
    };
    for (const auto& c : cases)
        for (size_t cut = 1; cut <= 7; ++cut) {
            bool stopped = false;
            CHECK_MESSAGE(run(c.text, c.stops, cut, &stopped) == c.want, c.text << " in cuts of " << cut);
            CHECK(stopped == c.stopped);
        }
    detail::StopFilter filter({"STOP"});
    CHECK(filter.push("one STO") == "one ");
    CHECK(filter.n_held() == 3);
}

TEST_CASE("a StopFilter says which stop string it found, and goes on over what cannot belong to one") {
    auspex::StopFilter filter({"", "STOP", "ST"});
    CHECK(filter.found() == nullptr);
    CHECK(filter.push("one S").value() == "one ");
    CHECK(filter.finish().value() == "S");  // a call follows, for example
    CHECK(filter.push("TOP and S").value() == "TOP and ");
    CHECK(filter.push("T or not").value().empty());
    REQUIRE(filter.found() != nullptr);
    CHECK(*filter.found() == "ST");
    CHECK(filter.push("more").value().empty());
    CHECK(filter.finish().value().empty());
    auspex::StopFilter longer({"OP", "STOP"});
    CHECK(longer.push("a STOP b").value() == "a ");
    REQUIRE(longer.found() != nullptr);
    CHECK(*longer.found() == "STOP");
    const auspex::StopFilter moved = std::move(filter);
    CHECK(*moved.found() == "ST");
    auspex::StopFilter empty;
    CHECK(empty.found() == nullptr);
    CHECK(empty.push("x").status().code == Code::bad_argument);
    CHECK(empty.finish().status().code == Code::bad_argument);
}

TEST_CASE("a stop string of a million bytes costs a stream time in proportion to the text") {
    // Where each push looked at everything held again, this took 10^11 comparisons.
    const std::string stop = std::string(1000000, 'a') + "b";
    detail::StopFilter filter({stop});
    size_t n_shown = 0;
    for (int i = 0; i < 1200000; ++i) n_shown += filter.push("a").size();
    CHECK(n_shown == 200000);
    CHECK_FALSE(filter.stopped());
    CHECK(filter.push("b").empty());
    CHECK(filter.stopped());
}

TEST_CASE("the published pre-tokenizer cases are split the same way") {
    const char* shared = test::shared_dir("vectors/vocab");
    if (!shared) return;
    detail::Json cases;
    const Status s =
        detail::Json::parse(test::read_text(std::string(shared) + "/vectors/vocab/pretokenizer_splits.json"))
            .get(cases);
    REQUIRE_MESSAGE(s.ok(), s.message());
    CHECK(cases.items().size() >= 50);
    for (const detail::Json& c : cases.items())
        for (const char* name : {"qwen2", "qwen35"}) {
            Texts want;
            for (const detail::Json& p : c.find(name)->items()) want.push_back(p.text());
            CHECK_MESSAGE(
                pieces(c.find("text")->text(), name == std::string("qwen2") ? Split::qwen2 : Split::qwen35) == want,
                c.find("text")->text());
        }
}

TEST_CASE("the published Qwen2 encodings are reproduced") {
    const char* shared = test::shared_dir("vectors/vocab");
    if (!shared) return;
    const std::string dir = std::string(shared) + "/vectors/vocab/";
    const std::vector<std::byte> file = file_bytes(dir + "qwen2-rebuilt-vocab.gguf");
    Tokenizer t;
    const Status s = load(file).get(t);
    REQUIRE_MESSAGE(s.ok(), s.message());
    CHECK(t.n_vocab() == 151646);
    CHECK(t.n_merge_skipped() == 0);
    const std::string texts = test::read_text(dir + "ggml-vocab-qwen2.gguf.inp"),
                      ids = test::read_text(dir + "ggml-vocab-qwen2.gguf.out");
    const std::string cut = "\n__ggml_vocab_test__\n";
    size_t n = 0, line = 0;
    for (size_t at = 0, end = 0; (end = texts.find(cut, at)) != std::string::npos; at = end + cut.size(), ++n) {
        const std::string text = texts.substr(at, end - at);
        std::vector<Token> want;
        const size_t line_end = ids.find('\n', line);
        REQUIRE(line_end != std::string::npos);
        const std::string row = ids.substr(line, line_end - line);
        line = line_end + 1;
        for (size_t p = 0; (p = row.find_first_of("0123456789", p)) != std::string::npos; p = row.find(' ', p))
            want.push_back(std::atoi(row.c_str() + p));
        CHECK_MESSAGE(t.encode(text, false) == want, text);
        CHECK(t.decode(Span<const Token>(want), false) == text);
    }
    CHECK(n == 46);
    // In this vocabulary every normal token's bytes merge back to exactly that token.
    size_t n_other = 0;
    detail::EncodeWork work;
    for (Token id = 0; id < 151643; ++id) {
        const std::string text(t.piece_bytes(id));
        if (detail::find_bad_utf8(text) < text.size() || detail::split_piece(text, 0, Split::qwen2) != text.size())
            continue;
        if (t.encode(text, false, &work) != std::vector<Token>{id}) ++n_other;
    }
    CHECK(n_other == 0);
}

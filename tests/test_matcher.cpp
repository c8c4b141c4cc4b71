#include "../src/grammar/matcher.h"
#include "../src/grammar/regex.h"
#include "support.h"

#include <doctest/doctest.h>

using namespace auspex;
using namespace auspex::detail;

namespace {

using RulesPtr = std::shared_ptr<const Rules>;
using VocabPtr = std::shared_ptr<const VocabTrie>;

RulesPtr gbnf(const std::string& text) {
    RulesPtr rules;
    const Status status = rules_from_gbnf(text).get(rules);
    REQUIRE_MESSAGE(status.ok(), status.message());
    return rules;
}

const char* const kJson = R"GBNF(
root   ::= value
value  ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? ws "}"
array  ::= "[" ws ( value ("," ws value)* )? ws "]"
string ::= "\"" ( [^"\\\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\""
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,3})?
ws ::= | " " | "\n" [ \t]{0,20}
)GBNF";

/// Every byte, pieces as they are frequent in JSON and text, parts of characters, equal tokens, control tokens.
struct Vocab {
    std::vector<VocabTrie::Piece> pieces;
    Token end = 0, think = 0, call = 0;
    VocabPtr trie;

    explicit Vocab(uint64_t seed, size_t n_random = 600) {
        for (unsigned b = 0; b < 256; ++b) add(std::string(1, static_cast<char>(b)));
        for (const char* p : {"\"",
                              "\":",
                              "\": ",
                              "\",",
                              "\", \"",
                              "\"}",
                              "\"]",
                              "{\"",
                              "[\"",
                              "[[",
                              "]]",
                              "}}",
                              "},",
                              "],",
                              "\\\"",
                              "\\u",
                              "\\n",
                              "\\\\",
                              "00",
                              "123",
                              "-1",
                              "1.5",
                              "e+",
                              "true",
                              "false",
                              "null",
                              ", ",
                              " ",
                              "  ",
                              "\n",
                              "\n\n",
                              "a",
                              "name",
                              "the",
                              " the",
                              "value\":",
                              "a\"b",
                              "x\",\"y",
                              "\xC3\xA9",
                              "\xE2\x82",
                              "\xE2\x82\xAC",
                              "\xF0\x9F",
                              "\x98\x80",
                              "\xC3\xA9\"",
                              "\xED\xA0\x80",
                              "\xC0\x80",
                              "abcdefghijklmnopqrstuvwxyz",
                              "(a",
                              ")."})
            add(p);
        for (const char* p : {"a/b", "/", "\xE2\x80\xA8", "x\xE2\x80\xA8y", " a", "ac", "abc"}) add(p);
        // Spaces of Unicode, and their neighbours.
        for (const char* p : {"\xC2\xA0", "a\xC2\xA0", " \xC2\x85", "\xE1\x9A\x80", "\xE1\x9A\x81x", "\xE2\x80\x83x",
                              " \xE2\x80\x8B", "\xE2\x81\x9F", "\xE3\x80\x80", "\xE3\x80\x81", "\xEF\xBB\xBF",
                              "\xEF\xBB\xBEz", " \xE4\xB8\x80", "b c", " 012"})
            add(p);
        for (const size_t n : {size_t{30}, size_t{63}, size_t{64}, size_t{65}, size_t{80}}) {
            add(std::string(n, 'a'));
            add(std::string(n, 'a') + "\"");
            add(std::string(n, ' ') + "b");
            add(std::string(n, 'a') + ".b");
        }
        test::Random random(seed);
        const char chars[] = "abcde01 \"\\{}[]:,.-nu\n\xC3\xA9(x)";
        for (size_t i = 0; i < n_random; ++i) {
            std::string s;
            for (uint32_t n = 1 + random.below(6); n > 0; --n) s += chars[random.below(sizeof chars - 1)];
            add(s);
        }
        think = add("</think>", false);
        call = add("<tool_call>", false);
        end = add("<|im_end|>", false);
        pieces.back().end = true;
        add("");
        trie = VocabTrie::build(pieces);
    }
    Token add(const std::string& bytes, bool text = true) {
        VocabTrie::Piece p;
        p.bytes = bytes;
        p.text = text;
        pieces.push_back(p);
        return static_cast<Token>(pieces.size() - 1);
    }
};

std::unique_ptr<Matcher> make(const RulesPtr& rules, const Vocab& vocab) {
    std::unique_ptr<Matcher> m;
    const Status status = Matcher::create(rules, vocab.trie).get(m);
    REQUIRE_MESSAGE(status.ok(), status.message());
    return m;
}
bool bit(const std::vector<uint32_t>& bits, Token t) {
    return (bits[static_cast<size_t>(t) / 32] >> (t % 32) & 1) != 0;
}
std::vector<uint32_t> mask(Matcher& m) {
    std::vector<uint32_t> bits(m.n_word(), 0xFFFFFFFF);
    m.mask(Span<uint32_t>(bits));
    return bits;
}
bool takes(Matcher& m, Token t) {
    if (!m.accept(t)) return false;
    m.rollback(1);
    return true;
}

/// Random walks; at each state, the mask against accept() of every token, and forced() against all bytes.
void compare(const RulesPtr& rules, const Vocab& vocab, uint64_t seed, int n_step) {
    std::unique_ptr<Matcher> m = make(rules, vocab);
    test::Random random(seed);
    for (int step = 0; step < n_step; ++step) {
        const std::vector<uint32_t> bits = mask(*m);
        std::vector<Token> allowed;
        size_t n_wrong = 0;
        for (size_t i = 0; i < vocab.pieces.size(); ++i) {
            const Token t = static_cast<Token>(i);
            const bool taken = takes(*m, t);
            n_wrong += taken != bit(bits, t) ? 1 : 0;
            if (taken) allowed.push_back(t);
        }
        REQUIRE(n_wrong == 0);
        CHECK(mask(*m) == bits);
        const std::string forced = m->forced(20);
        if (!forced.empty()) {
            for (unsigned b = 0; b < 256; ++b) {
                const char c = static_cast<char>(b);
                const bool taken = m->accept(std::string_view(&c, 1));
                CHECK(taken == (c == forced[0]));
                if (taken) m->rollback(1);
            }
            CHECK(m->accept(forced));
            m->rollback(1);
        }
        // A dead end must not exist: every state accepts or goes on.
        REQUIRE((m->is_finished() || !allowed.empty()));
        if (m->is_finished() || random.below(40) == 0) {
            m->rollback(m->is_finished() ? m->n_step() : random.below(static_cast<uint32_t>(m->n_step()) + 1));
            continue;
        }
        CHECK(m->accept(allowed[random.below(static_cast<uint32_t>(allowed.size()))]));
    }
}

}  // namespace

TEST_CASE("a mask has the bit of every token that accept takes, and no other") {
    const Vocab vocab(1);
    compare(gbnf(kJson), vocab, 2, 150);
    compare(gbnf("root ::= \"\\\"\" [^\"\\\\\\x00-\\x1F]{3,20} \"\\\"\" root?"), vocab, 3, 60);
    compare(gbnf("root ::= \"\\\"\" [^\"\\\\\\x00-\\x1F]{40,200} \"\\\"\" [a-z ]{0,30} root?"), vocab, 13, 60);
    compare(gbnf("root ::= \"\\\"\" ([^\"\\\\\\x00-\\x1F] | \"\\\\\" [nt\"]){0,28} \"\\\"\" root?"), vocab, 14, 60);
    compare(gbnf("root ::= \"\\\"\" any{60,210} \"\\\"\" [a-z ]{0,30} root?\nany ::= [^\"\\\\\\x00-\\x1F]"), vocab, 15,
            40);
    compare(gbnf("root ::= \"\\\"\" [^\"\\\\\\x00-\\x1F/\\u2028]+ \"\\\"\" [a-z]* root?"), vocab, 16, 40);
    compare(gbnf("root ::= \"\\\"\" any* [ab] \"c\" any* \"\\\"\"\nany ::= [^\"\\\\\\x00-\\x1F]"), vocab, 17, 40);
    compare(gbnf("root ::= \"\\\"\" (word \" \"+){0,9} word \"\\\"\" root?\nword ::= [^\"\\\\\\x00- ]+"), vocab, 18,
            40);
    compare(gbnf("root ::= ([^\\x00-\\x1F\"\\\\b] | \"b/\")* \"\\\\\" [^\\x00-\\x1F]{3,70}"), vocab, 19, 40);
    compare(gbnf("root ::= any{9,200} \".\" [bc] [\\n\"] root?\nany ::= [^.\"\\\\\\x00-\\x1F]"), vocab, 20, 60);
    const std::string words =
        "\nword ::= [^\"\\\\\\x00-\\x20\\u00A0\\u1680\\u2000-\\u200A\\u2028\\u2029\\u202F\\u205F\\u3000\\uFEFF]+"
        "\nspace ::= [ \\u00A0\\u2003\\u3000]";
    compare(gbnf("root ::= \"\\\"\" (word space+){0,20} word \"\\\"\" root?" + words), vocab, 21, 60);
    compare(gbnf("root ::= \"\\\"\" (word space){0,2} word [ .a] \"\\\"\" root?" + words), vocab, 22, 60);
    compare(gbnf("root ::= \"\\\"\" word \"\\\"\" root?" + words), vocab, 23, 40);
    // Where the text may go on within an expression or behind it, and where several rules share an expression.
    compare(gbnf("root ::= any* [0-9]{3} any* \"\\\"\" root?\nany ::= [^\"\\\\\\x00-\\x1F]"), vocab, 24, 60);
    compare(gbnf("root ::= any{0,12} [ab]{2} any{0,12} \"\\\"\" root?\nany ::= [^\"\\\\\\x00-\\x1F]"), vocab, 25, 60);
    compare(gbnf("root ::= \"\\\"\" any{2,12} tail root?\ntail ::= \"aaa\" tail | \"c\\\"\" | \"a\\\"\"\n"
                 "any ::= [^\"\\\\\\x00-\\x1F]"),
            vocab, 27, 60);
    compare(
        gbnf("root ::= string \":\" | string \",\" root | pair | string string \"a\"\npair ::= string \"x,\" pair?\n"
             "string ::= \"\\\"\" [^\"\\\\\\x00-\\x1F]* \"\\\"\""),
        vocab, 26, 60);
    compare(gbnf("root ::= [a-e ]+ \".\" | [^b\\n]* \"\\n\" root"), vocab, 4, 60);
    compare(gbnf("root ::= [^\\n]* \"x\"* [^\\n]*"), vocab, 5, 40);
    compare(gbnf("root ::= item{2,5}\nitem ::= \"(\" item? \")\" | [a-z]{1,8} \".\""), vocab, 6, 60);
    compare(gbnf("root ::= .*"), vocab, 7, 10);
    compare(gbnf("root ::= (\"ab\" | \"abc\" | \"abcd\")* \"e\""), vocab, 8, 30);
    compare(gbnf("root ::= \"the name: \" (\"a\" | \"b\" | \"c\") \", value\" [01]{0,10}"), vocab, 9, 40);
}

TEST_CASE("control tokens are taken only where the grammar names them") {
    const Vocab vocab(1, 10);
    std::unique_ptr<Matcher> m = make(gbnf("root ::= [^<]* </think> \"a\"+ <[305]>?"), vocab);
    CHECK(vocab.pieces.size() > 305);
    CHECK_FALSE(m->accept(vocab.call));
    CHECK_FALSE(m->accept(vocab.end));
    CHECK(m->accept(std::string_view("free")));
    CHECK_FALSE(m->accept(std::string_view("</think>")));  // the text of a control token is not the token
    CHECK(m->accept(vocab.think));
    CHECK_FALSE(m->is_accepting());
    CHECK(m->accept(Token{'a'}));
    CHECK(m->is_accepting());
    CHECK(bit(mask(*m), vocab.end));
    CHECK(m->accept(vocab.end));
    CHECK(m->is_finished());
    CHECK_FALSE(m->accept(vocab.end));
    for (const uint32_t word : mask(*m)) CHECK(word == 0);
    m->rollback(1);
    CHECK_FALSE(m->is_finished());
    CHECK(m->accept(Token{305}));
    CHECK_FALSE(m->accept(Token{'a'}));
    CHECK(m->is_accepting());

    std::unique_ptr<Matcher> any = make(gbnf("root ::= !</think>* </think>"), vocab);
    CHECK(any->accept(vocab.call));
    CHECK(any->accept(Token{'a'}));
    CHECK_FALSE(any->accept(vocab.end));
    CHECK(any->accept(vocab.think));
    CHECK(any->is_accepting());
    compare(gbnf("root ::= !</think>* </think> ([a-c]+ <tool_call>)* \"x\""), vocab, 3, 40);

    const auto refused = [&](const char* text) { return Matcher::create(gbnf(text), vocab.trie).status().message(); };
    CHECK(refused("root ::= <nothing>").find("control token '<nothing>'") != std::string::npos);
    CHECK(refused("root ::= <[99999]>").find("token 99999") != std::string::npos);
    std::vector<VocabTrie::Piece> few(1);
    few[0].bytes = "b";
    CHECK(Matcher::create(gbnf("root ::= \"a\""), VocabTrie::build(few)).status().message().find("no token") !=
          std::string::npos);
}

TEST_CASE("taking steps back restores masks, through a memory limit too") {
    const Vocab vocab(4);
    const RulesPtr rules = gbnf(kJson);
    std::unique_ptr<Matcher> m = make(rules, vocab), limited = make(rules, vocab);
    limited->set_memory_limit(size_t{40} << 10);
    test::Random random(11);
    std::vector<std::vector<uint32_t>> masks;
    for (int step = 0; step < 400; ++step) {
        const std::vector<uint32_t> bits = mask(*m);
        CHECK(mask(*limited) == bits);
        if (m->n_step() < masks.size()) {
            CHECK(bits == masks[m->n_step()]);
        } else {
            masks.push_back(bits);
        }
        if (random.below(10) == 0) {
            const size_t n = random.below(static_cast<uint32_t>(m->n_step()) + 1);
            m->rollback(n);
            limited->rollback(n);
            continue;
        }
        std::vector<Token> allowed;
        for (size_t i = 0; i < vocab.pieces.size(); ++i)
            if (bit(bits, static_cast<Token>(i))) allowed.push_back(static_cast<Token>(i));
        if (allowed.empty()) continue;
        const Token t = allowed[random.below(static_cast<uint32_t>(allowed.size()))];
        masks.resize(m->n_step() + 1);
        CHECK(m->accept(t));
        CHECK(limited->accept(t));
    }
    CHECK(limited->work().n_compact > 0);
    CHECK(m->work().n_compact == 0);
}

TEST_CASE("a text with more readings than are followed is an error, until steps are taken back") {
    const Vocab vocab(1, 10);
    // After n times x, 0 to n times y may follow.
    std::unique_ptr<Matcher> m = make(gbnf("root ::= \"x\" root \"y\" | \"x\" root | \"x\""), vocab);
    for (int i = 0; i < 100; ++i) CHECK(m->accept(Token{'x'}));
    CHECK(m->status().ok());
    CHECK(m->accept(std::string(900, 'x')));
    CHECK(m->status().code == Code::unsupported);
    CHECK(m->status().text.find("more than 512 ways") != std::string::npos);
    CHECK(m->accept(Token{'x'}));
    CHECK_FALSE(m->status().ok());
    m->set_memory_limit(1);
    mask(*m);  // forgets states, and keeps that readings are missing
    CHECK(m->work().n_compact > 0);
    CHECK_FALSE(m->status().ok());
    m->rollback(2);
    CHECK(m->status().ok());
    // Counts within counts that many combinations lead to.
    m = make(gbnf("root ::= ([a-z]{50,99} \"x\"?){50,100} \"0\""), vocab);
    while (m->status().ok() && m->n_step() < 5000) REQUIRE(m->accept(Token{'x'}));
    CHECK(m->n_step() > 1000);
    CHECK(m->status().code == Code::unsupported);
    m->rollback(1);
    CHECK(m->status().ok());
    CHECK(bit(mask(*m), Token{'x'}));
    // A stack that is too deep.
    m = make(gbnf("root ::= \"(\" root \")\" | \"x\""), vocab);
    CHECK(m->accept(std::string(1500, '(')));
    CHECK(m->status().ok());
    while (m->accept(Token{'('})) CHECK(m->n_step() < 1000);
    CHECK(m->n_step() > 400);
    CHECK(m->status().code == Code::unsupported);
}

TEST_CASE("a text whose states take too much memory is an error, until steps are taken back") {
    const Vocab vocab(1, 10);
    // Every x adds a reading to the state.
    std::unique_ptr<Matcher> m = make(gbnf("root ::= \"x\" root \"y\" | \"x\" root | \"x\""), vocab);
    constexpr size_t kMax = size_t{512} << 10;
    m->set_memory_limit(1024, kMax);
    while (m->status().ok() && m->n_step() < 500) {
        REQUIRE(m->accept(Token{'x'}));
        CHECK(m->memory() < kMax + (size_t{64} << 10));
    }
    CHECK(m->n_step() > 100);
    CHECK(m->status().code == Code::unsupported);
    CHECK(m->status().text.find("the states of the text take") != std::string::npos);
    m->rollback(m->n_step() - 50);
    CHECK(m->status().ok());
    CHECK(m->accept(Token{'x'}));
    CHECK(m->status().ok());
    CHECK(m->memory() < kMax / 2);
}

TEST_CASE("forced text is what must come") {
    const Vocab vocab(1, 10);
    std::unique_ptr<Matcher> m = make(gbnf("root ::= \"city: \" [A-Z] \"\\n</p>\" (\"\" | \"x\")"), vocab);
    CHECK(m->forced() == "city: ");
    CHECK(m->forced(3) == "cit");
    CHECK(m->accept(std::string_view("city: ")));
    CHECK(m->forced().empty());
    CHECK(m->accept(std::string_view("Q")));
    CHECK(m->forced() == "\n</p>");
    CHECK(m->accept(std::string_view("\n</p>")));
    CHECK(m->forced().empty());
}

TEST_CASE("counts within counts: one mask takes few states") {
    // Each byte of a run may belong to any of the counts.
    Vocab vocab(1, 10);
    for (size_t n = 2; n <= 128; ++n) vocab.add(std::string(n, ' '));
    vocab.trie = VocabTrie::build(vocab.pieces);
    std::unique_ptr<Matcher> m = make(gbnf("root ::= (((\" \"{0,1000}){0,1000}){0,1000}){0,1000} \"y\""), vocab);
    CHECK(m->memory() < (size_t{1} << 20));
    m = make(gbnf("root ::= (((\" \"{0,300} \"a\"?){0,300} \"b\"?){0,300} \"c\"?){0,300} \"y\""), vocab);
    CHECK(m->memory() < (size_t{4} << 20));
    CHECK(m->accept(std::string(1000, ' ')));
    CHECK(bit(mask(*m), Token{'c'}));
    CHECK(m->status().ok());
}

TEST_CASE("hostile patterns keep masks within the memory limit") {
    const Vocab vocab(3, 3000);
    std::unique_ptr<Matcher> m = make(gbnf("root ::= ([a-e]* \"a\" [a-e]{12} | [a-e 01]* \"b\")* \"x\""), vocab);
    m->set_memory_limit(size_t{8} << 20);
    test::Random random(5);
    for (int i = 0; i < 300; ++i) {
        const char c = "abcde"[random.below(5)];
        CHECK(m->accept(std::string_view(&c, 1)));
        if (i % 20 == 0) CHECK(bit(mask(*m), Token{'a'}));
        CHECK(m->memory() < (size_t{64} << 20));
    }
}

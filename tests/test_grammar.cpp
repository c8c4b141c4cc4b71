#include "../src/grammar/automaton.h"
#include "../src/grammar/regex.h"
#include "allocations.h"
#include "support.h"

#include <doctest/doctest.h>

using namespace auspex;
using namespace auspex::detail;

namespace {

using RulesPtr = std::shared_ptr<const Rules>;

RulesPtr gbnf(const std::string& text) {
    RulesPtr rules;
    const Status status = rules_from_gbnf(text).get(rules);
    REQUIRE_MESSAGE(status.ok(), status.message());
    return rules;
}
RulesPtr regex(const std::string& pattern) {
    RulesPtr rules;
    const Status status = rules_from_regex(pattern).get(rules);
    REQUIRE_MESSAGE(status.ok(), pattern << ": " << status.message());
    return rules;
}
std::string gbnf_error(const std::string& text) {
    const Result<RulesPtr> r = rules_from_gbnf(text);
    CHECK_FALSE(r.ok());
    return r.status().message();
}
std::string regex_error(const std::string& pattern) {
    const Result<RulesPtr> r = rules_from_regex(pattern);
    CHECK_FALSE(r.ok());
    return r.status().message();
}

/// 2: a text of the grammar, 1: the beginning of one, 0: neither.
int verdict(const RulesPtr& rules, std::string_view text) {
    Automaton a(rules);
    StateId s = a.start();
    for (const char c : text) s = a.step(s, static_cast<unsigned char>(c));
    return s == kDead ? 0 : a.accepting(s) ? 2 : 1;
}

struct Case {
    const char* text;
    int verdict;
};
void check(const RulesPtr& rules, const std::vector<Case>& cases) {
    for (const Case& c : cases) CHECK_MESSAGE(verdict(rules, c.text) == c.verdict, c.text);
}

const char* const kJson = R"GBNF(
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws   # any value
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
)GBNF";

}  // namespace

TEST_CASE("GBNF: literals, classes, groups and repetitions") {
    check(gbnf("root ::= \"a\" [0-9]+ (\"x\" | \"yy\")? \"\\n\""),
          {{"a1\n", 2}, {"a12x\n", 2}, {"a1yy\n", 2}, {"a\n", 0}, {"a1y\n", 0}, {"a1", 1}, {"", 1}, {"a1\n\n", 0}});
    check(gbnf("root ::= [a-c]{2,3}"), {{"a", 1}, {"ab", 2}, {"abc", 2}, {"abca", 0}});
    check(gbnf("root ::= \"ab\"{2,}"), {{"ab", 1}, {"abab", 2}, {"ababab", 2}, {"aba", 1}, {"abb", 0}});
    check(gbnf("root ::= \"ab\"{2}"), {{"abab", 2}, {"ababab", 0}});
    check(gbnf("root ::= [^a\\n]* \".\""), {{"xy.", 2}, {"xy..", 2}, {"a", 0}, {"\xC3\xA9.", 2}, {"\xC3.", 0}});
    check(gbnf("root ::= . \"\\x41\\u00e9\\U0001F600\""), {{"zA\xC3\xA9\xF0\x9F\x98\x80", 2}, {"zA\xC3\xA8", 0}});
    check(gbnf("# first\nroot ::= (\n  \"a\" # one\n  | \"b\"\n) end\n\nend ::= \"!\" |\n  \"?\"\n"),
          {{"a!", 2}, {"b?", 2}, {"a", 1}, {"!", 0}});
    check(gbnf("root ::= \"\" | \"a\""), {{"", 2}, {"a", 2}, {"b", 0}});
    check(gbnf("root ::= [\\]\\[a-] \"\\\"\""), {{"]\"", 2}, {"[\"", 2}, {"-\"", 2}, {"b", 0}});
    // Within parentheses a line may break before a repetition and in its counts.
    check(gbnf("root ::= (\"a\" # any number\n  *\n  [b] {2,\n 3\n}\n) \"c\""),
          {{"", 1}, {"bbc", 2}, {"aabbbc", 2}, {"abc", 0}, {"bbbbc", 0}});
    check(gbnf("root ::= ((\"a\"\n+)\n?\n\"b\")"), {{"b", 2}, {"aab", 2}, {"ba", 0}});
    CHECK(gbnf_error("root ::= \"a\"\n*") == "bad_argument: line 2: expected the name of a rule, found '*'");
}

TEST_CASE("GBNF: recursive rules, JSON") {
    check(gbnf(kJson), {{"{}", 2},
                        {"{\"a\":[1,2.5e-3,{\"b\":null}],\"c\":\"x\\u00e9\\n\"}", 2},
                        {"{\"a\": [1, 2]}", 2},
                        {"{\"a\":01}", 0},
                        {"{\"a\":", 1},
                        {"{\"a\":}", 0},
                        {"{\"a\"\n", 1},
                        {"{\"a\":tru", 1},
                        {"{,}", 0}});
    const RulesPtr nested = gbnf("root ::= \"(\" root \")\" | \"x\"");
    CHECK(verdict(nested, std::string(500, '(') + "x" + std::string(500, ')')) == 2);
    CHECK(verdict(nested, std::string(500, '(') + "x" + std::string(501, ')')) == 0);
    CHECK(verdict(nested, std::string(500, '(') + "x" + std::string(499, ')')) == 1);
    // Several readings at once: a^n b^n or a^n b^2n.
    check(gbnf("root ::= x | y\nx ::= \"a\" x \"b\" | \"\"\ny ::= \"a\" y \"bb\" | \"\""),
          {{"aabb", 2}, {"aabbb", 1}, {"aabbbb", 2}, {"aabbbbb", 0}, {"", 2}});
    check(gbnf("root ::= item{2,3}\nitem ::= \"[\" item? \"]\""),
          {{"[][]", 2}, {"[]", 1}, {"[[]][][[[]]]", 2}, {"[][][][]", 0}});
}

TEST_CASE("GBNF: errors name the line") {
    CHECK(gbnf_error("root ::= \"a\"\nroot ::= \"b\"") ==
          "bad_argument: line 2: the rule 'root' is defined on line 1 already");
    CHECK(gbnf_error("root ::= a\n\na ::= b \"x\"\n") ==
          "bad_argument: line 3: the rule 'b' is used and never defined");
    CHECK(gbnf_error("rot ::= \"a\"").find("no rule 'root'") != std::string::npos);
    CHECK(gbnf_error("root ::= \"a\nx ::= \"b\"").find("line 1: expected '\"'") != std::string::npos);
    CHECK(gbnf_error("root ::= (\"a\"\n\n").find("line 3: expected ')', found the end") != std::string::npos);
    CHECK(gbnf_error("root ::= [a").find("expected ']'") != std::string::npos);
    CHECK(gbnf_error("root ::= [b-a]").find("ascending") != std::string::npos);
    for (const char* text : {"root ::= \"\\q\"", "root ::= \"\\\xC3\xA9\"", "root ::= [\\\xC3\xA9]"})
        CHECK_MESSAGE(gbnf_error(text).find("after the backslash") != std::string::npos, text);
    for (const char* text : {"root ::=\nfoo ::= \"a\"", "root ::= \"a\" |\nfoo ::= \"a\""})
        CHECK(gbnf_error(text) ==
              "bad_argument: line 2: expected the body of a rule or an alternative (\"\" is the empty text), found "
              "'foo ::= \"a\"'");
    CHECK(gbnf_error("root ::= \"a\" foo ::= \"a\"").find("line 1: expected a line break before the next rule") !=
          std::string::npos);
    CHECK(gbnf_error("root ::= (\"a\"\nfoo ::= \"a\"").find("line 2: expected ')' before the next rule") !=
          std::string::npos);
    CHECK(gbnf_error("root ::= \"a\"{3,2}").find("not below") != std::string::npos);
    CHECK(gbnf_error("root : \"a\"").find("expected '::='") != std::string::npos);
    CHECK(gbnf_error("root ::= \"a\" }").find("line 1") != std::string::npos);
    CHECK(gbnf_error("root ::= \"\xC3\"").find("UTF-8") != std::string::npos);
    CHECK(gbnf_error("root ::= a \"x\"\na ::= b?  root | \"y\"\nb ::= \"z\"")
              .find("left recursion: 'root' -> 'a' -> 'root'") != std::string::npos);
    CHECK(gbnf_error("root ::= \"(\" root \")\"").find("matches nothing") != std::string::npos);
}

TEST_CASE("regular expressions match whole texts") {
    check(regex("a(b|c)*d?"), {{"a", 2}, {"abcb", 2}, {"abd", 2}, {"add", 0}, {"b", 0}});
    check(regex("^[0-9]{3}-\\d{4}$"), {{"555-1234", 2}, {"555-123", 1}, {"5555", 0}});
    check(regex("(?:a|b){2,3}?c+"), {{"abc", 2}, {"abacc", 2}, {"abab", 0}, {"ac", 0}});
    check(regex("\\w+@\\w+\\.(com|org)"), {{"me@x.org", 2}, {"me@x.net", 0}, {"@", 0}});
    check(regex("[^\\s\"]+"), {{"ab", 2}, {"a b", 0}, {"\xC2\xA0", 0}, {"\xC3\xA9", 2}});
    check(regex("\\u00e9\\x41\\t\\.\\/\\-"), {{"\xC3\xA9"
                                               "A\t./-",
                                               2}});
    check(regex("x{,3}a{b"), {{"x{,3}a{b", 2}});
    check(regex("{a}{,2}"), {{"{a}{,2}", 2}});
    check(regex("\\ud83d\\udc41|\\ud83d\\u0041|x"), {{"\xF0\x9F\x91\x81", 2}, {"\xEF\xBF\xBD", 0}, {"x", 2}});
    CHECK(regex_error("\\ud83d\\u0041").find("matches nothing") != std::string::npos);
    check(regex("\\p{L}+"), {{"a\xC3\xA9\xD0\x96", 2}, {"1", 0}});
    check(regex("\\p{P}+\\p{S}"), {{"_\xE3\x80\x81$", 2}, {"$_", 0}, {"_a", 0}});
    check(regex("\\P{Symbol}"), {{"a", 2}, {"$", 0}});
    check(regex("^a|b$"), {{"a", 2}, {"b", 2}, {"ab", 0}});
    check(regex(""), {{"", 2}, {"a", 0}});
    check(regex("[\\w-]+|[a\\-z]"), {{"a-b", 2}, {"-", 2}, {"%", 0}});
    check(regex("(a{0,3}){2}"), {{"", 2}, {"aaaaaa", 2}, {"aaaaaaa", 0}});
}

TEST_CASE("counts within counts match what the same expression without counts matches") {
    // body{lo,hi} as a count, or written out.
    const auto times = [](const std::string& body, int lo, int hi, bool counted) {
        if (counted) return say("(", body, "){", lo, ",", hi, "}");
        std::string text;
        for (int i = hi; i > 0; --i) text = say(i > lo ? "((" : "(", body, ")", text, i > lo ? "|)" : "");
        return "(" + text + ")";
    };
    const auto written = [&](int kind, bool counted) {
        const auto n = [&](const std::string& body, int lo, int hi) { return times(body, lo, hi, counted); };
        switch (kind) {
            case 0: return n(n("x", 2, 3), 1, 3) + "y";  // 2, 3, 4 to 9
            case 1: return n(n("x", 3, 4), 0, 3) + "y";  // gaps
            case 2: return n(n("x", 2, 3), 2, 2);
            case 3: return n(n(n("x", 1, 2) + "y?", 1, 2) + "z?", 1, 3);
            case 4: return n(n("x", 2, 4) + "(y|x)?", 2, 3) + n("x", 0, 2);
            default: return n(n("x", 0, 2) + "|" + n("xy", 1, 2), 2, 3);
        }
    };
    for (int kind = 0; kind < 6; ++kind) {
        const RulesPtr counted = regex(written(kind, true)), plain = regex(written(kind, false));
        Automaton a(counted), b(plain);
        size_t n_text = 0;
        bool same = true;
        const std::function<void(StateId, StateId, size_t)> compare = [&](StateId x, StateId y, size_t depth) {
            ++n_text;
            same = same && (x == kDead) == (y == kDead) && a.accepting(x) == b.accepting(y);
            if (x == kDead || depth == 13) return;
            for (unsigned char c = 'x'; c <= 'z'; ++c) compare(a.step(x, c), b.step(y, c), depth + 1);
        };
        compare(a.start(), b.start(), 0);
        CHECK_MESSAGE(same, written(kind, true));
        CHECK(n_text > 10);
    }
    check(regex("(((x{0,1000}){0,1000}){0,1000}){0,1000}y"), {{"xxxy", 2}, {"y", 2}, {"xz", 0}});
    check(regex("(x{3}){2}"), {{"xxxxx", 1}, {"xxxxxx", 2}, {"xxxxxxx", 0}});
    check(regex("((ab)+){2,3}"), {{"ab", 1}, {"abab", 2}, {"abababababab", 2}, {"aba", 1}});
}

TEST_CASE("regular expressions: errors name the place and the reason") {
    CHECK(regex_error("a(b").find("expected ')', found the end at byte 3") != std::string::npos);
    CHECK(regex_error("a)").find("byte 1") != std::string::npos);
    CHECK(regex_error("*a").find("something to repeat") != std::string::npos);
    CHECK(regex_error("a**").find("no second repetition") != std::string::npos);
    CHECK(regex_error("a{2}{3}").find("no second repetition, found '{3}' at byte 4") != std::string::npos);
    CHECK(regex_error("a+?{3,}").find("no second repetition") != std::string::npos);
    for (const char* p : {"{3}", "a|{3}", "^{3,4}", "({3})", "{5,2}"})
        CHECK_MESSAGE(regex_error(p).find("something to repeat") != std::string::npos, p);
    CHECK(regex_error("[a").find("']'") != std::string::npos);
    CHECK(regex_error("a{2,1}").find("not below") != std::string::npos);
    for (const char* p : {"(?=a)b", "(?!a)b", "(?<=a)b", "(a)\\1", "a\\b", "(?i)a", "\\p{Lu}", "a^b"})
        CHECK_MESSAGE(regex_error(p).find("unsupported") == 0, p);
    for (const char* p : {"a\\01", "\\00", "[\\07]"})
        CHECK_MESSAGE(regex_error(p).find("an octal escape at byte") != std::string::npos, p);
    CHECK(verdict(regex("a\\0b[\\0]"), std::string_view("a\0b\0", 4)) == 2);
    check(regex("\\cJ[\\ci]"), {{"\n\t", 2}, {"\n", 1}, {"\n\n", 0}});
    for (const char* p : {"\\c1", "\\c\xC3\xA9", "[\\c_]", "\\c"})
        CHECK_MESSAGE(regex_error(p).find("this escape at byte") != std::string::npos, p);
    for (const char* p : {"a^b", "a(^b|c)", "(^a|b)c$|x$y", "^(a^|b)$", "(^a)*"})
        CHECK_MESSAGE(
            regex_error(p).find("at the ends of the pattern and of its alternatives only") != std::string::npos, p);
    std::string anchored = "(^a$", plain = "^(a";
    for (int i = 0; i < 1000; ++i) {
        anchored += "|^a" + std::to_string(i) + "$";
        plain += "|a" + std::to_string(i);
    }
    CHECK(regex_error(anchored + ")").find("more than 1000 sequences; write the anchors outside the group") !=
          std::string::npos);
    CHECK(verdict(regex(plain + ")$"), "a999") == 2);
}

TEST_CASE("hostile grammars are refused or run within bounds of work and memory") {
    const auto quick = [](const std::function<void()>& work) {
        const test::AllocationCount count;
        work();
        CHECK(count.calls() < 2500000);
        CHECK(count.bytes() < int64_t{64} << 20);
    };
    quick([] { CHECK(gbnf_error("root ::= " + std::string(1000000, '(')).find("100 deep") != std::string::npos); });
    quick([] { CHECK(regex_error(std::string(1000000, '(')).find("100 deep") != std::string::npos); });
    quick([] { CHECK(gbnf_error("root ::= \"a\"" + std::string(1000000, '*')).find("fewer") != std::string::npos); });
    quick([] { CHECK(gbnf_error("root ::= \"a\"{0,10000000}").find("at most 1000000") != std::string::npos); });
    quick([] {
        CHECK(gbnf_error("root ::= x{0,100000}\nx ::= \"(\" x \")\" | \"\"").find("may be empty") != std::string::npos);
    });
    // A chain of rules as long as the cap allows, forwards and backwards, and one rule that all others call.
    quick([] {
        std::string text = "root ::= r0\n";
        for (int i = 0; i < 15000; ++i) text += say("r", i, " ::= \"a\" r", i + 1, " | \"b\"\n");
        CHECK(rules_from_gbnf(text + "r15000 ::= \"c\"\n").ok());
    });
    // Bounded repetition is a counter; many ways to read one text stay one state.
    const auto run = [](const RulesPtr& rules, const std::string& text) {
        Automaton a(rules);
        StateId s = a.start();
        for (const char c : text) s = a.step(s, static_cast<unsigned char>(c));
        CHECK(s != kDead);
        CHECK(a.memory() < (size_t{64} << 20));
    };
    quick([&] { run(regex("a{0,100000}"), std::string(2000, 'a')); });
    quick([&] { run(regex("((a|a)|(a|aa))*b"), std::string(2000, 'a')); });
    quick([&] { run(regex("(a*)*(a*)*(a?){100}b"), std::string(2000, 'a')); });
    quick([&] { run(regex("(x+x+)+y"), std::string(2000, 'x')); });
    // Counts within counts: many combinations of counts lead to one text.
    quick([&] { run(regex("((x{0,100}){0,100}){0,100}y"), std::string(2000, 'x')); });
    quick([&] { run(regex("((( {0,1000}){0,1000}){0,1000}){0,1000}y"), std::string(2000, ' ')); });
    quick([&] { run(regex("((x{0,300}b?){0,300}c?){0,300}y"), std::string(2000, 'x')); });
    quick([&] { run(gbnf("root ::= (\"a\" [a-z]{0,1000}){0,1000}"), std::string(2000, 'a')); });
    quick([&] { run(regex("(([\\w-]{1,63}\\.?){1,30}/?){1,30}"), std::string(1000, 'a')); });
    quick([&] { run(regex("(x{50,99}){10,100}y"), std::string(1000, 'x')); });
    // What cannot be made smaller is given up, and the state says so.
    quick([&] {
        Automaton a(regex("((x{20,35}=?){20,30}y?){20,40}z"));
        StateId s = a.start();
        size_t n = 0;
        for (; n < 5000 && !a.narrowed(s); ++n) {
            REQUIRE(s != kDead);
            s = a.step(s, 'x');
        }
        CHECK(n > 500);
        CHECK(a.narrowed(s));
    });
    quick([&] { run(gbnf("root ::= a \"b\"\na ::= \"x\" a \"y\" | \"x\" a | \"x\""), std::string(1000, 'x')); });
    // Each rule calls the one before it twice.
    quick([&] {
        std::string text = "root ::= r30\nr0 ::= \"a\" | \"aa\" | \"\"\n";
        for (int i = 0; i < 30; ++i) text += say("r", i + 1, " ::= r", i, " \"x\"? | r", i, " \"y\"? \"z\"\n");
        run(gbnf(text), "a");
    });
}

TEST_CASE("what a rule is does not depend on how many rules lead to it") {
    // Rule i can be decided only when rule i - 1 is, and a walk from the first one leaves the last one first.
    const auto chain = [](const std::string& first, const std::string& before) {
        std::string text = "a1 ::= " + first + " | \"(\" a1 \")\" a2\n";
        for (int i = 2; i <= 300; ++i)
            text += say("a", i, " ::= ", before, "a", i - 1, " | \"(\" a", i, " \")\" a", i + 1, "\n");
        return text + "a301 ::= " + before + "a300 | \"q\" a301\n";
    };
    const std::string consuming = chain("\"z\"", "\"x\" "), text = "k" + std::string(300, 'x') + "zwz";
    CHECK(verdict(gbnf("root ::= \"k\" a301 \"w\" a1\n" + consuming), text) == 2);
    CHECK(verdict(gbnf("root ::= a1 | \"k\" a301 \"w\" a1\n" + consuming), text) == 2);
    CHECK(gbnf_error("root ::= l \"w\" a1\n" + chain("\"\"", "") + "l ::= a301 l \"x\" | \"y\"")
              .find("left recursion: 'l' -> 'l'") != std::string::npos);
    // One more alternative begins at each.
    CHECK(gbnf("root ::= \"k\" a1\n" + chain("\"z\"", ""))->widest == 602);
}

TEST_CASE("short texts are kept once, however long the grammar is") {
    std::string text = "root ::= \"" + std::string(70000, 'a') + "\"";
    for (int i = 0; i < 300; ++i) text += " \"ab\" \"abcd\"";
    CHECK(gbnf(text)->pool.size() < 610);
}

TEST_CASE("thousands of alternatives may begin at one place") {
    const auto words = [](int n, const char* after) {
        std::string text;
        for (int i = 0; i < n; ++i) text += say(i ? " | " : "", "\"w", i, "\"", after);
        return text;
    };
    const auto check_all = [](const RulesPtr& rules, const std::vector<Case>& cases) {
        Automaton a(rules);
        CHECK_FALSE(a.narrowed(a.start()));
        check(rules, cases);
    };
    check_all(gbnf("root ::= " + words(3000, "") + " | [^\\n]+"), {{"w2999", 2}, {"w3000", 2}, {"x", 2}, {"\n", 0}});
    check_all(gbnf("root ::= w | \"(\" root \")\"\nw ::= " + words(900, "")),
              {{"w899", 2}, {"((w7))", 2}, {"w900", 0}, {"(w7", 1}});
    check_all(gbnf("root ::= " + words(900, " x") + "\nx ::= \"(\" x \")\" | \"!\""),
              {{"w899((!))", 2}, {"w900", 0}, {"w89!", 2}});
    check_all(regex("\\S{2,}|\\p{L}?"), {{"", 2}, {"a", 2}, {"\xC3\xA9", 2}, {"1", 1}, {"12", 2}, {" ", 0}});
    check_all(regex("\\S+|\\p{L}"), {{"", 1}, {"a", 2}, {"1", 2}, {"1 ", 0}});
    // Readings are limited where a text has many, not where many alternatives begin.
    Automaton one(gbnf("root ::= " + words(3000, "") + " | root2\nroot2 ::= \"(\" root2 \")\" | \"x\""));
    CHECK(one.readings(one.start()).size() < 5);
    CHECK(one.max_readings() == 512);
    const std::string too_many =
        gbnf_error("root ::= \"a\" b\nb ::= " + words(17000, " x") + "\nx ::= \"(\" x \")\" | \"!\"");
    CHECK(too_many.find("unsupported: 17000 alternatives begin at one place of 'b', at most 16384 are followed") == 0);
}

TEST_CASE("states that nobody needs are forgotten, the others stay the same") {
    const RulesPtr rules = gbnf("root ::= item{0,1000}\nitem ::= \"(\" item* \")\" | [a-z]{1,50} \".\"");
    Automaton a(rules);
    std::string text;
    test::Random random(7);
    std::vector<StateId> states{a.start()};
    for (int i = 0; i < 3000; ++i) {
        const char c = "ab().z"[random.below(6)];
        const StateId next = a.step(states.back(), static_cast<unsigned char>(c));
        if (next == kDead) continue;
        text += c;
        states.push_back(next);
    }
    REQUIRE(text.size() > 500);
    const size_t before = a.memory();
    std::vector<StateId> kept{states[10], states.back()};
    a.compact(kept);
    CHECK(a.memory() < before);
    Automaton b(rules);
    StateId s = b.start();
    for (const char c : text) s = b.step(s, static_cast<unsigned char>(c));
    for (unsigned byte = 0; byte < 256; ++byte)
        CHECK((a.step(kept[1], static_cast<unsigned char>(byte)) == kDead) ==
              (b.step(s, static_cast<unsigned char>(byte)) == kDead));
}

TEST_CASE("the public Grammar passes on texts, errors and what was ignored") {
    CHECK_FALSE(Grammar());
    CHECK(Grammar().ignored().empty());
    Grammar g;
    CHECK(Grammar::from_gbnf("root ::= \"a\"").get(g).ok());
    CHECK(g);
    CHECK(g.ignored().empty());
    CHECK(Grammar::from_regex("a(").status().code == Code::bad_argument);
    CHECK(Grammar::from_regex("a+").ok());
    const std::string schema = "{\"type\": \"array\", \"uniqueItems\": true}";
    CHECK(Grammar::from_json_schema(schema).status().code == Code::unsupported);
    SchemaOptions options;
    options.ignore_unsupported = true;
    REQUIRE(Grammar::from_json_schema(schema, options).get(g).ok());
    REQUIRE(g.ignored().size() == 1);
    CHECK(g.ignored()[0] == "#: uniqueItems");
    CHECK(g.ignored().data() == Grammar(g).ignored().data());  // no copy, for which there may be no memory
}

// hostile_grammars: what it costs to refuse, or to follow, grammars and schemas that were made to hurt.
// usage: hostile_grammars
//
// Each runs in a process of its own, from its text to the answer; where it is taken, a text is followed, too. Printed
// are the time, how much the process grew at most, and the answer. The exit code is 1 if one takes 100 ms or 64 MiB.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>

#include "../src/grammar/automaton.h"
#include "../src/grammar/interface.h"
#include "../tests/support.h"
#include "../tests/tiny.h"

namespace {

using namespace auspex;
using namespace auspex::detail;

struct Case {
    const char* name;
    std::function<std::string()> run;  ///< the answer
};

std::string repeated(const std::string& part, size_t n) {
    std::string out;
    for (size_t i = 0; i < n; ++i) out += part;
    return out;
}

/// Follows `text` where the grammar is taken.
std::string answer(const Result<Grammar>& grammar, const std::string& text) {
    if (!grammar.ok()) return grammar.status().message();
    Automaton reader(grammar.value().impl()->rules);
    StateId s = reader.start();
    for (const char c : text) s = reader.step(s, static_cast<unsigned char>(c));
    return s == kDead ? "a text of it was refused" : say("taken, and ", text.size(), " bytes followed");
}

Case gbnf(const char* name, const std::string& grammar, const std::string& text = "") {
    return {name, [=] { return answer(Grammar::from_gbnf(grammar), text); }};
}
Case regex(const char* name, const std::string& pattern, const std::string& text = "") {
    return {name, [=] { return answer(Grammar::from_regex(pattern), text); }};
}
Case schema(const char* name, const std::string& json, const std::string& text = "") {
    return {name, [=] { return answer(Grammar::from_json_schema(json), text); }};
}

/// Rules of which each calls the one before it twice.
std::string doubling() {
    std::string text = "root ::= r30\nr0 ::= \"a\" | \"aa\" | \"\"\n";
    for (int i = 0; i < 30; ++i) text += say("r", i + 1, " ::= r", i, " \"x\"? | r", i, " \"y\"? \"z\"\n");
    return text;
}

std::string crossing() {
    std::string text = "{\"allOf\": [";
    for (int i = 0; i < 100; ++i)
        text += say(i ? "," : "", R"({"anyOf": [{"minimum": )", i, R"(}, {"maxLength": )", i, R"(}, {"maxItems": )", i,
                    "}]}");
    return text + "]}";
}

std::vector<Case> cases(const Model& model) {
    const size_t million = 1000000;
    return {
        gbnf("left recursion", "root ::= root \"a\" | \"a\""),
        gbnf("left recursion behind an optional", "root ::= a \"x\"\na ::= \"b\"? root | \"y\""),
        gbnf("undefined rule", "root ::= a b\na ::= \"a\""),
        gbnf("empty language", "root ::= \"(\" root \")\""),
        schema("empty language, schema", R"({"type": "string", "minLength": 3, "maxLength": 2})"),
        gbnf("10^6 deep, GBNF", "root ::= " + repeated("(", million)),
        regex("10^6 deep, expression", repeated("(", million)),
        schema("10^6 deep, schema", repeated("{\"items\":", million)),
        schema("10^6 deep, value of a schema", "{\"const\":" + repeated("[", million)),
        gbnf("{0,100000}, GBNF", "root ::= \"a\"{0,100000}", repeated("a", 2000)),
        regex("{0,100000}, expression", "a{0,100000}", repeated("a", 2000)),
        gbnf("{0,100000} of what may be empty", "root ::= x{0,100000}\nx ::= \"(\" x \")\" | \"\""),
        schema("maxItems 100000", R"({"type": "array", "minItems": 100000, "maxItems": 100000})", "[1,2"),
        regex("alternation (a|a)|(a|aa)", "((a|a)|(a|aa))*b", repeated("a", 2000)),
        regex("alternation (a*)*(a*)*(a?){100}", "(a*)*(a*)*(a?){100}b", repeated("a", 2000)),
        regex("alternation (x+x+)+y", "(x+x+)+y", repeated("x", 2000)),
        gbnf("rules that call two ways", doubling(), "a"),
        schema("alternatives that combine", crossing()),
        schema("patterns that combine", R"({"type": "string", "allOf": [{"pattern": "(a.*){20}b"},
            {"pattern": "(b.*){20}c"}, {"pattern": "(c.*){20}d"}]})"),
        schema("$ref to itself", R"({"$ref": "#"})"),
        schema("$ref in a circle", R"({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}],
            "$defs": {"a": {"allOf": [{"$ref": "#"}]}}})"),
        schema("$ref without an end", R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})"),
        schema("remote $ref", R"({"properties": {"a": {"$ref": "https://example.com/x.json"}}})"),
        schema("uniqueItems", R"({"type": "array", "uniqueItems": true})"),
        {"not in the vocabulary",
         [&model] {
             const auto grammar = Grammar::from_gbnf("root ::= \"a\" <no-such-token>");
             return grammar.ok() ? Constraint::create(model, grammar.value()).status().message()
                                 : grammar.status().message();
         }},
    };
}

struct Cost {
    double ms = 0;
    long kib = 0;
    char answer[256] = {};
};

long peak_kib() {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return used.ru_maxrss;
}

/// Runs it in a child, whose memory begins as small as this process is. False: the child did not answer.
bool measure(const Case& c, Cost* cost) {
    int ends[2];
    if (pipe(ends) != 0) return false;
    const pid_t child = fork();
    if (child == 0) {
        Cost own;
        const long before = peak_kib();
        const auto start = std::chrono::steady_clock::now();
        const std::string text = c.run();
        own.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
        own.kib = peak_kib() - before;
        std::snprintf(own.answer, sizeof own.answer, "%s", text.c_str());
        _exit(write(ends[1], &own, sizeof own) == static_cast<ssize_t>(sizeof own) ? 0 : 1);
    }
    close(ends[1]);
    const bool answered = child > 0 && read(ends[0], cost, sizeof *cost) == static_cast<ssize_t>(sizeof *cost);
    close(ends[0]);
    if (child > 0) waitpid(child, nullptr, 0);
    return answered;
}

}  // namespace

int main() {
    DeviceOptions options;
    options.kind = Kind::cpu;
    options.n_thread = 1;
    const std::vector<std::byte> bytes = test::tiny_model(test::TinyOptions());
    Device device;
    Model model;
    Status s = Device::open(options).get(device);
    if (s.ok()) s = Model::load(device, bytes).get(model);
    if (!s.ok()) return std::fprintf(stderr, "hostile_grammars: %s\n", s.message().c_str()), 2;
    int n_bad = 0;
    for (const Case& c : cases(model)) {
        Cost cost;
        const bool answered = measure(c, &cost), good = answered && cost.ms < 100 && cost.kib < 64 << 10;
        n_bad += !good;
        std::printf("%-34s %7.2f ms %6.2f MiB  %s%s\n", c.name, cost.ms, static_cast<double>(cost.kib) / 1024,
                    answered ? cost.answer : "no answer", good ? "" : "  TOO MUCH");
    }
    std::printf("%d of %zu take 100 ms, 64 MiB or more\n", n_bad, cases(model).size());
    return n_bad == 0 ? 0 : 1;
}

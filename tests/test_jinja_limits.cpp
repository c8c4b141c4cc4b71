// base/jinja with templates and requests that take much time, memory or stack: bounded work, and errors that say which.
#include "../src/base/chat.h"
#include "allocations.h"
#include "jinja_rig.h"
#include "support.h"

#include <chrono>

using auspex::ChatStyle;
using test::printed;
namespace jinja = auspex::detail::jinja;

namespace {

std::string repeated(const char* part, size_t n) {
    std::string all;
    for (size_t i = 0; i < n; ++i) all += part;
    return all;
}

}  // namespace

TEST_CASE("a template cannot take all stack") {
    const std::string deep = repeated("(", 5000) + "1" + repeated(")", 5000);
    CHECK(printed("{{ " + deep + " }}").find("nests more than") != std::string::npos);
    CHECK(printed(repeated("{% if t %}", 5000)).find("nests more than") != std::string::npos);
    CHECK(printed("{{ 1" + repeated(" + 1", 5000) + " }}").find("nests more than") != std::string::npos);
    CHECK(printed("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("does a macro call itself") !=
          std::string::npos);
    CHECK(printed("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}").find("nests too deep") != std::string::npos);
    CHECK(printed("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns == namespace(a=ns) }}") == "True");
    CHECK(printed("{% for a in [[1]] recursive %}{{ loop([a]) }}{% endfor %}").find("levels deep") !=
          std::string::npos);
    CHECK(printed("{% set ns = namespace(l=[1]) %}{% for i in range(999) %}{% set ns.l = [ns.l] %}{% endfor %}"
                  "{% set k = ns.l %}{% set ns.l = [2] %}{% for i in range(999) %}{% set ns.l = [ns.l] %}{% endfor %}"
                  "{{ [k, ns.l] | sort }}")
              .find("levels deep") != std::string::npos);
}

TEST_CASE("a template cannot take all time or memory" * doctest::test_suite("long")) {
    const std::string loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    CHECK(printed(loops).find("more than") != std::string::npos);
    CHECK(printed("{{ 'abcdefgh' * 99999999 }}").find("more than 512 MiB") != std::string::npos);
    CHECK(printed("{{ ['a'] * 9999999999 }}").find("more than") != std::string::npos);
    CHECK(printed("{{ range(9999999) | list }}").find("a range of more than 100000") != std::string::npos);
    const std::string doubled = "{% set ns = namespace(s='abcdefgh') %}{% for i in range(99) %}";
    CHECK(printed(doubled + "{% set ns.s = ns.s + ns.s %}{% endfor %}").find("more than 512 MiB") != std::string::npos);
    CHECK(printed(doubled + "{% set ns.s = ns.s.replace('a', ns.s) %}{% endfor %}").find("MiB") != std::string::npos);
    CHECK(
        printed(doubled + "{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | tojson | length }}").find("too large") !=
        std::string::npos);
}

TEST_CASE("a variable is found at the same cost whatever number of others there is") {
    std::string variables = "{\"first\": 1";
    for (int i = 0; i < 40000; ++i) variables += ", \"v" + std::to_string(i) + "\": 0";
    // Steps that grow with the number of variables would end it.
    const std::string loops =
        "{% for a in range(100) %}{% for b in range(100) %}{% set c = first %}{% endfor %}{% endfor %}{{ first }}";
    CHECK(printed(loops, (variables + "}").c_str()) == "1");
}

TEST_CASE("maps of many keys are equal in whatever order the keys come") {
    std::string up, down;
    for (int i = 0; i < 9000; ++i) {
        up += (i ? ", \"k" : "\"k") + std::to_string(i) + "\": 1";
        down += (i ? ", \"k" : "\"k") + std::to_string(8999 - i) + "\": 1";
    }
    const std::string variables = "{\"a\": {" + up + "}, \"b\": {" + down + "}}";
    CHECK(printed("{{ a == b }}", variables.c_str()) == "True");
    CHECK(printed("{{ a == dict(b, k0=2) }} {{ {1: 2} == {'1': 2} }} {{ {1: 2, '1': 3} == {'1': 3, 1: 2} }}",
                  variables.c_str()) == "False False True");
    // A comparison that takes more steps than a run may has no result.
    jinja::Program program;
    REQUIRE(jinja::parse("{{ [1, 2, 3, 4] == [1, 2, 3, 4] }}").get(program).ok());
    jinja::Run run(program);
    run.max_steps = 12;
    CHECK(run.run().status().message().find("it takes more than 12 steps") != std::string::npos);
}

TEST_CASE("a template that takes much of anything is given up when it is read") {
    const std::string doubled =
                          "{% set ns = namespace(s='aaaaaaaa', l=['a']) %}{% for i in range(16) %}"
                          "{% set ns.s = ns.s + ns.s %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}",
                      forever = "{% for i in range(99999) %}{% for k in range(99999) %}";
    const char* const kBodies[] = {
        "{{ i }}",
        "{{ (ns.s[:262144] ~ 'b') in ns.s }}",
        "{{ ns.s.split(ns.s[:262144] ~ 'b') | length }}",
        "{{ ns.s | replace(ns.s[:262144] ~ 'b', '') | length }}",
        "{{ ns.s.find(ns.s[:262144] ~ 'b') }}",
        "{{ ns.s == ns.s[1:] ~ 'b' }}",
        "{{ ns.s[0] }}",
        "{{ ns.l == [ns.l[0], ns.l[1]] }}",
        "{{ ns.l is lower }}",
        "{{ ns.l | tojson | length }}",
        "{{ range(99999) | first }}",
        "{{ ns.s.strip((ns.s[:262144] | replace('a', 'b')) ~ 'a') | length }}",
    };
    for (const char* body : kBodies) {
        CAPTURE(body);
        std::string note;
        const auto begin = std::chrono::steady_clock::now();
        CHECK(auspex::recognise_template(doubled + forever + body + "{% endfor %}{% endfor %}", &note).style ==
              ChatStyle::chatml);
        const bool told = note.find("it takes more than 1000000 steps") != std::string::npos ||
                          note.find("it needs more than 32 MiB") != std::string::npos;
        CHECK_MESSAGE(told, note);
        CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
    }
}

TEST_CASE("filters that name filters nest no deeper than a template may") {
    const auto maps = [](size_t n) { return printed("{{ 'a' | map(" + repeated("'map', ", n) + "'upper') | list }}"); };
    CHECK(maps(2) == "[[['A']]]");
    CHECK(maps(1000).find("it nests more than 400 levels deep") != std::string::npos);
}

TEST_CASE("the steps of a filter, function or method grow with what it goes through") {
    // Each goes through more than 3000 values or bytes; the arguments alone are far fewer, or are counted 64 at a time.
    std::string names, given;
    for (int i = 0; i < 300; ++i) {
        const std::string name = (i ? ", a" : "a") + std::to_string(i);
        names += name;
        given += name + "=1";
    }
    const std::string rows[] = {
        "{{ 9000 in range(6000) }}",
        "{{ range(900) | sort | first }}",
        "{{ (range(100) | list) | select('in', range(100, 6000)) | list }}",
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ([ns] * 400) | map(attribute='a.a.a.a.a.a.a.a.b') | list }}",
        "{% set ns = namespace() %}{% set ns.a = ns %}{% set ns.b = 1 %}{{ ([ns] * 400) | sum('a.a.a.a.a.a.a.a.b', 0) "
        "}}",
        "{{ (['ab'] * 100) | map('trim', ('x' * 80) * 80) | list }}",
        "{{ 'ab'.strip(('x' * 80) * 80) }}",
        "{% macro f(" + names + ") %}{% endmacro %}{{ f(" + given + ") }}",
    };
    for (const std::string& source : rows) {
        CAPTURE(source);
        CHECK(printed(source, test::kVariables, 3000).find("it takes more than 3000 steps") != std::string::npos);
    }
}

TEST_CASE("a filter, function or method stops where the memory of a run ends") {
    std::string many = "{\"m\": {\"first\": 1";
    for (int i = 0; i < 14000; ++i) many += ", \"v" + std::to_string(i) + "\": 0";
    many += "}}";
    const auto stops = [](const std::string& source, const char* variables, int64_t max_allocated) {
        CAPTURE(source);
        const test::AllocationCount allocated;
        const std::string text = printed(source, variables, jinja::kMaxSteps, size_t{1} << 20);
        const bool told =
            text.find("more than 1 MiB") != std::string::npos || text.find("at most 131072") != std::string::npos;
        CHECK_MESSAGE(told, text.substr(0, 200));
        CHECK(allocated.bytes() < max_allocated);
    };
    for (const char* source :
         {"{{ (['x' * 1000] * 1000) | sum(start='') | length }}", "{{ ([[1] * 100] * 1000) | sum(start=[]) | length }}",
          "{{ (',' * 100000).split(',') | length }}", "{{ (', ' * 100000).split() | length }}",
          "{{ (', ' * 100000).rsplit(none, 100000) | length }}", "{{ ([1] * 30000) | batch(1) | list | length }}",
          "{{ ('a' * 100000) | replace('', u) | length }}", "{{ ('a' ~ u) * 400000 }}",
          "{% set s = 'a' * 200000 %}{{ s[0] }}"})
        stops(source, "{\"u\": \"b\"}", 4 << 20);
    // Reading these variables takes 4.4 MB.
    for (const char* source : {"{{ m | items | list | length }}", "{{ m | list | length }}"})
        stops(source, many.c_str(), 6 << 20);
}

TEST_CASE("a map of many keys is searched in the time of few") {
    std::string members = "\"7\": \"text\"";
    for (int i = 0; i < 40000; ++i) members += ", \"k" + std::to_string(i * 7919 % 40000) + "\": " + std::to_string(i);
    const std::string variables = "{\"m\": {" + members + "}, \"n\": 3}";
    const auto begin = std::chrono::steady_clock::now();
    CHECK(printed("{% for k in m %}{% if m[k] is mapping %}{% endif %}{% endfor %}{{ m['k0'] }} {{ m['k39999'] }} {{ "
                  "m['7'] }} "
                  "{{ m[7] }}|{{ m.k }}|{{ 'k1' in m }} {{ 'k40000' in m }}",
                  variables.c_str()) == "0 22321 text ||True False");
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(6));
    // Members that are added keep their order, and are found, numbers beside strings.
    CHECK(
        printed("{% set d = dict(m, n=1, k3=2) %}{{ d | length }} {{ (d | list)[:2] }} {{ (d | list)[-1] }} {{ d.k3 }}",
                variables.c_str()) == "40002 ['7', 'k0'] n 2");
    CHECK(printed(
              "{% set ns = namespace(range(90) | batch(2) | list) %}{% set ns.b = 'b' %}{{ ns.b }}{% set ns.a = 'a' %}"
              "{% set ns.b = 'c' %}{{ ns.a }}{{ ns.b }} {{ ns[88] }} {{ ns[89] }}|{{ ns['88'] }}|",
              variables.c_str()) == "bac 89 ||");
}

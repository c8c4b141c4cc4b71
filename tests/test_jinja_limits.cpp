// base/jinja with templates and requests that take much time, memory or stack: bounded work, and errors that say which.
#include "../src/base/chat.h"
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

TEST_CASE("a template cannot take all time, memory or stack") {
    const std::string deep = repeated("(", 5000) + "1" + repeated(")", 5000);
    CHECK(printed("{{ " + deep + " }}").find("nests more than") != std::string::npos);
    CHECK(printed(repeated("{% if t %}", 5000)).find("nests more than") != std::string::npos);
    CHECK(printed("{{ 1" + repeated(" + 1", 5000) + " }}").find("nests more than") != std::string::npos);
    CHECK(printed("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("does a macro call itself") !=
          std::string::npos);
    CHECK(printed("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}").find("nests too deep") != std::string::npos);
    CHECK(printed("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns == namespace(a=ns) }}") == "True");
    const std::string loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    CHECK(printed(loops).find("more than") != std::string::npos);
    CHECK(printed("{{ 'abcdefgh' * 99999999 }}").find("more than 512 MiB") != std::string::npos);
    CHECK(printed("{{ ['a'] * 9999999999 }}").find("more than") != std::string::npos);
    CHECK(printed("{% for a in [[1]] recursive %}{{ loop([a]) }}{% endfor %}").find("levels deep") !=
          std::string::npos);
    CHECK(printed("{% set ns = namespace(l=[1]) %}{% for i in range(999) %}{% set ns.l = [ns.l] %}{% endfor %}"
                  "{% set k = ns.l %}{% set ns.l = [2] %}{% for i in range(999) %}{% set ns.l = [ns.l] %}{% endfor %}"
                  "{{ [k, ns.l] | sort }}")
              .find("levels deep") != std::string::npos);
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

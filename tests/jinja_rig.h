// tests/jinja_rig.h: runs chat templates with variables that are given as JSON.
#pragma once
#include "../src/base/jinja_run.h"

#include <doctest/doctest.h>

namespace test {

constexpr char kVariables[] = R"({"n": 3, "x": 2.5, "s": "Hello, World", "e": "", "l": [3, 1, 2],
    "m": {"b": 1, "a": "two"}, "z": null, "t": true, "u": "a\u00e9\u20ac\ud83d\ude00b",
    "msgs": [{"role": "user", "content": "hi", "k": 1}, {"role": "bot", "content": "yo", "k": 2},
             {"role": "user", "content": "ok"}]})";

/// What a template prints with the variables above, or its error.
inline std::string printed(const std::string& source, const char* with = kVariables,
                           uint64_t max_steps = auspex::detail::jinja::kMaxSteps,
                           size_t max_bytes = auspex::detail::jinja::kMaxHeapBytes) {
    namespace jinja = auspex::detail::jinja;
    auspex::detail::Json variables;
    REQUIRE(auspex::detail::Json::parse(with).get(variables).ok());
    jinja::Program program;
    auspex::Status s = jinja::parse(source).get(program);
    if (!s.ok()) return s.message();
    jinja::Run run(program);
    run.max_steps = max_steps;
    run.heap.max_bytes = max_bytes;
    for (size_t i = 0; i < variables.items().size(); ++i)
        run.set(variables.keys()[i], run.heap.of_json(variables.items()[i]));
    auspex::detail::Marked text;
    s = run.run().get(text);
    return s.ok() ? text.text : s.message();
}

}  // namespace test

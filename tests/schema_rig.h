// tests/schema_rig.h: compiles JSON Schemas and asks which texts they accept.
#pragma once
#include "../src/grammar/automaton.h"
#include "../src/grammar/schema.h"

#include <doctest/doctest.h>

namespace schema_rig {

using namespace auspex;
using namespace auspex::detail;

using RulesPtr = std::shared_ptr<const Rules>;

inline RulesPtr compile(const std::string& schema, const SchemaOptions& options = {}) {
    RulesPtr rules;
    const Status status = rules_from_json_schema(schema, options).get(rules);
    REQUIRE_MESSAGE(status.ok(), schema << ": " << status.message());
    return rules;
}
inline std::string error(const std::string& schema) {
    const Result<RulesPtr> r = rules_from_json_schema(schema, {});
    CHECK_MESSAGE(!r.ok(), schema);
    return r.status().message();
}
inline bool accepts(Automaton& a, std::string_view text) {
    StateId s = a.start();
    for (const char c : text) s = a.step(s, static_cast<unsigned char>(c));
    return a.accepting(s);
}
inline bool accepts(const RulesPtr& rules, std::string_view text) {
    Automaton a(rules);
    return accepts(a, text);
}
inline void check(const std::string& schema, const std::vector<const char*>& valid,
                  const std::vector<const char*>& invalid, const SchemaOptions& options = {}) {
    const RulesPtr rules = compile(schema, options);
    for (const char* text : valid) CHECK_MESSAGE(accepts(rules, text), schema << " should accept " << text);
    for (const char* text : invalid) CHECK_MESSAGE(!accepts(rules, text), schema << " should refuse " << text);
}

}  // namespace schema_rig

// Tests of the bounds on work and memory of JSON Schemas, and of large ones.
#include "allocations.h"
#include "schema_rig.h"
#include "support.h"

using namespace auspex;
using namespace auspex::detail;
using namespace schema_rig;

TEST_CASE("schema: hostile ones end within bounds of work and memory") {
    const auto quick = [](const std::string& schema) {
        const test::AllocationCount count;
        const Result<RulesPtr> r = rules_from_json_schema(schema, {});
        CHECK_MESSAGE(count.calls() < 400000, schema.substr(0, 100));
        CHECK_MESSAGE(count.bytes() < int64_t{64} << 20, schema.substr(0, 100));
        return r.status().message();
    };
    std::string deep, many = "{\"allOf\": [", pairs = "{\"type\": \"object\", \"dependentRequired\": {",
                      ones = "{\"oneOf\": [";
    for (int i = 0; i < 1000000; ++i) deep += "{\"items\":";
    CHECK(quick(deep) != "ok");
    for (int i = 0; i < 100; ++i)
        many += say(i ? "," : "", R"({"anyOf": [{"minimum": )", i, R"(}, {"maxLength": )", i, R"(}, {"maxItems": )", i,
                    "}]}");
    const std::string undecided = ": an intersection of patterns, lengths and multiples is too large";
    CHECK(quick(R"({"properties": {"a": {"allOf": [{"pattern": "(a.*){20}b"}, {"pattern": "(b.*){20}c"},
                                                   {"pattern": "(c.*){20}d"}]}}})")
              .find("unsupported: #/properties/a: pattern" + undecided) == 0);
    CHECK(quick(R"({"items": {"type": "integer", "multipleOf": 994, "not": {"multipleOf": 497}}})")
              .find("unsupported: #/items: multipleOf" + undecided) == 0);
    // Each search has its own bound, and all of them together another.
    const auto fields = [](int n) {
        std::string out = R"({"type": "object", "properties": {)";
        for (int i = 0; i < n; ++i)
            out += say(i ? "," : "", "\"p", i, R"(": {"minLength": 300, "pattern": "^(ab|cd)*x)", i, "$\"}");
        return out + "}}";
    };
    CHECK(quick(fields(8)) == "ok");
    CHECK(quick(fields(40))
              .find("unsupported: #: intersections of patterns, lengths and multiples are too large "
                    "together: 400000 steps") == 0);
    CHECK(quick(many + "]}").find("anyOf: the alternatives combine") != std::string::npos);
    for (int i = 0; i < 60; ++i) pairs += say(i ? "," : "", "\"a", i, "\": [\"b", i, "\"]");
    CHECK(quick(pairs + "}}").find("unsupported: #: dependentRequired: the alternatives combine") == 0);
    for (int i = 0; i < 120; ++i) ones += say(i ? "," : "", "{\"minimum\": ", i, "}");
    CHECK(quick(ones + "]}") != "");
    CHECK(quick(R"({"type": "string", "minLength": 100000, "pattern": "^(ab|cd)*$"})").find("too large") !=
          std::string::npos);
    CHECK(quick(R"({"type": "string", "maxLength": 1000000, "minLength": 999999})") == "ok");
    CHECK(quick(R"({"type": "array", "minItems": 100000, "maxItems": 100000})") == "ok");
    std::string consts = "{\"oneOf\": [", enums = "{\"enum\": [", patterns = "{\"type\": \"string\", \"allOf\": [",
                names = "{\"properties\": {";
    for (int i = 0; i < 3000; ++i) {
        consts += say(i ? "," : "", "{\"const\": ", i, "}");
        enums += say(i ? "," : "", i);
        patterns += say(i ? "," : "", "{\"pattern\": \"a", i, "\"}");
        names += say(i ? "," : "", "\"p", i, "\": {}");
    }
    CHECK(quick(consts + "]}").find("too many alternatives") != std::string::npos);
    CHECK(quick("{\"allOf\": [" + enums + "]}," + enums + ", 3000]}]}").find("too many alternatives") !=
          std::string::npos);
    CHECK(quick(patterns + "]}").find("pattern: one string has more than 500 patterns") != std::string::npos);
    names += "}, \"patternProperties\": {";
    for (int i = 0; i < 300; ++i) names += say(i ? "," : "", "\"^x", i, "\": {}");
    CHECK(quick(names + "}}") != "ok");
    // Values and alternatives are compared with a bound, and equal alternatives not at all.
    const std::string twice = R"({"allOf": [{"$ref": "#/$defs/a%"}, {"$ref": "#/$defs/a%"}]})";
    const auto chain = [&](int n, int step) {
        std::string out = R"({"oneOf": [{"const": 1}, {"$ref": "#/$defs/a0"}], "$defs": {)";
        for (int i = 0; i < n; ++i) {
            std::string next = twice;
            for (size_t at; (at = next.find('%')) != std::string::npos;) next.replace(at, 1, std::to_string(i + step));
            out += say("\"a", i, "\": ", next, ", ");
        }
        return out + say("\"a", n, "\": {}}}");
    };
    CHECK(quick(chain(1, 0)).find("unsupported: #: to compare its alternatives") == 0);
    CHECK(quick(chain(40, 1)).find("unsupported: #: to compare its alternatives") == 0);
    std::string same = "{\"oneOf\": [", members;
    for (int i = 0; i < 200; ++i) members += say(i ? "," : "", "\"p", i, "\"");
    for (int i = 0; i < 100; ++i) same += say(i ? "," : "", R"({"$ref": "#/$defs/x"})");
    CHECK(error(same + "], \"$defs\": {\"x\": {\"type\": \"object\", \"required\": [" + members + "]}}}")
              .find("the alternatives combine") != std::string::npos);
    std::string integers = "{\"type\": \"integer\", \"enum\": [0";
    for (int i = 1; i < 16000; ++i) integers += say(",", i);
    CHECK(quick(integers + "]}") == "ok");
}

TEST_CASE("schema: members in any order keep only the sets that a text has reached") {
    std::string schema = "{\"type\": \"object\", \"properties\": {", text = "{";
    for (int i = 0; i < 400; ++i) schema += say(i ? "," : "", "\"p", i, "\": {\"const\": ", i, "}");
    for (int i = 40; i > 0; --i) text += say(i < 40 ? ", " : "", "\"p", i, "\": ", i);
    SchemaOptions any;
    any.any_order = true;
    Automaton a(compile(schema + "}, \"additionalProperties\": false}", any));
    CHECK(accepts(a, text + "}"));
    CHECK(!accepts(a, text + ", \"p7\": 7}"));
    CHECK(a.rules().written.size() == 41);
    CHECK(a.memory() < (size_t{64} << 20));
    // Objects differ in size: the sets of the first say nothing about those of the others.
    Automaton two(compile(R"({"type": "object", "properties": {"first": {"const": {}}, "second": )" + schema +
                              "}, \"additionalProperties\": false}}, \"additionalProperties\": false}",
                          any));
    const size_t before = two.memory();
    CHECK(accepts(two, "{\"second\": " + text + "}}"));
    REQUIRE(two.rules().written.size() > 40);
    size_t n_word = 0;
    for (const std::vector<uint64_t>& set : two.rules().written) n_word += set.size();
    CHECK(n_word > 40 * 7);
    CHECK(two.rules().written_bytes >= 2 * sizeof(uint64_t) * n_word);
    CHECK(two.memory() > before + two.rules().written_bytes / 2);
    std::vector<StateId> none;
    two.compact(none);
    CHECK(two.memory() > two.rules().written_bytes);
}

TEST_CASE("schema: thousands of members and hundreds of objects may begin at one place") {
    std::string schema = R"({"type": "object", "additionalProperties": false, "properties": {"p": {}, "p1\"": {})";
    for (int i = 0; i < 2000; ++i) schema += say(", \"p", i, "\": {\"const\": ", i, "}");
    schema += "}}";
    for (const bool any_order : {false, true}) {
        SchemaOptions options;
        options.any_order = any_order;
        Automaton a(compile(schema, options));
        CHECK(accepts(a, R"({"p": [1], "p1\"": 2, "p0": 0, "p19": 19, "p198": 198, "p1999": 1999})"));
        CHECK(accepts(a, R"({"p1999": 1999})"));
        CHECK(accepts(a, R"({"p1": 1, "p0": 0, "p": 3})") == any_order);
        for (const char* text : {R"({"p2000": 1})", R"({"p1": 1, "p1": 1})", R"({"p12": 1})", R"({"p1\"x": 1})", "{,}"})
            CHECK_MESSAGE(!accepts(a, text), text);
        // What keys begin with is read once.
        StateId s = a.start();
        for (const char c : std::string_view("{\"p1")) s = a.step(s, static_cast<unsigned char>(c));
        CHECK(a.readings(s).size() < 20);
        CHECK(a.memory() < (size_t{8} << 20));
    }
    // Told apart by a member that comes first or later, or not at all.
    for (const char* before : {"", R"("data": {"type": "string"}, )", R"("a": {}, "b": {}, "c": {}, )"}) {
        std::string any = "{\"anyOf\": [";
        for (int i = 0; i < 400; ++i)
            any += say(i ? ", " : "", R"({"type": "object", "additionalProperties": false, "properties": {)", before,
                       R"("name": {"const": "tool_)", i, R"("}}})");
        Automaton a(compile(any + "]}"));
        StateId s = a.start();
        for (const char c : std::string_view(R"({"name")")) {
            s = a.step(s, static_cast<unsigned char>(c));
            CHECK_FALSE(a.narrowed(s));
        }
        CHECK(accepts(a, R"({ "name": "tool_399" })"));
        CHECK_FALSE(accepts(a, R"({"name": "tool_400"})"));
        if (before[0] != 0)
            CHECK(accepts(a, std::string_view(before).find("data") != std::string_view::npos
                                 ? R"({"data": "x", "name": "tool_7"})"
                                 : R"({"a": 1, "c": [], "name": "tool_7"})"));
    }
    std::string values = R"({"properties": {"list": {"items": {"enum": [)";
    for (int i = 0; i < 17000; ++i) values += say(i ? "," : "", "{\"a\":", i, "}");
    CHECK(error(values + "]}}}}").find("unsupported: #/properties/list/items: 17000 alternatives begin at one place") ==
          0);
}

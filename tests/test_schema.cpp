#include "schema_rig.h"
#include "support.h"

#include <doctest/doctest.h>

#include <sstream>

using namespace auspex;
using namespace auspex::detail;
using namespace schema_rig;

namespace {

struct Totals {
    size_t n_schema = 0, n_compiled = 0, n_valid_refused = 0, n_invalid_accepted = 0;
};
/// Runs a file of lines {"schema", "tests": [{"valid", "data"}]}.
Totals run_file(const std::string& path, const std::vector<std::string>& without) {
    Totals totals;
    std::istringstream lines(test::read_text(path));
    for (std::string line; std::getline(lines, line);) {
        Json entry;
        if (line.empty() || !Json::parse(line).get(entry).ok()) continue;
        const std::string file = entry.find("file")->text();
        if (std::find(without.begin(), without.end(), file) != without.end()) continue;
        ++totals.n_schema;
        SchemaOptions options;
        options.any_order = true;
        const Result<RulesPtr> rules = rules_from_json_schema(entry.find("schema")->dump(), options);
        if (!rules.ok()) continue;
        ++totals.n_compiled;
        for (const Json& t : entry.find("tests")->items()) {
            const std::string text = t.find("data")->dump();
            const bool valid = t.find("valid")->boolean();
            if (accepts(rules.value(), text) == valid) continue;
            MESSAGE(file << ": " << text.substr(0, 100));
            ++(valid ? totals.n_valid_refused : totals.n_invalid_accepted);
        }
    }
    return totals;
}

}  // namespace

TEST_CASE("schema: scalars") {
    check(R"({"type": "boolean"})", {"true", "false"}, {"null", "0", "\"true\"", "truefalse"});
    check(R"({"type": ["null", "integer"]})", {"null", "0", "-12", "3.0"}, {"1.5", "01", "+1", "1.", "\"1\""});
    check(R"({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"})", {"3"}, {"3.0", "3.5"});
    check(R"({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "enum": [10, -2, 30.0]})",
          {"10", "-2", "30"}, {"10.0", "10.00", "-2.0", "30.0"});
    check(R"({"$schema": "http://json-schema.org/draft-04/schema#", "enum": [10]})", {"10", "10.00"}, {"10.1"});
    // Listed numbers are compared by all of their digits, also where they are excluded.
    check(R"({"type": "number", "not": {"const": 0.1234567890123456789}})", {"0.12345678901234568"},
          {"0.1234567890123456789"});
    check(R"({"type": "number", "not": {"enum": [12345678901234567890.5, 1]}})", {"12345678901234567000", "2"},
          {"12345678901234567890.5", "1"});
    check(R"({"items": {"const": 0.1234567890123456789}, "not": {"items": {"const": 0.1}}, "type": "array"})",
          {"[0.1234567890123456789]"}, {"[0.1]", "[]"});
    check(R"({"type": "number"})", {"0", "-0.5", "1e5", "1.25E-7", "1e+10"}, {".5", "1.", "00", "1e", "--1"});
    check(R"({"type": "string"})", {R"("")", R"("a\n\u00e9\ud83d\ude00")", "\"\xC3\xA9\""},
          {R"("\ud83d")", R"("\x")", "\"\n\"", "\"\xC3\"", "\"a", "\"\xED\xA0\x80\""});
    check(R"({"const": {"a": [1, "x", null]}})", {R"({"a": [1, "x", null]})", R"({"a":[1.0,"x",null]})"},
          {R"({"a": [1, "x"]})", "{}"});
    check(R"({"enum": ["a", "ab", 3, true], "type": "string"})", {"\"a\"", "\"ab\""}, {"3", "true", "\"b\""});
    check(R"({"enum": [1, 5, 10], "minimum": 5, "not": {"const": 10}})", {"5", "5.0"}, {"1", "10"});
    check("true", {"1", "[[{}]]", R"({"a": [1, {"b": null}]})"}, {"[1,]", "{1: 2}"});
    check("{}", {"\"x\"", "[ 1, 2 ]"}, {""});
}

TEST_CASE("schema: a number ends, however little the model knows") {
    const std::string zeros(40, '0'), nines(40, '9');
    for (const char* schema :
         {R"({"type": "integer"})", R"({"type": "number"})", "{}", R"({"const": 7})",
          R"({"type": "number", "minimum": 0.5, "maximum": 7})", R"({"type": "integer", "multipleOf": 7})"}) {
        INFO(schema);
        const RulesPtr rules = compile(schema);
        CHECK((accepts(rules, "7") && accepts(rules, "7.0") && accepts(rules, "7." + zeros)));
        CHECK(!accepts(rules, "7.00" + zeros));
        CHECK(!accepts(rules, "7." + zeros + zeros));
    }
    const RulesPtr integer = compile(R"({"type": "integer"})"), any = compile("{}");
    for (const RulesPtr& rules : {integer, any}) CHECK((accepts(rules, nines) && !accepts(rules, nines + "9")));
    CHECK(accepts(any, nines + "." + nines + "e-259"));
    CHECK(!accepts(any, "1." + nines + "9"));
    CHECK((!accepts(any, "1e260") && !accepts(any, "1e0001")));
}

TEST_CASE("schema: numbers within bounds, digit by digit") {
    const auto exhaustive = [](const std::string& schema, const std::function<bool(int)>& good) {
        Automaton rules(compile(schema));
        for (int n = -1250; n <= 1250; ++n) {
            CHECK_MESSAGE(accepts(rules, std::to_string(n)) == good(n), schema << " " << n);
            if (n % 7 == 0 && n != 0) CHECK_MESSAGE(accepts(rules, say(n, ".0")) == good(n), schema << " " << n);
        }
    };
    exhaustive(R"({"type": "integer", "minimum": 7, "maximum": 1043})", [](int n) { return n >= 7 && n <= 1043; });
    exhaustive(R"({"type": "integer", "minimum": -99, "exclusiveMaximum": 100})",
               [](int n) { return n >= -99 && n < 100; });
    exhaustive(R"({"type": "integer", "exclusiveMinimum": -1000, "maximum": -10})",
               [](int n) { return n > -1000 && n <= -10; });
    exhaustive(R"({"type": "integer", "multipleOf": 7, "minimum": 0.5})", [](int n) { return n > 0 && n % 7 == 0; });
    exhaustive(R"({"type": "integer", "multipleOf": 20, "not": {"multipleOf": 100}})",
               [](int n) { return n % 20 == 0 && n % 100 != 0; });
    exhaustive(R"({"type": "integer", "multipleOf": 241, "minimum": 100})",
               [](int n) { return n >= 100 && n % 241 == 0; });
    // Large bounds and multiples need no search through all remainders.
    check(R"({"type": "integer", "minimum": 1500000000000, "multipleOf": 1000})", {"1500000000000", "9000000001000"},
          {"1499999999000", "1500000000001"});
    check(R"({"type": "integer", "minimum": 100, "multipleOf": 12345})", {"12345", "123450"}, {"0", "12346"});
    check(R"({"type": "number", "minimum": 100, "multipleOf": 123.456})", {"123.456", "12345.60"}, {"0", "123.457"});
    check(R"({"type": "integer", "minimum": 1000000, "allOf": [{"multipleOf": 7}, {"multipleOf": 5000}]})", {"1015000"},
          {"1005000", "1000006"});
    check(R"({"type": "integer", "if": {"exclusiveMinimum": -985e6}, "then": false, "else": {"multipleOf": 100}})",
          {"-985000000", "-985000100"}, {"-985000001", "-984999900"});
    // An alternative for which the search for what may follow is given up does not refuse another one's texts.
    check(R"({"type": "integer", "oneOf": [{"exclusiveMaximum": 7e8, "multipleOf": 0.25, "exclusiveMinimum": 0.071},
        {"exclusiveMaximum": -18044958958838103, "maximum": 654766}]})",
          {"-18044958958838104", "8"}, {"-18044958958838103", "0"});
    exhaustive(R"({"type": "integer", "minimum": 1e2, "maximum": 1.5e2})", [](int n) { return n >= 100 && n <= 150; });
    exhaustive(R"({"type": "number", "minimum": 0, "exclusiveMinimum": 3})", [](int n) { return n > 3; });
    // Hundredths between bounds with fractions.
    Automaton rules(compile(R"({"type": "number", "minimum": -1.25, "exclusiveMaximum": 2.5})"));
    for (int n = -300; n <= 300; ++n) {
        char text[16];
        std::snprintf(text, sizeof text, "%s%d.%02d", n < 0 ? "-" : "", std::abs(n) / 100, std::abs(n) % 100);
        CHECK_MESSAGE(accepts(rules, text) == (n >= -125 && n < 250), text);
    }
    check(R"({"multipleOf": 0.01, "type": "number"})", {"1", "0.25", "3.10", "7.000"}, {"0.125", "1e-2"});
    check(R"({"multipleOf": 2.5, "type": "number"})", {"5", "7.5", "-2.50", "0"}, {"6", "7.25", "0.5"});
    // Whether the digits that are left reach a multiple is known at each of them.
    check(R"({"multipleOf": 0.453592, "type": "number"})",
          {"0.453592", "0.907184", "-1.360776", "56699.000000", "453592", "0.0"},
          {"0.453593", "0.45359", "0.1", "0.000001", "0.4535920000001"});
    check(R"({"multipleOf": 0.028229, "type": "number", "minimum": 0.02, "maximum": 0.06})", {"0.028229", "0.05645800"},
          {"0.084687", "0.03", "0"});
    check(R"({"multipleOf": 45359.3, "type": "number"})", {"45359.3", "90718.60", "453593"}, {"45359.2", "0.1", "1.3"});
    check(R"({"type": "number", "allOf": [{"multipleOf": 0.453592}, {"multipleOf": 0.123456}]})",
          {"0", "6999.831744", "-6999.8317440"}, {"0.453592", "0.123456", "6999.831745"});
    Automaton grams(compile(R"({"multipleOf": 0.453592, "type": "number", "minimum": 0, "maximum": 0.9})"));
    StateId s = grams.start();
    for (const char c : std::string_view("0.4")) s = grams.step(s, static_cast<unsigned char>(c));
    for (const char c : std::string_view("012346789")) CHECK(grams.step(s, static_cast<unsigned char>(c)) == kDead);
    check(R"({"type": "number", "minimum": 0})", {"1e-07", "0.0", "2e+30"}, {"-1", "-1e-7"});
    // An exponent may make a whole number; far ones leave the range of a double, or become zero.
    check(R"({"type": "number", "not": {"type": "integer"}})", {"0.5", "1e-5"}, {"1e2", "2E+30", "1.5e1", "3.0"});
    check(R"({"type": "number", "exclusiveMinimum": 0})", {"1e-200", "1e200"}, {"1e-400", "1e400", "0e5"});
    check(R"({"type": "number", "minimum": 5})", {"1e16", "5.0", "1e+120"}, {"4.9", "1e-3", "-1e20"});
    check(R"({"type": "number", "exclusiveMinimum": 1e16})", {"10000000000000001"}, {"1e16", "10000000000000000"});
}

TEST_CASE("schema: strings by length, pattern and format") {
    check(R"({"type": "string", "minLength": 2, "maxLength": 3})",
          {"\"ab\"", "\"\xC3\xA9\\n\\u00e9\"", R"("\ud83d\ude00x")"}, {"\"a\"", "\"abcd\""});
    check(R"({"type": "string", "pattern": "^a+$", "maxLength": 3})", {"\"a\"", "\"aaa\""},
          {"\"\"", "\"aaaa\"", "\"ab\""});
    check(R"({"type": "string", "pattern": "b.d"})", {"\"abcde\"", "\"b\\\"d\"", "\"b\\\\d\""},
          {"\"bd\"", "\"b\\nd\""});
    check(R"({"type": "string", "pattern": "^(x|y)|z$"})", {"\"xa\"", "\"az\""}, {"\"ax\"", "\"za\""});
    check(R"({"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}], "not": {"pattern": "c"}})",
          {"\"ab\"", "\"xbya\""}, {"\"a\"", "\"abc\""});
    check(R"({"type": "string", "not": {"enum": ["no", "never"]}})", {"\"n\"", "\"nothing\"", "\"nev\""},
          {"\"no\"", "\"never\""});
    // The shortest text comes first in a search for one that two patterns match.
    check(R"({"type": "string", "pattern": "^(x|[ab]*a[ab]{10}c)$", "allOf": [{"pattern": "^(x|[ab]*b[ab]{11}c)$"}]})",
          {"\"x\"", "\"babbbbbbbbbbc\"", "\"ababbbbbbbbbbc\""}, {"\"aabbbbbbbbbbc\"", "\"bbbbbbbbbbbbc\"", "\"ac\""});
    check(R"({"type": "string", "format": "date"})", {"\"2024-02-28\""}, {"\"2024-13-01\"", "\"2024-02-30\"", "\"x\""});
    check(R"({"type": "string", "format": "date"})", {"\"2024-02-29\"", "\"2000-02-29\"", "\"1996-02-29\""},
          {"\"2023-02-29\"", "\"1900-02-29\"", "\"2022-02-29\"", "\"2024-02-30\"", "\"2024-02-2\""});
    check(R"({"type": "string", "format": "date-time"})", {"\"2024-02-29T00:00:00Z\"", "\"2023-02-28T00:00:00Z\""},
          {"\"2023-02-29T00:00:00Z\"", "\"2100-02-29T00:00:00Z\"", "\"2024-02-29\""});
    Automaton dates(compile(R"({"type": "string", "format": "date"})"));
    for (int year = 0; year < 10000; ++year) {
        char text[16];
        std::snprintf(text, sizeof text, "\"%04d-02-29\"", year);
        const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        CHECK_MESSAGE(accepts(dates, text) == leap, text);
    }
    check(
        R"({"format": "date", "enum": ["2024-01-31", "2024-02-29", "2000-02-29", "2023-02-29", "1900-02-29", "x", 7]})",
        {"\"2024-01-31\"", "\"2024-02-29\"", "\"2000-02-29\"", "7"}, {"\"2023-02-29\"", "\"1900-02-29\"", "\"x\""});
    check(R"({"format": "date-time", "enum": ["2016-12-31T23:59:60Z", "2016-12-31T23:60:00Z", "2016-12-31"]})",
          {"\"2016-12-31T23:59:60Z\""}, {"\"2016-12-31T23:60:00Z\"", "\"2016-12-31\""});
    check(R"({"format": "email", "enum": ["a@b", "\"a b\"@c", "a"]})", {"\"a@b\"", R"("\"a b\"@c")"}, {"\"a\""});
    check(R"({"format": "of its own", "const": "x"})", {"\"x\""}, {"\"y\""});
    check(R"({"anyOf": [{"const": "127.0.0.1"}, {"const": "localhost"}], "format": "ipv4"})", {"\"127.0.0.1\""},
          {"\"localhost\""});
    check(R"({"type": "string", "format": "date-time"})",
          {"\"2024-02-28T10:00:00Z\"", "\"2024-02-28T10:00:00.5+01:00\""},
          {"\"2024-02-28\"", "\"2024-02-28T24:00:00Z\""});
    check(R"({"type": "string", "format": "ipv4"})", {"\"127.0.0.1\"", "\"255.255.255.255\""},
          {"\"256.0.0.1\"", "\"1.2.3\""});
    check(R"({"type": "string", "format": "ipv6"})",
          {"\"::1\"", "\"fe80::1:2\"", "\"1:2:3:4:5:6:7:8\"", "\"::ffff:1.2.3.4\""},
          {"\"1:2:3\"", "\"1::2::3\"", "\"12345::\""});
    check(R"({"type": "string", "format": "uuid"})", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123e4567\""});
    check(R"({"type": "string", "format": "email"})", {"\"a.b@c.org\""}, {"\"a@\"", "\"a b@c\""});
    const std::string label = std::string(62, 'a') + ".", name = label + label + label + label;
    const std::string longest = "\"" + name + "a\"", longer = "\"" + name + "ab\"";
    check(R"({"type": "string", "format": "hostname"})", {"\"a-b.example\"", longest.c_str()},
          {"\"-a\"", "\"a_b\"", longer.c_str()});
    check(R"({"type": "string", "format": "uri"})",
          {"\"https://a.b/c?d=e#f\"", "\"urn:x:y\"", "\"http://u:p@a.b:80/c@d:e?/#?/\"", "\"http://[1::2]:8080\"",
           "\"file:///etc/a%20b\"", "\"a:/\"", "\"mailto:a@b.c\""},
          {"\"a b\"", "\"/x\"", "\"http://a@b@c\"", "\"a://[:::::]\"", "\"http://a:b:c\"", "\"http://[1::2]3\"",
           "\"a:b[1]\"", "\"a:%2\""});
    check(R"({"type": "string", "format": "duration"})", {"\"P1Y2M3DT4H\"", "\"PT5M\"", "\"P2W\""},
          {"\"P\"", "\"1D\""});
    check(R"({"type": "string", "format": "time"})", {"\"23:59:59Z\""}, {"\"25:00:00Z\"", "\"23:59:60Z\""});
    // A listed text has more readings than are kept: whether the pattern matches it is not known.
    const std::string crowd = "\"" + std::string(600, 'a') + std::string(700, 'b') + "c\"";
    CHECK(error("{\"enum\": [" + crowd + R"(], "not": {"pattern": "a.{700}c"}})").find("beside enum or const") !=
          std::string::npos);
    CHECK(error("{\"enum\": [" + crowd + R"(, "b"], "pattern": "a.{700}c"})").find("beside enum or const") !=
          std::string::npos);
    CHECK(accepts(compile("{\"enum\": [" + crowd + R"(, "b"], "pattern": "a.{700}|d"})"), crowd));
    // A pattern that no text matches, such as a character that is half of a surrogate pair.
    for (const char* none : {"[]", "^[]+$", "[^\\\\s\\\\S]", "[\\\\ud800-\\\\udbff][\\\\udc00-\\\\udfff]"}) {
        const std::string pattern = say("{\"pattern\": \"", none, "\"}");
        check(pattern, {"1"}, {"\"\"", "\"a\"", "\"\xF0\x9F\x98\x80\""});
        check("{\"not\": " + pattern + "}", {"\"\"", "\"a\""}, {"1"});
        check("{\"enum\": [\"a\", 1], \"allOf\": [" + pattern + "]}", {"1"}, {"\"a\""});
    }
}

TEST_CASE("schema: arrays") {
    check(R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
          {"[1]", "[1, 2,3]", "[ 1 ]"}, {"[]", "[1,2,3,4]", "[\"a\"]", "[1,]"});
    check(R"({"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}], "items": {"type": "boolean"}})",
          {"[]", "[\"a\"]", "[\"a\", null, true, false]"}, {"[null]", "[\"a\", null, 1]"});
    check(R"({"type": "array", "items": [{"type": "string"}], "additionalItems": false})", {"[]", "[\"a\"]"},
          {"[\"a\", 1]"});
    check(R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"});
    check(R"({"type": "array", "items": false})", {"[]"}, {"[1]"});
    check(R"({"type": "array", "contains": {"const": 1}, "items": {"type": "integer"}, "minItems": 2})",
          {"[1, 2]", "[2, 1]", "[2, 3, 1, 4]"}, {"[1]", "[2, 3]", "[1, \"a\"]"});
    check(
        R"({"type": "array", "items": {"type": "array", "items": {"enum": [0]}, "minItems": 2, "maxItems": 2}, "minItems": 2})",
        {"[[0,0],[0,0]]"}, {"[[0,0]]", "[[0],[0,0]]"});
}

TEST_CASE("schema: objects") {
    const std::string person =
        R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
        "on": {"type": "boolean"}}, "required": ["name", "on"], "additionalProperties": false})";
    check(person,
          {R"({"name": "x", "on": true})", R"({"name":"x","age":3,"on":false})",
           "{\n  \"name\": \"\",\n  \"on\": true\n}"},
          {R"({"name": "x"})", R"({"on": true, "name": "x"})", R"({"name": "x", "on": true, "z": 1})", "{}",
           R"({"name": "x", "name": "y", "on": true})"});
    SchemaOptions any;
    any.any_order = true;
    check(person, {R"({"on": true, "name": "x"})", R"({"age": 1, "on": true, "name": "x"})"},
          {R"({"on": true})", R"({"on": true, "on": true, "name": "x"})", R"({"on": true, "name": 1})"}, any);
    check(R"({"type": "object", "properties": {"a": {"type": "integer"}}})",
          {"{}", R"({"a": 1})", R"({"a": 1, "b": [2]})", R"({"ab": "x"})", R"({"": 0})"},
          {R"({"a": "x"})", R"({"b": 1, "a": 1})"});
    check(R"({"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 1, "maxProperties": 2})",
          {R"({"x": null})", R"({"x": null, "y": null})"},
          {"{}", R"({"x": 1})", R"({"a": null, "b": null, "c": null})"});
    check(R"({"type": "object", "patternProperties": {"^n_": {"type": "number"}, "_s$": {"type": "string"}},
        "additionalProperties": false})",
          {R"({"n_a": 1, "a_s": "x"})", "{}"}, {R"({"n_a": "x"})", R"({"n_s": 1})", R"({"n_s": "x"})", R"({"b": 1})"});
    check(R"({"type": "object", "propertyNames": {"pattern": "^[a-c]+$", "maxLength": 2}})", {R"({"ab": 1})", "{}"},
          {R"({"abc": 1})", R"({"d": 1})"});
    // No member is begun after which the counts cannot be reached.
    for (const SchemaOptions& options : {SchemaOptions(), any}) {
        check(R"({"type": "object", "properties": {"c": {"const": 1}, "a": {"const": 1}, "b": {"const": 1}},
            "required": ["a", "b"], "maxProperties": 2})",
              {R"({"a": 1, "b": 1})"}, {R"({"c": 1, "a": 1})", R"({"c": 1, "a": 1, "b": 1})"}, options);
        const std::string full = R"({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 1}},
            "minProperties": 2, "additionalProperties": false})";
        check(full, {R"({"a": 1, "b": 1})"}, {"{}", R"({"a": 1})", R"({"b": 1})"}, options);
        Automaton a(compile(full, options));
        StateId s = a.start();
        for (const char c : std::string_view("{\"b")) s = a.step(s, static_cast<unsigned char>(c));
        CHECK((s != kDead) == options.any_order);
    }
    check(R"({"type": "object", "properties": {"a\"b": {"const": 1}}, "required": ["a\"b"]})", {R"({"a\"b": 1})"},
          {R"({"a\"b": 2})", "{}"});
    // A listed name must not come in through its escapes.
    check(R"({"type": "object", "properties": {"ab": {"const": 1}}})", {R"({"ab": 1})"}, {R"({"a\u0062": 2})"});
    check(R"({"type": "object", "dependentRequired": {"a": ["b"]}, "properties": {"a": {}, "b": {}}})",
          {R"({"b": 1})", R"({"a": 1, "b": 2})", "{}"}, {R"({"a": 1})"});
}

TEST_CASE("schema: combinations") {
    check(R"({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 5}]})", {"\"x\"", "5"}, {"4", "null"});
    check(R"({"allOf": [{"type": ["string", "integer"]}, {"minimum": 5}, {"maxLength": 1}]})", {"\"x\"", "5"},
          {"4", "\"xy\""});
    check(R"({"oneOf": [{"type": "integer"}, {"minimum": 2}]})", {"1", "2.5", "\"x\""}, {"3", "1.5"});
    check(
        R"({"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}, "v": {"type": "integer"}}, "required": ["k", "v"]},
        {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]}]})",
        {R"({"k": "a", "v": 1})", R"({"k": "b"})"}, {R"({"k": "a"})", R"({"k": "c"})"});
    check(R"({"type": "integer", "if": {"minimum": 10}, "then": {"multipleOf": 5}, "else": {"multipleOf": 2}})",
          {"4", "10", "15"}, {"3", "12"});
    check(R"({"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"properties": {"a": {"minimum": 3}, "b": {"type": "null"}}}], "type": "object"})",
          {R"({"a": 3, "b": null})", R"({"a": 4})"}, {R"({"a": 2})", R"({"b": null})"});
    check(R"({"not": {"type": ["string", "number", "array", "object"]}})", {"null", "true"}, {"1", "\"x\"", "[]"});
    check(R"({"type": "object", "not": {"required": ["a"]}})", {"{}", R"({"b": 1})"}, {R"({"a": 1})"});
    check(R"({"not": {"anyOf": [{"type": "object"}, {"maximum": 5}]}, "type": ["object", "number"]})", {"6"},
          {"5", "{}"});
}

TEST_CASE("schema: references and recursion") {
    check(R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"},
        "next": {"$ref": "#/$defs/node"}}, "required": ["v"], "additionalProperties": false}}})",
          {R"({"v": 1})", R"({"v": 1, "next": {"v": 2, "next": {"v": 3}}})"}, {R"({"v": 1, "next": {}})", "1"});
    check(R"({"type": "array", "items": {"anyOf": [{"type": "integer"}, {"$ref": "#"}]}})", {"[1, [2, []]]"},
          {"[\"x\"]"});
    check(R"({"$ref": "#/definitions/a~1b%20c", "definitions": {"a/b c": {"const": 1}}})", {"1"}, {"2"});
    check(
        R"({"properties": {"x": {"$ref": "#id"}}, "$defs": {"y": {"$anchor": "id", "type": "null"}}, "type": "object"})",
        {R"({"x": null})"}, {R"({"x": 1})"});
    // Percent signs are decoded first, and then tildes.
    check(R"({"$ref": "#/$defs/c%7E1d", "$defs": {"c/d": {"const": 1}}})", {"1"}, {"2"});
    check(R"({"$ref": "#/$defs%2Fe%", "$defs": {"e%": {"const": 1}}})", {"1"}, {"2"});
    // Within a schema that has an identifier of its own # is that schema.
    const std::string inner = R"("$defs": {"k": {"const": "inner"}, "n": {"$anchor": "n", "const": "named"}}})";
    const std::string outer = R"("k": {"const": "outer"}, "n": {"$anchor": "n", "const": "outer"}}})";
    check(R"({"$ref": "in", "$defs": {"x": {"$id": "in", "allOf": [{"$ref": "#/$defs/k"}], )" + inner + ", " + outer,
          {R"("inner")"}, {R"("outer")"});
    check(R"({"$ref": "in", "$defs": {"x": {"$id": "in", "not": {"$ref": "#/$defs/k"}, )" + inner + ", " + outer,
          {R"("outer")"}, {R"("inner")"});
    check(R"({"not": {"properties": {"a": {"$ref": "in"}}}, "$defs": {"x": {"$id": "in", "$ref": "#n", )" + inner +
              ", " + outer,
          {R"({"a": "outer"})"}, {R"({"a": "named"})", "{}"});
    check(R"({"$ref": "in#n", "$defs": {"x": {"$id": "in", )" + inner + ", " + outer, {R"("named")"}, {R"("outer")"});
    CHECK(error(R"({"items": {"$id": "in", "$ref": "#/$defs/k"}, "$defs": {"k": {}}})") ==
          "bad_argument: #/items: $ref: '#/$defs/k' leads nowhere within the nearest schema with an $id, where # "
          "begins");
    check(R"({"$schema": "http://json-schema.org/draft-07/schema#", "items": {"$id": "in", "$ref": "#/definitions/k"},
        "type": "array", "definitions": {"k": {"const": 1}}})",
          {"[1]"}, {"[2]"});
    // Keywords beside a reference: ignored up to draft 7, applied since.
    check(R"({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/i", "maximum": 5,
        "definitions": {"i": {"type": "integer"}}})",
          {"7"}, {});
    check(R"({"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"i": {"type": "integer"}},
        "oneOf": [{"allOf": [{"$ref": "#/definitions/i", "type": "string"}]}, {"type": "integer", "minimum": 5}]})",
          {"4"}, {"7", "\"a\""});
    check(R"({"$ref": "#/$defs/i", "maximum": 5, "$defs": {"i": {"type": "integer"}}})", {"5"}, {"7"});
    CHECK(error(R"({"$ref": "#"})") == "bad_argument: #: $ref: references itself without anything between");
    CHECK(error(R"({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"allOf": [{"$ref": "#"}]}}})")
              .find("references itself") != std::string::npos);
    CHECK(error(R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})")
              .find("no value is valid") != std::string::npos);
    CHECK(error(R"({"properties": {"a": {"$ref": "https://example.com/x.json"}}})") ==
          "unsupported: #/properties/a: $ref: 'https://example.com/x.json' is not within the schema; put what it "
          "refers to "
          "under $defs");
    // A relative identifier is no other name for the absolute one.
    CHECK(
        error(R"({"$id": "https://x.org/root", "$ref": "https://x.org/a.json", "$defs": {"a": {"$id": "a.json"}}})") ==
        "unsupported: #: $ref: 'https://x.org/a.json' is no $id of the schema as it is written; relative ones are "
        "not resolved: write $ref and $id alike");
    check(R"({"$id": "https://x.org/root", "$ref": "a.json", "$defs": {"a": {"$id": "a.json", "const": 1}}})", {"1"},
          {"2"});
    CHECK(error(R"({"items": {"$ref": "#/$defs/none"}})") ==
          "bad_argument: #/items: $ref: '#/$defs/none' leads nowhere");
}

TEST_CASE("schema: errors name the pointer and the keyword") {
    CHECK(error(R"({"properties": {"a/b": {"items": {"type": "array", "uniqueItems": true}}}})")
              .find("unsupported: #/properties/a~1b/items: uniqueItems: is not supported") == 0);
    CHECK(error(R"({"type": "strin"})").find("bad_argument: #: type: expected the name of a type, found '\"strin\"'") ==
          0);
    CHECK(error(R"({"items": 3})").find("bad_argument: #/items: expected a schema") == 0);
    CHECK(error(R"({"minLength": -1})").find("#: minLength: expected an integer") != std::string::npos);
    for (const auto& [type, key] :
         {std::pair("string", "minLength"), {"array", "minItems"}, {"object", "minProperties"}})
        CHECK(error(say("{\"type\": \"", type, "\", \"", key, "\": 1000001}"))
                  .find(say("unsupported: #: ", key, ": above 1000000 is not supported")) == 0);
    check(R"({"type": "integer", "minLength": 1000001})", {"1"}, {"\"\""});
    CHECK(error("{\"pattern\": \"a(?=b)\"}").find("unsupported: #: pattern: ") == 0);
    CHECK(error(R"({"multipleOf": 1e-9})") == "unsupported: #: multipleOf: a multipleOf has more than 8 decimals");
    for (const char* multiple : {"1234567", "12.34567", "0.1234567"})
        CHECK(error(say("{\"multipleOf\": ", multiple, "}")) ==
              "unsupported: #: multipleOf: a multipleOf has more than 6 digits");
    check(R"({"type": "number", "multipleOf": 1e-8})", {"0.00000003"}, {"0.000000031"});
    CHECK(error(R"({"pattern": "a("})").find("bad_argument: #: pattern: ") == 0);
    CHECK(error(R"({"allOf": []})").find("#: allOf: expected a list") != std::string::npos);
    CHECK(error(R"({"type": "string", "minLength": 3, "maxLength": 2})").find("no value is valid") !=
          std::string::npos);
    CHECK(error(R"({"type": "string", "pattern": "^a$", "minLength": 2})").find("no value is valid") !=
          std::string::npos);
    CHECK(error("false").find("no value is valid") != std::string::npos);
    CHECK(error("{\"type\": }").find("line 1") != std::string::npos);
    // Also within what is negated.
    CHECK(error(R"({"properties": {"x": {"not": {"properties": {"a": {"uniqueItems": true}}}}}})")
              .find("unsupported: #/properties/x/not/properties/a: not: of uniqueItems") == 0);
    CHECK(error(R"({"not": {"properties": {"$ref": {"contains": {"$ref": "#/none"}}}}})") ==
          "bad_argument: #/not/properties/$ref/contains: $ref: '#/none' leads nowhere");
    SchemaOptions lenient;
    lenient.ignore_unsupported = true;
    const RulesPtr rules = compile(
        "{\"type\": \"array\", \"uniqueItems\": true, \"items\": {\"type\": \"string\", "
        "\"format\": \"colour\", \"pattern\": \"^(?!x)\"}}",
        lenient);
    CHECK(accepts(rules, R"(["a", "a"])"));
    CHECK(rules->ignored == std::vector<std::string>{"#/items: format 'colour'", "#/items: pattern", "#: uniqueItems"});
}

TEST_CASE("schema: a keyword with a value of the wrong kind is named, also within not") {
    struct Wrong {
        const char *keyword, *error;  // behind the pointer of the schema that has the keyword
    };
    for (const Wrong& w : {
             Wrong{R"("required": "a")", R"(: required: expected a list of names, found '"a"')"},
             {R"("required": ["a", 2])", "/required/1: expected the name of a member, found '2'"},
             {R"("dependentRequired": {"a": [1]})", "/dependentRequired/a/0: expected the name of a member, found '1'"},
             {R"("dependentRequired": {"a": {}})", "/dependentRequired/a: expected a list of names, found '{}'"},
             {R"("patternProperties": [1])", ": patternProperties: expected an object, found '[1]'"},
             {R"("$ref": 5)", ": $ref: expected a string, found '5'"},
             {R"("uniqueItems": "yes")", R"(: uniqueItems: expected true or false, found '"yes"')"},
             {R"("format": 5)", ": format: expected a string, found '5'"},
             {R"("if": 5)", "/if: expected a schema (an object or a boolean), found a number"},
             {R"("minLength": -5)", ": minLength: expected an integer from 0 on, found '-5'"},
             {R"("maxLength": "x")", R"(: maxLength: expected an integer from 0 on, found '"x"')"},
             {R"("multipleOf": "3")", R"(: multipleOf: expected a number, found '"3"')"},
             {R"("maximum": "3")", R"(: maximum: expected a number, found '"3"')"},
             {R"("enum": "foo")", R"(: enum: expected a list of values, found '"foo"')"},
             {R"("anyOf": [])", ": anyOf: expected a list of schemas that is not empty, found '[]'"},
         }) {
        CHECK(error(say("{", w.keyword, "}")) == say("bad_argument: #", w.error));
        CHECK(error(say(R"({"type": "string", "not": {)", w.keyword, "}}")) == say("bad_argument: #/not", w.error));
        CHECK(error(say(R"({"anyOf": [{"type": "integer"}, {"not": {)", w.keyword, "}}]}")) ==
              say("bad_argument: #/anyOf/1/not", w.error));
    }
    check(R"({"type": "string", "not": {"minLength": 1e16}})", {R"("")", R"("abc")"}, {"1"});
    // What generators and earlier drafts write says nothing. Up to draft 7 neither does what is beside a reference.
    check(R"({"type": "string", "required": true, "format": null, "$ref": null, "properties": null, "items": null,
        "additionalProperties": null, "patternProperties": null, "uniqueItems": null, "minContains": null})",
          {R"("a")"}, {"1"});
    check(R"({"type": "object", "required": null, "patternProperties": null, "properties": {"a": {"required": true}}})",
          {"{}", R"({"a": 1})"}, {"1"});
    check(R"({"type": "integer", "minimum": 3, "exclusiveMinimum": true})", {"4"}, {"3"});
    check(R"({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/i", "minLength": "x",
        "definitions": {"i": {"type": "integer"}}})",
          {"7"}, {"\"x\""});
}

TEST_CASE("schema: a keyword that says nothing about the values is no obstacle beside enum and const") {
    check(R"({"enum": [[1, 2], [3]], "uniqueItems": false, "unevaluatedItems": true, "minContains": 2})",
          {"[1, 2]", "[3]"}, {"[1]"});
    check(R"({"enum": [1, "a"], "uniqueItems": true, "contains": {}, "prefixItems": [{}]})", {"1", R"("a")"}, {"[]"});
    check(R"({"const": {"a": 1}, "uniqueItems": true, "contains": {}, "prefixItems": [false]})", {R"({"a": 1})"},
          {"{}"});
    CHECK(error(R"({"enum": [[1, 1]], "uniqueItems": true})").find("unsupported: #: uniqueItems: ") == 0);
    CHECK(error(R"({"enum": [[1, 1]], "contains": {}})").find("unsupported: #: contains: ") == 0);
    // Numbers are compared by value.
    check(R"({"type": "array", "uniqueItems": true, "maxItems": 1.0})", {"[]", "[1]"}, {"[1, 2]"});
    check(R"({"type": "array", "uniqueItems": true, "allOf": [{"maxItems": 1}]})", {"[]", "[1]"}, {"[1, 2]"});
    check(R"({"type": "array", "contains": {"const": 1}, "minContains": 1.0})", {"[1]", "[2, 1]"}, {"[2]", "[]"});
}

TEST_CASE("schema: a keyword that is ignored takes no value away") {
    SchemaOptions lenient;
    lenient.ignore_unsupported = true;
    const std::string address =
        R"({"oneOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}]})";
    check(address, {R"("1.2.3.4")", R"("::1")"}, {R"("x")", "1"}, lenient);
    check(R"({"type": "object", "properties": {"ip": )" + address + R"(}, "required": ["ip"]})", {R"({"ip": "::1"})"},
          {"{}", R"({"ip": 1})"}, lenient);
    check(R"({"type": "string", "not": {"format": "email"}})", {R"("x")"}, {"1"}, lenient);
    check(R"({"type": "string", "not": {"type": "string", "format": "email"}})", {R"("x")"}, {"1"}, lenient);
    check(R"({"not": {"uniqueItems": true}})", {"1", "[1, 1]"}, {}, lenient);
    check(R"({"not": {"minimum": 3, "exclusiveMinimum": true}})", {"1"}, {}, lenient);
    check(R"({"type": "integer", "not": {"$ref": "#/$defs/i", "minimum": 3}, "$defs": {"i": {"type": "integer"}}})",
          {"1"}, {"\"x\""}, lenient);
    const std::string some = R"({"type": "array", "items": {"type": "integer"}, "contains": {"const": 1}, )";
    check(some + R"("maxItems": 100})", {"[1]", "[2]"}, {"[\"x\"]"}, lenient);
    check(some + R"("maxItems": 2})", {"[2, 1]"}, {"[2]"}, lenient);
    check(R"({"type": "object", "patternProperties": {"^(?!x).": {"type": "integer"}, "^s": {"type": "string"}},
              "properties": {"p": {}, "x": {}}, "additionalProperties": false})",
          {"{}", R"({"a": 1})", R"({"s": "x"})", R"({"p": 1})"}, {R"({"s": 1})"}, lenient);
    check(
        R"({"type": "object", "required": ["r"], "patternProperties": {"^(?!x).": {}}, "additionalProperties": false})",
        {R"({"r": 1})"}, {"{}"}, lenient);
    check(R"({"type": "object", "patternProperties": {"a": {}, "b": {}, "c": {}, "d": {}, "e": {}, "f": {}},
              "additionalProperties": false})",
          {R"({"a": 1})"}, {}, lenient);
}

TEST_CASE("schema: a sample of MaskBench, instance by instance" * doctest::test_suite("long")) {
    const char* shared = test::shared_dir("schemas of MaskBench");
    if (!shared) return;
    const Totals t = run_file(std::string(shared) + "/schemas/maskbench_sample.jsonl", {});
    CHECK(t.n_schema == 781);
    CHECK(t.n_valid_refused == 0);
    CHECK(t.n_invalid_accepted == 0);
    CHECK(t.n_compiled >= 781 * 85 / 100);
}

TEST_CASE("schema: the JSON Schema test suite, where it is supported") {
    const char* shared = test::shared_dir("the JSON Schema test suite");
    if (!shared) return;
    // format is an assertion here; a vocabulary would be loaded from elsewhere.
    const Totals t = run_file(std::string(shared) + "/schemas/json_schema_test_suite_2020-12.jsonl",
                              {"format.json", "vocabulary.json"});
    CHECK(t.n_schema > 350);
    CHECK(t.n_valid_refused == 0);
    CHECK(t.n_invalid_accepted == 0);
    CHECK(t.n_compiled >= 210);
}

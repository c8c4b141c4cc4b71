#include "../src/base/disk_file.h"
#include "../src/base/json.h"
#include "rounding.h"
#include "support.h"

#include <doctest/doctest.h>

#include <clocale>
#include <cstdlib>
#include <filesystem>

using auspex::Code;
using auspex::Status;
using auspex::detail::Json;
using auspex::detail::say;

namespace {

std::string again(const std::string& text) {
    auspex::Result<Json> r = Json::parse(text);
    return r.ok() ? r.value().dump() : r.status().message();
}
std::string error(const std::string& text) {
    auspex::Result<Json> r = Json::parse(text);
    CHECK_FALSE(r.ok());
    CHECK(r.status().code == Code::bad_argument);
    return r.status().text;
}

}  // namespace

TEST_CASE("JSON is written as Python's json.dumps writes it") {
    CHECK(again("{\"b\":1,\"a\":[true,false,null],\"c\":{}}") == "{\"b\": 1, \"a\": [true, false, null], \"c\": {}}");
    CHECK(again(" [ ] ") == "[]");
    CHECK(again("\"caf\\u00e9 \\ud83d\\ude00 / \\/ \x7f\"") == "\"caf\xC3\xA9 \xF0\x9F\x98\x80 / / \x7f\"");
    CHECK(again("\"\\u0000\\u001f\\n\\t\\\"\\\\\\b\\f\\r\"") == "\"\\u0000\\u001f\\n\\t\\\"\\\\\\b\\f\\r\"");
    CHECK(again("\"\\ud800x\"") == "\"\xEF\xBF\xBDx\"");
    CHECK(again("\t[1,\t2\r]\r\n") == "[1, 2]");
    // Half of a pair is U+FFFD, and what follows it stays.
    const char* pairs[][2] = {{"\\uDBFF\\uDFFF", "\xF4\x8F\xBF\xBF"},
                              {"\\uD800\\u0041",
                               "\xEF\xBF\xBD"
                               "A"},
                              {"\\uDC00", "\xEF\xBF\xBD"},
                              {"\\uD800\\uD800\\uDC00", "\xEF\xBF\xBD\xF0\x90\x80\x80"},
                              {"\\uD800\\uDBFF", "\xEF\xBF\xBD\xEF\xBF\xBD"},
                              {"\\uD800\\uE000", "\xEF\xBF\xBD\xEE\x80\x80"},
                              {"\\uE000\\uDC00", "\xEE\x80\x80\xEF\xBF\xBD"},
                              {"\\uD7FF\\uDC00", "\xED\x9F\xBF\xEF\xBF\xBD"}};
    for (const auto& p : pairs)
        CHECK_MESSAGE(again("\"" + std::string(p[0]) + "\"") == "\"" + std::string(p[1]) + "\"", p[0]);
}

TEST_CASE("numbers keep their digits and are formatted as in Python") {
    Json n;
    REQUIRE(Json::parse("123456789012345678901234567890").get(n).ok());
    CHECK(n.text() == "123456789012345678901234567890");
    CHECK(n.dump() == n.text());
    // Other than Python's, the form for replies holds every number.
    const std::string exact = "[1e400, -0, 0.1000000000000000000001, 9007199254740993.0]";
    CHECK(again(exact) == "[Infinity, 0, 0.1, 9007199254740992.0]");
    REQUIRE(Json::parse(exact).get(n).ok());
    CHECK(n.dump(Json::Numbers::written) == exact);
    const char* pairs[][2] = {{"1.50", "1.5"},
                              {"1e5", "100000.0"},
                              {"1E-5", "1e-05"},
                              {"0.0001", "0.0001"},
                              {"1e16", "1e+16"},
                              {"1e15", "1000000000000000.0"},
                              {"-0", "0"},
                              {"-0.0", "-0.0"},
                              {"0.1", "0.1"},
                              {"1.0e300", "1e+300"},
                              {"2.5e-7", "2.5e-07"},
                              {"123.456e2", "12345.6"},
                              {"5e-324", "5e-324"},
                              {"1e999", "Infinity"},
                              {"0.30000000000000004", "0.30000000000000004"},
                              {"5.9604644775390625e-08", "5.960464477539063e-08"},
                              {"-5.9604644775390625e-08", "-5.960464477539063e-08"},
                              {"12345678901234567.0", "1.2345678901234568e+16"}};
    for (const auto& p : pairs) CHECK_MESSAGE(again(p[0]) == p[1], p[0]);
    test::each_rounding([&](const std::string& mode) {
        CAPTURE(mode);
        CHECK(again(exact) == "[Infinity, 0, 0.1, 9007199254740992.0]");
        for (const auto& p : pairs) CHECK_MESSAGE(again(p[0]) == p[1], p[0]);
    });
}

TEST_CASE("messages print the same numbers in every rounding mode of the host") {
    test::each_rounding([](const std::string& mode) {
        CAPTURE(mode);
        CHECK(say(double{0.1f}, ' ', 2.5) == "0.1 2.5");
    });
}

#if defined(__linux__)
TEST_CASE("a locale whose decimal sign has several bytes changes no number") {
    namespace fs = std::filesystem;
    const fs::path dir = fs::temp_directory_path() / say("auspex-test-", auspex::detail::unique_number());
    fs::create_directories(dir);
    const std::string make = "localedef -i ps_AF -f UTF-8 '" + (dir / "ps_AF.UTF-8").string() + "' >/dev/null 2>&1";
    const bool made = std::system(make.c_str()) == 0;
    const char* const path = std::getenv("LOCPATH");
    const std::string old_path = path ? path : "";
    setenv("LOCPATH", dir.c_str(), 1);
    const bool is_set = made && std::setlocale(LC_NUMERIC, "ps_AF.UTF-8") != nullptr;
    path ? setenv("LOCPATH", old_path.c_str(), 1) : unsetenv("LOCPATH");
    if (is_set) {
        CHECK(auspex::detail::json_double("0.75") == 0.75);
        CHECK(again("[0.75, 2.5e-7, -3.0]") == "[0.75, 2.5e-07, -3.0]");
        CHECK(say(0.75) == "0.75");
        CHECK(auspex::detail::print_real("%.*f", 3, 0.75) == "0.750");
        std::setlocale(LC_NUMERIC, "C");
    }
    fs::remove_all(dir);
    if (!is_set) test::skip("localedef cannot make the locale ps_AF here");
}
#endif

TEST_CASE("a value converts to text as Python's str does") {
    const char* pairs[][2] = {{"true", "True"},   {"false", "False"}, {"null", "None"},      {"1e2", "100.0"},
                              {"-1e999", "-inf"}, {"\"x\"", "x"},     {"[\"x\"]", "[\"x\"]"}};
    for (const auto& p : pairs) {
        Json v;
        REQUIRE(Json::parse(p[0]).get(v).ok());
        CHECK(v.python_str() == p[1]);
    }
}

TEST_CASE("a repeated key keeps its position and takes the last value") {
    CHECK(again("{\"a\":1,\"b\":2,\"a\":3}") == "{\"a\": 3, \"b\": 2}");
    std::string many = "{", want = "{";
    for (int i = 0; i < 40; ++i) {
        many += "\"k" + std::to_string(i) + "\":0,";
        want += (i ? ", \"k" : "\"k") + std::to_string(i) + "\": " + (i == 20 ? "[]" : "0");
    }
    CHECK(again(many + "\"k20\":[]}") == want + "}");
}

TEST_CASE("invalid JSON is rejected with its position") {
    CHECK(error("[1,\n  x]") == "JSON: expected a value, found 'x' at line 2, column 3 (byte 6)");
    CHECK(error("{\"\xC3\xA9\" 1}") == "JSON: expected ':', found '1' at line 1, column 6 (byte 6)");
    CHECK(error("") == "JSON: expected a value, found the end at line 1, column 1 (byte 0)");
    CHECK(error("-") == "JSON: expected a digit, found the end at line 1, column 2 (byte 1)");
    CHECK(error("{\"a\":1 \"b\":2}") == "JSON: expected ',' or '}', found '\"' at line 1, column 8 (byte 7)");
    for (const char* bad :
         {"[1,]",  "{\"a\":1,}", "{a:1}",           "01",    "1.", "1e", "-",      "+1",     ".5",  "nul",      "truex",
          "\"abc", "\"\\x\"",    "\"\\u12g4\"",     "[1 2]", "[",  "{",  "{\"a\"", "\"\n\"", "NaN", "Infinity", "'a'",
          "[]]",   "// x",       "\"\\ud800\\u12\""})
        CHECK_MESSAGE(error(bad).find("JSON: expected ") == 0, bad);
    CHECK(error("\"a\xFF\"").find("expected UTF-8, found byte 0xff at line 1, column 3 (byte 2)") != std::string::npos);
}

TEST_CASE("depth, size and number of values are limited") {
    CHECK(again(std::string(100, '[') + std::string(100, ']')) == std::string(100, '[') + std::string(100, ']'));
    CHECK(error(std::string(100000, '[')).find("nested deeper than 100") != std::string::npos);
    Json::Limits small;
    small.max_bytes = 10;
    CHECK(Json::parse("[1,2,3,4,5,6]", small).status().text.find("13 bytes, at most 10") != std::string::npos);
    small.max_bytes = 100;
    small.max_values = 3;
    CHECK(Json::parse("[1,2]", small).ok());
    CHECK_FALSE(Json::parse("[1,2,3]", small).ok());
}

TEST_CASE("the keys of an object cost n log n comparisons") {
    for (const size_t n : {size_t{10}, size_t{1000}, size_t{20000}}) {
        std::string text = "{";
        for (size_t i = 0; i < n; ++i) text += (i ? ",\"k" : "\"k") + std::to_string(i * 7919 % n) + "\":1";
        Json v;
        uint64_t n_compare = 0;
        REQUIRE(Json::parse(text + "}", Json::Limits(), &n_compare).get(v).ok());
        CHECK(v.keys().size() == n);
        CHECK(n_compare <= 40 * n);
    }
}

TEST_CASE("members are found by name, and only in objects") {
    Json v;
    REQUIRE(Json::parse("{\"a\": {\"b\": \"c\"}}").get(v).ok());
    REQUIRE(v.find("a") != nullptr);
    REQUIRE(v.find("a")->find("b") != nullptr);
    CHECK(v.find("a")->find("b")->text() == "c");
    CHECK(v.find("b") == nullptr);
    CHECK(v.find("a")->find("b")->find("c") == nullptr);
}

TEST_CASE("JSON: a value that is no array and no object has no room for members") {
    CHECK(sizeof(Json) <= sizeof(std::string) + 2 * sizeof(void*));
    Json value;
    REQUIRE(Json::parse(R"({"a": [1, {"b": []}], "c": {}})").get(value).ok());
    Json copy = value, other = copy.items()[0];
    copy = other;
    value = Json(copy.items()[1]);
    CHECK(value.dump() == R"({"b": []})");
    CHECK(copy.dump() == R"([1, {"b": []}])");
    copy = copy.items()[0];  // a part of itself
    CHECK(copy.dump() == "1");
    CHECK(copy.items().empty());
    CHECK(copy.find("b") == nullptr);
}

// base/json: JSON values for conversations and tool definitions.
//
// Owns    a parser whose errors name line, column and byte, and a writer that prints what Python's
//         json.dumps(value, ensure_ascii=False) prints, because chat templates depend on that form.
// Thread  no shared state; a Json is a plain value.
// Tests   tests/test_json.cpp, tests/fuzz_chat.cpp
#pragma once
#include "base.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

class Json {
  public:
    enum class Kind { null, boolean, number, string, array, object };
    struct Limits {
        size_t max_bytes = size_t{64} << 20;
        size_t max_depth = 100;
        size_t max_values = 1000000;  ///< one takes about 50 bytes, in small objects 110
    };

    Json() noexcept;  // defined where Inner is complete: constexpr std::unique_ptr of C++23 needs that
    Json(const Json& other);
    Json(Json&& other) noexcept;
    Json& operator=(const Json& other);
    Json& operator=(Json&& other) noexcept;
    ~Json();

    /// Reads one JSON text (RFC 8259). Repeated keys: the last value wins, at the place of the first.
    /// A lone surrogate escape becomes U+FFFD.
    ///
    /// errors    bad_argument: what was expected, what was found, with line, column and byte.
    /// cost      n log n whatever the keys are. `n_compare`, if given, receives the number of key comparisons.
    static Result<Json> parse(std::string_view text, const Limits& limits, uint64_t* n_compare = nullptr);
    static Result<Json> parse(std::string_view text) { return parse(text, Limits()); }
    static Json of_string(std::string_view text);

    Kind kind() const { return kind_; }
    bool is(Kind k) const { return kind_ == k; }
    const char* kind_name() const;  ///< "an object", for messages
    bool boolean() const { return boolean_; }
    /// The characters of a string, or the digits of a number exactly as they were written.
    const std::string& text() const { return text_; }
    /// Elements of an array, or values of an object (keys()[i] names items()[i]).
    const std::vector<Json>& items() const;
    const std::vector<std::string>& keys() const;
    /// The member of an object, or null: also when this is no object. cost: linear in the members.
    const Json* find(std::string_view key) const;
    /// A literal's length is known.
    template <size_t n>
    const Json* find(const char (&key)[n]) const {
        return find(std::string_view(key, n - 1));
    }

    /// What json.dumps(value, ensure_ascii=False) writes in Python; with Numbers::written the numbers keep their
    /// digits. Python's form of 1e400 is Infinity, which is no JSON.
    enum class Numbers { python, written };
    std::string dump(Numbers numbers = Numbers::python) const;
    /// What str(value) writes in Python for null, booleans and numbers ("None", "True", "1.5");
    /// strings as they are, arrays and objects as dump().
    std::string python_str() const;

  private:
    friend class JsonReader;
    struct Inner;
    const Inner& inner() const;
    void dump_to(std::string& out, Numbers numbers) const;
    Kind kind_ = Kind::null;
    bool boolean_ = false;
    std::string text_;
    std::unique_ptr<Inner> inner_;  ///< of arrays and objects that are not empty: most values are neither
};
struct Json::Inner {
    std::vector<Json> items;
    std::vector<std::string> keys;
};

/// The value of a JSON number, whatever the locale and the floating-point mode of the thread.
double json_double(const std::string& text);
/// A JSON number as Python prints it after reading it: an integer keeps its digits, another number becomes the shortest
/// text that reads back as the same double.
std::string python_number(const std::string& text, bool as_json);

/// Whether a JSON string writes the character with a backslash, and how.
constexpr bool json_must_escape(uint32_t c) { return c < 0x20 || c == '"' || c == '\\'; }
std::string json_escape(uint32_t c);
/// A text as a JSON string holds it, without and with its quotes.
std::string json_escaped(std::string_view text);
std::string json_quoted(std::string_view text);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

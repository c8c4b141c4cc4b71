// base/jinja_value: the values of a running template.
//
// Owns    Value and the Heap that holds what values refer to, until the run ends: a template cannot leak by a cycle.
// Thread  one heap and its values belong to one thread.
// Tests   tests/test_jinja.cpp, tests/test_jinja_limits.cpp
#pragma once
#include "json.h"
#include "marked.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace jinja {

struct Data;

/// What a list is in Python.
enum ListForm : uint8_t {
    kList,
    kTuple,
    kGroup /* a tuple of groupby */,
    kIterator /* true even if it is empty */,
    kView /* of a map */
};

/// Lists, maps and strings are shared: a copy of a Value refers to the same Data.
struct Value {
    enum class Kind : uint8_t {
        undefined,
        none,  ///< integer: 1 if it may be iterated, as if it were empty
        boolean,
        integer,
        real,
        string,
        list,
        map,
        name_space,  ///< a map whose members `set` may change
        loop,        ///< the variable `loop`; integer: its node, and above 32 bits how deep it recursed
        macro,       ///< integer: its node, and above 32 bits the scope that it was made in
        function,    ///< integer: a Function
    };
    Kind kind = Kind::undefined;
    union {
        int64_t integer = 0;  ///< also of booleans; of a list, its ListForm
        double real;
    };
    Data* data = nullptr;

    bool is(Kind k) const { return kind == k; }
    bool is_number() const { return is(Kind::boolean) || is(Kind::integer) || is(Kind::real); }
    bool is_map() const { return is(Kind::map) || is(Kind::name_space); }
    double number() const { return is(Kind::real) ? real : static_cast<double>(integer); }
    const Marked& marked() const;
    const std::string& text() const { return marked().text; }
    /// The elements of a list, the values of a map.
    const std::vector<Value>& items() const;
    const char* kind_name() const;  ///< "a list", for messages
    /// As Python's bool(value).
    bool truth() const;
    /// How many steps of a run it costs to go through the value, beside one.
    uint64_t weight() const;
    bool is_tuple() const { return is(Kind::list) && (integer == kTuple || integer == kGroup); }
    /// The member of a map, or null.
    Value* find(std::string_view key) const;
    const Value* find(const Value& key) const;
};

struct Data {
    Marked text;  ///< of a string; of a real that JSON gave, its digits; of a map, the kinds of its keys, one byte
                  ///< each; empty: all are strings
    std::vector<std::string> keys;  ///< of a map
    std::vector<Value> items;       ///< of a list or a map; of a loop, what it runs over and what changed() was given
    size_t i = 0;                   ///< of a loop: which item
    /// Of a map of many keys that was searched: the members in the order of their keys.
    std::unique_ptr<std::vector<uint32_t>> order;

    Value::Kind key_kind(size_t at) const {
        return text.text.empty() ? Value::Kind::string : static_cast<Value::Kind>(text.text[at]);
    }
    /// The member of a map, or null. cost: logarithmic, but for the first search of a map of many keys.
    Value* find(std::string_view key, Value::Kind kind);
    /// Adds a member to a map that has none with this key.
    void add(std::string&& key, Value::Kind kind, const Value& value);
};
inline const Marked& Value::marked() const { return data->text; }
inline const std::vector<Value>& Value::items() const { return data->items; }

constexpr size_t kMaxHeapBytes = size_t{512} << 20;

class Heap {
  public:
    /// One of a kind that refers to no Data.
    static Value plain(Value::Kind kind, int64_t integer = 0);
    static Value boolean(bool b) { return plain(Value::Kind::boolean, b ? 1 : 0); }
    static Value integer(int64_t i) { return plain(Value::Kind::integer, i); }
    static Value real(double d);
    Value string(Marked&& text);
    /// Text that the template did not write.
    Value input(std::string_view text) { return string(Marked(text, false)); }
    Value list(std::vector<Value>&& items, int64_t form = kList);
    Value tuple(std::vector<Value>&& items) { return list(std::move(items), kTuple); }
    Value map(std::vector<std::string>&& keys, std::vector<Value>&& items);
    Value of_json(const Json& json);
    /// The key of the member i of a map.
    Value key(const Value& map, size_t i);
    Data* make(Value::Kind kind, Value* to);
    void charge(size_t n) { bytes_ += n; }
    size_t max_bytes = kMaxHeapBytes;
    /// More was made than max_bytes.
    bool full() const { return bytes_ > max_bytes; }

  private:
    std::vector<std::unique_ptr<Data>> all_;
    size_t bytes_ = 0;
};

/// A map whose members are given one after the other.
struct MapMaker {
    Data map;
    /// The last value of a key stays, at the place of its first. False: no key of a map.
    bool add(const Value& key, const Value& value);
    Value made(Heap& heap);
};

/// As Python's a == b. Values that nest too deep to compare are different. Adds to the steps of a run, and ends above
/// max_steps, where the result means nothing.
bool equal(const Value& a, const Value& b, uint64_t* n_step, uint64_t max_steps);
/// How a printed value looks: Python's str(value). A string keeps its marks, everything else has none.
///
/// errors    bad_argument: a value that is too large or nests too deep.
Result<Marked> to_text(const Value& value, size_t max_bytes);
/// How json.dumps writes: its arguments.
struct JsonForm {
    int64_t indent = -1;  ///< negative: all in one line
    bool ascii = false, sorted = false;
    std::string item = ", ", key = ": ";  ///< what stands between members, and behind their keys
};
/// errors    bad_argument: a value that JSON cannot express, or one that is too large or nests too deep.
Status to_json(const Value& value, const JsonForm& form, std::string* to, size_t max_bytes = kMaxHeapBytes);

}  // namespace jinja
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

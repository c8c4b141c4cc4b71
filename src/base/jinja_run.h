// base/jinja_run: runs the program of a chat template.
//
// Owns    Run: scopes, output and bounds of one rendering; statements and expressions (jinja_run.cpp), filters
//         (jinja_filter.cpp), tests, functions and methods (jinja_call.cpp).
// Thread  one run belongs to one thread; many may share a program.
// Tests   tests/test_jinja.cpp, tests/test_jinja_limits.cpp, tests/fuzz_chat.cpp
#pragma once
#include "jinja.h"
#include "jinja_value.h"

#include <algorithm>
#include <map>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace jinja {

/// One step is one statement or expression, to go through 64 bytes or elements of a value, or to write 16 bytes of one.
constexpr uint64_t kMaxSteps = 100000000;
constexpr uint32_t kMaxRunDepth = 400;

/// Counts one level of nested evaluation.
struct Level {
    explicit Level(uint32_t& depth) : depth_(depth) { ++depth_; }
    ~Level() { --depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

  private:
    uint32_t& depth_;
};

/// Values in parentheses: by place, or by name.
struct Arguments {
    std::vector<Value> items;
    const std::vector<std::string>* names = nullptr;  ///< one for each item, empty by place; null: all by place

    bool is_named(size_t i) const { return names != nullptr && !(*names)[i].empty(); }
    /// The one called `name`, or the one at `place` among those without a name; null: there is none.
    const Value* find(size_t place, std::string_view name) const;
    /// The one called `name`, which has no place.
    const Value* find(std::string_view name) const { return find(items.size(), name); }
    bool flag(size_t place, std::string_view name) const {
        const Value* v = find(place, name);
        return v != nullptr && v->truth();
    }
};

class Run {
  public:
    explicit Run(const Program& program) : program_(program), scopes_(1) {}
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    Heap heap;
    uint64_t max_steps = kMaxSteps;
    /// A variable of the template.
    void set(std::string_view name, const Value& value);
    /// The text that it prints. Once.
    ///
    /// errors    bad_argument: in the words of raise_exception(), or what is wrong and in which line.
    Result<Marked> run();

  private:
    enum class Flow : uint8_t { next, break_, continue_ };
    struct Scope {
        std::map<std::string_view, Value> names;  ///< a client may give any number
        size_t parent = 0;                        ///< whose variables it sees beside its own; of the first, itself
    };
    void push_scope(size_t parent) {
        scopes_.emplace_back();
        scopes_.back().parent = parent;
    }
    void push_scope() { push_scope(scopes_.size() - 1); }

    bool failed() const { return !status_.ok(); }
    template <class... A>
    Value wrong(const A&... parts) {
        const Part list[] = {parts...};
        return wrong_parts(list, sizeof...(parts));
    }
    Value wrong_parts(const Part* parts, size_t n);
    /// to_text(), with its error as that of the run.
    Marked text_of(const Value& v);
    /// Counts steps; false once the run has failed or went beyond a bound.
    ///
    /// Filters, functions and methods count no step for what they are given or give: expression(), attribute() and
    /// mapped() do that. They count what takes more than linear time, and end a loop that makes values when the heap is
    /// full: what they give then is not used.
    bool step(uint64_t n = 1);
    /// Counts the steps of a search for `part`, which may compare all of it at each place.
    bool step_search(const std::string& text, const std::string& part);
    bool same(const Value& a, const Value& b) {
        const bool result = equal(a, b, &n_step_, max_steps);
        return step(0) && result;
    }
    /// Fails if a text grew beyond the heap's bound.
    bool fits(const Marked& text);

    Flow statement(uint32_t id);
    Flow scope_statement(const Node& n);
    /// A value that refers to a node and to a number beside it.
    static Value node_value(Value::Kind kind, uint32_t id, size_t number) {
        return Heap::plain(kind, static_cast<int64_t>(id | uint64_t{number} << 32));
    }
    /// The loop over the values `over`, within `depth` recursions of it.
    Flow for_statement(uint32_t id, const Value& over, size_t depth);
    bool loop_items(const Node& n, const Value& over, std::vector<Value>* to);
    void assign(const std::vector<std::string>& names, const Value& value);
    void set_member(const Node& n);
    Marked captured(uint32_t body);

    Value expression(uint32_t id);
    Value evaluate(const Node& n);
    Value name(std::string_view name);
    /// Whether a.name is a method of a map, as it is even where the map has a member of that name.
    static bool is_method(const Value& of, std::string_view name);
    Value member(const Value& of, std::string_view name, const Node& n);
    /// The member of a map or of a group of groupby.
    static Value member_of(const Value& of, std::string_view name);
    Value item(const Node& n);
    /// An element of a list or a text, or a member of a map.
    Value item_of(const Value& of, const Value& key);
    Value slice(const Node& n);
    Value map(const Node& n);
    void add_member(MapMaker& map, const Value& key, const Value& value);
    Value binary(const Node& n);
    Value add(const Value& a, const Value& b);
    Value arithmetic(Binary op, const Value& a, const Value& b);
    Value repeated(const Value& what, int64_t n);
    Value integers(Binary op, int64_t a, int64_t b);
    bool contains(const Value& whole, const Value& part);
    /// Whether a is before b.
    bool less(const Value& a, const Value& b);
    Arguments arguments(const Node& n);

    /// caller: the block of the call, or null.
    Value call(const Node& n, const Value* caller = nullptr);
    Value macro(const Value& which, const Arguments& args, const Value* caller);
    Value loop_call(const Value& loop, const Arguments& args);
    Value loop_method(const Value& loop, const std::string& name, const Arguments& args);
    Value function(Function f, const Arguments& args);
    Value range(const Arguments& args);
    Value today(const Marked& format);
    Value method(const Value& of, const std::string& name, const Arguments& args);
    /// Without what the first argument says, or white space, at the sides asked for.
    Value strip(const Marked& text, const Arguments& args, bool left, bool right);
    Value string_method(const Value& of, const std::string& name, const Arguments& args);
    Value split(const Marked& text, const Arguments& args, bool from_right);
    Value split(const Marked& text, const char* separator);
    Value searched(const Marked& text, const std::string& name, const Arguments& args);
    Value partition(const Marked& text, const Arguments& args, bool from_right);
    Value lines(const Marked& text, bool keeps_ends);
    Value padded(const Marked& text, const std::string& name, const Arguments& args);
    Value fields(const Marked& format, const Arguments& args);
    bool test(Test which, const Value& v, const Value& argument);

    Value filter(Filter which, const Value& v, const Arguments& args);
    static bool is_lazy(Filter which);
    Value text_filter(Filter which, const Value& v, const Arguments& args);
    Value list_filter(Filter which, std::vector<Value>&& items, const Arguments& args);
    Value json(const Value& v, const Arguments& args);
    Value mapped(std::vector<Value>&& items, const Arguments& args);
    Value selected(Filter which, const std::vector<Value>& items, const Arguments& args);
    /// What filters compare of each item: its attributes, strings in lower case unless `exact`.
    std::vector<Value> keys_of(const std::vector<Value>& items, const Value* attribute, bool exact);
    Value sorted(std::vector<Value>&& items, const std::vector<Value>& keys, bool falls);
    Value grouped(const std::vector<Value>& items, const Arguments& args);
    Value extreme(Filter which, const std::vector<Value>& items, const Arguments& args);
    Value unique(const std::vector<Value>& items, const Arguments& args);
    Value sum(const std::vector<Value>& items, const Arguments& args);
    /// In rows of a length, or in so many columns.
    Value divided(Filter which, const std::vector<Value>& items, const Arguments& args);
    Value rounded(const Value& v, const Arguments& args);
    Value formatted(const Marked& format, const std::vector<Value>& values);
    Value joined(const std::vector<Value>& items, const Marked& between, const Value* name);
    Value to_number(Filter which, const Value& v, const Arguments& args);
    /// The attribute that a filter names, with dots for attributes of attributes; without a name the value itself.
    /// Counts steps for both.
    Value attribute(Value of, const Value* name);
    /// [key, value] of each member.
    Value pairs(const Value& map, ListForm form = kList);
    /// At most n times, or without an end where n is below 0.
    Value replaced(const Marked& text, const Marked& old, const Marked& by, int64_t n);
    Value indented(const Marked& text, const Arguments& args);
    /// The elements of anything that can be iterated; false after an error.
    bool elements(const Value& v, std::vector<Value>* to);
    /// Where each character begins, and the end. Fails for a text whose places would take more than the heap may.
    std::vector<size_t> character_starts(std::string_view text);
    /// An argument that must be a string or an integer; `absent` where there is none.
    Marked text_argument(const Arguments& args, size_t place, const char* name, const char* absent = "");
    int64_t integer_argument(const Arguments& args, size_t place, const char* name, int64_t absent);

    const Program& program_;
    std::vector<Scope> scopes_;
    Marked* out_ = nullptr;
    Status status_;
    uint64_t n_step_ = 0;
    uint32_t depth_ = 0, line_ = 0;
};

/// Without white space, or without the given characters, on the sides asked for.
Marked stripped(const Marked& text, const std::string* characters, bool left, bool right);
/// With ASCII letters in another case. `title` is the filter's, whose words begin behind white space, - and brackets;
/// `python_title` is the method's, whose words are runs of letters.
enum class Case : uint8_t { lower, upper, title, python_title, capitalize };
Marked in_case(Marked text, Case how);
size_t count_characters(std::string_view text);

}  // namespace jinja
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

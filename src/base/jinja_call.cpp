#include "jinja_run.h"

#include "unicode.h"

#include <chrono>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace jinja {

const Value* Arguments::find(size_t place, std::string_view name) const {
    size_t n_before = 0;
    for (size_t i = 0; i < items.size(); ++i) {
        if (is_named(i) ? (*names)[i] == name : n_before++ == place) return &items[i];
    }
    return nullptr;
}

Value Run::call(const Node& n) {
    const Node& callee = program_.nodes[n.a];
    Value of, what;
    if (callee.op == Op::member) {
        of = expression(callee.a);
        if (!is_method(of, callee.text)) what = member(of, callee.text, program_.nodes[callee.a]);
    } else {
        what = expression(n.a);
    }
    const Arguments args = arguments(n);
    if (failed()) return Value();
    line_ = n.line;
    if (what.is(Value::Kind::macro)) return macro(static_cast<uint32_t>(what.integer), args);
    if (what.is(Value::Kind::function)) return function(static_cast<Function>(what.integer), args);
    if (callee.op == Op::member && what.is(Value::Kind::undefined)) return method(of, callee.text, args);
    return wrong(callee.text.empty() ? "a value" : quote(callee.text), " is ", what.kind_name(),
                 ", expected a function or a macro");
}

Value Run::macro(uint32_t id, const Arguments& args) {
    const Node& n = program_.nodes[id];
    scopes_.emplace_back();
    scopes_.back().isolated = true;
    for (size_t i = 0; i < n.names.size() && !failed(); ++i) {
        const Value* given = args.find(i, n.names[i]);
        set(n.names[i], given != nullptr ? *given : n.parts[i] != 0 ? expression(n.parts[i]) : Value());
    }
    if (args.items.size() > n.names.size())
        wrong("the macro ", quote(n.text), " was given ", args.items.size(), " arguments, it takes ", n.names.size());
    for (size_t i = 0; i < args.items.size(); ++i)
        if (args.is_named(i) && std::find(n.names.begin(), n.names.end(), (*args.names)[i]) == n.names.end())
            wrong("the macro ", quote(n.text), " has no argument ", quote((*args.names)[i]));
    Marked text;
    if (!failed()) text = captured(n.a);
    scopes_.pop_back();
    return failed() ? Value() : heap.string(std::move(text));
}

Value Run::function(Function f, const Arguments& args) {
    switch (f) {
        case Function::raise_exception:
            status_ =
                fail(Code::bad_argument, text_argument(args, 0, "message", "the template refuses the request").text);
            return Value();
        case Function::range: return range(args);
        case Function::strftime_now: return today(text_argument(args, 0, "format").text);
        case Function::method: return wrong("a method of a map can only be called by its name");
        case Function::dict:
        case Function::namespace_: break;
    }
    std::vector<std::string> keys;
    std::vector<Value> items;
    for (size_t i = 0; i < args.items.size(); ++i) {
        if (args.is_named(i)) {
            keys.push_back((*args.names)[i]);
            items.push_back(args.items[i]);
        } else if (args.items[i].is_map()) {
            keys = args.items[i].data->keys;
            items = args.items[i].items();
        } else {
            return wrong("expected members with names, found ", args.items[i].kind_name());
        }
    }
    Value made = heap.map(std::move(keys), std::move(items));
    if (f == Function::namespace_) made.kind = Value::Kind::name_space;
    return made;
}

Value Run::range(const Arguments& args) {
    constexpr int64_t kMaxRange = 100000;  // as in Jinja's sandbox
    const size_t n = args.items.size();
    const int64_t from = n > 1 ? integer_argument(args, 0, "start", 0) : 0;
    const int64_t to = integer_argument(args, n > 1 ? 1 : 0, "stop", 0), by = integer_argument(args, 2, "step", 1);
    if (by == 0) return wrong("range with a step of 0");
    std::vector<Value> items;
    for (int64_t i = from; !failed() && (by > 0 ? i < to : i > to); i += by) {
        if (items.size() >= kMaxRange || i > INT64_MAX / 2 || i < INT64_MIN / 2)
            return wrong("a range of more than ", kMaxRange, " numbers");
        items.push_back(Heap::integer(i));
        if (by > INT64_MAX / 2 || by < INT64_MIN / 2) break;
    }
    return heap.list(std::move(items));
}

/// The day as Python's strftime writes it.
Value Run::today(const std::string& format) {
    const auto since = std::chrono::system_clock::now().time_since_epoch();
    // Civil from days, in years that begin in March: H. Hinnant, "chrono-compatible low-level date algorithms".
    const int64_t day = std::chrono::duration_cast<std::chrono::hours>(since).count() / 24 + 719468;
    const int64_t era = day / 146097, of_era = day % 146097;
    const int64_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    const int64_t of_year = of_era - (365 * year + year / 4 - year / 100), m = (5 * of_year + 2) / 153;
    const int64_t month = m < 10 ? m + 3 : m - 9, of_month = of_year - (153 * m + 2) / 5 + 1;
    static const char* const kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                          "July",    "August",   "September", "October", "November", "December"};
    const char* const name = kMonths[month - 1];
    const auto two = [](int64_t n) { return (n < 10 ? "0" : "") + std::to_string(n); };
    std::string text;
    for (size_t i = 0; i < format.size(); ++i) {
        const char c = format[i] == '%' && i + 1 < format.size() ? format[++i] : '\0';
        if (c == '\0')
            text += format[i];
        else if (c == 'Y')
            text += std::to_string(era * 400 + year + (month <= 2 ? 1 : 0));
        else if (c == 'm' || c == 'd')
            text += two(c == 'm' ? month : of_month);
        else if (c == 'B' || c == 'b')
            text += std::string_view(name).substr(0, c == 'B' ? 9 : 3);
        else
            return wrong("strftime_now: expected %Y, %m, %d, %B and %b, found ", quote(format));
    }
    return heap.string(Marked(text, true));
}

bool Run::test(Test which, const Value& v, const Value& argument) {
    const auto is = [&v](Value::Kind kind) { return v.is(kind); };
    switch (which) {
        case Test::boolean: return is(Value::Kind::boolean);
        case Test::defined: return !is(Value::Kind::undefined);
        case Test::undefined: return is(Value::Kind::undefined);
        case Test::none: return is(Value::Kind::none);
        case Test::true_: return is(Value::Kind::boolean) && v.integer != 0;
        case Test::false_: return is(Value::Kind::boolean) && v.integer == 0;
        case Test::integer: return is(Value::Kind::integer);
        case Test::float_: return is(Value::Kind::real);
        case Test::number: return v.is_number();
        case Test::string: return is(Value::Kind::string);
        case Test::mapping: return is(Value::Kind::map);
        case Test::iterable:
        case Test::sequence:
            return is(Value::Kind::list) || is(Value::Kind::map) || is(Value::Kind::string) ||
                   is(Value::Kind::undefined);
        case Test::lower:
        case Test::upper: {
            const Marked text = text_of(v);
            const bool same_low = in_case(text, Case::lower).text == text.text;
            const bool same_up = in_case(text, Case::upper).text == text.text;
            return same_low != same_up && same_low == (which == Test::lower);
        }
        case Test::equal: return same(v, argument);
        case Test::not_equal: return !same(v, argument);
        case Test::less: return less(v, argument);
        case Test::greater: return less(argument, v);
        case Test::less_equal: return !less(argument, v);
        case Test::greater_equal: return !less(v, argument);
        case Test::in: return contains(argument, v);
        case Test::divisibleby:
        case Test::even:
        case Test::odd: break;
    }
    const int64_t by = which == Test::divisibleby && argument.is(Value::Kind::integer) ? argument.integer : 2;
    if (!v.is(Value::Kind::integer) || by == 0) {
        wrong("expected an integer, and a divisor other than 0; found ", v.kind_name());
        return false;
    }
    return (by == -1 || v.integer % by == 0) != (which == Test::odd);
}

bool Run::is_method(const Value& of, std::string_view name) {
    return of.is(Value::Kind::map) && (name == "items" || name == "get" || name == "keys" || name == "values");
}

Value Run::method(const Value& of, const std::string& name, const Arguments& args) {
    if (of.is(Value::Kind::string)) return string_method(of, name, args);
    if (of.is_map()) {
        if (name == "items") return pairs(of);
        if (name == "get") {
            const Value* found = of.find(text_argument(args, 0, "key").text);
            const Value* absent = args.find(1, "default");
            if (found != nullptr || absent != nullptr) return found != nullptr ? *found : *absent;
            return Heap::plain(Value::Kind::none);
        }
        if (name == "values") return heap.list(std::vector<Value>(of.items()));
        std::vector<Value> keys;
        if (name == "keys" && elements(of, &keys)) return heap.list(std::move(keys));
    }
    return wrong(of.kind_name(), " has no method ", quote(name));
}

Value Run::string_method(const Value& of, const std::string& name, const Arguments& args) {
    const Marked& text = of.marked();
    if (name == "strip" || name == "lstrip" || name == "rstrip") {
        const std::string characters = text_argument(args, 0, "chars").text;
        return heap.string(
            stripped(text, args.items.empty() ? nullptr : &characters, name != "rstrip", name != "lstrip"));
    }
    if (name == "split" || name == "rsplit") return split(text, args, name == "rsplit");
    if (name == "startswith" || name == "endswith") {
        const auto matches = [&](const Value& v) {
            if (!v.is(Value::Kind::string) || v.text().size() > text.text.size()) return false;
            return text.text.compare(name[0] == 's' ? 0 : text.text.size() - v.text().size(), v.text().size(),
                                     v.text()) == 0;
        };
        if (args.items.empty()) return wrong(name, " needs an argument");
        const Value& with = args.items[0];
        if (!with.is(Value::Kind::list)) return Heap::boolean(matches(with));
        return Heap::boolean(std::any_of(with.items().begin(), with.items().end(), matches));
    }
    if (name == "upper") return text_filter(Filter::upper, of, args);
    if (name == "lower") return text_filter(Filter::lower, of, args);
    if (name == "title") return heap.string(in_case(Marked(text), Case::python_title));
    if (name == "capitalize") return text_filter(Filter::capitalize, of, args);
    if (name == "replace") return replaced(text, args);
    if (name == "find") {
        const std::string part = text_argument(args, 0, "sub").text;
        if (!step_search(text.text, part)) return Value();
        const size_t at = text.text.find(part);
        if (at == std::string::npos) return Heap::integer(-1);
        return Heap::integer(static_cast<int64_t>(character_starts(std::string_view(text.text).substr(0, at)).size()) -
                             1);
    }
    std::vector<Value> items;
    if (name == "join" && !args.items.empty() && elements(args.items[0], &items)) return joined(items, text, nullptr);
    return wrong("a string has no method ", quote(name));
}

/// Python's split(separator, maxsplit) and rsplit; without a separator at white space.
Value Run::split(const Marked& text, const Arguments& args, bool from_right) {
    const bool spaces = args.find(0, "sep") == nullptr || args.find(0, "sep")->is(Value::Kind::none);
    const std::string separator = text_argument(args, 0, "sep").text;
    const int64_t max = integer_argument(args, 1, "maxsplit", -1);
    if (!step_search(text.text, separator)) return Value();
    if (!spaces && separator.empty()) return wrong("split: the separator is empty");
    std::vector<std::pair<size_t, size_t>> cuts;  // of the separators
    const std::string& s = text.text;
    size_t end = s.size(), begin = 0;
    if (spaces) {
        const std::string_view inner = trim_space(s);
        if (inner.empty()) return heap.list({});
        begin = static_cast<size_t>(inner.data() - s.data());
        end = begin + inner.size();
        for (size_t at = begin, n = 0; at < end; at += n) {
            if (!is_python_space(decode_utf8(s.data() + at, end - at, &n))) continue;
            if (!cuts.empty() && cuts.back().second == at)
                cuts.back().second += n;
            else
                cuts.emplace_back(at, at + n);
        }
    } else {
        for (size_t at = s.find(separator); at != std::string::npos; at = s.find(separator, at + separator.size()))
            cuts.emplace_back(at, at + separator.size());
    }
    if (max >= 0 && cuts.size() > static_cast<size_t>(max)) {
        const auto kept = static_cast<std::ptrdiff_t>(max);
        if (from_right)
            cuts.erase(cuts.begin(), cuts.end() - kept);
        else
            cuts.resize(static_cast<size_t>(max));
    }
    std::vector<Value> parts;
    for (const auto& cut : cuts) {
        parts.push_back(heap.string(text.cut(begin, cut.first)));
        begin = cut.second;
    }
    parts.push_back(heap.string(text.cut(begin, end)));
    return heap.list(std::move(parts));
}

}  // namespace jinja
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

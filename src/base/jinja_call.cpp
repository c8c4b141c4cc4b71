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

Value Run::call(const Node& n, const Value* caller) {
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
    if (what.is(Value::Kind::macro)) return macro(what, args, caller);
    if (what.is(Value::Kind::loop)) return loop_call(what, args);
    if (what.is(Value::Kind::function)) return function(static_cast<Function>(what.integer), args);
    if (callee.op == Op::member && what.is(Value::Kind::undefined)) return method(of, callee.text, args);
    return wrong(callee.text.empty() ? "a value" : quote(callee.text), " is ", what.kind_name(),
                 ", expected a function or a macro");
}

Value Run::macro(const Value& which, const Arguments& args, const Value* caller) {
    const Node& n = program_.nodes[static_cast<uint32_t>(which.integer)];
    if (!step(uint64_t{args.items.size()} * n.names.size() / 16)) return Value();
    push_scope(std::min(static_cast<size_t>(which.integer >> 32), scopes_.size() - 1));
    for (size_t i = 0; i < n.names.size() && !failed(); ++i) {
        const Value* given = args.find(i, n.names[i]);
        set(n.names[i], given != nullptr ? *given : n.parts[i] != 0 ? expression(n.parts[i]) : Value());
    }
    std::vector<Value> more;
    MapMaker named;
    for (size_t i = 0, place = 0; i < args.items.size(); ++i) {
        if (!args.is_named(i)) {
            if (place++ >= n.names.size()) more.push_back(args.items[i]);
        } else if (std::find(n.names.begin(), n.names.end(), (*args.names)[i]) == n.names.end()) {
            if ((n.code & kUsesKwargs) == 0)
                wrong("the macro ", quote(n.text), " has no argument ", quote((*args.names)[i]));
            named.add(heap.input((*args.names)[i]), args.items[i]);
        }
    }
    if (!more.empty() && (n.code & kUsesVarargs) == 0)
        wrong("the macro ", quote(n.text), " was given ", n.names.size() + more.size(), " arguments, it takes ",
              n.names.size());
    if (n.code & kUsesVarargs) set("varargs", heap.tuple(std::move(more)));
    if (n.code & kUsesKwargs) set("kwargs", named.made(heap));
    if (n.code & kUsesCaller) set("caller", caller != nullptr ? *caller : Value());
    Marked text;
    if (!failed()) text = captured(n.a);
    scopes_.pop_back();
    return failed() ? Value() : heap.string(std::move(text));
}

/// loop(values) within a recursive loop: the loop over these.
Value Run::loop_call(const Value& loop, const Arguments& args) {
    const uint32_t id = static_cast<uint32_t>(loop.integer & UINT32_MAX);
    if (program_.nodes[id].code == 0 || args.items.size() != 1)
        return wrong("loop() needs a recursive loop and one argument");
    Marked text;
    Marked* const before = std::exchange(out_, &text);
    for_statement(id, args.items[0], static_cast<size_t>(loop.integer >> 32) + 1);
    out_ = before;
    return heap.string(std::move(text));
}

Value Run::loop_method(const Value& loop, const std::string& name, const Arguments& args) {
    if (name == "cycle" && !args.items.empty()) return args.items[loop.data->i % args.items.size()];
    if (name != "changed") return wrong("the loop has no method ", quote(name));
    const Value now = heap.list(std::vector<Value>(args.items));
    Value& last = loop.data->items.back();
    const bool changed = !same(now, last);
    last = now;
    return Heap::boolean(changed);
}

Value Run::function(Function f, const Arguments& args) {
    switch (f) {
        case Function::raise_exception:
            status_ =
                fail(Code::bad_argument, text_argument(args, 0, "message", "the template refuses the request").text);
            return Value();
        case Function::range: return range(args);
        case Function::strftime_now: return today(text_argument(args, 0, "format"));
        case Function::method: return wrong("a method of a map can only be called by its name");
        case Function::dict:
        case Function::namespace_: break;
    }
    MapMaker map;
    for (size_t i = 0; i < args.items.size() && !failed(); ++i) {
        const Value& v = args.items[i];
        if (args.is_named(i)) {
            add_member(map, heap.input((*args.names)[i]), v);
            continue;
        }
        std::vector<Value> members;
        if (!elements(v.is_map() ? pairs(v) : v, &members)) return Value();
        for (const Value& pair : members) {
            if (!pair.is(Value::Kind::list) || pair.items().size() != 2)
                return wrong("expected members with names or pairs, found ", pair.kind_name());
            if (step()) add_member(map, pair.items()[0], pair.items()[1]);
        }
    }
    if (failed()) return Value();
    Value made = map.made(heap);
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

/// The time as Python's strftime writes it.
Value Run::today(const Marked& format) {
    const auto since = std::chrono::system_clock::now().time_since_epoch();
    // Civil from days, in years that begin in March: H. Hinnant, "chrono-compatible low-level date algorithms".
    const int64_t seconds = std::chrono::duration_cast<std::chrono::seconds>(since).count(), second = seconds % 86400;
    const int64_t day = seconds / 86400 + 719468;
    const int64_t era = day / 146097, of_era = day % 146097;
    const int64_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    const int64_t of_year = of_era - (365 * year + year / 4 - year / 100), m = (5 * of_year + 2) / 153;
    const int64_t month = m < 10 ? m + 3 : m - 9, of_month = of_year - (153 * m + 2) / 5 + 1;
    static const char* const kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                          "July",    "August",   "September", "October", "November", "December"};
    static const char* const kDays[] = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"};
    const char* const name = kMonths[month - 1];
    const auto two = [](int64_t n) { return (n < 10 ? "0" : "") + std::to_string(n); };
    Marked out;
    for (size_t i = 0; i < format.text.size(); ++i) {
        std::string text;
        const char c = format.text[i] == '%' && i + 1 < format.text.size() ? format.text[++i] : '\0';
        if (c == '\0' || c == '%')
            out.add(format.cut(i, i + 1));
        else if (c == 'Y')
            text = std::to_string(era * 400 + year + (month <= 2 ? 1 : 0));
        else if (c == 'm' || c == 'd')
            text = two(c == 'm' ? month : of_month);
        else if (c == 'B' || c == 'b')
            text = std::string_view(name).substr(0, c == 'B' ? 9 : 3);
        else if (c == 'A' || c == 'a')
            text = std::string_view(kDays[(day + 2) % 7]).substr(0, c == 'A' ? 9 : 3);
        else if (c == 'H' || c == 'M' || c == 'S')
            text = two(c == 'H' ? second / 3600 : c == 'M' ? second / 60 % 60 : second % 60);
        else
            return wrong("strftime_now: expected %Y, %m, %d, %B, %b, %A, %a, %H, %M and %S, found ",
                         quote(format.text));
        out.add(text, true);
    }
    return heap.string(std::move(out));
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
        case Test::callable: return is(Value::Kind::macro) || is(Value::Kind::function) || is(Value::Kind::loop);
        case Test::filter:
        case Test::test: {
            Filter filter = Filter::string;
            Test test = Test::string;
            const std::string name = text_of(v).text;
            return which == Test::filter ? find_filter(name, &filter) : find_test(name, &test);
        }
        case Test::sameas:
            return v.kind == argument.kind && (v.data == argument.data || v.is(Value::Kind::string)) &&
                   same(v, argument);
        case Test::sequence:
            if (is(Value::Kind::list) && v.integer >= kIterator) return false;
            [[fallthrough]];
        case Test::iterable:
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
    if (!(v.is(Value::Kind::integer) || v.is(Value::Kind::boolean)) || by == 0) {
        wrong("expected an integer, and a divisor other than 0; found ", v.kind_name());
        return false;
    }
    return (by == -1 || v.integer % by == 0) != (which == Test::odd);
}

bool Run::is_method(const Value& of, std::string_view name) {
    return of.is(Value::Kind::map) &&
           (name == "items" || name == "get" || name == "keys" || name == "values" || name == "copy");
}

Value Run::method(const Value& of, const std::string& name, const Arguments& args) {
    if (of.is(Value::Kind::string)) return string_method(of, name, args);
    if (of.is(Value::Kind::loop)) return loop_method(of, name, args);
    if (name == "copy" && (of.is(Value::Kind::map) || of.is(Value::Kind::list))) return of;  // nothing can change it
    if (of.is_map()) {
        if (name == "items") return pairs(of, kView);
        if (name == "get") {
            const Value* key = args.find(0, "key");
            const Value* found = key != nullptr ? of.find(*key) : nullptr;
            const Value* absent = args.find(1, "default");
            if (found != nullptr || absent != nullptr) return found != nullptr ? *found : *absent;
            return Heap::plain(Value::Kind::none);
        }
        if (name == "values") return heap.list(std::vector<Value>(of.items()), kView);
        std::vector<Value> keys;
        if (name == "keys" && elements(of, &keys)) return heap.list(std::move(keys), kView);
    }
    if (of.is(Value::Kind::list) && args.items.size() == 1 && (name == "index" || name == "count")) {
        const auto is_it = [&](const Value& v) { return step() && same(v, args.items[0]); };
        if (name == "count") return Heap::integer(std::count_if(of.items().begin(), of.items().end(), is_it));
        const auto found = std::find_if(of.items().begin(), of.items().end(), is_it);
        return found != of.items().end() ? Heap::integer(found - of.items().begin()) : wrong("index: no such element");
    }
    return wrong(of.kind_name(), " has no method ", quote(name));
}

namespace call_impl {
/// Whether c is a decimal digit (category Nd), of which Unicode has ten in a row.
bool is_decimal(uint32_t c) {
    static const uint32_t kZeros[] = {
        0x30,    0x660,   0x6F0,   0x7C0,   0x966,   0x9E6,   0xA66,   0xAE6,   0xB66,   0xBE6,   0xC66,   0xCE6,
        0xD66,   0xDE6,   0xE50,   0xED0,   0xF20,   0x1040,  0x1090,  0x17E0,  0x1810,  0x1946,  0x19D0,  0x1A80,
        0x1A90,  0x1B50,  0x1BB0,  0x1C40,  0x1C50,  0xA620,  0xA8D0,  0xA900,  0xA9D0,  0xA9F0,  0xAA50,  0xABF0,
        0xFF10,  0x104A0, 0x10D30, 0x11066, 0x110F0, 0x11136, 0x111D0, 0x112F0, 0x11450, 0x114D0, 0x11650, 0x116C0,
        0x11730, 0x118E0, 0x11950, 0x11C50, 0x11D50, 0x11DA0, 0x11F50, 0x16A60, 0x16AC0, 0x16B50, 0x1D7CE, 0x1D7D8,
        0x1D7E2, 0x1D7EC, 0x1D7F6, 0x1E140, 0x1E2F0, 0x1E4F0, 0x1E950, 0x1FBF0};
    const uint32_t* const after = std::upper_bound(std::begin(kZeros), std::end(kZeros), c);
    return after != std::begin(kZeros) && c - after[-1] < 10;
}

/// Whether c is a digit, decimal or not: raised, lowered, in a circle and the like (Numeric_Type Digit).
bool is_digit(uint32_t c) {
    static const uint32_t kRanges[][2] = {
        {0xB2, 0xB3},     {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},   {0x2070, 0x2070},
        {0x2074, 0x2079}, {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247C},   {0x2488, 0x2490},
        {0x24EA, 0x24EA}, {0x24F5, 0x24FD},   {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},
        {0x278A, 0x2792}, {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};
    return is_decimal(c) || std::any_of(std::begin(kRanges), std::end(kRanges),
                                        [c](const uint32_t(&range)[2]) { return c >= range[0] && c <= range[1]; });
}

/// isdigit() and its like.
bool is_all(std::string_view text, std::string_view what) {
    for (size_t at = 0, n = 0; at < text.size(); at += n) {
        const uint32_t c = decode_utf8(text.data() + at, text.size() - at, &n);
        if (c == kBadCodePoint) return false;
        const CharClass kind = char_class(c);
        const bool letter = kind == CharClass::letter, number = kind == CharClass::number;
        if (what == "isspace"     ? !is_python_space(c)
            : what == "isalpha"   ? !letter
            : what == "isdecimal" ? !is_decimal(c)
            : what == "isdigit"   ? !is_digit(c)
                                  : !number && (what != "isalnum" || !letter))
            return false;
    }
    return !text.empty();
}
}  // namespace call_impl
using call_impl::is_all;

Value Run::strip(const Marked& text, const Arguments& args, bool left, bool right) {
    const Value* given = args.find(0, "chars");
    const std::string characters = text_argument(args, 0, "chars").text;
    const bool spaces = given == nullptr || given->is(Value::Kind::none);
    return step(characters.size()) ? heap.string(stripped(text, spaces ? nullptr : &characters, left, right)) : Value();
}

Value Run::string_method(const Value& of, const std::string& name, const Arguments& args) {
    const Marked& text = of.marked();
    if (name == "strip" || name == "lstrip" || name == "rstrip")
        return strip(text, args, name != "rstrip", name != "lstrip");
    if (name == "split" || name == "rsplit") return split(text, args, name == "rsplit");
    for (const char* search : {"startswith", "endswith", "find", "rfind", "index", "rindex", "count"})
        if (name == search) return searched(text, name, args);
    if (name == "partition" || name == "rpartition") return partition(text, args, name == "rpartition");
    if (name == "splitlines") return lines(text, args.flag(0, "keepends"));
    if (name == "removeprefix" || name == "removesuffix") {
        const std::string_view whole = text.text;
        const std::string part = text_argument(args, 0, "").text;
        const bool prefix = name == "removeprefix";
        if (part.size() > whole.size() || whole.substr(prefix ? 0 : whole.size() - part.size(), part.size()) != part)
            return of;
        return heap.string(prefix ? text.cut(part.size(), whole.size()) : text.cut(0, whole.size() - part.size()));
    }
    for (const char* pad : {"ljust", "rjust", "center", "zfill"})
        if (name == pad) return padded(text, name, args);
    if (name == "format") return fields(text, args);
    if (name == "islower" || name == "isupper")
        return Heap::boolean(test(name == "islower" ? Test::lower : Test::upper, of, Value()));
    for (const char* kind : {"isdigit", "isdecimal", "isnumeric", "isalpha", "isalnum", "isspace"})
        if (name == kind) return Heap::boolean(is_all(text.text, name));
    if (name == "upper") return text_filter(Filter::upper, of, args);
    if (name == "lower") return text_filter(Filter::lower, of, args);
    if (name == "title") return heap.string(in_case(Marked(text), Case::python_title));
    if (name == "capitalize") return text_filter(Filter::capitalize, of, args);
    if (name == "replace")
        return replaced(text, text_argument(args, 0, "old"), text_argument(args, 1, "new"),
                        integer_argument(args, 2, "count", -1));
    std::vector<Value> items;
    if (name == "join" && !args.items.empty() && elements(args.items[0], &items)) return joined(items, text, nullptr);
    return wrong("a string has no method ", quote(name));
}

/// find, rfind, index, rindex, count, startswith and endswith, within [start, end) of the characters.
Value Run::searched(const Marked& text, const std::string& name, const Arguments& args) {
    if (args.items.empty()) return wrong(name, " needs an argument");
    std::string_view within = text.text;
    size_t first = 0;
    bool ends_before = false;  // the range ends before it begins: then not even the empty text is in it
    if (args.items.size() > 1) {
        const std::vector<size_t> starts = character_starts(text.text);
        const int64_t n = static_cast<int64_t>(starts.size()) - 1;
        const auto bound = [&](size_t place, const char* what, int64_t absent) {
            const int64_t at = integer_argument(args, place, what, absent);
            return at < 0 ? std::max<int64_t>(0, at + n) : at;
        };
        const int64_t from = bound(1, "start", 0), to = std::min(n, bound(2, "end", n));
        ends_before = from > to;
        first = static_cast<size_t>(std::min(n, from));
        within = within.substr(starts[first], to > from ? starts[static_cast<size_t>(to)] - starts[first] : 0);
    }
    const Value& what = args.items[0];
    if (name == "startswith" || name == "endswith") {
        const auto matches = [&](const Value& v) {
            if (ends_before || !v.is(Value::Kind::string) || v.text().size() > within.size()) return false;
            return within.substr(name[0] == 's' ? 0 : within.size() - v.text().size(), v.text().size()) == v.text();
        };
        if (!what.is(Value::Kind::list)) return Heap::boolean(matches(what));
        return Heap::boolean(std::any_of(what.items().begin(), what.items().end(), matches));
    }
    const std::string part = text_argument(args, 0, "sub").text;
    if (!step_search(text.text, part)) return Value();
    const auto characters = [](std::string_view s) { return static_cast<int64_t>(count_characters(s)); };
    if (name == "count") {
        if (part.empty()) return Heap::integer(ends_before ? 0 : characters(within) + 1);
        int64_t n = 0;
        for (size_t at = within.find(part); at != std::string_view::npos; at = within.find(part, at + part.size())) ++n;
        return Heap::integer(n);
    }
    const size_t at = ends_before ? std::string_view::npos : name[0] == 'r' ? within.rfind(part) : within.find(part);
    if (at != std::string_view::npos)
        return Heap::integer(static_cast<int64_t>(first) + characters(within.substr(0, at)));
    return name == "index" || name == "rindex" ? wrong(name, ": no ", quote(part)) : Heap::integer(-1);
}

Value Run::partition(const Marked& text, const Arguments& args, bool from_right) {
    const std::string part = text_argument(args, 0, "sep").text;
    if (part.empty()) return wrong("partition: the separator is empty");
    if (!step_search(text.text, part)) return Value();
    const size_t at = from_right ? text.text.rfind(part) : text.text.find(part);
    const Value whole = heap.string(Marked(text)), none = heap.input("");
    if (at == std::string::npos) return from_right ? heap.tuple({none, none, whole}) : heap.tuple({whole, none, none});
    return heap.tuple({heap.string(text.cut(0, at)), heap.string(text.cut(at, at + part.size())),
                       heap.string(text.cut(at + part.size(), text.text.size()))});
}

/// Python's splitlines(), whose line ends are those of ASCII here.
Value Run::lines(const Marked& text, bool keeps_ends) {
    const std::string& s = text.text;
    std::vector<Value> all;
    for (size_t from = 0; from < s.size() && !heap.full();) {
        const size_t at = std::min(s.find_first_of("\n\r\v\f\x1c\x1d\x1e", from), s.size());
        const size_t next = std::min(s.size(), at + (s.compare(at, 2, "\r\n") == 0 ? 2 : 1));
        all.push_back(heap.string(text.cut(from, keeps_ends ? next : at)));
        from = next;
    }
    return heap.list(std::move(all));
}

Value Run::padded(const Marked& text, const std::string& name, const Arguments& args) {
    const int64_t width = integer_argument(args, 0, "width", 0);
    const bool zeros = name == "zfill";
    const Marked fill = zeros ? Marked("0", true) : text_argument(args, 1, "fillchar", " ");
    const size_t n_character = count_characters(text.text);
    if (width > 100000 || count_characters(fill.text) != 1)
        return wrong(name, ": expected at most 100000 characters, and one that fills");
    const size_t n = width > static_cast<int64_t>(n_character) ? static_cast<size_t>(width) - n_character : 0;
    // Python's rule for an odd rest.
    const size_t n_left = name == "ljust" ? 0 : name == "center" ? n / 2 + (n & static_cast<size_t>(width) & 1) : n;
    const size_t n_sign = zeros && !text.text.empty() && (text.text[0] == '-' || text.text[0] == '+') ? 1 : 0;
    Marked out = text.cut(0, n_sign);
    for (size_t i = 0; i < n_left; ++i) out.add(fill);
    out.add(text.cut(n_sign, text.text.size()));
    for (size_t i = n_left; i < n; ++i) out.add(fill);
    return heap.string(std::move(out));
}

/// Python's str.format() with {}, {0} and {name}.
Value Run::fields(const Marked& format, const Arguments& args) {
    const std::string& f = format.text;
    Marked out;
    size_t n_plain = 0;
    for (size_t from = 0; from <= f.size() && fits(out) && step(args.items.size() / 16);) {
        const size_t at = std::min(f.find_first_of("{}", from), f.size());
        out.add(format.cut(from, at));
        if (at == f.size()) break;
        if (at + 1 < f.size() && f[at + 1] == f[at]) {
            out.add(format.cut(at, at + 1));
            from = at + 2;
            continue;
        }
        const size_t end = f[at] == '{' ? f.find('}', at) : std::string::npos;
        const std::string name = end != std::string::npos ? f.substr(at + 1, end - at - 1) : "";
        const bool is_place = name.size() < 5 && name.find_first_not_of("0123456789") == std::string::npos;
        const size_t place = name.empty() ? n_plain++ : is_place ? static_cast<size_t>(std::stoul(name)) : 0;
        const Value* v = end == std::string::npos ? nullptr : is_place ? args.find(place, "") : args.find(name);
        if (v == nullptr) return wrong("format: expected {}, {0} or {name}, and a value for each, found ", quote(f));
        out.add(text_of(*v));
        from = end + 1;
    }
    return heap.string(std::move(out));
}

Value Run::split(const Marked& text, const char* separator) {
    Arguments args;
    args.items.push_back(heap.input(separator));
    return split(text, args, false);
}

/// Python's split(separator, maxsplit) and rsplit; without a separator at white space.
Value Run::split(const Marked& text, const Arguments& args, bool from_right) {
    const bool spaces = args.find(0, "sep") == nullptr || args.find(0, "sep")->is(Value::Kind::none);
    const std::string separator = text_argument(args, 0, "sep").text;
    const int64_t max = integer_argument(args, 1, "maxsplit", -1);
    if (!step_search(text.text, separator)) return Value();
    if (!spaces && separator.empty()) return wrong("split: the separator is empty");
    const std::string& s = text.text;
    const std::string_view inner = spaces ? trim_space(s) : std::string_view(s);
    if (spaces && inner.empty()) return heap.list({});
    size_t begin = static_cast<size_t>(inner.data() - s.data()), at = begin, end = begin + inner.size();
    const size_t inner_end = end;
    // From where to where the next separator reaches; without one, from the end.
    const auto next = [&](size_t from) {
        if (!spaces) {
            const size_t found = std::min(s.find(separator, from), inner_end);
            return std::make_pair(found, found + separator.size());
        }
        std::pair<size_t, size_t> space(inner_end, inner_end);
        for (size_t n = 0; from < inner_end && (space.first == inner_end || from == space.second); from += n)
            if (is_python_space(decode_utf8(s.data() + from, inner_end - from, &n)))
                space = {std::min(space.first, from), from + n};
        return space;
    };
    size_t n_left = max < 0 ? SIZE_MAX : static_cast<size_t>(max);
    std::vector<Value> parts;
    if (from_right && !spaces) {
        // Found from the end: separators such as "\n\n" may overlap.
        for (; n_left > 0 && end >= separator.size() && !heap.full(); --n_left) {
            const size_t found = s.rfind(separator, end - separator.size());
            if (found == std::string::npos) break;
            parts.push_back(heap.string(text.cut(found + separator.size(), end)));
            end = found;
        }
        parts.push_back(heap.string(text.cut(0, end)));
        std::reverse(parts.begin(), parts.end());
        return heap.list(std::move(parts));
    }
    if (from_right && max >= 0) {
        size_t n_cut = 0;
        for (auto cut = next(at); cut.first < inner_end; cut = next(cut.second)) ++n_cut;
        // What is left whole keeps its white space.
        if (n_cut >= n_left) begin = 0;
        for (; n_cut > n_left; --n_cut) at = next(at).second;
    }
    for (; n_left > 0 && !heap.full(); --n_left) {
        const auto cut = next(at);
        if (cut.first == inner_end) break;
        parts.push_back(heap.string(text.cut(begin, cut.first)));
        begin = at = cut.second;
    }
    if (spaces && !from_right && n_left == 0) end = s.size();
    parts.push_back(heap.string(text.cut(begin, end)));
    return heap.list(std::move(parts));
}

}  // namespace jinja
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

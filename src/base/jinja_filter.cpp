#include "jinja_run.h"

#include "unicode.h"

#include <cmath>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace jinja {

Marked stripped(const Marked& text, const std::string* characters, bool left, bool right) {
    std::vector<uint32_t> given;
    size_t n = 0;
    for (size_t at = 0; characters != nullptr && at < characters->size(); at += n)
        given.push_back(decode_utf8(characters->data() + at, characters->size() - at, &n));
    std::sort(given.begin(), given.end());
    const auto goes = [&](uint32_t c) {
        return characters == nullptr ? is_python_space(c) : std::binary_search(given.begin(), given.end(), c);
    };
    std::string_view rest = text.text;
    while (left && !rest.empty() && goes(decode_utf8(rest.data(), rest.size(), &n))) rest.remove_prefix(n);
    while (right && !rest.empty()) {
        size_t at = rest.size() - 1;
        while (at > 0 && (static_cast<unsigned char>(rest[at]) & 0xC0) == 0x80) --at;
        if (!goes(decode_utf8(rest.data() + at, rest.size() - at, &n))) break;
        rest.remove_suffix(rest.size() - at);
    }
    return text.cut(rest);
}

Marked in_case(Marked text, Case how) {
    bool begins = true;
    for (char& c : text.text) {
        const bool lower = c >= 'a' && c <= 'z', upper = c >= 'A' && c <= 'Z';
        const bool raise = how == Case::upper || (how != Case::lower && begins);
        if (lower && raise) c = static_cast<char>(c - 'a' + 'A');
        if (upper && !raise) c = static_cast<char>(c - 'A' + 'a');
        begins = how == Case::title ? std::string_view(" \t\n\r\v\f-({[<").find(c) != std::string_view::npos
                                    : how == Case::python_title && !lower && !upper;
    }
    return text;
}

namespace filter_impl {
constexpr int64_t kMaxParts = 100000;
constexpr double kMaxInteger = 9e18;

/// With n digits behind the point.
std::string fixed(double number, int64_t n) { return print_real("%.*f", static_cast<int>(n), number); }

/// Moves over Python's digits, which single underscores may divide, and appends them. False if there are none.
bool take_digits(std::string_view& text, std::string& to) {
    const auto is_digit = [&](size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
    size_t n = 0;
    for (; is_digit(n) || (n > 0 && n < text.size() && text[n] == '_' && is_digit(n + 1)); ++n)
        if (text[n] != '_') to += text[n];
    text.remove_prefix(n);
    return n > 0;
}

std::string take_sign(std::string_view& text) {
    const bool minus = !text.empty() && text[0] == '-';
    if (minus || (!text.empty() && text[0] == '+')) text.remove_prefix(1);
    return minus ? "-" : "";
}

/// As Python's int(), within the integers of a template.
bool read_integer(std::string_view text, int64_t* number) {
    std::string digits = take_sign(text);
    if (!take_digits(text, digits) || !text.empty() || std::fabs(json_double(digits)) >= kMaxInteger) return false;
    *number = std::strtoll(digits.c_str(), nullptr, 10);
    return true;
}

/// As Python's float().
bool read_real(std::string_view text, double* number) {
    std::string plain = take_sign(text);
    const std::string name = in_case(Marked(text, false), Case::lower).text;
    if (name == "inf" || name == "infinity" || name == "nan") {
        const double value = name == "nan" ? std::nan("") : HUGE_VAL;
        *number = plain.empty() ? value : -value;
        return true;
    }
    bool given = take_digits(text, plain);
    if (!text.empty() && text[0] == '.') {
        plain += given ? "." : "0.";
        text.remove_prefix(1);
        given = take_digits(text, plain) || given;
    }
    if (given && !text.empty() && (text[0] == 'e' || text[0] == 'E')) {
        text.remove_prefix(1);
        plain += 'e' + take_sign(text);
        given = take_digits(text, plain);
    }
    if (given && text.empty()) *number = json_double(plain);
    return given && text.empty();
}
}  // namespace filter_impl

using filter_impl::fixed;
using filter_impl::kMaxInteger;
using filter_impl::kMaxParts;
using filter_impl::read_integer;
using filter_impl::read_real;

Marked Run::text_argument(const Arguments& args, size_t place, const char* name, const char* absent) {
    const Value* v = args.find(place, name);
    if (v == nullptr || v->is(Value::Kind::none)) return Marked(absent, true);
    if (v->is(Value::Kind::string)) return v->marked();
    wrong("the argument '", name, "' is ", v->kind_name(), ", expected a string");
    return Marked();
}

int64_t Run::integer_argument(const Arguments& args, size_t place, const char* name, int64_t absent) {
    const Value* v = args.find(place, name);
    if (v == nullptr || v->is(Value::Kind::none)) return absent;
    if (v->is(Value::Kind::integer) || v->is(Value::Kind::boolean)) return v->integer;
    wrong("the argument '", name, "' is ", v->kind_name(), ", expected an integer");
    return absent;
}

Value Run::attribute(Value of, const Value* name) {
    if (name != nullptr && step(name->weight())) {
        const std::string path = text_of(*name).text;
        for (size_t from = 0; from <= path.size() && !of.is(Value::Kind::undefined) && step();) {
            const size_t dot = std::min(path.find('.', from), path.size());
            const std::string part = path.substr(from, dot - from);
            const bool is_index =
                !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
            of = is_index ? item_of(of, Heap::integer(std::strtoll(part.c_str(), nullptr, 10))) : member_of(of, part);
            from = dot + 1;
        }
    }
    return step(1 + of.weight()) ? of : Value();
}

Value Run::pairs(const Value& map, ListForm form) {
    if (map.is(Value::Kind::undefined)) return heap.list({});
    if (!map.is_map()) return wrong(map.kind_name(), " has no items, expected a map");
    std::vector<Value> list;
    for (size_t i = 0; i < map.items().size() && !heap.full(); ++i)
        list.push_back(heap.tuple({heap.key(map, i), map.items()[i]}));
    return heap.list(std::move(list), form);
}

Value Run::filter(Filter which, const Value& v, const Arguments& args) {
    switch (which) {
        case Filter::default_: {
            if (!v.is(Value::Kind::undefined) && (v.truth() || !args.flag(1, "boolean"))) return v;
            const Value* instead = args.find(0, "default_value");
            return instead != nullptr ? *instead : heap.input("");
        }
        case Filter::tojson: return json(v, args);
        case Filter::fromjson: {
            Json value;
            if (Status s = Json::parse(text_of(v).text).get(value); !s.ok()) return wrong(s.text);
            return heap.of_json(value);
        }
        case Filter::items: return pairs(v, kIterator);
        case Filter::length:
            if (v.is(Value::Kind::string)) return Heap::integer(static_cast<int64_t>(count_characters(v.text())));
            if (v.is(Value::Kind::list) || v.is_map()) return Heap::integer(static_cast<int64_t>(v.items().size()));
            if (v.is(Value::Kind::undefined) || (v.is(Value::Kind::none) && v.integer != 0)) return Heap::integer(0);
            return wrong(v.kind_name(), " has no length");
        case Filter::int_:
        case Filter::float_: return to_number(which, v, args);
        case Filter::reverse:
            if (v.is(Value::Kind::string)) {
                const std::vector<size_t> starts = character_starts(v.text());
                Marked text;
                for (size_t i = starts.size() - 1; i-- > 0;) text.add(v.marked().cut(starts[i], starts[i + 1]));
                return heap.string(std::move(text));
            }
            break;
        case Filter::dictsort: {
            Value list = pairs(v);
            if (failed()) return Value();
            const Value by = Heap::integer(text_argument(args, 1, "by", "key").text == "value" ? 1 : 0);
            std::vector<Value> keys = keys_of(list.items(), &by, args.flag(0, "case_sensitive"));
            return sorted(std::move(list.data->items), keys, args.flag(2, "reverse"));
        }
        case Filter::abs: return arithmetic(v.number() < 0 ? Binary::subtract : Binary::add, Heap::integer(0), v);
        case Filter::round: return rounded(v, args);
        case Filter::format: return formatted(text_of(v), args.items);
        case Filter::capitalize:
        case Filter::indent:
        case Filter::lower:
        case Filter::replace:
        case Filter::safe:
        case Filter::string:
        case Filter::title:
        case Filter::trim:
        case Filter::upper: return text_filter(which, v, args);
        default: break;
    }
    // These take any false value for an empty list, and look at their arguments with the first item.
    const bool by_item = which == Filter::map || which == Filter::select || which == Filter::selectattr ||
                         which == Filter::reject || which == Filter::rejectattr;
    if (by_item && !v.truth()) return heap.list({}, kIterator);
    std::vector<Value> items;
    if (!elements(v, &items)) return Value();
    Value made = list_filter(which, std::move(items), args);
    if (is_lazy(which) && made.is(Value::Kind::list)) made.integer = kIterator;
    return made;
}

/// Whether the filter gives an iterator in Jinja.
bool Run::is_lazy(Filter which) {
    switch (which) {
        case Filter::batch:
        case Filter::map:
        case Filter::reject:
        case Filter::rejectattr:
        case Filter::reverse:
        case Filter::select:
        case Filter::selectattr:
        case Filter::slice:
        case Filter::unique: return true;
        default: return false;
    }
}

Value Run::text_filter(Filter which, const Value& v, const Arguments& args) {
    Marked text = text_of(v);
    switch (which) {
        case Filter::capitalize: return heap.string(in_case(std::move(text), Case::capitalize));
        case Filter::lower: return heap.string(in_case(std::move(text), Case::lower));
        case Filter::title: return heap.string(in_case(std::move(text), Case::title));
        case Filter::upper: return heap.string(in_case(std::move(text), Case::upper));
        case Filter::indent: return indented(text, args);
        case Filter::replace: {
            const Value *old = args.find(0, "old"), *by = args.find(1, "new");
            return replaced(text, old != nullptr ? text_of(*old) : Marked(), by != nullptr ? text_of(*by) : Marked(),
                            integer_argument(args, 2, "count", -1));
        }
        case Filter::trim: return strip(text, args, true, true);
        default: return heap.string(std::move(text));
    }
}

Value Run::list_filter(Filter which, std::vector<Value>&& items, const Arguments& args) {
    switch (which) {
        case Filter::batch:
        case Filter::slice: return divided(which, items, args);
        case Filter::first: return items.empty() ? Value() : items.front();
        case Filter::last: return items.empty() ? Value() : items.back();
        case Filter::groupby: return grouped(items, args);
        case Filter::join: return joined(items, text_argument(args, 0, "d"), args.find(1, "attribute"));
        case Filter::map: return mapped(std::move(items), args);
        case Filter::max:
        case Filter::min: return extreme(which, items, args);
        case Filter::reverse: std::reverse(items.begin(), items.end()); return heap.list(std::move(items));
        case Filter::sort: {
            const std::vector<Value> keys = keys_of(items, args.find(2, "attribute"), args.flag(1, "case_sensitive"));
            return sorted(std::move(items), keys, args.flag(0, "reverse"));
        }
        case Filter::sum: return sum(items, args);
        case Filter::unique: return unique(items, args);
        case Filter::reject:
        case Filter::rejectattr:
        case Filter::select:
        case Filter::selectattr: return selected(which, items, args);
        default: return heap.list(std::move(items));
    }
}

/// With the arguments of the tojson that chat templates are written for, not those of Jinja's own.
Value Run::json(const Value& v, const Arguments& args) {
    JsonForm form;
    form.ascii = args.flag(0, "ensure_ascii");
    form.indent = integer_argument(args, 1, "indent", -1);
    if (form.indent > 64) return wrong("an indentation of ", form.indent, ", at most 64");
    if (form.indent >= 0) form.item = ",";
    form.sorted = args.flag(3, "sort_keys");
    const Value* separators = args.find(2, "separators");
    if (separators != nullptr && separators->is(Value::Kind::list) && separators->items().size() == 2) {
        form.item = text_of(separators->items()[0]).text;
        form.key = text_of(separators->items()[1]).text;
    }
    std::string text;
    if (Status s = to_json(v, form, &text, heap.max_bytes); !s.ok()) return wrong(s.text);
    step(text.size() / 16);
    return heap.input(text);
}

Value Run::mapped(std::vector<Value>&& items, const Arguments& args) {
    if (const Value* by = args.find("attribute")) {
        const Value* absent = args.find("default");
        for (Value& v : items) {
            if (failed()) return Value();
            v = attribute(v, by);
            if (absent != nullptr && v.is(Value::Kind::undefined)) v = *absent;
        }
        return heap.list(std::move(items));
    }
    const std::string name = text_argument(args, 0, "filter").text;
    Filter filter_of = Filter::string;
    if (failed() || !find_filter(name, &filter_of))
        return wrong("map needs an attribute or a filter, found ", quote(name));
    // One level for each `map` that the arguments name: an item may be a text of one character, which has itself for
    // one.
    const Level level(depth_);
    Arguments rest;
    rest.items.assign(args.items.begin() + 1, args.items.end());
    heap.charge(rest.items.size() * sizeof(Value));
    std::vector<std::string> names;
    if (args.names != nullptr) {
        names.assign(args.names->begin() + 1, args.names->end());
        rest.names = &names;
    }
    uint64_t weight = rest.items.size() / 64;
    for (const Value& v : rest.items) weight += v.weight();
    for (Value& v : items) {
        v = step(1 + weight + v.weight()) ? filter(filter_of, v, rest) : Value();
        if (failed()) return Value();
    }
    return heap.list(std::move(items));
}

Value Run::selected(Filter which, const std::vector<Value>& items, const Arguments& args) {
    const bool by_attribute = which == Filter::selectattr || which == Filter::rejectattr;
    const bool wanted = which == Filter::select || which == Filter::selectattr;
    const size_t at = by_attribute ? 1 : 0;
    if (args.items.size() < at) return wrong("expected the name of an attribute");
    Test by = Test::defined;
    const bool tests = args.items.size() > at;
    const std::string name = tests ? text_of(args.items[at]).text : std::string();
    if (tests && !find_test(name, &by)) return wrong("there is no test ", quote(name));
    const Value argument = args.items.size() > at + 1 ? args.items[at + 1] : Value();
    std::vector<Value> kept;
    for (const Value& v : items) {
        const Value of = attribute(v, by_attribute ? &args.items[0] : nullptr);
        if (failed()) return Value();
        if ((tests ? test(by, of, argument) : of.truth()) == wanted) kept.push_back(v);
    }
    return heap.list(std::move(kept));
}

std::vector<Value> Run::keys_of(const std::vector<Value>& items, const Value* attribute, bool exact) {
    std::vector<Value> names;
    if (attribute != nullptr && attribute->is(Value::Kind::string)) {
        const Value list = split(attribute->marked(), ",");
        names = list.items();
    } else if (attribute != nullptr && !attribute->is(Value::Kind::none)) {
        names.push_back(*attribute);
    }
    const auto key = [&](const Value& item, const Value* name) {
        const Value v = this->attribute(item, name);
        return v.is(Value::Kind::string) && !exact ? heap.string(in_case(v.marked(), Case::lower)) : v;
    };
    std::vector<Value> keys;
    for (const Value& item : items) {
        if (failed()) break;
        if (names.size() < 2) {
            keys.push_back(key(item, names.empty() ? nullptr : &names[0]));
            continue;
        }
        std::vector<Value> parts;
        for (const Value& name : names) parts.push_back(key(item, &name));
        keys.push_back(heap.list(std::move(parts)));
    }
    keys.resize(items.size());
    return keys;
}

Value Run::sorted(std::vector<Value>&& items, const std::vector<Value>& keys, bool falls) {
    const auto precedes = [&](size_t a, size_t b) {
        return step() && (falls ? less(keys[b], keys[a]) : less(keys[a], keys[b]));
    };
    // Merges neighbours of 1, 2, 4, ... items: stable as in Python, and safe with items that cannot be ordered.
    const size_t n = items.size();
    std::vector<size_t> order(n), merged(n);
    for (size_t i = 0; i < n; ++i) order[i] = i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t begin = 0; begin < n; begin += 2 * width) {
            const size_t middle = std::min(begin + width, n), end = std::min(middle + width, n);
            for (size_t to = begin, left = begin, right = middle; to < end; ++to) {
                const bool from_right = left == middle || (right < end && precedes(order[right], order[left]));
                merged[to] = order[from_right ? right++ : left++];
            }
        }
        order.swap(merged);
    }
    std::vector<Value> list;
    for (const size_t i : order) list.push_back(items[i]);
    return heap.list(std::move(list));
}

Value Run::grouped(const std::vector<Value>& items, const Arguments& args) {
    const Value* by = args.find(0, "attribute");
    const Value* absent = args.find(1, "default");
    if (by == nullptr) return wrong("groupby needs an attribute");
    std::vector<Value> pairs, keys = keys_of(items, by, args.flag(2, "case_sensitive"));
    for (size_t i = 0; i < items.size() && !failed(); ++i) {
        Value name = attribute(items[i], by);
        if (absent != nullptr && name.is(Value::Kind::undefined)) name = keys[i] = *absent;
        pairs.push_back(heap.list({name, items[i], keys[i]}));
    }
    const Value list = sorted(std::move(pairs), keys, false);
    std::vector<Value> groups;
    for (const Value& v : list.items()) {
        if (groups.empty() || !same(v.items()[2], keys[groups.size() - 1])) {
            keys[groups.size()] = v.items()[2];
            groups.push_back(heap.list({v.items()[0], heap.list({})}, kGroup));
        }
        groups.back().items()[1].data->items.push_back(v.items()[1]);
    }
    return heap.list(std::move(groups));
}

Value Run::extreme(Filter which, const std::vector<Value>& items, const Arguments& args) {
    const std::vector<Value> keys = keys_of(items, args.find(1, "attribute"), args.flag(0, "case_sensitive"));
    size_t best = 0;
    for (size_t i = 1; i < items.size() && !failed(); ++i)
        if (which == Filter::min ? less(keys[i], keys[best]) : less(keys[best], keys[i])) best = i;
    return items.empty() ? Value() : items[best];
}

Value Run::unique(const std::vector<Value>& items, const Arguments& args) {
    const std::vector<Value> keys = keys_of(items, args.find(1, "attribute"), args.flag(0, "case_sensitive"));
    std::vector<Value> kept, known;
    for (size_t i = 0; i < items.size() && step(1 + known.size() / 16); ++i) {
        if (std::any_of(known.begin(), known.end(), [&](const Value& v) { return same(v, keys[i]); })) continue;
        known.push_back(keys[i]);
        kept.push_back(items[i]);
    }
    return heap.list(std::move(kept));
}

Value Run::sum(const std::vector<Value>& items, const Arguments& args) {
    const Value* start = args.find(1, "start");
    Value all = start != nullptr ? *start : Heap::integer(0);
    for (const Value& v : items)
        if (!failed()) all = add(all, attribute(v, args.find(0, "attribute")));
    return all;
}

Value Run::divided(Filter which, const std::vector<Value>& items, const Arguments& args) {
    const bool by_row = which == Filter::batch;
    const int64_t given = integer_argument(args, 0, by_row ? "linecount" : "slices", 0);
    if (given < 1 || given > kMaxParts) return wrong("expected 1 to ", kMaxParts, " items or columns, found ", given);
    const size_t n = static_cast<size_t>(given), n_item = items.size();
    const Value* fill = args.find(1, "fill_with");
    std::vector<Value> parts;
    for (size_t i = 0, at = 0; (by_row ? at < n_item : i < n) && !heap.full(); ++i) {
        const size_t rest = by_row ? 0 : n_item % n, size = by_row ? n : n_item / n + (i < rest ? 1 : 0);
        const size_t end = std::min(n_item, at + size);
        std::vector<Value> part(items.begin() + static_cast<std::ptrdiff_t>(at),
                                items.begin() + static_cast<std::ptrdiff_t>(end));
        if (fill != nullptr && !fill->is(Value::Kind::none)) {
            const size_t n_part = by_row ? n : part.size() + (i >= rest ? 1 : 0);
            while (part.size() < n_part) part.push_back(*fill);
        }
        at = end;
        parts.push_back(heap.list(std::move(part)));
    }
    return heap.list(std::move(parts));
}

Value Run::rounded(const Value& v, const Arguments& args) {
    const int64_t n = integer_argument(args, 0, "precision", 0);
    const std::string how = text_argument(args, 1, "method", "common").text;
    const bool up = how == "ceil", down = how.compare(0, 2, "fl") == 0;
    if (!v.is_number() || n < 0 || n > 15 || (how != "common" && !up && !down))
        return wrong("round: expected a number, 0 to 15 digits, and a method that Jinja knows");
    if (how == "common")
        return v.is(Value::Kind::real) ? Heap::real(json_double(fixed(v.number(), n))) : Heap::integer(v.integer);
    const double power = std::pow(10.0, static_cast<double>(n)), x = v.number() * power;
    return Heap::real((up ? std::ceil(x) : std::floor(x)) / power);
}

/// Python's format % values, for %s, %d, %i, %f and %x with the flags - and 0, a width and a precision.
Value Run::formatted(const Marked& format, const std::vector<Value>& values) {
    const std::string& f = format.text;
    Marked out;
    size_t i_value = 0;
    for (size_t from = 0; from <= f.size();) {
        const size_t at = std::min(f.find('%', from), f.size());
        out.add(format.cut(from, at));
        if (at == f.size()) break;
        size_t p = at + 1;
        const auto number = [&](int64_t absent) {
            for (; p < f.size() && f[p] >= '0' && f[p] <= '9' && absent < 1000; ++p)
                absent = std::max<int64_t>(absent, 0) * 10 + (f[p] - '0');
            return absent;
        };
        bool left = false, zeros = false;
        for (; p < f.size() && (f[p] == '-' || f[p] == '0'); ++p) (f[p] == '-' ? left : zeros) = true;
        const int64_t width = number(0);
        int64_t n_digit = -1;
        if (p < f.size() && f[p] == '.') n_digit = (++p, number(0));
        const char kind = p < f.size() ? f[p] : '\0';
        from = p + 1;
        if (kind == '%') {
            out.add(format.cut(p, p + 1));
            continue;
        }
        const bool known = kind != '\0' && std::string_view("sdifx").find(kind) != std::string_view::npos;
        if (!known || i_value == values.size() || width > 999 || n_digit > 99)
            return wrong("expected %s, %d, %i, %f or %x, and a value for each, found ", quote(f));
        const Value& v = values[i_value++];
        Marked one;
        if (kind == 's') {
            one = text_of(v);
        } else if (!v.is_number() || (kind == 'x' && v.is(Value::Kind::real))) {
            return wrong("%", kind, " of ", v.kind_name(), ", expected ", kind == 'x' ? "an integer" : "a number");
        } else if (kind == 'f') {
            one = Marked(fixed(v.number(), n_digit < 0 ? 6 : n_digit), false);
        } else {
            const int64_t whole = to_number(Filter::int_, v, Arguments()).integer;
            const unsigned long long bits = static_cast<unsigned long long>(whole), size = whole < 0 ? 0 - bits : bits;
            char digits[104];  // a sign and at most 99 digits
            // With the precision 0, C prints no digit of a zero, but Python does.
            std::snprintf(digits, sizeof digits, kind == 'x' ? "%s%.*llx" : "%s%.*llu", whole < 0 ? "-" : "",
                          static_cast<int>(std::max<int64_t>(n_digit, 1)), size);
            one = Marked(digits, false);
        }
        if (kind == 's' && n_digit >= 0) {
            const std::vector<size_t> starts = character_starts(one.text);
            one = one.cut(0, starts[std::min(starts.size() - 1, static_cast<size_t>(n_digit))]);
        }
        const size_t n_character = count_characters(one.text);
        const std::string pad(n_character < static_cast<size_t>(width) ? static_cast<size_t>(width) - n_character : 0,
                              zeros && !left && kind != 's' ? '0' : ' ');
        const size_t n_sign = !pad.empty() && pad[0] == '0' && one.text[0] == '-' ? 1 : 0;
        out.add(one.cut(0, n_sign));
        if (!left) out.add(pad, true);
        out.add(one.cut(n_sign, one.text.size()));
        if (left) out.add(pad, true);
        if (!fits(out)) return Value();
    }
    if (i_value != values.size()) return wrong("a format with ", i_value, " places for ", values.size(), " values");
    return heap.string(std::move(out));
}

Value Run::joined(const std::vector<Value>& items, const Marked& between, const Value* name) {
    Marked text;
    for (size_t i = 0; i < items.size() && !failed(); ++i) {
        if (i > 0) text.add(between);
        text.add(text_of(attribute(items[i], name)));
        if (!fits(text)) return Value();
    }
    return failed() ? Value() : heap.string(std::move(text));
}

Value Run::to_number(Filter which, const Value& v, const Arguments& args) {
    const Value* absent = args.find(0, "default");
    const bool whole = which == Filter::int_;
    if (whole && v.is(Value::Kind::string) && integer_argument(args, 1, "base", 10) != 10)
        return wrong("int: expected the base 10");
    double number = 0;
    if (v.is_number()) {
        number = v.number();
    } else {
        const std::string text = stripped(text_of(v), nullptr, true, true).text;
        int64_t integer = 0;
        if (whole && read_integer(text, &integer)) return Heap::integer(integer);
        // Jinja's int takes a text that is a float for its whole part, and one that is not finite for no number.
        if (!read_real(text, &number) || (whole && !std::isfinite(number)))
            return absent != nullptr ? *absent : whole ? Heap::integer(0) : Heap::real(0);
    }
    if (!whole) return Heap::real(number);
    if (!v.is(Value::Kind::real) && v.is_number()) return Heap::integer(v.integer);
    if (!(std::fabs(number) < kMaxInteger)) return wrong("an integer is too large");
    return Heap::integer(static_cast<int64_t>(number));
}

Value Run::replaced(const Marked& text, const Marked& old, const Marked& by, int64_t n_left) {
    if (!step_search(text.text, old.text)) return Value();
    Marked out;
    if (old.text.empty()) {
        const std::vector<size_t> starts = character_starts(text.text);
        for (size_t i = 0; i < starts.size() && fits(out); ++i) {
            if (n_left != 0) {
                out.add(by);
                --n_left;
            }
            if (i + 1 < starts.size()) out.add(text.cut(starts[i], starts[i + 1]));
        }
        return heap.string(std::move(out));
    }
    size_t from = 0;
    for (size_t at = text.text.find(old.text); at != std::string::npos && n_left != 0;
         at = text.text.find(old.text, from), --n_left) {
        out.add(text.cut(from, at));
        out.add(by);
        from = at + old.text.size();
        if (!fits(out)) return Value();
    }
    out.add(text.cut(from, text.text.size()));
    return heap.string(std::move(out));
}

Value Run::indented(const Marked& text, const Arguments& args) {
    const Value* width = args.find(0, "width");
    const bool given = width != nullptr && width->is(Value::Kind::string);
    const int64_t n = given ? 0 : integer_argument(args, 0, "width", 4);
    if (n < 0 || n > 64) return wrong("an indentation of ", n, ", expected 0 to 64");
    const Marked space = given ? width->marked() : Marked(std::string(static_cast<size_t>(n), ' '), true);
    const bool first = args.flag(1, "first"), blank = args.flag(2, "blank");
    Marked out;
    for (size_t from = 0; from <= text.text.size();) {
        const size_t end = std::min(text.text.find('\n', from), text.text.size());
        if (from > 0) out.add("\n", true);
        if (from == 0 ? first : blank || end > from) out.add(space);
        out.add(text.cut(from, end));
        from = end + 1;
        if (!fits(out)) return Value();
    }
    return heap.string(std::move(out));
}

}  // namespace jinja
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

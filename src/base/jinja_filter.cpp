#include "jinja_run.h"

#include "unicode.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace jinja {

Marked stripped(const Marked& text, const std::string* characters, bool left, bool right) {
    const auto goes = [characters](uint32_t c) {
        if (characters == nullptr) return is_python_space(c);
        std::string one;
        append_utf8(one, c);
        return characters->find(one) != std::string::npos;
    };
    std::string_view rest = text.text;
    size_t n = 0;
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
    if (name == nullptr) return of;
    const std::string path = text_of(*name).text;
    for (size_t from = 0; from <= path.size() && !of.is(Value::Kind::undefined);) {
        const size_t dot = std::min(path.find('.', from), path.size());
        const Value* found = of.find(std::string_view(path).substr(from, dot - from));
        of = found != nullptr ? *found : Value();
        from = dot + 1;
    }
    return of;
}

Value Run::pairs(const Value& map) {
    if (map.is(Value::Kind::undefined)) return heap.list({});
    if (!map.is_map()) return wrong(map.kind_name(), " has no items, expected a map");
    std::vector<Value> list;
    for (size_t i = 0; i < map.items().size(); ++i)
        list.push_back(heap.list({heap.input(map.data->keys[i]), map.items()[i]}));
    return heap.list(std::move(list));
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
        case Filter::items: return pairs(v);
        case Filter::length:
            if (v.is(Value::Kind::string))
                return Heap::integer(static_cast<int64_t>(character_starts(v.text()).size()) - 1);
            if (v.is(Value::Kind::list) || v.is_map()) return Heap::integer(static_cast<int64_t>(v.items().size()));
            if (v.is(Value::Kind::undefined)) return Heap::integer(0);
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
            const Value list = pairs(v);
            if (failed()) return Value();
            return sorted(std::vector<Value>(list.items()), args);
        }
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
    std::vector<Value> items;
    return elements(v, &items) ? list_filter(which, std::move(items), args) : Value();
}

Value Run::text_filter(Filter which, const Value& v, const Arguments& args) {
    Marked text = text_of(v);
    switch (which) {
        case Filter::capitalize: return heap.string(in_case(std::move(text), Case::capitalize));
        case Filter::lower: return heap.string(in_case(std::move(text), Case::lower));
        case Filter::title: return heap.string(in_case(std::move(text), Case::title));
        case Filter::upper: return heap.string(in_case(std::move(text), Case::upper));
        case Filter::indent: return indented(text, args);
        case Filter::replace: return replaced(text, args);
        case Filter::trim: {
            const bool given = args.find(0, "chars") != nullptr;
            const std::string characters = text_argument(args, 0, "chars").text;
            return heap.string(stripped(text, given ? &characters : nullptr, true, true));
        }
        default: return heap.string(std::move(text));
    }
}

Value Run::list_filter(Filter which, std::vector<Value>&& items, const Arguments& args) {
    switch (which) {
        case Filter::first: return items.empty() ? Value() : items.front();
        case Filter::last: return items.empty() ? Value() : items.back();
        case Filter::join: return joined(items, text_argument(args, 0, "d"), args.find(1, "attribute"));
        case Filter::map: return mapped(std::move(items), args);
        case Filter::reverse: std::reverse(items.begin(), items.end()); return heap.list(std::move(items));
        case Filter::sort: return sorted(std::move(items), args);
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
    if (args.flag(3, "sort_keys")) return wrong("tojson with sort_keys is not supported");
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
            v = attribute(v, by);
            if (absent != nullptr && v.is(Value::Kind::undefined)) v = *absent;
        }
        return heap.list(std::move(items));
    }
    const std::string name = text_argument(args, 0, "filter").text;
    Filter filter_of = Filter::string;
    if (failed() || !find_filter(name, &filter_of))
        return wrong("map needs an attribute or a filter, found ", quote(name));
    Arguments rest;
    rest.items.assign(args.items.begin() + 1, args.items.end());
    std::vector<std::string> names;
    if (args.names != nullptr) {
        names.assign(args.names->begin() + 1, args.names->end());
        rest.names = &names;
    }
    for (Value& v : items) {
        v = step() ? filter(filter_of, v, rest) : Value();
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
        if (!step()) return Value();
        const Value of = attribute(v, by_attribute ? &args.items[0] : nullptr);
        if ((tests ? test(by, of, argument) : of.truth()) == wanted) kept.push_back(v);
    }
    return heap.list(std::move(kept));
}

/// Strings without regard to case, as Jinja does; pairs by their key.
Value Run::sorted(std::vector<Value>&& items, const Arguments& args) {
    const Value* name = args.find("attribute");
    const bool exact = args.flag(args.items.size(), "case_sensitive"), falls = args.flag(args.items.size(), "reverse");
    std::vector<std::pair<Value, Value>> by_key;
    for (const Value& v : items) {
        Value key = name != nullptr                                 ? attribute(v, name)
                    : v.is(Value::Kind::list) && !v.items().empty() ? v.items()[0]
                                                                    : v;
        if (key.is(Value::Kind::string) && !exact) key = heap.string(in_case(key.marked(), Case::lower));
        if (!by_key.empty() && by_key[0].first.is(Value::Kind::string) != key.is(Value::Kind::string))
            return wrong("strings and other values have no order");
        if (!key.is(Value::Kind::string) && !key.is_number()) return wrong(key.kind_name(), " has no order");
        by_key.emplace_back(key, v);
    }
    std::stable_sort(by_key.begin(), by_key.end(), [&](const auto& a, const auto& b) {
        return falls ? less(b.first, a.first) : less(a.first, b.first);
    });
    for (size_t i = 0; i < items.size(); ++i) items[i] = by_key[i].second;
    return heap.list(std::move(items));
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
    double number = 0;
    if (v.is_number()) {
        number = v.number();
    } else {
        const std::string text = stripped(text_of(v), nullptr, true, true).text;
        Json json;
        if (!Json::parse(text).get(json).ok() || !json.is(Json::Kind::number))
            return absent != nullptr ? *absent : which == Filter::int_ ? Heap::integer(0) : Heap::real(0);
        number = json_double(text);
    }
    if (which == Filter::float_) return Heap::real(number);
    if (!v.is(Value::Kind::real) && v.is_number()) return Heap::integer(v.integer);
    if (!(number > -9e18 && number < 9e18)) return wrong("an integer is too large");
    return Heap::integer(static_cast<int64_t>(number));
}

Value Run::replaced(const Marked& text, const Arguments& args) {
    const Marked old = text_argument(args, 0, "old"), by = text_argument(args, 1, "new");
    int64_t n_left = integer_argument(args, 2, "count", -1);
    if (!step_search(text.text, old.text)) return Value();
    if (old.text.empty()) return wrong("replace: expected a text to replace, found an empty one");
    Marked out;
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
    const std::string space = given ? width->text() : std::string(static_cast<size_t>(n), ' ');
    const bool first = args.flag(1, "first"), blank = args.flag(2, "blank");
    Marked out;
    for (size_t from = 0; from <= text.text.size();) {
        const size_t end = std::min(text.text.find('\n', from), text.text.size());
        if (from > 0) out.add("\n", true);
        if (from == 0 ? first : blank || end > from) out.add(space, true);
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

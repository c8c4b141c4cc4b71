#include "jinja_value.h"

#include "unicode.h"

#include <algorithm>
#include <cmath>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace jinja {
namespace value_impl {

constexpr int kMaxDepth = 200;

std::string number_text(const Value& v, bool as_json) {
    if (v.is(Value::Kind::integer)) return say(v.integer);
    if (v.data != nullptr) return python_number(v.text(), as_json);
    if (std::isnan(v.real)) return as_json ? "NaN" : "nan";
    if (std::isinf(v.real)) return std::string(v.real < 0 ? "-" : "") + (as_json ? "Infinity" : "inf");
    return python_number(print_real("%.*e", 17, v.real), as_json);
}

/// What Python's repr() writes as it is, of the code points beyond ASCII that a text may well hold.
bool is_printable(uint32_t c) {
    static const uint32_t kRanges[][2] = {{0x80, 0xA0},     {0xAD, 0xAD},     {0x1680, 0x1680}, {0x2000, 0x200F},
                                          {0x2028, 0x202F}, {0x205F, 0x206F}, {0x3000, 0x3000}, {0xE000, 0xF8FF},
                                          {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}};
    return std::none_of(std::begin(kRanges), std::end(kRanges),
                        [c](const uint32_t(&range)[2]) { return c >= range[0] && c <= range[1]; });
}

/// Python's repr() of a string.
std::string quoted(std::string_view text) {
    const bool single = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
    const char mark = single ? '\'' : '"';
    std::string out(1, mark);
    for (size_t at = 0, n = 1; at < text.size(); at += n) {
        const char c = text[at];
        const uint32_t code = decode_utf8(text.data() + at, text.size() - at, &n);
        static const std::string_view kPlain = "\n\r\t\\", kNames = "nrt\\";
        const size_t named = kPlain.find(c);
        if (named != std::string_view::npos) {
            out += '\\';
            out += kNames[named];
        } else if (c == mark) {
            out += '\\';
            out += c;
        } else if (code < 0x20 || code == 0x7F || (code > 0x7F && !is_printable(code))) {
            char hex[8];
            std::snprintf(hex, sizeof hex, code < 0x100 ? "\\x%02x" : "\\u%04x", static_cast<unsigned>(code & 0xFFFF));
            out += hex;
        } else {
            out += text.substr(at, n);
        }
    }
    return out + mark;
}

/// Writes values within lists and maps, as Python shows them or as JSON.
class Writer {
  public:
    /// form: of JSON; null: as Python shows values.
    Writer(const JsonForm* form, size_t max_bytes)
        : json_(form != nullptr), form_(form != nullptr ? *form : JsonForm()), max_bytes_(max_bytes / 2) {}

    void value(const Value& v, int depth) {
        if (depth > kMaxDepth || out.size() > max_bytes_) {
            status = fail(Code::bad_argument, "a value is too large or nests too deep to be written");
            return;
        }
        switch (v.kind) {
            case Value::Kind::none: out += json_ ? "null" : "None"; return;
            case Value::Kind::boolean:
                out += v.integer != 0 ? (json_ ? "true" : "True") : (json_ ? "false" : "False");
                return;
            case Value::Kind::integer:
            case Value::Kind::real: out += number_text(v, json_); return;
            case Value::Kind::string: string(v.text()); return;
            case Value::Kind::list:
            case Value::Kind::map:
            case Value::Kind::name_space: items(v, depth); return;
            case Value::Kind::undefined:
            case Value::Kind::loop:
            case Value::Kind::macro:
            case Value::Kind::function: break;
        }
        if (json_)
            status = fail(Code::bad_argument, v.kind_name(), " cannot be written as JSON");
        else if (!v.is(Value::Kind::undefined))
            out += say("<", v.kind_name(), ">");
        else if (depth > 0)
            out += "Undefined";
    }

    std::string out;
    Status status;

  private:
    void string(std::string_view text) {
        if (!json_) {
            out += quoted(text);
            return;
        }
        const std::string plain = json_quoted(text);
        if (!form_.ascii) {
            out += plain;
            return;
        }
        for (size_t at = 0, n = 0; at < plain.size(); at += n) {
            const uint32_t c = decode_utf8(plain.data() + at, plain.size() - at, &n);
            if (c < 0x80)
                out += plain[at];
            else
                escape(c);
        }
    }
    void escape(uint32_t c) {
        char hex[16];
        if (c == kBadCodePoint) c = 0xFFFD;
        if (c > 0xFFFF)
            std::snprintf(hex, sizeof hex, "\\u%04x\\u%04x", static_cast<unsigned>(0xD7C0 + (c >> 10)),
                          static_cast<unsigned>(0xDC00 + (c & 0x3FF)));
        else
            std::snprintf(hex, sizeof hex, "\\u%04x", static_cast<unsigned>(c));
        out += hex;
    }
    void line(int depth) {
        if (form_.indent < 0) return;
        out += '\n';
        out.append(static_cast<size_t>(form_.indent) * static_cast<size_t>(depth), ' ');
    }
    void shown(std::string_view plain, std::string_view json) { out += json_ ? json : plain; }
    void key(const Value& map, size_t i) {
        const std::string& text = map.data->keys[i];
        switch (map.data->key_kind(i)) {
            case Value::Kind::string: string(text); return;
            case Value::Kind::boolean:
                shown(text == "0" ? "False" : "True", text == "0" ? "\"false\"" : "\"true\"");
                return;
            case Value::Kind::none: shown("None", "\"null\""); return;
            default: shown(text, '"' + text + '"'); return;
        }
    }
    void items(const Value& v, int depth) {
        const bool map = v.is_map(), tuple = v.is_tuple() && !json_;
        std::vector<uint32_t> order;
        if (map && form_.sorted)
            order = sorted_indices(v.items().size(),
                                   [&v](uint32_t a, uint32_t b) { return v.data->keys[a] < v.data->keys[b]; });
        out += map ? '{' : tuple ? '(' : '[';
        for (size_t k = 0; k < v.items().size() && status.ok(); ++k) {
            const size_t i = order.empty() ? k : order[k];
            if (k > 0) out += form_.item;
            line(depth + 1);
            if (map) {
                key(v, i);
                out += form_.key;
            }
            value(v.items()[i], depth + 1);
        }
        if (tuple && v.items().size() == 1) out += ',';
        if (!v.items().empty()) line(depth);
        out += map ? '}' : tuple ? ')' : ']';
    }

    bool json_;
    JsonForm form_;
    size_t max_bytes_;
};

/// How a map holds a key: numbers that are equal have one text. False: it cannot hold it.
bool key_text(const Value& key, std::string* text) {
    if (key.is(Value::Kind::string))
        *text = key.text();
    else if (key.is(Value::Kind::integer) || key.is(Value::Kind::boolean))
        *text = say(key.integer);
    else
        *text = "None";
    return key.is(Value::Kind::none) || *text != "None" || key.is(Value::Kind::string);
}

/// The order of keys, below, at or above 0; one that is a string differs from a number with the same text.
int compared(const Data& map, size_t i, std::string_view key, Value::Kind kind) {
    const int order = std::string_view(map.keys[i]).compare(key);
    return order != 0 ? order : (map.key_kind(i) == Value::Kind::string) - (kind == Value::Kind::string);
}
int compared(const Data& a, size_t i, const Data& b, size_t k) { return compared(a, i, b.keys[k], b.key_kind(k)); }
std::vector<uint32_t> key_order(const Data& map) {
    return sorted_indices(map.keys.size(), [&map](uint32_t i, uint32_t k) { return compared(map, i, map, k) < 0; });
}

/// Counts what it compares.
bool equal_within(const Value& a, const Value& b, int depth, uint64_t* n_step, uint64_t max_steps) {
    if (a.is_number() && b.is_number()) {
        if (a.is(Value::Kind::real) || b.is(Value::Kind::real)) return a.number() == b.number();
        return a.integer == b.integer;
    }
    if (a.kind != b.kind) return false;
    if (a.is(Value::Kind::string)) {
        *n_step += std::min(a.text().size(), b.text().size()) / 256;
        return a.text() == b.text();
    }
    if (a.is(Value::Kind::list) && a.is_tuple() != b.is_tuple()) return false;
    if (a.data == nullptr || a.data == b.data) return a.is(Value::Kind::none) || a.integer == b.integer;
    if (a.items().size() != b.items().size() || depth > kMaxDepth) return false;
    // With their keys in order the members of large maps meet without a search for each.
    const std::vector<uint32_t> order_a = key_order(*a.data), order_b = key_order(*b.data);
    for (size_t i = 0; i < a.items().size(); ++i) {
        *n_step += 1 + std::min<size_t>(order_a.size() / 64, 8);
        if (*n_step > max_steps) return false;
        const size_t k = a.is_map() ? order_a[i] : i, other = a.is_map() ? order_b[i] : i;
        if (a.is_map() && compared(*a.data, k, *b.data, other) != 0) return false;
        if (!equal_within(a.items()[k], b.items()[other], depth + 1, n_step, max_steps)) return false;
    }
    return true;
}

}  // namespace value_impl

const char* Value::kind_name() const {
    static const char* const kNames[] = {"undefined", "none",  "a boolean",   "an integer", "a number", "a string",
                                         "a list",    "a map", "a namespace", "the loop",   "a macro",  "a function"};
    return kNames[static_cast<size_t>(kind)];
}

bool Value::truth() const {
    switch (kind) {
        case Kind::undefined:
        case Kind::none: return false;
        case Kind::boolean:
        case Kind::integer: return integer != 0;
        case Kind::real: return real != 0;
        case Kind::string: return !text().empty();
        case Kind::list:
        case Kind::map: return !items().empty() || (is(Kind::list) && integer == kIterator);
        case Kind::name_space:
        case Kind::loop:
        case Kind::macro:
        case Kind::function: break;
    }
    return true;
}

uint64_t Value::weight() const {
    if (data == nullptr || is(Kind::loop)) return 0;
    return (data->text.text.size() + data->items.size()) / 64;
}

Value* Data::find(std::string_view key, Value::Kind kind) {
    constexpr size_t kMany = 32;  // fewer are compared as fast one after the other, and need no order
    using value_impl::compared;
    const size_t n = keys.size();
    if (n < kMany) {
        for (size_t i = 0; i < n; ++i)
            if (keys[i].size() == key.size() && compared(*this, i, key, kind) == 0) return &items[i];
        return nullptr;
    }
    if (order == nullptr) order = std::make_unique<std::vector<uint32_t>>(value_impl::key_order(*this));
    const auto place = [&](std::string_view k, Value::Kind of) {
        return std::lower_bound(order->begin(), order->end(), k,
                                [&](uint32_t i, std::string_view) { return compared(*this, i, k, of) < 0; });
    };
    // Those that were added since, whose keys are new.
    for (size_t i = order->size(); i < n; ++i) order->insert(place(keys[i], key_kind(i)), static_cast<uint32_t>(i));
    const auto found = place(key, kind);
    return found != order->end() && compared(*this, *found, key, kind) == 0 ? &items[*found] : nullptr;
}

void Data::add(std::string&& key, Value::Kind kind, const Value& value) {
    std::string& kinds = text.text;
    const bool is_text = kind == Value::Kind::string;
    if (kinds.empty() && !is_text) kinds.assign(keys.size(), static_cast<char>(Value::Kind::string));
    if (!kinds.empty() || !is_text) kinds += static_cast<char>(kind);
    keys.push_back(std::move(key));
    items.push_back(value);
}

Value* Value::find(std::string_view key) const { return is_map() ? data->find(key, Kind::string) : nullptr; }
const Value* Value::find(const Value& key) const {
    std::string text;
    return is_map() && value_impl::key_text(key, &text) ? data->find(text, key.kind) : nullptr;
}

bool MapMaker::add(const Value& key, const Value& value) {
    std::string text;
    if (!value_impl::key_text(key, &text)) return false;
    if (Value* old = map.find(text, key.kind); old != nullptr) {
        *old = value;
        return true;
    }
    map.add(std::move(text), key.kind, value);
    return true;
}
Value MapMaker::made(Heap& heap) {
    Value v = heap.map(std::move(map.keys), std::move(map.items));
    v.data->text = std::move(map.text);
    v.data->order = std::move(map.order);
    return v;
}

Value Heap::plain(Value::Kind kind, int64_t integer) {
    Value v;
    v.kind = kind;
    v.integer = integer;
    return v;
}
Value Heap::real(double d) {
    Value v;
    v.kind = Value::Kind::real;
    v.real = d;
    return v;
}
Data* Heap::make(Value::Kind kind, Value* to) {
    all_.push_back(std::make_unique<Data>());
    charge(sizeof(Data) + 2 * sizeof(void*));
    to->kind = kind;
    to->data = all_.back().get();
    return to->data;
}
Value Heap::string(Marked&& text) {
    Value v;
    charge(text.bytes());
    make(Value::Kind::string, &v)->text = std::move(text);
    return v;
}
Value Heap::list(std::vector<Value>&& items, int64_t form) {
    Value v;
    charge(items.size() * sizeof(Value));
    make(Value::Kind::list, &v)->items = std::move(items);
    v.integer = form;
    return v;
}
Value Heap::key(const Value& map, size_t i) {
    const std::string& text = map.data->keys[i];
    const Value::Kind kind = map.data->key_kind(i);
    if (kind == Value::Kind::string) return input(text);
    return plain(kind, kind == Value::Kind::none ? 0 : std::strtoll(text.c_str(), nullptr, 10));
}
Value Heap::map(std::vector<std::string>&& keys, std::vector<Value>&& items) {
    Value v;
    for (const std::string& key : keys) charge(key.size() + sizeof(std::string) + sizeof(Value));
    Data* data = make(Value::Kind::map, &v);
    data->keys = std::move(keys);
    data->items = std::move(items);
    return v;
}

Value Heap::of_json(const Json& json) {
    Value v;
    switch (json.kind()) {
        case Json::Kind::null: return plain(Value::Kind::none);
        case Json::Kind::boolean: return boolean(json.boolean());
        case Json::Kind::string: return input(json.text());
        case Json::Kind::number: {
            const std::string& digits = json.text();
            if (digits.find_first_of(".eE") == std::string::npos && digits.size() < 19)
                return integer(std::strtoll(digits.c_str(), nullptr, 10));
            make(Value::Kind::real, &v)->text.add(digits, false);
            v.real = json_double(digits);
            return v;
        }
        case Json::Kind::array:
        case Json::Kind::object: break;
    }
    std::vector<Value> items;
    items.reserve(json.items().size());
    for (const Json& item : json.items()) items.push_back(of_json(item));
    return json.is(Json::Kind::array) ? list(std::move(items))
                                      : map(std::vector<std::string>(json.keys()), std::move(items));
}

bool equal(const Value& a, const Value& b, uint64_t* n_step, uint64_t max_steps) {
    return value_impl::equal_within(a, b, 0, n_step, max_steps);
}

Result<Marked> to_text(const Value& value, size_t max_bytes) {
    if (value.is(Value::Kind::string)) return value.marked();
    value_impl::Writer writer(nullptr, max_bytes);
    writer.value(value, 0);
    if (!writer.status.ok()) return std::move(writer.status);
    return Marked(writer.out, false);
}

Status to_json(const Value& value, const JsonForm& form, std::string* to, size_t max_bytes) {
    value_impl::Writer writer(&form, max_bytes);
    writer.value(value, 0);
    *to = std::move(writer.out);
    return std::move(writer.status);
}

}  // namespace jinja
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

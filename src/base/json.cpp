#include "json.h"

#include "float_mode.h"
#include "unicode.h"

#include <cmath>
#include <map>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace json_impl {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace json_impl

double json_double(const std::string& text) {
    const DefaultFloatMode mode;  // strtod and snprintf round as the thread does
    // strtod and snprintf use the decimal sign of the process's locale, which may be several bytes.
    char probe[16];
    std::snprintf(probe, sizeof probe, "%.1f", 0.5);
    const std::string sign(probe + 1, std::strlen(probe) - 2);
    std::string local = text;
    const size_t at = local.find('.');
    if (at != std::string::npos) local.replace(at, 1, sign);
    return std::strtod(local.c_str(), nullptr);
}

std::string python_number(const std::string& text, bool as_json) {
    if (text.find_first_of(".eE") == std::string::npos) return text == "-0" ? "0" : text;
    const DefaultFloatMode mode;
    const double value = json_double(text);
    if (std::isinf(value)) return std::string(value < 0 ? "-" : "") + (as_json ? "Infinity" : "inf");
    char b[40];
    for (int digits = 0; digits < 17; ++digits) {
        std::snprintf(b, sizeof b, "%.*e", digits, value);
        if (std::strtod(b, nullptr) == value) break;
        // Below a power of two the doubles are closer: the nearest text of 16 digits may miss it, and the next one not.
        char& last = *(std::strchr(b, 'e') - 1);
        if (digits == 15 && last != '9' && (++last, std::strtod(b, nullptr) == value)) break;
    }
    // b is [-]d[.ddd]e[+-]xx; rearrange it as Python does.
    std::string digits;
    const char* p = b;
    const bool negative = *p == '-';
    if (negative) ++p;
    for (; *p != 'e'; ++p)
        if (json_impl::is_digit(*p)) digits += *p;
    const int exponent = static_cast<int>(std::strtol(p + 1, nullptr, 10));
    const int n = static_cast<int>(digits.size());
    std::string out = negative ? "-" : "";
    if (exponent >= 16 || exponent < -4) {
        out += digits[0];
        if (n > 1) out += "." + digits.substr(1);
        const int size = exponent < 0 ? -exponent : exponent;
        out += say("e", exponent < 0 ? "-" : "+", size < 10 ? "0" : "", size);
    } else if (exponent < 0) {
        out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
    } else if (n > exponent + 1) {
        out += digits.substr(0, static_cast<size_t>(exponent) + 1) + "." +
               digits.substr(static_cast<size_t>(exponent) + 1);
    } else {
        out += digits + std::string(static_cast<size_t>(exponent + 1 - n), '0') + ".0";
    }
    return out;
}

std::string json_escape(uint32_t c) {
    static constexpr char kHex[] = "0123456789abcdef", kChars[] = "\"\\\n\r\t\b\f", kLetters[] = "\"\\nrtbf";
    const char* at = c != 0 ? std::strchr(kChars, static_cast<char>(c)) : nullptr;
    if (at != nullptr) return {'\\', kLetters[at - kChars]};
    return {'\\', 'u', '0', '0', kHex[c >> 4 & 15], kHex[c & 15]};
}

std::string json_escaped(std::string_view text) {
    std::string out;
    for (const char c : text)
        if (json_must_escape(static_cast<unsigned char>(c)))
            out += json_escape(static_cast<unsigned char>(c));
        else
            out += c;
    return out;
}

std::string json_quoted(std::string_view text) { return say('"', json_escaped(text), '"'); }

/// A recursive parser. Keeps the first error.
class JsonReader {
  public:
    JsonReader(std::string_view text, const Json::Limits& limits) : text_(text), limits_(limits) {}

    uint64_t n_compare() const { return n_compare_; }

    Status read(Json& out) {
        if (text_.size() > limits_.max_bytes)
            return fail(Code::bad_argument, "JSON text of ", text_.size(), " bytes, at most ", limits_.max_bytes,
                        " are read");
        const size_t bad = find_bad_utf8(text_);
        if (bad < text_.size()) {
            at_ = bad;
            expected("UTF-8");
            return status_;
        }
        if (!value(out, 0)) return status_;
        space();
        if (at_ < text_.size()) expected("the end of the JSON text");
        return status_;
    }

  private:
    bool expected(const char* what) {
        size_t line = 1, column = 1;
        for (size_t i = 0; i < at_; ++i) {
            if (text_[i] == '\n') {
                ++line;
                column = 1;
            } else if ((static_cast<unsigned char>(text_[i]) & 0xC0) != 0x80) {
                ++column;
            }
        }
        std::string found = "the end";
        if (at_ < text_.size()) {
            const unsigned char c = static_cast<unsigned char>(text_[at_]);
            char b[16];
            std::snprintf(b, sizeof b, c > 0x20 && c < 0x7F ? "'%c'" : "byte 0x%02x", static_cast<unsigned>(c));
            found = b;
        }
        status_ = fail(Code::bad_argument, "JSON: expected ", what, ", found ", found, " at line ", line, ", column ",
                       column, " (byte ", at_, ")");
        return false;
    }

    void space() {
        while (at_ < text_.size() &&
               (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
            ++at_;
    }
    bool have(char c) const { return at_ < text_.size() && text_[at_] == c; }
    bool take(char c) {
        if (!have(c)) return false;
        ++at_;
        return true;
    }
    bool word(const char* w) {
        const std::string_view v(w);
        if (text_.substr(at_, v.size()) != v) return expected("a value");
        at_ += v.size();
        return true;
    }

    bool value(Json& out, size_t depth) {
        if (++n_value_ > limits_.max_values) {
            status_ = fail(Code::bad_argument, "JSON: more than ", limits_.max_values, " values");
            return false;
        }
        if (depth > limits_.max_depth) {
            status_ = fail(Code::bad_argument, "JSON: nested deeper than ", limits_.max_depth, " levels at byte ", at_);
            return false;
        }
        space();
        if (at_ == text_.size()) return expected("a value");
        switch (text_[at_]) {
            case '{': return object(out, depth);
            case '[': return array(out, depth);
            case '"': out.kind_ = Json::Kind::string; return string(out.text_);
            case 't':
                out.kind_ = Json::Kind::boolean;
                out.boolean_ = true;
                return word("true");
            case 'f': out.kind_ = Json::Kind::boolean; return word("false");
            case 'n': return word("null");
            default: return number(out);
        }
    }

    bool number(Json& out) {
        const size_t from = at_;
        const auto digits = [this] {
            if (at_ == text_.size() || !json_impl::is_digit(text_[at_])) return false;
            while (at_ < text_.size() && json_impl::is_digit(text_[at_])) ++at_;
            return true;
        };
        const bool minus = take('-');
        if (!take('0') && !digits()) return expected(minus ? "a digit" : "a value");
        if (take('.') && !digits()) return expected("a digit");
        if (have('e') || have('E')) {
            ++at_;
            if (!take('+')) take('-');
            if (!digits()) return expected("a digit");
        }
        out.kind_ = Json::Kind::number;
        out.text_ = std::string(text_.substr(from, at_ - from));
        return true;
    }

    bool hex4(uint32_t* out) { return read_hex(text_, &at_, 4, out) || expected("four hexadecimal digits"); }

    bool string(std::string& out) {
        ++at_;
        for (;;) {
            const size_t from = at_;
            while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
                   static_cast<unsigned char>(text_[at_]) >= 0x20)
                ++at_;
            out.append(text_.substr(from, at_ - from));
            if (take('"')) return true;
            if (!take('\\')) return expected("a closing quote (control characters are written as escapes)");
            const char c = at_ < text_.size() ? text_[at_] : '\0';
            static const char kFrom[] = "\"\\/bfnrt", kTo[] = "\"\\/\b\f\n\r\t";
            const char* simple = c != '\0' ? std::strchr(kFrom, c) : nullptr;
            if (simple != nullptr) {
                out += kTo[simple - kFrom];
                ++at_;
            } else if (c == 'u') {
                ++at_;
                uint32_t high = 0, low = 0;
                if (!hex4(&high)) return false;
                if (high >= 0xD800 && high <= 0xDBFF && text_.substr(at_, 2) == "\\u") {
                    const size_t back = at_;
                    at_ += 2;
                    if (!hex4(&low)) return false;
                    if (low >= 0xDC00 && low <= 0xDFFF)
                        high = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
                    else
                        at_ = back;
                }
                append_utf8(out, high);
            } else {
                return expected("an escape: one of \" \\ / b f n r t u");
            }
        }
    }

    bool array(Json& out, size_t depth) {
        out.kind_ = Json::Kind::array;
        ++at_;
        space();
        if (take(']')) return true;
        out.inner_ = std::make_unique<Json::Inner>();
        std::vector<Json>& items = out.inner_->items;
        for (;;) {
            items.emplace_back();
            if (!value(items.back(), depth + 1)) return false;
            space();
            if (take(']')) return true;
            if (!take(',')) return expected("',' or ']'");
        }
    }

    bool object(Json& out, size_t depth) {
        out.kind_ = Json::Kind::object;
        // A search tree, not a hash table: no choice of keys makes it slow. Small objects do without.
        const auto less = [this](const std::string& a, const std::string& b) {
            ++n_compare_;
            return a < b;
        };
        std::map<std::string, size_t, decltype(less)> seen(less);
        ++at_;
        space();
        if (take('}')) return true;
        out.inner_ = std::make_unique<Json::Inner>();
        std::vector<Json>& items = out.inner_->items;
        std::vector<std::string>& keys = out.inner_->keys;
        for (;;) {
            space();
            if (!have('"')) return expected("a key in quotes");
            std::string key;
            if (!string(key)) return false;
            space();
            if (!take(':')) return expected("':'");
            size_t place = keys.size();
            if (keys.size() < 16) {
                n_compare_ += keys.size();
                for (size_t i = 0; i < keys.size(); ++i)
                    if (keys[i] == key) place = i;
            } else {
                if (seen.empty())
                    for (size_t i = 0; i < keys.size(); ++i) seen.emplace(keys[i], i);
                place = seen.emplace(key, place).first->second;
            }
            if (place == keys.size()) {
                keys.push_back(std::move(key));
                items.emplace_back();
            } else {
                items[place] = Json();
            }
            if (!value(items[place], depth + 1)) return false;
            space();
            if (take('}')) return true;
            if (!take(',')) return expected("',' or '}'");
        }
    }

    std::string_view text_;
    const Json::Limits& limits_;
    size_t at_ = 0, n_value_ = 0;
    uint64_t n_compare_ = 0;
    Status status_;
};

Json::Json() noexcept = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;

Json::Json(const Json& other)
    : kind_(other.kind_),
      boolean_(other.boolean_),
      text_(other.text_),
      inner_(other.inner_ ? std::make_unique<Inner>(*other.inner_) : nullptr) {}

Json& Json::operator=(const Json& other) { return *this = Json(other); }

const Json::Inner& Json::inner() const {
    static const Inner empty;
    return inner_ ? *inner_ : empty;
}
const std::vector<Json>& Json::items() const { return inner().items; }
const std::vector<std::string>& Json::keys() const { return inner().keys; }

Result<Json> Json::parse(std::string_view text, const Limits& limits, uint64_t* n_compare) {
    Json value;
    JsonReader reader(text, limits);
    Status status = reader.read(value);
    if (n_compare != nullptr) *n_compare = reader.n_compare();
    if (!status.ok()) return status;
    return value;
}

Json Json::of_string(std::string_view text) {
    Json value;
    value.kind_ = Kind::string;
    value.text_ = std::string(text);
    return value;
}

const char* Json::kind_name() const {
    switch (kind_) {
        case Kind::null: return "null";
        case Kind::boolean: return "a boolean";
        case Kind::number: return "a number";
        case Kind::string: return "a string";
        case Kind::array: return "an array";
        case Kind::object: break;
    }
    return "an object";
}

const Json* Json::find(std::string_view key) const {
    if (!inner_) return nullptr;
    for (size_t i = 0; i < inner_->keys.size(); ++i)
        if (inner_->keys[i] == key) return &inner_->items[i];
    return nullptr;
}

void Json::dump_to(std::string& out, Numbers numbers) const {
    switch (kind_) {
        case Kind::null: out += "null"; return;
        case Kind::boolean: out += boolean_ ? "true" : "false"; return;
        case Kind::number: out += numbers == Numbers::written ? text_ : python_number(text_, true); return;
        case Kind::string: out += json_quoted(text_); return;
        case Kind::array:
        case Kind::object: break;
    }
    const Inner& in = inner();
    const bool object = kind_ == Kind::object;
    out += object ? '{' : '[';
    for (size_t i = 0; i < in.items.size(); ++i) {
        if (i > 0) out += ", ";
        if (object) {
            out += json_quoted(in.keys[i]);
            out += ": ";
        }
        in.items[i].dump_to(out, numbers);
    }
    out += object ? '}' : ']';
}

std::string Json::dump(Numbers numbers) const {
    std::string out;
    dump_to(out, numbers);
    return out;
}

std::string Json::python_str() const {
    switch (kind_) {
        case Kind::null: return "None";
        case Kind::boolean: return boolean_ ? "True" : "False";
        case Kind::number: return python_number(text_, false);
        case Kind::string: return text_;
        case Kind::array:
        case Kind::object: break;
    }
    return dump();
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

#include "jinja.h"
#include "unicode.h"

#include <algorithm>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace jinja {
namespace lex_impl {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

class Lexer {
  public:
    explicit Lexer(std::string_view source) {
        // As Jinja reads files: line ends are "\n", and the last one is not part of the text.
        source_.reserve(source.size());
        for (size_t i = 0; i < source.size(); ++i) {
            if (source[i] == '\r') {
                source_ += '\n';
                if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
            } else {
                source_ += source[i];
            }
        }
        if (!source_.empty() && source_.back() == '\n') source_.pop_back();
    }

    Result<std::vector<Lexeme>> run() {
        while (at_ < source_.size()) {
            text_until_tag();
            if (at_ >= source_.size()) break;
            const char kind = source_[at_ + 1];
            if (kind == '#') {
                AUSPEX_TRY(comment());
            } else {
                AUSPEX_TRY(tag(kind == '%'));
            }
        }
        add(Lexeme::Kind::end, "");
        return std::move(out_);
    }

  private:
    void add(Lexeme::Kind kind, std::string_view text) {
        Lexeme l;
        l.kind = kind;
        l.line = line_;
        l.text = std::string(text);
        out_.push_back(std::move(l));
    }
    /// Moves to `to`, and counts the lines.
    void advance(size_t to) {
        for (; at_ < to; ++at_)
            if (source_[at_] == '\n') ++line_;
    }
    template <class... A>
    Status wrong(const A&... parts) const {
        return fail(Code::bad_argument, "the chat template, line ", line_, ": ", say(parts...));
    }
    bool is_at(size_t at, std::string_view text) const { return source_.compare(at, text.size(), text) == 0; }

    /// The text up to the next tag, less the white space that the tag removes before it.
    void text_until_tag() {
        size_t tag = at_;
        while (tag < source_.size() &&
               !(source_[tag] == '{' && tag + 1 < source_.size() &&
                 (source_[tag + 1] == '%' || source_[tag + 1] == '{' || source_[tag + 1] == '#')))
            ++tag;
        std::string_view text = std::string_view(source_).substr(at_, tag - at_);
        const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
        if (tag < source_.size() && sign == '-') {
            text = without_last_space(text);
        } else if (tag < source_.size() && sign != '+' && source_[tag + 1] != '{') {
            text = without_indentation(text);
        }
        if (!text.empty()) add(Lexeme::Kind::text, text);
        advance(tag);
    }

    static std::string_view without_last_space(std::string_view text) {
        const std::string_view kept = trim_space(text);
        return kept.empty() ? kept : text.substr(0, static_cast<size_t>(kept.data() - text.data()) + kept.size());
    }
    /// lstrip_blocks: before a tag that is the first in its line.
    std::string_view without_indentation(std::string_view text) const {
        size_t line = text.rfind('\n');
        line = line == std::string_view::npos ? 0 : line + 1;
        const bool goes = (line > 0 || line_starts_) && trim_space(text.substr(line)).empty();
        return goes ? text.substr(0, line) : text;
    }

    /// Behind the end of a tag: `trims` is true for blocks and comments, whose line break goes.
    void after_tag(size_t end, bool strip, bool trims) {
        advance(end);
        size_t to = end;
        if (strip)
            for (size_t n = 0;
                 to < source_.size() && is_python_space(decode_utf8(&source_[to], source_.size() - to, &n));)
                to += n;
        else if (trims && to < source_.size() && source_[to] == '\n')
            ++to;
        line_starts_ = to > end && source_[to - 1] == '\n';
        advance(to);
    }

    Status comment() {
        size_t begin = at_ + 2;
        // A sign belongs to one end only: {#-#} has one in front.
        if (begin < source_.size() && (source_[begin] == '-' || source_[begin] == '+')) ++begin;
        const size_t close = source_.find("#}", begin);
        if (close == std::string::npos) return wrong("the comment has no end, expected #}");
        const char sign = close > begin ? source_[close - 1] : '\0';
        const bool minus = sign == '-', plus = sign == '+';
        after_tag(close + 2, minus, !plus);
        return {};
    }

    /// A block or an expression, from {% or {{ to its end.
    Status tag(bool block) {
        const size_t n_before = out_.size();
        add(block ? Lexeme::Kind::begin_block : Lexeme::Kind::begin_print, "");
        size_t from = at_ + 2;
        if (from < source_.size() && (source_[from] == '-' || (block && source_[from] == '+'))) ++from;
        advance(from);
        depth_ = 0;
        const std::string_view close = block ? "%}" : "}}";
        for (;;) {
            while (at_ < source_.size() && is_blank(source_[at_])) advance(at_ + 1);
            if (at_ >= source_.size()) return wrong("a tag has no end, expected ", close);
            const char sign = source_[at_];
            const bool minus = sign == '-' && is_at(at_ + 1, close),
                       plus = block && sign == '+' && is_at(at_ + 1, close);
            if (depth_ == 0 && (minus || plus || is_at(at_, close))) {
                add(block ? Lexeme::Kind::end_block : Lexeme::Kind::end_print, "");
                const bool is_raw = block && out_.size() == n_before + 3 && out_[n_before + 1].text == "raw";
                after_tag(at_ + 2 + (minus || plus ? 1 : 0), minus, block && !plus && !is_raw);
                return is_raw ? raw(n_before) : Status();
            }
            AUSPEX_TRY(lexeme());
        }
    }

    /// What stands between {% raw %} and {% endraw %} is text.
    Status raw(size_t n_before) {
        out_.resize(n_before);
        for (size_t close = source_.find("{%", at_); close != std::string::npos;
             close = source_.find("{%", close + 2)) {
            size_t p = close + 2;
            const char sign = p < source_.size() ? source_[p] : '\0';
            if (sign == '-' || sign == '+') ++p;
            while (p < source_.size() && is_blank(source_[p])) ++p;
            if (!is_at(p, "endraw")) continue;
            for (p += 6; p < source_.size() && is_blank(source_[p]);) ++p;
            const bool minus = is_at(p, "-%}"), plus = is_at(p, "+%}");
            if (!minus && !plus && !is_at(p, "%}")) continue;
            std::string_view text = std::string_view(source_).substr(at_, close - at_);
            if (sign != '+') text = sign == '-' ? without_last_space(text) : without_indentation(text);
            if (!text.empty()) add(Lexeme::Kind::text, text);
            after_tag(p + (minus || plus ? 3 : 2), minus, !plus);
            return {};
        }
        return wrong("the raw block has no end, expected {% endraw %}");
    }

    Status lexeme() {
        const char c = source_[at_];
        size_t end = at_ + 1;
        if (is_letter(c)) {
            while (end < source_.size() && (is_letter(source_[end]) || is_digit(source_[end]))) ++end;
            add(Lexeme::Kind::name, std::string_view(source_).substr(at_, end - at_));
        } else if (is_digit(c)) {
            end = number();
        } else if (c == '\'' || c == '"') {
            return string(c);
        } else {
            static const std::string_view kPairs[] = {"==", "!=", "<=", ">=", "//", "**"};
            for (const std::string_view pair : kPairs)
                if (is_at(at_, pair)) end = at_ + 2;
            if (end == at_ + 1 && std::string_view("+-*/%~<>=()[]{}|.,:").find(c) == std::string_view::npos)
                return wrong("unexpected character ", quote(std::string_view(&source_[at_], 1)));
            if (c == '(' || c == '[' || c == '{') ++depth_;
            if ((c == ')' || c == ']' || c == '}') && depth_ > 0) --depth_;
            add(Lexeme::Kind::symbol, std::string_view(source_).substr(at_, end - at_));
        }
        advance(end);
        return {};
    }

    size_t number() {
        size_t end = at_;
        const auto digits = [&] {
            while (end < source_.size() && is_digit(source_[end])) ++end;
        };
        digits();
        bool real = false;
        if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
            real = true;
            ++end;
            digits();
        }
        if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
            size_t p = end + 1;
            if (p < source_.size() && (source_[p] == '+' || source_[p] == '-')) ++p;
            if (p < source_.size() && is_digit(source_[p])) {
                real = true;
                end = p;
                digits();
            }
        }
        add(real ? Lexeme::Kind::real : Lexeme::Kind::integer, std::string_view(source_).substr(at_, end - at_));
        return end;
    }

    /// A string with Python's escapes.
    Status string(char quote_mark) {
        std::string text;
        size_t p = at_ + 1;
        for (; p < source_.size() && source_[p] != quote_mark; ++p) {
            if (source_[p] != '\\' || p + 1 >= source_.size()) {
                text += source_[p];
                continue;
            }
            const char c = source_[++p];
            static const std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
            const size_t simple = kFrom.find(c);
            if (simple != std::string_view::npos) {
                text += kTo[simple];
            } else if (c >= '0' && c <= '7') {
                uint32_t code = 0;
                size_t n_digit = 0;
                for (; n_digit < 3 && p + n_digit < source_.size() && source_[p + n_digit] >= '0' &&
                       source_[p + n_digit] <= '7';
                     ++n_digit)
                    code = code << 3 | static_cast<uint32_t>(source_[p + n_digit] - '0');
                append_utf8(text, code);
                p += n_digit - 1;
            } else if (c == 'N') {
                return wrong("\\N in a string is not supported");
            } else if (c == '\n') {
                continue;
            } else if (const size_t n_digit = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0; n_digit > 0) {
                uint32_t code = 0;
                size_t from = p + 1;
                if (!read_hex(source_, &from, n_digit, &code))
                    return wrong("expected ", n_digit, " hexadecimal digits after \\", c);
                append_utf8(text, code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF) ? 0xFFFD : code);
                p += n_digit;
            } else {
                text += '\\';
                text += c;
            }
        }
        if (p >= source_.size()) return wrong("a string has no end, expected ", quote_mark);
        add(Lexeme::Kind::string, text);
        advance(p + 1);
        return {};
    }

    std::string source_;
    size_t at_ = 0, depth_ = 0;
    uint32_t line_ = 1;
    bool line_starts_ = true;  ///< the text at at_ begins a line
    std::vector<Lexeme> out_;
};

}  // namespace lex_impl

Result<std::vector<Lexeme>> lex(std::string_view source) { return lex_impl::Lexer(source).run(); }

}  // namespace jinja
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

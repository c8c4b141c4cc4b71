#include "token_split.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace split_impl {

enum Bits : uint8_t { kWord = 1, kNumber = 2, kSpace = 4, kLetter = 8, kBreak = 16 };

struct Char {
    uint8_t bits;
    size_t length;
    bool is(uint8_t b) const { return (bits & b) != 0; }
    bool punctuation() const { return (bits & (kWord | kNumber | kSpace)) == 0; }
};

class Scanner {
  public:
    Scanner(std::string_view text, Split split) : text_(text), marks_(split == Split::qwen35) {}

    /// The character at `at`; at the end of the text white space of length 0.
    Char look(size_t at) {
        if (at >= text_.size()) return Char{kSpace, 0};
        ++n_look;
        Char c{0, 1};
        const uint32_t code = decode_utf8(text_.data() + at, text_.size() - at, &c.length);
        if (code == '\r' || code == '\n') {
            c.bits = kSpace | kBreak;
        } else if (is_white_space(code)) {
            c.bits = kSpace;
        } else {
            switch (char_class(code)) {
                case CharClass::letter: c.bits = kWord | kLetter; break;
                case CharClass::number: c.bits = kNumber; break;
                case CharClass::mark: c.bits = marks_ ? kWord : 0; break;
                case CharClass::other: break;
            }
        }
        return c;
    }

    size_t run_of_words(size_t at) {
        for (Char c = look(at); c.is(kWord); c = look(at)) at += c.length;
        return at;
    }

    uint64_t n_look = 0;

  private:
    std::string_view text_;
    bool marks_;
};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// The length of an English contraction at the front of `text`, or 0.
size_t contraction(std::string_view text) {
    if (text.size() < 2 || text[0] != '\'') return 0;
    const char a = lower(text[1]), b = text.size() > 2 ? lower(text[2]) : '\0';
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

size_t next(Scanner& scan, std::string_view text, size_t at) {
    if (const size_t n = contraction(text.substr(at, 3))) return at + n;

    const Char first = scan.look(at);
    const size_t second_at = at + first.length;
    // A word, and one character before it that is not a letter, number or line break.
    if (!first.is(kBreak | kLetter | kNumber)) {
        const Char second = scan.look(second_at);
        if (second.is(kWord)) return scan.run_of_words(second_at + second.length);
    }
    if (first.is(kWord)) return scan.run_of_words(second_at);
    if (first.is(kNumber)) return second_at;

    // Punctuation, one space before it, and line breaks after it.
    size_t end = text[at] == ' ' && scan.look(second_at).punctuation() ? second_at : at;
    if (scan.look(end).punctuation()) {
        for (Char c = scan.look(end); c.punctuation(); c = scan.look(end)) end += c.length;
        while (end < text.size() && (text[end] == '\r' || text[end] == '\n')) ++end;
        return end;
    }

    // White space up to its last line break; without one all but the last character, which belongs to the next piece;
    // at the end of the text all of it.
    size_t last = at, after_break = 0, n_char = 0;
    end = at;
    for (Char c = first; c.length > 0 && c.is(kSpace); c = scan.look(end)) {
        last = end;
        end += c.length;
        ++n_char;
        if (c.is(kBreak)) after_break = end;
    }
    if (after_break > 0) return after_break;
    return n_char > 1 && end < text.size() ? last : end;
}

}  // namespace split_impl

size_t split_piece(std::string_view text, size_t at, Split split, uint64_t* n_look) {
    split_impl::Scanner scan(text, split);
    const size_t end = split_impl::next(scan, text, at);
    if (n_look != nullptr) *n_look += scan.n_look;
    return end;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

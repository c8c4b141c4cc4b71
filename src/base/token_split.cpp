#include "token_split.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace split_impl {

/// What a character is to the rules.
enum Bits : uint8_t {
    kWord = 1,
    kLetter = 2,
    kNumber = 4,
    kSpace = 8,
    kBreak = 16,        ///< \r or \n
    kPunctuation = 32,  ///< deepseek-v3: \p{P} and \p{S}; else whatever has no other bit
    kHan = 64,          ///< deepseek-v3: in the class of the second split
};

struct Char {
    uint8_t bits;
    size_t length;  ///< in bytes; 0 at the end of the text
    bool is(uint8_t b) const { return (bits & b) != 0; }
    /// deepseek-v3: no alternative of the third split begins with it, unless a word follows.
    bool unmatched() const { return !is(kWord | kSpace | kPunctuation); }
};

class Scanner {
  public:
    Scanner(std::string_view text, Split split)
        : text_(text), split_(split), apart_(split == Split::deepseek_v3 ? kNumber | kHan : 0) {}

    /// The first character of a piece.
    Char first(size_t at) {
        const Char c = classify(at);
        part_ = c.bits & apart_;
        return c;
    }
    /// A further one, or the end of the text where the first or second split of deepseek-v3 ends one.
    Char look(size_t at) {
        const Char c = classify(at);
        return (c.bits & apart_) == part_ ? c : kEnd;
    }

    /// The end of the run of characters from `at` on that have one of `bits`.
    size_t run_of(uint8_t bits, size_t at) {
        for (Char c = look(at); c.length > 0 && c.is(bits); c = look(at)) at += c.length;
        return at;
    }

    /// Punctuation, one space before it, and line breaks after it; `at` if there is none.
    size_t punctuation(size_t at) {
        const size_t from = text_[at] == ' ' ? at + 1 : at, end = run_of(kPunctuation, from);
        return end > from ? run_of(kBreak, end) : at;
    }

    /// White space up to its last line break; without one all but the last character, which belongs to the next piece;
    /// at the end of the text all of it. `at` if there is none.
    size_t white_space(size_t at) {
        size_t last = at, end = at, after_break = 0, n_char = 0;
        Char c = look(end);
        for (; c.length > 0 && c.is(kSpace); c = look(end)) {
            last = end;
            end += c.length;
            ++n_char;
            if (c.is(kBreak)) after_break = end;
        }
        if (after_break > 0) return after_break;
        return n_char > 1 && c.length > 0 ? last : end;
    }

    uint64_t n_look = 0;

  private:
    static constexpr Char kEnd{kSpace, 0};

    Char classify(size_t at) {
        if (at >= text_.size()) return kEnd;
        ++n_look;
        Char c{0, 1};
        const uint32_t code = decode_utf8(text_.data() + at, text_.size() - at, &c.length);
        if (code == '\r' || code == '\n')
            c.bits = kSpace | kBreak;
        else if (is_white_space(code))
            c.bits = kSpace;
        else
            c.bits = split_ == Split::deepseek_v3 ? deepseek_bits(code) : qwen_bits(code);
        return c;
    }
    uint8_t qwen_bits(uint32_t code) const {
        switch (char_class(code)) {
            case CharClass::letter: return kWord | kLetter;
            case CharClass::number: return kNumber;
            case CharClass::mark: return split_ == Split::qwen35 ? kWord : kPunctuation;
            case CharClass::punctuation:
            case CharClass::symbol:
            case CharClass::other: break;
        }
        return kPunctuation;
    }
    static uint8_t deepseek_bits(uint32_t code) {
        const uint8_t han = (code >= 0x4E00 && code <= 0x9FA5) || (code >= 0x3040 && code <= 0x30FF) ? kHan : 0;
        switch (char_class(code)) {
            case CharClass::letter: return han | kWord | kLetter;
            case CharClass::number: return kNumber;
            case CharClass::mark: return han | kWord;
            case CharClass::punctuation:
            case CharClass::symbol: return han | kPunctuation;
            case CharClass::other: break;
        }
        return han;
    }

    std::string_view text_;
    Split split_;
    uint8_t apart_, part_ = 0;  ///< bits of which a piece has all or none, and those of this piece
};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool is_ascii_letter(char c) { return lower(c) >= 'a' && lower(c) <= 'z'; }

/// The length of an English contraction at the front of `text`, or 0.
size_t contraction(std::string_view text) {
    if (text.size() < 2 || text[0] != '\'') return 0;
    const char a = lower(text[1]), b = text.size() > 2 ? lower(text[2]) : '\0';
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

size_t next_qwen(Scanner& scan, std::string_view text, size_t at) {
    if (const size_t n = contraction(text.substr(at, 3))) return at + n;

    const Char first = scan.first(at);
    const size_t second = at + first.length;
    // A word, and one character before it that is not a letter, number or line break.
    if (first.is(kLetter)) return scan.run_of(kWord, second);
    if (first.is(kNumber)) return second;
    if (!first.is(kBreak)) {
        const size_t end = scan.run_of(kWord, second);
        if (end > second || first.is(kWord)) return end;
    }
    const size_t end = scan.punctuation(at);
    return end > at ? end : scan.white_space(at);
}

size_t next_deepseek(Scanner& scan, std::string_view text, size_t at) {
    const Char first = scan.first(at);
    const size_t second = at + first.length;
    if (first.is(kNumber)) {
        const Char next = scan.look(second);
        const size_t third = second + next.length;
        return next.length > 0 ? third + scan.look(third).length : third;
    }
    // ASCII punctuation and the ASCII letters after it.
    if (first.is(kPunctuation) && first.length == 1) {
        size_t end = second;
        while (end < text.size() && is_ascii_letter(text[end])) ++end;
        if (end > second) return end;
    }
    // A word, and one character before it that is not a letter, punctuation or line break.
    if (!first.is(kPunctuation | kBreak)) {
        const size_t end = scan.run_of(kWord, second);
        if (end > second || first.is(kWord)) return end;
    }
    if (!first.unmatched()) {
        const size_t end = scan.punctuation(at);
        return end > at ? end : scan.white_space(at);
    }
    // What nothing matches, but for its last character if a word follows.
    size_t last = at, end = second;
    Char c = scan.look(end);
    for (; c.unmatched(); c = scan.look(end)) {
        last = end;
        end += c.length;
    }
    return c.is(kWord) ? last : end;
}

}  // namespace split_impl

size_t split_piece(std::string_view text, size_t at, Split split, uint64_t* n_look) {
    split_impl::Scanner scan(text, split);
    const size_t end =
        split == Split::deepseek_v3 ? split_impl::next_deepseek(scan, text, at) : split_impl::next_qwen(scan, text, at);
    if (n_look != nullptr) *n_look += scan.n_look;
    return end;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

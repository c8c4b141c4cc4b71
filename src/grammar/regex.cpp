#include "regex.h"

#include "../base/unicode.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace regex_impl {

enum class NodeKind : uint8_t { set, concat, choice, repeat, begin, end };

struct RegexNode {
    NodeKind kind = NodeKind::concat;
    bool anchored = false;  ///< ^ or $ within
    uint32_t lo = 0, hi = 0;
    CharSet set;
    std::vector<uint32_t> parts;
};

CharSet named_set(char letter) {
    CharSet set;
    if (letter == 'd' || letter == 'w') set.add('0', '9');
    if (letter == 'w') {
        set.add('A', 'Z');
        set.add('_');
        set.add('a', 'z');
    }
    if (letter == 's') {
        set.add(9, 13);
        for (const uint32_t c : {0x20u, 0xA0u, 0x1680u, 0x2028u, 0x2029u, 0x202Fu, 0x205Fu, 0x3000u, 0xFEFFu})
            set.add(c);
        set.add(0x2000, 0x200A);
    }
    set.normalize();
    return set;
}

CharSet class_set(CharClass wanted) {
    CharSet set;
    for_each_run(wanted, [&set](uint32_t first, uint32_t last) { set.add(first, last); });
    set.normalize();
    return set;
}

CharSet line_chars() {
    CharSet ends;
    for (const uint32_t c : {0x0Au, 0x0Du, 0x2028u, 0x2029u}) ends.add(c);
    ends.normalize();
    return ends.complement();
}

class RegexReader {
  public:
    explicit RegexReader(std::string_view text) : text_(text) {}
    std::vector<RegexNode> nodes;
    Status status;

    bool read(uint32_t& root) {
        if (text_.size() > kMaxGrammarBytes) return error("a pattern of at most 1 MiB");
        const size_t bad = find_bad_utf8(text_);
        if (bad < text_.size()) {
            at_ = bad;
            return error("UTF-8");
        }
        if (!alternatives(root, 0)) return false;
        return at_ == text_.size() || error("the end of the pattern");
    }

  private:
    bool error(const char* what, Code code = Code::bad_argument) {
        status = fail(code, "pattern ", quote(text_, 60), ": expected ", what, ", found ",
                      at_ < text_.size() ? quote(text_.substr(at_, 6)) : std::string("the end"), " at byte ", at_);
        return false;
    }
    bool unsupported(const char* what) {
        status = fail(Code::unsupported, "pattern ", quote(text_, 60), ": ", what, " at byte ", at_,
                      " is not supported; write the pattern without it");
        return false;
    }
    bool have(char c) const { return at_ < text_.size() && text_[at_] == c; }
    bool take(char c) {
        if (!have(c)) return false;
        ++at_;
        return true;
    }
    bool take(std::string_view s) {
        if (text_.substr(at_, s.size()) != s) return false;
        at_ += s.size();
        return true;
    }
    uint32_t add(RegexNode node) {
        for (const uint32_t p : node.parts) node.anchored = node.anchored || nodes[p].anchored;
        nodes.push_back(std::move(node));
        return static_cast<uint32_t>(nodes.size() - 1);
    }
    uint32_t next_char() {
        size_t n = 0;
        const uint32_t c = decode_utf8(text_.data() + at_, text_.size() - at_, &n);
        at_ += n;
        return c;
    }

    bool alternatives(uint32_t& out, size_t depth) {
        if (depth > kMaxGrammarDepth) return error("groups nested at most 100 deep");
        RegexNode choice;
        choice.kind = NodeKind::choice;
        do {
            RegexNode sequence;
            while (at_ < text_.size() && !have('|') && !have(')')) {
                uint32_t part = 0;
                if (!element(part, depth)) return false;
                sequence.parts.push_back(part);
            }
            choice.parts.push_back(add(std::move(sequence)));
        } while (take('|'));
        out = choice.parts.size() == 1 ? choice.parts[0] : add(std::move(choice));
        return true;
    }

    bool element(uint32_t& out, size_t depth) {
        if (have('^') || have('$')) {
            RegexNode anchor;
            anchor.kind = have('^') ? NodeKind::begin : NodeKind::end;
            anchor.anchored = true;
            ++at_;
            out = add(std::move(anchor));
            return true;
        }
        if (at_repetition()) return error("something to repeat");
        if (take('(')) {
            if (take("?<")) {
                if (have('=') || have('!')) return unsupported("look-behind");
                while (at_ < text_.size() && !have('>')) ++at_;
                if (!take('>')) return error("'>'");
            } else if (have('?') && !take("?:")) {
                return unsupported(text_.substr(at_, 2) == "?=" || text_.substr(at_, 2) == "?!" ? "look-ahead"
                                                                                                : "a group with flags");
            }
            if (!alternatives(out, depth + 1)) return false;
            if (!take(')')) return error("')'");
        } else {
            RegexNode node;
            node.kind = NodeKind::set;
            if (take('[')) {
                if (!bracket(node.set)) return false;
            } else if (take('.')) {
                node.set = line_chars();
            } else if (have('\\')) {
                bool single = false;
                if (!escape(node.set, single, false)) return false;
            } else {
                node.set.add(next_char());
            }
            node.set.normalize();
            out = add(std::move(node));
        }
        return repetition(out);
    }

    bool repetition(uint32_t& out) {
        RegexNode node;
        node.kind = NodeKind::repeat;
        node.hi = kUnbounded;
        if (take('*')) {
        } else if (take('+')) {
            node.lo = 1;
        } else if (take('?')) {
            node.hi = 1;
        } else if (!have('{') || !counts(node.lo, node.hi)) {
            return status.ok();
        }
        take('?');  // lazy: the same texts
        if (at_repetition()) return error("no second repetition");
        node.parts.push_back(out);
        out = add(std::move(node));
        return true;
    }

    bool at_repetition() {
        const size_t begin = at_;
        uint32_t lo = 0, hi = 0;
        const bool counted = have('{') && (counts(lo, hi) || !status.ok());
        at_ = begin;
        return counted || have('*') || have('+') || have('?');
    }

    /// {m}, {m,} or {m,n}. Without a number it is a brace as any character.
    bool counts(uint32_t& lo, uint32_t& hi) {
        const size_t begin = at_++;
        const auto number = [this](uint32_t& n) {
            const size_t from = at_;
            for (n = 0; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
                if (n <= kMaxRepeat) n = n * 10 + static_cast<uint32_t>(text_[at_] - '0');
            return at_ > from;
        };
        bool good = number(lo);
        hi = lo;
        if (good && take(',') && !number(hi)) hi = kUnbounded;
        good = good && take('}');
        if (!good) {
            at_ = begin;
            return false;
        }
        if (lo > kMaxRepeat || (hi != kUnbounded && hi > kMaxRepeat)) return error("at most 1000000 repetitions");
        return hi >= lo || error("a count that is not below the first one");
    }

    bool hex(size_t n, uint32_t& c) { return read_hex(text_, &at_, n, &c) || error("a hexadecimal digit"); }

    bool property(CharSet& set, bool negated) {
        if (!take('{')) return error("'{'");
        const size_t end = text_.find('}', at_);
        if (end == std::string_view::npos) return error("'}'");
        const std::string_view name = text_.substr(at_, end - at_);
        if (name == "L" || name == "Letter")
            set = class_set(CharClass::letter);
        else if (name == "N" || name == "Number")
            set = class_set(CharClass::number);
        else if (name == "M" || name == "Mark")
            set = class_set(CharClass::mark);
        else if (name == "P" || name == "Punctuation")
            set = class_set(CharClass::punctuation);
        else if (name == "S" || name == "Symbol")
            set = class_set(CharClass::symbol);
        else
            return unsupported("a property other than L, N, M, P and S");
        at_ = end + 1;
        if (negated) set = set.complement();
        return true;
    }

    static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
    /// After a backslash, in a class or outside. single: one character.
    bool escape(CharSet& set, bool& single, bool in_class) {
        ++at_;
        if (at_ == text_.size()) return error("a character after the backslash");
        const char c = text_[at_];
        single = false;
        if (c == 'd' || c == 'w' || c == 's') {
            ++at_;
            set = named_set(c);
            return true;
        }
        if (c == 'D' || c == 'W' || c == 'S') {
            ++at_;
            set = named_set(static_cast<char>(c - 'A' + 'a')).complement();
            return true;
        }
        if (c == 'p' || c == 'P') {
            ++at_;
            return property(set, c == 'P');
        }
        single = true;
        if ((c == 'b' && !in_class) || c == 'B') return unsupported("a word boundary");
        if ((c >= '1' && c <= '9') || c == 'k') return unsupported("a back reference");
        if (c == '0' && at_ + 1 < text_.size() && text_[at_ + 1] >= '0' && text_[at_ + 1] <= '9')
            return unsupported("an octal escape");
        uint32_t code = 0;
        const size_t found = std::string_view("0tnvfrb").find(c);
        if (found != std::string_view::npos) {
            ++at_;
            code = found == 0 ? 0u : static_cast<uint32_t>("\t\n\v\f\r\b"[found - 1]);
        } else if (c == 'x') {
            ++at_;
            if (!hex(2, code)) return false;
        } else if (c == 'u') {
            ++at_;
            if (!code_unit(code)) return false;
        } else if (c == 'c' && at_ + 1 < text_.size() && is_letter(text_[at_ + 1])) {
            code = static_cast<uint32_t>(text_[at_ + 1]) & 31;
            at_ += 2;
        } else if (is_letter(c)) {
            return unsupported("this escape");
        } else {
            code = next_char();
        }
        set.add(code);
        return true;
    }

    bool code_unit(uint32_t& code) {
        if (take('{')) {
            const size_t end = text_.find('}', at_);
            if (end == std::string_view::npos || end == at_ || end - at_ > 6) return error("a code point and '}'");
            return hex(end - at_, code) && take('}') && (code <= 0x10FFFF || error("a code point"));
        }
        if (!hex(4, code)) return false;
        // Two halves of a pair are one character; half of one matches nothing.
        const size_t after = at_;
        uint32_t low = 0;
        if (code >= 0xD800 && code <= 0xDBFF && take("\\u") && hex(4, low) && low >= 0xDC00 && low <= 0xDFFF) {
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
            return true;
        }
        at_ = after;
        status = Status();
        return true;
    }

    bool bracket(CharSet& set) {
        const bool negated = take('^');
        while (!have(']')) {
            if (at_ == text_.size()) return error("']'");
            CharSet first, last;
            bool single = true, single_last = true;
            const auto item = [this](CharSet& to, bool& one) {
                if (have('\\')) return escape(to, one, true);
                one = true;
                to.add(next_char());
                return true;
            };
            if (!item(first, single)) return false;
            // A dash beside a class such as \w is a dash.
            if (!single || !have('-') || at_ + 1 >= text_.size() || text_[at_ + 1] == ']') {
                set.add(first);
                continue;
            }
            ++at_;
            if (at_ == text_.size()) return error("']'");
            if (!item(last, single_last)) return false;
            if (!single_last) {
                first.add('-');
                first.add(last);
                set.add(first);
                continue;
            }
            if (last.ranges[0].first < first.ranges[0].first) return error("a range in ascending order");
            set.add(first.ranges[0].first, last.ranges[0].first);
        }
        ++at_;
        set.normalize();
        if (negated) set = set.complement();
        return true;
    }

    std::string_view text_;
    size_t at_ = 0;
};

/// Turns the parsed pattern into expressions.
class RegexWriter {
  public:
    RegexWriter(ExprPool& pool, const std::vector<RegexNode>& nodes, Writing writing)
        : pool_(pool), nodes_(nodes), writing_(writing) {}
    enum class Refusal : uint8_t { none, misplaced, too_many };
    Refusal refusal = Refusal::none;  ///< of anchors
    static constexpr size_t kMaxSequences = 1000;

    ExprId plain(uint32_t i) {
        const RegexNode& n = nodes_[i];
        std::vector<ExprId> parts;
        switch (n.kind) {
            case NodeKind::set: return write_set(pool_, n.set, writing_);
            case NodeKind::concat: return joined(n.parts, 0, n.parts.size());
            case NodeKind::choice:
                for (const uint32_t p : n.parts) parts.push_back(plain(p));
                return pool_.choice(std::move(parts));
            case NodeKind::repeat: return pool_.repeat(plain(n.parts[0]), n.lo, n.hi);
            default: refusal = Refusal::misplaced; return kNoMatch;
        }
    }

    /// Some part of a text, or all of it, with anchors at the ends. `gap` is what may stand before and after.
    ExprId search(std::vector<uint32_t> sequence, ExprId gap) {
        if (refusal == Refusal::none && ++n_sequence_ > kMaxSequences) refusal = Refusal::too_many;
        if (refusal != Refusal::none) return kNoMatch;
        for (const bool front : {true, false}) {
            // A group at an end that holds an anchor is divided into its alternatives.
            if (sequence.empty()) break;
            const uint32_t edge = front ? sequence.front() : sequence.back();
            const RegexNode& n = nodes_[edge];
            if (!n.anchored || (n.kind != NodeKind::choice && n.kind != NodeKind::concat)) continue;
            sequence.erase(front ? sequence.begin() : sequence.end() - 1);
            std::vector<std::vector<uint32_t>> ways;
            if (n.kind == NodeKind::choice)
                for (const uint32_t p : n.parts) ways.push_back({p});
            else
                ways.push_back(n.parts);
            std::vector<ExprId> found;
            for (const std::vector<uint32_t>& way : ways) {
                std::vector<uint32_t> whole = sequence;
                whole.insert(front ? whole.begin() : whole.end(), way.begin(), way.end());
                found.push_back(search(std::move(whole), gap));
            }
            return pool_.choice(std::move(found));
        }
        size_t first = 0, last = sequence.size();
        while (first < last && nodes_[sequence[first]].kind == NodeKind::begin) ++first;
        while (last > first && nodes_[sequence[last - 1]].kind == NodeKind::end) --last;
        const bool from_begin = first > 0, to_end = last < sequence.size();
        // Between both anchors there may be a group with anchors of its own, which are redundant there.
        if (from_begin && to_end && first < last &&
            (nodes_[sequence[first]].anchored || nodes_[sequence[last - 1]].anchored))
            return search(std::vector<uint32_t>(sequence.begin() + static_cast<std::ptrdiff_t>(first),
                                                sequence.begin() + static_cast<std::ptrdiff_t>(last)),
                          kEmptyText);
        const ExprId body = joined(sequence, first, last);
        return pool_.concat({from_begin ? kEmptyText : gap, body, to_end ? kEmptyText : gap});
    }

  private:
    ExprId joined(const std::vector<uint32_t>& parts, size_t first, size_t last) {
        ExprId e = kEmptyText;
        while (last > first) {
            // Neighbouring single characters become one text.
            std::string text;
            size_t run = last;
            while (run > first && is_char(parts[run - 1])) --run;
            if (last - run > 1) {
                for (size_t i = run; i < last; ++i) append_utf8(text, nodes_[parts[i]].set.ranges[0].first);
                e = pool_.concat(pool_.text(write_text(text, writing_)), e);
                last = run;
            } else {
                e = pool_.concat(plain(parts[--last]), e);
            }
        }
        return e;
    }
    bool is_char(uint32_t i) const {
        const RegexNode& n = nodes_[i];
        return n.kind == NodeKind::set && n.set.ranges.size() == 1 && n.set.ranges[0].first == n.set.ranges[0].last;
    }

    ExprPool& pool_;
    const std::vector<RegexNode>& nodes_;
    Writing writing_;
    size_t n_sequence_ = 0;  ///< calls of search() so far
};

}  // namespace regex_impl

Result<ExprId> compile_regex(ExprPool& pool, std::string_view pattern, Extent extent, Writing writing) {
    regex_impl::RegexReader reader(pattern);
    uint32_t root = 0;
    if (!reader.read(root)) return reader.status;
    regex_impl::RegexWriter writer(pool, reader.nodes, writing);
    const ExprId gap =
        extent == Extent::whole ? kEmptyText : pool.repeat(write_set(pool, CharSet::all(), writing), 0, kUnbounded);
    const ExprId e = writer.search({root}, gap);
    using Refusal = regex_impl::RegexWriter::Refusal;
    if (writer.refusal == Refusal::too_many)
        return fail(Code::unsupported, "pattern ", quote(pattern, 60), ": its alternatives with ^ or $ make more than ",
                    regex_impl::RegexWriter::kMaxSequences,
                    " sequences; write the anchors outside the group, as in ^(a|b)$");
    if (writer.refusal == Refusal::misplaced)
        return fail(Code::unsupported, "pattern ", quote(pattern, 60),
                    ": ^ and $ are supported at the ends of the pattern and of its alternatives only");
    return e;
}

Result<std::shared_ptr<const Rules>> rules_from_regex(std::string_view pattern) {
    auto rules = std::make_shared<Rules>();
    rules->start = rules->add_rule("pattern");
    AUSPEX_TRY(compile_regex(rules->pool, pattern, Extent::whole, Writing::plain).get(rules->body[0]));
    AUSPEX_TRY(rules->finish());
    return std::shared_ptr<const Rules>(rules);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

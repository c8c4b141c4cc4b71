// grammar/gbnf: the front end for GBNF, declared in grammar/regex.h.
#include "regex.h"

#include "../base/unicode.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace gbnf_impl {

constexpr uint32_t kMaxInlineCost = 2000, kMaxInlineDepth = 60;

class GbnfReader {
  public:
    GbnfReader(std::string_view text, Rules& rules) : text_(text), rules_(rules) {}

    Status read() {
        if (text_.size() > kMaxGrammarBytes)
            return fail(Code::unsupported, "a grammar of ", text_.size(), " bytes, at most ", kMaxGrammarBytes,
                        " are read");
        at_ = find_bad_utf8(text_);
        if (at_ < text_.size()) return error("UTF-8"), status_;
        at_ = 0;
        space(true);
        while (at_ < text_.size())
            if (!rule()) return status_;
        for (size_t r = 0; r < rules_.body.size(); ++r)
            if (defined_[r] == 0)
                return fail(Code::bad_argument, "line ", line_at(used_[r]), ": the rule ", quote(rules_.name[r], 60),
                            " is used and never defined");
        const auto root = index_.find("root");
        if (root == index_.end())
            return fail(Code::bad_argument, "the grammar has no rule 'root'; the text begins there");
        rules_.start = static_cast<uint32_t>(root->second);
        return {};
    }

  private:
    size_t line_at(size_t at) const {
        return 1 +
               static_cast<size_t>(std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    }
    bool error(const char* what, Code code = Code::bad_argument) {
        status_ = fail(code, "line ", line_at(at_), ": expected ", what, ", found ",
                       at_ < text_.size() ? quote(text_.substr(at_, 12)) : std::string("the end"));
        return false;
    }
    bool have(char c) const { return at_ < text_.size() && text_[at_] == c; }
    bool take(std::string_view s) {
        if (text_.substr(at_, s.size()) != s) return false;
        at_ += s.size();
        return true;
    }
    void space(bool lines) {
        for (; at_ < text_.size(); ++at_) {
            const char c = text_[at_];
            if (c == '#') {
                while (at_ < text_.size() && text_[at_] != '\n') ++at_;
                if (!lines || at_ == text_.size()) return;
            } else if (!(c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r')))) {
                return;
            }
        }
    }
    static bool is_name(char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    }
    std::string take_name() {
        const size_t from = at_;
        while (at_ < text_.size() && is_name(text_[at_])) ++at_;
        return std::string(text_.substr(from, at_ - from));
    }
    uint32_t rule_index(const std::string& name) {
        const auto found = index_.find(name);
        if (found != index_.end()) return static_cast<uint32_t>(found->second);
        const uint32_t r = rules_.add_rule(name);
        index_.emplace(name, r);
        defined_.push_back(0);
        used_.push_back(at_);
        return r;
    }

    bool rule() {
        const size_t begin = at_;
        const std::string name = take_name();
        if (name.empty()) return error("the name of a rule");
        space(false);
        if (!take("::=")) return error("'::='");
        const uint32_t r = rule_index(name);
        if (defined_[r] != 0) {
            status_ = fail(Code::bad_argument, "line ", line_at(begin), ": the rule ", quote(name, 60),
                           " is defined on line ", line_at(defined_[r] - 1), " already");
            return false;
        }
        defined_[r] = begin + 1;
        space(true);
        ExprId body = kNoMatch;
        if (!alternatives(body, 0)) return false;
        rules_.body[r] = body;
        if (at_ < text_.size() && !have('\n') && !have('\r')) return error("the end of the line");
        space(true);
        return true;
    }

    bool alternatives(ExprId& out, size_t depth) {
        if (depth > kMaxGrammarDepth) return error("groups nested at most 100 deep");
        std::vector<ExprId> ways;
        do {
            space(true);
            std::vector<ExprId> parts;
            while (at_ < text_.size() && !have('|') && !have(')') && !have('\n') && !have('\r')) {
                ExprId part = kNoMatch;
                if (!element(part, depth, parts.empty())) return false;
                parts.push_back(part);
                space(depth > 0);
            }
            ways.push_back(rules_.pool.concat(parts));
        } while (take("|"));
        out = rules_.pool.choice(std::move(ways));
        return true;
    }

    /// `first`: of its alternative.
    bool element(ExprId& out, size_t depth, bool first) {
        ExprPool& pool = rules_.pool;
        if (take("\"")) {
            std::string text;
            while (!take("\"")) {
                uint32_t c = 0;
                if (at_ == text_.size() || have('\n')) return error("'\"'");
                if (!character(c)) return false;
                append_utf8(text, c);
            }
            out = pool.text(text);
        } else if (take("[")) {
            if (!char_class(out)) return false;
        } else if (take(".")) {
            out = write_set(pool, CharSet::all(), Writing::plain);
        } else if (take("(")) {
            space(true);
            if (!alternatives(out, depth + 1)) return false;
            if (!take(")")) return error("')'");
        } else if (have('<') || (have('!') && at_ + 1 < text_.size() && text_[at_ + 1] == '<')) {
            if (!terminal(out)) return false;
        } else if (at_ < text_.size() && is_name(text_[at_])) {
            const size_t begin = at_;
            const std::string name = take_name();
            const size_t after = at_;
            space(false);
            if (take("::=")) {
                at_ = begin;
                return error(depth > 0 ? "')' before the next rule"
                             : first   ? "the body of a rule or an alternative (\"\" is the empty text)"
                                       : "a line break before the next rule");
            }
            at_ = after;
            out = pool.rule(rule_index(name));
        } else {
            return error("a rule, a literal, a class or a group");
        }
        return repetition(out, depth > 0);
    }

    /// `lines`: within parentheses, where a line break is a space.
    bool repetition(ExprId& out, bool lines) {
        ExprPool& pool = rules_.pool;
        for (size_t n = 0;; ++n) {
            const size_t begin = at_;
            if (n > 8) return error("fewer repetitions of one element");
            space(lines);
            if (take("*")) {
                out = pool.repeat(out, 0, kUnbounded);
            } else if (take("+")) {
                out = pool.repeat(out, 1, kUnbounded);
            } else if (take("?")) {
                out = pool.optional(out);
            } else if (take("{")) {
                uint32_t lo = 0, hi = 0;
                space(lines);
                if (!number(lo)) return false;
                hi = lo;
                space(lines);
                if (take(",")) {
                    space(lines);
                    if (have('}'))
                        hi = kUnbounded;
                    else if (!number(hi))
                        return false;
                }
                space(lines);
                if (hi < lo) return error("a count that is not below the first one");
                if (!take("}")) return error("'}'");
                out = pool.repeat(out, lo, hi);
            } else {
                at_ = begin;
                return true;
            }
        }
    }

    bool number(uint32_t& n) {
        const size_t from = at_;
        for (n = 0; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
            n = n * 10 + static_cast<uint32_t>(text_[at_] - '0');
            if (n > kMaxRepeat) return error("at most 1000000 repetitions");
        }
        return at_ > from || error("a number");
    }

    bool hex(size_t n, uint32_t& c) {
        if (!read_hex(text_, &at_, n, &c)) return error("a hexadecimal digit");
        if (c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF)) return true;
        return error("a code point that is no surrogate");
    }

    bool character(uint32_t& c) {
        if (take("\\")) {
            if (at_ == text_.size()) return error("a character after the backslash");
            const char e = text_[at_++];
            switch (e) {
                case 'n': c = '\n'; return true;
                case 'r': c = '\r'; return true;
                case 't': c = '\t'; return true;
                case 'x': return hex(2, c);
                case 'u': return hex(4, c);
                case 'U': return hex(8, c);
                default: break;
            }
            if ((is_name(e) && e != '-') || static_cast<unsigned char>(e) >= 0x80) {
                --at_;
                return error("one of n r t x u U or a sign after the backslash");
            }
            c = static_cast<unsigned char>(e);
            return true;
        }
        size_t n = 0;
        c = decode_utf8(text_.data() + at_, text_.size() - at_, &n);
        at_ += n;
        return true;
    }

    bool char_class(ExprId& out) {
        CharSet set;
        const bool negated = take("^");
        while (!take("]")) {
            uint32_t first = 0, last = 0;
            if (at_ == text_.size() || have('\n')) return error("']'");
            if (!character(first)) return false;
            last = first;
            if (have('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
                ++at_;
                if (!character(last)) return false;
                if (last < first) return error("a range in ascending order");
            }
            set.add(first, last);
        }
        set.normalize();
        if (negated) set = set.complement();
        out = write_set(rules_.pool, set, Writing::plain);
        if (out == kNoMatch) return error("a class of at least one character before this");
        return true;
    }

    bool terminal(ExprId& out) {
        TokenTerminal t;
        t.negated = take("!");
        ++at_;
        if (take("[")) {
            uint32_t id = 0;
            const size_t from = at_;
            for (; at_ < text_.size() && at_ - from < 9 && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
                id = id * 10 + static_cast<uint32_t>(text_[at_] - '0');
            if (at_ == from) return error("the id of a token");
            t.id = static_cast<Token>(id);
            if (!take("]>")) return error("']>'");
        } else {
            const size_t end = text_.find_first_of(">\n", at_);
            if (end == std::string_view::npos || text_[end] != '>' || end == at_)
                return error("a token's name and '>'");
            // The name is written with its angle brackets, as the vocabulary has it.
            t.name = "<" + std::string(text_.substr(at_, end + 1 - at_));
            at_ = end + 1;
        }
        uint32_t i = 0;
        for (; i < rules_.terminals.size(); ++i) {
            const TokenTerminal& o = rules_.terminals[i];
            if (o.name == t.name && o.id == t.id && o.negated == t.negated) break;
        }
        if (i > 1000) return error("at most 1000 different tokens", Code::unsupported);
        if (i == rules_.terminals.size()) rules_.terminals.push_back(t);
        out = rules_.pool.token(i);
        return true;
    }

    std::string_view text_;
    Rules& rules_;
    size_t at_ = 0;
    Status status_;
    std::map<std::string, size_t> index_;
    std::vector<size_t> defined_, used_;  ///< of each rule: the byte of its definition + 1, and of its first use
};

/// Puts small rules that call no rule in a cycle into the places where they are used, so that they are matched as
/// regular expressions.
class Inliner {
  public:
    explicit Inliner(Rules& rules) : rules_(rules), inlined_(rules.body.size(), kNoMatch) {}
    void run() {
        grammar_impl::PostOrder walk(rules_);
        walk.walk(rules_.start);
        for (const uint32_t r : walk.order) {
            rules_.body[r] = replace(rules_.body[r]);
            const Size size = size_of(rules_.body[r]);
            if (rules_.pool[rules_.body[r]].regular && size.cost <= kMaxInlineCost && size.depth <= kMaxInlineDepth)
                inlined_[r] = rules_.body[r];
        }
    }

  private:
    struct Size {
        uint32_t cost = 1, depth = 1;
    };
    ExprId replace(ExprId e) {
        ExprPool& pool = rules_.pool;
        const ExprNode n = pool[e];
        if (n.regular) return e;
        std::vector<ExprId> parts;
        switch (n.kind) {
            case ExprKind::rule: return inlined_[n.a] != kNoMatch ? inlined_[n.a] : e;
            case ExprKind::repeat: return pool.repeat(replace(n.a), n.lo, n.hi);
            case ExprKind::choice:
                for (uint32_t i = 0; i < n.b; ++i) parts.push_back(replace(pool.parts(e)[i]));
                return pool.choice(std::move(parts));
            case ExprKind::concat: {
                for (; pool[e].kind == ExprKind::concat; e = pool[e].b) parts.push_back(pool[e].a);
                ExprId out = replace(e);
                for (; !parts.empty(); parts.pop_back()) out = pool.concat(replace(parts.back()), out);
                return out;
            }
            default: return e;
        }
    }
    Size size_of(ExprId e) {
        const ExprPool& pool = rules_.pool;
        const auto known = sizes_.find(e);
        if (known != sizes_.end()) return known->second;
        Size size;
        const auto add = [&](ExprId part) {
            const Size s = size_of(part);
            size.cost = std::min(size.cost + s.cost, 1000000u);
            size.depth = std::max(size.depth, s.depth + 1);
        };
        const ExprNode& n = pool[e];
        if (n.kind == ExprKind::concat) {
            ExprId rest = e;
            for (; pool[rest].kind == ExprKind::concat; rest = pool[rest].b) add(pool[rest].a);
            add(rest);
        } else if (n.kind == ExprKind::choice) {
            for (const ExprId p : pool.parts(e)) add(p);
        } else if (n.kind == ExprKind::repeat) {
            add(n.a);
        }
        sizes_.emplace(e, size);
        return size;
    }

    Rules& rules_;
    std::vector<ExprId> inlined_;
    std::unordered_map<ExprId, Size> sizes_;
};

}  // namespace gbnf_impl

Result<std::shared_ptr<const Rules>> rules_from_gbnf(std::string_view text) {
    auto rules = std::make_shared<Rules>();
    AUSPEX_TRY(gbnf_impl::GbnfReader(text, *rules).read());
    gbnf_impl::Inliner(*rules).run();
    AUSPEX_TRY(rules->finish());
    return std::shared_ptr<const Rules>(rules);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

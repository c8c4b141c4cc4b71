#include "jinja.h"
#include "jinja_value.h"

#include <algorithm>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace jinja {
namespace parse_impl {

constexpr uint32_t kMaxDepth = 200, kMaxNodes = 200000;

struct Comparison {
    const char* name;
    Binary value;
};
constexpr Comparison kComparisons[] = {
    {"==", Binary::equal},  {"!=", Binary::not_equal},     {"<", Binary::less}, {"<=", Binary::less_equal},
    {">", Binary::greater}, {">=", Binary::greater_equal}, {"in", Binary::in}};
/// Operators by how strongly they bind, the weakest first.
constexpr int kSumLevel = 0, kProductLevel = 2, kPowerLevel = 3;
struct Operator {
    const char* name;
    int level;
    Binary value;
};
constexpr Operator kOperators[] = {{"+", kSumLevel, Binary::add},
                                   {"-", kSumLevel, Binary::subtract},
                                   {"~", 1, Binary::concat},
                                   {"*", kProductLevel, Binary::multiply},
                                   {"/", kProductLevel, Binary::divide},
                                   {"//", kProductLevel, Binary::floor_divide},
                                   {"%", kProductLevel, Binary::modulo},
                                   {"**", kPowerLevel, Binary::power}};

class Parser {
  public:
    explicit Parser(std::vector<Lexeme> lexemes) : lexemes_(std::move(lexemes)) {
        program_.nodes.emplace_back();
        depth_.push_back(0);
    }
    Result<Program> run() {
        program_.body = body({});
        if (!status_.ok()) return std::move(status_);
        return std::move(program_);
    }

  private:
    using Kind = Lexeme::Kind;
    const Lexeme& peek(size_t ahead = 0) const { return lexemes_[std::min(at_ + ahead, lexemes_.size() - 1)]; }
    AUSPEX_NOINLINE bool is(Kind kind, std::string_view text, size_t ahead = 0) const {
        return peek(ahead).kind == kind && peek(ahead).text == text;
    }
    bool is_symbol(std::string_view text) const { return is(Kind::symbol, text); }
    bool is_word(std::string_view text) const { return is(Kind::name, text); }
    AUSPEX_NOINLINE bool take(Kind kind, std::string_view text) {
        if (!is(kind, text)) return false;
        ++at_;
        return true;
    }
    bool take_symbol(std::string_view text) { return take(Kind::symbol, text); }
    bool take_word(std::string_view text) { return take(Kind::name, text); }

    bool failed() const { return !status_.ok(); }
    template <class... A>
    uint32_t wrong(Code code, const A&... parts) {
        const Part list[] = {parts...};
        return wrong_parts(code, list, sizeof...(parts));
    }
    AUSPEX_NOINLINE uint32_t wrong_parts(Code code, const Part* parts, size_t n) {
        if (!failed()) status_ = fail(code, "the chat template, line ", peek().line, ": ", say_parts(parts, n));
        return 0;
    }
    uint32_t expected(const char* what) {
        const Lexeme& l = peek();
        static const char* const kEnds[] = {
            "text", "", "", "", "", "", "{%", "%}", "{{", "}}", "the end of the template"};
        const char* end = kEnds[static_cast<size_t>(l.kind)];
        return wrong(Code::bad_argument, "expected ", what, ", found ",
                     *end != '\0' ? std::string(end) : quote(l.text));
    }
    void need_symbol(const char* text) {
        if (!take_symbol(text)) expected(text);
    }
    void need_end_block() {
        if (!take(Kind::end_block, "")) expected("%}");
    }
    std::string need_name() {
        if (peek().kind != Kind::name) {
            expected("a name");
            return {};
        }
        return lexemes_[at_++].text;
    }

    AUSPEX_NOINLINE Node make(Op op) const {
        Node n;
        n.op = op;
        n.line = peek().line;
        return n;
    }
    /// Stores a node. Its parts exist already, so that the depth of the tree is known.
    uint32_t add(Node&& node) {
        uint32_t depth = std::max({depth_[node.a], depth_[node.b], depth_[node.c]});
        for (const uint32_t part : node.parts) depth = std::max(depth, depth_[part]);
        if (depth >= kMaxDepth) return wrong(Code::unsupported, "nests more than ", kMaxDepth, " levels deep");
        if (program_.nodes.size() >= kMaxNodes) return wrong(Code::unsupported, "more than ", kMaxNodes, " parts");
        program_.nodes.push_back(std::move(node));
        depth_.push_back(depth + 1);
        return static_cast<uint32_t>(program_.nodes.size() - 1);
    }
    uint32_t add(Op op, uint32_t a, uint32_t b = 0, uint32_t c = 0) {
        Node n = make(op);
        n.a = a;
        n.b = b;
        n.c = c;
        return add(std::move(n));
    }
    /// Counts a level of nested source text, before its parts exist.
    struct Level {
        explicit Level(Parser& p) : parser(p) {
            if (++p.level_ > kMaxDepth) p.wrong(Code::unsupported, "nests more than ", kMaxDepth, " levels deep");
        }
        ~Level() { --parser.level_; }
        Level(const Level&) = delete;
        Level& operator=(const Level&) = delete;
        Parser& parser;
    };

    // ------------------------------------------------------------------------------ statements

    /// Everything up to a block with one of these names, which stays.
    uint32_t body(std::initializer_list<std::string_view> ends) {
        const Level level(*this);
        Node n = make(Op::body);
        while (!failed()) {
            const Lexeme& l = peek();
            if (l.kind == Kind::end) {
                if (ends.size() > 0) expected(("{% " + std::string(*(ends.end() - 1)) + " %}").c_str());
                break;
            }
            if (l.kind == Kind::text) {
                Node text = make(Op::text);
                text.text = l.text;
                ++at_;
                n.parts.push_back(add(std::move(text)));
            } else if (l.kind == Kind::begin_print) {
                ++at_;
                n.parts.push_back(add(Op::print, tuple()));
                if (!take(Kind::end_print, "")) expected("}}");
            } else {
                if (std::find(ends.begin(), ends.end(), std::string_view(peek(1).text)) != ends.end()) break;
                ++at_;
                n.parts.push_back(statement());
            }
        }
        return add(std::move(n));
    }

    uint32_t statement() {
        const std::string name = need_name();
        if (name == "if") return if_statement();
        if (name == "for") return for_statement();
        if (name == "set") return set_statement();
        if (name == "macro") return macro_statement();
        if (name == "generation") return scope_statement(make(Op::scope), "endgeneration");
        if (name == "with") return with_statement();
        if (name == "filter") return filter_statement();
        if (name == "call") return call_statement();
        if ((name == "break" || name == "continue") && n_loop_ > 0) {
            need_end_block();
            return add(name == "break" ? Op::break_ : Op::continue_, 0);
        }
        return wrong(Code::unsupported, "{% ", quote(name), " %} is not supported here");
    }
    /// The block that body() stopped at.
    void end_of(const char* name) {
        if (!take(Kind::begin_block, "") || !take_word(name)) expected(name);
        need_end_block();
    }

    uint32_t if_statement() {
        Node n = make(Op::if_);
        do {
            n.parts.push_back(expression());
            need_end_block();
            n.parts.push_back(body({"elif", "else", "endif"}));
            if (!failed()) ++at_;  // {%
        } while (!failed() && take_word("elif"));
        if (take_word("else")) {
            need_end_block();
            n.b = body({"endif"});
            if (!failed()) ++at_;
        }
        if (!take_word("endif")) expected("endif");
        need_end_block();
        return add(std::move(n));
    }

    /// The rest of a block whose variables are its own.
    uint32_t scope_statement(Node n, const char* end) {
        need_end_block();
        n.a = body({end});
        end_of(end);
        return add(std::move(n));
    }
    uint32_t with_statement() {
        Node n = make(Op::scope);
        while (!failed() && peek().kind != Kind::end_block) {
            n.names.push_back(need_name());
            need_symbol("=");
            n.parts.push_back(expression());
            if (!take_symbol(",")) break;
        }
        return scope_statement(std::move(n), "endwith");
    }
    /// What the rest of a block prints, as a value.
    uint32_t block(const char* end) { return add(Op::block, scope_statement(make(Op::scope), end)); }
    /// {% filter a | b %} and {% set name | a | b %}: the filters stand before the block that they apply to.
    uint32_t filtered_block(const char* end) {
        const size_t from = at_;
        while (!failed() && peek().kind != Kind::end_block && peek().kind != Kind::end) ++at_;
        // break and continue would leave the block without a value, while its filters still wait for one.
        const uint32_t n_loop = std::exchange(n_loop_, 0u), inner = block(end);
        n_loop_ = n_loop;
        const size_t to = std::exchange(at_, from);
        const uint32_t value = filtered(inner);
        if (!failed() && peek().kind != Kind::end_block) return expected("%}");
        at_ = to;
        return value;
    }
    uint32_t filter_statement() {
        // As if the first filter, too, stood behind a |.
        lexemes_[--at_].kind = Kind::symbol;
        lexemes_[at_].text = "|";
        return add(Op::print, filtered_block("endfilter"));
    }
    uint32_t call_statement() {
        Node n = make(Op::macro);
        n.text = "caller";
        if (is_symbol("(")) parameters(n);
        const uint32_t call = postfix(primary());
        if (!failed() && program_.nodes[call].op != Op::call) return expected("a call");
        return add(Op::call_block, macro_body(std::move(n), "endcall"), call);
    }

    void targets(Node& n) {
        const bool inside = take_symbol("(");
        do n.names.push_back(need_name());
        while (!failed() && take_symbol(","));
        if (inside) need_symbol(")");
    }

    uint32_t for_statement() {
        Node n = make(Op::for_);
        targets(n);
        if (!take_word("in")) return expected("in");
        n.a = tuple(false);  // "if" belongs to the loop
        n.parts.push_back(take_word("if") ? expression() : 0);
        n.code = take_word("recursive") ? 1 : 0;
        need_end_block();
        ++n_loop_;
        n.b = body({"else", "endfor"});
        --n_loop_;
        if (!failed() && is(Kind::name, "else", 1)) {
            end_of("else");
            n.c = body({"endfor"});
        }
        end_of("endfor");
        return add(std::move(n));
    }

    uint32_t set_statement() {
        Node n = make(Op::set);
        targets(n);
        if (n.names.size() == 1 && take_symbol(".")) {
            n.op = Op::set_member;
            n.text = std::move(n.names[0]);
            n.names[0] = need_name();
        }
        if (take_symbol("=")) {
            n.a = tuple();
            need_end_block();
            return add(std::move(n));
        }
        if (n.names.size() != 1 || (!is_symbol("|") && peek().kind != Kind::end_block)) return expected("=");
        n.a = filtered_block("endset");
        return add(std::move(n));
    }

    uint32_t macro_statement() {
        Node n = make(Op::macro);
        n.text = need_name();
        parameters(n);
        return macro_body(std::move(n), "endmacro");
    }
    void parameters(Node& n) {
        need_symbol("(");
        while (!failed() && !is_symbol(")")) {
            n.names.push_back(need_name());
            n.parts.push_back(take_symbol("=") ? expression() : 0);
            if (!take_symbol(",")) break;
        }
        need_symbol(")");
    }
    uint32_t macro_body(Node n, const char* end) {
        need_end_block();
        const uint32_t n_loop = std::exchange(n_loop_, 0u);
        const uint8_t uses = std::exchange(macro_uses_, uint8_t{0});
        n.a = body({end});
        n.code = std::exchange(macro_uses_, uses);
        n_loop_ = n_loop;
        end_of(end);
        return add(std::move(n));
    }

    // ----------------------------------------------------------------------------- expressions

    /// One expression, or several with commas between them; `chooses`: "if" belongs to it.
    uint32_t tuple(bool chooses = true) {
        const uint32_t first = chooses ? expression() : or_expression();
        if (!is_symbol(",")) return first;
        Node n = make(Op::list);
        n.code = kTuple;
        n.parts.push_back(first);
        while (!failed() && take_symbol(",")) {
            if (is_symbol(")") || peek().kind == Kind::end_block || peek().kind == Kind::end_print) break;
            n.parts.push_back(chooses ? expression() : or_expression());
        }
        return add(std::move(n));
    }

    uint32_t expression() {
        const Level level(*this);
        if (failed()) return 0;
        uint32_t value = or_expression();
        while (!failed() && take_word("if")) {
            const uint32_t condition = or_expression();
            const uint32_t other = take_word("else") ? expression() : 0;
            value = add(Op::choose, value, condition, other);
        }
        return value;
    }
    uint32_t or_expression() {
        uint32_t left = and_expression();
        while (!failed() && take_word("or")) left = add(Op::or_, left, and_expression());
        return left;
    }
    uint32_t and_expression() {
        uint32_t left = not_expression();
        while (!failed() && take_word("and")) left = add(Op::and_, left, not_expression());
        return left;
    }
    uint32_t not_expression() {
        const Level level(*this);
        if (failed()) return 0;
        if (take_word("not")) return add(Op::not_, not_expression());
        return comparison();
    }

    bool take_comparison(Binary* to) {
        if (is_word("not") && is(Kind::name, "in", 1)) {
            at_ += 2;
            *to = Binary::not_in;
            return true;
        }
        if (peek().kind != Kind::symbol && !is_word("in")) return false;
        for (const Comparison& c : kComparisons)
            if (peek().text == c.name) {
                ++at_;
                *to = c.value;
                return true;
            }
        return false;
    }
    /// a < b < c is a < b and b < c.
    uint32_t comparison() {
        uint32_t left = operation(kSumLevel), result = 0;
        Binary code = Binary::equal;
        while (!failed() && take_comparison(&code)) {
            const uint32_t right = operation(kSumLevel), one = binary(code, left, right);
            result = result == 0 ? one : add(Op::and_, result, one);
            left = right;
        }
        return result == 0 ? left : result;
    }
    uint32_t binary(Binary code, uint32_t left, uint32_t right) {
        Node n = make(Op::binary);
        n.code = static_cast<uint8_t>(code);
        n.a = left;
        n.b = right;
        return add(std::move(n));
    }

    /// Operators of `level` and of those that bind more strongly.
    uint32_t operation(int level) {
        if (level > kPowerLevel) return unary(true);
        uint32_t left = operation(level + 1);
        while (!failed() && peek().kind == Kind::symbol) {
            const Operator* found = nullptr;
            for (const Operator& o : kOperators)
                if (o.level == level && peek().text == o.name) found = &o;
            if (found == nullptr) break;
            ++at_;
            left = binary(found->value, left, operation(level + 1));
        }
        return left;
    }

    uint32_t unary(bool filters) {
        const Level level(*this);
        if (failed()) return 0;
        uint32_t value = 0;
        if (take_symbol("-"))
            value = add(Op::negate, unary(false));
        else if (take_symbol("+"))
            value = unary(false);
        else
            value = primary();
        value = postfix(value);
        return filters ? filtered(value) : value;
    }

    uint32_t primary() {
        const Lexeme& l = peek();
        Node n = make(Op::none);
        switch (l.kind) {
            case Kind::name: return word();
            case Kind::integer:
            case Kind::real: return number();
            case Kind::string:
                n.op = Op::string;
                while (peek().kind == Kind::string) n.text += lexemes_[at_++].text;
                return add(std::move(n));
            case Kind::symbol:
                if (take_symbol("(")) return parenthesis();
                if (take_symbol("[")) return list();
                if (take_symbol("{")) return map();
                break;
            case Kind::text:
            case Kind::begin_block:
            case Kind::end_block:
            case Kind::begin_print:
            case Kind::end_print:
            case Kind::end: break;
        }
        return expected("a value");
    }

    uint32_t word() {
        Node n = make(Op::name);
        n.text = lexemes_[at_++].text;
        if (n.text == "true" || n.text == "True") n.op = Op::true_;
        if (n.text == "false" || n.text == "False") n.op = Op::false_;
        if (n.text == "none" || n.text == "None") n.op = Op::none;
        for (const auto& use : {std::make_pair("caller", kUsesCaller), std::make_pair("varargs", kUsesVarargs),
                                std::make_pair("kwargs", kUsesKwargs)})
            if (n.text == use.first) macro_uses_ |= use.second;
        for (const char* reserved : {"and", "else", "if", "in", "is", "not", "or"})
            if (n.text == reserved) {
                --at_;
                return expected("a value");
            }
        return add(std::move(n));
    }

    uint32_t number() {
        const Lexeme& l = lexemes_[at_++];
        Node n = make(l.kind == Kind::integer ? Op::integer : Op::real);
        n.text = l.text;
        if (n.op == Op::integer) {
            for (const char c : l.text) {
                const int64_t digit = c - '0';
                if (n.integer > (INT64_MAX - digit) / 10)
                    return wrong(Code::unsupported, "the number ", l.text, " is too large");
                n.integer = n.integer * 10 + digit;
            }
        }
        return add(std::move(n));
    }

    uint32_t parenthesis() {
        if (take_symbol(")")) {
            Node n = make(Op::list);
            n.code = kTuple;
            return add(std::move(n));
        }
        const uint32_t value = tuple();
        need_symbol(")");
        return value;
    }
    uint32_t list() {
        Node n = make(Op::list);
        while (!failed() && !is_symbol("]")) {
            n.parts.push_back(expression());
            if (!take_symbol(",")) break;
        }
        need_symbol("]");
        return add(std::move(n));
    }
    uint32_t map() {
        Node n = make(Op::map);
        while (!failed() && !is_symbol("}")) {
            n.parts.push_back(expression());
            need_symbol(":");
            n.parts.push_back(expression());
            if (!take_symbol(",")) break;
        }
        need_symbol("}");
        return add(std::move(n));
    }

    uint32_t postfix(uint32_t value) {
        while (!failed()) {
            if (take_symbol(".")) {
                Node n = make(Op::member);
                n.a = value;
                n.text = peek().text;
                if (peek().kind == Kind::integer) {
                    value = add(Op::item, value, number());
                    continue;
                }
                if (peek().kind != Kind::name) return expected("a name");
                ++at_;
                value = add(std::move(n));
            } else if (take_symbol("[")) {
                value = subscript(value);
            } else if (is_symbol("(")) {
                Node n = make(Op::call);
                n.a = value;
                arguments(n);
                value = add(std::move(n));
            } else {
                break;
            }
        }
        return value;
    }
    uint32_t subscript(uint32_t value) {
        Node n = make(Op::slice);
        n.a = value;
        uint32_t n_colon = 0;
        n.parts.assign(3, 0);
        while (!failed() && !is_symbol("]")) {
            if (take_symbol(":")) {
                if (++n_colon > 2) return expected("]");
            } else {
                n.parts[n_colon] = expression();
                if (!is_symbol(":")) break;
            }
        }
        need_symbol("]");
        if (n_colon > 0) return add(std::move(n));
        if (n.parts[0] == 0) return expected("an index");
        return add(Op::item, value, n.parts[0]);
    }

    /// (a, b, name=c) after a call, a filter or a test.
    void arguments(Node& n) {
        need_symbol("(");
        while (!failed() && !is_symbol(")")) {
            const bool named = peek().kind == Kind::name && is(Kind::symbol, "=", 1);
            n.names.emplace_back();
            if (named) {
                n.names.back() = peek().text;
                at_ += 2;
            }
            n.parts.push_back(expression());
            if (!take_symbol(",")) break;
        }
        need_symbol(")");
    }

    /// Filters, tests and calls behind a value.
    uint32_t filtered(uint32_t value) {
        while (!failed()) {
            if (take_symbol("|")) {
                Node n = make(Op::filter);
                Filter filter = Filter::string;
                const std::string name = need_name();
                if (!failed() && !find_filter(name, &filter))
                    return wrong(Code::unsupported, "there is no filter ", quote(name));
                n.code = static_cast<uint8_t>(filter);
                n.a = value;
                if (is_symbol("(")) arguments(n);
                value = add(std::move(n));
            } else if (take_word("is")) {
                value = test(value);
            } else {
                break;
            }
        }
        return value;
    }
    uint32_t test(uint32_t value) {
        const bool negated = take_word("not");
        Node n = make(Op::test);
        Test test = Test::defined;
        const std::string name = need_name();
        if (!failed() && !find_test(name, &test)) return wrong(Code::unsupported, "there is no test ", quote(name));
        n.code = static_cast<uint8_t>(test);
        n.a = value;
        if (is_symbol("(")) {
            arguments(n);
        } else if (takes_argument(test)) {
            n.names.emplace_back();
            n.parts.push_back(postfix(primary()));
        }
        if (takes_argument(test) != (n.parts.size() == 1))
            return wrong(Code::bad_argument, "the test ", name, " has ", n.parts.size(), " arguments, expected ",
                         takes_argument(test) ? 1 : 0);
        const uint32_t made = add(std::move(n));
        return negated ? add(Op::not_, made) : made;
    }

    std::vector<Lexeme> lexemes_;
    size_t at_ = 0;
    Program program_;
    std::vector<uint32_t> depth_;  ///< of the tree below each node
    uint32_t level_ = 0, n_loop_ = 0;
    uint8_t macro_uses_ = 0;  ///< of the macro that is being read: MacroUse
    Status status_;
};

}  // namespace parse_impl

Node::Node() = default;
Node::Node(Node&&) noexcept = default;
Node::~Node() = default;

Result<Program> parse(std::string_view source) {
    std::vector<Lexeme> lexemes;
    AUSPEX_TRY(lex(source).get(lexemes));
    return parse_impl::Parser(std::move(lexemes)).run();
}

}  // namespace jinja
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

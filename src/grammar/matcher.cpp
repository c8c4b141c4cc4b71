#include "matcher.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace matcher_impl {

constexpr unsigned kWideBytes = 48;     // bytes that may come next: above, a list is made
constexpr size_t kMaxWide = 8;          // readings of a state that lists are made for
constexpr size_t kMaxLeaving = 100000;  // ends of tokens in a list
constexpr size_t kMaxLists = 96, kMaxCached = 64;
constexpr size_t kMaxPairs = 64;                // of an expression and a place within a character, in plain_char
constexpr size_t kMaskBytes = size_t{8} << 20;  // that one mask may take above the limit
constexpr uint64_t kCacheNodes = 2000;          // tree nodes walked that make a mask worth keeping

void set_bit(Span<uint32_t> bits, uint32_t token) { bits[token / 32] |= 1u << (token % 32); }

/// UTF-8 without quotes, backslashes and control characters: the bytes that lead from one place within a character to
/// another. Place 0 is between characters.
struct Edge {
    uint8_t from, to, first, last;
};
constexpr Edge kPlain[] = {{0, 0, 0x20, 0x21}, {0, 0, 0x23, 0x5B}, {0, 0, 0x5D, 0x7F}, {0, 1, 0xC2, 0xDF},
                           {0, 4, 0xE0, 0xE0}, {0, 2, 0xE1, 0xEC}, {0, 5, 0xED, 0xED}, {0, 2, 0xEE, 0xEF},
                           {0, 6, 0xF0, 0xF0}, {0, 3, 0xF1, 0xF3}, {0, 7, 0xF4, 0xF4}, {1, 0, 0x80, 0xBF},
                           {2, 1, 0x80, 0xBF}, {3, 2, 0x80, 0xBF}, {4, 1, 0xA0, 0xBF}, {5, 1, 0x80, 0x9F},
                           {6, 2, 0x90, 0xBF}, {7, 2, 0x80, 0x8F}};

}  // namespace matcher_impl

Matcher::Matcher(std::shared_ptr<const Rules> rules, std::shared_ptr<const VocabTrie> vocab)
    : vocab_(std::move(vocab)), automaton_(std::move(rules)) {
    path_.resize(vocab_->max_bytes() + 1);
    expr_path_.resize(vocab_->max_bytes() + 1);
    history_.push_back(automaton_.start());
    for (const matcher_impl::Edge& edge : matcher_impl::kPlain)
        for (unsigned b = edge.first; b <= edge.last; ++b) {
            const std::pair<uint8_t, uint8_t> to{automaton_.classes().of[b], edge.to};
            std::vector<std::pair<uint8_t, uint8_t>>& edges = plain_edges_[edge.from];
            if (std::find(edges.begin(), edges.end(), to) == edges.end()) edges.push_back(to);
        }
}

Result<std::unique_ptr<Matcher>> Matcher::create(std::shared_ptr<const Rules> rules,
                                                 std::shared_ptr<const VocabTrie> vocab) {
    std::unique_ptr<Matcher> m(new Matcher(std::move(rules), std::move(vocab)));
    AUSPEX_TRY(m->resolve_terminals());
    std::vector<uint32_t> bits(m->n_word());
    m->mask(Span<uint32_t>(bits));
    AUSPEX_TRY(m->status());
    if (!m->is_accepting() && std::all_of(bits.begin(), bits.end(), [](uint32_t w) { return w == 0; }))
        return fail(Code::bad_argument,
                    "no token of the vocabulary can begin a text of the grammar; use a model whose vocabulary has "
                    "every byte, or another grammar");
    return m;
}

Status Matcher::resolve_terminals() {
    for (const TokenTerminal& t : automaton_.rules().terminals) {
        const Token id = t.name.empty() ? t.id : vocab_->find_control(t.name);
        if (!vocab_->has(id) && !t.may_be_absent)
            return t.name.empty() ? fail(Code::bad_argument, "the grammar names the token ", t.id,
                                         ", the vocabulary has ", vocab_->n_vocab(), " tokens")
                                  : fail(Code::bad_argument, "the grammar names the control token ", quote(t.name),
                                         ", which the vocabulary does not have");
        terminal_ids_.push_back(id);
    }
    return {};
}

// -------------------------------------------------------------------------------------- going on

StateId Matcher::next_state(StateId s, Token token) {
    const VocabTrie::Piece& piece = vocab_->piece(token);
    StateId next = kDead;
    if (piece.text && !piece.end && !piece.bytes.empty() && piece.bytes.size() <= vocab_->max_bytes()) {
        next = s;
        for (size_t i = 0; i < piece.bytes.size() && next != kDead; ++i)
            next = automaton_.step(next, static_cast<unsigned char>(piece.bytes[i]));
    }
    const Span<const Automaton::Reading> view = automaton_.terminals(s);
    const std::vector<Automaton::Reading> terminals(view.begin(), view.end());
    for (size_t i = 0; i < terminals.size(); ++i) {
        const uint32_t t = terminals[i].expr;
        if (i > 0 && terminals[i - 1].expr == t) continue;
        if (terminal_takes(t, token)) next = automaton_.merge(next, automaton_.step_terminal(s, t));
    }
    return next;
}

bool Matcher::accept(Token token) {
    if (is_finished() || !vocab_->has(token)) return false;
    trim();
    const StateId next = next_state(history_.back(), token);
    if (next != kDead) {
        history_.push_back(next);
        return true;
    }
    if (!vocab_->piece(token).end || !is_accepting()) return false;
    history_.push_back(history_.back());
    finished_at_ = history_.size();
    return true;
}

bool Matcher::accept(std::string_view bytes) {
    if (is_finished()) return false;
    trim();
    StateId s = history_.back();
    for (size_t i = 0; i < bytes.size() && s != kDead; ++i) {
        s = automaton_.step(s, static_cast<unsigned char>(bytes[i]));
        if (i % 1024 == 1023 && automaton_.memory() > memory_limit_) {
            history_.push_back(s);
            trim();
            s = history_.back();
            history_.pop_back();
        }
    }
    if (s == kDead) return false;
    history_.push_back(s);
    return true;
}

Status Matcher::status() const {
    if (memory_limit_ > max_memory_)
        return fail(Code::unsupported, "after ", n_step(), " steps the states of the text take ", memory_limit_ / 2,
                    " bytes, at most ", max_memory_ / 2,
                    " are kept; write the grammar so that fewer rules match the same text");
    if (!automaton_.narrowed(history_.back())) return {};
    return fail(Code::unsupported, "after ", n_step(), " steps the text can be read in more than ",
                Automaton::kMaxReadings, " ways, or is nested more than ", Automaton::kMaxDepth,
                " rules deep; write the grammar so that fewer rules match the same text");
}

void Matcher::rollback(size_t n) {
    history_.resize(history_.size() - std::min(n, n_step()));
    if (history_.size() < finished_at_) finished_at_ = SIZE_MAX;
    if (memory_limit_ > max_memory_) memory_limit_ = usual_limit_;  // the shorter text may take less
}

void Matcher::trim() {
    if (memory() <= memory_limit_) return;
    compact(0);
    // A long history may hold more than the limit by itself.
    memory_limit_ = std::max(memory_limit_, 2 * automaton_.memory());
}

/// Keeps the history and the first states of path_.
void Matcher::compact(size_t n_path) {
    history_.insert(history_.end(), path_.begin(), path_.begin() + static_cast<std::ptrdiff_t>(n_path));
    automaton_.compact(history_);
    std::copy(history_.end() - static_cast<std::ptrdiff_t>(n_path), history_.end(), path_.begin());
    history_.resize(history_.size() - n_path);
    lists_.clear();
    lists_bytes_ = 0;
    cache_.clear();
    ++work_.n_compact;
}

std::string Matcher::forced(size_t max_bytes) {
    std::string out;
    const ByteClasses& classes = automaton_.classes();
    std::array<uint16_t, 256> n_byte{};
    for (const uint8_t c : classes.of) ++n_byte[c];
    StateId s = history_.back();
    while (out.size() < max_bytes && !is_finished() && !automaton_.accepting(s) && automaton_.terminals(s).empty()) {
        StateId only = kDead;
        unsigned n_way = 0, way = 0;
        for (unsigned c = 0; c < classes.n && n_way < 2; ++c) {
            const StateId next = automaton_.step_class(s, c);
            if (next == kDead) continue;
            n_way += n_byte[c];
            way = c;
            only = next;
        }
        if (n_way != 1) break;
        out += static_cast<char>(classes.first[way]);
        s = only;
    }
    return out;
}

// ------------------------------------------------------------------------------------------- masks

void Matcher::mask(Span<uint32_t> bits) {
    ++work_.n_mask;
    std::fill(bits.begin(), bits.end(), 0u);
    if (is_finished()) return;
    trim();
    StateId s = history_.back();
    if (automaton_.accepting(s))
        for (const Token end : vocab_->ends()) matcher_impl::set_bit(bits, static_cast<uint32_t>(end));
    for (Cached& c : cache_)
        if (c.state == s) {
            c.used = ++clock_;
            ++work_.n_cached;
            for (size_t i = 0; i < bits.size(); ++i) bits[i] |= c.bits[i];
            return;
        }
    const uint64_t before = work_.n_node;
    if (!make_mask(s, bits)) {
        compact(0);
        walk(vocab_->tree(), history_.back(), bits, true);
        compact(0);
        s = history_.back();
    }
    add_terminals(s, bits);
    if (work_.n_node - before < matcher_impl::kCacheNodes) return;
    size_t to = cache_.size();
    if (to < matcher_impl::kMaxCached) {
        cache_.push_back({});
    } else {
        to = 0;
        for (size_t i = 1; i < cache_.size(); ++i)
            if (cache_[i].used < cache_[to].used) to = i;
    }
    cache_[to].state = s;
    cache_[to].used = ++clock_;
    cache_[to].bits.assign(bits.begin(), bits.end());
}

bool Matcher::terminal_takes(uint32_t terminal, Token token) const {
    const TokenTerminal& t = automaton_.rules().terminals[terminal];
    if (!t.negated) return token == terminal_ids_[terminal];
    const VocabTrie::Piece& piece = vocab_->piece(token);
    return token != terminal_ids_[terminal] && !piece.end && !(t.control_only && piece.text);
}

void Matcher::add_terminals(StateId s, Span<uint32_t> bits) {
    for (const Automaton::Reading& r : automaton_.terminals(s)) {
        const TokenTerminal& terminal = automaton_.rules().terminals[r.expr];
        const Token id = terminal_ids_[r.expr];
        if (!terminal.negated) {
            if (id >= 0) matcher_impl::set_bit(bits, static_cast<uint32_t>(id));
        } else if (terminal.control_only) {
            for (const Token t : vocab_->controls())
                if (terminal_takes(r.expr, t)) matcher_impl::set_bit(bits, static_cast<uint32_t>(t));
        } else {
            for (size_t t = 0; t < vocab_->n_vocab(); ++t)
                if (terminal_takes(r.expr, static_cast<Token>(t)))
                    matcher_impl::set_bit(bits, static_cast<uint32_t>(t));
        }
    }
}

/// Sets the bits of the tokens of a tree that go on from a state. forget: where memory runs out, forgets what is not
/// on the way to the present node; else returns false.
bool Matcher::walk(const TokenTree& tree, StateId s, Span<uint32_t> bits, bool forget) {
    if (s == kDead) return true;
    const std::array<uint8_t, 256> class_of = automaton_.classes().of;
    path_[0] = s;
    uint64_t n_node = 0;
    for (size_t i = 1; i < tree.nodes.size(); ++n_node) {
        const TokenTree::Node& node = tree.nodes[i];
        if (n_node % 1024 == 1023 && memory() > memory_limit_ + matcher_impl::kMaskBytes) {
            if (!forget) return false;
            compact(node.depth);
        }
        const StateId next = automaton_.step_class(path_[node.depth - 1u], class_of[node.byte]);
        if (next == kDead) {
            i = node.end;
            continue;
        }
        path_[node.depth] = next;
        for (uint32_t t = 0; t < node.n_token; ++t) matcher_impl::set_bit(bits, tree.tokens[node.token + t]);
        ++i;
    }
    work_.n_node += n_node;
    return true;
}

bool Matcher::make_mask(StateId s, Span<uint32_t> bits) {
    std::vector<Automaton::Reading> wide, narrow;
    for (const Automaton::Reading& r : automaton_.readings(s)) narrow.push_back(r);
    const auto is_narrow = [&](const Automaton::Reading& r) {
        return !automaton_.exprs()[r.expr].wide || !is_wide(r.expr);
    };
    const auto split = std::stable_partition(narrow.begin(), narrow.end(), is_narrow);
    wide.assign(split, narrow.end());
    if (wide.empty() || wide.size() > matcher_impl::kMaxWide) return walk(vocab_->tree(), s, bits);
    narrow.erase(split, narrow.end());
    for (const Automaton::Reading& r : wide) {
        // At the end, or before a control token, no token goes on behind the expression.
        const StateId after = automaton_.after(r.stack);
        const WideList& list = list_of(r.expr, !automaton_.readings(after).empty());
        if (!list.usable) {
            narrow.push_back(r);
            continue;
        }
        for (size_t i = 0; i < bits.size(); ++i) bits[i] |= list.within[i];
        if (!walk(list.leaving, after, bits)) return false;
    }
    return narrow.empty() || walk(vocab_->tree(), automaton_.state_of(narrow), bits);
}

bool Matcher::is_wide(ExprId e) {
    unsigned n = 0;
    const ByteClasses& classes = automaton_.classes();
    for (unsigned b = 0; b < 256 && n < matcher_impl::kWideBytes; ++b)
        n += automaton_.exprs().derive(e, classes.of[b]) != kNoMatch ? 1 : 0;
    return n >= matcher_impl::kWideBytes;
}

Matcher::WideList& Matcher::list_of(ExprId e, bool with_leaving) {
    e = automaton_.exprs().clip(e, static_cast<uint32_t>(vocab_->max_bytes()));
    const uint64_t key = uint64_t{e} << 1 | (with_leaving ? 1 : 0);
    const auto found = lists_.find(key);
    if (found != lists_.end()) {
        found->second.used = ++clock_;
        return found->second;
    }
    if (lists_.size() >= matcher_impl::kMaxLists) {
        auto oldest = lists_.begin();
        for (auto it = lists_.begin(); it != lists_.end(); ++it)
            if (it->second.used < oldest->second.used) oldest = it;
        lists_.erase(oldest);
    }
    WideList& list = lists_[key];
    list.used = ++clock_;
    make_list(e, list, with_leaving);
    ++work_.n_list;
    lists_bytes_ = 0;
    for (const auto& l : lists_)
        lists_bytes_ += l.second.within.size() * 4 + l.second.leaving.nodes.capacity() * sizeof(TokenTree::Node) +
                        l.second.leaving.tokens.capacity() * 4;
    return list;
}

void Matcher::make_list(ExprId e, WideList& list, bool with_leaving) {
    ExprPool& exprs = automaton_.exprs();
    const TokenTree* tree = &vocab_->tree();
    list.within.assign(n_word(), 0);
    const PlainFit fit = plain_fit(e);
    if (fit.exact && fit.n_char > 0 && fit.n_char <= VocabTrie::kMaxPlain) {
        list.within = vocab_->plain(fit.n_char);
        tree = &vocab_->slices().back().rest;
    } else {
        for (const VocabTrie::Slice& slice : vocab_->slices()) {
            if (slice.max_chars > fit.n_char) break;
            list.within = slice.bits;
            tree = &slice.rest;
        }
    }
    const std::array<uint8_t, 256> class_of = automaton_.classes().of;
    std::vector<TokenTree::Entry> leaving;
    expr_path_[0] = e;
    uint64_t n_node = 0;
    for (uint32_t i = 1; i < tree->nodes.size(); ++work_.n_node) {
        if (++n_node % 1024 == 0 && memory() > memory_limit_ + matcher_impl::kMaskBytes) return;
        const TokenTree::Node& node = tree->nodes[i];
        const ExprId rest = exprs.derive(expr_path_[node.depth - 1u], class_of[node.byte]);
        if (rest == kNoMatch) {
            i = node.end;
            continue;
        }
        expr_path_[node.depth] = rest;
        for (uint32_t t = 0; t < node.n_token; ++t)
            matcher_impl::set_bit(Span<uint32_t>(list.within), tree->tokens[node.token + t]);
        if (with_leaving && exprs[rest].nullable) {
            for (uint32_t j = i + 1; j < node.end; ++j)
                for (uint32_t t = 0; t < tree->nodes[j].n_token; ++t) {
                    const uint32_t token = tree->tokens[tree->nodes[j].token + t];
                    const std::string_view bytes = vocab_->piece(static_cast<Token>(token)).bytes;
                    leaving.push_back({bytes.substr(node.depth), token});
                }
            if (leaving.size() > matcher_impl::kMaxLeaving) return;
        }
        i = rest == kEmptyText ? node.end : i + 1;
    }
    list.leaving = TokenTree::build(leaving);
    list.usable = true;
}

/// One plain character more. False: some characters fit, others do not. any: one fits at all.
bool Matcher::plain_char(const std::vector<ExprId>& from, std::vector<ExprId>& to, bool& any) {
    ExprPool& exprs = automaton_.exprs();
    std::vector<std::pair<ExprId, uint8_t>> open;
    for (const ExprId e : from) open.push_back({e, 0});
    bool all = true;
    to.clear();
    for (size_t i = 0; i < open.size(); ++i) {
        const std::pair<ExprId, uint8_t> at = open[i];
        for (const std::pair<uint8_t, uint8_t>& edge : plain_edges_[at.second]) {
            const ExprId rest = exprs.derive(at.first, edge.first);
            any = any || rest != kNoMatch;
            all = all && rest != kNoMatch;
            if (any && !all) return false;
            if (rest == kNoMatch) continue;
            if (edge.second == 0) {
                if (std::find(to.begin(), to.end(), rest) == to.end()) to.push_back(rest);
                continue;
            }
            if (exprs[rest].nullable) return false;
            const std::pair<ExprId, uint8_t> next{rest, edge.second};
            if (std::find(open.begin(), open.end(), next) == open.end()) open.push_back(next);
        }
        if (open.size() > matcher_impl::kMaxPairs || to.size() > matcher_impl::kMaxPairs) return false;
    }
    std::sort(to.begin(), to.end());
    return true;
}

Matcher::PlainFit Matcher::plain_fit(ExprId e) {
    std::vector<ExprId> level{e}, next;
    PlainFit fit;
    for (; fit.n_char <= VocabTrie::kMaxPlain; ++fit.n_char) {
        // Where the expression may end, what follows it decides.
        for (const ExprId at : level)
            if (automaton_.exprs()[at].nullable) return fit;
        bool any = false;
        if (!plain_char(level, next, any)) return fit;
        fit.exact = !any;
        if (fit.exact) return fit;
        if (next == level) {
            fit.n_char = UINT32_MAX;
            return fit;
        }
        level.swap(next);
    }
    return fit;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

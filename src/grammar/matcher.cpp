#include "matcher.h"

#include <map>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace matcher_impl {

constexpr unsigned kWideBytes = 48;     // bytes that may come next: above, a list is made
constexpr size_t kMaxWide = 8;          // readings of a state that lists are made for
constexpr size_t kMaxLeaving = 100000;  // ends of tokens in a list
constexpr size_t kMaxLists = 96, kMaxCached = 64;
constexpr size_t kMaxPairs = 256;               // of an expression and a place within a character, in fit_char
constexpr size_t kMaskBytes = size_t{8} << 20;  // that one mask may take above the limit
constexpr uint64_t kCacheNodes = 2000;          // tree nodes walked that make a mask worth keeping

/// The bytes that lead from one place within a character to another. Place 0 is between characters; at 1, 2 and 3 that
/// many bytes follow, whichever they are.
struct Edge {
    uint8_t from, to, first, last;
};
constexpr Edge kFollow[] = {{1, 0, 0x80, 0xBF}, {2, 1, 0x80, 0xBF}, {3, 2, 0x80, 0xBF}, {4, 1, 0xA0, 0xBF},
                            {5, 1, 0x80, 0x9F}, {6, 2, 0x90, 0xBF}, {7, 2, 0x80, 0x8F}};
/// UTF-8 without quotes, backslashes and control characters.
constexpr Edge kPlain[] = {{0, 0, 0x20, 0x21}, {0, 0, 0x23, 0x5B}, {0, 0, 0x5D, 0x7F}, {0, 1, 0xC2, 0xDF},
                           {0, 4, 0xE0, 0xE0}, {0, 2, 0xE1, 0xEC}, {0, 5, 0xED, 0xED}, {0, 2, 0xEE, 0xEF},
                           {0, 6, 0xF0, 0xF0}, {0, 3, 0xF1, 0xF3}, {0, 7, 0xF4, 0xF4}};
/// The same without spaces: U+0020, A0, 1680, 2000 to 200A, 2028, 2029, 202F, 205F, 3000, FEFF.
constexpr Edge kBare[] = {{0, 0, 0x21, 0x21},   {0, 0, 0x23, 0x5B},   {0, 0, 0x5D, 0x7F},   {0, 8, 0xC2, 0xC2},
                          {0, 1, 0xC3, 0xDF},   {0, 4, 0xE0, 0xE0},   {0, 9, 0xE1, 0xE1},   {0, 10, 0xE2, 0xE2},
                          {0, 11, 0xE3, 0xE3},  {0, 2, 0xE4, 0xEC},   {0, 5, 0xED, 0xED},   {0, 2, 0xEE, 0xEE},
                          {0, 12, 0xEF, 0xEF},  {0, 6, 0xF0, 0xF0},   {0, 3, 0xF1, 0xF3},   {0, 7, 0xF4, 0xF4},
                          {8, 0, 0x80, 0x9F},   {8, 0, 0xA1, 0xBF},   {9, 1, 0x80, 0x99},   {9, 13, 0x9A, 0x9A},
                          {9, 1, 0x9B, 0xBF},   {10, 14, 0x80, 0x80}, {10, 15, 0x81, 0x81}, {10, 1, 0x82, 0xBF},
                          {11, 13, 0x80, 0x80}, {11, 1, 0x81, 0xBF},  {12, 1, 0x80, 0xBA},  {12, 16, 0xBB, 0xBB},
                          {12, 1, 0xBC, 0xBF},  {13, 0, 0x81, 0xBF},  {14, 0, 0x8B, 0xA7},  {14, 0, 0xAA, 0xAE},
                          {14, 0, 0xB0, 0xBF},  {15, 0, 0x80, 0x9E},  {15, 0, 0xA0, 0xBF},  {16, 0, 0x80, 0xBE}};
constexpr size_t kPlaces = 17;

template <size_t n_edge>
void add_edges(Alphabet& to, const ByteClasses& classes, const Edge (&edges)[n_edge]) {
    to.resize(kPlaces);
    for (const Edge& edge : edges)
        for (unsigned b = edge.first; b <= edge.last; ++b) {
            const std::pair<uint8_t, uint8_t> way{classes.of[b], edge.to};
            auto& ways = to[edge.from];
            if (std::find(ways.begin(), ways.end(), way) == ways.end()) ways.push_back(way);
        }
}

bool meets(const std::vector<std::pair<uint8_t, uint8_t>>& ways, const Classes& classes) {
    return std::any_of(ways.begin(), ways.end(),
                       [&](const std::pair<uint8_t, uint8_t>& w) { return classes[w.first]; });
}

}  // namespace matcher_impl

Matcher::Matcher(std::shared_ptr<const Rules> rules, std::shared_ptr<const VocabTrie> vocab)
    : vocab_(std::move(vocab)), automaton_(std::move(rules)) {
    path_.resize(vocab_->max_bytes() + 1);
    expr_path_.resize(vocab_->max_bytes() + 1);
    history_.push_back(automaton_.start());
    for (Alphabet* alphabet : {&plain_, &bare_})
        matcher_impl::add_edges(*alphabet, automaton_.classes(), matcher_impl::kFollow);
    matcher_impl::add_edges(plain_, automaton_.classes(), matcher_impl::kPlain);
    matcher_impl::add_edges(bare_, automaton_.classes(), matcher_impl::kBare);
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
            path_[0] = s;
            trim(1);
            s = path_[0];
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
                automaton_.max_readings(), " ways, or is nested more than ", Automaton::kMaxDepth,
                " rules deep; write the grammar so that fewer rules match the same text");
}

void Matcher::rollback(size_t n) {
    history_.resize(history_.size() - std::min(n, n_step()));
    if (history_.size() < finished_at_) finished_at_ = SIZE_MAX;
    if (memory_limit_ > max_memory_) memory_limit_ = usual_limit_;  // the shorter text may take less
}

void Matcher::trim(size_t n_path) {
    if (memory() <= memory_limit_) return;
    compact(n_path);
    // A long history may hold more than the limit by itself.
    memory_limit_ = std::max(memory_limit_, 2 * automaton_.memory());
}

/// Keeps the history and the first states of path_.
void Matcher::compact(size_t n_path) {
    std::vector<StateId> keep(history_);
    keep.insert(keep.end(), path_.begin(), path_.begin() + static_cast<std::ptrdiff_t>(n_path));
    automaton_.compact(keep);
    std::copy(keep.begin() + static_cast<std::ptrdiff_t>(history_.size()), keep.end(), path_.begin());
    keep.resize(history_.size());
    history_.swap(keep);
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
        for (const Token end : vocab_->ends()) set_bit(bits, static_cast<uint32_t>(end));
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
    Cached made;
    made.state = s;
    made.used = ++clock_;
    made.bits.assign(bits.begin(), bits.end());
    if (cache_.size() < matcher_impl::kMaxCached) return cache_.push_back(std::move(made));
    *std::min_element(cache_.begin(), cache_.end(), [](const Cached& a, const Cached& b) { return a.used < b.used; }) =
        std::move(made);
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
            if (id >= 0) set_bit(bits, static_cast<uint32_t>(id));
        } else if (terminal.control_only) {
            for (const Token t : vocab_->controls())
                if (terminal_takes(r.expr, t)) set_bit(bits, static_cast<uint32_t>(t));
        } else {
            for (size_t t = 0; t < vocab_->n_vocab(); ++t)
                if (terminal_takes(r.expr, static_cast<Token>(t))) set_bit(bits, static_cast<uint32_t>(t));
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
    const bool whole = tree.each([&](const TokenTree::Node& node, size_t depth) {
        if (n_node++ % 1024 == 1023 && memory() > memory_limit_ + matcher_impl::kMaskBytes) {
            if (!forget) return TokenTree::Visit::stop;
            compact(depth);
        }
        const StateId next = automaton_.step_class(path_[depth - 1], class_of[node.byte]);
        if (next == kDead) return TokenTree::Visit::skip;
        path_[depth] = next;
        for (const uint32_t token : tree.at(node)) set_bit(bits, token);
        return TokenTree::Visit::enter;
    });
    work_.n_node += n_node;
    return whole;
}

bool Matcher::make_mask(StateId s, Span<uint32_t> bits) {
    std::vector<Automaton::Reading> narrow;
    std::map<ExprId, std::vector<Automaton::Reading>> wide;  // by expression: what may follow it
    for (const Automaton::Reading& r : automaton_.readings(s)) {
        if (automaton_.exprs()[r.expr].wide && is_wide(r.expr))
            wide[r.expr].push_back({kEmptyText, r.stack});
        else
            narrow.push_back(r);
    }
    if (wide.empty() || wide.size() > matcher_impl::kMaxWide) return walk(vocab_->tree(), s, bits);
    for (const auto& w : wide) {
        const std::vector<Automaton::Reading>& ends = w.second;
        const StateId after = ends.size() == 1 ? automaton_.after(ends[0].stack) : automaton_.state_of(ends);
        const WideList& list = list_of(w.first, first_of(after));
        if (!list.usable) {
            for (const Automaton::Reading& end : ends) narrow.push_back({w.first, end.stack});
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

Classes Matcher::first_of(StateId s) {
    Classes out;
    if (s == kDead || automaton_.readings(s).empty()) return out;
    for (unsigned c = 0; c < automaton_.classes().n; ++c) out[c] = automaton_.step_class(s, c) != kDead;
    return out;
}

Matcher::WideList& Matcher::list_of(ExprId e, const Classes& follow) {
    e = automaton_.exprs().clip(e, static_cast<uint32_t>(vocab_->max_bytes()));
    const auto known = lists_.equal_range(e);
    for (auto it = known.first; it != known.second; ++it)
        if (it->second.follow == follow) {
            it->second.used = ++clock_;
            return it->second;
        }
    if (lists_.size() >= matcher_impl::kMaxLists) {
        auto oldest = lists_.begin();
        for (auto it = lists_.begin(); it != lists_.end(); ++it)
            if (it->second.used < oldest->second.used) oldest = it;
        lists_.erase(oldest);
    }
    WideList made;
    made.follow = follow;
    made.used = ++clock_;
    make_list(e, made);
    WideList& list = lists_.emplace(e, std::move(made))->second;
    ++work_.n_list;
    lists_bytes_ = 0;
    for (const auto& l : lists_)
        lists_bytes_ += l.second.within.size() * 4 + l.second.leaving.nodes.capacity() * sizeof(TokenTree::Node) +
                        l.second.leaving.tokens.capacity() * 4;
    return list;
}

/// Sets the bits of tokens that stay within the expression because of the characters they have; returns the others.
const TokenTree* Matcher::begin_list(ExprId e, const Classes& follow, VocabTrie::Bits& within) {
    const Fit plain = fit(e, plain_, follow);
    if (plain.exact && plain.n_char > 0 && plain.n_char <= VocabTrie::kMaxPlain) {
        within = vocab_->plain(plain.n_char);
        return &vocab_->slices().back().rest;
    }
    const VocabTrie::Words& words = vocab_->words();
    const VocabTrie::Slice* slice = nullptr;
    for (const VocabTrie::Slice& s : vocab_->slices())
        if (s.max_chars <= plain.n_char) slice = &s;
    const auto takes_words = [&](ExprId at) {
        return at != kNoMatch && fit(at, bare_, follow).n_char >= VocabTrie::kMaxPlain;
    };
    // Few characters may fit although many words do, where words are counted.
    const bool few = !slice || slice->rest.nodes.size() > words.not_either.nodes.size();
    if (few && takes_words(e)) {
        const bool after_space = takes_words(automaton_.exprs().derive(e, automaton_.classes().of[' ']));
        const TokenTree& rest = after_space ? words.not_either : words.not_bare;
        if (!slice || rest.nodes.size() < slice->rest.nodes.size()) {
            within = words.bare;
            for (size_t i = 0; after_space && i < within.size(); ++i) within[i] |= words.after_space[i];
            return &rest;
        }
    }
    if (!slice) {
        within.assign(n_word(), 0);
        return &vocab_->tree();
    }
    within = slice->bits;
    return &slice->rest;
}

/// The rest of each token that goes on behind a node with a follower.
void Matcher::add_leaving(const TokenTree& tree, const TokenTree::Node& node, size_t depth, const Classes& follow,
                          std::vector<TokenTree::Entry>& leaving) const {
    for (uint32_t c = node.child; c < node.child + node.n_child; ++c) {
        if (!follow[automaton_.classes().of[tree.nodes[c].byte]]) continue;
        for (const uint32_t token : tree.below(tree.nodes[c])) {
            const std::string_view bytes = vocab_->piece(static_cast<Token>(token)).bytes;
            leaving.push_back({bytes.substr(depth), token});
        }
    }
}

void Matcher::make_list(ExprId e, WideList& list) {
    ExprPool& exprs = automaton_.exprs();
    const TokenTree* tree = begin_list(e, list.follow, list.within);
    const std::array<uint8_t, 256> class_of = automaton_.classes().of;
    std::vector<TokenTree::Entry> leaving;
    expr_path_[0] = e;
    uint64_t n_node = 0;
    list.usable = tree->each([&](const TokenTree::Node& node, size_t depth) {
        if (++n_node % 1024 == 0 && memory() > memory_limit_ + matcher_impl::kMaskBytes) return TokenTree::Visit::stop;
        const ExprId rest = exprs.derive(expr_path_[depth - 1], class_of[node.byte]);
        if (rest == kNoMatch) return TokenTree::Visit::skip;
        if (exprs[rest].crowded) return TokenTree::Visit::stop;
        expr_path_[depth] = rest;
        for (const uint32_t token : tree->at(node)) set_bit(Span<uint32_t>(list.within), token);
        if (exprs[rest].nullable && list.follow.any()) {
            add_leaving(*tree, node, depth, list.follow, leaving);
            if (leaving.size() > matcher_impl::kMaxLeaving) return TokenTree::Visit::stop;
        }
        return rest == kEmptyText ? TokenTree::Visit::skip : TokenTree::Visit::enter;
    });
    work_.n_node += n_node;
    if (list.usable) list.leaving = TokenTree::build(leaving);
}

/// One character more. False: some characters fit, others do not. any: one fits at all; leaves: it may be one behind
/// the expression's end.
bool Matcher::fit_char(const std::vector<ExprId>& from, const Alphabet& alphabet, const Classes& follow,
                       std::vector<ExprId>& to, bool& any, bool& leaves) {
    ExprPool& exprs = automaton_.exprs();
    std::vector<std::pair<ExprId, uint8_t>> open;
    for (const ExprId e : from) open.push_back({e, 0});
    bool all = true;
    to.clear();
    for (size_t i = 0; i < open.size(); ++i) {
        const std::pair<ExprId, uint8_t> at = open[i];
        leaves = leaves || (exprs[at.first].nullable && matcher_impl::meets(alphabet[at.second], follow));
        for (const std::pair<uint8_t, uint8_t>& edge : alphabet[at.second]) {
            ExprId rest = exprs.derive(at.first, edge.first);
            if (exprs[rest].crowded) rest = kNoMatch;
            any = any || rest != kNoMatch;
            all = all && rest != kNoMatch;
            if (any && !all) return false;
            if (rest == kNoMatch) continue;
            const std::pair<ExprId, uint8_t> next{rest, edge.second};
            if (next.second == 0) {
                if (std::find(to.begin(), to.end(), rest) == to.end()) to.push_back(rest);
            } else if (std::find(open.begin(), open.end(), next) == open.end()) {
                open.push_back(next);
            }
        }
        if (open.size() > matcher_impl::kMaxPairs || to.size() > matcher_impl::kMaxPairs) return false;
    }
    std::sort(to.begin(), to.end());
    return true;
}

Matcher::Fit Matcher::fit(ExprId e, const Alphabet& alphabet, const Classes& follow) {
    std::vector<ExprId> level{e}, next;
    Fit fit;
    bool leaves = false;
    for (; fit.n_char <= VocabTrie::kMaxPlain; ++fit.n_char) {
        bool any = false;
        if (!fit_char(level, alphabet, follow, next, any, leaves)) return fit;
        if (!any) {
            fit.exact = !leaves;
            return fit;
        }
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

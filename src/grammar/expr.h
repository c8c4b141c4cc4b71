// grammar/expr: expressions over bytes, each kept once, and their derivatives.
//
// Owns    the pool of expressions of one grammar. A regular expression is matched by derivatives: what is left of it
//         after a byte is an expression again, made when it is first asked for. Intersection and complement therefore
//         cost nothing extra, and a bounded repetition is a counter, not a chain of states. Rules, control tokens and
//         the members of an object are expressions too, which grammar/automaton expands with a stack.
// Thread  a pool belongs to one thread at a time; a const pool may be copied from any thread.
// Tests   tests/test_grammar.cpp
#pragma once
#include "../base/base.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

using ExprId = uint32_t;
/// A set of expressions, each mapped to itself: std::unordered_set would be one more hash table, 1 KB of code.
using ExprSet = std::unordered_map<ExprId, ExprId>;
constexpr ExprId kNoMatch = 0;    ///< matches nothing
constexpr ExprId kEmptyText = 1;  ///< matches the empty text
constexpr uint32_t kUnbounded = UINT32_MAX;

/// A set of byte values.
struct ByteSet {
    std::array<uint64_t, 4> word{};
    void add(unsigned b) { word[b >> 6] |= uint64_t{1} << (b & 63); }
    void add(unsigned from, unsigned to) {
        for (unsigned b = from; b <= to; ++b) add(b);
    }
    bool has(unsigned b) const { return (word[b >> 6] >> (b & 63) & 1) != 0; }
    unsigned count() const;
    bool operator==(const ByteSet& o) const { return word == o.word; }
};

inline uint64_t mix_hash(uint64_t x) {
    x ^= x >> 32;
    x *= 0x9E3779B97F4A7C15ull;
    return x ^ (x >> 29);
}

enum class ExprKind : uint8_t {
    none,
    empty,
    bytes,     ///< one byte of the set a
    text,      ///< the b bytes at a in the text pool
    multiple,  ///< decimal digits, points skipped, whose number is b modulo a when it began at 0: matches at b = 0
    concat,    ///< a, then b
    choice,    ///< one of the b expressions at a in the list pool
    both,      ///< all of the b expressions at a in the list pool
    except,    ///< whatever a does not match
    repeat,    ///< lo to hi times a
    rule,      ///< the rule a
    token,     ///< the token terminal a
    members,   ///< the members of object a that may follow; b: which were written, lo: how many; hi: 1 + one more that
               ///< was written, or 0
    key,       ///< the rest of a name and what follows it: of the members a, those below ObjectRule::keys[b]
};

struct ExprNode {
    ExprKind kind = ExprKind::none;
    bool nullable = false;  ///< matches the empty text; only of a regular expression
    bool regular = true;    ///< no rule, token or member within
    bool logic = false;     ///< an intersection or complement within: may match nothing
    bool counted = false;   ///< a counted repetition within
    bool crowded = false;   ///< a choice of too many parts within, which a text has led to: not to be followed
    bool wide = false;      ///< a long repetition of large sets within: most tokens of a vocabulary fit
    uint32_t a = 0, b = 0, lo = 0, hi = 0;
    /// Combines the flags that a node has from its parts.
    void inherit(const ExprNode& part) {
        regular = regular && part.regular;
        logic = logic || part.logic;
        counted = counted || part.counted;
        crowded = crowded || part.crowded;
        wide = wide || part.wide;
    }
    /// Alternatives of this sort may be matched as one expression: none of them can become too many to follow.
    bool is_plain() const { return regular && !wide && !counted && !logic; }
    bool operator==(const ExprNode& o) const {
        return kind == o.kind && a == o.a && b == o.b && lo == o.lo && hi == o.hi;
    }
};

/// Bytes that no set or text of the grammar tells apart.
struct ByteClasses {
    uint16_t n = 1;
    std::array<uint8_t, 256> of{};
    std::array<uint8_t, 256> first{};  ///< a byte of each class
};

/// What follows after a byte of each class: a row for each expression or state, made when its first entry is set.
class StepTable {
  public:
    static constexpr uint32_t kUnknown = UINT32_MAX;
    void set_classes(size_t n) { n_class_ = n; }
    void make_room() { detail::make_room(row_of_); }
    void add() { row_of_.push_back(0); }
    uint32_t get(uint32_t from, unsigned byte_class) const {
        const uint32_t row = row_of_[from];
        return row == 0 ? kUnknown : steps_[(row - 1) * n_class_ + byte_class];
    }
    void set(uint32_t from, unsigned byte_class, uint32_t to) {
        uint32_t& row = row_of_[from];
        if (row == 0) {
            steps_.resize(steps_.size() + n_class_, kUnknown);
            row = static_cast<uint32_t>(steps_.size() / n_class_);
        }
        steps_[(row - 1) * n_class_ + byte_class] = to;
    }
    size_t memory() const { return (row_of_.capacity() + steps_.capacity()) * 4; }

  private:
    size_t n_class_ = 1;
    std::vector<uint32_t> row_of_;  ///< its row + 1, or 0
    std::vector<uint32_t> steps_;
};

class ExprPool {
  public:
    ExprPool();

    ExprId bytes(const ByteSet& set);
    ExprId text(std::string_view text);
    ExprId multiple(uint32_t modulus, uint32_t remainder);
    ExprId concat(ExprId a, ExprId b);
    ExprId concat(Span<const ExprId> parts, ExprId rest = kEmptyText);
    ExprId concat(std::initializer_list<ExprId> parts) { return concat({parts.begin(), parts.size()}, kEmptyText); }
    ExprId choice(std::vector<ExprId> parts);
    ExprId choice(ExprId a, ExprId b) { return choice(std::vector<ExprId>{a, b}); }
    ExprId both(std::vector<ExprId> parts);
    ExprId both(ExprId a, ExprId b) { return both(std::vector<ExprId>{a, b}); }
    ExprId except(ExprId a);
    ExprId repeat(ExprId a, uint32_t lo, uint32_t hi);
    ExprId optional(ExprId a) { return choice(kEmptyText, a); }
    ExprId rule(uint32_t index) { return deferred(ExprKind::rule, index); }
    ExprId token(uint32_t index) { return deferred(ExprKind::token, index); }
    ExprId members(uint32_t object, uint32_t written, uint32_t count, uint32_t more = 0) {
        return deferred(ExprKind::members, object, written, count, more);
    }
    ExprId key(ExprId members, uint32_t key) { return deferred(ExprKind::key, members, key); }
    /// An expression whose texts begin with the same n bytes, whatever the first n bytes: counts beyond n are dropped.
    ExprId clip(ExprId e, uint32_t n);
    /// One of several texts, their common beginnings shared.
    ExprId one_of(std::vector<std::string> texts);
    /// Whatever the bytes are.
    ExprId any_text();
    /// Texts in which none of these occurs.
    ExprId without(const std::vector<std::string>& texts);

    const ExprNode& operator[](ExprId e) const { return nodes_[e]; }
    /// Elements of a choice or an intersection.
    Span<const ExprId> parts(ExprId e) const { return {lists_.data() + nodes_[e].a, nodes_[e].b}; }

    /// Computes the classes of bytes: call when the grammar is complete. No set or text may be added afterwards.
    void close();
    const ByteClasses& classes() const { return classes_; }
    /// What is left of a regular expression after a byte of this class; kNoMatch if it does not match. Never one that
    /// matches nothing.
    ExprId derive(ExprId e, unsigned byte_class) {
        if (!may_begin(e, byte_class)) return kNoMatch;
        const ExprId known = steps_.get(e, byte_class);
        return known != StepTable::kUnknown ? known : derive_slowly(e, byte_class);
    }
    /// Whether the expression matches any text. Takes a search where complements or intersections are within.
    bool live(ExprId e);
    /// A search of live() was given up.
    bool gave_up() const { return gave_up_; }
    /// Derivatives that each of the next searches of live() may take, and all of them together.
    void set_search_budget(size_t each, size_t all) {
        max_search_ = each;
        search_budget_ = all;
    }
    size_t search_budget() const { return search_budget_; }

    /// Forgets what only saves time.
    void forget_parts() { part_memo_ = {}; }
    size_t size() const { return nodes_.size(); }
    /// Bytes held, about.
    size_t memory() const;
    /// The same expression in another pool that began as a copy of this one when it had n_base expressions.
    ExprId copy_to(ExprPool& other, ExprId e, size_t n_base, std::unordered_map<ExprId, ExprId>& done) const;
    std::string_view text_of(ExprId e) const { return std::string_view(texts_).substr(nodes_[e].a, nodes_[e].b); }

  private:
    /// False: no text of the expression begins with a byte of this class.
    bool may_begin(ExprId e, unsigned byte_class) const { return (first_[e] >> (byte_class % 64) & 1) != 0; }
    uint64_t first_of(const ExprNode& node) const;
    /// Bytes of a text of an expression: none is shorter or longer.
    struct Lengths {
        uint32_t shortest = 0, longest = kUnbounded;
    };
    Lengths lengths_of(const ExprNode& node) const;
    Lengths lengths(ExprId e);
    static uint32_t fewest_digits(uint64_t modulus, uint64_t remainder);
    ExprId intern(ExprNode node);
    ExprId pair(ExprId a, ExprId b);
    ExprId deferred(ExprKind kind, uint32_t a, uint32_t b = 0, uint32_t lo = 0, uint32_t hi = 0);
    ExprId intern_list(ExprKind kind, const std::vector<ExprId>& parts);
    void index_node(ExprId e);
    uint64_t hash(const ExprNode& node) const;
    bool same(const ExprNode& a, const ExprNode& b) const;
    ExprId derive_slowly(ExprId e, unsigned byte_class);
    ExprId derivative(ExprId e, unsigned byte_class);
    ExprId derive_part(ExprId e, unsigned byte_class);
    ExprId derive_concat(ExprId e, unsigned byte_class);
    bool search(ExprId e);
    /// Whether a text of this intersection is too short for one part and too long for another.
    bool no_length_fits(const std::vector<ExprId>& parts);
    /// Whether digits alone complete a text: as many may follow as the multiples in the expression need.
    bool has_room_for_digits(ExprId e) const;
    bool takes_digits(ExprId e, uint32_t n, uint64_t& modulus, uint32_t& n_left) const;
    /// The first element of a sequence, how many times it comes, and what follows.
    struct Times {
        ExprId element = kEmptyText, rest = kEmptyText;
        uint32_t lo = 1, hi = 1;
    };
    struct Shape;
    Times times_of(ExprId e) const;
    Shape shape_of(ExprId e) const;
    /// True: whatever b matches a matches, as their counts show.
    bool covers(ExprId a, ExprId b) const;
    void drop_covered(std::vector<ExprId>& parts) const;
    static bool nest(const ExprNode& inner, uint32_t& lo, uint32_t& hi);
    void add_ways(ExprId d, ExprId rest, std::vector<ExprId>& ways);
    ExprId joined(ExprId d, ExprId rest);
    void flatten(ExprKind kind, std::vector<ExprId>& parts) const;
    void merge_sets(std::vector<ExprId>& parts);
    ExprId one_of_range(const std::vector<std::string_view>& texts, size_t first, size_t last, size_t depth);

    std::vector<ExprNode> nodes_;
    std::vector<ExprId> lists_;
    std::vector<ByteSet> sets_;
    std::map<std::array<uint64_t, 4>, uint32_t> set_index_;
    std::string texts_;
    std::unordered_map<uint64_t, uint32_t> short_texts_;  ///< where in texts_ they are; empty once closed
    std::vector<uint32_t> table_;                         ///< open addressing: expression ids, 0 is free
    StepTable steps_;                                     ///< derivatives
    std::vector<uint64_t> first_;   ///< of each expression: bits of the classes that may come first, modulo 64
    std::vector<Lengths> lengths_;  ///< of the first expressions, as many as were asked for
    std::vector<uint8_t> live_;     ///< of each expression: 0 unknown, 1 matches something, 2 nothing
    /// Derivatives of parts, the last one of each slot: what many expressions share is derived once.
    std::vector<std::pair<uint64_t, ExprId>> part_memo_;
    ByteClasses classes_;
    bool gave_up_ = false, has_multiples_ = false;
    bool is_running_ = false;  ///< derive() was called: a text is matched
    size_t search_budget_ = 0, max_search_ = 0;
    size_t max_parts_ = SIZE_MAX;  ///< of a choice with counts within
    unsigned hint_ = 0;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

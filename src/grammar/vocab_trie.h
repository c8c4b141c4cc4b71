// grammar/vocab_trie: the bytes of a vocabulary as a tree, for masks.
//
// Owns    the tree of all tokens that are text, the tokens that are plain characters of a JSON string by how many
//         characters they have and whether they are words, and the tokens that no grammar spells (control tokens), by
//         name.
// Thread  immutable once built: one per model serves every session.
// Tests   tests/test_matcher.cpp
#pragma once
#include "../base/token.h"

#include <array>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// Sets a token's bit of a mask.
inline void set_bit(Span<uint32_t> bits, uint32_t token) { bits[token / 32] |= 1u << (token % 32); }

/// Tokens by their bytes. The children of a node lie side by side: most nodes that a mask looks at are refused, and
/// neighbours share a cache line.
struct TokenTree {
    struct Node {
        uint32_t child = 0;      ///< the first one
        uint32_t token = 0;      ///< first entry in `tokens` of the subtree; those that end here come first
        uint32_t token_end = 0;  ///< after the subtree's last one
        uint16_t n_child = 0;
        uint8_t byte = 0;
    };
    struct Entry {
        std::string_view bytes;
        uint32_t token;
    };
    enum class Visit : uint8_t {
        skip,   ///< leave the node's children out
        enter,  ///< visit them next
        stop
    };
    std::vector<Node> nodes;  ///< node 0 is the root, of depth 0
    std::vector<uint32_t> tokens;
    size_t max_depth = 0;

    /// Builds the tree; sorts the entries unless they are sorted. Their bytes need not stay.
    static TokenTree build(std::vector<Entry>& entries, bool sorted = false);
    /// Tokens that end at a node.
    Span<const uint32_t> at(const Node& node) const {
        const uint32_t end = node.n_child > 0 ? nodes[node.child].token : node.token_end;
        return {tokens.data() + node.token, end - node.token};
    }
    /// Tokens of a node's subtree.
    Span<const uint32_t> below(const Node& node) const {
        return {tokens.data() + node.token, node.token_end - node.token};
    }
    /// Calls visit(node, depth) depth first, the root apart; depth is the number of bytes up to and with the node's.
    /// False: it said stop.
    template <class F>
    bool each(F&& visit) const {
        struct Siblings {
            uint32_t at, end;
        };
        std::vector<Siblings> path(1);
        path.reserve(32);
        if (!nodes.empty()) path[0] = {nodes[0].child, nodes[0].child + nodes[0].n_child};
        while (!path.empty()) {
            if (path.back().at == path.back().end) {
                path.pop_back();
                continue;
            }
            const Node& node = nodes[path.back().at++];
            const Visit what = visit(node, path.size());
            if (what == Visit::stop) return false;
            if (what == Visit::enter && node.n_child > 0) path.push_back({node.child, node.child + node.n_child});
        }
        return true;
    }

  private:
    void add_children(uint32_t node, size_t depth, const std::vector<Entry>& entries);
};

class VocabTrie {
  public:
    using Bits = std::vector<uint32_t>;
    /// Tokens that are one to `max_chars` whole characters, none of them a quote, a backslash or a control character.
    struct Slice {
        uint32_t max_chars = 0;
        Bits bits;
        TokenTree rest;  ///< every other token
    };
    /// Tokens of one to kMaxPlain of these characters that are no space either, for expressions that count words or
    /// end at a space.
    struct Words {
        Bits bare, after_space;          ///< such tokens; a space and then such a token, or a space alone
        TokenTree not_bare, not_either;  ///< every other token
    };
    struct Piece {
        std::string bytes;
        bool text = true;  ///< false: a control token, allowed only where a grammar names it
        bool end = false;  ///< ends a generation: allowed where the grammar accepts
    };

    static std::shared_ptr<const VocabTrie> build(const std::vector<Piece>& pieces);
    /// cost      0.2 to 0.3 s and 36 MB for 248,000 tokens: once per model.
    static std::shared_ptr<const VocabTrie> build(const Tokenizer& tokenizer);

    size_t n_vocab() const { return pieces_.size(); }
    size_t n_word() const { return (n_vocab() + 31) / 32; }
    const Piece& piece(Token id) const { return pieces_[static_cast<size_t>(id)]; }
    bool has(Token id) const { return id >= 0 && static_cast<size_t>(id) < pieces_.size(); }
    /// The control token with exactly these bytes, or -1.
    Token find_control(std::string_view name) const;
    const TokenTree& tree() const { return tree_; }
    /// Shortest first; the last one has no limit.
    const std::array<Slice, 3>& slices() const { return slices_; }
    /// The tokens of the last slice that have at most n characters, n = 1..kMaxPlain.
    static constexpr uint32_t kMaxPlain = 16;
    const Bits& plain(uint32_t n) const { return plain_[n - 1]; }
    const Words& words() const { return words_; }
    const std::vector<Token>& ends() const { return ends_; }
    /// Tokens that are no text, ends among them.
    const std::vector<Token>& controls() const { return controls_; }
    /// The longest token that is text, in bytes.
    size_t max_bytes() const { return tree_.max_depth; }

  private:
    void build_slices(const std::vector<TokenTree::Entry>& all);
    void build_words(const std::vector<TokenTree::Entry>& all);

    std::vector<Piece> pieces_;
    TokenTree tree_;
    std::array<Slice, 3> slices_;
    std::array<Bits, kMaxPlain> plain_;
    Words words_;
    std::vector<Token> ends_;
    std::vector<Token> controls_;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

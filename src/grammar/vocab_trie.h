// grammar/vocab_trie: the bytes of a vocabulary as a tree, for masks.
//
// Owns    the tree of all tokens that are text, the tokens that are plain characters of a JSON string by how many
//         characters they have, and the tokens that no grammar spells (control tokens), by name.
// Thread  immutable once built: one per model serves every session.
// Tests   tests/test_matcher.cpp
#pragma once
#include "../base/token.h"

#include <array>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// Tokens by their bytes, depth first.
struct TokenTree {
    struct Node {
        uint32_t end = 0;      ///< the node after this one's subtree
        uint32_t token = 0;    ///< first entry in `tokens`
        uint16_t n_token = 0;  ///< tokens that end here
        uint16_t depth = 0;    ///< bytes up to and with this one
        uint8_t byte = 0;
    };
    struct Entry {
        std::string_view bytes;
        uint32_t token;
    };
    std::vector<Node> nodes;  ///< node 0 is the root, of depth 0
    std::vector<uint32_t> tokens;
    size_t max_depth = 0;

    /// Builds the tree; sorts the entries unless they are sorted. Their bytes need not stay.
    static TokenTree build(std::vector<Entry>& entries, bool sorted = false);
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
    struct Piece {
        std::string bytes;
        bool text = true;  ///< false: a control token, allowed only where a grammar names it
        bool end = false;  ///< ends a generation: allowed where the grammar accepts
    };

    static std::shared_ptr<const VocabTrie> build(const std::vector<Piece>& pieces);
    /// cost      tens of milliseconds and about 20 MB for 248,000 tokens: once per model.
    static std::shared_ptr<const VocabTrie> build(const Tokenizer& tokenizer);

    size_t n_vocab() const { return pieces_.size(); }
    size_t n_word() const { return (n_vocab() + 31) / 32; }
    const Piece& piece(Token id) const { return pieces_[static_cast<size_t>(id)]; }
    bool has(Token id) const { return id >= 0 && static_cast<size_t>(id) < pieces_.size(); }
    /// The control token with exactly these bytes, or -1.
    Token find_control(std::string_view name) const;
    const TokenTree& tree() const { return tree_; }
    /// Shortest first; the last one has no limit.
    const std::array<Slice, 4>& slices() const { return slices_; }
    /// The tokens of the last slice that have at most n characters, n = 1..kMaxPlain.
    static constexpr uint32_t kMaxPlain = 32;
    const Bits& plain(uint32_t n) const { return plain_[n - 1]; }
    const std::vector<Token>& ends() const { return ends_; }
    /// Tokens that are no text, ends among them.
    const std::vector<Token>& controls() const { return controls_; }
    /// The longest token that is text, in bytes.
    size_t max_bytes() const { return tree_.max_depth; }

  private:
    std::vector<Piece> pieces_;
    TokenTree tree_;
    std::array<Slice, 4> slices_;
    std::array<Bits, kMaxPlain> plain_;
    std::vector<Token> ends_;
    std::vector<Token> controls_;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

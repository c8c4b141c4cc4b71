#include "vocab_trie.h"

#include "../base/unicode.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vocab_trie_impl {

constexpr size_t kMaxTokenBytes = 4000;  // a longer token is never allowed
constexpr uint32_t kSliceChars[] = {8, VocabTrie::kMaxPlain, UINT32_MAX};

/// What \s of a pattern means (ECMA-262 WhiteSpace and LineTerminator), control characters apart.
bool is_space(uint32_t c) { return c == 0xFEFF || (c != 0x85 && is_white_space(c)); }

/// Characters of a text that stands in a JSON string as it is, or 0; without spaces if `bare`.
uint32_t plain_chars(std::string_view text, bool bare = false) {
    uint32_t n_char = 0;
    for (size_t at = 0, n = 0; at < text.size(); at += n, ++n_char) {
        const uint32_t c = decode_utf8(text.data() + at, text.size() - at, &n);
        if (c == kBadCodePoint || c < 0x20 || c == '"' || c == '\\' || (bare && is_space(c))) return 0;
    }
    return n_char;
}

}  // namespace vocab_trie_impl

TokenTree TokenTree::build(std::vector<Entry>& entries, bool sorted) {
    if (!sorted)
        std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
            const int order = a.bytes.compare(b.bytes);
            return order != 0 ? order < 0 : a.token < b.token;
        });
    TokenTree tree;
    tree.nodes.emplace_back();
    tree.tokens.reserve(entries.size());
    for (const Entry& e : entries) {
        tree.tokens.push_back(e.token);
        tree.max_depth = std::max(tree.max_depth, e.bytes.size());
    }
    tree.nodes[0].token_end = static_cast<uint32_t>(entries.size());
    // Nodes whose children are not made yet: a token may have thousands of bytes, so this does not recurse.
    std::vector<std::pair<uint32_t, uint32_t>> open{{0, 0}};
    while (!open.empty()) {
        const auto [i, depth] = open.back();
        open.pop_back();
        tree.add_children(i, depth, entries);
        for (uint32_t c = tree.nodes[i].n_child; c-- > 0;) open.push_back({tree.nodes[i].child + c, depth + 1});
    }
    tree.nodes.shrink_to_fit();
    return tree;
}

void TokenTree::add_children(uint32_t i, size_t depth, const std::vector<Entry>& entries) {
    const uint32_t end = nodes[i].token_end;
    uint32_t e = nodes[i].token;
    while (e < end && entries[e].bytes.size() == depth) ++e;  // shorter texts are sorted before longer ones
    const auto child = static_cast<uint32_t>(nodes.size());
    while (e < end) {
        Node node;
        node.byte = static_cast<uint8_t>(entries[e].bytes[depth]);
        node.token = e;
        while (e < end && static_cast<uint8_t>(entries[e].bytes[depth]) == node.byte) ++e;
        node.token_end = e;
        nodes.push_back(node);
    }
    nodes[i].child = child;
    nodes[i].n_child = static_cast<uint16_t>(nodes.size() - child);
}

std::shared_ptr<const VocabTrie> VocabTrie::build(const std::vector<Piece>& pieces) {
    using namespace vocab_trie_impl;
    auto out = std::make_shared<VocabTrie>();
    out->pieces_ = pieces;
    std::vector<TokenTree::Entry> all;
    for (size_t id = 0; id < pieces.size(); ++id) {
        const Piece& p = out->pieces_[id];
        if (p.end) out->ends_.push_back(static_cast<Token>(id));
        if (!p.text) out->controls_.push_back(static_cast<Token>(id));
        if (p.text && !p.end && !p.bytes.empty() && p.bytes.size() <= kMaxTokenBytes)
            all.push_back({p.bytes, static_cast<uint32_t>(id)});
    }
    out->tree_ = TokenTree::build(all);
    out->build_slices(all);
    out->build_words(all);
    return out;
}

void VocabTrie::build_slices(const std::vector<TokenTree::Entry>& all) {
    using namespace vocab_trie_impl;
    for (Bits& bits : plain_) bits.assign(n_word(), 0);
    std::vector<uint32_t> chars(n_vocab(), 0);
    for (const TokenTree::Entry& e : all) {
        chars[e.token] = plain_chars(e.bytes);
        if (chars[e.token] == 0) continue;
        for (uint32_t n = chars[e.token]; n <= kMaxPlain; ++n) set_bit(Span<uint32_t>(plain_[n - 1]), e.token);
    }
    for (size_t s = 0; s < slices_.size(); ++s) {
        Slice& slice = slices_[s];
        slice.max_chars = kSliceChars[s];
        slice.bits.assign(n_word(), 0);
        std::vector<TokenTree::Entry> rest;
        for (const TokenTree::Entry& e : all) {
            if (chars[e.token] > 0 && chars[e.token] <= slice.max_chars)
                set_bit(Span<uint32_t>(slice.bits), e.token);
            else
                rest.push_back(e);
        }
        slice.rest = TokenTree::build(rest, true);
    }
}

void VocabTrie::build_words(const std::vector<TokenTree::Entry>& all) {
    using namespace vocab_trie_impl;
    words_.bare.assign(n_word(), 0);
    words_.after_space.assign(n_word(), 0);
    std::vector<TokenTree::Entry> not_bare, not_either;
    for (const TokenTree::Entry& e : all) {
        const bool spaced = e.bytes.front() == ' ';
        const uint32_t n = plain_chars(e.bytes.substr(spaced ? 1 : 0), true);
        const bool word = n <= kMaxPlain && (n > 0 || e.bytes == " ");
        if (word) set_bit(Span<uint32_t>(spaced ? words_.after_space : words_.bare), e.token);
        if (!word || spaced) not_bare.push_back(e);
        if (!word) not_either.push_back(e);
    }
    words_.not_bare = TokenTree::build(not_bare, true);
    words_.not_either = TokenTree::build(not_either, true);
}

std::shared_ptr<const VocabTrie> VocabTrie::build(const Tokenizer& tokenizer) {
    std::vector<Piece> pieces(tokenizer.n_vocab());
    for (size_t i = 0; i < pieces.size(); ++i) {
        const Token id = static_cast<Token>(i);
        const TokenKind kind = tokenizer.kind(id);
        pieces[i].bytes = tokenizer.piece_bytes(id);
        pieces[i].text = kind == TokenKind::normal || kind == TokenKind::byte;
        pieces[i].end = tokenizer.is_end(id);
    }
    return build(pieces);
}

Token VocabTrie::find_control(std::string_view name) const {
    for (const Token id : controls_)
        if (piece(id).bytes == name && !name.empty()) return id;
    return -1;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

#include "vocab_trie.h"

#include "../base/unicode.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vocab_trie_impl {

constexpr size_t kMaxTokenBytes = 4000;  // a longer token is never allowed
constexpr uint32_t kSliceChars[] = {6, 16, VocabTrie::kMaxPlain, UINT32_MAX};

/// Characters of a text that stands in a JSON string as it is, or 0.
uint32_t plain_chars(std::string_view text) {
    uint32_t n_char = 0;
    for (size_t at = 0, n = 0; at < text.size(); at += n, ++n_char) {
        const uint32_t c = decode_utf8(text.data() + at, text.size() - at, &n);
        if (c == kBadCodePoint || c < 0x20 || c == '"' || c == '\\') return 0;
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
    tree.nodes.push_back({});
    tree.tokens.reserve(entries.size());
    std::vector<uint32_t> path{0};  // nodes from the root to the last one
    std::string_view last;
    for (const Entry& e : entries) {
        if (e.bytes.empty()) continue;
        size_t common = 0;
        while (common < last.size() && common < e.bytes.size() && last[common] == e.bytes[common]) ++common;
        for (; path.size() > common + 1; path.pop_back())
            tree.nodes[path.back()].end = static_cast<uint32_t>(tree.nodes.size());
        for (size_t i = common; i < e.bytes.size(); ++i) {
            Node node;
            node.byte = static_cast<uint8_t>(e.bytes[i]);
            node.depth = static_cast<uint16_t>(i + 1);
            path.push_back(static_cast<uint32_t>(tree.nodes.size()));
            tree.nodes.push_back(node);
        }
        Node& at = tree.nodes[path.back()];
        if (at.n_token == 0) at.token = static_cast<uint32_t>(tree.tokens.size());
        if (at.n_token < UINT16_MAX) {
            ++at.n_token;
            tree.tokens.push_back(e.token);
        }
        tree.max_depth = std::max(tree.max_depth, e.bytes.size());
        last = e.bytes;
    }
    for (; !path.empty(); path.pop_back()) tree.nodes[path.back()].end = static_cast<uint32_t>(tree.nodes.size());
    return tree;
}

std::shared_ptr<const VocabTrie> VocabTrie::build(const std::vector<Piece>& pieces) {
    using namespace vocab_trie_impl;
    auto out = std::make_shared<VocabTrie>();
    out->pieces_ = pieces;
    std::vector<TokenTree::Entry> all;
    std::vector<uint32_t> chars;
    for (size_t id = 0; id < pieces.size(); ++id) {
        const Piece& p = out->pieces_[id];
        if (p.end) out->ends_.push_back(static_cast<Token>(id));
        if (!p.text) out->controls_.push_back(static_cast<Token>(id));
        const bool usable = p.text && !p.end && p.bytes.size() <= kMaxTokenBytes;
        if (usable) all.push_back({p.bytes, static_cast<uint32_t>(id)});
        chars.push_back(usable ? plain_chars(p.bytes) : 0);
    }
    out->tree_ = TokenTree::build(all);
    for (size_t s = 0; s < out->slices_.size(); ++s) {
        Slice& slice = out->slices_[s];
        slice.max_chars = kSliceChars[s];
        slice.bits.assign(out->n_word(), 0);
        std::vector<TokenTree::Entry> rest;
        for (const TokenTree::Entry& e : all) {
            if (chars[e.token] > 0 && chars[e.token] <= slice.max_chars)
                slice.bits[e.token / 32] |= 1u << (e.token % 32);
            else
                rest.push_back(e);
        }
        slice.rest = TokenTree::build(rest, true);
    }
    for (uint32_t n = 1; n <= kMaxPlain; ++n) {
        Bits& bits = out->plain_[n - 1];
        bits.assign(out->n_word(), 0);
        for (size_t id = 0; id < chars.size(); ++id)
            if (chars[id] > 0 && chars[id] <= n) bits[id / 32] |= 1u << (id % 32);
    }
    return out;
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

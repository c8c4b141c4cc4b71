// base/token: text to token ids and back, by byte-level BPE.
//
// Owns    the vocabulary of a file: the bytes of each token, the merges, the special tokens.
//         Loading and look-ups are in token.cpp, encoding in token_encode.cpp.
// Thread  a loaded Tokenizer is immutable; any number of threads may use it.
// Tests   tests/test_token.cpp, tests/fuzz_token.cpp
#pragma once
#include "gguf.h"
#include "token_special.h"
#include "token_split.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// What the file says a token is (tokenizer.ggml.token_type).
enum class TokenKind : uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

/// Counts the work of an encode(), for tests that bound it.
struct EncodeWork {
    uint64_t n_look = 0;     ///< characters looked at by the splitter
    uint64_t n_special = 0;  ///< automaton steps of the search for special tokens
    uint64_t n_pair = 0;     ///< adjacent pairs looked up among the merges
    uint64_t n_queue = 0;    ///< entries taken from the queue of a long piece, or scanned in a short one
};
/// Counts the work of Tokenizer::load().
struct TokenizerLoadWork {
    uint64_t n_compare = 0;  ///< keys compared while the tables were built and searched
};

/// A search table whose keys come from a file. Entries lie in buckets by the top bits of a hash, two buckets per
/// entry, and each bucket is sorted: a look-up costs one or two comparisons, and log n if somebody chose keys that
/// all fall into one bucket.
template <class Entry>
class BucketTable {
  public:
    /// hashes[i] belongs to entries[i]; less(a, b) orders all entries.
    template <class Less>
    void build(const std::vector<Entry>& entries, const std::vector<uint64_t>& hashes, Less less) {
        unsigned bits = 4;
        while ((size_t{1} << bits) < 2 * entries.size()) ++bits;
        shift_ = 64 - bits;
        // Counted one bucket further up, so that filling the buckets leaves each one's begin in its place.
        begin_.assign((size_t{1} << bits) + 2, 0);
        for (const uint64_t hash : hashes) ++begin_[static_cast<size_t>(hash >> shift_) + 2];
        for (size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
        entries_.resize(entries.size());
        for (size_t i = 0; i < entries.size(); ++i)
            entries_[begin_[static_cast<size_t>(hashes[i] >> shift_) + 1]++] = entries[i];
        for (size_t i = 0; i + 2 < begin_.size(); ++i) {
            Entry *first = entries_.data() + begin_[i], *last = entries_.data() + begin_[i + 1];
            if (last - first == 2 && less(first[1], first[0])) std::swap(first[0], first[1]);
            if (last - first > 2) std::sort(first, last, less);
        }
    }
    /// The entries of a hash's bucket, sorted.
    Span<const Entry> bucket(uint64_t hash) const {
        if (entries_.empty()) return {};
        const size_t i = static_cast<size_t>(hash >> shift_);
        return Span<const Entry>(entries_.data() + begin_[i], begin_[i + 1] - begin_[i]);
    }

  private:
    unsigned shift_ = 0;
    std::vector<uint32_t> begin_;  ///< of each bucket in entries_, and the end of the last
    std::vector<Entry> entries_;
};

class Tokenizer {
  public:
    Tokenizer() = default;
    /// Copies what it needs from `gguf`.
    ///
    /// progress  called with ("reading the tokenizer", 0) every few thousand entries; false cancels.
    /// errors    unsupported: tokenizer.ggml.model is not gpt2, or tokenizer.ggml.pre none of Split.
    ///           bad_file: arrays of the wrong type or length, token text outside the byte alphabet, a byte
    ///           without a token, an id outside the vocabulary, a merge that is not a pair.
    ///           cancelled: by the callback.
    /// cost      n log n in tokens and merges; about 0.1 s and 20 MB for 248,000 tokens.
    static Result<Tokenizer> load(const Gguf& gguf, const Progress& progress = Progress(),
                                  TokenizerLoadWork* work = nullptr);

    /// Text to ids. Invalid UTF-8 bytes become U+FFFD. No Unicode normalisation.
    /// User-defined tokens are found in any text, control tokens only if `special` is set; at each position the
    /// longest one.
    /// begin     puts bos() in front, unless the text begins with that token.
    /// cost      linear in the text, n log n in its longest piece; 16 to 32 bytes of scratch memory per byte of that.
    std::vector<Token> encode(std::string_view text, bool special, EncodeWork* work = nullptr,
                              bool begin = false) const;
    /// encode(prompt.text()) with `begin`, except that a control token is found only where all of it lies in adjacent
    /// pieces that the template wrote. Piece borders have no other effect.
    /// marks: if given, gets the rows of those stops at which a control token begins.
    std::vector<Token> encode(const ChatPrompt& prompt, std::vector<Mark>* marks = nullptr) const;

    /// The bytes of the ids in order; the first and last character may be incomplete. Unused ids and ids outside
    /// the vocabulary give nothing; control tokens only if `special` is set, or if they are tags of a reply.
    std::string decode(Span<const Token> ids, bool special) const;
    std::string_view piece_bytes(Token id, bool special = true) const;

    uint32_t n_vocab() const { return static_cast<uint32_t>(kind_.size()); }
    Split split() const { return split_; }
    TokenKind kind(Token id) const { return kind_[static_cast<size_t>(id)]; }  ///< id is within the vocabulary
    /// The token with exactly these bytes: a special one if there is one, else a normal one, else -1.
    Token find(std::string_view text) const;
    bool is_end(Token id) const;
    const std::vector<Token>& ends() const { return ends_; }
    Token eos() const { return eos_; }  ///< -1 if the file names none
    Token bos() const { return bos_; }  ///< -1 unless the file asks for it in front of each text (add_bos_token)
    /// Merges that are ignored because a half or the result is not a normal token.
    uint32_t n_merge_skipped() const { return n_merge_skipped_; }

  private:
    struct Named {
        uint32_t tag = 0;  ///< low bits of the hash of the token's bytes: equal if the bytes are equal
        uint32_t id = 0;
        uint32_t offset = 0, size = 0;  ///< its bytes in pool_
    };
    struct Merge {
        uint64_t pair = 0;  ///< left id << 32 | right id
        uint32_t rank = 0, merged = 0;
    };
    using Range = SpecialMatcher::Range;
    struct Loader;   ///< token.cpp
    struct Scratch;  ///< token_encode.cpp

    std::string_view raw(uint32_t id) const {
        return std::string_view(pool_).substr(offset_[id], offset_[id + 1] - offset_[id]);
    }
    std::string_view raw(const Named& n) const { return std::string_view(pool_.data() + n.offset, n.size); }
    uint32_t find_normal(std::string_view text, uint64_t* n_compare = nullptr) const;
    const Merge* find_merge(uint32_t left, uint32_t right) const;
    std::vector<Token> encode_ranges(std::string_view text, const std::vector<Range>& control, bool begin,
                                     EncodeWork& work, const std::vector<Mark>& stops = {},
                                     std::vector<Mark>* marks = nullptr) const;
    void encode_plain(std::string_view text, Scratch& scratch, std::vector<Token>& ids) const;
    void merge_short(Scratch& scratch, std::vector<Token>& ids) const;
    void merge_long(Scratch& scratch, std::vector<Token>& ids) const;

    Split split_ = Split::qwen2;
    std::string pool_;              ///< the bytes of all tokens, concatenated
    std::vector<uint32_t> offset_;  ///< n_vocab + 1 offsets into it
    std::vector<TokenKind> kind_;
    BucketTable<Named> by_bytes_;     ///< normal tokens, by their bytes
    BucketTable<Merge> merges_;       ///< by their pair
    std::vector<uint32_t> specials_;  ///< user-defined, control and unknown tokens, sorted by bytes
    SpecialMatcher matcher_;          ///< finds them in text
    uint32_t byte_id_[256] = {};      ///< the token of each single byte
    std::vector<Token> ends_;
    Token eos_ = -1, bos_ = -1;
    uint32_t n_merge_skipped_ = 0;
};

/// What the tokenizer's tables hash by.
inline uint64_t hash_mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0x9E3779B97F4A7C15ull;
    x ^= x >> 29;
    x *= 0xD6E8FEB86659FD93ull;
    return x ^ (x >> 32);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

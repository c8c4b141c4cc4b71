// base/token: text to ids and back.
//
// Owns    the vocabulary of a file: its bytes, its merges, its special tokens; byte-level BPE.
// Reads   gguf (tokenizer keys), token_split, the door's ChatPrompt.
// Serves  engine (Model::encode, decode, is_end), chat by way of the engine.
// Thread  a loaded Tokenizer is immutable: any number of threads at the same time.
// Laws    HotPath: tests/test_token.cpp, tests/fuzz_token.cpp. Text survives encode and decode.
#pragma once
#include "gguf.h"
#include "token_split.h"

namespace auspex {
namespace detail {

/// What the file says a token is (tokenizer.ggml.token_type).
enum class TokenKind : uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

/// Counts the work of an encode(), so that a test can hold it to a bound.
struct EncodeWork {
    uint64_t n_look = 0;   ///< characters looked at by the splitter
    uint64_t n_pair = 0;   ///< adjacent pairs looked up among the merges
    uint64_t n_queue = 0;  ///< entries taken from the queue of a long piece, or scanned in a short one
};

class Tokenizer {
  public:
    Tokenizer() = default;
    /// Copies what it needs; the Gguf may go.
    ///
    /// errors    unsupported: tokenizer.ggml.model other than gpt2, or a pre other than qwen2 and qwen35.
    ///           bad_file: arrays of wrong type or length, texts outside the byte alphabet, a byte
    ///           without token, an id outside the vocabulary, merges that are no pair.
    /// cost      about 0.1 s for 248,000 tokens; three tables of some 20 MB.
    static Result<Tokenizer> load(const Gguf& gguf);

    /// Text to ids; adds nothing. Invalid UTF-8 bytes become U+FFFD. No Unicode normalisation: composed
    /// and decomposed letters stay as written. User-defined tokens are found in any text, control tokens
    /// only when `special` is set; of several at one place the longest.
    /// cost      n log n in the longest piece, linear otherwise; some bytes of scratch per byte.
    std::vector<Token> encode(std::string_view text, bool special, EncodeWork* work = nullptr) const;
    /// The ids of prompt.text(), except that control tokens are found only where they lie wholly in
    /// neighbouring pieces of the template. Borders of pieces are invisible to everything else.
    std::vector<Token> encode(const ChatPrompt& prompt) const;

    /// The bytes of the ids, in order; a character may be cut at either end. Ids outside the
    /// vocabulary and unused ids give nothing; control tokens only when `special` is set.
    std::string decode(Span<const Token> ids, bool special) const;
    std::string_view piece_bytes(Token id, bool special = true) const;

    uint32_t n_vocab() const { return static_cast<uint32_t>(kind_.size()); }
    Split split() const { return split_; }
    TokenKind kind(Token id) const { return kind_[static_cast<size_t>(id)]; }  ///< id within the vocabulary
    /// The token whose bytes are `text`: a special one if there is, else a normal one, else -1.
    Token find(std::string_view text) const;
    bool is_end(Token id) const;
    const std::vector<Token>& ends() const { return ends_; }
    Token eos() const { return eos_; }  ///< -1 when the file names none
    /// Merges whose halves or result are no normal tokens: never applied.
    uint32_t n_merge_skipped() const { return n_merge_skipped_; }

  private:
    struct Merge {
        uint64_t pair = UINT64_MAX;  ///< left id << 32 | right id; all ones in an empty place
        uint32_t rank = 0, merged = 0;
    };
    struct Range {
        size_t from, to;
    };
    struct Scratch;

    Status read_tokens(const Gguf& gguf);
    Status read_merges(const Gguf& gguf);
    Status read_ends(const Gguf& gguf);
    std::string_view raw(uint32_t id) const {
        return std::string_view(pool_).substr(offset_[id], offset_[id + 1] - offset_[id]);
    }
    uint32_t find_normal(std::string_view text) const;
    const Merge* find_merge(uint32_t left, uint32_t right) const;
    uint32_t special_at(std::string_view text, size_t at, size_t control_end, size_t* length) const;
    std::vector<Token> encode_ranges(std::string_view text, const std::vector<Range>& control, EncodeWork& work) const;
    void encode_plain(std::string_view text, Scratch& scratch, std::vector<Token>& ids) const;
    void merge_short(Scratch& scratch, std::vector<Token>& ids) const;
    void merge_long(Scratch& scratch, std::vector<Token>& ids) const;

    Split split_ = Split::qwen2;
    std::string pool_;              ///< bytes of all tokens, one after the other
    std::vector<uint32_t> offset_;  ///< n_vocab + 1 places in it
    std::vector<TokenKind> kind_;
    std::vector<uint32_t> by_bytes_;   ///< open addressing: normal tokens by their bytes
    std::vector<Merge> merges_;        ///< open addressing
    std::vector<uint32_t> specials_;   ///< user-defined, control and unknown tokens, sorted by bytes
    uint32_t special_from_[257] = {};  ///< where those with a first byte begin in specials_
    uint32_t byte_id_[256] = {};
    std::vector<Token> ends_;
    Token eos_ = -1;
    uint32_t n_merge_skipped_ = 0;
};

}  // namespace detail
}  // namespace auspex

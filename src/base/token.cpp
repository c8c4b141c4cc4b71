// Loading a tokenizer from a file's keys, and look-ups by id and by bytes.
#include "token.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace token_impl {

constexpr uint32_t kNoToken = UINT32_MAX;
constexpr size_t kMaxTokens = size_t{1} << 22;
constexpr size_t kMaxTokenBytes = size_t{1} << 20;
constexpr size_t kMaxSpecialBytes = size_t{4} << 20;  ///< of all special tokens together; real models have 1 KB
constexpr size_t kMaxPoolBytes = size_t{1} << 30;

/// The byte alphabet of GPT-2: printable bytes are themselves, the other 68 are U+0100 and up.
struct ByteAlphabet {
    uint16_t code_of[256] = {};
    int16_t byte_of[0x144] = {};
    constexpr ByteAlphabet() {
        for (int16_t& b : byte_of) b = -1;
        uint16_t more = 0x100;
        for (uint16_t b = 0; b < 256; ++b) {
            const bool plain = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
            code_of[b] = plain ? b : more++;
            byte_of[code_of[b]] = static_cast<int16_t>(b);
        }
    }
};
constexpr ByteAlphabet kAlphabet;

/// Appends the bytes that `text` spells in the byte alphabet; false if it holds another character.
bool append_raw(std::string& to, std::string_view text) {
    const size_t from = to.size();
    to.resize(from + text.size());  // a character of the alphabet has one byte or two
    char* out = &to[from];
    size_t n = 1;
    for (size_t at = 0; at < text.size(); at += n) {
        uint32_t c = static_cast<unsigned char>(text[at]);
        n = 1;
        if (c >= 0x80) c = decode_utf8(text.data() + at, text.size() - at, &n);
        if (c >= 0x144 || kAlphabet.byte_of[c] < 0) return false;
        *out++ = static_cast<char>(static_cast<unsigned char>(kAlphabet.byte_of[c]));
    }
    to.resize(static_cast<size_t>(out - to.data()));
    return true;
}

/// The byte of "<0xAB>", or -1.
int byte_token(std::string_view text) {
    const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; };
    if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
    const int high = digit(text[3]), low = digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

uint64_t hash_bytes(std::string_view s) {
    uint64_t h = s.size();
    for (; s.size() >= 8; s.remove_prefix(8)) h = hash_mix(h ^ load<uint64_t>(s.data()));
    uint64_t tail = 0;
    if (!s.empty()) std::memcpy(&tail, s.data(), s.size());
    return hash_mix(h ^ tail);
}

std::string shown(std::string_view text) { return quote(text, 40); }

/// The strings of a required array.
Status string_array(const Gguf& gguf, const char* key, const std::vector<std::string_view>** out) {
    const Meta* m = gguf.find(key);
    if (m == nullptr)
        return fail(Code::bad_file, "the key '", key,
                    "' is missing; the file has no usable tokenizer: convert it again");
    if (!m->is_array || m->type != MetaType::string || m->strings.size() != m->n)
        return fail(Code::bad_file, "the key '", key, "' is not an array of strings: convert the file again");
    *out = &m->strings;
    return Status();
}

Status check_name(const Gguf& gguf, const char* key, const char* supported, std::string* found) {
    if (gguf.find(key) == nullptr)
        return fail(Code::unsupported, "the key '", key, "' is missing; supported: ", supported);
    return gguf.get_string(key).get(*found);
}

/// The tags that a reply is parsed by are a part of its text, whatever kind the file gives them.
bool is_reply_tag(std::string_view text) {
    return text == "<think>" || text == "</think>" || text == "<tool_call>" || text == "</tool_call>";
}

}  // namespace token_impl

// ------------------------------------------------------------------------------------- loading

/// Fills a Tokenizer, one table after the other.
struct Tokenizer::Loader {
    Tokenizer& t;
    const Gguf& gguf;
    const Progress& progress;
    TokenizerLoadWork& work;
    size_t n_done = 0;  ///< tokens and merges

    Status load();
    Status step();
    Status read_names();
    Status check_tokens(const std::vector<std::string_view>& texts, const Meta** types);
    Status read_tokens(const std::vector<std::string_view>& texts, const Meta& types);
    Status read_token(uint32_t id, std::string_view text, int64_t type);
    Status index_normal();
    Status index_special();
    Status read_merges(const std::vector<std::string_view>& texts);
    Status read_ends();
};

Result<Tokenizer> Tokenizer::load(const Gguf& gguf, const Progress& progress, TokenizerLoadWork* work) {
    Tokenizer t;
    TokenizerLoadWork unused;
    Loader loader{t, gguf, progress, work != nullptr ? *work : unused};
    AUSPEX_TRY(loader.load());
    return t;
}

Status Tokenizer::Loader::load() {
    AUSPEX_TRY(read_names());
    const std::vector<std::string_view>*tokens = nullptr, *merges = nullptr;
    const Meta* types = nullptr;
    AUSPEX_TRY(token_impl::string_array(gguf, "tokenizer.ggml.tokens", &tokens));
    AUSPEX_TRY(check_tokens(*tokens, &types));
    AUSPEX_TRY(token_impl::string_array(gguf, "tokenizer.ggml.merges", &merges));
    if (merges->size() > token_impl::kMaxTokens * 2)
        return fail(Code::bad_file, merges->size(), " merges, at most ", token_impl::kMaxTokens * 2, " are allowed");
    AUSPEX_TRY(read_tokens(*tokens, *types));
    AUSPEX_TRY(index_normal());
    AUSPEX_TRY(index_special());
    AUSPEX_TRY(read_merges(*merges));
    return read_ends();
}

/// Counts one entry and calls back at every 8192nd. The fraction is that of loading the model, of which this is no part
/// that a user would notice: 0.
Status Tokenizer::Loader::step() {
    if (n_done++ % 8192 == 0 && progress && !progress("reading the tokenizer", 0.0f))
        return fail(Code::cancelled, "loading was cancelled by the progress callback");
    return Status();
}

Status Tokenizer::Loader::read_names() {
    using namespace token_impl;
    std::string model, pre;
    AUSPEX_TRY(check_name(gguf, "tokenizer.ggml.model", "gpt2 (byte-level BPE)", &model));
    if (model != "gpt2")
        return fail(Code::unsupported, "tokenizer.ggml.model is ", shown(model), ", supported: gpt2 (byte-level BPE)");
    const char* const supported = "qwen2, qwen35, deepseek-v3";
    AUSPEX_TRY(check_name(gguf, "tokenizer.ggml.pre", supported, &pre));
    if (pre == "qwen2")
        t.split_ = Split::qwen2;
    else if (pre == "qwen35")
        t.split_ = Split::qwen35;
    else if (pre == "deepseek-v3")
        t.split_ = Split::deepseek_v3;
    else
        return fail(Code::unsupported, "tokenizer.ggml.pre is ", shown(pre), ", supported: ", supported);
    return Status();
}

Status Tokenizer::Loader::check_tokens(const std::vector<std::string_view>& texts, const Meta** types) {
    using namespace token_impl;
    const size_t n = texts.size();
    if (n == 0 || n > kMaxTokens)
        return fail(Code::bad_file, "the vocabulary has ", n, " tokens, expected 1..", kMaxTokens);
    const Meta* m = gguf.find("tokenizer.ggml.token_type");
    if (m == nullptr || !m->is_array || !m->is_integer())
        return fail(Code::bad_file, "the key 'tokenizer.ggml.token_type' is ",
                    m == nullptr ? "missing" : "not an array of integers", ", expected one i32 for each of ", n,
                    " tokens: convert the file again");
    if (m->n != n)
        return fail(Code::bad_file, "'tokenizer.ggml.token_type' has ", m->n, " elements, expected one for each of ", n,
                    " tokens");
    size_t n_byte = 0;
    for (const std::string_view text : texts) {
        if (text.size() > kMaxTokenBytes)
            return fail(Code::bad_file, "a token of ", text.size(), " bytes, at most ", kMaxTokenBytes, " are allowed");
        n_byte += text.size();
        if (n_byte > kMaxPoolBytes) return fail(Code::bad_file, "the tokens hold more than ", kMaxPoolBytes, " bytes");
    }
    t.pool_.reserve(n_byte);
    *types = m;
    return Status();
}

Status Tokenizer::Loader::read_tokens(const std::vector<std::string_view>& texts, const Meta& types) {
    const uint32_t n = static_cast<uint32_t>(texts.size());
    t.offset_.reserve(n + 1);
    t.kind_.reserve(n);
    for (uint32_t id = 0; id < n; ++id) {
        AUSPEX_TRY(step());
        t.offset_.push_back(static_cast<uint32_t>(t.pool_.size()));
        int64_t type = 0;
        if (!types.get_int(id, &type) || type < 1 || type > 6)
            return fail(Code::bad_file, "token ", id, " (", token_impl::shown(texts[id]), ") has type ", type,
                        ", expected 1..6");
        AUSPEX_TRY(read_token(id, texts[id], type));
    }
    t.offset_.push_back(static_cast<uint32_t>(t.pool_.size()));
    return Status();
}

Status Tokenizer::Loader::read_token(uint32_t id, std::string_view text, int64_t type) {
    using namespace token_impl;
    t.kind_.push_back(static_cast<TokenKind>(type));
    switch (t.kind_.back()) {
        case TokenKind::normal:
            if (append_raw(t.pool_, text)) break;
            return fail(Code::bad_file, "token ", id, " (", shown(text), ") is not text of the GPT-2 byte alphabet");
        case TokenKind::byte: {
            const int b = byte_token(text);
            if (b < 0)
                return fail(Code::bad_file, "byte token ", id, " is ", shown(text), ", expected the form <0xAB>");
            t.pool_ += static_cast<char>(static_cast<unsigned char>(b));
            break;
        }
        case TokenKind::unknown:
        case TokenKind::control:
        case TokenKind::user_defined:
            t.pool_.append(text);
            if (!text.empty()) t.specials_.push_back(id);
            break;
        case TokenKind::unused: break;
    }
    return Status();
}

/// Normal tokens by their bytes; of equal ones the lowest id is found.
Status Tokenizer::Loader::index_normal() {
    std::vector<Named> named;
    std::vector<uint64_t> hashes;
    named.reserve(t.n_vocab());
    hashes.reserve(t.n_vocab());
    for (uint32_t id = 0; id < t.n_vocab(); ++id) {
        if (t.kind_[id] != TokenKind::normal || t.raw(id).empty()) continue;
        hashes.push_back(token_impl::hash_bytes(t.raw(id)));
        named.push_back(
            Named{static_cast<uint32_t>(hashes.back()), id, t.offset_[id], t.offset_[id + 1] - t.offset_[id]});
    }
    t.by_bytes_.build(named, hashes, [this](const Named& a, const Named& b) {
        ++work.n_compare;
        if (a.tag != b.tag) return a.tag < b.tag;
        const int order = t.raw(a).compare(t.raw(b));
        return order != 0 ? order < 0 : a.id < b.id;
    });
    for (uint32_t b = 0; b < 256; ++b) {
        const char c = static_cast<char>(static_cast<unsigned char>(b));
        t.byte_id_[b] = t.find_normal(std::string_view(&c, 1));
        if (t.byte_id_[b] == token_impl::kNoToken)
            return fail(Code::bad_file, "the vocabulary has no token for the single byte ", b,
                        "; byte-level BPE needs all 256: convert the file again");
    }
    return Status();
}

Status Tokenizer::Loader::index_special() {
    sort_indices(t.specials_, [this](uint32_t a, uint32_t b) {
        ++work.n_compare;
        const int order = t.raw(a).compare(t.raw(b));
        return order != 0 ? order < 0 : a < b;
    });
    size_t n_byte = 0;
    std::vector<SpecialMatcher::Word> words;
    for (const uint32_t id : t.specials_) {
        words.push_back({t.raw(id), id, t.kind_[id] == TokenKind::user_defined});
        n_byte += words.back().bytes.size();
    }
    if (n_byte > token_impl::kMaxSpecialBytes)
        return fail(Code::bad_file, "the special tokens hold ", n_byte, " bytes, at most ",
                    token_impl::kMaxSpecialBytes, " are allowed");
    t.matcher_.build(words);
    return Status();
}

Status Tokenizer::Loader::read_merges(const std::vector<std::string_view>& texts) {
    using namespace token_impl;
    std::vector<Merge> merges;
    std::vector<uint64_t> hashes;
    merges.reserve(texts.size());
    hashes.reserve(texts.size());
    std::string both;
    for (uint32_t rank = 0; rank < texts.size(); ++rank) {
        AUSPEX_TRY(step());
        const std::string_view text = texts[rank];
        // The separator is the first space from position 1 on: the byte alphabet has no space, but the rule of the
        // format allows one at position 0.
        const size_t cut = text.find(' ', 1);
        if (cut == std::string_view::npos || cut + 1 == text.size())
            return fail(Code::bad_file, "merge ", rank, " is ", shown(text),
                        ", expected two texts separated by one space");
        both.clear();
        bool known = append_raw(both, text.substr(0, cut));
        const size_t middle = both.size();
        known = known && append_raw(both, text.substr(cut + 1));
        // Only normal tokens take part, so that no sequence of merges can spell a control token.
        const std::string_view all(both);
        const uint32_t left = known ? t.find_normal(all.substr(0, middle), &work.n_compare) : kNoToken;
        const uint32_t right = known ? t.find_normal(all.substr(middle), &work.n_compare) : kNoToken;
        const uint32_t merged = known ? t.find_normal(all, &work.n_compare) : kNoToken;
        if (left == kNoToken || right == kNoToken || merged == kNoToken) {
            ++t.n_merge_skipped_;
            continue;
        }
        merges.push_back(Merge{uint64_t{left} << 32 | right, rank, merged});
        hashes.push_back(hash_mix(merges.back().pair));
    }
    t.merges_.build(merges, hashes, [this](const Merge& a, const Merge& b) {
        ++work.n_compare;
        return a.pair != b.pair ? a.pair < b.pair : a.rank < b.rank;
    });
    return Status();
}

Status Tokenizer::Loader::read_ends() {
    static const char* const kIds[] = {"eos",       "eot",     "eom",     "bos",     "padding", "unknown", "mask",
                                       "seperator", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"};
    for (size_t i = 0; i < sizeof kIds / sizeof kIds[0]; ++i) {
        const std::string key = say("tokenizer.ggml.", kIds[i], "_token_id");
        const Meta* m = gguf.find(key);
        if (m == nullptr) continue;
        int64_t id = -1;
        if (m->is_array || !m->get_int(0, &id)) return fail(Code::bad_file, "the key '", key, "' is not an integer");
        if (id < 0 || id >= int64_t{t.n_vocab()})
            return fail(Code::bad_file, "'", key, "' is ", id, ", outside the vocabulary of ", t.n_vocab(), " tokens");
        if (i == 0) t.eos_ = static_cast<Token>(id);
        if (i < 3) t.ends_.push_back(static_cast<Token>(id));
        if (i == 3) t.bos_ = static_cast<Token>(id);
    }
    bool add_bos = false;
    AUSPEX_TRY(gguf.get_bool("tokenizer.ggml.add_bos_token", false).get(add_bos));
    if (!add_bos) t.bos_ = -1;
    // The last is deepseek-v3's, with bars of full width and U+2581 for spaces.
    for (const char* text : {"<|im_end|>", "<|endoftext|>",
                             "<\xEF\xBD\x9C"
                             "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"}) {
        const Token id = t.find(text);
        if (id >= 0 && t.kind(id) != TokenKind::normal) t.ends_.push_back(id);
    }
    std::sort(t.ends_.begin(), t.ends_.end());
    t.ends_.erase(std::unique(t.ends_.begin(), t.ends_.end()), t.ends_.end());
    return Status();
}

// ------------------------------------------------------------------------------------- look-ups

uint32_t Tokenizer::find_normal(std::string_view text, uint64_t* n_compare) const {
    if (text.empty()) return token_impl::kNoToken;
    const uint64_t hash = token_impl::hash_bytes(text);
    const uint32_t tag = static_cast<uint32_t>(hash);
    const Span<const Named> bucket = by_bytes_.bucket(hash);
    const Named *n = bucket.begin(), *end = bucket.end();
    if (bucket.size() > 4)
        n = std::partition_point(n, end, [&](const Named& entry) {
            if (n_compare != nullptr) ++*n_compare;
            return entry.tag != tag ? entry.tag < tag : raw(entry) < text;
        });
    else
        while (n != end && (n->tag != tag || raw(*n) != text)) ++n;
    return n != end && n->tag == tag && raw(*n) == text ? n->id : token_impl::kNoToken;
}

const Tokenizer::Merge* Tokenizer::find_merge(uint32_t left, uint32_t right) const {
    const uint64_t pair = uint64_t{left} << 32 | right;
    const Span<const Merge> bucket = merges_.bucket(hash_mix(pair));
    const Merge *m = bucket.begin(), *end = bucket.end();
    if (bucket.size() > 4)
        m = std::partition_point(m, end, [pair](const Merge& entry) { return entry.pair < pair; });
    else
        while (m != end && m->pair != pair) ++m;
    return m != end && m->pair == pair ? m : nullptr;
}

Token Tokenizer::find(std::string_view text) const {
    const auto place = std::lower_bound(specials_.begin(), specials_.end(), text,
                                        [this](uint32_t id, std::string_view t) { return raw(id) < t; });
    if (place != specials_.end() && raw(*place) == text) return static_cast<Token>(*place);
    const uint32_t id = find_normal(text);
    return id == token_impl::kNoToken ? -1 : static_cast<Token>(id);
}

bool Tokenizer::is_end(Token id) const { return std::binary_search(ends_.begin(), ends_.end(), id); }

std::string_view Tokenizer::piece_bytes(Token id, bool special) const {
    if (id < 0 || static_cast<size_t>(id) >= kind_.size()) return {};
    const TokenKind kind = kind_[static_cast<size_t>(id)];
    const std::string_view bytes = raw(static_cast<uint32_t>(id));
    const bool hidden = kind == TokenKind::control || kind == TokenKind::unknown;
    return special || !hidden || token_impl::is_reply_tag(bytes) ? bytes : std::string_view();
}

std::string Tokenizer::decode(Span<const Token> ids, bool special) const {
    std::string out;
    for (const Token id : ids) out.append(piece_bytes(id, special));
    return out;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

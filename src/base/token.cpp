#include "token.h"

#include <algorithm>

namespace auspex {
namespace detail {
namespace token_impl {

constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kMaxTokens = size_t{1} << 22;
constexpr size_t kMaxTokenBytes = size_t{1} << 20;
constexpr size_t kMaxPoolBytes = size_t{1} << 30;
constexpr size_t kMaxPieceBytes = size_t{1} << 30;  ///< longer pieces are cut, so that positions fit 32 bits
constexpr size_t kShort = 32;                       ///< up to here a scan beats a queue

/// The byte alphabet of GPT-2: printable bytes stand for themselves, the other 68 for U+0100 onwards.
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

/// Appends the bytes that `text`, written in the byte alphabet, stands for.
bool append_raw(std::string& to, std::string_view text) {
    size_t n = 0;
    for (size_t at = 0; at < text.size(); at += n) {
        const uint32_t c = decode_utf8(text.data() + at, text.size() - at, &n);
        if (c >= 0x144 || kAlphabet.byte_of[c] < 0) return false;
        to += static_cast<char>(static_cast<unsigned char>(kAlphabet.byte_of[c]));
    }
    return true;
}

uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0x9E3779B97F4A7C15ull;
    x ^= x >> 29;
    x *= 0xD6E8FEB86659FD93ull;
    return x ^ (x >> 32);
}
uint64_t hash_bytes(std::string_view s) {
    uint64_t h = s.size();
    for (; s.size() >= 8; s.remove_prefix(8)) h = mix(h ^ load<uint64_t>(s.data()));
    uint64_t tail = 0;
    std::memcpy(&tail, s.data(), s.size());
    return mix(h ^ tail);
}
/// A power of two with at least half of it free once n entries are in.
size_t table_size(size_t n) {
    size_t size = 16;
    while (size < n * 2) size *= 2;
    return size;
}

/// A text for a message: at most 40 bytes of it, printable.
std::string shown(std::string_view text) {
    std::string s;
    for (const char c : text.substr(0, 40))
        s += static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x7F ? c : '?';
    return text.size() > 40 ? s + "..." : s;
}

/// The strings of a required array, or why there are none.
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

}  // namespace token_impl

struct Tokenizer::Scratch {
    EncodeWork& work;
    std::string_view piece;
    std::vector<uint32_t> id, next, prev, rank, merged;
    std::vector<uint64_t> queue;
};

// ------------------------------------------------------------------------------------- loading

Result<Tokenizer> Tokenizer::load(const Gguf& gguf) {
    using namespace token_impl;
    Tokenizer t;
    std::string model, pre;
    if (Status s = check_name(gguf, "tokenizer.ggml.model", "gpt2 (byte-level BPE)", &model); !s.ok()) return s;
    if (model != "gpt2")
        return fail(Code::unsupported, "tokenizer.ggml.model is '", shown(model),
                    "', supported: gpt2 (byte-level BPE)");
    if (Status s = check_name(gguf, "tokenizer.ggml.pre", "qwen2, qwen35", &pre); !s.ok()) return s;
    if (pre != "qwen2" && pre != "qwen35")
        return fail(Code::unsupported, "tokenizer.ggml.pre is '", shown(pre), "', supported: qwen2, qwen35");
    t.split_ = pre == "qwen2" ? Split::qwen2 : Split::qwen35;
    if (Status s = t.read_tokens(gguf); !s.ok()) return s;
    if (Status s = t.read_merges(gguf); !s.ok()) return s;
    if (Status s = t.read_ends(gguf); !s.ok()) return s;
    return t;
}

Status Tokenizer::read_tokens(const Gguf& gguf) {
    using namespace token_impl;
    const std::vector<std::string_view>* texts = nullptr;
    if (Status s = string_array(gguf, "tokenizer.ggml.tokens", &texts); !s.ok()) return s;
    const size_t n = texts->size();
    if (n == 0 || n > kMaxTokens)
        return fail(Code::bad_file, "the vocabulary has ", n, " tokens, expected 1..", kMaxTokens);
    const Meta* types = gguf.find("tokenizer.ggml.token_type");
    if (types == nullptr || !types->is_array || !types->is_integer())
        return fail(Code::bad_file, "the key 'tokenizer.ggml.token_type' is ",
                    types == nullptr ? "missing" : "not an array of integers", ", expected one i32 for each of ", n,
                    " tokens: convert the file again");
    if (types->n != n)
        return fail(Code::bad_file, "'tokenizer.ggml.token_type' has ", types->n,
                    " elements, expected one for each of ", n, " tokens");

    size_t n_byte = 0;
    for (const std::string_view text : *texts) {
        if (text.size() > kMaxTokenBytes)
            return fail(Code::bad_file, "a token of ", text.size(), " bytes, at most ", kMaxTokenBytes, " are allowed");
        n_byte += text.size();
        if (n_byte > kMaxPoolBytes) return fail(Code::bad_file, "the tokens hold more than ", kMaxPoolBytes, " bytes");
    }
    pool_.reserve(n_byte);
    offset_.reserve(n + 1);
    kind_.reserve(n);
    for (uint32_t id = 0; id < n; ++id) {
        offset_.push_back(static_cast<uint32_t>(pool_.size()));
        const std::string_view text = (*texts)[id];
        int64_t type = 0;
        if (!types->get_int(id, &type) || type < 1 || type > 6)
            return fail(Code::bad_file, "token ", id, " ('", shown(text), "') has type ", type, ", expected 1..6");
        kind_.push_back(static_cast<TokenKind>(type));
        if (kind_.back() == TokenKind::normal) {
            if (!append_raw(pool_, text))
                return fail(Code::bad_file, "token ", id, " ('", shown(text),
                            "') is no text of the GPT-2 byte alphabet");
        } else if (kind_.back() == TokenKind::byte) {
            const auto digit = [](char c) {
                return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
            };
            const bool form = text.size() == 6 && text.substr(0, 3) == "<0x" && text[5] == '>';
            if (!form || digit(text[3]) < 0 || digit(text[4]) < 0)
                return fail(Code::bad_file, "byte token ", id, " is '", shown(text), "', expected the form <0xAB>");
            pool_ += static_cast<char>(static_cast<unsigned char>(digit(text[3]) * 16 + digit(text[4])));
        } else if (kind_.back() != TokenKind::unused) {
            pool_.append(text);
            if (!text.empty()) specials_.push_back(id);
        }
    }
    offset_.push_back(static_cast<uint32_t>(pool_.size()));

    // Of equal texts the first id wins.
    by_bytes_.assign(table_size(n), kNone);
    const size_t mask = by_bytes_.size() - 1;
    for (uint32_t id = 0; id < n; ++id) {
        if (kind_[id] != TokenKind::normal || raw(id).empty()) continue;
        size_t at = hash_bytes(raw(id)) & mask;
        while (by_bytes_[at] != kNone && raw(by_bytes_[at]) != raw(id)) at = (at + 1) & mask;
        if (by_bytes_[at] == kNone) by_bytes_[at] = id;
    }
    for (uint32_t b = 0; b < 256; ++b) {
        const char c = static_cast<char>(static_cast<unsigned char>(b));
        byte_id_[b] = find_normal(std::string_view(&c, 1));
        if (byte_id_[b] == kNone)
            return fail(Code::bad_file, "the vocabulary has no token for the single byte ", b,
                        "; byte-level BPE needs all 256: convert the file again");
    }

    std::sort(specials_.begin(), specials_.end(), [this](uint32_t a, uint32_t b) {
        const int order = raw(a).compare(raw(b));
        return order != 0 ? order < 0 : a < b;
    });
    uint32_t at = 0;
    for (uint32_t b = 0; b < 256; ++b) {
        special_from_[b] = at;
        while (at < specials_.size() && static_cast<unsigned char>(raw(specials_[at])[0]) == b) ++at;
    }
    special_from_[256] = at;
    return Status();
}

Status Tokenizer::read_merges(const Gguf& gguf) {
    using namespace token_impl;
    const std::vector<std::string_view>* texts = nullptr;
    if (Status s = string_array(gguf, "tokenizer.ggml.merges", &texts); !s.ok()) return s;
    if (texts->size() > kMaxTokens * 2)
        return fail(Code::bad_file, texts->size(), " merges, at most ", kMaxTokens * 2, " are allowed");
    merges_.assign(table_size(texts->size()), Merge());
    const size_t mask = merges_.size() - 1;
    std::string both;
    for (uint32_t rank = 0; rank < texts->size(); ++rank) {
        const std::string_view text = (*texts)[rank];
        // The first space from position 1 on: a lone space cannot occur in the byte alphabet, so
        // position 0 is only skipped for files that follow the rule to the letter.
        const size_t cut = text.find(' ', 1);
        if (cut == std::string_view::npos || cut + 1 == text.size())
            return fail(Code::bad_file, "merge ", rank, " is '", shown(text),
                        "', expected two texts with one space between");
        both.clear();
        bool known = append_raw(both, text.substr(0, cut));
        const size_t middle = both.size();
        known = known && append_raw(both, text.substr(cut + 1));
        // Only normal tokens take part: no sequence of merges can spell a control token.
        const std::string_view all(both);
        const uint32_t left = known ? find_normal(all.substr(0, middle)) : kNone;
        const uint32_t right = known ? find_normal(all.substr(middle)) : kNone;
        const uint32_t merged = known ? find_normal(all) : kNone;
        if (left == kNone || right == kNone || merged == kNone) {
            ++n_merge_skipped_;
            continue;
        }
        const uint64_t pair = uint64_t{left} << 32 | right;
        size_t at = mix(pair) & mask;
        while (merges_[at].pair != UINT64_MAX && merges_[at].pair != pair) at = (at + 1) & mask;
        if (merges_[at].pair == UINT64_MAX) {
            merges_[at].pair = pair;
            merges_[at].rank = rank;
            merges_[at].merged = merged;
        }
    }
    return Status();
}

Status Tokenizer::read_ends(const Gguf& gguf) {
    static const char* const kIds[] = {"eos",       "eot",     "eom",     "bos",     "padding", "unknown", "mask",
                                       "seperator", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"};
    for (size_t i = 0; i < sizeof kIds / sizeof kIds[0]; ++i) {
        const std::string key = say("tokenizer.ggml.", kIds[i], "_token_id");
        const Meta* m = gguf.find(key);
        if (m == nullptr) continue;
        int64_t id = -1;
        if (m->is_array || !m->get_int(0, &id)) return fail(Code::bad_file, "the key '", key, "' is no integer");
        if (id < 0 || id >= int64_t{n_vocab()})
            return fail(Code::bad_file, "'", key, "' is ", id, ", outside the vocabulary of ", n_vocab(), " tokens");
        if (i == 0) eos_ = static_cast<Token>(id);
        if (i < 3) ends_.push_back(static_cast<Token>(id));
    }
    for (const char* text : {"<|im_end|>", "<|endoftext|>"}) {
        const Token id = find(text);
        if (id >= 0 && kind(id) != TokenKind::normal) ends_.push_back(id);
    }
    std::sort(ends_.begin(), ends_.end());
    ends_.erase(std::unique(ends_.begin(), ends_.end()), ends_.end());
    return Status();
}

// ------------------------------------------------------------------------------------- looking

uint32_t Tokenizer::find_normal(std::string_view text) const {
    if (by_bytes_.empty() || text.empty()) return token_impl::kNone;
    const size_t mask = by_bytes_.size() - 1;
    size_t at = token_impl::hash_bytes(text) & mask;
    while (by_bytes_[at] != token_impl::kNone && raw(by_bytes_[at]) != text) at = (at + 1) & mask;
    return by_bytes_[at];
}

const Tokenizer::Merge* Tokenizer::find_merge(uint32_t left, uint32_t right) const {
    const uint64_t pair = uint64_t{left} << 32 | right;
    const size_t mask = merges_.size() - 1;
    size_t at = token_impl::mix(pair) & mask;
    while (merges_[at].pair != UINT64_MAX && merges_[at].pair != pair) at = (at + 1) & mask;
    return merges_[at].pair == pair ? &merges_[at] : nullptr;
}

Token Tokenizer::find(std::string_view text) const {
    const auto place = std::lower_bound(specials_.begin(), specials_.end(), text,
                                        [this](uint32_t id, std::string_view t) { return raw(id) < t; });
    if (place != specials_.end() && raw(*place) == text) return static_cast<Token>(*place);
    const uint32_t id = find_normal(text);
    return id == token_impl::kNone ? -1 : static_cast<Token>(id);
}

bool Tokenizer::is_end(Token id) const { return std::binary_search(ends_.begin(), ends_.end(), id); }

std::string_view Tokenizer::piece_bytes(Token id, bool special) const {
    if (id < 0 || static_cast<size_t>(id) >= kind_.size()) return {};
    const TokenKind kind = kind_[static_cast<size_t>(id)];
    if (!special && (kind == TokenKind::control || kind == TokenKind::unknown)) return {};
    return raw(static_cast<uint32_t>(id));
}

std::string Tokenizer::decode(Span<const Token> ids, bool special) const {
    std::string out;
    for (const Token id : ids) out.append(piece_bytes(id, special));
    return out;
}

// ------------------------------------------------------------------------------------ encoding

std::vector<Token> Tokenizer::encode(std::string_view text, bool special, EncodeWork* work) const {
    EncodeWork unused;
    std::string repaired;
    if (find_bad_utf8(text) < text.size()) {
        append_repaired(repaired, text);
        text = repaired;
    }
    std::vector<Range> control;
    if (special) control.push_back(Range{0, text.size()});
    return encode_ranges(text, control, work != nullptr ? *work : unused);
}

std::vector<Token> Tokenizer::encode(const ChatPrompt& prompt) const {
    EncodeWork unused;
    std::string text;
    std::vector<Range> control;
    for (const ChatPrompt::Piece& piece : prompt.pieces) {
        const size_t from = text.size();
        append_repaired(text, piece.text);
        if (!piece.from_template || text.size() == from) continue;
        if (!control.empty() && control.back().to == from)
            control.back().to = text.size();
        else
            control.push_back(Range{from, text.size()});
    }
    return encode_ranges(text, control, unused);
}

/// The longest special token at text[at]; one that ends beyond `control_end` must be user-defined.
uint32_t Tokenizer::special_at(std::string_view text, size_t at, size_t control_end, size_t* length) const {
    const unsigned char first = static_cast<unsigned char>(text[at]);
    auto from = specials_.begin() + special_from_[first], to = specials_.begin() + special_from_[first + 1];
    uint32_t best = token_impl::kNone;
    // All of [from, to) agree with the text in their first `n` bytes; the shortest come first.
    for (size_t n = 1; from != to; ++n) {
        for (; from != to && raw(*from).size() == n; ++from) {
            const bool allowed = kind_[*from] == TokenKind::user_defined || at + n <= control_end;
            if (allowed && (best == token_impl::kNone || *length < n)) {
                best = *from;
                *length = n;
            }
        }
        if (from == to || at + n == text.size()) break;
        const unsigned char want = static_cast<unsigned char>(text[at + n]);
        const auto byte = [this, n](uint32_t id) { return static_cast<unsigned char>(raw(id)[n]); };
        from = std::partition_point(from, to, [&](uint32_t id) { return byte(id) < want; });
        to = std::partition_point(from, to, [&](uint32_t id) { return byte(id) == want; });
    }
    return best;
}

std::vector<Token> Tokenizer::encode_ranges(std::string_view text, const std::vector<Range>& control,
                                            EncodeWork& work) const {
    std::vector<Token> ids;
    if (kind_.empty()) return ids;
    Scratch scratch{work, {}, {}, {}, {}, {}, {}, {}};
    size_t plain_from = 0, at = 0;
    auto range = control.begin();
    while (at < text.size()) {
        const unsigned char first = static_cast<unsigned char>(text[at]);
        if (special_from_[first] == special_from_[first + 1u]) {
            ++at;
            continue;
        }
        while (range != control.end() && range->to <= at) ++range;
        const size_t control_end = range != control.end() && range->from <= at ? range->to : 0;
        size_t length = 0;
        const uint32_t id = special_at(text, at, control_end, &length);
        if (id == token_impl::kNone) {
            ++at;
            continue;
        }
        encode_plain(text.substr(plain_from, at - plain_from), scratch, ids);
        ids.push_back(static_cast<Token>(id));
        at += length;
        plain_from = at;
    }
    encode_plain(text.substr(plain_from), scratch, ids);
    return ids;
}

void Tokenizer::encode_plain(std::string_view text, Scratch& scratch, std::vector<Token>& ids) const {
    for (size_t at = 0; at < text.size();) {
        const size_t end = split_piece(text, at, split_, &scratch.work.n_look);
        while (at < end) {
            scratch.piece = text.substr(at, std::min(end - at, token_impl::kMaxPieceBytes));
            at += scratch.piece.size();
            if (scratch.piece.size() <= token_impl::kShort)
                merge_short(scratch, ids);
            else
                merge_long(scratch, ids);
        }
    }
}

/// Merges the pair of lowest rank, the leftmost of equals, until none is left: by scanning.
void Tokenizer::merge_short(Scratch& scratch, std::vector<Token>& ids) const {
    using token_impl::kNone;
    uint32_t id[token_impl::kShort];
    const Merge* merge[token_impl::kShort];  // of i and i + 1
    size_t n = scratch.piece.size();
    for (size_t i = 0; i < n; ++i) id[i] = byte_id_[static_cast<unsigned char>(scratch.piece[i])];
    for (size_t i = 0; i + 1 < n; ++i) merge[i] = find_merge(id[i], id[i + 1]);
    scratch.work.n_pair += n - 1;
    while (n > 1) {
        size_t best = n;
        uint32_t rank = kNone;
        for (size_t i = 0; i + 1 < n; ++i) {
            if (merge[i] != nullptr && merge[i]->rank < rank) {
                best = i;
                rank = merge[i]->rank;
            }
        }
        scratch.work.n_queue += n;
        if (best == n) break;
        id[best] = merge[best]->merged;
        for (size_t i = best + 1; i + 1 < n; ++i) id[i] = id[i + 1];
        for (size_t i = best + 1; i + 2 < n; ++i) merge[i] = merge[i + 1];
        --n;
        if (best > 0) merge[best - 1] = find_merge(id[best - 1], id[best]);
        if (best + 1 < n) merge[best] = find_merge(id[best], id[best + 1]);
        scratch.work.n_pair += 2;
    }
    for (size_t i = 0; i < n; ++i) ids.push_back(static_cast<Token>(id[i]));
}

/// The same by a queue of (rank, position). An entry is stale when the pair that now begins at its
/// position has another rank.
void Tokenizer::merge_long(Scratch& s, std::vector<Token>& ids) const {
    using token_impl::kNone;
    const uint32_t n = static_cast<uint32_t>(s.piece.size());
    for (std::vector<uint32_t>* v : {&s.id, &s.next, &s.prev, &s.rank, &s.merged}) v->resize(n);
    for (uint32_t i = 0; i < n; ++i) {
        s.id[i] = byte_id_[static_cast<unsigned char>(s.piece[i])];
        s.next[i] = i + 1;
        s.prev[i] = i - 1;  // of 0: kNone
    }
    const auto look_up = [&](uint32_t i) {
        const uint32_t j = s.next[i];
        const Merge* m = j < n ? find_merge(s.id[i], s.id[j]) : nullptr;
        ++s.work.n_pair;
        s.rank[i] = m != nullptr ? m->rank : kNone;
        s.merged[i] = m != nullptr ? m->merged : kNone;
        return m != nullptr;
    };
    const auto later = [](uint64_t a, uint64_t b) { return a > b; };
    s.queue.clear();
    for (uint32_t i = 0; i < n; ++i)
        if (look_up(i)) s.queue.push_back(uint64_t{s.rank[i]} << 32 | i);
    std::make_heap(s.queue.begin(), s.queue.end(), later);
    const auto push = [&](uint32_t i) {
        s.queue.push_back(uint64_t{s.rank[i]} << 32 | i);
        std::push_heap(s.queue.begin(), s.queue.end(), later);
    };
    while (!s.queue.empty()) {
        const uint64_t entry = s.queue.front();
        std::pop_heap(s.queue.begin(), s.queue.end(), later);
        s.queue.pop_back();
        ++s.work.n_queue;
        const uint32_t i = static_cast<uint32_t>(entry);
        if (s.rank[i] != static_cast<uint32_t>(entry >> 32)) continue;
        const uint32_t gone = s.next[i];
        s.id[i] = s.merged[i];
        s.rank[gone] = kNone;
        s.next[i] = s.next[gone];
        if (s.next[i] < n) s.prev[s.next[i]] = i;
        if (look_up(i)) push(i);
        if (s.prev[i] != kNone && look_up(s.prev[i])) push(s.prev[i]);
    }
    for (uint32_t i = 0; i < n; i = s.next[i]) ids.push_back(static_cast<Token>(s.id[i]));
}

}  // namespace detail
}  // namespace auspex

#include "logprobs.h"

#include "log_softmax.h"

#include <algorithm>

namespace server {

namespace {

constexpr int kMaxTop = 20;

Status name_token(const auspex::Model& model, Token id, TokenLogprob* to) {
    to->id = id;
    return model.decode(Span<const Token>(&id, 1), {true}).get(to->bytes);
}

Json one(const TokenLogprob& t) {
    Json bytes = Json::array();
    for (const char c : t.bytes) bytes.push_back(static_cast<unsigned char>(c));
    return {{"id", t.id}, {"token", t.bytes}, {"logprob", t.logprob}, {"bytes", bytes}};
}

/// Two tokens must not have one name, which bytes that are no text would have as U+FFFD.
std::string text_name(const std::string& bytes) {
    if (is_utf8(bytes)) return bytes;
    std::string name = "bytes:";
    for (const char c : bytes) {
        char code[8];
        std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
        name += code;
    }
    return name;
}

}  // namespace

void refuse_included_logprobs(const Fields& fields, const std::string& instead) {
    const Json wanted = "message.output_text.logprobs";
    const Json* include = fields.find("include");
    if (include && include->is_array() && std::find(include->begin(), include->end(), wanted) != include->end())
        fields.keep(not_supported("include has " + dump(wanted) + ", which is not available here; " + instead));
}

int read_logprobs(const Fields& fields, bool chat) {
    int64_t n = 0;
    refuse_included_logprobs(fields, chat ? "use logprobs and top_logprobs" : "use logprobs of /v1/completions");
    if (!chat) {
        fields.refuse_wish("top_logprobs", "use logprobs of /v1/completions");
        const Json* value = fields.find("logprobs");
        if (!value || *value == false) return -1;
        fields.integer("logprobs", 0, kMaxTop, &n);
        return static_cast<int>(n);
    }
    bool wanted = false;
    fields.boolean("logprobs", &wanted);
    fields.integer("top_logprobs", 0, kMaxTop, &n);
    if (!wanted && n > 0) fields.refuse("logprobs", "true, because top_logprobs is given");
    return wanted ? static_cast<int>(n) : -1;
}

Result<TokenLogprob> find_logprob(const auspex::Model& model, Span<const float> logits, Token id, int n_top) {
    const std::vector<Token> top = find_top(logits, static_cast<size_t>(std::max(n_top, 1)));
    const double whole = log_of_sum(logits, top);
    const auto logprob = [&](Token t) { return static_cast<double>(logits[static_cast<size_t>(t)]) - whole; };
    TokenLogprob found;
    Status s = name_token(model, id, &found);
    found.logprob = logprob(id);
    for (size_t i = 0; s.ok() && i < top.size() && n_top > 0; ++i) {
        found.top.emplace_back();
        s = name_token(model, top[i], &found.top.back());
        found.top.back().logprob = logprob(top[i]);
    }
    if (!s.ok()) return s;
    return found;
}

Json chat_logprobs(const std::vector<TokenLogprob>& all) {
    Json content = Json::array();
    for (const TokenLogprob& t : all) {
        Json entry = one(t), top = Json::array();
        for (const TokenLogprob& other : t.top) top.push_back(one(other));
        entry["top_logprobs"] = std::move(top);
        content.push_back(std::move(entry));
    }
    return {{"content", std::move(content)}};
}

// The table of well-formed byte sequences of the Unicode Standard, section 3.9.
size_t CharacterCounter::add(char c) {
    const unsigned byte = static_cast<unsigned char>(c);
    if (n_missing_ > 0 && byte >= lowest_ && byte <= highest_) {
        ++n_held_;
        --n_missing_;
    } else {
        if (n_missing_ > 0) n_ += static_cast<size_t>(n_held_) - 1;  // it stays incomplete: each byte counts
        ++n_;
        n_held_ = 1;
        n_missing_ = byte < 0xc2 || byte > 0xf4 ? 0 : byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    }
    const bool is_first = n_held_ == 1;
    lowest_ = is_first && byte == 0xe0 ? 0xa0 : is_first && byte == 0xf0 ? 0x90 : 0x80;
    highest_ = is_first && byte == 0xed ? 0x9f : is_first && byte == 0xf4 ? 0x8f : 0xbf;
    return n_ - 1;
}

Json text_logprobs(const std::vector<TokenLogprob>& all, CharacterCounter* counter) {
    Json tokens = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
    for (const TokenLogprob& t : all) {
        tokens.push_back(text_name(t.bytes));
        values.push_back(t.logprob);
        Json top = Json::object();
        for (const TokenLogprob& other : t.top) top[text_name(other.bytes)] = other.logprob;
        tops.push_back(std::move(top));
        size_t offset = counter->n();
        for (size_t i = 0; i < t.bytes.size(); ++i) {
            const size_t at = counter->add(t.bytes[i]);
            if (i == 0) offset = at;
        }
        offsets.push_back(offset);
    }
    return {{"tokens", tokens}, {"token_logprobs", values}, {"top_logprobs", tops}, {"text_offset", offsets}};
}

}  // namespace server

#include "logprobs.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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

// A row has a quarter of a million logits, and a token of a small model takes less than a millisecond on a GPU: the
// loops over a row are written so that a compiler makes vectors of them.
constexpr size_t kWidth = 16, kBlock = 256;

/// The ids of the n largest logits, the largest first; among equal ones the lower id.
std::vector<Token> find_top(Span<const float> logits, size_t n) {
    const auto before = [&](Token a, Token b) {
        const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
        return x != y ? x > y : a < b;
    };
    std::vector<Token> top;
    for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
        const size_t end = std::min(begin + kBlock, logits.size());
        float largest[kWidth];
        std::fill(largest, largest + kWidth, logits[begin]);
        size_t i = begin;
        for (; i + kWidth <= end; i += kWidth)
            for (size_t k = 0; k < kWidth; ++k) largest[k] = std::max(largest[k], logits[i + k]);
        for (; i < end; ++i) largest[0] = std::max(largest[0], logits[i]);
        const float max = *std::max_element(largest, largest + kWidth);
        if (top.size() == n && max <= logits[static_cast<size_t>(top.back())]) continue;
        for (i = begin; i < end; ++i) {
            const Token t = static_cast<Token>(i);
            if (top.size() == n && !before(t, top.back())) continue;
            if (top.size() == n) top.pop_back();
            top.insert(std::upper_bound(top.begin(), top.end(), t, before), t);
        }
    }
    return top;
}

/// exp(-x) for x >= 0, and exp(-87) beyond that: 2^-n from the bits of a float, times the series of 2^f for |f| <= 1/2.
/// Relative error 2e-7 (1 + x).
inline float exp_of_minus(float x) {
    int32_t bits = 0;
    std::memcpy(&bits, &x, sizeof bits);
    bits = bits < 0x42ae0000 ? bits : 0x42ae0000;  // 87; std::min, or floats here, would keep GCC from making vectors
    std::memcpy(&x, &bits, sizeof x);
    const float t = x * 1.44269504f;
    const int32_t n = static_cast<int32_t>(t + 0.5f);
    const float f = static_cast<float>(n) - t;
    const float low = 1.0f + f * (6.93147181e-1f + f * (2.40226507e-1f + f * 5.55041087e-2f));
    const float series = low + f * f * f * f * (9.61812911e-3f + f * (1.33335581e-3f + f * 1.54035304e-4f));
    bits = (127 - n) * (1 << 23);
    float power = 0;
    std::memcpy(&power, &bits, sizeof power);
    return power * series;
}

/// The sum of exp(logit - largest).
double sum_of_exp(Span<const float> logits, float largest) {
    double sum[4] = {};
    for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
        const size_t n = std::min(kBlock, logits.size() - begin);
        const float* x = logits.begin() + begin;
        float term[kBlock] = {};
        for (size_t i = 0; i < n; ++i) term[i] = exp_of_minus(largest - x[i]);
        for (size_t i = 0; i < kBlock; ++i) sum[i % 4] += static_cast<double>(term[i]);
    }
    return sum[0] + sum[1] + sum[2] + sum[3];
}

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

}  // namespace

int read_logprobs(const Fields& fields, bool chat) {
    int64_t n = 0;
    if (!chat) {
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
    const float largest = logits[static_cast<size_t>(top[0])];
    double sum = sum_of_exp(logits, largest);
    for (const Token t : top) {  // exactly, so that their probabilities are never more than 1 together
        const float below = largest - logits[static_cast<size_t>(t)];
        sum += std::exp(-static_cast<double>(below)) - static_cast<double>(exp_of_minus(below));
    }
    const double whole = static_cast<double>(largest) + std::log(sum);
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

Json text_logprobs(const std::vector<TokenLogprob>& all, size_t* n_character) {
    Json tokens = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
    for (const TokenLogprob& t : all) {
        tokens.push_back(text_name(t.bytes));
        values.push_back(t.logprob);
        Json top = Json::object();
        for (const TokenLogprob& other : t.top) top[text_name(other.bytes)] = other.logprob;
        tops.push_back(std::move(top));
        const bool goes_on = *n_character > 0 && !t.bytes.empty() && !begins_character(t.bytes[0]);
        offsets.push_back(*n_character - (goes_on ? 1 : 0));
        *n_character += static_cast<size_t>(std::count_if(t.bytes.begin(), t.bytes.end(), begins_character));
    }
    return {{"tokens", tokens}, {"token_logprobs", values}, {"top_logprobs", tops}, {"text_offset", offsets}};
}

}  // namespace server

#include "sampler.h"

#include "../base/float_mode.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

Philox philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t key) {
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
        const uint32_t n0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0, n2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
        c1 = static_cast<uint32_t>(b);
        c3 = static_cast<uint32_t>(a);
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

namespace sample_impl {
namespace {

float gumbel_of(uint32_t r) {
    // E = -log1p(-v) keeps its resolution where it is small and the noise large.
    const double v = (static_cast<double>(r) + 0.5) / 4294967296.0;
    return static_cast<float>(-std::log(-std::log1p(-v)));
}

/// No noise exceeds -ln(-log1p(-2^-33)) = 22.87: an id that is further below the best cannot win.
constexpr float kGumbelMax = 22.88f;

/// What gumbel_of(r) cannot exceed, without its logarithms: where v >= 2^-n, -ln(-log1p(-v)) <= -ln(v) <= n ln 2.
float gumbel_limit(uint32_t r) {
    const float v = static_cast<float>(r) + 0.5f;  // times 2^32
    uint32_t bits = 0;
    std::memcpy(&bits, &v, sizeof(bits));
    return 0.69315f * static_cast<float>(127 + 32 - static_cast<int>(bits >> 23));
}

template <class Value>
Status out_of_range(const char* name, Value found, const char* expected) {
    return fail(Code::bad_argument, "sampling.", name, " is ", found, ", expected ", expected);
}

}  // namespace
}  // namespace sample_impl

float gumbel(uint64_t seed, uint64_t position, uint32_t id) {
    const Philox p = philox(id / 4, static_cast<uint32_t>(position), 0, 0, seed);
    return sample_impl::gumbel_of(p.word[id % 4]);
}

Status check_sampling(const Sampling& s) {
    using sample_impl::out_of_range;
    static_assert(kSamplingBytes == 40, "a new field has a range here, and operator== compares it");
    // Written so that a NaN fails too.
    if (!(s.temperature >= 0 && s.temperature <= 100))
        return out_of_range("temperature", double{s.temperature}, "0..100");
    if (!(s.top_k >= 0)) return out_of_range("top_k", s.top_k, "0 (all) or more");
    if (!(s.top_p > 0 && s.top_p <= 1)) return out_of_range("top_p", double{s.top_p}, "above 0, at most 1");
    if (!(s.min_p >= 0 && s.min_p <= 1)) return out_of_range("min_p", double{s.min_p}, "0..1");
    if (!(s.repeat_penalty > 0 && s.repeat_penalty <= 100))
        return out_of_range("repeat_penalty", double{s.repeat_penalty}, "above 0, at most 100");
    if (!(std::fabs(s.frequency_penalty) <= 100))
        return out_of_range("frequency_penalty", double{s.frequency_penalty}, "-100..100");
    if (!(std::fabs(s.presence_penalty) <= 100))
        return out_of_range("presence_penalty", double{s.presence_penalty}, "-100..100");
    for (size_t i = 0; i < s.logit_bias.size(); ++i) {
        const LogitBias& b = s.logit_bias[i];
        if (!(std::fabs(b.bias) <= 1000))
            return out_of_range(say("logit_bias[", i, "] (id ", b.id, ")").c_str(), double{b.bias}, "-1000..1000");
    }
    if (s.penalty_window > 4096) return out_of_range("penalty_window", s.penalty_window, "0..4096");
    return {};
}

namespace sample_impl {
namespace {

bool penalises(const Sampling& s) {
    return s.repeat_penalty != 1 || s.frequency_penalty != 0 || s.presence_penalty != 0;
}

/// Where an id is among `ids`, or among all; n: it is not.
size_t index_of(Token id, Span<const Token> ids, size_t n) {
    if (ids.empty()) return std::min(static_cast<size_t>(id), n);
    const Token* at = std::lower_bound(ids.begin(), ids.end(), id);
    return at != ids.end() && *at == id ? static_cast<size_t>(at - ids.begin()) : n;
}

/// The first of the largest logits; a NaN never wins.
size_t largest(Span<const float> logits) {
    size_t best = 0;
    float max = -INFINITY;
    for (size_t i = 0; i < logits.size(); ++i) {
        if (!(logits[i] > max)) continue;
        max = logits[i];
        best = i;
    }
    return best;
}

}  // namespace
}  // namespace sample_impl

Status Sampler::open(const Allocator& from, uint32_t n_vocab) {
    AUSPEX_TRY(candidates_.take(from, uint64_t{n_vocab} * sizeof(Candidate), "the sampler's candidates"));
    return counts_.take(from, uint64_t{n_vocab} * sizeof(uint16_t), "the sampler's counts");
}

/// l = l > 0 ? l / repeat : l * repeat, then l -= count * frequency + presence, once for each id in the window.
void Sampler::penalise(const Sampling& s, Span<const Token> before, Span<const Token> ids) {
    Candidate* c = candidates_.as<Candidate>();
    uint16_t* count = counts_.as<uint16_t>();
    const size_t n = std::min<size_t>(before.size(), s.penalty_window);
    const Span<const Token> window = before.subspan(before.size() - n, n);
    for (const Token id : window) ++count[id];
    for (const Token id : window) {
        const float k = count[id];
        if (count[id] == 0) continue;  // an earlier occurrence did it
        count[id] = 0;
        const size_t i = sample_impl::index_of(id, ids, SIZE_MAX);
        if (i == SIZE_MAX) continue;
        float& l = c[i].logit;
        l = l > 0 ? l / s.repeat_penalty : l * s.repeat_penalty;
        l -= k * s.frequency_penalty + s.presence_penalty;
    }
}

/// Moves the smallest set with this share of the probability to the front. c: in the order of ids, because the order of
/// a sum decides how it is rounded.
size_t Sampler::keep_top_p(Candidate* c, size_t n, float top_p) {
    const float top = std::min_element(c, c + n, precedes)->logit;
    double total = 0;
    for (size_t i = 0; i < n; ++i) total += std::exp(double{c[i].logit} - double{top});
    const auto follows = [](const Candidate& a, const Candidate& b) { return precedes(b, a); };
    std::make_heap(c, c + n, follows);
    double mass = 0;
    size_t n_kept = 0;
    while (n_kept < n && mass < double{top_p} * total) {
        std::pop_heap(c, c + (n - n_kept), follows);
        mass += std::exp(double{c[n - n_kept - 1].logit} - double{top});
        ++n_kept;
    }
    std::copy(c + (n - n_kept), c + n, c);
    return n_kept;
}

/// top-k, top-p and the lowest logit that min-p keeps.
Sampler::Kept Sampler::filter(Candidate* c, size_t n, const Sampling& s) {
    Kept kept{n, -INFINITY};
    if (s.top_k > 0 && static_cast<size_t>(s.top_k) < n) {
        kept.n = static_cast<size_t>(s.top_k);
        std::nth_element(c, c + kept.n, c + n, precedes);
        if (s.top_p < 1) std::sort(c, c + kept.n, [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    }
    if (s.top_p < 1) kept.n = keep_top_p(c, kept.n, s.top_p);
    if (s.min_p > 0) kept.lowest = std::min_element(c, c + kept.n, precedes)->logit + std::log(s.min_p);
    return kept;
}

/// Temperature and Gumbel-max: the id with the largest logit / temperature + noise, on ties the lower id. Nearly all
/// ids are passed over before their noise is computed, which takes two logarithms.
Token Sampler::draw(const Candidate* c, Kept kept, const Sampling& s, uint64_t position) {
    using namespace sample_impl;
    const Candidate& first = *std::min_element(c, c + kept.n, precedes);
    const float top = first.logit / s.temperature;
    // No logit above minus infinity, or a quotient beyond float: noise cannot change the order.
    if (!std::isfinite(top)) return static_cast<Token>(first.id);
    Candidate best{top + gumbel(s.seed, position, first.id), first.id};  // logit: with temperature and noise
    Philox noise{};
    uint32_t noise_of = UINT32_MAX;  // id / 4
    for (size_t i = 0; i < kept.n; ++i) {
        const uint32_t id = c[i].id;
        if (c[i].logit < kept.lowest) continue;
        const float scaled = c[i].logit / s.temperature;
        if (scaled + kGumbelMax < best.logit) continue;
        if (noise_of != id / 4) {
            noise_of = id / 4;
            noise = philox(noise_of, static_cast<uint32_t>(position), 0, 0, s.seed);
        }
        const uint32_t r = noise.word[id % 4];
        if (scaled + gumbel_limit(r) < best.logit) continue;
        const Candidate one{scaled + gumbel_of(r), id};
        if (precedes(one, best)) best = one;
    }
    return static_cast<Token>(best.id);
}

/// Writes the candidates, with bias and penalties.
void Sampler::fill(Span<const float> logits, const Sampling& s, Span<const Token> before, Span<const Token> ids) {
    Candidate* c = candidates_.as<Candidate>();
    for (uint32_t i = 0; i < logits.size(); ++i)
        c[i] = {std::isnan(logits[i]) ? -INFINITY : logits[i], ids.empty() ? i : static_cast<uint32_t>(ids[i])};
    for (const LogitBias& b : s.logit_bias)
        if (const size_t i = sample_impl::index_of(b.id, ids, logits.size()); i < logits.size()) c[i].logit += b.bias;
    if (sample_impl::penalises(s)) penalise(s, before, ids);
}

Token Sampler::sample(Span<const float> logits, const Sampling& s, uint64_t position, Span<const Token> before,
                      Span<const Token> ids) {
    const DefaultFloatMode mode;  // the text must not depend on the caller's
    if (is_greedy(s) && !sample_impl::penalises(s) && s.logit_bias.empty()) {  // no list is needed
        const size_t best = sample_impl::largest(logits);
        return ids.empty() ? static_cast<Token>(best) : ids[best];
    }
    fill(logits, s, before, ids);
    Candidate* c = candidates_.as<Candidate>();
    if (is_greedy(s)) return static_cast<Token>(std::min_element(c, c + logits.size(), precedes)->id);
    return draw(c, filter(c, logits.size(), s), s, position);
}

Token Sampler::sample_allowed(Span<const float> logits, const Sampling& s, uint64_t position, Span<const Token> before,
                              Span<const uint32_t> allowed) {
    const DefaultFloatMode mode;
    Candidate* c = candidates_.as<Candidate>();
    const auto refused = [&](const Candidate& a) { return (allowed[a.id / 32] >> (a.id % 32) & 1u) == 0; };
    const auto count_allowed = [&](size_t n) { return static_cast<size_t>(std::remove_if(c, c + n, refused) - c); };
    fill(logits, s, before, {});
    if (is_greedy(s)) {
        const size_t n = count_allowed(logits.size());
        return static_cast<Token>(std::min_element(c, c + n, precedes)->id);
    }
    Kept kept = filter(c, logits.size(), s);
    const auto dropped = [&](const Candidate& a) { return a.logit < kept.lowest || refused(a); };
    kept.n = static_cast<size_t>(std::remove_if(c, c + kept.n, dropped) - c);
    if (kept.n == 0) {
        fill(logits, s, before, {});
        kept = filter(c, count_allowed(logits.size()), s);
    }
    return draw(c, kept, s, position);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

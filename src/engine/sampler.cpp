#include "sampler.h"

#include "../base/float_mode.h"

#include <algorithm>
#include <cmath>

namespace auspex {
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

inline float gumbel_of(uint32_t r) {
    // E = -log1p(-v) keeps its resolution where it is small and the noise large.
    const double v = (static_cast<double>(r) + 0.5) / 4294967296.0;
    return static_cast<float>(-std::log(-std::log1p(-v)));
}

/// No noise exceeds -ln(-log1p(-2^-33)) = 22.87: what trails the leader by more cannot win.
constexpr float kGumbelMax = 22.88f;

Status out_of_range(const char* name, double found, const char* expected) {
    return fail(Code::bad_argument, "sampling.", name, " is ", found, ", expected ", expected);
}

}  // namespace sample_impl

float gumbel(uint64_t seed, uint64_t position, uint32_t id) {
    const Philox p = philox(id / 4, static_cast<uint32_t>(position), 0, 0, seed);
    return sample_impl::gumbel_of(p.word[id % 4]);
}

Status check_sampling(const Sampling& s) {
    using sample_impl::out_of_range;
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
    if (s.penalty_window > 4096) return out_of_range("penalty_window", s.penalty_window, "0..4096");
    return {};
}

Status Sampler::open(const Allocator& from, uint32_t n_vocab) {
    return candidates_.take(from, uint64_t{n_vocab} * sizeof(Candidate), "the sampler's candidates");
}

void Sampler::penalise(Candidate* c, const Sampling& s, Span<const Token> before, Span<const Token> ids) {
    if (!penalises(s)) return;
    const size_t n = std::min<size_t>(before.size(), s.penalty_window);
    const Token* last = before.end() - n;
    // Windows are short: counting by looking back needs no table and no memory.
    for (size_t i = 0; i < n; ++i) {
        if (std::find(last, last + i, last[i]) != last + i) continue;  // counted at its first place
        const auto count = std::count(last + i, last + n, last[i]);
        const Token* at = std::lower_bound(ids.begin(), ids.end(), last[i]);
        if (!ids.empty() && (at == ids.end() || *at != last[i])) continue;
        float& l = c[ids.empty() ? last[i] : static_cast<Token>(at - ids.begin())].logit;
        l = l > 0 ? l / s.repeat_penalty : l * s.repeat_penalty;
        l -= static_cast<float>(count) * s.frequency_penalty + s.presence_penalty;
    }
}

Token Sampler::sample(Span<const float> logits, const Sampling& s, uint64_t position, Span<const Token> before,
                      Span<const Token> ids) {
    const DefaultFloatMode mode;  // the text must not depend on the caller's
    Candidate* c = candidates_.as<Candidate>();
    size_t n = logits.size();
    if (s.temperature <= 0 && !penalises(s)) {  // the first of the largest; no list is needed
        size_t best = 0;
        float most = -INFINITY;
        for (size_t i = 0; i < n; ++i) {
            if (!(logits[i] > most)) continue;
            most = logits[i];
            best = i;
        }
        return ids.empty() ? static_cast<Token>(best) : ids[best];
    }
    for (uint32_t i = 0; i < n; ++i)
        c[i] = {std::isnan(logits[i]) ? -INFINITY : logits[i], ids.empty() ? i : static_cast<uint32_t>(ids[i])};
    penalise(c, s, before, ids);
    // Higher logit first, lower id on ties: the order of every filter.
    auto ahead = [](const Candidate& a, const Candidate& b) {
        return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    };
    if (s.temperature <= 0) return static_cast<Token>(std::min_element(c, c + n, ahead)->id);

    if (s.top_k > 0 && static_cast<size_t>(s.top_k) < n) {
        std::nth_element(c, c + s.top_k, c + n, ahead);
        n = static_cast<size_t>(s.top_k);
    }
    if (s.top_p < 1) {
        // By id for the sum, so that its rounding does not depend on how the selection shuffled.
        std::sort(c, c + n, [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
        const float top = std::min_element(c, c + n, ahead)->logit;
        double total = 0;
        for (size_t i = 0; i < n; ++i) total += std::exp(double{c[i].logit} - double{top});
        auto behind = [&](const Candidate& a, const Candidate& b) { return ahead(b, a); };
        std::make_heap(c, c + n, behind);
        double mass = 0;
        size_t kept = 0;
        while (kept < n && mass < double{s.top_p} * total) {
            std::pop_heap(c, c + (n - kept), behind);
            mass += std::exp(double{c[n - kept - 1].logit} - double{top});
            ++kept;
        }
        std::copy(c + (n - kept), c + n, c);
        n = kept;
    }
    const float top = std::min_element(c, c + n, ahead)->logit;
    const float floor = s.min_p > 0 ? top + std::log(s.min_p) : -INFINITY;

    const float reach = top / s.temperature - 2 * sample_impl::kGumbelMax;
    Token best = -1;
    float best_score = 0;
    for (size_t i = 0; i < n; ++i) {
        if (c[i].logit < floor) continue;
        const float scaled = c[i].logit / s.temperature;
        if (scaled < reach || (best >= 0 && scaled + sample_impl::kGumbelMax < best_score)) continue;
        const float score = scaled + gumbel(s.seed, position, c[i].id);
        const Token id = static_cast<Token>(c[i].id);
        if (best < 0 || score > best_score || (score == best_score && id < best)) {
            best = id;
            best_score = score;
        }
    }
    // Every logit at minus infinity leaves nothing to compare: the lowest id, as for greedy.
    return best >= 0 ? best : static_cast<Token>(std::min_element(c, c + n, ahead)->id);
}

}  // namespace detail
}  // namespace auspex

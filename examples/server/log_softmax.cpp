#include "log_softmax.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace server {

using auspex::Span;
using auspex::Token;

namespace {

constexpr size_t kWidth = 16, kBlock = 256;

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

}  // namespace

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

double log_of_sum(Span<const float> logits, const std::vector<Token>& top) {
    const float largest = logits[static_cast<size_t>(top[0])];
    double sum = sum_of_exp(logits, largest);
    for (const Token t : top) {
        const float below = largest - logits[static_cast<size_t>(t)];
        sum += std::exp(-static_cast<double>(below)) - static_cast<double>(exp_of_minus(below));
    }
    return static_cast<double>(largest) + std::log(sum);
}

}  // namespace server

// tests/draft_sources: draft sources for tests: right, wrong or random as each test needs.
#pragma once
#include "../src/engine/draft.h"
#include "support.h"

namespace test {

/// Drafts the true text with one error at a random place, or none: any number of drafts may be accepted.
class Teacher : public auspex::detail::DraftSource {
  public:
    Teacher(std::vector<auspex::Token> truth, uint32_t n_vocab, uint64_t seed)
        : truth_(std::move(truth)), n_vocab_(n_vocab), random_(seed) {}
    auspex::Result<uint32_t> propose(const auspex::detail::DraftRequest& request) override {
        const uint32_t n = random_.below(request.n + 1);
        const uint32_t wrong = random_.below(2 * n + 1);
        for (uint32_t i = 0; i < n; ++i) {
            const size_t at = request.history.size() + i;
            request.to[i] = at < truth_.size() ? truth_[at] : 0;
            if (i == wrong)
                request.to[i] = static_cast<auspex::Token>(
                    (static_cast<uint32_t>(request.to[i]) + 1 + random_.below(n_vocab_ - 1)) % n_vocab_);
        }
        return n;
    }

  private:
    std::vector<auspex::Token> truth_;
    uint32_t n_vocab_;
    Random random_;
};

/// Drafts as many tokens as it may, all of them right.
class Truth : public auspex::detail::DraftSource {
  public:
    explicit Truth(std::vector<auspex::Token> truth) : truth_(std::move(truth)) {}
    auspex::Result<uint32_t> propose(const auspex::detail::DraftRequest& request) override {
        uint32_t n = 0;
        for (; n < request.n && request.history.size() + n < truth_.size(); ++n)
            request.to[n] = truth_[request.history.size() + n];
        return n;
    }

  private:
    std::vector<auspex::Token> truth_;
};

/// Drafts as many tokens as it may, all of them wrong.
class Wrong : public auspex::detail::DraftSource {
  public:
    Wrong(std::vector<auspex::Token> truth, uint32_t n_vocab) : truth_(std::move(truth)), n_vocab_(n_vocab) {}
    auspex::Result<uint32_t> propose(const auspex::detail::DraftRequest& request) override {
        for (uint32_t i = 0; i < request.n; ++i) {
            const size_t at = request.history.size() + i;
            const uint32_t right = at < truth_.size() ? static_cast<uint32_t>(truth_[at]) : 0;
            request.to[i] = static_cast<auspex::Token>((right + 7 * (i + 1)) % n_vocab_);
        }
        return request.n;
    }

  private:
    std::vector<auspex::Token> truth_;
    uint32_t n_vocab_;
};

/// Random ids, the first and the last, repetitions, any number of them.
class Noise : public auspex::detail::DraftSource {
  public:
    Noise(uint64_t seed, uint32_t n_vocab) : seed_(seed), n_vocab_(n_vocab) {}
    auspex::Result<uint32_t> propose(const auspex::detail::DraftRequest& request) override {
        using auspex::Token;
        const auspex::Span<const Token> history = request.history;
        Random random(seed_ ^ history.size() * 0x9E3779B9u);
        const uint32_t n = random.below(request.n + 1);
        for (uint32_t i = 0; i < n; ++i) {
            Token& to = request.to[i];
            switch (random.below(8)) {
                case 0: to = 0; break;
                case 1: to = static_cast<Token>(n_vocab_ - 1); break;
                case 2: to = i > 0 ? request.to[i - 1] : history[history.size() - 1]; break;
                case 3: to = history[random.below(static_cast<uint32_t>(history.size()))]; break;
                default: to = static_cast<Token>(random.below(n_vocab_));
            }
        }
        return n;
    }

  private:
    uint64_t seed_;
    uint32_t n_vocab_;
};

}  // namespace test

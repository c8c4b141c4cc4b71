// tests/draft_sources: draft sources that know the coming text and draft from it with planned errors.
#pragma once
#include "../src/engine/draft.h"
#include "support.h"

namespace test {

/// Drafts the true text with one error at a random place, or none: any number of drafts may be accepted.
class Teacher : public auspex::detail::DraftSource {
  public:
    Teacher(std::vector<auspex::Token> truth, uint32_t n_vocab, uint64_t seed)
        : truth_(std::move(truth)), n_vocab_(n_vocab), random_(seed) {}
    uint32_t propose(auspex::Span<const auspex::Token> history, uint32_t n, auspex::Token* to) override {
        n = random_.below(n + 1);
        const uint32_t wrong = random_.below(2 * n + 1);
        for (uint32_t i = 0; i < n; ++i) {
            const size_t at = history.size() + i;
            to[i] = at < truth_.size() ? truth_[at] : 0;
            if (i == wrong)
                to[i] = static_cast<auspex::Token>((static_cast<uint32_t>(to[i]) + 1 + random_.below(n_vocab_ - 1)) %
                                                   n_vocab_);
        }
        return n;
    }

  private:
    std::vector<auspex::Token> truth_;
    uint32_t n_vocab_;
    Random random_;
};

/// Drafts as many tokens as it may, all of them wrong.
class Wrong : public auspex::detail::DraftSource {
  public:
    Wrong(std::vector<auspex::Token> truth, uint32_t n_vocab) : truth_(std::move(truth)), n_vocab_(n_vocab) {}
    uint32_t propose(auspex::Span<const auspex::Token> history, uint32_t n, auspex::Token* to) override {
        for (uint32_t i = 0; i < n; ++i) {
            const size_t at = history.size() + i;
            const uint32_t right = at < truth_.size() ? static_cast<uint32_t>(truth_[at]) : 0;
            to[i] = static_cast<auspex::Token>((right + 7 * (i + 1)) % n_vocab_);
        }
        return n;
    }

  private:
    std::vector<auspex::Token> truth_;
    uint32_t n_vocab_;
};

}  // namespace test

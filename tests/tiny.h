// tests/tiny: models small enough to run in a test, made on the spot.
#pragma once
#include "../src/base/gguf.h"
#include "support.h"

namespace test {

struct TinyOptions {
    auspex::detail::Type type = auspex::detail::Type::f16;  ///< of every matrix
    uint64_t seed = 1;
    uint32_t n_layer = 4;      ///< every 4th is attention
    uint32_t n_head_k = 2, n_head_v = 4;
    bool mtp = true;
    bool tied = true;
    float scale = 1.0f;        ///< of the logits: larger is more decided
};

/// A qwen35 file of about 1 MB: d_model 256, heads of 64, 288 tokens.
std::vector<std::byte> tiny_qwen35(const TinyOptions& options = {});

/// Random ids below the tiny vocabulary.
std::vector<auspex::Token> tiny_ids(size_t n, uint64_t seed);

constexpr uint32_t kTinyVocab = 288;

}  // namespace test

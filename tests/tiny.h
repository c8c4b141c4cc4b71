// tests/tiny: tiny random models of every family, made in memory; tools/tiny_model writes them to files.
#pragma once
#include "../src/base/gguf.h"
#include "support.h"

namespace test {

enum class Family { qwen35, qwen35moe, qwen3next, step35 };
constexpr Family kFamilies[] = {Family::qwen35, Family::qwen35moe, Family::qwen3next, Family::step35};
const char* family_name(Family family);

/// Which part of a model the file has; `mtp_bare`: the draft blocks without embedding, head and norm.
enum class Packaging { whole, trunk, mtp, mtp_bare };

struct TinyOptions {
    auspex::detail::Type type = auspex::detail::Type::f16;  ///< of every matrix; where its blocks do not fit, F16
    uint64_t seed = 1;
    uint32_t n_layer = 4;
    uint32_t interval = 4;  ///< every so many layers one of attention; step35: one without a window, from the first
    uint32_t d_model = 256;
    uint32_t d_ff = 512;         ///< of dense layers
    uint32_t d_ff_shared = 256;  ///< of the shared expert
    uint32_t n_head_k = 2, n_head_v = 4;
    uint32_t d_head = 64;    ///< of attention
    uint32_t d_key = 64;     ///< of DeltaNet heads, keys and values
    bool mtp = true;         ///< qwen: one block; step35: three heads
    bool tied = true;        ///< ignored by step35, which is never tied
    float scale = 1.0f;      ///< of the logits: larger gives larger margins
    float rope_base = 1e7f;  ///< ignored by step35
    Family family = Family::qwen35;
    bool fused = false;       ///< the same weights in fewer tensors: attn_qkv of attention, gate_up experts, ssm_in
    bool factors = true;      ///< step35: with rope_freqs
    bool older_keys = false;  ///< step35: rotation layer by layer, and the older names of the clamps
    /// NVFP4: each matrix has a scale beside it, or the same numbers are written as F32 with the scales in them.
    enum class Scales { none, separate, applied } scales = Scales::none;
    bool bos = false;  ///< <|endoftext|> goes in front of each text
    Packaging packaging = Packaging::whole;
};

/// One layer of each kind, few heads, narrow: what a software device runs fastest. `d_head` and `d_key` stay.
inline TinyOptions smallest(TinyOptions o = {}) {
    o.n_layer = o.interval = 2;
    o.d_ff = 256;
    o.n_head_k = 1;
    o.n_head_v = 2;
    return o;
}

/// The same at half the width, where blocks of 256 weights (the K types) do not fit. A software device needs a third of
/// the time.
inline TinyOptions narrow(TinyOptions o = smallest()) {
    o.d_model = o.d_ff = 128;
    return o;
}

/// The default of tests: of that width, with three layers of DeltaNet and one of attention.
inline TinyOptions slim() {
    TinyOptions o = narrow();
    o.n_layer = o.interval = 4;
    return o;
}

/// A file of 1 to 10 MB: 288 tokens; 5 experts of which 2 are used.
std::vector<std::byte> tiny_model(const TinyOptions& options = slim());
/// The same as n shards of a split model.
std::vector<std::vector<std::byte>> tiny_shards(const TinyOptions& options, uint32_t n);
inline std::vector<std::byte> tiny_qwen35(const TinyOptions& options = slim()) { return tiny_model(options); }

/// Random ids below the tiny vocabulary.
std::vector<auspex::Token> tiny_ids(size_t n, uint64_t seed);

constexpr uint32_t kTinyVocab = 288;
constexpr uint32_t kTinyWindow = 24;  ///< of step35

}  // namespace test

// tests/geometry: tensor tables of the published sizes of Qwen3.5 without data, to plan memory with.
#pragma once
#include "../src/base/gguf.h"

namespace test {

struct Geometry {
    const char* name;
    uint32_t d_model, n_layer, n_head, n_head_kv, d_ff, n_head_k, n_head_v,
        n_expert;  ///< n_expert: 0, or d_ff is an expert's
    bool tied;
    uint64_t n_trunk, n_mtp;  ///< values of the text weights, as published; 0: not known
};
extern const Geometry kPublished[6];

/// The tensors of a Q4_K_M file as llama-quantize makes it, with an MTP block.
auspex::detail::Gguf table_of(const Geometry& g);

}  // namespace test

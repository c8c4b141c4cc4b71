// tests/geometry: the published sizes of Qwen3.5 as tables of tensors without a byte behind them: enough to plan
// with, nothing to run.
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

/// Q4_K_M as the usual quantiser makes it, with an MTP block.
auspex::detail::Gguf table_of(const Geometry& g);

}  // namespace test

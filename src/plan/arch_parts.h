// plan/arch_parts: the parts that model families share.
//
// Owns    the header of a model, attention, feed-forward networks, input and output of an MTP block, and the
//         metadata keys that these read. A family's arch_*.cpp composes them.
// Thread  no shared state.
// Tests   tests/test_plan.cpp, tests/test_families.cpp
#pragma once
#include "arch.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// The keys that every family has, and the tensors outside the blocks.
struct ModelHeader {
    uint32_t n_block = 0, n_layer = 0;  ///< blocks in all; without the MTP blocks, which are the last ones
    uint32_t n_mtp = 0;                 ///< MTP blocks that the caller wants and the file has
    uint32_t d_model = 0;
    float eps = 0;
    bool may_tie = true;  ///< without output.weight, the embedding is the head
    SlotId embd = kNoSlot, out = kNoSlot, out_norm = kNoSlot;
};

/// Appends the operations of one block to a tape.
struct LayerBuilder {
    PlanBuilder& b;
    Tape& tape;
    const ModelHeader& header;
    uint32_t i_block;  ///< "blk.<i_block>." begins the names of its tensors
    SlotId x;          ///< the residual stream

    SlotId normed() const { return b.scratch("a", header.d_model); }  ///< the normed input of a sub-layer
    std::string name(const char* part) const;
    /// A tensor by its part: "attn_q.weight".
    bool has(const char* part) const;
    SlotId weight(const char* part, std::initializer_list<uint64_t> shape) const;
    SlotId vector(const char* part, uint64_t n) const;
    Op& push(OpKind kind, SlotId out) const { return b.push(tape, kind, i_block, out); }
    void norm(SlotId out, SlotId in, SlotId w, uint32_t out_offset = 0) const {
        b.norm(tape, i_block, out, in, w, header.eps, out_offset);
    }
    void matmul(SlotId out, SlotId in, SlotId w, bool accumulate = false) const {
        b.matmul(tape, i_block, out, in, w, accumulate);
    }
};

/// Reads the common keys and the outer tensors. errors: unsupported for a file that holds MTP blocks alone.
Status read_header(PlanBuilder& b, const PlanOptions& options, Plan& plan, ModelHeader& header);

/// The keys of routed and shared experts. d_ff: of the family's dense layers, 0 if it has none.
void read_moe(PlanBuilder& b, uint32_t d_ff, MoeDims& m);

/// x += attention(rms(x; attn_norm)).
///
/// factors     divisors of the rotation angles, as Op::w[1], or kNoSlot
/// fill_first  for an MTP block: keys and values are written before the queries are computed, so that rows which only
///             fill the cache stop there (Tape::n_fill)
/// Query and key norms are optional in the file, except with interleaved gates.
void attention_part(const LayerBuilder& layer, const AttnDims& dims, SlotId factors, bool fill_first);

/// x += ffn(rms(x; norm)), dense. limit: clamp of the activation, 0 for none.
void dense_part(const LayerBuilder& layer, const char* norm, uint32_t d_ff, float limit);
/// x += experts(rms(x; norm)). shared_gate: the shared expert has a gate; bias: expert selection has a bias.
void moe_part(const LayerBuilder& layer, const char* norm, const MoeDims& dims, bool shared_gate, bool bias);

/// The input of an MTP block: x = [rms(embed(token); enorm), rms(hidden row of the step; hnorm)] eh_proj'.
void mtp_entry(const LayerBuilder& layer);
/// The hidden rows and logits of a tape. raw: MTP blocks of this family take the residual stream itself, so
/// tape.hidden is x and a normed copy feeds the head; else tape.hidden is the normed row.
void head_part(const LayerBuilder& layer, SlotId norm, SlotId table, bool raw);
/// head_part() of an MTP block, with the block's own norm and head if the file has them.
void mtp_head(const LayerBuilder& layer, bool raw);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

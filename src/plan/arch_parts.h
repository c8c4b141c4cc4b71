// plan/arch_parts: what the families have in common: the header of a model, attention, feed-forward
// networks, the entry and the end of an MTP block.
//
// Owns    the parts that a family's file composes into tapes, and the keys they read.
// Reads   arch (Builder), gguf.
// Serves  arch_*.cpp.
// Thread  none of its own.
// Laws    tests/test_plan.cpp, tests/test_families.cpp.
#pragma once
#include "arch.h"

namespace auspex {
namespace detail {

/// What every family's file says first, and the tensors that stand outside the blocks.
struct ModelHeader {
    uint32_t n_block = 0, n_layer = 0, n_mtp = 0;  ///< n_mtp: blocks that are wanted and in the file
    uint32_t d_model = 0;
    float eps = 0;
    SlotId embd = kNoSlot, out = kNoSlot, out_norm = kNoSlot;
};

/// Where operations are being written: a tape, the block they belong to, its residual stream.
struct LayerBuilder {
    Builder& b;
    Tape& tape;
    const ModelHeader& header;
    uint32_t il;
    SlotId x;
    SlotId a() const { return b.scratch("a", header.d_model); }  ///< the normed input of a sub-layer
    std::string name(const char* part) const { return say("blk.", il, ".", part); }
};

/// Reads keys and outer tensors, refuses what cannot run alone.
Status read_header(Builder& b, const PlanOptions& options, Plan& plan, ModelHeader& f);

/// Keys of the routed and the shared expert that all MoE families share.
void read_moe(Builder& b, uint32_t d_ff, MoeDims& m);

/// x += attention(rms(x; attn_norm)). Without interleaved gates the norms of queries and keys are
/// taken only where the file has them. `factors` as Op's w[1]. fill_first: an MTP block, whose cache-filling rows stop
/// after the keys and values.
void attention_part(const LayerBuilder& s, const AttnDims& dims, SlotId factors, bool fill_first);

/// x += ffn(rms(x; norm)): dense, with a clamp or without (0).
void dense_part(const LayerBuilder& s, const char* norm, uint32_t d_ff, float limit);
/// The same with experts. shared_gate: the shared expert has a gate of its own; bias: the choice has one.
void moe_part(const LayerBuilder& s, const char* norm, const MoeDims& dims, bool shared_gate, bool bias);

/// x = [rms(embed(token); enorm), rms(given hidden; hnorm)] eh_proj'.
void mtp_entry(const LayerBuilder& s);
/// hidden and logits of a tape. raw: an MTP block is fed the residual stream itself, so tape.hidden is
/// s.x and a normed copy feeds the head; else tape.hidden is the normed row.
void head_part(const LayerBuilder& s, SlotId norm, SlotId table, bool raw);
/// The same for an MTP block: its own norm and head where the file has them.
void mtp_head(const LayerBuilder& s, bool raw);

}  // namespace detail
}  // namespace auspex

// plan/arch_step35: StepFun's Step-3.5 and Step-3.7. Attention in every layer, in most of them with a window; experts
// after a few dense layers; chained MTP blocks. docs/MODEL.md has the formulas.
#include "arch_parts.h"

#include <cmath>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace step35_impl {
namespace {

struct Dims {
    std::vector<AttnDims> attn;  ///< by block
    std::vector<bool> factors;   ///< by block: rope_freqs applies
    std::vector<uint32_t> d_ff;  ///< by block, of dense layers; 0 if the file has no value
    std::vector<float> limit, limit_shared;
    MoeDims moe;
    uint32_t n_dense = 0;  ///< leading dense blocks
};

/// `key`, or `older` if the file has only that one.
const char* either(PlanBuilder& b, const char* key, const char* older) {
    return !b.file().find(b.key(key)) && b.file().find(b.key(older)) ? older : key;
}

/// Refuses a file in which only some blocks have a tensor that files may lack: without it the block gives other
/// results.
void check_alike(PlanBuilder& b, const ModelHeader& header, const char* part) {
    const auto name = [&](uint32_t i) { return say("blk.", i, ".", part); };
    uint32_t n_has = 0, has = 0, lacks = 0;
    for (uint32_t i = 0; i < header.n_layer + header.n_mtp; ++i) {
        const bool found = b.has(name(i));
        n_has += found;
        (found ? has : lacks) = i;
    }
    if (b.ok() && n_has != 0 && n_has != header.n_layer + header.n_mtp)
        b.fail_with(fail(Code::bad_file, "tensor '", name(lacks), "' is missing, but the file has '", name(has),
                         "'; expected it in all blocks or in none"));
}

void read_attention(PlanBuilder& b, const ModelHeader& header, Dims& d) {
    const uint32_t n = header.n_block;
    const std::vector<uint32_t> n_head = b.u32s("attention.head_count", n, nullptr, 1, 1024),
                                n_head_kv = b.u32s("attention.head_count_kv", n, nullptr, 1, 1024);
    const uint32_t d_head = b.u32("attention.key_length", 8, 512),
                   d_value = b.u32_or("attention.value_length", d_head, 8, 512);
    if (b.ok() && d_value != d_head)
        b.fail_with(fail(Code::unsupported, "key heads of ", d_head, " and value heads of ", d_value,
                         " values; expected equal widths"));
    const uint32_t window = b.u32("attention.sliding_window", 1, 1u << 30);
    const std::vector<uint32_t> windowed = b.u32s("attention.sliding_window_pattern", n, nullptr, 0, 1);
    const uint32_t n_rot = b.u32_or("rope.dimension_count", d_head, 2, 512);
    const float base = b.f32_or("rope.freq_base", 10000.0f), base_windowed = b.f32_or("rope.freq_base_swa", base);
    std::vector<uint32_t> n_rots(n);
    std::vector<float> bases(n);
    for (uint32_t i = 0; i < n; ++i) {
        n_rots[i] = windowed[i] ? n_rot : n_rot / 2;  // full layers rotate half
        bases[i] = windowed[i] ? base_windowed : base;
    }
    // Values per layer override these rules.
    if (b.file().find(b.key("rope.dimension_count_per_layer")))
        n_rots = b.u32s("rope.dimension_count_per_layer", n, nullptr, 2, 512);
    if (b.file().find(b.key("rope.freq_base_per_layer"))) bases = b.f32s("rope.freq_base_per_layer", n, nullptr);
    for (const char* part : {"attn_gate.weight", "attn_q_norm.weight", "attn_k_norm.weight"})
        check_alike(b, header, part);
    const uint32_t mask = b.u32_or("rope.scaling.apply_mask", 1, 0, 3);
    d.factors = std::vector<bool>(n);
    for (uint32_t i = 0; i < n && b.ok(); ++i) {
        AttnDims a;
        a.n_head = n_head[i];
        a.n_head_kv = n_head_kv[i];
        a.d_head = d_head;
        a.n_rot = n_rots[i];
        a.rope_base = bases[i];
        a.scale = 1.0f / std::sqrt(static_cast<float>(d_head));
        a.gate = b.has(say("blk.", i, ".attn_gate.weight")) ? AttnGate::per_head : AttnGate::none;
        a.window = windowed[i] ? window : 0;
        a.eps = header.eps;
        d.attn.push_back(a);
        d.factors[i] = (mask & (windowed[i] ? 2u : 1u)) != 0;
    }
}

void read_ffn(PlanBuilder& b, const ModelHeader& header, Dims& d) {
    const uint32_t none = 0;
    const float off = 0;
    d.d_ff = b.u32s("feed_forward_length", header.n_block, &none, 0, 1u << 20);
    if (b.u32_or("expert_count", 0, 0, 1u << 14) != 0) {
        read_moe(b, 0, d.moe);
        d.moe.normalise = b.flag_or("expert_weights_norm", false);
        const uint32_t gating = b.u32_or("expert_gating_func", 2, 0, 1000);
        if (b.ok() && gating > 2)
            b.fail_with(fail(Code::unsupported, "key '", b.key("expert_gating_func"), "' is ", gating,
                             ", expected 1 (softmax) or 2 (sigmoid)"));
        d.moe.sigmoid = gating != 1;
    }
    d.n_dense = b.u32_or("leading_dense_block_count", 0, 0, 1024);
    d.limit = b.f32s(either(b, "swiglu_clamp_exp", "swiglu_limits"), header.n_block, &off);
    d.limit_shared = b.f32s(either(b, "swiglu_clamp_shexp", "swiglu_limits_shared"), header.n_block, &off);
    for (std::vector<float>* limits : {&d.limit, &d.limit_shared})
        for (float& l : *limits) l = l > 1e-6f ? l : 0.0f;
}

void block(const LayerBuilder& layer, const Dims& d, SlotId factors, bool mtp) {
    PlanBuilder& b = layer.b;
    attention_part(layer, d.attn[layer.i_block], d.factors[layer.i_block] ? factors : kNoSlot, mtp);
    // The tensors decide whether a layer has experts; if they do not tell, the keys do.
    const bool router = layer.has("ffn_gate_inp.weight"), dense = layer.has("ffn_gate.weight");
    if (d.moe.n_expert != 0 && (router || (!dense && !mtp && layer.i_block >= d.n_dense))) {
        MoeDims moe = d.moe;
        moe.limit = d.limit[layer.i_block];
        moe.limit_shared = d.limit_shared[layer.i_block];
        moe_part(layer, "ffn_norm.weight", moe, false, true);
    } else if (d.d_ff[layer.i_block] == 0) {
        b.fail_with(fail(Code::bad_file, "key '", b.key("feed_forward_length"), "' is missing or 0, but block ",
                         layer.i_block, " is dense"));
    } else {
        dense_part(layer, "ffn_norm.weight", d.d_ff[layer.i_block], d.limit_shared[layer.i_block]);
    }
}

/// The divisors of the rotation angles, one vector for all layers.
SlotId read_factors(PlanBuilder& b, const Dims& d) {
    const char* name = "rope_freqs.weight";
    if (!b.has(name)) return kNoSlot;
    uint32_t need = 1;
    for (size_t i = 0; i < d.attn.size(); ++i)
        if (d.factors[i] && d.attn[i].n_rot / 2 > need) need = d.attn[i].n_rot / 2;
    const Tensor& t = *b.file().tensor(name);
    if (t.ne[0] < need) {
        b.fail_with(fail(Code::bad_file, "tensor '", name, "' has ", t.ne[0], " values, expected at least ", need,
                         ", one for each rotated pair"));
        return kNoSlot;
    }
    const SlotId id = b.vector(name, t.ne[0]);
    const float* values = reinterpret_cast<const float*>(t.data);
    for (uint64_t i = 0; b.ok() && i < t.ne[0]; ++i) {
        const float v = load<float>(values + i);
        if (!(v > 0.0f) || !std::isfinite(v))
            b.fail_with(fail(Code::bad_file, "tensor '", name, "' holds ", static_cast<double>(v), " at ", i,
                             ", expected factors above 0"));
    }
    return id;
}

}  // namespace
}  // namespace step35_impl

Status plan_step35(const Gguf& file, const PlanOptions& options, Plan& plan) {
    using namespace step35_impl;
    PlanBuilder b(file, plan);
    ModelHeader header;
    Dims d;
    header.may_tie = false;
    AUSPEX_TRY(read_header(b, options, plan, header));
    read_attention(b, header, d);
    read_ffn(b, header, d);
    if (!b.ok()) return b.status();
    const SlotId factors = read_factors(b, d);

    // An MTP block takes the residual stream before any norm, so each tape keeps its own.
    Tape& trunk = plan.trunk;
    trunk.hidden = b.activation("x", header.d_model, SlotRole::kept);
    trunk.logits = b.activation("logits", plan.n_vocab, SlotRole::kept);
    b.push(trunk, OpKind::embed, 0, trunk.hidden).w[0] = header.embd;
    for (uint32_t il = 0; il < header.n_layer && b.ok(); ++il)
        block({b, trunk, header, il, trunk.hidden}, d, factors, false);
    head_part({b, trunk, header, header.n_layer, trunk.hidden}, header.out_norm, header.out, true);

    for (uint32_t i = 0; i < header.n_mtp && b.ok(); ++i) {
        plan.mtp.emplace_back();
        Tape& t = plan.mtp.back();
        t.hidden = b.activation(say("mtp.", i, ".x"), header.d_model, SlotRole::kept);
        t.logits = trunk.logits;  // all tapes share one slot: rows are read before the next step
        const LayerBuilder layer{b, t, header, header.n_layer + i, t.hidden};
        mtp_entry(layer);
        block(layer, d, factors, true);
        mtp_head(layer, true);
    }
    return b.status();
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

#include "arch_parts.h"

#include <cmath>

#include "pair.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace parts_impl {
namespace {

struct Qkv {
    SlotId q, k, v;
};

/// Three matrices, or one that holds their rows in this order.
Qkv qkv(const LayerBuilder& layer, uint64_t q_dim, uint64_t kv_dim) {
    const uint64_t d = layer.header.d_model, n = q_dim + 2 * kv_dim;
    const std::string fused = layer.name("attn_qkv.weight"), q = layer.name("attn_q.weight");
    if (!layer.b.has(q) && layer.b.has(fused))
        return {layer.b.rows(fused, "q", n, d, {{0, q_dim}}), layer.b.rows(fused, "k", n, d, {{q_dim, kv_dim}}),
                layer.b.rows(fused, "v", n, d, {{q_dim + kv_dim, kv_dim}})};
    return {layer.b.weight(q, {q_dim, d}), layer.weight("attn_k.weight", {kv_dim, d}),
            layer.weight("attn_v.weight", {kv_dim, d})};
}

/// The optional norm over one head.
SlotId head_norm(const LayerBuilder& layer, const char* part, const AttnDims& dims) {
    return dims.gate != AttnGate::interleaved && !layer.has(part) ? kNoSlot : layer.vector(part, dims.d_head);
}

/// After the tensors, whose shapes tell which key is wrong.
void check_heads(const LayerBuilder& layer, const AttnDims& dims) {
    PlanBuilder& b = layer.b;
    if (!b.ok()) return;
    if (dims.n_head % dims.n_head_kv != 0)
        b.fail_with(fail(Code::bad_file, "key '", b.key("attention.head_count"), "' is ", dims.n_head, " in block ",
                         layer.i_block, ", expected a multiple of ", dims.n_head_kv, " ('",
                         b.key("attention.head_count_kv"), "'): convert the model again"));
    if (dims.d_head % 8 != 0)
        b.fail_with(fail(Code::unsupported, "key '", b.key("attention.key_length"), "' is ", dims.d_head,
                         "; heads of this width are not supported, expected a multiple of 8"));
}

/// Refuses keys that change the computation in a way that is not implemented.
void refuse_variants(PlanBuilder& b) {
    std::string scaling;
    Status s = b.file().get_string(b.key("rope.scaling.type"), "").get(scaling);
    if (!s.ok()) return b.fail_with(s);
    if (scaling != "none" && scaling != "")
        b.fail_with(fail(Code::unsupported, "key '", b.key("rope.scaling.type"), "' is ", quote(scaling),
                         "; only unscaled rotations are supported: use the file at its trained context"));
    struct Variant {
        const char* key;
        float neutral;  ///< like 0, this value changes nothing
    };
    for (const Variant& v :
         {Variant{"rope.scaling.factor", 1}, Variant{"rope.scale_linear", 1}, Variant{"attn_logit_softcapping", 0},
          Variant{"final_logit_softcapping", 0}, Variant{"feed_forward_parallel_length", 0}, Variant{"logit_scale", 1},
          Variant{"embedding_scale", 1}, Variant{"residual_scale", 1}, Variant{"attention.clamp_kqv", 0},
          Variant{"attention.max_alibi_bias", 0}}) {
        // A factor without a type means linear scaling; the type "none" overrides it.
        if (std::string_view(v.key).substr(0, 5) == "rope." && scaling == "none") continue;
        const float value = b.f32_or(v.key, 0);
        if (b.ok() && value != 0 && value != v.neutral)
            b.fail_with(fail(Code::unsupported, "key '", b.key(v.key), "' is ", value,
                             "; this variant of the architecture is not supported, expected no such key"));
    }
    if (!b.flag_or("attention.causal", true))
        b.fail_with(fail(Code::unsupported, "key '", b.key("attention.causal"),
                         "' is false; only rows that see none after them are supported, expected true or no such key"));
    for (const Meta& m : b.file().meta())
        if (m.key.substr(0, 15) == "prism.hadamard.")
            b.fail_with(fail(Code::unsupported, "key '", m.key,
                             "' says that weights are rotated; this is not supported, use a plain quantisation"));
}

/// Refuses counts of blocks that do not fit the file: its last layers would be left out without a word. MTP blocks may
/// be missing, or in another file, or more than the keys say: without them the text is the same.
void check_blocks(PlanBuilder& b, const ModelHeader& header) {
    const auto is_mtp = [&](int64_t i) {
        const std::string block = say("blk.", i, ".");
        return b.has(block + "nextn.eh_proj.weight") || b.has(block + "nextn.enorm.weight") ||
               b.has(block + "nextn.hnorm.weight");
    };
    for (uint32_t i = header.n_layer; i < header.n_block && b.ok(); ++i) {
        const std::string norm = say("blk.", i, ".attn_norm.weight");
        if (!is_mtp(i) && b.has(norm))
            b.fail_with(fail(Code::bad_file, "key '", b.key("nextn_predict_layers"), "' is ",
                             header.n_block - header.n_layer, " of ", header.n_block, " blocks, but block ", i,
                             " is a layer: it has '", norm,
                             "' and no 'nextn' tensors; expected the number of MTP blocks"));
    }
    for (const Tensor& t : b.file().tensors()) {
        const int64_t i = block_of(t.name);
        if (i >= int64_t{header.n_block} && b.ok() && !is_mtp(i))
            b.fail_with(fail(Code::bad_file, "tensor ", quote(t.name), " belongs to block ", i, ", but key '",
                             b.key("block_count"), "' is ", header.n_block, "; expected the number of all blocks"));
    }
}

}  // namespace
}  // namespace parts_impl

std::string LayerBuilder::name(const char* part) const { return say("blk.", i_block, ".", part); }
bool LayerBuilder::has(const char* part) const { return b.has(name(part)); }
SlotId LayerBuilder::weight(const char* part, std::initializer_list<uint64_t> shape) const {
    return b.weight(name(part), shape);
}
SlotId LayerBuilder::vector(const char* part, uint64_t n) const { return b.vector(name(part), n); }

Status read_header(PlanBuilder& b, const PlanOptions& options, Plan& plan, ModelHeader& header) {
    header.n_block = b.u32("block_count", 1, 1024);
    const uint32_t n_mtp = b.u32_or("nextn_predict_layers", 0, 0, 8);
    if (b.ok() && n_mtp >= header.n_block)
        b.fail_with(fail(Code::bad_file, "key '", b.key("nextn_predict_layers"), "' is ", n_mtp,
                         ", but there are only ", header.n_block, " blocks"));
    header.n_layer = header.n_block - n_mtp;
    header.d_model = b.u32("embedding_length", 32, 1u << 16);
    header.eps = b.f32("attention.layer_norm_rms_epsilon");
    if (b.ok() && header.eps < 0)
        b.fail_with(fail(Code::bad_file, "key '", b.key("attention.layer_norm_rms_epsilon"), "' is ", header.eps,
                         ", expected 0 or more"));
    plan.n_context = b.u32("context_length", 1, 1u << 30);
    parts_impl::refuse_variants(b);
    if (!b.ok()) return b.status();

    if (b.has(say("blk.", header.n_layer, ".nextn.eh_proj.weight")) && !b.has("blk.0.attn_norm.weight"))
        return fail(
            Code::unsupported,
            "tensor 'blk.0.attn_norm.weight' is missing; a file with only MTP blocks drafts for another model and "
            "cannot run alone: load that model and name this file as LoadOptions::mtp_file (auspex --mtp-file)");
    const Tensor* table = b.file().tensor("token_embd.weight");
    if (!table) {
        std::string type;
        AUSPEX_TRY(b.file().get_string("general.type", "model").get(type));
        const std::string why = type != "model" ? say("the file is of the type ", quote(type), ", expected 'model'")
                                : b.file().tensors().empty() ? std::string("the file has metadata only")
                                                             : std::string("every file needs it");
        return fail(Code::bad_file, "tensor 'token_embd.weight' is missing; ", why);
    }
    if (table->ne[1] == 0 || table->ne[1] > (1u << 24))
        return fail(Code::bad_file, "tensor 'token_embd.weight' has ", table->ne[1], " rows, expected 1..16777216");
    plan.d_model = header.d_model;
    plan.n_vocab = static_cast<uint32_t>(table->ne[1]);
    plan.n_layer = header.n_layer;
    header.embd = b.weight("token_embd.weight", {plan.n_vocab, header.d_model});
    const bool tied = header.may_tie && !b.has("output.weight");
    header.out = tied ? header.embd : b.weight("output.weight", {plan.n_vocab, header.d_model});
    header.out_norm = b.vector("output_norm.weight", header.d_model);
    parts_impl::check_blocks(b, header);
    while (options.mtp && header.n_mtp < n_mtp &&
           b.has(say("blk.", header.n_layer + header.n_mtp, ".nextn.eh_proj.weight")))
        ++header.n_mtp;
    return b.status();
}

void read_moe(PlanBuilder& b, uint32_t d_ff, MoeDims& m) {
    m.n_expert = b.u32("expert_count", 1, 1u << 14);
    m.n_used = b.u32("expert_used_count", 1, kMaxUsedExpert);
    if (b.ok() && m.n_used > m.n_expert)
        b.fail_with(fail(Code::bad_file, "key '", b.key("expert_used_count"), "' is ", m.n_used,
                         ", but there are only ", m.n_expert, " experts"));
    const uint32_t n_group = b.u32_or("expert_group_count", 0, 0, 1u << 14),
                   n_group_used = b.u32_or("expert_group_used_count", 0, 0, 1u << 14);
    if (b.ok() && n_group > 1 && n_group_used != n_group)
        b.fail_with(fail(Code::unsupported, "keys '", b.key("expert_group_count"), "' and '",
                         b.key("expert_group_used_count"), "' are ", n_group, " and ", n_group_used,
                         "; experts are chosen among all of them, not group by group: expected equal numbers, or no "
                         "such keys"));
    if (!b.ok()) return;
    if (d_ff == 0) {
        m.d_ff = b.u32("expert_feed_forward_length", 1, 1u << 20);
        m.d_ff_shared = b.u32("expert_shared_feed_forward_length", 1, 1u << 20);
    } else {
        m.d_ff = b.u32_or("expert_feed_forward_length", d_ff / m.n_used, 1, 1u << 20);
        m.d_ff_shared = b.u32_or("expert_shared_feed_forward_length", d_ff, 1, 1u << 20);
    }
    const float scale = b.f32_or("expert_weights_scale", 0.0f);
    m.scale = scale == 0.0f ? 1.0f : scale;
}

void attention_part(const LayerBuilder& layer, const AttnDims& dims, SlotId factors, bool fill_first) {
    PlanBuilder& b = layer.b;
    if (dims.n_rot > dims.d_head || dims.n_rot % 2 != 0)
        b.fail_with(fail(Code::bad_file, "key '", b.key("rope.dimension_count"), "' gives ", dims.n_rot,
                         " rotated values of a head in block ", layer.i_block, ", expected an even number up to ",
                         dims.d_head));
    if (!(dims.rope_base > 0))
        b.fail_with(fail(Code::bad_file, "key '", b.key("rope.freq_base"),
                         "', or one that overrides it, gives the base ", dims.rope_base, " in block ", layer.i_block,
                         ", expected a number above 0"));
    const uint64_t q_dim = uint64_t{dims.n_head} * dims.d_head, kv_dim = dims.kv_dim();
    const uint64_t q_width = dims.gate == AttnGate::interleaved ? 2 * q_dim : q_dim;
    const SlotId q = b.scratch("q", q_width), k = b.scratch("k", kv_dim), v = b.scratch("v", kv_dim),
                 o = b.scratch("o", q_dim);
    const SlotId gate = dims.gate == AttnGate::per_head ? b.scratch("head_gate", dims.n_head) : kNoSlot;
    layer.norm(layer.normed(), layer.x, layer.vector("attn_norm.weight", layer.header.d_model));
    const SlotId kv = b.state(say("layer.", layer.i_block, ".kv"), SlotRole::kv, kv_dim);
    const parts_impl::Qkv w = parts_impl::qkv(layer, q_width, kv_dim);
    parts_impl::check_heads(layer, dims);
    auto queries = [&] {
        layer.matmul(q, layer.normed(), w.q);
        if (gate != kNoSlot)
            layer.matmul(gate, layer.normed(), layer.weight("attn_gate.weight", {dims.n_head, layer.header.d_model}));
    };
    layer.matmul(k, layer.normed(), w.k);
    layer.matmul(v, layer.normed(), w.v);
    if (!fill_first) queries();
    Op& write = layer.push(OpKind::kv_write, kNoSlot);
    write.in[0] = k;
    write.in[1] = v;
    write.w[0] = parts_impl::head_norm(layer, "attn_k_norm.weight", dims);
    write.w[1] = factors;
    write.state = kv;
    write.attn = dims;
    if (fill_first) {  // rows that only fill the cache stop here
        layer.tape.n_fill = layer.tape.ops.size();
        queries();
    }
    Op& attend = layer.push(OpKind::attend, o);
    attend.in[0] = q;
    attend.in[1] = gate;
    attend.w[0] = parts_impl::head_norm(layer, "attn_q_norm.weight", dims);
    attend.w[1] = factors;
    attend.state = kv;
    attend.attn = dims;
    layer.matmul(layer.x, o, layer.weight("attn_output.weight", {layer.header.d_model, q_dim}), true);
}

void dense_part(const LayerBuilder& layer, const char* norm, uint32_t d_ff, float limit) {
    PlanBuilder& b = layer.b;
    const uint32_t d = layer.header.d_model;
    const SlotId gate = b.scratch("gate", d_ff), up = b.scratch("up", d_ff);
    layer.norm(layer.normed(), layer.x, layer.vector(norm, d));
    layer.matmul(gate, layer.normed(), layer.weight("ffn_gate.weight", {d_ff, d}));
    layer.matmul(up, layer.normed(), layer.weight("ffn_up.weight", {d_ff, d}));
    Op& act = layer.push(OpKind::swiglu, gate);
    act.in[0] = gate;
    act.in[1] = up;
    act.limit = limit;
    layer.matmul(layer.x, gate, layer.weight("ffn_down.weight", {d, d_ff}), true);
}

void moe_part(const LayerBuilder& layer, const char* norm, const MoeDims& dims, bool shared_gate, bool bias) {
    PlanBuilder& b = layer.b;
    const uint64_t d = layer.header.d_model, n = dims.n_expert, ff = dims.d_ff, ff_shared = dims.d_ff_shared;
    layer.norm(layer.normed(), layer.x, layer.vector(norm, d));
    Op& op = layer.push(OpKind::moe, layer.x);
    op.moe = dims;
    op.accumulate = true;
    op.in[0] = layer.normed();
    op.w[0] = layer.weight("ffn_gate_inp.weight", {n, d});
    const std::string gate = layer.name("ffn_gate_exps.weight"), fused = layer.name("ffn_gate_up_exps.weight");
    if (!b.has(gate) && b.has(fused)) {
        op.moe.gate_up = true;
        op.w[1] = b.weight(fused, {n, 2 * ff, d});
    } else {
        op.w[1] = b.weight(gate, {n, ff, d});
        op.w[2] = layer.weight("ffn_up_exps.weight", {n, ff, d});
    }
    op.w[3] = layer.weight("ffn_down_exps.weight", {n, d, ff});
    op.w[4] = layer.weight("ffn_gate_shexp.weight", {ff_shared, d});
    op.w[5] = layer.weight("ffn_up_shexp.weight", {ff_shared, d});
    op.w[6] = layer.weight("ffn_down_shexp.weight", {d, ff_shared});
    if (shared_gate) op.w[7] = layer.vector("ffn_gate_inp_shexp.weight", d);
    if (bias) op.w[8] = layer.vector("exp_probs_b.bias", n);
}

void mtp_entry(const LayerBuilder& layer) {
    PlanBuilder& b = layer.b;
    const uint32_t d = layer.header.d_model;
    const SlotId e = b.scratch("mtp.e", d), h = b.scratch("mtp.h", d), c = b.scratch("mtp.c", 2 * uint64_t{d});
    const std::string own = layer.name("nextn.embed_tokens.weight");
    const SlotId embd = layer.header.embd;
    layer.push(OpKind::embed, e).w[0] = b.has(own) ? b.weight(own, {b.n_vocab(), d}) : embd;
    layer.push(OpKind::hidden, h);
    layer.norm(c, h, layer.vector("nextn.hnorm.weight", d), d);
    layer.norm(c, e, layer.vector("nextn.enorm.weight", d));
    layer.matmul(layer.x, c, layer.weight("nextn.eh_proj.weight", {d, 2 * uint64_t{d}}));
}

void head_part(const LayerBuilder& layer, SlotId norm, SlotId table, bool raw) {
    const SlotId normed =
        raw ? layer.b.activation(layer.tape.n_fill ? say("mtp.", layer.i_block - layer.header.n_layer, ".normed")
                                                   : std::string("normed"),
                                 layer.header.d_model, SlotRole::kept)
            : layer.tape.hidden;
    layer.norm(normed, layer.x, norm);
    layer.matmul(layer.tape.logits, normed, table);
    layer.tape.ops.back().head = true;
}

void mtp_head(const LayerBuilder& layer, bool raw) {
    PlanBuilder& b = layer.b;
    const std::string norm = layer.name("nextn.shared_head_norm.weight"),
                      table = layer.name("nextn.shared_head_head.weight");
    const char* head = b.has(table) ? table.c_str() : b.has(kDraftHead) ? kDraftHead : nullptr;
    head_part(layer, b.has(norm) ? b.vector(norm, layer.header.d_model) : layer.header.out_norm,
              head ? b.weight(head, {b.n_vocab(), layer.header.d_model}) : layer.header.out, raw);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

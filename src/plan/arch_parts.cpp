#include "arch_parts.h"

#include <cmath>

#include "pair.h"

namespace auspex {
namespace detail {
namespace parts_impl {

struct Qkv {
    SlotId q, k, v;
};

/// Three matrices, or one that holds their rows in this order.
Qkv qkv(const LayerBuilder& s, uint64_t q_dim, uint64_t kv_dim) {
    const uint64_t d = s.header.d_model, n = q_dim + 2 * kv_dim;
    const std::string fused = s.name("attn_qkv.weight"), q = s.name("attn_q.weight");
    if (!s.b.has(q) && s.b.has(fused))
        return {s.b.rows(fused, "q", n, d, {{0, q_dim}}), s.b.rows(fused, "k", n, d, {{q_dim, kv_dim}}),
                s.b.rows(fused, "v", n, d, {{q_dim + kv_dim, kv_dim}})};
    return {s.b.weight(q, {q_dim, d}), s.b.weight(s.name("attn_k.weight"), {kv_dim, d}),
            s.b.weight(s.name("attn_v.weight"), {kv_dim, d})};
}

/// A norm over one head, or none.
SlotId head_norm(const LayerBuilder& s, const char* part, const AttnDims& dims) {
    return dims.gate != AttnGate::interleaved && !s.b.has(s.name(part)) ? kNoSlot
                                                                        : s.b.vector(s.name(part), dims.d_head);
}

}  // namespace parts_impl

Status read_header(Builder& b, const PlanOptions& options, Plan& plan, ModelHeader& f) {
    f.n_block = b.u32("block_count", 1, 1024);
    const uint32_t n_mtp = b.u32_or("nextn_predict_layers", 0, 0, 8);
    if (b.ok() && n_mtp >= f.n_block)
        b.fail_with(fail(Code::bad_file, "key '", b.key("nextn_predict_layers"), "' is ", n_mtp,
                         ", but there are only ", f.n_block, " blocks"));
    f.n_layer = f.n_block - n_mtp;
    f.d_model = b.u32("embedding_length", 32, 1u << 16);
    f.eps = b.f32("attention.layer_norm_rms_epsilon");
    plan.n_context = b.u32("context_length", 1, 1u << 30);
    Result<std::string> scaling = b.file().get_string(b.key("rope.scaling.type"), "none");
    if (!scaling.ok()) return scaling.status();
    if (scaling.value() != "none" && scaling.value() != "")
        b.fail_with(fail(Code::unsupported, "key '", b.key("rope.scaling.type"), "' is ", quote(scaling.value()),
                         "; only unscaled rotations are supported: use the file at its trained context"));
    if (!b.ok()) return b.status();

    if (n_mtp != 0 && !b.has("blk.0.attn_norm.weight"))
        return fail(
            Code::unsupported,
            "tensor 'blk.0.attn_norm.weight' is missing; a file with only MTP blocks drafts for another model and "
            "cannot run alone: load that model and name this file as LoadOptions::mtp_file (auspex --mtp-file)");
    const Tensor* table = b.file().tensor("token_embd.weight");
    if (!table) return fail(Code::bad_file, "tensor 'token_embd.weight' is missing; every file needs it");
    if (table->ne[1] == 0 || table->ne[1] > (1u << 24))
        return fail(Code::bad_file, "tensor 'token_embd.weight' has ", table->ne[1], " rows, expected 1..16777216");
    plan.d_model = f.d_model;
    plan.n_vocab = static_cast<uint32_t>(table->ne[1]);
    plan.n_layer = f.n_layer;
    f.embd = b.weight("token_embd.weight", {plan.n_vocab, f.d_model});
    f.out = b.has("output.weight") ? b.weight("output.weight", {plan.n_vocab, f.d_model}) : f.embd;
    f.out_norm = b.vector("output_norm.weight", f.d_model);
    // The key may stay although the blocks were left out or live in another file.
    while (options.mtp && f.n_mtp < n_mtp && b.has(say("blk.", f.n_layer + f.n_mtp, ".nextn.eh_proj.weight")))
        ++f.n_mtp;
    return b.status();
}

void read_moe(Builder& b, uint32_t d_ff, MoeDims& m) {
    m.n_expert = b.u32("expert_count", 1, 1u << 14);
    m.n_used = b.u32("expert_used_count", 1, kMaxUsedExpert);
    if (b.ok() && m.n_used > m.n_expert)
        b.fail_with(fail(Code::bad_file, "key '", b.key("expert_used_count"), "' is ", m.n_used,
                         ", but there are only ", m.n_expert, " experts"));
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

void attention_part(const LayerBuilder& s, const AttnDims& dims, SlotId factors, bool fill_first) {
    Builder& b = s.b;
    const uint64_t q_dim = uint64_t{dims.n_head} * dims.d_head, kv_dim = uint64_t{dims.n_head_kv} * dims.d_head;
    const uint64_t q_width = dims.gate == AttnGate::interleaved ? 2 * q_dim : q_dim;
    const SlotId q = b.scratch("q", q_width), k = b.scratch("k", kv_dim), v = b.scratch("v", kv_dim),
                 o = b.scratch("o", q_dim);
    const SlotId gate = dims.gate == AttnGate::per_head ? b.scratch("head_gate", dims.n_head) : kNoSlot;
    b.norm(s.tape, s.il, s.a(), s.x, b.vector(s.name("attn_norm.weight"), s.header.d_model), s.header.eps);
    const SlotId kv = b.state(say("layer.", s.il, ".kv"), SlotRole::kv, kv_dim);
    const parts_impl::Qkv w = parts_impl::qkv(s, q_width, kv_dim);
    auto queries = [&] {
        b.matmul(s.tape, s.il, q, s.a(), w.q);
        if (gate != kNoSlot)
            b.matmul(s.tape, s.il, gate, s.a(), b.weight(s.name("attn_gate.weight"), {dims.n_head, s.header.d_model}));
    };
    b.matmul(s.tape, s.il, k, s.a(), w.k);
    b.matmul(s.tape, s.il, v, s.a(), w.v);
    if (!fill_first) queries();
    Op& write = b.push(s.tape, OpKind::kv_write, s.il, kNoSlot);
    write.in[0] = k;
    write.in[1] = v;
    write.w[0] = parts_impl::head_norm(s, "attn_k_norm.weight", dims);
    write.w[1] = factors;
    write.state = kv;
    write.attn = dims;
    if (fill_first) {  // a cache-filling row stops here
        s.tape.n_fill = s.tape.ops.size();
        queries();
    }
    Op& attend = b.push(s.tape, OpKind::attend, s.il, o);
    attend.in[0] = q;
    attend.in[1] = gate;
    attend.w[0] = parts_impl::head_norm(s, "attn_q_norm.weight", dims);
    attend.w[1] = factors;
    attend.state = kv;
    attend.attn = dims;
    b.matmul(s.tape, s.il, s.x, o, b.weight(s.name("attn_output.weight"), {s.header.d_model, q_dim}), true);
}

void dense_part(const LayerBuilder& s, const char* norm, uint32_t d_ff, float limit) {
    Builder& b = s.b;
    const uint32_t d = s.header.d_model;
    const SlotId gate = b.scratch("gate", d_ff), up = b.scratch("up", d_ff);
    b.norm(s.tape, s.il, s.a(), s.x, b.vector(s.name(norm), d), s.header.eps);
    b.matmul(s.tape, s.il, gate, s.a(), b.weight(s.name("ffn_gate.weight"), {d_ff, d}));
    b.matmul(s.tape, s.il, up, s.a(), b.weight(s.name("ffn_up.weight"), {d_ff, d}));
    Op& act = b.push(s.tape, OpKind::swiglu, s.il, gate);
    act.in[0] = gate;
    act.in[1] = up;
    act.limit = limit;
    b.matmul(s.tape, s.il, s.x, gate, b.weight(s.name("ffn_down.weight"), {d, d_ff}), true);
}

void moe_part(const LayerBuilder& s, const char* norm, const MoeDims& dims, bool shared_gate, bool bias) {
    Builder& b = s.b;
    const uint64_t d = s.header.d_model, n = dims.n_expert, ff = dims.d_ff, ff_shared = dims.d_ff_shared;
    b.norm(s.tape, s.il, s.a(), s.x, b.vector(s.name(norm), d), s.header.eps);
    Op& op = b.push(s.tape, OpKind::moe, s.il, s.x);
    op.moe = dims;
    op.accumulate = true;
    op.in[0] = s.a();
    op.w[0] = b.weight(s.name("ffn_gate_inp.weight"), {n, d});
    const std::string gate = s.name("ffn_gate_exps.weight"), fused = s.name("ffn_gate_up_exps.weight");
    if (!b.has(gate) && b.has(fused)) {
        op.moe.gate_up = true;
        op.w[1] = b.weight(fused, {n, 2 * ff, d});
    } else {
        op.w[1] = b.weight(gate, {n, ff, d});
        op.w[2] = b.weight(s.name("ffn_up_exps.weight"), {n, ff, d});
    }
    op.w[3] = b.weight(s.name("ffn_down_exps.weight"), {n, d, ff});
    op.w[4] = b.weight(s.name("ffn_gate_shexp.weight"), {ff_shared, d});
    op.w[5] = b.weight(s.name("ffn_up_shexp.weight"), {ff_shared, d});
    op.w[6] = b.weight(s.name("ffn_down_shexp.weight"), {d, ff_shared});
    if (shared_gate) op.w[7] = b.vector(s.name("ffn_gate_inp_shexp.weight"), d);
    if (bias) op.w[8] = b.vector(s.name("exp_probs_b.bias"), n);
}

void mtp_entry(const LayerBuilder& s) {
    Builder& b = s.b;
    const uint32_t d = s.header.d_model;
    const SlotId e = b.scratch("mtp.e", d), h = b.scratch("mtp.h", d), c = b.scratch("mtp.c", 2 * uint64_t{d});
    const std::string own = s.name("nextn.embed_tokens.weight");
    const SlotId embd = s.header.embd;
    b.push(s.tape, OpKind::embed, s.il, e).w[0] = b.has(own) ? b.weight(own, {b.n_vocab(), d}) : embd;
    b.push(s.tape, OpKind::hidden, s.il, h);
    b.norm(s.tape, s.il, c, e, b.vector(s.name("nextn.enorm.weight"), d), s.header.eps);
    b.norm(s.tape, s.il, c, h, b.vector(s.name("nextn.hnorm.weight"), d), s.header.eps, d);
    b.matmul(s.tape, s.il, s.x, c, b.weight(s.name("nextn.eh_proj.weight"), {d, 2 * uint64_t{d}}));
}

void head_part(const LayerBuilder& s, SlotId norm, SlotId table, bool raw) {
    const SlotId normed =
        raw ? s.b.activation(s.tape.n_fill ? say("mtp.", s.il - s.header.n_layer, ".normed") : std::string("normed"),
                             s.header.d_model, SlotRole::kept)
            : s.tape.hidden;
    s.b.norm(s.tape, s.il, normed, s.x, norm, s.header.eps);
    s.b.matmul(s.tape, s.il, s.tape.logits, normed, table);
    s.tape.ops.back().head = true;
}

void mtp_head(const LayerBuilder& s, bool raw) {
    Builder& b = s.b;
    const std::string norm = s.name("nextn.shared_head_norm.weight"), table = s.name("nextn.shared_head_head.weight");
    const char* head = b.has(table) ? table.c_str() : b.has(kDraftHead) ? kDraftHead : nullptr;
    head_part(s, b.has(norm) ? b.vector(norm, s.header.d_model) : s.header.out_norm,
              head ? b.weight(head, {b.n_vocab(), s.header.d_model}) : s.header.out, raw);
}

}  // namespace detail
}  // namespace auspex

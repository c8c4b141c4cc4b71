// plan/arch_qwen35: Qwen3.5 and 3.6 dense: three Gated DeltaNet layers, then one of gated attention.
// Source: docs/MODEL.md, "qwen35".
#include "arch.h"

#include <cmath>

namespace auspex {
namespace detail {
namespace qwen35_impl {

struct Dims {
    uint32_t n_block, n_layer, n_mtp, d_model, d_ff, interval;
    float eps;
    AttnDims attn;
    DeltaDims delta;
    std::vector<bool> recurrent;  // by block
};

/// The activations that all layers share.
struct Scratch {
    SlotId x, a, q, k, v, o_attn, u, z, beta, alpha, o_delta, gate, up, e, c, h_in;
};

Status read_dims(Builder& b, const Gguf& file, Plan& plan, Dims& d) {
    d.n_block = b.u32("block_count", 1, 1024);
    d.n_mtp = b.u32_or("nextn_predict_layers", 0, 0, 8);
    if (b.ok() && d.n_mtp >= d.n_block)
        b.fail_with(fail(Code::bad_file, "key '", b.key("nextn_predict_layers"), "' is ", d.n_mtp, ", but there are only ", d.n_block, " blocks"));
    d.n_layer = d.n_block - d.n_mtp;
    d.d_model = b.u32("embedding_length", 32, 1u << 16);
    d.d_ff = b.u32("feed_forward_length", 32, 1u << 20);
    d.eps = b.f32("attention.layer_norm_rms_epsilon");
    d.interval = b.u32_or("full_attention_interval", 4, 1, 1024);
    plan.n_context = b.u32("context_length", 1, 1u << 30);

    AttnDims& a = d.attn;
    a.n_head = b.u32("attention.head_count", 1, 1024);
    a.n_head_kv = b.u32_or("attention.head_count_kv", a.n_head, 1, 1024);
    a.d_head = b.u32("attention.key_length", 8, 512);
    const uint32_t d_value = b.u32_or("attention.value_length", a.d_head, 8, 512);
    if (b.ok() && d_value != a.d_head)
        b.fail_with(fail(Code::unsupported, "key heads of ", a.d_head, " and value heads of ", d_value, " values; expected equal widths"));
    a.n_rot = b.u32("rope.dimension_count", 2, 512);
    a.rope_base = b.f32_or("rope.freq_base", 10000.0f);
    a.scale = b.f32_or("attention.scale", 0.0f);
    if (a.scale == 0.0f) a.scale = 1.0f / std::sqrt(static_cast<float>(a.d_head));
    a.gate = AttnGate::interleaved;
    a.eps = d.eps;
    Result<std::string> scaling = file.get_string(b.key("rope.scaling.type"), "none");
    if (!scaling.ok()) return scaling.status();
    if (scaling.value() != "none" && scaling.value() != "")
        b.fail_with(fail(Code::unsupported, "key '", b.key("rope.scaling.type"), "' is '", scaling.value(),
                         "'; only unscaled rotations are supported: use the file at its trained context"));

    DeltaDims& g = d.delta;
    g.n_conv = b.u32("ssm.conv_kernel", 2, 8);
    g.d_key = b.u32("ssm.state_size", 8, 256);
    g.n_head_k = b.u32("ssm.group_count", 1, 1024);
    g.n_head_v = b.u32("ssm.time_step_rank", 1, 1024);
    g.d_val = g.d_key;
    g.eps = d.eps;
    const uint32_t inner = b.u32("ssm.inner_size", 8, 1u << 20);
    if (b.ok() && uint64_t{g.n_head_v} * g.d_val != inner)
        b.fail_with(fail(Code::bad_file, "key '", b.key("ssm.inner_size"), "' is ", inner, ", expected ", uint64_t{g.n_head_v} * g.d_val, " (time_step_rank * state_size)"));
    if (!b.ok()) return b.status();

    d.recurrent.resize(d.n_block);
    for (uint32_t i = 0; i < d.n_block; ++i) d.recurrent[i] = i < d.n_layer && (i + 1) % d.interval != 0;
    if (const Meta* mask = file.find(b.key("attention.recurrent_layers"))) {
        if (!mask->is_array || mask->n != d.n_block)
            return fail(Code::bad_file, "key '", mask->key, "' has ", mask->n, " entries, expected ", d.n_block, " (block_count)");
        for (uint32_t i = 0; i < d.n_layer; ++i) {
            int64_t bit = 0;
            if (!mask->get_int(i, &bit)) return fail(Code::bad_file, "key '", mask->key, "' holds no booleans");
            d.recurrent[i] = bit != 0;
        }
    }
    return {};
}

void attention(Builder& b, Tape& tape, uint32_t il, const Dims& d, const Scratch& s, bool fill_first) {
    const AttnDims& a = d.attn;
    const std::string blk = say("blk.", il, ".");
    const uint64_t kv_dim = uint64_t{a.n_head_kv} * a.d_head, q_dim = uint64_t{a.n_head} * a.d_head;
    const SlotId kv = b.state(say("layer.", il, ".kv"), SlotRole::kv, kv_dim);
    b.matmul(tape, il, s.k, s.a, b.weight(blk + "attn_k.weight", {kv_dim, d.d_model}));
    b.matmul(tape, il, s.v, s.a, b.weight(blk + "attn_v.weight", {kv_dim, d.d_model}));
    if (!fill_first) b.matmul(tape, il, s.q, s.a, b.weight(blk + "attn_q.weight", {2 * q_dim, d.d_model}));
    Op& write = b.push(tape, OpKind::kv_write, il, kNoSlot);
    write.in[0] = s.k;
    write.in[1] = s.v;
    write.w[0] = b.vector(blk + "attn_k_norm.weight", a.d_head);
    write.state = kv;
    write.attn = a;
    if (fill_first) {  // a cache-filling row stops here
        tape.n_fill = tape.ops.size();
        b.matmul(tape, il, s.q, s.a, b.weight(blk + "attn_q.weight", {2 * q_dim, d.d_model}));
    }
    Op& attend = b.push(tape, OpKind::attend, il, s.o_attn);
    attend.in[0] = s.q;
    attend.w[0] = b.vector(blk + "attn_q_norm.weight", a.d_head);
    attend.state = kv;
    attend.attn = a;
    b.matmul(tape, il, s.x, s.o_attn, b.weight(blk + "attn_output.weight", {d.d_model, q_dim}), true);
}

void delta(Builder& b, Tape& tape, uint32_t il, const Dims& d, const Scratch& s) {
    const DeltaDims& g = d.delta;
    const std::string blk = say("blk.", il, ".");
    const uint64_t value_dim = uint64_t{g.n_head_v} * g.d_val;
    b.matmul(tape, il, s.u, s.a, b.weight(blk + "attn_qkv.weight", {g.conv_dim(), d.d_model}));
    b.matmul(tape, il, s.z, s.a, b.weight(blk + "attn_gate.weight", {value_dim, d.d_model}));
    b.matmul(tape, il, s.beta, s.a, b.weight(blk + "ssm_beta.weight", {g.n_head_v, d.d_model}));
    b.matmul(tape, il, s.alpha, s.a, b.weight(blk + "ssm_alpha.weight", {g.n_head_v, d.d_model}));
    Op& op = b.push(tape, OpKind::delta, il, s.o_delta);
    op.in[0] = s.u;
    op.in[1] = s.z;
    op.in[2] = s.beta;
    op.in[3] = s.alpha;
    op.w[0] = b.weight(blk + "ssm_conv1d.weight", {g.conv_dim(), g.n_conv});
    op.w[1] = b.vector(blk + "ssm_dt.bias", g.n_head_v);
    op.w[2] = b.vector(blk + "ssm_a", g.n_head_v);
    op.w[3] = b.vector(blk + "ssm_norm.weight", g.d_val);
    op.state = b.state(say("layer.", il, ".delta.state"), SlotRole::delta, g.n_head_v, g.d_key, g.d_val);
    op.state2 = b.state(say("layer.", il, ".delta.conv"), SlotRole::conv, g.conv_dim());
    op.delta = g;
    b.matmul(tape, il, s.x, s.o_delta, b.weight(blk + "ssm_out.weight", {d.d_model, value_dim}), true);
}

void ffn(Builder& b, Tape& tape, uint32_t il, const Dims& d, const Scratch& s) {
    const std::string blk = say("blk.", il, ".");
    b.norm(tape, il, s.a, s.x, b.vector(blk + "post_attention_norm.weight", d.d_model), d.eps);
    b.matmul(tape, il, s.gate, s.a, b.weight(blk + "ffn_gate.weight", {d.d_ff, d.d_model}));
    b.matmul(tape, il, s.up, s.a, b.weight(blk + "ffn_up.weight", {d.d_ff, d.d_model}));
    Op& act = b.push(tape, OpKind::swiglu, il, s.gate);
    act.in[0] = s.gate;
    act.in[1] = s.up;
    b.matmul(tape, il, s.x, s.gate, b.weight(blk + "ffn_down.weight", {d.d_model, d.d_ff}), true);
}

/// The end of a tape: final norm to `hidden`, head to `logits`.
void head(Builder& b, Tape& tape, uint32_t il, const Scratch& s, SlotId norm, SlotId table, float eps) {
    b.norm(tape, il, tape.hidden, s.x, norm, eps);
    b.matmul(tape, il, tape.logits, tape.hidden, table);
    tape.ops.back().head = true;
}

}  // namespace qwen35_impl

Status plan_qwen35(const Gguf& file, const PlanOptions& options, Plan& plan) {
    using namespace qwen35_impl;
    Builder b(file, plan);
    Dims d{};
    AUSPEX_TRY(read_dims(b, file, plan, d));
    const Tensor* table = file.tensor("token_embd.weight");
    if (!table) return fail(Code::bad_file, "tensor 'token_embd.weight' is missing; every file needs it");
    if (!file.tensor("blk.0.attn_norm.weight"))
        return fail(Code::unsupported, "tensor 'blk.0.attn_norm.weight' is missing; a file with only the MTP block drafts for another model and cannot run alone");
    if (table->ne[1] == 0 || table->ne[1] > (1u << 24)) return fail(Code::bad_file, "tensor 'token_embd.weight' has ", table->ne[1], " rows, expected 1..16777216");
    plan.d_model = d.d_model;
    plan.n_vocab = static_cast<uint32_t>(table->ne[1]);
    plan.n_layer = d.n_layer;

    Scratch s{};
    const DeltaDims& g = d.delta;
    const uint64_t value_dim = uint64_t{g.n_head_v} * g.d_val, kv_dim = uint64_t{d.attn.n_head_kv} * d.attn.d_head,
                   q_dim = uint64_t{d.attn.n_head} * d.attn.d_head;
    s.x = b.activation("x", d.d_model);
    s.a = b.activation("a", d.d_model);
    s.q = b.activation("q", 2 * q_dim);
    s.k = b.activation("k", kv_dim);
    s.v = b.activation("v", kv_dim);
    s.o_attn = b.activation("o", q_dim);
    s.u = b.activation("u", g.conv_dim());
    s.z = b.activation("z", value_dim);
    s.beta = b.activation("beta", g.n_head_v);
    s.alpha = b.activation("alpha", g.n_head_v);
    s.o_delta = b.activation("od", value_dim);
    s.gate = b.activation("gate", d.d_ff);
    s.up = b.activation("up", d.d_ff);

    const SlotId embd = b.weight("token_embd.weight", {plan.n_vocab, d.d_model});
    const SlotId out = b.has("output.weight") ? b.weight("output.weight", {plan.n_vocab, d.d_model}) : embd;
    const SlotId out_norm = b.vector("output_norm.weight", d.d_model);

    Tape& trunk = plan.trunk;
    trunk.hidden = b.activation("hidden", d.d_model, SlotRole::kept);
    trunk.logits = b.activation("logits", plan.n_vocab, SlotRole::kept);
    b.push(trunk, OpKind::embed, 0, s.x).w[0] = embd;
    for (uint32_t il = 0; il < d.n_layer && b.ok(); ++il) {
        b.norm(trunk, il, s.a, s.x, b.vector(say("blk.", il, ".attn_norm.weight"), d.d_model), d.eps);
        if (d.recurrent[il])
            delta(b, trunk, il, d, s);
        else
            attention(b, trunk, il, d, s, false);
        ffn(b, trunk, il, d, s);
    }
    head(b, trunk, d.n_layer, s, out_norm, out, d.eps);

    const uint32_t n_mtp = options.mtp && d.n_mtp > 0 && b.has(say("blk.", d.n_layer, ".nextn.eh_proj.weight")) ? d.n_mtp : 0;
    if (n_mtp > 1) return fail(Code::unsupported, "key '", b.key("nextn_predict_layers"), "' is ", n_mtp, "; this architecture is known with at most 1");
    if (n_mtp == 1) {
        const uint32_t il = d.n_layer;
        const std::string blk = say("blk.", il, ".");
        s.e = b.activation("mtp.e", d.d_model);
        s.h_in = b.activation("mtp.h", d.d_model);
        s.c = b.activation("mtp.c", 2 * d.d_model);
        plan.mtp.emplace_back();
        Tape& t = plan.mtp.back();
        t.hidden = b.activation("mtp.hidden", d.d_model, SlotRole::kept);
        t.logits = b.activation("mtp.logits", plan.n_vocab, SlotRole::kept);
        const std::string own_embd = blk + "nextn.embed_tokens.weight", own_norm = blk + "nextn.shared_head_norm.weight",
                          own_head = blk + "nextn.shared_head_head.weight";
        b.push(t, OpKind::embed, il, s.e).w[0] = b.has(own_embd) ? b.weight(own_embd, {plan.n_vocab, d.d_model}) : embd;
        b.push(t, OpKind::hidden, il, s.h_in);
        b.norm(t, il, s.c, s.e, b.vector(blk + "nextn.enorm.weight", d.d_model), d.eps);
        b.norm(t, il, s.c, s.h_in, b.vector(blk + "nextn.hnorm.weight", d.d_model), d.eps, d.d_model);
        b.matmul(t, il, s.x, s.c, b.weight(blk + "nextn.eh_proj.weight", {d.d_model, 2 * uint64_t{d.d_model}}));
        b.norm(t, il, s.a, s.x, b.vector(blk + "attn_norm.weight", d.d_model), d.eps);
        attention(b, t, il, d, s, true);
        ffn(b, t, il, d, s);
        head(b, t, il, s, b.has(own_norm) ? b.vector(own_norm, d.d_model) : out_norm,
             b.has(own_head) ? b.weight(own_head, {plan.n_vocab, d.d_model}) : out, d.eps);
    }
    return b.status();
}

}  // namespace detail
}  // namespace auspex

// plan/arch_qwen35: Qwen3.5 and 3.6, dense and with experts, and their elder Qwen3-Next: Gated DeltaNet
// layers, every few of them one of gated attention. Source: docs/MODEL.md, "qwen35" and its neighbours.
#include "arch_parts.h"

#include <cmath>

namespace auspex {
namespace detail {
namespace qwen35_impl {

struct Dims {
    bool next = false;  ///< qwen3next: heads in groups, fused projections
    uint32_t d_ff = 0;  ///< of dense layers; 0: the file does not say
    AttnDims attn;
    DeltaDims delta;
    MoeDims moe;                  ///< n_expert 0: dense
    std::vector<bool> recurrent;  // by block
};

Status read_dims(Builder& b, const ModelHeader& f, const Plan& plan, Dims& d) {
    d.next = plan.architecture == "qwen3next";
    const bool dense = plan.architecture == "qwen35";
    d.d_ff = dense ? b.u32("feed_forward_length", 32, 1u << 20) : b.u32_or("feed_forward_length", 0, 0, 1u << 20);
    if (!dense) read_moe(b, d.d_ff, d.moe);

    AttnDims& a = d.attn;
    a.n_head = b.u32("attention.head_count", 1, 1024);
    a.n_head_kv = b.u32_or("attention.head_count_kv", a.n_head, 1, 1024);
    a.d_head = b.u32("attention.key_length", 8, 512);
    const uint32_t d_value = b.u32_or("attention.value_length", a.d_head, 8, 512);
    if (b.ok() && d_value != a.d_head)
        b.fail_with(fail(Code::unsupported, "key heads of ", a.d_head, " and value heads of ", d_value,
                         " values; expected equal widths"));
    a.n_rot = b.u32("rope.dimension_count", 2, 512);
    a.rope_base = b.f32_or("rope.freq_base", 10000.0f);
    a.scale = b.f32_or("attention.scale", 0.0f);
    if (a.scale == 0.0f) a.scale = 1.0f / std::sqrt(static_cast<float>(a.d_head));
    a.gate = AttnGate::interleaved;
    a.eps = f.eps;

    DeltaDims& g = d.delta;
    g.n_conv = b.u32("ssm.conv_kernel", 2, 8);
    g.d_key = b.u32("ssm.state_size", 8, 256);
    g.n_head_k = b.u32("ssm.group_count", 1, 1024);
    g.n_head_v = b.u32("ssm.time_step_rank", 1, 1024);
    g.d_val = g.d_key;
    g.eps = f.eps;
    g.grouped = d.next;
    const uint32_t inner = b.u32("ssm.inner_size", 8, 1u << 20);
    if (b.ok() && uint64_t{g.n_head_v} * g.d_val != inner)
        b.fail_with(fail(Code::bad_file, "key '", b.key("ssm.inner_size"), "' is ", inner, ", expected ",
                         uint64_t{g.n_head_v} * g.d_val, " (time_step_rank * state_size)"));
    if (b.ok() && g.n_head_v % g.n_head_k != 0)
        b.fail_with(fail(Code::bad_file, "key '", b.key("ssm.time_step_rank"), "' is ", g.n_head_v,
                         ", expected a multiple of ", g.n_head_k, " (ssm.group_count)"));
    const uint32_t interval = b.u32_or("full_attention_interval", 4, 1, 1024);
    if (!b.ok()) return b.status();

    d.recurrent.resize(f.n_block);
    for (uint32_t i = 0; i < f.n_block; ++i) d.recurrent[i] = i < f.n_layer && (i + 1) % interval != 0;
    if (const Meta* mask = b.file().find(b.key("attention.recurrent_layers"))) {
        if (!mask->is_array || mask->n != f.n_block)
            return fail(Code::bad_file, "key '", mask->key, "' has ", mask->n, " entries, expected ", f.n_block,
                        " (block_count)");
        for (uint32_t i = 0; i < f.n_layer; ++i) {
            int64_t bit = 0;
            if (!mask->get_int(i, &bit)) return fail(Code::bad_file, "key '", mask->key, "' holds no booleans");
            d.recurrent[i] = bit != 0;
        }
    }
    return {};
}

/// The rows of `group` of each key head: `n` rows from `first` on, of `stride` rows per head, in head order.
std::vector<RowRange> by_head(uint32_t n_head, uint64_t stride, uint64_t first, uint64_t n) {
    std::vector<RowRange> rows;
    for (uint32_t h = 0; h < n_head; ++h) rows.push_back({h * stride + first, n});
    return rows;
}

struct DeltaWeights {
    SlotId u, z, beta, alpha;
};

DeltaWeights delta_weights(const LayerBuilder& s, const DeltaDims& g) {
    Builder& b = s.b;
    const uint64_t d = s.header.d_model, value_dim = uint64_t{g.n_head_v} * g.d_val;
    return {b.weight(s.name("attn_qkv.weight"), {g.conv_dim(), d}),
            b.weight(s.name("attn_gate.weight"), {value_dim, d}), b.weight(s.name("ssm_beta.weight"), {g.n_head_v, d}),
            b.weight(s.name("ssm_alpha.weight"), {g.n_head_v, d})};
}

/// Qwen3-Next fuses what belongs to a key head: r beta and r alpha rows, and in older files
/// [q, k, r values, r gates] too.
DeltaWeights delta_weights_next(const LayerBuilder& s, const DeltaDims& g) {
    Builder& b = s.b;
    const uint64_t d = s.header.d_model, r = g.n_head_v / g.n_head_k, value_dim = uint64_t{g.n_head_v} * g.d_val;
    const std::string ba = s.name("ssm_ba.weight"), in = s.name("ssm_in.weight"), qkv = s.name("attn_qkv.weight");
    DeltaWeights w{};
    if (!b.has(qkv) && b.has(in)) {
        const uint64_t stride = 2 * g.d_key + 2 * r * g.d_val;
        std::vector<RowRange> u = by_head(g.n_head_k, stride, 0, g.d_key);
        for (const RowRange& k : by_head(g.n_head_k, stride, g.d_key, g.d_key)) u.push_back(k);
        for (const RowRange& v : by_head(g.n_head_k, stride, 2 * g.d_key, r * g.d_val)) u.push_back(v);
        const uint64_t n = g.n_head_k * stride;
        w.u = b.rows(in, "qkv", n, d, std::move(u));
        w.z = b.rows(in, "z", n, d, by_head(g.n_head_k, stride, 2 * g.d_key + r * g.d_val, r * g.d_val));
    } else {
        w.u = b.weight(qkv, {g.conv_dim(), d});
        w.z = b.weight(s.name("attn_gate.weight"), {value_dim, d});
    }
    w.beta = b.rows(ba, "beta", 2 * uint64_t{g.n_head_v}, d, by_head(g.n_head_k, 2 * r, 0, r));
    w.alpha = b.rows(ba, "alpha", 2 * uint64_t{g.n_head_v}, d, by_head(g.n_head_k, 2 * r, r, r));
    return w;
}

void delta_part(const LayerBuilder& s, const Dims& d) {
    Builder& b = s.b;
    const DeltaDims& g = d.delta;
    const uint64_t value_dim = uint64_t{g.n_head_v} * g.d_val;
    b.norm(s.tape, s.il, s.a(), s.x, b.vector(s.name("attn_norm.weight"), s.header.d_model), s.header.eps);
    const DeltaWeights w = d.next ? delta_weights_next(s, g) : delta_weights(s, g);
    const SlotId u = b.scratch("u", g.conv_dim()), z = b.scratch("z", value_dim), beta = b.scratch("beta", g.n_head_v),
                 alpha = b.scratch("alpha", g.n_head_v), o = b.scratch("od", value_dim);
    b.matmul(s.tape, s.il, u, s.a(), w.u);
    b.matmul(s.tape, s.il, z, s.a(), w.z);
    b.matmul(s.tape, s.il, beta, s.a(), w.beta);
    b.matmul(s.tape, s.il, alpha, s.a(), w.alpha);
    Op& op = b.push(s.tape, OpKind::delta, s.il, o);
    op.in[0] = u;
    op.in[1] = z;
    op.in[2] = beta;
    op.in[3] = alpha;
    op.w[0] = b.weight(s.name("ssm_conv1d.weight"), {g.conv_dim(), g.n_conv});
    op.w[1] = b.vector(s.name("ssm_dt.bias"), g.n_head_v);
    op.w[2] = b.vector(s.name("ssm_a"), g.n_head_v);
    op.w[3] = b.vector(s.name("ssm_norm.weight"), g.d_val);
    op.state = b.state(say("layer.", s.il, ".delta.state"), SlotRole::delta, g.n_head_v, g.d_key, g.d_val);
    op.state2 = b.state(say("layer.", s.il, ".delta.conv"), SlotRole::conv, g.conv_dim());
    op.delta = g;
    b.matmul(s.tape, s.il, s.x, o, b.weight(s.name("ssm_out.weight"), {s.header.d_model, value_dim}), true);
}

void ffn_part(const LayerBuilder& s, const Dims& d) {
    const char* norm = "post_attention_norm.weight";
    // Qwen3-Next files with dense layers among the others are in use.
    const bool dense = d.moe.n_expert == 0 || (d.next && d.d_ff != 0 && !s.b.has(s.name("ffn_gate_inp.weight")) &&
                                               s.b.has(s.name("ffn_gate.weight")));
    if (dense)
        dense_part(s, norm, d.d_ff, 0);
    else
        moe_part(s, norm, d.moe, true, false);
}

}  // namespace qwen35_impl

Status plan_qwen(const Gguf& file, const PlanOptions& options, Plan& plan) {
    using namespace qwen35_impl;
    Builder b(file, plan);
    ModelHeader f;
    Dims d;
    AUSPEX_TRY(read_header(b, options, plan, f));
    AUSPEX_TRY(read_dims(b, f, plan, d));
    const SlotId x = b.scratch("x", f.d_model);

    Tape& trunk = plan.trunk;
    trunk.hidden = b.activation("hidden", f.d_model, SlotRole::kept);
    trunk.logits = b.activation("logits", plan.n_vocab, SlotRole::kept);
    b.push(trunk, OpKind::embed, 0, x).w[0] = f.embd;
    for (uint32_t il = 0; il < f.n_layer && b.ok(); ++il) {
        const LayerBuilder s{b, trunk, f, il, x};
        if (d.recurrent[il])
            delta_part(s, d);
        else
            attention_part(s, d.attn, kNoSlot, false);
        ffn_part(s, d);
    }
    head_part({b, trunk, f, f.n_layer, x}, f.out_norm, f.out, false);

    if (f.n_mtp > 1)
        return fail(Code::unsupported, "key '", b.key("nextn_predict_layers"), "' is ", f.n_mtp,
                    "; this architecture is known with at most 1");
    if (f.n_mtp == 1) {
        plan.mtp.emplace_back();
        Tape& t = plan.mtp.back();
        t.hidden = b.activation("mtp.hidden", f.d_model, SlotRole::kept);
        t.logits = trunk.logits;  // read before the next step: one table of rows serves all tapes
        const LayerBuilder s{b, t, f, f.n_layer, x};
        mtp_entry(s);
        attention_part(s, d.attn, kNoSlot, true);
        ffn_part(s, d);
        mtp_head(s, false);
    }
    return b.status();
}

}  // namespace detail
}  // namespace auspex

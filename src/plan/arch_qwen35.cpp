// plan/arch_qwen35: Qwen3.5 and Qwen3.6, dense and with experts, and Qwen3-Next. Gated DeltaNet layers, every few
// layers one with gated attention. docs/MODEL.md has the formulas.
#include "arch_parts.h"

#include <cmath>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace qwen35_impl {
namespace {

struct Dims {
    bool next = false;  ///< qwen3next: value heads in groups, fused projections
    uint32_t d_ff = 0;  ///< of dense layers; 0 if the file has no such key
    AttnDims attn;
    DeltaDims delta;
    MoeDims moe;                  ///< n_expert 0: dense
    std::vector<bool> recurrent;  ///< by block: DeltaNet, not attention
};

/// A key that has one value, which a file may repeat for every block.
uint32_t same_u32(PlanBuilder& b, const ModelHeader& header, const char* key, const uint32_t* fallback, uint32_t low,
                  uint32_t high) {
    const std::vector<uint32_t> values = b.u32s(key, header.n_block, fallback, low, high);
    for (uint32_t v : values)
        if (b.ok() && v != values[0])
            b.fail_with(fail(Code::unsupported, "key '", b.key(key), "' is ", values[0], " and ", v,
                             " for different blocks, expected the same value for all"));
    return values[0];
}

Status read_dims(PlanBuilder& b, const ModelHeader& header, const Plan& plan, Dims& d) {
    d.next = plan.architecture == "qwen3next";
    const bool dense = plan.architecture == "qwen35";
    const uint32_t none = 0;
    d.d_ff = same_u32(b, header, "feed_forward_length", dense ? nullptr : &none, dense ? 32 : 0, 1u << 20);
    if (!dense) {
        read_moe(b, d.d_ff, d.moe);
        const uint32_t gating = b.u32_or("expert_gating_func", 1, 0, 1000);
        if (b.ok() && gating > 1)
            b.fail_with(fail(Code::unsupported, "key '", b.key("expert_gating_func"), "' is ", gating,
                             "; this architecture is supported with 1 (softmax)"));
        if (!b.flag_or("expert_weights_norm", true))
            b.fail_with(fail(Code::unsupported, "key '", b.key("expert_weights_norm"),
                             "' is false; this architecture is supported with true"));
    }

    AttnDims& a = d.attn;
    a.n_head = same_u32(b, header, "attention.head_count", nullptr, 1, 1024);
    a.n_head_kv = same_u32(b, header, "attention.head_count_kv", &a.n_head, 1, 1024);
    a.d_head = b.u32("attention.key_length", 8, 512);
    const uint32_t d_value = b.u32_or("attention.value_length", a.d_head, 8, 512);
    if (b.ok() && d_value != a.d_head)
        b.fail_with(fail(Code::unsupported, "key heads of ", a.d_head, " and value heads of ", d_value,
                         " values; expected equal widths"));
    a.n_rot = b.u32("rope.dimension_count", 2, 512);
    a.rope_base = b.f32_or("rope.freq_base", 10000.0f);
    a.scale = b.f32_or("attention.scale", 0.0f);
    if (a.scale == 0.0f) a.scale = 1.0f / std::sqrt(static_cast<float>(a.d_head));
    // A window of at least the trained context hides no row.
    const uint32_t window = b.u32_or("attention.sliding_window", 0, 0, UINT32_MAX);
    if (b.ok() && window != 0 && window < plan.n_context)
        b.fail_with(fail(Code::unsupported, "key '", b.key("attention.sliding_window"), "' is ", window,
                         "; this architecture is supported without windows: expected no such key, 0, or at least ",
                         plan.n_context, " ('", b.key("context_length"), "')"));
    a.gate = AttnGate::interleaved;
    a.eps = header.eps;

    DeltaDims& g = d.delta;
    g.n_conv = b.u32("ssm.conv_kernel", 2, 8);
    g.d_key = b.u32("ssm.state_size", 8, 256);
    g.n_head_k = b.u32("ssm.group_count", 1, 1024);
    g.n_head_v = b.u32("ssm.time_step_rank", 1, 1024);
    g.d_val = g.d_key;
    g.eps = header.eps;
    g.grouped = d.next;
    const uint32_t inner = b.u32("ssm.inner_size", 8, 1u << 20);
    if (b.ok() && g.value_dim() != inner)
        b.fail_with(fail(Code::bad_file, "key '", b.key("ssm.inner_size"), "' is ", inner, ", expected ", g.value_dim(),
                         " (time_step_rank * state_size)"));
    if (b.ok() && g.n_head_v % g.n_head_k != 0)
        b.fail_with(fail(Code::bad_file, "key '", b.key("ssm.time_step_rank"), "' is ", g.n_head_v,
                         ", expected a multiple of ", g.n_head_k, " (ssm.group_count)"));
    const uint32_t interval = b.u32_or("full_attention_interval", 4, 1, 1024);
    if (!b.ok()) return b.status();

    d.recurrent = std::vector<bool>(header.n_block);
    for (uint32_t i = 0; i < header.n_block; ++i) d.recurrent[i] = i < header.n_layer && (i + 1) % interval != 0;
    if (const Meta* mask = b.file().find(b.key("attention.recurrent_layers"))) {
        if (!mask->is_array || mask->n != header.n_block)
            return fail(Code::bad_file, "key '", mask->key, "' has ", mask->n, " entries, expected ", header.n_block,
                        " (block_count)");
        for (uint32_t i = 0; i < header.n_layer; ++i) {
            int64_t bit = 0;
            if (!mask->get_int(i, &bit)) return fail(Code::bad_file, "key '", mask->key, "' holds no booleans");
            d.recurrent[i] = bit != 0;
        }
    }
    return {};
}

/// Of each head's `stride` rows the `n` from `first` on, in head order.
std::vector<RowRange> by_head(uint32_t n_head, uint64_t stride, uint64_t first, uint64_t n) {
    std::vector<RowRange> rows;
    for (uint32_t h = 0; h < n_head; ++h) rows.push_back({h * stride + first, n});
    return rows;
}

struct DeltaWeights {
    SlotId u, z, beta, alpha;
};

DeltaWeights delta_weights(const LayerBuilder& layer, const DeltaDims& g) {
    const uint64_t d = layer.header.d_model;
    return {layer.weight("attn_qkv.weight", {g.conv_dim(), d}), layer.weight("attn_gate.weight", {g.value_dim(), d}),
            layer.weight("ssm_beta.weight", {g.n_head_v, d}), layer.weight("ssm_alpha.weight", {g.n_head_v, d})};
}

/// Qwen3-Next stores the rows of each key head together: r beta and r alpha rows; older files also
/// [q, k, r values, r gates]. r is the number of value heads per key head.
DeltaWeights delta_weights_next(const LayerBuilder& layer, const DeltaDims& g) {
    PlanBuilder& b = layer.b;
    const uint64_t d = layer.header.d_model, r = g.n_head_v / g.n_head_k;
    const std::string ba = layer.name("ssm_ba.weight"), in = layer.name("ssm_in.weight"),
                      qkv = layer.name("attn_qkv.weight");
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
        w.z = layer.weight("attn_gate.weight", {g.value_dim(), d});
    }
    w.beta = b.rows(ba, "beta", 2 * uint64_t{g.n_head_v}, d, by_head(g.n_head_k, 2 * r, 0, r));
    w.alpha = b.rows(ba, "alpha", 2 * uint64_t{g.n_head_v}, d, by_head(g.n_head_k, 2 * r, r, r));
    return w;
}

void delta_part(const LayerBuilder& layer, const Dims& d) {
    PlanBuilder& b = layer.b;
    const DeltaDims& g = d.delta;
    layer.norm(layer.normed(), layer.x, layer.vector("attn_norm.weight", layer.header.d_model));
    const DeltaWeights w = d.next ? delta_weights_next(layer, g) : delta_weights(layer, g);
    const SlotId u = b.scratch("u", g.conv_dim()), z = b.scratch("z", g.value_dim()),
                 beta = b.scratch("beta", g.n_head_v), alpha = b.scratch("alpha", g.n_head_v),
                 o = b.scratch("od", g.value_dim());
    layer.matmul(u, layer.normed(), w.u);
    layer.matmul(z, layer.normed(), w.z);
    layer.matmul(beta, layer.normed(), w.beta);
    layer.matmul(alpha, layer.normed(), w.alpha);
    Op& op = layer.push(OpKind::delta, o);
    op.in[0] = u;
    op.in[1] = z;
    op.in[2] = beta;
    op.in[3] = alpha;
    op.w[0] = layer.weight("ssm_conv1d.weight", {g.conv_dim(), g.n_conv});
    op.w[1] = layer.vector("ssm_dt.bias", g.n_head_v);
    op.w[2] = layer.vector("ssm_a", g.n_head_v);
    op.w[3] = layer.vector("ssm_norm.weight", g.d_val);
    op.state = b.state(say("layer.", layer.i_block, ".delta.state"), SlotRole::delta, g.n_head_v, g.d_key, g.d_val);
    op.state2 = b.state(say("layer.", layer.i_block, ".delta.conv"), SlotRole::conv, g.conv_dim());
    op.delta = g;
    layer.matmul(layer.x, o, layer.weight("ssm_out.weight", {layer.header.d_model, g.value_dim()}), true);
}

void ffn_part(const LayerBuilder& layer, const Dims& d) {
    const char* norm = "post_attention_norm.weight";
    // Some Qwen3-Next files have dense layers between the others.
    const bool dense = d.moe.n_expert == 0 ||
                       (d.next && d.d_ff != 0 && !layer.has("ffn_gate_inp.weight") && layer.has("ffn_gate.weight"));
    if (dense)
        dense_part(layer, norm, d.d_ff, 0);
    else
        moe_part(layer, norm, d.moe, true, false);
}

}  // namespace
}  // namespace qwen35_impl

Status plan_qwen(const Gguf& file, const PlanOptions& options, Plan& plan) {
    using namespace qwen35_impl;
    PlanBuilder b(file, plan);
    ModelHeader header;
    Dims d;
    AUSPEX_TRY(read_header(b, options, plan, header));
    AUSPEX_TRY(read_dims(b, header, plan, d));
    const SlotId x = b.scratch("x", header.d_model);

    Tape& trunk = plan.trunk;
    trunk.hidden = b.activation("hidden", header.d_model, SlotRole::kept);
    trunk.logits = b.activation("logits", plan.n_vocab, SlotRole::kept);
    b.push(trunk, OpKind::embed, 0, x).w[0] = header.embd;
    for (uint32_t il = 0; il < header.n_layer && b.ok(); ++il) {
        const LayerBuilder layer{b, trunk, header, il, x};
        if (d.recurrent[il])
            delta_part(layer, d);
        else
            attention_part(layer, d.attn, kNoSlot, false);
        ffn_part(layer, d);
    }
    head_part({b, trunk, header, header.n_layer, x}, header.out_norm, header.out, false);

    if (header.n_mtp > 1)
        return fail(Code::unsupported, "key '", b.key("nextn_predict_layers"), "' is ", header.n_mtp,
                    "; this architecture is known with at most 1");
    if (header.n_mtp == 1) {
        plan.mtp.emplace_back();
        Tape& t = plan.mtp.back();
        t.hidden = b.activation("mtp.hidden", header.d_model, SlotRole::kept);
        t.logits = trunk.logits;  // all tapes share one slot: rows are read before the next step
        const LayerBuilder layer{b, t, header, header.n_layer, x};
        mtp_entry(layer);
        attention_part(layer, d.attn, kNoSlot, true);
        ffn_part(layer, d);
        mtp_head(layer, false);
    }
    return b.status();
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

#include "geometry.h"
#include "gguf_writer.h"

#include <deque>

#include <doctest/doctest.h>

namespace test {

using namespace auspex;
using namespace auspex::detail;

const Geometry kPublished[6] = {
    {"0.8B", 1024, 24, 8, 2, 3584, 16, 16, 0, true, 752393024, 20452864},
    {"2B", 2048, 24, 8, 2, 6144, 16, 16, 0, true, 1881825088, 60828160},
    {"4B", 2560, 32, 16, 4, 9216, 16, 32, 0, true, 4205751296, 120599552},
    {"9B", 4096, 32, 16, 4, 12288, 16, 32, 0, false, 8953803264, 243290624},
    {"27B", 5120, 64, 24, 4, 17408, 16, 48, 0, false, 26895998464, 424699392},
    {"35B-A3B", 2048, 40, 16, 2, 512, 16, 32, 256, false, 0, 0},
};

namespace {

constexpr uint32_t kVocab = 248320, kHead = 256, kDelta = 128;

/// Names and keys are views; these live as long as the program.
template <class T>
const T& kept(T value) {
    static std::deque<T> all;
    all.push_back(std::move(value));
    return all.back();
}

Gguf keys_of(const Geometry& g) {
    GgufWriter w;
    const std::string arch = g.n_expert ? "qwen35moe" : "qwen35", p = arch + ".";
    w.add("general.architecture", arch);
    w.add(p + "block_count", g.n_layer + 1);
    w.add(p + "nextn_predict_layers", 1u);
    w.add(p + "context_length", 262144u);
    w.add(p + "embedding_length", g.d_model);
    w.add(p + "feed_forward_length", g.d_ff);
    w.add(p + "attention.head_count", g.n_head);
    w.add(p + "attention.head_count_kv", g.n_head_kv);
    w.add(p + "attention.key_length", kHead);
    w.add(p + "attention.value_length", kHead);
    w.add(p + "attention.layer_norm_rms_epsilon", 1e-6f);
    w.add(p + "rope.dimension_count", 64u);
    w.add(p + "rope.dimension_sections", std::vector<int32_t>{11, 11, 10, 0});
    w.add(p + "rope.freq_base", 1e7f);
    w.add(p + "full_attention_interval", 4u);
    w.add(p + "ssm.conv_kernel", 4u);
    w.add(p + "ssm.state_size", kDelta);
    w.add(p + "ssm.group_count", g.n_head_k);
    w.add(p + "ssm.time_step_rank", g.n_head_v);
    w.add(p + "ssm.inner_size", g.n_head_v * kDelta);
    if (g.n_expert) {
        w.add(p + "expert_count", g.n_expert);
        w.add(p + "expert_used_count", 8u);
        w.add(p + "expert_feed_forward_length", g.d_ff);
        w.add(p + "expert_shared_feed_forward_length", g.d_ff);
    }
    Gguf file;
    REQUIRE(Gguf::parse(kept(w.finish())).get(file).ok());
    return file;
}

}  // namespace

Gguf table_of(const Geometry& g) {
    static const std::byte nowhere{};
    std::vector<Tensor> tensors;
    auto add = [&](const std::string& name, Type type, std::vector<uint64_t> ne) {
        Tensor t;
        t.name = kept(name);
        t.type = type;
        t.n_dim = static_cast<uint32_t>(ne.size());
        uint64_t n = 1;
        for (uint32_t i = 0; i < t.n_dim; ++i) n *= t.ne[i] = ne[i];
        t.bytes = row_bytes(type, n);
        t.data = &nowhere;
        tensors.push_back(t);
    };
    const uint64_t d = g.d_model, q = uint64_t{g.n_head} * kHead, kv = uint64_t{g.n_head_kv} * kHead,
                   value = uint64_t{g.n_head_v} * kDelta;
    const uint64_t conv = 2 * uint64_t{g.n_head_k} * kDelta + value, ff = g.d_ff, n_block = g.n_layer + 1;
    add("token_embd.weight", g.tied ? Type::q6_k : Type::q4_k, {d, kVocab});
    if (!g.tied) add("output.weight", Type::q6_k, {d, kVocab});
    add("output_norm.weight", Type::f32, {d});
    for (uint64_t il = 0; il < n_block; ++il) {
        const std::string b = "blk." + std::to_string(il) + ".";
        const bool mtp = il == g.n_layer,
                   more = il < n_block / 8 || il >= 7 * n_block / 8 || (il - n_block / 8) % 3 == 2;
        const Type large = more ? Type::q6_k : Type::q4_k;
        auto matrix = [&](const char* name, uint64_t d_in, uint64_t d_out, Type type = Type::q4_k) {
            add(b + name, type, {d_in, d_out});
        };
        auto vector = [&](const char* name, uint64_t n) { add(b + name, Type::f32, {n}); };
        vector("attn_norm.weight", d);
        vector("post_attention_norm.weight", d);
        if (mtp || (il + 1) % 4 == 0) {
            matrix("attn_q.weight", d, 2 * q);
            matrix("attn_k.weight", d, kv);
            matrix("attn_v.weight", d, kv, large);
            matrix("attn_output.weight", q, d);
            vector("attn_q_norm.weight", kHead);
            vector("attn_k_norm.weight", kHead);
        } else {
            matrix("attn_qkv.weight", d, conv, large);
            matrix("attn_gate.weight", d, value);
            matrix("ssm_beta.weight", d, g.n_head_v);
            matrix("ssm_alpha.weight", d, g.n_head_v);
            add(b + "ssm_conv1d.weight", Type::f32, {4, conv});
            vector("ssm_dt.bias", g.n_head_v);
            vector("ssm_a", g.n_head_v);
            vector("ssm_norm.weight", kDelta);
            matrix("ssm_out.weight", value, d);
        }
        if (g.n_expert) {
            add(b + "ffn_gate_inp.weight", Type::f32, {d, g.n_expert});
            vector("ffn_gate_inp_shexp.weight", d);
            add(b + "ffn_gate_exps.weight", Type::q4_k, {d, ff, g.n_expert});
            add(b + "ffn_up_exps.weight", Type::q4_k, {d, ff, g.n_expert});
            add(b + "ffn_down_exps.weight", large, {ff, d, g.n_expert});
        }
        const std::string shared = g.n_expert ? "_shexp" : "";
        matrix(("ffn_gate" + shared + ".weight").c_str(), d, ff);
        matrix(("ffn_up" + shared + ".weight").c_str(), d, ff);
        matrix(("ffn_down" + shared + ".weight").c_str(), ff, d, large);
        if (!mtp) continue;
        matrix("nextn.eh_proj.weight", 2 * d, d);
        for (const char* name : {"nextn.enorm.weight", "nextn.hnorm.weight", "nextn.shared_head_norm.weight"})
            vector(name, d);
    }
    const Gguf keys = keys_of(g);
    Gguf table;
    REQUIRE(Gguf::gather(keys.meta(), std::move(tensors), 0).get(table).ok());
    return table;
}

}  // namespace test

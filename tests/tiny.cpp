#include "tiny.h"

#include <cmath>

namespace test {

using namespace auspex;
using namespace auspex::detail;

namespace {

struct Maker {
    GgufWriter file;
    Random random;
    Type type;
    Maker(uint64_t seed, Type t) : random(seed), type(t) {}

    void matrix(const std::string& name, uint64_t d_out, uint64_t d_in, float gain = 1) {
        const std::vector<float> v = random.normals(static_cast<size_t>(d_out * d_in), gain / std::sqrt(static_cast<float>(d_in)));
        file.tensor(name, type, {d_in, d_out}, Span<const float>(v));
    }
    void vector(const std::string& name, uint64_t n, float centre, float spread) {
        std::vector<float> v = random.normals(static_cast<size_t>(n), spread);
        for (float& x : v) x += centre;
        file.tensor(name, Type::f32, {n}, Span<const float>(v));
    }
};

/// The byte alphabet of byte-level BPE, then a few merges and special tokens.
void add_tokenizer(GgufWriter& file) {
    std::vector<std::string> tokens;
    std::vector<int32_t> types;
    auto utf8 = [](uint32_t c) {
        std::string s;
        if (c < 0x80) {
            s += static_cast<char>(c);
        } else {
            s += static_cast<char>(0xC0 | (c >> 6));
            s += static_cast<char>(0x80 | (c & 63));
        }
        return s;
    };
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) {
        const bool plain = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        tokens.push_back(utf8(plain ? b : next++));
        types.push_back(1);
    }
    std::vector<std::string> merges = {"t h", "th e", "i n", "a n", "e r", "o n", "r e", "a t"};
    for (const std::string& m : merges) {
        tokens.push_back(m.substr(0, m.find(' ')) + m.substr(m.find(' ') + 1));
        types.push_back(1);
    }
    for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
        tokens.push_back(special);
        types.push_back(3);
    }
    while (tokens.size() < kTinyVocab) {
        tokens.push_back("[PAD" + std::to_string(tokens.size()) + "]");
        types.push_back(5);
    }
    file.add("tokenizer.ggml.model", "gpt2");
    file.add("tokenizer.ggml.pre", "qwen35");
    file.add("tokenizer.ggml.tokens", tokens);
    file.add("tokenizer.ggml.token_type", types);
    file.add("tokenizer.ggml.merges", merges);
    file.add("tokenizer.ggml.eos_token_id", uint32_t{266});
}

}  // namespace

std::vector<std::byte> tiny_qwen35(const TinyOptions& o) {
    constexpr uint32_t d = 256, ff = 512, n_head = 4, n_head_kv = 2, d_head = 64, d_key = 64;
    Maker m(o.seed, o.type);
    GgufWriter& f = m.file;
    const uint32_t key_dim = o.n_head_k * d_key, value_dim = o.n_head_v * d_key, conv_dim = 2 * key_dim + value_dim;
    f.add("general.architecture", "qwen35");
    f.add("general.name", "tiny");
    f.add("qwen35.block_count", o.n_layer + (o.mtp ? 1u : 0u));
    if (o.mtp) f.add("qwen35.nextn_predict_layers", 1u);
    f.add("qwen35.context_length", 4096u);
    f.add("qwen35.embedding_length", d);
    f.add("qwen35.feed_forward_length", ff);
    f.add("qwen35.attention.head_count", n_head);
    f.add("qwen35.attention.head_count_kv", n_head_kv);
    f.add("qwen35.attention.key_length", d_head);
    f.add("qwen35.attention.value_length", d_head);
    f.add("qwen35.attention.layer_norm_rms_epsilon", 1e-6f);
    f.add("qwen35.rope.dimension_count", 16u);
    f.add("qwen35.rope.dimension_sections", std::vector<int32_t>{3, 3, 2, 0});
    f.add("qwen35.rope.freq_base", 1e7f);
    f.add("qwen35.full_attention_interval", 4u);
    f.add("qwen35.ssm.conv_kernel", 4u);
    f.add("qwen35.ssm.state_size", d_key);
    f.add("qwen35.ssm.group_count", o.n_head_k);
    f.add("qwen35.ssm.time_step_rank", o.n_head_v);
    f.add("qwen35.ssm.inner_size", value_dim);
    add_tokenizer(f);

    m.matrix("token_embd.weight", kTinyVocab, d, o.scale);
    if (!o.tied) m.matrix("output.weight", kTinyVocab, d, o.scale);
    m.vector("output_norm.weight", d, 1, 0.1f);
    const uint32_t n_block = o.n_layer + (o.mtp ? 1u : 0u);
    for (uint32_t il = 0; il < n_block; ++il) {
        const std::string b = "blk." + std::to_string(il) + ".";
        m.vector(b + "attn_norm.weight", d, 1, 0.1f);
        m.vector(b + "post_attention_norm.weight", d, 1, 0.1f);
        m.matrix(b + "ffn_gate.weight", ff, d);
        m.matrix(b + "ffn_up.weight", ff, d);
        m.matrix(b + "ffn_down.weight", d, ff, 0.5f);
        if (il == o.n_layer || (il + 1) % 4 == 0) {
            m.matrix(b + "attn_q.weight", 2 * n_head * d_head, d);
            m.matrix(b + "attn_k.weight", n_head_kv * d_head, d);
            m.matrix(b + "attn_v.weight", n_head_kv * d_head, d);
            m.matrix(b + "attn_output.weight", d, n_head * d_head);
            m.vector(b + "attn_q_norm.weight", d_head, 1, 0.1f);
            m.vector(b + "attn_k_norm.weight", d_head, 1, 0.1f);
        } else {
            m.matrix(b + "attn_qkv.weight", conv_dim, d);
            m.matrix(b + "attn_gate.weight", value_dim, d);
            m.matrix(b + "ssm_beta.weight", o.n_head_v, d);
            m.matrix(b + "ssm_alpha.weight", o.n_head_v, d);
            const std::vector<float> conv = m.random.normals(size_t{conv_dim} * 4, 0.5f);
            f.tensor(b + "ssm_conv1d.weight", Type::f32, {4, conv_dim}, Span<const float>(conv));
            m.vector(b + "ssm_dt.bias", o.n_head_v, -2, 1);
            m.vector(b + "ssm_a", o.n_head_v, -1, 0.3f);
            m.vector(b + "ssm_norm.weight", d_key, 1, 0.1f);
            m.matrix(b + "ssm_out.weight", d, value_dim);
        }
        if (il == o.n_layer) {
            m.matrix(b + "nextn.eh_proj.weight", d, 2 * d);
            m.vector(b + "nextn.enorm.weight", d, 1, 0.1f);
            m.vector(b + "nextn.hnorm.weight", d, 1, 0.1f);
            m.vector(b + "nextn.shared_head_norm.weight", d, 1, 0.1f);
        }
    }
    return f.finish();
}

std::vector<Token> tiny_ids(size_t n, uint64_t seed) {
    Random random(seed);
    std::vector<Token> ids(n);
    for (Token& t : ids) t = static_cast<Token>(random.below(kTinyVocab - 32));
    return ids;
}

}  // namespace test

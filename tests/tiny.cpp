#include "tiny.h"
#include "encode.h"
#include "gguf_writer.h"

#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>

namespace test {

using namespace auspex;
using namespace auspex::detail;

namespace {

/// Collects a model's keys and tensors and writes one or more files at the end.
struct Maker {
    struct Entry {
        std::string name;
        Type type;
        std::vector<uint64_t> ne;
        std::vector<float> values;
    };
    GgufWriter file;  // keys, of the first or only file
    Random random;
    const TinyOptions& o;
    std::string prefix;
    std::vector<Entry> entries;
    explicit Maker(const TinyOptions& options)
        : random(options.seed), o(options), prefix(std::string(family_name(options.family)) + ".") {}

    template <class T>
    void key(const char* name, T value) {
        file.add(prefix + name, value);
    }
    bool wanted(const std::string& name) const {
        if (o.packaging == Packaging::whole) return true;
        const bool outer = name.compare(0, 4, "blk.") != 0,
                   mtp = !outer && std::atoi(name.c_str() + 4) >= static_cast<int>(o.n_layer);
        if (outer) return o.packaging != Packaging::mtp_bare;
        return mtp == (o.packaging != Packaging::trunk);
    }
    void add(const std::string& name, Type type, std::vector<uint64_t> ne, std::vector<float> values) {
        if (!wanted(name)) return;
        if (ne[0] % type_info(type).n_block != 0) type = Type::f16;
        if (type == Type::nvfp4 && o.scales != TinyOptions::Scales::none) type = scale(name, ne, &values);
        entries.push_back({name, type, std::move(ne), std::move(values)});
    }
    /// Gives each matrix of a stack, or the only one, its scale: as a tensor, or by rounding the values as its type
    /// does.
    Type scale(const std::string& name, const std::vector<uint64_t>& ne, std::vector<float>* values) {
        const size_t n = ne.size() == 3 ? static_cast<size_t>(ne[2]) : 1, one = values->size() / n;
        std::vector<float> scales, read(one);
        std::vector<std::byte> rows(static_cast<size_t>(row_bytes(Type::nvfp4, one)));
        for (size_t i = 0; i < n; ++i) {
            float* const from = values->data() + i * one;
            scales.push_back(0.01f * static_cast<float>(1 + (name.size() + 3 * i) % 5));
            for (size_t k = 0; k < one; ++k) from[k] /= scales[i];
            if (o.scales == TinyOptions::Scales::separate) continue;
            encode(Type::nvfp4, from, rows.data(), one);
            decode_row(Type::nvfp4, rows.data(), read.data(), one);
            for (size_t k = 0; k < one; ++k) from[k] = read[k] * scales[i];
        }
        if (o.scales == TinyOptions::Scales::applied) return Type::f32;
        const std::string stem = name.substr(0, name.rfind('.'));
        entries.push_back({stem + ".scale", Type::f32, {n}, scales});
        entries.push_back({stem + ".input_scale", Type::f32, {n}, std::vector<float>(n, 3.0f)});
        return Type::nvfp4;
    }
    std::vector<float> draw(uint64_t d_out, uint64_t d_in, float gain = 1) {
        return random.normals(static_cast<size_t>(d_out * d_in), gain / std::sqrt(static_cast<float>(d_in)));
    }
    void matrix(const std::string& name, uint64_t d_out, uint64_t d_in, float gain = 1) {
        add(name, o.type, {d_in, d_out}, draw(d_out, d_in, gain));
    }
    void stack(const std::string& name, uint64_t n, uint64_t d_out, uint64_t d_in, float gain = 1) {
        add(name, o.type, {d_in, d_out, n}, draw(n * d_out, d_in, gain));
    }
    void vector(const std::string& name, uint64_t n, float centre, float spread) {
        std::vector<float> v = random.normals(static_cast<size_t>(n), spread);
        for (float& x : v) x += centre;
        add(name, Type::f32, {n}, std::move(v));
    }
    std::vector<std::vector<std::byte>> finish(uint32_t n_file) {
        std::vector<GgufWriter> files(n_file);
        files[0] = std::move(file);
        for (uint32_t i = 0; i < n_file && n_file > 1; ++i) {
            files[i].add("split.no", static_cast<uint16_t>(i));
            files[i].add("split.count", static_cast<uint16_t>(n_file));
            files[i].add("split.tensors.count", static_cast<int32_t>(entries.size()));
        }
        for (size_t i = 0; i < entries.size(); ++i)
            files[i * n_file / entries.size()].tensor(entries[i].name, entries[i].type, entries[i].ne,
                                                      Span<const float>(entries[i].values));
        std::vector<std::vector<std::byte>> bytes;
        for (const GgufWriter& f : files) bytes.push_back(f.finish());
        return bytes;
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

constexpr uint32_t kHeadKv = 2, kExpert = 5, kUsed = 2, kFfExpert = 256;

/// The rows of one matrix after those of another.
std::vector<float> below(std::vector<float> a, const std::vector<float>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

void attention(Maker& m, const std::string& b, uint32_t n_head, bool interleaved) {
    const uint32_t d_head = m.o.d_head;
    const uint64_t q_dim = uint64_t{n_head} * d_head * (interleaved ? 2 : 1), kv_dim = uint64_t{kHeadKv} * d_head;
    const std::vector<float> q = m.draw(q_dim, m.o.d_model), k = m.draw(kv_dim, m.o.d_model),
                             v = m.draw(kv_dim, m.o.d_model);
    if (m.o.fused) {
        m.add(b + "attn_qkv.weight", m.o.type, {m.o.d_model, q_dim + 2 * kv_dim}, below(below(q, k), v));
    } else {
        m.add(b + "attn_q.weight", m.o.type, {m.o.d_model, q_dim}, q);
        m.add(b + "attn_k.weight", m.o.type, {m.o.d_model, kv_dim}, k);
        m.add(b + "attn_v.weight", m.o.type, {m.o.d_model, kv_dim}, v);
    }
    m.matrix(b + "attn_output.weight", m.o.d_model, n_head * d_head);
    m.vector(b + "attn_q_norm.weight", d_head, 1, 0.1f);
    m.vector(b + "attn_k_norm.weight", d_head, 1, 0.1f);
}

void delta(Maker& m, const std::string& b) {
    const TinyOptions& o = m.o;
    const uint32_t d_key = o.d_key;
    const uint32_t key_dim = o.n_head_k * d_key, value_dim = o.n_head_v * d_key, conv_dim = 2 * key_dim + value_dim,
                   r = o.n_head_v / o.n_head_k;
    const std::vector<float> qkv = m.draw(conv_dim, m.o.d_model), z = m.draw(value_dim, m.o.d_model),
                             beta = m.draw(o.n_head_v, m.o.d_model), alpha = m.draw(o.n_head_v, m.o.d_model);
    auto rows = [&m](const std::vector<float>& from, uint64_t first, uint64_t n) {
        return std::vector<float>(from.begin() + static_cast<std::ptrdiff_t>(first * m.o.d_model),
                                  from.begin() + static_cast<std::ptrdiff_t>((first + n) * m.o.d_model));
    };
    if (o.family == Family::qwen3next) {
        std::vector<float> ba, in;
        for (uint32_t h = 0; h < o.n_head_k; ++h) {
            ba = below(below(ba, rows(beta, h * r, r)), rows(alpha, h * r, r));
            in = below(below(in, rows(qkv, h * d_key, d_key)), rows(qkv, key_dim + h * d_key, d_key));
            in = below(below(in, rows(qkv, 2 * key_dim + h * r * d_key, r * d_key)), rows(z, h * r * d_key, r * d_key));
        }
        m.add(b + "ssm_ba.weight", o.type, {m.o.d_model, 2 * o.n_head_v}, ba);
        if (o.fused) m.add(b + "ssm_in.weight", o.type, {m.o.d_model, conv_dim + value_dim}, in);
    } else {
        m.add(b + "ssm_beta.weight", o.type, {m.o.d_model, o.n_head_v}, beta);
        m.add(b + "ssm_alpha.weight", o.type, {m.o.d_model, o.n_head_v}, alpha);
    }
    if (o.family != Family::qwen3next || !o.fused) {
        m.add(b + "attn_qkv.weight", o.type, {m.o.d_model, conv_dim}, qkv);
        m.add(b + "attn_gate.weight", o.type, {m.o.d_model, value_dim}, z);
    }
    m.add(b + "ssm_conv1d.weight", Type::f32, {4, conv_dim}, m.random.normals(size_t{conv_dim} * 4, 0.5f));
    m.vector(b + "ssm_dt.bias", o.n_head_v, -2, 1);
    m.vector(b + "ssm_a", o.n_head_v, -1, 0.3f);
    m.vector(b + "ssm_norm.weight", d_key, 1, 0.1f);
    m.matrix(b + "ssm_out.weight", m.o.d_model, value_dim);
}

void experts(Maker& m, const std::string& b) {
    // A router with large margins, as trained ones have: rounding elsewhere must not change the chosen experts.
    const Type router = m.o.scales == TinyOptions::Scales::none ? Type::f32 : m.o.type;
    m.add(b + "ffn_gate_inp.weight", router, {m.o.d_model, kExpert}, m.draw(kExpert, m.o.d_model, 2));
    const std::vector<float> gate = m.draw(kExpert * kFfExpert, m.o.d_model),
                             up = m.draw(kExpert * kFfExpert, m.o.d_model);
    if (m.o.fused) {
        std::vector<float> both;
        const auto part = static_cast<std::ptrdiff_t>(kFfExpert * m.o.d_model);
        for (std::ptrdiff_t e = 0; e < static_cast<std::ptrdiff_t>(kExpert); ++e)
            for (const std::vector<float>* w : {&gate, &up})
                both.insert(both.end(), w->begin() + e * part, w->begin() + (e + 1) * part);
        m.add(b + "ffn_gate_up_exps.weight", m.o.type, {m.o.d_model, 2 * kFfExpert, kExpert}, both);
    } else {
        m.add(b + "ffn_gate_exps.weight", m.o.type, {m.o.d_model, kFfExpert, kExpert}, gate);
        m.add(b + "ffn_up_exps.weight", m.o.type, {m.o.d_model, kFfExpert, kExpert}, up);
    }
    m.stack(b + "ffn_down_exps.weight", kExpert, m.o.d_model, kFfExpert, 0.5f);
    m.matrix(b + "ffn_gate_shexp.weight", m.o.d_ff_shared, m.o.d_model);
    m.matrix(b + "ffn_up_shexp.weight", m.o.d_ff_shared, m.o.d_model);
    m.matrix(b + "ffn_down_shexp.weight", m.o.d_model, m.o.d_ff_shared, 0.5f);
    if (m.o.family == Family::step35)
        m.vector(b + "exp_probs_b.bias", kExpert, 0, 0.2f);
    else
        m.vector(b + "ffn_gate_inp_shexp.weight", m.o.d_model, 0, 0.06f);
}

void dense(Maker& m, const std::string& b) {
    m.matrix(b + "ffn_gate.weight", m.o.d_ff, m.o.d_model);
    m.matrix(b + "ffn_up.weight", m.o.d_ff, m.o.d_model);
    m.matrix(b + "ffn_down.weight", m.o.d_model, m.o.d_ff, 0.5f);
}

void common_keys(Maker& m, uint32_t n_mtp, float eps) {
    m.file.add("general.architecture", family_name(m.o.family));
    m.file.add("general.name", "tiny");
    m.key("block_count", m.o.n_layer + n_mtp);
    if (n_mtp) m.key("nextn_predict_layers", n_mtp);
    m.key("context_length", 4096u);
    m.key("embedding_length", m.o.d_model);
    m.key("feed_forward_length", m.o.d_ff);
    m.key("attention.key_length", m.o.d_head);
    m.key("attention.value_length", m.o.d_head);
    m.key("attention.layer_norm_rms_epsilon", eps);
    if (m.o.family == Family::qwen35) return;
    m.key("expert_count", kExpert);
    m.key("expert_used_count", kUsed);
    m.key("expert_feed_forward_length", kFfExpert);
    m.key("expert_shared_feed_forward_length", m.o.d_ff_shared);
}

void outer(Maker& m, bool tied) {
    add_tokenizer(m.file);
    if (m.o.bos) {
        m.file.add("tokenizer.ggml.bos_token_id", uint32_t{264});
        m.file.add("tokenizer.ggml.add_bos_token", true);
    }
    m.matrix("token_embd.weight", kTinyVocab, m.o.d_model, m.o.scale);
    if (!tied) m.matrix("output.weight", kTinyVocab, m.o.d_model, m.o.scale);
    m.vector("output_norm.weight", m.o.d_model, 1, 0.1f);
}

void mtp_entry(Maker& m, const std::string& b) {
    m.matrix(b + "nextn.eh_proj.weight", m.o.d_model, 2 * m.o.d_model);
    m.vector(b + "nextn.enorm.weight", m.o.d_model, 1, 0.1f);
    m.vector(b + "nextn.hnorm.weight", m.o.d_model, 1, 0.1f);
    m.vector(b + "nextn.shared_head_norm.weight", m.o.d_model, 1, 0.1f);
}

void make_qwen(Maker& m) {
    const TinyOptions& o = m.o;
    constexpr uint32_t n_head = 4;
    common_keys(m, o.mtp ? 1 : 0, 1e-6f);
    m.key("attention.head_count", n_head);
    m.key("attention.head_count_kv", kHeadKv);
    m.key("rope.dimension_count", 16u);
    if (o.family != Family::qwen3next) m.key("rope.dimension_sections", std::vector<int32_t>{3, 3, 2, 0});
    m.key("rope.freq_base", o.rope_base);
    m.key("full_attention_interval", o.interval);
    m.key("ssm.conv_kernel", 4u);
    m.key("ssm.state_size", o.d_key);
    m.key("ssm.group_count", o.n_head_k);
    m.key("ssm.time_step_rank", o.n_head_v);
    m.key("ssm.inner_size", o.n_head_v * o.d_key);
    outer(m, o.tied);
    for (uint32_t il = 0; il < o.n_layer + (o.mtp ? 1u : 0u); ++il) {
        const std::string b = "blk." + std::to_string(il) + ".";
        m.vector(b + "attn_norm.weight", m.o.d_model, 1, 0.1f);
        m.vector(b + "post_attention_norm.weight", m.o.d_model, 1, 0.1f);
        // Qwen3-Next: one dense layer among the others, as some files have.
        if (o.family == Family::qwen35 || (o.family == Family::qwen3next && il == 1))
            dense(m, b);
        else
            experts(m, b);
        if (il == o.n_layer || (il + 1) % o.interval == 0)
            attention(m, b, n_head, true);
        else
            delta(m, b);
        if (il == o.n_layer) mtp_entry(m, b);
    }
}

void make_step35(Maker& m) {
    const TinyOptions& o = m.o;
    const uint32_t n_mtp = o.mtp ? 3 : 0, n_block = o.n_layer + n_mtp;
    std::vector<uint32_t> n_head(n_block), n_head_kv(n_block, kHeadKv);
    std::vector<bool> windowed(n_block);
    std::vector<float> limit(n_block, 0.0f), limit_shared(n_block, 0.0f);
    for (uint32_t il = 0; il < n_block; ++il) {
        windowed[il] = il >= o.n_layer || il % o.interval != 0;
        n_head[il] = windowed[il] ? 8 : 4;
    }
    limit[o.n_layer - 1] = 0.6f;
    limit_shared[o.n_layer - 1] = 0.9f;
    if (n_mtp) limit_shared[n_block - 1] = 0.7f;
    common_keys(m, n_mtp, 1e-5f);
    m.key("attention.head_count", n_head);
    m.key("attention.head_count_kv", n_head_kv);
    m.key("attention.sliding_window", kTinyWindow);
    m.key("attention.sliding_window_pattern", windowed);
    if (o.older_keys) {
        std::vector<uint32_t> n_rot;
        std::vector<float> base;
        for (bool w : windowed) {
            n_rot.push_back(w ? o.d_head : o.d_head / 2);
            base.push_back(w ? 1e4f : 5e6f);
        }
        m.key("rope.dimension_count_per_layer", n_rot);
        m.key("rope.freq_base_per_layer", base);
        m.key("rope.scaling.apply_mask", 1u);
    } else {
        m.key("rope.dimension_count", o.d_head);
        m.key("rope.freq_base", 5e6f);
        m.key("rope.freq_base_swa", 1e4f);
    }
    m.key("expert_weights_scale", 3.0f);
    m.key("expert_weights_norm", true);
    m.key("leading_dense_block_count", 1u);
    m.key(o.older_keys ? "swiglu_limits" : "swiglu_clamp_exp", limit);
    m.key(o.older_keys ? "swiglu_limits_shared" : "swiglu_clamp_shexp", limit_shared);
    outer(m, false);
    if (o.factors) m.vector("rope_freqs.weight", o.d_head / 4, 1.5f, 0.2f);
    for (uint32_t il = 0; il < n_block; ++il) {
        const std::string b = "blk." + std::to_string(il) + ".";
        m.vector(b + "attn_norm.weight", m.o.d_model, 1, 0.1f);
        m.vector(b + "ffn_norm.weight", m.o.d_model, 1, 0.1f);
        attention(m, b, n_head[il], false);
        m.matrix(b + "attn_gate.weight", n_head[il], m.o.d_model);
        if (il == 0 || il >= o.n_layer)
            dense(m, b);
        else
            experts(m, b);
        if (il >= o.n_layer) {
            mtp_entry(m, b);
            m.matrix(b + "nextn.shared_head_head.weight", kTinyVocab, m.o.d_model, o.scale);
        }
    }
}

}  // namespace

const char* family_name(Family family) {
    switch (family) {
        case Family::qwen35: return "qwen35";
        case Family::qwen35moe: return "qwen35moe";
        case Family::qwen3next: return "qwen3next";
        case Family::step35: return "step35";
    }
    return "?";
}

std::vector<std::vector<std::byte>> tiny_shards(const TinyOptions& options, uint32_t n) {
    Maker m(options);
    if (options.family == Family::step35)
        make_step35(m);
    else
        make_qwen(m);
    return m.finish(n);
}

std::vector<std::byte> tiny_model(const TinyOptions& o) {
    // Quantising takes longer than most tests, so models are kept.
    static std::map<std::string, std::vector<std::byte>> made;
    static std::mutex mutex;
    const std::string key = say(
        static_cast<int>(o.family), " ", static_cast<uint32_t>(o.type), " ", o.seed, " ", o.n_layer, " ", o.interval,
        " ", o.d_model, " ", o.d_ff, " ", o.d_ff_shared, " ", o.n_head_k, " ", o.n_head_v, " ", o.d_head, " ", o.d_key,
        " ", static_cast<int>(o.mtp), static_cast<int>(o.tied), static_cast<int>(o.fused), static_cast<int>(o.factors),
        static_cast<int>(o.older_keys), static_cast<int>(o.bos), static_cast<int>(o.packaging),
        static_cast<int>(o.scales), " ", static_cast<double>(o.scale), " ", static_cast<double>(o.rope_base));
    const std::lock_guard<std::mutex> lock(mutex);
    std::vector<std::byte>& bytes = made[key];
    if (bytes.empty()) bytes = std::move(tiny_shards(o, 1)[0]);
    return bytes;
}

std::vector<Token> tiny_ids(size_t n, uint64_t seed) {
    Random random(seed);
    std::vector<Token> ids(n);
    for (Token& t : ids) t = static_cast<Token>(random.below(kTinyVocab - 32));
    return ids;
}

}  // namespace test

#include <doctest/doctest.h>

#include <functional>

#include "../src/plan/arch.h"
#include "../src/plan/pair.h"
#include "../src/plan/weights.h"
#include "gguf_writer.h"
#include "rounding.h"
#include "tiny.h"

using namespace auspex;
using namespace auspex::detail;
using namespace test;

namespace {

/// The Status of planning after a change to the bytes of the file.
Status plan_with(const std::vector<std::byte>& bytes) {
    Gguf file;
    Status s = Gguf::parse(bytes).get(file);
    if (!s.ok()) return s;
    Plan plan;
    return make_plan(file, {}).get(plan);
}

/// The tiny file with `from` replaced by `to` (same length) in all places.
std::vector<std::byte> patched(const std::string& from, const std::string& to) {
    REQUIRE(from.size() == to.size());
    const std::vector<std::byte> bytes = tiny_qwen35({});
    std::string s(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    size_t n = 0;
    for (size_t at = s.find(from); at != std::string::npos; at = s.find(from, at + 1), ++n)
        s.replace(at, from.size(), to);
    REQUIRE(n > 0);
    const std::byte* p = reinterpret_cast<const std::byte*>(s.data());
    return {p, p + s.size()};
}

/// The tiny file with the u32 value of a metadata key changed.
std::vector<std::byte> with_u32(const std::string& key, uint32_t value) {
    std::vector<std::byte> bytes = tiny_qwen35({});
    const std::string s(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const size_t at = s.find(key);
    REQUIRE(at != std::string::npos);
    std::memcpy(bytes.data() + at + key.size() + 4, &value, 4);
    return bytes;
}

bool says(const Status& s, std::initializer_list<const char*> parts) {
    for (const char* p : parts)
        if (s.text.find(p) == std::string::npos) {
            MESSAGE("'" << s.text << "' does not say '" << p << "'");
            return false;
        }
    return !s.ok();
}

/// The plan of the tiny file of a family with the tensors and keys of `writer`, keys in place of the file's own, and
/// with its tensors as `edit` leaves them.
Result<Plan> plan_edited(Family family, GgufWriter& writer, const std::function<void(Tensor&)>& edit, bool mtp = true) {
    TinyOptions tiny_options;
    tiny_options.family = family;
    const std::vector<std::byte> tiny = tiny_model(tiny_options), more = writer.finish();
    Gguf file, added;
    REQUIRE(Gguf::parse(tiny).get(file).ok());
    REQUIRE(Gguf::parse(more).get(added).ok());
    std::vector<Meta> meta = added.meta();
    for (const Meta& m : file.meta())
        if (!added.find(m.key)) meta.push_back(m);
    std::vector<Tensor> tensors = file.tensors();
    if (edit)
        for (Tensor& t : tensors) edit(t);
    tensors.insert(tensors.end(), added.tensors().begin(), added.tensors().end());
    Status s = Gguf::gather(std::move(meta), std::move(tensors), tiny.size()).get(file);
    REQUIRE_MESSAGE(s.ok(), s.message());
    PlanOptions options;
    options.mtp = mtp;
    return make_plan(file, options);
}

/// The Status of planning the tiny file with one more tensor of 64 ones, if named, and the keys that `add` writes,
/// which replace the file's own.
Status plan_plus(const char* tensor, const std::function<void(GgufWriter&)>& add, bool mtp = true) {
    GgufWriter writer;
    if (add) add(writer);
    const std::vector<float> ones(64, 1.0f);
    if (tensor) writer.tensor(tensor, Type::f32, {64}, Span<const float>(ones));
    return plan_edited(Family::qwen35, writer, nullptr, mtp).status();
}

/// The Status of planning the tiny file of a family with one key.
template <class T>
Status plan_with_key(Family family, const char* key, const T& value) {
    GgufWriter writer;
    writer.add(std::string(family_name(family)) + "." + key, value);
    return plan_edited(family, writer, nullptr).status();
}

bool ends_with(std::string_view text, std::string_view end) {
    return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

}  // namespace

TEST_CASE("the operations of a small hybrid follow its layers") {
    const std::vector<std::byte> bytes = tiny_qwen35({});
    Gguf file;
    REQUIRE(Gguf::parse(bytes).get(file).ok());
    Plan plan;
    Status s = make_plan(file, {}).get(plan);
    REQUIRE_MESSAGE(s.ok(), s.message());
    CHECK(plan.n_layer == 4);
    CHECK(plan.n_vocab == kTinyVocab);
    std::string kinds;
    for (const Op& op : plan.trunk.ops) kinds += std::string(op_name(op.kind)) + " ";
    const std::string delta = "rms_norm matmul matmul matmul matmul delta matmul ",
                      ffn = "rms_norm matmul matmul swiglu matmul ";
    CHECK(kinds == "embed " + delta + ffn + delta + ffn + delta + ffn +
                       "rms_norm matmul matmul matmul kv_write attend matmul " + ffn + "rms_norm matmul ");
    REQUIRE(plan.mtp.size() == 1);
    kinds.clear();
    for (const Op& op : plan.mtp[0].ops) kinds += std::string(op_name(op.kind)) + " ";
    CHECK(kinds == "embed hidden rms_norm rms_norm matmul rms_norm matmul matmul kv_write matmul attend matmul " + ffn +
                       "rms_norm matmul ");
    CHECK(plan.mtp[0].n_fill == 9);
    CHECK(plan.mtp[0].ops[8].kind == OpKind::kv_write);
    const std::string text = print_tape(plan, plan.trunk);
    CHECK(text.find("layer 3  attend  o <- q  blk.3.attn_q_norm.weight F32 [64]  heads 4/2 x 64 rotated 16") !=
          std::string::npos);
    CHECK(text.find("layer 0  matmul  x += od  blk.0.ssm_out.weight F16 [256, 256]") != std::string::npos);
    // Tied: the head is the embedding.
    CHECK(plan.trunk.ops.back().w[0] == plan.trunk.ops.front().w[0]);
    CHECK(plan.trunk.ops.back().head);

    PlanOptions without;
    without.mtp = false;
    REQUIRE(make_plan(file, without).get(plan).ok());
    CHECK(plan.mtp.empty());
}

TEST_CASE("a plan has the same numbers in every rounding mode of the host") {
    TinyOptions tiny;
    tiny.d_head = 96;  // whose scale would differ in each of them
    const std::vector<std::byte> bytes = tiny_model(tiny);
    Gguf file;
    REQUIRE(Gguf::parse(bytes).get(file).ok());
    std::vector<float> scales;
    test::each_rounding([&](const std::string&) {
        Plan plan;
        REQUIRE(make_plan(file, {}).get(plan).ok());
        for (const Op& op : plan.trunk.ops)
            if (op.kind == OpKind::attend) scales.push_back(op.attn.scale);
    });
    REQUIRE(scales.size() == 4);
    for (const float scale : scales) CHECK(scale == scales[0]);
}

TEST_CASE("missing or contradicting keys are named") {
    CHECK(plan_with(tiny_qwen35({})).ok());
    CHECK(says(plan_with(patched("qwen35", "gwen35")), {"gwen35", "qwen35"}));
    CHECK(says(plan_with(patched("blk.2.ssm_out.weight", "blk.2.ssm_owt.weight")),
               {"blk.2.ssm_out.weight", "missing", "[256, 256]"}));
    CHECK(says(plan_with(patched("token_embd.weight", "token_embx.weight")), {"token_embd.weight"}));
    CHECK(says(plan_with(patched("blk.0.attn_norm.weight", "blk.0.attn_nork.weight")), {"blk.0.attn_norm.weight"}));
    CHECK(says(plan_with(with_u32("qwen35.attention.head_count_kv", 1)),
               {"blk.3.attn_k.weight", "[128, 256]", "[64, 256]"}));
    CHECK(says(plan_with(with_u32("qwen35.block_count", 0)), {"block_count", "0"}));
    CHECK(says(plan_with(with_u32("qwen35.block_count", 1)), {"nextn_predict_layers"}));
    CHECK(says(plan_with(with_u32("qwen35.block_count", 500000)), {"block_count", "500000"}));
    CHECK(says(plan_with(with_u32("qwen35.ssm.inner_size", 512)), {"ssm.inner_size", "512", "256"}));
    CHECK(says(plan_with(with_u32("qwen35.attention.head_count_kv", 3)), {"attn_k"}));
    CHECK(says(plan_with(with_u32("qwen35.ssm.group_count", 3)), {""}));
    CHECK(says(plan_with(with_u32("qwen35.rope.dimension_count", 100)), {"rope.dimension_count", "100", "up to 64"}));
    CHECK(says(plan_with(with_u32("qwen35.rope.dimension_count", 15)), {"rope.dimension_count", "15", "even"}));
    CHECK(says(plan_with(with_u32("qwen35.embedding_length", 128)), {"128"}));
    CHECK(says(plan_with(patched("qwen35.ssm.conv_kernel", "qwen35.ssm.conv_kernex")), {"qwen35.ssm.conv_kernel"}));
    CHECK(
        says(plan_with(patched("blk.4.nextn.enorm.weight", "blk.4.nextn.enorx.weight")), {"blk.4.nextn.enorm.weight"}));
}

TEST_CASE("numbers with which every logit would be NaN are refused by the name of their key") {
    for (const float base : {0.0f, -1.0f})
        CHECK(says(plan_plus(nullptr, [&](GgufWriter& w) { w.add("qwen35.rope.freq_base", base); }),
                   {"qwen35.rope.freq_base", "above 0"}));
    CHECK(says(plan_plus(nullptr, [](GgufWriter& w) { w.add("qwen35.attention.layer_norm_rms_epsilon", -1e-6f); }),
               {"qwen35.attention.layer_norm_rms_epsilon", "0 or more"}));
    TinyOptions options;
    options.family = Family::step35;
    Gguf file, added;
    GgufWriter writer;
    writer.add("step35.rope.freq_base_swa", 0.0f);
    const std::vector<std::byte> tiny = tiny_model(options), more = writer.finish();
    REQUIRE(Gguf::parse(tiny).get(file).ok());
    REQUIRE(Gguf::parse(more).get(added).ok());
    std::vector<Meta> meta = added.meta();
    for (const Meta& m : file.meta())
        if (!added.find(m.key)) meta.push_back(m);
    REQUIRE(Gguf::gather(std::move(meta), file.tensors(), tiny.size()).get(file).ok());
    Plan plan;
    CHECK(says(make_plan(file, {}).get(plan), {"step35.rope.freq_base", "in block 1", "above 0"}));
}

TEST_CASE("a tensor or key of an unknown variant of an architecture is refused, not ignored") {
    for (const char* name :
         {"blk.3.attn_q.bias", "blk.0.ffn_gate_par.weight", "blk.3.attn_sinks.weight", "blk.0.attn_output_norm.weight",
          "blk.4.ffn_gate_par.weight", "output.bias", "output.scale", "output_norm.bias", "token_embd.bias",
          "token_embd_norm.weight", "position_embd.weight"}) {
        const Status s = plan_plus(name, nullptr);
        CHECK(s.code == Code::unsupported);
        CHECK(says(s, {name, "'qwen35'"}));
    }
    // Of another MTP block, of an encoder, or for engines that round the input of a product.
    for (const char* name :
         {"blk.0.ffn_gate.input_scale", "blk.5.nextn.enorm.weight", "rope_freqs.weight", "v.blk.0.attn_q.bias"})
        CHECK(plan_plus(name, nullptr).ok());
    CHECK(plan_plus("output_extra.weight", nullptr, false).ok());  // a head for drafts
    CHECK(says(plan_plus("blk.5.attn_norm.weight", nullptr), {"blk.5.attn_norm.weight", "qwen35.block_count", "5"}));
    CHECK(plan_plus("blk.4.ffn_gate_par.weight", nullptr, false).ok());

    const auto key = [](const char* name, auto value) {
        return plan_plus(nullptr, [&](GgufWriter& w) { w.add(name, value); });
    };
    for (const char* name : {"rope.scaling.factor", "rope.scale_linear", "attn_logit_softcapping",
                             "final_logit_softcapping", "feed_forward_parallel_length", "logit_scale",
                             "embedding_scale", "residual_scale", "attention.clamp_kqv", "attention.max_alibi_bias"}) {
        const std::string full = std::string("qwen35.") + name;
        CHECK(says(key(full.c_str(), 4.0f), {full.c_str(), "4"}));
        CHECK(says(key(full.c_str(), uint32_t{4}), {full.c_str(), "4"}));
        CHECK(key(full.c_str(), 0.0f).ok());
    }
    for (const char* name : {"rope.scaling.factor", "logit_scale", "embedding_scale", "residual_scale"})
        CHECK(key((std::string("qwen35.") + name).c_str(), 1.0f).ok());
    CHECK(says(key("qwen35.attention.clamp_kqv", 1.0f), {"qwen35.attention.clamp_kqv", "1"}));
    CHECK(says(key("qwen35.rope.scaling.type", "yarn"), {"qwen35.rope.scaling.type", "'yarn'"}));
    CHECK(plan_plus(nullptr, [](GgufWriter& w) {
              w.add("qwen35.rope.scaling.type", "none");
              w.add("qwen35.rope.scaling.factor", 4.0f);
          }).ok());
    CHECK(says(plan_plus(nullptr,
                         [](GgufWriter& w) {
                             w.add("qwen35.rope.scaling.type", "none");
                             w.add("qwen35.logit_scale", 4.0f);
                         }),
               {"qwen35.logit_scale", "4"}));
    CHECK(says(key("prism.hadamard.block_size", uint32_t{128}), {"prism.hadamard.block_size", "rotated"}));
}

TEST_CASE("the scale of a whole matrix belongs to NVFP4, one for it or for each of a stack, and is finite") {
    TinyOptions tiny;
    tiny.family = Family::qwen35moe;
    tiny.type = Type::nvfp4;
    tiny.scales = TinyOptions::Scales::separate;
    const std::vector<std::byte> bytes = tiny_model(tiny);
    Gguf file;
    REQUIRE(Gguf::parse(bytes).get(file).ok());
    const auto plan_of = [&](const std::function<void(Tensor&)>& edit) {
        std::vector<Tensor> tensors = file.tensors();
        for (Tensor& t : tensors) edit(t);
        Gguf edited;
        REQUIRE(Gguf::gather(file.meta(), std::move(tensors), bytes.size()).get(edited).ok());
        return make_plan(edited, {});
    };
    const Result<Plan> plan = plan_of([](Tensor&) {});
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    size_t n_one = 0, n_each = 0;
    for (const Slot& s : plan.value().slots) {
        n_one += s.scale.size() == 1;
        n_each += s.scale.size() == 5 && s.n_dim == 3 && s.shape[0] == 5;
        CHECK((s.scale.empty() || s.type == Type::nvfp4));
    }
    CHECK(n_one > 10);
    CHECK(n_each == 3 * 5);  // four layers and the draft block
    const auto with = [&](const char* name, const std::function<void(Tensor&)>& change) {
        return plan_of([&](Tensor& t) {
                   if (t.name == name) change(t);
               })
            .status();
    };
    const char *down = "blk.1.ffn_down_exps.scale", *out = "blk.3.attn_output.scale";
    Status s = with(down, [](Tensor& t) { t.ne[0] = 4; });
    CHECK(s.code == Code::bad_file);
    CHECK(says(s, {"'blk.1.ffn_down_exps.scale', the scale of 'blk.1.ffn_down_exps.weight', is F32 [4], expected F32 "
                   "[1] or [5]"}));
    s = with(out, [](Tensor& t) { t.ne[0] = 4; });
    CHECK(says(s, {"'blk.3.attn_output.scale'", "is F32 [4], expected F32 [1]"}));
    s = with(out, [](Tensor& t) { t.type = Type::f16; });
    CHECK(s.code == Code::bad_file);
    CHECK(says(s, {"is F16 [1], expected F32 [1]"}));
    const float bad[5] = {1, 1, std::numeric_limits<float>::infinity(), 1, 1};
    s = with(down, [&](Tensor& t) { t.data = reinterpret_cast<const std::byte*>(bad); });
    CHECK(s.code == Code::bad_file);
    CHECK(says(s, {"holds inf, expected at most 1e+20"}));
    CHECK(with(down, [](Tensor& t) { t.ne[0] = 1; }).ok());  // one for all experts
    s = with("blk.3.attn_output.weight", [](Tensor& t) { t.type = Type::q8_0; });
    CHECK(s.code == Code::unsupported);
    CHECK(says(s, {"the scale of 'blk.3.attn_output.weight', belongs to Q8_0", "supported with NVFP4 only"}));
    const float one = 1;
    const Result<Plan> plain = plan_of([&](Tensor& t) {
        if (t.name == "blk.3.attn_output.weight") t.type = Type::q8_0;
        if (t.name == out) t.data = reinterpret_cast<const std::byte*>(&one);
    });
    REQUIRE_MESSAGE(plain.ok(), plain.status().message());
    for (const Slot& slot : plain.value().slots) CHECK((slot.scale.empty() || slot.type == Type::nvfp4));
}

TEST_CASE("attention or experts of another kind are refused by their keys, and keys that say the usual are not") {
    for (Family family : kFamilies) {
        const std::string arch = family_name(family);
        CAPTURE(arch);
        const bool step = family == Family::step35;
        const auto refused = [](const Status& s, std::initializer_list<const char*> parts) {
            CHECK(s.code == Code::unsupported);
            CHECK(says(s, parts));
        };
        refused(plan_with_key(family, "attention.causal", false), {".attention.causal", "false"});
        CHECK(plan_with_key(family, "attention.causal", true).ok());
        if (!step) {
            refused(plan_with_key(family, "attention.sliding_window", 2u),
                    {".attention.sliding_window", "2", ".context_length"});
            CHECK(plan_with_key(family, "attention.sliding_window", 0u).ok());
            CHECK(plan_with_key(family, "attention.sliding_window", 1u << 30).ok());
        }
        if (family == Family::qwen35) continue;
        if (!step) {
            refused(plan_with_key(family, "expert_gating_func", 2u), {".expert_gating_func", "2", "1 (softmax)"});
            refused(plan_with_key(family, "expert_weights_norm", false), {".expert_weights_norm", "false", "true"});
        }
        CHECK(plan_with_key(family, "expert_gating_func", 1u).ok());
        CHECK(plan_with_key(family, "expert_weights_norm", true).ok());
        refused(plan_with_key(family, "expert_group_count", 4u),
                {".expert_group_count", ".expert_group_used_count", "4 and 0"});
        CHECK(plan_with_key(family, "expert_group_count", 1u).ok());
        GgufWriter groups;
        groups.add(arch + ".expert_group_count", 4u);
        groups.add(arch + ".expert_group_used_count", 4u);
        CHECK(plan_edited(family, groups, nullptr).ok());
    }
}

TEST_CASE("heads that cannot be run are refused by their keys") {
    const char *const count = "qwen35.attention.head_count", *const width = "qwen35.attention.key_length";
    const auto with = [&](uint32_t n_head, uint32_t d_head) {
        GgufWriter writer;
        writer.add(count, n_head);
        writer.add(width, d_head);
        writer.add("qwen35.attention.value_length", d_head);
        return plan_edited(Family::qwen35, writer,
                           [&](Tensor& t) {
                               if (ends_with(t.name, "attn_q.weight")) t.ne[1] = 2 * n_head * d_head;
                               if (ends_with(t.name, "attn_k.weight") || ends_with(t.name, "attn_v.weight"))
                                   t.ne[1] = 2 * d_head;
                               if (ends_with(t.name, "attn_output.weight")) t.ne[0] = n_head * d_head;
                               if (ends_with(t.name, "attn_q_norm.weight") || ends_with(t.name, "attn_k_norm.weight"))
                                   t.ne[0] = d_head;
                           })
            .status();
    };
    CHECK(with(4, 64).ok());
    const Status three = with(3, 64);
    CHECK(three.code == Code::bad_file);
    CHECK(says(three, {count, "is 3", "in block 3", "a multiple of 2", "qwen35.attention.head_count_kv"}));
    const Status twenty = with(4, 20);
    CHECK(twenty.code == Code::unsupported);
    CHECK(says(twenty, {width, "is 20", "a multiple of 8"}));
}

TEST_CASE("tensors of one expert may lack the dimension of experts, as ggml writes them") {
    for (Family family : {Family::qwen35moe, Family::step35}) {
        const std::string arch = family_name(family);
        CAPTURE(arch);
        const auto tape = [&](bool dropped) {
            GgufWriter writer;
            writer.add(arch + ".expert_count", 1u);
            writer.add(arch + ".expert_used_count", 1u);
            Plan plan;
            const Status s =
                plan_edited(family, writer, [&](Tensor& t) {
                    const bool stack = ends_with(t.name, "_exps.weight");
                    if (!stack && !ends_with(t.name, "ffn_gate_inp.weight") && !ends_with(t.name, "exp_probs_b.bias"))
                        return;
                    t.ne[t.n_dim - 1] = 1;
                    if (dropped && t.n_dim > 1) --t.n_dim;
                }).get(plan);
            REQUIRE_MESSAGE(s.ok(), s.message());
            return print_tape(plan, plan.trunk);
        };
        const std::string text = tape(true);
        CHECK(text == tape(false));
        CHECK(text.find("ffn_gate_inp.weight F32 [1, 256]") != std::string::npos);
        CHECK(text.find("blk.1.ffn_down_exps.weight F16 [1, 256, 256]") != std::string::npos);
    }
}

TEST_CASE("a value that all blocks share may be repeated for each") {
    const auto with = [](uint32_t n_kv, uint32_t d_ff) {
        return plan_plus(nullptr, [&](GgufWriter& w) {
            w.add("qwen35.attention.head_count", std::vector<uint32_t>(5, 4));
            w.add("qwen35.attention.head_count_kv", std::vector<uint32_t>{2, 2, 2, n_kv, 2});
            w.add("qwen35.feed_forward_length", std::vector<uint32_t>{512, 512, 512, 512, d_ff});
        });
    };
    CHECK(with(2, 512).ok());
    CHECK(says(with(1, 512), {"qwen35.attention.head_count_kv", "2 and 1"}));
    CHECK(says(with(2, 256), {"qwen35.feed_forward_length", "512 and 256"}));
}

TEST_CASE("no error text carries a control byte of the file") {
    const std::string escape = "qwen35\x1b]0;x\x07\x1b[31mRED\n";
    const auto clean = [](const Status& s) {
        CHECK_FALSE(s.ok());
        for (const char c : s.text) CHECK(static_cast<unsigned char>(c) >= 0x20);
        CHECK(s.text.find("qwen35\\x1b]0;x\\x07") != std::string::npos);
    };
    GgufWriter w;
    w.add("general.architecture", escape);
    Gguf odd, tiny;
    const std::vector<std::byte> bytes = w.finish(), other = tiny_qwen35({});
    REQUIRE(Gguf::parse(bytes).get(odd).ok());
    REQUIRE(Gguf::parse(other).get(tiny).ok());
    clean(make_plan(odd, {}).status());
    clean(pair_files(odd, tiny).status());
    clean(pair_files(tiny, odd).status());
    clean(pair_files(odd, odd).status());
}

TEST_CASE("a draft-only file is rejected because it cannot run alone") {
    CHECK(says(plan_with(patched("blk.0.attn_norm.weight", "blk.9.attn_norm.weight")), {"MTP", "alone"}));
}

TEST_CASE("a vocabulary without tensors is not taken for a file of MTP blocks") {
    const std::vector<std::byte> bytes = tiny_qwen35({});
    Gguf file;
    REQUIRE(Gguf::parse(bytes).get(file).ok());
    REQUIRE(file.get_u32("qwen35.nextn_predict_layers").value() == 1);
    REQUIRE(Gguf::gather(file.meta(), {}, bytes.size()).get(file).ok());
    const Status s = make_plan(file, {}).status();
    CHECK(says(s, {"token_embd.weight", "missing", "metadata only"}));
    CHECK(s.text.find("MTP") == std::string::npos);
    GgufWriter w;
    w.add("general.type", "adapter");
    const std::vector<std::byte> key = w.finish();
    Gguf adapter;
    REQUIRE(Gguf::parse(key).get(adapter).ok());
    std::vector<Meta> meta = file.meta();
    meta.insert(meta.end(), adapter.meta().begin(), adapter.meta().end());
    REQUIRE(Gguf::gather(meta, {}, bytes.size()).get(file).ok());
    CHECK(says(make_plan(file, {}).status(), {"token_embd.weight", "'adapter'", "expected 'model'"}));
}

TEST_CASE("an MTP block without its projection is ignored") {
    const std::vector<std::byte> bytes = patched("blk.4.nextn.eh_proj.weight", "blk.4.nextn.eh_prox.weight");
    Gguf file;
    REQUIRE(Gguf::parse(bytes).get(file).ok());
    Plan plan;
    REQUIRE(make_plan(file, {}).get(plan).ok());
    CHECK(plan.mtp.empty());
}

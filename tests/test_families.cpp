// Every model family against an oracle of plain loops in double precision, and the variants of its files.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "../src/machine/cpu/cpu.h"
#include "../src/plan/arch.h"
#include "../src/plan/weights.h"
#include "context_rig.h"
#include "largest.h"
#include "oracle.h"
#include "reference.h"
#include "session_rig.h"
#include "tiny.h"

using namespace auspex;
using namespace auspex::detail;
using namespace test;

namespace {

double worst_error(const Oracle::Rows& want, size_t row, Span<const float> got, double so_far) {
    REQUIRE(row < want.size());
    REQUIRE(got.size() == want[row].size());
    double diff = 0, sum = 0;
    for (size_t i = 0; i < got.size(); ++i) {
        diff += (double{got[i]} - want[row][i]) * (double{got[i]} - want[row][i]);
        sum += want[row][i] * want[row][i];
    }
    return larger_error(so_far, std::sqrt(diff / sum));
}

Session session_of(const std::vector<std::byte>& bytes, CpuPath path) {
    const Model model = load_model(cpu_device(2, path), bytes);
    SessionOptions session_options;
    session_options.n_context = 256;
    session_options.n_ubatch = 32;
    return open(model, session_options);
}

/// Of the trunk, then of each draft depth.
std::vector<Oracle::Rows> rows_of(Oracle& oracle, const std::vector<Token>& ids, uint32_t n_depth) {
    std::vector<Oracle::Rows> all;
    for (uint32_t depth = 0; depth <= n_depth; ++depth) all.push_back(oracle.logits(ids, depth));
    return all;
}

/// The worst relative error of a row of logits, likewise.
std::vector<double> errors_of(Session& session, const std::vector<Oracle::Rows>& wanted,
                              const std::vector<Token>& ids) {
    std::vector<double> worst(wanted.size(), 0.0);
    for (uint32_t depth = 0; depth < wanted.size(); ++depth) {
        const Oracle::Rows& want = wanted[depth];
        size_t n = 0;
        auto sink = [&](size_t row, Span<const float> logits) {
            worst[depth] = worst_error(want, row, logits, worst[depth]);
            ++n;
        };
        Status s = depth == 0 ? session.score(ids, sink) : session.score_mtp(ids, depth, sink);
        REQUIRE_MESSAGE(s.ok(), s.message());
        REQUIRE(n == want.size());
    }
    return worst;
}

/// Checks the errors on the reference path and on the fastest, each with its bound.
void check_errors(const std::string& name, const std::vector<std::byte>& bytes, const std::vector<Oracle::Rows>& wanted,
                  const std::vector<Token>& ids, double reference, double best) {
    for (const CpuPath path : {CpuPath::reference, CpuPath::best}) {
        Session session = session_of(bytes, path);
        const std::vector<double> errors = errors_of(session, wanted, ids);
        std::string drafts;
        for (size_t depth = 1; depth < errors.size(); ++depth) drafts += say(" ", errors[depth]);
        MESSAGE(name << (path == CpuPath::best ? " best" : " reference") << ": trunk " << errors[0] << ", drafts"
                     << drafts);
        for (const double e : errors) CHECK(e <= (path == CpuPath::best ? best : reference));
    }
}

/// The tape's logits of the last 5 of 60 rows.
std::vector<float> last_logits(const std::vector<std::byte>& bytes, CpuPath path = CpuPath::best) {
    Session session = session_of(bytes, path);
    std::vector<float> all;
    const std::vector<Token> ids = tiny_ids(60, 5);
    auto sink = [&](size_t row, Span<const float> logits) {
        if (row >= 50) all.insert(all.end(), logits.begin(), logits.end());
    };
    REQUIRE(session.score(ids, sink).ok());
    REQUIRE(session.score_mtp(ids, 1, sink).ok());
    return all;
}

Status plan_of(const std::vector<std::byte>& bytes, Plan& plan) {
    Gguf file;
    Status s = Gguf::parse(bytes).get(file);
    if (!s.ok()) return s;
    return make_plan(file, {}).get(plan);
}

std::vector<std::byte> tiny_of(Family family, bool fused = false, Packaging packaging = Packaging::whole) {
    TinyOptions o;
    o.family = family;
    o.fused = fused;
    o.packaging = packaging;
    return tiny_model(o);
}

/// The text `from` replaced by `to`, of the same length, wherever it stands.
std::vector<std::byte> patched(std::vector<std::byte> bytes, const std::string& from, const std::string& to) {
    REQUIRE(from.size() == to.size());
    std::string s(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    size_t n = 0;
    for (size_t at = s.find(from); at != std::string::npos; at = s.find(from, at + 1), ++n)
        s.replace(at, from.size(), to);
    REQUIRE(n > 0);
    std::memcpy(bytes.data(), s.data(), s.size());
    return bytes;
}
std::vector<std::byte> with_u32(std::vector<std::byte> bytes, const std::string& key, uint32_t value) {
    const std::string s(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const size_t at = s.find(key);
    REQUIRE(at != std::string::npos);
    std::memcpy(bytes.data() + at + key.size() + 4, &value, 4);
    return bytes;
}

/// The Status of planning a file that lacks these tensors.
Status plan_without(const std::vector<std::byte>& bytes, const std::vector<std::string>& names) {
    Gguf file;
    REQUIRE(Gguf::parse(bytes).get(file).ok());
    std::vector<Tensor> tensors;
    for (const Tensor& t : file.tensors())
        if (std::find(names.begin(), names.end(), t.name) == names.end()) tensors.push_back(t);
    REQUIRE(tensors.size() + names.size() == file.tensors().size());
    REQUIRE(Gguf::gather(file.meta(), std::move(tensors), bytes.size()).get(file).ok());
    return make_plan(file, {}).status();
}

void check_says(const Status& s, std::initializer_list<const char*> parts) {
    CHECK(!s.ok());
    for (const char* p : parts)
        CHECK_MESSAGE(s.text.find(p) != std::string::npos, "'" << s.text << "' does not say '" << p << "'");
}

void check_says(const std::vector<std::byte>& bytes, std::initializer_list<const char*> parts) {
    Plan plan;
    check_says(plan_of(bytes, plan), parts);
}

}  // namespace

TEST_CASE("every family computes what plain loops in double precision compute" * doctest::test_suite("long")) {
    const std::vector<Token> ids = tiny_ids(deep() ? 40 : 30, 3);
    REQUIRE(ids.size() > kTinyWindow + 4);
    for (Family family : kFamilies) {
        const std::string name = family_name(family);
        CAPTURE(name);
        const std::vector<std::byte> bytes = tiny_of(family);
        Oracle oracle(bytes);
        const std::vector<Oracle::Rows> wanted = rows_of(oracle, ids, 4);
        check_errors(name, bytes, wanted, ids, 1e-3, 1e-2);
    }
}

TEST_CASE("matrices of NVFP4 with scales of their own give what plain loops compute with the scales in the weights") {
    const std::vector<Token> ids = tiny_ids(12, 3);
    TinyOptions o = narrow();
    o.type = Type::nvfp4;
    for (const Family family : kFamilies)
        for (const bool fused : {false, true}) {
            const std::string name = family_name(family);
            CAPTURE(name);
            CAPTURE(fused);
            o.family = family;
            o.fused = fused;
            o.scales = TinyOptions::Scales::applied;
            const std::vector<std::byte> applied = tiny_model(o);
            o.scales = TinyOptions::Scales::separate;
            const std::vector<std::byte> separate = tiny_model(o);
            Gguf file;
            REQUIRE(Gguf::parse(separate).get(file).ok());
            const Tensor* out = file.tensor("blk.1.attn_output.weight");
            REQUIRE(out);
            REQUIRE(out->type == Type::nvfp4);
            REQUIRE(file.tensor("blk.1.attn_output.scale"));
            if (fused) {  // which the oracle does not read
                const std::vector<float> got = last_logits(separate, CpuPath::reference),
                                         want = last_logits(applied, CpuPath::reference);
                CHECK(relative_error(got.data(), want.data(), want.size()) <= 5e-4);
                continue;
            }
            Oracle oracle(applied);
            const std::vector<Oracle::Rows> wanted = rows_of(oracle, ids, 1);
            check_errors(name, separate, wanted, ids, 5e-4, 2e-3);
        }
}

TEST_CASE("the activations of a draft block do not overlap, also where no layer has their widths") {
    TinyOptions o = narrow();
    o.family = Family::step35;
    o.interval = 1;  // the layers have 4 heads, the draft blocks 8
    const ContextRig rig(o);
    std::shared_ptr<Backend> machine;
    REQUIRE(open_cpu({}).get(machine).ok());
    const std::shared_ptr<LoadedModel> model = rig.load(*machine);
    for (uint32_t n_row : {64u, 512u}) {
        const std::unique_ptr<Context> context = rig.context(*model, {}, 1024, n_row);
        for (const Tape& tape : rig.plan.mtp) {
            std::map<const float*, SlotId> placed;  // by the first value
            for (const Op& op : tape.ops)
                for (SlotId id : {op.in[0], op.in[1], op.out})
                    if (id != kNoSlot) placed[context->read_row(id, 0).value().data()] = id;
            const float* end = nullptr;
            for (const auto& entry : placed) {  // no binding: CAPTURE is a lambda
                const float* const at = entry.first;
                const SlotId id = entry.second;
                CAPTURE(rig.plan.slot(id).name);
                CHECK(at >= end);
                end = at + std::min(n_row, id == tape.logits ? kMaxTentative : kMaxMtpRows) * rig.plan.slot(id).width();
            }
        }
    }
}

TEST_CASE("the oracle agrees with independent outputs" * doctest::test_suite("long")) {
    for (const char* name : {"random-moe", "random-step35"}) {
        const Reference ref = load_reference(name);
        if (!ref.ok) return;
        const std::string text = read_text(ref.model_path);
        const std::byte* p = reinterpret_cast<const std::byte*>(text.data());
        const std::vector<std::byte> bytes(p, p + text.size());
        OracleOptions options;
        options.round_kv = false;
        Oracle oracle(bytes, options);
        for (uint32_t depth = 0; depth <= (deep() ? 2u : 1u); ++depth) {
            const Reference::Array want = ref.array(depth == 0 ? std::string("logits") : "mtp" + std::to_string(depth));
            const Oracle::Rows got = oracle.logits(ids_of(*ref.json.find("ids")), depth);
            REQUIRE(got.size() == want.n_row);
            double worst = 0;
            for (size_t r = 0; r < got.size(); ++r)
                worst = worst_error(got, r, Span<const float>(want.row(r), want.n_col), worst);
            MESSAGE(name << " depth " << depth << ": " << worst);
            CHECK(worst < 1e-4);
        }
        // With keys and values rounded as the caches do, it agrees with the library much closer than the
        // unrounded outputs do.
        Oracle rounding(bytes);
        Session session = session_of(bytes, CpuPath::reference);
        const std::vector<Token> ids = ids_of(*ref.json.find("ids"));
        for (double e : errors_of(session, rows_of(rounding, ids, 2), ids)) CHECK(e < 5e-4);
    }
}

TEST_CASE("of two experts with equal scores the lower one is used") {
    std::vector<std::byte> bytes = tiny_of(Family::qwen35moe);
    Gguf file;
    REQUIRE(Gguf::parse(bytes).get(file).ok());
    size_t n = 0;
    for (const Tensor& t : file.tensors())
        if (t.name.find("ffn_gate_inp.weight") != std::string_view::npos) {
            std::memset(bytes.data() + (t.data - bytes.data()), 0, static_cast<size_t>(t.bytes));
            ++n;
        }
    REQUIRE(n == 5);
    Oracle oracle(bytes);
    Session session = session_of(bytes, CpuPath::reference);
    const std::vector<Token> ids = tiny_ids(12, 8);
    for (double e : errors_of(session, rows_of(oracle, ids, 1), ids)) CHECK(e < 1e-3);
}

TEST_CASE("fused tensors give the same bits as separate ones" * doctest::test_suite("long")) {
    for (Family family : kFamilies) {
        const std::string name = family_name(family);
        CAPTURE(name);
        for (Type type : {Type::f16, Type::q4_k}) {
            if (!deep() && type == Type::f16 && family != Family::step35) continue;
            TinyOptions o;
            o.family = family;
            o.type = type;
            o.n_layer = o.interval = 2;
            const std::vector<float> apart = last_logits(tiny_model(o));
            o.fused = true;
            const std::vector<float> fused = last_logits(tiny_model(o));
            REQUIRE(apart.size() == fused.size());
            CHECK(std::memcmp(apart.data(), fused.data(), apart.size() * sizeof(float)) == 0);
        }
    }
}

TEST_CASE("a vector with a value that is not finite is refused with its tensor and place") {
    struct Case {
        Family family;
        const char* tensor;
    };
    const Device device = cpu_device();
    for (const Case& c :
         {Case{Family::qwen35, "output_norm.weight"}, Case{Family::qwen35, "blk.0.ssm_a"},
          Case{Family::qwen35, "blk.0.ssm_dt.bias"}, Case{Family::qwen35, "blk.0.ssm_conv1d.weight"},
          Case{Family::qwen35, "blk.3.attn_q_norm.weight"}, Case{Family::qwen35, "blk.4.nextn.enorm.weight"},
          Case{Family::qwen35moe, "blk.0.ffn_gate_inp_shexp.weight"}, Case{Family::step35, "blk.1.exp_probs_b.bias"}}) {
        CAPTURE(c.tensor);
        std::vector<std::byte> bytes = tiny_of(c.family);
        Gguf file;
        REQUIRE(Gguf::parse(bytes).get(file).ok());
        REQUIRE(file.tensor(c.tensor));
        float* values = reinterpret_cast<float*>(bytes.data() + file.tensor(c.tensor)->file_offset);
        for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
            values[3] = wrong;
            const Status s = Model::load(device, bytes).status();
            CHECK(s.code == Code::bad_file);
            check_says(s, {c.tensor, "at 3", "expected finite numbers"});
        }
    }
}

TEST_CASE("a split model gives the same bits as one file") {
    for (Family family : kFamilies) {
        TinyOptions o;
        o.family = family;
        const std::vector<std::vector<std::byte>> bytes = tiny_shards(o, 3);
        REQUIRE(bytes.size() == 3);
        std::vector<Gguf> shards(3);
        for (size_t i = 0; i < 3; ++i) REQUIRE(Gguf::parse(bytes[i]).get(shards[i]).ok());
        Gguf joined;
        Status s = Gguf::join(std::move(shards)).get(joined);
        REQUIRE_MESSAGE(s.ok(), s.message());
        Plan split, whole;
        REQUIRE(make_plan(joined, {}).get(split).ok());
        const std::vector<std::byte> one = tiny_model(o);
        REQUIRE(plan_of(one, whole).ok());
        CHECK(print_tape(split, split.trunk) == print_tape(whole, whole.trunk));
        Gguf file;
        REQUIRE(Gguf::parse(one).get(file).ok());
        for (const Tensor& t : file.tensors()) {
            const Tensor* other = joined.tensor(t.name);
            REQUIRE(other);
            CHECK(std::memcmp(t.data, other->data, static_cast<size_t>(t.bytes)) == 0);
        }
    }
}

TEST_CASE("draft blocks are optional in a file and do not load alone") {
    for (Family family : kFamilies) {
        Plan plan;
        REQUIRE(plan_of(tiny_of(family), plan).ok());
        CHECK(plan.mtp.size() == (family == Family::step35 ? 3 : 1));
        for (uint32_t depth = 1; depth <= 5; ++depth)
            CHECK(plan.mtp_block(depth) == (family == Family::step35 ? std::min(depth, 3u) - 1 : 0));
        REQUIRE(plan_of(tiny_of(family, false, Packaging::trunk), plan).ok());
        CHECK(plan.mtp.empty());
        CHECK(plan.n_layer == 4);
        check_says(tiny_of(family, false, Packaging::mtp), {"blk.0.attn_norm.weight", "cannot run alone"});
    }
}

TEST_CASE("step35 plans each layer by its kind") {
    Plan plan;
    REQUIRE(plan_of(tiny_of(Family::step35), plan).ok());
    size_t n = 0;
    for (const Op& op : plan.trunk.ops) {
        if (op.kind != OpKind::attend) continue;
        const bool full = op.layer % 4 == 0;
        CHECK(op.attn.n_head == (full ? 4 : 8));
        CHECK(op.attn.n_rot == (full ? 32 : 64));
        CHECK(op.attn.rope_base == (full ? 5e6f : 1e4f));
        CHECK(op.attn.window == (full ? 0 : kTinyWindow));
        CHECK((op.w[1] != kNoSlot) == full);
        CHECK(op.attn.gate == AttnGate::per_head);
        ++n;
    }
    CHECK(n == 4);
    const std::string text = print_tape(plan, plan.trunk);
    CHECK(text.find("layer 0  swiglu") != std::string::npos);
    CHECK(text.find("layer 1  moe  x += a  blk.1.ffn_gate_inp.weight F32 [5, 256]") != std::string::npos);
    CHECK(text.find("experts 2 of 5 by sigmoid") != std::string::npos);
    // Draft heads are fed the residual stream itself, each by the one before.
    CHECK(plan.slot(plan.trunk.hidden).name == "x");
    CHECK(plan.mtp[1].hidden != plan.mtp[0].hidden);
    CHECK(plan.mtp[0].ops.back().w[0] != plan.mtp[1].ops.back().w[0]);
}

TEST_CASE("a budget for keys and values leaves windows of step35's own as they are, unless they are too wide") {
    struct Case {
        uint32_t declared;
        const char* windows;
    };
    for (const Case& c : {Case{24, "0:128+4,1:24,2:24,3:24"}, Case{128, "0:128+4,1:128,2:128,3:128"},
                          Case{200, "0:128+4,1:128+4,2:128+4,3:128+4"}}) {
        CAPTURE(c.declared);
        const std::vector<std::byte> bytes =
            with_u32(tiny_of(Family::step35, false, Packaging::trunk), "step35.attention.sliding_window", c.declared);
        const Model model = load_model(cpu_device(1), bytes);
        SessionOptions o;
        o.n_context = 4000;
        o.n_ubatch = 64;
        o.windows = parse_windows(c.windows).value();
        const MemoryPlan asked = Session::plan(model, o).value();
        CHECK(print_windows(asked.windows) == c.windows);
        o.windows.clear();
        for (const MemoryItem& item : asked.items)
            if (item.what.find("keys") == 0 || item.what.find("values") == 0 || item.what == "sinks")
                o.kv_budget_bytes += item.bytes;
        const MemoryPlan plan = Session::plan(model, o).value();
        CHECK(print_windows(plan.windows) == c.windows);
        CHECK(plan.session_bytes == asked.session_bytes);
        CHECK(plan.window_rule.find("windows of the model's own") != std::string::npos);
        const Stats stats = test::open(model, o).stats();
        CHECK(print_windows(stats.windows) == c.windows);
        CHECK(stats.memory_bytes == plan.session_bytes);
    }
}

TEST_CASE("older step35 files with other key names give the same plan") {
    TinyOptions o;
    o.family = Family::step35;
    const std::vector<float> now = last_logits(tiny_model(o));
    o.older_keys = true;
    const std::vector<float> older = last_logits(tiny_model(o));
    CHECK(std::memcmp(now.data(), older.data(), now.size() * sizeof(float)) == 0);
    o.factors = false;
    const std::vector<std::byte> plain = tiny_model(o);
    CHECK(last_logits(plain) != now);
    Plan plan;
    REQUIRE(plan_of(plain, plan).ok());
    for (const Op& op : plan.trunk.ops)
        if (op.kind == OpKind::attend) CHECK(op.w[1] == kNoSlot);
}

TEST_CASE("missing or contradicting keys of a file with experts are named") {
    const std::vector<std::byte> moe = tiny_of(Family::qwen35moe), step = tiny_of(Family::step35),
                                 next = tiny_of(Family::qwen3next);
    check_says(patched(moe, "blk.2.ffn_up_exps.weight", "blk.2.ffn_ux_exps.weight"),
               {"blk.2.ffn_up_exps.weight", "missing", "[5, 256, 256]"});
    check_says(patched(moe, "blk.1.ffn_gate_exps.weight", "blk.1.ffn_gxte_exps.weight"),
               {"blk.1.ffn_gate_exps.weight", "missing"});
    check_says(patched(moe, "blk.3.ffn_gate_inp.weight", "blk.3.ffn_gate_imp.weight"), {"blk.3.ffn_gate_inp.weight"});
    check_says(patched(moe, "blk.4.ffn_down_shexp.weight", "blk.4.ffn_dxwn_shexp.weight"),
               {"blk.4.ffn_down_shexp.weight"});
    check_says(with_u32(moe, "qwen35moe.expert_count", 4), {"blk.0.ffn_gate_inp.weight", "[5, 256]", "[4, 256]"});
    check_says(with_u32(moe, "qwen35moe.expert_used_count", 6), {"expert_used_count", "6", "5"});
    check_says(with_u32(moe, "qwen35moe.expert_used_count", 0), {"expert_used_count", "0"});
    check_says(with_u32(moe, "qwen35moe.expert_feed_forward_length", 128),
               {"blk.0.ffn_gate_exps.weight", "[5, 256, 256]", "[5, 128, 256]"});
    check_says(patched(moe, "qwen35moe.expert_count", "qwen35moe.expert_cownt"), {"qwen35moe.expert_count"});
    check_says(patched(next, "blk.0.ssm_ba.weight", "blk.0.ssm_bx.weight"), {"blk.0.ssm_ba.weight", "[8, 256]"});
    check_says(patched(next, "blk.0.attn_gate.weight", "blk.0.attn_gxte.weight"), {"blk.0.attn_gate.weight"});
    check_says(patched(step, "attention.sliding_window_pattern", "attention.sliding_window_pattexn"),
               {"sliding_window_pattern"});
    check_says(with_u32(step, "step35.attention.sliding_window", 0), {"sliding_window", "0"});
    check_says(with_u32(step, "step35.block_count", 9), {"attention.head_count"});
    check_says(patched(step, "blk.1.exp_probs_b.bias", "blk.1.exp_probs_b.bixs"),
               {"blk.1.exp_probs_b.bias", "missing", "[5]"});
    check_says(patched(step, "blk.5.nextn.hnorm.weight", "blk.5.nextn.hnoxm.weight"), {"blk.5.nextn.hnorm.weight"});
    check_says(plan_without(step, {"output.weight"}), {"'output.weight'", "missing"});
}

TEST_CASE("what files may lack, step35 has in all blocks or in none") {
    const std::vector<std::byte> step = tiny_of(Family::step35),
                                 trunk = tiny_of(Family::step35, false, Packaging::trunk);
    for (const std::string part : {"attn_gate", "attn_q_norm", "attn_k_norm"}) {
        for (const std::string block : {"blk.0.", "blk.2.", "blk.5."}) {
            const std::string name = block + part + ".weight";
            check_says(plan_without(step, {name}), {name.c_str(), "missing", "all blocks"});
        }
        std::vector<std::string> all;
        for (int i = 0; i < 4; ++i) all.push_back("blk." + std::to_string(i) + "." + part + ".weight");
        CHECK(plan_without(trunk, all).ok());
    }
}

TEST_CASE("fewer blocks in the key than layers in the file are refused") {
    for (Family family : kFamilies) {
        const std::string key = family_name(family) + std::string(".block_count");
        TinyOptions o;
        o.family = family;
        o.mtp = false;
        const std::vector<std::byte> trunk = tiny_model(o);
        Plan plan;
        CHECK(plan_of(trunk, plan).ok());
        for (uint32_t n : {3u, 1u}) {
            const Status s = plan_of(with_u32(trunk, key, n), plan);
            CHECK(s.code == Code::bad_file);
            check_says(s, {key.c_str(), "belongs to block"});
        }
    }
}

TEST_CASE("more MTP blocks in the key than in the file are refused, and none at all are not") {
    for (Family family : kFamilies) {
        const std::string arch = family_name(family), key = arch + ".nextn_predict_layers";
        const uint32_t n = family == Family::step35 ? 3 : 1;
        const std::vector<std::byte> bytes = tiny_of(family);
        for (bool mtp : {true, false}) {
            Gguf file;
            const std::vector<std::byte> more = with_u32(bytes, key, n + 1);
            REQUIRE(Gguf::parse(more).get(file).ok());
            PlanOptions options;
            options.mtp = mtp;
            const Result<Plan> plan = make_plan(file, options);
            CHECK(plan.status().code == Code::bad_file);
            CHECK(plan.status().text.find(key) != std::string::npos);
            CHECK(plan.status().text.find("blk.3.attn_norm.weight") != std::string::npos);
        }
    }
}

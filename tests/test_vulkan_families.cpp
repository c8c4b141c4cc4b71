// The families with experts, windows of their own and chained drafts on the Vulkan machine: against the CPU,
// against the invariants, against independent outputs.
#include "vulkan_model.h"

#ifndef AUSPEX_NO_VULKAN
#include <cmath>
#include <map>

#include "../src/base/file.h"
#include "../src/machine/vulkan/list_builder.h"
#include "session_rig.h"

using namespace test_vulkan_model;

// Steps have 1, 4 or 9 rows here: every number of rows is another set of kernels for a software device to compile, and
// unit.vulkan_matvec compares all of them.

namespace test_vulkan_families {

constexpr Family kNew[] = {Family::qwen35moe, Family::qwen3next, Family::step35};

TinyOptions family_of(Family family, Type type = Type::f16) {
    TinyOptions o = type == Type::f16 ? narrow_of(false) : tiny_of(false, type);
    o.family = family;
    if (family == Family::qwen3next) {
        o.n_head_k = 2;
        o.n_head_v = 4;
    }
    return o;
}

/// Rows that differ by more than rounding. Of many random rows one now and then stands between two experts.
size_t rows_apart(const std::vector<float>& got, const std::vector<float>& want, size_t width, double bound,
                  double* worst) {
    REQUIRE(got.size() == want.size());
    size_t n = 0;
    for (size_t at = 0; at < got.size(); at += width) {
        const double error = relative_error(got.data() + at, want.data() + at, width);
        n += error >= bound;
        if (error < bound) *worst = std::fmax(*worst, error);
    }
    return n;
}

/// Steps of every kind on two contexts that should say the same.
struct Side {
    const Rig& rig;
    Context &got, &want;
    const std::vector<Token>& ids;
    double bound = 3e-3;
    uint32_t at = 0;
    double worst = 0;

    void compare(const Step& step, bool hidden) {
        const std::vector<float> w = rig.run(want, step), g = rig.run(got, step);
        CHECK(rows_apart(g, w, rig.plan.n_vocab, bound, &worst) == 0);
        if (hidden)
            CHECK(rows_apart(rig.rows(got, step.tape->hidden, step.n_row),
                             rig.rows(want, step.tape->hidden, step.n_row), rig.plan.d_model, bound,
                             &worst) <= step.n_row / 20);
    }
    void trunk(uint32_t n, bool tentative, uint32_t n_logit, uint32_t keep) {
        CAPTURE(at);
        CAPTURE(n);
        compare(rig.step(part(ids, at, n), at, tentative, n_logit), true);
        if (tentative) {
            got.commit(keep);
            want.commit(keep);
        }
        at += tentative ? keep : n;
    }
    void mtp(const Tape& tape, uint32_t p0, uint32_t n, uint32_t position, uint32_t n_logit, bool fill,
             const float* given) {
        CAPTURE(position);
        Step s;
        s.tape = &tape;
        s.ids = ids.data() + position + 1;
        s.n_row = n;
        s.place(position);
        s.n_logit = n_logit;
        s.fill_only = fill;
        s.first_key = p0;
        s.hidden = given;
        s.hidden_from = position - p0;
        compare(s, !fill);
    }
};

/// Tokens of a text that two ways of decoding must share.
constexpr size_t kSpoken = 12;

/// What a session says, drafting as the engine does.
std::vector<Token> spoken(const Model& model, int depth, Draft source, const Sampling& sampling) {
    SessionOptions o;
    o.n_context = 256;
    o.n_ubatch = 32;
    o.draft.source = source;
    o.draft.depth = depth;
    Session session = open(model, o);
    const std::vector<Token> prompt = tiny_ids(25, 13);
    sync(session, prompt);
    std::vector<Token> out = more(session, kSpoken, sampling);
    out.resize(kSpoken);
    return out;
}

}  // namespace test_vulkan_families

using namespace test_vulkan_families;

TEST_CASE("back-end equivalence: every family gives the CPU's rows, in prompts and draft blocks too") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    for (Family family : kNew) {
        const std::string name = family_name(family);
        CAPTURE(name);
        Rig rig(family_of(family));
        auto gpu = rig.context(), cpu = rig.context(*rig.cpu);
        const std::vector<Token> ids = tiny_ids(140, 3);
        Side side{rig, *gpu, *cpu, ids};
        side.trunk(1, true, 1, 1);
        side.trunk(9, true, 9, 4);
        side.trunk(4, true, 1, 4);
        side.trunk(50, false, 3, 0);
        side.trunk(4, false, 2, 0);
        side.trunk(1, true, 1, 1);
        side.trunk(60, false, 0, 0);
        REQUIRE(gpu->head(rig.plan.trunk, 20, 4).ok());
        REQUIRE(cpu->head(rig.plan.trunk, 20, 4).ok());
        CHECK(rows_apart(rig.rows(*gpu, rig.plan.trunk.logits, 4), rig.rows(*cpu, rig.plan.trunk.logits, 4),
                         rig.plan.n_vocab, side.bound, &side.worst) == 0);
        const uint32_t p0 = side.at - 60;
        for (const Tape& tape : rig.plan.mtp) {
            side.mtp(tape, p0, 30, p0, 0, true, nullptr);
            side.mtp(tape, p0, 20, p0 + 30, 1, false, nullptr);
            side.mtp(tape, p0, 4, p0 + 50, 4, false, nullptr);
            const std::vector<float> hidden = rig.rows(*cpu, rig.plan.trunk.hidden, 1);
            side.mtp(tape, p0, 1, p0 + 54, 1, false, hidden.data());
        }
        MESSAGE(name << ": worst relative error " << side.worst);
    }
}

TEST_CASE("the activations of a draft block do not overlap on the device, also where no layer has their widths") {
    if (!shared_gpu()) return;
    TinyOptions tiny = family_of(Family::step35);
    tiny.interval = 1;  // the layers have 4 heads, the draft blocks 8
    const ContextRig rig(tiny);
    std::shared_ptr<vk::VulkanModel> model;
    REQUIRE(vk::VulkanModel::outline(shared_gpu(), rig.plan).get(model).ok());
    for (uint32_t n_ubatch : {64u, 512u}) {
        ContextOptions options;
        options.n_context = 1024;
        options.n_ubatch = n_ubatch;
        options.kv.resize(rig.plan.slots.size());
        vk::Buffers buffers;
        REQUIRE(vk::Buffers::outline(*model, options).get(buffers).ok());
        for (const Tape& tape : rig.plan.mtp) {
            std::map<uint64_t, SlotId> placed;
            for (const Op& op : tape.ops)
                for (SlotId id : {op.in[0], op.in[1], op.out})
                    if (id != kNoSlot && buffers.row[id].bytes != 0) placed[buffers.row[id].offset] = id;
            uint64_t end = 0;
            for (const auto& entry : placed) {  // no binding: CAPTURE is a lambda
                const uint64_t at = entry.first;
                const SlotId id = entry.second;
                CAPTURE(rig.plan.slot(id).name);
                CHECK(at >= end);
                end = at + buffers.row[id].bytes;
            }
        }
    }
}

TEST_CASE("back-end equivalence: experts of every weight type, fused or not, give the CPU's logits") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    const std::vector<Token> ids = tiny_ids(30, 4);
    for (Type type : {Type::q4_k, Type::q6_k, Type::q8_0, Type::f32, Type::q5_0, Type::q4_1}) {
        // unit.vulkan_matvec and unit.vulkan_gemm run the code of every type.
        if (!deep() && type != Type::q4_k && type != Type::q8_0) continue;
        const std::string name = type_info(type).name;
        CAPTURE(name);
        TinyOptions o = family_of(Family::qwen35moe, type);
        Rig rig(o);
        auto gpu = rig.context(), cpu = rig.context(*rig.cpu);
        Side side{rig, *gpu, *cpu, ids};
        side.bound = 8e-3;
        side.trunk(20, false, 1, 0);
        side.trunk(1, true, 1, 1);
        side.trunk(4, true, 4, 4);
        if (type != Type::q4_k) continue;
        o.fused = true;
        Rig fused(o);
        auto other = fused.context(*fused.gpu), again = rig.context();
        for (uint32_t n : {20u, 1u, 9u})
            CHECK(same_bits(fused.run(*other, part(ids, 0, n), 0, n < 10, 1),
                            rig.run(*again, part(ids, 0, n), 0, n < 10, 1)));
    }
}

TEST_CASE("row invariance with experts on the GPU: a row's logits are the same bits alone and among nine") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    for (Family family : kNew) {
        const std::string name = family_name(family);
        CAPTURE(name);
        Rig rig(family_of(family, Type::q4_k));
        const std::vector<Token> ids = tiny_ids(40, 3);
        auto alone = rig.context(), among = rig.context();
        rig.run(*alone, part(ids, 0, 23), 0, false, 0);
        rig.run(*among, part(ids, 0, 23), 0, false, 0);
        std::vector<float> one;
        for (uint32_t i = 23; i < 32; ++i) {
            const std::vector<float> row = rig.run(*alone, part(ids, i, 1), i, true, 1);
            alone->commit(1);
            one.insert(one.end(), row.begin(), row.end());
        }
        for (uint32_t n : {4u, 9u}) {
            CAPTURE(n);
            const std::vector<float> many = rig.run(*among, part(ids, 23, n), 23, true, n);
            among->commit(0);
            CHECK(same_bits(many,
                            std::vector<float>(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(many.size()))));
        }
    }
}

TEST_CASE("row invariance on the GPU: logits computed after a step have the bits of the step's own") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    for (Family family : kFamilies) {
        const std::string name = family_name(family);
        CAPTURE(name);
        Rig rig(family_of(family));
        auto gpu = rig.context();
        const std::vector<Token> ids = tiny_ids(40, 3);
        // The last logits of a prompt, of a prompt of one row, and all of a step.
        const struct {
            uint32_t n_row, n_logit;
            bool tentative;
        } steps[] = {{20, 2, false}, {1, 1, false}, {1, 1, true}, {4, 4, true}};
        uint32_t at = 0;
        for (const auto& step : steps) {
            CAPTURE(at);
            const std::vector<float> own = rig.run(*gpu, part(ids, at, step.n_row), at, step.tentative, step.n_logit);
            for (const Tape& tape : rig.plan.mtp) {  // drafting in between does not change them
                Step draft;
                draft.tape = &tape;
                draft.ids = ids.data() + at + 1;
                draft.n_row = step.n_row;
                draft.place(at);
                draft.first_key = at;
                draft.n_logit = 1;
                rig.run(*gpu, draft);
            }
            REQUIRE(gpu->head(rig.plan.trunk, step.n_row - step.n_logit, step.n_logit).ok());
            CHECK(same_bits(rig.rows(*gpu, rig.plan.trunk.logits, step.n_logit), own));
            if (step.tentative) gpu->commit(step.n_row);
            at += step.n_row;
        }
    }
}

TEST_CASE("commit equivalence, chunk invariance and restore equivalence hold with experts on the GPU") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    for (Family family : kNew) {
        const std::string name = family_name(family);
        CAPTURE(name);
        Rig rig(family_of(family));
        const std::vector<Token> ids = tiny_ids(140, 5);
        Random random(11);
        auto busy = rig.context(), plain = rig.context();
        for (Context* l : {busy.get(), plain.get()}) rig.run(*l, part(ids, 0, 20), 0, false, 0);
        uint32_t at = 20;
        for (int cycle = 0; cycle < 6; ++cycle) {
            const uint32_t sizes[] = {4, 9}, n = sizes[random.below(2)], k = 1 + random.below(n);
            std::vector<Token> rows(ids.begin() + at, ids.begin() + at + k);
            while (rows.size() < n) rows.push_back(static_cast<Token>(random.below(200)));
            const std::vector<float> a = rig.run(*busy, rows, at, true, n);
            busy->commit(k);
            for (uint32_t i = 0; i < k; ++i) {
                const std::vector<float> row = rig.run(*plain, part(ids, at + i, 1), at + i, true, 1);
                plain->commit(1);
                CHECK(same_bits(
                    row, std::vector<float>(a.begin() + i * rig.plan.n_vocab, a.begin() + (i + 1) * rig.plan.n_vocab)));
            }
            at += k;
        }
        const std::vector<float> a = rig.run(*busy, part(ids, at, 20), at, false, 1),
                                 b = rig.run(*plain, part(ids, at, 20), at, false, 1);
        CHECK(same_bits(a, b));
        std::vector<std::byte> x, y;
        REQUIRE(busy->save(at + 20, &x).ok());
        REQUIRE(plain->save(at + 20, &y).ok());
        CHECK(x == y);
        at += 20;
        auto restored = rig.context();
        REQUIRE(restored->restore(at, x).ok());
        CHECK(same_bits(rig.run(*restored, part(ids, at, 4), at, true, 4),
                        rig.run(*busy, part(ids, at, 4), at, true, 4)));
        // A prompt in one piece and in several, of rows that the same kernels run: the same bits.
        auto one = rig.context(), several = rig.context();
        rig.run(*several, part(ids, 0, 17), 0, false, 0);
        rig.run(*several, part(ids, 17, 24), 17, false, 0);
        CHECK(same_bits(rig.run(*one, part(ids, 0, 64), 0, false, 1),
                        rig.run(*several, part(ids, 41, 23), 41, false, 1)));
    }
}

TEST_CASE("a long step returns all hidden rows, with the bits of shorter ones") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    {  // the family whose hidden rows are the residual stream itself
        Rig rig(family_of(Family::step35));
        const std::vector<Token> ids = tiny_ids(540, 31);
        auto whole = rig.context(*rig.gpu, 640, 540), pieces = rig.context(*rig.gpu, 640, 512);
        rig.run(*whole, part(ids, 0, 530), 0, false, 1);
        const std::vector<float> all = rig.rows(*whole, rig.plan.trunk.hidden, 530);
        rig.run(*pieces, part(ids, 0, 512), 0, false, 0);
        std::vector<float> want = rig.rows(*pieces, rig.plan.trunk.hidden, 512);
        rig.run(*pieces, part(ids, 512, 18), 512, false, 1);
        const std::vector<float> rest = rig.rows(*pieces, rig.plan.trunk.hidden, 18);
        want.insert(want.end(), rest.begin(), rest.end());
        CHECK(same_bits(all, want));
    }
}

TEST_CASE("lossless drafting on the GPU: every family gives the same text with and without the device loop") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    const Device device = gpu_device();
    for (Family family : kNew) {
        const std::string name = family_name(family);
        CAPTURE(name);
        TinyOptions tiny = family_of(family);
        tiny.scale = 4;
        Rig rig(tiny);
        const std::vector<Token> prompt = tiny_ids(25, 13);
        Sampling hot;
        hot.temperature = 0.8f;
        hot.top_k = 20;
        hot.seed = 5;
        auto context = rig.context();
        if (deep() || family == Family::step35) {  // has several draft blocks
            const std::vector<Token> greedy = stepped(rig, *context, prompt, kSpoken);
            for (uint32_t n_draft : {0u, 2u, 3u, 5u}) {
                if (!deep() && n_draft != 0 && n_draft != 3) continue;
                CAPTURE(n_draft);
                context->reset();
                CHECK(device_loop(rig, *context, prompt, kSpoken, n_draft, n_draft == 2 ? 1 : 3) == greedy);
            }
            context->reset();
        }
        const std::vector<Token> want = stepped(rig, *context, prompt, kSpoken, hot);
        context->reset();
        CHECK(device_loop(rig, *context, prompt, kSpoken, 3, 2, hot) == want);
        Model model;
        Status s = Model::load(device, rig.bytes).get(model);
        REQUIRE_MESSAGE(s.ok(), s.message());
        CHECK(spoken(model, 3, Draft::mtp, hot) == want);
        if (!deep() && family != Family::step35) continue;
        CHECK(spoken(model, 0, Draft::off, hot) == want);
        CHECK(spoken(model, 3, Draft::lookup, hot) == want);
    }
}

TEST_CASE("the device loop makes the host's drafts with every draft block") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    for (Family family : kNew) {
        const std::string name = family_name(family);
        CAPTURE(name);
        TinyOptions tiny = family_of(family);
        tiny.scale = 4;
        Rig rig(tiny);
        const std::vector<Token> prompt = tiny_ids(25, 13);
        const uint32_t n = deep() ? 5 : 3;
        // The guesses after the prompt, by hand: blocks in turn, each over all guesses so far.
        auto hand = rig.context(), context = rig.context();
        const std::vector<Token> want = stepped(rig, *context, prompt, n);
        std::vector<Token> history = prompt;
        rig.run(*hand, part(prompt, 0, 24), 0, false, 0);
        std::vector<float> chain;
        for (uint32_t depth = 1; depth <= n; ++depth) {
            const Tape& tape = rig.plan.mtp[rig.plan.mtp_block(depth)];
            const bool again = depth > 1 && rig.plan.mtp_block(depth) == rig.plan.mtp_block(depth - 1);
            Step s;
            s.tape = &tape;
            if (!again) {
                s.ids = history.data() + 1;
                s.n_row = 24;
                s.fill_only = depth != 1;
                s.n_logit = depth == 1;
                REQUIRE(hand->run(s).ok());
            }
            if (depth > 1) {
                s.n_row = again ? 1 : depth - 1;
                s.place(again ? 24 + depth - 2 : 24);
                s.ids = history.data() + s.first_row + 1;
                s.hidden = chain.data() + (again ? (depth - 2) * rig.plan.d_model : 0);
                s.fill_only = false;
                s.n_logit = 1;
                REQUIRE(hand->run(s).ok());
            }
            const std::vector<float> logits = rig.rows(*hand, tape.logits, 1);
            history.push_back(static_cast<Token>(arg_max(logits.data(), logits.size())));
            Span<const float> hidden;
            REQUIRE(hand->read_row(tape.hidden, s.n_row - 1).get(hidden).ok());
            chain.insert(chain.end(), hidden.begin(), hidden.end());
        }
        uint32_t right = 0;
        while (right < n && history[25 + right] == want[right]) ++right;
        // What the device accepts of as many drafts in its first cycle.
        context->reset();
        rig.run(*context, part(prompt, 0, 24), 0, false, 0);
        for (const Tape& t : rig.plan.mtp) {
            Step fill;
            fill.tape = &t;
            fill.ids = prompt.data() + 1;
            fill.n_row = 23;
            fill.fill_only = true;
            REQUIRE(context->run(fill).ok());
        }
        LoopStart d;
        DeviceLoop& loop = *context->device_loop();
        d.history = prompt;
        d.limit = 60;
        d.n_mtp_row = 1;
        d.hidden_from = 23;
        Status s = loop.start(d);
        REQUIRE_MESSAGE(s.ok(), s.message());
        REQUIRE(loop.queue(n).ok());
        auto c = loop.wait();
        REQUIRE_MESSAGE(c.ok(), c.status().message());
        CHECK(c.value().n_draft == n);
        CHECK(c.value().n_accept == right);
    }
}

TEST_CASE("a device with a small binding limit keeps experts in slices") {
    if (!shared_gpu()) return;
    DeviceOptions options;
    options.kind = Kind::vulkan;
    vk::OpenDetail detail;
    detail.edit_traits = [](vk::DeviceTraits* t) { t->max_storage_range = 560 * 1024; };
    vk::OpenDeviceRef narrow;
    Status s = vk::open_device(options, detail).get(narrow);
    REQUIRE_MESSAGE(s.ok(), s.message());
    Rig rig(family_of(Family::qwen35moe, Type::f32));
    std::shared_ptr<LoadedModel> program;
    s = vk::make_backend(narrow)->load(rig.plan, rig.weights, {}).get(program);
    REQUIRE_MESSAGE(s.ok(), s.message());
    ContextOptions o;
    o.n_context = 256;
    o.n_ubatch = 16;
    std::unique_ptr<Context> context, whole = rig.context(*rig.gpu, 256, 16);
    s = program->open(o).get(context);
    REQUIRE_MESSAGE(s.ok(), s.message());
    const std::vector<Token> ids = tiny_ids(40, 2);
    Side side{rig, *context, *whole, ids};
    side.trunk(1, true, 1, 1);
    side.trunk(4, true, 4, 4);
    side.trunk(16, false, 1, 0);
    CHECK(side.worst < 1e-3);
    narrow->gpu->traits.max_storage_range = 64 * 1024;
    s = vk::make_backend(narrow)->load(rig.plan, rig.weights, {}).get(program);
    CHECK(s.code == Code::unsupported);
    CHECK_MESSAGE(s.text.find("bytes for each expert") != std::string::npos, s.message());
}

TEST_CASE("planned memory equals what a model with experts and its contexts allocate") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    for (Family family : kNew) {
        Rig rig(family_of(family, Type::q4_k));
        auto machine = vk::make_backend(shared_gpu());
        ContextOptions o;
        o.n_context = 300;
        o.n_ubatch = 32;
        std::vector<MemoryItem> items, weights;
        REQUIRE(machine->plan_context(rig.plan, o, &items).ok());
        REQUIRE(machine->plan_weights(rig.plan, rig.weights, nullptr, &weights).ok());
        uint64_t sum = 0, weight_sum = 0;
        for (const MemoryItem& i : items) sum += i.bytes;
        for (const MemoryItem& i : weights) weight_sum += i.bytes;
        const uint64_t before = shared_gpu()->gpu->device_bytes.load() + shared_gpu()->gpu->host_bytes.load();
        std::shared_ptr<LoadedModel> again;
        REQUIRE(machine->load(rig.plan, rig.weights, {}).get(again).ok());
        CHECK(shared_gpu()->gpu->device_bytes.load() + shared_gpu()->gpu->host_bytes.load() - before == weight_sum);
        std::unique_ptr<Context> context;
        REQUIRE(rig.gpu->open(o).get(context).ok());
        CHECK(context->memory_bytes() == sum);
    }
}

TEST_CASE("experts in host memory give the same bits and take the planned memory") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    Rig rig(family_of(Family::qwen35moe, Type::q4_k));
    Plan plan = rig.plan;
    for (const Op& op : plan.trunk.ops)
        if (op.kind == OpKind::moe && op.layer < 2)
            for (uint32_t i = 1; i <= 3; ++i) plan.slots[op.w[i]].on_host = true;
    auto machine = vk::make_backend(shared_gpu());
    std::vector<MemoryItem> items;
    REQUIRE(machine->plan_weights(plan, rig.weights, nullptr, &items).ok());
    uint64_t device = 0, pinned = 0;
    bool layers[2] = {};
    for (const MemoryItem& i : items) {
        (i.place == MemoryPlace::pinned ? pinned : device) += i.bytes;
        if (i.place == MemoryPlace::pinned && i.layer >= 0 && i.layer < 2) layers[i.layer] = true;
    }
    CHECK(pinned > 0);
    CHECK((layers[0] && layers[1]));
    const vk::GpuRef& gpu = shared_gpu()->gpu;
    const uint64_t device_before = gpu->device_bytes.load(), host_before = gpu->host_bytes.load();
    std::shared_ptr<LoadedModel> program;
    Status s = machine->load(plan, rig.weights, {}).get(program);
    REQUIRE_MESSAGE(s.ok(), s.message());
    CHECK(gpu->device_bytes.load() - device_before == device);
    CHECK(gpu->host_bytes.load() - host_before == pinned);
    ContextOptions o;
    o.n_context = 256;
    o.n_ubatch = 32;
    std::unique_ptr<Context> context, plain = rig.context(*rig.gpu, 256, 32);
    REQUIRE(program->open(o).get(context).ok());
    const std::vector<Token> ids = tiny_ids(40, 2);
    Step step = rig.step(part(ids, 0, 20), 0, false, 1);
    step.tape = &plan.trunk;
    CHECK(same_bits(rig.run(*context, step), rig.run(*plain, part(ids, 0, 20), 0, false, 1)));
    step = rig.step(part(ids, 20, 4), 20, true, 4);
    step.tape = &plan.trunk;
    CHECK(same_bits(rig.run(*context, step), rig.run(*plain, part(ids, 20, 4), 20, true, 4)));
}

TEST_CASE("a device with too little memory keeps as many layers of experts as fit") {
    if (!shared_gpu()) return;
    const std::vector<std::byte> bytes = tiny_model(family_of(Family::qwen35moe));
    DeviceOptions options;
    options.kind = Kind::vulkan;
    auto planned = [&](size_t limit, int n_host, Model* model) {
        options.memory_limit_bytes = limit;
        LoadOptions load;
        load.host_expert_layers = n_host;
        *model = load_model(open_device(options), bytes, load);
        auspex::MemoryPlan plan;
        SessionOptions session;
        session.checkpoint_bytes = 0;  // pinned_bytes counts them on a GPU
        session.n_ubatch = 512;        // more take memory where there is some left
        REQUIRE(Session::plan(*model, session).get(plan).ok());
        return plan;
    };
    auto text = [](const Model& model) {
        Session session = open(model);
        sync(session, tiny_ids(20, 3));
        std::vector<Token> out = more(session, 8);
        out.resize(8);
        return out;
    };
    Model all, one, few;
    const auspex::MemoryPlan whole = planned(0, -1, &all), first = planned(0, 1, &one);
    CHECK(whole.pinned_bytes == 0);
    CHECK(first.pinned_bytes > 0);
    // A little less than everything takes: one layer moves, and it fits. Much less: every layer, and then no more.
    const auspex::MemoryPlan tight = planned(static_cast<size_t>(whole.total_bytes - 1000), -1, &few);
    CHECK(tight.pinned_bytes == first.pinned_bytes);
    CHECK(tight.fits);
    CHECK(tight.total_bytes - tight.pinned_bytes <= whole.total_bytes - 1000);
    CHECK(text(few) == text(all));
    Model fullest;
    const auspex::MemoryPlan tightest =
        planned(static_cast<size_t>(whole.total_bytes - 3 * first.pinned_bytes + 1000), -1, &fullest);
    CHECK(tightest.pinned_bytes > 2 * first.pinned_bytes);
    CHECK(tightest.fits);
    options.memory_limit_bytes = 0;
    const Device device = open_device(options);
    LoadOptions wrong;
    wrong.host_expert_layers = -2;
    CHECK(Model::load(device, bytes, wrong).status().code == Code::bad_argument);
}

TEST_CASE("models with experts give the independent reference logits on the GPU, drafts included") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    for (const char* name : {"random-moe", "random-step35"}) {
        const std::string text = name;
        CAPTURE(text);
        const Reference ref = load_reference(name);
        if (!ref.ok) return;
        File file;
        REQUIRE(File::open(ref.model_path.c_str()).get(file).ok());
        Rig rig(file.bytes());
        auto context = rig.context(*rig.gpu, 256, 64);
        const std::vector<Token> ids = ids_of(*ref.json.find("ids"));
        const uint32_t n = static_cast<uint32_t>(ids.size());
        const Reference::Array want = ref.array("logits");
        std::vector<float> hidden;
        double worst = 0;
        for (uint32_t at = 0; at < n;) {
            const uint32_t m = std::min(n - at, 4u);
            const std::vector<float> got = rig.run(*context, part(ids, at, m), at, true, m);
            const std::vector<float> rows = rig.rows(*context, rig.plan.trunk.hidden, m);
            hidden.insert(hidden.end(), rows.begin(), rows.end());
            context->commit(m);
            for (uint32_t i = 0; i < m; ++i)
                worst = std::fmax(worst, relative_error(got.data() + i * want.n_col, want.row(at + i), want.n_col));
            at += m;
        }
        MESSAGE(text << ": worst relative error, stepped, " << worst);
        const double bound =
            text == "random-moe" ? 2e-3 : 4e-3;  // of what rounded keys and values, which the outputs lack, make of it
        CHECK(worst <= bound);
        for (uint32_t depth = 1; depth <= 3; ++depth) {
            const Reference::Array rows = ref.array("mtp" + std::to_string(depth));
            if (!rows.data) continue;
            const Tape& tape = rig.plan.mtp[rig.plan.mtp_block(depth)];
            worst = 0;
            std::vector<float> after;
            for (uint32_t at = 0; at + depth < n; at += 1) {
                Step s;
                s.tape = &tape;
                s.ids = ids.data() + at + depth;
                s.n_row = s.n_logit = 1;
                s.place(at);
                s.hidden = hidden.data() + size_t{at} * rig.plan.d_model;
                const std::vector<float> got = rig.run(*context, s), next = rig.rows(*context, tape.hidden, 1);
                after.insert(after.end(), next.begin(), next.end());
                if (at < rows.n_row) worst = std::fmax(worst, relative_error(got.data(), rows.row(at), rows.n_col));
            }
            hidden = after;
            MESSAGE(text << " depth " << depth << ": worst relative error " << worst);
            CHECK(worst <= bound);
        }
    }
}
#endif  // AUSPEX_NO_VULKAN

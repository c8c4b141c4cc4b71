// Whole models on Vulkan: against the CPU, against the invariants, against failure.
#include "vulkan_model.h"

#ifndef AUSPEX_NO_VULKAN
#include <cmath>

#include "../src/base/file.h"
#include "../src/engine/model.h"
#include "rounding.h"

using namespace test_vulkan_model;

TEST_CASE("back-end equivalence: the CPU's rows alone, among nine, in a prompt, in the draft block") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    for (bool fast : {true, false}) {
        CAPTURE(fast);
        Rig rig(tiny_of(fast));
        auto gpu = rig.context(), cpu = rig.context(*rig.cpu);
        const std::vector<Token> ids = tiny_ids(140, 3);
        uint32_t at = 0;
        auto both = [&](uint32_t n, bool tentative, uint32_t n_logit, uint32_t keep) {
            CAPTURE(at);
            CAPTURE(n);
            const std::vector<float> want = rig.run(*cpu, part(ids, at, n), at, tentative, n_logit),
                                     got = rig.run(*gpu, part(ids, at, n), at, tentative, n_logit);
            CHECK(error_of(got, want) < 2e-3);
            CHECK(error_of(rig.rows(*gpu, rig.plan.trunk.hidden, n), rig.rows(*cpu, rig.plan.trunk.hidden, n)) < 2e-3);
            if (tentative) {
                gpu->commit(keep);
                cpu->commit(keep);
            }
            at += tentative ? keep : n;
        };
        both(1, true, 1, 1);
        both(1, true, 1, 1);
        both(9, true, 9, 4);
        both(4, true, 1, 4);  // logits of the last row alone
        both(50, false, 3, 0);
        both(4, false, 2, 0);
        both(1, true, 1, 1);
        both(60, false, 0, 0);
        // Logits of kept rows, afterwards.
        REQUIRE(gpu->head(rig.plan.trunk, 20, 4).ok());
        REQUIRE(cpu->head(rig.plan.trunk, 20, 4).ok());
        CHECK(error_of(rig.rows(*gpu, rig.plan.trunk.logits, 4), rig.rows(*cpu, rig.plan.trunk.logits, 4)) < 2e-3);
        // The draft block over the rows of the last step: row of token p + 1 at position p.
        const uint32_t p0 = at - 60;
        auto mtp = [&](uint32_t n, uint32_t position, uint32_t n_logit, bool fill, const float* given) {
            CAPTURE(position);
            Step s;
            s.tape = &rig.plan.mtp[0];
            s.ids = ids.data() + position + 1;
            s.n_row = n;
            s.place(position);
            s.n_logit = n_logit;
            s.fill_only = fill;
            s.first_key = p0;
            s.hidden = given;
            s.hidden_from = position - p0;
            const std::vector<float> want = rig.run(*cpu, s), got = rig.run(*gpu, s);
            if (n_logit != 0) CHECK(error_of(got, want) < 2e-3);
            if (!fill) CHECK(error_of(rig.rows(*gpu, s.tape->hidden, n), rig.rows(*cpu, s.tape->hidden, n)) < 2e-3);
        };
        mtp(30, p0, 0, true, nullptr);
        mtp(20, p0 + 30, 1, false, nullptr);
        mtp(4, p0 + 50, 4, false, nullptr);
        const std::vector<float> hidden = rig.rows(*cpu, rig.plan.trunk.hidden, 1);
        mtp(1, p0 + 54, 1, false, hidden.data());
    }
}

/// Nine rows of a step and a prompt after it, on both.
void check_step_and_prompt(const Rig& rig) {
    auto gpu = rig.context(), cpu = rig.context(*rig.cpu);
    const std::vector<Token> ids = tiny_ids(50, 3);
    for (const auto& [at, n] : {std::pair<uint32_t, uint32_t>(0, 9), {9, 40}}) {
        const bool step = n == 9;
        const std::vector<float> want = rig.run(*cpu, part(ids, at, n), at, step, 9),
                                 got = rig.run(*gpu, part(ids, at, n), at, step, 9);
        CHECK(error_of(got, want) < 3e-3);
        if (!step) break;
        gpu->commit(n);
        cpu->commit(n);
    }
}

TEST_CASE("a shared expert whose width fills no tile gives the CPU's rows in a prompt after a step") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    TinyOptions tiny = tiny_of(false);
    tiny.family = Family::qwen35moe;
    tiny.d_ff_shared = 104;
    check_step_and_prompt(Rig(tiny));
}

TEST_CASE("rotation factors small enough for more than a turn a position give the CPU's rows") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    TinyOptions tiny = narrow_of(false);
    tiny.family = Family::step35;
    std::vector<std::byte> bytes = tiny_model(tiny);
    Gguf file;
    REQUIRE(Gguf::parse(bytes).get(file).ok());
    const float factor = 0.1f;  // 1.6 turns of the first pair
    std::memcpy(bytes.data() + (file.tensor("rope_freqs.weight")->data - bytes.data()), &factor, sizeof factor);
    check_step_and_prompt(Rig(Span<const std::byte>(bytes)));
}

TEST_CASE("a model loaded on the GPU has the same bits in every rounding mode of the host") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    TinyOptions tiny = narrow_of(false);
    tiny.family = Family::step35;
    const std::vector<std::byte> bytes = tiny_model(tiny);
    const std::vector<Token> ids = tiny_ids(30, 4);
    std::vector<float> want;
    test::each_rounding([&](const std::string& mode) {
        CAPTURE(mode);
        const Rig rig{Span<const std::byte>(bytes)};
        auto gpu = rig.context();
        const std::vector<float> got = rig.run(*gpu, ids, 0, false, 1);
        if (want.empty()) want = got;
        CHECK(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) == 0);
    });
}

TEST_CASE("back-end equivalence: every weight type gives the CPU's logits") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    const std::vector<Token> ids = tiny_ids(30, 4);
    for (Type type :
         {Type::q4_k, Type::q5_k, Type::q6_k, Type::q8_0, Type::q4_0, Type::q5_0, Type::q4_1, Type::bf16, Type::f32}) {
        if (!deep() && (type == Type::q5_0 || type == Type::q4_1)) continue;  // unit.vulkan_matvec runs their kernels
        const std::string name = type_info(type).name;
        CAPTURE(name);
        Rig rig(tiny_of(false, type));
        auto gpu = rig.context(), cpu = rig.context(*rig.cpu);
        CHECK(error_of(rig.run(*gpu, part(ids, 0, 20), 0, false, 1), rig.run(*cpu, part(ids, 0, 20), 0, false, 1)) <
              4e-3);
        CHECK(error_of(rig.run(*gpu, part(ids, 20, 1), 20, true, 1), rig.run(*cpu, part(ids, 20, 1), 20, true, 1)) <
              4e-3);
    }
}

TEST_CASE("row invariance on the GPU: a row's logits are the same bits alone and among nine") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    for (bool fast : {true, false}) {
        CAPTURE(fast);
        Rig rig(tiny_of(fast));
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
        for (uint32_t n : {1u, 2u, 4u, 7u, 9u}) {
            if (!deep() && (n == 2 || n == 7)) continue;  // other kernels, which unit.vulkan_matvec compares
            CAPTURE(n);
            const std::vector<float> many = rig.run(*among, part(ids, 23, n), 23, true, n);
            among->commit(0);
            CHECK(same_bits(many,
                            std::vector<float>(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(many.size()))));
        }
    }
}

TEST_CASE("the prompt of a small model gives the bits of single steps") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    for (bool fast : {true, false}) {
        CAPTURE(fast);
        Rig rig(narrow_of(fast));
        const std::vector<Token> ids = tiny_ids(50, 3);
        auto stepped = rig.context(), prompted = rig.context();
        const uint64_t before = shared_gpu()->small_bytes;
        shared_gpu()->small_bytes = UINT64_MAX;
        std::vector<float> want, hidden;
        for (uint32_t i = 0; i < 43; ++i) {
            want = rig.run(*stepped, part(ids, i, 1), i, true, 1);
            stepped->commit(1);
            const std::vector<float> row = rig.rows(*stepped, rig.plan.trunk.hidden, 1);
            hidden.insert(hidden.end(), row.begin(), row.end());
        }
        CHECK(error_of(rig.run(*prompted, part(ids, 0, 43), 0, false, 1), want) <
              1e-5);  // a head of its own norms first
        CHECK(same_bits(rig.rows(*prompted, rig.plan.trunk.hidden, 43), hidden));
        CHECK(same_bits(rig.run(*prompted, part(ids, 43, 4), 43, true, 4),
                        rig.run(*stepped, part(ids, 43, 4), 43, true, 4)));
        shared_gpu()->small_bytes = before;
    }
}

TEST_CASE("commit equivalence on the GPU: run n, commit k leaves the state of run k, commit k") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    for (bool fast : {true, false}) {
        CAPTURE(fast);
        Rig rig(narrow_of(fast));
        const std::vector<Token> ids = tiny_ids(64, 5);
        Random random(11);
        auto busy = rig.context(), plain = rig.context();
        for (Context* l : {busy.get(), plain.get()}) rig.run(*l, part(ids, 0, 5), 0, false, 0);
        uint32_t at = 5;
        size_t n_rejected = 0;
        for (int cycle = 0; cycle < 10 && at + kMaxTentative < 44; ++cycle) {
            const uint32_t sizes[] = {1, 4, 9}, n = sizes[random.below(3)], k = 1 + random.below(n);
            // Rows that will be rejected carry other tokens: what is not committed must leave no trace.
            std::vector<Token> rows(ids.begin() + at, ids.begin() + at + k);
            while (rows.size() < n) rows.push_back(static_cast<Token>(random.below(200)));
            const std::vector<float> a = rig.run(*busy, rows, at, true, n);
            busy->commit(k);
            std::vector<float> b;
            for (uint32_t i = 0; i < k; ++i) {
                const std::vector<float> row = rig.run(*plain, part(ids, at + i, 1), at + i, true, 1);
                plain->commit(1);
                b.insert(b.end(), row.begin(), row.end());
            }
            CHECK(same_bits(std::vector<float>(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(b.size())), b));
            at += k;
            n_rejected += n - k;
        }
        CHECK(n_rejected > 0);
        // The state itself: a committed step, then bytes. Ring places that only rejected rows wrote are overwritten.
        const std::vector<float> a = rig.run(*busy, part(ids, at, 20), at, false, 1),
                                 b = rig.run(*plain, part(ids, at, 20), at, false, 1);
        CHECK(same_bits(a, b));
        std::vector<std::byte> x, y;
        REQUIRE(busy->save(at + 20, &x).ok());
        REQUIRE(plain->save(at + 20, &y).ok());
        CHECK(x == y);
    }
}

TEST_CASE(
    "chunk invariance on the GPU: a prompt in any pieces gives the same state within rounding, a replay the same "
    "bits") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    Rig rig(narrow_of(true));
    const std::vector<Token> ids = tiny_ids(150, 7);
    std::vector<float> first;
    for (const std::vector<uint32_t>& pieces :
         {std::vector<uint32_t>{64, 64, 22}, {64, 64, 22}, {1, 4, 58, 64, 23}, {9, 64, 13, 64}}) {
        auto context = rig.context();
        uint32_t at = 0;
        std::vector<float> got;
        for (uint32_t n : pieces) {
            got = rig.run(*context, part(ids, at, n), at, false, 1);
            at += n;
        }
        REQUIRE(at == 150);
        if (first.empty()) {
            first = got;
            context->reset();  // the same recordings again
            for (uint32_t n : {0u, 64u, 128u}) got = rig.run(*context, part(ids, n, n == 128 ? 22 : 64), n, false, 1);
            CHECK(same_bits(got, first));
        } else if (pieces.size() == 3) {
            CHECK(same_bits(got, first));
        } else {
            CHECK(error_of(got, first) < 5e-3);
        }
    }
}

TEST_CASE("restore equivalence on the GPU: a restored context continues with the same bits") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    for (bool fast : {true, false}) {
        CAPTURE(fast);
        Rig rig(narrow_of(fast));
        const std::vector<Token> ids = tiny_ids(60, 9);
        auto one = rig.context(), two = rig.context();
        rig.run(*one, part(ids, 0, 30), 0, false, 0);
        rig.run(*one, part(ids, 30, 4), 30, true, 0);
        one->commit(2);  // two rows wait to be folded in
        std::vector<std::byte> state;
        REQUIRE(one->save(32, &state).ok());
        rig.run(*two, part(ids, 40, 9), 0, false, 0);  // another timeline before
        Status s = two->restore(32, state);
        REQUIRE_MESSAGE(s.ok(), s.message());
        CHECK(same_bits(rig.run(*one, part(ids, 32, 4), 32, true, 4), rig.run(*two, part(ids, 32, 4), 32, true, 4)));
        CHECK(two->restore(31, state).code == Code::bad_argument);
    }
}

TEST_CASE("lossless drafting on the GPU: the device loop gives the text of single steps at every depth") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    for (bool fast : {true, false}) {
        CAPTURE(fast);
        TinyOptions tiny = narrow_of(fast);
        tiny.scale = 4;  // decided enough for rounding not to matter
        Rig rig(tiny);
        std::vector<Token> prompt = tiny_ids(25, 13);
        Sampling hot;
        hot.temperature = 0.8f;
        hot.top_k = 20;
        hot.top_p = 0.9f;
        hot.seed = 5;
        hot.presence_penalty = 0.4f;
        for (const Sampling& sampling : {Sampling(), hot}) {
            if (!deep() && fast && sampling.temperature == 0) continue;  // the other heads cover greedy sampling
            CAPTURE(sampling.temperature);
            auto context = rig.context();
            const std::vector<Token> want = stepped(rig, *context, prompt, 16, sampling);
            uint32_t n_accept = 0;
            for (uint32_t n_draft : {0u, 1u, 3u})
                for (uint32_t ahead : {1u, 4u}) {
                    if (!deep() && (n_draft == 0) == (ahead == 4)) continue;
                    CAPTURE(n_draft);
                    CAPTURE(ahead);
                    context->reset();
                    CHECK(device_loop(rig, *context, prompt, 16, n_draft, ahead, sampling, &n_accept) == want);
                }
        }
        // A vocabulary for drafts changes the guesses, never the text; and the context can be stepped on.
        auto context = rig.context();
        const std::vector<Token> want = stepped(rig, *context, prompt, 24);
        std::vector<Token> chosen;
        for (Token i = 0; i < 288; i += 3) chosen.push_back(i);
        context->reset();
        const uint64_t before = context->memory_bytes();
        Status s = context->draft_head(chosen);
        REQUIRE_MESSAGE(s.ok(), s.message());
        CHECK(context->memory_bytes() > before);
        const std::vector<Token> got = device_loop(rig, *context, prompt, 20, 3, 2);
        CHECK(got == std::vector<Token>(want.begin(), want.begin() + 20));
        std::vector<Token> all = prompt;
        all.insert(all.end(), got.begin(), got.end());
        const std::vector<float> next =
            rig.run(*context, part(all, all.size() - 1, 1), static_cast<uint32_t>(all.size() - 1), true, 1);
        CHECK(static_cast<Token>(arg_max(next.data(), next.size())) == want[20]);
        REQUIRE(context->draft_head({}).ok());
        CHECK(context->memory_bytes() == before);
    }
}

TEST_CASE("drafts of a trained block are accepted and do not change the text") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    File file;
    Status s = File::open((repo_dir() + "/examples/models/auspex-demo.gguf").c_str()).get(file);
    REQUIRE_MESSAGE(s.ok(), s.message());
    Rig rig(file.bytes());
    std::vector<Token> prompt;
    for (Token t = 0; t < 12; ++t) prompt.push_back(300 + 7 * t);
    auto context = rig.context(*rig.gpu, 256, 64);
    const size_t n = deep() ? 32 : 20;
    const std::vector<Token> want = stepped(rig, *context, prompt, n);
    for (uint32_t n_draft : {2u, 3u}) {
        if (!deep() && n_draft == 2) continue;
        CAPTURE(n_draft);
        uint32_t n_accept = 0;
        context->reset();
        CHECK(device_loop(rig, *context, prompt, n, n_draft, 2, {}, &n_accept) == want);
        CHECK(n_accept >= n / 4);
    }
}

TEST_CASE("the device loop ends at a stop token and rejects contradictory options") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    Rig rig(narrow_of(false));
    std::vector<Token> prompt = tiny_ids(20, 17);
    auto context = rig.context();
    const std::vector<Token> want = stepped(rig, *context, prompt, 8);
    context->reset();
    rig.run(*context, part(prompt, 0, 19), 0, false, 0);
    LoopStart d;
    DeviceLoop& loop = *context->device_loop();
    d.history = prompt;
    d.limit = 400;
    const Token stop = want[4];
    d.stop = Span<const Token>(&stop, 1);
    CHECK(loop.queue(0).code == Code::bad_argument);
    REQUIRE(loop.start(d).ok());
    CHECK(loop.queue(kMaxTentative).code == Code::bad_argument);  // more rows than a tentative step has
    for (uint32_t i = 0; i < kMaxQueued; ++i) REQUIRE(loop.queue(0).ok());
    CHECK(loop.queue(0).code == Code::bad_argument);
    CHECK(context->run(rig.step(part(prompt, 0, 1), 20, true, 1)).code == Code::bad_argument);
    std::vector<Token> out;
    size_t n_done = 0;
    for (uint32_t i = 0; i < kMaxQueued; ++i) {
        auto c = loop.wait();
        REQUIRE(c.ok());
        out.insert(out.end(), c.value().tokens.begin(), c.value().tokens.end());
        n_done += c.value().done;
    }
    size_t n = 0;
    while (want[n] != stop) ++n;
    CHECK(out == std::vector<Token>(want.begin(), want.begin() + static_cast<std::ptrdiff_t>(n) + 1));
    CHECK(n_done == kMaxQueued - n);
    CHECK(loop.wait().status().code == Code::bad_argument);
    CHECK(loop.queue(0).code == Code::bad_argument);
    d.limit = 20;
    CHECK(loop.start(d).code == Code::bad_argument);
    d.limit = 400;
    d.history = {};
    CHECK(loop.start(d).code == Code::bad_argument);
}

TEST_CASE("operations that Vulkan cannot run are rejected by name") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    Rig rig(narrow_of(false));
    ContextOptions o;
    o.n_context = 256;
    o.n_ubatch = 32;
    o.kv.resize(rig.plan.slots.size());
    for (KvOptions& k : o.kv) k.k = k.v = Type::f32;
    Status s = rig.gpu->open(o).status();
    CHECK(s.code == Code::unsupported);
    CHECK(s.text.find("F32") != std::string::npos);
    auto context = rig.context();
    const std::vector<Token> ids = tiny_ids(600, 1);
    CHECK(context->run(rig.step(part(ids, 0, 65), 0, false, 0)).code == Code::bad_argument);
    CHECK(context->run(rig.step(part(ids, 0, 10), 0, true, 0)).code == Code::bad_argument);
    CHECK(context->run(rig.step(part(ids, 0, 20), 500, false, 0)).code == Code::context_full);
    std::shared_ptr<LoadedModel> program;
    size_t n_call = 0;
    s = vk::make_backend(shared_gpu())
            ->load(rig.plan, rig.weights, [&](const char*, float) { return ++n_call < 3; })
            .get(program);
    CHECK(s.code == Code::cancelled);
}

TEST_CASE("a device with a small binding limit keeps the weights in slices") {
    if (!shared_gpu()) return;
    DeviceOptions options;
    options.kind = Kind::vulkan;
    vk::OpenDetail detail;
    detail.edit_traits = [](vk::DeviceTraits* t) { t->max_storage_range = 280 * 1024; };
    vk::OpenDeviceRef narrow;
    Status s = vk::open_device(options, detail).get(narrow);
    REQUIRE_MESSAGE(s.ok(), s.message());
    Rig rig(tiny_of(false, Type::f32));
    std::shared_ptr<LoadedModel> program;
    REQUIRE(vk::make_backend(narrow)->load(rig.plan, rig.weights, {}).get(program).ok());
    ContextOptions o;
    o.n_context = 256;
    o.n_ubatch = 16;
    std::unique_ptr<Context> context, whole = rig.context(*rig.gpu, 256, 16);
    s = program->open(o).get(context);
    REQUIRE_MESSAGE(s.ok(), s.message());
    const std::vector<Token> ids = tiny_ids(30, 2);
    for (uint32_t i = 0; i < 3; ++i) {
        CHECK(same_bits(rig.run(*context, part(ids, i, 1), i, true, 1), rig.run(*whole, part(ids, i, 1), i, true, 1)));
        context->commit(1);
        whole->commit(1);
    }
    CHECK(same_bits(rig.run(*context, part(ids, 3, 16), 3, false, 1), rig.run(*whole, part(ids, 3, 16), 3, false, 1)));
}

TEST_CASE("driver failures become a Status, and the process continues") {
    if (!shared_gpu()) return;
    static int fail_submit = 0, fail_memory = 0, fail_pipeline = 0;  // counts down; 0: all is well
    static PFN_vkQueueSubmit real_submit = nullptr;
    static PFN_vkAllocateMemory real_allocate = nullptr;
    static PFN_vkCreateComputePipelines real_create = nullptr;
    DeviceOptions options;
    options.kind = Kind::vulkan;
    vk::OpenDetail detail;
    detail.edit_device = [](VolkDeviceTable* t) {
        real_submit = t->vkQueueSubmit;
        real_allocate = t->vkAllocateMemory;
        real_create = t->vkCreateComputePipelines;
        t->vkQueueSubmit = [](VkQueue q, uint32_t n, const VkSubmitInfo* i, VkFence f) -> VkResult {
            if (fail_submit != 0 && --fail_submit == 0) return VK_ERROR_DEVICE_LOST;
            return real_submit(q, n, i, f);
        };
        t->vkAllocateMemory = [](VkDevice d, const VkMemoryAllocateInfo* i, const VkAllocationCallbacks* a,
                                 VkDeviceMemory* m) -> VkResult {
            if (fail_memory != 0 && --fail_memory == 0) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
            return real_allocate(d, i, a, m);
        };
        t->vkCreateComputePipelines = [](VkDevice d, VkPipelineCache c, uint32_t n,
                                         const VkComputePipelineCreateInfo* i, const VkAllocationCallbacks* a,
                                         VkPipeline* p) -> VkResult {
            if (fail_pipeline != 0) return VK_ERROR_UNKNOWN;
            return real_create(d, c, n, i, a, p);
        };
    };
    Rig rig(narrow_of(false));
    const std::vector<Token> ids = tiny_ids(30, 2);
    auto other = rig.context();  // on another device: it lives on
    auto open = [&](vk::OpenDeviceRef* c, std::shared_ptr<LoadedModel>* p) {
        REQUIRE(vk::open_device(options, detail).get(*c).ok());
        return vk::make_backend(*c)->load(rig.plan, rig.weights, {}).get(*p);
    };
    vk::OpenDeviceRef c;
    std::shared_ptr<LoadedModel> p;
    std::unique_ptr<Context> context;
    REQUIRE(open(&c, &p).ok());
    SUBCASE("no memory for a context") {
        fail_memory = 1;
        CHECK(p->open({256, 16}).status().code == Code::out_of_memory);
        fail_memory = 0;
        CHECK(p->open({256, 16}).ok());
    }
    SUBCASE("no memory for the weights") {
        fail_memory = 1;
        std::shared_ptr<LoadedModel> q;
        CHECK(vk::make_backend(c)->load(rig.plan, rig.weights, {}).get(q).code == Code::out_of_memory);
        fail_memory = 0;
    }
    SUBCASE("a pipeline is refused") {
        REQUIRE(p->open({256, 16}).get(context).ok());
        fail_pipeline = 1;
        const Status s = context->run(rig.step(part(ids, 0, 1), 0, true, 1));
        fail_pipeline = 0;
        CHECK(s.code == Code::unsupported);
    }
    SUBCASE("the device is lost") {
        REQUIRE(p->open({256, 16}).get(context).ok());
        REQUIRE(context->run(rig.step(part(ids, 0, 1), 0, true, 1)).ok());
        context->commit(1);
        fail_submit = 1;
        CHECK(context->run(rig.step(part(ids, 1, 1), 1, true, 1)).code == Code::device_lost);
        fail_submit = 0;
        CHECK(context->run(rig.step(part(ids, 1, 1), 1, true, 1)).code == Code::device_lost);  // and stays so
    }
    context.reset();
    p.reset();
    CHECK(c->gpu->device_bytes.load() == 0);
    CHECK(rig.run(*other, part(ids, 0, 1), 0, true, 1).size() == rig.plan.n_vocab);
}

TEST_CASE("a model runs on a device of the application") {
    if (!shared_gpu()) return;
    DeviceOptions options;
    options.kind = Kind::vulkan;
    vk::GpuRef host;
    REQUIRE(vk::open_gpu(options, {}).get(host).ok());
    VulkanHandles h;
    h.instance = host->instance;
    h.physical_device = host->physical;
    h.device = host->device;
    h.queue = host->queue;
    h.queue_family = host->traits.queue_family;
    h.get_instance_proc_addr = reinterpret_cast<void*>(host->vki.vkGetInstanceProcAddr);
    size_t n_lock = 0, n_unlock = 0;
    h.lock_queue = [&] { ++n_lock; };
    h.unlock_queue = [&] { ++n_unlock; };
    options.borrow = &h;
    {
        vk::OpenDeviceRef c;
        Status s = vk::open_device(options, {}).get(c);
        REQUIRE_MESSAGE(s.ok(), s.message());
        Rig rig(narrow_of(false));
        std::shared_ptr<LoadedModel> p;
        REQUIRE(vk::make_backend(c)->load(rig.plan, rig.weights, {}).get(p).ok());
        auto context = rig.context(*p, 256, 16), own = rig.context(*rig.gpu, 256, 16);
        const std::vector<Token> ids = tiny_ids(10, 2);
        CHECK(same_bits(rig.run(*context, part(ids, 0, 4), 0, true, 4), rig.run(*own, part(ids, 0, 4), 0, true, 4)));
    }
    CHECK(n_lock > 0);
    CHECK(n_lock == n_unlock);
}

TEST_CASE("a draft-only head that one binding cannot see is refused in the same words by plan and create") {
    if (!shared_gpu()) return;
    TinyOptions tiny = smallest();
    tiny.type = Type::f16;
    SessionOptions options;
    options.n_context = 64;
    options.n_ubatch = 16;
    options.draft.source = Draft::mtp;
    options.draft.n_vocab = 280;
    DeviceOptions vulkan;
    vulkan.kind = Kind::vulkan;
    const vk::OpenDeviceRef opened = vk::open_device(vulkan).value();
    Device device = cpu_device();
    device.impl()->machine = vk::make_backend(opened);
    const std::vector<std::byte> bytes = tiny_model(tiny);
    const Model model = load_model(device, bytes);
    for (const MemoryItem& item : Session::plan(model, options).value().items)
        if (item.what == "draft-only head") opened->gpu->traits.max_storage_range = item.bytes / 8 * 7;
    const Status create = Session::create(model, options).status();
    CHECK(create.code == Code::unsupported);
    CHECK_MESSAGE(create.text.find("DraftOptions::n_vocab") != std::string::npos, create.message());
    CHECK(Session::plan(model, options).status().text == create.text);
    options.draft.n_vocab = 100;
    CHECK(Session::create(model, options).ok());
}

TEST_CASE("rotary positions are relative on the GPU, and keys and values are kept by KV row") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    for (const bool fast : {false, true}) {
        CAPTURE(fast);
        Rig rig(narrow_of(fast));
        check_rotary_shift(rig, *rig.context(), *rig.context());
        Step step = rig.step(tiny_ids(1, 1), 0, false, 1);
        step.sequence = 2;
        CHECK(rig.context()->run(step).code == Code::bad_argument);
    }
}

TEST_CASE("a profile measures every kernel of a step") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    Rig rig(narrow_of(true));
    auto context = rig.context(), plain = rig.context();
    const std::vector<Token> ids = tiny_ids(30, 2);
    for (Context* l : {context.get(), plain.get()}) rig.run(*l, part(ids, 0, 20), 0, false, 0);
    if (shared_gpu()->gpu->traits.timestamp_bits == 0) return;
    auto times = context->profiler()->profile(1, 20);
    REQUIRE_MESSAGE(times.ok(), times.status().message());
    double us = 0;
    uint64_t bytes = 0;
    for (const KernelTime& k : times.value()) {
        us += k.us;
        bytes += k.bytes;
    }
    CHECK(us > 0);
    CHECK(bytes > rig.gpu->weight_bytes() / 2);
    // It leaves the timeline as it was.
    CHECK(same_bits(rig.run(*context, part(ids, 20, 1), 20, true, 1), rig.run(*plain, part(ids, 20, 1), 20, true, 1)));
    // A piece of a prompt has kernels of its own. It may have more rows than the next one has, where pieces are too
    // slow.
    const uint64_t before = shared_gpu()->small_bytes;
    shared_gpu()->small_bytes = 0;
    const double max_us = std::exchange(shared_gpu()->max_submit_us, 0.0);
    rig.run(*context, tiny_ids(64, 5), 100, false, 0);
    shared_gpu()->max_submit_us = max_us;
    // Without shuffles, llvmpipe runs at most 32 rows at once, and attention has the same kernel for all.
    const bool general = !shared_gpu()->shuffles;
    const uint32_t n_row = general && shared_gpu()->gpu->traits.short_loops ? 24 : 40;
    times = context->profiler()->profile(n_row, 100);
    REQUIRE_MESSAGE(times.ok(), times.status().message());
    CHECK(std::count_if(times.value().begin(), times.value().end(), [&](const KernelTime& k) {
              return general ? k.name == "attend" : k.name == "attend rows" || k.name == "attend tiles";
          }) == 1);
    shared_gpu()->small_bytes = UINT64_MAX;
    CHECK(context->profiler()->profile(n_row, 100).status().code == Code::bad_argument);
    shared_gpu()->small_bytes = before;
}
#endif  // AUSPEX_NO_VULKAN

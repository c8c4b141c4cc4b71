// Tests of engine/memory_plan: the planned bytes against an allocator that counts.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>

#include "../src/engine/memory_plan.h"
#include "../src/plan/arch.h"
#include "allocations.h"
#include "geometry.h"
#include "session_rig.h"
#include "tiny.h"

using namespace auspex;
using namespace test;

namespace {

struct Counter {
    uint64_t held = 0, peak = 0, calls = 0, limit = UINT64_MAX;
};

Allocator counting(Counter* counter) {
    Allocator a;
    a.user = counter;
    a.alloc = [](void* user, size_t n, size_t) -> void* {
        Counter& c = *static_cast<Counter*>(user);
        if (n > c.limit - std::min(c.held, c.limit)) return nullptr;
        c.held += n;
        c.peak = std::max(c.peak, c.held);
        c.calls += 1;
        char* raw = static_cast<char*>(std::malloc(n + 128));
        char* at = raw + 64 + (64 - reinterpret_cast<uintptr_t>(raw + 64) % 64) % 64;
        std::memcpy(at - sizeof raw, &raw, sizeof raw);
        return at;
    };
    a.free = [](void* user, void* p, size_t n, size_t) {
        static_cast<Counter*>(user)->held -= n;
        char* raw = nullptr;
        std::memcpy(&raw, static_cast<char*>(p) - sizeof raw, sizeof raw);
        std::free(raw);
    };
    return a;
}

uint64_t sum(const MemoryPlan& plan, MemoryPlace place) {
    uint64_t n = 0;
    for (const MemoryItem& i : plan.items)
        if (i.place == place) n += i.bytes;
    return n;
}

uint64_t sum_of(const MemoryPlan& plan, const char* what, int layer = -1) {
    uint64_t n = 0;
    for (const MemoryItem& i : plan.items)
        if (i.what == what && (layer < 0 || i.layer == layer)) n += i.bytes;
    return n;
}

Device open_device(Counter* counter, uint64_t limit = 0, CpuPath path = CpuPath::best) {
    DeviceOptions o;
    o.kind = Kind::cpu;
    o.n_thread = 2;
    o.cpu_path = path;
    o.memory_limit_bytes = static_cast<size_t>(limit);
    if (counter) o.allocator = counting(counter);
    return test::open_device(o);
}

Model load(const Device& device, const std::vector<std::byte>& bytes, bool mtp = true) {
    LoadOptions o;
    o.mtp = mtp;
    Model model;
    Status s = Model::load(device, bytes, o).get(model);
    REQUIRE_MESSAGE(s.ok(), s.message());
    return model;
}

MemoryPlan plan_of(const Model& model, const SessionOptions& o) {
    MemoryPlan plan;
    Status s = Session::plan(model, o).get(plan);
    REQUIRE_MESSAGE(s.ok(), s.message());
    return plan;
}

SessionOptions random_options(Random& random, bool mtp, uint32_t n_type = 5) {
    const KvType types[] = {KvType::f16, KvType::q8_0, KvType::q4_0, KvType::q4_1, KvType::f32};
    SessionOptions o;
    o.n_context = 1 + random.below(5000);
    o.n_ubatch = 1 + random.below(1024);
    o.kv_k = types[random.below(n_type)];
    o.kv_v = types[random.below(n_type)];
    if (random.below(4) != 0)
        o.windows.push_back({kAllLayers, random.below(3) == 0 ? 0 : 1 + random.below(1500), random.below(20)});
    if (random.below(2) != 0) o.windows.push_back({3, 1 + random.below(700), random.below(5)});
    if (random.below(3) == 0) o.windows.push_back({7, 0, 0});
    if (mtp && random.below(2) != 0) {
        o.draft.source = random.below(2) != 0 ? Draft::mtp : Draft::mtp_lookup;
        o.draft.window = random.below(2) != 0 ? 100 : 4096;
        if (random.below(2) != 0) o.draft.n_vocab = 40 + random.below(200);
        if (random.below(3) == 0) o.windows.push_back({kDraftLayers, 1 + random.below(300), random.below(3)});
    }
    return o;
}

/// Bytes that a session allocates.
uint64_t taken(const Model& model, const SessionOptions& o) { return open(model, o).stats().memory_bytes; }

/// The planned bytes for drafting equal what a session allocates in addition, and the draft blocks what a model does.
void check_drafting(const Device& device, const std::vector<std::byte>& bytes, uint32_t n_type) {
    const Model model = load(device, bytes), bare = load(device, bytes, false);
    CHECK(plan_of(bare, {}).draft_weight_bytes == 0);
    Random random(22);
    for (int i = 0; i < 12; ++i) {
        CAPTURE(i);
        SessionOptions o = random_options(random, true, n_type);
        o.draft.source = i % 2 ? Draft::mtp : Draft::mtp_lookup;
        o.draft.depth = i % 3 ? static_cast<int>(kMaxDraft) : -1;
        o.checkpoint_bytes = 0;  // they hold the draft blocks' states, too
        const MemoryPlan plan = plan_of(model, o);
        o.draft.source = Draft::off;
        const MemoryPlan off = plan_of(model, o);
        std::vector<LayerWindow> trunk = plan.windows;  // of the plan without blocks, which knows no windows of theirs
        while (!trunk.empty() && trunk.back().layer >= model.info().n_layer) trunk.pop_back();
        o.windows = trunk;
        const MemoryPlan none = plan_of(bare, o);
        CHECK(off.draft_session_bytes == 0);
        CHECK(plan.draft_weight_bytes == off.draft_weight_bytes);
        CHECK(plan.draft_weight_bytes == plan.weight_bytes + plan.file_bytes - none.weight_bytes - none.file_bytes);
        CHECK(plan.draft_session_bytes == plan.session_bytes - taken(model, o));
        CHECK(plan.draft_session_bytes == plan.session_bytes - taken(bare, o));
    }
    // A budget for keys and values is shared with the draft block; what drafting takes is told beside the same windows.
    SessionOptions o;
    o.n_context = 4096;
    o.kv_budget_bytes = 5u << 18;
    o.draft.source = Draft::mtp;
    const MemoryPlan plan = plan_of(model, o);
    CHECK(!plan.window_rule.empty());
    CHECK(plan.draft_session_bytes > 0);
    CHECK(plan.draft_session_bytes < plan.session_bytes / 2);
}

}  // namespace

TEST_CASE("planned memory equals what the allocator hands out, and nothing is allocated after create()" *
          doctest::test_suite("long")) {
    Random random(20);
    for (int i = 0; i < 20; ++i) {
        CAPTURE(i);
        TinyOptions tiny;
        const detail::Type types[] = {detail::Type::f16, detail::Type::q8_0, detail::Type::q4_k, detail::Type::f32};
        tiny.type = types[random.below(4)];
        tiny.n_layer = 8;
        tiny.mtp = random.below(2) != 0;
        tiny.tied = random.below(2) != 0;
        const std::vector<std::byte> bytes = tiny_qwen35(tiny);
        Counter counter;
        const Device device = open_device(&counter, 0, random.below(4) == 0 ? CpuPath::reference : CpuPath::best);
        const bool load_mtp = random.below(2) != 0;
        SessionOptions o = random_options(random, tiny.mtp && load_mtp);
        {
            Model model = load(device, bytes, load_mtp);
            const uint64_t weights = counter.held;
            const MemoryPlan plan = plan_of(model, o);
            CHECK(counter.held == weights);  // planning takes nothing
            CHECK(plan.weight_bytes == weights);
            uint64_t all = 0;
            for (const MemoryItem& item : plan.items) {
                CHECK(item.bytes > 0);
                CHECK_FALSE(item.what.empty());
                all += item.bytes;
            }
            CHECK(all == plan.total_bytes + plan.file_bytes);
            Session session = open(model, o);
            CHECK(counter.held == sum(plan, MemoryPlace::allocator));
            CHECK(session.stats().memory_bytes == plan.session_bytes);
            const uint64_t calls = counter.calls;
            REQUIRE(session.sync(tiny_ids(std::min<uint32_t>(o.n_context, 40), 1)).ok());
            for (int k = 0; k < 5 && session.history().size() < o.n_context; ++k) REQUIRE(session.next().ok());
            CHECK(counter.calls == calls);
        }
        CHECK(counter.held == 0);
    }
}

TEST_CASE("planning copies no fused tensor, and loading the rows of one matrix at a time, by the allocator") {
    TinyOptions tiny;
    tiny.family = Family::qwen3next;
    tiny.fused = true;
    tiny.type = detail::Type::f32;
    const std::vector<std::byte> bytes = tiny_model(tiny);
    constexpr int64_t kFused = 768 * 256 * 4;  // bytes of an ssm_in
    Counter counter;
    const Device device = open_device(&counter);
    const AllocationCount loading;
    const Model model = load(device, bytes);
    CHECK(loading.bytes() < kFused);  // beside the allocator
    CHECK(counter.peak - counter.held <= kFused);
    const AllocationCount planning;
    const uint64_t calls = counter.calls;
    CHECK(plan_of(model, {}).weight_bytes == counter.held);
    CHECK(planning.bytes() < kFused);
    CHECK(counter.calls == calls);
}

TEST_CASE("score_mtp() takes a second context while it runs, and without memory for it the session goes on") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    Counter counter;
    const Model model = load(open_device(&counter), bytes);
    Session session = open(model);
    const uint64_t held = counter.held, calls = counter.calls;
    const std::vector<Token> ids = tiny_ids(20, 1);
    size_t n_row = 0;
    const auto count = [&](size_t, Span<const float>) { ++n_row; };
    REQUIRE(session.score_mtp(ids, 1, count).ok());
    CHECK(n_row == 19);
    CHECK(counter.calls > calls);
    CHECK(counter.held == held);
    counter.limit = held;
    CHECK(session.score_mtp(ids, 1, count).code == Code::out_of_memory);
    CHECK(counter.held == held);
    sync(session, ids);
    CHECK(more(session, 3).size() >= 3);
}

TEST_CASE("what a longer context takes on the heap is in the plan") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    Counter counter;  // what comes from an allocator is not taken from the heap
    const Model model = load(open_device(&counter), bytes);
    SessionOptions o;
    o.checkpoint_bytes = 0;
    int64_t planned[2], heap[2];
    for (uint32_t i = 0; i < 2; ++i) {
        o.n_context = i == 0 ? 1000 : 101000;
        planned[i] = static_cast<int64_t>(sum(plan_of(model, o), MemoryPlace::host));
        const AllocationCount count;
        const Session session = open(model, o);
        heap[i] = count.bytes();
    }
    CHECK(heap[1] - heap[0] == planned[1] - planned[0]);
}

TEST_CASE("planned memory equals what a session allocates on a Vulkan device") {
    const Device device = gpu_device();
    if (!device) return;
    Random random(21);
    for (bool mtp : {true, false}) {
        TinyOptions tiny;
        tiny.n_layer = 8;
        tiny.mtp = mtp;
        const std::vector<std::byte> bytes = tiny_qwen35(tiny);
        Model model = load(device, bytes);
        for (int i = 0; i < 10; ++i) {
            CAPTURE(i);
            SessionOptions o = random_options(random, mtp, 4);
            o.exact_prompts = i % 2 != 0;
            const MemoryPlan plan = plan_of(model, o);
            uint64_t all = 0;
            for (const MemoryItem& item : plan.items) all += item.bytes;
            CHECK(all == plan.total_bytes + plan.file_bytes);
            Session session = open(model, o);
            CHECK(session.stats().memory_bytes == plan.session_bytes);
        }
    }
}

TEST_CASE(
    "memory_limit_bytes holds for each session on the CPU and for all of them on a GPU, in the plan as in create") {
    const std::vector<std::byte> bytes = tiny_qwen35(TinyOptions());
    std::vector<Kind> kinds = {Kind::cpu};
    if (gpu_device()) kinds.push_back(Kind::vulkan);
    SessionOptions o;
    o.n_context = 8192;
    o.n_ubatch = 64;
    o.checkpoint_bytes = 0;
    SessionOptions small = o;
    small.n_context = 1024;
    for (const Kind kind : kinds) {
        DeviceOptions options;
        options.kind = kind;
        const Model free = load(test::open_device(options), bytes);
        const MemoryPlan roomy = plan_of(free, o);
        options.memory_limit_bytes = static_cast<size_t>(roomy.total_bytes + plan_of(free, small).session_bytes);
        const Model model = load(test::open_device(options), bytes);
        CHECK(plan_of(model, o).limit_bytes == options.memory_limit_bytes);
        const Session first = open(model, o);
        const MemoryPlan plan = plan_of(model, o);
        Session second;
        const Status s = Session::create(model, o).get(second);
        CHECK(plan.fits == s.ok());
        CHECK(plan.fits == (kind == Kind::cpu));
        if (kind == Kind::cpu) continue;
        CHECK(s.code == Code::out_of_memory);
        CHECK_MESSAGE(s.text.find("memory_limit_bytes less what others hold is ") != std::string::npos, s.message());
        CHECK(plan.limit_bytes < roomy.total_bytes);
        for (const MemoryAlternative& a : plan.alternatives) CHECK(a.fits == (a.total_bytes <= plan.limit_bytes));
        CHECK(plan_of(model, small).fits);
        CHECK(Session::create(model, small).get(second).ok());
    }
}

TEST_CASE("on the CPU a model whose weights exceed memory_limit_bytes is not loaded, and the error has both numbers") {
    const std::vector<std::byte> model = tiny_qwen35(TinyOptions());
    std::vector<std::byte> bytes(model.size() + 1);
    std::copy(model.begin(), model.end(), bytes.begin() + 1);
    const Span<const std::byte> odd(bytes.data() + 1, model.size());  // is copied, whatever kernels repack
    SessionOptions o;
    o.n_context = 64;
    o.checkpoint_bytes = 0;
    const uint64_t weights = plan_of(Model::load(open_device(nullptr), odd).value(), o).weight_bytes;
    const Status s = Model::load(open_device(nullptr, weights - 1), odd).status();
    CHECK(s.code == Code::out_of_memory);
    CHECK_MESSAGE(s.text.find("the weights take " + std::to_string(weights) + " bytes") != std::string::npos, s.text);
    CHECK_MESSAGE(s.text.find("memory_limit_bytes is " + std::to_string(weights - 1)) != std::string::npos, s.text);
    CHECK(Model::load(open_device(nullptr, weights), odd).ok());
}

TEST_CASE("on a GPU sessions, forks and score_mtp stay together within memory_limit_bytes, to the byte") {
    if (!gpu_device()) return;
    const std::vector<std::byte> bytes = tiny_qwen35(TinyOptions());
    SessionOptions o;
    o.n_context = 512;
    o.n_ubatch = 64;
    o.checkpoint_bytes = 0;
    DeviceOptions options;
    options.kind = Kind::vulkan;
    const MemoryPlan roomy = plan_of(load(test::open_device(options), bytes), o);
    const auto limited = [&](uint64_t n_byte) {
        options.memory_limit_bytes = static_cast<size_t>(roomy.weight_bytes + n_byte);
        return load(test::open_device(options), bytes);
    };
    {
        const Model model = limited(3 * roomy.session_bytes - 1);
        const std::atomic<uint64_t>& held = model.impl()->device->reserved_bytes;
        CHECK(held == roomy.weight_bytes);
        const Session first = open(model, o);
        Session second = open(model, o);
        CHECK(held == roomy.weight_bytes + first.stats().memory_bytes + second.stats().memory_bytes);
        CHECK(Session::create(model, o).status().code == Code::out_of_memory);
        CHECK_FALSE(plan_of(model, o).fits);
        CHECK(first.fork().status().code == Code::out_of_memory);
        second = Session();
        CHECK(first.fork().ok());
        CHECK(held == roomy.weight_bytes + first.stats().memory_bytes);
    }
    const std::vector<Token> ids = tiny_ids(20, 3);
    for (const bool room : {false, true}) {
        const Model model = limited(roomy.session_bytes * (room ? 4 : 1) + roomy.session_bytes / 2);
        Session session = open(model, o);
        const Status s = session.score_mtp(ids, 1, [](size_t, Span<const float>) {});
        CHECK(s.code == (room ? Code::ok : Code::out_of_memory));
        CHECK((room || s.text.find("memory_limit_bytes is ") != std::string::npos));
        CHECK(model.impl()->device->reserved_bytes == roomy.weight_bytes + session.stats().memory_bytes);
    }
    options.memory_limit_bytes = static_cast<size_t>(roomy.weight_bytes - 1);
    const Status s = Model::load(test::open_device(options), bytes).status();
    CHECK(s.code == Code::out_of_memory);
    CHECK_MESSAGE(s.text.find("the weights take ") != std::string::npos, s.message());
}

TEST_CASE("the memory of drafting is planned to the byte, apart from the draft block's weights") {
    const std::vector<std::byte> bytes = tiny_qwen35([] {
        TinyOptions tiny;
        tiny.n_layer = 8;
        return tiny;
    }());
    check_drafting(open_device(nullptr), bytes, 5);
    if (const Device device = gpu_device()) check_drafting(device, bytes, 4);
}

TEST_CASE("drafting needs less than 2 % of the model's memory at every published size") {
    std::vector<Device> devices = {open_device(nullptr)};
    if (const Device gpu = gpu_device()) devices.push_back(gpu);
    for (const Geometry& g : kPublished) {
        Model::Impl model;
        model.gguf = table_of(g);
        uint64_t n_trunk = 0, n_mtp = 0;
        const std::string block = "blk." + std::to_string(g.n_layer) + ".";
        for (const detail::Tensor& t : model.gguf.tensors())
            (t.name.substr(0, block.size()) == block ? n_mtp : n_trunk) += t.ne[0] * t.ne[1] * t.ne[2];
        if (g.n_trunk != 0) CHECK(n_trunk == g.n_trunk);
        if (g.n_mtp != 0) CHECK(n_mtp == g.n_mtp);
        Status s = detail::make_plan(model.gguf, {}).get(model.plan);
        REQUIRE_MESSAGE(s.ok(), s.message());
        for (const Device& device : devices) {
            model.device = device.impl();
            for (uint32_t n_context : {4096u, 32768u}) {
                SessionOptions o;
                o.n_context = n_context;
                o.draft.source = Draft::mtp;
                o.draft.depth = static_cast<int>(kMaxDraft);
                MemoryPlan plan;
                s = detail::plan_memory(model, o, false).get(plan);
                REQUIRE_MESSAGE(s.ok(), s.message());
                const double share = double(plan.draft_session_bytes) / double(plan.weight_bytes + plan.file_bytes);
                CHECK_MESSAGE(share < 0.02, std::string(g.name) << " on " << device.name() << ", context " << n_context
                                                                << ": " << share);
                MESSAGE(std::string(g.name)
                        << " on " << device.name() << ", context " << n_context << ": " << plan.draft_session_bytes
                        << " bytes, " << 100 * share << " %; the block " << plan.draft_weight_bytes);
            }
        }
    }
}

TEST_CASE("the plan from the file's header equals the plan of the loaded model") {
    const std::string path = repo_dir() + "/examples/models/auspex-demo.gguf";
    Counter counter;
    const Device device = open_device(&counter);
    SessionOptions o;
    o.n_context = 2048;
    o.windows = {{3, 64, 4}};
    MemoryPlan before;
    Status s = Session::plan(device, path.c_str(), o).get(before);
    REQUIRE_MESSAGE(s.ok(), s.message());
    CHECK(counter.calls == 0);
    Model model;
    REQUIRE(Model::load(device, path.c_str()).get(model).ok());
    const MemoryPlan after = plan_of(model, o);
    REQUIRE(before.items.size() == after.items.size());
    for (size_t i = 0; i < after.items.size(); ++i) {
        CHECK(before.items[i].what == after.items[i].what);
        CHECK(before.items[i].bytes == after.items[i].bytes);
    }
    CHECK(print_windows(after.windows).find("3:64+4,7:full") == 0);
    CHECK(Session::plan(device, "/nowhere/model.gguf").status().code == Code::not_found);
}

TEST_CASE("keys and values grow by a fixed size per token, windowed ones do not grow") {
    TinyOptions tiny;
    tiny.n_layer = 8;
    const std::vector<std::byte> bytes = tiny_qwen35(tiny);
    const Model model = load(open_device(nullptr), bytes, false);
    auto kv = [&](uint32_t n_context, std::vector<LayerWindow> windows, KvType type) {
        SessionOptions o;
        o.n_context = n_context;
        o.n_ubatch = 64;
        o.windows = std::move(windows);
        o.kv_k = o.kv_v = type;
        const MemoryPlan plan = plan_of(model, o);
        CHECK(sum_of(plan, "keys") + sum_of(plan, "values") + sum_of(plan, "sinks") > 0);
        return std::make_pair(sum_of(plan, "keys") + sum_of(plan, "values") + sum_of(plan, "sinks"),
                              plan.kv_token_bytes);
    };
    // Two attention layers, two heads of 64: 2 * 2 * 128 values a token.
    const auto a = kv(1024, {}, KvType::f16), b = kv(2048, {}, KvType::f16);
    CHECK(a.second == 2 * 2 * 128 * 2);
    CHECK(b.first - a.first == 1024 * a.second);
    CHECK(kv(2048, {}, KvType::q8_0).first * 32 == b.first / 2 * 34);
    CHECK(kv(2048, {}, KvType::f32).first == 2 * b.first);
    CHECK(kv(2048, {}, KvType::q4_0).first * 32 == b.first / 2 * 18);
    CHECK(kv(2048, {}, KvType::q4_1).first * 32 == b.first / 2 * 20);
    const std::vector<LayerWindow> windowed = {{kAllLayers, 100, 4}};
    CHECK(kv(4096, windowed, KvType::f16) == kv(1 << 20, windowed, KvType::f16));
    CHECK(kv(4096, windowed, KvType::f16).second == 0);
    CHECK(kv(2048, {{3, 100, 0}}, KvType::f16).second == a.second / 2);
}

TEST_CASE("a budget for keys and values is met by the documented rule, or rejected with the minimum") {
    TinyOptions tiny;
    tiny.n_layer = 20;  // five attention layers
    const std::vector<std::byte> bytes = tiny_qwen35(tiny);
    const Model model = load(open_device(nullptr), bytes, false);
    auto choose = [&](uint64_t budget) {
        SessionOptions o;
        o.n_context = 32768;
        o.n_ubatch = 256;
        o.kv_budget_bytes = budget;
        MemoryPlan plan = plan_of(model, o);
        const uint64_t kv = sum_of(plan, "keys") + sum_of(plan, "values") + sum_of(plan, "sinks");
        CHECK(kv <= budget);
        CHECK(plan.window_rule.find(std::to_string(kv)) != std::string::npos);
        return print_windows(plan.windows);
    };
    const uint64_t full = uint64_t{32768} * 512 * 5;  // 256 values of f16 a token and layer
    CHECK(choose(full) == "3:full,7:full,11:full,15:full,19:full");
    CHECK(choose(full - 1) == "3:16384+4,7:16384+4,11:16384+4,15:full,19:full");
    CHECK(choose(full * 45 / 100) == "3:2048+4,7:2048+4,11:2048+4,15:full,19:full");
    CHECK(choose(full * 39 / 100) == "3:4096+4,7:4096+4,11:4096+4,15:4096+4,19:full");
    CHECK(choose(full / 10) == "3:2048+4,7:2048+4,11:2048+4,15:2048+4,19:2048+4");
    SessionOptions o;
    o.n_context = 32768;
    o.n_ubatch = 256;
    o.kv_k = o.kv_v = KvType::q8_0;  // four rows of 136 bytes are no whole lines of a cache
    o.kv_budget_bytes = full / 2;
    for (int i = 0; i < 3; ++i) {
        const MemoryPlan plan = plan_of(model, o);
        const uint64_t kv = sum_of(plan, "keys") + sum_of(plan, "values") + sum_of(plan, "sinks");
        CHECK(sum_of(plan, "sinks") > 0);
        CHECK(kv <= o.kv_budget_bytes);
        CHECK(plan.window_rule.find("take " + std::to_string(kv)) != std::string::npos);
        o.kv_budget_bytes = kv - 1;
    }
    o.kv_k = o.kv_v = KvType::f16;
    o.kv_budget_bytes = 1000;
    const Status s = Session::create(model, o).status();
    CHECK(s.code == Code::bad_argument);
    CHECK(s.text.find("at least") != std::string::npos);
}

TEST_CASE("the windows that a budget chooses do not depend on drafting, and drafting stays within the budget") {
    TinyOptions tiny;
    tiny.n_layer = 20;
    const std::vector<std::byte> bytes = tiny_qwen35(tiny);
    const Model model = load(open_device(nullptr), bytes, true);
    SessionOptions o;
    o.n_context = 32768;
    o.n_ubatch = 256;
    const uint64_t full = uint64_t{32768} * 512 * 5;
    for (const uint64_t budget : {2 * full, full, full * 45 / 100, full * 39 / 100, full / 10}) {
        o.kv_budget_bytes = budget;
        std::vector<std::string> trunks;
        for (const Draft source : {Draft::off, Draft::lookup, Draft::mtp, Draft::best})
            for (const uint32_t window : {4096u, 64u, 20000u, 0u}) {
                o.draft.source = source;
                o.draft.window = window;
                const MemoryPlan plan = plan_of(model, o);
                const uint64_t kv = sum_of(plan, "keys") + sum_of(plan, "values") + sum_of(plan, "sinks");
                CHECK(kv <= budget);
                CHECK(plan.window_rule.find("take " + std::to_string(kv)) != std::string::npos);
                std::vector<LayerWindow> trunk = plan.windows;
                while (trunk.back().layer >= tiny.n_layer) trunk.pop_back();
                trunks.push_back(print_windows(trunk));
                CHECK(trunks.back() == trunks.front());
            }
        if (budget == full) CHECK(trunks.front() == "3:16384+4,7:16384+4,11:16384+4,15:full,19:full");
    }
    o.n_context = 4096;
    o.kv_budget_bytes = uint64_t{4096} * 512 * 5;
    o.checkpoint_bytes = 0;
    o.draft = {};
    Session plain = open(model, o);
    o.draft.source = Draft::mtp;
    o.draft.window = 0;
    Session drafting = open(model, o);
    CHECK(print_windows(plain.stats().windows) + ",20:2048+4" == print_windows(drafting.stats().windows));
    CHECK(drafting.stats().memory_bytes == plan_of(model, o).session_bytes);
    REQUIRE(plain.sync(tiny_ids(70, 3)).ok());
    CHECK(drafting.restore(plain.save().value()).ok());
}

TEST_CASE("what does not fit is rejected with alternatives, and every alternative that claims to fit does") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    SessionOptions o;
    o.n_context = 32768;
    o.n_ubatch = 512;
    o.checkpoint_bytes = 0;
    MemoryPlan open_plan = plan_of(load(open_device(nullptr), bytes), o);
    CHECK(open_plan.fits);
    CHECK(open_plan.alternatives.empty());
    size_t n_fit = 0, n_not = 0;
    for (uint64_t percent : {99u, 70u, 50u, 35u}) {
        const uint64_t limit = open_plan.total_bytes * percent / 100;
        const Model model = load(open_device(nullptr, limit), bytes);
        const MemoryPlan plan = plan_of(model, o);
        CHECK_FALSE(plan.fits);
        REQUIRE_FALSE(plan.alternatives.empty());
        const Status s = Session::create(model, o).status();
        CHECK(s.code == Code::out_of_memory);
        for (const MemoryAlternative& c : plan.alternatives) {
            CHECK(c.total_bytes < plan.total_bytes);
            CHECK(c.fits == (c.total_bytes <= limit));
            CHECK(s.text.find(c.what) != std::string::npos);
            CHECK(s.text.find(std::to_string(c.total_bytes)) != std::string::npos);
            ++(c.fits ? n_fit : n_not);
        }
        // The last rung is the shorter context alone: taken, it works and takes what was said.
        const MemoryAlternative& last = plan.alternatives.back();
        REQUIRE(last.what.find("a context of ") == 0);
        if (!last.fits) continue;
        SessionOptions less = o;
        less.n_context = static_cast<uint32_t>(std::atoi(last.what.c_str() + 13));
        CHECK(plan_of(model, less).total_bytes == last.total_bytes);
        CHECK(Session::create(model, less).ok());
    }
    CHECK(n_fit > 0);
    CHECK(n_not > 0);
    // The first rung, taken: q8_0.
    const Model model = load(open_device(nullptr, open_plan.total_bytes - 1), bytes);
    const MemoryPlan plan = plan_of(model, o);
    CHECK(plan.alternatives[0].what == "keys and values in q8_0");
    SessionOptions q8 = o;
    q8.kv_k = q8.kv_v = KvType::q8_0;
    CHECK(plan_of(model, q8).total_bytes == plan.alternatives[0].total_bytes);
    CHECK(Session::create(model, q8).ok());
    // Checkpoints are given up before anything that changes the text.
    o.checkpoint_bytes = kDefaultCheckpoints;
    CHECK(plan_of(model, o).alternatives[0].what == "no checkpoints");
    CHECK(plan_of(model, o).alternatives[0].total_bytes == plan.total_bytes);
}

TEST_CASE("each alternative takes less than the one before, apart from the shorter context") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    SessionOptions o;
    o.n_context = 1200;
    o.n_ubatch = 1024;  // a window of 1024 rows is then as long as the context, and has sinks beside it
    o.checkpoint_bytes = 0;
    const uint64_t needed = plan_of(load(open_device(nullptr), bytes), o).total_bytes;
    const std::vector<MemoryAlternative> all = plan_of(load(open_device(nullptr, needed - 1), bytes), o).alternatives;
    REQUIRE(all.size() > 3);
    for (size_t i = 1; i + 1 < all.size(); ++i) CHECK_MESSAGE(all[i].total_bytes < all[i - 1].total_bytes, all[i].what);
    CHECK(all.back().what.find("a context of ") == 0);
}

TEST_CASE("on a GPU no alternative gives up checkpoints, and a shortage is told in the bytes that the limit counts") {
    if (!gpu_device()) return;
    const std::vector<std::byte> bytes = tiny_qwen35();
    DeviceOptions options;
    options.kind = Kind::vulkan;
    SessionOptions o;
    o.n_context = 4096;
    o.n_ubatch = 128;
    const MemoryPlan roomy = plan_of(load(test::open_device(options), bytes), o);
    REQUIRE(roomy.checkpoint_bytes > 0);
    CHECK(roomy.pinned_bytes == roomy.checkpoint_bytes);
    const uint64_t counted = roomy.total_bytes - roomy.pinned_bytes;
    options.memory_limit_bytes = static_cast<size_t>(counted - 1);
    const Model model = load(test::open_device(options), bytes);
    const MemoryPlan plan = plan_of(model, o);
    REQUIRE(plan.alternatives.size() > 3);
    CHECK(plan.alternatives[0].what == "keys and values in q8_0");
    CHECK(plan.alternatives[0].fits);
    for (const MemoryAlternative& a : plan.alternatives) CHECK(a.what.find("checkpoints") == std::string::npos);
    const Status s = Session::create(model, o).status();
    CHECK(s.code == Code::out_of_memory);
    const std::string told = "the model (" + std::to_string(roomy.weight_bytes) + " bytes) and this session (" +
                             std::to_string(roomy.session_bytes - roomy.checkpoint_bytes) + ") take " +
                             std::to_string(counted) + " bytes (";
    CHECK_MESSAGE(s.text.find(told) == 0, s.text);
    CHECK_MESSAGE(s.text.find("), beside " + std::to_string(roomy.pinned_bytes) +
                              " bytes of the host's memory that the limit does not count; memory_limit_bytes is " +
                              std::to_string(counted - 1) + "; these options") != std::string::npos,
                  s.text);
    SessionOptions q8 = o;
    q8.kv_k = q8.kv_v = KvType::q8_0;
    CHECK(Session::create(model, q8).ok());  // with its checkpoints
}

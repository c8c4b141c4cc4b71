// Keys and values on the Vulkan machine: windows, sinks, formats, and the memory they take.
#include "vulkan_model.h"

#ifndef AUSPEX_NO_VULKAN
#include <cmath>

#include "../src/machine/vulkan/buffers.h"
#include "../src/machine/vulkan/probe.h"
#include "../src/machine/vulkan/tune_attend.h"

using namespace test_vulkan_model;

namespace test_vulkan_kv {

struct Formats {
    bool fast;  ///< heads of 256, else of 64
    Type k, v;
    double bound;  ///< of logits: a rounding that differs makes another code, and those are coarse
};
const Formats kFormats[] = {
    {true, Type::f16, Type::f16, 3e-3}, {true, Type::q8_0, Type::q4_0, 3e-2}, {false, Type::q4_1, Type::q8_0, 3e-2}};

template <class F>
void each_format(F check) {
    for (const Formats& f : kFormats) {
        const std::string name =
            std::string(f.fast ? "heads of 256, " : "heads of 64, ") + type_info(f.k).name + " " + type_info(f.v).name;
        CAPTURE(name);
        Rig rig(narrow_of(f.fast));
        check(rig, f);
    }
}

uint64_t sum_of(const std::vector<MemoryItem>& items, const char* what = "") {
    uint64_t n = 0;
    for (const MemoryItem& i : items)
        if (i.what.find(what) == 0) n += i.bytes;
    return n;
}

}  // namespace test_vulkan_kv

using namespace test_vulkan_kv;

TEST_CASE("back-end equivalence: the CPU's rows in every KV format, window and chunking") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    struct Window {
        uint32_t rows, sinks;
    };
    each_format([](Rig& rig, const Formats& f) {
        for (const Window& w : {Window{1, 0}, {9, 1}, {30, 4}}) {
            if (f.k == Type::f16 && w.rows != 30) continue;
            CAPTURE(w.rows);
            const std::vector<Token> ids = tiny_ids(80, 21);
            const KvOptions kv = window(w.rows, w.sinks, f.k, f.v);
            auto gpu = rig.context(*rig.gpu, 512, 64, kv), cpu = rig.context(*rig.cpu, 512, 64, kv);
            uint32_t at = 0;
            double worst = 0;
            for (uint32_t n : {27u, 3u, 21u}) {
                worst = std::fmax(worst, error_of(rig.run(*gpu, part(ids, at, n), at, false, 1),
                                                  rig.run(*cpu, part(ids, at, n), at, false, 1)));
                at += n;
            }
            worst = std::fmax(worst, error_of(rig.run(*gpu, part(ids, at, 9), at, true, 9),
                                              rig.run(*cpu, part(ids, at, 9), at, true, 9)));
            for (Context* l : {gpu.get(), cpu.get()}) l->commit(5);
            at += 5;
            worst = std::fmax(worst, error_of(rig.run(*gpu, part(ids, at, 1), at, true, 1),
                                              rig.run(*cpu, part(ids, at, 1), at, true, 1)));
            CHECK(worst < f.bound);
            // The draft block's own cache, fed the same hidden row.
            const std::vector<float> hidden = rig.rows(*cpu, rig.plan.trunk.hidden, 1);
            std::vector<float> many;
            for (uint32_t i = 0; i < 8; ++i) many.insert(many.end(), hidden.begin(), hidden.end());
            Step s;
            s.tape = &rig.plan.mtp[0];
            s.ids = ids.data();
            s.hidden = many.data();
            s.n_row = 8;
            s.fill_only = true;
            for (Context* l : {gpu.get(), cpu.get()}) REQUIRE(l->run(s).ok());
            s.ids += 8;
            s.place(8);
            s.n_row = s.n_logit = 4;
            s.fill_only = false;
            CHECK(error_of(rig.run(*gpu, s), rig.run(*cpu, s)) < f.bound);
        }
    });
}

TEST_CASE("back-end equivalence: attention on matrix units of any layout gives the CPU's rows") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    vk::OpenDevice& device = *shared_gpu();
    const vk::AttendKernel other = vk::choose_attend_kernel(device.gpu->traits, device.gemm_matrix, false);
    if (other != vk::AttendKernel::shared) return test::skip("needs a device with matrix units of 16x16x16 halves");
    const vk::AttendKernel own = std::exchange(device.attend, other);
    const uint64_t small_bytes = std::exchange(device.small_bytes, 0u);
    each_format([](Rig& rig, const Formats& f) {
        if (!f.fast) return;  // attend_any
        const std::vector<Token> ids = tiny_ids(80, 21);
        const KvOptions kv = window(30, 4, f.k, f.v);
        auto gpu = rig.context(*rig.gpu, 512, 64, kv), cpu = rig.context(*rig.cpu, 512, 64, kv);
        uint32_t at = 0;
        for (uint32_t n : {27u, 40u, 13u}) {
            CHECK(error_of(rig.run(*gpu, part(ids, at, n), at, false, 1),
                           rig.run(*cpu, part(ids, at, n), at, false, 1)) < f.bound);
            at += n;
        }
    });
    device.attend = own;
    device.small_bytes = small_bytes;
}

TEST_CASE("row invariance and commit equivalence hold on the GPU in every KV format and in a sliding window") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    each_format([](Rig& rig, const Formats& f) {
        const std::vector<Token> ids = tiny_ids(90, 4);
        for (uint32_t w : {0u, 9u}) {
            if (w == 0 && f.k == Type::f16) continue;  // tests/test_vulkan_model.cpp
            CAPTURE(w);
            const KvOptions kv = window(w, w == 0 ? 0 : 4, f.k, f.v);
            auto busy = rig.context(*rig.gpu, 512, 64, kv), plain = rig.context(*rig.gpu, 512, 64, kv);
            for (Context* l : {busy.get(), plain.get()}) rig.text(*l, part(ids, 0, 20), 64, 0);
            Random random(w);
            uint32_t at = 20;
            while (at + kMaxTentative < 40) {
                const uint32_t sizes[] = {1, 2, 4, 9}, n = sizes[random.below(4)], k = 1 + random.below(n);
                std::vector<Token> rows(ids.begin() + at, ids.begin() + at + k);
                while (rows.size() < n) rows.push_back(static_cast<Token>(random.below(200)));
                std::vector<float> a = rig.run(*busy, rows, at, true, n), b;
                busy->commit(k);
                a.resize(a.size() / n * k);
                for (uint32_t i = 0; i < k; ++i) {
                    const std::vector<float> row = rig.run(*plain, part(ids, at + i, 1), at + i, true, 1);
                    plain->commit(1);
                    b.insert(b.end(), row.begin(), row.end());
                }
                CHECK(same_bits(a, b));
                at += k;
            }
            // Over what rejected rows wrote, the places of the convolution's ring among it; then the state as bytes.
            CHECK(same_bits(rig.run(*busy, part(ids, at, 12), at, false, 1),
                            rig.run(*plain, part(ids, at, 12), at, false, 1)));
            at += 12;
            for (int i = 0; i < 2; ++i, at += 9) {
                CHECK(same_bits(rig.run(*busy, part(ids, at, 9), at, true, 9),
                                rig.run(*plain, part(ids, at, 9), at, true, 9)));
                for (Context* l : {busy.get(), plain.get()}) l->commit(9);
            }
            const std::vector<std::byte> state = rig.state(*busy, at);
            CHECK(state == rig.state(*plain, at));
            busy->reset();
            rig.run(*busy, part(ids, 40, 12), 0, false, 0);
            Status s = busy->restore(at, state);
            REQUIRE_MESSAGE(s.ok(), s.message());
            CHECK(
                same_bits(rig.run(*busy, part(ids, 5, 4), at, true, 4), rig.run(*plain, part(ids, 5, 4), at, true, 4)));
        }
    });
}

TEST_CASE("on the GPU a window of at least the context changes no bit and no byte, nor does a ring") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    each_format([](Rig& rig, const Formats& f) {
        if (f.k == Type::f16) return;
        const std::vector<Token> ids = tiny_ids(44, 3);
        auto full = rig.context(*rig.gpu, 512, 64, window(0, 0, f.k, f.v)),
             wide = rig.context(*rig.gpu, 512, 64, window(512, 4, f.k, f.v));
        CHECK(full->memory_bytes() == wide->memory_bytes());
        CHECK(same_bits(rig.text(*full, ids, 20, 4), rig.text(*wide, ids, 20, 4)));
        // The same window in a context whose ring holds every row, where the other one's begins anew.
        auto ring = rig.context(*rig.gpu, 512, 20, window(30, 4, f.k, f.v)),
             whole = rig.context(*rig.gpu, 512, 512, window(30, 4, f.k, f.v));
        CHECK(ring->memory_bytes() < whole->memory_bytes());
        std::vector<float> a, b;
        for (Context* l : {ring.get(), whole.get()}) {
            std::vector<float>& all = l == ring.get() ? a : b;
            for (uint32_t at : {230u, 250u}) rig.run(*l, part(ids, at % 20, 20), at, false, 0);
            all = rig.run(*l, part(ids, 0, 9), 270, true, 9);
        }
        CHECK(same_bits(a, b));
    });
}

TEST_CASE("planned memory equals what contexts and a model allocate on the GPU") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    Rig rig(narrow_of(true));
    auto machine = vk::make_backend(shared_gpu());
    std::vector<MemoryItem> weights;
    REQUIRE(machine->plan_weights(rig.plan, rig.weights, nullptr, &weights).ok());
    CHECK(sum_of(weights) >= rig.gpu->weight_bytes());
    CHECK(sum_of(weights) < rig.gpu->weight_bytes() + 65536);
    const Type types[] = {Type::f16, Type::q8_0, Type::q4_0, Type::q4_1};
    Random random(7);
    for (int i = 0; i < 20; ++i) {
        CAPTURE(i);
        ContextOptions o;
        o.n_context = 1 + random.below(5000);
        o.n_ubatch = 1 + random.below(600);
        o.mtp = random.below(2) != 0;
        o.mtp_window = random.below(2) != 0 ? 1 + random.below(300) : 0;
        o.kv.resize(rig.plan.slots.size());
        for (KvOptions& kv : o.kv)
            kv = window(random.below(3) == 0 ? 0 : 1 + random.below(3000), random.below(20), types[random.below(4)],
                        types[random.below(4)]);
        std::vector<MemoryItem> items;
        REQUIRE(machine->plan_context(rig.plan, o, &items).ok());
        vk::Gpu& gpu = *shared_gpu()->gpu;
        const uint64_t before = gpu.device_bytes.load() + gpu.host_bytes.load();
        std::unique_ptr<Context> context;
        Status s = rig.gpu->open(o).get(context);
        REQUIRE_MESSAGE(s.ok(), s.message());
        CHECK(context->memory_bytes() == sum_of(items));
        CHECK(gpu.device_bytes.load() + gpu.host_bytes.load() - before == sum_of(items));
    }
}

TEST_CASE("a context on a device without host-visible memory allocates its staging memory beforehand") {
    if (!shared_gpu()) return;
    for (const bool mapped : {false, true}) {  // or mapped, but slow to read
        DeviceOptions options;
        options.kind = Kind::vulkan;
        vk::OpenDeviceRef apart;
        Status s = vk::open_device(options, {}).get(apart);
        REQUIRE_MESSAGE(s.ok(), s.message());
        CAPTURE(mapped);
        apart->gpu->traits.device_mapped = mapped;  // a software device has one kind of memory only
        apart->gpu->traits.device_readable = false;
        Rig rig(narrow_of(false));
        auto machine = vk::make_backend(apart);
        const std::shared_ptr<LoadedModel> program = rig.load(*machine);
        ContextOptions o;
        o.n_context = 100;
        o.n_ubatch = 16;
        std::vector<MemoryItem> items;
        REQUIRE(machine->plan_context(rig.plan, o, &items).ok());
        CHECK(sum_of(items, "staging") == 2 * vk::kStagingBytes);
        const vk::Gpu& gpu = *apart->gpu;
        const uint64_t before = gpu.device_bytes.load() + gpu.host_bytes.load();
        std::unique_ptr<Context> context, other = rig.context(*rig.gpu, 100, 16);
        REQUIRE(program->open(o).get(context).ok());
        CHECK(gpu.device_bytes.load() + gpu.host_bytes.load() - before == sum_of(items));
        const std::vector<Token> ids = tiny_ids(9, 8);
        for (Context* l : {context.get(), other.get()}) {
            rig.run(*l, part(ids, 0, 4), 0, true, 4);
            l->commit(4);
        }
        CHECK(same_bits(rig.rows(*context, rig.plan.trunk.hidden, 4), rig.rows(*other, rig.plan.trunk.hidden, 4)));
        const std::vector<std::byte> state = rig.state(*context, 4);
        CHECK(state == rig.state(*other, 4));
        REQUIRE(context->restore(4, state).ok());
        CHECK(same_bits(rig.run(*context, part(ids, 4, 1), 4, true, 1), rig.run(*other, part(ids, 4, 1), 4, true, 1)));
        CHECK(gpu.device_bytes.load() + gpu.host_bytes.load() - before == sum_of(items));
    }
}

static void VKAPI_CALL any_type(VkDevice, VkBuffer, VkMemoryRequirements* need) { *need = {4096, 16, 7}; }

TEST_CASE("results come back through cached memory where there is some, coherent or not") {
    if (!shared_gpu()) return;
    DeviceOptions options;
    options.kind = Kind::vulkan;
    const Result<vk::GpuRef> opened = vk::open_gpu(options);
    REQUIRE_MESSAGE(opened.ok(), opened.status().message());
    vk::Gpu& gpu = *opened.value();
    gpu.vk.vkGetBufferMemoryRequirements = any_type;
    constexpr VkMemoryPropertyFlags kLocal = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
                                    kVisible = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT,
                                    kCoherent = VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
                                    kCached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    VkPhysicalDeviceMemoryProperties& memory = gpu.traits.memory;
    memory = {};
    memory.memoryHeapCount = 2;
    memory.memoryHeaps[0] = {uint64_t{8} << 30, VK_MEMORY_HEAP_DEVICE_LOCAL_BIT};
    memory.memoryHeaps[1] = {uint64_t{4} << 30, 0};
    const auto readback = [&](bool uma, std::initializer_list<VkMemoryType> types) {
        gpu.traits.uma = uma;
        memory.memoryTypeCount = static_cast<uint32_t>(types.size());
        std::copy(types.begin(), types.end(), memory.memoryTypes);
        REQUIRE(vk::choose_memory(&gpu, -1).ok());
        return gpu.traits.type_readback;
    };
    constexpr VkMemoryType kFast{kLocal | kVisible | kCoherent, 0};
    CHECK(readback(true, {kFast, {kLocal | kVisible | kCached, 0}}) == 1);
    CHECK_FALSE(gpu.traits.reads_device());
    CHECK(readback(true, {kFast, {kLocal | kVisible | kCached, 0}, {kLocal | kVisible | kCached | kCoherent, 0}}) == 2);
    CHECK(gpu.traits.device_mapped);
    CHECK_FALSE(gpu.traits.reads_device());
    CHECK(readback(true, {kFast}) == 0);
    CHECK(gpu.traits.reads_device());
    CHECK(readback(true, {{kLocal | kVisible | kCached | kCoherent, 0}}) == 0);
    CHECK(gpu.traits.reads_device());
    CHECK(readback(false, {{kLocal, 0}, {kVisible | kCoherent, 1}, {kVisible | kCached, 1}}) == 2);
    CHECK(readback(false, {{kLocal, 0}, kFast, {kVisible | kCoherent, 1}}) == 2);
}

TEST_CASE("layers with more than four different windows run on the GPU") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    TinyOptions tiny = narrow_of(false);
    tiny.n_layer = 12;
    Rig rig(tiny);
    ContextOptions o;
    o.n_context = 256;
    o.n_ubatch = 64;
    o.kv.resize(rig.plan.slots.size());
    uint32_t n_kind = 0;
    for (const Op& op : rig.plan.trunk.ops)
        if (op.kind == OpKind::attend) {
            o.kv[op.state] = window(5 + 9 * n_kind, n_kind);
            ++n_kind;
        }
    REQUIRE(n_kind == 6);
    std::unique_ptr<Context> gpu, cpu;
    REQUIRE(rig.gpu->open(o).get(gpu).ok());
    REQUIRE(rig.cpu->open(o).get(cpu).ok());
    const std::vector<Token> ids = tiny_ids(70, 8);
    CHECK(error_of(rig.run(*gpu, part(ids, 0, 64), 0, false, 1), rig.run(*cpu, part(ids, 0, 64), 0, false, 1)) < 1e-2);
    CHECK(error_of(rig.run(*gpu, part(ids, 64, 4), 64, true, 4), rig.run(*cpu, part(ids, 64, 4), 64, true, 4)) < 1e-2);
}

TEST_CASE("on the GPU a session with windows in every layer generates past the context in constant memory") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    Rig rig(narrow_of(true));
    auto machine = vk::make_backend(shared_gpu());
    for (uint32_t w : {32u, 4096u, 8192u, 16384u, 100000u}) {
        CAPTURE(w);
        std::vector<MemoryItem> small, large;
        ContextOptions o;
        o.n_ubatch = 64;
        o.kv.assign(rig.plan.slots.size(), window(w, 4));
        o.n_context = 1u << 18;
        const Status s = machine->plan_context(rig.plan, o, &small);
        if (w > vk::attend_any_keys(256) && shared_gpu()->gpu->traits.short_loops && !shared_gpu()->shuffles) {
            CHECK(s.code == Code::unsupported);  // the general attention does not see them all
            continue;
        }
        REQUIRE(s.ok());
        o.n_context = 1u << 24;
        REQUIRE(machine->plan_context(rig.plan, o, &large).ok());
        CHECK(sum_of(small) == sum_of(large));
    }
    // A scaled-down million: the rings of heads of 64 wrap again and again. Then the end of a real one, against the
    // CPU.
    TinyOptions usual = narrow_of(false);
    usual.n_layer = usual.interval = 4;
    Rig plain(usual);
    const KvOptions kv = window(20, 4, Type::q4_1, Type::q8_0);
    auto context = plain.context(*plain.gpu, 1u << 20, 32, kv), far = plain.context(*plain.cpu, 1u << 20, 32, kv);
    const uint64_t bytes = context->memory_bytes();
    const std::vector<Token> ids = tiny_ids(80, 6);
    const uint32_t half = deep() ? 50 : 30;
    for (uint32_t i = 0; i < half; ++i) {
        plain.run(*context, part(ids, i % 40, 9), 9 * i, true, 0);
        context->commit(9);
    }
    const size_t n_state = plain.state(*context, 9 * half).size();
    for (uint32_t i = half; i < 2 * half; ++i) {
        plain.run(*context, part(ids, i % 40, 9), 9 * i, true, 0);
        context->commit(9);
    }
    CHECK(plain.state(*context, 9 * 2 * half).size() == n_state);
    for (float x : plain.run(*context, part(ids, 64, 9), 9 * 2 * half, true, 9)) REQUIRE(std::isfinite(x));
    CHECK(context->memory_bytes() == bytes);
    context->reset();
    const uint32_t p = (1u << 20) - 50;
    for (Context* l : {context.get(), far.get()}) plain.run(*l, part(ids, 0, 10), 0, false, 0);  // the sinks
    plain.run(*context, part(ids, 10, 30), p, false, 0);
    plain.run(*far, part(ids, 10, 30), p, false, 0);
    CHECK(error_of(plain.run(*context, part(ids, 40, 9), p + 30, true, 9),
                   plain.run(*far, part(ids, 40, 9), p + 30, true, 9)) < 3e-2);
}
#endif  // AUSPEX_NO_VULKAN

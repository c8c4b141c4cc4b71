// tests/vulkan_model: whole models on Vulkan and on the CPU, step by step.
#pragma once
#include "../src/machine/vulkan/vulkan.h"
#include "support.h"

#include <doctest/doctest.h>

#ifndef AUSPEX_NO_VULKAN
#include <cstring>

#include "../src/engine/sampler.h"
#include "context_rig.h"
#include "reference.h"

namespace test_vulkan_model {

using namespace auspex;
using namespace auspex::detail;
using namespace test;

/// The device of all tests here, opened once so that its pipelines are made once. Never destroyed: the validation
/// layer's own statics may be gone before.
inline const Result<vk::OpenDeviceRef>& opened_gpu() {
    static const auto& one = *new Result<vk::OpenDeviceRef>([] {
        DeviceOptions options;
        options.kind = Kind::vulkan;
        vk::OpenDetail detail;
        detail.validation = true;
        auto c = vk::open_device(options, detail);
        if (c.status().code == Code::not_found) {  // no validation layer here
            detail.validation = false;
            c = vk::open_device(options, detail);
        }
        if (c.ok() && !device_counts(c.value()->gpu->traits.name))
            return Result<vk::OpenDeviceRef>(Status(Code::no_device, "only a software device"));
        return c;
    }());
    return one;
}

/// The same. Null where there is none; then the running test case is skipped.
inline vk::OpenDeviceRef shared_gpu() {
    const auto& opened = opened_gpu();
    if (opened.ok()) return opened.value();
    REQUIRE_MESSAGE(opened.status().code == Code::no_device, opened.status().message());
    skip_without_device(opened.status().text);
    return nullptr;
}

/// Fails on messages of the validation layer since its construction.
struct HotPath {
    ~HotPath() {
        if (!opened_gpu().ok() || !opened_gpu().value()->gpu->messages) return;
        vk::Messages& m = *opened_gpu().value()->gpu->messages;
        CHECK(m.count() == 0);
        for (const std::string& text : m.texts) FAIL_CHECK(text);
        m.texts.clear();
    }
};

/// Head sizes of the published models (fast), or others, which use other kernels.
inline TinyOptions tiny_of(bool fast, Type type = Type::f16) {
    TinyOptions o = smallest();
    o.type = type;
    o.n_layer = 3;  // each kind of layer follows the other
    if (fast) {
        o.d_head = 256;
        o.d_key = 128;
    }
    return o;
}

/// The same heads at half the width, for tests of what is around the products.
inline TinyOptions narrow_of(bool fast) { return narrow(tiny_of(fast)); }

/// A model, loaded by both back ends.
struct Rig : ContextRig {
    std::shared_ptr<LoadedModel> gpu, cpu;

    explicit Rig(const TinyOptions& tiny) : ContextRig(tiny) { open(); }
    explicit Rig(Span<const std::byte> from) : ContextRig(from) { open(); }
    void open() {
        gpu = load(*vk::make_backend(shared_gpu()));
        CpuOptions options;
        options.path = CpuPath::reference;
        options.n_thread = 1;
        std::shared_ptr<Backend> machine;
        REQUIRE(open_cpu(options).get(machine).ok());
        cpu = load(*machine);
    }
    std::unique_ptr<Context> context(LoadedModel& program, uint32_t n_context = 512, uint32_t n_ubatch = 64,
                                     const KvOptions& kv = {}) const {
        return ContextRig::context(program, kv, n_context, n_ubatch);
    }
    std::unique_ptr<Context> context() const { return context(*gpu); }
};

inline double error_of(const std::vector<float>& a, const std::vector<float>& b) {
    REQUIRE(a.size() == b.size());
    if (a.empty()) return 0;
    return relative_error(a.data(), b.data(), a.size());
}

inline Span<const Token> part(const std::vector<Token>& ids, size_t at, size_t n) {
    return Span<const Token>(ids.data() + at, n);
}

/// Decodes a row at a time; the host samples.
inline std::vector<Token> stepped(const Rig& rig, Context& context, std::vector<Token> history, size_t n,
                                  const Sampling& sampling = {}) {
    Sampler sampler;
    REQUIRE(sampler.open({}, rig.plan.n_vocab).ok());
    const size_t first = history.size();
    rig.run(context, part(history, 0, first - 1), 0, false, 0);
    while (history.size() < first + n) {
        const std::vector<float> logits =
            rig.run(context, part(history, history.size() - 1, 1), static_cast<uint32_t>(history.size() - 1), true, 1);
        context.commit(1);
        history.push_back(sampler.sample(logits, sampling, history.size(), history));
    }
    return std::vector<Token>(history.begin() + static_cast<std::ptrdiff_t>(first), history.end());
}

/// The same in the device loop: `ahead` cycles queued, n_draft drafts in each.
inline std::vector<Token> device_loop(const Rig& rig, Context& context, std::vector<Token> history, size_t n,
                                      uint32_t n_draft, uint32_t ahead, const Sampling& sampling = {},
                                      uint32_t* n_accept = nullptr) {
    const size_t first = history.size();
    rig.run(context, part(history, 0, first - 1), 0, false, 0);
    if (n_draft != 0) {
        Step fill;
        fill.ids = history.data() + 1;
        fill.n_row = static_cast<uint32_t>(first - 2);
        fill.fill_only = true;
        for (const Tape& t : rig.plan.mtp) {
            fill.tape = &t;
            if (fill.n_row != 0) REQUIRE(context.run(fill).ok());
        }
    }
    LoopStart d;
    DeviceLoop& loop = *context.device_loop();
    d.history = history;
    d.sampling = sampling;
    d.limit = static_cast<uint32_t>(first + n);
    d.n_mtp_row = n_draft != 0 ? 1 : 0;
    d.hidden_from = static_cast<uint32_t>(first - 2);
    Status s = loop.start(d);
    REQUIRE_MESSAGE(s.ok(), s.message());
    std::vector<Token> out;
    for (uint32_t i = 0; i < ahead; ++i) REQUIRE(loop.queue(n_draft).ok());
    uint32_t in_flight = ahead;
    bool done = false;
    while (in_flight != 0) {
        auto c = loop.wait();
        REQUIRE_MESSAGE(c.ok(), c.status().message());
        --in_flight;
        out.insert(out.end(), c.value().tokens.begin(), c.value().tokens.end());
        if (n_accept) *n_accept += c.value().n_accept;
        done = c.value().done;
        if (done) continue;
        REQUIRE(loop.queue(n_draft).ok());
        ++in_flight;
    }
    CHECK(done);
    return out;
}

}  // namespace test_vulkan_model
#endif  // AUSPEX_NO_VULKAN

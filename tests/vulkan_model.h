// tests/vulkan_model: whole models on the Vulkan machine and on the CPU, step by step.
#pragma once
#include "../src/machine/vulkan/vulkan.h"
#include "support.h"

#include <doctest/doctest.h>

#ifndef AUSPEX_NO_VULKAN
#include <cstring>

#include "../src/engine/sample.h"
#include "lane_rig.h"
#include "reference.h"

namespace test_vulkan_model {

using namespace auspex;
using namespace auspex::detail;
using namespace test;

/// The device of all tests here, so that its pipelines are made once. Null where there is none.
inline const vk::ContextRef& context() {
    static const vk::ContextRef one = [] {
        DeviceOptions options;
        options.kind = Kind::vulkan;
        vk::OpenDetail detail;
        detail.validation = true;
        auto c = vk::open_context(options, detail);
        if (c.status().code == Code::not_found) {  // no validation layer here
            detail.validation = false;
            c = vk::open_context(options, detail);
        }
        if (c.status().code == Code::no_device) {
            MESSAGE("skipped: needs a Vulkan device: " << c.status().text);
            return vk::ContextRef();
        }
        REQUIRE_MESSAGE(c.ok(), c.status().message());
        return c.value();
    }();
    return one;
}

/// Fails on what the validation layer has said since it was made.
struct Silence {
    ~Silence() {
        if (!context() || !context()->gpu->messages) return;
        vk::Messages& m = *context()->gpu->messages;
        CHECK(m.count() == 0);
        for (const std::string& text : m.texts) FAIL_CHECK(text);
        m.texts.clear();
    }
};

/// Heads as real models have them, or others: different kernels.
inline TinyOptions tiny_of(bool fast, Type type = Type::f16) {
    TinyOptions o;
    o.type = type;
    o.n_head_k = 1;
    o.n_head_v = 2;
    if (fast) {
        o.d_head = 256;
        o.d_key = 128;
    }
    return o;
}

/// A model, and programs of it on both machines.
struct Rig : LaneRig {
    std::shared_ptr<Program> gpu, cpu;

    explicit Rig(const TinyOptions& tiny) : LaneRig(tiny) { open(); }
    explicit Rig(Span<const std::byte> from) : LaneRig(from) { open(); }
    void open() {
        gpu = load(*vk::make_machine(context()));
        CpuOptions options;
        options.path = CpuPath::reference;
        options.n_thread = 2;
        std::shared_ptr<Machine> machine;
        REQUIRE(open_cpu(options).get(machine).ok());
        cpu = load(*machine);
    }
    std::unique_ptr<Lane> lane(Program& program, uint32_t n_context = 512, uint32_t n_ubatch = 64, const KvOptions& kv = {}) const { return LaneRig::lane(program, kv, n_context, n_ubatch); }
    std::unique_ptr<Lane> lane() const { return lane(*gpu); }
};

inline double error_of(const std::vector<float>& a, const std::vector<float>& b) {
    REQUIRE(a.size() == b.size());
    if (a.empty()) return 0;
    return relative_error(a.data(), b.data(), a.size());
}

inline Span<const Token> part(const std::vector<Token>& ids, size_t at, size_t n) { return Span<const Token>(ids.data() + at, n); }

/// Greedy decoding, a row at a time, the host picking.
inline std::vector<Token> stepped(const Rig& rig, Lane& lane, std::vector<Token> history, size_t n, const Sampling& sampling = {}) {
    Picker picker;
    REQUIRE(picker.open({}, rig.plan.n_vocab).ok());
    const size_t first = history.size();
    rig.run(lane, part(history, 0, first - 1), 0, false, 0);
    while (history.size() < first + n) {
        const std::vector<float> logits = rig.run(lane, part(history, history.size() - 1, 1), static_cast<uint32_t>(history.size() - 1), true, 1);
        lane.commit(1);
        history.push_back(picker.pick(logits, sampling, history.size(), history));
    }
    return std::vector<Token>(history.begin() + static_cast<std::ptrdiff_t>(first), history.end());
}

/// The same, the device picking: `ahead` cycles queued, n_draft drafts in each.
inline std::vector<Token> driven(const Rig& rig, Lane& lane, std::vector<Token> history, size_t n, uint32_t n_draft, uint32_t ahead, const Sampling& sampling = {}, uint32_t* n_accept = nullptr) {
    const size_t first = history.size();
    rig.run(lane, part(history, 0, first - 1), 0, false, 0);
    if (n_draft != 0) {
        Step fill;
        fill.ids = history.data() + 1;
        fill.n_row = static_cast<uint32_t>(first - 2);
        fill.fill_only = true;
        for (const Tape& t : rig.plan.mtp) {
            fill.tape = &t;
            if (fill.n_row != 0) REQUIRE(lane.run(fill).ok());
        }
    }
    Drive d;
    d.history = history;
    d.sampling = sampling;
    d.limit = static_cast<uint32_t>(first + n);
    d.n_mtp_row = n_draft != 0 ? 1 : 0;
    d.hidden_from = static_cast<uint32_t>(first - 2);
    Status s = lane.start(d);
    REQUIRE_MESSAGE(s.ok(), s.message());
    std::vector<Token> out;
    for (uint32_t i = 0; i < ahead; ++i) REQUIRE(lane.queue(n_draft).ok());
    uint32_t in_flight = ahead;
    bool done = false;
    while (in_flight != 0) {
        auto c = lane.wait();
        REQUIRE_MESSAGE(c.ok(), c.status().message());
        --in_flight;
        out.insert(out.end(), c.value().tokens.begin(), c.value().tokens.end());
        if (n_accept) *n_accept += c.value().n_accept;
        done = c.value().done;
        if (done) continue;
        REQUIRE(lane.queue(n_draft).ok());
        ++in_flight;
    }
    CHECK(done);
    return out;
}

}  // namespace test_vulkan_model
#endif  // AUSPEX_NO_VULKAN

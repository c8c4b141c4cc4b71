// tests/vulkan_model: whole models on the Vulkan machine and on the CPU, step by step.
#pragma once
#include "../src/machine/vulkan/vulkan.h"
#include "support.h"

#include <doctest/doctest.h>

#ifndef AUSPEX_NO_VULKAN
#include <cstring>

#include "../src/engine/sample.h"
#include "../src/machine/cpu/cpu.h"
#include "../src/plan/arch.h"
#include "reference.h"
#include "tiny.h"

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
struct Rig {
    std::vector<std::byte> bytes;
    Gguf file;
    Plan plan;
    Weights weights;
    std::shared_ptr<Program> gpu, cpu;

    explicit Rig(const TinyOptions& tiny) : bytes(tiny_model(tiny)) { open(bytes, true); }
    explicit Rig(Span<const std::byte> from) { open(from, true); }
    void open(Span<const std::byte> from, bool with_cpu) {
        REQUIRE(Gguf::parse(from).get(file).ok());
        Status s = make_plan(file, {}).get(plan);
        REQUIRE_MESSAGE(s.ok(), s.message());
        REQUIRE(find_weights(plan, file).get(weights).ok());
        weights.keep = true;
        s = vk::make_machine(context())->load(plan, weights, {}).get(gpu);
        REQUIRE_MESSAGE(s.ok(), s.message());
        if (!with_cpu) return;
        CpuOptions options;
        options.path = CpuPath::reference;
        options.n_thread = 2;
        std::shared_ptr<Machine> machine;
        REQUIRE(open_cpu(options).get(machine).ok());
        REQUIRE(machine->load(plan, weights, {}).get(cpu).ok());
    }
    std::unique_ptr<Lane> lane(Program& program, uint32_t n_context = 512, uint32_t n_ubatch = 64) {
        LaneOptions o;
        o.n_context = n_context;
        o.n_ubatch = n_ubatch;
        std::unique_ptr<Lane> l;
        Status s = program.open(o).get(l);
        REQUIRE_MESSAGE(s.ok(), s.message());
        return l;
    }
    std::unique_ptr<Lane> lane() { return lane(*gpu); }
    Step step(Span<const Token> ids, uint32_t position, bool tentative, uint32_t n_logit) const {
        Step s;
        s.tape = &plan.trunk;
        s.ids = ids.data();
        s.n_row = static_cast<uint32_t>(ids.size());
        s.position = position;
        s.tentative = tentative;
        s.n_logit = n_logit;
        return s;
    }
    std::vector<float> run(Lane& lane, const Step& step) const {
        Status s = lane.run(step);
        REQUIRE_MESSAGE(s.ok(), s.message());
        return rows(lane, step.tape->logits, step.n_logit);
    }
    std::vector<float> run(Lane& lane, Span<const Token> ids, uint32_t position, bool tentative, uint32_t n_logit) const { return run(lane, step(ids, position, tentative, n_logit)); }
    std::vector<float> rows(Lane& lane, SlotId slot, uint32_t n) const {
        std::vector<float> all;
        for (uint32_t i = 0; i < n; ++i) {
            Span<const float> row;
            Status s = lane.read_row(slot, i).get(row);
            REQUIRE_MESSAGE(s.ok(), s.message());
            all.insert(all.end(), row.begin(), row.end());
        }
        return all;
    }
};

inline double error_of(const std::vector<float>& a, const std::vector<float>& b) {
    REQUIRE(a.size() == b.size());
    if (a.empty()) return 0;
    return relative_error(a.data(), b.data(), a.size());
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) { return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0; }

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

// tests/context_rig: a model below the engine: its plan, its weights, contexts of it on any machine.
#pragma once
#include <cstring>

#include "../src/machine/cpu/cpu.h"
#include "../src/machine/cpu/kernels.h"
#include "../src/plan/arch.h"
#include "reference.h"
#include "support.h"
#include "tiny.h"

#include <doctest/doctest.h>

namespace test {

struct ContextRig {
    std::vector<std::byte> bytes;  ///< of a tiny model; empty where the caller keeps the bytes
    auspex::detail::Gguf file;
    auspex::detail::Plan plan;
    auspex::detail::Weights weights;

    explicit ContextRig(const TinyOptions& tiny = slim()) : bytes(tiny_model(tiny)) { open(bytes); }
    explicit ContextRig(auspex::Span<const std::byte> from) { open(from); }

    std::shared_ptr<auspex::detail::LoadedModel> load(auspex::detail::Backend& machine) const {
        std::shared_ptr<auspex::detail::LoadedModel> program;
        auspex::Status s = machine.load(plan, weights, {}).get(program);
        REQUIRE_MESSAGE(s.ok(), s.message());
        return program;
    }
    /// A context with the same KV options in every attention layer.
    std::unique_ptr<auspex::detail::Context> context(auspex::detail::LoadedModel& program,
                                                     const auspex::detail::KvOptions& kv, uint32_t n_context,
                                                     uint32_t n_ubatch, bool exact_prompts = false) const {
        auspex::detail::ContextOptions o;
        o.n_context = n_context;
        o.n_ubatch = n_ubatch;
        o.exact_prompts = exact_prompts;
        o.kv.assign(plan.slots.size(), kv);
        std::unique_ptr<auspex::detail::Context> l;
        auspex::Status s = program.open(o).get(l);
        REQUIRE_MESSAGE(s.ok(), s.message());
        return l;
    }
    auspex::detail::Step step(auspex::Span<const auspex::Token> ids, uint32_t position, bool tentative,
                              uint32_t n_logit) const {
        auspex::detail::Step s;
        s.tape = &plan.trunk;
        s.ids = ids.data();
        s.n_row = static_cast<uint32_t>(ids.size());
        s.place(position);
        s.tentative = tentative;
        s.n_logit = n_logit;
        return s;
    }
    /// The n logit rows of the last step, concatenated.
    std::vector<float> rows(auspex::detail::Context& context, auspex::detail::SlotId slot, uint32_t n) const {
        std::vector<float> all;
        for (uint32_t i = 0; i < n; ++i) {
            auspex::Span<const float> row;
            auspex::Status s = context.read_row(slot, i).get(row);
            REQUIRE_MESSAGE(s.ok(), s.message());
            all.insert(all.end(), row.begin(), row.end());
        }
        return all;
    }
    /// Runs rows and returns the logits that were asked for.
    std::vector<float> run(auspex::detail::Context& context, const auspex::detail::Step& step) const {
        auspex::Status s = context.run(step);
        REQUIRE_MESSAGE(s.ok(), s.message());
        return rows(context, step.tape->logits, step.n_logit);
    }
    std::vector<float> run(auspex::detail::Context& context, auspex::Span<const auspex::Token> ids, uint32_t position,
                           bool tentative, uint32_t n_logit) const {
        return run(context, step(ids, position, tentative, n_logit));
    }
    /// The logits of the last n_step rows after `ids`, run one at a time after the others in pieces of at most
    /// n_ubatch.
    std::vector<float> text(auspex::detail::Context& context, auspex::Span<const auspex::Token> ids, uint32_t n_ubatch,
                            uint32_t n_step) const {
        const uint32_t n = static_cast<uint32_t>(ids.size()) - n_step;
        for (uint32_t at = 0; at < n; at += n_ubatch)
            run(context, ids.subspan(at, std::min(n_ubatch, n - at)), at, false, 0);
        std::vector<float> all;
        for (uint32_t i = 0; i < n_step; ++i) {
            const std::vector<float> row = run(context, ids.subspan(n + i, 1), n + i, true, 1);
            context.commit(1);
            all.insert(all.end(), row.begin(), row.end());
        }
        return all;
    }
    std::vector<std::byte> state(auspex::detail::Context& context, uint32_t n_token) const {
        std::vector<std::byte> s;
        REQUIRE(context.save(n_token, &s).ok());
        return s;
    }

  private:
    void open(auspex::Span<const std::byte> from) {
        REQUIRE(auspex::detail::Gguf::parse(from).get(file).ok());
        auspex::Status s = auspex::detail::make_plan(file, {}).get(plan);
        REQUIRE_MESSAGE(s.ok(), s.message());
        REQUIRE(auspex::detail::find_weights(plan, file).get(weights).ok());
        weights.keep = true;
    }
};

/// A tiny model on the CPU.
struct CpuRig : ContextRig {
    std::shared_ptr<auspex::detail::Backend> machine;
    std::shared_ptr<auspex::detail::LoadedModel> program;

    explicit CpuRig(auspex::CpuPath path = auspex::CpuPath::best, int n_thread = 1, const TinyOptions& tiny = slim())
        : ContextRig(tiny) {
        auspex::detail::CpuOptions options;
        options.path = path;
        options.n_thread = n_thread;
        auspex::Status s = auspex::detail::open_cpu(options).get(machine);
        REQUIRE_MESSAGE(s.ok(), s.message());
        program = load(*machine);
    }
    std::unique_ptr<auspex::detail::Context> context(const auspex::detail::KvOptions& kv = {},
                                                     uint32_t n_context = 1024, uint32_t n_ubatch = 512) const {
        return ContextRig::context(*program, kv, n_context, n_ubatch);
    }
};

/// The ways in which this processor can compute.
inline std::vector<auspex::CpuPath> cpu_paths() {
    std::vector<auspex::CpuPath> all;
    for (auspex::CpuPath p :
         {auspex::CpuPath::reference, auspex::CpuPath::avx2, auspex::CpuPath::avx512, auspex::CpuPath::neon})
        if (auspex::detail::has_path(p)) all.push_back(p);
    // Under a sanitizer whole models run on the best path alone; the tests of the kernels run every path there, too.
    if (AUSPEX_TEST_SANITIZED) all.erase(all.begin(), all.end() - 1);
    return all;
}

inline auspex::detail::KvOptions window(uint32_t w, uint32_t sinks = 0,
                                        auspex::detail::Type k = auspex::detail::Type::f16,
                                        auspex::detail::Type v = auspex::detail::Type::f16) {
    auspex::detail::KvOptions kv;
    kv.window = w;
    kv.sinks = sinks;
    kv.k = k;
    kv.v = v;
    return kv;
}

/// Runs the same rows twice, the second time with every rotary position shifted: the logits agree, because attention
/// sees only distances. A shift in the middle of a text is none: it moves what came before away.
inline void check_rotary_shift(const ContextRig& rig, auspex::detail::Context& a, auspex::detail::Context& b) {
    using namespace auspex::detail;
    const std::vector<auspex::Token> ids = tiny_ids(60, 8);
    auto text = [&](Context& context, uint32_t shift_prompt, uint32_t shift) {
        context.reset();
        std::vector<float> all;
        for (uint32_t at = 0; at < 55;) {
            const uint32_t n = at == 0 ? 40 : 1 + at % 4;
            Step step = rig.step(auspex::Span<const auspex::Token>(ids.data() + at, n), at, at != 0, at == 0 ? 1 : n);
            step.position += at == 0 ? shift_prompt : shift;
            const std::vector<float> rows = rig.run(context, step);
            if (at != 0) context.commit(n);
            all.insert(all.end(), rows.begin(), rows.end());
            at += n;
        }
        return all;
    };
    const std::vector<float> want = text(a, 0, 0);
    for (const uint32_t shift : {1u, 977u, 100000u}) {
        CAPTURE(shift);
        const std::vector<float> got = text(b, shift, shift);
        CHECK(relative_error(got.data(), want.data(), want.size()) < 5e-3);
    }
    const std::vector<float> other = text(b, 0, 977);
    CHECK(relative_error(other.data(), want.data(), want.size()) > 5e-3);
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace test

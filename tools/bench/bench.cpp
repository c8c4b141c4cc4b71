#include "bench.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "bench_controller.h"
#include "bench_masks.h"
#include "bench_trace.h"
#include "engine/memory_plan.h"
#include "engine/session.h"
#include "machine/cpu/kernels.h"
#include "examples/cli/platform.h"

namespace cli {
namespace {

namespace detail = auspex::detail;

/// Bytes of weights in the file's formats that one decoded token has to read.
uint64_t bytes_per_token(const detail::Plan& plan) {
    uint64_t sum = 0;
    for (const detail::Op& op : plan.trunk.ops) {
        for (uint32_t i = 0; i < detail::kMaxWeight; ++i) {
            if (op.w[i] == detail::kNoSlot) continue;
            const detail::Slot& slot = plan.slot(op.w[i]);
            uint64_t n_row = 1;
            for (uint32_t d = 0; d + 1 < slot.n_dim; ++d) n_row *= slot.shape[d];
            if (op.kind == detail::OpKind::embed) n_row = 1;
            if (slot.n_dim == 3 && op.moe.n_expert > 0) n_row = n_row / op.moe.n_expert * op.moe.n_used;
            sum += n_row * detail::row_bytes(slot.type, slot.width());
        }
    }
    return sum;
}

}  // namespace

Status measure(int64_t n, Times* to, const std::function<Status()>& work) {
    for (int64_t i = 0; i < n; ++i) {
        if (interrupted()) return Status(Code::cancelled, "interrupted");
        const double start = now();
        const Status s = work();
        if (!s.ok()) return s;
        to->s.push_back(now() - start);
    }
    return {};
}

Result<uint32_t> context_rows(uint64_t n, const char* asked_by) {
    if (n <= detail::kMaxContext) return static_cast<uint32_t>(n);
    return Status(Code::bad_argument, std::string(asked_by) + ": in all " + std::to_string(n) +
                                          " rows of context, expected at most " + std::to_string(detail::kMaxContext));
}

void Bench::say(const char* format, ...) const {
    if (o.json) return;
    va_list arguments;
    va_start(arguments, format);
    std::vprintf(format, arguments);
    va_end(arguments);
    std::fflush(stdout);
}

std::vector<Token> Bench::ids(size_t n) const {
    std::vector<Token> ids;
    uint64_t state = 1;
    for (size_t i = 0; i < n; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids.push_back(static_cast<Token>((state >> 33) % on.model.info().n_vocab));
    }
    return ids;
}

Status Bench::open() {
    if (on.model) return {};
    Status s = load(o.place, &on);
    if (!s.ok()) return s;
    bytes = bytes_per_token(on.model.impl()->plan);
    const std::string name = on.model.info().name.empty() ? on.path : on.model.info().name;
    out["model"] = name;
    out["file"] = on.path;
    out["device"] = on.device.name();
    out["bytes_per_token"] = bytes;
    say("%s on %s\n%.1f MB of weights per token", name.c_str(), on.device.name().c_str(), double(bytes) / 1e6);
    if (on.device.kind() == auspex::Kind::cpu) {
        const uint32_t n_thread = o.place.threads ? static_cast<uint32_t>(*o.place.threads) : detail::n_physical_core();
        s = read_loop.open(bytes, n_thread);
        std::vector<double> gbps(5);
        for (size_t i = 0; s.ok() && i < gbps.size(); ++i) s = read_loop.run().get(gbps[i]);
        if (!s.ok()) return s;
        const double max_gbps = *std::max_element(gbps.begin(), gbps.end());
        out["threads"] = n_thread;
        out["read_gbps"] = max_gbps;
        say("; a plain read loop on %u threads reaches %.1f GB/s", n_thread, max_gbps);
    }
    say("\n");
    return {};
}

Result<auspex::Session> Bench::session(const WindowFlags& window, uint64_t n_context, const char* asked_by,
                                       const auspex::DraftOptions& draft, std::vector<auspex::DraftCycle>* cycles) {
    auspex::SessionOptions options;
    Status s = context_rows(n_context, asked_by).get(options.n_context);
    if (!s.ok()) return s;
    options.run_ahead = 2;
    options.checkpoint_bytes = 0;  // each run of a prompt computes all of it
    options.progress = progress_line();
    options.draft = draft;
    if (cycles) options.on_cycle = [cycles](const auspex::DraftCycle& c) { cycles->push_back(c); };
    s = choose_window(window, &options);
    if (!s.ok()) return s;
    return auspex::Session::create(on.model, options);
}

Status Bench::warm_up() {
    constexpr double kSeconds = 1;
    if (warm_ || on.device.kind() == auspex::Kind::cpu) return {};
    warm_ = true;
    auspex::Session session;
    Status s = this->session(o.window, 2048, "the first second").get(session);
    auspex::SyncReport synced;
    size_t n = 16;  // grows: a software device is slow, and has no clock to raise
    for (const double start = now(); s.ok() && now() - start < kSeconds && !interrupted();
         n = std::min<size_t>(2 * n, 768)) {
        s = session.sync({}).get(synced);
        if (s.ok()) s = session.sync(ids(n)).get(synced);
        Span<const Token> tokens;
        for (size_t i = 0; s.ok() && i < n; i += tokens.size()) s = session.next().get(tokens);
    }
    clear_progress_line();
    return s;
}

namespace {

/// Reads the lists and refuses what contradicts itself, before anything is loaded.
Status check(BenchOptions& o) {
    constexpr int64_t kMany = int64_t{1} << 24;
    const auto within = [](const char* name, int64_t value, int64_t low, int64_t high) {
        if (value >= low && value <= high) return Status();
        return Status(Code::bad_argument, std::string(name) + " is " + std::to_string(value) + ", expected " +
                                              std::to_string(low) + " .. " + std::to_string(high));
    };
    Status s = within("-n", o.n, 1, kMany);
    if (s.ok()) s = within("--repeat", o.repeat, 1, 1000);
    if (s.ok() && o.longest) s = within("--long", *o.longest, 1000, int64_t{1} << 26);
    if (s.ok()) s = within("--context", o.context, 1, kMany);
    if (s.ok()) s = within("--phase", o.phase, 16, kMany);
    if (s.ok()) s = within("--rounds", o.rounds, 1, 1000);
    if (s.ok()) s = within("--draft-max", o.draft_max, 1, auspex::kMaxDraft);
    if (s.ok()) s = within("--prefix", o.prefix, 1, kMany);
    if (s.ok()) s = within("--steps", o.steps, 1, 10000);
    if (s.ok()) s = within("--append", o.append, 1, kMany);
    if (s.ok()) s = within("--title", o.title, 0, kMany);
    if (s.ok() && o.requests) s = within("--requests", *o.requests, 1, kMany);
    if (o.measure_all) o.prefill_list = "128,512", o.depth_list = "0,512", o.row_list = "1,2,3,4,5,6,7,8";
    if (s.ok()) s = read_list(o.prefill_list, "prefill lengths", kMany, 1).get(o.prefill);
    if (s.ok()) s = read_list(o.depth_list, "depths", kMany).get(o.depths);
    if (s.ok()) s = read_list(o.row_list, "rows", o.profile ? 4096 : 8, 1).get(o.rows);
    if (s.ok()) s = read_list(o.mtp_list, "draft depths", int64_t{auspex::kMaxDraft}).get(o.mtp);
    if (!s.ok()) return s;
    if (o.synth_accept && !(*o.synth_accept > 0 && *o.synth_accept <= 1))
        return Status(Code::bad_argument, "--synth-accept is " + std::to_string(*o.synth_accept) +
                                              ", expected a probability in 0 .. 1, and not 0; without the option "
                                              "drafts are accepted for what they are");
    if (o.constraint.any() && o.mtp.empty())
        return Status(Code::bad_argument, "a constraint has no meaning here, expected --mtp beside it");
    const int n_mode =
        o.profile + o.stack + o.controller + o.longest.has_value() + !o.replay.empty() + !o.masks.empty();
    if (n_mode > 1)
        return Status(Code::bad_argument,
                      "--profile, --stack, --controller, --long, --replay and --masks answer different questions, "
                      "expected one of "
                      "them at a time");
    if (o.dry && o.replay.empty())
        return Status(Code::bad_argument, "--dry alone means nothing, expected both: --replay FILE --dry");
    if (o.virtual_clock && !o.controller)
        return Status(Code::bad_argument, "--virtual alone means nothing, expected both: --controller --virtual");
    if (!o.synth_phases.empty() && !o.texts.empty())
        return Status(Code::bad_argument,
                      "--synth-phases and --text were both given; synthetic phases have no text of their own");
    return {};
}

}  // namespace

Status run_bench(BenchOptions& o) {
    Status s = check(o);
    if (!s.ok()) return s;
    if (!o.masks.empty()) return bench_masks(o);
    if (o.dry) return bench_trace(o);
    if (o.virtual_clock) return bench_controller_virtual(o.repeat, o.json);
    Bench b(o);
    if (o.profile)
        s = bench_profile(b);
    else if (o.longest)
        s = bench_long(b);
    else if (o.stack)
        s = bench_stack(b);
    else if (o.controller)
        s = bench_replay(b);
    else if (!o.replay.empty())
        s = bench_trace_model(b);
    else
        s = bench_rows(b);
    if (s.ok() && !o.mtp.empty()) s = bench_mtp(b);
    clear_progress_line();
    if (!s.ok()) return s;
    s = o.json ? print(json_line(b.out) + "\n") : print("");
    return s.ok() ? b.files : s;
}

}  // namespace cli

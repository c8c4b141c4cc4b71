// cli/bench: how fast a model runs here, and what share of the memory's speed that is.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench_controller.h"
#include "commands.h"
#include "common.h"
#include "draft.h"
#include "engine/session.h"
#include "machine/cpu/features.h"
#include "platform.h"
#include "window.h"

namespace cli {
namespace {

namespace detail = auspex::detail;

struct BenchOptions {
    PlaceOptions place;
    WindowFlags window;
    std::string prefill = "128,512", depths = "0,512", rows = "1,2,3,4,5,6,7,8";
    std::string mtp, draft_vocab;
    double synth_accept = 0;
    int64_t n = 32, repeat = 5;
    bool json = false, controller = false, virtual_clock = false;
};

/// The runs of one measurement, in seconds.
struct Times {
    std::vector<double> s;
    double median() const {
        std::vector<double> t = s;
        std::sort(t.begin(), t.end());
        return t.size() % 2 ? t[t.size() / 2] : (t[t.size() / 2 - 1] + t[t.size() / 2]) / 2;
    }
    double least() const { return *std::min_element(s.begin(), s.end()); }
    double most() const { return *std::max_element(s.begin(), s.end()); }
};

/// Runs `work` `n` times. errors: the first of `work`; cancelled after Ctrl-C.
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

/// The same ids in every run, spread over the vocabulary.
std::vector<Token> some_ids(size_t n, uint32_t n_vocab) {
    std::vector<Token> ids;
    uint64_t state = 1;
    for (size_t i = 0; i < n; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids.push_back(static_cast<Token>((state >> 33) % n_vocab));
    }
    return ids;
}

/// Bytes of weights in the file's formats that one decoded token has to read.
uint64_t bytes_per_token(const detail::Plan& plan) {
    uint64_t sum = 0;
    for (const detail::Op& op : plan.trunk.ops) {
        for (size_t i = 0; i < sizeof op.w / sizeof *op.w; ++i) {
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

/// What a plain read loop reaches over as many bytes on as many threads: the ceiling for decoding.
Result<double> read_speed(uint64_t bytes, uint32_t n_thread) {
    constexpr uint64_t kLeast = 16u << 20, kMost = 1u << 30;
    const size_t n_word = static_cast<size_t>(std::clamp(bytes, kLeast, kMost) / sizeof(uint64_t));
    const std::vector<uint64_t> data(n_word, 1);
    std::atomic<uint64_t> sink{0};
    Times times;
    const Status s = measure(5, &times, [&] {
        const auto part = [&](uint32_t i) {
            const uint64_t* p = data.data() + n_word * i / n_thread;
            const uint64_t* end = data.data() + n_word * (i + 1) / n_thread;
            uint64_t a[8] = {};
            for (; end - p >= 8; p += 8)
                for (int k = 0; k < 8; ++k) a[k] += p[k];
            for (; p < end; ++p) a[0] += *p;
            for (const uint64_t x : a) sink += x;
        };
        std::vector<std::thread> threads;
        for (uint32_t i = 1; i < n_thread; ++i) threads.emplace_back(part, i);
        part(0);
        for (std::thread& t : threads) t.join();
        return Status();
    });
    if (!s.ok()) return s;
    if (sink.load() != uint64_t{n_word} * times.s.size()) return Status(Code::io_error, "the memory gave back other bytes than were written to it");
    return double(n_word) * sizeof(uint64_t) / times.least() / 1e9;
}

class Bench {
  public:
    explicit Bench(const BenchOptions& o) : o_(o) {}

    Status run() {
        std::vector<Token> lengths, depths, rows;
        constexpr int64_t kLongest = 1 << 24;
        Status s = read_list(o_.prefill, "prefill lengths", kLongest).get(lengths);
        if (s.ok()) s = read_list(o_.depths, "depths", kLongest).get(depths);
        if (s.ok()) s = read_list(o_.rows, "rows", 8).get(rows);
        if (!s.ok()) return s;
        std::vector<Token> mtp;
        s = read_list(o_.mtp, "draft depths", int64_t{auspex::kMaxDraft}).get(mtp);
        if (!s.ok()) return s;
        if (!(o_.synth_accept >= 0 && o_.synth_accept <= 1)) return Status(Code::bad_argument, "--synth-accept is " + std::to_string(o_.synth_accept) + ", expected 0 .. 1");
        if (std::count(lengths.begin(), lengths.end(), 0)) return Status(Code::bad_argument, "--prefill has 0, expected lengths of 1 or more");
        if (std::count(rows.begin(), rows.end(), 0)) return Status(Code::bad_argument, "--rows has 0, expected 1 .. 8");
        if (o_.n < 1 || o_.n > kLongest || o_.repeat < 1 || o_.repeat > 1000)
            return Status(Code::bad_argument, "-n is " + std::to_string(o_.n) + " and --repeat " + std::to_string(o_.repeat) + ", expected 1 or more, and at most 1000 repeats");
        s = load(o_.place, &on_);
        if (!s.ok()) return s;

        const detail::Plan& plan = on_.model.impl()->plan;
        bytes_ = bytes_per_token(plan);
        out_["model"] = on_.model.info().name.empty() ? on_.path : on_.model.info().name;
        out_["file"] = on_.path;
        out_["device"] = on_.device.name();
        out_["bytes_per_token"] = bytes_;
        if (on_.device.kind() == auspex::Kind::cpu) {
            n_thread_ = o_.place.threads_given ? static_cast<uint32_t>(o_.place.threads) : detail::n_physical_core();
            s = read_speed(bytes_, n_thread_).get(read_gbps_);
            if (!s.ok()) return s;
            out_["threads"] = n_thread_;
            out_["read_gbps"] = read_gbps_;
        }
        if (!o_.json) {
            std::printf("%s on %s\n%.1f MB of weights per token", out_["model"].get<std::string>().c_str(), on_.device.name().c_str(), double(bytes_) / 1e6);
            if (read_gbps_ > 0) std::printf("; a plain read loop on %u threads reaches %.1f GB/s", n_thread_, read_gbps_);
            std::printf("\nmedian of %lld runs (least .. most)\n\n", static_cast<long long>(o_.repeat));
            std::fflush(stdout);
        }
        for (size_t i = 0; s.ok() && i < lengths.size(); ++i) s = prefill(static_cast<size_t>(lengths[i]));
        for (size_t i = 0; s.ok() && i < depths.size(); ++i) s = decode(static_cast<size_t>(depths[i]));
        for (size_t i = 0; s.ok() && i < rows.size(); ++i) s = step(static_cast<uint32_t>(rows[i]));
        if (s.ok() && !mtp.empty()) s = draft(0);
        for (size_t i = 0; s.ok() && i < mtp.size(); ++i)
            if (mtp[i] > 0) s = draft(mtp[i]);
        if (!s.ok()) return s;
        return o_.json ? print(out_.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n") : print("");
    }

  private:
    Result<auspex::Session> session(size_t n_context) {
        auspex::SessionOptions options;
        options.run_ahead = 3;
        options.n_context = static_cast<uint32_t>(n_context);
        options.progress = progress_line();
        const Status s = choose_window(o_.window, &options);
        if (!s.ok()) return s;
        return auspex::Session::create(on_.model, options);
    }
    std::vector<Token> ids(size_t n) const { return some_ids(n, on_.model.info().n_vocab); }

    Status prefill(size_t n) {
        auspex::Session on;
        Status s = session(n).get(on);
        if (!s.ok()) return s;
        const std::vector<Token> prompt = ids(n);
        Times times;
        size_t n_computed = 0;
        for (int64_t i = 0; s.ok() && i < o_.repeat; ++i) {
            s = on.sync({}).get(n_computed);
            if (s.ok()) s = measure(1, &times, [&] { return on.sync(prompt).get(n_computed); });
        }
        clear_progress_line();
        if (!s.ok()) return s;
        const double count = double(n);
        out_["prefill"].push_back({{"tokens", n}, {"tps", count / times.median()}, {"tps_least", count / times.most()}, {"tps_most", count / times.least()}});
        if (!o_.json) std::printf("prefill %6zu tokens   %8.1f tokens/s (%.1f .. %.1f)\n", n, count / times.median(), count / times.most(), count / times.least());
        std::fflush(stdout);
        return {};
    }

    Status decode(size_t depth) {
        const size_t n = static_cast<size_t>(o_.n), n_start = std::max<size_t>(depth, 1);
        auspex::Session on;
        Status s = session(n_start + n * static_cast<size_t>(o_.repeat) + 2).get(on);
        size_t n_computed = 0;
        if (s.ok()) s = on.sync(ids(n_start)).get(n_computed);
        clear_progress_line();
        Span<const Token> fresh;
        if (s.ok()) s = on.next().get(fresh);  // the first pick needs no row: the rest are measured
        if (!s.ok()) return s;
        Times times;
        size_t n_made = 0;
        s = measure(o_.repeat, &times, [&] {
            Status t;
            for (size_t i = 0; t.ok() && i < n; i += fresh.size(), n_made += fresh.size()) t = on.next().get(fresh);
            return t;
        });
        if (!s.ok()) return s;
        const double count = double(n_made) / double(o_.repeat), tps = count / times.median(), gbps = tps * double(bytes_) / 1e9;
        nlohmann::ordered_json row = {{"depth", depth}, {"tokens", n}, {"tps", tps}, {"tps_least", count / times.most()}, {"tps_most", count / times.least()}, {"gbps", gbps}};
        if (read_gbps_ > 0) row["share_of_read"] = gbps / read_gbps_;
        out_["decode"].push_back(row);
        if (!o_.json) {
            std::printf("decode at depth %6zu  %8.1f tokens/s (%.1f .. %.1f)  %.1f GB/s", depth, tps, count / times.most(), count / times.least(), gbps);
            if (read_gbps_ > 0) std::printf(", %.0f %% of the read loop", 100 * gbps / read_gbps_);
            std::printf("\n");
        }
        std::fflush(stdout);
        return {};
    }

    /// A tentative step of n rows with logits for each, as verifying n - 1 drafts takes it; one row is kept.
    Status step(uint32_t n) {
        constexpr uint32_t kStart = 64, kWarm = 2;
        const int64_t n_run = o_.repeat * 4;  // single steps scatter more than runs of many tokens
        const detail::Plan& plan = on_.model.impl()->plan;
        detail::LaneOptions options;
        options.n_context = kStart + kWarm + static_cast<uint32_t>(n_run) + detail::kMaxTentative;
        options.n_ubatch = kStart;
        std::unique_ptr<detail::Lane> lane;
        Status s = on_.model.impl()->program->open(options).get(lane);
        if (!s.ok()) return s;
        const std::vector<Token> all = ids(options.n_context);
        detail::Step work;
        work.tape = &plan.trunk;
        work.ids = all.data();
        work.n_row = kStart;
        s = lane->run(work);
        work.position = kStart;
        work.n_row = work.n_logit = n;
        work.tentative = true;
        const auto once = [&] {
            work.ids = all.data() + work.position;
            const Status t = lane->run(work);
            if (t.ok()) lane->commit(1), ++work.position;
            return t;
        };
        for (uint32_t i = 0; s.ok() && i < kWarm; ++i) s = once();
        Times times;
        if (s.ok()) s = measure(n_run, &times, once);
        if (!s.ok()) return s;
        const double ms = times.median() * 1e3;
        if (n == 1) one_row_ms_ = ms;
        nlohmann::ordered_json row = {{"rows", n}, {"ms", ms}, {"ms_least", times.least() * 1e3}, {"ms_most", times.most() * 1e3}};
        if (one_row_ms_ > 0) row["relative"] = ms / one_row_ms_;
        out_["step"].push_back(row);
        if (!o_.json) {
            std::printf("step of %u row%s  %8.2f ms (%.2f .. %.2f)", n, n == 1 ? " " : "s", ms, times.least() * 1e3, times.most() * 1e3);
            if (one_row_ms_ > 0) std::printf("  %.2f of one row", ms / one_row_ms_);
            std::printf("\n");
        }
        std::fflush(stdout);
        return {};
    }

    /// Whole cycles: n tokens drafted, verified, picked. With --synth-accept everything is computed, and only the
    /// comparison replaced by a coin: a random model shows what a trained one would reach.
    Status draft(int depth) {
        constexpr size_t kStart = 64;
        const size_t n = static_cast<size_t>(o_.n);
        auspex::SessionOptions options;
        options.run_ahead = 3;
        options.n_context = static_cast<uint32_t>(kStart + (n + auspex::kMaxDraft) * static_cast<size_t>(o_.repeat + 1) + 2);
        options.draft.depth = depth;
        if (depth > 0) options.draft.source = auspex::Draft::mtp;
        Status s = depth > 0 ? choose_draft_vocab(o_.draft_vocab, on_.model, &options.draft) : Status();
        auspex::Session on;
        if (s.ok()) s = auspex::Session::create(on_.model, options).get(on);
        size_t n_computed = 0;
        if (s.ok()) s = on.sync(ids(kStart)).get(n_computed);
        clear_progress_line();
        if (!s.ok()) return s;
        on.impl()->synth_accept = static_cast<float>(o_.synth_accept);
        Times times;
        size_t n_made = 0, n_pass = 0;
        Span<const Token> fresh;
        const auto once = [&] {
            Status t;
            for (size_t i = 0; t.ok() && i < n; i += fresh.size(), n_made += fresh.size(), ++n_pass) t = on.next().get(fresh);
            return t;
        };
        s = once();
        n_made = n_pass = 0;
        if (s.ok()) s = measure(o_.repeat, &times, once);
        if (!s.ok()) return s;
        const double per_run = double(n_made) / double(o_.repeat), tps = per_run / times.median();
        const double ms = times.median() * 1e3 / (double(n_pass) / double(o_.repeat));
        if (depth == 0) plain_ms_ = ms, plain_tps_ = tps;
        const double per_cycle = double(n_made) / double(n_pass), least = per_run / times.most(), most = per_run / times.least();
        nlohmann::ordered_json row = {{"depth", depth}, {"tps", tps}, {"tps_least", least}, {"tps_most", most}, {"cycle_ms", ms}, {"relative_cycle", ms / plain_ms_}};
        row["speedup"] = tps / plain_tps_;
        row["tokens_per_cycle"] = per_cycle;
        row["head_bytes"] = on.stats().draft_bytes;
        if (o_.synth_accept > 0) row["synth_accept"] = o_.synth_accept;
        out_["mtp"].push_back(row);
        if (!o_.json)
            std::printf("draft %d           %8.1f tokens/s (%.1f .. %.1f)  %.2f tokens a cycle of %.2f ms, %.2f plain ones; %.2f times as fast\n", depth, tps, least,
                        most, per_cycle, ms, ms / plain_ms_, tps / plain_tps_);
        std::fflush(stdout);
        return {};
    }

    const BenchOptions& o_;
    Loaded on_;
    uint64_t bytes_ = 0;
    uint32_t n_thread_ = 0;
    double read_gbps_ = 0, one_row_ms_ = 0, plain_ms_ = 0, plain_tps_ = 0;
    nlohmann::ordered_json out_;
};

}  // namespace

void add_bench(CLI::App& app, Chosen& chosen) {
    CLI::App* command = app.add_subcommand("bench", "Measure prefill, decoding and steps of several rows");
    auto o = std::make_shared<BenchOptions>();
    add_place(*command, o->place);
    add_window(*command, o->window);
    command->add_option("--prefill", o->prefill, "Prompt lengths; empty: none")->capture_default_str();
    command->add_option("--depth", o->depths, "Tokens in the history before decoding; empty: none")->capture_default_str();
    command->add_option("--rows", o->rows, "Rows of a step, 1 .. 8; empty: none")->capture_default_str();
    command->add_option("--mtp", o->mtp, "Draft depths to measure whole cycles at, as in 1,2,3,4; empty: none");
    command->add_option("--synth-accept", o->synth_accept, "Take each guess for right with this chance, whatever it says: for models with random weights");
    command->add_option("--draft-vocab", o->draft_vocab, "A draft head over N ids, those of FILE, or auto");
    command->add_option("-n,--tokens", o->n, "Tokens to decode in each run")->capture_default_str();
    command->add_option("--repeat", o->repeat, "Runs of each measurement")->capture_default_str();
    command->add_flag("--json", o->json, "One JSON object instead of a table");
    command->add_flag("--controller", o->controller, "Score the choice of draft depth against hindsight");
    command->add_flag("--virtual", o->virtual_clock, "With --controller: synthetic texts and costs on a virtual clock");
    command->callback([o, &chosen] {
        chosen = [o] {
            if (o->controller && o->virtual_clock) return report(bench_controller_virtual(o->repeat, o->json));
            if (o->controller || o->virtual_clock) return report(Status(Code::bad_argument, "bench has --controller or --virtual alone, expected both: --controller --virtual"));
            Bench bench(*o);
            return report(bench.run());
        };
    });
}

}  // namespace cli

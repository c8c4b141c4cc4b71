// bench_rows: reading prompts, decoding, and steps of several rows.
#include "bench.h"
#include "engine/memory_plan.h"
#include "engine/session.h"
#include "examples/cli/platform.h"

namespace cli {
namespace {

namespace detail = auspex::detail;

/// One length after the other; over several, how flat the speed is.
class Rows {
  public:
    explicit Rows(Bench& b) : b_(b), o_(b.o) {}

    Status run() {
        Status s = b_.open();
        if (s.ok()) s = b_.warm_up();
        if (s.ok()) b_.say("median of %lld runs (min .. max)\n\n", static_cast<long long>(o_.repeat));
        for (size_t i = 0; s.ok() && i < o_.prefill.size(); ++i) s = prefill(static_cast<size_t>(o_.prefill[i]));
        if (s.ok() && prefill_tps_.size() > 1) flatness();
        for (size_t i = 0; s.ok() && i < o_.depths.size(); ++i) s = decode(static_cast<size_t>(o_.depths[i]));
        const std::vector<Token> start(1, 0), &depths = o_.depths.empty() ? start : o_.depths;
        for (size_t i = 0; s.ok() && !o_.rows.empty() && i < depths.size(); ++i)
            s = steps(static_cast<size_t>(depths[i]));
        return s;
    }

  private:
    Status prefill(size_t n) {
        auspex::Session on;
        Status s = b_.session(o_.window, n, "--prefill").get(on);
        if (!s.ok()) return s;
        const std::vector<Token> prompt = b_.ids(n);
        Times times;
        auspex::SyncReport synced;
        for (int64_t i = 0; s.ok() && i < o_.repeat; ++i) {
            s = on.sync({}).get(synced);
            if (s.ok()) s = measure(1, &times, [&] { return on.sync(prompt).get(synced); });
        }
        clear_progress_line();
        if (!s.ok()) return s;
        const double count = double(n);
        prefill_tps_.push_back(count / times.median());
        b_.out["prefill"].push_back({{"tokens", n},
                                     {"tps", count / times.median()},
                                     {"tps_least", count / times.max()},
                                     {"tps_most", count / times.min()},
                                     {"session_bytes", on.stats().memory_bytes}});
        b_.say("prefill %6zu tokens   %8.1f tokens/s (%.1f .. %.1f)\n", n, count / times.median(), count / times.max(),
               count / times.min());
        return {};
    }

    void flatness() {
        const double low = *std::min_element(prefill_tps_.begin(), prefill_tps_.end()),
                     high = *std::max_element(prefill_tps_.begin(), prefill_tps_.end());
        b_.out["prefill_slowest_over_fastest"] = low / high;
        b_.say("the slowest of these lengths reaches %.1f %% of the fastest\n", 100 * low / high);
    }

    Status decode(size_t depth) {
        const size_t n = static_cast<size_t>(o_.n), n_start = std::max<size_t>(depth, 1);
        auspex::Session on;
        Status s = b_.session(o_.window, n_start + n * static_cast<size_t>(o_.repeat) + 2,
                              "--depth, and -n for each of --repeat")
                       .get(on);
        auspex::SyncReport synced;
        if (s.ok()) s = on.sync(b_.ids(n_start)).get(synced);
        clear_progress_line();
        Span<const Token> tokens;
        if (s.ok()) s = on.next().get(tokens);  // the first sample needs no row: the rest are measured
        if (!s.ok()) return s;
        Times times;
        std::vector<double> shares;
        size_t n_made = 0;
        double before = 0, after = 0;  // GB/s of the read loop around each run: other programs use the memory, too
        if (b_.read_loop.is_open()) s = b_.read_loop.run().get(before);
        for (int64_t k = 0; s.ok() && k < o_.repeat; ++k, before = after) {
            size_t i = 0;
            s = measure(1, &times, [&] {
                Status t;
                for (; t.ok() && i < n; i += tokens.size()) t = on.next().get(tokens);
                return t;
            });
            n_made += i;
            if (!s.ok() || !b_.read_loop.is_open()) continue;
            s = b_.read_loop.run().get(after);
            shares.push_back(double(i) * double(b_.bytes) / times.s.back() / 1e9 / ((before + after) / 2));
        }
        if (!s.ok()) return s;
        const double count = double(n_made) / double(o_.repeat), tps = count / times.median(),
                     gbps = tps * double(b_.bytes) / 1e9;
        nlohmann::ordered_json row = {{"depth", depth},
                                      {"tokens", n},
                                      {"tps", tps},
                                      {"tps_least", count / times.max()},
                                      {"tps_most", count / times.min()},
                                      {"gbps", gbps}};
        if (!shares.empty()) row["share_of_read"] = median(shares);
        b_.out["decode"].push_back(row);
        b_.say("decode at depth %6zu  %8.1f tokens/s (%.1f .. %.1f)  %.1f GB/s", depth, tps, count / times.max(),
               count / times.min(), gbps);
        if (!shares.empty())
            b_.say(", %.0f %% of the read loop (%.0f .. %.0f)", 100 * median(shares),
                   100 * *std::min_element(shares.begin(), shares.end()),
                   100 * *std::max_element(shares.begin(), shares.end()));
        b_.say("\n");
        return {};
    }

    /// Steps of every number of rows at one depth. The prompt is read once; each number of rows begins at its end.
    Status steps(size_t depth) {
        constexpr uint32_t kShortest = 64;
        const auspex::Model::Impl& model = *b_.on.model.impl();
        const uint32_t start = std::max(kShortest, static_cast<uint32_t>(depth));
        auspex::SessionOptions asked;
        asked.draft = Bench::no_draft();
        Status s = context_rows(start + (kWarm + uint64_t(n_run()) + 1) * detail::kMaxTentative,
                                "--depth, and steps for each of --repeat")
                       .get(asked.n_context);
        if (s.ok()) s = choose_window(o_.window, &asked);
        detail::ContextOptions options;
        if (s.ok()) s = detail::plan_context_options(model.plan, asked, &options, nullptr);
        std::unique_ptr<detail::Context> context;
        if (s.ok()) s = model.program->open(options).get(context);
        if (!s.ok()) return s;
        const std::vector<Token> all = b_.ids(options.n_context);
        detail::Step work;
        work.tape = &model.plan.trunk;
        for (uint32_t at = 0; s.ok() && at < start; at += work.n_row) {
            if (interrupted()) return Status(Code::cancelled, "interrupted");
            work.ids = all.data() + at;
            work.n_row = std::min(start - at, options.n_ubatch);
            work.place(at);
            s = context->run(work);
        }
        std::vector<std::byte> state;
        detail::VectorWriter to(&state);
        if (s.ok()) s = context->save_state(detail::StatePart::trunk, start, to);
        double one_row_ms = 0;
        for (size_t i = 0; s.ok() && i < o_.rows.size(); ++i) {
            detail::SpanReader from({state.data(), state.size()});
            if (i > 0) s = context->restore_state(detail::StatePart::trunk, start, from);
            if (s.ok()) s = step(*context, all, depth, start, static_cast<uint32_t>(o_.rows[i]), &one_row_ms);
        }
        return s;
    }

    /// A step of n rows, as in verifying n - 1 drafts: all are sampled, one or more kept. In a device decode loop no
    /// logits come back to the host.
    Status step(detail::Context& context, const std::vector<Token>& all, size_t depth, uint32_t start, uint32_t n,
                double* one_row_ms) {
        Status s;
        detail::Step work;
        std::function<Status()> once;
        uint32_t n_ahead = 0;
        if (detail::DeviceLoop* loop = context.device_loop()) {
            detail::LoopStart begin;
            begin.history = Span<const Token>(all.data(), start + 1);
            begin.limit = static_cast<uint32_t>(all.size());
            s = loop->start(begin);
            n_ahead = 2;  // so that the device never waits for the host
            for (uint32_t i = 0; s.ok() && i < n_ahead; ++i) s = loop->queue(n - 1);
            once = [&, loop] {
                const Status t = loop->queue(n - 1);
                return t.ok() ? loop->wait().status() : t;
            };
        } else {
            work.tape = &b_.on.model.impl()->plan.trunk;
            work.place(start);
            work.n_row = work.n_logit = n;
            work.tentative = true;
            once = [&] {
                work.ids = all.data() + work.first_row;
                const Status t = context.run(work);
                if (t.ok()) context.commit(1), work.place(work.first_row + 1);
                return t;
            };
        }
        for (uint32_t i = 0; s.ok() && i < kWarm; ++i) s = once();
        Times times;
        if (s.ok()) s = measure(n_run(), &times, once);
        for (; s.ok() && n_ahead > 0; --n_ahead) s = context.device_loop()->wait().status();
        if (!s.ok()) return s;
        const double ms = times.median() * 1e3;
        if (n == 1) *one_row_ms = ms;
        nlohmann::ordered_json row = {
            {"depth", depth}, {"rows", n}, {"ms", ms}, {"ms_least", times.min() * 1e3}, {"ms_most", times.max() * 1e3}};
        if (*one_row_ms > 0) row["relative"] = ms / *one_row_ms;
        b_.out["step"].push_back(row);
        b_.say("step at depth %6zu of %u row%s  %8.3f ms (%.3f .. %.3f)", depth, n, n == 1 ? " " : "s", ms,
               times.min() * 1e3, times.max() * 1e3);
        if (*one_row_ms > 0) b_.say("  %.2f of one row", ms / *one_row_ms);
        b_.say("\n");
        return {};
    }

    static constexpr uint32_t kWarm = 4;
    int64_t n_run() const { return o_.repeat * 4; }  // single steps scatter more than runs of many tokens

    Bench& b_;
    const BenchOptions& o_;
    std::vector<double> prefill_tps_;
};

}  // namespace

Status bench_rows(Bench& b) {
    return b.o.prefill.empty() && b.o.depths.empty() && b.o.rows.empty() ? Status() : Rows(b).run();
}

Status bench_long(Bench& b) {
    const BenchOptions& o = b.o;
    const size_t n_all = static_cast<size_t>(*o.longest), n_decode = static_cast<size_t>(o.n);
    // Reading stops at each power of ten and at the end; a few tokens are decoded there, which end before the next
    // stop.
    std::vector<size_t> stops;
    for (size_t at = 1000, next = 0; at + n_decode < n_all; at *= 10)
        if (at >= next) stops.push_back(at), next = at + n_decode + 1;
    stops.push_back(n_all);
    auspex::SessionOptions options;
    options.progress = progress_line();
    options.checkpoint_bytes = 0;
    options.draft = Bench::no_draft();
    Status s = context_rows(n_all + stops.size() * (n_decode + 1), "--long, and -n at each power of ten")
                   .get(options.n_context);
    if (!s.ok()) return s;
    WindowFlags window = o.window;
    const std::string smaller = "all:" + std::to_string(std::min<uint64_t>(4096, options.n_context / 4)) + "+4";
    if (window.window.empty() && window.budget.empty()) window.window = smaller;
    s = choose_window(window, &options);
    if (s.ok()) s = b.open();
    if (s.ok()) s = b.warm_up();
    auspex::Session on;
    if (s.ok()) s = auspex::Session::create(b.on.model, options).get(on);
    if (!s.ok()) return s;
    const std::string windows = auspex::print_windows(on.stats().windows);
    for (const auspex::LayerWindow& w : on.stats().windows)
        if (w.window == 0)
            return Status(Code::bad_argument, "--long shows what bounded memory does, but layer " +
                                                  std::to_string(w.layer) + " sees everything (" + windows +
                                                  "); give every layer a window of fewer than " +
                                                  std::to_string(options.n_context) +
                                                  " rows, which are read and decoded, as in --window " + smaller);
    b.out["windows"] = windows;
    b.say("windows %s\n\n%12s %14s %14s %16s %16s\n", windows.c_str(), "tokens", "read, t/s", "decode, t/s",
          "session, bytes", "process, bytes");
    const std::vector<Token> text = b.ids(n_all);
    std::vector<Token> history;
    history.reserve(options.n_context);
    for (const size_t stop : stops) {
        history.insert(history.end(), text.begin() + static_cast<std::ptrdiff_t>(history.size()),
                       text.begin() + static_cast<std::ptrdiff_t>(stop));
        auspex::SyncReport synced;
        double start = now();
        s = on.sync(history).get(synced);
        clear_progress_line();
        const double read_s = now() - start;
        Span<const Token> tokens;
        if (s.ok()) s = on.next().get(tokens);  // the first sample needs no row
        start = now();
        size_t n_made = 0;
        for (; s.ok() && n_made < n_decode && !interrupted(); n_made += tokens.size()) s = on.next().get(tokens);
        if (s.ok() && interrupted()) s = Status(Code::cancelled, "interrupted");
        if (!s.ok()) return s;
        const double decode_s = now() - start, read_tps = double(synced.rows_computed) / read_s,
                     decode_tps = double(n_made) / decode_s;
        history.assign(on.history().begin(), on.history().end());
        const uint64_t session_bytes = on.stats().memory_bytes, process_bytes = resident_bytes();
        nlohmann::ordered_json row = {
            {"tokens", stop}, {"read_tps", read_tps}, {"decode_tps", decode_tps}, {"session_bytes", session_bytes}};
        if (process_bytes > 0) row["process_bytes"] = process_bytes;
        b.out["long"].push_back(row);
        b.say("%12zu %14.1f %14.1f %16llu %16llu\n", stop, read_tps, decode_tps,
              static_cast<unsigned long long>(session_bytes), static_cast<unsigned long long>(process_bytes));
    }
    return {};
}

}  // namespace cli

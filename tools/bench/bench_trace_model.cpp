// The replay on a model: Session::sync with the trace's marks, in token ids made from its seeds. What the model
// generates takes the place of the trace's answers in later prompts.
#include <cmath>
#include <fstream>

#include "bench_trace.h"
#include "engine/session.h"
#include "examples/cli/platform.h"

namespace cli {
namespace {

namespace detail = auspex::detail;

/// Keeps what another policy than a session's own would keep. Before the first token.
void set_policy(auspex::Session& session, detail::PrefixPolicy policy) {
    auspex::Session::Impl& s = *session.impl();
    detail::PrefixOptions options = s.tree->options();
    if (options.policy == policy || options.budget_bytes == 0) return;
    options.policy = policy;
    s.tree.reset();  // before the next one: both drop everything in the store
    s.tree.reset(new detail::PrefixTree(options, *s.store));
    s.trunk->set_tree(*s.tree);
}

class ModelReplay {
  public:
    explicit ModelReplay(Bench& b) : b_(b), o_(b.o) {}

    Status run() {
        if (!o_.session_file.empty() && std::ifstream(o_.session_file).good())
            return Status(Code::bad_argument, "--session-file: '" + o_.session_file +
                                                  "' exists and would be replaced and deleted; name a new file");
        detail::PrefixPolicy policy{};
        Status s = replay_policy(o_).get(policy);
        if (s.ok()) s = load_trace(o_, &trace_);
        if (s.ok()) s = b_.open();
        if (s.ok()) s = open_session(policy);
        if (s.ok()) s = b_.warm_up();
        b_.out["trace"] = trace_.name;
        b_.out["policy"] = o_.policy;
        for (size_t i = 0; s.ok() && i < trace_.requests.size(); ++i) {
            if (interrupted()) return Status(Code::cancelled, "interrupted");
            s = serve(i, trace_.requests[i]);
        }
        if (s.ok()) report();
        return s.ok() && is_loop() ? measure_loop() : s;
    }

  private:
    bool is_loop() const { return o_.replay == "loop"; }
    auspex::Session::Impl& impl() { return *session_.impl(); }

    Status open_session(detail::PrefixPolicy policy) {
        auspex::SessionOptions options;
        const size_t extra = is_loop() ? kExtraAppends * (static_cast<size_t>(o_.append) + 1) + kSwitches : 0;
        size_t n_context = 0;
        Status s = replay_context(o_, trace_.max_tokens() + extra + 1).get(n_context);
        if (s.ok())
            s = context_rows(n_context, o_.replay_context != 0 ? "--context" : "the longest request of --replay")
                    .get(options.n_context);
        if (policy == detail::PrefixPolicy::none)
            options.checkpoint_bytes = 0;
        else if (s.ok() && !o_.checkpoint_bytes.empty())
            s = read_size(o_.checkpoint_bytes, "--checkpoint-bytes").get(options.checkpoint_bytes);
        options.draft = Bench::no_draft();
        options.progress = progress_line();
        if (s.ok()) s = choose_window(o_.window, &options);
        if (s.ok()) s = auspex::Session::create(b_.on.model, options).get(session_);
        if (s.ok()) set_policy(session_, policy);
        return s;
    }

    std::vector<Token> ids_of(const std::vector<TextPart>& parts) const {
        std::vector<Token> ids;
        for (const TextPart& part : parts) {
            const auto at = answers_.find(part.seed);
            if (at == answers_.end() || at->second.size() < part.n)
                append_tokens(part, &ids, b_.on.model.info().n_vocab);
            else
                ids.insert(ids.end(), at->second.begin(), at->second.begin() + static_cast<std::ptrdiff_t>(part.n));
        }
        return ids;
    }

    /// Brings the session to `prompt` and samples one token.
    Status first_token(const std::vector<Token>& prompt, const std::vector<auspex::Mark>& marks, Served* served) {
        const double start = now();
        Status s = session_.sync(prompt, marks).get(served->sync);
        served->sync_s = now() - start;
        if (s.ok()) s = session_.next(sampling_).status();
        served->first_s = now() - start;
        clear_progress_line();
        served->n_prompt = prompt.size();
        return s;
    }

    Status serve(size_t i, const TraceRequest& r) {
        Served served;
        sampling_.temperature = 1;  // the same prompt again gets another answer
        sampling_.top_k = 20;
        sampling_.seed = i;
        served.needed = r.n_prompt - std::min(seen_.known(r.prompt), r.n_prompt - 1);
        Status s = first_token(ids_of(r.prompt), r.marks, &served);
        const double start = now();
        while (s.ok() && session_.history().size() < r.n_prompt + r.answer.n) s = session_.next(sampling_).status();
        if (!s.ok()) return s;
        if (r.answer.n > 1) decode_s_ += now() - start, n_decoded_ += r.answer.n - 1;
        const Span<const Token> history = session_.history();
        answers_[r.answer.seed].assign(history.begin() + r.n_prompt, history.end());
        std::vector<TextPart> text = r.prompt;
        if (r.answer.n > 1) text.push_back({r.answer.seed, r.answer.n - 1});  // the last token is not computed yet
        seen_.add(text);
        served.held_bytes = impl().tree->held_bytes();
        totals_.add(served, o_);
        prefill_s_ += served.sync_s;
        first_.push_back(1e3 * served.first_s);
        if (r.kind == RequestKind::step) steps_.push_back(served);
        return {};
    }

    void report() {
        std::vector<double> sorted = first_;
        std::sort(sorted.begin(), sorted.end());
        const double p90 = sorted[(sorted.size() * 9 - 1) / 10];                         // the nearest rank
        const double decode_tps = decode_s_ > 0 ? double(n_decoded_) / decode_s_ : NAN;  // JSON writes null
        const detail::PrefixTree& tree = *impl().tree;
        nlohmann::ordered_json& out = b_.out;
        out["budget"] = tree.options().budget_bytes;
        out["context"] = tree.options().n_context;
        out["checkpoint_bytes"] = tree.options().state_bytes;
        out["row_bytes"] = tree.options().row_bytes;
        totals_.write(&out);
        out["peak_bytes"] = tree.peak_bytes();
        out["rows_parked"] = tree.rows_parked();
        out["prefill_s"] = prefill_s_;
        out["decode_tps"] = decode_tps;
        out["first_token_ms"] = {{"median", median(first_)}, {"p90", p90}, {"most", sorted.back()}};
        if (o_.json) return;
        constexpr double kMiB = 1048576;
        b_.say("checkpoint %.2f MiB, %.1f KiB a row, context of %zu rows; policy %s, budget %.0f MiB\n",
               double(tree.options().state_bytes) / kMiB, double(tree.options().row_bytes) / 1024,
               tree.options().n_context, o_.policy.c_str(), double(tree.options().budget_bytes) / kMiB);
        totals_.print(trace_);
        b_.say("  peak %.1f MiB; %llu rows parked\n", double(tree.peak_bytes()) / kMiB,
               static_cast<unsigned long long>(tree.rows_parked()));
        b_.say("  first token %.1f ms (median), %.1f (p90), %.1f (most); prompts %.2f s", median(first_), p90,
               sorted.back(), prefill_s_);
        if (n_decoded_ > 0) b_.say(", answers %.1f tokens/s", decode_tps);
        b_.say("\n");
    }

    // ---- the agent loop: what a step costs beside the prefill of its own rows

    static constexpr size_t kExtraAppends = 5, kSwitches = 3;

    /// Appends rows with no title request in between.
    Status measure_appends(Times* times) {
        for (size_t i = 0; i < kExtraAppends; ++i) {
            std::vector<Token> ids(session_.history().begin(), session_.history().end());
            append_tokens({seed_of(41, i), static_cast<size_t>(o_.append)}, &ids, b_.on.model.info().n_vocab);
            Served served;
            const Status s = first_token(ids, {}, &served);
            if (!s.ok()) return s;
            times->s.push_back(served.first_s);
        }
        return {};
    }

    /// Goes to a title request and back to the agent's text, which costs one row of its own.
    Status measure_switches(Times* times) {
        for (size_t i = 0; i < kSwitches; ++i) {
            const std::vector<Token> agent(session_.history().begin(), session_.history().end());
            const TraceRequest title = title_request(seed_of(42, i), static_cast<size_t>(o_.title));
            Served served;
            Status s = first_token(ids_of(title.prompt), title.marks, &served);
            if (s.ok()) s = first_token(agent, {}, &served);
            if (!s.ok()) return s;
            times->s.push_back(served.sync_s);
        }
        return {};
    }

    /// Gigabytes a second of save() and restore().
    Status measure_snapshot(nlohmann::ordered_json* out) {
        auspex::Snapshot snapshot;
        double start = now();
        Status s = session_.save().get(snapshot);
        const double save_s = now() - start, gb = double(snapshot.bytes.size()) / 1e9;
        start = now();
        if (s.ok()) s = session_.restore(snapshot);
        const double restore_s = now() - start;
        (*out)["snapshot_bytes"] = snapshot.bytes.size();
        (*out)["save_gbps"] = gb / save_s;
        (*out)["restore_gbps"] = gb / restore_s;
        return s;
    }

    /// The same with a file of Session::save and load, which is deleted again.
    Status measure_file(nlohmann::ordered_json* out) {
        if (o_.session_file.empty()) return {};
        const char* path = o_.session_file.c_str();
        Times saves;
        auspex::SaveReport first;
        for (int i = 0; i < 2; ++i) {
            auspex::SaveReport report;
            const double start = now();
            const Status s = session_.save(path).get(report);
            if (!s.ok()) return s;
            saves.s.push_back(now() - start);
            if (i == 0) first = report;
        }
        const double start = now();
        const Status s = session_.load(path).status();
        const double load_s = now() - start, gb = double(first.file_bytes) / 1e9;
        std::remove(path);
        (*out)["file_bytes"] = first.file_bytes;
        (*out)["file_save_gbps"] = gb / saves.s[0];
        (*out)["file_save_again_ms"] = 1e3 * saves.s[1];
        (*out)["file_load_gbps"] = gb / load_s;
        b_.say("file of %.1f MB: save %.2f GB/s, again with nothing new %.1f ms, load %.2f GB/s\n", 1e3 * gb,
               gb / saves.s[0], 1e3 * saves.s[1], gb / load_s);
        return s;
    }

    Status measure_loop() {
        Times steps, appends, switches;
        nlohmann::ordered_json& out = b_.out["loop"];
        size_t appended = 0, computed = 0;
        for (const Served& step : steps_) {
            appended += step.needed;
            computed += step.sync.rows_computed;
            steps.s.push_back(step.first_s);
            out["steps"].push_back({{"rows_appended", step.needed},
                                    {"rows_computed", step.sync.rows_computed},
                                    {"first_token_ms", 1e3 * step.first_s}});
        }
        if (steps.s.empty()) return measure_file(&out);  // --requests ends before the first step
        Status s = measure_appends(&appends);
        if (s.ok() && o_.title > 0) s = measure_switches(&switches);
        if (s.ok()) s = measure_snapshot(&out);
        if (!s.ok()) return s;
        out["rows_appended"] = appended;
        out["rows_computed"] = computed;
        out["first_token_ms"] = 1e3 * steps.median();
        out["own_rows_ms"] = 1e3 * appends.median();
        if (o_.title > 0) out["switch_back_ms"] = 1e3 * switches.median();
        b_.say("\n%6s  %14s %14s %16s\n", "step", "rows appended", "rows computed", "first token, ms");
        for (size_t i = 0; i < steps_.size(); ++i)
            b_.say("%6zu  %14zu %14zu %16.1f\n", i + 1, steps_[i].needed, steps_[i].sync.rows_computed,
                   1e3 * steps_[i].first_s);
        b_.say("%6s  %14zu %14zu %16.1f (median)\n", "all", appended, computed, 1e3 * steps.median());
        b_.say("the same rows with no title request before them: %.1f ms; a step takes %.3f times as long\n",
               1e3 * appends.median(), steps.median() / appends.median());
        if (o_.title > 0) b_.say("back from a title request, and one row: %.1f ms\n", 1e3 * switches.median());
        b_.say("save %.2f GB/s, restore %.2f GB/s of %.1f MB\n", out["save_gbps"].get<double>(),
               out["restore_gbps"].get<double>(), out["snapshot_bytes"].get<double>() / 1e6);
        return measure_file(&out);
    }

    Bench& b_;
    const BenchOptions& o_;
    RequestTrace trace_;
    auspex::Session session_;
    auspex::Sampling sampling_;
    SeenText seen_;
    std::unordered_map<uint64_t, std::vector<Token>> answers_;  ///< generated, by the seed of the trace's answer
    Totals totals_;
    std::vector<Served> steps_;
    std::vector<double> first_;  ///< milliseconds, by request
    double prefill_s_ = 0, decode_s_ = 0;
    size_t n_decoded_ = 0;
};

}  // namespace

Status bench_trace_model(Bench& b) { return ModelReplay(b).run(); }

}  // namespace cli

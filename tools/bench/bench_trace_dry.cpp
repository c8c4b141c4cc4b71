// The dry replay: PrefixTree with a store that counts bytes and copies nothing.
#include "bench_trace.h"
#include "examples/cli/platform.h"

namespace cli {
namespace {

namespace detail = auspex::detail;

/// Sizes of a model: layers with a recurrent state and their value heads, bytes of keys and values of a token.
struct Geometry {
    const char* name;
    uint64_t n_delta_layer, n_value_head, row_bytes;
    uint64_t state_bytes() const {
        const uint64_t state = n_value_head * 128 * 128 * 4, conv = 3 * (2 * 16 * 128 + n_value_head * 128) * 4;
        return n_delta_layer * (state + conv);
    }
};
constexpr Geometry kGeometries[] = {{"0.8b", 18, 16, 12 << 10},
                                    {"4b", 24, 32, 32 << 10},
                                    {"9b", 24, 32, 32 << 10},
                                    {"27b", 48, 48, 64 << 10},
                                    {"35b-a3b", 30, 32, 20 << 10}};
Result<const Geometry*> find_geometry(const std::string& name) {
    std::vector<std::string> names;
    for (const Geometry& g : kGeometries) names.push_back(g.name);
    size_t i = 0;
    const Status s = index_of("--geometry", name, names).get(i);
    if (!s.ok()) return s;
    return &kGeometries[i];
}

/// Copies nothing: PrefixTree counts.
class NoStore : public detail::RowStore {
  public:
    Status keep_state(uint32_t, size_t) override { return ++n_kept, Status(); }
    Status load_state(uint32_t, size_t) override { return ++n_loaded, Status(); }
    void drop_state(uint32_t) override {}
    Status park_rows(Span<const detail::ParkedBlock>) override { return {}; }
    Status restore_rows(Span<const detail::ParkedBlock>) override { return {}; }
    uint64_t last_write(size_t) const override { return 0; }
    void drop_rows(uint32_t) override {}
    void drop_all() override {}
    void reset() override {}
    size_t n_kept = 0, n_loaded = 0;
};

class DryReplay {
  public:
    DryReplay(const BenchOptions& o, const detail::PrefixOptions& options) : o_(o), tree_(options, store_) {}

    Status run(const RequestTrace& trace) {
        for (const TraceRequest& r : trace.requests) {
            if (interrupted()) return Status(Code::cancelled, "interrupted");
            const Status s = serve(r);
            if (!s.ok()) return s;
        }
        return {};
    }
    const Totals& totals() const { return totals_; }
    uint64_t restored() const { return restored_; }
    const detail::PrefixTree& tree() const { return tree_; }
    const NoStore& store() const { return store_; }

  private:
    Status serve(const TraceRequest& r) {
        std::vector<Token> prompt;
        prompt.reserve(r.n_prompt);
        for (const TextPart& part : r.prompt) append_tokens(part, &prompt);
        const size_t needed = r.n_prompt - std::min(seen_.known(r.prompt), r.n_prompt - 1);
        detail::PrefixReport report;
        const Status s = tree_.sync(prompt, r.marks, true).get(report);
        if (!s.ok()) return s;
        while (tree_.n_row() < tree_.tokens().size()) {
            const size_t n = tree_.next_stop() - tree_.n_row();
            tree_.make_room(n);
            tree_.computed(n);
        }
        generate(r);
        count(needed, report);
        return {};
    }
    /// Decodes the answer. As in a session, its last token is sampled and not computed.
    void generate(const TraceRequest& r) {
        std::vector<Token> answer;
        append_tokens(r.answer, &answer);
        for (size_t k = 0; k < answer.size(); ++k) {
            tree_.append(answer[k]);
            if (k + 1 == answer.size()) break;
            tree_.make_room(1);
            tree_.computed(1, true);
            if (tree_.is_reply_row(tree_.n_row())) tree_.keep_reply();
        }
        std::vector<TextPart> text = r.prompt;
        if (r.answer.n > 1) text.push_back({r.answer.seed, r.answer.n - 1});
        seen_.add(text);
    }
    void count(size_t needed, const detail::PrefixReport& report) {
        Served served;
        served.n_prompt = report.n_row;
        served.needed = needed;
        served.held_bytes = tree_.held_bytes();
        served.sync.rows_computed = report.rows_computed;
        served.sync.rows_reused = report.rows_reused;
        served.sync.diverged_at = report.diverged_at;
        served.sync.checkpoint_row = report.checkpoint_row;
        served.sync.reason = report.reason;
        served.sync.text = describe(report);
        totals_.add(served, o_);
        restored_ += report.rows_restored;
    }

    const BenchOptions& o_;
    NoStore store_;
    detail::PrefixTree tree_;
    SeenText seen_;
    Totals totals_;
    uint64_t restored_ = 0;
};

Status print_json(const RequestTrace& trace, const BenchOptions& o, const DryReplay& replay) {
    const detail::PrefixOptions& options = replay.tree().options();
    nlohmann::ordered_json out;
    out["trace"] = trace.name;
    out["geometry"] = o.geometry;
    out["policy"] = o.policy;
    out["budget"] = options.budget_bytes;
    out["context"] = options.n_context;
    out["checkpoint_bytes"] = options.state_bytes;
    out["row_bytes"] = options.row_bytes;
    replay.totals().write(&out);
    out["peak_bytes"] = replay.tree().peak_bytes();
    out["checkpoints_taken"] = replay.store().n_kept;
    out["checkpoints_loaded"] = replay.store().n_loaded;
    out["rows_parked"] = replay.tree().rows_parked();
    out["rows_restored"] = replay.restored();
    return print(json_line(out) + "\n");
}

Status print_table(const RequestTrace& trace, const BenchOptions& o, const DryReplay& replay) {
    constexpr double kMiB = 1048576;
    const detail::PrefixOptions& options = replay.tree().options();
    std::printf("%s: checkpoint %.2f MiB, %llu KiB a row, context of %zu rows; policy %s, budget %.0f MiB\n",
                o.geometry.c_str(), double(options.state_bytes) / kMiB,
                static_cast<unsigned long long>(options.row_bytes >> 10), options.n_context, o.policy.c_str(),
                double(options.budget_bytes) / kMiB);
    replay.totals().print(trace);
    std::printf("  peak %.1f MiB; %zu checkpoints taken, %zu loaded; %llu rows parked, %llu restored\n",
                double(replay.tree().peak_bytes()) / kMiB, replay.store().n_kept, replay.store().n_loaded,
                static_cast<unsigned long long>(replay.tree().rows_parked()),
                static_cast<unsigned long long>(replay.restored()));
    return print("");
}

}  // namespace

Status bench_trace(const BenchOptions& o) {
    const Geometry* geometry = nullptr;
    Status s = find_geometry(o.geometry).get(geometry);
    detail::PrefixOptions options;
    if (s.ok()) s = replay_policy(o).get(options.policy);
    if (s.ok())
        s = read_size(o.checkpoint_bytes.empty() ? "512M" : o.checkpoint_bytes, "--checkpoint-bytes")
                .get(options.budget_bytes);
    RequestTrace trace;
    if (s.ok()) s = load_trace(o, &trace);
    if (s.ok()) s = replay_context(o, trace.max_tokens()).get(options.n_context);
    if (!s.ok()) return s;
    options.state_bytes = geometry->state_bytes();
    options.row_bytes = geometry->row_bytes;
    DryReplay replay(o, options);
    s = replay.run(trace);
    if (!s.ok()) return s;
    return o.json ? print_json(trace, o, replay) : print_table(trace, o, replay);
}

}  // namespace cli

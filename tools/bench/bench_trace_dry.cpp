// The dry replay: PrefixTree with a store that counts bytes and copies nothing.
#include <map>

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
constexpr const char* kPolicies[] = {"none", "stride", "default"};
constexpr const char* kOrders[] = {"arrival", "queue", "sessions"};

/// The index of a name in a list. errors: bad_argument: lists the names.
template <size_t N>
Result<size_t> index_of(const std::string& option, const std::string& found, const char* const (&names)[N]) {
    std::string expected;
    for (size_t i = 0; i < N; ++i) {
        if (found == names[i]) return i;
        expected += std::string(i == 0 ? "" : i + 1 == N ? " or " : ", ") + names[i];
    }
    return Status(Code::bad_argument, option + " " + detail::quote(found) + ": expected " + expected);
}

Result<const Geometry*> find_geometry(const std::string& name) {
    const char* names[std::size(kGeometries)];
    for (size_t i = 0; i < std::size(kGeometries); ++i) names[i] = kGeometries[i].name;
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
    Status park_rows(uint32_t, size_t, size_t) override { return {}; }
    Status restore_rows(uint32_t, size_t, size_t) override { return {}; }
    void drop_rows(uint32_t) override {}
    void drop_all() override {}
    void reset() override {}
    size_t n_kept = 0, n_loaded = 0;
};

struct Totals {
    uint64_t prompt = 0, needed = 0, computed = 0, reused = 0, restored = 0;
    double worst = 1;  ///< computed over needed of one request
    std::map<std::string, size_t> reasons;
};

class DryReplay {
  public:
    DryReplay(const BenchOptions& o, const detail::PrefixOptions& options)
        : o_(o), options_(options), tree_(options, store_) {}

    Status run(const RequestTrace& trace) {
        for (size_t i = 0; i < trace.requests.size(); ++i) {
            if (interrupted()) return Status(Code::cancelled, "interrupted");
            const Status s = serve(i, trace.requests[i]);
            if (!s.ok()) return s;
        }
        return {};
    }
    const Totals& totals() const { return totals_; }
    const detail::PrefixTree& tree() const { return tree_; }
    const NoStore& store() const { return store_; }

  private:
    Status serve(size_t i, const TraceRequest& r) {
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
        count(i, needed, report);
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
        }
        std::vector<TextPart> text = r.prompt;
        if (r.answer.n > 1) text.push_back({r.answer.seed, r.answer.n - 1});
        seen_.add(text);
    }
    void count(size_t i, size_t needed, const detail::PrefixReport& report) {
        totals_.prompt += report.n_row;
        totals_.needed += needed;
        totals_.computed += report.rows_computed;
        totals_.reused += report.rows_reused;
        totals_.restored += report.rows_restored;
        totals_.worst = std::max(totals_.worst, double(report.rows_computed) / double(needed));
        ++totals_.reasons[sync_reason_name(report.reason)];
        if (!o_.place.verbose || o_.json) return;
        std::printf("%6zu  %7zu rows, needed %7zu, computed %7zu, %8.1f MiB held  %s\n", i, report.n_row, needed,
                    report.rows_computed, double(tree_.held_bytes()) / 1048576, describe(report).c_str());
    }

    const BenchOptions& o_;
    detail::PrefixOptions options_;
    NoStore store_;
    detail::PrefixTree tree_;
    SeenText seen_;
    Totals totals_;
};

Status print_json(const RequestTrace& trace, const BenchOptions& o, const detail::PrefixOptions& options,
                  const DryReplay& replay) {
    const Totals& t = replay.totals();
    nlohmann::ordered_json out;
    out["trace"] = trace.name;
    out["geometry"] = o.geometry;
    out["policy"] = o.policy;
    out["budget"] = options.budget_bytes;
    out["context"] = options.n_context;
    out["checkpoint_bytes"] = options.state_bytes;
    out["row_bytes"] = options.row_bytes;
    out["requests"] = trace.requests.size();
    out["rows_prompt"] = t.prompt;
    out["rows_needed"] = t.needed;
    out["rows_computed"] = t.computed;
    out["rows_reused"] = t.reused;
    out["worst_ratio"] = t.worst;
    out["peak_bytes"] = replay.tree().peak_bytes();
    out["checkpoints_taken"] = replay.store().n_kept;
    out["checkpoints_loaded"] = replay.store().n_loaded;
    out["rows_parked"] = replay.tree().rows_parked();
    out["rows_restored"] = t.restored;
    out["reasons"] = t.reasons;
    return print(out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

Status print_table(const RequestTrace& trace, const BenchOptions& o, const detail::PrefixOptions& options,
                   const DryReplay& replay) {
    constexpr double kMiB = 1048576;
    const Totals& t = replay.totals();
    const double n = double(trace.requests.size()), prompt = double(t.prompt);
    std::printf("%s: %zu requests, %llu rows of prompt\n", trace.name.c_str(), trace.requests.size(),
                static_cast<unsigned long long>(t.prompt));
    std::printf("%s: checkpoint %.2f MiB, %llu KiB a row, context of %zu rows; policy %s, budget %.0f MiB\n",
                o.geometry.c_str(), double(options.state_bytes) / kMiB,
                static_cast<unsigned long long>(options.row_bytes >> 10), options.n_context, o.policy.c_str(),
                double(options.budget_bytes) / kMiB);
    std::printf("  needed     %12llu rows  %9.1f a request  %6.2f %% of the prompts known\n",
                static_cast<unsigned long long>(t.needed), double(t.needed) / n, 100 * (1 - double(t.needed) / prompt));
    std::printf("  computed   %12llu rows  %9.1f a request  %6.2f %% reused\n",
                static_cast<unsigned long long>(t.computed), double(t.computed) / n, 100 * double(t.reused) / prompt);
    std::printf("  computed / needed %.4f, worst request %.2f\n", double(t.computed) / double(t.needed), t.worst);
    std::printf("  peak %.1f MiB; %zu checkpoints taken, %zu loaded; %llu rows parked, %llu restored\n",
                double(replay.tree().peak_bytes()) / kMiB, replay.store().n_kept, replay.store().n_loaded,
                static_cast<unsigned long long>(replay.tree().rows_parked()),
                static_cast<unsigned long long>(t.restored));
    for (const auto& [reason, count] : t.reasons) std::printf("  %-10s %zu\n", reason.c_str(), count);
    return print("");
}

Status load_trace(const BenchOptions& o, RequestTrace* trace) {
    size_t order = 0;
    const Status s = index_of("--order", o.order, kOrders).get(order);
    if (!s.ok()) return s;
    if (o.thinking != "kept" && o.thinking != "dropped")
        return Status(Code::bad_argument, "--thinking " + detail::quote(o.thinking) + ": expected kept or dropped");
    if (o.branches < 1 || o.branches > 64)
        return Status(Code::bad_argument, "--branches is " + std::to_string(o.branches) + ", expected 1 .. 64");
    const bool keep = o.thinking == "kept";
    if (o.replay == "agent") {
        *trace = make_agent_trace(keep);
    } else if (o.replay == "chat") {
        *trace = make_chat_trace(keep, static_cast<size_t>(o.branches));
    } else {
        return read_trace(o.replay, static_cast<TraceOrder>(order)).get(*trace);
    }
    return {};
}

}  // namespace

Status bench_trace(const BenchOptions& o) {
    if (!o.dry)
        return Status(Code::bad_argument,
                      "--replay alone would need a model that runs it, which is not supported; add --dry");
    const Geometry* geometry = nullptr;
    Status s = find_geometry(o.geometry).get(geometry);
    size_t policy = 0;
    if (s.ok()) s = index_of("--policy", o.policy, kPolicies).get(policy);
    detail::PrefixOptions options;
    if (s.ok()) s = read_size(o.checkpoint_bytes, "--checkpoint-bytes").get(options.budget_bytes);
    RequestTrace trace;
    if (s.ok()) s = load_trace(o, &trace);
    if (!s.ok()) return s;
    const size_t longest = trace.max_tokens();
    options.n_context = o.replay_context != 0 ? static_cast<size_t>(o.replay_context) : (longest + 1023) / 1024 * 1024;
    if (options.n_context < longest)
        return Status(Code::bad_argument, "--context is " + std::to_string(options.n_context) +
                                              ", the longest request of the trace has " + std::to_string(longest) +
                                              " tokens");
    options.state_bytes = geometry->state_bytes();
    options.row_bytes = geometry->row_bytes;
    options.policy = static_cast<detail::PrefixPolicy>(policy);
    DryReplay replay(o, options);
    s = replay.run(trace);
    if (!s.ok()) return s;
    return o.json ? print_json(trace, o, options, replay) : print_table(trace, o, options, replay);
}

}  // namespace cli

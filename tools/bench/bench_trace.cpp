#include "bench_trace.h"

#include "examples/cli/generate.h"

namespace cli {

uint64_t seed_of(uint64_t a, uint64_t b, uint64_t c) {
    auspex::detail::Fnv hash;
    for (const uint64_t v : {a, b, c})
        for (int shift = 0; shift < 64; shift += 16) hash.mix((v >> shift) & 0xffff);
    return hash.value;
}

void append_tokens(const TextPart& part, std::vector<Token>* ids, uint32_t n_vocab) {
    uint64_t state = part.seed;
    for (size_t i = 0; i < part.n; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids->push_back(static_cast<Token>((state >> 33) % n_vocab));
    }
}

size_t RequestTrace::max_tokens() const {
    size_t n = 0;
    for (const TraceRequest& r : requests) n = std::max(n, r.n_prompt + r.answer.n);
    return n;
}

size_t SeenText::known(const std::vector<TextPart>& prompt) const {
    size_t n = 0;
    Key key{0, 0, 0};
    for (const TextPart& part : prompt) {
        key.seed = part.seed;
        const auto at = parts_.find(key);
        if (at == parts_.end()) return n;
        n += std::min(part.n, at->second.n);
        if (at->second.n < part.n) return n;
        key = {at->second.id, part.n, 0};
    }
    return n;
}

void SeenText::add(const std::vector<TextPart>& text) {
    Key key{0, 0, 0};
    for (const TextPart& part : text) {
        key.seed = part.seed;
        Known& known = parts_[key];
        if (known.id == 0) known.id = parts_.size();
        known.n = std::max(known.n, part.n);
        key = {known.id, part.n, 0};
    }
}

void Totals::add(const Served& r, const BenchOptions& o) {
    const std::string reason = sync_reason_name(r.sync.reason);
    ++requests;
    prompt += r.n_prompt;
    needed += r.needed;
    computed += r.sync.rows_computed;
    reused += r.sync.rows_reused;
    worst = std::max(worst, double(r.sync.rows_computed) / double(r.needed));
    ++reasons[reason];
    if (!o.place.verbose) return;
    if (o.json) {
        each.push_back({{"rows_prompt", r.n_prompt},
                        {"rows_needed", r.needed},
                        {"held_bytes", r.held_bytes},
                        {"sync", sync_json(r.sync)}});
        if (r.first_s > 0) each.back()["first_token_ms"] = 1e3 * r.first_s;
        return;
    }
    std::printf("%6zu  %7zu rows, needed %7zu, computed %7zu, %8.1f MiB held  ", requests - 1, r.n_prompt, r.needed,
                r.sync.rows_computed, double(r.held_bytes) / 1048576);
    if (r.first_s > 0) std::printf("first token %9.1f ms  ", 1e3 * r.first_s);
    std::printf("%s\n", r.sync.text.c_str());
}

void Totals::write(nlohmann::ordered_json* out) const {
    (*out)["requests"] = requests;
    (*out)["rows_prompt"] = prompt;
    (*out)["rows_needed"] = needed;
    (*out)["rows_computed"] = computed;
    (*out)["rows_reused"] = reused;
    (*out)["worst_ratio"] = worst;
    (*out)["reasons"] = reasons;
    if (!each.empty()) (*out)["each"] = each;
}

void Totals::print(const RequestTrace& trace) const {
    const double n = double(requests), all = double(prompt);
    const auto line = [&](const char* name, uint64_t rows, double share, const char* what) {
        std::printf("  %-10s %12llu rows  %9.1f a request  %6.2f %% %s\n", name, static_cast<unsigned long long>(rows),
                    double(rows) / n, 100 * share, what);
    };
    std::printf("%s: %zu requests, %llu rows of prompt\n", trace.name.c_str(), requests,
                static_cast<unsigned long long>(prompt));
    line("needed", needed, 1 - double(needed) / all, "of the prompts known");
    line("computed", computed, double(reused) / all, "reused");
    std::printf("  computed / needed %.4f, worst request %.2f\n", double(computed) / double(needed), worst);
    for (const auto& [reason, count] : reasons) std::printf("  %-10s %zu\n", reason.c_str(), count);
}

Result<size_t> index_of(const std::string& option, const std::string& found, const std::vector<std::string>& names) {
    std::string expected;
    for (size_t i = 0; i < names.size(); ++i) {
        if (found == names[i]) return i;
        expected += std::string(i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
    }
    return Status(Code::bad_argument, option + " " + auspex::detail::quote(found) + ": expected " + expected);
}

Result<auspex::detail::PrefixPolicy> replay_policy(const BenchOptions& o) {
    size_t i = 0;
    const Status s = index_of("--policy", o.policy, {"none", "stride", "default"}).get(i);
    if (!s.ok()) return s;
    return static_cast<auspex::detail::PrefixPolicy>(i);
}

Result<size_t> replay_context(const BenchOptions& o, size_t longest) {
    const size_t n = o.replay_context != 0 ? static_cast<size_t>(o.replay_context) : (longest + 1023) / 1024 * 1024;
    if (n >= longest) return n;
    return Status(Code::bad_argument, "--context is " + std::to_string(n) + ", the longest request of the trace has " +
                                          std::to_string(longest) + " tokens");
}

Status load_trace(const BenchOptions& o, RequestTrace* trace) {
    size_t order = 0, thinking = 0;
    Status s = index_of("--order", o.order, {"arrival", "queue", "sessions"}).get(order);
    if (s.ok()) s = index_of("--thinking", o.thinking, {"dropped", "kept"}).get(thinking);
    if (!s.ok()) return s;
    if (o.branches < 1 || o.branches > 64)
        return Status(Code::bad_argument, "--branches is " + std::to_string(o.branches) + ", expected 1 .. 64");
    const bool keep = thinking == 1;
    if (o.replay == "agent") {
        *trace = make_agent_trace(keep);
    } else if (o.replay == "chat") {
        *trace = make_chat_trace(keep, static_cast<size_t>(o.branches));
    } else if (o.replay == "loop") {
        *trace =
            make_loop_trace({static_cast<size_t>(o.prefix), static_cast<size_t>(o.steps), static_cast<size_t>(o.append),
                             static_cast<size_t>(o.title), static_cast<size_t>(o.n)});
    } else {
        s = read_trace(o.replay, static_cast<TraceOrder>(order)).get(*trace);
    }
    if (s.ok() && o.requests && static_cast<size_t>(*o.requests) < trace->requests.size())
        trace->requests.resize(static_cast<size_t>(*o.requests));
    return s;
}

}  // namespace cli

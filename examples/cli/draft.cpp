#include "draft.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cache.h"
#include "platform.h"

namespace cli {
namespace {

using auspex::Draft;

/// A number and nothing else, or -1.
int64_t whole_number(const std::string& text) {
    if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != std::string::npos) return -1;
    return std::stoll(text);
}

uint64_t total(const uint64_t* v, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; ++i) sum += v[i];
    return sum;
}

}  // namespace

void add_draft_memory(CLI::App& command, DraftFlags& o) {
    command
        .add_option("--draft", o.draft,
                    "Draft source and depth; the text stays the same: auto (what pays: the MTP block, lookup of "
                    "what the text had before, or nothing), off, N (drafts per cycle, of the MTP block), mtp[:N], "
                    "lookup[:N] or mtp+lookup[:N]")
        ->capture_default_str();
    command.add_option(
        "--draft-vocab", o.vocab,
        "Cheaper drafts over fewer ids: N, those listed in FILE, or auto for those that the text uses most");
    command.add_option("--draft-window", o.window, "Tokens that the MTP block looks back; 0: all (default: 4096)");
}

void add_draft(CLI::App& command, DraftFlags& o) {
    add_draft_memory(command, o);
    command.add_option("--draft-max", o.max_depth, "Limit of the depth that auto chooses (default: 6)");
    command.add_option("--draft-min-p", o.min_probability,
                       "End a draft to which the MTP block gives less than this probability (default: 0)");
    command.add_option("--trace", o.trace,
                       "Write a JSON line per cycle to this file: depth, accepted, time, and the reason of a change");
}

Status choose_draft_vocab(const std::string& vocab, const auspex::ModelInfo& model, auspex::DraftOptions* to) {
    if (vocab.empty()) return {};
    const int64_t n = whole_number(vocab), n_vocab = model.n_vocab;
    if (vocab == "auto") {
        to->vocab_by_use = true;
    } else if (n > 0 && n <= n_vocab) {
        to->n_vocab = static_cast<uint32_t>(n);
    } else if (n >= 0) {
        return Status(Code::bad_argument, "--draft-vocab " + vocab + ": expected 1 .. " + std::to_string(n_vocab) +
                                              ", the ids of this model");
    } else {
        const Status s = read_ids("@" + vocab, model.n_vocab).get(to->vocab);
        if (!s.ok()) return Status(s.code, "--draft-vocab is neither a number nor auto, and as a file: " + s.text);
        if (to->vocab.empty()) return Status(Code::bad_argument, "--draft-vocab " + vocab + ": the file names no id");
    }
    return {};
}

Status choose_draft(const DraftFlags& o, const auspex::ModelInfo& model, bool verbose, auspex::DraftOptions* to) {
    const size_t colon = o.draft.find(':');
    const std::string name = o.draft.substr(0, colon);
    const std::string depth = colon == std::string::npos ? std::string() : o.draft.substr(colon + 1);
    const int64_t n = whole_number(name), n_after = whole_number(depth);
    const auto bad = [&] {
        return Status(Code::bad_argument, "--draft " + o.draft + ": expected auto, off, 0 .. " +
                                              std::to_string(auspex::kMaxDraft) +
                                              ", mtp, lookup or mtp+lookup; the last three may have a depth, as in "
                                              "lookup:4");
    };
    const bool mtp = name == "mtp", lookup = name == "lookup", both = name == "mtp+lookup";
    if (colon != std::string::npos && (!(mtp || lookup || both) || n_after < 0 || n_after > int64_t{auspex::kMaxDraft}))
        return bad();
    if (n > int64_t{auspex::kMaxDraft}) return bad();
    const int64_t window = o.window.value_or(to->window), max_depth = o.max_depth.value_or(to->max_depth);
    if (window < 0 || window > INT32_MAX)
        return Status(Code::bad_argument,
                      "--draft-window " + std::to_string(window) + ": expected 0 .. " + std::to_string(INT32_MAX));
    if (max_depth < 1 || max_depth > int64_t{auspex::kMaxDraft})
        return Status(Code::bad_argument, "--draft-max " + std::to_string(max_depth) + ": expected 1 .. " +
                                              std::to_string(auspex::kMaxDraft));
    to->window = static_cast<uint32_t>(window);
    to->max_depth = static_cast<uint32_t>(max_depth);
    to->min_probability = o.min_probability.value_or(to->min_probability);
    if (n_after >= 0) to->depth = static_cast<int>(n_after);
    if (mtp || lookup || both) {
        to->source = mtp ? Draft::mtp : lookup ? Draft::lookup : Draft::mtp_lookup;
    } else if (name == "auto") {
        to->source = model.n_mtp != 0 ? Draft::mtp_lookup : Draft::lookup;
        if (to->source == Draft::lookup && verbose)
            note("this model has no MTP block; only what occurred before in the text is drafted");
    } else if (n > 0) {
        to->source = Draft::mtp;
        to->depth = static_cast<int>(n);
    } else if (n != 0 && name != "off") {
        return bad();
    }
    if (o.max_depth && (name == "off" || n == 0 || to->depth >= 0))
        return Status(Code::bad_argument, "--draft-max limits the depth that auto chooses, but --draft " + o.draft +
                                              " leaves nothing to choose; expected one of the two");
    if (to->source == Draft::mtp || to->source == Draft::mtp_lookup) return choose_draft_vocab(o.vocab, model, to);
    const char* of_block = !o.vocab.empty()    ? "--draft-vocab is the vocabulary"
                           : o.window          ? "--draft-window is the window"
                           : o.min_probability ? "--draft-min-p is a probability"
                                               : nullptr;
    if (of_block && name != "auto")
        return Status(Code::bad_argument, std::string(of_block) + " of the MTP block, but --draft " + o.draft +
                                              " does not use it; expected auto, N or mtp+lookup beside it");
    return {};
}

// --------------------------------------------------------------------------------- trace

std::string trace_line(const auspex::DraftCycle& c) {
    nlohmann::ordered_json line = {{"n_token", c.n_token},   {"chosen", c.chosen}, {"depth", c.depth},
                                   {"accepted", c.accepted}, {"us", c.us},         {"catch_up_us", c.catch_up_us}};
    line["acceptance"] = c.acceptance;
    line["expected_tokens"] = c.expected_tokens;
    line["relative_cost"] = c.relative_cost;
    line["break_even_ratio"] = c.break_even_ratio;
    if (c.text_match == UINT32_MAX)
        line["forced"] = true;
    else if (c.text_match > 0)
        line["lookup_match"] = c.text_match;
    if (c.probe_rows > 0)
        line["probe_rows"] = c.probe_rows, line["probe_hits"] = c.probe_hits, line["probe_us"] = c.probe_us;
    if (c.reason != auspex::DraftReason::none) line["reason"] = auspex::draft_reason_name(c.reason);
    return line.dump() + "\n";
}

Trace::~Trace() {
    if (file_) std::fclose(file_);
}

Status Trace::open(const DraftFlags& o, auspex::SessionOptions* to) {
    if (o.trace.empty()) return {};
    if (const Status s = check_output(o.trace, "--trace"); !s.ok()) return s;
    path_ = o.trace;
    file_ = open_stream(path_, "wb");
    if (!file_) return Status(Code::io_error, "--trace '" + path_ + "': " + std::strerror(errno));
    to->on_cycle = [this](const auspex::DraftCycle& c) {
        const std::string text = trace_line(c);
        failed_ = failed_ || std::fwrite(text.data(), 1, text.size(), file_) != text.size();
    };
    return {};
}

Status Trace::close() {
    if (!file_) return {};
    failed_ = std::fclose(file_) != 0 || failed_;
    file_ = nullptr;
    return failed_
               ? Status(Code::io_error, "--trace '" + path_ + "' could not be written to its end; is the disk full?")
               : Status();
}

// --------------------------------------------------------------------------------- costs

void CostCache::load(const Loaded& on, const auspex::SessionOptions& options, auspex::Session& session) {
    if (options.draft.source == Draft::off || options.draft.depth >= 0) return;
    // The costs name what they belong to; the file's name only has to differ between combinations.
    const auspex::ModelInfo& info = on.model.info();
    std::string key =
        on.device.name() + "|" + info.architecture + "|" + info.name + "|" + std::to_string(info.n_parameter) + "|" +
        std::to_string(info.file_bytes) + "|" + auspex::print_windows(session.stats().windows) + "|" +
        std::to_string(static_cast<int>(options.kv_k)) + "," + std::to_string(static_cast<int>(options.kv_v)) + "|" +
        std::to_string(static_cast<int>(options.draft.source)) + "|" + std::to_string(session.stats().draft_head_bytes);
    name_ = key_name("costs", key, ".bin");
    loaded_ = read_cache(name_);
    // Costs of another driver and damaged ones are refused; they are measured again and overwritten.
    if (!loaded_.empty())
        (void)session.load_costs(
            Span<const std::byte>(reinterpret_cast<const std::byte*>(loaded_.data()), loaded_.size()));
}

void CostCache::save(const auspex::Session& session) const {
    if (name_.empty()) return;
    const std::vector<std::byte> costs = session.save_costs();
    const std::string bytes(reinterpret_cast<const char*>(costs.data()), costs.size());
    if (!bytes.empty() && bytes != loaded_) write_cache(name_, bytes);
}

// --------------------------------------------------------------------------------- statistics

static const char* source_name(Draft source) {
    switch (source) {
        case Draft::off: return "off";
        case Draft::mtp: return "mtp";
        case Draft::lookup: return "lookup";
        case Draft::mtp_lookup: return "mtp+lookup";
        case Draft::best: break;
    }
    return "best";
}

nlohmann::ordered_json draft_report(const auspex::DraftOptions& options, const auspex::Session& session) {
    nlohmann::ordered_json report = {{"source", source_name(options.source)}};
    const auspex::Stats stats = session.stats();
    const auspex::DraftReport d = session.draft_report();
    if (options.depth < 0)
        report["depth"] = "auto", report["max_depth"] = options.max_depth;
    else
        report["depth"] = options.depth;
    const uint64_t n_cycle = total(stats.cycles, auspex::kMaxDraft + 1),
                   n_drafted = total(stats.drafted, auspex::kMaxDraft);
    const uint64_t n_accepted = total(stats.accepted, auspex::kMaxDraft);
    size_t n_place = 0;
    while (n_place < auspex::kMaxDraft && stats.drafted[n_place] > 0) ++n_place;
    report["cycles"] = std::vector<uint64_t>(stats.cycles, stats.cycles + n_place + 1);
    report["tokens"] = std::vector<uint64_t>(d.tokens, d.tokens + n_place + 1);
    report["drafted"] = std::vector<uint64_t>(stats.drafted, stats.drafted + n_place);
    report["accepted"] = std::vector<uint64_t>(stats.accepted, stats.accepted + n_place);
    report["evaluated"] = std::vector<uint64_t>(d.evaluated + 1, d.evaluated + 1 + n_place);
    report["acceptance"] = n_drafted > 0 ? double(n_accepted) / double(n_drafted) : 0.0;
    report["tokens_per_cycle"] = n_cycle > 0 ? 1 + double(n_accepted) / double(n_cycle) : 0.0;
    report["draft_head_bytes"] = stats.draft_head_bytes;
    // Costs by depth, 0 up to the deepest one measured.
    size_t n_known = 0;
    for (size_t g = 0; g <= auspex::kMaxDraft; ++g)
        if (d.n_sample[g] > 0) n_known = g + 1;
    nlohmann::ordered_json& cost = report["cost"];
    cost = nlohmann::ordered_json::array();
    for (size_t g = 0; g < n_known; ++g) {
        nlohmann::ordered_json row = {{"depth", g},
                                      {"cycle_seconds", d.cycle_seconds[g]},
                                      {"relative_cost", d.relative_cost[g]},
                                      {"n_sample", d.n_sample[g]},
                                      {"expected_tokens", d.expected_tokens[g]}};
        if (g > 0)
            row["acceptance"] = d.acceptance[g], row["break_even_ratio"] = d.break_even_ratio[g],
            row["break_even_acceptance"] = d.break_even_acceptance[g];
        cost.push_back(row);
    }
    report["text_cycles"] = d.text_cycles;
    report["text_tokens"] = d.text_tokens;
    report["text_offers"] = d.text_offers;
    report["text_right"] = d.text_right;
    report["n_probe"] = d.n_probe;
    report["probe_rows"] = d.probe_rows;
    report["probe_hits"] = d.probe_hits;
    report["probe_seconds"] = d.probe_seconds;
    report["seconds"] = d.seconds;
    report["baseline_seconds"] = nullptr;
    report["speedup"] = nullptr;
    if (d.speedup() > 0) report["baseline_seconds"] = d.baseline_seconds, report["speedup"] = d.speedup();
    report["unprofitable"] = d.unprofitable;
    report["n_depth_change"] = d.n_depth_change;
    report["depth_changes"] = nlohmann::ordered_json::array();
    for (const auspex::DepthChange& c : d.depth_changes)
        report["depth_changes"].push_back(
            {{"n_token", c.n_token}, {"from", c.from}, {"to", c.to}, {"reason", auspex::draft_reason_name(c.reason)}});
    return report;
}

std::string draft_line(const auspex::Session& session) {
    const auspex::Stats stats = session.stats();
    const uint64_t n_drafted = total(stats.drafted, auspex::kMaxDraft),
                   n_accepted = total(stats.accepted, auspex::kMaxDraft);
    const uint64_t n_cycle = total(stats.cycles, auspex::kMaxDraft + 1);
    if (n_drafted == 0) return {};
    char text[160];
    const int n = std::snprintf(text, sizeof text, "%.2f tokens per cycle, %.0f %% of %llu drafts accepted",
                                1 + double(n_accepted) / double(n_cycle), 100 * double(n_accepted) / double(n_drafted),
                                static_cast<unsigned long long>(n_drafted));
    const double speedup = session.draft_report().speedup();
    if (speedup > 0)
        std::snprintf(text + n, sizeof text - static_cast<size_t>(n), ", about %.2f times as fast as without drafting",
                      speedup);
    return text;
}

}  // namespace cli

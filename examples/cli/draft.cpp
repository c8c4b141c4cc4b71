#include "draft.h"

#include <algorithm>
#include <cstdio>

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

void add_draft(CLI::App& command, DraftFlags& o) {
    command.add_option("--draft", o.draft, "Guess ahead, faster and with the same text: off, auto, N (tokens by the model's draft block), lookup[:N] or mtp+lookup[:N]")
        ->capture_default_str();
    command.add_option("--draft-vocab", o.vocab, "Cheaper guesses over fewer ids: N of them, those in FILE, or auto for those that the text uses most");
    command.add_option("--draft-window", o.window, "Tokens the draft block looks back; 0: all")->capture_default_str();
    command.add_option("--draft-min-p", o.min_probability, "Stop guessing below this probability")->capture_default_str();
}

Status choose_draft_vocab(const std::string& vocab, const auspex::Model& model, auspex::DraftOptions* to) {
    if (vocab.empty()) return {};
    const int64_t n = whole_number(vocab), n_vocab = model.info().n_vocab;
    if (vocab == "auto") {
        to->vocab_by_use = true;
    } else if (n > 0 && n <= n_vocab) {
        to->n_vocab = static_cast<uint32_t>(n);
    } else if (n >= 0) {
        return Status(Code::bad_argument, "--draft-vocab " + vocab + ": expected 1 .. " + std::to_string(n_vocab) + ", the ids of this model");
    } else {
        const Status s = read_ids("@" + vocab, model.info().n_vocab).get(to->vocab);
        if (!s.ok()) return Status(s.code, "--draft-vocab is neither a number nor auto, and as a file: " + s.text);
        if (to->vocab.empty()) return Status(Code::bad_argument, "--draft-vocab " + vocab + ": the file names no id");
    }
    return {};
}

Status choose_draft(const DraftFlags& o, const auspex::Model& model, bool verbose, auspex::DraftOptions* to) {
    const size_t colon = o.draft.find(':');
    const std::string name = o.draft.substr(0, colon);
    const std::string depth = colon == std::string::npos ? std::string() : o.draft.substr(colon + 1);
    const int64_t n = whole_number(name), n_after = whole_number(depth);
    const auto bad = [&] {
        return Status(Code::bad_argument, "--draft " + o.draft + ": expected off, auto, 0 .. " + std::to_string(auspex::kMaxDraft) +
                                              ", lookup or mtp+lookup; the last two may have a depth, as in lookup:4");
    };
    const bool lookup = name == "lookup", both = name == "mtp+lookup";
    if (colon != std::string::npos && (!(lookup || both) || n_after < 0 || n_after > int64_t{auspex::kMaxDraft})) return bad();
    if (n > int64_t{auspex::kMaxDraft}) return bad();
    if (o.window < 0 || o.window > INT32_MAX) return Status(Code::bad_argument, "--draft-window " + std::to_string(o.window) + ": expected 0 or more");
    to->window = static_cast<uint32_t>(o.window);
    to->min_probability = o.min_probability;
    if (n_after >= 0) to->depth = static_cast<int>(n_after);
    if (lookup || both) {
        to->source = lookup ? Draft::lookup : Draft::mtp_lookup;
    } else if (name == "auto") {
        if (model.info().n_mtp != 0) to->source = Draft::mtp;
        else if (verbose) note("this model has no draft block, so nothing is drafted; --draft lookup needs none");
    } else if (n > 0) {
        to->source = Draft::mtp;
        to->depth = static_cast<int>(n);
    } else if (n != 0 && name != "off") {
        return bad();
    }
    return to->source == Draft::off || to->source == Draft::lookup ? Status() : choose_draft_vocab(o.vocab, model, to);
}

nlohmann::ordered_json draft_report(const auspex::DraftOptions& options, const auspex::Stats& stats) {
    const char* names[] = {"off", "mtp", "lookup", "mtp+lookup"};
    nlohmann::ordered_json report = {{"source", names[static_cast<int>(options.source)]}};
    const uint64_t n_cycle = total(stats.cycles, auspex::kMaxDraft + 1), n_drafted = total(stats.drafted, auspex::kMaxDraft);
    const uint64_t n_accepted = total(stats.accepted, auspex::kMaxDraft);
    size_t n_place = 0;
    while (n_place < auspex::kMaxDraft && stats.drafted[n_place] > 0) ++n_place;
    report["cycles"] = std::vector<uint64_t>(stats.cycles, stats.cycles + n_place + 1);
    report["drafted"] = std::vector<uint64_t>(stats.drafted, stats.drafted + n_place);
    report["accepted"] = std::vector<uint64_t>(stats.accepted, stats.accepted + n_place);
    report["acceptance"] = n_drafted > 0 ? double(n_accepted) / double(n_drafted) : 0.0;
    report["tokens_per_cycle"] = n_cycle > 0 ? 1 + double(n_accepted) / double(n_cycle) : 0.0;
    report["head_bytes"] = stats.draft_bytes;
    return report;
}

std::string draft_line(const auspex::Stats& stats) {
    const uint64_t n_drafted = total(stats.drafted, auspex::kMaxDraft), n_accepted = total(stats.accepted, auspex::kMaxDraft);
    const uint64_t n_cycle = total(stats.cycles, auspex::kMaxDraft + 1);
    if (n_drafted == 0) return {};
    char text[128];
    std::snprintf(text, sizeof text, "%.2f tokens for each pass, %.0f %% of %llu guesses right", 1 + double(n_accepted) / double(n_cycle),
                  100 * double(n_accepted) / double(n_drafted), static_cast<unsigned long long>(n_drafted));
    return text;
}

}  // namespace cli

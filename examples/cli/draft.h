// cli/draft: --draft and its relatives, and what drafting was worth.
#pragma once
#include <nlohmann/json.hpp>

#include "common.h"

namespace cli {

struct DraftFlags {
    std::string draft = "off", vocab;
    int64_t window = 4096;
    float min_probability = 0;
};
/// --draft, --draft-vocab, --draft-window, --draft-min-p
void add_draft(CLI::App& command, DraftFlags& o);
/// errors    bad_argument: a flag that reads as nothing; the text lists what would.
Status choose_draft(const DraftFlags& o, const auspex::Model& model, bool verbose, auspex::DraftOptions* to);
/// A head over N ids, over those of a file, or over those the text uses most.
Status choose_draft_vocab(const std::string& vocab, const auspex::Model& model, auspex::DraftOptions* to);

/// {"source", "cycles", "tokens_per_cycle", "drafted": [by place], "accepted": [by place]}
nlohmann::ordered_json draft_report(const auspex::DraftOptions& options, const auspex::Stats& stats);
/// "2.3 tokens for each pass, 71 % of 120 guesses right", or empty when nothing was drafted.
std::string draft_line(const auspex::Stats& stats);

}  // namespace cli

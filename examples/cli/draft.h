// cli/draft: --draft and its relatives, and the statistics of drafting.
#pragma once
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "common.h"

namespace cli {

struct DraftFlags {
    std::string draft = "auto", vocab, trace;
    int64_t window = 4096, most = 6;
    float min_probability = 0;
    bool most_given = false;
};
/// --draft, --draft-vocab, --draft-window: what a session's memory depends on
void add_draft_memory(CLI::App& command, DraftFlags& o);
/// Those, and --draft-max, --draft-min-p, --trace
void add_draft(CLI::App& command, DraftFlags& o);
/// errors    bad_argument: a flag that reads as nothing, or that means nothing beside another; the text lists what
/// would.
Status choose_draft(const DraftFlags& o, const auspex::ModelInfo& model, bool verbose, auspex::DraftOptions* to);
/// A head over N ids, over those of a file, or over those the text uses most.
Status choose_draft_vocab(const std::string& vocab, const auspex::ModelInfo& model, auspex::DraftOptions* to);

/// A cycle as a line of JSON.
std::string trace_line(const auspex::DraftCycle& c);

/// --trace FILE: one JSON line for each cycle.
class Trace {
  public:
    ~Trace();
    /// Nothing is written unless a file is named. errors: io_error: it cannot be written.
    Status open(const DraftFlags& o, auspex::SessionOptions* to);
    /// errors    io_error: not everything could be written.
    Status close();

  private:
    std::string path_;
    std::FILE* file_ = nullptr;
    bool failed_ = false;
};

/// What cycles cost on this device with this model is kept in the user's cache folder, a file for each
/// combination, so that a later run need not measure it again.
class CostCache {
  public:
    /// Hands the session what is known. What is not its own is left alone, and measured anew.
    void load(const Loaded& on, const auspex::SessionOptions& options, auspex::Session& session);
    /// Keeps what was learned.
    void save(const auspex::Session& session) const;

  private:
    std::string name_, loaded_;
};

/// The statistics: what was drafted and accepted, what it cost, when it pays, what was switched and why.
nlohmann::ordered_json draft_report(const auspex::DraftOptions& options, const auspex::Session& session);
/// "2.3 tokens for each pass, 71 % of 120 guesses right, ...", or empty when nothing was drafted.
std::string draft_line(const auspex::Session& session);

}  // namespace cli

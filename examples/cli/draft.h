// cli/draft: the options and statistics of drafting, and the cache of its costs.
#pragma once
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "common.h"

namespace cli {

struct DraftFlags {
    std::string draft = "auto", vocab, trace;
    std::optional<int64_t> window, max_depth;  ///< if not given, those of DraftOptions
    std::optional<float> min_probability;
};
/// --draft, --draft-vocab, --draft-window: those that change the memory of a session
void add_draft_memory(CLI::App& command, DraftFlags& o);
/// The same and --draft-max, --draft-min-p, --trace
void add_draft(CLI::App& command, DraftFlags& o);
/// errors    bad_argument: a value that is not one of those expected, or options that contradict each other.
Status choose_draft(const DraftFlags& o, const auspex::ModelInfo& model, bool verbose, auspex::DraftOptions* to);
/// Reads --draft-vocab: N ids, those listed in a file, or auto for those that the text uses most.
Status choose_draft_vocab(const std::string& vocab, const auspex::ModelInfo& model, auspex::DraftOptions* to);

/// A cycle as a line of JSON.
std::string trace_line(const auspex::DraftCycle& c);

/// --trace FILE: one JSON line for each cycle.
class Trace {
  public:
    ~Trace();
    /// Does nothing unless a file is named. errors: io_error: it cannot be created.
    Status open(const DraftFlags& o, auspex::SessionOptions* to);
    /// errors    io_error: not everything could be written.
    Status close();

  private:
    std::string path_;
    std::FILE* file_ = nullptr;
    bool failed_ = false;
};

/// The costs of cycles in the user's cache folder, a file for each combination of device, model and settings, so that a
/// later run need not measure them again.
class CostCache {
  public:
    /// Gives the session the costs of earlier runs, if there are any. It ignores those that are not its own.
    void load(const Loaded& on, const auspex::SessionOptions& options, auspex::Session& session);
    /// Writes what the session has measured.
    void save(const auspex::Session& session) const;

  private:
    std::string name_, loaded_;
};

/// Drafts made and accepted, their costs, break-even points, and changes of depth with their reasons.
nlohmann::ordered_json draft_report(const auspex::DraftOptions& options, const auspex::Session& session);
/// "2.3 tokens per cycle, 71 % of 120 drafts accepted, ...", or empty if nothing was drafted.
std::string draft_line(const auspex::Session& session);

}  // namespace cli

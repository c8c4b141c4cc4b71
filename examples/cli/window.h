// cli/window: the options that bound a session's memory, for every command that opens one.
#pragma once
#include <optional>

#include "common.h"

namespace cli {

/// --window, --kv-budget, --kv-type, --ubatch, --exact-prompts
struct WindowFlags {
    std::string window, budget, type = "f16";
    std::optional<int64_t> ubatch;
    bool exact_prompts = false;
};
void add_window(CLI::App& command, WindowFlags& o);
/// errors    bad_argument: what is written wrong, with what was expected.
Status choose_window(const WindowFlags& o, auspex::SessionOptions* to);
/// The smallest context in which a conversation that is kept in a file has the same windows however long it gets: one
/// of n_context rows or more counts as none, and a file belongs to the windows that it was saved with.
/// errors    bad_argument: a budget, which chooses the windows by the context.
Result<int64_t> min_context(const auspex::Model& model, auspex::SessionOptions options);
/// Prints on stderr how a budget was met, and which windows that gives.
void tell_windows(const auspex::Stats& stats);
/// "65536", "64K", "1.5M", "2G" to bytes. errors: bad_argument.
Result<uint64_t> read_size(const std::string& text, const char* option);

/// inspect --plan: every byte that the model and a session take, before anything is allocated.
std::string plan_text(const auspex::MemoryPlan& plan);
std::string plan_json(const auspex::MemoryPlan& plan);

}  // namespace cli

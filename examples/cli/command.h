// cli/command: what the main functions of auspex and auspex-bench share.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace cli {

/// What the command line asks for; returns the exit code.
using Chosen = std::function<int()>;

/// Parses the arguments, runs what a callback of the application left in `chosen`, and returns the exit code. Reports
/// wrong arguments, empty values, numbers out of range, outputs that would overwrite an input, lack of memory, and
/// output that could not be written.
int run_command(CLI::App& app, const std::vector<std::string>& arguments, const Chosen& chosen);

}  // namespace cli

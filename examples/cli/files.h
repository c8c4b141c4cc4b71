// cli/files: the files that the options of a command name.
#pragma once
#include "common.h"

namespace cli {

/// Refuses an output that is a file which the command reads, or another of its outputs, also by a link. Before anything
/// is opened: a file that is opened for writing is empty from then on, and models are read where they are mapped.
/// errors    bad_argument: names both options and files.
Status check_files(const CLI::App& command);

}  // namespace cli

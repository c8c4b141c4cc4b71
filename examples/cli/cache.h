// cli/cache: what is kept between runs, under the user's cache folder.
#pragma once
#include "auspex.hpp"

#include <string>

namespace cli {

/// The folder for this program, made when it is missing: $XDG_CACHE_HOME/auspex, ~/.cache/auspex or
/// %LOCALAPPDATA%\auspex. Empty when there is no such place: nothing is kept then.
std::string cache_folder();

/// A kept file, empty when there is none; at most 256 MiB are read.
std::string read_cache(const std::string& name);
/// Writes beside the old one and renames, so that a reader never sees half a file. Failing is no error:
/// a cache only saves time.
void write_cache(const std::string& name, const std::string& bytes);

}  // namespace cli

// cli/cache: files kept between runs in the user's cache folder.
#pragma once
#include "auspex.hpp"

#include <string>

namespace cli {

/// The folder of this program's cache files, created if missing: $XDG_CACHE_HOME/auspex if that path is absolute, else
/// ~/.cache/auspex; on Windows %LOCALAPPDATA%\auspex. Empty if there is none: nothing is cached then.
std::string cache_folder();

/// KIND-<16 digits of the key>SUFFIX
std::string key_name(const char* kind, const std::string& key, const char* suffix);

/// A cached file; empty if there is none or it is over 256 MiB.
std::string read_cache(const std::string& name);
/// Writes a temporary file and renames it, so that a reader never sees half a file. A failure is ignored: a cache only
/// saves time.
void write_cache(const std::string& name, const std::string& bytes);

}  // namespace cli

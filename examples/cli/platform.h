// cli/platform: what differs between operating systems.
#pragma once
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace cli {

bool stdin_is_terminal();
bool stderr_is_terminal();

/// The arguments of main() in UTF-8. On Windows those that main() gets have lost what the system's code page lacks.
std::vector<std::string> utf8_arguments(int argc, char** argv);

/// A path in UTF-8 as std::filesystem and streams take it; and back.
std::filesystem::path native_path(const std::string& utf8);
std::string utf8_path(const std::filesystem::path& path);

/// Whether a path leads to a device by its name alone, as NUL and COM1 do on Windows.
bool names_device(const std::string& path);
/// Whether the system takes two paths for the same: Windows and macOS ignore case.
bool same_spelling(const std::filesystem::path& a, const std::filesystem::path& b);

/// std::fopen for a path in UTF-8.
std::FILE* open_stream(const std::string& path, const char* mode);

/// An environment variable in UTF-8; empty if it is not set.
std::string environment(const char* name);

/// std::getline from standard input in UTF-8, also from a console of Windows. False at the end.
bool read_line(std::string* line);

/// Bytes go in and out unchanged, and consoles of Windows show UTF-8. A standard stream that is closed is given to the
/// null device, so that no file opened later gets its number; reading or writing it still fails.
void prepare_streams();

/// Replaces this process by the program at `path`. `arguments` begin with the program's name. Returns false if it
/// cannot be started. On Windows: runs it and returns true with its exit code, which is negative after a crash; the
/// program ends when this process does.
bool run_program(const std::string& path, const std::vector<std::string>& arguments, int* exit_code);

/// The folder of this executable, or empty when the system does not tell.
std::string executable_folder();

/// Tells this process from others that run now.
unsigned long process_id();

/// Memory that this process occupies now; 0 when the system does not tell.
unsigned long long resident_bytes();

/// From here on the first Ctrl-C only sets a flag; the second one ends the process.
void catch_interrupts();
bool interrupted();
void forget_interrupt();

}  // namespace cli

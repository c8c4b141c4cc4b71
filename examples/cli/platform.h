// cli/platform: what differs between operating systems.
#pragma once
#include <string>

namespace cli {

bool stdin_is_terminal();
bool stderr_is_terminal();

/// Bytes go in and out unchanged, also on Windows. A standard stream that is closed is given to the null device, so
/// that no file opened later gets its number; reading or writing it still fails.
void prepare_streams();

/// Replaces this process by the program at `path` (on Windows: runs it and returns its exit code). `arguments` begin
/// with the program's name. Returns -1 if it cannot be started.
int run_program(const std::string& path, char* const* arguments);

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

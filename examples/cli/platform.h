// cli/platform: what differs between operating systems.
#pragma once
#include <string>

namespace cli {

bool stdin_is_terminal();
bool stderr_is_terminal();

/// Bytes go in and out as they are, also on Windows.
void use_binary_streams();

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

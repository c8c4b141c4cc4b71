#include "platform.h"

#include <csignal>
#include <cstdio>

#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#include <process.h>
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
#else
#include <fcntl.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <mach-o/dyld.h>
#endif
#endif

namespace cli {

static volatile std::sig_atomic_t interrupts = 0;

bool interrupted() { return interrupts != 0; }
void forget_interrupt() { interrupts = 0; }

unsigned long long resident_bytes() {
#if defined(__linux__)
    std::FILE* f = std::fopen("/proc/self/statm", "r");
    if (!f) return 0;
    unsigned long long n_all = 0, n_resident = 0;
    const int n_read = std::fscanf(f, "%llu %llu", &n_all, &n_resident);
    std::fclose(f);
    return n_read == 2 ? n_resident * static_cast<unsigned long long>(sysconf(_SC_PAGESIZE)) : 0;
#else
    return 0;
#endif
}

#if defined(_WIN32)

bool stdin_is_terminal() { return _isatty(_fileno(stdin)) != 0; }
bool stderr_is_terminal() { return _isatty(_fileno(stderr)) != 0; }

void prepare_streams() {
    _setmode(_fileno(stdin), _O_BINARY);
    _setmode(_fileno(stdout), _O_BINARY);
}

int run_program(const std::string& path, char* const* arguments) {
    return static_cast<int>(_spawnv(_P_WAIT, path.c_str(), arguments));
}

std::string executable_folder() {
    char path[MAX_PATH];
    const DWORD n = GetModuleFileNameA(nullptr, path, MAX_PATH);
    if (n == 0 || n >= MAX_PATH) return {};
    const std::string full(path, n);
    const size_t slash = full.find_last_of("\\/");
    return slash == std::string::npos ? std::string() : full.substr(0, slash);
}

static void on_interrupt(int) {
    interrupts = 1;
    std::signal(SIGINT, SIG_DFL);
}

void catch_interrupts() { std::signal(SIGINT, on_interrupt); }

#else

bool stdin_is_terminal() { return isatty(STDIN_FILENO) != 0; }
bool stderr_is_terminal() { return isatty(STDERR_FILENO) != 0; }

void prepare_streams() {
    // In this order each open() takes the lowest free number, the one that is closed. The direction is the wrong one on
    // purpose: reading standard input or writing standard output then fails as on a closed stream.
    for (int fd = 0; fd <= 2; ++fd)
        if (fcntl(fd, F_GETFD) == -1) (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

int run_program(const std::string& path, char* const* arguments) {
    execv(path.c_str(), arguments);
    return -1;
}

std::string executable_folder() {
    char path[4096];
#if defined(__APPLE__)
    uint32_t room = sizeof path;
    if (_NSGetExecutablePath(path, &room) != 0) return {};
    const std::string full(path);
#else
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
    if (n <= 0 || static_cast<size_t>(n) >= sizeof path) return {};
    const std::string full(path, static_cast<size_t>(n));
#endif
    const size_t slash = full.rfind('/');
    return slash == std::string::npos ? std::string() : full.substr(0, slash);
}

static void on_interrupt(int) { interrupts = 1; }

void catch_interrupts() {
    struct sigaction action = {};
    action.sa_handler = on_interrupt;
    sigemptyset(&action.sa_mask);
    // A second Ctrl-C ends the process; a blocked read returns, so that a prompt notices the first.
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(SIGINT, &action, nullptr);
}

#endif

#ifdef _WIN32
unsigned long process_id() { return GetCurrentProcessId(); }
#else
unsigned long process_id() { return static_cast<unsigned long>(getpid()); }
#endif

}  // namespace cli

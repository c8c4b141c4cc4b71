#include "platform.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <iostream>

#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#include <process.h>
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
// After windows.h, which they need.
#include <psapi.h>
#include <shellapi.h>
#else
#include <fcntl.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <mach-o/dyld.h>
#include <strings.h>
#endif
#endif

namespace cli {

// Set by a signal handler, and read by other threads than the one that is interrupted: the server's loads the model.
static std::atomic<bool> is_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may set it");

bool interrupted() { return is_interrupted; }
void forget_interrupt() { is_interrupted = false; }

unsigned long long resident_bytes() {
#if defined(__linux__)
    std::FILE* f = std::fopen("/proc/self/statm", "r");
    if (!f) return 0;
    unsigned long long n_all = 0, n_resident = 0;
    const int n_read = std::fscanf(f, "%llu %llu", &n_all, &n_resident);
    std::fclose(f);
    return n_read == 2 ? n_resident * static_cast<unsigned long long>(sysconf(_SC_PAGESIZE)) : 0;
#elif defined(_WIN32)
    PROCESS_MEMORY_COUNTERS counters{};
    const bool known = K32GetProcessMemoryInfo(GetCurrentProcess(), &counters, sizeof counters) != 0;
    return known ? counters.WorkingSetSize : 0;
#else
    return 0;
#endif
}

#if defined(_WIN32)

/// _isatty() is true for every device, NUL among them.
static bool is_console(std::FILE* stream) {
    DWORD mode = 0;
    return GetConsoleMode(reinterpret_cast<HANDLE>(_get_osfhandle(_fileno(stream))), &mode) != 0;
}
bool stdin_is_terminal() { return is_console(stdin); }
bool stderr_is_terminal() { return is_console(stderr); }

static std::string narrow(const wchar_t* text, int n) {
    const int n_byte = WideCharToMultiByte(CP_UTF8, 0, text, n, nullptr, 0, nullptr, nullptr);
    std::string out(static_cast<size_t>(n_byte), '\0');
    WideCharToMultiByte(CP_UTF8, 0, text, n, &out[0], n_byte, nullptr, nullptr);
    return out;
}
static std::string narrow(const std::wstring& text) { return narrow(text.data(), static_cast<int>(text.size())); }
static std::wstring widen(const std::string& text) { return std::filesystem::u8path(text).native(); }

std::vector<std::string> utf8_arguments(int argc, char** argv) {
    int n = 0;
    wchar_t** const wide = CommandLineToArgvW(GetCommandLineW(), &n);
    if (!wide) return std::vector<std::string>(argv, argv + argc);
    std::vector<std::string> arguments;
    for (int i = 0; i < n; ++i) arguments.push_back(narrow(wide[i]));
    LocalFree(wide);
    return arguments;
}

std::filesystem::path native_path(const std::string& utf8) {
    // libstdc++ takes the prefix \\?\ for a folder. A path too long to go without it stays as it is.
    const bool is_prefixed =
        utf8.compare(0, 4, "\\\\?\\") == 0 && utf8.size() > 6 && utf8[5] == ':' && utf8.size() < 260;
    return std::filesystem::u8path(is_prefixed ? utf8.substr(4) : utf8);
}
std::string utf8_path(const std::filesystem::path& path) { return narrow(path.native()); }

bool names_device(const std::string& path) {
    wchar_t full[MAX_PATH];
    const DWORD n = GetFullPathNameW(widen(path).c_str(), MAX_PATH, full, nullptr);
    return n > 4 && n < MAX_PATH && std::wstring(full, 4) == L"\\\\.\\";
}
bool same_spelling(const std::filesystem::path& a, const std::filesystem::path& b) {
    std::filesystem::path x = a, y = b;
    return CompareStringOrdinal(x.make_preferred().c_str(), -1, y.make_preferred().c_str(), -1, TRUE) == CSTR_EQUAL;
}

std::FILE* open_stream(const std::string& path, const char* mode) {
    return _wfopen(widen(path).c_str(), widen(mode).c_str());
}

std::string environment(const char* name) {
    const wchar_t* value = _wgetenv(widen(name).c_str());
    return value ? narrow(value) : std::string();
}

bool read_line(std::string* line) {
    const HANDLE console = GetStdHandle(STD_INPUT_HANDLE);
    if (!stdin_is_terminal()) return static_cast<bool>(std::getline(std::cin, *line));
    std::wstring wide;
    wchar_t part[256];
    DWORD n = 0;
    do {
        if (!ReadConsoleW(console, part, 256, &n, nullptr) || n == 0) break;
        wide.append(part, n);
    } while (wide.back() != L'\n');
    const bool ended = wide.empty() || wide[0] == 26;  // Ctrl-Z
    while (!wide.empty() && (wide.back() == L'\n' || wide.back() == L'\r')) wide.pop_back();
    *line = narrow(wide);
    return !ended;
}

void prepare_streams() {
    _setmode(_fileno(stdin), _O_BINARY);
    _setmode(_fileno(stdout), _O_BINARY);
    if (is_console(stdout) || stderr_is_terminal()) SetConsoleOutputCP(CP_UTF8);
}

/// As the C run-time of the program that is started takes it apart again.
static std::wstring quoted(const std::wstring& argument) {
    std::wstring out = L"\"";
    size_t n_backslash = 0;
    for (const wchar_t c : argument) {
        if (c == L'"') out.append(n_backslash + 1, L'\\');
        n_backslash = c == L'\\' ? n_backslash + 1 : 0;
        out += c;
    }
    return out.append(n_backslash, L'\\') + L'"';
}

/// A console tells all of its programs of Ctrl-C and of its end. This one waits for the one that it started.
static BOOL WINAPI on_console_event(DWORD event) {
    // After all but Ctrl-C and Ctrl-Break the system ends this process once the handler returns, and the other with it.
    if (event != CTRL_C_EVENT && event != CTRL_BREAK_EVENT) Sleep(INFINITE);
    return TRUE;
}

/// Whether programs that this process starts end with it, even if it is killed. They share a job object whose handle
/// the system closes when this process ends.
static void end_with_this_process(bool do_end) {
    static const HANDLE job = CreateJobObjectW(nullptr, nullptr);
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION limits{};
    limits.BasicLimitInformation.LimitFlags = do_end ? JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE : 0u;
    SetInformationJobObject(job, JobObjectExtendedLimitInformation, &limits, sizeof limits);
    if (do_end) AssignProcessToJobObject(job, GetCurrentProcess());
}

bool run_program(const std::string& path, const std::vector<std::string>& arguments, int* exit_code) {
    std::vector<std::wstring> words;
    std::vector<const wchar_t*> pointers;
    for (const std::string& a : arguments) words.push_back(quoted(widen(a)));
    for (const std::wstring& w : words) pointers.push_back(w.c_str());
    pointers.push_back(nullptr);
    SetConsoleCtrlHandler(on_console_event, TRUE);  // programs that are started do not inherit it
    end_with_this_process(true);
    const intptr_t started = _wspawnv(_P_NOWAIT, (widen(path) + L".exe").c_str(), pointers.data());
    if (started != -1) {
        const HANDLE program = reinterpret_cast<HANDLE>(started);
        DWORD code = 1;
        WaitForSingleObject(program, INFINITE);
        GetExitCodeProcess(program, &code);
        CloseHandle(program);
        *exit_code = static_cast<int>(code);
    }
    end_with_this_process(false);  // this process ends by itself, with its own exit code
    return started != -1;
}

std::string executable_folder() {
    std::wstring path(1 << 15, L'\0');  // the longest there is
    const DWORD n = GetModuleFileNameW(nullptr, &path[0], static_cast<DWORD>(path.size()));
    if (n == 0 || n >= path.size()) return {};
    const std::string full = narrow(path.data(), static_cast<int>(n));
    const size_t slash = full.find_last_of("\\/");
    return slash == std::string::npos ? std::string() : full.substr(0, slash);
}

static void on_interrupt(int) {
    is_interrupted = true;
    std::signal(SIGINT, SIG_DFL);
}

void catch_interrupts() { std::signal(SIGINT, on_interrupt); }

#else

bool stdin_is_terminal() { return isatty(STDIN_FILENO) != 0; }
bool stderr_is_terminal() { return isatty(STDERR_FILENO) != 0; }

std::vector<std::string> utf8_arguments(int argc, char** argv) { return std::vector<std::string>(argv, argv + argc); }
std::filesystem::path native_path(const std::string& utf8) { return utf8; }
std::string utf8_path(const std::filesystem::path& path) { return path.string(); }
bool names_device(const std::string&) { return false; }
bool same_spelling(const std::filesystem::path& a, const std::filesystem::path& b) {
#if defined(__APPLE__)
    return strcasecmp(a.c_str(), b.c_str()) == 0;
#else
    return a == b;
#endif
}
std::FILE* open_stream(const std::string& path, const char* mode) { return std::fopen(path.c_str(), mode); }

std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

bool read_line(std::string* line) { return static_cast<bool>(std::getline(std::cin, *line)); }

void prepare_streams() {
    // In this order each open() takes the lowest free number, the one that is closed. The direction is the wrong one on
    // purpose: reading standard input or writing standard output then fails as on a closed stream.
    for (int fd = 0; fd <= 2; ++fd)
        if (fcntl(fd, F_GETFD) == -1) (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

bool run_program(const std::string& path, const std::vector<std::string>& arguments, int*) {
    std::vector<char*> pointers;
    for (const std::string& a : arguments) pointers.push_back(const_cast<char*>(a.c_str()));  // execv writes nothing
    pointers.push_back(nullptr);
    execv(path.c_str(), pointers.data());
    return false;
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

static void on_interrupt(int) { is_interrupted = true; }

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

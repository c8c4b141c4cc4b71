#include "end_signal.h"

#include <csignal>
#include <cstdlib>
#include <initializer_list>

#if defined(_WIN32)
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>

#include <atomic>
#endif

namespace server {

#if defined(_WIN32)

static std::atomic<bool> is_asked{false};
static const HANDLE is_ended = CreateEventW(nullptr, TRUE, FALSE, nullptr);

static BOOL WINAPI on_console_event(DWORD event) {
    const bool is_key = event == CTRL_C_EVENT || event == CTRL_BREAK_EVENT;
    if (is_asked.exchange(true) && is_key) return FALSE;
    SetEvent(is_ended);
    if (!is_key) Sleep(INFINITE);  // the system ends the process once this returns; main() does so earlier
    return TRUE;
}

EndSignal::EndSignal() { SetConsoleCtrlHandler(on_console_event, TRUE); }

bool EndSignal::wait() {
    WaitForSingleObject(is_ended, INFINITE);
    const bool asked = is_asked;
    if (asked) std::raise(SIGINT);
    return asked;
}

void EndSignal::set() const { SetEvent(is_ended); }

void end_process(int code) {
    TerminateProcess(GetCurrentProcess(), static_cast<UINT>(code));  // _exit() waits for streams that others hold
    std::abort();
}

#else

static sigset_t set_of(std::initializer_list<int> signals) {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : signals) sigaddset(&set, signal);
    return set;
}

static const sigset_t ends = set_of({SIGINT, SIGTERM, SIGUSR1});

EndSignal::EndSignal() { pthread_sigmask(SIG_BLOCK, &ends, nullptr); }  // threads that start later inherit it

bool EndSignal::wait() {
    int received = 0;
    while (sigwait(&ends, &received) != 0) {
    }
    if (received == SIGUSR1) return false;
    const sigset_t interrupt = set_of({SIGINT});
    pthread_sigmask(SIG_UNBLOCK, &interrupt, nullptr);
    std::raise(SIGINT);
    return true;
}

void EndSignal::set() const { pthread_kill(waiting_, SIGUSR1); }

void end_process(int code) { std::_Exit(code); }

#endif

}  // namespace server

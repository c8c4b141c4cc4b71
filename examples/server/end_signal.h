// server/end_signal: waits until somebody ends the server.
//
// Tests   tests/test_server_stalls.py; on Windows tests/test_platforms.py
#pragma once
#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace server {

/// One for the process, on the main thread, before any other thread starts.
class EndSignal {
  public:
    /// From here on wait() notices Ctrl-C and SIGTERM, on Windows Ctrl-C, Ctrl-Break, and a console that closes.
    EndSignal();
    EndSignal(const EndSignal&) = delete;
    EndSignal& operator=(const EndSignal&) = delete;
    /// Blocks until the server is to end. True: by one of these; a model that is being loaded is interrupted, and
    /// another Ctrl-C ends the process at once. False: by set().
    bool wait();
    /// The server cannot go on.
    /// thread    any
    void set() const;

  private:
#if !defined(_WIN32)
    pthread_t waiting_ = pthread_self();
#endif
};

/// Ends the process at once, whatever its other threads do or hold.
[[noreturn]] void end_process(int code);

}  // namespace server

// machine/thread: a thread whose start can fail without an exception.
//
// What    std::thread reports a refused start only by throwing, and the library compiles without exceptions.
// Owns    one system thread, joined at the latest by the destructor.
// Thread  start() and join() from one thread at a time.
// Tests   tests/test_vulkan_lost.cpp.
#pragma once
#include "../base/base.h"

#include <thread>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

class Thread {
  public:
    using Main = void* (*)(void* argument);
    Thread() = default;
    ~Thread() { join(); }
    Thread(const Thread&) = delete;
    Thread& operator=(const Thread&) = delete;

    /// False if the system refuses; `error` is then its errno value.
    bool start(Main main, void* argument, int* error);
    /// Waits for the thread's end; does nothing if none was started.
    void join();

  private:
    bool started_ = false;
    uint64_t handle_ = 0;  ///< POSIX: a pthread_t
    std::thread thread_;   ///< elsewhere
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

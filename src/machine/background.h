// machine/background: one thread that runs one function at a time beside its owner.
//
// Owns    the thread, and the function that it runs.
// Thread  all calls from the owner's thread.
// Tests   tests/test_pool.cpp
#pragma once
#include "thread.h"

#include <condition_variable>
#include <mutex>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

class Background {
  public:
    using Work = void (*)(void* context);
    Background() = default;
    ~Background();
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;
    /// Starts the thread. False: the system refuses one.
    bool start();
    /// Calls work(context) on the thread, or here if there is none. Waits for the one before.
    void run(Work work, void* context);
    /// Until the last one has returned; its writes are seen then.
    void wait();

  private:
    static void* work_loop(void* me);

    std::mutex mutex_;
    std::condition_variable changed_;
    Work work_ = nullptr;  ///< null: idle
    void* context_ = nullptr;
    bool started_ = false, ends_ = false;
    Thread thread_;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

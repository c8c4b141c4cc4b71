#include "thread.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

#if defined(__unix__) || defined(__APPLE__)

bool Thread::start(Main main, void* argument, int* error) {
    static_assert(sizeof(pthread_t) <= sizeof handle_, "a handle fits");
    pthread_t t{};
    *error = pthread_create(&t, nullptr, main, argument);
    started_ = *error == 0;
    if (started_) std::memcpy(&handle_, &t, sizeof t);
    return started_;
}

void Thread::join() {
    if (!started_) return;
    started_ = false;
    pthread_t t{};
    std::memcpy(&t, &handle_, sizeof t);
    pthread_join(t, nullptr);
}

#else

bool Thread::start(Main main, void* argument, int* error) {
    *error = 0;
    thread_ = std::thread(main, argument);
    return started_ = true;
}

void Thread::join() {
    if (!started_) return;
    started_ = false;
    thread_.join();
}

#endif

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

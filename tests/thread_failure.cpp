#include "thread_failure.h"

#include "allocations.h"
#include "support.h"

#if defined(__linux__) && !AUSPEX_TEST_SANITIZED
#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>
#define AUSPEX_TEST_THREADS 1
#else
#define AUSPEX_TEST_THREADS 0
#endif

namespace {
std::atomic<int> allowed{-1}, refused{0};  // allowed < 0: all
}  // namespace

namespace test {

std::atomic<int64_t> threads_until_fault{kNever};

bool can_refuse_threads() { return AUSPEX_TEST_THREADS != 0; }
ThreadFailure::ThreadFailure(int n_allowed) {
    refused = 0;
    allowed = n_allowed;
}
ThreadFailure::~ThreadFailure() { allowed = -1; }
int ThreadFailure::n_refused() const { return refused; }

}  // namespace test

#if AUSPEX_TEST_THREADS
extern "C" int pthread_create(pthread_t* t, const pthread_attr_t* attributes, void* (*main)(void*), void* argument) {
    using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
    static const Create real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
    if (allowed == 0) {
        ++refused;
        return EAGAIN;
    }
    if (allowed > 0) --allowed;
    if (test::fails(test::threads_until_fault)) return EAGAIN;
    return real(t, attributes, main, argument);
}
#endif

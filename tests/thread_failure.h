// tests/thread_failure: makes the system refuse new threads for a while.
#pragma once
#include <atomic>
#include <cstdint>

namespace test {

/// False where starting a thread cannot be intercepted: not on POSIX, or under a sanitizer that does it itself.
bool can_refuse_threads();

/// Thread starts until one fails, after which all succeed again; kNever of allocations.h: none fails.
extern std::atomic<int64_t> threads_until_fault;

/// While it lives, pthread_create() of this process refuses every thread after the first `n_allowed`.
struct ThreadFailure {
    explicit ThreadFailure(int n_allowed);
    ~ThreadFailure();
    ThreadFailure(const ThreadFailure&) = delete;
    ThreadFailure& operator=(const ThreadFailure&) = delete;
    int n_refused() const;
};

}  // namespace test

#include "pool.h"

#include "../base/clock.h"
#include "../base/float_mode.h"

#include <algorithm>

#if (defined(__x86_64__) || defined(_M_X64)) && !defined(__GNUC__)
#include <immintrin.h>
#endif

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace pool_impl {

using Clock = std::chrono::steady_clock;

// Spinning is fastest while every thread has a core of its own. If other programs want the cores, a spinning thread
// uses up its time slice and then waits for a whole one just when the others need it; a sleeping thread gets a core as
// soon as it is woken. A wait of about a time slice shows that the cores are shared.
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr auto kTimeSlice = std::chrono::milliseconds(1);
constexpr uint32_t kMinCalm = 64, kMaxCalm = 4096;  ///< barriers without spinning before it is tried again
constexpr auto kTrial = std::chrono::seconds(1);    ///< for the tasks of a job system to meet once

/// Tells the core that this is a waiting loop.
inline void pause() {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_ia32_pause();
#elif defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__) && defined(__GNUC__)
    __asm__ volatile("isb" ::: "memory");  // waits a little; "yield" does nothing on most cores
#endif
}

}  // namespace pool_impl

Pool::Pool(uint32_t n_thread, const JobSystem& jobs)
    : n_thread_(n_thread),
      may_spin_(n_thread <= std::thread::hardware_concurrency()),
      jobs_(jobs),
      workers_(jobs.run ? nullptr : std::make_unique<Worker[]>(n_thread)),
      n_active_(n_thread),
      count_(n_thread) {
    calm_.store(pool_impl::kMinCalm, std::memory_order_relaxed);
    for (uint32_t i = 0; workers_ && i < n_thread; ++i) {
        workers_[i].pool = this;
        workers_[i].i = i;
    }
}

Result<std::unique_ptr<Pool>> Pool::open(uint32_t n_thread, const JobSystem& jobs) {
    if (n_thread == 0 || n_thread > kMaxThread)
        return fail(Code::bad_argument, "a pool of ", n_thread, " threads was asked for, expected 1 to ", kMaxThread);
    std::unique_ptr<Pool> pool(new Pool(n_thread, jobs));
    if (jobs.run) {
        AUSPEX_TRY(pool->try_jobs());
        return pool;
    }
    for (uint32_t i = 1; i < n_thread; ++i) {
        int error = 0;
        Worker& worker = pool->workers_[i];
        if (!worker.thread.start(work_loop, &worker, &error))
            return fail(Code::out_of_memory, "the system started ", i - 1, " of ", n_thread - 1,
                        " threads and then refused with error ", error, ": ", std::strerror(error),
                        ". Ask for fewer threads.");
    }
    return pool;
}

namespace pool_impl {

/// Tasks that wait for one another, but not for ever.
struct Trial {
    const Clock::time_point end = Clock::now() + kTrial;
    std::atomic<uint32_t> n_begun{0}, n_met{0};
    const uint32_t n_task;
    explicit Trial(uint32_t n) : n_task(n) {}
};

void try_task(void* context, uint32_t) {
    Trial& trial = *static_cast<Trial*>(context);
    trial.n_begun.fetch_add(1);
    while (trial.n_begun.load() < trial.n_task && Clock::now() < trial.end) std::this_thread::yield();
    if (trial.n_begun.load() == trial.n_task && Clock::now() < trial.end) trial.n_met.fetch_add(1);
}

}  // namespace pool_impl

/// A job system that runs tasks one after the other would wait for ever at the first barrier: it is found out here.
Status Pool::try_jobs() {
    pool_impl::Trial trial(n_thread_);
    jobs_.run(jobs_.user, n_thread_, pool_impl::try_task, &trial);
    if (trial.n_met == n_thread_) return {};
    return fail(Code::bad_argument, "the job system was asked to run ", n_thread_, " tasks at the same time; ",
                trial.n_begun.load(), " were run, and they did not meet within ",
                std::chrono::duration_cast<std::chrono::seconds>(pool_impl::kTrial).count(),
                " s. Give each task a thread of its own, or ask for fewer threads.");
}

Pool::~Pool() {
    if (jobs_.run) return;
    start_run(0);
    for (uint32_t i = 1; i < n_thread_; ++i) workers_[i].thread.join();
}

void* Pool::work_loop(void* argument) {
    const DefaultFloatMode mode;  // a new thread inherits the mode of the one that started it
    Worker* me = static_cast<Worker*>(argument);
    Pool& pool = *me->pool;
    for (uint64_t seen = 0;;) {
        pool.wait_change(pool.run_, seen);
        seen = pool.run_.load(std::memory_order_acquire);
        const auto n = static_cast<uint32_t>(seen & 0xFFFF);
        if (n == 0) return nullptr;
        if (me->i >= n) {
            pool.park(me->i);
            continue;
        }
        pool.work_(pool.context_, me->i, n);
        pool.barrier();
    }
}

void Pool::work_task(void* argument, uint32_t i_thread) {
    const DefaultFloatMode mode;  // the application's threads may have another
    Pool& pool = *static_cast<Pool*>(argument);
    pool.work_(pool.context_, i_thread, pool.n_active_);
}

void Pool::run(Work work, void* context) {
    const DefaultFloatMode mode;
    if (n_thread_ == 1) return work(context, 0, 1);  // callers need not wait for one another
    std::lock_guard<std::mutex> turn(run_mutex_);
    run_on(n_thread_, work, context);
}

void Pool::run_some(Work work, void* context, uint32_t kind, uint32_t owner) {
    if (jobs_.run || n_thread_ == 1) return run(work, context);
    const DefaultFloatMode mode;
    std::lock_guard<std::mutex> turn(run_mutex_);
    const uint32_t n_late = n_late_.load(std::memory_order_relaxed), n_slept = n_slept_.load(std::memory_order_relaxed);
    const auto begin = pool_impl::Clock::now();
    run_on(count_.next(kind, owner), work, context);
    const double took = seconds_since(begin);
    const bool late = n_late_.load(std::memory_order_relaxed) != n_late;
    const uint32_t calm = calm_.load(std::memory_order_relaxed);
    calm_.store(late ? std::min(2 * calm, pool_impl::kMaxCalm) : std::max(calm / 2, pool_impl::kMinCalm),
                std::memory_order_relaxed);
    count_.observe(kind, took, n_slept_.load(std::memory_order_relaxed) != n_slept, owner);
}

void Pool::run_on(uint32_t n, Work work, void* context) {
    clear_tickets();
    if (n != n_active_) {  // these may have cores of their own
        calm_.store(pool_impl::kMinCalm, std::memory_order_relaxed);
        n_calm_.store(0, std::memory_order_relaxed);
    }
    n_active_ = n;
    if (n == 1) return work(context, 0, 1);
    work_ = work;
    context_ = context;
    if (jobs_.run) return jobs_.run(jobs_.user, n, work_task, this);
    start_run(n);
    work(context, 0, n);
    barrier();
}

void Pool::start_run(uint32_t n) {
    const uint64_t last = run_.load(std::memory_order_relaxed);
    run_.store((last | 0xFFFF) + 1 + n);
    wake();
    if (n > 0 && n <= (last & 0xFFFF)) return;
    { std::lock_guard<std::mutex> lock(sleep_mutex_); }
    parked_.notify_all();
}

void Pool::clear_tickets() {
    for (Ticket& t : tickets_) t.count.store(0, std::memory_order_relaxed);
}

void Pool::barrier() {
    const uint32_t n_active = n_active_;  // before arriving: the last one may begin another run
    if (n_active == 1) {
        clear_tickets();
        return;
    }
    const uint32_t phase = phase_.load(std::memory_order_relaxed);  // cannot change before we arrive
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < n_active) {
        const uint32_t n = n_calm_.load(std::memory_order_relaxed);
        const Wait wait = wait_change(phase_, phase);
        if (wait != Wait::awake) n_slept_.fetch_add(1, std::memory_order_relaxed);
        if (wait == Wait::late) {
            n_calm_.store(calm_.load(std::memory_order_relaxed), std::memory_order_relaxed);
            n_late_.fetch_add(1, std::memory_order_relaxed);
        } else if (n > 0) {
            n_calm_.store(n - 1, std::memory_order_relaxed);
        }
        return;
    }
    arrived_.store(0, std::memory_order_relaxed);
    clear_tickets();
    phase_.fetch_add(1);
    wake();
}

template <class T>
Pool::Wait Pool::wait_change(const std::atomic<T>& word, T old) {
    using namespace pool_impl;
    const auto changed = [&] { return word.load(std::memory_order_acquire) != old; };
    if (changed()) return Wait::awake;
    const bool spin = may_spin_ && n_calm_.load(std::memory_order_relaxed) == 0;
    const auto start = Clock::now();
    do {
        for (int i = 0; i < 32; ++i) {
            if (changed()) return Clock::now() - start > kTimeSlice ? Wait::late : Wait::awake;
            pause();
        }
    } while (spin && Clock::now() - start < kSpin);
    // Announce the sleep, then look again: wake() changes the word first and looks for sleepers after,
    // both sequentially consistent, so one of the two sees the other.
    std::unique_lock<std::mutex> lock(sleep_mutex_);
    n_asleep_.fetch_add(1);
    sleep_.wait(lock, [&] { return word.load() != old; });
    n_asleep_.fetch_sub(1);
    return Clock::now() - start > kTimeSlice ? Wait::late : Wait::slept;
}

void Pool::park(uint32_t i) {
    std::unique_lock<std::mutex> lock(sleep_mutex_);
    parked_.wait(lock, [&] {
        const uint64_t n = run_.load() & 0xFFFF;
        return n == 0 || n > i;
    });
}

void Pool::wake() {
    if (n_asleep_.load() == 0) return;
    { std::lock_guard<std::mutex> lock(sleep_mutex_); }
    sleep_.notify_all();
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

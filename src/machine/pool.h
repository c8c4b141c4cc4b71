// machine/pool: a few threads that run one function together.
//
// Owns    the worker threads, unless the application's run the work: how they start, wait, meet and sleep.
// Thread  run() from any thread, one caller at a time (others wait their turn); barrier() and ticket() only inside the
//         function that run() runs. A Pool must not be destroyed while it runs.
// Tests   tests/test_pool.cpp. Hot path: run() and barrier() allocate nothing.
#pragma once
#include "thread.h"
#include "thread_count.h"

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// A thread's part of shared work: part i of n. With a ticket, threads take chunks one after the other (better if cores
/// differ in speed); without, the work is cut evenly. Results never depend on the cut.
struct Share {
    uint32_t i = 0, n = 1;
    std::atomic<uint32_t>* ticket = nullptr;  ///< zero before the first chunk is taken
};

/// The even cut: items from..to of n_item for a share.
inline void even_part(uint64_t n_item, const Share& s, uint64_t* from, uint64_t* to) {
    *from = n_item * s.i / s.n;
    *to = n_item * (s.i + 1) / s.n;
}

/// Calls f(from, to) for the pieces of a share of n items. By ticket, a piece is what is left divided by twice the
/// threads, 1 .. max items. Few tickets, because each is an atomic operation that waits for all loads of its core;
/// small pieces at the end, so that no thread waits long for another.
template <class F>
void each_piece(uint32_t n, uint32_t max, const Share& s, F f) {
    if (!s.ticket) {
        uint64_t from, to;
        even_part(n, s, &from, &to);
        if (from < to) f(static_cast<uint32_t>(from), static_cast<uint32_t>(to));
        return;
    }
    const auto size_of = [&](uint32_t rest) {
        const uint32_t size = rest / (2 * s.n);
        return size < 1 ? 1 : size > max ? max : size;
    };
    for (uint32_t k = 0, from = 0, size = size_of(n);;) {
        const uint32_t mine = s.ticket->fetch_add(1, std::memory_order_relaxed);
        for (; k < mine && from < n; ++k) {
            from += size;
            size = size_of(n - from);
        }
        if (from >= n) return;
        f(from, from + size);
    }
}

class Pool {
  public:
    /// Runs on every thread with i_thread in 0 .. n_thread-1.
    using Work = void (*)(void* context, uint32_t i_thread, uint32_t n_thread);
    static constexpr uint32_t kMaxThread = 256;
    static constexpr uint32_t kTicket = 16;

    /// n_thread threads in all, the caller of run() included: n_thread - 1 are started, or none with `jobs`.
    ///
    /// errors    bad_argument: n_thread is 0 or above kMaxThread, or `jobs` does not run n_thread tasks at the same
    ///           time. out_of_memory: the system gives no more threads.
    static Result<std::unique_ptr<Pool>> open(uint32_t n_thread, const JobSystem& jobs = {});
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    uint32_t n_thread() const { return n_thread_; }
    /// Calls work on every thread, in the default floating-point mode, and returns when all have returned. Not from
    /// inside `work`. cost      1-3 us while the workers are still awake (they spin about 50 us after a run), a
    ///           system wake-up otherwise, and while other programs want the same cores.
    void run(Work work, void* context);
    /// The same on as many threads as pay beside other programs (ThreadCount); n_thread of `work` says how many.
    /// kind      runs of one kind and owner take the same time; from ThreadCount::kKind on they are not compared.
    void run_some(Work work, void* context, uint32_t kind, uint32_t owner = 0);
    /// A number that nobody else has got. Any thread.
    uint32_t new_number() { return n_number_++; }
    /// Waits until every thread of the run has come here; then all see what each wrote before.
    /// Also sets every ticket to zero.
    void barrier();
    /// Shared counter k < kTicket, zero at the start of a run and after each barrier: one for each loop
    /// between two barriers.
    std::atomic<uint32_t>* ticket(uint32_t k) { return &tickets_[k].count; }
    /// A share of an evenly cut loop, or of one cut by ticket k.
    Share even(uint32_t i_thread) const { return {i_thread, n_active_, nullptr}; }
    Share shared(uint32_t i_thread, uint32_t k) { return {i_thread, n_active_, n_active_ > 1 ? ticket(k) : nullptr}; }

  private:
    Pool(uint32_t n_thread, const JobSystem& jobs);
    Status try_jobs();
    struct Worker {
        Pool* pool = nullptr;
        uint32_t i = 0;
        Thread thread;
    };
    struct alignas(64) Ticket {
        std::atomic<uint32_t> count{0};
    };
    static void* work_loop(void* me);
    static void work_task(void* pool, uint32_t i_thread);
    void clear_tickets();
    /// On the first n threads. The caller holds run_mutex_.
    void run_on(uint32_t n, Work work, void* context);
    /// Tells the first n threads to begin; 0 tells all to end.
    void start_run(uint32_t n);
    enum class Wait : uint8_t {
        awake,  ///< by spinning alone
        slept,
        late  ///< it took as long as a time slice
    };
    /// Returns when `word` no longer holds `old`: spins, then sleeps.
    template <class T>
    Wait wait_change(const std::atomic<T>& word, T old);
    /// Wakes the threads that sleep in wait_change. Call after changing the word.
    void wake();
    /// Returns when a run is for more than i threads, or the pool ends. Threads that have no part in runs sleep here,
    /// where the meetings of the others do not wake them.
    void park(uint32_t i);

    const uint32_t n_thread_;
    const bool may_spin_;                ///< a processor for each thread
    const JobSystem jobs_;               ///< run is null: threads of this pool
    std::unique_ptr<Worker[]> workers_;  ///< [n_thread]; worker 0 is the caller of run(). Null with jobs_

    Work work_ = nullptr;  ///< published by run_
    void* context_ = nullptr;
    uint32_t n_active_;  ///< threads of the present run; read by these alone
    ThreadCount count_;
    std::atomic<uint32_t> n_number_{0};

    /// The number of runs so far, and in the low 16 bits how many threads the present one is for: the others are parked
    /// and may miss runs. 0 threads: the pool ends.
    alignas(64) std::atomic<uint64_t> run_{0};
    alignas(64) std::atomic<uint32_t> arrived_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
    alignas(64) std::atomic<uint32_t> n_asleep_{0};  ///< in wait_change
    alignas(64) std::atomic<uint32_t> n_late_{0};    ///< threads that waited at a barrier for a time slice
    alignas(64) std::atomic<uint32_t> n_slept_{0};   ///< threads that slept at a barrier: each costs a wake-up
    /// Barriers to come at which not to spin, because the cores are shared with others.
    alignas(64) std::atomic<uint32_t> n_calm_{0};
    std::atomic<uint32_t> calm_{0};  ///< how many of them follow a late one
    Ticket tickets_[kTicket];
    std::mutex sleep_mutex_;
    std::condition_variable sleep_, parked_;
    std::mutex run_mutex_;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

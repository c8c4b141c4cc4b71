// tests/allocations: the operator new of the test program, which counts and can be made to fail.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace test {

constexpr int64_t kNever = INT64_MAX;

/// Calls of operator new by the whole process.
extern std::atomic<int64_t> n_allocation;
/// The bytes that they asked for, those given back among them.
extern std::atomic<int64_t> n_allocated_bytes;
/// Blocks that were allocated and not freed.
extern std::atomic<int64_t> n_held;
/// Allocations until one fails, after which all succeed again; kNever: none fails.
extern std::atomic<int64_t> allocations_until_fault;
/// The same for allocations by this program's own code: a driver's code, which may not survive one, allocates through
/// the same operator new. Those by the standard library's own code do not count either.
extern std::atomic<int64_t> own_allocations_until_fault;
/// False where the two cannot be told apart.
bool can_tell_own_allocations();

/// Aligned memory of the C library; null if there is none. What it gives, free_aligned() takes back.
void* allocate_aligned(size_t n, size_t alignment);
void free_aligned(void* p);

/// What allocations cost since it was made: a measure of work that is the same on every host.
class AllocationCount {
  public:
    int64_t calls() const { return n_allocation - calls_; }
    int64_t bytes() const { return n_allocated_bytes - bytes_; }

  private:
    int64_t calls_ = n_allocation, bytes_ = n_allocated_bytes;
};

/// Counts down; true for the one call that shall fail.
bool fails(std::atomic<int64_t>& until);

}  // namespace test

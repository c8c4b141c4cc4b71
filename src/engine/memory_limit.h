// engine/memory_limit: what DeviceOptions::memory_limit_bytes and free memory leave for models and sessions.
//
// Owns    the sum of what models and sessions take on a GPU with a limit, in device and host memory. It is counted from
//         their plans and before any of it is allocated, so that threads that load and create at once stay within it.
//         On the CPU the limit is for one model and one session, and nothing is summed.
// Thread  any, at the same time.
// Tests   tests/test_memory_plan.cpp, tests/test_vulkan_shapes.cpp.
#pragma once
#include "../auspex.hpp"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

struct ContextOptions;

/// A part of a GPU's limit. Taken before what it counts is allocated, and given back when this is destroyed.
class Reservation {
  public:
    Reservation() = default;
    ~Reservation();
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;
    /// Once. False, and nothing is taken: with what others hold it would exceed the limit.
    bool take(std::shared_ptr<Device::Impl> device, uint64_t bytes);
    uint64_t bytes() const { return bytes_; }

  private:
    std::shared_ptr<Device::Impl> device_;
    uint64_t bytes_ = 0;
};

/// What of `items` the limit counts.
uint64_t limited_bytes(const std::vector<MemoryItem>& items);

/// What a model and a session may take together: what is free now and what the loaded weights hold already, on a GPU
/// within the caller's limit less what other models and sessions hold; on the CPU the caller's limit, if there is one.
/// 0: not known.
uint64_t limit_of(const Model::Impl& model);

/// Takes the weights' part of a GPU's limit.
///
/// errors    out_of_memory: they exceed the limit, or the free memory of a CPU without one.
Status reserve_weights(Model::Impl& model);

/// The same of a context that no session plans. errors: as Backend::plan_context(); out_of_memory.
Status reserve_context(const Model::Impl& model, const ContextOptions& options, Reservation* to);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

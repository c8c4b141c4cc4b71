// plan/arch: from the metadata of a file to a Plan; one arch_*.cpp per model family.
//
// Owns    the table of families by `general.architecture`, and PlanBuilder, which families build their tapes with.
// Thread  no shared state.
// Tests   tests/test_plan.cpp, tests/test_families.cpp; against the framework's outputs in tests/test_reference.cpp
#pragma once
#include "../base/gguf.h"
#include "plan.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

struct PlanOptions {
    bool mtp = true;  ///< include the MTP blocks if the file has them
};

/// errors    unsupported: an unknown architecture or feature.
///           bad_file: a key or tensor that is missing, misshapen or contradicts another; the text names it.
Result<Plan> make_plan(const Gguf& file, const PlanOptions& options);

/// Declares slots and appends operations. Keeps the first error; later calls then do nothing, so that a family needs
/// no error handling between them.
class PlanBuilder {
  public:
    PlanBuilder(const Gguf& file, Plan& plan) : file_(file), plan_(plan) {}

    SlotId activation(std::string name, uint64_t width, SlotRole role = SlotRole::activation);
    /// An activation shared by all layers: the same name and width give the same slot.
    SlotId scratch(const char* name, uint64_t width);
    SlotId state(std::string name, SlotRole role, uint64_t a, uint64_t b = 0, uint64_t c = 0);
    /// The weight slot of the file's tensor `name`, which must have this shape (slowest first).
    SlotId weight(const std::string& name, std::initializer_list<uint64_t> expected);
    /// The same for a vector, which must be F32.
    SlotId vector(const std::string& name, uint64_t n);
    /// A weight slot of some rows of the matrix `tensor` [n_row, d_in], in the order of `take`. `what` makes the slot's
    /// name unique.
    SlotId rows(const std::string& tensor, const char* what, uint64_t n_row, uint64_t d_in, std::vector<RowRange> take);
    bool has(const std::string& name) const { return file_.tensor(name) != nullptr; }

    Op& push(Tape& tape, OpKind kind, uint32_t layer, SlotId out);
    void norm(Tape& tape, uint32_t layer, SlotId out, SlotId in, SlotId w, float eps, uint32_t out_offset = 0);
    void matmul(Tape& tape, uint32_t layer, SlotId out, SlotId in, SlotId w, bool accumulate = false);

    /// Keeps `s` if it is the first error.
    void fail_with(Status s) {
        if (status_.ok()) status_ = std::move(s);
    }
    bool ok() const { return status_.ok(); }
    Status status() const { return status_; }
    const Gguf& file() const { return file_; }
    uint32_t n_vocab() const { return plan_.n_vocab; }

    /// Integers, floats and flags under the architecture's prefix; low..high is the accepted range.
    uint32_t u32(const char* key, uint32_t low, uint32_t high);
    uint32_t u32_or(const char* key, uint32_t fallback, uint32_t low, uint32_t high);
    float f32(const char* key);
    float f32_or(const char* key, float fallback);
    bool flag_or(const char* key, bool fallback);
    /// One value per block; a scalar in the file is repeated.
    std::vector<uint32_t> u32s(const char* key, uint32_t n, const uint32_t* fallback, uint32_t low, uint32_t high);
    std::vector<float> f32s(const char* key, uint32_t n, const float* fallback);
    std::string key(const char* name) const { return plan_.architecture + "." + name; }

  private:
    const Gguf& file_;
    Plan& plan_;
    Status status_;
    std::unordered_map<std::string, SlotId> weights_, scratch_;
};

/// The planner of a family: fills the tapes of `plan`, whose architecture is set.
using Planner = Status (*)(const Gguf& file, const PlanOptions& options, Plan& plan);
/// Every family, one row for each value of general.architecture. The planners are defined in arch_*.cpp.
#define AUSPEX_FAMILIES(X)    \
    X("qwen35", plan_qwen)    \
    X("qwen35moe", plan_qwen) \
    X("qwen3next", plan_qwen) \
    X("step35", plan_step35)
#define AUSPEX_DECLARE(name, planner) Status planner(const Gguf& file, const PlanOptions& options, Plan& plan);
AUSPEX_FAMILIES(AUSPEX_DECLARE)
#undef AUSPEX_DECLARE

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// plan/arch: hyperparameters become a Plan; one file per model family.
//
// Owns    the choice of family by `general.architecture`, and Builder, the vocabulary all
//         families write their tapes with.
// Reads   plan, gguf.
// Serves  model loading.
// Thread  none of its own.
// Laws    tests/test_plan.cpp; Twin against independent outputs in tests/test_reference.cpp.
#pragma once
#include "../base/gguf.h"
#include "plan.h"

namespace auspex {
namespace detail {

struct PlanOptions {
    bool mtp = true;  ///< plan the MTP blocks, if the file has them
};

/// errors    unsupported: an architecture or feature that is not known; bad_file: keys or tensors
///           that are missing, misshapen or contradict each other, each named.
Result<Plan> make_plan(const Gguf& file, const PlanOptions& options);

/// Writes tapes. The first error sticks; every later call does nothing, so a family reads as prose.
class Builder {
  public:
    Builder(const Gguf& file, Plan& plan) : file_(file), plan_(plan) {}

    SlotId activation(std::string name, uint64_t width, SlotRole role = SlotRole::activation);
    /// An activation that layers share: the same name and width give the same slot.
    SlotId scratch(const std::string& name, uint64_t width);
    SlotId state(std::string name, SlotRole role, uint64_t a, uint64_t b = 0, uint64_t c = 0);
    /// A weight slot for the file's tensor `name`, which must have exactly this shape (slowest first).
    SlotId weight(const std::string& name, std::vector<uint64_t> shape);
    /// The same for 1-D tensors, which must be F32.
    SlotId vector(const std::string& name, uint64_t n);
    /// Some rows of the matrix `tensor`, which must have n_row of d_in values, in the order given; `what`
    /// tells the slot from others of the same tensor.
    SlotId rows(const std::string& tensor, const char* what, uint64_t n_row, uint64_t d_in, std::vector<RowRange> take);
    bool has(const std::string& name) const { return file_.tensor(name) != nullptr; }

    Op& push(Tape& tape, OpKind kind, uint32_t layer, SlotId out);
    void norm(Tape& tape, uint32_t layer, SlotId out, SlotId in, SlotId w, float eps, uint32_t out_offset = 0);
    void matmul(Tape& tape, uint32_t layer, SlotId out, SlotId in, SlotId w, bool accumulate = false);

    /// Records the first error.
    void fail_with(Status s) {
        if (status_.ok()) status_ = std::move(s);
    }
    bool ok() const { return status_.ok(); }
    Status status() const { return status_; }
    const Gguf& file() const { return file_; }
    uint32_t n_vocab() const { return plan_.n_vocab; }

    /// Hyperparameters under the architecture's prefix; a missing or impossible one is the sticky error.
    uint32_t u32(const char* key, uint32_t low, uint32_t high);
    uint32_t u32_or(const char* key, uint32_t fallback, uint32_t low, uint32_t high);
    float f32(const char* key);
    float f32_or(const char* key, float fallback);
    bool flag_or(const char* key, bool fallback);
    /// One for each block; a scalar in the file stands for all.
    std::vector<uint32_t> u32s(const char* key, uint32_t n, const uint32_t* fallback, uint32_t low, uint32_t high);
    std::vector<float> f32s(const char* key, uint32_t n, const float* fallback);
    std::string key(const char* name) const { return plan_.architecture + "." + name; }

  private:
    const Gguf& file_;
    Plan& plan_;
    Status status_;
    std::unordered_map<std::string, SlotId> weights_, scratch_;
};

/// Families. Each fills the plan's tapes from the file.
Status plan_qwen(const Gguf& file, const PlanOptions& options, Plan& plan);
Status plan_step35(const Gguf& file, const PlanOptions& options, Plan& plan);

}  // namespace detail
}  // namespace auspex

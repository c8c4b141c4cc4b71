// engine/memory_plan: computes the memory of a model and a session before any of it is allocated.
//
// Owns    windows and KV formats from the options, windows that meet a KV budget, the plan, and alternatives for when
//         it does not fit.
// Thread  any, at the same time.
// Test    tests/test_memory_plan.cpp: a plan equals what the allocators then hand out.
#pragma once
#include "../machine/kv.h"
#include "draft.h"
#include "session.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

constexpr uint32_t kMaxContext = 1u << 24;  ///< of SessionOptions::n_context

/// "1.5 MiB".
std::string mib(uint64_t bytes);

/// Adds what the weights of `plan`, a plan of this model, take.
Status plan_weights(const Model::Impl& model, const Plan& plan, std::vector<MemoryItem>* items);

/// Fills in the defaults of `o`, checks it, and translates it for the back end. rule: if not null, set to a text that
/// says how kv_budget_bytes was met.
///
/// errors    bad_argument, unsupported; the text names the option.
Status plan_context_options(const Plan& plan, SessionOptions& o, ContextOptions* context, std::string* rule);

/// What a checkpoint and a parked row take from the budget: with the rows of the draft block at draft.window, where the
/// model has one, also in a session that does not draft. What fits, and so which rows are computed again, does not
/// depend on draft.source.
Result<StateSizes> checkpoint_sizes(const Plan& plan, ContextOptions context);

/// What the options of a session come to. The memory plan and the session have it from the same function, so the plan
/// counts what the session takes.
struct SessionLayout {
    ContextOptions context;
    std::vector<KvShape> kv;           ///< by SlotId
    std::vector<LayerWindow> windows;  ///< of every attention layer, trunk first
    std::string window_rule;           ///< how kv_budget_bytes was met
    StateSizes sizes;                  ///< of the checkpoints
    uint64_t checkpoint_bytes = 0;     ///< of their arena
};
/// Fills in the defaults of `o`, as plan_context_options() does. errors: also those of checkpoint_budget().
Result<SessionLayout> session_layout(const Plan& plan, SessionOptions& o);

/// Sets n_ubatch if it is 0: what suits the device if the plan says that the session fits with it, else 512. Always 512
/// with kv_budget_bytes: longer steps need longer rings, which would leave less of the budget for the windows.
void choose_ubatch(const Model::Impl& model, SessionOptions* o);

/// The memory that loading `model` and opening a session take, to the byte. Reads the model's headers and
/// tokenizer, no weights.
Result<MemoryPlan> plan_memory(const Model::Impl& model, const SessionOptions& options, bool alternatives);

/// Returns `done`, with the alternatives added to its text if it is out_of_memory.
Status explain_shortage(const Model::Impl& model, const SessionOptions& options, Status done);

/// Calls choose_ubatch(), checks model and session against the memory limit, or on the CPU against free memory, and
/// takes the session's part of a GPU's limit. Any thread, at the same time.
///
/// errors    those of plan_memory(); out_of_memory; the text lists the alternatives.
Status reserve_session(const Model::Impl& model, SessionOptions* options, Reservation* to);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

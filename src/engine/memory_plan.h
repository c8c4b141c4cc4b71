// engine/memory_plan: every byte that a model and a session take, before it is taken.
//
// Owns    windows and KV formats as options say them, the windows for a budget, the plan, and the alternatives when it
//         does not fit.
// Thread  none of its own; pure functions.
// Test    tests/test_memory_plan.cpp: a plan equals what the allocators then hand out.
#pragma once
#include "../machine/kv.h"
#include "draft.h"
#include "session.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// Fills in the defaults of `o`, checks it, and translates it for the back end. `rule`, if given, gets how a budget was
/// met.
///
/// errors    bad_argument, unsupported; the text names the option.
Status plan_context_options(const Plan& plan, SessionOptions& o, ContextOptions* context, std::string* rule);

/// The window of every attention layer, trunk first.
std::vector<LayerWindow> windows_of(const Plan& plan, const std::vector<KvShape>& shapes);

/// Every byte that loading `model` (its plan alone is read) and opening a session takes.
Result<MemoryPlan> plan_memory(const Model::Impl& model, const SessionOptions& options, bool alternatives);

/// Returns `done`; if it is out_of_memory, with the alternatives.
Status explain_shortage(const Model::Impl& model, const SessionOptions& options, Status done);
/// out_of_memory, with the alternatives, if the memory limit, or on the CPU what is free, does not allow this.
Status check_limit(const Model::Impl& model, const SessionOptions& options);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// engine/memory: what a session keeps, and what that takes.
//
// Owns    windows and KV formats as the caller says them, the rule that sampled_ids windows for a budget, the
//         plan of every byte, and the alternatives of what would fit.
// Reads   model, machine/kv.
// Serves  session; the door.
// Thread  none of its own; pure functions.
// Laws    a plan equals what the allocators then hand out: tests/test_memory_plan.cpp.
#pragma once
#include "../machine/kv.h"
#include "draft.h"
#include "session.h"

namespace auspex {
namespace detail {

/// Fills in the defaults of `o`, checks it, and says it in the machine's terms. `rule`, if given, tells how a
/// budget was met. errors: bad_argument, unsupported; the text names the option.
Status plan_context_options(const Plan& plan, SessionOptions& o, ContextOptions* context, std::string* rule);

/// The window of every attention layer, trunk first.
std::vector<LayerWindow> windows_of(const Plan& plan, const std::vector<KvShape>& shapes);

/// Every byte that loading `model` (its plan alone is read) and opening a session takes.
Result<MemoryPlan> plan_memory(const Model::Impl& model, const SessionOptions& options, bool alternatives);

/// Passes `done` on; where memory was short, with the alternatives.
Status explain_shortage(const Model::Impl& model, const SessionOptions& options, Status done);
/// out_of_memory, with the alternatives, when the device's memory limit does not allow this.
Status fits_limit(const Model::Impl& model, const SessionOptions& options);

}  // namespace detail
}  // namespace auspex

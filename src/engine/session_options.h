// engine/session_options: checks SessionOptions against a model, with the same errors for Session::create and plan.
//
// Thread  pure functions.
// Tests   tests/test_session.cpp.
#pragma once
#include "model.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// errors    bad_argument: a value out of range, named; unsupported: drafting with an MTP block that the model lacks.
Status check_session_options(const Model::Impl& model, const SessionOptions& options);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

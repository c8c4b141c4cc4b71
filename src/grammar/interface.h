// grammar/interface: what a public Grammar holds.
//
// Owns    nothing but the shared rules.
// Thread  immutable.
// Tests   tests/test_grammar.cpp, tests/test_fault.cpp
#pragma once
#include "grammar.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {

struct Grammar::Impl {
    std::shared_ptr<const detail::Rules> rules;

    static Result<Grammar> wrap(Result<std::shared_ptr<const detail::Rules>> compiled);
};

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// grammar/tool_calls: replies that may or must call tools, in the form that base/reply_parser reads.
//
// Owns    the frame around calls: thinking, text, tags. Arguments are written by grammar/schema.
// Thread  no shared state.
// Tests   tests/test_tool_calls.cpp
#pragma once
#include "grammar.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// errors    bad_argument, unsupported: the text begins with the tool.
Result<std::shared_ptr<const Rules>> rules_from_tools(const std::vector<std::string>& tools,
                                                      const ToolOptions& options);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

#include "interface.h"

#include "../base/guard.h"
#include "schema.h"
#include "tool_calls.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace grammar_interface_impl {

std::shared_ptr<const Grammar::Impl> wrap(std::shared_ptr<const Rules> rules) {
    auto impl = std::make_shared<Grammar::Impl>();
    impl->rules = std::move(rules);
    return impl;
}

}  // namespace grammar_interface_impl
}  // namespace detail

Result<Grammar> Grammar::from_gbnf(std::string_view text) AUSPEX_BOUNDARY {
    std::shared_ptr<const detail::Rules> rules;
    AUSPEX_TRY(detail::rules_from_gbnf(text).get(rules));
    Grammar out;
    out.impl_ = detail::grammar_interface_impl::wrap(std::move(rules));
    return out;
}
AUSPEX_CATCH

Result<Grammar> Grammar::from_regex(std::string_view pattern) AUSPEX_BOUNDARY {
    std::shared_ptr<const detail::Rules> rules;
    AUSPEX_TRY(detail::rules_from_regex(pattern).get(rules));
    Grammar out;
    out.impl_ = detail::grammar_interface_impl::wrap(std::move(rules));
    return out;
}
AUSPEX_CATCH

Result<Grammar> Grammar::from_json_schema(std::string_view schema, const SchemaOptions& options) AUSPEX_BOUNDARY {
    std::shared_ptr<const detail::Rules> rules;
    AUSPEX_TRY(detail::rules_from_json_schema(schema, options).get(rules));
    Grammar out;
    out.impl_ = detail::grammar_interface_impl::wrap(std::move(rules));
    return out;
}
AUSPEX_CATCH

Result<Grammar> Grammar::from_tools(const std::vector<std::string>& tools, const ToolOptions& options) AUSPEX_BOUNDARY {
    std::shared_ptr<const detail::Rules> rules;
    AUSPEX_TRY(detail::rules_from_tools(tools, options).get(rules));
    Grammar out;
    out.impl_ = detail::grammar_interface_impl::wrap(std::move(rules));
    return out;
}
AUSPEX_CATCH

std::vector<std::string> Grammar::ignored() const AUSPEX_BOUNDARY {
    if (!impl_) return {};
    return impl_->rules->ignored;
}
AUSPEX_CATCH_EMPTY

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

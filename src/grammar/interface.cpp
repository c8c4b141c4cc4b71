#include "interface.h"

#include "../base/guard.h"
#include "schema.h"
#include "tool_calls.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {

Result<Grammar> Grammar::Impl::wrap(Result<std::shared_ptr<const detail::Rules>> compiled) {
    auto impl = std::make_shared<Impl>();
    AUSPEX_TRY(std::move(compiled).get(impl->rules));
    Grammar out;
    out.impl_ = std::move(impl);
    return out;
}

Result<Grammar> Grammar::from_gbnf(std::string_view text) AUSPEX_BOUNDARY {
    return Impl::wrap(detail::rules_from_gbnf(text));
}
AUSPEX_CATCH

Result<Grammar> Grammar::from_regex(std::string_view pattern) AUSPEX_BOUNDARY {
    return Impl::wrap(detail::rules_from_regex(pattern));
}
AUSPEX_CATCH

Result<Grammar> Grammar::from_json_schema(std::string_view schema, const SchemaOptions& options) AUSPEX_BOUNDARY {
    return Impl::wrap(detail::rules_from_json_schema(schema, options));
}
AUSPEX_CATCH

Result<Grammar> Grammar::from_tools(const std::vector<std::string>& tools, const ToolOptions& options) AUSPEX_BOUNDARY {
    return Impl::wrap(detail::rules_from_tools(tools, options));
}
AUSPEX_CATCH

Span<const std::string> Grammar::ignored() const noexcept {
    return impl_ ? Span<const std::string>(impl_->rules->ignored) : Span<const std::string>();
}

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

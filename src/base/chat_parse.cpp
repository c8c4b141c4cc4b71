#include "reply_parser.h"
#include "guard.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace chat_parse_impl {

/// Whether a schema's "type" is this one or lists it.
bool declares(const Json* type, const char* what) {
    if (type == nullptr) return false;
    if (type->is(Json::Kind::string)) return type->text() == what;
    for (const Json& t : type->items())
        if (t.is(Json::Kind::string) && t.text() == what) return true;
    return false;
}

}  // namespace chat_parse_impl

ToolSchemas::ToolSchemas(const std::vector<std::string>& tools) {
    for (const std::string& tool : tools) {
        Json json;
        if (Json::parse(tool).get(json).ok()) tools_.push_back(std::move(json));
    }
}

const Json* ToolSchemas::function(std::string_view name) const {
    for (const Json& tool : tools_) {
        const Json* inner = tool.find("function");
        const Json& f = inner != nullptr ? *inner : tool;
        const Json* n = f.find("name");
        if (n != nullptr && n->is(Json::Kind::string) && n->text() == name) return &f;
    }
    return nullptr;
}

const Json* ToolSchemas::type_of(std::string_view tool, std::string_view name) const {
    const Json* at = function(tool);
    for (const std::string_view key :
         {std::string_view("parameters"), std::string_view("properties"), name, std::string_view("type")})
        if (at != nullptr) at = at->find(key);
    return at;
}

bool ToolSchemas::is_string(std::string_view tool, std::string_view name) const {
    const Json* type = type_of(tool, name);
    return chat_parse_impl::declares(type, "string") && !chat_parse_impl::declares(type, "null");
}

ToolArgument ToolSchemas::typed(std::string_view tool, std::string name, std::string_view text) const {
    using chat_parse_impl::declares;
    const Json* type = type_of(tool, name);
    ToolArgument out{std::move(name), std::string(text), false};
    const std::string_view bare = trim_space(text);
    Json value;
    if (declares(type, "string") && !(declares(type, "null") && bare == "null")) return out;
    if (Json::parse(bare).get(value).ok()) {
        out = argument_of(std::move(out.name), value);
    } else if (declares(type, "boolean") && (bare == "True" || bare == "False")) {
        out = ToolArgument{std::move(out.name), bare == "True" ? "true" : "false", true};
    } else if (type != nullptr && bare == "None") {
        out = ToolArgument{std::move(out.name), "null", true};
    }
    return out;
}

}  // namespace detail

Result<ChatReply> parse_reply(std::string_view text, bool inside_thinking,
                              const std::vector<std::string>& tools) AUSPEX_BOUNDARY {
    const detail::ToolSchemas schemas(tools);
    detail::ReplyParser parser(schemas, inside_thinking, nullptr);
    parser.push(text);
    parser.finish();
    return std::move(parser.reply);
}
AUSPEX_CATCH

struct ReplyStream::Impl {
    Impl(bool inside_thinking, const std::vector<std::string>& tools)
        : schemas(tools), parser(schemas, inside_thinking, &events) {}

    detail::ToolSchemas schemas;
    std::vector<ReplyEvent> events;
    detail::ReplyParser parser;
};

ReplyStream::ReplyStream() noexcept = default;
ReplyStream::~ReplyStream() = default;
ReplyStream::ReplyStream(ReplyStream&&) noexcept = default;
ReplyStream& ReplyStream::operator=(ReplyStream&&) noexcept = default;

#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
ReplyStream::ReplyStream(bool inside_thinking, const std::vector<std::string>& tools) {
    try {
        impl_.reset(new Impl(inside_thinking, tools));
    } catch (...) {
        (void)detail::status_of_exception();  // stays empty: push() says so
    }
}
#else
ReplyStream::ReplyStream(bool inside_thinking, const std::vector<std::string>& tools)
    : impl_(new Impl(inside_thinking, tools)) {}
#endif

Result<std::vector<ReplyEvent>> ReplyStream::push(std::string_view text) AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("ReplyStream", "its constructor with arguments");
    if (impl_->parser.finished())
        return Status(Code::bad_argument, "the reply is finished; make another ReplyStream for the next one");
    impl_->parser.push(text);
    return std::exchange(impl_->events, {});
}
AUSPEX_CATCH

Result<std::vector<ReplyEvent>> ReplyStream::finish() AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("ReplyStream", "its constructor with arguments");
    if (!impl_->parser.finished()) impl_->parser.finish();
    return std::exchange(impl_->events, {});
}
AUSPEX_CATCH

const ChatReply& ReplyStream::reply() const {
    static const ChatReply empty;
    return impl_ ? impl_->parser.reply : empty;
}

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

#include "chat.h"
#include "guard.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace chat_request_impl {

Status wrong(const std::string& path, const Json& found, const char* expected) {
    return fail(Code::bad_argument, path, " is ", found.kind_name(), ", expected ", expected);
}

/// For texts in which a value stands so many levels deep: it may be nested as deeply as one that stands alone, which is
/// how a template reads it.
Json::Limits limits_around(size_t levels) {
    Json::Limits limits;
    limits.max_depth += levels;
    return limits;
}

/// A member that is there and not null.
const Json* given(const Json& object, const char* key) {
    const Json* value = object.find(key);
    return value != nullptr && !value->is(Json::Kind::null) ? value : nullptr;
}

Status read_content(const Json& json, const std::string& path, ChatMessage& m) {
    if (json.is(Json::Kind::null)) return Status();
    if (json.is(Json::Kind::string)) {
        m.content = json.text();
        return Status();
    }
    if (!json.is(Json::Kind::array)) {
        Status s = wrong(path, json, "a string, a list or null");
        s.text = "Unexpected content type. (" + s.text + ")";
        return s;
    }
    for (size_t i = 0; i < json.items().size(); ++i) {
        const Json& item = json.items()[i];
        const std::string here = say(path, "[", i, "]");
        if (!item.is(Json::Kind::object)) return wrong(here, item, "an object");
        const Json* type = item.find("type");
        const auto type_is = [type](const char* name) {
            return type != nullptr && type->is(Json::Kind::string) && type->text() == name;
        };
        ContentPart part;
        if (item.find("image") != nullptr || item.find("image_url") != nullptr || type_is("image")) {
            part.kind = ContentPart::Kind::image;
        } else if (item.find("video") != nullptr || type_is("video")) {
            part.kind = ContentPart::Kind::video;
        } else if (const Json* text = item.find("text")) {
            if (!text->is(Json::Kind::string)) return wrong(here + ".text", *text, "a string");
            part.text = text->text();
        } else {
            return fail(Code::bad_argument, "Unexpected item type in content. (", here,
                        ": expected a text, image or video item)");
        }
        m.parts.push_back(std::move(part));
    }
    return Status();
}

Status read_arguments(const Json& json, const std::string& path, ToolCall& call) {
    static const char kExpected[] = "an object or a string holding one";
    if (json.is(Json::Kind::string)) {
        // OpenAI's clients send the object as text.
        if (trim_space(json.text()).empty()) return Status();
        Json inner;
        if (Status s = Json::parse(json.text(), limits_around(1)).get(inner); !s.ok())
            return fail(Code::bad_argument, path, " is a string that holds no JSON object: ", s.text);
        if (!inner.is(Json::Kind::object))
            return fail(Code::bad_argument, path, " is a string that holds ", inner.kind_name(), ", expected ",
                        kExpected);
        return read_arguments(inner, path, call);
    }
    if (!json.is(Json::Kind::object)) return wrong(path, json, kExpected);
    for (size_t i = 0; i < json.items().size(); ++i)
        call.arguments.push_back(argument_of(json.keys()[i], json.items()[i]));
    return Status();
}

/// The members whose keys are none of `known`, and not null.
template <size_t N>
std::vector<ToolArgument> other_members(const Json& json, const std::string_view (&known)[N]) {
    std::vector<ToolArgument> others;
    for (size_t i = 0; i < json.items().size(); ++i)
        if (std::find(known, known + N, json.keys()[i]) == known + N && !json.items()[i].is(Json::Kind::null))
            others.push_back(argument_of(json.keys()[i], json.items()[i]));
    return others;
}

Status read_calls(const Json& json, const std::string& path, ChatMessage& m) {
    if (!json.is(Json::Kind::array)) return wrong(path, json, "a list");
    for (size_t i = 0; i < json.items().size(); ++i) {
        const std::string here = say(path, "[", i, "]");
        const Json* call = &json.items()[i];
        if (!call->is(Json::Kind::object)) return wrong(here, *call, "an object");
        ToolCall out;
        out.template_members = other_members(*call, {"type", "function", "name", "arguments"});
        if (const Json* function = call->find("function")) call = function;
        if (!call->is(Json::Kind::object)) return wrong(here + ".function", *call, "an object");
        const Json* name = call->find("name");
        if (name == nullptr || !name->is(Json::Kind::string))
            return fail(Code::bad_argument, here, " has no name, expected a string");
        out.name = name->text();
        if (const Json* arguments = given(*call, "arguments"))
            AUSPEX_TRY(read_arguments(*arguments, here + ".arguments", out));
        m.tool_calls.push_back(std::move(out));
    }
    return Status();
}

Status read_message(const Json& json, const std::string& path, ChatMessage& m) {
    if (!json.is(Json::Kind::object)) return wrong(path, json, "an object");
    const Json* role = json.find("role");
    if (role == nullptr || !role->is(Json::Kind::string))
        return fail(Code::bad_argument, path, " has no role, expected a string");
    m.role = role->text();
    if (const Json* content = json.find("content")) AUSPEX_TRY(read_content(*content, path + ".content", m));
    if (const Json* reasoning = json.find("reasoning_content");
        reasoning != nullptr && reasoning->is(Json::Kind::string)) {
        m.reasoning = reasoning->text();
        m.has_reasoning = true;
    }
    if (const Json* calls = given(json, "tool_calls")) AUSPEX_TRY(read_calls(*calls, path + ".tool_calls", m));
    m.template_members = other_members(json, {"role", "content", "reasoning_content", "tool_calls"});
    return Status();
}

/// Whether a ChatRequest has a member for it.
bool is_switch(std::string_view key) {
    return key == "add_generation_prompt" || key == "enable_thinking" || key == "preserve_thinking" ||
           key == "add_vision_id";
}

Status read_switches(const Json& json, const std::string& path, ChatRequest& r) {
    const auto read = [&json, &path](const char* key, auto* to) {
        const Json* value = given(json, key);
        if (value == nullptr) return Status();
        if (!value->is(Json::Kind::boolean)) return wrong(path + key, *value, "true or false");
        *to = value->boolean();
        return Status();
    };
    AUSPEX_TRY(read("add_generation_prompt", &r.add_generation_prompt));
    AUSPEX_TRY(read("enable_thinking", &r.enable_thinking));
    AUSPEX_TRY(read("preserve_thinking", &r.preserve_thinking));
    return read("add_vision_id", &r.add_vision_id);
}

Status read_request(const Json& json, ChatRequest& r) {
    if (!json.is(Json::Kind::object)) return wrong("the request", json, "an object with \"messages\"");
    const Json* messages = json.find("messages");
    if (messages == nullptr) return fail(Code::bad_argument, "the request has no \"messages\"");
    if (!messages->is(Json::Kind::array)) return wrong("messages", *messages, "a list");
    for (size_t i = 0; i < messages->items().size(); ++i) {
        r.messages.emplace_back();
        AUSPEX_TRY(read_message(messages->items()[i], message_path(i), r.messages.back()));
    }
    if (const Json* tools = given(json, "tools")) {
        if (!tools->is(Json::Kind::array)) return wrong("tools", *tools, "a list");
        for (size_t i = 0; i < tools->items().size(); ++i) {
            const Json& tool = tools->items()[i];
            if (!tool.is(Json::Kind::object)) return wrong(say("tools[", i, "]"), tool, "an object");
            r.tools.push_back(tool.dump(Json::Numbers::written));
        }
    }
    AUSPEX_TRY(read_switches(json, "", r));
    if (const Json* more = given(json, "chat_template_kwargs")) {
        if (!more->is(Json::Kind::object)) return wrong("chat_template_kwargs", *more, "an object");
        AUSPEX_TRY(read_switches(*more, "chat_template_kwargs.", r));
        for (size_t i = 0; i < more->items().size(); ++i)
            if (!is_switch(more->keys()[i]))
                r.template_arguments.push_back(argument_of(more->keys()[i], more->items()[i]));
    }
    return Status();
}

}  // namespace chat_request_impl
}  // namespace detail

Result<ChatRequest> ChatRequest::from_json(std::string_view text) AUSPEX_BOUNDARY {
    detail::Json json;
    // messages[i].tool_calls[k].function.arguments.name: seven levels
    AUSPEX_TRY(detail::Json::parse(text, detail::chat_request_impl::limits_around(7)).get(json));
    ChatRequest request;
    AUSPEX_TRY(detail::chat_request_impl::read_request(json, request));
    return request;
}
AUSPEX_CATCH

Result<std::string> to_json(const ChatReply& reply) AUSPEX_BOUNDARY {
    using detail::json_quoted;
    using detail::say;
    std::string out = say("{\"role\": \"assistant\", \"content\": ", json_quoted(reply.content));
    // A template looks for </think> in the content of a message that does not say what was thought.
    if (!reply.thinking.empty() || reply.content.find("</think>") != std::string::npos)
        out += say(", \"reasoning_content\": ", json_quoted(reply.thinking));
    for (size_t i = 0; i < reply.tool_calls.size(); ++i) {
        const ToolCall& call = reply.tool_calls[i];
        out += say(i == 0 ? ", \"tool_calls\": [" : ", ",
                   "{\"type\": \"function\", \"function\": {\"name\": ", json_quoted(call.name), ", \"arguments\": {");
        for (size_t k = 0; k < call.arguments.size(); ++k) {
            const ToolArgument& a = call.arguments[k];
            out += say(k == 0 ? "" : ", ", json_quoted(a.name), ": ", a.json ? a.value : json_quoted(a.value));
        }
        out += "}}}";
    }
    std::string json;  // of a reply put together by the caller, too, which may hold any bytes
    detail::append_repaired(json, out + (reply.tool_calls.empty() ? "}" : "]}"));
    return json;
}
AUSPEX_CATCH

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

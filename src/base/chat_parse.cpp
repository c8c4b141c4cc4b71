#include "chat.h"
#include "guard.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace chat_parse_impl {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";
constexpr std::string_view kCall = "<tool_call>", kCallEnd = "</tool_call>";
constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>";
constexpr size_t kNever = std::string_view::npos;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/// A position in the text of one call.
struct Cursor {
    std::string_view text;
    size_t at;

    void space() {
        while (at < text.size() && is_space(text[at])) ++at;
    }
    bool at_text(std::string_view what) const { return text.substr(at, what.size()) == what; }
    bool take(std::string_view what) {
        if (!at_text(what)) return false;
        at += what.size();
        return true;
    }
    /// A name up to '>' on the same line, without white space around it.
    bool name(std::string* out) {
        size_t end = at;
        while (end < text.size() && text[end] != '>' && text[end] != '\n' && text[end] != '<') ++end;
        if (end == text.size() || text[end] != '>') return false;
        *out = std::string(trim_space(text.substr(at, end - at)));
        at = end + 1;
        return !out->empty();
    }
};

/// The argument types that the request's tools declare.
class Schemas {
  public:
    explicit Schemas(const std::vector<std::string>& tools) {
        for (const std::string& tool : tools) {
            Json json;
            if (Json::parse(tool).get(json).ok()) tools_.push_back(std::move(json));
        }
    }
    bool knows(std::string_view name) const { return function(name) != nullptr; }

    /// An argument with its type: a declared string is taken as it is, anything else as JSON if it parses.
    ToolArgument typed(std::string_view tool, std::string name, std::string_view text) const {
        const Json* type = nullptr;
        if (const Json* f = function(tool))
            if (const Json* parameters = f->find("parameters"))
                if (const Json* properties = parameters->find("properties"))
                    if (const Json* property = properties->find(name)) type = property->find("type");
        const auto declared = [type](const char* what) {
            if (type == nullptr) return false;
            if (type->is(Json::Kind::string)) return type->text() == what;
            for (const Json& t : type->items())
                if (t.is(Json::Kind::string) && t.text() == what) return true;
            return false;
        };
        ToolArgument out{std::move(name), std::string(text), false};
        const std::string_view bare = trim_space(text);
        Json value;
        if (declared("string") && !(declared("null") && bare == "null")) return out;
        if (Json::parse(bare).get(value).ok()) {
            // A JSON string is passed as a string, without its quotes.
            out.json = !value.is(Json::Kind::string);
            out.value = out.json ? value.dump() : value.text();
        } else if (declared("boolean") && (bare == "True" || bare == "False")) {
            out = ToolArgument{std::move(out.name), bare == "True" ? "true" : "false", true};
        } else if (type != nullptr && bare == "None") {
            out = ToolArgument{std::move(out.name), "null", true};
        }
        return out;
    }

  private:
    const Json* function(std::string_view name) const {
        for (const Json& tool : tools_) {
            const Json* inner = tool.find("function");
            const Json& f = inner != nullptr ? *inner : tool;
            const Json* n = f.find("name");
            if (n != nullptr && n->is(Json::Kind::string) && n->text() == name) return &f;
        }
        return nullptr;
    }
    std::vector<Json> tools_;
};

/// The value of a parameter: up to a closing tag that is followed by another parameter or the end of
/// the function, so that a value may itself hold closing tags. One newline is taken off either end.
bool value_of(Cursor& c, std::string_view* out) {
    c.take("\r");
    c.take("\n");
    for (size_t end = c.text.find(kParameterEnd, c.at); end != kNever; end = c.text.find(kParameterEnd, end + 1)) {
        Cursor after{c.text, end + kParameterEnd.size()};
        after.space();
        if (!after.at_text(kParameter) && !after.at_text(kFunctionEnd) && !after.at_text(kCallEnd)) continue;
        std::string_view value = c.text.substr(c.at, end - c.at);
        if (!value.empty() && value.back() == '\n') value.remove_suffix(1);
        if (!value.empty() && value.back() == '\r') value.remove_suffix(1);
        *out = value;
        c.at = after.at;
        return true;
    }
    return false;
}

/// NAME> and its parameters, after "<function=".
bool xml_call(Cursor& c, const Schemas& schemas, ToolCall* out) {
    if (!c.name(&out->name)) return false;
    c.space();
    while (c.take(kParameter)) {
        std::string name;
        std::string_view value;
        if (!c.name(&name) || !value_of(c, &value)) return false;
        out->arguments.push_back(schemas.typed(out->name, std::move(name), value));
        c.space();
    }
    const bool closed = c.take(kFunctionEnd);
    c.space();
    return c.take(kCallEnd) || closed;
}

/// {"name": ..., "arguments": {...}}, the form of older models, up to </tool_call> or the end.
bool json_call(Cursor& c, ToolCall* out) {
    size_t end = c.text.find(kCallEnd, c.at);
    if (end == kNever) end = c.text.size();
    Json json;
    if (!Json::parse(c.text.substr(c.at, end - c.at)).get(json).ok()) return false;
    const Json* name = json.find("name");
    const Json* arguments = json.find("arguments");
    if (name == nullptr || !name->is(Json::Kind::string)) return false;
    if (arguments != nullptr && !arguments->is(Json::Kind::object)) return false;
    out->name = name->text();
    for (size_t i = 0; arguments != nullptr && i < arguments->items().size(); ++i) {
        const Json& v = arguments->items()[i];
        const bool plain = v.is(Json::Kind::string);
        out->arguments.push_back(ToolArgument{arguments->keys()[i], plain ? v.text() : v.dump(), !plain});
    }
    c.at = end;
    c.take(kCallEnd);
    return true;
}

/// The start of the next call at or after `from`: <tool_call> followed by <function= or {, or, unless `wrapped`, a
/// bare <function= of a tool in the request.
size_t find_call(std::string_view text, size_t from, const Schemas& schemas, bool wrapped = false) {
    for (size_t at = text.find('<', from); at != kNever; at = text.find('<', at + 1)) {
        Cursor c{text, at};
        if (c.take(kCall)) {
            c.space();
            if (c.at_text(kFunction) || c.at_text("{")) return at;
        } else if (!wrapped && c.take(kFunction)) {
            std::string name;
            if (c.name(&name) && schemas.knows(name)) return at;
        }
    }
    return kNever;
}

/// Splits `text` into content and calls.
void take_calls(std::string_view text, const Schemas& schemas, ChatReply& reply) {
    std::string content;
    size_t at = 0, next_wrapped = 0;
    for (size_t open = find_call(text, 0, schemas); open != kNever;) {
        Cursor c{text, open};
        const bool wrapped = c.take(kCall);
        c.space();
        const bool xml = c.take(kFunction);
        // A call ends where the next one starts, so that a malformed call cannot hide a good one and no text is parsed
        // repeatedly. Inside <tool_call> a bare <function= does not start a call.
        if (next_wrapped <= open) next_wrapped = find_call(text, c.at, schemas, true);
        c.text = text.substr(0, wrapped ? next_wrapped : find_call(text, c.at, schemas));
        const size_t inside = c.at;
        ToolCall call;
        if (xml ? xml_call(c, schemas, &call) : json_call(c, &call)) {
            const std::string_view before = text.substr(at, open - at);
            if (!trim_space(before).empty()) content.append(before);
            reply.tool_calls.push_back(std::move(call));
            at = c.at;
            open = find_call(text, at, schemas);
        } else {
            open = find_call(text, inside, schemas);
        }
    }
    const std::string_view rest = text.substr(at);
    if (reply.tool_calls.empty()) {
        reply.content = std::string(rest);
        return;
    }
    content.append(rest);
    reply.content = std::string(trim_space(content));
}

std::string_view without_newlines_in_front(std::string_view text) {
    while (!text.empty() && (text.front() == '\n' || text.front() == '\r')) text.remove_prefix(1);
    return text;
}

}  // namespace chat_parse_impl
}  // namespace detail

Result<ChatReply> parse_reply(std::string_view text, bool inside_thinking,
                              const std::vector<std::string>& tools) AUSPEX_BOUNDARY {
    using namespace detail::chat_parse_impl;
    const Schemas schemas(tools);
    ChatReply reply;
    // Some models open the thinking block although the prompt has already opened it.
    Cursor c{text, 0};
    c.space();
    if (c.take(kThink)) {
        inside_thinking = true;
        text.remove_prefix(c.at);
    }
    if (inside_thinking) {
        const size_t end = text.find(kThinkEnd);
        size_t thinking_end = end;
        std::string_view rest;
        if (end != kNever) {
            rest = without_newlines_in_front(text.substr(end + kThinkEnd.size()));
        } else {
            // Never closed: all of it is thinking, up to a complete call if there is one.
            thinking_end = text.size();
            ChatReply inside;
            const size_t open = find_call(text, 0, schemas);
            if (open != kNever) take_calls(text.substr(open), schemas, inside);
            if (!inside.tool_calls.empty()) {
                thinking_end = open;
                reply = std::move(inside);
            }
        }
        reply.thinking = std::string(detail::trim_space(text.substr(0, thinking_end)));
        if (end == kNever) return reply;
        text = rest;
    }
    take_calls(text, schemas, reply);
    return reply;
}
AUSPEX_CATCH

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

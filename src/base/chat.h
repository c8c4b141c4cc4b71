// base/chat: chat templates: messages to prompt text, and replies back to messages.
//
// Owns    native renderers of the known templates (ChatML, Qwen3.5, Qwen3.6, unsloth's Qwen3.6); others run as programs
//         (chat_program.h). Reading requests (chat_request.cpp), replies (reply_parser.h, chat_parse.cpp). The public
//         functions are declared in auspex.hpp: render_chat, recognise_template, parse_reply, ReplyStream, to_json.
// Thread  pure functions.
// Tests   tests/test_chat.cpp, tests/fuzz_chat.cpp
#pragma once
#include "json.h"
#include "marked.h"
#include "unicode.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// The text of the Qwen3.5 and 3.6 templates after the list of tools.
extern const char kToolInstructions[];

/// FNV-1a of the template without "\r" and trailing white space: identifies an exact template.
uint64_t template_fingerprint(std::string_view jinja);

/// Texts of tokens that a template may print.
struct TemplateTokens {
    std::string bos, eos;
};
/// recognise_template() for callers that say themselves when memory runs out: a model must not get another template
/// then.
ChatTemplate recognise(std::string_view jinja, const TemplateTokens& tokens, std::string* note);

/// An argument of a call: of a JSON string the text, of anything else the JSON, with its numbers as they were written.
inline ToolArgument argument_of(std::string name, const Json& value) {
    const bool plain = value.is(Json::Kind::string);
    return ToolArgument{std::move(name), plain ? value.text() : value.dump(Json::Numbers::written), !plain};
}

/// Types of JSON values, as bits of a set.
struct JsonTypes {
    static constexpr unsigned kNull = 1, kBoolean = 2, kInteger = 4, kOther = 8, kNumber = 12, kString = 16,
                              kArray = 32, kObject = 64, kAll = 127;
    /// By the name in a schema's "type"; 0: there is no such type.
    static unsigned named(std::string_view name);
    static unsigned of(const Json& value);
};

/// How the text of an argument is read.
enum class ArgumentForm : uint8_t {
    text,           ///< a string, as it is
    nullable_text,  ///< as it is, but null and None are null
    typed,          ///< as JSON of one of the types, or as True, False and None; a string that is neither, as it is
    any,            ///< as JSON of any type, or a string that is no JSON, as it is
};
struct ArgumentType {
    ArgumentForm form = ArgumentForm::any;
    unsigned types = JsonTypes::kAll;  ///< that the schema allows as far as it states them
};
/// Both the reader of replies and the grammar of calls decide by this. schema: that of the argument, or null;
/// parameters: that of the tool, within which $ref leads.
ArgumentType argument_type(const Json* schema, const Json& parameters);

inline bool starts_with(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }
inline bool ends_with(std::string_view text, std::string_view with) {
    return text.size() >= with.size() && text.substr(text.size() - with.size()) == with;
}
inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// "messages[2]", counted from 0, for error texts.
inline std::string message_path(size_t i) { return say("messages[", i, "]"); }

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

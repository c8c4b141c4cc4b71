// base/chat_program: chat templates that are run as the Jinja programs they are.
//
// Owns    what a template is given (messages, tools, switches), what it can show, and where its messages end.
// Thread  a ChatProgram is immutable: any thread, at the same time.
// Tests   tests/test_jinja.cpp
#pragma once
#include "chat.h"
#include "jinja.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {

struct ChatProgram {
    detail::jinja::Program program;
    detail::TemplateTokens tokens;
    bool text_arguments = false;  ///< wants the arguments of a call as JSON text, not as a map
};

namespace detail {

/// Reads the template and tries it on small conversations, which tell what it can show.
///
/// note      says what the template lacks, or nothing.
/// errors    unsupported, bad_argument: a template that cannot be run, or that does not show what a user says.
Result<ChatTemplate> read_program(std::string_view jinja, const TemplateTokens& tokens, std::string* note);

/// errors    bad_argument: as render_chat().
Result<ChatPrompt> render_program(const ChatRequest& request, const ChatTemplate& chat_template);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

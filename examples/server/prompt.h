// server/prompt: from the fields of a request to the tokens of its prompt and the settings of its reply.
//
// Every protocol brings its conversation into OpenAI's form; what follows from there is here, once.
// Thread  any.
// Tests   tests/test_server_openai.py, tests/test_server_fields.py
#pragma once
#include <optional>
#include <set>

#include "engine.h"

namespace server {

/// What a client leaves open.
struct Defaults {
    std::optional<float> temperature, top_p, min_p;  ///< given by the user
    std::optional<int> top_k;
    auspex::Sampling sampling;                               ///< by complete_defaults()
    std::optional<bool> enable_thinking, preserve_thinking;  ///< where not given, what the template does by itself
};
/// The sampling that the model's file recommends (general.sampling.*) where the user gives none; else that of the cards
/// of these models.
void complete_defaults(const std::vector<auspex::FileValue>& metadata, Defaults* to);

/// temperature, top_p, top_k, min_p, penalties, logit_bias and seed. n_vocab: ids are below it.
void read_sampling(const Fields& fields, const Defaults& defaults, uint32_t n_vocab, GenerationRequest* to);

/// A conversation in OpenAI's form, as the model's template takes it.
struct Conversation {
    Json messages = Json::array();
    Json tools = Json::array();
    Json switches = Json::object();  ///< chat_template_kwargs
    /// "none" switches thinking off; other efforts are for templates that know the variable.
    void set_effort(const std::string& effort);
    std::optional<std::string> begun;  ///< what the reply begins with, which the model continues without thinking
    ReplyForm form;
};
/// Reads `messages`, `tools`, `tool_choice`, `parallel_tool_calls`, `response_format`, `json_schema`, `grammar`,
/// `chat_template_kwargs` and `reasoning_effort` of a chat completion.
Failure read_conversation(const Json& body, Conversation* to);
/// `chat_template_kwargs`, in all conversations.
void read_template_switches(const Fields& fields, Conversation* to);
/// `thinking.type`: enabled, disabled or adaptive, which leaves it to the template.
void read_thinking(const Fields& fields, Conversation* to);
/// Refuses `format` inside the object `key`, where another protocol has the form of a reply, unless it is plain text.
void refuse_format(const Fields& fields, const char* key, const std::string& instead);
/// Refuses `functions` and `function_call`, OpenAI's form before tools.
void refuse_functions(const Fields& fields);
/// "auto", "none", "required" or a function, which is called once; parallel_tool_calls.
void read_tool_choice(const Fields& fields, Conversation* to);
/// Reads the name of a function, which the model calls it by: a tool without one, or two of one name, could not be
/// called. known: the names of the tools before it.
std::string read_tool_name(const Fields& function, std::set<std::string>* known);
/// Adds a text after a blank line, where there is something on both sides of it.
void append_paragraph(std::string* to, const std::string& text);
/// Adds a block of thinking to a message of the assistant.
void add_thinking(const std::string& text, Json* message);
/// Brings system messages to the front, where templates want the only one: those at the beginning are joined, later
/// ones become messages of the user. Contents become strings. Results come in the order of their calls.
Failure arrange_messages(Conversation* conversation);
/// Renders without a reply.
Failure render(const Engine& engine, const Conversation& conversation, const Defaults& defaults,
               auspex::ChatPrompt* prompt, std::vector<std::string>* tools);
/// The tokens of the prompt, how to parse the reply, and what constrains it; checks that the context has room.
Failure prepare(Engine& engine, const Conversation& conversation, const Defaults& defaults, GenerationRequest* to);
/// exceed_context_size_error, with the fields that agents read, unless the prompt leaves room for a token.
Failure check_context(const Engine& engine, size_t n_prompt);

}  // namespace server

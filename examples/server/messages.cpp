// server/messages: /v1/messages, Anthropic's protocol.
//
// Tests   tests/test_server_anthropic.py
#include "service.h"

namespace server {

namespace {

// ----------------------------------------------------------------------------------------------- answers

class MessagesProtocol final : public Protocol {
  public:
    explicit MessagesProtocol(const Service& s) {
        head_ = {{"id", random_id("msg_")}, {"type", "message"}, {"role", "assistant"}, {"model", s.alias}};
    }

    void begin(const Usage& usage) override {
        Json message = head_;
        message["content"] = Json::array();
        message["stop_reason"] = nullptr;
        message["stop_sequence"] = nullptr;
        message["usage"] = usage_of(usage);
        message["usage"]["output_tokens"] = 0;
        write_event("message_start", {{"message", message}});
    }

    void event(uint32_t, const auspex::ReplyEvent& e) override {
        using Kind = auspex::ReplyEvent::Kind;
        switch (e.kind) {
            case Kind::reasoning:
                open(Block::thinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
                text_of_block("thinking") += e.text;
                return delta({{"type", "thinking_delta"}, {"thinking", e.text}});
            case Kind::text:
                open(Block::text, {{"type", "text"}, {"text", ""}});
                text_of_block("text") += e.text;
                return delta({{"type", "text_delta"}, {"text", e.text}});
            case Kind::call_begin:
                close();
                input_.clear();
                return open(
                    Block::call,
                    {{"type", "tool_use"}, {"id", random_id("toolu_")}, {"name", e.text}, {"input", Json::object()}});
            case Kind::call_arguments:
                input_ += e.text;
                return delta({{"type", "input_json_delta"}, {"partial_json", e.text}});
            case Kind::call_end: {
                Json input;
                if (parse_json(input_, &input)) content_.back()["input"] = std::move(input);
                return close();
            }
            case Kind::call_dropped: return;
        }
    }

    void end_choice(uint32_t, const Choice& c) override {
        const bool is_cut = block_ == Block::call;  // its input is no object; a stream has told the beginning
        close();
        if (is_cut) content_.erase(content_.size() - 1);
        Json delta = Json::object();
        set_reason(c, &delta);
        write_event("message_delta", {{"delta", delta}, {"usage", usage_of(c.usage)}});
    }

    void end(const std::vector<Choice>&) override { write_event("message_stop", Json::object()); }

    void fail(const Failure& failure) override {
        out_ += "event: error\n";
        write_data(anthropic_error(failure));
    }

    /// The blocks were collected from the same events that a stream would have told.
    Json answer(const std::vector<Choice>& choices) override {
        Json message = head_;
        message["content"] = content_;
        set_reason(choices[0], &message);
        message["usage"] = usage_of(choices[0].usage);
        return message;
    }

    Json error(const Failure& failure) const override { return anthropic_error(failure); }

  private:
    enum class Block { none, thinking, text, call };

    static Json usage_of(const Usage& u) {
        return {{"input_tokens", u.n_prompt - u.n_cached},
                {"cache_creation_input_tokens", 0},
                {"cache_read_input_tokens", u.n_cached},
                {"output_tokens", u.n_predicted}};
    }

    /// Calls are to be made whatever the text after them ended with.
    static void set_reason(const Choice& c, Json* to) {
        const bool stopped = c.finish == Finish::stop && c.calls.empty();
        (*to)["stop_reason"] = c.finish == Finish::length ? "max_tokens"
                               : !c.calls.empty()         ? "tool_use"
                               : stopped                  ? "stop_sequence"
                                                          : "end_turn";
        (*to)["stop_sequence"] = stopped ? Json(c.stop) : Json();
    }

    void open(Block block, const Json& content) {
        if (block_ == block) return;
        close();
        block_ = block;
        content_.push_back(content);
        write_event("content_block_start", {{"index", i_block_}, {"content_block", content}});
    }

    void close() {
        if (block_ == Block::none) return;
        if (block_ == Block::thinking) delta({{"type", "signature_delta"}, {"signature", ""}});
        write_event("content_block_stop", {{"index", i_block_}});
        block_ = Block::none;
        ++i_block_;
    }

    void delta(const Json& delta) { write_event("content_block_delta", {{"index", i_block_}, {"delta", delta}}); }

    std::string& text_of_block(const char* key) { return content_.back()[key].get_ref<std::string&>(); }

    Json head_, content_ = Json::array();
    Block block_ = Block::none;
    uint32_t i_block_ = 0;
    std::string input_;  ///< of the open call
};

// ----------------------------------------------------------------------------------------------- requests

/// Brings a request into OpenAI's form.
class MessagesReader {
  public:
    explicit MessagesReader(const Json& body) : body_(body) {}

    Failure read(Conversation* to) {
        const Fields fields(body_, "", &failure_);
        if (const Json* system = fields.find("system")) {
            const std::string text = system_text(*system);
            if (!text.empty()) to->messages.push_back({{"role", "system"}, {"content", text}});
        }
        if (fields.asks("thread")) failure_ = no_threads();
        for (const char* key : {"container", "mcp_servers"}) fields.refuse_wish(key, "leave it out");
        // Fields of other protocols, which would have no effect.
        for (const char* key : {"response_format", "json_schema"}) fields.refuse_wish(key, "use output_config.format");
        for (const char* key : {"max_completion_tokens", "max_output_tokens", "n_predict"})
            fields.refuse_wish(key, "use max_tokens");
        fields.refuse_wish("stop", "use stop_sequences");
        fields.refuse_wish("reasoning_effort", "use thinking");
        fields.refuse_wish("instructions", "use system");
        refuse_format(fields, "text", "use output_config.format");
        const Json* budget = fields.find("thinking_budget_tokens");  // 0 forbids thinking, -1 sets no budget
        if (budget && *budget != -1)
            fields.keep(not_supported("thinking_budget_tokens is not available here; use thinking.budget_tokens"));
        for (const char* key : {"grammar", "logprobs", "top_logprobs"})
            fields.refuse_wish(key, "use /v1/chat/completions");
        refuse_extensions(fields, "output_config.format");
        refuse_choices(fields);
        refuse_functions(fields);
        const Json* messages = fields.list("messages");
        if (!messages) fields.refuse("messages", "a list");
        for (size_t i = 0; messages && i < messages->size() && failure_.ok(); ++i)
            read_message((*messages)[i], "messages[" + std::to_string(i) + "]", &to->messages);
        if (const Json* tools = fields.list("tools")) read_tools(*tools, to);
        read_switches(fields, to);
        read_form(fields, to);
        read_begun(to);
        return failure_.ok() ? arrange_messages(to) : failure_;
    }
    bool dropped_header = false;  ///< of what changes with every request and would make each prompt a new one

  private:
    std::string system_text(const Json& system) {
        if (!system.is_array()) return content_text(system, "system", &failure_);
        std::string all;
        for (size_t i = 0; i < system.size() && failure_.ok(); ++i) {
            const std::string text = part_text(system[i], "system[" + std::to_string(i) + "]", &failure_);
            if (text.compare(0, 27, "x-anthropic-billing-header:") == 0)
                dropped_header = true;
            else
                append_paragraph(&all, text);
        }
        return all;
    }

    /// The client wants the server to hold the conversation. `details` tells it to go on without.
    static Failure no_threads() {
        Failure f = not_supported("thread is not available; leave it out and send the whole conversation in messages");
        f.extra["details"] = {{"error_code", "thread_unsupported_request"}, {"unsupported", Json::array({"thread"})}};
        return f;
    }

    void fail(const std::string& why) {
        if (failure_.ok()) failure_ = bad_request(why);
    }

    void read_message(const Json& m, const std::string& path, Json* to) {
        if (!m.is_object()) return fail(path + " is " + describe(m) + ", expected an object");
        std::string role;
        const Fields fields(m, path + ".", &failure_);
        fields.text("role", &role);
        if (role != "user" && role != "assistant" && role != "system")
            return fail(path + ".role is '" + role + "', expected user, assistant or system");
        Json message = {{"role", role}, {"content", ""}};
        const Json* content = fields.find("content");
        if (!content) return fail(path + ".content is missing, expected a string or a list of blocks");
        if (!content->is_array()) {
            message["content"] = content_text(*content, path + ".content", &failure_);
            to->push_back(message);
            return;
        }
        std::string text;
        const size_t n_before = to->size();
        for (size_t i = 0; i < content->size() && failure_.ok(); ++i)
            read_block((*content)[i], path + ".content[" + std::to_string(i) + "]", &text, &message, to);
        message["content"] = text;
        const bool results_only = to->size() > n_before && text.empty();
        if (!results_only) to->push_back(message);
    }

    /// One block of a content. Results of tools become messages of their own, before that of the user.
    void read_block(const Json& block, const std::string& path, std::string* text, Json* message, Json* to) {
        if (!block.is_object()) return fail(path + " is " + describe(block) + ", expected an object");
        std::string type, value;
        const Fields fields(block, path + ".", &failure_);
        if (!fields.text("type", &type)) return fields.refuse("type", "the name of a block");
        if (type == "tool_result") {
            if ((*message)["role"] != "user") fail(path + " is a tool_result, expected it in a message of the user");
            const Json* content = fields.find("content");
            const std::string result = content ? content_text(*content, path + ".content", &failure_) : "";
            std::string id;
            fields.text("tool_use_id", &id);
            to->push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", result}});
        } else if (type == "thinking") {
            fields.text("thinking", &value);
            add_thinking(value, message);
        } else if (type == "tool_use") {
            const Json *input = fields.object("input"), *id = fields.find("id");
            std::string name;
            if (!fields.text("name", &name)) return fields.refuse("name", "the name of a tool");
            (*message)["tool_calls"].push_back(
                {{"id", id ? *id : Json()},
                 {"type", "function"},
                 {"function", {{"name", name}, {"arguments", input ? *input : Json::object()}}}});
        } else if (type != "redacted_thinking") {
            append_paragraph(text, part_text(block, path, &failure_));
        }
    }

    /// Tools of other types, which a server would run itself (web search), are left out: there is none here.
    void read_tools(const Json& tools, Conversation* to) {
        std::set<std::string> names;
        for (size_t i = 0; i < tools.size() && failure_.ok(); ++i) {
            const std::string path = "tools[" + std::to_string(i) + "]";
            if (!tools[i].is_object()) return fail(path + " is " + describe(tools[i]) + ", expected an object");
            std::string type = "custom", description;
            const Fields fields(tools[i], path + ".", &failure_);
            fields.text("type", &type);
            const Json* schema = fields.object("input_schema");
            if (!schema && type != "custom" && type != "function") continue;
            if (!schema)
                fields.fail("input_schema",
                            R"(is missing, expected a tool as in {"name": ..., "input_schema": {...}})");
            Json function = {{"name", read_tool_name(fields, &names)}};
            if (fields.text("description", &description)) function["description"] = description;
            if (schema) function["parameters"] = *schema;
            to->tools.push_back({{"type", "function"}, {"function", function}});
        }
    }

    static void read_switches(const Fields& fields, Conversation* to) {
        read_template_switches(fields, to);
        read_thinking(fields, to);
    }

    /// What the client demands of the reply: its form, or a call.
    static void read_form(const Fields& fields, Conversation* to) {
        if (const Json* config = fields.object("output_config"))
            if (const Json* format = fields.inside(*config, "output_config.").find("format"))
                fields.keep(read_format(*format, "output_config.format", &to->form));
        const Json* early = fields.find("output_format");  // its name at first
        if (early && to->form.schema.empty()) fields.keep(read_format(*early, "output_format", &to->form));
        const Json* choice = fields.object("tool_choice");
        if (!choice) return;
        std::string type;
        bool alone = false;
        const Fields inner = fields.inside(*choice, "tool_choice.");
        inner.text("type", &type);
        inner.boolean("disable_parallel_tool_use", &alone);
        to->form.parallel = !alone;
        to->form.call_required = type == "any" || type == "tool";
        to->form.no_call = type == "none";
        if (type == "tool" && !inner.text("name", &to->form.call_name)) inner.refuse("name", "the name of a tool");
        if (type != "auto" && !to->form.no_call && !to->form.call_required)
            fields.keep(bad_request("tool_choice.type is '" + type + "', expected auto, any, tool or none"));
    }

    /// A last message of the assistant is the beginning of the reply, without thinking. One with calls is no text.
    void read_begun(Conversation* to) {
        if (to->messages.empty()) return;
        const Json last = to->messages.back();
        if (last["role"] != "assistant" || last.contains("tool_calls")) return;
        if (!to->form.schema.empty() && last["content"] != "")
            return fail("the last message is the assistant's, which no output_config.format can continue");
        to->begun = last["content"].get<std::string>();
        to->switches["enable_thinking"] = false;
        to->messages.erase(to->messages.size() - 1);
    }

    const Json& body_;
    Failure failure_;
};

HttpAnswer refuse(const Failure& failure) { return json_answer(anthropic_error(failure), failure.status); }

Failure read(Service& s, const HttpRequest& r, Json* body, GenerationRequest* to) {
    Failure failure = open_body(s, r, body);
    if (!failure.ok()) return failure;
    MessagesReader reader(*body);
    Conversation conversation;
    failure = reader.read(&conversation);
    if (reader.dropped_header)
        cli::note(
            "left out the billing header in the system message: it changes with every request, so that each "
            "prompt would be computed from the start");
    if (!failure.ok()) return failure;
    const Fields fields(*body, "", &failure);
    fields.integer("max_tokens", 0, INT32_MAX, &to->n_max);
    fields.texts("stop_sequences", &to->stops);
    for (const std::string& stop : to->stops)
        if (stop.empty()) fields.keep(bad_request("stop_sequences has an empty string"));
    read_thinking_budget(fields, to);
    read_sampling(fields, s.defaults, s.engine.model().info().n_vocab, to);
    return failure.ok() ? prepare(s.engine, conversation, s.defaults, to) : failure;
}

}  // namespace

HttpAnswer messages(Service& s, const HttpRequest& r) {
    Json body;
    GenerationRequest request;
    StreamOptions stream;
    Failure failure = read(s, r, &body, &request);
    if (failure.ok()) read_stream(Fields(body, "", &failure), &stream);
    if (!failure.ok()) return refuse(failure);
    return generate(s.engine, std::move(request), std::make_shared<MessagesProtocol>(s), stream.stream, r);
}

HttpAnswer count_tokens(Service& s, const HttpRequest& r) {
    Json body;
    GenerationRequest request;
    const Failure failure = read(s, r, &body, &request);
    if (!failure.ok() && !is_context_exceeded(failure)) return refuse(failure);
    return json_answer({{"input_tokens", request.ids.size()}});
}

}  // namespace server

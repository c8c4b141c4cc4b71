// server/responses: /v1/responses, OpenAI's protocol of items.
//
// Tests   tests/test_server_responses.py
#include "service.h"

namespace server {

namespace {

// ----------------------------------------------------------------------------------------------- answers

class ResponsesProtocol final : public Protocol {
  public:
    /// messages: the conversation so far, kept for previous_response_id; null if it is not to be kept.
    ResponsesProtocol(Service& s, const Json& body, Json messages) : service_(s), messages_(std::move(messages)) {
        const auto echo = [&](const char* key, Json missing) {
            const auto found = body.find(key);
            head_[key] = found == body.end() ? std::move(missing) : *found;
        };
        head_ = {{"id", random_id("resp_")}, {"object", "response"},    {"created_at", unix_seconds()},
                 {"status", "in_progress"},  {"error", nullptr},        {"incomplete_details", nullptr},
                 {"model", s.alias},         {"output", Json::array()}, {"usage", nullptr}};
        echo("instructions", nullptr);
        echo("metadata", Json::object());
        echo("parallel_tool_calls", true);
        echo("previous_response_id", nullptr);
        echo("temperature", nullptr);
        echo("text", {{"format", {{"type", "text"}}}});
        echo("tool_choice", "auto");
        echo("tools", Json::array());
        echo("top_p", nullptr);
    }

    void begin(const Usage&) override {
        write("response.created", {{"response", head_}});
        write("response.in_progress", {{"response", head_}});
    }

    void event(uint32_t, const auspex::ReplyEvent& e) override {
        using Kind = auspex::ReplyEvent::Kind;
        switch (e.kind) {
            case Kind::reasoning:
                open(Item::reasoning, "");
                text_ += e.text;
                return delta("response.reasoning_text.delta", e.text);
            case Kind::text:
                open(Item::message, "");
                text_ += e.text;
                return delta("response.output_text.delta", e.text);
            case Kind::call_begin: return open(Item::call, e.text);
            case Kind::call_arguments: text_ += e.text; return delta("response.function_call_arguments.delta", e.text);
            case Kind::call_end: return close();
            case Kind::call_dropped: return;
        }
    }

    void end_choice(uint32_t, const Choice& c) override {
        close(c.finish == Finish::length ? "incomplete" : "completed");
        complete(c);
        write(c.finish == Finish::length ? "response.incomplete" : "response.completed", {{"response", head_}});
    }

    void end(const std::vector<Choice>&) override {}

    void fail(const Failure& failure) override {
        if (sequence_ == 0) begin({});  // clients read the failure into a response that was created
        head_["status"] = "failed";
        head_["error"] = {{"code", "server_error"}, {"message", failure.message}};
        write("response.failed", {{"response", head_}});
    }

    /// The items were collected from the same events that a stream would have told.
    Json answer(const std::vector<Choice>&) override { return head_; }

  private:
    enum class Item { none, reasoning, message, call };

    void write(const char* name, Json members) {
        members["sequence_number"] = sequence_++;
        write_event(name, members);
    }

    Json place() const {
        Json at = {{"item_id", item_["id"]}, {"output_index", head_["output"].size()}};
        if (open_ != Item::call) at["content_index"] = 0;
        return at;
    }

    void delta(const char* name, const std::string& text) {
        Json members = place();
        members["delta"] = text;
        if (open_ == Item::message) members["logprobs"] = Json::array();
        write(name, std::move(members));
    }

    /// A content of the open item.
    Json part() const {
        if (open_ == Item::reasoning) return {{"type", "reasoning_text"}, {"text", text_}};
        return {{"type", "output_text"}, {"text", text_}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
    }

    void open(Item kind, const std::string& name) {
        if (open_ == kind && kind != Item::call) return;
        close();
        open_ = kind;
        text_.clear();
        if (kind == Item::reasoning)
            item_ = {{"id", random_id("rs_")},
                     {"type", "reasoning"},
                     {"summary", Json::array()},
                     {"content", Json::array()}};
        else if (kind == Item::message)
            item_ = {{"id", random_id("msg_")},
                     {"type", "message"},
                     {"role", "assistant"},
                     {"status", "in_progress"},
                     {"content", Json::array()}};
        else
            item_ = {{"id", random_id("fc_")}, {"type", "function_call"}, {"call_id", random_id("call_")},
                     {"name", name},           {"arguments", ""},         {"status", "in_progress"}};
        write("response.output_item.added", {{"output_index", head_["output"].size()}, {"item", item_}});
        if (kind == Item::call) return;
        Json members = place();
        members["part"] = part();
        write("response.content_part.added", std::move(members));
    }

    void close(const char* status = "completed") {
        if (open_ == Item::none) return;
        Json members = place();
        members[open_ == Item::call ? "arguments" : "text"] = text_;
        if (open_ == Item::message) members["logprobs"] = Json::array();
        if (open_ == Item::call) members["name"] = item_["name"];
        write(open_ == Item::call      ? "response.function_call_arguments.done"
              : open_ == Item::message ? "response.output_text.done"
                                       : "response.reasoning_text.done",
              std::move(members));
        if (open_ == Item::call) {
            item_["arguments"] = text_;
        } else {
            members = place();
            members["part"] = part();
            write("response.content_part.done", std::move(members));
            item_["content"].push_back(part());
        }
        // Clients that send no content of a reasoning back send this instead.
        if (open_ == Item::reasoning) item_["encrypted_content"] = text_;
        if (open_ != Item::reasoning) item_["status"] = status;
        write("response.output_item.done", {{"output_index", head_["output"].size()}, {"item", item_}});
        head_["output"].push_back(item_);
        open_ = Item::none;
    }

    void complete(const Choice& c) {
        const bool cut = c.finish == Finish::length;
        head_["status"] = cut ? "incomplete" : "completed";
        if (cut) head_["incomplete_details"] = {{"reason", "max_output_tokens"}};
        head_["usage"] = {{"input_tokens", c.usage.n_prompt},
                          {"input_tokens_details", {{"cached_tokens", c.usage.n_cached}}},
                          {"output_tokens", c.usage.n_predicted},
                          {"output_tokens_details", {{"reasoning_tokens", c.usage.n_thinking}}},
                          {"total_tokens", c.usage.n_prompt + c.usage.n_predicted}};
        head_["timings"] = timings_json(c.usage);
        if (messages_.is_null()) return;
        Json message = {{"role", "assistant"}, {"content", c.content}};
        if (!c.thinking.empty()) message["reasoning_content"] = c.thinking;
        for (const Json& item : head_["output"])
            if (item["type"] == "function_call")
                message["tool_calls"].push_back(
                    {{"id", item["call_id"]},
                     {"type", "function"},
                     {"function", {{"name", item["name"]}, {"arguments", item["arguments"]}}}});
        messages_.push_back(message);
        service_.conversations.add(head_["id"].get<std::string>(), messages_);
    }

    Service& service_;
    Json messages_;
    Json head_, item_;
    Item open_ = Item::none;
    std::string text_;  ///< of the open item
    size_t sequence_ = 0;
};

// ----------------------------------------------------------------------------------------------- requests

/// Brings a request into OpenAI's chat form.
class ItemReader {
  public:
    explicit ItemReader(Json* messages) : to_(*messages) {}

    Failure read(const Json& input) {
        if (input.is_string()) {
            to_.push_back({{"role", "user"}, {"content", input}});
            return {};
        }
        if (!input.is_array()) return bad_request("input is " + describe(input) + ", expected a string or a list");
        for (size_t i = 0; i < input.size() && failure_.ok(); ++i)
            read_item(input[i], "input[" + std::to_string(i) + "]");
        return failure_;
    }

  private:
    /// Reasoning, text and calls of one turn are items of their own; together they are one message.
    Json& assistant() {
        if (to_.empty() || to_.back()["role"] != "assistant") to_.push_back({{"role", "assistant"}, {"content", ""}});
        return to_.back();
    }

    void read_item(const Json& item, const std::string& path) {
        if (!item.is_object()) {
            failure_ = bad_request(path + " is " + describe(item) + ", expected an object");
            return;
        }
        std::string type = "message";
        const Fields fields(item, path + ".", &failure_);
        fields.text("type", &type);
        if (type == "message") return read_message(fields, path);
        if (type == "function_call") {
            std::string name, arguments = "{}";
            if (!fields.text("name", &name)) return fields.refuse("name", "a string");
            fields.text("arguments", &arguments);
            add_call(id(fields), name, arguments);
        } else if (type == "custom_tool_call") {  // of a tool that takes a text; other servers offer these
            std::string name, input;
            if (!fields.text("name", &name)) return fields.refuse("name", "a string");
            fields.text("input", &input);
            add_call(id(fields), name, dump({{"input", input}}));
        } else if (type == "function_call_output" || type == "custom_tool_call_output") {
            const Json* output = fields.find("output");
            const std::string text = output ? content_text(*output, path + ".output", &failure_) : "";
            to_.push_back({{"role", "tool"}, {"content", text}, {"tool_call_id", id(fields)}});
        } else if (type == "reasoning") {
            std::string text;
            if (const Json* content = fields.find("content"))
                text = content_text(*content, path + ".content", &failure_);
            if (text.empty()) fields.text("encrypted_content", &text);
            if (!text.empty()) add_thinking(text, &start_turn());
        } else if (type == "item_reference") {
            failure_ =
                not_supported(path + " refers to an item by its id, and items are not kept; send the item itself");
        } else if (type.compare(0, 10, "compaction") == 0) {
            failure_ = not_supported(path + " is of type " + type +
                                     ", which only the server that made it can read; send the conversation itself");
        }
        // Other items belong to tools that were not offered to the model.
    }

    void add_call(const Json& id, const std::string& name, const std::string& arguments) {
        assistant()["tool_calls"].push_back(
            {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}});
    }

    static Json id(const Fields& call) {
        const Json* found = call.find("call_id");
        return found ? *found : Json();
    }

    /// A reasoning begins a turn, unless nothing was said in the last one.
    Json& start_turn() {
        Json& last = assistant();
        if (last["content"] == "" && !last.contains("tool_calls")) return last;
        to_.push_back({{"role", "assistant"}, {"content", ""}});
        return to_.back();
    }

    void read_message(const Fields& fields, const std::string& path) {
        std::string role;
        if (!fields.text("role", &role)) return fields.refuse("role", "a string");
        const Json* content = fields.find("content");
        const std::string text = content ? content_text(*content, path + ".content", &failure_) : "";
        if (role == "assistant") {
            assistant()["content"].get_ref<std::string&>() += text;
        } else {
            to_.push_back({{"role", role}, {"content", text}});
        }
    }

    Json& to_;
    Failure failure_;
};

/// Functions. Tools of other types, which OpenAI would run, are left out: refusing them would refuse the agents that
/// offer them to every server.
void read_tools(const Json& tools, const Fields& fields, Conversation* to) {
    std::set<std::string> names;
    for (size_t i = 0; i < tools.size(); ++i) {
        const std::string path = "tools[" + std::to_string(i) + "]";
        if (!tools[i].is_object())
            return fields.keep(bad_request(path + " is " + describe(tools[i]) + ", expected an object"));
        std::string type = "function";
        fields.inside(tools[i], path + ".").text("type", &type);
        if (type != "function") continue;
        const auto inner = tools[i].find("function");  // as in chat completions
        const bool nested = inner != tools[i].end() && inner->is_object();
        const Fields tool = fields.inside(nested ? *inner : tools[i], path + (nested ? ".function." : "."));
        tool.refuse_wish("input_schema", "send the schema as parameters");
        read_tool_name(tool, &names);
        Json function = Json::object();
        for (const char* key : {"name", "description", "parameters"})
            if (const Json* found = tool.find(key)) function[key] = *found;
        to->tools.push_back({{"type", "function"}, {"function", function}});
    }
}

/// messages: without the instructions, which belong to this request alone.
Failure read_items(Service& s, const Json& body, Conversation* to, Json* messages) {
    Failure failure;
    const Fields fields(body, "", &failure);
    std::string previous, instructions, effort;
    *messages = Json::array();
    if (fields.text("previous_response_id", &previous) && !s.conversations.find(previous, messages))
        return bad_request("previous_response_id is '" + previous +
                           "', which is none of the last replies here; send the whole conversation as input");
    const Json* input = fields.find("input");
    if (!input) fields.refuse("input", "a string or a list of items");
    if (!failure.ok()) return failure;
    failure = ItemReader(messages).read(*input);
    if (!failure.ok()) return failure;
    if (fields.text("instructions", &instructions) && !instructions.empty())
        to->messages.push_back({{"role", "system"}, {"content", instructions}});
    for (const Json& m : *messages) to->messages.push_back(m);
    if (const Json* tools = fields.list("tools")) read_tools(*tools, fields, to);
    read_template_switches(fields, to);
    if (const Json* reasoning = fields.object("reasoning"))
        if (fields.inside(*reasoning, "reasoning.").text("effort", &effort)) to->set_effort(effort);
    read_tool_choice(fields, to);
    if (const Json* text = fields.object("text"))
        if (const Json* format = fields.inside(*text, "text.").find("format"))
            fields.keep(read_format(*format, "text.format", &to->form));
    return failure.ok() ? arrange_messages(to) : failure;
}

/// Conversations kept by the server, and both ways to ask for log probabilities. What else `include` names is in the
/// answer or belongs to tools that this server does not run.
void refuse_unsupported(const Fields& fields) {
    const std::string elsewhere = "use /v1/chat/completions for log probabilities, or leave it out";
    for (const char* key : {"logprobs", "top_logprobs"}) fields.refuse_wish(key, elsewhere);
    (void)fields.list("include");
    refuse_included_logprobs(fields, elsewhere);
    fields.refuse_wish("conversation", "use previous_response_id, or send the conversation as input");
    fields.refuse_wish("background", "leave it out, and take the answer as a stream");
    fields.refuse_wish("prompt", "send its text as instructions and input");
    refuse_extensions(fields, "text.format");
    // Fields of other protocols, which would have no effect.
    for (const char* key : {"response_format", "json_schema"}) fields.refuse_wish(key, "use text.format");
    for (const char* key : {"max_tokens", "max_completion_tokens", "n_predict"})
        fields.refuse_wish(key, "use max_output_tokens");
    for (const char* key : {"stop", "stop_sequences", "grammar"}) fields.refuse_wish(key, "use /v1/chat/completions");
    fields.refuse_wish("messages", "use input");
    for (const char* key : {"reasoning_effort", "thinking"}) fields.refuse_wish(key, "use reasoning.effort");
    fields.refuse_wish("system", "use instructions");
    fields.refuse_wish("output_format", "use text.format");
    refuse_format(fields, "output_config", "use text.format");
    refuse_choices(fields);
    refuse_functions(fields);
}

Failure read(Service& s, const HttpRequest& r, Json* body, Json* messages, GenerationRequest* to) {
    Failure failure = open_body(s, r, body);
    Conversation conversation;
    if (failure.ok()) failure = read_items(s, *body, &conversation, messages);
    if (!failure.ok()) return failure;
    const Fields fields(*body, "", &failure);
    fields.integer("max_output_tokens", 0, INT32_MAX, &to->n_max);
    fields.integer("thinking_budget_tokens", -1, INT32_MAX, &to->thinking_budget);
    refuse_unsupported(fields);
    read_sampling(fields, s.defaults, s.engine.model().info().n_vocab, to);
    return failure.ok() ? prepare(s.engine, conversation, s.defaults, to) : failure;
}

}  // namespace

HttpAnswer responses(Service& s, const HttpRequest& r) {
    Json body, messages;
    GenerationRequest request;
    StreamOptions stream;
    Failure failure = read(s, r, &body, &messages, &request);
    bool store = true;
    if (failure.ok()) {
        const Fields fields(body, "", &failure);
        read_stream(fields, &stream);
        fields.boolean("store", &store);
    }
    if (!failure.ok()) return failed(failure);
    if (!store) messages = nullptr;
    const auto protocol = std::make_shared<ResponsesProtocol>(s, body, std::move(messages));
    return generate(s.engine, std::move(request), protocol, stream.stream, r);
}

HttpAnswer responses_input_tokens(Service& s, const HttpRequest& r) {
    Json body, messages;
    GenerationRequest request;
    const Failure failure = read(s, r, &body, &messages, &request);
    if (!failure.ok() && !is_context_exceeded(failure)) return failed(failure);
    return json_answer({{"object", "response.input_tokens"}, {"input_tokens", request.ids.size()}});
}

}  // namespace server

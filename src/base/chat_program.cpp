#include "chat_program.h"

#include "jinja_run.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace chat_program_impl {

using jinja::Heap;
using jinja::Value;

constexpr std::string_view kTurn = "<|im_start|>", kThink = "<think>", kThinkEnd = "</think>";

/// The members of a map, one after the other.
struct Members {
    std::vector<std::string> keys;
    std::vector<Value> items;
    void add(std::string_view key, const Value& value) {
        keys.emplace_back(key);
        items.push_back(value);
    }
    Value map(Heap& heap) { return heap.map(std::move(keys), std::move(items)); }
};

/// Gives a request to a template, as values of its run.
class Input {
  public:
    Input(jinja::Run& run, bool text_arguments) : run_(run), heap_(run.heap), text_arguments_(text_arguments) {}

    Status request(const ChatRequest& r) {
        std::vector<Value> messages;
        for (size_t i = 0; i < r.messages.size(); ++i) {
            Value value;
            AUSPEX_TRY(message(r.messages[i], message_path(i), &value));
            messages.push_back(value);
        }
        run_.set("messages", heap_.list(std::move(messages)));
        // transformers gives none; a program that takes them as undefined may go through them all the same.
        Value tools = Heap::plain(Value::Kind::none, 1);
        run_.set("documents", tools);
        if (!r.tools.empty()) {
            std::vector<Value> list(r.tools.size());
            for (size_t i = 0; i < list.size(); ++i) AUSPEX_TRY(json(r.tools[i], say("tools[", i, "]"), &list[i]));
            tools = heap_.list(std::move(list));
        }
        run_.set("tools", tools);
        for (const ToolArgument& a : r.template_arguments) {
            Value value;
            AUSPEX_TRY(argument(a, "chat_template_kwargs." + a.name, &value));
            run_.set(a.name, value);
        }
        run_.set("add_generation_prompt", Heap::boolean(r.add_generation_prompt));
        if (r.enable_thinking) run_.set("enable_thinking", Heap::boolean(*r.enable_thinking));
        if (r.preserve_thinking) run_.set("preserve_thinking", Heap::boolean(*r.preserve_thinking));
        if (r.add_vision_id) run_.set("add_vision_id", Heap::boolean(true));
        return {};
    }

  private:
    Status json(const std::string& text, const std::string& path, Value* to) {
        Json value;
        if (Status s = Json::parse(text).get(value); !s.ok()) return fail(Code::bad_argument, path, ": ", s.text);
        *to = heap_.of_json(value);
        return {};
    }

    /// `path` names it in errors.
    Status argument(const ToolArgument& a, const std::string& path, Value* to) {
        if (a.json) return json(a.value, path, to);
        *to = heap_.input(a.value);
        return {};
    }

    Status message(const ChatMessage& m, const std::string& path, Value* to) {
        Members members;
        members.add("role", heap_.input(m.role));
        members.add("content", content(m));
        if (m.has_reasoning) members.add("reasoning_content", heap_.input(m.reasoning));
        if (!m.tool_calls.empty()) {
            std::vector<Value> calls(m.tool_calls.size());
            for (size_t i = 0; i < calls.size(); ++i)
                AUSPEX_TRY(call(m.tool_calls[i], say(path, ".tool_calls[", i, "]"), &calls[i]));
            members.add("tool_calls", heap_.list(std::move(calls)));
        }
        AUSPEX_TRY(add(m.template_members, path, &members));
        *to = members.map(heap_);
        return {};
    }

    Status add(const std::vector<ToolArgument>& others, const std::string& path, Members* to) {
        for (const ToolArgument& a : others) {
            Value value;
            AUSPEX_TRY(argument(a, say(path, ".", a.name), &value));
            to->add(a.name, value);
        }
        return {};
    }

    Value content(const ChatMessage& m) {
        if (m.parts.empty()) return heap_.input(m.content);
        std::vector<Value> parts;
        for (const ContentPart& part : m.parts) {
            static const char* const kTypes[] = {"text", "image", "video"};
            const char* type = kTypes[static_cast<size_t>(part.kind)];
            Members members;
            members.add("type", heap_.string(Marked(type, true)));
            if (part.kind == ContentPart::Kind::text) members.add("text", heap_.input(part.text));
            parts.push_back(members.map(heap_));
        }
        return heap_.list(std::move(parts));
    }

    Status call(const ToolCall& c, const std::string& path, Value* to) {
        Members given;
        for (const ToolArgument& a : c.arguments) {
            Value value;
            AUSPEX_TRY(argument(a, say(path, ", argument ", quote(a.name)), &value));
            given.add(a.name, value);
        }
        Value arguments = given.map(heap_);
        if (text_arguments_) {
            std::string text;
            AUSPEX_TRY(jinja::to_json(arguments, jinja::JsonForm(), &text));
            arguments = heap_.input(text);
        }
        Members function, members;
        function.add("name", heap_.input(c.name));
        function.add("arguments", arguments);
        members.add("type", heap_.input("function"));
        members.add("function", function.map(heap_));
        AUSPEX_TRY(add(c.template_members, path, &members));
        *to = members.map(heap_);
        return {};
    }

    jinja::Run& run_;
    Heap& heap_;
    const bool text_arguments_;
};

/// Where each turn of a ChatML text begins: the template's own <|im_start|>.
std::vector<size_t> turns(const Marked& text) {
    std::vector<size_t> starts;
    for (const auto& m : text.marks) {
        // Not beyond the mark: where many of them hold no turn, each search would read the whole text.
        const std::string_view until = std::string_view(text.text).substr(0, m.second);
        for (size_t at = until.find(kTurn, m.first); at != std::string_view::npos;
             at = until.find(kTurn, at + kTurn.size()))
            starts.push_back(at);
    }
    return starts;
}

/// Adds the ends of the system part, of the last message of the user and of the last message, where a turn begins
/// behind them.
void add_stops(const Marked& text, bool generates, std::vector<size_t>* at, bool* has_pinned) {
    const std::vector<size_t> starts = turns(text);
    size_t i_first = 0, after_user = 0;
    const auto role_is = [&](size_t i, std::string_view role) {
        return starts_with(std::string_view(text.text).substr(starts[i] + kTurn.size()), role);
    };
    while (i_first < starts.size() && (role_is(i_first, "system\n") || role_is(i_first, "developer\n"))) ++i_first;
    const size_t n_turn = starts.size() - (generates && !starts.empty() ? 1 : 0);
    for (size_t i = i_first; i < n_turn; ++i)
        if (role_is(i, "user\n") && !role_is(i, "user\n<tool_response>")) after_user = i + 1;
    *has_pinned = i_first > 0 && i_first < starts.size();
    if (*has_pinned) at->push_back(starts[i_first]);
    if (after_user > 0 && after_user < n_turn) at->push_back(starts[after_user]);
    if (generates && n_turn > i_first) at->push_back(starts[n_turn]);
}

/// Where the template's last `tag` behind `from` begins, or npos: one that somebody wrote in a message does not count.
size_t last_tag(const Marked& text, std::string_view tag, size_t from) {
    for (auto m = text.marks.rbegin(); m != text.marks.rend() && m->second >= from + tag.size(); ++m) {
        const size_t begin = std::max(m->first, from);
        const size_t at = std::string_view(text.text).substr(begin, m->second - begin).rfind(tag);
        if (at != std::string::npos) return begin + at;
    }
    return std::string::npos;
}

/// Says whether what the template writes behind `from` ends inside its thinking, or with the end of it.
void read_thinking(const Marked& text, size_t from, ChatPrompt* to) {
    const size_t open = last_tag(text, kThink, from), close = last_tag(text, kThinkEnd, from);
    to->inside_thinking = open != std::string::npos && text.text.find(kThinkEnd, open) == std::string::npos;
    to->closed_thinking =
        close != std::string::npos && trim_space(std::string_view(text.text).substr(close + kThinkEnd.size())).empty();
}

ChatPrompt pieces_of(const Marked& text, bool generates) {
    std::vector<size_t> stops;
    bool has_pinned = false;
    add_stops(text, generates, &stops, &has_pinned);
    ChatPrompt prompt;
    size_t i_stop = 0;
    const auto add = [&](size_t from, size_t to, bool fixed) {
        if (from == to) return;
        for (; i_stop < stops.size() && stops[i_stop] <= from && !prompt.pieces.empty(); ++i_stop)
            prompt.stops.push_back(
                {prompt.pieces.size() - 1, prompt.pieces.back().text.size(), has_pinned && i_stop == 0});
        prompt.pieces.push_back(ChatPrompt::Piece{text.text.substr(from, to - from), fixed});
        for (; i_stop < stops.size() && stops[i_stop] < to; ++i_stop)
            prompt.stops.push_back({prompt.pieces.size() - 1, stops[i_stop] - from, has_pinned && i_stop == 0});
    };
    size_t at = 0;
    for (const auto& m : text.marks) {
        add(at, m.first, false);
        add(m.first, m.second, true);
        at = m.second;
    }
    add(at, text.text.size(), false);
    if (generates) read_thinking(text, stops.empty() ? 0 : stops.back(), &prompt);
    return prompt;
}

Result<ChatPrompt> run(const ChatProgram& program, const ChatRequest& request, bool trial = false) {
    jinja::Run run(program.program);
    if (trial) {
        // A small conversation takes thousands of steps. A template that loops must not keep its model from loading.
        run.max_steps = 1000000;
        run.heap.max_bytes = size_t{32} << 20;
    }
    AUSPEX_TRY(Input(run, program.text_arguments).request(request));
    run.set("bos_token", run.heap.string(Marked(program.tokens.bos, true)));
    run.set("eos_token", run.heap.string(Marked(program.tokens.eos, true)));
    Marked text;
    AUSPEX_TRY(run.run().get(text));
    return pieces_of(text, request.add_generation_prompt);
}

/// What the template makes of a conversation; empty if it refuses that.
std::string tried(const ChatProgram& program, const ChatRequest& request) {
    ChatPrompt prompt;
    return run(program, request, true).get(prompt).ok() ? prompt.text() : std::string();
}

ChatMessage said(const char* role, const char* text) {
    ChatMessage m;
    m.role = role;
    m.content = text;
    return m;
}

/// Whether the template shows tools and calls, and in which form. False: it shows tools, but calls in no known form.
bool try_tools(ChatProgram& program, ChatTemplate* to) {
    ChatRequest request;
    request.messages.push_back(said("user", "question"));
    request.tools.push_back(R"({"type": "function", "function": {"name": "tried_tool", "description": "A tool.", )"
                            R"("parameters": {"type": "object", "properties": {"flag": {"type": "boolean"}}}}})");
    if (!contains(tried(program, request), "tried_tool")) return true;
    request.tools.clear();
    request.messages.push_back(said("assistant", ""));
    ToolCall call;
    call.name = "tried_tool";
    call.arguments.push_back({"flag", "true", true});
    call.template_members.push_back({"id", "call00000", false});
    request.messages.back().tool_calls.push_back(std::move(call));
    request.messages.push_back(said("tool", "result"));
    std::vector<ToolArgument>& members = request.messages.back().template_members;
    members.push_back({"name", "tried_tool", false});
    members.push_back({"tool_call_id", "call00000", false});
    std::string shown = tried(program, request);
    // Without tojson, a map would be shown as Python's.
    if (!contains(shown, "tried_tool") || contains(shown, "{'flag'")) {
        program.text_arguments = true;
        shown = tried(program, request);
    }
    to->element_calls = contains(shown, "<tool_call>") && contains(shown, "<function=tried_tool>");
    to->json_values = !contains(shown, "True");
    to->shows_tools =
        to->element_calls || (contains(shown, "<tool_call>") && contains(shown, "\"name\": \"tried_tool\""));
    return to->shows_tools;
}

}  // namespace chat_program_impl

Result<ChatTemplate> read_program(std::string_view jinja, const TemplateTokens& tokens, std::string* note) {
    using namespace chat_program_impl;
    auto program = std::make_shared<ChatProgram>();
    AUSPEX_TRY(jinja::parse(jinja).get(program->program));
    program->tokens = tokens;
    ChatRequest request;
    request.messages.push_back(said("user", "question"));
    ChatPrompt prompt;
    AUSPEX_TRY(run(*program, request, true).get(prompt));
    if (!contains(prompt.text(), "question"))
        return fail(Code::bad_argument, "the chat template does not show what the user says");
    ChatTemplate found(ChatStyle::jinja);
    // Some leave it to the model to open its thinking, and close it where that is switched off.
    request.enable_thinking = false;
    const bool has_switch = tried(*program, request) != prompt.text();
    request.enable_thinking = true;
    found.enable_thinking = prompt.inside_thinking || (has_switch && tried(*program, request) == prompt.text());
    found.has_preserve_thinking = contains(jinja, "preserve_thinking");
    if (!try_tools(*program, &found))
        *note = "the chat template shows calls of tools in a form that is not known: requests with tools are refused";
    found.program = std::move(program);
    return found;
}

Result<ChatPrompt> render_program(const ChatRequest& request, const ChatTemplate& chat_template) {
    if (chat_template.program == nullptr)
        return fail(Code::bad_argument,
                    "a ChatTemplate of ChatStyle::jinja without a program: recognise_template() makes one");
    if (request.messages.empty()) return fail(Code::bad_argument, "No messages provided.");
    if (!request.tools.empty() && !chat_template.shows_tools)
        return fail(Code::bad_argument, "the request has tools (", request.tools.size(),
                    "), but this model's chat template shows none, or calls in a form that is not known");
    return chat_program_impl::run(*chat_template.program, request);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

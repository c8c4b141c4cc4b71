#include "chat.h"
#include "chat_program.h"
#include "guard.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

const char kToolInstructions[] =
    "\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n"
    "<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple "
    "lines\n</parameter>\n"
    "</function>\n</tool_call>\n\n"
    "<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
    "<tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT "
    "after\n"
    "- If there is no function call available, answer the question like normal with your current knowledge and do not "
    "tell "
    "the user about function calls\n"
    "</IMPORTANT>";

namespace chat_impl {

/// Collects pieces; adjacent pieces of one origin are joined.
class Writer {
  public:
    void fixed(std::string_view text) { add(text, true); }
    void input(std::string_view text) { add(text, false); }
    /// A message ends here. Not before anything was written.
    void stop(bool pinned) {
        if (prompt.pieces.empty()) return;
        const size_t last = prompt.pieces.size() - 1;
        prompt.stops.push_back({last, prompt.pieces[last].text.size(), pinned});
    }
    void input(const Marked& m) {
        size_t at = 0;
        for (const auto& mark : m.marks) {
            add(std::string_view(m.text).substr(at, mark.first - at), false);
            add(std::string_view(m.text).substr(mark.first, mark.second - mark.first), true);
            at = mark.second;
        }
        add(std::string_view(m.text).substr(at), false);
    }
    ChatPrompt prompt;

  private:
    void add(std::string_view text, bool fixed) {
        if (text.empty()) return;
        if (prompt.pieces.empty() || prompt.pieces.back().from_template != fixed)
            prompt.pieces.push_back(ChatPrompt::Piece{std::string(), fixed});
        prompt.pieces.back().text.append(text);
    }
};

std::string_view strip_newlines_left(std::string_view text) {
    while (!text.empty() && text.front() == '\n') text.remove_prefix(1);
    return text;
}
std::string_view strip_newlines_right(std::string_view text) {
    while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
    return text;
}

/// Renders the three Qwen templates; `template_` selects the few places in which they differ.
class Qwen {
  public:
    Qwen(const ChatRequest& request, const ChatTemplate& chat_template)
        : request_(request),
          messages_(request.messages),
          template_(chat_template),
          keeps_(template_.has_preserve_thinking && request.preserve_thinking.value_or(template_.preserve_thinking)) {}

    Result<ChatPrompt> render() {
        if (messages_.empty()) return fail(Code::bad_argument, "No messages provided.");
        AUSPEX_TRY(head());
        out_.stop(true);
        AUSPEX_TRY(find_last_query());
        for (size_t i = 0; i < messages_.size(); ++i) {
            AUSPEX_TRY(message(i));
            // Once the user speaks again, the thinking after this message is dropped.
            if (!keeps_ && i == last_query_ && i + 1 < messages_.size()) out_.stop(false);
        }
        if (request_.add_generation_prompt) {
            out_.stop(false);
            out_.fixed("<|im_start|>assistant\n");
            const bool think = request_.enable_thinking.value_or(template_.enable_thinking);
            out_.fixed(think ? "<think>\n" : "<think>\n\n</think>\n\n");
            out_.prompt.inside_thinking = think;
            out_.prompt.closed_thinking = !think;
        }
        return std::move(out_.prompt);
    }

  private:
    bool unsloth() const { return template_.style == ChatStyle::qwen36_unsloth; }
    bool is_system(size_t i) const {
        return messages_[i].role == "system" || (unsloth() && messages_[i].role == "developer");
    }

    /// The trimmed content; with `count` its images and videos are numbered.
    Marked content(const ChatMessage& m, bool count) {
        Marked all;
        if (m.parts.empty()) all.text = m.content;
        for (const ContentPart& part : m.parts) {
            if (part.kind == ContentPart::Kind::text) {
                all.add(part.text, false);
                continue;
            }
            const bool image = part.kind == ContentPart::Kind::image;
            size_t& number = image ? n_image_ : n_video_;
            if (count) ++number;
            if (request_.add_vision_id) all.add(say(image ? "Picture " : "Video ", number, ": "), true);
            all.add(
                image ? "<|vision_start|><|image_pad|><|vision_end|>" : "<|vision_start|><|video_pad|><|vision_end|>",
                true);
        }
        return all.cut(trim_space(all.text));
    }

    Status system_content(size_t i, Marked* out) {
        for (const ContentPart& part : messages_[i].parts)
            if (part.kind != ContentPart::Kind::text)
                return fail(Code::bad_argument, "System message cannot contain ",
                            part.kind == ContentPart::Kind::image ? "images." : "videos.", " (", message_path(i), ")");
        *out = content(messages_[i], false);
        return Status();
    }

    /// Tools and the system message.
    Status head() {
        Marked system;
        if (is_system(0)) {
            n_system_ = 1;
            AUSPEX_TRY(system_content(0, &system));
            if (unsloth() && messages_.size() > 1 && is_system(1)) {
                n_system_ = 2;
                Marked second;
                AUSPEX_TRY(system_content(1, &second));
                system.text += '\n' + second.text;
            }
        }
        if (!request_.tools.empty()) {
            out_.fixed("<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>");
            for (size_t i = 0; i < request_.tools.size(); ++i) {
                Json tool;
                if (Status s = Json::parse(request_.tools[i]).get(tool); !s.ok())
                    return fail(Code::bad_argument, "tools[", i, "]: ", s.text);
                if (!tool.is(Json::Kind::object))
                    return fail(Code::bad_argument, "tools[", i, "] is ", tool.kind_name(), ", expected an object");
                out_.fixed("\n");
                out_.input(tool.dump());
            }
            out_.fixed("\n</tools>");
            out_.fixed(kToolInstructions);
            if (!system.text.empty()) {
                out_.fixed("\n\n");
                out_.input(system);
            }
            out_.fixed("<|im_end|>\n");
        } else if (n_system_ > 0 && !(unsloth() && system.text.empty())) {
            turn("system", system);
        }
        return Status();
    }

    /// The last user message that is not a tool response. Reasoning after it is kept.
    Status find_last_query() {
        last_query_ = messages_.size() - 1;
        for (size_t i = messages_.size(); i-- > 0;) {
            if (messages_[i].role != "user") continue;
            const Marked c = content(messages_[i], false);
            if (starts_with(c.text, "<tool_response>") && ends_with(c.text, "</tool_response>")) continue;
            last_query_ = i;
            return Status();
        }
        if (unsloth()) return Status();
        return fail(Code::bad_argument, "No user query found in messages.");
    }

    void turn(const char* role, const Marked& text) {
        out_.fixed(say("<|im_start|>", role, "\n"));
        out_.input(text);
        out_.fixed("<|im_end|>\n");
    }

    Status message(size_t i) {
        const ChatMessage& m = messages_[i];
        if (is_system(i)) {
            if (i == 0 || unsloth()) return Status();
            return fail(Code::bad_argument, "System message must be at the beginning. (", message_path(i), ")");
        }
        if (m.role == "user") {
            turn("user", content(m, true));
        } else if (m.role == "assistant") {
            return assistant(i);
        } else if (m.role == "tool") {
            if (i > 0 && messages_[i - 1].role != "tool") out_.fixed("<|im_start|>user");
            out_.fixed("\n<tool_response>\n");
            out_.input(content(m, true));
            out_.fixed("\n</tool_response>");
            if (i + 1 == messages_.size() || messages_[i + 1].role != "tool") out_.fixed("<|im_end|>\n");
        } else if (!unsloth()) {
            return fail(Code::bad_argument, "Unexpected message role. (", message_path(i), " has the role ",
                        quote(m.role), ", expected system, user, assistant or tool)");
        } else {
            (void)content(m, true);  // not shown, but its images and videos have numbers
        }
        return Status();
    }

    Status assistant(size_t i) {
        const ChatMessage& m = messages_[i];
        const Marked whole = content(m, true);
        std::string_view answer = whole.text;
        std::string_view reasoning;
        static const std::string_view kOpen = "<think>", kClose = "</think>";
        if (m.has_reasoning) {
            reasoning = m.reasoning;
        } else if (const size_t close = answer.find(kClose); close != std::string_view::npos) {
            reasoning = strip_newlines_right(answer.substr(0, close));
            const size_t open = reasoning.rfind(kOpen);
            if (open != std::string_view::npos) reasoning.remove_prefix(open + kOpen.size());
            answer = strip_newlines_left(answer.substr(answer.rfind(kClose) + kClose.size()));
        }
        reasoning = trim_space(reasoning);

        out_.fixed("<|im_start|>assistant\n");
        if (keeps_ || i > last_query_) {
            out_.fixed("<think>\n");
            // Reasoning taken from the content may contain images; the reasoning field holds text only.
            if (m.has_reasoning)
                out_.input(reasoning);
            else if (!reasoning.empty())
                out_.input(whole.cut(reasoning));
            out_.fixed("\n</think>\n\n");
        }
        out_.input(whole.cut(answer));
        for (size_t k = 0; k < m.tool_calls.size(); ++k) {
            const bool blank = trim_space(answer).empty();
            out_.fixed(k > 0 ? "\n" : blank ? "" : "\n\n");
            AUSPEX_TRY(call(m.tool_calls[k], say(message_path(i), ".tool_calls[", k, "]")));
        }
        out_.fixed("<|im_end|>\n");
        return Status();
    }

    Status call(const ToolCall& c, const std::string& path) {
        out_.fixed("<tool_call>\n<function=");
        out_.input(c.name);
        out_.fixed(">\n");
        for (const ToolArgument& a : c.arguments) {
            out_.fixed("<parameter=");
            out_.input(a.name);
            out_.fixed(">\n");
            if (a.json) {
                Json value;
                if (Status s = Json::parse(a.value).get(value); !s.ok())
                    return fail(Code::bad_argument, path, ", argument ", quote(a.name), ": ", s.text);
                // JSON, or Python's str() of scalars.
                out_.input(template_.json_values && !value.is(Json::Kind::string) ? value.dump() : value.python_str());
            } else {
                out_.input(a.value);
            }
            out_.fixed("\n</parameter>\n");
        }
        out_.fixed("</function>\n</tool_call>");
        return Status();
    }

    const ChatRequest& request_;
    const std::vector<ChatMessage>& messages_;
    const ChatTemplate& template_;
    const bool keeps_;  ///< shows the thinking of earlier turns
    Writer out_;
    size_t n_system_ = 0, last_query_ = 0, n_image_ = 0, n_video_ = 0;
};

/// Plain ChatML: every message is a turn, printed as it is. The template has no place for the reasoning of earlier
/// turns, which is dropped; anything else that it cannot show is an error.
Result<ChatPrompt> render_chatml(const ChatRequest& request, bool no_think) {
    static const char kAdvice[] = "; the model was not trained for it: write it into the text of a message instead";
    if (request.messages.empty()) return fail(Code::bad_argument, "No messages provided.");
    if (!request.tools.empty())
        return fail(Code::bad_argument, "the request has tools (", request.tools.size(),
                    "), but this model's ChatML template cannot show tools", kAdvice);
    Writer out;
    for (size_t i = 0; i < request.messages.size(); ++i) {
        const ChatMessage& m = request.messages[i];
        if (m.role.empty()) return fail(Code::bad_argument, message_path(i), " has no role");
        if (!m.tool_calls.empty())
            return fail(Code::bad_argument, message_path(i),
                        " has tool calls, but this model's ChatML template cannot show them", kAdvice);
        out.fixed("<|im_start|>");
        out.input(m.role);
        out.fixed("\n");
        if (m.parts.empty()) out.input(m.content);
        for (const ContentPart& part : m.parts) {
            if (part.kind != ContentPart::Kind::text)
                return fail(Code::bad_argument, message_path(i),
                            " holds an image or a video, but this model's ChatML template cannot show them");
            out.input(part.text);
        }
        out.fixed("<|im_end|>\n");
        if (i == 0 && m.role == "system") out.stop(true);
    }
    if (request.add_generation_prompt) {
        out.stop(false);
        out.fixed("<|im_start|>assistant\n");
        if (no_think) out.fixed("<think>\n\n</think>\n\n");
        out.prompt.closed_thinking = no_think;
    }
    return std::move(out.prompt);
}

void replace_all(std::string& s, std::string_view from, std::string_view to) {
    for (size_t at = s.find(from); at != std::string::npos; at = s.find(from, at + to.size()))
        s.replace(at, from.size(), to);
}

/// The template without white space and with one kind of quotes, so that its layout does not matter.
std::string squeezed(std::string_view jinja) {
    std::string s;
    for (const char c : jinja)
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') s += c == '"' ? '\'' : c;
    return s;
}

/// True for a template that looks as if it printed every message as one ChatML turn and nothing else: white space that
/// it prints beside them goes unnoticed. `tail` receives what it prints after the header of the assistant's turn.
bool is_plain_chatml(std::string s, std::string* tail) {
    if (s.size() > 1000) return false;
    replace_all(s, "{%-", "{%");
    replace_all(s, "-%}", "%}");
    replace_all(s, "{{-", "{{");
    replace_all(s, "-}}", "}}");
    replace_all(s, "message['role']", "message.role");
    replace_all(s, "message['content']", "message.content");
    replace_all(s, "'+'", "");  // joins adjacent literals
    replace_all(s, "{%ifnotadd_generation_promptisdefined%}{%setadd_generation_prompt=false%}{%endif%}", "");
    static const std::string_view kTurns =
        "{%formessageinmessages%}{{'<|im_start|>'+message.role+'\\n'+message.content+'<|im_end|>\\n'}}{%endfor%}"
        "{%ifadd_generation_prompt%}{{'<|im_start|>assistant\\n";
    static const std::string_view kEnd = "'}}{%endif%}";
    if (!starts_with(s, kTurns) || !ends_with(s, kEnd) || s.size() < kTurns.size() + kEnd.size()) return false;
    *tail = s.substr(kTurns.size(), s.size() - kTurns.size() - kEnd.size());
    return !contains(*tail, "'");
}

/// Whether a template's program renders as ChatML does, to the byte.
bool renders_as(const ChatTemplate& program, ChatStyle chatml) {
    ChatRequest request;
    for (const char* role : {"system", "user"}) {
        request.messages.emplace_back();
        request.messages.back().role = role;
        request.messages.back().content = " text\n";
    }
    for (const bool generate : {false, true}) {
        request.add_generation_prompt = generate;
        ChatPrompt found, expected;
        if (!render_program(request, program).get(found).ok()) return false;
        if (!render_chatml(request, chatml == ChatStyle::chatml_no_think).get(expected).ok()) return false;
        if (found.text() != expected.text()) return false;
    }
    return true;
}

/// What the request has members for. A template's argument of that name would replace it unnoticed.
Status check_arguments(const ChatRequest& request) {
    for (const ToolArgument& a : request.template_arguments) {
        if (a.name == "messages" || a.name == "tools" || a.name == "add_generation_prompt")
            return fail(Code::bad_argument, "chat_template_kwargs.", a.name,
                        " is what the request itself says; remove it");
        if (a.name == "bos_token" || a.name == "eos_token")
            return fail(Code::bad_argument, "chat_template_kwargs.", a.name, " is what the model says; remove it");
    }
    return {};
}

}  // namespace chat_impl

uint64_t template_fingerprint(std::string_view jinja) {
    Fnv h;
    while (!jinja.empty() && static_cast<unsigned char>(jinja.back()) <= ' ') jinja.remove_suffix(1);
    for (const char c : jinja)
        if (c != '\r') h.mix(static_cast<unsigned char>(c));
    return h.value;
}

ChatTemplate recognise(std::string_view jinja, const TemplateTokens& tokens, std::string* note) {
    using namespace chat_impl;
    std::string unused;
    std::string& why = note != nullptr ? *note : unused;
    why.clear();
    if (trim_space(jinja).empty()) {
        why = "the file holds no chat template; plain ChatML is used";
        return ChatStyle::chatml;
    }
    const uint64_t print = template_fingerprint(jinja);
    if (print == 0xF07C510F47FBACA0ull) return ChatStyle::qwen35;
    if (print == 0x8AE3A8BC6E68F114ull) return ChatStyle::qwen36;
    if (print == 0x77679534B83745D6ull) return ChatStyle::qwen36_unsloth;
    ChatTemplate found;
    if (Status s = read_program(jinja, tokens, &why).get(found); !s.ok()) {
        why =
            say("the chat template cannot be run (", s.text, "); plain ChatML is used, which may not suit this model");
        return ChatStyle::chatml;
    }
    std::string tail;
    if (is_plain_chatml(squeezed(jinja), &tail) && (tail.empty() || tail == "<think>\\n\\n</think>\\n\\n")) {
        const ChatStyle style = tail.empty() ? ChatStyle::chatml : ChatStyle::chatml_no_think;
        if (renders_as(found, style)) return style;
    }
    return found;
}

}  // namespace detail

Result<ChatPrompt> render_chat(const ChatRequest& request, const ChatTemplate& chat_template) AUSPEX_BOUNDARY {
    using namespace detail::chat_impl;
    for (size_t i = 0; i < request.messages.size(); ++i)
        for (const ContentPart& part : request.messages[i].parts)
            if (part.kind > ContentPart::Kind::video)
                return detail::fail(Code::bad_argument, detail::message_path(i), " has a part of kind ",
                                    static_cast<int>(part.kind), ", expected text, image or video");
    AUSPEX_TRY(check_arguments(request));
    switch (chat_template.style) {
        case ChatStyle::qwen35:
        case ChatStyle::qwen36:
        case ChatStyle::qwen36_unsloth: return Qwen(request, chat_template).render();
        case ChatStyle::chatml:
        case ChatStyle::chatml_no_think:
            return render_chatml(request, chat_template.style == ChatStyle::chatml_no_think);
        case ChatStyle::jinja: return detail::render_program(request, chat_template);
    }
    return detail::fail(Code::bad_argument, "the chat style is ", static_cast<int>(chat_template.style),
                        ", expected a value of ChatStyle; recognise_template() gives one");
}
AUSPEX_CATCH

namespace detail {
namespace chat_impl {
Result<ChatTemplate> recognised(std::string_view jinja, std::string* note) AUSPEX_BOUNDARY {
    return recognise(jinja, {}, note);
}
AUSPEX_CATCH
}  // namespace chat_impl
}  // namespace detail

ChatTemplate recognise_template(std::string_view jinja, std::string* note) {
    ChatTemplate found;
    // An empty ChatTemplate is plain ChatML. The note is short: a std::string holds it without an allocation.
    const Status s = detail::chat_impl::recognised(jinja, note).get(found);
    if (!s.ok() && note != nullptr) *note = "no host memory";
    return found;
}

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

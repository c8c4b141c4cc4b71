// Fuzz target: any bytes as JSON, as a request, as a template and as a reply. Built with -DAUSPEX_FUZZ=ON.
#include "../src/base/jinja_run.h"
#include "../src/base/chat.h"

#include <algorithm>
#include <cstdlib>

namespace {

using namespace auspex;

void demand(bool promise) {
    if (!promise) std::abort();
}

void check_json(std::string_view text) {
    detail::Json value;
    if (!detail::Json::parse(text).get(value).ok()) return;
    const std::string once = value.dump();
    detail::Json again;
    // What was a number beyond any double is written as Python's Infinity, which is no JSON.
    if (once.find("Infinity") != std::string::npos) return;
    demand(detail::Json::parse(once).get(again).ok());
    demand(again.dump() == once);
}

void check_request(std::string_view text) {
    ChatRequest request;
    if (!ChatRequest::from_json(text).get(request).ok()) return;
    for (const ChatStyle style : {ChatStyle::chatml, ChatStyle::chatml_no_think, ChatStyle::qwen35, ChatStyle::qwen36,
                                  ChatStyle::qwen36_unsloth}) {
        const Result<ChatPrompt> prompt = render_chat(request, style);
        demand(prompt.ok() || prompt.status().code == Code::bad_argument);
        if (!prompt.ok()) continue;
        const std::vector<ChatPrompt::Piece>& pieces = prompt.value().pieces;
        for (size_t i = 0; i < pieces.size(); ++i) {
            demand(!pieces[i].text.empty());
            demand(i == 0 || pieces[i].from_template != pieces[i - 1].from_template);
        }
        (void)parse_reply(prompt.value().text(), prompt.value().inside_thinking, request.tools);
    }
}

/// The same reply from pieces whose lengths the text decides.
void check_pieces(std::string_view text, bool inside, const std::vector<std::string>& tools, const ChatReply& want) {
    ReplyStream stream(inside, tools);
    for (size_t at = 0, n = 0; at < text.size(); at += n) {
        n = std::min(text.size() - at, size_t{1} + static_cast<unsigned char>(text[at]) % 7);
        demand(stream.push(text.substr(at, n)).ok());
    }
    demand(stream.finish().ok());
    demand(to_json(stream.reply()).value() == to_json(want).value());
}

void check_reply(std::string_view text) {
    static const std::vector<std::string> tools = {
        R"({"name": "f", "parameters": {"properties":
            {"s": {"type": "string"}, "b": {"type": ["boolean", "null"]}, "o": {}}}})"};
    std::string repaired;
    detail::append_repaired(repaired, text);
    for (const bool inside : {false, true})
        for (const bool known : {false, true}) {
            const ChatReply reply = parse_reply(text, inside, known ? tools : std::vector<std::string>()).value();
            demand(reply.content.size() + reply.thinking.size() <= repaired.size());
            const std::string json = to_json(reply).value();
            demand(detail::find_bad_utf8(json) == json.size());
            check_pieces(text, inside, known ? tools : std::vector<std::string>(), reply);
            for (const ToolCall& call : reply.tool_calls) {
                demand(!call.name.empty() || text.find("\"name\"") != std::string_view::npos ||
                       text.find("\\") != std::string_view::npos);
                for (const ToolArgument& a : call.arguments) {
                    detail::Json value;
                    demand(!a.json || a.value.find("Infinity") != std::string::npos ||
                           detail::Json::parse(a.value).get(value).ok());
                }
            }
        }
}

/// Any text is a template or is not, and one that is run ends.
void check_template(std::string_view text) {
    std::string note;
    const ChatTemplate found = recognise_template(text, &note);
    demand(found.style == ChatStyle::chatml || found.style == ChatStyle::chatml_no_think || found.program != nullptr);
    detail::jinja::Program program;
    if (!detail::jinja::parse(text).get(program).ok()) return;
    detail::jinja::Run run(program);
    detail::Json messages;
    demand(detail::Json::parse(R"([{"role": "user", "content": "<|im_end|>\u00e9 a", "n": [1, 2.5, null, true]}])")
               .get(messages)
               .ok());
    run.set("messages", run.heap.of_json(messages));
    detail::Marked printed;
    if (!run.run().get(printed).ok()) return;
    size_t at = 0;
    for (const auto& mark : printed.marks) {
        demand(mark.first >= at && mark.first < mark.second && mark.second <= printed.text.size());
        at = mark.second + 1;
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    check_json(text);
    check_request(text);
    check_reply(text);
    check_template(text);
    return 0;
}

#include "../src/base/chat.h"
#include "support.h"

#include <doctest/doctest.h>

using auspex::ChatPrompt;
using auspex::ChatReply;
using auspex::ChatRequest;
using auspex::ChatStyle;
using auspex::ChatTemplate;
using auspex::Code;
using auspex::Result;
using auspex::Status;
using auspex::ToolArgument;
using auspex::ToolCall;
using auspex::detail::Json;

namespace {

const ChatStyle kQwen[] = {ChatStyle::qwen35, ChatStyle::qwen36, ChatStyle::qwen36_unsloth};

/// The prompt of a request written as JSON, or its error.
std::string render(const std::string& json, const ChatTemplate& shown_by) {
    ChatRequest request;
    Status s = ChatRequest::from_json(json).get(request);
    if (!s.ok()) return s.message();
    Result<ChatPrompt> prompt = auspex::render_chat(request, shown_by);
    return prompt.ok() ? prompt.value().text() : prompt.status().message();
}
std::string render_messages(const std::string& messages, const ChatTemplate& shown_by, const std::string& more = "") {
    return render("{\"messages\": " + messages + more + "}", shown_by);
}

std::string call_text(const ToolCall& c) {
    std::string s = c.name + "(";
    for (const ToolArgument& a : c.arguments) s += a.name + (a.json ? ":" : "=") + a.value + ";";
    return s + ")";
}
/// A reply in one line: [thinking] content, then its calls.
std::string taken(const std::string& text, bool inside, const std::vector<std::string>& tools = {}) {
    const ChatReply r = auspex::parse_reply(text, inside, tools).value();
    std::string s = "[" + r.thinking + "]" + r.content;
    for (const ToolCall& c : r.tool_calls) s += "|" + call_text(c);
    return s;
}

const char kUserHi[] = R"([{"role": "user", "content": " Hi\n"}])";
const std::string kGenerate = "<|im_start|>assistant\n<think>\n";

}  // namespace

TEST_CASE("a user's message is trimmed and the prompt ends inside thinking") {
    for (const ChatStyle style : kQwen) {
        const std::string turn = "<|im_start|>user\nHi<|im_end|>\n";
        CHECK(render_messages(kUserHi, style) == turn + kGenerate);
        CHECK(render_messages(kUserHi, style, R"(, "add_generation_prompt": false)") == turn);
        CHECK(render_messages(kUserHi, style, R"(, "enable_thinking": false)") ==
              turn + "<|im_start|>assistant\n<think>\n\n</think>\n\n");
        CHECK(render_messages(kUserHi, style, R"(, "chat_template_kwargs": {"enable_thinking": false, "other": 1})") ==
              turn + "<|im_start|>assistant\n<think>\n\n</think>\n\n");
        ChatRequest r;
        REQUIRE(ChatRequest::from_json(R"({"messages": [{"role": "user", "content": "x"}]})").get(r).ok());
        CHECK(auspex::render_chat(r, style).value().inside_thinking);
        CHECK_FALSE(auspex::render_chat(r, style).value().closed_thinking);
        r.enable_thinking = false;
        CHECK_FALSE(auspex::render_chat(r, style).value().inside_thinking);
        CHECK(auspex::render_chat(r, style).value().closed_thinking);
        r.add_generation_prompt = false;
        CHECK_FALSE(auspex::render_chat(r, style).value().closed_thinking);
    }
}

TEST_CASE("the prompt starts with the system message; only unsloth's template drops an empty one") {
    const std::string m = R"([{"role": "system", "content": "  Be brief. "}, {"role": "user", "content": "Hi"}])";
    const std::string user = "<|im_start|>user\nHi<|im_end|>\n";
    for (const ChatStyle style : kQwen)
        CHECK(render_messages(m, style) == "<|im_start|>system\nBe brief.<|im_end|>\n" + user + kGenerate);
    const std::string empty = R"([{"role": "system", "content": " "}, {"role": "user", "content": "Hi"}])";
    CHECK(render_messages(empty, ChatStyle::qwen35) == "<|im_start|>system\n<|im_end|>\n" + user + kGenerate);
    CHECK(render_messages(empty, ChatStyle::qwen36) == "<|im_start|>system\n<|im_end|>\n" + user + kGenerate);
    CHECK(render_messages(empty, ChatStyle::qwen36_unsloth) == user + kGenerate);
    const std::string parts = R"([{"role": "system", "content": [{"type": "text", "text": " A"}, {"text": "B "}]},
        {"role": "user", "content": "Hi"}])";
    for (const ChatStyle style : kQwen)
        CHECK(render_messages(parts, style) == "<|im_start|>system\nAB<|im_end|>\n" + user + kGenerate);
    const std::string two =
        R"([{"role": "system", "content": "A"}, {"role": "developer", "content": "B"}, {"role": "user",
         "content": "Hi"},
                                {"role": "system", "content": "C"}, {"role": "robot", "content": "D"}])";
    CHECK(render_messages(two, ChatStyle::qwen36_unsloth) == "<|im_start|>system\nA\nB<|im_end|>\n" + user + kGenerate);
}

TEST_CASE("thinking of earlier turns is dropped unless template 3.6 has preserve_thinking") {
    const std::string m =
        R"([{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4", "reasoning_content": "\n easy "},
                              {"role": "user", "content": "sure?"}])";
    const std::string a = "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n",
                      z = "4<|im_end|>\n<|im_start|>user\nsure?<|im_end|>\n" + kGenerate;
    const std::string kept = "<think>\neasy\n</think>\n\n";
    for (const ChatStyle style : kQwen) {
        CHECK(render_messages(m, style) == a + z);
        CHECK(render_messages(m, style, R"(, "preserve_thinking": true)") ==
              a + (style == ChatStyle::qwen35 ? "" : kept) + z);
    }
    // After the last question it stays; an empty one too; and it is found inside the content.
    const std::string q = R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": )",
                      g = R"(, "add_generation_prompt": false)";
    const std::string head = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n";
    for (const ChatStyle style : kQwen) {
        CHECK(render_messages(q + R"("a"}])", style, g) == head + "<think>\n\n</think>\n\na<|im_end|>\n");
        CHECK(render_messages(q + R"("<think>\nr\n\n</think>\n\na"}])", style, g) ==
              head + "<think>\nr\n</think>\n\na<|im_end|>\n");
        CHECK(render_messages(q + R"("x<think>y</think>z</think>\n a"}])", style, g) ==
              head + "<think>\ny\n</think>\n\n a<|im_end|>\n");
        CHECK(render_messages(q + R"("r</think>a", "reasoning_content": null}])", style, g) ==
              head + "<think>\nr\n</think>\n\na<|im_end|>\n");
        CHECK(render_messages(q + R"("r</think>a", "reasoning_content": "R"}])", style, g) ==
              head + "<think>\nR\n</think>\n\nr</think>a<|im_end|>\n");
    }
}

TEST_CASE("tools are listed as JSON in Python's format, before the fixed instructions") {
    CHECK(std::string(auspex::detail::kToolInstructions).size() == 817);
    const std::string tools =
        R"(, "tools": [{"type":"function","function":{"name":"f","parameters":{"type":"object","x":[1,2.50]}}},
         {"name": "g"}])";
    const std::string list =
        "<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>\n"
        R"({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x": [1, 2.5]}}})"
        "\n{\"name\": \"g\"}\n</tools>" +
        std::string(auspex::detail::kToolInstructions);
    const std::string user = "<|im_start|>user\nHi<|im_end|>\n" + kGenerate;
    const std::string m = R"([{"role": "system", "content": " S "}, {"role": "user", "content": "Hi"}])";
    for (const ChatStyle style : kQwen) {
        CHECK(render_messages(kUserHi, style, tools) == list + "<|im_end|>\n" + user);
        CHECK(render_messages(m, style, tools) == list + "\n\nS<|im_end|>\n" + user);
        CHECK(render_messages(kUserHi, style, ", \"tools\": []") == user);
        CHECK(render_messages(kUserHi, style, ", \"tools\": null") == user);
    }
}

TEST_CASE("tool calls and results have the format of templates 3.5 and 3.6") {
    const std::string m = R"([{"role": "user", "content": "q"},
        {"role": "assistant", "content": "Wait. ", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"s": "two\nlines", "t": true,
         "n": null, "i": 7, "d": 1e2, "l": ["x", null], "o": {"k": false}}}},
            {"name": "g", "arguments": "{\"b\": \"2\"}"}]},
        {"role": "tool", "content": " r1 "}, {"role": "tool", "content": "r2"}, {"role": "user",
         "content": "<tool_response>x</tool_response>"}])";
    const auto want = [](const char* t, const char* n) {
        return std::string(
                   "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n\n</"
                   "think>\n\nWait.\n\n<tool_call>\n<function=f>\n"
                   "<parameter=s>\ntwo\nlines\n</parameter>\n<parameter=t>\n") +
               t + "\n</parameter>\n<parameter=n>\n" + n +
               "\n</parameter>\n<parameter=i>\n7\n</parameter>\n<parameter=d>\n100.0\n</"
               "parameter>\n<parameter=l>\n[\"x\", null]\n</parameter>\n"
               "<parameter=o>\n{\"k\": "
               "false}\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n<parameter=b>\n2\n</"
               "parameter>\n"
               "</function>\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nr1\n</"
               "tool_response>\n<tool_response>\nr2\n</tool_response><|im_end|>\n"
               "<|im_start|>user\n<tool_response>x</tool_response><|im_end|>\n" +
               kGenerate;
    };
    CHECK(render_messages(m, ChatStyle::qwen35) == want("True", "None"));
    CHECK(render_messages(m, ChatStyle::qwen36) == want("true", "null"));
    CHECK(render_messages(m, ChatStyle::qwen36_unsloth) == want("True", "None"));
    const std::string bare =
        R"([{"role": "tool", "content": "r"}, {"role": "user", "content": "q"}, {"role": "assistant",
         "content": null, "tool_calls": [{"name": "f"}]}])";
    CHECK(render_messages(bare, ChatStyle::qwen36, ", \"add_generation_prompt\": false") ==
          "\n<tool_response>\nr\n</"
          "tool_response><|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
          "<tool_call>\n<function=f>\n</function>\n</tool_call><|im_end|>\n");
}

TEST_CASE("images and videos become placeholder tokens, numbered on request") {
    const std::string m =
        R"([{"role": "user", "content": [{"type": "text", "text": " a "}, {"type": "image"},
         {"image_url": {"url": "x"}}, {"type": "text", "text": "b "}]},
                              {"role": "user", "content": [{"type": "video"}, {"image": ""}]}])";
    const std::string i = "<|vision_start|><|image_pad|><|vision_end|>",
                      v = "<|vision_start|><|video_pad|><|vision_end|>";
    for (const ChatStyle style : kQwen) {
        CHECK(render_messages(m, style) ==
              "<|im_start|>user\na " + i + i + "b<|im_end|>\n<|im_start|>user\n" + v + i + "<|im_end|>\n" + kGenerate);
        CHECK(render_messages(m, style, R"(, "add_vision_id": true)") ==
              "<|im_start|>user\na Picture 1: " + i + "Picture 2: " + i +
                  "b<|im_end|>\n<|im_start|>user\nVideo 1: " + v + "Picture 3: " + i + "<|im_end|>\n" + kGenerate);
        CHECK(render_messages(R"([{"role": "user", "content": [{"video": "x"}]}])", style) ==
              "<|im_start|>user\n" + v + "<|im_end|>\n" + kGenerate);
    }
}

TEST_CASE("unsloth's template numbers the images of messages that it does not show") {
    const std::string image = "<|vision_start|><|image_pad|><|vision_end|>";
    CHECK(render_messages(R"([{"role": "robot", "content": [{"type": "image"}]},
                              {"role": "user", "content": [{"type": "image"}]}])",
                          ChatStyle::qwen36_unsloth, R"(, "add_vision_id": true)") ==
          "<|im_start|>user\nPicture 2: " + image + "<|im_end|>\n" + kGenerate);
}

TEST_CASE("a request that the template rejects gets the template's error text") {
    for (const ChatStyle style : kQwen) {
        CHECK(render_messages("[]", style) == "bad_argument: No messages provided.");
        CHECK(render_messages(R"([{"role": "system", "content": [{"type": "image"}]}])", style)
                  .find("System message cannot contain images.") != std::string::npos);
        CHECK(render_messages(R"([{"role": "user", "content": 3}])", style)
                  .find("Unexpected content type. (messages[0].content is a number") != std::string::npos);
        CHECK(render_messages(R"([{"role": "user", "content": [{}]}])", style)
                  .find("Unexpected item type in content. (messages[0].content[0]") != std::string::npos);
        const bool official = style != ChatStyle::qwen36_unsloth;
        const auto refused = [&](const char* messages, const char* text) {
            CHECK((render_messages(messages, style).find(text) != std::string::npos) == official);
        };
        refused(R"([{"role": "assistant", "content": "x"}])", "No user query found in messages.");
        refused(R"([{"role": "user", "content": "<tool_response></tool_response>"}])",
                "No user query found in messages.");
        refused(R"([{"role": "user", "content": "x"}, {"role": "system", "content": "y"}])",
                "System message must be at the beginning. (messages[1])");
        refused(R"([{"role": "user", "content": "x"}, {"role": "developer", "content": "y"}])",
                "Unexpected message role. (messages[1] has the role 'developer'");
    }
}

TEST_CASE("the variables of a template cannot replace what the request and the model say") {
    const ChatTemplate program = auspex::recognise_template(
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ documents }}", nullptr);
    REQUIRE(program.style == ChatStyle::jinja);
    const auto status = [&](const std::string& kwargs, const ChatTemplate& chat_template) {
        ChatRequest r;
        REQUIRE(ChatRequest::from_json(R"({"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": )" +
                                       kwargs + "}")
                    .get(r)
                    .ok());
        return auspex::render_chat(r, chat_template).status().message();
    };
    for (const ChatTemplate& chat_template :
         {program, ChatTemplate(ChatStyle::chatml), ChatTemplate(ChatStyle::qwen36)}) {
        CHECK(status(R"({"messages": [{"role": "user", "content": "other"}]})", chat_template) ==
              "bad_argument: chat_template_kwargs.messages is what the request itself says; remove it");
        CHECK(status(R"({"tools": [1]})", chat_template) ==
              "bad_argument: chat_template_kwargs.tools is what the request itself says; remove it");
        CHECK(status(R"({"bos_token": "X"})", chat_template) ==
              "bad_argument: chat_template_kwargs.bos_token is what the model says; remove it");
        CHECK(status(R"({"eos_token": "X"})", chat_template) ==
              "bad_argument: chat_template_kwargs.eos_token is what the model says; remove it");
        CHECK(status(R"({"documents": [], "odd": 1})", chat_template) == "ok");
    }
    ChatRequest r;
    r.messages.resize(1);
    r.messages[0].role = "user";
    r.template_arguments = {{"add_generation_prompt", "false", true}};
    CHECK(auspex::render_chat(r, program).status().text.find("add_generation_prompt is what the request") !=
          std::string::npos);
}

TEST_CASE("a malformed request is an error with the JSON path") {
    const char* cases[][2] = {
        {"[1", "JSON: expected ',' or ']'"},
        {"[]", "the request is an array"},
        {"{}", "no \"messages\""},
        {R"({"messages": {}})", "messages is an object, expected a list"},
        {R"({"messages": [1]})", "messages[0] is a number"},
        {R"({"messages": [{"content": "x"}]})", "messages[0] has no role"},
        {R"({"messages": [{"role": "user", "content": ["x"]}]})",
         "messages[0].content[0] is a string, expected an object"},
        {R"({"messages": [{"role": "user", "content": [{"text": 1}]}]})", "messages[0].content[0].text is a number"},
        {R"({"messages": [{"role": "assistant", "tool_calls": {}}]})",
         "messages[0].tool_calls is an object, expected a list"},
        {R"({"messages": [{"role": "assistant", "tool_calls": [1]}]})",
         "messages[0].tool_calls[0] is a number, expected an object"},
        {R"({"messages": [{"role": "assistant", "tool_calls": [{"function": "f"}]}]})",
         "messages[0].tool_calls[0].function is a string, expected an object"},
        {R"({"messages": [{"role": "assistant", "tool_calls": [{}]}]})", "messages[0].tool_calls[0] has no name"},
        {R"({"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": []}]}]})",
         "arguments is an array, expected an object or a string"},
        {R"({"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{"}]}]})",
         "is a string that holds no JSON object: JSON: expected"},
        {R"({"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "\"{}\""}]}]})",
         "is a string that holds a string"},
        {R"({"messages": [], "tools": {}})", "tools is an object, expected a list"},
        {R"({"messages": [], "chat_template_kwargs": []})", "chat_template_kwargs is an array, expected an object"},
        {R"({"messages": [], "tools": [[]]})", "tools[0] is an array, expected an object"},
        {R"({"messages": [], "enable_thinking": "false"})", "enable_thinking is a string, expected true or false"},
        {R"({"messages": [], "chat_template_kwargs": {"preserve_thinking": 1}})",
         "chat_template_kwargs.preserve_thinking is a number"},
    };
    for (const auto& c : cases) {
        const Status s = ChatRequest::from_json(c[0]).status();
        CHECK(s.code == Code::bad_argument);
        CHECK_MESSAGE(s.text.find(c[1]) != std::string::npos, s.text);
    }
    ChatRequest r;
    r.messages.resize(1);
    r.messages[0].role = "user";
    r.tools = {"{"};
    CHECK(auspex::render_chat(r, ChatStyle::qwen36).status().text.find("tools[0]: JSON") == 0);
    r.tools = {"{}", "[]"};
    CHECK(auspex::render_chat(r, ChatStyle::qwen36).status().text == "tools[1] is an array, expected an object");
    r.tools.clear();
    r.messages.resize(2);
    r.messages[1].role = "assistant";
    r.messages[1].tool_calls = {ToolCall{"f", {ToolArgument{"a", "nope", true}}}};
    CHECK(
        auspex::render_chat(r, ChatStyle::qwen36).status().text.find("messages[1].tool_calls[0], argument 'a': JSON") ==
        0);
}

TEST_CASE("the value of an argument may be nested 100 levels deep, as it may alone") {
    for (const size_t depth : {size_t{100}, size_t{101}})
        for (const char* quote : {"", "\""}) {
            const std::string value = std::string(depth, '[') + "1" + std::string(depth, ']');
            const std::string arguments = *quote == 0 ? "{\"x\": " + value + "}" : "\"{\\\"x\\\": " + value + "}\"";
            const std::string shown = render_messages(
                R"([{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f", )"
                "\"arguments\": " +
                    arguments + "}}]}]",
                ChatStyle::qwen36);
            CHECK((shown.find("\n" + value + "\n</parameter>") != std::string::npos) == (depth == 100));
            CHECK((shown.find("nested deeper than") != std::string::npos) == (depth == 101));
        }
}

TEST_CASE("prompt pieces separate template text from message text") {
    ChatRequest r;
    REQUIRE(ChatRequest::from_json(
                R"({"messages": [{"role": "system", "content": "S<|im_end|>"}, {"role": "user",
         "content": [{"text": "U"}, {"type": "image"}]},
        {"role": "assistant", "content": "A", "reasoning_content": "R", "tool_calls": [{"name": "N",
         "arguments": {"K": "V"}}]}, {"role": "tool", "content": "T"}],
        "tools": [{"name": "<|im_start|>"}]})")
                .get(r)
                .ok());
    for (const ChatStyle style : kQwen) {
        const Result<ChatPrompt> p = auspex::render_chat(r, style);
        REQUIRE(p.ok());
        std::string input, fixed;
        for (const ChatPrompt::Piece& piece : p.value().pieces)
            (piece.from_template ? fixed : input) += piece.from_template ? piece.text : "(" + piece.text + ")";
        CHECK(input == "({\"name\": \"<|im_start|>\"})(S<|im_end|>)(U)(R)(A)(N)(K)(V)(T)");
        CHECK(fixed.find("<|vision_start|><|image_pad|><|vision_end|><|im_end|>") != std::string::npos);
    }
}

TEST_CASE("text of a message that strftime_now() passes on stays a message's") {
    ChatRequest r;
    REQUIRE(ChatRequest::from_json(R"({"messages": [{"role": "user", "content": "<|im_end|>%%"}]})").get(r).ok());
    const ChatTemplate dated = auspex::recognise_template(
        "{% for m in messages %}{{ strftime_now('<|im_start|>' ~ m.content ~ '<|im_end|>') }}{% endfor %}", nullptr);
    std::string all;
    for (const ChatPrompt::Piece& piece : auspex::render_chat(r, dated).value().pieces)
        all += piece.from_template ? piece.text : "(" + piece.text + ")";
    CHECK(all == "<|im_start|>(<|im_end|>%)<|im_end|>");
}

TEST_CASE("a prompt stops where a later one may leave it") {
    const auto stops = [](const std::string& messages, const ChatTemplate& shown_by, const char* more) {
        ChatRequest r;
        REQUIRE(ChatRequest::from_json("{\"messages\": " + messages + more + "}").get(r).ok());
        const ChatPrompt p = auspex::render_chat(r, shown_by).value();
        std::vector<std::string> out;  // the turn before each stop
        for (const ChatPrompt::Stop& stop : p.stops) {
            std::string before;
            for (size_t i = 0; i < stop.piece; ++i) before += p.pieces[i].text;
            before += p.pieces[stop.piece].text.substr(0, stop.at);
            before = before.substr(before.rfind("<|im_start|>") + 12);
            out.push_back((stop.pinned ? "pinned " : "") + before.substr(0, before.find("<|im_end|>")));
        }
        return out;
    };
    using Texts = std::vector<std::string>;
    const std::string talk = R"([{"role": "system", "content": "S"}, {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"})";
    const std::string loop = talk + R"(, {"role": "assistant", "content": "d"}, {"role": "tool", "content": "e"})";
    const std::string tool = "user\n<tool_response>\ne\n</tool_response>";
    for (const ChatStyle style : kQwen) {
        CHECK(stops(talk + "]", style, "") == Texts{"pinned system\nS", "user\nc"});
        // The thinking of a loop with tools is dropped once the user speaks again.
        CHECK(stops(loop + "]", style, "") == Texts{"pinned system\nS", "user\nc", tool});
        if (style != ChatStyle::qwen35)
            CHECK(stops(loop + "]", style, R"(, "preserve_thinking": true)") == Texts{"pinned system\nS", tool});
    }
    CHECK(stops(talk + "]", ChatStyle::chatml, "") == Texts{"pinned system\nS", "user\nc"});
}

TEST_CASE("ChatML prints messages unchanged and rejects what it cannot express") {
    const std::string m =
        R"([{"role": "system", "content": " s "}, {"role": "user", "content": "u\n"}, {"role": "assistant",
         "content": "a", "reasoning_content": "r"}, {"role": "tool", "content": "t"}])";
    const std::string turns =
        "<|im_start|>system\n s "
        "<|im_end|>\n<|im_start|>user\nu\n<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>tool\nt<|im_end|>"
        "\n";
    CHECK(render_messages(m, ChatStyle::chatml) == turns + "<|im_start|>assistant\n");
    CHECK(render_messages(m, ChatStyle::chatml_no_think) == turns + "<|im_start|>assistant\n<think>\n\n</think>\n\n");
    CHECK(render_messages(m, ChatStyle::chatml, R"(, "add_generation_prompt": false)") == turns);
    CHECK(render_messages(R"([{"role": "user", "content": [{"text": " a"}, {"text": "b "}]}])", ChatStyle::chatml) ==
          "<|im_start|>user\n ab <|im_end|>\n<|im_start|>assistant\n");
    CHECK(render_messages("[]", ChatStyle::chatml).find("No messages") != std::string::npos);
    CHECK(render_messages(m, ChatStyle::chatml, R"(, "tools": [{}])").find("cannot show tools") != std::string::npos);
    CHECK(render_messages(R"([{"role": "assistant", "tool_calls": [{"name": "f"}]}])", ChatStyle::chatml)
              .find("messages[0] has tool calls") != std::string::npos);
    CHECK(render_messages(R"([{"role": "user", "content": [{"type": "image"}]}])", ChatStyle::chatml).find("image") !=
          std::string::npos);
}

TEST_CASE("templates are recognised, and others are run") {
    std::string note = "old";
    const std::string plain =
        "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + "
        "'\\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";
    CHECK(auspex::recognise_template(plain, &note).style == ChatStyle::chatml);
    CHECK(note.empty());
    const std::string quoted =
        "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}\n"
        "{% for message in messages %}{{\"<|im_start|>\" + message['role'] + \"\\n\" + message['content'] + "
        "\"<|im_end|>\\n\"}}{% endfor %}"
        "{% if add_generation_prompt %}{{ \"<|im_start|>assistant\\n\" }}{% endif %}\n";
    CHECK(auspex::recognise_template(quoted, &note).style == ChatStyle::chatml);
    CHECK(note.empty());
    std::string closed = plain;
    closed.insert(closed.find("assistant\\n") + 11, "<think>\\n\\n</think>\\n\\n");
    CHECK(auspex::recognise_template(closed, &note).style == ChatStyle::chatml_no_think);
    CHECK(note.empty());

    // White space that a template prints beside ChatML is followed.
    const std::pair<const char*, const char*> prints[] = {{"}}{%- endfor", "}}\n{% endfor"},
                                                          {"message.role + '\\n'", "message.role + ' \\n'"},
                                                          {"assistant\\n", "assistant \\n"}};
    const char* const printed[] = {
        "<|im_start|>user\n Hi\n<|im_end|>\n\n<|im_start|>assistant\n",
        "<|im_start|>user \n Hi\n<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\n Hi\n<|im_end|>\n<|im_start|>assistant \n",
    };
    for (size_t i = 0; i < 3; ++i) {
        std::string spaced = plain;
        spaced.replace(spaced.find(prints[i].first), std::strlen(prints[i].first), prints[i].second);
        INFO(spaced);
        const ChatTemplate found = auspex::recognise_template(spaced, &note);
        CHECK(found.style == ChatStyle::jinja);
        CHECK(note.empty());
        CHECK(render_messages(kUserHi, found) == printed[i]);
    }

    std::string odd = plain;
    odd.insert(odd.find("assistant\\n") + 11, "Sure: ");
    CHECK(auspex::recognise_template(odd, &note).style == ChatStyle::jinja);
    CHECK(note.empty());
    CHECK(render_messages(kUserHi, auspex::recognise_template(odd, nullptr)) ==
          "<|im_start|>user\n Hi\n<|im_end|>\n<|im_start|>assistant\nSure: ");
    CHECK(auspex::recognise_template(plain + "{{ '' }}", &note).style == ChatStyle::jinja);
    CHECK(auspex::detail::template_fingerprint("a\r\nb\r\n") == auspex::detail::template_fingerprint("a\nb"));
    CHECK(auspex::detail::template_fingerprint("a\nb") != auspex::detail::template_fingerprint("ab"));
    CHECK(auspex::recognise_template(" \n", &note).style == ChatStyle::chatml);
    CHECK(note.find("no chat template") != std::string::npos);
    CHECK(auspex::recognise_template("", nullptr).style == ChatStyle::chatml);
}

TEST_CASE("a reply is split into thinking, text and calls") {
    CHECK(taken("just text ", false) == "[]just text ");
    CHECK(taken("because\n</think>\n\n42", true) == "[because]42");
    CHECK(taken("because</think>42", true) == "[because]42");
    CHECK(taken("<think>\nagain</think>x", true) == "[again]x");
    CHECK(taken("<think>\nr\n</think>\n\nx", false) == "[r]x");
    CHECK(taken("never closed", true) == "[never closed]");
    CHECK(taken("", true) == "[]");
    CHECK(taken("a <think> b", false) == "[]a <think> b");

    const std::string call =
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx\ny\n\n</parameter>\n</"
        "function>\n</tool_call>";
    CHECK(taken("r\n</think>\n\n" + call, true) == "[r]|f(a:1;b=x\ny\n;)");
    CHECK(taken("Let me see.\n\n" + call + "\n" + call + "\n", false) ==
          "[]Let me see.|f(a:1;b=x\ny\n;)|f(a:1;b=x\ny\n;)");
    CHECK(taken("hm\n" + call, true) == "[hm]|f(a:1;b=x\ny\n;)");
    CHECK(taken("<tool_call><function=g></function></tool_call>", false) == "[]|g()");
    CHECK(taken("<tool_call><function=g><parameter=k>v</parameter></function>", false) == "[]|g(k=v;)");
    CHECK(taken("<tool_call>\n<function=g>\n<parameter=k>\nv\n</parameter>\n</tool_call> after", false) ==
          "[]after|g(k=v;)");
    CHECK(
        taken("<tool_call>\n<function=w>\n<parameter=t>\n<p></parameter></p>\n</parameter>\n</function>\n</tool_call>",
              false) == "[]|w(t=<p></parameter></p>;)");
    CHECK(taken("<tool_call>\r\n<function=g>\r\n<parameter=k>\r\nv\r\n</parameter>\r\n</function>\r\n</tool_call>",
                false) == "[]|g(k=v;)");
    // A carriage return belongs to the value, unless it begins with one.
    CHECK(taken("<tool_call>\n<function=g>\n<parameter=k>\nv\r\nw\r\n</parameter>\n</function>\n</tool_call>", false) ==
          "[]|g(k=v\r\nw\r;)");
    CHECK(taken("<tool_call>\n{\"name\": \"h\", \"arguments\": {\"x\": [1,2], \"y\": \"z\"}}\n</tool_call>", false) ==
          "[]|h(x:[1, 2];y=z;)");
    // The last value of a parameter counts.
    CHECK(taken("<tool_call><function=g><parameter=k>1</parameter><parameter=j>2</parameter><parameter=k>3</parameter>"
                "</function></tool_call>",
                false) == "[]|g(k:3;j:2;)");
    // In a string a tag is text, also behind quotes and backslashes that are escaped.
    const auto json_call = [](const std::string& x) {
        return "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"" + x + "\"}}\n</tool_call>";
    };
    CHECK(taken(json_call("</tool_call>"), false) == "[]|f(x=</tool_call>;)");
    CHECK(taken(json_call("<tool_call>{ \\\"</tool_call>") + json_call("\\\\"), false) ==
          "[]|f(x=<tool_call>{ \"</tool_call>;)|f(x=\\;)");
}

TEST_CASE("a malformed call stays in the content and does not affect other calls") {
    const std::string good = "<tool_call>\n<function=g>\n</function>\n</tool_call>";
    for (const std::string bad :
         {"<tool_call>", "<tool_call>\nnothing", "<tool_call><function=>", "<tool_call><function=f",
          "<tool_call><function=f><parameter=a>1", "<tool_call><function=f><parameter=a>1</parameter>",
          "<tool_call>{\"name\": 1}</tool_call>", "<tool_call>{", "<tool_call><function=f>junk</function>",
          "</tool_call>", "<function=g></function>", "<tool_call>{\"name\": \"f</tool_call>\nx",
          "<tool_call>{\"\\n\"\\", "<tool_call>{\"a"}) {
        CHECK(taken(bad, false) == "[]" + bad);
        CHECK(taken(bad + good, false) == "[]" + bad + "|g()");
        CHECK(taken(good + bad, false) == "[]" + bad + "|g()");
    }
    CHECK(taken("think <tool_call> of it", true) == "[think <tool_call> of it]");
}

TEST_CASE("arguments are parsed as the types that the tools declare") {
    const std::vector<std::string> tools = {
        R"({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "s": {"type": "string"}, "i": {"type": "integer"}, "b": {"type": "boolean"}, "n": {"type": ["string",
         "null"]}, "o": {"type": "object"}}}}})",
        "broken"};
    const auto typed = [&](const std::string& name, const std::string& value) {
        return taken("<tool_call>\n<function=f>\n<parameter=" + name + ">\n" + value +
                         "\n</parameter>\n</function>\n</tool_call>",
                     false, tools);
    };
    CHECK(typed("s", "12") == "[]|f(s=12;)");
    CHECK(typed("s", " true ") == "[]|f(s= true ;)");
    CHECK(typed("i", " 12 ") == "[]|f(i:12;)");
    CHECK(typed("i", "twelve") == "[]|f(i=twelve;)");
    CHECK(typed("b", "True") == "[]|f(b:true;)");
    CHECK(typed("b", "false") == "[]|f(b:false;)");
    CHECK(typed("n", "null") == "[]|f(n:null;)");
    CHECK(typed("n", "7") == "[]|f(n=7;)");
    CHECK(typed("o", "{\"a\":1}") == "[]|f(o:{\"a\": 1};)");
    CHECK(typed("o", "None") == "[]|f(o:null;)");
    CHECK(typed("i", "9007199254740993.0") == "[]|f(i:9007199254740993.0;)");
    CHECK(typed("o", "{\"a\": 1e400}") == "[]|f(o:{\"a\": 1e400};)");
    CHECK(taken("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1E400}}", false) == "[]|f(x:1E400;)");
    CHECK(typed("unknown", "[1]") == "[]|f(unknown:[1];)");
    CHECK(typed("unknown", "\"q\"") == "[]|f(unknown=q;)");
    CHECK(taken("Now:\n<function=f>\n<parameter=i>\n1\n</parameter>\n</function>", false, tools) == "[]Now:|f(i:1;)");
}

TEST_CASE("an argument is a string wherever its schema allows nothing else") {
    const auto typed = [&](const std::string& schema, const std::string& value) {
        const std::string tool = R"({"name": "f", "parameters": {"$defs": {"S": {"type": "string"}, "R": {"$ref":
            "#/$defs/R"}, "W": {"anyOf": [{"$ref": "#/$defs/W"}, {"$ref": "#/$defs/W"}, {"$ref": "#/$defs/W"}]}},
            "properties": {"p": )" +
                                 schema + "}}}";
        return taken("<tool_call>\n<function=f>\n<parameter=p>\n" + value + "\n</parameter>\n</function>\n</tool_call>",
                     false, {tool});
    };
    for (const char* schema : {R"({"anyOf": [{"type": "string"}, {"type": "null"}]})",
                               R"({"oneOf": [{"type": "null"}, {"$ref": "#/$defs/S"}]})",
                               R"({"type": ["string", "null"]})", R"({"enum": ["a", "7", null]})"}) {
        for (const char* text : {"7", "true", "{\"a\": 1}", "[]", "\"q\"", "nullx"})
            CHECK_MESSAGE(typed(schema, text) == "[]|f(p=" + std::string(text) + ";)", schema);
        for (const char* text : {"null", " null ", "None"})
            CHECK_MESSAGE(typed(schema, text) == "[]|f(p:null;)", schema);
    }
    for (const char* schema : {R"({"$ref": "#/$defs/S"})", R"({"allOf": [{"type": "string"}, {"minLength": 1}]})",
                               R"({"enum": ["1", "2"]})", R"({"const": "1"})", R"({"type": ["string", "integer"]})"})
        for (const char* text : {"1", "null", "None", "True", "\"q\""})
            CHECK_MESSAGE(typed(schema, text) == "[]|f(p=" + std::string(text) + ";)", schema);
    const std::string many = R"({"anyOf": [{"type": "string"}, {"type": "array"}, {"type": "boolean"}]})";
    CHECK(typed(many, "[\"a\"]") == "[]|f(p:[\"a\"];)");
    CHECK(typed(many, "True") == "[]|f(p:true;)");
    CHECK(typed(many, "\"7\"") == "[]|f(p=7;)");
    for (const char* text : {"7", "None", "null", "{}"})
        CHECK(typed(many, text) == "[]|f(p=" + std::string(text) + ";)");
    CHECK(typed(R"({"anyOf": [{"type": "boolean"}, {"type": "null"}]})", "None") == "[]|f(p:null;)");
    // References that never end, or lead nowhere, say nothing.
    for (const char* schema :
         {R"({"$ref": "#/$defs/R"})", R"({"$ref": "#/$defs/W"})", R"({"$ref": "#/$defs/X"})", "{}"}) {
        CHECK(typed(schema, "7") == "[]|f(p:7;)");
        CHECK(typed(schema, "None") == "[]|f(p=None;)");
    }
}

TEST_CASE("a rendered call parses to the same call") {
    ChatRequest r;
    REQUIRE(ChatRequest::from_json(
                R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "c",
         "reasoning_content": "r",
        "tool_calls": [{"name": "f", "arguments": {"x": "a\n\nb", "y": [1, {"z": null}], "t": true}}]}],
         "add_generation_prompt": false})")
                .get(r)
                .ok());
    std::string text = auspex::render_chat(r, ChatStyle::qwen36).value().text();
    text = text.substr(text.find("assistant\n") + 10);
    text = text.substr(0, text.find("<|im_end|>"));
    const ChatReply reply = auspex::parse_reply(text, false).value();
    CHECK(reply.thinking == "r");
    CHECK(reply.content == "c");
    REQUIRE(reply.tool_calls.size() == 1);
    CHECK(call_text(reply.tool_calls[0]) == call_text(r.messages[1].tool_calls[0]));
}

TEST_CASE("the published conversations render exactly") {
    const char* shared = test::shared_dir("vectors/chat");
    if (!shared) return;
    const std::string dir = std::string(shared) + "/vectors/chat/";
    Json cases;
    const Status s = Json::parse(test::read_text(dir + "render_cases.json")).get(cases);
    REQUIRE_MESSAGE(s.ok(), s.message());
    CHECK(cases.items().size() >= 54);
    for (const Json& c : cases.items()) {
        const std::string name = c.find("name")->text(), which = c.find("template")->text();
        INFO(name << " with " << which);
        const std::string jinja = test::read_text(dir + which + ".jinja");
        std::string note;
        const ChatTemplate found = auspex::recognise_template(jinja + "\n \n", &note);
        CHECK(note.empty());
        CHECK(found.style == (which == "qwen3.5"   ? ChatStyle::qwen35
                              : which == "qwen3.6" ? ChatStyle::qwen36
                                                   : ChatStyle::qwen36_unsloth));
        const std::string got =
            render("{\"messages\": " + c.find("messages")->dump() + ", \"tools\": " + c.find("tools")->dump() +
                       ", \"chat_template_kwargs\": " + c.find("kwargs")->dump() + "}",
                   found);
        if (name == "err_args_string") {
            // The template refuses (or drops) arguments that come as a string; reading the request has
            // already made an object of them, as OpenAI's clients expect.
            CHECK(got.find("<parameter=x>\n1\n</parameter>") != std::string::npos);
        } else if (const Json* error = c.find("error")) {
            const std::string text = error->text();
            CHECK(got.find("bad_argument: " + text.substr(text.find(": ") + 2)) == 0);
        } else {
            CHECK(got == c.find("rendered")->text());
        }
    }
}

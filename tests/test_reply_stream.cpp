// ReplyStream: what it says does not depend on where the text was cut, and is what parse_reply() finds.
#include "../src/base/chat.h"
#include "support.h"

#include <doctest/doctest.h>

using auspex::ChatMessage;
using auspex::ChatReply;
using auspex::ChatRequest;
using auspex::ChatStyle;
using auspex::Code;
using auspex::ReplyEvent;
using auspex::ReplyStream;
using auspex::ToolArgument;
using auspex::ToolCall;
using auspex::detail::Json;
using Kind = auspex::ReplyEvent::Kind;
using Events = std::vector<ReplyEvent>;

namespace {

const std::vector<std::string> kTools = {
    R"({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
    "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": ["string", "null"]}, "o": {"type": "object"}}}}})",
    R"({"name": "g"})"};

/// All that a reply says: in a line, so that two can be compared.
std::string line(const ChatReply& r) {
    std::string s = "[" + r.thinking + "]" + r.content;
    for (const ToolCall& c : r.tool_calls) {
        s += "|" + c.name + "(";
        for (const ToolArgument& a : c.arguments) s += a.name + (a.json ? ":" : "=") + a.value + ";";
        s += ")";
    }
    return s;
}

/// Appends events, pieces of one kind joined, as they would be if the text had come at once.
void join(Events& all, const Events& more) {
    for (const ReplyEvent& e : more) {
        const bool pieces = e.kind == Kind::reasoning || e.kind == Kind::text || e.kind == Kind::call_arguments;
        if (pieces) CHECK(!e.text.empty());
        if (pieces && !all.empty() && all.back().kind == e.kind)
            all.back().text += e.text;
        else
            all.push_back(e);
    }
}

std::string line(const Events& events) {
    static const char* const kNames[] = {"think", "text", "begin", "args", "end", "drop"};
    std::string s;
    for (const ReplyEvent& e : events) {
        s += std::string(kNames[static_cast<size_t>(e.kind)]);
        if (e.kind != Kind::reasoning && e.kind != Kind::text) s += std::to_string(e.i_call);
        s += "<" + e.text + ">";
    }
    return s;
}

/// The events of a text that comes in these pieces; checks the reply at the end against `want`.
Events events_of(const std::vector<std::string_view>& pieces, bool inside, const std::string& want,
                 const std::vector<std::string>& tools = kTools) {
    ReplyStream stream(inside, tools);
    Events all;
    for (const std::string_view piece : pieces) join(all, stream.push(piece).value());
    join(all, stream.finish().value());
    CHECK(line(stream.reply()) == want);
    return all;
}

/// What the events alone tell a client that assembles the reply from them.
ChatReply assembled(const Events& events) {
    ChatReply r;
    std::string arguments;
    for (const ReplyEvent& e : events) {
        switch (e.kind) {
            case Kind::reasoning: r.thinking += e.text; break;
            case Kind::text: r.content += e.text; break;
            case Kind::call_begin:
                CHECK(e.i_call == r.tool_calls.size());
                r.tool_calls.push_back(ToolCall{e.text, {}});
                arguments.clear();
                break;
            case Kind::call_arguments: arguments += e.text; break;
            case Kind::call_dropped: r.tool_calls.pop_back(); break;
            case Kind::call_end:
                Json json;
                REQUIRE_MESSAGE(Json::parse(arguments).get(json).ok(), arguments);
                for (size_t i = 0; i < json.items().size(); ++i) {
                    const Json& v = json.items()[i];
                    const bool plain = v.is(Json::Kind::string);
                    r.tool_calls.back().arguments.push_back(
                        {json.keys()[i], plain ? v.text() : v.dump(Json::Numbers::written), !plain});
                }
        }
    }
    return r;
}

/// One text, whole, cut at every byte, and byte by byte.
void check_cuts(const std::string& text, bool inside) {
    INFO(text << (inside ? " (inside)" : ""));
    const std::string want = line(auspex::parse_reply(text, inside, kTools).value());
    const std::string_view view(text);
    const Events whole = events_of({view}, inside, want);
    CHECK(line(assembled(whole)) == want);
    std::vector<std::string_view> bytes;
    for (size_t i = 0; i < view.size(); ++i) bytes.push_back(view.substr(i, 1));
    CHECK(line(events_of(bytes, inside, want)) == line(whole));
    for (size_t i = 1; i < view.size(); ++i)
        CHECK(line(events_of({view.substr(0, i), view.substr(i)}, inside, want)) == line(whole));
}

const char kCall[] =
    "<tool_call>\n<function=f>\n<parameter=i>\n1\n</parameter>\n<parameter=s>\nx\ny \"</b>\n\n</parameter>\n</"
    "function>\n</tool_call>";

}  // namespace

TEST_CASE("a reply cut anywhere says what it says whole") {
    const std::string call = kCall;
    for (const std::string& text : std::vector<std::string>{
             "",
             " ",
             "just text ",
             "a <b> c <",
             "because\n</think>\n\n42",
             "<think>\nagain</think>x",
             "\n <think>a",
             "never closed \n",
             " <thin",
             "a <think> b",
             "r\n</think>\r\n\n" + call,
             "Let me see.\n\n" + call + "\n" + call,
             call + " and " + call + "\n ",
             "\n\n" + call + "after",
             "hm\n" + call,
             "a " + call + " </think> b " + call,
             "hm <tool_call>{ of it",
             "r <function=g></function> </think> c <function=g></function>",
             "<tool_call><function=g></function></tool_call>",
             "<function=g><parameter=k>v</parameter></function> x",
             "<tool_call>\r\n<function=f>\r\n<parameter=s>\r\nv\r\n\r\n</parameter>\r\n</function>\r\n</tool_call>",
             "<tool_call>\n<function=f>\n<parameter=s>\nv\r\nw\r\n</parameter>\n</function>\n</tool_call>",
             "<tool_call><function=f><parameter=s>\r</parameter><parameter=i></parameter></function>",
             "<tool_call><function=f><parameter=s>a</parameter><parameter=i>1</parameter><parameter=s>b</parameter>"
             "</function>",
             "<tool_call><function=f><parameter=n>null</parameter><parameter=o>None</parameter></function>",
             "<tool_call><function=f><parameter=n>\xC2\xA0None \n</parameter><parameter=n>nul</parameter></function>",
             "<tool_call><function=f><parameter=n>\n None\n\nof</parameter><parameter=n> </parameter></function>",
             "<tool_call><function=f><parameter=n>null<null</parameter><parameter=n></parameter></function>",
             "<tool_call><function=f><parameter=n>nullnull\r\n</parameter>\n</function>",
             "<tool_call><function=f><parameter=s>a</parameter> b</parameter>\n </function>",
             "<tool_call>\n{\"name\": \"h\", \"arguments\": {\"x\": [1,2], \"y\": \"z\"}}\n</tool_call> ",
             "<tool_call>{\"name\": \"h\"}<tool_call>{\"name\": \"k\"}",
             "<tool_call>{\"name\": \"h\", \"arguments\": {\"x\": [1e400, 0.1000000000000000000001]}}</tool_call>",
             "<tool_call>{\"name\": 1}</tool_call>",
             "<tool_call>{\"name\": \"h\", \"arguments\": {\"x\": \"</tool_call> \\\" <tool_call>{\"}}</tool_call>",
             "caf\xC3\xA9 \xE3\x80\x80 \xE2\x80\x83<tool_call>{\"name\": \"h\"}</tool_call>\xC2\xA0",
             "\xE3\x80</think>\xE3",
             "\xE3\x80\x80</think>\xE3\x80\x80x\xF0\x9F\x98\x80"}) {
        check_cuts(text, false);
        check_cuts(text, true);
    }
}

TEST_CASE("white space between two calls is no text") {
    const std::string text =
        "one <tool_call>{\"name\": \"a\"}</tool_call> \n <tool_call>{\"name\": \"b\"}</tool_call> two";
    CHECK(line(auspex::parse_reply(text, false, kTools).value()) == "[]one  two|a()|b()");
    check_cuts(text, false);
}

TEST_CASE("an argument may quote calls within its lines") {
    const std::string head = "<tool_call>\n<function=f>\n<parameter=s>\n",
                      tail = "\n</parameter>\n</function>\n</tool_call>";
    for (const std::string value :
         {"<p>\n  <parameter name=\"x\">1</parameter>\n  </parameter>\n</p>", "a</parameter></function></tool_call> b",
          "a</parameter>", "call(\"<tool_call><function=f><parameter=s>1</parameter></function></tool_call>\")",
          "a <tool_call>\n<function=f>", "a</parameter> <parameter=o>", "x\n</parameter>\ny"}) {
        const std::string text = head + value + tail;
        INFO(text);
        const ChatReply reply = auspex::parse_reply(text, false, kTools).value();
        REQUIRE(reply.tool_calls.size() == 1);
        REQUIRE(reply.tool_calls[0].arguments.size() == 1);
        CHECK(reply.tool_calls[0].arguments[0].value == value);
        check_cuts(text, false);
        check_cuts(text, true);
        check_cuts(text + "\n" + text, false);
    }
    // Tags at the beginning of a line, or with a line break between them, end the argument or the call.
    for (const std::string value : {"a</parameter>\n</function>", "\n</parameter></function>",
                                    "</parameter></function>", "a\n<tool_call><function=g></function>"}) {
        const std::string text = head + value + tail;
        INFO(text);
        const ChatReply reply = auspex::parse_reply(text, false, kTools).value();
        CHECK((reply.tool_calls.size() != 1 || reply.tool_calls[0].arguments.empty() ||
               reply.tool_calls[0].arguments[0].value != value));
        check_cuts(text, false);
    }
}

TEST_CASE("a malformed call cut anywhere becomes text and does not affect others") {
    const std::string good = "<tool_call>\n<function=g>\n</function>\n</tool_call>";
    for (const std::string bad :
         {"<tool_call>", "<tool_call>\nnothing", "<tool_call><function=>", "<tool_call><function=f", "</tool_call>",
          "<tool_call><function=f><parameter=s>1", "<tool_call><function=f><parameter=s>1</parameter>",
          "<tool_call><function=f><parameter=i>1\n</parameter", "<tool_call>{", "<function=f><function=g></function>",
          "<tool_call>{\"name\": \"h</tool_call>\n", "<tool_call>{\"name\": \"h\"\\",
          "<tool_call><function=f>junk</function>", "<tool_call><function=f><parameter=s>a<function=g></function>b"}) {
        check_cuts(bad, false);
        check_cuts(bad + good, false);
        check_cuts(good + bad, true);
    }
    // A call that ends inside a string, and one without a name.
    const std::string open = "<tool_call>{\"name\": \"a\n<tool_call>{\"name\": \"b\", \"arguments\": {}}</tool_call>",
                      unnamed = "<tool_call><function=\n</function></tool_call>";
    CHECK(line(auspex::parse_reply(open, false, kTools).value()) == "[]<tool_call>{\"name\": \"a|b()");
    CHECK(line(events_of({unnamed}, false, "[]" + unnamed)) == "text<" + unnamed + ">");
    check_cuts(open, false);
    check_cuts(unnamed, false);
}

TEST_CASE("an argument has the type that its own tool declares") {
    const auto typed = [](const std::string& tool, const std::string& schema) {
        return line(auspex::parse_reply("<tool_call><function=" + tool + "><parameter=x>5</parameter></function>",
                                        false,
                                        {R"({"name": "a", "parameters": {"properties": {"x": {"type": "string"}}}})",
                                         R"({"name": "b", "parameters": {"$defs": {"S": {"type": "string"},
                                             "a~1b": {"type": "string"}, "%53": {"type": "string"}},
                                             "properties": {"x": )" +
                                             schema + "}}}"})
                        .value());
    };
    CHECK(typed("a", R"({"type": "integer"})") == "[]|a(x=5;)");
    CHECK(typed("b", R"({"type": "integer"})") == "[]|b(x:5;)");
    CHECK(typed("b", R"({"$ref": "#/$defs/S"})") == "[]|b(x=5;)");
    // References to other documents, and those with escapes, say nothing.
    for (const char* ref : {"d/$defs/S", "#/$defs/a~1b", "#/$defs/%53"})
        CHECK_MESSAGE(typed("b", "{\"$ref\": \"" + std::string(ref) + "\"}") == "[]|b(x:5;)", ref);
    // So does a list of more than 20 000 values.
    std::string values = "\"v\"";
    for (int i = 0; i < 19000; ++i) values += ", \"v\"";
    CHECK(typed("b", "{\"enum\": [" + values + "]}") == "[]|b(x=5;)");
    for (int i = 0; i < 1000; ++i) values += ", \"v\"";
    CHECK(typed("b", "{\"enum\": [" + values + "]}") == "[]|b(x:5;)");
}

TEST_CASE("a call cut in a closing tag tells nothing of the tag") {
    const std::string call = "<tool_call>\n<function=f>\n<parameter=s>\na < b\n</parameter>\n</function>\n</tool_call>";
    const size_t begin = call.find("\n</parameter>"),
                 closed = call.find("/function>") + std::string("/function>").size();
    for (size_t n = begin; n < closed - 1; ++n) {
        const std::string text = call.substr(0, n);
        check_cuts(text, false);
        std::string arguments;
        ReplyStream stream(false, kTools);
        for (const Events& events : {stream.push(text).value(), stream.finish().value()})
            for (const ReplyEvent& e : events)
                if (e.kind == Kind::call_arguments) arguments += e.text;
        INFO(text);
        CHECK(arguments == "{\"s\": \"a < b");
    }
}

TEST_CASE("a reply that any template style renders is read back from pieces") {
    for (const ChatStyle style : {ChatStyle::chatml, ChatStyle::chatml_no_think, ChatStyle::qwen35, ChatStyle::qwen36,
                                  ChatStyle::qwen36_unsloth}) {
        const bool plain = style == ChatStyle::chatml || style == ChatStyle::chatml_no_think;
        ChatRequest r;
        r.messages = {{"user", "q", {}, "", false, {}},
                      {"assistant", "The answer.", {}, plain ? "" : "why", !plain, {}}};
        r.add_generation_prompt = false;
        if (!plain) {
            r.tools = kTools;
            r.messages[1].tool_calls = {{"f", {{"s", "a\n<b>\n", false}, {"i", "7", true}}}, {"g", {}}};
        }
        std::string text = auspex::render_chat(r, style).value().text();
        text = text.substr(text.rfind("<|im_start|>assistant\n") + 22);
        text = text.substr(0, text.find("<|im_end|>"));
        const ChatReply reply = auspex::parse_reply(text, false, kTools).value();
        CHECK(reply.content == "The answer.");
        CHECK(reply.thinking == (plain ? "" : "why"));
        CHECK(reply.tool_calls.size() == (plain ? 0 : 2));
        check_cuts(text, false);
        if (!plain) check_cuts(text.substr(text.find('\n') + 1), true);  // as the model goes on from <think>
    }
}

TEST_CASE("text, thinking and string arguments are passed on before they end") {
    const auto pushed = [](ReplyStream& s, std::string_view text) { return line(s.push(text).value()); };
    ReplyStream s(true, kTools);
    CHECK(pushed(s, "\nI think ") == "think<I think>");
    CHECK(pushed(s, "so.\n</thi") == "think< so.>");
    CHECK(pushed(s, "nk>\n\nWell, ") == "text<Well,>");
    CHECK(pushed(s, "I ask: <tool") == "text< I ask:>");
    CHECK(pushed(s, "_call>\n<function=f>") == "begin0<f>");
    CHECK(pushed(s, "\n<parameter=s>\none \"") == "args0<{\"s\": \"one \\\">");
    CHECK(pushed(s, "two\n") == "args0<two>");
    CHECK(pushed(s, "three</par") == "args0<\\nthree>");
    CHECK(pushed(s, "ameter>\n<parameter=i>\n1") == "args0<\", \"i\": >");
    CHECK(pushed(s, "2\n</parameter>\n</function>\n</tool_call>") == "args0<12}>end0<>");
    CHECK(pushed(s, "<tool_call>\n<function=g>\n") == "begin1<g>");
    CHECK(pushed(s, "oops") == "drop1<>text< <tool_call>\n<function=g>\noops>");
    CHECK(line(s.finish().value()).empty());
    CHECK(line(s.reply()) == "[I think so.]Well, I ask: <tool_call>\n<function=g>\noops|f(s=one \"two\nthree;i:12;)");
}

TEST_CASE("a string that its schema does not declare by type is passed on as it arrives") {
    auspex::ReplyStream stream(
        false, {R"({"name": "f", "parameters": {"properties": {"p": {"allOf": [{"type": "string"}]}}}})"});
    const auto events = stream.push("<tool_call>\n<function=f>\n<parameter=p>\nsome").value();
    REQUIRE(!events.empty());
    CHECK(events.back().kind == auspex::ReplyEvent::Kind::call_arguments);
    CHECK(events.back().text.find("some") != std::string::npos);
}

TEST_CASE("a string argument that may be null is passed on once it cannot be") {
    const auto pushed = [](ReplyStream& s, std::string_view text) { return line(s.push(text).value()); };
    ReplyStream s(false, kTools);
    CHECK(pushed(s, "<tool_call>\n<function=f>\n<parameter=n>\n ") == "begin0<f>args0<{\"n\": >");
    CHECK(pushed(s, "No").empty());
    CHECK(pushed(s, "w \"") == "args0<\" Now \\\">");
    CHECK(pushed(s, "here") == "args0<here>");
    CHECK(pushed(s, "\n</parameter>\n<parameter=n>\nNone") == "args0<\", \"n\": >");
    CHECK(pushed(s, " of").substr(0, 14) == "args0<\"None of");
    CHECK(pushed(s, "</parameter>\n<parameter=n>null\n") == "args0<\", \"n\": >");
    CHECK(pushed(s, "</parameter></function></tool_call>") == "args0<null}>end0<>");
}

TEST_CASE("a character cut anywhere is told whole, and each invalid byte as U+FFFD") {
    for (const std::string broken : {"\xff", "\xe2\x82", "\xf0\x9f\x98", "\xf0\x9f\x98\x80", "\xc3\xa9\xc3"}) {
        check_cuts("a " + broken, true);
        check_cuts("a " + broken + "</think>b " + broken + " ", true);
        check_cuts("<tool_call><function=f><parameter=s>" + broken + "</parameter><parameter=o>" + broken +
                       "</parameter></function></tool_call>",
                   false);
        check_cuts("<tool_call>{\"name\": \"g\", \"arguments\": {\"x\": [\"" + broken + "\"]}}</tool_call>", false);
    }
    ReplyStream s(false, kTools);
    CHECK(line(s.push("Hi \xf0\x9f").value()) == "text<Hi>");
    CHECK(line(s.push("\x98\x80\xf0\x9f").value()) == "text< \xf0\x9f\x98\x80>");
    CHECK(line(s.finish().value()) == "text<\xef\xbf\xbd\xef\xbf\xbd>");
    CHECK(s.reply().content == "Hi \xf0\x9f\x98\x80\xef\xbf\xbd\xef\xbf\xbd");
}

TEST_CASE("a stream that is empty or finished refuses text") {
    ReplyStream empty;
    CHECK(empty.push("x").status().code == Code::bad_argument);
    CHECK(empty.finish().status().code == Code::bad_argument);
    CHECK(line(empty.reply()) == "[]");
    ReplyStream s(false);
    CHECK(s.push("x ").ok());
    CHECK(line(s.finish().value()) == "text< >");
    CHECK(s.finish().value().empty());
    CHECK(s.push("y").status().code == Code::bad_argument);
    ReplyStream moved(std::move(s));
    CHECK(line(moved.reply()) == "[]x ");
}

TEST_CASE("parsing a reply takes linear time on adversarial text") {
    // Quadratic work on these would take minutes.
    const std::vector<std::string> tools = {"{\"name\": \"f\"}"};
    for (const char* part :
         {"<tool_call><function=f>", "<tool_call><function=f><parameter=a>", "<function=f><parameter=a>",
          "<function=f></function>", "<tool_call>{", "<tool_call><function=f><parameter=a></parameter>", "</parameter>",
          "<tool_call> ", "<think>", "</think>", "<tool_call>{\"", "<tool_call>{\"\\\"", "<tool_call>{\"\"\"\\",
          "see <tool_call>\n<function=f>\n<parameter=a>\n", "see <function=f>\n<parameter=a>\n",
          "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>",
          "<tool_call>\n<function=f>\n<parameter=a>\n</param"}) {
        std::string text;
        while (text.size() < 400000) text += part;
        const ChatReply reply = auspex::parse_reply(text + "</parameter>", true, tools).value();
        CHECK(reply.thinking.size() + reply.content.size() + reply.tool_calls.size() > 0);
    }
}

TEST_CASE("reading a reply byte by byte takes linear time on adversarial text") {
    // Quadratic work on these would take minutes.
    for (const char* part :
         {"<tool_call><function=g>", "<function=g><parameter=a>", "<tool_call>{", "</parameter>", " ", "\n", "<", "a",
          "<tool_call> ", "<think>", "<tool_call><function=g><parameter=a></parameter>", "<tool_call>{\"",
          "<tool_call>{\"\\\"", "see <tool_call>\n<function=f>\n<parameter=s>\n", "see <function=f>\n<parameter=s>\n",
          "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>",
          "<tool_call>\n<function=f>\n<parameter=s>\n</param"})
        for (const char* before :
             {"", "<tool_call>", "<tool_call><function=", "<tool_call><function=g><parameter=a>",
              "<tool_call><function=g><parameter=a></parameter>", "<tool_call><function=f><parameter=n>",
              "<tool_call><function=f><parameter=n>null"}) {
            const std::string begin = std::string(before) + part;
            CAPTURE(begin);
            std::string text = before;
            while (text.size() < (AUSPEX_TEST_SANITIZED ? 10000 : 60000)) text += part;
            ReplyStream stream(false, kTools);
            size_t n_event = 0, n_byte = 0;
            const auto count = [&](const Events& events) {
                n_event += events.size();
                for (const ReplyEvent& e : events) n_byte += e.text.size();
            };
            for (const char& c : text) count(stream.push(std::string_view(&c, 1)).value());
            count(stream.finish().value());
            CHECK(n_event <= 2 * text.size());
            CHECK(n_byte <= 4 * text.size());  // as text, and escaped as an argument
            const ChatReply& reply = stream.reply();
            CHECK(reply.thinking.size() + reply.content.size() + reply.tool_calls.size() > 0);
        }
}

TEST_CASE("a reply becomes the message that a request reads back") {
    const std::string huge = "<tool_call>{\"name\": \"h\", \"arguments\": {\"x\": {\"y\": 1e400}}}</tool_call>";
    const ChatReply reply =
        auspex::parse_reply("why \"\n</think>\n\nSo:\n" + std::string(kCall) + huge, true, kTools).value();
    const std::string json = auspex::to_json(reply).value();
    ChatRequest request;
    REQUIRE(ChatRequest::from_json("{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, " + json + "]}")
                .get(request)
                .ok());
    const ChatMessage& m = request.messages[1];
    ChatReply back;
    back.thinking = m.reasoning;
    back.content = m.content;
    back.tool_calls = m.tool_calls;
    CHECK(m.role == "assistant");
    CHECK(line(back) == line(reply));
    // The template shows it as Python does.
    const std::string shown = auspex::render_chat(request, ChatStyle::qwen36).value().text();
    CHECK(shown.find("{\"y\": Infinity}") != std::string::npos);
    CHECK(auspex::to_json(ChatReply()).value() == R"({"role": "assistant", "content": ""})");
    // Tags in the content are text in later turns, too.
    const std::string named = "Write <think> and </think> around it.";
    const std::string message = auspex::to_json(auspex::parse_reply(named, false).value()).value();
    REQUIRE(ChatRequest::from_json("{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, " + message + "]}")
                .get(request)
                .ok());
    for (const ChatStyle style : {ChatStyle::qwen35, ChatStyle::qwen36, ChatStyle::qwen36_unsloth})
        CHECK(auspex::render_chat(request, style).value().text().find("</think>\n\n" + named + "<|im_end|>") !=
              std::string::npos);
    // A reply put together by the caller may hold any bytes.
    const std::string bad = auspex::to_json({"\xff", "a\xf0\x9f", {{"f", {{"x", "[\"\xe2\x82\"]", true}}}}}).value();
    REQUIRE(ChatRequest::from_json("{\"messages\": [" + bad + "]}").get(request).ok());
    CHECK(request.messages[0].content == "a\xef\xbf\xbd\xef\xbf\xbd");
}

TEST_CASE("a stream tells whether it is inside the thinking, whoever opened it") {
    for (const bool inside : {false, true}) {
        CAPTURE(inside);
        ReplyStream stream(inside);
        CHECK(stream.in_thinking() == inside);
        REQUIRE(stream.push("<thi").ok());
        CHECK(stream.in_thinking() == inside);
        REQUIRE(stream.push("nk>\nHm").ok());
        CHECK(stream.in_thinking());
        REQUIRE(stream.push("</thin").ok());
        CHECK(stream.in_thinking());
        REQUIRE(stream.push("k>").ok());
        CHECK_FALSE(stream.in_thinking());
        REQUIRE(stream.push("<think>").ok());  // only at the beginning
        CHECK_FALSE(stream.in_thinking());
    }
    CHECK_FALSE(ReplyStream().in_thinking());
}

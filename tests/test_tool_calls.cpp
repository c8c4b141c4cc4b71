#include "../src/grammar/matcher.h"
#include "../src/grammar/schema.h"
#include "../src/grammar/tool_calls.h"
#include "support.h"

#include <doctest/doctest.h>

#include <bitset>

using namespace auspex;
using namespace auspex::detail;

namespace {

/// Random texts of each grammar; a sanitizer makes one ten times as slow.
constexpr size_t kSamples = AUSPEX_TEST_SANITIZED ? 20 : 200;

using RulesPtr = std::shared_ptr<const Rules>;

const char* const kWeather = R"({"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 30},
        "unit": {"enum": ["C", "F", "5", "true"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "note": {"type": ["string", "null"], "pattern": "^[a-z ]*$"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "other": {"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}]},
        "many": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "array"}]},
        "mode": {"enum": ["auto", "7", "None", 7]},
        "free": {}},
    "required": ["city", "days"]}}})";
const char* const kPlain = R"({"name": "stop"})";

RulesPtr compile(const std::vector<std::string>& tools, const ToolOptions& options = {}) {
    RulesPtr rules;
    const Status status = rules_from_tools(tools, options).get(rules);
    REQUIRE_MESSAGE(status.ok(), status.message());
    return rules;
}
bool accepts(const RulesPtr& rules, std::string_view text) {
    Automaton a(rules);
    StateId s = a.start();
    for (const char c : text) s = a.step(s, static_cast<unsigned char>(c));
    return a.accepting(s);
}
std::string call(const std::string& inside) { return "<tool_call>\n<function=" + inside + "</function>\n</tool_call>"; }
std::string argument(const std::string& name, const std::string& value) {
    return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
}

/// Every byte, pieces that make calls likely, and the tags as control tokens or, without them, in two pieces.
std::shared_ptr<const VocabTrie> make_vocab(bool controls) {
    std::vector<VocabTrie::Piece> pieces;
    const auto add = [&pieces](const std::string& bytes, bool text = true, bool end = false) {
        VocabTrie::Piece p;
        p.bytes = bytes;
        p.text = text;
        p.end = end;
        pieces.push_back(p);
    };
    for (unsigned b = 0; b < 256; ++b) add(std::string(1, static_cast<char>(b)));
    for (const char* p : {"\n<",
                          "function",
                          "=g",
                          "et_",
                          ">\n",
                          "</",
                          "parameter",
                          ">",
                          "\n</parameter>\n",
                          "\n</parameter",
                          "ab",
                          " the",
                          "\"",
                          "\",",
                          "}",
                          "]",
                          "{\"",
                          "[",
                          "null",
                          "true",
                          "12",
                          "<func",
                          "tion=",
                          "\r",
                          "\r\n",
                          "0.5",
                          ": ",
                          "a\n<",
                          "\xC3\xA9",
                          "\xE2\x82\xAC",
                          "</function>\n"})
        add(p);
    for (const char* tag : {"<think>", "</think>", "<tool_call>", "</tool_call>"}) {
        if (controls) {
            add(tag, false);
        } else {
            add(std::string(tag).substr(0, 4));
            add(std::string(tag).substr(4));
        }
    }
    add("<|vision_start|>", false);
    add("<|im_end|>", false, true);
    return VocabTrie::build(pieces);
}

/// Sets of tokens, as bits of the words that a mask has: single bytes, longer pieces, and what closes something.
struct Kinds {
    std::vector<uint32_t> bytes, pieces, closing;

    explicit Kinds(const VocabTrie& vocab) {
        for (std::vector<uint32_t>* set : {&bytes, &pieces, &closing}) set->resize(vocab.n_word());
        for (size_t t = 0; t < vocab.n_vocab(); ++t) {
            const uint32_t bit = 1u << (t % 32);
            (t < 256 ? bytes : pieces)[t / 32] |= bit;
            const std::string& p = vocab.piece(static_cast<Token>(t)).bytes;
            if (p.size() == 1 ? p == "\"" || p == "}" || p == "]" || p == "<" : p[0] == '<' || p == "\n</parameter>\n")
                closing[t / 32] |= bit;
        }
    }
};
uint32_t n_bit(uint32_t word) { return static_cast<uint32_t>(std::bitset<32>(word).count()); }
uint32_t n_common(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
    uint32_t n = 0;
    for (size_t i = 0; i < a.size(); ++i) n += n_bit(a[i] & b[i]);
    return n;
}
Token nth_common(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b, uint32_t n) {
    for (size_t i = 0; i < a.size(); ++i)
        for (uint32_t word = a[i] & b[i]; word != 0; word &= word - 1)
            if (n-- == 0) return static_cast<Token>(32 * i + n_bit(~word & (word - 1)));
    return -1;
}

/// A reply by a random walk over masks. After some tokens it prefers those that close something.
bool sample(Matcher& m, const VocabTrie& vocab, const Kinds& kinds, test::Random& random, std::string& text) {
    m.rollback(m.n_step());
    text.clear();
    std::vector<uint32_t> bits(m.n_word());
    for (int step = 0; step < 600; ++step) {
        m.mask(Span<uint32_t>(bits));
        const uint32_t n_byte = n_common(bits, kinds.bytes), n_piece = n_common(bits, kinds.pieces),
                       n_closing = n_common(bits, kinds.closing);
        if (n_byte + n_piece == 0) FAIL("a dead end after " << text);
        // Text and thinking would rarely end by themselves.
        const char* tag = random.below(2) == 0 ? "</think>" : "<tool_call>";
        if (random.below(step < 60 ? 24 : 6) == 0 && m.accept(std::string_view(tag))) {
            text += tag;
            continue;
        }
        const bool close = n_closing > 0 && random.below(step < 60 ? 6 : 2) == 0;
        const bool piece = n_byte == 0 || (n_piece > 0 && random.below(4) > 0);
        const std::vector<uint32_t>& from = close ? kinds.closing : piece ? kinds.pieces : kinds.bytes;
        const Token token = nth_common(bits, from, random.below(close ? n_closing : piece ? n_piece : n_byte));
        if (!m.accept(token)) FAIL("a token of the mask is refused after " << text);
        if (m.is_finished()) return true;
        text += vocab.piece(token).bytes;
    }
    return false;
}

struct Calls {
    size_t n_text = 0, n_call = 0, n_argument = 0;
};
/// Samples replies, reads them with parse_reply() and validates the arguments of every call.
Calls check_samples(const std::vector<std::string>& tools, const ToolOptions& options, bool controls, size_t n) {
    const RulesPtr rules = compile(tools, options);
    const std::shared_ptr<const VocabTrie> vocab = make_vocab(controls);
    const Kinds kinds(*vocab);
    std::unique_ptr<Matcher> m;
    const Status status = Matcher::create(rules, vocab).get(m);
    REQUIRE_MESSAGE(status.ok(), status.message());
    std::map<std::string, std::unique_ptr<Automaton>> schemas;
    for (const std::string& text : tools) {
        Json tool;
        REQUIRE(Json::parse(text).get(tool).ok());
        const Json* inner = tool.find("function");
        const Json& f = inner ? *inner : tool;
        SchemaOptions schema_options;
        schema_options.any_order = true;
        RulesPtr schema;
        const Json* parameters = f.find("parameters");
        REQUIRE(rules_from_json_schema(parameters ? parameters->dump() : "{}", schema_options).get(schema).ok());
        schemas[f.find("name")->text()] = std::make_unique<Automaton>(schema);
    }
    test::Random random(n + (controls ? 1 : 0));
    Calls out;
    std::string text;
    for (size_t tries = 0; out.n_text < n && tries < 8 * n; ++tries) {
        if (!sample(*m, *vocab, kinds, random, text)) continue;
        ++out.n_text;
        const Result<ChatReply> reply = parse_reply(text, options.inside_thinking, tools);
        REQUIRE(reply.ok());
        CHECK_MESSAGE(reply.value().content.find("<tool_call>") == std::string::npos, text);
        CHECK_MESSAGE(reply.value().content.find("<function=") == std::string::npos, text);
        if (options.choice == ToolChoice::required) CHECK_MESSAGE(!reply.value().tool_calls.empty(), text);
        for (const ToolCall& c : reply.value().tool_calls) {
            ++out.n_call;
            std::string json = "{";
            for (const ToolArgument& a : c.arguments) {
                json += (json.size() > 1 ? ", " : "") + Json::of_string(a.name).dump() + ": ";
                json += a.json ? a.value : Json::of_string(a.value).dump();
                ++out.n_argument;
            }
            json += "}";
            REQUIRE_MESSAGE(schemas.count(c.name) == 1, text);
            Automaton& schema = *schemas[c.name];
            StateId s = schema.start();
            for (const char b : json) s = schema.step(s, static_cast<unsigned char>(b));
            CHECK_MESSAGE(schema.accepting(s), json << " of " << text);
        }
    }
    CHECK(out.n_text == n);
    return out;
}

/// The functions that a recorded request offers, in the form of ChatRequest::tools.
void collect(const Json& list, std::vector<std::string>& out) {
    for (const Json& t : list.items()) {
        const Json* inner = t.find("function");
        const Json& f = inner ? *inner : t;
        const Json *name = f.find("name"), *parameters = f.find("parameters"), *schema = f.find("input_schema");
        if (const Json* group = t.find("tools")) collect(*group, out);
        if (!parameters) parameters = schema;
        if (name && parameters)
            out.push_back("{\"name\": " + name->dump() + ", \"parameters\": " + parameters->dump() + "}");
    }
}

}  // namespace

TEST_CASE("tool calls: text, one call, several") {
    const RulesPtr any = compile({kWeather, kPlain});
    const std::string good = call("get_weather>\n" + argument("city", "Oslo") + argument("days", "3"));
    for (const std::string& text :
         {std::string("Hello <b>you</b>."), std::string(), good, "Let me see.\n" + good, call("stop>\n"),
          call("stop>\n") + "\n" + good, "<think>\nhm <tool_call>x</think>\n\n" + good,
          call("get_weather>\n" + argument("city", "a\n</param\nb") + argument("unit", "C") + argument("days", "14")),
          call("get_weather>\n" + argument("city", "a</parameter>") + argument("days", "1")),
          call("get_weather>\n" + argument("city", "<p>\n </parameter>\n</p>") + argument("days", "1")),
          call("get_weather>\n" + argument("city", "a <tool_call>\n<function=b>") + argument("days", "1"))})
        CHECK_MESSAGE(accepts(any, text), text);
    for (const std::string& text :
         {good + " more text", std::string("<tool_call>"), call("get>\n"), call("get_weather>\n"),
          call("get_weather>\n" + argument("city", "Oslo") + argument("days", "15")),
          call("get_weather>\n" + argument("city", "") + argument("days", "1")),
          call("get_weather>\n" + argument("days", "1") + argument("city", "Oslo")),
          call("get_weather>\n" + argument("city", "</parameter>") + argument("days", "1")),
          call("get_weather>\n" + argument("city", "a\n</parameter> b") + argument("days", "1")),
          call("get_weather>\n" + argument("city", "a</parameter> \n </function>") + argument("days", "1")),
          call("get_weather>\n" + argument("city", "a\n<tool_call>") + argument("days", "1")),
          call("get_weather>\n" + argument("city", "Oslo\r") + argument("days", "1")),
          std::string("<function=stop>\n</function>"), std::string("<think> never closed")})
        CHECK_MESSAGE(!accepts(any, text), text);
    ToolOptions one;
    one.choice = ToolChoice::required;
    one.parallel = false;
    one.any_order = true;
    const RulesPtr required = compile({kWeather, kPlain}, one);
    CHECK(accepts(required, call("get_weather>\n" + argument("days", "1") + argument("city", "Oslo"))));
    CHECK(accepts(required, "\n\n" + good));
    for (const std::string& text : {std::string("Hello"), "Hello\n" + good, good + "\n" + good,
                                    "<think>\nhm</think>\n\n" + good, "</think>" + good})
        CHECK_MESSAGE(!accepts(required, text), text);
    ToolOptions itself = one;  // its prompt leaves the thinking to the model
    itself.chat_template = ChatStyle::chatml;
    const RulesPtr thinks = compile({kPlain}, itself);
    const std::string stop = "<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>";
    CHECK(accepts(thinks, stop));
    CHECK(accepts(thinks, "<think>hm</think>\n\n" + stop));
    CHECK(!accepts(thinks, "<think>hm</think>\n\nSo:\n" + stop));
    itself.chat_template = ChatStyle::chatml_no_think;
    CHECK(!accepts(compile({kPlain}, itself), "<think>hm</think>\n\n" + stop));
    itself.closed_thinking = true;
    for (const ChatStyle style : {ChatStyle::chatml, ChatStyle::jinja}) {
        itself.chat_template = style;
        CHECK(accepts(compile({kPlain}, itself), stop));
        CHECK(!accepts(compile({kPlain}, itself), "<think>hm</think>\n\n" + stop));
    }
    one.name = "stop";
    one.inside_thinking = true;
    CHECK(accepts(compile({kWeather, kPlain}, one), "let me <tool_call>\n</think>\n\n" + call("stop>\n")));
    CHECK(!accepts(compile({kWeather, kPlain}, one), "</think>" + good));
    one.chat_template = ChatStyle::chatml;
    one.name = "get_weather";
    CHECK(accepts(compile({kWeather}, one), R"(</think><tool_call>)"
                                            "\n"
                                            R"({"name": "get_weather", "arguments": {"days": 1, "city": "</b>"}})"
                                            "\n</tool_call>"));
}

TEST_CASE("tool calls: an answer that a schema describes, or calls") {
    ToolOptions options;
    options.answer = R"({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]})";
    const std::string stop = call("stop>\n");
    const RulesPtr either = compile({kPlain}, options);
    for (const std::string& text : {std::string(R"({"text": "Hello <b>"})"), "\n\n" + std::string(R"({"text": ""})"),
                                    stop, "\n\n" + stop, stop + "\n" + stop})
        CHECK_MESSAGE(accepts(either, text), text);
    for (const std::string& text : {std::string("Hello"), std::string("{}"), std::string(), R"({"text": ""})" + stop,
                                    "Let me see.\n" + stop, std::string(R"({"text": "<tool_call>"})"),
                                    std::string(R"({"text": "<function=stop>"})"), "<think>\nhm</think>\n\n" + stop})
        CHECK_MESSAGE(!accepts(either, text), text);
    for (const bool closed : {false, true}) {
        ToolOptions itself = options;
        itself.chat_template = ChatStyle::chatml;
        itself.closed_thinking = closed;
        CHECK(accepts(compile({kPlain}, itself), "{\"text\": \"\"}"));
        CHECK(accepts(compile({kPlain}, itself), "<think>hm</think>\n\n{\"text\": \"\"}") == !closed);
    }
    options.inside_thinking = true;
    CHECK(accepts(compile({kPlain}, options), "hm</think>\n\n{\"text\": \"\"}"));
    check_samples({kWeather, kPlain}, options, true, kSamples / 4);
    options.choice = ToolChoice::required;
    CHECK(!accepts(compile({kPlain}, options), "hm</think>\n\n{\"text\": \"\"}"));
}

TEST_CASE("tool calls: a string that its schema does not declare so is written so that it is read as one") {
    const RulesPtr rules = compile({kWeather});
    const auto written = [&](const char* name, const char* value) {
        const bool last = std::string(name) != "unit";
        return accepts(rules, call("get_weather>\n" + argument("city", "Oslo") + (last ? "" : argument(name, value)) +
                                   argument("days", "1") + (last ? argument(name, value) : "")));
    };
    for (const char* unit : {"C", "5", "true"}) CHECK_MESSAGE(written("unit", unit), unit);
    for (const char* unit : {"G", "\"C\"", "\"5\""}) CHECK_MESSAGE(!written("unit", unit), unit);
    for (const char* other : {"null", "text, as it is", "nullx", "55", "true", " true", "{}", "\"\""})
        CHECK_MESSAGE(written("other", other), other);
    for (const char* other : {"5", "x", "", "None", " null"}) CHECK_MESSAGE(!written("other", other), other);
    for (const char* many : {"[]", "7", "\"7\"", "\"None\"", "text", "Nonex"})
        CHECK_MESSAGE(written("many", many), many);
    for (const char* many : {"null", "true", "None", " True", "{}", "\"[]"})
        CHECK_MESSAGE(!written("many", many), many);
    for (const char* mode : {"auto", "7", "\"7\"", "\"None\"", "\"auto\""}) CHECK_MESSAGE(written("mode", mode), mode);
    for (const char* mode : {"None", "null", "8"}) CHECK_MESSAGE(!written("mode", mode), mode);
    for (const char* note : {"null", "", "a b"}) CHECK_MESSAGE(written("note", note), note);
    CHECK(!written("note", "A"));
    CHECK(written("free", "[1, {\"a\": \"b\"}]"));
    CHECK(written("tags", "[\"</parameter>\", \"</function>\", \"<tool_call>\"]"));
    CHECK(written("tags", "[\"<b>\", \"</p\"]"));
}

TEST_CASE("tool calls: of the texts that a schema lists, those that would end their argument are not written") {
    const RulesPtr rules =
        compile({R"({"name": "f", "parameters": {"required": ["text"], "properties": {"text": {"enum": [
        "a</parameter>", "<b>", "a\r\nb", "</parameter>", "a\n<tool_call>", "a</parameter>\n\t</function>", "a\r"]}}}})"});
    for (const char* text : {"a</parameter>", "<b>", "a\r\nb"})
        CHECK_MESSAGE(accepts(rules, call("f>\n" + argument("text", text))), text);
    for (const char* text : {"</parameter>", "a\n<tool_call>", "a</parameter>\n\t</function>", "a\r"})
        CHECK_MESSAGE(!accepts(rules, call("f>\n" + argument("text", text))), text);
    RulesPtr none;
    CHECK(rules_from_tools({R"({"name": "f", "parameters": {"required": ["text"],
        "properties": {"text": {"enum": ["</parameter>"]}}}})"},
                           {})
              .get(none)
              .text.find("no arguments are valid") != std::string::npos);
}

TEST_CASE("tool calls: a string that would be read as null is not written") {
    const RulesPtr rules = compile({R"({"name": "f", "parameters": {"type": "object", "properties": {
        "word": {"type": ["string", "null"], "enum": ["null", " null", "a"]},
        "none": {"type": ["string", "null"], "enum": ["null", null]},
        "text": {"type": ["string", "null"], "not": {"type": "null"}},
        "name": {"type": "string", "enum": ["null"]}}}})"});
    const auto written = [&](const char* name, const char* value) {
        return accepts(rules, call("f>\n" + argument(name, value)));
    };
    CHECK(written("word", "a"));
    for (const char* text : {"null", " null"}) CHECK_MESSAGE(written("word", text), text);  // null is not listed
    CHECK(written("none", "null"));
    CHECK_FALSE(written("none", " null"));
    for (const char* text : {"", "nul", "nulls", "a null", "\"null\""}) CHECK_MESSAGE(written("text", text), text);
    for (const char* text : {"null", " null", "null\n", "None"}) CHECK_FALSE_MESSAGE(written("text", text), text);
    CHECK(written("name", "null"));
}

TEST_CASE("tool calls: true, false and null are written as the template shows them") {
    const std::string tool = R"({"name": "f", "parameters": {"type": "object", "properties": {
        "flag": {"type": "boolean"}, "maybe": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "one": {"enum": [true, null, "a"]}, "text": {"type": ["string", "null"]},
        "list": {"type": "array", "items": {"type": "boolean"}}, "free": {}}}})";
    for (const ChatStyle style : {ChatStyle::qwen35, ChatStyle::qwen36, ChatStyle::qwen36_unsloth}) {
        ToolOptions options;
        options.chat_template = style;
        const RulesPtr rules = compile({tool}, options);
        const auto written = [&](const char* name, const char* value) {
            const std::string reply = call("f>\n" + argument(name, value));
            if (!accepts(rules, reply)) return false;
            ChatRequest again;
            const ChatReply read = parse_reply(reply, false, {tool}).value();
            const std::string messages = R"({"messages": [{"role": "user", "content": ""}, )" + to_json(read).value();
            REQUIRE(ChatRequest::from_json(messages + "]}").get(again).ok());
            CHECK_MESSAGE(render_chat(again, style).value().text().find(reply) != std::string::npos, reply);
            return true;
        };
        const bool json = style == ChatStyle::qwen36;
        for (const char* name : {"flag", "maybe", "one"}) {
            CHECK_MESSAGE(written(name, "true") == json, name);
            CHECK_MESSAGE(written(name, "True") != json, name);
        }
        for (const char* name : {"maybe", "one", "text"}) {
            CHECK_MESSAGE(written(name, "null") == json, name);
            CHECK_MESSAGE(written(name, "None") != json, name);
        }
        CHECK(written("list", "[true]"));
        CHECK_FALSE(written("list", "[True]"));
        CHECK(accepts(rules, call("f>\n" + argument("free", "true"))));
    }
}

TEST_CASE("tool calls: every sample is read back and valid") {
    for (const bool controls : {false, true})
        for (const ToolChoice choice : {ToolChoice::automatic, ToolChoice::required})
            for (const ChatStyle style : {ChatStyle::qwen36, ChatStyle::qwen35, ChatStyle::chatml}) {
                ToolOptions options;
                options.choice = choice;
                options.chat_template = style;
                options.inside_thinking = style != ChatStyle::chatml;
                options.any_order = controls;
                const Calls calls = check_samples({kWeather, kPlain}, options, controls, kSamples);
                CHECK(calls.n_call > kSamples / 10);
                CHECK(calls.n_argument > kSamples / 10);
            }
}

TEST_CASE("tool calls: the tools of coding agents compile, and every sample is valid") {
    const char* shared = test::shared_dir("requests of coding agents");
    if (!shared) return;
    for (const char* client : {"claude-code", "codex", "opencode", "pi", "qwen-code"}) {
        Json log;
        REQUIRE(Json::parse(test::read_text(std::string(shared) + "/clients/" + client + ".json")).get(log).ok());
        std::vector<std::string> tools;
        for (const Json& request : log.items()) {
            const Json* body = request.find("body");
            const Json* list = body ? body->find("tools") : nullptr;
            if (tools.empty() && list) collect(*list, tools);
        }
        CAPTURE(client);
        REQUIRE(tools.size() >= 4);
        ToolOptions options;
        options.choice = ToolChoice::required;
        const Calls calls = check_samples(tools, options, true, kSamples);
        CHECK(calls.n_call >= kSamples);
    }
}

TEST_CASE("tool calls: errors name the tool") {
    const auto error = [](const std::vector<std::string>& tools, const ToolOptions& options = {}) {
        const Result<Grammar> g = Grammar::from_tools(tools, options);
        CHECK(!g.ok());
        return g.status().message();
    };
    const auto has = [](const std::string& text, const char* part) {
        CHECK_MESSAGE(text.find(part) != std::string::npos, text);
    };
    has(error({}), "expected 1 to 256 tools");
    for (const int value : {-1, 9}) {
        ToolOptions options;
        options.chat_template = static_cast<ChatStyle>(value);
        has(error({kPlain}, options), "expected a value of ChatStyle");
        options = {};
        options.choice = static_cast<ToolChoice>(value);
        has(error({kPlain}, options), "expected ToolChoice::automatic or ToolChoice::required");
    }
    has(error({"{"}), "tools[0]");
    has(error({kPlain, R"({"type": "web_search"})"}), "tools[1]: expected a function with a name");
    has(error({kPlain, kPlain}), "tools[1]: another tool is called 'stop' too");
    has(error({R"({"name": "a<b"})"}), "cannot be called");
    has(error({R"({"name": "f", "parameters": {"properties": {"x>": {}}}})"}), "tool 'f': #: properties");
    has(error({R"({"name": "f", "parameters": {"properties": {"x": {"items": {"uniqueItems": true}}}}})"}),
        "tool 'f': #/properties/x/items: uniqueItems");
    for (const auto& [schema, words] :
         {std::pair(R"({"type": "array"})", "tool 'f': #: type: expected \"object\", which arguments are, found"),
          std::pair(R"({"type": ["string", "null"]})", "tool 'f': #: type: expected \"object\""),
          std::pair(R"([1])", "tool 'f': #: expected a schema (an object or a boolean), found an array"),
          std::pair(R"({"properties": {"a/b": {"type": "strange"}}})", "tool 'f': #/properties/a~1b: type: expected"),
          std::pair(R"({"properties": {"x": {"maxLength": "8"}}})", "tool 'f': #/properties/x: maxLength: expected"),
          std::pair(R"({"required": ["x"], "properties": {"x": false}})", "tool 'f': #: no arguments are valid")})
        for (const ToolChoice choice : {ToolChoice::automatic, ToolChoice::required}) {
            ToolOptions any;
            any.choice = choice;
            has(error({kPlain, std::string(R"({"name": "f", "parameters": )") + schema + "}"}, any), words);
            if (choice == ToolChoice::required)
                has(error({std::string(R"({"name": "f", "parameters": )") + schema + "}"}, any), words);
        }
    CHECK(Grammar::from_tools({R"({"name": "f", "parameters": {"type": ["object", "null"]}})"}, {}).ok());
    std::string values = R"({"name": "f", "parameters": {"properties": {"x": {"enum": [)";
    for (int i = 0; i < 17000; ++i) values += (i ? ",{\"a\":" : "{\"a\":") + std::to_string(i) + "}";
    has(error({kPlain, values + "]}}}}", R"({"name": "g"})"}), "unsupported: tool 'f': 17000 alternatives begin");
    ToolOptions options;
    for (const auto& [schema, words] : {std::pair("{", "answer: "), std::pair("false", "answer: no value is valid"),
                                        std::pair(R"({"minimum": 3, "maximum": 2, "type": "number"})", "no value"),
                                        std::pair(R"({"uniqueItems": true})", "answer: #: uniqueItems")}) {
        options.answer = schema;
        options.ignore_unsupported = true;  // of the tools
        has(error({kPlain}, options), words);
    }
    options = {};
    options.name = "start";
    has(error({kPlain}, options), "no tool is called 'start'");
    options.name.clear();
    options.ignore_unsupported = true;
    const Result<Grammar> g = Grammar::from_tools(
        {R"({"name": "f", "parameters": {"properties": {"x": {"items": {"uniqueItems": true}}}}})"}, options);
    REQUIRE(g.ok());
    REQUIRE(g.value().ignored().size() == 1);
    CHECK(g.value().ignored()[0] == "f: #/properties/x/items: uniqueItems");
    // Arguments that a tool does not list are not written.
    const std::string listed = R"({"name": "f", "parameters": {"properties": {"x": {"type": "string"}}, )";
    const RulesPtr rules =
        compile({listed + R"("additionalProperties": {"type": "string"}, "patternProperties": {"^p": {}}}})"});
    CHECK(rules->ignored == std::vector<std::string>{"f: #: additionalProperties", "f: #: patternProperties"});
    CHECK(accepts(rules, call("f>\n" + argument("x", "1"))));
    CHECK_FALSE(accepts(rules, call("f>\n" + argument("p", "1"))));
    CHECK(compile({listed + R"("additionalProperties": false}})"})->ignored.empty());
}

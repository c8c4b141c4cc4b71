#include "tool_calls.h"

#include "schema.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace tool_calls_impl {

constexpr size_t kMaxTools = 256, kMaxValues = 200000;
constexpr const char *kThink = "<think>", *kThinkEnd = "</think>", *kCall = "<tool_call>", *kCallEnd = "</tool_call>";

struct Tool {
    std::string name;
    Json parameters;
};

Result<Tool> read_tool(const std::string& text, size_t i) {
    Json json;
    Json::Limits limits;
    limits.max_values = kMaxValues;
    if (const Status s = Json::parse(text, limits).get(json); !s.ok())
        return fail(Code::bad_argument, "tools[", i, "]: ", s.text);
    const Json* inner = json.find("function");
    const Json& function = inner ? *inner : json;
    const Json *name = function.find("name"), *parameters = function.find("parameters");
    if (!name || !name->is(Json::Kind::string) || name->text().empty())
        return fail(Code::bad_argument, "tools[", i, "]: expected a function with a name");
    Tool tool;
    tool.name = name->text();
    if (const Status s = check_call_name("a tool", tool.name); !s.ok())
        return Status(s.code, say("tools[", i, "]: ", s.text));
    if (parameters && !parameters->is(Json::Kind::null)) {
        tool.parameters = *parameters;
    } else {
        AUSPEX_TRY(Json::parse("{}").get(tool.parameters));
    }
    return tool;
}

class Writer {
  public:
    Writer(Rules& rules, const ToolOptions& options)
        : rules_(rules), pool_(rules.pool), options_(options), elements_(options.chat_template.element_calls) {}

    Status add_tool(const Tool& tool) {
        AUSPEX_TRY(takes_object(tool));
        SchemaOptions options;
        options.any_order = options_.any_order;
        options.ignore_unsupported = options_.ignore_unsupported;
        SchemaCompiler compiler(rules_, tool.parameters, options);
        uint32_t arguments = 0;
        // JSON strings have no line breaks, and within a line no tag ends an element.
        const std::vector<std::string> ends =
            elements_ ? std::vector<std::string>() : std::vector<std::string>{kCall, kCallEnd};
        const ValuePlace place = elements_ ? ValuePlace::arguments : ValuePlace::object;
        if (const Status s = compiler.run_arguments(place, ends, options_.chat_template.json_values).get(arguments);
            !s.ok())
            return Status(s.code, say("tool ", quote(tool.name, 60), ": ", s.text));
        for (const std::string& note : compiler.ignored()) rules_.ignored.push_back(tool.name + ": " + note);
        const ExprId value = pool_.rule(arguments);
        arguments_.push_back({tool.name, arguments});
        if (elements_)
            tools_.push_back(pool_.concat({pool_.text(tool.name + ">\n"), value, pool_.text("</function>\n")}));
        else
            tools_.push_back(pool_.concat({pool_.text(write_text(tool.name, Writing::canonical)),
                                           pool_.text("\", \"arguments\": "), value, pool_.text("}\n")}));
        return {};
    }

    Status add_answer(const std::string& schema) {
        Json root;
        Json::Limits limits;
        limits.max_values = kMaxValues;
        if (const Status s = Json::parse(schema, limits).get(root); !s.ok()) return Status(s.code, "answer: " + s.text);
        SchemaOptions options;
        options.any_order = options_.any_order;
        // A tag in a string of the answer would be read as the beginning of a call.
        SchemaCompiler compiler(rules_, root, options);
        const Status s = compiler.run_arguments(ValuePlace::json, {kCall, "<function=", kThink}, true).get(form_);
        return s.ok() ? s : Status(s.code, "answer: " + s.text);
    }
    /// Finishes the rules, which empties those that no text matches.
    Status finish() const {
        const Status finished = rules_.finish();
        if (!finished.ok() && finished.code != Code::bad_argument)
            return Status(finished.code, owner_of(rules_.refused) + finished.text);
        for (const auto& [name, rule] : arguments_)
            if (rules_.body[rule] == kNoMatch)
                return fail(Code::bad_argument, "tool ", quote(name, 60),
                            ": #: no arguments are valid against the schema; check what it requires");
        if (!finished.ok() || form_ == Rules::kNoRule || rules_.body[form_] != kNoMatch) return finished;
        return fail(Code::bad_argument, "answer: no value is valid against the schema; check what it requires");
    }

    void write_reply() {
        const uint32_t reply = rules_.add_rule("reply"), answer = rules_.add_rule("answer"),
                       calls = rules_.add_rule("calls"), thinking = rules_.add_rule("thinking");
        write_calls(calls);
        write_answer(answer, calls);
        write_thinking(thinking, answer);
        rules_.start = reply;
        if (options_.inside_thinking) {
            rules_.body[reply] = pool_.rule(thinking);
            return;
        }
        // A model may open its thinking itself. Where the prompt has closed the thinking, a required call or an answer
        // in a form comes at once. Qwen's prompts always say whether it thinks.
        const ChatStyle style = options_.chat_template.style;
        const bool says_nothing = style == ChatStyle::chatml || style == ChatStyle::jinja;
        const bool may_think = is_free() || (says_nothing && !options_.closed_thinking);
        ByteSet space;
        for (const char c : std::string_view(" \t\r\n")) space.add(static_cast<unsigned char>(c));
        const ExprId opened = pool_.concat({pool_.repeat(pool_.bytes(space), 0, 8), tag(kThink), pool_.rule(thinking)});
        rules_.body[reply] = pool_.choice(pool_.rule(answer), may_think ? opened : kNoMatch);
    }

  private:
    /// Arguments are an object: other types are found here, because a schema alone may be of any.
    static Status takes_object(const Tool& tool) {
        const Json* type = tool.parameters.find("type");
        if (!type) return {};
        const auto is_object = [](const Json& t) { return t.is(Json::Kind::string) && t.text() == "object"; };
        const bool takes = type->is(Json::Kind::array)
                               ? std::any_of(type->items().begin(), type->items().end(), is_object)
                               : is_object(*type);
        if (takes) return {};
        return fail(Code::bad_argument, "tool ", quote(tool.name, 60),
                    ": #: type: expected \"object\", which arguments are, found ", quote(type->dump()));
    }

    /// Whose rule it is, for messages: rules of each tool begin with the one of its arguments.
    std::string owner_of(uint32_t rule) const {
        if (rule >= rules_.start) return {};  // the frame, or no rule
        if (form_ != Rules::kNoRule && rule >= form_) return "answer: ";
        std::string owner;
        for (const auto& [name, first] : arguments_)
            if (first <= rule) owner = say("tool ", quote(name, 60), ": ");
        return owner;
    }

    ExprId terminal(const char* name, bool other) {
        TokenTerminal t;
        t.name = name;
        t.negated = t.control_only = other;
        t.may_be_absent = true;
        rules_.terminals.push_back(t);
        return pool_.token(static_cast<uint32_t>(rules_.terminals.size() - 1));
    }
    /// Text that no schema describes may stand before calls and instead of them.
    bool is_free() const { return options_.choice == ToolChoice::automatic && form_ == Rules::kNoRule; }
    /// A tag as the control token of the vocabulary, or spelled out.
    ExprId tag(const char* name) { return pool_.choice(terminal(name, false), pool_.text(name)); }

    /// One call after its tag, and more.
    void write_calls(uint32_t calls) {
        const ExprId begin = pool_.text(elements_ ? "\n<function=" : "\n{\"name\": \"");
        const ExprId more = options_.parallel
                                ? pool_.optional(pool_.concat({pool_.text("\n"), tag(kCall), pool_.rule(calls)}))
                                : kEmptyText;
        rules_.body[calls] = pool_.concat({begin, pool_.choice(std::move(tools_)), tag(kCallEnd), more});
    }

    /// In free text the forms of a tag are alternatives of the whole, so that text with a spelled tag is one expression
    /// that ends nowhere else.
    void write_answer(uint32_t answer, uint32_t calls) {
        if (is_free()) {
            const ExprId free = pool_.without({kCall, "<function=", kThink});
            rules_.body[answer] = pool_.choice({free, pool_.concat({free, terminal(kCall, false), pool_.rule(calls)}),
                                                pool_.concat({free, pool_.text(kCall), pool_.rule(calls)})});
            return;
        }
        const ExprId lines = pool_.repeat(pool_.text("\n"), 0, 2);
        rules_.body[answer] = pool_.concat({lines, tag(kCall), pool_.rule(calls)});
        if (form_ != Rules::kNoRule)
            rules_.body[answer] = pool_.choice(rules_.body[answer], pool_.concat({lines, pool_.rule(form_)}));
    }

    void write_thinking(uint32_t thinking, uint32_t answer) {
        const ExprId free = pool_.without({kThinkEnd}), after = pool_.rule(answer);
        rules_.body[thinking] = pool_.choice({pool_.concat({free, terminal(kThinkEnd, false), after}),
                                              pool_.concat({free, pool_.text(kThinkEnd), after}),
                                              pool_.concat({free, terminal(kThinkEnd, true), pool_.rule(thinking)})});
    }

    Rules& rules_;
    ExprPool& pool_;
    const ToolOptions& options_;
    bool elements_;  ///< Qwen's form of calls
    std::vector<ExprId> tools_;
    std::vector<std::pair<std::string, uint32_t>> arguments_;  ///< of each tool: its name, and the rule
    uint32_t form_ = Rules::kNoRule;                           ///< of ToolOptions::answer
};

}  // namespace tool_calls_impl

Result<std::shared_ptr<const Rules>> rules_from_tools(const std::vector<std::string>& tools,
                                                      const ToolOptions& options) {
    using namespace tool_calls_impl;
    const ChatStyle style = options.chat_template.style;
    if (style < ChatStyle::chatml || style > ChatStyle::jinja)
        return fail(Code::bad_argument, "the style of the tool calls is ", static_cast<int>(style),
                    ", expected a value of ChatStyle; ModelInfo::chat_template has the model's");
    if (options.choice < ToolChoice::automatic || options.choice > ToolChoice::required)
        return fail(Code::bad_argument, "the choice of tools is ", static_cast<int>(options.choice),
                    ", expected ToolChoice::automatic or ToolChoice::required");
    if (tools.empty() || tools.size() > kMaxTools)
        return fail(tools.empty() ? Code::bad_argument : Code::unsupported, "expected 1 to ", kMaxTools,
                    " tools, found ", tools.size());
    size_t n_byte = options.answer.size();
    for (const std::string& text : tools) n_byte += text.size();
    if (n_byte > 4 * kMaxGrammarBytes)
        return fail(Code::unsupported, "tools and an answer of ", n_byte, " bytes, at most ", 4 * kMaxGrammarBytes,
                    " are read");
    auto rules = std::make_shared<Rules>();
    Writer writer(*rules, options);
    std::set<std::string> names;
    bool found = options.name.empty();
    for (size_t i = 0; i < tools.size(); ++i) {
        Tool tool;
        AUSPEX_TRY(read_tool(tools[i], i).get(tool));
        if (!names.insert(tool.name).second)
            return fail(Code::bad_argument, "tools[", i, "]: another tool is called ", quote(tool.name, 60), " too");
        if (!options.name.empty() && tool.name != options.name) continue;
        found = true;
        AUSPEX_TRY(writer.add_tool(tool));
    }
    if (!found)
        return fail(Code::bad_argument, "no tool is called ", quote(options.name, 60), "; name one of those given");
    if (!options.answer.empty() && options.choice == ToolChoice::automatic)
        AUSPEX_TRY(writer.add_answer(options.answer));
    writer.write_reply();
    AUSPEX_TRY(writer.finish());
    return std::shared_ptr<const Rules>(rules);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

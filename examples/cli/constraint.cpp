#include "constraint.h"

#include <nlohmann/json.hpp>

namespace cli {
namespace {

Status of_file(const std::string& path, const Status& s) {
    return s.ok() ? s : Status(s.code, "'" + path + "': " + s.text);
}

using FromText = Result<auspex::Grammar> (*)(std::string_view);

Status from_file(const std::string& path, FromText make, auspex::Grammar* to) {
    std::string text;
    const Status s = read_document(path).get(text);
    return s.ok() ? of_file(path, make(text).get(*to)) : s;
}

}  // namespace

void add_constraint(CLI::App& command, ConstraintFlags& o) {
    CLI::Option* schema =
        command.add_option("--json-schema", o.schema, "Write JSON that is valid against the JSON Schema in this file");
    CLI::Option* grammar =
        command.add_option("--grammar", o.grammar, "Write what the GBNF grammar in this file allows");
    CLI::Option* regex =
        command.add_option("--regex", o.regex, "Write what this regular expression matches as a whole");
    CLI::Option* tools = command.add_option(
        "--tools", o.tools, "Offer the tools in this file, a JSON array, and write only calls that fit their schemas");
    command.add_option("--tool-choice", o.tool_choice, "With --tools: auto, required, or the name of a tool to call");
    schema->excludes(grammar)->excludes(regex)->excludes(tools);
    grammar->excludes(regex)->excludes(tools);
    regex->excludes(tools);
}

Status read_tools(const ConstraintFlags& o, std::vector<std::string>* to) {
    to->clear();
    if (o.tools.empty())
        return o.tool_choice.empty()
                   ? Status()
                   : Status(Code::bad_argument, "--tool-choice chooses among tools; give --tools FILE");
    std::string text;
    Status s = read_document(o.tools).get(text);
    if (s.ok()) s = check_utf8(text, "'" + o.tools + "'");
    if (!s.ok()) return s;
    const nlohmann::ordered_json all = nlohmann::ordered_json::parse(text, nullptr, false);
    if (!all.is_array() || all.empty())
        return Status(Code::bad_argument, "'" + o.tools + "' is " + (all.is_array() ? "an empty" : "not a") +
                                              " JSON array of tools, expected [{\"type\": \"function\", ...}, ...]");
    // The library keeps numbers as they are written: a tool of `all` has rounded those beyond 64 bits or 17 digits.
    auspex::ChatRequest request;
    s = auspex::ChatRequest::from_json("{\"messages\": [], \"tools\": " + text.substr(text.find('[')) + "}")
            .get(request);
    if (!s.ok()) return Status(s.code, "'" + o.tools + "': " + s.text);
    *to = std::move(request.tools);
    return {};
}

Status read_grammar(const ConstraintFlags& o, const std::vector<std::string>& tools,
                    const auspex::ChatTemplate& chat_template, const auspex::ChatPrompt& prompt, auspex::Grammar* to) {
    if (!o.grammar.empty()) return from_file(o.grammar, auspex::Grammar::from_gbnf, to);
    if (!o.schema.empty())
        return from_file(
            o.schema, [](std::string_view text) { return auspex::Grammar::from_json_schema(text); }, to);
    if (o.regex) {
        const Status s = auspex::Grammar::from_regex(*o.regex).get(*to);
        return s.ok() ? s : Status(s.code, "--regex: " + s.text);
    }
    if (tools.empty()) return {};
    auspex::ToolOptions options;
    options.chat_template = chat_template;
    options.inside_thinking = prompt.inside_thinking;
    options.closed_thinking = prompt.closed_thinking;
    if (!o.tool_choice.empty() && o.tool_choice != "auto") {
        options.choice = auspex::ToolChoice::required;
        if (o.tool_choice != "required") options.name = o.tool_choice;
    }
    return of_file(o.tools, auspex::Grammar::from_tools(tools, options).get(*to));
}

Status choose_constraint(const ConstraintFlags& o, const auspex::Model& model, auspex::Constraint* to) {
    std::vector<std::string> tools;
    auspex::Grammar grammar;
    Status s = read_tools(o, &tools);
    if (s.ok()) s = read_grammar(o, tools, model.info().chat_template, {}, &grammar);
    if (!s.ok() || !grammar) return s;
    return auspex::Constraint::create(model, grammar).get(*to);
}

}  // namespace cli

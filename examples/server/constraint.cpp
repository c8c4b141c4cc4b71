#include "constraint.h"

#include <algorithm>

namespace server {

Status ConstraintCache::find(const auspex::Model& model, const std::string& key,
                             const std::function<Result<auspex::Grammar>()>& make, auspex::Constraint* to) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (size_t i = 0; i < entries_.size(); ++i) {
            if (entries_[i].key != key) continue;
            *to = entries_[i].constraint;
            std::rotate(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(i),
                        entries_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
            return {};
        }
    }
    auspex::Grammar grammar;
    Status s = make().get(grammar);
    if (s.ok()) s = auspex::Constraint::create(model, grammar).get(*to);
    if (!s.ok()) return s;
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_.push_front({key, *to});
    if (entries_.size() > kMaxEntries) entries_.pop_back();
    return s;
}

namespace {

/// What may follow the "<" of `tag` in a text, up to the next "<", if it begins like the tag but is not it.
std::string other_than(const std::string& tag) {
    std::string rest = std::string("([^<") + tag.back() + "] any)?";
    for (size_t i = tag.size() - 1; i-- > 2;)
        rest = std::string("([^<") + tag[i] + "] any | \"" + tag[i] + "\" " + rest + ")?";
    return std::string("\"") + tag[1] + "\" " + rest;
}

/// Text in which no call begins, as a grammar.
std::string text_without_calls() {
    return "any ::= [^<]*\nroot ::= any (\"<\" ([^<tf] any | " + other_than("<tool_call>") + " | " +
           other_than("<function=") + ")?)*";
}

/// The client can mend what the library does not support: its schema.
Failure refused(const char* what, const Status& s) {
    if (s.ok()) return {};
    const bool mendable = s.code == Code::unsupported || s.code == Code::bad_argument;
    return mendable ? bad_request(std::string(what) + " cannot be enforced: " + s.text) : from_status(s);
}

}  // namespace

Failure ConstraintCache::apply(const auspex::Model& model, ReplyForm form, GenerationRequest* to) {
    if (form.no_call && !to->tools.empty() && form.is_free()) form.gbnf = text_without_calls();
    if (form.no_call) to->tools.clear();
    if (!form.schema.empty() && !form.gbnf.empty())
        return bad_request("both a JSON schema and a grammar are given, expected one of them");
    if (!form.gbnf.empty() && !to->tools.empty())
        return not_supported("a grammar and tools together cannot be enforced; leave one of them out");
    if (form.call_required && to->tools.empty())
        return bad_request("tool_choice demands a call, but no tool of type function is offered");
    if (!form.is_free() && to->tools.empty()) {
        const bool is_schema = !form.schema.empty();
        to->constrain_answer = true;
        const auto make = [&] {
            return is_schema ? auspex::Grammar::from_json_schema(form.schema) : auspex::Grammar::from_gbnf(form.gbnf);
        };
        const std::string key = (is_schema ? "schema " : "grammar ") + form.schema + form.gbnf;
        return refused(is_schema ? "the JSON schema" : "the grammar", find(model, key, make, &to->sampling.constraint));
    }
    if (to->tools.empty()) return {};
    auspex::ToolOptions o;
    o.chat_template = model.info().chat_template;
    o.choice = form.call_required ? auspex::ToolChoice::required : auspex::ToolChoice::automatic;
    o.name = form.call_name;
    o.inside_thinking = to->inside_thinking;
    o.closed_thinking = to->closed_thinking;
    o.parallel = form.parallel;
    o.ignore_unsupported = true;
    if (!form.call_required) o.answer = form.schema;
    std::string key = std::string("tools ") + (form.call_required ? "required " : "") + (form.parallel ? "p" : "") +
                      (to->inside_thinking ? "t" : "") + (to->closed_thinking ? "c " : " ") + form.call_name;
    for (const std::string& tool : to->tools) key += "\n" + tool;
    if (!o.answer.empty()) key += "\nanswer " + o.answer;
    const Status s = find(
        model, key, [&] { return auspex::Grammar::from_tools(to->tools, o); }, &to->sampling.constraint);
    if (form.call_required) return refused("tool_choice", s);
    if (!o.answer.empty()) return refused("the JSON schema beside these tools", s);
    if (s.ok()) return {};
    // Without a demand the calls are the model's own affair, as they are on other servers.
    cli::note("calls of these tools are not constrained: " + s.text);
    return {};
}

Failure read_format(const Json& format, const std::string& name, ReplyForm* to) {
    if (!format.is_object()) return bad_request(name + " is " + describe(format) + ", expected an object");
    Failure failure;
    std::string type;
    const Fields fields(format, name + ".", &failure);
    if (!fields.text("type", &type)) fields.refuse("type", "text, json_object or json_schema");
    if (!failure.ok() || type == "text") return failure;
    if (type != "json_object" && type != "json_schema")
        return bad_request(name + ".type is '" + type + "', expected text, json_object or json_schema");
    const Json* schema = fields.find("schema");
    const Json* inner = fields.object("json_schema");  // OpenAI's chat has the schema one level below
    if (!schema && inner && inner->contains("schema")) schema = &(*inner)["schema"];
    if (!schema && type == "json_schema")
        fields.refuse(name == "response_format" ? "json_schema.schema" : "schema", "a JSON schema");
    to->schema = schema ? dump(*schema) : R"({"type": "object"})";
    return failure;
}

void read_response_format(const Fields& fields, ReplyForm* to) {
    if (const Json* format = fields.find("response_format")) fields.keep(read_format(*format, "response_format", to));
    const Json* schema = fields.find("json_schema");
    if (schema && !to->schema.empty())
        fields.keep(bad_request("both response_format and json_schema are given, expected one of them"));
    if (schema) to->schema = dump(*schema);
    fields.text("grammar", &to->gbnf);
}

}  // namespace server

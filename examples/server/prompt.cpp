#include "prompt.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <map>
#include <random>

namespace server {

void complete_defaults(const std::vector<auspex::FileValue>& metadata, Defaults* to) {
    auspex::Sampling& card = to->sampling;
    card.temperature = 0.7f;
    card.top_k = 20;
    card.top_p = 0.95f;
    for (const auspex::FileValue& v : metadata) {
        if (v.elements.size() != 1) continue;
        const float value = std::strtof(v.elements[0].c_str(), nullptr);
        if (v.key == "general.sampling.temp" && value >= 0 && value <= 100) card.temperature = value;
        if (v.key == "general.sampling.top_k" && value >= 0 && value < 1e6f) card.top_k = static_cast<int>(value);
        if (v.key == "general.sampling.top_p" && value > 0 && value <= 1) card.top_p = value;
        if (v.key == "general.sampling.min_p" && value >= 0 && value <= 1) card.min_p = value;
        if (v.key == "general.sampling.penalty_repeat" && value >= 1e-3f && value <= 100) card.repeat_penalty = value;
        if (v.key == "general.sampling.penalty_last_n" && value >= 0 && value <= 4096)
            card.penalty_window = static_cast<uint32_t>(value);
    }
    card.temperature = to->temperature.value_or(card.temperature);
    card.top_k = to->top_k.value_or(card.top_k);
    card.top_p = to->top_p.value_or(card.top_p);
    card.min_p = to->min_p.value_or(card.min_p);
}

namespace {

/// {"123": -100}: a bias for each token id.
void read_bias(const Fields& fields, uint32_t n_vocab, std::vector<auspex::LogitBias>* to) {
    const Json* biases = fields.object("logit_bias");
    if (!biases) return;
    for (const auto& one : biases->items()) {
        const std::string& id = one.key();
        const bool digits = !id.empty() && id.size() < 10 && id.find_first_not_of("0123456789") == std::string::npos;
        double bias = 0;
        if (!digits || std::stoul(id) >= n_vocab || !read_number(one.value(), &bias) || !(std::fabs(bias) <= 100))
            return fields.refuse(
                "logit_bias", "token ids from 0 to " + std::to_string(n_vocab - 1) + " with numbers from -100 to 100");
        to->push_back({static_cast<Token>(std::stoul(id)), static_cast<float>(bias)});
    }
}

}  // namespace

void read_sampling(const Fields& fields, const Defaults& defaults, uint32_t n_vocab, GenerationRequest* to) {
    auspex::Sampling& s = to->sampling;
    s = defaults.sampling;
    fields.number("temperature", 0, 100, &s.temperature);
    fields.number("top_p", 0, 1, &s.top_p);
    if (s.top_p <= 0) s.top_p = 1e-6f;  // OpenAI's 0 means the most likely token
    fields.number("min_p", 0, 1, &s.min_p);
    int64_t top_k = s.top_k, window = s.penalty_window;
    fields.integer("top_k", -1, INT32_MAX, &top_k);
    s.top_k = static_cast<int>(std::max<int64_t>(top_k, 0));
    fields.number("presence_penalty", -100, 100, &s.presence_penalty);
    fields.number("frequency_penalty", -100, 100, &s.frequency_penalty);
    fields.number("repeat_penalty", 1e-3, 100, &s.repeat_penalty);
    fields.integer("repeat_last_n", 0, 4096, &window);
    s.penalty_window = static_cast<uint32_t>(window);
    read_bias(fields, n_vocab, &s.logit_bias);
    int64_t seed = -1;
    fields.integer("seed", INT64_MIN, INT64_MAX, &seed);
    s.seed = seed == -1 ? std::random_device()() : static_cast<uint64_t>(seed);
}

// --------------------------------------------------------------------------------------------- conversations

namespace {

/// How deep values in a prompt may be nested: what ChatRequest::from_json() takes.
constexpr size_t kMaxValueDepth = 100;

Failure check_depth(const Json& value, size_t max_depth, const std::string& path) {
    if (depth_of(value) <= max_depth) return {};
    return bad_request(path + " is nested more than " + std::to_string(max_depth) + " levels deep");
}

/// Whether a template can read the arguments of a call.
bool is_readable(const Json& arguments) { return arguments.is_object() && depth_of(arguments) <= kMaxValueDepth + 1; }

/// Arguments that are no JSON object, or nested too deeply, become the argument `arguments`, as text. Clients send back
/// what they got, also a call that was cut in its middle: it must not make every later request of its conversation
/// fail.
void mend_arguments(Json* calls) {
    for (Json& call : *calls) {
        if (!call.is_object()) continue;
        const auto inner = call.find("function");
        Json& function = inner != call.end() && inner->is_object() ? *inner : call;
        const auto found = function.find("arguments");
        if (found == function.end() || !(found->is_string() || found->is_object())) continue;
        if (found->is_object() && is_readable(*found)) continue;
        const std::string text = found->is_string() ? found->get<std::string>() : dump(*found);
        Json parsed;
        const bool blank = text.find_first_not_of(" \t\r\n") == std::string::npos;
        if (!blank && !(parse_json(text, &parsed) && is_readable(parsed))) *found = {{"arguments", text}};
    }
}

/// The same message with the names and forms that ChatRequest::from_json() takes.
Failure arrange_message(const Json& from, const std::string& path, Json* to) {
    Failure failure;
    if (!from.is_object()) return bad_request(path + " is " + describe(from) + ", expected an object");
    const Fields fields(from, path + ".", &failure);
    std::string role;
    if (!fields.text("role", &role) && failure.ok()) fields.refuse("role", "a string");
    (*to)["role"] = role == "developer" ? "system" : role == "function" ? "tool" : role;
    if (const Json* content = fields.find("content")) {
        const std::string text = content_text(*content, path + ".content", &failure);
        (*to)["content"] = text;
    } else {
        (*to)["content"] = "";
    }
    std::string reasoning;
    // Both names are in use for what a client sends back.
    if (fields.text("reasoning_content", &reasoning) || fields.text("reasoning", &reasoning))
        (*to)["reasoning_content"] = reasoning;
    std::string refusal;
    if ((*to)["content"] == "" && fields.text("refusal", &refusal)) (*to)["content"] = refusal;
    fields.refuse_wish("audio", "send what was said as content");
    if (const Json* calls = fields.list("tool_calls"))
        (*to)["tool_calls"] = *calls;
    else if (const Json* call = fields.object("function_call"))  // OpenAI's form before tools
        (*to)["tool_calls"] = Json::array({{{"type", "function"}, {"function", *call}}});
    if (to->contains("tool_calls")) {
        mend_arguments(&(*to)["tool_calls"]);
        // Four levels stand above the value of an argument: the calls, a call, its function, the arguments.
        fields.keep(check_depth((*to)["tool_calls"], kMaxValueDepth + 4, path + ".tool_calls"));
    }
    // Others are the template's: tool_call_id, name of a speaker or of a function.
    const char* const read[] = {"role",    "content", "reasoning_content", "reasoning",
                                "refusal", "audio",   "tool_calls",        "function_call"};
    Members& all = to->get_ref<Json::object_t&>();
    all.reserve(all.size() + from.size());
    for (const auto& m : from.items()) {
        if (std::find(std::begin(read), std::end(read), m.key()) != std::end(read)) continue;
        fields.keep(check_depth(m.value(), kMaxValueDepth, path + "." + m.key()));
        all.emplace_back(m.key(), m.value());  // no two of its names are the same: operator[] would look for each
    }
    return failure;
}

/// The places of calls, by their ids.
using Places = std::map<std::string, size_t>;

const std::string* find_text(const Json& object, const char* key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    return found != object.end() && found->is_string() ? found->get_ptr<const std::string*>() : nullptr;
}

/// Puts results into the order of their calls. If one belongs to no call, all stay where they are.
void sort_results(Json::iterator begin, Json::iterator end, const Places& places) {
    std::vector<std::pair<size_t, Json>> sorted;
    for (auto one = begin; one != end; ++one) {
        const std::string* id = find_text(*one, "tool_call_id");
        const auto place = id ? places.find(*id) : places.end();
        if (place == places.end()) return;
        sorted.emplace_back(place->second, Json());
    }
    for (size_t i = 0; i < sorted.size(); ++i) sorted[i].second.swap(begin[static_cast<std::ptrdiff_t>(i)]);
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto& one : sorted) *begin++ = std::move(one.second);
}

/// Brings results into the order of their calls: templates show them without ids, so that the model would take one for
/// another where a client sends them as they came.
void order_results(Json* messages) {
    const auto is_result = [](const Json& one) { return one["role"] == "tool"; };
    Places places;
    for (auto m = messages->begin(); m != messages->end();) {
        const auto calls = m->find("tool_calls");
        const bool has_calls = calls != m->end() && calls->is_array() && !calls->empty();
        if (has_calls) places.clear();
        for (size_t i = 0; has_calls && i < calls->size(); ++i)
            if (const std::string* id = find_text((*calls)[i], "id")) places.emplace(*id, i);
        const auto end = is_result(*m) ? std::find_if_not(m, messages->end(), is_result) : m;
        if (end != m) sort_results(m, end, places);
        m = end != m ? end : m + 1;
    }
}

}  // namespace

void read_tool_choice(const Fields& fields, Conversation* to) {
    const Json* choice = fields.find("tool_choice");
    fields.boolean("parallel_tool_calls", &to->form.parallel);
    if (!choice || *choice == "auto") return;
    to->form.no_call = *choice == "none";
    to->form.call_required = !to->form.no_call;
    if (*choice == "none" || *choice == "required") return;
    if (!choice->is_object())
        return fields.keep(
            bad_request("tool_choice is " + dump(*choice) + R"(, expected "auto", "none", "required" or a function)"));
    // {"type": "function", "function": {"name"}}, or with the name beside the type.
    const auto inner = choice->find("function");
    const bool nested = inner != choice->end() && inner->is_object();
    const Fields function = fields.inside(nested ? *inner : *choice, nested ? "tool_choice.function." : "tool_choice.");
    if (function.text("name", &to->form.call_name)) {
        to->form.parallel = false;  // OpenAI: exactly one call of this function
        return;
    }
    std::string type = "function";
    fields.inside(*choice, "tool_choice.").text("type", &type);
    if (type == "auto" || type == "none" || type == "required")
        fields.keep(
            bad_request("tool_choice is an object of type '" + type + "', expected the string \"" + type + '"'));
    if (type != "function")
        fields.keep(
            not_supported("tool_choice of type '" + type +
                          "' is not available; offer only the tools that may be called, with auto or required"));
    function.refuse("name", "the name of a function");
}

namespace {

/// Tools of other types, which OpenAI would run or parse, are left out as they are in the other protocols.
void read_tools(const Json& tools, const Fields& fields, Json* to) {
    std::set<std::string> names;
    for (size_t i = 0; i < tools.size(); ++i) {
        const std::string path = "tools[" + std::to_string(i) + "]";
        if (!tools[i].is_object())
            return fields.keep(bad_request(path + " is " + describe(tools[i]) + ", expected an object"));
        const Fields tool = fields.inside(tools[i], path + ".");
        std::string type = "function";
        tool.text("type", &type);
        if (type != "function") continue;
        const Json* function = tool.object("function");
        if (function)
            read_tool_name(tool.inside(*function, "function."), &names);
        else
            tool.fail("function.name", tool.find("name")
                                           ? "is missing, because the tool has the form of /v1/responses; expected "
                                             R"({"type": "function", "function": {"name": ...}})"
                                           : "is missing, expected a string");
        to->push_back(tools[i]);
    }
}

/// Without the beginning of its turn the model would not reply. path: of the fields, for messages.
void refuse_no_generation(const Fields& fields, const std::string& path) {
    bool flag = true;
    if (fields.boolean("add_generation_prompt", &flag) && !flag)
        fields.keep(not_supported(path + "add_generation_prompt cannot be false here; use /v1/completions"));
}

/// What a client of chat completions asks for that changes the reply, and that this server does not do.
void refuse_foreign(const Fields& fields) {
    for (const char* key : {"audio", "web_search_options"}) fields.refuse_wish(key, "leave it out");
    if (const Json* kinds = fields.find("modalities"); fields.asks("modalities") && *kinds != Json::array({"text"}))
        fields.keep(not_supported("modalities is " + dump(*kinds) + R"(, expected ["text"])"));
    // Fields of other protocols, which would have no effect.
    for (const char* key : {"text", "output_config"}) refuse_format(fields, key, "use response_format");
    fields.refuse_wish("output_format", "use response_format");
    for (const char* key : {"system", "instructions"}) fields.refuse_wish(key, "send a message of the role system");
    fields.refuse_wish("previous_response_id", "use /v1/responses, or send the whole conversation as messages");
    refuse_functions(fields);
    refuse_no_generation(fields, "");
    fields.refuse_wish("continue_final_message", "use /v1/messages, which continues a last message of the assistant");
}

}  // namespace

std::string read_tool_name(const Fields& function, std::set<std::string>* known) {
    std::string name;
    if (!function.text("name", &name))
        function.refuse("name", "a string");
    else if (name.empty())
        function.fail("name", "is empty, expected the name of a function");
    else if (!known->insert(name).second)
        function.fail("name", "is '" + name + "', as that of a tool before it; expected a name of its own");
    return name;
}

void refuse_functions(const Fields& fields) {
    fields.refuse_wish("functions", R"(tools replaced them: send each as {"type": "function", "function": ...})");
    const Json* call = fields.find("function_call");
    if (call && *call != "auto" && *call != "none") fields.refuse_wish("function_call", "send tool_choice with tools");
}

void read_template_switches(const Fields& fields, Conversation* to) {
    const Json* switches = fields.object("chat_template_kwargs");
    if (!switches) return;
    refuse_no_generation(fields.inside(*switches, "chat_template_kwargs."), "chat_template_kwargs.");
    to->switches = *switches;
}

void read_thinking(const Fields& fields, Conversation* to) {
    std::string type;
    if (const Json* thinking = fields.object("thinking")) fields.inside(*thinking, "thinking.").text("type", &type);
    if (type == "disabled")
        to->switches["enable_thinking"] = false;
    else if (type == "enabled")
        to->switches["enable_thinking"] = true;
    else if (!type.empty() && type != "adaptive")
        fields.keep(bad_request("thinking.type is '" + type + "', expected enabled, disabled or adaptive"));
}

void refuse_format(const Fields& fields, const char* key, const std::string& instead) {
    const Json* config = fields.find(key);
    if (!config || !config->is_object()) return;
    const Fields inner = fields.inside(*config, std::string(key) + ".");
    const Json* format = inner.find("format");
    if (format && *format != Json({{"type", "text"}})) inner.refuse_wish("format", instead);
}

Failure read_conversation(const Json& body, Conversation* to) {
    Failure failure;
    const Fields fields(body, "", &failure);
    if (const Json* messages = fields.list("messages"))
        to->messages = *messages;
    else
        fields.refuse("messages", "a list");
    if (const Json* tools = fields.list("tools")) read_tools(*tools, fields, &to->tools);
    refuse_foreign(fields);
    read_template_switches(fields, to);
    read_thinking(fields, to);
    std::string effort;
    if (const Json* reasoning = fields.object("reasoning"))  // the form of OpenRouter and /v1/responses
        fields.inside(*reasoning, "reasoning.").text("effort", &effort);
    fields.text("reasoning_effort", &effort);
    if (!effort.empty()) to->set_effort(effort);
    read_tool_choice(fields, to);
    read_response_format(fields, &to->form);
    return failure.ok() ? arrange_messages(to) : failure;
}

void Conversation::set_effort(const std::string& effort) {
    if (effort == "none")
        switches["enable_thinking"] = false;
    else if (!switches.contains("reasoning_effort"))
        switches["reasoning_effort"] = effort;
}

void append_paragraph(std::string* to, const std::string& text) {
    if (!to->empty() && !text.empty()) *to += "\n\n";
    *to += text;
}

void add_thinking(const std::string& text, Json* message) {
    Json& thinking = (*message)["reasoning_content"];
    if (thinking.is_null()) thinking = "";
    append_paragraph(&thinking.get_ref<std::string&>(), text);
}

Failure arrange_messages(Conversation* conversation) {
    Json all = Json::array();
    bool leading = true;
    for (size_t i = 0; i < conversation->messages.size(); ++i) {
        Json m;
        const Failure failure = arrange_message(conversation->messages[i], "messages[" + std::to_string(i) + "]", &m);
        if (!failure.ok()) return failure;
        const bool system = m["role"] == "system";
        leading = leading && system;
        if (leading && !all.empty()) {
            all[0]["content"].get_ref<std::string&>().append("\n\n").append(m["content"].get_ref<std::string&>());
            continue;
        }
        if (system && !leading) {
            m["role"] = "user";
            m["content"] = "<system>\n" + m["content"].get<std::string>() + "\n</system>";
        }
        all.push_back(std::move(m));
    }
    order_results(&all);
    conversation->messages = std::move(all);
    return conversation->messages.empty() ? bad_request("there is no message, expected at least one") : Failure();
}

static Failure check_depths(const Conversation& conversation) {
    Failure failure;
    for (size_t i = 0; i < conversation.tools.size() && failure.ok(); ++i)
        failure = check_depth(conversation.tools[i], kMaxValueDepth, "tools[" + std::to_string(i) + "]");
    for (const auto& one : conversation.switches.items())
        if (failure.ok()) failure = check_depth(one.value(), kMaxValueDepth, "chat_template_kwargs." + one.key());
    return failure;
}

/// Templates refuse roles that they do not know, but plain ChatML writes any: there a mistyped one would go unnoticed.
static Failure check_roles(auspex::ChatStyle style, const Json& messages) {
    if (style != auspex::ChatStyle::chatml && style != auspex::ChatStyle::chatml_no_think) return {};
    for (const Json& m : messages) {
        const std::string role = m["role"];
        if (role != "system" && role != "user" && role != "assistant" && role != "tool")
            return bad_request("a message has the role '" + role +
                               "', expected system, developer, user, assistant or tool");
    }
    return {};
}

Failure render(const Engine& engine, const Conversation& conversation, const Defaults& defaults,
               auspex::ChatPrompt* prompt, std::vector<std::string>* tools) {
    Failure failure = check_roles(engine.model().info().chat_template.style, conversation.messages);
    if (failure.ok()) failure = check_depths(conversation);
    if (!failure.ok()) return failure;
    // Tools that may not be called stay in the prompt, which is computed already. Plain ChatML cannot show any.
    const bool shown = engine.model().info().chat_template.has_tools() || !conversation.form.no_call;
    Json form = {{"messages", conversation.messages},
                 {"tools", shown ? conversation.tools : Json::array()},
                 {"chat_template_kwargs", conversation.switches}};
    if (defaults.enable_thinking) form["enable_thinking"] = *defaults.enable_thinking;
    if (defaults.preserve_thinking) form["preserve_thinking"] = *defaults.preserve_thinking;
    auspex::ChatRequest request;
    Status s = auspex::ChatRequest::from_json(dump(form)).get(request);
    if (s.ok()) s = engine.model().render(request).get(*prompt);
    if (!s.ok()) return from_status(s);
    *tools = std::move(request.tools);
    if (!conversation.begun) return {};
    if (prompt->inside_thinking) prompt->pieces.push_back({"\n</think>\n\n", true});
    prompt->inside_thinking = false;
    prompt->closed_thinking = true;
    if (!conversation.begun->empty()) prompt->pieces.push_back({*conversation.begun, false});
    return {};
}

Failure check_context(const Engine& engine, size_t n_prompt) {
    return n_prompt < engine.n_context() ? Failure() : context_exceeded(n_prompt, engine.n_context());
}

Failure prepare(Engine& engine, const Conversation& conversation, const Defaults& defaults, GenerationRequest* to) {
    auspex::ChatPrompt prompt;
    Failure failure = render(engine, conversation, defaults, &prompt, &to->tools);
    if (!failure.ok()) return failure;
    to->inside_thinking = prompt.inside_thinking;
    to->closed_thinking = prompt.closed_thinking;
    const Status s = engine.model().encode(prompt, &to->marks).get(to->ids);
    if (!s.ok()) return from_status(s);
    to->scripted = engine.script().find(prompt.text());
    failure = check_context(engine, to->ids.size());
    return failure.ok() ? engine.constraints().apply(engine.model(), conversation.form, to) : failure;
}

}  // namespace server

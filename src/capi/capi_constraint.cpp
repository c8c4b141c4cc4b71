// capi/capi_constraint: constraints of the C interface.
#include "capi.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {
namespace {

/// Whether the prompt of the request ends with a thinking that is closed. A request of tools alone has no prompt.
bool closes_thinking(const Model& model, const ChatRequest& request) {
    ChatPrompt prompt;
    return model.render(request).get(prompt).ok() && prompt.closed_thinking;
}

Answer make_constraint(const Model& model, const Result<Grammar>& grammar, auspex_constraint** to) {
    AUSPEX_C_TRY(grammar.status());
    auto made = std::make_unique<auspex_constraint>();
    AUSPEX_C_TRY(Constraint::create(model, grammar.value()).get(made->constraint));
    for (const std::string& line : grammar.value().ignored()) made->ignored += line + "\n";
    *to = made.release();
    return Answer();
}

}  // namespace
}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

auspex_code auspex_constraint_create(const auspex_model* model, int32_t kind, const char* text, size_t n_text,
                                     auspex_constraint** constraint, auspex_error* error) {
    using auspex::Grammar;
    return auspex::capi::call(error, [&]() -> auspex::capi::Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(constraint, "constraint"));
        AUSPEX_C_TRY(auspex::capi::need(model, "model"));
        AUSPEX_C_TRY(auspex::capi::check_range(kind, AUSPEX_CONSTRAINT_JSON_SCHEMA, AUSPEX_CONSTRAINT_REGEX, "kind"));
        std::string_view from;
        AUSPEX_C_TRY(auspex::capi::view_text(text, n_text, &from, "text"));
        return auspex::capi::make_constraint(model->model,
                                             kind == AUSPEX_CONSTRAINT_JSON_SCHEMA ? Grammar::from_json_schema(from)
                                             : kind == AUSPEX_CONSTRAINT_GBNF      ? Grammar::from_gbnf(from)
                                                                                   : Grammar::from_regex(from),
                                             constraint);
    });
}

auspex_code auspex_schema_options_init(auspex_schema_options* options, uint32_t struct_size) {
    return auspex::capi::init(options, struct_size);
}

auspex_code auspex_constraint_for_schema(const auspex_model* model, const char* text, size_t n_text,
                                         const auspex_schema_options* options, auspex_constraint** constraint,
                                         auspex_error* error) {
    return auspex::capi::call(error, [&]() -> auspex::capi::Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(constraint, "constraint"));
        AUSPEX_C_TRY(auspex::capi::need(model, "model"));
        auspex_schema_options from;
        AUSPEX_C_TRY(auspex::capi::read(options, &from, "auspex_schema_options"));
        AUSPEX_C_TRY(auspex::capi::check_range(from.ignore_unsupported, 0, 1, "ignore_unsupported"));
        AUSPEX_C_TRY(auspex::capi::check_range(from.any_order, 0, 1, "any_order"));
        AUSPEX_C_TRY(auspex::capi::check_range(from.no_white_space, 0, 1, "no_white_space"));
        std::string_view schema;
        AUSPEX_C_TRY(auspex::capi::view_text(text, n_text, &schema, "text"));
        auspex::SchemaOptions to;
        to.ignore_unsupported = from.ignore_unsupported != 0;
        to.any_order = from.any_order != 0;
        to.white_space = from.no_white_space == 0;
        return auspex::capi::make_constraint(model->model, auspex::Grammar::from_json_schema(schema, to), constraint);
    });
}

auspex_code auspex_tool_options_init(auspex_tool_options* options, uint32_t struct_size) {
    return auspex::capi::init(options, struct_size);
}

auspex_code auspex_constraint_for_tools(const auspex_model* model, const char* json, size_t n_json,
                                        const auspex_tool_options* options, auspex_constraint** constraint,
                                        auspex_error* error) {
    return auspex::capi::call(error, [&]() -> auspex::capi::Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(constraint, "constraint"));
        AUSPEX_C_TRY(auspex::capi::need(model, "model"));
        auspex_tool_options from;
        AUSPEX_C_TRY(auspex::capi::read(options, &from, "auspex_tool_options"));
        AUSPEX_C_TRY(auspex::capi::check_range(from.required, 0, 1, "required"));
        AUSPEX_C_TRY(auspex::capi::check_range(from.inside_thinking, 0, 1, "inside_thinking"));
        AUSPEX_C_TRY(auspex::capi::check_range(from.one_call, 0, 1, "one_call"));
        AUSPEX_C_TRY(auspex::capi::check_range(from.ignore_unsupported, 0, 1, "ignore_unsupported"));
        AUSPEX_C_TRY(auspex::capi::check_range(from.any_order, 0, 1, "any_order"));
        if (from.tool != nullptr && *from.tool == '\0')
            return auspex::capi::bad("tool is empty, expected the name of a tool, or null for any");
        std::string_view answer;
        AUSPEX_C_TRY(auspex::capi::view_text(from.answer, from.n_answer, &answer, "answer"));
        auspex::ChatRequest request;
        AUSPEX_C_TRY(auspex::capi::chat_request(json, n_json, &request));
        auspex::ToolOptions to;
        to.chat_template = model->model.info().chat_template;
        if (from.required != 0) to.choice = auspex::ToolChoice::required;
        if (from.tool != nullptr) to.name = from.tool;
        to.inside_thinking = from.inside_thinking != 0;
        to.parallel = from.one_call == 0;
        to.answer = std::string(answer);
        to.ignore_unsupported = from.ignore_unsupported != 0;
        to.any_order = from.any_order != 0;
        to.closed_thinking = !to.inside_thinking && auspex::capi::closes_thinking(model->model, request);
        return auspex::capi::make_constraint(model->model, auspex::Grammar::from_tools(request.tools, to), constraint);
    });
}

auspex_code auspex_constraint_from_tools(const auspex_model* model, const char* json, size_t n_json, int32_t required,
                                         const char* tool, int32_t inside_thinking, auspex_constraint** constraint,
                                         auspex_error* error) {
    auspex_tool_options options;
    auspex_tool_options_init(&options, sizeof options);
    options.required = required;
    options.tool = tool;
    options.inside_thinking = inside_thinking;
    return auspex_constraint_for_tools(model, json, n_json, &options, constraint, error);
}

auspex_code auspex_constraint_ignored(const auspex_constraint* constraint, char* text, size_t capacity, size_t* length,
                                      auspex_error* error) {
    return auspex::capi::call(error, [&]() -> auspex::capi::Answer {
        AUSPEX_C_TRY(auspex::capi::need(constraint, "constraint"));
        AUSPEX_C_TRY(auspex::capi::need_output(length, "length"));
        return auspex::capi::fill_text(constraint->ignored, text, capacity, length);
    });
}

void auspex_constraint_free(auspex_constraint* constraint) {
    if (auspex::capi::is(constraint)) delete constraint;
}

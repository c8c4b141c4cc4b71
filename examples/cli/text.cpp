// cli/text: tokenize and render, the commands that need a model's tokenizer or template but not its weights.
#include <nlohmann/json.hpp>

#include "commands.h"
#include "common.h"

namespace cli {
namespace {

struct TokenizeOptions {
    PlaceOptions place;
    TextOptions text;
    std::string decode;
    CLI::Option* decode_given = nullptr;
    bool special = false;
};

Status tokenize(const TokenizeOptions& o) {
    std::string path;
    Status s = find_model(o.place.model).get(path);
    if (!s.ok()) return s;
    auspex::Vocabulary vocabulary;
    s = auspex::Vocabulary::load(path.c_str()).get(vocabulary);
    if (!s.ok()) return s;
    if (o.decode_given->count() > 0) {
        std::vector<Token> ids;
        s = read_ids(o.decode, vocabulary.n_token()).get(ids);
        auspex::DecodeOptions decode;
        decode.special = true;
        std::string text;
        if (s.ok()) s = vocabulary.decode(ids, decode).get(text);
        return s.ok() ? print(text) : s;
    }
    std::string text;
    s = read_text(o.text, "text").get(text);
    if (!s.ok()) return s;
    auspex::EncodeOptions encode;
    encode.special = o.special;
    std::vector<Token> ids;
    s = vocabulary.encode(text, encode).get(ids);
    return s.ok() ? print(nlohmann::json(ids).dump() + "\n") : s;
}

struct RenderOptions {
    PlaceOptions place;
    std::string messages, jinja;
};

/// The chat template in a model file; empty if it has none.
Result<std::string> model_template(const std::string& model) {
    std::string path;
    Status s = find_model(model).get(path);
    auspex::FileInfo file;
    if (s.ok()) s = auspex::read_file_info(path.c_str()).get(file);
    if (!s.ok()) return s;
    for (const auspex::FileValue& v : file.metadata) {
        if (v.key != "tokenizer.chat_template") continue;
        if (v.type == "string" && !v.is_array) return v.elements[0];
        return Status(Code::bad_file,
                      "'" + path + "': tokenizer.chat_template is no string, expected a Jinja template");
    }
    return std::string();
}

Status render(const RenderOptions& o) {
    std::string messages, jinja, why;
    Status s = read_document(o.messages).get(messages);
    if (s.ok()) s = check_utf8(messages, "the messages file");
    if (!s.ok()) return s;
    if (!o.jinja.empty()) {
        s = read_document(o.jinja).get(jinja);
        if (!s.ok()) return s;
    } else {
        s = model_template(o.place.model).get(jinja);
        if (!s.ok()) return s;
    }
    auspex::ChatRequest request;
    s = auspex::ChatRequest::from_json(messages).get(request);
    if (!s.ok()) return s;
    const auspex::ChatTemplate found = auspex::recognise_template(jinja, &why);
    if (!why.empty()) note(why);
    auspex::ChatPrompt prompt;
    s = auspex::render_chat(request, found).get(prompt);
    return s.ok() ? print(prompt.text()) : s;
}

}  // namespace

void add_tokenize(CLI::App& app, Chosen& chosen) {
    CLI::App* command = app.add_subcommand("tokenize", "Text to a JSON list of ids, or ids to text");
    auto o = std::make_shared<TokenizeOptions>();
    add_model(*command, o->place);
    add_text(*command, o->text, "Text");
    o->decode_given =
        command->add_option("--decode", o->decode, "Ids to print as text, nothing added: 1,2,3 or [1, 2, 3] or @FILE");
    o->decode_given->excludes(o->text.text_given)->excludes(o->text.file_given);
    command->add_flag("--special", o->special, "Parse control tokens such as <|im_end|> written out in the text");
    command->callback([o, &chosen] { chosen = [o] { return report(tokenize(*o)); }; });
}

void add_render(CLI::App& app, Chosen& chosen) {
    CLI::App* command = app.add_subcommand("render", "Print the exact prompt text of a conversation");
    auto o = std::make_shared<RenderOptions>();
    add_model(*command, o->place);
    command
        ->add_option("--messages", o->messages,
                     "JSON file with {\"messages\": [...], \"tools\": [...], \"enable_thinking\": true, "
                     "\"chat_template_kwargs\": {other variables of the template}}; - is standard input")
        ->required();
    command->add_option("--template", o->jinja,
                        "A Jinja template file instead of the model's own; then no model is needed");
    command->callback([o, &chosen] { chosen = [o] { return report(render(*o)); }; });
}

}  // namespace cli

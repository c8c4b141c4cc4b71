// cli/text: tokenize and render, the commands that need the file's words but not its weights.
#include <nlohmann/json.hpp>

#include "base/token.h"
#include "commands.h"
#include "common.h"
#include "model_file.h"

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
    ModelFile file;
    Status s = file.open(o.place.model);
    if (!s.ok()) return s;
    auspex::detail::Tokenizer tokenizer;
    s = auspex::detail::Tokenizer::load(file.gguf).get(tokenizer);
    if (!s.ok()) return s;
    if (o.decode_given->count() > 0) {
        std::vector<Token> ids;
        s = read_ids(o.decode, tokenizer.n_vocab()).get(ids);
        return s.ok() ? print(tokenizer.decode(ids, true)) : s;
    }
    std::string text;
    s = read_text(o.text, "text").get(text);
    if (!s.ok()) return s;
    return print(nlohmann::json(tokenizer.encode(text, o.special)).dump() + "\n");
}

struct RenderOptions {
    PlaceOptions place;
    std::string messages, jinja;
};

Status render(const RenderOptions& o) {
    std::string messages, jinja, why;
    Status s = read_bytes(o.messages).get(messages);
    if (s.ok()) s = check_utf8(messages, "the messages file");
    if (!s.ok()) return s;
    if (!o.jinja.empty()) {
        s = read_bytes(o.jinja).get(jinja);
        if (!s.ok()) return s;
    } else {
        ModelFile file;
        s = file.open(o.place.model);
        if (s.ok()) s = file.gguf.get_string("tokenizer.chat_template", "").get(jinja);
        if (!s.ok()) return s;
    }
    auspex::ChatRequest request;
    s = auspex::ChatRequest::from_json(messages).get(request);
    if (!s.ok()) return s;
    const auspex::ChatStyle style = auspex::recognise_template(jinja, &why);
    if (style == auspex::ChatStyle::chatml && !why.empty()) note(why);
    auspex::ChatPrompt prompt;
    s = auspex::render_chat(request, style).get(prompt);
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
                     "JSON file with {\"messages\": [...], \"tools\": [...], and the template's own switches}; - is "
                     "standard input")
        ->required();
    command->add_option("--template", o->jinja,
                        "A Jinja template file instead of the model's own; then no model is needed");
    command->callback([o, &chosen] { chosen = [o] { return report(render(*o)); }; });
}

}  // namespace cli

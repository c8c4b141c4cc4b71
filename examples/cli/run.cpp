// cli/run: continues a prompt.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "common.h"
#include "draft.h"
#include "generate.h"
#include "platform.h"
#include "printable.h"
#include "window.h"

namespace cli {
namespace {

struct RunOptions {
    PlaceOptions place;
    TextOptions prompt;
    auspex::Sampling sampling;
    DraftFlags draft;
    WindowFlags window;
    int64_t ctx = 0;
    bool ctx_given = false;
    bool special = false;
    bool json = false;
    GenerateOptions generate;
};

Status run(const RunOptions& o, int* exit_code) {
    Status s = check_generate(o.generate);
    if (!s.ok()) return s;
    std::string prompt;
    s = read_text(o.prompt, "prompt").get(prompt);
    if (!s.ok()) return s;
    if (prompt.empty())
        return Status(Code::bad_argument,
                      "the prompt is empty; a model continues text, so give it at least one character");
    Loaded on;
    s = load(o.place, &on);
    if (!s.ok()) return s;

    auspex::EncodeOptions encode;
    encode.special = o.special;
    std::vector<Token> ids;
    s = on.model.encode(prompt, encode).get(ids);
    if (!s.ok()) return s;
    auspex::SessionOptions options;
    options.run_ahead = 2;  // nothing follows this text, so tokens computed beyond its end are dropped
    options.progress = progress_line();
    s = choose_context(on.model, ids.size(), o.generate.n, o.ctx_given ? &o.ctx : nullptr, &options.n_context);
    if (!s.ok()) return s;
    s = choose_draft(o.draft, on.model.info(), o.place.verbose, &options.draft);
    if (!s.ok()) return s;
    s = choose_window(o.window, &options);
    if (!s.ok()) return s;
    Trace trace;
    s = trace.open(o.draft, &options);
    if (!s.ok()) return s;
    options.checkpoint_bytes = 0;  // one prompt, never edited
    auspex::Session session;
    s = auspex::Session::create(on.model, options).get(session);
    if (!s.ok()) return s;
    CostCache costs;
    costs.load(on, options, session);
    if (o.place.verbose || stderr_is_terminal()) tell_windows(session.stats());

    const bool stream = !o.json;
    Generated made;
    s = generate(on.model, session, ids, {}, o.sampling, o.generate, stream, &made);
    if (s.ok()) s = trace.close();
    if (!s.ok()) return s;
    costs.save(session);
    *exit_code = made.stop_reason == "interrupted" ? kInterrupted : kDone;
    if (stream) {
        if (stderr_is_terminal() || o.place.verbose)
            std::fprintf(stderr, "\n[%zu prompt tokens, %.1f/s; %zu tokens, %.1f/s; %s; stopped by %s]\n", ids.size(),
                         made.prefill_tps(), made.ids.size(), made.decode_tps(), printable(on.device.name()).c_str(),
                         made.stop_reason.c_str());
        const std::string drafting = draft_line(session);
        if (!drafting.empty() && (stderr_is_terminal() || o.place.verbose))
            std::fprintf(stderr, "[drafting: %s]\n", drafting.c_str());
        return {};
    }
    nlohmann::ordered_json line;
    line["text"] = made.text;
    line["ids"] = made.ids;
    line["prompt_tokens"] = ids.size();
    line["tokens"] = made.ids.size();
    line["prefill_tps"] = made.prefill_tps();
    line["decode_tps"] = made.decode_tps();
    line["device"] = on.device.name();
    line["stop_reason"] = made.stop_reason;
    line["sync"] = sync_json(made.synced);
    if (options.draft.source != auspex::Draft::off) line["draft"] = draft_report(options.draft, session);
    return print(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace

void add_run(CLI::App& app, Chosen& chosen) {
    CLI::App* command = app.add_subcommand("run", "Continue a prompt");
    auto o = std::make_shared<RunOptions>();
    add_text(*command, o->prompt, "Prompt");
    add_place(*command, o->place);
    add_sampling(*command, o->sampling);
    add_draft(*command, o->draft);
    add_window(*command, o->window);
    add_generate(*command, o->generate);
    command->add_option_function<int64_t>(
        "--ctx", [o = o.get()](int64_t n) { o->ctx = n, o->ctx_given = true; },
        "Rows of context (default: prompt and -n)");
    command->add_flag("--special", o->special, "Parse control tokens such as <|im_end|> written out in the prompt");
    command->add_flag("--json", o->json, "Print one line, one JSON object, instead of the text");
    command->callback([o, &chosen] {
        chosen = [o] {
            int exit_code = kDone;
            const Status s = run(*o, &exit_code);
            return s.ok() ? exit_code : report(s);
        };
    });
}

}  // namespace cli

// cli/run: continues a prompt.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "common.h"
#include "constraint.h"
#include "draft.h"
#include "generate.h"
#include "platform.h"
#include "printable.h"
#include "session.h"
#include "window.h"

namespace cli {
namespace {

struct RunOptions {
    PlaceOptions place;
    TextOptions prompt;
    auspex::Sampling sampling;
    ConstraintFlags constraint;
    DraftFlags draft;
    WindowFlags window;
    std::optional<int64_t> ctx;
    bool special = false;
    bool json = false;
    GenerateOptions generate;
    SessionFlag session;
};

/// The prompt; without one a conversation that exists goes on as it is.
Status read_prompt(const RunOptions& o, const SessionFlag& kept, std::string* to) {
    const bool given = o.prompt.text_given->count() > 0 || o.prompt.file_given->count() > 0;
    if (kept.exists && !given && stdin_is_terminal()) return {};
    const Status s = read_text(o.prompt, "prompt").get(*to);
    if (!s.ok() || !to->empty() || (kept.exists && kept.file.n_token != 0)) return s;
    return Status(Code::bad_argument, "the prompt is empty; a model continues text, so give it at least one character");
}

/// find: find_session() or read_session().
Status find_text(SessionFlag* kept, Status (*find)(SessionFlag*)) {
    constexpr std::string_view kServer = "{\"auspex_server\"";  // its notes are not needed to continue the text
    const Status s = find(kept);
    const auto* const note = reinterpret_cast<const char*>(kept->file.note.data());
    const bool is_text = std::string_view(note, kept->file.note.size()).substr(0, kServer.size()) == kServer;
    if (!s.ok() || kept->file.note.empty() || is_text) return s;
    return Status(Code::bad_argument,
                  "'" + kept->path + "' holds a chat; continue it with `auspex chat --session`, or name another file");
}

/// How to sample: the options, and what the text must look like.
Status choose_sampling(const RunOptions& o, const auspex::Model& model, auspex::Sampling* to) {
    *to = o.sampling;
    return choose_constraint(o.constraint, model, &to->constraint);
}

/// Makes the session what the user saw, and saves it.
Status keep(SessionFlag* kept, bool verbose, std::vector<Token> shown, const Generated& made, auspex::Session& session,
            auspex::SaveReport* report) {
    shown.insert(shown.end(), made.ids.begin(), made.ids.end());
    // A token that ends the text, and those of a stop text and after it or -n, are taken back.
    const Span<const Token> has = session.history();
    if (!std::equal(has.begin(), has.end(), shown.begin(), shown.end())) {
        const Status s = session.sync(shown).status();
        if (!s.ok()) return s;
    }
    return save_session(kept, verbose, "", session, report);
}

/// What a terminal shows after the text.
void tell_result(const RunOptions& o, const std::string& device, size_t n_prompt, const Generated& made,
                 const auspex::Session& session) {
    if (made.stop_reason == "context" && (o.generate.n >= 0 || made.ids.empty()))
        note("the context is full after " + std::to_string(made.ids.size()) + " tokens; give a larger --ctx");
    if (!stderr_is_terminal() && !o.place.verbose) return;
    char rate[32] = "";
    if (made.decode_tps()) std::snprintf(rate, sizeof rate, ", %.1f/s", *made.decode_tps());
    std::fprintf(stderr, "\n[%zu prompt tokens, %.1f/s; %zu tokens%s; %s; stopped by %s]\n", n_prompt,
                 made.prefill_tps(), made.ids.size(), rate, printable(device).c_str(), made.stop_reason.c_str());
    const std::string drafting = draft_line(session);
    if (!drafting.empty()) std::fprintf(stderr, "[drafting: %s]\n", drafting.c_str());
}

/// --json: the members that every run has.
nlohmann::ordered_json result_json(const std::string& device, size_t n_prompt, const Generated& made) {
    nlohmann::ordered_json line;
    line["text"] = made.text;
    line["ids"] = made.ids;
    line["prompt_tokens"] = n_prompt;
    line["tokens"] = made.ids.size();
    line["prefill_tps"] = made.prefill_tps();
    line["decode_tps"] = made.decode_tps() ? nlohmann::ordered_json(*made.decode_tps()) : nlohmann::ordered_json();
    line["device"] = device;
    line["stop_reason"] = made.stop_reason;
    line["sync"] = sync_json(made.synced);
    return line;
}

Status run(const RunOptions& o, int* exit_code) {
    Status s = check_generate(o.generate);
    if (!s.ok()) return s;
    SessionFlag kept = o.session;
    s = find_text(&kept, find_session);
    if (!s.ok()) return s;
    std::string prompt;
    s = read_prompt(o, kept, &prompt);
    if (!s.ok()) return s;
    Loaded on;
    s = load(o.place, &on);
    if (!s.ok()) return s;

    auspex::Sampling sampling;
    s = choose_sampling(o, on.model, &sampling);
    if (s.ok()) s = find_text(&kept, read_session);
    if (!s.ok()) return s;
    auspex::EncodeOptions encode;
    encode.special = o.special;
    encode.begin = kept.file.n_token == 0;
    std::vector<Token> ids;
    s = on.model.encode(prompt, encode).get(ids);
    if (!s.ok()) return s;
    auspex::SessionOptions options;
    options.run_ahead = kept.path.empty() ? 2 : 0;  // where nothing follows, tokens computed beyond its end are dropped
    options.progress = progress_line();
    int64_t n_min = 0;
    s = choose_draft(o.draft, on.model.info(), o.place.verbose, &options.draft);
    if (s.ok()) s = choose_window(o.window, &options);
    if (s.ok() && !kept.path.empty() && !o.ctx) s = min_context(on.model, options).get(n_min);
    if (!s.ok()) return s;
    s = choose_context(on.model, kept.file.n_token, ids.size(), o.generate.n, o.ctx, n_min, &options.n_context);
    if (!s.ok()) return s;
    Trace trace;
    s = trace.open(o.draft, &options);
    if (!s.ok()) return s;
    options.checkpoint_bytes = 0;  // one prompt, never edited
    auspex::Session session;
    s = auspex::Session::create(on.model, options).get(session);
    if (s.ok()) s = load_session(&kept, o.place.verbose, session);
    if (!s.ok()) return s;
    std::vector<Token> history(session.history().begin(), session.history().end());
    if (!ids.empty()) s = cut_unfinished(on.model, &history);
    if (!s.ok()) return s;
    history.insert(history.end(), ids.begin(), ids.end());
    CostCache costs;
    costs.load(on, options, session);
    if (o.place.verbose || stderr_is_terminal()) tell_windows(session.stats());

    Generated made;
    s = generate(on.model, session, history, {}, sampling, o.generate, !o.json, &made);
    if (!s.ok()) return s;
    costs.save(session);
    const Status traced = trace.close();  // reported last, so that the text is saved first
    auspex::SaveReport saved;
    Status done = kept.path.empty() ? Status() : keep(&kept, o.place.verbose, history, made, session, &saved);
    if (done.ok()) done = traced;
    *exit_code = made.stop_reason == "interrupted" ? kInterrupted : kDone;
    if (!o.json) {
        tell_result(o, on.device.name(), ids.size(), made, session);
        return done;
    }
    nlohmann::ordered_json line = result_json(on.device.name(), ids.size(), made);
    if (options.draft.source != auspex::Draft::off) line["draft"] = draft_report(options.draft, session);
    if (!kept.path.empty())
        line["session"] = {{"tokens_before", kept.file.n_token},
                           {"tokens", session.history().size()},
                           {"written_bytes", saved.written_bytes},
                           {"file_bytes", saved.file_bytes},
                           {"appended", saved.appended}};
    s = print(json_line(line) + "\n");
    return s.ok() ? done : s;
}

}  // namespace

void add_run(CLI::App& app, Chosen& chosen) {
    CLI::App* command = app.add_subcommand("run", "Continue a prompt");
    auto o = std::make_shared<RunOptions>();
    add_text(*command, o->prompt, "Prompt");
    add_place(*command, o->place);
    add_sampling(*command, o->sampling);
    add_constraint(*command, o->constraint);
    add_draft(*command, o->draft);
    add_window(*command, o->window);
    add_generate(*command, o->generate);
    add_session(*command, o->session);
    command->add_option("--ctx", o->ctx, "Rows of context (default: prompt and -n)");
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

#include "generate.h"

#include <algorithm>

#include "platform.h"

namespace cli {

void add_generate(CLI::App& command, GenerateOptions& o) {
    command
        .add_option("-n,--tokens", o.n,
                    "Maximum number of tokens; -1: until the model ends its answer or the context is full")
        ->capture_default_str();
    // One text for each --stop, so that a prompt may follow it.
    command.add_option("--stop", o.stops, "Stop before this text; may be given several times")->allow_extra_args(false);
    CLI::Option* on =
        command.add_flag("--ignore-end", o.ignore_end, "Continue after the model's end token (for measuring)");
    for (const char* constraint : {"--json-schema", "--grammar", "--regex", "--tools"})  // its text ends there
        on->excludes(command.get_option(constraint));
}

Status check_generate(const GenerateOptions& o) {
    if (o.n == 0 || o.n < -1)
        return Status(Code::bad_argument,
                      "-n " + std::to_string(o.n) + ": expected 1 or more, or -1 for as many as the context holds");
    for (const std::string& stop : o.stops) {
        const Status s = check_utf8(stop, "--stop");
        if (!s.ok()) return s;
    }
    return {};
}

Status choose_context(const auspex::Model& model, size_t n_prompt, int64_t n, const int64_t* given, uint32_t* to) {
    const int64_t trained = model.info().n_context, prompt = static_cast<int64_t>(n_prompt);
    if (given && (*given < 1 || *given > INT32_MAX))
        return Status(Code::bad_argument, "--ctx " + std::to_string(*given) +
                                              ": expected 1 or more; the model was trained for " +
                                              std::to_string(trained) + " rows");
    constexpr int64_t kOpenEnd = 4096;  // room for an answer of unknown length
    const int64_t wanted = n < 0 ? prompt + kOpenEnd : prompt + std::min(n, trained);
    const int64_t room = given ? *given : std::min(trained, wanted);
    if (prompt > room)
        return Status(Code::bad_argument, "the prompt has " + std::to_string(prompt) +
                                              " tokens, but the context holds " + std::to_string(room) +
                                              (given ? "; give a larger --ctx or a shorter prompt"
                                                     : ", what the model was trained for; shorten the prompt"));
    *to = static_cast<uint32_t>(room);
    return {};
}

nlohmann::ordered_json sync_json(const auspex::SyncReport& report) {
    return {{"rows_computed", report.rows_computed},     {"rows_reused", report.rows_reused},
            {"diverged_at", report.diverged_at},         {"checkpoint_row", report.checkpoint_row},
            {"reason", sync_reason_name(report.reason)}, {"text", report.text}};
}

Status generate(const auspex::Model& model, auspex::Session& session, const std::vector<Token>& history,
                const std::vector<auspex::Mark>& marks, const auspex::Sampling& sampling,
                const GenerateOptions& options, bool stream, Generated* to) {
    const double start = now();
    Status s;
    const Span<const Token> has = session.history();
    if (!has.empty() && std::equal(has.begin(), has.end(), history.begin(), history.end())) {
        // A loaded session goes on from its last token as if it had never stopped.
        to->synced.rows_reused = to->synced.diverged_at = to->synced.checkpoint_row = has.size();
        to->synced.text = "the history goes on as it is";
    } else {
        s = session.sync(history, marks).get(to->synced);
    }
    clear_progress_line();
    if (!s.ok()) return s;
    const double ready = now();
    to->prefill_s = ready - start;

    auspex::TextStream text(model, options.stops);
    const auto show = [&](const Result<std::string>& piece) {
        if (!piece.ok()) return piece.status();
        to->text += piece.value();
        return stream && !piece.value().empty() ? print(piece.value()) : Status();
    };
    double first = 0;
    size_t n_first = 0, n_sampled = 0;
    while (to->stop_reason.empty()) {
        Span<const Token> tokens;
        s = session.next(sampling).get(tokens);
        if (s.code == Code::context_full) {
            to->stop_reason = "context";
            break;
        }
        if (!s.ok()) return s;
        n_sampled += tokens.size();
        if (n_first == 0) first = now(), n_first = n_sampled;
        for (const Token id : tokens) {
            if (model.is_end(id) && !options.ignore_end) {
                to->stop_reason = "end";
                break;
            }
            to->ids.push_back(id);
            s = show(text.push(id));
            if (!s.ok()) return s;
            if (text.stopped())
                to->stop_reason = "stop";
            else if (options.n >= 0 && static_cast<int64_t>(to->ids.size()) >= options.n)
                to->stop_reason = "length";
            if (!to->stop_reason.empty()) break;
        }
        if (to->stop_reason.empty() && interrupted()) to->stop_reason = "interrupted";
    }
    // The first sample needs no new row, so the rate counts from there; one token alone has only itself.
    const bool several = n_sampled > n_first;
    to->n_step = several ? n_sampled - n_first : n_sampled;
    to->decode_s = now() - (several ? first : ready);
    return show(text.finish());
}

}  // namespace cli

#include "generate.h"

#include <algorithm>

#include "platform.h"

namespace cli {

using auspex::Finish;

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

Status choose_context(const auspex::Model& model, size_t n_before, size_t n_prompt, int64_t n,
                      const std::optional<int64_t>& given, int64_t n_min, uint32_t* to) {
    const int64_t trained = model.info().n_context, prompt = static_cast<int64_t>(n_before + n_prompt);
    if (const Status s = given ? check_ctx(*given, model.info()) : Status(); !s.ok()) return s;
    constexpr int64_t kOpenEnd = 4096;  // room for an answer of unknown length
    const int64_t wanted = n < 0 ? prompt + kOpenEnd : prompt + std::min(n, trained);
    const int64_t room = given ? *given : std::min(trained, std::max(wanted, n_min));
    const std::string what = n_before == 0   ? "the prompt has "
                             : n_prompt == 0 ? "the conversation has "
                                             : "the conversation with the prompt has ";
    if (prompt > room)
        return Status(Code::bad_argument, what + std::to_string(prompt) + " tokens, but the context holds " +
                                              std::to_string(room) +
                                              (!given          ? ", what the model was trained for; shorten the prompt"
                                               : n_prompt == 0 ? "; give a larger --ctx"
                                                               : "; give a larger --ctx or a shorter prompt"));
    *to = static_cast<uint32_t>(room);
    return {};
}

nlohmann::ordered_json sync_json(const auspex::SyncReport& report) {
    return {{"rows_computed", report.rows_computed},     {"rows_reused", report.rows_reused},
            {"diverged_at", report.diverged_at},         {"checkpoint_row", report.checkpoint_row},
            {"reason", sync_reason_name(report.reason)}, {"text", report.text}};
}

static const char* stop_reason(Finish finish) {
    switch (finish) {
        case Finish::end: return "end";
        case Finish::stop: return "stop";
        case Finish::length: return "length";
        case Finish::context: return "context";
        case Finish::none: break;
    }
    return "interrupted";
}

/// Bytes of the character that these tokens end inside; the text of the next tokens goes on from them.
static std::string unfinished(const auspex::Model& model, const std::vector<Token>& ids) {
    constexpr std::ptrdiff_t kMaxTokens = 4;  // the bytes of a character
    const std::vector<Token> end(ids.end() - std::min<std::ptrdiff_t>(ids.end() - ids.begin(), kMaxTokens), ids.end());
    const auspex::DecodeOptions shown{true};
    auspex::TextStream stream(model, {}, shown);
    for (const Token id : end) (void)stream.push(id);
    const size_t n_byte = stream.finish().value().size() / 3;  // each is shown as U+FFFD, which has three
    const std::string bytes = model.decode(end, shown).value();
    return bytes.substr(bytes.size() - n_byte);
}

/// Keeps the tokens within the first `n_byte` bytes of their text, and writes what is missing until there in tokens of
/// its own.
static Status cut_tokens(const auspex::Model& model, size_t n_byte, std::vector<Token>* ids) {
    std::string text, piece;
    Status s = model.decode(*ids).get(text);
    size_t n_kept = 0, from = 0, at = 0;
    for (size_t i = 0; s.ok() && i < ids->size() && at <= n_byte; ++i) {
        s = model.decode(Span<const Token>(ids->data() + i, 1)).get(piece);
        at += piece.size();
        const bool inside_character = at < n_byte && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
        if (at <= n_byte && !inside_character) n_kept = i + 1, from = at;
    }
    std::vector<Token> rest;
    if (s.ok()) s = model.encode(text.substr(from, n_byte - from)).get(rest);
    ids->resize(n_kept);
    ids->insert(ids->end(), rest.begin(), rest.end());
    return s;
}

Status cut_unfinished(const auspex::Model& model, std::vector<Token>* ids) {
    const size_t n_unfinished = unfinished(model, *ids).size();
    if (n_unfinished == 0) return {};
    std::string text;
    const Status s = model.decode(*ids).get(text);
    return s.ok() ? cut_tokens(model, text.size() - n_unfinished, ids) : s;
}

/// A stop string may begin and end inside tokens; neither it nor what follows it belongs to the text.
static Status cut_stop(const auspex::Model& model, const std::vector<Token>& history, const std::string& stop,
                       std::vector<Token>* ids) {
    const std::string before = unfinished(model, history);
    std::string text;
    const Status s = model.decode(*ids).get(text);
    const size_t at = (before + text).find(stop);
    return s.ok() && at != std::string::npos ? cut_tokens(model, std::max(at, before.size()) - before.size(), ids) : s;
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

    auspex::ReplyOptions of_reply;
    of_reply.sampling = sampling;
    of_reply.stops = options.stops;
    of_reply.parse = false;
    of_reply.ignore_end = options.ignore_end;
    if (options.n >= 0) of_reply.max_tokens = static_cast<uint64_t>(options.n);
    auspex::ReplyGenerator reply(model, session, std::move(of_reply));
    const auto show = [&](const Result<std::vector<auspex::ReplyEvent>>& events) {
        if (!events.ok()) return events.status();
        for (const auspex::ReplyEvent& event : events.value()) {
            to->text += event.text;
            const Status shown = stream ? print(event.text) : Status();
            if (!shown.ok()) return shown;
        }
        return Status();
    };
    double first = 0;
    size_t n_first = 0, n_sampled = 0;
    do {
        const auto events = reply.next();
        n_sampled = session.history().size() - history.size();
        if (n_first == 0) first = now(), n_first = n_sampled;
        s = show(events);
        if (!s.ok()) return s;
    } while (reply.ended() == Finish::none && !interrupted());
    // The first sample needs no new row, so the rate counts from there; one token alone has none.
    const bool several = n_sampled > n_first;
    if (several) to->n_step = n_sampled - n_first, to->decode_s = now() - first;
    s = show(reply.finish());
    to->ids.assign(reply.tokens().begin(), reply.tokens().end());
    to->stop_reason = stop_reason(reply.ended());
    return s.ok() && reply.stop() ? cut_stop(model, history, *reply.stop(), &to->ids) : s;
}

}  // namespace cli

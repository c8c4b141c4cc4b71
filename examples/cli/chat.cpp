// cli/chat: a conversation, line by line.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <optional>

#include <nlohmann/json.hpp>

#include "branches.h"
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

struct ChatOptions {
    PlaceOptions place;
    auspex::Sampling sampling;
    ConstraintFlags constraint;
    DraftFlags draft;
    WindowFlags window;
    GenerateOptions generate;
    SessionFlag session;
    std::string system;
    std::optional<int64_t> ctx;
    std::optional<bool> think, preserve_thinking;  ///< where not given, what the template does by itself
    bool json = false;
};

const char kHelp[] =
    "  /help           this list\n"
    "  /reset          forget the conversation\n"
    "  /system TEXT    set the system message and forget the conversation\n"
    "  /think on|off   let the model think before it answers, if its template can\n"
    "  /undo           take back the last message and its answer\n"
    "  /retry          answer the last message again; with --temp above 0, with another seed\n"
    "  /edit           list your messages; /edit N TEXT says TEXT instead of message N and goes on from there\n"
    "  /branches       list the versions that /undo, /retry and /edit left; /branches N goes to version N\n"
    "  /stats          tokens and speed so far\n"
    "  /quit           leave; so does the end of input\n"
    "  A line that ends in \\ continues in the next one. Ctrl-C ends an answer; at the prompt it leaves.\n";

/// The conversation and the session that follows it.
class Chat {
  public:
    explicit Chat(const ChatOptions& o) : o_(o), sampling_(o.sampling), kept_(o.session) {}

    Status open() {
        Status s = check_generate(o_.generate);
        if (!s.ok()) return s;
        s = check_utf8(o_.system, "--system");
        if (s.ok()) s = find_session(&kept_);
        if (s.ok()) s = begin();
        if (s.ok()) s = read_tools(o_.constraint, &request_.tools);
        if (!s.ok()) return s;
        s = load(o_.place, &on_);
        if (!s.ok()) return s;
        auspex::SessionOptions options;
        options.progress = progress_line();
        s = read_session(&kept_);
        if (!s.ok()) return s;
        std::optional<int64_t> ctx = o_.ctx;
        int64_t n_min = 0;
        s = choose_draft(o_.draft, on_.model.info(), o_.place.verbose, &options.draft);
        if (s.ok()) s = choose_window(o_.window, &options);
        if (s.ok() && !kept_.path.empty() && !ctx) s = min_context(on_.model, options).get(n_min);
        if (!s.ok()) return s;
        if (!ctx) {
            const int64_t trained = on_.model.info().n_context, usual = 4096;
            const int64_t answer = std::clamp<int64_t>(o_.generate.n, 128, INT32_MAX);
            ctx = std::min(trained, std::max({usual, n_min, static_cast<int64_t>(kept_.file.n_token) + 4 * answer}));
        }
        s = choose_context(on_.model, kept_.file.n_token, 0, o_.generate.n, ctx, 0, &options.n_context);
        if (!s.ok()) return s;
        n_context_ = options.n_context;
        s = trace_.open(o_.draft, &options);
        if (!s.ok()) return s;
        s = auspex::Session::create(on_.model, options).get(session_);
        if (s.ok()) s = load_session(&kept_, o_.place.verbose, session_);
        if (s.ok()) s = begin();  // with the messages of what was loaded
        if (!s.ok()) return s;
        costs_.load(on_, options, session_);
        if (o_.place.verbose || stderr_is_terminal()) tell_windows(session_.stats());
        return s;
    }

    int talk() {
        const bool terminal = stdin_is_terminal();
        if (terminal) {
            const auspex::ModelInfo& info = on_.model.info();
            const std::string name = printable(info.name.empty() ? on_.path : info.name);
            std::fprintf(stderr, "%s on %s. /help lists the commands.\n", name.c_str(),
                         printable(on_.device.name()).c_str());
        }
        for (;;) {
            std::string line;
            if (!read_line(terminal, &line)) break;
            if (line.empty()) continue;
            bool leave = false;
            const Status s = line[0] == '/' ? command(line, &leave) : turn(line);
            if (interrupted() && !terminal) {  // nobody is at a prompt who could end the rest
                const int kept = report(keep());
                return kept != kDone ? kept : report(Status(Code::cancelled, "interrupted"));
            }
            if (s.code == Code::cancelled && interrupted())
                note("interrupted");
            else if (!s.ok() && (s.code == Code::io_error || s.code == Code::device_lost || !terminal))
                return report(s);
            else
                report(s);
            if (interrupted()) forget_interrupt(), catch_interrupts();
            if (const int kept = report(keep()); kept != kDone && !terminal) return kept;
            if (leave) break;
        }
        costs_.save(session_);
        const Status s = trace_.close();
        if (!s.ok()) return report(s);
        return interrupted() ? kInterrupted : kDone;
    }

  private:
    /// The conversation that this one begins with: that of the file, or an empty one.
    Status begin() {
        forget(o_.system);
        if (kept_.exists) {
            const Status s = read_chat_note(kept_, &request_, &branches_, &n_retry_);
            if (!s.ok()) return s;
            if (!o_.system.empty() && o_.system != system_text())
                return Status(Code::bad_argument, "--system differs from the system message of the conversation in '" +
                                                      kept_.path + "'; leave it out, or begin another file");
            said_ = chat_note(request_, branches_, n_retry_);
        }
        if (o_.think) request_.enable_thinking = o_.think;
        if (o_.preserve_thinking) request_.preserve_thinking = o_.preserve_thinking;
        return {};
    }

    /// Saves the conversation if it has changed.
    Status keep() {
        if (kept_.path.empty()) return {};
        const std::string said = chat_note(request_, branches_, n_retry_);
        if (said == said_) return {};
        const Status s = save_session(&kept_, o_.place.verbose, said, session_);
        if (s.ok()) said_ = said;
        return s;
    }

    bool read_line(bool terminal, std::string* line) {
        for (bool more = false;;) {
            if (terminal) std::fprintf(stderr, more ? ". " : "> "), std::fflush(stderr);
            std::string part;
            if (!cli::read_line(&part)) {
                if (terminal) std::fprintf(stderr, "\n");
                return more && !interrupted();
            }
            if (!part.empty() && part.back() == '\r') part.pop_back();
            more = !part.empty() && part.back() == '\\';
            if (more) part.back() = '\n';
            *line += part;
            if (!more) return true;
        }
    }

    void forget(const std::string& system) {
        request_.messages.clear();
        branches_.clear();
        n_shown_ = 0;
        if (system.empty()) return;
        auspex::ChatMessage m;
        m.role = "system";
        m.content = system;
        request_.messages.push_back(m);
    }

    Status command(const std::string& line, bool* leave) {
        const size_t space = line.find(' ');
        const std::string word = line.substr(0, space),
                          rest = space == std::string::npos ? std::string() : line.substr(space + 1);
        if (word == "/quit" || word == "/exit") {
            *leave = true;
        } else if (word == "/help") {
            std::fprintf(stderr, "%s", kHelp);
        } else if (word == "/reset") {
            forget(system_text());
        } else if (word == "/system") {
            const Status s = check_utf8(rest, "the system message");
            if (!s.ok()) return s;
            forget(rest);
        } else if (word == "/think") {
            if (rest != "on" && rest != "off")
                return Status(Code::bad_argument, "'" + line + "': expected /think on or /think off");
            request_.enable_thinking = rest == "on";
            n_shown_ = 0;
        } else if (word == "/undo" || word == "/retry") {
            return take_back(word == "/retry");
        } else if (word == "/edit" || word == "/branches") {
            return word == "/edit" ? edit(rest) : branches(rest);
        } else if (word == "/stats") {
            const auspex::Stats t = session_.stats();
            size_t n_token = 0;
            const Status s = count_tokens().get(n_token);
            if (!s.ok()) return s;
            std::fprintf(stderr, "%zu of %u tokens; %.1f prompt tokens/s, %.1f tokens/s; this session holds %.1f MiB\n",
                         n_token, n_context_, t.prefill_s > 0 ? double(t.rows_prefilled) / t.prefill_s : 0,
                         t.decode_s > 0 ? double(t.tokens_sampled) / t.decode_s : 0,
                         double(t.memory_bytes) / (1 << 20));
            const std::string drafting = draft_line(session_);
            if (!drafting.empty()) std::fprintf(stderr, "drafting: %s\n", drafting.c_str());
        } else {
            return Status(Code::bad_argument, "'" + line + "' is no command; /help lists them");
        }
        return {};
    }

    std::string system_text() const {
        return !request_.messages.empty() && request_.messages[0].role == "system" ? request_.messages[0].content
                                                                                   : std::string();
    }

    /// Tokens of the conversation as it is: the session keeps what was taken back until another message is answered.
    Result<size_t> count_tokens() const {
        if (request_.messages.size() <= (system_text().empty() ? 0 : 1)) return size_t{0};
        if (is_live_) return session_.history().size();
        auspex::ChatRequest said = request_;
        said.add_generation_prompt = false;
        auspex::ChatPrompt prompt;
        std::vector<Token> ids;
        Status s = on_.model.render(said).get(prompt);
        if (s.ok()) s = on_.model.encode(prompt).get(ids);
        if (!s.ok()) return s;
        return ids.size();
    }

    /// Drops the last message of the user and what followed. retry: and says it again.
    Status take_back(bool retry) {
        const Messages& all = request_.messages;
        size_t at = 0;
        const Status s = find_said(all, std::to_string(n_said(all))).get(at);
        if (!s.ok()) return Status(Code::bad_argument, "nothing was said yet; there is no message to take back");
        const std::string text = all[at].content;
        if (!retry) return cut(at, nullptr);
        const uint64_t seed = sampling_.seed;
        sampling_.seed += ++n_retry_;  // the same seed would give the same answer again
        const Status done = cut(at, &text);
        sampling_.seed = seed;
        return done;
    }

    Status edit(const std::string& rest) {
        if (rest.empty()) return std::fprintf(stderr, "%s", list_said(request_.messages).c_str()), Status();
        const size_t space = rest.find(' ');
        size_t at = 0;
        const Status s = find_said(request_.messages, rest.substr(0, space)).get(at);
        if (!s.ok()) return s;
        if (space == std::string::npos || space + 1 == rest.size())
            return Status(Code::bad_argument, "/edit has no text, expected /edit N TEXT; /undo takes a message back");
        const std::string text = rest.substr(space + 1);
        return cut(at, &text);
    }

    /// Goes back to before message `at`; the conversation as it was stays as a branch. text: to say instead.
    Status cut(size_t at, const std::string* text) {
        const Branches before = branches_;
        const Messages all = request_.messages;
        branches_.leave(all);
        request_.messages.resize(at);
        n_shown_ = 0;
        is_live_ = false;
        const Status s = text ? turn(*text) : Status();
        if (!s.ok()) branches_ = before, request_.messages = all;
        return s;
    }

    Status branches(const std::string& rest) {
        const Status s = rest.empty() ? Status() : branches_.go_to(rest, &request_.messages);
        if (s.ok()) std::fprintf(stderr, "%s", branches_.list(request_.messages).c_str());
        if (!rest.empty()) n_shown_ = 0, is_live_ = false;
        return s;
    }

    /// One message from the user and the answer to it. A turn that fails leaves the conversation as it was.
    Status turn(const std::string& text) {
        Status s = check_utf8(text, "the message");
        if (!s.ok()) return s;
        auspex::ChatMessage said;
        said.role = "user";
        said.content = text;
        request_.messages.push_back(said);
        auspex::ChatMessage answer;
        s = reply(&answer);
        if (s.ok())
            request_.messages.push_back(answer);
        else
            request_.messages.pop_back();
        return s;
    }

    /// How to sample the answer to a prompt.
    Status choose_sampling(const auspex::ChatPrompt& prompt, auspex::Sampling* to) {
        *to = sampling_;
        if (!o_.constraint.any()) return {};
        if (prompt.inside_thinking && request_.tools.empty())
            return Status(Code::bad_argument,
                          "the template lets the model think first, and thinking is no part of a text that a grammar "
                          "describes; give --no-think, or /think off");
        auspex::Constraint& constraint = constraints_[prompt.inside_thinking ? 1 : prompt.closed_thinking ? 2 : 0];
        if (!constraint) {
            auspex::Grammar grammar;
            Status s = read_grammar(o_.constraint, request_.tools, on_.model.info().chat_template, prompt, &grammar);
            if (s.ok()) s = auspex::Constraint::create(on_.model, grammar).get(constraint);
            if (!s.ok()) return s;
        }
        to->constraint = constraint;
        return {};
    }

    Status reply(auspex::ChatMessage* answer) {
        auspex::ChatPrompt prompt;
        Status s = on_.model.render(request_).get(prompt);
        if (!s.ok()) return s;
        std::vector<Token> ids;
        std::vector<auspex::Mark> marks;
        s = on_.model.encode(prompt, &marks).get(ids);
        if (!s.ok()) return s;
        if (ids.size() >= n_context_)
            return Status(Code::context_full, "the conversation has " + std::to_string(ids.size()) +
                                                  " tokens, the context holds " + std::to_string(n_context_) +
                                                  ": /reset, or start with a larger --ctx");
        auspex::Sampling sampling;
        s = choose_sampling(prompt, &sampling);
        if (!s.ok()) return s;
        Generated made;
        const size_t n_before = session_.history().size(), n_shown = n_shown_;
        n_shown_ = 0;  // unless this turn succeeds
        is_live_ = false;
        s = generate(on_.model, session_, ids, marks, sampling, o_.generate, !o_.json, &made);
        if (!s.ok()) return s;
        if (o_.place.verbose)
            std::fprintf(stderr, "\n[%zu rows computed, %zu reused: %s]", made.synced.rows_computed,
                         made.synced.rows_reused, made.synced.text.c_str());
        s = print(o_.json ? answer_line(made, ids.size()) : "\n");
        if (!s.ok()) return s;
        warn_of_template(made.synced, n_shown, n_before);
        n_shown_ = ids.size();
        is_live_ = true;
        if (made.stop_reason == "context") note("the context is full: /reset, or start with a larger --ctx");
        answer->role = "assistant";
        auspex::ChatReply taken;
        s = auspex::parse_reply(made.text, prompt.inside_thinking, request_.tools).get(taken);
        if (!s.ok()) return s;
        thought_ = !taken.thinking.empty();
        if (!taken.tool_calls.empty() && !on_.model.info().chat_template.has_tools()) {
            answer->content = made.text;  // no tool was offered, so this is text that looks like a call
            return {};
        }
        answer->content = taken.content;
        answer->reasoning = taken.thinking;
        answer->has_reasoning = true;  // else the template would look for </think> in the content
        answer->tool_calls = taken.tool_calls;
        return {};
    }

    static std::string answer_line(const Generated& made, size_t n_prompt) {
        nlohmann::ordered_json line;
        line["text"] = made.text;
        line["prompt_tokens"] = n_prompt;
        line["tokens"] = made.ids.size();
        line["stop_reason"] = made.stop_reason;
        line["sync"] = sync_json(made.synced);
        return json_line(line) + "\n";
    }

    /// Says once that the template changes what it showed before, although the user changed nothing: rows of the last
    /// prompt, or the thinking after it, are not in this one. n_shown: tokens of that prompt, n_before: and of its
    /// answer.
    void warn_of_template(const auspex::SyncReport& synced, size_t n_shown, size_t n_before) {
        const auspex::ChatTemplate& shown_by = on_.model.info().chat_template;
        const bool keeps = request_.preserve_thinking.value_or(shown_by.preserve_thinking);
        const bool thought = thought_ && !keeps;
        if (warned_ || n_shown == 0 || synced.diverged_at >= (thought ? n_before : n_shown)) return;
        warned_ = true;
        note("the template wrote earlier turns differently this time: token " + std::to_string(synced.diverged_at) +
             " of the " + std::to_string(n_before) + " known ones changed, and " +
             std::to_string(synced.rows_computed) + " rows were computed; " +
             (shown_by.has_preserve_thinking && !keeps
                  ? "--preserve-thinking keeps the thinking of earlier turns and avoids that"
                  : "this template has no switch that avoids that"));
    }

    const ChatOptions& o_;
    Loaded on_;
    Trace trace_;  // outlives the session, which writes to it
    CostCache costs_;
    auspex::Session session_;
    auspex::Sampling sampling_;
    uint64_t n_retry_ = 0;  ///< /retry so far, also in earlier runs of the session
    auspex::ChatRequest request_;
    Branches branches_;
    SessionFlag kept_;
    std::string said_;  ///< the conversation as it was saved
    /// Of answers, of those that begin inside thinking, and of those behind a closed thinking; made when needed.
    auspex::Constraint constraints_[3];
    uint32_t n_context_ = 0;
    size_t n_shown_ = 0;    ///< tokens of the last prompt if the next one goes on from it; else 0
    bool is_live_ = false;  ///< the session's history is the conversation, and no more
    bool thought_ = false, warned_ = false;
};

}  // namespace

void add_chat(CLI::App& app, Chosen& chosen) {
    CLI::App* command = app.add_subcommand("chat", "Talk with the model; /help lists the commands there");
    auto o = std::make_shared<ChatOptions>();
    o->generate.n = 512;
    add_place(*command, o->place);
    add_sampling(*command, o->sampling);
    add_constraint(*command, o->constraint);
    add_draft(*command, o->draft);
    add_window(*command, o->window);
    add_generate(*command, o->generate);
    command->add_option("--system", o->system, "System message");
    add_session(*command, o->session);
    command->add_option(
        "--ctx", o->ctx,
        "Rows of context (default: 4096, or what a longer -n or --session needs, at most what the model was trained "
        "for)");
    CLI::Option* const think =
        add_switch(*command, "--think", true, o->think, "Ask the template for answers with thinking, if it can");
    add_switch(*command, "--no-think", false, o->think, "Ask the template for answers without thinking")
        ->excludes(think);
    add_switch(*command, "--preserve-thinking", true, o->preserve_thinking,
               "Show the model the thinking of earlier turns, if its template can: fewer rows to compute, longer "
               "prompts");
    command->add_flag("--json", o->json, "Print one line, one JSON object, for each answer instead of its text");
    command->callback([o, &chosen] {
        chosen = [o] {
            Chat chat(*o);
            const Status s = chat.open();
            return s.ok() ? chat.talk() : report(s);
        };
    });
}

}  // namespace cli

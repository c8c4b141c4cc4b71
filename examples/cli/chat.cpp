// cli/chat: a conversation, line by line.
#include <cstdio>
#include <iostream>

#include "commands.h"
#include "common.h"
#include "draft.h"
#include "generate.h"
#include "platform.h"
#include "printable.h"
#include "window.h"

namespace cli {
namespace {

struct ChatOptions {
    PlaceOptions place;
    auspex::Sampling sampling;
    DraftFlags draft;
    WindowFlags window;
    GenerateOptions generate;
    std::string system;
    int64_t ctx = 4096;
    bool no_think = false;
};

const char kHelp[] =
    "  /help           this list\n"
    "  /reset          forget the conversation\n"
    "  /system TEXT    set the system message and forget the conversation\n"
    "  /think on|off   let the model think before it answers, if its template can\n"
    "  /undo           take back the last message and its answer\n"
    "  /retry          answer the last message again\n"
    "  /stats          tokens and speed so far\n"
    "  /quit           leave; so does the end of input\n"
    "  A line that ends in \\ continues in the next one. Ctrl-C ends an answer; at the prompt it leaves.\n";

/// Whether a template of this style can render an assistant's tool calls.
bool has_tool_calls(auspex::ChatStyle style) {
    return style != auspex::ChatStyle::chatml && style != auspex::ChatStyle::chatml_no_think;
}

/// The conversation and the session that follows it.
class Chat {
  public:
    explicit Chat(const ChatOptions& o) : o_(o) {}

    Status open() {
        Status s = check_generate(o_.generate);
        if (!s.ok()) return s;
        s = check_utf8(o_.system, "--system");
        if (!s.ok()) return s;
        s = load(o_.place, &on_);
        if (!s.ok()) return s;
        auspex::SessionOptions options;
        options.progress = progress_line();
        s = choose_context(on_.model, 0, o_.generate.n, &o_.ctx, &options.n_context);
        if (!s.ok()) return s;
        n_context_ = options.n_context;
        s = choose_draft(o_.draft, on_.model.info(), o_.place.verbose, &options.draft);
        if (s.ok()) s = choose_window(o_.window, &options);
        if (s.ok()) s = trace_.open(o_.draft, &options);
        if (!s.ok()) return s;
        request_.enable_thinking = !o_.no_think;
        forget(o_.system);
        s = auspex::Session::create(on_.model, options).get(session_);
        if (s.ok()) costs_.load(on_, options, session_);
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
            if (s.code == Code::cancelled && interrupted())
                note("interrupted");
            else if (!s.ok() && (s.code == Code::io_error || s.code == Code::device_lost || !terminal))
                return report(s);
            else
                report(s);
            if (interrupted()) forget_interrupt(), catch_interrupts();
            if (leave) break;
        }
        costs_.save(session_);
        const Status s = trace_.close();
        if (!s.ok()) return report(s);
        return interrupted() ? kInterrupted : kDone;
    }

  private:
    bool read_line(bool terminal, std::string* line) {
        for (bool more = false;;) {
            if (terminal) std::fprintf(stderr, more ? ". " : "> "), std::fflush(stderr);
            std::string part;
            if (!std::getline(std::cin, part)) {
                if (terminal) std::fprintf(stderr, "\n");
                return more;
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
        } else if (word == "/think" && (rest == "on" || rest == "off")) {
            request_.enable_thinking = rest == "on";
        } else if (word == "/undo" || word == "/retry") {
            return take_back(word == "/retry");
        } else if (word == "/stats") {
            const auspex::Stats t = session_.stats();
            std::fprintf(
                stderr, "%zu of %u tokens; %.1f prompt tokens/s, %.1f tokens/s; this session holds %.1f MiB\n",
                session_.history().size(), n_context_, t.prefill_s > 0 ? double(t.rows_prefilled) / t.prefill_s : 0,
                t.decode_s > 0 ? double(t.tokens_sampled) / t.decode_s : 0, double(t.memory_bytes) / (1 << 20));
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

    /// Drops the last message of the user and what followed. retry: and says it again.
    Status take_back(bool retry) {
        std::vector<auspex::ChatMessage>& all = request_.messages;
        size_t n = all.size();
        while (n > 0 && all[n - 1].role != "user") --n;
        if (n == 0) return Status(Code::bad_argument, "nothing was said yet; there is no message to take back");
        const std::string text = all[n - 1].content;
        all.resize(n - 1);
        return retry ? turn(text) : Status();
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
        Generated made;
        s = generate(on_.model, session_, ids, marks, o_.sampling, o_.generate, true, &made);
        if (!s.ok()) return s;
        if (o_.place.verbose)
            std::fprintf(stderr, "\n[%zu rows computed, %zu reused: %s]", made.synced.rows_computed,
                         made.synced.rows_reused, made.synced.text.c_str());
        s = print("\n");
        if (!s.ok()) return s;
        if (made.stop_reason == "context") note("the context is full: /reset, or start with a larger --ctx");
        answer->role = "assistant";
        auspex::ChatReply taken;
        s = auspex::parse_reply(made.text, prompt.inside_thinking).get(taken);
        if (!s.ok()) return s;
        if (!taken.tool_calls.empty() && !has_tool_calls(on_.model.info().chat_style)) {
            answer->content = made.text;  // no tool was offered, so this is text that looks like a call
            return {};
        }
        answer->content = taken.content;
        answer->reasoning = taken.thinking;
        answer->has_reasoning = !taken.thinking.empty();
        answer->tool_calls = taken.tool_calls;
        return {};
    }

    const ChatOptions& o_;
    Loaded on_;
    Trace trace_;  // outlives the session, which writes to it
    CostCache costs_;
    auspex::Session session_;
    auspex::ChatRequest request_;
    uint32_t n_context_ = 0;
};

}  // namespace

void add_chat(CLI::App& app, Chosen& chosen) {
    CLI::App* command = app.add_subcommand("chat", "Talk with the model; /help lists the commands there");
    auto o = std::make_shared<ChatOptions>();
    o->generate.n = 512;
    add_place(*command, o->place);
    add_sampling(*command, o->sampling);
    add_draft(*command, o->draft);
    add_window(*command, o->window);
    add_generate(*command, o->generate);
    command->add_option("--system", o->system, "System message");
    command->add_option("--ctx", o->ctx, "Rows of context")->capture_default_str();
    command->add_flag("--no-think", o->no_think, "Ask the template for answers without thinking");
    command->callback([o, &chosen] {
        chosen = [o] {
            Chat chat(*o);
            const Status s = chat.open();
            return s.ok() ? chat.talk() : report(s);
        };
    });
}

}  // namespace cli

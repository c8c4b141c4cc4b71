#include "generation.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

namespace server {

using auspex::ReplyEvent;
using auspex::Session;
using auspex::Token;

namespace {

constexpr auto kGather = std::chrono::milliseconds(16);  // a frame of a screen

/// Whether one of the two begins with the other.
bool agree(std::string_view a, std::string_view b) {
    const size_t n = std::min(a.size(), b.size());
    return a.substr(0, n) == b.substr(0, n);
}

/// True if `text`, which begins with '<', may still become a call's opening tags or its closing tag.
bool may_become_call(std::string_view text) {
    constexpr std::string_view kCall = "<tool_call>", kFunction = "<function=", kCallEnd = "</tool_call>";
    if (text.size() < kCallEnd.size() && agree(text, kCallEnd)) return true;
    if (agree(text, kCall)) {
        const size_t next = text.find_first_not_of(" \t\r\n", kCall.size());
        if (next == std::string_view::npos || text[next] == '{') return true;
        text.remove_prefix(next);
    }
    return agree(text, kFunction) && text.find_first_of("><\n", kFunction.size()) == std::string_view::npos;
}

/// Where an unfinished call at the end of the text begins; the text's size if there is none.
size_t before_call(const std::string& text) {
    size_t at = text.find('<');
    while (at != std::string::npos && !may_become_call(std::string_view(text).substr(at))) at = text.find('<', at + 1);
    return std::min(at, text.size());
}

}  // namespace

uint64_t Usage::n_drafted() const { return std::accumulate(drafted, drafted + auspex::kMaxDraft, uint64_t{0}); }
uint64_t Usage::n_accepted() const { return std::accumulate(accepted, accepted + auspex::kMaxDraft, uint64_t{0}); }

// --------------------------------------------------------------------------------------------- scripted replies

cli::Result<Script> Script::load(const std::string& path) {
    std::string bytes;
    Status s = cli::read_document(path).get(bytes);
    if (!s.ok()) return s;
    Json all;
    const Status wrong(cli::Code::bad_argument,
                       "'" + path + R"(' is no script, expected a list of {"when": TEXT, "reply": TEXT})");
    if (!parse_json(bytes, &all) || !all.is_array()) return wrong;
    Script script;
    for (const Json& one : all) {
        Failure failure;
        Entry entry;
        if (!one.is_object()) return wrong;
        const Fields fields(one, "", &failure);
        if (!fields.text("when", &entry.when) || !fields.text("reply", &entry.reply)) return wrong;
        fields.boolean("lose_device", &entry.lose_device);
        script.entries_.push_back(std::move(entry));
    }
    return script;
}

const Script::Entry* Script::find(const std::string& prompt) const {
    const Entry* found = nullptr;
    size_t last = 0;
    for (const Entry& entry : entries_) {
        const size_t at = prompt.rfind(entry.when);
        if (at == std::string::npos || (found && at < last)) continue;
        found = &entry;
        last = at;
    }
    return found;
}

// --------------------------------------------------------------------------------------------- one choice

/// One reply to the prompt.
class Generation::Reply {
  public:
    Reply(Generation& to, uint32_t i_choice, Worker& worker)
        : to_(to),
          request_(to.request_),
          i_choice_(i_choice),
          worker_(worker),
          model_(worker.model),
          session_(worker.session) {}

    /// Goes on until it is complete, or its turn is over.
    Status run(bool* complete) {
        *complete = true;
        session_.clear_stats();
        Status s = reply_ ? resume() : read_prompt(complete);
        for (bool stepped = false; s.ok() && *complete && goes_on(); stepped = true) {
            *complete = !stepped || !may_pause() || !worker_.is_turn_over();
            s = *complete ? step() : pause();
        }
        if (s.ok() && *complete) s = show_rest();
        if (reply_) count_use();
        before_ = usage_;
        paused_at_ = cli::now();
        if (s.ok() && *complete) push(GenerationEvent::Kind::end);
        return s;
    }

    const Usage& usage() const { return usage_; }

  private:
    auspex::ReplyOptions options() const {
        auspex::ReplyOptions o;
        o.sampling = request_.sampling;
        o.sampling.seed += i_choice_;
        o.free_thinking = request_.constrain_answer;
        if (request_.n_max >= 0) o.max_tokens = static_cast<uint64_t>(request_.n_max);
        if (request_.thinking_budget >= 0) o.max_thinking_tokens = static_cast<uint64_t>(request_.thinking_budget);
        o.stops = request_.stops;
        o.inside_thinking = request_.inside_thinking;
        o.tools = request_.tools;
        o.parse = request_.is_chat;
        o.special = request_.special;
        o.one_by_one = request_.n_top_logprob >= 0;
        return o;
    }

    bool goes_on() const { return reply_.ended() == Finish::none && !(request_.scripted && n_said_ == script_.size()); }

    /// A prompt whose turn is over keeps the rows that it has.
    Status read_prompt(bool* complete) {
        const double start = cli::now();
        auspex::SyncReport synced;
        bool stopped = false;
        // More rows computed than the prompt has: they are lost between turns, so it is read to its end.
        const bool may_stop = n_computed_ < request_.ids.size();
        Status s = worker_.call([&] { return worker_.read_prompt(request_, &synced, may_stop ? &stopped : nullptr); });
        usage_.prompt_s += cli::now() - start;
        *complete = !stopped || s.code != cli::Code::cancelled || to_.cancelled;
        if (!s.ok()) n_computed_ += session_.stats().rows_prefilled;
        if (!*complete) return {};
        if (!s.ok()) {  // the client left, for example: what was computed until then counts
            usage_.n_prompt = n_computed_;
            usage_.reuse = "not to the end of the prompt";
            return s;
        }
        usage_.n_prompt = request_.ids.size();
        usage_.n_cached = std::min(synced.rows_reused, request_.ids.size());
        usage_.n_cached -= std::min(usage_.n_cached, n_computed_);
        usage_.reuse = synced.text;
        push(GenerationEvent::Kind::prompt);
        start_ = cli::now();
        reply_ = auspex::ReplyGenerator(model_, session_, options());
        if (!reply_) return Status(cli::Code::out_of_memory, "no memory for a reply");
        return request_.scripted ? model_.encode(request_.scripted->reply, {true}).get(script_) : Status();
    }

    bool may_pause() const { return usage_.n_prompt + usage_.n_predicted < worker_.max_rows; }

    Status pause() {
        std::vector<ReplyEvent> parts;
        n_replaced_ = worker_.n_replaced;
        const Status s = worker_.call([&] { return reply_.pause().get(parts); });
        if (s.ok()) show_step(std::move(parts));
        return s;
    }

    /// Goes on after others had their turns, whose time does not count.
    Status resume() {
        const double start = cli::now();
        start_ += start - paused_at_;
        auspex::SyncReport synced;
        const Status s = worker_.call([&] { return reply_.resume().get(synced); });
        worker_.begin_turn(cli::now() - start);
        const bool lost = synced.rows_computed > 1 && n_replaced_ == worker_.n_replaced;
        if (lost) worker_.max_rows = std::min(worker_.max_rows, session_.history().size());
        return s;
    }

    /// One pass of the model, or one token of the script.
    Status step() {
        const size_t n_before = reply_.tokens().size();
        Status s = read_logits();
        if (s.ok() && request_.scripted && request_.scripted->lose_device && n_said_ == script_.size() / 2)
            s = worker_.recover();
        if (!s.ok()) return s;
        std::vector<ReplyEvent> parts;
        s = worker_.call(
            [&] { return (request_.scripted ? reply_.push(script_[n_said_]) : reply_.next()).get(parts); });
        if (!s.ok()) return s;
        if (request_.scripted) ++n_said_;
        const auspex::Span<const Token> tokens = reply_.tokens();
        // The token that opens thinking is not part of the answer, even if the budget closes the thinking at once.
        const bool in_answer = !reply_.in_thinking() && tokens.size() == n_before + 1;
        if (in_answer) s = find_logprob(tokens[n_before]);
        if (s.ok()) show_step(std::move(parts));
        return s;
    }

    void show_step(std::vector<ReplyEvent> parts) {
        usage_.n_predicted = reply_.tokens().size() + (reply_.ended() == Finish::end ? 1 : 0);
        to_.n_token_ = usage_.n_predicted;
        tell(std::move(parts));
    }

    /// Keeps what the next token is sampled from. Thinking is no part of the answer.
    Status read_logits() {
        logits_.clear();
        if (request_.n_top_logprob < 0 || reply_.in_thinking()) return {};
        auspex::Span<const float> logits;
        const Status s = worker_.call([&] { return reply_.logits().get(logits); });
        if (s.ok()) logits_.assign(logits.begin(), logits.end());
        return s;
    }

    Status find_logprob(Token id) {
        if (logits_.empty()) return {};
        TokenLogprob found;
        const Status s = server::find_logprob(model_, logits_, id, request_.n_top_logprob).get(found);
        if (s.ok()) logprobs_.push_back(std::move(found));
        return s;
    }

    /// What was held back, as no more follows. Where the reply was cut this may be the beginning of a call, which is no
    /// answer.
    Status show_rest() {
        std::vector<ReplyEvent> parts;
        const Status s = worker_.call([&] { return reply_.finish().get(parts); });
        if (!s.ok()) return s;
        finish_ = reply_.ended() == Finish::context ? Finish::length : reply_.ended();
        tell(finish_ == Finish::length && !request_.tools.empty() ? without_call(std::move(parts)) : std::move(parts));
        return {};
    }

    /// Removes an unfinished call from the end of the text. A stop string may have split that text into several parts.
    static std::vector<ReplyEvent> without_call(std::vector<ReplyEvent> parts) {
        std::vector<ReplyEvent> joined;
        for (ReplyEvent& part : parts) {
            const bool is_text = part.kind == ReplyEvent::Kind::text;
            if (is_text && !joined.empty() && joined.back().kind == part.kind)
                joined.back().text += part.text;
            else
                joined.push_back(std::move(part));
        }
        if (!joined.empty() && joined.back().kind == ReplyEvent::Kind::text)
            joined.back().text.resize(before_call(joined.back().text));
        return joined;
    }

    /// Passes the parts of the reply on. What follows a call that the reply was cut in is its text again, and no
    /// answer.
    void tell(std::vector<ReplyEvent> parts) {
        std::vector<ReplyEvent> told;
        for (ReplyEvent& part : parts) {
            if (is_cut_ || (part.kind == ReplyEvent::Kind::text && part.text.empty())) continue;
            is_cut_ =
                part.kind == ReplyEvent::Kind::call_dropped && (request_.streams_calls() || finish_ == Finish::length);
            told.push_back(std::move(part));
        }
        if (told.empty()) return;
        if (request_.live_usage) count_use();
        push(GenerationEvent::Kind::text, std::move(told));
    }

    void count_use() {
        usage_.n_thinking = reply_.n_thinking_token();
        usage_.predicted_s = cli::now() - start_;
        const auspex::Stats stats = session_.stats();
        usage_.n_cycle = std::accumulate(std::begin(stats.cycles), std::end(stats.cycles), before_.n_cycle);
        for (uint32_t i = 0; i < auspex::kMaxDraft; ++i) {
            usage_.drafted[i] = before_.drafted[i] + stats.drafted[i];
            usage_.accepted[i] = before_.accepted[i] + stats.accepted[i];
        }
    }

    void push(GenerationEvent::Kind kind, std::vector<ReplyEvent> parts = {}) {
        GenerationEvent e;
        e.kind = kind;
        e.i_choice = i_choice_;
        e.parts = std::move(parts);
        e.finish = finish_;
        if (reply_.stop()) e.stop = *reply_.stop();
        e.logprobs = std::exchange(logprobs_, {});
        if (kind != GenerationEvent::Kind::text || request_.live_usage) e.usage = usage_;
        to_.push(std::move(e));
    }

    Generation& to_;
    const GenerationRequest& request_;
    const uint32_t i_choice_;
    Worker& worker_;
    const auspex::Model& model_;
    Session& session_;
    auspex::ReplyGenerator reply_;
    bool is_cut_ = false;    ///< the reply ended in a call, whose beginning is passed on
    Usage usage_, before_;   ///< before_: until this turn
    size_t n_computed_ = 0;  ///< rows of the prompt, in earlier turns
    double start_ = 0;       ///< of the reply, less the turns of others
    double paused_at_ = 0;
    uint64_t n_replaced_ = 0;  ///< the worker's, when this was paused
    Finish finish_ = Finish::end;
    std::vector<Token> script_;
    size_t n_said_ = 0;                   ///< of it
    std::vector<float> logits_;           ///< those of the next token, or empty
    std::vector<TokenLogprob> logprobs_;  ///< not pushed yet
};

// --------------------------------------------------------------------------------------------- all of them

Generation::Generation(GenerationRequest request) : request_(std::move(request)) {}
Generation::~Generation() = default;

bool Generation::run(Worker& worker) {
    while (usages_.size() < request_.n_choice) {
        if (!reply_) reply_ = std::make_unique<Reply>(*this, static_cast<uint32_t>(usages_.size()), worker);
        bool complete = true;
        const Status s = reply_->run(&complete);
        if (!complete) return false;
        usages_.push_back(reply_->usage());
        reply_.reset();
        if (!s.ok()) {
            fail(from_status(s));
            return true;
        }
        if (usages_.size() < request_.n_choice && worker.is_turn_over()) return false;
    }
    GenerationEvent done;
    done.kind = GenerationEvent::Kind::done;
    push(std::move(done));
    return true;
}

void Generation::fail(const Failure& failure) {
    GenerationEvent e;
    e.kind = GenerationEvent::Kind::failed;
    e.failure = failure;
    push(std::move(e));
}

void Generation::push(GenerationEvent event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_urgent_ = is_urgent_ || event.kind != GenerationEvent::Kind::text;
    events_.push_back(std::move(event));
    if (is_awaited_ || is_urgent_) changed_.notify_all();
}

std::deque<GenerationEvent> Generation::wait(std::chrono::milliseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, last_text_ + kGather, [this] { return is_urgent_; });
    is_awaited_ = true;
    changed_.wait_for(lock, timeout, [this] { return !events_.empty(); });
    is_awaited_ = is_urgent_ = false;
    if (!events_.empty() && events_.back().kind == GenerationEvent::Kind::text)
        last_text_ = std::chrono::steady_clock::now();
    return std::exchange(events_, {});
}

}  // namespace server

#include "generation.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace server {

using auspex::ReplyEvent;
using auspex::Session;
using auspex::Token;

namespace {

constexpr auto kGather = std::chrono::milliseconds(16);  // a frame of a screen

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
          session_(worker.session),
          ids_(request_.ids),
          text_(worker.model, {}, decoding(request_)),
          parser_(request_.inside_thinking, request_.tools),
          stops_(request_.stops) {
        sampling_ = request_.sampling;
        sampling_.seed += i_choice;
        sampling_.constrained_from = ids_.size();
        thinking_ = request_.inside_thinking;
        may_open_ = request_.is_chat && !thinking_;
        if (request_.constrain_answer && thinking_) std::swap(after_thinking_, sampling_.constraint);
    }

    Status run() {
        session_.clear_stats();
        const double start = cli::now();
        auspex::SyncReport synced;
        Status s = worker_.call([&] { return session_.sync(ids_, request_.marks).get(synced); });
        usage_.prompt_s = cli::now() - start;
        if (!s.ok()) {  // the client left, for example: what was computed until then counts
            usage_.n_prompt = session_.stats().rows_prefilled;
            usage_.reuse = "not to the end of the prompt";
            return s;
        }
        usage_.n_prompt = ids_.size();
        usage_.n_cached = std::min(synced.rows_reused, ids_.size());
        usage_.reuse = synced.text;
        push(GenerationEvent::Kind::prompt);
        start_ = cli::now();
        if (request_.scripted) s = model_.encode(request_.scripted->reply, {true}).get(script_);
        bool complete = request_.n_max == 0;
        if (complete) finish_ = Finish::length;
        while (s.ok() && !complete) s = step(&complete);
        if (s.code == cli::Code::context_full) s = Status(), finish_ = Finish::length;
        if (s.ok()) s = show_rest();
        count_use();
        if (s.ok()) push(GenerationEvent::Kind::end);
        return s;
    }

    const Usage& usage() const { return usage_; }

  private:
    static auspex::DecodeOptions decoding(const GenerationRequest& r) {
        auspex::DecodeOptions o;
        o.special = r.special;
        return o;
    }

    /// One pass of the model, or one token of the script.
    Status step(bool* complete) {
        if (is_over_budget()) return close_thinking(kCloseThinking, complete);
        Status s = read_logits();
        if (!s.ok()) return s;
        if (request_.scripted) return scripted_step(complete);
        auspex::Span<const Token> tokens;
        s = worker_.call([&] { return session_.next(sampling_).get(tokens); });
        if (!s.ok()) return s;
        return take(std::vector<Token>(tokens.begin(), tokens.end()), false, complete);
    }

    /// Thinking is no part of the answer.
    bool wants_logits() const { return request_.n_top_logprob >= 0 && !thinking_; }

    /// Keeps what the next token is sampled from.
    Status read_logits() {
        logits_.clear();
        if (!wants_logits()) return {};
        // What was drafted beyond the last token is taken back.
        Status s = session_.history().size() == ids_.size() ? Status() : sync(ids_);
        auspex::Span<const float> logits;
        if (s.ok()) s = worker_.call([&] { return session_.logits().get(logits); });
        if (s.ok()) logits_.assign(logits.begin(), logits.end());
        return s;
    }

    Status sync(const std::vector<Token>& history) {
        return worker_.call([&] { return session_.sync(history).status(); });
    }

    Status find_logprob(Token id) {
        if (logits_.empty()) return {};
        TokenLogprob found;
        const Status s = server::find_logprob(model_, logits_, id, request_.n_top_logprob).get(found);
        logits_.clear();
        if (s.ok()) logprobs_.push_back(std::move(found));
        return s;
    }

    Status scripted_step(bool* complete) {
        if (n_said_ == script_.size()) {
            *complete = true;
            return {};
        }
        if (request_.scripted->lose_device && n_said_ == script_.size() / 2) {
            const Status s = worker_.recover();
            if (!s.ok()) return s;
        }
        return force({script_[n_said_++]}, complete);
    }

    bool is_over_budget() const {
        const int64_t budget = request_.thinking_budget;
        return thinking_ && budget >= 0 && static_cast<int64_t>(usage_.n_predicted) >= budget;
    }

    /// Ends the thinking with this text. What the answer is constrained by begins after it.
    Status close_thinking(const std::string& text, bool* complete) {
        std::vector<Token> ids;
        Status s = model_.encode(text, {true}).get(ids);
        thinking_ = false;
        if (s.ok()) s = force(ids, complete);
        if (!after_thinking_) return s;
        sampling_.constraint = std::move(after_thinking_);
        sampling_.constrained_from = ids_.size();
        return s;
    }

    /// If the thinking ends within this token: the token's text up to there and the blank line that follows, with which
    /// a constrained answer begins. Tokens after it were sampled without the constraint and are taken back.
    Status find_close(Token id, std::string* text) {
        std::string bytes;
        const Status s = model_.decode(auspex::Span<const Token>(&id, 1), {true}).get(bytes);
        if (model_.is_end(id)) *text = kCloseThinking;
        if (!s.ok() || !text->empty()) return s;
        const std::string tag = "</think>";
        const size_t n_before = thought_.size();
        thought_ += bytes;
        const size_t at = thought_.find(tag);
        if (at != std::string::npos) *text = thought_.substr(n_before, at + tag.size() - n_before) + "\n\n";
        if (thought_.size() > tag.size()) thought_.erase(0, thought_.size() - tag.size());
        return s;
    }

    /// Where the prompt has not opened the thinking, the model may do so as the first thing it writes.
    void find_opening() {
        if (!may_open_ || !parser_.in_thinking()) return;
        thinking_ = true;
        may_open_ = false;
    }

    /// Goes on with these tokens, whatever the model would sample.
    Status force(const std::vector<Token>& tokens, bool* complete) {
        std::vector<Token> longer = ids_;
        longer.insert(longer.end(), tokens.begin(), tokens.end());
        const Status s = sync(longer);
        // More tokens than the context holds are a bad argument there.
        if (s.code == cli::Code::bad_argument) return Status(cli::Code::context_full, s.text);
        return s.ok() ? take(tokens, true, complete) : s;
    }

    Status take(const std::vector<Token>& tokens, bool forced, bool* complete) {
        for (const Token id : tokens) {
            if (!forced && wants_logits() && logits_.empty()) return {};  // drafted: the next step reads its logits
            if (is_over_budget())
                return {};  // the next step closes the thinking; what was drafted beyond is taken back
            if (thinking_) {
                std::string close;
                const Status s = find_close(id, &close);
                if (!s.ok()) return s;
                thinking_ = close.empty();
                if (!thinking_ && after_thinking_) return close_thinking(close, complete);
            }
            ++usage_.n_predicted;
            ids_.push_back(id);
            if (model_.is_end(id)) {
                *complete = true;
                return {};
            }
            Status s = find_logprob(id);
            if (s.ok()) s = show(text_.push(id));
            if (!s.ok()) return s;
            find_opening();
            const bool full = request_.n_max >= 0 && static_cast<int64_t>(usage_.n_predicted) >= request_.n_max;
            if (full) finish_ = Finish::length;
            *complete = full || stops_.found();
            if (*complete) return {};
        }
        return {};
    }

    static ReplyEvent text_part(const std::string& text) {
        ReplyEvent part;
        part.text = text;
        return part;
    }

    Status show(const cli::Result<std::string>& piece) {
        if (!piece.ok()) return piece.status();
        to_.n_token_ = usage_.n_predicted;
        if (piece.value().empty()) return {};
        if (request_.is_chat) return tell(parser_.push(piece.value()));
        return tell(std::vector<ReplyEvent>{text_part(piece.value())});
    }

    /// What was held back, as no more follows.
    Status show_rest() {
        Status s = show(text_.finish());
        if (s.ok() && request_.is_chat) s = tell(finish_parser());
        std::string held;
        if (s.ok()) s = stops_.finish().get(held);
        if (!held.empty()) push(GenerationEvent::Kind::text, {text_part(held)});
        if (stops_.found()) {
            finish_ = Finish::stop_string;
            stop_ = *stops_.found();
        }
        return s;
    }

    /// What the parser held back. Where the reply was cut this may be the beginning of a call, which is no answer.
    cli::Result<std::vector<ReplyEvent>> finish_parser() {
        std::vector<ReplyEvent> parts;
        const Status s = parser_.finish().get(parts);
        if (!s.ok()) return s;
        for (ReplyEvent& part : parts)
            if (part.kind == ReplyEvent::Kind::text && finish_ == Finish::length && request_.streams_calls())
                part.text.resize(std::min(part.text.find('<'), part.text.size()));
        return parts;
    }

    /// Passes the parts of the reply on, up to a stop string in its text. No stop string spans a call.
    Status tell(cli::Result<std::vector<ReplyEvent>> parsed) {
        if (!parsed.ok()) return parsed.status();
        std::vector<ReplyEvent> parts;
        for (ReplyEvent& part : parsed.value()) {
            if (stops_.found()) break;
            const bool is_text = part.kind == ReplyEvent::Kind::text;
            // The reply ended in a call whose beginning was told: what of it follows as text is no answer.
            if (is_text && is_cut_) continue;
            std::string text;
            const Status s = (is_text ? stops_.push(part.text) : stops_.finish()).get(text);
            if (!s.ok()) return s;
            if (!text.empty()) parts.push_back(text_part(text));
            is_cut_ = is_cut_ || (part.kind == ReplyEvent::Kind::call_dropped && request_.streams_calls());
            if (!is_text) parts.push_back(std::move(part));
        }
        if (parts.empty()) return {};
        if (request_.live_usage) count_use();
        push(GenerationEvent::Kind::text, std::move(parts));
        return {};
    }

    void count_use() {
        usage_.predicted_s = cli::now() - start_;
        const auspex::Stats stats = session_.stats();
        usage_.n_cycle = std::accumulate(std::begin(stats.cycles), std::end(stats.cycles), uint64_t{0});
        std::copy(stats.drafted, stats.drafted + auspex::kMaxDraft, usage_.drafted);
        std::copy(stats.accepted, stats.accepted + auspex::kMaxDraft, usage_.accepted);
    }

    void push(GenerationEvent::Kind kind, std::vector<ReplyEvent> parts = {}) {
        GenerationEvent e;
        e.kind = kind;
        e.i_choice = i_choice_;
        e.parts = std::move(parts);
        e.n_token = usage_.n_predicted;
        e.finish = finish_;
        e.stop = stop_;
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
    std::vector<Token> ids_;  ///< prompt and reply
    auspex::TextStream text_;
    auspex::ReplyStream parser_;  ///< of a chat
    auspex::StopFilter stops_;
    bool is_cut_ = false;  ///< the reply ended in a call that was passed on
    auspex::Sampling sampling_;
    Usage usage_;
    double start_ = 0;  ///< of the reply
    Finish finish_ = Finish::end;
    std::string stop_;
    bool thinking_ = false;
    bool may_open_ = false;              ///< the model may begin with it
    std::string thought_;                ///< the end of the thinking so far
    auspex::Constraint after_thinking_;  ///< waits for its end
    std::vector<Token> script_;
    size_t n_said_ = 0;
    std::vector<float> logits_;           ///< those of the next token, or empty
    std::vector<TokenLogprob> logprobs_;  ///< not pushed yet
};

// --------------------------------------------------------------------------------------------- all of them

void Generation::run(Worker& worker) {
    for (uint32_t i = 0; i < request_.n_choice; ++i) {
        Reply reply(*this, i, worker);
        const Status s = reply.run();
        usages_.push_back(reply.usage());
        if (!s.ok()) return fail(from_status(s));
    }
    GenerationEvent done;
    done.kind = GenerationEvent::Kind::done;
    push(std::move(done));
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

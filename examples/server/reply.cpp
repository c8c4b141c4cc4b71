#include "reply.h"

#include <optional>

namespace server {

namespace {

constexpr int kPingSeconds = 15;  // proxies end connections that are silent for longer

/// Ends the generation when the client leaves, however its thread goes on.
class Running {
  public:
    Running(Engine& engine, std::shared_ptr<Generation> task) : engine_(engine), task_(std::move(task)) {}
    ~Running() {
        if (!complete_) engine_.cancel(task_);
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
    /// Waits a little for events, and takes all that came.
    std::deque<GenerationEvent> wait() {
        std::deque<GenerationEvent> events = task_->wait(kPoll);
        if (events.empty()) return events;
        const GenerationEvent::Kind kind = events.back().kind;
        complete_ = kind == GenerationEvent::Kind::done || kind == GenerationEvent::Kind::failed;
        return events;
    }
    bool complete() const { return complete_; }
    const GenerationRequest& request() const { return task_->request(); }

  private:
    Engine& engine_;
    const std::shared_ptr<Generation> task_;
    bool complete_ = false;
};

/// Collects the choices and tells the protocol.
class Reader {
  public:
    Reader(const GenerationRequest& request, Protocol& protocol) : request_(request), protocol_(protocol) {}

    /// Failure: that of an event. Text that came together is told in one piece.
    Failure take(const std::deque<GenerationEvent>& events) {
        Failure failure;
        for (const GenerationEvent& e : events) {
            failure = take(e);
            if (!failure.ok()) break;
        }
        tell_pending();
        return failure;
    }

    std::vector<Choice> choices;

  private:
    Failure take(const GenerationEvent& e) {
        using Step = GenerationEvent::Kind;
        switch (e.kind) {
            case Step::failed: return e.failure;
            case Step::done: protocol_.end(choices); return {};
            case Step::prompt:
                choices.emplace_back();
                choices.back().usage = e.usage;
                if (e.i_choice == 0) protocol_.begin(e.usage);
                return {};
            case Step::text:
                tell_logprobs(e);
                if (request_.live_usage) protocol_.live_usage(e.usage);
                for (const auspex::ReplyEvent& one : e.parts) read(one, e);
                return {};
            case Step::end: tell_logprobs(e); break;
        }
        tell_pending();
        choices.back().finish = e.finish;
        choices.back().stop = e.stop;
        choices.back().usage = e.usage;
        protocol_.end_choice(e.i_choice, choices.back());
        return {};
    }

    void tell_logprobs(const GenerationEvent& e) {
        std::vector<TokenLogprob>& all = choices.back().logprobs;
        all.insert(all.end(), e.logprobs.begin(), e.logprobs.end());
        protocol_.logprobs(e.i_choice, e.logprobs);
    }

    using Kind = auspex::ReplyEvent::Kind;

    void read(const auspex::ReplyEvent& one, const GenerationEvent& e) {
        const bool is_text = one.kind == Kind::reasoning || one.kind == Kind::text;
        if (is_text || request_.streams_calls())
            pass(one, e);
        else
            hold(one, e);
    }

    /// A call that nothing constrains is passed on when it is complete, or cut by the limit of the reply: no protocol
    /// can take back one that turns out to be none.
    void hold(const auspex::ReplyEvent& one, const GenerationEvent& e) {
        call_.push_back(one);
        if (one.kind != Kind::call_end && one.kind != Kind::call_dropped) return;
        if (one.kind == Kind::call_end || e.finish == Finish::length)
            for (const auspex::ReplyEvent& part : call_) pass(part, e);
        call_.clear();
    }

    /// Adds it to the choice and tells the protocol.
    void pass(auspex::ReplyEvent one, const GenerationEvent& e) {
        Choice& c = choices.back();
        switch (one.kind) {
            case Kind::reasoning: c.thinking += one.text; break;
            case Kind::text: c.content += one.text; break;
            case Kind::call_begin: c.calls.push_back({one.text, ""}); break;
            case Kind::call_arguments: c.calls.back().arguments += one.text; break;
            case Kind::call_end: break;
            case Kind::call_dropped: return;  // the reply ended in it, and its beginning was told
        }
        if (!c.calls.empty()) one.i_call = static_cast<uint32_t>(c.calls.size() - 1);
        add_pending(std::move(one), e);
    }

    void add_pending(auspex::ReplyEvent one, const GenerationEvent& e) {
        const bool starts = one.kind == Kind::call_begin || one.kind == Kind::call_end;
        if (pending_ && !starts && pending_->kind == one.kind) {
            pending_->text += one.text;
        } else {
            tell_pending();
            pending_ = std::move(one);
        }
        pending_choice_ = e.i_choice;
    }

    void tell_pending() {
        if (pending_) protocol_.event(pending_choice_, *pending_);
        pending_.reset();
    }

    const GenerationRequest& request_;
    Protocol& protocol_;
    std::vector<auspex::ReplyEvent> call_;       ///< the one that is held
    std::optional<auspex::ReplyEvent> pending_;  ///< not told yet; never beyond take()
    uint32_t pending_choice_ = 0;
};

void stream_reply(Running& running, Protocol& protocol, AnswerStream& to) {
    Reader reader(running.request(), protocol);
    double last = cli::now();
    bool asked = false;  // whether a client that sends nothing more still takes its answer
    while (!running.complete() && to.connected()) {
        const Failure failure = reader.take(running.wait());
        if (!failure.ok()) protocol.fail(failure);
        std::string bytes = protocol.take();
        const bool asks = !asked && to.half_closed();
        asked = asked || asks;
        if (bytes.empty() && (asks || cli::now() - last > kPingSeconds)) bytes = ": ping\n\n";
        if (bytes.empty()) continue;
        if (!to.write(bytes) || !failure.ok()) return;
        last = cli::now();
    }
}

}  // namespace

void Protocol::write_event(const char* name, const Json& members) {
    Json all = {{"type", name}};
    for (const auto& m : members.items()) all[m.key()] = m.value();
    out_ += std::string("event: ") + name + "\n";
    write_data(all);
}

HttpAnswer json_answer(const Json& json, int status) {
    HttpAnswer a;
    a.status = status;
    a.body = dump(json);
    return a;
}

HttpAnswer generate(Engine& engine, GenerationRequest request, std::shared_ptr<Protocol> protocol, bool stream,
                    const HttpRequest& http) {
    auto task = std::make_shared<Generation>(std::move(request));
    const Failure failure = engine.submit(task);
    if (!failure.ok()) return json_answer(protocol->error(failure), failure.status);
    const auto running = std::make_shared<Running>(engine, task);
    if (stream) {
        HttpAnswer a;
        a.type = "text/event-stream";
        a.headers["Cache-Control"] = "no-cache";
        a.stream = [running, protocol](AnswerStream& to) { stream_reply(*running, *protocol, to); };
        return a;
    }
    Reader reader(running->request(), *protocol);
    while (!running->complete()) {
        if (!http.connected()) return json_answer(protocol->error(unavailable(kLeft)), 503);
        const Failure failed = reader.take(running->wait());
        protocol->take();
        if (!failed.ok()) return json_answer(protocol->error(failed), failed.status);
    }
    return json_answer(protocol->answer(reader.choices));
}

// --------------------------------------------------------------------------------------------- parts of answers

const char* finish_name(const Choice& choice) {
    if (choice.finish == Finish::length) return "length";
    return choice.calls.empty() ? "stop" : "tool_calls";
}

Usage total_usage(const std::vector<Choice>& choices) {
    Usage all;
    for (const Choice& c : choices) {
        const Usage& u = c.usage;
        if (&c == choices.data()) {
            all = u;
            continue;
        }
        all.n_predicted += u.n_predicted;
        all.n_thinking += u.n_thinking;
        all.predicted_s += u.predicted_s;
        all.n_cycle += u.n_cycle;
        for (uint32_t i = 0; i < auspex::kMaxDraft; ++i)
            all.drafted[i] += u.drafted[i], all.accepted[i] += u.accepted[i];
    }
    return all;
}

Json usage_json(const std::vector<Choice>& choices) {
    const Usage all = total_usage(choices);
    return {{"completion_tokens", all.n_predicted},
            {"prompt_tokens", all.n_prompt},
            {"total_tokens", all.n_prompt + all.n_predicted},
            {"prompt_tokens_details", {{"cached_tokens", all.n_cached}}},
            {"completion_tokens_details", {{"reasoning_tokens", all.n_thinking}}}};
}

Json timings_json(const Usage& u) {
    const auto part = [](Json* to, const std::string& name, size_t n, double s) {
        const double count = static_cast<double>(n);
        (*to)[name + "_n"] = n;
        (*to)[name + "_ms"] = s * 1e3;
        (*to)[name + "_per_token_ms"] = n ? s * 1e3 / count : 0.0;
        (*to)[name + "_per_second"] = s > 0 ? count / s : 0.0;
    };
    Json t = {{"cache_n", u.n_cached}};
    part(&t, "prompt", u.n_prompt - u.n_cached, u.prompt_s);
    part(&t, "predicted", u.n_predicted, u.predicted_s);
    if (u.n_drafted() > 0) {
        t["draft_n"] = u.n_drafted();
        t["draft_n_accepted"] = u.n_accepted();
        t["cycle_n"] = u.n_cycle;
    }
    t["reuse"] = u.reuse;
    return t;
}

}  // namespace server

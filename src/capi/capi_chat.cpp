// capi/capi_chat: prompts, text streams, replies and chat of auspex.h.
#include "capi.h"

using auspex::capi::Answer;
using auspex::capi::call;
using auspex::capi::call_session;
using auspex::capi::need;
using auspex::capi::Running;

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {
namespace {

auspex_event event_of(int32_t type, const std::string& text) {
    auspex_event e = {};
    e.struct_size = sizeof e;
    e.type = type;
    e.text = text.c_str();
    e.n_text = text.size();
    return e;
}

int32_t type_of(ReplyEvent::Kind kind) {
    switch (kind) {
        case ReplyEvent::Kind::reasoning: return AUSPEX_EVENT_REASONING;
        case ReplyEvent::Kind::text: return AUSPEX_EVENT_TEXT;
        case ReplyEvent::Kind::call_begin: return AUSPEX_EVENT_CALL_BEGIN;
        case ReplyEvent::Kind::call_arguments: return AUSPEX_EVENT_CALL_ARGUMENTS;
        case ReplyEvent::Kind::call_end: return AUSPEX_EVENT_CALL_END;
        case ReplyEvent::Kind::call_dropped: break;
    }
    return AUSPEX_EVENT_CALL_DROPPED;
}

Answer read_stops(const char* const* stops, size_t n_stops, std::vector<std::string>* to) {
    Span<const char* const> all;
    AUSPEX_C_TRY(view(stops, n_stops, &all, "stops"));
    for (const char* stop : all) {
        if (stop == nullptr) return bad("a text in stops is null");
        to->emplace_back(stop);
    }
    return Answer();
}

/// The prompt of a request.
struct Prompt {
    ChatRequest request;
    bool inside_thinking = false;
    std::vector<Token> ids;
    std::vector<Mark> marks;

    Answer make(const Model& model, const char* json, size_t n_json) {
        AUSPEX_C_TRY(chat_request(json, n_json, &request));
        ChatPrompt prompt;
        AUSPEX_C_TRY(model.render(request).get(prompt));
        inside_thinking = prompt.inside_thinking;
        return model.encode(prompt, &marks).get(ids);
    }
};

}  // namespace

Answer say_events(const std::vector<ReplyEvent>& events, auspex_on_event on_event, void* user) {
    for (const ReplyEvent& from : events) {
        auspex_event e = event_of(type_of(from.kind), from.text);
        e.call = static_cast<int32_t>(from.i_call);
        if (on_event(&e, user) != 0) return Answer(AUSPEX_CANCELLED, "cancelled by on_event");
    }
    return Answer();
}

}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// ------------------------------------------------------------------------------------------ prompts

auspex_code auspex_render(const auspex_model* model, const char* json, size_t n_json, char* text, size_t capacity,
                          size_t* length, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(model, "model"));
        AUSPEX_C_TRY(auspex::capi::need_output(length, "length"));
        auspex::ChatRequest request;
        AUSPEX_C_TRY(auspex::capi::chat_request(json, n_json, &request));
        auspex::ChatPrompt prompt;
        AUSPEX_C_TRY(model->model.render(request).get(prompt));
        return auspex::capi::fill_text(prompt.text(), text, capacity, length);
    });
}

auspex_code auspex_render_ids(const auspex_model* model, const char* json, size_t n_json, int32_t* ids, size_t capacity,
                              size_t* n_ids, auspex_mark* marks, size_t mark_capacity, size_t* n_marks,
                              int32_t* inside_thinking, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(model, "model"));
        AUSPEX_C_TRY(auspex::capi::need_output(n_ids, "n_ids"));
        auspex::capi::Prompt prompt;
        AUSPEX_C_TRY(prompt.make(model->model, json, n_json));
        std::vector<auspex_mark> found;
        for (const auspex::Mark& m : prompt.marks) found.push_back({m.row, m.pinned ? 1u : 0u, 0});
        if (inside_thinking != nullptr) *inside_thinking = prompt.inside_thinking ? 1 : 0;
        size_t n_found = 0;
        if (n_marks == nullptr) n_marks = &n_found;
        *n_marks = found.size();
        *n_ids = prompt.ids.size();
        if (marks != nullptr && mark_capacity < found.size())
            return auspex::capi::fill(found.data(), found.size(), marks, mark_capacity, n_marks, 0, "marks");
        AUSPEX_C_TRY(auspex::capi::fill(prompt.ids.data(), prompt.ids.size(), ids, capacity, n_ids, 0, "ids"));
        if (marks == nullptr) return Answer();
        return auspex::capi::fill(found.data(), found.size(), marks, mark_capacity, n_marks, 0, "marks");
    });
}

// ------------------------------------------------------------------------------------------ streams

auspex_code auspex_stream_create(const auspex_model* model, const char* const* stops, size_t n_stops, uint32_t flags,
                                 auspex_stream** stream, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(stream, "stream"));
        AUSPEX_C_TRY(need(model, "model"));
        AUSPEX_C_TRY(auspex::capi::check_range(flags, 0, AUSPEX_SPECIAL, "flags"));
        std::vector<std::string> texts;
        AUSPEX_C_TRY(auspex::capi::read_stops(stops, n_stops, &texts));
        auspex::DecodeOptions options;
        options.special = (flags & AUSPEX_SPECIAL) != 0;
        auto made = std::make_unique<auspex_stream>();
        made->host = model->host;
        made->stream = auspex::TextStream(model->model, std::move(texts), options);
        AUSPEX_C_TRY(auspex::capi::need_memory(made->stream));
        *stream = made.release();
        return Answer();
    });
}

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {
namespace {

template <class F>
auspex_code stream_text(auspex_stream* stream, const char** text, size_t* n_text, auspex_error* error, F make) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(stream, "stream"));
        const Turn turn(stream->busy);
        AUSPEX_C_TRY(turn.answer("stream"));
        AUSPEX_C_TRY(need_output(text, "text"));
        *text = "";
        AUSPEX_C_TRY(need_output(n_text, "n_text"));
        AUSPEX_C_TRY(make().get(stream->text));
        *text = stream->text.c_str();
        *n_text = stream->text.size();
        return Answer();
    });
}

}  // namespace
}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

auspex_code auspex_stream_push(auspex_stream* stream, int32_t id, const char** text, size_t* n_text,
                               auspex_error* error) {
    return auspex::capi::stream_text(stream, text, n_text, error, [&] { return stream->stream.push(id); });
}

auspex_code auspex_stream_finish(auspex_stream* stream, const char** text, size_t* n_text, auspex_error* error) {
    return auspex::capi::stream_text(stream, text, n_text, error, [&] { return stream->stream.finish(); });
}

int32_t auspex_stream_stopped(const auspex_stream* stream) {
    if (!auspex::capi::is(stream)) return 0;
    const auspex::capi::Turn turn(stream->busy);
    return turn.mine() && stream->stream.stopped() ? 1 : 0;
}

void auspex_stream_free(auspex_stream* stream) {
    if (auspex::capi::is(stream)) delete stream;
}

// ------------------------------------------------------------------------------------------ replies

auspex_code auspex_reply_create(int32_t inside_thinking, const char* json, size_t n_json, auspex_reply** reply,
                                auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(reply, "reply"));
        AUSPEX_C_TRY(auspex::capi::check_range(inside_thinking, 0, 1, "inside_thinking"));
        auspex::ChatRequest request;
        if (json != nullptr || n_json > 0) AUSPEX_C_TRY(auspex::capi::chat_request(json, n_json, &request));
        auto made = std::make_unique<auspex_reply>();
        made->stream = auspex::ReplyStream(inside_thinking != 0, request.tools);
        AUSPEX_C_TRY(auspex::capi::need_memory(made->stream));
        *reply = made.release();
        return Answer();
    });
}

auspex_code auspex_reply_push(auspex_reply* reply, const char* text, size_t n_text, auspex_on_event on_event,
                              void* user, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(reply, "reply"));
        const auspex::capi::Turn turn(reply->busy);
        AUSPEX_C_TRY(turn.answer("reply"));
        if (on_event == nullptr) return auspex::capi::bad("on_event is null; expected a function");
        std::string_view piece;
        AUSPEX_C_TRY(auspex::capi::view_text(text, n_text, &piece, "text"));
        std::vector<auspex::ReplyEvent> events;
        AUSPEX_C_TRY(reply->stream.push(piece).get(events));
        return auspex::capi::say_events(events, on_event, user);
    });
}

auspex_code auspex_reply_finish(auspex_reply* reply, auspex_on_event on_event, void* user, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(reply, "reply"));
        const auspex::capi::Turn turn(reply->busy);
        AUSPEX_C_TRY(turn.answer("reply"));
        if (on_event == nullptr) return auspex::capi::bad("on_event is null; expected a function");
        std::vector<auspex::ReplyEvent> events;
        AUSPEX_C_TRY(reply->stream.finish().get(events));
        return auspex::capi::say_events(events, on_event, user);
    });
}

auspex_code auspex_reply_message(const auspex_reply* reply, char* text, size_t capacity, size_t* length,
                                 auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(reply, "reply"));
        const auspex::capi::Turn turn(reply->busy);
        AUSPEX_C_TRY(turn.answer("reply"));
        AUSPEX_C_TRY(auspex::capi::need_output(length, "length"));
        std::string message;
        AUSPEX_C_TRY(auspex::to_json(reply->stream.reply()).get(message));
        return auspex::capi::fill_text(message, text, capacity, length);
    });
}

void auspex_reply_free(auspex_reply* reply) {
    if (auspex::capi::is(reply)) delete reply;
}

// --------------------------------------------------------------------------------------------- chat

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {
namespace {

/// One reply of auspex_chat().
class Chat {
  public:
    Chat(const Running& running, const Model& model, auspex_on_event on_event, void* user)
        : running_(running), model_(model), on_event_(on_event), user_(user) {}

    Answer open(const char* json, size_t n_json, const auspex_chat_options* given) {
        auspex_chat_options options;
        AUSPEX_C_TRY(read(given, &options, "auspex_chat_options"));
        AUSPEX_C_TRY(sampling(options.sampling, &sampling_));
        std::vector<std::string> stops;
        AUSPEX_C_TRY(read_stops(options.stops, options.n_stops, &stops));
        max_tokens_ = options.max_tokens != 0 ? options.max_tokens : UINT64_MAX;
        AUSPEX_C_TRY(prompt_.make(model_, json, n_json));
        AUSPEX_C_TRY(check_range(options.free_thinking, 0, 1, "free_thinking"));
        max_thinking_ = options.max_thinking_tokens;
        thinking_ = prompt_.inside_thinking;
        may_open_ = !thinking_;
        if (thinking_ && options.free_thinking != 0) std::swap(after_thinking_, sampling_.constraint);
        if (max_thinking_ != 0 &&
            sampling_.constrained_from == kFromHere)  // the tokens that close it belong to the text
            sampling_.constrained_from = prompt_.ids.size();
        stops_ = StopFilter(std::move(stops));
        text_ = TextStream(model_);
        reply_ = ReplyStream(prompt_.inside_thinking, prompt_.request.tools);
        return need_memory(stops_ && text_ && reply_);
    }

    Answer run() {
        AUSPEX_C_TRY(running_.session().sync(prompt_.ids, prompt_.marks).get(synced_));
        while (!ended_) AUSPEX_C_TRY(step());
        std::string rest;
        AUSPEX_C_TRY(text_.finish().get(rest));
        AUSPEX_C_TRY(say_text(rest));
        std::vector<ReplyEvent> events;
        AUSPEX_C_TRY(reply_.finish().get(events));
        AUSPEX_C_TRY(say_parts(std::move(events)));
        std::string held;
        AUSPEX_C_TRY(stops_.finish().get(held));
        content_ += held;
        if (!held.empty()) AUSPEX_C_TRY(say_events({text_part(held)}, on_event_, user_));
        return close();
    }

  private:
    void end(int32_t finish) {
        ended_ = true;
        finish_ = finish;
    }

    Answer say_text(const std::string& piece) {
        if (piece.empty()) return Answer();
        std::vector<ReplyEvent> events;
        AUSPEX_C_TRY(reply_.push(piece).get(events));
        return say_parts(std::move(events));
    }

    static ReplyEvent text_part(std::string text) {
        ReplyEvent part;
        part.text = std::move(text);
        return part;
    }

    /// Passes parts of the reply on, up to a stop string in its text. No stop string spans a call.
    Answer say_parts(std::vector<ReplyEvent> parts) {
        std::vector<ReplyEvent> said;
        for (ReplyEvent& part : parts) {
            if (stops_.found()) break;
            const bool is_text = part.kind == ReplyEvent::Kind::text;
            std::string text;
            AUSPEX_C_TRY((is_text ? stops_.push(part.text) : stops_.finish()).get(text));
            content_ += text;
            if (!text.empty()) said.push_back(text_part(std::move(text)));
            if (part.kind == ReplyEvent::Kind::call_end) ++n_call_;
            if (!is_text) said.push_back(std::move(part));
        }
        return say_events(said, on_event_, user_);
    }

    Answer step() {
        if (running_.cancelled()) return Answer(AUSPEX_CANCELLED, "cancelled by auspex_session_cancel()");
        Span<const Token> tokens;
        const Status status = running_.session().next(sampling_).get(tokens);
        if (status.code == Code::context_full) {
            end(AUSPEX_FINISH_CONTEXT);
            return Answer();
        }
        if (status.code == Code::bad_argument && closed_ && sampling_.constraint)
            return bad(
                "the grammar does not allow the text that closes the thinking after max_thinking_tokens: a line feed, "
                "</think> and a blank line. Allow it, or set free_thinking. " +
                status.text);
        AUSPEX_C_TRY(status);
        closed_ = false;
        return take(tokens);
    }

    Answer take(Span<const Token> tokens) {
        for (size_t i = 0; i < tokens.size(); ++i) {
            const Token id = tokens[i];
            const size_t n_rest = tokens.size() - 1 - i;
            if (thinking_) {
                std::string close;
                AUSPEX_C_TRY(find_close(id, &close));
                thinking_ = close.empty();
                if (!thinking_ && after_thinking_) return close_thinking(close, n_rest + 1);
            }
            if (model_.is_end(id)) {
                end(AUSPEX_FINISH_STOP);
                return Answer();
            }
            ++n_generated_;
            std::string piece;
            AUSPEX_C_TRY(text_.push(id).get(piece));
            AUSPEX_C_TRY(say_text(piece));
            find_opening();
            if (stops_.found()) end(AUSPEX_FINISH_STOP);
            if (!ended_ && n_generated_ >= max_tokens_) end(AUSPEX_FINISH_LENGTH);
            if (ended_) return take_back(n_rest);
            if (thinking_ && max_thinking_ != 0 && n_generated_ >= max_thinking_) return close_thinking(kClose, n_rest);
        }
        return Answer();
    }

    /// Where the prompt has not opened the thinking, the model may do so as the first thing it writes.
    void find_opening() {
        if (!may_open_ || !reply_.in_thinking()) return;
        thinking_ = true;
        may_open_ = false;
    }

    /// If the thinking ends within this token: the token's text up to there and the blank line that follows, with which
    /// an answer begins.
    Answer find_close(Token id, std::string* text) {
        static constexpr std::string_view kTag = "</think>";
        std::string bytes;
        AUSPEX_C_TRY(model_.decode(Span<const Token>(&id, 1)).get(bytes));
        if (model_.is_end(id)) *text = kClose;
        const size_t n_before = thought_.size();
        thought_ += bytes;
        const size_t at = thought_.find(kTag);
        if (at != std::string::npos) *text = thought_.substr(n_before, at + kTag.size() - n_before) + "\n\n";
        if (thought_.size() >= kTag.size()) thought_.erase(0, thought_.size() - kTag.size() + 1);
        return Answer();
    }

    /// Ends the thinking with this text in place of the last n_back tokens. What constrains the answer begins after it.
    Answer close_thinking(const std::string& text, size_t n_back) {
        EncodeOptions options;
        options.special = true;
        std::vector<Token> ids;
        AUSPEX_C_TRY(model_.encode(text, options).get(ids));
        const Span<const Token> all = running_.session().history();
        std::vector<Token> longer(all.begin(), all.end() - n_back);
        longer.insert(longer.end(), ids.begin(), ids.end());
        const Status status = running_.session().sync(longer).status();
        if (status.code == Code::bad_argument) {  // more tokens than the context holds
            end(AUSPEX_FINISH_CONTEXT);
            return Answer();
        }
        AUSPEX_C_TRY(status);
        thinking_ = false;
        closed_ = !after_thinking_;
        if (after_thinking_) {
            sampling_.constraint = std::exchange(after_thinking_, Constraint());
            sampling_.constrained_from = longer.size();
        }
        return take(ids);
    }

    /// Tokens that were drafted beyond the end of the reply. A step without drafts would not have sampled them.
    Answer take_back(size_t n) {
        if (n == 0) return Answer();
        const Span<const Token> all = running_.session().history();
        const std::vector<Token> kept(all.begin(), all.end() - n);
        return running_.session().sync(kept).status();
    }

    Answer say(const auspex_event& event) {
        return on_event_(&event, user_) == 0 ? Answer() : Answer(AUSPEX_CANCELLED, "cancelled by on_event");
    }

    Answer close() {
        auspex_event usage = event_of(AUSPEX_EVENT_USAGE, std::string());
        usage.text = "";
        usage.n_prompt = prompt_.ids.size();
        usage.n_reused = synced_.rows_reused;
        usage.n_generated = n_generated_;
        AUSPEX_C_TRY(say(usage));
        ChatReply reply = reply_.reply();
        if (stops_.found()) {  // what came after it is no part of the reply
            finish_ = AUSPEX_FINISH_STOP;
            reply.content = content_;
            reply.tool_calls.resize(n_call_);
        }
        std::string message;
        AUSPEX_C_TRY(to_json(reply).get(message));
        auspex_event done = event_of(AUSPEX_EVENT_DONE, message);
        done.finish = finish_;
        if (finish_ == AUSPEX_FINISH_STOP && !reply.tool_calls.empty()) done.finish = AUSPEX_FINISH_CALLS;
        return say(done);
    }

    const Running& running_;
    const Model& model_;
    const auspex_on_event on_event_;
    void* const user_;
    Prompt prompt_;
    static constexpr const char* kClose = "\n</think>\n\n";

    Sampling sampling_;
    uint64_t max_tokens_ = 0, max_thinking_ = 0, n_generated_ = 0;
    bool thinking_ = false;
    bool may_open_ = false;      ///< the model may begin with it
    bool closed_ = false;        ///< by the last step, under a grammar of the thinking
    std::string thought_;        ///< the end of the thinking so far
    Constraint after_thinking_;  ///< waits for its end
    TextStream text_;
    ReplyStream reply_;
    StopFilter stops_;     ///< in the text of the reply, of which calls and thinking are no part
    std::string content_;  ///< the text that was passed on
    size_t n_call_ = 0;    ///< calls that were
    SyncReport synced_;
    bool ended_ = false;
    int32_t finish_ = AUSPEX_FINISH_STOP;
};

}  // namespace
}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

auspex_code auspex_chat_options_init(auspex_chat_options* options, uint32_t struct_size) {
    return auspex::capi::init(options, struct_size);
}

auspex_code auspex_chat(auspex_session* session, const char* json, size_t n_json, const auspex_chat_options* options,
                        auspex_on_event on_event, void* user, auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        if (on_event == nullptr) return auspex::capi::bad("on_event is null; expected a function");
        auspex::capi::Chat chat(running, session->model, on_event, user);
        AUSPEX_C_TRY(chat.open(json, n_json, options));
        return chat.run();
    });
}

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
    if (n_marks != nullptr) *n_marks = 0;  // also where the call is refused
    if (inside_thinking != nullptr) *inside_thinking = 0;
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
        AUSPEX_C_TRY(sampling(options.sampling, &options_.sampling));
        AUSPEX_C_TRY(read_stops(options.stops, options.n_stops, &options_.stops));
        if (options.max_tokens != 0) options_.max_tokens = options.max_tokens;
        AUSPEX_C_TRY(prompt_.make(model_, json, n_json));
        AUSPEX_C_TRY(check_range(options.free_thinking, 0, 1, "free_thinking"));
        options_.free_thinking = options.free_thinking != 0;
        if (options.max_thinking_tokens != 0) options_.max_thinking_tokens = options.max_thinking_tokens;
        options_.inside_thinking = prompt_.inside_thinking;
        options_.tools = prompt_.request.tools;
        return Answer();
    }

    Answer run() {
        AUSPEX_C_TRY(running_.session().sync(prompt_.ids, prompt_.marks).get(synced_));
        reply_ = ReplyGenerator(model_, running_.session(), std::move(options_));
        AUSPEX_C_TRY(need_memory(reply_));
        while (reply_.ended() == Finish::none) {
            if (running_.cancelled()) return Answer(AUSPEX_CANCELLED, "cancelled by auspex_session_cancel()");
            AUSPEX_C_TRY(say(reply_.next()));
        }
        AUSPEX_C_TRY(say(reply_.finish()));
        AUSPEX_C_TRY(reply_.resume().status());
        return close();
    }

  private:
    Answer say(Result<std::vector<ReplyEvent>> events) {
        AUSPEX_C_TRY(events.status());
        return say_events(events.value(), on_event_, user_);
    }

    Answer say(const auspex_event& event) {
        return on_event_(&event, user_) == 0 ? Answer() : Answer(AUSPEX_CANCELLED, "cancelled by on_event");
    }

    Answer close() {
        auspex_event usage = event_of(AUSPEX_EVENT_USAGE, std::string());
        usage.text = "";
        usage.n_prompt = prompt_.ids.size();
        usage.n_reused = synced_.rows_reused;
        usage.n_generated = reply_.tokens().size();
        AUSPEX_C_TRY(say(usage));
        std::string message;
        AUSPEX_C_TRY(to_json(reply_.reply()).get(message));
        auspex_event done = event_of(AUSPEX_EVENT_DONE, message);
        done.finish = finish();
        return say(done);
    }

    int32_t finish() const {
        if (reply_.ended() == Finish::length) return AUSPEX_FINISH_LENGTH;
        if (reply_.ended() == Finish::context) return AUSPEX_FINISH_CONTEXT;
        return reply_.reply().tool_calls.empty() ? AUSPEX_FINISH_STOP : AUSPEX_FINISH_CALLS;
    }

    const Running& running_;
    const Model& model_;
    const auspex_on_event on_event_;
    void* const user_;
    Prompt prompt_;
    ReplyOptions options_;
    ReplyGenerator reply_;
    SyncReport synced_;
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

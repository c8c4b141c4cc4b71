// The C interface: chats, replies and streams. The rest is in tests/test_capi.cpp.
#include "capi_rig.h"

#include <algorithm>
#include <atomic>
#include <thread>

using namespace capi_rig;

namespace {

/// The events of a reply in a line.
int32_t write_down(const auspex_event* e, void* user) {
    static const char* const kNames[] = {"think", "text", "begin", "args", "end", "drop", "usage", "done"};
    std::string& line = *static_cast<std::string*>(user);
    line += std::string(kNames[e->type]) + "<" + std::string(e->text, e->n_text) + ">";
    return e->type == AUSPEX_EVENT_CALL_DROPPED ? 7 : 0;
}

}  // namespace

TEST_CASE("C: stop strings end a chat in its text, not in its thinking or a call") {
    Rig rig;
    auspex_session* s = rig.session(512);
    const std::string call = "<tool_call><function=w><parameter=s>\nx STOP y\n</parameter></function></tool_call>";
    const std::string request = R"({"messages": [{"role": "user", "content": "hi"}]})";
    const auto chat = [&](const std::string& reply, std::vector<const char*> stops) {
        auspex_constraint* constraint = nullptr;
        rig.ok(auspex_constraint_create(rig.model, AUSPEX_CONSTRAINT_REGEX, reply.data(), reply.size(), &constraint,
                                        rig.ok));
        auto sampling = cleared<auspex_sampling>();
        sampling.grammar = constraint;
        auto options = cleared<auspex_chat_options>();
        options.sampling = &sampling;
        options.stops = stops.data();
        options.n_stops = stops.size();
        std::vector<std::string> parts(AUSPEX_EVENT_DONE + 1);
        const auto on_event = [](const auspex_event* e, void* user) {
            std::vector<std::string>& to = *static_cast<std::vector<std::string>*>(user);
            to[static_cast<size_t>(e->type)] += std::string(e->text, e->n_text);
            if (e->type == AUSPEX_EVENT_DONE) to[AUSPEX_EVENT_USAGE] = std::to_string(e->finish);
            return int32_t{0};
        };
        rig.ok(auspex_chat(s, request.data(), request.size(), &options, on_event, &parts, rig.ok));
        auspex_constraint_free(constraint);
        CHECK(parts[AUSPEX_EVENT_USAGE] == (parts[AUSPEX_EVENT_CALL_ARGUMENTS].empty() ? "0" : "2"));
        return parts;
    };
    std::vector<std::string> parts =
        chat("<think>a STOP b</think>c ST" + call + "OP" + call + "d STOP e", {"P d", "STOP"});
    CHECK(parts[AUSPEX_EVENT_REASONING] == "a STOP b");
    CHECK(parts[AUSPEX_EVENT_TEXT] == "c STOPd ");
    CHECK(parts[AUSPEX_EVENT_CALL_ARGUMENTS] == R"({"s": "x STOP y"}{"s": "x STOP y"})");
    CHECK(parts[AUSPEX_EVENT_DONE].find(R"("content": "c STOPd ", "reasoning_content": "a STOP b", "tool_calls")") !=
          std::string::npos);
    parts = chat("one SSTOP two" + call, {"STOP", "TOP"});
    CHECK(parts[AUSPEX_EVENT_TEXT] == "one S");
    CHECK(parts[AUSPEX_EVENT_DONE] == R"({"role": "assistant", "content": "one S"})");
    parts = chat("one STO", {"STOP", ""});
    CHECK(parts[AUSPEX_EVENT_TEXT] == "one STO");
    auspex_session_free(s);
}

TEST_CASE("C: a chat that ends by its length goes on with the next token, also after drafts") {
    Rig rig;
    const std::string request = R"({"messages": [{"role": "user", "content": "hi"}]})";
    const std::string reply = "one two three four five six seven eight nine ten";
    auspex_constraint* constraint = nullptr;
    rig.ok(
        auspex_constraint_create(rig.model, AUSPEX_CONSTRAINT_REGEX, reply.data(), reply.size(), &constraint, rig.ok));
    auto sampling = cleared<auspex_sampling>();
    sampling.grammar = constraint;
    for (const int32_t draft : {AUSPEX_DRAFT_OFF, AUSPEX_DRAFT_LOOKUP}) {
        auto options = cleared<auspex_session_options>();
        options.n_context = 256;
        options.draft = draft;
        options.draft_depth = draft == AUSPEX_DRAFT_OFF ? 0 : 8;
        auspex_session* s = nullptr;
        rig.ok(auspex_session_create(rig.model, &options, &s, rig.ok));
        auto chat = cleared<auspex_chat_options>();
        chat.sampling = &sampling;
        chat.max_tokens = 12;
        std::string text;
        const auto on_event = [](const auspex_event* e, void* user) {
            if (e->type == AUSPEX_EVENT_TEXT) static_cast<std::string*>(user)->append(e->text, e->n_text);
            return int32_t{0};
        };
        rig.ok(auspex_chat(s, request.data(), request.size(), &chat, on_event, &text, rig.ok));
        CHECK(text.size() < reply.size());
        for (int32_t last = 0; auspex_is_end(rig.model, last) == 0;) {
            int32_t ids[AUSPEX_MAX_TOKENS];
            size_t n = 0, n_text = 0;
            char piece[64];
            rig.ok(auspex_session_next(s, &sampling, ids, AUSPEX_MAX_TOKENS, &n, rig.ok));
            rig.ok(auspex_decode(rig.model, ids, n, 0, piece, sizeof piece, &n_text, rig.ok));
            text.append(piece, n_text);
            last = ids[n - 1];
        }
        CHECK(text == reply);
        auspex_session_free(s);
    }
    auspex_constraint_free(constraint);
}

TEST_CASE("C: a second call on a stream or reply is refused while one runs") {
    Rig rig;
    struct Again {
        auspex_reply* reply = nullptr;
        std::vector<auspex_code> codes;
    } again;
    rig.ok(auspex_reply_create(0, nullptr, 0, &again.reply, rig.ok));
    const auto call_again = [](const auspex_event*, void* user) -> int32_t {
        Again& a = *static_cast<Again*>(user);
        const auto ignore = [](const auspex_event*, void*) { return int32_t{0}; };
        char text[100];
        size_t n = 0;
        a.codes.push_back(auspex_reply_push(a.reply, "x", 1, ignore, nullptr, nullptr));
        a.codes.push_back(auspex_reply_finish(a.reply, ignore, nullptr, nullptr));
        a.codes.push_back(auspex_reply_message(a.reply, text, sizeof text, &n, nullptr));
        return 0;
    };
    rig.ok(auspex_reply_push(again.reply, "hello", 5, call_again, &again, rig.ok));
    REQUIRE(again.codes.size() >= 3);
    for (const auspex_code code : again.codes) CHECK(code == AUSPEX_BAD_ARGUMENT);
    auspex_reply_free(again.reply);

    auspex_stream* stream = nullptr;
    rig.ok(auspex_stream_create(rig.model, nullptr, 0, 0, &stream, rig.ok));
    std::atomic<int> n_ok{0}, n_other{0};
    const auto push = [&] {
        for (int32_t i = 0; i < 20000; ++i) {
            const char* text = nullptr;
            size_t n = 0;
            const auspex_code code = auspex_stream_push(stream, i % 256, &text, &n, nullptr);
            if (code == AUSPEX_OK) ++n_ok;
            if (code != AUSPEX_OK && code != AUSPEX_BAD_ARGUMENT) ++n_other;
            (void)auspex_stream_stopped(stream);
        }
    };
    std::thread second(push);
    push();
    second.join();
    CHECK(n_ok > 0);
    CHECK(n_other == 0);
    auspex_stream_free(stream);
}

TEST_CASE("C: a reply is told in events, as ReplyStream tells it") {
    Ok ok;
    auspex_reply* reply = nullptr;
    const std::string request =
        R"({"messages": [], "tools": [{"name": "f", "parameters": {"properties": {"s": {"type": "string"}}}}]})";
    ok(auspex_reply_create(1, request.data(), request.size(), &reply, ok));
    std::string line;
    for (const std::string piece : {"so\n</thi", "nk>\n\nLet me.\n<tool_call>\n<function=f>\n<parameter=s>\na\"",
                                    "b\n</parameter>\n</function>\n</tool_call>"})
        ok(auspex_reply_push(reply, piece.data(), piece.size(), write_down, &line, ok));
    ok(auspex_reply_finish(reply, write_down, &line, ok));
    CHECK(line == "think<so>text<Let me.>begin<f>args<{\"s\": \"a\\\">args<b\"}>end<>");
    char message[256];
    size_t n = 0;
    ok(auspex_reply_message(reply, message, sizeof message, &n, ok));
    CHECK(std::string(message, n) ==
          R"({"role": "assistant", "content": "Let me.", "reasoning_content": "so", "tool_calls": )"
          R"([{"type": "function", "function": {"name": "f", "arguments": {"s": "a\"b"}}}]})");
    auspex_reply_free(reply);
    ok(auspex_reply_create(0, nullptr, 0, &reply, ok));
    line.clear();
    const std::string cut = "Hi \xf0\x9f";  // a reply that ended inside a character
    ok(auspex_reply_push(reply, cut.data(), cut.size(), write_down, &line, ok));
    ok(auspex_reply_finish(reply, write_down, &line, ok));
    CHECK(line == "text<Hi>text< \xef\xbf\xbd\xef\xbf\xbd>");
    auspex_reply_free(reply);
    ok(auspex_reply_create(0, nullptr, 0, &reply, ok));
    const std::string bad = "<tool_call><function=f>oops";
    CHECK(auspex_reply_push(reply, bad.data(), bad.size(), write_down, &line, ok) == AUSPEX_CANCELLED);
    auspex_reply_free(reply);
}

namespace {

/// A chat of one message, whose reply a regular expression gives.
struct ChatOf {
    Rig rig;
    auspex_constraint* constraint = nullptr;
    auspex_sampling sampling = cleared<auspex_sampling>();
    auspex_chat_options options = cleared<auspex_chat_options>();

    explicit ChatOf(const std::string& reply) {
        rig.ok(auspex_constraint_create(rig.model, AUSPEX_CONSTRAINT_REGEX, reply.data(), reply.size(), &constraint,
                                        rig.ok));
        sampling.grammar = constraint;
        options.sampling = &sampling;
    }
    ~ChatOf() { auspex_constraint_free(constraint); }
    ChatOf(const ChatOf&) = delete;
    ChatOf& operator=(const ChatOf&) = delete;

    auspex_code run(auspex_session* s, auspex_on_event on_event, void* user) {
        const std::string request = R"({"messages": [{"role": "user", "content": "hi"}]})";
        return auspex_chat(s, request.data(), request.size(), &options, on_event, user, rig.ok);
    }
};

}  // namespace

TEST_CASE("C: on_event cancels a chat at any event, also at the last two, and the session goes on") {
    ChatOf chat("<think>a</think>b");
    Rig& rig = chat.rig;
    struct Seen {
        int32_t cancel_at;
        std::vector<int32_t> types;
    };
    const auto on_event = [](const auspex_event* e, void* user) -> int32_t {
        Seen& seen = *static_cast<Seen*>(user);
        seen.types.push_back(e->type);
        return e->type == seen.cancel_at ? -7 : 0;
    };
    const std::vector<int32_t> all = {AUSPEX_EVENT_REASONING, AUSPEX_EVENT_TEXT, AUSPEX_EVENT_USAGE, AUSPEX_EVENT_DONE};
    auspex_session* s = rig.session();
    for (size_t i = 0; i <= all.size(); ++i) {
        CAPTURE(i);
        Seen seen{i < all.size() ? all[i] : -1, {}};
        const auspex_code code = chat.run(s, on_event, &seen);
        CHECK(seen.types ==
              std::vector<int32_t>(all.begin(), all.begin() + std::min<long>(static_cast<long>(i) + 1, 4)));
        if (i == all.size()) {
            CHECK(code == AUSPEX_OK);
        } else {
            CHECK(code == AUSPEX_CANCELLED);
            CHECK(std::string(rig.ok.error.text) == "cancelled by on_event");
        }
    }
    auspex_session_free(s);
}

TEST_CASE("C: a chat says by which limit it ended: its own, or that of the context") {
    ChatOf chat("x{100}");
    Rig& rig = chat.rig;
    struct End {
        uint64_t n_prompt, n_generated;
        int32_t finish;
    };
    const auto on_event = [](const auspex_event* e, void* user) -> int32_t {
        End& end = *static_cast<End*>(user);
        if (e->type == AUSPEX_EVENT_USAGE) end.n_prompt = e->n_prompt, end.n_generated = e->n_generated;
        if (e->type == AUSPEX_EVENT_DONE) end.finish = e->finish;
        return 0;
    };
    auspex_session* s = rig.session(64);
    End end{};
    rig.ok(chat.run(s, on_event, &end));
    CHECK(end.finish == AUSPEX_FINISH_CONTEXT);
    CHECK(end.n_prompt + end.n_generated == 64);
    chat.options.max_tokens = 3;
    rig.ok(chat.run(s, on_event, &end));
    CHECK(end.finish == AUSPEX_FINISH_LENGTH);
    CHECK(end.n_generated == 3);
    auspex_session_free(s);
}

TEST_CASE("C: a stream says that a stop string was found, and gives nothing from there on") {
    Rig rig;
    const char* stops[] = {"STOP"};
    auspex_stream* stream = nullptr;
    rig.ok(auspex_stream_create(rig.model, stops, 1, 0, &stream, rig.ok));
    int32_t ids[16];
    size_t n = 0;
    rig.ok(auspex_encode(rig.model, "a STOP b", 8, 0, ids, 16, &n, rig.ok));
    std::string all;
    size_t n_before = 0;  // tokens up to the end of the stop string
    while (auspex_stream_stopped(stream) == 0 && n_before < n) {
        const char* text = nullptr;
        size_t n_text = 0;
        rig.ok(auspex_stream_push(stream, ids[n_before++], &text, &n_text, rig.ok));
        all.append(text, n_text);
    }
    char said[16];
    size_t n_said = 0;
    rig.ok(auspex_decode(rig.model, ids, n_before, 0, said, sizeof said, &n_said, rig.ok));
    CHECK(std::string(said, n_said) == "a STOP");
    CHECK(auspex_stream_stopped(stream) == 1);
    for (; n_before < n; ++n_before) {
        const char* text = nullptr;
        size_t n_text = 7;
        rig.ok(auspex_stream_push(stream, ids[n_before], &text, &n_text, rig.ok));
        CHECK(n_text == 0);
    }
    CHECK(all == "a ");
    auspex_stream_free(stream);
    const char* none[] = {nullptr};
    CHECK(auspex_stream_create(rig.model, none, 1, 0, &stream, rig.ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(std::string(rig.ok.error.text) == "a text in stops is null");
}

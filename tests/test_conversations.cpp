// Conversations as applications hold them: render, encode with marks, sync, next.
#include <doctest/doctest.h>

#include <algorithm>

#include "support.h"

using namespace auspex;
using namespace test;

namespace test_conversations {

template <class T>
T value(Result<T> r) {
    REQUIRE_MESSAGE(r.ok(), r.status().message());
    return r.value();
}

ChatMessage message(const char* role, std::string content) {
    ChatMessage m;
    m.role = role;
    m.content = std::move(content);
    return m;
}

/// A conversation on a session, with a renderer of its own.
class Talk {
  public:
    Talk(const Model& model, ChatStyle style, const SessionOptions& options) : model_(model), style_(style) {
        const Status s = Session::create(model, options).get(session_);
        REQUIRE_MESSAGE(s.ok(), s.message());
    }

    ChatRequest request;
    SyncReport report;        ///< of the last answer
    size_t n_prompt = 0;      ///< its prompt's tokens
    size_t last_message = 0;  ///< and the row at which its last user message ends
    Session& session() { return session_; }

    /// Answers the messages so far. Returns the raw text.
    std::string answer(size_t n_max, const Sampling& sampling = {}) {
        const ChatPrompt prompt = value(render_chat(request, style_));
        std::vector<Mark> marks;
        const std::vector<Token> ids = value(model_.encode(prompt, &marks));
        report = value(session_.sync(ids, marks));
        n_prompt = ids.size();
        last_message = marks.back().row;
        std::string text;
        bool ended = false;
        for (size_t n = 0; !ended && n < n_max;)
            for (const Token id : value(session_.next(sampling))) {
                if (ended || n == n_max) break;  // a cycle with drafts may give more
                ended = model_.is_end(id);
                if (!ended) text += value(model_.decode({&id, 1})), ++n;
            }
        const ChatReply reply = value(parse_reply(text, prompt.inside_thinking));
        ChatMessage m = message("assistant", reply.content);
        m.reasoning = reply.thinking;
        m.has_reasoning = prompt.inside_thinking;
        request.messages.push_back(m);
        return text;
    }

  private:
    Model model_;
    ChatStyle style_;
    Session session_;
};

const char* const kSubjects[] = {"double", "square", "half", "cube", "absolute value", "negation"};

std::string question(Random& random) {
    switch (random.below(3)) {
        case 0:
            return std::string("Write a Python function that returns the ") + kSubjects[random.below(6)] +
                   " of a number.";
        case 1: return "Is pump " + std::to_string(random.below(90)) + " in order after the inspection of the belt?";
        default: return "Write a short story about a lamp and " + std::to_string(2 + random.below(9)) + " ships.";
    }
}

struct Transcript {
    std::vector<std::string> answers;
    size_t rows_computed = 0, n_back = 0;
};

/// n turns: of ten, one answers again, two change an earlier message, one takes up a version that was left.
Transcript chat(const Model& model, const SessionOptions& options, size_t n, uint64_t seed, const Sampling& sampling) {
    Random random(seed);
    Talk talk(model, model.info().chat_template.style, options);
    std::vector<ChatMessage>& all = talk.request.messages;
    std::vector<std::vector<ChatMessage>> left;
    all.push_back(message("system", "You are a careful assistant."));
    Transcript out;
    for (size_t turn = 0; turn < n; ++turn) {
        const uint32_t kind = all.size() < 3 ? 9 : random.below(10);
        const size_t n_turn = all.size() / 2;
        if (kind <= 2) {
            left.push_back(all);
            const size_t back = kind == 0 ? 1 : 1 + random.below(static_cast<uint32_t>(std::min<size_t>(n_turn, 5)));
            all.resize(1 + 2 * (n_turn - back) + (kind == 0 ? 1 : 0));
        } else if (kind == 3 && !left.empty()) {
            all.swap(left[random.below(static_cast<uint32_t>(left.size()))]);
        }
        if (all.size() % 2 == 1) all.push_back(message("user", question(random)));
        Sampling s = sampling;
        s.seed = turn;
        out.answers.push_back(talk.answer(24, s));
        out.rows_computed += talk.report.rows_computed;
        out.n_back += talk.report.reason == SyncReason::checkpoint || talk.report.reason == SyncReason::resumed;
    }
    return out;
}

SessionOptions options_of(uint64_t checkpoint_bytes, Draft source, int depth = -1) {
    SessionOptions o;
    o.n_context = 4096;
    o.checkpoint_bytes = checkpoint_bytes;
    o.draft.source = source;
    o.draft.depth = depth;
    return o;
}

/// Four turns.
void check_turns(const Model& model, ChatStyle style, bool thinking, bool preserve) {
    CAPTURE(int(style));
    CAPTURE(thinking);
    CAPTURE(preserve);
    Talk talk(model, style, options_of(kDefaultCheckpoints, Draft::off));
    talk.request.enable_thinking = thinking;
    talk.request.preserve_thinking = preserve;
    talk.request.messages.push_back(message("system", "You are a careful assistant for a pumping station."));
    for (size_t turn = 0; turn < 4; ++turn) {
        CAPTURE(turn);
        talk.request.messages.push_back(
            message("user", "Write a Python function that returns the " + std::string(kSubjects[turn]) + "."));
        const std::vector<Token> before(talk.session().history().begin(), talk.session().history().end());
        const size_t said_before = talk.last_message;
        talk.answer(16);
        const SyncReport& r = talk.report;
        CHECK(r.rows_computed + r.rows_reused == talk.n_prompt);
        if (turn == 0) continue;
        // What follows the last message of the turn before: its answer as the template shows it now, and this turn.
        CHECK(r.rows_computed <= talk.n_prompt - said_before);
        // If the template shows the answer as it was generated, that is not computed again. The last token of a
        // generation is sampled and not computed.
        if (r.diverged_at == before.size()) CHECK(r.rows_computed == talk.n_prompt - (before.size() - 1));
        // Nothing but thinking changes: an empty part of it is kept, too, if thinking is.
        const bool qwen36 = style == ChatStyle::qwen36 || style == ChatStyle::qwen36_unsloth;
        if (qwen36 && preserve && !thinking) CHECK(r.reason == SyncReason::appended);
    }
}

}  // namespace test_conversations

using namespace test_conversations;

TEST_CASE("the documented loop computes the rows of the new turn, for every template style") {
    const Model model = load_model(cpu_device(), repo_dir() + "/examples/models/auspex-demo.gguf");
    for (const ChatStyle style : {ChatStyle::chatml, ChatStyle::chatml_no_think})
        check_turns(model, style, false, false);
    for (const ChatStyle style : {ChatStyle::qwen35, ChatStyle::qwen36, ChatStyle::qwen36_unsloth})
        for (const bool thinking : {false, true})
            for (const bool preserve : {false, true})
                if (style != ChatStyle::qwen35 || !preserve) check_turns(model, style, thinking, preserve);
}

TEST_CASE("lossless drafting and restore equivalence: chats with random edits are the same with and without both" *
          doctest::test_suite("long")) {
    const Model model = load_model(cpu_device(), repo_dir() + "/examples/models/auspex-demo.gguf");
    Sampling seeded;
    seeded.temperature = 0.8f;
    seeded.top_k = 40;
    const size_t n_turn = deep() ? 30 : 8;
    const uint64_t n_chat = deep() ? 4 : 2;
    for (uint64_t seed = 1; seed <= n_chat; ++seed) {
        const Sampling sampling = seed % 2 != 0 ? Sampling() : seeded;
        const Transcript plain = chat(model, options_of(0, Draft::off), n_turn, seed, sampling);
        for (const uint64_t bytes : {kDefaultCheckpoints, uint64_t{8} << 20, uint64_t{0}})
            for (const Draft source : {Draft::off, Draft::mtp_lookup}) {
                if (bytes == 0 && source == Draft::off) continue;
                CAPTURE(bytes);
                CAPTURE(int(source));
                const Transcript t = chat(model, options_of(bytes, source, 3), n_turn, seed, sampling);
                CHECK(t.answers == plain.answers);
                if (bytes == 0) continue;
                CHECK(t.n_back > n_turn / 2);
                CHECK(3 * t.rows_computed < 2 * plain.rows_computed);
            }
    }
}

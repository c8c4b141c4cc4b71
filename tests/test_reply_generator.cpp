// ReplyGenerator: what ends a reply, and that nothing of it depends on drafts, on how far they go, or on interruptions.
#include <doctest/doctest.h>

#include <algorithm>

#include "draft_rig.h"
#include "session_rig.h"

using namespace auspex;
using draft_rig::demo_model;

namespace {

using Kind = ReplyEvent::Kind;

const char* const kPrompt = "2026-03-14 08:00 Pump-3 status=";

struct Replied {
    std::string thinking, content;  ///< what the events said
    ChatReply reply;
    std::vector<Token> tokens;
    Finish finish = Finish::none;
    size_t n_step = 0, n_thinking_token = 0;
};

void add(Replied* to, const std::vector<ReplyEvent>& events) {
    for (const ReplyEvent& e : events) (e.kind == Kind::reasoning ? to->thinking : to->content) += e.text;
}

/// The whole reply to kPrompt. The session's history must end with it.
Replied replied(const Model& model, Session& session, const ReplyOptions& options) {
    const std::vector<Token> prompt = model.encode(kPrompt).value();
    test::sync(session, prompt);
    ReplyGenerator reply(model, session, options);
    REQUIRE(reply);
    Replied r;
    while (reply.ended() == Finish::none) {
        const auto events = reply.next();
        REQUIRE_MESSAGE(events.ok(), events.status().message());
        add(&r, events.value());
        ++r.n_step;
    }
    add(&r, reply.finish().value());
    REQUIRE(reply.resume().ok());
    r.tokens.assign(reply.tokens().begin(), reply.tokens().end());
    r.reply = reply.reply();
    r.finish = reply.ended();
    r.n_thinking_token = reply.n_thinking_token();
    const size_t n_end = r.finish == Finish::end ? 1 : 0;
    CHECK(session.history().size() == prompt.size() + r.tokens.size() + n_end);
    CHECK(std::equal(r.tokens.begin(), r.tokens.end(), session.history().begin() + prompt.size()));
    CHECK(r.reply.content == r.content);
    CHECK(r.reply.thinking == r.thinking);
    return r;
}

Session session_on(const Model& model, int depth, uint32_t n_context = 512) {
    SessionOptions o;
    o.n_context = n_context;
    o.draft.source = Draft::best;
    o.draft.depth = depth;
    return test::open(model, o);
}

/// Plain decoding of n tokens after kPrompt, as text.
std::string plain_text(const Model& model, size_t n) {
    Session session = session_on(model, 0);
    test::sync(session, model.encode(kPrompt).value());
    return model.decode(test::more(session, n)).value();
}

}  // namespace

TEST_CASE("a reply ends at its limit, at a stop string, and where the context is full, with drafts and without") {
    const Model model = demo_model(1);
    const std::string text = plain_text(model, 40);
    for (const int depth : {0, 3, 8}) {
        Session session = session_on(model, depth);
        ReplyOptions o;
        o.max_tokens = 40;
        Replied r = replied(model, session, o);
        CHECK(r.finish == Finish::length);
        CHECK(r.tokens.size() == 40);
        CHECK(r.content == text);
        CHECK((depth == 0 || r.n_step < 40));

        o.max_tokens = kNoLimit;
        const std::string stop = text.substr(21, 4);
        o.stops = {"not in it", stop};
        r = replied(model, session, o);
        CHECK(r.finish == Finish::stop);
        CHECK(r.content == text.substr(0, text.find(stop)));

        Session small = session_on(model, depth, 64);
        o.stops.clear();
        r = replied(model, small, o);
        CHECK(r.finish == Finish::context);
        CHECK(small.history().size() == 64);

        o.max_tokens = 0;
        r = replied(model, session, o);
        CHECK(r.finish == Finish::length);
        CHECK((r.n_step == 0 && r.content.empty()));
    }
}

TEST_CASE("a reply ends where the model ends it") {
    const Model model = demo_model(1);
    Session session = session_on(model, 3);
    ReplyOptions o;
    for (Token id = 0; id < static_cast<Token>(model.info().n_vocab); ++id)
        if (model.is_end(id)) o.sampling.logit_bias = {{id, 1000}};
    Replied r = replied(model, session, o);
    CHECK(r.finish == Finish::end);
    CHECK((r.tokens.empty() && r.content.empty()));
    CHECK(model.is_end(session.history()[session.history().size() - 1]));

    o.ignore_end = true;
    o.max_tokens = 9;
    r = replied(model, session, o);
    CHECK(r.finish == Finish::length);
    CHECK((r.tokens.size() == 9 && r.content.empty()));
    CHECK(std::all_of(r.tokens.begin(), r.tokens.end(), [&](Token id) { return model.is_end(id); }));
}

TEST_CASE("thinking that is too long is closed, and the constraint of the answer begins after it") {
    const Model model = demo_model(1);
    const Grammar grammar = Grammar::from_regex("[0-9]{3}").value();
    std::string thought;
    for (const int depth : {0, 3, 8})
        for (const uint64_t budget : {uint64_t{0}, uint64_t{1}, uint64_t{7}, uint64_t{20}}) {
            Session session = session_on(model, depth);
            ReplyOptions o;
            o.inside_thinking = true;
            o.max_thinking_tokens = budget;
            o.max_tokens = 60;
            const Replied open = replied(model, session, o);
            CHECK(open.content.size() > 20);
            CHECK(open.n_thinking_token == budget);

            o.free_thinking = true;
            o.sampling.constraint = Constraint::create(model, grammar).value();
            const Replied r = replied(model, session, o);
            CHECK(r.finish == Finish::end);
            CHECK(r.thinking == open.thinking);
            CHECK(r.n_thinking_token == budget);
            CHECK(r.content.size() == 3);
            CHECK(std::all_of(r.content.begin(), r.content.end(), [](char c) { return c >= '0' && c <= '9'; }));
            CHECK(r.thinking.empty() == (budget == 0));
            if (budget == 20 && depth == 0) thought = r.thinking;
            if (budget == 20) CHECK(r.thinking == thought);

            o.free_thinking = false;  // the grammar knows no </think>
            test::sync(session, model.encode(kPrompt).value());
            ReplyGenerator refused(model, session, o);
            Status s;
            while (s.ok() && refused.ended() == Finish::none) s = refused.next().status();
            if (budget > 3) continue;  // it ends before
            CHECK(s.code == Code::bad_argument);
            CHECK(s.text.find("set free_thinking") != std::string::npos);
        }
}

TEST_CASE("only a constraint that refuses the end of the thinking is blamed for it") {
    class Rule : public TokenRule {
      public:
        explicit Rule(size_t n) : n_(n) {}
        bool allows(Span<const Token> text, Token) const override { return text.size() < n_; }

      private:
        size_t n_;
    };
    const Model model = demo_model(1);
    const size_t n_close = model.encode("\n</think>\n\n", EncodeOptions{true}).value().size();
    Session session = session_on(model, 0);
    const auto error = [&](const Constraint& constraint, float temperature) {
        test::sync(session, model.encode(kPrompt).value());
        ReplyOptions o;
        o.inside_thinking = true;
        o.max_thinking_tokens = 0;
        o.max_tokens = 20;
        o.sampling.temperature = temperature;
        o.sampling.constraint = constraint;
        ReplyGenerator reply(model, session, o);
        Status s;
        while (s.ok() && reply.ended() == Finish::none) s = reply.next().status();
        return s.text;
    };
    const auto rule = [&](size_t n) { return Constraint::create(model, std::make_shared<const Rule>(n)).value(); };
    const std::string blame = "set free_thinking";
    CHECK(error(rule(n_close - 1), 0).find(blame) != std::string::npos);
    const std::string at_end = error(rule(n_close), 0), hot = error(rule(20), -1);
    CHECK(at_end.find("the constraint allows no token after") == 0);
    CHECK(hot.find("sampling.temperature is -1") == 0);
    CHECK(error(rule(20), 0).empty());
}

TEST_CASE("tokens of the thinking are counted up to its text's end, with drafts and without") {
    const Model model = demo_model(1);
    const std::vector<Token> tag = model.encode("</think>", EncodeOptions{true}).value();
    size_t n_closed = 0;
    for (uint64_t seed = 1; seed <= 8; ++seed) {
        ReplyOptions o;
        o.inside_thinking = true;
        o.max_tokens = 60;
        o.sampling.temperature = 2;
        o.sampling.seed = seed;
        o.sampling.logit_bias = {{tag[0], 15}};
        Session plain = session_on(model, 0);
        const Replied alone = replied(model, plain, o);
        if (alone.content.empty()) continue;  // it thought to its end
        ++n_closed;
        const auto close = std::search(alone.tokens.begin(), alone.tokens.end(), tag.begin(), tag.end());
        const std::string counted =
            model.decode(Span<const Token>(alone.tokens.data(), alone.n_thinking_token)).value();
        CHECK(alone.n_thinking_token <= static_cast<size_t>(close - alone.tokens.begin()));
        CHECK(counted.find(alone.thinking) != std::string::npos);
        for (const int depth : {3, 8}) {
            Session session = session_on(model, depth);
            const Replied drafted = replied(model, session, o);
            CHECK(drafted.thinking == alone.thinking);
            CHECK(drafted.n_thinking_token == alone.n_thinking_token);
        }
    }
    CHECK(n_closed > 2);
}

TEST_CASE("one by one, each token of the answer has logits, and thinking comes in pieces") {
    const Model model = demo_model(1);
    Session session = session_on(model, 3);
    ReplyOptions o;
    o.inside_thinking = true;
    o.max_thinking_tokens = 16;
    o.max_tokens = 40;
    const Replied whole = replied(model, session, o);
    o.one_by_one = true;
    test::sync(session, model.encode(kPrompt).value());
    ReplyGenerator reply(model, session, o);
    Replied r;
    size_t n_seen = 0;
    while (reply.ended() == Finish::none) {
        const size_t n_before = reply.tokens().size();
        Token likely = -1;
        if (!reply.in_thinking()) {
            const auto logits = reply.logits();
            REQUIRE_MESSAGE(logits.ok(), logits.status().message());
            likely = static_cast<Token>(std::max_element(logits.value().begin(), logits.value().end()) -
                                        logits.value().begin());
        }
        add(&r, reply.next().value());
        if (likely < 0 || reply.ended() == Finish::end) continue;
        REQUIRE(reply.tokens().size() == n_before + 1);
        CHECK(reply.tokens()[n_before] == likely);
        ++n_seen;
    }
    add(&r, reply.finish().value());
    CHECK(n_seen >= 8);
    CHECK(r.thinking == whole.thinking);
    CHECK(r.content == whole.content);
}

TEST_CASE("one by one, drafts do not compute rows that are taken back") {
    const Model model = demo_model(1);
    std::vector<Token> plain;
    for (const int depth : {0, 3, 8}) {
        CAPTURE(depth);
        Session session = session_on(model, depth);
        ReplyOptions o;
        o.one_by_one = true;
        o.max_tokens = 40;
        const Replied r = replied(model, session, o);
        CHECK(r.n_step == 40);
        CHECK(session.stats().rows_decoded == 39);
        if (depth == 0) plain = r.tokens;
        CHECK(r.tokens == plain);
    }
}

TEST_CASE("an end token that is ignored does not end the thinking, nor its limit") {
    const Model model = demo_model(1);
    Token end = 0;
    while (!model.is_end(end)) ++end;
    for (const bool free : {false, true}) {
        Session session = session_on(model, 0);
        test::sync(session, model.encode(kPrompt).value());
        ReplyOptions o;
        o.inside_thinking = true;
        o.ignore_end = true;
        o.max_thinking_tokens = 5;
        o.max_tokens = 20;
        o.free_thinking = free;
        if (free) o.sampling.constraint = Constraint::create(model, Grammar::from_regex("[0-9]{30}").value()).value();
        ReplyGenerator reply(model, session, o);
        Replied r;
        for (const Token id : {model.encode("a").value()[0], end, end}) add(&r, reply.push(id).value());
        CHECK(reply.in_thinking());
        CHECK(reply.tokens().size() == 3);
        while (reply.ended() == Finish::none) {
            const auto events = reply.next();
            REQUIRE_MESSAGE(events.ok(), events.status().message());
            add(&r, events.value());
        }
        add(&r, reply.finish().value());
        CHECK(reply.ended() == Finish::length);
        CHECK(reply.n_thinking_token() == 5);
        CHECK(!r.content.empty());
    }
}

TEST_CASE("a reply goes on where it was cancelled") {
    const Model model = demo_model(1);
    ReplyOptions o;
    o.inside_thinking = true;
    o.max_thinking_tokens = 16;
    o.max_tokens = 40;
    o.stops = {"nowhere"};
    Session calm = session_on(model, 3);
    const Replied whole = replied(model, calm, o);
    Session session = session_on(model, 3);
    test::sync(session, model.encode(kPrompt).value());
    ReplyGenerator reply(model, session, o);
    Replied r;
    for (int i = 0; reply.ended() == Finish::none; ++i) {
        session.cancel(i % 2 == 0);
        const auto events = reply.next();
        if (i % 2 == 0)
            CHECK(events.status().code == Code::cancelled);
        else
            add(&r, events.value());
    }
    session.cancel(false);
    add(&r, reply.finish().value());
    CHECK(r.thinking == whole.thinking);
    CHECK(r.content == whole.content);
}

TEST_CASE("finish() closes the thinking also where the session is cancelled") {
    const Model model = demo_model(1);
    Session session = session_on(model, 0);
    const std::vector<Token> prompt = model.encode(kPrompt).value();
    test::sync(session, prompt);
    ReplyOptions o;
    o.inside_thinking = true;
    o.free_thinking = true;
    o.sampling.constraint = Constraint::create(model, Grammar::from_regex("[a-z ]{1,80}").value()).value();
    ReplyGenerator reply(model, session, o);
    for (const Token id : model.encode("I think so.\n</think>", EncodeOptions{true}).value())
        REQUIRE(reply.push(id).ok());
    session.cancel();
    REQUIRE(reply.finish().ok());
    CHECK(reply.reply().thinking == "I think so.");
    CHECK(model.decode(reply.tokens(), DecodeOptions{true}).value() == "I think so.\n</think>\n\n");
    session.cancel(false);
    REQUIRE(reply.resume().ok());
    CHECK(session.history().size() == prompt.size() + reply.tokens().size());
}

TEST_CASE("tokens of the caller's own are part of the reply, and what is no chat is not parsed") {
    const Model model = demo_model(1);
    Session session = session_on(model, 3);
    const std::string said = "<think>\na\n</think>\n\nok <tool_call> 4";
    const std::vector<Token> ids = model.encode(said, EncodeOptions{true}).value();
    for (const bool parse : {true, false}) {
        test::sync(session, model.encode(kPrompt).value());
        ReplyOptions o;
        o.parse = parse;
        ReplyGenerator reply(model, session, o);
        Replied r;
        for (const Token id : ids) add(&r, reply.push(id).value());
        add(&r, reply.finish().value());
        CHECK(reply.ended() == Finish::none);
        CHECK(reply.tokens().size() == ids.size());
        CHECK(r.thinking == (parse ? "a" : ""));
        CHECK(reply.n_thinking_token() == (parse ? model.encode("<think>\na", EncodeOptions{true}).value().size() : 0));
        CHECK(r.content == (parse ? "ok <tool_call> 4" : said));
        CHECK(reply.reply().content == r.content);
        CHECK(reply.push(ids[0]).status().text.find("the reply has ended") != std::string::npos);
        CHECK(reply.next().status().code == Code::bad_argument);
        CHECK(reply.finish().status().code == Code::bad_argument);
    }
}

TEST_CASE("no stop string is found in a call that a limit has cut, whatever its form") {
    const Model model = demo_model(1);
    Session session = session_on(model, 0);
    const struct {
        const char *said, *content;
        Finish finish;
    } cases[] = {
        {"ok <tool_call>\n<function=f>\n<parameter=s>\nSTOP and", nullptr, Finish::length},
        {"ok <tool_call>\n<function=STOP", nullptr, Finish::length},
        {"ok <tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"STOP and", nullptr, Finish::length},
        {"<tool_call>\n{\"name\": \"STOP", nullptr, Finish::length},
        {"<think>\nHm. <tool_call>\n{\"name\": \"f\"}\n</tool_call> <tool_call>\n{\"name\": \"STOP",
         "<tool_call>\n{\"name\": \"STOP", Finish::length},
        // What has the form of a call but is none, and what is held back in front of a call.
        {"ok <tool_call>\n{no name STOP}\n</tool_call> x", "ok <tool_call>\n{no name ", Finish::stop},
        {"ok STO<tool_call>\n{\"name\": \"P", nullptr, Finish::length},
    };
    for (const auto& c : cases) {
        INFO(c.said);
        const std::vector<Token> ids = model.encode(c.said, EncodeOptions{true}).value();
        test::sync(session, model.encode(kPrompt).value());
        ReplyOptions o;
        o.stops = {"STOP"};
        o.max_tokens = ids.size();
        ReplyGenerator reply(model, session, o);
        std::string shown;
        const auto show = [&](const std::vector<ReplyEvent>& events) {
            for (const ReplyEvent& e : events)
                if (e.kind == ReplyEvent::Kind::text) shown += e.text;
        };
        for (const Token id : ids)
            if (reply.ended() == Finish::none) show(reply.push(id).value());
        show(reply.finish().value());
        CHECK(reply.ended() == c.finish);
        CHECK((reply.stop() != nullptr) == (c.finish == Finish::stop));
        CHECK(reply.reply().content == (c.content ? c.content : c.said));
        CHECK(shown == reply.reply().content);
    }
}

TEST_CASE("errors of a ReplyGenerator name what is wrong") {
    ReplyGenerator none;
    CHECK(!none);
    CHECK(none.next().status().text.find("ReplyGenerator") != std::string::npos);
    CHECK(none.push(0).status().code == Code::bad_argument);
    CHECK(none.logits().status().code == Code::bad_argument);
    CHECK(none.pause().status().code == Code::bad_argument);
    CHECK(none.resume().status().code == Code::bad_argument);
    CHECK(none.finish().status().code == Code::bad_argument);
    CHECK(none.tokens().empty());
    CHECK((none.ended() == Finish::none && !none.in_thinking() && !none.stop() && none.reply().content.empty()));

    const Model model = demo_model(1);
    Session empty;
    ReplyGenerator no_session(model, empty);
    CHECK(no_session.next().status().code == Code::bad_argument);
    Session session = session_on(model, 0);
    ReplyGenerator no_prompt(model, session);
    CHECK(no_prompt.next().status().code == Code::bad_argument);
    test::sync(session, model.encode(kPrompt).value());
    ReplyGenerator reply(model, session);
    for (const Token id : {Token{-1}, static_cast<Token>(model.info().n_vocab)})
        CHECK(reply.push(id).status().text.find("outside the vocabulary") != std::string::npos);
    ReplyOptions wrong;
    wrong.sampling.top_p = 2;
    ReplyGenerator refused(model, session, wrong);
    CHECK(refused.next().status().text.find("top_p") != std::string::npos);
    // What the session refuses is not taken for a full context.
    const Session elsewhere = std::move(session);
    CHECK(reply.push(5).status().text.find("Session::create") != std::string::npos);
    CHECK(reply.ended() == Finish::none);
}

TEST_CASE("a reply samples no token beyond its limits, whatever drafts") {
    const Model model = demo_model(1);
    const size_t n_close = model.encode("\n</think>\n\n", EncodeOptions{true}).value().size();
    for (const int depth : {0, 3, 8})
        for (const uint64_t budget : {uint64_t{3}, uint64_t{6}, uint64_t{11}, uint64_t{40}}) {
            CAPTURE(depth);
            CAPTURE(budget);
            Session session = session_on(model, depth);
            ReplyOptions o;
            o.max_tokens = 40;
            o.max_thinking_tokens = budget;
            o.inside_thinking = budget < 40;
            o.ignore_end = true;
            const Replied r = replied(model, session, o);
            const size_t n_sampled = 40 - (budget < 40 ? n_close : 0);
            CHECK(r.tokens.size() == 40);
            CHECK(session.stats().tokens_sampled == n_sampled);
            CHECK((depth == 0 || r.n_step < 30));
        }
}

TEST_CASE("a reply ends with the token that completes a stop string") {
    const Model model = demo_model(1);
    const std::string stop = plain_text(model, 40).substr(21, 4);
    Session session = session_on(model, 0);
    ReplyOptions o;
    o.stops = {stop};
    const Replied r = replied(model, session, o);
    CHECK(r.finish == Finish::stop);
    CHECK(session.stats().tokens_sampled == r.tokens.size());
    CHECK(model.decode(r.tokens).value().find(stop) != std::string::npos);
    CHECK(model.decode(Span<const Token>(r.tokens.data(), r.tokens.size() - 1)).value().find(stop) ==
          std::string::npos);
}

TEST_CASE("thinking that the reply opens by itself is closed at its limit, too, and opens once") {
    const Model model = demo_model(1);
    Session session = session_on(model, 3);
    const EncodeOptions special{true};
    const std::vector<Token> open = model.encode("<think>\n", special).value(),
                             close = model.encode("\n</think>\n\n", special).value(),
                             again = model.encode("ok <think>\nno", special).value();
    const std::vector<Token> prompt = model.encode(kPrompt).value();
    test::sync(session, prompt);
    ReplyOptions o;
    o.max_tokens = 60;
    o.max_thinking_tokens = open.size() + 9;
    ReplyGenerator reply(model, session, o);
    CHECK(!reply.in_thinking());
    for (const Token id : open) REQUIRE(reply.push(id).ok());
    CHECK(reply.in_thinking());
    while (reply.in_thinking()) REQUIRE(reply.next().ok());
    REQUIRE(reply.tokens().size() == open.size() + 9 + close.size());
    CHECK(std::equal(close.begin(), close.end(), reply.tokens().begin() + open.size() + 9));
    for (const Token id : again) REQUIRE(reply.push(id).ok());
    CHECK(!reply.in_thinking());
    REQUIRE(reply.finish().ok());
    CHECK(reply.n_thinking_token() == open.size() + 9);
    CHECK(reply.reply().content == "ok <think>\nno");
}

TEST_CASE("a stop string in what is held back to the end is found by finish()") {
    const Model model = demo_model(1);
    Session session = session_on(model, 0);
    test::sync(session, model.encode(kPrompt).value());
    ReplyOptions o;
    o.stops = {"<tool"};
    ReplyGenerator reply(model, session, o);
    for (const Token id : model.encode("ok <tool").value()) REQUIRE(reply.push(id).ok());
    CHECK(reply.ended() == Finish::none);
    REQUIRE(reply.finish().ok());
    CHECK(reply.ended() == Finish::stop);
    REQUIRE(reply.stop());
    CHECK(*reply.stop() == "<tool");
    CHECK(reply.reply().content == "ok ");
}

TEST_CASE("a reply may fill the context to its last token, with the first and the last id of the vocabulary") {
    const Model model = demo_model(1);
    const std::vector<Token> prompt = model.encode(kPrompt).value();
    Session session = session_on(model, 0, static_cast<uint32_t>(prompt.size()) + 2);
    test::sync(session, prompt);
    ReplyOptions o;
    o.ignore_end = true;
    ReplyGenerator reply(model, session, o);
    for (const Token id : {Token{0}, static_cast<Token>(model.info().n_vocab) - 1}) REQUIRE(reply.push(id).ok());
    CHECK(session.history().size() == prompt.size() + 2);
    CHECK(reply.ended() == Finish::none);
    REQUIRE(reply.push(5).ok());
    CHECK(reply.ended() == Finish::context);
    CHECK(reply.tokens().size() == 2);
}

TEST_CASE("logits() of a reply are its own, also where the session was used for another text") {
    const Model model = demo_model(1);
    Session session = session_on(model, 3);
    test::sync(session, model.encode(kPrompt).value());
    ReplyOptions o;
    o.one_by_one = true;
    ReplyGenerator reply(model, session, o);
    REQUIRE(reply.next().ok());
    const auto likely = [&] {
        const auto logits = reply.logits();
        REQUIRE_MESSAGE(logits.ok(), logits.status().message());
        return std::max_element(logits.value().begin(), logits.value().end()) - logits.value().begin();
    };
    const std::ptrdiff_t own = likely();
    test::sync(session, model.encode("Once upon a time").value());
    CHECK(likely() == own);
    CHECK(reply.resume().value().reason == SyncReason::unchanged);
    REQUIRE(reply.next().ok());
    CHECK(reply.tokens()[1] == own);
}

TEST_CASE("two replies take turns on one session and are what they are alone") {
    const Model model = demo_model(1);
    const std::vector<Token> prompts[] = {model.encode(kPrompt).value(), model.encode("Once upon a time").value()};
    for (const int depth : {0, 3})
        for (const uint64_t cache : {uint64_t{0}, kDefaultCheckpoints}) {
            SessionOptions o;
            o.n_context = 512;
            o.draft.source = Draft::best;
            o.draft.depth = depth;
            o.checkpoint_bytes = cache;
            Session alone = test::open(model, o), shared = test::open(model, o);
            ReplyOptions options[2];
            options[1].sampling.temperature = 0.8f;
            options[1].inside_thinking = true;
            options[1].max_thinking_tokens = 17;
            ReplyGenerator replies[2];
            std::vector<Token> expected[2];
            for (size_t i = 0; i < 2; ++i) {
                options[i].max_tokens = 50;
                test::sync(alone, prompts[i]);
                ReplyGenerator reply(model, alone, options[i]);
                while (reply.ended() == Finish::none) REQUIRE(reply.next().ok());
                expected[i].assign(reply.tokens().begin(), reply.tokens().end());
                test::sync(shared, prompts[i]);
                replies[i] = ReplyGenerator(model, shared, options[i]);
            }
            for (size_t turn = 0; replies[0].ended() == Finish::none || replies[1].ended() == Finish::none; ++turn) {
                ReplyGenerator& reply = replies[turn % 2];
                if (reply.ended() != Finish::none) continue;
                REQUIRE(reply.resume().ok());
                for (size_t step = 0; step < 1 + turn % 3 && reply.ended() == Finish::none; ++step)
                    REQUIRE(reply.next().ok());
                if (reply.ended() == Finish::none) REQUIRE(reply.pause().ok());
            }
            for (size_t i = 0; i < 2; ++i) {
                REQUIRE(replies[i].resume().ok());
                REQUIRE(replies[i].finish().ok());
                CHECK(std::vector<Token>(replies[i].tokens().begin(), replies[i].tokens().end()) == expected[i]);
            }
        }
}

TEST_CASE("a character that a limit cuts is shown whole by the reply that goes on from there") {
    const Model model = demo_model(1);
    const std::string said = "a \xF0\x9F\x8E\x89 b";
    const std::vector<Token> ids = model.encode(said).value();
    REQUIRE(ids.size() > 4);  // no token has the whole character
    Session session = session_on(model, 0);
    for (size_t cut = 1; cut < ids.size(); ++cut)
        for (const bool parse : {true, false}) {
            test::sync(session, model.encode(kPrompt).value());
            std::string text;
            for (const size_t from : {size_t{0}, cut}) {
                ReplyOptions o;
                o.parse = parse;
                ReplyGenerator reply(model, session, o);
                Replied r;
                for (size_t i = from; i < (from == 0 ? cut : ids.size()); ++i) add(&r, reply.push(ids[i]).value());
                add(&r, reply.finish().value());
                CHECK(reply.reply().content == r.content);
                text += r.content;
            }
            CHECK(text == said);
        }
}

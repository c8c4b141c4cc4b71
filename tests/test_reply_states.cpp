// States that are kept within a generated text: a prompt that cuts the reply computes little, and its text does not
// depend on how the reply was drafted.
#include "reply_rig.h"

#include <algorithm>

using namespace reply_rig;

namespace test_reply_states {

constexpr size_t kPrompt = 60, kStride = 16;  // of the first reply, states at rows 64 + 16, 64 + 32, ..

/// Cancels a session from its progress callback, once. Must outlive the session.
class Cancel {
  public:
    auspex::Progress progress() {
        return [this](const char*, float) { return ++n_asked_ != at_; };
    }
    /// The n-th call from now on.
    void at_step(int n) { at_ = n_asked_ + n; }
    void never() { at_ = -1; }

  private:
    int n_asked_ = 0, at_ = -1;
};

struct Said {
    std::vector<Token> tokens;
    std::vector<size_t> bases, computed;  ///< of the prompts that cut a reply
    bool operator==(const Said& other) const {
        return tokens == other.tokens && bases == other.bases && computed == other.computed;
    }
};

/// A conversation whose replies are cut, each some tokens before the end that the session had come to.
Said talk(Session& session, const Sampling& sampling) {
    session.impl()->tree->set_reply_stride(kStride);
    Said said;
    std::vector<Token> prompt = tiny_ids(kPrompt, 31);
    sync(session, prompt, {{50, false}});
    const size_t n_reply[] = {90, 85, 71}, n_cut[] = {20, 12, 30};
    for (size_t i = 0; i < 3; ++i) {
        grow(session, prompt.size() + n_reply[i], sampling);
        prompt = join(history(session, prompt.size() + n_reply[i] - n_cut[i]), tiny_ids(5, 40 + i));
        const SyncReport r = sync(session, prompt, {{prompt.size() - 2, false}});
        said.bases.push_back(r.checkpoint_row);
        said.computed.push_back(r.rows_computed);
    }
    grow(session, prompt.size() + 30, sampling);
    said.tokens = history(session, prompt.size() + 30);
    return said;
}

/// n_guess: the depth of drafts from the block. Its weights are random: few guesses after the second are right, and
/// each takes a software device as long as a step.
void check(const Model& model, std::vector<uint32_t> run_aheads, int n_guess) {
    const uint32_t n_vocab = model.info().n_vocab;
    for (const float temperature : {0.0f, 1.0f}) {
        Sampling sampling;
        sampling.temperature = temperature;
        sampling.seed = 5;
        Session off = open(model, options_of(Draft::off, 0, 0));
        const Said plain = talk(off, sampling);
        CHECK(plain.bases == std::vector<size_t>{128, 133, 213 - 2});
        CHECK(plain.computed == std::vector<size_t>{7, 80, 48});
        for (const uint32_t run_ahead : run_aheads)
            for (const Draft source : {Draft::off, Draft::mtp, Draft::lookup}) {
                CAPTURE(temperature);
                CAPTURE(run_ahead);
                CAPTURE(static_cast<int>(source));
                if (source == Draft::off && run_ahead == 0) continue;  // which `plain` is
                // A short run on a GPU, which has run_ahead, tries a seed with one source.
                if (!deep() && temperature > 0 && run_ahead > 0 && source != Draft::mtp) continue;
                const int depth = source == Draft::off ? 0 : source == Draft::mtp ? n_guess : 5;
                Session session = open(model, options_of(source, depth, run_ahead));
                if (source == Draft::lookup) session.impl()->sources.text.reset(new Teacher(plain.tokens, n_vocab, 3));
                const Said drafted = talk(session, sampling);
                CHECK(drafted.tokens == plain.tokens);
                CHECK(drafted.bases == plain.bases);
                CHECK(drafted.computed == plain.computed);
                if (source == Draft::lookup) CHECK(session.stats().accepted[0] > 10);
            }
    }
}

/// A text whose sampling changes again and again, and the rows that each change computes.
std::vector<Token> change_sampling(Session& session, std::vector<uint64_t>* rows) {
    session.impl()->tree->set_reply_stride(kStride);
    const std::vector<Token> prompt = tiny_ids(300, 33);
    sync(session, prompt, {{290, false}});
    const auto count = [&] { return session.stats().rows_prefilled + session.stats().rows_decoded; };
    for (size_t i = 0; i < 6; ++i) {
        Sampling sampling;
        sampling.temperature = i % 2 == 0 ? 0.0f : 1.5f;
        sampling.seed = i;
        const uint64_t before = count();
        more(session, 1, sampling);
        rows->push_back(count() - before);
        more(session, 14, sampling);
    }
    return history(session);
}

/// What a caller may do between a reply and the next prompt without changing either.
enum class Between { nothing, logits, save, fork };

/// How a reply ends after n tokens: at its limit, which next() knows, or because the caller takes back what is beyond:
/// of the last next(), or six tokens more, as for a stop string of several tokens.
enum class End { generator, limit, taken_back, taken_back_more };

/// The next prompt after a reply.
struct Turn {
    size_t n_computed = 0;
    std::vector<float> logits;
};

/// A reply of n tokens, and the next prompt.
Turn next_turn(const Model& model, Session session, size_t n_reply, End end, Between between) {
    std::vector<Token> text = tiny_ids(40, 31);
    sync(session, text, {{30, false}});
    if (end == End::generator) {
        ReplyOptions options;
        options.max_tokens = n_reply;
        options.parse = false;
        options.ignore_end = true;
        ReplyGenerator reply(model, session, options);
        while (reply.ended() == Finish::none) REQUIRE(reply.next().ok());
        REQUIRE(reply.resume().ok());
    } else if (end == End::limit) {
        for (size_t n_left = n_reply; n_left > 0;) n_left -= session.next({}, n_left).value().size();
        sync(session, history(session));
    } else {
        grow(session, text.size() + n_reply + (end == End::taken_back_more ? 6 : 0));
        sync(session, history(session, text.size() + n_reply));
    }
    if (between == Between::logits) REQUIRE(session.logits().ok());
    if (between == Between::save) REQUIRE(session.save().ok());
    if (between == Between::fork) REQUIRE(session.fork().ok());
    text = join(history(session), tiny_ids(30, 32));
    REQUIRE(text.size() == 40 + n_reply + 30);
    Turn turn;
    turn.n_computed = sync(session, text).rows_computed;
    turn.logits = all_logits(session);
    return turn;
}

/// Replies of lengths that end within a cycle at each of its places.
void check_next_turn(const Model& model, const std::vector<size_t>& lengths, uint32_t run_ahead, int n_guess) {
    const std::vector<Token> said = plain_text(model, 40, 40 + lengths.back() + 20);
    for (const size_t n : lengths)
        for (const End end : {End::generator, End::limit, End::taken_back, End::taken_back_more}) {
            CAPTURE(n);
            CAPTURE(static_cast<int>(end));
            const auto turn = [&](Draft source, Between between) {
                Session session = open(model, options_of(source, source == Draft::mtp ? n_guess : 5, run_ahead));
                if (source == Draft::lookup) session.impl()->sources.text.reset(new Truth(said));
                return next_turn(model, std::move(session), n, end, between);
            };
            const Turn want = turn(Draft::off, Between::nothing);
            CHECK(want.n_computed == 30);
            for (const Draft source : {Draft::off, Draft::mtp, Draft::lookup}) {
                CAPTURE(static_cast<int>(source));
                const Turn got = turn(source, static_cast<Between>(n % 4));
                CHECK(got.n_computed == want.n_computed);
                CHECK(got.logits == want.logits);
            }
        }
}

}  // namespace test_reply_states

using namespace test_reply_states;

TEST_CASE("a prompt that cuts a reply goes back to a state within it, whatever drafted the reply") {
    const std::vector<std::byte> bytes = tiny_model();
    check(load_model(cpu_device(), bytes), {0}, 5);
}

TEST_CASE("a prompt after a reply that was cut computes the same rows and bits, whatever drafted the reply") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    check_next_turn(load_model(cpu_device(), bytes), {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, 0, 5);
}

TEST_CASE("where the end of a reply is taken back, the rows since one of its last two states are computed again") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(), bytes);
    for (const Draft source : {Draft::off, Draft::mtp}) {
        CAPTURE(static_cast<int>(source));
        Session session = open(model, options_of(source, 5, 0));
        session.impl()->tree->set_reply_stride(4 * kStride, kStride);
        session.impl()->trunk->set_recent_seconds(0);
        sync(session, tiny_ids(kPrompt, 31), {{50, false}});
        grow(session, 64 + 7 * kStride + 6);
        std::vector<size_t> rows;
        for (const auto& state : session.impl()->tree->states()) rows.push_back(state.row);
        std::sort(rows.begin(), rows.end());
        CHECK(rows == std::vector<size_t>{50, 128, 160, 176});
        SyncReport r = sync(session, join(history(session, 171), tiny_ids(5, 40)));
        CHECK(r.checkpoint_row == 160);
        CHECK(r.rows_computed == 171 + 5 - 160);
        CHECK(r.reason == SyncReason::checkpoint);
        // Further back a prompt goes on from a state that later ones do not replace.
        grow(session, 64 + 7 * kStride + 100);
        r = sync(session, join(history(session, 200), tiny_ids(5, 41)));
        CHECK(r.checkpoint_row == 170);
    }
}

TEST_CASE("where the end of a reply is taken back, the draft block keeps its rows") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(), bytes);
    for (size_t n_cut = 1; n_cut <= 12; ++n_cut) {
        CAPTURE(n_cut);
        Session session = open(model, options_of(Draft::mtp, 5, 0));
        sync(session, tiny_ids(kPrompt, 31), {{50, false}});
        more(session, 30);
        const size_t n = session.history().size() - n_cut;
        sync(session, join(history(session, n), tiny_ids(7, 40)));
        more(session, 1);
        const Session::Impl& s = *session.impl();
        CHECK(s.cache.kept(s.timeline.n_row()).first_key == 0);
    }
}

TEST_CASE("after logits() a prompt computes the same rows and bits with save() or fork() before it") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(), bytes);
    for (const Draft source : {Draft::off, Draft::mtp}) {
        CAPTURE(static_cast<int>(source));
        std::vector<Turn> turns;
        for (const Between between : {Between::nothing, Between::save, Between::fork}) {
            Session session = open(model, options_of(source, 5, 0));
            sync(session, tiny_ids(40, 31));
            grow(session, 44);
            REQUIRE(session.logits().ok());
            if (between == Between::save) REQUIRE(session.save().ok());
            if (between == Between::fork) REQUIRE(session.fork().ok());
            Turn turn;
            turn.n_computed = sync(session, join(history(session), tiny_ids(30, 32))).rows_computed;
            turn.logits = all_logits(session);
            CHECK(turn.n_computed == 30);
            turns.push_back(turn);
        }
        CHECK(turns[1].logits == turns[0].logits);
        CHECK(turns[2].logits == turns[0].logits);
    }
}

TEST_CASE("a reply that goes on after sync() has named its end or its next token leaves the same states") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(), bytes);
    const std::vector<Token> said = plain_text(model, 40, 140);
    for (size_t n = 41; n <= 52; ++n)
        for (const bool one_more : {false, true}) {
            CAPTURE(n);
            CAPTURE(one_more);
            size_t base = 0;
            std::vector<float> want;
            for_each_source(model, said, [&](Session& session, bool is_plain) {
                sync(session, tiny_ids(40, 31), {{30, false}});
                grow(session, n);
                sync(session, first(said, n + (one_more ? 1 : 0)));
                grow(session, 140);
                CHECK(history(session, 140) == said);
                const SyncReport r = sync(session, join(history(session, n + 4), tiny_ids(5, 40)));
                const std::vector<float> logits = all_logits(session);
                if (is_plain) {
                    base = r.checkpoint_row;
                    want = logits;
                }
                CHECK(r.checkpoint_row == base);
                CHECK(logits == want);
            });
            CHECK(base == 30);
        }
}

TEST_CASE("the end of a reply is kept where a state within it was due there, too") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(), bytes);
    for (const bool by_hand : {false, true})
        for (const size_t n_row : {79u, 80u, 81u}) {  // states are due at rows 64 + 16, 64 + 32, ..
            CAPTURE(by_hand);
            CAPTURE(n_row);
            Session session = open(model, options_of(Draft::off, 0, 0));
            session.impl()->tree->set_reply_stride(kStride);
            std::vector<Token> said = tiny_ids(kPrompt, 31);
            sync(session, said, {{50, false}});
            while (by_hand && said.size() < n_row) {
                said.push_back(static_cast<Token>(said.size()));
                sync(session, said);
            }
            if (!by_hand) {
                grow(session, n_row + 2);  // the last token is taken back, and the row of that before not computed
                said = history(session, n_row + 1);
            }
            sync(session, join(said, tiny_ids(30, 3)));
            grow(session, 150);
            sync(session, join(history(session), tiny_ids(30, 4)));
            const SyncReport edited = sync(session, join(said, tiny_ids(30, 5)));
            CHECK(edited.checkpoint_row == n_row);
            CHECK(edited.rows_computed == (by_hand ? 30 : 31));
        }
}

TEST_CASE("a reply to a text that was scored is taken back as plain decoding has it") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(), bytes);
    const std::vector<Token> text = tiny_ids(40, 31);
    std::vector<float> want;
    for_each_source(model, plain_text(model, 40, 70), [&](Session& session, bool is_plain) {
        sync(session, tiny_ids(90, 5));  // a longer prompt than the text
        REQUIRE(session.score(text, [](size_t, Span<const float>) {}).ok());
        grow(session, 52);
        const SyncReport r = sync(session, join(history(session, 51), tiny_ids(5, 40)));
        CHECK(r.rows_computed == 6);
        const std::vector<float> logits = all_logits(session);
        if (is_plain) want = logits;
        CHECK(logits == want);
    });
}

TEST_CASE("tokens taken back after logits() are computed again as they were") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(), bytes);
    const std::vector<Token> said = plain_text(model, 100, 130);
    for (size_t n_cut = 0; n_cut <= 5; ++n_cut) {
        CAPTURE(n_cut);
        std::vector<float> want;
        for_each_source(model, said, [&](Session& session, bool is_plain) {
            for (const bool asks : {false, true}) {
                if (n_cut == 0 && !asks) continue;  // the last row is computed with the prompt
                CAPTURE(asks);
                sync(session, {});
                sync(session, tiny_ids(100, 31));
                for (size_t n_left = 12; n_left > 0;) n_left -= session.next({}, n_left).value().size();
                if (asks) REQUIRE(session.logits().ok());
                const SyncReport r = sync(session, join(history(session, 112 - n_cut), tiny_ids(5, 40)));
                if (asks && n_cut > 0) CHECK(r.reason == SyncReason::checkpoint);
                const std::vector<float> logits = all_logits(session);
                if (is_plain && asks == (n_cut == 0)) want = logits;
                CHECK(logits == want);
            }
        });
    }
}

TEST_CASE("the report counts rows that a cancelled sync() left to compute again") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(), bytes);
    Session session = open(model, options_of(Draft::off, 0, 0));
    sync(session, tiny_ids(100, 31), {{90, false}});
    grow(session, 120);
    REQUIRE(session.logits().ok());
    const std::vector<Token> next = join(history(session, 115), tiny_ids(5, 40));
    session.cancel();
    CHECK(session.sync(next).status().code == Code::cancelled);
    session.cancel(false);
    const auto count = [&] { return session.stats().rows_prefilled + session.stats().rows_decoded; };
    const uint64_t before = count();
    const SyncReport r = sync(session, next);
    CHECK(r.rows_computed == count() - before);
    CHECK(r.rows_computed == 120 - 90);
    CHECK((r.rows_reused == 90 && r.checkpoint_row == 90 && r.reason == SyncReason::checkpoint));
}

TEST_CASE("the report counts a row once that two sync() compute again") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(), bytes);
    SessionOptions o = options_of(Draft::off, 0, 0);
    Cancel cancel;
    o.progress = cancel.progress();
    Session session = open(model, o);
    sync(session, tiny_ids(100, 31), {{90, false}});
    grow(session, 120);
    REQUIRE(session.logits().ok());
    const std::vector<Token> text = history(session);
    cancel.at_step(2);
    CHECK(session.sync(first(text, 115)).status().code == Code::cancelled);
    const SyncReport r = sync(session, first(text, 102));  // from row 90 again, and not from where the first came to
    CHECK((r.rows_computed == 102 - 90 && r.rows_reused == 90 && r.checkpoint_row == 90));
    CHECK(r.reason == SyncReason::checkpoint);
}

TEST_CASE("a cancelled sync() drops the tokens it was to take back, and the rows before them keep their bits") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(), bytes);
    const std::vector<Token> prompt = tiny_ids(100, 31);
    for (const size_t n_kept : {115u, 97u}) {  // of the reply, or of the prompt, where it is given again
        Turn turns[2];
        size_t bases[2];
        for (int i = 0; i < 2; ++i) {
            CAPTURE(n_kept);
            CAPTURE(i);
            SessionOptions o = options_of(Draft::off, 0, 0);
            Cancel cancel;
            o.progress = cancel.progress();
            Session session = open(model, o);
            sync(session, prompt, {{90, false}});
            grow(session, 130);
            REQUIRE(session.save().ok());
            const std::vector<Token> text = history(session);
            if (i == 1) {
                cancel.at_step(1);
                CHECK(session.sync(first(text, 120)).status().code == Code::cancelled);
            } else {
                sync(session, first(text, 120));
            }
            CHECK(history(session) == first(text, 120));
            if (n_kept > 100) {
                turns[i].logits = all_logits(session);
                sync(session, first(text, 120));
            }
            const SyncReport r = sync(session, join(first(text, n_kept), tiny_ids(20, 40)));
            bases[i] = r.checkpoint_row;
            turns[i].n_computed = r.rows_computed;
            const std::vector<float> logits = all_logits(session);
            turns[i].logits.insert(turns[i].logits.end(), logits.begin(), logits.end());
        }
        CHECK(turns[1].logits == turns[0].logits);
        CHECK((bases[0] == 90 && bases[1] == 90));
        CHECK(turns[1].n_computed == turns[0].n_computed);
    }
}

TEST_CASE("a prompt that is cancelled before its first row leaves the reply before it as it was") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(), bytes);
    for (const bool asks : {false, true}) {
        CAPTURE(asks);
        std::vector<float> want;
        for (const bool cancels : {false, true}) {
            CAPTURE(cancels);
            SessionOptions o = options_of(Draft::off, 0, 0);
            Cancel cancel;
            o.progress = cancel.progress();
            Session session = open(model, o);
            sync(session, tiny_ids(100, 31), {{90, false}});
            grow(session, 120);
            if (asks) REQUIRE(session.logits().ok());
            const std::vector<Token> text = history(session);
            const detail::Timeline& timeline = session.impl()->timeline;
            const size_t n_row = timeline.n_row();
            if (cancels) {
                cancel.at_step(1);
                CHECK(session.sync(join(text, tiny_ids(20, 41))).status().code == Code::cancelled);
                CHECK(history(session) == text);
            }
            CHECK((timeline.n_row() == n_row && timeline.n_asked() == 100));
            const std::vector<Token> next = join(asks ? text : first(text, 116), tiny_ids(20, 40));
            const SyncReport r = sync(session, next);
            CHECK(r.checkpoint_row == (asks ? 120 : 90));
            const std::vector<float> logits = all_logits(session);
            if (!cancels) want = logits;
            CHECK(logits == want);
        }
    }
}

TEST_CASE("a reply after a prompt that was cancelled keeps states from where it begins") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(), bytes);
    for (const Draft source : {Draft::off, Draft::mtp}) {
        CAPTURE(static_cast<int>(source));
        SessionOptions o = options_of(source, 5, 0);
        Cancel cancel;
        o.progress = cancel.progress();
        Session session = open(model, o);
        session.impl()->tree->set_reply_stride(kStride);
        cancel.at_step(2);
        CHECK(session.sync(tiny_ids(400, 31), std::vector<Mark>{{150, true}}).status().code == Code::cancelled);
        REQUIRE(session.history().size() == 64);
        grow(session, 164);
        for (const auto& state : session.impl()->tree->states()) CHECK(state.kind == StateKind::reply);
        const SyncReport r = sync(session, join(history(session, 140), tiny_ids(5, 40)));
        CHECK(r.checkpoint_row == 128);
        CHECK(r.reason == SyncReason::checkpoint);
    }
}

TEST_CASE("a ReplyGenerator goes on where taking back what was drafted is cancelled") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(), bytes);
    constexpr size_t n_prompt = 1100;  // more than is computed again as it was: it is a new prompt
    SessionOptions o = options_of(Draft::lookup, 5, 0);
    o.n_context = 2 * n_prompt;
    o.checkpoint_bytes = 0;
    Cancel cancel;
    o.progress = cancel.progress();
    Session plain = open(model, o);
    sync(plain, tiny_ids(n_prompt, 31));
    const std::vector<Token> said = join(history(plain), more(plain, 40));
    std::vector<Token> replies[2];
    for (const bool cancels : {false, true}) {
        Session session = open(model, o);
        session.impl()->sources.text.reset(new Truth(said));
        sync(session, tiny_ids(n_prompt, 31));
        ReplyOptions options;
        options.one_by_one = true;
        options.parse = false;
        options.ignore_end = true;
        options.max_tokens = 30;
        ReplyGenerator reply(model, session, options);
        while (reply.tokens().size() < 10) REQUIRE(reply.next().ok());
        REQUIRE(session.next(options.sampling).ok());  // beyond the reply, as drafts are where its thinking ends
        REQUIRE(session.save().ok());  // what is beyond the reply cannot be taken back without computing rows
        if (cancels) {
            cancel.at_step(3);
            CHECK(reply.next().status().code == Code::cancelled);
            CHECK(session.history().size() == 2 * 64);
        }
        while (reply.ended() == Finish::none) REQUIRE(reply.next().ok());
        replies[cancels].assign(reply.tokens().begin(), reply.tokens().end());
        REQUIRE(reply.resume().ok());
        CHECK(session.history().size() == n_prompt + 30);
    }
    CHECK(replies[1] == replies[0]);
}

#ifndef AUSPEX_NO_VULKAN
TEST_CASE("a prompt after a reply that was cut computes the same rows and bits, in the device loop too") {
    const Device device = gpu_device();
    if (!device) return;
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(device, bytes);
    const std::vector<size_t> all{2, 3, 4, 5};
    for (uint32_t run_ahead = 0; run_ahead < 3; ++run_ahead)
        check_next_turn(model, deep() ? all : std::vector<size_t>{2 + run_ahead}, run_ahead, 2);
}

TEST_CASE("a prompt that cuts a reply goes back to a state within it, in the device loop too") {
    const Device device = gpu_device();
    if (!device) return;
    const std::vector<std::byte> bytes = tiny_model(narrow());
    check(load_model(device, bytes), deep() ? std::vector<uint32_t>{0, 2} : std::vector<uint32_t>{2}, deep() ? 5 : 2);
}

TEST_CASE("another sampling computes the rows since the last checkpoint where tokens were computed ahead") {
    const Device device = gpu_device();
    if (!device) return;
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(device, bytes);
    std::vector<uint64_t> rows;
    for (const Draft source : {Draft::off, Draft::mtp}) {
        CAPTURE(static_cast<int>(source));
        Session plain = open(model, options_of(source, 0, 0)), ahead = open(model, options_of(source, 0, 3));
        const std::vector<Token> want = change_sampling(plain, &rows);
        rows.clear();
        CHECK(change_sampling(ahead, &rows) == want);
        REQUIRE(rows.size() == 6);
        for (const uint64_t n : rows)
            CHECK(n <= 30 + kStride + 3);  // the first ones go back to the prompt's checkpoint
    }
}

TEST_CASE("another sampling that drops tokens computed ahead is cancelled, and goes on from there") {
    const Device device = gpu_device();
    if (!device) return;
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(device, bytes);
    const std::vector<Token> prompt = tiny_ids(300, 33);
    Sampling other;
    other.temperature = 1.5f;
    Cancel cancel;
    SessionOptions o = options_of(Draft::off, 0, 3);
    o.progress = cancel.progress();
    Session plain = open(model, options_of(Draft::off, 0, 0)), ahead = open(model, o);
    for (Session* session : {&plain, &ahead}) {
        sync(*session, prompt, {{200, false}});
        more(*session, 14);
    }
    const auto rows = [&] { return ahead.stats().rows_prefilled + ahead.stats().rows_decoded; };
    const uint64_t before = rows();
    for (int i = 0; i < 2; ++i) {
        cancel.at_step(2);
        CHECK(ahead.next(other).status().code == Code::cancelled);
        CHECK(history(ahead) == history(plain));
    }
    cancel.never();
    CHECK(more(ahead, 10, other) == more(plain, 10, other));
    CHECK(rows() - before <= 100 + 14 + 10 + 6);
}
#endif

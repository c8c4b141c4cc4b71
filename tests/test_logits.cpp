// Session::logits and Sampling::logit_bias, on both back ends.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "draft_rig.h"

using namespace draft_rig;

namespace {

/// Runs a test on the CPU and, where there is one, on a GPU.
template <class F>
void on_both(F test) {
    const std::vector<std::byte> bytes = tiny_model(smallest());
    test(load_model(cpu_device(), bytes));
    static Device& gpu = *new Device(gpu_device());  // never destroyed: drivers have exit handlers of their own
    if (gpu) test(load_model(gpu, bytes));
}

Token best_of(Span<const float> logits) {
    return static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

TEST_CASE("logits() are those that next() samples from, and change no text") {
    on_both([](const Model& model) {
        const std::vector<Token> prompt = tiny_ids(20, 5), plain = text(model, {}, prompt, 12, {});
        for (int depth : {0, 3}) {
            Setup setup = with(Draft::mtp, depth);
            Session session = draft_rig::open(model, std::move(setup));
            CHECK(session.logits().status().code == Code::bad_argument);
            sync(session, prompt);
            std::vector<Token> seen;
            while (seen.size() < 12) {
                const auto logits = session.logits();
                REQUIRE_MESSAGE(logits.ok(), logits.status().message());
                REQUIRE(logits.value().size() == model.info().n_vocab);
                const Token best = best_of(logits.value());
                if (seen.size() % 4 == 3) {  // once in a while from an unchanged session again
                    const auto again = session.logits();
                    REQUIRE(again.ok());
                    CHECK(best_of(again.value()) == best);
                }
                const std::vector<Token> next = more(session, 1);
                CHECK(next[0] == best);
                seen.insert(seen.end(), next.begin(), next.end());
                if (seen.size() < 8) continue;
                const std::vector<Token> cycle = more(session, 1);
                seen.insert(seen.end(), cycle.begin(), cycle.end());
            }
            CHECK(first(seen, 12) == plain);
        }
    });
}

TEST_CASE("with logits() before each token the same checkpoints are kept within a generated text") {
    const Tiny tiny;
    const auto kept_rows = [&](bool with_logits) {
        Session session = draft_rig::open(tiny.model, {});
        sync(session, tiny_ids(60, 5));
        PrefixTree& tree = *session.impl()->tree;
        tree.set_reply_stride(8);
        while (session.history().size() < 100) {
            if (with_logits) REQUIRE(session.logits().ok());
            REQUIRE(session.next().ok());
        }
        std::vector<size_t> rows;
        for (const PrefixTree::LiveState& state : tree.live_states()) rows.push_back(state.row);
        return rows;
    };
    const std::vector<size_t> rows = kept_rows(false);
    CHECK(rows.size() >= 4);
    CHECK(kept_rows(true) == rows);
}

TEST_CASE("an application that samples by itself appends its choice with sync()") {
    const Tiny tiny;
    Session session = draft_rig::open(tiny.model, {});
    std::vector<Token> history = tiny_ids(20, 5);
    sync(session, history);
    for (int i = 0; i < 5; ++i) {
        const auto logits = session.logits();
        REQUIRE(logits.ok());
        history.push_back(best_of(logits.value()));
        CHECK(sync(session, history).rows_computed == 1);
    }
}

TEST_CASE("rows that an application appends a few at a time have the bits of decoded ones, and are one span") {
    on_both([](const Model& model) {
        const std::vector<Token> prompt = tiny_ids(70, 5), plain = text(model, {}, prompt, 60, {});
        Session decoded = draft_rig::open(model, {}), session = draft_rig::open(model, {});
        sync(decoded, prompt);
        sync(session, prompt);
        for (size_t i = 0, n = 1; i < plain.size(); i += n, n = n % kMaxTentative + 1) {
            CAPTURE(i);
            n = std::min(n, plain.size() - i);
            more(decoded, n);
            sync(session, join(prompt, first(plain, i + n)));
            const auto a = decoded.logits(), b = session.logits();
            REQUIRE(a.ok());
            REQUIRE(b.ok());
            CHECK(std::equal(a.value().begin(), a.value().end(), b.value().begin()));
        }
        const std::vector<RowSpan> spans = session.impl()->trunk->spans();
        CHECK(spans.size() <= 2);
        CHECK(spans.back().first + spans.back().n == prompt.size() + plain.size());
    });
}

TEST_CASE("an application that samples by itself has the checkpoints of a generated text") {
    const Tiny tiny;
    const std::vector<Token> prompt = tiny_ids(60, 5), plain = text(tiny.model, {}, prompt, 60, {});
    const auto kept_rows = [&](size_t n_next, size_t n_sync) {
        Session session = draft_rig::open(tiny.model, {});
        PrefixTree& tree = *session.impl()->tree;
        tree.set_reply_stride(16);
        std::vector<Token> history = prompt;
        sync(session, history, {{50, false}});
        for (size_t i = 0; i < plain.size(); i += n_next + n_sync) {
            more(session, n_next);
            for (size_t k = 0; k < n_sync; ++k) sync(session, join(prompt, first(plain, i + n_next + k + 1)));
        }
        std::vector<size_t> rows;
        for (const PrefixTree::LiveState& state : tree.live_states()) rows.push_back(state.row);
        history = join(join(prompt, first(plain, 55)), tiny_ids(5, 6));
        CHECK(sync(session, history, {{118, false}}).checkpoint_row == 112);
        return rows;
    };
    CHECK(kept_rows(1, 0) == std::vector<size_t>{50, 80, 96, 112});
    CHECK(kept_rows(0, 1) == std::vector<size_t>{50, 80, 96, 112});
    CHECK(kept_rows(3, 1) == std::vector<size_t>{50, 80, 96, 112});
    CHECK(kept_rows(1, 2) == std::vector<size_t>{50, 80, 96, 112});
}

TEST_CASE("a bias decides, adds up and bans, and the text is the same with drafts") {
    on_both([](const Model& model) {
        const std::vector<Token> prompt = tiny_ids(20, 5);
        Sampling always;
        always.logit_bias = {{65, 300}, {65, 300}, {66, 500}};
        CHECK(text(model, {}, prompt, 5, always) == std::vector<Token>(5, 65));
        Sampling never;
        never.temperature = 1;
        never.seed = 7;
        never.top_k = 30;
        for (Token id = 0; id < 288; id += 2) never.logit_bias.push_back({id, -1000});
        const std::vector<Token> odd = text(model, {}, prompt, 14, never);
        CHECK(std::all_of(odd.begin(), odd.end(), [](Token id) { return id % 2 == 1; }));
        Setup setup = with(Draft::mtp, 4);
        CHECK(text(model, std::move(setup), prompt, 14, never) == odd);
    });
}

TEST_CASE("a bias for no token or out of range is refused") {
    const Tiny tiny;
    Session session = draft_rig::open(tiny.model, {});
    sync(session, tiny_ids(5, 5));
    Sampling bad;
    for (const LogitBias& b : {LogitBias{-1, 1}, LogitBias{288, 1}, LogitBias{1, 1001}, LogitBias{1, NAN}}) {
        bad.logit_bias = {{5, 1}, b};
        const Status s = session.next(bad).status();
        CHECK(s.code == Code::bad_argument);
        CHECK_MESSAGE(s.text.find("logit_bias") != std::string::npos, s.text);
        if (b.id == 1) CHECK_MESSAGE(s.text.find("logit_bias[1] (id 1) is") != std::string::npos, s.text);
    }
    bad = {};
    bad.penalty_window = UINT32_MAX;
    CHECK(session.next(bad).status().text == "sampling.penalty_window is 4294967295, expected 0..4096");
}

// Draft sources, heads and depths: what they take, what they report, what they refuse.
#include <doctest/doctest.h>

#include <algorithm>

#include "../src/engine/lookup.h"
#include "draft_rig.h"

using namespace auspex;
using namespace auspex::detail;
using namespace test;
using namespace draft_rig;

namespace {

void check_draft_head(const Tiny& tiny) {
    const Plan& plan = tiny.model.impl()->plan;
    std::unique_ptr<Context> full, part;
    ContextOptions options;
    options.n_context = 64;
    options.n_ubatch = 16;
    REQUIRE(tiny.model.impl()->program->open(options).get(full).ok());
    REQUIRE(tiny.model.impl()->program->open(options).get(part).ok());
    const std::vector<Token> ids = choose_draft_vocab(tiny.model.impl()->tokenizer, plan.n_vocab, 50, {});
    CHECK(ids.size() == 50);
    CHECK(std::is_sorted(ids.begin(), ids.end()));
    for (Token control : {264, 265, 266}) CHECK(std::binary_search(ids.begin(), ids.end(), control));
    REQUIRE(part->draft_head(ids).ok());
    const std::vector<Token> rows = tiny_ids(10, 4);
    for (Context* context : {full.get(), part.get()}) {
        Step step;
        step.tape = &plan.trunk;
        step.ids = rows.data();
        step.n_row = 9;
        REQUIRE(context->run(step).ok());
        step.tape = &plan.mtp[0];
        step.ids = rows.data() + 1;
        step.n_logit = 1;
        REQUIRE(context->run(step).ok());
    }
    Span<const float> a, b;
    REQUIRE(full->read_row(plan.mtp[0].logits, 0).get(a).ok());
    REQUIRE(part->read_row(plan.mtp[0].logits, 0).get(b).ok());
    for (size_t i = 0; i < ids.size(); ++i) CHECK(a[static_cast<size_t>(ids[i])] == b[i]);
    CHECK(part->memory_bytes() > full->memory_bytes());
    REQUIRE(part->draft_head({}).ok());
    CHECK(part->memory_bytes() == full->memory_bytes());
    CHECK(full->draft_head(std::vector<Token>{5, 5}).code == Code::bad_argument);
    CHECK(full->draft_head(std::vector<Token>{5, static_cast<Token>(kTinyVocab)}).code == Code::bad_argument);
}

}  // namespace

TEST_CASE("a draft head over chosen ids gives the model's own draft logits for them") {
    const Tiny tiny(Type::q6_k);
    const Plan& plan = tiny.model.impl()->plan;
    check_draft_head(tiny);
    check_draft_head(Tiny(Type::nvfp4));  // whose head has a matrix scale

    // By use: the most frequent tokens of the text come in, in place of the lowest ids.
    std::vector<uint32_t> count(plan.n_vocab, 0);
    count[250] = 3;
    count[251] = 1;
    const std::vector<Token> used = choose_draft_vocab(tiny.model.impl()->tokenizer, plan.n_vocab, 10, count);
    CHECK(used.size() == 10);
    CHECK(std::binary_search(used.begin(), used.end(), 250));
    CHECK(std::binary_search(used.begin(), used.end(), 251));
}

TEST_CASE("a session without drafting allocates no memory for it") {
    const Tiny tiny;
    LoadOptions load;
    load.mtp = false;
    const Model bare = load_model(cpu_device(), tiny.bytes, load);
    const auto open_with = [](const Model& model, Setup setup) {
        setup.checkpoint_bytes = 0;  // they hold the draft block's state, too
        return open(model, std::move(setup));
    };
    const Session off = open_with(tiny.model, {}), none = open_with(bare, {}),
                  on = open_with(tiny.model, with(Draft::mtp, 2));
    CHECK(off.stats().memory_bytes == none.stats().memory_bytes);
    CHECK(on.stats().memory_bytes > off.stats().memory_bytes);
    // At most one more key-value cache (2 heads of 64, f16), 64 rows of the block's activations (5 d_model) and hidden
    // rows.
    const uint64_t max_extra =
        uint64_t{512} * 2 * 128 * 2 + uint64_t{64} * 5 * 256 * 4 + (9 + kMaxPendingHidden) * 256 * 4 + 4096;
    CHECK(on.stats().memory_bytes <= off.stats().memory_bytes + max_extra);
}

TEST_CASE("a draft head of as many ids as the vocabulary has, or more, is the model's own") {
    const Tiny tiny;
    const uint32_t n_vocab = tiny.model.info().n_vocab;
    const auto stats = [&tiny](uint32_t n) {
        Setup setup = with(Draft::mtp, 2);
        setup.draft.n_vocab = n;
        return open(tiny.model, std::move(setup)).stats();
    };
    CHECK(stats(n_vocab - 1).draft_head_bytes > 0);
    for (const uint32_t n : {n_vocab, n_vocab + 1, UINT32_MAX}) {
        CHECK(stats(n).draft_head_bytes == 0);
        CHECK(stats(n).memory_bytes == stats(0).memory_bytes);
    }
}

TEST_CASE("drafting that is not possible is an error with the reason") {
    auto status = [](const Model& model, const DraftOptions& draft) {
        SessionOptions options;
        options.draft = draft;
        return Session::create(model, options).status();
    };
    DraftOptions mtp;
    mtp.source = Draft::mtp;
    TinyOptions without;
    without.mtp = false;
    const std::vector<std::byte> bytes = tiny_qwen35(without);
    const Model bare = load_model(cpu_device(), bytes);
    CHECK(status(bare, mtp).code == Code::unsupported);
    CHECK(status(bare, mtp).text.find("nextn_predict_layers") != std::string::npos);
    const Tiny tiny;
    LoadOptions load;
    load.mtp = false;
    CHECK(status(load_model(cpu_device(), tiny.bytes, load), mtp).text.find("LoadOptions::mtp") != std::string::npos);
    DraftOptions lookup;
    lookup.source = Draft::lookup;
    CHECK(status(bare, lookup).ok());

    DraftOptions bad = mtp;
    bad.depth = 9;
    CHECK(status(tiny.model, bad).text.find("9") != std::string::npos);
    bad = mtp;
    bad.min_probability = 2;
    CHECK(status(tiny.model, bad).code == Code::bad_argument);
    bad = mtp;
    bad.vocab = {1, static_cast<Token>(kTinyVocab)};
    CHECK(status(tiny.model, bad).text.find("288") != std::string::npos);
    Session off = open(tiny.model, Setup());
    CHECK(off.set_draft_depth(2).code == Code::bad_argument);
    CHECK(off.set_draft_depth(0).ok());
    CHECK(off.set_draft_depth(9).code == Code::bad_argument);

    // Blocks with missing tensors: the projection gone means no block; any other tensor is an error with its name.
    auto renamed = [&](const std::string& from) {
        std::vector<std::byte> copy = tiny.bytes;
        char* p = reinterpret_cast<char*>(copy.data());
        char* at = std::search(p, p + copy.size(), from.begin(), from.end());
        REQUIRE(at != p + copy.size());
        at[from.size() - 1] = 'X';
        return copy;
    };
    const std::vector<std::byte> no_projection = renamed("blk.4.nextn.eh_proj.weight");
    const Model dropped = load_model(cpu_device(), no_projection);
    CHECK(status(dropped, mtp).text.find("blk.4.nextn.eh_proj.weight") != std::string::npos);
    for (const char* name : {"blk.4.nextn.enorm.weight", "blk.4.attn_k.weight"}) {
        const std::vector<std::byte> broken = renamed(name);
        const Device device = cpu_device();
        const Status s = Model::load(device, broken).status();
        CHECK(s.code == Code::bad_file);
        CHECK(s.text.find(name) != std::string::npos);
        CHECK(Model::load(device, broken, load).ok());  // without the block it is a whole model
    }
}

TEST_CASE("Draft::best drafts with the MTP block and from the text, or from the text alone") {
    const Tiny tiny;
    TinyOptions without;
    without.mtp = false;
    const std::vector<std::byte> bytes = tiny_qwen35(without);
    const Model bare = load_model(cpu_device(), bytes);
    const std::vector<Token> prompt = tiny_ids(30, 2);
    Setup best;
    best.draft.source = Draft::best;
    Stats stats;
    CHECK(text(tiny.model, std::move(best), prompt, 60, {}, &stats) == text(tiny.model, {}, prompt, 60, {}));
    CHECK(stats.cycles[1] > 0);
    best = Setup();
    best.draft.source = Draft::best;
    Sampling loop;
    loop.logit_bias = {{7, 1000.0f}};  // a text that repeats itself
    CHECK(text(bare, std::move(best), prompt, 60, loop, &stats) == text(bare, {}, prompt, 60, loop));
    CHECK(stats.cycles[0] > 0);
    CHECK(sum(stats.cycles + 1, kMaxDraft) > 0);
    best = Setup();
    best.draft.source = Draft::best;
    CHECK(open(bare, std::move(best)).stats().memory_bytes ==
          open(bare, Setup()).stats().memory_bytes + Lookup::memory_bytes(Setup().n_context));
}

TEST_CASE("a fixed depth does not change the text, and its statistics add up") {
    const Tiny tiny(Type::q4_k);
    const std::vector<Token> prompt = tiny_ids(30, 2);
    size_t i_sampling = 0;
    uint64_t n_acceptance_probe = 0;
    for (const Sampling& sampling : samplings()) {
        CAPTURE(i_sampling);
        ++i_sampling;
        const std::vector<Token> plain = text(tiny.model, {}, prompt, 400, sampling);
        std::vector<DraftCycle> seen;
        SessionOptions o;
        o.n_context = 512;
        o.n_ubatch = 16;
        o.draft.source = Draft::best;
        o.draft.max_depth = 4;
        o.on_cycle = [&](const DraftCycle& c) { seen.push_back(c); };
        Session session = test::open(tiny.model, o);
        sync(session, prompt);
        std::vector<Token> got = more(session, 400, sampling);
        got.resize(400);
        CHECK(got == plain);
        const DraftReport r = session.draft_report();
        CHECK(r.n_cycle == seen.size());
        uint64_t n_token = 0, n_switch = 0, n_row = 0;
        for (const DraftCycle& c : seen) {
            CHECK(c.accepted <= c.depth);
            CHECK(c.depth <= std::min(c.chosen, 4u));
            CHECK(c.us > 0);
            CHECK(c.probe_hits <= c.probe_rows);
            CHECK(c.n_token == prompt.size() + 1 + n_token);
            n_token += 1 + c.accepted;
            n_switch += c.reason != DraftReason::none;
            n_row += c.probe_rows;
        }
        CHECK(r.n_token == n_token);
        CHECK(r.n_token == sum(r.tokens, kMaxDraft + 1));
        CHECK(r.n_cycle == sum(r.cycles, kMaxDraft + 1));
        CHECK(r.n_depth_change == n_switch);
        CHECK(r.probe_rows == n_row);
        CHECK(r.accepted[1] <= r.evaluated[1]);
        CHECK(r.cycle_seconds[0] > 0);
        CHECK(r.relative_cost[0] == doctest::Approx(1.0));
        n_acceptance_probe += n_row;
        session.clear_stats();
        CHECK(session.draft_report().n_token == 0);
        CHECK(session.draft_report().cycle_seconds[0] == doctest::Approx(r.cycle_seconds[0]));
    }
    MESSAGE(n_acceptance_probe << " acceptance_probe rows");
}

TEST_CASE("steps that have room for one token leave the first cycles at each depth to those that have more") {
    const Model model = demo_model(1);
    SessionOptions options;
    options.n_context = 512;
    options.draft.source = Draft::mtp;
    std::vector<uint32_t> depths;
    options.on_cycle = [&](const DraftCycle& c) { depths.push_back(c.depth); };
    Session session;
    REQUIRE(Session::create(model, options).get(session).ok());
    REQUIRE(session.sync(model.encode("1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,").value()).ok());
    for (int i = 0; i < 20; ++i) REQUIRE(session.next({}, 1).ok());
    CHECK(depths == std::vector<uint32_t>(19, 0));  // the first token has its logits from the prompt
    depths.clear();
    for (int i = 0; i < 6; ++i) REQUIRE(session.next().ok());
    // What follows depends on times. So does n_sample: it forgets what took longer than a deeper cycle.
    REQUIRE(depths.size() == 6);
    CHECK(depths[0] == 1);
    CHECK(depths[1] == 2);
    CHECK(session.draft_report().cycles[1] > 0);
    CHECK(session.draft_report().cycles[2] > 0);
}

TEST_CASE("a list of ids for the draft head and ids by use are refused together, by create() as by plan()") {
    const Tiny tiny(Type::q4_k);
    SessionOptions o;
    o.n_context = 256;
    o.draft.source = Draft::mtp;
    o.draft.vocab = {1, 5, 7};
    CHECK(Session::create(tiny.model, o).ok());
    o.draft.vocab_by_use = true;
    const Status s = Session::create(tiny.model, o).status();
    CHECK(s.code == Code::bad_argument);
    CHECK_MESSAGE(s.text.find("draft.vocab and draft.vocab_by_use were both given") != std::string::npos, s.text);
    CHECK_MESSAGE(s.text.find("give one of them") != std::string::npos, s.text);
    CHECK(Session::plan(tiny.model, o).status().message() == s.message());
    o.draft.vocab.clear();
    CHECK(Session::create(tiny.model, o).ok());
}

TEST_CASE("after plain cycles the draft block makes the same drafts as without them") {
    const Tiny tiny(Type::q4_k);
    const std::vector<Token> prompt = tiny_ids(50, 6);
    Sampling sampling;
    sampling.temperature = 1;
    sampling.seed = 2;
    for (const uint32_t n_sleep : {1u, 7u, 20u, 31u, 90u}) {
        CAPTURE(n_sleep);
        std::vector<uint64_t> accepted[2];
        for (const bool awake : {true, false}) {
            Session session = open(tiny.model, with(Draft::mtp, 0));
            Session::Impl& s = *session.impl();
            sync(session, prompt);
            while (session.history().size() < prompt.size() + n_sleep) {
                more(session, 1, sampling);
                const Span<const Token> now = s.timeline.tokens();
                REQUIRE((awake ? s.cache.fill(now) : s.cache.fill_lazily(now)).ok());
            }
            REQUIRE(session.set_draft_depth(3).ok());
            while (session.history().size() < prompt.size() + n_sleep + 60) more(session, 1, sampling);
            const Stats stats = session.stats();
            accepted[awake].assign(stats.accepted, stats.accepted + 3);
            CHECK(stats.accepted[0] > 0);
        }
        CHECK(accepted[0] == accepted[1]);
    }
}

TEST_CASE("costs measured by one session serve another; those of other models are rejected") {
    const Tiny tiny(Type::q4_k), stranger(Type::q8_0);
    Session session = open(tiny.model, with(Draft::mtp, -1));
    sync(session, tiny_ids(30, 2));
    more(session, 200);
    const std::vector<std::byte> costs = session.save_costs();
    Session other = open(tiny.model, with(Draft::mtp, -1)), foreign = open(stranger.model, with(Draft::mtp, -1));
    Status s = other.load_costs(costs);
    REQUIRE_MESSAGE(s.ok(), s.message());
    const DraftReport a = session.draft_report(), b = other.draft_report();
    for (uint32_t g = 0; g <= 4; ++g) CHECK(b.cycle_seconds[g] == doctest::Approx(a.cycle_seconds[g]));
    s = foreign.load_costs(costs);
    CHECK(s.code == Code::bad_argument);
    CHECK(s.text.find("model '") != std::string::npos);
    CHECK(open(tiny.model, Setup()).load_costs(costs).code ==
          Code::bad_argument);  // without a block its cycles are others
    std::vector<std::byte> damaged = costs;
    damaged.back() ^= std::byte{1};
    CHECK(other.load_costs(damaged).code == Code::bad_file);
    damaged.resize(5);
    CHECK(other.load_costs(damaged).code == Code::bad_file);
    CHECK(other.draft_report().cycle_seconds[1] == doctest::Approx(b.cycle_seconds[1]));
}

TEST_CASE("draft costs that are cut anywhere, or of another version, are refused and change nothing") {
    const Tiny tiny;
    Session session = open(tiny.model, with(Draft::mtp, -1)), other = open(tiny.model, with(Draft::mtp, -1));
    sync(session, tiny_ids(30, 2));
    more(session, 30);
    const std::vector<std::byte> costs = session.save_costs();
    for (size_t n = 0; n < costs.size(); ++n) {
        const std::vector<std::byte> cut(costs.begin(), costs.begin() + static_cast<std::ptrdiff_t>(n));
        const Status s = other.load_costs(cut);
        if (s.code != Code::bad_file) FAIL_CHECK(n << " bytes of " << costs.size() << ": " << s.message());
    }
    std::vector<std::byte> wrong = costs;
    wrong[7] ^= std::byte{1};
    CHECK(other.load_costs(wrong).text ==
          "these are no draft costs, or of another version. Delete them: they are measured again.");
    CHECK(other.draft_report().cycle_seconds[0] == 0);
    CHECK(other.load_costs(costs).ok());
    CHECK(other.draft_report().cycle_seconds[0] > 0);
}

TEST_CASE("an option out of range is refused with the range, whose ends are accepted") {
    const Tiny tiny;
    const auto text = [&](const SessionOptions& o) { return Session::create(tiny.model, o).status().text; };
    SessionOptions o;
    o.n_context = 64;
    o.draft.source = Draft::mtp;
    for (const int depth : {-2, -1, 8, 9}) {
        o.draft.depth = depth;
        const bool fine = depth == -1 || depth == 8;
        CHECK(
            text(o) ==
            (fine ? "" : "draft.depth is " + std::to_string(depth) + ", expected 0..8, or -1 for a choice of its own"));
    }
    o.draft.depth = 1;
    const struct {
        float value;
        const char* text;
    } probabilities[] = {{-0.5f, "draft.min_probability is -0.5, expected 0..1"},
                         {0, ""},
                         {1, ""},
                         {1.5f, "draft.min_probability is 1.5, expected 0..1"}};
    for (const auto& p : probabilities) {
        o.draft.min_probability = p.value;
        CHECK(text(o) == p.text);
    }
    o.draft.min_probability = 0;
    for (const uint32_t depth : {0u, 1u, 8u, 9u}) {
        o.draft.max_depth = depth;
        const bool fine = depth == 1 || depth == 8;
        CHECK(text(o) == (fine ? "" : "draft.max_depth is " + std::to_string(depth) + ", expected 1..8"));
    }
    o.draft.max_depth = 1;
    for (const uint32_t n : {7u, 8u}) {
        o.run_ahead = n;
        CHECK(text(o) == (n == 7 ? "" : "run_ahead is 8, expected 0..7"));
    }
    o.run_ahead = 0;
    o.draft.source = static_cast<Draft>(-1);
    CHECK(text(o) == "draft.source is -1, expected a value of Draft, 0..4");
    o.draft.source = Draft::off;
    o.kv_k = static_cast<KvType>(5);
    CHECK(text(o) == "a KV format is 5, expected a value of KvType, 0..4");
    o.kv_k = KvType::f32;
    CHECK(text(o) == "");
    Session session = test::open(tiny.model, o);
    CHECK(session.set_draft_depth(-2).text == "the draft depth is -2, expected 0..8, or -1 for a choice of its own");
    CHECK(session.set_draft_depth(-1).ok());
}

TEST_CASE("statistics have the time of prompts and that of tokens apart, and clear_stats() sets both to 0") {
    const Tiny tiny;
    Session session = open(tiny.model, Setup());
    sync(session, tiny_ids(40, 1));
    const Stats prompt = session.stats();
    CHECK(prompt.prefill_s > 0);
    CHECK(prompt.decode_s == 0);
    more(session, 3);
    const Stats reply = session.stats();
    CHECK(reply.prefill_s == prompt.prefill_s);
    CHECK(reply.decode_s > 0);
    CHECK(reply.tokens_sampled == 3);
    sync(session, join(history(session), {1, 2}));
    CHECK(session.stats().prefill_s > prompt.prefill_s);
    CHECK(session.stats().decode_s == reply.decode_s);
    session.clear_stats();
    CHECK((session.stats().prefill_s == 0 && session.stats().decode_s == 0 && session.stats().tokens_sampled == 0));
    CHECK(prompt.memory_bytes > 0);
    CHECK(session.stats().memory_bytes == prompt.memory_bytes);
}

TEST_CASE("clear_stats() keeps what describes the session") {
    const Tiny tiny;
    SessionOptions o;
    o.n_context = 256;
    o.draft.source = Draft::mtp;
    o.draft.n_vocab = 100;
    o.windows = {{kAllLayers, 40, 4}};
    Session session = test::open(tiny.model, o);
    const Stats before = session.stats();
    session.clear_stats();
    const Stats after = session.stats();
    CHECK(before.draft_head_bytes > 0);
    CHECK(after.draft_head_bytes == before.draft_head_bytes);
    CHECK(after.memory_bytes == before.memory_bytes);
    REQUIRE(after.windows.size() == 2);  // the trunk's layer and the draft block's
    CHECK((after.windows[0].window == 40 && after.windows[1].window == 40));
    CHECK(after.window_rule == before.window_rule);
}

// A session that goes back to checkpoints computes only what is new, and gives the text of one that starts over.
#include "../src/engine/memory_plan.h"
#include "session_file_rig.h"
#include "tiny.h"

#ifndef AUSPEX_NO_VULKAN
#include "../src/machine/vulkan/vulkan.h"
#endif

using namespace auspex;
using namespace auspex::detail;
using namespace test;

namespace test_branches {

SessionOptions options_of(Draft source, uint64_t checkpoint_bytes) {
    SessionOptions o;
    o.n_context = 1024;
    o.n_ubatch = 128;
    o.draft.source = source;
    o.draft.depth = source == Draft::off ? 0 : 3;
    o.checkpoint_bytes = checkpoint_bytes;
    return o;
}

void check_agent(const Model& model, Draft source, uint64_t n_step = 8) {
    Session session = open(model, options_of(source, kDefaultCheckpoints));
    const std::vector<Token> system = tiny_ids(300, 1), title = tiny_ids(40, 2);
    std::vector<Token> agent = join(system, tiny_ids(20, 3));
    CHECK(sync(session, agent, {{300, true}}).rows_computed == 320);
    for (uint64_t step = 0; step < n_step; ++step) {
        more(session, 4);
        if (source != Draft::off) REQUIRE(session.set_draft_depth(0).ok());  // leaves rows that the draft block lacks
        more(session, 2);
        if (source != Draft::off) REQUIRE(session.set_draft_depth(3).ok());
        const size_t computed = session.impl()->timeline.n_row();
        agent = history(session);
        // A title request shares nothing with the agent, and costs its own rows alone.
        SyncReport r = sync(session, title);
        CHECK(r.rows_computed == title.size());
        more(session, 4);
        const std::vector<Token> said = tiny_ids(30, 10 + step);
        agent = join(agent, said);
        r = sync(session, agent);
        CHECK(r.rows_reused == computed);
        CHECK(r.rows_computed == agent.size() - computed);
        CHECK(r.reason == SyncReason::resumed);
        const MtpCache& cache = session.impl()->cache;  // the draft block still sees all of the text
        if (cache.on()) CHECK(cache.kept(agent.size()).first_key == 0);
        if (cache.on()) CHECK(cache.kept(agent.size()).n_row + 1 >= agent.size());
    }
}

void check_switching(const Model& model, Draft source, int n_switch) {
    Session session = open(model, options_of(source, kDefaultCheckpoints));
    const std::vector<Token> shared = tiny_ids(200, 5);
    std::vector<Token> branch[2] = {join(shared, tiny_ids(90, 6)), join(shared, tiny_ids(50, 7))};
    std::vector<std::byte> state[2];
    for (int i = 0; i < 2; ++i) {
        sync(session, branch[i], {{200, false}});
        more(session, 5);
        branch[i] = first(history(session), session.impl()->timeline.n_row());
        state[i] = bytes_of(session);
    }
    for (int i = 0; i < n_switch; ++i) {
        const int b = i % 2;
        CAPTURE(i);
        // One token more, so that the state at the tip is the base.
        const SyncReport r = sync(session, join(branch[b], {1}));
        CHECK(r.rows_computed == 1);
        CHECK(r.reason == SyncReason::resumed);
        if (i % 10 > 1) continue;
        Session::Impl& s = *session.impl();
        PrefixReport back;
        REQUIRE(s.tree->sync(branch[b ^ 1], {}, false).get(back).ok());  // leaves the branch, so that it is whole again
        REQUIRE(s.tree->sync(join(branch[b], {2}), {}, false).get(back).ok());
        s.timeline.assign(join(branch[b], {2}));
        CHECK(bytes_of(session) == state[b]);
        REQUIRE(s.trunk->prefill(1).ok());
    }
}

/// Keys and values of the first n rows.
std::vector<std::byte> rows_of(Session& session, StatePart part, size_t n) {
    std::vector<std::byte> bytes;
    VectorWriter to(&bytes);
    REQUIRE(session.impl()->context->save_rows({part, 0, static_cast<uint32_t>(n)}, to).ok());
    return bytes;
}

void check_spares(const Model& model, Draft source, int n_switch) {
    Session session = open(model, options_of(source, kDefaultCheckpoints));
    Session::Impl& s = *session.impl();
    // Whole blocks: the draft block writes the last row of the shorter one when its rows are back.
    std::vector<Token> branch[2] = {tiny_ids(448, 41), tiny_ids(512, 42)};
    std::vector<std::byte> trunk[2], draft[2];
    size_t n_row[2] = {}, n_draft[2] = {};
    for (int i = 0; i < n_switch; ++i) {
        const int b = i % 2;
        CAPTURE(i);
        const uint64_t copied = s.tree->rows_copied(), parked = s.tree->rows_parked();
        if (i > 1) branch[b].push_back(1);
        const SyncReport r = sync(session, branch[b]);
        CHECK(r.rows_reused == n_row[b]);
        if (i > 0) CHECK(s.tree->rows_parked() - parked >= 448);
        if (i > 2) CHECK(s.tree->rows_copied() - copied <= 128);  // blocks that grew, or that the draft block changed
        CHECK(rows_of(session, StatePart::trunk, n_row[b]) == trunk[b]);
        CHECK(rows_of(session, StatePart::draft, n_draft[b]) == draft[b]);
        n_row[b] = s.timeline.n_row();
        n_draft[b] = s.cache.kept(n_row[b]).n_row;
        trunk[b] = rows_of(session, StatePart::trunk, n_row[b]);
        draft[b] = rows_of(session, StatePart::draft, n_draft[b]);
    }
    // A fork takes no spares along, and neither session loses anything.
    CHECK(s.tree->spare_bytes() > 0);
    Result<Session> fork = session.fork();
    REQUIRE(fork.ok());
    CHECK(fork.value().impl()->tree->spare_bytes() == 0);
    for (Session* each : {&session, &fork.value()})
        for (int i = 0; i < 4; ++i) {
            const int b = (n_switch + i) % 2;
            CHECK(sync(*each, join(branch[b], {2})).rows_computed == 1);
            CHECK(rows_of(*each, StatePart::trunk, n_row[b]) == trunk[b]);
            CHECK(each->impl()->tree->n_failed() == 0);
        }
}

void check_scratch(const Model& model) {
    // From a checkpoint or from the start: the same bits.
    Session session = open(model, options_of(Draft::off, kDefaultCheckpoints)),
            scratch = open(model, options_of(Draft::off, 0));
    const std::vector<Token> text = tiny_ids(700, 9);
    sync(session, first(text, 650), {{256, false}});
    const std::vector<Token> edited = join(first(text, 400), tiny_ids(270, 11));
    const SyncReport r = sync(session, edited);
    CHECK(r.checkpoint_row == 256);
    CHECK(r.rows_computed == 414);
    CHECK(r.diverged_at == 400);
    CHECK(r.reason == SyncReason::checkpoint);
    CHECK(r.text.find("diverged at row 400 of 670") != std::string::npos);
    CHECK(sync(scratch, edited).rows_computed == 670);
    CHECK(bytes_of(session) == bytes_of(scratch));
    more(session, 20);
    more(scratch, 20);
    CHECK(history(session) == history(scratch));
}

/// Measures other texts between the turns of a conversation: whole, cancelled, and where the rows had to be parked.
void check_measuring(const Model& model, Draft source, size_t n_more = 20) {
    SessionOptions o = options_of(source, kDefaultCheckpoints);
    int n_left = -1;  // steps until the session is cancelled
    o.progress = [&](const char*, float) { return n_left < 0 || n_left-- != 0; };
    Session session = open(model, o), scratch = open(model, options_of(Draft::off, 0));
    const test_session_file::Folder folder;
    const std::vector<Token> prompt = tiny_ids(300, 31);
    const std::vector<Mark> marks{{290, false}};
    sync(scratch, prompt);
    const std::vector<Token> want = first(more(scratch, n_more), n_more);
    std::vector<float> rows;
    const auto keep = [&](size_t, Span<const float> row) { rows.insert(rows.end(), row.begin(), row.end()); };
    const auto check_text = [&](size_t n_computed) {
        CHECK(sync(session, prompt, marks).rows_computed == n_computed);
        CHECK(first(more(session, n_more), n_more) == want);
    };
    check_text(300);
    for (const size_t n : {size_t{20}, size_t{330}}) {
        CAPTURE(n);
        const std::vector<Token> other = tiny_ids(n, 32);
        REQUIRE(scratch.score(other, keep).ok());
        const std::vector<float> alone = std::move(rows);
        rows.clear();
        REQUIRE(session.score(other, keep).ok());
        CHECK(rows == alone);
        const std::string path = folder.file();
        REQUIRE(session.save(path.c_str()).ok());
        Session loaded = open(model, options_of(source, kDefaultCheckpoints));
        REQUIRE(loaded.load(path.c_str()).ok());
        Result<Session> fork = session.fork();
        REQUIRE(fork.ok());
        sync(scratch, tiny_ids(5, 35));
        sync(scratch, other);
        const std::vector<Token> after = first(more(scratch, n_more), n_more);
        CHECK(first(more(loaded, n_more), n_more) == after);
        CHECK(first(more(fork.value(), n_more), n_more) == after);
        check_text(10);
        n_left = 2;
        CHECK(session.score(other, keep).code == Code::cancelled);
        n_left = -1;
        CHECK(history(session) == other);
        check_text(10);
        if (source == Draft::mtp) {
            REQUIRE(session.score_mtp(other, 2, keep).ok());
            CHECK(session.history().empty());
            check_text(10);
        }
        REQUIRE(session.score(other, keep).ok());
        REQUIRE(session.move_to(model).ok());
        CHECK(history(session) == other);
        check_text(10);
        REQUIRE(session.score(other, keep).ok());  // goes on as a prompt does
        CHECK(first(more(session, n_more), n_more) == after);
        rows.clear();
    }
    for (const auto& [n_row, n_token] : {std::pair<uint32_t, size_t>{100000, 0}, {1, size_t{1} << 40}, {0, 0}}) {
        const std::vector<Token> before = history(session);
        CHECK(!session.profile(n_row, n_token).ok());
        CHECK(history(session) == before);
    }
    const size_t n_context = session.impl()->options.n_context;
    CHECK(session.profile(1, n_context).status().code == Code::bad_argument);
    CHECK(!session.history().empty());
    const Result<std::vector<KernelTime>> times = session.profile(4, 250);
    if (!times.ok()) CHECK(times.status().code == Code::unsupported);
    if (times.ok()) CHECK(session.history().empty());
    check_text(10);
}

/// A scored text is one that a later prompt may go on from, with the bits of a prompt.
void check_scored_bits(const Model& model) {
    SessionOptions o = options_of(Draft::off, kDefaultCheckpoints);
    o.n_ubatch = 512;
    Session session = open(model, o), scratch = open(model, o);
    const std::vector<Token> text = tiny_ids(267, 33);
    REQUIRE(session.score(first(text, 266), [](size_t, Span<const float>) {}).ok());
    sync(session, tiny_ids(30, 34));
    CHECK(sync(session, text).rows_computed == 1);
    sync(scratch, first(text, 266));
    CHECK(sync(scratch, text).rows_computed == 1);
    CHECK(bytes_of(session) == bytes_of(scratch));
}

}  // namespace test_branches

using namespace test_branches;

TEST_CASE("an agent with a title request after every step computes its own rows alone") {
    const std::vector<std::byte> bytes = tiny_model();
    const Model model = load_model(cpu_device(), bytes);
    for (const Draft source : {Draft::off, Draft::mtp}) check_agent(model, source);
}

TEST_CASE("restore equivalence: two branches by turns keep every bit of their states") {
    const std::vector<std::byte> bytes = tiny_model();
    const Model model = load_model(cpu_device(), bytes);
    for (const Draft source : {Draft::off, Draft::mtp}) check_switching(model, source, 100);
}

TEST_CASE("two branches by turns copy only rows that are new or have changed, and get back what they left") {
    const std::vector<std::byte> bytes = tiny_model();
    const Model model = load_model(cpu_device(), bytes);
    for (const Draft source : {Draft::off, Draft::mtp}) check_spares(model, source, 20);
}

TEST_CASE("restore equivalence: sync over a checkpoint gives the bits of sync from scratch") {
    const std::vector<std::byte> bytes = tiny_model();
    check_scratch(load_model(cpu_device(), bytes));
}

TEST_CASE("scoring and profiling leave what is kept of a conversation, and its text") {
    const std::vector<std::byte> bytes = tiny_model();
    const Model model = load_model(cpu_device(), bytes);
    for (const Draft source : {Draft::off, Draft::mtp}) check_measuring(model, source);
    check_scored_bits(model);
}

TEST_CASE("tokens sampled after a cancelled prompt do not pass for that prompt") {
    const std::vector<std::byte> bytes = tiny_model();
    const Model model = load_model(cpu_device(), bytes);
    for (const Draft source : {Draft::off, Draft::mtp}) {
        bool go_on = true;
        SessionOptions o = options_of(source, kDefaultCheckpoints);
        o.progress = [&](const char*, float) { return go_on; };
        Session session = open(model, o), scratch = open(model, options_of(Draft::off, 0));
        const std::vector<Token> text = tiny_ids(60, 21), prompt = join(text, tiny_ids(40, 22));
        sync(session, text);
        go_on = false;
        CHECK(session.sync(prompt).status().code == Code::cancelled);
        go_on = true;
        more(session, 30);  // in the place of the cancelled rows
        sync(session, tiny_ids(20, 23));
        CHECK(sync(session, prompt).rows_reused <= text.size());
        sync(scratch, prompt);
        more(session, 20);
        more(scratch, 20);
        CHECK(first(history(session), prompt.size() + 20) == first(history(scratch), prompt.size() + 20));
    }
}

/// What a budget of three checkpoints and n_row parked rows has room for is the same with and without drafts.
void check_room(const Model& model, uint32_t window, uint64_t n_row) {
    SessionOptions options = options_of(Draft::off, 0);
    options.draft.window = window;
    ContextOptions context;
    StateSizes sizes;
    REQUIRE(plan_context_options(model.impl()->plan, options, &context, nullptr).ok());
    REQUIRE(checkpoint_sizes(model.impl()->plan, context).get(sizes).ok());
    std::vector<size_t> want;
    const std::pair<Draft, double> ways[] = {
        {Draft::off, 1e9}, {Draft::off, 0}, {Draft::mtp, 0}, {Draft::mtp, 1e9}, {Draft::lookup, 0}};
    for (const auto& way : ways) {
        const Draft source = way.first;
        const double recent_seconds = way.second;
        CAPTURE(static_cast<int>(source));
        CAPTURE(recent_seconds);
        options = options_of(source, 3 * sizes.state_bytes + n_row * sizes.row_bytes);
        options.draft.window = window;
        Session session = open(model, options);
        session.impl()->tree->set_reply_stride(1024, 40);
        session.impl()->trunk->set_recent_seconds(recent_seconds);
        std::vector<Token> talk[2] = {tiny_ids(150, 1), tiny_ids(100, 2)};
        std::vector<size_t> bases;
        for (uint64_t i = 0; i < 7; ++i) {
            std::vector<Token>& t = talk[i % 3 == 2];
            t = join(i == 4 ? first(t, 170) : t, tiny_ids(20, 10 + i));
            bases.push_back(sync(session, t, {{t.size() - 3, i < 2}}).checkpoint_row);
            grow(session, t.size() + 90);
            t = history(session, t.size() + 90);
            sync(session, t);  // drafts may have gone beyond that
        }
        if (want.empty()) want = bases;
        CHECK(bases == want);
    }
}

TEST_CASE("what a budget has room for does not depend on drafting") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(), bytes);
    // The draft block's cache can be cut at any row where the block sees all of them; else it is part of a checkpoint.
    for (const uint32_t window : {4096u, 100u})
        for (const uint64_t n_row : {0u, 128u, 192u, 256u, 320u, 384u, 512u}) {
            CAPTURE(window);
            CAPTURE(n_row);
            check_room(model, window, n_row);
        }
}

TEST_CASE("a checkpoint at the end of a prompt that is given again is reported with what to do") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    Session session = open(load_model(cpu_device(), bytes), options_of(Draft::off, kDefaultCheckpoints));
    const std::vector<Token> prompt = tiny_ids(60, 1), other = tiny_ids(20, 2);
    sync(session, prompt, {{60, false}});
    sync(session, other);
    const SyncReport r = sync(session, prompt, {{59, false}});
    CHECK(r.reason == SyncReason::no_state);
    CHECK(r.text.find("60 rows are known, the only checkpoint is after the last one, which must be computed again: "
                      "set a mark one row earlier") != std::string::npos);
    sync(session, other);
    CHECK(sync(session, prompt).rows_computed == 1);
}

TEST_CASE("a budget too small for one checkpoint is refused with what one takes, and 0 keeps nothing") {
    const std::vector<std::byte> bytes = tiny_model();
    const Model model = load_model(cpu_device(), bytes);
    const Status s = Session::create(model, options_of(Draft::off, 100)).status();
    CHECK(s.code == Code::bad_argument);
    CHECK(s.text.find("one checkpoint takes") != std::string::npos);
    Session session = open(model, options_of(Draft::off, 0));
    sync(session, tiny_ids(100, 1), {{50, true}});
    CHECK(sync(session, tiny_ids(50, 2)).rows_computed == 50);
    CHECK(sync(session, tiny_ids(100, 1)).rows_computed == 100);
    CHECK(session.sync(tiny_ids(10, 1), std::vector<Mark>{{11, false}}).status().code == Code::bad_argument);
}

#ifndef AUSPEX_NO_VULKAN
TEST_CASE("branches on the GPU: an agent computes its own rows, a checkpoint changes no bit") {
    const Device device = gpu_device();
    if (!device) return;
    TinyOptions tiny = narrow();
    tiny.d_head = 256;
    tiny.d_key = 128;
    const std::vector<std::byte> bytes = tiny_model(tiny), small_bytes = tiny_model(narrow());
    const Model model = load_model(device, bytes), small = load_model(device, small_bytes);
    check_agent(model, Draft::mtp, deep() ? 8 : 2);
    check_switching(model, Draft::off, deep() ? 100 : 4);
    if (deep()) check_scratch(model);
    check_spares(deep() ? model : small, Draft::mtp, deep() ? 20 : 4);
    check_measuring(deep() ? model : small, Draft::mtp, deep() ? 20 : 6);
    check_scored_bits(model);
}

TEST_CASE("a checkpoint of a card is copied beside the next step, and outlives the card") {
    const Device device = gpu_device();
    if (!device) return;
    vk::OpenDeviceRef card;
    DeviceOptions options;
    options.kind = Kind::vulkan;
    REQUIRE(vk::open_device(options, {}).get(card).ok());
    card->gpu->traits.device_mapped = false;  // a software device maps its memory
    device.impl()->machine = vk::make_backend(card);
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(device, bytes);
    check_agent(model, Draft::mtp, deep() ? 8 : 2);
    check_switching(model, Draft::off, deep() ? 100 : 4);
    check_scratch(model);

    Session session = open(model, options_of(Draft::off, kDefaultCheckpoints));
    Session::Impl& s = *session.impl();
    REQUIRE(s.context->state_saver() != nullptr);
    const std::vector<Token> a = tiny_ids(90, 1), b = tiny_ids(80, 2);
    sync(session, a, {{64, true}});
    more(session, 3);
    const std::vector<Token> said = first(history(session), s.timeline.n_row());
    sync(session, b);  // keeps the tip of `said`
    CHECK(sync(session, join(said, {1})).checkpoint_row == said.size());
    REQUIRE(s.store->keep_state(40, s.timeline.n_row()).ok());
    CHECK(s.store->is_whole(40));  // waits for it
    card->gpu->lost = true;
    CHECK(s.store->is_whole(40));
    CHECK(!s.store->keep_state(41, s.timeline.n_row()).ok());
    PrefixReport report;
    CHECK(!s.tree->sync(join(b, {2}), {}, false).get(report).ok());
}
#endif

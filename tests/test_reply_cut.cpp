// Prompts that take back the end of a reply: which states stay does not depend on where the cycles of drafts began.
#include "reply_rig.h"

using namespace reply_rig;

TEST_CASE("a prompt with marks that cuts a reply leaves the same states, wherever a cycle began") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(), bytes);
    const std::vector<Token> said = plain_text(model, 40, 140);
    for (size_t n_cut = 1; n_cut <= 12; ++n_cut) {
        CAPTURE(n_cut);
        const std::vector<Token> kept = first(said, 70 - n_cut);
        size_t reused = 0;
        std::vector<float> want;
        for_each_source(model, said, [&](Session& session, bool is_plain) {
            sync(session, tiny_ids(40, 31), {{30, false}});
            grow(session, 70);
            sync(session, kept, {{10, false}});
            grow(session, kept.size() + 6);
            sync(session, tiny_ids(3, 50));
            const SyncReport r = sync(session, join(kept, tiny_ids(3, 41)));
            const std::vector<float> logits = all_logits(session);
            if (is_plain) {
                reused = r.rows_reused;
                want = logits;
            }
            CHECK(r.rows_reused == reused);
            CHECK(logits == want);
        });
        CHECK(reused >= 30);
    }
}

TEST_CASE(
    "a reply that is saved and then cut to its first token leaves the states of one that was not computed ahead") {
    const std::vector<std::byte> bytes = tiny_model(narrow());
    const Model model = load_model(cpu_device(), bytes);
    const std::vector<Token> said = plain_text(model, 100, 120);
    std::vector<float> want;
    for_each_source(model, said, [&](Session& session, bool is_plain) {
        sync(session, first(said, 100), {{60, false}});
        grow(session, is_plain ? 101 : 104);
        REQUIRE(session.save().ok());
        sync(session, join(first(said, 101), tiny_ids(3, 42)));
        const SyncReport r = sync(session, join(first(said, 100), tiny_ids(3, 43)));
        CHECK(r.rows_reused == 60);
        const std::vector<float> logits = all_logits(session);
        if (is_plain) want = logits;
        CHECK(logits == want);
    });
}

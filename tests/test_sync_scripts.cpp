// Random scripts of calls on a session; tools/sync_scripts runs more of them, also on a GPU.
#include <doctest/doctest.h>

#include "sync_scripts.h"
#include "tiny.h"

using namespace auspex;
using namespace test;

TEST_CASE(
    "restore equivalence: scripts of syncs, cancels, edits, branches, restores, forks, moves, scores and drafts give "
    "the text of plain decoding") {
    const std::vector<std::byte> bytes = tiny_model();
    SyncScripts scripts(load_model(cpu_device(), bytes), 1, false);
    const std::string bad = scripts.run(400);
    CHECK_MESSAGE(bad.empty(), bad);
    CHECK(scripts.n_cancel > 3);
    CHECK(scripts.n_restore > 3);
    CHECK(scripts.n_fork > 3);
    CHECK(scripts.n_move > 3);
    CHECK(scripts.n_file > 3);
    CHECK(scripts.n_score > 3);
    CHECK(scripts.n_accepted > 0);
    CHECK(scripts.n_switch > 3);
    CHECK(scripts.n_resumed > 10);
    CHECK(scripts.n_reply > 20);
    CHECK(scripts.n_logit > 50);
}

TEST_CASE("restore equivalence: a script of 1000 calls on one session computes what one that starts over computes" *
          doctest::test_suite("long")) {
    const std::vector<std::byte> bytes = tiny_model();
    SyncScripts scripts(load_model(cpu_device(), bytes), 1, false, 1000);
    const std::string bad = scripts.run(1);
    CHECK_MESSAGE(bad.empty(), bad);
    CHECK(scripts.n_script == 1);
    CHECK(scripts.n_switch > 50);
    CHECK(scripts.n_evict > 50);
}

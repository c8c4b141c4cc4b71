// Random scripts of calls on a session; tools/sync_scripts runs more of them.
#include <doctest/doctest.h>

#include "sync_scripts.h"
#include "tiny.h"

using namespace auspex;
using namespace test;

TEST_CASE(
    "restore equivalence: scripts of syncs, cancels, edits, restores, forks, moves and drafts give the text of plain "
    "decoding") {
    const std::vector<std::byte> bytes = tiny_model();
    SyncScripts scripts(load_model(cpu_device(), bytes), 1, false);
    const std::string bad = scripts.run(200);
    CHECK_MESSAGE(bad.empty(), bad);
    CHECK(scripts.n_cancel > 3);
    CHECK(scripts.n_restore > 3);
    CHECK(scripts.n_fork > 3);
    CHECK(scripts.n_move > 3);
    CHECK(scripts.n_accepted > 0);
}

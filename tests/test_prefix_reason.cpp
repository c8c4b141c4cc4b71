// Why a prompt computes rows that were known: only what a larger budget would have kept counts as given up.
#include "prefix_rig.h"
#include "session_rig.h"

using namespace auspex;
using namespace auspex::detail;
using test::first;
using test::join;
using test::PrefixRig;
using test::text;

namespace {

PrefixOptions options(uint64_t n_state) {
    PrefixOptions o;
    o.state_bytes = 100000;
    o.row_bytes = 1;
    o.n_context = 4096;
    o.budget_bytes = n_state * o.state_bytes + 90000;
    return o;
}

}  // namespace

TEST_CASE("a checkpoint at a prompt's end that was given up could not have served: the reason is no_state") {
    for (const uint64_t n_state : {1u, 8u}) {
        CAPTURE(n_state);
        PrefixRig rig(options(n_state));
        rig.sync(text(1, 200), {{200, false}});
        for (int i = 0; i < 3; ++i) rig.sync(text(2 + i, 600), {{590, false}});
        CHECK(rig.sync(text(1, 200), {{200, false}}).reason == SyncReason::no_state);
    }
}

TEST_CASE("a state within a reply that the budget pushed out is not missed where the reply is over") {
    for (const uint64_t n_state : {1u, 8u}) {
        CAPTURE(n_state);
        PrefixRig rig(options(n_state));
        rig.sync(text(1, 192), {{180, true}});
        for (const Token id : text(2, 700)) rig.generate(id);
        const std::vector<Token> said(rig.tree.tokens().begin(), rig.tree.tokens().end());
        rig.sync(join(said, text(3, 30)));
        const PrefixReport r = rig.sync(join(first(said, 800), text(4, 1)));
        CHECK(r.reason == SyncReason::checkpoint);
        CHECK(r.checkpoint_row == 180);
    }
    PrefixRig rig(options(1));  // before the next prompt it is
    rig.sync(text(1, 192), {{180, true}});
    for (const Token id : text(2, 700)) rig.generate(id);
    const std::vector<Token> said(rig.tree.tokens().begin(), rig.tree.tokens().end());
    CHECK(rig.sync(join(first(said, 800), text(4, 1))).reason == SyncReason::given_up);
}

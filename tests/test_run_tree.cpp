// A tree of runs as deep as its history has tokens.
#include "prefix_rig.h"
#include "session_rig.h"

#ifndef _WIN32
#include <pthread.h>

using namespace auspex;
using namespace auspex::detail;
using test::first;
using test::join;
using test::PrefixRig;

TEST_CASE("a text that was left at every token is forgotten on a thread with a small stack") {
    constexpr size_t n = 3000, kStack = size_t{128} << 10;
    PrefixOptions o;
    o.state_bytes = 1000;
    o.row_bytes = 10;
    o.n_context = n + 10;
    o.budget_bytes = 40 * o.state_bytes;
    PrefixRig rig(o);
    const auto run = [&](const std::vector<Token>& wanted, const std::vector<Mark>& marks) {  // without check()
        REQUIRE(rig.tree.sync(wanted, marks, true).get(rig.report).ok());
        rig.prefill();
    };
    std::vector<Token> text(n);
    for (size_t i = 0; i < n; ++i) text[i] = static_cast<Token>(i);
    for (size_t i = 1; i < n; ++i)
        for (const Token next : {10000, 10001}) run(join(first(text, i), {next}), {{i, false}});
    REQUIRE(rig.report.checkpoint_row == n - 1);
    std::function<void()> leave = [&] {  // for more tokens than are remembered
        for (Token i = 0; i < 400; ++i) run(std::vector<Token>(n, 20000 + i), {});
    };
    pthread_attr_t attributes;
    pthread_t thread;
    REQUIRE(pthread_attr_init(&attributes) == 0);
    REQUIRE(pthread_attr_setstacksize(&attributes, kStack) == 0);
    const auto call = [](void* f) -> void* { return (*static_cast<std::function<void()>*>(f))(), nullptr; };
    REQUIRE(pthread_create(&thread, &attributes, call, &leave) == 0);
    CHECK(pthread_join(thread, nullptr) == 0);
    pthread_attr_destroy(&attributes);
    rig.check();
    run(text, {});
    CHECK(rig.report.known == 0);
    CHECK(rig.report.reason == SyncReason::new_text);
}
#endif

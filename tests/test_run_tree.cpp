// A tree of runs: what splitting, opening again and removing leave of them, and one as deep as its history has tokens.
#include "prefix_rig.h"
#include "session_rig.h"
#ifndef _WIN32
#include <pthread.h>
#endif

using namespace auspex;
using namespace auspex::detail;

TEST_CASE("a run that is split keeps its tokens and its age, and one that is removed leaves its parent and its place") {
    RunTree tree;
    const std::vector<Token> ids{5, 6, 7, 8};
    const RunId id = tree.add(kRootRun, -1, 9);
    CHECK(tree[kRootRun].children[0].first == -1);
    tree[id].end = 4;
    tree.close(id, ids);
    REQUIRE(tree[kRootRun].children.size() == 1);
    CHECK(tree[kRootRun].children[0].first == 5);
    CHECK(tree.n_token() == 4);
    tree[id].given_up = {1, 3};

    const RunId upper = tree.split(id, 1, 0);
    CHECK(tree[kRootRun].children[0].run == upper);
    CHECK(tree[upper].used);
    CHECK(tree[upper].parent == kRootRun);
    CHECK(tree[upper].begin == 0);
    CHECK(tree[upper].end == 1);
    CHECK(tree[upper].last_use == 9);
    CHECK(tree[upper].tokens == std::vector<Token>{5});
    CHECK(tree[upper].given_up == std::vector<size_t>{1});
    REQUIRE(tree[upper].children.size() == 1);
    CHECK(tree[upper].children[0].first == 6);
    CHECK(tree[upper].children[0].run == id);
    CHECK(tree[id].parent == upper);
    CHECK(tree[id].begin == 1);
    CHECK(tree[id].end == 4);
    CHECK(tree[id].last_use == 9);
    CHECK(tree[id].tokens == std::vector<Token>{6, 7, 8});
    CHECK(tree[id].given_up == std::vector<size_t>{3});
    CHECK(tree.n_token() == 4);

    tree.reopen(id);
    CHECK(tree.n_token() == 1);
    CHECK(tree[id].tokens.empty());
    CHECK(tree.n_run() == 3);
    tree.remove(id);
    CHECK(tree[upper].children.empty());
    CHECK(!tree[id].used);
    CHECK(tree.n_run() == 2);
    CHECK(tree.n_token() == 1);
    CHECK(tree.add(upper, 3, 10) == id);
    CHECK(tree.size() == 3);
    CHECK(tree[id].begin == 1);
}

#ifndef _WIN32
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

// tests/main: the test program. Runs doctest, then lists the skipped test cases and the counts for
// tools/count_tests.py, one line each:
//
//   auspex-skip: NAME: WHY
//   auspex-tests: N passed, N failed, N skipped
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

#include "support.h"

namespace {

/// Counts test cases. One that recorded a skip counts as skipped unless it failed.
struct Counter : doctest::IReporter {
    std::ostream& out;
    size_t n_passed = 0, n_failed = 0, n_skipped = 0, n_recorded = 0;

    explicit Counter(const doctest::ContextOptions& options) : out(*options.cout) {}
    void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
        const bool skipped = test::skipped().size() > n_recorded;
        n_recorded = test::skipped().size();
        ++(!stats.testCaseSuccess ? n_failed : skipped ? n_skipped : n_passed);
    }
    void test_run_end(const doctest::TestRunStats&) override {
        for (const test::Skipped& s : test::skipped()) out << "auspex-skip: " << s.name << ": " << s.why << "\n";
        out << "auspex-tests: " << n_passed << " passed, " << n_failed << " failed, " << n_skipped << " skipped\n";
    }
    void report_query(const doctest::QueryData&) override {}
    void test_run_start() override {}
    void test_case_start(const doctest::TestCaseData&) override {}
    void test_case_reenter(const doctest::TestCaseData&) override {}
    void test_case_exception(const doctest::TestCaseException&) override {}
    void subcase_start(const doctest::SubcaseSignature&) override {}
    void subcase_end() override {}
    void log_assert(const doctest::AssertData&) override {}
    void log_message(const doctest::MessageData&) override {}
    void test_case_skipped(const doctest::TestCaseData&) override {}
};

REGISTER_LISTENER("counter", 1, Counter);

}  // namespace

int main(int argc, char** argv) {
#ifndef _WIN32
    // Mesa's cache would give code for whatever width came first.
    if (std::getenv("LP_NATIVE_VECTOR_WIDTH")) ::setenv("MESA_SHADER_CACHE_DISABLE", "true", 0);
#endif
    doctest::Context context;
    if (!test::deep()) context.addFilter("test-suite-exclude", "deep");
    context.applyCommandLine(argc, argv);
    return context.run();
}

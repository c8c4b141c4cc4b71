// Whole models against outputs of an independent float32 implementation (tests/data/reference, ../shared/reference).
#include <doctest/doctest.h>

#include <cmath>

#include "reference.h"
#include "session_rig.h"

using namespace auspex;
using namespace test;

namespace {

struct Bound {
    CpuPath path;
    KvType kv;
    double error;    ///< largest relative error of a logit row
    size_t n_token;  ///< of each text; the reference ops are plain, so they get the beginning
    uint32_t depth;  ///< MTP depths to compare
};

/// The reference path, and the fastest path of this processor.
const Bound kBounds[] = {{CpuPath::reference, KvType::f16, 1e-3, 100, 1},
                         {CpuPath::best, KvType::f16, 1e-2, 100000, 3}};
/// The first tokens of each text on the fastest path.
const Bound kStart = {CpuPath::best, KvType::f16, 1e-2, 400, 3};
/// The bounds for whole texts. The reference path runs only the beginning of a text, which the small set covers.
Span<const Bound> whole_bounds() { return deep() ? Span<const Bound>(kBounds, 2) : Span<const Bound>(kBounds + 1, 1); }
/// The reference path without rounding of keys and values: only the order of float sums differs.
const Bound kExact = {CpuPath::reference, KvType::f32, 1e-4, 150, 1};

Session open_session(const Model& model, uint32_t n_context, KvType kv) {
    SessionOptions options;
    options.n_context = n_context;
    options.kv_k = options.kv_v = kv;
    return open(model, options);
}

/// The share of `drafts`, made `depth` tokens ahead of the trunk, that equal the trunk's token.
double agreement(const std::vector<Token>& drafts, const std::vector<Token>& trunk, size_t depth) {
    REQUIRE(drafts.size() + depth == trunk.size());
    size_t same = 0;
    for (size_t i = 0; i < drafts.size(); ++i) same += drafts[i] == trunk[i + depth];
    return static_cast<double>(same) / static_cast<double>(drafts.size());
}

/// Every row of a random model against the full arrays. `half_error`: the bound where keys and values are rounded to
/// half precision, which the reference does not do.
void compare_random(const char* name, double half_error = 0) {
    const Reference ref = load_reference(name);
    if (!ref.ok) return;
    const std::vector<Token> ids = ids_of(*ref.json.find("ids"));
    for (const Bound& bound : {kExact, kBounds[0], kBounds[1]}) {
        Session session = open_session(load_model(cpu_device(2, bound.path), ref.model_path), 256, bound.kv);
        const double bound_error = bound.kv == KvType::f16 ? std::fmax(bound.error, half_error) : bound.error;
        const std::string how =
            std::string(name) + (bound.path == CpuPath::best ? ", fastest ops"
                                 : bound.kv == KvType::f16   ? ", reference ops"
                                                             : ", reference ops, keys and values in f32");
        double worst = 0;
        struct Tops {
            std::vector<Token> ours, theirs;
        };
        Tops trunk, drafts;
        auto compare = [&](const char* array, Tops* tops) {
            const Reference::Array want = ref.array(array);
            worst = 0;
            *tops = Tops();
            return [&worst, want, tops](size_t row, Span<const float> logits) {
                REQUIRE(row < want.n_row);
                REQUIRE(logits.size() == want.n_col);
                tops->ours.push_back(static_cast<Token>(arg_max(logits.data(), want.n_col)));
                tops->theirs.push_back(static_cast<Token>(arg_max(want.row(row), want.n_col)));
                worst = std::fmax(worst, relative_error(logits.data(), want.row(row), want.n_col));
                if (margin(want.row(row), want.n_col) > 0.2)
                    CHECK(arg_max(logits.data(), want.n_col) == arg_max(want.row(row), want.n_col));
            };
        };
        Status s = session.score(ids, compare("logits", &trunk));
        REQUIRE_MESSAGE(s.ok(), s.message());
        MESSAGE(how << ", logits: worst relative error " << worst);
        CHECK(worst <= bound_error);
        for (uint32_t depth = 1; depth <= 3; ++depth) {
            const std::string array = "mtp" + std::to_string(depth);
            if (!ref.array(array).data) continue;
            s = session.score_mtp(ids, depth, compare(array.c_str(), &drafts));
            REQUIRE_MESSAGE(s.ok(), s.message());
            MESSAGE(how << ", " << array << ": worst relative error " << worst);
            CHECK(worst <= bound_error);
            CHECK(std::fabs(agreement(drafts.ours, trunk.ours, depth) -
                            agreement(drafts.theirs, trunk.theirs, depth)) <= 0.01);
        }
    }
}

void compare_demo(const char* name, const Reference& ref, Span<const Bound> bounds) {
    const auspex::detail::Json& texts = *ref.json.find("texts");
    for (const Bound& bound : bounds) {
        Session session = open_session(load_model(cpu_device(2, bound.path), ref.model_path), 2048, bound.kv);
        for (size_t t = 0; t < texts.keys().size(); ++t) {
            const std::string key = texts.keys()[t];
            const auspex::detail::Json& text = texts.items()[t];
            std::vector<Token> ids = ids_of(*text.find("ids"));
            if (ids.size() > bound.n_token) ids.resize(bound.n_token);
            const std::vector<Token> top = ids_of(*text.find("argmax")), rows = ids_of(*text.find("rows"));
            const std::vector<double> margins = numbers_of(*text.find("margin"));
            const Reference::Array want = ref.array(key + ".rows");
            double worst = 0;
            size_t checked = 0, decided = 0;
            std::vector<Token> ours;
            Status s = session.score(ids, [&](size_t row, Span<const float> logits) {
                ours.push_back(static_cast<Token>(arg_max(logits.data(), logits.size())));
                if (margins[row] > 0.2) {
                    ++decided;
                    CHECK_MESSAGE(arg_max(logits.data(), logits.size()) == static_cast<size_t>(top[row]),
                                  key << " row " << row << " margin " << margins[row]);
                }
                for (size_t i = 0; i < rows.size(); ++i)
                    if (static_cast<size_t>(rows[i]) == row) {
                        ++checked;
                        worst = std::fmax(worst, relative_error(logits.data(), want.row(i), want.n_col));
                    }
            });
            REQUIRE_MESSAGE(s.ok(), s.message());
            CHECK(checked > 0);
            if (ids.size() == top.size()) CHECK(checked == rows.size());
            CHECK(decided > ids.size() / 2);
            MESSAGE(std::string(name) << " " << key << ": worst relative error " << worst);
            CHECK(worst <= bound.error);

            const Reference::Array mtp = ref.array(key + ".mtp_rows");
            worst = 0;
            std::vector<std::vector<Token>> drafts(3);
            for (uint32_t depth = 1; depth <= bound.depth; ++depth) {
                s = session.score_mtp(ids, depth, [&](size_t row, Span<const float> logits) {
                    drafts[depth - 1].push_back(static_cast<Token>(arg_max(logits.data(), logits.size())));
                    size_t i = 0;  // which of the recorded rows this is
                    while (i < rows.size() && static_cast<size_t>(rows[i]) != row) ++i;
                    if (depth == 1 && i < mtp.n_row)
                        worst = std::fmax(worst, relative_error(logits.data(), mtp.row(i), mtp.n_col));
                });
                REQUIRE_MESSAGE(s.ok(), s.message());
                std::vector<Token> expected = ids_of(text.find("mtp_argmax")->items()[depth - 1]);
                expected.resize(ids.size() - depth);
                REQUIRE(drafts[depth - 1].size() == expected.size());
                size_t same = 0;
                for (size_t i = 0; i < expected.size(); ++i) same += drafts[depth - 1][i] == expected[i];
                CHECK_MESSAGE(static_cast<double>(same) >= 0.985 * static_cast<double>(expected.size()),
                              key << " depth " << depth << ": " << same << " of " << expected.size());
                const double got = agreement(drafts[depth - 1], ours, depth),
                             framework = agreement(
                                 expected, {top.begin(), top.begin() + static_cast<std::ptrdiff_t>(ids.size())}, depth);
                CHECK_MESSAGE(std::fabs(got - framework) <= 0.01,
                              key << " depth " << depth << ": " << got
                                  << " of the guesses agree with the trunk, the framework's: " << framework);
            }
            MESSAGE(std::string(name) << " " << key << " mtp: worst relative error " << worst);
            CHECK(worst <= bound.error);

            if (ids.size() < top.size()) continue;  // the beginning holds no greedy part
            const size_t n_prompt = static_cast<size_t>(std::atoi(text.find("greedy_prompt")->text().c_str()));
            const std::vector<Token> greedy = ids_of(*text.find("greedy"));
            const std::vector<double> greedy_margin = numbers_of(*text.find("greedy_margin"));
            auto synced = session.sync(Span<const Token>(ids.data(), n_prompt));
            REQUIRE_MESSAGE(synced.ok(), synced.status().message());
            for (size_t i = 0; i < greedy.size(); ++i) {
                auto next = session.next();
                REQUIRE_MESSAGE(next.ok(), next.status().message());
                if (next.value()[0] == greedy[i]) continue;
                CHECK_MESSAGE(greedy_margin[i] < 0.1, key << " greedy step " << i);
                break;  // from here on the texts may differ
            }
        }
    }
}

/// Acceptance in the engine's own cycles against the framework's teacher-forced rows, at rows where both draft from the
/// same tokens.
void compare_acceptance(const char* name) {
    const Reference ref = load_reference(name);
    if (!ref.ok) return;
    SessionOptions options;
    options.n_context = 2048;
    options.draft.source = Draft::mtp;
    options.draft.depth = 3;
    uint32_t accepted = 0;
    options.on_cycle = [&](const DraftCycle& c) { accepted = c.accepted; };
    Session session = open(load_model(cpu_device(2), ref.model_path), options);
    double n[4] = {}, ours[4] = {}, theirs[4] = {};  // by place in the cycle
    const auspex::detail::Json& texts = *ref.json.find("texts");
    for (const auspex::detail::Json& text : texts.items()) {
        const std::vector<Token> ids = ids_of(*text.find("ids")), top = ids_of(*text.find("argmax"));
        std::vector<std::vector<Token>> drafts;
        for (const auspex::detail::Json& depth : text.find("mtp_argmax")->items()) drafts.push_back(ids_of(depth));
        REQUIRE(drafts.size() == 3);
        for (size_t row = 20; row + 4 < ids.size(); row += deep() ? 2 : 4) {  // this row guesses the token after next
            if (top[row] != ids[row + 1]) continue;
            REQUIRE(session.sync(Span<const Token>(ids.data(), row + 1)).ok());
            auto next = session.next();
            REQUIRE(next.ok());
            if (next.value()[0] != top[row]) continue;
            REQUIRE(session.next().ok());
            for (uint32_t d = 1; d <= 3; ++d) {
                const bool right = drafts[d - 1][row] == top[row + d];
                n[d] += 1;
                ours[d] += accepted >= d;
                theirs[d] += right;
                if (!right || accepted < d || top[row + d] != ids[row + d + 1]) break;
            }
        }
    }
    for (uint32_t d = 1; d <= 3; ++d) {
        MESSAGE(std::string(name) << " place " << d << ": " << ours[d] / n[d] << " accepted of " << n[d]
                                  << " guesses, the framework's rows: " << theirs[d] / n[d]);
        CHECK(n[d] > (deep() ? 400 : 200));
        CHECK(ours[d] / n[d] >= theirs[d] / n[d] - 0.01);
        // Deeper guesses see keys of true rows before them, the framework's those of rows as deep as they are.
        if (d == 1) CHECK(std::fabs(ours[d] - theirs[d]) / n[d] <= 0.01);
    }
}

}  // namespace

TEST_CASE("a random dense model gives the framework's logits and MTP rows" * doctest::test_suite("long")) {
    compare_random("random-dense");
}
TEST_CASE("a random model with experts gives the framework's logits and MTP rows" * doctest::test_suite("long")) {
    compare_random("random-moe");
}
// Its keys are not normalised and its logits are nearly equal, so half precision shows: 3e-3, against 3e-6 without.
TEST_CASE("a random step35 model gives the logits and chained MTP rows of plain formulas" *
          doctest::test_suite("long")) {
    compare_random("random-step35", 4e-3);
}
TEST_CASE("the demo model gives the framework's logits, drafts and greedy text on the rows kept in the repository" *
          doctest::test_suite("long")) {
    const Reference ref = load_small_reference();
    REQUIRE(ref.ok);
    compare_demo("small set", ref, Span<const Bound>(kBounds, 2));
}
TEST_CASE("the demo model in Q4_K_M gives the framework's logits, drafts and greedy text on whole texts" *
          doctest::test_suite("long")) {
    const Reference ref = load_reference("demo-q4_k_m");
    if (ref.ok) compare_demo("demo-q4_k_m", ref, whole_bounds());
}
TEST_CASE("the demo model in Q8_0 gives the framework's logits and drafts, in deep also its greedy text" *
          doctest::test_suite("long")) {
    const Reference ref = load_reference("demo-q8_0");
    if (ref.ok) compare_demo("demo-q8_0", ref, deep() ? whole_bounds() : Span<const Bound>(&kStart, 1));
}
TEST_CASE("acceptance at every depth is that of the framework's rows" * doctest::test_suite("long")) {
    compare_acceptance("demo-q4_k_m");
    if (deep()) compare_acceptance("demo-q8_0");
}

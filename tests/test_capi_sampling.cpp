// The C interface: texts, logits, biases and constraints. The rest is in tests/test_capi.cpp.
#include "capi_rig.h"

#include <algorithm>
#include <thread>

using namespace capi_rig;

TEST_CASE("C: a text that begins a history gets the token that the file asks for in front") {
    TinyOptions tiny;
    tiny.bos = true;
    Rig rig(tiny);
    const auto encode = [&rig](const std::string& text, uint32_t flags) {
        std::vector<int32_t> ids(64);
        size_t n = 0;
        rig.ok(auspex_encode(rig.model, text.data(), text.size(), flags, ids.data(), ids.size(), &n, rig.ok));
        ids.resize(n);
        return ids;
    };
    CHECK(encode("the", 0) == std::vector<int32_t>{257});
    CHECK(encode("the", AUSPEX_BEGIN) == std::vector<int32_t>{264, 257});
    CHECK(encode("<|im_start|>the", AUSPEX_BEGIN | AUSPEX_SPECIAL) == std::vector<int32_t>{264, 265, 257});
    CHECK(encode("<|endoftext|>the", AUSPEX_BEGIN | AUSPEX_SPECIAL) == std::vector<int32_t>{264, 257});
    const int32_t id = 257;
    char text[8];
    size_t n = 0;
    CHECK(auspex_decode(rig.model, &id, 1, AUSPEX_BEGIN, text, sizeof text, &n, rig.ok) == AUSPEX_BAD_ARGUMENT);
}

TEST_CASE("C: logits and scores are those that next() samples from, and a score may be cancelled") {
    Rig rig;
    const std::vector<int32_t> prompt = {3, 1, 4, 1, 5, 9, 2, 6};
    auspex_session* s = rig.session();
    const float* logits = nullptr;
    size_t n = 7;
    CHECK(auspex_session_logits(s, &logits, &n, nullptr) == AUSPEX_BAD_ARGUMENT);  // no history yet
    CHECK((logits == nullptr && n == 0));
    auspex_session* other = rig.session();
    rig.sync(other, prompt);
    const std::vector<int32_t> sampled = rig.next(other, 20);
    std::vector<int32_t> history = prompt;
    for (const int32_t id : sampled) {
        rig.sync(s, history);
        rig.ok(auspex_session_logits(s, &logits, &n, rig.ok));
        CHECK(std::max_element(logits, logits + n) - logits == id);
        history.push_back(id);
    }

    struct Rows {
        std::vector<int32_t> best;
        size_t n_max;
    };
    const auto on_row = [](uint64_t row, const float* row_logits, size_t n_logits, void* user) {
        Rows& rows = *static_cast<Rows*>(user);
        CHECK(row == rows.best.size());
        rows.best.push_back(static_cast<int32_t>(std::max_element(row_logits, row_logits + n_logits) - row_logits));
        return rows.best.size() == rows.n_max ? int32_t{1} : int32_t{0};
    };
    Rows rows{{}, 0};
    rig.ok(auspex_session_score(s, history.data(), history.size(), on_row, &rows, rig.ok));
    REQUIRE(rows.best.size() == history.size());
    CHECK(std::equal(sampled.begin(), sampled.end(), rows.best.begin() + static_cast<long>(prompt.size()) - 1));
    for (const size_t n_max : {size_t{1}, size_t{16}, size_t{17}, history.size()}) {
        rows = {{}, n_max};
        CHECK(auspex_session_score(s, history.data(), history.size(), on_row, &rows, rig.ok) == AUSPEX_CANCELLED);
        CHECK(rows.best.size() == n_max);
        rig.sync(s, prompt);
        CHECK(rig.next(s, 20) == sampled);
    }
    CHECK(auspex_session_score(s, history.data(), history.size(), nullptr, nullptr, rig.ok) == AUSPEX_BAD_ARGUMENT);
    auspex_session_free(s);
    auspex_session_free(other);
}

TEST_CASE("C: a cancel during the last step of a call is not lost") {
    Rig rig;
    auspex_session* s = rig.session();
    const std::vector<int32_t> ids = {3, 1, 4, 1, 5, 9, 2, 6};
    struct Other {
        auspex_session* session;
        uint64_t at, n_row;
    };
    const auto on_row = [](uint64_t row, const float*, size_t, void* user) {
        Other& other = *static_cast<Other*>(user);
        ++other.n_row;
        if (row == other.at) std::thread([&] { auspex_session_cancel(other.session); }).join();
        return int32_t{0};
    };
    for (const uint64_t at : {uint64_t{0}, uint64_t{7}}) {
        Other other{s, at, 0};
        CHECK(auspex_session_score(s, ids.data(), ids.size(), on_row, &other, rig.ok) == AUSPEX_CANCELLED);
        CHECK(other.n_row == ids.size());  // they were computed
        other = {s, 99, 0};
        CHECK(auspex_session_score(s, ids.data(), ids.size(), on_row, &other, rig.ok) == AUSPEX_OK);
    }
    auspex_session_free(s);

    // The last progress of a prefill says 1.0: then every row is computed.
    auto options = cleared<auspex_session_options>();
    options.n_context = 64;
    auspex_session* inside = nullptr;
    options.progress_user = &inside;
    options.progress = [](const char*, float fraction, void* user) {
        auspex_session* session = *static_cast<auspex_session**>(user);
        if (fraction == 1.0f) auspex_session_cancel(session);
        return int32_t{0};
    };
    rig.ok(auspex_session_create(rig.model, &options, &inside, rig.ok));
    auto report = cleared<auspex_sync_report>();
    CHECK(auspex_session_sync(inside, ids.data(), ids.size(), nullptr, 0, &report, rig.ok) == AUSPEX_CANCELLED);
    CHECK(report.rows_computed == ids.size());
    rig.sync(inside, ids);  // nothing is left to compute
    auspex_session_free(inside);
}

TEST_CASE("C: each field of a sampling has the effect that it has in C++") {
    Rig rig;
    const auspex::Model model = load_model(cpu_device(), rig.bytes);
    const std::vector<int32_t> prompt = {3, 1, 4, 1, 5, 9, 2, 6};
    auspex_session* s = rig.session();
    auspex::SessionOptions options;
    options.n_context = 256;
    options.n_ubatch = 16;
    auspex::Session same;
    REQUIRE(auspex::Session::create(model, options).get(same).ok());
    const auto by_c = [&](const auspex_sampling& sampling) {
        std::vector<int32_t> ids;
        rig.sync(s, prompt);
        while (ids.size() < 24) {
            int32_t next[AUSPEX_MAX_TOKENS];
            size_t n = 0;
            rig.ok(auspex_session_next(s, &sampling, next, AUSPEX_MAX_TOKENS, &n, rig.ok));
            ids.insert(ids.end(), next, next + n);
        }
        return ids;
    };
    const auto by_cpp = [&](const auspex::Sampling& sampling) {
        std::vector<int32_t> ids;
        REQUIRE(same.sync(prompt).ok());
        while (ids.size() < 24) ids.push_back(same.next(sampling).value()[0]);
        return ids;
    };
    auto base = cleared<auspex_sampling>();
    base.temperature = 3;
    base.seed = 5;
    base.top_k = 3;  // so that ids come again
    base.repeat_penalty = 1.5f;
    auspex::Sampling base_same;
    base_same.temperature = 3;
    base_same.seed = 5;
    base_same.top_k = 3;
    base_same.repeat_penalty = 1.5f;
    const std::vector<int32_t> usual = by_c(base);
    CHECK(usual == by_cpp(base_same));
    const auto differs = [&](const std::string& name, auto change) {
        CAPTURE(name);
        auspex_sampling sampling = base;
        auspex::Sampling sampling_same = base_same;
        change(sampling);
        change(sampling_same);
        const std::vector<int32_t> ids = by_c(sampling);
        CHECK(ids == by_cpp(sampling_same));
        CHECK(ids != usual);
    };
    differs("temperature", [](auto& to) { to.temperature = 0.7f; });
    differs("seed", [](auto& to) { to.seed = uint64_t{6} << 32; });
    differs("top_k", [](auto& to) { to.top_k = 2; });
    differs("top_p", [](auto& to) { to.top_p = 0.1f; });
    differs("min_p", [](auto& to) { to.min_p = 0.9f; });
    differs("repeat_penalty", [](auto& to) { to.repeat_penalty = 50; });
    differs("frequency_penalty", [](auto& to) { to.frequency_penalty = 90; });
    differs("presence_penalty", [](auto& to) { to.presence_penalty = -90; });
    differs("penalty_window", [](auto& to) { to.penalty_window = 1; });
    auspex_session_free(s);
}

TEST_CASE("C: logit_bias decides what is sampled, and is checked") {
    Rig rig;
    Ok ok;
    auspex_session* s = rig.session();
    rig.sync(s, {1, 2, 3});
    auspex_sampling sampling;
    REQUIRE(auspex_sampling_init(&sampling, sizeof sampling) == AUSPEX_OK);
    auspex_logit_bias bias[2] = {{17, 900.0f}, {18, 950.0f}};
    sampling.logit_bias = bias;
    int32_t ids[AUSPEX_MAX_TOKENS];
    size_t n = 0;
    for (const size_t n_bias : {1u, 2u}) {
        sampling.n_logit_bias = n_bias;
        ok(auspex_session_next(s, &sampling, ids, AUSPEX_MAX_TOKENS, &n, ok));
        CHECK(ids[0] == bias[n_bias - 1].id);
    }
    bias[0].id = kTinyVocab;
    CHECK(auspex_session_next(s, &sampling, ids, AUSPEX_MAX_TOKENS, &n, nullptr) == AUSPEX_BAD_ARGUMENT);
    sampling.logit_bias = nullptr;
    CHECK(auspex_session_next(s, &sampling, ids, AUSPEX_MAX_TOKENS, &n, nullptr) == AUSPEX_BAD_ARGUMENT);
    auspex_session_free(s);
}

TEST_CASE("C: a constraint decides what is sampled, and may be freed while a session goes on") {
    Rig rig;
    Ok ok;
    auspex_session* s = rig.session(512);
    rig.sync(s, {1, 2, 3, 4, 5});
    const std::string digits = "[0-9]{6}";
    auspex_constraint* constraint = nullptr;
    ok(auspex_constraint_create(rig.model, AUSPEX_CONSTRAINT_REGEX, digits.data(), digits.size(), &constraint, ok));
    auspex_sampling sampling;
    REQUIRE(auspex_sampling_init(&sampling, sizeof sampling) == AUSPEX_OK);
    sampling.grammar = constraint;
    int32_t ids[AUSPEX_MAX_TOKENS];
    size_t n = 0, n_text = 0;
    std::vector<int32_t> history{1, 2, 3, 4, 5};
    const auto to_the_end = [&] {
        do {
            ok(auspex_session_next(s, &sampling, ids, AUSPEX_MAX_TOKENS, &n, ok));
            history.insert(history.end(), ids, ids + n);
        } while (auspex_is_end(rig.model, history.back()) == 0);
        char text[64];
        ok(auspex_decode(rig.model, history.data() + 5, history.size() - 5, 0, text, sizeof text, &n_text, ok));
        return std::string(text, n_text);
    };
    const auto six_digits = [](const std::string& text) {
        return text.size() == 6 && text.find_first_not_of("0123456789") == std::string::npos;
    };
    CHECK(six_digits(to_the_end()));
    // Written anew up to its second token, with another row before it to compute: the text goes on from there.
    history.resize(7);
    rig.sync(s, {1, 2, 3, 4});
    rig.sync(s, history);
    sampling.constrained_from = 1 + 5;
    CHECK(six_digits(to_the_end()));
    rig.sync(s, {1, 2, 3, 4, 5, 6});
    auspex_error refused = AUSPEX_ERROR_INIT;
    CHECK(auspex_session_next(s, &sampling, ids, AUSPEX_MAX_TOKENS, &n, &refused) == AUSPEX_BAD_ARGUMENT);
    CHECK(std::strstr(refused.text, "refuses token 5 of the history") != nullptr);
    sampling.constrained_from = UINT64_MAX;
    CHECK(auspex_session_next(s, &sampling, ids, AUSPEX_MAX_TOKENS, &n, nullptr) == AUSPEX_BAD_ARGUMENT);
    auspex_constraint_free(constraint);
    CHECK(auspex_session_next(s, nullptr, ids, AUSPEX_MAX_TOKENS, &n, nullptr) == AUSPEX_OK);
    CHECK(auspex_constraint_create(rig.model, AUSPEX_CONSTRAINT_GBNF, "root ::= (", 10, &constraint, nullptr) ==
          AUSPEX_BAD_ARGUMENT);
    CHECK(auspex_constraint_create(rig.model, 3, "a", 1, &constraint, nullptr) == AUSPEX_BAD_ARGUMENT);
    const std::string request = R"({"messages": [], "tools": [{"name": "f"}]})";
    ok(auspex_constraint_from_tools(rig.model, request.data(), request.size(), 1, "f", 0, &constraint, ok));
    auspex_constraint_free(constraint);
    CHECK(auspex_constraint_from_tools(rig.model, request.data(), request.size(), 1, "g", 0, &constraint, nullptr) ==
          AUSPEX_BAD_ARGUMENT);
    CHECK(auspex_constraint_from_tools(rig.model, request.data(), request.size(), 1, "", 0, &constraint, &refused) ==
          AUSPEX_BAD_ARGUMENT);
    CHECK(std::string(refused.text) == "tool is empty, expected the name of a tool, or null for any");
    auspex_session_free(s);
}

TEST_CASE("C: the options of a schema and of tools arrive, and what was left out is listed") {
    Rig rig;
    Ok ok;
    auspex_session* s = rig.session(128);
    const std::string schema =
        R"({"properties": {"a": {"type": "integer"}, "b": {"type": "array", "uniqueItems": true}}})";
    const std::string request = R"({"messages": [], "tools": [{"name": "f", "parameters": )" + schema + "}]}";
    auspex_constraint* constraint = nullptr;
    const auto ignored = [&] {
        char text[256];
        size_t n = 0;
        ok(auspex_constraint_ignored(constraint, text, sizeof text, &n, ok));
        CHECK(auspex_constraint_ignored(constraint, text, n, &n, nullptr) == AUSPEX_BUFFER_TOO_SMALL);
        return std::string(text, n);
    };
    const auto allows = [&](const std::string& text) {
        auspex_sampling sampling;
        REQUIRE(auspex_sampling_init(&sampling, sizeof sampling) == AUSPEX_OK);
        sampling.grammar = constraint;
        sampling.constrained_from = 1 + 1;
        int32_t ids[128], next[AUSPEX_MAX_TOKENS];
        size_t n = 0;
        ok(auspex_encode(rig.model, text.data(), text.size(), 0, ids, 128, &n, ok));
        std::vector<int32_t> history(ids, ids + n);
        history.insert(history.begin(), 1);
        rig.sync(s, history);
        return auspex_session_next(s, &sampling, next, AUSPEX_MAX_TOKENS, &n, nullptr) == AUSPEX_OK;
    };
    auto options = cleared<auspex_schema_options>();
    const auto make = [&](auspex_error* error) {
        return auspex_constraint_for_schema(rig.model, schema.data(), schema.size(), &options, &constraint, error);
    };
    auspex_error refused = AUSPEX_ERROR_INIT;
    CHECK(make(&refused) == AUSPEX_UNSUPPORTED);
    CHECK(std::strstr(refused.text, "uniqueItems") != nullptr);
    options.ignore_unsupported = 1;
    ok(make(ok));
    CHECK(ignored() == "#/properties/b: uniqueItems\n");
    CHECK(allows(R"({"a": 1, "b")"));
    CHECK_FALSE(allows(R"({"b": [], "a")"));
    auspex_constraint_free(constraint);
    options.any_order = options.no_white_space = 1;
    ok(make(ok));
    CHECK(allows(R"({"b":[],"a")"));
    CHECK_FALSE(allows(R"({"b": [)"));
    auspex_constraint_free(constraint);
    for (int32_t* field : {&options.ignore_unsupported, &options.any_order, &options.no_white_space}) {
        *field = 2;
        CHECK(make(nullptr) == AUSPEX_BAD_ARGUMENT);
        *field = 0;
    }

    auto tools = cleared<auspex_tool_options>();
    const auto make_tools = [&] {
        return auspex_constraint_for_tools(rig.model, request.data(), request.size(), &tools, &constraint, nullptr);
    };
    CHECK(make_tools() == AUSPEX_UNSUPPORTED);
    tools.ignore_unsupported = 1;
    REQUIRE(make_tools() == AUSPEX_OK);
    CHECK(ignored() == "f: #/properties/b: uniqueItems\n");
    const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {";
    CHECK(allows(call + R"("a": 1, "b")"));
    CHECK_FALSE(allows(call + R"("b": [], "a")"));
    auspex_constraint_free(constraint);
    tools.any_order = 1;
    REQUIRE(make_tools() == AUSPEX_OK);
    CHECK(allows(call + R"("b": [], "a")"));
    auspex_constraint_free(constraint);
    tools.any_order = -1;
    CHECK(make_tools() == AUSPEX_BAD_ARGUMENT);
    auspex_session_free(s);
}

TEST_CASE("C: under tools with a schema of answers a reply is a call or a JSON text of the schema") {
    Rig rig;
    Ok ok;
    const std::string request = R"({"messages": [], "tools": [{"name": "f"}]})";
    auspex_constraint* constraint = nullptr;
    auspex_tool_options tools;
    REQUIRE(auspex_tool_options_init(&tools, sizeof tools) == AUSPEX_OK);
    const std::string answer = R"({"enum": ["alpha", "beta"]})";
    tools.answer = answer.data();
    tools.n_answer = answer.size();
    ok(auspex_constraint_for_tools(rig.model, request.data(), request.size(), &tools, &constraint, ok));
    auspex_sampling sampling;
    REQUIRE(auspex_sampling_init(&sampling, sizeof sampling) == AUSPEX_OK);
    sampling.grammar = constraint;
    sampling.constrained_from = 1 + 5;
    auspex_session* s = rig.session(64);
    int32_t ids[AUSPEX_MAX_TOKENS];
    size_t n = 0;
    const auto after = [&](const std::string& text) {
        int32_t written[64];
        size_t n_written = 0;
        ok(auspex_encode(rig.model, text.data(), text.size(), AUSPEX_SPECIAL, written, 64, &n_written, ok));
        std::vector<int32_t> history = {1, 2, 3, 4, 5};
        history.insert(history.end(), written, written + n_written);
        rig.sync(s, history);
        return auspex_session_next(s, &sampling, ids, AUSPEX_MAX_TOKENS, &n, nullptr);
    };
    CHECK(after("\"beta\"") == AUSPEX_OK);
    CHECK(auspex_is_end(rig.model, ids[0]) == 1);
    CHECK(after("\"gamma\"") == AUSPEX_BAD_ARGUMENT);
    CHECK(after("<tool_call>\n{\"name\": \"f\"") == AUSPEX_OK);
    CHECK(after("<tool_call>\n{\"name\": \"g\"") == AUSPEX_BAD_ARGUMENT);
    auspex_constraint_free(constraint);
    auspex_error refused = AUSPEX_ERROR_INIT;
    tools.n_answer = answer.size() - 1;
    CHECK(auspex_constraint_for_tools(rig.model, request.data(), request.size(), &tools, &constraint, &refused) ==
          AUSPEX_BAD_ARGUMENT);
    CHECK(std::strstr(refused.text, "answer: ") != nullptr);
    tools.one_call = 2;
    CHECK(auspex_constraint_for_tools(rig.model, request.data(), request.size(), &tools, &constraint, nullptr) ==
          AUSPEX_BAD_ARGUMENT);
    auspex_session_free(s);
}

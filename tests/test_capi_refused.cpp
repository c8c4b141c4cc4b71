// The C interface: what functions leave behind where they refuse their arguments. The rest is in tests/test_capi.cpp.
#include "capi_rig.h"

using namespace capi_rig;

TEST_CASE("C: a function that makes a handle and fails sets it to null, whatever it refuses") {
    Ok ok;
    int other = 0;  // what the caller's pointers hold before
    auspex_model* const before = reinterpret_cast<auspex_model*>(&other);
    auspex_model* model = before;
    CHECK(auspex_model_load(nullptr, nullptr, nullptr, &model, ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(model == nullptr);
    model = before;
    CHECK(auspex_model_load_memory(nullptr, nullptr, 1, nullptr, &model, ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(model == nullptr);
    model = before;
    CHECK(auspex_model_load_file(nullptr, 0, 0, 0, nullptr, &model, ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(model == nullptr);
    model = before;
    CHECK(auspex_model_load_reader(nullptr, nullptr, nullptr, &model, ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(model == nullptr);
    auto* fork = reinterpret_cast<auspex_session*>(&other);
    CHECK(auspex_session_fork(nullptr, &fork, ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(fork == nullptr);
    auto* snapshot = reinterpret_cast<auspex_snapshot*>(&other);
    CHECK(auspex_snapshot_take(nullptr, &snapshot, ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(snapshot == nullptr);
}

TEST_CASE("C: rendering that fails leaves nothing of an earlier prompt in its outputs") {
    Rig rig;
    for (const bool is_loaded : {false, true}) {
        size_t n_ids = 7, n_marks = 7;
        int32_t inside_thinking = 7;
        CHECK(auspex_render_ids(is_loaded ? rig.model : nullptr, "{", 1, nullptr, 0, &n_ids, nullptr, 0, &n_marks,
                                &inside_thinking, rig.ok) == AUSPEX_BAD_ARGUMENT);
        CHECK((n_marks == 0 && inside_thinking == 0));
    }
}

TEST_CASE("C: fields of a mark out of range are refused by name") {
    Rig rig;
    auspex_session* s = rig.session();
    const std::vector<int32_t> ids = tiny_ids(10, 1);
    const auspex_mark pinned = {4, 7, 0}, newer = {4, 1, 1};
    CHECK(auspex_session_sync(s, ids.data(), ids.size(), &pinned, 1, nullptr, rig.ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(std::string(rig.ok.error.text) == "auspex_mark.pinned is 7, expected 0..1");
    CHECK(auspex_session_sync(s, ids.data(), ids.size(), &newer, 1, nullptr, rig.ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(std::string(rig.ok.error.text) == "auspex_mark.reserved is 1, expected 0");
    auspex_session_free(s);
}

TEST_CASE("C: what is expected of a sampling field names the value 0 where 0 is one") {
    Rig rig;
    auspex_session* s = rig.session();
    rig.sync(s, {3, 1, 4});
    int32_t ids[AUSPEX_MAX_TOKENS];
    size_t n = 0;
    auto sampling = cleared<auspex_sampling>();
    sampling.top_p = -1;
    CHECK(auspex_session_next(s, &sampling, ids, AUSPEX_MAX_TOKENS, &n, rig.ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(std::string(rig.ok.error.text) == "sampling.top_p is -1, expected 0 (all) or up to 1");
    sampling.top_p = 1.0000001f;
    CHECK(auspex_session_next(s, &sampling, ids, AUSPEX_MAX_TOKENS, &n, rig.ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(std::string(rig.ok.error.text) == "sampling.top_p is 1.0000001, expected 0 (all) or up to 1");
    sampling.top_p = 0;
    sampling.repeat_penalty = -1;
    CHECK(auspex_session_next(s, &sampling, ids, AUSPEX_MAX_TOKENS, &n, rig.ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(std::string(rig.ok.error.text) == "sampling.repeat_penalty is -1, expected 0 (none) or up to 100");
    sampling.repeat_penalty = 0;
    rig.ok(auspex_session_next(s, &sampling, ids, AUSPEX_MAX_TOKENS, &n, rig.ok));
    auspex_session_free(s);
}

TEST_CASE("C: an error's text that does not fit is cut between characters") {
    Rig rig;
    const std::string path =
        "a\xe2\x82\xac"
        "b\xc3\xa4.gguf";
    auspex_model* model = nullptr;
    CHECK(auspex_model_load(rig.device, path.c_str(), nullptr, &model, rig.ok) == AUSPEX_NOT_FOUND);
    const std::string whole = rig.ok.error.text;
    const size_t at = whole.find(path);
    REQUIRE(at != std::string::npos);
    const char* const cut[] = {"",
                               "a",
                               "a",
                               "a",
                               "a\xe2\x82\xac",
                               "a\xe2\x82\xac"
                               "b",
                               "a\xe2\x82\xac"
                               "b",
                               "a\xe2\x82\xac"
                               "b\xc3\xa4"};
    for (size_t n = 0; n < std::size(cut); ++n) {
        CAPTURE(n);
        auspex_error error;
        std::memset(&error, 0x55, sizeof error);
        error.struct_size = static_cast<uint32_t>(offsetof(auspex_error, text) + at + n + 1);
        CHECK(auspex_model_load(rig.device, path.c_str(), nullptr, &model, &error) == AUSPEX_NOT_FOUND);
        CHECK(std::string(error.text) == whole.substr(0, at) + cut[n]);
        CHECK(error.text[at + n + 1] == 0x55);  // nothing is written beyond the struct
    }
}

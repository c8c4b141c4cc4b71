// capi_rig: a tiny model through the C interface, for its tests.
#pragma once
#include "../src/auspex.h"
#include "support.h"
#include "tiny.h"

#include <cstring>

#include <doctest/doctest.h>

namespace capi_rig {

using namespace test;

template <class T>
T cleared() {
    T t;
    std::memset(static_cast<void*>(&t), 0, sizeof t);
    t.struct_size = sizeof t;
    return t;
}

/// Fails the test with the error's text.
struct Ok {
    auspex_error error = AUSPEX_ERROR_INIT;
    operator auspex_error*() { return &error; }
    void operator()(auspex_code code) { REQUIRE_MESSAGE(code == AUSPEX_OK, error.text); }
};

struct Rig {
    std::vector<std::byte> bytes;
    Ok ok;
    auspex_device* device = nullptr;
    auspex_model* model = nullptr;

    explicit Rig(const TinyOptions& tiny = {}) : bytes(tiny_qwen35(tiny)) {
        auto options = cleared<auspex_device_options>();
        options.kind = AUSPEX_KIND_CPU;
        options.n_thread = 1;
        ok(auspex_device_open(&options, &device, ok));
        ok(auspex_model_load_memory(device, bytes.data(), bytes.size(), nullptr, &model, ok));
    }
    Rig(const Rig&) = delete;
    Rig& operator=(const Rig&) = delete;
    ~Rig() {
        auspex_model_free(model);
        auspex_device_free(device);
    }
    auspex_session* session(uint32_t n_context = 256) {
        auto options = cleared<auspex_session_options>();
        options.n_context = n_context;
        options.n_ubatch = 16;
        auspex_session* s = nullptr;
        ok(auspex_session_create(model, &options, &s, ok));
        return s;
    }
    void sync(auspex_session* s, const std::vector<int32_t>& ids) {
        ok(auspex_session_sync(s, ids.data(), ids.size(), nullptr, 0, nullptr, ok));
    }
    std::vector<int32_t> next(auspex_session* s, size_t n) {
        std::vector<int32_t> all;
        while (all.size() < n) {
            int32_t ids[AUSPEX_MAX_TOKENS];
            size_t count = 0;
            ok(auspex_session_next(s, nullptr, ids, AUSPEX_MAX_TOKENS, &count, ok));
            all.insert(all.end(), ids, ids + count);
        }
        return all;
    }
};

}  // namespace capi_rig

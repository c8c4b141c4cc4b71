// tests/session_file_rig: sessions, folders and files for the tests of conversations on disk.
#pragma once
#include <filesystem>
#include <fstream>

#include "../src/engine/file_parts.h"
#include "session_rig.h"
#include "tiny.h"

namespace test_session_file {

using namespace auspex;
using namespace auspex::detail;
using namespace test;

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

/// A folder of its own for each test.
struct Folder {
    fs::path path;
    Folder() : path(fs::temp_directory_path() / ("auspex-test-" + std::to_string(unique_number()))) {
        fs::create_directories(path);
    }
    ~Folder() { fs::remove_all(path); }
    std::string file(const char* name = "chat.session") const { return (path / name).string(); }
    size_t n_file() const {
        return static_cast<size_t>(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
    }
};

inline Bytes read_file(const std::string& path) {
    std::ifstream f(path, std::ios::binary);
    const std::string s((std::istreambuf_iterator<char>(f)), std::istreambuf_iterator<char>());
    const std::byte* p = reinterpret_cast<const std::byte*>(s.data());
    return Bytes(p, p + s.size());
}
inline void write_file(const std::string& path, Span<const std::byte> bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

inline SessionOptions options_of(Draft source = Draft::off) {
    SessionOptions o;
    o.n_context = 1024;
    o.n_ubatch = 128;
    o.draft.source = source;
    o.draft.depth = source == Draft::off ? 0 : 3;
    return o;
}
inline SaveReport save(const Session& session, const std::string& path, const Bytes& note = {}) {
    auto r = session.save(path.c_str(), note);
    REQUIRE_MESSAGE(r.ok(), r.status().message());
    return r.value();
}
inline SessionFile load(Session& session, const std::string& path) {
    auto r = session.load(path.c_str());
    REQUIRE_MESSAGE(r.ok(), r.status().message());
    return r.value();
}
inline Model tiny(const Device& device, uint64_t seed = 1, bool gpu = false, float rope_base = 1e7f) {
    TinyOptions t;
    t.seed = seed;
    t.rope_base = rope_base;
    if (gpu) t.n_head_k = 1, t.n_head_v = 2, t.d_head = 256, t.d_key = 128;
    static std::vector<std::unique_ptr<Bytes>> kept;  // a model reads its bytes in place
    kept.push_back(std::make_unique<Bytes>(tiny_model(t)));
    return load_model(device, *kept.back());
}

}  // namespace test_session_file

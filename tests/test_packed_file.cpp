// Weights that a first load keeps in a file: the next one maps them, and what does not fit is packed again.
#include "session_file_rig.h"

#include <doctest/doctest.h>

#include <filesystem>

using namespace test_session_file;

namespace {

std::vector<std::byte> model_bytes(uint64_t seed) {
    TinyOptions o = smallest();
    o.type = Type::q8_0;
    o.seed = seed;
    return tiny_model(o);
}

std::vector<Token> text_of(const Model& model) {
    SessionOptions options;
    options.n_context = 64;
    Session session;
    REQUIRE(Session::create(model, options).get(session).ok());
    sync(session, tiny_ids(12, 3));
    return more(session, 16);
}

/// A model file, a place for its packed weights, and what loading it logs.
struct Packed {
    Folder folder;
    std::string model = folder.file("model.gguf"), file = folder.file("model.packed");
    std::vector<std::string> warnings;
    Device device;

    explicit Packed(CpuPath path = CpuPath::best) {
        DeviceOptions options;
        options.kind = Kind::cpu;
        options.n_thread = 1;
        options.cpu_path = path;
        options.log = [this](LogLevel level, std::string_view text) {
            if (level == LogLevel::warning && text.find("packed") != std::string_view::npos)
                warnings.emplace_back(text);
        };
        device = open_device(options);
        write_file(model, model_bytes(1));
    }
    /// Some instruction sets read the file's own rows.
    bool packs() const { return device.report().find("path     reference") == std::string::npos; }
    Result<Model> try_load(const std::string& packed) const {
        LoadOptions options;
        options.packed_file = packed;
        return Model::load(device, model.c_str(), options);
    }
    Model load() const {
        Model m;
        REQUIRE(try_load(file).get(m).ok());
        return m;
    }
    /// Bytes of weights that a plan places in files.
    uint64_t file_bytes() const {
        LoadOptions options;
        options.packed_file = file;
        MemoryPlan plan;
        REQUIRE(Session::plan(device, model.c_str(), SessionOptions(), options).get(plan).ok());
        return plan.file_bytes;
    }
};

std::string content(const std::string& path) { return read_text(path); }

}  // namespace

TEST_CASE("the first load keeps packed weights in a file, and the next ones map it") {
    Packed p;
    if (!p.packs()) return skip("this processor's kernels read the model's own rows");
    const std::vector<Token> plain = text_of(load_model(p.device, p.model));
    const uint64_t in_files = p.file_bytes();
    CHECK(text_of(p.load()) == plain);
    const std::string written = content(p.file);
    CHECK(written.size() > 100000);
    const auto when = std::filesystem::last_write_time(p.file);
    Model first = p.load(), second = p.load();
    CHECK(text_of(first) == plain);
    CHECK(text_of(second) == plain);
    CHECK(first.info().weight_bytes == load_model(p.device, p.model).info().weight_bytes);
    CHECK(std::filesystem::last_write_time(p.file) == when);
    CHECK(p.file_bytes() > in_files + written.size() / 2);
    CHECK(p.warnings.empty());
    LoadOptions no_mtp;  // fewer matrices: other contents
    no_mtp.packed_file = p.file;
    no_mtp.mtp = false;
#if defined(_WIN32)  // a mapped file cannot be replaced
    CHECK(Model::load(p.device, p.model.c_str(), no_mtp).ok());
    CHECK(content(p.file) == written);
    CHECK(p.warnings.size() == 1);
    first = second = Model();
#endif
    CHECK(Model::load(p.device, p.model.c_str(), no_mtp).ok());
    CHECK(content(p.file) != written);
}

#if !defined(_WIN32)  // a mapped file cannot be replaced
TEST_CASE("the plan of a loaded model does not depend on what is at the path of its packed weights by now") {
    Packed p;
    if (!p.packs()) return skip("this processor's kernels read the model's own rows");
    const Model model = p.load();
    const auto plan_of = [&] {
        MemoryPlan plan;
        const Status s = Session::plan(model).get(plan);
        CHECK_MESSAGE(s.ok(), s.message());
        return plan;
    };
    const MemoryPlan before = plan_of();
    CHECK(before.file_bytes > content(p.file).size() / 2);
    const auto same = [&] {
        const MemoryPlan now = plan_of();
        CHECK(now.file_bytes == before.file_bytes);
        CHECK(now.weight_bytes == before.weight_bytes);
        CHECK(now.draft_weight_bytes == before.draft_weight_bytes);
        CHECK(text_of(model).size() == 16);
    };
    std::filesystem::remove(p.file);
    same();
    write_file(p.file, std::vector<std::byte>(100));  // a file of another kind
    same();
    std::filesystem::remove(p.file);
    write_file(p.model, model_bytes(2));
    REQUIRE(p.try_load(p.file).ok());  // another model's
    same();
}
#endif

TEST_CASE("packed weights of another model, and damaged ones, are packed again") {
    Packed p;
    if (!p.packs()) return skip("this processor's kernels read the model's own rows");
    const std::vector<Token> plain = text_of(p.load());
    const std::string good = content(p.file);

    write_file(p.model, model_bytes(2));  // of the same size and, most likely, in the same second
    const std::vector<Token> other = text_of(load_model(p.device, p.model));
    CHECK(other != plain);
    CHECK(text_of(p.load()) == other);
    CHECK(content(p.file) != good);

    write_file(p.model, model_bytes(1));
    CHECK(text_of(p.load()) == plain);
    const std::string whole = content(p.file);
    const auto rewritten = [&](std::string damaged) {
        write_file(p.file, Span<const std::byte>(reinterpret_cast<const std::byte*>(damaged.data()), damaged.size()));
        CHECK(text_of(p.load()) == plain);
        CHECK(content(p.file).size() == whole.size());
    };
    rewritten("");
    rewritten(whole.substr(0, 30));
    rewritten(whole.substr(0, whole.size() - 1));
    for (const size_t at : {8u, 16u, 24u, 32u, 64u, 72u, 80u}) {  // key, entries, sizes, checksum, an entry
        CAPTURE(at);
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ 1);
        rewritten(damaged);
    }
    CHECK(p.warnings.empty());
}

TEST_CASE("a model's file that was last written when the system began to count has packed weights, too") {
    Packed p;
    using Time = std::filesystem::file_time_type;
    // file_time_type has an epoch of its own: move by what separates the file from 1970
    const auto age = std::chrono::system_clock::now().time_since_epoch();
    std::filesystem::last_write_time(p.model, Time::clock::now() - std::chrono::duration_cast<Time::duration>(age));
    Model model;
    const Status s = p.try_load(p.file).get(model);
    CHECK_MESSAGE(s.ok(), s.message());
    CHECK(p.warnings.empty());
}

TEST_CASE("a file of another kind is not replaced by packed weights, and one that cannot be written is a warning") {
    Packed p;
    Model model;
    Status s = p.try_load(p.model).get(model);
    CHECK(s.code == Code::bad_argument);
    CHECK(s.text.find("model.gguf' is no file of packed weights") != std::string::npos);
    CHECK(content(p.model).substr(0, 4) == "GGUF");
    CHECK(p.try_load(p.folder.path.string()).get(model).code == Code::bad_argument);
    if (!p.packs()) return skip("this processor's kernels read the model's own rows");
    CHECK(p.try_load(p.folder.file("none/x.packed")).get(model).ok());
    REQUIRE(p.warnings.size() == 1);
    CHECK(p.warnings[0].find("packed again at the next start") != std::string::npos);
    CHECK(text_of(model) == text_of(load_model(p.device, p.model)));
    const std::string unreadable = p.folder.file(std::string(300, 'x').c_str());  // no file system takes such a name
    CHECK(p.try_load(unreadable).get(model).ok());
    REQUIRE(p.warnings.size() == 2);
    CHECK(p.warnings[1].find("packed again at the next start") != std::string::npos);
    LoadOptions options;
    options.packed_file = unreadable;
    CHECK(Session::plan(p.device, p.model.c_str(), SessionOptions(), options).ok());

    options.packed_file = p.file;
    const std::vector<std::byte> bytes = model_bytes(1);
    s = Model::load(p.device, Span<const std::byte>(bytes), options).get(model);
    CHECK(s.code == Code::bad_argument);
    CHECK(s.text.find("packed_file was given for a model in memory") != std::string::npos);
}

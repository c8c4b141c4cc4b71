#include <doctest/doctest.h>

#include <cstdio>
#include <fstream>

#include "tiny.h"

using namespace auspex;
using namespace test;

namespace {

/// A file that is removed after the test.
struct TempFile {
    std::string path;
    TempFile(const std::string& name, Span<const std::byte> bytes) : path(name) {
        std::ofstream(path, std::ios::binary)
            .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
    ~TempFile() { std::remove(path.c_str()); }
};

}  // namespace

TEST_CASE("a file that is not a model is an error that names it") {
    const Device device = cpu_device();
    CHECK(Model::load(device, "no-such-file.gguf").status().code == Code::not_found);
    CHECK(Model::load(device, "no-such-file.gguf").status().text.find("no-such-file.gguf") != std::string::npos);
    CHECK(Model::load(device, ".").status().code == Code::bad_argument);
    const std::vector<std::byte> bytes = tiny_qwen35();
    for (size_t n : {size_t{0}, size_t{3}, size_t{20}, bytes.size() / 2, bytes.size() - 1}) {
        CAPTURE(n);
        TempFile file("auspex-test-cut.gguf", Span<const std::byte>(bytes.data(), n));
        const Status s = Model::load(device, file.path.c_str()).status();
        CHECK((s.code == Code::bad_file || s.code == Code::io_error));
        CHECK(s.text.find(file.path) != std::string::npos);
    }
    CHECK(Model::load(Device(), "x").status().code == Code::bad_argument);
}

TEST_CASE("a model loads from a file and from memory alike and describes itself") {
    const Device device = cpu_device();
    const std::vector<std::byte> bytes = tiny_qwen35();
    TempFile file("auspex-test-whole.gguf", bytes);
    Model from_file, from_memory;
    REQUIRE(Model::load(device, file.path.c_str()).get(from_file).ok());
    REQUIRE(Model::load(device, bytes).get(from_memory).ok());
    for (const Model& m : {from_file, from_memory}) {
        CHECK(m.info().architecture == "qwen35");
        CHECK(m.info().name == "tiny");
        CHECK(m.info().n_layer == 4);
        CHECK(m.info().n_attention == 1);
        CHECK(m.info().n_mtp == 1);
        CHECK(m.info().n_vocab == kTinyVocab);
        CHECK(m.info().file_bytes == bytes.size());
        const std::vector<Token> ids = m.encode("the cat, \xC3\xA9!").value();
        CHECK(m.decode(ids).value() == "the cat, \xC3\xA9!");
        CHECK(m.is_end(266));
        CHECK_FALSE(m.is_end(1));
        CHECK(m.describe_plan().find("attend") != std::string::npos);
    }
    LoadOptions options;
    options.mtp = false;
    Model plain;
    REQUIRE(Model::load(device, bytes, options).get(plain).ok());
    CHECK(plain.info().n_mtp == 0);
    CHECK(plain.info().n_parameter < from_file.info().n_parameter);
}

TEST_CASE("a text that begins a history, and a chat, get the token that the file asks for in front") {
    TinyOptions tiny;
    tiny.bos = true;
    const std::vector<std::byte> bytes = tiny_qwen35(tiny);
    const Model model = load_model(cpu_device(1), bytes);
    CHECK(model.encode("the").value() == std::vector<Token>{257});
    CHECK(model.encode("the", {false, true}).value() == std::vector<Token>{264, 257});
    ChatRequest request;
    request.messages.push_back({});
    request.messages[0].role = "user";
    const std::vector<Token> ids = model.encode(model.render(request).value()).value();
    REQUIRE(ids.size() > 2);
    CHECK(ids[0] == 264);
    CHECK(ids[1] == 265);
}

TEST_CASE("loading reports progress, and the callback can cancel it") {
    const Device device = cpu_device();
    const std::vector<std::byte> bytes = tiny_qwen35();
    LoadOptions options;
    float last = -1;
    int calls = 0;
    options.progress = [&](const char* what, float fraction) {
        CHECK(what != nullptr);
        CHECK(fraction >= last);
        CHECK(fraction <= 1);
        last = fraction;
        ++calls;
        return true;
    };
    CHECK(Model::load(device, bytes, options).ok());
    CHECK(calls > 3);
    CHECK(last == 1.0f);
    options.progress = [](const char*, float fraction) { return fraction < 0.5f; };
    CHECK(Model::load(device, bytes, options).status().code == Code::cancelled);
}

TEST_CASE("a device that does not exist is an error with a reason") {
    DeviceOptions options;
    options.kind = Kind::cpu;
    options.n_thread = -3;
    CHECK(Device::open(options).status().code == Code::bad_argument);
    options.n_thread = 100000;
    CHECK(Device::open(options).status().code == Code::bad_argument);
    options.n_thread = 1;
#if defined(__x86_64__)
    options.cpu_path = CpuPath::neon;
#else
    options.cpu_path = CpuPath::avx2;
#endif
    CHECK(Device::open(options).status().code == Code::unsupported);
}

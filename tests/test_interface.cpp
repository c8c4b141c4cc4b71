// The public interface refuses what it cannot use, with a Status: empty handles, null arguments, values out of range.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "../src/base/base.h"
#include "session_rig.h"
#include "tiny.h"

using namespace auspex;
using namespace test;

namespace {

/// A file that is removed with the test.
struct TempFile {
    std::string path;
    TempFile(const std::string& name, const std::vector<std::byte>& bytes) : path(name) {
        std::ofstream(path, std::ios::binary)
            .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
    ~TempFile() { std::remove(path.c_str()); }
};

/// The whole text of a greedy session.
std::vector<Token> text_of(const Model& model, size_t n) {
    SessionOptions options;
    options.n_context = 64;
    Session session = open(model, options);
    sync(session, tiny_ids(20, 4));
    grow(session, 20 + n);
    return history(session);
}

}  // namespace

TEST_CASE("the version's numbers and its text agree") {
    CHECK(detail::say(AUSPEX_VERSION_MAJOR, ".", AUSPEX_VERSION_MINOR, ".", AUSPEX_VERSION_PATCH) == AUSPEX_VERSION);
}

#define AUSPEX_TEST_TEXT_OF(x) #x
#define AUSPEX_TEST_TEXT(x) AUSPEX_TEST_TEXT_OF(x)
TEST_CASE("the namespace of this version has the version's numbers") {
    CHECK(detail::say("v", AUSPEX_VERSION_MAJOR, "_", AUSPEX_VERSION_MINOR, "_", AUSPEX_VERSION_PATCH) ==
          AUSPEX_TEST_TEXT(AUSPEX_VERSION_NAMESPACE));
    CHECK(std::is_same_v<Session, auspex::AUSPEX_VERSION_NAMESPACE::Session>);
}

TEST_CASE("an empty Device, Model or TextStream answers with a Status or an empty value") {
    const Device device;
    CHECK(device.name().empty());
    CHECK(device.report().empty());
    CHECK(device.kind() == Kind::best);
    CHECK(device.pipeline_cache().empty());
    const Model model;
    CHECK(model.info().n_vocab == 0);
    CHECK(model.encode("text").status().code == Code::bad_argument);
    CHECK(model.encode(ChatPrompt()).status().code == Code::bad_argument);
    CHECK(model.decode(std::vector<Token>{1}).status().code == Code::bad_argument);
    CHECK(model.render(ChatRequest()).status().code == Code::bad_argument);
    CHECK_FALSE(model.is_end(1));
    CHECK(model.describe_plan().empty());
    CHECK(Model::load(device, "x").status().code == Code::bad_argument);
    CHECK(Session().first_visible(0).status().code == Code::bad_argument);
    CHECK(Session::create(model).status().code == Code::bad_argument);
    CHECK(Session::plan(model).status().code == Code::bad_argument);
    CHECK(Session::plan(device, "x").status().code == Code::bad_argument);
    for (TextStream* stream : {new TextStream, new TextStream(model)}) {
        CHECK(stream->push(1).status().code == Code::bad_argument);
        CHECK_FALSE(stream->stopped());
        delete stream;
    }
}

TEST_CASE("a null path is refused by name") {
    const Device device = cpu_device();
    const char* path = nullptr;
    const Status load = Model::load(device, path).status(), plan = Session::plan(device, path).status();
    CHECK(load.code == Code::bad_argument);
    CHECK(load.text.find("null") != std::string::npos);
    CHECK(plan.code == Code::bad_argument);
    CHECK(plan.text.find("null") != std::string::npos);
}

TEST_CASE("a folder in place of a file is named once in the error, and a file that is no model, too") {
    const Device device = cpu_device();
    for (const std::string& path : {repo_dir() + "/tests", repo_dir() + "/README.md"}) {
        CAPTURE(path);
        for (const Status& s : {Model::load(device, path.c_str()).status(),
                                Session::plan(device, path.c_str()).status(), read_file_info(path.c_str()).status()}) {
            CHECK(s.code != Code::ok);
            const size_t at = s.text.find(path);
            CHECK(at != std::string::npos);
            CHECK(s.text.find(path, at + 1) == std::string::npos);
        }
    }
}

TEST_CASE("every device is listed, and those that open() refuses with its reason") {
    DeviceOptions o;
    o.n_thread = 1;
    std::vector<DeviceEntry> all;
    REQUIRE(Device::list(o).get(all).ok());
    REQUIRE(!all.empty());
    for (size_t i = 0; i < all.size(); ++i) {
        o.kind = all[i].kind;
        o.vulkan_index = all[i].vulkan_index;
        const Result<Device> device = Device::open(o);
        CHECK(device.status().message() == all[i].status.message());
        if (device.ok()) CHECK(device.value().name() == all[i].name);
        CHECK((all[i].kind == Kind::cpu) == (i + 1 == all.size()));
    }
    CHECK(all.back().status.ok());
    o = DeviceOptions();
    o.n_thread = 1;
    o.memory_limit_bytes = 1;  // too little for a GPU's self-test
    std::vector<DeviceEntry> tight;
    REQUIRE(Device::list(o).get(tight).ok());
    REQUIRE(tight.size() == all.size());
    for (size_t i = 0; i < all.size(); ++i)
        if (all[i].kind == Kind::vulkan && all[i].status.ok()) CHECK(tight[i].status.code == Code::out_of_memory);
    CHECK(tight.back().status.ok());
    o.kind = Kind::cpu;
    o.vulkan_index = -5;  // is ignored
    CHECK(Device::list(o).value().size() == 1);
    o.kind = static_cast<Kind>(7);
    CHECK(Device::list(o).status().code == Code::bad_argument);
}

TEST_CASE("options of the CPU are checked whatever device is opened") {
    for (const Kind kind : {Kind::best, Kind::cpu, Kind::vulkan}) {
        CAPTURE(static_cast<int>(kind));
        DeviceOptions o;
        o.kind = kind;
        o.n_thread = -1;
        Status s = Device::open(o).status();
        CHECK(s.code == Code::bad_argument);
        CHECK(s.text.find("n_thread is -1") == 0);
        o.n_thread = 1;
#if defined(__x86_64__) || defined(_M_X64)
        o.cpu_path = CpuPath::neon;
#else
        o.cpu_path = CpuPath::avx2;
#endif
        s = Device::open(o).status();
        CHECK_MESSAGE(s.code == Code::unsupported, s.message());
    }
}

TEST_CASE("enumeration values out of range are refused by name") {
    DeviceOptions options;
    options.kind = static_cast<Kind>(77);
    CHECK(Device::open(options).status().text.find("kind is 77") != std::string::npos);
    options.kind = Kind::cpu;
    options.cpu_path = static_cast<CpuPath>(99);
    CHECK(Device::open(options).status().text.find("cpu_path is 99") != std::string::npos);
    options.cpu_path = static_cast<CpuPath>(-1);
    CHECK(Device::open(options).status().text.find("cpu_path is -1") != std::string::npos);
    options.cpu_path = CpuPath::best;
    options.vulkan_index = -2;
    CHECK(Device::open(options).status().text.find("vulkan_index is -2, expected 0 or more") != std::string::npos);
    options.vulkan_index = -1;
    options.allocator.free = [](void*, void*, size_t, size_t) {};
    CHECK(Device::open(options).status().code == Code::bad_argument);
    ChatRequest request;
    request.messages.resize(1);
    request.messages[0].role = "user";
    CHECK(render_chat(request, static_cast<ChatStyle>(9)).status().text.find("style is 9") != std::string::npos);
    request.messages[0].parts.push_back({static_cast<ContentPart::Kind>(5), {}});
    CHECK(render_chat(request, ChatStyle::qwen35).status().text.find("kind 5") != std::string::npos);
}

TEST_CASE("a number of threads out of range is refused by name, with the limits") {
    DeviceOptions options;
    options.kind = Kind::cpu;
    for (const int n : {-1, 257, INT32_MAX}) {
        options.n_thread = n;
        CHECK(Device::open(options).status().text ==
              "n_thread is " + std::to_string(n) + ", expected 1 to 256, or 0 for one per physical core");
    }
}

TEST_CASE("a file that was copied may be changed while the model runs") {
    const std::vector<std::byte> bytes = tiny_model();
    const Device device = cpu_device();
    const std::vector<Token> want = text_of(load_model(device, bytes), 30);
    TempFile file("auspex-test-copied.gguf", bytes);
    LoadOptions options;
    options.copy_file = true;
    Model model;
    const Status s = Model::load(device, file.path.c_str(), options).get(model);
    REQUIRE_MESSAGE(s.ok(), s.message());
    std::ofstream(file.path, std::ios::trunc).put('x');  // a mapped file would end the process with SIGBUS
    CHECK(text_of(model, 30) == want);
}

TEST_CASE("a copied file is planned to the byte and taken from the device's allocator") {
    const std::vector<std::byte> bytes = tiny_model();
    TempFile file("auspex-test-copy-plan.gguf", bytes);
    uint64_t held = 0;
    DeviceOptions options;
    options.kind = Kind::cpu;
    options.n_thread = 1;
    options.allocator.user = &held;
    options.allocator.alloc = [](void* user, size_t n, size_t alignment) {
        *static_cast<uint64_t*>(user) += n;
        return ::operator new(n, std::align_val_t(alignment));
    };
    options.allocator.free = [](void* user, void* p, size_t n, size_t alignment) {
        *static_cast<uint64_t*>(user) -= n;
        ::operator delete(p, std::align_val_t(alignment));
    };
    {
        const Device device = open_device(options);
        LoadOptions load;
        load.copy_file = true;
        MemoryPlan before, after;
        REQUIRE(Session::plan(device, file.path.c_str(), {}, load).get(before).ok());
        CHECK(held == 0);
        Model model;
        REQUIRE(Model::load(device, file.path.c_str(), load).get(model).ok());
        CHECK(held == before.weight_bytes);
        CHECK(held >= bytes.size());
        REQUIRE(Session::plan(model).get(after).ok());
        CHECK(after.weight_bytes == before.weight_bytes);
        CHECK(after.total_bytes == before.total_bytes);
    }
    CHECK(held == 0);
}

TEST_CASE("bytes at an odd address load, and give the same text") {
    const std::vector<std::byte> bytes = tiny_model();
    const Device device = cpu_device();
    const std::vector<Token> want = text_of(load_model(device, bytes), 10);
    std::vector<std::byte> shifted(bytes.size() + 8);
    for (size_t by : {size_t{1}, size_t{4}}) {
        std::memcpy(shifted.data() + by, bytes.data(), bytes.size());
        Model model;
        const Status s = Model::load(device, Span<const std::byte>(shifted.data() + by, bytes.size())).get(model);
        REQUIRE_MESSAGE(s.ok(), s.message());
        std::memset(shifted.data(), 0, shifted.size());  // nothing is read there any more
        CHECK(text_of(model, 10) == want);
    }
}

TEST_CASE("without a limit of its own the CPU refuses what the system has no room for") {
    const std::vector<std::byte> bytes = tiny_model();
    const Model model = load_model(cpu_device(), bytes);
    MemoryPlan plan;
    REQUIRE(Session::plan(model).get(plan).ok());
    if (plan.limit_bytes == 0) return skip("this system does not say how much memory is free");
    CHECK(plan.fits);
    SessionOptions options;
    options.n_context = 1u << 24;
    options.kv_k = options.kv_v = KvType::f32;
    options.n_ubatch = 4096;
    REQUIRE(Session::plan(model, options).get(plan).ok());
    CHECK(plan.fits == (plan.total_bytes <= plan.limit_bytes));
    if (plan.fits) return skip("this machine has room for the largest session of the tiny model");
    const Status s = Session::create(model, options).status();
    CHECK(s.code == Code::out_of_memory);
    CHECK(s.text.find("the system has room for") != std::string::npos);
}

TEST_CASE("parse_windows and print_windows are inverse, and later entries override") {
    std::vector<LayerWindow> windows;
    REQUIRE(parse_windows("all:64,3:128+4").get(windows).ok());
    CHECK(print_windows(windows) == "all:64,3:128+4");
    CHECK(parse_windows("3:x").status().text.find("not a number") != std::string::npos);
    CHECK(print_windows(parse_windows("4294967279:4294967279").value()) == "4294967279:4294967279");
    CHECK(parse_windows("99999999999:64").status().text.find("its layer is not a number up to 4294967279") !=
          std::string::npos);
    CHECK(parse_windows("all:4294967295").status().text.find("its rows are not a number up to 4294967279") !=
          std::string::npos);
}

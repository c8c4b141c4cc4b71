#include "support.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace test {

std::string repo_dir() { return AUSPEX_REPO_DIR; }

namespace {

bool is_set(const char* variable) {
    const char* value = std::getenv(variable);
    return value && *value && std::strcmp(value, "0") != 0;
}
/// A build without Vulkan has no test that could miss a device.
bool gpu_required() {
#ifdef AUSPEX_NO_VULKAN
    return false;
#else
    return is_set("AUSPEX_REQUIRE_GPU");
#endif
}

std::vector<Skipped> all_skipped;

}  // namespace

bool deep() { return is_set("AUSPEX_TEST_DEEP"); }

const std::vector<Skipped>& skipped() { return all_skipped; }

void skip(const std::string& why) {
    const std::string name = doctest::getContextOptions()->currentTest->m_name;
    const bool known = !all_skipped.empty() && all_skipped.back().name == name && all_skipped.back().why == why;
    if (!known) all_skipped.push_back({name, why});
}

void skip_without_device(const std::string& answer) {
    const std::string why = "needs a Vulkan device: " + answer;
    REQUIRE_MESSAGE(!gpu_required(), why << "; AUSPEX_REQUIRE_GPU=1 does not allow to skip this");
    skip(why);
}

bool device_counts(const std::string& name) {
    const bool software = name.find("llvmpipe") != std::string::npos || name.find("SwiftShader") != std::string::npos;
    return !gpu_required() || !software || std::getenv("VK_ICD_FILENAMES") || std::getenv("VK_DRIVER_FILES");
}

const char* shared_dir(const char* what) {
    static const std::string dir = [] {
        const char* named = std::getenv("AUSPEX_SHARED");
        for (const std::string& d :
             {std::string(named ? named : ""), repo_dir() + "/../shared", repo_dir() + "/shared"})
            if (!d.empty() && std::ifstream(d + "/vectors/gguf_cases.json").good()) return d;
        return std::string();
    }();
    if (dir.empty())
        skip("needs " + std::string(what) + " of the folder ../shared, which is not part of the repository");
    return dir.empty() ? nullptr : dir.c_str();
}

auspex::Device open_device(const auspex::DeviceOptions& options) {
    auspex::Device device;
    const auspex::Status s = auspex::Device::open(options).get(device);
    REQUIRE_MESSAGE(s.ok(), s.message());
    return device;
}

auspex::Device cpu_device(int n_thread, auspex::CpuPath path) {
    auspex::DeviceOptions options;
    options.kind = auspex::Kind::cpu;
    options.n_thread = n_thread;
    options.cpu_path = path;
    return open_device(options);
}

auspex::Device gpu_device() {
    auspex::DeviceOptions options;
    options.kind = auspex::Kind::vulkan;
    auspex::Device device;
    const auspex::Status s = auspex::Device::open(options).get(device);
    if (s.ok() && device_counts(device.name())) return device;
    skip_without_device(s.ok() ? "only a software device, " + device.name() : s.text);
    return {};
}

auspex::Model load_model(const auspex::Device& device, const std::string& path) {
    auspex::Model model;
    const auspex::Status s = auspex::Model::load(device, path.c_str()).get(model);
    REQUIRE_MESSAGE(s.ok(), s.message());
    return model;
}

auspex::Model load_model(const auspex::Device& device, const std::vector<std::byte>& bytes,
                         const auspex::LoadOptions& options) {
    auspex::Model model;
    const auspex::Status s = auspex::Model::load(device, bytes, options).get(model);
    REQUIRE_MESSAGE(s.ok(), s.message());
    return model;
}

std::vector<auspex::Sampling> samplings() {
    auspex::Sampling greedy, cool, hot, strict;
    cool.temperature = 0.7f;
    cool.seed = 3;
    cool.top_k = 40;
    cool.top_p = 0.95f;
    hot.temperature = 1.0f;
    hot.seed = 4;
    hot.min_p = 0.02f;
    strict = cool;
    strict.presence_penalty = 0.7f;
    strict.frequency_penalty = 0.3f;
    strict.repeat_penalty = 1.2f;
    strict.penalty_window = 32;
    return {greedy, cool, hot, strict};
}

std::string read_text(const std::string& path) {
    std::ifstream f(path, std::ios::binary);
    std::ostringstream s;
    s << f.rdbuf();
    return s.str();
}

}  // namespace test

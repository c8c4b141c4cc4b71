#include "support.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace test {

std::string repo_dir() { return AUSPEX_REPO_DIR; }

const char* shared_dir() {
    static const std::string dir = [] {
        const char* named = std::getenv("AUSPEX_SHARED");
        for (const std::string& d :
             {std::string(named ? named : ""), repo_dir() + "/../shared", repo_dir() + "/shared"})
            if (!d.empty() && std::ifstream(d + "/vectors/gguf_cases.json").good()) return d;
        return std::string();
    }();
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
    if (!s.ok()) MESSAGE("skipped: needs a Vulkan device: " << s.text);
    return device;
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

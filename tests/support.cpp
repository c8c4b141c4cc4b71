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
        for (const std::string& d : {std::string(named ? named : ""), repo_dir() + "/../shared", repo_dir() + "/shared"})
            if (!d.empty() && std::ifstream(d + "/vectors/gguf_cases.json").good()) return d;
        return std::string();
    }();
    return dir.empty() ? nullptr : dir.c_str();
}

namespace support {

/// `load`: of a device, into a model.
template <class Load>
auspex::Model open_with(auspex::CpuPath cpu_path, Load load) {
    auspex::DeviceOptions options;
    options.kind = auspex::Kind::cpu;
    options.cpu_path = cpu_path;
    options.n_thread = 2;
    auspex::Device device;
    auspex::Status s = auspex::Device::open(options).get(device);
    REQUIRE_MESSAGE(s.ok(), s.message());
    auspex::Model model;
    s = load(device).get(model);
    REQUIRE_MESSAGE(s.ok(), s.message());
    return model;
}

}  // namespace support

auspex::Model open_model(const std::string& path, auspex::CpuPath cpu_path) {
    return support::open_with(cpu_path, [&](const auspex::Device& d) { return auspex::Model::load(d, path.c_str()); });
}

auspex::Model open_model(const std::vector<std::byte>& bytes, auspex::CpuPath cpu_path) {
    return support::open_with(cpu_path, [&](const auspex::Device& d) { return auspex::Model::load(d, bytes); });
}

std::string read_text(const std::string& path) {
    std::ifstream f(path, std::ios::binary);
    std::ostringstream s;
    s << f.rdbuf();
    return s.str();
}

}  // namespace test

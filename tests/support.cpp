#include "support.h"

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

std::string read_text(const std::string& path) {
    std::ifstream f(path, std::ios::binary);
    std::ostringstream s;
    s << f.rdbuf();
    return s.str();
}

}  // namespace test

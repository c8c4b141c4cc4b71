#include "cache.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "platform.h"

namespace cli {

namespace fs = std::filesystem;

std::string cache_folder() {
    fs::path folder;
#ifdef _WIN32
    if (const fs::path local = native_path(environment("LOCALAPPDATA")); !local.empty()) folder = local / "auspex";
#else
    // The XDG specification: a path that is not absolute is ignored.
    const auto absolute = [](const char* name) {
        const fs::path value = native_path(environment(name));
        return value.is_absolute() ? value : fs::path();
    };
    if (const fs::path xdg = absolute("XDG_CACHE_HOME"); !xdg.empty())
        folder = xdg / "auspex";
    else if (const fs::path home = absolute("HOME"); !home.empty())
        folder = home / ".cache" / "auspex";
#endif
    if (folder.empty()) return {};
    std::error_code error;
    fs::create_directories(folder, error);
    return error ? std::string() : utf8_path(folder);
}

std::string key_name(const char* kind, const std::string& key, const char* suffix) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
    return std::string(kind) + "-" + digits + suffix;
}

std::string read_cache(const std::string& name) {
    const std::string folder = cache_folder();
    if (folder.empty()) return {};
    std::error_code error;
    const fs::path path = native_path(folder) / name;
    const auto size = fs::file_size(path, error);
    if (error || size > (256u << 20)) return {};
    std::ifstream file(path, std::ios::binary);
    std::ostringstream bytes;
    bytes << file.rdbuf();
    return bytes.str();
}

void write_cache(const std::string& name, const std::string& bytes) {
    const std::string folder = cache_folder();
    if (folder.empty()) return;
    const fs::path path = native_path(folder) / name;
    fs::path beside = path;
    beside += "." + std::to_string(process_id());
    std::ofstream file(beside, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.close();
    std::error_code error;
    if (file) fs::rename(beside, path, error);
    if (!file || error) fs::remove(beside, error);
}

}  // namespace cli

// tools/read_option: values of options, for the tools without a command line library.
#pragma once
#include "../src/auspex.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace tools {

/// A whole number from `min` to `max`, and nothing but digits. False where `text` is none.
template <class T>
bool read_number(const char* text, T& n, T min, T max) {
    char* end = nullptr;
    errno = 0;
    const unsigned long long v = std::strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != 0 || errno == ERANGE) return false;
    if (v < static_cast<unsigned long long>(min) || v > static_cast<unsigned long long>(max)) return false;
    n = static_cast<T>(v);
    return true;
}

inline bool read_device(const char* text, auspex::Kind& kind) {
    kind = std::strcmp(text, "vulkan") == 0 ? auspex::Kind::vulkan : auspex::Kind::cpu;
    return kind == auspex::Kind::vulkan || std::strcmp(text, "cpu") == 0;
}

}  // namespace tools

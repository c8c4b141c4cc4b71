#include "printable.h"

#include <cstdio>

namespace cli {
namespace {

/// Bytes of the character at `at`, or 0 if none begins there: overlong forms, surrogates and values above U+10FFFF do
/// not count.
size_t character_size(std::string_view text, size_t at) {
    const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u; };
    const auto follows = [&](size_t i, unsigned low = 0x80, unsigned high = 0xBF) {
        return byte(i) >= low && byte(i) <= high;
    };
    const unsigned first = byte(0);
    if (first < 0x80) return 1;
    if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
    if (first >= 0xE0 && first <= 0xEF) {
        const unsigned low = first == 0xE0 ? 0xA0 : 0x80, high = first == 0xED ? 0x9F : 0xBF;
        return follows(1, low, high) && follows(2) ? 3 : 0;
    }
    if (first >= 0xF0 && first <= 0xF4) {
        const unsigned low = first == 0xF0 ? 0x90 : 0x80, high = first == 0xF4 ? 0x8F : 0xBF;
        return follows(1, low, high) && follows(2) && follows(3) ? 4 : 0;
    }
    return 0;
}

}  // namespace

std::string printable(std::string_view text, bool lines) {
    std::string out;
    for (size_t i = 0; i < text.size();) {
        const size_t n = character_size(text, i);
        const unsigned char c = static_cast<unsigned char>(text[i]);
        const bool c1 = n == 2 && c == 0xC2 && static_cast<unsigned char>(text[i + 1]) < 0xA0;
        const bool control = n == 0 || (n == 1 && (c < 0x20 || c == 0x7F)) || c1;
        if (!control || (lines && (c == '\n' || c == '\t'))) {
            out.append(text.substr(i, n));
            i += n;
            continue;
        }
        char escape[8];
        std::snprintf(escape, sizeof escape, "\\x%02x",
                      static_cast<unsigned>(static_cast<unsigned char>(c1 ? text[i + 1] : c)));
        out += escape;
        i += n == 0 ? 1 : n;
    }
    return out;
}

std::string json_line(const nlohmann::ordered_json& json) {
    const std::string text = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        const bool c1 = text[i] == '\xC2' && static_cast<unsigned char>(text[i + 1]) < 0xA0;
        if (!c1 && text[i] != '\x7F') {
            out += text[i];
            continue;
        }
        if (c1) ++i;
        char escape[8];
        std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(text[i])));
        out += escape;
    }
    return out;
}

size_t find_bad_utf8(std::string_view text) {
    for (size_t i = 0, n; i < text.size(); i += n)
        if ((n = character_size(text, i)) == 0) return i;
    return text.size();
}

}  // namespace cli

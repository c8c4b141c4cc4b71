#include "text_stream.h"

namespace auspex {
namespace detail {

std::string take_characters(std::string& bytes, bool all) {
    size_t keep = 0;
    if (!all) {
        for (size_t n = 1; n <= 3 && n <= bytes.size(); ++n)
            if (is_utf8_prefix(bytes.data() + bytes.size() - n, n)) keep = n;
    }
    std::string out;
    append_repaired(out, std::string_view(bytes).substr(0, bytes.size() - keep));
    bytes.erase(0, bytes.size() - keep);
    return out;
}

std::string take_unstopped(std::string& held, const std::vector<std::string>& stops, bool all, bool* stopped) {
    constexpr size_t kNever = std::string::npos;
    size_t stop_end = kNever, stop_from = kNever, n_hold = 0;
    std::vector<size_t> back;  // Knuth, Morris, Pratt: the longest border of each prefix of the stop
    for (const std::string& stop : stops) {
        if (stop.empty()) continue;
        back.assign(stop.size(), 0);
        for (size_t i = 1, n = 0; i < stop.size(); ++i) {
            while (n > 0 && stop[i] != stop[n]) n = back[n - 1];
            if (stop[i] == stop[n]) ++n;
            back[i] = n;
        }
        size_t n = 0;
        for (size_t i = 0; i < held.size() && i < stop_end; ++i) {
            while (n > 0 && held[i] != stop[n]) n = back[n - 1];
            if (held[i] == stop[n]) ++n;
            if (n < stop.size()) continue;
            const size_t from = i + 1 - n;
            if (i + 1 < stop_end || from < stop_from) stop_from = from;
            stop_end = i + 1;
            break;
        }
        if (n < stop.size() && n > n_hold) n_hold = n;
    }
    std::string out;
    if (stop_end != kNever) {
        *stopped = true;
        out = held.substr(0, stop_from);
        held.clear();
        return out;
    }
    if (all) n_hold = 0;
    out = held.substr(0, held.size() - n_hold);
    held.erase(0, held.size() - n_hold);
    return out;
}

}  // namespace detail
}  // namespace auspex

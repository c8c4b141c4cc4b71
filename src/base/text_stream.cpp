#include "text_stream.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
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

namespace text_stream_impl {
namespace {

/// How many of the first bytes of `stop` the text ends with after one more byte. Before it n, fewer than all.
size_t next_match(const std::string& stop, const std::vector<size_t>& border, size_t n, char byte) {
    while (n > 0 && byte != stop[n]) n = border[n - 1];
    return byte == stop[n] ? n + 1 : n;
}

}  // namespace
}  // namespace text_stream_impl

StopFilter::StopFilter(std::vector<std::string> stops) {
    using text_stream_impl::next_match;
    for (std::string& text : stops) {
        if (text.empty()) continue;
        Stop stop;
        stop.border.assign(text.size(), 0);
        for (size_t i = 1; i < text.size(); ++i)
            stop.border[i] = next_match(text, stop.border, stop.border[i - 1], text[i]);
        stop.text = std::move(text);
        stops_.push_back(std::move(stop));
    }
}

std::string StopFilter::push(std::string_view text) {
    if (stopped()) return std::string();
    if (from_ > held_.size() / 2) held_.erase(0, std::exchange(from_, size_t{0}));
    size_t end = held_.size();  // of the text that was looked at
    held_ += text;
    size_t n_hold = 0;
    for (; end < held_.size() && !stopped(); ++end)
        for (size_t i = 0; i < stops_.size(); ++i) {
            Stop& stop = stops_[i];
            stop.n_match = text_stream_impl::next_match(stop.text, stop.border, stop.n_match, held_[end]);
            if (stop.n_match == stop.text.size() && (!stopped() || stop.text.size() > found()->size())) found_ = i;
        }
    for (const Stop& stop : stops_) n_hold = std::max(n_hold, stop.n_match);
    const size_t to = end - (stopped() ? found()->size() : n_hold);
    std::string out = held_.substr(from_, to - from_);
    from_ = stopped() ? held_.size() : to;
    return out;
}

std::string StopFilter::finish() {
    std::string out = held_.substr(from_);
    from_ = held_.size();
    for (Stop& stop : stops_) stop.n_match = 0;
    return out;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

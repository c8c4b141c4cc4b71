#include "stops.h"

#include <algorithm>
#include <utility>

namespace server {

/// One more byte: how much of the stop string the text now ends with, if it ended with n bytes of it.
size_t StopFilter::next_match(const Stop& stop, size_t n, char byte) {
    while (n > 0 && byte != stop.text[n]) n = stop.border[n - 1];
    return byte == stop.text[n] ? n + 1 : n;
}

StopFilter::StopFilter(const std::vector<std::string>& stops) {
    for (const std::string& text : stops) {
        Stop stop;
        stop.text = text;
        stop.border.assign(text.size(), 0);
        for (size_t i = 1; i < text.size(); ++i) stop.border[i] = next_match(stop, stop.border[i - 1], text[i]);
        stops_.push_back(std::move(stop));
    }
}

std::string StopFilter::push(const std::string& text) {
    if (found_) return {};
    size_t n_hold = 0, end = held_.size();  // of the text that was looked at
    held_ += text;
    for (; end < held_.size() && !found_; ++end)
        for (Stop& stop : stops_) {
            stop.n_match = next_match(stop, stop.n_match, held_[end]);
            const bool complete = stop.n_match == stop.text.size();
            if (complete && (!found_ || stop.text.size() > found_->size())) found_ = &stop.text;
        }
    for (const Stop& stop : stops_) n_hold = std::max(n_hold, stop.n_match);
    std::string shown = held_.substr(0, end - (found_ ? found_->size() : n_hold));
    held_.erase(0, found_ ? held_.size() : shown.size());
    return shown;
}

std::string StopFilter::flush() {
    for (Stop& stop : stops_) stop.n_match = 0;
    return std::exchange(held_, {});
}

}  // namespace server

#include "../base/text_stream.h"

namespace auspex {

TextStream::TextStream(const Model& model, std::vector<std::string> stops, const DecodeOptions& options)
    : model_(model), stops_(std::move(stops)), options_(options) {}

std::string TextStream::push(Token id) {
    if (stopped_) return std::string();
    bytes_ += model_.decode(Span<const Token>(&id, 1), options_);
    return take(false);
}

std::string TextStream::finish() { return stopped_ ? std::string() : take(true); }

std::string TextStream::take(bool all) {
    held_ += detail::take_characters(bytes_, all);
    return detail::take_unstopped(held_, stops_, all, &stopped_);
}

}  // namespace auspex

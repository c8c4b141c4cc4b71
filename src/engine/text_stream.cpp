#include "../base/text_stream.h"

namespace auspex {

struct TextStream::Impl {
    Model model;
    std::vector<std::string> stops;
    DecodeOptions options;
    std::string bytes, held;
    bool stopped = false;

    std::string take(bool all) {
        held += detail::take_characters(bytes, all);
        return detail::take_unstopped(held, stops, all, &stopped);
    }
};

TextStream::TextStream() noexcept = default;
TextStream::~TextStream() = default;
TextStream::TextStream(TextStream&&) noexcept = default;
TextStream& TextStream::operator=(TextStream&&) noexcept = default;

TextStream::TextStream(const Model& model, std::vector<std::string> stops, const DecodeOptions& options)
    : impl_(new Impl{model, std::move(stops), options, {}, {}, false}) {}

Result<std::string> TextStream::push(Token id) {
    if (impl_->stopped) return std::string();
    std::string bytes;
    AUSPEX_TRY(impl_->model.decode(Span<const Token>(&id, 1), impl_->options).get(bytes));
    impl_->bytes += bytes;
    return impl_->take(false);
}

Result<std::string> TextStream::finish() {
    if (impl_->stopped) return std::string();
    return impl_->take(true);
}

bool TextStream::stopped() const { return impl_ && impl_->stopped; }

}  // namespace auspex

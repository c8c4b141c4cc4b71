#include "../base/guard.h"
#include "../base/text_stream.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {

struct TextStream::Impl {
    Model model;
    DecodeOptions options;
    std::string bytes;  ///< of an unfinished character
    detail::StopFilter stops;
};

TextStream::TextStream() noexcept = default;
TextStream::~TextStream() = default;
TextStream::TextStream(TextStream&&) noexcept = default;
TextStream& TextStream::operator=(TextStream&&) noexcept = default;

TextStream::TextStream(const Model& model, std::vector<std::string> stops, const DecodeOptions& options)
    : impl_(detail::made_or_empty([&] {
          return std::unique_ptr<Impl>(new Impl{model, options, {}, detail::StopFilter(std::move(stops))});
      })) {}

Result<std::string> TextStream::push(Token id) AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("TextStream", "its constructor with a Model");
    if (impl_->stops.stopped()) return std::string();
    std::string bytes;
    AUSPEX_TRY(impl_->model.decode(Span<const Token>(&id, 1), impl_->options).get(bytes));
    impl_->bytes += bytes;
    return impl_->stops.push(detail::take_characters(impl_->bytes, false));
}
AUSPEX_CATCH

Result<std::string> TextStream::finish() AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("TextStream", "its constructor with a Model");
    if (impl_->stops.stopped()) return std::string();
    std::string text = impl_->stops.push(detail::take_characters(impl_->bytes, true));
    if (!impl_->stops.stopped()) text += impl_->stops.finish();
    return text;
}
AUSPEX_CATCH

bool TextStream::stopped() const { return impl_ && impl_->stops.stopped(); }

struct StopFilter::Impl {
    detail::StopFilter stops;
};

StopFilter::StopFilter() noexcept = default;
StopFilter::~StopFilter() = default;
StopFilter::StopFilter(StopFilter&&) noexcept = default;
StopFilter& StopFilter::operator=(StopFilter&&) noexcept = default;

StopFilter::StopFilter(std::vector<std::string> stops)
    : impl_(detail::made_or_empty(
          [&] { return std::unique_ptr<Impl>(new Impl{detail::StopFilter(std::move(stops))}); })) {}

Result<std::string> StopFilter::push(std::string_view text) AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("StopFilter", "its constructor with stop strings");
    return impl_->stops.push(text);
}
AUSPEX_CATCH

Result<std::string> StopFilter::finish() AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("StopFilter", "its constructor with stop strings");
    return impl_->stops.finish();
}
AUSPEX_CATCH

const std::string* StopFilter::found() const noexcept { return impl_ ? impl_->stops.found() : nullptr; }

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

#include "timeline.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

void Timeline::reserve(size_t n_context, size_t n_tail) {
    tokens_.assign(n_context + n_tail, 0);
    n_few_ = n_tail;
    spans_.reserve(16);
}

size_t Timeline::common_prefix(Span<const Token> other) const {
    const size_t n = std::min(other.size(), size_);
    return static_cast<size_t>(std::mismatch(other.begin(), other.begin() + n, tokens_.begin()).first - other.begin());
}

void Timeline::truncate(size_t n) {
    size_ = std::min(size_, n);
    n_given_ = std::min(n_given_, size_);
    asked_.n_row = std::min(asked_.n_row, size_);
    if (asked_.n_for_logits > size_) asked_.n_for_logits = 0;
}

void Timeline::restart(size_t n) {
    truncate(n);
    n_row_ = 0;
    step_first_ = 0;
    step_open_ = false;
    spans_.clear();
}

void Timeline::assign(Span<const Token> tokens) {
    std::copy(tokens.begin(), tokens.end(), tokens_.begin());
    size_ = n_given_ = tokens.size();
}

void Timeline::resume(size_t n, const std::vector<RowSpan>& spans) {
    restart(size_);
    spans_ = spans;
    spans_.reserve(spans.size() + 1);
    n_row_ = n;
}

void Timeline::copy(const Timeline& other) {
    assign(other.tokens());
    resume(other.n_row_, other.spans_);
    n_given_ = other.n_given_;
    asked_ = other.asked_;
}

void Timeline::prefilled(size_t n) {
    // Few rows run as a tentative step does: a history that comes token by token is one span, not one for each.
    add_span(n, n <= n_few_ ? RowOrigin::decoded : RowOrigin::prefilled);
    n_row_ += n;
    step_open_ = false;
    // For the rows that are decoded after these: a decode step allocates nothing.
    make_room(spans_);
}

void Timeline::decoded(size_t n) {
    step_first_ = n_row_;
    step_open_ = true;
    add_span(n, RowOrigin::decoded);
    n_row_ += n;
}

void Timeline::step_back(size_t n) {
    n_row_ = n;
    while (!spans_.empty() && spans_.back().first >= n) spans_.pop_back();
    if (!spans_.empty()) spans_.back().n = n - spans_.back().first;
}

void Timeline::add_span(size_t n, RowOrigin origin) {
    if (n == 0) return;
    if (origin == RowOrigin::decoded && !spans_.empty() && spans_.back().origin == RowOrigin::decoded)
        spans_.back().n += n;
    else
        spans_.push_back({n_row_, n, origin});
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

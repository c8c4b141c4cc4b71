#include "marked.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

Marked::Marked() = default;
Marked::Marked(std::string_view part, bool mark) { add(part, mark); }
Marked::Marked(const Marked&) = default;
Marked::Marked(Marked&&) noexcept = default;
Marked& Marked::operator=(const Marked&) = default;
Marked& Marked::operator=(Marked&&) noexcept = default;
Marked::~Marked() = default;

void Marked::add(std::string_view part, bool mark) {
    if (mark) add_mark(text.size(), text.size() + part.size());
    text.append(part);
}

void Marked::add(const Marked& other) {
    for (const auto& m : other.marks) add_mark(text.size() + m.first, text.size() + m.second);
    text.append(other.text);
}

Marked Marked::cut(size_t from, size_t to) const {
    Marked out;
    out.text = text.substr(from, to - from);
    auto m = std::lower_bound(marks.begin(), marks.end(), from,
                              [](const std::pair<size_t, size_t>& mark, size_t at) { return mark.second <= at; });
    for (; m != marks.end() && m->first < to; ++m)
        out.add_mark(std::max(m->first, from) - from, std::min(m->second, to) - from);
    return out;
}

void Marked::add_mark(size_t from, size_t to) {
    if (from == to) return;
    if (!marks.empty() && marks.back().second == from)
        marks.back().second = to;
    else
        marks.emplace_back(from, to);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

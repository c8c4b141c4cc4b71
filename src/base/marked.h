// base/marked: text that knows which of its bytes a chat template wrote.
//
// Owns    Marked. Control tokens are parsed in marked ranges alone, so that those in a user's text stay text.
// Thread  a plain value.
// Tests   tests/test_chat.cpp, tests/test_jinja.cpp
#pragma once
#include "base.h"

#include <utility>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

struct Marked {
    std::string text;
    std::vector<std::pair<size_t, size_t>> marks;  ///< [from, to) that the template wrote, ascending and apart

    AUSPEX_NOINLINE Marked();
    AUSPEX_NOINLINE Marked(std::string_view part, bool mark);
    AUSPEX_NOINLINE Marked(const Marked&);
    AUSPEX_NOINLINE Marked(Marked&&) noexcept;
    AUSPEX_NOINLINE Marked& operator=(const Marked&);
    AUSPEX_NOINLINE Marked& operator=(Marked&&) noexcept;
    AUSPEX_NOINLINE ~Marked();

    AUSPEX_NOINLINE void add(std::string_view part, bool mark);
    AUSPEX_NOINLINE void add(const Marked& other);
    /// What it takes of memory.
    size_t bytes() const { return text.size() + marks.size() * sizeof(marks[0]); }
    /// Bytes [from, to) of it.
    Marked cut(size_t from, size_t to) const;
    /// The part of it that the view `part` into `text` covers.
    Marked cut(std::string_view part) const {
        const size_t from = static_cast<size_t>(part.data() - text.data());
        return cut(from, from + part.size());
    }

  private:
    void add_mark(size_t from, size_t to);
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

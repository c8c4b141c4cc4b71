// engine/row_marks: which rows of a context were written since they were last saved to a file.
//
// Owns    one byte for each block of rows, allocated once. Integers only.
// Thread  belongs to one session.
// Tests   tests/test_session_file.cpp: a second save appends what changed, and loads to the same bits.
#pragma once
#include "../base/base.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// Rows are saved in blocks of this many, at absolute multiples.
constexpr size_t kFileRows = 256;

class RowMarks {
  public:
    /// Everything counts as written.
    void open(size_t n_context) { written_.assign(ceil_div(n_context, kFileRows), 1); }
    /// Rows first .. end - 1 of the context were written, or are about to be. Never allocates.
    void wrote(size_t first, size_t end) {
        if (first >= end) return;
        const size_t to = std::min(ceil_div(end, kFileRows), written_.size());
        for (size_t i = first / kFileRows; i < to; ++i) written_[i] = 1;
    }
    /// The first n rows are in the file as they are in the context; of others nothing is known.
    void saved(size_t n) {
        for (size_t i = 0; i < written_.size(); ++i) written_[i] = i * kFileRows < n ? 0 : 1;
    }
    bool written(size_t block) const { return block >= written_.size() || written_[block] != 0; }

  private:
    std::vector<uint8_t> written_;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// engine/row_marks: when the rows of a context were last written.
//
// Owns    one number for each block of rows, allocated once. Integers only.
// Thread  belongs to one session.
// Tests   tests/test_session_file.cpp: a second save appends what changed, and loads to the same bits;
//         tests/test_branches.cpp: rows that changed after they were copied back are parked again.
#pragma once
#include "prefix_policy.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// Rows are saved in blocks of this many, at absolute multiples.
constexpr size_t kFileRows = 256;

class RowMarks {
  public:
    static uint64_t memory_bytes(size_t n_context) { return n_block(n_context) * sizeof(uint64_t); }
    /// Everything counts as written since the last save.
    void open(size_t n_context) { last_.assign(n_block(n_context), 0); }
    /// Rows first .. end - 1 of the context were written, or are about to be. Never allocates.
    void wrote(size_t first, size_t end) {
        if (first >= end) return;
        ++n_write_;
        const size_t to = std::min(n_block(end), last_.size());
        for (size_t i = first / kPrefixGrid; i < to; ++i) last_[i] = n_write_;
    }
    /// The number of the last write to the kPrefixGrid rows among which `row` is.
    uint64_t last_write(size_t row) const { return last_[row / kPrefixGrid]; }
    /// The first n rows are in the file as they are in the context; of others nothing is known.
    void saved(size_t n) {
        n_saved_ = n;
        saved_at_ = n_write_;
    }
    bool written(size_t block) const {
        constexpr size_t kParts = kFileRows / kPrefixGrid;
        if (block * kFileRows >= n_saved_) return true;
        const auto begin = last_.begin() + static_cast<std::ptrdiff_t>(block * kParts);
        const auto end = begin + std::min<std::ptrdiff_t>(kParts, last_.end() - begin);
        return std::any_of(begin, end, [this](uint64_t at) { return at > saved_at_; });
    }

  private:
    static size_t n_block(size_t n_row) { return ceil_div(n_row, size_t{kPrefixGrid}); }
    std::vector<uint64_t> last_;  ///< by block of kPrefixGrid rows
    uint64_t n_write_ = 0, saved_at_ = 0;
    size_t n_saved_ = 0;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

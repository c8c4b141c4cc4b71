// machine/kv: where keys and values of each attention layer are kept, and which of them a row sees.
//
// Owns    the arithmetic of windows and rings. Integers only; the bytes belong to a Context.
// Thread  pure functions.
// Tests   tests/test_window.cpp: a window of at least the context gives the bits of no window.
//
// A row is written once, normed and rotated, at ring place p mod n_ring, p its KV row. A ring holds the rows that the
// first row of the longest step sees, and that whole step, so no visible row is ever overwritten. It is a multiple of
// kKvChunk rows, so an aligned chunk is contiguous. The first `sinks` KV rows are written a second time, to a place
// where nothing overwrites them; a row whose window begins after them reads them there.
#pragma once
#include "backend.h"

#include <algorithm>
#include <array>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// KV rows whose scores are summed together, at absolute multiples: no sum depends on a step or a ring.
constexpr uint32_t kKvChunk = 256;
/// Sinks of a layer at most: one chunk.
constexpr uint32_t kMaxSinks = kKvChunk;

/// How the keys and values of one layer are kept.
struct KvShape {
    uint32_t window = 0;  ///< keys at distance < window are visible; 0: all
    uint32_t sinks = 0;   ///< first KV rows that stay visible; 0 without a window
    uint32_t n_ring = 0;  ///< rows, a multiple of kKvChunk; 0: this slot is not kept
    uint32_t layer = 0;
    bool draft = false;     ///< of an MTP block
    bool declared = false;  ///< the model itself declares a window at least as narrow as the one asked for
    Type k = Type::f16, v = Type::f16;
    uint32_t width = 0;                 ///< values of a row: n_head_kv * d_head
    uint64_t k_bytes = 0, v_bytes = 0;  ///< of one row

    /// The oldest KV row, sinks aside, that a row at p sees.
    uint32_t low(uint32_t p) const { return window != 0 && p >= window ? p - window + 1 : 0; }
    uint32_t place(uint32_t p) const { return p % n_ring; }
    /// Rows of the ring and the sinks.
    uint64_t n_row() const { return uint64_t{n_ring} + sinks; }
    /// What a context takes for it at most: the CPU rounds the sinks' keys, and their values, up to whole cache lines.
    uint64_t bytes() const {
        return n_ring * (k_bytes + v_bytes) + round_up(sinks * k_bytes, 64) + round_up(sinks * v_bytes, 64);
    }
    /// Chunks that a tentative step may see parts of; the sinks count as one.
    uint32_t n_part() const;
    /// Neighbouring places of the ring.
    struct Places {
        uint32_t first = 0, n = 0;
    };
    /// The places of rows first .. end - 1, in their order: up to the end of the ring, then from its beginning.
    std::array<Places, 2> places(uint32_t first, uint32_t end) const {
        const uint32_t at = place(first), n = std::min(end - first, n_ring - at);
        return {{{at, n}, {0, end - first - n}}};
    }
    /// True if every row stays, so that the cache can be cut at any of them. If not, the rows that later ones may see
    /// are part of the state.
    bool keeps_rows() const { return window == 0; }
    /// The largest number of rows in the state.
    uint64_t n_state_row() const { return keeps_rows() ? 0 : uint64_t{window} - 1 + sinks; }
};

/// The shape of every KV slot, by SlotId; n_ring is 0 for other slots and for those that `options` leave out. A window
/// of n_context rows or more is no window. If the model declares a narrower one, that is used without sinks.
///
/// errors    bad_argument: sinks beyond kMaxSinks, options of a wrong length.
///           unsupported: a type that is no KV format, or heads that are not whole blocks of it.
Result<std::vector<KvShape>> kv_shapes(const Plan& plan, const ContextOptions& options);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

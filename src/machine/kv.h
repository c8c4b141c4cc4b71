// machine/kv: where the keys and values of each attention layer lie, and which of them a row sees.
//
// Owns    the arithmetic of windows and rings. Integers only; the bytes belong to a Context.
// Reads   plan, backend (ContextOptions).
// Serves  every machine, so that all keep the same rows; engine/memory, which plans with it.
// Thread  none of its own; pure functions.
// Laws    a window of at least the context is no window, to the bit: tests/test_window.cpp.
//
// A row at position p is written once, normed and rotated, at ring place p mod n_ring. A ring holds what the
// first row of the longest step sees and that whole step, so no visible row is ever overwritten. It is a multiple
// of kKvChunk rows: an aligned chunk of positions lies in one piece. The first `sinks` positions are written a
// second time, into an area of their own that nothing overwrites; a row whose window begins after them reads
// them there.
#pragma once
#include "backend.h"

namespace auspex {
namespace detail {

/// Positions whose scores are summed together; absolute multiples, so that no sum depends on a step or a ring.
constexpr uint32_t kKvChunk = 256;
/// The most positions that may stay visible forever: one chunk.
constexpr uint32_t kMaxSinks = kKvChunk;

/// How one KV slot is kept.
struct KvShape {
    uint32_t window = 0;  ///< keys at distance < window are visible; 0: all
    uint32_t sinks = 0;   ///< positions that stay visible; 0 without a window
    uint32_t n_ring = 0;  ///< rows, a multiple of kKvChunk; 0: this slot is not kept
    uint32_t layer = 0;
    bool draft = false;     ///< of an MTP block
    bool declared = false;  ///< the model itself declares a window at least as narrow as the one asked for
    Type k = Type::f16, v = Type::f16;
    uint32_t width = 0;                 ///< values of a row: n_head_kv * d_head
    uint64_t k_bytes = 0, v_bytes = 0;  ///< of one row

    /// The oldest position, sinks aside, that a row at p sees.
    uint32_t low(uint32_t p) const { return window != 0 && p >= window ? p - window + 1 : 0; }
    uint32_t place(uint32_t p) const { return p % n_ring; }
    /// Rows in all: the ring, and the sinks.
    uint64_t n_row() const { return uint64_t{n_ring} + sinks; }
    uint64_t bytes() const { return n_row() * (k_bytes + v_bytes); }
    /// Chunks that a tentative step may see pieces of, the sinks counted as one.
    uint32_t n_part() const;
    /// First of the positions below `n_token` that a later step may still see, sinks aside.
    uint32_t oldest_kept(uint32_t n_token) const { return low(n_token); }
};

/// The shape of every KV slot, by SlotId; n_ring is 0 for other slots and for those that `options` leave out.
/// A window of n_context rows or more is none. Where the model declares a window too, the narrower counts.
///
/// errors    bad_argument: sinks beyond kMaxSinks, options of a wrong length.
///           unsupported: a type that is no KV format, or heads that are not whole blocks of it.
Result<std::vector<KvShape>> kv_shapes(const Plan& plan, const ContextOptions& options);

}  // namespace detail
}  // namespace auspex

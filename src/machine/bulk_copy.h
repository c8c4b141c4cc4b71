// machine/bulk_copy: memcpy for bytes that nobody reads soon.
//
// What    bulk_copy(), and BulkCopies for many of them: states and rows on their way to and from host memory.
// Thread  pure functions; a BulkCopies belongs to one thread.
// Tests   tests/test_bulk_copy.cpp
//
// Why     memcpy of a page goes through the caches: each line of the target is read before it is written, and pushes
//         out what is in use. One thread of a Xeon (Sapphire Rapids) copies 7.8 GB/s that way out of a buffer in its
//         cache, and 13.5 past the caches; out of memory 6.5, and 11.2 with the source asked for ahead. There two
//         threads copy twice as much.
#pragma once
#include "pool.h"

#include <algorithm>
#include <cstring>
#if defined(__SSE2__) || defined(_M_X64)
#include <emmintrin.h>
#endif

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

#if defined(__SSE2__) || defined(_M_X64)
/// With stores that leave the caches alone.
inline void copy_past_caches(void* to, const void* from, uint64_t n) {
    constexpr uint64_t kLine = 64, kAhead = 2048;
    std::byte* out = static_cast<std::byte*>(to);
    const std::byte* in = static_cast<const std::byte*>(from);
    uint64_t at = std::min(n, (kLine - reinterpret_cast<uintptr_t>(out) % kLine) % kLine);
    std::memcpy(out, in, static_cast<size_t>(at));
    for (; at + kLine <= n; at += kLine) {
        _mm_prefetch(reinterpret_cast<const char*>(in + at) + kAhead, _MM_HINT_T0);
        const __m128i* line = reinterpret_cast<const __m128i*>(in + at);
        __m128i* place = reinterpret_cast<__m128i*>(out + at);
        const __m128i a = _mm_loadu_si128(line), b = _mm_loadu_si128(line + 1), c = _mm_loadu_si128(line + 2),
                      d = _mm_loadu_si128(line + 3);
        _mm_stream_si128(place, a);
        _mm_stream_si128(place + 1, b);
        _mm_stream_si128(place + 2, c);
        _mm_stream_si128(place + 3, d);
    }
    std::memcpy(out + at, in + at, static_cast<size_t>(n - at));
    _mm_sfence();  // other threads see all of it before what is stored next
}
#endif

inline void bulk_copy(void* to, const void* from, uint64_t n) {
#if defined(__SSE2__) || defined(_M_X64)
    constexpr uint64_t kBulkBytes = 4096;  // less stays in the caches until it is read
    if (n >= kBulkBytes) return copy_past_caches(to, from, n);
#endif
    if (n != 0) std::memcpy(to, from, static_cast<size_t>(n));
}

/// Copies that the threads of a pool share.
class BulkCopies {
  public:
    /// Null: the calling thread makes each copy at once.
    explicit BulkCopies(Pool* pool) : pool_(pool) {}
    /// Copies now or in finish(); both ends stay valid until then.
    void add(void* to, const void* from, uint64_t n) {
        if (!pool_) return bulk_copy(to, from, n);
        pieces_.push_back({to, from, n});
        bytes_ += n;
    }
    void finish() {
        Turn turn{pieces_, {0}};
        if (bytes_ < kSharedBytes)
            copy(&turn, 0, 1);
        else
            pool_->run(copy, &turn);
        pieces_.clear();
        bytes_ = 0;
    }

  private:
    static constexpr uint64_t kSharedBytes = uint64_t{1} << 20;  ///< less is copied before other threads are awake
    struct Piece {
        void* to;
        const void* from;
        uint64_t n;
    };
    struct Turn {
        const std::vector<Piece>& pieces;
        std::atomic<size_t> next;
    };
    static void copy(void* turn, uint32_t, uint32_t) {
        Turn& t = *static_cast<Turn*>(turn);
        for (size_t i; (i = t.next++) < t.pieces.size();) bulk_copy(t.pieces[i].to, t.pieces[i].from, t.pieces[i].n);
    }
    Pool* pool_;
    std::vector<Piece> pieces_;
    uint64_t bytes_ = 0;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

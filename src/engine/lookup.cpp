#include "lookup.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace lookup_impl {
namespace {

/// Places in the ring: a power of two.
size_t n_place(size_t n_context) {
    size_t n = 64;
    while (n < std::min(n_context, Lookup::kSearched)) n *= 2;
    return n;
}
/// Lists for so many places: a power of two that list_ can hold.
size_t n_list(size_t n_place) { return std::min(n_place / 4, size_t{1} << 16); }

}  // namespace
}  // namespace lookup_impl

Lookup::Lookup(size_t n_context)
    : latest_(lookup_impl::n_list(lookup_impl::n_place(n_context))),
      before_(lookup_impl::n_place(n_context)),
      list_(before_.size()) {}

uint64_t Lookup::memory_bytes(size_t n_context) {
    const size_t n = lookup_impl::n_place(n_context);
    return n * (sizeof(uint32_t) + sizeof(uint16_t)) + lookup_impl::n_list(n) * sizeof(uint32_t);
}

void Lookup::replaced(size_t n_same) { remove_from(n_same + 1); }

/// The list of the pair that ends before `end`.
uint16_t Lookup::list_of(const Token* end) const {
    const uint64_t pair = static_cast<uint64_t>(static_cast<uint32_t>(end[-2])) << 32 | static_cast<uint32_t>(end[-1]);
    return static_cast<uint16_t>((pair * 0x9E3779B97F4A7C15u >> 32) & (latest_.size() - 1));
}

void Lookup::remove_from(size_t place) {
    const size_t mask = before_.size() - 1;
    for (; n_added_ >= place && n_added_ > std::max(n_lost_, size_t{1}); --n_added_)
        latest_[list_[n_added_ & mask]] = before_[n_added_ & mask];
    if (n_added_ >= place) {  // nothing is left of the ring
        std::fill(latest_.begin(), latest_.end(), 0);
        n_added_ = n_lost_ = 0;
    }
}

/// Adds every place but the end of the text, which has nothing after it.
void Lookup::add(Span<const Token> history) {
    const size_t end = history.size() - 1, n = before_.size();
    remove_from(end + 1);
    for (size_t at = std::max({n_added_ + 1, size_t{2}, end > n ? end - n + 1 : 0}); at <= end; ++at) {
        const uint16_t list = list_[at & (n - 1)] = list_of(history.data() + at);
        before_[at & (n - 1)] = latest_[list];
        latest_[list] = static_cast<uint32_t>(at);
    }
    n_added_ = end;
    n_lost_ = std::max(n_lost_, end > n ? end - n : 0);
}

Result<uint32_t> Lookup::propose(const DraftRequest& request) {
    length_ = 0;
    const uint32_t n = request.n;
    const size_t size = request.history.size();
    if (size < kMinMatch + 1 || n == 0) return 0u;
    add(request.history);
    const Token* h = request.history.data();
    const size_t n_place = before_.size(), low = size > n_place ? size - n_place : 0;
    size_t after = 0;
    uint32_t n_left = kMaxPlaces;
    for (size_t end = latest_[list_of(h + size)]; end > std::max(low + 1, n_lost_) && length_ < kMaxMatch && n_left > 0;
         end = before_[end & (n_place - 1)], --n_left) {
        uint32_t length = 0;
        while (length < kMaxMatch && length < end - low && h[end - 1 - length] == h[size - 1 - length]) ++length;
        if (length <= length_) continue;
        length_ = length;
        after = end;
    }
    if (length_ < kMinMatch) return length_ = 0;
    // Where the earlier text ends, the guess goes on with itself: a period.
    Token* to = request.to;
    for (uint32_t i = 0; i < n; ++i) to[i] = after + i < size ? h[after + i] : to[after + i - size];
    return n;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

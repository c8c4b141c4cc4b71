#include "weights.h"

#include <algorithm>
#include <cmath>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

void Weights::read(SlotId id, uint64_t at, uint64_t n, std::byte* to) const {
    if (data[id] != nullptr) {
        std::memcpy(to, data[id] + at, static_cast<size_t>(n));
        return;
    }
    for (const Span<const std::byte>& piece : pieces[id]) {
        const uint64_t skip = std::min<uint64_t>(at, piece.size()), k = std::min(n, piece.size() - skip);
        std::memcpy(to, piece.data() + skip, static_cast<size_t>(k));
        to += k;
        at -= skip;
        n -= k;
    }
}

Result<const std::byte*> Weights::rows(SlotId id, const Allocator& from, Block* room) const {
    if (data[id] != nullptr) return data[id];
    uint64_t n_byte = 0;
    for (const Span<const std::byte>& piece : pieces[id]) n_byte += piece.size();
    AUSPEX_TRY(room->take(from, n_byte, "the rows of a fused tensor", false));
    read(id, 0, n_byte, room->data());
    return static_cast<const std::byte*>(room->data());
}

void Weights::done(SlotId id, uint64_t n_byte) const {
    if (!release) return;
    if (data[id] != nullptr) return release(data[id], n_byte);
    for (const Span<const std::byte>& piece : pieces[id]) release(piece.data(), piece.size());
}

Result<Weights> find_weights(const Plan& plan, const Gguf& file) {
    Weights found;
    found.data = std::vector<const std::byte*>(plan.slots.size());
    found.pieces.resize(plan.slots.size());
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const Slot& s = plan.slots[id];
        if (s.role != SlotRole::weight) continue;
        const Tensor* t = file.tensor(s.source.empty() ? s.name : s.source);
        if (!t)
            return fail(Code::bad_file, "tensor '", s.source.empty() ? s.name : s.source,
                        "' is missing although the plan was made from this file");
        const uint64_t bytes = row_bytes(t->type, t->ne[0]);
        if (s.rows.size() <= 1)
            found.data[id] = t->data + (s.rows.empty() ? 0 : s.rows[0].first * bytes);
        else
            for (const RowRange& r : s.rows)
                found.pieces[id].push_back({t->data + r.first * bytes, static_cast<size_t>(r.n * bytes)});
    }
    return found;
}

Status check_vectors(const Plan& plan, const Weights& weights) {
    std::vector<bool> seen(plan.slots.size(), false);
    std::vector<float> values;
    for (const Tape* tape : plan.tapes())
        for (const Op& op : tape->ops) {
            for (uint32_t i = 0; i < kMaxWeight; ++i) {
                const SlotId id = op.w[i];
                if (!op.is_vector(i) || id == kNoSlot || seen[id] || weights.data[id] == nullptr) continue;
                seen[id] = true;
                const Slot& s = plan.slot(id);
                values.resize(static_cast<size_t>(s.n_value()));
                decode_row(s.type, weights.data[id], values.data(), values.size());
                for (size_t k = 0; k < values.size(); ++k)
                    if (!std::isfinite(values[k]))
                        return fail(Code::bad_file, "tensor '", s.name, "' holds ", double{values[k]}, " at ", k,
                                    ", expected finite numbers; the file is damaged or was converted wrongly: get or "
                                    "convert it again");
            }
        }
    return {};
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

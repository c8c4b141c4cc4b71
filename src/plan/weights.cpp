#include "weights.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace weights_impl {
namespace {

/// Points the slot at its rows of `t`, or at a copy if they are not contiguous.
Status take_rows(const Slot& s, const Tensor& t, Weights& to, SlotId id) {
    const uint64_t bytes = row_bytes(t.type, t.ne[0]);
    if (s.rows.size() == 1) {
        to.data[id] = t.data + s.rows[0].first * bytes;
        return {};
    }
    uint64_t n = 0;
    for (const RowRange& r : s.rows) n += r.n;
    Block block;
    AUSPEX_TRY(block.take(Allocator(), n * bytes, "the rows of a fused tensor"));
    std::byte* at = block.data();
    for (const RowRange& r : s.rows) {
        std::memcpy(at, t.data + r.first * bytes, static_cast<size_t>(r.n * bytes));
        at += r.n * bytes;
    }
    to.data[id] = block.data();
    to.is_gathered[id] = true;
    to.gathered.push_back(std::move(block));
    return {};
}

}  // namespace
}  // namespace weights_impl

Result<Weights> find_weights(const Plan& plan, const Gguf& file) {
    Weights found;
    found.data.resize(plan.slots.size(), nullptr);
    found.is_gathered.resize(plan.slots.size(), false);
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const Slot& s = plan.slots[id];
        if (s.role != SlotRole::weight) continue;
        const Tensor* t = file.tensor(s.source.empty() ? s.name : s.source);
        if (!t)
            return fail(Code::bad_file, "tensor '", s.source.empty() ? s.name : s.source,
                        "' is missing although the plan was made from this file");
        if (s.rows.empty())
            found.data[id] = t->data;
        else
            AUSPEX_TRY(weights_impl::take_rows(s, *t, found, id));
    }
    return found;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

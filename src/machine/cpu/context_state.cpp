#include "context.h"

#include "../../base/float_mode.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

void CpuContext::apply_pending() {
    if (n_pending_ == 0) return;
    const DefaultFloatMode mode;
    for (const Op& op : model_->plan->trunk.ops) {
        if (op.kind != OpKind::delta) continue;
        const DeltaDims& d = op.delta;
        const DeltaState& state = delta_[op.state];
        const DeltaState::Terms& t = state.terms[parity_];
        for (uint32_t h = 0; h < d.n_head_v; ++h) {
            const uint32_t hk = d.grouped ? h / (d.n_head_v / d.n_head_k) : h % d.n_head_k;
            DeltaTerm terms[kMaxTentative];
            for (uint32_t i = 0; i < n_pending_; ++i)
                terms[i] = {t.decay[i * d.n_head_v + h], t.k + (size_t{i} * d.n_head_k + hk) * d.d_key,
                            t.u + (size_t{i} * d.n_head_v + h) * d.d_val};
            model_->loops->delta_rows(state.s + size_t{h} * d.d_key * d.d_val, d.d_key, d.d_val, terms, n_pending_,
                                      nullptr, 0, false, thread_scratch_);
        }
    }
    n_pending_ = 0;
}

template <class F>
Status CpuContext::each_row_part(Span<const PartRows> rows, F visit) const {
    for (const PartRows& r : rows) {
        for (SlotId id = 0; id < kv_.size(); ++id) {
            const KvCache& c = kv_[id];
            if (mtp_only_[id] != (r.part == StatePart::draft) || !c.k || !c.shape.keeps_rows()) continue;
            AUSPEX_TRY(visit(c.k + r.first * c.shape.k_bytes, r.n * c.shape.k_bytes));
            AUSPEX_TRY(visit(c.v + r.first * c.shape.v_bytes, r.n * c.shape.v_bytes));
        }
    }
    return {};
}

/// Everything else, in plan order.
template <class F>
Status CpuContext::each_state_part(StatePart part, uint32_t n_row, F visit) const {
    const Plan& plan = *model_->plan;
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const Slot& s = plan.slot(id);
        if (mtp_only_[id] != (part == StatePart::draft)) continue;
        const KvCache& c = kv_[id];
        if (s.role == SlotRole::kv && c.k && !c.shape.keeps_rows()) {
            // Keys, then values, each in the order of rows: the bytes must not depend on the ring's length.
            const uint64_t sinks = std::min(c.shape.sinks, n_row);
            const std::array<KvShape::Places, 2> seen = c.shape.places(c.shape.low(n_row), n_row);
            for (const KvShape::Places& p : seen)
                AUSPEX_TRY(visit(c.k + p.first * c.shape.k_bytes, p.n * c.shape.k_bytes));
            AUSPEX_TRY(visit(c.sink_k, sinks * c.shape.k_bytes));
            for (const KvShape::Places& p : seen)
                AUSPEX_TRY(visit(c.v + p.first * c.shape.v_bytes, p.n * c.shape.v_bytes));
            AUSPEX_TRY(visit(c.sink_v, sinks * c.shape.v_bytes));
        }
        if (s.role == SlotRole::delta)
            AUSPEX_TRY(visit(delta_[id].s, s.shape[0] * s.shape[1] * s.shape[2] * sizeof(float)));
        if (s.role == SlotRole::conv)  // no rejected row is among these
            for (uint32_t back = plan.conv_rows(id); back > 0; --back)
                AUSPEX_TRY(
                    visit(conv_[id] + (n_row + kConvRing - back) % kConvRing * s.width(), s.width() * sizeof(float)));
    }
    return {};
}

std::vector<uint64_t> CpuContext::row_pieces(StatePart part) const {
    std::vector<uint64_t> pieces;
    const PartRows row{part, 0, 1};
    (void)each_row_part({&row, 1}, [&](const void*, uint64_t n) { return pieces.push_back(n), Status(); });
    return pieces;
}

uint64_t CpuContext::state_bytes(StatePart part, uint32_t n_row) const {
    uint64_t bytes = 0;
    (void)each_state_part(part, n_row, [&](const void*, uint64_t n) { return bytes += n, Status(); });
    return bytes;
}

Status CpuContext::save_rows(Span<const PartRows> rows, StateWriter& to) {
    return each_row_part(rows, [&](const void* from, uint64_t bytes) { return to.write(from, bytes); });
}

Status CpuContext::save_state(StatePart part, uint32_t n_row, StateWriter& to) {
    apply_pending();
    return each_state_part(part, n_row, [&](const void* from, uint64_t bytes) { return to.write(from, bytes); });
}

Status CpuContext::restore_rows(Span<const PartRows> rows, StateReader& from) {
    return each_row_part(rows, [&](void* to, uint64_t bytes) { return from.read(to, bytes); });
}

Status CpuContext::restore_state(StatePart part, uint32_t n_row, StateReader& from) {
    if (part == StatePart::trunk) n_pending_ = 0;
    return each_state_part(part, n_row, [&](void* to, uint64_t bytes) { return from.read(to, bytes); });
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

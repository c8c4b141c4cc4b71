#include "context.h"
#ifndef AUSPEX_NO_VULKAN

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace context_impl {

bool of_draft(const Plan& plan, SlotId id) {
    for (const Tape& tape : plan.mtp)
        for (const Op& op : tape.ops)
            if (op.kind == OpKind::kv_write && op.state == id) return true;
    return false;
}

/// Adds these slots of both caches: the codes of every head, then the scales.
void add_slots(const Buffers::Kv& kv, Span<const KvShape::Places> slots, std::vector<Region>* to) {
    for (const Buffers::Cache* c : {&kv.k, &kv.v}) {
        uint64_t at = 0;
        for (uint64_t row : {c->code_bytes, c->scale_bytes})
            for (uint64_t h = 0; h < kv.n_head; ++h, at += row * kv.shape.n_row())
                for (const KvShape::Places& s : slots)
                    if (row * s.n != 0) to->push_back(c->part(at + s.first * row, row * s.n));
    }
}

/// The slots of the rows that row n_row and later ones may see, in the order of rows: the sinks, which begin a cache,
/// then the ring.
std::array<KvShape::Places, 3> visible_slots(const KvShape& kv, uint32_t n_row) {
    const uint32_t sinks = std::min(kv.sinks, n_row), low = std::max(kv.low(n_row), sinks);
    const std::array<KvShape::Places, 2> ring = kv.places(low - sinks, n_row - sinks);
    return {{{0, sinks}, {kv.sinks + ring[0].first, ring[0].n}, {kv.sinks, ring[1].n}}};
}

/// The last inputs of a convolution before row n_row, oldest first; the ring holds them by position.
void add_conv_rows(const Plan& plan, SlotId id, const Region& ring, uint32_t n_row, std::vector<Region>* to) {
    const uint64_t row = ring.bytes / args::kConvRing;
    for (uint32_t back = plan.conv_rows(id); back > 0; --back)
        to->push_back(ring.part((n_row + args::kConvRing - back) % args::kConvRing * row, row));
}

uint64_t sum_bytes(const std::vector<Region>& regions) {
    uint64_t bytes = 0;
    for (const Region& r : regions) bytes += r.bytes;
    return bytes;
}

}  // namespace context_impl

/// Makes the committed rows of the last tentative step part of the state.
Status VulkanContext::submit_pending() {
    AUSPEX_TRY(finish_reset());
    if (n_pending_ == 0) return {};
    Recording* r = nullptr;
    RecordingKey key;
    key.kind = RecordingKey::Kind::apply;
    key.n = n_pending_;
    AUSPEX_TRY(recording(key).get(r));
    AUSPEX_TRY(submit({r}));
    n_pending_ = 0;
    return {};
}

Status VulkanContext::apply_pending() {
    AUSPEX_TRY(submit_pending());
    return barrier();
}

std::vector<Region> VulkanContext::row_regions(Span<const PartRows> rows) const {
    using namespace context_impl;
    std::vector<Region> regions;
    for (const PartRows& r : rows) {
        for (SlotId id = 0; id < buffers_.kv.size(); ++id) {
            const Buffers::Kv& kv = buffers_.kv[id];
            if (kv.k.bytes == 0 || !kv.shape.keeps_rows()) continue;
            const KvShape::Places slots{r.first, r.n};
            if (of_draft(*model_->plan, id) == (r.part == StatePart::draft)) add_slots(kv, {&slots, 1}, &regions);
        }
    }
    return regions;
}

/// In plan order.
std::vector<Region> VulkanContext::state_regions(StatePart part, uint32_t n_row) const {
    using namespace context_impl;
    const Plan& plan = *model_->plan;
    std::vector<Region> regions;
    for (SlotId id = 0; id < buffers_.kv.size(); ++id) {
        if (of_draft(plan, id) != (part == StatePart::draft)) continue;
        const Buffers::Kv& kv = buffers_.kv[id];
        if (kv.k.bytes != 0 && !kv.shape.keeps_rows()) {
            const std::array<KvShape::Places, 3> slots = visible_slots(kv.shape, n_row);
            add_slots(kv, {slots.data(), slots.size()}, &regions);
        }
        if (buffers_.delta[id].bytes != 0) regions.push_back(buffers_.delta[id]);
        if (buffers_.conv[id].bytes != 0) add_conv_rows(plan, id, buffers_.conv[id], n_row, &regions);
    }
    return regions;
}

std::vector<uint64_t> VulkanContext::row_pieces(StatePart part) const {
    std::vector<uint64_t> pieces;
    const PartRows row{part, 0, 1};
    for (const Region& r : row_regions({&row, 1})) pieces.push_back(r.bytes);
    return pieces;
}

uint64_t VulkanContext::state_bytes(StatePart part, uint32_t n_row) const {
    return context_impl::sum_bytes(state_regions(part, n_row));
}

Status VulkanContext::save_rows(Span<const PartRows> rows, StateWriter& to) {
    AUSPEX_TRY(check_idle());
    AUSPEX_TRY(finish_reset());
    AUSPEX_TRY(barrier());
    return transfer_.read(row_regions(rows), to);
}

Status VulkanContext::save_state(StatePart part, uint32_t n_row, StateWriter& to) {
    AUSPEX_TRY(check_idle());
    AUSPEX_TRY(apply_pending());
    return transfer_.read(state_regions(part, n_row), to);
}

Status VulkanContext::begin_save(uint32_t n_row, StateWriter& to) {
    AUSPEX_TRY(finish_save());
    AUSPEX_TRY(check_idle());
    std::vector<Region> regions = state_regions(StatePart::trunk, n_row);
    const std::vector<Region> draft = state_regions(StatePart::draft, n_row);
    regions.insert(regions.end(), draft.begin(), draft.end());
    save_bytes_ = context_impl::sum_bytes(regions);
    if (save_bytes_ > buffers_.saved_state.bytes)
        return fail(Code::bad_argument, "a state of ", save_bytes_, " bytes, the context was opened for ",
                    buffers_.saved_state.bytes);
    AUSPEX_TRY(submit_pending());
    AUSPEX_TRY(transfer_.begin_read(regions, buffers_.saved_state).get(save_value_));
    save_to_ = &to;
    background_.run(
        [](void* me) {
            VulkanContext& c = *static_cast<VulkanContext*>(me);
            c.save_status_ = c.write_saved();
        },
        this);
    return {};
}

/// On the background thread.
Status VulkanContext::write_saved() {
    if (model_->device->gpu->lost) return lost_before();
    AUSPEX_TRY(transfer_.wait(save_value_));
    AUSPEX_TRY(invalidate(buffers_.saved_state));
    return save_to_->write(buffers_.saved_state.mapped, save_bytes_);
}

Status VulkanContext::finish_save() {
    if (!save_to_) return {};
    background_.wait();
    save_to_ = nullptr;
    return std::exchange(save_status_, Status());
}

Status VulkanContext::begin_restore() {
    AUSPEX_TRY(check_idle());
    AUSPEX_TRY(finish_reset());
    AUSPEX_TRY(barrier());
    loop_started_ = false;
    return {};
}

Status VulkanContext::restore_rows(Span<const PartRows> rows, StateReader& from) {
    AUSPEX_TRY(begin_restore());
    return transfer_.write(row_regions(rows), from);
}

Status VulkanContext::restore_state(StatePart part, uint32_t n_row, StateReader& from) {
    AUSPEX_TRY(begin_restore());
    if (part == StatePart::trunk) {
        n_pending_ = 0;
        forget_rows();
    }
    return transfer_.write(state_regions(part, n_row), from);
}

Status VulkanContext::copy(Context& other, uint32_t n_row, uint32_t n_kept) {
    VulkanContext& from = static_cast<VulkanContext&>(other);
    AUSPEX_TRY(from.check_idle());
    AUSPEX_TRY(begin_restore());
    AUSPEX_TRY(from.apply_pending());
    n_pending_ = 0;
    forget_rows();
    for (const StatePart part : {StatePart::trunk, StatePart::draft}) {
        const PartRows kept{part, 0, n_kept};
        AUSPEX_TRY(transfer_.copy(row_regions({&kept, 1}), from.row_regions({&kept, 1})));
        AUSPEX_TRY(transfer_.copy(state_regions(part, n_row), from.state_regions(part, n_row)));
    }
    return transfer_.finish();
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

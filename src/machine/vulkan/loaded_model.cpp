#include "loaded_model.h"
#ifndef AUSPEX_NO_VULKAN
#include "../../base/float_mode.h"
#include "../pool.h"

#include <algorithm>
#include <cmath>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace loaded_model_impl {

constexpr uint64_t kHalfBytes = 32u << 20;  ///< of each of the two staging buffers
constexpr uint32_t kMaxThread = 16;

enum class Use : uint8_t { none, matrix, stack, router, vector };

/// The use of weight i of an experts operation.
Use of_moe(uint32_t i) {
    constexpr Use kUse[] = {Use::router, Use::stack,  Use::stack, Use::stack, Use::matrix,
                            Use::matrix, Use::matrix, Use::none,  Use::vector};
    return kUse[i];  // the shared expert's gate is stored with the router
}

std::vector<Use> uses(const Plan& plan) {
    std::vector<Use> use(plan.slots.size(), Use::none);
    for (const Tape* tape : plan.tapes()) {
        for (const Op& op : tape->ops) {
            const bool matrix = op.kind == OpKind::embed || op.kind == OpKind::matmul;
            for (uint32_t i = 0; i < kMaxWeight; ++i) {
                const SlotId id = op.w[i];
                if (id == kNoSlot || use[id] == Use::matrix) continue;
                use[id] = matrix ? Use::matrix : op.kind == OpKind::moe ? of_moe(i) : Use::vector;
            }
        }
    }
    return use;
}

/// The numbers of a vector, or of a matrix that is held as floats.
Status read_values(const Slot& s, SlotId id, const Weights& weights, const Allocator& host, float* to) {
    Block room;
    const std::byte* rows = nullptr;
    AUSPEX_TRY(weights.rows(id, host, &room).get(rows));
    decode_row(s.type, rows, to, static_cast<size_t>(s.n_value()));
    if (!s.scale.empty())
        for (uint64_t i = 0; i < s.n_value(); ++i) to[i] *= s.scale[0];
    return {};
}

/// Repacks tile rows, split evenly over the threads of a pool.
struct Packing {
    const Tiling* tiling;
    Type type;
    MatrixRows a, b;
    uint32_t first, n;
    std::byte* to;
    static void work(void* context, uint32_t i_thread, uint32_t n_thread) {
        const Packing& p = *static_cast<const Packing*>(context);
        uint64_t from = 0, end = 0;
        even_part(p.n, {i_thread, n_thread, nullptr}, &from, &end);
        if (end > from)
            repack(*p.tiling, p.type, p.a, p.b, p.first + static_cast<uint32_t>(from),
                   static_cast<uint32_t>(end - from), p.to + from * p.tiling->row_bytes());
    }
};

/// Turns per position of each pair, times 2^64, less whole turns: base^(-2i / n_rot) / factor_i / (2 pi).
std::vector<uint32_t> rope_words(uint32_t n_rot, float base, const float* factors) {
    std::vector<uint32_t> words;
    for (uint32_t i = 0; i < n_rot / 2; ++i) {
        const long double turns = std::pow(static_cast<long double>(base), -2.0L * i / n_rot) /
                                  (factors ? static_cast<long double>(factors[i]) : 1.0L) /
                                  (2.0L * 3.14159265358979323846264338327950288L);
        const uint64_t scaled = static_cast<uint64_t>(std::fmod(turns, 1.0L) * 18446744073709551616.0L);
        words.push_back(static_cast<uint32_t>(scaled));
        words.push_back(static_cast<uint32_t>(scaled >> 32));
    }
    return words;
}

/// Vectors in one region, one after the other, each aligned so that it can be bound.
struct PackedConstants {
    uint64_t align;
    std::vector<std::byte> bytes;
    uint64_t add(const void* from, uint64_t n) {
        const uint64_t at = round_up(bytes.size(), align);
        bytes.resize(at + n);
        if (from) std::memcpy(bytes.data() + at, from, n);
        return at;
    }
};

}  // namespace loaded_model_impl

const Region* VulkanModel::rope(const Op& op) const {
    for (const Rope& r : ropes)
        if (r.n_rot == op.attn.n_rot && r.base == op.attn.rope_base && r.factors == op.w[1]) return &r.table;
    return nullptr;
}

/// The regions of all weights and what goes into them, decided before any tensor is read.
struct VulkanModel::Uploads {
    explicit Uploads(const DeviceTraits& traits)
        : memory(traits), packed_constants{std::max<uint64_t>(traits.storage_align, 256), {}} {}
    MemoryPlan memory;
    loaded_model_impl::PackedConstants packed_constants;  ///< vectors, zeros, rotary tables
    std::vector<loaded_model_impl::Use> use;              ///< by SlotId
    std::vector<SlotId> partner;                          ///< by SlotId: the up matrix of a pair's gate
    std::vector<bool> second, fused;
    std::vector<SlotId> own_gate;                     ///< by SlotId of a router: the shared expert's gate
    std::vector<MemoryPlan::Id> router_id;            ///< by SlotId
    std::vector<uint64_t> packed_constants_at;        ///< by SlotId: offset of a vector
    std::vector<std::vector<MemoryPlan::Id>> slices;  ///< by SlotId
    std::vector<uint64_t> rope_at;
    uint64_t zeros_at = 0, zeros_bytes = 0, total = 0;
    MemoryPlan::Id packed_constants_id = 0;
};

Result<std::shared_ptr<VulkanModel>> VulkanModel::bare(OpenDeviceRef device, const Plan& plan) {
    auto model = std::make_shared<VulkanModel>();
    model->plan = &plan;
    model->device = std::move(device);
    model->pairs = find_pairs(plan);
    model->matrices.resize(plan.slots.size());
    model->vectors.resize(plan.slots.size());
    for (const bool fill_only : {false, true})
        for (const Tape* tape : plan.tapes()) {
            model->nodes_[fill_only].emplace_back();
            AUSPEX_TRY(lower(plan, *tape, model->pairs, fill_only).get(model->nodes_[fill_only].back()));
        }
    return model;
}

Result<std::shared_ptr<VulkanModel>> VulkanModel::outline(OpenDeviceRef device, const Plan& plan) {
    std::shared_ptr<VulkanModel> model;
    AUSPEX_TRY(bare(std::move(device), plan).get(model));
    Uploads up(model->device->gpu->traits);
    AUSPEX_TRY(model->lay_out(&up));
    return model;
}

uint32_t VulkanModel::tape_index(const Tape& tape) const {
    return &tape == &plan->trunk ? 0 : 1 + static_cast<uint32_t>(&tape - plan->mtp.data());
}

Status VulkanModel::lay_out(Uploads* to) {
    using namespace loaded_model_impl;
    const Plan& p = *plan;
    const DeviceTraits& traits = device->gpu->traits;
    const size_t n_slot = p.slots.size();
    to->use = uses(p);
    to->partner.assign(n_slot, kNoSlot);
    to->second.assign(n_slot, false);
    to->fused.assign(n_slot, false);
    to->own_gate.assign(n_slot, kNoSlot);
    to->router_id.assign(n_slot, 0);
    for (const Tape* tape : p.tapes()) {
        for (const Op& op : tape->ops) {
            if (op.kind != OpKind::moe) continue;
            to->own_gate[op.w[0]] = op.w[7];
            to->fused[op.w[1]] = op.moe.gate_up;
        }
    }
    to->packed_constants_at.assign(n_slot, 0);
    to->slices.resize(n_slot);
    for (const Pair& pair : pairs) {
        to->partner[pair.gate] = pair.up;
        to->second[pair.up] = true;
    }
    const uint64_t max_slice_bytes = std::min(traits.max_storage_range, to->memory.max_region_bytes());
    uint64_t width = 0;
    for (SlotId id = 0; id < n_slot; ++id) {
        const Slot& s = p.slot(id);
        width = std::max(width, s.n_dim ? s.width() : 0);
        if (to->use[id] == Use::vector) {
            to->packed_constants_at[id] = to->packed_constants.add(nullptr, s.n_value() * sizeof(float));
            n_weight_bytes_ += s.n_value() * sizeof(float);
        }
        if (to->use[id] == Use::router) {
            const uint64_t n = s.shape[0] + (to->own_gate[id] == kNoSlot ? 0 : 1);
            vectors[id].bytes = n * s.width() * sizeof(float);
            to->router_id[id] = to->memory.add(Arena::weights, vectors[id].bytes, s.name);
            n_weight_bytes_ += vectors[id].bytes;
        }
        if ((to->use[id] != Use::matrix && to->use[id] != Use::stack) || to->second[id]) continue;
        Matrix& m = matrices[id];
        const bool stack = to->use[id] == Use::stack, fused = to->fused[id];
        m.tiling = tiling(s.type, s.shape[s.n_dim - 2] / (fused ? 2 : 1), s.width(),
                          fused || to->partner[id] != kNoSlot, stack ? static_cast<uint32_t>(s.shape[0]) : 1);
        const uint32_t step = m.tiling.rows_within(max_slice_bytes);
        if (step == 0 && m.tiling.n_stack > 1 && m.tiling.row_bytes() <= max_slice_bytes)
            return fail(Code::unsupported, "tensor '", s.name, "' has ", m.tiling.one().bytes(),
                        " bytes for each expert; ", traits.name, " can see ", max_slice_bytes, " at once; use the CPU");
        if (step == 0 || m.tiling.row_bytes() > kHalfBytes)
            return fail(Code::unsupported, "tensor '", s.name, "' has rows of ", s.width(), " values, more than ",
                        traits.name, " can see at once");
        for (uint32_t first = 0; first < m.tiling.n_row; first += step) {
            Matrix::Slice slice;
            slice.first = first;
            slice.n = std::min(step, m.tiling.n_row - first);
            to->slices[id].push_back(
                to->memory.add(s.on_host ? Arena::pinned : Arena::weights, slice.n * m.tiling.row_bytes(), s.name));
            m.slices.push_back(slice);
        }
        to->total += m.tiling.bytes();
        n_weight_bytes_ += m.tiling.bytes();
    }
    to->zeros_bytes = width * sizeof(float);
    to->zeros_at = to->packed_constants.add(nullptr, to->zeros_bytes);
    for (const Tape* tape : p.tapes()) {
        for (const Op& op : tape->ops) {
            if ((op.kind != OpKind::attend && op.kind != OpKind::kv_write) || rope(op)) continue;
            Rope r;
            r.n_rot = op.attn.n_rot;
            r.base = op.attn.rope_base;
            r.factors = op.w[1];
            r.table.bytes = std::max<uint64_t>(r.n_rot / 2, 1) * 8;
            to->rope_at.push_back(to->packed_constants.add(nullptr, r.table.bytes));
            ropes.push_back(r);
        }
    }
    to->packed_constants_id = to->memory.add(Arena::weights, to->packed_constants.bytes.size(), "vectors");
    return {};
}

Status VulkanModel::plan_weights(OpenDeviceRef device, const Plan& plan, std::vector<MemoryItem>* items) {
    std::shared_ptr<VulkanModel> model;
    AUSPEX_TRY(bare(device, plan).get(model));
    Uploads up(device->gpu->traits);
    AUSPEX_TRY(model->lay_out(&up));
    const std::vector<bool> trunk = plan.weights_of_trunk();
    std::vector<int> layer(plan.slots.size(), -1);  // of experts
    for (const Tape* tape : plan.tapes()) {
        for (const Op& op : tape->ops)
            if (op.kind == OpKind::moe)
                for (SlotId id : op.w)
                    if (id != kNoSlot) layer[id] = static_cast<int>(op.layer);
    }
    uint64_t rest = up.memory.device_bytes(), rest_pinned = up.memory.arena_bytes(Arena::pinned);
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const Matrix& m = model->matrices[id];
        if (m.empty()) continue;
        const bool pinned = plan.slot(id).on_host;
        const char *whose = trunk[id] ? "" : "draft block: ", *type = type_info(plan.slot(id).type).name;
        if (pinned)
            add_item(items, say(whose, "experts ", type, ", in tiles"), layer[id], m.tiling.bytes(),
                     MemoryPlace::pinned);
        else
            add_item(items, say(whose, "weights ", type, ", in tiles"), -1, m.tiling.bytes(), MemoryPlace::device);
        (pinned ? rest_pinned : rest) -= m.tiling.bytes();
    }
    add_item(items, "vectors, as F32, and alignment", -1, rest, MemoryPlace::device);
    add_item(items, "alignment", -1, rest_pinned, MemoryPlace::pinned);
    return {};
}

Result<std::shared_ptr<LoadedModel>> VulkanModel::load(OpenDeviceRef device, const Plan& plan, const Weights& weights,
                                                       const Progress& progress) {
    using namespace loaded_model_impl;
    const DefaultFloatMode mode;
    std::shared_ptr<VulkanModel> model;
    AUSPEX_TRY(bare(device, plan).get(model));
    const GpuRef& gpu = device->gpu;
    Uploads up(gpu->traits);
    AUSPEX_TRY(model->lay_out(&up));
    const Result<SlotId> table = draft_table(plan);
    if (table.ok() && weights.keeps(table.value())) model->draft_rows = weights.data[table.value()];
    AUSPEX_TRY(Memory::take(gpu, up.memory).get(model->memory_));
    Transfer transfer;
    AUSPEX_TRY(Transfer::create(gpu, kHalfBytes).get(transfer));

    const Allocator& host = device->allocator;
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        if (up.use[id] != Use::router) continue;
        const Slot& s = plan.slot(id);
        std::vector<float> rows(model->vectors[id].bytes / sizeof(float));
        AUSPEX_TRY(read_values(s, id, weights, host, rows.data()));
        if (const SlotId gate = up.own_gate[id]; gate != kNoSlot)
            AUSPEX_TRY(read_values(plan.slot(gate), gate, weights, host, rows.data() + s.n_value()));
        model->vectors[id] = model->memory_[up.router_id[id]];
        AUSPEX_TRY(transfer.write(model->vectors[id], rows.data(), rows.size() * sizeof(float)));
    }
    // Vectors and rotary tables.
    auto constants_at = [&](uint64_t at) { return reinterpret_cast<float*>(up.packed_constants.bytes.data() + at); };
    const Region& vectors = model->memory_[up.packed_constants_id];
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        if (up.use[id] != Use::vector) continue;
        const Slot& s = plan.slot(id);
        AUSPEX_TRY(read_values(s, id, weights, host, constants_at(up.packed_constants_at[id])));
        model->vectors[id] = vectors.part(up.packed_constants_at[id], s.n_value() * sizeof(float));
    }
    for (size_t i = 0; i < up.rope_at.size(); ++i) {
        Rope& r = model->ropes[i];
        const float* factors = r.factors == kNoSlot ? nullptr : constants_at(up.packed_constants_at[r.factors]);
        const std::vector<uint32_t> words = rope_words(r.n_rot, r.base, factors);
        std::memcpy(up.packed_constants.bytes.data() + up.rope_at[i], words.data(), words.size() * sizeof(uint32_t));
        r.table = vectors.part(up.rope_at[i], r.table.bytes);
    }
    AUSPEX_TRY(transfer.write(vectors, up.packed_constants.bytes.data(), up.packed_constants.bytes.size()));
    model->zeros = vectors.part(up.zeros_at, up.zeros_bytes);

    std::unique_ptr<Pool> own;
    Pool* pool = model->device->jobs.get();
    if (!pool) {
        const uint32_t n_thread = std::min(std::max(std::thread::hardware_concurrency(), 1u), kMaxThread);
        if (!Pool::open(n_thread).get(own).ok()) AUSPEX_TRY(Pool::open(1).get(own));
        pool = own.get();
    }
    uint64_t done = 0;
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        Matrix& m = model->matrices[id];
        if (m.empty()) continue;
        const SlotId partner = up.partner[id];
        Block room_a, room_b;
        const std::byte *a = nullptr, *b = nullptr;
        AUSPEX_TRY(weights.rows(id, host, &room_a).get(a));
        if (partner != kNoSlot) AUSPEX_TRY(weights.rows(partner, host, &room_b).get(b));
        for (size_t i = 0; i < m.slices.size(); ++i) {
            Matrix::Slice& slice = m.slices[i];
            slice.region = model->memory_[up.slices[id][i]];
            const uint64_t row_bytes = m.tiling.row_bytes();
            AUSPEX_TRY(transfer.write(
                slice.region, slice.n * row_bytes, row_bytes, [&](std::byte* to, uint64_t at, uint64_t n) {
                    if (progress &&
                        !progress("loading weights", up.total ? static_cast<float>(static_cast<double>(done) /
                                                                                   static_cast<double>(up.total))
                                                              : 0))
                        return Status(Code::cancelled, "loading was cancelled by the progress callback");
                    Packing p{&m.tiling,
                              plan.slot(id).type,
                              {a, plan.slot(id).scale},
                              {b, partner == kNoSlot ? Span<const float>() : plan.slot(partner).scale},
                              slice.first + static_cast<uint32_t>(at / row_bytes),
                              static_cast<uint32_t>(n / row_bytes),
                              to};
                    pool->run(Packing::work, &p);
                    done += n;
                    return Status();
                }));
        }
        for (const SlotId of : {id, partner})
            if (of != kNoSlot) weights.done(of, row_bytes(plan.slot(of).type, plan.slot(of).n_value()));
    }
    AUSPEX_TRY(transfer.finish());
    if (progress) progress("loading weights", 1.0f);
    return std::shared_ptr<LoadedModel>(std::move(model));
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

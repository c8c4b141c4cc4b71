#include "buffers.h"
#ifndef AUSPEX_NO_VULKAN
#include "../../../shaders/rows_args.h"

#include <algorithm>
#include <functional>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace buffers_impl {

/// Maximum of chunks that a tentative step reads.
uint32_t chunks_max(uint32_t n_context, const KvShape& s) {
    return kChunks.seen_max(n_context, s.window, s.sinks, args::kMaxRows);
}

/// The largest layer of experts, dim by dim. Places count experts of one row.
struct MoeNeeds {
    uint64_t n_out = 0, n_used = 0, d_slots = 0, d_halves = 0, d_shared = 0, d_model = 0, n_expert = 0;
    void look(const MoeDims& m, uint64_t d) {
        n_out = std::max<uint64_t>(n_out, m.n_expert + 1);
        n_expert = std::max<uint64_t>(n_expert, m.n_expert);
        n_used = std::max<uint64_t>(n_used, m.n_used);
        const uint64_t slot = round_up(uint64_t{m.d_ff}, uint64_t{kTileColumns});
        d_halves = std::max(d_halves, slot);
        d_slots = std::max(d_slots, slot * m.n_used);
        d_shared = std::max(d_shared, round_up(uint64_t{m.d_ff_shared}, uint64_t{kTileColumns}));
        d_model = std::max(d_model, d);
    }
};

/// What the kernels of every tape touch.
struct Needs {
    Needs(const Plan& p, uint32_t n_row_of_trunk)
        : plan(p),
          n_row(p.slots.size(), 0),
          in_trunk(p.slots.size(), false),
          in_mtp(p.slots.size(), false),
          squares(p.slots.size(), false),
          n_row_max(n_row_of_trunk) {
        for (SlotId id = 0; id < p.slots.size(); ++id) together.push_back(id);
    }
    const Plan& plan;
    std::vector<uint64_t> n_row;             ///< by SlotId: rows of an activation; 0: never touched
    std::vector<bool> in_trunk, in_mtp;      ///< by SlotId: an activation that such a tape touches
    std::vector<bool>* in_tape = &in_trunk;  ///< of the tape that is looked at
    std::vector<bool> squares;
    std::vector<SlotId> together;  ///< by SlotId: a slot it is bound with (a chain to the first)
    uint64_t conv_dim = 0, n_head_v = 0, part_floats = 0, stat_floats = 0, n_count = 0, query_floats = 0, d_gather = 0,
             d_pack = 0, d_swiglu = 0;
    uint32_t n_row_max;                        ///< of the tape that is looked at
    AttendKernel attend = AttendKernel::rows;  ///< of many rows
    bool shuffles = false;                     ///< of the device
    MoeNeeds moe;
    uint64_t spare_bytes = 0;  ///< of a recurrent state from row to row (delta_any)

    SlotId root(SlotId id) const {
        while (together[id] != id) id = together[id];
        return id;
    }
    void bind(SlotId a, SlotId b) {
        if (a == kNoSlot || b == kNoSlot) return;
        const SlotId ra = root(a), rb = root(b);
        together[std::max(ra, rb)] = std::min(ra, rb);
    }
    void touch(SlotId id) {
        if (id == kNoSlot || (plan.slot(id).role != SlotRole::activation && plan.slot(id).role != SlotRole::kept))
            return;
        n_row[id] = std::max<uint64_t>(n_row[id], n_row_max);
        (*in_tape)[id] = true;
    }
    void look(const Node& d, uint32_t n_context, const std::vector<KvShape>& shapes) {
        const bool reads_op = d.kind == Node::Kind::delta || d.kind == Node::Kind::append;
        touch(d.x);
        touch(d.x2);
        if (reads_op)
            for (SlotId id : d.op->in) touch(id);
        if (d.write)
            for (SlotId id : d.write->in) touch(id);
        if (d.kind == Node::Kind::experts) {
            moe.look(d.op->moe, plan.slot(d.x).width());
            d_pack = std::max(d_pack, plan.slot(d.x).width());
        }
        if (d.kind == Node::Kind::product && !d.head) d_pack = std::max(d_pack, plan.slot(d.x).width());
        if (d.kind == Node::Kind::product && d.epilogue == Node::Epilogue::swiglu)
            d_swiglu = std::max(d_swiglu, plan.slot(d.y).width());
        if (d.kind == Node::Kind::product && d.head) {
            n_row[d.y] = kMaxTentative;
            d_gather = std::max<uint64_t>(d_gather, row_stride(plan, d.x));
            touch(d.op->in[0]);
        } else {
            touch(d.y);
        }
        if (d.y != kNoSlot && (d.kind == Node::Kind::embed || d.kind == Node::Kind::experts ||
                               (d.kind == Node::Kind::product && d.epilogue == Node::Epilogue::add)))
            squares[d.y] = true;
        if (d.kind == Node::Kind::delta) {
            for (SlotId id : d.op->in) bind(d.op->in[0], id);
            conv_dim = std::max<uint64_t>(conv_dim, d.op->delta.conv_dim());
            n_head_v = std::max<uint64_t>(n_head_v, d.op->delta.n_head_v);
        }
        const Op* write = d.kind == Node::Kind::append ? d.op : d.write;
        if (write) bind(write->in[0], write->in[1]);
        if (d.kind == Node::Kind::attend) {
            bind(d.x, write->in[0]);
            bind(d.x, d.x2);
            const AttnDims& a = d.op->attn;
            const uint64_t chunks = chunks_max(n_context, shapes[d.op->state]),
                           rows = uint64_t{args::kMaxRows} * a.n_head;
            const uint64_t parts = (chunks + attend_counts(static_cast<uint32_t>(chunks))) *
                                   rows;  // results of chunks, then of sets of them
            part_floats = std::max(part_floats, parts * a.d_head);
            stat_floats = std::max(stat_floats, parts * 2);
            const uint32_t n_query = args::kMaxRows * (a.n_head / a.n_head_kv);
            n_count = std::max(
                {n_count, uint64_t{a.n_head_kv} * ceil_div(n_query, kAttendTile),
                 uint64_t{a.n_head_kv} * ceil_div(n_query, 8u) * attend_counts(static_cast<uint32_t>(chunks))});
            look_wide(a, n_context, shapes[d.op->state]);
        }
    }
    /// Attention of a committed step: queries and partial results.
    void look_wide(const AttnDims& a, uint32_t n_context, const KvShape& shape) {
        const uint32_t per_kv = a.n_head / a.n_head_kv;
        query_floats =
            std::max(query_floats, uint64_t{a.n_head_kv} * round_up(n_row_max * per_kv, args::kAttendRound) * a.d_head);
        if (!fast_attend(shuffles, a)) return;
        const uint64_t parts =
            uint64_t{a.n_head_kv} * attend_parts(attend, n_row_max * per_kv, a.n_head_kv, a.d_head,
                                                 kSegments.seen_max(n_context, shape.window, shape.sinks, n_row_max));
        part_floats = std::max(part_floats, parts * a.d_head);
        stat_floats = std::max(stat_floats, parts * 2);
    }
};

}  // namespace buffers_impl

Buffers::Cache Buffers::Cache::of(Type type, uint32_t d_head) {
    Cache c;
    const uint32_t blocks = d_head / 32;
    static_assert(kKvTypeCount == 5, "a new KV cache format needs a case here");
    if (type == Type::q8_0) {
        c.format = args::kKvQ8, c.code_bytes = d_head;
    } else if (type == Type::q4_0) {
        c.format = args::kKvQ40, c.code_bytes = d_head / 2;
    } else if (type == Type::q4_1) {
        c.format = args::kKvQ41, c.code_bytes = d_head / 2;
    } else {  // F16; the back end refuses F32
        c.format = args::kKvF16, c.code_bytes = 2 * d_head;
    }
    c.scale_bytes = c.format == args::kKvF16 ? 0 : c.format == args::kKvQ41 ? 4 * blocks : 4 * ceil_div(blocks, 2u);
    return c;
}

Status DraftHead::plan(const DeviceTraits& traits, const Slot& table, uint64_t n, Tiling* tiles, MemoryPlan* memory) {
    *tiles = tiling(table.type, n, table.width());
    if (const uint64_t limit = max_at_once(traits, *memory); tiles->bytes() > limit)
        return fail(Code::unsupported, "a draft-only head of ", n, " ids takes ", tiles->bytes(),
                    " bytes at once, but ", traits.name, limit == traits.max_storage_range ? " binds" : " allocates",
                    " at most ", limit, "; choose fewer ids (DraftOptions::n_vocab)");
    memory->add(Arena::weights, tiles->bytes(), "draft head");
    memory->add(Arena::weights, n * sizeof(uint32_t), "draft ids");
    return {};
}

/// What will be allocated, and where its regions go once there is memory.
struct Buffers::Planned {
    Planned(const VulkanModel& m, const ContextOptions& o)
        : model(m), options(o), traits(m.device->gpu->traits), memory(traits) {}
    const VulkanModel& model;
    const ContextOptions& options;
    const DeviceTraits& traits;
    MemoryPlan memory;
    std::vector<std::function<void(const Memory&)>> place;
    std::vector<MemoryItem> items;
    std::vector<KvShape> shapes;  ///< by SlotId
    Status status;                ///< the first error

    /// Plans a region; `region` is set once there is memory.
    void want(Arena arena, uint64_t bytes, Region* region, const std::string& name, int layer = -1) {
        const bool bound = arena != Arena::ring;  // what the host reads is copied, or small
        const uint64_t limit = bound ? max_at_once(traits, memory) : memory.max_region_bytes();
        if (bytes > limit && status.ok())
            status = fail(Code::bad_argument, "'", name, "' needs ", bytes, " bytes at once, but ", traits.name,
                          limit == traits.max_storage_range ? " binds" : " allocates", " at most ", limit,
                          "; lower n_context or n_ubatch");
        bytes = std::max<uint64_t>(bytes, 16);
        const MemoryPlan::Id id = memory.add(arena, bytes, name);
        place.push_back([region, id](const Memory& m) { *region = m[id]; });
        const MemoryPlace where =
            arena == Arena::ring || arena == Arena::staging ? MemoryPlace::host : MemoryPlace::device;
        for (MemoryItem& i : items)
            if (i.what == name && i.layer == layer && i.place == where) {
                i.bytes += bytes;
                return;
            }
        items.push_back({name, layer, bytes, where});
    }
};

Result<Buffers> Buffers::take(const VulkanModel& model, const ContextOptions& options) {
    const GpuRef& gpu = model.device->gpu;
    Buffers b;
    Planned planned(model, options);
    AUSPEX_TRY(b.lay_out(&planned));
    AUSPEX_TRY(Memory::take(gpu, planned.memory).get(b.memory));
    for (const auto& p : planned.place) p(b.memory);
    return b;
}

Result<Buffers> Buffers::outline(const VulkanModel& model, const ContextOptions& options) {
    Buffers b;
    Planned planned(model, options);
    AUSPEX_TRY(b.lay_out(&planned));
    const Memory none = Memory::outline(planned.memory);
    for (const auto& p : planned.place) p(none);
    return b;
}

Status Buffers::plan(const VulkanModel& model, const ContextOptions& options, std::vector<MemoryItem>* items) {
    Buffers b;
    Planned planned(model, options);
    AUSPEX_TRY(b.lay_out(&planned));
    // What alignment adds to the regions, so that the sum is what will be allocated.
    uint64_t device = planned.memory.device_bytes(),
             host = planned.memory.arena_bytes(Arena::ring) + planned.memory.arena_bytes(Arena::staging);
    for (const MemoryItem& i : planned.items) (i.place == MemoryPlace::device ? device : host) -= i.bytes;
    if (device != 0) planned.items.push_back({"alignment", -1, device, MemoryPlace::device});
    if (host != 0) planned.items.push_back({"alignment", -1, host, MemoryPlace::host});
    items->insert(items->end(), planned.items.begin(), planned.items.end());
    return {};
}

Status Buffers::lay_out(Planned* to) {
    using namespace buffers_impl;
    const VulkanModel& model = to->model;
    const ContextOptions& options = to->options;
    const Plan& plan = *model.plan;
    Buffers& b = *this;
    b.n_context = options.n_context;
    b.n_row_max = row_class(std::max(options.n_ubatch, kMaxTentative));
    Needs needs(plan, b.n_row_max);
    b.n_half = options.exact_prompts ? 2 : 1;
    needs.attend = b.attend = options.exact_prompts ? AttendKernel::rows : model.device->attend;
    needs.shuffles = model.device->shuffles;
    AUSPEX_TRY(kv_shapes(plan, options).get(to->shapes));
    auto look = [&](const Tape& tape) {
        needs.n_row_max = &tape == &plan.trunk ? b.n_row_max : std::min(b.n_row_max, row_class(kMaxMtpRows));
        for (const Node& d : model.nodes(tape)) needs.look(d, options.n_context, to->shapes);
        if (tape.hidden != kNoSlot) needs.touch(tape.hidden);
    };
    const bool mtp = options.mtp;
    look(plan.trunk);
    for (const Node& d : model.nodes(plan.trunk))
        if (d.head && d.norm != kNoSlot) b.head_input = d.x;
    needs.in_tape = &needs.in_mtp;
    for (const Tape& t : plan.mtp)
        if (mtp) look(t);

    plan_activations(&needs, to);
    plan_states(&needs, to);
    plan_scratch(needs, to);
    plan_host(to);
    return to->status;
}

/// Activations, those bound together in one region. Trunk and draft block never run in one recording, so what only the
/// block touches lies in the memory of what only the trunk touches, unless its rows are kept.
void Buffers::plan_activations(buffers_impl::Needs* all, Planned* to) {
    buffers_impl::Needs& needs = *all;
    const Plan& plan = *to->model.plan;
    const size_t n_slot = plan.slots.size();
    Buffers& b = *this;
    const uint64_t align = std::max<uint64_t>(to->traits.storage_align, 256);

    b.row.resize(n_slot);
    b.squares.resize(n_slot);
    b.group.resize(n_slot);
    b.at.resize(n_slot, 0);
    struct Room {
        SlotId first;
        uint64_t at, bytes;
    };
    std::vector<Room> rooms;
    for (SlotId id = 0; id < n_slot; ++id) {
        if (needs.root(id) != id) continue;
        bool in_trunk = false, in_mtp = false, passing = true;
        uint64_t bytes = 0;
        std::vector<std::pair<SlotId, uint64_t>> members;
        for (SlotId m = id; m < n_slot; ++m) {
            if (needs.root(m) != id || needs.n_row[m] == 0) continue;
            members.push_back({m, bytes});
            in_trunk = in_trunk || needs.in_trunk[m];
            in_mtp = in_mtp || needs.in_mtp[m];
            passing = passing && plan.slot(m).role == SlotRole::activation && m != plan.trunk.hidden &&
                      m != plan.trunk.logits;
            bytes += round_up(needs.n_row[m] * row_stride(plan, m) * sizeof(float), align);
        }
        if (members.empty()) continue;
        const auto room =
            std::find_if(rooms.begin(), rooms.end(), [&](const Room& r) { return r.bytes - r.at >= bytes; });
        if (passing && !in_trunk && room != rooms.end()) {
            to->place.push_back([&b, to_group = members[0].first, r = *room, bytes](const Memory&) {
                b.group[to_group] = b.group[r.first].part(r.at, bytes);
            });
            room->at += bytes;
        } else {
            to->want(Arena::scratch, bytes, &b.group[members[0].first], "activations");
            if (passing && !in_mtp) rooms.push_back({members[0].first, 0, bytes});
        }
        for (const auto& m : members)
            b.row[m.first].bytes = needs.n_row[m.first] * row_stride(plan, m.first) * sizeof(float);
        to->place.push_back([&b, members](const Memory&) {
            const Region whole = b.group[members[0].first];
            for (const auto& m : members) {
                b.group[m.first] = whole;
                b.at[m.first] = static_cast<uint32_t>(m.second / sizeof(float));
                b.row[m.first] = whole.part(m.second, b.row[m.first].bytes);
            }
        });
    }
    for (SlotId id = 0; id < n_slot; ++id)
        if (needs.squares[id])
            to->want(Arena::scratch,
                     needs.n_row[id] * squares_stride(to->traits, plan.slot(id).width()) * sizeof(float),
                     &b.squares[id], "activations");
}

/// Caches and recurrent states.
void Buffers::plan_states(buffers_impl::Needs* needs, Planned* to) {
    const Plan& plan = *to->model.plan;
    const size_t n_slot = plan.slots.size();
    Buffers& b = *this;
    b.kv.resize(n_slot);
    b.delta.resize(n_slot);
    b.conv.resize(n_slot);
    b.term.resize(n_slot);
    uint64_t& spare = needs->spare_bytes;
    for (const Tape* tape : plan.tapes(to->options.mtp)) {
        for (const Op& op : tape->ops) {
            if (op.kind == OpKind::delta) {
                const DeltaDims& d = op.delta;
                to->want(Arena::caches, uint64_t{d.n_head_v} * d.d_key * d.d_val * sizeof(float), &b.delta[op.state],
                         "DeltaNet state", static_cast<int>(op.layer));
                if (!fast_delta(to->model.device->shuffles, d))
                    spare = std::max(spare, uint64_t{d.n_head_v} * d.d_key * d.d_val * sizeof(float));
                to->want(Arena::caches, uint64_t{args::kConvRing} * d.conv_dim() * sizeof(float), &b.conv[op.state2],
                         "DeltaNet state", static_cast<int>(op.layer));
                to->want(Arena::caches,
                         uint64_t{2} * args::kMaxRows * d.n_head_v * (1 + d.d_key + d.d_val) * sizeof(float),
                         &b.term[op.state], "DeltaNet terms", static_cast<int>(op.layer));
            }
            if (op.kind == OpKind::kv_write) {
                const AttnDims& a = op.attn;
                const KvShape& shape = to->shapes[op.state];
                Kv& kv = b.kv[op.state];
                if ((shape.k == Type::f32 || shape.v == Type::f32) && to->status.ok())
                    to->status = fail(Code::unsupported,
                                      "the Vulkan back end keeps keys and values in F16, Q8_0, Q4_0 or Q4_1; '",
                                      plan.slot(op.state).name, "' was asked for in ", type_info(shape.k).name, " and ",
                                      type_info(shape.v).name, "; use the CPU");
                const uint32_t n_context = to->options.n_context, n_max = attend_any_keys(a.d_head);
                const uint64_t n_window = uint64_t{shape.window} + shape.sinks + 4 * 64;  // with what fills its blocks
                if (to->traits.short_loops && !fast_attend(to->model.device->shuffles, a) && n_context > n_max &&
                    (shape.window == 0 || n_window > n_max) && to->status.ok())
                    to->status = fail(Code::unsupported, "n_context is ", n_context, ", but on ", to->traits.name,
                                      ", which ends long loops, '", plan.slot(op.state).name, "' can hold at most ",
                                      n_max, " rows; lower n_context, or use the CPU");
                kv.n_head = a.n_head_kv;
                kv.shape = shape;
                kv.n_chunk = buffers_impl::chunks_max(to->options.n_context, shape);
                const uint64_t rows = a.n_head_kv * shape.n_row();
                kv.k = Cache::of(shape.k, a.d_head);
                kv.v = Cache::of(shape.v, a.d_head);
                to->want(Arena::caches, rows * (kv.k.code_bytes + kv.k.scale_bytes), &kv.k, "keys",
                         static_cast<int>(op.layer));
                to->want(Arena::caches, rows * (kv.v.code_bytes + kv.v.scale_bytes), &kv.v, "values",
                         static_cast<int>(op.layer));
            }
        }
    }
}

/// What a pass writes and reads again.
void Buffers::plan_scratch(const buffers_impl::Needs& needs, Planned* to) {
    const Plan& plan = *to->model.plan;
    Buffers& b = *this;
    b.n_sample_part = ceil_div(plan.n_vocab, kSampleSlice);
    // One for each slice of the vocabulary, or for each group of a head that leaves the largest logits.
    const uint64_t vocab = plan.n_vocab, n_best = uint64_t{kMaxTentative} * ceil_div(plan.n_vocab, kTileRows);
    to->want(Arena::scratch, needs.spare_bytes, &b.spare, "state from row to row");
    to->want(Arena::scratch, needs.part_floats * sizeof(float), &b.part, "attention partials");
    to->want(Arena::scratch, needs.stat_floats * sizeof(float), &b.stat, "attention sums");
    to->want(Arena::scratch, needs.n_count * sizeof(uint32_t), &b.count, "attention sums");
    to->want(Arena::scratch, uint64_t{b.n_row_max} * (needs.conv_dim + 2 * needs.n_head_v + 4) * sizeof(float),
             &b.mixed, "convolved rows");
    to->want(Arena::scratch, needs.query_floats * sizeof(float), &b.query, "queries");
    to->want(Arena::scratch, b.n_row_max * b.n_half * gemm_pack_bytes(needs.d_pack), &b.halves, "packed rows");
    to->want(Arena::scratch, b.n_row_max * b.n_half * gemm_pack_bytes(needs.d_swiglu), &b.swiglu_halves,
             "packed activations");
    to->want(Arena::scratch, uint64_t{b.n_row_max} * sizeof(float), &b.scale, "scales of packed rows");
    if (const buffers_impl::MoeNeeds& m = needs.moe; m.n_used != 0) {
        const uint64_t few = kMaxTentative, many = b.n_row_max, places = many * m.n_used;
        to->want(Arena::scratch, many * m.n_out * sizeof(float), &b.moe.logits, "experts");
        to->want(Arena::scratch, many * (m.n_used + 1) * 8, &b.moe.choice, "experts");
        to->want(Arena::scratch, few * m.d_slots * sizeof(float), &b.moe.hidden, "experts");
        to->want(Arena::scratch, few * m.d_shared * sizeof(float), &b.moe.shared, "experts");
        to->want(Arena::scratch, many * m.d_shared * 2 * b.n_half, &b.moe.shared_halves, "experts");
        to->want(Arena::scratch, few * m.d_model * sizeof(float), &b.moe.sum, "experts");
        to->want(Arena::scratch, few * squares_stride(to->traits, m.d_model) * sizeof(float), &b.moe.squares,
                 "experts");
        to->want(Arena::scratch, (args::kListEntry + list_entries(places, m.n_expert) + places) * 4, &b.moe.list,
                 "experts");
        to->want(Arena::scratch, places * m.d_halves * 2 * b.n_half, &b.moe.halves, "experts");
        to->want(Arena::scratch, (places + many) * m.d_model * sizeof(float), &b.moe.parts, "experts");
    }
    to->want(Arena::scratch, kMaxTentative * needs.d_gather * sizeof(float), &b.gathered, "rows for the head");
    const uint64_t d_squares = squares_stride(to->traits, needs.d_gather),
                   n_head_row = b.head_input != kNoSlot ? kMaxTentative : 0;
    for (Region* r : {&b.gathered_squares, &b.head_squares})
        to->want(Arena::scratch, n_head_row * d_squares * sizeof(float), r, "rows for the head");
    to->want(Arena::scratch, n_head_row * needs.d_gather * sizeof(float), &b.head_rows, "rows for the head");
    to->want(Arena::scratch, n_best * 8, &b.sample_part, "largest logits");
    to->want(Arena::scratch, n_best * 8, &b.sample_best, "best tokens");
    to->want(Arena::scratch, uint64_t{kMaxTentative} * args::kSampleRowWords * 4, &b.sample_hist, "histograms");
    to->want(Arena::scratch, uint64_t{kMaxTentative} * vocab * 8, &b.sample_list, "candidates");
    b.min_probability = to->options.mtp ? to->options.min_probability : 0;
    if (b.min_probability > 0)
        to->want(Arena::scratch, kMaxTentative * ceil_div<uint64_t>(vocab, args::kShareSlice) * sizeof(float), &b.share,
                 "drafts' probabilities");
    to->want(Arena::scratch, (args::kAllowedWord + ceil_div<uint64_t>(vocab, 32)) * 4, &b.step, "step buffer");
}

/// Requests, hidden rows for drafts, and what the host reads.
void Buffers::plan_host(Planned* to) {
    const Plan& plan = *to->model.plan;
    const bool mtp = to->options.mtp;
    const uint64_t vocab = plan.n_vocab;
    Buffers& b = *this;
    for (Region& r : b.request)
        to->want(Arena::staging, (uint64_t{args::kRequestWords} + std::max<uint64_t>(b.n_row_max, 4096)) * 4, &r,
                 "request");
    to->want(Arena::staging, ceil_div<uint64_t>(vocab, 32) * 4, &b.allowed, "allowed tokens");
    static_assert(kMaxPendingHidden == args::kPendingRows, "backend.h and the shaders agree");
    to->want(Arena::staging, mtp ? uint64_t{kMaxTentative} * plan.d_model * sizeof(float) : 0, &b.given,
             "hidden rows of drafts");
    to->want(Arena::caches, mtp ? uint64_t{kMaxPendingHidden} * plan.d_model * sizeof(float) : 0, &b.pending_hidden,
             "hidden rows of drafts");
    // Hidden rows that are the residual stream itself do not outlive the next piece of a long step.
    const bool raw = std::any_of(plan.trunk.ops.begin(), plan.trunk.ops.end(),
                                 [&](const Op& op) { return op.kind == OpKind::embed && op.out == plan.trunk.hidden; });
    if (raw)
        to->want(Arena::scratch, uint64_t{b.n_row_max} * plan.d_model * sizeof(float), &b.raw_hidden, "hidden rows");
    if (mtp && plan.mtp.size() > 1)
        to->want(Arena::scratch, uint64_t{kMaxTentative} * plan.d_model * sizeof(float), &b.guess_hidden,
                 "hidden rows of guesses");
    to->want(Arena::ring, uint64_t{kRingLength} * sizeof(args::RingEntry), &b.ring, "token ring");
    to->want(Arena::ring, uint64_t{kMaxTentative} * vocab * sizeof(float), &b.logits_host, "logits for the host");
    for (Region& r : b.staging)
        if (!to->traits.reads_device()) to->want(Arena::ring, kStagingBytes, &r, "staging");
    if (!to->traits.reads_device())
        to->want(Arena::ring, to->options.saved_state_bytes, &b.saved_state, "a checkpoint on its way");
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

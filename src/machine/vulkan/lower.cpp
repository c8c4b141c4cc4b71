#include "lower.h"
#ifndef AUSPEX_NO_VULKAN
#include "../../../shaders/moe_args.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace lower_impl {

/// Longest head, and most convolution taps, that the general kernels hold in shared memory.
constexpr uint32_t kMaxHead = 256, kMaxTaps = 8;

bool reads(const Op& op, SlotId id) {
    for (SlotId in : op.in)
        if (in == id) return true;
    return (op.kind == OpKind::matmul && op.accumulate && op.out == id);
}

bool writes(const Op& op, SlotId id) { return op.kind != OpKind::kv_write && op.out == id; }

/// True if accept() holds for each operation after i that reads `id` before it is overwritten. `last`: the last one
/// accepted, or i.
template <class F>
bool readers(const std::vector<Op>& ops, size_t i, size_t n, SlotId id, size_t* last, F accept) {
    *last = i;
    for (size_t j = i + 1; j < n; ++j) {
        if (reads(ops[j], id)) {
            if (!accept(ops[j])) return false;
            *last = j;
        }
        if (writes(ops[j], id) && !(ops[j].kind == OpKind::rms_norm && ops[j].out_offset != 0)) break;
    }
    return true;
}

bool written_between(const std::vector<Op>& ops, size_t from, size_t to, SlotId id) {
    for (size_t j = from + 1; j < to; ++j)
        if (writes(ops[j], id)) return true;
    return false;
}

/// True if operations i, i + 1, i + 2 are gate, up and their swiglu, and no other operation reads gate and up.
bool is_pair(const Plan& plan, const std::vector<Op>& ops, size_t i, size_t n) {
    if (i + 2 >= n) return false;
    const Op &g = ops[i], &u = ops[i + 1], &s = ops[i + 2];
    if (g.kind != OpKind::matmul || u.kind != OpKind::matmul || s.kind != OpKind::swiglu) return false;
    if (g.accumulate || u.accumulate || g.head || u.head || g.in[0] != u.in[0] || s.in[0] != g.out ||
        s.in[1] != u.out || g.out == u.out)
        return false;
    if (g.in[0] == s.out) return false;
    const Slot &a = plan.slot(g.w[0]), &b = plan.slot(u.w[0]);
    if (a.type != b.type || a.n_dim != 2 || b.n_dim != 2 || a.shape[0] != b.shape[0] || a.shape[1] != b.shape[1] ||
        a.shape[0] % 8 != 0)
        return false;
    size_t last = 0;
    auto nobody = [](const Op&) { return false; };
    const bool gate_free = s.out == g.out || readers(ops, i + 2, n, g.out, &last, nobody);
    return gate_free && (s.out == u.out || readers(ops, i + 2, n, u.out, &last, nobody));
}

Status check_kernel(const Plan& plan, const Op& op) {
    auto no = [&](const std::string& what) {
        return fail(Code::unsupported, "the Vulkan machine cannot run ", op_name(op.kind), " of layer ", op.layer, ": ",
                    what, "; use the CPU");
    };
    switch (op.kind) {
        case OpKind::delta: {
            const DeltaDims& d = op.delta;
            if (d.d_key == 0 || d.d_key > kMaxHead || d.d_val == 0 || d.d_val > kMaxHead || d.n_conv == 0 ||
                d.n_conv > kMaxTaps)
                return no(say("heads of ", d.d_key, " and ", d.d_val, " with ", d.n_conv, " taps, expected at most ",
                              kMaxHead, " and ", kMaxTaps));
            return {};
        }
        case OpKind::kv_write:
        case OpKind::attend: {
            const AttnDims& a = op.attn;
            if (a.d_head == 0 || a.d_head % 4 != 0 || a.d_head > kMaxHead)
                return no(say("heads of ", a.d_head, ", expected a multiple of 4 up to ", kMaxHead));
            if (a.n_head_kv == 0 || a.n_head % a.n_head_kv != 0)
                return no(say(a.n_head, " heads on ", a.n_head_kv, " kv heads"));
            if (a.n_rot % 2 != 0 || a.n_rot > a.d_head)
                return no(say(a.n_rot, " rotated values, expected an even number up to ", a.d_head));
            return {};
        }
        case OpKind::moe: {
            const MoeDims& m = op.moe;
            const uint64_t d = plan.slot(op.in[0]).width();
            if (m.n_expert > args::kMaxExpert)
                return no(say(m.n_expert, " experts, expected at most ", args::kMaxExpert));
            if (d % 16 != 0 || m.d_ff % 8 != 0 || m.d_ff_shared % 8 != 0)
                return no(say("rows of ", d, " values and experts of ", m.d_ff, " and ", m.d_ff_shared,
                              ", expected multiples of 16 and 8"));
            for (uint32_t i : {1u, 4u}) {
                if (op.w[i] == kNoSlot || op.w[i + 1] == kNoSlot ||
                    plan.slot(op.w[i]).type == plan.slot(op.w[i + 1]).type)
                    continue;
                return no(say("'", plan.slot(op.w[i]).name, "' is ", type_info(plan.slot(op.w[i]).type).name, " and '",
                              plan.slot(op.w[i + 1]).name, "' ", type_info(plan.slot(op.w[i + 1]).type).name,
                              ", expected one type for gate and up"));
            }
            return {};
        }
        case OpKind::matmul:
        case OpKind::embed:
            if (plan.slot(op.w[0]).n_dim != 2) return no("the weight is no matrix");
            if (plan.slot(op.w[0]).width() % 4 != 0)
                return no(say("rows of ", plan.slot(op.w[0]).width(), " values, expected a multiple of 4"));
            return {};
        default: return {};
    }
}

struct Lowering {
    const Plan& plan;
    const std::vector<Op>& ops;
    size_t n;
    const std::vector<Pair>& pairs;
    std::vector<Node> nodes;
    std::vector<SlotId> fused_from, fused_weight;  ///< by SlotId of a norm's output: its input and weight, if fused
    std::vector<float> fused_eps;

    /// The last node that writes `id`, if it can also write sums of squares; else null.
    Node* producer(SlotId id) {
        for (size_t i = nodes.size(); i-- > 0;) {
            Node& d = nodes[i];
            if (d.y != id) continue;
            if (d.kind == Node::Kind::embed) return plan.slot(id).width() % 16 == 0 ? &d : nullptr;
            if (d.kind == Node::Kind::experts) return &d;
            if (d.kind == Node::Kind::product && d.epilogue != Node::Epilogue::swiglu && !d.head)
                return plan.slot(id).width() % 16 == 0 ? &d : nullptr;
            return nullptr;
        }
        return nullptr;
    }

    /// Fuses a norm into the products that read it. False: the norm needs a kernel too.
    bool fuse(size_t i) {
        const Op& op = ops[i];
        if (op.out_offset != 0 || plan.slot(op.out).width() != plan.slot(op.in[0]).width()) return false;
        Node* from = producer(op.in[0]);
        if (!from) return false;
        const bool kept = plan.slot(op.out).role == SlotRole::kept;
        size_t last = 0;
        const bool only_products = readers(ops, i, n, op.out, &last, [&](const Op& r) {
            return r.in[0] == op.out && (r.kind == OpKind::moe || (r.kind == OpKind::matmul && r.out != op.in[0]));
        });
        if (!only_products || written_between(ops, i, last, op.in[0])) return false;
        from->squares = true;
        if (from->kind == Node::Kind::product) from->epilogue = Node::Epilogue::add;
        fused_from[op.out] = op.in[0];
        fused_weight[op.out] = op.w[0];
        fused_eps[op.out] = op.eps;
        return !kept;  // read_row() reads kept rows, so the norm is computed as well
    }

    /// True if only the norm after operation i reads what that leaves.
    bool is_normed(size_t i) const {
        size_t last = 0;
        return i + 1 < n && ops[i + 1].kind == OpKind::rms_norm && ops[i + 1].in[0] == ops[i].out &&
               plan.slot(ops[i + 1].out).role != SlotRole::kept &&
               readers(ops, i + 1, n, ops[i].out, &last, [](const Op&) { return false; });
    }

    /// Applies the norm that was fused into d.x, if any, to the input of d.
    void fed(Node& d) const {
        if (fused_from[d.x] == kNoSlot) return;
        d.norm = fused_weight[d.x];
        d.eps = fused_eps[d.x];
        d.x = fused_from[d.x];
    }

    void product(const Op& op, SlotId y) {
        Node d;
        d.kind = Node::Kind::product;
        d.op = &op;
        d.layer = op.layer;
        d.x = op.in[0];
        d.y = y;
        d.weight = op.w[0];
        d.head = op.head;
        fed(d);
        if (op.accumulate) {
            d.epilogue = Node::Epilogue::add;
            d.onto_self = true;
        }
        nodes.push_back(d);
    }

    /// A product, or with the two operations after it the products of gate and up and their swiglu. Returns the number
    /// of operations.
    size_t matmul(size_t i) {
        const auto holds = [w = ops[i].w[0]](const Pair& p) { return p.gate == w; };
        if (std::none_of(pairs.begin(), pairs.end(), holds) || !is_pair(plan, ops, i, n)) {
            product(ops[i], ops[i].out);
            return 1;
        }
        product(ops[i], ops[i + 2].out);
        nodes.back().epilogue = Node::Epilogue::swiglu;
        nodes.back().op = &ops[i + 2];
        fused_from[ops[i + 1].out] = fused_from[ops[i + 2].out] = kNoSlot;
        return 3;
    }

    /// True if a later attention reads the cache that operation i writes: it does the write.
    bool attend_writes(size_t i) const {
        for (size_t j = i + 1; j < n; ++j)
            if (ops[j].kind == OpKind::attend && ops[j].state == ops[i].state) return true;
        return false;
    }

    /// Attention and the write of its cache before it.
    Status attend(size_t i, Node d) {
        const Op& op = ops[i];
        size_t j = i;
        while (j-- > 0 && !(ops[j].kind == OpKind::kv_write && ops[j].state == op.state)) {
        }
        if (j >= i || written_between(ops, j, i, ops[j].in[0]) || written_between(ops, j, i, ops[j].in[1]))
            return fail(Code::unsupported, "attend of layer ", op.layer,
                        " does not follow the kv_write of its cache; the Vulkan machine runs them together");
        d.kind = Node::Kind::attend;
        d.write = &ops[j];
        d.x2 = op.in[1];
        nodes.push_back(d);
        return {};
    }

    Status run();
};

Status Lowering::run() {
    fused_from.assign(plan.slots.size(), kNoSlot);
    fused_weight = fused_from;
    fused_eps.assign(plan.slots.size(), 0);
    for (size_t i = 0; i < n; ++i) {
        const Op& op = ops[i];
        AUSPEX_TRY(check_kernel(plan, op));
        // This operation overwrites the slot, which therefore no longer is the output of a fused norm.
        if (op.kind != OpKind::kv_write && op.kind != OpKind::rms_norm) fused_from[op.out] = kNoSlot;
        Node d;
        d.op = &op;
        d.layer = op.layer;
        d.y = op.out;
        d.x = op.in[0];
        switch (op.kind) {
            case OpKind::embed:
                d.kind = Node::Kind::embed;
                d.x = kNoSlot;
                nodes.push_back(d);
                break;
            case OpKind::hidden:
                d.kind = Node::Kind::given;
                d.x = kNoSlot;
                if (is_normed(i)) {
                    const Op& norm = ops[++i];
                    d.op = &norm;
                    d.y = norm.out;
                    d.norm = norm.w[0];
                    d.eps = norm.eps;
                    fused_from[d.y] = kNoSlot;
                }
                nodes.push_back(d);
                break;
            case OpKind::rms_norm:
                fused_from[op.out] = kNoSlot;
                if (fuse(i)) break;
                d.kind = Node::Kind::norm;
                d.norm = op.w[0];
                d.eps = op.eps;
                nodes.push_back(d);
                break;
            case OpKind::matmul: i += matmul(i) - 1; break;
            case OpKind::swiglu:
                d.kind = Node::Kind::swiglu;
                d.x2 = op.in[1];
                nodes.push_back(d);
                break;
            case OpKind::delta:
                d.kind = Node::Kind::delta;
                nodes.push_back(d);
                break;
            case OpKind::kv_write:
                d.kind = Node::Kind::append;
                d.y = kNoSlot;
                if (!attend_writes(i)) nodes.push_back(d);
                break;
            case OpKind::attend: AUSPEX_TRY(attend(i, d)); break;
            case OpKind::moe:
                d.kind = Node::Kind::experts;
                fed(d);
                nodes.push_back(d);
                break;
        }
    }
    return {};
}

}  // namespace lower_impl

std::vector<Pair> find_pairs(const Plan& plan) {
    std::vector<Pair> pairs;
    std::vector<uint32_t> n_use(plan.slots.size(), 0), n_paired(plan.slots.size(), 0);
    auto pair = [&](SlotId gate, SlotId up) {
        ++n_paired[gate];
        ++n_paired[up];
        const bool known =
            std::any_of(pairs.begin(), pairs.end(), [&](const Pair& q) { return q.gate == gate && q.up == up; });
        if (!known) pairs.push_back({gate, up});
    };
    for (const Tape* tape : plan.tapes()) {
        for (const Op& op : tape->ops)
            for (SlotId w : op.w)
                if (w != kNoSlot) ++n_use[w];
        for (size_t i = 0; i < tape->ops.size(); ++i) {
            const Op& op = tape->ops[i];
            if (op.kind == OpKind::moe) {
                if (!op.moe.gate_up) pair(op.w[1], op.w[2]);
                if (op.moe.d_ff_shared != 0) pair(op.w[4], op.w[5]);
            }
            if (!lower_impl::is_pair(plan, tape->ops, i, tape->ops.size())) continue;
            pair(op.w[0], tape->ops[i + 1].w[0]);
        }
    }
    // A matrix that another operation also uses alone must not be interleaved.
    pairs.erase(std::remove_if(pairs.begin(), pairs.end(),
                               [&](const Pair& p) {
                                   return n_use[p.gate] != n_paired[p.gate] || n_use[p.up] != n_paired[p.up] ||
                                          n_paired[p.gate] != n_paired[p.up];
                               }),
                pairs.end());
    return pairs;
}

Result<std::vector<Node>> lower(const Plan& plan, const Tape& tape, const std::vector<Pair>& pairs, bool fill_only) {
    lower_impl::Lowering l{plan, tape.ops, fill_only ? tape.n_fill : tape.ops.size(), pairs, {}, {}, {}, {}};
    AUSPEX_TRY(l.run());
    return std::move(l.nodes);
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

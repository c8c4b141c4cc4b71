#include "plan.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace plan_impl {
namespace {

struct Checker {
    const Plan& plan;
    const char* tape = "";
    size_t i_op = 0;

    Status bad(const Op& op, std::string_view what) const {
        return fail(Code::bad_file, "plan: ", tape, " op ", i_op, " (", op_name(op.kind), ", layer ", op.layer,
                    "): ", what);
    }
    /// The slot exists, has one of two roles and, if n is not 0, rows of n values.
    Status want(const Op& op, SlotId id, const char* what, SlotRole role, SlotRole role2, uint64_t n) const {
        if (id >= plan.slots.size()) return bad(op, say(what, " is missing"));
        const Slot& s = plan.slot(id);
        if (s.role != role && s.role != role2) return bad(op, say(what, " '", s.name, "' has the wrong role"));
        if (n != 0 && s.width() != n)
            return bad(op, say(what, " '", s.name, "' has rows of ", s.width(), " values, expected ", n));
        return {};
    }
    Status act(const Op& op, SlotId id, const char* what, uint64_t n = 0) const {
        return want(op, id, what, SlotRole::activation, SlotRole::kept, n);
    }
    Status weight(const Op& op, SlotId id, const char* what, uint64_t n = 0) const {
        return want(op, id, what, SlotRole::weight, SlotRole::weight, n);
    }
    Status matrix(const Op& op, SlotId id, const char* what, uint64_t d_out, uint64_t d_in) const {
        Status s = weight(op, id, what, d_in);
        if (!s.ok()) return s;
        const Slot& w = plan.slot(id);
        if (w.n_dim < 2 || (d_out != 0 && w.shape[w.n_dim - 2] != d_out))
            return bad(op, say(what, " '", w.name, "' has ", w.n_dim < 2 ? 1 : w.shape[w.n_dim - 2],
                               " output rows, expected ", d_out));
        return {};
    }
    uint64_t width(SlotId id) const { return id < plan.slots.size() ? plan.slot(id).width() : 0; }

    Status factors(const Op& op) const {
        if (op.w[1] == kNoSlot) return {};
        AUSPEX_TRY(weight(op, op.w[1], "rotation factors"));
        if (width(op.w[1]) < op.attn.n_rot / 2)
            return bad(op, say(width(op.w[1]), " rotation factors for ", op.attn.n_rot / 2, " pairs"));
        return {};
    }
    /// The weight is a stack of n matrices.
    Status stack(const Op& op, SlotId id, const char* what, uint64_t n, uint64_t d_out, uint64_t d_in) const {
        AUSPEX_TRY(matrix(op, id, what, d_out, d_in));
        const Slot& w = plan.slot(id);
        if (w.n_dim != 3 || w.shape[0] != n) return bad(op, say(what, " '", w.name, "' is not a stack of ", n));
        return {};
    }
    Status moe(const Op& op) const;
    Status check(const Op& op) const;
};

Status Checker::moe(const Op& op) const {
    const MoeDims& m = op.moe;
    AUSPEX_TRY(act(op, op.in[0], "input"));
    const uint64_t d = width(op.in[0]);
    if (m.n_used == 0 || m.n_used > m.n_expert || m.n_used > kMaxUsedExpert)
        return bad(
            op, say(m.n_used, " of ", m.n_expert, " experts cannot be used, expected 1..", kMaxUsedExpert, " of them"));
    AUSPEX_TRY(act(op, op.out, "output", d));
    AUSPEX_TRY(matrix(op, op.w[0], "router", m.n_expert, d));
    AUSPEX_TRY(stack(op, op.w[1], "gate experts", m.n_expert, uint64_t{m.gate_up ? 2u : 1u} * m.d_ff, d));
    if (!m.gate_up) AUSPEX_TRY(stack(op, op.w[2], "up experts", m.n_expert, m.d_ff, d));
    AUSPEX_TRY(stack(op, op.w[3], "down experts", m.n_expert, d, m.d_ff));
    if (m.d_ff_shared != 0) {
        AUSPEX_TRY(matrix(op, op.w[4], "shared gate", m.d_ff_shared, d));
        AUSPEX_TRY(matrix(op, op.w[5], "shared up", m.d_ff_shared, d));
        AUSPEX_TRY(matrix(op, op.w[6], "shared down", d, m.d_ff_shared));
        if (op.w[7] != kNoSlot) AUSPEX_TRY(weight(op, op.w[7], "shared router", d));
    }
    if (op.w[8] != kNoSlot) AUSPEX_TRY(weight(op, op.w[8], "selection bias", m.n_expert));
    return {};
}

Status Checker::check(const Op& op) const {
    AUSPEX_TRY(op.kind == OpKind::kv_write ? Status() : act(op, op.out, "output"));
    switch (op.kind) {
        case OpKind::embed: return matrix(op, op.w[0], "table", plan.n_vocab, width(op.out));
        case OpKind::hidden: return act(op, op.out, "output", plan.d_model);
        case OpKind::rms_norm:
            AUSPEX_TRY(act(op, op.in[0], "input"));
            AUSPEX_TRY(weight(op, op.w[0], "norm", width(op.in[0])));
            if (op.out_offset + width(op.in[0]) > width(op.out)) return bad(op, "the output row is too short");
            return {};
        case OpKind::matmul:
            AUSPEX_TRY(act(op, op.in[0], "input"));
            return matrix(op, op.w[0], "matrix", width(op.out), width(op.in[0]));
        case OpKind::swiglu:
            AUSPEX_TRY(act(op, op.in[0], "gate", width(op.out)));
            return act(op, op.in[1], "up", width(op.out));
        case OpKind::delta: {
            const DeltaDims& d = op.delta;
            if (d.n_head_k == 0 || d.n_head_v % d.n_head_k != 0)
                return bad(op, "value heads must be a multiple of key heads");
            if (d.d_key == 0 || d.d_key > 256 || d.d_val == 0 || d.d_val > 256 || d.n_conv < 2 || d.n_conv > 8)
                return bad(
                    op, say("head dims ", d.d_key, " and ", d.d_val, " must be 1..256, conv taps ", d.n_conv, " 2..8"));
            AUSPEX_TRY(act(op, op.in[0], "u", d.conv_dim()));
            AUSPEX_TRY(act(op, op.in[1], "z", d.value_dim()));
            AUSPEX_TRY(act(op, op.in[2], "beta", d.n_head_v));
            AUSPEX_TRY(act(op, op.in[3], "alpha", d.n_head_v));
            AUSPEX_TRY(act(op, op.out, "output", d.value_dim()));
            AUSPEX_TRY(matrix(op, op.w[0], "conv1d", d.conv_dim(), d.n_conv));
            AUSPEX_TRY(weight(op, op.w[1], "dt bias", d.n_head_v));
            AUSPEX_TRY(weight(op, op.w[2], "a", d.n_head_v));
            AUSPEX_TRY(weight(op, op.w[3], "norm", d.d_val));
            AUSPEX_TRY(want(op, op.state, "state", SlotRole::delta, SlotRole::delta, d.d_val));
            return want(op, op.state2, "conv", SlotRole::conv, SlotRole::conv, d.conv_dim());
        }
        case OpKind::kv_write: {
            const AttnDims& a = op.attn;
            AUSPEX_TRY(act(op, op.in[0], "k", a.kv_dim()));
            AUSPEX_TRY(act(op, op.in[1], "v", a.kv_dim()));
            if (op.w[0] != kNoSlot) AUSPEX_TRY(weight(op, op.w[0], "k norm", a.d_head));
            AUSPEX_TRY(factors(op));
            return want(op, op.state, "kv", SlotRole::kv, SlotRole::kv, a.kv_dim());
        }
        case OpKind::attend: {
            const AttnDims& a = op.attn;
            if (a.n_head_kv == 0 || a.n_head % a.n_head_kv != 0)
                return bad(op, "query heads must be a multiple of KV heads");
            if (a.n_rot > a.d_head || a.n_rot % 2 != 0) return bad(op, "rotated dims must be even and fit the head");
            if (a.d_head > 512 || a.d_head % 8 != 0)
                return bad(op, say("head dim ", a.d_head, " must be a multiple of 8, at most 512"));
            const uint64_t per_head = a.gate == AttnGate::interleaved ? 2 * uint64_t{a.d_head} : a.d_head;
            AUSPEX_TRY(act(op, op.in[0], "q", per_head * a.n_head));
            if (a.gate == AttnGate::per_head) AUSPEX_TRY(act(op, op.in[1], "gate", a.n_head));
            AUSPEX_TRY(act(op, op.out, "output", uint64_t{a.n_head} * a.d_head));
            if (op.w[0] != kNoSlot) AUSPEX_TRY(weight(op, op.w[0], "q norm", a.d_head));
            AUSPEX_TRY(factors(op));
            return want(op, op.state, "kv", SlotRole::kv, SlotRole::kv, a.kv_dim());
        }
        case OpKind::moe: return moe(op);
    }
    return bad(op, "unknown operation");
}

const char* name_of(const Plan& plan, SlotId id) { return id < plan.slots.size() ? plan.slot(id).name.c_str() : "-"; }

std::string shape_text(const Slot& s) {
    std::string t = "[";
    for (uint32_t i = 0; i < s.n_dim; ++i) t.append(say(i ? ", " : "", s.shape[i]));
    return t + "]";
}

}  // namespace
}  // namespace plan_impl

const char* op_name(OpKind kind) {
    switch (kind) {
        case OpKind::embed: return "embed";
        case OpKind::rms_norm: return "rms_norm";
        case OpKind::matmul: return "matmul";
        case OpKind::swiglu: return "swiglu";
        case OpKind::delta: return "delta";
        case OpKind::kv_write: return "kv_write";
        case OpKind::attend: return "attend";
        case OpKind::moe: return "moe";
        case OpKind::hidden: return "hidden";
    }
    return "?";
}

std::vector<const Tape*> Plan::tapes(bool with_mtp) const {
    std::vector<const Tape*> all{&trunk};
    for (const Tape& t : mtp)
        if (with_mtp) all.push_back(&t);
    return all;
}

std::vector<bool> Plan::weights_of_trunk() const {
    std::vector<bool> used(slots.size(), false);
    for (const Op& op : trunk.ops)
        for (const SlotId id : op.w)
            if (id != kNoSlot) used[id] = true;
    return used;
}

Status check_plan(const Plan& plan) {
    plan_impl::Checker c{plan};
    auto walk = [&](const Tape& tape, const char* name) -> Status {
        c.tape = name;
        for (c.i_op = 0; c.i_op < tape.ops.size(); ++c.i_op) AUSPEX_TRY(c.check(tape.ops[c.i_op]));
        if (tape.hidden >= plan.slots.size() || plan.slot(tape.hidden).role != SlotRole::kept ||
            plan.slot(tape.hidden).width() != plan.d_model)
            return fail(Code::bad_file, "plan: ", name, " leaves no hidden rows of ", plan.d_model, " values");
        if (tape.logits >= plan.slots.size() || plan.slot(tape.logits).role != SlotRole::kept ||
            plan.slot(tape.logits).width() != plan.n_vocab)
            return fail(Code::bad_file, "plan: ", name, " leaves no logits of ", plan.n_vocab, " values");
        return {};
    };
    AUSPEX_TRY(walk(plan.trunk, "trunk"));
    for (const Tape& t : plan.mtp) AUSPEX_TRY(walk(t, "mtp"));
    return {};
}

std::string print_tape(const Plan& plan, const Tape& tape) {
    using namespace plan_impl;
    std::string text;
    for (const Op& op : tape.ops) {
        std::string line =
            say("layer ", op.layer, "  ", op_name(op.kind), "  ",
                name_of(plan, op.kind == OpKind::kv_write ? op.state : op.out),
                op.out_offset ? say("[", op.out_offset, "..]") : std::string(), op.accumulate ? " += " : " <- ");
        bool first = true;
        for (SlotId id : op.in)
            if (id != kNoSlot) {
                line.append(say(first ? "" : ", ", name_of(plan, id)));
                first = false;
            }
        for (SlotId id : op.w)
            if (id != kNoSlot)
                line.append(say("  ", plan.slot(id).name, " ", type_info(plan.slot(id).type).name, " ",
                                shape_text(plan.slot(id))));
        if (op.kind == OpKind::attend)
            line.append(say("  heads ", op.attn.n_head, "/", op.attn.n_head_kv, " x ", op.attn.d_head, " rotated ",
                            op.attn.n_rot, op.attn.window ? say(" window ", op.attn.window) : std::string()));
        if (op.kind == OpKind::delta)
            line.append(say("  heads ", op.delta.n_head_k, "/", op.delta.n_head_v, " x ", op.delta.d_key));
        if (op.kind == OpKind::moe)
            line.append(say("  experts ", op.moe.n_used, " of ", op.moe.n_expert,
                            op.moe.sigmoid ? " by sigmoid" : " by softmax"));
        text += line + "\n";
    }
    return text;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

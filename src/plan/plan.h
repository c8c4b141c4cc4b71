// plan/plan: a model as ordered lists of typed operations over named slots.
//
// Owns    Slot, Op, Tape, Plan; check_plan() and print_tape(). A plan has shapes but no row counts, no positions
//         and no addresses.
// Thread  a finished Plan is immutable.
// Tests   tests/test_plan.cpp
#pragma once
#include "../base/number.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

using SlotId = uint32_t;
constexpr SlotId kNoSlot = ~SlotId{0};

enum class SlotRole : uint8_t {
    weight,      ///< constant; filled from a tensor of the file
    activation,  ///< f32 [n_row, width()]; valid within a step
    kept,        ///< an activation whose rows stay readable until the next step
    kv,          ///< keys and values of one attention layer, by absolute position
    conv,        ///< inputs of one causal convolution, by absolute position
    delta,       ///< Gated DeltaNet state S [n_head_v, d_key, d_val] f32 and its tentative records
};

/// Rows [first, first + n) of a matrix in the file.
struct RowRange {
    uint64_t first = 0, n = 0;
};

struct Slot {
    std::string name;  ///< "layer.7.delta.state"; of a weight the tensor's name
    /// For a weight that is some rows of a larger tensor: the tensor's name, and the rows in this order. Else empty.
    std::string source;
    std::vector<RowRange> rows;
    SlotRole role = SlotRole::activation;
    Type type = Type::f32;          ///< weights: the file's type
    uint64_t shape[3] = {0, 0, 0};  ///< slowest first; weights [d_out, d_in] or [n, d_out, d_in]; vectors [d]
    uint32_t n_dim = 0;
    /// What multiplies every weight of a matrix: one number, or one for each matrix of a stack; empty: 1. With NVFP4
    /// only.
    std::vector<float> scale;
    bool on_host = false;  ///< weights: stay in system memory, where the device reads them
    uint64_t width() const { return shape[n_dim - 1]; }
    uint64_t n_value() const {
        uint64_t n = 1;
        for (uint32_t i = 0; i < n_dim; ++i) n *= shape[i];
        return n;
    }
};

/// Largest number of experts that one row uses.
constexpr uint32_t kMaxUsedExpert = 64;

/// Every operation maps rows [n_row, width] f32 of one step unless its line says more.
enum class OpKind : uint8_t {
    embed,     ///< out = w[token of the row]
    rms_norm,  ///< out[out_offset..] = rms(in) * w, over `w`'s width
    matmul,    ///< out = in w'   (accumulate: out += in w'); rows below Step::first_logit skipped when `head`
    swiglu,    ///< out = min(silu(in), limit) * clamp(in2, -limit, limit); limit 0: none
    delta,     ///< Gated DeltaNet: convolution, gates, recurrence, gated norm; in: u, z, beta, alpha
    kv_write,  ///< k-norm, rotation, append keys and values; in: k, v
    attend,    ///< q-norm, rotation, softmax attention over the visible rows, output gate; in: q, gate or none
    moe,       ///< out += weighted sum of the selected experts + shared expert; in: the normed row
    hidden,    ///< out = the hidden rows given with the step (input of an MTP block)
};

enum class AttnGate : uint8_t { none, interleaved, per_head };

struct AttnDims {
    uint32_t n_head = 0, n_head_kv = 0, d_head = 0;
    uint32_t n_rot = 0;  ///< rotated dimensions, in pairs (i, i + n_rot/2)
    float rope_base = 0;
    float scale = 0;                 ///< factor of the scores
    AttnGate gate = AttnGate::none;  ///< interleaved: a q row holds [d_head query, d_head gate] per head
    uint32_t window = 0;             ///< declared by the model: keys at distance < window are visible; 0: all
    float eps = 0;
    uint64_t kv_dim() const { return uint64_t{n_head_kv} * d_head; }
};

struct DeltaDims {
    uint32_t n_head_k = 0, n_head_v = 0, d_key = 0, d_val = 0, n_conv = 0;
    bool grouped = false;  ///< value head h uses key head h / (n_head_v / n_head_k), not h mod n_head_k
    float eps = 0;         ///< of the gated norm
    uint64_t value_dim() const { return uint64_t{n_head_v} * d_val; }
    uint32_t conv_dim() const { return 2 * n_head_k * d_key + n_head_v * d_val; }
};

struct MoeDims {
    uint32_t n_expert = 0, n_used = 0, d_ff = 0, d_ff_shared = 0;
    bool sigmoid = false;               ///< scores are sigmoids, not a softmax over all experts
    bool normalise = true;              ///< divide the weights of the selected experts by their sum
    float scale = 1;                    ///< factor of the weights after that
    float limit = 0, limit_shared = 0;  ///< clamps as in swiglu
    bool gate_up = false;               ///< one stack [n_expert, 2 d_ff, d]: gate rows, then up rows of each expert
};

constexpr uint32_t kMaxWeight = 9;  ///< of an operation

struct Op {
    OpKind kind = OpKind::embed;
    uint32_t layer = 0;
    SlotId out = kNoSlot;
    SlotId in[4] = {kNoSlot, kNoSlot, kNoSlot, kNoSlot};
    /// Weights:
    /// matmul, embed, rms_norm  [0]
    /// kv_write, attend         [0] norm of k or q, or none; [1] rotation factors or none: divisors of the angles
    /// delta                    [0] conv1d [conv_dim, n_conv], [1] dt bias, [2] a, [3] norm
    /// moe                      [0] router [n_expert, d]; [1] gate and [2] up [n_expert, d_ff, d], or both in [1]
    ///                          (MoeDims::gate_up); [3] down [n_expert, d, d_ff]; of the shared expert [4] gate and
    ///                          [5] up [d_ff_shared, d], [6] down, [7] router [d] or none (weight 1);
    ///                          [8] bias [n_expert] or none, added to the scores for selection only
    SlotId w[kMaxWeight] = {kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot};
    SlotId state = kNoSlot;   ///< kv, or delta
    SlotId state2 = kNoSlot;  ///< conv, of a delta
    uint32_t out_offset = 0;  ///< first value of the output row (rms_norm)
    bool accumulate = false;  ///< matmul: add to out
    bool head = false;        ///< matmul: only for rows from Step::first_logit on
    float eps = 0;            ///< rms_norm
    float limit = 0;          ///< swiglu
    AttnDims attn;            ///< kv_write, attend
    DeltaDims delta;          ///< delta
    MoeDims moe;              ///< moe

    /// Weight i is a vector or a small table, read value by value, and no matrix of a product or of embeddings.
    bool is_vector(uint32_t i) const {
        return kind == OpKind::moe ? i >= 7 : kind != OpKind::embed && kind != OpKind::matmul;
    }
};

/// A list of operations: the trunk, or one MTP block.
struct Tape {
    std::vector<Op> ops;
    size_t n_fill = 0;        ///< MTP: a row that only fills the KV cache needs ops [0, n_fill)
    SlotId hidden = kNoSlot;  ///< kept: rows that an MTP block takes as input
    SlotId logits = kNoSlot;  ///< kept: [n_vocab]
};

struct Plan {
    std::string architecture;
    uint32_t d_model = 0, n_vocab = 0, n_layer = 0, n_context = 0;
    std::vector<Slot> slots;
    Tape trunk;
    std::vector<Tape> mtp;  ///< one per MTP block; the last one serves all further draft positions

    const Slot& slot(SlotId id) const { return slots[id]; }
    /// The trunk, then the MTP blocks if they are wanted.
    std::vector<const Tape*> tapes(bool with_mtp = true) const;
    /// By slot: whether it is a weight that the trunk uses. The others are those of MTP blocks alone.
    std::vector<bool> weights_of_trunk() const;
    uint32_t mtp_block(uint32_t depth) const {
        const uint32_t last = static_cast<uint32_t>(mtp.size()) - 1;
        return depth - 1 < last ? depth - 1 : last;
    }
    /// Rows before the next one that its convolution reads: of the inputs that slot `conv` keeps, all that a state
    /// needs.
    uint32_t conv_rows(SlotId conv) const {
        for (const Op& op : trunk.ops)
            if (op.kind == OpKind::delta && op.state2 == conv) return op.delta.n_conv - 1;
        return 0;
    }
};

/// Checks the slots of every operation: role, width, dimensions. The error names the first contradiction.
Status check_plan(const Plan& plan);
/// One line per op: "layer.3 matmul    x += o  blk.3.attn_output.weight Q4_K [512, 1024]".
std::string print_tape(const Plan& plan, const Tape& tape);
const char* op_name(OpKind kind);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

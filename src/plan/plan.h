// plan/plan: a model as an ordered tape of operations over named slots.
//
// Owns    Slot, Op, Plan: what is computed, in which shapes; checked, printable. Shape but no time:
//         no row count, no position, no address stands here.
// Reads   number (weight types).
// Serves  weights (which tensors are wanted), machines (what to run), tests (what to print).
// Thread  a finished Plan is immutable.
// Laws    tests/test_plan.cpp: shapes are checked, the printed tape is pinned for tiny models.
#pragma once
#include "../base/number.h"

namespace auspex {
namespace detail {

using SlotId = uint32_t;
constexpr SlotId kNoSlot = ~SlotId{0};

enum class SlotRole : uint8_t {
    weight,      ///< constant; filled from a tensor of the file
    activation,  ///< f32, one row of `width()` values per row of the step; scratch
    kept,        ///< an activation whose rows of the last step stay readable until the next step
    kv,          ///< keys and values of one attention layer, by absolute position
    conv,        ///< raw inputs of one causal convolution, by absolute position
    delta,       ///< Gated DeltaNet state S [n_head_v, d_key, d_val] f32 and its tentative terms
};

/// Rows `first` .. `first + n` of a file's matrix.
struct RowRange {
    uint64_t first = 0, n = 0;
};

struct Slot {
    std::string name;  ///< "layer.7.delta.state"; weights carry the file's tensor name
    /// Weights that are some rows of a larger tensor, in this order: its name and the rows. Else empty.
    std::string source;
    std::vector<RowRange> rows;
    SlotRole role = SlotRole::activation;
    Type type = Type::f32;          ///< weights: the file's type
    uint64_t shape[3] = {0, 0, 0};  ///< slowest first; weights [d_out, d_in] or [n, d_out, d_in]; vectors [d]
    uint32_t n_dim = 0;
    bool on_host = false;  ///< weights: a device reads them where the system's memory holds them
    uint64_t width() const { return shape[n_dim - 1]; }
};

/// Experts of one row at most.
constexpr uint32_t kMaxUsedExpert = 64;

/// The vocabulary. Every operation works on the rows of one step, [n_row, width] f32, unless said.
enum class OpKind : uint8_t {
    embed,     ///< out = w[token of the row]
    rms_norm,  ///< out[out_offset..] = rms(in) * w, over `w`'s width
    matmul,    ///< out = in w'   (accumulate: out += in w'); rows below Step::first_logit skipped when `head`
    swiglu,    ///< out = min(silu(in), limit) * clamp(in2, -limit, limit); limit 0: none
    delta,     ///< Gated DeltaNet: convolution, gates, recurrence, gated norm; in: u, z, beta, alpha
    kv_write,  ///< k-norm, rotation, append keys and values; in: k, v
    attend,    ///< q-norm, rotation, softmax attention over what is visible, output gate; in: q (, gate)
    moe,       ///< out += the chosen experts' weighted sum and the shared expert; in: f
    hidden,    ///< out = the hidden rows the step was given (MTP input)
};

enum class AttnGate : uint8_t { none, interleaved, per_head };

struct AttnDims {
    uint32_t n_head = 0, n_head_kv = 0, d_head = 0;
    uint32_t n_rot = 0;  ///< rotated dims, pairs (i, i + n_rot/2)
    float rope_base = 0;
    float scale = 0;                 ///< of the scores
    AttnGate gate = AttnGate::none;  ///< interleaved: q rows hold [d_head query, d_head gate] per head
    uint32_t window = 0;             ///< what the model declares: keys at distance < window are visible; 0: all
    float eps = 0;
};

struct DeltaDims {
    uint32_t n_head_k = 0, n_head_v = 0, d_key = 0, d_val = 0, n_conv = 0;
    bool grouped = false;  ///< value head h uses key head h / r (qwen3next) instead of h mod n_head_k
    float eps = 0;         ///< of the gated norm
    uint32_t conv_dim() const { return 2 * n_head_k * d_key + n_head_v * d_val; }
};

struct MoeDims {
    uint32_t n_expert = 0, n_used = 0, d_ff = 0, d_ff_shared = 0;
    bool sigmoid = false;               ///< scores by sigmoid instead of softmax over all experts
    bool normalise = true;              ///< divide the chosen weights by their sum
    float scale = 1;                    ///< then multiply
    float limit = 0, limit_shared = 0;  ///< clamps as in swiglu
    bool gate_up = false;               ///< one stack [n_expert, 2 d_ff, d]: of each expert first gate, then up rows
};

struct Op {
    OpKind kind = OpKind::embed;
    uint32_t layer = 0;
    SlotId out = kNoSlot;
    SlotId in[4] = {kNoSlot, kNoSlot, kNoSlot, kNoSlot};
    /// Weights by role. matmul, embed, rms_norm: [0].
    /// kv_write: [0] k_norm or none. attend: [0] q_norm or none; both: [1] rotation factors or none, by which
    /// the angle of pair i is divided.
    /// delta: [0] conv1d [conv_dim, n_conv], [1] dt bias, [2] a, [3] norm.
    /// moe: [0] router [n_expert, d], [1] gate and [2] up [n_expert, d_ff, d] (or both in [1], MoeDims::gate_up),
    /// [3] down [n_expert, d, d_ff]; [4] shared gate, [5] up [d_ff_shared, d], [6] down; [7] the shared expert's
    /// own gate [d] or none (weight 1); [8] bias [n_expert] or none: added to the scores for the choice alone.
    SlotId w[9] = {kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot};
    SlotId state = kNoSlot;   ///< kv, or delta
    SlotId state2 = kNoSlot;  ///< conv, of a delta
    uint32_t out_offset = 0;  ///< first value of the output row (rms_norm)
    bool accumulate = false;  ///< matmul: add to out
    bool head = false;        ///< only rows whose logits are wanted
    float eps = 0;            ///< rms_norm
    float limit = 0;          ///< swiglu
    AttnDims attn;            ///< kv_write, attend
    DeltaDims delta;          ///< delta
    MoeDims moe;              ///< moe
};

/// A run of operations with an entry and an exit.
struct Tape {
    std::vector<Op> ops;
    size_t n_fill = 0;        ///< MTP: the first n_fill ops are all that a cache-filling row needs
    SlotId hidden = kNoSlot;  ///< kept: what an MTP block is fed from these rows
    SlotId logits = kNoSlot;  ///< kept: [n_vocab]
};

struct Plan {
    std::string architecture;
    uint32_t d_model = 0, n_vocab = 0, n_layer = 0, n_context = 0;
    std::vector<Slot> slots;
    Tape trunk;
    std::vector<Tape> mtp;  ///< one per MTP block; qwen35 uses its one block at every depth

    const Slot& slot(SlotId id) const { return slots[id]; }
    uint32_t mtp_block(uint32_t depth) const {
        const uint32_t last = static_cast<uint32_t>(mtp.size()) - 1;
        return depth - 1 < last ? depth - 1 : last;
    }
};

/// Checks every op against its slots: roles, widths, dims. The first contradiction, named.
Status check_plan(const Plan& plan);
/// One line per op: "layer.3 matmul    x += o  blk.3.attn_output.weight Q4_K [512, 1024]".
std::string print_tape(const Plan& plan, const Tape& tape);
const char* op_name(OpKind kind);

}  // namespace detail
}  // namespace auspex

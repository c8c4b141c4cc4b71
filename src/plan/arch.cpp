#include "arch.h"

#include <cmath>
#include <iterator>
#include <unordered_set>

#include "../base/float_mode.h"
#include "pair.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace arch_impl {
namespace {

std::string shape_text(const std::vector<uint64_t>& s) {
    std::string t = "[";
    for (size_t i = 0; i < s.size(); ++i) t.append(say(i ? ", " : "", s[i]));
    return t + "]";
}

/// The file's shape, slowest first, with at least `n_dim` dimensions: ggml leaves out slowest dimensions of 1, other
/// writers add some.
std::vector<uint64_t> file_shape(const Tensor& t, size_t n_dim) {
    size_t n = std::size(t.ne);
    while (n > n_dim && t.ne[n - 1] == 1) --n;
    std::vector<uint64_t> s;
    for (size_t i = n; i-- > 0;) s.push_back(t.ne[i]);
    return s;
}

/// The matrix that a tensor scales, or empty. ".input_scale" is for engines that round the input of the product, too.
std::string scaled_by(std::string_view name) {
    for (const std::string_view end : {".scale", ".input_scale"})
        if (name.size() > end.size() && name.substr(name.size() - end.size()) == end)
            return say(name.substr(0, name.size() - end.size()), ".weight");
    return {};
}

/// True for names outside the blocks of what embeds tokens or makes logits. A head for drafts alone changes no text.
bool of_ends(std::string_view name) {
    for (const std::string_view stem : {"token_", "position_embd", "output"})
        if (name.substr(0, stem.size()) == stem) return !is_of_draft_head(name);
    return false;
}

/// Reads the scale beside a weight, if the file has one: one number, or one for each matrix of a stack of n. Of other
/// types than NVFP4 a scale of 1 is accepted.
Status read_scale(const Gguf& file, const Tensor& weight, uint64_t n, std::vector<float>* to) {
    constexpr float kMax = 1e20f;  // times the largest weight, 2880, and an input of 1e14 still finite
    const Tensor* t = file.tensor(scale_name(weight.name));
    if (t == nullptr) return {};
    const std::string both = say("tensor ", quote(t->name), ", the scale of ", quote(weight.name), ", ");
    const uint64_t found = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    if (t->type != Type::f32 || (found != 1 && found != n))
        return fail(Code::bad_file, both, "is ", type_info(t->type).name, " [", found, "], expected F32 [1]",
                    n == 1 ? std::string() : say(" or [", n, "]"), "; convert the model again");
    to->resize(static_cast<size_t>(found));
    std::memcpy(to->data(), t->data, static_cast<size_t>(found) * sizeof(float));
    for (const float scale : *to) {
        if (!(std::fabs(scale) <= kMax))
            return fail(Code::bad_file, both, "holds ", double{scale}, ", expected at most ", double{kMax},
                        "; the file is damaged or was converted wrongly: get or convert it again");
        if (weight.type != Type::nvfp4 && scale != 1)
            return fail(Code::unsupported, both, "belongs to ", type_info(weight.type).name,
                        "; separate scales are supported with NVFP4 only: use a plain quantisation");
    }
    if (weight.type != Type::nvfp4) to->clear();
    return {};
}

/// Checks that the plan uses every tensor of its blocks, of the embedding and of the head: to compute without a tensor
/// that belongs to the model would give plausible but wrong text. Others may be of an encoder, or unused rope_freqs.
Status check_all_used(const Plan& plan, const Gguf& file) {
    std::unordered_set<std::string_view> used;
    for (const Slot& s : plan.slots)
        if (s.role == SlotRole::weight) used.insert(s.source.empty() ? s.name : s.source);
    const int64_t n_block = int64_t{plan.n_layer} + static_cast<int64_t>(plan.mtp.size());
    for (const Tensor& t : file.tensors()) {
        const int64_t i_block = block_of(t.name);
        const bool of_plan = i_block < 0 ? of_ends(t.name) : i_block < n_block;
        if (of_plan && used.count(t.name) == 0 && used.count(scaled_by(t.name)) == 0)
            return fail(Code::unsupported, "tensor ", quote(t.name), " is unknown in architecture '", plan.architecture,
                        "', and without it the results would be wrong: the file is of a variant that is not supported");
    }
    return {};
}

}  // namespace
}  // namespace arch_impl

SlotId PlanBuilder::activation(std::string name, uint64_t width, SlotRole role) {
    Slot s;
    s.name = std::move(name);
    s.role = role;
    s.n_dim = 1;
    s.shape[0] = width;
    plan_.slots.push_back(std::move(s));
    return static_cast<SlotId>(plan_.slots.size() - 1);
}

SlotId PlanBuilder::scratch(const char* name, uint64_t width) {
    auto known = scratch_.find(say(name, ".", width));
    if (known != scratch_.end()) return known->second;
    const bool first = scratch_.emplace(name, kNoSlot).second;
    const SlotId id = activation(first ? std::string(name) : say(name, ".", width), width);
    scratch_.emplace(say(name, ".", width), id);
    return id;
}

SlotId PlanBuilder::rows(const std::string& tensor, const char* what, uint64_t n_row, uint64_t d_in,
                         std::vector<RowRange> take) {
    const std::string name = say(tensor, "[", what, "]");
    auto known = weights_.find(name);
    if (known != weights_.end()) return known->second;
    const SlotId whole = weight(tensor, {n_row, d_in});
    if (!ok()) return kNoSlot;
    weights_.erase(tensor);
    Slot& s = plan_.slots[whole];  // its shape was checked; from here on it is a part of the tensor
    s.source = s.name;
    s.name = name;
    s.shape[0] = 0;
    for (const RowRange& r : take) s.shape[0] += r.n;
    s.rows = std::move(take);
    weights_.emplace(name, whole);
    return whole;
}

SlotId PlanBuilder::state(std::string name, SlotRole role, uint64_t a, uint64_t b, uint64_t c) {
    const SlotId id = activation(std::move(name), a, role);
    Slot& s = plan_.slots[id];
    if (b) s.shape[s.n_dim++] = b;
    if (c) s.shape[s.n_dim++] = c;
    return id;
}

SlotId PlanBuilder::weight(const std::string& name, std::initializer_list<uint64_t> expected) {
    if (!ok()) return kNoSlot;
    auto known = weights_.find(name);
    if (known != weights_.end()) return known->second;
    const std::vector<uint64_t> shape = expected;
    const Tensor* t = file_.tensor(name);
    if (!t) {
        fail_with(fail(Code::bad_file, "tensor '", name, "' is missing, expected ", arch_impl::shape_text(shape),
                       "; the file is incomplete or of another architecture than '", plan_.architecture, "'"));
        return kNoSlot;
    }
    const std::vector<uint64_t> found = arch_impl::file_shape(*t, shape.size());
    if (found != shape) {
        fail_with(fail(Code::bad_file, "tensor '", name, "' is ", arch_impl::shape_text(found), ", expected ",
                       arch_impl::shape_text(shape),
                       " from the file's metadata; one of them is wrong: convert the model again"));
        return kNoSlot;
    }
    Slot s;
    s.name = name;
    s.role = SlotRole::weight;
    s.type = t->type;
    s.n_dim = static_cast<uint32_t>(shape.size());
    for (size_t i = 0; i < shape.size(); ++i) s.shape[i] = shape[i];
    fail_with(arch_impl::read_scale(file_, *t, shape.size() == 3 ? shape[0] : 1, &s.scale));
    if (!ok()) return kNoSlot;
    plan_.slots.push_back(std::move(s));
    const SlotId id = static_cast<SlotId>(plan_.slots.size() - 1);
    weights_.emplace(name, id);
    return id;
}

SlotId PlanBuilder::vector(const std::string& name, uint64_t n) {
    const SlotId id = weight(name, {n});
    if (id != kNoSlot && plan_.slots[id].type != Type::f32) {
        fail_with(fail(Code::bad_file, "tensor '", name, "' is ", type_info(plan_.slots[id].type).name,
                       ", expected F32 as every vector"));
        return kNoSlot;
    }
    return id;
}

Op& PlanBuilder::push(Tape& tape, OpKind kind, uint32_t layer, SlotId out) {
    tape.ops.emplace_back();
    Op& op = tape.ops.back();
    op.kind = kind;
    op.layer = layer;
    op.out = out;
    return op;
}

void PlanBuilder::norm(Tape& tape, uint32_t layer, SlotId out, SlotId in, SlotId w, float eps, uint32_t out_offset) {
    Op& op = push(tape, OpKind::rms_norm, layer, out);
    op.in[0] = in;
    op.w[0] = w;
    op.eps = eps;
    op.out_offset = out_offset;
}

void PlanBuilder::matmul(Tape& tape, uint32_t layer, SlotId out, SlotId in, SlotId w, bool accumulate) {
    Op& op = push(tape, OpKind::matmul, layer, out);
    op.in[0] = in;
    op.w[0] = w;
    op.accumulate = accumulate;
}

uint32_t PlanBuilder::u32(const char* name, uint32_t low, uint32_t high) {
    if (!ok()) return low;
    Result<uint32_t> r = file_.get_u32(key(name));
    if (!r.ok()) {
        fail_with(r.status());
        return low;
    }
    if (r.value() < low || r.value() > high) {
        fail_with(fail(Code::bad_file, "key '", key(name), "' is ", r.value(), ", expected ", low, "..", high));
        return low;
    }
    return r.value();
}

uint32_t PlanBuilder::u32_or(const char* name, uint32_t fallback, uint32_t low, uint32_t high) {
    return file_.find(key(name)) ? u32(name, low, high) : fallback;
}

float PlanBuilder::f32(const char* name) {
    if (!ok()) return 0;
    Result<float> r = file_.get_f32(key(name));
    if (!r.ok()) {
        fail_with(r.status());
        return 0;
    }
    if (!std::isfinite(r.value())) {
        fail_with(fail(Code::bad_file, "key '", key(name), "' is not a finite number"));
        return 0;
    }
    return r.value();
}

float PlanBuilder::f32_or(const char* name, float fallback) { return file_.find(key(name)) ? f32(name) : fallback; }

bool PlanBuilder::flag_or(const char* name, bool fallback) {
    if (!ok()) return fallback;
    Result<bool> r = file_.get_bool(key(name), fallback);
    if (!r.ok()) fail_with(r.status());
    return r.ok() ? r.value() : fallback;
}

std::vector<uint32_t> PlanBuilder::u32s(const char* name, uint32_t n, const uint32_t* fallback, uint32_t low,
                                        uint32_t high) {
    std::vector<uint32_t> values(n, low);
    if (!ok()) return values;
    Result<std::vector<uint32_t>> r = file_.get_u32s(key(name), n, fallback);
    if (!r.ok()) {
        fail_with(r.status());
        return values;
    }
    for (uint32_t i = 0; i < n; ++i)
        if (r.value()[i] < low || r.value()[i] > high) {
            fail_with(fail(Code::bad_file, "key '", key(name), "' is ", r.value()[i], " for block ", i, ", expected ",
                           low, "..", high));
            return values;
        }
    return std::move(r.value());
}

std::vector<float> PlanBuilder::f32s(const char* name, uint32_t n, const float* fallback) {
    std::vector<float> values(n, 0.0f);
    if (!ok()) return values;
    Result<std::vector<float>> r = file_.get_f32s(key(name), n, fallback);
    if (!r.ok()) {
        fail_with(r.status());
        return values;
    }
    return std::move(r.value());
}

Result<Plan> make_plan(const Gguf& file, const PlanOptions& options) {
    const DefaultFloatMode mode;
    Result<std::string> arch = file.get_string("general.architecture");
    if (!arch.ok()) return arch.status();
    Plan plan;
    plan.architecture = arch.value();
    Planner planner = nullptr;
    std::string known;
#define AUSPEX_FAMILY(name, function)                  \
    if (plan.architecture == name) planner = function; \
    known.append(known.empty() ? name : ", " name);
    AUSPEX_FAMILIES(AUSPEX_FAMILY)
#undef AUSPEX_FAMILY
    if (planner == nullptr)
        return fail(Code::unsupported, "architecture ", quote(plan.architecture),
                    " is not supported; this version runs ", known);
    AUSPEX_TRY(planner(file, options, plan));
    AUSPEX_TRY(check_plan(plan));
    AUSPEX_TRY(arch_impl::check_all_used(plan, file));
    return plan;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

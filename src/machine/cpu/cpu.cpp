#include "cpu.h"

#include "../../base/system.h"
#include "context.h"
#include "../../base/float_mode.h"

#include <algorithm>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

namespace cpu_impl {

enum class Use : uint8_t { none, matrix, vector };

}  // namespace cpu_impl

class CpuBackend : public Backend {
  public:
    const CpuKernels* kernels = nullptr;
    std::shared_ptr<Pool> pool;
    Allocator allocator;

    Kind kind() const override { return Kind::cpu; }
    std::string name() const override {
        return say("cpu (", path_name(kernels->path), ", ", pool->n_thread(),
                   pool->n_thread() == 1 ? " thread)" : " threads)");
    }
    std::string report() const override {
        std::string text =
            say("kind     cpu\nthreads  ", pool->n_thread(), " of ", n_physical_core(), " physical cores\npath     ",
                path_name(kernels->path), "\nkernels  ", kernels->name, "\n");
        for (CpuPath p : {CpuPath::avx512, CpuPath::avx2, CpuPath::neon, CpuPath::reference})
            text.append(say("  ", path_name(p),
                            has_path(p) ? "  available\n" : "  not on this processor or not in this build\n"));
        return text;
    }
    std::string driver() const override { return {}; }
    uint64_t budget_bytes() const override { return free_memory_bytes(); }
    std::vector<std::byte> pipeline_cache() const override { return {}; }
    Result<std::shared_ptr<LoadedModel>> load(const Plan& plan, const Weights& weights,
                                              const Progress& progress) override;
    Status plan_weights(const Plan& plan, const Weights& weights, const LoadedModel* loaded,
                        std::vector<MemoryItem>* items) const override;
    Status plan_context(const Plan& plan, const ContextOptions& options, std::vector<MemoryItem>* items) const override;
    Status plan_draft_head(const Plan& plan, uint32_t n_id, std::vector<MemoryItem>* items) const override;

  private:
    Status load_vectors(const Weights& weights, const std::vector<cpu_impl::Use>& use, CpuModel* model) const;
    Status load_matrices(const Weights& weights, const std::vector<cpu_impl::Use>& use, const Progress& progress,
                         CpuModel* model) const;
};

namespace cpu_impl {

/// How each weight slot is read: through products, or value by value.
std::vector<Use> uses(const Plan& plan) {
    std::vector<Use> use(plan.slots.size(), Use::none);
    for (const Tape* tape : plan.tapes()) {
        for (const Op& op : tape->ops) {
            for (uint32_t i = 0; i < kMaxWeight; ++i)
                if (op.w[i] != kNoSlot) use[op.w[i]] = op.is_vector(i) ? Use::vector : Use::matrix;
        }
    }
    return use;
}

MatrixShape shape_of(const Slot& s) {
    MatrixShape m;
    m.type = s.type;
    m.d_in = static_cast<uint32_t>(s.shape[s.n_dim - 1]);
    m.d_out = static_cast<uint32_t>(s.shape[s.n_dim - 2]);
    m.n_slice = s.n_dim == 3 ? static_cast<uint32_t>(s.shape[0]) : 1;
    m.scale = s.scale;
    return m;
}

/// What a file of packed weights must agree in: the layout of strips, the shapes of all matrices, the model's files,
/// and samples of every matrix.
uint64_t packed_key(const Plan& plan, const std::vector<Use>& use, const Weights& weights, const CpuKernels& kernels) {
    constexpr uint64_t kLayout = 1;  // raise it when pack_strip() or StripForm changes
    constexpr uint64_t kSample = 64, kSamples = 8;
    Checksum sum;
    const auto add = [&](std::initializer_list<uint64_t> numbers) {
        for (const uint64_t n : numbers) sum.add(&n, sizeof n);
    };
    add({kLayout, kernels.n_lane, kernels.biased_bytes, plan.slots.size(), weights.stamp});
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        if (use[id] != Use::matrix) continue;
        const MatrixShape m = shape_of(plan.slot(id));
        const uint64_t bytes = row_bytes(m.type, plan.slot(id).n_value()), n = std::min(kSample, bytes);
        add({id, static_cast<uint64_t>(m.type), m.d_out, m.d_in, m.n_slice, bytes});
        for (uint64_t i = 0; i < kSamples; ++i) {
            std::byte sample[kSample];
            weights.read(id, (bytes - n) * i / (kSamples - 1), n, sample);
            sum.add(sample, static_cast<size_t>(n));
        }
        if (packed_bytes(kernels, m, true) > 0) weights.done(id, bytes);
    }
    return sum.value();
}

/// Maps the file of packed weights, if one is named. One that cannot be read is done without, as one that cannot be
/// written is, and is left as it is: *unread is why.
Status open_packed(const Weights& weights, uint64_t key, PackedFile* to, Status* unread) {
    const Status s = PackedFile::open(weights.packed_file, key).get(*to);
    if (s.code != Code::io_error) return s;
    *unread = s;
    return {};
}

/// Writes the matrices that are allocated to the file, and has the model read them from there.
Status move_to_file(const Plan& plan, const std::string& path, uint64_t key, CpuModel* model) {
    std::vector<PackedFile::Part> parts;
    for (SlotId id = 0; id < model->matrices.size(); ++id)
        if (model->matrices[id].owned_bytes() > 0) parts.push_back({id, model->matrices[id].bytes()});
    if (parts.empty()) return {};
    AUSPEX_TRY(PackedFile::write(path, key, Span<const PackedFile::Part>(parts)));
    AUSPEX_TRY(PackedFile::open(path, key).get(model->packed));
    for (const PackedFile::Part& p : parts)
        if (const Span<const std::byte> packed = model->packed.find(p.slot); !packed.empty())
            AUSPEX_TRY(map_matrix(*model->kernels, shape_of(plan.slot(p.slot)), packed, &model->matrices[p.slot]));
    return {};
}

}  // namespace cpu_impl

/// The vectors of all layers: in place where the file has them in F32, else converted.
Status CpuBackend::load_vectors(const Weights& weights, const std::vector<cpu_impl::Use>& use, CpuModel* model) const {
    using namespace cpu_impl;
    const Plan& plan = *model->plan;
    const auto in_place = [&](SlotId id) { return plan.slot(id).type == Type::f32 && weights.keeps(id); };
    uint64_t n_float = 0;
    for (SlotId id = 0; id < plan.slots.size(); ++id)
        if (use[id] == Use::vector && !in_place(id)) n_float += round_up(plan.slot(id).n_value(), 16);
    AUSPEX_TRY(model->vector_bytes.take(allocator, n_float * sizeof(float), "the model's vectors"));
    float* next = model->vector_bytes.as<float>();
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        if (use[id] != Use::vector) continue;
        const uint64_t n = plan.slot(id).n_value();
        model->n_weight_bytes += n * sizeof(float);
        if (in_place(id)) {
            model->vectors[id] = reinterpret_cast<const float*>(weights.data[id]);
            continue;
        }
        Block room;
        const std::byte* values = nullptr;
        AUSPEX_TRY(weights.rows(id, allocator, &room).get(values));
        decode_row(plan.slot(id).type, values, next, static_cast<size_t>(n));
        model->vectors[id] = next;
        next += round_up(n, 16);
    }
    return {};
}

/// The matrices: those of the packed file are mapped, the others packed.
Status CpuBackend::load_matrices(const Weights& weights, const std::vector<cpu_impl::Use>& use,
                                 const Progress& progress, CpuModel* model) const {
    using namespace cpu_impl;
    const Plan& plan = *model->plan;
    uint64_t total = 0, done = 0, owned = 0;
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        if (use[id] != Use::matrix) continue;
        total += row_bytes(plan.slot(id).type, plan.slot(id).n_value());
        if (model->packed.find(id).empty())
            owned += round_up(packed_bytes(*kernels, shape_of(plan.slot(id)), weights.keeps(id)), 64);
    }
    const Allocator from = model->pages.unless(allocator, owned);
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        if (use[id] != Use::matrix) continue;
        const Slot& s = plan.slot(id);
        const float part = total ? static_cast<float>(static_cast<double>(done) / static_cast<double>(total)) : 0;
        if (progress && !progress("loading weights", part))
            return fail(Code::cancelled, "loading was cancelled by the progress callback");
        const uint64_t bytes = row_bytes(s.type, s.n_value());
        PackedMatrix& m = model->matrices[id];
        const Span<const std::byte> packed = model->packed.find(id);
        Block room;
        const std::byte* rows = nullptr;
        Status st;
        if (!packed.empty())
            st = map_matrix(*kernels, shape_of(s), packed, &m);
        else if (st = weights.rows(id, allocator, &room).get(rows); st.ok())
            st = pack_matrix(*kernels, shape_of(s), rows, weights.keeps(id), from, pool.get(), &m);
        if (!st.ok()) return fail(st.code, "tensor '", s.name, "': ", st.text);
        if (m.owned_bytes() > 0 || !packed.empty()) weights.done(id, bytes);
        done += bytes;
        model->n_weight_bytes += m.bytes().size();
    }
    return {};
}

Result<std::shared_ptr<LoadedModel>> CpuBackend::load(const Plan& plan, const Weights& weights,
                                                      const Progress& progress) {
    using namespace cpu_impl;
    const DefaultFloatMode mode;
    auto model = std::make_shared<CpuModel>();
    model->plan = &plan;
    model->kernels = kernels;
    model->loops = &kernels->loops;
    model->pool = pool;
    model->number = pool->new_number();
    model->allocator = allocator;
    model->matrices.resize(plan.slots.size());
    model->vectors = std::vector<const float*>(plan.slots.size());
    if (weights.keep) model->file_rows = weights.data;
    const std::vector<Use> use = uses(plan);
    uint64_t key = 0;
    Status kept;
    if (!weights.packed_file.empty()) {
        key = packed_key(plan, use, weights, *kernels);
        AUSPEX_TRY(open_packed(weights, key, &model->packed, &kept));
    }
    AUSPEX_TRY(load_vectors(weights, use, model.get()));
    AUSPEX_TRY(load_matrices(weights, use, progress, model.get()));
    AUSPEX_TRY(check_moe(plan, model->matrices));
    if (!weights.packed_file.empty() && model->packed.empty() && kept.ok())
        kept = move_to_file(plan, weights.packed_file, key, model.get());
    if (!kept.ok() && weights.warn) weights.warn("the weights are packed again at the next start: " + kept.text);
    if (progress) progress("loading weights", 1.0f);
    return std::shared_ptr<LoadedModel>(std::move(model));
}

Status CpuBackend::plan_weights(const Plan& plan, const Weights& weights, const LoadedModel* loaded,
                                std::vector<MemoryItem>* items) const {
    using namespace cpu_impl;
    const std::vector<Use> use = uses(plan);
    const std::vector<bool> trunk = plan.weights_of_trunk();
    PackedFile file;  // for a model that is loaded, what is at the path now says nothing
    Status unread;
    const bool mapped = loaded != nullptr && !static_cast<const CpuModel*>(loaded)->packed.empty();
    if (loaded == nullptr && !weights.packed_file.empty())
        AUSPEX_TRY(open_packed(weights, packed_key(plan, use, weights, *kernels), &file, &unread));
    auto add = [&](const std::string& what, uint64_t bytes, MemoryPlace place) {
        add_item(items, what, -1, bytes, place);
    };
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const Slot& s = plan.slot(id);
        if (use[id] == Use::none) continue;
        const std::string what = say(trunk[id] ? "" : "draft block: ", "weights ", type_info(s.type).name);
        const uint64_t plain = row_bytes(s.type, s.n_value());
        if (use[id] == Use::vector) {
            if (s.type == Type::f32 && weights.keeps(id))
                add(what, plain, MemoryPlace::file);
            else
                add(what + ", as F32 vectors", round_up(s.n_value(), 16) * sizeof(float), MemoryPlace::allocator);
        } else {
            const uint64_t packed = packed_bytes(*kernels, shape_of(s), weights.keeps(id));
            if (packed == 0)
                add(what, plain, MemoryPlace::file);
            else if (mapped || !file.find(id).empty())
                add(what + ", packed file", packed, MemoryPlace::file);
            else
                add(what + ", repacked", packed, MemoryPlace::allocator);
        }
    }
    return {};
}

Status CpuBackend::plan_context(const Plan& plan, const ContextOptions& options, std::vector<MemoryItem>* items) const {
    auto model = std::make_shared<CpuModel>();  // without weights: a context is laid out, not run
    model->plan = &plan;
    model->kernels = kernels;
    model->loops = &kernels->loops;
    model->pool = pool;
    model->allocator = allocator;
    return CpuContext::plan_memory(std::move(model), options, items);
}

Status CpuBackend::plan_draft_head(const Plan& plan, uint32_t n_id, std::vector<MemoryItem>* items) const {
    SlotId table = kNoSlot;
    AUSPEX_TRY(draft_table(plan).get(table));
    MatrixShape shape = cpu_impl::shape_of(plan.slot(table));
    shape.d_out = n_id;
    items->push_back({"draft-only head", -1, packed_bytes(*kernels, shape, false), MemoryPlace::allocator});
    return {};
}

Status check_cpu(CpuPath path, int n_thread) {
    constexpr int kMaxThread = Pool::kMaxThread;
    if (n_thread < 0 || n_thread > kMaxThread)
        return fail(Code::bad_argument, "n_thread is ", n_thread, ", expected 1 to ", kMaxThread,
                    ", or 0 for one per physical core");
    const CpuKernels* kernels = nullptr;
    return choose_kernels(path, &kernels);
}

Result<std::shared_ptr<Backend>> open_cpu(const CpuOptions& options) {
    AUSPEX_TRY(check_cpu(options.path, options.n_thread));
    auto backend = std::make_shared<CpuBackend>();
    backend->allocator = options.allocator;
    AUSPEX_TRY(choose_kernels(options.path, &backend->kernels));
    const uint32_t n =
        options.n_thread == 0 ? std::min(n_physical_core(), Pool::kMaxThread) : static_cast<uint32_t>(options.n_thread);
    Result<std::unique_ptr<Pool>> pool = Pool::open(n, options.jobs);
    if (!pool.ok()) return pool.status();
    backend->pool = std::move(pool.value());
    return std::shared_ptr<Backend>(std::move(backend));
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

#include "context.h"
#ifndef AUSPEX_NO_VULKAN
#include "../../../shaders/rows_args.h"

#include <algorithm>
#include <cstddef>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace context_impl {

constexpr uint32_t kReadRows = 64;           ///< kept rows fetched at a time
constexpr double kQueueAheadUs = 50 * 1000;  ///< bodies of many rows that take less are queued one ahead

/// Rows of a prompt that may run at once. Where loops are short, the general DeltaNet kernel reaches their end after 40
/// rows with heads of 256.
uint32_t max_rows(const VulkanModel& model) {
    if (!model.device->gpu->traits.short_loops) return UINT32_MAX;
    for (const Op& op : model.plan->trunk.ops)
        if (op.kind == OpKind::delta && !fast_delta(model.device->shuffles, op.delta)) return 32;
    return UINT32_MAX;
}

}  // namespace context_impl

Result<std::unique_ptr<Context>> VulkanModel::open(const ContextOptions& options) {
    return VulkanContext::open(shared_from_this(), options);
}

Result<std::unique_ptr<Context>> VulkanContext::open(std::shared_ptr<const VulkanModel> model,
                                                     const ContextOptions& options) {
    std::unique_ptr<VulkanContext> context(new VulkanContext(std::move(model)));
    AUSPEX_TRY(context->take_memory(options));
    return std::unique_ptr<Context>(std::move(context));
}

VulkanContext::~VulkanContext() { timeline_.finish(); }

Status VulkanContext::take_memory(const ContextOptions& options) {
    const GpuRef& gpu = model_->device->gpu;
    options_ = options;
    options_.n_ubatch = std::max(options.n_ubatch, 1u);
    n_chunk_ = n_chunk_max_ = std::min(row_class(options_.n_ubatch), context_impl::max_rows(*model_));
    AUSPEX_TRY(Buffers::take(*model_, options_).get(buffers_));
    AUSPEX_TRY(Timeline::create(gpu).get(timeline_));
    AUSPEX_TRY(Transfer::create(gpu, kStagingBytes, buffers_.staging).get(transfer_));
    AUSPEX_TRY(CommandPool::create(gpu).get(pool_));
    AUSPEX_TRY(CycleClock::create(gpu, pool_, kMaxQueued).get(clock_));
    tokens_.reserve(kMaxTentative);
    list_.reserve(16);
    // Without a thread of its own, begin_save() takes as long as save_state(). Fences, unlike a semaphore, must not be
    // reset while another thread waits for them.
    if (buffers_.saved_state.bytes != 0 && !model_->device->jobs && gpu->traits.timeline) (void)background_.start();
    // Values that were never written are read with weight zero: they must not be NaN.
    Commands zero;
    AUSPEX_TRY(Commands::create(gpu, 0, pool_).get(zero));
    AUSPEX_TRY(zero.begin(true));
    for (const Buffers::Kv& kv : buffers_.kv)
        if (kv.k.bytes != 0) {
            zero.fill(kv.k, 0);
            zero.fill(kv.v, 0);
        }
    zero.fill(buffers_.sample_hist, 0);
    const Buffers::Moe& moe = buffers_.moe;
    for (const Region* r : {&moe.choice, &moe.hidden, &moe.shared, &moe.shared_halves, &moe.halves})
        if (r->bytes != 0) zero.fill(r->part(0, r->bytes / 4 * 4), 0);
    for (const std::vector<Region>* rows : {&buffers_.row, &buffers_.squares, &buffers_.term})
        for (const Region& r : *rows)
            if (r.bytes != 0) {
                zero.barrier(kSyncTransfer, kSyncTransfer);  // some lie where others do
                zero.fill(r.part(0, r.bytes / 4 * 4), 0);
            }
    AUSPEX_TRY(zero.end());
    AUSPEX_TRY(zero.run());
    AUSPEX_TRY(Commands::create(gpu, 0, pool_).get(reset_));
    AUSPEX_TRY(reset_.begin());
    reset_.fill(buffers_.step, 0);
    reset_.fill(buffers_.count, 0);
    reset_.fill(buffers_.ring, 0);  // not by the host, whose zeros would be lost where its memory is not coherent
    for (const std::vector<Region>* states : {&buffers_.delta, &buffers_.conv})
        for (const Region& r : *states)
            if (r.bytes != 0) reset_.fill(r, 0);
    AUSPEX_TRY(reset_.end());
    reset();
    AUSPEX_TRY(finish_reset());
    return barrier();
}

uint64_t VulkanContext::memory_bytes() const { return buffers_.memory_bytes(); }

/// Writes a draft head's rows, which are rows of `s` in the file, and its ids.
Status VulkanContext::write_draft_head(Span<const Token> ids, const Slot& s, const Tiling& tiling, const Region& rows,
                                       const Region& table) {
    const uint64_t one = row_bytes(s.type, s.width());
    // One tile row at a time: the file's rows side by side, then repacked.
    std::vector<std::byte> chosen(static_cast<size_t>(kTileRows * one)), tiles(static_cast<size_t>(tiling.row_bytes()));
    Tiling piece = tiling;
    piece.n_row = 1;
    for (uint32_t i = 0; i < tiling.n_row; ++i) {
        piece.d_out = std::min<uint64_t>(kTileRows, ids.size() - uint64_t{i} * kTileRows);
        for (uint64_t k = 0; k < piece.d_out; ++k)
            std::memcpy(chosen.data() + k * one,
                        model_->draft_rows + static_cast<uint64_t>(ids[i * kTileRows + k]) * one,
                        static_cast<size_t>(one));
        repack(piece, s.type, {chosen.data(), s.scale}, nullptr, 0, 1, tiles.data());
        AUSPEX_TRY(transfer_.write(rows.part(i * tiling.row_bytes(), tiling.row_bytes()), tiles.data(), tiles.size()));
    }
    return transfer_.write(table, ids.data(), ids.size() * sizeof(uint32_t));
}

Status VulkanContext::draft_head(Span<const Token> ids) {
    const Plan& plan = *model_->plan;
    AUSPEX_TRY(check_idle());
    AUSPEX_TRY(barrier());
    DraftHead made;
    if (!ids.empty()) {
        AUSPEX_TRY(check_draft_head(plan, options_, model_->draft_rows, ids));
        const Slot& s = plan.slot(draft_table(plan).value());
        const GpuRef& gpu = model_->device->gpu;
        Matrix& m = made.matrix;
        MemoryPlan memory(gpu->traits);
        AUSPEX_TRY(DraftHead::plan(gpu->traits, s, ids.size(), &m.tiling, &memory));
        // In place where it fits: nothing is taken after the first time, and what fails leaves the memory in use.
        const bool in_place = buffers_.draft.n_id == ids.size();
        if (!in_place) AUSPEX_TRY(Memory::take(gpu, memory).get(made.memory));
        const Memory& to = in_place ? buffers_.draft.memory : made.memory;
        const Region to_rows = to[DraftHead::kRows], to_ids = to[DraftHead::kIds];
        const Status written = write_draft_head(ids, s, m.tiling, to_rows, to_ids);
        const Status finished = transfer_.finish();  // before what it writes may be freed
        AUSPEX_TRY(written);
        AUSPEX_TRY(finished);
        Matrix::Slice slice;
        slice.region = to_rows;
        slice.n = m.tiling.n_row;
        m.slices.push_back(slice);
        made.ids = to_ids;
        made.n_id = static_cast<uint32_t>(ids.size());
        if (in_place) made.memory = std::move(buffers_.draft.memory);
    }
    recordings_.clear();  // those of drafts bind the draft head
    wide_.body = nullptr;
    prepared_.clear();
    buffers_.draft = std::move(made);
    return {};
}

// --------------------------------------------------------------------------------- submissions

Result<args::StepRequest*> VulkanContext::take_request(uint32_t* index) {
    AUSPEX_TRY(finish_reset());
    const uint32_t i = next_request_;
    next_request_ = (next_request_ + 1) % kRequests;
    // A submission that failed has left a value that nothing reaches.
    AUSPEX_TRY(timeline_.wait(std::min(request_value_[i], timeline_.last())));
    request_value_[i] = timeline_.last() + 1;  // the submission that follows reads it
    *index = i;
    auto* r = reinterpret_cast<args::StepRequest*>(buffers_.request[i].mapped);
    *r = args::StepRequest();
    return r;
}

Status VulkanContext::submit(std::initializer_list<const Recording*> list) {
    list_.clear();
    gather(list);
    return timeline_.submit(list_).status();
}

void VulkanContext::gather(std::initializer_list<const Recording*> list) {
    for (const Recording* r : list)
        if (r)
            for (const Commands& c : r->parts) list_.push_back(c.handle());
}

/// Waits for the body before this one, so that the device has work while the host prepares the next. A body that takes
/// kQueueAheadUs and more is waited for itself: there the wait costs next to nothing, and cancel() is answered sooner.
/// So is one of fewer rows than could run at once, whose time says whether there may be more again.
Status VulkanContext::submit_wide(Recording* body, uint32_t n_row) {
    bool before_done = true;
    if (wide_.body) AUSPEX_TRY(timeline_.done(wide_.value).get(before_done));
    if (before_done) wide_.body = nullptr;  // nobody saw when it ended
    auto begin = Clock::now();
    const size_t n = body->parts.size();
    size_t at_once = 1;
    const double limit_us = model_->device->max_submit_us;
    if (body->part_us > 0) at_once = std::max<size_t>(1, static_cast<size_t>(limit_us / body->part_us));
    for (size_t i = 0; i < n; i += at_once) {
        list_.clear();
        for (size_t k = i; k < std::min(n, i + at_once); ++k) list_.push_back(body->parts[k].handle());
        AUSPEX_TRY(timeline_.submit(list_).status());
    }
    if (wide_.body) {
        AUSPEX_TRY(finish_wide());
        begin = Clock::now();
    }
    wide_ = {body, n_row, timeline_.last(), begin};
    const double us = body->part_us * static_cast<double>(n);
    const bool ahead = us > 0 && us < context_impl::kQueueAheadUs && n_chunk_ == n_chunk_max_;
    return ahead ? Status() : finish_wide();
}

/// Waits for the body that was submitted last and notes its time. A part that takes too long halves the rows of later
/// bodies. One that takes less than half of the limit doubles them: what was slow (other work on the device, a
/// suspended process) is over.
Status VulkanContext::finish_wide() {
    if (!wide_.body) return {};
    if (model_->device->gpu->lost) return lost_before();
    AUSPEX_TRY(timeline_.wait(wide_.value));
    const double us = 1e6 * seconds_since(wide_.begin) / static_cast<double>(wide_.body->parts.size());
    wide_.body->part_us = us;
    wide_.body = nullptr;
    if (wide_.n_row != n_chunk_) return {};
    const double limit_us = model_->device->max_submit_us;
    if (us > limit_us && n_chunk_ > 16)
        n_chunk_ /= 2;
    else if (us < limit_us / 2)
        n_chunk_ = std::min(2 * n_chunk_, n_chunk_max_);
    return {};
}

Status VulkanContext::barrier() {
    if (model_->device->gpu->lost) return lost_before();  // what is mapped could still be read, but may be anything
    return timeline_.last() == 0 ? Status() : timeline_.wait(timeline_.last());
}

Status VulkanContext::invalidate(const Region& r) const { return model_->device->gpu->flush(r, r.bytes, false); }

Status VulkanContext::check_idle() const {
    if (n_flight_ == 0) return {};
    return fail(Code::bad_argument, n_flight_, " cycles are queued, expected none; wait() for them first");
}

void VulkanContext::forget_rows() {
    read_slot_ = kNoSlot;
    read_n_ = 0;
}

// -------------------------------------------------------------------------------------- steps

Status VulkanContext::check(const Step& step) const {
    AUSPEX_TRY(check_step(step, *model_->plan, options_));
    return check_idle();
}

Status VulkanContext::run(const Step& step) {
    AUSPEX_TRY(check(step));
    loop_started_ = false;
    forget_rows();
    const bool trunk = step.tape == &model_->plan->trunk;
    AUSPEX_TRY(trunk ? run_trunk(step) : run_mtp(step));
    n_last_row_ = step.n_row;
    if (step.n_logit != 0) {
        logits_slot_ = step.tape->logits;
        AUSPEX_TRY(barrier());
        AUSPEX_TRY(invalidate(buffers_.logits_host));
    }
    return {};
}

Status VulkanContext::run_trunk(const Step& step) {
    uint32_t index = 0;
    args::StepRequest* request = nullptr;
    Recording *open = nullptr, *body = nullptr, *head = nullptr;
    few_rows_ = step.n_row <= kMaxTentative;
    if (few_rows_) {
        AUSPEX_TRY(body_recording(step, step.n_row).get(body));
        if (step.n_logit != 0 && step.n_logit != step.n_row)
            AUSPEX_TRY(head_recording(*step.tape, step.n_logit, true).get(head));
        AUSPEX_TRY(take_request(&index).get(request));
        AUSPEX_TRY(open_recording(index).get(open));
        request->n_row = request->n_id = step.n_row;
        request->position = step.first_row;
        request->rotary_shift = step.position - step.first_row;
        request->first_logit = step.n_row - step.n_logit;
        request->tentative = 1;
        request->n_commit = n_pending_;
        request->flags = args::kRequestTrunk;
        std::memcpy(request + 1, step.ids, step.n_row * sizeof(Token));
        AUSPEX_TRY(submit({open, body, head}));
        n_pending_ = step.tentative ? 0 : step.n_row;
        return {};
    }
    // Many rows: pieces whose kept rows lie one after the other.
    const bool small = model_->small();
    Step piece = step;
    piece.n_logit = 0;
    for (uint32_t at = 0; at < step.n_row;) {
        const uint32_t n = std::min(small ? kMaxTentative : n_chunk_, step.n_row - at);
        const bool last = at + n == step.n_row;
        AUSPEX_TRY((small ? body_recording(piece, n) : wide_recording(*step.tape, row_class(n), false)).get(body));
        AUSPEX_TRY(take_request(&index).get(request));
        AUSPEX_TRY(open_recording(index).get(open));
        request->n_row = request->n_id = n;
        request->position = step.first_row + at;
        request->rotary_shift = step.position - step.first_row;
        request->first_logit = n - step.n_logit;  // may count back into the piece before: modulo 2^32
        request->n_commit = n_pending_;
        request->hidden_from = at;
        request->tentative = small;
        request->flags = args::kRequestTrunk;
        std::memcpy(request + 1, step.ids + at, n * sizeof(Token));
        AUSPEX_TRY(submit({open}));
        AUSPEX_TRY(submit_wide(body, n));
        AUSPEX_TRY(keep_raw_rows(step.n_row, at, n));
        n_pending_ = small ? n : 0;
        if (last && step.n_logit != 0) {
            AUSPEX_TRY(head_recording(*step.tape, step.n_logit, false).get(head));
            AUSPEX_TRY(submit({head}));
        }
        at += n;
    }
    return {};
}

/// Where the hidden rows are the residual stream itself, the next piece overwrites them: they are kept in raw_hidden.
Status VulkanContext::keep_raw_rows(uint32_t n_row, uint32_t at, uint32_t n) {
    const Region &kept = buffers_.raw_hidden, &rows = buffers_.row[model_->plan->trunk.hidden];
    if (kept.bytes == 0 || n == n_row) return {};
    AUSPEX_TRY(finish_wide());  // the piece may still run
    const uint64_t one = uint64_t{model_->plan->d_model} * sizeof(float);
    AUSPEX_TRY(transfer_.copy(kept.part(at * one, n * one), rows.part(0, n * one)));
    if (at + n == n_row) AUSPEX_TRY(transfer_.copy(rows.part(0, n_row * one), kept.part(0, n_row * one)));
    return transfer_.finish();
}

Status VulkanContext::run_mtp(const Step& step) {
    Recording *body = nullptr, *head = nullptr;
    const bool wide = step.n_row > kMaxTentative;
    if (wide)
        AUSPEX_TRY(wide_recording(*step.tape, row_class(step.n_row), step.fill_only).get(body));
    else
        AUSPEX_TRY(body_recording(step, step.n_row).get(body));
    if (step.n_logit != 0 && (wide || step.n_logit != step.n_row))
        AUSPEX_TRY(head_recording(*step.tape, step.n_logit, false).get(head));
    return submit_mtp(step, body, head);
}

Status VulkanContext::submit_mtp(const Step& step, const Recording* body, const Recording* head) {
    uint32_t index = 0;
    args::StepRequest* request = nullptr;
    Recording* open = nullptr;
    if (step.hidden) {
        AUSPEX_TRY(barrier());  // an earlier step may still read what was given to it
        std::memcpy(buffers_.given.mapped, step.hidden, uint64_t{step.n_row} * model_->plan->d_model * sizeof(float));
    }
    AUSPEX_TRY(take_request(&index).get(request));
    AUSPEX_TRY(open_recording(index).get(open));
    request->n_row = request->n_id = step.n_row;
    request->position = step.first_row;
    request->rotary_shift = step.position - step.first_row;
    request->token_shift = 1;
    request->first_logit = step.n_row - step.n_logit;
    request->tentative = 1;
    request->first_key = step.first_key;
    request->hidden_from = step.hidden           ? args::kHiddenGiven
                           : step.hidden_pending ? args::kHiddenPending
                                                 : step.hidden_from;
    std::memcpy(request + 1, step.ids, step.n_row * sizeof(Token));
    return submit({open, body, head});
}

Status VulkanContext::head(const Tape& tape, uint32_t first, uint32_t n) {
    if (n == 0 || n > kMaxTentative || first + n > buffers_.n_row_max)
        return fail(Code::bad_argument, "logits of rows ", first, "..", first + n, " were asked for");
    AUSPEX_TRY(check_idle());
    uint32_t index = 0;
    args::StepRequest* request = nullptr;
    Recording *open = nullptr, *body = nullptr;
    AUSPEX_TRY(head_recording(tape, n, few_rows_ && &tape == &model_->plan->trunk).get(body));
    AUSPEX_TRY(take_request(&index).get(request));
    AUSPEX_TRY(open_recording(index).get(open));
    request->n_row = first + n;
    request->first_logit = first;
    request->tentative = 1;
    AUSPEX_TRY(submit({open, body}));
    logits_slot_ = tape.logits;
    AUSPEX_TRY(barrier());
    return invalidate(buffers_.logits_host);
}

void VulkanContext::reset() {
    n_pending_ = n_last_row_ = 0;
    n_flight_ = flight_begin_ = ring_read_ = 0;
    loop_started_ = false;
    forget_rows();
    logits_slot_ = kNoSlot;
    must_reset_ = true;
    (void)finish_reset();  // what fails is tried again, and reported, by the next step
}

Status VulkanContext::finish_reset() {
    if (!must_reset_) return {};
    AUSPEX_TRY(barrier());
    AUSPEX_TRY(timeline_.submit(reset_.handle()).status());
    must_reset_ = false;
    return {};
}

Result<Span<const float>> VulkanContext::read_row(SlotId slot, uint32_t row) {
    const Plan& plan = *model_->plan;
    const uint32_t width = static_cast<uint32_t>(plan.slot(slot).width());
    if (slot == logits_slot_ && row < kMaxTentative)
        return Span<const float>(reinterpret_cast<const float*>(buffers_.logits_host.mapped) + size_t{row} * width,
                                 width);
    const Region& rows = buffers_.row[slot];
    const uint64_t row_bytes = uint64_t{width} * sizeof(float);
    if (rows.bytes < (row + uint64_t{1}) * row_bytes)
        return fail(Code::bad_argument, "row ", row, " of '", plan.slot(slot).name, "' was asked for; there are ",
                    rows.bytes / row_bytes);
    if (read_slot_ != slot || row < read_first_ || row >= read_first_ + read_n_) {
        AUSPEX_TRY(barrier());
        const uint32_t n =
            std::min<uint32_t>(context_impl::kReadRows, static_cast<uint32_t>(rows.bytes / row_bytes) - row);
        read_back_.resize(size_t{n} * width);
        AUSPEX_TRY(transfer_.read(rows.part(row * row_bytes, n * row_bytes), read_back_.data(), n * row_bytes));
        read_slot_ = slot;
        read_first_ = row;
        read_n_ = n;
    }
    return Span<const float>(read_back_.data() + size_t{row - read_first_} * width, width);
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

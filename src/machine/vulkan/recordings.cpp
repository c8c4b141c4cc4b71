// machine/vulkan/recordings: which dispatches each kind of recording holds, and the recordings made so far.
//
// Tests   tests/test_vulkan_model.cpp, tests/test_device_loop.cpp.
#include "context.h"
#ifndef AUSPEX_NO_VULKAN

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

const Tape& VulkanContext::tape_of(const RecordingKey& key) const {
    return key.tape == 0 ? model_->plan->trunk : model_->plan->mtp[key.tape - 1];
}

void VulkanContext::append(ListBuilder& b, const RecordingKey& key) const {
    using Kind = RecordingKey::Kind;
    const Tape &trunk = model_->plan->trunk, &tape = tape_of(key);
    switch (key.kind) {
        case Kind::open: return b.open_request(key.n);
        case Kind::narrow: {
            Pass pass;
            pass.tape = &tape;
            pass.n_row = key.n;
            pass.fill_only = key.fill_only;
            pass.head = key.logits;
            b.tape(pass);
            if (key.logits) b.logits_to_host(tape, key.n);  // first: the barrier before it must be one for copies
            if (key.keep) b.keep(key.n);
            return;
        }
        case Kind::wide: return;  // in parts: build()
        case Kind::head:
            b.head(tape, key.n,
                   key.few           ? ListBuilder::HeadRows::of_pass
                   : &tape == &trunk ? ListBuilder::HeadRows::kept
                                     : ListBuilder::HeadRows::normed);
            return b.logits_to_host(tape, key.n);
        case Kind::apply: return b.apply_records(trunk, key.n);
        case Kind::cycle: b.open_next(key.n - 1); return append_verify(b, key);
        case Kind::draft:
            if (key.next) b.mtp_open();
            append_drafts(b, key);
            if (key.open) b.open_next(key.n_draft);
            return;
        case Kind::verify: return append_verify(b, key);
        case Kind::guess: return append_guesses(b, key);
        case Kind::resample: return b.resample(trunk, key.n, SampleMode::of(key.mode).noise);
    }
}

/// How drafts are sampled. Noise belongs to ids: an index into a draft vocabulary would get another id's, so the
/// likeliest is drafted, without penalties.
SampleMode VulkanContext::draft_mode(uint32_t bits) const {
    SampleMode mode = SampleMode::of(bits);
    if (buffers_.draft.n_id != 0) mode.noise = mode.penalties = false;
    return mode;
}

void VulkanContext::append_drafts(ListBuilder& b, const RecordingKey& key) const {
    const Plan& plan = *model_->plan;
    const uint32_t n_block = static_cast<uint32_t>(plan.mtp.size());
    const SampleMode mode = draft_mode(key.mode);
    /// The rows that became history, for a block that does not guess from them.
    auto fill = [&](uint32_t block) {
        Pass pass;
        pass.tape = &plan.mtp[block];
        pass.n_row = key.n;
        pass.fill_only = true;
        if (block != 0) b.mtp_block(1, 0);
        b.tape(pass);
    };
    if (n_block > 1) b.mtp_block(0, 0);
    uint32_t block = 0;
    for (uint32_t depth = 1; depth <= key.n_draft; ++depth) {
        const uint32_t before = block;
        block = plan.mtp_block(depth);
        const Tape& tape = plan.mtp[block];
        Pass pass;
        pass.tape = &tape;
        pass.largest = mode.plain();
        if (depth == 1) {  // the rows that became history
            pass.n_row = key.n;
        } else if (block == before) {  // the guess before this one
            pass.hidden_slot = tape.hidden;
        } else {  // another block has seen nothing of this cycle
            fill(block);
            b.mtp_block(2, depth - 1);
            pass.n_row = depth - 1;
            pass.from_guesses = true;
        }
        pass.head = pass.n_row == 1;
        b.tape(pass);
        if (!pass.head) b.head(tape, 1, ListBuilder::HeadRows::normed, pass.largest);
        b.sample(tape, 1, mode, pass.largest);
        b.mtp_next(tape, depth - 1);
        if (depth < key.n_draft && depth < n_block) b.keep_guess(tape, depth - 1);
    }
    for (block = key.n_draft == 0 ? 0 : block + 1; block < n_block; ++block) fill(block);
}

void VulkanContext::append_verify(ListBuilder& b, const RecordingKey& key) const {
    const Tape& trunk = model_->plan->trunk;
    const SampleMode mode = SampleMode::of(key.mode);
    Pass pass;
    pass.tape = &trunk;
    pass.n_row = key.n;
    pass.head = true;
    pass.largest = mode.plain();
    b.tape(pass);
    if (key.keep) b.keep(key.n);
    b.sample(trunk, key.n, mode, pass.largest);
    b.accept();
}

void VulkanContext::append_guesses(ListBuilder& b, const RecordingKey& key) const {
    const SampleMode mode = draft_mode(key.mode);
    Pass pass;
    pass.tape = &model_->plan->mtp[0];
    pass.n_row = key.n;
    pass.head = true;
    pass.largest = mode.plain();
    b.tape(pass);
    b.sample(*pass.tape, key.n, mode, pass.largest);
    b.sampled_to_host(key.n);
}

Result<std::vector<DispatchList>> VulkanContext::build(const RecordingKey& key) const {
    ListBuilder builder(*model_, buffers_);
    std::vector<DispatchList> lists;
    auto add = [&](const ListBuilder::Piece& piece) {
        lists.emplace_back();
        return builder.build(piece).get(lists.back());
    };
    if (key.kind != RecordingKey::Kind::wide) {
        AUSPEX_TRY(add([&](ListBuilder& b) { append(b, key); }));
        return lists;
    }
    Pass pass;
    pass.tape = &tape_of(key);
    pass.n_row = key.n;
    pass.wide = true;
    pass.fill_only = key.fill_only;
    const std::vector<const Node*> nodes = builder.nodes_of(pass);
    for (uint32_t from = 0, to = 0; from < nodes.size(); from = to) {
        while (to < nodes.size() && nodes[to]->layer == nodes[from]->layer) ++to;
        AUSPEX_TRY(add([&](ListBuilder& b) { b.tape(pass, from, to); }));
    }
    return lists;
}

Result<VulkanContext::Recording*> VulkanContext::recording(const RecordingKey& key) {
    auto found = recordings_.find(key);
    if (found != recordings_.end()) return &found->second;
    Pipelines& pipelines = *model_->device->pipelines;
    std::vector<DispatchList> lists;
    if (auto prepared = prepared_.find(key); prepared != prepared_.end()) {
        lists.push_back(std::move(prepared->second));
        prepared_.erase(prepared);
    } else {
        AUSPEX_TRY(build(key).get(lists));
    }
    std::vector<std::vector<Pipelines::Id>> ids;  // all of them first: they are made in parallel
    for (const DispatchList& list : lists) ids.push_back(list.request(&pipelines));
    Recording made;
    made.parts.resize(lists.size());
    for (size_t i = 0; i < lists.size(); ++i) {
        AUSPEX_TRY(Commands::create(model_->device->gpu, 0, pool_).get(made.parts[i]));
        AUSPEX_TRY(lists[i].record(pipelines, ids[i], &made.parts[i]));
    }
    recorded_ = true;
    return &(recordings_[key] = std::move(made));
}

Status VulkanContext::prepare_list(uint32_t n_draft, const RecordingKey& key) {
    std::vector<DispatchList> lists;
    AUSPEX_TRY(build(key).get(lists));
    for (DispatchList& list : lists) {
        const std::vector<Pipelines::Id> ids = list.request(model_->device->pipelines.get());
        needs_[n_draft].insert(needs_[n_draft].end(), ids.begin(), ids.end());
    }
    if (lists.size() == 1 && recordings_.count(key) == 0) prepared_[key] = std::move(lists[0]);
    return {};
}

Result<VulkanContext::Recording*> VulkanContext::open_recording(uint32_t request) {
    RecordingKey key;
    key.kind = RecordingKey::Kind::open;
    key.n = request;
    return recording(key);
}

Result<VulkanContext::Recording*> VulkanContext::wide_recording(const Tape& tape, uint32_t n_row, bool fill_only) {
    RecordingKey key;
    key.kind = RecordingKey::Kind::wide;
    key.tape = model_->tape_index(tape);
    key.n = n_row;
    key.fill_only = fill_only;
    return recording(key);
}

Result<VulkanContext::Recording*> VulkanContext::head_recording(const Tape& tape, uint32_t n, bool few) {
    RecordingKey key;
    key.kind = RecordingKey::Kind::head;
    key.tape = model_->tape_index(tape);
    key.n = n;
    key.few = few;
    return recording(key);
}

/// A tentative step, or the few rows of an MTP block; with the logits of all rows when all are asked for.
Result<VulkanContext::Recording*> VulkanContext::body_recording(const Step& step, uint32_t n_row) {
    RecordingKey key;
    key.kind = RecordingKey::Kind::narrow;
    key.tape = model_->tape_index(*step.tape);
    key.n = n_row;
    key.fill_only = step.fill_only;
    key.logits = step.n_logit == n_row;
    key.keep = options_.mtp && key.tape == 0;
    return recording(key);
}

Result<VulkanContext::Recording*> VulkanContext::draft_recording(uint32_t n_row, uint32_t n_draft, bool next,
                                                                 bool open) {
    RecordingKey key;
    key.kind = RecordingKey::Kind::draft;
    key.n = n_row;
    key.n_draft = n_draft;
    key.mode = mode_.bits();
    key.next = next;
    key.open = open;
    return recording(key);
}

Result<VulkanContext::Recording*> VulkanContext::verify_recording(uint32_t n_row, bool keep) {
    RecordingKey key;
    key.kind = RecordingKey::Kind::verify;
    key.n = n_row;
    key.mode = mode_.bits();
    key.keep = keep;
    return recording(key);
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

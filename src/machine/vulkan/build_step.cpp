// machine/vulkan/build_step: what begins and ends a pass: step kernels, rows kept or moved, logits, sampling.
#include "list_builder.h"
#ifndef AUSPEX_NO_VULKAN
#include "../../../shaders/rows_args.h"

#include <cstddef>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

args::StepArgs ListBuilder::step_args() const {
    args::StepArgs a{};
    a.token_shift = 1;
    a.ring_length = kRingLength;
    return a;
}

args::StepArgs ListBuilder::step_args_with_shares() const {
    args::StepArgs a = step_args();
    a.min_probability = buffers_.min_probability;
    if (a.min_probability > 0)
        a.n_part = ceil_div(buffers_.draft.n_id != 0 ? buffers_.draft.n_id : plan_.n_vocab, args::kShareSlice);
    return a;
}

void ListBuilder::open_request(uint32_t request) {
    uses({{id(kShare)}, {id(kStep)}});
    dispatch(key_of("step_open", 256), {buffers_.step, buffers_.request[request], shares()}, step_args_with_shares(),
             {}, "step");
}

void ListBuilder::open_next(uint32_t n_draft) {
    args::StepArgs a = step_args_with_shares();
    a.mode = 1;
    a.n_draft = n_draft;
    uses({{id(kShare)}, {id(kStep)}});
    dispatch(key_of("step_open", 256), {buffers_.step, buffers_.request[0], shares()}, a, {}, "step");
}

void ListBuilder::accept() {
    uses({{}, {id(kStep), id(kRing)}});
    dispatch(key_of("step_accept", 32), {buffers_.step, buffers_.ring}, step_args(), {}, "step");
}

void ListBuilder::mtp_open() {
    uses({{}, {id(kStep)}});
    dispatch(key_of("step_mtp", 32), {buffers_.step}, step_args(), {}, "step");
}

void ListBuilder::mtp_next(const Tape& tape, uint32_t i) {
    const bool chosen = buffers_.draft.n_id != 0;  // sampled_ids are places in the draft vocabulary
    args::StepArgs a = step_args_with_shares();
    a.mode = chosen;
    a.guess = i;
    uses({{id(kShare)}, {id(kStep)}});
    dispatch(key_of("step_next", 32), {buffers_.step, chosen ? buffers_.draft.ids : buffers_.step, shares()}, a, {},
             "step");
    if (a.n_part == 0) return;
    // Runs beside the first kernels of the next pass.
    uses({{id(kStep), tape.logits}, {id(kShare)}});
    dispatch(key_of("sample_share", 256), {buffers_.step, buffers_.row[tape.logits], buffers_.share},
             args::ShareArgs{n_vocab_of(tape), a.n_part, i}, {a.n_part}, "sample",
             uint64_t{n_vocab_of(tape)} * sizeof(float));
}

void ListBuilder::mtp_block(uint32_t mode, uint32_t n_guess) {
    args::StepArgs a = step_args();
    a.mode = mode;
    a.n_draft = n_guess;
    uses({{}, {id(kStep)}});
    dispatch(key_of("step_block", 32), {buffers_.step}, a, {}, "step");
}

void ListBuilder::keep_guess(const Tape& tape, uint32_t i) {
    args::RowsArgs a{};
    a.width = width(tape.hidden);
    a.x_stride = a.y_stride = stride(tape.hidden);
    a.y_offset = i * a.y_stride;
    uses({{id(kStep), tape.hidden}, {id(kGuessHidden)}});
    dispatch(key_of("copy_rows", kRowGroup),
             {buffers_.step, buffers_.row[tape.hidden], buffers_.given, buffers_.guess_hidden, buffers_.pending_hidden},
             a, {1, ceil_div(a.width, kRowGroup)}, "rows");
}

void ListBuilder::keep(uint32_t n_row) {
    const SlotId hidden = plan_.trunk.hidden;
    args::RowsArgs a{};
    a.width = width(hidden);
    a.x_stride = stride(hidden);
    uses({{id(kStep), hidden}, {id(kPendingHidden)}});
    dispatch(key_of("keep_rows", kRowGroup), {buffers_.step, buffers_.row[hidden], buffers_.pending_hidden}, a,
             {n_row, ceil_div(a.width, kRowGroup)}, "rows");
}

void ListBuilder::sampled_to_host(uint32_t n) {
    uses({{id(kStep)}, {id(kLogitsHost)}}, true);
    const uint64_t bytes = uint64_t{n} * sizeof(uint32_t);
    list_.copy(buffers_.logits_host.part(0, bytes), buffers_.step.part(offsetof(args::StepState, sampled), bytes));
}

void ListBuilder::logits_to_host(const Tape& tape, uint32_t n) {
    uses({{tape.logits}, {id(kLogitsHost)}}, true);
    const uint64_t bytes = uint64_t{n} * width(tape.logits) * sizeof(float);
    list_.copy(buffers_.logits_host.part(0, bytes), buffers_.row[tape.logits].part(0, bytes));
}

args::SamplePassArgs ListBuilder::sample_args(const Tape& tape) const {
    args::SamplePassArgs a{};
    a.n_vocab = n_vocab_of(tape);
    a.logits_stride = width(tape.logits);
    a.n_part = ceil_div(a.n_vocab, kSampleSlice);
    a.d_part = kSampleSlice;
    return a;
}

void ListBuilder::sample_largest(const Tape& tape, const args::SamplePassArgs& a, uint32_t n) {
    uses({{id(kStep), tape.logits}, {id(kSamplePart)}});
    dispatch(key_of("sample_part", 256), {buffers_.step, buffers_.row[tape.logits], buffers_.sample_part}, a,
             {a.n_part, n}, "sample", uint64_t{n} * a.n_vocab * sizeof(float));
}

void ListBuilder::sample_final(const args::SamplePassArgs& a, uint32_t n) {
    uses({{id(kSamplePart)}, {id(kStep)}});
    dispatch(key_of("sample_final", 256), {buffers_.step, buffers_.sample_part}, a, {n}, "sample");
}

void ListBuilder::sample_noisy(const Tape& tape, const args::SamplePassArgs& a, uint32_t n, uint32_t from) {
    const Region& logits = buffers_.row[tape.logits];
    const Grid parts{a.n_part, n};
    const uint64_t bytes = uint64_t{n} * a.n_vocab * sizeof(float);
    uses({{id(kStep), tape.logits, id(kSamplePart)}, {id(kSampleHist)}});
    dispatch(key_of("sample_hist", 256), {buffers_.step, logits, buffers_.sample_part, buffers_.sample_hist}, a, parts,
             "sample", bytes);
    uses({{id(kStep), tape.logits, id(kSamplePart)}, {id(kSampleHist), id(kSampleList), id(kSampleBest)}});
    dispatch(
        key_of("sample_gather", 256, {{spec::sample_gather::kFrom, from}}),
        {buffers_.step, logits, buffers_.sample_part, buffers_.sample_hist, buffers_.sample_list, buffers_.sample_best},
        a, parts, "sample", bytes);
    uses({{id(kSamplePart), id(kSampleList), id(kSampleBest)}, {id(kSampleHist), id(kStep)}});
    dispatch(key_of("sample_draw", 256, {{spec::sample_draw::kFrom, from}}),
             {buffers_.step, buffers_.sample_part, buffers_.sample_hist, buffers_.sample_list, buffers_.sample_best}, a,
             {n}, "sample");
}

void ListBuilder::sample(const Tape& tape, uint32_t n, SampleMode mode, bool largest) {
    args::SamplePassArgs a = sample_args(tape);
    if (largest) {
        a.n_part = n_largest_;
        return sample_final(a, n);
    }
    if (mode.bias) {
        args::SamplePassArgs biased = a;
        biased.chosen = has_chosen_ids(tape);
        const Region& ids = has_chosen_ids(tape) ? buffers_.draft.ids : buffers_.step;
        uses({{id(kStep)}, {tape.logits}});
        dispatch(key_of("sample_bias", 256), {buffers_.step, buffers_.row[tape.logits], ids}, biased, {n}, "sample");
    }
    if (mode.penalties) {
        uses({{id(kStep)}, {tape.logits}});
        dispatch(key_of("sample_penalty", 256), {buffers_.step, buffers_.row[tape.logits]}, a, {n}, "sample");
    }
    sample_largest(tape, a, n);
    if (mode.noise)
        sample_noisy(tape, a, n, args::kSampleAll);
    else
        sample_final(a, n);
}

void ListBuilder::resample(const Tape& tape, uint32_t row, bool noise) {
    args::SamplePassArgs a = sample_args(tape);
    a.logits_offset = row * a.logits_stride;
    args::ResampleArgs r{0, row, ceil_div(a.n_vocab, 32u), kRingLength};
    const auto step = [&] {
        uses({{}, {id(kStep), id(kRing)}});
        dispatch(key_of("step_resample", 256), {buffers_.step, buffers_.allowed, buffers_.ring}, r, {}, "step");
    };
    step();
    if (noise) {  // of what the filters keep of all ids; biases and penalties are in the logits already
        sample_largest(tape, a, 1);
        sample_noisy(tape, a, 1, args::kSampleAllowed);
    }
    uses({{id(kStep)}, {tape.logits}});
    dispatch(key_of("sample_mask", 256), {buffers_.step, buffers_.row[tape.logits]}, a, {a.n_part}, "sample");
    sample_largest(tape, a, 1);
    if (noise)
        sample_noisy(tape, a, 1, args::kSampleUnless);
    else
        sample_final(a, 1);
    r.mode = 1;
    step();
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

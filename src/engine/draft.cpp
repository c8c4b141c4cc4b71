#include "draft.h"

#include <algorithm>
#include <cmath>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace draft_impl {
namespace {

/// Its share of the softmax over `logits`.
float probability(Span<const float> logits, float chosen) {
    double sum = 0;
    for (float l : logits)
        if (!std::isnan(l)) sum += std::exp(double{l} - double{chosen});
    return static_cast<float>(1 / sum);
}

}  // namespace
}  // namespace draft_impl

Result<uint32_t> ForcedText::propose(const DraftRequest& request) {
    const std::string text = constrained_.forced(kMaxBytes);
    if (text.empty()) return 0u;
    const std::vector<Token> ids = tokenizer_.encode(text, false);
    const uint32_t n = std::min(request.n, static_cast<uint32_t>(ids.size()) - 1);
    std::copy_n(ids.begin(), n, request.to);
    return n;
}

Status MtpDraft::open(const Plan& plan, Context& context, MtpCache& cache, Sampler& sampler, const Allocator& from,
                      float min_probability) {
    AUSPEX_TRY(chain_.take(from, uint64_t{kMaxTentative} * plan.d_model * sizeof(float), "the drafts' hidden rows"));
    plan_ = &plan;
    context_ = &context;
    cache_ = &cache;
    sampler_ = &sampler;
    min_probability_ = min_probability;
    return {};
}

/// One draft: what it begins with, and how far it is.
struct MtpDraft::Draft {
    Span<const Token> history;
    MtpCache::Lead lead;
    uint32_t block = 0;  ///< of the last guess
};

/// The step of the block that makes guess `depth`; its head is asked for.
Step MtpDraft::next_step(const Draft& d, uint32_t depth) const {
    const size_t end = d.history.size() - 1;
    const uint32_t block = plan_->mtp_block(depth);
    Step step;
    step.tape = &plan_->mtp[block];
    step.first_key = d.lead.first_key;
    step.n_logit = 1;
    if (depth == 1) {  // the true rows that the cache lacks, and the first guess, in one
        step.n_row = d.lead.n_row;
        step.place(d.lead.first_row);
        step.hidden_from = d.lead.hidden_from;
    } else if (block == d.block) {
        step.n_row = 1;
        step.place(static_cast<uint32_t>(end + depth - 2));
        step.hidden = chain_.as<float>() + size_t{depth - 2} * plan_->d_model;
    } else {  // a block that has seen nothing of this draft yet: all guesses so far
        step.n_row = depth - 1;
        step.place(static_cast<uint32_t>(end));
        step.hidden = chain_.as<float>();
    }
    step.ids = d.history.data() + step.first_row + 1;
    return step;
}

/// Gives a block that does not guess from them the true rows that its cache lacks.
Status MtpDraft::fill_block(const Draft& d, const Tape& tape) {
    Step step;
    step.tape = &tape;
    step.fill_only = true;
    step.first_key = d.lead.first_key;
    step.n_row = d.lead.n_row;
    step.place(d.lead.first_row);
    step.hidden_from = d.lead.hidden_from;
    step.ids = d.history.data() + step.first_row + 1;
    return context_->run(step);
}

Result<uint32_t> MtpDraft::propose(const DraftRequest& request) {
    Draft d;
    d.history = request.history;
    AUSPEX_TRY(cache_->lead(d.history).get(d.lead));
    if (d.lead.n_row == 0) return 0u;
    uint32_t n_guess = 0;
    for (uint32_t depth = 1; depth <= request.n; ++depth) {
        const uint32_t block = plan_->mtp_block(depth);
        if (depth > 1 && block != d.block) AUSPEX_TRY(fill_block(d, plan_->mtp[block]));
        const Step step = next_step(d, depth);
        AUSPEX_TRY(context_->run(step));
        d.block = block;
        Span<const float> logits;
        AUSPEX_TRY(context_->read_row(step.tape->logits, 0).get(logits));
        if (!ids_.empty()) logits = logits.subspan(0, ids_.size());
        const size_t size = d.history.size() + n_guess;
        const Token id =
            sampler_->sample(logits, request.sampling, size, Span<const Token>(d.history.data(), size), ids_);
        if (min_probability_ > 0) {
            const size_t at = ids_.empty()
                                  ? static_cast<size_t>(id)
                                  : static_cast<size_t>(std::lower_bound(ids_.begin(), ids_.end(), id) - ids_.begin());
            if (!(draft_impl::probability(logits, logits[at]) >= min_probability_)) break;
        }
        request.to[n_guess++] = id;
        if (depth == request.n) break;
        Span<const float> hidden;
        AUSPEX_TRY(context_->read_row(step.tape->hidden, step.n_row - 1).get(hidden));
        std::copy(hidden.begin(), hidden.end(), chain_.as<float>() + size_t{depth - 1} * plan_->d_model);
    }
    AUSPEX_TRY(finish(d));
    return n_guess;
}

/// Every block that made no guess still needs the true rows.
Status MtpDraft::finish(const Draft& d) {
    for (size_t i = d.block + 1; i < plan_->mtp.size(); ++i) AUSPEX_TRY(fill_block(d, plan_->mtp[i]));
    cache_->filled_to(d.history.size() - 1);
    return {};
}

Status MtpDraft::probe_step(Span<const Token> history, Step step, const Sampling& sampling,
                            const AcceptanceJudge* judge, bool by_device, AcceptanceProbe* seen) {
    const size_t first = step.first_row;
    Span<const Token> sampled_ids;
    for (size_t i = plan_->mtp.size(); i-- > 0;) {  // the first block last: it is the one that guesses
        step.tape = &plan_->mtp[i];
        step.fill_only = i > 0;
        step.n_logit = i > 0 ? 0 : step.n_row;
        if (i > 0 || !by_device)
            AUSPEX_TRY(context_->run(step));
        else
            AUSPEX_TRY(context_->device_loop()->guess(step).get(sampled_ids));
    }
    for (uint32_t i = 0; i < step.n_row; ++i) {
        const size_t at = first + i + 2;
        Token sample = 0;
        if (by_device) {
            const size_t index = static_cast<size_t>(sampled_ids[i]);
            sample = ids_.empty() ? sampled_ids[i] : index < ids_.size() ? ids_[index] : -1;
        } else {
            Span<const float> logits;
            AUSPEX_TRY(context_->read_row(step.tape->logits, i).get(logits));
            if (!ids_.empty()) logits = logits.subspan(0, ids_.size());
            sample = sampler_->sample(logits, sampling, at, history.subspan(0, at), ids_);
        }
        const bool hit = judge ? judge->accepts(at) : sample == history[at];
        seen->hits += hit;
        seen->order |= static_cast<uint32_t>(hit) << seen->n++;
    }
    return {};
}

Result<AcceptanceProbe> MtpDraft::acceptance_probe(Span<const Token> history, uint32_t n, const Sampling& sampling,
                                                   const AcceptanceJudge* judge, bool by_device) {
    AcceptanceProbe seen;
    const auto start = std::chrono::steady_clock::now();
    MtpCache::ProbeRows rows;
    AUSPEX_TRY(cache_->begin_probe(history, n).get(rows));
    if (rows.first == rows.end) return seen;
    double longest = 0, shortest = 1e9;  // of the steps of all kAcceptanceProbeRows
    for (size_t at = rows.first; at < rows.end;) {
        const auto step_start = std::chrono::steady_clock::now();
        const Step step = cache_->step_at(history, at, std::min<size_t>(rows.end - at, kAcceptanceProbeRows));
        AUSPEX_TRY(probe_step(history, step, sampling, judge, by_device, &seen));
        at += step.n_row;
        if (step.n_row < kAcceptanceProbeRows) continue;
        const double took = seconds_since(step_start);
        longest = std::max(longest, took);
        shortest = std::min(shortest, took);
    }
    cache_->filled_to(rows.n_row_after);
    // If one of several equal steps took longer, it included recording or a disturbance, which the next pass will not.
    // Subtract the difference.
    seen.seconds = seconds_since(start) - std::max(0.0, longest - shortest);
    return seen;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

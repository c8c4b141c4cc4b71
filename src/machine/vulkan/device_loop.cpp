// machine/vulkan/device_loop: cycles that the device runs by itself: draft, verify, sample, accept, and the next.
// The host only says how many drafts and reads the ring. Step kernels and passes: shaders/args.h.
#include "context.h"
#ifndef AUSPEX_NO_VULKAN

#include <algorithm>
#include <array>
#include <numeric>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace device_loop_impl {

/// Copies what AUSPEX_SAMPLING of shaders/args.h lists, and counts the biases. Does not compile unless that is every
/// field but the seed and what the host sees to: the constraint.
args::SampleArgs sample_args(const Sampling& s) {
#define AUSPEX_NAME(type, name) name,
    const auto& [AUSPEX_SAMPLING(AUSPEX_NAME) seed, constraint, constrained_from, logit_bias] = s;
#undef AUSPEX_NAME
    args::SampleArgs a{};
#define AUSPEX_COPY(type, name) a.name = static_cast<decltype(a.name)>(s.name);
    AUSPEX_SAMPLING(AUSPEX_COPY)
#undef AUSPEX_COPY
    if (is_greedy(s)) a.temperature = 0;
    a.seed_lo = static_cast<uint32_t>(seed);
    a.seed_hi = static_cast<uint32_t>(seed >> 32);
    a.n_bias = static_cast<uint32_t>(logit_bias.size());
    return a;
}

}  // namespace device_loop_impl

Status VulkanContext::start(const LoopStart& d) {
    AUSPEX_TRY(check_idle());
    if (d.history.empty())
        return Status(Code::bad_argument, "the history is empty, expected at least the token to run first");
    const uint64_t n = d.history.size();
    if (d.limit <= n || d.limit > options_.n_context)
        return fail(Code::bad_argument, "limit is ", d.limit, ", expected ", n + 1, "..", options_.n_context);
    if (d.stop.size() > 16) return fail(Code::bad_argument, d.stop.size(), " stop ids, expected at most 16");
    if (d.sampling.logit_bias.size() > kMaxLoopBias)
        return fail(Code::bad_argument, d.sampling.logit_bias.size(), " biases, expected at most ", kMaxLoopBias);
    if (d.n_mtp_row > kMaxTentative || d.n_mtp_row > n - 1)
        return fail(Code::bad_argument, "n_mtp_row is ", d.n_mtp_row, ", expected at most ",
                    std::min<uint64_t>(kMaxTentative, n - 1));
    if (d.n_mtp_row != 0 && !options_.mtp)
        return Status(Code::bad_argument, "n_mtp_row is set on a context opened without MTP");
    if (d.n_mtp_row != 0 && model_->plan->mtp.empty())
        return Status(Code::unsupported, "n_mtp_row is set, but the plan has no MTP block to draft with");
    loop_started_ = done_ = false;
    forget_rows();
    logits_slot_ = kNoSlot;
    mode_.noise = !is_greedy(d.sampling);
    mode_.penalties =
        d.sampling.penalty_window > 0 &&
        (d.sampling.repeat_penalty != 1 || d.sampling.frequency_penalty != 0 || d.sampling.presence_penalty != 0);
    mode_.bias = !d.sampling.logit_bias.empty();
    if (max_drafts_ != 0 && !(prepared_modes_ >> mode_.bits() & 1))
        AUSPEX_TRY(prepare(max_drafts_));  // another way to sample
    position_ = static_cast<uint32_t>(n - 1);
    limit_ = d.limit;
    n_mtp_row_ = d.n_mtp_row;
    // Requests: biases; what the penalties look back on; the MTP pass; the trunk pass, completed by queue().
    args::StepRequest* r = nullptr;
    uint32_t index = 0;
    if (mode_.bias) AUSPEX_TRY(send_bias(d.sampling.logit_bias));
    if (mode_.penalties) {
        const uint32_t k = std::min<uint32_t>(std::min(d.sampling.penalty_window, 4096u), position_ + 1);
        Recording* open = nullptr;
        AUSPEX_TRY(take_request(&index).get(r));
        AUSPEX_TRY(open_recording(index).get(open));
        r->position = position_ + 1 - k;
        r->n_id = k;
        std::memcpy(r + 1, d.history.data() + r->position, k * sizeof(Token));
        AUSPEX_TRY(submit({open}));
    }
    auto fill = [&](args::StepRequest* q) {
        q->flags |= args::kRequestSampling;
        q->limit = d.limit;
        q->n_stop = static_cast<uint32_t>(d.stop.size());
        for (uint32_t i = 0; i < q->n_stop; ++i) q->stop[i] = static_cast<uint32_t>(d.stop[i]);
        q->sampling = device_loop_impl::sample_args(d.sampling);
        q->synth_accept = d.synth_accept;
        q->synth_seed = d.synth_seed;
    };
    if (n_mtp_row_ != 0) {
        AUSPEX_TRY(take_request(&first_request_[0]).get(r));
        fill(r);
        r->n_row = r->n_id = n_mtp_row_;
        r->position = position_ - n_mtp_row_;
        r->token_shift = 1;
        r->first_logit = n_mtp_row_ - 1;
        r->tentative = 1;
        r->hidden_from = d.hidden_from;
        r->first_key = d.first_key;
        std::memcpy(r + 1, d.history.data() + position_ - n_mtp_row_ + 1, n_mtp_row_ * sizeof(Token));
    }
    AUSPEX_TRY(take_request(&first_request_[1]).get(r));
    fill(r);
    r->position = position_;
    r->tentative = 1;
    r->n_commit = n_pending_;
    r->n_id = 1;
    r->flags |= args::kRequestTrunk;
    const Token token = d.history[position_];
    std::memcpy(r + 1, &token, sizeof token);
    loop_started_ = first_ = true;
    return {};
}

/// Biases in the order of the step buffer.
Status VulkanContext::send_bias(const std::vector<LogitBias>& bias) {
    static_assert(kMaxLoopBias == args::kMaxBias, "backend.h and the shaders agree");
    std::array<uint16_t, kMaxLoopBias> order;
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(bias.size());
    std::iota(order.begin(), end, uint16_t{0});
    std::sort(order.begin(), end,
              [&](uint16_t a, uint16_t b) { return bias[a].id != bias[b].id ? bias[a].id < bias[b].id : a < b; });
    args::StepRequest* r = nullptr;
    Recording* open = nullptr;
    uint32_t index = 0;
    AUSPEX_TRY(take_request(&index).get(r));
    AUSPEX_TRY(open_recording(index).get(open));
    r->flags = args::kRequestBias;
    r->n_id = static_cast<uint32_t>(2 * bias.size());
    auto* to = reinterpret_cast<std::byte*>(r + 1);
    for (auto i = order.begin(); i != end; ++i) {
        const LogitBias& b = bias[*i];
        std::memcpy(to, &b.id, sizeof b.id);
        std::memcpy(to + sizeof b.id, &b.bias, sizeof b.bias);
        to += sizeof b.id + sizeof b.bias;
    }
    return submit({open});
}

/// The first cycle after start(): both passes are opened by the host's requests.
Status VulkanContext::queue_first(uint32_t n_draft, const Token* given) {
    auto* trunk = reinterpret_cast<args::StepRequest*>(buffers_.request[first_request_[1]].mapped);
    trunk->n_row = std::min(1 + n_draft, limit_ - position_);
    trunk->n_draft = trunk->n_row - 1;
    if (given) {
        std::memcpy(reinterpret_cast<Token*>(trunk + 1) + 1, given, n_draft * sizeof(Token));
        trunk->n_id = 1 + n_draft;
    }
    const uint32_t n_own = given ? 0 : n_draft;
    if (n_mtp_row_ != 0 && n_own != 0) trunk->flags |= args::kRequestDrafted;
    Recording *open_mtp = nullptr, *open_trunk = nullptr, *draft = nullptr, *verify = nullptr;
    if (n_mtp_row_ != 0) {
        AUSPEX_TRY(open_recording(first_request_[0]).get(open_mtp));
        AUSPEX_TRY(draft_recording(n_mtp_row_, n_own, false, false).get(draft));
    }
    AUSPEX_TRY(open_recording(first_request_[1]).get(open_trunk));
    const bool keep = n_mtp_row_ == 0 && options_.mtp;
    AUSPEX_TRY(verify_recording(1 + n_draft, keep).get(verify));
    for (uint32_t i : first_request_) request_value_[i] = timeline_.last() + 1;
    AUSPEX_TRY(submit_cycle({open_mtp, draft}, {open_trunk, verify}, n_mtp_row_ != 0 && n_draft == 0));
    n_pending_ = 0;
    few_rows_ = true;
    return {};
}

/// The trunk's part of a cycle that drafts is the same whatever came before: only the short part, in which the
/// block takes up the n_before_ rows of the last pass, is recorded for each pair of depths.
Status VulkanContext::queue_next(uint32_t n_draft) {
    Recording *draft = nullptr, *verify = nullptr;
    if (n_mtp_row_ == 0) {
        RecordingKey key;
        key.kind = RecordingKey::Kind::cycle;
        key.n = 1 + n_draft;
        key.mode = mode_.bits();
        key.keep = options_.mtp;
        AUSPEX_TRY(recording(key).get(verify));
        return submit_cycle({}, {verify}, false);
    }
    AUSPEX_TRY(draft_recording(n_before_, n_draft, true, true).get(draft));
    AUSPEX_TRY(verify_recording(1 + n_draft, false).get(verify));
    return submit_cycle({draft}, {verify}, n_draft == 0);
}

/// The trunk's pass is opened by a request that brings its drafts.
Status VulkanContext::queue_given(uint32_t n_draft, const Token* given) {
    args::StepRequest* request = nullptr;
    Recording *draft = nullptr, *open = nullptr, *verify = nullptr;
    uint32_t index = 0;
    AUSPEX_TRY(take_request(&index).get(request));
    request->flags = args::kRequestNext;
    request->n_id = n_draft;
    std::memcpy(request + 1, given, n_draft * sizeof(Token));
    if (n_mtp_row_ != 0) AUSPEX_TRY(draft_recording(n_before_, 0, true, false).get(draft));
    AUSPEX_TRY(open_recording(index).get(open));
    AUSPEX_TRY(verify_recording(1 + n_draft, n_mtp_row_ == 0 && options_.mtp).get(verify));
    return submit_cycle({draft}, {open, verify}, false);
}

Status VulkanContext::submit_cycle(std::initializer_list<const Recording*> block,
                                   std::initializer_list<const Recording*> trunk, bool apart) {
    const uint32_t slot = (flight_begin_ + n_flight_) % kMaxQueued;
    bool done = false;
    AUSPEX_TRY(timeline_.done(timeline_.last()).get(done));
    const bool first = n_flight_ == 0 || done;  // what it follows was no cycle, or is over
    list_.clear();
    clock_.begin(first, &list_);
    gather(block);
    if (apart) clock_.middle(&list_);
    gather(trunk);
    clock_.end(&list_);
    AUSPEX_TRY(timeline_.submit(list_).status());
    flight_[slot] = {timeline_.last(), clock_.submitted(), first, apart, false};
    ++n_flight_;
    for (uint32_t i = 0; recorded_ && i < n_flight_; ++i) flight_[(flight_begin_ + i) % kMaxQueued].cold = true;
    recorded_ = false;
    return {};
}

Status VulkanContext::prepare(uint32_t max_drafts) {
    const Plan& plan = *model_->plan;
    const bool block = !plan.mtp.empty() && options_.mtp;  // without one the caller gives the drafts
    max_drafts_ = max_drafts = std::min(max_drafts, kMaxTentative - 1);
    const auto key_of = [&](RecordingKey::Kind kind, uint32_t n) {
        RecordingKey key;
        key.kind = kind;
        key.n = n;
        key.mode = mode_.bits();
        return key;
    };
    // In the order in which depths are tried: pipelines are made in the order of the requests. The block may have to
    // take up more rows than a cycle leaves, after some cycles without drafts.
    for (const uint32_t g : {0u, 1u, 2u, 4u, 3u, 5u, 6u, 7u, 8u}) {
        RecordingKey verify = key_of(RecordingKey::Kind::verify, 1 + g);
        verify.keep = !block && options_.mtp;
        if (g <= max_drafts) AUSPEX_TRY(prepare_list(g, verify));
        if (g == 0) {
            RecordingKey plain = key_of(RecordingKey::Kind::cycle, 1);
            plain.keep = options_.mtp;
            AUSPEX_TRY(prepare_list(0, plain));
        }
        if (!block) continue;
        for (const uint32_t n_draft : {0u, g == 0 ? max_drafts : 1u}) {
            RecordingKey draft = key_of(RecordingKey::Kind::draft, 1 + g);
            draft.n_draft = n_draft;
            draft.next = draft.open = true;
            AUSPEX_TRY(prepare_list(0, draft));
        }
    }
    for (uint32_t i = 0; block && i < plan.mtp.size(); ++i)
        for (uint32_t n = row_class(1); n <= std::min(buffers_.n_row_max, row_class(kMaxPendingHidden)); n *= 2) {
            RecordingKey wide;
            wide.kind = RecordingKey::Kind::wide;
            wide.tape = 1 + i;
            wide.n = n;
            wide.fill_only = true;
            AUSPEX_TRY(prepare_list(0, wide));
        }
    for (uint32_t n = 1; block && n <= kAcceptanceProbeRows; ++n)
        AUSPEX_TRY(prepare_list(0, key_of(RecordingKey::Kind::guess, n)));
    RecordingKey apply;  // between steps of the loop and of the host
    apply.kind = RecordingKey::Kind::apply;
    apply.n = 1;
    AUSPEX_TRY(prepare_list(0, apply));
    prepared_modes_ |= 1u << mode_.bits();
    return {};
}

Result<Span<const Token>> VulkanContext::guess(const Step& step) {
    AUSPEX_TRY(check(step));
    if (step.tape != &model_->plan->mtp[0] || step.n_logit != step.n_row || step.n_row > kMaxTentative)
        return fail(Code::bad_argument, "guesses of ", step.n_row, " rows, expected 1..", kMaxTentative,
                    " of the first MTP block, all with logits");
    loop_started_ = false;
    forget_rows();
    Recording* body = nullptr;
    RecordingKey key;
    key.kind = RecordingKey::Kind::guess;
    key.n = step.n_row;
    key.mode = mode_.bits();
    AUSPEX_TRY(recording(key).get(body));
    AUSPEX_TRY(submit_mtp(step, body, nullptr));
    logits_slot_ = kNoSlot;  // what lay there is gone
    AUSPEX_TRY(barrier());
    AUSPEX_TRY(invalidate(buffers_.logits_host));
    const auto* sampled_ids = reinterpret_cast<const uint32_t*>(buffers_.logits_host.mapped);
    tokens_.assign(sampled_ids, sampled_ids + step.n_row);
    return Span<const Token>(tokens_);
}

bool VulkanContext::ready(uint32_t n_draft) {
    const Pipelines& pipelines = *model_->device->pipelines;
    for (const uint32_t at : {0u, std::min(n_draft, kMaxTentative - 1)}) {
        std::vector<Pipelines::Id>& ids = needs_[at];
        while (!ids.empty() && pipelines.done(ids.back())) ids.pop_back();
        if (!ids.empty()) return false;
    }
    return true;
}

Status VulkanContext::queue(uint32_t n_draft, const Token* given) {
    if (!loop_started_) return Status(Code::bad_argument, "start() comes before queue()");
    if (done_) return Status(Code::bad_argument, "the text has ended; start() again to go on");
    if (n_flight_ == kMaxQueued)
        return fail(Code::bad_argument, kMaxQueued, " cycles are queued already; wait() for one");
    if (n_draft >= kMaxTentative)
        return fail(Code::bad_argument, n_draft, " drafts, expected at most ", kMaxTentative - 1);
    if (n_draft == 0) given = nullptr;
    AUSPEX_TRY(first_ ? queue_first(n_draft, given) : given ? queue_given(n_draft, given) : queue_next(n_draft));
    first_ = false;
    n_before_ = 1 + n_draft;
    return {};
}

Result<Cycle> VulkanContext::wait() {
    if (n_flight_ == 0) return Status(Code::bad_argument, "no cycle is queued");
    const InFlight f = flight_[flight_begin_];
    Cycle c;
    AUSPEX_TRY(timeline_.done(f.value).get(c.ready));
    AUSPEX_TRY(timeline_.wait(f.value));
    AUSPEX_TRY(invalidate(buffers_.ring));
    CycleClock::Times times;
    AUSPEX_TRY(clock_.read(f.clock_slot, f.had_begin, f.had_middle).get(times));
    c.us = times.us;
    c.catch_up_us = times.block_us;
    c.cold = f.cold;
    read_ring(&c);
    if (c.tokens.empty() && !done_) return gave_no_token();
    flight_begin_ = (flight_begin_ + 1) % kMaxQueued;
    --n_flight_;
    return c;
}

/// What was submitted did not run: waits on a lost device may succeed.
Status VulkanContext::gave_no_token() {
    model_->device->gpu->lost = true;
    return Status(Code::device_lost, "a cycle gave no token: the Vulkan device was lost. Open the device again.");
}

void VulkanContext::read_ring(Cycle* c) {
    tokens_.clear();
    const auto* ring = reinterpret_cast<const args::RingEntry*>(buffers_.ring.mapped);
    for (bool last = false; !last && tokens_.size() < kMaxTentative; ++ring_read_) {
        const args::RingEntry& e = ring[ring_read_ % kRingLength];
        if (e.sequence != ring_read_ + 1) break;  // after the end nothing is emitted
        tokens_.push_back(static_cast<Token>(e.token));
        last = (e.info & args::kRingLast) != 0;
        if (!last) continue;
        c->n_draft = (e.info >> 8) & 255u;
        c->n_accept = (e.info >> 16) & 255u;
        done_ = done_ || (e.info & args::kRingDone) != 0;
        n_pending_ = c->n_accept + 1;
        n_last_row_ = c->n_draft + 1;
    }
    c->done = done_;
    c->tokens = tokens_;
}

Result<Cycle> VulkanContext::resample(uint32_t row, Span<const uint32_t> allowed) {
    if (!loop_started_ || first_ || n_flight_ != 0)
        return Status(Code::bad_argument, "a row is sampled again after its cycle was waited for and before the next");
    const size_t n_word = ceil_div<size_t>(model_->plan->n_vocab, 32);
    if (row >= n_last_row_ || allowed.size() != n_word)
        return fail(Code::bad_argument, "row ", row, " of ", n_last_row_, " was to be sampled again from ",
                    allowed.size(), " words of ids, expected ", n_word);
    RecordingKey key;
    key.kind = RecordingKey::Kind::resample;
    key.n = row;
    key.mode = SampleMode{mode_.noise, false}.bits();
    Recording* body = nullptr;
    AUSPEX_TRY(recording(key).get(body));
    std::memcpy(buffers_.allowed.mapped, allowed.data(), n_word * sizeof(uint32_t));
    AUSPEX_TRY(submit({body}));
    AUSPEX_TRY(barrier());
    AUSPEX_TRY(invalidate(buffers_.ring));
    Cycle c;
    done_ = false;
    read_ring(&c);
    if (c.tokens.empty()) return gave_no_token();
    return c;
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN

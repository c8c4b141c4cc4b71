#include "draft.h"

#include <algorithm>
#include <cmath>

namespace auspex {
namespace detail {
namespace draft_impl {

/// True for ids that text alone never gives; a draft-only head must be able to say them.
bool is_control(const Tokenizer& tokenizer, Token id) {
    if (static_cast<uint32_t>(id) >= tokenizer.n_vocab()) return false;
    const TokenKind kind = tokenizer.kind(id);
    return kind == TokenKind::control || kind == TokenKind::user_defined || tokenizer.is_end(id);
}

/// Its share of the softmax over `logits`.
float probability(Span<const float> logits, float chosen) {
    double sum = 0;
    for (float l : logits)
        if (!std::isnan(l)) sum += std::exp(double{l} - double{chosen});
    return static_cast<float>(1 / sum);
}

}  // namespace draft_impl

bool SyntheticAcceptance::agrees(size_t position) const {
    // A 32-bit finaliser (Chris Wellons, hash-prospector) over position and seed.
    uint32_t x = static_cast<uint32_t>(position) * 0x9E3779B9u ^ seed;
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    x ^= x >> 16;
    return static_cast<float>(x >> 8) < share * 16777216.0f;
}

uint32_t Lookup::propose(Span<const Token> history, uint32_t n, Token* to) {
    length_ = 0;
    const size_t size = history.size();
    if (size < kShortest + 1 || n == 0) return 0;
    const Token* h = history.data();
    const Token last = h[size - 1];
    const size_t low = size > kReach ? size - kReach : 0;
    size_t after = 0;
    for (size_t end = size - 1; end > low && length_ < kLongest; --end) {  // a match ends before `end`
        if (h[end - 1] != last) continue;
        uint32_t length = 1;
        while (length < kLongest && length < end - low && h[end - 1 - length] == h[size - 1 - length]) ++length;
        if (length <= length_) continue;
        length_ = length;
        after = end;
    }
    if (length_ < kShortest) return 0;
    // Where the earlier text ends, the guess goes on with itself: a period.
    for (uint32_t i = 0; i < n; ++i) to[i] = after + i < size ? h[after + i] : to[after + i - size];
    return n;
}

uint32_t Noise::propose(Span<const Token> history, uint32_t n, Token* to) {
    const Philox r = philox(static_cast<uint32_t>(history.size()), 0, 0, 1, seed_);
    const uint32_t count = r.word[0] % (n + 1);
    for (uint32_t i = 0; i < count; ++i) {
        const Philox p = philox(static_cast<uint32_t>(history.size()), i, 0, 2, seed_);
        switch (p.word[0] % 8) {
            case 0: to[i] = 0; break;
            case 1: to[i] = static_cast<Token>(n_vocab_ - 1); break;
            case 2: to[i] = i > 0 ? to[i - 1] : history[history.size() - 1]; break;
            case 3: to[i] = history[p.word[1] % history.size()]; break;
            default: to[i] = static_cast<Token>(p.word[1] % n_vocab_);
        }
    }
    return count;
}

Status Mtp::open(const Plan& plan, Context& context, const Allocator& from, uint32_t window, uint32_t n_row_most) {
    AUSPEX_TRY(chain_.take(from, uint64_t{kMaxTentative} * plan.d_model * sizeof(float), "the drafts' hidden rows"));
    plan_ = &plan;
    context_ = &context;
    window_ = window;
    n_row_most_ = n_row_most;
    return {};
}

void Mtp::forget() { first_ = n_kept_ = pending_hidden_ = first_key_ = n_row_ = 0; }

void Mtp::ran(size_t first, size_t n, bool tentative) {
    first_ = first;
    n_kept_ = n;
    if (!tentative) pending_hidden_ = first + n;
}

void Mtp::drove(size_t first, size_t n) {
    ran(first, n, true);
    n_row_ = first;
}

void Mtp::cut(size_t n) {
    n_row_ = std::min(n_row_, n > 0 ? n - 1 : 0);
    first_key_ = std::min(first_key_, n_row_);
    n_kept_ = n > first_ ? std::min(n_kept_, n - first_) : 0;
    pending_hidden_ = std::max(pending_hidden_, n_kept_ == 0 ? n : 0);
}

namespace draft_impl {

/// Tentative rows to come that may take the place of old ones: a step, and others queued behind it.
constexpr size_t kToCome = kMaxTentative * 3;

}  // namespace draft_impl

/// The first position whose hidden row is still at hand.
size_t Mtp::lowest() const {
    const size_t end = first_ + n_kept_ + draft_impl::kToCome,
                 low = end > kMaxPendingHidden ? end - kMaxPendingHidden : 0;
    return std::min(first_, std::max(pending_hidden_, low));
}

void Mtp::feed(Step* step) const {
    step->hidden_pending = step->first_row < first_;
    step->hidden_from = step->hidden_pending ? 0 : static_cast<uint32_t>(step->first_row - first_);
}

Status Mtp::fill(Span<const Token> history, bool lazy) {
    if (!on() || history.empty()) return {};
    const size_t end = std::min(first_ + n_kept_, history.size() - 1);
    // A row that the last one cannot see is not worth its time.
    const size_t seen = window_ != 0 && history.size() > window_ ? history.size() - window_ : 0;
    const size_t begin = std::max(std::max(n_row_, lowest()), seen);
    if (begin >= end ||
        (lazy && begin >= pending_hidden_ && end - begin + 1 + draft_impl::kToCome <= kMaxPendingHidden))
        return {};
    if (begin != n_row_) n_row_ = first_key_ = begin;
    return fill_to(history, end);
}

Result<bool> Mtp::lead(Span<const Token> history, LoopStart* drive) {
    const size_t end = history.size() - 1;  // the guess begins at row end - 1
    if (!on() || end == 0 || n_kept_ == 0 || first_ + n_kept_ != end) return false;
    n_row_ = std::min(n_row_, end - 1);
    if (n_row_ < lowest()) n_row_ = first_key_ = lowest();
    // A guess is led by few rows, all from one place.
    if (end - n_row_ > kMaxTentative || n_row_ < first_) AUSPEX_TRY(fill_to(history, end - 1));
    drive->n_mtp_row = static_cast<uint32_t>(end - n_row_);
    drive->hidden_from = static_cast<uint32_t>(n_row_ - first_);
    drive->first_key = static_cast<uint32_t>(first_key_);
    return true;
}

Status Mtp::acceptance_probe(Span<const Token> history, uint32_t n, const Sampling& sampling,
                             const SyntheticAcceptance& synthetic, bool driven, Sampler& sampler,
                             AcceptanceProbe* seen) {
    using Clock = std::chrono::steady_clock;
    *seen = AcceptanceProbe();
    if (!on() || history.size() < 3) return {};
    const auto start = Clock::now();
    const size_t end = std::min(first_ + n_kept_, history.size() - 2);  // row p guesses token p + 2
    const size_t begin = std::max(end - std::min<size_t>(n, end), lowest());
    if (begin >= end || begin + kMaxPendingHidden < end) return {};
    if (n_row_ < lowest()) n_row_ = first_key_ = lowest();  // what came before is lost to the block
    if (n_row_ < begin) AUSPEX_TRY(fill_to(history, begin));
    const size_t filled = std::max(n_row_, end);
    n_row_ = begin;  // what is there already is written again, the same
    Span<const Token> sampled_ids;
    double longest = 0, shortest = 1e9;  // of the steps of all kAcceptanceProbeRows
    while (n_row_ < end) {
        const auto step_start = Clock::now();
        Step step;
        step.n_row = step.n_logit = static_cast<uint32_t>(std::min<size_t>(end - n_row_, kAcceptanceProbeRows));
        step.ids = history.data() + n_row_ + 1;
        step.place(static_cast<uint32_t>(n_row_));
        step.first_key = static_cast<uint32_t>(first_key_);
        feed(&step);
        if (n_row_ < first_ && n_row_ + step.n_row > first_)
            step.n_row = step.n_logit = static_cast<uint32_t>(first_ - n_row_);
        for (size_t i = plan_->mtp.size(); i-- > 0;) {  // the first block last: it is the one that guesses
            step.tape = &plan_->mtp[i];
            step.fill_only = i > 0;
            step.n_logit = i > 0 ? 0 : step.n_row;
            if (i > 0 || !driven)
                AUSPEX_TRY(context_->run(step));
            else
                AUSPEX_TRY(context_->device_loop()->guess(step).get(sampled_ids));
        }
        for (uint32_t i = 0; i < step.n_row; ++i) {
            const size_t at = n_row_ + i + 2;
            Token sample = 0;
            if (driven) {
                const size_t place = static_cast<size_t>(sampled_ids[i]);
                sample = ids_.empty() ? sampled_ids[i] : place < ids_.size() ? ids_[place] : -1;
            } else {
                Span<const float> logits;
                AUSPEX_TRY(context_->read_row(step.tape->logits, i).get(logits));
                if (!ids_.empty()) logits = logits.subspan(0, ids_.size());
                sample = sampler.sample(logits, sampling, at, history.subspan(0, at), ids_);
            }
            const bool agrees = sample == history[at];
            const bool hit = synthetic.on() ? synthetic.agrees(at) : agrees;
            seen->hits += hit;
            seen->order |= static_cast<uint32_t>(hit) << seen->n++;
        }
        n_row_ += step.n_row;
        if (step.n_row < kAcceptanceProbeRows) continue;
        const double took = seconds_since(step_start);
        longest = std::max(longest, took);
        shortest = std::min(shortest, took);
    }
    n_row_ = filled;
    // Of equal steps one that takes longer was recorded for the first time, or disturbed: the next pass will not be.
    seen->seconds = seconds_since(start) - std::max(0.0, longest - shortest);
    return {};
}

Status Mtp::fill_to(Span<const Token> history, size_t end) {
    Step step;
    step.fill_only = true;
    step.first_key = static_cast<uint32_t>(first_key_);
    for (; n_row_ < end; n_row_ += step.n_row) {
        const size_t to = n_row_ < first_ ? std::min(first_, end) : end;  // from one place
        step.n_row = static_cast<uint32_t>(std::min<size_t>(to - n_row_, n_row_most_));
        step.ids = history.data() + n_row_ + 1;
        step.place(static_cast<uint32_t>(n_row_));
        feed(&step);
        for (const Tape& tape : plan_->mtp) {
            step.tape = &tape;
            AUSPEX_TRY(context_->run(step));
        }
    }
    return {};
}

Status Mtp::propose(std::vector<Token>& history, uint32_t n, const Sampling& sampling, float min_probability,
                    Sampler& sampler, uint32_t* n_guess) {
    *n_guess = 0;
    if (n == 0) return {};
    LoopStart led;
    bool at_hand = false;
    AUSPEX_TRY(lead(history, &led).get(at_hand));
    if (!at_hand) return {};
    const size_t end = history.size() - 1;
    const uint32_t d = plan_->d_model;
    float* chain = chain_.as<float>();
    Step step;
    step.first_key = static_cast<uint32_t>(first_key_);
    step.n_logit = 1;
    size_t i_tape = 0;
    for (uint32_t depth = 1; depth <= n; ++depth) {
        const uint32_t i_now = plan_->mtp_block(depth);
        step.tape = &plan_->mtp[i_now];
        step.hidden = nullptr;
        if (depth == 1) {  // the rows that became true since, and the first guess, in one
            step.n_row = led.n_mtp_row;
            step.place(static_cast<uint32_t>(n_row_));
            step.hidden_from = led.hidden_from;
        } else if (i_now == i_tape) {
            step.n_row = 1;
            step.place(static_cast<uint32_t>(end + depth - 2));
            step.hidden = chain + size_t{depth - 2} * d;
        } else {  // another block has seen nothing of this guess: first the true rows, then all of it
            step.n_row = led.n_mtp_row;
            step.place(static_cast<uint32_t>(n_row_));
            step.hidden_from = led.hidden_from;
            step.ids = history.data() + step.first_row + 1;
            step.n_logit = 0;
            step.fill_only = true;
            AUSPEX_TRY(context_->run(step));
            step.n_logit = 1;
            step.fill_only = false;
            step.place(static_cast<uint32_t>(end));
            step.n_row = depth - 1;
            step.hidden = chain;
        }
        step.ids = history.data() + step.first_row + 1;
        AUSPEX_TRY(context_->run(step));
        i_tape = i_now;
        Span<const float> logits;
        AUSPEX_TRY(context_->read_row(step.tape->logits, 0).get(logits));
        if (!ids_.empty()) logits = logits.subspan(0, ids_.size());
        const Token id = sampler.sample(logits, sampling, history.size(), history, ids_);
        if (min_probability > 0) {
            const size_t at = ids_.empty()
                                  ? static_cast<size_t>(id)
                                  : static_cast<size_t>(std::lower_bound(ids_.begin(), ids_.end(), id) - ids_.begin());
            if (!(draft_impl::probability(logits, logits[at]) >= min_probability)) break;
        }
        history.push_back(id);
        *n_guess += 1;
        if (depth == n) break;
        Span<const float> hidden;
        AUSPEX_TRY(context_->read_row(step.tape->hidden, step.n_row - 1).get(hidden));
        std::copy(hidden.begin(), hidden.end(), chain + size_t{depth - 1} * d);
    }
    // Every block that was not asked still needs the true rows.
    const size_t from = n_row_;
    for (size_t i = i_tape + 1; i < plan_->mtp.size(); ++i) {
        step = Step();
        step.tape = &plan_->mtp[i];
        step.fill_only = true;
        step.ids = history.data() + from + 1;
        step.place(static_cast<uint32_t>(from));
        step.n_row = static_cast<uint32_t>(end - from);
        step.hidden_from = static_cast<uint32_t>(from - first_);
        step.first_key = static_cast<uint32_t>(first_key_);
        AUSPEX_TRY(context_->run(step));
    }
    n_row_ = end;
    return {};
}

std::vector<Token> choose_draft_vocab(const Tokenizer& tokenizer, uint32_t n_vocab, uint32_t n,
                                      Span<const uint32_t> count) {
    std::vector<Token> ids, rest;
    for (uint32_t i = 0; i < n_vocab; ++i) {
        const Token id = static_cast<Token>(i);
        const bool text = i < tokenizer.n_vocab() && tokenizer.kind(id) != TokenKind::unused;
        if (draft_impl::is_control(tokenizer, id))
            ids.push_back(id);
        else if (text)
            rest.push_back(id);
    }
    const size_t n_rest = std::min<size_t>(rest.size(), n > ids.size() ? n - ids.size() : 0);
    if (!count.empty())
        std::stable_sort(rest.begin(), rest.end(), [&](Token a, Token b) {
            return count[static_cast<size_t>(a)] > count[static_cast<size_t>(b)];
        });
    ids.insert(ids.end(), rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(n_rest));
    std::sort(ids.begin(), ids.end());
    return ids;
}

Result<std::vector<Token>> check_draft_vocab(const Tokenizer& tokenizer, uint32_t n_vocab, Span<const Token> given) {
    std::vector<Token> ids(given.begin(), given.end());
    for (size_t i = 0; i < ids.size(); ++i)
        if (ids[i] < 0 || static_cast<uint32_t>(ids[i]) >= n_vocab)
            return fail(Code::bad_argument, "draft.vocab: entry ", i, " is id ", ids[i], ", expected 0..", n_vocab - 1);
    for (uint32_t i = 0; i < tokenizer.n_vocab() && i < n_vocab; ++i)
        if (draft_impl::is_control(tokenizer, static_cast<Token>(i))) ids.push_back(static_cast<Token>(i));
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
}

}  // namespace detail
}  // namespace auspex

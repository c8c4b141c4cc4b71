#include "mtp_cache.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace mtp_impl {

/// Tentative rows to come that may overwrite old hidden rows: a step, and others queued after it.
constexpr size_t kToCome = kMaxTentative * 3;

}  // namespace mtp_impl

void MtpCache::open(const Plan& plan, Context& context, uint32_t window, uint32_t n_row_max) {
    plan_ = &plan;
    context_ = &context;
    window_ = window;
    n_row_max_ = n_row_max;
}

void MtpCache::forget() {
    first_ = n_kept_ = pending_first_ = first_key_ = n_row_ = 0;
    given_.clear();
}

MtpCache::Kept MtpCache::kept(size_t row) const {
    Kept k;
    k.first_key = first_key_;
    k.n_row = n_row_;
    const bool in_step = n_kept_ != 0 && first_ + n_kept_ == row, given = !given_.empty() && given_at_ + 1 == row;
    k.has_hidden = on() && n_row_ + 1 >= row && (in_step || given);
    if (k.has_hidden) k.hidden_row = in_step ? static_cast<uint32_t>(n_kept_ - 1) : kGiven;
    return k;
}

void MtpCache::resume(size_t row, const Kept& kept, std::vector<float> hidden) {
    forget();
    ran(row, 0, false);
    first_key_ = kept.first_key;
    n_row_ = std::min(kept.n_row, row > 0 ? row - 1 : 0);  // the next one takes the token at `row`
    given_ = std::move(hidden);
    given_at_ = row - 1;
}

Status MtpCache::read_hidden(const Kept& kept, std::vector<float>* to) const {
    to->clear();
    if (!kept.has_hidden) return {};
    if (kept.hidden_row == kGiven) {
        *to = given_;
        return {};
    }
    Span<const float> row;
    AUSPEX_TRY(context_->read_row(plan_->trunk.hidden, kept.hidden_row).get(row));
    to->assign(row.begin(), row.end());
    return {};
}

/// Fills the rows of `step` in the cache of every block.
Status MtpCache::fill_rows(Step step) {
    step.fill_only = true;
    for (const Tape& tape : plan_->mtp) {
        step.tape = &tape;
        AUSPEX_TRY(context_->run(step));
    }
    return {};
}

/// The row that resume() could not fill: its token was not known then. given_ stays: a state that is kept before the
/// next trunk step needs it.
Status MtpCache::fill_given(Span<const Token> history) {
    if (given_.empty() || n_row_ != given_at_ || history.size() < given_at_ + 2) return {};
    Step step;
    step.ids = history.data() + given_at_ + 1;
    step.n_row = 1;
    step.place(static_cast<uint32_t>(given_at_));
    step.first_key = static_cast<uint32_t>(first_key_);
    step.hidden = given_.data();
    AUSPEX_TRY(fill_rows(step));
    filled_to(n_row_ + 1);
    return {};
}

void MtpCache::ran(size_t first, size_t n, bool tentative) {
    first_ = first;
    n_kept_ = n;
    if (!tentative) pending_first_ = first + n;
}

void MtpCache::ran_on_device(size_t first, size_t n) {
    ran(first, n, true);
    filled_to(first);
}

void MtpCache::cut(size_t n) {
    n_row_ = std::min(n_row_, n > 0 ? n - 1 : 0);
    first_key_ = std::min(first_key_, n_row_);
    n_kept_ = n > first_ ? std::min(n_kept_, n - first_) : 0;
    pending_first_ = std::max(pending_first_, n_kept_ == 0 ? n : 0);
    if (n <= given_at_) given_.clear();
}

/// The first row whose hidden row is still kept.
size_t MtpCache::lowest() const {
    const size_t end = first_ + n_kept_ + mtp_impl::kToCome,
                 low = end > kMaxPendingHidden ? end - kMaxPendingHidden : 0;
    return std::min(first_, std::max(pending_first_, low));
}

Step MtpCache::step_at(Span<const Token> history, size_t first, size_t n_max) const {
    if (first < first_) n_max = std::min(n_max, first_ - first);
    Step step;
    step.n_row = static_cast<uint32_t>(n_max);
    step.ids = history.data() + first + 1;
    step.place(static_cast<uint32_t>(first));
    step.first_key = static_cast<uint32_t>(first_key_);
    step.hidden_pending = first < first_;
    step.hidden_from = step.hidden_pending ? 0 : static_cast<uint32_t>(first - first_);
    return step;
}

Status MtpCache::fill(Span<const Token> history) { return fill_from(history, false); }
Status MtpCache::fill_lazily(Span<const Token> history) { return fill_from(history, true); }

Status MtpCache::fill_from(Span<const Token> history, bool lazy) {
    if (!on() || history.empty()) return {};
    AUSPEX_TRY(fill_given(history));
    const size_t end = std::min(first_ + n_kept_, history.size() - 1);
    // A row that the last one cannot see is not worth its time.
    const size_t seen = window_ != 0 && history.size() > window_ ? history.size() - window_ : 0;
    const size_t begin = std::max(std::max(n_row_, lowest()), seen);
    if (begin >= end) return {};
    if (lazy && begin >= pending_first_ && end - begin + 1 + mtp_impl::kToCome <= kMaxPendingHidden) return {};
    if (begin != n_row_) n_row_ = first_key_ = begin;
    return fill_to(history, end);
}

Status MtpCache::fill_to(Span<const Token> history, size_t end) {
    while (n_row_ < end) {
        Step step = step_at(history, n_row_, std::min<size_t>(end - n_row_, n_row_max_));
        AUSPEX_TRY(fill_rows(step));
        filled_to(n_row_ + step.n_row);
    }
    return {};
}

Result<MtpCache::Lead> MtpCache::lead(Span<const Token> history) {
    Lead lead;
    const size_t end = history.size() - 1;  // the first guess comes from row end - 1
    if (!on() || end == 0 || n_kept_ == 0 || first_ + n_kept_ != end) return lead;
    n_row_ = std::min(n_row_, end - 1);
    if (n_row_ < lowest()) n_row_ = first_key_ = lowest();
    if (end - n_row_ > kMaxTentative || n_row_ < first_) AUSPEX_TRY(fill_to(history, end - 1));
    lead.n_row = static_cast<uint32_t>(end - n_row_);
    lead.first_row = static_cast<uint32_t>(n_row_);
    lead.hidden_from = static_cast<uint32_t>(n_row_ - first_);
    lead.first_key = static_cast<uint32_t>(first_key_);
    return lead;
}

Result<MtpCache::ProbeRows> MtpCache::begin_probe(Span<const Token> history, uint32_t n) {
    ProbeRows rows;
    if (!on() || history.size() < 3) return rows;
    const size_t end = std::min(first_ + n_kept_, history.size() - 2);  // row p guesses token p + 2
    const size_t begin = std::max(end - std::min<size_t>(n, end), lowest());
    if (begin >= end || begin + kMaxPendingHidden < end) return rows;
    if (n_row_ < lowest()) n_row_ = first_key_ = lowest();  // what came before is lost to the block
    if (n_row_ < begin) AUSPEX_TRY(fill_to(history, begin));
    rows.first = begin;
    rows.end = end;
    rows.n_row_after = std::max(n_row_, end);
    n_row_ = begin;
    return rows;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

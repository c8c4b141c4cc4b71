#include "trunk.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

Trunk::Trunk(const Model::Impl& model, const SessionOptions& options, Context& context, Timeline& timeline,
             MtpCache& cache, Stats& stats)
    : model_(model), options_(options), context_(context), timeline_(timeline), cache_(cache), stats_(stats) {
    for (const LayerWindow& w : stats.windows)  // those of draft blocks do not change the text and are not reported
        if (w.window != 0 && w.layer < model.plan.n_layer)
            windows_.push_back({w.layer, w.window, w.sinks, size_t{w.window} + w.sinks + 1});
    std::sort(windows_.begin(), windows_.end(), [](const WindowFull& a, const WindowFull& b) {
        return a.n_token != b.n_token ? a.n_token < b.n_token : a.layer < b.layer;
    });
}

Status Trunk::track(Status s) {
    if (s.code == Code::device_lost) lost_ = true;
    return s;
}

Status Trunk::alive() const {
    return lost_ ? Status(Code::device_lost,
                          "the device was lost earlier; open one, load the model there and call move_to()")
                 : Status();
}

Status Trunk::run(const Step& step) {
    at_ = LogitsAt::nowhere;  // whatever comes of it
    restored_ = std::vector<float>();
    timeline_.close_step();
    marks_->wrote(step.first_row, size_t{step.first_row} + step.n_row);
    return change_state([&] { return context_.run(step); });
}

Status Trunk::run_prefill(size_t n) {
    const size_t first = timeline_.n_row();
    Step step;
    step.tape = &model_.plan.trunk;
    step.ids = timeline_.tokens().data() + first;
    step.n_row = static_cast<uint32_t>(n);
    step.place(static_cast<uint32_t>(first));
    step.n_logit = first + n == timeline_.size() ? 1 : 0;
    AUSPEX_TRY(run(step));
    timeline_.prefilled(n);
    cache_.ran(first, n, false);
    stats_.rows_prefilled += n;
    if (step.n_logit == 0) return {};
    at_ = LogitsAt::context;
    i_logit_ = 0;
    return {};
}

/// The context holds no more than n rows of the live history.
void Trunk::shorten_tree(size_t n) {
    if (n < tree_->n_row() && !tree_->step_back(n)) tree_->lose_context();
}

void Trunk::follow() {
    tree_->recover();
    const Span<const Token> tokens = timeline_.tokens();
    // Tokens of a cancelled prompt are still in the tree, and others may have been sampled in their place since.
    const size_t n_row = timeline_.n_row(), same = timeline_.common_prefix(tree_->tokens());
    shorten_tree(std::min(n_row, same));
    tree_->truncate(same);
    for (size_t i = tree_->tokens().size(); i < tokens.size(); ++i) tree_->append(tokens[i]);
    if (n_row == tree_->n_row()) return;
    const Span<const RowSpan> spans = timeline_.spans();
    const bool decoded = spans[spans.size() - 1].origin == RowOrigin::decoded;
    tree_->computed(n_row - tree_->n_row(), decoded);
}

/// Rows of the next step of a prefill up to `end`. Steps end on the grid, and a rest of few rows, which other kernels
/// run, is a step of its own, also before a row whose state is kept. So the bits do not depend on n_ubatch from kGrid +
/// kFewRows on; less than that may end a step of few rows on the grid.
size_t Trunk::next_piece(size_t end) const {
    constexpr size_t kGrid = kPrefixGrid, kFewRows = 16;
    const size_t at = timeline_.n_row(), stop = tree_->next_stop();
    if (stop > at) end = std::min(end, stop);
    const size_t last = end / kGrid * kGrid;
    size_t to = std::min<size_t>(end, at + options_.n_ubatch);
    if (to < end && to / kGrid * kGrid > at) to = to / kGrid * kGrid;
    if (to > last && end - last <= kFewRows && last > at) to = last;
    return to - at;
}

bool Trunk::ask_to_go_on(const char* what, size_t n_done, size_t n) const {
    if (*cancel_) return false;
    return !options_.progress || options_.progress(what, static_cast<float>(n_done) / static_cast<float>(n));
}

/// The same while the rows begin .. end are read.
bool Trunk::ask_to_go_on(size_t begin, size_t end) const {
    return ask_to_go_on("reading the prompt", timeline_.n_row() - begin, end - begin);
}

Status Trunk::fill_draft_cache(size_t n) { return track(cache_.fill(timeline_.tokens().subspan(0, n))); }

Status Trunk::run_piece(size_t end) {
    const size_t n = next_piece(end);
    make_room(n);
    AUSPEX_TRY(run_prefill(n));
    AUSPEX_TRY(fill_draft_cache());
    tree_->computed(n);
    return {};
}

Status Trunk::prefill(size_t n, size_t n_keep) {
    follow();
    kept_at_ = std::chrono::steady_clock::now();
    const size_t begin = timeline_.n_row(), end = begin + n;
    if (n != 0) AUSPEX_TRY(fill_draft_cache());
    while (timeline_.n_row() < end) {
        if (!ask_to_go_on(begin, end)) {
            timeline_.truncate(std::max(timeline_.n_row(), n_keep));
            cache_.cut(timeline_.size());
            return Status(Code::cancelled, "reading the prompt was cancelled by cancel() or the progress callback");
        }
        AUSPEX_TRY(run_piece(end));
        report_windows();
    }
    if (n != 0) (void)ask_to_go_on(begin, end);  // 1.0: there is nothing left to cancel
    return {};
}

Status Trunk::verify(uint32_t n_guess) {
    const size_t first = timeline_.n_row();
    Step step;
    step.tape = &model_.plan.trunk;
    step.ids = timeline_.tokens().data() + first;
    step.n_row = step.n_logit = 1 + n_guess;
    step.place(static_cast<uint32_t>(first));
    step.tentative = true;
    make_room(step.n_row);
    return run(step);
}

Result<Span<const float>> Trunk::verified_row(uint32_t i) {
    Result<Span<const float>> row = context_.read_row(model_.plan.trunk.logits, i);
    if (!row.ok()) return track(row.status());
    return row;
}

void Trunk::commit(uint32_t n) {
    context_.commit(n);
    cache_.ran(timeline_.n_row(), n, true);
    timeline_.decoded(n);
    at_ = LogitsAt::context;
    i_logit_ = n - 1;
}

void Trunk::discard() {
    context_.commit(0);
    cache_.ran(timeline_.n_row(), 0, true);  // the step has overwritten the hidden rows of the one before
}

void Trunk::ran_on_device(size_t n) {
    marks_->wrote(timeline_.n_row(), timeline_.n_row() + n + kMaxTentative);  // and rows that it discarded
    timeline_.decoded(n);
    at_ = LogitsAt::nowhere;
}

void Trunk::begin_device_loop() {
    timeline_.close_step();
    at_ = LogitsAt::nowhere;
    restored_ = std::vector<float>();
}

bool Trunk::must_keep_reply() const {
    const size_t n = timeline_.n_row();
    if (n <= tree_->n_row()) return false;
    if (tree_->is_reply_row(n)) return true;
    if (!tree_->is_recent_due(n)) return false;
    return seconds_since(kept_at_) >= recent_s_;
}

Status Trunk::keep_reply() {
    AUSPEX_TRY(fill_draft_cache());
    follow();
    tree_->keep_reply();
    kept_at_ = std::chrono::steady_clock::now();
    return {};
}

void Trunk::step_back(size_t n) {
    const size_t first = timeline_.step_first();
    shorten_tree(n);
    timeline_.step_back(n);
    context_.commit(static_cast<uint32_t>(n - first));
    if (at_ != LogitsAt::context || n == first)
        at_ = LogitsAt::nowhere;
    else
        i_logit_ = static_cast<uint32_t>(n - first - 1);
}

bool Trunk::can_step_back(size_t n, size_t n_token) const {
    const bool loses_logits = n == n_token && n == timeline_.step_first();
    return timeline_.can_step_back(n) && !loses_logits;
}

Status Trunk::rewind(size_t n, size_t n_token) {
    cache_.cut(n_token);
    if (can_step_back(n, n_token)) {
        step_back(n);
    } else if (n < timeline_.n_row()) {
        AUSPEX_TRY(recompute(n, n_token, true));  // what was computed after row n is in the recurrent state
        shorten_tree(n);
    }
    timeline_.truncate(n_token);
    return {};
}

Status Trunk::repair(bool may_stop) {
    again_from_ = SIZE_MAX;
    if (!damaged()) return {};
    const size_t n = redo_.empty() ? timeline_.n_row() : redo_.back().first + redo_.back().n;
    return recompute(n, timeline_.size(), may_stop);
}

Status Trunk::recompute(size_t n, size_t n_token, bool may_stop) {
    if (redo_.empty() || damaged_) AUSPEX_TRY(begin_recompute(n, n_token));  // else the rows so far are good
    n = std::min(n, timeline_.size());
    const size_t begin = timeline_.n_row();
    if (begin < n) {
        again_from_ = std::min(again_from_, begin);
        AUSPEX_TRY(fill_draft_cache());
    }
    AUSPEX_TRY(run_spans(redo_, n, [&] { return !may_stop || ask_to_go_on(begin, n); }));
    redo_.clear();
    return {};
}

/// Goes back to the nearest checkpoint, and notes what is to be computed.
Status Trunk::begin_recompute(size_t n, size_t n_token) {
    std::vector<RowSpan> spans(std::move(redo_));  // of a recomputation that failed
    // Rows that the tree knows of: its checkpoints belong to them.
    const size_t n_known = spans.empty() ? std::min(n, timeline_.common_prefix(tree_->tokens())) : 0;
    if (spans.empty()) spans.assign(timeline_.spans().begin(), timeline_.spans().end());
    while (!spans.empty() && spans.back().first >= n) spans.pop_back();
    if (!spans.empty()) spans.back().n = std::min(spans.back().n, n - spans.back().first);
    const size_t n_reported = n_window_full_;
    restart(n_token);
    redo_ = std::move(spans);
    const Status s = n_known != 0 ? tree_->load_nearest(n_known).status() : Status();
    damaged_ = !s.ok();
    n_window_full_ = n_reported;
    return s;
}

/// Runs the rows that are missing of the first n. go_on: asked before each piece.
template <class F>
Status Trunk::run_spans(const std::vector<RowSpan>& spans, size_t n, F go_on) {
    for (const RowSpan& span : spans) {
        const size_t end = std::min(span.first + span.n, n);
        const bool decoded = span.origin == RowOrigin::decoded;
        const size_t at_once = decoded ? kMaxTentative : options_.n_ubatch;
        while (timeline_.n_row() < end) {
            const size_t k = std::min(end - timeline_.n_row(), at_once);
            if (!go_on())
                return Status(Code::cancelled,
                              "computing rows again was cancelled by cancel() or the progress callback");
            if (decoded) {
                AUSPEX_TRY(verify(static_cast<uint32_t>(k) - 1));
                commit(static_cast<uint32_t>(k));
                stats_.rows_decoded += k;
            } else {
                AUSPEX_TRY(run_prefill(k));
            }
            AUSPEX_TRY(fill_draft_cache());
        }
    }
    return {};
}

Status Trunk::compute_as(const std::vector<RowSpan>& spans, size_t n) {
    const size_t begin = timeline_.n_row();
    if (begin >= n) return {};
    AUSPEX_TRY(run_spans(spans, n, [&] { return ask_to_go_on(begin, n); }));
    (void)ask_to_go_on(begin, n);  // 1.0: there is nothing left to cancel
    count_full_windows();
    return {};
}

void Trunk::restart(size_t n_keep) {
    context_.reset();
    damaged_ = false;
    redo_.clear();
    cache_.forget();
    timeline_.restart(n_keep);
    n_window_full_ = 0;
    at_ = LogitsAt::nowhere;
}

Status Trunk::save_state(StatePart part, StateWriter& to) {
    timeline_.close_step();  // its records are applied
    return change_state([&] { return context_.save_state(part, static_cast<uint32_t>(timeline_.n_row()), to); });
}

Status Trunk::begin_save(StateWriter& to) {
    timeline_.close_step();  // its records are applied
    return change_state(
        [&] { return context_.state_saver()->begin_save(static_cast<uint32_t>(timeline_.n_row()), to); });
}

Status Trunk::load_state(size_t row, const std::vector<RowSpan>& spans, StateReader& from) {
    const uint32_t n = static_cast<uint32_t>(row);
    at_ = LogitsAt::nowhere;
    timeline_.resume(row, spans);
    AUSPEX_TRY(change_state([&] { return context_.restore_state(StatePart::trunk, n, from); }));
    AUSPEX_TRY(track(context_.restore_state(StatePart::draft, n, from)));
    count_full_windows();
    return {};
}

/// Of a text that has filled them before.
void Trunk::count_full_windows() {
    const auto full = [&](const WindowFull& w) { return w.n_token <= timeline_.n_row(); };
    n_window_full_ = static_cast<size_t>(std::count_if(windows_.begin(), windows_.end(), full));
}

void Trunk::continue_from(const Timeline& other, std::vector<float> logits) {
    damaged_ = false;
    timeline_.copy(other);
    count_full_windows();
    set_logits(std::move(logits));
}

void Trunk::set_logits(std::vector<float> logits) {
    restored_ = std::move(logits);
    at_ = restored_.empty() ? LogitsAt::nowhere : LogitsAt::restored;
}

std::vector<RowSpan> Trunk::spans() const {
    return std::vector<RowSpan>(timeline_.spans().begin(), timeline_.spans().end());
}

void Trunk::take_back(Span<const Token> tokens, std::vector<RowSpan> spans) {
    restart(0);
    timeline_.assign(tokens);
    redo_ = std::move(spans);
}

void Trunk::loaded(Span<const Token> tokens, std::vector<float> logits) {
    timeline_.assign(tokens);
    set_logits(std::move(logits));
}

void Trunk::restored(Span<const Token> tokens, size_t n_row, const std::vector<RowSpan>& spans,
                     std::vector<float> logits) {
    marks_->wrote(0, n_row);
    damaged_ = false;
    redo_.clear();
    cache_.forget();  // its rows, and the kept hidden rows, belong to the text before
    cache_.ran(n_row, 0, false);
    timeline_.resume(n_row, spans);
    timeline_.assign(tokens);
    count_full_windows();
    set_logits(std::move(logits));
}

Status Trunk::find_logits() {
    const uint32_t n_kept = static_cast<uint32_t>(cache_.n_kept());
    if (has_logits() || n_kept == 0 || cache_.first() + n_kept != timeline_.n_row()) return {};
    AUSPEX_TRY(track(context_.head(model_.plan.trunk, n_kept - 1, 1)));
    at_ = LogitsAt::context;
    i_logit_ = 0;
    return {};
}

Result<Span<const float>> Trunk::last_logits() {
    if (at_ == LogitsAt::restored) return Span<const float>(restored_);
    return verified_row(i_logit_);
}

void Trunk::report_windows() {
    while (n_window_full_ < windows_.size() && timeline_.n_row() >= windows_[n_window_full_].n_token) {
        WindowFull now = windows_[n_window_full_++];
        now.n_token = timeline_.n_row();
        if (n_window_full_ > n_window_skipped_ && options_.on_window_full) options_.on_window_full(now);
    }
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

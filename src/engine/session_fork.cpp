// engine/session_fork: Session::fork and Session::move_to: a second session at the same row, on the same device or
// another.
//
// Both make a whole new session and fill it. A fork, and a move from a device that still answers to one of the same
// kind, copy rows, state and checkpoints. After a loss the rows are computed again in the pieces in which they were
// computed, so that they have the same bits and checkpoints that rest on them stay valid. Another kind of device rounds
// otherwise: there the history is a new prompt.
// Thread  belongs to one session.
// Tests   tests/test_fork.cpp, tests/test_move.cpp, tests/test_vulkan_move.cpp.
#include "session.h"

#include "../base/guard.h"

#include "snapshot.h"

#include <algorithm>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace session_fork_impl {
namespace {

using namespace detail;
using Impl = Session::Impl;
using Pieces = std::vector<std::byte>;

constexpr uint32_t kRowsAtOnce = 256;  ///< copied by way of the host

/// A session of the same options. cancel: what stops it.
Result<std::unique_ptr<Impl>> open_like(const Impl& from, std::shared_ptr<Model::Impl> model,
                                        std::shared_ptr<std::atomic<bool>> cancel) {
    auto impl = std::make_unique<Impl>();
    impl->model = std::move(model);
    impl->options = from.options;
    impl->cancel = std::move(cancel);
    AUSPEX_TRY(impl->open());
    impl->host_only = from.host_only;
    return impl;
}

/// Copies rows 0 .. n_kept - 1 of one part by way of the host.
Status pipe_rows(Impl& from, Impl& to, StatePart part, uint32_t n_kept, Pieces* bytes) {
    const uint32_t n_max = from.context->kv_row_bytes(part) != 0 ? n_kept : 0;
    for (uint32_t at = 0; at < n_max; at += kRowsAtOnce) {
        const uint32_t n = std::min(kRowsAtOnce, n_max - at);
        bytes->clear();
        VectorWriter writer(bytes);
        AUSPEX_TRY(from.trunk->track(from.context->save_rows({part, at, n}, writer)));
        SpanReader reader(*bytes);
        AUSPEX_TRY(to.trunk->track(to.context->restore_rows({part, at, n}, reader)));
    }
    return {};
}

Status pipe_state(Impl& from, Impl& to, StatePart part, uint32_t n_row, Pieces* bytes) {
    bytes->clear();
    bytes->reserve(static_cast<size_t>(from.context->state_bytes(part, n_row)));
    VectorWriter writer(bytes);
    AUSPEX_TRY(from.trunk->save_state(part, writer));
    SpanReader reader(*bytes);
    return to.trunk->track(to.context->restore_state(part, n_row, reader));
}

Status copy_context(Impl& from, Impl& to, uint32_t n_row, uint32_t n_kept) {
    StateCopier* copier = from.model == to.model ? to.context->state_copier() : nullptr;
    if (copier) {
        from.timeline.close_step();  // its records are applied
        return from.trunk->change_state([&] { return copier->copy(*from.context, n_row, n_kept); });
    }
    Pieces bytes;
    for (const StatePart part : {StatePart::trunk, StatePart::draft}) {
        AUSPEX_TRY(pipe_rows(from, to, part, n_kept, &bytes));
        AUSPEX_TRY(pipe_state(from, to, part, n_row, &bytes));
    }
    return {};
}

/// What is kept of other texts: checkpoints and parked rows.
void copy_kept(const Impl& from, Impl& to) {
    to.store->copy(*from.store, from.tree->spare_items());
    to.tree = std::make_unique<PrefixTree>(*from.tree, *to.store);
    to.trunk->set_tree(*to.tree);
}

/// Brings `to` to the row at which `from` is; nothing of `from` is queued. Both have contexts of one layout.
Status copy_session(Impl& from, Impl& to) {
    Trunk& trunk = *from.trunk;
    trunk.follow();
    const size_t n_row = from.timeline.n_row();
    // The next token is sampled from the last row's logits, at once or when the token after that row is taken back.
    Span<const float> logits;
    AUSPEX_TRY(trunk.find_logits());
    if (trunk.has_logits()) AUSPEX_TRY(trunk.last_logits().get(logits));
    std::vector<float> kept(logits.begin(), logits.end()), hidden;
    AUSPEX_TRY(trunk.fill_draft_cache());
    const MtpCache::Kept mtp = from.cache.kept(n_row);
    AUSPEX_TRY(trunk.track(from.cache.read_hidden(mtp, &hidden)));
    AUSPEX_TRY(copy_context(from, to, static_cast<uint32_t>(n_row), static_cast<uint32_t>(from.tree->context_rows())));
    to.trunk->continue_from(from.timeline, std::move(kept));
    if (to.cache.on()) to.cache.resume(n_row, mtp, std::move(hidden));
    copy_kept(from, to);
    to.ahead = from.ahead;
    AUSPEX_TRY(to.vocab.copy(from.vocab));
    AUSPEX_TRY(to.constrained.copy(from.constrained));
    to.depth->copy(*from.depth, true);
    return {};
}

// -------------------------------------------------------------------------------------- moving

/// Brings `to` to the row at which `from` was when its device was lost.
Status compute_session(Impl& from, Impl& to, SyncReport* report) {
    const size_t n_given = from.timeline.n_given();
    const bool ahead = from.timeline.size() > n_given;  // tokens that the caller has not seen are sampled again
    const std::vector<RowSpan> spans = from.trunk->known_spans();
    size_t n = spans.empty() ? 0 : spans.back().first + spans.back().n;
    n = std::min(n, ahead ? n_given - 1 : n_given);
    to.timeline.assign(from.timeline.tokens().subspan(0, n_given));
    to.timeline.ask(from.timeline.asked());
    copy_kept(from, to);
    to.tree->recover();
    to.tree->lose_rest();
    const auto [state, row] = to.tree->nearest_state(n == n_given ? std::max<size_t>(n, 1) - 1 : n, true);
    if (row != 0) AUSPEX_TRY(to.store->load_state(state, row));
    AUSPEX_TRY(to.trunk->compute_as(spans, n));
    to.trunk->follow();
    AUSPEX_TRY(to.vocab.copy(from.vocab));
    AUSPEX_TRY(to.constrained.copy(from.constrained));
    report->rows_reused = report->checkpoint_row = row;
    report->rows_computed = n - row;
    report->reason = n == row ? SyncReason::unchanged : row != 0 ? SyncReason::checkpoint : SyncReason::no_state;
    report->text =
        say("the device was lost, and with it the rows that it held; ", n - row, " of ", n, " are computed again");
    return {};
}

/// The rows of the live history at which a checkpoint of a mark is kept.
std::vector<Mark> kept_marks(Impl& s, Span<const Token> history) {
    s.tree->recover();
    std::vector<Mark> marks;
    for (const PrefixTree::StateInfo& state : s.tree->states())
        if ((state.kind == StateKind::system_end || state.kind == StateKind::user_end) && state.row <= history.size() &&
            std::equal(state.tokens.begin(), state.tokens.end(), history.begin()))
            marks.push_back({state.row, state.pinned});
    return marks;
}

/// Computes the history as a new prompt. Windows that were full are not reported again.
Status start_over(Impl& from, Impl& to, SyncReport* report) {
    const Span<const Token> history = from.timeline.tokens().subspan(0, from.timeline.n_given());
    PrefixReport done;
    to.trunk->skip_windows(from.trunk->n_window_full());
    AUSPEX_TRY(to.compute(history, kept_marks(from, history)).get(done));
    to.trunk->skip_windows(0);
    AUSPEX_TRY(to.constrained.copy(from.constrained));
    report->rows_computed = done.rows_computed;
    report->reason = done.rows_computed != 0 ? SyncReason::no_state : SyncReason::unchanged;
    report->text = say("another kind of device, or rows computed in steps longer than n_ubatch: ", done.rows_computed,
                       " rows are computed");
    return {};
}

/// Copies what a live device holds. False: it was lost.
Result<bool> copy_live(Impl& from, Impl& to, SyncReport* report) {
    if (!from.trunk->alive().ok()) return false;
    Status done = from.drain(true);
    if (done.ok()) done = copy_session(from, to);
    if (!from.trunk->alive().ok()) return false;
    AUSPEX_TRY(done);
    report->rows_reused = report->checkpoint_row = from.timeline.n_row();
    report->text = say(from.timeline.n_row(), " rows are copied");
    return true;
}

/// The rows have the same bits: the next save() appends to the same file. Cannot fail, and leaves `from` without it.
void keep_file(Impl& from, Impl& to) {
    to.saved = std::move(from.saved);
    std::swap(to.marks, from.marks);
}

Result<std::unique_ptr<Impl>> move_session(Impl& from, const std::shared_ptr<Model::Impl>& model, SyncReport* report) {
    std::unique_ptr<Impl> to;
    AUSPEX_TRY(open_like(from, model, from.cancel).get(to));
    to->set_counts(from.stats);
    report->diverged_at = from.timeline.n_given();
    const bool same_layout = from.snapshot_id() == to->snapshot_id();
    bool copied = false;
    if (same_layout) AUSPEX_TRY(copy_live(from, *to, report).get(copied));
    if (copied) {
        keep_file(from, *to);
        return to;
    }
    if (same_layout) {  // nothing of a copy that failed stays
        to.reset();
        AUSPEX_TRY(open_like(from, model, from.cancel).get(to));
        to->set_counts(from.stats);
    }
    to->depth->copy(*from.depth, same_layout);
    const std::vector<RowSpan> spans = from.trunk->known_spans();
    const bool all_known =
        std::all_of(spans.begin(), spans.end(), [](const RowSpan& s) { return s.origin != RowOrigin::restored; });
    if (!same_layout || !all_known) {
        AUSPEX_TRY(start_over(from, *to, report));
        return to;
    }
    AUSPEX_TRY(compute_session(from, *to, report));
    keep_file(from, *to);
    return to;
}

}  // namespace
}  // namespace session_fork_impl

Result<Session> Session::fork() const AUSPEX_BOUNDARY {
    using namespace session_fork_impl;
    Impl::Call call(impl_.get());
    AUSPEX_TRY(call.status());
    AUSPEX_TRY(impl_->trunk->alive());
    Session session;
    session.cancel_ = std::make_shared<std::atomic<bool>>(false);
    AUSPEX_TRY(open_like(*impl_, impl_->model, session.cancel_).get(session.impl_));
    AUSPEX_TRY(impl_->drain());
    AUSPEX_TRY(copy_session(*impl_, *session.impl_));
    session.impl_->depth->control.clear_report();
    return session;
}
AUSPEX_CATCH

Result<SyncReport> Session::move_to(const Model& model) AUSPEX_BOUNDARY {
    using namespace session_fork_impl;
    std::unique_ptr<Impl> other;  // outlives `call`, which ends on the old one
    Impl::Call call(impl_.get());
    AUSPEX_TRY(call.status());
    if (!model) return detail::empty_handle("Model", "Model::load");
    const Model::Impl& own = *impl_->model;
    if (detail::weights_id(own).value != detail::weights_id(*model.impl()).value ||
        detail::draft_weights_id(own).value != detail::draft_weights_id(*model.impl()).value)
        return detail::fail(
            Code::bad_argument, "the session runs '", impl_->model->info.name, "' (", impl_->model->info.file_bytes,
            " bytes), the model to move to is '", model.impl()->info.name, "' (", model.impl()->info.file_bytes,
            " bytes) of other weights or hyperparameters; load the same file, with the same LoadOptions::mtp");
    AUSPEX_TRY(impl_->go_on());
    SyncReport report;
    AUSPEX_TRY(move_session(*impl_, model.impl(), &report).get(other));
    impl_.swap(other);
    return report;
}
AUSPEX_CATCH

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

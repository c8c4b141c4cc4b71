#include "session.h"

#include "../base/guard.h"

#include "lookup.h"
#include "memory_plan.h"
#include "session_options.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {

Status Session::Impl::Call::status() const {
    if (impl_) return {};
    return empty_ ? Status(Code::bad_argument, "the Session was never created; call Session::create first")
                  : Status(Code::bad_argument,
                           "a callback of this session called it; only history(), stats() and cancel() may be called "
                           "from one");
}

// -------------------------------------------------------------------------------------- opening

AUSPEX_SMALL_CODE_BEGIN

Status Session::Impl::open() {
    using namespace detail;
    const Plan& plan = model->plan;
    AUSPEX_TRY(check_session_options(*model, options));
    AUSPEX_TRY(reserve_session(*model, &options, &reserved));
    SessionLayout layout;
    AUSPEX_TRY(session_layout(plan, options).get(layout));
    kv = std::move(layout.kv);
    stats.windows = std::move(layout.windows);
    stats.window_rule = std::move(layout.window_rule);
    AUSPEX_TRY(explain_shortage(*model, options, model->program->open(layout.context).get(context)));
    AUSPEX_TRY(sampler.open(model->device->options.allocator, plan.n_vocab));
    constrained.open(*model);
    timeline.reserve(options.n_context, kMaxTentative);
    marks.open(options.n_context);
    depth.reset(new DepthControl(options, stats));
    trunk.reset(new Trunk(*model, options, *context, timeline, cache, stats));
    trunk->set_marks(marks);
    trunk->set_cancel(*cancel);
    cache.set_marks(marks);
    AUSPEX_TRY(open_store(layout.sizes, layout.checkpoint_bytes));
    const DecoderParts parts{*model,  options, *context, timeline,    *trunk, cache,
                             sources, *depth,  sampler,  constrained, stats,  judge};
    host.reset(new HostDecoder(parts));
    if (DeviceLoop* loop = context->device_loop()) device.reset(new DeviceDecoder(parts, *loop, *host));
    AUSPEX_TRY(open_draft());
    stats.memory_bytes = context->memory_bytes() + sampler.memory_bytes() + sources.mtp.memory_bytes() +
                         (sources.text ? Lookup::memory_bytes(options.n_context) : 0) + timeline.memory_bytes() +
                         PrefixTree::history_bytes(options.n_context) + RowMarks::memory_bytes(options.n_context) +
                         store->memory_bytes();
    return {};
}

Status Session::Impl::open_store(const detail::StateSizes& sizes, uint64_t budget) {
    using namespace detail;
    store.reset(new StateStore(*trunk, cache, model->plan.d_model));
    constexpr uint32_t kMaxCopyThread = 4;
    const DeviceOptions& device = model->device->options;
    const uint32_t n_thread =  // with a job system of the application the library starts no threads
        device.jobs.run ? 1 : std::min(std::max(std::thread::hardware_concurrency(), 1u), kMaxCopyThread);
    AUSPEX_TRY(store->open(device.allocator, sizes, budget, n_thread));
    PrefixOptions tree_options;
    tree_options.state_bytes = sizes.state_bytes;
    tree_options.row_bytes = sizes.row_bytes;
    tree_options.page_bytes = sizes.page_bytes;
    tree_options.n_context = options.n_context;
    tree_options.budget_bytes = budget;
    tree_options.recent_stride = kRecentStride;
    if (budget == 0) tree_options.policy = PrefixPolicy::none;
    tree.reset(new PrefixTree(tree_options, *store));
    trunk->set_tree(*tree);
    return {};
}

Status Session::Impl::open_draft() {
    using namespace detail;
    DraftOptions& d = options.draft;
    if (drafts_by_lookup(d.source)) sources.text.reset(new Lookup(options.n_context));
    if (d.source == Draft::off) return {};
    if (drafts_with_block(d.source)) {
        const Plan& plan = model->plan;
        cache.open(plan, *context, d.window, std::min(std::max(options.n_ubatch, kMaxTentative), kMaxMtpRows));
        AUSPEX_TRY(
            sources.mtp.open(plan, *context, cache, sampler, model->device->options.allocator, d.min_probability));
        AUSPEX_TRY(vocab.open(*model, *context, sources.mtp, &d, &stats.draft_head_bytes));
    }
    return depth->chooses() && decodes_on_device() ? context->device_loop()->prepare(d.max_depth) : Status();
}

Session::Session() noexcept = default;
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

Result<Session> Session::create(const Model& model, const SessionOptions& options) AUSPEX_BOUNDARY {
    if (!model) return Status(Code::bad_argument, "the Model was never loaded; call Model::load first");
    auto impl = std::make_unique<Impl>();
    impl->model = model.impl();
    impl->options = options;
    impl->cancel = std::make_shared<std::atomic<bool>>(false);
    AUSPEX_TRY(impl->open());
    const Logger& log = impl->model->device->options.log;
    const uint32_t n_context = impl->options.n_context, trained = impl->model->plan.n_context;
    if (log && n_context > trained)
        log(LogLevel::warning, detail::say("n_context is ", n_context, " but the model was trained for ", trained,
                                           " rows; expect worse text beyond"));
    Session session;
    session.cancel_ = impl->cancel;
    session.impl_ = std::move(impl);
    return session;
}
AUSPEX_CATCH

AUSPEX_SMALL_CODE_END

void Session::cancel(bool on) noexcept {
    if (cancel_) *cancel_ = on;
}

Status Session::Impl::go_on() const {
    return *cancel ? Status(Code::cancelled, "cancel() was called; cancel(false) lets the session go on") : Status();
}

// --------------------------------------------------------------------------------- the timeline

Status Session::Impl::check_ids(Span<const Token> ids) const {
    const Token n = static_cast<Token>(model->plan.n_vocab);
    for (size_t i = 0; i < ids.size(); ++i)
        if (ids[i] < 0 || ids[i] >= n)
            return detail::fail(Code::bad_argument, "token ", i, " has id ", ids[i], ", expected 0..", n - 1);
    return {};
}

Status Session::Impl::leave_text() {
    AUSPEX_TRY(trunk->fill_draft_cache(timeline.n_row()));  // for the state that is kept of its end
    trunk->follow();
    detail::PrefixReport report;
    const Status s = trunk->change_state([&] { return tree->sync({}, {}, false).get(report); });
    trunk->restart(0);  // if it failed, too: the tree has given up the live history
    forget_text();
    return s;
}

/// Undoes the end of a reply that is taken back after n_kept tokens: the rows before keep the bits of decoding, and the
/// session is as if the reply had ended there, however far it was computed. More text is prefilled from where plain
/// decoding, which has sampled its last token but not run it, would begin: pieces cut elsewhere round otherwise.
/// Nothing is undone further back, where the text that follows replaces a branch.
Status Session::Impl::shorten_reply(size_t n_kept, bool goes_on) {
    constexpr size_t kMaxTakenBack = 64, kMaxAgain = 2 * detail::kReplyStride;
    if (n_kept <= timeline.n_asked() || n_kept > timeline.n_row()) return {};
    // Where nothing follows, the last row has the logits.
    const bool without_last = goes_on && n_kept != timeline.n_for_logits();
    const size_t n = without_last ? n_kept - 1 : n_kept;
    if (n < timeline.n_row() && !trunk->can_step_back(n, n_kept)) {
        const bool is_near = n_kept < timeline.size() && n + kMaxTakenBack >= timeline.n_given();
        if (!is_near || n - tree->nearest_state(n, false).second > kMaxAgain) return {};
    }
    return trunk->rewind(n, n_kept);
}

Result<detail::PrefixReport> Session::Impl::replace_tokens(Span<const Token> given, Span<const Mark> prompt_marks) {
    const std::vector<Token> wanted(given.begin(), given.end());  // it may view our own tokens
    const size_t same = timeline.common_prefix(wanted);
    const size_t n_given = timeline.n_given();  // the caller does not know of the tokens after these
    const Token taken_back = same < n_given ? timeline.tokens()[same] : -1;
    AUSPEX_TRY(shorten_reply(same, wanted.size() > same));
    constrained.replaced(same, wanted.size());
    const size_t n_row = timeline.n_row();
    if (same >= n_row) cache.cut(same);
    const bool complete = wanted.size() == same && same == n_row;
    if (complete) {
        timeline.close_step();  // plain decoding runs the last token here, and a prompt goes on after it
        AUSPEX_TRY(trunk->find_logits());
    }
    if (complete || same >= n_given) timeline.truncate(std::max(same, timeline.n_row()));
    const bool has_logits = complete && trunk->has_logits();
    // A state that is kept of the tip, for a mark or where the text goes on, has no pending hidden rows.
    if (!has_logits || !prompt_marks.empty()) AUSPEX_TRY(trunk->fill_draft_cache(std::max(same, timeline.n_row())));
    trunk->follow();
    detail::PrefixReport report;
    const Status s = trunk->change_state([&] { return tree->sync(wanted, prompt_marks, has_logits).get(report); });
    if (!s.ok()) {  // the tree has given up the live history
        trunk->restart(0);
        vocab.forget(0);
        if (!trunk->alive().ok()) timeline.assign(wanted);  // move_to() goes on with it
        return s;
    }
    vocab.forget(same);
    if (sources.text) sources.text->replaced(same);
    timeline.assign(wanted);
    report.n_live = n_given;
    report.token_before = taken_back;
    if (same < n_given && report.reason == SyncReason::appended) report.reason = SyncReason::resumed;
    const size_t again_from = trunk->again_from();
    if (again_from < n_row && report.rows_reused == n_row) {
        report.rows_computed += n_row - again_from;
        report.rows_reused = report.checkpoint_row = again_from;
        report.reason = SyncReason::checkpoint;
    }
    return report;
}

Status Session::Impl::read_prompt(const detail::PrefixReport& report) {
    const size_t n_row = timeline.n_row(), n_new = timeline.size() - n_row;
    const detail::Timeline::Asked before = timeline.asked();
    timeline.ask(timeline.size());  // also where a step fails or a callback throws: next() computes the missing rows
    AUSPEX_TRY(trunk->track(vocab.renew(timeline.tokens())));
    // A token that next() has sampled and not run stays where the prompt is cancelled before its first row.
    const size_t known = std::min(report.diverged_at, report.n_live), n_keep = known == n_row + 1 ? known : 0;
    const Status done = trunk->prefill(n_new, n_keep);
    if (done.code == Code::cancelled) {
        const bool same_reply = timeline.n_row() == n_row && n_row <= report.diverged_at && before.n_row <= n_row;
        timeline.ask(same_reply ? before : detail::Timeline::Asked{timeline.n_row(), 0});
    }
    if (done.ok() && n_new > 1) depth->control.new_text();
    return done;
}

Result<detail::PrefixReport> Session::Impl::compute(Span<const Token> wanted, Span<const Mark> prompt_marks) {
    const auto start = std::chrono::steady_clock::now();
    detail::PrefixReport report;
    Status done = replace_tokens(wanted, prompt_marks).get(report);
    if (done.ok()) done = read_prompt(report);
    stats.prefill_s += detail::seconds_since(start);
    if (!done.ok()) return done;
    if (report.diverged_at > report.n_live) {  // rows computed ahead: the caller's history ended before them
        report.diverged_at = report.n_live;
        report.token_now = timeline.tokens()[report.n_live];
    }
    return report;
}

namespace session_impl {

Status check_marks(Span<const Mark> marks, size_t n_token) {
    for (size_t i = 0; i < marks.size(); ++i)
        if (marks[i].row > n_token)
            return detail::fail(Code::bad_argument, "mark ", i, " is at row ", marks[i].row, ", the history has ",
                                n_token, " tokens; marks belong to the prompt that encode() gave them with");
    return {};
}

SyncReport public_report(const detail::PrefixReport& r) {
    SyncReport report;
    report.rows_computed = r.rows_computed;
    report.rows_reused = r.rows_reused;
    report.diverged_at = r.diverged_at;
    report.checkpoint_row = r.checkpoint_row;
    report.reason = r.reason;
    report.text = detail::describe(r);
    return report;
}

}  // namespace session_impl

Result<SyncReport> Session::sync(Span<const Token> history, Span<const Mark> marks) AUSPEX_BOUNDARY {
    Impl::Call call(impl_.get());
    AUSPEX_TRY(call.status());
    Impl& s = *impl_;
    AUSPEX_TRY(s.trunk->alive());
    if (history.size() > s.options.n_context)
        return detail::fail(Code::bad_argument, "the history has ", history.size(), " tokens, the session holds ",
                            s.options.n_context, "; create it with a larger n_context or shorten the text");
    AUSPEX_TRY(s.check_ids(history));
    AUSPEX_TRY(session_impl::check_marks(marks, history.size()));
    AUSPEX_TRY(s.go_on());
    AUSPEX_TRY(s.drain(true));
    detail::PrefixReport report;
    AUSPEX_TRY(s.compute(history, marks).get(report));
    return session_impl::public_report(report);
}
AUSPEX_CATCH

Span<const Token> Session::Impl::history() const { return timeline.tokens().subspan(0, timeline.n_given()); }
Span<const Token> Session::history() const { return impl_ ? impl_->history() : Span<const Token>(); }

// ----------------------------------------------------------------------------------- generation

bool Session::Impl::decodes_on_device() const { return device && !host_only; }

Status Session::Impl::drain(bool may_stop) {
    if (device) AUSPEX_TRY(device->drain());
    return trunk->repair(may_stop);
}

Status Session::Impl::drop_ahead() {
    if (device) AUSPEX_TRY(device->drain());
    if (timeline.size() == timeline.n_given()) return {};
    return trunk->rewind(timeline.n_given() - 1, timeline.n_given());
}

Status Session::Impl::catch_up() {
    const size_t n = timeline.size() - timeline.n_row();
    return n > 1 ? trunk->prefill(n - 1, timeline.size()) : Status();
}

Result<Span<const float>> Session::Impl::last_logits() {
    if (!trunk->has_logits()) {  // a cancelled prompt or a bare snapshot: the last row must be computed again
        AUSPEX_TRY(replace_tokens(timeline.tokens(), {}).status());
        AUSPEX_TRY(trunk->prefill(timeline.size() - timeline.n_row(), timeline.size()));
    }
    return trunk->last_logits();
}

Status Session::Impl::generate(const Sampling& sampling) {
    AUSPEX_TRY(catch_up());
    const size_t size = timeline.size();
    const bool on_device = decodes_on_device() && sampling.logit_bias.size() <= detail::kMaxLoopBias;
    if (!on_device) AUSPEX_TRY(drain(true));  // the host's steps end the device loop
    if (timeline.size() > size) return {};    // it had tokens queued
    if (timeline.n_row() < size) return on_device ? device->next(sampling) : host->next(sampling);
    Span<const float> logits;
    AUSPEX_TRY(last_logits().get(logits));
    Token id = sampler.sample(logits, sampling, timeline.size(), timeline.tokens());
    AUSPEX_TRY(constrained.admit(id, sampler, logits, sampling, timeline.size(), timeline.tokens()).get(id));
    timeline.append(id);
    return {};
}

Result<Span<const float>> Session::logits() AUSPEX_BOUNDARY {
    Impl::Call call(impl_.get());
    AUSPEX_TRY(call.status());
    Impl& s = *impl_;
    AUSPEX_TRY(s.trunk->alive());
    if (s.timeline.size() == 0)
        return Status(Code::bad_argument, "there is no history to have logits; call sync() with at least one token");
    AUSPEX_TRY(s.go_on());
    AUSPEX_TRY(s.drain(true));
    AUSPEX_TRY(s.drop_ahead());
    AUSPEX_TRY(s.catch_up());
    if (s.timeline.n_row() < s.timeline.size()) {  // computed as next() computes it
        if (s.trunk->must_keep_reply()) AUSPEX_TRY(s.trunk->keep_reply());
        AUSPEX_TRY(s.trunk->fill_draft_cache());
        AUSPEX_TRY(s.trunk->verify(0));
        s.trunk->commit(1);
        s.timeline.close_step();  // a prompt goes on after this row, also where save() or fork() applies its records
        s.timeline.ask_for_logits();
        s.stats.rows_decoded += 1;
        s.trunk->report_windows();
    }
    AUSPEX_TRY(s.trunk->find_logits());
    return s.last_logits();
}
AUSPEX_CATCH

Result<Span<const Token>> Session::next(const Sampling& sampling, uint64_t max_tokens) AUSPEX_BOUNDARY {
    Impl::Call call(impl_.get());
    AUSPEX_TRY(call.status());
    Impl& s = *impl_;
    AUSPEX_TRY(s.trunk->alive());
    AUSPEX_TRY(detail::check_sampling(sampling));
    if (max_tokens == 0) return Status(Code::bad_argument, "max_tokens is 0, expected at least 1");
    const Token n_vocab = static_cast<Token>(s.model->plan.n_vocab);
    for (const LogitBias& b : sampling.logit_bias)
        if (b.id < 0 || b.id >= n_vocab)
            return detail::fail(Code::bad_argument, "sampling.logit_bias names token ", b.id, ", expected 0..",
                                n_vocab - 1);
    if (s.timeline.size() == 0)
        return Status(Code::bad_argument, "there is no history to continue; call sync() with at least one token");
    if (s.timeline.n_given() >= s.options.n_context)
        return detail::fail(Code::context_full, "the history has ", s.timeline.n_given(),
                            " tokens, all that n_context allows");
    AUSPEX_TRY(s.go_on());
    const auto start = std::chrono::steady_clock::now();
    const size_t size = s.timeline.n_given();
    if (s.trunk->damaged()) AUSPEX_TRY(s.drain(true));
    if (sampling != s.ahead) {
        AUSPEX_TRY(s.drop_ahead());
        s.ahead = sampling;
    }
    AUSPEX_TRY(s.constrained.follow(sampling, s.history()));
    if (s.timeline.size() > size) {  // computed ahead, and waited for by another call: one for each call
        s.timeline.give_one();
    } else {
        // The row of the last token is computed with what follows it.
        s.trunk->end_at(max_tokens < s.options.n_context - size ? size + static_cast<size_t>(max_tokens) - 1 : 0);
        AUSPEX_TRY(s.generate(sampling));  // where the queue was drained, the tokens of several cycles
        const size_t n_limit = static_cast<size_t>(std::min<uint64_t>(max_tokens, kMaxDraft + 1));
        s.timeline.give_only(std::min(s.timeline.size(), size + n_limit));
    }
    s.stats.tokens_sampled += s.timeline.n_given() - size;
    s.stats.decode_s += detail::seconds_since(start);
    return s.timeline.tokens().subspan(size, s.timeline.n_given() - size);
}
AUSPEX_CATCH

Status Session::set_draft_depth(int depth) AUSPEX_BOUNDARY {
    Impl::Call call(impl_.get());
    AUSPEX_TRY(call.status());
    if (depth < -1 || depth > static_cast<int>(kMaxDraft))
        return detail::fail(Code::bad_argument, "the draft depth is ", depth, ", expected 0..", kMaxDraft,
                            ", or -1 for a choice of its own");
    if (depth > 0 && impl_->options.draft.source == Draft::off)
        return Status(
            Code::bad_argument,
            "this session was created with Draft::off and has nothing to draft with; set SessionOptions::draft");
    impl_->depth->set_depth(depth);
    return {};
}
AUSPEX_CATCH

// -------------------------------------------------------------------------------------- snapshots

AUSPEX_SMALL_CODE_BEGIN

uint64_t Session::Impl::snapshot_id() {
    if (state_id == 0) state_id = detail::state_id(*model, kv);
    return state_id;
}

detail::TextHead Session::Impl::text_head() const {
    detail::TextHead text{};
    text.n_token = timeline.size();
    text.n_given = timeline.n_given();
    text.n_row = timeline.n_row();
    text.n_logit = trunk->has_logits() ? model->plan.n_vocab : 0;
    text.sampling_bytes = detail::kSamplingBytes;
    text.n_prompt = std::min(tree->n_prompt(), timeline.size());  // larger where the tree has given up the live rows
    text.n_asked = timeline.n_asked();
    text.n_for_logits = timeline.n_for_logits();
    Sampling saved = ahead;
    // Biases and constraints are not saved: NaN equals no sampling.
    if (!ahead.logit_bias.empty() || ahead.constraint) saved.temperature = NAN;
    std::memcpy(text.ahead, static_cast<const void*>(&saved), detail::kSamplingBytes);
    return text;
}

void Session::Impl::adopt_text(const detail::TextHead& text) {
    timeline.give_only(static_cast<size_t>(text.n_given));
    ahead = Sampling();
    std::memcpy(static_cast<void*>(&ahead), text.ahead, detail::kSamplingBytes);
    forget_text();
    timeline.ask({static_cast<size_t>(text.n_asked), static_cast<size_t>(text.n_for_logits)});
    trunk->follow();
    tree->prompt_was(static_cast<size_t>(text.n_prompt));
}

Result<Snapshot> Session::save() const AUSPEX_BOUNDARY {
    Impl::Call call(impl_.get());
    AUSPEX_TRY(call.status());
    Impl& s = *impl_;
    AUSPEX_TRY(s.trunk->alive());
    AUSPEX_TRY(s.drain());
    Snapshot snap;
    snap.n_token = s.timeline.n_given();
    Span<const float> logits;
    AUSPEX_TRY(s.trunk->find_logits());  // the device loop brings none to the host
    s.trunk->follow();
    if (s.trunk->has_logits()) AUSPEX_TRY(s.trunk->last_logits().get(logits));
    const std::vector<detail::SpanBytes> spans = detail::span_bytes(s.trunk->spans(), s.options.exact_prompts);
    snap.bytes = detail::begin_snapshot(s.snapshot_id(), s.text_head(), s.timeline.tokens(), logits, spans);
    s.timeline.close_step();  // saving applies the committed records
    AUSPEX_TRY(s.trunk->track(s.context->save(static_cast<uint32_t>(s.timeline.n_row()), &snap.bytes)));
    detail::finish_snapshot(&snap.bytes);
    return snap;
}
AUSPEX_CATCH

Status Session::restore(const Snapshot& snap) AUSPEX_BOUNDARY {
    Impl::Call call(impl_.get());
    AUSPEX_TRY(call.status());
    Impl& s = *impl_;
    AUSPEX_TRY(s.trunk->alive());
    AUSPEX_TRY(s.drain());
    detail::SnapshotParts parts;
    AUSPEX_TRY(detail::read_snapshot(snap.bytes, s.snapshot_id(), s.options, s.model->plan.n_vocab).get(parts));
    AUSPEX_TRY(s.check_ids(parts.tokens));
    Impl::TakeBack take_back(s);
    // The snapshot's rows are a text of their own, also where one with the same tokens is known: their bits may differ.
    AUSPEX_TRY(s.leave_text());
    const size_t n_row = static_cast<size_t>(parts.text.n_row);
    s.trunk->make_room(n_row);
    AUSPEX_TRY(s.trunk->change_state([&] { return s.context->restore(static_cast<uint32_t>(n_row), parts.state); }));
    s.trunk->restored(parts.tokens, n_row, parts.spans, std::move(parts.logits));
    s.adopt_text(parts.text);
    take_back.done = true;
    return {};
}
AUSPEX_CATCH

// ------------------------------------------------------------------------------- statistics and costs

Stats Session::stats() const AUSPEX_BOUNDARY { return impl_ ? impl_->stats : Stats(); }
AUSPEX_CATCH_EMPTY

DraftReport Session::draft_report() const AUSPEX_BOUNDARY {
    Impl::Call call(impl_.get());
    return call.allowed() ? impl_->depth->control.report() : DraftReport();
}
AUSPEX_CATCH_EMPTY

void Session::Impl::set_counts(Stats counts) {
    counts.memory_bytes = stats.memory_bytes;
    counts.windows = std::move(stats.windows);
    counts.window_rule = std::move(stats.window_rule);
    counts.draft_head_bytes = stats.draft_head_bytes;
    stats = std::move(counts);
}

void Session::clear_stats() {
    Impl::Call call(impl_.get());
    if (!call.allowed()) return;
    impl_->set_counts({});
    impl_->depth->control.clear_report();
}

namespace session_impl {

constexpr char kCostMagic[8] = {'a', 'u', 's', 'p', 'e', 'x', 'C', '2'};

/// What decides how long a cycle takes, for people to read.
std::string cost_key(Session::Impl& session) {
    const Model::Impl& m = *session.model;
    const std::string windows = print_windows(session.stats.windows);
    const size_t n_head = session.cache.on() ? session.sources.mtp.ids().size() : 0;
    return detail::say("device '", m.device->machine->name(), "', driver '", m.device->machine->driver(), "', model '",
                       m.info.name.empty() ? m.plan.architecture : m.info.name, "' (", m.info.weight_bytes, " bytes, ",
                       session.snapshot_id(), "), draft head ", n_head, ", source ",
                       static_cast<int>(session.options.draft.source), ", windows '", windows, "'");
}

}  // namespace session_impl

std::vector<std::byte> Session::save_costs() const AUSPEX_BOUNDARY {
    using namespace session_impl;
    Impl::Call call(impl_.get());
    if (!call.allowed()) return {};
    const std::string key = cost_key(*impl_);
    std::vector<std::byte> all(sizeof kCostMagic + sizeof(uint32_t) + key.size());
    const uint32_t n = static_cast<uint32_t>(key.size());
    std::memcpy(all.data(), kCostMagic, sizeof kCostMagic);
    std::memcpy(all.data() + sizeof kCostMagic, &n, sizeof n);
    std::memcpy(all.data() + sizeof kCostMagic + sizeof n, key.data(), n);
    const std::vector<std::byte> costs = impl_->depth->control.save_costs();
    all.insert(all.end(), costs.begin(), costs.end());
    return all;
}
AUSPEX_CATCH_EMPTY

Status Session::load_costs(Span<const std::byte> costs) AUSPEX_BOUNDARY {
    using namespace session_impl;
    Impl::Call call(impl_.get());
    AUSPEX_TRY(call.status());
    const size_t begin = sizeof kCostMagic + sizeof(uint32_t);
    uint32_t n = 0;
    if (costs.size() >= begin) std::memcpy(&n, costs.data() + sizeof kCostMagic, sizeof n);
    if (costs.size() < begin || std::memcmp(costs.data(), kCostMagic, sizeof kCostMagic) != 0 ||
        costs.size() - begin < n)
        return Status(Code::bad_file,
                      "these are no draft costs, or of another version. Delete them: they are measured again.");
    const std::string key = cost_key(*impl_), found(reinterpret_cast<const char*>(costs.data() + begin), n);
    if (found != key)
        return Status(Code::bad_argument,
                      "these draft costs belong to " + found + "; expected " + key + ". Keep one file for each.");
    return impl_->depth->control.load_costs(costs.subspan(begin + n, costs.size() - begin - n));
}
AUSPEX_CATCH

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

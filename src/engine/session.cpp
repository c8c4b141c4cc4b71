#include "session.h"

#include "memory_plan.h"

#include <algorithm>

namespace auspex {
namespace session_impl {

using namespace detail;

/// What a snapshot begins with; everything else is the context's.
struct SnapshotHead {
    char magic[8];
    uint64_t n_token;
    uint64_t n_logit;  ///< n_vocab, or 0 when the logits of the last row are not part of it
    uint64_t model_id;
};
constexpr char kMagic[8] = {'a', 'u', 's', 'p', 'e', 'x', 'S', '1'};

/// Tells models and what is kept of the past apart, so that no snapshot is restored where it means something else.
uint64_t model_id(const Session::Impl& session) {
    const Model::Impl& m = *session.model;
    Fnv h;
    auto mix = [&](std::string_view s) { h.bytes(s.data(), s.size()); };
    mix(m.plan.architecture);
    for (const Slot& s : m.plan.slots)
        mix(say(s.name, static_cast<uint32_t>(s.type), ":", s.shape[0], ",", s.shape[1], ";"));
    mix(m.device->machine->name());
    for (const KvShape& k : session.kv)
        if (k.n_ring != 0 && !k.draft)
            mix(say(static_cast<uint32_t>(k.k), ",", static_cast<uint32_t>(k.v), ",", k.window, "+", k.sinks, ";"));
    return h.value;
}

/// What decides how long a cycle takes, for people to read.
std::string cost_key(const Session::Impl& session) {
    const Model::Impl& m = *session.model;
    std::string windows = print_windows(session.stats.windows);
    return say("device '", m.device->machine->name(), "', driver '", m.device->machine->driver(), "', model '",
               m.info.name.empty() ? m.plan.architecture : m.info.name, "' (", m.info.weight_bytes, " bytes, ",
               model_id(session), "), draft head ", session.mtp.on() ? session.mtp.ids().size() : 0, ", source ",
               static_cast<int>(session.options.draft.source), ", windows '", windows, "'");
}
constexpr char kCostMagic[8] = {'a', 'u', 's', 'p', 'e', 'x', 'C', '1'};

}  // namespace session_impl

Status Session::Impl::track(Status s) {
    if (s.code == Code::device_lost) lost = true;
    return s;
}

Status Session::Impl::check_ids(Span<const Token> ids) const {
    const Token n = static_cast<Token>(model->plan.n_vocab);
    for (size_t i = 0; i < ids.size(); ++i)
        if (ids[i] < 0 || ids[i] >= n)
            return detail::fail(Code::bad_argument, "token ", i, " has id ", ids[i], ", expected 0..", n - 1);
    return {};
}

Status Session::Impl::run(const detail::Step& step) {
    restored_logits.clear();
    Status s = context->run(step);
    if (s.code == Code::device_lost) lost = true;
    if (s.ok() && step.tape == &model->plan.trunk)
        report_windows(size_t{step.first_row} + (step.tentative ? 1 : step.n_row));
    return s;
}

void Session::Impl::forget() {
    restored_logits.clear();
    context->reset();
    mtp.forget();
    history.clear();
    n_left = 0;
    n_row = 0;
    n_counted = 0;
    has_logits = false;
    can_step_back = false;
}

Status Session::Impl::prefill(size_t n) {
    const size_t end = n_row + n, total = n;
    if (n != 0) AUSPEX_TRY(track(mtp.fill(history)));
    while (n_row < end) {
        if (options.progress && total > options.n_ubatch &&
            !options.progress("reading the prompt",
                              static_cast<float>(total - (end - n_row)) / static_cast<float>(total))) {
            history.resize(n_row);
            mtp.cut(n_row);
            return Status(Code::cancelled, "reading the prompt was cancelled by the progress callback");
        }
        detail::Step step;
        step.tape = &model->plan.trunk;
        step.ids = history.data() + n_row;
        step.n_row = static_cast<uint32_t>(std::min<size_t>(end - n_row, options.n_ubatch));
        step.place(static_cast<uint32_t>(n_row));
        step.n_logit = n_row + step.n_row == end ? 1 : 0;
        AUSPEX_TRY(run(step));
        mtp.ran(n_row, step.n_row, false);
        n_row += step.n_row;
        has_logits = step.n_logit != 0;
        i_logit = 0;
        can_step_back = false;
        AUSPEX_TRY(track(mtp.fill(history)));
        stats.rows_prefilled += step.n_row;
    }
    return {};
}

Session::Session() noexcept = default;
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

Result<Session> Session::create(const Model& model, const SessionOptions& given) {
    using namespace session_impl;
    if (!model) return Status(Code::bad_argument, "the Model was never loaded; call Model::load first");
    auto impl = std::make_unique<Impl>();
    impl->model = model.impl();
    impl->options = given;
    SessionOptions& o = impl->options;
    const Plan& plan = impl->model->plan;
    if (o.run_ahead >= kMaxQueued)
        return fail(Code::bad_argument, "run_ahead is ", o.run_ahead, ", expected 0..", kMaxQueued - 1);
    ContextOptions context;
    AUSPEX_TRY(plan_context_options(plan, o, &context, &impl->stats.window_rule));
    AUSPEX_TRY(kv_shapes(plan, context).get(impl->kv));
    impl->stats.windows = windows_of(plan, impl->kv);
    impl->watch_windows();
    AUSPEX_TRY(fits_limit(*impl->model, o));
    AUSPEX_TRY(explain_shortage(*impl->model, o, impl->model->program->open(context).get(impl->context)));
    AUSPEX_TRY(impl->sampler.open(impl->model->device->options.allocator, plan.n_vocab));
    impl->history.reserve(size_t{o.n_context} + kMaxTentative);
    AUSPEX_TRY(impl->open_draft());
    impl->stats.memory_bytes = impl->context->memory_bytes() + impl->sampler.memory_bytes() + impl->mtp.memory_bytes() +
                               impl->history.capacity() * sizeof(Token);
    const Logger& log = impl->model->device->options.log;
    if (log && o.n_context > plan.n_context)
        log(LogLevel::warning, say("n_context is ", o.n_context, " but the model was trained for ", plan.n_context,
                                   " rows; expect worse text beyond"));
    Session session;
    session.impl_ = std::move(impl);
    return session;
}

Result<size_t> Session::sync(Span<const Token> history) {
    Impl& s = *impl_;
    if (s.lost) return Status(Code::device_lost, "the device was lost earlier; open a new one");
    if (history.size() > s.options.n_context)
        return detail::fail(Code::bad_argument, "the history has ", history.size(), " tokens, the session holds ",
                            s.options.n_context, "; create it with a larger n_context or shorten the text");
    AUSPEX_TRY(s.check_ids(history));
    AUSPEX_TRY(s.settle());
    const auto start = std::chrono::steady_clock::now();
    // The caller may hand back a view of our own history: keep only what changes.
    size_t same = 0;
    while (same < history.size() && same < s.history.size() && history[same] == s.history[same]) ++same;
    const std::vector<Token> rest(history.begin() + same, history.end());
    s.mtp.cut(same);
    // Within the last cycle, whose rows are not folded in yet. More text is prefilled from where plain decoding, which
    // has sampled its last token but not run it, would begin: pieces cut elsewhere round otherwise.
    const size_t back = rest.empty() ? same : std::max<size_t>(same, 1) - 1;
    if (s.can_step_back && same <= s.n_row && back < s.n_row && same > s.step_first) {
        s.n_row = back;
        s.context->commit(static_cast<uint32_t>(s.n_row - s.step_first));
        s.has_logits = s.has_logits && s.n_row > s.step_first;
        s.i_logit = s.has_logits ? static_cast<uint32_t>(s.n_row - s.step_first - 1) : 0;
    }
    if (same == s.n_row && same == history.size()) AUSPEX_TRY(s.find_logits());
    const bool rewind = same < s.n_row || (same == s.n_row && same == history.size() && !s.has_logits && same != 0);
    if (rewind || history.empty()) {
        const std::vector<Token> kept(s.history.begin(), s.history.begin() + static_cast<std::ptrdiff_t>(same));
        s.forget();
        s.history.insert(s.history.end(), kept.begin(), kept.end());
    }
    s.history.resize(same);
    s.history.insert(s.history.end(), rest.begin(), rest.end());
    const size_t n = s.history.size() - s.n_row;
    Status done = s.renew_vocab();
    if (done.ok()) done = s.prefill(n);
    s.stats.prefill_s += detail::seconds_since(start);
    if (!done.ok()) return done;
    if (n > 1) s.control.new_text();
    return n;
}

Result<Span<const Token>> Session::next(const Sampling& sampling) {
    Impl& s = *impl_;
    if (s.lost) return Status(Code::device_lost, "the device was lost earlier; open a new one");
    AUSPEX_TRY(detail::check_sampling(sampling));
    if (s.history.empty())
        return Status(Code::bad_argument, "there is no history to continue; call sync() with at least one token");
    if (s.history.size() >= s.options.n_context)
        return detail::fail(Code::context_full, "the history has ", s.history.size(),
                            " tokens, all that n_context allows");
    const auto start = std::chrono::steady_clock::now();
    if (s.history.size() > s.n_row + 1)
        AUSPEX_TRY(s.prefill(s.history.size() - s.n_row - 1));  // an earlier call failed
    const size_t size = s.history.size();
    if (s.n_row < size && s.can_drive()) {
        AUSPEX_TRY(s.drive(sampling));
    } else if (s.n_row < size) {
        AUSPEX_TRY(s.cycle(sampling));
    } else {
        if (!s.has_logits) {  // a cancelled prompt or a bare snapshot: the last row must be computed again
            const std::vector<Token> all = s.history;
            Result<size_t> again = sync(all);
            if (!again.ok()) return again.status();
        }
        Span<const float> logits;
        AUSPEX_TRY(s.last_logits().get(logits));
        s.history.push_back(s.sampler.sample(logits, sampling, size, s.history));
    }
    const double seconds = detail::seconds_since(start);
    s.stats.tokens_sampled += s.history.size() - size;
    s.stats.decode_s += seconds;
    return Span<const Token>(s.history.data() + size, s.history.size() - size);
}

Span<const Token> Session::history() const { return impl_->history; }

Stats Session::stats() const { return impl_->stats; }

DraftReport Session::draft_report() const { return impl_->control.report(); }

void Session::clear_stats() {
    Stats& s = impl_->stats;
    Stats kept;
    kept.memory_bytes = s.memory_bytes;
    kept.windows = std::move(s.windows);
    kept.window_rule = std::move(s.window_rule);
    kept.draft_head_bytes = s.draft_head_bytes;
    s = std::move(kept);
    impl_->control.clear_report();
}

std::vector<std::byte> Session::save_costs() const {
    using namespace session_impl;
    const std::string key = cost_key(*impl_);
    std::vector<std::byte> all(sizeof kCostMagic + sizeof(uint32_t) + key.size());
    const uint32_t n = static_cast<uint32_t>(key.size());
    std::memcpy(all.data(), kCostMagic, sizeof kCostMagic);
    std::memcpy(all.data() + sizeof kCostMagic, &n, sizeof n);
    std::memcpy(all.data() + sizeof kCostMagic + sizeof n, key.data(), n);
    const std::vector<std::byte> costs = impl_->control.save_costs();
    all.insert(all.end(), costs.begin(), costs.end());
    return all;
}

Status Session::load_costs(Span<const std::byte> costs) {
    using namespace session_impl;
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
    return impl_->control.load_costs(costs.subspan(begin + n, costs.size() - begin - n));
}

Status Session::score(Span<const Token> ids, const RowSink& sink) {
    using namespace detail;
    Impl& s = *impl_;
    if (ids.empty() || ids.size() > s.options.n_context)
        return fail(Code::bad_argument, ids.size(), " tokens to score, expected 1..", s.options.n_context);
    AUSPEX_TRY(s.check_ids(ids));
    const std::vector<Token> all(ids.begin(), ids.end());
    AUSPEX_TRY(s.settle());
    s.forget();
    s.history.insert(s.history.end(), all.begin(), all.end());
    s.i_logit = 0;
    while (s.n_row < all.size()) {
        const uint32_t n = static_cast<uint32_t>(std::min<size_t>(all.size() - s.n_row, s.options.n_ubatch));
        Step step;
        step.tape = &s.model->plan.trunk;
        step.ids = all.data() + s.n_row;
        step.n_row = n;
        step.place(static_cast<uint32_t>(s.n_row));
        AUSPEX_TRY(s.run(step));
        for (uint32_t first = 0; first < n; first += kMaxTentative) {
            const uint32_t k = std::min(kMaxTentative, n - first);
            AUSPEX_TRY(s.track(s.context->head(s.model->plan.trunk, first, k)));
            for (uint32_t i = 0; i < k; ++i) {
                Span<const float> row;
                AUSPEX_TRY(s.track(s.context->read_row(s.model->plan.trunk.logits, i).get(row)));
                sink(s.n_row + first + i, row);
            }
        }
        s.mtp.ran(s.n_row, n, false);
        s.n_row += n;
    }
    // Leave the last row's logits where next() looks for them.
    AUSPEX_TRY(
        s.track(s.context->head(s.model->plan.trunk, static_cast<uint32_t>((all.size() - 1) % s.options.n_ubatch), 1)));
    s.has_logits = true;
    return {};
}

Status Session::score_mtp(Span<const Token> ids, uint32_t depth, const RowSink& sink) {
    using namespace detail;
    Impl& s = *impl_;
    AUSPEX_TRY(s.settle());
    const Plan& plan = s.model->plan;
    if (plan.mtp.empty())
        return Status(Code::unsupported, "this model has no MTP block loaded, so there are no draft rows to score");
    if (depth == 0 || depth > kMaxTentative - 1)
        return fail(Code::bad_argument, "depth is ", depth, ", expected 1..", kMaxTentative - 1);
    if (ids.size() <= depth || ids.size() > s.options.n_context)
        return fail(Code::bad_argument, ids.size(), " tokens to score at depth ", depth, ", expected ", depth + 1, "..",
                    s.options.n_context);
    AUSPEX_TRY(s.check_ids(ids));
    const std::vector<Token> all(ids.begin(), ids.end());
    s.forget();
    // A session need not have a context that drafts. Formats and windows are its own,
    // but for the draft block's default window, which is there for speed.
    ContextOptions options;
    std::string rule;
    AUSPEX_TRY(plan_context_options(plan, s.options, &options, &rule));
    options.mtp = true;
    options.mtp_window = 0;
    std::unique_ptr<Context> context;
    AUSPEX_TRY(s.model->program->open(options).get(context));
    std::vector<float> hidden(all.size() * plan.d_model);
    // One causal pass over `tape`, rows in ubatches; `each` sees every step after it ran.
    auto pass = [&](const Tape& tape, size_t shift, size_t n, const float* given, auto each) -> Status {
        const uint32_t most = given ? kMaxTentative : s.options.n_ubatch;
        for (size_t p = 0; p < n; p += most) {
            Step step;
            step.tape = &tape;
            step.ids = all.data() + p + shift;
            step.n_row = static_cast<uint32_t>(std::min<size_t>(n - p, most));
            step.place(static_cast<uint32_t>(p));
            step.hidden = given ? given + p * plan.d_model : nullptr;
            AUSPEX_TRY(s.track(context->run(step)));
            AUSPEX_TRY(each(p, step.n_row));
        }
        return {};
    };
    auto keep_hidden = [&](const Tape& tape, std::vector<float>& to) {
        return [&](size_t p, uint32_t n) -> Status {
            for (uint32_t i = 0; i < n; ++i) {
                Span<const float> row;
                AUSPEX_TRY(context->read_row(tape.hidden, i).get(row));
                std::copy(row.begin(), row.end(), to.begin() + static_cast<std::ptrdiff_t>((p + i) * plan.d_model));
            }
            return {};
        };
    };
    AUSPEX_TRY(pass(plan.trunk, 0, all.size(), nullptr, keep_hidden(plan.trunk, hidden)));
    std::vector<float> next(hidden.size());
    for (uint32_t d = 1; d <= depth; ++d) {
        const Tape& tape = plan.mtp[plan.mtp_block(d)];
        auto keep = keep_hidden(tape, next);
        auto each = [&](size_t p, uint32_t n) -> Status {
            AUSPEX_TRY(keep(p, n));
            if (d < depth) return {};
            AUSPEX_TRY(context->head(tape, 0, n));
            for (uint32_t i = 0; i < n; ++i) {
                Span<const float> row;
                AUSPEX_TRY(context->read_row(tape.logits, i).get(row));
                sink(p + i, row);
            }
            return {};
        };
        AUSPEX_TRY(pass(tape, d, all.size() - d, hidden.data(), each));
        hidden.swap(next);
    }
    return {};
}

Result<std::vector<KernelTime>> Session::profile(uint32_t n_row, size_t n_token) {
    Impl& s = *impl_;
    if (s.lost) return Status(Code::device_lost, "the device was lost earlier; open a new one");
    if (n_row == 0 || n_row > detail::kMaxTentative)
        return detail::fail(Code::bad_argument, "a step of ", n_row, " rows, expected 1..", detail::kMaxTentative);
    if (n_token > s.options.n_context)
        return detail::fail(Code::bad_argument, n_token, " tokens before the step, the session holds ",
                            s.options.n_context);
    detail::KernelProfiler* profiler = s.context->profiler();
    if (!profiler)
        return Status(Code::unsupported,
                      "the CPU does not time its kernels one by one, only a GPU with timestamps does; open a Vulkan "
                      "device to profile a step");
    AUSPEX_TRY(s.settle());
    s.forget();
    Result<std::vector<KernelTime>> times = profiler->profile(n_row, static_cast<uint32_t>(n_token));
    if (!times.ok()) return s.track(times.status());
    s.forget();  // what it ran is nobody's past
    return times;
}

Result<Snapshot> Session::save() const {
    using namespace session_impl;
    Impl& s = *impl_;
    AUSPEX_TRY(s.settle());
    Snapshot snap;
    // Only computed rows make up a state; a sampled token that was not run yet is run again later.
    snap.n_token = s.n_row;
    SnapshotHead head;
    std::memcpy(head.magic, kMagic, sizeof kMagic);
    head.n_token = s.n_row;
    head.n_logit = s.has_logits ? s.model->plan.n_vocab : 0;
    head.model_id = model_id(s);
    const std::byte* h = reinterpret_cast<const std::byte*>(&head);
    snap.bytes.insert(snap.bytes.end(), h, h + sizeof head);
    const std::byte* ids = reinterpret_cast<const std::byte*>(s.history.data());
    snap.bytes.insert(snap.bytes.end(), ids, ids + s.n_row * sizeof(Token));
    if (s.has_logits) {
        Span<const float> logits;
        AUSPEX_TRY(s.last_logits().get(logits));
        const std::byte* l = reinterpret_cast<const std::byte*>(logits.data());
        snap.bytes.insert(snap.bytes.end(), l, l + logits.size() * sizeof(float));
    }
    s.can_step_back = false;  // saving applies the committed terms
    AUSPEX_TRY(s.track(s.context->save(static_cast<uint32_t>(s.n_row), &snap.bytes)));
    return snap;
}

Status Session::restore(const Snapshot& snap) {
    using namespace session_impl;
    Impl& s = *impl_;
    AUSPEX_TRY(s.settle());
    SnapshotHead head{};
    if (snap.bytes.size() >= sizeof head) std::memcpy(&head, snap.bytes.data(), sizeof head);
    if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0)
        return Status(Code::bad_argument, "this is no snapshot of a session");
    if (head.model_id != model_id(s))
        return Status(
            Code::bad_argument,
            "this snapshot belongs to another model, device, window or KV format; save it again with this one");
    if (head.n_token > s.options.n_context)
        return fail(Code::bad_argument, "the snapshot holds ", head.n_token, " tokens, the session ",
                    s.options.n_context);
    const size_t n = static_cast<size_t>(head.n_token), ids_end = sizeof head + n * sizeof(Token);
    if (head.n_logit != 0 && head.n_logit != s.model->plan.n_vocab)
        return Status(Code::bad_argument, "this snapshot is damaged");
    const size_t n_logit = static_cast<size_t>(head.n_logit), state = ids_end + n_logit * sizeof(float);
    if (snap.bytes.size() < state) return Status(Code::bad_argument, "this snapshot is cut short");
    std::vector<Token> ids(n);
    if (n) std::memcpy(ids.data(), snap.bytes.data() + sizeof head, n * sizeof(Token));
    AUSPEX_TRY(s.check_ids(ids));
    s.forget();
    AUSPEX_TRY(s.track(s.context->restore(
        static_cast<uint32_t>(n), Span<const std::byte>(snap.bytes.data() + state, snap.bytes.size() - state))));
    s.history.insert(s.history.end(), ids.begin(), ids.end());
    s.n_row = n;
    s.restored_logits.resize(n_logit);
    if (n_logit) std::memcpy(s.restored_logits.data(), snap.bytes.data() + ids_end, n_logit * sizeof(float));
    s.has_logits = n_logit != 0;
    return {};
}

}  // namespace auspex

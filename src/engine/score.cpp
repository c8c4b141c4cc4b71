// engine/score: measuring functions of Session: logits of all rows, of the trunk and of MTP blocks, kernel times and
// counts.
#include "session.h"

#include "../base/guard.h"

#include "memory_plan.h"

#include <algorithm>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace score_impl {
namespace {

using namespace detail;

Status ask_to_go_on(const Session::Impl& s, size_t n_done, size_t n_row) {
    if (s.trunk->ask_to_go_on("scoring the text", n_done, n_row)) return {};
    return Status(Code::cancelled, "scoring was cancelled by cancel() or the progress callback");
}

/// Passes the logits of rows first .. first + n - 1, of the last prefill step, to `sink`. `sink` may throw, because the
/// session's state is consistent at each call.
Status score_rows(Session::Impl& s, size_t first, size_t n, const Session::RowSink& sink) {
    const Tape& trunk = s.model->plan.trunk;
    for (size_t i = 0; i < n; i += kMaxTentative) {
        AUSPEX_TRY(ask_to_go_on(s, first + i, s.timeline.size()));
        const uint32_t k = static_cast<uint32_t>(std::min<size_t>(kMaxTentative, n - i));
        AUSPEX_TRY(s.trunk->track(s.context->head(trunk, static_cast<uint32_t>(i), k)));
        for (uint32_t j = 0; j < k; ++j) {
            Span<const float> row;
            AUSPEX_TRY(s.trunk->track(s.context->read_row(trunk.logits, j).get(row)));
            sink(first + i + j, row);
        }
    }
    return {};
}

/// Teacher-forced passes over all rows of a text, on a context of their own.
struct Teacher {
    Session::Impl& s;
    Context& context;
    Span<const Token> ids;
    size_t n_pass, n_done = 0;  ///< passes in all, rows done in them

    /// Runs rows 0 .. n-1 of `tape` in steps, row p with token p + shift, and calls each(first row, rows) after every
    /// step. given: the hidden rows that an MTP block takes; null for the trunk.
    template <class F>
    Status pass(const Tape& tape, size_t shift, size_t n, const float* given, F each) {
        const uint32_t n_max = given ? kMaxTentative : s.options.n_ubatch;
        for (size_t p = 0; p < n; p += n_max) {
            AUSPEX_TRY(ask_to_go_on(s, n_done, n_pass * ids.size()));
            Step step;
            step.tape = &tape;
            step.ids = ids.data() + p + shift;
            step.n_row = static_cast<uint32_t>(std::min<size_t>(n - p, n_max));
            step.place(static_cast<uint32_t>(p));
            step.hidden = given ? given + p * s.model->plan.d_model : nullptr;
            AUSPEX_TRY(s.trunk->track(context.run(step)));
            AUSPEX_TRY(each(p, step.n_row));
            n_done += step.n_row;
        }
        return {};
    }
    Status keep_hidden(const Tape& tape, size_t p, uint32_t n, std::vector<float>* to) {
        for (uint32_t i = 0; i < n; ++i) {
            Span<const float> row;
            AUSPEX_TRY(context.read_row(tape.hidden, i).get(row));
            std::copy(row.begin(), row.end(),
                      to->begin() + static_cast<std::ptrdiff_t>((p + i) * s.model->plan.d_model));
        }
        return {};
    }
    Status hand_out(const Tape& tape, size_t p, uint32_t n, const Session::RowSink& sink) {
        AUSPEX_TRY(context.head(tape, 0, n));
        for (uint32_t i = 0; i < n; ++i) {
            Span<const float> row;
            AUSPEX_TRY(context.read_row(tape.logits, i).get(row));
            sink(p + i, row);
        }
        return {};
    }
};

Status check_score(const Session::Impl& s, Span<const Token> ids, size_t n_min, const Session::RowSink& sink) {
    AUSPEX_TRY(s.trunk->alive());
    if (!sink) return Status(Code::bad_argument, "there is no function to hand the rows to; pass one");
    if (ids.size() < n_min || ids.size() > s.options.n_context)
        return fail(Code::bad_argument, ids.size(), " tokens to score, expected ", n_min, "..", s.options.n_context);
    return s.check_ids(ids);
}

}  // namespace
}  // namespace score_impl

Status Session::score(Span<const Token> ids, const RowSink& sink) AUSPEX_BOUNDARY {
    Impl::Call call(impl_.get());
    AUSPEX_TRY(call.status());
    Impl& s = *impl_;
    AUSPEX_TRY(score_impl::check_score(s, ids, 1, sink));
    AUSPEX_TRY(s.go_on());
    const std::vector<Token> all(ids.begin(), ids.end());  // may view our own history
    AUSPEX_TRY(s.drain(true));
    AUSPEX_TRY(s.leave_text());
    s.timeline.assign(all);
    s.timeline.ask(all.size());
    s.trunk->follow();
    while (s.timeline.n_row() < all.size()) {
        const size_t first = s.timeline.n_row();
        AUSPEX_TRY(s.trunk->run_piece(all.size()));
        s.trunk->forget_logits();  // the heads below overwrite them
        AUSPEX_TRY(score_impl::score_rows(s, first, s.timeline.n_row() - first, sink));
    }
    return s.trunk->find_logits();
}
AUSPEX_CATCH

Status Session::score_mtp(Span<const Token> ids, uint32_t depth, const RowSink& sink) AUSPEX_BOUNDARY {
    using namespace detail;
    Impl::Call call(impl_.get());
    AUSPEX_TRY(call.status());
    Impl& s = *impl_;
    const Plan& plan = s.model->plan;
    if (plan.mtp.empty())
        return Status(Code::unsupported, "this model has no MTP block loaded, so there are no draft rows to score");
    if (depth == 0 || depth > kMaxTentative - 1)
        return fail(Code::bad_argument, "depth is ", depth, ", expected 1..", kMaxTentative - 1);
    AUSPEX_TRY(score_impl::check_score(s, ids, depth + 1, sink));
    AUSPEX_TRY(s.go_on());
    const std::vector<Token> all(ids.begin(), ids.end());
    AUSPEX_TRY(s.drain(true));
    AUSPEX_TRY(s.leave_text());
    // The session's own context may lack the MTP block, so open another one, with the same formats and windows. Only
    // the MTP block's default window is left out: it exists for speed and would change the result.
    ContextOptions options;
    AUSPEX_TRY(plan_context_options(plan, s.options, &options, nullptr));
    options.mtp = true;
    options.mtp_window = 0;
    Reservation reserved;
    AUSPEX_TRY(reserve_context(*s.model, options, &reserved));
    std::unique_ptr<Context> context;
    AUSPEX_TRY(s.model->program->open(options).get(context));
    score_impl::Teacher teacher{s, *context, all, 1 + size_t{depth}};
    const uint64_t n_value = uint64_t{all.size()} * plan.d_model;
    if (n_value > SIZE_MAX / sizeof(float))
        return fail(Code::out_of_memory, "the hidden rows of ", all.size(), " tokens take ", n_value * sizeof(float),
                    " bytes, more than a ", 8 * sizeof(size_t),
                    "-bit process can hold. Use a 64-bit build, or give fewer tokens.");
    std::vector<float> hidden(static_cast<size_t>(n_value)), next(hidden.size());
    const auto keep_trunk = [&](size_t p, uint32_t n) { return teacher.keep_hidden(plan.trunk, p, n, &hidden); };
    AUSPEX_TRY(teacher.pass(plan.trunk, 0, all.size(), nullptr, keep_trunk));
    for (uint32_t d = 1; d <= depth; ++d) {
        const Tape& tape = plan.mtp[plan.mtp_block(d)];
        const auto keep = [&](size_t p, uint32_t n) {
            const Status kept = teacher.keep_hidden(tape, p, n, &next);
            return d < depth || !kept.ok() ? kept : teacher.hand_out(tape, p, n, sink);
        };
        AUSPEX_TRY(teacher.pass(tape, d, all.size() - d, hidden.data(), keep));
        hidden.swap(next);
    }
    return {};
}
AUSPEX_CATCH

Result<std::vector<KernelTime>> Session::profile(uint32_t n_row, size_t n_token) AUSPEX_BOUNDARY {
    Impl::Call call(impl_.get());
    AUSPEX_TRY(call.status());
    Impl& s = *impl_;
    AUSPEX_TRY(s.trunk->alive());
    if (n_row == 0) return Status(Code::bad_argument, "a step of 0 rows, expected at least 1");
    if (n_token > s.options.n_context || n_row > s.options.n_context - n_token)
        return detail::fail(Code::bad_argument, "a step of ", n_row, " rows after ", n_token,
                            " tokens, the session holds ", s.options.n_context);
    detail::KernelProfiler* profiler = s.context->profiler();
    if (!profiler)
        return Status(Code::unsupported,
                      "the CPU does not time its kernels one by one, only a GPU with timestamps does; open a Vulkan "
                      "device to profile a step");
    AUSPEX_TRY(s.drain());
    AUSPEX_TRY(profiler->may_profile(n_row, static_cast<uint32_t>(n_token)));
    AUSPEX_TRY(s.leave_text());
    s.trunk->make_room(n_token + n_row);  // the step overwrites these rows
    Result<std::vector<KernelTime>> times = profiler->profile(n_row, static_cast<uint32_t>(n_token));
    s.trunk->restart(0);
    if (!times.ok()) return s.trunk->track(times.status());
    return times;
}
AUSPEX_CATCH

Result<StepCounts> Session::count_step(uint32_t n_row) const AUSPEX_BOUNDARY {
    Impl::Call call(impl_.get());
    AUSPEX_TRY(call.status());
    const Impl& s = *impl_;
    const bool prefill = n_row == 0 || n_row > detail::kMaxTentative;
    const uint32_t n_max = std::max(s.options.n_ubatch, detail::kMaxTentative);
    if (n_row > n_max) return detail::fail(Code::bad_argument, "a step of ", n_row, " rows, expected 0..", n_max);
    const detail::KernelProfiler* profiler = s.context->profiler();
    if (!profiler)
        return Status(Code::unsupported,
                      "the CPU runs operations without a list of dispatches; open a Vulkan device to count them");
    detail::Step step;
    step.tape = &s.model->plan.trunk;
    step.n_row = n_row == 0 ? s.options.n_ubatch : n_row;
    step.n_logit = prefill ? 0 : n_row;
    step.tentative = !prefill;
    return profiler->count(step);
}
AUSPEX_CATCH

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

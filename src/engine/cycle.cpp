// engine/cycle: one pass of next(): guess, verify, accept.
//
// A row's logits do not depend on what shares its step, and a token is a pure function of its logits, its
// position and the tokens before it. So the rows of guesses that turn out right are the rows that plain
// decoding would have run, and the first token that differs from its guess is the one it would have sampled.
#include "session.h"

#include <algorithm>

namespace auspex {
namespace cycle_impl {

Status no_mtp(const Model::Impl& m) {
    Result<uint32_t> n = m.gguf.get_u32((m.plan.architecture + ".nextn_predict_layers").c_str(), 0u);
    if (!n.ok() || n.value() == 0)
        return Status(Code::unsupported,
                      "drafting with an MTP block was asked for, but this file has none ('" + m.plan.architecture +
                          ".nextn_predict_layers' is absent or 0); use Draft::lookup, a file that was converted with "
                          "its MTP block, or one beside it (LoadOptions::mtp_file)");
    const std::string name = "blk." + std::to_string(m.plan.n_layer) + ".nextn.eh_proj.weight";
    if (!m.gguf.tensor(name))
        return Status(Code::unsupported,
                      "drafting with an MTP block was asked for; the file's metadata names " +
                          std::to_string(n.value()) + ", but tensor '" + name +
                          "' is missing: the block was dropped when the file was made, or is in one of its own "
                          "(LoadOptions::mtp_file); use Draft::lookup, or convert it again");
    return Status(Code::unsupported,
                  "drafting with an MTP block was asked for, but the Model was loaded without it (LoadOptions::mtp)");
}

}  // namespace cycle_impl

Status Session::Impl::open_draft() {
    using namespace detail;
    DraftOptions& d = options.draft;
    if (d.depth < -1 || d.depth > static_cast<int>(kMaxDraft))
        return fail(Code::bad_argument, "draft.depth is ", d.depth, ", expected 0..", kMaxDraft,
                    ", or -1 for a choice of its own");
    if (!(d.min_probability >= 0 && d.min_probability <= 1))
        return fail(Code::bad_argument, "draft.min_probability is ", d.min_probability, ", expected 0..1");
    if (d.max_depth == 0 || d.max_depth > kMaxDraft)
        return fail(Code::bad_argument, "draft.max_depth is ", d.max_depth, ", expected 1..", kMaxDraft);
    depth = d.depth;
    control = Controller(d.max_depth);
    const bool uses_mtp = d.source == Draft::mtp || d.source == Draft::mtp_lookup;
    if (d.source == Draft::lookup || d.source == Draft::mtp_lookup) text_source.reset(new Lookup);
    if (!uses_mtp) return {};
    const Plan& plan = model->plan;
    if (plan.mtp.empty()) return cycle_impl::no_mtp(*model);
    AUSPEX_TRY(mtp.open(plan, *context, model->device->options.allocator, d.window,
                        std::min(std::max(options.n_ubatch, kMaxTentative), kMaxMtpRows)));
    d.n_vocab = draft_vocab_rows(d, plan.n_vocab);
    std::vector<Token> ids;
    if (!d.vocab.empty())
        AUSPEX_TRY(check_draft_vocab(model->tokenizer, plan.n_vocab, d.vocab).get(ids));
    else if (d.n_vocab > 0 && d.n_vocab < plan.n_vocab)
        ids = choose_draft_vocab(model->tokenizer, plan.n_vocab, d.n_vocab, {});
    if (ids.empty() || ids.size() >= plan.n_vocab) {
        d.vocab_by_use = false;
    } else {
        const uint64_t before = context->memory_bytes();
        AUSPEX_TRY(context->draft_head(ids));
        stats.draft_head_bytes = context->memory_bytes() - before;
        mtp.set_ids(std::move(ids));
        if (d.vocab_by_use) use_count.assign(plan.n_vocab, 0);
    }
    return depth < 0 && can_drive() ? context->device_loop()->prepare(d.max_depth) : Status();
}

Status Session::Impl::renew_vocab() {
    if (use_count.empty() || history.size() <= n_counted) return {};
    for (; n_counted < history.size(); ++n_counted) ++use_count[static_cast<size_t>(history[n_counted])];
    std::vector<Token> ids =
        detail::choose_draft_vocab(model->tokenizer, model->plan.n_vocab, options.draft.n_vocab, use_count);
    const Span<const Token> now = mtp.ids();
    if (ids.size() == now.size() && std::equal(ids.begin(), ids.end(), now.begin())) return {};
    AUSPEX_TRY(track(context->draft_head(ids)));
    mtp.set_ids(std::move(ids));
    return {};
}

Status Session::set_draft_depth(int depth) {
    Impl& s = *impl_;
    if (depth < -1 || depth > static_cast<int>(kMaxDraft))
        return detail::fail(Code::bad_argument, "the draft depth is ", depth, ", expected 0..", kMaxDraft,
                            ", or -1 for a choice of its own");
    if (depth > 0 && s.options.draft.source == Draft::off)
        return Status(
            Code::bad_argument,
            "this session was created with Draft::off and has nothing to draft with; set SessionOptions::draft");
    s.depth = depth;
    return {};
}

uint32_t Session::Impl::usable_depths() {
    uint32_t usable = 1;
    for (uint32_t g = 1; g <= options.draft.max_depth; ++g)
        if (!can_drive() || context->device_loop()->ready(g)) usable |= 1u << g;
    return usable;
}

detail::Decision Session::Impl::decide(uint32_t n_ahead, DraftCycle* cycle) {
    using namespace detail;
    *cycle = DraftCycle();
    const uint32_t context = static_cast<uint32_t>(history.size()) + n_ahead;
    const uint32_t most = context + 1 < options.n_context ? options.n_context - context - 1 : 0;
    Decision d;
    if (!text_source && !mtp.on())
        control.fixed(0, context);
    else if (depth < 0)
        d = control.next(context, usable_depths());
    else
        control.fixed(d.depth = static_cast<uint32_t>(depth), context);
    d.depth = std::min(d.depth, most);
    control.explain(cycle);
    cycle->chosen = d.depth;
    return d;
}

Result<detail::AcceptanceProbe> Session::Impl::acceptance_probe(uint32_t n, const Sampling& sampling) {
    detail::AcceptanceProbe seen;
    if (n > 0) AUSPEX_TRY(track(mtp.acceptance_probe(history, n, sampling, synthetic, can_drive(), sampler, &seen)));
    return seen;
}

void Session::Impl::saw(const detail::AcceptanceProbe& seen, DraftCycle* cycle) {
    control.observe_acceptance_probe(seen);
    cycle->probe_rows = seen.n;
    cycle->probe_hits = seen.hits;
    cycle->probe_us = seen.seconds * 1e6;
}

void Session::Impl::finish(const DraftCycle& cycle, double us) {
    stats.cycles[cycle.depth] += 1;
    for (uint32_t i = 0; i < cycle.depth; ++i) stats.drafted[i] += 1;
    for (uint32_t i = 0; i < cycle.accepted; ++i) stats.accepted[i] += 1;
    detail::DraftSeen seen;
    seen.depth = cycle.depth;
    seen.accepted = cycle.accepted;
    seen.seconds = us * 1e-6;
    seen.catch_up = cycle.catch_up_us * 1e-6;
    seen.context = static_cast<uint32_t>(cycle.n_token);
    control.observe(seen);
    if (options.on_cycle) options.on_cycle(cycle);
}

Status Session::Impl::find_logits() {
    const uint32_t n_kept = static_cast<uint32_t>(mtp.n_kept());
    if (has_logits || n_kept == 0 || mtp.first() + n_kept != n_row) return {};
    AUSPEX_TRY(track(context->head(model->plan.trunk, n_kept - 1, 1)));
    has_logits = true;
    i_logit = 0;
    return {};
}

Status Session::Impl::guess(uint32_t n, const Sampling& sampling, uint32_t* n_guess) {
    *n_guess = 0;
    if (n == 0) return {};
    if (text_source) {
        Token found[kMaxDraft] = {};
        const uint32_t n_found = std::min(text_source->propose(history, n, found), n);
        if (n_found > 0 && (text_source->sure() || !mtp.on())) {
            const Token end = static_cast<Token>(model->plan.n_vocab);
            while (*n_guess < n_found && found[*n_guess] >= 0 && found[*n_guess] < end)
                history.push_back(found[(*n_guess)++]);
            return {};
        }
    }
    return mtp.propose(history, n, sampling, options.draft.min_probability, sampler, n_guess);
}

Result<Span<const float>> Session::Impl::last_logits() {
    if (!restored_logits.empty()) return Span<const float>(restored_logits);
    Result<Span<const float>> row = context->read_row(model->plan.trunk.logits, i_logit);
    if (!row.ok()) return track(row.status());
    return row;
}

Status Session::Impl::cycle(const Sampling& sampling) {
    using namespace detail;
    const size_t size = history.size();  // of these, all but the last have been run
    DraftCycle seen;
    const Decision wanted = decide(0, &seen);
    has_logits = false;  // guesses write theirs where the last row's stand
    AcceptanceProbe looked;
    AUSPEX_TRY(acceptance_probe(wanted.probe_rows, sampling).get(looked));
    saw(looked, &seen);
    const auto start = std::chrono::steady_clock::now();
    uint32_t n_guess = 0;
    Status done = guess(wanted.depth, sampling, &n_guess);
    if (done.ok() && keeps_up()) {
        const auto guessed = std::chrono::steady_clock::now();
        const size_t behind = mtp.n_pending_hidden();
        done = mtp.fill(history, true);
        if (n_guess == 0) {
            seen.catch_up_us = seconds_since(guessed) * 1e6;
            control.observe_catch_up(seen.catch_up_us * 1e-6, behind - mtp.n_pending_hidden());
        }
    }
    Token guesses[kMaxDraft] = {};
    std::copy_n(history.begin() + static_cast<std::ptrdiff_t>(size), n_guess, guesses);
    Step step;
    step.tape = &model->plan.trunk;
    step.ids = history.data() + n_row;
    step.n_row = step.n_logit = 1 + n_guess;
    step.place(static_cast<uint32_t>(n_row));
    step.tentative = true;
    if (done.ok()) done = run(step);
    history.resize(size);
    if (!done.ok()) {
        mtp.cut(size);
        return track(std::move(done));
    }

    uint32_t n_new = 0, n_right = 0;
    for (bool more = true; more; ++n_new) {
        Span<const float> logits;
        done = context->read_row(model->plan.trunk.logits, n_new).get(logits);
        if (!done.ok()) break;
        Token id = sampler.sample(logits, sampling, history.size(), history);
        bool right = n_new < n_guess && id == guesses[n_new];
        if (synthetic.on() && n_new < n_guess) {
            right = synthetic.agrees(history.size());
            if (right) id = guesses[n_new];
        }
        n_right += right;
        history.push_back(id);
        more = right && (synthetic.on() || !model->tokenizer.is_end(id));
    }
    if (!done.ok()) {  // nothing of this pass has happened
        history.resize(size);
        context->commit(0);
        return track(std::move(done));
    }
    context->commit(n_new);
    mtp.ran(n_row, n_new, true);
    step_first = n_row;
    can_step_back = true;
    n_row += n_new;
    i_logit = n_new - 1;
    has_logits = true;
    stats.rows_decoded += step.n_row;
    seen.n_token = size;
    seen.depth = n_guess;
    seen.accepted = n_right;
    seen.us = seconds_since(start) * 1e6;
    finish(seen, seen.us);
    return {};
}

}  // namespace auspex

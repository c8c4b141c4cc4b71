// engine/session: one timeline: which rows are computed, which token comes next.
//
// Owns    the history, the positions, what sync() must compute; the cycle of drafting, verifying and
//         accepting (cycle.cpp; drive.cpp where the context does it by itself).
// Reads   model, sample, draft, controller, backend (Context).
// Serves  the door.
// Thread  one thread at a time.
// Laws    Commit, Chunk, HotPath: tests/test_session.cpp, tests/test_invariants.cpp. Draft: tests/test_draft.cpp.
#pragma once
#include "controller.h"
#include "draft.h"
#include "../machine/kv.h"
#include "model.h"
#include "sampler.h"

namespace auspex {

struct Session::Impl {
    std::shared_ptr<Model::Impl> model;
    SessionOptions options;
    std::unique_ptr<detail::Context> context;
    detail::Sampler sampler;
    std::vector<Token> history;          ///< capacity taken at the start: a step allocates nothing
    size_t n_row = 0;                    ///< rows of the history that the context holds
    bool has_logits = false;             ///< those of row n_row - 1
    uint32_t i_logit = 0;                ///< where the context keeps them
    std::vector<float> restored_logits;  ///< those of a restored snapshot, until the next step
    bool lost = false;                   ///< the device is gone
    Stats stats;

    // Drafting.
    detail::Mtp mtp;
    std::unique_ptr<detail::DraftSource> text_source;  ///< lookup, or what a test puts here
    int depth = -1;                                    ///< as DraftOptions::depth
    detail::Controller control;
    std::vector<uint32_t> use_count;        ///< [n_vocab] of tokens seen, for vocab_by_use; else empty
    size_t n_counted = 0;                   ///< tokens of the history that are counted
    size_t step_first = 0;                  ///< first row of the last tentative step
    bool can_step_back = false;             ///< that step may be committed again, shorter
    detail::SyntheticAcceptance synthetic;  ///< of `bench`

    // A context that sampled_ids by itself (Context::device_loop): cycles on their way, and what they were started
    // with.
    bool driving = false;
    bool drive_drafts = false;   ///< the drive keeps up the draft block's cache
    bool drive_ended = false;    ///< it has stopped at an end token
    bool drive_refused = false;  ///< it cannot draft with this model
    uint32_t n_plain = 0;        ///< cycles without drafts queued in a row
    uint32_t n_queued = 0, first_queued = 0;
    std::chrono::steady_clock::time_point waits_since;  ///< the caller, for the next cycle
    size_t caught_up = 0;    ///< rows that the draft block made up for right before the cycle that is waited for next
    double catch_up_us = 0;  ///< of the host's time for that
    DraftCycle on_way[detail::kMaxQueued];  ///< what was decided for each, oldest at first_queued
    Sampling drive_sampling;

    bool can_drive() const;
    /// One cycle of a context that drives itself, appended to the history; as many more as run_ahead are queued.
    Status drive(const Sampling& sampling);
    /// false: not from here; the next cycle is the host's.
    Result<bool> start_drive(const Sampling& sampling, bool drafts);
    Status queue_cycle(const Sampling& sampling);
    Status take_cycle();
    /// Waits for what is queued; tokens computed ahead become history.
    Status settle();

    Status open_draft();
    /// Where the depth of the next cycle is chosen, behind n_ahead tokens not seen yet: how many tokens to
    /// guess, and whether a acceptance_probe pass comes before it.
    detail::Decision decide(uint32_t n_ahead, DraftCycle* cycle);
    /// Bit g: depth g can be chosen without waiting for kernels that are still being made.
    uint32_t usable_depths();
    /// A acceptance_probe pass over the last n tokens, 0: none; then what it took and saw is learned, and told with
    /// `cycle`.
    Result<detail::AcceptanceProbe> acceptance_probe(uint32_t n, const Sampling& sampling);
    void saw(const detail::AcceptanceProbe& seen, DraftCycle* cycle);
    /// A cycle is over: counts it, learns from it, tells of it. us: what such a cycle takes; 0: not known
    void finish(const DraftCycle& cycle, double us);
    /// The block's cache shall not fall behind.
    bool keeps_up() const { return depth > 0 || (depth < 0 && control.wants_drafts()); }
    /// Makes the logits of row n_row - 1 available, if its hidden row still is.
    Status find_logits();
    /// Guesses for the tokens after the history, appended to it.
    Status guess(uint32_t depth, const Sampling& sampling, uint32_t* n_guess);
    /// Drafts, runs the last token and the guesses, appends what was sampled.
    Status cycle(const Sampling& sampling);
    /// The logits of row n_row - 1.
    Result<Span<const float>> last_logits();
    /// Chooses the draft-only head anew from what was used, between texts.
    Status renew_vocab();

    /// Runs and commits rows n_row .. n_row + n - 1 of the history.
    Status prefill(size_t n);
    Status check_ids(Span<const Token> ids) const;
    void forget();
    Status run(const detail::Step& step);
    /// Windows: the shape of each KV slot, and the moments when each lets its first token go.
    std::vector<detail::KvShape> kv;
    std::vector<WindowFull> leaving;  ///< n_token: the rows at which it happens, ascending
    size_t n_left = 0;                ///< of those, how many were told in this timeline
    void watch_windows();
    void report_windows(size_t n_token);
    Status track(Status s);  ///< remembers a lost device
};

}  // namespace auspex

// engine/controller: how many tokens to draft next, and when not to draft at all.
//
// Owns    what was learned about the text (Acceptance) and about the machine (CycleCost), and the choice that follows.
//         Arithmetic alone: no clock, no device, no random numbers.
// Thread  a Controller belongs to one session: next() before a cycle is queued, observe() when its result is there.
// Test    tests/test_controller.cpp, on a virtual clock: drafting is never slower than not drafting by more than 2 %; a
//         choice allocates nothing. tests/test_controller_sessions.cpp: nor is it over many short texts.
//
// One cycle at depth g drafts g tokens, verifies g+1 rows and commits 1 + (accepted).
//
//   a_i       chance that draft i is accepted when drafts 1..i-1 were
//   S_i       a_1 a_2 ... a_i
//   E(g)      1 + S_1 + ... + S_g         tokens that a cycle is expected to commit
//   T(g)      seconds of a cycle, drafting and host work included; T(0) is one plain step
//   R(g)      T(g) / T(0)
//   rate(g)   E(g) / T(g)                 what is maximised over g = 0 .. max_depth
//
// Drafting at depth g pays when E(g) > R(g). The break-even is given in two units that must not be mixed: as
// accepted/drafted it is (R(g)-1)/g, as conditional acceptance the root a of 1 + a + .. + a^g = R(g).
//
// The controller also learns at depth 0. Every few tokens the session runs an acceptance probe: the MTP block runs over
// the tokens committed since the last probe (Decision::probe_rows). This keeps the block's cache current and tells for
// each token whether the block would have drafted it, which are exact outcomes for a_1 without verification.
//
// Drafts that were made from the text alone have tables of their own (TextDrafts), and they are known before the cycle
// is queued. The choice above is made for the MTP block. Unless that cycle explores, drafts from the text take their
// place if they promise more tokens per second. Whether they would have been right is known after every cycle, at no
// cost.
#pragma once
#include "text_drafts.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// What to do in the next cycle.
struct Decision {
    uint32_t depth = 0;       ///< tokens to draft; 0: a plain step
    uint32_t probe_rows = 0;  ///< before it, an acceptance probe over this many of the last committed tokens
    bool from_text = false;   ///< the drafts are those of the offer, not the MTP block's
};

/// One finished cycle.
struct DraftSeen {
    uint32_t depth = 0;     ///< decided; where a source had fewer drafts, those that it had
    uint32_t accepted = 0;  ///< at most depth
    double seconds = 0;     ///< of the whole cycle with drafting, without the acceptance probe; 0: not known
    double catch_up = 0;   ///< of these, in a cycle without drafts: for the MTP cache, which a plain step does not need
    uint32_t context = 0;  ///< tokens in the history before it
    bool from_text = false;
};

class Controller {
  public:
    static constexpr uint32_t kMaxAcceptanceProbe = 16;  ///< committed tokens whose hidden rows the session keeps

    /// max_depth       deepest draft of the MTP block, at most kMaxDepth; 0: there is none.
    /// max_text_depth  the same for drafts made from the text; 0: none are offered.
    explicit Controller(uint32_t max_depth = 6, uint32_t max_text_depth = 0);

    /// Another text begins in the same session, and the MTP block has seen its prompt: forgets the acceptance of the
    /// old text, keeps what is known of the machine.
    void new_text();
    /// Decides on the next cycle to be queued. Each call stands for one cycle; it may come before the results of
    /// earlier cycles.
    ///
    /// context   tokens in the history, as far as known
    /// usable    bit g: depth g can be run now; 0 always can
    /// offer     drafts that the text gives for this cycle, if its tokens are known
    /// cost      below a microsecond; allocates nothing.
    Decision next(uint32_t context, uint32_t usable = UINT32_MAX, const TextOffer& offer = TextOffer());
    /// If such an offer is there for the next cycle, next() is likely to take it.
    bool prefers(const TextOffer& offer, uint32_t usable = UINT32_MAX) const { return text_depth(offer, usable) > 0; }
    /// Instead of next() where the caller fixes the depth.
    void fixed(uint32_t depth, uint32_t context);
    void observe(const DraftSeen& seen);
    void observe_acceptance_probe(const AcceptanceProbe& probe);
    /// After every cycle at whose beginning the text offered drafts: TextDrafts::observe().
    void observe_offer(const TextOffer& offer, uint32_t n_known, uint32_t n_right);
    /// Between plain steps the MTP cache was filled by n_row rows, in so many seconds.
    void observe_catch_up(double seconds, size_t n_row);

    /// Allocates the list of depth changes.
    DraftReport report() const;
    /// Starts the report's counts from zero.
    void clear_report();
    /// True if the MTP block may draft at any time and keeping its cache current is cheap enough. If it is not kept
    /// current, the next drafts see only the part of the text that is still at hand.
    bool wants_drafts() const;
    /// The basis of the last decision.
    void explain(DraftCycle* to) const;

    /// The learned costs of all context lengths as bytes. They are valid for one device, driver and model, which the
    /// caller must note.
    std::vector<std::byte> save_costs() const;
    /// Replaces the cold start by saved costs, unless no draft could pay by them.
    ///
    /// errors    bad_file. Nothing is changed then.
    Status load_costs(Span<const std::byte> from);

  private:
    void rates(double* rate) const;
    bool can_pay(uint32_t depth) const;
    bool unprofitable() const;
    bool may_explore() const;
    uint32_t text_depth(const TextOffer& offer, uint32_t usable) const;
    bool choose_text(const TextOffer& offer, uint32_t usable, Decision* d);
    bool acceptance_probe_due() const;
    double saving(double* usual) const;
    double exploration_cost() const;
    bool update_suspension(uint32_t context);
    Decision next_of_block(uint32_t context, uint32_t usable, DraftReason* reason);
    uint32_t next_depth(uint32_t usable, DraftReason* reason);
    void record_change(uint32_t depth, DraftReason reason);
    uint32_t known_or_once(uint32_t depth, const double* rate) const;
    uint32_t cold_depth(uint32_t usable);
    uint32_t choose(const double* rate, DraftReason* reason);
    uint32_t plain_gap() const;
    uint32_t probe(const double* rate, uint32_t chosen);

    uint32_t max_depth_, max_text_depth_;
    Acceptance block_;  // of the MTP block
    CycleCost cost_;    // of its cycles
    TextDrafts text_;
    uint32_t n_text_ = 0;      // decisions in a row for drafts from the text
    uint32_t n_no_text_ = 0;   // and for anything else
    uint32_t last_text_ = 0;   // depth of the last decision if its drafts are from the text, else 0
    uint32_t last_match_ = 0;  // of that offer

    uint32_t depth_ = 0;        // the present choice; probes do not change it
    uint32_t last_ = 0;         // depth of the last decision, probes included
    uint32_t i_cold_ = 0;       // next entry of the cold start
    bool reopened_ = false;     // the cold start runs again after a suspension
    uint32_t since_probe_ = 0;  // decisions
    uint32_t n_decision_ = 0;
    uint32_t plain_at_ = 0;               // the decision for the last plain step
    uint32_t asked_[kMaxDepth + 1] = {};  // the last decision for a cycle of the block at this depth
    uint32_t pending_ = 0;                // tokens of plain steps in this text whose outcome is not known
    uint32_t since_outcome_ = 0;          // the same in this text and those before it
    uint32_t stale_ = 0;                  // drafting cycles whose outcomes are not counted
    bool suspended_ = false;              // unprofitable: no drafts until costs or context change
    uint32_t suspended_context_ = 0;
    double suspended_seconds_ = 0;   // T(0) at that time
    double probe_seconds_ = 0;       // of an acceptance probe, smoothed; 0: not measured
    double last_probe_seconds_ = 0;  // of the last one
    double catch_up_[2] = {};        // seconds per row, the last and the one before; 0: not seen since drafting paid
    double deficit_ = 0;             // plain steps that drafting has lost against never drafting, since the beginning
    double steps_ = 0;               // plain steps that the tokens so far are worth
    DraftReason reason_ = DraftReason::none;  // of the last decision
    DraftReport seen_;                        // the counting half of the report
    double unpriced_ = 0;                     // tokens not in its baseline yet: no plain step was measured
    static constexpr uint32_t kMaxChange = 64;
    DepthChange changes_[kMaxChange];  // a ring
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

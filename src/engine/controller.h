// engine/controller: how many tokens to draft next, and when not to draft at all.
//
// Owns    what was learned about the text (acceptance), about the machine (cost), and the choice
//         that follows. Pure arithmetic over observations: no clock, no device, no random numbers.
// Reads   base.
// Serves  session: next() before a cycle is queued, observe() when its result is there.
// Thread  none of its own; a Controller belongs to one session.
// Laws    Drafting is never slower than not drafting by more than 2 %; a choice allocates nothing.
//         tests/test_controller.cpp, on a virtual clock.
//
// The quantities. One cycle at depth g drafts g tokens, verifies g+1 rows and commits 1 + (accepted).
//
//   a_i       chance that draft i is accepted when drafts 1..i-1 were
//   S_i       a_1 a_2 ... a_i
//   E(g)      1 + S_1 + ... + S_g         tokens that a cycle is expected to commit
//   T(g)      seconds of a cycle, drafting and host work included; T(0) is one plain step
//   R(g)      T(g) / T(0)
//   rate(g)   E(g) / T(g)                 what is maximised over g = 0 .. max_depth
//
// Drafting at depth g pays when E(g) > R(g). Two units of the same break-even are in use and must not
// be mixed: (R(g)-1)/g is in accepted/drafted, the root of 1 + a + .. + a^g = R(g) in conditional a.
//
// Acceptance. The text has a level q, the chance that the first draft is right; deeper drafts have
// a_i = q d_i with slowly learned ratios d_i <= 1. The level is constant for a while and then jumps
// (code, then prose, then code): a hidden Markov model on a grid of levels, times a few hypotheses on
// how often it jumps. Every judged draft is one step of its forward filter. Drafts behind the first
// rejected one were never judged, so they say nothing.
//
// Cost. log T(g) = speed + ratio(g), both in log seconds and kept for each octave of context length.
// What changes together (clock, load, context) moves `speed` after one cycle at any depth; what changes
// for one depth moves its ratio. A scalar Kalman step divides each surprise between the two by how
// uncertain they are, and a ratio grows uncertain while it is not measured. A jump, three surprises in a
// row, is taken for the speed's; the next cycle at another depth tells whether it was that depth's own.
//
// Off is depth 0, and off still learns: every few tokens the session runs the draft head once over the
// tokens committed since, teacher-forced (Decision::probe_rows). That keeps the head's cache current
// and says for each token whether the head would have had it: exact outcomes for a_1, without a verify.
#pragma once
#include "../base/base.h"

namespace auspex {
namespace detail {

/// What to do in the next cycle.
struct Decision {
    uint32_t depth = 0;       ///< tokens to draft; 0: a plain step
    uint32_t probe_rows = 0;  ///< before it, run the head over this many of the last committed tokens
};

/// One finished cycle.
struct DraftSeen {
    uint32_t depth = 0;     ///< drafted and verified; less than decided after an early stop
    uint32_t accepted = 0;  ///< at most depth
    double seconds = 0;     ///< of the whole cycle, drafting included, the acceptance_probe pass not; 0: not known
    double catch_up =
        0;  ///< of these, in a cycle without drafts: for the draft block's cache, which a plain step has no need of
    uint32_t context = 0;  ///< tokens in the history before it
    /// Sum of the draft's own probabilities over the judged drafts (the accepted ones and the first
    /// rejected one); 0 when not known.
    double confidence = 0;
};

/// One finished acceptance_probe pass.
struct AcceptanceProbe {
    uint32_t n = 0;     ///< rows, at most Controller::kMaxAcceptanceProbe
    uint32_t hits = 0;  ///< rows where the head's token is the one that came
    double seconds = 0;
    uint32_t order = 0;  ///< bit i: row i (0 is the oldest) was a hit; 0 with hits > 0: order not known
};

/// The deepest draft that the tables below have room for.
constexpr uint32_t kMaxDepth = kMaxDraft;

// ---------------------------------------------------------------------------------------- the text

/// The level of acceptance, learned from judged drafts.
class Acceptance {
  public:
    Acceptance();
    /// Drafts 1..accepted were hits; draft accepted+1, if there was one, a miss; deeper ones unjudged.
    void cycle(uint32_t depth, uint32_t accepted);
    /// Outcomes of first drafts, oldest first.
    void acceptance_probe(const AcceptanceProbe& seen);
    /// Another text begins: the level is open again, what is usual is kept.
    void new_text();
    /// E(0) .. E(max_depth).
    void expected(uint32_t max_depth, double* tokens) const;
    /// a_i of position i >= 1, before anything of this cycle is known.
    double at(uint32_t position) const { return level() * ratio_[position]; }
    double ratio(uint32_t position) const { return ratio_[position]; }
    double level() const;
    /// Expected tokens from one jump of the level to the next, under the filter's hypotheses.
    double run_length() const;
    /// Plain steps per token that the best depth would save, averaged over the levels as the filter
    /// stands, and in `usual` over the levels that jumps lead to. relative: R(0) .. R(max_depth)
    double saving(uint32_t max_depth, const double* relative, double* usual) const;

  private:
    static constexpr uint32_t kLevel = 12, kPace = 3;
    void token_passes();
    void judge(uint32_t position, bool hit);
    double weight(uint32_t level) const;

    double p_[kPace][kLevel];                           // P(pace, level | all outcomes), sums to 1
    double usual_[kLevel];                              // slow average of the level's distribution: where jumps go
    double ratio_[kMaxDepth + 1];                       // d_i
    double hit_[kMaxDepth + 1], hoped_[kMaxDepth + 1];  // discounted hits, and what the level alone promised
};

// ------------------------------------------------------------------------------------- the machine

/// Seconds of a cycle by depth, learned in each octave of context length.
class CycleCost {
  public:
    static constexpr uint32_t kBucket = 12;  ///< octaves from 1K tokens on; the last has no end
    static uint32_t bucket_of(uint32_t context);
    /// Makes the bucket of `context` current; a new one starts from its nearest neighbour.
    void enter(uint32_t context);
    void observe(uint32_t depth, double seconds);
    /// Every depth but 0 is unmeasured again in the current bucket.
    void forget_drafts();
    bool knows(uint32_t depth) const { return now().ratio[depth].n > 0; }
    uint32_t samples(uint32_t depth) const { return now().ratio[depth].n; }
    /// T(g); unmeasured depths lie on a line through the measured ones with g >= 1 (the step from 0 to 1
    /// is a jump and says nothing about slope). 0 before the first observation.
    double seconds(uint32_t depth) const;
    uint64_t age(uint32_t depth) const { return n_cycle_ - now().ratio[depth].when; }
    uint64_t cycles_since_jump() const { return jump_when_ > 0 ? n_cycle_ - jump_when_ : UINT64_MAX; }
    /// Standard deviation of log T(g) against the other depths.
    double doubt(uint32_t depth) const;
    /// The depth whose last measurement was out of the ordinary, accident or not; UINT32_MAX: none.
    uint32_t surprised() const { return now().ratio[surprised_].n_surprise > 0 ? surprised_ : UINT32_MAX; }

    void save(std::vector<std::byte>* to) const;
    Status load(Span<const std::byte> from);

  private:
    struct Ratio {
        double log = 0, variance = 0;
        uint64_t when = 0;  // cycle of the last measurement
        uint32_t n = 0;
        double surprise = 0;      // the last measurement that was out of the ordinary
        uint32_t n_surprise = 0;  // so many in a row, in one direction
    };
    struct Bucket {
        bool known = false;
        double speed = 0, speed_variance = 0;
        Ratio ratio[kMaxDepth + 1];
    };
    const Bucket& now() const { return bucket_[current_]; }
    double variance(const Ratio& r) const;
    void jump(uint32_t depth, double e);
    void settle_jump(uint32_t depth, double log_t);

    Bucket bucket_[kBucket];
    uint32_t current_ = 0;
    uint64_t n_cycle_ = 0;
    double noise_variance_ = 0;
    double jump_ = 0;          // the last jump, until another depth has told whose it was
    uint32_t jump_depth_ = 0;  // where it was seen
    uint64_t jump_when_ = 0;   // and in which cycle
    uint32_t surprised_ = 0;   // depth
};

// -------------------------------------------------------------------------------------- the choice

class Controller {
  public:
    static constexpr uint32_t kMaxAcceptanceProbe = 16;  ///< committed tokens whose hidden rows the session keeps

    /// max_depth   deepest draft, at most kMaxDepth; 0: never drafts.
    explicit Controller(uint32_t max_depth = 6);

    /// Another text begins in the same session, its prompt already run through the head: forgets the
    /// level of the old text, keeps what is known of the machine.
    void new_text();
    /// The choice for the next cycle to be queued. Each call stands for one cycle; it may come before
    /// the results of cycles still on their way.
    ///
    /// context   tokens in the history, as far as known
    /// usable    bit g: depth g can be had now; 0 always can
    /// cost      below a microsecond; allocates nothing.
    Decision next(uint32_t context, uint32_t usable = UINT32_MAX);
    /// In its place where the depth is not ours to choose.
    void fixed(uint32_t depth, uint32_t context);
    void observe(const DraftSeen& seen);
    void observe_acceptance_probe(const AcceptanceProbe& seen);
    /// Between plain steps the head's cache was filled by n_row rows, for that many seconds.
    void observe_catch_up(double seconds, size_t n_row);
    /// Within a cycle, after `drafted` >= 1 drafts: does one more pay?
    ///
    /// confidence   product of the draft's own probabilities of them: its chance that all stand
    bool keep_drafting(uint32_t drafted, double confidence) const;

    /// Allocates the list of switches.
    DraftReport report() const;
    /// The statistics begin anew.
    void clear_report();
    /// Drafting may go on any time, and what that takes can be afforded: the head's cache is to be kept up. Where it is
    /// not, the next drafts see as much of the text as is still at hand.
    bool wants_drafts() const;
    /// What the last decision stood on.
    void explain(DraftCycle* to) const;

    /// The learned costs as bytes. They hold for one device, driver and model: the caller keys them so.
    /// Context buckets are inside.
    std::vector<std::byte> save_costs() const;
    /// Spares the cold start. errors: bad_file, and nothing is changed.
    Status load_costs(Span<const std::byte> from);

  private:
    void rates(double* rate) const;
    bool can_pay(uint32_t depth) const;
    bool unprofitable() const;
    bool may_explore() const;
    bool acceptance_probe_due() const;
    double saving(double* usual) const;
    double exploration_cost() const;
    uint32_t known_or_once(uint32_t depth, const double* rate);
    uint32_t cold_depth(uint32_t usable);
    uint32_t choose(const double* rate, DraftReason* reason);
    uint32_t probe(const double* rate, uint32_t chosen);

    uint32_t max_depth_;
    Acceptance text_;
    CycleCost cost_;

    uint32_t depth_ = 0;                  // the standing choice; probes do not change it
    uint32_t last_ = 0;                   // depth of the last decision, probes included
    uint32_t i_cold_ = 0;                 // next entry of the cold start
    bool reopened_ = false;               // the cold start runs again after a lock
    uint32_t since_probe_ = 0;            // decisions
    uint32_t n_decision_ = 0;             // after the cold start
    uint32_t asked_[kMaxDepth + 1] = {};  // the decision at which a depth of unknown time was last chosen
    uint32_t pending_ = 0;                // tokens of plain steps whose outcome is not known
    uint32_t stale_ = 0;                  // drafting cycles whose outcomes are not counted
    bool locked_ = false;
    uint32_t locked_context_ = 0;
    double locked_seconds_ = 0;                 // T(0) at the lock
    double acceptance_probe_seconds_ = 0;       // of a pass, smoothed; 0: not measured
    double last_acceptance_probe_seconds_ = 0;  // of the last one
    double catch_up_[2] = {};  // seconds per row, the last and the one before; 0: not seen since drafting paid
    double deficit_ = 0;       // plain steps lost against never drafting, since the beginning
    double steps_ = 0;         // plain steps that the tokens so far are worth
    double calibration_hit_ = 0, calibration_hoped_ = 0;
    DraftReason reason_ = DraftReason::none;  // of the last decision
    DraftReport seen_;                        // the counting half of the report
    static constexpr uint32_t kMaxSwitch = 64;
    DepthChange switches_[kMaxSwitch];  // a ring
};

}  // namespace detail
}  // namespace auspex

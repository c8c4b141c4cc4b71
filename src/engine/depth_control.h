// engine/depth_control: the draft depth of each cycle, and what the finished cycles teach.
//
// Owns    the depth that was asked for, the Controller that chooses one, and the counts of drafted and accepted tokens.
// Thread  belongs to one session.
// Tests   tests/test_draft.cpp, tests/test_device_loop.cpp; the Controller: tests/test_controller.cpp.
#pragma once
#include "controller.h"
#include "draft.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

class DepthControl {
  public:
    DepthControl(const SessionOptions& options, Stats& stats);

    /// 0 .. kMaxDraft, or -1: the Controller chooses.
    void set_depth(int depth) { depth_ = depth; }
    /// Takes over the depth that was asked for, and what was learned on the same kind of device.
    void copy(const DepthControl& other, bool learned) {
        depth_ = other.depth_;
        if (learned) control = other.control;
    }
    bool chooses() const { return depth_ < 0; }
    /// Drafts made from the text may be taken.
    bool wants_text() const { return depth_ != 0 && options_.draft.source != Draft::off; }
    /// If the text offers this for the next cycle, it is likely to be taken.
    bool prefers(const TextOffer& offer, uint32_t usable) const;
    /// The MTP block's cache must not fall behind: it may draft soon.
    bool wants_drafts() const { return depth_ > 0 || (depth_ < 0 && control.wants_drafts()); }

    /// What is known of the next cycle.
    struct Next {
        size_t n_token;   ///< tokens of the history before it
        size_t n_row;     ///< rows that it may run, at least 1
        uint32_t usable;  ///< bit g: depth g can run without waiting for kernels to be built; bit 0 is set
        bool can_draft;   ///< the session has a draft source
        TextOffer text;   ///< drafts made from the text, if its tokens are known
    };
    /// What it does: how many tokens to draft, by which source, and whether an acceptance probe comes before it.
    /// `cycle` gets what the decision is based on.
    Decision decide(const Next& next, DraftCycle* cycle);
    /// Learns from an acceptance probe that ran before `cycle`.
    void observe_probe(const AcceptanceProbe& seen, DraftCycle* cycle);
    /// Counts a finished cycle and learns from it. us: what such a cycle takes; 0: not known. The caller calls
    /// on_cycle once its own state is consistent.
    void finish(const DraftCycle& cycle, double us);

    Controller control;

  private:
    const SessionOptions& options_;
    Stats& stats_;
    int depth_;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

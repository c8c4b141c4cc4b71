#include "prefix_tree.h"

#include <algorithm>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {

const char* sync_reason_name(SyncReason reason) {
    static constexpr const char* kNames[] = {"unchanged", "appended", "resumed", "checkpoint",
                                             "given_up",  "no_state", "new_text"};
    const size_t i = static_cast<size_t>(reason);
    return i < sizeof kNames / sizeof *kNames ? kNames[i] : "unknown";
}

namespace detail {

namespace prefix_report_impl {

std::string divergence(const PrefixReport& r) {
    std::string text = say("diverged at row ", r.diverged_at, " of ", r.n_row);
    if (r.token_before >= 0 && r.token_now >= 0)
        return text + say(": token ", r.token_now, " instead of ", r.token_before);
    return text + (r.token_now >= 0 ? ": the history before ended there" : ": the new history ends there");
}

}  // namespace prefix_report_impl

std::string describe(const PrefixReport& r) {
    using namespace prefix_report_impl;
    std::string text;
    switch (r.reason) {
        case SyncReason::unchanged:
            text = say("unchanged: ", r.n_row, " rows");
            return r.n_live > r.n_row ? text + say(", the last ", r.n_live - r.n_row, " tokens were taken back") : text;
        case SyncReason::appended: text = say("appended ", r.rows_computed, " to ", r.rows_reused, " rows"); break;
        case SyncReason::resumed: text = say(divergence(r), "; resumed at row ", r.checkpoint_row); break;
        case SyncReason::checkpoint: text = say(divergence(r), "; nearest checkpoint ", r.checkpoint_row); break;
        case SyncReason::given_up:
            text = say(divergence(r), "; nearest checkpoint ", r.checkpoint_row, ", a nearer one was given up");
            break;
        case SyncReason::no_state:
            text =
                say(divergence(r), "; ", r.known, " rows are known, ",
                    r.state_at_end ? "the only checkpoint is after the last one, which must be computed again: set a "
                                     "mark one row earlier"
                                   : "no checkpoint was kept");
            break;
        case SyncReason::new_text: text = say("new text of ", r.n_row, " rows"); break;
    }
    if (r.rows_restored != 0 || r.rows_parked != 0)
        text += say("; ", r.rows_restored, " rows copied back, ", r.rows_parked, " parked");
    if (r.n_failed != 0) text += say("; ", r.n_failed, " copies failed: ", r.failure.message());
    return text;
}

std::vector<PrefixTree::StateInfo> PrefixTree::states() const {
    std::vector<StateInfo> all;
    for (uint32_t i = 0; i < states_.size(); ++i) {
        const State& s = states_[i];
        if (s.run == kNoRun) continue;
        StateInfo info;
        info.item = i;
        info.row = s.row;
        info.kind = s.kind;
        info.pinned = is_pinned(i);
        info.age = request_ - s.last_use;
        const Run& run = tree_[s.run];
        info.n_parked = run.states.back() == i && !run.has_states_below() ? rows_only_for(i) : 0;
        info.bytes = options_.state_bytes + info.n_parked * options_.row_bytes;
        info.score = score(i);
        info.tokens.resize(s.row);
        for (RunId id = s.run; id != kNoRun; id = tree_[id].parent) {
            const Run& part = tree_[id];
            const Token* from = id == open_ ? live_.data() + part.begin : part.tokens.data();
            std::copy(from, from + (std::min(part.end, s.row) - part.begin), info.tokens.data() + part.begin);
        }
        all.push_back(std::move(info));
    }
    return all;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END

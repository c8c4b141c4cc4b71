#include "prefix_tree.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

namespace prefix_sync_impl {

constexpr size_t kMaxLeft = 256;                   // divergences remembered
constexpr size_t kMinForgotten = size_t{1} << 20;  // tokens of runs of which nothing is kept
constexpr size_t kMaxForgotten = size_t{1} << 14;  // such runs: each takes as much as some 64 tokens

size_t common(Span<const Token> a, const Token* b, size_t n_b) {
    const size_t n = std::min(a.size(), n_b);
    return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + n, b).first - a.begin());
}

}  // namespace prefix_sync_impl

Result<PrefixReport> PrefixTree::sync(Span<const Token> wanted, Span<const Mark> marks, bool has_logits) {
    PrefixReport report = begin_report(wanted);
    const size_t same = report.diverged_at;
    const uint64_t parked = rows_parked_, restored = rows_restored_;
    const auto finish = [&, n_failed = n_failed_] {
        report.n_failed = n_failed_ - n_failed;
        if (report.n_failed != 0) report.failure = failure_;
        changing_ = false;
    };
    stops_.clear();
    i_stop_ = 0;
    if ((has_logits || wanted.empty()) && same == wanted.size() && same == live_.size() && same == n_row_) {
        report.reason = SyncReason::unchanged;
        report.known = report.checkpoint_row = report.rows_reused = same;
        changing_ = true;
        keep_marks(marks);
        finish();
        return report;
    }
    // A reply is one request, also where the caller adds its tokens one by one, or asks for the row of the last token,
    // which plain decoding has not run.
    const bool in_reply = marks.empty() && same == live_.size() &&
                          (wanted.size() == same + 1 || (wanted.size() == same && same == n_row_ + 1));
    changing_ = true;
    if (!in_reply) {
        ++request_;
        drop_recent(0);
    }
    close_live();
    Found found = find(wanted);
    found.in_reply = in_reply && found.live && found.row + 1 >= same;
    report.known = found.known;
    report.checkpoint_row = report.rows_reused = found.row;
    report.rows_computed = wanted.size() - found.row;
    report.reason = reason_of(found, report);
    report.state_at_end = found.state_at_end;
    const size_t junction = find_junction(wanted, found);
    const Status s = switch_to(found, report);
    if (!s.ok()) {
        lose_context();
        return s;
    }
    keep_marks(marks);
    set_tokens(wanted, same);
    open_live(found.row < live_.size() ? live_[found.row] : -1);
    stops_ = plan_stops(options_.policy, {found.row, live_.size(), junction, options_.grid}, marks);
    const size_t reply_row = found.in_reply ? next_reply_row(found.row) : SIZE_MAX;
    if (reply_row <= live_.size()) stops_.push_back({reply_row, StateKind::reply, false});
    recent_from_ = live_.size();
    if (!found.in_reply) n_prompt_ = live_.size();
    forget_unused();
    update_clear_end();
    report.rows_parked = static_cast<size_t>(rows_parked_ - parked);
    report.rows_restored = static_cast<size_t>(rows_restored_ - restored);
    finish();
    return report;
}

PrefixReport PrefixTree::begin_report(Span<const Token> wanted) const {
    PrefixReport report;
    report.n_row = wanted.size();
    report.n_live = live_.size();
    const size_t same = prefix_sync_impl::common(wanted, live_.data(), live_.size());
    report.diverged_at = same;
    if (same < live_.size()) report.token_before = live_[same];
    if (same < wanted.size()) report.token_now = wanted[same];
    return report;
}

// -------------------------------------------------------------------------------- finding the base

void PrefixTree::visit(RunId id, size_t matched, size_t limit, Found* best) const {
    const Run& run = tree_[id];
    if (matched > best->known || (matched == best->known && run.end > matched)) {
        best->known = matched;
        best->known_run = id;
    }
    for (size_t k = run.states.size(); k-- > 0;) {
        const State& s = states_[run.states[k]];
        if (s.row > matched || !store_->is_whole(run.states[k])) continue;
        best->state_at_end = best->state_at_end || s.row > limit;
        if (s.row > limit) continue;
        if (s.row > best->row) {
            best->row = s.row;
            best->run = id;
            best->state = run.states[k];
            best->live = false;
        }
        break;
    }
    if (id == open_ && matched == run.end && n_row_ <= limit && n_row_ >= best->row) {
        best->row = n_row_;
        best->run = id;
        best->state = kNoState;
        best->live = true;
    }
}

/// Follows every path that begins as `wanted` does: rows that were computed twice are on two.
PrefixTree::Found PrefixTree::find(Span<const Token> wanted) const {
    Found best;
    const size_t limit = wanted.empty() ? 0 : wanted.size() - 1;
    std::vector<RunId> open{kRootRun};
    while (!open.empty()) {
        const RunId id = open.back();
        open.pop_back();
        const Run& run = tree_[id];
        const Span<const Token> rest = wanted.subspan(run.begin, wanted.size() - run.begin);
        const size_t matched = run.begin + prefix_sync_impl::common(rest, run.tokens.data(), run.tokens.size());
        visit(id, matched, limit, &best);
        if (matched < run.end) continue;
        for (const Run::Child& child : run.children)
            if (matched < wanted.size() && child.first == wanted[matched]) open.push_back(child.run);
    }
    const Run& known = tree_[best.known_run];
    best.left_inside = best.known != 0 && (best.known < known.end || !known.children.empty());
    return best;
}

SyncReason PrefixTree::reason_of(const Found& found, const PrefixReport& report) const {
    if (found.live && found.row != 0)
        return report.diverged_at == report.n_live ? SyncReason::appended : SyncReason::resumed;
    if (found.known == 0) return SyncReason::new_text;
    // The last token of a prompt is always computed, so a base one row below the end of the known text is exact.
    if (found.row != 0 && found.row + 1 >= std::min(found.known + 1, report.n_row)) return SyncReason::resumed;
    const size_t usable = std::min(found.known, report.n_row - 1);  // the last row must be computed
    for (RunId id = found.known_run; id != kNoRun; id = tree_[id].parent) {
        const std::vector<size_t>& rows = tree_[id].given_up;
        const auto nearer = std::upper_bound(rows.begin(), rows.end(), found.row);
        if (nearer != rows.end() && *nearer <= usable) return SyncReason::given_up;
    }
    return found.row != 0 ? SyncReason::checkpoint : SyncReason::no_state;
}

/// Where a known path is left for the second time, or 0.
size_t PrefixTree::find_junction(Span<const Token> wanted, const Found& found) {
    using namespace prefix_sync_impl;
    const size_t row = std::min(found.known, std::max<size_t>(wanted.size(), 1) - 1) / options_.grid * options_.grid;
    if (!can_park() || !found.left_inside || row <= found.row) return 0;
    Fnv hash;
    for (size_t i = 0; i < row; ++i) hash.mix(static_cast<uint32_t>(wanted[i]));
    const std::pair<uint64_t, size_t> here{hash.value, row};
    if (std::find(left_.begin(), left_.end(), here) != left_.end()) return row;
    if (left_.size() < kMaxLeft)
        left_.push_back(here);
    else
        left_[i_left_++ % kMaxLeft] = here;
    return 0;
}

// ------------------------------------------------------------------------------------- switching

/// Stores the tokens of the live run, so that it is a run like any other.
void PrefixTree::close_live() {
    if (!is_open_) return;
    is_open_ = false;
    Run& run = tree_[open_];
    const size_t begin = run.begin, end = run.end;
    if (begin < end) {
        tree_.close(open_, Span<const Token>(live_).subspan(begin, end - begin));
    } else {
        const RunId parent = run.parent;
        const RunId id = open_;
        residents_.erase(
            std::remove_if(residents_.begin(), residents_.end(), [id](const Resident& r) { return r.run == id; }),
            residents_.end());
        tree_.remove(open_);
        open_ = parent;
    }
    tree_[open_].last_use = request_;
}

/// The state at the live tip is about to be replaced: keeps it if a prompt could go on from there.
uint32_t PrefixTree::claim_tip(const Found& found, const PrefixReport& report) {
    if (!can_park() || !can_keep() || n_row_ == 0 || found.in_reply) return kNoState;
    const bool edited = !found.live && is_edit(found, report);
    drop_replies(edited ? report.diverged_at : 0);  // with them below it, the state at the tip would score less
    for (RunId id = open_; edited && id != kNoRun; id = tree_[id].parent)
        for (const uint32_t i : tree_[id].states)
            if (states_[i].row > report.diverged_at) states_[i].kind = StateKind::edited;
    if (found.live && !decoded_) return kNoState;
    const StateKind kind = edited ? StateKind::edited : found.live ? StateKind::generation_end : StateKind::tip;
    if (!has_state_at(open_, n_row_)) return claim_state(open_, n_row_, kind, false);
    State& last = states_[tree_[open_].states.back()];
    if (is_in_reply(last.kind)) {  // the reply ended where a state within it was due
        last.kind = kind;
        rates_.taken(kind);
    }
    return kNoState;
}

/// Whether a prompt changes the live text, and does not just leave it for another: then nobody comes back to it.
bool PrefixTree::is_edit(const Found& found, const PrefixReport& report) const {
    size_t lowest = 0;
    for (RunId id = open_; id != kNoRun; id = tree_[id].parent)
        if (!tree_[id].states.empty()) lowest = states_[tree_[id].states.front()].row;
    return found.known == report.diverged_at && report.diverged_at > lowest;
}

/// The text of a state is live again.
void PrefixTree::asked_for(State& s) {
    s.last_live = request_;
    if (!s.pinned || s.asked_again) return;
    s.asked_again = true;
    n_lone_pin_ = 0;
}

/// Brings rows 0 .. found.row and the state there into the context, and parks what other branches keep in its rows up
/// to report.n_row.
Status PrefixTree::switch_to(const Found& found, const PrefixReport& report) {
    locked_ = found.state;
    const uint32_t tip = claim_tip(found, report);
    if (found.row < tree_[found.run].end) split(found.run, found.row);
    open_ = found.row > tree_[found.run].begin || found.run == kRootRun ? found.run : tree_[found.run].parent;
    n_row_ = found.row;
    decoded_ = found.in_reply;
    if (found.state != kNoState) {
        State& base = states_[found.state];
        rates_.used(base.kind);
        base.last_use = request_;
        if (base.kind == StateKind::edited) base.kind = StateKind::tip;
    }
    for (RunId id = open_; id != kNoRun; id = tree_[id].parent)
        for (const uint32_t i : tree_[id].states) asked_for(states_[i]);
    std::vector<Copy> copies;
    if (!found.live) {
        drop_stale_spares();
        plan_restores(&copies);
    }
    leave_rows(n_row_, report.n_row, &copies);
    fit(credit_ != 0 ? swap_blocks() * block_bytes(options_.grid) : 0);
    if (tip != kNoState && states_[tip].run != kNoRun) take_state(tip);
    const Status s = copy_rows(copies);
    credit_ = 0;
    locked_ = kNoState;
    if (!s.ok())
        for (const Copy& copy : copies)
            if (copy.park && find_pending(copy) != nullptr) drop_states_above(copy.run, copy.row);
    if (!s.ok() || found.live) return s;
    if (found.state != kNoState) return store_->load_state(found.state, found.row);
    store_->reset();
    return {};
}

/// The parked rows of the live path come back; what lies in their place leaves.
void PrefixTree::plan_restores(std::vector<Copy>* copies) {
    std::vector<Copy> leaving;
    for (RunId id = open_; id != kNoRun; id = tree_[id].parent) {
        const std::vector<ParkedRows>& parked = tree_[id].parked;
        for (size_t i = 0, first = 0; i < parked.size(); ++i) {
            copies->push_back({0, parked[i].begin, false, id});
            const Block& block = blocks_[parked[i].block];
            if (block.n_ref == 1) credit_ += block_bytes(block.n_row);
            if (i + 1 < parked.size() && parked[i + 1].begin == parked[i].end) continue;
            leave_rows(parked[first].begin, parked[i].end, &leaving);
            first = i + 1;
        }
    }
    copies->insert(copies->end(), leaving.begin(), leaving.end());
}

/// How many blocks are parked before others are restored in their place. The budget keeps room for them.
size_t PrefixTree::swap_blocks() const {
    constexpr uint64_t kShare = 64, kMaxBlocks = 8;  // of the budget
    const uint64_t fit = options_.budget_bytes / kShare / std::max<uint64_t>(1, block_bytes(options_.grid));
    return static_cast<size_t>(std::min(kMaxBlocks, std::max<uint64_t>(1, fit)));
}

/// Copies so that little more is held than before or after: first what frees memory only, then some blocks at a time
/// what changes places, last what takes memory only.
Status PrefixTree::copy_rows(std::vector<Copy>& copies) {
    std::vector<size_t> parks, restores;
    for (const Copy& copy : copies) (copy.park ? parks : restores).push_back(copy.row / options_.grid);
    std::sort(parks.begin(), parks.end());
    std::sort(restores.begin(), restores.end());
    for (Copy& copy : copies) {
        const std::vector<size_t>& others = copy.park ? restores : parks;
        const bool swapped = std::binary_search(others.begin(), others.end(), copy.row / options_.grid);
        copy.phase = swapped ? 1 : copy.park ? 2 : 0;
    }
    const size_t n_swap = swap_blocks() * options_.grid;
    std::sort(copies.begin(), copies.end(), [n_swap](const Copy& a, const Copy& b) {
        if (a.phase != b.phase) return a.phase < b.phase;
        if (a.phase == 1 && a.row / n_swap != b.row / n_swap) return a.row < b.row;
        return a.park != b.park ? a.park : a.row < b.row;
    });
    for (size_t i = 0, end = 0; i < copies.size(); i = end) {
        while (end < copies.size() && copies[end].park == copies[i].park) ++end;
        const Span<const Copy> alike = Span<const Copy>(copies).subspan(i, end - i);
        if (alike[0].park)
            park(alike);
        else
            AUSPEX_TRY(restore(alike));
    }
    return {};
}

Status PrefixTree::restore(Span<const Copy> copies) {
    const auto find = [this](const Copy& copy) {
        std::vector<ParkedRows>& parked = tree_[copy.run].parked;
        return std::lower_bound(parked.begin(), parked.end(), copy.row,
                                [](const ParkedRows& p, size_t row) { return p.begin < row; });
    };
    std::vector<ParkedBlock> blocks;
    for (const Copy& copy : copies) {
        const auto at = find(copy);
        blocks.push_back({at->block, at->begin, at->end - at->begin});
    }
    AUSPEX_TRY(store_->restore_rows(blocks));
    for (const Copy& copy : copies) {
        const auto at = find(copy);
        const ParkedRows rows = *at;
        tree_[copy.run].parked.erase(at);
        if (blocks_[rows.block].n_ref == 1) credit_ -= std::min(credit_, block_bytes(blocks_[rows.block].n_row));
        keep_spare(rows);
        place(rows.begin, rows.end, copy.run);
        rows_restored_ += rows.end - rows.begin;
    }
    return {};
}

/// A run that nothing else goes on from grows: a history that comes token by token is one run, not one for each token.
void PrefixTree::open_live(Token first) {
    if (open_ != kRootRun && tree_[open_].children.empty()) {
        tree_.reopen(open_);
    } else {
        forget_superseded(first);
        open_ = tree_.add(open_, first, request_);
    }
    is_open_ = true;
    place(n_row_, n_row_, open_);
    update_clear_end();
}

void PrefixTree::set_tokens(Span<const Token> wanted, size_t same) {
    const size_t n = wanted.size();
    if (wanted.data() == live_.data()) return live_.resize(n);
    if (n > same && wanted.data() > live_.data() && wanted.data() < live_.data() + live_.size()) {
        const std::vector<Token> copy(wanted.begin(), wanted.end());
        return live_.assign(copy.begin(), copy.end());
    }
    live_.resize(same);
    live_.insert(live_.end(), wanted.begin() + same, wanted.end());
}

// ----------------------------------------------------------------------------------------- spares

/// These rows were restored. Their block stays, unless other rows still need it.
void PrefixTree::keep_spare(const ParkedRows& rows) {
    const Block& block = blocks_[rows.block];
    if (block.n_ref != 1 || block.n_row != rows.end - rows.begin) return release(rows);
    auto at = spares_.lower_bound(rows.begin);
    if (at != spares_.begin() && std::prev(at)->second.end > rows.begin) --at;
    while (at != spares_.end() && at->first < rows.end) at = drop_spare(at);  // its rows were overwritten
    spares_[rows.begin] = {rows.end, rows.block, store_->last_write(rows.begin)};
    held_ -= block_bytes(block.n_row);
    claimed_ -= block_bytes(block.n_row);
    spare_bytes_ += block_bytes(block.n_row);
}

/// The block that holds exactly these rows as they are in the context, no longer a spare; kNoBlock if there is none.
uint32_t PrefixTree::take_spare(const ParkedRows& rows) {
    const auto at = spares_.find(rows.begin);
    if (at == spares_.end() || at->second.end != rows.end || at->second.last_write != store_->last_write(rows.begin))
        return kNoBlock;
    const uint32_t item = at->second.block;
    spare_bytes_ -= block_bytes(blocks_[item].n_row);
    spares_.erase(at);
    return item;
}

std::map<size_t, PrefixTree::Spare>::iterator PrefixTree::drop_spare(std::map<size_t, Spare>::iterator at) {
    spare_bytes_ -= block_bytes(blocks_[at->second.block].n_row);
    free_block(at->second.block);
    return spares_.erase(at);
}

/// Drops spares until so many bytes are free. The lowest go first: while branches change places, these are the rows
/// that came back already, and not those that leave next.
void PrefixTree::drop_spares(uint64_t room) {
    while (!spares_.empty() && held_ + spare_bytes_ + room > options_.budget_bytes) drop_spare(spares_.begin());
}

/// Drops spares whose rows were written since.
void PrefixTree::drop_stale_spares() {
    for (auto at = spares_.begin(); at != spares_.end();)
        at = at->second.last_write == store_->last_write(at->first) ? std::next(at) : drop_spare(at);
}

std::vector<uint32_t> PrefixTree::spare_items() const {
    std::vector<uint32_t> items;
    for (const auto& spare : spares_) items.push_back(spare.second.block);
    return items;
}

// ------------------------------------------------------------------------------------ forgetting

/// A run without a state only costs time if the new text repeats all of it.
void PrefixTree::forget_superseded(Token first) {
    const Span<const Token> added = Span<const Token>(live_).subspan(n_row_, live_.size() - n_row_);
    const std::vector<Run::Child> children = tree_[open_].children;
    for (const Run::Child& child : children) {
        const Run& run = tree_[child.run];
        if (child.first != first || run.n_state != 0 || !run.children.empty()) continue;
        const std::vector<Token>& told = run.tokens;
        if (prefix_sync_impl::common(added, told.data(), told.size()) == told.size()) forget_runs(child.run);
    }
}

/// Forgets a run and all below it, which may be as deep as a history has tokens.
void PrefixTree::forget_runs(RunId top) {
    std::vector<RunId> runs{top};
    for (size_t i = 0; i < runs.size(); ++i)
        for (const Run::Child& child : tree_[runs[i]].children) runs.push_back(child.run);
    while (!runs.empty()) {  // the lowest first
        tree_.remove(runs.back());
        runs.pop_back();
    }
    residents_.erase(
        std::remove_if(residents_.begin(), residents_.end(), [this](const Resident& r) { return !tree_[r.run].used; }),
        residents_.end());
}

/// Forgets runs of which only the tokens are kept, the least recently used first, once they exceed a limit; all of them
/// where nothing can ever be kept.
void PrefixTree::forget_unused() {
    using namespace prefix_sync_impl;
    const size_t limit = can_keep() ? std::max(kMinForgotten, 4 * options_.n_context) : 0;
    size_t n_unused = 0;
    std::vector<std::pair<uint64_t, RunId>> unused;
    if (tree_.n_token() <= limit && tree_.n_run() <= kMaxForgotten) return;
    std::vector<bool> live(tree_.size());
    for (RunId id = open_; id != kNoRun; id = tree_[id].parent) live[id] = true;
    for (RunId id = 1; id < tree_.size(); ++id) {
        const Run& run = tree_[id];
        if (!run.used || run.n_state != 0 || live[id]) continue;
        n_unused += run.tokens.size();
        unused.push_back({run.last_use, id});
    }
    size_t n_run = unused.size();
    if (n_unused <= limit && n_run <= kMaxForgotten) return;
    std::sort(unused.begin(), unused.end());
    for (const auto& [last_use, id] : unused) {
        if (n_unused <= limit / 2 && n_run <= kMaxForgotten / 2) break;
        if (!tree_[id].used) continue;  // went with a run above it
        const size_t n_token_before = tree_.n_token(), n_run_before = tree_.n_run();
        forget_runs(id);
        n_unused -= n_token_before - tree_.n_token();
        n_run -= n_run_before - tree_.n_run();
    }
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

#include "prefix_tree.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

PrefixTree::PrefixTree(const PrefixOptions& options, RowStore& store) : options_(options), store_(&store) {
    reserve();
    open_live(-1);
}

PrefixTree::PrefixTree(const PrefixTree& other, RowStore& store) : PrefixTree(other) {
    store_ = &store;
    on_evict = nullptr;
    reserve();
    while (!spares_.empty()) drop_spare(spares_.begin());
}

/// Room for what may not allocate.
void PrefixTree::reserve() {
    live_.reserve(options_.n_context + kSpareTokens);
    residents_.reserve(16);
}

void PrefixTree::start_over() {
    store_->drop_all();
    tree_ = RunTree();
    states_.clear();
    free_states_.clear();
    blocks_.clear();
    free_blocks_.clear();
    spares_.clear();
    residents_.clear();
    live_.clear();
    stops_.clear();
    left_.clear();
    i_stop_ = i_left_ = n_row_ = n_state_ = n_prompt_ = recent_from_ = 0;
    held_ = claimed_ = pending_states_ = credit_ = spare_bytes_ = 0;
    n_lone_pin_ = 0;
    locked_ = kNoState;
    is_open_ = decoded_ = false;
    open_ = kRootRun;
    open_live(-1);
    changing_ = false;
}

PrefixTree::~PrefixTree() {
    for (uint32_t i = 0; i < states_.size(); ++i)
        if (states_[i].run != kNoRun && states_[i].held) store_->drop_state(i);
    for (uint32_t i = 0; i < blocks_.size(); ++i)
        if (blocks_[i].n_ref != 0) store_->drop_rows(i);
}

// ------------------------------------------------------------------------------------ live history

RunId PrefixTree::live_end() const { return tree_[open_].begin < tree_[open_].end ? open_ : tree_[open_].parent; }

void PrefixTree::computed(size_t n, bool decoded) {
    changing_ = true;
    if (n_row_ + n > clear_end_) lose_rows(n);
    Run& run = tree_[open_];
    run.end += n;
    n_row_ += n;
    residents_[i_live_span_].end = n_row_;
    decoded_ = decoded_ || decoded;
    for (; i_stop_ < stops_.size() && stops_[i_stop_].row <= n_row_; ++i_stop_)
        if (stops_[i_stop_].row == n_row_) keep_here(stops_[i_stop_].kind, stops_[i_stop_].pinned);
    changing_ = false;
}

void PrefixTree::truncate(size_t n) {
    if ((n = std::max(n, n_row_)) >= live_.size()) return;
    live_.resize(n);
    while (!stops_.empty() && stops_.back().row > n) stops_.pop_back();  // of a prompt that was cancelled
    i_stop_ = std::min(i_stop_, stops_.size());
    n_prompt_ = std::min(n_prompt_, n);
    recent_from_ = std::min(recent_from_, n);
}

bool PrefixTree::step_back(size_t n) {
    Run& run = tree_[open_];
    if (n > n_row_ || n < run.begin) return false;
    while (!run.states.empty() && states_[run.states.back()].row > n) remove_state(run.states.back());
    run.end = n_row_ = n;
    residents_[i_live_span_].end = n;
    if (n <= n_prompt_) decoded_ = false;  // nothing is left of the reply
    return true;
}

void PrefixTree::make_room(size_t n) {
    if (n_row_ + n <= clear_end_) return;
    changing_ = true;
    std::vector<Copy> copies;
    const size_t end = ceil_div(n_row_ + n, options_.grid) * options_.grid;
    leave_rows(n_row_, std::min(end, options_.n_context), &copies);
    fit(0);
    park(copies);
    update_clear_end();
    changing_ = false;
}

/// Rows were written without make_room(): what rested on the old ones is lost.
void PrefixTree::lose_rows(size_t n) {
    std::vector<Copy> copies;
    leave_rows(n_row_, n_row_ + n, &copies);
    for (const Copy& copy : copies) drop_states_above(copy.run, copy.row);
    update_clear_end();
}

std::pair<uint32_t, size_t> PrefixTree::nearest_state(size_t n, bool lost) const {
    if (lost && options_.row_bytes != 0) return {0, 0};
    for (RunId id = open_; id != kNoRun; id = tree_[id].parent) {
        const std::vector<uint32_t>& on = tree_[id].states;
        for (size_t i = on.size(); i-- > 0;)
            if (states_[on[i]].row <= n && store_->is_whole(on[i])) return {on[i], states_[on[i]].row};
    }
    return {0, 0};
}

Result<size_t> PrefixTree::load_nearest(size_t n) {
    recover();
    const auto [item, row] = nearest_state(n, false);
    if (row != 0) AUSPEX_TRY(store_->load_state(item, row));
    return row;
}

void PrefixTree::lose_rest() {
    if (options_.row_bytes == 0) return;
    changing_ = true;
    lose_rows(options_.n_context - n_row_);
    changing_ = false;
}

size_t PrefixTree::context_rows() const {
    size_t n = n_row_;
    for (const Resident& r : residents_) n = std::max(n, r.end);
    return n;
}

void PrefixTree::lose_context() {
    changing_ = true;
    close_live();
    const std::vector<Resident> lost = std::move(residents_);
    residents_.clear();
    while (!spares_.empty()) drop_spare(spares_.begin());
    for (const Resident& r : lost)
        if (tree_[r.run].used) drop_states_above(r.run, r.begin);
    live_.clear();
    n_row_ = 0;
    stops_.clear();
    i_stop_ = 0;
    open_ = kRootRun;
    open_live(-1);
    changing_ = false;
}

// ----------------------------------------------------------------------------------------- states

bool PrefixTree::has_state_at(RunId run, size_t row) const {
    for (const uint32_t i : tree_[run].states)
        if (states_[i].row == row) return true;
    return false;
}

/// A state to be kept, counted in the budget already; fit() may decide against it.
uint32_t PrefixTree::claim_state(RunId run, size_t row, StateKind kind, bool pinned) {
    if (free_states_.empty()) {
        free_states_.push_back(static_cast<uint32_t>(states_.size()));
        states_.emplace_back();
    }
    const uint32_t i = free_states_.back();
    free_states_.pop_back();
    State& s = states_[i];
    s = State();
    s.run = run;
    s.row = row;
    s.kind = kind;
    s.pinned = pinned;
    s.last_use = s.last_live = request_;
    if (kind != StateKind::recent) s.serial = ++n_claimed_;
    rates_.taken(kind);
    if (pinned) ++n_lone_pin_;
    std::vector<uint32_t>& on = tree_[run].states;
    on.insert(std::find_if(on.begin(), on.end(), [&](uint32_t other) { return states_[other].row > row; }), i);
    tree_.count_states(run, 1);
    claimed_ += options_.state_bytes;
    pending_states_ += options_.state_bytes;
    ++n_state_;
    return i;
}

/// Copies a claimed state; the live state is at its row.
void PrefixTree::take_state(uint32_t i) {
    take_state(i, [this](uint32_t item) { return store_->keep_state(item, states_[item].row); });
}

void PrefixTree::take_state(uint32_t i, const std::function<Status(uint32_t item)>& copy) {
    drop_spares(options_.state_bytes);
    const Status s = held_ + options_.state_bytes > options_.budget_bytes
                         ? Status(Code::out_of_memory, "no room for a state in the budget")
                         : copy(i);
    if (!s.ok()) {
        failed(s);
        return give_up(i);
    }
    states_[i].held = true;
    pending_states_ -= options_.state_bytes;
    add_held(options_.state_bytes);
}

void PrefixTree::keep_here(StateKind kind, bool pinned) {
    const RunId run = live_end();
    if (!can_keep() || has_state_at(run, n_row_)) return;
    const uint32_t i = claim_state(run, n_row_, kind, pinned);
    fit(0);
    if (states_[i].run != kNoRun) take_state(i);
}

/// Marks of rows that are not computed again: the state at the live tip is kept, and one that was kept before is the
/// mark's from now on.
void PrefixTree::keep_marks(Span<const Mark> marks) {
    if (!can_park() || n_row_ == 0) return;
    for (const Mark& mark : marks) {
        if (mark.row == n_row_) keep_here(kind_of(mark), mark.pinned);
        for (RunId id = open_; id != kNoRun; id = tree_[id].parent)
            for (const uint32_t i : tree_[id].states)
                if (states_[i].row == mark.row) raise(states_[i], mark);
    }
}

/// Turns a kept state into the mark's, if that keeps it longer. A recent state only at the tip: what is kept must not
/// depend on where the others lie.
void PrefixTree::raise(State& s, const Mark& mark) {
    const bool more = is_in_reply(s.kind) || (mark.pinned && !s.pinned);
    if (!more || (s.kind == StateKind::recent && s.row != n_row_)) return;
    if (s.kind == StateKind::recent) s.serial = ++n_claimed_;
    s.kind = kind_of(mark);
    s.pinned = mark.pinned;
    rates_.taken(s.kind);
    if (mark.pinned) ++n_lone_pin_;
}

size_t PrefixTree::next_reply_row(size_t row) const {
    if (!can_keep() || options_.policy != PrefixPolicy::by_score) return SIZE_MAX;
    const size_t base = ceil_div(n_prompt_, options_.grid) * options_.grid;
    const size_t n = row > base ? (row - base) / options_.reply_stride : 0;
    return base + (n + 1) * options_.reply_stride;
}

void PrefixTree::prompt_was(size_t n) {
    n_prompt_ = recent_from_ = n;
    decoded_ = n_row_ > n;
}

bool PrefixTree::is_recent_due(size_t row) const {
    return can_park() && can_keep() && row >= recent_from_ && row - recent_from_ >= options_.recent_stride;
}

void PrefixTree::keep_reply() {
    changing_ = true;
    drop_recent(1);
    keep_here(is_reply_row(n_row_) ? StateKind::reply : StateKind::recent, false);
    recent_from_ = n_row_;
    changing_ = false;
}

/// Drops the reply states above a row, except one that is about to be loaded. Those of an earlier reply, which a prompt
/// has cut, stay: they lie in the live run only if that came from a file.
void PrefixTree::drop_replies(size_t above) {
    above = std::max(above, n_prompt_);
    const std::vector<uint32_t> on = tree_[live_end()].states;
    for (const uint32_t i : on) {
        const State& s = states_[i];
        if (is_in_reply(s.kind) && s.row > above && s.row != n_row_ && i != locked_) remove_state(i);
    }
    std::vector<size_t>& rows = tree_[live_end()].given_up;  // with any budget these would go now
    const auto goes = [&](size_t row) { return row > above && is_reply_row(row); };
    rows.erase(std::remove_if(rows.begin(), rows.end(), goes), rows.end());
}

/// Drops the live run's recent states but the last n_kept.
void PrefixTree::drop_recent(size_t n_kept) {
    const std::vector<uint32_t> on = tree_[live_end()].states;
    for (size_t k = on.size(); k-- > 0;) {
        if (states_[on[k]].kind != StateKind::recent) continue;
        if (n_kept == 0) remove_state(on[k]);
        n_kept -= n_kept > 0;
    }
}

bool PrefixTree::adopt(size_t row, StateKind kind, bool pinned, const std::function<Status(uint32_t item)>& copy) {
    const RunId run = live_end();
    if (!can_keep() || row <= tree_[run].begin || row > n_row_ || has_state_at(run, row)) return false;
    changing_ = true;
    const uint32_t i = claim_state(run, row, kind, pinned);
    fit(0);
    if (states_[i].run != kNoRun) take_state(i, copy);
    changing_ = false;
    return states_[i].run != kNoRun;
}

void PrefixTree::remove_state(uint32_t i) {
    State& s = states_[i];
    const RunId run = s.run;
    std::vector<uint32_t>& on = tree_[run].states;
    on.erase(std::find(on.begin(), on.end(), i));
    tree_.count_states(run, -1);
    claimed_ -= options_.state_bytes;
    --n_state_;
    if (s.held) {
        held_ -= options_.state_bytes;
        store_->drop_state(i);
    } else {
        pending_states_ -= options_.state_bytes;
    }
    s = State();
    free_states_.push_back(i);
    free_useless(run);
}

void PrefixTree::give_up(uint32_t i) {
    if (states_[i].kind == StateKind::recent) return remove_state(i);  // no prompt goes on from it
    std::vector<size_t>& rows = tree_[states_[i].run].given_up;
    const auto at = std::lower_bound(rows.begin(), rows.end(), states_[i].row);
    if (at == rows.end() || *at != states_[i].row) rows.insert(at, states_[i].row);
    remove_state(i);
}

/// Gives up every state that rests on a row of this run at or above `row`.
void PrefixTree::drop_states_above(RunId id, size_t row) {
    std::vector<RunId> open{id};
    while (!open.empty()) {
        const RunId at = open.back();
        open.pop_back();
        while (!tree_[at].states.empty() && states_[tree_[at].states.back()].row > row)
            give_up(tree_[at].states.back());
        for (const Run::Child& child : tree_[at].children)
            if (tree_[child.run].n_state != 0) open.push_back(child.run);
    }
}

// ------------------------------------------------------------------------------------ parked rows

void PrefixTree::release(const ParkedRows& rows) {
    if (rows.block == kNoBlock) {
        claimed_ -= block_bytes(rows.end - rows.begin);
        return;
    }
    Block& block = blocks_[rows.block];
    if (--block.n_ref != 0) return;
    held_ -= block_bytes(block.n_row);
    claimed_ -= block_bytes(block.n_row);
    free_block(rows.block);
}

void PrefixTree::free_block(uint32_t item) {
    blocks_[item].n_ref = 0;
    store_->drop_rows(item);
    free_blocks_.push_back(item);
}

void PrefixTree::free_rows(RunId id, size_t from) {
    std::vector<ParkedRows>& parked = tree_[id].parked;
    while (!parked.empty() && parked.back().begin >= from) {
        release(parked.back());
        parked.pop_back();
    }
}

/// Frees the parked rows that no state needs any more, from this run upwards.
void PrefixTree::free_useless(RunId id) {
    for (; id != kNoRun && !tree_[id].has_states_below(); id = tree_[id].parent) {
        const Run& run = tree_[id];
        free_rows(id, run.states.empty() ? run.begin : states_[run.states.back()].row);
        if (!run.states.empty()) return;
    }
}

/// Rows begin .. end of the context are about to be overwritten: what states rest on is to be parked.
void PrefixTree::leave_rows(size_t begin, size_t end, std::vector<Copy>* copies) {
    std::vector<Resident> kept, left;
    kept.reserve(residents_.size() + 4);
    for (size_t i = 0; i < residents_.size(); ++i) {
        const Resident& r = residents_[i];
        const bool mine = r.run == open_;  // rows of the live path lie below n_row_ and are never asked for
        if (mine || r.end <= begin || r.begin >= end) {
            if (mine || r.begin < r.end) kept.push_back(r);
            continue;
        }
        if (r.begin < begin) kept.push_back({r.begin, begin, r.run});
        left.push_back({std::max(r.begin, begin), std::min(r.end, end), r.run});
        if (r.end > end) kept.push_back({end, r.end, r.run});
    }
    residents_ = std::move(kept);
    for (const Resident& r : left) leave_run_rows(r.run, r.begin, r.end, copies);
}

void PrefixTree::leave_run_rows(RunId id, size_t begin, size_t end, std::vector<Copy>* copies) {
    Run& run = tree_[id];
    if (!run.has_states_below()) end = std::min(end, run.states.empty() ? 0 : states_[run.states.back()].row);
    if (begin >= end) return;
    if (!can_park()) return drop_states_above(id, begin);
    std::vector<ParkedRows> rows;
    for (size_t row = begin; row < end;) {
        const size_t next = std::min(end, (row / options_.grid + 1) * options_.grid);
        rows.push_back({row, next, kNoBlock});
        copies->push_back({2, row, true, id});
        claimed_ += block_bytes(next - row);
        row = next;
    }
    const auto at =
        std::find_if(run.parked.begin(), run.parked.end(), [begin](const ParkedRows& p) { return p.begin >= begin; });
    run.parked.insert(at, rows.begin(), rows.end());
}

/// The rows of a planned copy, or null if the state that rested on them was given up meanwhile.
ParkedRows* PrefixTree::find_pending(const Copy& copy) {
    std::vector<ParkedRows>& parked = tree_[copy.run].parked;
    const auto at = std::lower_bound(parked.begin(), parked.end(), copy.row,
                                     [](const ParkedRows& p, size_t row) { return p.begin < row; });
    return at == parked.end() || at->begin != copy.row || at->block != kNoBlock ? nullptr : &*at;
}

/// Copies what these copies park and no spare has, all at once; what cannot be parked is lost with the states that rest
/// on it.
void PrefixTree::park(Span<const Copy> copies) {
    uint64_t held = held_;
    for (const Copy& copy : copies) {
        const ParkedRows* at = find_pending(copy);
        if (!at) continue;
        held += block_bytes(at->end - at->begin);
        if (held <= options_.budget_bytes) continue;
        held -= block_bytes(at->end - at->begin);
        failed(Status(Code::out_of_memory, "no room for rows in the budget"));
        drop_states_above(copy.run, copy.row);
    }
    const auto hold = [this](ParkedRows* at, uint32_t item) {
        const size_t n = at->end - at->begin;
        at->block = item;
        blocks_[item] = {1, n};
        rows_parked_ += n;
        add_held(block_bytes(n));
    };
    std::vector<ParkedBlock> blocks;
    std::vector<ParkedRows*> rows;
    uint64_t bytes = 0;
    for (const Copy& copy : copies) {
        ParkedRows* at = find_pending(copy);
        if (!at) continue;
        const uint32_t spare = take_spare(*at);
        if (spare != kNoBlock) {
            hold(at, spare);
            continue;
        }
        bytes += block_bytes(at->end - at->begin);
        if (free_blocks_.empty()) {
            free_blocks_.push_back(static_cast<uint32_t>(blocks_.size()));
            blocks_.emplace_back();
        }
        blocks.push_back({free_blocks_.back(), at->begin, at->end - at->begin});
        rows.push_back(at);
        free_blocks_.pop_back();
    }
    drop_spares(bytes);
    const Status s = blocks.empty() ? Status() : store_->park_rows(blocks);
    if (!s.ok()) {
        failed(s);
        for (const ParkedBlock& b : blocks) free_blocks_.push_back(b.item);
        for (const Copy& copy : copies)
            if (find_pending(copy)) drop_states_above(copy.run, copy.row);
        return;
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
        hold(rows[i], blocks[i].item);
        rows_copied_ += blocks[i].n;
    }
}

// ----------------------------------------------------------------------------------------- budget

/// What a block of n parked rows takes: whole pages, as the store gives them out.
uint64_t PrefixTree::block_bytes(size_t n) const { return round_up(n * options_.row_bytes, options_.page_bytes); }

void PrefixTree::failed(Status s) {
    ++n_failed_;
    failure_ = std::move(s);
}

void PrefixTree::add_held(uint64_t bytes) {
    held_ += bytes;
    peak_ = std::max(peak_, held_);
}

/// Gives up states, the lowest score first, until everything claimed fits, with `slack` bytes to spare.
void PrefixTree::fit(uint64_t slack) {
    while (claimed_ - credit_ + slack > options_.budget_bytes ||
           held_ + pending_states_ + slack > options_.budget_bytes || n_state_ > max_states(options_.policy)) {
        const uint32_t i = worst();
        if (i == kNoState) return;
        if (on_evict) on_evict(i);
        give_up(i);
    }
}

/// Recent states go first: they are kept by time, and what else is kept does not depend on them.
uint32_t PrefixTree::worst() const {
    uint32_t found = kNoState;
    std::pair<double, uint64_t> lowest;  // score and serial: of equal scores the older goes
    bool pinned = true;
    for (uint32_t i = 0; i < states_.size(); ++i) {
        if (states_[i].run == kNoRun || i == locked_) continue;
        if (states_[i].kind == StateKind::recent) return i;
        const bool is = is_pinned(i);
        if (is && !pinned) continue;
        const std::pair<double, uint64_t> value(score(i), states_[i].serial);
        if (found != kNoState && is == pinned && value >= lowest) continue;
        found = i;
        lowest = value;
        pinned = is;
    }
    return found;
}

/// A pin holds while its text is in use. The system prompts of old conversations do not fill the budget, nor do those
/// of a client that sends another one each time.
bool PrefixTree::is_pinned(uint32_t i) const {
    const State& s = states_[i];
    const bool may_come_back = s.asked_again || n_lone_pin_ <= kLonePins;
    return s.pinned && request_ - s.last_live <= (may_come_back ? kPinRequests : 0);
}

double PrefixTree::score(uint32_t i) const {
    const State& s = states_[i];
    const Run& run = tree_[s.run];
    StateWorth worth;
    worth.gap = gap(i);
    worth.age = request_ - s.last_use;
    worth.is_tip = run.states.back() == i && !run.has_states_below();
    worth.kind = s.kind;
    worth.use_rate = rates_.of(s.kind);
    worth.path_age = request_ - s.last_live;
    worth.bytes = options_.state_bytes + (worth.is_tip ? rows_only_for(i) * options_.row_bytes : 0);
    return state_score(options_.policy, worth);
}

size_t PrefixTree::gap(uint32_t i) const {
    const State& s = states_[i];
    const std::vector<uint32_t>& on = tree_[s.run].states;
    if (on.front() != i) return s.row - states_[*(std::find(on.begin(), on.end(), i) - 1)].row;
    for (RunId id = tree_[s.run].parent; id != kNoRun; id = tree_[id].parent)
        if (!tree_[id].states.empty()) return s.row - states_[tree_[id].states.back()].row;
    return s.row;
}

/// The parked rows that would be freed with a state above which there is no other.
size_t PrefixTree::rows_only_for(uint32_t i) const {
    size_t n = 0, n_below = 0;
    for (RunId id = states_[i].run; id != kNoRun; id = tree_[id].parent) {
        const Run& run = tree_[id];
        if (run.n_state - run.states.size() > n_below) break;  // another branch needs these rows
        const bool own = id == states_[i].run;
        const size_t n_other = run.states.size() - (own ? 1 : 0);
        const size_t from = n_other == 0 ? run.begin : states_[run.states[n_other - 1]].row;
        for (size_t k = run.parked.size(); k-- > 0 && run.parked[k].begin >= from;)
            n += run.parked[k].end - run.parked[k].begin;
        if (n_other != 0) break;
        n_below = 1;
    }
    return n;
}

std::vector<PrefixTree::LiveState> PrefixTree::live_states() const {
    std::vector<LiveState> all;
    for (RunId id = open_; id != kNoRun; id = tree_[id].parent)
        for (const uint32_t i : tree_[id].states)
            all.push_back({i, states_[i].row, states_[i].kind, states_[i].pinned});
    std::sort(all.begin(), all.end(), [](const LiveState& a, const LiveState& b) { return a.row < b.row; });
    return all;
}

// ---------------------------------------------------------------------------------------- context

/// Rows of the live path were copied back to the context. Neighbours of one run are one span.
void PrefixTree::place(size_t begin, size_t end, RunId run) {
    const auto at =
        std::find_if(residents_.begin(), residents_.end(), [begin](const Resident& r) { return r.begin >= begin; });
    auto placed = residents_.insert(at, {begin, end, run});
    if (placed != residents_.begin() && (placed - 1)->run == run && (placed - 1)->end == begin) {
        (placed - 1)->end = end;
        placed = residents_.erase(placed) - 1;
    }
    if (placed + 1 != residents_.end() && (placed + 1)->run == run && (placed + 1)->begin == placed->end) {
        placed->end = (placed + 1)->end;
        residents_.erase(placed + 1);
    }
}

void PrefixTree::update_clear_end() {
    i_live_span_ = static_cast<size_t>(
        std::find_if(residents_.begin(), residents_.end(), [this](const Resident& r) { return r.run == open_; }) -
        residents_.begin());
    clear_end_ = i_live_span_ + 1 < residents_.size() ? residents_[i_live_span_ + 1].begin : options_.n_context;
}

void PrefixTree::split(RunId id, size_t row) {
    Run& run = tree_[id];
    const auto over = std::find_if(run.parked.begin(), run.parked.end(),
                                   [row](const ParkedRows& p) { return p.begin < row && row < p.end; });
    if (over != run.parked.end()) {
        const ParkedRows upper{row, over->end, over->block};
        over->end = row;
        ++blocks_[upper.block].n_ref;
        run.parked.insert(over + 1, upper);
    }
    const size_t n_upper = static_cast<size_t>(
        std::find_if(run.states.begin(), run.states.end(), [&](uint32_t i) { return states_[i].row > row; }) -
        run.states.begin());
    const RunId upper = tree_.split(id, row, n_upper);
    for (const uint32_t i : tree_[upper].states) states_[i].run = upper;
    for (size_t i = 0; i < residents_.size(); ++i) {
        Resident& r = residents_[i];
        if (r.run != id || r.begin >= row) continue;
        const Resident rest{row, r.end, id};
        r.run = upper;
        if (r.end <= row) continue;
        r.end = row;
        residents_.insert(residents_.begin() + static_cast<std::ptrdiff_t>(i) + 1, rest);
        break;
    }
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

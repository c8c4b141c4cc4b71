#include "state_store.h"

#include "../machine/bulk_copy.h"

#include <algorithm>
#include <cstring>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace state_store_impl {

constexpr uint64_t kMinPage = 4096, kMaxPage = 65536;
constexpr uint64_t kDefaultBudget = uint64_t{512} << 20;
/// More states than a session could use: the budget of a small model need not be larger.
constexpr uint64_t kUsefulStates = 64;
constexpr uint64_t kCopyTogether = uint64_t{16} << 20;
constexpr uint64_t kMaxSavedState = uint64_t{256} << 20;

}  // namespace state_store_impl

uint64_t saved_state_bytes(const StateSizes& sizes, uint64_t budget_bytes) {
    using namespace state_store_impl;
    return budget_bytes == 0 || sizes.state_bytes > kMaxSavedState ? 0 : sizes.state_bytes;
}

StateSizes StateSizes::of(const Plan& plan, const std::vector<KvShape>& kv) {
    using namespace state_store_impl;
    uint64_t state = plan.d_model * sizeof(float), row = 0;
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const Slot& s = plan.slot(id);
        if (s.role == SlotRole::delta) state += s.shape[0] * s.shape[1] * s.shape[2] * sizeof(float);
        if (s.role == SlotRole::conv) state += plan.conv_rows(id) * s.width() * sizeof(float);
        if (s.role != SlotRole::kv || kv[id].n_ring == 0) continue;
        const uint64_t bytes = kv[id].k_bytes + kv[id].v_bytes;
        if (kv[id].keeps_rows())
            row += bytes;
        else
            state += kv[id].n_state_row() * bytes;
    }
    StateSizes sizes;
    sizes.page_bytes = kMinPage;
    while (sizes.page_bytes < kMaxPage && sizes.page_bytes * 16 < state) sizes.page_bytes *= 2;
    sizes.state_bytes = round_up(state, sizes.page_bytes);
    sizes.row_bytes = round_up(row * kPrefixGrid, sizes.page_bytes) / kPrefixGrid;
    return sizes;
}

Result<uint64_t> checkpoint_budget(const StateSizes& sizes, uint64_t checkpoint_bytes, uint32_t n_context) {
    using namespace state_store_impl;
    if (checkpoint_bytes == kDefaultCheckpoints) {
        const uint64_t useful = kUsefulStates * sizes.state_bytes + 2 * uint64_t{n_context} * sizes.row_bytes;
        const uint64_t budget = std::min(kDefaultBudget, useful) / sizes.page_bytes * sizes.page_bytes;
        return budget < sizes.state_bytes ? 0 : budget;
    }
    if (checkpoint_bytes != 0 && checkpoint_bytes < sizes.state_bytes)
        return fail(Code::bad_argument, "checkpoint_bytes is ", checkpoint_bytes, ", but one checkpoint takes ",
                    sizes.state_bytes, "; give at least that, or none (0; in C AUSPEX_NO_CHECKPOINTS)");
    if (checkpoint_bytes / sizes.page_bytes > UINT32_MAX)
        return fail(Code::bad_argument, "checkpoint_bytes is ", checkpoint_bytes, ", expected at most ",
                    UINT32_MAX * sizes.page_bytes);
    return checkpoint_bytes / sizes.page_bytes * sizes.page_bytes;
}

/// Visits the bytes at .. at + n of the pages in order, as (where they lie, how many).
template <class F>
void StateStore::each_span(const Pages& pages, uint64_t at, uint64_t n, F visit) const {
    while (n != 0) {
        const uint64_t in_page = at % page_bytes_, k = std::min(n, page_bytes_ - in_page);
        visit(arena_.data() + pages[static_cast<size_t>(at / page_bytes_)] * page_bytes_ + in_page, k);
        at += k;
        n -= k;
    }
}

/// Walks through a list of extents, some bytes at a time.
class StateStore::Cursor {
  public:
    Cursor(const StateStore& store, std::vector<Extent> extents) : store_(store), extents_(std::move(extents)) {}
    /// Visits the next n bytes, as (where they lie, how many).
    template <class F>
    void next(uint64_t n, F visit) {
        while (n != 0) {
            const Extent& extent = extents_[i_];
            const uint64_t k = std::min(n, extent.bytes - done_);
            store_.each_span(*extent.pages, extent.at + done_, k, visit);
            n -= k;
            done_ += k;
            if (done_ == extent.bytes) ++i_, done_ = 0;
        }
    }

  private:
    const StateStore& store_;
    std::vector<Extent> extents_;
    size_t i_ = 0;
    uint64_t done_ = 0;  ///< of extent i
};

class StateStore::Writer : public StateWriter {
  public:
    Writer(const StateStore& store, std::vector<Extent> to, Pool* pool = nullptr)
        : to_(store, std::move(to)), copies_(pool) {}
    Status write(const void* from, uint64_t n) override {
        const std::byte* bytes = static_cast<const std::byte*>(from);
        to_.next(n, [&](std::byte* to, uint64_t k) {
            copies_.add(to, bytes, k);
            bytes += k;
        });
        copies_.finish();
        return {};
    }

  private:
    Cursor to_;
    BulkCopies copies_;
};

/// A state that the context still copies.
struct StateStore::Pending {
    uint32_t item;
    std::vector<float> hidden;  ///< follows what the context writes
    Writer to;
};

class StateStore::Reader : public StateReader {
  public:
    Reader(const StateStore& store, std::vector<Extent> from, Pool* pool = nullptr)
        : from_(store, std::move(from)), copies_(pool) {}
    Status read(void* to, uint64_t n) override {
        std::byte* bytes = static_cast<std::byte*>(to);
        from_.next(n, [&](const std::byte* from, uint64_t k) {
            copies_.add(bytes, from, k);
            bytes += k;
        });
        copies_.finish();
        return {};
    }

  private:
    Cursor from_;
    BulkCopies copies_;
};

StateStore::StateStore(Trunk& trunk, MtpCache& cache, uint32_t d_model)
    : trunk_(trunk), cache_(cache), d_model_(d_model) {}

StateStore::~StateStore() { (void)finish(); }

Status StateStore::open(const Allocator& allocator, const StateSizes& sizes, uint64_t budget_bytes, uint32_t n_thread) {
    page_bytes_ = sizes.page_bytes;
    n_thread_ = n_thread;
    const uint64_t n_page = budget_bytes / page_bytes_;
    const uint64_t bytes = n_page * page_bytes_;
    if (bytes != 0) AUSPEX_TRY(arena_.take(huge_.unless(allocator, bytes), bytes, "a session's checkpoints", false));
    free_.reserve(static_cast<size_t>(n_page));
    drop_all();
    pieces_ = trunk_.context().row_pieces(StatePart::trunk);
    for (const uint64_t piece : trunk_.context().row_pieces(StatePart::draft)) pieces_.push_back(piece);
    return {};
}

void StateStore::copy(StateStore& other, Span<const uint32_t> left_out) {
    (void)finish();
    (void)other.finish();  // what is lost with its device is not whole
    states_ = other.states_;
    n_kept_ = other.n_kept_;
    rows_ = other.rows_;
    free_.assign(other.free_.begin(), other.free_.end());
    for (const uint32_t item : left_out) give_back(&rows_[item].pages);
    const auto copy_pages = [&](const Pages& pages) {
        for (const uint32_t page : pages)
            std::memcpy(arena_.data() + page * page_bytes_, other.arena_.data() + page * page_bytes_,
                        static_cast<size_t>(page_bytes_));
    };
    for (const State& state : states_) copy_pages(state.pages);
    for (const Rows& rows : rows_) copy_pages(rows.pages);
}

Status StateStore::take(uint64_t bytes, Pages* pages) {
    const size_t n = static_cast<size_t>(ceil_div(bytes, page_bytes_));
    if (n > free_.size())
        return fail(Code::out_of_memory, "a checkpoint needs ", bytes, " bytes, ", free_.size() * page_bytes_,
                    " of checkpoint_bytes are free; give the session more");
    pages->assign(free_.end() - static_cast<std::ptrdiff_t>(n), free_.end());
    free_.resize(free_.size() - n);
    return {};
}

void StateStore::give_back(Pages* pages) {
    free_.insert(free_.end(), pages->begin(), pages->end());  // never beyond its first size
    pages->clear();
}

uint64_t StateStore::part_bytes(StatePart part, size_t row) const {
    return trunk_.context().state_bytes(part, static_cast<uint32_t>(row));
}

/// Bytes of a state at `row`, in the order in which they are written.
uint64_t StateStore::bytes_at(size_t row, bool has_hidden) const {
    return part_bytes(StatePart::trunk, row) + part_bytes(StatePart::draft, row) +
           (has_hidden ? d_model_ * sizeof(float) : 0);
}

uint64_t StateStore::row_bytes() const {
    uint64_t bytes = 0;
    for (const uint64_t piece : pieces_) bytes += piece;
    return bytes;
}

StateStore::Facts StateStore::live_facts(size_t row) const { return {trunk_.spans(), cache_.kept(row)}; }

/// An item with pages for a state at `row`.
Result<StateStore::State*> StateStore::take_state(uint32_t item, size_t row) {
    AUSPEX_TRY(finish());
    if (states_.size() <= item) states_.resize(item + 1);
    State& state = states_[item];
    AUSPEX_TRY(take(bytes_at(row, true), &state.pages));
    state.serial = ++n_kept_;
    state.whole = true;
    return &state;
}

Status StateStore::keep_state(uint32_t item, size_t row) {
    State* state = nullptr;
    AUSPEX_TRY(take_state(item, row).get(state));
    state->facts = live_facts(row);
    Status s;
    if (trunk_.context().state_saver()) {
        s = begin_keep(item, row);
    } else {
        Writer to(*this, {{&state->pages, 0, bytes_at(row, true)}});
        s = write_live(state->facts, to);
    }
    if (!s.ok()) give_back(&state->pages);
    return s;
}

Status StateStore::begin_keep(uint32_t item, size_t row) {
    State& state = states_[item];
    auto pending =
        std::make_unique<Pending>(Pending{item, {}, Writer(*this, {{&state.pages, 0, bytes_at(row, true)}})});
    AUSPEX_TRY(trunk_.track(cache_.read_hidden(state.facts.mtp, &pending->hidden)));
    AUSPEX_TRY(trunk_.begin_save(pending->to));
    state.whole = false;
    pending_ = std::move(pending);
    return {};
}

Status StateStore::finish() {
    if (!pending_) return {};
    const std::unique_ptr<Pending> pending = std::move(pending_);
    AUSPEX_TRY(trunk_.track(trunk_.context().state_saver()->finish_save()));
    AUSPEX_TRY(pending->to.write(pending->hidden.data(), pending->hidden.size() * sizeof(float)));
    states_[pending->item].whole = true;
    return {};
}

bool StateStore::is_whole(uint32_t item) {
    if (pending_ && pending_->item == item) (void)finish();
    return states_[item].whole;
}

Status StateStore::write_live(const Facts& facts, StateWriter& to) {
    std::vector<float> hidden;
    AUSPEX_TRY(trunk_.save_state(StatePart::trunk, to));
    AUSPEX_TRY(trunk_.save_state(StatePart::draft, to));
    AUSPEX_TRY(trunk_.track(cache_.read_hidden(facts.mtp, &hidden)));
    return to.write(hidden.data(), hidden.size() * sizeof(float));
}

Status StateStore::load_state(uint32_t item, size_t row) {
    if (!is_whole(item)) return Status(Code::device_lost, "the device was lost before it had copied this checkpoint");
    State& state = states_[item];
    Reader from(*this, {{&state.pages, 0, bytes_at(row, true)}});
    return read_live(row, state.facts, from);
}

Status StateStore::read_live(size_t row, const Facts& facts, StateReader& from) {
    AUSPEX_TRY(trunk_.load_state(row, facts.spans, from));
    std::vector<float> hidden(facts.mtp.has_hidden ? d_model_ : 0);
    AUSPEX_TRY(from.read(hidden.data(), hidden.size() * sizeof(float)));
    cache_.resume(row, facts.mtp, std::move(hidden));
    return {};
}

Status StateStore::write_kept(uint32_t item, size_t row, StateWriter& to) {
    AUSPEX_TRY(finish());
    const State& state = states_[item];
    const uint64_t bytes = bytes_at(row, state.facts.mtp.has_hidden);
    Status s;
    each_span(state.pages, 0, bytes, [&](const std::byte* from, uint64_t n) {
        if (s.ok()) s = to.write(from, n);
    });
    return s;
}

Status StateStore::read_kept(uint32_t item, size_t row, Facts facts, StateReader& from) {
    State* state = nullptr;
    AUSPEX_TRY(take_state(item, row).get(state));
    state->facts = std::move(facts);
    const uint64_t bytes = bytes_at(row, state->facts.mtp.has_hidden);
    Status s;
    each_span(state->pages, 0, bytes, [&](std::byte* to, uint64_t n) {
        if (s.ok()) s = from.read(to, n);
    });
    if (!s.ok()) give_back(&state->pages);
    return s;
}

void StateStore::drop_state(uint32_t item) {
    if (pending_ && pending_->item == item) (void)finish();
    give_back(&states_[item].pages);
}

/// Null where one thread is as good, or there are no others.
std::unique_ptr<Pool> StateStore::threads_for(Span<const ParkedBlock> blocks) const {
    uint64_t bytes = 0;
    for (const ParkedBlock& b : blocks) bytes += b.n * row_bytes();
    std::unique_ptr<Pool> pool;
    if (n_thread_ > 1 && bytes >= state_store_impl::kCopyTogether) (void)Pool::open(n_thread_).get(pool);
    return pool;
}

/// Where the rows of blocks lie, in the order in which a context copies `ranges`. Rows that follow one another are one
/// range: a GPU takes as long for a small piece as for a large one.
std::vector<StateStore::Extent> StateStore::extents_of(Span<const ParkedBlock> blocks,
                                                       std::vector<PartRows>* ranges) const {
    std::vector<Extent> extents;
    for (size_t i = 0, end = 0; i < blocks.size(); i = end) {
        size_t n = 0;
        for (; end < blocks.size() && blocks[end].first == blocks[i].first + n; ++end) n += blocks[end].n;
        for (const StatePart part : {StatePart::trunk, StatePart::draft})
            ranges->push_back({part, static_cast<uint32_t>(blocks[i].first), static_cast<uint32_t>(n)});
        uint64_t before = 0;  // bytes of a row that lie before the piece
        for (const uint64_t piece : pieces_) {
            for (size_t k = i; k < end; ++k) {
                const Rows& rows = rows_[blocks[k].item];
                extents.push_back(
                    {&rows.pages, rows.n * before + (blocks[k].first - rows.first) * piece, blocks[k].n * piece});
            }
            before += piece;
        }
    }
    return extents;
}

Status StateStore::park_rows(Span<const ParkedBlock> blocks) {
    Status s;
    for (const ParkedBlock& b : blocks) {
        if (rows_.size() <= b.item) rows_.resize(b.item + 1);
        Rows& rows = rows_[b.item];
        rows.first = b.first;
        rows.n = b.n;
        if (s.ok()) s = take(b.n * row_bytes(), &rows.pages);
    }
    std::vector<PartRows> ranges;
    const std::unique_ptr<Pool> pool = threads_for(blocks);
    Writer to(*this, extents_of(blocks, &ranges), pool.get());
    if (s.ok()) s = trunk_.track(trunk_.context().save_rows(ranges, to));
    for (const ParkedBlock& b : blocks)
        if (!s.ok()) give_back(&rows_[b.item].pages);
    return s;
}

Status StateStore::restore_rows(Span<const ParkedBlock> blocks) {
    for (const ParkedBlock& b : blocks) trunk_.rows_copied(b.first, b.n);
    std::vector<PartRows> ranges;
    const std::unique_ptr<Pool> pool = threads_for(blocks);
    Reader from(*this, extents_of(blocks, &ranges), pool.get());
    return trunk_.track(trunk_.context().restore_rows(ranges, from));
}

void StateStore::drop_rows(uint32_t item) { give_back(&rows_[item].pages); }

void StateStore::drop_all() {
    (void)finish();
    states_.clear();
    rows_.clear();
    free_.resize(static_cast<size_t>(arena_.size() / page_bytes_));  // open() took the memory
    for (size_t i = 0; i < free_.size(); ++i) free_[i] = static_cast<uint32_t>(free_.size() - 1 - i);
}

void StateStore::reset() { trunk_.restart(0); }

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

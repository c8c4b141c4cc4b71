// engine/state_store: the bytes of kept states and parked rows, in host memory.
//
// Owns    an arena, allocated once, cut into pages; and of every kept state what belongs to it beside its bytes.
// Thread  belongs to one session.
// Tests   tests/test_state_store.cpp, tests/test_branches.cpp.
//
//   state   recurrent state, convolution inputs and caches with a window, of trunk and draft blocks; the hidden row
//           that the draft block's next row is made of
//   rows    keys and values of up to kPrefixGrid rows, of trunk and draft blocks
#pragma once
#include "../machine/huge_pages.h"
#include "../machine/pool.h"
#include "prefix_tree.h"
#include "trunk.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// What is kept of a context, counted from its plan; a back end writes no more than this.
struct StateSizes {
    uint64_t state_bytes = 0;  ///< of one kept state at most, whole pages
    uint64_t row_bytes = 0;    ///< of one parked row, in blocks of kPrefixGrid that are whole pages
    uint64_t page_bytes = 0;
    static StateSizes of(const Plan& plan, const std::vector<KvShape>& kv);
};

/// ContextOptions::saved_state_bytes: 0 without checkpoints, and for states so large that copying them at once is
/// better than the memory.
uint64_t saved_state_bytes(const StateSizes& sizes, uint64_t budget_bytes);

/// The bytes of the arena that `checkpoint_bytes` stands for, in whole pages.
/// errors    bad_argument: neither 0 nor room for one state.
Result<uint64_t> checkpoint_budget(const StateSizes& sizes, uint64_t checkpoint_bytes, uint32_t n_context);

class StateStore : public RowStore {
  public:
    StateStore(Trunk& trunk, MtpCache& cache, uint32_t d_model);
    ~StateStore() override;
    /// n_thread  how many threads copy rows, if there are many of them; 1: the calling thread alone.
    /// errors    out_of_memory.
    Status open(const Allocator& allocator, const StateSizes& sizes, uint64_t budget_bytes, uint32_t n_thread);
    uint64_t memory_bytes() const { return arena_.size(); }
    /// Keeps a copy of everything that `other`, opened with the same sizes and budget, keeps, but of these row blocks.
    void copy(StateStore& other, Span<const uint32_t> left_out);
    /// Completes the state that was kept last, which the context may still be copying. errors: device_lost; that state
    /// is not whole then.
    Status finish();

    Status keep_state(uint32_t item, size_t row) override;
    bool is_whole(uint32_t item) override;
    Status load_state(uint32_t item, size_t row) override;
    void drop_state(uint32_t item) override;
    Status park_rows(Span<const ParkedBlock> blocks) override;
    Status restore_rows(Span<const ParkedBlock> blocks) override;
    uint64_t last_write(size_t row) const override { return trunk_.last_write(row); }
    void drop_rows(uint32_t item) override;
    void drop_all() override;
    void reset() override;

    // For files. The bytes of a state are those of the trunk, those of the draft blocks, and the hidden row.
    /// What belongs to a state beside its bytes.
    struct Facts {
        std::vector<RowSpan> spans;  ///< how its rows were computed
        MtpCache::Kept mtp;
    };
    Facts live_facts(size_t row) const;
    const Facts& facts(uint32_t item) const { return states_[item].facts; }
    /// Tells a kept state from all others of this store.
    uint64_t serial(uint32_t item) const { return states_[item].serial; }
    uint64_t part_bytes(StatePart part, size_t row) const;
    Status write_live(const Facts& facts, StateWriter& to);
    Status write_kept(uint32_t item, size_t row, StateWriter& to);
    /// Makes what is read the live state; the rows below are in the context.
    Status read_live(size_t row, const Facts& facts, StateReader& from);
    /// Fills an item, as keep_state() does.
    Status read_kept(uint32_t item, size_t row, Facts facts, StateReader& from);

  private:
    using Pages = std::vector<uint32_t>;
    struct State {
        Pages pages;
        Facts facts;
        uint64_t serial = 0;
        bool whole = false;
    };
    struct Rows {
        Pages pages;
        size_t first = 0, n = 0;
    };
    /// Bytes at .. at + bytes of a state or a block.
    struct Extent {
        const Pages* pages;
        uint64_t at, bytes;
    };
    class Cursor;
    class Writer;
    class Reader;
    struct Pending;
    template <class F>
    void each_span(const Pages& pages, uint64_t at, uint64_t n, F visit) const;
    Status take(uint64_t bytes, Pages* pages);
    void give_back(Pages* pages);
    Result<State*> take_state(uint32_t item, size_t row);
    Status begin_keep(uint32_t item, size_t row);
    uint64_t bytes_at(size_t row, bool has_hidden) const;
    uint64_t row_bytes() const;
    std::unique_ptr<Pool> threads_for(Span<const ParkedBlock> blocks) const;
    std::vector<Extent> extents_of(Span<const ParkedBlock> blocks, std::vector<PartRows>* ranges) const;

    Trunk& trunk_;
    MtpCache& cache_;
    uint32_t d_model_;
    HugePages huge_;  ///< of the arena, unless the application has an allocator
    Block arena_;
    uint64_t page_bytes_ = 1;
    uint32_t n_thread_ = 1;
    std::vector<uint32_t> free_;  ///< pages
    std::vector<State> states_;   ///< by item
    uint64_t n_kept_ = 0;         ///< states so far
    std::unique_ptr<Pending> pending_;
    std::vector<Rows> rows_;        ///< by item
    std::vector<uint64_t> pieces_;  ///< Context::row_pieces of the trunk, then of the draft blocks
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// tests/prefix_rig: a PrefixTree with a store whose rows and states are numbers that tell where they come from.
//
// A row's content is the hash of all tokens up to it and a number that no other row has; a state's content is the hash
// of the rows that it was computed with. So a row in a wrong place, or a state over other rows than its own, is found.
#pragma once
#include <doctest/doctest.h>

#include <map>
#include <tuple>

#include "../src/engine/prefix_tree.h"
#include "support.h"

namespace test {

using auspex::Code;
using auspex::Mark;
using auspex::Result;
using auspex::Span;
using auspex::Status;
using auspex::Token;
using auspex::detail::PrefixOptions;
using auspex::detail::PrefixReport;
using auspex::detail::PrefixTree;

/// n tokens that no other seed has.
inline std::vector<Token> text(int seed, size_t n) {
    std::vector<Token> ids(n);
    for (size_t i = 0; i < n; ++i) ids[i] = seed * 100000 + static_cast<Token>(i);
    return ids;
}

inline uint64_t mix(uint64_t a, uint64_t b) { return Random(a * 31 + b).next(); }

struct FakeRow {
    uint64_t text = 0, bits = 0;
    uint64_t draft = 0;  ///< what a draft block writes later
};

class FakeStore : public auspex::detail::RowStore {
  public:
    explicit FakeStore(const PrefixOptions& o) : options(o), rows(o.n_context), written_(o.n_context / o.grid + 1) {}

    Status keep_state(uint32_t item, size_t row) override {
        if (fails()) return Status(Code::out_of_memory, "injected");
        CHECK(row == n_state_row);
        CHECK(states.count(item) == 0);
        states[item] = {row, state};
        return take(options.state_bytes);
    }
    Status load_state(uint32_t item, size_t row) override {
        if (fails()) return Status(Code::device_lost, "injected");
        REQUIRE(states.count(item) == 1);
        CHECK(states[item].first == row);
        n_state_row = row;
        state = states[item].second;
        return {};
    }
    void drop_state(uint32_t item) override {
        CHECK(states.erase(item) == 1);
        held -= options.state_bytes;
    }
    Status park_rows(Span<const auspex::detail::ParkedBlock> parked) override {
        if (fails()) return Status(Code::out_of_memory, "injected");
        for (const auspex::detail::ParkedBlock& b : parked) {
            CHECK(blocks.count(b.item) == 0);
            CHECK(b.n >= 1);
            CHECK(b.first / options.grid == (b.first + b.n - 1) / options.grid);
            const auto begin = rows.begin() + long(b.first);
            blocks[b.item] = {b.first, std::vector<FakeRow>(begin, begin + long(b.n))};
            n_parked += b.n;
            Status s = take(b.n * options.row_bytes);
            if (!s.ok()) return s;
        }
        return {};
    }
    Status restore_rows(Span<const auspex::detail::ParkedBlock> parked) override {
        if (fails()) return Status(Code::device_lost, "injected");
        for (const auspex::detail::ParkedBlock& b : parked) {
            REQUIRE(blocks.count(b.item) == 1);
            const auto& [begin, content] = blocks[b.item];
            REQUIRE(b.first >= begin);
            REQUIRE(b.first + b.n <= begin + content.size());
            std::copy_n(content.begin() + long(b.first - begin), b.n, rows.begin() + long(b.first));
            wrote(b.first);
            n_restored += b.n;
        }
        return {};
    }
    uint64_t last_write(size_t row) const override { return spares ? written_[row / options.grid] : ++n_write_; }
    void drop_all() override { states.clear(), blocks.clear(), held = 0; }
    void drop_rows(uint32_t item) override {
        REQUIRE(blocks.count(item) == 1);
        held -= blocks[item].second.size() * options.row_bytes;
        blocks.erase(item);
    }
    void reset() override { n_state_row = 0, state = 0; }

    /// What a device does with one row: the state and the row of the new token.
    void compute(size_t row, Token token) {
        REQUIRE(row == n_state_row);
        rows[row] = {mix(row == 0 ? 0 : rows[row - 1].text, uint64_t(token)), ++n_computed};
        state = mix(state, rows[row].bits);
        n_state_row = row + 1;
        wrote(row);
    }
    /// What a draft block does with a row that was computed earlier.
    void draft(size_t row, uint64_t bits) {
        rows[row].draft = bits;
        wrote(row);
    }

    PrefixOptions options;
    std::vector<FakeRow> rows;
    std::map<uint32_t, std::pair<size_t, uint64_t>> states;
    std::map<uint32_t, std::pair<size_t, std::vector<FakeRow>>> blocks;
    size_t n_state_row = 0, n_parked = 0, n_restored = 0;
    uint64_t state = 0, n_computed = 0, held = 0, n_call = 0, fail_at = 0;
    bool spares = true;  ///< false: no row ever counts as unchanged

  private:
    void wrote(size_t row) { written_[row / options.grid] = ++n_write_; }
    std::vector<uint64_t> written_;
    mutable uint64_t n_write_ = 0;
    bool fails() { return ++n_call == fail_at; }
    Status take(uint64_t bytes) {
        held += bytes;
        CHECK(held <= options.budget_bytes);
        return {};
    }
};

struct PrefixRig {
    explicit PrefixRig(const PrefixOptions& o) : store(o), tree(o, store) {}

    /// The rows and the state in the context are those of the live history, computed in one go.
    void check() const {
        uint64_t text = 0, state = 0;
        for (size_t i = 0; i < tree.n_row(); ++i) {
            text = mix(text, uint64_t(tree.tokens()[i]));
            if (store.rows[i].text != text) FAIL("row ", i, " of ", tree.n_row(), " is not the row of its text");
            state = mix(state, store.rows[i].bits);
        }
        CHECK(store.n_state_row == tree.n_row());
        CHECK(store.state == state);
        CHECK(store.held == tree.held_bytes() + tree.spare_bytes());
        CHECK(store.held <= store.options.budget_bytes);
    }
    void prefill(size_t n_ubatch = 48) {
        while (tree.n_row() < tree.tokens().size()) {
            const size_t first = tree.n_row();
            REQUIRE(tree.next_stop() > first);
            const size_t n = std::min(tree.next_stop() - first, n_ubatch);
            tree.make_room(n);
            for (size_t i = 0; i < n; ++i) store.compute(first + i, tree.tokens()[first + i]);
            tree.computed(n);
        }
    }
    Status begin(const std::vector<Token>& wanted, const std::vector<Mark>& marks = {}) {
        Status s = tree.sync(wanted, marks, true).get(report);
        if (!s.ok()) return s;
        CHECK(tree.n_row() == report.checkpoint_row);
        CHECK(tree.tokens().size() == wanted.size());
        CHECK(report.rows_computed + report.rows_reused == wanted.size());
        check();
        return {};
    }
    PrefixReport sync(const std::vector<Token>& wanted, const std::vector<Mark>& marks = {}) {
        REQUIRE(begin(wanted, marks).ok());
        prefill();
        check();
        return report;
    }
    void generate(Token id) {
        tree.append(id);
        tree.make_room(1);
        store.compute(tree.n_row(), id);
        tree.computed(1, true);
        if (tree.is_reply_row(tree.n_row()) || tree.is_recent_due(tree.n_row())) tree.keep_reply();
    }
    /// What is kept, apart from recent states, in an order of its own.
    std::vector<PrefixTree::StateInfo> kept() const {
        std::vector<PrefixTree::StateInfo> all = tree.states();
        const auto is_recent = [](const auto& s) { return s.kind == auspex::detail::StateKind::recent; };
        all.erase(std::remove_if(all.begin(), all.end(), is_recent), all.end());
        std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
            return std::tie(a.tokens, a.kind, a.pinned, a.age) < std::tie(b.tokens, b.kind, b.pinned, b.age);
        });
        return all;
    }

    FakeStore store;
    PrefixTree tree;
    PrefixReport report;
};

}  // namespace test

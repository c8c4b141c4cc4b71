// tests/draft_state: whether drafting leaves a trace in the state.
#pragma once
#include <string>

#include "../src/auspex.hpp"

namespace test {

struct FuzzOptions {
    uint64_t n_cycle = 10000;  ///< in all
    uint32_t n_text = 500;     ///< tokens of one text; then another prompt, another sampling, other windows and formats
    uint64_t n_rejection = 1000;  ///< cycles of which every guess is wrong, in a row
    bool formats = true;          ///< also with quantised keys and values
    uint64_t seed = 1;
};

struct FuzzCounts {
    uint64_t n_cycle = 0, n_drafted = 0, n_accepted = 0, n_compared = 0, n_stepped_back = 0, n_turn = 0;
};

/// Drafts with depths, sources and acceptance drawn by lot, throws away what was accepted now and then, and compares
/// the whole state with that of plain decoding, byte for byte. The first difference, or an empty text.
std::string fuzz_state(const auspex::Model& model, const FuzzOptions& options, FuzzCounts* counts);
/// Rejects every guess of n cycles in a row, then compares text and state.
std::string reject_all(const auspex::Model& model, const FuzzOptions& options, FuzzCounts* counts);

}  // namespace test

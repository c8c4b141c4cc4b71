// tests/draft_state: compares the whole state after drafting with that of plain decoding.
#pragma once
#include <string>

#include "../src/auspex.hpp"

namespace test {

struct FuzzOptions {
    uint64_t n_cycle = 10000;  ///< in all
    uint32_t n_text = 500;     ///< tokens of one text; then another prompt, another sampling, other windows and formats
    uint64_t n_rejection = 1000;  ///< cycles in a row of which every draft is wrong
    bool formats = true;          ///< also with quantised keys and values
    uint64_t seed = 1;
};

struct FuzzCounts {
    uint64_t n_cycle = 0, n_drafted = 0, n_accepted = 0, n_compared = 0, n_stepped_back = 0, n_turn = 0;
};

/// Drafts with random depths, sources and acceptance, sometimes cuts accepted tokens off again, and compares the whole
/// state with that of plain decoding byte by byte. Returns the first difference, or an empty text.
std::string fuzz_state(const auspex::Model& model, const FuzzOptions& options, FuzzCounts* counts);
/// Rejects every draft of n cycles in a row, then compares text and state.
std::string reject_all(const auspex::Model& model, const FuzzOptions& options, FuzzCounts* counts);

}  // namespace test

// cli/texts: built-in texts, generated from lists of words; the same in every run.
#pragma once
#include <cstdint>
#include <string>

namespace cli {

/// A deterministic stream of numbers.
struct Dice {
    uint64_t state;
    uint32_t below(uint32_t n) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return static_cast<uint32_t>((state >> 33) % n);
    }
};

/// A line of a plant's log, each of another machine: hard to predict in its details.
std::string plant_log_line(Dice& dice, uint32_t minute);

/// At least `bytes` of a text, ending where a model can go on. kind: "log" (one machine, nearly equal lines), "story",
/// "code" or "json"; the text of another is empty.
std::string text_of(const std::string& kind, size_t bytes, uint64_t seed = 1);

}  // namespace cli

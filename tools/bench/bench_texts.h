// bench_texts: generations that `bench --stack` and `bench --controller` time, cycle by cycle.
#pragma once
#include "bench.h"

namespace cli {

/// A text to go on from: a built-in kind, or a file.
struct Opening {
    std::string name, text;
    bool built_in = true;
};
/// Those of --text, else the built-in `kinds`. errors: bad_argument, or why a file cannot be read.
Status read_openings(const BenchOptions& o, const std::vector<std::string>& kinds, std::vector<Opening>* to);

/// Its tokens: of a built-in kind at least `bytes` of text, another one for each seed; of a file all of it.
std::vector<Token> tokens_of(const auspex::Model& model, const Opening& opening, size_t bytes, uint64_t seed);

/// Continues the session's text until its history has at least n tokens, adding the time that takes. Everything on
/// its way is waited for and counted. The first sample after a sync() needs no pass: take it before.
Status generate_timed(auspex::Session& on, const auspex::Sampling& sampling, size_t n, double* seconds);

}  // namespace cli

// engine/session: one timeline: which rows are computed, which token comes next.
//
// Owns    the history, the positions, what sync() must compute.
// Reads   model, sample, backend (Lane).
// Serves  the door.
// Thread  one thread at a time.
// Laws    Commit, Chunk, Silence: tests/test_session.cpp, tests/test_laws.cpp.
#pragma once
#include "model.h"
#include "sample.h"

namespace auspex {

struct Session::Impl {
    std::shared_ptr<Model::Impl> model;
    SessionOptions options;
    std::unique_ptr<detail::Lane> lane;
    detail::Picker picker;
    std::vector<Token> history;  ///< capacity taken at the start: a step allocates nothing
    size_t n_row = 0;            ///< rows of the history that the lane holds
    bool has_logits = false;     ///< those of row n_row - 1
    std::vector<float> restored_logits;  ///< those of a restored snapshot, until the next step
    bool lost = false;           ///< the device is gone
    Stats stats;

    /// Runs and commits rows n_row .. n_row + n - 1 of the history.
    Status prefill(size_t n);
    Status check_ids(Span<const Token> ids) const;
    void forget();
    Status run(const detail::Step& step);
    Status track(Status s);  ///< remembers a lost device
};

}  // namespace auspex

// bench: what the measurements of auspex-bench share.
//
// Owns    the options, the model under test, the timing loops, the JSON object with all results. Each kind of
//         measurement has a file of its own: bench_rows, bench_profile, bench_mtp, bench_stack, bench_replay,
//         bench_trace, bench_masks.
// Thread  one.
// Tests   tests/test_cli_bench.py.
#pragma once
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "examples/cli/common.h"
#include "examples/cli/constraint.h"
#include "examples/cli/printable.h"
#include "read_loop.h"
#include "score.h"
#include "examples/cli/window.h"

namespace cli {

struct BenchOptions {
    PlaceOptions place;
    WindowFlags window;
    auspex::Sampling sampling;
    ConstraintFlags constraint;
    std::string prefill_list, depth_list, row_list, mtp_list;
    std::vector<Token> prefill, depths, rows, mtp;  ///< read from the lists
    bool measure_all = false;  ///< none of them was named: prefill, decoding and rows with their defaults
    std::string draft = "auto", draft_vocab, synth_phases, plot, trace;
    std::vector<std::string> texts;  ///< NAME=FILE
    std::string masks;               ///< file of schemas and instances
    std::string replay, geometry = "9b", checkpoint_bytes, policy = "default", order = "arrival", session_file;
    std::string thinking = "dropped";
    std::optional<double> synth_accept;
    int64_t n = 0, repeat = 5, context = 64, phase = 256, rounds = 2, draft_max = 6;
    int64_t branches = 1, replay_context = 0;  ///< replay_context 0: what the longest request needs
    int64_t prefix = 30000, steps = 20, append = 870, title = 800;
    std::optional<int64_t> longest;
    std::optional<int64_t> requests;  ///< all if not given
    bool dry = false, json = false, profile = false, stack = false, controller = false, virtual_clock = false;
};

/// Checks the options, measures, and prints the table or the JSON object.
Status run_bench(BenchOptions& o);

/// The runs of one measurement, in seconds.
struct Times {
    std::vector<double> s;
    double median() const { return cli::median(s); }
    double min() const { return *std::min_element(s.begin(), s.end()); }
    double max() const { return *std::max_element(s.begin(), s.end()); }
};
/// Runs `work` `n` times. errors: the first of `work`; cancelled after Ctrl-C.
Status measure(int64_t n, Times* to, const std::function<Status()>& work);

/// n as SessionOptions::n_context. errors: bad_argument: no session has so many rows; names asked_by.
Result<uint32_t> context_rows(uint64_t n, const char* asked_by);

/// A model on its device, and where the results go.
struct Bench {
    const BenchOptions& o;
    Loaded on;
    nlohmann::ordered_json out;
    uint64_t bytes = 0;  ///< of weights that one decoded token has to read
    ReadLoop read_loop;  ///< open on the CPU alone

    explicit Bench(const BenchOptions& options) : o(options) {}
    /// Loads the model, once, and says in `out` and in the table what is measured where.
    Status open();
    /// The same ids in every run, spread over the vocabulary.
    std::vector<Token> ids(size_t n) const;
    /// A session with these windows. asked_by: the options that n_context is the sum of. On a GPU it runs ahead as
    /// `run` does. Its cycles are appended to `cycles`, if given, which outlives it.
    Result<auspex::Session> session(const WindowFlags& window, uint64_t n_context, const char* asked_by,
                                    const auspex::DraftOptions& draft = no_draft(),
                                    std::vector<auspex::DraftCycle>* cycles = nullptr);
    static auspex::DraftOptions no_draft() {
        auspex::DraftOptions draft;
        draft.source = auspex::Draft::off;
        return draft;
    }
    /// Keeps a GPU busy for a second before the first measurement: an idle one runs at a fraction of its clock.
    Status warm_up();
    /// Prints a line of the table, unless --json.
    void say(const char* format, ...) const
#if defined(__GNUC__)
        __attribute__((format(printf, 2, 3)))
#endif
        ;

    Status files;  ///< of --plot and --trace; an error is reported after what was measured

  private:
    bool warm_ = false;
};

Status bench_rows(Bench& b);     ///< --prefill, --depth, --rows
Status bench_long(Bench& b);     ///< --long
Status bench_profile(Bench& b);  ///< --profile
Status bench_mtp(Bench& b);      ///< --mtp
Status bench_stack(Bench& b);    ///< --stack
Status bench_replay(Bench& b);   ///< --controller

}  // namespace cli

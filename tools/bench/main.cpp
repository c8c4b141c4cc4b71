// auspex-bench: measures how fast a model runs here. `auspex bench` starts this program.
//
// A program of its own, because it measures what the public interface does not show: single steps, whole cycles with
// synthetic acceptance, the controller on a virtual clock.
#include <CLI/CLI.hpp>

#include "bench.h"
#include "examples/cli/command.h"
#include "examples/cli/constraint.h"
#include "examples/cli/platform.h"

namespace cli {
namespace {

/// Returns the options that name a measurement.
std::vector<const CLI::Option*> add_lists(CLI::App& app, BenchOptions& o) {
    return {app.add_option("--prefill", o.prefill_list,
                           "Prompt lengths (with nothing named: 128,512); with --mtp also with the MTP block"),
            app.add_option("--depth", o.depth_list,
                           "Tokens in the history before decoding and, 64 or more, before steps of --rows (with "
                           "nothing named: 0,512); with --stack and --profile, where to measure"),
            app.add_option("--rows", o.row_list,
                           "Rows of a step, 1 .. 8, with --profile as many as --ubatch (with nothing named: all)"),
            app.add_option("--mtp", o.mtp_list, "Draft depths to measure whole cycles at, as in 1,2,3,4")};
}

void add_measurements(CLI::App& app, BenchOptions& o) {
    app.add_option("--synth-accept", o.synth_accept,
                   "With --mtp: synthetic acceptance with this probability, for models with random weights");
    app.add_option("--draft-vocab", o.draft_vocab, "A draft head over N ids, those of FILE, or auto");
    app.add_option(
           "--context", o.context,
           "With --mtp and --controller: tokens in the history at the start; with --replay: rows of the context "
           "(default: what the longest request needs)")
        ->capture_default_str();
    app.add_flag("--profile", o.profile,
                 "Where the time of a step goes, by kind of kernel (GPU); at --depth, for --rows");
    app.add_option("--long", o.longest,
                   "Read N tokens with a window in every layer; memory and speed at each power of ten");
    app.add_flag("--stack", o.stack,
                 "Windows and drafting, alone and together, on a predictable and an open-ended text, at --depth");
    app.add_flag("--controller", o.controller,
                 "Score the choice of draft depth against every fixed depth in hindsight");
    app.add_option("--masks", o.masks,
                   "What masks of JSON schemas cost with the model's vocabulary, and whether they are right: FILE has "
                   "lines {\"schema\", \"tests\": [{\"valid\", \"data\"}]}");
    app.add_flag("--virtual", o.virtual_clock, "With --controller: synthetic texts and costs on a virtual clock");
}

void add_settings(CLI::App& app, BenchOptions& o) {
    app.add_option("--draft", o.draft, "With --stack: draft depth, auto or 1 .. 8")->capture_default_str();
    app.add_option("--draft-max", o.draft_max, "With --controller: limit of the draft depth")->capture_default_str();
    app.add_option("--text", o.texts,
                   "With --stack and --controller: NAME=FILE, texts to go on from, instead of the built-in ones; may "
                   "be repeated")
        ->allow_extra_args(false);
    app.add_option("--phase", o.phase, "With --controller: tokens of each phase")->capture_default_str();
    app.add_option("--rounds", o.rounds, "With --controller: number of passes over the phases")->capture_default_str();
    app.add_option("--synth-phases", o.synth_phases,
                   "With --controller: instead of texts, synthetic acceptance of each phase, as in 0.95,0.35");
    app.add_option("--temp", o.sampling.temperature,
                   "With --stack and --controller: temperature of the generated texts")
        ->capture_default_str();
    app.add_option("--seed", o.sampling.seed, "With --stack and --controller: the same seed gives the same texts")
        ->capture_default_str();
    app.add_option("--plot", o.plot, "With --stack and --controller: PNG file for the curves");
    app.add_option("--trace", o.trace, "With --controller: a JSON line per cycle of the controller in its slowest run");
    app.add_option("--repeat", o.repeat, "Runs of each measurement")->capture_default_str();
    app.add_flag("--json", o.json, "Print one JSON object instead of a table");
}

void add_replay(CLI::App& app, BenchOptions& o) {
    app.add_option(
        "--replay", o.replay,
        "Replay the requests of FILE (CSV of sessions, or JSONL with hash_ids), or agent, chat or loop: which rows "
        "are computed, which reused, and on a model, how long each first token takes; -v: a line for each request");
    app.add_flag("--dry", o.dry, "With --replay: the bookkeeping alone, without a model");
    app.add_option("--requests", o.requests, "With --replay: the first N requests alone");
    app.add_option("--prefix", o.prefix, "With --replay loop: rows of the agent's context before its first step")
        ->capture_default_str();
    app.add_option("--steps", o.steps, "With --replay loop: steps of the agent")->capture_default_str();
    app.add_option("--append", o.append, "With --replay loop: rows that each step appends")->capture_default_str();
    app.add_option("--title", o.title, "With --replay loop: rows of a title request before each step; 0: none")
        ->capture_default_str();
    app.add_option("--session-file", o.session_file,
                   "With --replay loop: also save the session to this file, load it and delete it");
    app.add_option("--geometry", o.geometry, "With --replay --dry: 0.8b, 4b, 9b, 27b or 35b-a3b, without a draft block")
        ->capture_default_str();
    app.add_option("--checkpoint-bytes", o.checkpoint_bytes,
                   "With --replay: budget for checkpoints and parked rows, as in 512M (default: what a session takes; "
                   "with --dry 512M)");
    app.add_option("--policy", o.policy, "With --replay: none, stride or default")->capture_default_str();
    app.add_option("--order", o.order,
                   "With --replay of a CSV file with times: arrival, queue (serving takes time) or sessions (one after "
                   "the other)")
        ->capture_default_str();
    app.add_option("--thinking", o.thinking, "With --replay agent or chat: dropped or kept in earlier turns")
        ->capture_default_str();
    app.add_option("--branches", o.branches, "With --replay chat: conversations that take turns")
        ->capture_default_str();
}

/// A measurement other than those that the lists name.
bool has_mode(const BenchOptions& o) {
    return o.profile || o.stack || o.controller || o.longest || !o.replay.empty() || !o.masks.empty();
}

/// Names an option that no measurement asked for would read: what is printed would seem to have been measured with it.
Status check_read(const CLI::App& app, const BenchOptions& o) {
    const bool model = o.masks.empty() && !o.dry && !o.virtual_clock;
    const bool mtp = model && !o.mtp_list.empty(), controller = o.controller && model, texts = o.stack || controller;
    const bool replay = !o.replay.empty(), loop = o.replay == "loop", agent = o.replay == "agent",
               chat = o.replay == "chat";
    const bool rows = !has_mode(o);
    constexpr const char* kModel = "a measurement on a model";
    constexpr const char* kController = "--controller on a model";
    constexpr const char* kTexts = "--stack or --controller on a model";
    const struct {
        const char* option;
        bool is_read;
        const char* expected;
    } all[] = {{"--model", model || !o.masks.empty(), kModel},
               {"--mtp-file", model, kModel},
               {"--window", model, kModel},
               {"--kv-budget", model, kModel},
               {"--kv-type", model, kModel},
               {"--ubatch", model, kModel},
               {"--exact-prompts", model, kModel},
               {"--prefill", rows || mtp, "--mtp or no other measurement"},
               {"--depth", rows || o.stack || o.profile, "--stack, --profile or no other measurement"},
               {"--rows", rows || o.profile, "--profile or no other measurement"},
               {"--mtp", model, kModel},
               {"--tokens", rows || mtp || o.stack || o.longest || loop, "--mtp, --stack, --long or --replay loop"},
               {"--repeat", rows || mtp || o.stack || o.controller, "--mtp, --stack or --controller"},
               {"--synth-accept", mtp, "--mtp"},
               {"--draft-vocab", mtp || texts, "--mtp, --stack or --controller on a model"},
               {"--context", mtp || controller || replay, "--mtp, --controller on a model, or --replay"},
               {"--draft", o.stack, "--stack"},
               {"--draft-max", controller, kController},
               {"--text", texts, kTexts},
               {"--phase", controller, kController},
               {"--rounds", controller, kController},
               {"--synth-phases", controller, kController},
               {"--temp", texts, kTexts},
               {"--seed", texts, kTexts},
               {"--plot", texts, kTexts},
               {"--trace", controller, kController},
               {"--requests", replay, "--replay"},
               {"--prefix", loop, "--replay loop"},
               {"--steps", loop, "--replay loop"},
               {"--append", loop, "--replay loop"},
               {"--title", loop, "--replay loop"},
               {"--session-file", loop && !o.dry, "--replay loop on a model"},
               {"--geometry", o.dry, "--replay with --dry"},
               {"--checkpoint-bytes", replay, "--replay"},
               {"--policy", replay, "--replay"},
               {"--order", replay && !loop && !agent && !chat, "--replay of a CSV file with times"},
               {"--thinking", agent || chat, "--replay agent or --replay chat"},
               {"--branches", chat, "--replay chat"}};
    for (const auto& one : all)
        if (!one.is_read && app.get_option(one.option)->count() > 0)
            return Status(Code::bad_argument,
                          std::string(one.option) + " has no meaning here, expected " + one.expected + " beside it");
    return {};
}

}  // namespace
}  // namespace cli

int main(int argc, char** argv) {
    using namespace cli;
    prepare_streams();
    CLI::App app(
        "auspex-bench " AUSPEX_VERSION
        ": measures prefill, decoding, steps of several rows, drafting and windows; `auspex bench` is the same",
        "auspex bench");
    app.set_version_flag("--version", "auspex-bench " AUSPEX_VERSION);
    app.footer("Exit codes: 0 done, 1 failed at run time, 2 bad arguments or files, 130 interrupted.");
    BenchOptions o;
    o.sampling.temperature = 0.7f;  // of the texts that --stack and --controller generate: greedy ones fall into loops
    add_place(app, o.place);
    add_window(app, o.window);
    const std::vector<const CLI::Option*> lists = add_lists(app, o);
    add_measurements(app, o);
    add_settings(app, o);
    add_replay(app, o);
    add_constraint(app, o.constraint);
    const CLI::Option* tokens = app.add_option(
        "-n,--tokens", o.n, "Tokens to decode in each run (default: 32; with --mtp 128, with --stack 256)");
    return run_command(app, utf8_arguments(argc, argv), [&] {
        if (tokens->count() == 0) o.n = o.stack ? 256 : o.mtp_list.empty() ? 32 : 128;
        if (app.get_option("--context")->count() != 0) o.replay_context = o.context;
        o.measure_all =
            !has_mode(o) && std::all_of(lists.begin(), lists.end(), [](const auto* l) { return l->count() == 0; });
        Status s = check_read(app, o);
        if (s.ok()) s = check_late_output(o.plot, "--plot");
        if (s.ok()) s = check_late_output(o.trace, "--trace");
        if (s.ok()) s = check_late_output(o.session_file, "--session-file");
        return report(s.ok() ? run_bench(o) : s);
    });
}

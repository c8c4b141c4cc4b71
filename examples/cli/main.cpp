// auspex: the command line. Each command has a file of its own; commands.h lists them.
#include <CLI/CLI.hpp>
#include <cstring>

#include "commands.h"
#include "common.h"
#include "platform.h"

namespace {

/// `auspex bench` is a program of its own, because it measures what the public interface does not show.
int run_bench(char** argv) {
    const std::string folder = cli::executable_folder();
    const std::string path = (folder.empty() ? std::string() : folder + "/") + "auspex-bench";
    const int exit_code = cli::run_program(path, argv + 1);
    if (exit_code >= 0) return exit_code;
    return cli::report(cli::Status(cli::Code::not_found, "'" + path +
                                                             "' cannot be started; build the target "
                                                             "auspex_bench, and keep the program beside this one"));
}

}  // namespace

int main(int argc, char** argv) {
    cli::prepare_streams();
    if (argc > 1 && std::strcmp(argv[1], "bench") == 0) return run_bench(argv);
    CLI::App app("auspex " AUSPEX_VERSION ": runs hybrid language models (Gated DeltaNet + attention) from GGUF files",
                 "auspex");
    app.set_version_flag("--version", "auspex " AUSPEX_VERSION);
    app.require_subcommand(1);
    app.footer(
        "Exit codes: 0 done, 1 failed at run time, 2 bad arguments or files, 130 interrupted.\n"
        "`auspex COMMAND --help` explains a command.");
    cli::Chosen chosen;
    cli::add_run(app, chosen);
    cli::add_chat(app, chosen);
    cli::add_inspect(app, chosen);
    cli::add_tokenize(app, chosen);
    cli::add_render(app, chosen);
    cli::add_logits(app, chosen);
    cli::add_eval(app, chosen);
    app.add_subcommand("bench", "Measure speed: runs the program auspex-bench");  // for the list; see run_bench()
    return cli::run_command(app, argc, argv, chosen);
}

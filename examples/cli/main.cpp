// auspex: the command line. Each command stands in its own file; commands.h lists them.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>

#include "commands.h"
#include "common.h"
#include "platform.h"

int main(int argc, char** argv) {
    cli::use_binary_streams();
    CLI::App app("auspex " AUSPEX_VERSION ": runs hybrid language models (Gated DeltaNet + attention) from GGUF files",
                 "auspex");
    app.set_version_flag("--version", "auspex " AUSPEX_VERSION);
    app.require_subcommand(1);
    app.footer(
        "Exit codes: 0 done, 1 failed at run time, 2 bad arguments or files, 130 interrupted.\n"
        "`auspex COMMAND --help` tells what a command takes.");
    cli::Chosen chosen;
    cli::add_run(app, chosen);
    cli::add_chat(app, chosen);
    cli::add_inspect(app, chosen);
    cli::add_tokenize(app, chosen);
    cli::add_render(app, chosen);
    cli::add_logits(app, chosen);
    cli::add_bench(app, chosen);
    cli::add_eval(app, chosen);
    try {
        app.parse(argc, argv);
        cli::catch_interrupts();
        return chosen();
    } catch (const CLI::ParseError& e) {
        if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
        return cli::report(
            cli::Status(cli::Code::bad_argument, std::string(e.what()) + " (auspex --help lists the commands)"));
    } catch (const std::bad_alloc&) {
        return cli::report(cli::Status(cli::Code::out_of_memory, "the system has no more memory for this process"));
    }
}

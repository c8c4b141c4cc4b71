// auspex: the command line. Each command has a file of its own; commands.h lists them.
#include <CLI/CLI.hpp>
#include <string>

#include "commands.h"
#include "common.h"
#include "platform.h"

namespace {

/// A command that is a program of its own: bench measures what the public interface does not show, serve needs HTTP.
int run_beside(const char* name, const std::string& target, std::vector<std::string> arguments) {
    arguments.erase(arguments.begin());  // the command takes the place of the program's name
    const std::string folder = cli::executable_folder();
    const std::string path = (folder.empty() ? std::string() : folder + "/") + name;
    int exit_code = 0;
    if (cli::run_program(path, arguments, &exit_code)) return exit_code;
    return cli::report(cli::Status(cli::Code::not_found, "'" + path + "' cannot be started; build the target " +
                                                             target + ", and keep the program beside this one"));
}

}  // namespace

int main(int argc, char** argv) {
    cli::prepare_streams();
    const std::vector<std::string> arguments = cli::utf8_arguments(argc, argv);
    const std::string command = arguments.size() > 1 ? arguments[1] : "";
    if (command == "bench") return run_beside("auspex-bench", "auspex_bench", arguments);
    if (command == "serve") return run_beside("auspex-server", "auspex_server, which needs cpp-httplib", arguments);
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
    // For the list; see run_beside().
    app.add_subcommand("serve", "Serve a model to OpenAI's and Anthropic's clients: runs the program auspex-server");
    app.add_subcommand("bench", "Measure speed: runs the program auspex-bench");
    return cli::run_command(app, arguments, chosen);
}

// cli/commands: one line per command of `auspex`.
//
// Each add_*() declares its command and options on the application. When the user names the command,
// its callback leaves in `chosen` what main() then runs; that returns the exit code.
#pragma once
#include <functional>

namespace CLI {
class App;
}

namespace cli {

using Chosen = std::function<int()>;

void add_run(CLI::App& app, Chosen& chosen);       // run.cpp
void add_chat(CLI::App& app, Chosen& chosen);      // chat.cpp
void add_inspect(CLI::App& app, Chosen& chosen);   // inspect.cpp
void add_tokenize(CLI::App& app, Chosen& chosen);  // text.cpp
void add_render(CLI::App& app, Chosen& chosen);    // text.cpp
void add_logits(CLI::App& app, Chosen& chosen);    // logits.cpp
void add_bench(CLI::App& app, Chosen& chosen);     // bench.cpp
void add_eval(CLI::App& app, Chosen& chosen);      // eval.cpp

}  // namespace cli

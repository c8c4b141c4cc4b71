// cli/commands: one function per command of `auspex`.
//
// Each add_*() declares its command and options on the application. The callback of the command that the user names
// stores the work to do in `chosen`.
#pragma once
#include "command.h"

namespace cli {

void add_run(CLI::App& app, Chosen& chosen);       // run.cpp
void add_chat(CLI::App& app, Chosen& chosen);      // chat.cpp
void add_inspect(CLI::App& app, Chosen& chosen);   // inspect.cpp
void add_tokenize(CLI::App& app, Chosen& chosen);  // text.cpp
void add_render(CLI::App& app, Chosen& chosen);    // text.cpp
void add_logits(CLI::App& app, Chosen& chosen);    // logits.cpp
void add_eval(CLI::App& app, Chosen& chosen);      // eval.cpp

}  // namespace cli

// cli/constraint: --json-schema, --grammar, --regex, --tools: what generated text must look like.
#pragma once
#include "common.h"

namespace cli {

/// At most one of the first four is given.
struct ConstraintFlags {
    std::string schema, grammar, tools;  ///< files
    std::optional<std::string> regex;
    std::string tool_choice;  ///< auto, required, or the name of a tool; empty: auto

    bool any() const { return !schema.empty() || !grammar.empty() || !tools.empty() || regex; }
};
void add_constraint(CLI::App& command, ConstraintFlags& o);

/// The tools of --tools as ChatRequest takes them; none without it.
/// errors    bad_argument: no JSON array of objects, or --tool-choice without --tools; those of read_document().
Status read_tools(const ConstraintFlags& o, std::vector<std::string>* to);
/// The grammar that the flags ask for, or none. tools: from read_tools(); prompt: which the text follows.
/// errors    bad_argument, unsupported: what the grammar says, with the file's name; those of read_document().
Status read_grammar(const ConstraintFlags& o, const std::vector<std::string>& tools,
                    const auspex::ChatTemplate& chat_template, const auspex::ChatPrompt& prompt, auspex::Grammar* to);
/// The constraint of a text outside thinking, or none.
/// errors    as above, and those of Constraint::create().
Status choose_constraint(const ConstraintFlags& o, const auspex::Model& model, auspex::Constraint* to);

}  // namespace cli

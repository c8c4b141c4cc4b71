// cli/session: --session FILE: a conversation that run and chat continue and save.
#pragma once
#include <filesystem>

#include "branches.h"

namespace cli {

struct SessionFlag {
    std::string path;  ///< empty: nothing is kept
    bool exists = false;
    auspex::SessionFile file;  ///< if it exists: its note and its tokens
    /// When the file was written last, as this program knows it.
    std::filesystem::file_time_type written = std::filesystem::file_time_type::min();
};
void add_session(CLI::App& command, SessionFlag& o);
/// Reads what the file says about itself. A file that does not exist is a new conversation.
/// errors    those of read_session_file(); not_found: its folder does not exist.
Status find_session(SessionFlag* o);
/// Reads it again: others may have saved since, while a prompt was typed or the model loaded.
Status read_session(SessionFlag* o);
/// Loads an existing file into the session, and says what was found where that matters. o->file is what was loaded.
Status load_session(SessionFlag* o, bool verbose, auspex::Session& session);
/// Warns where another program has saved to the file meanwhile. report: if given, what was written.
Status save_session(SessionFlag* o, bool verbose, const std::string& note, const auspex::Session& session,
                    auspex::SaveReport* report = nullptr);

/// A chat as the note of its file: the messages and switches in the form that ChatRequest::from_json() reads, and the
/// messages of its other branches. n_retry: how often /retry was used.
std::string chat_note(const auspex::ChatRequest& request, const Branches& branches, uint64_t n_retry);
/// Leaves the tools of `request` as they are: a note holds none.
///
/// errors    bad_argument: the file was not saved by a chat.
Status read_chat_note(const SessionFlag& o, auspex::ChatRequest* request, Branches* branches, uint64_t* n_retry);

}  // namespace cli

// engine/file_parts: the parts of a session's file as structs, and reading them.
//
// Owns    their layout, and every check of what a file says. A struct lies in the file as in memory.
// Thread  pure functions.
// Tests   tests/test_session_file_bad.cpp: what is damaged, absurd or of another session is refused.
#pragma once
#include "session.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

enum class PartKind : uint32_t { commit, text, note, rows, draft_rows, kept_state, live_state };

/// Whose file this is.
struct FileIdentity {
    char magic[8];     ///< with the version of the parts
    uint64_t weights;  ///< weights_id()
    uint64_t device, kv;
    uint64_t draft;                      ///< weights of the draft blocks, formats and windows of their caches; 0: none
    char device_name[96], kv_name[160];  ///< for messages, cut if too long
};
static_assert(sizeof(FileIdentity) == 296, "part of the file format");

struct StateHead {
    uint64_t row, n_span, trunk_bytes, draft_bytes;
    uint64_t first_key, n_mtp_row;  ///< MtpCache::Kept
    uint64_t n_hidden;              ///< values of the hidden row, or 0
};
static_assert(sizeof(StateHead) == 56, "part of the file format");

FileIdentity identity_of(Session::Impl& session);
/// errors    bad_argument: a file of another model, device or options; the text has both.
Status check_identity(const FileIdentity& found, const FileIdentity& own, const std::string& path);

/// LogPart::flags of a kept state.
constexpr uint32_t flags_of(StateKind kind, bool pinned) { return static_cast<uint32_t>(kind) | (pinned ? 256u : 0u); }

/// A state part, read up to its bytes.
struct StatePartHead {
    StateHead head{};
    StateStore::Facts facts;
};
/// What a file holds, checked; the rows and states themselves are not read yet.
struct FileContent {
    LogReader log;
    FileIdentity identity{};
    bool same_draft = false;  ///< the draft blocks' caches of file and session are alike, or neither has any
    bool with_draft = false;  ///< both have them, alike
    TextHead text{};
    std::vector<Token> tokens;
    std::vector<float> logits;
    std::vector<std::byte> note;
    std::vector<LogPart> rows, draft_rows, kept;
    LogPart live;
};
/// Opens a file and reads what every reader needs: the identity, the text's head and the note.
Status open_content(const char* path, FileContent* to);
/// Checks everything else against the session, and every checksum.
/// errors    bad_argument, bad_file, io_error, out_of_memory.
Status check_content(Session::Impl& session, FileContent* content);
/// Reads a state's head and spans. errors: bad_file.
Status read_state_head(Session::Impl& session, const FileContent& content, const LogPart& part, PartReader& from,
                       StatePartHead* to);
Status write_state_head(const StatePartHead& state, bool exact, StateWriter& to);
uint64_t state_part_bytes(const StateHead& head);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

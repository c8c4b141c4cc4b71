// engine/session_file: a conversation on disk.
//
// Owns    what the parts of a file mean (part_log.h has their frame), and which of them a session need not write again.
// Thread  belongs to one session.
// Tests   tests/test_session_file.cpp, tests/test_session_file_bad.cpp.
//
//   text         TextHead | tokens | logits of the last row, if they are known
//   note         the application's bytes
//   rows         kFileRows rows of the trunk, as Context::save_rows orders them; one part for each block of rows
//   draft rows   the same of the draft blocks
//   kept state   StateHead | spans | state of the trunk | of the draft blocks | hidden row; one for each checkpoint of
//                the live path
//   live state   the same after the last row
//
// Loading reads everything once to check it and a second time into the context, through one buffer. Beside that it
// takes the index (48 bytes a part), tokens, logits and spans; nothing as large as the file.
#pragma once
#include "part_log.h"
#include "prefix_tree.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// What a session saved last, or was loaded from.
struct SavedFile {
    struct Part {
        LogPart part;
        uint64_t serial = 0;  ///< of the kept state that it holds
    };
    std::string path;
    LogMark mark;
    std::vector<Part> parts;
};

/// Session::save(path). errors: as documented there; the session is as before.
Result<SaveReport> save_file(Session::Impl& session, const char* path, Span<const std::byte> note);
/// Session::load(path).
Result<SessionFile> load_file(Session::Impl& session, const char* path);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

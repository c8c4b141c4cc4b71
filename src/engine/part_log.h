// engine/part_log: a file of parts that grows by commits.
//
// Owns    the layout below, the checksums, and what survives a crash. Knows nothing of sessions.
// Thread  one at a time.
// Tests   tests/test_part_log.cpp, tests/test_session_file.cpp.
//
//   LogHead | identity | record | record | ...
//   record    RecordHead | payload | 0..7 zero bytes, so that the next one begins at a multiple of 8
//   commit    a record of kind 0: LogPart[n] | LogTail. It names every part that is valid with it; parts that the last
//             commit does not name are dead
//
// A new file is written under another name, synced and renamed. A later save appends records, syncs, appends a commit
// and syncs again: a reader takes the last complete commit, so a crash at any point loses that save alone.
#pragma once
#include "../base/checksum.h"
#include "../base/disk_file.h"
#include "../machine/state_stream.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// A part as a commit names it. The file knows `at`, `bytes` and `checksum`; the rest belongs to the caller.
struct LogPart {
    uint32_t kind = 0;  ///< 1..
    uint32_t flags = 0;
    uint64_t first = 0, n = 0;
    uint64_t at = 0, bytes = 0;  ///< of the payload
    uint64_t checksum = 0;
};
static_assert(sizeof(LogPart) == 48 && std::is_trivially_copyable_v<LogPart>, "part of the file format");

/// Tells the commit with which a file ends from every other.
struct LogMark {
    uint64_t file_id = 0, sequence = 0;
    uint64_t end = 0;  ///< of the file
};

/// They bound what open() allocates, whatever the file says.
constexpr uint64_t kMaxIdentity = 4096, kMaxLogParts = uint64_t{1} << 18;
/// Bytes that readers and writers of parts hold.
constexpr size_t kLogBuffer = size_t{1} << 20;

/// A file that is open for reading, at its last complete commit.
class LogReader {
  public:
    /// errors    those of DiskFile::open; bad_file: no such file, damaged, or without a commit.
    Status open(const char* path);
    Span<const std::byte> identity() const { return identity_; }
    const std::vector<LogPart>& parts() const { return parts_; }
    const LogMark& mark() const { return mark_; }
    /// Whether something follows the commit: a save that was cut short, and not one that is going on.
    bool recovered() const { return recovered_; }
    /// Reads all parts to their ends and checks their checksums. together: with a few threads where there is much to
    /// read.
    Status verify(bool together);
    DiskFile& file() { return file_; }
    const std::string& path() const { return file_.path(); }
    std::vector<std::byte>& buffer() { return buffer_; }

  private:
    Status read_head(uint64_t size);
    bool read_commit(uint64_t at, uint64_t bytes);
    bool intact(const LogPart& part, Span<std::byte> buffer) const;
    Result<size_t> n_intact(bool together);
    Result<bool> find_commit(uint64_t size);
    void scan(uint64_t size);

    DiskFile file_;
    std::vector<std::byte> identity_, buffer_;
    std::vector<LogPart> parts_;
    LogMark mark_;
    uint64_t first_record_ = 0;
    bool recovered_ = false;
};

/// Gives the bytes of one part in order. Its checksum is checked by finish().
class PartReader : public StateReader {
  public:
    PartReader(LogReader& log, const LogPart& part) : log_(log), part_(part) {}
    /// errors    io_error; bad_file: the part has fewer bytes.
    Status read(void* to, uint64_t n) override;
    Status skip(uint64_t n);
    uint64_t left() const { return part_.bytes - done_; }
    /// Reads what is left. errors: bad_file: the checksum differs.
    Status finish();

  private:
    Status load();

    LogReader& log_;
    LogPart part_;
    Checksum sum_;
    uint64_t loaded_ = 0, done_ = 0;  ///< bytes of the part read from the file, and given out
    size_t at_ = 0, end_ = 0;         ///< of the buffer
};

/// Writes a new file or appends to one. Unless commit() succeeds nothing is changed: a new file is deleted, an old one
/// cut to what it was.
class LogWriter : public StateWriter {
  public:
    LogWriter() = default;
    ~LogWriter() override;
    LogWriter(const LogWriter&) = delete;
    LogWriter& operator=(const LogWriter&) = delete;
    /// A file that replaces what `path` names once it is committed.
    Status create(const char* path, Span<const std::byte> identity);
    /// Goes on after `last`, and keeps other writers out. False: the file does not end with that commit, another writer
    /// has it, or it cannot be opened.
    Result<bool> append(const char* path, const LogMark& last);

    /// The next part, of exactly part.bytes bytes, written with write(); end_part() fills in `at` and `checksum`.
    Status begin_part(const LogPart& part);
    Status write(const void* from, uint64_t n) override;
    Status end_part(LogPart* part);
    /// Makes these parts the content of the file, and syncs it.
    Status commit(Span<const LogPart> parts, LogMark* mark);
    uint64_t written() const { return at_ + n_buffer_ - begin_; }

  private:
    DiskFile& file() { return appends_ ? file_ : temporary_.file(); }
    Status put(const void* from, uint64_t n, Checksum* sum = nullptr);
    Status flush();
    Status begin_record(uint32_t kind, uint64_t bytes);
    Status pad();

    TemporaryFile temporary_;
    DiskFile file_;
    bool appends_ = false, committed_ = false;
    std::vector<std::byte> buffer_;
    size_t n_buffer_ = 0;
    uint64_t begin_ = 0, at_ = 0;  ///< where this save began, and where the buffer belongs
    LogMark mark_;
    LogPart part_;
    uint64_t n_part_ = 0;  ///< bytes of it written
    Checksum sum_;
};

/// What a part of this many bytes takes in the file.
constexpr uint64_t log_bytes_of(uint64_t payload) { return 32 + round_up(payload, 8); }

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

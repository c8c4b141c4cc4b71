// base/disk_file: files that are written: at any place, to the disk, and by replacing a whole file at once.
//
// Owns    an open file; a temporary file until it takes its final name.
// Thread  one at a time.
// Tests   tests/test_part_log.cpp
#pragma once
#include "base.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// A regular file that is open for reading or writing. Errors are io_error with the path and the operating system's
/// reason; not_found where the file or its folder is missing.
class DiskFile {
  public:
    enum class Mode {
        read,    ///< of a file that exists
        update,  ///< reads and writes a file that exists, and that nobody else has open for this
        create,  ///< writes a file that must not exist
        renew,   ///< writes a new file, or over one of this user that nobody has open for updates (POSIX)
    };
    DiskFile() = default;
    ~DiskFile() { close(); }
    DiskFile(DiskFile&& o) noexcept;
    DiskFile& operator=(DiskFile&& o) noexcept;
    DiskFile(const DiskFile&) = delete;
    DiskFile& operator=(const DiskFile&) = delete;
    /// path      UTF-8.
    /// named     the path that errors name: that of the file which this one will replace. Null: `path`.
    /// errors    also bad_argument: no path, or a folder, a device or a pipe; on Windows a path that is not UTF-8.
    static Result<DiskFile> open(const char* path, Mode mode, const char* named = nullptr);
    void close();

    Result<uint64_t> size() const;
    /// errors    also bad_file: the file ends before.
    Status read(uint64_t at, void* to, uint64_t n) const;
    /// The same without a message: allocates nothing. From several threads at once where reads_at_once().
    bool try_read(uint64_t at, void* to, uint64_t n) const;
    static bool reads_at_once();
    /// Whether somebody else has the file open for updates at this moment; false where that is not known. It takes the
    /// lock for a moment: an update that begins just then is refused.
    bool is_updated() const;
    Status write(uint64_t at, const void* from, uint64_t n);
    /// Waits until everything written is on the disk.
    Status sync();
    /// Makes the file `size` bytes long.
    Status cut(uint64_t size);
    const std::string& path() const { return path_; }  ///< as errors name it

  private:
    friend class TemporaryFile;
    std::string path_;
    intptr_t handle_ = -1;  ///< of the operating system
};

/// A new file beside the one that it will replace. Unless replace() succeeds it is deleted; where the process is ended
/// first, the next one for this path takes its place.
class TemporaryFile {
  public:
    TemporaryFile() = default;
    ~TemporaryFile() { remove(); }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;
    /// errors    those of DiskFile::open; bad_argument: `path` is a folder, a device or a pipe.
    Status create(const char* path);
    DiskFile& file() { return file_; }
    /// Syncs the file and gives it the name, in one step: at any moment the name has the old or the new content.
    Status replace();

  private:
    void remove();
    std::string path_, name_, folder_;  ///< what it will be called, is called now, and where
    DiskFile file_;
};

/// A number that no other call on any machine is likely to return.
uint64_t unique_number();

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

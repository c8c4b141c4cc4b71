// base/file: a path becomes bytes.
//
// Owns    mapping or reading files, with the operating system's reason in every error.
// Reads   base.
// Serves  model loading, tools.
// Thread  a File may be read from any thread.
// Laws    HotPath: tests/test_base.cpp (missing, directory, empty, no permission).
#pragma once
#include "base.h"

namespace auspex {
namespace detail {

/// A read-only file: mapped where the platform allows, read into memory otherwise.
/// The size is taken once, at open. As with any mapping, nobody may shorten the file while it is
/// open: the operating system would end the process at the first missing page.
class File {
  public:
    File() = default;
    ~File();
    File(File&& o) noexcept;
    File& operator=(File&& o) noexcept;
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    /// path      UTF-8.
    /// errors    bad_argument (no path), not_found, io_error (a directory, empty, no permission; the text
    ///           has the path and the operating system's reason), out_of_memory (only without mapping).
    /// cost      none of the bytes are read yet when the file is mapped.
    static Result<File> open(const char* path);
    Span<const std::byte> bytes() const { return {data_, size_}; }

  private:
    void close();

    const std::byte* data_ = nullptr;
    size_t size_ = 0;
    bool mapped_ = false;
};

/// The most shards a split model may have.
constexpr uint32_t kMaxShards = 1024;

/// The paths of all shards of a split model, in order, from the path of shard `no` (counted from 0) of
/// `count`: "<prefix>-00001-of-00003.gguf" with (0, 3) gives the three siblings in the same folder.
///
/// errors    bad_file: no is not below count, or count is over kMaxShards (the file's keys are wrong).
///           bad_argument: the name does not end as number and count demand (the text says how).
Result<std::vector<std::string>> shard_paths(const std::string& first, uint32_t no, uint32_t count);

}  // namespace detail
}  // namespace auspex

// base/file: read-only files and the names of shards.
//
// Owns    mapping a file, or copying it into memory.
// Thread  any thread may read an open File.
// Tests   tests/test_base.cpp
#pragma once
#include "base.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// A failure with the path in front, unless its text begins with it already.
Status with_path(const Status& s, const char* path);

/// A read-only file: mapped if the platform can, else, or on request, copied into memory. Its size is fixed at open().
/// While a mapped file is open nobody may truncate it: the operating system ends a process that reads a missing page
/// (SIGBUS). A copy is safe from that.
class File {
  public:
    File() = default;
    ~File();
    File(File&& o) noexcept;
    File& operator=(File&& o) noexcept;
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    /// path      UTF-8.
    /// copy_to   if given, the file is copied into memory from there instead of being mapped.
    /// errors    bad_argument: no path, or a directory, a device or a pipe; not_found; io_error: empty, no permission
    ///           (the text has the path and the operating system's reason); out_of_memory: for a copy.
    /// cost      a mapped file is not read yet.
    static Result<File> open(const char* path, const Allocator* copy_to = nullptr);
    Span<const std::byte> bytes() const { return {data_, size_}; }

  private:
    void close();

    const std::byte* data_ = nullptr;
    size_t size_ = 0;
    bool mapped_ = false;
    Block copy_;
};

/// Largest number of shards of a split model.
constexpr uint32_t kMaxShards = 1024;

/// The paths of all shards, in order, from the path of shard `no` (from 0) of `count`:
/// "<prefix>-00001-of-00003.gguf" with (0, 3) gives three paths in the same folder.
///
/// errors    bad_file: no is not below count, or count is above kMaxShards (wrong keys in the file).
///           bad_argument: the name does not have the form that no and count require.
Result<std::vector<std::string>> shard_paths(const std::string& first, uint32_t no, uint32_t count);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
